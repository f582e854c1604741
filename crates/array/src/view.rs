//! Views: the same storage seen with another shape. No function here copies elements except `reshape` of a
//! view that cannot be described by strides.

use crate::array::{Array, Strides, contiguous_strides};
use crate::error::{Error, Result};
use planaria_layout::{Dims, Region, Shape};
use smallvec::SmallVec;

/// Turns a dim that may count from the end into an index; 0-d arrays accept 0 and -1 like one-dim ones.
pub(crate) fn resolve_dim(op: &'static str, dim: i64, ndim: usize) -> Result<usize> {
    let n = ndim.max(1) as i64;
    if (-n..n).contains(&dim) {
        Ok(dim.rem_euclid(n) as usize)
    } else {
        Err(Error::DimOutOfRange { op, dim, ndim })
    }
}

/// Like [`resolve_dim`] for a real dim of a non-scalar array.
pub(crate) fn real_dim(op: &'static str, dim: i64, ndim: usize) -> Result<usize> {
    if ndim == 0 {
        return Err(Error::DimOutOfRange { op, dim, ndim });
    }
    resolve_dim(op, dim, ndim)
}

/// Several dims, each once, in the order given.
pub(crate) fn resolve_dims(op: &'static str, dims: &[i64], ndim: usize) -> Result<SmallVec<[usize; 6]>> {
    let mut out: SmallVec<[usize; 6]> = SmallVec::new();
    for &dim in dims {
        let d = resolve_dim(op, dim, ndim)?;
        if out.contains(&d) {
            return Err(Error::argument(op, format!("dim {dim} is named twice in {dims:?}")));
        }
        out.push(d);
    }
    Ok(out)
}

/// The permutation that undoes `order`, for [`Array::permute`].
pub(crate) fn inverse(order: &[usize]) -> SmallVec<[i64; 6]> {
    let mut back: SmallVec<[i64; 6]> = (0..order.len() as i64).collect();
    back.sort_by_key(|&i| order[i as usize]);
    back
}

/// The shape two shapes broadcast to.
pub fn broadcast_shapes(op: &'static str, a: &Shape, b: &Shape) -> Result<Shape> {
    let ndim = a.ndim().max(b.ndim());
    let mut dims = Dims::from_elem(1, ndim);
    for (i, dim) in dims.iter_mut().enumerate() {
        let at = |s: &Shape| (i + s.ndim()).checked_sub(ndim).map_or(1, |j| s[j]);
        *dim = match (at(a), at(b)) {
            (x, y) if x == y || y == 1 => x,
            (1, y) => y,
            _ => {
                let reason = "trailing dims must be equal or 1";
                return Err(Error::ShapeMismatch { op, lhs: a.clone(), rhs: b.clone(), reason });
            }
        };
    }
    Ok(Shape::from_dims(dims)?)
}

impl Array {
    /// Swaps two dims.
    pub fn transpose(&self, a: i64, b: i64) -> Result<Array> {
        let (a, b) = (resolve_dim("transpose", a, self.ndim())?, resolve_dim("transpose", b, self.ndim())?);
        let mut order: SmallVec<[usize; 6]> = (0..self.ndim()).collect();
        if self.ndim() > 0 {
            order.swap(a, b);
        }
        self.permuted(&order)
    }

    /// Reorders all dims: result dim i is this array's dim `dims[i]`.
    pub fn permute(&self, dims: &[i64]) -> Result<Array> {
        if dims.len() != self.ndim() {
            let what =
                format!("{dims:?} must name each of the {} dims of {} once", self.ndim(), self.shape());
            return Err(Error::argument("permute", what));
        }
        self.permuted(&resolve_dims("permute", dims, self.ndim())?)
    }

    fn permuted(&self, order: &[usize]) -> Result<Array> {
        let shape = order.iter().map(|&d| self.shape()[d]).collect::<Dims>();
        let strides = order.iter().map(|&d| self.strides()[d]).collect();
        Ok(self.with_geometry(Shape::from_dims(shape)?, strides, self.offset()))
    }

    /// The elements `start`, `start + step`, ... before `stop` along one dim. Bounds are clamped and may count from
    /// the end, as in Python; a negative step walks backwards. The result is a view.
    pub fn slice(&self, dim: i64, start: Option<i64>, stop: Option<i64>, step: i64) -> Result<Array> {
        let d = real_dim("slice", dim, self.ndim())?;
        let (start, len) =
            slice_bounds(self.shape()[d], start, stop, step).ok_or(Error::Step { position: 0 })?;
        Ok(self.sliced(d, start, len, step as isize))
    }

    /// Like `slice` with bounds already resolved and in range.
    pub(crate) fn sliced(&self, d: usize, start: usize, len: usize, step: isize) -> Array {
        let mut dims = Dims::from_slice(self.shape());
        dims[d] = len;
        let mut strides: Strides = SmallVec::from_slice(self.strides());
        let skip = if len > 0 { start as isize * strides[d] } else { 0 };
        let offset = (self.offset() as isize + skip) as usize;
        // A step past the end leaves one element, whose stride does not matter.
        strides[d] = if len > 1 { strides[d] * step } else { strides[d] };
        self.with_geometry(shrunk(dims), strides, offset)
    }

    /// `len` elements along one dim from `start`.
    pub fn narrow(&self, dim: i64, start: usize, len: usize) -> Result<Array> {
        let d = real_dim("narrow", dim, self.ndim())?;
        match start.checked_add(len) {
            Some(end) if end <= self.shape()[d] => Ok(self.sliced(d, start, len, 1)),
            _ => {
                let what =
                    format!("{len} elements from {start} reach past dim {d} of size {}", self.shape()[d]);
                Err(Error::argument("narrow", what))
            }
        }
    }

    /// The elements inside a box.
    pub fn region(&self, region: &Region) -> Result<Array> {
        if !Region::whole(self.shape()).contains(region) || region.ndim() != self.ndim() {
            return Err(Error::argument(
                "region",
                format!("{region} does not lie inside shape {}", self.shape()),
            ));
        }
        Ok((0..self.ndim()).fold(self.clone(), |view, d| view.sliced(d, region.lo()[d], region.len(d), 1)))
    }

    /// One position along a dim, which disappears.
    pub fn select(&self, dim: i64, index: i64) -> Result<Array> {
        let d = real_dim("select", dim, self.ndim())?;
        let size = self.shape()[d];
        let at =
            wrap_index(index, size).ok_or(Error::IndexOutOfRange { index, position: 0, dim: d, size })?;
        Ok(self.selected(d, at))
    }

    pub(crate) fn selected(&self, d: usize, at: usize) -> Array {
        let mut dims = Dims::from_slice(self.shape());
        let mut strides: Strides = SmallVec::from_slice(self.strides());
        let offset = self.offset() as isize + at as isize * strides[d];
        dims.remove(d);
        strides.remove(d);
        self.with_geometry(shrunk(dims), strides, offset as usize)
    }

    /// Inserts a dim of size 1 before `dim`.
    pub fn unsqueeze(&self, dim: i64) -> Result<Array> {
        let d = resolve_dim("unsqueeze", dim, self.ndim() + 1)?;
        let mut dims = Dims::from_slice(self.shape());
        let mut strides: Strides = SmallVec::from_slice(self.strides());
        let stride = if d < self.ndim() { strides[d] * dims[d].max(1) as isize } else { 1 };
        dims.insert(d, 1);
        strides.insert(d, stride);
        Ok(self.with_geometry(Shape::from_dims(dims)?, strides, self.offset()))
    }

    /// Removes the given dims of size 1 (those of another size stay); all of them when `dims` is empty.
    pub fn squeeze(&self, dims: &[i64]) -> Result<Array> {
        let named = resolve_dims("squeeze", dims, self.ndim())?;
        let gone = |d: usize| self.shape()[d] == 1 && (dims.is_empty() || named.contains(&d));
        let keep: SmallVec<[usize; 6]> = (0..self.ndim()).filter(|&d| !gone(d)).collect();
        self.permuted(&keep)
    }

    /// Repeats dims of size 1 without copying, and adds leading dims.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Array> {
        let to = Shape::new(shape)?;
        let refuse = || Error::Broadcast { op: "broadcast_to", from: self.shape().clone(), to: to.clone() };
        let new = to.ndim().checked_sub(self.ndim()).ok_or_else(refuse)?;
        let mut strides: Strides = SmallVec::from_elem(0, to.ndim());
        for d in 0..self.ndim() {
            strides[new + d] = match (self.shape()[d], to[new + d]) {
                (a, b) if a == b => self.strides()[d],
                (1, _) => 0,
                _ => return Err(refuse()),
            };
        }
        Ok(self.with_geometry(to, strides, self.offset()))
    }

    /// The same elements in row-major order under another shape; a view where strides allow it.
    pub fn reshape(&self, shape: &[usize]) -> Result<Array> {
        let to = Shape::new(shape)?;
        if to.numel() != self.numel() {
            let reason = "element counts must be equal";
            return Err(Error::ShapeMismatch { op: "reshape", lhs: self.shape().clone(), rhs: to, reason });
        }
        match view_strides(self.shape(), self.strides(), &to) {
            Some(strides) => Ok(self.with_geometry(to, strides, self.offset())),
            None => {
                let flat = self.contiguous()?;
                Ok(flat.with_geometry(to.clone(), contiguous_strides(&to), flat.offset()))
            }
        }
    }

    /// Merges dims `first..=last` into one.
    pub fn flatten(&self, first: i64, last: i64) -> Result<Array> {
        let (a, b) =
            (resolve_dim("flatten", first, self.ndim())?, resolve_dim("flatten", last, self.ndim())?);
        if a > b {
            return Err(Error::argument("flatten", format!("first dim {first} comes after last dim {last}")));
        }
        if self.ndim() == 0 {
            return self.reshape(&[1]);
        }
        let mut dims = Dims::from_slice(&self.shape()[..a]);
        dims.push(self.shape()[a..=b].iter().product());
        dims.extend_from_slice(&self.shape()[b + 1..]);
        self.reshape(&dims)
    }

    /// Any geometry that stays inside the storage.
    pub fn as_strided(&self, shape: &[usize], strides: &[isize], offset: usize) -> Result<Array> {
        let shape = Shape::new(shape)?;
        if shape.ndim() != strides.len() {
            let what =
                format!("shape {shape} has {} dims but {} strides are given", shape.ndim(), strides.len());
            return Err(Error::argument("as_strided", what));
        }
        let (mut low, mut high) = (offset as i128, offset as i128);
        for (&len, &stride) in shape.iter().zip(strides) {
            let reach = (len.max(1) - 1) as i128 * stride as i128;
            if reach < 0 { low += reach } else { high += reach }
        }
        if shape.numel() > 0 && (low < 0 || high >= self.storage_len() as i128) {
            let (strides, len) = (strides.to_vec(), self.storage_len());
            return Err(Error::OutOfStorage { op: "as_strided", shape, strides, offset, len });
        }
        Ok(self.with_geometry(shape, SmallVec::from_slice(strides), offset))
    }
}

/// A shape made only smaller than one already checked.
pub(crate) fn shrunk(dims: Dims) -> Shape {
    Shape::from_dims(dims).unwrap_or_default()
}

/// A position that may count from the end, or `None` when outside.
pub(crate) fn wrap_index(index: i64, size: usize) -> Option<usize> {
    let at = if index < 0 { index.checked_add_unsigned(size as u64)? } else { index };
    usize::try_from(at).ok().filter(|&at| at < size)
}

/// What `start:stop:step` takes of a dim, by Python's rules: its first position and how many there are, `step` apart;
/// `None` for a step of 0.
pub fn slice_bounds(size: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Option<(usize, usize)> {
    // A walk begins at one end of the dim and stops just past the other.
    let size = size as i64;
    let (begin, end) = if step > 0 { (0, size) } else { (size - 1, -1) };
    let place = |bound: Option<i64>, absent: i64| match bound {
        None => absent,
        Some(bound) => (if bound < 0 { bound + size } else { bound }).clamp(begin.min(end), begin.max(end)),
    };
    let (start, stop) = (place(start, begin), place(stop, end));
    let span = if step > 0 { stop - start } else { start - stop };
    match step.unsigned_abs() {
        0 => None,
        _ if span <= 0 => Some((0, 0)),
        step => Some((start as usize, (span as u64).div_ceil(step) as usize)),
    }
}

/// Strides under which `to` shows the same elements in the same order, if there are any.
fn view_strides(shape: &Shape, strides: &[isize], to: &Shape) -> Option<Strides> {
    if shape.numel() == 0 {
        return Some(contiguous_strides(to));
    }
    // Runs of old dims that step evenly, innermost last; new dims must be cut out of one run each.
    let old: SmallVec<[(usize, isize); 6]> =
        shape.iter().copied().zip(strides.iter().copied()).filter(|&(len, _)| len != 1).collect();
    let mut out: Strides = SmallVec::from_elem(1, to.ndim());
    let mut new = to.ndim();
    let mut o = old.len();
    while o > 0 {
        o -= 1;
        let base = old[o].1;
        let mut run = old[o].0;
        while o > 0 && old[o - 1].1 == old[o].1 * old[o].0 as isize {
            o -= 1;
            run *= old[o].0;
        }
        let mut step = 1;
        while new > 0 && (step < run || to[new - 1] == 1) {
            new -= 1;
            out[new] = base * step as isize;
            step *= to[new];
        }
        if step != run {
            return None;
        }
    }
    (new == 0 || to[..new].iter().all(|&d| d == 1)).then_some(out)
}
