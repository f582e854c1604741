//! States on a device: copied to the host to be saved, and filled through it when loaded.

use crate::error::Result;
use crate::state::{Item, Piece, TrainState};
use planaria_array::{Array, Device};

fn is_away(piece: &Piece) -> bool {
    matches!(piece.array.device(), Device::Cuda(_))
}

impl TrainState {
    /// True when a device holds some of it.
    pub(crate) fn is_away(&self) -> bool {
        self.items.iter().flat_map(|item| &item.pieces).any(is_away)
    }

    /// Copies what a device holds to host memory. Every array of a device is let go as soon as it is copied, so that snapshots
    /// cost the device no memory for longer than they must.
    pub fn to_host(&mut self) -> Result<()> {
        for piece in self.items.iter_mut().flat_map(|item| &mut item.pieces).filter(|piece| is_away(piece)) {
            piece.array = piece.array.to(Device::Cpu)?;
        }
        Ok(())
    }
}

/// What arrays of the host that stand in for those of a device hold at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// Anything: all of it will be filled.
    Anything,
    /// The elements of now: some of it may stay.
    Same,
}

/// The items with arrays of the host in the place of a device's.
pub(crate) fn stand_ins(items: &[Item], before: Before) -> Result<Vec<Item>> {
    let mut all = items.to_vec();
    for piece in all.iter_mut().flat_map(|item| &mut item.pieces).filter(|piece| is_away(piece)) {
        piece.array = match before {
            Before::Anything => Array::empty(piece.array.shape(), piece.array.dtype())?,
            Before::Same => piece.array.to(Device::Cpu)?,
        };
    }
    Ok(all)
}

/// Copies what was filled on the host to the device's arrays.
pub(crate) fn bring(filled: Vec<Item>, items: &[Item]) -> Result<()> {
    let targets = items.iter().flat_map(|item| &item.pieces);
    let pairs = filled.into_iter().flat_map(|item| item.pieces).zip(targets);
    for (source, target) in pairs.filter(|(_, target)| is_away(target)) {
        target.array.copy_from(&source.array.to(target.array.device())?)?;
    }
    Ok(())
}
