//! Who holds which boxes of the state, on all ranks: it follows from the configuration, so that nobody has to be asked
//! when a checkpoint is written or read.

use super::Job;
use crate::bundle::{self, BundleOptions, Row};
use crate::config::TrainSection;
use crate::error::{Error, Result};
use crate::weights::{Files, Keeping, Weight, Zero, average_kind};
use planaria_array::Array;
use planaria_ckpt::{Known, KnownTensor, TensorKey, TensorKind};
use planaria_layout::{DType, FlatShards, Layout, Mesh, RankTiling, Shape, Slice};
use planaria_nn::models::Stage;
use planaria_nn::{ParamSpec, Role};
use std::collections::HashMap;
use std::sync::Arc;

/// The state of all ranks, as these files have it. `positions` are the model parts of each position of the pipeline.
pub(super) fn known(
    job: &Job,
    mesh: &Mesh,
    positions: &[Vec<Stage>],
    (keeping, files): (&Keeping, Files),
) -> Result<Known> {
    let TrainSection { shard: sharding, bucket_bytes: bytes, precision, .. } = job.config.train;
    let dtype = precision.dtype();
    let table = |stage: &Stage| Ok(job.model.parameters(stage)?);
    let tables = positions.iter().map(|parts| parts.iter().map(table).collect::<Result<_>>());
    let tables: Vec<Vec<Vec<ParamSpec>>> = tables.collect::<Result<_>>()?;
    let mut listing = Listing::of(files);
    for (position, parts) in tables.iter().enumerate() {
        let stage = mesh.fix(&[("pp", position)])?;
        for part in parts {
            let layouts =
                part.iter().map(|spec| Ok(spec.layout(&stage)?)).collect::<Result<Vec<Layout>>>()?;
            let rows = part.iter().zip(&layouts).map(|(spec, layout)| {
                let twin = twin_of(&tables, position, spec);
                let trainable = !keeping.frozen.contains(&spec.name);
                (twin != Twin::Here).then(|| Row {
                    block: spec.block,
                    layout,
                    dtype: spec.dtype.unwrap_or(dtype),
                    trainable,
                    alone: twin == Twin::Elsewhere,
                })
            });
            let rows: Vec<Option<Row<'_>>> = rows.collect();
            let bundles = bundle::groups(&rows, BundleOptions { sharding, bytes });
            for members in bundles.iter().flatten() {
                for (&i, shards) in members.iter().zip(bundle::shards(&rows, members, sharding)?) {
                    let Some(row) = &rows[i] else { continue };
                    let kept = kept(keeping, row.dtype)?.of(row.trainable);
                    listing.add(&part[i], &layouts[i], &shards, &kept)?;
                    // A twin has the same elements; the files of an adapter may have a copy of them by its name.
                    let twins =
                        parts.iter().flatten().filter(|other| other.tied.as_ref() == Some(&part[i].name));
                    let copied = |twin: &&ParamSpec| matches!(twin.role, Role::Copied(_));
                    for copy in twins.filter(|twin| files == Files::Run && copied(twin)) {
                        listing.add(copy, &layouts[i], &shards, &kept)?;
                    }
                }
            }
        }
    }
    Ok(Known::new(listing.tensors)?)
}

/// The parameters that this rank was built with must be those of the table, in its order: other ranks count on it.
pub(super) fn check_order(job: &Job, own: &[Stage], weights: &[Weight]) -> Result<()> {
    let mut built = weights.iter().map(|weight| &weight.spec.name);
    for stage in own {
        for spec in job.model.parameters(stage)? {
            let found = built.next();
            if found != Some(&spec.name) {
                let found = found.map_or("nothing".to_string(), |name| format!("`{name}`"));
                let what = format!(
                    "the model builds {found} where its table has `{}`; visit parameters in the order of the table",
                    spec.name
                );
                return Err(Error::Run { what });
            }
        }
    }
    Ok(())
}

/// Where the other leaf of a tied value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twin {
    None,
    /// At the same position: that one has the elements.
    Here,
    Elsewhere,
}

fn twin_of(tables: &[Vec<Vec<ParamSpec>>], position: usize, spec: &ParamSpec) -> Twin {
    let all = |at: usize| tables[at].iter().flatten();
    let here = |name: &str| all(position).any(|other| other.name == name);
    match &spec.tied {
        Some(twin) if here(twin) => Twin::Here,
        Some(_) => Twin::Elsewhere,
        None => {
            let others = (0..tables.len()).filter(|&at| at != position).flat_map(all);
            let tied = others.filter_map(|other| other.tied.as_ref()).any(|twin| *twin == spec.name);
            if tied { Twin::Elsewhere } else { Twin::None }
        }
    }
}

/// What is kept of a parameter: its kind, its dtype, and whether the data ranks divide it.
#[derive(Debug, Default)]
struct Kept {
    weight: Vec<(TensorKind, DType, bool)>,
    /// Only of those that are trained.
    state: Vec<(TensorKind, DType, bool)>,
}

fn kept(keeping: &Keeping, dtype: DType) -> Result<Kept> {
    let none = Array::zeros(&[0], dtype)?;
    let (optim, divided) = (keeping.rule.state(&none)?, keeping.zero != Zero::Off);
    let mut state = Vec::new();
    state.extend(optim.master.iter().map(|master| (TensorKind::Master, master.dtype(), divided)));
    let slot =
        |(name, array): &(_, Array)| (TensorKind::Slot(ToString::to_string(name)), array.dtype(), divided);
    state.extend(optim.slots.iter().map(slot));
    for (number, average) in keeping.averages.iter().enumerate() {
        state.push((average_kind(number), average.profile.start(&none)?.dtype(), divided));
    }
    Ok(Kept { weight: vec![(TensorKind::Parameter, dtype, keeping.zero == Zero::Weights)], state })
}

impl Kept {
    fn of(self, trainable: bool) -> Vec<(TensorKind, DType, bool)> {
        self.weight.into_iter().chain(self.state.into_iter().filter(|_| trainable)).collect()
    }
}

/// The tensors so far.
#[derive(Debug)]
struct Listing {
    files: Files,
    tensors: Vec<KnownTensor>,
    by_key: HashMap<TensorKey, usize>,
}

impl Listing {
    fn of(files: Files) -> Listing {
        Listing { files, tensors: Vec::new(), by_key: HashMap::new() }
    }

    fn add(
        &mut self,
        spec: &ParamSpec,
        base: &Layout,
        shards: &FlatShards,
        kept: &[(TensorKind, DType, bool)],
    ) -> Result<()> {
        let Some(files) = self.files.names(spec) else { return Ok(()) };
        let stacked = spec.is_stacked();
        for (index, name) in files.into_iter().enumerate() {
            let (base, shards): (RankTiling, RankTiling) = match stacked {
                false => (Arc::new(base.clone()), Arc::new(shards.clone())),
                true => {
                    let (base, shards) =
                        (Slice::new(base.clone(), index)?, Slice::new(shards.clone(), index)?);
                    (Arc::new(base), Arc::new(shards))
                }
            };
            for (kind, dtype, divided) in kept {
                let held = if *divided { &shards } else { &base };
                self.push(
                    TensorKey { kind: kind.clone(), name: name.clone() },
                    base.shape(),
                    *dtype,
                    held.clone(),
                );
            }
        }
        Ok(())
    }

    /// A value that two stages have is one tensor.
    fn push(&mut self, key: TensorKey, shape: &Shape, dtype: DType, held: RankTiling) {
        let number = *self.by_key.entry(key.clone()).or_insert(self.tensors.len());
        match self.tensors.get_mut(number) {
            Some(tensor) => tensor.held.push(held),
            None => {
                let TensorKey { kind, name } = key;
                self.tensors.push(KnownTensor { kind, name, shape: shape.clone(), dtype, held: vec![held] });
            }
        }
    }
}
