//! Rows on their way between ranks: gathered, sent by one uneven all-to-all, put where they belong.

use crate::error::{Error, Result};
use planaria_array::{Array, ops};
use planaria_comm::{AllToAll, Comm, CommExt};
use std::sync::Arc;

/// Which way rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From `[tokens, width]`, every choice the same row.
    Spread,
    /// From `[tokens, choices, width]`.
    Out,
    /// To `[tokens, choices, width]`.
    Back,
}

impl Way {
    /// The way of the gradient.
    pub(super) fn turned(self) -> Way {
        if self == Way::Back { Way::Out } else { Way::Back }
    }
}

/// What happens to rows that are put in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meet {
    /// There are none; a place that nothing comes to is 0.
    Never,
    /// They are added.
    Add,
}

/// What one rank sends to each member of a communicator, and where what comes from each goes.
#[derive(Debug)]
pub(super) struct Trip<'a> {
    /// Absent where one rank has it all.
    pub(super) comm: Option<Arc<dyn Comm>>,
    /// Rows of the input.
    pub(super) take: &'a [Vec<i64>],
    /// Rows of the output, in the sender's order.
    pub(super) put: &'a [Vec<i64>],
    /// How many rows the output has.
    pub(super) rows: usize,
    pub(super) meet: Meet,
}

impl Trip<'_> {
    /// Rows `[input rows, width]` to `[output rows, width]`. Collective over the communicator.
    pub(super) fn run(&self, table: &Array) -> Result<Array> {
        let width = table.shape()[1];
        let (send, put) = (rows_of(table, &self.take.concat())?, self.put.concat());
        let count = put.len();
        let came = match &self.comm {
            None => send,
            Some(comm) => {
                // One row more, of zeros, for places that nothing comes to.
                let space = Array::empty_on(&[count + 1, width], table.dtype(), table.device())?;
                let none = Array::zeros_on(&[1, width], table.dtype(), table.device())?;
                space.narrow(0, count, 1)?.copy_from(&none)?;
                let elements = |rows: &[Vec<i64>]| rows.iter().map(|r| r.len() * width).collect();
                comm.all_to_all(AllToAll {
                    send: send.reshape(&[send.numel()])?,
                    send_counts: elements(self.take),
                    recv: space.narrow(0, 0, count)?.reshape(&[count * width])?,
                    recv_counts: elements(self.put),
                })?;
                space
            }
        };
        if self.meet == Meet::Add {
            let ids = Array::from_slice(&put, &[count])?.to(table.device())?;
            return Ok(ops::embedding_grad(&came.narrow(0, 0, count)?, &ids, self.rows, None)?);
        }
        if count == self.rows && put.iter().enumerate().all(|(row, &to)| row as i64 == to) {
            return Ok(came.narrow(0, 0, count)?);
        }
        if count < self.rows && self.comm.is_none() {
            return Err(Error::Bug("on one rank rows come to every place"));
        }
        let mut from = vec![count as i64; self.rows];
        put.iter().enumerate().for_each(|(row, &to)| from[to as usize] = row as i64);
        rows_of(&came, &from)
    }

    /// Rows that leave this rank, which is the member `me`.
    pub(super) fn sent(&self, me: usize) -> usize {
        self.take.iter().enumerate().filter(|(member, _)| *member != me).map(|(_, rows)| rows.len()).sum()
    }
}

/// Rows by number; an empty table has none to give.
fn rows_of(table: &Array, ids: &[i64]) -> Result<Array> {
    if ids.is_empty() {
        return Ok(Array::zeros_on(&[0, table.shape()[1]], table.dtype(), table.device())?);
    }
    Ok(ops::embedding(table, &Array::from_slice(ids, &[ids.len()])?.to(table.device())?)?)
}
