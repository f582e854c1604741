//! Notes of ranks for whoever launched them: who failed, when, how, and the last words.

use crate::exit::Exit;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// How one rank failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Seconds since 1970.
    pub(super) time: f64,
    pub(super) rank: usize,
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
    /// The end of its standard error.
    pub(super) last: Vec<String>,
}

impl Record {
    pub(super) fn write(&self, folder: &Path) {
        // A note that cannot be written has nobody to tell.
        let text = serde_json::to_string(self).unwrap_or_default();
        let _ = std::fs::write(folder.join(format!("rank-{:05}.json", self.rank)), text);
    }

    /// All notes, the earliest first.
    pub(super) fn read_all(folder: &Path) -> Vec<Record> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let read = |path: &Path| serde_json::from_slice(&std::fs::read(path).ok()?).ok();
        let notes =
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
        let mut all: Vec<Record> = notes.filter_map(|path| read(&path)).collect();
        all.sort_by(|a, b| a.time.total_cmp(&b.time));
        all
    }

    /// True for a rank that was killed rather than failed, so that its machine may be gone, and for one that computes wrongly.
    pub(super) fn is_lost(&self) -> bool {
        self.signal == Some(9) || self.code == Some(i32::from(Exit::Suspect.code()))
    }

    /// True for a rank that only says that it lost another.
    pub(super) fn is_echo(&self) -> bool {
        self.code == Some(i32::from(Exit::PeerLost.code()))
    }

    /// The rank that was lost or found itself wrong comes before those that failed, and these before those that only lost a peer.
    pub(super) fn cause_first(a: &Record, b: &Record) -> std::cmp::Ordering {
        let key = |record: &Record| (record.is_echo(), !record.is_lost());
        key(a).cmp(&key(b)).then(a.time.total_cmp(&b.time))
    }

    /// True for a rank that was ended by the signal that asks for an end.
    pub(super) fn is_ended(&self) -> bool {
        self.signal == Some(15)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} failed first: ", self.rank)?;
        match (self.code, self.signal) {
            (_, Some(signal)) => write!(f, "killed by signal {signal}")?,
            (Some(code), None) => write!(f, "exit code {code}")?,
            (None, None) => write!(f, "for an unknown reason")?,
        }
        self.last.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

const STOP: &str = "stop";
const STOPPED: &str = "stopped";

/// Asks all ranks to save and stop.
pub(super) fn ask_to_stop(folder: &Path) {
    let _ = std::fs::write(folder.join(STOP), "");
}

/// True when ranks were asked to save and stop.
pub(super) fn is_asked_to_stop(folder: &Path) -> bool {
    folder.join(STOP).exists()
}

/// A rank has saved and stopped.
pub(super) fn note_stopped(folder: &Path) {
    let _ = std::fs::write(folder.join(STOPPED), "");
}

/// True when a rank has saved and stopped.
pub(super) fn is_stopped(folder: &Path) -> bool {
    folder.join(STOPPED).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_failure_is_shown_with_its_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let record =
            |rank, time, signal| Record { time, rank, code: None, signal, last: vec!["error: x".into()] };
        record(0, 2.0, Some(6)).write(folder.path());
        record(3, 1.0, Some(9)).write(folder.path());
        ask_to_stop(folder.path());
        let all = Record::read_all(folder.path());
        assert_eq!(all.iter().map(|r| r.rank).collect::<Vec<_>>(), [3, 0]);
        assert_eq!(all[0].to_string(), "rank 3 failed first: killed by signal 9\n  error: x");
        assert!(all[0].is_lost() && !all[1].is_lost() && !all[0].is_ended());
        assert!(is_asked_to_stop(folder.path()) && !is_stopped(folder.path()));
    }
}
