//! Rolling, flipping and repeating: copies in which each dim is mapped on its own, and their gradients.

use crate::array::Array;
use crate::cpu::real::Real;
use crate::cpu::remap::{Map, Remap, fold};
use crate::device::Device;
use crate::element::{Element, Scalar, with_dtype, with_size};
use crate::error::{Error, Result};
use crate::ops::remap_on_device;
use crate::view::{real_dim, resolve_dims};
use bytemuck::Pod;
use planaria_layout::{DType, Dims, Shape};

/// `x` read through one map per dim into an array of the given shape, gaps filled with `fill`.
/// The maps are only made when there is something to copy.
pub(super) fn remap(
    op: &'static str,
    x: &Array,
    shape: Shape,
    fill: Scalar,
    maps: impl FnOnce() -> Vec<Map>,
) -> Result<Array> {
    if x.is_meta() {
        return Ok(Array::meta_of(shape, x.dtype()));
    }
    if shape.numel() == 0 {
        return Array::zeros_on(&shape, x.dtype(), x.device());
    }
    if let Device::Cuda(_) = x.device() {
        return remap_on_device::read(op, x, &maps(), fill);
    }
    let flat = x.contiguous()?;
    let host = flat.host(op)?;
    with_size!(x.dtype(), T => Array::build_bytes::<T>(shape, x.dtype(), |out| {
        // An empty view may begin past the end of its storage.
        let src = host.slice::<T>().get(flat.offset()..flat.offset() + flat.numel()).unwrap_or(&[]);
        let maps = maps();
        debug_assert_eq!(maps.iter().map(Map::len).product::<usize>(), out.len());
        Remap::new(x.shape(), &maps).run(src, pattern::<T>(fill, x.dtype()), out);
    }))
}

/// The bits of `value` in `dtype`, as the unsigned integer of its size.
fn pattern<T: Pod>(value: Scalar, dtype: DType) -> T {
    with_dtype!(dtype, E => bytemuck::pod_read_unaligned(bytemuck::bytes_of(&E::from_scalar(value))))
}

/// The gradient of [`remap`] from `input`: every element of `grad` is added back to where it came from.
/// Narrow floats are summed in f32 and rounded once.
pub(super) fn remap_grad(
    op: &'static str,
    grad: &Array,
    input: &Shape,
    shape: &Shape,
    maps: impl FnOnce() -> Vec<Map>,
) -> Result<Array> {
    if grad.shape() != shape {
        let (lhs, rhs) = (grad.shape().clone(), shape.clone());
        return Err(Error::ShapeMismatch {
            op,
            lhs,
            rhs,
            reason: "the gradient must have the result's shape",
        });
    }
    if !matches!(grad.dtype(), DType::F32 | DType::F64 | DType::BF16 | DType::F16) {
        return Err(Error::DType { op, found: grad.dtype(), expected: "f32, f64, bf16 or f16" });
    }
    if grad.is_meta() {
        return Ok(Array::meta_of(input.clone(), grad.dtype()));
    }
    if shape.numel() == 0 {
        return Array::zeros_on(input, grad.dtype(), grad.device());
    }
    if let Device::Cuda(_) = grad.device() {
        let wide = if grad.dtype() == DType::F64 { grad.clone() } else { grad.cast(DType::F32)? };
        return remap_on_device::add_back(&wide, input, &maps())?.cast(grad.dtype());
    }
    match grad.dtype() {
        DType::F64 => fold_all::<f64>(op, grad, input, &maps()),
        DType::F32 => fold_all::<f32>(op, grad, input, &maps()),
        narrow => fold_all::<f32>(op, &grad.cast(DType::F32)?, input, &maps())?.cast(narrow),
    }
}

fn fold_all<R: Real>(op: &'static str, grad: &Array, input: &Shape, maps: &[Map]) -> Result<Array> {
    let mut sum = grad.clone();
    for (d, map) in maps.iter().enumerate() {
        if *map == Map::identity(input[d]) {
            continue;
        }
        let mut dims = Dims::from_slice(sum.shape());
        dims[d] = input[d];
        let block = dims[d + 1..].iter().product();
        let values = sum.values::<R>(op)?;
        sum = Array::build(Shape::from_dims(dims)?, |out: &mut [R]| {
            out.fill(R::ZERO);
            fold(map, block, &values, out);
        })?;
    }
    sum.contiguous()
}

impl Array {
    /// Moves elements by `shifts[i]` along `dims[i]`, what falls off the end coming back at the start.
    /// With no dims and one shift the array is rolled as if it were flat. The gradient rolls by `-shift`.
    pub fn roll(&self, shifts: &[i64], dims: &[i64]) -> Result<Array> {
        if dims.is_empty() && shifts.len() == 1 {
            let flat = self.reshape(&[self.numel()])?.roll(shifts, &[0])?;
            return flat.reshape(self.shape());
        }
        if dims.len() != shifts.len() {
            let what = format!("{} shifts are given for {} dims", shifts.len(), dims.len());
            return Err(Error::argument("roll", what));
        }
        let mut total = Dims::from_elem(0, self.ndim());
        for (&shift, &dim) in shifts.iter().zip(dims) {
            let d = real_dim("roll", dim, self.ndim())?;
            let size = self.shape()[d].max(1);
            let shift = i128::from(shift).rem_euclid(size as i128) as usize;
            total[d] = (total[d] + shift) % size;
        }
        remap("roll", self, self.shape().clone(), Scalar::Int(0), || {
            self.shape().iter().zip(&total).map(|(&size, &shift)| Map::roll(size, shift)).collect()
        })
    }

    /// A copy with the order of elements reversed along each of `dims`. It is its own gradient.
    pub fn flip(&self, dims: &[i64]) -> Result<Array> {
        let dims = resolve_dims("flip", dims, self.ndim())?;
        remap("flip", self, self.shape().clone(), Scalar::Int(0), || {
            let map = |(d, &size)| if dims.contains(&d) { Map::flip(size) } else { Map::identity(size) };
            self.shape().iter().enumerate().map(map).collect()
        })
    }

    /// The array laid out `times[i]` times along dim i. More counts than dims add leading dims; fewer apply to
    /// the last dims.
    pub fn repeat(&self, times: &[usize]) -> Result<Array> {
        let (x, times) = (leading_ones(self, times.len())?, padded(times, self.ndim()));
        let shape = tiled(x.shape(), &times)?;
        remap("repeat", &x, shape, Scalar::Int(0), || tile_maps(x.shape(), &times))
    }

    /// Each position along `dim` `repeats[i]` times in a row; a single count serves all positions.
    pub fn repeat_interleave(&self, repeats: &[usize], dim: i64) -> Result<Array> {
        let d = real_dim("repeat_interleave", dim, self.ndim())?;
        let shape = interleaved(self.shape(), repeats, d)?;
        let x = self;
        remap("repeat_interleave", x, shape, Scalar::Int(0), || interleave_maps(x.shape(), repeats, d))
    }
}

/// Gradient of [`Array::repeat`] of an array of shape `input`: the sum over all copies.
pub fn repeat_grad(grad: &Array, input: &Shape, times: &[usize]) -> Result<Array> {
    let all = padded(times, input.ndim());
    let mut dims = Dims::from_elem(1, all.len() - input.ndim());
    dims.extend_from_slice(input);
    let long = Shape::from_dims(dims)?;
    let shape = tiled(&long, &all)?;
    remap_grad("repeat_grad", grad, &long, &shape, || tile_maps(&long, &all))?.reshape(input)
}

/// Gradient of [`Array::repeat_interleave`] of an array of shape `input`: the sum over each position's copies.
pub fn repeat_interleave_grad(grad: &Array, input: &Shape, repeats: &[usize], dim: i64) -> Result<Array> {
    let d = real_dim("repeat_interleave_grad", dim, input.ndim())?;
    let shape = interleaved(input, repeats, d)?;
    remap_grad("repeat_interleave_grad", grad, input, &shape, || interleave_maps(input, repeats, d))
}

/// `x` with enough leading dims of size 1 to have `ndim` dims.
fn leading_ones(x: &Array, ndim: usize) -> Result<Array> {
    let mut dims = Dims::from_elem(1, ndim.saturating_sub(x.ndim()));
    dims.extend_from_slice(x.shape());
    x.reshape(&dims)
}

/// `times` with enough leading ones for `ndim` dims.
fn padded(times: &[usize], ndim: usize) -> Dims {
    let mut all = Dims::from_elem(1, ndim.saturating_sub(times.len()));
    all.extend_from_slice(times);
    all
}

fn tiled(shape: &Shape, times: &[usize]) -> Result<Shape> {
    // A product past usize is also past what a shape accepts.
    Ok(Shape::from_dims(shape.iter().zip(times).map(|(&size, &n)| size.saturating_mul(n)).collect())?)
}

fn tile_maps(shape: &Shape, times: &[usize]) -> Vec<Map> {
    let map = |(&size, &n): (&usize, &usize)| if n == 1 { Map::identity(size) } else { Map::tile(size, n) };
    shape.iter().zip(times).map(map).collect()
}

fn interleaved(shape: &Shape, repeats: &[usize], d: usize) -> Result<Shape> {
    let size = shape[d];
    if repeats.len() != size && repeats.len() != 1 {
        let what = format!("{} counts are given for dim {d} of size {size}; give 1 or {size}", repeats.len());
        return Err(Error::argument("repeat_interleave", what));
    }
    let mut dims = Dims::from_slice(shape);
    dims[d] = match repeats {
        [n] => n.saturating_mul(size),
        _ => repeats.iter().fold(0, |sum: usize, &n| sum.saturating_add(n)),
    };
    Ok(Shape::from_dims(dims)?)
}

fn interleave_maps(shape: &Shape, repeats: &[usize], d: usize) -> Vec<Map> {
    let count = |i: usize| if repeats.len() == 1 { repeats[0] } else { repeats[i] };
    let mut maps: Vec<Map> = shape.iter().map(|&size| Map::identity(size)).collect();
    maps[d] = Map::interleave(shape[d], count);
    maps
}
