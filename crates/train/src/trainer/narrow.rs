//! The frozen weights of a run with an adapter, kept in 8 or 4 bits and widened whenever they are computed with. Where weights are
//! divided over data ranks, it is their codes and scales that are divided and brought together.

use super::rank::RankRun;
use crate::bundle::{self, BundleOptions, DATA, Row};
use crate::error::{Error, Result};
use crate::gather::{Gatherer, Held, Pass};
use crate::replica::to_tensor_error;
use crate::weights::Weight;
use planaria_array::{Array, ops};
use planaria_layout::{Layout, Placement, Shape};
use planaria_nn::lora::narrow::{Form, Narrow, Width};
use planaria_nn::{Param, ParamKind, ParamSpec, Role, Source};
use planaria_tensor::{Fetch, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether a parameter is kept in few bits: a product's weight inside a block that nobody trains or saves.
pub(crate) fn is_narrow(spec: &ParamSpec) -> bool {
    spec.role == Role::Base && spec.kind == ParamKind::Matrix && spec.block.is_some()
}

/// How a weight in few bits is kept: all of it, or a part, with what is known of the whole.
enum Kept {
    Whole(Box<Narrow>),
    Divided(Form),
}

impl RankRun<'_> {
    /// Lets go of the frozen weights but for a few bits of each, where the configuration says so. Collective over the data ranks.
    pub(super) fn narrow_base(&mut self) -> Result<()> {
        let Some(width) = self.job.config.lora.as_ref().and_then(|lora| lora.base.width()) else {
            return Ok(());
        };
        let gatherer = self.replica.gatherer.clone();
        let mut kept = match &gatherer {
            Some(gatherer) => self.narrow_divided(gatherer, width)?,
            None => self.narrow_whole(width)?,
        };
        let replica = &mut self.replica;
        let (mut place, mut failed) = (0, None);
        for part in &mut replica.parts {
            part.model.visit_mut(&mut |param| {
                let weight = &replica.weights[place];
                let fed = match kept.remove(&place).zip(Some(replica.weights.len())) {
                    Some((kept, count)) => feed(param, fetch(kept, &gatherer, [place, place + count])),
                    None => keep(param, weight),
                };
                failed = failed.take().or_else(|| fed.err());
                place += 1;
            });
        }
        failed.map_or(Ok(()), Err)
    }

    /// Few bits of every weight that this rank has whole.
    fn narrow_whole(&mut self, width: Width) -> Result<BTreeMap<usize, Kept>> {
        let replica = &mut self.replica;
        // What travels together shares memory: whoever stays takes a copy, or all of it would stay.
        let frozen =
            replica.bundles.iter_mut().filter(|bundle| !replica.weights[bundle.members[0]].trainable);
        for bundle in frozen {
            bundle.whole = None;
        }
        let mut kept = BTreeMap::new();
        for (place, weight) in replica.weights.iter_mut().enumerate() {
            if is_narrow(&weight.spec) {
                let missing = || Error::Bug { what: format!("`{}` has no elements here", weight.spec.name) };
                let full = weight.full.clone().ok_or_else(missing)?;
                kept.insert(place, Kept::Whole(Box::new(weight.narrow(&full, width)?)));
            } else if !weight.trainable {
                weight.keep_alone()?;
            }
        }
        Ok(kept)
    }

    /// The same where weights are divided: each block is brought together once, and every rank keeps its part of the few bits.
    fn narrow_divided(&mut self, gatherer: &Gatherer, width: Width) -> Result<BTreeMap<usize, Kept>> {
        self.replica.enter(0, Pass::Forward);
        let mut kept = BTreeMap::new();
        for (block, bundles) in gatherer.blocks().into_iter().enumerate() {
            let members = bundles.iter().flat_map(|held| held.bundle.members.iter().copied());
            let members: Vec<usize> =
                members.filter(|&place| is_narrow(&self.replica.weights[place].spec)).collect();
            if members.is_empty() {
                continue;
            }
            let mut narrow = Vec::with_capacity(members.len());
            for place in members {
                let full = gatherer.get(place)?;
                narrow.push((place, self.replica.weights[place].narrow(&full, width)?));
            }
            let mut others = Vec::with_capacity(bundles.len());
            for held in bundles {
                others.extend(self.without_narrow(held)?);
            }
            others.extend(self.divided(&narrow)?);
            gatherer.replace(block, others)?;
            kept.extend(
                narrow.into_iter().map(|(place, narrow)| (place, Kept::Divided(narrow.form().clone()))),
            );
        }
        self.replica.forget_gathered()?;
        Ok(kept)
    }

    /// What is left of a bundle without its weights of few bits, in memory of its own; who has what of it stays.
    fn without_narrow(&mut self, held: Held) -> Result<Option<Held>> {
        let weights = &mut self.replica.weights;
        let is_left = |place: usize| !is_narrow(&weights[place].spec);
        if held.bundle.members.iter().all(|&place| is_left(place)) {
            return Ok(Some(held));
        }
        let Some(bundle) = held.bundle.only(is_left) else { return Ok(None) };
        let parts: Vec<&Array> = bundle.members.iter().map(|&place| &weights[place].part).collect();
        let own = ops::concat(&parts, 0)?;
        for (member, &place) in bundle.members.iter().enumerate() {
            let part = bundle.part(member, self.keeping.rank);
            weights[place].part = own.narrow(0, part.start, part.len())?;
        }
        Ok(Some(Held { bundle, own }))
    }

    /// Bundles of the codes of a block, which are called as the weights are, and of their scales, which come after all weights.
    fn divided(&self, narrow: &[(usize, Narrow)]) -> Result<Vec<Held>> {
        let (rank, world, count) = (self.keeping.rank, self.keeping.world, self.replica.weights.len());
        let mesh = self.keeping.mesh.keep(&[DATA], world)?;
        let codes = narrow.iter().map(|(place, narrow)| (*place, narrow.codes()));
        let scales = narrow.iter().map(|(place, narrow)| (*place + count, narrow.scales()));
        let all: Vec<(usize, &Array)> = codes.chain(scales).collect();
        let layout = |array: &Array| Layout::new(&mesh, &Shape::new(array.shape())?, &[Placement::Replicate]);
        let layouts =
            all.iter().map(|(_, array)| layout(array)).collect::<planaria_layout::Result<Vec<_>>>()?;
        let row = |(number, layout): (usize, _)| {
            let dtype = all[number].1.dtype();
            Some(Row { block: None, layout, dtype, trainable: false, alone: false })
        };
        let rows: Vec<Option<Row<'_>>> = layouts.iter().enumerate().map(row).collect();
        let train = &self.job.config.train;
        let options = BundleOptions { sharding: train.shard, bytes: train.bucket_bytes };
        let mut held = Vec::new();
        for mut bundle in bundle::blocks(&rows, options, world)?.into_iter().flatten() {
            let own = |(k, &at): (usize, &usize)| {
                let range = bundle.share(k).range(rank);
                all[at].1.narrow(0, range.start, range.len())
            };
            let own = bundle.members.iter().enumerate().map(own);
            let own = own.collect::<planaria_array::Result<Vec<_>>>()?;
            let own = ops::concat(&own.iter().collect::<Vec<_>>(), 0)?;
            bundle.members.iter_mut().for_each(|member| *member = all[*member].0);
            held.push(Held { bundle, own });
        }
        Ok(held)
    }
}

/// Widens a weight; `names` are those of its codes and of its scales, where they are brought together.
fn fetch(kept: Kept, gatherer: &Option<Arc<Gatherer>>, names: [usize; 2]) -> Fetch {
    let gatherer = gatherer.clone();
    let widened = move || -> Result<Array> {
        match (&kept, &gatherer) {
            (Kept::Divided(form), Some(gatherer)) => {
                let [codes, scales] = names;
                Ok(form.join(gatherer.get(codes)?, gatherer.get(scales)?).values()?)
            }
            (Kept::Whole(narrow), _) => Ok(narrow.values()?),
            (Kept::Divided(_), None) => {
                Err(Error::Bug { what: "nobody brings divided weights together".into() })
            }
        }
    };
    Arc::new(move || widened().map_err(to_tensor_error))
}

/// Has a parameter take its value from its few bits: for each use, and what backward needs of it again then.
fn feed(param: &mut Param, fetch: Fetch) -> Result<()> {
    param.set_array(Array::meta(param.leaf().local().shape(), param.leaf().dtype())?)?;
    let home = param.leaf().clone();
    let source: Source = Arc::new(move || {
        let value = match (home.layout(), home.world()) {
            (Some(layout), Some(world)) => Tensor::from_piece(fetch()?, layout, world)?,
            _ => Tensor::new(fetch()?),
        };
        Ok(value.fetched_by(fetch.clone()))
    });
    param.set_source(Some(source));
    Ok(())
}

/// Has a parameter that stays as it is take the copy that its weight has now.
fn keep(param: &mut Param, weight: &Weight) -> Result<()> {
    let shape = param.leaf().local().shape().clone();
    match &weight.full {
        Some(full) if !weight.trainable => Ok(param.set_array(full.reshape(&shape)?)?),
        _ => Ok(()),
    }
}
