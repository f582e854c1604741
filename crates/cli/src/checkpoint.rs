//! Opening a checkpoint that was named on the command line.

use crate::failure::Failure;
use anyhow::Result;
use planaria::ckpt::formats::{OpenOptions, Source, open_url};
use planaria::store::local_path;

/// Opens the checkpoint at a path or URL.
pub(crate) fn open(path: &str, options: &OpenOptions) -> Result<Source> {
    exists(path)?;
    Ok(open_url(path, options)?)
}

/// Refuses a path with nothing there.
pub(crate) fn exists(path: &str) -> Result<()> {
    match local_path(path) {
        Some(local) if !local.exists() => Err(Failure::usage(format!("'{path}' does not exist"))
            .hint("name a folder, a file or a URL that holds a checkpoint")
            .into()),
        _ => Ok(()),
    }
}
