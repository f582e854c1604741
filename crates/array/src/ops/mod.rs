//! Operations on arrays: shapes and dtypes are checked here, then the device's kernel runs.

mod cast;
mod copy;
mod cross_entropy;
mod elementwise;
mod embedding;
mod fused;
mod matmul;
mod norm;
mod optim;
pub(crate) mod reduce;
mod rotary;
mod softmax;
mod swiglu;

pub use cross_entropy::*;
pub use elementwise::{
    Activation, Binary, Compare, Unary, activation_grad, binary, bit_not, clip, compare, unary, where_,
};
pub use embedding::*;
pub use matmul::{linear, matmul};
pub use norm::*;
pub use optim::*;
pub use reduce::{
    Keep, amax_grad, amin_grad, expand_reduced, logsumexp_grad, max_grad, mean_grad, min_grad, norm_grad,
    prod_grad, std_grad, sum_grad, var_grad,
};
pub use rotary::*;
pub use softmax::*;
pub use swiglu::*;
