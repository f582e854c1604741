//! Launchers of masks: what a mask keeps is counted, read back, and then written in its order.

use super::index::tile_scan;
use super::program::{MASK, elements, kernel};
use super::{fresh, lane_of, read};
use crate::array::Array;
use crate::error::Result;
use crate::storage::Coverage;
use planaria_cuda::{Arg, Block, Lane, Launch};
use planaria_layout::{DType, Shape};
use std::sync::Arc;

/// Elements of a mask that a block takes.
const TILE: usize = 4096;

/// A contiguous mask with the place of each tile's first kept element.
pub(crate) struct Kept {
    lane: Arc<Lane>,
    op: &'static str,
    mask: Array,
    starts: Block,
    /// How many elements the mask keeps.
    pub(crate) total: usize,
}

impl Kept {
    /// Counts what a mask keeps; waits for the number.
    pub(crate) fn count(op: &'static str, mask: &Array) -> Result<Kept> {
        let (lane, mask) = (lane_of(op, mask)?, mask.contiguous()?);
        let tiles = mask.numel().div_ceil(TILE);
        let (sums, starts) = (lane.block(op, 4 * tiles)?, lane.block(op, 8 * (tiles + 1))?);
        let mut kept = Kept { lane: lane.clone(), op, mask, starts, total: 0 };
        if tiles > 0 {
            let held = read(op, &lane, &kept.mask)?;
            kept.launch(DType::U8, "mask_count", &[held.address, kept.mask.numel() as u64, sums.address()])?;
            tile_scan(op, &lane, &sums, tiles, &kept.starts)?;
            let mut total = [0; 8];
            lane.copy_out(op, &mut total, kept.starts.address() + 8 * tiles as u64)?;
            kept.total = u64::from_le_bytes(total) as usize;
        }
        Ok(kept)
    }

    fn launch(&self, dtype: DType, name: &str, args: &[u64]) -> Result<()> {
        let kernel = kernel(&self.lane, &MASK, &elements(dtype), name)?;
        let grid = [self.mask.numel().div_ceil(TILE) as u32, 1, 1];
        let launch = Launch { op: self.op, kernel: &kernel, grid, block: [256, 1, 1], shared: 0 };
        let args: Vec<Arg<'_>> = args.iter().map(|&x| Arg::U64(x)).collect();
        Ok(self.lane.launch(&launch, &args)?)
    }

    /// The elements of `x`, which has the mask's shape, that are kept.
    pub(crate) fn select(&self, x: &Array) -> Result<Array> {
        let (out, to) = fresh(self.op, &self.lane, &Shape::new(&[self.total])?, x.dtype())?;
        let x = x.contiguous()?;
        let (mask, from) = (read(self.op, &self.lane, &self.mask)?, read(self.op, &self.lane, &x)?);
        let count = self.mask.numel() as u64;
        self.launch(
            x.dtype(),
            "mask_select",
            &[mask.address, from.address, count, self.starts.address(), to],
        )?;
        Ok(out)
    }

    /// Where the kept elements stand in row-major order.
    pub(crate) fn positions(&self) -> Result<Array> {
        let (out, to) = fresh(self.op, &self.lane, &Shape::new(&[self.total])?, DType::I64)?;
        let mask = read(self.op, &self.lane, &self.mask)?;
        let args = [mask.address, self.mask.numel() as u64, self.starts.address(), to];
        self.launch(DType::U64, "mask_positions", &args)?;
        Ok(out)
    }

    /// Writes `source`, in order, to the kept elements of a contiguous view of the mask's shape.
    pub(crate) fn scatter(&self, out: &Array, source: &Array) -> Result<()> {
        let source = source.contiguous()?;
        let (mask, from) = (read(self.op, &self.lane, &self.mask)?, read(self.op, &self.lane, &source)?);
        let update = out.begin_cuda_update(self.op, &self.lane, Coverage::Part)?;
        let to = update.address() + (out.offset() * out.dtype().size()) as u64;
        let (available, count) = (source.numel() as u64, self.mask.numel() as u64);
        let args = [mask.address, to, from.address, available, count, self.starts.address(), to];
        self.launch(out.dtype(), "masked_scatter", &args)?;
        update.commit();
        Ok(())
    }
}
