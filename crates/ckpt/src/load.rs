//! Loading: the boxes that ranks ask for, from wherever the checkpoint has their bytes.

use crate::error::{Error, Result};
use crate::folder;
use crate::geometry::{Claim, Geometry, Placed, claims};
use crate::manifest::{Checkpoint, Manifest, Role, Stored};
use crate::options::{Cast, Casts, LoadOptions, Report, Unmatched};
use crate::read::{self, Data, Slot};
use crate::schedule::{Division, Schedule, Way};
use crate::state::{Item, State, TensorKey};
use crate::strided::Window;
use crate::talk;
use planaria_comm::{Comm, CommExt};
use planaria_layout::{DType, Region};
use planaria_store::{Store, StoreExt, checksum, join};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Loads a committed checkpoint into the arrays of the pieces that `state` asks for, in place, whatever layout and
/// number of ranks it was saved with. Counters, values and small files replace those of the state. Collective.
///
/// Names, shapes and element types are checked before anything is read; every byte that some rank needs is read
/// once by one of them, and its checksum verified. When it fails, the arrays hold unspecified values.
pub fn load(
    world: &dyn Comm,
    store: &dyn Store,
    folder: &str,
    state: &mut State,
    options: &LoadOptions,
) -> Result<Report> {
    let begun = Instant::now();
    let text = talk::bytes_from_first(world, || folder::read_manifest(store, folder))?;
    let checkpoint = Manifest::read(folder, &text)?;
    drop(text);
    let catalog = Catalog::of(&checkpoint);
    let mut report = load_tensors(world, store, &catalog, &state.items, options)?;
    let files = talk::from_first(world, || small_files(store, &checkpoint))?;
    let items = std::mem::take(&mut state.items);
    *state = State { items, files, ..checkpoint.state };
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// The small files that belong to the state, checked.
fn small_files(store: &dyn Store, checkpoint: &Checkpoint) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for file in checkpoint.others.iter().filter(|file| file.role == Role::State) {
        let name = join(&checkpoint.folder, &file.name);
        let text = store.read(&name, file.size)?;
        checksum::check(&name, 0, &text, file.sum)?;
        files.insert(file.name.clone(), text);
    }
    Ok(files)
}

/// Tensors in files, whoever wrote them.
#[derive(Clone, Debug)]
pub(crate) struct Catalog {
    pub(crate) data: Data,
    pub(crate) tensors: Vec<Entry>,
    by_key: BTreeMap<TensorKey, usize>,
    tied: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: TensorKey,
    pub(crate) stored: Stored,
}

impl Catalog {
    fn of(checkpoint: &Checkpoint) -> Catalog {
        let data = Data {
            files: checkpoint.files.iter().map(|file| join(&checkpoint.folder, &file.name)).collect(),
            sizes: checkpoint.files.iter().map(|file| file.size).collect(),
            sums: Some(checkpoint.files.iter().map(|file| file.sums.clone()).collect()),
            block: checkpoint.block,
        };
        let entries = checkpoint.tensors.iter();
        let tensors: Vec<Entry> =
            entries.map(|(key, stored)| Entry { key: key.clone(), stored: stored.clone() }).collect();
        let by_key = tensors.iter().enumerate().map(|(number, entry)| (entry.key.clone(), number)).collect();
        Catalog { data, tensors, by_key, tied: checkpoint.state.tied.clone() }
    }

    /// The tensor that holds the value of a key: itself, what it is tied to, or what is tied to it.
    fn find(&self, key: &TensorKey) -> Option<usize> {
        let named =
            |name: &str| self.by_key.get(&TensorKey { kind: key.kind.clone(), name: name.to_string() });
        let tied = || self.tied.get(&key.name).and_then(|name| named(name));
        let alias = || {
            let aliases = self.tied.iter().filter(|(_, target)| **target == key.name);
            aliases.filter_map(|(alias, _)| named(alias)).next()
        };
        named(&key.name).or_else(tied).or_else(alias).copied()
    }
}

/// What a rank asks for: numbers of tensors with the boxes of each, and what it found out on the way.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Wants {
    boxes: Vec<(usize, Vec<usize>, Vec<usize>)>,
    touched: BTreeSet<usize>,
    loaded: Vec<String>,
    missing: Vec<String>,
    ignored: Vec<String>,
    cast: Vec<(String, String, String)>,
}

/// Loads the pieces of `items` from a catalog. Collective.
fn load_tensors(
    world: &dyn Comm,
    store: &dyn Store,
    catalog: &Catalog,
    items: &[Item],
    options: &LoadOptions,
) -> Result<Report> {
    let resolved = resolve(catalog, items, options);
    let (wants, slots) = talk::agree(world, resolved)?;
    let all = talk::all_gather(world, wants)?;
    let mut report = report(catalog, &all, options)?;
    let schedule = plan(catalog, &all, world.size())?;
    drop(all);
    let (read, loaded) = read::run(world, store, &catalog.data, &schedule, &slots, options, &|tile| {
        let tile = &schedule.geometry.tiles[tile];
        let entry = &catalog.tensors[tile.tensor];
        (entry.key.to_string(), entry.stored.dtype)
    })?;
    (report.bytes_read, report.bytes_loaded) = (read, loaded);
    Ok(report)
}

/// Checks this rank's items against the catalog; what it wants, and where each box goes.
fn resolve(catalog: &Catalog, items: &[Item], options: &LoadOptions) -> Result<(Wants, Vec<Slot>)> {
    let mut wants = Wants::default();
    let mut slots = Vec::new();
    for item in items {
        item.check()?;
        let name = item.key().to_string();
        if options.ignores(&name) {
            wants.ignored.push(name);
            continue;
        }
        let Some(number) = catalog.find(&item.key()) else {
            wants.missing.push(name);
            continue;
        };
        let stored = &catalog.tensors[number].stored;
        wants.touched.insert(number);
        let cast = check_dtype(&name, stored.dtype, item.dtype, options.casts)?;
        if let Some(cast) = &cast {
            wants.cast.push((name.clone(), cast.from.to_string(), cast.to.to_string()));
        }
        let one = item.shape.numel() == 1 && stored.shape.numel() == 1;
        if item.shape != stored.shape && !one {
            let (found, expected) = (stored.shape.clone(), item.shape.clone());
            return Err(Error::ShapeOf { tensor: name, found, expected });
        }
        for piece in item.pieces.iter().filter(|piece| !piece.region.is_empty()) {
            // A scalar and a vector of one element stand for each other.
            let (region, array) = if item.shape == stored.shape {
                (piece.region.clone(), piece.array.clone())
            } else {
                (
                    Region::whole(&stored.shape),
                    piece.array.as_strided(
                        &stored.shape,
                        &vec![1; stored.shape.ndim()],
                        piece.array.offset(),
                    )?,
                )
            };
            if array.strides().iter().any(|step| *step < 0) {
                let (found, expected) = (array.shape().clone(), array.shape().clone());
                return Err(Error::Piece { tensor: name, found, expected });
            }
            let window = Window::new(&array, &region, None)?;
            wants.boxes.push((number, region.lo().to_vec(), region.hi().to_vec()));
            slots.push(Slot { window, stored: stored.dtype, casts: cast.iter().map(|c| c.to).collect() });
        }
        wants.loaded.push(name);
    }
    Ok((wants, slots))
}

fn check_dtype(name: &str, from: DType, to: DType, casts: Casts) -> Result<Option<Cast>> {
    let allowed = match casts {
        Casts::Refuse => false,
        Casts::Floats => from.is_float() && to.is_float(),
        Casts::Any => true,
    };
    match from == to {
        true => Ok(None),
        false if allowed => Ok(Some(Cast { tensor: name.to_string(), from, to })),
        false => Err(Error::DType { tensor: name.to_string(), found: from, expected: to }),
    }
}

/// What all ranks found, and whether the options accept it.
fn report(catalog: &Catalog, all: &[Wants], options: &LoadOptions) -> Result<Report> {
    let names = |pick: fn(&Wants) -> &Vec<String>| -> Vec<String> {
        all.iter().flat_map(pick).cloned().collect::<BTreeSet<_>>().into_iter().collect()
    };
    let mut report = Report {
        loaded: names(|w| &w.loaded),
        missing: names(|w| &w.missing),
        ignored: names(|w| &w.ignored),
        ..Report::default()
    };
    let casts: BTreeSet<&(String, String, String)> = all.iter().flat_map(|wants| &wants.cast).collect();
    for (tensor, from, to) in casts {
        report.cast.push(Cast { tensor: tensor.clone(), from: from.parse()?, to: to.parse()? });
    }
    let touched: BTreeSet<usize> = all.iter().flat_map(|wants| &wants.touched).copied().collect();
    for (number, entry) in catalog.tensors.iter().enumerate().filter(|(n, _)| !touched.contains(n)) {
        let _ = number;
        let name = entry.key.to_string();
        let list = if options.ignores(&name) { &mut report.ignored } else { &mut report.unexpected };
        if !list.contains(&name) {
            list.push(name);
        }
    }
    let refused =
        |names: &[String], rule| if rule == Unmatched::Refuse { names.to_vec() } else { Vec::new() };
    let missing = refused(&report.missing, options.missing);
    let unexpected = refused(&report.unexpected, options.unexpected);
    if missing.is_empty() && unexpected.is_empty() {
        return Ok(report);
    }
    Err(Error::Unmatched { missing, unexpected })
}

/// Who reads what. Boxes that ranks ask for are inside their tensors: that was checked where they come from.
fn plan(catalog: &Catalog, all: &[Wants], ranks: usize) -> Result<Schedule> {
    let mut boxes: Vec<Vec<(Region, usize, usize)>> = vec![Vec::new(); catalog.tensors.len()];
    for (rank, wants) in all.iter().enumerate() {
        for (slot, (tensor, lo, hi)) in wants.boxes.iter().enumerate() {
            boxes[*tensor].push((Region::new(lo, hi)?, rank, slot));
        }
    }
    let claims: Vec<Vec<Claim>> = boxes.into_iter().map(claims).collect();
    let mut tiles = Vec::new();
    for (tensor, Entry { stored, .. }) in catalog.tensors.iter().enumerate() {
        for tile in stored.tiles.iter().filter(|_| !claims[tensor].is_empty()) {
            tiles.push(Placed {
                tensor,
                file: tile.holder.file,
                offset: tile.holder.offset,
                region: tile.region.clone(),
                size: stored.dtype.size(),
                order: None,
            });
        }
    }
    let grain = catalog.data.sums.as_ref().map(|_| catalog.data.block);
    let geometry = Geometry::new(catalog.data.sizes.clone(), tiles, claims).in_blocks(grain);
    Ok(Schedule::new(geometry, Way::Load, &Division::Units, ranks))
}
