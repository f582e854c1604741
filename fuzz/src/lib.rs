//! Every parser under random and damaged input: an error or a value, never a panic, a hang or a large allocation.
//!
//! A [`Target`] is a function of bytes and the files its inputs grow from. [`attack`] replays these files, then
//! mutations of them, the same in every run of one seed; `cargo xtask fuzz` goes on for as long as you like.

mod mutate;
mod parsers;

use mutate::Mutator;
use std::fs;
use std::path::{Path, PathBuf};

/// A parser, and what its inputs are made from.
#[derive(Debug)]
pub struct Target {
    /// What it is called on the command line, and its folder under `fuzz/corpus`.
    pub name: &'static str,
    /// Parses the bytes and uses what comes of it.
    pub run: fn(&[u8]),
    /// Files and folders under `testdata`, beside those of the corpus.
    pub seeds: &'static [&'static str],
    /// Mutations in the test command: about a second's worth.
    pub runs: u64,
}

/// All parsers that read what others wrote.
pub const TARGETS: &[Target] = &[
    Target { name: "aoa", run: parsers::aoa, seeds: &[], runs: 1500 },
    Target {
        name: "archive",
        run: parsers::archive,
        seeds: &["formats/nested.pt", "formats/deflated.pt", "formats/legacy.pt", "formats/sparse.pt"],
        runs: 6000,
    },
    Target { name: "dcp", run: parsers::dcp, seeds: &["torch-dcp/nested2/.metadata"], runs: 3000 },
    Target {
        name: "index",
        run: parsers::index,
        seeds: &["torch-dcp/hf_consolidated2/model.safetensors.index.json"],
        runs: 6000,
    },
    Target { name: "manifest", run: parsers::manifest, seeds: &[], runs: 6000 },
    Target {
        name: "paddle",
        run: parsers::paddle,
        seeds: &["paddle-checkpoints/tp2/0.metadata"],
        runs: 3000,
    },
    Target {
        name: "pickle",
        run: parsers::pickle,
        seeds: &[
            "formats/p2.pdparams",
            "formats/p3.pdparams",
            "formats/p4.pdparams",
            "formats/p5.pdparams",
            "formats/state.pdopt",
            "torch-dcp/nested2/.metadata",
        ],
        runs: 20000,
    },
    Target {
        name: "parameters",
        run: parsers::parameters,
        seeds: &["paddle-programs/mlp.pdiparams"],
        runs: 6000,
    },
    Target {
        name: "program",
        run: parsers::program,
        seeds: &[
            "paddle-programs/mlp.json",
            "paddle-programs/loop_while.json",
            "paddle-programs/dist/shard_matmul.json",
        ],
        runs: 1500,
    },
    Target {
        name: "safetensors",
        run: parsers::safetensors,
        seeds: &[
            "formats/state.pdopt.expected.safetensors",
            "torch-dcp/hf_consolidated2/model-00001-of-00002.safetensors",
        ],
        runs: 10000,
    },
    Target {
        name: "adapter",
        run: parsers::adapter,
        seeds: &[
            "../testdata/lora/adapters/patterns/adapter_config.json",
            "../testdata/lora/adapters/tied/adapter_config.json",
        ],
        runs: 2000,
    },
    Target {
        name: "recipe",
        run: parsers::recipe,
        seeds: &["../testdata/merge/cases/breadcrumbs_ties-f32/recipe.yml"],
        runs: 1500,
    },
    Target { name: "settings", run: parsers::settings, seeds: &["../examples/quickstart.toml"], runs: 1500 },
    Target { name: "text", run: parsers::text, seeds: &[], runs: 20000 },
];

/// An input that made a parser panic.
#[derive(Debug)]
pub struct Crash {
    /// Which run it was; the files come first.
    pub run: u64,
    /// The input.
    pub bytes: Vec<u8>,
}

/// Replays the files of a target and then `runs` mutations of them.
///
/// # Errors
/// The first input that panics.
pub fn attack(target: &Target, runs: u64, seed: u64) -> Result<(), Crash> {
    let corpus = corpus(target);
    let mut mutator = Mutator::new(seed, &corpus);
    let made = (0..runs).map(|_| mutator.draw());
    for (run, bytes) in corpus.iter().cloned().chain(made).enumerate() {
        if std::panic::catch_unwind(|| (target.run)(&bytes)).is_err() {
            return Err(Crash { run: run as u64, bytes });
        }
    }
    Ok(())
}

/// The files a target's inputs grow from, in the order of their names.
pub fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = fs::read_dir(here.join("corpus").join(target.name)).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = own.map(|entry| entry.path()).collect();
    paths.sort();
    paths.extend(target.seeds.iter().map(|name| here.join("../testdata").join(name)));
    paths.iter().filter_map(|path| fs::read(path).ok()).collect()
}
