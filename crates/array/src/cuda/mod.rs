//! Kernels of CUDA devices: the programs, and what every launcher needs.
//!
//! Named like `cpu`: operations above check shapes and dtypes and match on the device; a launcher here picks a kernel,
//! notes which blocks it uses and queues it on the calling thread's lane.

mod attention;
mod generate;
mod index;
mod map;
mod mask;
mod matmul;
mod optim;
mod order;
mod outside;
mod program;
mod random;
mod reduce;
mod rows;
mod training;
mod walk;

pub(crate) use attention::{Rule as AttentionRule, attend, attend_grad};
pub(crate) use generate::{attend_rows, linear_some, linears, look_up, rotate_into, take_best, takes};
pub(crate) use index::{
    Along, Column, FoldOp, Rule, check_within, put_along, put_rows, take_along, take_rows,
};
pub(crate) use map::{
    activation_grad, binary, binary_in_place, binary_into, bit_not, cast, check_divisor, choose, compare,
    copy, copy_into, fill, unary, unary_in_place,
};
pub(crate) use mask::Kept;
pub(crate) use matmul::{add_matmul, matmul};
pub(crate) use optim::{Stepped, adamw, exact_squares, sgd};
pub(crate) use order::{search, sort_rows};
pub use outside::queue_outside;
pub use program::{Build, builds};
pub(crate) use random::{Parameter, draw};
pub(crate) use reduce::{Fold, first_equal, reduce};
pub(crate) use rows::{Scan, running_extreme, running_logs, scan, softmax, softmax_grad};
pub(crate) use training::{Normed, Rotation, Scores, gated, gated_grad, norm, norm_grad, rotate};

use crate::alloc::MemoryStats;
use crate::array::Array;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::storage::{Coverage, no_bytes};
use planaria_cuda::{Access, Arg, Block, Context, Kernel, Lane, Launch};
use planaria_layout::{DType, Shape};
use std::sync::Arc;

/// What a late error is about.
pub(crate) mod late {
    /// An integer was divided by zero.
    pub(crate) const ZERO_DIVISOR: u8 = 0;
    /// An id outside its table.
    pub(crate) const ID: u8 = 1;
    /// An index outside its dim.
    pub(crate) const INDEX: u8 = 2;
    /// A position outside the dim an operation works along.
    pub(crate) const POSITION: u8 = 3;

    use crate::error::Error;
    use planaria_cuda::LateNote;

    /// The note that leads to this error, but for the bad value itself.
    pub(crate) fn note_of(error: &Error) -> LateNote {
        match *error {
            Error::IndexOutOfRange { position, dim, size, .. } => {
                LateNote { op: "index", kind: INDEX, size, dim, entry: position }
            }
            Error::PositionOutOfRange { op, dim, size, .. } => {
                LateNote { op, kind: POSITION, size, dim, entry: 0 }
            }
            Error::IdOutOfRange { op, size, .. } => LateNote { op, kind: ID, size, dim: 0, entry: 0 },
            _ => LateNote { op: "value", kind: u8::MAX, size: 0, dim: 0, entry: 0 },
        }
    }
}

impl From<planaria_cuda::Error> for Error {
    fn from(error: planaria_cuda::Error) -> Error {
        let planaria_cuda::Error::BadValue(bad) = &error else { return Error::Cuda(Box::new(error)) };
        let (note, index) = (bad.note, bad.value);
        match note.kind {
            late::ZERO_DIVISOR => Error::argument("elementwise", format!("{} of integers by zero", note.op)),
            late::INDEX => {
                Error::IndexOutOfRange { index, position: note.entry, dim: note.dim, size: note.size }
            }
            late::POSITION => {
                Error::PositionOutOfRange { op: note.op, index, dim: note.dim, size: note.size }
            }
            late::ID => {
                Error::IdOutOfRange { op: note.op, id: index, position: bad.position, size: note.size }
            }
            _ => Error::Cuda(Box::new(error)),
        }
    }
}

/// The calling thread's lane on a device.
pub(crate) fn lane(ordinal: u32) -> Result<Arc<Lane>> {
    Ok(Lane::current(ordinal)?)
}

/// The calling thread's lane on the device of an array.
pub(crate) fn lane_of(op: &'static str, x: &Array) -> Result<Arc<Lane>> {
    match x.device() {
        Device::Cuda(ordinal) => lane(ordinal),
        other => Err(no_bytes(op, other)),
    }
}

/// Bytes of a device held while a launch that reads them is queued.
pub(crate) struct Held {
    _buffer: Option<Arc<Buffer>>,
    /// Where the view's first element lies; 0 for a value of the host.
    pub(crate) address: u64,
    /// The bits of a value of the host.
    pub(crate) value: u64,
}

/// Holds an operand for a launch on `lane`. A 0-d array of the host becomes a value.
pub(crate) fn read(op: &'static str, lane: &Arc<Lane>, x: &Array) -> Result<Held> {
    let buffer = x.buffer();
    let Buffer::Cuda(block) = buffer.as_ref() else {
        return Ok(Held { _buffer: None, address: 0, value: bits(op, x)? });
    };
    block.used_by(op, lane.compute(), Access::Read)?;
    let address = block.address() + (x.offset() * x.dtype().size()) as u64;
    Ok(Held { _buffer: Some(buffer), address, value: 0 })
}

/// The element of a 0-d array of the host, in the low bytes of a word.
fn bits(op: &'static str, x: &Array) -> Result<u64> {
    let (host, size) = (x.host(op)?, x.dtype().size());
    let mut word = [0; 8];
    if x.numel() > 0 {
        word[..size].copy_from_slice(&host.slice::<u8>()[x.offset() * size..(x.offset() + 1) * size]);
    }
    Ok(u64::from_le_bytes(word))
}

/// A fresh contiguous result and where it starts.
pub(crate) fn fresh(op: &'static str, lane: &Arc<Lane>, shape: &Shape, dtype: DType) -> Result<(Array, u64)> {
    let device = Device::Cuda(lane.context().ordinal());
    let out = Array::unwritten(op, shape.clone(), dtype, device)?;
    let buffer = out.buffer();
    let Buffer::Cuda(block) = buffer.as_ref() else { return Err(no_bytes(op, device)) };
    block.used_by(op, lane.compute(), Access::Write)?;
    let address = block.address();
    Ok((out, address))
}

/// Memory of zeros that is free again when what is queued now has passed.
fn scratch(op: &'static str, lane: &Arc<Lane>, bytes: usize) -> Result<Block> {
    let block = lane.block(op, bytes)?;
    lane.fill_bytes(op, block.address(), 0, bytes)?;
    Ok(block)
}

/// Threads of a block in kernels that walk over positions.
const THREADS: u32 = 256;

/// Blocks enough to fill the device a few times over; kernels stride over what is left.
pub(crate) fn blocks(lane: &Lane, items: usize, per_thread: usize) -> u32 {
    let wanted = items.div_ceil(THREADS as usize * per_thread).max(1);
    let most = lane.context().info().multiprocessors.max(1) as usize * 16;
    wanted.min(most) as u32
}

/// Queues a kernel that walks over `items` positions.
pub(crate) fn launch_over(
    op: &'static str,
    lane: &Lane,
    kernel: &Kernel,
    items: usize,
    args: &[Arg<'_>],
) -> Result<()> {
    let launch =
        Launch { op, kernel, grid: [blocks(lane, items, 4), 1, 1], block: [THREADS, 1, 1], shared: 0 };
    Ok(lane.launch(&launch, args)?)
}

/// Sets all bytes of a fresh array to zero.
pub(crate) fn zero(out: &Array) -> Result<()> {
    let lane = lane_of("zeros", out)?;
    let update = out.begin_cuda_update("zeros", &lane, Coverage::All)?;
    lane.fill_bytes("zeros", update.address(), 0, out.numel() * out.dtype().size())?;
    update.commit();
    Ok(())
}

/// Copies host bytes into a fresh array.
pub(crate) fn upload(out: &Array, bytes: &[u8]) -> Result<()> {
    let lane = lane_of("to", out)?;
    let update = out.begin_cuda_update("to", &lane, Coverage::All)?;
    lane.copy_in("to", update.address(), bytes)?;
    update.commit();
    Ok(())
}

/// Copies a contiguous array to the host and waits.
pub(crate) fn download(x: &Array, bytes: &mut [u8]) -> Result<()> {
    let lane = lane_of("to", x)?;
    let held = read("to", &lane, x)?;
    Ok(lane.copy_out("to", bytes, held.address)?)
}

/// Bytes in use on a device.
pub(crate) fn memory_stats(ordinal: u32) -> Result<MemoryStats> {
    let planaria_cuda::MemoryStats { live, peak, cached } = Context::of(ordinal)?.memory_stats();
    Ok(MemoryStats { live, peak, cached })
}

/// Takes memory for writers that move away from snapshots, and for copies of these.
pub(crate) fn prepare_snapshots(ordinal: u32, bytes: usize) -> Result<()> {
    let lane = lane(ordinal)?;
    lane.reserve("snapshots", bytes)?;
    Ok(lane.prepare_copies()?)
}

/// Waits for all work of the calling thread on a device; answers bad values that kernels found.
pub(crate) fn synchronize(ordinal: u32) -> Result<()> {
    Ok(lane(ordinal)?.synchronize("synchronize")?)
}
