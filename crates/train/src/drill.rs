//! Faults that happen on purpose inside a rank, for drills: real ones, at a place that can be named again.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Something that happens to one rank, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub what: What,
    /// To whom.
    pub rank: usize,
    /// When.
    pub at: At,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The process is killed with SIGKILL.
    Kill,
    /// The rank stands still for ever.
    Hang,
    /// An allocation fails, which ends the process.
    OutOfMemory,
    /// The rank is away for half a minute, longer than a drill's ranks wait for each other.
    Away,
    /// A bit of a weight flips; nothing else is to be seen of it.
    Flip,
}

/// How long a rank is away.
const AWAY: Duration = Duration::from_secs(30);

/// When it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// As the rank comes to its call of this number, counted from 0 over all communicators.
    Call(u64),
    /// As it begins this step.
    Step(u64),
}

impl Fault {
    pub(crate) fn is_at_call(&self, call: u64) -> bool {
        self.at == At::Call(call)
    }

    pub(crate) fn is_at_step(&self, step: u64) -> bool {
        self.at == At::Step(step)
    }

    /// Does not come back, unless the rank was only away.
    pub(crate) fn happen(&self) {
        match self.what {
            What::Away => return std::thread::sleep(AWAY),
            What::Flip => return,
            What::Kill => drop(signal_hook::low_level::raise(signal_hook::consts::SIGKILL)),
            What::Hang => {}
            What::OutOfMemory => std::alloc::handle_alloc_error(std::alloc::Layout::new::<[u64; 1 << 20]>()),
        }
        loop {
            std::thread::park();
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            What::Kill => "kill",
            What::Hang => "hang",
            What::OutOfMemory => "oom",
            What::Away => "away",
            What::Flip => "flip",
        };
        match self.at {
            At::Call(call) => write!(f, "{what} rank={} call={call}", self.rank),
            At::Step(step) => write!(f, "{what} rank={} step={step}", self.rank),
        }
    }
}

impl FromStr for Fault {
    type Err = Error;

    fn from_str(text: &str) -> Result<Fault> {
        let wrong = || {
            Error::Value {
            key: "fault".into(),
            found: format!("'{text}'"),
            expected: "kill, hang, oom, away or flip with a place, as in 'kill rank=1 call=57' or 'hang rank=0 step=3'"
                .into(),
        }
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let [what, rank, at] = words[..] else { return Err(wrong()) };
        let what = match what {
            "kill" => What::Kill,
            "hang" => What::Hang,
            "oom" => What::OutOfMemory,
            "away" => What::Away,
            "flip" => What::Flip,
            _ => return Err(wrong()),
        };
        let number = |text: &str, key: &str| {
            text.strip_prefix(key).and_then(|rest| rest.strip_prefix('=')).and_then(|n| n.parse::<u64>().ok())
        };
        let rank = number(rank, "rank").ok_or_else(wrong)? as usize;
        let at = number(at, "call").map(At::Call).or_else(|| number(at, "step").map(At::Step));
        Ok(Fault { what, rank, at: at.ok_or_else(wrong)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_read_as_it_is_written() {
        for text in [
            "kill rank=1 call=57",
            "hang rank=0 step=3",
            "oom rank=12 call=0",
            "away rank=1 call=2",
            "flip rank=1 step=9",
        ] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        for text in
            ["", "kill", "kill rank=1", "kill rank=x call=1", "burn rank=1 call=1", "kill call=1 rank=1"]
        {
            assert!(text.parse::<Fault>().unwrap_err().to_string().contains("rank=1 call=57"), "{text}");
        }
    }
}
