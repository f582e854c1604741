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
pub enum Kind {
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

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 5] = [
        Kind::ForwardThenBackward,
        Kind::OneForwardOneBackward,
        Kind::Interleaved,
        Kind::ZeroBubble,
        Kind::ZeroBubbleV,
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::ForwardThenBackward => "f_then_b",
            Kind::OneForwardOneBackward => "1f1b",
            Kind::Interleaved => "interleaved",
            Kind::ZeroBubble => "zb_h1",
            Kind::ZeroBubbleV => "zbv",
        }
    }

    /// The smallest and the largest number of chunks per rank.
    pub fn chunks(self) -> (usize, usize) {
        match self {
            Kind::ForwardThenBackward | Kind::OneForwardOneBackward => (1, 1),
            Kind::Interleaved | Kind::ZeroBubble => (1, usize::MAX),
            Kind::ZeroBubbleV => (2, 2),
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
            Kind::ZeroBubbleV => Stages::vee(ranks),
            _ => Stages::round_robin(ranks, chunks),
        }
    }

    /// The schedule for so many ranks, micro-batches, and chunks of the model per rank. Any number of micro-batches
    /// is fine, also fewer than ranks, also none.
    pub fn build(self, ranks: usize, micros: usize, chunks: usize) -> Result<Schedule> {
        self.build_within(ranks, micros, chunks, &Limit::Usual)
    }

    /// The same with a limit on kept activations, which [`Kind::ZeroBubbleV`] can trade time for. Other kinds need
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
            Kind::ForwardThenBackward => (0..ranks).map(|rank| forward_then_backward(rank, micros)).collect(),
            Kind::OneForwardOneBackward => rounds::one_by_one(ranks, micros, 1),
            Kind::Interleaved => rounds::one_by_one(ranks, micros, chunks),
            Kind::ZeroBubble => rounds::zero_bubble(ranks, micros, chunks),
            Kind::ZeroBubbleV => {
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
            Kind::Interleaved | Kind::ZeroBubble => rounds::forward_only(ranks, micros, chunks),
            Kind::ZeroBubbleV => vee::forward_only(&stages, micros),
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

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Kind> {
        let plain = |name: &str| name.to_lowercase().replace(['-', ' '], "_");
        let found = Kind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| {
            let close = |kind: &&Kind| {
                let (a, b) = (plain(text).replace('_', ""), kind.name().replace('_', ""));
                !a.is_empty() && (a.contains(&b) || b.contains(&a))
            };
            let nearest = Kind::ALL.iter().find(close).map(|kind| kind.name());
            let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            Error::UnknownKind { found: text.to_owned(), known: known.join(", "), nearest }
        })
    }
}
