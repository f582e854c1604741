//! Copies between the device and ordinary host memory, through pieces of pinned memory that take turns: a copy straight from or to
//! it would hold the driver's locks, and with them the launches of other threads.

use crate::error::Result;
use crate::lane::Lane;
use crate::pinned::{InFlight, Pinned};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Bytes of a piece.
const PIECE: usize = 16 << 20;
/// Bytes from which a copy goes this way; less is quicker straight.
const LEAST: usize = 1 << 20;
/// Pieces that take turns.
const TURNS: usize = 2;

/// Pieces that wait for the next copy.
#[derive(Default)]
pub(crate) struct Staging(Mutex<Vec<Pinned>>);

impl Lane {
    /// Takes the pinned memory of large copies now, since taking it is slow.
    pub fn prepare_copies(&self) -> Result<()> {
        let pieces = (0..TURNS).map(|_| self.piece()).collect::<Result<Vec<_>>>()?;
        pieces.into_iter().for_each(|piece| self.give_piece(piece));
        Ok(())
    }

    fn piece(&self) -> Result<Pinned> {
        let known = self.context().staging.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        known.map_or_else(|| Pinned::new(self.context(), PIECE), Ok)
    }

    fn give_piece(&self, piece: Pinned) {
        let mut pieces = self.context().staging.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pieces.len() < 2 * TURNS {
            pieces.push(piece);
        }
    }

    /// Copies out of the device and waits; answers whether it took that upon itself.
    pub(crate) fn copy_out_staged(&self, op: &'static str, to: &mut [u8], from: u64) -> Result<bool> {
        let bytes = to.len();
        if bytes < LEAST {
            return Ok(false);
        }
        let mut open: VecDeque<(InFlight, Range<usize>)> = VecDeque::new();
        let mut land = |open: &mut VecDeque<(InFlight, Range<usize>)>| -> Result<Option<Pinned>> {
            let Some((flight, range)) = open.pop_front() else { return Ok(None) };
            let piece = flight.wait()?;
            to[range.clone()].copy_from_slice(&piece[..range.len()]);
            Ok(Some(piece))
        };
        for range in pieces(bytes) {
            let free = if open.len() == TURNS { land(&mut open)? } else { None };
            let piece = free.map_or_else(|| self.piece(), Ok)?;
            let flight = self.copy_pinned(op, piece, from + range.start as u64, range.len(), true)?;
            open.push_back((flight, range));
        }
        while let Some(piece) = land(&mut open)? {
            self.give_piece(piece);
        }
        Ok(true)
    }

    /// Copies to the device, so that the bytes may change afterwards; answers whether it took that upon itself.
    pub(crate) fn copy_in_staged(&self, op: &'static str, to: u64, from: &[u8]) -> Result<bool> {
        if from.len() < LEAST {
            return Ok(false);
        }
        let mut open: VecDeque<InFlight> = VecDeque::new();
        for range in pieces(from.len()) {
            let free = if open.len() == TURNS { open.pop_front() } else { None };
            let mut piece = free.map_or_else(|| self.piece(), InFlight::wait)?;
            piece[..range.len()].copy_from_slice(&from[range.clone()]);
            open.push_back(self.copy_pinned(op, piece, to + range.start as u64, range.len(), false)?);
        }
        for flight in open {
            self.give_piece(flight.wait()?);
        }
        Ok(true)
    }
}

/// The pieces of a copy, one after the other.
fn pieces(bytes: usize) -> impl Iterator<Item = Range<usize>> {
    (0..bytes).step_by(PIECE).map(move |at| at..bytes.min(at + PIECE))
}
