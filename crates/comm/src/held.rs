//! What was sent, as it was then: bytes of the host, or the memory of a device.

use crate::error::Result;
use planaria_array::{Array, Bytes, Device};

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

    /// Writes all of it over an array of as many elements.
    pub(crate) fn write_to(&self, array: &Array) -> Result<()> {
        match self {
            Held::Host(bytes) => Ok(array.write_bytes(0..bytes.len(), |out| out.copy_from_slice(bytes))?),
            Held::Device(sent) => Ok(flat(array)?.copy_from(sent)?),
        }
    }
}

/// All elements in one row.
pub(crate) fn flat(array: &Array) -> Result<Array> {
    Ok(array.reshape(&[array.numel()])?)
}
