//! What the layers of a decoder cost: operations, and what they keep for backward.

use super::config::DecoderConfig;
use crate::models::cost::{Cost, Segment, Sizes};
use planaria_tensor::ops::rows_at_once;

pub(super) fn of(config: &DecoderConfig, segment: Segment, sizes: &Sizes) -> Cost {
    let layers = Layers { config, sizes };
    let crossed = sizes.tokens * config.hidden_size as u64 * sizes.size;
    let common = Cost { output: layers.hidden(), crossed, ..Cost::default() };
    match segment {
        Segment::Embed => {
            // A row is copied for each token.
            let operations = (sizes.tokens * config.hidden_size as u64) as f64 / sizes.tp as f64;
            Cost { operations, crossings: [1, 0], ..common }
        }
        Segment::Block(layer) => layers.block(layer, common),
        Segment::Head => layers.head(common),
    }
}

struct Layers<'a> {
    config: &'a DecoderConfig,
    sizes: &'a Sizes,
}

impl Layers<'_> {
    /// A hidden state between blocks.
    fn hidden(&self) -> u64 {
        self.sizes.between * self.config.hidden_size as u64 * self.sizes.size
    }

    fn block(&self, layer: usize, common: Cost) -> Cost {
        let (attention, feed_forward) = (self.attention(), self.feed_forward(layer));
        let experts = self.config.experts.as_ref().filter(|_| self.config.has_experts(layer));
        let kept = attention + feed_forward;
        Cost {
            operations: self.operations(layer) * self.sizes.tokens as f64 / self.sizes.tp as f64,
            kept,
            cheap: self.cheap(layer),
            forward: kept,
            // Gradients of its widest values, of its input and of its result.
            backward: feed_forward.max(attention / 2) / 3 * 2 + 2 * self.hidden(),
            // The tables of the rotary positions.
            shared: self.sizes.sequence * self.config.head_dim as u64 * 4,
            crossings: [2, 2],
            routed: experts.map_or(0, |e| e.choices as u64 * common.crossed),
            cached: 2
                * (self.config.kv_heads as u64).div_ceil(self.sizes.tp)
                * self.config.head_dim as u64
                * self.sizes.size,
            ..common
        }
    }

    /// Operations of one block per token: two for each weight a token meets, and attention, of which causality leaves half.
    fn operations(&self, layer: usize) -> f64 {
        let config = self.config;
        let (width, heads, dim) = (config.hidden_size, config.heads, config.head_dim);
        let projections = width * dim * (2 * heads + 2 * config.kv_heads);
        let experts = config.experts.as_ref().filter(|_| config.has_experts(layer));
        let inner = match experts {
            Some(e) => e.choices * e.intermediate_size + e.shared_intermediate_size,
            None => config.intermediate_size,
        };
        let router = experts.map_or(0, |e| width * e.count);
        let seen = self.sizes.sequence as f64 / 2.0;
        2.0 * (projections + 3 * width * inner + router) as f64 + 4.0 * seen * (heads * dim) as f64
    }

    /// What attention and the norms of a block keep, the block's input among it.
    fn attention(&self) -> u64 {
        let (config, sizes) = (self.config, self.sizes);
        let (heads, dim) = ((config.heads as u64).div_ceil(sizes.tp), config.head_dim as u64);
        let groups = (config.kv_heads as u64).div_ceil(sizes.tp);
        // Inputs of two norms lie between blocks, their results are whole in their sequence.
        let norms = 2 * self.hidden() + 2 * sizes.tokens * config.hidden_size as u64 * sizes.size;
        // Queries, the result, and the result in the order of the product; keys and values.
        let inner = sizes.tokens * (3 * heads + 2 * groups) * dim * sizes.size;
        // In f32: one number per row of each norm, and per row and head of attention.
        norms + inner + 4 * (2 * sizes.between + sizes.tokens * heads)
    }

    /// What norms and gated activations of a block give. Between ranks of `tp` the results of norms are handed over, and kept.
    fn cheap(&self, layer: usize) -> u64 {
        let (config, sizes) = (self.config, self.sizes);
        let norms = if sizes.tp == 1 { 2 * config.hidden_size as u64 } else { 0 };
        let inner = match config.experts.as_ref().filter(|_| config.has_experts(layer)) {
            Some(experts) => experts.shared_intermediate_size + experts.choices * experts.intermediate_size,
            None => config.intermediate_size,
        };
        sizes.tokens * (norms + (inner as u64).div_ceil(sizes.tp)) * sizes.size
    }

    /// What the feed-forward layer of a block keeps.
    fn feed_forward(&self, layer: usize) -> u64 {
        let (config, sizes) = (self.config, self.sizes);
        let Some(experts) = config.experts.as_ref().filter(|_| config.has_experts(layer)) else {
            return sizes.tokens * 3 * (config.intermediate_size as u64).div_ceil(sizes.tp) * sizes.size;
        };
        let (width, choices) = (config.hidden_size as u64, experts.choices as u64);
        let inner = (experts.intermediate_size as u64).div_ceil(sizes.tp);
        let shared = (experts.shared_intermediate_size as u64).div_ceil(sizes.tp);
        // Each token has as many rows in the experts' buffers as it chooses experts: into them, inside, and out again.
        let rows = choices * (2 * width + 3 * inner + 1);
        // The expert that all share, its result, and the gate on it.
        let every = if shared == 0 { 0 } else { 3 * shared + width + 1 };
        // Probabilities and weights that are made to add up to 1 are in f32.
        let routing = 4 * experts.count as u64 + if experts.normalize { 4 * (choices + 1) } else { 0 };
        // Which experts were chosen, and four orders of rows.
        let orders = 5 * 8 * choices;
        sizes.tokens * ((rows + every) * sizes.size + routing + orders)
    }

    /// Norm, head and loss. The loss computes its gradients with the scores at hand, some rows at a time: those of the
    /// hidden states and of the weight are kept, scores are not.
    fn head(&self, common: Cost) -> Cost {
        let (config, Sizes { tokens, between, tp, size, .. }) = (self.config, *self.sizes);
        if config.variations.headless {
            let kept = 2 * self.hidden() + 4 * between;
            return Cost { output: 0, kept, forward: kept, crossings: [0, 1], ..common };
        }
        let (width, scores) = (config.hidden_size as u64, config.head_size() as u64);
        let window = scores.div_ceil(tp);
        let states = tokens * width * size;
        let kept = self.hidden() + 4 * between + states + window * width * size;
        let rows = (rows_at_once(window as usize, 4) as u64).min(tokens);
        let narrow = if size < 4 { rows * window * size } else { 0 };
        // Normed states, scores and their gradient, the weight's gradient in f32 and what is added to it.
        let besides = self.hidden() + 2 * states + 2 * rows * window * 4 + narrow + 2 * window * width * 4;
        let operations = 2.0 * (width * scores) as f64 * tokens as f64 / tp as f64;
        Cost { operations, output: 0, kept, forward: besides.max(kept), crossings: [0, 1], ..common }
    }
}
