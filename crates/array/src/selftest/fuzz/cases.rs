//! One line per public operation.

use super::arrays::{Args, Rng};
use crate::array::Array;
use crate::element::Scalar;
use crate::error::Result;
use crate::ops::{self, *};
use crate::random::{Key, Window};
use planaria_layout::{DType, Shape};

/// Runs an operation with arguments drawn from the generator.
pub type Run = fn(&mut Rng, &Args) -> Result<Vec<Array>>;

fn one(result: Result<Array>) -> Result<Vec<Array>> {
    Ok(vec![result?])
}

fn two(result: Result<(Array, Array)>) -> Result<Vec<Array>> {
    let (a, b) = result?;
    Ok(vec![a, b])
}

/// Runs an operation that writes, on a value of its own with the same strides. Where elements share memory a
/// write to one is a write to the others, so such a view is copied first.
fn written(x: &Array, write: impl FnOnce(&Array) -> Result<()>) -> Result<Vec<Array>> {
    let repeated = x.shape().iter().zip(x.strides()).any(|(&len, &stride)| len > 1 && stride == 0);
    let x = if repeated { x.copy()? } else { x.snapshot()? };
    write(&x)?;
    Ok(vec![x])
}

/// A public operation of arrays.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What it is called.
    pub name: &'static str,
    /// Draws further arguments and runs it.
    pub run: Run,
    /// It must give the same on a view as on a contiguous copy.
    pub same_on_copies: bool,
}

/// Every operation.
pub fn operations() -> impl Iterator<Item = Operation> {
    let of =
        |same_on_copies| move |&(name, run): &(&'static str, Run)| Operation { name, run, same_on_copies };
    let same = SAME_ON_COPIES.iter().copied().flatten().map(of(true));
    same.chain(STRIDE_DEPENDENT.iter().map(of(false)))
}

/// Operations that must give the same on a view as on a contiguous copy.
const SAME_ON_COPIES: &[&[(&str, Run)]] = &[
    VIEWS,
    ELEMENTWISE,
    REDUCTIONS,
    REDUCTION_GRADIENTS,
    SCANS,
    INDEXING,
    INDEX_GRADIENTS,
    REARRANGING,
    NEURAL,
    BLOCKS,
];

/// Operations whose result depends on strides: they only must not panic.
const STRIDE_DEPENDENT: &[(&str, Run)] = &[
    ("as_strided", |r, a| {
        let strides: Vec<isize> = (0..r.below(4)).map(|_| r.int() as isize).collect();
        let shape = r.extents();
        one(a.x.as_strided(&shape, &strides, r.extent()))
    }),
    ("as_strided sum", |r, a| {
        let strides = [r.below(3) as isize, r.below(5) as isize - 2];
        let view = a.x.as_strided(&[r.below(4), r.below(4)], &strides, r.below(8))?;
        Ok(vec![view.sum(&[r.dim()], Keep::No)?, view.copy()?, view.argsort(0, Order::Ascending)?])
    }),
    ("as_strided fill", |r, a| {
        let view =
            a.x.snapshot()?.as_strided(&[2, 3], &[r.below(4) as isize, r.below(3) as isize], r.below(4))?;
        view.fill(1)?;
        one(Ok(view))
    }),
];

const VIEWS: &[(&str, Run)] = &[
    ("transpose", |r, a| one(a.x.transpose(r.dim(), r.dim()))),
    ("permute", |r, a| one(a.x.permute(&r.dims()))),
    ("slice", |r, a| one(a.x.slice(r.dim(), r.bound(), r.bound(), r.int()))),
    ("narrow", |r, a| one(a.x.narrow(r.dim(), r.extent(), r.extent()))),
    ("select", |r, a| one(a.x.select(r.dim(), r.int()))),
    ("unsqueeze", |r, a| one(a.x.unsqueeze(r.dim()))),
    ("squeeze", |r, a| one(a.x.squeeze(&r.dims()))),
    ("broadcast_to", |r, a| one(a.x.broadcast_to(&r.extents()))),
    ("reshape", |r, a| one(a.x.reshape(&r.extents()))),
    ("reshape flat", |_, a| one(a.x.reshape(&[a.x.numel()]))),
    ("flatten", |r, a| one(a.x.flatten(r.dim(), r.dim()))),
    ("cast", |r, a| one(a.x.cast(r.dtype()))),
    ("copy", |_, a| one(a.x.copy())),
    ("copy_from", |_, a| written(&a.x, |x| x.copy_from(&a.y))),
    ("copy_from itself", |r, a| {
        let dim = r.dim();
        written(&a.x, |x| x.slice(dim, Some(1), None, 1)?.copy_from(&x.slice(dim, None, Some(-1), 1)?))
    }),
    ("fill", |r, a| written(&a.x, |x| x.fill(r.int()))),
    ("item", |_, a| one(Array::scalar(a.x.item()?, a.x.dtype()))),
];

const ELEMENTWISE: &[(&str, Run)] = &[
    ("unary", |r, a| one(ops::unary(r.pick(&Unary::ALL), &a.x))),
    ("unary_in_place", |r, a| written(&a.x, |x| x.unary_in_place(r.pick(&Unary::ALL)))),
    ("binary", |r, a| one(ops::binary(r.pick(&Binary::ALL), &a.x, &a.y))),
    ("binary twin", |r, a| one(ops::binary(r.pick(&Binary::ALL), &a.x, &a.twin))),
    ("binary_in_place", |r, a| written(&a.x, |x| x.binary_in_place(r.pick(&Binary::ALL), &a.y))),
    ("compare", |r, a| one(ops::compare(r.pick(&Compare::ALL), &a.x, &a.y))),
    ("logical_and", |_, a| one(a.x.logical_and(&a.y))),
    ("logical_not", |_, a| one(a.x.logical_not())),
    ("bit_not", |_, a| one(a.x.bit_not())),
    ("is_nan", |_, a| one(a.x.is_nan())),
    ("is_finite", |_, a| one(a.x.is_finite())),
    ("activation_grad", |r, a| {
        let act = r.pick(&[Activation::Relu, Activation::Tanh, Activation::Silu, Activation::Gelu]);
        one(ops::activation_grad(act, &a.x, &a.twin))
    }),
    ("where", |_, a| one(ops::where_(&a.mask, &a.x, &a.y))),
    ("clip", |r, a| {
        let (low, high) = (r.bound().map(Scalar::from), r.bound().map(Scalar::from));
        one(ops::clip(&a.x, low, high))
    }),
];

const REDUCTIONS: &[(&str, Run)] = &[
    ("sum", |r, a| one(a.x.sum(&r.dims(), r.keep()))),
    ("mean", |r, a| one(a.x.mean(&r.dims(), r.keep()))),
    ("prod", |r, a| one(a.x.slice(0, None, Some(4), 1)?.prod(&r.dims(), r.keep()))),
    ("sum_squares", |r, a| one(a.x.sum_squares(&r.dims(), r.keep()))),
    ("any", |r, a| one(a.x.any(&r.dims(), r.keep()))),
    ("all", |r, a| one(a.x.all(&r.dims(), r.keep()))),
    ("count_nonzero", |r, a| one(a.x.count_nonzero(&r.dims(), r.keep()))),
    ("amax", |r, a| one(a.x.amax(&r.dims(), r.keep()))),
    ("amin", |r, a| one(a.x.amin(&r.dims(), r.keep()))),
    ("argmax", |r, a| one(a.x.argmax(r.chance(70).then(|| r.dim()), r.keep()))),
    ("argmin", |r, a| one(a.x.argmin(r.chance(70).then(|| r.dim()), r.keep()))),
    ("max", |r, a| two(a.x.max(r.dim(), r.keep()))),
    ("min", |r, a| two(a.x.min(r.dim(), r.keep()))),
    ("logsumexp", |r, a| one(a.x.logsumexp(&r.dims(), r.keep()))),
    ("norm", |r, a| {
        let p = r.pick(&[0.0, 1.0, 2.0, 3.0, 0.5, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
        one(a.x.norm(p, &r.dims(), r.keep()))
    }),
    ("var", |r, a| one(a.x.var(&r.dims(), r.below(3) as f64, r.keep()))),
    ("std", |r, a| one(a.x.std(&r.dims(), r.below(3) as f64, r.keep()))),
    ("sum_to", |r, a| one(ops::sum_to(&a.x, &r.extents()))),
    ("squared_norm", |_, a| {
        one(Array::scalar(ops::squared_norm(&[a.x.clone(), a.twin.clone()])?, DType::F64))
    }),
];

const REDUCTION_GRADIENTS: &[(&str, Run)] = &[
    ("sum_grad", |r, a| one(ops::sum_grad(&a.y, &r.extents(), &r.dims()))),
    ("mean_grad", |r, a| one(ops::mean_grad(&a.y, a.x.shape(), &r.dims()))),
    ("amax_grad", |r, a| {
        let dims = r.dims();
        let y = a.x.amax(&dims, r.keep())?;
        one(ops::amax_grad(&y, &a.x, &y, &dims))
    }),
    ("max_grad", |r, a| {
        let dim = r.dim();
        let (y, at) = a.x.max(dim, r.keep())?;
        one(ops::max_grad(&y, &at, a.x.shape(), dim))
    }),
    ("max_grad anywhere", |r, a| one(ops::max_grad(&a.y, &a.index, a.x.shape(), r.dim()))),
    ("logsumexp_grad", |r, a| {
        let dims = r.dims();
        let y = a.x.logsumexp(&dims, r.keep())?;
        one(ops::logsumexp_grad(&y, &a.x, &y, &dims))
    }),
    ("prod_grad", |r, a| {
        let (dims, x) = (r.dims(), a.x.slice(0, None, Some(3), 1)?);
        one(ops::prod_grad(&x.amax(&dims, Keep::Yes)?, &x, &dims))
    }),
    ("norm_grad", |r, a| {
        let (dims, p) = (r.dims(), r.pick(&[0.0, 1.0, 2.0, 3.0, f64::INFINITY]));
        let y = a.x.norm(p, &dims, r.keep())?;
        one(ops::norm_grad(&y, &a.x, &y, p, &dims))
    }),
    ("var_grad", |r, a| {
        let dims = r.dims();
        one(ops::var_grad(&a.x.amin(&dims, Keep::No)?, &a.x, &dims, 1.0))
    }),
    ("std_grad", |r, a| {
        let dims = r.dims();
        let y = a.x.std(&dims, 1.0, r.keep())?;
        one(ops::std_grad(&y, &a.x, &y, &dims, 1.0))
    }),
    ("cumsum_grad", |r, a| one(ops::cumsum_grad(&a.x, r.dim()))),
    ("cumprod_grad", |r, a| one(ops::cumprod_grad(&a.twin, &a.x, r.dim()))),
    ("logcumsumexp_grad", |r, a| {
        let dim = r.dim();
        one(ops::logcumsumexp_grad(&a.twin, &a.x, &a.x.logcumsumexp(dim)?, dim))
    }),
    ("cummax_grad", |r, a| one(ops::cummax_grad(&a.x, &a.index, r.dim()))),
    ("sort_grad", |r, a| one(ops::sort_grad(&a.x, &a.index, r.dim()))),
    ("topk_grad", |r, a| one(ops::topk_grad(&a.y, &a.index, a.x.shape(), r.dim()))),
];

const SCANS: &[(&str, Run)] = &[
    ("cumsum", |r, a| one(a.x.cumsum(r.dim()))),
    ("cumprod", |r, a| one(a.x.cumprod(r.dim()))),
    ("cummax", |r, a| two(a.x.cummax(r.dim()))),
    ("cummin", |r, a| two(a.x.cummin(r.dim()))),
    ("logcumsumexp", |r, a| one(a.x.logcumsumexp(r.dim()))),
    ("sort", |r, a| two(a.x.sort(r.dim(), r.pick(&[Order::Ascending, Order::Descending])))),
    ("argsort", |r, a| one(a.x.argsort(r.dim(), Order::Descending))),
    ("topk", |r, a| two(a.x.topk(r.extent(), r.dim(), r.pick(&[Which::Largest, Which::Smallest])))),
    ("kthvalue", |r, a| two(a.x.kthvalue(r.extent(), r.dim(), r.keep()))),
    ("median", |r, a| two(a.x.median(r.dim(), r.keep()))),
    ("unique", |_, a| a.x.unique().map(|u| vec![u.values, u.inverse, u.counts])),
    // In what is not sorted, what is found depends on where one looks first.
    ("searchsorted", |r, a| {
        let (sorted, _) = a.x.sort(-1, Order::Ascending)?;
        one(sorted.searchsorted(&a.y, r.pick(&[Side::Left, Side::Right])))
    }),
    ("bucketize", |_, a| one(ops::bucketize(&a.x, &a.y.sort(-1, Order::Ascending)?.0, Side::Left))),
];

const INDEXING: &[(&str, Run)] = &[
    ("get", |r, a| one(a.x.get(&r.index(a)))),
    ("get again", |r, a| one(a.x.get(&r.index(a)))),
    ("set", |r, a| written(&a.x, |x| x.set(&r.index(a), &a.y))),
    ("set_scalar", |r, a| written(&a.x, |x| x.set_scalar(&r.index(a), 3))),
    ("index_put", |r, a| {
        let indices = [Some(a.index.clone()), None, Some(a.mask.clone())];
        let some = &indices[..r.below(4)];
        one(a.x.index_put(some, &a.y, r.pick(&[Put::Replace, Put::Accumulate])))
    }),
    ("gather", |r, a| one(a.x.gather(r.dim(), &a.index))),
    ("scatter", |r, a| one(a.x.scatter(r.dim(), &a.index, &a.y))),
    ("scatter_scalar", |r, a| one(a.x.scatter_scalar(r.dim(), &a.index, 2))),
    ("scatter_add", |r, a| one(a.x.scatter_add(r.dim(), &a.index, &a.twin))),
    ("scatter_add_assign", |r, a| written(&a.x, |x| x.scatter_add_assign(r.dim(), &a.index, &a.twin))),
    ("scatter_reduce", |r, a| {
        let how = r.pick(&[ScatterReduce::Sum, ScatterReduce::Mean, ScatterReduce::Max, ScatterReduce::Min]);
        let own = r.pick(&[OwnValue::Include, OwnValue::Exclude]);
        one(a.x.scatter_reduce(r.dim(), &a.index, &a.twin, how, own))
    }),
    ("take_along_dim", |r, a| one(a.x.take_along_dim(&a.index, r.dim()))),
    ("put_along_dim", |r, a| written(&a.x, |x| x.put_along_dim(&a.index, &a.y, r.dim()))),
    ("index_select", |r, a| one(a.x.index_select(r.dim(), &a.index.flatten(0, -1)?))),
    ("index_add", |r, a| one(a.x.index_add(r.dim(), &a.index.flatten(0, -1)?, &a.y))),
    ("index_copy", |r, a| one(a.x.index_copy(r.dim(), &a.index, &a.y))),
    ("index_fill", |r, a| one(a.x.index_fill(r.dim(), &a.index.flatten(0, -1)?, 1))),
    ("masked_select", |_, a| one(a.x.masked_select(&a.mask))),
    ("masked_fill", |_, a| one(a.x.masked_fill(&a.mask, 7))),
    ("masked_fill_with", |_, a| one(a.x.masked_fill_with(&a.mask, &a.y))),
    ("masked_fill_assign", |_, a| written(&a.x, |x| x.masked_fill_assign(&a.mask, 7))),
    ("masked_scatter", |_, a| one(a.x.masked_scatter(&a.mask, &a.y))),
    ("nonzero", |_, a| one(a.x.nonzero())),
];

const INDEX_GRADIENTS: &[(&str, Run)] = &[
    ("get_grad", |r, a| {
        let index = r.index(a);
        one(ops::get_grad(&a.x.get(&index)?, &index, a.x.shape()))
    }),
    ("get_grad anywhere", |r, a| one(ops::get_grad(&a.y, &r.index(a), &r.extents()))),
    ("set_grad", |r, a| one(ops::set_grad(&a.x, &r.index(a)))),
    ("set_value_grad", |r, a| one(ops::set_value_grad(&a.x, &r.index(a), a.y.shape()))),
    ("index_put_grad", |_, a| one(ops::index_put_grad(&a.x, &[Some(a.index.clone())], Put::Replace))),
    ("index_put_value_grad", |r, a| {
        one(ops::index_put_value_grad(&a.x, &[Some(a.index.clone())], &r.extents()))
    }),
    ("gather_grad", |r, a| one(ops::gather_grad(&a.y, r.dim(), &a.index, a.x.shape()))),
    ("scatter_grad", |r, a| one(ops::scatter_grad(&a.x, r.dim(), &a.index))),
    ("scatter_source_grad", |r, a| one(ops::scatter_source_grad(&a.x, r.dim(), &a.index, a.y.shape()))),
    ("take_along_dim_grad", |r, a| one(ops::take_along_dim_grad(&a.y, &a.index, r.dim(), a.x.shape()))),
    ("index_select_grad", |r, a| one(ops::index_select_grad(&a.y, r.dim(), &a.index, a.x.shape()))),
    ("index_add_source_grad", |r, a| one(ops::index_add_source_grad(&a.x, r.dim(), &a.index, a.y.shape()))),
    ("index_fill_grad", |r, a| one(ops::index_fill_grad(&a.x, r.dim(), &a.index))),
    ("masked_fill_grad", |_, a| one(ops::masked_fill_grad(&a.x, &a.mask, a.y.shape()))),
    ("masked_select_grad", |_, a| one(ops::masked_select_grad(&a.y, &a.mask, a.x.shape()))),
    ("masked_scatter_source_grad", |r, a| one(ops::masked_scatter_source_grad(&a.x, &a.mask, &r.extents()))),
];

const REARRANGING: &[(&str, Run)] = &[
    ("concat", |r, a| one(ops::concat(&[&a.x, &a.y, &a.twin], r.dim()))),
    ("stack", |r, a| one(ops::stack(&[&a.x, &a.twin], r.dim()))),
    ("split", |r, a| a.x.split(r.extent(), r.dim())),
    ("split_sizes", |r, a| a.x.split_sizes(&r.extents(), r.dim())),
    ("chunk", |r, a| a.x.chunk(r.below(6), r.dim())),
    ("unbind", |r, a| a.x.unbind(r.dim())),
    ("pad", |r, a| {
        let margins: Vec<(i64, i64)> = (0..r.below(4)).map(|_| (r.int() % 9, r.int() % 9)).collect();
        let zero = PadMode::Constant(Scalar::Int(0));
        one(a.x.pad(&margins, r.pick(&[zero, PadMode::Reflect, PadMode::Replicate, PadMode::Circular])))
    }),
    ("pad_grad", |r, a| one(ops::pad_grad(&a.y, a.x.shape(), &[(1, r.below(3) as i64)], PadMode::Reflect))),
    ("roll", |r, a| {
        let (shifts, dims) = (vec![r.int(), r.int()], r.dims());
        one(a.x.roll(&shifts[..dims.len().min(2)], &dims))
    }),
    ("flip", |r, a| one(a.x.flip(&r.dims()))),
    ("repeat", |r, a| one(a.x.repeat(&r.extents()))),
    ("repeat_interleave", |r, a| one(a.x.repeat_interleave(&r.extents(), r.dim()))),
    ("repeat_grad", |r, a| one(ops::repeat_grad(&a.x, &Shape::new(&r.extents())?, &r.extents()))),
    ("triu", |r, a| one(a.x.triu(r.int()))),
    ("tril", |r, a| one(a.x.tril(r.int()))),
    ("one_hot", |r, a| one(a.index.one_hot(r.below(12), DType::F32))),
];

const NEURAL: &[(&str, Run)] = &[
    ("matmul", |_, a| one(ops::matmul(&a.x, &a.y))),
    ("matmul transposed", |_, a| one(ops::matmul(&a.x, &a.twin.transpose(-1, -2)?))),
    ("linear", |_, a| one(ops::linear(&a.x, &a.y, None))),
    ("softmax", |r, a| one(a.x.softmax(r.dim()))),
    ("log_softmax", |r, a| one(a.x.log_softmax(r.dim()))),
    ("softmax_grad", |r, a| one(ops::softmax_grad(&a.twin, &a.x, r.dim()))),
    ("log_softmax_grad", |r, a| one(ops::log_softmax_grad(&a.twin, &a.x, r.dim()))),
    ("layer_norm", |r, a| {
        let shape = a.x.shape();
        ops::layer_norm(&a.x, &shape[shape.ndim() - r.below(shape.ndim() + 1)..], None, None, 1e-5)
            .map(|n| vec![n.y, n.mean, n.rstd])
    }),
    ("rms_norm", |r, a| ops::rms_norm(&a.x, &r.extents(), None, 1e-5).map(|n| vec![n.y, n.rstd])),
    ("rms_norm rows", |_, a| {
        let last = &a.x.shape()[a.x.ndim().saturating_sub(1)..];
        ops::rms_norm(&a.x, last, None, 1e-5).map(|n| vec![n.y, n.rstd])
    }),
    ("group_norm", |r, a| {
        ops::group_norm(&a.x, r.below(4), None, None, 1e-5).map(|n| vec![n.y, n.mean, n.rstd])
    }),
    ("instance_norm", |_, a| ops::instance_norm(&a.x, None, None, 1e-5).map(|n| vec![n.y])),
    ("embedding", |_, a| one(ops::embedding(&a.x, &a.index))),
    ("embedding_grad", |r, a| one(ops::embedding_grad(&a.x, &a.index, r.below(9), None))),
    ("cross_entropy", |r, a| {
        let options = CrossEntropyOptions { dim: r.dim(), ..Default::default() };
        ops::cross_entropy(&a.x, &a.index, &options).map(|c| vec![c.loss, c.lse])
    }),
    ("cross_entropy rows", |_, a| {
        let labels = a.x.argmax(Some(-1), Keep::No)?;
        ops::cross_entropy(&a.x, &labels, &CrossEntropyOptions::default()).map(|c| vec![c.loss, c.lse])
    }),
    ("soft_cross_entropy", |_, a| {
        ops::soft_cross_entropy(&a.x, &a.twin, &CrossEntropyOptions::default()).map(|c| vec![c.loss, c.lse])
    }),
    ("swiglu", |_, a| one(ops::swiglu(&a.x, &a.y))),
    ("swiglu_packed", |_, a| one(ops::swiglu_packed(&a.x))),
    ("swiglu_grad", |_, a| ops::swiglu_grad(&a.x, &a.twin, &a.x).map(|g| vec![g.gate, g.up])),
    ("dropout", |_, a| one(ops::dropout(&a.x, 0.5, Key::new(1, 2), &Window::whole(a.x.shape())))),
    ("dropout_add", |_, a| {
        one(ops::dropout_add(&a.x, &a.y, 0.5, Key::new(1, 2), &Window::whole(a.x.shape())))
    }),
];

/// `x` with 0 in place of what is not finite: 0 times that is NaN or 0, as terms are skipped or not.
fn finite(x: &Array) -> Result<Array> {
    if x.dtype().is_float() { x.masked_fill(&x.is_finite()?.logical_not()?, 0) } else { Ok(x.clone()) }
}

/// `x` with dims of size 1 in front until it has four.
fn four(x: &Array) -> Result<Array> {
    (x.ndim()..4).try_fold(x.clone(), |x, _| x.unsqueeze(0))
}

const BLOCKS: &[(&str, Run)] = &[
    ("attention", |r, a| {
        let span = r.pick(&[Span::All, Span::Causal]);
        let options = AttentionOptions { span, mask: r.chance(40).then_some(&a.mask), ..Default::default() };
        let (q, k) = (four(&a.x)?, four(&a.twin)?);
        ops::attention(&q, &k, &q, &options).map(|y| vec![y.out, y.lse])
    }),
    ("attention anywhere", |_, a| {
        ops::attention(&a.x, &a.y, &a.twin, &AttentionOptions::default()).map(|y| vec![y.out, y.lse])
    }),
    ("attention_grad", |_, a| {
        let (q, k) = (four(&finite(&a.x)?)?, four(&finite(&a.twin)?)?);
        let options = AttentionOptions::default();
        let y = ops::attention(&q, &k, &k, &options)?;
        ops::attention_grad(&q, &q, &k, &k, &y, &options).map(|g| vec![g.q, g.k, g.v])
    }),
    ("batch_norm", |r, a| {
        let stats = BatchStats::Batch { running: None, momentum: r.pick(&[0.1, f64::NAN]) };
        ops::batch_norm(&a.x, None, Some(&a.y), stats, 1e-5).map(|n| vec![n.y, n.mean, n.rstd])
    }),
    ("batch_norm running", |_, a| {
        let stats = BatchStats::Running(RunningStats { mean: &a.y, var: &a.y });
        ops::batch_norm(&a.x, None, None, stats, 1e-5).map(|n| vec![n.y, n.mean, n.rstd])
    }),
    ("batch_norm_grad", |r, a| {
        let stats = BatchStats::Batch { running: None, momentum: 0.1 };
        let n = ops::batch_norm(&a.x, None, None, stats, 1.0)?;
        let mode = r.pick(&[BatchMode::Training, BatchMode::Evaluation]);
        ops::batch_norm_grad(&a.twin, &a.x, &n.mean, &n.rstd, None, mode).map(|g| vec![g.x])
    }),
    ("rotary", |r, a| {
        let positions = match r.below(2) {
            0 => RotaryPositions::From(r.extent()),
            _ => RotaryPositions::Ids(&a.index),
        };
        let options = RotaryOptions {
            pairing: r.pick(&[RotaryPairing::Halves, RotaryPairing::Interleaved]),
            layout: r.pick(&[RotaryLayout::SeqHeads, RotaryLayout::HeadsSeq]),
            positions,
        };
        let table = RotaryTable::new(r.below(9), a.x.shape().last().copied().unwrap_or(0), 10000.0)?;
        let table = RotaryTable { cos: table.cos.to(a.x.device())?, sin: table.sin.to(a.x.device())? };
        Ok(vec![ops::rotary(&a.x, &table, &options)?, ops::rotary_grad(&a.x, &table, &options)?])
    }),
    ("soft_cross_entropy_target_grad", |r, a| {
        let options = CrossEntropyOptions { dim: r.dim(), reduction: Reduction::Sum, ..Default::default() };
        let c = ops::soft_cross_entropy(&a.x, &a.twin, &options)?;
        one(ops::soft_cross_entropy_target_grad(&c.loss, &a.x, &c.lse, &options))
    }),
    ("adamw", |r, a| {
        let (exp_avg, exp_avg_sq) = (a.twin.copy()?, a.twin.copy()?);
        written(&a.x, |param| {
            let arrays = AdamWArrays {
                param,
                grad: &a.y,
                exp_avg: &exp_avg,
                exp_avg_sq: &exp_avg_sq,
                max_exp_avg_sq: None,
                master: None,
            };
            AdamW::default().step(r.below(3) as u64, &[arrays])
        })
    }),
    ("sgd", |r, a| {
        let velocity = a.y.copy()?;
        let options = Sgd { momentum: r.pick(&[0.0, 0.9, 2.0, f64::NAN]), ..Sgd::default() };
        written(&a.x, |param| {
            let arrays = SgdArrays { param, grad: &a.twin, velocity: Some(&velocity), master: None };
            options.step(r.below(3) as u64, &[arrays])
        })
    }),
    ("scale_in_place", |_, a| written(&a.x, |x| ops::scale_in_place(std::slice::from_ref(x), 0.5))),
];
