//! Memory of arrays for work that other libraries queue on a lane: communication.

use super::{lane_of, read};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::storage::Coverage;
use planaria_cuda::Lane;

/// Queues on the calling thread's lane what another library does with contiguous arrays of one device: it reads `from` and writes
/// all of `to`. It is told the lane and where their elements begin; 0 without `to`. Work of other lanes on them comes before or after,
/// as always. Where `to` lies in the memory of one of `from`, it moves to fresh memory first.
pub fn queue_outside(
    op: &'static str,
    from: &[&Array],
    to: Option<&Array>,
    work: impl FnOnce(&Lane, &[u64], u64) -> planaria_cuda::Result<()>,
) -> Result<()> {
    let Some(&first) = from.first().or(to.as_ref()) else { return Ok(()) };
    let lane = lane_of(op, first)?;
    for array in from.iter().copied().chain(to) {
        if !array.is_contiguous() {
            let what = format!("strides {:?} leave gaps; make the array contiguous first", array.strides());
            return Err(Error::argument(op, what));
        }
        if array.device() != first.device() {
            return Err(Error::MixedDevices { op, lhs: first.device(), rhs: array.device() });
        }
    }
    let held = from.iter().map(|array| read(op, &lane, array)).collect::<Result<Vec<_>>>()?;
    let addresses: Vec<u64> = held.iter().map(|held| held.address).collect();
    let Some(to) = to else { return Ok(work(&lane, &addresses, 0)?) };
    let coverage = if to.is_whole() { Coverage::All } else { Coverage::Part };
    let update = to.begin_cuda_update(op, &lane, coverage)?;
    let start = update.address() + (to.offset() * to.dtype().size()) as u64;
    work(&lane, &addresses, start)?;
    update.commit();
    Ok(())
}
