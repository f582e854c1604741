//! Copies in which each dim of the result has its own map to positions of the source.
//!
//! Padding, rolling, flipping and repeating are all of this kind. A [`Map`] is a short list of runs, so that rows
//! are copied in long pieces; [`Remap::run`] reads through the maps and [`fold`] adds back through one of them.

use super::real::Real;
use super::simd::simd;
use bytemuck::Pod;
use planaria_cpu::pool;

/// Consecutive positions of a dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First position in the result.
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// Source position of the first one, or `None` where the result is filled.
    pub(crate) start: Option<usize>,
    pub(crate) step: Step,
}

/// How the source position moves along a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Forward,
    Stay,
    Back,
}

/// Where each position of one dim of the result comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    runs: Vec<Run>,
    len: usize,
    source: usize,
}

impl Map {
    fn new(source: usize) -> Map {
        Map { runs: Vec::new(), len: 0, source }
    }

    fn push(&mut self, len: usize, start: Option<usize>, step: Step) {
        if len > 0 {
            self.runs.push(Run { at: self.len, len, start, step });
            self.len += len;
        }
    }

    /// Each position from itself.
    pub(crate) fn identity(size: usize) -> Map {
        let mut map = Map::new(size);
        map.push(size, Some(0), Step::Forward);
        map
    }

    /// `len` positions from `start` of the source, between `before` and `after` filled ones.
    pub(crate) fn constant(size: usize, before: usize, start: usize, len: usize, after: usize) -> Map {
        let mut map = Map::new(size);
        map.push(before, None, Step::Stay);
        map.push(len, Some(start), Step::Forward);
        map.push(after, None, Step::Stay);
        map
    }

    /// Mirrored at the first and last position, which are not repeated; both margins are less than `size`.
    pub(crate) fn reflect(size: usize, before: usize, after: usize) -> Map {
        let mut map = Map::new(size);
        map.push(before, Some(before), Step::Back);
        map.push(size, Some(0), Step::Forward);
        map.push(after, Some(size.saturating_sub(2)), Step::Back);
        map
    }

    /// The first and last position repeated outward; `size` is not 0.
    pub(crate) fn replicate(size: usize, before: usize, after: usize) -> Map {
        let mut map = Map::new(size);
        map.push(before, Some(0), Step::Stay);
        map.push(size, Some(0), Step::Forward);
        map.push(after, Some(size.saturating_sub(1)), Step::Stay);
        map
    }

    /// Continued as if the source were a ring; both margins are at most `size`.
    pub(crate) fn circular(size: usize, before: usize, after: usize) -> Map {
        let mut map = Map::new(size);
        map.push(before, Some(size - before), Step::Forward);
        map.push(size, Some(0), Step::Forward);
        map.push(after, Some(0), Step::Forward);
        map
    }

    /// The positions `start..start + len` of this map only.
    pub(crate) fn cut(&self, start: usize, len: usize) -> Map {
        let mut map = Map::new(self.source);
        for run in &self.runs {
            let (a, b) = (start.max(run.at), (start + len).min(run.at + run.len));
            if a < b {
                map.push(b - a, run.source(a - run.at), run.step);
            }
        }
        map
    }

    /// Moved toward higher positions by `shift < size`, what falls off coming back at the start.
    pub(crate) fn roll(size: usize, shift: usize) -> Map {
        let mut map = Map::new(size);
        map.push(shift, Some(size - shift), Step::Forward);
        map.push(size - shift, Some(0), Step::Forward);
        map
    }

    /// Last position first.
    pub(crate) fn flip(size: usize) -> Map {
        let mut map = Map::new(size);
        map.push(size, size.checked_sub(1), Step::Back);
        map
    }

    /// The whole dim `times` times.
    pub(crate) fn tile(size: usize, times: usize) -> Map {
        let mut map = Map::new(size);
        if size == 1 {
            map.push(times, Some(0), Step::Stay);
            return map;
        }
        for _ in 0..if size == 0 { 0 } else { times } {
            map.push(size, Some(0), Step::Forward);
        }
        map
    }

    /// Position i `repeats(i)` times.
    pub(crate) fn interleave(size: usize, repeats: impl Fn(usize) -> usize) -> Map {
        let mut map = Map::new(size);
        for i in 0..size {
            map.push(repeats(i), Some(i), Step::Stay);
        }
        map
    }

    /// Positions in the result.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Runs of positions, in order.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// True where each position comes from itself.
    pub(crate) fn is_identity(&self) -> bool {
        let whole = |run: &Run| run.start == Some(0) && run.step == Step::Forward && run.len == self.source;
        self.len == self.source && self.runs.iter().all(whole)
    }

    /// The source of every position, `usize::MAX` for filled ones.
    pub(crate) fn dense(&self) -> Vec<usize> {
        let each = |run: &Run| {
            let run = *run;
            (0..run.len).map(move |k| run.source(k).unwrap_or(usize::MAX))
        };
        self.runs.iter().flat_map(each).collect()
    }
}

impl Run {
    /// The source of position `k` of this run.
    fn source(&self, k: usize) -> Option<usize> {
        self.start.map(|start| match self.step {
            Step::Forward => start + k,
            Step::Stay => start,
            Step::Back => start - k,
        })
    }
}

/// A copy through one map per dim, prepared.
#[derive(Debug)]
pub(crate) struct Remap {
    /// Every map before the last one that changes anything, with the source's step along its dim.
    outer: Vec<(Vec<usize>, usize)>,
    runs: Vec<Run>,
    /// Elements below the last changed dim, which move together.
    block: usize,
    /// Result elements per row: positions of the last changed dim times `block`.
    row: usize,
}

impl Remap {
    /// `shape` is the source's; there is one map per dim and the result is not empty.
    pub(crate) fn new(shape: &[usize], maps: &[Map]) -> Remap {
        let Some(last) = maps.iter().rposition(|m| !m.is_identity()) else {
            let all = shape.iter().product();
            return Remap { outer: Vec::new(), runs: Map::identity(all).runs, block: 1, row: all };
        };
        let block: usize = shape[last + 1..].iter().product();
        let mut step: usize = shape[last..].iter().product();
        let mut outer = Vec::with_capacity(last);
        for d in (0..last).rev() {
            outer.insert(0, (maps[d].dense(), step));
            step *= shape[d];
        }
        Remap { outer, runs: maps[last].runs.clone(), block, row: maps[last].len * block }
    }

    /// Writes the whole result from a row-major source.
    pub(crate) fn run<T: Pod + Send + Sync>(&self, src: &[T], fill: T, out: &mut [T]) {
        pool::for_chunks_mut(out, 4096, 2 * size_of::<T>(), |first, piece| {
            let mut at = first;
            while at < first + piece.len() {
                let column = at % self.row;
                let len = (self.row - column).min(first + piece.len() - at);
                let part = &mut piece[at - first..at - first + len];
                match self.source_row(at / self.row) {
                    Some(base) => self.fill_row(&src[base..], column, fill, part),
                    None => part.fill(fill),
                }
                at += len;
            }
        });
    }

    /// Where the row starts in the source, or `None` for a row that is filled.
    fn source_row(&self, row: usize) -> Option<usize> {
        let (mut rest, mut base) = (row, 0);
        for (map, step) in self.outer.iter().rev() {
            let from = map[rest % map.len()];
            if from == usize::MAX {
                return None;
            }
            base += from * step;
            rest /= map.len();
        }
        Some(base)
    }

    /// Elements `column..column + out.len()` of one row.
    fn fill_row<T: Pod>(&self, src: &[T], column: usize, fill: T, out: &mut [T]) {
        let (block, end) = (self.block, column + out.len());
        let first = self.runs.partition_point(|run| (run.at + run.len) * block <= column);
        for run in &self.runs[first..] {
            let (a, b) = ((run.at * block).max(column), ((run.at + run.len) * block).min(end));
            if a >= b {
                return;
            }
            let part = &mut out[a - column..b - column];
            // Position inside the run, counted in elements.
            let skip = a - run.at * block;
            match (run.start, run.step) {
                (None, _) => part.fill(fill),
                (Some(start), Step::Forward) => {
                    let from = start * block + skip;
                    part.copy_from_slice(&src[from..from + part.len()]);
                }
                (Some(start), Step::Stay) if block == 1 => part.fill(src[start]),
                (Some(start), Step::Back) if block == 1 => {
                    let from = start - skip;
                    let source = src[from + 1 - part.len()..=from].iter().rev();
                    part.iter_mut().zip(source).for_each(|(o, s)| *o = *s);
                }
                _ => fill_blocks(run, src, block, skip, part),
            }
        }
    }
}

/// A run whose positions are blocks that do not lie one after the other in the source.
fn fill_blocks<T: Pod>(run: &Run, src: &[T], block: usize, skip: usize, out: &mut [T]) {
    let mut at = 0;
    while at < out.len() {
        let (k, offset) = ((skip + at) / block, (skip + at) % block);
        let len = (block - offset).min(out.len() - at);
        let from = run.source(k).unwrap_or(0) * block + offset;
        out[at..at + len].copy_from_slice(&src[from..from + len]);
        at += len;
    }
}

simd! {
    fn add_to<R: Real>(sum: &mut [R], x: &[R]) {
        for (s, x) in sum.iter_mut().zip(x) {
            *s += *x;
        }
    }
}

/// Adds every position of one mapped dim back to where it came from: the gradient of [`Remap::run`] for that dim.
///
/// `grad` has `map.len()` positions of `block` elements per row, `out` is zero and has the map's source size.
/// Positions are added in order, so the sums do not depend on threads.
pub(crate) fn fold<R: Real>(map: &Map, block: usize, grad: &[R], out: &mut [R]) {
    let (row, grad_row) = (map.source * block, map.len * block);
    let cost = (1 + map.len.div_ceil(map.source.max(1))) * size_of::<R>();
    pool::for_chunks_mut(out, row, cost, |first, piece| {
        for (i, sums) in piece.chunks_mut(row).enumerate() {
            let at = (first / row + i) * grad_row;
            let grad = &grad[at..at + grad_row];
            for run in &map.runs {
                let Some(start) = run.start else { continue };
                let part = &grad[run.at * block..(run.at + run.len) * block];
                match run.step {
                    Step::Forward => add_to(&mut sums[start * block..][..part.len()], part),
                    _ => part.chunks(block).enumerate().for_each(|(k, x)| {
                        let to = run.source(k).unwrap_or(0) * block;
                        add_to(&mut sums[to..to + block], x);
                    }),
                }
            }
        }
    });
}
