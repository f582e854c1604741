//! Large copies to ordinary host memory, through pieces of pinned memory that take turns: a copy straight to it would hold the
//! driver's locks, and with them the launches of other threads.

use crate::error::Result;
use crate::lane::Lane;
use crate::pinned::{InFlight, Pinned};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Bytes of a piece.
const PIECE: usize = 16 << 20;
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

    /// Copies as many whole pieces as there are; answers the bytes done.
    pub(crate) fn copy_out_staged(&self, op: &'static str, to: &mut [u8], from: u64) -> Result<usize> {
        let whole = to.len() / PIECE * PIECE;
        let mut open: Vec<(InFlight, Range<usize>)> = Vec::new();
        let mut land = |open: &mut Vec<(InFlight, Range<usize>)>| -> Result<Pinned> {
            let (flight, range) = open.remove(0);
            let piece = flight.wait()?;
            to[range].copy_from_slice(&piece);
            Ok(piece)
        };
        for at in (0..whole).step_by(PIECE) {
            let piece = if open.len() == TURNS { land(&mut open)? } else { self.piece()? };
            open.push((self.copy_out_pinned(op, piece, from + at as u64)?, at..at + PIECE));
        }
        while !open.is_empty() {
            let piece = land(&mut open)?;
            self.give_piece(piece);
        }
        Ok(whole)
    }
}
