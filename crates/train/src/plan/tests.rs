//! Plans against real models: the same bytes for weights and state, close ones for activations; closed forms for the rest.

use super::*;
use crate::config::Sources;
use crate::weights::Zero;
use planaria_array::{Array, thread_memory_stats};
use planaria_comm::{CommExt, threads};
use planaria_layout::Share;
use planaria_nn::models::{DecoderConfig, Run};
use planaria_nn::{Init, Parallel};
use planaria_tensor::{Tensor, World};

const SMALL: &str = "
    [model]
    kind = \"qwen2\"
    hidden_size = 64
    intermediate_size = 96
    num_hidden_layers = 4
    num_attention_heads = 4
    num_key_value_heads = 2
    max_position_embeddings = 64
    tie_word_embeddings = true
    vocab_size = 300
    [data]
    sequence = 32
    [[data.source]]
    path = \"none.txt\"
    [train]
    global_batch = 16
    micro_batch = 2
";

fn config(changes: &[&str]) -> Config {
    let set = changes.iter().map(ToString::to_string);
    Sources::text("config", SMALL).set(set).resolve().unwrap().config
}

fn model(config: &Config) -> Arc<dyn Architecture> {
    model_of(config, &Models::default()).unwrap()
}

fn plan(changes: &[&str], ranks: usize) -> Plan {
    let config = config(changes);
    Plan::new(&config, &*model(&config), ranks, &PlanOptions::default()).unwrap()
}

/// Weights, masters and moments of one rank of a real model, by stage: the most that any of its ranks has.
fn real(changes: &[&str], ranks: usize) -> Vec<(u64, u64, u64)> {
    let config = config(changes);
    let model = model(&config);
    let mesh = config.mesh.on(ranks).unwrap();
    let (stages, data_ranks) = (mesh.axis_size(0), mesh.axis_size(1));
    let dtype = config.train.precision.dtype();
    let held = threads::run(ranks, |comm| {
        let here = comm.world_rank();
        let coords = mesh.require(here).unwrap();
        let inner = mesh.keep(&["ep", "tp"], here).unwrap();
        let parallel = Parallel { world: World::new(comm.clone()), mesh: inner, sequence: false };
        let sizes = partition::sizes(&config, (mesh.axis_size(2), mesh.axis_size(3)), 2, 4);
        let part = partition::stages(&*model, &config, &sizes, stages).unwrap()[coords[0]].clone();
        let built = model.build(&part, Some(&parallel), &Init { seed: 1, dtype, ..Init::default() }).unwrap();
        let zero = Zero::from(config.train.zero);
        let names: Vec<String> = built.params().iter().map(|p| p.spec().name.clone()).collect();
        let mut sums = (0, 0, 0);
        for param in built.params() {
            if param.tied().is_some_and(|twin| names.iter().any(|name| name == twin)) {
                continue;
            }
            let row = param.leaf().local().reshape(&[param.leaf().local().numel()]).unwrap();
            let own = Share::even(row.numel(), data_ranks).range(coords[1]);
            let part = row.narrow(0, own.start, own.len()).unwrap();
            let size = |array: &Array| (array.numel() * array.dtype().size()) as u64;
            let state =
                update::rule(&config.optim).state(if zero == Zero::Off { &row } else { &part }).unwrap();
            sums.0 += size(if zero == Zero::Weights { &part } else { &row });
            sums.1 += state.master.as_ref().map_or(0, size);
            sums.2 += state.slots.iter().map(|(_, slot)| size(slot)).sum::<u64>();
        }
        (coords[0], sums)
    });
    let most =
        |stage: usize| held.iter().filter(|(at, _)| *at == stage).map(|(_, sums)| *sums).max().unwrap();
    (0..stages).map(most).collect()
}

#[test]
fn weights_and_state_are_those_of_real_models() {
    for (mesh, ranks) in
        [("dp=1", 1), ("dp=2", 2), ("tp=2", 2), ("pp=2 dp=2", 4), ("pp=2 tp=2", 4), ("dp=3", 3)]
    {
        for zero in 0..4 {
            for precision in ["f32", "bf16"] {
                let batch = if mesh == "dp=3" { "train.global_batch=12" } else { "train.global_batch=16" };
                let (mesh, zero) = (format!("mesh={mesh}"), format!("train.zero={zero}"));
                let precision = format!("train.precision={precision}");
                let changes = [mesh.as_str(), &zero, &precision, batch];
                let told = plan(&changes, ranks);
                let told: Vec<_> = told
                    .stages
                    .iter()
                    .map(|s| (s.memory.weights, s.memory.masters, s.memory.moments))
                    .collect();
                assert_eq!(told, real(&changes, ranks), "{changes:?}");
            }
        }
    }
}

/// Bytes that forward and loss keep, and the most at once in a whole step; the most that any rank has.
fn measured(changes: &[&str], ranks: usize) -> (u64, u64) {
    let config = config(changes);
    let model = model(&config);
    let mesh = config.mesh.on(ranks).unwrap();
    let of_ranks = threads::run(ranks, |comm| {
        let inner = mesh.keep(&["ep", "tp"], comm.world_rank()).unwrap();
        let sequence = config.train.sequence_parallel;
        one_step(&config, &*model, &Parallel { world: World::new(comm.clone()), mesh: inner, sequence })
    });
    of_ranks.into_iter().fold((0, 0), |most, (kept, peak)| (kept.max(most.0), peak.max(most.1)))
}

fn one_step(config: &Config, model: &dyn Architecture, parallel: &Parallel) -> (u64, u64) {
    let dtype = config.train.precision.dtype();
    let init = Init { seed: 1, dtype, ..Init::default() };
    let built = model.build(&Stage::whole(model), Some(parallel), &init).unwrap();
    let (rows, columns) = (config.train.micro_batch, config.data.sequence);
    let ids: Vec<i64> = (0..rows * columns).map(|i| (i * 37 % 291) as i64).collect();
    let tokens = Tensor::new(Array::from_slice(&ids, &[rows, columns]).unwrap());
    let run = Run { recompute: config.train.recomputed(), ..Run::default() };
    let before = thread_memory_stats().live;
    planaria_array::reset_thread_peak();
    let end = built.forward((&tokens).into(), &run).unwrap();
    let loss = built.loss(&end, &tokens).unwrap();
    drop(end);
    let kept = thread_memory_stats().live - before;
    loss.total().unwrap().backward().unwrap();
    // Gradients of weights come as activations go; here nobody takes them away.
    let peak = thread_memory_stats().peak - before;
    (kept as u64, peak as u64)
}

const EXPERTS: &[&str] = &[
    "model.kind=qwen2_moe",
    "model.num_experts=8",
    "model.num_experts_per_tok=2",
    "model.moe_intermediate_size=48",
    "model.shared_expert_intermediate_size=80",
];

/// Runs of all kinds of layers.
fn runs() -> Vec<Vec<&'static str>> {
    let dense: &[&[&str]] = &[
        &["train.precision=f32"],
        &["train.precision=bf16"],
        &["train.recompute=full"],
        &["train.precision=bf16", "train.recompute=full"],
        &["train.recompute=selective"],
        &["train.precision=bf16", "train.recompute=selective"],
        &["model.num_key_value_heads=4", "model.intermediate_size=160", "model.num_hidden_layers=2"],
    ];
    let sparse: &[&[&str]] = &[
        &[],
        &["train.precision=bf16"],
        &["model.norm_topk_prob=true", "model.num_experts_per_tok=3"],
        &["model.norm_topk_prob=true", "train.precision=bf16"],
        &["model.moe_intermediate_size=160", "model.shared_expert_intermediate_size=32"],
        &["train.recompute=full"],
        &["train.recompute=selective"],
        &["model.decoder_sparse_step=2"],
    ];
    let dense = dense.iter().map(|run| run.to_vec());
    dense.chain(sparse.iter().map(|run| [EXPERTS, run].concat())).collect()
}

/// One rank that has the whole model.
fn setting<'a>(config: &'a Config, model: &'a dyn Architecture, sizes: Sizes) -> Setting<'a> {
    Setting {
        config,
        model,
        dtype: DType::F32,
        inner: Mesh::new(&[("ep", 1), ("tp", 1)]).unwrap(),
        data_ranks: 1,
        geometry: Geometry::derive(&Batching {
            global_batch: Some(2),
            micro_batch: Some(2),
            data_ranks: Some(1),
            ..Batching::default()
        })
        .unwrap(),
        rule: update::rule(&config.optim),
        sizes,
        costs: Costs::new(model, &sizes).unwrap(),
        frozen: crate::freeze::Frozen::default(),
        is_tied: false,
        parts: vec![(Stage::whole(model), 0)],
        held: crate::objective::Held::default(),
        generates: None,
    }
}

#[test]
fn kept_activations_are_those_of_real_layers() {
    for changes in runs() {
        let (kept, _) = measured(&changes, 1);
        let config = config(&changes);
        let model = DecoderConfig::from_value(model(&config).to_value()).unwrap();
        let dtype = config.train.precision.dtype();
        let sizes = partition::sizes(&config, (1, 1), 2, dtype.size() as u64);
        let setting = setting(&config, &model, sizes);
        let whole = Stage::whole(&model);
        let told = setting.bytes(&whole).unwrap().saved + setting.shared(&whole);
        // Tables of positions and masks of labels do not grow with the layers.
        let slack = kept / 100 + (8 << 10);
        // The allocator rounds up by at most a quarter, which shows where experts have buffers of any size.
        let again = config.train.recompute == crate::config::Recompute::Full;
        let uneven = |e: &planaria_nn::models::Experts| (3 * e.choices * e.intermediate_size) as u64;
        let sparse = (0..model.layers).filter(|&layer| model.has_experts(layer) && !again).count() as u64;
        let uneven = model.experts.as_ref().map_or(0, uneven) * sparse * sizes.tokens * dtype.size() as u64;
        let fits = told < kept + slack && kept < told + uneven / 4 + slack;
        assert!(fits, "{changes:?}: told {told}, kept {kept}");
    }
}

#[test]
fn the_peak_of_a_step_is_near_the_plan() {
    for changes in runs() {
        // Many tokens, so that gradients of weights hardly count.
        let changes = [&changes[..], &["train.micro_batch=16", "data.sequence=64"]].concat();
        let (_, peak) = measured(&changes, 1);
        let told = plan(&changes, 1).stages[0].memory.activations;
        let ratio = told as f64 / peak as f64;
        assert!((0.75..1.25).contains(&ratio), "{changes:?}: told {told}, measured {peak}");
    }
}

#[test]
fn a_known_model_has_its_known_size() {
    let mut config = config(&["mesh=dp=8", "train.precision=bf16", "train.zero=1", "train.micro_batch=1"]);
    config.data.sequence = 4096;
    let json = serde_json::json!({
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
    });
    let model = DecoderConfig::from_value(json).unwrap();
    let of = |options: &PlanOptions| Plan::new(&config, &model, 8, options).unwrap();
    let plan = of(&PlanOptions::default());
    let n = 6_738_415_616;
    assert_eq!(plan.parameters, n, "Llama-2-7B");
    let memory = plan.stages[0].memory;
    assert_eq!((memory.weights, memory.masters, memory.moments), (2 * n, n / 2, n));
    let [reduce, gather] = &plan.stages[0].traffic[..] else { panic!("{:?}", plan.stages[0].traffic) };
    assert_eq!((reduce.call, reduce.times, reduce.bytes), ("all-to-all", 2, 2 * 2 * n / 8 * 7));
    assert_eq!((gather.what, gather.bytes), ("weights", 2 * n / 8 * 7));
    // Six operations per parameter and token, and attention: 3 x 32 layers x 4 x 2048 x 4096.
    let expected = 6.0 * (n - 32000 * 4096) as f64 + 3.0 * 32.0 * 4.0 * 2048.0 * 4096.0;
    let found = plan.operations / plan.tokens as f64;
    assert!((found / expected - 1.0).abs() < 0.01, "{found:e} {expected:e}");
    let fp8 = of(&PlanOptions { dtype: Some(DType::F8E4M3), ..PlanOptions::default() });
    assert_eq!(fp8.stages[0].memory.weights, n, "one byte each");
    assert_eq!(fp8.stages[0].memory.masters, n / 2);
    let eight = of(&PlanOptions { dtype: Some(DType::F32), ..PlanOptions::default() });
    assert_eq!((eight.stages[0].memory.weights, eight.stages[0].memory.masters), (4 * n, 0));
}

#[test]
fn pipelines_lose_what_their_schedules_lose() {
    let config = config(&["mesh=pp=4", "model.vocab_size=2"]);
    let model = Models::default().open(config.model.to_json(None, None).unwrap()).unwrap();
    let all = Plan::new(&config, &*model, 4, &PlanOptions::default()).unwrap();
    assert_eq!(all.stages.iter().map(|s| s.in_flight).collect::<Vec<_>>(), [4, 3, 2, 1]);
    // Eight micro-batches on four equal stages: 3 of 11 slots are empty; the head adds a little to the last.
    assert!((all.bubble - 3.0 / 11.0).abs() < 0.02, "{}", all.bubble);
    let sends: Vec<u64> = all
        .stages
        .iter()
        .map(|s| {
            s.traffic.iter().filter(|t| t.call == "send" && t.what != "tied sums").map(|t| t.bytes).sum()
        })
        .collect();
    let one = 8 * 2 * 32 * 64 * 4;
    assert_eq!(sends, [one, 2 * one, 2 * one, one]);
    assert!(all.stages[0].memory.activations > all.stages[2].memory.activations);
    let none = plan(&["mesh=dp=2"], 2);
    assert_eq!((none.bubble, none.schedule.as_str()), (0.0, "none"));
    assert!(plan(&["mesh=pp=2", "train.schedule=zbv"], 2).bubble < plan(&["mesh=pp=2"], 2).bubble);
}

#[test]
fn stages_are_balanced_with_what_stands_before_and_after_the_blocks() {
    // Qwen2.5-0.5B, whose head is worth about eight of its blocks.
    let json = serde_json::json!({
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": true,
    });
    let model = DecoderConfig::from_value(json).unwrap();
    let of = |changes: &[&str]| {
        let more = [&["mesh=pp=2", "train.micro_batch=1", "data.sequence=2048"], changes].concat();
        Plan::new(&config(&more), &model, 2, &PlanOptions::default())
    };
    let blocks = |plan: &Plan| plan.stages.iter().map(|stage| stage.layers).collect::<Vec<_>>();
    let (balanced, halved) = (of(&[]).unwrap(), of(&["train.stages=[12, 12]"]).unwrap());
    assert_eq!((blocks(&balanced), blocks(&halved)), (vec![16, 8], vec![12, 12]));
    // Sixteen micro-batches on two equal stages: 1 of 17 slots is empty.
    assert!(balanced.bubble < 0.07, "{}", balanced.bubble);
    assert!(halved.bubble > 0.4, "{}", halved.bubble);
    let error = of(&["train.stages=[12, 11]"]).unwrap_err().to_string();
    assert!(error.contains("`train.stages` is [12, 11]") && error.contains("24 blocks"), "{error}");
}

#[test]
fn dividing_more_never_needs_more() {
    let total = |changes: &[&str]| plan(changes, 2).stages[0].memory.total;
    let zero: Vec<u64> = (0..4).map(|z| total(&["mesh=dp=2", &format!("train.zero={z}")])).collect();
    assert!(zero.windows(2).all(|w| w[1] <= w[0]) && zero[3] < zero[1] && zero[1] < zero[0], "{zero:?}");
    let activations = |changes: &[&str]| plan(changes, 2).stages[0].memory.activations;
    let [plain, cut, again] = [
        &["mesh=tp=2"][..],
        &["mesh=tp=2", "train.sequence_parallel=true"],
        &["mesh=tp=2", "train.recompute=full"],
    ]
    .map(activations);
    assert!(cut < plain && again < cut, "{plain} {cut} {again}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let of = |changes: &[&str], ranks| {
        let config = config(changes);
        Plan::new(&config, &*model(&config), ranks, &PlanOptions::default()).unwrap_err().to_string()
    };
    assert!(of(&["mesh=tp=2"], 3).contains("3 ranks cannot make the mesh"));
    assert!(of(&["train.micro_batch=3"], 1).contains("nearest that fit: global_batch 15 or 18"));
    assert!(of(&["mesh=pp=2", "train.schedule=1f2b"], 2).contains("train.schedule"));
}

#[test]
fn one_byte_is_for_weights_only() {
    let of = |changes: &[&str], ranks, dtype| {
        let config = config(changes);
        let options = PlanOptions { dtype: Some(dtype), ..PlanOptions::default() };
        Plan::new(&config, &*model(&config), ranks, &options).unwrap().stages[0].clone()
    };
    let zero = [EXPERTS, &["mesh=dp=2 ep=2", "train.zero=1"]].concat();
    let bytes = |stage: &RankPlan, what: &str, axis: &str| -> u64 {
        stage.traffic.iter().filter(|t| t.what == what && t.axis == axis).map(|t| t.bytes).sum()
    };
    let [one, two, four] = [DType::F8E4M3, DType::BF16, DType::F32].map(|dtype| of(&zero, 4, dtype));
    assert_eq!(2 * one.memory.weights, two.memory.weights);
    assert_eq!(2 * bytes(&one, "weights", "dp"), bytes(&two, "weights", "dp"));
    // What is computed, and what optimizers keep, is as wide as beside bf16.
    let wide = |s: &RankPlan| {
        let memory = s.memory;
        (memory.activations, memory.gradients, memory.masters, memory.moments, memory.exchange)
    };
    assert_eq!(wide(&one), wide(&two));
    for (what, axis) in [("gradients", "dp"), ("gradients", "ep"), ("tokens", "ep")] {
        assert_eq!(bytes(&one, what, axis), bytes(&two, what, axis), "{what} over {axis}");
        assert_eq!(2 * bytes(&two, what, axis), bytes(&four, what, axis), "{what} over {axis}");
    }
    assert_eq!((four.memory.masters, 2 * two.memory.weights), (0, four.memory.weights));
}

#[test]
fn the_copy_that_makes_responses_is_counted_where_the_model_is_divided() {
    let held = |changes: &[&str], ranks: usize| {
        let grpo = ["train.objective=grpo", "rl.reward=[{kind = \"finished\"}]"];
        let plan = plan(&[&grpo[..], changes].concat(), ranks);
        plan.stages.iter().map(|stage| stage.memory.held).collect::<Vec<u64>>()
    };
    let whole = 4 * plan(&[], 1).parameters;
    // Beside it, keys and values of the responses under way, one text more, and scores of their next tokens.
    let config = config(&[]);
    let about = model(&config).to_value();
    let number = |key: &str| about[key].as_u64().unwrap();
    let dim = number("hidden_size") / number("num_attention_heads");
    let token = 2 * number("num_hidden_layers") * number("num_key_value_heads") * dim * 4;
    let cache =
        |rows: u64| (rows + 1) * config.data.sequence as u64 * token + rows * number("vocab_size") * 4;
    let prompts = config.train.global_batch as u64;
    assert_eq!(held(&["rl.rows=3"], 1), [cache(3)]);
    assert_eq!(held(&[], 1), [cache((8 * prompts).min(256))]);
    assert_eq!(held(&["mesh=dp=2", "train.zero=2", "rl.rows=5"], 2), [cache(5)]);
    assert_eq!(held(&["mesh=dp=2", "train.zero=3", "rl.rows=5"], 2), [whole + cache(5)]);
    assert_eq!(held(&["mesh=pp=2", "rl.rows=1"], 2), [whole + cache(1); 2]);
    assert_eq!(held(&["mesh=pp=2", "rl.responses=rows"], 2), [0, 0]);
}

#[test]
fn what_ranks_send_goes_to_hosts_and_nothing_of_it_twice() {
    let changes = ["mesh=pp=2 dp=2 tp=2", "train.schedule=interleaved", "train.chunks=2"];
    let (plan, mesh) = (plan(&changes, 8), config(&changes).mesh.on(8).unwrap());
    let sent: u64 = plan.stages.iter().flat_map(|rank| &rank.traffic).map(|traffic| 4 * traffic.bytes).sum();
    let all = |hosts: &[std::ops::Range<usize>]| {
        links(&plan, &mesh, hosts).iter().map(|link| link.bytes).sum::<u64>()
    };
    let each: Vec<_> = (0..8).map(|rank| rank..rank + 1).collect();
    assert_eq!(all(&each), sent);
    assert_eq!(all(std::slice::from_ref(&(0..8))), 0);
    let names = |hosts: &[std::ops::Range<usize>]| crossing(&mesh, hosts).into_iter().collect::<Vec<_>>();
    assert_eq!(names(&[0..4, 4..8]), ["pp"]);
    assert_eq!(names(&[0..2, 2..4, 4..6, 6..8]), ["dp", "pp"]);
    assert_eq!(names(&each), ["dp", "pp", "tp"]);
    let two = links(&plan, &mesh, &[0..4, 4..8]);
    assert!(two.iter().all(|link| link.axes.keys().eq(["pp"].iter())), "{two:?}");
    // Weights of four data ranks go into a host once, not to each of its ranks.
    let weights = |hosts: &[std::ops::Range<usize>]| {
        let changes = ["mesh=dp=4", "train.zero=1", "train.reduce=step"];
        let (plan, mesh) = (self::plan(&changes, 4), config(&changes).mesh.on(4).unwrap());
        let gathered: u64 =
            plan.stages[0].traffic.iter().filter(|of| of.call == "all-gather").map(|of| of.bytes).sum();
        let others: u64 =
            plan.stages[0].traffic.iter().filter(|of| of.call != "all-gather").map(|of| of.bytes).sum();
        let link = links(&plan, &mesh, hosts).iter().find(|link| link.from == 0).map_or(0, |link| link.bytes);
        (link - others / 3 * 4, gathered)
    };
    let (crossed, sent) = weights(&[0..2, 2..4]);
    // A rank sends three quarters of four shares; two shares cross.
    assert!(crossed.abs_diff(sent / 3 * 2) < 64, "{crossed} of {sent}");
}
