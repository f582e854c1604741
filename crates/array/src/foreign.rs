//! Memory shared with code outside: theirs seen as arrays, and ours lent to them by its address.
#![allow(unsafe_code)]

use crate::array::{Array, Strides};
use crate::buffer::HostBuffer;
use crate::error::{Error, Result};
use crate::storage::Storage;
use planaria_layout::{DType, Shape};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

/// A piece of host memory that other code owns, and what keeps it alive: dropped with the last array over it.
pub struct Foreign {
    start: NonNull<u8>,
    bytes: usize,
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the address is plain data, valid on any thread while the owner lives, and the owner may move and be shared.
unsafe impl Send for Foreign {}
// SAFETY: as above; all access goes through the storage that holds it.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// Memory from `start` on; `owner` is dropped, on whatever thread, when it is no longer used.
    ///
    /// # Safety
    /// The bytes are initialised and stay where they are, readable (and writable, for arrays that are not made
    /// read-only), until `owner` is dropped. `start` is aligned for the elements the array will have.
    pub unsafe fn new(start: NonNull<u8>, bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Foreign {
        Foreign { start, bytes, _owner: owner }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Foreign({})", self.bytes)
    }
}

/// Whether arrays over foreign memory may write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Writes are refused.
    Read,
    /// Writes go to the memory itself.
    Write,
}

impl Array {
    /// An array over memory of other code, without a copy: writes on either side are seen on the other. `offset` is where
    /// the first element lies, in elements from the start; strides are in elements too.
    pub fn from_foreign(
        memory: Foreign,
        dtype: DType,
        (shape, strides, offset): (&[usize], &[isize], usize),
        access: Access,
    ) -> Result<Array> {
        if !memory.start.addr().get().is_multiple_of(dtype.size()) {
            let what = format!("memory at {:?} is not aligned for {dtype}; copy it first", memory.start);
            return Err(Error::argument("from_foreign", what));
        }
        let storage = Storage::foreign(HostBuffer::foreign(memory), access == Access::Write);
        let whole = Array::from_storage(storage, dtype, Shape::default());
        whole.as_strided(shape, strides, offset)
    }

    /// The address of the bytes for code outside, valid while the result lives. Until then writes on either side are
    /// seen on the other, and [`Array::snapshot`] copies.
    pub fn export(&self) -> Result<Exported> {
        let start = self.storage().pin("export")?;
        let offset = if self.numel() == 0 { 0 } else { self.offset() * self.dtype().size() };
        // SAFETY: a view lies inside its storage, so the first element does.
        Ok(Exported { data: unsafe { start.add(offset) }, array: self.clone() })
    }

    /// The same bytes as elements of another dtype of the same size.
    pub fn reinterpret(&self, dtype: DType) -> Result<Array> {
        if dtype.size() != self.dtype().size() {
            let what = format!("{} and {dtype} differ in size", self.dtype());
            return Err(Error::argument("reinterpret", what));
        }
        let (strides, offset): (Strides, _) = (self.strides().into(), self.offset());
        Ok(Array::from_storage(self.storage().clone(), dtype, self.shape().clone()).with_geometry(
            self.shape().clone(),
            strides,
            offset,
        ))
    }
}

/// An array whose bytes stay where they are, because code outside has their address.
pub struct Exported {
    data: *mut u8,
    array: Array,
}

// SAFETY: the address is plain data; the array it belongs to may be used on any thread.
unsafe impl Send for Exported {}
// SAFETY: as above.
unsafe impl Sync for Exported {}

impl Exported {
    /// Where the first element lies.
    pub fn data(&self) -> *mut u8 {
        self.data
    }

    /// The array, for its geometry.
    pub fn array(&self) -> &Array {
        &self.array
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        self.array.storage().unpin();
    }
}

impl fmt::Debug for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exported({:?})", self.array.shape())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn lent(memory: &Arc<Vec<u32>>) -> Foreign {
        let start = NonNull::new(memory.as_ptr().cast::<u8>().cast_mut()).unwrap();
        // SAFETY: the vector is kept alive by its clone and only touched through the array while it is written.
        unsafe { Foreign::new(start, memory.len() * 4, Box::new(memory.clone())) }
    }

    #[test]
    fn foreign_memory_is_read_and_written_in_place_and_given_back() {
        let memory = Arc::new(vec![1u32, 2, 3, 4]);
        let whole = (&[2, 2][..], &[1, 2][..], 0);
        let x = Array::from_foreign(lent(&memory), DType::U32, whole, Access::Write).unwrap();
        let kept = x.snapshot().unwrap();
        let y = Array::from_foreign(lent(&memory), DType::U32, (&[3], &[-1], 2), Access::Write).unwrap();
        assert!(x.shares_storage(&y) && !x.is_exclusive() && !kept.shares_storage(&x));
        x.select(0, 0).unwrap().copy_from(&y.narrow(0, 0, 2).unwrap()).unwrap();
        assert_eq!(x.to_vec::<u32>().unwrap(), [3, 2, 2, 4]);
        assert_eq!(kept.to_vec::<u32>().unwrap(), [1, 3, 2, 4]);
        drop((x, y, kept));
        assert_eq!(Arc::into_inner(memory), Some(vec![3, 2, 2, 4]));
    }

    #[test]
    fn wrong_geometry_and_writes_to_read_only_memory_are_refused() {
        let memory = Arc::new(vec![1u32, 2]);
        let beyond = Array::from_foreign(lent(&memory), DType::U32, (&[3], &[1], 0), Access::Write);
        assert!(matches!(beyond, Err(Error::OutOfStorage { .. })));
        let x = Array::from_foreign(lent(&memory), DType::U32, (&[2], &[1], 0), Access::Read).unwrap();
        assert!(x.is_readonly() && x.fill(7).unwrap_err().to_string().contains("read-only"));
        assert_eq!(*memory, [1, 2]);
    }

    #[test]
    fn exported_bytes_stay_until_the_export_ends_and_snapshots_stay_apart() {
        let x = Array::from_slice(&[1i16, 2, 3], &[3]).unwrap();
        let before = x.snapshot().unwrap();
        let out = x.narrow(0, 1, 2).unwrap().export().unwrap();
        let during = x.snapshot().unwrap();
        let reader = x.bytes().unwrap();
        // SAFETY: the export keeps the element's memory where it is.
        unsafe { *out.data().cast::<i16>() = 9 };
        x.narrow(0, 2, 1).unwrap().fill(8).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { *out.data().cast::<i16>().add(1) }, 8);
        assert_eq!(x.to_vec::<i16>().unwrap(), [1, 9, 8]);
        assert_eq!(before.to_vec::<i16>().unwrap(), [1, 2, 3]);
        assert_eq!(during.to_vec::<i16>().unwrap(), [1, 2, 3]);
        assert!(x.lend().unwrap().is_none());
        drop((out, reader));
        assert!(x.lend().unwrap().is_some());
        let after = x.snapshot().unwrap();
        x.fill(0).unwrap();
        assert_eq!(after.to_vec::<i16>().unwrap(), [1, 9, 8]);
    }
}
