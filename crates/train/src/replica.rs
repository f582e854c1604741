//! The part of the model that this rank computes, with sources that feed forward and hooks that take gradients.

use crate::beside;
use crate::bundle::{self, Bundle, BundleOptions, Row};
use crate::error::{Error, Result};
use crate::gather::{Gatherer, Held, Pass, Stop};
use crate::reduce::{ReduceOptions, Reducer};
use crate::weights::{Elements, Keeping, Tie, Weight, Zero};
use planaria_array::{Array, ops};
use planaria_comm::Comm;
use planaria_layout::Rank;
use planaria_nn::models::{Architecture, Network, Stage};
use planaria_nn::{Init, Parallel, Param, ParamKind, Source};
use planaria_tensor::{Fetch, Tensor, is_recording};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What one rank computes with.
#[derive(Debug)]
pub(crate) struct Replica {
    /// The model parts of this rank; several where a schedule interleaves.
    pub(crate) parts: Vec<Part>,
    /// Their parameters, in order.
    pub(crate) weights: Vec<Weight>,
    /// The weights whose gradients are summed: those of the first part, then of the next.
    pub(crate) lanes: Vec<usize>,
    /// The weights that travel together.
    pub(crate) bundles: Vec<Bundle>,
    pub(crate) zero: Zero,
    /// Brings weights together, where they are divided.
    pub(crate) gatherer: Option<Arc<Gatherer>>,
    /// The round that forward and backward work on.
    round: Arc<AtomicUsize>,
}

/// A part of the model and the sums of its gradients. Parts have sums of their own, because a schedule ends the
/// backward of one part for many micro-batches before that of another.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) model: Box<dyn Network>,
    pub(crate) reducer: Arc<Reducer>,
}

/// Who else is there.
#[derive(Clone, Debug)]
pub(crate) struct Neighbours {
    /// The ranks that share this stage of this replica; absent where it is one.
    pub(crate) parallel: Option<Parallel>,
    /// The same stage in all replicas.
    pub(crate) data: Arc<dyn Comm>,
    /// The ranks of this stage of this replica.
    pub(crate) inner: Arc<dyn Comm>,
    /// All stages in all replicas, at this place of the inner mesh.
    pub(crate) peers: Arc<dyn Comm>,
    /// Every part of the model in order, with the rank that has it in this replica, at this place of the inner mesh.
    pub(crate) parts: Vec<(Stage, Rank)>,
}

/// What a replica is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Making<'a> {
    pub(crate) model: &'a dyn Architecture,
    /// The model parts of this rank.
    pub(crate) stages: &'a [Stage],
    pub(crate) init: &'a Init,
    pub(crate) near: &'a Neighbours,
    pub(crate) keeping: &'a Keeping,
    pub(crate) reduce: ReduceOptions,
    pub(crate) bundles: BundleOptions,
}

impl Replica {
    /// Collective over the data ranks.
    pub(crate) fn new(making: Making<'_>) -> Result<Replica> {
        let Making { stages, init, near, keeping, .. } = making;
        let model = |stage: &Stage| {
            let mut model = making.model.build(stage, near.parallel.as_ref(), init)?;
            keeping.frozen.mark(&mut *model);
            Ok(model)
        };
        let mut models = stages.iter().map(model).collect::<planaria_nn::Result<Vec<_>>>()?;
        let params: Vec<Param> = models.iter().flat_map(|model| model.params()).collect();
        let mut weights = params.iter().map(|p| Weight::new(p, keeping)).collect::<Result<Vec<_>>>()?;
        drop(params);
        // The weights alone have the elements now, so that those of a bundle go when it is shared out, not after the last one.
        models.iter_mut().try_for_each(|model| hollow(&mut **model))?;
        tie(&mut weights, near, making.model)?;
        let mut first = 0;
        let parts: Vec<Range<usize>> = models
            .iter()
            .map(|model| {
                let own = first..first + model.params().len();
                first = own.end;
                own
            })
            .collect();
        let blocks = parts.iter().map(|own| own_blocks(&mut weights, own, &making));
        let blocks: Vec<Vec<Vec<Held>>> = blocks.collect::<Result<_>>()?;
        if keeping.zero == Zero::Off {
            beside::settle(&mut weights)?;
        }
        for i in 0..weights.len() {
            if let Tie::Into(twin) = weights[i].tie {
                let (share, own) = (weights[twin].share.clone(), weights[twin].own.clone());
                let (part, full) = (weights[twin].part.clone(), weights[twin].full.clone());
                let weight = &mut weights[i];
                (weight.share, weight.own, weight.part, weight.full) = (share, own, part, full);
            }
        }
        let bundles = blocks.iter().flatten().flatten().map(|held| held.bundle.clone()).collect();
        let gatherer = match keeping.zero {
            Zero::Weights => Some(Arc::new(gatherer(&making, blocks, &weights, &parts)?)),
            _ => None,
        };
        let round = Arc::new(AtomicUsize::new(0));
        let (mut made, mut lanes) = (Vec::new(), Vec::new());
        for (model, own) in models.into_iter().zip(parts) {
            let trained: Vec<usize> = own.clone().filter(|&i| weights[i].trainable).collect();
            let rows: Vec<_> = trained.iter().map(|&i| weights[i].lane()).collect();
            let reducer = Arc::new(Reducer::new(near.data.clone(), &rows, making.reduce));
            let feeds =
                Feeds { weights: &weights, own, gatherer: &gatherer, reducer: &reducer, round: &round };
            made.push(Part { model: feeds.install(model)?, reducer });
            lanes.extend(trained);
        }
        Ok(Replica { parts: made, weights, lanes, bundles, zero: keeping.zero, gatherer, round })
    }

    /// The place of a weight's gradient among the sums.
    pub(crate) fn lane_of(&self, weight: usize) -> Option<usize> {
        self.lanes.iter().position(|&w| w == weight)
    }

    /// Lets go of weights that were brought together. Collective over the data ranks.
    pub(crate) fn forget_gathered(&self) -> Result<()> {
        self.gatherer.as_ref().map_or(Ok(()), |gatherer| gatherer.clear())
    }

    /// The sums of the step, in the order of the lanes. Collective over the data ranks.
    pub(crate) fn finish_step(&self, rounds: usize) -> Result<Vec<Array>> {
        self.forget_gathered()?;
        let mut sums = Vec::with_capacity(self.lanes.len());
        for part in &self.parts {
            sums.extend(part.reducer.finish_step(rounds)?);
        }
        Ok(sums)
    }

    /// Makes optimizer state from the weights of now.
    pub(crate) fn begin_states(&mut self, keeping: &Keeping) -> Result<()> {
        let updated = |w: &&mut Weight| w.trainable && !matches!(w.tie, Tie::Into(_));
        self.weights.iter_mut().filter(updated).try_for_each(|weight| weight.begin_state(keeping))
    }

    /// Says which round the next pass belongs to, and its direction.
    pub(crate) fn enter(&self, round: usize, pass: Pass) {
        self.round.store(round, Ordering::Relaxed);
        if let Some(gatherer) = &self.gatherer {
            gatherer.enter(pass);
        }
    }
}

/// Leaves a model the shapes of its parameters.
fn hollow(model: &mut dyn Network) -> Result<()> {
    let mut failed = None;
    model.visit_mut(&mut |param| {
        let elements = Array::meta(param.leaf().local().shape(), param.leaf().dtype());
        let set = elements.map_err(Error::from).and_then(|elements| Ok(param.set_array(elements)?));
        failed = failed.take().or_else(|| set.err());
    });
    failed.map_or(Ok(()), Err)
}

/// What decides with whom a weight travels; a twin travels with its twin.
fn row(weight: &Weight, is_own: bool) -> Option<Row<'_>> {
    let travels = is_own && !matches!(weight.tie, Tie::Into(_));
    travels.then_some(Row {
        block: weight.spec.block,
        layout: &weight.layout,
        dtype: weight.dtype,
        trainable: weight.trainable,
        // The other stage, with other neighbours, must share it out alike.
        alone: matches!(weight.tie, Tie::Across { .. }),
    })
}

/// The blocks of one part, with this rank's elements where they are kept apart from the rest. Weights take their
/// elements from there.
fn own_blocks(weights: &mut [Weight], own: &Range<usize>, making: &Making<'_>) -> Result<Vec<Vec<Held>>> {
    let rows: Vec<_> = weights.iter().enumerate().map(|(i, weight)| row(weight, own.contains(&i))).collect();
    let blocks = bundle::blocks(&rows, making.bundles, making.keeping.world)?;
    let mut hold = |bundle| settle(weights, bundle, making.keeping);
    blocks.into_iter().map(|bundles| bundles.into_iter().map(&mut hold).collect()).collect()
}

/// Shares the members of a bundle out.
fn settle(weights: &mut [Weight], mut bundle: Bundle, keeping: &Keeping) -> Result<Held> {
    let first = &weights[bundle.members[0]];
    let (rank, none) = (keeping.rank, Array::zeros_on(&[0], first.dtype, first.part.device())?);
    let full = |weight: &Weight| {
        let missing = || Error::Bug { what: format!("`{}` has no elements", weight.spec.name) };
        weight.full.clone().ok_or_else(missing)
    };
    let all = bundle.members.iter().map(|&i| full(&weights[i])).collect::<Result<Vec<_>>>()?;
    let joined = |arrays: &[Array]| ops::concat(&arrays.iter().collect::<Vec<_>>(), 0);
    let own = match keeping.zero {
        Zero::Weights => {
            let own = |(k, full): (usize, &Array)| {
                let range = bundle.share(k).range(rank);
                full.narrow(0, range.start, range.len())
            };
            joined(&all.iter().enumerate().map(own).collect::<planaria_array::Result<Vec<_>>>()?)?
        }
        Zero::States | Zero::Gradients if bundle.is_straight() => {
            bundle.whole = Some(if all.len() > 1 { joined(&all)? } else { all[0].clone() });
            none
        }
        _ => none,
    };
    for (k, full) in all.into_iter().enumerate() {
        let (part, range) = (bundle.part(k, rank), bundle.range(k));
        let elements = match (&bundle.whole, keeping.zero) {
            (_, Zero::Weights) => Elements::Own(own.narrow(0, part.start, part.len())?),
            (Some(whole), _) => Elements::All(whole.narrow(0, range.start, range.len())?),
            (None, _) => Elements::All(full),
        };
        weights[bundle.members[k]].settle(bundle.shards(k), keeping, elements)?;
    }
    Ok(Held { bundle, own })
}

/// What brings the weights of all parts together. Collective over the data ranks.
fn gatherer(
    making: &Making<'_>,
    blocks: Vec<Vec<Vec<Held>>>,
    weights: &[Weight],
    parts: &[Range<usize>],
) -> Result<Gatherer> {
    let blocks: Vec<Vec<Held>> = blocks.into_iter().flatten().collect();
    let mut homes = vec![[0; 3]; weights.len()];
    for (block, bundles) in blocks.iter().enumerate() {
        for (place, held) in bundles.iter().enumerate() {
            let members = held.bundle.members.iter().enumerate();
            members.for_each(|(member, &weight)| homes[weight] = [block, place, member]);
        }
    }
    for (i, weight) in weights.iter().enumerate() {
        if let Tie::Into(twin) = weight.tie {
            homes[i] = homes[twin];
        }
    }
    // Rows are looked up in forward only.
    let looked_up = |&weight: &usize| weights[weight].spec.kind == ParamKind::Embedding;
    let mut stops: Vec<Stop> = Vec::new();
    for (part, own) in parts.iter().enumerate() {
        for weight in own.clone() {
            let block = homes[weight][0];
            if stops.last().is_none_or(|stop| (stop.part, stop.block) != (part, block)) {
                let both_ways = !blocks[block].iter().flat_map(|held| &held.bundle.members).all(looked_up);
                stops.push(Stop { part, block, turns: false, both_ways });
            }
        }
        if let Some(last) = stops.last_mut().filter(|last| last.part == part) {
            last.turns = making.stages[part].head;
        }
    }
    let data = &making.near.data;
    let comm = data.split(&[data.ranks().to_vec()])?;
    let comm = comm.ok_or_else(|| Error::Bug { what: "a rank outside its own data ranks".into() })?;
    Ok(Gatherer::new(comm, blocks, homes, stops))
}

/// Finds the twins of tied parameters. Twins on one rank share their elements; those on two ranks exchange their sums.
fn tie(weights: &mut [Weight], near: &Neighbours, model: &dyn Architecture) -> Result<()> {
    for (name, twin) in planaria_nn::models::ties(model)? {
        let place = |name: &str| weights.iter().position(|w| w.spec.name == *name);
        match (place(&name), place(&twin)) {
            (Some(own), Some(twin)) => weights[own].tie = Tie::Into(twin),
            (Some(own), None) => {
                across(&mut weights[own], Tie::Across { peer: owner(model, near, &twin)?, first: false })?;
                weights[own].counted = false;
            }
            (None, Some(twin)) => {
                across(&mut weights[twin], Tie::Across { peer: owner(model, near, &name)?, first: true })?;
            }
            (None, None) => {}
        }
    }
    Ok(())
}

/// Two ranks exchange sums; a parameter that is tied over more is refused.
fn across(weight: &mut Weight, tie: Tie) -> Result<()> {
    if weight.tie != Tie::None && weight.tie != tie {
        let name = &weight.spec.name;
        let what =
            format!("`{name}` is tied to parameters on several other stages; keep all but one on its own");
        return Err(Error::Run { what });
    }
    weight.tie = tie;
    Ok(())
}

/// The rank that has a parameter.
fn owner(model: &dyn Architecture, near: &Neighbours, name: &str) -> Result<Rank> {
    for (stage, rank) in &near.parts {
        if model.parameters(stage)?.iter().any(|spec| spec.name == name) {
            return Ok(*rank);
        }
    }
    Err(Error::Run { what: format!("a parameter is tied to `{name}`, which the model does not have") })
}

/// The sources of one part's parameters.
struct Feeds<'a> {
    weights: &'a [Weight],
    /// Those of the part.
    own: Range<usize>,
    gatherer: &'a Option<Arc<Gatherer>>,
    reducer: &'a Arc<Reducer>,
    round: &'a Arc<AtomicUsize>,
}

impl Feeds<'_> {
    /// The model with its parameters fed from here.
    fn install(&self, mut model: Box<dyn Network>) -> Result<Box<dyn Network>> {
        let (mut place, mut lane, mut failed) = (self.own.start, 0, None);
        model.visit_mut(&mut |param| {
            let trainable = self.weights[place].trainable;
            let fed = self.feed(param, place, trainable.then_some(lane));
            failed = failed.take().or_else(|| fed.err());
            (place, lane) = (place + 1, lane + usize::from(trainable));
        });
        failed.map_or(Ok(model), Err)
    }

    /// Has forward take a parameter's value from its weight.
    fn feed(&self, param: &mut Param, place: usize, lane: Option<usize>) -> Result<()> {
        let (shape, dtype) = (param.leaf().local().shape().clone(), param.leaf().dtype());
        let elements = match &self.weights[place].full {
            Some(full) => full.reshape(&shape)?,
            // They are not kept here; the leaf stays as a shape.
            None => Array::meta(&shape, dtype)?,
        };
        if !elements.shares_storage(param.leaf().local()) {
            param.set_array(elements)?;
        }
        let fetch = self.gatherer.clone().map(|gatherer| -> Fetch {
            Arc::new(move || Ok(gatherer.get(place).map_err(to_tensor_error)?.reshape(&shape)?))
        });
        if fetch.is_some() || lane.is_some() {
            let (home, reducer, round) = (param.leaf().clone(), self.reducer.clone(), self.round.clone());
            let feed = Feed { home, fetch, lane, reducer, round };
            let source: Source = Arc::new(move || feed.value());
            param.set_source(Some(source));
        }
        Ok(())
    }
}

/// What a parameter's source needs.
struct Feed {
    home: Tensor,
    /// Brings its elements together, where weights are divided.
    fetch: Option<Fetch>,
    /// Where its gradients go; absent for a frozen one.
    lane: Option<usize>,
    reducer: Arc<Reducer>,
    round: Arc<AtomicUsize>,
}

impl Feed {
    /// The value for one use: a leaf of its own, so that its gradient arrives as soon as backward has passed the use,
    /// not after everything else.
    fn value(&self) -> planaria_tensor::Result<Tensor> {
        let value = match (&self.fetch, self.home.layout(), self.home.world()) {
            (None, ..) => self.home.detach(),
            (Some(fetch), Some(layout), Some(world)) => Tensor::from_piece(fetch()?, layout, world)?,
            (Some(fetch), ..) => Tensor::new(fetch()?),
        };
        let value = if self.lane.is_some() { value.requires_grad() } else { value };
        let value = match &self.fetch {
            Some(fetch) => value.fetched_by(fetch.clone()),
            None => value,
        };
        if let Some(lane) = self.lane.filter(|_| is_recording()) {
            self.take_gradient(&value, lane)?;
        }
        Ok(value)
    }

    /// Has the gradient of a use go to its sum.
    fn take_gradient(&self, leaf: &Tensor, lane: usize) -> planaria_tensor::Result<()> {
        let round = self.round.load(Ordering::Relaxed);
        self.reducer.expect(round, lane);
        let (reducer, layout) = (self.reducer.clone(), self.home.layout().cloned());
        leaf.on_grad(move |grad| {
            let settled = match &layout {
                Some(layout) if grad.layout() != Some(layout) => grad.reshard(layout)?,
                _ => grad.clone(),
            };
            reducer.give(round, lane, settled.local()).map_err(to_tensor_error)?;
            // The elements are in the sum now: the leaf, which lives as long as the graph, keeps only their shape.
            Ok(Some(Tensor::new(settled.local().to_meta())))
        })
    }
}

/// Our errors inside an op: those of lower floors keep their kind.
pub(crate) fn to_tensor_error(error: Error) -> planaria_tensor::Error {
    match error {
        Error::Tensor(e) => e,
        Error::Array(e) => e.into(),
        Error::Comm(e) => e.into(),
        Error::Layout(e) => e.into(),
        other => planaria_tensor::Error::Argument { op: "train", message: other.to_string() },
    }
}
