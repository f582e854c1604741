//! `cargo xtask bench`: builds the benchmark package, finds torch, and runs the driver.

use std::path::Path;

use anyhow::Result;
use clap::Args;

use crate::{peers, process};

/// What to time, and how.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only these cases or families, separated by commas; such a run is not recorded
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Numbers of threads to run with
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Milliseconds each worker spends on a case in one round
    #[arg(long, default_value_t = 300)]
    ms: u64,
    /// Rounds over all cases
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Hold us and torch to these instructions: portable, avx2, avx512 or amx
    #[arg(long)]
    cpu: Option<String>,
}

/// Runs the driver; answers whether it ended well.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    let mut build =
        process::cargo(root, ["build", "--release", "--quiet", "--package", "planaria-bench", "--bins"]);
    if !process::run(&mut build).success {
        return Ok(false);
    }
    let threads: Vec<_> = options.threads.iter().map(usize::to_string).collect();
    let mut driver = process::cargo(
        root,
        ["run", "--release", "--quiet", "--package", "planaria-bench", "--bin", "planaria-bench", "--"],
    );
    driver.args(["--threads", &threads.join(","), "--ms", &options.ms.to_string()]);
    driver.args(["--rounds", &options.rounds.to_string()]);
    if let Some(path) = &options.cpu {
        driver.args(["--cpu", path]);
    }
    if !options.cases.is_empty() {
        driver.args(["--cases", &options.cases.join(",")]);
    }
    match peers::torch_python(root) {
        Ok(python) => driver.arg("--python").arg(python),
        Err(reason) => driver.args(["--no-torch", &reason]),
    };
    Ok(process::run(&mut driver).success)
}
