//! What one rank has to say: a file of JSON lines per rank.

use crate::error::{Error, Result};
use crate::metrics::now;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// How much a message matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// For finding a fault.
    Debug,
    /// What a run does.
    Info,
    /// Deserves a look.
    Warn,
    /// Something failed.
    Error,
}

/// The log of one rank: `log/rank-00003.jsonl` in the run's folder. Threads may share it.
#[derive(Debug)]
pub struct RankLog {
    rank: usize,
    path: PathBuf,
    least: Level,
    file: Mutex<File>,
}

impl RankLog {
    /// Opens the log of a rank for appending; messages below `least` are left out.
    pub fn open(run: &Path, rank: usize, least: Level) -> Result<RankLog> {
        let folder = run.join("log");
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let path = folder.join(format!("rank-{rank:05}.jsonl"));
        let file = File::options().append(true).create(true).open(&path).map_err(Error::io("open", &path))?;
        Ok(RankLog { rank, path, least, file: Mutex::new(file) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a message with some values.
    pub fn log(&self, level: Level, message: &str, values: &[(&str, Value)]) -> Result<()> {
        if level < self.least {
            return Ok(());
        }
        let mut line = Map::new();
        line.insert("time".into(), now().into());
        line.insert("rank".into(), self.rank.into());
        line.insert("level".into(), serde_json::to_value(level).unwrap_or_default());
        line.insert("message".into(), message.into());
        line.extend(values.iter().map(|(name, value)| (name.to_string(), value.clone())));
        let text = Value::Object(line).to_string() + "\n";
        // A thread that panicked while it wrote left at worst half a line.
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.write_all(text.as_bytes()).map_err(Error::io("write", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_rank_has_its_own_lines() {
        let run = tempfile::tempdir().unwrap();
        let logs = [0, 3].map(|rank| RankLog::open(run.path(), rank, Level::Info).unwrap());
        logs[1].log(Level::Warn, "slow\nread", &[("bytes", json!(7))]).unwrap();
        logs[1].log(Level::Debug, "unheard", &[]).unwrap();
        let text = fs::read_to_string(run.path().join("log/rank-00003.jsonl")).unwrap();
        let line: Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!((&line["rank"], &line["level"], &line["bytes"]), (&json!(3), &json!("warn"), &json!(7)));
        assert_eq!(line["message"], "slow\nread");
        assert_eq!(fs::read_to_string(logs[0].path()).unwrap(), "");
    }
}
