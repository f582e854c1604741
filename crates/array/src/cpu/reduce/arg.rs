//! Where the largest or smallest element lies: the first one among equals, the first NaN if there is any.

use super::folds::{End, Extreme, Ordered, Reading};
use super::{CHUNK, Job, Pass, Plan};
use crate::cpu::simd::simd_v3;
use planaria_cpu::pool;

/// Positions along the single reduced dim, or in the flattened view when that is one run.
pub(crate) fn arg<T: Ordered>(end: End, data: &[T], plan: &Plan, out: &mut [i64]) {
    let (pass, reading) = (plan.first_pass(), T::towards(end));
    if !pass.is_rows() {
        let unit = 64.min(pass.width);
        return pool::for_chunks_mut(out, unit, pass.n * size_of::<T>(), |at, piece| {
            columns(data, &pass, reading, at, piece);
        });
    }
    // The extreme of each chunk first; then only the first chunk that holds the winner is searched.
    let fold = Extreme(reading);
    let job = Job::new(&fold, data, &[], &pass);
    let mut extremes = vec![T::LOWEST; out.len() * job.chunks];
    job.partials(&mut extremes);
    pool::for_chunks_mut(out, 1, CHUNK.min(pass.n) * size_of::<T>(), |at, piece| {
        let mut walk = pass.walk(at);
        for (i, o) in piece.iter_mut().enumerate() {
            let of_row = &extremes[(at + i) * job.chunks..(at + i + 1) * job.chunks];
            let mut best = 0;
            for (c, &value) in of_row.iter().enumerate() {
                if value.replaces(of_row[best]) {
                    best = c;
                }
            }
            let start = best * CHUNK;
            let end = (start + CHUNK).min(pass.n);
            let row = &data[walk.data() + start..walk.data() + end];
            *o = (start + find(row, of_row[best].restore(reading))) as i64;
            walk.advance();
        }
    });
}

simd_v3! {
    /// The first position of a value that is known to be there.
    fn find<T: Ordered>(row: &[T], value: T) -> usize {
        for (b, block) in row.chunks(64).enumerate() {
            let hits = block.iter().fold(false, |hit, x| hit | x.same(value));
            if hits {
                return b * 64 + block.iter().position(|x| x.same(value)).unwrap_or(0);
            }
        }
        0
    }

    /// Results `first..`: rows compared element by element with the best so far.
    fn columns<T: Ordered>(data: &[T], pass: &Pass, reading: Reading<T::Bits>, first: usize, out: &mut [i64]) {
        const TILE: usize = 512;
        let width = pass.width;
        let mut column = first % width;
        let mut walk = pass.walk(first / width);
        let mut best = [T::LOWEST; TILE];
        let mut done = 0;
        while done < out.len() {
            let len = (width - column).min(TILE).min(out.len() - done);
            let (best, index) = (&mut best[..len], &mut out[done..done + len]);
            for r in 0..pass.n {
                let at = walk.data() + r * pass.stride + column;
                let row = &data[at..at + len];
                for j in 0..len {
                    let x = row[j].read(reading);
                    let better = r == 0 || x.replaces(best[j]);
                    best[j] = if better { x } else { best[j] };
                    index[j] = if better { r as i64 } else { index[j] };
                }
            }
            done += len;
            column += len;
            if column == width {
                column = 0;
                walk.advance();
            }
        }
    }
}
