//! What a plan says against what a real run does: bytes sent in a step, counted call by call, and what is refused.

use planaria_comm::{Sent, Tally, metered, threads};
use planaria_nn::models::Models;
use planaria_train::Trainer;
use planaria_train::config::{Config, Sources};
use planaria_train::event::{Event, Observer};
use planaria_train::plan::{Plan, PlanOptions, model_of};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Bytes sent by call.
type Counts = BTreeMap<String, u64>;

/// What a rank has sent, by call as plans name it.
fn counts(tally: &Tally) -> Counts {
    let mut counts = Counts::new();
    for Sent { call, bytes, .. } in tally.sent() {
        *counts.entry(call.replace('_', "-")).or_default() += bytes;
    }
    counts
}

const EXPERTS: &[&str] = &[
    "mesh=ep=2",
    "model.kind=qwen2_moe",
    "model.num_experts=4",
    "model.num_experts_per_tok=2",
    "model.moe_intermediate_size=64",
    "model.shared_expert_intermediate_size=64",
];

const BASE: &str = "
    [model]
    hidden_size = 64
    intermediate_size = 128
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 2
    vocab_size = 512
    [data]
    sequence = 64
    [train]
    global_batch = 8
    micro_batch = 2
    [checkpoint]
    resume = false
    final_save = false
";

fn config(folder: &Path, changes: &[&str]) -> Config {
    let text = folder.join("text.txt");
    std::fs::write(&text, "all work and no play makes a dull run ".repeat(400)).unwrap();
    let runs = folder.join("runs");
    let base = format!("{BASE}\n[log]\ndir = {runs:?}\n[[data.source]]\npath = {text:?}\n");
    Sources::text("config", &base).set(changes.iter().map(ToString::to_string)).resolve().unwrap().config
}

/// What each rank sends in one step: a run of two steps less a run of one.
fn sent(changes: &[&str], ranks: usize) -> Vec<Counts> {
    let run = |steps: u64| {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path(), changes);
        config.train.steps = steps;
        config.optim.horizon = Some(2);
        let trainer = Trainer::new(config);
        threads::run(ranks, |comm| {
            let (comm, tally) = metered(comm);
            trainer.run_on(comm).unwrap();
            counts(&tally)
        })
    };
    let (one, two) = (run(1), run(2));
    let less = |(two, one): (Counts, &Counts)| {
        two.into_iter()
            .map(|(name, bytes)| (name.clone(), bytes - one.get(&name).copied().unwrap_or(0)))
            .collect()
    };
    two.into_iter().zip(&one).map(less).collect()
}

#[test]
fn a_step_sends_what_its_plan_says() {
    for changes in [
        &["mesh=dp=2", "train.zero=0"][..],
        &["mesh=dp=2", "train.zero=1"],
        &["mesh=dp=2", "train.zero=3"],
        &["mesh=dp=2", "train.zero=3", "train.recompute=full"],
        &["mesh=dp=2", "train.zero=1", "train.reduce=step", "train.precision=bf16"],
        &["mesh=pp=2"],
        &["mesh=pp=2", "model.tie_word_embeddings=true"],
        &["mesh=tp=2"],
        &["mesh=tp=2", "train.sequence_parallel=true"],
        &["mesh=tp=2", "train.recompute=full"],
        EXPERTS,
        &[
            "mesh=tp=2",
            "train.recompute=blocks",
            "train.recompute_blocks=[1]",
            "train.sequence_parallel=true",
        ],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), changes);
        let model = model_of(&config, &Models::default()).unwrap();
        let plan = Plan::new(&config, &*model, 2, &PlanOptions::default()).unwrap();
        for (rank, real) in sent(changes, 2).into_iter().enumerate() {
            let stage = if plan.stages.len() == 1 { &plan.stages[0] } else { &plan.stages[rank] };
            let mut told = Counts::new();
            stage.traffic.iter().for_each(|t| *told.entry(t.call.to_string()).or_default() += t.bytes);
            for name in ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send"] {
                let [told, real] = [&told, &real].map(|counts| counts.get(name).copied().unwrap_or(0));
                // Losses, norms and agreements are small and not planned.
                let slack = real / 50 + 24_000;
                assert!(
                    told.abs_diff(real) <= slack,
                    "{changes:?} rank {rank} {name}: told {told}, sent {real}"
                );
            }
        }
    }
}

/// All ranks know the layouts of a model, so none tells the others which boxes of its weights it wants.
#[test]
fn a_start_from_weights_gathers_no_lists() {
    let folder = tempfile::tempdir().unwrap();
    let deep = "model.num_hidden_layers=8";
    let mut first = config(folder.path(), &[deep, "checkpoint.final_save=true", "name=first"]);
    first.train.steps = 1;
    let begun = Trainer::new(first).run(None).unwrap();
    let init = folder.path().join("runs/first").join(begun.checkpoint.unwrap());
    let init = format!("model.init={}", init.display());
    for changes in [&["mesh=dp=2", "train.zero=3"][..], &["mesh=tp=2"], &["mesh=pp=2"]] {
        let gathered = |more: &[&str]| {
            let mut config = config(folder.path(), &[&[deep, "name=second"], changes, more].concat());
            config.train.steps = 1;
            let trainer = Trainer::new(config);
            let ranks = threads::run(2, |comm| {
                let (comm, tally) = metered(comm);
                trainer.run_on(comm).unwrap();
                counts(&tally).get("all-gather").copied().unwrap_or(0)
            });
            ranks[0]
        };
        let (new, started) = (gathered(&[]), gathered(&[&init]));
        assert!(started < new + 1000, "{changes:?}: {new} bytes without weights, {started} with them");
    }
}

/// Weights that were told as not used.
#[derive(Debug, Default)]
struct Unused(Mutex<Vec<String>>);

impl Observer for Unused {
    fn event(&self, event: &Event) {
        if let Event::Unused { names, .. } = event {
            self.0.lock().unwrap().extend_from_slice(names);
        }
    }
}

#[test]
fn weights_that_the_model_has_no_place_for_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let deep = ["model.num_hidden_layers=4", "model.tie_word_embeddings=true", "checkpoint.final_save=true"];
    let mut first = config(folder.path(), &[&deep[..], &["name=first"]].concat());
    first.train.steps = 1;
    Trainer::new(first).run(None).unwrap();
    let init = format!("model.init={}", folder.path().join("runs/first").display());
    for (layers, mesh, ranks) in [(4, "mesh=dp=1", 1), (2, "mesh=dp=1", 1), (2, "mesh=pp=2", 2)] {
        let layers = format!("model.num_hidden_layers={layers}");
        let mut config =
            config(folder.path(), &["name=second", &init, mesh, &layers, "model.tie_word_embeddings=true"]);
        config.train.steps = 1;
        let told = Arc::new(Unused::default());
        let trainer = Trainer::new(config).observer(told.clone());
        threads::run(ranks, |comm| trainer.run_on(comm).map(drop).unwrap());
        let told = told.0.lock().unwrap();
        let surplus = |name: &String| name.contains(".layers.2.") || name.contains(".layers.3.");
        let expected = if layers.ends_with('4') { 0 } else { 24 };
        assert!(told.iter().all(surplus) && told.len() == expected, "{layers} {mesh}: {told:?}");
    }
}

#[test]
fn prompts_are_for_objectives_whose_model_continues_texts() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = "log.samples.prompts=[\"all\"]";
    model_of(&config(folder.path(), &[prompts]), &Models::default()).unwrap();
    let other = config(folder.path(), &[prompts, "train.objective=contrastive"]);
    let refused = model_of(&other, &Models::default()).unwrap_err().to_string();
    assert!(refused.contains("log.samples") && refused.contains("contrastive"), "{refused}");
}

#[test]
fn a_plan_refuses_what_a_run_refuses() {
    let vee = &["mesh=pp=2", "train.schedule=zbv", "train.chunks=3"];
    for (changes, ranks) in
        [(&["mesh=tp=3"][..], 3), (&["train.chunks=2"], 1), (&["data.sequence=4096"], 1), (vee, 2)]
    {
        let folder = tempfile::tempdir().unwrap();
        let changes = [changes, &["model.max_position_embeddings=2048"]].concat();
        let config = config(folder.path(), &changes);
        let model = model_of(&config, &Models::default()).unwrap();
        let planned = Plan::new(&config, &*model, ranks, &PlanOptions::default()).unwrap_err().to_string();
        assert_eq!(planned, Trainer::new(config).check(ranks).unwrap_err().to_string(), "{changes:?}");
    }
}
