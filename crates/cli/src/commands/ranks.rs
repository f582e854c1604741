//! Work that the ranks of a job divide, where the command was started as one of them.

use super::train::Started;
use crate::exit::Exit;
use crate::failure::{Failure, code_of};
use anyhow::Result;
use planaria::ckpt::Hosts;
use planaria::ckpt::convert::Ranks;
use planaria::comm::Comm;
use planaria::comm::letters::Options;
use std::sync::Arc;
use std::time::Duration;

/// How long a rank waits for others, which may have more to do.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Does the work with the other ranks of the job, where there are any. What another rank reports is not said twice.
pub(super) fn on_ranks<T>(place: &Started, work: impl FnOnce(Option<Ranks<'_>>) -> Result<T>) -> Result<T> {
    if place.processes().is_none() {
        return work(None);
    }
    let options = Options { timeout: PATIENCE, ..Options::default() };
    let mut own = None;
    let shared = |comm: Arc<dyn Comm>| {
        let done = Hosts::meet(&*comm, &place.host()).map_err(Into::into).and_then(|hosts| {
            let done = work(Some(Ranks { world: &*comm, hosts: &hosts }))?;
            // Others may still read or write what this rank serves.
            comm.barrier()?;
            Ok(done)
        });
        done.map_err(|error: anyhow::Error| {
            let text = format!("{error:#}");
            own = Some(error);
            text
        })
    };
    let end = match place {
        Started::Processes { place, .. } => planaria::comm::sockets::run(place, &options, shared),
        #[cfg(feature = "mpi")]
        _ => planaria::comm::mpi::run(&options, shared),
        #[cfg(not(feature = "mpi"))]
        _ => {
            let message = "started by mpirun, but this command was built without MPI";
            return Err(Failure::usage(message).hint("build it with `--features mpi`").into());
        }
    };
    match (end, own) {
        (Ok(done), _) => Ok(done),
        (Err(_), Some(own)) if place.is_first() => Err(own),
        (Err(error), _) if place.is_first() => Err(error.into()),
        (Err(_), own) => Err(Failure::reported(own.map_or(Exit::PeerLost, |own| code_of(&own))).into()),
    }
}
