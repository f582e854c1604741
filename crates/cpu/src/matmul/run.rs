//! Checks the operands, cuts the output into tasks and runs them on the caller's pool.
#![allow(unsafe_code)]

use super::arch::Start;
use super::blocked::Strided;
use super::path::{Path, ProductKind, Task, default_path};
use super::{Accumulate, MatRef, MatmulElement, MatmulError, Operand};
use crate::pool;

/// The batch dims of a product: the output of item `[i, j, ..]` lies at its row-major position.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Size of each batch dim.
    pub shape: &'a [usize],
    /// Elements from one item to the next in the left slice, per dim; 0 broadcasts.
    pub a_strides: &'a [isize],
    /// The same for the right slice.
    pub b_strides: &'a [isize],
}

/// `out = a · b` (or `+=`), `out` being row-major, `a.rows` by `b.cols`.
pub fn matmul<T: MatmulElement>(
    out: &mut [T],
    a: MatRef<T>,
    b: MatRef<T>,
    accumulate: Accumulate,
) -> Result<(), MatmulError> {
    matmul_at(default_path(), out, a, b, accumulate)
}

/// A product for each item of `batch`; `a` and `b` are the matrices of the first item.
pub fn matmul_batched<T: MatmulElement>(
    out: &mut [T],
    a: MatRef<T>,
    b: MatRef<T>,
    batch: Batch,
    accumulate: Accumulate,
) -> Result<(), MatmulError> {
    matmul_batched_at(default_path(), out, a, b, batch, accumulate)
}

/// [`matmul`] by a chosen path, which must be among `available_paths`.
pub fn matmul_at<T: MatmulElement>(
    path: Path,
    out: &mut [T],
    a: MatRef<T>,
    b: MatRef<T>,
    accumulate: Accumulate,
) -> Result<(), MatmulError> {
    matmul_batched_at(path, out, a, b, Batch { shape: &[], a_strides: &[], b_strides: &[] }, accumulate)
}

/// [`matmul_batched`] by a chosen path, which must be among `available_paths`.
pub fn matmul_batched_at<T: MatmulElement>(
    path: Path,
    out: &mut [T],
    a: MatRef<T>,
    b: MatRef<T>,
    batch: Batch,
    accumulate: Accumulate,
) -> Result<(), MatmulError> {
    let count = check(out.len(), &a, &b, &batch)?;
    if out.is_empty() {
        return Ok(());
    }
    if a.cols == 0 {
        if accumulate == Accumulate::Overwrite {
            out.fill(T::narrow(T::Acc::default()));
        }
        return Ok(());
    }
    let (a, b) = fold_rows(a, b, &batch).unwrap_or((a, b));
    let count = if a.rows * b.cols == out.len() { 1 } else { count };
    let product = Product::new(out, a, b, batch, accumulate);
    product.run(path, count);
    Ok(())
}

/// Returns the number of items.
fn check<T>(out: usize, a: &MatRef<T>, b: &MatRef<T>, batch: &Batch) -> Result<usize, MatmulError> {
    if a.cols != b.rows {
        return Err(MatmulError::Inner { a_cols: a.cols, b_rows: b.rows });
    }
    if batch.a_strides.len() != batch.shape.len() || batch.b_strides.len() != batch.shape.len() {
        let (a, b) = (batch.a_strides.len(), batch.b_strides.len());
        return Err(MatmulError::BatchStrides { ndim: batch.shape.len(), a, b });
    }
    // Zero factors first, so that an empty product of absurd sizes is not an overflow.
    let sizes = || batch.shape.iter().copied().chain([a.rows, b.cols]);
    let needed = if sizes().any(|n| n == 0) { Some(0) } else { sizes().try_fold(1usize, usize::checked_mul) };
    if needed != Some(out) {
        let items = batch.shape.iter().fold(1usize, |n, d| n.saturating_mul(*d));
        return Err(MatmulError::Output { len: out, batch: items, rows: a.rows, cols: b.cols });
    }
    if out > 0 && a.cols > 0 {
        check_operand(a, batch.shape, batch.a_strides, Operand::A)?;
        check_operand(b, batch.shape, batch.b_strides, Operand::B)?;
    }
    Ok(if out == 0 { 0 } else { out / a.rows / b.cols })
}

/// The lowest and the highest element an operand names lie in its slice.
fn check_operand<T>(
    m: &MatRef<T>,
    shape: &[usize],
    strides: &[isize],
    operand: Operand,
) -> Result<(), MatmulError> {
    let (mut low, mut high) = (m.offset as i128, m.offset as i128);
    let dims = shape.iter().zip(strides).chain([(&m.rows, &m.row_stride), (&m.cols, &m.col_stride)]);
    for (size, stride) in dims {
        // Both factors fit 64 bits, so the product fits 128; sizes are not zero here.
        let reach = (*size as i128 - 1) * *stride as i128;
        let bound = if reach < 0 { &mut low } else { &mut high };
        *bound = bound.saturating_add(reach);
    }
    if low < 0 || high >= m.data.len() as i128 {
        return Err(MatmulError::OutOfSlice { operand, len: m.data.len() });
    }
    Ok(())
}

/// A batch that repeats one right matrix and walks the left one's rows is a single taller product.
fn fold_rows<'a, T>(
    a: MatRef<'a, T>,
    b: MatRef<'a, T>,
    batch: &Batch,
) -> Option<(MatRef<'a, T>, MatRef<'a, T>)> {
    let (mut rows, mut row_stride) = (a.rows, a.row_stride);
    for (d, size) in batch.shape.iter().enumerate().rev() {
        if *size == 1 {
            continue;
        }
        if rows == 1 {
            // A single row has no step of its own: the batch's becomes the step between rows.
            row_stride = batch.a_strides[d];
        }
        if batch.b_strides[d] != 0 || batch.a_strides[d] != row_stride.checked_mul(rows as isize)? {
            return None;
        }
        rows *= size;
    }
    Some((MatRef { rows, row_stride, ..a }, b))
}

/// A checked product by pointers.
struct Product<'a, T> {
    a: Strided<T>,
    b: Strided<T>,
    c: *mut T,
    rows: usize,
    cols: usize,
    depth: usize,
    batch: Batch<'a>,
    start: Start,
}

// SAFETY: tasks read the operands and write disjoint parts of the output, which the caller of
// `run` has borrowed for its whole length; `T` is Send and Sync.
unsafe impl<T: Send + Sync> Sync for Product<'_, T> {}

/// Multiplications worth one more thread: some hundredths of a millisecond.
const TASK_WORK: usize = 3 << 19;
/// The same on the tile unit.
const TILE_TASK_WORK: usize = 4 << 20;
/// The same for products with a vector, which wait for memory.
const VECTOR_TASK_WORK: usize = 1 << 20;
/// Output rows and columns of a task never exceed this, which bounds the scratch space.
const MAX_SIDE: usize = 2048;

impl<'a, T: MatmulElement> Product<'a, T> {
    fn new(out: &mut [T], a: MatRef<T>, b: MatRef<T>, batch: Batch<'a>, accumulate: Accumulate) -> Self {
        let strided = |m: &MatRef<T>| Strided {
            ptr: m.data.as_ptr().wrapping_add(m.offset),
            row_stride: m.row_stride,
            col_stride: m.col_stride,
        };
        Self {
            a: strided(&a),
            b: strided(&b),
            c: out.as_mut_ptr(),
            rows: a.rows,
            cols: b.cols,
            depth: a.cols,
            batch,
            start: if accumulate == Accumulate::Add { Start::Add } else { Start::Zero },
        }
    }

    fn kind(&self) -> ProductKind {
        match (self.rows, self.cols) {
            (1, _) => ProductKind::Row,
            (_, 1) => ProductKind::Column,
            _ => ProductKind::Matrix,
        }
    }

    /// Runs all `count` products.
    fn run(&self, path: Path, count: usize) {
        let work = self.rows.saturating_mul(self.cols).saturating_mul(self.depth).saturating_mul(count);
        let task_work = match self.kind() {
            ProductKind::Matrix if path == Path::Tiles && size_of::<T>() == 2 => TILE_TASK_WORK,
            ProductKind::Matrix => TASK_WORK,
            ProductKind::Row | ProductKind::Column => VECTOR_TASK_WORK,
        };
        let threads = rayon::current_num_threads().min(work / task_work).max(1);
        let grid = Grid::new(self.rows, self.cols, threads.div_ceil(count));
        let tasks = grid.tasks() * count;
        let one = |t: usize| {
            let (item, t) = (t / grid.tasks(), t % grid.tasks());
            self.task(path, item, grid.rows_of(t, self.rows), grid.cols_of(t, self.cols));
        };
        if threads == 1 {
            (0..tasks).for_each(one);
        } else {
            let chunk = tasks.div_ceil(threads * 4).max(1);
            pool::spread(tasks.div_ceil(chunk), &|i| (i * chunk..((i + 1) * chunk).min(tasks)).for_each(one));
        }
    }

    /// Computes the output block `rows` by `cols` of one item.
    fn task(&self, path: Path, item: usize, rows: std::ops::Range<usize>, cols: std::ops::Range<usize>) {
        let (mut a, mut b) = (self.a, self.b);
        let mut rest = item;
        for (d, size) in self.batch.shape.iter().enumerate().rev() {
            let i = (rest % size) as isize;
            rest /= size;
            a.ptr = a.ptr.wrapping_offset(i * self.batch.a_strides[d]);
            b.ptr = b.ptr.wrapping_offset(i * self.batch.b_strides[d]);
        }
        let c = item * self.rows * self.cols + rows.start * self.cols + cols.start;
        let task = Task {
            rows: rows.len(),
            cols: cols.len(),
            depth: self.depth,
            a: a.at(rows.start, 0),
            b: b.at(0, cols.start),
            c: self.c.wrapping_add(c),
            ldc: self.cols,
            start: self.start,
            kind: self.kind(),
        };
        // SAFETY: `check` found every element of the operands inside its slice and the output of
        // the right length; tasks cover disjoint blocks of it; `path` is one this CPU can run.
        unsafe { T::run(path, &task) }
    }
}

/// The output cut into equal blocks, row of blocks after row of blocks.
struct Grid {
    block_rows: usize,
    block_cols: usize,
    down: usize,
    across: usize,
}

impl Grid {
    /// At least `parts` blocks where the sizes allow it, of the shape that packs least.
    fn new(rows: usize, cols: usize, parts: usize) -> Self {
        // Cuts at multiples of the tile sizes of all instruction sets.
        const ROW_UNIT: usize = 32;
        const COL_UNIT: usize = 64;
        // One element packed costs about as much as this many multiplications.
        const PACKING: usize = 24;
        let blocks = |parts: usize, size: usize, unit: usize| {
            // A part that is too long is cut evenly, not at the limit: the rest would keep one thread waiting.
            let long = size.div_ceil(parts).div_ceil(MAX_SIDE).max(1);
            size.div_ceil(parts * long).next_multiple_of(unit).min(size)
        };
        let cost = |down: usize| {
            let (r, c) = (blocks(down, rows, ROW_UNIT), blocks(parts.div_ceil(down), cols, COL_UNIT));
            r * c + PACKING * (r + c)
        };
        let down = (1..=parts).min_by_key(|d| cost(*d)).unwrap_or(1);
        let block_rows = blocks(down, rows, ROW_UNIT);
        let block_cols = blocks(parts.div_ceil(down), cols, COL_UNIT);
        Self { block_rows, block_cols, down: rows.div_ceil(block_rows), across: cols.div_ceil(block_cols) }
    }

    fn tasks(&self) -> usize {
        self.down * self.across
    }

    fn rows_of(&self, task: usize, rows: usize) -> std::ops::Range<usize> {
        let start = task / self.across * self.block_rows;
        start..rows.min(start + self.block_rows)
    }

    fn cols_of(&self, task: usize, cols: usize) -> std::ops::Range<usize> {
        let start = task % self.across * self.block_cols;
        start..cols.min(start + self.block_cols)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_outputs_are_shared_out_evenly() {
        for (rows, cols) in [(6000, 320), (320, 6000)] {
            let grid = Grid::new(rows, cols, 2);
            let sizes: Vec<_> = (0..grid.tasks())
                .map(|task| {
                    let (r, c) = (grid.rows_of(task, rows).len(), grid.cols_of(task, cols).len());
                    assert!(r <= MAX_SIDE && c <= MAX_SIDE, "{rows}x{cols} has a block of {r}x{c}");
                    r * c
                })
                .collect();
            assert_eq!(sizes.iter().sum::<usize>(), rows * cols);
            assert!(sizes.len().is_multiple_of(2), "{rows}x{cols} is cut into {} blocks", sizes.len());
            let first: usize = sizes[..sizes.len() / 2].iter().sum();
            assert!(first * 100 <= rows * cols * 55, "{rows}x{cols} is cut into {sizes:?}");
        }
    }
}
