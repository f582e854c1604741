//! Lending memory to code that fills it over time, while the array it is for keeps its old values: transfers under way.

use crate::array::Array;
use crate::buffer::HostBuffer;
use crate::device::Device;
use crate::error::Result;
use planaria_layout::{DType, Shape};
use std::fmt;

/// Memory that becomes an array's when it is given back. Dropped instead, it leaves the array as it was.
pub struct Lent {
    buffer: HostBuffer,
    array: Option<Array>,
}

impl Array {
    /// Memory for all elements of this array with unspecified contents; `None` when the view does not show its whole
    /// storage in order, or when the memory is not the host's or shared with other code. Every view sees the new values
    /// once it is given back.
    pub fn lend(&self) -> Result<Option<Lent>> {
        if self.device() != Device::Cpu || !self.is_whole() || self.storage().is_pinned() {
            return Ok(None);
        }
        let buffer = HostBuffer::new(self.numel() * self.dtype().size())?;
        Ok(Some(Lent { buffer, array: Some(self.clone()) }))
    }
}

impl Lent {
    /// Memory that becomes an array of bytes of its own.
    pub fn bytes(count: usize) -> Result<Lent> {
        Ok(Lent { buffer: HostBuffer::new(Shape::new(&[count])?.numel())?, array: None })
    }

    /// The memory. Whoever writes to it must write valid elements: truth values are 0 or 1.
    pub fn memory(&mut self) -> &mut [u8] {
        self.buffer.slice_mut()
    }

    /// Makes the memory the array's, which is returned.
    pub fn give_back(self) -> Result<Array> {
        match self.array {
            Some(array) => {
                array.replace(self.buffer);
                Ok(array)
            }
            None => {
                let shape = Shape::new(&[self.buffer.bytes()])?;
                Ok(Array::from_buffer(self.buffer, DType::U8, shape))
            }
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({})", self.buffer.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_has_its_old_values_until_the_memory_comes_back() {
        let x = Array::from_slice(&[1u16, 2, 3], &[3]).unwrap();
        let (view, kept) = (x.reshape(&[3, 1]).unwrap(), x.snapshot().unwrap());
        let mut lent = x.lend().unwrap().unwrap();
        lent.memory().copy_from_slice(bytemuck::cast_slice(&[7u16, 8, 9]));
        assert_eq!(view.to_vec::<u16>().unwrap(), [1, 2, 3]);
        drop(x.lend().unwrap());
        let version = x.version();
        assert!(lent.give_back().unwrap().shares_storage(&x));
        assert_eq!(view.to_vec::<u16>().unwrap(), [7, 8, 9]);
        assert_eq!(kept.to_vec::<u16>().unwrap(), [1, 2, 3]);
        assert!(x.version() > version, "a saved value must notice");
        assert!(x.narrow(0, 0, 2).unwrap().lend().unwrap().is_none());
        let mut bytes = Lent::bytes(2).unwrap();
        bytes.memory().copy_from_slice(&[4, 5]);
        assert_eq!(bytes.give_back().unwrap().to_vec::<u8>().unwrap(), [4, 5]);
        assert_eq!(Lent::bytes(0).unwrap().give_back().unwrap().numel(), 0);
    }
}
