//! The decoder: token vectors, blocks, head. One stage of it may be all there is on a rank.

mod block;
mod config;
mod cost;
mod family;
mod moe;
mod rope;
mod table;
mod variations;

pub use block::DecoderBlock;
pub use config::{DecoderConfig, Experts};
pub(super) use config::{act, act_name, windows, windows_of};
pub use family::Family;
pub use moe::Moe;
pub(super) use rope::{read_scaling, write_scaling};
pub use variations::Variations;

use super::architecture::{Architecture, Effect, Setting, Stage};
use super::blocks::through;
use super::cost::{Cost, Segment, Sizes};
use super::head::{Head, States};
use super::network::{Activations, Cache, Decode, Network, Run};
use crate::error::{Error, Result};
use crate::layers::{Dropout, Embedding, Linear, Parts, RmsNorm, Rope, RopeScaling};
use crate::parallel::{Lanes, Parallel};
use crate::param::{Adaptable, Init, Module, Param, ParamSpec};
use planaria_array::Array;
use planaria_array::ops::{Keep, Norm, linears, look_up};
use planaria_tensor::Tensor;
use serde_json::Value;

/// `none`, or the window of each layer: `full 4096 full 4096`.
fn windows_text(windows: &[Option<usize>]) -> String {
    if windows.iter().all(Option::is_none) {
        return "none".into();
    }
    let text = |window: &Option<usize>| window.map_or("full".to_string(), |size| size.to_string());
    windows.iter().map(text).collect::<Vec<_>>().join(" ")
}

impl Architecture for DecoderConfig {
    fn model_type(&self) -> &str {
        self.family.model_type
    }

    fn to_value(&self) -> Value {
        DecoderConfig::to_value(self)
    }

    fn blocks(&self) -> usize {
        self.layers
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn positions(&self) -> usize {
        self.max_positions
    }

    fn parameters(&self, stage: &Stage) -> Result<Vec<ParamSpec>> {
        DecoderConfig::parameters(self, stage)
    }

    fn build(&self, stage: &Stage, parallel: Option<&Parallel>, init: &Init) -> Result<Box<dyn Network>> {
        Ok(Box::new(Decoder::new(self, stage.clone(), parallel, init)?))
    }

    fn reach(&self) -> usize {
        let most = self.max_positions;
        match self.rope_scaling {
            RopeScaling::Linear { factor } => most.max((most as f64 * factor) as usize),
            RopeScaling::Yarn { factor, original, .. } => most.max((original * factor) as usize),
            _ => most,
        }
    }

    fn check_parallel(&self, parallel: &Parallel) -> Result<()> {
        DecoderConfig::check_parallel(self, parallel)
    }

    fn cost(&self, segment: Segment, sizes: &Sizes) -> Result<Cost> {
        Ok(cost::of(self, segment, sizes))
    }

    fn settings(&self) -> Vec<Setting> {
        let experts = self.experts.clone().map(|e| Experts { aux_loss: 0.0, ..e });
        let function = [
            ("vocab_size", self.vocab_size.to_string()),
            ("hidden_size", self.hidden_size.to_string()),
            ("intermediate_size", self.intermediate_size.to_string()),
            ("num_hidden_layers", self.layers.to_string()),
            ("num_attention_heads", self.heads.to_string()),
            ("num_key_value_heads", self.kv_heads.to_string()),
            ("head_dim", self.head_dim.to_string()),
            ("hidden_act", format!("{:?}", self.act)),
            ("rms_norm_eps", self.rms_norm_eps.to_string()),
            ("rope_theta", self.rope_theta.to_string()),
            ("rope_scaling", format!("{:?}", self.rope_scaling)),
            ("tie_word_embeddings", self.tie_word_embeddings.to_string()),
            ("attention_bias", format!("{} {}", self.qkv_bias, self.output_bias)),
            ("mlp_bias", self.mlp_bias.to_string()),
            ("sliding_window", windows_text(&self.windows)),
            ("num_experts", experts.map_or("none".into(), |e| format!("{e:?}"))),
            ("variations", format!("{:?}", self.variations)),
        ];
        let training = [
            ("hidden_dropout", self.hidden_dropout.to_string()),
            ("max_position_embeddings", self.max_positions.to_string()),
            ("router_aux_loss_coef", self.experts.as_ref().map_or(0.0, |e| e.aux_loss).to_string()),
        ];
        let row =
            |effect| move |(key, value): (&str, String)| Setting { key: key.to_string(), value, effect };
        let function = function.into_iter().map(row(Effect::Function));
        function.chain(training.into_iter().map(row(Effect::Training))).collect()
    }
}

/// A decoder model, or one stage of it.
#[derive(Clone, Debug)]
pub struct Decoder {
    config: DecoderConfig,
    stage: Stage,
    lanes: Lanes,
    embed: Option<Embedding>,
    blocks: Vec<DecoderBlock>,
    norm: Option<RmsNorm>,
    head: Option<Linear>,
    rope: Rope,
}

impl Decoder {
    /// A stage with first values, on one rank or on the inner mesh of several.
    pub fn new(
        config: &DecoderConfig,
        stage: Stage,
        parallel: Option<&Parallel>,
        init: &Init,
    ) -> Result<Decoder> {
        parallel.map_or(Ok(()), |parallel| config.check_parallel(parallel))?;
        // A mesh of one rank is not a mesh.
        let parallel = parallel.filter(|parallel| parallel.mesh.size() > 1).map(Parallel::on_purpose);
        let parallel = parallel.as_ref();
        let parts = Parts::new(config.parameters(&stage)?, init, parallel)?;
        let headless = config.variations.headless;
        let model = if headless { parts.clone() } else { parts.at("model") };
        let lanes = Lanes::new(parallel);
        let rotated = config.variations.rotated.unwrap_or(config.head_dim);
        let rope = Rope::new(rotated, config.rope_theta, config.rope_scaling.clone())?;
        let windowed = match &config.variations.window_rope {
            Some((theta, scaling)) => Rope::new(config.head_dim, *theta, scaling.clone())?,
            None => rope.clone(),
        };
        let block = |layer: usize| {
            let parts = model.at(&format!("layers.{layer}"));
            let window = config.windows.get(layer).copied().flatten();
            DecoderBlock::new(&parts, config, layer, if window.is_some() { &windowed } else { &rope }, &lanes)
        };
        Ok(Decoder {
            embed: stage.embed.then(|| model.embedding("embed_tokens")).transpose()?,
            blocks: stage.layers.clone().map(block).collect::<Result<_>>()?,
            norm: stage.head.then(|| config.norm(&model, "norm")).transpose()?,
            head: (stage.head && !headless).then(|| parts.linear(config.head_name())).transpose()?,
            config: config.clone(),
            stage,
            lanes,
            rope,
        })
    }

    /// The rotations of blocks without a window.
    pub(in crate::models) fn rope(&self) -> &Rope {
        &self.rope
    }

    /// The configuration.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The ranks that share this stage; absent where there is one.
    pub fn parallel(&self) -> Option<&Parallel> {
        self.lanes.parallel()
    }

    /// Something that this stage, or the model, does not have.
    fn ends_before(&self, what: &'static str) -> Error {
        Error::Argument { what, message: format!("the stage of layers {:?} has none", self.stage.layers) }
    }

    /// [`Network::forward`] of tokens or of what a stage handed on.
    pub fn forward(&self, input: impl Into<Activations>, run: &Run<'_>) -> Result<Activations> {
        let Activations { hidden, routed } = input.into();
        let hidden = self.embedded(&hidden, run)?;
        self.onward(Activations { hidden, routed }, run)
    }

    /// What goes into the blocks: vectors of tokens on the first stage, what was handed on otherwise.
    pub(in crate::models) fn embedded(&self, hidden: &Tensor, run: &Run<'_>) -> Result<Tensor> {
        let Some(embed) = &self.embed else { return Ok(self.lanes.residual(hidden)?) };
        let mut x = self.lanes.out_of_rows(&embed.forward(&self.lanes.batch(hidden)?)?)?;
        if let Some(scale) = self.config.variations.embedding_scale {
            x = x.mul_scalar(scale)?;
        }
        let dropout = Dropout { p: self.config.hidden_dropout };
        Ok(dropout.forward(&x, run.train.map(|key| key.fold(u64::MAX)))?)
    }

    /// The blocks of this stage.
    pub(in crate::models) fn onward(&self, input: Activations, run: &Run<'_>) -> Result<Activations> {
        through(&self.blocks, &self.stage, input, &self.lanes, run)
    }
}

impl Network for Decoder {
    fn stage(&self) -> &Stage {
        &self.stage
    }

    fn forward(&self, input: Activations, run: &Run<'_>) -> Result<Activations> {
        Decoder::forward(self, input, run)
    }

    fn head(&self, hidden: &Tensor) -> Result<Head> {
        let Some(head) = &self.head else { return Err(self.ends_before("head")) };
        let Variations { logit_cap, valued, .. } = self.config.variations;
        // Values are not scores of tokens.
        let (cap, States { states, lanes }) = (logit_cap.filter(|_| !valued), self.states(hidden)?);
        let (states, weight) = head.widened(&states)?;
        Ok(Head { states, weight, lanes, cap })
    }

    fn states(&self, hidden: &Tensor) -> Result<States> {
        let Some(norm) = &self.norm else { return Err(self.ends_before("last norm")) };
        let states = self.lanes.into_columns(&norm.forward(hidden)?)?;
        Ok(States { states, lanes: self.lanes.clone() })
    }

    fn cache(&self, capacity: usize) -> Cache {
        Cache::new(self.blocks.len(), capacity)
    }

    fn decoding(&self) -> Option<&dyn Decode> {
        // Families that depart from the plain decoder run as in training.
        let long = matches!(self.config.rope_scaling, RopeScaling::Long { .. });
        let plain = self.config.variations == Variations::default() && !long;
        let whole = self.lanes.parallel().is_none() && self.stage.embed && self.stage.head;
        let mut adapted = false;
        self.visit(&mut |param| adapted |= !param.spec().role.is_of_model());
        (whole && plain && !adapted).then_some(self as &dyn Decode)
    }

    fn rows_apart(&self, positions: usize) -> Option<&Lanes> {
        let Variations { headless, valued, bidirectional, .. } = self.config.variations;
        // Where rotations change with the length of a sequence, rows of several lengths cannot share them.
        let alike = match &self.config.rope_scaling {
            RopeScaling::Long { short, long, original, .. } => short == long || positions <= *original,
            _ => true,
        };
        let whole = self.stage.embed && self.stage.head;
        (whole && alike && !headless && !valued && !bidirectional).then_some(&self.lanes)
    }

    /// Experts times the sum of each one's share of choices times its mean probability, over all sparse layers.
    fn own_loss(&self, last: &Activations, tokens: usize) -> Result<Option<Tensor>> {
        let experts = self.config.experts.as_ref().filter(|e| e.aux_loss != 0.0);
        let (Some(experts), Some(routed)) = (experts, &last.routed) else { return Ok(None) };
        let rows = (tokens * experts.layers.iter().filter(|&&sparse| sparse).count()) as f64;
        let shares = routed.select(0, 0)?.detach().mul(&routed.select(0, 1)?)?.sum(&[], Keep::No)?;
        let factor = experts.aux_loss * experts.count as f64 / (rows * rows);
        Ok(Some(shares.mul_scalar(factor)?.settled()?))
    }
}

impl Decode for Decoder {
    fn decode(&self, tokens: &Array, positions: &Array, cache: &Cache) -> Result<Array> {
        let (Some(embed), Some(norm), Some(head)) = (&self.embed, &self.norm, &self.head) else {
            let message = format!("the stage of layers {:?} is not a whole model", self.stage.layers);
            return Err(Error::Argument { what: "decode", message });
        };
        let mut x = look_up(embed.weight.value()?.local(), tokens)?;
        for (block, cache) in self.blocks.iter().zip(&cache.layers) {
            x = block.decode(&x, positions, cache)?;
        }
        let (weight, head) = (norm.weight.value()?, head.weights()?);
        let norm = Norm { weight: weight.local(), eps: norm.eps };
        let mut scores = linears(&x, Some(norm), &[head.layer()])?;
        Ok(scores.swap_remove(0))
    }
}

impl Module for Decoder {
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

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        self.embed.visit_layers(f);
        self.blocks.visit_layers(f);
        self.head.visit_layers(f);
    }
}
