//! Upper and lower triangles.

use crate::array::Array;
use crate::device::Device;
use crate::element::with_size;
use crate::error::{Error, Result};
use crate::ops::{Compare, compare, where_};
use bytemuck::Zeroable;
use planaria_cpu::pool;
use planaria_layout::DType;
use std::ops::Range;

impl Array {
    /// Zeros below diagonal `k` of the last two dims (0 is the main one, above it are positive).
    /// The gradient is the same triangle of the incoming gradient.
    pub fn triu(&self, k: i64) -> Result<Array> {
        if let Device::Cuda(_) = self.device() {
            return self.triangle_on_cuda("triu", Compare::Ge, k);
        }
        self.triangle("triu", |row, columns| first_right_of(row, k, columns)..columns)
    }

    /// Zeros above diagonal `k` of the last two dims. The gradient is the same triangle of the incoming gradient.
    pub fn tril(&self, k: i64) -> Result<Array> {
        if let Device::Cuda(_) = self.device() {
            return self.triangle_on_cuda("tril", Compare::Le, k);
        }
        self.triangle("tril", |row, columns| 0..first_right_of(row, k.saturating_add(1), columns))
    }

    /// A copy that keeps the columns that compare so with their row plus `k`.
    fn triangle_on_cuda(&self, op: &'static str, side: Compare, k: i64) -> Result<Array> {
        let &[.., rows, columns] = &self.shape()[..] else {
            return Err(Error::argument(op, format!("shape {} has fewer than 2 dims", self.shape())));
        };
        // Beyond the corners nothing changes any more.
        let k = k.clamp(-(rows as i64) - 1, columns as i64 + 1);
        let count =
            |from: i64, n: usize| Array::arange(from, from + n as i64, 1, DType::I64)?.to(self.device());
        let kept = compare(side, &count(0, columns)?, &count(k, rows)?.reshape(&[rows, 1])?)?;
        where_(&kept, self, &Array::scalar(0, self.dtype())?)
    }

    /// A copy that keeps the columns `kept(row, columns)` of each row.
    fn triangle(
        &self,
        op: &'static str,
        kept: impl Fn(usize, usize) -> Range<usize> + Sync,
    ) -> Result<Array> {
        let &[.., rows, columns] = &self.shape()[..] else {
            return Err(Error::argument(op, format!("shape {} has fewer than 2 dims", self.shape())));
        };
        if self.is_meta() {
            return Ok(Array::meta_of(self.shape().clone(), self.dtype()));
        }
        let host = self.host(op)?;
        with_size!(self.dtype(), T => Array::build_bytes::<T>(self.shape().clone(), self.dtype(), |out| {
            let src = self.operand::<T>(&host);
            pool::for_chunks_mut(out, columns, 2 * size_of::<T>(), |first, piece| {
                for (i, line) in piece.chunks_mut(columns).enumerate() {
                    let at = first + i * columns;
                    let range = kept(at / columns % rows, columns);
                    line[..range.start].fill(T::zeroed());
                    line[range.end..].fill(T::zeroed());
                    src.gather(at + range.start..at + range.end, &mut line[range]);
                }
            });
        }))
    }
}

/// The first column on or right of diagonal `k`, at most `columns`.
fn first_right_of(row: usize, k: i64, columns: usize) -> usize {
    (row as i128 + i128::from(k)).clamp(0, columns as i128) as usize
}
