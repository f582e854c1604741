//! Bytes of contiguous host arrays, for code that moves them elsewhere: communicators, files.

use crate::array::{Array, Host};
use crate::cuda;
use crate::device::Device;
use crate::element::with_dtype;
use crate::error::{Error, Result};
use crate::storage::Coverage;
use planaria_layout::{DType, Shape};
use std::fmt;
use std::ops::{Deref, Range};

/// The bytes of a contiguous array as they were when this was taken. While it lives, writers move to fresh
/// bytes, so that a long transfer sees one value; drop it early to spare them the copy.
pub struct Bytes {
    host: Host,
    range: Range<usize>,
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.host.slice::<u8>()[self.range.clone()]
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.range.len())
    }
}

impl Array {
    /// A copy of `bytes`, which hold the elements in row-major order in this machine's byte order.
    pub fn from_bytes(bytes: &[u8], shape: &[usize], dtype: DType) -> Result<Array> {
        let shape = Shape::new(shape)?;
        let wanted = shape.numel() * dtype.size();
        if bytes.len() != wanted {
            let what = format!("{} bytes do not fill {dtype}{shape}, which has {wanted}", bytes.len());
            return Err(Error::argument("from_bytes", what));
        }
        with_dtype!(dtype, T => Array::build(shape, |out: &mut [T]| {
            planaria_cpu::pool::copy_slice(bytemuck::cast_slice_mut::<T, u8>(out), bytes);
        }))
    }

    /// The bytes of a contiguous array, held for reading.
    pub fn bytes(&self) -> Result<Bytes> {
        let range = self.byte_range("bytes")?;
        Ok(Bytes { host: self.host("bytes")?, range })
    }

    /// Runs `write` on the bytes `range` of a contiguous array, counted from its first element. Other access to
    /// the storage waits meanwhile, so keep it short.
    pub fn write_bytes<R>(&self, range: Range<usize>, write: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let own = self.byte_range("write_bytes")?;
        if range.start > range.end || range.end > own.len() {
            let what = format!("bytes {range:?} are outside an array of {} bytes", own.len());
            return Err(Error::argument("write_bytes", what));
        }
        let at = own.start + range.start..own.start + range.end;
        self.write_storage("write_bytes", |data| write(&mut data[at]))
    }

    /// Prepares for overwriting every element of a contiguous array: where a reader or snapshot holds the bytes
    /// and this view covers them all, it gets fresh ones with unspecified contents, which costs no copy. Answers
    /// false, and does nothing, when the view covers only part of its storage.
    pub fn renew(&self) -> Result<bool> {
        self.byte_range("renew")?;
        if !self.is_whole() {
            return Ok(false);
        }
        match self.device() {
            Device::Cuda(_) => {
                let lane = cuda::lane_of("renew", self)?;
                self.begin_cuda_update("renew", &lane, Coverage::All)?.commit();
            }
            Device::Cpu | Device::Meta => self.begin_update("renew")?.commit(),
        }
        Ok(true)
    }

    /// True when a contiguous view shows all elements of its storage.
    pub fn is_whole(&self) -> bool {
        self.is_contiguous() && self.numel() == self.storage_len()
    }

    fn byte_range(&self, op: &'static str) -> Result<Range<usize>> {
        if !self.is_contiguous() {
            let what = format!("strides {:?} leave gaps; make the array contiguous first", self.strides());
            return Err(Error::argument(op, what));
        }
        let start = if self.numel() == 0 { 0 } else { self.offset() * self.dtype().size() };
        Ok(start..start + self.numel() * self.dtype().size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_keeps_the_old_bytes_while_a_writer_moves_on() {
        let x = Array::from_slice(&[1u16, 2, 3, 4], &[4]).unwrap();
        let tail = x.narrow(0, 2, 2).unwrap();
        let held = tail.bytes().unwrap();
        tail.write_bytes(2..4, |b| b.copy_from_slice(&9u16.to_ne_bytes())).unwrap();
        assert_eq!(&*held, [3u16.to_ne_bytes(), 4u16.to_ne_bytes()].concat());
        assert_eq!(x.to_vec::<u16>().unwrap(), [1, 2, 3, 9]);
    }

    #[test]
    fn bytes_round_trip_and_wrong_lengths_are_refused() {
        let x = Array::from_slice(&[1.5f32, -2.0], &[2, 1]).unwrap();
        let y = Array::from_bytes(&x.bytes().unwrap(), &[2, 1], DType::F32).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [1.5, -2.0]);
        assert!(Array::from_bytes(&[0; 7], &[2], DType::F32).is_err());
        assert!(x.write_bytes(4..9, |_| ()).is_err());
        assert!(x.broadcast_to(&Shape::new(&[2, 3]).unwrap()).unwrap().bytes().is_err());
    }

    #[test]
    fn renewing_separates_without_copying_and_only_whole_storages() {
        let x = Array::from_slice(&[1i32, 2], &[2]).unwrap();
        let held = x.bytes().unwrap();
        assert!(x.renew().unwrap() && !x.narrow(0, 0, 1).unwrap().renew().unwrap());
        x.fill(7).unwrap();
        assert_eq!(&*held, [1i32.to_ne_bytes(), 2i32.to_ne_bytes()].concat());
    }
}
