//! What was sent, as it was then: bytes of the host, or the memory of a device.

use crate::error::Result;
use planaria_array::{Array, Bytes, DType, Device};
use std::ops::Range;

/// The elements of a contiguous array as they were when this was taken; writers move to fresh memory while it lives.
#[derive(Debug)]
pub(crate) enum Held {
    /// Of the host.
    Host(Bytes),
    /// Of the host, and so few that they were copied: nobody has to wait until they are free again.
    Copied {
        /// They begin here, so that they can be seen as elements of any type.
        words: Box<[u64]>,
        /// How many.
        bytes: usize,
    },
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

    /// A copy of what is sent where it is at most `most` bytes of the host, else as [`Held::beside`] has it.
    pub(crate) fn copied(send: &Array, recv: Option<&Array>, most: usize) -> Result<Held> {
        let bytes = send.numel() * send.dtype().size();
        if send.device() != Device::Cpu || bytes > most {
            return Held::beside(send, recv);
        }
        let mut words = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        bytemuck::cast_slice_mut(&mut words)[..bytes].copy_from_slice(&send.bytes()?);
        Ok(Held::Copied { words, bytes })
    }

    /// The bytes, where they are of the host.
    pub(crate) fn host(&self) -> Option<&[u8]> {
        match self {
            Held::Host(bytes) => Some(bytes),
            Held::Copied { words, bytes } => Some(&bytemuck::cast_slice(words)[..*bytes]),
            Held::Device(_) => None,
        }
    }

    /// The elements at some bytes, in one row, on a device.
    pub(crate) fn part(&self, dtype: DType, range: Range<usize>, device: Device) -> Result<Array> {
        let count = range.len() / dtype.size();
        Ok(match self {
            Held::Device(sent) => sent.narrow(0, range.start / dtype.size(), count)?.to(device)?,
            Held::Host(_) | Held::Copied { .. } => {
                let bytes = self.host().unwrap_or_default();
                Array::from_bytes(&bytes[range], &[count], dtype)?.to(device)?
            }
        })
    }

    /// Writes all of it over an array of as many elements.
    pub(crate) fn write_to(&self, array: &Array) -> Result<()> {
        match (self.host(), array.device()) {
            (Some(bytes), Device::Cpu) => {
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
