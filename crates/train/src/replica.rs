//! The part of the model that this rank computes, with sources that feed forward and hooks that take gradients.

use crate::error::{Error, Result};
use crate::reduce::{ReduceOptions, Reducer};
use crate::weights::{Keeping, Tie, Weight, Zero, gather};
use planaria_array::Array;
use planaria_comm::Comm;
use planaria_layout::Rank;
use planaria_nn::models::{Config as ModelConfig, Model, Stage};
use planaria_nn::{Init, Module, Parallel, Param, Source};
use planaria_tensor::{Tensor, is_recording};
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
    /// The round that forward and backward work on.
    round: Arc<AtomicUsize>,
}

/// A part of the model and the sums of its gradients. Parts have sums of their own, because a schedule ends the
/// backward of one part for many micro-batches before that of another.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) model: Model,
    pub(crate) reducer: Arc<Reducer>,
}

/// Who else is there.
#[derive(Clone, Debug)]
pub(crate) struct Neighbours {
    /// This rank.
    pub(crate) here: Rank,
    /// The ranks that share this stage of this replica; absent where it is one.
    pub(crate) parallel: Option<Parallel>,
    /// The same stage in all replicas.
    pub(crate) data: Arc<dyn Comm>,
    /// The rank that has the model's first part in this replica, at this place of the inner mesh.
    pub(crate) first: Rank,
    /// The one that has the last part.
    pub(crate) last: Rank,
}

impl Replica {
    pub(crate) fn new(
        config: &ModelConfig,
        stages: &[Stage],
        init: &Init,
        near: &Neighbours,
        keeping: &Keeping,
        reduce: ReduceOptions,
    ) -> Result<Replica> {
        let model = |stage: &Stage| Model::new(config, stage.clone(), near.parallel.as_ref(), init);
        let models = stages.iter().map(model).collect::<planaria_nn::Result<Vec<_>>>()?;
        let params: Vec<Param> = models.iter().flat_map(Module::params).collect();
        let mut weights = params.iter().map(|p| Weight::new(p, keeping)).collect::<Result<Vec<_>>>()?;
        tie(&mut weights, near, config);
        let round = Arc::new(AtomicUsize::new(0));
        let (mut parts, mut lanes, mut first) = (Vec::new(), Vec::new(), 0);
        for model in models {
            let own = first..first + model.params().len();
            first = own.end;
            let trained: Vec<usize> = own.clone().filter(|&i| weights[i].trainable).collect();
            let rows: Vec<_> = trained.iter().map(|&i| weights[i].lane()).collect();
            let reducer = Arc::new(Reducer::new(near.data.clone(), &rows, reduce));
            let feeds = Feeds {
                weights: &weights[own.clone()],
                zero: keeping.zero,
                reducer: &reducer,
                round: &round,
            };
            parts.push(Part { model: feeds.install(model, &near.data)?, reducer });
            lanes.extend(trained);
        }
        Ok(Replica { parts, weights, lanes, round })
    }

    /// The sums of the step, in the order of the lanes. Collective over the data ranks.
    pub(crate) fn finish_step(&self, rounds: usize) -> Result<Vec<Array>> {
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

    /// Says which round the next forward or backward belongs to.
    pub(crate) fn enter(&self, round: usize) {
        self.round.store(round, Ordering::Relaxed);
    }
}

/// Finds the twins of tied parameters. Twins on one rank share their elements.
fn tie(weights: &mut [Weight], near: &Neighbours, config: &ModelConfig) {
    let place = |weights: &[Weight], name: &str| weights.iter().position(|w| w.spec.name == name);
    for i in 0..weights.len() {
        let Some(twin) = weights[i].spec.tied.clone() else { continue };
        match place(weights, &twin) {
            Some(twin) => {
                weights[i].tie = Tie::Into(twin);
                weights[i].part = weights[twin].part.clone();
                weights[i].full = weights[twin].full.clone();
            }
            None => {
                weights[i].tie = Tie::Across { peer: near.first, first: false };
                weights[i].counted = false;
            }
        }
    }
    if config.tie_word_embeddings && near.first != near.last && near.here == near.first {
        for weight in weights.iter_mut().filter(|w| w.spec.name == EMBEDDING) {
            weight.tie = Tie::Across { peer: near.last, first: true };
        }
    }
}

/// The name of the parameter that a tied head shares.
const EMBEDDING: &str = "model.embed_tokens.weight";

/// The sources of one part's parameters.
struct Feeds<'a> {
    weights: &'a [Weight],
    zero: Zero,
    reducer: &'a Arc<Reducer>,
    round: &'a Arc<AtomicUsize>,
}

impl Feeds<'_> {
    /// The model with its parameters fed from here.
    fn install(&self, mut model: Model, data: &Arc<dyn Comm>) -> Result<Model> {
        let (mut place, mut lane, mut failed) = (0, 0, None);
        model.visit_mut(&mut |param| {
            let weight = &self.weights[place];
            let shared = matches!(weight.tie, Tie::Into(_)).then(|| weight.full.clone()).flatten();
            let feed = Feed {
                home: param.leaf().clone(),
                shared,
                part: (self.zero == Zero::Weights).then(|| weight.part.clone()),
                share: weight.share,
                data: data.clone(),
                lane: weight.trainable.then_some(lane),
                reducer: self.reducer.clone(),
                round: self.round.clone(),
            };
            failed = failed.take().or_else(|| feed.install(param).err());
            (place, lane) = (place + 1, lane + usize::from(weight.trainable));
        });
        failed.map_or(Ok(model), Err)
    }
}

/// What a parameter's source needs.
struct Feed {
    home: Tensor,
    /// The elements of its twin on this rank.
    shared: Option<Array>,
    /// The own range, where weights are divided.
    part: Option<Array>,
    share: crate::share::Share,
    data: Arc<dyn Comm>,
    /// Where its gradients go; absent for a frozen one.
    lane: Option<usize>,
    reducer: Arc<Reducer>,
    round: Arc<AtomicUsize>,
}

impl Feed {
    /// Has forward take this parameter's value from here.
    fn install(mut self, param: &mut Param) -> Result<()> {
        if let Some(twin) = self.shared.take() {
            param.set_array(twin.reshape(param.leaf().local().shape())?)?;
            self.home = param.leaf().clone();
        }
        if self.part.is_some() {
            // The elements are not kept here; the leaf stays as a shape.
            let leaf = param.leaf().local();
            param.set_array(Array::meta(leaf.shape(), leaf.dtype())?)?;
        }
        if self.part.is_some() || self.lane.is_some() {
            let home = Feed { home: without_bytes(&self)?, ..self };
            let source: Source = Arc::new(move || home.value());
            param.set_source(Some(source));
        }
        Ok(())
    }

    /// The value for one use: a leaf of its own, so that its gradient arrives as soon as backward has passed the use,
    /// not after everything else.
    fn value(&self) -> planaria_tensor::Result<Tensor> {
        let value = match &self.part {
            None => self.home.detach(),
            Some(part) => {
                let whole = gather(&self.data, self.share, part).map_err(to_tensor_error)?;
                let whole = whole.reshape(self.home.local().shape())?;
                match (self.home.layout(), self.home.world()) {
                    (Some(layout), Some(world)) => Tensor::from_piece(whole, layout, world)?,
                    _ => Tensor::new(whole),
                }
            }
        };
        let Some(lane) = self.lane else { return Ok(value) };
        let leaf = value.requires_grad();
        if is_recording() {
            let round = self.round.load(Ordering::Relaxed);
            self.reducer.expect(round, lane);
            let (reducer, layout) = (self.reducer.clone(), self.home.layout().cloned());
            leaf.on_grad(move |grad| {
                let settled = match &layout {
                    Some(layout) if grad.layout() != Some(layout) => grad.reshard(layout)?,
                    _ => grad.clone(),
                };
                reducer.give(round, lane, settled.local()).map_err(to_tensor_error)?;
                // A gradient with history would keep on its leaf, for ever, the graph that leads to the leaf.
                Ok(Some(settled.detach()))
            })?;
        }
        Ok(leaf)
    }
}

/// The parameter's tensor without its elements, where they are not kept.
fn without_bytes(feed: &Feed) -> Result<Tensor> {
    if feed.part.is_none() {
        return Ok(feed.home.clone());
    }
    let local = feed.home.local().to_meta();
    Ok(match (feed.home.layout(), feed.home.world()) {
        (Some(layout), Some(world)) => Tensor::from_piece(local, layout, world)?,
        _ => Tensor::new(local),
    })
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
