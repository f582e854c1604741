//! Operations on arrays: shapes and dtypes are checked here, then the device's kernel runs.

mod cast;
mod copy;
mod elementwise;
mod matmul;

pub use elementwise::{
    Activation, Binary, Compare, Unary, activation_grad, binary, bit_not, clip, compare, unary, where_,
};
pub use matmul::{linear, matmul};
