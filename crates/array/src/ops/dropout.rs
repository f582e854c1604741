//! Dropout, alone and fused with the residual addition. The mask is never stored: it is drawn again from its key.

use crate::array::Array;
use crate::cpu::real::{Float, Real, with_float};
use crate::cpu::simd::simd;
use crate::cpu::strided::{BLOCK, Operand};
use crate::cuda;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::fused::real_dtype;
use crate::ops::where_;
use crate::random::{BitsDraw, Key, Window, fill_run, threshold};
use planaria_cpu::pool;
use planaria_layout::DType;

/// Sets each element to 0 with probability `p` and divides the rest by `1 - p`.
///
/// Element i of the global tensor is dropped when its word of the sequence `key` is below `p * 2^32`; `window` says
/// which elements `x` holds. Narrow floats are computed in f32 and rounded once.
pub fn dropout(x: &Array, p: f64, key: Key, window: &Window) -> Result<Array> {
    let mask = Mask::new("dropout", x, p, key, window)?;
    match x.device() {
        Device::Meta => return Ok(Array::meta_of(x.shape().clone(), x.dtype())),
        Device::Cuda(ordinal) => return mask.on_cuda(x, ordinal),
        Device::Cpu => {}
    }
    let host = x.host("dropout")?;
    with_float!("dropout", x.dtype(), T => {
        let x_values = x.operand::<T>(&host);
        Array::build(x.shape().clone(), |out| mask.apply::<T>(&x_values, None, out))
    })
}

/// Gradient of [`dropout`]: the same mask and scale on the incoming gradient.
pub fn dropout_grad(grad: &Array, p: f64, key: Key, window: &Window) -> Result<Array> {
    dropout(grad, p, key, window)
}

/// `dropout(x) + residual` in one pass, bit for bit what the two steps give: narrow floats are rounded after the
/// dropout and again after the sum. The gradient is [`dropout_grad`] for `x` and the gradient itself for `residual`.
pub fn dropout_add(x: &Array, residual: &Array, p: f64, key: Key, window: &Window) -> Result<Array> {
    let op = "dropout_add";
    let mask = Mask::new(op, x, p, key, window)?;
    residual.check_dtype(op, x.dtype())?;
    if residual.shape() != x.shape() {
        let (lhs, rhs) = (x.shape().clone(), residual.shape().clone());
        return Err(Error::ShapeMismatch { op, lhs, rhs, reason: "input and residual must have one shape" });
    }
    if residual.device() != x.device() {
        return Err(x.mixed_devices(op, residual));
    }
    match x.device() {
        Device::Meta => return Ok(Array::meta_of(x.shape().clone(), x.dtype())),
        Device::Cuda(ordinal) => return mask.on_cuda(x, ordinal)?.add(residual),
        Device::Cpu => {}
    }
    let (hx, hr) = (x.host(op)?, residual.host(op)?);
    with_float!(op, x.dtype(), T => {
        let (x_values, r_values) = (x.operand::<T>(&hx), residual.operand::<T>(&hr));
        Array::build(x.shape().clone(), |out| mask.apply::<T>(&x_values, Some(&r_values), out))
    })
}

simd! {
    /// `x * scale` where the word is not below the limit, else 0.
    fn keep<R: Real>(x: &[R], words: &[u32], limit: u32, scale: R, out: &mut [R]) {
        for ((o, &x), &word) in out.iter_mut().zip(x).zip(words) {
            *o = if word >= limit { x * scale } else { R::ZERO };
        }
    }

    fn add<R: Real>(x: &[R], y: &[R], out: &mut [R]) {
        for ((o, &x), &y) in out.iter_mut().zip(x).zip(y) {
            *o = x + y;
        }
    }
}

/// Which elements are dropped.
struct Mask<'w> {
    /// Words below this drop their element; `None` drops all.
    limit: Option<u32>,
    scale: f64,
    key: Key,
    window: &'w Window,
}

impl<'w> Mask<'w> {
    fn new(op: &'static str, x: &Array, p: f64, key: Key, window: &'w Window) -> Result<Mask<'w>> {
        let limit = threshold(op, p)?;
        if window.shape() != &x.shape()[..] {
            let what =
                format!("the window shows a box of {:?}, the array has shape {}", window.shape(), x.shape());
            return Err(Error::argument(op, what));
        }
        // All dtypes are refused alike, on every device.
        if !matches!(x.dtype(), DType::F32 | DType::F64 | DType::BF16 | DType::F16) {
            return Err(Error::DType { op, found: x.dtype(), expected: "f32, f64, bf16 or f16" });
        }
        Ok(Mask { limit, scale: 1.0 / (1.0 - p), key, window })
    }

    /// The same on a device, in steps that round as one.
    fn on_cuda(&self, x: &Array, ordinal: u32) -> Result<Array> {
        let wide = real_dtype("dropout", x.dtype())?;
        let limit = cuda::Parameter::Word(self.limit.map_or(1 << 32, u64::from));
        let gone = cuda::draw(ordinal, self.window, self.key, "bernoulli", DType::Bool, &[limit])?;
        let kept = x.cast(wide)?.mul(&Array::scalar(self.scale, wide)?)?;
        where_(&gone, &Array::scalar(0, wide)?, &kept)?.cast(x.dtype())
    }

    fn words(&self, first: usize, out: &mut [u32]) {
        self.window.for_runs(first..first + out.len(), |at, start, len| {
            fill_run(BitsDraw, self.key, start, &mut out[at - first..at - first + len]);
        });
    }

    fn apply<T: Float>(&self, x: &Operand<'_, T>, residual: Option<&Operand<'_, T>>, out: &mut [T]) {
        pool::for_chunks_mut(out, BLOCK, 4 * size_of::<T>(), |first, piece| {
            let mut block = Block::<T>::default();
            for (i, out) in piece.chunks_mut(BLOCK).enumerate() {
                self.apply_block(first + i * BLOCK, x, residual, out, &mut block);
            }
        });
    }

    fn apply_block<T: Float>(
        &self,
        at: usize,
        x: &Operand<'_, T>,
        residual: Option<&Operand<'_, T>>,
        out: &mut [T],
        block: &mut Block<T>,
    ) {
        let mut gathered = [T::default(); BLOCK];
        let range = at..at + out.len();
        match self.limit {
            None => out.fill(T::default()),
            Some(limit) => {
                let mut words = [0; BLOCK];
                let words = &mut words[..out.len()];
                self.words(at, words);
                let x = T::widen(x.block(range.clone(), &mut gathered), &mut block.x);
                let scale = T::Real::of(self.scale);
                T::narrow(out, &mut block.out, |out| keep(x, words, limit, scale, out));
            }
        }
        if let Some(residual) = residual {
            let mut kept = [T::default(); BLOCK];
            let kept = &mut kept[..out.len()];
            kept.copy_from_slice(out);
            let x = T::widen(kept, &mut block.x);
            let y = T::widen(residual.block(range, &mut gathered), &mut block.y);
            T::narrow(out, &mut block.out, |out| add(x, y, out));
        }
    }
}

/// Scratch for narrow types.
#[derive(Default)]
struct Block<T: Float> {
    x: Vec<T::Real>,
    y: Vec<T::Real>,
    out: Vec<T::Real>,
}
