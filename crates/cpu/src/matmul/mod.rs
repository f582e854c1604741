//! Matrix products on strided slices: any strides, batches, the same bits from any number of threads.
//!
//! Sums are kept in f32 (f64 for f64) over the whole depth and rounded once at the end. Every output
//! element is a sum of fixed passes over the depth, each one chain in order, so a result depends
//! neither on threads nor on how the output was cut into tiles; the vector widths with fused
//! multiply-add agree with each other too. bf16 uses the tile unit where there is one; its
//! instructions treat subnormal numbers as zero.

#[cfg(target_arch = "x86_64")]
mod amx;
mod arch;
mod blocked;
#[cfg(target_arch = "x86_64")]
mod full_tile;
mod gemv;
mod pack;
mod path;
mod run;
mod scratch;
mod vector;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::available as has_tiles;
pub use path::{Path, available_paths};
pub use run::{Batch, matmul, matmul_at, matmul_batched, matmul_batched_at};
pub use vector::Element;

use half::{bf16, f16};
use thiserror::Error;

/// A strided matrix inside a slice: element (i, j) is `data[offset + i * row_stride + j * col_stride]`.
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a, T> {
    /// The slice.
    pub data: &'a [T],
    /// Where element (0, 0) is.
    pub offset: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Elements from one row to the next.
    pub row_stride: isize,
    /// Elements from one column to the next.
    pub col_stride: isize,
}

impl<'a, T> MatRef<'a, T> {
    /// A row-major matrix that fills the slice from its start.
    pub fn row_major(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self { data, offset: 0, rows, cols, row_stride: cols as isize, col_stride: 1 }
    }

    /// Rows and columns exchanged.
    pub fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }
}

/// What happens to the values already in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// They are overwritten.
    Overwrite,
    /// The product is added to them.
    Add,
}

/// Which operand an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The left matrix.
    A,
    /// The right matrix.
    B,
}

/// Why a product was refused; nothing has been written then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MatmulError {
    /// The inner sizes differ.
    #[error("the left matrix has {a_cols} columns but the right one has {b_rows} rows")]
    Inner {
        /// Columns of the left matrix.
        a_cols: usize,
        /// Rows of the right matrix.
        b_rows: usize,
    },
    /// The output does not have the size of the result.
    #[error("the output holds {len} elements; {batch} products of {rows} x {cols} do not fit it exactly")]
    Output {
        /// Elements of the output slice.
        len: usize,
        /// Number of products.
        batch: usize,
        /// Rows of each.
        rows: usize,
        /// Columns of each.
        cols: usize,
    },
    /// Some element of an operand lies outside its slice.
    #[error("elements of operand {operand:?} lie outside its slice of {len}")]
    OutOfSlice {
        /// The operand.
        operand: Operand,
        /// Elements of its slice.
        len: usize,
    },
    /// The batch stride lists differ in length from the batch shape.
    #[error("a batch of {ndim} dims needs as many strides, got {a} and {b}")]
    BatchStrides {
        /// Dims of the batch.
        ndim: usize,
        /// Strides given for the left operand.
        a: usize,
        /// Strides given for the right operand.
        b: usize,
    },
}

/// Element types with a matrix product.
pub trait MatmulElement: Element + path::Products {}
impl MatmulElement for f32 {}
impl MatmulElement for f64 {}
impl MatmulElement for f16 {}
impl MatmulElement for bf16 {}
