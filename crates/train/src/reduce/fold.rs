//! The accumulator of gradients, and a bucket on its way.

use crate::error::Result;
use planaria_array::ops::Binary;
use planaria_array::{Array, DType, Device};
use planaria_comm::Pending;

/// A bucket under way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) bucket: usize,
    pub(super) pending: Pending,
    /// What is received in.
    pub(super) buffer: Array,
    /// The parts from data rank 0, 1, ... one after the other.
    pub(super) recv: Array,
}

/// A left fold in f32. The first addend is taken as it is.
#[derive(Debug, Default)]
pub(super) struct Fold(Option<Array>);

impl Fold {
    /// Adds; a first addend stays as narrow as it is until another comes, and so does the memory it is part of.
    pub(super) fn add_lazily(&mut self, addend: &Array) -> Result<()> {
        match self.0.take() {
            None => self.0 = Some(addend.snapshot()?),
            Some(sum) if sum.dtype() != DType::F32 => {
                self.0 = Some(sum.cast(DType::F32)?);
                return self.add(addend);
            }
            sum => {
                self.0 = sum;
                return self.add(addend);
            }
        }
        Ok(())
    }

    pub(super) fn add(&mut self, addend: &Array) -> Result<()> {
        self.0 = Some(match self.0.take() {
            // The addend may be part of a longer buffer, which must not live as long as the sum.
            None if addend.dtype() == DType::F32 && addend.is_whole() => addend.snapshot()?,
            None if addend.dtype() == DType::F32 => addend.copy()?,
            None => addend.cast(DType::F32)?,
            Some(sum) if addend.dtype() == DType::F32 => {
                sum.binary_in_place(Binary::Add, addend)?;
                sum
            }
            Some(sum) => {
                sum.binary_in_place(Binary::Add, &addend.cast(DType::F32)?)?;
                sum
            }
        });
        Ok(())
    }

    /// Adds these, the first one first. The addends are parts of a buffer that is used again.
    pub(super) fn add_all(&mut self, addends: &[Array]) -> Result<()> {
        let rest = match (&self.0, addends) {
            (None, [first, second, rest @ ..]) if first.dtype() == DType::F32 => {
                self.0 = Some(first.add(second)?);
                rest
            }
            _ => addends,
        };
        rest.iter().try_for_each(|addend| self.add(addend))
    }

    /// The sum; zeros where nothing was added.
    pub(super) fn take(&mut self, numel: usize, device: Device) -> Result<Array> {
        match self.0.take() {
            Some(sum) => Ok(sum),
            None => Ok(Array::zeros_on(&[numel], DType::F32, device)?),
        }
    }
}
