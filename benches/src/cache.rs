//! Putting files into the page cache and taking them out of it.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Takes the files of a folder out of the page cache.
pub fn forget(folder: &Path) -> Result<()> {
    for file in files(folder)? {
        // `dd` is the standard program that asks for this.
        let input = format!("if={}", file.display());
        let status = Command::new("dd").args([&input, "iflag=nocache", "count=0", "status=none"]).status();
        if !status.context("the program dd is missing")?.success() {
            bail!("dd cannot take {} out of the cache", file.display());
        }
    }
    Ok(())
}

/// Reads the files of a folder through the page cache, so that it holds them.
pub fn remember(folder: &Path) -> Result<()> {
    for file in files(folder)? {
        std::io::copy(&mut File::open(file)?, &mut std::io::sink())?;
    }
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    Ok(entries.collect::<std::io::Result<Vec<_>>>()?.into_iter().filter(|path| path.is_file()).collect())
}
