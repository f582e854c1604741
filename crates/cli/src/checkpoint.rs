//! Opening a checkpoint that was named on the command line.

use crate::failure::Failure;
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::ckpt::Folders;
use planaria::ckpt::convert::Ranks;
use planaria::ckpt::formats::{self, OpenOptions, Source};
use planaria::store::{Store, local_path};
use std::sync::Arc;

/// Opens the checkpoint at a path or URL.
pub(crate) fn open(path: &str, options: &OpenOptions, terminal: &Terminal) -> Result<Source> {
    let (store, at) = locate(path, terminal)?;
    Ok(formats::open(&store, &at, options)?)
}

/// The same by ranks of a job, of which each calls this. Where they are on several hosts a path of the file system stands for what all
/// hosts have there together, for as long as the second is held by all of them. Collective.
pub(crate) fn open_on(
    ranks: Option<Ranks<'_>>,
    path: &str,
    options: &OpenOptions,
    terminal: &Terminal,
) -> Result<(Source, Option<Folders>)> {
    match (ranks.filter(|ranks| ranks.hosts.count() > 1), local_path(path)) {
        (Some(Ranks { world, hosts }), Some(local)) => {
            let (folders, given) = hosts.locate(world, &local)?;
            let at = newest(path, &*folders.store, given, terminal)?;
            Ok((formats::open(&folders.store, &at, options)?, Some(folders)))
        }
        _ => Ok((open(path, options, terminal)?, None)),
    }
}

/// The store and the name in it of the checkpoint that a path or URL stands for; a run stands for its newest one.
pub(crate) fn locate(path: &str, terminal: &Terminal) -> Result<(Arc<dyn Store>, String)> {
    exists(path)?;
    let (store, given) = planaria::store::locate(path)?;
    let at = newest(path, &*store, given, terminal)?;
    Ok((store, at))
}

fn newest(path: &str, store: &dyn Store, given: String, terminal: &Terminal) -> Result<String> {
    let at = planaria::ckpt::newest(store, &given)?;
    if at != given {
        terminal.note(format_args!("'{path}' holds a run; this is its newest checkpoint, {at}"));
    }
    Ok(at)
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
