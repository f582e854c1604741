//! Bytes and operations of a model part for one micro-batch: what the layers of `nn` keep for backward.

use crate::config::{Config, Recompute};
use crate::pipeline::StageBytes;
use planaria_layout::DType;
use planaria_nn::models::{Config as ModelConfig, Stage};

/// Bytes of scores that the loss has at once.
const SCORES: u64 = 32 << 20;

/// Rows of scores that the loss has at once at least.
const LEAST_ROWS: u64 = 256;

/// Sizes on one rank.
pub(super) struct Shapes {
    /// Tokens of a micro-batch on one rank: `ep` divides the batch.
    tokens: u64,
    /// Tokens of what lies between blocks: `tp` may divide the sequence.
    between: u64,
    sequence: u64,
    tp: u64,
    /// Bytes of an element.
    size: u64,
    /// Bytes of the tables of rotary positions.
    rotary: u64,
}

impl Shapes {
    pub(super) fn new(
        config: &Config,
        model: &ModelConfig,
        dtype: DType,
        (ep, tp): (usize, usize),
        micro_batch: u64,
    ) -> Shapes {
        let sequence = config.data.sequence as u64;
        let tokens = micro_batch * sequence / ep as u64;
        let cut = if config.train.sequence_parallel { tp as u64 } else { 1 };
        let size = super::computed_size(dtype);
        let rotary = sequence * model.head_dim as u64 * 4;
        Shapes { tokens, between: tokens.div_ceil(cut), sequence, tp: tp as u64, size, rotary }
    }

    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    pub(super) fn tp(&self) -> u64 {
        self.tp
    }

    /// What all micro-batches share: the tables of the rotary positions.
    pub(super) fn shared(&self) -> u64 {
        self.rotary
    }

    /// A hidden state between blocks.
    fn hidden(&self, model: &ModelConfig) -> u64 {
        self.between * model.hidden_size as u64 * self.size
    }

    /// What attention and the norms of a block keep, the block's input among it.
    fn attention(&self, model: &ModelConfig) -> u64 {
        let (heads, dim) = ((model.heads as u64).div_ceil(self.tp), model.head_dim as u64);
        let groups = (model.kv_heads as u64).div_ceil(self.tp);
        // Inputs of two norms lie between blocks, their results are whole in their sequence.
        let norms = 2 * self.hidden(model) + 2 * self.tokens * model.hidden_size as u64 * self.size;
        // Queries, the result, and the result in the order of the product; keys and values.
        let inner = self.tokens * (3 * heads + 2 * groups) * dim * self.size;
        // In f32: one number per row of each norm, and per row and head of attention.
        norms + inner + 4 * (2 * self.between + self.tokens * heads)
    }

    /// What the feed-forward layer of a block keeps.
    fn feed_forward(&self, model: &ModelConfig, layer: usize) -> u64 {
        let sparse = model.experts.as_ref().filter(|_| model.has_experts(layer));
        let Some(experts) = sparse else {
            return self.tokens * 3 * (model.intermediate_size as u64).div_ceil(self.tp) * self.size;
        };
        let (width, choices) = (model.hidden_size as u64, experts.choices as u64);
        let inner = (experts.intermediate_size as u64).div_ceil(self.tp);
        let shared = (experts.shared_intermediate_size as u64).div_ceil(self.tp);
        // Each token has as many rows in the experts' buffers as it chooses experts: into them, inside, and out again.
        let rows = choices * (2 * width + 3 * inner + 1);
        // The expert that all share, its result, and the gate on it.
        let every = 3 * shared + width + 1;
        // Probabilities and weights that are made to add up to 1 are in f32.
        let routing = 4 * experts.count as u64 + if experts.normalize { 4 * (choices + 1) } else { 0 };
        // Which experts were chosen, and four orders of rows.
        let orders = 5 * 8 * choices;
        self.tokens * ((rows + every) * self.size + routing + orders)
    }

    /// What one block keeps when it is not computed again.
    fn block(&self, model: &ModelConfig, layer: usize) -> u64 {
        self.attention(model) + self.feed_forward(model, layer)
    }

    /// What norm, head and loss keep, and the most that their forward needs in all. The loss computes its gradients with the
    /// scores at hand, some rows at a time: those of the hidden states and of the weight are kept, scores are not.
    fn head(&self, model: &ModelConfig) -> (u64, u64) {
        let (width, window) = (model.hidden_size as u64, (model.vocab_size as u64).div_ceil(self.tp));
        let states = self.tokens * width * self.size;
        let kept = self.hidden(model) + 4 * self.between + states + window * width * self.size;
        let rows = (SCORES / (4 * window).max(1)).max(LEAST_ROWS).min(self.tokens);
        let narrow = if self.size < 4 { rows * window * self.size } else { 0 };
        // Normed states, scores and their gradient, the weight's gradient in f32 and what is added to it.
        let besides =
            self.hidden(model) + 2 * states + 2 * rows * window * 4 + narrow + 2 * window * width * 4;
        (kept, besides.max(kept))
    }

    /// Bytes of one part for one micro-batch.
    pub(super) fn bytes(&self, model: &ModelConfig, part: &Stage, config: &Config) -> StageBytes {
        let hidden = self.hidden(model);
        let (mut saved, mut again) = (0, 0);
        for layer in part.layers.clone() {
            let whole = self.block(model, layer);
            if is_again(config, layer) {
                saved += hidden;
                again = again.max(whole - hidden);
            } else {
                saved += whole;
            }
        }
        let (kept, besides) = if part.head { self.head(model) } else { (0, 0) };
        let last = part.layers.clone().last().unwrap_or(0);
        // Gradients inside a block: of its widest values, of its input and of its result.
        let inside = self.feed_forward(model, last).max(self.attention(model) / 2) / 3 * 2 + 2 * hidden;
        let input = if part.embed { 0 } else { hidden };
        // What the head keeps is gone when backward reaches the blocks.
        let peak = (again + inside).saturating_sub(kept).max(kept);
        StageBytes {
            input,
            output: if part.head { 0 } else { hidden },
            input_grad: input,
            output_grad: if part.head { 0 } else { hidden },
            saved: saved + kept,
            saved_input: if part.layers.is_empty() { 0 } else { input },
            saved_output: 0,
            held: (saved + kept) / 2,
            forward_peak: (saved + besides).max(again),
            backward_peak: peak,
            input_peak: peak,
            weight_peak: inside,
            ..StageBytes::NONE
        }
    }

    /// Operations of forward of one part on one rank for one micro-batch. Each part of backward takes as many.
    pub(super) fn work(&self, model: &ModelConfig, part: &Stage) -> f64 {
        let blocks: f64 = part.layers.clone().map(|layer| self.block_work(model, layer)).sum();
        let head = if part.head { 2.0 * (model.hidden_size * model.vocab_size) as f64 } else { 0.0 };
        (blocks + head) * self.tokens as f64 / self.tp as f64
    }

    /// Operations of the blocks that are computed again.
    pub(super) fn work_again(&self, model: &ModelConfig, part: &Stage, config: &Config) -> f64 {
        recomputed(config, part).map(|layer| self.block_work(model, layer)).sum::<f64>() * self.tokens as f64
            / self.tp as f64
    }

    /// Operations of one block per token: two for each weight a token meets, and attention, of which causality leaves half.
    fn block_work(&self, model: &ModelConfig, layer: usize) -> f64 {
        let (width, heads, dim) = (model.hidden_size, model.heads, model.head_dim);
        let projections = width * dim * (2 * heads + 2 * model.kv_heads);
        let experts = model.experts.as_ref().filter(|_| model.has_experts(layer));
        let inner = match experts {
            Some(e) => e.choices * e.intermediate_size + e.shared_intermediate_size,
            None => model.intermediate_size,
        };
        let router = experts.map_or(0, |e| width * e.count);
        let seen = self.sequence as f64 / 2.0;
        2.0 * (projections + 3 * width * inner + router) as f64 + 4.0 * seen * (heads * dim) as f64
    }
}

fn is_again(config: &Config, layer: usize) -> bool {
    match config.train.recompute {
        Recompute::None => false,
        Recompute::Full => true,
        Recompute::Blocks => config.train.recompute_blocks.contains(&layer),
    }
}

/// The blocks of a part that are computed again in backward.
pub(super) fn recomputed<'a>(config: &'a Config, part: &Stage) -> impl Iterator<Item = usize> + use<'a> {
    part.layers.clone().filter(|&layer| is_again(config, layer))
}
