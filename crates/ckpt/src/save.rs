//! Saving: every byte once, from whoever holds it to its place in a file, then one mark that makes it count.

use crate::error::{Error, Result};
use crate::files::Placed;
use crate::folder;
use crate::manifest::{
    Derive, FileRecord, MANIFEST, Manifest, OtherRecord, Role, SUM_BLOCK, TensorRecord, TileRecord, sums_text,
};
use crate::naming::{self, Files};
use crate::options::{SaveOptions, Saved, Tiles};
use crate::outgoing::{self, Outgoing};
use crate::schedule::{Division, Here, Schedule};
use crate::state::{TensorKind, TrainState};
use crate::talk;
use crate::union::{self, Together, Union};
use crate::write;
use planaria_comm::{Comm, CommExt};
use planaria_layout::{Fixed, Region, Tile};
use planaria_store::{Sharing, Store, StoreExt, checksum, join};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Saves a state as the checkpoint `folder` of a store. Collective: all ranks call it with what they hold, and all
/// return the same. The folder counts only when everything in it is durable; a save that fails or dies leaves
/// nothing that [`crate::open`] accepts.
pub fn save(
    world: &dyn Comm,
    store: &dyn Store,
    folder: &str,
    state: &TrainState,
    options: &SaveOptions,
) -> Result<Saved> {
    let begun = Instant::now();
    let to_host = || {
        let mut copy = state.clone();
        copy.to_host().map(|()| copy)
    };
    let copied = state.is_away().then(to_host).transpose();
    let state = copied.as_ref().ok().and_then(Option::as_ref).unwrap_or(state);
    let mut union = union::gather(world, state, options.replicas)?;
    check_small_files(&union)?;
    let derive = outgoing::select(&mut union.tensors, options)?;
    let tensors = std::mem::take(&mut union.tensors);
    let outgoing = match &options.mapping {
        None => Outgoing::plain(tensors, &state.items),
        Some(mapping) => Outgoing::mapped(tensors, &state.items, mapping, world.rank()),
    };
    let failed = copied.as_ref().err().cloned();
    let outgoing = talk::agree(world, failed.map_or(outgoing, Err))?;
    let files = match options.tiles {
        Tiles::Whole => naming::whole(&outgoing.tensors, options, derive)?,
        Tiles::AsHeld => naming::as_held(&outgoing.tensors, options.max_file_size, derive, world.size())?,
    };
    let saving = Saving { world, place: (store, folder), state, options, union, outgoing, files, derive };
    talk::from_first(world, || folder::begin(store, folder))?;
    let done = saving.run();
    if done.is_err() && world.rank() == 0 {
        // Where this fails as well, the next save finds the leftovers.
        let _ = folder::discard_failed(store, folder);
    }
    let bytes = done?;
    // It is committed: what cannot be removed now is removed by a later save.
    let (removed, unremoved) = talk::from_first(world, || match options.retain.apply(store, folder) {
        Ok(removed) => Ok((removed, None)),
        Err(error) => Ok((Vec::new(), Some(error.to_string()))),
    })?;
    let (tensors, seconds) = (saving.outgoing.tensors.len(), begun.elapsed().as_secs_f64());
    Ok(Saved { folder: folder.to_string(), bytes, tensors, removed, unremoved, seconds })
}

/// A save with all its decisions made.
struct Saving<'a> {
    world: &'a dyn Comm,
    place: (&'a dyn Store, &'a str),
    state: &'a TrainState,
    options: &'a SaveOptions,
    union: Union,
    outgoing: Outgoing,
    files: Files,
    derive: Option<Derive>,
}

impl Saving<'_> {
    /// Everything between an empty folder and a committed one; the bytes of all files of tensors.
    fn run(&self) -> Result<u64> {
        let (world, (store, folder)) = (self.world, self.place);
        let sharing = sharing(world, store, folder, &self.files)?;
        let owners = self.files.files.iter().map(|file| file.owner).collect::<Option<Vec<_>>>();
        let division = match owners {
            Some(owners) if !owners.is_empty() => Division::Given(owners),
            _ if sharing == Sharing::Threads && world.size() > 1 => Division::Files,
            _ => Division::Units,
        };
        let holders = self.outgoing.tensors.iter().map(|tensor| tensor.held.clone()).collect();
        let here = Here { rank: world.rank(), ranks: world.size() };
        let schedule = Schedule::save(self.files.map(), holders, division, here);
        let place = write::Place { store, folder, sharing };
        let sums = write::run(world, &place, &schedule, (&self.files, &self.outgoing.given), self.options)?;
        let small = small_files(world, self.state, &self.union)?;
        let sums = talk::gather_bytes(world, sums)?;
        talk::from_first(world, || {
            let sums = write::join_sums(&sums.unwrap_or_default(), &self.files)?;
            let manifest = self.write_small(sums, small)?;
            folder::commit(store, folder, &manifest)
        })?;
        Ok(schedule.files.sizes.iter().sum())
    }

    /// Writes small files and index files; the text of the manifest.
    fn write_small(&self, sums: Vec<Vec<u32>>, small: Vec<(String, Vec<u8>)>) -> Result<Vec<u8>> {
        let (store, folder) = self.place;
        let mut manifest = Manifest::new(self.state, self.world.size());
        manifest.derive = self.derive;
        let tensors = &self.outgoing.tensors;
        let has_masters = tensors.iter().any(|tensor| tensor.key.kind == TensorKind::Master);
        let indexes = self.files.indexes(has_masters).into_iter();
        let indexes = indexes.map(|(name, text)| (name, text.into_bytes(), Role::Index));
        let small = small.into_iter().map(|(name, text)| (name, text, Role::State));
        for (name, text, role) in small.chain(indexes) {
            store.write(&join(folder, &name), &text)?;
            let sum = sums_text(&[checksum::crc32c(&text)]);
            manifest.others.push(OtherRecord { name, size: text.len() as u64, sum, role });
        }
        for (file, sums) in self.files.files.iter().zip(sums) {
            let (name, size) = (file.name.clone(), file.layout.file_len());
            manifest.files.push(FileRecord { name, size, sums: sums_text(&sums) });
        }
        let mut tiles: BTreeMap<usize, Vec<TileRecord>> = BTreeMap::new();
        for tile in &self.files.tiles {
            let Placed { tensor, tile: Tile { region, holder }, .. } = tile;
            let whole = *region == Region::whole(&tensors[*tensor].shape);
            let region = (!whole).then(|| region.to_string());
            let record = TileRecord { file: holder.file, offset: holder.offset, region };
            tiles.entry(*tensor).or_default().push(record);
        }
        for (number, tensor) in tensors.iter().enumerate() {
            let mut record = TensorRecord::new(&tensor.key, tensor.dtype, &tensor.shape);
            record.tiles = tiles.remove(&number).unwrap_or_default();
            record.held = held(tensor);
            manifest.tensors.push(record);
        }
        serde_json::to_vec_pretty(&manifest)
            .map_err(|error| Error::Malformed { file: MANIFEST.into(), what: error.to_string() })
    }
}

/// Several processes write one file where the store allows it.
fn sharing(world: &dyn Comm, store: &dyn Store, folder: &str, files: &Files) -> Result<Sharing> {
    let Some(first) = files.files.first().filter(|_| world.size() > 1) else { return Ok(Sharing::Threads) };
    let probe = || match store.writer(&join(folder, &first.name), first.layout.file_len(), Sharing::Processes)
    {
        Ok(_) => Ok(true),
        Err(planaria_store::Error::Unsupported { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    };
    let shared = talk::from_first(world, probe)?;
    Ok(if shared { Sharing::Processes } else { Sharing::Threads })
}

/// Small files must not take the name of a file of tensors, nor lead out of the folder.
fn check_small_files(union: &Union) -> Result<()> {
    for name in union.files.keys() {
        planaria_store::check_name(name)?;
        let taken = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
        if taken || ["manifest.json", "COMMIT", "SAVING"].contains(&name.as_str()) || name.contains('/') {
            return Err(Error::FileName { name: name.clone() });
        }
    }
    Ok(())
}

/// The small files of all ranks on rank 0: each rank gives those that it is the first to have.
fn small_files(world: &dyn Comm, state: &TrainState, union: &Union) -> Result<Vec<(String, Vec<u8>)>> {
    let mine: Vec<(&String, &Arc<[u8]>)> = state
        .files
        .iter()
        .filter(|(name, _)| union.files.get(*name) == Some(&world.rank()) && world.rank() != 0)
        .collect();
    let own = state.files.iter().filter(|(name, _)| union.files.get(*name) == Some(&0));
    let mut all: Vec<(String, Vec<u8>)> = own.map(|(name, text)| (name.clone(), text.to_vec())).collect();
    if union.files.values().any(|rank| *rank != 0) {
        let others: Vec<Vec<(String, Vec<u8>)>> = talk::all_gather(
            world,
            mine.into_iter().map(|(name, text)| (name.clone(), text.to_vec())).collect::<Vec<_>>(),
        )?;
        all.extend(others.into_iter().flatten());
    }
    all.sort();
    Ok(all)
}

/// `4 x [2..4, 0..8], 2 of each`, for people.
fn held(tensor: &Together) -> Option<String> {
    let (mut count, mut first) = (0usize, None);
    tensor.held.first()?.lookup(&Region::whole(&tensor.shape), &Fixed::default(), &mut |region, copies| {
        count += 1;
        first.get_or_insert_with(|| (region, copies.count()));
    });
    let (region, copies) = first?;
    Some(format!("{count} x {region}, {copies} of each"))
}

const _: () = assert!(crate::schedule::UNIT.is_multiple_of(SUM_BLOCK));
