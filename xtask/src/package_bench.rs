//! `cargo xtask bench-python`: builds the package as users have it, times it beside torch and safetensors, and keeps the record.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use clap::Args;

use crate::{peers, process, wheel};

/// What to time.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Size of the state in GiB; 2 is what is recorded
    #[arg(long, default_value_t = 2.0)]
    gib: f64,
    /// Rounds over all rows
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// A folder on the disk to be measured, with four times the state free
    #[arg(long, default_value = "target")]
    folder: PathBuf,
    /// A group of rows (saves, loads, reads, background), all by default; may be given again. Nothing is recorded then
    #[arg(long)]
    only: Vec<String>,
}

/// Answers whether every bar held.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    let torch = peers::torch_python(root);
    let python = match wheel::venv(root, &torch) {
        Ok(python) if torch.is_ok() => python,
        Ok(_) => bail!("{}", torch.err().unwrap_or_default()),
        Err(reason) => bail!("{reason}"),
    };
    let core = ["build", "--release", "--quiet", "--package", "planaria-bench", "--bin", "checkpoint"];
    if !wheel::build(root, &python, wheel::Build::Release)
        || !process::run(&mut process::cargo(root, core)).success
    {
        return Ok(false);
    }
    let mut bench = Command::new(&python);
    bench.arg(root.join("benches").join("peers").join("package.py")).arg("--folder").arg(&options.folder);
    bench.args(["--gib", &options.gib.to_string(), "--rounds", &options.rounds.to_string()]);
    bench.args(options.only.iter().flat_map(|group| ["--only", group.as_str()]));
    bench.arg("--rust").arg(root.join("target").join("release").join("checkpoint"));
    // Standard output is the record; progress goes to standard error.
    let ran = bench.current_dir(root).stderr(std::process::Stdio::inherit()).output()?;
    let record = String::from_utf8_lossy(&ran.stdout);
    print!("{record}");
    if options.gib >= 2.0 && options.only.is_empty() && !record.is_empty() {
        let path = root.join("benches").join("runs").join("package.md");
        std::fs::write(&path, record.as_bytes())?;
        eprintln!("recorded in {}; move it to the folder of its day and machine", path.display());
    }
    Ok(ran.status.success())
}
