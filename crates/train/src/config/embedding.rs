//! The section `[embedding]`: what a text's vector is made of, and what is compared.

use super::require;
use crate::data::{BatchesFrom, Config as DataConfig};
use crate::embedding::{Contrast, Direction, Distance, Hardness, PairLoss, Partition, Pooling, Similarity};
use crate::error::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who sees whom in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TextAttention {
    /// A token sees those before it.
    Causal,
    /// Every token sees all others.
    Bidirectional,
}

impl TextAttention {
    pub(crate) fn is_causal(self) -> bool {
        self == TextAttention::Causal
    }
}

/// Whose texts a query is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Negatives {
    /// Those of all ranks: a step is the same on every mesh.
    #[default]
    Global,
    /// Those of the query's own data rank: other meshes compare other texts.
    Rank,
}

/// What is learnt of texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TextLoss {
    /// To find what answers a query among all texts of a step.
    #[default]
    InfoNce,
    /// To be nearer to what answers a query than to what does not, by a margin.
    Triplet,
    /// To order pairs as their scores do, by cosines.
    Cosent,
    /// To order pairs as their scores do, by angles of complex numbers.
    Angle,
    /// To have the score of a pair as its cosine.
    CosineMse,
}

impl TextLoss {
    /// What is learnt from scores.
    pub(crate) fn of_pairs(self) -> Option<PairLoss> {
        match self {
            TextLoss::InfoNce | TextLoss::Triplet => None,
            TextLoss::Cosent => Some(PairLoss::CoSent),
            TextLoss::Angle => Some(PairLoss::Angle),
            TextLoss::CosineMse => Some(PairLoss::CosineMse),
        }
    }
}

/// What a text's vector is made of, and what is compared; with `train.objective = "contrastive"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EmbeddingSection {
    /// What a vector is made of: `lasttoken`, `cls`, `mean`, `mean_sqrt_len_tokens`, `weightedmean`, `max`. Several stand one after
    /// the other.
    pub pooling: Vec<Pooling>,
    /// Vectors that the last states ask before they are pooled, by attention of `latent_heads` heads (latent attention, as NV-Embed has it;
    /// pool by `mean`): learned with the model, in the saved folder too, but not known to sentence-transformers. None when 0.
    pub latents: usize,
    /// By how many heads; they divide the width of the model.
    pub latent_heads: usize,
    /// Who sees whom in a text; as the model's `config.json` has it when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<TextAttention>,
    /// Whether the saved folder's vectors have length 1.
    pub normalize: bool,
    /// What is learnt: `info_nce`, `triplet`, and from pairs with a score `cosent`, `angle`, `cosine_mse`.
    pub loss: TextLoss,
    /// What is learnt of each `[[data.source]]`, in their order, with `data.texts.batches` other than `mixed`; `loss` of all when empty.
    pub losses: Vec<TextLoss>,
    /// How much nearer the answer is, with `triplet`.
    pub margin: f64,
    /// What is near, with `triplet`: `cosine` or `euclidean`.
    pub distance: Distance,
    /// Similarity of vectors: `cos` or `dot`.
    pub similarity: Similarity,
    /// Factor on scores: one over the temperature.
    pub scale: f64,
    /// Who is compared with whom: `query_to_doc`, `doc_to_query`, `query_to_query`, `doc_to_doc`. The first two with
    /// `partition = "per_direction"` are the symmetric loss.
    pub directions: Vec<Direction>,
    /// How directions come together.
    pub partition: Partition,
    /// Which scores weigh more the higher they are.
    pub hardness: Hardness,
    /// How much more.
    pub hardness_strength: f64,
    /// Texts that are the same as what answers a query are not negatives of it.
    pub exclude_duplicates: bool,
    /// Nor are those that are more similar to it than its answer by more than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub false_negative_margin: Option<f64>,
    /// Numbers of first elements that are trained to be embeddings by themselves, in any order. Empty: whole vectors only.
    pub matryoshka_dims: Vec<usize>,
    /// What the loss of each counts; 1 when empty.
    pub matryoshka_weights: Vec<f64>,
    /// How many of them are drawn for a step; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matryoshka_per_step: Option<usize>,
    /// Whose texts a query is compared with.
    pub negatives_from: Negatives,
}

impl Default for EmbeddingSection {
    fn default() -> EmbeddingSection {
        let Contrast { similarity, scale, directions, partition, hardness, hardness_strength, .. } =
            Contrast::default();
        EmbeddingSection {
            pooling: vec![Pooling::default()],
            latents: 0,
            latent_heads: 8,
            attention: None,
            normalize: true,
            loss: TextLoss::default(),
            losses: Vec::new(),
            margin: 0.5,
            distance: Distance::default(),
            similarity,
            scale,
            directions,
            partition,
            hardness,
            hardness_strength,
            exclude_duplicates: true,
            false_negative_margin: None,
            matryoshka_dims: Vec::new(),
            matryoshka_weights: Vec::new(),
            matryoshka_per_step: None,
            negatives_from: Negatives::Global,
        }
    }
}

impl EmbeddingSection {
    /// What is compared.
    pub fn contrast(&self) -> Contrast {
        Contrast {
            similarity: self.similarity,
            scale: self.scale,
            directions: self.directions.clone(),
            partition: self.partition,
            hardness: self.hardness,
            hardness_strength: self.hardness_strength,
            false_negative_margin: self.false_negative_margin,
        }
    }

    /// What is learnt of a source.
    pub(crate) fn loss_of(&self, source: usize) -> TextLoss {
        self.losses.get(source).copied().unwrap_or(self.loss)
    }

    /// All that is learnt.
    pub(crate) fn all_losses(&self) -> Vec<TextLoss> {
        if self.losses.is_empty() { vec![self.loss] } else { self.losses.clone() }
    }

    /// Refuses losses of sources that do not stay apart.
    pub(crate) fn check_losses(&self, data: &DataConfig) -> Result<()> {
        let (losses, sources) = (self.losses.len(), data.source.len());
        if losses == 0 {
            return Ok(());
        }
        let key = "embedding.losses";
        require(key, losses == sources, losses, &format!("one for each of the {sources} `[[data.source]]`"))?;
        let apart = data.texts.batches != BatchesFrom::Mixed;
        let expected = "none with `data.texts.batches = \"mixed\"`: a step has one loss; use \"proportional\" or \"round_robin\"";
        require(key, apart, losses, expected)?;
        let evaluated = data.held_out > 0.0 || !data.eval.is_empty();
        let expected =
            "none with `data.eval` or `data.held_out`: an evaluation takes samples of all sources together";
        require(key, !evaluated, losses, expected)
    }

    pub(crate) fn check(&self) -> Result<()> {
        require("embedding.pooling", !self.pooling.is_empty(), "[]", "at least one")?;
        require("embedding.latent_heads", self.latent_heads > 0, self.latent_heads, "at least 1")?;
        let (dims, weights) = (self.matryoshka_dims.len(), self.matryoshka_weights.len());
        let expected = format!("none, or {dims} as `embedding.matryoshka_dims` has");
        require("embedding.matryoshka_weights", weights == 0 || weights == dims, weights, &expected)?;
        let count = self.matryoshka_per_step.unwrap_or(1);
        require("embedding.matryoshka_per_step", count > 0, count, "at least 1")?;
        let margin = self.margin.is_finite() && self.margin >= 0.0;
        require("embedding.margin", margin, self.margin, "a finite number of at least 0")?;
        self.contrast().check("embedding.")
    }

    /// Refuses sizes that vectors of this width do not have.
    pub(crate) fn check_width(&self, width: usize) -> Result<()> {
        let wrong = self.matryoshka_dims.iter().find(|&&dim| dim == 0 || dim > width);
        let expected = format!("from 1 to {width}, the width of an embedding");
        wrong.map_or(Ok(()), |dim| require("embedding.matryoshka_dims", false, dim, &expected))
    }
}
