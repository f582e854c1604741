//! Matrix products of arrays: vectors, matrices and broadcast batches, any strides.

use crate::array::{Array, Strides};
use crate::cpu::copy;
use crate::cpu::real::with_float;
use crate::cuda;
use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::ops::Binary;
use crate::ops::fused::real_dtype;
use crate::view::{broadcast_shapes, shrunk};
use planaria_cpu::matmul::{Accumulate, Batch, MatRef, MatmulElement, matmul_batched};
use planaria_layout::{Dims, Shape};

/// `a · b` as NumPy and PyTorch define it: a 1-d operand is a row (left) or column (right) vector whose dim
/// disappears from the result; leading dims broadcast. Sums are kept in f32 (f64 for f64) and rounded once.
pub fn matmul(a: &Array, b: &Array) -> Result<Array> {
    let (a, b, shape) = prepare("matmul", a, b)?;
    let out = product("matmul", &a, &b, None)?;
    Ok(out.with_geometry(shape.clone(), crate::array::contiguous_strides(&shape), 0))
}

/// `x · weightᵀ + bias` with `weight` of shape [out, in]: the bias is what the sums start from.
pub fn linear(x: &Array, weight: &Array, bias: Option<&Array>) -> Result<Array> {
    if weight.ndim() != 2 {
        let reason = "the weight must have 2 dims, [out, in]";
        return Err(Error::ShapeMismatch {
            op: "linear",
            lhs: x.shape().clone(),
            rhs: weight.shape().clone(),
            reason,
        });
    }
    let (a, b, shape) = prepare("linear", x, &weight.transpose(0, 1)?)?;
    if let Some(bias) = bias {
        bias.check_dtype("linear", x.dtype())?;
        if bias.shape()[..] != weight.shape()[..1] {
            let reason = "the bias must have one value per row of the weight";
            let (lhs, rhs) = (weight.shape().clone(), bias.shape().clone());
            return Err(Error::ShapeMismatch { op: "linear", lhs, rhs, reason });
        }
    }
    let out = product("linear", &a, &b, bias)?;
    Ok(out.with_geometry(shape.clone(), crate::array::contiguous_strides(&shape), 0))
}

/// Adds `a · b`, a product of matrices, to `out`, which may have the type sums are kept in: a device then rounds only the
/// sum, the host each product too.
pub fn add_matmul(out: &Array, a: &Array, b: &Array) -> Result<()> {
    let op = "add_matmul";
    let fits = out.ndim() == 2 && a.ndim() == 2 && b.ndim() == 2 && a.shape()[1] == b.shape()[0];
    if !fits || out.shape()[..] != [a.shape()[0], b.shape()[1]] {
        let reason = "two matrices and one of the shape of their product are needed";
        return Err(Error::ShapeMismatch { op, lhs: a.shape().clone(), rhs: b.shape().clone(), reason });
    }
    let wide = out.dtype() == a.dtype() || out.dtype() == real_dtype(op, a.dtype())?;
    if !wide {
        return Err(Error::DTypeMismatch { op, lhs: a.dtype(), rhs: out.dtype() });
    }
    b.check_dtype(op, a.dtype())?;
    let devices = [a.device(), b.device(), out.device()];
    let one = devices.iter().all(|device| *device == devices[0]);
    if let Device::Cuda(_) = devices[0]
        && one
        && out.is_contiguous()
        && cuda::add_matmul(op, out, a, b)?
    {
        return Ok(());
    }
    out.binary_in_place(Binary::Add, &matmul(a, b)?.cast(out.dtype())?)
}

/// Both operands with at least two dims and equal batch dims, and the shape of the result.
fn prepare(op: &'static str, a: &Array, b: &Array) -> Result<(Array, Array, Shape)> {
    b.check_dtype(op, a.dtype())?;
    if a.device() != b.device() {
        return Err(a.mixed_devices(op, b));
    }
    let mismatch =
        |reason| Error::ShapeMismatch { op, lhs: a.shape().clone(), rhs: b.shape().clone(), reason };
    if a.ndim() == 0 || b.ndim() == 0 {
        return Err(mismatch("both operands need at least 1 dim"));
    }
    let left = if a.ndim() == 1 { a.unsqueeze(0)? } else { a.clone() };
    let right = if b.ndim() == 1 { b.unsqueeze(1)? } else { b.clone() };
    let ((m, k), (kb, n)) = (last_two(&left), last_two(&right));
    if k != kb {
        return Err(mismatch("the last dim of the left must equal the second last of the right"));
    }
    let batch_of = |x: &Array| Shape::new(&x.shape()[..x.ndim() - 2]);
    let batch = broadcast_shapes(op, &batch_of(&left)?, &batch_of(&right)?)
        .map_err(|_| mismatch("leading dims must broadcast"))?;
    let with = |tail: &[usize]| {
        let mut dims = Dims::from_slice(&batch);
        dims.extend_from_slice(tail);
        dims
    };
    let mut result = with(&[]);
    result.extend((a.ndim() > 1).then_some(m));
    result.extend((b.ndim() > 1).then_some(n));
    let result = Shape::from_dims(result)?;
    Shape::from_dims(with(&[m, n]))?;
    // One matrix for all batches of contiguous rows: fold the batch into the rows.
    if right.ndim() == 2 && left.ndim() > 2 && left.is_contiguous() {
        return Ok((left.reshape(&[batch.numel() * m, k])?, right, result));
    }
    Ok((left.broadcast_to(&with(&[m, k]))?, right.broadcast_to(&with(&[k, n]))?, result))
}

fn last_two(x: &Array) -> (usize, usize) {
    let n = x.ndim();
    (x.shape()[n - 2], x.shape()[n - 1])
}

fn product(op: &'static str, a: &Array, b: &Array, bias: Option<&Array>) -> Result<Array> {
    let ((m, _), (_, n)) = (last_two(a), last_two(b));
    let mut dims = Dims::from_slice(&a.shape()[..a.ndim() - 2]);
    dims.extend([m, n]);
    let shape = shrunk(dims);
    if a.is_meta() {
        return Ok(Array::meta_of(shape, a.dtype()));
    }
    if let Device::Cuda(_) = a.device() {
        real_dtype(op, a.dtype())?;
        if let Some(bias) = bias.filter(|bias| bias.device() != a.device()) {
            return Err(a.mixed_devices(op, bias));
        }
        return cuda::matmul(op, a, b, bias, &shape);
    }
    with_float!(op, a.dtype(), T => product_as::<T>(op, a, b, bias, shape))
}

fn product_as<T: Element + MatmulElement>(
    op: &'static str,
    a: &Array,
    b: &Array,
    bias: Option<&Array>,
    shape: Shape,
) -> Result<Array> {
    let (ha, hb) = (a.host(op)?, b.host(op)?);
    let start = bias.map(|bias| bias.broadcast_to(&shape)).transpose()?;
    let start = start.as_ref().map(|bias| bias.host(op).map(|host| (bias, host))).transpose()?;
    let batch_strides = |x: &Array| Strides::from_slice(&x.strides()[..x.ndim() - 2]);
    let (sa, sb) = (batch_strides(a), batch_strides(b));
    let batch = Batch { shape: &shape[..shape.ndim() - 2], a_strides: &sa, b_strides: &sb };
    let mut done = Ok(());
    let out = Array::build(shape.clone(), |out: &mut [T]| {
        let mode = match &start {
            Some((bias, host)) => {
                copy::to_contiguous(host.slice::<T>(), bias.geometry(), out);
                Accumulate::Add
            }
            None => Accumulate::Overwrite,
        };
        done = matmul_batched(out, matrix(a, ha.slice()), matrix(b, hb.slice()), batch, mode);
    })?;
    done.map_err(|e| Error::argument(op, e.to_string()))?;
    Ok(out)
}

/// The first matrix of an array with at least two dims.
fn matrix<'a, T: Element>(x: &Array, data: &'a [T]) -> MatRef<'a, T> {
    let ((rows, cols), n) = (last_two(x), x.ndim());
    let (row_stride, col_stride) = (x.strides()[n - 2], x.strides()[n - 1]);
    MatRef { data, offset: x.offset(), rows, cols, row_stride, col_stride }
}
