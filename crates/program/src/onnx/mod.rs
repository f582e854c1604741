//! ONNX models: programs of Paddle's ops written as ONNX, and ONNX models read as programs of Paddle's ops.

mod export;
mod import;
mod import_nodes;
mod nodes;
mod proto;
mod read;
mod tensor;

pub use export::{Exported, export};
pub use import::import;

/// The set of operators that is written.
pub const OPSET: i64 = 23;

/// The form of models that has this set.
const IR_VERSION: i64 = 11;
