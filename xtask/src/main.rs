//! The project's own commands: `cargo xtask test | tidy | golden | hosts | install | kernels | asan | fuzz | python | wheel | array-api | bench | bench-python`.

mod array_api;
mod asan;
mod azure;
mod bench;
mod browser;
mod compilers;
mod free_threaded;
mod golden;
mod hosts;
mod install;
mod kernels;
#[path = "../../crates/comm/libclang.rs"]
mod libclang;
mod licences;
mod mpi;
mod package_bench;
mod peers;
mod process;
mod python;
mod s3;
mod suite;
mod summary;
mod tidy;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands", disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run what a change must pass: format, lints, tidy, tests, docs, examples; then, while there is time, additional
    /// steps: Python, MPI, programs of others, buckets, hosts, other compilers and instruction sets, sanitizer
    Test {
        /// Start no additional step once this many minutes have passed; those left are listed as skipped
        #[arg(long, value_name = "MINUTES", default_value_t = 12)]
        within: u32,
    },
    /// Check the rules of the source tree: floors, sizes, first lines, unsafe, macros, paths
    Tidy,
    /// Run the oracle cases of one kind from a file or folder
    Golden {
        /// What the cases are about, for example `indexing` or `reshard`
        kind: String,
        /// A golden file, or a folder of fixtures
        path: PathBuf,
        /// Where cases of the kind `sft` find tokenizers and templates that are not beside them
        #[arg(long)]
        assets: Option<PathBuf>,
    },
    /// Run jobs on several hosts, which are namespaces of this machine; needs root and iproute2
    Hosts(hosts::Options),
    /// Run every `cargo install` line of the docs, into target/installed
    Install,
    /// Compile every CUDA kernel for sm_90a into target/kernels, and run them on an emulated device
    Kernels,
    /// Run the tests of the crates with unsafe code under the address sanitizer
    Asan,
    /// Attack a parser with mutations of known inputs: a name or `all`, then `--runs N --seed S`
    Fuzz {
        /// What the fuzzer is told
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Test the Python package, its array API and its module without a lock, and open what we write with torch and its kin
    Python,
    /// Build the wheel for others: optimised, for every Linux since 2014
    Wheel,
    /// Run the suite of the array API standard on the package; `PLANARIA_ARRAY_API_TESTS` names a checkout of it
    ArrayApi,
    /// Time saves, loads and imports of the Python package beside torch and safetensors, and record them under benches/runs
    BenchPython(package_bench::Options),
    /// Time our kernels against torch, in turn, and record the ratios under benches/runs
    Bench(bench::Options),
}

fn main() -> ExitCode {
    if let Some(code) = asan::instrumented() {
        return code;
    }
    let root = repository_root();
    let outcome = match Args::parse().command {
        Command::Test { within } => Ok(suite::run(&root, Duration::from_secs(60 * u64::from(within)))),
        Command::Tidy => tidy::run(&root).map(|report| {
            print!("{report}");
            report.is_clean()
        }),
        Command::Golden { kind, path, assets } => return golden::run(&root, &kind, &path, assets.as_deref()),
        Command::Hosts(options) => {
            let found = if mpi::is_here() { Ok(()) } else { Err(String::new()) };
            hosts::run_alone(&root, mpi::features(&found), &options)
        }
        Command::Install => Ok(install::run_alone(&root)),
        Command::Kernels => Ok(kernels::run_alone(&root)),
        Command::Asan => Ok(asan::run(&root)),
        Command::Fuzz { args } => {
            let fuzz = ["run", "--release", "--quiet", "--bin", "planaria-fuzz", "--"];
            Ok(process::run(process::cargo(&root, fuzz).args(args)).success)
        }
        Command::Python => Ok(python::run_alone(&root)),
        Command::Wheel => Ok(wheel::release(&root)),
        Command::ArrayApi => Ok(array_api::run_alone(&root)),
        Command::BenchPython(options) => package_bench::run(&root, &options),
        Command::Bench(options) => bench::run(&root, &options),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The workspace folder: the parent of this package.
fn repository_root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
