//! All ops, one file each, and the table of them.

mod along;
mod attention;
mod binary;
mod compare;
mod compose;
mod conv;
mod copy;
mod create;
mod cross_entropy;
mod dims;
mod dropout;
mod einsum;
mod embedding;
mod extreme;
mod functions;
mod gather;
mod glu;
mod in_place;
mod index;
mod index_dim;
mod join;
mod linear;
mod linear_cross_entropy;
mod mask;
mod matmul;
mod moe;
mod moments;
mod named;
mod norm;
mod optim;
mod order;
mod pad;
mod range;
mod rearrange;
mod reduce;
mod rotary;
pub mod sample;
mod scan;
mod select;
mod shape;
mod slice;
mod softmax;
mod subscript;
mod sum;
mod triangle;
mod unary;
mod window;

pub use attention::{AttentionOptions, Documents, attention};
pub use conv::{PoolCount, Windows, avg_pool, conv, conv_transpose, max_pool};
pub(crate) use create::settled_place;
pub use cross_entropy::{CrossEntropyOptions, cross_entropy, label_smooth, soft_cross_entropy};
pub use dropout::{dropout, dropout_add, dropout_add_with, dropout_with};
pub use einsum::einsum;
pub use embedding::embedding;
pub use glu::{glu, glu_packed, swiglu, swiglu_packed};
pub use join::{add_n, beside, concat, stack};
pub use linear::linear;
pub use linear_cross_entropy::{
    IGNORED, linear_cross_entropy, linear_cross_entropy_by, linear_cross_entropy_counting, rows_at_once, wide,
};
pub use moe::{Groups, Routing, moe_combine, moe_dispatch, moe_group, moe_route};
pub use named::named;
pub use norm::{
    BatchNorm, RunningStats, add_rms_norm, batch_norm, group_norm, instance_norm, layer_norm, rms_norm,
    sync_batch_norm,
};
pub use optim::{
    AdamWTensors, SgdTensors, adamw_step, check_finite_and_unscale, clip_by_global_norm, sgd_step,
    squared_norm,
};
pub use order::Unique;
pub use planaria_array::ops::{OwnValue, PadMode, Put, ScatterReduce};
pub use rotary::{RotaryOptions, RotaryPositions, rotary};

use crate::attributes::Attributes;
use crate::error::{Error, Result};
use named::Found;
use sample::{Draw, Sample};

/// One line of the table: a family of ops and random calls of it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The file it is written in.
    pub family: &'static str,
    /// A random call, for tests that go over the whole table.
    pub sample: fn(&mut Draw) -> Result<Sample>,
    /// The op of a name and attributes, if it is one of the family.
    build: fn(&str, &Attributes) -> Found,
}

/// Every op. An op is tested for all layouts by standing here.
pub const TABLE: &[Entry] = &[
    Entry { family: "along", sample: along::sample, build: along::build },
    Entry { family: "attention", sample: attention::sample, build: attention::build },
    Entry { family: "binary", sample: binary::sample, build: binary::build },
    Entry { family: "compare", sample: compare::sample, build: compare::build },
    Entry { family: "conv", sample: conv::sample, build: conv::build },
    Entry { family: "copy", sample: copy::sample, build: copy::build },
    Entry { family: "cross_entropy", sample: cross_entropy::sample, build: cross_entropy::build },
    Entry { family: "dropout", sample: dropout::sample, build: dropout::build },
    Entry { family: "einsum", sample: einsum::sample, build: einsum::build },
    Entry { family: "embedding", sample: embedding::sample, build: embedding::build },
    Entry { family: "extreme", sample: extreme::sample, build: extreme::build },
    Entry { family: "gather", sample: gather::sample, build: gather::build },
    Entry { family: "glu", sample: glu::sample, build: glu::build },
    Entry { family: "index", sample: index::sample, build: index::build },
    Entry { family: "index_dim", sample: index_dim::sample, build: index_dim::build },
    Entry { family: "join", sample: join::sample, build: join::build },
    Entry { family: "linear", sample: linear::sample, build: linear::build },
    Entry {
        family: "linear_cross_entropy",
        sample: linear_cross_entropy::sample,
        build: linear_cross_entropy::build,
    },
    Entry { family: "mask", sample: mask::sample, build: mask::build },
    Entry { family: "matmul", sample: matmul::sample, build: matmul::build },
    Entry { family: "moe", sample: moe::sample, build: named::none },
    Entry { family: "moments", sample: moments::sample, build: moments::build },
    Entry { family: "norm/batch", sample: norm::batch::sample, build: norm::batch::build },
    Entry { family: "norm/group", sample: norm::group::sample, build: norm::group::build },
    Entry { family: "norm/layer", sample: norm::layer::sample, build: norm::layer::build },
    Entry { family: "order", sample: order::sample, build: order::build },
    Entry { family: "pad", sample: pad::sample, build: pad::build },
    Entry { family: "rearrange", sample: rearrange::sample, build: rearrange::build },
    Entry { family: "reduce", sample: reduce::sample, build: reduce::build },
    Entry { family: "rotary", sample: rotary::sample, build: rotary::build },
    Entry { family: "scan", sample: scan::sample, build: scan::build },
    Entry { family: "select", sample: select::sample, build: select::build },
    Entry { family: "shape", sample: shape::sample, build: shape::build },
    Entry { family: "slice", sample: slice::sample, build: slice::build },
    Entry { family: "softmax", sample: softmax::sample, build: softmax::build },
    Entry { family: "sum", sample: sum::sample, build: sum::build },
    Entry { family: "triangle", sample: triangle::sample, build: triangle::build },
    Entry { family: "unary", sample: unary::sample, build: unary::build },
];

/// What a fused gradient kernel answers when its own gradient is asked for.
fn fused_only(op: &'static str) -> Error {
    Error::NotDifferentiable { op, reason: "it is a fused gradient; ask for a differentiable one" }
}
