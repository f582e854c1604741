//! What verbs that look at a run without starting it are told: its configuration, changes to it, and the number of ranks.

use anyhow::Result;
use planaria::train::Config;
use planaria::train::config::Sources;
use std::path::{Path, PathBuf};

/// A run as the command line describes it.
#[derive(Debug, clap::Args)]
pub(crate) struct Job {
    /// The run's configuration
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,
    /// Ranks; what the mesh asks for if not given
    #[arg(short = 'n', long, value_name = "NUMBER")]
    pub(crate) ranks: Option<usize>,
    /// Change a value of the configuration; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Job {
    /// The configuration's file.
    pub(crate) fn file(&self) -> &Path {
        &self.config
    }

    /// The file with the changes of the environment and of the command line.
    pub(crate) fn config(&self) -> Result<Config> {
        let sources = Sources::file(&self.config).variables(std::env::vars()).set(self.set.clone());
        Ok(sources.resolve()?.config)
    }

    /// The ranks that were asked for, or those of the mesh.
    pub(crate) fn ranks_of(&self, config: &Config) -> usize {
        self.ranks.unwrap_or_else(|| config.mesh.ranks())
    }
}
