//! All ops, one file each, and the table of them.

mod binary;
mod compare;
mod create;
mod dims;
mod functions;
mod gather;
mod in_place;
mod index;
mod index_dim;
mod join;
mod mask;
mod matmul;
mod pad;
mod range;
mod rearrange;
pub mod sample;
mod select;
mod shape;
mod slice;
mod subscript;
mod sum;
mod triangle;
mod unary;
mod window;

pub use join::{add_n, concat, stack};
pub use planaria_array::ops::{OwnValue, PadMode, Put, ScatterReduce};

use crate::error::{Error, Result};
use sample::{Draw, Sample};

/// One line of the table: a family of ops and random calls of it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The file it is written in.
    pub family: &'static str,
    /// A random call, for tests that go over the whole table.
    pub sample: fn(&mut Draw) -> Result<Sample>,
}

/// Every op. An op is tested for all layouts by standing here.
pub const TABLE: &[Entry] = &[
    Entry { family: "binary", sample: binary::sample },
    Entry { family: "compare", sample: compare::sample },
    Entry { family: "gather", sample: gather::sample },
    Entry { family: "index", sample: index::sample },
    Entry { family: "index_dim", sample: index_dim::sample },
    Entry { family: "join", sample: join::sample },
    Entry { family: "mask", sample: mask::sample },
    Entry { family: "matmul", sample: matmul::sample },
    Entry { family: "pad", sample: pad::sample },
    Entry { family: "rearrange", sample: rearrange::sample },
    Entry { family: "select", sample: select::sample },
    Entry { family: "shape", sample: shape::sample },
    Entry { family: "slice", sample: slice::sample },
    Entry { family: "sum", sample: sum::sample },
    Entry { family: "triangle", sample: triangle::sample },
    Entry { family: "unary", sample: unary::sample },
];

/// What a fused gradient kernel answers when its own gradient is asked for.
fn fused_only(op: &'static str) -> Error {
    Error::NotDifferentiable { op, reason: "it is a fused gradient; ask for a differentiable one" }
}
