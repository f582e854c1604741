//! Checkpoints of a run on several hosts: the run's folders there as one store, where they share none, and what all of them hold in
//! memory as another.

use super::start::CHECKPOINTS;
use super::{Job, Trainer, tiers};
use crate::error::{Error, Result};
use crate::pretrained::together;
use planaria_ckpt::{Folders, Hosts};
use planaria_comm::Comm;
use planaria_comm::value::{self, Value};
use planaria_store::Local;
use std::path::Path;

/// Variable with the name that ranks of other hosts reach this one by.
const ADDRESS: &str = "PLANARIA_ADDRESS";

/// Copies of what is in memory, where the configuration does not say: any one host may be lost.
const COPIES: usize = 2;

/// How many hosts there are, and on how many of them each file lies that is held in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub(super) hosts: usize,
    pub(super) copies: usize,
}

impl Shares {
    /// Over so many hosts, where the configuration says this of copies.
    pub(super) fn over(hosts: usize, copies: Option<usize>) -> Shares {
        Shares { hosts, copies: copies.unwrap_or(COPIES).min(hosts) }
    }
}

/// What is served between hosts, for as long as this is held.
#[derive(Debug, Default)]
pub(super) struct Served {
    hosts: Option<Hosts>,
    folder: Option<Folders>,
    memory: Option<Folders>,
}

impl Served {
    /// Finds out which hosts there are, where that matters. Collective.
    pub(super) fn meet(trainer: &Trainer, comm: &dyn Comm) -> Result<Served> {
        let matters =
            trainer.config.checkpoint.copies.is_some() || tiers::in_memory(&trainer.config).next().is_some();
        if !matters {
            return Ok(Served::default());
        }
        let told = || std::env::var(ADDRESS).ok().filter(|name| !name.is_empty());
        let name = trainer.host.clone().or_else(told).unwrap_or_else(Hosts::own_name);
        Ok(Served::of(&Hosts::meet(comm, &name)?))
    }

    /// By these hosts.
    pub(super) fn of(hosts: &Hosts) -> Served {
        Served { hosts: Some(hosts.clone()), ..Served::default() }
    }

    /// How many there are; one where it does not matter.
    pub(super) fn count(&self) -> usize {
        self.hosts.as_ref().map_or(1, Hosts::count)
    }

    /// Gives a job the stores that its hosts make together. Collective.
    pub(super) fn gather(&mut self, job: &mut Job, comm: &dyn Comm) -> Result<()> {
        let Some(hosts) = &self.hosts else { return Ok(()) };
        let copies = job.config.checkpoint.copies;
        if let Some(copies) = copies.filter(|_| job.store.is_none()) {
            let dir = job.config.run_dir();
            let ready = if hosts.is_first() { begin(&dir) } else { Ok(()) };
            together(comm, ready)?;
            let folders = self.folder.insert(hosts.folders(comm, &dir, copies)?);
            job.store = Some(folders.store.clone());
        }
        if hosts.count() > 1 && tiers::in_memory(&job.config).next().is_some() {
            let id = identity(job, comm)?;
            let dir = tiers::memory_of(&job.config)?;
            let made = || tiers::make_memory(&job.config, Some(&id)).and_then(|()| begin(&dir));
            together(comm, if hosts.is_first() { made() } else { Ok(()) })?;
            let folders = self.memory.insert(hosts.folders(comm, &dir, copies.unwrap_or(COPIES))?);
            job.memory = Some(folders.store.clone());
        }
        Ok(())
    }

    /// Waits for the ranks that may still read or write what this one serves. Collective.
    pub(super) fn end(self, comm: &dyn Comm) -> Result<()> {
        if self.folder.is_some() || self.memory.is_some() {
            comm.barrier()?;
        }
        Ok(())
    }
}

/// Makes a folder of this host ready. What is left of saves that this host did not see committed is no part of any checkpoint.
fn begin(dir: &Path) -> Result<()> {
    let io = |source| Error::Io { path: dir.display().to_string(), source };
    std::fs::create_dir_all(dir).map_err(io)?;
    planaria_ckpt::remove_leftovers(&Local::new(dir), CHECKPOINTS)?;
    Ok(())
}

/// By what the memory of a run is known, on all hosts the same: what one of them has noted, or a new one. Collective.
fn identity(job: &Job, comm: &dyn Comm) -> Result<String> {
    let noted = tiers::noted_identity(&job.config.run_dir()).unwrap_or_default();
    let known = texts(comm, &noted)?.into_iter().find(|id| !id.is_empty());
    let new = texts(comm, &tiers::new_identity())?.swap_remove(0);
    Ok(known.unwrap_or(new))
}

/// What every rank says. Collective.
fn texts(comm: &dyn Comm, text: &str) -> Result<Vec<String>> {
    let all = value::all_gather(comm, &Value::Text(text.to_string()))?;
    let text = |value| if let Value::Text(text) = value { text } else { String::new() };
    Ok(all.into_iter().map(text).collect())
}
