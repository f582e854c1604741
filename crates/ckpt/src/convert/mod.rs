//! From any checkpoint to any format we write: files to files, tile by tile, in bounded memory.
//!
//! [`plan`] decides every byte's place and checks that all of it can be made; it reads no data. [`Conversion::run`]
//! then fills the files. The caller chooses a folder that nobody reads yet and moves it into place afterwards.

mod engine;
mod late;
mod made;
mod names;
mod ours;
mod sums;

use crate::error::{Error, Result};
use crate::folder;
use crate::formats::write::{self, Draft, Wanted};
use crate::formats::{Format, Key, Part, Source};
use crate::manifest::Role;
use crate::stream::Feed;
use engine::{Crew, Spread, Work};
use made::{Casts, Made, Origin};
use ours::Small;
use planaria_aoa::{Catalog, Options, Program, Tensor};
use planaria_layout::{DType, Layout, Region};
use planaria_store::{PutMode, Store, StoreExt, join};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// A Hugging Face folder: the model alone.
    HuggingFace,
    /// A PyTorch distributed checkpoint.
    TorchDcp,
    /// A Paddle unified checkpoint: model, master weights and optimizer.
    PaddleUnified,
    /// Our own folder, committed.
    Planaria,
}

/// How tensors are cut into files.
#[derive(Clone, Debug, Default)]
pub enum Cut {
    /// Every tensor in one piece.
    #[default]
    Whole,
    /// As the source has them: one file per file of the source.
    AsHeld,
    /// As these layouts say, one file per rank; tensors without one are in one piece.
    Layouts(BTreeMap<Key, Layout>),
}

/// What to change on the way.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// Element type of all floating point tensors; none: as they are.
    pub dtype: Option<DType>,
    /// Most bytes in one file, unless a single tensor is larger.
    pub max_shard_size: u64,
    /// How tensors are cut.
    pub cut: Cut,
    /// Says how the tensors of the model become others.
    pub mapping: Option<Program>,
    /// Bytes of memory to stay below.
    pub max_memory: u64,
}

impl Default for ConvertOptions {
    fn default() -> ConvertOptions {
        let (max_shard_size, max_memory) = (5_000_000_000, 256_000_000);
        ConvertOptions { dtype: None, max_shard_size, cut: Cut::Whole, mapping: None, max_memory }
    }
}

/// Hears how far a conversion has come.
pub trait Observer: Sync {
    /// Further bytes are written; `false` stops the work.
    fn moved(&self, bytes: u64) -> bool;
}

/// Nobody listens.
impl Observer for () {
    fn moved(&self, _: u64) -> bool {
        true
    }
}

/// A conversion that can be carried out.
#[derive(Debug)]
pub struct Conversion<'s> {
    source: &'s Source,
    to: To,
    made: Vec<Made>,
    draft: Draft,
    left_out: Vec<(Key, &'static str)>,
    warnings: Vec<String>,
    max_memory: u64,
}

/// Least memory the work can be done in.
const LEAST_MEMORY: u64 = 16_000_000;

/// Plans a conversion; reads no tensor data.
pub fn plan<'s>(source: &'s Source, to: To, options: &ConvertOptions) -> Result<Conversion<'s>> {
    if options.max_memory < LEAST_MEMORY {
        let what = format!("{} bytes of memory are too few; {LEAST_MEMORY} are needed", options.max_memory);
        return Err(Error::Request { what });
    }
    let mut left_out = Vec::new();
    let mut warnings = Vec::new();
    let mut made = match &options.mapping {
        Some(program) => mapped(source, program, &mut left_out, &mut warnings)?,
        None => {
            source.tensors.iter().map(|(key, entry)| Made::same(key, entry.dtype, &entry.shape)).collect()
        }
    };
    names::translate(source.format, to, &mut made);
    if to == To::HuggingFace {
        names::masters_for_missing(&mut made);
    }
    if let Some(dtype) = options.dtype {
        made.iter_mut().filter(|made| made.dtype.is_float()).for_each(|made| made.dtype = dtype);
    }
    made.retain(|made| match unfit(to, made.key.part) {
        Some(why) => {
            left_out.push((made.key.clone(), why));
            false
        }
        None => true,
    });
    if made.is_empty() {
        return Err(Error::Request { what: "nothing is left to write".to_string() });
    }
    check_names(&made)?;
    let mut loads = BTreeMap::new();
    let wanted: Result<Vec<Wanted>> =
        made.iter().map(|made| wanted(source, made, to, &options.cut, &mut loads)).collect();
    let wanted = wanted?;
    let draft = match to {
        To::HuggingFace => write::hugging_face(&wanted, options.max_shard_size)?,
        To::PaddleUnified => write::unified(&wanted, options.max_shard_size)?,
        To::TorchDcp => write::dcp(&wanted, &values(source), options.max_shard_size),
        To::Planaria => write::planaria(&wanted, options.max_shard_size)?,
    };
    Ok(Conversion { source, to, made, draft, left_out, warnings, max_memory: options.max_memory })
}

impl Made {
    fn same(key: &Key, dtype: DType, shape: &planaria_layout::Shape) -> Made {
        Made { key: key.clone(), dtype, shape: shape.clone(), from: Origin::Same(key.clone()) }
    }
}

/// Why a format has no place for a part.
fn unfit(to: To, part: Part) -> Option<&'static str> {
    match (to, part) {
        (To::HuggingFace, Part::Model) | (To::TorchDcp | To::Planaria, _) => None,
        (To::HuggingFace, _) => Some("a Hugging Face folder holds the model alone"),
        (To::PaddleUnified, Part::Ema) => Some("a unified checkpoint has no moving averages"),
        (To::PaddleUnified, _) => None,
    }
}

/// What the mapping makes of the model, and of its full-precision copies, which move the same way without casts.
fn mapped(
    source: &Source,
    program: &Program,
    left_out: &mut Vec<(Key, &'static str)>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Made>> {
    let mut made = Vec::new();
    for part in [Part::Model, Part::MasterWeights, Part::Ema] {
        let entries = source.tensors.iter().filter(|(key, _)| key.part == part);
        let catalog: Catalog = entries
            .map(|(key, entry)| {
                let starts: Vec<&[usize]> = entry.tiles.boxes().map(|(region, _)| region.lo()).collect();
                (key.name.as_str(), Tensor::new(entry.shape.clone(), entry.dtype).with_offsets(starts))
            })
            .collect();
        if catalog.is_empty() {
            continue;
        }
        let mapping = Arc::new(program.compile(&catalog, None, &Options::default())?);
        if part == Part::Model && !mapping.warnings().is_empty() {
            warnings.push(mapping.warnings().render());
        }
        let casts = if part == Part::Model { Casts::Apply } else { Casts::Skip };
        for target in mapping.targets().iter().filter(|target| target.is_loaded()) {
            let (key, shape) =
                (Key { part, name: target.name().to_string() }, target.tensor().shape().clone());
            let first =
                mapping.sources_of(target.name())?.first().map(|name| Key { part, name: name.to_string() });
            let stored = first.and_then(|key| source.tensors.get(&key)).map(|entry| entry.dtype);
            let dtype = if casts == Casts::Apply { target.tensor().dtype().or(stored) } else { stored };
            let dtype = dtype.ok_or_else(|| Error::NoTensor { tensor: key.to_string() })?;
            made.push(Made {
                key,
                dtype,
                shape,
                from: Origin::Mapped {
                    mapping: mapping.clone(),
                    target: target.name().to_string(),
                    part,
                    casts,
                },
            });
        }
    }
    let optimizer = source.tensors.keys().filter(|key| key.part == Part::Optimizer);
    left_out.extend(optimizer.map(|key| (key.clone(), "a mapping speaks of the model alone")));
    Ok(made)
}

/// No two tensors under one name.
fn check_names(made: &[Made]) -> Result<()> {
    let mut seen: BTreeMap<&Key, &Made> = BTreeMap::new();
    for made in made {
        if let Some(first) = seen.insert(&made.key, made) {
            let origin = |made: &Made| match &made.from {
                Origin::Same(key) => key.to_string(),
                Origin::Mapped { .. } => "the mapping".to_string(),
            };
            let (first, second) = (origin(first), origin(made));
            return Err(Error::Duplicate { tensor: made.key.to_string(), first, second });
        }
    }
    Ok(())
}

/// The boxes a tensor is written in.
fn wanted(
    source: &Source,
    made: &Made,
    to: To,
    cut: &Cut,
    loads: &mut BTreeMap<usize, u64>,
) -> Result<Wanted> {
    let whole = vec![(0, Region::whole(&made.shape))];
    let wrong = |problem| Error::Tiles { tensor: made.key.to_string(), problem };
    let boxes = match (cut, &made.from) {
        (Cut::Whole, _) => whole,
        _ if matches!(to, To::HuggingFace | To::PaddleUnified) => {
            let what =
                "this format keeps every tensor in one piece; dcp and planaria hold tensors that are cut";
            let what = what.to_string();
            return Err(Error::Request { what });
        }
        (Cut::AsHeld, Origin::Same(key)) => {
            let tiles = source.get(key)?.tiles.boxes();
            let boxes: Vec<_> =
                tiles.map(|(region, from)| (from.first().map_or(0, |e| e.file), region.clone())).collect();
            if boxes.is_empty() { whole } else { boxes }
        }
        (Cut::AsHeld, Origin::Mapped { .. }) => whole,
        (Cut::Layouts(layouts), _) => match layouts.get(&made.key) {
            Some(layout) => held(layout, made.dtype, loads).map_err(wrong)?,
            None => whole,
        },
    };
    Ok(Wanted { key: made.key.clone(), dtype: made.dtype, shape: made.shape.clone(), boxes })
}

/// Every distinct box of a layout. Of the ranks that hold copies of one, that with the least to write has it.
fn held(
    layout: &Layout,
    dtype: DType,
    loads: &mut BTreeMap<usize, u64>,
) -> planaria_layout::Result<Vec<(usize, Region)>> {
    let mut boxes: BTreeMap<Region, Vec<usize>> = BTreeMap::new();
    for (number, rank) in layout.mesh().ranks().enumerate() {
        for region in layout.piece(rank)?.boxes() {
            if !region.is_empty() {
                boxes.entry(region).or_default().push(number);
            }
        }
    }
    if boxes.is_empty() {
        return Ok(vec![(0, Region::whole(layout.shape()))]);
    }
    let owned = boxes.into_iter().map(|(region, ranks)| {
        let load = |rank: usize| loads.get(&rank).copied().unwrap_or(0);
        let owner = ranks.into_iter().min_by_key(|&rank| (load(rank), rank)).unwrap_or(0);
        *loads.entry(owner).or_default() += (region.numel() * dtype.size()) as u64;
        (owner, region)
    });
    Ok(owned.collect())
}

/// Python values that the source holds beside its tensors, not what describes its files.
fn values(source: &Source) -> BTreeMap<String, serde_json::Value> {
    let objects = matches!(source.format, Format::TorchDcp | Format::TorchSave);
    let own = source.extra.iter().filter(|(name, _)| objects && !source.files.contains(name));
    own.map(|(name, value)| (name.clone(), value.clone())).collect()
}

impl Conversion<'_> {
    /// Bytes of the files of tensors.
    pub fn bytes(&self) -> u64 {
        self.draft.files.iter().map(|file| file.len).sum()
    }

    /// Names and sizes of all files.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        let data = self.draft.files.iter().map(|file| (file.name.as_str(), file.len));
        data.chain(self.draft.small.iter().map(|(name, bytes)| (name.as_str(), bytes.len() as u64)))
    }

    /// Tensors it writes, with their element types and shapes.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&Key, DType, &planaria_layout::Shape)> {
        self.made.iter().map(|made| (&made.key, made.dtype, &made.shape))
    }

    /// Tensors of the source that are not written, and why.
    pub fn left_out(&self) -> &[(Key, &'static str)] {
        &self.left_out
    }

    /// What is suspicious about the mapping.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Writes everything into `folder`, durably. As long as it is not complete it carries a mark that says so.
    pub fn run(&self, store: &dyn Store, folder: &str, observer: &dyn Observer) -> Result<()> {
        let mark = join(folder, folder::SAVING);
        store.put(&mark, b"", PutMode::Replace)?;
        let feed = Feed::new(self.source);
        let widening = self.made.iter().map(|made| made.widening(self.source)).max().unwrap_or(0);
        let spread = self.made.iter().any(Made::is_rearranged);
        let spread = if spread { Spread::Some } else { Spread::None };
        let crew = Crew::new(self.max_memory, widening, spread);
        let block = (self.to == To::Planaria).then_some(ours::BLOCK);
        let work = Work { feed: &feed, made: &self.made, observer, block };
        let sums = work.write(&crew, store, folder, &self.draft.files)?;
        let files: Vec<_> = self.draft.files.iter().zip(sums).collect();
        let mut small = self.copy_companions(store, folder)?;
        for (name, bytes) in &self.draft.small {
            store.put(&join(folder, name), bytes, PutMode::Replace)?;
            small.push(Small::new(name, bytes, Role::Index));
        }
        match self.to {
            To::Planaria => ours::commit((store, folder), self.source, &self.made, &files, small),
            _ => Ok(store.delete(&mark)?),
        }
    }

    /// The small files that belong to a model go with it.
    fn copy_companions(&self, store: &dyn Store, folder: &str) -> Result<Vec<Small>> {
        let mut small = Vec::new();
        for name in names::companions(self.source)? {
            let bytes = self.source.store.read(&name, names::COMPANION_BYTES)?;
            let short = name.rsplit('/').next().unwrap_or(&name);
            store.put(&join(folder, short), &bytes, PutMode::Replace)?;
            small.push(Small::new(short, &bytes, Role::State));
        }
        Ok(small)
    }
}
