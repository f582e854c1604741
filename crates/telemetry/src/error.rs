//! What can go wrong with the records of a run.

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A record that could not be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {op} '{}': {error}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
    /// A folder without metrics.
    #[error("'{}' is not the folder of a run: it has no metrics.jsonl", path.display())]
    NoRun {
        /// The folder or file.
        path: PathBuf,
    },
    /// A metric that the run does not have.
    #[error("run '{run}' has no metric '{name}'{}", did_you_mean(name, known))]
    NoMetric {
        /// The run.
        run: String,
        /// The metric asked for.
        name: String,
        /// The metrics there are.
        known: Vec<String>,
    },
    /// A line that is not a record.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// Nothing to draw.
    #[error("'{metric}' has no finite value to draw")]
    Empty {
        /// The metric.
        metric: String,
    },
    /// A picture that could not be made.
    #[error("cannot draw the plot: {what}")]
    Draw {
        /// Why.
        what: String,
    },
}

impl Error {
    pub(crate) fn io(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |error| Error::Io { op, path: path.to_path_buf(), error }
    }

    /// One next action, where there is a clear one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::NoRun { .. } => Some("name the folder of a run, such as runs/NAME".into()),
            Error::NoMetric { known, .. } if !known.is_empty() => {
                Some(format!("it has {}", known.join(", ")))
            }
            _ => None,
        }
    }
}

/// The known name with the fewest changes, if that is few.
fn did_you_mean(name: &str, known: &[String]) -> String {
    let best = known.iter().map(|k| (changes(name, k), k)).min();
    match best {
        Some((far, near)) if far <= 1 + name.chars().count() / 3 => format!("; did you mean '{near}'?"),
        _ => String::new(),
    }
}

/// Insertions, deletions and replacements between two names.
fn changes(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_metrics_name_the_nearest_one() {
        let known = vec!["grad_norm".to_string(), "loss".to_string(), "lr".to_string()];
        let error = |name: &str| {
            let (run, name) = ("a".to_string(), name.to_string());
            Error::NoMetric { run, name, known: known.clone() }
        };
        assert_eq!(error("los").to_string(), "run 'a' has no metric 'los'; did you mean 'loss'?");
        assert_eq!(error("accuracy").to_string(), "run 'a' has no metric 'accuracy'");
        assert_eq!(error("x").hint().unwrap(), "it has grad_norm, loss, lr");
        assert_eq!(changes("kitten", "sitting"), 3);
    }
}
