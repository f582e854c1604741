//! Work on a device that is recorded once and then done by one call.

use crate::array::Array;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};

/// Recorded operations. They read and write the arrays they were recorded with, where those lay: arrays that exist
/// outside must live as long, and must not move, as they do when they are changed while a snapshot holds them.
#[derive(Debug)]
pub struct Replay {
    graph: planaria_cuda::Graph,
    /// What others may move, and where it lay.
    watched: Vec<(Array, Option<u64>)>,
}

/// Where the bytes of a device's array begin.
fn place(x: &Array) -> Option<u64> {
    match x.buffer().as_ref() {
        Buffer::Cuda(block) => Some(block.address()),
        _ => None,
    }
}

impl Replay {
    /// Records the operations that `work` calls on a device, without doing them; they should have run once before. `None`
    /// where that cannot be: on the host, in checked mode, or where an operation needs the host. [`Replay::holds`] watches
    /// `others`, arrays that the caller does not have to itself.
    pub fn record<E: From<Error>>(
        device: Device,
        others: &[Array],
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<Replay>, E> {
        /// Tells the device's own errors from those of the work.
        enum Failed<E> {
            Work(E),
            Device(planaria_cuda::Error),
        }
        impl<E> From<planaria_cuda::Error> for Failed<E> {
            fn from(error: planaria_cuda::Error) -> Failed<E> {
                Failed::Device(error)
            }
        }
        let Device::Cuda(ordinal) = device else { return Ok(None) };
        match planaria_cuda::Graph::record(ordinal, || work().map_err(Failed::Work)) {
            Ok(graph) => {
                let watched = others.iter().map(|x| (x.clone(), place(x))).collect();
                Ok(graph.map(|graph| Replay { graph, watched }))
            }
            Err(Failed::Work(error)) => Err(error),
            Err(Failed::Device(error)) => Err(Error::from(error).into()),
        }
    }

    /// True while all watched arrays lie where they did. Otherwise the operations must be recorded again.
    pub fn holds(&self) -> bool {
        self.watched.iter().all(|(x, before)| place(x) == *before)
    }

    /// Queues the operations once more.
    pub fn run(&self) -> Result<()> {
        Ok(self.graph.run("replay")?)
    }
}
