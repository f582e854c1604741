//! The memory that a plan tells against what the ranks of a real run take at most: every ZeRO stage, one to four data ranks, tensor
//! ranks, pipelines, accumulation, recomputing, narrow weights.

use planaria_comm::threads;
use planaria_nn::models::Models;
use planaria_train::Trainer;
use planaria_train::config::{Config, Sources};
use planaria_train::plan::{Plan, PlanOptions, model_of};
use std::path::Path;

/// How far plan and measurement may lie apart.
const BOUND: f64 = 0.05;

const BASE: &str = "
    [model]
    kind = \"llama\"
    hidden_size = 128
    intermediate_size = 384
    num_hidden_layers = 6
    num_attention_heads = 4
    num_key_value_heads = 2
    vocab_size = 1024
    [data]
    sequence = 64
    [train]
    steps = 2
    global_batch = 16
    micro_batch = 4
    [checkpoint]
    resume = false
    final_save = false
";

fn config(folder: &Path, changes: &[&str]) -> Config {
    let text = folder.join("text.txt");
    std::fs::write(&text, "all work and no play makes a dull run ".repeat(400)).unwrap();
    let runs = folder.join("runs");
    let base =
        format!("{BASE}\n[log]\ndir = {runs:?}\ntensorboard = false\n[[data.source]]\npath = {text:?}\n");
    let pairs = folder.join("pairs.jsonl");
    let pair = |i: usize| format!("{{\"query\": \"{i:0>31}\", \"positive\": \"{:0>31}\"}}\n", i * i);
    std::fs::write(&pairs, (0..64).map(pair).collect::<String>()).unwrap();
    let changes = changes.iter().map(|change| change.replace("PAIRS", &pairs.display().to_string()));
    Sources::text("config", &base).set(changes).resolve().unwrap().config
}

/// What the ranks of each stage need by the plan, and what the one that took most took.
fn planned_and_measured(changes: &[&str], ranks: usize) -> Vec<(u64, u64)> {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), changes);
    let model = model_of(&config, &Models::default()).unwrap();
    let plan = Plan::new(&config, &*model, ranks, &PlanOptions::default()).unwrap();
    let trainer = Trainer::new(config);
    let peaks = threads::run(ranks, |comm| trainer.run_on(comm).unwrap().peak_bytes);
    let each = ranks / plan.stages.len();
    let most = |stage: usize| peaks[stage * each..][..each].iter().copied().max().unwrap_or(0);
    plan.stages.iter().enumerate().map(|(i, stage)| (stage.memory.total, most(i))).collect()
}

#[test]
fn a_run_takes_the_memory_that_its_plan_tells() {
    let runs: &[(&[&str], usize)] = &[
        (&[], 1),
        (&["train.global_batch=4"], 1),
        (&["train.precision=bf16"], 1),
        (&["train.recompute=full"], 1),
        (&["train.zero=0"], 2),
        (&["train.zero=1"], 2),
        (&["train.zero=2", "train.reduce=step"], 2),
        (&["train.zero=1", "train.reduce=step"], 2),
        (&["train.zero=3"], 2),
        (&["train.zero=0"], 4),
        (&["train.zero=1"], 4),
        (&["train.zero=2"], 4),
        (&["train.zero=3"], 4),
        (&["train.zero=1", "train.global_batch=8"], 2),
        (&["train.zero=1", "train.precision=bf16"], 2),
        (&["train.zero=1", "train.shard=parameter"], 2),
        (&["train.zero=1", "train.bucket_bytes=65536"], 2),
        (&["mesh=tp=2"], 2),
        (&["mesh=tp=2", "train.sequence_parallel=true"], 2),
        (&["mesh=dp=2 tp=2", "train.zero=1"], 4),
        (&["mesh=pp=2"], 2),
        (&["mesh=pp=2 dp=2", "train.zero=1"], 4),
    ];
    let mut far = Vec::new();
    for (changes, ranks) in runs {
        for (stage, (told, took)) in planned_and_measured(changes, *ranks).into_iter().enumerate() {
            let off = told as f64 / took as f64 - 1.0;
            let line = format!(
                "{changes:?} on {ranks}, stage {stage}: told {told}, took {took}, {:+.1} %",
                off * 100.0
            );
            eprintln!("{line}");
            if off.abs() > BOUND {
                far.push(line);
            }
        }
    }
    assert!(far.is_empty(), "{}", far.join("\n"));
}

/// Texts that fill their sequences, so that what is planned for is there.
#[test]
fn embeddings_take_the_memory_that_their_plan_tells() {
    let set = ["train.objective=contrastive", "data.source.path=PAIRS", "data.texts.append_eos=true"];
    for (changes, ranks) in [
        (&["train.micro_batch=4"][..], 1),
        (&["train.micro_batch=16"], 1),
        (&["train.micro_batch=4", "train.zero=1"], 2),
        (&["train.micro_batch=4", "mesh=tp=2"], 2),
    ] {
        for (told, took) in planned_and_measured(&[&set[..], changes].concat(), ranks) {
            let off = told as f64 / took as f64 - 1.0;
            eprintln!("{changes:?} on {ranks}: told {told}, took {took}, {:+.1} %", off * 100.0);
            assert!(off.abs() < 2.0 * BOUND, "{changes:?} on {ranks}: told {told}, took {took}");
        }
    }
}
