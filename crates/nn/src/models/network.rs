//! A stage of a model with weights: how it runs, what it is given and what it hands on.

use super::architecture::Stage;
use super::head::{Head, Loss, States};
use super::qwen2_vl::{Marks, Scenes, VisionConfig};
use crate::error::{Error, Result};
use crate::layers::{LayerCache, Moved, Positions};
use crate::parallel::Lanes;
use crate::param::Module;
use planaria_array::Array;
use planaria_array::random::Key;
use planaria_tensor::Tensor;
use planaria_tensor::ops::Documents;
use std::collections::BTreeSet;
use std::fmt;

/// A stage of a model. What is called on it is collective over its inner mesh.
pub trait Network: Module + fmt::Debug + Send + Sync {
    /// Which part of the model this is.
    fn stage(&self) -> &Stage;

    /// What this stage makes of tokens `[batch, sequence]` on the first stage, and of what the stage before it handed
    /// on otherwise. Values without a layout must be the same on all ranks of the inner mesh.
    fn forward(&self, input: Activations, run: &Run<'_>) -> Result<Activations>;

    /// Hidden states `[batch, sequence, width]` of the last stage, ready for scores and losses.
    fn head(&self, hidden: &Tensor) -> Result<Head>;

    /// The same hidden states after their norm, also of a model that has no head.
    fn states(&self, hidden: &Tensor) -> Result<States> {
        let Head { states, lanes, .. } = self.head(hidden)?;
        Ok(States { states, lanes })
    }

    /// A second model that is trained beside this one on the same tokens, such as the critic of a policy.
    fn beside(&self) -> Option<&dyn Network> {
        None
    }

    /// An empty cache with room for `capacity` positions.
    fn cache(&self, capacity: usize) -> Cache;

    /// The way to make one token after the other without the host, where the model has one here.
    fn decoding(&self) -> Option<&dyn Decode> {
        None
    }

    /// The lanes of a whole model whose [`Network::forward`] takes rows that stand at places of their own, up to so many positions
    /// ([`Positions::Each`]); what a row gives does not depend on the others.
    fn rows_apart(&self, _positions: usize) -> Option<&Lanes> {
        None
    }

    /// What a whole model that sees on one rank does by ops alone.
    fn seeing(&self) -> Option<&dyn See> {
        None
    }

    /// A loss that the model adds of its own, such as one of uneven routing: a mean over `tokens` tokens, not a sum.
    fn own_loss(&self, _last: &Activations, _tokens: usize) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Scores `[batch, sequence, vocabulary]`; `tp` cuts the vocabulary.
    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.head(hidden)?.logits()
    }

    /// The loss of the last stage's hidden states against labels `[batch, sequence]`: label `i` is the token after
    /// `i`, -100 counts nothing. All logits are never there at once.
    fn loss(&self, last: &Activations, labels: &Tensor) -> Result<Loss> {
        let loss = self.head(&last.hidden)?.cross_entropy(labels)?;
        Ok(Loss { own: self.own_loss(last, labels.numel())?, ..loss })
    }
}

/// A whole model on one rank that takes one new token of each row after the other. Where rows stand and what they get is read
/// on the device, so that nothing waits for the host.
pub trait Decode {
    /// Scores `[rows, vocabulary]` of the tokens after `tokens` (`[rows]`, I64), which stand at `positions` (`[rows]`, I64, all
    /// within the capacity) of their rows: their keys and values go into the cache there, and they see those before. Rows
    /// were put into the cache by [`Network::forward`]. Without history.
    fn decode(&self, tokens: &Array, positions: &Array, cache: &Cache) -> Result<Array>;
}

/// A whole model on one rank that sees. What says by ops does so by ops alone: no value decides which ops run or what constants
/// they have, so that a program of them takes any pictures.
pub trait See {
    /// The vision tower.
    fn vision(&self) -> &VisionConfig;

    /// Which tokens stand for what is seen.
    fn marks(&self) -> &Marks;

    /// Vectors of the tokens of what is shown: pictures, then videos.
    fn features(&self, shown: &Shown) -> Result<Tensor>;

    /// The same by ops, of patches `[patches, numbers]` that lie in grids `[pictures, 3]`, I64: frames, rows and columns.
    fn features_by_ops(&self, patches: &Tensor, grids: &Tensor) -> Result<Tensor>;

    /// [`Network::forward`] by ops: vectors `[vectors, width]` of what is seen take the places of marked tokens of `[batch,
    /// sequence]` in their order, and positions are on three axes, `[3, batch, sequence]`.
    fn forward_by_ops(
        &self,
        tokens: &Tensor,
        positions: &Tensor,
        features: &Tensor,
        cache: &Cache,
    ) -> Result<Activations>;
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
    /// No block as a whole, but in each what norms and gated activations give.
    Selective,
}

impl Recompute {
    /// Whether this layer is computed again.
    pub fn has(&self, layer: usize) -> bool {
        match self {
            Recompute::None | Recompute::Selective => false,
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
    /// in it, whatever `positions` says but for those on three axes. Not with a cache.
    pub documents: Option<Documents>,
    /// The key of dropout, in training; the same on every rank of the inner mesh, another for every micro-batch.
    pub train: Option<Key>,
    /// Keys and values of what came before.
    pub cache: Option<&'a Cache>,
    /// Pictures and videos whose vectors take the places of marked tokens, in models that see.
    pub shown: Option<Shown>,
}

/// What a model that sees is shown beside its tokens.
#[derive(Clone, Debug)]
pub struct Shown {
    /// `[patches, numbers]`: of all pictures, then of all videos.
    pub patches: Array,
    /// How the patches lie.
    pub scenes: Scenes,
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

/// Keys and values of all layers of a stage.
#[derive(Debug)]
pub struct Cache {
    pub(super) layers: Vec<LayerCache>,
}

impl Cache {
    /// An empty one of so many layers, with room for `capacity` positions in each.
    pub fn new(layers: usize, capacity: usize) -> Cache {
        Cache { layers: (0..layers).map(|_| LayerCache::new(capacity)).collect() }
    }

    /// Keys and values of each layer, behind which new ones are put: see [`LayerCache::growing`].
    pub fn growing(layers: Vec<(Tensor, Tensor)>) -> Cache {
        let layer = |(keys, values)| LayerCache::growing(keys, values);
        Cache { layers: layers.into_iter().map(layer).collect() }
    }

    /// The same with nothing before.
    pub fn collecting(layers: usize) -> Cache {
        Cache { layers: (0..layers).map(|_| LayerCache::collecting()).collect() }
    }

    /// The keys and values of each layer, `[batch, heads, positions, dim]`; none before the first forward.
    pub fn tensors(&self) -> Result<Vec<(Tensor, Tensor)>> {
        let layers = self.layers.iter().map(LayerCache::tensors);
        Ok(layers.collect::<planaria_tensor::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, LayerCache::len)
    }

    /// True when nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the first positions of rows of another cache into rows of this one, of which there are so many.
    pub(crate) fn take_rows(&self, from: &Cache, rows: usize, moves: &[Moved]) -> Result<()> {
        let mut layers = self.layers.iter().zip(&from.layers);
        layers.try_for_each(|(to, from)| Ok(to.take_rows(from, rows, moves)?))
    }
}
