//! What all groups of a rank share: the engine below, the first failure, and the names of communicators on their way.

use super::{Options, failed};
use crate::call::{Call, Recv, Send};
use crate::comm::{Comm, CommExt, Pending};
use crate::error::{Error, Result};
use planaria_array::{Array, DType};
use planaria_cuda::{Context, UNIQUE};
use planaria_layout::Rank;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

/// Names of communicators travel under this tag, in a group that nobody else uses.
const NAMES: u32 = 0;
/// Nobody ever sends under this one: what waits for it hears only of failures.
const ALARM: u32 = 1;
/// Bytes of a note: the group's number, and the name of its communicator.
const NOTE: usize = 8 + UNIQUE;

/// What the groups of one rank have in common.
pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) options: Options,
    /// The world on the host, and a group of the same ranks for notes.
    host: Arc<dyn Comm>,
    notes: Arc<dyn Comm>,
    failure: OnceLock<Error>,
    alarm: Mutex<Option<Pending>>,
    names: Mutex<HashMap<usize, Names>>,
    /// Threads of groups that are ending.
    leaving: Mutex<Vec<JoinHandle<()>>>,
}

/// What one rank has told of communicators.
#[derive(Default)]
struct Names {
    open: Option<(Pending, Array)>,
    found: HashMap<u64, [u8; UNIQUE]>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} over NCCL", self.host.rank(), self.host.size())
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Collective.
    pub(super) fn new(host: Arc<dyn Comm>, context: Arc<Context>, options: &Options) -> Result<Arc<Shared>> {
        let whole = host.split(&[host.ranks().to_vec()])?;
        let notes = whole.ok_or_else(|| failed("the ranks of a world are not in a group of all of them"))?;
        let mut alarm = None;
        if host.size() > 1 {
            let data = Array::empty(&[1], DType::U8)?;
            alarm = Some(notes.start(Call::Recv(Recv { data, from: notes.rank(), tag: ALARM }))?);
        }
        Ok(Arc::new(Shared {
            context,
            options: options.clone(),
            host,
            notes,
            failure: OnceLock::new(),
            alarm: Mutex::new(alarm),
            names: Mutex::default(),
            leaving: Mutex::default(),
        }))
    }

    /// Takes over the thread of a group that ends.
    pub(super) fn leave(&self, thread: JoinHandle<()>) {
        let mut leaving = lock(&self.leaving);
        leaving.retain(|thread| !thread.is_finished());
        leaving.push(thread);
    }

    /// Waits for the ends of all groups that were left.
    pub(super) fn join(&self) {
        let leaving = std::mem::take(&mut *lock(&self.leaving));
        // A thread that panicked has said so.
        leaving.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// An error once this rank or, as the engine below knows, any other failed.
    pub(super) fn live(&self) -> Result<()> {
        if let Some(error) = self.failure.get() {
            return Err(error.clone());
        }
        let mut alarm = lock(&self.alarm);
        if alarm.as_ref().is_some_and(Pending::is_done) {
            let end = alarm.take().map_or(Ok(()), Pending::wait);
            let error = end.err().unwrap_or_else(|| failed("the engine below failed"));
            return Err(self.failure.get_or_init(|| error).clone());
        }
        Ok(())
    }

    /// The first failure counts; all ranks hear of it.
    pub(super) fn fail(&self, error: Error) -> Error {
        if self.failure.set(error.clone()).is_ok() {
            match &error {
                Error::Aborted { rank, reason } if *rank == self.host.world_rank() => self.host.abort(reason),
                other => self.host.abort(&other.to_string()),
            }
        }
        self.failure.get().cloned().unwrap_or(error)
    }

    fn position(&self, rank: Rank) -> Result<usize> {
        let found = self.notes.ranks().iter().position(|&other| other == rank);
        found.ok_or_else(|| failed(format!("rank {rank} is not of this world")))
    }

    /// Makes the name of a group's communicator and tells the other members.
    pub(super) fn make_name(&self, group: u64, ranks: &[Rank]) -> Result<[u8; UNIQUE]> {
        let name = planaria_cuda::nccl_name().map_err(failed)?;
        let note = [&group.to_le_bytes()[..], &name].concat();
        for &rank in ranks.iter().filter(|&&rank| rank != self.notes.world_rank()) {
            let data = Array::from_slice(&note, &[NOTE])?;
            self.notes.send(Send { data, to: self.position(rank)?, tag: NAMES })?;
        }
        Ok(name)
    }

    /// The name of a group's communicator, once its first member has told it.
    pub(super) fn find_name(&self, group: u64, first: Rank) -> Result<Option<[u8; UNIQUE]>> {
        let from = self.position(first)?;
        let mut names = lock(&self.names);
        let names = names.entry(from).or_default();
        if let Some(name) = names.found.remove(&group) {
            return Ok(Some(name));
        }
        if names.open.is_none() {
            let data = Array::empty(&[NOTE], DType::U8)?;
            let call = Recv { data: data.clone(), from, tag: NAMES };
            names.open = Some((self.notes.start(Call::Recv(call))?, data));
        }
        if let Some((pending, data)) = names.open.take_if(|(pending, _)| pending.is_done()) {
            pending.wait()?;
            let note = data.to_vec::<u8>()?;
            let (number, name) = note.split_at(8);
            let number = number.try_into().map(u64::from_le_bytes).map_err(failed)?;
            names.found.insert(number, name.try_into().map_err(failed)?);
        }
        Ok(names.found.remove(&group))
    }
}
