//! Kind `embeddings`: poolings, losses, metrics, folders of sentence-transformers, and whole updates of contrastive training.

mod functions;
mod metrics;
mod models;
mod training;

use crate::cases::{Outcome, Verdict, each_line};
use crate::values::Case;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    let lines =
        path.is_file() || path.join("functions.jsonl.gz").is_file() || path.join("functions.jsonl").is_file();
    let mut outcome = match lines {
        true => each_line(path, |line| verdict(check(line)))?,
        false => Outcome::default(),
    };
    for (folder, check) in
        [("models", models::check as fn(&Path) -> Result<()>), ("training", training::check)]
    {
        for case in folders(&path.join(folder))? {
            let name = format!("{folder}/{}", case.file_name().unwrap_or_default().to_string_lossy());
            outcome.add(&name, verdict(check(&case)));
        }
    }
    if outcome.passed + outcome.failed == 0 {
        bail!("no case in {}", path.display());
    }
    Ok(outcome)
}

pub(crate) fn verdict(result: Result<()>) -> Verdict {
    match result {
        Ok(()) => Verdict::Passed,
        Err(error) => Verdict::Failed(format!("{error:#}")),
    }
}

/// The folders in a folder, in order; none where it is missing.
pub(crate) fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut all: Vec<PathBuf> = entries.collect::<std::io::Result<_>>()?;
    all.retain(|path| path.is_dir());
    all.sort();
    Ok(all)
}

fn check(line: &str) -> Result<()> {
    let case: Case = serde_json::from_str(line).context("reading the case")?;
    let found = match case.function.as_str() {
        "pooling" => functions::pooling(&case),
        "normalize" => functions::normalize(&case),
        "similarity" => functions::similarity(&case),
        "info_nce" => functions::info_nce(&case),
        "grouped_info_nce" => functions::grouped(&case),
        "info_nce_masked" => functions::masked(&case),
        "matryoshka" => functions::nested(&case),
        "pair_loss" => functions::pairs(&case),
        "triplet" => functions::triplet(&case),
        "mine_negatives" => metrics::mining(&case),
        "retrieval_metrics" => metrics::retrieval(&case),
        "correlation" => metrics::correlation(&case),
        other => bail!("unknown function '{other}'"),
    };
    found.with_context(|| case.id.clone())
}
