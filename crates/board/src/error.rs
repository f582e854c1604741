//! What can go wrong with a page.

/// A page that cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on '{address}': {message}; give another `--port`, or 0 for any free one")]
    Listen {
        /// The address.
        address: String,
        /// What the system says.
        message: String,
    },
    /// A metrics file cannot be read.
    #[error(transparent)]
    Telemetry(#[from] planaria_telemetry::Error),
}

/// What functions of this crate give.
pub type Result<T, E = Error> = std::result::Result<T, E>;
