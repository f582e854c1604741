//! Launchers of kernels that go position by position: copies, fills, conversions, elementwise operations.

use super::program::{
    self, BINARY, CAST, CHECK, COMPARE, COPY, UNARY, c_name, computed, converted, kernel, moved, words,
};
use super::walk::{Walk, walks};
use super::{Held, blocks, fresh, lane_of, late, launch_over, read};
use crate::array::{Array, contiguous_strides};
use crate::element::{Scalar, with_dtype};
use crate::error::Result;
use crate::ops::{Activation, Binary, Compare, Unary};
use crate::storage::Coverage;
use planaria_cuda::{Arg, Kernel, Lane, LateNote, Launch, Program};
use planaria_layout::{DType, Shape};
use std::sync::Arc;

/// A view that a kernel writes or reads: where it starts, its strides, its element's size, and a value of the host.
struct View<'a> {
    address: u64,
    strides: &'a [isize],
    size: usize,
    value: u64,
}

impl<'a> View<'a> {
    fn of(x: &'a Array, held: &Held) -> View<'a> {
        View { address: held.address, strides: x.strides(), size: x.dtype().size(), value: held.value }
    }

    /// Where a piece of a walk starts in this operand.
    fn start(&self, skip: isize) -> u64 {
        if self.address == 0 {
            0
        } else {
            self.address.wrapping_add_signed((skip * self.size as isize) as i64)
        }
    }
}

/// Queues `kernel(walk, out, inputs .., values of inputs ..)` over all positions of a shape. The first operand is the
/// result.
fn run(op: &'static str, lane: &Lane, kernel: &Kernel, shape: &[usize], views: &[View<'_>]) -> Result<()> {
    let strides: Vec<&[isize]> = views.iter().map(|view| view.strides).collect();
    for Walk { words, skip, numel } in walks(shape, &strides) {
        let mut args = vec![Arg::Words(&words)];
        args.extend(views.iter().zip(&skip).map(|(view, &skip)| Arg::U64(view.start(skip))));
        args.extend(views[1..].iter().map(|view| Arg::U64(view.value)));
        launch_over(op, lane, kernel, numel, &args)?;
    }
    Ok(())
}

/// An array broadcast to a shape. A value of the host has no strides to speak of.
fn spread(x: &Array, shape: &Shape) -> Result<Array> {
    x.broadcast_to(shape)
}

/// The device array among operands of which some are values of the host.
fn device_of<'a>(operands: &[&'a Array]) -> &'a Array {
    operands.iter().find(|x| matches!(x.device(), crate::Device::Cuda(_))).unwrap_or(&operands[0])
}

/// A fresh result of a kernel over positions.
fn mapped(
    op: &'static str,
    program: &Program,
    defines: &str,
    function: &str,
    operands: &[&Array],
    shape: &Shape,
    dtype: DType,
) -> Result<Array> {
    let lane = lane_of(op, device_of(operands))?;
    let kernel = kernel(&lane, program, defines, function)?;
    let spreads = operands.iter().map(|x| spread(x, shape)).collect::<Result<Vec<_>>>()?;
    let held = spreads.iter().map(|x| read(op, &lane, x)).collect::<Result<Vec<_>>>()?;
    let (out, address) = fresh(op, &lane, shape, dtype)?;
    let mut views = vec![View { address, strides: out.strides(), size: dtype.size(), value: 0 }];
    views.extend(spreads.iter().zip(&held).map(|(x, held)| View::of(x, held)));
    run(op, &lane, &kernel, shape, &views)?;
    Ok(out)
}

/// Overwrites a view by a kernel over its positions. With `own`, the view's old elements are the first input.
fn overwrite(
    op: &'static str,
    kernel: (&Program, &str, &str),
    out: &Array,
    own: bool,
    operands: &[&Array],
) -> Result<()> {
    check_writable(op, out)?;
    let lane = lane_of(op, out)?;
    let (program, defines, function) = kernel;
    let kernel = program::kernel(&lane, program, defines, function)?;
    let spreads = operands.iter().map(|x| spread(x, out.shape())).collect::<Result<Vec<_>>>()?;
    let held = spreads.iter().map(|x| read(op, &lane, x)).collect::<Result<Vec<_>>>()?;
    let coverage = if out.is_whole() { Coverage::All } else { Coverage::Part };
    let update = out.begin_cuda_update(op, &lane, coverage)?;
    let (size, skip) = (out.dtype().size(), (out.offset() * out.dtype().size()) as u64);
    let view = |address: u64| View { address: address + skip, strides: out.strides(), size, value: 0 };
    let mut views = vec![view(update.address())];
    if own {
        views.push(view(update.old_address()));
    }
    views.extend(spreads.iter().zip(&held).map(|(x, held)| View::of(x, held)));
    run(op, &lane, &kernel, out.shape(), &views)?;
    update.commit();
    Ok(())
}

/// Refuses to write to a view in which one memory cell appears several times.
fn check_writable(op: &'static str, out: &Array) -> Result<()> {
    let overlapping = out.numel() > 0 && crate::cpu::strided::may_overlap(out.shape(), out.strides());
    out.check_written(op, !overlapping)
}

/// Elements that make up the widest word which views of a shape consist of.
fn per_word(shape: &[usize], views: [&View<'_>; 2]) -> usize {
    let Some((&row, outer)) = shape.split_last() else { return 1 };
    let size = views[0].size;
    let fits = |per: &usize| {
        let whole = |view: &View<'_>| {
            let (last, others) = view.strides.split_last().unwrap_or((&0, &[]));
            let apart = |(&step, &len): (&isize, &usize)| len == 1 || step % *per as isize == 0;
            let aligned = view.address > 0 && view.address.is_multiple_of((per * size) as u64);
            *last == 1 && aligned && others.iter().zip(outer).all(apart)
        };
        row.is_multiple_of(*per) && views.iter().all(|view| whole(view))
    };
    [8, 4, 2].into_iter().filter(|per| per * size <= 8).find(fits).unwrap_or(1)
}

/// Queues a copy between views of one shape, by words as wide as both allow.
fn run_copy(op: &'static str, lane: &Lane, shape: &[usize], [out, x]: [View<'_>; 2]) -> Result<()> {
    let per = per_word(shape, [&out, &x]);
    let size = out.size * per;
    let kernel = kernel(lane, &COPY, &words(size), "copy")?;
    let mut dims = shape.to_vec();
    if let Some(row) = dims.last_mut() {
        *row /= per;
    }
    let steps = |view: &View<'_>| -> Vec<isize> {
        let last = view.strides.len().saturating_sub(1);
        let step = |(d, &step): (usize, &isize)| if d == last { step } else { step / per as isize };
        view.strides.iter().enumerate().map(step).collect()
    };
    let (to, from) = (steps(&out), steps(&x));
    let views = [View { strides: &to, size, ..out }, View { strides: &from, size, ..x }];
    run(op, lane, &kernel, &dims, &views)
}

/// A contiguous copy.
pub(crate) fn copy(x: &Array) -> Result<Array> {
    if let Some(turned) = Turned::find(x) {
        return turned.copy(x);
    }
    let (op, lane) = ("copy", lane_of("copy", x)?);
    let held = read(op, &lane, x)?;
    let (out, address) = fresh(op, &lane, x.shape(), x.dtype())?;
    let to = View { address, strides: out.strides(), size: x.dtype().size(), value: 0 };
    run_copy(op, &lane, x.shape(), [to, View::of(x, &held)])?;
    Ok(out)
}

/// Overwrites a view with `src`, which has its shape and another storage.
pub(crate) fn copy_into(out: &Array, src: &Array) -> Result<()> {
    let op = "copy_from";
    check_writable(op, out)?;
    let (lane, src) = (lane_of(op, out)?, spread(src, out.shape())?);
    let held = read(op, &lane, &src)?;
    let coverage = if out.is_whole() { Coverage::All } else { Coverage::Part };
    let update = out.begin_cuda_update(op, &lane, coverage)?;
    let size = out.dtype().size();
    let address = update.address() + (out.offset() * size) as u64;
    let to = View { address, strides: out.strides(), size, value: 0 };
    run_copy(op, &lane, out.shape(), [to, View::of(&src, &held)])?;
    update.commit();
    Ok(())
}

/// Overwrites every element of a view.
pub(crate) fn fill(out: &Array, value: Scalar) -> Result<()> {
    check_writable("fill", out)?;
    let lane = lane_of("fill", out)?;
    let kernel = kernel(&lane, &COPY, &moved(out.dtype()), "fill")?;
    let size = out.dtype().size();
    let mut word = [0u8; 8];
    with_dtype!(out.dtype(), T => {
        word[..size].copy_from_slice(bytemuck::bytes_of(&<T as crate::element::Element>::from_scalar(value)));
    });
    let coverage = if out.is_whole() { Coverage::All } else { Coverage::Part };
    let update = out.begin_cuda_update("fill", &lane, coverage)?;
    let start = update.address() + (out.offset() * size) as u64;
    for Walk { words, skip, numel } in walks(out.shape(), &[out.strides()]) {
        let at = start.wrapping_add_signed((skip[0] * size as isize) as i64);
        let args = [Arg::Words(&words), Arg::U64(at), Arg::U64(u64::from_le_bytes(word))];
        launch_over("fill", &lane, &kernel, numel, &args)?;
    }
    update.commit();
    Ok(())
}

/// The same values in another dtype.
pub(crate) fn cast(x: &Array, dtype: DType) -> Result<Array> {
    let function = format!("to_{}", c_name(dtype));
    mapped("cast", &CAST, &converted(x.dtype()), &function, &[x], x.shape(), dtype)
}

/// `x` where `condition` is true, else `y`; all of one shape, the condition on the device.
pub(crate) fn choose(condition: &Array, x: &Array, y: &Array, shape: &Shape) -> Result<Array> {
    let op = "where";
    if condition.device() == crate::Device::Cpu {
        // One value of the host decides for all.
        let chosen = if condition.item()?.as_bool() { x } else { y };
        let lane = lane_of(op, device_of(&[x, y]))?;
        return chosen.to(crate::Device::Cuda(lane.context().ordinal()))?.broadcast_to(shape)?.copy();
    }
    let lane = lane_of(op, condition)?;
    let kernel = kernel(&lane, &COPY, &moved(x.dtype()), "choose")?;
    let (condition, x, y) = (spread(condition, shape)?, spread(x, shape)?, spread(y, shape)?);
    let (hc, hx, hy) = (read(op, &lane, &condition)?, read(op, &lane, &x)?, read(op, &lane, &y)?);
    let (out, address) = fresh(op, &lane, shape, x.dtype())?;
    let strides = [out.strides(), condition.strides(), x.strides(), y.strides()];
    let (vx, vy) = (View::of(&x, &hx), View::of(&y, &hy));
    for Walk { words, skip, numel } in walks(shape, &strides) {
        let size = x.dtype().size() as isize;
        let args = [
            Arg::Words(&words),
            Arg::U64(address.wrapping_add_signed((skip[0] * size) as i64)),
            Arg::U64(hc.address.wrapping_add_signed(skip[1] as i64)),
            Arg::U64(vx.start(skip[2])),
            Arg::U64(vy.start(skip[3])),
            Arg::U64(hx.value),
            Arg::U64(hy.value),
        ];
        launch_over(op, &lane, &kernel, numel, &args)?;
    }
    Ok(out)
}

/// `op` of every element; the dtype is known to have it.
pub(crate) fn unary(op: Unary, x: &Array) -> Result<Array> {
    let function = unary_name(op);
    mapped("unary", &UNARY, &computed(x.dtype()), function, &[x], x.shape(), x.dtype())
}

/// Every bit flipped.
pub(crate) fn bit_not(x: &Array) -> Result<Array> {
    mapped("bit_not", &UNARY, &computed(x.dtype()), "bit_not", &[x], x.shape(), x.dtype())
}

/// `op` of every element, in place.
pub(crate) fn unary_in_place(op: Unary, x: &Array) -> Result<()> {
    overwrite("unary_in_place", (&UNARY, &computed(x.dtype()), unary_name(op)), x, true, &[])
}

/// `op` of each pair, broadcast to `shape`.
pub(crate) fn binary(op: Binary, x: &Array, y: &Array, shape: &Shape) -> Result<Array> {
    mapped("binary", &BINARY, &computed(x.dtype()), binary_name(op), &[x, y], shape, x.dtype())
}

/// `op` with `y`, kept in `x`.
pub(crate) fn binary_in_place(op: Binary, x: &Array, y: &Array) -> Result<()> {
    overwrite("binary_in_place", (&BINARY, &computed(x.dtype()), binary_name(op)), x, true, &[y])
}

/// `op(x, y)` written over `out`, whose storage is another one.
pub(crate) fn binary_into(op: Binary, x: &Array, y: &Array, out: &Array) -> Result<()> {
    overwrite("binary_into", (&BINARY, &computed(x.dtype()), binary_name(op)), out, false, &[x, y])
}

/// The gradient of an activation.
pub(crate) fn activation_grad(op: Activation, saved: &Array, grad: &Array, shape: &Shape) -> Result<Array> {
    let function = match op {
        Activation::Relu => "relu_grad",
        Activation::Sigmoid => "sigmoid_grad",
        Activation::Tanh => "tanh_grad",
        Activation::Silu => "silu_grad",
        Activation::Softplus => "softplus_grad",
        Activation::Gelu => "gelu_grad",
        Activation::GeluTanh => "gelu_tanh_grad",
    };
    let operands = [saved, grad];
    mapped("activation_grad", &BINARY, &computed(saved.dtype()), function, &operands, shape, saved.dtype())
}

/// Each pair compared.
pub(crate) fn compare(op: Compare, x: &Array, y: &Array, shape: &Shape) -> Result<Array> {
    let function = match op {
        Compare::Eq => "eq",
        Compare::Ne => "ne",
        Compare::Lt => "lt",
        Compare::Le => "le",
        Compare::Gt => "gt",
        Compare::Ge => "ge",
    };
    mapped("compare", &COMPARE, &computed(x.dtype()), function, &[x, y], shape, DType::Bool)
}

/// Has a zero among integers that divide reported when the host next waits.
pub(crate) fn check_divisor(op: Binary, y: &Array) -> Result<()> {
    let lane = lane_of("binary", y)?;
    let kernel = kernel(&lane, &CHECK, &computed(y.dtype()), "no_zero")?;
    let held = read("binary", &lane, y)?;
    let name = match op {
        Binary::FloorDiv => "floor_div",
        Binary::Rem => "rem",
        _ => "fmod",
    };
    let note = LateNote { op: name, kind: late::ZERO_DIVISOR, size: 0, dim: 0, entry: 0 };
    let view = View::of(y, &held);
    for Walk { words, skip, numel } in walks(y.shape(), &[y.strides()]) {
        let slot = lane.slot(note)?;
        let args = [Arg::Words(&words), Arg::U64(view.start(skip[0])), Arg::U64(slot.0)];
        launch_over("binary", &lane, &kernel, numel, &args)?;
    }
    Ok(())
}

/// A copy whose source runs along rows where its result runs along columns: moved tile by tile.
struct Turned {
    batch: usize,
    rows: usize,
    columns: usize,
    batch_step: isize,
    column_step: isize,
}

/// Tiles pay from this extent on.
const TILE: usize = 16;

impl Turned {
    fn find(x: &Array) -> Option<Turned> {
        let dense = contiguous_strides(x.shape());
        let walks = walks(x.shape(), &[&dense, x.strides()]);
        let [walk] = walks.as_slice() else { return None };
        let ndim = walk.words[1] as usize;
        if !(2..=3).contains(&ndim) {
            return None;
        }
        let len = |d: usize| walk.words[2 + d] as usize;
        let step = |d: usize| walk.words[2 + 2 * super::walk::MAX_DIMS + d] as i64 as isize;
        let (rows, columns) = (ndim - 2, ndim - 1);
        let turned = step(rows) == 1 && step(columns) > 1 && len(rows) >= TILE && len(columns) >= TILE;
        turned.then(|| Turned {
            batch: if ndim == 3 { len(0) } else { 1 },
            rows: len(rows),
            columns: len(columns),
            batch_step: if ndim == 3 { step(0) } else { 0 },
            column_step: step(columns),
        })
    }

    fn copy(&self, x: &Array) -> Result<Array> {
        let lane: Arc<Lane> = lane_of("copy", x)?;
        let kernel = kernel(&lane, &COPY, &moved(x.dtype()), "transpose")?;
        let held = read("copy", &lane, x)?;
        let (out, address) = fresh("copy", &lane, x.shape(), x.dtype())?;
        let tiles = self.batch * self.rows.div_ceil(32) * self.columns.div_ceil(32);
        let grid = [blocks(&lane, tiles * 256, 1), 1, 1];
        let launch = Launch { op: "copy", kernel: &kernel, grid, block: [32, 8, 1], shared: 0 };
        let words = [self.batch, self.rows, self.columns].map(|n| Arg::U64(n as u64));
        let steps = [self.batch_step, 1, self.column_step].map(|n| Arg::U64(n as i64 as u64));
        let args = [&[Arg::U64(address), Arg::U64(held.address)], &words[..], &steps[..]].concat();
        lane.launch(&launch, &args)?;
        Ok(out)
    }
}

fn unary_name(op: Unary) -> &'static str {
    match op {
        Unary::Neg => "neg",
        Unary::Abs => "abs_",
        Unary::Sign => "sign",
        Unary::Square => "square",
        Unary::Sqrt => "sqrt_",
        Unary::Rsqrt => "rsqrt_",
        Unary::Reciprocal => "reciprocal",
        Unary::Exp => "exp_",
        Unary::Exp2 => "exp2_",
        Unary::ExpM1 => "exp_m1",
        Unary::Ln => "ln",
        Unary::Ln1p => "ln_1p",
        Unary::Log2 => "log2_",
        Unary::Log10 => "log10_",
        Unary::Sin => "sin_",
        Unary::Cos => "cos_",
        Unary::Tan => "tan_",
        Unary::Asin => "asin_",
        Unary::Acos => "acos_",
        Unary::Atan => "atan_",
        Unary::Sinh => "sinh_",
        Unary::Cosh => "cosh_",
        Unary::Tanh => "tanh_",
        Unary::Asinh => "asinh_",
        Unary::Acosh => "acosh_",
        Unary::Atanh => "atanh_",
        Unary::Erf => "erf_",
        Unary::Erfc => "erfc_",
        Unary::Sigmoid => "sigmoid",
        Unary::LogSigmoid => "log_sigmoid",
        Unary::Relu => "relu",
        Unary::Gelu => "gelu",
        Unary::GeluTanh => "gelu_tanh",
        Unary::Silu => "silu",
        Unary::Softplus => "softplus",
        Unary::Floor => "floor_",
        Unary::Ceil => "ceil_",
        Unary::Trunc => "trunc_",
        Unary::Round => "round_",
    }
}

fn binary_name(op: Binary) -> &'static str {
    match op {
        Binary::Add => "add",
        Binary::Sub => "sub",
        Binary::Mul => "mul",
        Binary::Div => "div_",
        Binary::FloorDiv => "floor_div",
        Binary::Rem => "rem",
        Binary::Fmod => "fmod_",
        Binary::Pow => "pow_",
        Binary::Atan2 => "atan2_",
        Binary::Maximum => "maximum",
        Binary::Minimum => "minimum",
        Binary::Fmax => "fmax_",
        Binary::Fmin => "fmin_",
        Binary::BitAnd => "bit_and",
        Binary::BitOr => "bit_or",
        Binary::BitXor => "bit_xor",
        Binary::Shl => "shl",
        Binary::Shr => "shr",
    }
}
