//! Generators of the known schedules.

mod rounds;
mod vee;

use super::action::{Action, Step};
use super::error::{Error, Result};
use super::memory;
use super::schedule::Schedule;
use super::stages::Stages;
use std::fmt;
use std::str::FromStr;

/// The known schedules. Written `f_then_b`, `1f1b`, `interleaved`, `zb_h1`, `zbv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScheduleKind {
    /// All forwards, then all backwards (GPipe): every activation of a step is alive at once.
    ForwardThenBackward,
    /// A backward as soon as there is one: rank `r` of `p` keeps `p - r` activations.
    OneForwardOneBackward,
    /// 1F1B with several chunks of the model per rank: less time lost, more messages and activations.
    Interleaved,
    /// 1F1B whose gradients of parameters fill the gaps (ZB-H1 of Qi et al. 2023), with one chunk or several.
    ZeroBubble,
    /// Two chunks per rank, down the ranks and up again, with split backward (ZB-V of Qi et al. 2024).
    ZeroBubbleV,
}

/// Most activations that a rank may keep, in chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// As many as 1F1B has on its first rank: `ranks * chunks`.
    #[default]
    Usual,
    /// The same for every rank.
    Each(usize),
    /// By rank.
    Ranks(Vec<usize>),
}

/// Most forwards, or backwards, of a step.
const MOST: usize = 1 << 24;

impl ScheduleKind {
    /// All kinds.
    pub const ALL: [ScheduleKind; 5] = [
        ScheduleKind::ForwardThenBackward,
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::Interleaved,
        ScheduleKind::ZeroBubble,
        ScheduleKind::ZeroBubbleV,
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            ScheduleKind::ForwardThenBackward => "f_then_b",
            ScheduleKind::OneForwardOneBackward => "1f1b",
            ScheduleKind::Interleaved => "interleaved",
            ScheduleKind::ZeroBubble => "zb_h1",
            ScheduleKind::ZeroBubbleV => "zbv",
        }
    }

    /// The smallest and the largest number of chunks per rank.
    pub fn chunks(self) -> (usize, usize) {
        match self {
            ScheduleKind::ForwardThenBackward | ScheduleKind::OneForwardOneBackward => (1, 1),
            ScheduleKind::Interleaved | ScheduleKind::ZeroBubble => (1, usize::MAX),
            ScheduleKind::ZeroBubbleV => (2, 2),
        }
    }

    /// The stages of a pipeline of this kind.
    pub fn stages(self, ranks: usize, chunks: usize) -> Result<Stages> {
        let (least, most) = self.chunks();
        if !(least..=most).contains(&chunks) {
            let expected = match most {
                usize::MAX => format!("at least {least} per rank for `{self}`"),
                _ => format!("{least} per rank for `{self}`"),
            };
            return Err(Error::Size { what: "chunks", found: chunks, expected });
        }
        match self {
            ScheduleKind::ZeroBubbleV => Stages::vee(ranks),
            _ => Stages::round_robin(ranks, chunks),
        }
    }

    /// The schedule for so many ranks, micro-batches, and chunks of the model per rank. Any number of micro-batches
    /// is fine, also fewer than ranks, also none.
    pub fn build(self, ranks: usize, micros: usize, chunks: usize) -> Result<Schedule> {
        self.build_within(ranks, micros, chunks, &Limit::Usual)
    }

    /// The same with a limit on kept activations, which [`ScheduleKind::ZeroBubbleV`] can trade time for. Other kinds need
    /// what they need, and refuse a limit below.
    pub fn build_within(self, ranks: usize, micros: usize, chunks: usize, limit: &Limit) -> Result<Schedule> {
        let stages = self.stages(ranks, chunks)?;
        check_size(&stages, micros)?;
        let caps = match limit {
            Limit::Usual => None,
            Limit::Each(most) => Some(vec![*most; ranks]),
            Limit::Ranks(most) if most.len() == ranks => Some(most.clone()),
            Limit::Ranks(most) => {
                let expected = format!("{ranks}, one for each rank");
                return Err(Error::Size { what: "limits", found: most.len(), expected });
            }
        };
        let work = match self {
            ScheduleKind::ForwardThenBackward => {
                (0..ranks).map(|rank| forward_then_backward(rank, micros)).collect()
            }
            ScheduleKind::OneForwardOneBackward => rounds::one_by_one(ranks, micros, 1),
            ScheduleKind::Interleaved => rounds::one_by_one(ranks, micros, chunks),
            ScheduleKind::ZeroBubble => rounds::zero_bubble(ranks, micros, chunks),
            ScheduleKind::ZeroBubbleV => {
                let caps = caps.clone().unwrap_or_else(|| vec![2 * ranks; ranks]);
                vee::zero_bubble(&stages, micros, &caps)?
            }
        };
        let needs: Vec<usize> = work.iter().map(|list| memory::live(list)).collect();
        match caps {
            Some(caps) if needs.iter().zip(&caps).any(|(needs, cap)| needs > cap) => {
                Err(Error::Limit { kind: self.name(), ranks, micros, limit: caps, least: needs })
            }
            _ => Ok(Schedule::from_work(stages, micros, &work)),
        }
    }

    /// Forward only, for evaluation, on the stages of this kind.
    pub fn build_forward(self, ranks: usize, micros: usize, chunks: usize) -> Result<Schedule> {
        let stages = self.stages(ranks, chunks)?;
        check_size(&stages, micros)?;
        let list = |rank: usize| {
            let own: Vec<usize> = stages.of(rank).collect();
            let each = |micro| own.iter().map(move |&stage| Action::new(Step::Forward, stage, micro));
            (0..micros).flat_map(each).collect()
        };
        let work: Vec<Vec<Action>> = match self {
            // A rank that waited for a micro-batch to come round would keep the others waiting.
            ScheduleKind::Interleaved | ScheduleKind::ZeroBubble => {
                rounds::forward_only(ranks, micros, chunks)
            }
            ScheduleKind::ZeroBubbleV => vee::forward_only(&stages, micros),
            _ => (0..ranks).map(list).collect(),
        };
        Ok(Schedule::from_work(stages, micros, &work))
    }
}

fn check_size(stages: &Stages, micros: usize) -> Result<()> {
    match stages.len().checked_mul(micros) {
        Some(work) if work <= MOST => Ok(()),
        _ => {
            let expected = format!("at most {} for {} stages", MOST / stages.len(), stages.len());
            Err(Error::Size { what: "micro-batches", found: micros, expected })
        }
    }
}

fn forward_then_backward(rank: usize, micros: usize) -> Vec<Action> {
    let all = |step| (0..micros).map(move |micro| Action::new(step, rank, micro));
    all(Step::Forward).chain(all(Step::Backward)).collect()
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ScheduleKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<ScheduleKind> {
        let plain = |name: &str| name.to_lowercase().replace(['-', ' '], "_");
        let found = ScheduleKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| {
            let close = |kind: &&ScheduleKind| {
                let (a, b) = (plain(text).replace('_', ""), kind.name().replace('_', ""));
                !a.is_empty() && (a.contains(&b) || b.contains(&a))
            };
            let nearest = ScheduleKind::ALL.iter().find(close).map(|kind| kind.name());
            let known: Vec<&str> = ScheduleKind::ALL.iter().map(|kind| kind.name()).collect();
            Error::UnknownKind { found: text.to_owned(), known: known.join(", "), nearest }
        })
    }
}
