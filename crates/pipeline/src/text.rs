//! The text form of schedules: a first line with the ranks of the stages and the number of micro-batches, then one
//! line per rank. What is printed can be parsed.

use super::action::{Action, Step};
use super::error::{Error, Result};
use super::schedule::Schedule;
use super::stages::Stages;
use std::fmt;
use std::str::FromStr;

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<String> = self.stages().as_slice().iter().map(usize::to_string).collect();
        writeln!(f, "pipeline stages={} micros={}", ranks.join(","), self.micros())?;
        for (rank, list) in self.lists().iter().enumerate() {
            write!(f, "{rank}:")?;
            list.iter().try_for_each(|action| write!(f, " {action}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

impl FromStr for Action {
    type Err = Error;

    fn from_str(text: &str) -> Result<Action> {
        parse_action(text).ok_or_else(|| {
            let what = format!("`{text}` is not an action; expected one like `2F0`, `>2F0` or `2F0>`");
            Error::Parse { line: 1, what }
        })
    }
}

fn parse_action(text: &str) -> Option<Action> {
    let (receives, rest) = text.strip_prefix('>').map_or((false, text), |rest| (true, rest));
    let (sends, rest) = rest.strip_suffix('>').map_or((false, rest), |rest| (true, rest));
    let at = rest.find(|c: char| !c.is_ascii_digit())?;
    let letter = rest[at..].chars().next()?;
    let step = Step::ALL.into_iter().find(|step| {
        let (before, mark, after) = step.marks();
        (!before.is_empty(), mark, !after.is_empty()) == (receives, letter, sends)
    })?;
    let number = |digits: &str| {
        let plain = digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
        digits.parse::<usize>().ok().filter(|_| plain)
    };
    Some(Action::new(step, number(&rest[..at])?, number(&rest[at + letter.len_utf8()..])?))
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Schedule> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let error = |line: usize, what: String| Error::Parse { line: line + 1, what };
        let (at, first) = lines.next().ok_or_else(|| error(0, "nothing there".into()))?;
        let head = || error(at, format!("`{first}` is not `pipeline stages=0,1,... micros=N`"));
        let (stages, micros) = head_of(first).ok_or_else(head)?;
        let stages = Stages::new(&stages)?;
        let mut lists: Vec<Vec<Action>> = Vec::new();
        for (at, line) in lines {
            let (rank, actions) =
                line.split_once(':').ok_or_else(|| error(at, "expected `rank: ...`".into()))?;
            if rank.trim().parse() != Ok(lists.len()) || lists.len() == stages.ranks() {
                let what = format!("`{}` is not the next of {} ranks", rank.trim(), stages.ranks());
                return Err(error(at, what));
            }
            let parse = |word: &str| {
                parse_action(word).ok_or_else(|| error(at, format!("`{word}` is not an action")))
            };
            lists.push(actions.split_whitespace().map(parse).collect::<Result<_>>()?);
        }
        match lists.len() == stages.ranks() {
            true => Ok(Schedule::new(stages, micros, lists)),
            false => Err(error(at, format!("{} lists for {} ranks", lists.len(), stages.ranks()))),
        }
    }
}

/// The rank of each stage, and the number of micro-batches.
fn head_of(line: &str) -> Option<(Vec<usize>, usize)> {
    let mut words = line.split_whitespace();
    let (name, stages, micros) = (words.next()?, words.next()?, words.next()?);
    let ranks =
        stages.strip_prefix("stages=")?.split(',').map(|rank| rank.parse().ok()).collect::<Option<_>>()?;
    let micros = micros.strip_prefix("micros=")?.parse().ok()?;
    (name == "pipeline" && words.next().is_none()).then_some((ranks, micros))
}
