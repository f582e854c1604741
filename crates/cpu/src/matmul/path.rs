//! Chooses the kernel for an element type and a CPU.
#![allow(unsafe_code)]

use super::arch::{Arch, Baseline, Start};
#[cfg(target_arch = "x86_64")]
use super::arch::{V3, V4};
use super::blocked::{Block, Strided, blocked};
use super::gemv::{VectorBlock, gemv};
use super::scratch::Scratch;
use super::vector::{Element, Lanes};
use crate::level::{Level, level};
use crate::machine::{self, CpuPath};
use half::{bf16, f16};
use std::any::TypeId;

/// A way to compute products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Vector instructions of this level.
    Simd(Level),
    /// bf16 on the tile unit; other types as at the highest level.
    Tiles,
}

/// The paths this CPU can run, slowest first.
pub fn available_paths() -> Vec<Path> {
    let levels = [Level::Baseline, Level::V3, Level::V4].into_iter().filter(|l| *l <= level());
    let tiles = tiles_available().then_some(Path::Tiles);
    levels.map(Path::Simd).chain(tiles).collect()
}

/// The path products take when nobody asks for another one.
pub(super) fn default_path() -> Path {
    if tiles_available() { Path::Tiles } else { Path::Simd(level()) }
}

fn tiles_available() -> bool {
    machine::path() == CpuPath::Amx
}

/// One product of the parallel loop: an output block, rows `ldc` apart.
#[derive(Debug)]
pub struct Task<E> {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) depth: usize,
    pub(super) a: Strided<E>,
    pub(super) b: Strided<E>,
    pub(super) c: *mut E,
    pub(super) ldc: usize,
    pub(super) start: Start,
    pub(super) kind: ProductKind,
}

impl<E> Task<E> {
    /// The task as one with a vector, if it is; its outputs lie contiguous.
    pub(super) fn vector(&self) -> Option<VectorBlock<E>> {
        let &Task { rows, cols, depth, a, b, c, start, kind, .. } = self;
        match kind {
            ProductKind::Matrix => None,
            ProductKind::Row => Some(VectorBlock { outputs: cols, depth, m: b.transposed(), x: a, c, start }),
            ProductKind::Column => {
                Some(VectorBlock { outputs: rows, depth, m: a, x: b.transposed(), c, start })
            }
        }
    }
}

/// Columns turned at a time: what is read of them stays in the first-level cache.
const TURNED: usize = 64;

/// Rows that do not repay packing the right operand.
const FEW_ROWS: usize = 64;

impl<E> Task<E> {
    /// Whether this is a few rows times a matrix whose columns are contiguous in depth, as the weight of a layer is: that is
    /// best read where it is, as a left operand.
    pub(super) fn has_few_rows(&self) -> bool {
        self.rows <= FEW_ROWS && self.cols >= self.rows && self.b.row_stride == 1 && self.start == Start::Zero
    }
}

/// What the whole product is, of which a task is a part. Decides the kernel, but not the order of additions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductKind {
    /// Both sides have several rows and columns.
    Matrix,
    /// One row of outputs.
    Row,
    /// One column of outputs.
    Column,
}

/// The products of one element type; sealed by the private types it names.
pub trait Products: Element {
    /// Runs one task.
    ///
    /// # Safety
    /// The CPU can run `path`; all elements the task names are valid, and no one else uses `c`.
    unsafe fn run(path: Path, task: &Task<Self>);
}

/// Calls the generic body once per instruction set.
macro_rules! by_level {
    ($level:expr, $body:ident, $elem:ty, $arg:expr) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn v3(arg: &Task<$elem>) {
                // SAFETY: the features are enabled here; the rest is the caller's promise.
                unsafe { $body::<$elem, V3<<$elem as Element>::Acc>>(arg) }
            }
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn v4(arg: &Task<$elem>) {
                // SAFETY: as above.
                unsafe { $body::<$elem, V4<<$elem as Element>::Acc>>(arg) }
            }
            match $level {
                // SAFETY: the caller's promise.
                Level::V4 => return unsafe { v4($arg) },
                // SAFETY: the caller's promise.
                Level::V3 => return unsafe { v3($arg) },
                Level::Baseline => {}
            }
        }
        // SAFETY: no instructions beyond the target's; the rest is the caller's promise.
        unsafe { $body::<$elem, Baseline<<$elem as Element>::Acc>>($arg) }
    }};
}

macro_rules! products {
    ($($elem:ty),*) => {$(
        impl Products for $elem {
            unsafe fn run(path: Path, task: &Task<$elem>) {
                let level = match path {
                    Path::Simd(level) => level,
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the path is available; the rest is the caller's promise.
                    Path::Tiles if let Some(task) = tile_task(task) => return unsafe { super::amx::run(task) },
                    Path::Tiles => level(),
                };
                by_level!(level, simd, $elem, task)
            }
        }
    )*};
}
products!(f32, f64, f16, bf16);

/// The task as a bf16 one, if it is.
#[cfg(target_arch = "x86_64")]
fn tile_task<E: Element>(task: &Task<E>) -> Option<&Task<bf16>> {
    // SAFETY: the types are equal.
    (TypeId::of::<E>() == TypeId::of::<bf16>()).then(|| unsafe { &*(&raw const *task).cast() })
}

/// Sums in the output itself where the types agree, else in space of the thread, rounded once. One call of the blocked product, which is
/// long and inlined, serves all forms.
#[inline(always)]
unsafe fn simd<E: Lanes<R::V>, R: Arch>(task: &Task<E>)
where
    E::Acc: Lanes<R::V>,
{
    let Task { rows, cols, depth, a, b, c, ldc, start, .. } = *task;
    if let Some(block) = task.vector() {
        // SAFETY: the caller's promise; one row or one column of outputs lies contiguous.
        return unsafe { gemv::<E, R>(&block) };
    }
    let is_own = TypeId::of::<E>() == TypeId::of::<E::Acc>();
    // With its sides exchanged, and its result turned.
    let turned = is_own && task.has_few_rows();
    let mut space = (turned || !is_own).then(|| Scratch::take(rows * cols * size_of::<E::Acc>()));
    let sums = space.as_mut().map_or(c.cast::<E::Acc>(), |space| space.ptr().cast());
    let block = if turned {
        let (a, b) = (b.transposed(), a.transposed());
        Block { rows: cols, cols: rows, depth, a, b, c: sums, ldc: rows, start }
    } else {
        Block { rows, cols, depth, a, b, c: sums, ldc: if is_own { ldc } else { cols }, start }
    };
    // SAFETY: the space holds rows x cols sums where it is used; the rest is the caller's promise.
    unsafe {
        if !is_own && start == Start::Add {
            for i in 0..rows {
                for j in 0..cols {
                    *sums.add(i * cols + j) = (*c.add(i * ldc + j)).widen();
                }
            }
        }
        blocked::<E, R>(&block);
        if turned {
            turn(&block, c.cast::<E::Acc>(), ldc);
        } else if !is_own {
            for i in 0..rows {
                for j in 0..cols {
                    *c.add(i * ldc + j) = E::narrow(*sums.add(i * cols + j));
                }
            }
        }
    }
}

/// Writes the result of a product whose sides were exchanged to where it belongs, rows `ldc` apart.
///
/// # Safety
/// `c` has room for the transposed result.
unsafe fn turn<E: Element>(block: &Block<E>, c: *mut E::Acc, ldc: usize) {
    for j in (0..block.rows).step_by(TURNED) {
        for i in 0..block.cols {
            for j in j..block.rows.min(j + TURNED) {
                // SAFETY: (j, i) is inside the result, the rest is the caller's promise.
                unsafe { *c.add(i * ldc + j) = *block.c.add(j * block.ldc + i) };
            }
        }
    }
}
