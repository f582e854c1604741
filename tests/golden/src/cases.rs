//! Reading case files and counting what became of each case.

use anyhow::{Context, Result, bail};
use flate2::read::MultiGzDecoder;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Failures kept for printing.
const KEPT: usize = 20;

/// What became of one case.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Our answer is right.
    Passed,
    /// Our answer passed every check that needs no reference; why the reference was left aside.
    PassedAlone(&'static str),
    /// Nothing could be checked, and why.
    Skipped(&'static str),
    /// Our answer is wrong, and how.
    Failed(String),
}

/// Counts over all cases.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Cases answered rightly.
    pub passed: usize,
    /// Cases that passed every check that needs no reference, where there was none to compare with.
    pub alone: usize,
    /// Cases answered wrongly.
    pub failed: usize,
    /// Cases not checked at all.
    pub skipped: usize,
    /// The first failures, one text each.
    pub failures: Vec<String>,
    /// Cases that were skipped, or checked without the reference, by reason.
    pub reasons: BTreeMap<&'static str, usize>,
    /// What else the kind has to say, one line each.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Counts one case; `name` says where it stands.
    pub fn add(&mut self, name: &str, verdict: Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::PassedAlone(reason) => {
                self.alone += 1;
                *self.reasons.entry(reason).or_default() += 1;
            }
            Verdict::Skipped(reason) => {
                self.skipped += 1;
                *self.reasons.entry(reason).or_default() += 1;
            }
            Verdict::Failed(how) => {
                self.failed += 1;
                if self.failures.len() < KEPT {
                    self.failures.push(format!("{name}: {how}"));
                }
            }
        }
    }
}

/// Runs `check` on every line of the case files at `path`. A line that is not JSON, or a check that
/// panics, is a failed case.
pub fn each_case(path: &Path, check: impl Fn(&Value) -> Verdict) -> Result<Outcome> {
    each_line(path, |line| match serde_json::from_str::<Value>(line) {
        Ok(case) => check(&case),
        Err(error) => Verdict::Failed(format!("not JSON: {error}")),
    })
}

/// The same with the text of every line.
pub(crate) fn each_line(path: &Path, check: impl Fn(&str) -> Verdict) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for file in case_files(path)? {
        let shown = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        for (number, line) in open(&file)?.lines().enumerate() {
            let line = line.with_context(|| format!("reading {}", file.display()))?;
            if line.trim().is_empty() {
                continue;
            }
            let verdict = catch_unwind(AssertUnwindSafe(|| check(&line)));
            let verdict = verdict.unwrap_or_else(|_| Verdict::Failed("panicked".to_string()));
            outcome.add(&format!("{shown}:{}", number + 1), verdict);
        }
    }
    Ok(outcome)
}

/// Runs `check` on every entry of the files at `path` whose contents are one JSON list each.
pub(crate) fn each_entry(path: &Path, check: impl Fn(&Value) -> Verdict) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for file in files(path, &[".json", ".json.gz"])? {
        let shown = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        let entries: Vec<Value> =
            serde_json::from_reader(open(&file)?).with_context(|| format!("reading {}", file.display()))?;
        for (number, entry) in entries.iter().enumerate() {
            let verdict = catch_unwind(AssertUnwindSafe(|| check(entry)));
            let verdict = verdict.unwrap_or_else(|_| Verdict::Failed("panicked".to_string()));
            outcome.add(&format!("{shown}[{number}]"), verdict);
        }
    }
    Ok(outcome)
}

fn case_files(path: &Path) -> Result<Vec<PathBuf>> {
    files(path, &[".jsonl", ".jsonl.gz"])
}

/// The file, or the files of the folder with these endings.
fn files(path: &Path, endings: &[&str]) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let is_case = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        endings.iter().any(|ending| name.ends_with(ending))
    };
    let entries = std::fs::read_dir(path).with_context(|| format!("reading {}", path.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|e| e.map(|e| e.path())).collect::<std::io::Result<_>>()?;
    files.retain(is_case);
    files.sort();
    if files.is_empty() {
        bail!("no {} file in {}", endings.join(" or "), path.display());
    }
    Ok(files)
}

fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let packed = path.extension().is_some_and(|e| e == "gz");
    let reader: Box<dyn Read> = if packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    Ok(Box::new(BufReader::new(reader)))
}
