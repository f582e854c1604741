//! What can be wrong with an operation on tensors, with the tensors' layouts and the op.

use planaria_layout::{Layout, Rank, Shape};
use thiserror::Error;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A refused operation. It is the same on every rank, because it follows from what all ranks know, or names the rank
/// that knows more.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The local kernel or a shape rule refused.
    #[error(transparent)]
    Array(#[from] planaria_array::Error),
    /// The layout algebra refused.
    #[error(transparent)]
    Layout(#[from] planaria_layout::Error),
    /// A peer was lost, did not come, or disagreed.
    #[error(transparent)]
    Comm(#[from] planaria_comm::Error),
    /// Inputs of one op on two meshes.
    #[error("{op}: inputs lie on two meshes, `{first}` and `{second}`; reshard one of them first")]
    Meshes {
        /// The op.
        op: &'static str,
        /// Mesh of the first placed input.
        first: String,
        /// A mesh that differs.
        second: String,
    },
    /// The value of a tensor whose contributions are not yet reduced.
    #[error("{what}: the value of `{layout}` is still pending; reshard it to a layout without P first")]
    Pending {
        /// What was asked for.
        what: &'static str,
        /// The layout.
        layout: Box<Layout>,
    },
    /// Local elements that do not have the extents the layout gives this rank.
    #[error("rank {rank} has {found} of `{layout}`, but its piece is {expected:?}")]
    Piece {
        /// The rank.
        rank: Rank,
        /// Shape of the local array.
        found: Shape,
        /// Extents by the layout.
        expected: Vec<usize>,
        /// The layout.
        layout: Box<Layout>,
    },
    /// A kernel refused values that only some ranks have; all others hear the same words.
    #[error("{op} on rank {rank}, inputs {inputs}: {source}")]
    Values {
        /// The op.
        op: &'static str,
        /// The rank that has the values.
        rank: Rank,
        /// The layouts of its inputs.
        inputs: String,
        /// What is wrong with them.
        source: Box<Error>,
    },
    /// An implicit reshard where strict mode forbids it.
    #[error(
        "{op}: input {input} would be resharded from `{from}` to `{to}` ({bytes} bytes sent per rank), which strict mode forbids; reshard it explicitly"
    )]
    Strict {
        /// The op.
        op: &'static str,
        /// Which input.
        input: usize,
        /// Its layout.
        from: Box<Layout>,
        /// What the op needs.
        to: Box<Layout>,
        /// Bytes that would leave each rank.
        bytes: u64,
    },
    /// Backward through history that an earlier backward has freed.
    #[error("{op}: its saved values were freed by an earlier backward; ask that one to keep its history")]
    Freed {
        /// The op.
        op: &'static str,
    },
    /// A saved value was overwritten before backward used it.
    #[error(
        "{op}: saved {what} was written to after it was saved (version {saved}, now {now}); write to a copy instead"
    )]
    Stale {
        /// The op.
        op: &'static str,
        /// Which value.
        what: String,
        /// Version when saved.
        saved: u64,
        /// Version now.
        now: u64,
    },
    /// Backward from, or gradients for, a tensor without history.
    #[error("{what} has no gradient history; set `requires_grad` on what it is computed from")]
    NoHistory {
        /// What was asked for.
        what: String,
    },
    /// Backward without a gradient from a tensor of several elements.
    #[error(
        "backward from shape {shape} needs a gradient of that shape; only a single element has 1 as default"
    )]
    NotScalar {
        /// The shape.
        shape: Shape,
    },
    /// A gradient whose shape or dtype is not that of its tensor.
    #[error("gradient is {found}, but the tensor is {expected}")]
    GradientKind {
        /// Shape and dtype of the gradient.
        found: String,
        /// Shape and dtype of the tensor.
        expected: String,
    },
    /// Writing in place into a leaf whose gradient is wanted.
    #[error(
        "{op}: cannot write in place into a leaf that requires a gradient; write under `no_grad` or to a copy"
    )]
    LeafWrite {
        /// The op.
        op: &'static str,
    },
    /// A kernel whose derivative does not exist or is not available in this form.
    #[error("{op}: {reason}")]
    NotDifferentiable {
        /// The op.
        op: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// An argument outside what the op takes.
    #[error("{op}: {message}")]
    Argument {
        /// The op.
        op: &'static str,
        /// What is wrong, with the value.
        message: String,
    },
    /// An invariant of this crate does not hold.
    #[error("internal error: {0}; please report it")]
    Bug(&'static str),
}
