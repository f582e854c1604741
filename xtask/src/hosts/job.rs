//! A job on the bed: started, waited for, and compared with another run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// After this a job is ended, and its check fails.
const DEADLINE: Duration = Duration::from_secs(120);

/// Time between two looks.
const PULSE: Duration = Duration::from_millis(10);

/// A command under way, with what it has said in a file.
#[derive(Debug)]
pub(super) struct Job {
    child: Child,
    said: PathBuf,
    until: Instant,
}

/// How a job ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) said: String,
}

impl Job {
    /// Starts a command; what it says goes to a file of this name.
    pub(super) fn start(command: &mut Command, name: &str) -> Result<Job> {
        let said = PathBuf::from(format!("/run/bed/{name}.said"));
        let file = fs::File::create(&said)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Job { child, said, until: Instant::now() + DEADLINE })
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.said).unwrap_or_default()).into_owned()
    }

    /// Waits until something is so; fails when the job ends before.
    pub(super) fn until(&mut self, what: &str, is_so: impl Fn(&str) -> bool) -> Result<()> {
        loop {
            if is_so(&self.said()) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the job ended ({status}) before {what}: {}", self.said());
            }
            ensure!(Instant::now() < self.until, "not within {DEADLINE:?}: {what}: {}", self.said());
            sleep(PULSE);
        }
    }

    /// Whether it is under way.
    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    pub(super) fn end(mut self) -> Result<Ended> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Ended { code: status.code(), said: self.said() });
            }
            ensure!(Instant::now() < self.until, "not ended within {DEADLINE:?}: {}", self.said());
            sleep(PULSE);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// It ended well and said all of this.
    pub(super) fn well(&self, words: &[&str]) -> Result<()> {
        ensure!(self.code == Some(0), "ended with {:?}: {}", self.code, self.said);
        self.says(words)
    }

    /// It said all of this.
    pub(super) fn says(&self, words: &[&str]) -> Result<()> {
        match words.iter().find(|words| !self.said.contains(**words)) {
            None => Ok(()),
            Some(missing) => bail!("nothing about '{missing}' in: {}", self.said),
        }
    }
}

/// Losses by step, of those that a run wrote in these folders; of a step that was done twice, the last. Which of them continued another's
/// work is not known, so that the same step must have the same loss everywhere.
pub(super) fn losses(runs: &[PathBuf]) -> Result<BTreeMap<u64, String>> {
    let mut found = BTreeMap::new();
    for run in runs {
        let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
        let mut own = BTreeMap::new();
        for line in text.lines() {
            if let (Some(step), Some(loss)) = (field(line, "step"), field(line, "loss")) {
                own.insert(step.parse::<u64>()?, loss.to_string());
            }
        }
        for (step, loss) in own {
            let before = found.insert(step, loss.clone());
            ensure!(
                before.as_ref().is_none_or(|before| *before == loss),
                "step {step}: {before:?} and {loss}"
            );
        }
    }
    Ok(found)
}

/// The value of a key in a line of JSON, where it is no text with commas.
pub(super) fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let rest = line.split_once(&format!("\"{name}\":"))?.1;
    rest.split([',', '}']).next()
}

/// Files of tensors of a checkpoint that lies in these folders, each whole wherever it is.
pub(super) fn tensors(checkpoints: &[PathBuf]) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for folder in checkpoints {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for file in entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "safetensors")) {
            let (name, bytes) = (file.file_name().to_string_lossy().into_owned(), fs::read(file.path())?);
            let before = found.insert(name.clone(), bytes.clone());
            ensure!(
                before.is_none_or(|before| before == bytes),
                "two hosts have different bytes in '{name}'"
            );
        }
    }
    ensure!(!found.is_empty(), "no file of tensors in {checkpoints:?}");
    Ok(found)
}

/// A run has the curve and the last checkpoint of another one.
pub(super) fn same(runs: &[PathBuf], whole: &Path, last: &str) -> Result<()> {
    let (here, there) = (losses(runs)?, losses(&[whole.to_path_buf()])?);
    ensure!(!here.is_empty() && here == there, "the losses differ: {here:?} and {there:?}");
    let folders: Vec<PathBuf> = runs.iter().map(|run| run.join(last)).collect();
    ensure!(tensors(&folders)? == tensors(&[whole.join(last)])?, "the tensors of '{last}' differ");
    Ok(())
}
