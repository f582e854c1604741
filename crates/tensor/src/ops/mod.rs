//! All ops, one file each, and the table of them.

mod along;
mod binary;
mod compare;
mod compose;
mod create;
mod dims;
mod extreme;
mod matmul;
mod moments;
mod order;
mod reduce;
pub mod sample;
mod scan;
mod select;
mod shape;
mod sum;
mod unary;

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
    Entry { family: "along", sample: along::sample },
    Entry { family: "binary", sample: binary::sample },
    Entry { family: "compare", sample: compare::sample },
    Entry { family: "extreme", sample: extreme::sample },
    Entry { family: "matmul", sample: matmul::sample },
    Entry { family: "moments", sample: moments::sample },
    Entry { family: "order", sample: order::sample },
    Entry { family: "reduce", sample: reduce::sample },
    Entry { family: "scan", sample: scan::sample },
    Entry { family: "select", sample: select::sample },
    Entry { family: "shape", sample: shape::sample },
    Entry { family: "sum", sample: sum::sample },
    Entry { family: "unary", sample: unary::sample },
];

/// What a fused gradient kernel answers when its own gradient is asked for.
fn fused_only(op: &'static str) -> Error {
    Error::NotDifferentiable { op, reason: "it is a fused gradient; ask for a differentiable one" }
}
