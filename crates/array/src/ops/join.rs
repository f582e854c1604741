//! Joining arrays and cutting them into views.

use crate::array::{Array, contiguous_strides};
use crate::cpu::copy::{self, Geometry};
use crate::device::Device;
use crate::element::with_size;
use crate::error::{Error, Result};
use crate::view::{real_dim, resolve_dim};
use planaria_layout::{Dims, Shape};

/// The arrays one after the other along `dim`; their other dims, dtypes and devices must agree.
/// The gradient is [`Array::split_sizes`] with the sizes that went in.
pub fn concat(arrays: &[&Array], dim: i64) -> Result<Array> {
    let first = first_of("concat", arrays)?;
    let d = real_dim("concat", dim, first.ndim())?;
    let mut total = 0usize;
    for x in arrays {
        same_kind("concat", first, x)?;
        let others =
            |x: &Array| x.shape().iter().enumerate().filter(|(i, _)| *i != d).map(|(_, s)| *s).collect();
        let (a, b): (Dims, Dims) = (others(first), others(x));
        if x.ndim() != first.ndim() || a != b {
            let (lhs, rhs) = (first.shape().clone(), x.shape().clone());
            let reason = "all dims but the joined one must be equal";
            return Err(Error::ShapeMismatch { op: "concat", lhs, rhs, reason });
        }
        total = total.saturating_add(x.shape()[d]);
    }
    let mut dims = Dims::from_slice(first.shape());
    dims[d] = total;
    let shape = Shape::from_dims(dims)?;
    match first.device() {
        Device::Meta => Ok(Array::meta_of(shape, first.dtype())),
        Device::Cpu => join(arrays, d, shape),
        Device::Cuda(_) => {
            let out = Array::unwritten("concat", shape, first.dtype(), first.device())?;
            let mut at = 0;
            for x in arrays {
                out.narrow(d as i64, at, x.shape()[d])?.copy_from(x)?;
                at += x.shape()[d];
            }
            Ok(out)
        }
    }
}

/// A view of arrays that lie one behind the other in one memory, along their first dim; none where they do not. Who writes
/// to it writes to them.
pub fn beside(arrays: &[&Array]) -> Option<Array> {
    let first = *arrays.first()?;
    let rows = arrays.iter().map(|x| x.shape().first().copied()).sum::<Option<usize>>()?;
    let fits = |x: &&Array| {
        let alike = x.dtype() == first.dtype() && x.shape().get(1..) == first.shape().get(1..);
        alike && x.is_contiguous() && x.shares_storage(first)
    };
    let follows = |pair: &[&Array]| pair[0].offset() + pair[0].numel() == pair[1].offset();
    if !arrays.iter().all(fits) || !arrays.windows(2).all(follows) {
        return None;
    }
    let mut dims = Dims::from_slice(first.shape());
    dims[0] = rows;
    let strides = contiguous_strides(&Shape::from_dims(dims.clone()).ok()?);
    first.as_strided(&dims, &strides, first.offset()).ok()
}

/// Copies the arrays next to each other along dim `d` of a new array.
fn join(arrays: &[&Array], d: usize, shape: Shape) -> Result<Array> {
    let first = arrays[0];
    let strides = contiguous_strides(&shape);
    let hosts = arrays.iter().map(|x| x.host("concat")).collect::<Result<Vec<_>>>()?;
    with_size!(first.dtype(), T => Array::build_bytes::<T>(shape, first.dtype(), |out| {
        let mut at = 0;
        for (x, host) in arrays.iter().zip(&hosts).filter(|(x, _)| x.numel() > 0) {
            let view = Geometry { offset: at * strides[d] as usize, shape: x.shape(), strides: &strides };
            // A part of a fresh row-major array has no overlapping cells.
            let written = copy::strided(out, view, host.slice::<T>(), x.geometry());
            debug_assert!(written);
            at += x.shape()[d];
        }
    }))
}

/// The arrays, all of one shape, side by side along a new dim placed before `dim`.
/// The gradient is [`Array::unbind`].
pub fn stack(arrays: &[&Array], dim: i64) -> Result<Array> {
    let first = first_of("stack", arrays)?;
    let d = resolve_dim("stack", dim, first.ndim() + 1)?;
    let mut parts = Vec::with_capacity(arrays.len());
    for x in arrays {
        if x.shape() != first.shape() {
            let (lhs, rhs) = (first.shape().clone(), x.shape().clone());
            return Err(Error::ShapeMismatch { op: "stack", lhs, rhs, reason: "all shapes must be equal" });
        }
        same_kind("stack", first, x)?;
        parts.push(x.unsqueeze(d as i64)?);
    }
    concat(&parts.iter().collect::<Vec<_>>(), d as i64)
}

fn first_of<'a>(op: &'static str, arrays: &[&'a Array]) -> Result<&'a Array> {
    arrays.first().copied().ok_or_else(|| Error::argument(op, "at least one array is needed, got none"))
}

fn same_kind(op: &'static str, first: &Array, x: &Array) -> Result<()> {
    x.check_dtype(op, first.dtype()).map_err(|_| Error::DTypeMismatch {
        op,
        lhs: first.dtype(),
        rhs: x.dtype(),
    })?;
    if x.device() == first.device() { Ok(()) } else { Err(first.mixed_devices(op, x)) }
}

impl Array {
    /// Views of `size` positions each along `dim`; the last one may be smaller.
    pub fn split(&self, size: usize, dim: i64) -> Result<Vec<Array>> {
        let d = real_dim("split", dim, self.ndim())?;
        let total = self.shape()[d];
        if size == 0 && total > 0 {
            return Err(Error::argument(
                "split",
                format!("pieces of size 0 never cover dim {d} of size {total}"),
            ));
        }
        // An empty dim gives one empty piece.
        let count = if total == 0 { 1 } else { total.div_ceil(size) };
        Ok((0..count).map(|i| self.sliced(d, i * size, size.min(total - i * size), 1)).collect())
    }

    /// Views of the given sizes along `dim`, which must add up to its size. The gradient is [`concat()`].
    pub fn split_sizes(&self, sizes: &[usize], dim: i64) -> Result<Vec<Array>> {
        let d = real_dim("split_sizes", dim, self.ndim())?;
        let total = sizes.iter().try_fold(0usize, |sum, &s| sum.checked_add(s));
        if total != Some(self.shape()[d]) {
            let what = format!("sizes {sizes:?} do not add up to {}, the size of dim {d}", self.shape()[d]);
            return Err(Error::argument("split_sizes", what));
        }
        let mut at = 0;
        let mut piece = |&size: &usize| {
            at += size;
            self.sliced(d, at - size, size, 1)
        };
        Ok(sizes.iter().map(&mut piece).collect())
    }

    /// At most `count` views along `dim` of equal size but for a smaller last one, as few as that size needs.
    pub fn chunk(&self, count: usize, dim: i64) -> Result<Vec<Array>> {
        let d = real_dim("chunk", dim, self.ndim())?;
        match (count, self.shape()[d]) {
            (0, _) => Err(Error::argument("chunk", "at least 1 piece must be asked for, got 0")),
            (_, 0) => Ok((0..count).map(|_| self.clone()).collect()),
            (_, total) => self.split(total.div_ceil(count), dim),
        }
    }

    /// One view per position along `dim`, which disappears. The gradient is [`stack`].
    pub fn unbind(&self, dim: i64) -> Result<Vec<Array>> {
        let d = real_dim("unbind", dim, self.ndim())?;
        Ok((0..self.shape()[d]).map(|i| self.selected(d, i)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_layout::DType;

    #[test]
    fn what_lies_side_by_side_is_shown_without_a_copy() {
        let all = Array::arange(0, 24, 1, DType::I64).unwrap();
        let part = |at: usize, rows: usize| all.narrow(0, at, 4 * rows).unwrap().reshape(&[rows, 4]).unwrap();
        let (a, b, c) = (part(4, 2), part(12, 1), part(16, 2));
        let shown = beside(&[&a, &b, &c]).unwrap();
        assert_eq!(shown.shape()[..], [5, 4]);
        assert!(shown.shares_storage(&all));
        assert_eq!(shown.to_vec::<i64>().unwrap(), (4..24).collect::<Vec<_>>());
        // Out of order, with a gap, elsewhere, turned.
        assert!(beside(&[&b, &a]).is_none() && beside(&[&a, &c]).is_none());
        assert!(beside(&[&a, &b.copy().unwrap()]).is_none());
        assert!(beside(&[&a.transpose(0, 1).unwrap(), &b]).is_none() && beside(&[]).is_none());
    }
}
