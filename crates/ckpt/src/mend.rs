//! A checkpoint of which no place has every file as it was written, put together from what several places have.

use crate::folder::{self, COMMIT};
use crate::manifest::{Checkpoint, MANIFEST};
use crate::verify::Check;
use planaria_store::{Entry, Error, PutMode, Reader, Result, Sharing, Store, Writer, join};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which of several places each file of a checkpoint is read from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    /// By the file's whole name.
    files: BTreeMap<String, usize>,
}

impl Mix {
    /// Finds a sound copy of every file of the checkpoint in `folder`, which has the same files in all `places`; none where some file
    /// is sound nowhere, or no place has a manifest. Every file is read and compared until a sound copy of it is found.
    pub fn find(places: &[Arc<dyn Store>], folder: &str) -> Option<Mix> {
        let opened = |store: &Arc<dyn Store>| folder::open(&**store, folder).ok();
        let (vouching, checkpoint): (usize, Checkpoint) =
            places.iter().enumerate().find_map(|(place, store)| Some((place, opened(store)?)))?;
        let marks = [COMMIT, MANIFEST].iter().map(|name| (join(folder, name), vouching));
        let mut files: BTreeMap<String, usize> = marks.collect();
        let mut checks: Vec<Check<'_>> =
            places.iter().map(|store| Check::new(&**store, &checkpoint, &|_| ())).collect();
        let listed = checkpoint.files.iter().map(|file| &file.name);
        for name in listed.chain(checkpoint.others.iter().map(|file| &file.name)) {
            let place = checks.iter_mut().position(|check| check.is_sound(name))?;
            files.insert(join(folder, name), place);
        }
        Some(Mix { files })
    }

    /// Nothing is mixed.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// How many files each place gives.
    pub fn counts(&self) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for place in self.files.values() {
            *counts.entry(*place).or_default() += 1;
        }
        counts
    }

    /// The checkpoint as a store that can only be read.
    pub fn store(&self, places: &[Arc<dyn Store>]) -> Arc<dyn Store> {
        Arc::new(Mixed { places: places.to_vec(), mix: self.clone() })
    }
}

#[derive(Debug)]
struct Mixed {
    places: Vec<Arc<dyn Store>>,
    mix: Mix,
}

impl Mixed {
    fn refuse<T>(&self, what: &'static str) -> Result<T> {
        Err(Error::Unsupported { store: self.address(), what })
    }
}

impl Store for Mixed {
    fn address(&self) -> String {
        let all: Vec<String> = self.places.iter().map(|place| place.address()).collect();
        all.join(" and ")
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        let mut found: Vec<Entry> = Vec::new();
        for place in &self.places {
            found.extend(place.list(folder).unwrap_or_default());
        }
        found.sort();
        found.dedup_by(|a, b| a.name == b.name);
        Ok(found)
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>> {
        let place = self.mix.files.get(name).and_then(|&place| self.places.get(place));
        match place {
            Some(place) => place.reader(name),
            // What no manifest lists has no copy that is known to be right.
            None => Err(Error::NotFound { name: name.to_string() }),
        }
    }

    fn writer(&self, _: &str, _: u64, _: Sharing) -> Result<Box<dyn Writer>> {
        self.refuse("writing to a checkpoint that is read from several places")
    }

    fn put(&self, _: &str, _: &[u8], _: PutMode) -> Result<()> {
        self.refuse("writing to a checkpoint that is read from several places")
    }

    fn delete(&self, _: &str) -> Result<()> {
        self.refuse("removing a checkpoint that is read from several places")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Item, LoadOptions, SaveOptions, TensorKind, TrainState, load, save};
    use planaria_array::{Array, DType};
    use planaria_comm::alone;
    use planaria_store::StoreExt;

    #[test]
    fn files_that_are_harmed_in_different_places_make_one_sound_checkpoint() {
        let values = |n: i64| Array::arange(0i64, n, 1i64, DType::I64).unwrap();
        let state = || {
            let items = vec![
                Item::whole(TensorKind::Parameter, "a", &values(3000)),
                Item::whole(TensorKind::Parameter, "b", &values(5000)),
            ];
            let mut state = TrainState::new(items);
            state.files.insert("config.json".into(), b"{}"[..].into());
            state
        };
        let places: Vec<Arc<dyn Store>> = (0..3).map(|_| planaria_store::open("memory:").unwrap()).collect();
        let options = SaveOptions { max_file_size: 30_000, ..SaveOptions::default() };
        for place in &places {
            save(&*alone(), &**place, "c", &state(), &options).unwrap();
        }
        let names: Vec<String> = places[0].walk("c").unwrap().into_iter().map(|entry| entry.name).collect();
        let tensors: Vec<&String> = names.iter().filter(|name| name.ends_with(".safetensors")).collect();
        assert!(tensors.len() > 1, "{names:?}");
        let flip = |place: usize, name: &str| {
            let mut bytes = places[place].read(name, 1 << 20).unwrap().to_vec();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            places[place].write(name, &bytes).unwrap();
        };
        flip(0, tensors[0]);
        flip(1, tensors[1]);
        places[1].delete("c/config.json").unwrap();
        places[2].delete("c/manifest.json").unwrap();
        flip(2, tensors[0]);
        let mix = Mix::find(&places, "c").unwrap();
        assert!(mix.counts().len() > 1, "{mix:?}");
        let store = mix.store(&places);
        let into = vec![
            Item::whole(TensorKind::Parameter, "a", &Array::zeros(&[3000], DType::I64).unwrap()),
            Item::whole(TensorKind::Parameter, "b", &Array::zeros(&[5000], DType::I64).unwrap()),
        ];
        let mut loaded = TrainState::new(into);
        load(&*alone(), &*store, "c", &mut loaded, &LoadOptions::default()).unwrap();
        assert_eq!(
            loaded.items[0].pieces[0].array.to_vec::<i64>().unwrap(),
            values(3000).to_vec::<i64>().unwrap()
        );
        assert!(store.put("c/x", b"", PutMode::Create).is_err());
        // A file that is harmed everywhere is lost.
        flip(1, tensors[0]);
        assert_eq!(Mix::find(&places, "c"), None);
    }
}
