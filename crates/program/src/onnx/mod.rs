//! ONNX models: programs of Paddle's ops written as ONNX, and ONNX models read as programs of Paddle's ops.

mod export;
mod import;
mod import_made;
mod import_nodes;
mod nodes;
mod open;
mod proto;
mod read;
mod tensor;
#[cfg(test)]
mod tests;

pub use export::{FileBeside, export};
pub use import::{InputExtents, import};
pub use open::import_open;

/// The set of operators that is written: the newest that onnxruntime 1.31 runs.
pub const OPSET: i64 = 26;

/// The form of models that has this set.
const IR_VERSION: i64 = 13;

/// The sets that are read. From the oldest on axes are inputs; after the newest, nobody has looked at what changed.
const READ: std::ops::RangeInclusive<i64> = 13..=28;
