//! Opening a checkpoint that was named on the command line.

use crate::failure::Failure;
use anyhow::Result;
use planaria_ckpt::formats::{OpenOptions, Source, open_url};
use std::path::Path;

/// Opens the checkpoint at a path or URL.
pub(crate) fn open(path: &str, options: &OpenOptions) -> Result<Source> {
    exists(path)?;
    Ok(open_url(path, options)?)
}

/// Refuses a path with nothing there.
pub(crate) fn exists(path: &str) -> Result<()> {
    if is_url(path) || Path::new(path).exists() {
        return Ok(());
    }
    Err(Failure::usage(format!("'{path}' does not exist")).into())
}

/// Whether this is no path of the local file system.
pub(crate) fn is_url(path: &str) -> bool {
    path.contains("://") || path.starts_with("memory:")
}
