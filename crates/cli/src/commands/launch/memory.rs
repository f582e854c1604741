//! What a run has in memory when it will not be started again.

use crate::exit::Exit;
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::train::config::TierKind;
use planaria::train::{Config, Kept, clear_memory, persist_memory};

/// Whether hosts of a job have a part each of what it holds in memory.
pub(super) fn is_spread(config: &Config) -> bool {
    config.checkpoint.tiers.iter().any(|tier| tier.kind == TierKind::Memory && tier.path.is_none())
}

/// Brings what is only in memory to the run's folder, and frees the memory of a run that is done.
pub(super) fn settle(config: &Config, exit: Exit, terminal: &mut Terminal) -> Result<()> {
    if config.checkpoint.tiers.is_empty() {
        return Ok(());
    }
    if let Kept::Copied(folder) = persist_memory(config)? {
        terminal.warn(format!("{folder} was only in memory; it is in '{}' now", config.run_dir().display()));
    }
    // A run that may be started again finds its memory quicker than its folder.
    if exit == Exit::Success {
        clear_memory(config)?;
    }
    Ok(())
}
