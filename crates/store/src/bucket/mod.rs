//! Buckets: from a URL and the usual variables to an object store, or to a sentence that says what is missing.

#[cfg(feature = "azure")]
mod azure;
#[cfg(feature = "gcs")]
mod gcs;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
mod metadata;
#[cfg(feature = "s3")]
mod profile;
#[cfg(feature = "s3")]
mod s3;
mod texts;

use crate::error::{Error, Result};
use crate::store::Store;
use std::collections::BTreeMap;
use std::sync::Arc;

pub use texts::{AzureConnection, aws_section, azure_connection};

/// Variables that say how buckets are reached, such as `AWS_ACCESS_KEY_ID`: those of the process, or others.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Variables(BTreeMap<String, String>);

/// Values are secrets.
impl std::fmt::Debug for Variables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

impl Variables {
    /// The environment of this process; what is not text is left out.
    pub fn of_process() -> Variables {
        std::env::vars_os()
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
            .collect()
    }

    /// The value of a variable; an empty one counts as none.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Variables {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Variables {
        Variables(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// A new store of objects that lives as long as its handles.
#[cfg(feature = "objects")]
pub(crate) fn memory(_: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(crate::object::Object::memory()))
}

#[cfg(not(feature = "objects"))]
pub(crate) fn memory(url: &str) -> Result<Arc<dyn Store>> {
    feature_off(url, "objects")
}

#[cfg(not(feature = "s3"))]
pub(crate) fn s3(url: &str, _: &Variables) -> Result<Arc<dyn Store>> {
    feature_off(url, "s3")
}

#[cfg(not(feature = "gcs"))]
pub(crate) fn gcs(url: &str, _: &Variables) -> Result<Arc<dyn Store>> {
    feature_off(url, "gcs")
}

#[cfg(not(feature = "azure"))]
pub(crate) fn azure(url: &str, _: &Variables) -> Result<Arc<dyn Store>> {
    feature_off(url, "azure")
}

#[cfg(feature = "azure")]
pub(crate) use azure::open as azure;
#[cfg(feature = "gcs")]
pub(crate) use gcs::open as gcs;
#[cfg(feature = "s3")]
pub(crate) use s3::open as s3;

#[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
fn feature_off(url: &str, feature: &str) -> Result<Arc<dyn Store>> {
    Err(refuse(url, format!("this build lacks the feature '{feature}'; build it with --features {feature}")))
}

fn refuse(url: &str, reason: impl Into<String>) -> Error {
    Error::BadUrl { url: url.to_string(), reason: reason.into() }
}

/// What is the same for all kinds of buckets.
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
mod common {
    use super::{Result, Variables, refuse};
    use crate::error::Error;
    use crate::retry::RetryOptions;
    use object_store::{BackoffConfig, RetryConfig};
    use std::time::Duration;

    /// The variable that says for how many seconds an operation on a bucket is tried again.
    pub(super) const SECONDS: &str = "PLANARIA_STORE_RETRY";

    /// What follows the bucket.
    pub(super) fn prefix(url: &str) -> &str {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        rest.split_once('/').map_or("", |(_, prefix)| prefix)
    }

    pub(super) fn bad(url: &str, error: &object_store::Error) -> Error {
        refuse(url, crate::object::text(error))
    }

    /// For how long operations are tried again.
    pub(super) fn retry(url: &str, variables: &Variables) -> Result<RetryOptions> {
        let Some(text) = variables.get(SECONDS) else { return Ok(RetryOptions::default()) };
        let reason = || refuse(url, format!("{SECONDS} is '{text}'; set it to a number of seconds"));
        let seconds: f64 = text.parse().map_err(|_| reason())?;
        let total = Duration::try_from_secs_f64(seconds).map_err(|_| reason())?;
        Ok(RetryOptions { total, ..RetryOptions::default() })
    }

    /// The few tries of one request; an operation, of one or more requests, is tried again above them, which is
    /// where answers that were lost are told from work that was not done.
    pub(super) fn requests(options: &RetryOptions) -> RetryConfig {
        let backoff = BackoffConfig {
            init_backoff: options.first_pause,
            max_backoff: options.longest_pause,
            base: 2.0,
        };
        RetryConfig { backoff, max_retries: 3, retry_timeout: options.total }
    }
}
