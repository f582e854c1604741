//! Errors as a person reads them: what, where, and one hint; and the exit code that goes with each.

use crate::exit::Exit;
use crate::terminal::{Style, Terminal};
use anyhow::Error;
use std::fmt;
use std::io;

/// A mistake the command itself finds: a message, an exit code, and what to do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    hint: Option<String>,
}

impl Failure {
    /// Wrong use.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure { exit: Exit::Usage, message: message.into(), hint: None }
    }

    /// A rank that computes wrongly.
    pub(crate) fn suspect(message: impl Into<String>) -> Failure {
        Failure { exit: Exit::Suspect, message: message.into(), hint: None }
    }

    /// Another rank is lost.
    pub(crate) fn peer_lost(message: impl Into<String>) -> Failure {
        Failure { exit: Exit::PeerLost, message: message.into(), hint: None }
    }

    /// The answer is no.
    pub(crate) fn negative(message: impl Into<String>) -> Failure {
        Failure { exit: Exit::Negative, message: message.into(), hint: None }
    }

    /// What another rank reports: nothing is printed here.
    pub(crate) fn reported(exit: Exit) -> Failure {
        Failure { exit, message: String::new(), hint: None }
    }

    /// Ended by a signal.
    pub(crate) fn signal(number: u8) -> Failure {
        let name = if number == 15 { "terminated" } else { "interrupted" };
        Failure { exit: Exit::Signal(number), message: name.to_string(), hint: None }
    }

    /// The one next action.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Prints an error to standard error; the exit code. A reader that went away (`| head`) is not an error.
pub(crate) fn report(terminal: &Terminal, error: &Error) -> Exit {
    if is_broken_pipe(error) {
        return Exit::Success;
    }
    let (exit, hint) = classify(error);
    if error.downcast_ref::<Failure>().is_some_and(|failure| failure.message.is_empty()) {
        return exit;
    }
    let mut causes: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        // Wrappers often repeat what they wrap.
        if !causes.iter().any(|said| said.contains(&text)) {
            causes.push(text);
        }
    }
    let mut text =
        format!("{} {}", terminal.paint_err(Style::Bad, "error:"), causes.first().map_or("", String::as_str));
    for cause in causes.iter().skip(1) {
        for line in cause.lines() {
            text.push_str("\n  ");
            text.push_str(line);
        }
    }
    if let Some(hint) = hint {
        text.push_str(&format!("\n\n{} {hint}", terminal.paint_err(Style::Name, "hint:")));
    }
    terminal.say(&text);
    exit
}

fn is_broken_pipe(error: &Error) -> bool {
    let broken = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    error.chain().any(broken)
}

/// The exit code of an error.
pub(crate) fn code_of(error: &Error) -> Exit {
    classify(error).0
}

/// The exit code of the innermost cause that has one, and a hint.
fn classify(error: &Error) -> (Exit, Option<String>) {
    for cause in error.chain() {
        if let Some(own) = cause.downcast_ref::<Failure>() {
            return (own.exit, own.hint.clone());
        }
        if let Some(error) = cause.downcast_ref::<planaria::ckpt::Error>() {
            return of_checkpoint(error);
        }
        if let Some(error) = cause.downcast_ref::<planaria::store::Error>() {
            return of_store(error);
        }
        if let Some(error) = cause.downcast_ref::<planaria::merge::Error>() {
            return match error {
                planaria::merge::Error::Checkpoint(error) => of_checkpoint(error),
                planaria::merge::Error::Store(error) => of_store(error),
                _ => (Exit::Usage, None),
            };
        }
        if let Some(error) = cause.downcast_ref::<planaria::program::Error>() {
            return (of_program(error), None);
        }
        if cause.is::<planaria::aoa::Error>() || cause.is::<planaria::layout::Error>() {
            return (Exit::Usage, None);
        }
        if let Some(error) = cause.downcast_ref::<planaria::telemetry::Error>() {
            return (Exit::Usage, error.hint());
        }
        if let Some(error) = cause.downcast_ref::<planaria::train::Error>() {
            if error.is_usage()
                || matches!(error, planaria::train::Error::Batch(_) | planaria::train::Error::Model(_))
            {
                return (Exit::Usage, error.hint());
            }
            return of_run(error);
        }
        if let Some(error) = cause.downcast_ref::<planaria::train::data::Error>() {
            return of_data(error);
        }
        if cause.is::<planaria::comm::Error>() {
            return (Exit::PeerLost, None);
        }
        // A file that was named and is not there, or is something else.
        if let Some(error) = cause.downcast_ref::<io::Error>()
            && matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory
            )
        {
            return (Exit::Usage, None);
        }
    }
    (Exit::Negative, None)
}

fn of_program(error: &planaria::program::Error) -> Exit {
    use planaria::program::Error;
    match error {
        Error::Syntax { .. } | Error::Invalid { .. } | Error::Parameter { .. } => Exit::Damaged,
        Error::Run { .. } | Error::Array { .. } => Exit::Negative,
        Error::Store(error) => of_store(error).0,
        _ => Exit::Usage,
    }
}

/// The exit code of an error about a checkpoint.
pub(crate) fn exit_of(error: &planaria::ckpt::Error) -> Exit {
    of_checkpoint(error).0
}

fn of_run(error: &planaria::train::Error) -> (Exit, Option<String>) {
    use planaria::train::Error;
    match error {
        Error::Rank { source, .. } => of_run(source),
        Error::Weights { .. } if error.is_usage() => (Exit::Usage, error.hint()),
        Error::Weights { source, .. } => of_run(source),
        Error::Checkpoint(error) => of_checkpoint(error),
        Error::Resume { .. } => (Exit::Damaged, error.hint()),
        Error::Store(error) => of_store(error),
        Error::Data(error) => of_data(error),
        Error::Telemetry(error) => (Exit::Negative, error.hint()),
        Error::Comm(_) => (Exit::PeerLost, None),
        Error::Told { .. } => (Exit::PeerLost, None),
        Error::Suspect { .. } => (Exit::Suspect, error.hint()),
        Error::Io { .. } => (Exit::Usage, None),
        error if error.is_usage() => (Exit::Usage, error.hint()),
        error => (Exit::Negative, error.hint()),
    }
}

fn of_checkpoint(error: &planaria::ckpt::Error) -> (Exit, Option<String>) {
    use planaria::ckpt::{Error, Trouble};
    let damaged = |hint: &str| (Exit::Damaged, Some(hint.to_string()));
    match error {
        Error::Store(error) => of_store(error),
        Error::UnknownFormat { .. } => {
            (Exit::Usage, Some("name a checkpoint folder, or a file that holds tensors".to_string()))
        }
        Error::Ambiguous { .. } => {
            (Exit::Usage, Some("name one of them, or choose a flex save with `--uid`".to_string()))
        }
        Error::Occupied { why, .. } => (Exit::Usage, of_obstacle(why)),
        Error::NoTensor { .. } => (Exit::Usage, Some("`planaria inspect` lists the names".to_string())),
        Error::Mapping(_) => {
            (Exit::Usage, Some("docs/concepts/mapping.md explains the language".to_string()))
        }
        Error::Comm(_) => (Exit::PeerLost, None),
        Error::Rank { kind, .. } => match kind {
            Trouble::Damage => damaged("the checkpoint was changed or is incomplete; use the one before it"),
            Trouble::Ranks => (Exit::PeerLost, None),
            Trouble::Storage => (Exit::Negative, None),
            _ => (Exit::Usage, None),
        },
        Error::Array(_) | Error::Stopped => (Exit::Negative, None),
        Error::Torn { .. } => {
            damaged("the save was not finished or lost a file; use the checkpoint before it")
        }
        Error::Conflict { .. } => {
            damaged("ranks held different values under one name; use another checkpoint")
        }
        Error::Pickle { .. }
        | Error::Malformed { .. }
        | Error::Tiles { .. }
        | Error::Mismatch { .. }
        | Error::Duplicate { .. }
        | Error::Member { .. }
        | Error::Damaged { .. } => {
            damaged("the file was changed or is incomplete; copy it again from its source")
        }
        // What is left is about what was asked for, and says itself what would be right.
        _ => (Exit::Usage, None),
    }
}

/// What to do about a place that cannot be written.
fn of_obstacle(why: &planaria::ckpt::Obstacle) -> Option<String> {
    use planaria::ckpt::Obstacle;
    let hint = match why {
        Obstacle::Exists => "choose another place, or add `--yes` to replace it",
        Obstacle::More { .. } => {
            "choose another place, or move these away: `--yes` replaces checkpoints only"
        }
        Obstacle::NotEmpty => "choose another place, or empty it first: an object store cannot swap folders",
        Obstacle::Claimed { .. } => {
            "wait for it, choose another place, or remove its `.planaria-claim` there if that process is dead"
        }
        Obstacle::Read { .. } => "write to a folder beside the source",
        Obstacle::File | Obstacle::Link | Obstacle::Name => "name a folder to write",
        _ => return None,
    };
    Some(hint.to_string())
}

fn of_data(error: &planaria::train::data::Error) -> (Exit, Option<String>) {
    let exit = match (error.is_damage(), error.is_usage()) {
        (true, _) => Exit::Damaged,
        (_, true) => Exit::Usage,
        _ => Exit::Negative,
    };
    (exit, error.hint())
}

fn of_store(error: &planaria::store::Error) -> (Exit, Option<String>) {
    use planaria::store::{Error, HeaderProblem};
    match error {
        Error::NotFound { .. } | Error::NotAFile { .. } | Error::BadUrl { .. } | Error::BadName { .. } => {
            (Exit::Usage, None)
        }
        Error::AlreadyExists { .. } => {
            (Exit::Usage, Some("choose another place, or add `--yes`".to_string()))
        }
        Error::Header { problem: HeaderProblem::UnknownDType { .. }, .. } => {
            (Exit::Usage, Some("have the program that wrote the file cast this tensor first".to_string()))
        }
        Error::Header { .. } | Error::OutOfFile { .. } | Error::Checksum { .. } => (
            Exit::Damaged,
            Some("the file was changed or is incomplete; copy it again from its source".to_string()),
        ),
        _ => (Exit::Negative, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_follows_from_the_cause_however_deep() {
        let damaged =
            planaria::store::Error::Checksum { name: "f".into(), start: 0, end: 4, found: 1, expected: 2 };
        let wrapped = Error::from(planaria::ckpt::Error::from(damaged)).context("while reading 'w'");
        assert_eq!(classify(&wrapped).0, Exit::Damaged);
        let usage = Error::from(Failure::usage("no").hint("do this"));
        assert_eq!(classify(&usage), (Exit::Usage, Some("do this".to_string())));
        assert_eq!(classify(&anyhow::anyhow!("anything")).0, Exit::Negative);
        assert_eq!(Exit::Signal(2).code(), 130);
        let (kind, message) = (planaria::ckpt::Trouble::Damage, "torn".to_string());
        let peer = planaria::ckpt::Error::Rank { rank: 3, kind, message };
        assert_eq!(classify(&Error::from(peer)).0, Exit::Damaged);
    }

    #[test]
    fn a_closed_pipe_is_success() {
        let closed = Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).context("while printing");
        assert!(is_broken_pipe(&closed));
    }
}
