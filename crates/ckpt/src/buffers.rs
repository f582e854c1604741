//! Memory for what travels between ranks: taken for a round, given back after it, used again.

use crate::error::Result;
use planaria_array::{Array, DType};
use std::sync::{Mutex, PoisonError};

/// Sizes are rounded up to this, so that rounds of nearly the same size use the same memory.
const STEP: usize = 1 << 20;

/// Buffers that no round uses now. Fresh ones would have their pages mapped in every round.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Array>>);

impl Buffers {
    /// At least `len` bytes, with unspecified values.
    pub(crate) fn take(&self, len: usize) -> Result<Array> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match kept.filter(|kept| kept.numel() >= len) {
            Some(kept) => Ok(kept),
            None => {
                Ok(Array::empty(&[if len > STEP { len.next_multiple_of(STEP) } else { len }], DType::U8)?)
            }
        }
    }

    /// For the next round.
    pub(crate) fn give_back(&self, buffer: Array) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_replaced_where_it_is_too_small() {
        let buffers = Buffers::default();
        let small = buffers.take(10).unwrap();
        small.fill(7).unwrap();
        buffers.give_back(small);
        let again = buffers.take(4).unwrap();
        assert_eq!(again.narrow(0, 0, 4).unwrap().to_vec::<u8>().unwrap(), [7; 4]);
        buffers.give_back(again);
        let large = buffers.take(STEP + 1).unwrap();
        assert_eq!(large.numel(), 2 * STEP);
        buffers.give_back(large);
        assert_eq!(buffers.take(2 * STEP).unwrap().numel(), 2 * STEP);
    }
}
