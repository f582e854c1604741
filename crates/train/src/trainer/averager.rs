//! Running averages of the weights, moved beside training: from snapshots, by a thread of their own.

use crate::config::Average;
use crate::error::{Error, Result};
use crate::replica::Replica;
use planaria_array::{Array, Device, Threads};
use planaria_nn::optim::Ema;
use std::thread::JoinHandle;

/// The averages of one rank.
#[derive(Debug)]
pub(super) struct Averager {
    rules: Vec<Average>,
    device: Device,
    thread: Option<JoinHandle<Result<()>>>,
}

/// One average about to move: itself, the weights of now, how they count, and their number.
struct Turn {
    mean: Array,
    now: Array,
    profile: Ema,
    number: u64,
}

impl Averager {
    pub(super) fn new(rules: Vec<Average>, device: Device) -> Averager {
        Averager { rules, device, thread: None }
    }

    /// Begins to move the averages after update number `updates`. Skipped steps are not updates, so they count for nothing.
    pub(super) fn start(&mut self, replica: &Replica, updates: u64) -> Result<()> {
        let due = |rule: &Average| updates.is_multiple_of(rule.every);
        if !self.rules.iter().any(due) {
            return Ok(());
        }
        self.finish()?;
        let mut turns = Vec::new();
        for weight in &replica.weights {
            let Some(state) = &weight.state else { continue };
            let now = match &state.optim.master {
                Some(master) => master.snapshot()?,
                None => weight.values(&state.range)?.snapshot()?,
            };
            for (rule, mean) in self.rules.iter().zip(&state.averages).filter(|(rule, _)| due(rule)) {
                let (mean, now, profile) = (mean.clone(), now.clone(), rule.profile);
                turns.push(Turn { mean, now, profile, number: updates / rule.every });
            }
        }
        let work = move || {
            turns
                .into_iter()
                .try_for_each(|turn| Ok(turn.profile.update(&turn.mean, &turn.now, turn.number)?))
        };
        // Work on a device is queued; it waits for nobody.
        if self.device != Device::Cpu {
            return work();
        }
        let run = move || Threads::new(1).map_err(planaria_array::Error::from)?.run(work);
        let thread = std::thread::Builder::new().name("planaria-average".into()).spawn(run);
        self.thread =
            Some(thread.map_err(|source| Error::Io { path: "the thread of averages".into(), source })?);
        Ok(())
    }

    /// Waits until the averages are those of the last update.
    pub(super) fn finish(&mut self) -> Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(end)) => end,
            Some(Err(_)) => Err(Error::Bug { what: "the thread of averages panicked".into() }),
            None => Ok(()),
        }
    }
}
