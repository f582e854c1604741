//! A worker process that times cases on request, and waits for the next line while another one is at work.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::measure::Sample;

/// What a worker says about one case.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    /// It ran.
    Timed {
        /// One entry per repetition.
        s: Vec<Sample>,
        /// Sum and scale of the first result, to compare workers by.
        check: [f64; 2],
        /// Peak of the resident memory in bytes: above what it was before, and as a whole.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peak: Option<[u64; 2]>,
    },
    /// It cannot run it, for this reason.
    Unsupported {
        /// The reason.
        unsupported: String,
    },
}

/// A process that reads `CASE MILLISECONDS` lines and answers with one JSON line each.
#[derive(Debug)]
pub struct Worker {
    /// How the tables call it.
    pub name: &'static str,
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts the process and waits until it is ready.
    pub fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("cannot start the worker {name}"))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the worker {name} has no pipes");
        };
        let mut worker = Self { name, child, requests, answers: BufReader::new(answers) };
        let first = worker.line()?;
        if first != "ready" {
            bail!("the worker {name} said `{first}` instead of `ready`");
        }
        Ok(worker)
    }

    /// Lets the worker time one case, while the caller lets no other one run.
    pub fn time(&mut self, case: &str, milliseconds: u64) -> Result<Answer> {
        writeln!(self.requests, "{case} {milliseconds}").and_then(|()| self.requests.flush())?;
        let line = self.line().with_context(|| format!("the worker {} was timing {case}", self.name))?;
        // Threads of a pool may spin for a few milliseconds after their last task.
        thread::sleep(Duration::from_millis(20));
        serde_json::from_str(&line).with_context(|| format!("the worker {} answered `{line}`", self.name))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the worker {} ended: {:?}", self.name, self.child.wait()?);
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Nothing it holds needs saving.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_answers_case_by_case() {
        let script = r#"echo ready; while read case ms; do
            if [ $case = a ]; then echo '{"s": [[0.5, 0.5, 0]], "check": [1, 2]}'; else echo '{"unsupported": "'$ms'"}'; fi
        done"#;
        let mut worker = Worker::start("test", Command::new("sh").args(["-c", script])).unwrap();
        assert!(
            matches!(worker.time("a", 7).unwrap(), Answer::Timed { s, check: [1.0, 2.0], peak: None } if s == [[0.5, 0.5, 0.0]])
        );
        assert!(
            matches!(worker.time("b", 7).unwrap(), Answer::Unsupported { unsupported } if unsupported == "7")
        );
    }

    #[test]
    fn a_worker_that_dies_is_an_error() {
        let error = Worker::start("test", Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(error.to_string().contains("the worker test ended"), "{error}");
    }
}
