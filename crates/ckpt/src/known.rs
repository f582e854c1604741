//! States whose layouts every rank knows: nobody has to be asked who holds what.

use crate::copies;
use crate::error::{Error, Result};
use crate::options::Replicas;
use crate::state::{Item, TensorKey, TensorKind, TrainState};
use crate::talk;
use crate::union::{Together, Union};
use planaria_array::{Array, DType};
use planaria_comm::{AllGather, Comm, CommExt};
use planaria_layout::{Fixed, RankTiling, Region, Shape};
use planaria_store::checksum;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// A tensor of the state, and who holds which boxes of it. Ranks are positions in the communicator that saves or loads.
#[derive(Clone, Debug)]
pub struct KnownTensor {
    /// What it is.
    pub kind: TensorKind,
    /// Its name, or that of the parameter it belongs to.
    pub name: String,
    /// Global shape.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// Who holds it; several where copies are held in several ways. It is saved from the first, and loaded to all.
    pub held: Vec<RankTiling>,
}

impl KnownTensor {
    pub(crate) fn key(&self) -> TensorKey {
        TensorKey { kind: self.kind.clone(), name: self.name.clone() }
    }

    /// The boxes of one rank.
    fn owned(&self, rank: usize) -> Result<Vec<Region>> {
        let mut boxes = Vec::new();
        for tiling in &self.held {
            if tiling.copies().is_none_or(|(mesh, _)| mesh.coords(rank).is_some()) {
                boxes.extend(tiling.owned(&rank, &Fixed::default())?.into_iter().map(|owned| owned.region));
            }
        }
        boxes.retain(|region| !region.is_empty());
        boxes.sort();
        boxes.dedup();
        Ok(boxes)
    }
}

/// Every tensor of a state on all ranks. All ranks make the same list, so that a save or a load is planned by each rank
/// alone, at the cost of its own part.
#[derive(Clone, Debug)]
pub struct Known {
    tensors: Arc<[KnownTensor]>,
    digest: u64,
}

impl Known {
    /// Refuses tensors that nobody holds, and holders of another shape.
    pub fn new(tensors: Vec<KnownTensor>) -> Result<Known> {
        let mut hasher = DefaultHasher::new();
        for tensor in &tensors {
            (&tensor.kind, &tensor.name, &tensor.shape, tensor.dtype).hash(&mut hasher);
            for tiling in &tensor.held {
                tiling.digest(&mut hasher);
                tiling.check_plain()?;
                if *tiling.shape() != tensor.shape {
                    let (found, expected) = (tiling.shape().clone(), tensor.shape.clone());
                    return Err(Error::ShapeOf { tensor: tensor.key().to_string(), found, expected });
                }
            }
            if tensor.held.is_empty() {
                return Err(Error::NoTensor { tensor: format!("{}, which no rank holds", tensor.key()) });
            }
        }
        Ok(Known { tensors: tensors.into(), digest: hasher.finish() })
    }

    /// The tensors.
    pub fn tensors(&self) -> &[KnownTensor] {
        &self.tensors
    }

    /// Some of the tensors.
    pub fn only(&self, wanted: impl Fn(&KnownTensor) -> bool) -> Result<Known> {
        Known::new(self.tensors.iter().filter(|tensor| wanted(tensor)).cloned().collect())
    }

    /// The same under other names.
    pub fn renamed(&self, name: impl Fn(&str) -> String) -> Result<Known> {
        let renamed = |tensor: &KnownTensor| KnownTensor { name: name(&tensor.name), ..tensor.clone() };
        Known::new(self.tensors.iter().map(renamed).collect())
    }

    /// The tensors as items of which nobody holds anything: what is asked for, whoever asks.
    pub(crate) fn items(&self) -> Vec<Item> {
        let item = |t: &KnownTensor| Item {
            kind: t.kind.clone(),
            name: t.name.clone(),
            shape: t.shape.clone(),
            dtype: t.dtype,
            pieces: Vec::new(),
        };
        self.tensors.iter().map(item).collect()
    }

    /// What this rank holds must be what the list says.
    fn check_items(&self, items: &[Item], rank: usize) -> Result<()> {
        let mut held: HashMap<TensorKey, &Item> = items.iter().map(|item| (item.key(), item)).collect();
        for tensor in self.tensors.iter() {
            let key = tensor.key();
            let expected = tensor.owned(rank)?;
            let item = held.remove(&key);
            let mut found: Vec<Region> =
                item.iter().flat_map(|item| &item.pieces).map(|piece| piece.region.clone()).collect();
            found.retain(|region| !region.is_empty());
            found.sort();
            let alike = item.is_none_or(|item| (&item.shape, item.dtype) == (&tensor.shape, tensor.dtype));
            if found != expected || !alike {
                let text = |boxes: &[Region]| format!("{boxes:?} of {}{}", tensor.dtype, tensor.shape);
                let (found, expected) = (text(&found), text(&expected));
                return Err(Error::NotAsKnown { tensor: key.to_string(), rank, found, expected });
            }
        }
        match held.into_keys().next() {
            None => Ok(()),
            Some(key) => {
                let (found, expected) = ("a tensor".into(), "none of this name".into());
                Err(Error::NotAsKnown { tensor: key.to_string(), rank, found, expected })
            }
        }
    }

    /// Checks that all ranks mean the same state, and each has its part of it. Collective.
    pub(crate) fn check(&self, world: &dyn Comm, state: &TrainState) -> Result<()> {
        let checked = state.items.iter().try_for_each(Item::check);
        talk::agree(world, checked.and_then(|()| self.check_items(&state.items, world.rank())))?;
        let mut hasher = DefaultHasher::new();
        (self.digest, state.step, state.samples, state.tokens, &state.tied).hash(&mut hasher);
        for (name, text) in &state.files {
            (name, text.len(), checksum::crc32c(text)).hash(&mut hasher);
        }
        let mine = hasher.finish() as i64;
        let all = Array::empty(&[world.size()], DType::I64)?;
        let send = Array::from_slice(&[mine], &[1])?;
        world.all_gather(AllGather { send, recv: all.clone(), recv_counts: vec![1; world.size()] })?;
        let all = all.to_vec::<i64>()?;
        let Some(rank) = all.iter().position(|other| *other != all[0]) else { return Ok(()) };
        let text = |digest: i64| format!("digest {:016x}", digest as u64);
        let (first, second) = (text(all[0]), text(all[rank]));
        let what = "what the state is, its counters or its small files".into();
        Err(Error::RanksDisagree { what, first_rank: 0, first, rank, second })
    }

    /// What the ranks hold together. Collective.
    pub(crate) fn union(&self, world: &dyn Comm, state: &TrainState, replicas: Replicas) -> Result<Union> {
        self.check(world, state)?;
        if replicas == Replicas::Compare {
            copies::compare(world, &self.tensors, state)?;
        }
        let files: BTreeMap<String, usize> = state.files.keys().map(|name| (name.clone(), 0)).collect();
        Union::new(self.together(), files, &state.tied)
    }

    /// The tensors with their holders.
    pub(crate) fn together(&self) -> Vec<Together> {
        let together = |tensor: &KnownTensor| Together {
            key: tensor.key(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            held: tensor.held.clone(),
        };
        self.tensors.iter().map(together).collect()
    }
}
