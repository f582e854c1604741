//! One box on its way from a file to memory: nested loops with a stride on either side.

use crate::error::Result;
use planaria_array::{Place, copy_box};
use planaria_layout::Dims;
use planaria_store::Reader;

/// Bytes read at once where they have to be scattered.
const SCRATCH: u64 = 2 << 20;
/// Runs closer than this are read together.
const GAP: u64 = 64 << 10;
/// Runs at least this long are read to their place without a copy.
const LONG: u64 = 64 << 10;

/// One loop: how often, and how far each turn goes in the file and in memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    len: usize,
    from: u64,
    to: usize,
}

/// A box in a file and its place in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nest {
    size: usize,
    from: u64,
    to: usize,
    /// The longest stride in the file first.
    levels: Vec<Level>,
}

impl Nest {
    /// Elements of `size` bytes; the first is at byte `from` of the file and goes to byte `to`. `dims` are the
    /// extent of each dim and its strides in the file and in memory, in bytes.
    pub(super) fn new(
        size: usize,
        from: u64,
        to: usize,
        dims: impl Iterator<Item = (usize, u64, usize)>,
    ) -> Nest {
        let mut levels: Vec<Level> =
            dims.filter(|dim| dim.0 != 1).map(|(len, from, to)| Level { len, from, to }).collect();
        levels.sort_by_key(|level| std::cmp::Reverse(level.from));
        let mut merged: Vec<Level> = Vec::with_capacity(levels.len());
        for level in levels.into_iter().rev() {
            // A dim that continues where the inner one ends, on both sides, is the same loop.
            match merged.last_mut() {
                Some(inner)
                    if level.from == inner.from * inner.len as u64 && level.to == inner.to * inner.len =>
                {
                    inner.len *= level.len;
                }
                _ => merged.push(level),
            }
        }
        merged.reverse();
        Nest { size, from, to, levels: merged }
    }

    /// Reads the box into `out`.
    pub(super) fn read(&self, file: &dyn Reader, out: &mut [u8], scratch: &mut Vec<u8>) -> Result<()> {
        if self.levels.iter().any(|level| level.len == 0) {
            return Ok(());
        }
        let (outer, inner) = self.levels.split_at(self.outer());
        walk(outer, self.from, self.to, &mut |from, to| {
            self.read_inner(file, inner, (from, to), out, scratch)
        })
    }

    /// How many outer loops turn once per read.
    fn outer(&self) -> usize {
        let mut span = self.size as u64;
        let mut outer = self.levels.len();
        while let Some(level) = outer.checked_sub(1).map(|at| self.levels[at]) {
            if level.from.saturating_sub(span) > GAP {
                break;
            }
            let whole = span_of(level, span);
            if whole > SCRATCH && span.saturating_add(level.from) > SCRATCH {
                break;
            }
            outer -= 1;
            // A long run goes to its place at once; a loop that is too long is cut.
            if whole > SCRATCH || (self.is_run(level) && whole >= LONG) {
                break;
            }
            span = whole;
        }
        outer
    }

    /// Bytes that follow each other on both sides.
    fn is_run(&self, level: Level) -> bool {
        level.from == self.size as u64 && level.to == self.size
    }

    fn read_inner(
        &self,
        file: &dyn Reader,
        inner: &[Level],
        (from, to): (u64, usize),
        out: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        match inner {
            [] => Ok(file.read_into(from, &mut out[to..to + self.size])?),
            [run] if self.is_run(*run) => Ok(file.read_into(from, &mut out[to..to + run.len * self.size])?),
            [first, rest @ ..] => {
                let span = rest.iter().rev().fold(self.size as u64, |span, level| span_of(*level, span));
                let room = SCRATCH.saturating_sub(span) / first.from.max(1) + 1;
                let step = first.len.min(usize::try_from(room).unwrap_or(usize::MAX));
                let mut done = 0;
                while done < first.len {
                    let part = Level { len: step.min(first.len - done), ..*first };
                    scratch.resize(span_of(part, span) as usize, 0);
                    file.read_into(from + done as u64 * first.from, scratch)?;
                    self.scatter(part, rest, scratch, (out, to + done * first.to))?;
                    done += part.len;
                }
                Ok(())
            }
        }
    }
}

impl Nest {
    /// Copies the elements of some loops from what was read to their places.
    fn scatter(
        &self,
        first: Level,
        rest: &[Level],
        read: &[u8],
        (out, to): (&mut [u8], usize),
    ) -> Result<()> {
        let levels = || std::iter::once(&first).chain(rest);
        let extents: Dims = levels().map(|level| level.len).collect();
        let from: Vec<isize> = levels().map(|level| level.from as isize).collect();
        let steps: Vec<isize> = levels().map(|level| level.to as isize).collect();
        let (source, target) = (Place { start: 0, steps: &from }, Place { start: to, steps: &steps });
        Ok(copy_box(&extents, self.size, (read, source), (out, target))?)
    }
}

/// Bytes from the first to the last element of a loop around something that spans `inner` bytes.
fn span_of(level: Level, inner: u64) -> u64 {
    (level.len as u64 - 1).saturating_mul(level.from).saturating_add(inner)
}

/// Calls `f` with the places of every turn of the loops.
fn walk(levels: &[Level], from: u64, to: usize, f: &mut dyn FnMut(u64, usize) -> Result<()>) -> Result<()> {
    let Some((first, rest)) = levels.split_first() else { return f(from, to) };
    (0..first.len).try_for_each(|turn| walk(rest, from + turn as u64 * first.from, to + turn * first.to, f))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file in memory that counts its reads.
    #[derive(Debug)]
    struct Memory(Vec<u8>, std::sync::atomic::AtomicUsize);

    impl Reader for Memory {
        fn name(&self) -> &str {
            "memory"
        }
        fn size(&self) -> u64 {
            self.0.len() as u64
        }
        fn read_at(&self, offset: u64, into: &mut [u8]) -> planaria_store::Result<usize> {
            self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let rest = &self.0[offset as usize..];
            let len = into.len().min(rest.len());
            into[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        }
    }

    fn read(nest: &Nest, file: &[u8], out: usize) -> (Vec<u8>, usize) {
        let (file, mut out) = (Memory(file.to_vec(), 0.into()), vec![0; out]);
        nest.read(&file, &mut out, &mut Vec::new()).unwrap();
        (out, file.1.into_inner())
    }

    #[test]
    fn a_whole_tensor_is_one_read() {
        let file: Vec<u8> = (0..24).collect();
        let nest = Nest::new(2, 0, 0, [(3, 8, 8), (4, 2, 2)].into_iter());
        assert_eq!(nest.levels.len(), 1);
        assert_eq!(read(&nest, &file, 24), (file, 1));
    }

    #[test]
    fn close_columns_are_read_together() {
        let file: Vec<u8> = (0..100).map(|i| i as u8).collect();
        // Columns 2..4 of ten rows of ten bytes.
        let nest = Nest::new(1, 2, 0, [(10, 10, 2), (2, 1, 1)].into_iter());
        let (out, reads) = read(&nest, &file, 20);
        assert_eq!((&out[..4], reads), (&[2, 3, 12, 13][..], 1));
    }

    #[test]
    fn far_rows_are_read_alone_and_long_ones_in_place() {
        let row = 200_000;
        let file: Vec<u8> = (0..4 * row).map(|i| (i / row) as u8 + 1).collect();
        let nest = Nest::new(1, 0, 0, [(4, row as u64, 10), (10, 1, 1)].into_iter());
        let (out, reads) = read(&nest, &file, 40);
        assert_eq!((out[0], out[39], reads), (1, 4, 4));
        let nest = Nest::new(1, 0, 0, [(4, row as u64, 100_000), (100_000, 1, 1)].into_iter());
        assert_eq!(read(&nest, &file, 400_000).1, 4);
    }

    #[test]
    fn a_tall_thin_box_takes_a_few_large_reads() {
        let rows = 10_000;
        let file: Vec<u8> = (0..rows * 1000).map(|i| (i % 1000 % 251) as u8).collect();
        let nest = Nest::new(1, 250, 0, [(rows, 1000, 500), (500, 1, 1)].into_iter());
        let (out, reads) = read(&nest, &file, rows * 500);
        assert!(out.chunks(500).all(|row| *row == file[250..750]), "every row is the same");
        assert!(reads <= 6, "{reads} reads of 10 MB");
    }

    proptest! {
        #[test]
        fn any_nest_copies_element_by_element(
            dims in prop::collection::vec(1usize..6, 0..4), size in prop::sample::select(vec![1usize, 2, 4, 8]),
            order in any::<u64>(), gaps in prop::collection::vec(0usize..3, 4),
        ) {
            // File strides in any order of dims with gaps, memory strides row-major.
            let n = dims.len();
            let mut by: Vec<usize> = (0..n).collect();
            by.sort_by_key(|d| order.rotate_left(*d as u32 * 7) % 11);
            let (mut from, mut stride) = (vec![0u64; n], size as u64);
            for (number, &d) in by.iter().enumerate() {
                from[d] = stride;
                stride = stride * dims[d] as u64 + (gaps[number] * size) as u64;
            }
            let (mut to, mut next) = (vec![0usize; n], size);
            for d in (0..n).rev() {
                to[d] = next;
                next *= dims[d];
            }
            let file: Vec<u8> = (0..stride as usize + 64).map(|i| (i * 31 % 251) as u8).collect();
            let nest = Nest::new(size, 0, 0, (0..n).map(|d| (dims[d], from[d], to[d])));
            let (out, _) = read(&nest, &file, next);
            for flat in 0..next / size {
                let (mut rest, mut at) = (flat, 0usize);
                for d in (0..n).rev() {
                    at += (rest % dims[d]) * from[d] as usize;
                    rest /= dims[d];
                }
                prop_assert_eq!(&out[flat * size..][..size], &file[at..at + size]);
            }
        }
    }
}
