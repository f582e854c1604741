//! Faults that happen on purpose inside a rank, for drills: real ones, at a place that can be named again.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Something that happens to one rank, once.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// A weight becomes NaN, and with it the rank's next loss.
    Nan,
}

/// How long a rank is away.
const AWAY: Duration = Duration::from_secs(30);

/// When it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// As the rank comes to the call of this number, counted from 0, of a group; training and saving have groups of their own, so
    /// that the number says the same in every run.
    Call {
        /// The group, as ranks tell it.
        lane: String,
        /// Which of its calls.
        number: u64,
    },
    /// As it begins this step.
    Step(u64),
}

impl Fault {
    pub(crate) fn is_at_call(&self, group: &str, call: u64) -> bool {
        matches!(&self.at, At::Call { lane, number } if lane == group && *number == call)
    }

    pub(crate) fn is_at_step(&self, step: u64) -> bool {
        self.at == At::Step(step)
    }

    /// Does not come back, unless the rank was only away.
    pub(crate) fn happen(&self) {
        match self.what {
            What::Away => return std::thread::sleep(AWAY),
            What::Flip | What::Nan => return,
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
            What::Nan => "nan",
        };
        match &self.at {
            At::Call { lane, number } => write!(f, "{what} rank={} lane={lane} call={number}", self.rank),
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
            expected: "kill, hang, oom, away, flip or nan with a place, as in 'kill rank=1 lane=world call=57' or 'hang rank=0 step=3'"
                .into(),
        }
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let ([what, rank, at], lane) = match words[..] {
            [what, rank, at] => ([what, rank, at], "world"),
            [what, rank, lane, at] => ([what, rank, at], lane.strip_prefix("lane=").ok_or_else(wrong)?),
            _ => return Err(wrong()),
        };
        let what = match what {
            "kill" => What::Kill,
            "hang" => What::Hang,
            "oom" => What::OutOfMemory,
            "away" => What::Away,
            "flip" => What::Flip,
            "nan" => What::Nan,
            _ => return Err(wrong()),
        };
        let number = |text: &str, key: &str| {
            text.strip_prefix(key).and_then(|rest| rest.strip_prefix('=')).and_then(|n| n.parse::<u64>().ok())
        };
        let rank = number(rank, "rank").ok_or_else(wrong)? as usize;
        let call = |number| At::Call { lane: lane.to_string(), number };
        let at = number(at, "call").map(call).or_else(|| number(at, "step").map(At::Step));
        Ok(Fault { what, rank, at: at.ok_or_else(wrong)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_read_as_it_is_written() {
        for text in [
            "kill rank=1 lane=world/2 call=57",
            "hang rank=0 step=3",
            "oom rank=12 lane=world call=0",
            "away rank=1 lane=group call=2",
            "flip rank=1 step=9",
            "nan rank=2 step=4",
        ] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        let short: Fault = "kill rank=1 call=57".parse().unwrap();
        assert!(short.is_at_call("world", 57) && !short.is_at_call("world/1", 57));
        for text in
            ["", "kill", "kill rank=1", "kill rank=x call=1", "burn rank=1 call=1", "kill call=1 rank=1"]
        {
            assert!(
                text.parse::<Fault>().unwrap_err().to_string().contains("rank=1 lane=world call=57"),
                "{text}"
            );
        }
    }
}
