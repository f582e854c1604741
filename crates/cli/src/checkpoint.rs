//! Opening a checkpoint that was named on the command line.

use crate::failure::Failure;
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::ckpt::formats::{self, OpenOptions, Source};
use planaria::store::{Store, local_path};
use std::sync::Arc;

/// Opens the checkpoint at a path or URL.
pub(crate) fn open(path: &str, options: &OpenOptions, terminal: &Terminal) -> Result<Source> {
    let (store, at) = locate(path, terminal)?;
    Ok(formats::open(&store, &at, options)?)
}

/// The store and the name in it of the checkpoint that a path or URL stands for; a run stands for its newest one.
pub(crate) fn locate(path: &str, terminal: &Terminal) -> Result<(Arc<dyn Store>, String)> {
    exists(path)?;
    let (store, given) = planaria::store::locate(path)?;
    let at = planaria::ckpt::newest(&*store, &given)?;
    if at != given {
        terminal.note(format_args!("'{path}' holds a run; this is its newest checkpoint, {at}"));
    }
    Ok((store, at))
}

/// Refuses a path with nothing there.
fn exists(path: &str) -> Result<()> {
    match local_path(path) {
        Some(local) if !local.exists() => Err(Failure::usage(format!("'{path}' does not exist"))
            .hint("name a folder, a file or a URL that holds a checkpoint")
            .into()),
        _ => Ok(()),
    }
}
