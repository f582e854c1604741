//! Operations on arrays: shapes and dtypes are checked here, then the device's kernel runs.

mod cast;
mod copy;
pub(crate) mod reduce;

pub use reduce::{
    Keep, amax_grad, amin_grad, expand_reduced, logsumexp_grad, max_grad, mean_grad, min_grad, norm_grad,
    prod_grad, std_grad, sum_grad, var_grad,
};
