//! Drives block kernels over strided operands: any shapes and strides in, contiguous slices at the kernel.

use super::stream::{self, Store};
use super::strided::{BLOCK, Operand, OperandMut};
use bytemuck::Pod;
use planaria_cpu::pool;
use std::ops::Range;

/// What an operand's elements must be to travel between threads.
pub(crate) trait Plain: Pod + Send + Sync {}
impl<T: Pod + Send + Sync> Plain for T {}

/// A kernel of one input; slices have equal lengths.
pub(crate) type Kernel1<'k, A, O> = &'k (dyn Fn(&[A], &mut [O]) + Sync);
/// A kernel of two inputs.
pub(crate) type Kernel2<'k, A, B, O> = &'k (dyn Fn(&[A], &[B], &mut [O]) + Sync);
/// A kernel of three inputs.
pub(crate) type Kernel3<'k, A, B, C, O> = &'k (dyn Fn(&[A], &[B], &[C], &mut [O]) + Sync);

/// What a kernel waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// Its operands: memory is asked ahead, and large results may be streamed.
    Memory,
    /// Its own arithmetic, behind which a CPU hides plain loads and stores by itself.
    Arithmetic,
}

/// Writes a run of a view, given its first index; a `dyn` so that the walk is compiled once per element type.
type Write<'w, A> = &'w (dyn Fn(usize, &mut [A]) + Sync);

/// Cuts `out` into pieces for the pool and those into blocks, and calls `fill(first index, block)` for each.
/// Arrays past the second-level cache are read a little ahead, and large results streamed where that is faster.
fn for_blocks<O: Plain>(
    bound: Bound,
    out: &mut [O],
    block: usize,
    item: usize,
    fill: &(dyn Fn(usize, &mut [O], &mut Gathered) + Sync),
) {
    let (store, far) = match bound {
        Bound::Memory => (stream::store_for(out), stream::is_far(size_of_val(out))),
        Bound::Arithmetic => (Store::Cached, false),
    };
    // Equal parts keep the row boundaries of a strided view.
    let block = if far { block.div_ceil(block.div_ceil(stream::PIECE / size_of::<O>())) } else { block };
    pool::for_chunks_mut(out, block, item, |first, piece| {
        let mut gathered = Gathered::new(block.min(piece.len()), far);
        if store == Store::Cached {
            for (i, o) in piece.chunks_mut(block).enumerate() {
                if far {
                    stream::claim(o, stream::AHEAD * block);
                }
                fill(first + i * block, o, &mut gathered);
            }
            return;
        }
        let mut fresh = vec![O::zeroed(); block];
        for (i, o) in piece.chunks_mut(block).enumerate() {
            let fresh = &mut fresh[..o.len()];
            fill(first + i * block, fresh, &mut gathered);
            stream::copy(fresh, o);
        }
        stream::fence();
    });
}

/// Reads blocks of up to three operands, with scratch for those that cannot be read in place.
struct Gathered {
    block: usize,
    /// Whether to ask memory for a block to come.
    ahead: bool,
    /// Made when first needed.
    bytes: [Vec<u64>; 3],
}

impl Gathered {
    fn new(block: usize, ahead: bool) -> Gathered {
        Gathered { block, ahead, bytes: [Vec::new(), Vec::new(), Vec::new()] }
    }

    /// One reader per operand.
    fn readers(&mut self) -> [Reader<'_>; 3] {
        self.bytes.each_mut().map(|bytes| Reader { block: self.block, ahead: self.ahead, bytes })
    }
}

/// Reads the blocks of one operand.
struct Reader<'s> {
    block: usize,
    ahead: bool,
    bytes: &'s mut Vec<u64>,
}

impl<'s> Reader<'s> {
    /// The logical elements `range` of `operand`.
    fn read<T: Plain>(self, operand: &'s Operand<'_, T>, range: Range<usize>) -> &'s [T] {
        if let Some(all) = operand.as_slice() {
            if self.ahead {
                let next = range.start + stream::AHEAD * range.len();
                stream::ask(all, next..next + range.len());
            }
            return &all[range];
        }
        if self.bytes.is_empty() {
            self.bytes.resize((self.block * size_of::<T>()).div_ceil(8), 0);
        }
        operand.block(range, bytemuck::cast_slice_mut(self.bytes))
    }
}

/// `out[i] = kernel(x[i])` in row-major order.
pub(crate) fn map1<A: Plain, O: Plain>(
    bound: Bound,
    x: &Operand<'_, A>,
    out: &mut [O],
    kernel: Kernel1<'_, A, O>,
) {
    for_blocks(bound, out, x.block_len(), size_of::<A>() + size_of::<O>(), &|at, o, gathered| {
        let [rx, ..] = gathered.readers();
        kernel(rx.read(x, at..at + o.len()), o);
    });
}

/// `out[i] = kernel(x[i], y[i])`.
pub(crate) fn map2<A: Plain, B: Plain, O: Plain>(
    bound: Bound,
    x: &Operand<'_, A>,
    y: &Operand<'_, B>,
    out: &mut [O],
    kernel: Kernel2<'_, A, B, O>,
) {
    let item = size_of::<A>() + size_of::<B>() + size_of::<O>();
    for_blocks(bound, out, x.block_len().min(y.block_len()), item, &|at, o, gathered| {
        let ([rx, ry, _], range) = (gathered.readers(), at..at + o.len());
        kernel(rx.read(x, range.clone()), ry.read(y, range), o);
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
    let block_len = x.block_len().min(y.block_len()).min(z.block_len());
    let item = size_of::<A>() + size_of::<B>() + size_of::<C>() + size_of::<O>();
    for_blocks(Bound::Memory, out, block_len, item, &|at, o, gathered| {
        let ([rx, ry, rz], range) = (gathered.readers(), at..at + o.len());
        kernel(rx.read(x, range.clone()), ry.read(y, range.clone()), rz.read(z, range), o);
    });
}

/// `x[i] = kernel(x[i])` in place.
pub(crate) fn update1<A: Plain>(x: &OperandMut<'_, A>, kernel: Kernel1<'_, A, A>) {
    let write: Write<'_, A> = &|_, run| {
        let mut old = [A::zeroed(); BLOCK];
        for piece in run.chunks_mut(BLOCK) {
            let old = &mut old[..piece.len()];
            old.copy_from_slice(piece);
            kernel(old, piece);
        }
    };
    x.for_each_run(2 * size_of::<A>(), write);
}

/// `x[i] = kernel(x[i], y[i])` in place; `y` has as many elements.
pub(crate) fn update2<A: Plain, B: Plain>(
    x: &OperandMut<'_, A>,
    y: &Operand<'_, B>,
    kernel: Kernel2<'_, A, B, A>,
) {
    let write: Write<'_, A> = &|first, run| {
        let (mut old, mut sy) = ([A::zeroed(); BLOCK], [B::zeroed(); BLOCK]);
        for (i, piece) in run.chunks_mut(BLOCK).enumerate() {
            let old = &mut old[..piece.len()];
            old.copy_from_slice(piece);
            let at = first + i * BLOCK;
            kernel(old, y.block(at..at + piece.len(), &mut sy), piece);
        }
    };
    x.for_each_run(2 * size_of::<A>() + size_of::<B>(), write);
}
