//! What can be wrong with an array operation, always with the values that made it so.

use planaria_layout::{DType, Shape};
use thiserror::Error;

use crate::device::Device;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The family of an error, named after the Python exception users of NumPy and PyTorch know for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// An index expression that does not fit its array.
    Index,
    /// A value outside what the operation accepts.
    Value,
    /// Shapes, dtypes or devices that do not go together.
    Runtime,
}

/// A refused input. Nothing was written and nothing large was allocated.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A shape or text that the layout algebra refuses.
    #[error(transparent)]
    Layout(#[from] planaria_layout::Error),
    /// A dim number outside `-ndim..ndim`.
    #[error("{op}: dim {dim} is out of range for {ndim} dims; use {low}..={high}", low = -(*ndim as i64).max(1), high = (*ndim as i64).max(1) - 1)]
    DimOutOfRange {
        /// The operation.
        op: &'static str,
        /// The dim as given.
        dim: i64,
        /// Dims of the array.
        ndim: usize,
    },
    /// Two shapes that should agree.
    #[error("{op}: shapes {lhs} and {rhs} do not agree: {reason}")]
    ShapeMismatch {
        /// The operation.
        op: &'static str,
        /// First shape.
        lhs: Shape,
        /// Second shape.
        rhs: Shape,
        /// What agreement means here.
        reason: &'static str,
    },
    /// A shape that does not broadcast to another.
    #[error("{op}: shape {from} does not broadcast to {to}")]
    Broadcast {
        /// The operation.
        op: &'static str,
        /// The smaller shape.
        from: Shape,
        /// The wanted shape.
        to: Shape,
    },
    /// A dtype the operation does not take.
    #[error("{op}: dtype {found} is not supported here; expected {expected}")]
    DType {
        /// The operation.
        op: &'static str,
        /// The dtype found.
        found: DType,
        /// What would be right.
        expected: &'static str,
    },
    /// Two dtypes that should be equal.
    #[error("{op}: dtypes {lhs} and {rhs} differ; cast one of them first")]
    DTypeMismatch {
        /// The operation.
        op: &'static str,
        /// First dtype.
        lhs: DType,
        /// Second dtype.
        rhs: DType,
    },
    /// Operands in different memories, or a memory that cannot do this.
    #[error("{op}: not possible on device {device}; {hint}")]
    Device {
        /// The operation.
        op: &'static str,
        /// The device found.
        device: Device,
        /// One next action.
        hint: &'static str,
    },
    /// Operands in two memories. A 0-d array of the host may stand beside arrays of a device.
    #[error("{op}: operands live on {lhs} and {rhs}; move one of them with `to`")]
    MixedDevices {
        /// The operation.
        op: &'static str,
        /// Where the first one lives.
        lhs: Device,
        /// Where another one lives.
        rhs: Device,
    },
    /// An operation that a device has no kernel for. Nothing is moved to the host behind the caller's back.
    #[error("{op} is not on {device} yet; move the array to the cpu first")]
    NotOnDevice {
        /// The operation.
        op: &'static str,
        /// The device.
        device: Device,
    },
    /// What a CUDA device or its driver says.
    #[error(transparent)]
    Cuda(Box<planaria_cuda::Error>),
    /// An integer index outside its dim.
    #[error(
        "index {index} is out of range for dim {dim} with size {size} (index number {position} of the expression)"
    )]
    IndexOutOfRange {
        /// The offending value.
        index: i64,
        /// Which entry of the index expression, from 0.
        position: usize,
        /// The dim it applies to.
        dim: usize,
        /// The size of that dim.
        size: usize,
    },
    /// A class label, token or position id outside its table.
    #[error("{op}: id {id} at position {position} is out of range for a table of {size} entries")]
    IdOutOfRange {
        /// The operation.
        op: &'static str,
        /// The offending value.
        id: i64,
        /// Where it stands, in row-major order.
        position: usize,
        /// Entries of the table: classes, vocabulary or positions.
        size: usize,
    },
    /// More indices than dims.
    #[error("too many indices: {given} for an array of shape {shape}")]
    TooManyIndices {
        /// Dims the expression consumes.
        given: usize,
        /// The indexed shape.
        shape: Shape,
    },
    /// A boolean mask whose shape differs from the dims it covers.
    #[error("mask of shape {mask} (index number {position}) does not match dims {dim}.. of shape {shape}")]
    MaskShape {
        /// The mask's shape.
        mask: Shape,
        /// Which entry of the index expression.
        position: usize,
        /// First dim the mask covers.
        dim: usize,
        /// The indexed shape.
        shape: Shape,
    },
    /// Index arrays that do not broadcast together.
    #[error("index arrays of shapes {lhs} and {rhs} do not broadcast together")]
    IndexBroadcast {
        /// Shape so far.
        lhs: Shape,
        /// The shape that does not fit.
        rhs: Shape,
    },
    /// A slice that does not move.
    #[error("slice step must not be zero (index number {position} of the expression)")]
    Step {
        /// Which entry of the index expression.
        position: usize,
    },
    /// A source with another number of slices, or of dims, than the positions that it is written to.
    #[error("{op}: a source of shape {found} does not fit: {reason}")]
    IndexSource {
        /// The operation.
        op: &'static str,
        /// The source's shape.
        found: Shape,
        /// What would fit.
        reason: &'static str,
    },
    /// An index array of a dtype that cannot index.
    #[error("index number {position} has dtype {found}; index arrays are integers, masks are bool")]
    IndexDType {
        /// Which entry of the index expression.
        position: usize,
        /// The dtype found.
        found: DType,
    },
    /// A position outside the dim an operation works along.
    #[error("{op}: index {index} is out of range for dim {dim} with size {size}")]
    PositionOutOfRange {
        /// The operation.
        op: &'static str,
        /// The offending value.
        index: i64,
        /// The dim it applies to.
        dim: usize,
        /// The size of that dim.
        size: usize,
    },
    /// Positions along a dim that has none.
    #[error("{op}: dim {dim} of shape {shape} has size 0, so no position along it exists")]
    EmptyDim {
        /// The operation.
        op: &'static str,
        /// The empty dim.
        dim: usize,
        /// The indexed shape.
        shape: Shape,
    },
    /// Strides that reach outside the storage.
    #[error(
        "{op}: shape {shape} with strides {strides:?} and offset {offset} reaches outside a storage of {len} elements"
    )]
    OutOfStorage {
        /// The operation.
        op: &'static str,
        /// The wanted shape.
        shape: Shape,
        /// The wanted strides.
        strides: Vec<isize>,
        /// The wanted offset.
        offset: usize,
        /// Elements in the storage.
        len: usize,
    },
    /// A write to a view in which one memory cell appears several times.
    #[error(
        "{op}: cannot write to a view of shape {shape} whose elements share memory; make it contiguous first"
    )]
    OverlappingWrite {
        /// The operation.
        op: &'static str,
        /// The view's shape.
        shape: Shape,
    },
    /// A write to memory that other code lent for reading only.
    #[error("{op}: the array is read-only; write to a copy of it")]
    ReadOnly {
        /// The operation.
        op: &'static str,
    },
    /// A reduction without a neutral element, such as the maximum, over a dim without elements.
    #[error("{op}: dim {dim} of shape {shape} is empty, and {op} of no elements is not defined")]
    EmptyReduction {
        /// The operation.
        op: &'static str,
        /// The empty dim.
        dim: usize,
        /// The shape it belongs to.
        shape: Shape,
    },
    /// A value outside what the operation accepts.
    #[error("{op}: {what}")]
    Argument {
        /// The operation.
        op: &'static str,
        /// What is wrong and what would be right.
        what: String,
    },
    /// The memory for a result could not be had.
    #[error("cannot allocate {bytes} bytes on {device}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// Where.
        device: Device,
    },
}

impl Error {
    /// The family this error belongs to.
    pub fn class(&self) -> ErrorClass {
        match self {
            Error::DimOutOfRange { .. }
            | Error::EmptyReduction { .. }
            | Error::IndexOutOfRange { .. }
            | Error::IdOutOfRange { .. }
            | Error::TooManyIndices { .. }
            | Error::MaskShape { .. }
            | Error::IndexDType { .. }
            | Error::IndexSource { .. }
            | Error::IndexBroadcast { .. } => ErrorClass::Index,
            Error::Step { .. } | Error::Argument { .. } | Error::ReadOnly { .. } => ErrorClass::Value,
            _ => ErrorClass::Runtime,
        }
    }

    pub(crate) fn mixed(op: &'static str, lhs: Device, rhs: Device) -> Error {
        Error::MixedDevices { op, lhs, rhs }
    }

    pub(crate) fn argument(op: &'static str, what: impl Into<String>) -> Error {
        Error::Argument { op, what: what.into() }
    }
}

impl From<planaria_cpu::Error> for Error {
    fn from(error: planaria_cpu::Error) -> Error {
        Error::argument(error.setting, error.what)
    }
}
