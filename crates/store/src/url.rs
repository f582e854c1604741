//! From a path or URL to a store.

use crate::bucket::{self, Variables};
use crate::error::{Error, Result};
use crate::local::Local;
use crate::peer::Peer;
use crate::store::Store;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens a folder (`path` or `file:///path`), a bucket (`s3://bucket/prefix`, `gs://...`, `az://...`, with the
/// feature of that name), the memory of an agent (`peer://host:port/prefix`), or an empty store in memory
/// (`memory:`, with the feature `objects`). Credentials and endpoints of buckets come from the usual environment variables and files, the
/// token of an agent from `PLANARIA_PEER_TOKEN`.
pub fn open(url: &str) -> Result<Arc<dyn Store>> {
    open_with(url, &Variables::of_process())
}

/// [`open`], with variables that stand for those of the environment where a bucket is opened.
pub fn open_with(url: &str, variables: &Variables) -> Result<Arc<dyn Store>> {
    let bad = |reason: &str| Error::BadUrl { url: url.to_string(), reason: reason.to_string() };
    let Some((scheme, rest)) = split_scheme(url) else {
        return if url.is_empty() { Err(bad("it is empty")) } else { Ok(Arc::new(Local::new(url))) };
    };
    match scheme {
        "file" => match rest.strip_prefix("//") {
            Some(path) if path.starts_with('/') => Ok(Arc::new(Local::new(path))),
            _ => Err(bad("expected file:///absolute/path")),
        },
        "memory" => bucket::memory(url),
        "peer" => Ok(Arc::new(Peer::open(url)?)),
        "s3" | "s3a" => bucket::s3(url, variables),
        "gs" | "gcs" => bucket::gcs(url, variables),
        "az" | "azure" | "abfs" | "abfss" => bucket::azure(url, variables),
        _ => Err(bad("known schemes are file, memory, peer, s3, gs and az")),
    }
}

/// The store that holds `url` and its name there: for a local file its folder and file name, for a folder
/// the folder itself and an empty name.
pub fn locate(url: &str) -> Result<(Arc<dyn Store>, String)> {
    let Some(path) = local_path(url) else { return locate_object(url) };
    if !path.is_file() {
        return Ok((open(url)?, String::new()));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let name = path.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| Error::BadUrl { url: url.to_string(), reason: "its name is not text".into() })?;
    Ok((Arc::new(Local::new(folder)), name.to_string()))
}

/// The path of a folder or file of the local file system; none for a store elsewhere.
pub fn local_path(url: &str) -> Option<PathBuf> {
    match split_scheme(url) {
        None => Some(PathBuf::from(url)),
        Some(("file", rest)) => Some(PathBuf::from(rest.strip_prefix("//").unwrap_or(rest))),
        Some(_) => None,
    }
}

/// An object is taken for a file when it exists.
fn locate_object(url: &str) -> Result<(Arc<dyn Store>, String)> {
    let split = url.trim_end_matches('/').rsplit_once('/');
    let Some((folder, name)) = split.filter(|(folder, _)| !folder.ends_with(['/', ':'])) else {
        return Ok((open(url)?, String::new()));
    };
    let store = open(folder)?;
    match store.reader(name) {
        Ok(_) => Ok((store, name.to_string())),
        Err(Error::NotFound { .. }) => Ok((open(url)?, String::new())),
        Err(error) => Err(error),
    }
}

/// A scheme has at least two letters, so that `C:\x` is a path.
fn split_scheme(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once(':')?;
    let is_scheme = scheme.len() > 1
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric());
    // `name:with:colons` is a path; URLs continue with slashes, except `memory:`.
    (is_scheme && (rest.starts_with("//") || scheme == "memory")).then_some((scheme, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_urls_are_told_apart() {
        assert_eq!(open("some/folder").unwrap().address(), "some/folder");
        assert_eq!(open("file:///x").unwrap().address(), "/x");
        assert_eq!(open("odd:name").unwrap().address(), "odd:name");
        assert_eq!(open("memory:").unwrap().address(), "memory:");
        assert_eq!(open("peer://host:7000/run/").unwrap().address(), "peer://host:7000/run");
        assert_eq!(open("peer://[::1]:7000").unwrap().address(), "peer://[::1]:7000");
        let peers =
            ["peer://host", "peer://:7", "peer://h:0", "peer://h:70000/x", "peer://h:7/../x", "peer://u@h:7"];
        for bad in ["", "file://relative", "ftp://host/x"].into_iter().chain(peers) {
            assert!(matches!(open(bad), Err(Error::BadUrl { .. })), "{bad}");
        }
    }

    /// No request is made until something is read.
    #[cfg(all(feature = "gcs", feature = "azure"))]
    #[test]
    fn urls_of_clouds_name_their_buckets() {
        let unsigned = [("GOOGLE_SKIP_SIGNATURE", "true"), ("AZURE_SKIP_SIGNATURE", "true")];
        for url in ["gs://bucket/run/step-1", "abfss://container@account.dfs.core.windows.net/run/step-1"] {
            assert_eq!(open_with(url, &Variables::from_iter(unsigned)).unwrap().address(), url);
        }
    }

    #[cfg(not(feature = "s3"))]
    #[test]
    fn a_bucket_without_its_feature_says_which_is_missing() {
        let message = open("s3://bucket/x").unwrap_err().to_string();
        assert!(message.contains("feature 's3'"), "{message}");
    }
}
