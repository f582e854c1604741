//! Loading: the boxes that ranks ask for, from wherever the checkpoint has their bytes.

use crate::catalog::{Catalog, Entry};
use crate::device::{Before, bring, stand_ins};
use crate::error::{Error, Result};
use crate::files::FileMap;
use crate::folder;
use crate::formats::Source;
use crate::known::Known;
use crate::manifest::{Checkpoint, Manifest, Role};
use crate::options::{Cast, LoadOptions, Report, Unmatched};
use crate::read;
use crate::schedule::{Here, Schedule};
use crate::state::TrainState;
use crate::talk;
use crate::wants::{Resolved, Twin, Wants, resolve};
use planaria_comm::{Comm, CommExt};
use planaria_layout::{Fixed, Listed, Rank, RankTiling, Region, Shape, Tile};
use planaria_store::{Store, StoreExt, checksum, join};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
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
    state: &mut TrainState,
    options: &LoadOptions,
) -> Result<Report> {
    let begun = Instant::now();
    let text = talk::bytes_from_first(world, || folder::read_manifest(store, folder))?;
    let checkpoint = Manifest::read(folder, &text)?;
    drop(text);
    let catalog = Catalog::of(&checkpoint);
    let mut report = load_tensors(world, store, &catalog, state, options)?;
    let files = talk::from_first(world, || small_files(store, &checkpoint))?;
    let files = files.into_iter().map(|(name, text)| (name, text.into())).collect();
    let (items, known) = (std::mem::take(&mut state.items), state.known.take());
    *state = TrainState { items, known, files, ..checkpoint.state };
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// Loads a checkpoint that others wrote, in the same way; only tensors change. All ranks have opened the same
/// checkpoint, and `state.tied` says which names stand for which. Collective.
pub fn load_source(
    world: &dyn Comm,
    source: &Source,
    state: &mut TrainState,
    options: &LoadOptions,
) -> Result<Report> {
    let begun = Instant::now();
    let catalog = talk::agree(world, Catalog::of_source(source, &state.tied))?;
    // Archives have one checksum for each tensor, so no rank can tell from the parts that it reads.
    talk::agree(world, source.check_share(world.rank(), world.size()))?;
    let mut report = load_tensors(world, &*source.store, &catalog, state, options)?;
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

/// Loads the pieces of a state from a catalog; those of a device by way of the host. Collective.
fn load_tensors(
    world: &dyn Comm,
    store: &dyn Store,
    catalog: &Catalog,
    state: &TrainState,
    options: &LoadOptions,
) -> Result<Report> {
    let whole = options.missing == Unmatched::Refuse && options.mapping.is_none();
    let before = if whole { Before::Anything } else { Before::Same };
    let away = state.is_away().then(|| stand_ins(&state.items, before)).transpose();
    let resolved = away.and_then(|away| {
        let resolved = resolve(catalog, away.as_deref().unwrap_or(&state.items), options)?;
        Ok((resolved, away))
    });
    let (resolved, away) = talk::agree(world, resolved)?;
    let Resolved { wants, slots, twins } = resolved;
    let (mut report, holders) = match state.known.as_ref().filter(|_| options.mapping.is_none()) {
        Some(known) => {
            known.check(world, state)?;
            // What a state asks for as a whole, whoever has which boxes of it.
            let all = resolve(catalog, &known.items(), options)?.wants;
            (report(catalog, &[all], options)?, known_readers(catalog, known, options)?)
        }
        None => {
            let all = talk::all_gather(world, wants)?;
            (report(catalog, &all, options)?, told_readers(catalog, &all)?)
        }
    };
    let schedule = plan(catalog, holders, Here { rank: world.rank(), ranks: world.size() });
    let name = |tile: usize| catalog.tensors[schedule.files.tiles[tile].tensor].key.to_string();
    let (read, loaded) = read::run(world, store, &catalog.data, &schedule, &slots, options, &name)?;
    if options.mapping.is_some() {
        talk::agree(world, twins.iter().try_for_each(Twin::check))?;
    }
    if let Some(filled) = away {
        bring(filled, &state.items)?;
    }
    (report.bytes_read, report.bytes_loaded) = (read, loaded);
    Ok(report)
}

/// What all ranks found, and whether the options accept it.
fn report(catalog: &Catalog, all: &[Wants], options: &LoadOptions) -> Result<Report> {
    let names = |pick: fn(&Wants) -> &Vec<String>| -> BTreeSet<String> {
        all.iter().flat_map(pick).cloned().collect()
    };
    let mut report = Report {
        loaded: names(|w| &w.loaded).into_iter().collect(),
        missing: names(|w| &w.missing).into_iter().collect(),
        ..Report::default()
    };
    let casts: BTreeSet<&(String, String, String)> = all.iter().flat_map(|wants| &wants.cast).collect();
    for (tensor, from, to) in casts {
        report.cast.push(Cast { tensor: tensor.clone(), from: from.parse()?, to: to.parse()? });
    }
    let mut ignored = names(|w| &w.ignored);
    let touched: BTreeSet<usize> = all.iter().flat_map(|wants| &wants.touched).copied().collect();
    let dropped: BTreeSet<&str> = options.mapping.iter().flat_map(|mapping| mapping.dropped()).collect();
    for entry in catalog.tensors.iter().enumerate().filter(|(n, _)| !touched.contains(n)).map(|(_, e)| e) {
        let name = entry.key.to_string();
        if options.ignores(&name) || dropped.contains(entry.key.name.as_str()) {
            ignored.insert(name);
        } else {
            report.unexpected.push(name);
        }
    }
    report.ignored = ignored.into_iter().collect();
    let refused =
        |names: &[String], rule| if rule == Unmatched::Refuse { names.to_vec() } else { Vec::new() };
    let missing = refused(&report.missing, options.missing);
    let unexpected = refused(&report.unexpected, options.unexpected);
    if missing.is_empty() && unexpected.is_empty() {
        return Ok(report);
    }
    Err(Error::Unmatched { missing, unexpected })
}

/// By tensor of the files, who wants which boxes of it.
pub(crate) type Readers = Vec<Vec<RankTiling>>;

/// As every rank knows.
pub(crate) fn known_readers(catalog: &Catalog, known: &Known, options: &LoadOptions) -> Result<Readers> {
    let mut readers: Readers = vec![Vec::new(); catalog.tensors.len()];
    for tensor in known.tensors() {
        let key = tensor.key();
        let ignored = !options.ignore.is_empty() && options.ignores(&key.to_string());
        let Some(found) = catalog.find(&key, options.rebuild()).filter(|_| !ignored) else { continue };
        let shape = &catalog.tensors[found.number].shape;
        for tiling in &tensor.held {
            // A scalar and a vector of one element stand for each other.
            let same = tiling.shape() == shape;
            readers[found.number].push(if same { tiling.clone() } else { whole_of(shape, tiling)? });
        }
    }
    Ok(readers)
}

/// The holders of the only element of a tensor, under another shape.
fn whole_of(shape: &Shape, tiling: &RankTiling) -> Result<RankTiling> {
    let mut tiles = Vec::new();
    tiling.lookup(&Region::whole(tiling.shape()), &Fixed::default(), &mut |_, copies| {
        let holders = (0..copies.count()).map(|copy| copies.get(copy));
        tiles.extend(holders.map(|holder| Tile { region: Region::whole(shape), holder }));
    });
    Ok(Arc::new(Listed::wanted(shape, tiles)?))
}

/// As the ranks have told. Boxes that ranks ask for are inside their tensors: that was checked where they come from.
fn told_readers(catalog: &Catalog, all: &[Wants]) -> Result<Readers> {
    let mut boxes: Vec<Vec<Tile<Rank>>> = vec![Vec::new(); catalog.tensors.len()];
    for (holder, wants) in all.iter().enumerate() {
        for (tensor, lo, hi) in &wants.boxes {
            boxes[*tensor].push(Tile { region: Region::new(lo, hi)?, holder });
        }
    }
    let listed = |(tiles, entry): (Vec<Tile<Rank>>, &Entry)| -> Result<Vec<RankTiling>> {
        if tiles.is_empty() {
            return Ok(Vec::new());
        }
        Ok(vec![Arc::new(Listed::wanted(&entry.shape, tiles)?)])
    };
    boxes.into_iter().zip(&catalog.tensors).map(listed).collect()
}

/// Who reads what.
pub(crate) fn plan(catalog: &Catalog, readers: Readers, here: Here) -> Schedule {
    let wanted = (0..catalog.tensors.len()).filter(|&tensor| !readers[tensor].is_empty());
    let tiles = wanted.flat_map(|tensor| catalog.placed(tensor)).collect();
    let grain = catalog.data.sums.as_ref().map(|_| catalog.data.block);
    Schedule::load(FileMap::new(catalog.data.sizes.clone(), tiles), readers, grain, here)
}
