//! One decoder block: attention and a feed-forward layer, each behind a norm and beside the residual.

use super::config::DecoderConfig;
use super::moe::Moe;
use crate::error::Result as BuildResult;
use crate::layers::{
    Attention, AttentionSizes, AttentionStep, Dropout, GatedMlp, LayerCache, Parts, RmsNorm, Rope, Scores,
};
use crate::models::blocks::Block;
use crate::parallel::Lanes;
use crate::param::{Adaptable, Module, Param};
use planaria_array::Array;
use planaria_array::ops::{Norm, rms_norm};
use planaria_array::random::Key;
use planaria_tensor::{Error, Result, Tensor};

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`; what is added may have a norm of its own. A clone shares the parameters.
#[derive(Clone, Debug)]
pub struct DecoderBlock {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    /// Of what attention gives and of what the feed-forward layer gives, in families that have them.
    post_norms: Option<[RmsNorm; 2]>,
    mlp: FeedForward,
    dropout: Dropout,
    lanes: Lanes,
}

/// What comes after attention.
#[derive(Clone, Debug)]
enum FeedForward {
    Dense(Box<GatedMlp>),
    Sparse(Box<Moe>),
}

impl DecoderBlock {
    /// The block of one layer; `parts` are those under `model.layers.N`.
    pub(super) fn new(
        parts: &Parts,
        config: &DecoderConfig,
        layer: usize,
        rope: &Rope,
        lanes: &Lanes,
    ) -> BuildResult<DecoderBlock> {
        let sizes = AttentionSizes {
            heads: config.heads,
            kv_heads: config.kv_heads,
            dim: config.head_dim,
            window: config.windows.get(layer).copied().flatten(),
            dropout: Dropout { p: config.attention_dropout },
            bidirectional: config.variations.bidirectional,
        };
        let mlp = match config.experts.as_ref().filter(|_| config.has_experts(layer)) {
            Some(experts) => {
                FeedForward::Sparse(Box::new(Moe::new(&parts.at("mlp"), experts, config.act, lanes.clone())?))
            }
            None => FeedForward::Dense(Box::new(GatedMlp::new(&parts.at("mlp"), config.act)?)),
        };
        let vary = &config.variations;
        let at = parts.at("self_attn");
        let mut attention = Attention::new(&at, sizes, rope.clone(), lanes.clone())?
            .with_scores(Scores { scale: vary.attention_scale, cap: vary.attention_cap });
        if vary.head_norms {
            attention = attention.with_norms(config.norm(&at, "q_norm")?, config.norm(&at, "k_norm")?);
        }
        let norm = |name: &str| config.norm(parts, name);
        let (mlp_norm, post_norms) = match vary.post_norms {
            false => (norm("post_attention_layernorm")?, None),
            true => {
                let post = [norm("post_attention_layernorm")?, norm("post_feedforward_layernorm")?];
                (norm("pre_feedforward_layernorm")?, Some(post))
            }
        };
        Ok(DecoderBlock {
            attention_norm: norm("input_layernorm")?,
            attention,
            mlp_norm,
            post_norms,
            mlp,
            dropout: Dropout { p: config.hidden_dropout },
            lanes: lanes.clone(),
        })
    }
}

impl DecoderBlock {
    /// The plain block for one new token of each row, `[rows, width]`, on one rank and without history.
    pub(super) fn decode(&self, x: &Array, positions: &Array, cache: &LayerCache) -> Result<Array> {
        let norm = |of: &RmsNorm| Ok::<_, Error>((of.weight.value()?.local().clone(), of.eps));
        let (weight, eps) = norm(&self.attention_norm)?;
        let x = self.attention.decode(x, Norm { weight: &weight, eps }, positions, cache)?;
        let (weight, eps) = norm(&self.mlp_norm)?;
        match &self.mlp {
            FeedForward::Dense(mlp) => mlp.decode(&x, Norm { weight: &weight, eps }),
            FeedForward::Sparse(moe) => {
                let y = rms_norm(&x, weight.shape(), Some(&weight), eps)?.y;
                let (y, _) = moe.forward(&Tensor::new(y.unsqueeze(1)?))?;
                Ok(x.add(&y.local().reshape(x.shape())?)?)
            }
        }
    }
}

impl Block for DecoderBlock {
    fn forward(
        &self,
        x: &Tensor,
        step: &AttentionStep,
        cache: Option<&LayerCache>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let key = |part: u64| step.dropout.map(|key: Key| key.fold(part));
        let inner = AttentionStep { dropout: key(2), ..step.clone() };
        let y = self.attention.forward(&self.attention_norm.forward(x)?, &inner, cache)?;
        let y = self.posted(0, y)?;
        let (x, y) = match self.dropout.drawn(key(0)) {
            Some(_) => {
                let x = self.dropout.add_to(x, &y, key(0))?;
                let y = self.mlp_norm.forward(&x)?;
                (x, y)
            }
            None => self.mlp_norm.forward_sum(x, &y)?,
        };

        let y = self.lanes.into_columns(&y)?;
        let (y, routed) = match &self.mlp {
            FeedForward::Dense(mlp) => (mlp.forward(&y)?, None),
            FeedForward::Sparse(moe) => {
                let (y, routed) = moe.forward(&y)?;
                (y, Some(routed))
            }
        };
        let y = self.posted(1, self.lanes.out_of_rows(&y)?)?;
        Ok((self.dropout.add_to(&x, &y, key(1))?, routed))
    }
}

impl DecoderBlock {
    /// What a layer gives, normed where the family does that.
    fn posted(&self, layer: usize, y: Tensor) -> Result<Tensor> {
        match &self.post_norms {
            Some(norms) => norms[layer].forward(&y),
            None => Ok(y),
        }
    }
}

impl Module for DecoderBlock {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.attention_norm.visit(f);
        self.attention.visit(f);
        self.mlp_norm.visit(f);
        self.post_norms.iter().flatten().for_each(|norm| norm.visit(f));
        match &self.mlp {
            FeedForward::Dense(mlp) => mlp.visit(f),
            FeedForward::Sparse(moe) => moe.visit(f),
        }
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.attention_norm.visit_mut(f);
        self.attention.visit_mut(f);
        self.mlp_norm.visit_mut(f);
        self.post_norms.iter_mut().flatten().for_each(|norm| norm.visit_mut(f));
        match &mut self.mlp {
            FeedForward::Dense(mlp) => mlp.visit_mut(f),
            FeedForward::Sparse(moe) => moe.visit_mut(f),
        }
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        self.attention.visit_layers(f);
        match &mut self.mlp {
            FeedForward::Dense(mlp) => mlp.visit_layers(f),
            FeedForward::Sparse(moe) => moe.visit_layers(f),
        }
    }
}
