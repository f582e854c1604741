//! The places that checkpoints go to and come from: the run's folder, and the tiers of `[[checkpoint.tiers]]`.

use super::Job;
use super::hosts::Shares;
use super::place::Place;
use super::start::CHECKPOINTS;
use crate::config::{Config, TierKind, TierSection};
use crate::error::{Error, Result};
use planaria_ckpt::step_folder;
use planaria_layout::DType;
use planaria_nn::models::{Architecture, parameter_count};
use planaria_store::{EntryKind, Faulty, Peer, PeerRoom, Store, StoreExt, join};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{ToSocketAddrs, UdpSocket};
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where memory tiers lie that name no place.
const MEMORY: &str = "/dev/shm";

/// The file that says which run a folder belongs to.
const ID: &str = "ID";

/// One place, with the store that it is.
#[derive(Clone, Debug)]
pub(super) struct Tier {
    pub(super) place: Place,
    pub(super) store: Arc<dyn Store>,
}

impl Deref for Tier {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Job {
    /// The run's folder, then the tiers in the order of the configuration.
    pub(super) fn tiers(&self) -> Result<Vec<Tier>> {
        let places = Place::all(&self.config.checkpoint).into_iter().enumerate();
        let sections = std::iter::once(None).chain(self.config.checkpoint.tiers.iter().map(Some));
        let tier = |((number, place), section): ((usize, Place), Option<&TierSection>)| {
            let store = match (section, &self.memory) {
                (None, _) => self.store()?,
                (Some(TierSection { kind: TierKind::Memory, path: None, .. }), Some(memory)) => {
                    memory.clone()
                }
                (Some(section), _) => planaria_store::open(&address(&self.config, section)?)?,
            };
            Ok(Tier { place, store: self.trapped(number, store) })
        };
        places.zip(sections).map(tier).collect()
    }

    /// A place, with the trap that a drill has set in it.
    fn trapped(&self, number: usize, store: Arc<dyn Store>) -> Arc<dyn Store> {
        match self.healing.traps.get(number) {
            Some(trap) => Arc::new(Faulty::over(store, trap)),
            None => store,
        }
    }
}

/// The address of a tier.
pub(crate) fn address(config: &Config, tier: &TierSection) -> Result<String> {
    match (&tier.path, tier.kind) {
        (Some(path), _) => Ok(path.clone()),
        (None, _) => Ok(memory_of(config)?.display().to_string()),
    }
}

/// The folder in shared memory of a run: the same for everyone who runs it here, and of no one else.
pub(super) fn memory_of(config: &Config) -> Result<PathBuf> {
    let dir = config.run_dir();
    let io = |source| Error::Io { path: dir.display().to_string(), source };
    let dir = std::path::absolute(&dir).map_err(io)?;
    let mut hasher = DefaultHasher::new();
    dir.hash(&mut hasher);
    let user = std::fs::metadata("/proc/self").map_or(0, |about| about.uid());
    Ok(Path::new(MEMORY).join(format!("planaria-{user}")).join(format!("{:016x}", hasher.finish())))
}

/// The tiers that lie in this machine's shared memory.
pub(super) fn in_memory(config: &Config) -> impl Iterator<Item = &TierSection> {
    config.checkpoint.tiers.iter().filter(|tier| tier.kind == TierKind::Memory && tier.path.is_none())
}

/// By what the memory of a run is known, as its folder has noted it.
pub(super) fn noted_identity(dir: &Path) -> Option<String> {
    std::fs::read_to_string(dir.join(ID)).ok().filter(|id| !id.is_empty())
}

/// One that no other run has.
pub(super) fn new_identity() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("{:032x}-{}", now.map_or(0, |since| since.as_nanos()), std::process::id())
}

/// Makes the folder of memory tiers, which only its user can enter. What it has of another run that was in the same place goes. The run
/// is known by `id`, else by what its folder has noted.
pub(super) fn make_memory(config: &Config, id: Option<&str>) -> Result<()> {
    if in_memory(config).next().is_none() {
        return Ok(());
    }
    let (dir, run) = (memory_of(config)?, config.run_dir());
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |source| Error::Io { path, source }
    };
    let noted = noted_identity(&run);
    let own = id.map(str::to_string).or_else(|| noted.clone()).unwrap_or_else(new_identity);
    if noted.as_ref() != Some(&own) {
        std::fs::create_dir_all(&run).map_err(io(&run))?;
        std::fs::write(run.join(ID), &own).map_err(io(&run.join(ID)))?;
    }
    if noted_identity(&dir).is_some_and(|id| id != own) {
        clear_memory(config)?;
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(io(&dir))?;
    std::fs::write(dir.join(ID), own).map_err(io(&dir.join(ID)))
}

/// The checkpoints of each place that come after `step`, where the run resumes from; `own` are those of its folder.
/// What cannot be reached now has none that are known.
pub(super) fn after(tiers: &[Tier], step: u64, own: Vec<u64>) -> Vec<Vec<u64>> {
    let rest = tiers.iter().skip(1).map(|tier| {
        let mut later = planaria_ckpt::committed(&*tier.store, CHECKPOINTS).unwrap_or_default();
        later.retain(|&other| other > step);
        later
    });
    std::iter::once(own).chain(rest).collect()
}

/// Refuses tiers that cannot hold what they should, with the figures.
pub(super) fn check(job: &Job, shares: Shares) -> Result<()> {
    let section = &job.config.checkpoint;
    let steps = job.config.train.steps;
    for tier in &section.tiers {
        let TierSection { kind, every, .. } = tier;
        if *every > steps {
            let expected =
                format!("an interval within the {steps} steps of the run; it would never be saved");
            return refuse(format!("{kind} every {every} steps"), expected);
        }
    }
    let bytes = state_bytes(&job.config, &*job.model)?;
    let Shares { hosts, copies } = shares;
    let needed: u64 = in_memory(&job.config).map(|tier| (tier.keep as u64 + 1) * bytes).sum();
    // Each of several hosts has its share of the files.
    let needed = needed * copies as u64 / hosts.max(1) as u64;
    // What a run that resumes has there already is part of what it needs.
    let own = if needed > 0 { bytes_below(&memory_of(&job.config)?) } else { 0 };
    if needed > 0
        && let Ok(free) = free_bytes(Path::new(MEMORY))
        && needed > free.saturating_add(own)
    {
        let share = if hosts > 1 { format!(", {copies} copies on {hosts} hosts") } else { String::new() };
        let expected = format!(
            "room for {needed} bytes, {bytes} for each checkpoint that stays and one that is written{share}; {MEMORY} has {free} \
             free and {own} of this run"
        );
        return refuse("memory".into(), expected);
    }
    if in_memory(&job.config).count() > 1 {
        let expected = "one; give the others a `path`, or they would be one folder".to_string();
        return refuse(format!("{} memory tiers", in_memory(&job.config).count()), expected);
    }
    for peer in section.tiers.iter().filter(|tier| tier.kind == TierKind::Peer) {
        let path = peer.path.as_deref().unwrap_or_default();
        if let Some((needed, room)) = short_of(path, (peer.keep as u64 + 1) * bytes) {
            let expected = format!(
                "room for {needed} bytes, {bytes} for each checkpoint that stays and one that is written; its agent may hold {} \
                 and holds {} of others",
                room.limit, room.used
            );
            return refuse(format!("peer '{path}'"), expected);
        }
        let device = |path: &str| std::fs::metadata(path).ok().map(|about| about.dev());
        if device(path).is_some() && device(path) == device(MEMORY) {
            let expected = "memory of another machine: losing this one would lose both".to_string();
            return refuse(format!("peer '{path}' in the memory of this machine"), expected);
        }
    }
    Ok(())
}

/// What is needed and the room that there is, where an agent has less; none for other peers, and for one that does not answer now:
/// a run starts without it.
fn short_of(path: &str, needed: u64) -> Option<(u64, PeerRoom)> {
    let peer = path.starts_with("peer://").then(|| Peer::open(path).ok()).flatten()?;
    let mut room = peer.room().ok()?;
    let entries = peer.walk("").ok()?.into_iter();
    let own: u64 = entries.map(|entry| if let EntryKind::File(bytes) = entry.kind { bytes } else { 0 }).sum();
    room.used = room.used.saturating_sub(own);
    (needed > room.limit.saturating_sub(room.used)).then_some((needed, room))
}

/// Refuses places that cannot be reached now, which a run would start without.
pub(super) fn check_reach(job: &Job) -> Result<()> {
    for tier in job.tiers()?.iter().skip(1) {
        if let Err(error) = planaria_ckpt::committed(&*tier.store, CHECKPOINTS) {
            return Err(Error::Value {
                key: "checkpoint.tiers".into(),
                found: tier.label(&tier.store.address()),
                expected: format!("a place that can be reached: {error}"),
            });
        }
    }
    Ok(())
}

fn refuse(found: String, expected: impl Into<String>) -> Result<()> {
    Err(Error::Value { key: "checkpoint.tiers".into(), found, expected: expected.into() })
}

/// Refuses memory of several hosts that cannot be told apart.
pub(super) fn check_memory(job: &Job, local: usize, ranks: usize) -> Result<()> {
    if local >= ranks || job.memory.is_some() || in_memory(&job.config).next().is_none() {
        return Ok(());
    }
    let found =
        format!("memory, with {local} of {ranks} ranks on this machine, and all machines of one name");
    refuse(
        found,
        "machines with names of their own; set PLANARIA_ADDRESS on each to the name that others reach it by",
    )
}

/// Refuses a peer that is lost with a machine of ranks.
pub(super) fn check_peers(job: &Job, local: usize, ranks: usize) -> Result<()> {
    if local >= ranks {
        return Ok(());
    }
    let peers = job.config.checkpoint.tiers.iter().filter(|tier| tier.kind == TierKind::Peer);
    match peers.filter_map(|tier| tier.path.as_deref()).find(|path| is_here(path)) {
        Some(path) => refuse(
            format!("peer '{path}', which is on a machine of the ranks"),
            "a machine without ranks: losing any one machine then loses nothing",
        ),
        None => Ok(()),
    }
}

/// True for an agent on the machine that asks: one can listen only at addresses of one's own.
fn is_here(path: &str) -> bool {
    let place = path.strip_prefix("peer://").and_then(|rest| rest.split('/').next());
    let found = place.and_then(|place| place.to_socket_addrs().ok());
    found.into_iter().flatten().any(|at| UdpSocket::bind((at.ip(), 0)).is_ok())
}

/// Bytes of a checkpoint of all ranks; those of small files are not counted.
pub(crate) fn state_bytes(config: &Config, model: &dyn Architecture) -> Result<u64> {
    let optim = crate::update::rule(&config.optim);
    let dtype = config.train.precision.dtype();
    let state = optim.state(&planaria_array::Array::zeros(&[0], dtype)?)?;
    let slots = state.slots.iter().map(|(_, slot)| slot.dtype().size());
    let kept = slots.chain(state.master.iter().map(|master| master.dtype().size())).sum::<usize>();
    let ema = config.optim.averages()?.len() * DType::F32.size();
    Ok(parameter_count(model)? * (dtype.size() + kept + ema) as u64)
}

/// Bytes of all files below a folder; of one that is not there, none.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => bytes_below(&entry.path()),
            _ => entry.metadata().map_or(0, |about| about.len()),
        })
        .sum()
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

/// Brings the newest checkpoint that is only in memory to the run's folder, for a run that will not be started again and has run on this
/// machine alone; see [`Trainer::settle_on`](super::Trainer::settle_on).
pub fn persist_memory(config: &Config) -> Result<Kept> {
    let own = planaria_store::open(&config.run_dir().display().to_string())?;
    persist(config, &*own, None)
}

/// The same with the store of the run's folder and what several hosts have in memory.
pub(super) fn persist(config: &Config, own: &dyn Store, memory: Option<Arc<dyn Store>>) -> Result<Kept> {
    let newest = planaria_ckpt::committed(own, CHECKPOINTS)?.last().copied().unwrap_or(0);
    let mut found: Vec<(u64, Arc<dyn Store>)> = Vec::new();
    for tier in config.checkpoint.tiers.iter().filter(|tier| tier.kind <= TierKind::Peer) {
        let store = match memory.as_ref().filter(|_| tier.kind == TierKind::Memory && tier.path.is_none()) {
            Some(memory) => memory.clone(),
            None => planaria_store::open(&address(config, tier)?)?,
        };
        // A peer that is gone must not keep what another has from the folder.
        let steps = planaria_ckpt::committed(&*store, CHECKPOINTS).unwrap_or_default();
        found.extend(steps.into_iter().filter(|&step| step > newest).map(|step| (step, store.clone())));
    }
    found.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
    for (step, store) in found {
        let folder = join(CHECKPOINTS, &step_folder(step));
        if planaria_ckpt::verify(&store, &folder).is_ok_and(|found| found.is_sound()) {
            planaria_ckpt::copy(&*store, own, &folder)?;
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
