//! One import for everything: re-exports of the planaria crates.

pub use planaria_array as array;
pub use planaria_layout as layout;

/// The names most programs need.
pub mod prelude {}
