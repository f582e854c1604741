//! Operations on arrays: shapes and dtypes are checked here, then the device's kernel runs.

mod cast;
mod copy;
mod cross_entropy;
mod embedding;
mod fused;
mod norm;
mod optim;
mod rotary;
mod softmax;
mod swiglu;

pub use cross_entropy::*;
pub use embedding::*;
pub use norm::*;
pub use optim::*;
pub use rotary::*;
pub use softmax::*;
pub use swiglu::*;
