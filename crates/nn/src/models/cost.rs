//! What parts of a model cost one rank: operations, bytes kept, bytes sent. Plans and the cut into stages go by it.

use super::architecture::Stage;
use crate::param::{Cut, ParamKind, ParamSpec};

/// The smallest part that has a cost of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// What stands before the blocks.
    Embed,
    /// One block.
    Block(usize),
    /// What stands after the blocks.
    Head,
}

impl Segment {
    /// The stage that is this segment and nothing else.
    pub fn stage(self) -> Stage {
        match self {
            Segment::Embed => Stage { layers: 0..0, embed: true, head: false },
            Segment::Block(i) => Stage { layers: i..i + 1, embed: false, head: false },
            Segment::Head => Stage { layers: 0..0, embed: false, head: true },
        }
    }
}

/// A micro-batch as one rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Tokens of a micro-batch on one rank: `ep` divides the batch.
    pub tokens: u64,
    /// Tokens of what lies between blocks: `tp` may divide the sequence.
    pub between: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Ranks that share each product.
    pub tp: u64,
    /// Bytes of an element that is computed with.
    pub size: u64,
}

/// What one segment costs one rank for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Operations of forward; each of the two halves of backward takes as many.
    pub operations: f64,
    /// Bytes of what is handed on, as it lies between blocks.
    pub output: u64,
    /// Bytes kept for backward, the input among them.
    pub kept: u64,
    /// Those of them that are computed again when recomputing is selective: what norms and gated activations give.
    pub cheap: u64,
    /// The most bytes that forward needs in all, where that is more than what is kept.
    pub forward: u64,
    /// Bytes that backward needs besides.
    pub backward: u64,
    /// Bytes that all blocks and micro-batches share, such as tables of positions.
    pub shared: u64,
    /// How often forward and backward bring hidden states together over `tp`.
    pub crossings: [u64; 2],
    /// Bytes of a hidden state that is whole in its sequence: what one crossing brings together.
    pub crossed: u64,
    /// Bytes of tokens sent to the ranks of their experts; as many come back, and backward does the same.
    pub routed: u64,
    /// Bytes of the keys and values of one token that stays in a cache.
    pub cached: u64,
}

/// An estimate from the parameters of a segment: two operations for each weight that a token meets; kept are the inputs
/// of products and norms. What lies between products, as in attention, is not in the table and not counted.
pub(super) fn from_table(table: &[ParamSpec], width: usize, segment: Segment, sizes: &Sizes) -> Cost {
    let state = sizes.tokens * width as u64 * sizes.size;
    let output = sizes.between * width as u64 * sizes.size;
    let (mut operations, mut kept, mut widest) = (0.0, 0, 0);
    for spec in table {
        let cut = if spec.tp == Cut::Whole { 1 } else { sizes.tp };
        let inner = spec.shape.last().map_or(0, |&n| n as u64).div_ceil(if spec.tp == Cut::Dim(1) {
            sizes.tp
        } else {
            1
        });
        match (segment, spec.kind) {
            (Segment::Embed, _) => operations += (sizes.tokens * width as u64) as f64,
            (_, ParamKind::Matrix | ParamKind::Embedding) => {
                operations += 2.0 * spec.shape.numel() as f64 * sizes.tokens as f64 / cut as f64;
                let input = sizes.tokens * inner * sizes.size;
                (kept, widest) = (kept + input, widest.max(input));
            }
            (_, ParamKind::Norm) => kept += output,
            (_, ParamKind::Bias) => {}
        }
    }
    let crossings = match segment {
        Segment::Embed => [1, 0],
        Segment::Block(_) => [2, 2],
        Segment::Head => [0, 1],
    };
    let (output, backward) = if segment == Segment::Head { (0, 0) } else { (output, widest + 2 * output) };
    let forward = kept;
    Cost {
        operations,
        output,
        kept,
        cheap: 0,
        forward,
        backward,
        shared: 0,
        crossings,
        crossed: state,
        routed: 0,
        cached: if matches!(segment, Segment::Block(_)) {
            2 * width as u64 * sizes.size / sizes.tp
        } else {
            0
        },
    }
}
