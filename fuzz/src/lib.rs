//! Every parser under random and damaged input: an error or a value, never a panic, a hang or a large allocation.
//!
//! A [`Target`] is a function of bytes and the files its inputs grow from. [`attack`] replays these files, then
//! mutations of them, the same in every run of one seed; `cargo xtask fuzz` goes on for as long as you like.

mod folders;
mod frames;
mod inputs;
mod mutate;
mod parsers;
mod requests;
mod runs;
mod words;

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
        seeds: &[
            "../testdata/merge/cases/breadcrumbs_ties-f32/recipe.yml",
            "../testdata/merge/cases/moe-qwen-shared/recipe.yml",
            "../testdata/merge/cases/multi-two-stage/recipe.yml",
            "../testdata/merge/cases/paddle-ties/merge_config.json",
            "../testdata/merge/cases/raw-linear-intersection/recipe.yml",
        ],
        runs: 500,
    },
    Target { name: "settings", run: parsers::settings, seeds: &["../examples/quickstart.toml"], runs: 1500 },
    Target { name: "costs", run: runs::costs, seeds: &["../examples/cluster/costs.toml"], runs: 1500 },
    Target {
        name: "documents",
        run: inputs::documents,
        seeds: &[
            "documents/none.parquet",
            "documents/snappy.parquet",
            "documents/lines.jsonl.gz",
            "documents/lines.jsonl.zst",
            "documents/table.csv",
        ],
        runs: 1500,
    },
    Target {
        name: "model",
        run: inputs::model,
        seeds: &[
            "merge/models/tok-base/config.json",
            "embeddings/models/mean_v6/config.json",
            "qwen2-vl/model/tiny_a/config.json",
        ],
        runs: 3000,
    },
    Target { name: "onnx", run: parsers::onnx, seeds: &["paddle-programs/onnx/mlp.onnx"], runs: 1500 },
    Target {
        name: "patch",
        run: parsers::patch,
        seeds: &[
            "../crates/program/src/paddle/patches/2.json",
            "../crates/program/src/paddle/patches/4.json",
        ],
        runs: 1500,
    },
    Target { name: "peer", run: frames::peer, seeds: &[], runs: 150 },
    Target {
        name: "picture",
        run: inputs::picture,
        seeds: &["qwen2-vl/preprocess/bit_61x33.png", "qwen2-vl/preprocess/palette_100x40.png"],
        runs: 2000,
    },
    Target {
        name: "preprocessor",
        run: inputs::preprocessor,
        seeds: &["qwen2-vl/model/tiny_a/preprocessor_config.json"],
        runs: 6000,
    },
    Target { name: "row", run: inputs::row, seeds: &[], runs: 1500 },
    Target { name: "run", run: runs::run, seeds: &[], runs: 1500 },
    Target {
        name: "sentences",
        run: inputs::sentences,
        seeds: &[
            "embeddings/models/mean_v6/modules.json",
            "embeddings/models/mean_v6/config_sentence_transformers.json",
            "embeddings/models/mean_v6/1_Pooling/config.json",
        ],
        runs: 60,
    },
    Target {
        name: "template",
        run: inputs::template,
        seeds: &["sft/templates/chatml_generation.jinja", "sft/templates/llama3_training.jinja"],
        runs: 1500,
    },
    Target {
        name: "tokenizer",
        run: inputs::tokenizer,
        seeds: &[
            "merge/models/tok-base/tokenizer.json",
            "tokenizers/bpe_user.model",
            "tokenizers/unigram.model",
        ],
        runs: 1000,
    },
    Target {
        name: "tokenizer_config",
        run: inputs::tokenizer_config,
        seeds: &["merge/models/tok-base/tokenizer_config.json"],
        runs: 500,
    },
    Target { name: "tokens", run: inputs::tokens, seeds: &[], runs: 3000 },
    Target { name: "answer", run: requests::answer, seeds: &[], runs: 1000 },
    Target { name: "arguments", run: words::arguments, seeds: &[], runs: 1000 },
    Target { name: "bucket", run: words::bucket, seeds: &[], runs: 20000 },
    Target {
        name: "converted",
        run: folders::converted,
        seeds: &["formats/unified/config.json", "merge/models/tok-base/config.json"],
        runs: 500,
    },
    Target {
        name: "distcp",
        run: folders::distcp,
        seeds: &["paddle-checkpoints/tp2/0_0.distcp", "paddle-checkpoints/tp2_safetensors/0_0.safetensors"],
        runs: 1500,
    },
    Target { name: "kernels", run: words::kernels, seeds: &[], runs: 3000 },
    Target {
        name: "mapping",
        run: words::mapping,
        seeds: &["paddle-checkpoints/hf_qwen2_tiny/aoa_load.json"],
        runs: 3000,
    },
    Target {
        name: "marks",
        run: folders::marks,
        seeds: &["program-folders/form-1/COMMIT", "program-folders/form-1/manifest.json"],
        runs: 1500,
    },
    Target {
        name: "merged",
        run: folders::merged,
        seeds: &[
            "merge/models/tok-a/config.json",
            "merge/models/tok-a/tokenizer.json",
            "merge/models/tok-a/tokenizer_config.json",
        ],
        runs: 150,
    },
    Target { name: "names", run: folders::names, seeds: &[], runs: 6000 },
    Target {
        name: "pairs",
        run: inputs::pairs,
        seeds: &["tokenizers/pairs/vocab.json", "tokenizers/pairs/merges.txt"],
        runs: 500,
    },
    Target { name: "places", run: words::places, seeds: &[], runs: 20000 },
    Target { name: "products", run: words::products, seeds: &[], runs: 20000 },
    Target { name: "prompts", run: inputs::prompts, seeds: &[], runs: 1500 },
    Target { name: "request", run: requests::request, seeds: &[], runs: 1000 },
    Target {
        name: "saved",
        run: folders::saved,
        seeds: &[
            "formats/p2.pdparams",
            "formats/p4.pdparams",
            "formats/p5.pdparams",
            "formats/state.pdopt",
            "formats/cut.pdparams",
        ],
        runs: 1500,
    },
    Target { name: "schedule", run: words::schedule, seeds: &[], runs: 6000 },
    Target {
        name: "sharded",
        run: folders::sharded,
        seeds: &["torch-dcp/hf_sharded2/shard-00001-model-00001-of-00001.safetensors"],
        runs: 3000,
    },
    Target {
        name: "unified",
        run: folders::unified,
        seeds: &[
            "formats/unified/model.safetensors.index.json",
            "formats/unified/optimizer.safetensors.index.json",
        ],
        runs: 1500,
    },
    Target { name: "text", run: parsers::text, seeds: &[], runs: 20000 },
    Target { name: "url", run: parsers::url, seeds: &[], runs: 20000 },
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
    let own = paths.iter().map(|path| fs::read(path).expect("a file of the corpus"));
    own.chain(target.seeds.iter().map(|name| seed(name))).collect()
}

/// A file under `testdata`.
fn seed(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(name);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Runs `read` on a folder with these files. A target's thread keeps its folder, so that a run costs the writing and no more.
fn with_files(files: &[(&str, &[u8])], read: impl FnOnce(&Path)) {
    thread_local! {
        static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder");
    }
    FOLDER.with(|folder| {
        for (name, bytes) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap_or(folder.path())).expect("a folder");
            // Some file systems bring a file that was cut to nothing and written again to the disk at once.
            let _ = fs::remove_file(&path);
            fs::write(path, bytes).expect("a file");
        }
        read(folder.path());
    });
}
