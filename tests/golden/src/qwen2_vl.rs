//! Kind `qwen2-vl`: sizes, frames, positions and windows; pictures as patches; whole models with what they see and say.

mod functions;
mod model;
mod preprocess;

use crate::cases::{Outcome, Verdict, each_line};
use crate::values::Case;
use anyhow::{Context, Result, bail};
use std::path::Path;

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    let has_lines = ["functions.jsonl.gz", "functions.jsonl"].iter().any(|name| path.join(name).is_file());
    let mut outcome = Outcome::default();
    if path.is_file() || has_lines {
        outcome = each_line(path, |line| verdict(check(line)))?;
    }
    if path.join("preprocess/cases.json").is_file() {
        preprocess::each(&path.join("preprocess"), &mut outcome)?;
    }
    let mut models: Vec<_> = match path.join("model").is_dir() {
        true => {
            std::fs::read_dir(path.join("model"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?
        }
        false => Vec::new(),
    };
    models.sort();
    for folder in models.iter().filter(|folder| folder.join("expected").is_dir()) {
        model::each(folder, &mut outcome)?;
    }
    if outcome.passed + outcome.failed == 0 {
        bail!("no case in {}", path.display());
    }
    Ok(outcome)
}

fn verdict(result: Result<()>) -> Verdict {
    match result {
        Ok(()) => Verdict::Passed,
        Err(error) => Verdict::Failed(format!("{error:#}")),
    }
}

fn check(line: &str) -> Result<()> {
    let case: Case = serde_json::from_str(line).context("reading the case")?;
    let found = match case.function.as_str() {
        "smart_resize" => functions::fitting(&case),
        "sample_frames" => functions::frames(&case),
        "mrope_positions" | "mrope_positions_25" => functions::positions(&case),
        "mrope_table" => functions::rotations(&case),
        "vision_layout" => functions::layout(&case),
        "vision_qkv_split" => functions::split(&case),
        "window_index_25" => functions::windows(&case),
        other => bail!("unknown function '{other}'"),
    };
    found.with_context(|| case.id.clone())
}
