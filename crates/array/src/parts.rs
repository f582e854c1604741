//! The memory of an array in parts that several threads write at once, each its own, while all other access waits.
#![allow(unsafe_code)]

use crate::array::Array;
use crate::error::{Error, Result};
use crate::storage::Storage;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// Some bytes of an array, for one thread to write. Until the last part is dropped, all other access to the array waits.
pub struct ArrayPart {
    start: NonNull<u8>,
    bytes: usize,
    /// Ends with the last part.
    _whole: Arc<Opened>,
}

/// A storage whose memory belongs to parts.
struct Opened(Arc<Storage>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.close();
    }
}

// SAFETY: a part is the only access to its bytes, like a `&mut [u8]`, and what it keeps alive may be dropped anywhere.
unsafe impl Send for ArrayPart {}
// SAFETY: shared parts are only read.
unsafe impl Sync for ArrayPart {}

impl Array {
    /// Parts of an array that shows all of its storage in order, for writing: its bytes in these ranges, which must lie one behind the
    /// other. `None` where somebody reads or shares the bytes now, or where the host does not have them: then
    /// [`write_bytes`](Array::write_bytes) finds other ones. Whoever writes must write valid elements: truth values are 0 or 1.
    pub fn parts(&self, ranges: &[Range<usize>]) -> Result<Option<Vec<ArrayPart>>> {
        if !self.is_whole() {
            return Ok(None);
        }
        let bytes = self.numel() * self.dtype().size();
        let mut end = 0;
        for range in ranges {
            if range.start < end || range.end < range.start || range.end > bytes {
                let what =
                    format!("bytes {range:?} overlap the part before or leave an array of {bytes} bytes");
                return Err(Error::argument("parts", what));
            }
            end = range.end;
        }
        let storage = self.storage().clone();
        let Some(start) = storage.open("parts")? else { return Ok(None) };
        let whole = Arc::new(Opened(storage));
        let part = |range: &Range<usize>| {
            // SAFETY: the storage has `bytes` bytes from `start` on, and the range ends among them.
            let start = unsafe { start.add(range.start) };
            ArrayPart { start, bytes: range.len(), _whole: whole.clone() }
        };
        Ok(Some(ranges.iter().map(part).collect()))
    }
}

impl Deref for ArrayPart {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised and stay where they are while the storage is open, which `_whole` sees to; its lock keeps
        // everyone else away, ranges of parts do not overlap, and `&self` keeps this part's writer away.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for ArrayPart {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl fmt::Debug for ArrayPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArrayPart({})", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    #[test]
    fn threads_write_their_parts_while_a_reader_waits() {
        let x = Array::from_slice(&[0u16; 64], &[8, 8]).unwrap();
        let before = x.version();
        let parts = x.parts(&[0..32, 32..100, 100..128]).unwrap().unwrap();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| x.to_vec::<u16>().unwrap());
            for (number, mut part) in parts.into_iter().enumerate() {
                scope.spawn(move || bytemuck::cast_slice_mut::<u8, u16>(&mut part).fill(number as u16 + 1));
            }
            let want: Vec<u16> =
                [(1, 16), (2, 34), (3, 14)].iter().flat_map(|&(n, count)| vec![n; count]).collect();
            assert_eq!(read.join().unwrap(), want);
        });
        assert!(x.version() > before, "a saved value must notice");
    }

    #[test]
    fn parts_do_not_overlap_and_bytes_that_others_have_are_left_alone() {
        let x = Array::from_slice(&[1u8, 2, 3, 4], &[4]).unwrap();
        for wrong in [&[0..3, 2..4][..], from_ref(&(0..5)), &[2..3, 0..1]] {
            assert!(x.parts(wrong).is_err(), "{wrong:?}");
        }
        assert!(x.narrow(0, 1, 2).unwrap().parts(from_ref(&(0..1))).unwrap().is_none());
        let held = x.bytes().unwrap();
        assert!(x.parts(from_ref(&(0..4))).unwrap().is_none());
        drop(held);
        drop(x.parts(from_ref(&(0..4))).unwrap().unwrap());
        assert_eq!(x.to_vec::<u8>().unwrap(), [1, 2, 3, 4]);
    }
}
