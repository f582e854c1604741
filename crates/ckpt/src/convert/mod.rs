//! From any checkpoint to any format we write: files to files, tile by tile, in bounded memory.
//!
//! [`plan`] decides every byte's place and checks that all of it can be made; it reads no data. [`Conversion::run`]
//! then fills the files. The caller chooses a folder that nobody reads yet and moves it into place afterwards.

mod clock;
mod companions;
mod computed;
mod division;
mod engine;
mod journal;
mod late;
mod made;
mod mapped;
mod names;
mod ours;
mod pairs;
mod range;
mod sums;
mod torch;

use crate::error::{Error, Result};
use crate::folder;
use crate::formats::roles::{NAME_TABLE, Roles, part_key};
use crate::formats::write::{self, Draft, Wanted};
use crate::formats::{FOREIGN, Format, Key, Part, STATE, Source};
use crate::manifest::Role;
use crate::state::TensorKind;
use crate::stream::Feed;
use companions::Beside;
use division::Division;
use engine::{Crew, Spread, Work};
use made::{Made, Origin};
use mapped::{Mapped, mapped};
use ours::Small;
use pairs::Names;
use planaria_layout::{DType, Layout, Region};
use planaria_store::container::Foreign;
use planaria_store::{Error as Stored, PutMode, Store, join};
use range::Beyond;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use sums::Sums;
use torch::{Torch, is_torch};

pub use companions::{belongs, companion};
pub use computed::{Computed, Epilogue, Surroundings, Values, plan_computed, weights};
pub use division::Ranks;
pub use mapped::{Remap, Way};

pub(crate) use clock::{counts_for, steps_taken};
pub(crate) use pairs::plain;

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
    /// Element type of the floating point tensors of the model; none: as they are. Master weights, moving averages and
    /// optimizer state keep theirs.
    pub dtype: Option<DType>,
    /// Most bytes in one file, unless a single tensor is larger.
    pub max_shard_size: u64,
    /// How tensors are cut.
    pub cut: Cut,
    /// Says how the tensors of the model become others. What goes with a tensor goes the same way: master weights, moving
    /// averages, optimizer state.
    pub mapping: Option<Remap>,
    /// The betas of the optimizer, where powers of them must become a number of steps or the other way round; none: as
    /// the checkpoint says.
    pub betas: Option<(f64, f64)>,
    /// Bytes of memory to stay below.
    pub max_memory: u64,
}

impl Default for ConvertOptions {
    fn default() -> ConvertOptions {
        let (max_shard_size, max_memory) = (5_000_000_000, 256_000_000);
        ConvertOptions {
            dtype: None,
            max_shard_size,
            cut: Cut::Whole,
            mapping: None,
            betas: None,
            max_memory,
        }
    }
}

impl ConvertOptions {
    /// Refuses what nothing can be made of.
    fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::Request { what });
        if self.max_memory < LEAST_MEMORY {
            return refuse(format!(
                "{} bytes of memory are too few; {LEAST_MEMORY} are needed",
                self.max_memory
            ));
        }
        if self.max_shard_size == 0 {
            return refuse("files of 0 bytes hold nothing; choose a larger size".to_string());
        }
        match self.dtype {
            Some(dtype) if !dtype.is_float() => refuse(format!(
                "{dtype} is not a floating point type, and the values are; choose one such as bf16"
            )),
            _ => Ok(()),
        }
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
    values_left_out: Vec<String>,
    beside: Beside,
    /// Small files that do not come from the source.
    given: BTreeMap<String, Vec<u8>>,
    epilogue: Option<Arc<dyn Epilogue>>,
    warnings: Vec<String>,
    /// Values that had no room in their element type.
    beyond: Beyond,
    /// What our folders hold beside tensors.
    about: Value,
    /// The element type that the model was asked to have.
    dtype: Option<DType>,
    max_memory: u64,
}

/// The file that tells the element type of a model.
const CONFIG: &str = "config.json";
/// Least memory the work can be done in.
const LEAST_MEMORY: u64 = 16_000_000;

/// Plans a conversion; reads no tensor data.
pub fn plan<'s>(source: &'s Source, to: To, options: &ConvertOptions) -> Result<Conversion<'s>> {
    options.check()?;
    let (Mapped { mut made, mut left_out, mut warnings, .. }, torch, about) = make(source, to, options)?;
    made.retain(|made| match unfit(to, made.key.part).or_else(|| unfit_type(to, made.foreign(source))) {
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
    let beside = Beside::of(source, to)?;
    let draft = match to {
        To::HuggingFace => {
            let names = if options.mapping.is_some() { Names::Mapped } else { Names::Kept };
            let (pairs, told) = pairs::pairs(source, names);
            warnings.extend(told);
            write::hugging_face(&wanted, beside.stem(source), options.max_shard_size, &pairs)?
        }
        To::PaddleUnified => write::unified(&wanted, options.max_shard_size)?,
        To::TorchDcp => write::dcp(&wanted, &torch.values, &|name| torch.path(name), options.max_shard_size),
        To::Planaria => write::planaria(&wanted, options.max_shard_size)?,
    };
    let (dtype, max_memory) = (options.dtype, options.max_memory);
    let values_left_out = values_left_out(source, to, &torch);
    Ok(Conversion {
        source,
        to,
        beyond: Beyond::of(&made),
        made,
        draft,
        left_out,
        values_left_out,
        beside,
        given: BTreeMap::new(),
        epilogue: None,
        warnings,
        about,
        dtype,
        max_memory,
    })
}

/// Names of the Python values beside the tensors that a target has no place for.
fn values_left_out(source: &Source, to: To, torch: &Torch) -> Vec<String> {
    match (is_torch(source), to) {
        (true, To::TorchDcp | To::Planaria) => Vec::new(),
        (true, _) => torch.values.keys().cloned().collect(),
        // Values of Paddle's files stand under `file#name`.
        (false, _) => {
            let of_paddle = matches!(source.format, Format::PaddleSave | Format::PaddleFlex);
            let names = source.extra.keys().filter(|name| of_paddle && name.contains('#'));
            names.filter(|name| !name.ends_with(NAME_TABLE)).cloned().collect()
        }
    }
}

/// The tensors to be written under the names they are to have, and what goes with them: torch's values, and what our folders
/// hold beside tensors.
fn make(source: &Source, to: To, options: &ConvertOptions) -> Result<(Mapped, Torch, Value)> {
    let roles = Roles::of(source);
    let mut about = source.extra.get(STATE).cloned().unwrap_or(Value::Null);
    let mut torch = Torch::of(source, &roles, &about);
    // A torch checkpoint that stays one keeps all its names.
    let keep = to == To::TorchDcp && is_torch(source) && options.mapping.is_none();
    let mut all = match &options.mapping {
        Some(remap) => mapped(source, &roles, remap)?,
        None => Mapped { made: unmapped(source, &roles, keep), ..Mapped::default() },
    };
    if options.mapping.is_some() {
        torch.rename(&all.became);
        ours::rename(&mut about, &all.became, &mut all.warnings);
    }
    if to == To::HuggingFace {
        names::masters_for_missing(&mut all.made);
    }
    if let Some(dtype) = options.dtype {
        let is_model = |key: &Key| match keep {
            true => roles.get(key).kind == TensorKind::Parameter,
            false => key.part == Part::Model,
        };
        let cast = all.made.iter_mut().filter(|made| made.dtype.is_float() && is_model(&made.key));
        cast.for_each(|made| made.dtype = dtype);
    }
    if !keep {
        torch.add_groups(&about["config"], &names::trained(&all.made));
        let (step, betas) = (run_step(source, &about), options.betas);
        let target = names::Target { to, torch: &torch, about: &about, step, betas };
        all.warnings.extend(target.translate(&mut all.made)?);
    }
    if is_torch(source) || !about["extra"]["torch"].is_null() {
        about["extra"]["torch"] = torch.to_json();
    }
    Ok((all, torch, about))
}

/// Steps of the run, as our folders and Paddle's trainer tell them.
fn run_step(source: &Source, about: &Value) -> Option<u64> {
    let trainer = || source.extra.get("trainer_state.json")?["global_step"].as_u64();
    about["step"].as_u64().or_else(trainer)
}

/// Every tensor as it is, under the key of what it is to a training unless all names stay.
fn unmapped(source: &Source, roles: &Roles, keep: bool) -> Vec<Made> {
    let key = |key: &Key| if keep { key.clone() } else { part_key(&roles.get(key)) };
    let made = source.tensors.iter().map(|(name, entry)| Made {
        key: key(name),
        dtype: entry.dtype,
        shape: entry.shape.clone(),
        from: Origin::Same(name.clone()),
    });
    made.collect()
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

/// Why a format has no place for an element type.
fn unfit_type(to: To, foreign: Option<&Foreign>) -> Option<&'static str> {
    let lacking = foreign?.safetensors.is_none() && to != To::TorchDcp;
    lacking.then_some("safetensors files have no such element type")
}

/// No two tensors under one name.
fn check_names(made: &[Made]) -> Result<()> {
    let mut seen: BTreeMap<&Key, &Made> = BTreeMap::new();
    for made in made {
        if let Some(first) = seen.insert(&made.key, made) {
            let origin = |made: &Made| match &made.from {
                Origin::Same(key) => key.to_string(),
                _ => "the mapping".to_string(),
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
        (Cut::AsHeld, _) => whole,
        (Cut::Layouts(layouts), _) => match made.only_source().and_then(|key| layouts.get(key)) {
            Some(layout) => held(layout, made.dtype, loads).map_err(wrong)?,
            None => whole,
        },
    };
    let foreign = made.foreign(source);
    Ok(Wanted { key: made.key.clone(), dtype: made.dtype, shape: made.shape.clone(), foreign, boxes })
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

impl Conversion<'_> {
    /// Has a small file go along in place of the source's own of that name.
    pub fn give(&mut self, name: &str, bytes: Vec<u8>) {
        self.beside.carried.retain(|carried| carried != name);
        let other =
            self.dtype.filter(|_| name == CONFIG).and_then(|dtype| companions::with_dtype(&bytes, dtype));
        self.given.insert(name.to_string(), other.unwrap_or(bytes));
    }

    /// Bytes of the files of tensors.
    pub fn bytes(&self) -> u64 {
        self.draft.files.iter().map(|file| file.len).sum()
    }

    /// Names of the small files of the source that go along.
    pub fn carried(&self) -> &[String] {
        &self.beside.carried
    }

    /// Names of the files and folders of the source's folder that do not go along. Hidden ones are not listed.
    pub fn files_left_out(&self) -> &[String] {
        &self.beside.left_out
    }

    /// Names of the Python values of the source that are not written.
    pub fn values_left_out(&self) -> &[String] {
        &self.values_left_out
    }

    /// Names and sizes of the files that it makes.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        let data = self.draft.files.iter().map(|file| (file.name.as_str(), file.len));
        let small = self.draft.small.iter().map(|(name, bytes)| (name, bytes)).chain(&self.given);
        data.chain(small.map(|(name, bytes)| (name.as_str(), bytes.len() as u64)))
    }

    /// Tensors it writes, with their element types and shapes.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&Key, DType, &planaria_layout::Shape)> {
        self.made.iter().map(|made| (&made.key, made.dtype, &made.shape))
    }

    /// Tensors of the source that are not written, and why.
    pub fn left_out(&self) -> &[(Key, &'static str)] {
        &self.left_out
    }

    /// What is suspicious about the mapping, and about what the source says of itself.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Writes everything into `folder`, durably. As long as it is not complete it carries a mark that says so.
    pub fn run(&self, store: &dyn Store, folder: &str, observer: &dyn Observer) -> Result<()> {
        self.run_divided(store, folder, observer, &Division::default()).map(|_| ())
    }

    /// The same by several ranks, and without what was done before; how many bytes that was. Collective.
    fn run_divided(
        &self,
        store: &dyn Store,
        folder: &str,
        observer: &dyn Observer,
        division: &Division<'_>,
    ) -> Result<u64> {
        let mark = join(folder, folder::SAVING);
        let no_room = |error| self.without_room(error, division.target);
        division.first(|| store.put(&mark, b"", PutMode::Replace).map_err(|error| no_room(error.into())))?;
        let feed = Feed::passing(self.source);
        let widening = self.made.iter().map(|made| made.widening(self.source)).max().unwrap_or(0);
        let spread = self.made.iter().any(Made::is_rearranged);
        let spread = if spread { Spread::Some } else { Spread::None };
        let crew = Crew::new(self.max_memory, widening, spread);
        let block = (self.to == To::Planaria).then_some(ours::BLOCK);
        self.beyond.begin();
        let work = Work { feed: &feed, made: &self.made, beyond: &self.beyond, observer };
        let drafted = &self.draft.files;
        let sums: Vec<Sums> = drafted.iter().map(|_| Sums::new(block)).collect();
        let (todo, before) = division.todo((store, folder), drafted, &sums, observer)?;
        let written = work.write(&crew, (store, folder), drafted, (&todo, division), &sums);
        let written =
            written.and_then(|()| feed.finish()).and_then(|()| self.compare_before(before, division));
        let sums = division.gathered(written.map(|()| sums).map_err(no_room))?;
        division.all_tell(self.beyond.told())?.iter().for_each(|told| self.beyond.hear(told));
        if let Some(epilogue) = &self.epilogue {
            division.all_tell(epilogue.told())?.iter().for_each(|told| epilogue.hear(told));
        }
        division.first(|| self.complete(store, folder, sums).map_err(no_room))?;
        Ok(before)
    }

    /// What an earlier run read, it may not have compared to the end.
    fn compare_before(&self, before: u64, division: &Division<'_>) -> Result<()> {
        let (rank, ranks) = division.place();
        if before > 0 { self.source.check_share(rank, ranks) } else { Ok(()) }
    }

    /// Where storage is full, the error names the target, not where it is being prepared, and how much it takes.
    fn without_room(&self, error: Error, target: Option<&str>) -> Error {
        let (target, needed) = (target.map(str::to_string), self.files().map(|(_, bytes)| bytes).sum());
        match error {
            Error::Store(Stored::Io {
                name,
                kind: ErrorKind::StorageFull | ErrorKind::QuotaExceeded,
                message,
                ..
            }) => Error::NoRoom { target: target.unwrap_or(name), needed, message },
            other => other,
        }
    }

    /// Writes what makes files of tensors a checkpoint.
    fn complete(&self, store: &dyn Store, folder: &str, sums: Vec<Vec<u32>>) -> Result<()> {
        let mark = join(folder, folder::SAVING);
        let files: Vec<_> = self.draft.files.iter().zip(sums).collect();
        let mut small = self.copy_companions(store, folder)?;
        for (name, bytes) in &self.draft.small {
            store.put(&join(folder, name), bytes, PutMode::Replace)?;
            small.push(Small::new(name, bytes, Role::Index));
        }
        match self.to {
            To::Planaria => ours::commit((store, folder), &self.about_all()?, &self.made, &files, small),
            _ => Ok(store.delete(&mark)?),
        }
    }

    /// What our folder holds beside tensors. Where nobody says how far the run had come, its optimizer does.
    fn about_all(&self) -> Result<Value> {
        let mut about = self.about.clone();
        let carried =
            self.made.iter().filter_map(|made| Some((made.key.to_string(), made.foreign(self.source)?.name)));
        let carried: BTreeMap<String, &str> = carried.collect();
        if !carried.is_empty() {
            about["extra"][FOREIGN] = serde_json::json!(carried);
        }
        if about["step"].is_null() {
            let counts = self.made.iter().filter(|made| made.key.name.ends_with("/step"));
            let keys: Vec<Key> = counts.filter_map(|made| made.only_source().cloned()).collect();
            let counted = clock::common_step(self.source, &keys)?;
            about["step"] = counted.or_else(|| run_step(self.source, &about)).into();
        }
        Ok(about)
    }

    /// The small files that belong to a model go with it.
    fn copy_companions(&self, store: &dyn Store, folder: &str) -> Result<Vec<Small>> {
        let mut small = Vec::new();
        for (name, bytes) in &self.given {
            let finished = self.epilogue.as_ref().map(|epilogue| epilogue.finish(name, bytes)).transpose()?;
            let bytes = finished.as_ref().unwrap_or(bytes);
            store.put(&join(folder, name), bytes, PutMode::Replace)?;
            small.push(Small::new(name, bytes, Role::State));
        }
        for short in &self.beside.carried {
            let mut bytes = companions::read(self.source, short)?;
            if let Some(dtype) = self.dtype.filter(|_| short == CONFIG) {
                bytes = companions::with_dtype(&bytes, dtype).unwrap_or(bytes);
            }
            store.put(&join(folder, short), &bytes, PutMode::Replace)?;
            small.push(Small::new(short, &bytes, Role::State));
        }
        Ok(small)
    }
}
