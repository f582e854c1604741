//! `planaria-fuzz TARGET --runs N --seed S`: attacks one parser and keeps the input that broke it.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use planaria_fuzz::{TARGETS, attack};

#[derive(Parser)]
#[command(name = "cargo xtask fuzz", about = "Attack one parser with mutations of known inputs")]
struct Args {
    /// The parser, or `all`
    target: String,
    /// How many mutations
    #[arg(long, default_value_t = 1_000_000)]
    runs: u64,
    /// Where the mutations start; another seed gives other inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let chosen: Vec<_> =
        TARGETS.iter().filter(|target| args.target == "all" || target.name == args.target).collect();
    if chosen.is_empty() {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        bail!("there is no parser `{}`; there are {}", args.target, names.join(", "));
    }
    let mut code = ExitCode::SUCCESS;
    for target in chosen {
        match attack(target, args.runs, args.seed) {
            Ok(()) => println!("{}: {} inputs, no panic", target.name, args.runs),
            Err(crash) => {
                let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
                let path = folder.join(format!("crash-{}-{}", args.seed, crash.run));
                std::fs::create_dir_all(&folder).context("cannot keep the input")?;
                std::fs::write(&path, &crash.bytes).context("cannot keep the input")?;
                println!("{}: input {} panics; kept as {}", target.name, crash.run, path.display());
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
