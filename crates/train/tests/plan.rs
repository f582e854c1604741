//! What a plan says against what a real run does: bytes sent in a step, counted call by call, and what is refused.

use planaria_array::Array;
use planaria_comm::{Call, Comm, Pending, Result, threads};
use planaria_layout::Rank;
use planaria_nn::models::Models;
use planaria_train::Trainer;
use planaria_train::config::{Config, Sources};
use planaria_train::plan::{Plan, PlanOptions, model_of};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Bytes sent by call.
type Counts = BTreeMap<&'static str, u64>;

/// Passes everything on and counts.
#[derive(Debug)]
struct Counted {
    comm: Arc<dyn Comm>,
    counts: Arc<Mutex<Counts>>,
}

impl Counted {
    fn count(&self, call: &Call) {
        let size = self.comm.ranks().len() as u64;
        let bytes = |array: &Array| (array.numel() * array.dtype().size()) as u64;
        let others = |whole: u64| whole / size * (size - 1);
        let (name, sent) = match call {
            Call::AllReduce(c) => ("all-reduce", 2 * others(bytes(&c.send))),
            Call::AllGather(c) => ("all-gather", bytes(&c.send) * (size - 1)),
            Call::ReduceScatter(c) => ("reduce-scatter", others(bytes(&c.send))),
            Call::AllToAll(c) => {
                let own = c.send_counts[self.comm.rank()] * c.send.dtype().size();
                ("all-to-all", bytes(&c.send) - own as u64)
            }
            Call::Send(c) => ("send", bytes(&c.data)),
            _ => ("other", 0),
        };
        *self.counts.lock().unwrap().entry(name).or_default() += sent;
    }

    fn wrap(&self, comm: Arc<dyn Comm>) -> Arc<dyn Comm> {
        Arc::new(Counted { comm, counts: self.counts.clone() })
    }
}

impl Comm for Counted {
    fn rank(&self) -> usize {
        self.comm.rank()
    }
    fn ranks(&self) -> &[Rank] {
        self.comm.ranks()
    }
    fn start(&self, call: Call) -> Result<Pending> {
        self.count(&call);
        self.comm.start(call)
    }
    fn run(&self, call: Call) -> Result<()> {
        self.count(&call);
        self.comm.run(call)
    }
    fn split(&self, groups: &[Vec<Rank>]) -> Result<Option<Arc<dyn Comm>>> {
        Ok(self.comm.split(groups)?.map(|comm| self.wrap(comm)))
    }
    fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>> {
        Ok(self.wrap(self.comm.group(ranks)?))
    }
    fn barrier(&self) -> Result<()> {
        self.comm.barrier()
    }
    fn abort(&self, reason: &str) {
        self.comm.abort(reason);
    }
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
            let counts: Arc<Mutex<Counts>> = Arc::default();
            trainer.run_on(Arc::new(Counted { comm, counts: counts.clone() })).unwrap();
            std::mem::take(&mut *counts.lock().unwrap())
        })
    };
    let (one, two) = (run(1), run(2));
    let less = |(two, one): (Counts, &Counts)| {
        two.into_iter().map(|(name, bytes)| (name, bytes - one.get(name).copied().unwrap_or(0))).collect()
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
            stage.traffic.iter().for_each(|t| *told.entry(t.call).or_default() += t.bytes);
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
                let counts: Arc<Mutex<Counts>> = Arc::default();
                trainer.run_on(Arc::new(Counted { comm, counts: counts.clone() })).unwrap();
                counts.lock().unwrap().get("all-gather").copied().unwrap_or(0)
            });
            ranks[0]
        };
        let (new, started) = (gathered(&[]), gathered(&[&init]));
        assert!(started < new + 1000, "{changes:?}: {new} bytes without weights, {started} with them");
    }
}

#[test]
fn a_plan_refuses_what_a_run_refuses() {
    for (changes, ranks) in [(&["mesh=tp=3"][..], 3), (&["train.chunks=2"], 1), (&["data.sequence=4096"], 1)]
    {
        let folder = tempfile::tempdir().unwrap();
        let changes = [changes, &["model.max_position_embeddings=2048"]].concat();
        let config = config(folder.path(), &changes);
        let model = model_of(&config, &Models::default()).unwrap();
        let planned = Plan::new(&config, &*model, ranks, &PlanOptions::default()).unwrap_err().to_string();
        assert_eq!(planned, Trainer::new(config).check(ranks).unwrap_err().to_string(), "{changes:?}");
    }
}
