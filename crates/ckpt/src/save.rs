//! Saving: every byte once, from whoever holds it to its place in a file, then one mark that makes it count.

use crate::error::{Error, Result};
use crate::folder;
use crate::geometry::Geometry;
use crate::manifest::{
    FileRecord, Manifest, OtherRecord, Role, SUM_BLOCK, TensorRecord, TileRecord, sums_text,
};
use crate::naming::{self, Files};
use crate::options::{SaveOptions, Saved};
use crate::schedule::{Division, Schedule, Way};
use crate::state::{Item, State};
use crate::talk;
use crate::union::{self, Union};
use crate::write;
use planaria_comm::{Comm, CommExt};
use planaria_layout::Region;
use planaria_store::{Sharing, Store, checksum, join};
use std::collections::BTreeMap;
use std::time::Instant;

/// Saves a state as the checkpoint `folder` of a store. Collective: all ranks call it with what they hold, and all
/// return the same. The folder counts only when everything in it is durable; a save that fails or dies leaves
/// nothing that [`crate::open`] accepts.
pub fn save(
    world: &dyn Comm,
    store: &dyn Store,
    folder: &str,
    state: &State,
    options: &SaveOptions,
) -> Result<Saved> {
    let begun = Instant::now();
    let items: Vec<&Item> = state.items.iter().collect();
    let union = union::gather(world, state, &items)?;
    check_small_files(state, &union)?;
    let files = naming::whole(&union.tensors, options.max_file_size)?;
    let done = talk::from_first(world, || folder::begin(store, folder))
        .and_then(|()| save_into(world, store, folder, state, options, (&union, &files)));
    let bytes = match done {
        Ok(bytes) => bytes,
        Err(error) => {
            // Where this fails as well, the next save finds the leftovers. A folder that was not ours stays.
            if world.rank() == 0 && !matches!(error, Error::Committed { .. } | Error::NotCommitted { .. }) {
                let _ = folder::discard_failed(store, folder);
            }
            return Err(error);
        }
    };
    let removed = talk::from_first(world, || options.retain.apply(store, folder))?;
    let tensors = union.tensors.len();
    Ok(Saved { folder: folder.to_string(), bytes, tensors, removed, seconds: begun.elapsed().as_secs_f64() })
}

/// Everything between an empty folder and a committed one; the bytes of all files of tensors.
fn save_into(
    world: &dyn Comm,
    store: &dyn Store,
    folder: &str,
    state: &State,
    options: &SaveOptions,
    (union, files): (&Union, &Files),
) -> Result<u64> {
    let sharing = sharing(world, store, folder, files)?;
    let division = match (files.files.iter().map(|file| file.owner).collect::<Option<Vec<_>>>(), sharing) {
        (Some(owners), _) if !owners.is_empty() => Division::Given(owners),
        (_, Sharing::Threads) if world.size() > 1 => Division::Files,
        _ => Division::Units,
    };
    let sizes = files.files.iter().map(|file| file.layout.file_len()).collect();
    let claims = union.tensors.iter().map(|tensor| tensor.claims.clone()).collect();
    let geometry = Geometry::new(sizes, files.tiles.clone(), claims);
    let schedule = Schedule::new(geometry, Way::Save, &division, world.size());
    let windows = windows(state);
    let windows = talk::agree(world, windows)?;
    let place = write::Place { store, folder, sharing };
    let sums = write::run(world, &place, &schedule, (files, &windows), options)?;
    let small = small_files(world, state, union)?;
    let sums = talk::gather_bytes(world, sums)?;
    let finish = || {
        let sums = write::join_sums(sums.unwrap_or_default(), &schedule)?;
        let manifest = write_small(store, folder, state, (union, files), sums, (small, world.size()))?;
        folder::commit(store, folder, &manifest)
    };
    talk::from_first(world, finish)?;
    Ok(schedule.geometry.files.iter().sum())
}

fn windows(state: &State) -> Result<Vec<crate::strided::Window>> {
    let pieces = state.items.iter().flat_map(|item| &item.pieces);
    pieces.map(|piece| crate::strided::Window::new(&piece.array, &piece.region, None)).collect()
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
fn check_small_files(state: &State, union: &Union) -> Result<()> {
    for name in union.files.keys().chain(state.files.keys()) {
        planaria_store::check_name(name)?;
        let taken = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
        if taken || ["manifest.json", "COMMIT", "SAVING"].contains(&name.as_str()) || name.contains('/') {
            return Err(Error::FileName { name: name.clone() });
        }
    }
    Ok(())
}

/// The small files of all ranks on rank 0: each rank gives those that it is the first to have.
fn small_files(world: &dyn Comm, state: &State, union: &Union) -> Result<Vec<(String, Vec<u8>)>> {
    let mine: Vec<(&String, &Vec<u8>)> = state
        .files
        .iter()
        .filter(|(name, _)| union.files.get(*name) == Some(&world.rank()) && world.rank() != 0)
        .collect();
    let own = state.files.iter().filter(|(name, _)| union.files.get(*name) == Some(&0));
    let mut all: Vec<(String, Vec<u8>)> = own.map(|(name, text)| (name.clone(), text.clone())).collect();
    if union.files.values().any(|rank| *rank != 0) {
        let others: Vec<Vec<(String, Vec<u8>)>> = talk::all_gather(
            world,
            mine.into_iter().map(|(name, text)| (name.clone(), text.clone())).collect::<Vec<_>>(),
        )?;
        all.extend(others.into_iter().flatten());
    }
    all.sort();
    Ok(all)
}

/// Writes small files and index files; the text of the manifest.
fn write_small(
    store: &dyn Store,
    folder: &str,
    state: &State,
    (union, files): (&Union, &Files),
    sums: Vec<Vec<u32>>,
    (small, ranks): (Vec<(String, Vec<u8>)>, usize),
) -> Result<Vec<u8>> {
    let mut manifest = Manifest::new(state, ranks);
    let indexes = files.indexes().into_iter().map(|(name, text)| (name, text.into_bytes(), Role::Index));
    let small = small.into_iter().map(|(name, text)| (name, text, Role::State));
    for (name, text, role) in small.chain(indexes) {
        planaria_store::StoreExt::write(store, &join(folder, &name), &text)?;
        let sum = sums_text(&[checksum::crc32c(&text)]);
        manifest.others.push(OtherRecord { name, size: text.len() as u64, sum, role });
    }
    for (file, sums) in files.files.iter().zip(sums) {
        let (name, size) = (file.name.clone(), file.layout.file_len());
        manifest.files.push(FileRecord { name, size, sums: sums_text(&sums) });
    }
    let mut tiles: BTreeMap<usize, Vec<TileRecord>> = BTreeMap::new();
    for tile in &files.tiles {
        let whole = tile.region == Region::whole(&union.tensors[tile.tensor].shape);
        let region = (!whole).then(|| tile.region.to_string());
        tiles.entry(tile.tensor).or_default().push(TileRecord {
            file: tile.file,
            offset: tile.offset,
            region,
        });
    }
    for (number, tensor) in union.tensors.iter().enumerate() {
        let mut record = TensorRecord::new(&tensor.key, tensor.dtype, &tensor.shape);
        record.tiles = tiles.remove(&number).unwrap_or_default();
        record.held = held(&tensor.claims);
        manifest.tensors.push(record);
    }
    serde_json::to_vec_pretty(&manifest)
        .map_err(|error| Error::Malformed { file: "manifest.json".into(), what: error.to_string() })
}

/// `4 boxes of [2..4, 0..8], 2 copies`, for people.
fn held(claims: &[crate::geometry::Claim]) -> Option<String> {
    let first = claims.first()?;
    let copies = first.holders.len();
    Some(format!("{} x {}, {copies} of each", claims.len(), first.region))
}

const _: () = assert!(crate::schedule::UNIT.is_multiple_of(SUM_BLOCK));
