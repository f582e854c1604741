//! Strided memory read and written in row-major order, block by block.
//!
//! Kernels work on contiguous slices. An [`Operand`] gives any logical range of a strided view as such a slice:
//! directly when it lies contiguous in memory, gathered into a small buffer otherwise. An [`OperandMut`] takes
//! blocks back. The unsafe code here relies on one fact, checked by `new`: no coordinate leaves the slice.
#![allow(unsafe_code)]

use super::stream;
use smallvec::SmallVec;
use std::marker::PhantomData;
use std::ops::Range;

/// Elements of the scratch buffers kernels use for gathered blocks: small enough for the first-level cache.
pub(crate) const BLOCK: usize = 1024;
/// The longest slice handed to a kernel at once.
pub(crate) const LONGEST: usize = 16 * BLOCK;

/// Rows that a gather asks memory for in advance.
const ROWS_AHEAD: isize = 4;

/// One dim after merging neighbours that step evenly.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Dim {
    len: usize,
    stride: isize,
}

/// Merges dims that walk memory evenly, drops dims of size 1. Outermost first.
fn merge(shape: &[usize], strides: &[isize]) -> SmallVec<[Dim; 6]> {
    let mut dims: SmallVec<[Dim; 6]> = SmallVec::new();
    for (&len, &stride) in shape.iter().zip(strides) {
        if len == 1 {
            continue;
        }
        match dims.last_mut() {
            Some(last) if last.stride == stride * len as isize => *last = Dim { len: last.len * len, stride },
            _ => dims.push(Dim { len, stride }),
        }
    }
    if dims.is_empty() {
        dims.push(Dim { len: 1, stride: 1 });
    }
    dims
}

/// Geometry shared by readers and writers.
#[derive(Clone, Debug)]
struct Walk {
    dims: SmallVec<[Dim; 6]>,
    offset: usize,
    numel: usize,
}

impl Walk {
    /// Panics if any element lies outside `0..len`: views are checked when they are made, so that is a bug.
    fn new(len: usize, offset: usize, shape: &[usize], strides: &[isize]) -> Walk {
        let numel: usize = shape.iter().product();
        let dims = if numel == 0 { merge(&[], &[]) } else { merge(shape, strides) };
        let (mut low, mut high) = (offset as i128, offset as i128);
        for d in &dims {
            let reach = (d.len as i128 - 1) * d.stride as i128;
            if reach < 0 { low += reach } else { high += reach }
        }
        assert!(
            numel == 0 || (low >= 0 && high < len as i128),
            "view {shape:?}/{strides:?} reaches outside its storage"
        );
        Walk { dims, offset, numel }
    }

    /// Elements from one inner row to the next, most of the time.
    fn row_step(&self) -> isize {
        self.dims.len().checked_sub(2).map_or(0, |d| self.dims[d].stride)
    }

    fn inner(&self) -> Dim {
        self.dims[self.dims.len() - 1]
    }

    /// Calls `run(memory offset, first logical index, length)` for each piece of `range` inside one inner row.
    #[inline]
    fn for_runs(&self, range: Range<usize>, mut run: impl FnMut(usize, usize, usize)) {
        let last = self.dims.len() - 1;
        let inner = self.dims[last];
        let Place { mut coord, mut base, mut column } = self.place(range.start);
        let mut at = range.start;
        while at < range.end {
            let len = (inner.len - column).min(range.end - at);
            run((base + column as isize * inner.stride) as usize, at, len);
            at += len;
            column = 0;
            for i in (0..last).rev() {
                base += self.dims[i].stride;
                coord[i] += 1;
                if coord[i] < self.dims[i].len {
                    break;
                }
                base -= self.dims[i].stride * coord[i] as isize;
                coord[i] = 0;
            }
        }
    }

    /// Where logical element `index` lies.
    #[inline(never)]
    fn place(&self, index: usize) -> Place {
        let last = self.dims.len() - 1;
        let inner = self.dims[last].len;
        let mut place =
            Place { coord: SmallVec::from_elem(0, last), base: self.offset as isize, column: index % inner };
        let mut rest = index / inner;
        for i in (0..last).rev() {
            let dim = self.dims[i];
            place.coord[i] = rest % dim.len;
            rest /= dim.len;
            place.base += place.coord[i] as isize * dim.stride;
        }
        place
    }
}

/// A position in a walk: the coordinates of an inner row, its memory offset, and a column of it.
struct Place {
    coord: SmallVec<[usize; 6]>,
    base: isize,
    column: usize,
}

/// A strided view for reading.
#[derive(Clone, Debug)]
pub(crate) struct Operand<'a, T> {
    data: &'a [T],
    walk: Walk,
}

impl<'a, T: Copy> Operand<'a, T> {
    pub(crate) fn new(data: &'a [T], offset: usize, shape: &[usize], strides: &[isize]) -> Operand<'a, T> {
        Operand { data, walk: Walk::new(data.len(), offset, shape, strides) }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.walk.numel
    }

    /// The whole view as a slice, if it is contiguous.
    pub(crate) fn as_slice(&self) -> Option<&'a [T]> {
        let (walk, inner) = (&self.walk, self.walk.inner());
        if walk.numel == 0 {
            return Some(&[]);
        }
        (walk.dims.len() == 1 && inner.stride == 1).then(|| &self.data[walk.offset..walk.offset + walk.numel])
    }

    /// The length of blocks this view is best read in, starting at multiples of it.
    pub(crate) fn block_len(&self) -> usize {
        let inner = self.walk.inner();
        match (self.walk.dims.len(), inner.stride) {
            (1, 1) => LONGEST,
            (_, 1) if (BLOCK / 2..=LONGEST).contains(&inner.len) => inner.len,
            _ => BLOCK,
        }
    }

    /// The logical elements `range` as a slice: in place when they are contiguous, else gathered into `scratch`.
    #[inline]
    pub(crate) fn block<'s>(&'s self, range: Range<usize>, scratch: &'s mut [T]) -> &'s [T] {
        let (walk, inner) = (&self.walk, self.walk.inner());
        if inner.stride == 1 {
            let Place { base, column, .. } = walk.place(range.start);
            if column + range.len() <= inner.len {
                let start = base as usize + column;
                return &self.data[start..start + range.len()];
            }
        }
        let scratch = &mut scratch[..range.len()];
        self.gather(range, scratch);
        scratch
    }

    /// Copies the logical elements `range` to `out`, which has the same length.
    #[inline]
    pub(crate) fn gather(&self, range: Range<usize>, out: &mut [T]) {
        assert!(range.end <= self.walk.numel && out.len() == range.len());
        let (first, stride) = (range.start, self.walk.inner().stride);
        let ahead = self.walk.row_step() * ROWS_AHEAD;
        self.walk.for_runs(range, |at, index, len| {
            let out = &mut out[index - first..index - first + len];
            match stride {
                1 => {
                    // Short rows far apart: nothing but this code knows which one comes next.
                    if len <= BLOCK / 4 {
                        let next = (at as isize + ahead) as usize;
                        stream::ask(self.data, next..next + len);
                        stream::claim(out, ROWS_AHEAD as usize * len);
                    }
                    out.copy_from_slice(&self.data[at..at + len]);
                }
                0 => out.fill(self.data[at]),
                _ => {
                    for (i, o) in out.iter_mut().enumerate() {
                        // SAFETY: `Walk::new` checked that every coordinate of the view lies in `data`.
                        *o =
                            unsafe { *self.data.get_unchecked((at as isize + i as isize * stride) as usize) };
                    }
                }
            }
        });
    }
}

/// A strided view for writing, usable from several threads as long as they write different logical ranges.
#[derive(Debug)]
pub(crate) struct OperandMut<'a, T> {
    data: *mut T,
    len: usize,
    walk: Walk,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a `&mut [T]`; `scatter` writes disjoint cells for disjoint ranges (checked by `new`).
unsafe impl<T: Send> Sync for OperandMut<'_, T> {}

impl<'a, T: Copy> OperandMut<'a, T> {
    /// `None` when two coordinates share a memory cell: such a view cannot be written in any order.
    pub(crate) fn new(
        data: &'a mut [T],
        offset: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Option<OperandMut<'a, T>> {
        let walk = Walk::new(data.len(), offset, shape, strides);
        if walk.numel > 0 && may_overlap(shape, strides) {
            return None;
        }
        Some(OperandMut { data: data.as_mut_ptr(), len: data.len(), walk, slice: PhantomData })
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.walk.numel
    }

    /// Calls `write(first logical index, run)` for each contiguous run of `range`, or single elements where the
    /// inner dim is strided.
    ///
    /// # Safety
    /// No two calls that run at the same time may overlap in `range`.
    #[inline]
    pub(crate) unsafe fn for_runs_mut(&self, range: Range<usize>, mut write: impl FnMut(usize, &mut [T])) {
        assert!(range.end <= self.walk.numel);
        let stride = self.walk.inner().stride;
        self.walk.for_runs(range, |at, index, len| {
            if stride == 1 {
                debug_assert!(at + len <= self.len);
                // SAFETY: the run lies in the slice (`Walk::new`), different coordinates are different cells
                // (`may_overlap`), and the caller keeps ranges apart.
                write(index, unsafe { std::slice::from_raw_parts_mut(self.data.add(at), len) });
                return;
            }
            for i in 0..len {
                // SAFETY: as above, for one cell.
                write(index + i, unsafe {
                    std::slice::from_raw_parts_mut(self.data.offset(at as isize + i as isize * stride), 1)
                });
            }
        });
    }

    /// Runs `write(first logical index, run)` over the whole view on the pool.
    pub(crate) fn for_each_run(&self, item_bytes: usize, write: impl Fn(usize, &mut [T]) + Sync)
    where
        T: Send,
    {
        planaria_cpu::pool::for_ranges(self.len(), BLOCK, item_bytes, &|range| {
            // SAFETY: `for_ranges` hands out disjoint ranges.
            unsafe { self.for_runs_mut(range, |index, run| write(index, run)) }
        });
    }

    /// Copies `src`, which has as many elements, to the whole view on the pool.
    pub(crate) fn copy_from(&self, src: &Operand<'_, T>)
    where
        T: Send + Sync + bytemuck::Zeroable,
    {
        assert_eq!(self.len(), src.len());
        let block = src.block_len();
        planaria_cpu::pool::for_ranges(self.len(), block, 2 * size_of::<T>(), &|range| {
            let mut scratch = vec![T::zeroed(); block.min(range.len())];
            let mut at = range.start;
            while at < range.end {
                let end = (at + block).min(range.end);
                // SAFETY: `for_ranges` hands out disjoint ranges.
                unsafe { self.scatter(at, src.block(at..end, &mut scratch)) };
                at = end;
            }
        });
    }

    /// Writes `src` to the logical elements starting at `first`.
    ///
    /// # Safety
    /// As for [`OperandMut::for_runs_mut`].
    #[inline]
    pub(crate) unsafe fn scatter(&self, first: usize, src: &[T]) {
        let stride = self.walk.inner().stride;
        assert!(first + src.len() <= self.walk.numel);
        self.walk.for_runs(first..first + src.len(), |at, index, len| {
            let src = &src[index - first..index - first + len];
            if stride == 1 {
                // SAFETY: as in `for_runs_mut`; `src` is a borrow, so it cannot be part of the written slice.
                unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), self.data.add(at), len) };
                return;
            }
            for (i, &v) in src.iter().enumerate() {
                // SAFETY: as in `for_runs_mut`.
                unsafe { *self.data.offset(at as isize + i as isize * stride) = v };
            }
        });
    }
}

/// True unless it is certain that different coordinates are different memory cells.
pub(crate) fn may_overlap(shape: &[usize], strides: &[isize]) -> bool {
    let mut dims: SmallVec<[(usize, usize); 6]> = shape
        .iter()
        .zip(strides)
        .filter(|(len, _)| **len > 1)
        .map(|(&len, &s)| (s.unsigned_abs(), len))
        .collect();
    dims.sort_unstable();
    let mut reach = 0usize;
    for (stride, len) in dims {
        if stride <= reach {
            return true;
        }
        reach += stride * (len - 1);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reference(data: &[u32], offset: usize, shape: &[usize], strides: &[isize]) -> Vec<u32> {
        let mut out = Vec::new();
        let numel: usize = shape.iter().product();
        for i in 0..numel {
            let (mut rest, mut at) = (i, offset as isize);
            for d in (0..shape.len()).rev() {
                at += (rest % shape[d]) as isize * strides[d];
                rest /= shape[d];
            }
            out.push(data[at as usize]);
        }
        out
    }

    /// Random geometry that stays inside its buffer, negative and zero strides included.
    fn geometry() -> impl Strategy<Value = (Vec<usize>, Vec<isize>, usize, usize)> {
        proptest::collection::vec((0usize..5, -7isize..8), 0..5).prop_map(|dims| {
            let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            let reach = |sign: isize| -> usize {
                let steps =
                    shape.iter().zip(&strides).map(|(&l, &s)| (l.max(1) - 1) * (s * sign).max(0) as usize);
                steps.sum()
            };
            let (low, high) = (reach(-1), reach(1));
            (shape, strides, low, low + high + 1)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn blocks_read_what_coordinates_say((shape, strides, offset, len) in geometry(), cut in 1usize..9) {
            let data: Vec<u32> = (0..len as u32).collect();
            let operand = Operand::new(&data, offset, &shape, &strides);
            let want = reference(&data, offset, &shape, &strides);
            let mut got = Vec::new();
            let mut scratch = vec![0; 16];
            let mut at = 0;
            while at < operand.len() {
                let end = (at + cut).min(operand.len());
                got.extend_from_slice(operand.block(at..end, &mut scratch));
                at = end;
            }
            prop_assert_eq!(got, want);
        }

        #[test]
        fn writes_land_where_reads_look((shape, strides, offset, len) in geometry()) {
            let mut data = vec![0u32; len];
            let numel: usize = shape.iter().product();
            let src: Vec<u32> = (1..=numel as u32).collect();
            let Some(out) = OperandMut::new(&mut data, offset, &shape, &strides) else { return Ok(()) };
            // SAFETY: one call, one thread.
            unsafe { out.scatter(0, &src) };
            prop_assert_eq!(reference(&data, offset, &shape, &strides), src);
        }
    }
}
