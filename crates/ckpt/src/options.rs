//! How to save and load, and what came of it.

use crate::error::{Error, Result};
use crate::manifest::Derive;
use crate::schedule::{Schedule, UNIT, Way};
use planaria_aoa::Mapping;
use planaria_comm::{Comm, CommExt};
use planaria_layout::DType;
use planaria_store::{Medium, Transfer, TransferOptions, pattern};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

pub use crate::retain::Retain;

/// How tensors are cut in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tiles {
    /// Every tensor lies whole in one file: an ordinary Hugging Face folder, the same bytes for every layout.
    #[default]
    Whole,
    /// Every box lies in a file of a rank that holds it: nothing travels between ranks.
    AsHeld,
}

/// What the files of weights are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileNames {
    /// `model-00001-of-00002.safetensors` and an index: a model.
    #[default]
    Model,
    /// `adapter_model.safetensors`, one file without an index: an adapter, as peft reads it. Only with whole tensors.
    Adapter,
}

/// Whether model weights are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// All.
    #[default]
    Write,
    /// Not those that have a master weight; the master takes the parameter's place in the model files, and loading
    /// the parameter casts it.
    FromMasters,
}

/// Whether master weights are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Masters {
    /// All.
    #[default]
    Write,
    /// None; loading casts the parameters, which loses what parameters round away.
    Rebuild,
}

/// Whether optimizer state is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Optimizer {
    /// All.
    #[default]
    Write,
    /// Neither optimizer slots nor master weights: the model alone.
    Skip,
}

/// What to do about boxes that several ranks hold; one copy of each is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicas {
    /// Take them for equal.
    #[default]
    Trust,
    /// Compare their checksums, and refuse to save when ranks have come to differ.
    Compare,
}

/// How to save.
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// How tensors are cut in files.
    pub tiles: Tiles,
    /// What the files of weights are called.
    pub names: FileNames,
    /// Whether model weights are written.
    pub weights: Weights,
    /// Whether master weights are written.
    pub masters: Masters,
    /// Whether optimizer state is written.
    pub optimizer: Optimizer,
    /// What to do about boxes that several ranks hold.
    pub replicas: Replicas,
    /// Makes the tensors of the files from those of the state: the exact inverse of what loading uses.
    pub mapping: Option<Arc<Mapping>>,
    /// A file that would pass this many bytes is cut, between tensors.
    pub max_file_size: u64,
    /// Which older checkpoints beside this one go when it is committed.
    pub retain: Retain,
    /// Threads and staging memory to use; made anew for each save when missing. Keep one to spare its making.
    pub transfer: Option<Arc<Transfer>>,
    /// Told how much of this rank's part is written, for whoever watches.
    pub meter: Option<Arc<Meter>>,
}

/// How much of a rank's part of a save or load has moved.
#[derive(Debug, Default)]
pub struct Meter {
    total: AtomicU64,
    done: AtomicU64,
}

impl Meter {
    /// The share, from 0 to 1; none before it is known how much there is.
    pub fn share(&self) -> Option<f64> {
        let total = self.total.load(Relaxed);
        (total > 0).then(|| self.done.load(Relaxed) as f64 / total as f64)
    }

    /// Bytes that have moved, and all there are; nothing before that is known.
    pub fn bytes(&self) -> Option<(u64, u64)> {
        let total = self.total.load(Relaxed);
        (total > 0).then(|| (self.done.load(Relaxed).min(total), total))
    }

    pub(crate) fn begin(&self, total: u64) {
        self.done.store(0, Relaxed);
        self.total.store(total, Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
    }
}

impl Default for SaveOptions {
    fn default() -> SaveOptions {
        SaveOptions {
            tiles: Tiles::default(),
            names: FileNames::default(),
            weights: Weights::default(),
            masters: Masters::default(),
            optimizer: Optimizer::default(),
            replicas: Replicas::default(),
            mapping: None,
            max_file_size: 5_000_000_000,
            retain: Retain::default(),
            transfer: None,
            meter: None,
        }
    }
}

impl SaveOptions {
    /// Refuses options that exclude each other; what loading has to derive.
    pub(crate) fn check(&self) -> Result<Option<Derive>> {
        let refuse = |what: &str| Err(Error::Options { what: what.to_string() });
        if self.max_file_size == 0 {
            return refuse("a max_file_size of 0 holds nothing; choose at least 1");
        }
        match (self.weights, self.masters, self.optimizer) {
            (Weights::FromMasters, Masters::Rebuild, _) => {
                refuse("weights from masters and masters from weights would leave neither; write one of them")
            }
            (Weights::FromMasters, _, Optimizer::Skip) => {
                refuse("without optimizer state there are no masters to take weights from; write the weights")
            }
            (Weights::FromMasters, ..) => Ok(Some(Derive::ParametersFromMasters)),
            (_, Masters::Rebuild, _) => Ok(Some(Derive::MastersFromParameters)),
            _ => Ok(None),
        }
    }

    pub(crate) fn transfer(&self, world: &dyn Comm, schedule: &Schedule) -> Arc<Transfer> {
        transfer(self.transfer.as_ref(), world, schedule, Medium::default())
    }
}

/// What a save did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Saved {
    /// The folder.
    pub folder: String,
    /// Bytes of the files of tensors, over all ranks.
    pub bytes: u64,
    /// Number of tensors.
    pub tensors: usize,
    /// Folders that retention removed.
    pub removed: Vec<String>,
    /// Why it could not remove others: what was saved is saved all the same.
    pub unremoved: Option<String>,
    /// Seconds it took on this rank.
    pub seconds: f64,
}

/// What to do about tensors on one side that the other lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// Refuse to load.
    #[default]
    Refuse,
    /// Leave them as they are, and report them.
    Allow,
}

/// Which changes of element type a load may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Casts {
    /// None.
    #[default]
    Refuse,
    /// From one floating point type to another.
    Floats,
    /// Any.
    Any,
}

/// What to do about master weights that the checkpoint lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rebuild {
    /// Cast parameters if it was saved to be loaded so; else they are missing.
    #[default]
    AsSaved,
    /// Cast parameters.
    FromParameters,
}

/// How to load.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Tensors that the state asks for and the checkpoint lacks.
    pub missing: Unmatched,
    /// Tensors of the checkpoint that no rank asks for.
    pub unexpected: Unmatched,
    /// Tensors to leave alone on both sides: patterns with `*` over names as the report shows them.
    pub ignore: Vec<String>,
    /// Changes of element type.
    pub casts: Casts,
    /// Master weights that the checkpoint lacks.
    pub masters: Rebuild,
    /// Makes the tensors of the state from those of the files. Optimizer state moves as its parameter does,
    /// without the casts.
    pub mapping: Option<Arc<Mapping>>,
    /// Threads and staging memory to use; made anew for each load when missing.
    pub transfer: Option<Arc<Transfer>>,
    /// Told how much of this rank's part is read, for whoever watches.
    pub meter: Option<Arc<Meter>>,
}

impl LoadOptions {
    pub(crate) fn transfer(&self, world: &dyn Comm, schedule: &Schedule, from: Medium) -> Arc<Transfer> {
        transfer(self.transfer.as_ref(), world, schedule, from)
    }

    /// What missing master weights are made from, if they may be.
    pub(crate) fn rebuild(&self) -> Option<Derive> {
        match self.masters {
            Rebuild::AsSaved => None,
            Rebuild::FromParameters => Some(Derive::MastersFromParameters),
        }
    }

    pub(crate) fn ignores(&self, name: &str) -> bool {
        self.ignore.iter().any(|given| pattern::matches(given, name))
    }
}

/// A kept transfer if it is large enough, or a new one no larger than this rank's work. Ranks beside each other
/// need fewer threads each.
fn transfer(
    kept: Option<&Arc<Transfer>>,
    world: &dyn Comm,
    schedule: &Schedule,
    medium: Medium,
) -> Arc<Transfer> {
    if let Some(kept) = kept.filter(|kept| kept.options().chunk as u64 >= UNIT) {
        return kept.clone();
    }
    let own = (0..schedule.units.len()).filter(|&unit| schedule.is_mine(unit));
    let runs = own.flat_map(|unit| &schedule.units[unit].runs);
    let (count, longest, bytes) = runs.fold((0, 0, 0), |(n, max, all), run| {
        let len = run.end - run.start;
        (n + 1, len.max(max), all + len)
    });
    // More than cores: while some wait for the storage, others copy and sum, also on a busy machine. A rank that is
    // the last to end must still keep the storage busy. A save has to get along beside training: when every thread
    // waits for its turn on a core, only the number of writes under way keeps the storage busy.
    // A load has the machine to itself: what is in memory already comes as fast as all cores can copy and sum it.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (all, most) = match (schedule.way, medium) {
        (Way::Save, _) => (16, 16),
        (Way::Load, Medium::Network) => (32, 16),
        // Nothing is waited for.
        (Way::Load, Medium::Memory) => (cores, cores.clamp(4, 32)),
        (Way::Load, _) => (cores.max(16), cores.clamp(8, 32)),
    };
    let threads = (all / world.size()).clamp(4, most);
    // What a request costs beside its bytes is worth a few neighbours in one, as long as every thread has some.
    let chunk = match (schedule.way, medium) {
        (Way::Load, Medium::Network) => (bytes / threads as u64).min(2 * UNIT).max(longest),
        _ => longest,
    };
    let options =
        TransferOptions { threads: threads.min(count), chunk: chunk as usize, ..TransferOptions::default() };
    Arc::new(Transfer::new(options))
}

/// A change of element type that a load made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cast {
    /// The tensor.
    pub tensor: String,
    /// Type in the checkpoint.
    pub from: DType,
    /// Type in memory.
    pub to: DType,
}

/// What a load did, over all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Tensors that were loaded.
    pub loaded: Vec<String>,
    /// Tensors that were asked for and are not in the checkpoint.
    pub missing: Vec<String>,
    /// Tensors of the checkpoint that nobody asked for.
    pub unexpected: Vec<String>,
    /// Changes of element type.
    pub cast: Vec<Cast>,
    /// Tensors that a pattern excludes.
    pub ignored: Vec<String>,
    /// Bytes that went to arrays, copies on several ranks counted once each.
    pub bytes_loaded: u64,
    /// Bytes read from storage by all ranks together.
    pub bytes_read: u64,
    /// Seconds it took on this rank.
    pub seconds: f64,
}
