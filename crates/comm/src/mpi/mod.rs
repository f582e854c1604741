//! Ranks as MPI processes, on one machine or many.
//!
//! MPI moves bytes between pairs and nothing else; everything above that is in `letters`. A process that panics or fails
//! tells the others before it ends. One that is killed takes the whole job with it: that is what `mpirun` does.

mod raw;

use crate::comm::Comm;
use crate::error::{Error, Result};
pub use crate::letters::Options;
use crate::letters::{Engine, LetterComm, words};
use planaria_layout::Rank;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// This process's rank, from its start to its end.
#[derive(Debug)]
pub struct Session {
    engine: Arc<Engine>,
    progress: Option<JoinHandle<()>>,
    comm: Arc<dyn Comm>,
    rank: Rank,
}

impl Session {
    /// Starts MPI, which works once per process. Every process that `mpirun` started calls this.
    pub fn start(options: &Options) -> Result<Session> {
        let engine = Engine::start(Box::new(raw::World::start()?), options);
        let (rank, size) = engine.lock().place();
        let comm = Arc::new(LetterComm::new(engine.clone(), 1, (0..size).collect(), rank));
        let serving = engine.clone();
        let progress = Builder::new().name("planaria-comm".into()).spawn(move || serving.serve()).ok();
        Ok(Session { engine, progress, comm, rank })
    }

    /// The communicator of all processes.
    pub fn comm(&self) -> Arc<dyn Comm> {
        self.comm.clone()
    }

    /// Tells the others that this process gives up; the first failure of all.
    fn fail(&self, reason: String) -> Error {
        self.engine.fail(Error::Aborted { rank: self.rank, reason })
    }

    /// Lets go of everything without waiting for the others.
    pub fn leave(mut self) {
        self.engine.close(self.progress.take());
    }

    /// Waits for the others and ends MPI. Collective.
    pub fn end(mut self) -> Result<()> {
        let met = self.comm.barrier();
        self.engine.close(self.progress.take());
        met?;
        // All ranks have been to the barrier, so all come here too.
        self.engine.lock().finish()
    }
}

/// Runs `work` as this process's rank. Every process that `mpirun` started calls this, once. An error or a panic
/// reaches the other ranks by name.
pub fn run<R, E: Display>(
    options: &Options,
    work: impl FnOnce(Arc<dyn Comm>) -> std::result::Result<R, E>,
) -> Result<R> {
    let session = Session::start(options)?;
    match catch_unwind(AssertUnwindSafe(|| work(session.comm()))) {
        Ok(Ok(result)) => session.end().map(|()| result),
        Ok(Err(error)) => {
            let first = session.fail(error.to_string());
            session.leave();
            Err(first)
        }
        Err(panic) => {
            session.fail(format!("panic: {}", words(panic.as_ref())));
            session.leave();
            resume_unwind(panic)
        }
    }
}
