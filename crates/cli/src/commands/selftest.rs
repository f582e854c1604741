//! `planaria selftest`: compares a device with the host, operation by operation.

use crate::exit::Exit;
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use planaria::array::Device;
use planaria::array::selftest::{Plan, run as compare};
use std::path::PathBuf;
use std::time::Duration;

/// Compare a device with the host, operation by operation; exits 1 when they differ
#[derive(Debug, clap::Args)]
#[command(after_help = "Operations that the device does not have are counted as missing, not as wrong.")]
pub(crate) struct Args {
    /// The device to test
    #[arg(long, value_name = "DEVICE", default_value = "cuda:0")]
    device: Device,
    /// Only families whose name starts with this
    #[arg(long, value_name = "NAME")]
    family: Option<String>,
    /// Start no case after this many minutes
    #[arg(long, value_name = "NUMBER")]
    minutes: Option<f64>,
    /// File to write the outcome to, as JSON
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let limit = args.minutes.map(|minutes| Duration::from_secs_f64(minutes.max(0.0) * 60.0));
    let plan = Plan { device: args.device, family: args.family.clone(), limit };
    let mut report = compare(&plan);
    for beside in [planaria::tensor::selftest::run, planaria::comm::selftest::run] {
        let left = limit.map(|limit| limit.saturating_sub(Duration::from_secs_f64(report.seconds)));
        beside(&Plan { limit: left, ..plan.clone() }, &mut report);
    }
    let about = [("version", env!("CARGO_PKG_VERSION").to_string())];
    if let Some(path) = &args.record {
        let write = std::fs::write(path, report.json(&about));
        write.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let text = if terminal.json { report.json(&about) } else { report.text() };
    terminal.line(text.trim_end())?;
    Ok(if report.is_clean() { Exit::Success } else { Exit::Negative })
}
