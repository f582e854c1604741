//! Kind `lora`: answers of peft, `PATH/matching.jsonl`, `PATH/starts.json` and `PATH/cases`, over `PATH/models` and
//! `PATH/adapters`. What a case means follows from the `kind` in its `case.json`.

mod combined;
mod compare;
mod computed;
mod matching;
mod starts;

use crate::cases::{Outcome, Verdict};
use crate::merge::unpack;
use anyhow::{Context, Result, bail, ensure};
use compare::Tensors;
use serde_json::Value;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    let unpacked = unpack::unpacked(path)?;
    let root = unpacked.path();
    let mut outcome = Outcome::default();
    let mut judge = |name: &str, check: &dyn Fn() -> Result<Verdict>| {
        let verdict = match catch_unwind(AssertUnwindSafe(check)) {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(error)) => Verdict::Failed(format!("{error:#}")),
            Err(_) => Verdict::Failed("panicked".to_string()),
        };
        outcome.add(name, verdict);
    };
    if let Ok(rows) = fs::read_to_string(root.join("matching.jsonl")) {
        for (number, line) in rows.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            judge(&format!("matching {}", number + 1), &|| matching::check(root, line));
        }
    }
    if let Ok(text) = fs::read(root.join("starts.json")) {
        let rows: Vec<Value> = serde_json::from_slice(&text)?;
        for (number, row) in rows.iter().enumerate() {
            judge(&format!("start {}", number + 1), &|| starts::check(row));
        }
    }
    let cases = root.join("cases");
    let entries = fs::read_dir(&cases).with_context(|| format!("reading {}", cases.display()))?;
    let mut folders: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<_>>()?;
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    ensure!(!folders.is_empty(), "no case in {}", cases.display());
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        judge(&name, &|| check(root, &folder));
    }
    Ok(outcome)
}

/// A case with its folder.
struct Case<'a> {
    root: &'a Path,
    about: Value,
    tensors: Tensors,
}

impl Case<'_> {
    fn path(&self, field: &str) -> Result<PathBuf> {
        let text = self.about[field].as_str().with_context(|| format!("`{field}` is missing"))?;
        Ok(self.root.join(text))
    }

    fn model(&self) -> Result<PathBuf> {
        self.path("model")
    }
}

fn check(root: &Path, folder: &Path) -> Result<Verdict> {
    let about: Value = serde_json::from_slice(&fs::read(folder.join("case.json"))?)?;
    let file = folder.join("tensors.safetensors");
    let tensors = if file.is_file() { Tensors::read(&file)? } else { Tensors::default() };
    let case = Case { root, about, tensors };
    match case.about["kind"].as_str().unwrap_or_default() {
        "train" => computed::train(&case),
        "forward" => computed::forward(&case),
        "multi" => computed::several(&case),
        "init" => computed::init(&case),
        "merge" => combined::merge(&case),
        "combine" => combined::combine(&case),
        other => bail!("unknown kind '{other}'"),
    }
}
