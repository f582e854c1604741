//! Buckets as users have them: every check against a real server that the test starts, directly and through a proxy that
//! breaks one request in twenty.
//!
//! Needs the features `s3` and `azure`, moto's server (`pip install 'moto[server]'`), found through `PLANARIA_MOTO` or the
//! search path, and Azurite (`npm install azurite`), found through `PLANARIA_AZURITE` or the search path; without them
//! the tests say so and pass. `PLANARIA_LISTED=100000` lists that many objects.
#![cfg(any(feature = "s3", feature = "azure"))]

#[cfg(feature = "azure")]
mod azure;
mod checks;
mod faults;
mod proxy;
#[cfg(feature = "s3")]
mod s3;
mod server;

use planaria_store::{Store, Variables, open_with};
use std::sync::Arc;

/// Seconds that an operation may take on a crowded machine.
const PATIENCE: &str = "600";

/// A bucket of a server.
struct Cloud {
    /// Without a slash at the end.
    url: &'static str,
    /// What a user would set.
    variables: Vec<(String, String)>,
    /// Where the server listens.
    port: u16,
    /// Keeps the server.
    _server: Arc<server::Server>,
}

impl Cloud {
    /// The store below a folder of its own.
    fn open(&self, folder: &str) -> Arc<dyn Store> {
        self.with(&[]).open_at(folder)
    }

    /// With some variables changed, or removed where the value is empty.
    fn with(&self, changes: &[(&str, &str)]) -> Settings {
        let mut variables = self.variables.clone();
        variables.retain(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
        variables.extend(changes.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        Settings { url: self.url.to_string(), variables: variables.into_iter().collect() }
    }

    /// As if the server listened at another port.
    fn through(&self, port: u16) -> Settings {
        let (from, to) = (format!("127.0.0.1:{}", self.port), format!("127.0.0.1:{port}"));
        let moved = self.variables.iter().map(|(name, value)| (name.clone(), value.replace(&from, &to)));
        Settings { url: self.url.to_string(), variables: moved.collect() }
    }
}

/// A URL and the variables it is opened with.
struct Settings {
    url: String,
    variables: Variables,
}

impl Settings {
    fn open_at(&self, folder: &str) -> Arc<dyn Store> {
        self.try_open(folder).unwrap()
    }

    fn try_open(&self, folder: &str) -> Result<Arc<dyn Store>, planaria_store::Error> {
        open_with(&format!("{}/{folder}", self.url), &self.variables)
    }
}
