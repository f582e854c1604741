//! Operations on arrays: shapes and dtypes are checked here, then the device's kernel runs.

mod attention;
mod cast;
mod choose;
mod copy;
mod create;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod fold;
pub(crate) mod fused;
mod gather;
mod gather_grad;
mod generate;
mod index;
mod index_dim;
mod index_grad;
mod join;
mod mask;
mod mask_grad;
mod matmul;
mod norm;
mod optim;
mod pad;
mod rearrange;
pub(crate) mod reduce;
mod remap_on_device;
mod rotary;
mod sample;
mod scan;
mod softmax;
mod sort;
mod swiglu;
mod triangle;

pub use attention::*;
pub use choose::{BegunRow, Rows, take_best};
pub use cross_entropy::*;
pub use dropout::{dropout, dropout_add, dropout_grad};
pub use elementwise::{
    Activation, Binary, Compare, Unary, activation_grad, binary, binary_into, bit_not, clip, compare, unary,
    where_,
};
pub use embedding::*;
pub use fold::{fold_bytes, fold_dtype, fold_part};
pub use gather::{OwnValue, ScatterReduce};
pub use gather_grad::{
    gather_grad, scatter_grad, scatter_reduce_grad, scatter_source_grad, take_along_dim_grad,
};
pub use generate::*;
pub use index::Put;
pub use index_grad::{
    get_grad, index_add_source_grad, index_copy_source_grad, index_fill_grad, index_fill_value_grad,
    index_put_grad, index_put_value_grad, index_select_grad, set_grad, set_value_grad, sum_to,
};
pub use join::{beside, concat, stack};
pub(crate) use mask::kept_positions;
pub use mask_grad::{
    masked_fill_grad, masked_fill_value_grad, masked_scatter_source_grad, masked_select_grad,
};
pub use matmul::{add_matmul, linear, matmul};
pub use norm::*;
pub use optim::*;
pub use pad::{PadMode, pad_grad};
pub use rearrange::{repeat_grad, repeat_interleave_grad};
pub use reduce::{
    Keep, amax_grad, amin_grad, expand_reduced, logsumexp_grad, max_grad, mean_grad, min_grad, norm_grad,
    prod_grad, std_grad, sum_grad, var_grad,
};
pub use rotary::*;
pub use sample::Distribution;
pub use scan::{cummax_grad, cumprod_grad, cumsum_grad, logcumsumexp_grad};
pub use softmax::*;
pub use sort::{Order, Side, Unique, Which, bucketize, sort_grad, topk_grad};
pub use swiglu::*;
