//! What can be wrong with a schedule, and what can go wrong while it runs.

use super::action::{Action, Step};
use thiserror::Error;

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// Whatever the work of a stage fails with.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A schedule that cannot work, or a run that could not continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A number of ranks, stages, chunks or micro-batches out of range.
    #[error("{found} {what} of a pipeline; expected {expected}")]
    Size {
        /// What is counted.
        what: &'static str,
        /// How many.
        found: usize,
        /// What is allowed.
        expected: String,
    },
    /// A rank without a stage.
    #[error("rank {rank} has no stage; number the ranks from 0 without gaps")]
    IdleRank {
        /// The rank.
        rank: usize,
    },
    /// An unknown kind of schedule.
    #[error("unknown schedule `{found}`; use one of {known}{}", nearest.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownKind {
        /// The name.
        found: String,
        /// All names.
        known: String,
        /// The one that looks most like it.
        nearest: Option<&'static str>,
    },
    /// No schedule of this kind stays within the limit.
    #[error(
        "no {kind} schedule of {ranks} ranks and {micros} micro-batches keeps at most {limit:?} activations per rank; allow at least {least:?}"
    )]
    Limit {
        /// The kind.
        kind: &'static str,
        /// Ranks.
        ranks: usize,
        /// Micro-batches.
        micros: usize,
        /// The limit.
        limit: Vec<usize>,
        /// What some schedule of the kind needs.
        least: Vec<usize>,
    },
    /// A text that is not a schedule.
    #[error("line {line} of the schedule: {what}")]
    Parse {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// An action that does not belong to the rank's list.
    #[error("rank {rank}, position {position}: `{action}` {why}")]
    Misplaced {
        /// The rank.
        rank: usize,
        /// Where in its list, from 0.
        position: usize,
        /// The action.
        action: Action,
        /// What is wrong with it.
        why: String,
    },
    /// An action that comes before what it needs.
    #[error("`{action}` has no {what}; `Schedule::validate` finds what is out of order")]
    Unready {
        /// The action.
        action: Action,
        /// What the actions before it should have left.
        what: &'static str,
    },
    /// An action that is needed and not there.
    #[error("rank {rank} has no `{action}` ({})", action.step.words())]
    Missing {
        /// The rank it belongs to.
        rank: usize,
        /// The action.
        action: Action,
    },
    /// Two actions of one rank in the wrong order.
    #[error("rank {rank} has `{late}` after `{early}`, which needs it")]
    Order {
        /// The rank.
        rank: usize,
        /// The action that comes too early.
        early: Action,
        /// What it needs.
        late: Action,
    },
    /// Messages that arrive in another order than they are awaited.
    #[error(
        "message {number} from stage {from} to stage {to}: rank {sender} sends `{sent}`, rank {receiver} awaits `{awaited}`"
    )]
    Crossed {
        /// Which message of this pair of stages, from 0.
        number: usize,
        /// Stage that sends.
        from: usize,
        /// Stage that receives.
        to: usize,
        /// Rank that sends.
        sender: usize,
        /// What it sends.
        sent: Action,
        /// Rank that receives.
        receiver: usize,
        /// What it waits for.
        awaited: Action,
    },
    /// Ranks that wait for each other for ever.
    #[error("deadlock: {}", waits(.0))]
    Deadlock(
        /// Rank, the action it cannot finish, and the rank it waits for; the last waits for the first.
        Vec<(usize, Action, usize)>,
    ),
    /// Costs for another number of stages.
    #[error(
        "costs are given for {found} stages, but the schedule has {expected}; give one for all, or one each"
    )]
    Costs {
        /// Entries given.
        found: usize,
        /// Stages.
        expected: usize,
    },
    /// A communicator that does not fit the schedule.
    #[error("the schedule is for {expected} ranks, but the communicator has {found}")]
    Ranks {
        /// Ranks of the schedule.
        expected: usize,
        /// Ranks of the communicator.
        found: usize,
    },
    /// The work of a stage failed.
    #[error("stage {stage}, micro-batch {micro}, {}: {source}", step.words())]
    Work {
        /// The stage.
        stage: usize,
        /// The micro-batch.
        micro: usize,
        /// What was done.
        step: Step,
        /// Why it failed.
        source: Failure,
    },
    /// A tensor between stages that is not what was agreed on at first.
    #[error(
        "stage {stage}, micro-batch {micro}: {what} is {found}, but {expected} was agreed on; let `Shapes::Each` describe every message where shapes change"
    )]
    Shape {
        /// The stage that made it.
        stage: usize,
        /// The micro-batch.
        micro: usize,
        /// Which tensor.
        what: String,
        /// What was agreed on.
        expected: String,
        /// What was made.
        found: String,
    },
    /// A message that cannot be understood.
    #[error("stage {stage}, micro-batch {micro}: {what}")]
    Message {
        /// The stage that receives.
        stage: usize,
        /// The micro-batch.
        micro: usize,
        /// What is wrong.
        what: String,
    },
    /// A peer was lost or gave up.
    #[error(transparent)]
    Comm(#[from] planaria_comm::Error),
}

fn waits(cycle: &[(usize, Action, usize)]) -> String {
    let one = |(rank, action, on): &(usize, Action, usize)| {
        format!("rank {rank} at `{action}` waits for rank {on}")
    };
    cycle.iter().map(one).collect::<Vec<_>>().join(", ")
}
