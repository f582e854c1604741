//! Gradients of one micro-batch that wait for their turn.

use crate::error::Result;
use planaria_array::Array;
use planaria_array::ops::Binary;

/// What has come of one micro-batch's gradients.
#[derive(Debug)]
pub(super) struct Micro {
    lanes: Vec<Waiting>,
    /// Backward is over: nothing more will come.
    pub(super) ended: bool,
}

#[derive(Clone, Debug, Default)]
struct Waiting {
    expected: u32,
    came: u32,
    sum: Option<Array>,
}

impl Micro {
    pub(super) fn new(lanes: usize) -> Micro {
        Micro { lanes: vec![Waiting::default(); lanes], ended: false }
    }

    pub(super) fn expect(&mut self, lane: usize) {
        self.lanes[lane].expected += 1;
    }

    /// Takes a gradient; a parameter used twice has two, added in the order they come.
    pub(super) fn give(&mut self, lane: usize, grad: Array) -> Result<()> {
        let lane = &mut self.lanes[lane];
        lane.came += 1;
        lane.sum = Some(match lane.sum.take() {
            None => grad.snapshot()?,
            Some(sum) => {
                sum.binary_in_place(Binary::Add, &grad)?;
                sum
            }
        });
        Ok(())
    }

    pub(super) fn is_complete(&self, lane: usize) -> bool {
        let lane = &self.lanes[lane];
        lane.came > 0 && lane.came == lane.expected
    }

    pub(super) fn take(&mut self, lane: usize) -> Option<Array> {
        self.lanes[lane].sum.take()
    }
}
