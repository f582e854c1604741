//! The places that checkpoints go to and come from: the run's folder, and the tiers of `[[checkpoint.tiers]]`.

use super::Job;
use super::start::CHECKPOINTS;
use crate::config::{Config, TierKind, TierSection};
use crate::error::{Error, Result};
use planaria_ckpt::step_folder;
use planaria_layout::DType;
use planaria_nn::models::parameter_count;
use planaria_store::{Store, join};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where memory tiers lie that name no place.
const MEMORY: &str = "/dev/shm";

/// The run's folder among the places.
pub(super) const OWN: usize = 0;

/// The file that says which run a folder belongs to.
const ID: &str = "ID";

/// One place.
#[derive(Clone, Debug)]
pub(super) struct Tier {
    /// Absent for the run's folder.
    pub(super) kind: Option<TierKind>,
    pub(super) store: Arc<dyn Store>,
    /// Steps between saves; 0 for none.
    pub(super) every: u64,
    pub(super) keep: usize,
}

impl Tier {
    /// A checkpoint here, as it is named to people.
    pub(super) fn label(&self, folder: &str) -> String {
        match self.kind {
            None => folder.to_string(),
            Some(kind) => format!("{folder} ({kind})"),
        }
    }

    /// Quick ones come first.
    pub(super) fn order(&self) -> u8 {
        match self.kind {
            Some(TierKind::Memory) => 0,
            Some(TierKind::Peer) => 1,
            None => 2,
            Some(TierKind::Local) => 3,
            Some(TierKind::Remote) => 4,
        }
    }
}

impl Job {
    /// The run's folder, then the tiers in the order of the configuration.
    pub(super) fn tiers(&self) -> Result<Vec<Tier>> {
        let section = &self.config.checkpoint;
        let own = Tier { kind: None, store: self.store()?, every: section.every, keep: section.keep };
        let rest = section.tiers.iter().map(|tier| {
            let store = planaria_store::open(&place(&self.config, tier)?)?;
            Ok(Tier { kind: Some(tier.kind), store, every: tier.every, keep: tier.keep })
        });
        std::iter::once(Ok(own)).chain(rest).collect()
    }
}

/// The address of a tier.
fn place(config: &Config, tier: &TierSection) -> Result<String> {
    match (&tier.path, tier.kind) {
        (Some(path), _) => Ok(path.clone()),
        (None, _) => Ok(memory_of(config)?.display().to_string()),
    }
}

/// The folder in shared memory of a run: the same for everyone who runs it here, and of no one else.
fn memory_of(config: &Config) -> Result<PathBuf> {
    let dir = config.run_dir();
    let io = |source| Error::Io { path: dir.display().to_string(), source };
    let dir = std::path::absolute(&dir).map_err(io)?;
    let mut hasher = DefaultHasher::new();
    dir.hash(&mut hasher);
    let user = std::fs::metadata("/proc/self").map_or(0, |about| about.uid());
    Ok(Path::new(MEMORY).join(format!("planaria-{user}")).join(format!("{:016x}", hasher.finish())))
}

/// The tiers that lie in this machine's shared memory.
fn in_memory(config: &Config) -> impl Iterator<Item = &TierSection> {
    config.checkpoint.tiers.iter().filter(|tier| tier.kind == TierKind::Memory && tier.path.is_none())
}

/// Makes the folder of memory tiers, which only its user can enter. What it has of another run that was in the same place goes.
pub(super) fn make_memory(config: &Config) -> Result<()> {
    if in_memory(config).next().is_none() {
        return Ok(());
    }
    let (dir, run) = (memory_of(config)?, config.run_dir());
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |source| Error::Io { path, source }
    };
    let read = |dir: &Path| std::fs::read_to_string(dir.join(ID)).ok().filter(|id| !id.is_empty());
    let own = match read(&run) {
        Some(id) => id,
        None => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let id = format!("{:032x}-{}", now.map_or(0, |since| since.as_nanos()), std::process::id());
            std::fs::write(run.join(ID), &id).map_err(io(&run.join(ID)))?;
            id
        }
    };
    if read(&dir).is_some_and(|id| id != own) {
        clear_memory(config)?;
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(io(&dir))?;
    std::fs::write(dir.join(ID), own).map_err(io(&dir.join(ID)))
}

/// The checkpoints of each place that come after `step`, where the run resumes from; `own` are those of its folder.
pub(super) fn after(tiers: &[Tier], step: u64, own: Vec<u64>) -> Result<Vec<Vec<u64>>> {
    let rest = tiers.iter().skip(1).map(|tier| {
        let mut later = planaria_ckpt::committed(&*tier.store, CHECKPOINTS)?;
        later.retain(|&other| other > step);
        Ok(later)
    });
    std::iter::once(Ok(own)).chain(rest).collect()
}

/// Refuses tiers that cannot hold what they should, with the figures.
pub(super) fn check(job: &Job) -> Result<()> {
    let section = &job.config.checkpoint;
    let steps = job.config.train.steps;
    let refuse = |found: String, expected: String| {
        Err(Error::Value { key: "checkpoint.tiers".into(), found, expected })
    };
    for tier in &section.tiers {
        let TierSection { kind, every, .. } = tier;
        if *every > steps {
            let expected =
                format!("an interval within the {steps} steps of the run; it would never be saved");
            return refuse(format!("{kind} every {every} steps"), expected);
        }
    }
    let bytes = state_bytes(job)?;
    let needed: u64 = in_memory(&job.config).map(|tier| (tier.keep as u64 + 1) * bytes).sum();
    if needed > 0
        && let Ok(free) = free_bytes(Path::new(MEMORY))
        && needed > free
    {
        let expected = format!(
            "room for {needed} bytes, {bytes} for each checkpoint that stays and one that is written; {MEMORY} has {free} free"
        );
        return refuse("memory".into(), expected);
    }
    for peer in section.tiers.iter().filter(|tier| tier.kind == TierKind::Peer) {
        let path = peer.path.as_deref().unwrap_or_default();
        let device = |path: &str| std::fs::metadata(path).ok().map(|about| about.dev());
        if device(path).is_some() && device(path) == device(MEMORY) {
            let expected = "memory of another machine: losing this one would lose both".to_string();
            return refuse(format!("peer '{path}' in the memory of this machine"), expected);
        }
    }
    Ok(())
}

/// Refuses memory that not all ranks can reach.
pub(super) fn check_ranks(job: &Job, local: usize, ranks: usize) -> Result<()> {
    match in_memory(&job.config).next() {
        Some(_) if local < ranks => Err(Error::Value {
            key: "checkpoint.tiers".into(),
            found: format!("memory, with {local} of {ranks} ranks on this machine"),
            expected: "all ranks on one machine; give the tier a `path` that all of them reach".into(),
        }),
        _ => Ok(()),
    }
}

/// Bytes of a checkpoint of all ranks; those of small files are not counted.
fn state_bytes(job: &Job) -> Result<u64> {
    let optim = crate::update::rule(&job.config.optim);
    let dtype = job.config.train.precision.dtype();
    let state = optim.state(&planaria_array::Array::zeros(&[0], dtype)?)?;
    let slots = state.slots.iter().map(|(_, slot)| slot.dtype().size());
    let kept = slots.chain(state.master.iter().map(|master| master.dtype().size())).sum::<usize>();
    let ema = job.config.optim.averages()?.len() * DType::F32.size();
    Ok(parameter_count(&*job.model)? * (dtype.size() + kept + ema) as u64)
}

/// Bytes that are free on the file system of a folder.
fn free_bytes(path: &Path) -> std::io::Result<u64> {
    let about = rustix::fs::statvfs(path)?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

/// What became of the memory of a run that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Its folder has everything that memory had, or there is no memory.
    Nothing,
    /// This checkpoint was only in memory and is in the run's folder now.
    Copied(String),
}

/// Brings the newest checkpoint that is only in memory to the run's folder, for a run that will not be started again.
pub fn persist_memory(config: &Config) -> Result<Kept> {
    let own = planaria_store::open(&config.run_dir().display().to_string())?;
    let newest = planaria_ckpt::committed(&*own, CHECKPOINTS)?.last().copied().unwrap_or(0);
    let mut found: Vec<(u64, Arc<dyn Store>)> = Vec::new();
    for tier in config.checkpoint.tiers.iter().filter(|tier| tier.kind <= TierKind::Peer) {
        let store = planaria_store::open(&place(config, tier)?)?;
        let steps = planaria_ckpt::committed(&*store, CHECKPOINTS)?;
        found.extend(steps.into_iter().filter(|&step| step > newest).map(|step| (step, store.clone())));
    }
    found.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
    for (step, store) in found {
        let folder = join(CHECKPOINTS, &step_folder(step));
        if planaria_ckpt::verify(&store, &folder).is_ok_and(|found| found.is_sound()) {
            planaria_ckpt::copy(&*store, &*own, &folder)?;
            return Ok(Kept::Copied(folder));
        }
    }
    Ok(Kept::Nothing)
}

/// Removes what a run has in memory here.
pub fn clear_memory(config: &Config) -> Result<()> {
    let dir = memory_of(config)?;
    match std::fs::remove_dir_all(&dir) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Io { path: dir.display().to_string(), source })
        }
        _ => Ok(()),
    }
}
