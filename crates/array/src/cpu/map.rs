//! Drives block kernels over strided operands: any shapes and strides in, contiguous slices at the kernel.

use super::strided::{BLOCK, Operand, OperandMut};
use crate::pool;
use bytemuck::Pod;

/// What an operand's elements must be to travel between threads.
pub(crate) trait Plain: Pod + Send + Sync {}
impl<T: Pod + Send + Sync> Plain for T {}

/// A kernel of one input; slices have equal lengths.
pub(crate) type Kernel1<'k, A, O> = &'k (dyn Fn(&[A], &mut [O]) + Sync);
/// A kernel of two inputs.
pub(crate) type Kernel2<'k, A, B, O> = &'k (dyn Fn(&[A], &[B], &mut [O]) + Sync);
/// A kernel of three inputs.
pub(crate) type Kernel3<'k, A, B, C, O> = &'k (dyn Fn(&[A], &[B], &[C], &mut [O]) + Sync);

/// Scratch for blocks that must be gathered; empty when the operand can always be read in place.
fn scratch<T: Plain>(operand: &Operand<'_, T>, block: usize, len: usize) -> Vec<T> {
    let size = if operand.as_slice().is_some() { 0 } else { block.min(len) };
    vec![T::zeroed(); size]
}

/// `out[i] = kernel(x[i])` in row-major order.
pub(crate) fn map1<A: Plain, O: Plain>(x: &Operand<'_, A>, out: &mut [O], kernel: Kernel1<'_, A, O>) {
    let block = x.block_len();
    pool::for_chunks_mut(out, block, size_of::<A>() + size_of::<O>(), |first, piece| {
        let mut sx = scratch(x, block, piece.len());
        for (i, o) in piece.chunks_mut(block).enumerate() {
            let at = first + i * block;
            kernel(x.block(at..at + o.len(), &mut sx), o);
        }
    });
}

/// `out[i] = kernel(x[i], y[i])`.
pub(crate) fn map2<A: Plain, B: Plain, O: Plain>(
    x: &Operand<'_, A>,
    y: &Operand<'_, B>,
    out: &mut [O],
    kernel: Kernel2<'_, A, B, O>,
) {
    let block = x.block_len().min(y.block_len());
    let item = size_of::<A>() + size_of::<B>() + size_of::<O>();
    pool::for_chunks_mut(out, block, item, |first, piece| {
        let (mut sx, mut sy) = (scratch(x, block, piece.len()), scratch(y, block, piece.len()));
        for (i, o) in piece.chunks_mut(block).enumerate() {
            let at = first + i * block;
            let range = at..at + o.len();
            kernel(x.block(range.clone(), &mut sx), y.block(range, &mut sy), o);
        }
    });
}

/// `out[i] = kernel(x[i], y[i], z[i])`.
pub(crate) fn map3<A: Plain, B: Plain, C: Plain, O: Plain>(
    x: &Operand<'_, A>,
    y: &Operand<'_, B>,
    z: &Operand<'_, C>,
    out: &mut [O],
    kernel: Kernel3<'_, A, B, C, O>,
) {
    let block = x.block_len().min(y.block_len()).min(z.block_len());
    let item = size_of::<A>() + size_of::<B>() + size_of::<C>() + size_of::<O>();
    pool::for_chunks_mut(out, block, item, |first, piece| {
        let (mut sx, mut sy) = (scratch(x, block, piece.len()), scratch(y, block, piece.len()));
        let mut sz = scratch(z, block, piece.len());
        for (i, o) in piece.chunks_mut(block).enumerate() {
            let at = first + i * block;
            let range = at..at + o.len();
            let (bx, by) = (x.block(range.clone(), &mut sx), y.block(range.clone(), &mut sy));
            kernel(bx, by, z.block(range, &mut sz), o);
        }
    });
}

/// `x[i] = kernel(x[i])` in place.
pub(crate) fn update1<A: Plain>(x: &OperandMut<'_, A>, kernel: Kernel1<'_, A, A>) {
    x.for_each_run(2 * size_of::<A>(), |_, run| {
        let mut old = [A::zeroed(); BLOCK];
        for piece in run.chunks_mut(BLOCK) {
            let old = &mut old[..piece.len()];
            old.copy_from_slice(piece);
            kernel(old, piece);
        }
    });
}

/// `x[i] = kernel(x[i], y[i])` in place; `y` has as many elements.
pub(crate) fn update2<A: Plain, B: Plain>(
    x: &OperandMut<'_, A>,
    y: &Operand<'_, B>,
    kernel: Kernel2<'_, A, B, A>,
) {
    x.for_each_run(2 * size_of::<A>() + size_of::<B>(), |first, run| {
        let (mut old, mut sy) = ([A::zeroed(); BLOCK], [B::zeroed(); BLOCK]);
        for (i, piece) in run.chunks_mut(BLOCK).enumerate() {
            let old = &mut old[..piece.len()];
            old.copy_from_slice(piece);
            let at = first + i * BLOCK;
            kernel(old, y.block(at..at + piece.len(), &mut sy), piece);
        }
    });
}
