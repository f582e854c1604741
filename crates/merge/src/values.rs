//! Tensors as functions of their elements: stored, computed, rearranged; all of them are read in the same way.

use crate::error::{Error, Result};
use crate::seen::Seen;
use half::{bf16, f16};
use planaria_array::Array;
use planaria_ckpt::formats::Key;
use planaria_ckpt::stream::Feed;
use planaria_layout::{DType, Shape};
use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::Arc;

/// A tensor. Any elements may be asked for, in any order, by several threads.
pub(crate) trait Values: Debug + Send + Sync {
    /// Element type; what is read is exact in it.
    fn dtype(&self) -> DType;
    /// Extents.
    fn shape(&self) -> &Shape;
    /// The elements from `first` on, in row-major order.
    fn read(&self, first: usize, out: &mut [f64]) -> Result<()>;
    /// The same as bytes of its element type.
    fn copy(&self, first: usize, out: &mut [u8]) -> Result<()> {
        in_steps(self.dtype(), first, out, |at, values| self.read(at, values))
    }
}

/// Elements that are made together: few enough for what is made of them to stay near the processor.
const STEP: usize = 64 << 10;

/// Makes bytes of numbers that `read` gives, a stretch at a time.
pub(crate) fn in_steps(
    dtype: DType,
    first: usize,
    out: &mut [u8],
    mut read: impl FnMut(usize, &mut [f64]) -> Result<()>,
) -> Result<()> {
    let mut values = vec![0.0; STEP.min(out.len() / dtype.size())];
    for (number, out) in out.chunks_mut(STEP * dtype.size()).enumerate() {
        let values = &mut values[..out.len() / dtype.size()];
        read(first + number * STEP, values)?;
        encode(values, dtype, out)?;
    }
    Ok(())
}

/// Bytes as numbers.
pub(crate) fn decode(bytes: &[u8], dtype: DType, out: &mut [f64]) -> Result<()> {
    match dtype {
        DType::F32 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *out = f64::from(f32::from_le_bytes(*bytes));
            }
        }
        DType::BF16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = f64::from(f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16));
            }
        }
        DType::F64 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *out = f64::from_le_bytes(*bytes);
            }
        }
        _ => {
            let array = Array::from_bytes(bytes, &[out.len()], dtype)?.cast(DType::F64)?;
            out.copy_from_slice(&array.to_vec::<f64>()?);
        }
    }
    Ok(())
}

/// Numbers as bytes, rounded to nearest; what the type cannot hold is refused.
pub(crate) fn encode(values: &[f64], dtype: DType, out: &mut [u8]) -> Result<()> {
    let mut finite = true;
    match dtype {
        DType::F32 => {
            for (value, out) in values.iter().zip(out.as_chunks_mut::<4>().0) {
                let value = *value as f32;
                finite &= value.is_finite();
                *out = value.to_le_bytes();
            }
        }
        DType::BF16 => {
            for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                // To nearest, halves to even, without a branch: what is not finite is refused below.
                let bits = (*value as f32).to_bits();
                let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
                finite &= rounded & 0x7f80 != 0x7f80;
                *out = rounded.to_le_bytes();
            }
        }
        DType::F16 => {
            for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                let value = f16::from_f32(*value as f32);
                finite &= value.is_finite();
                *out = value.to_le_bytes();
            }
        }
        _ => {
            finite = values.iter().all(|value| value.is_finite());
            let array = Array::from_slice(values, &[values.len()])?.cast(dtype)?;
            out.copy_from_slice(&array.bytes()?);
        }
    }
    if finite {
        return Ok(());
    }
    let at = values.iter().position(|value| !fits(*value, dtype));
    let value = at.map_or(f64::NAN, |at| values[at]);
    Err(Error::request(format!(
        "{value} is among the results, and {dtype} has no such number; nothing is written"
    )))
}

fn fits(value: f64, dtype: DType) -> bool {
    let mut rounded = [value];
    round(&mut rounded, dtype);
    rounded[0].is_finite()
}

/// Rounds numbers to what an element type can hold.
pub(crate) fn round(values: &mut [f64], dtype: DType) {
    match dtype {
        DType::F32 => values.iter_mut().for_each(|value| *value = f64::from(*value as f32)),
        DType::BF16 => {
            values.iter_mut().for_each(|value| *value = f64::from(bf16::from_f32(*value as f32).to_f32()))
        }
        DType::F16 => {
            values.iter_mut().for_each(|value| *value = f64::from(f16::from_f32(*value as f32).to_f32()))
        }
        _ => {}
    }
}

thread_local! {
    /// What was read and is not decoded yet; kept between reads.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    feed: Arc<Feed<'static>>,
    key: Key,
    dtype: DType,
    shape: Shape,
    seen: Arc<Seen>,
}

impl Stored {
    pub(crate) fn new(feed: &Arc<Feed<'static>>, key: &Key) -> Result<Stored> {
        let entry = feed.source().get(key)?;
        let (dtype, shape) = (entry.dtype, entry.shape.clone());
        Ok(Stored { feed: feed.clone(), key: key.clone(), dtype, shape, seen: Arc::default() })
    }

    /// What was read of it so far.
    pub(crate) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// The CRC-32C of all its bytes; those that were read already are not read again.
    pub(crate) fn sum(&self) -> Result<u32> {
        let size = self.dtype.size();
        self.seen.sum(self.shape.numel() * size, |range, out| {
            let elements = range.start / size..range.end / size;
            Ok(self.feed.elements(&self.key, elements, out, &mut Vec::new())?)
        })
    }
}

impl Values for Stored {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        BYTES.with_borrow_mut(|bytes| {
            bytes.resize(out.len() * self.dtype.size(), 0);
            self.copy(first, bytes)?;
            decode(bytes, self.dtype, out)
        })
    }

    fn copy(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let range = first..first + out.len() / self.dtype.size();
        self.feed.elements(&self.key, range, out, &mut Vec::new())?;
        self.seen.saw(first * self.dtype.size(), out);
        Ok(())
    }
}

/// A tensor rounded to another element type.
#[derive(Clone, Debug)]
pub(crate) struct Cast {
    pub(crate) inner: Arc<dyn Values>,
    pub(crate) dtype: DType,
}

impl Values for Cast {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        self.inner.read(first, out)?;
        round(out, self.dtype);
        Ok(())
    }
}

/// Any tensor in an element type.
pub(crate) fn cast(values: Arc<dyn Values>, dtype: DType) -> Arc<dyn Values> {
    if values.dtype() == dtype { values } else { Arc::new(Cast { inner: values, dtype }) }
}

/// Tensors one after the other, as one of another shape.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    pub(crate) parts: Vec<Arc<dyn Values>>,
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
}

impl Values for Joined {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, first: usize, mut out: &mut [f64]) -> Result<()> {
        let mut before = 0;
        for part in &self.parts {
            let len = part.shape().numel();
            let from = (first.max(before) - before).min(len);
            let take = (len - from).min(out.len());
            if first < before + len && take > 0 {
                let (now, later) = out.split_at_mut(take);
                part.read(from, now)?;
                out = later;
            }
            before += len;
        }
        Ok(())
    }
}

/// Values in memory.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) values: Vec<f64>,
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
}

impl Values for Held {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        out.copy_from_slice(&self.values[first..first + out.len()]);
        round(out, self.dtype);
        Ok(())
    }
}

/// Values in memory, in no more bytes than in a file.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    bytes: Vec<u8>,
    shape: Shape,
    dtype: DType,
}

impl Packed {
    pub(crate) fn new(values: &[f64], shape: Shape, dtype: DType) -> Result<Packed> {
        let mut bytes = vec![0; values.len() * dtype.size()];
        encode(values, dtype, &mut bytes)?;
        Ok(Packed { bytes, shape, dtype })
    }
}

impl Values for Packed {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        let size = self.dtype.size();
        decode(&self.bytes[first * size..(first + out.len()) * size], self.dtype, out)
    }

    fn copy(&self, first: usize, out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(&self.bytes[first * self.dtype.size()..][..out.len()]);
        Ok(())
    }
}

/// Elements of a tensor that follow each other, as one of its own.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) inner: Arc<dyn Values>,
    /// Where they begin.
    pub(crate) first: usize,
    pub(crate) shape: Shape,
}

impl Values for Span {
    fn dtype(&self) -> DType {
        self.inner.dtype()
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        self.inner.read(self.first + first, out)
    }

    fn copy(&self, first: usize, out: &mut [u8]) -> Result<()> {
        self.inner.copy(self.first + first, out)
    }
}

/// A tensor times a number.
#[derive(Clone, Debug)]
pub(crate) struct Scaled {
    pub(crate) inner: Arc<dyn Values>,
    pub(crate) factor: f64,
}

impl Values for Scaled {
    fn dtype(&self) -> DType {
        self.inner.dtype()
    }

    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        self.inner.read(first, out)?;
        out.iter_mut().for_each(|value| *value *= self.factor);
        round(out, self.dtype());
        Ok(())
    }
}

/// All elements of a tensor.
pub(crate) fn whole(values: &dyn Values) -> Result<Vec<f64>> {
    let mut all = vec![0.0; values.shape().numel()];
    values.read(0, &mut all)?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_across_their_seams() {
        let part = |from: usize, len: usize| -> Arc<dyn Values> {
            let values = (from..from + len).map(|value| value as f64).collect();
            Arc::new(Held { values, shape: Shape::new(&[len]).unwrap(), dtype: DType::F32 })
        };
        let parts = vec![part(0, 3), part(3, 1), part(4, 5)];
        let joined = Joined { parts, shape: Shape::new(&[3, 3]).unwrap(), dtype: DType::F32 };
        for first in 0..9 {
            for len in 0..=9 - first {
                let mut out = vec![-1.0; len];
                joined.read(first, &mut out).unwrap();
                let expected: Vec<f64> = (first..first + len).map(|value| value as f64).collect();
                assert_eq!(out, expected, "{first} {len}");
            }
        }
    }

    #[test]
    fn numbers_become_bf16_as_elsewhere() {
        let words = (0..200_000u32).map(|i| i.wrapping_mul(2_654_435_761));
        let values: Vec<f64> = words.map(f32::from_bits).filter(|x| x.is_finite()).map(f64::from).collect();
        let ties = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -0.0, 3.0e38].iter();
        for value in values.iter().chain(ties).filter(|value| fits(**value, DType::BF16)) {
            let mut out = [0; 2];
            encode(&[*value], DType::BF16, &mut out).unwrap();
            assert_eq!(out, bf16::from_f32(*value as f32).to_le_bytes(), "{value}");
        }
        assert!(encode(&[3.4e38], DType::BF16, &mut [0; 2]).is_err());
    }

    #[test]
    fn what_a_type_cannot_hold_is_refused() {
        let mut out = [0; 2];
        encode(&[65504.0], DType::F16, &mut out).unwrap();
        assert!(encode(&[70000.0], DType::F16, &mut out).unwrap_err().to_string().contains("70000"));
        assert!(encode(&[f64::NAN], DType::BF16, &mut out).is_err());
    }
}
