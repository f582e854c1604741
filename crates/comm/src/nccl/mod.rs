//! Ranks with a GPU each: NCCL moves the bytes of arrays on devices, everything else goes over the engine below.
//!
//! NCCL only moves: reductions are exchanges of parts, our fold in rank order, and a gathering of the results, so the bits are those
//! of every other engine. Each group has a communicator of its own, made when it is first used, a stream of its own, and a thread that
//! makes its calls in order and watches them: ranks may use groups in different orders. Arrays of the host, messages between two
//! ranks, splits and barriers are the lower engine's, which also carries the names of communicators.
//!
//! The library is looked for at run time, in the folder that `PLANARIA_NCCL` names or where the loader looks.

mod engine;
mod moves;
mod rail;
mod shared;

use crate::call::AllGather;
use crate::comm::{Comm, CommExt};
use crate::error::{Error, Result};
use planaria_array::{Array, DType};
use std::sync::Arc;
use std::time::Duration;

/// How ranks work together over NCCL.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a call may take before it fails everywhere.
    pub timeout: Duration,
    /// What a group of one rank does.
    pub alone: Alone,
}

/// What a group of one rank does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alone {
    /// Copies on its own stream.
    #[default]
    Copy,
    /// Calls the library, as larger groups do: to test it.
    Library,
}

impl Default for Options {
    fn default() -> Options {
        Options { timeout: Duration::from_secs(600), alone: Alone::Copy }
    }
}

/// Wraps a communicator of the host so that arrays of a CUDA device move by NCCL. Collective; every rank names a GPU of its own. An
/// error on all ranks when one of them cannot load the library.
pub fn over(host: Arc<dyn Comm>, ordinal: u32, options: &Options) -> Result<Arc<dyn Comm>> {
    let ready = planaria_cuda::nccl_version().and_then(|_| planaria_cuda::Context::of(ordinal));
    let context = host.agree(ready)?;
    Ok(Arc::new(engine::NcclComm::world(host, context, options)?))
}

/// What arrays of devices go over.
#[derive(Debug)]
pub enum Way {
    /// NCCL.
    Nccl(Arc<dyn Comm>),
    /// The engine below, through the host, and why.
    Host(Arc<dyn Comm>, String),
}

/// NCCL where every rank can load it and has a GPU of its own, else the engine below. Collective.
pub fn where_possible(host: Arc<dyn Comm>, ordinal: u32, options: &Options) -> Result<Way> {
    let context = host.agree(planaria_cuda::Context::of(ordinal))?;
    let (uuid, size) = (context.info().uuid, host.size());
    let all = Array::empty(&[size * uuid.len()], DType::U8)?;
    let send = Array::from_slice(&uuid, &[uuid.len()])?;
    host.all_gather(AllGather { send, recv: all.clone(), recv_counts: vec![uuid.len(); size] })?;
    if let Some((first, second)) = shared_gpu(&all.to_vec::<u8>()?, uuid.len()) {
        let [first, second] = [first, second].map(|position| host.ranks()[position]);
        return Ok(Way::Host(host, format!("ranks {first} and {second} share a GPU")));
    }
    match host.agree(planaria_cuda::nccl_version()) {
        Ok(_) => over(host, ordinal, options).map(Way::Nccl),
        Err(error @ Error::Remote { .. }) => Ok(Way::Host(host, error.to_string())),
        Err(error) => Err(error),
    }
}

/// The first two positions whose names, of `length` bytes each, are the same.
fn shared_gpu(names: &[u8], length: usize) -> Option<(usize, usize)> {
    let names: Vec<&[u8]> = names.chunks(length).collect();
    let earlier = |second: usize| names[..second].iter().position(|name| *name == names[second]);
    (0..names.len()).find_map(|second| Some((earlier(second)?, second)))
}

/// What goes wrong in the library or on the device.
fn failed(what: impl std::fmt::Display) -> Error {
    Error::Engine { engine: "nccl", what: what.to_string() }
}

#[cfg(test)]
mod tests {
    use super::shared_gpu;

    #[test]
    fn ranks_that_share_a_gpu_are_found() {
        assert_eq!(shared_gpu(b"aabbcc", 2), None);
        assert_eq!(shared_gpu(b"aabbccbb", 2), Some((1, 3)));
        assert_eq!(shared_gpu(b"", 2), None);
    }
}
