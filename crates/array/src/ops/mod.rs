//! Operations on arrays: shapes and dtypes are checked here, then the device's kernel runs.

mod cast;
mod copy;
mod elementwise;
mod gather;
mod gather_grad;
mod index;
mod index_dim;
mod index_grad;
mod mask;
mod mask_grad;
mod matmul;

pub use elementwise::{
    Activation, Binary, Compare, Unary, activation_grad, binary, bit_not, clip, compare, unary, where_,
};
pub use gather::{OwnValue, Reduction};
pub use gather_grad::{
    gather_grad, scatter_grad, scatter_reduce_grad, scatter_source_grad, take_along_dim_grad,
};
pub use index::Put;
pub use index_grad::{
    get_grad, index_add_source_grad, index_copy_source_grad, index_fill_grad, index_fill_value_grad,
    index_put_grad, index_put_value_grad, index_select_grad, set_grad, set_value_grad, sum_to,
};
pub(crate) use mask::kept_positions;
pub use mask_grad::{
    masked_fill_grad, masked_fill_value_grad, masked_scatter_source_grad, masked_select_grad,
};
pub use matmul::{linear, matmul};
