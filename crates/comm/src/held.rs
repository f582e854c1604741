//! What was sent, as it was then: bytes of the host, or the memory of a device.

use crate::error::Result;
use planaria_array::{Array, Bytes, DType, Device};
use std::ops::Range;

/// The elements of a contiguous array as they were when this was taken; writers move to fresh memory while it lives.
#[derive(Debug)]
pub(crate) enum Held {
    /// Of the host.
    Host(Bytes),
    /// Of a device, in one row. Work on it is queued and comes after what made the elements.
    Device(Array),
}

impl Held {
    pub(crate) fn of(array: &Array) -> Result<Held> {
        Ok(match array.device() {
            Device::Cuda(_) => Held::Device(flat(array)?.snapshot()?),
            _ => Held::Host(array.bytes()?),
        })
    }

    /// The elements of `send` as they are now. When `recv` is another part of the same storage, writing it would first have to
    /// copy all of that storage; copying what is sent is cheaper.
    pub(crate) fn beside(send: &Array, recv: Option<&Array>) -> Result<Held> {
        let entangled = |recv: &Array| send.shares_storage(recv) && !recv.is_whole();
        match recv.is_some_and(entangled) {
            true => Held::of(&send.copy()?),
            false => Held::of(send),
        }
    }

    /// The elements at some bytes, in one row, on a device.
    pub(crate) fn part(&self, dtype: DType, range: Range<usize>, device: Device) -> Result<Array> {
        let count = range.len() / dtype.size();
        Ok(match self {
            Held::Host(bytes) => Array::from_bytes(&bytes[range], &[count], dtype)?.to(device)?,
            Held::Device(sent) => sent.narrow(0, range.start / dtype.size(), count)?.to(device)?,
        })
    }

    /// Writes all of it over an array of as many elements.
    pub(crate) fn write_to(&self, array: &Array) -> Result<()> {
        match (self, array.device()) {
            (Held::Host(bytes), Device::Cpu) => {
                Ok(array.write_bytes(0..bytes.len(), |out| out.copy_from_slice(bytes))?)
            }
            (_, device) => {
                let bytes = array.numel() * array.dtype().size();
                Ok(flat(array)?.copy_from(&self.part(array.dtype(), 0..bytes, device)?)?)
            }
        }
    }
}

/// All elements in one row.
pub(crate) fn flat(array: &Array) -> Result<Array> {
    Ok(array.reshape(&[array.numel()])?)
}
