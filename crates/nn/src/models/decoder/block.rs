//! One decoder block: attention and a feed-forward layer, each behind a norm and beside the residual.

use super::config::DecoderConfig;
use super::moe::Moe;
use crate::error::Result as BuildResult;
use crate::layers::{
    Attention, AttentionSizes, AttentionStep, Dropout, GatedMlp, LayerCache, Parts, RmsNorm, Rope,
};
use crate::models::blocks::Block;
use crate::parallel::Lanes;
use crate::param::{Module, Param};
use planaria_array::random::Key;
use planaria_tensor::{Result, Tensor};

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`. A clone shares the parameters.
#[derive(Clone, Debug)]
pub struct DecoderBlock {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
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
        };
        let mlp = match config.experts.as_ref().filter(|_| config.has_experts(layer)) {
            Some(experts) => {
                FeedForward::Sparse(Box::new(Moe::new(&parts.at("mlp"), experts, config.act, lanes.clone())?))
            }
            None => FeedForward::Dense(Box::new(GatedMlp::new(&parts.at("mlp"), config.act)?)),
        };
        Ok(DecoderBlock {
            attention_norm: parts.rms_norm("input_layernorm", config.rms_norm_eps)?,
            attention: Attention::new(&parts.at("self_attn"), sizes, rope.clone(), lanes.clone())?,
            mlp_norm: parts.rms_norm("post_attention_layernorm", config.rms_norm_eps)?,
            mlp,
            dropout: Dropout { p: config.hidden_dropout },
            lanes: lanes.clone(),
        })
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
        let x = self.dropout.add_to(x, &y, key(0))?;

        let y = self.lanes.into_columns(&self.mlp_norm.forward(&x)?)?;
        let (y, routed) = match &self.mlp {
            FeedForward::Dense(mlp) => (mlp.forward(&y)?, None),
            FeedForward::Sparse(moe) => {
                let (y, routed) = moe.forward(&y)?;
                (y, Some(routed))
            }
        };
        let x = self.dropout.add_to(&x, &self.lanes.out_of_rows(&y)?, key(1))?;
        Ok((x, routed))
    }
}

impl Module for DecoderBlock {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.attention_norm.visit(f);
        self.attention.visit(f);
        self.mlp_norm.visit(f);
        match &self.mlp {
            FeedForward::Dense(mlp) => mlp.visit(f),
            FeedForward::Sparse(moe) => moe.visit(f),
        }
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.attention_norm.visit_mut(f);
        self.attention.visit_mut(f);
        self.mlp_norm.visit_mut(f);
        match &mut self.mlp {
            FeedForward::Dense(mlp) => mlp.visit_mut(f),
            FeedForward::Sparse(moe) => moe.visit_mut(f),
        }
    }
}
