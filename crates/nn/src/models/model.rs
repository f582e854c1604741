//! The decoder model: token vectors, blocks, head. One stage of it may be all there is on a rank.

use super::block::Block;
use super::config::Config;
use crate::error::{Error, Result};
use crate::layers::{AttentionStep, Embedding, LayerCache, Linear, Parts, Positions, RmsNorm, Rope};
use crate::loss::{IGNORED, linear_cross_entropy};
use crate::parallel::{Lanes, Parallel};
use crate::param::{Init, Module, Param};
use planaria_array::DType;
use planaria_array::ops::Keep;
use planaria_array::random::Key;
use planaria_tensor::ops::Documents;
use planaria_tensor::{Tensor, recompute};
use std::collections::BTreeSet;
use std::ops::Range;

/// The part of a model that one pipeline stage holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stage {
    /// The blocks.
    pub layers: Range<usize>,
    /// True when it begins with the token vectors.
    pub embed: bool,
    /// True when it ends with the last norm and the head.
    pub head: bool,
}

impl Stage {
    /// All of a model.
    pub fn whole(config: &Config) -> Stage {
        Stage { layers: 0..config.layers, embed: true, head: true }
    }
}

/// Which blocks keep only their input and are computed again in backward.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// None.
    #[default]
    None,
    /// All.
    Full,
    /// These layers, counted in the whole model.
    Blocks(BTreeSet<usize>),
}

impl Recompute {
    fn has(&self, layer: usize) -> bool {
        match self {
            Recompute::None => false,
            Recompute::Full => true,
            Recompute::Blocks(layers) => layers.contains(&layer),
        }
    }
}

/// How one forward runs.
#[derive(Clone, Debug, Default)]
pub struct Run<'a> {
    /// Which blocks are computed again in backward; not with a cache.
    pub recompute: Recompute,
    /// Where the tokens stand; with a cache, after those it holds.
    pub positions: Positions,
    /// The documents that share the rows of this batch: tokens see those of their own only, and stand where they do
    /// in it, whatever `positions` says. Not with a cache.
    pub documents: Option<Documents>,
    /// The key of dropout, in training; the same on every rank of the inner mesh, another for every micro-batch.
    pub train: Option<Key>,
    /// Keys and values of what came before.
    pub cache: Option<&'a Cache>,
}

/// What one stage hands to the next.
#[derive(Clone, Debug)]
pub struct Activations {
    /// Tokens `[batch, sequence]` before the first stage, hidden states `[batch, sequence, width]` after.
    pub hidden: Tensor,
    /// Of models with experts: choices and probabilities per expert, `[2, experts]`, summed over the layers so far.
    pub routed: Option<Tensor>,
}

impl From<Tensor> for Activations {
    fn from(hidden: Tensor) -> Activations {
        Activations { hidden, routed: None }
    }
}

impl From<&Tensor> for Activations {
    fn from(hidden: &Tensor) -> Activations {
        hidden.clone().into()
    }
}

impl Activations {
    /// As a list, to be sent.
    pub fn into_list(self) -> Vec<Tensor> {
        std::iter::once(self.hidden).chain(self.routed).collect()
    }

    /// From the list that was sent.
    pub fn from_list(list: Vec<Tensor>) -> Result<Activations> {
        let mut list = list.into_iter();
        match (list.next(), list.next(), list.next()) {
            (Some(hidden), routed, None) => Ok(Activations { hidden, routed }),
            _ => Err(Error::Argument {
                what: "activations",
                message: "a stage hands over one tensor, or two with experts".to_string(),
            }),
        }
    }
}

/// The loss of one micro-batch.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Sum of the losses of all labels.
    pub sum: Tensor,
    /// How many labels count.
    pub count: u64,
    /// The loss of uneven routing, times its coefficient; a mean, not a sum.
    pub aux: Option<Tensor>,
}

impl Loss {
    /// What backward starts from: divided by the count it is the mean loss, with that of routing added.
    pub fn total(&self) -> Result<Tensor> {
        Ok(match &self.aux {
            Some(aux) => self.sum.add(&aux.mul_scalar(self.count as f64)?)?,
            None => self.sum.clone(),
        })
    }
}

/// Keys and values of all layers of a stage.
#[derive(Debug)]
pub struct Cache {
    layers: Vec<LayerCache>,
}

impl Cache {
    /// Positions held.
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, LayerCache::len)
    }

    /// True when nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A decoder model, or one stage of it.
#[derive(Clone, Debug)]
pub struct Model {
    config: Config,
    stage: Stage,
    lanes: Lanes,
    embed: Option<Embedding>,
    blocks: Vec<Block>,
    norm: Option<RmsNorm>,
    head: Option<Linear>,
}

impl Model {
    /// A stage with first values, on one rank or on the inner mesh of several.
    pub fn new(config: &Config, stage: Stage, parallel: Option<&Parallel>, init: &Init) -> Result<Model> {
        parallel.map_or(Ok(()), |parallel| config.check_parallel(parallel))?;
        // A mesh of one rank is no mesh.
        let parallel = parallel.filter(|parallel| parallel.mesh.size() > 1);
        let parts = Parts::new(config.parameters(&stage)?, init, parallel)?;
        let (model, lanes) = (parts.at("model"), Lanes::new(parallel));
        let rope = Rope::new(config.head_dim, config.rope_theta, config.rope_scaling)?;
        let block = |layer| {
            let parts = model.at(&format!("layers.{layer}"));
            Block::new(&parts, config, layer, &rope, &lanes)
        };
        Ok(Model {
            embed: stage.embed.then(|| model.embedding("embed_tokens")).transpose()?,
            blocks: stage.layers.clone().map(block).collect::<Result<_>>()?,
            norm: stage.head.then(|| model.rms_norm("norm", config.rms_norm_eps)).transpose()?,
            head: stage.head.then(|| parts.linear("lm_head")).transpose()?,
            config: config.clone(),
            stage,
            lanes,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Which part of the model this is.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// The ranks that share this stage; absent where there is one.
    pub fn parallel(&self) -> Option<&Parallel> {
        self.lanes.parallel()
    }

    /// An empty cache with room for `capacity` positions.
    pub fn cache(&self, capacity: usize) -> Cache {
        Cache { layers: self.blocks.iter().map(|_| LayerCache::new(capacity)).collect() }
    }

    /// Hidden states after this stage's blocks, of tokens `[batch, sequence]` on the first stage and of the hidden
    /// states before it on others. Values without a layout must be the same on all ranks of the inner mesh.
    pub fn forward(&self, input: impl Into<Activations>, run: &Run<'_>) -> Result<Activations> {
        let Activations { hidden, mut routed } = input.into();
        let mut x = match &self.embed {
            Some(embed) => {
                let x = self.lanes.out_of_rows(&embed.forward(&self.lanes.batch(&hidden)?)?)?;
                let dropout = crate::layers::Dropout { p: self.config.hidden_dropout };
                dropout.forward(&x, run.train.map(|key| key.fold(u64::MAX)))?
            }
            None => self.lanes.residual(&hidden)?,
        };
        let step = self.attention_step(run)?;
        for (place, (layer, block)) in self.stage.layers.clone().zip(&self.blocks).enumerate() {
            let dropout = run.train.map(|key| key.fold(layer as u64));
            let step = AttentionStep { dropout, ..step.clone() };
            let cache = run.cache.and_then(|cache| cache.layers.get(place));
            let (y, stats) = match cache.is_none() && run.recompute.has(layer) {
                true => again(block, &x, step)?,
                false => block.forward(&x, &step, cache)?,
            };
            x = y;
            routed = match (routed, stats) {
                (Some(before), Some(stats)) => Some(before.add(&stats)?),
                (before, stats) => before.or(stats),
            };
        }
        Ok(Activations { hidden: x, routed })
    }

    /// What attention is told in every layer.
    fn attention_step(&self, run: &Run<'_>) -> Result<AttentionStep> {
        let documents = run.documents.clone();
        let positions = match (run.cache, &documents, &run.positions) {
            (Some(_), Some(_), _) => {
                let message = "documents in one row cannot go on from a cache; give each a row".to_string();
                return Err(Error::Argument { what: "documents", message });
            }
            (None, Some(documents), _) => {
                let ids = self.lanes.batch(&Tensor::new(documents.positions()?))?;
                Positions::Ids { ids, end: documents.longest() }
            }
            (Some(cache), None, Positions::From(first)) => Positions::From(first + cache.len()),
            (_, None, positions) => positions.clone(),
        };
        Ok(AttentionStep { positions, documents, dropout: None })
    }

    /// What the head is applied to.
    fn normed(&self, hidden: &Tensor) -> Result<(Tensor, Tensor)> {
        let (Some(norm), Some(head)) = (&self.norm, &self.head) else {
            let message = format!("the stage of layers {:?} has no head", self.stage.layers);
            return Err(Error::Argument { what: "logits", message });
        };
        let x = self.lanes.into_columns(&norm.forward(hidden)?)?;
        Ok((x, head.weight.value()?))
    }

    /// Scores `[batch, sequence, vocabulary]`; `tp` cuts the vocabulary.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let (x, weight) = self.normed(hidden)?;
        Ok(planaria_tensor::ops::linear(&x, &weight, None)?)
    }

    /// The loss of the last stage's hidden states against labels `[batch, sequence]`: label `i` is the token after
    /// `i`, -100 counts nothing. All logits are never there at once. Collective.
    pub fn loss(&self, last: &Activations, labels: &Tensor) -> Result<Loss> {
        let (x, weight) = self.normed(&last.hidden)?;
        let labels = self.lanes.batch(labels)?;
        let counted = labels.ne(&Tensor::scalar(IGNORED, labels.dtype())?)?.cast(DType::I64)?;
        let count = counted.sum(&[], Keep::No)?.whole()?;
        // A supposed world has no values; every label counts.
        let count = if count.is_meta() { labels.numel() as u64 } else { count.item()?.as_f64() as u64 };
        let sum = linear_cross_entropy(&x, &weight, &labels)?.settled()?;
        let aux = last.routed.as_ref().map(|routed| self.aux(routed, labels.numel())).transpose()?.flatten();
        Ok(Loss { sum, count, aux })
    }

    /// Experts times the sum of each one's share of choices times its mean probability, over all sparse layers.
    fn aux(&self, routed: &Tensor, tokens: usize) -> Result<Option<Tensor>> {
        let Some(experts) = self.config.experts.as_ref().filter(|e| e.aux_loss != 0.0) else {
            return Ok(None);
        };
        let rows = (tokens * experts.layers.iter().filter(|&&sparse| sparse).count()) as f64;
        let shares = routed.select(0, 0)?.detach().mul(&routed.select(0, 1)?)?.sum(&[], Keep::No)?;
        let factor = experts.aux_loss * experts.count as f64 / (rows * rows);
        Ok(Some(shares.mul_scalar(factor)?.settled()?))
    }
}

/// A block that keeps only its input.
fn again(block: &Block, x: &Tensor, step: AttentionStep) -> Result<(Tensor, Option<Tensor>)> {
    let block = block.clone();
    let mut list = recompute(&[x], move |inputs| {
        let (y, stats) = block.forward(&inputs[0], &step, None)?;
        Ok(std::iter::once(y).chain(stats).collect())
    })?;
    let stats = if list.len() > 1 { list.pop() } else { None };
    let y = list.pop().ok_or(planaria_tensor::Error::Bug("a block gave nothing"))?;
    Ok((y, stats))
}

impl Module for Model {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.embed.visit(f);
        self.blocks.visit(f);
        self.norm.visit(f);
        self.head.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.embed.visit_mut(f);
        self.blocks.visit_mut(f);
        self.norm.visit_mut(f);
        self.head.visit_mut(f);
    }
}
