//! Where the largest or smallest element lies: the first one among equals, the first NaN if there is any.

use super::folds::{End, Extreme, Ordered};
use super::{Job, Plan};
use crate::cpu::simd::simd;
use crate::pool;
use std::marker::PhantomData;

/// Positions along the single reduced dim, or in the flattened view when that is one run.
pub(crate) fn arg<T: Ordered, E: End>(data: &[T], plan: &Plan, out: &mut [i64]) {
    let pass = plan.first_pass();
    if !pass.is_rows() {
        let params = vec![(); out.len()];
        let job = Job::<Extreme<T, E>> { chunk: pass.n, chunks: 1, ..Job::new(data, &params, &pass) };
        let unit = 64.min(pass.width);
        return pool::for_chunks_mut(out, unit, pass.n * size_of::<T>(), |at, piece| {
            columns::<T, E>(&job, at, piece);
        });
    }
    // The extreme of each chunk first; then only the first chunk that holds the winner is searched.
    let params = vec![(); out.len()];
    let job = Job::<Extreme<T, E>>::new(data, &params, &pass);
    let fold = Extreme::<T, E>(PhantomData);
    let mut extremes = vec![E::worst::<T>(); out.len() * job.chunks];
    job.partials(fold, &mut extremes);
    pool::for_chunks_mut(out, 1, job.chunk.min(pass.n) * size_of::<T>(), |at, piece| {
        let mut walk = pass.walk(at);
        for (i, o) in piece.iter_mut().enumerate() {
            let of_row = &extremes[(at + i) * job.chunks..(at + i + 1) * job.chunks];
            let mut best = 0;
            for (c, &value) in of_row.iter().enumerate() {
                if E::replaces(value, of_row[best]) {
                    best = c;
                }
            }
            let start = best * job.chunk;
            let end = (start + job.chunk).min(pass.n);
            let row = &data[walk.data() + start..walk.data() + end];
            *o = (start + find(row, of_row[best])) as i64;
            walk.advance();
        }
    });
}

simd! {
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

    /// Rows compared element by element with the best so far.
    fn columns<T: Ordered, E: End>(job: &Job<'_, Extreme<T, E>>, first: usize, out: &mut [i64]) {
        const TILE: usize = 512;
        let (pass, width) = (job.pass, job.pass.width);
        let mut column = first % width;
        let mut walk = pass.walk(first / width);
        let mut best = [E::worst::<T>(); TILE];
        let mut done = 0;
        while done < out.len() {
            let len = (width - column).min(TILE).min(out.len() - done);
            let (best, index) = (&mut best[..len], &mut out[done..done + len]);
            for r in 0..pass.n {
                let at = walk.data() + r * pass.stride + column;
                let row = &job.data[at..at + len];
                for j in 0..len {
                    let x = row[j];
                    let better = r == 0 || E::replaces(x, best[j]);
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
