//! Saving to a path or URL, by any number of ranks: in any format that is written, and in the place of what stands there.

use crate::convert::{ConvertOptions, Observer, To, plan};
use crate::error::{Error, Obstacle, Result};
use crate::folder::{self, SAVING};
use crate::formats::{self, OpenOptions};
use crate::options::{SaveOptions, Saved};
use crate::output::{Existing, OutputFolder, Prepared};
use crate::save::save;
use crate::state::TrainState;
use crate::talk;
use planaria_comm::Comm;
use planaria_store::{Local, Stoppable, Store, StoreExt, join, local_path, open};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire};

/// Our own form of a state whose result has another.
const DRAFT: &str = "draft";

/// Where a state goes, and as what.
#[derive(Clone, Debug)]
pub struct Destination {
    /// Path or URL of the folder.
    pub url: String,
    /// The format; those of others are made of our own, by the first rank.
    pub to: To,
    /// What to do about what stands there.
    pub existing: Existing,
    /// Once it is set, the save ends and leaves nothing.
    pub stop: Arc<AtomicBool>,
}

/// Saves a state at a path or URL. All ranks see its folder. What is replaced goes when its successor is whole. Collective.
pub fn save_at(
    world: &dyn Comm,
    to: &Destination,
    state: &TrainState,
    options: &SaveOptions,
) -> Result<Saved> {
    if talk::from_first(world, || to.is_direct())? {
        let (parent, name) = to.folder()?;
        return save(world, &to.stoppable(parent), &name, state, options);
    }
    let mut prepared: Option<Prepared> = None;
    let (path, draft) = talk::from_first(world, || {
        let made = prepared.insert(OutputFolder::check([], &to.url, to.existing, [])?.prepare()?);
        let draft = if to.to == To::Planaria { made.folder() } else { DRAFT };
        Ok((made.path().map(|path| path.display().to_string()), draft.to_string()))
    })?;
    let store: Arc<dyn Store> = match path {
        Some(path) => Arc::new(Local::new(path)),
        None => open(&to.url)?,
    };
    let saved = save(world, &to.stoppable(store), &draft, state, options)?;
    talk::from_first(world, || match prepared.take() {
        Some(prepared) => to.finish(prepared, &draft, options),
        None => Ok(()),
    })?;
    Ok(Saved { folder: to.url.clone(), ..saved })
}

impl Destination {
    /// Refuses what a save would refuse about the place; touches nothing.
    pub fn check(&self) -> Result<()> {
        if !self.is_direct()? {
            return OutputFolder::check([], &self.url, self.existing, []).map(drop);
        }
        let (store, name) = self.folder()?;
        match folder::is_committed(&*store, &name)? {
            true => Err(Error::Committed { folder: self.url.clone() }),
            false => Ok(()),
        }
    }

    /// The store and the folder in it.
    fn folder(&self) -> Result<(Arc<dyn Store>, String)> {
        let url = self.url.trim_end_matches('/');
        let nameless = || Error::Occupied { target: self.url.clone(), why: Obstacle::Name };
        if let Some(path) = local_path(url) {
            let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(nameless)?.to_string();
            return Ok((Arc::new(Local::new(path.parent().unwrap_or(Path::new("")))), name));
        }
        let (parent, name) = url.rsplit_once('/').filter(|(p, _)| !p.ends_with('/')).ok_or_else(nameless)?;
        Ok((open(parent)?, name.to_string()))
    }

    fn stoppable(&self, store: Arc<dyn Store>) -> Stoppable<Arc<dyn Store>> {
        Stoppable::new(store, self.stop.clone())
    }

    /// Whether the folder can be written where it will be read: ours, and nothing has to make room.
    fn is_direct(&self) -> Result<bool> {
        if self.to != To::Planaria || self.existing == Existing::Refuse {
            return Ok(self.to == To::Planaria);
        }
        let (store, name) = self.folder()?;
        // What a dead save left is removed by the next one.
        let left = store.exists(&join(&name, SAVING))? && !folder::is_committed(&*store, &name)?;
        Ok(left || store.list(&name)?.is_empty())
    }

    /// Makes the result of the draft, and puts it in its place.
    fn finish(&self, prepared: Prepared, draft: &str, options: &SaveOptions) -> Result<()> {
        if self.to != To::Planaria {
            let store = prepared.store();
            let source = formats::open(&store, draft, &OpenOptions::default())?;
            let convert =
                ConvertOptions { max_shard_size: options.max_file_size, ..ConvertOptions::default() };
            plan(&source, self.to, &convert)?.run(&*store, prepared.folder(), &Until(&self.stop))?;
            store.delete_all(draft)?;
        }
        prepared.publish()
    }
}

/// Goes on until it is told to stop.
struct Until<'a>(&'a AtomicBool);

impl Observer for Until<'_> {
    fn moved(&self, _: u64) -> bool {
        !self.0.load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Item, TensorKind};
    use planaria_array::{Array, DType};
    use planaria_comm::threads;
    use planaria_layout::Region;
    use std::fs;

    const RANKS: usize = 3;

    /// Every rank has one row.
    fn rows(rank: usize, value: f32) -> TrainState {
        let array = Array::full(&[1, 4], value + rank as f32, DType::F32).unwrap();
        let shape = planaria_layout::Shape::new(&[RANKS, 4]).unwrap();
        let region = Region::new(&[rank, 0], &[rank + 1, 4]).unwrap();
        let pieces = vec![crate::state::Piece { region, array }];
        let (kind, name, dtype) = (TensorKind::Parameter, "w".to_string(), DType::F32);
        TrainState::new(vec![Item { kind, name, shape, dtype, pieces }])
    }

    fn at(url: &Path, to: To, existing: Existing) -> Destination {
        Destination { url: url.display().to_string(), to, existing, stop: Arc::default() }
    }

    fn saved(to: &Destination, value: f32) -> Vec<Result<Saved>> {
        threads::run(RANKS, |comm| save_at(&*comm, to, &rows(comm.rank(), value), &SaveOptions::default()))
    }

    fn read(place: &Path) -> (formats::Format, Vec<u8>) {
        let source = formats::open_url(place.to_str().unwrap(), &OpenOptions::default()).unwrap();
        (source.format, source.read(&formats::Key::model("w")).unwrap())
    }

    fn expected(value: f32) -> Vec<u8> {
        (0..RANKS).flat_map(|rank| [value + rank as f32; 4]).flat_map(f32::to_le_bytes).collect()
    }

    #[test]
    fn ranks_write_any_format_and_replace_a_checkpoint_together() {
        let place = tempfile::tempdir().unwrap();
        for (to, format) in [
            (To::Planaria, formats::Format::Planaria),
            (To::HuggingFace, formats::Format::HuggingFace),
            (To::TorchDcp, formats::Format::TorchDcp),
        ] {
            let folder = place.path().join(format.name());
            for (value, existing, fits) in [
                (1.0, Existing::Refuse, true),
                (5.0, Existing::Refuse, false),
                (9.0, Existing::Replace, true),
            ] {
                let ends = saved(&at(&folder, to, existing), value);
                assert!(ends.iter().all(|end| end.is_ok() == fits), "{to:?} {existing:?} {ends:?}");
                assert!(at(&folder, to, Existing::Refuse).check().is_err());
            }
            assert_eq!(read(&folder), (format, expected(9.0)));
            at(&folder, to, Existing::Replace).check().unwrap();
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 3, "nothing is left beside them");
    }

    #[test]
    fn what_is_more_than_a_checkpoint_is_never_replaced() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        saved(&at(&folder, To::Planaria, Existing::Refuse), 1.0);
        fs::write(folder.join("thesis.txt"), "x").unwrap();
        let to = at(&folder, To::Planaria, Existing::Replace);
        for end in saved(&to, 2.0) {
            assert!(end.unwrap_err().to_string().contains("'thesis.txt'"));
        }
        assert!(to.check().is_err() && read(&folder).1 == expected(1.0));
    }

    #[test]
    fn a_save_that_is_stopped_leaves_what_was_there_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        saved(&at(&folder, To::Planaria, Existing::Refuse), 1.0);
        for to in [To::Planaria, To::HuggingFace] {
            let to = at(&folder, to, Existing::Replace);
            to.stop.store(true, std::sync::atomic::Ordering::Release);
            assert!(saved(&to, 2.0).iter().all(Result::is_err));
        }
        assert_eq!(read(&folder).1, expected(1.0));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
