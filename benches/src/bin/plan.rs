//! `plan`: one rank's whole plan to reshard, save or load a 405B-class model on 16,384 or 12,288 ranks.
//!
//! Bars: under 100 ms of processor time, which other work on the machine does not change, and under 100 MB. Every layout
//! is built anew for every tensor, nothing is cached. A save or a load has parameters, masters and two moments of each,
//! cut by tensor and pipeline parallelism and divided by ZeRO, and every box that the rank copies, sends or receives is
//! found.

use anyhow::{Context, Result, ensure};
use planaria_bench::measure::{status, thread_times};
use planaria_ckpt::{Known, KnownTensor, LoadOptions, Outline, SaveOptions, SavedFiles, TensorKind};
use planaria_layout::{
    DType, FlatShards, Layout, Mesh, Neutral, Placement, Plan, Rank, RankTiling, Shape, TensorSpec, Tile,
    deliver, receive,
};
use std::sync::Arc;
use std::time::Instant;

const LAYERS: usize = 126;
const HIDDEN: usize = 16384;
const FFN: usize = 53248;
const KV: usize = 1024;
const VOCAB: usize = 128256;

/// How a tensor lies on the axes `dp` and `tp`.
#[derive(Clone, Copy)]
enum Role {
    /// Output rows over tp, then dp.
    Column,
    /// Input columns over tp, rows over dp.
    Row,
    /// Over dp alone.
    Norm,
}

struct Tensor {
    name: String,
    dims: Vec<usize>,
    role: Role,
    /// Pipeline position: layers count from 1, the embedding before and the head after them.
    depth: usize,
}

/// What one rank keeps: names and boxes with their sources and targets.
type Kept = Vec<(String, Plan, Vec<Tile<Rank>>)>;

fn model() -> Vec<Tensor> {
    let mut tensors = Vec::new();
    let mut add = |name: String, dims: &[usize], role, depth| {
        tensors.push(Tensor { name, dims: dims.to_vec(), role, depth });
    };
    add("model.embed_tokens.weight".into(), &[VOCAB, HIDDEN], Role::Column, 0);
    for layer in 0..LAYERS {
        let at = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let depth = layer + 1;
        add(at("self_attn.q_proj"), &[HIDDEN, HIDDEN], Role::Column, depth);
        add(at("self_attn.k_proj"), &[KV, HIDDEN], Role::Column, depth);
        add(at("self_attn.v_proj"), &[KV, HIDDEN], Role::Column, depth);
        add(at("self_attn.o_proj"), &[HIDDEN, HIDDEN], Role::Row, depth);
        add(at("mlp.gate_proj"), &[FFN, HIDDEN], Role::Column, depth);
        add(at("mlp.up_proj"), &[FFN, HIDDEN], Role::Column, depth);
        add(at("mlp.down_proj"), &[HIDDEN, FFN], Role::Row, depth);
        add(at("input_layernorm"), &[HIDDEN], Role::Norm, depth);
        add(at("post_attention_layernorm"), &[HIDDEN], Role::Norm, depth);
    }
    add("model.norm.weight".into(), &[HIDDEN], Role::Norm, LAYERS + 1);
    add("lm_head.weight".into(), &[VOCAB, HIDDEN], Role::Column, LAYERS + 1);
    tensors
}

impl Tensor {
    fn layout(&self, mesh: &Mesh) -> Result<Layout> {
        let placed = match self.role {
            Role::Column => "dp:S0.1 tp:S0",
            Role::Row => "dp:S0 tp:S1",
            Role::Norm => "dp:S0",
        };
        let spec: TensorSpec = format!("bf16{} @ {placed}", Shape::new(&self.dims)?).parse()?;
        Ok(spec.on(mesh)?)
    }
}

/// The mesh itself, or one mesh for each pipeline stage.
fn stages(mesh: &Mesh) -> Result<Vec<Mesh>> {
    let Some(pp) = mesh.axes().iter().find(|axis| axis.name == "pp") else { return Ok(vec![mesh.clone()]) };
    Ok((0..pp.size).map(|stage| mesh.fix(&[("pp", stage)])).collect::<planaria_layout::Result<_>>()?)
}

fn stage_of(tensor: &Tensor, stages: usize) -> usize {
    tensor.depth * stages / (LAYERS + 2)
}

/// Everything `rank` receives and sends when the model goes from one mesh to the other.
fn plan(model: &[Tensor], from: &str, to: &str, rank: Rank) -> Result<Kept> {
    let (from, to) = (stages(&from.parse()?)?, stages(&to.parse()?)?);
    let mut kept = Vec::new();
    for tensor in model {
        let source = tensor.layout(&from[stage_of(tensor, from.len())])?;
        let target = tensor.layout(&to[stage_of(tensor, to.len())])?;
        let gets = if target.mesh().coords(rank).is_some() {
            Some(Plan::receive(&source, &target, rank)?)
        } else {
            None
        };
        let gives = if source.mesh().coords(rank).is_some() {
            Plan::send(&source, &target, rank)?
        } else {
            Vec::new()
        };
        let nothing = || Plan { parts: Vec::new(), combine: None, neutral: Neutral::Zero };
        kept.push((tensor.name.clone(), gets.unwrap_or_else(nothing), gives));
    }
    Ok(kept)
}

/// A tensor's name, what the rank receives of it and what it sends.
type TensorPlan = (String, Vec<Tile<Rank>>, Vec<Tile<Rank>>);

/// The same for optimizer state that is flattened over dp.
fn plan_flat(model: &[Tensor], from: &str, to: &str, rank: Rank) -> Result<Vec<TensorPlan>> {
    let (from, to): (Mesh, Mesh) = (from.parse()?, to.parse()?);
    let mut kept = Vec::new();
    for tensor in model {
        let side = |mesh: &Mesh| -> Result<FlatShards> {
            let dp = mesh.axis("dp")?;
            let base = tensor.layout(mesh)?.with(dp, Placement::Replicate)?;
            Ok(FlatShards::even(&base, "dp")?)
        };
        let (source, target) = (side(&from)?, side(&to)?);
        let gives = deliver(&source, &target, &rank)?;
        kept.push((tensor.name.clone(), receive(&source, &target, &rank)?, gives));
    }
    Ok(kept)
}

/// What data ranks divide.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Zero {
    /// Masters and moments.
    States,
    /// Also the parameters.
    Weights,
}

/// The training state of the model on a mesh, as every rank knows it: the pieces of a layer are divided as one.
fn known(model: &[Tensor], mesh: &str, zero: Zero) -> Result<Known> {
    let stages = stages(&mesh.parse()?)?;
    let mut tensors = Vec::new();
    for block in model.chunk_by(|a, b| a.depth == b.depth) {
        let on = &stages[stage_of(&block[0], stages.len())];
        let dp = on.axis("dp")?;
        let base = |tensor: &Tensor| Ok(tensor.layout(on)?.with(dp, Placement::Replicate)?);
        let bases = block.iter().map(base).collect::<Result<Vec<Layout>>>()?;
        let shards = FlatShards::bundle(&bases, "dp")?;
        for ((tensor, base), shards) in block.iter().zip(bases).zip(shards) {
            let shape = base.shape().clone();
            let (base, shards): (RankTiling, RankTiling) = (Arc::new(base), Arc::new(shards));
            let mut add = |kind: TensorKind, dtype: DType, held: &RankTiling| {
                let (name, shape) = (tensor.name.clone(), shape.clone());
                tensors.push(KnownTensor { kind, name, shape, dtype, held: vec![held.clone()] });
            };
            add(TensorKind::Parameter, DType::BF16, if zero == Zero::Weights { &shards } else { &base });
            for kind in [
                TensorKind::Master,
                TensorKind::Slot("moment1_0".into()),
                TensorKind::Slot("moment2_0".into()),
            ] {
                add(kind, DType::F32, &shards);
            }
        }
    }
    Ok(Known::new(tensors)?)
}

/// Saves on one mesh, loads on another.
fn checkpoints(model: &[Tensor]) -> Result<f64> {
    let (here, there) = (("pp=16 dp=128 tp=8", 16_384), ("pp=8 dp=192 tp=8", 12_288));
    let boxes = |outline: &Outline| outline.boxes;
    let mut worst = 0.0f64;
    for zero in [Zero::States, Zero::Weights] {
        let (save, load) = (SaveOptions::default(), LoadOptions::default());
        let name = format!("save, {} with ZeRO of {zero:?}", here.0);
        let of = |rank| Ok(Outline::of_save(&known(model, here.0, zero)?, &save, rank, here.1)?);
        worst = worst.max(report(&name, of, boxes)?);
        // A load finds this in the manifest.
        let saved = SavedFiles::of(&known(model, here.0, zero)?, &save)?;
        let name = format!("load, {} -> {} with ZeRO of {zero:?}", here.0, there.0);
        let of = |rank| Ok(Outline::of_load(&saved, (&known(model, there.0, zero)?, &load), rank, there.1)?);
        worst = worst.max(report(&name, of, boxes)?);
        let outline = of(777)?;
        println!(
            "  rank 777 of {}: {} units, {:.2} GB of {:.2} TB read, {:.2} GB sent, {:.2} GB received",
            there.1,
            outline.units,
            outline.moved as f64 / 1e9,
            outline.total as f64 / 1e12,
            outline.sent as f64 / 1e9,
            outline.received as f64 / 1e9
        );
    }
    Ok(worst)
}

/// Times `work` for some ranks and prints the one that took most of a processor.
fn report<T>(name: &str, work: impl Fn(Rank) -> Result<T>, boxes: impl Fn(&T) -> usize) -> Result<f64> {
    let mut slowest = (0.0f64, 0.0f64, 0, 0);
    for rank in [0, 1, 777, 5000, 12287] {
        let (start, [before, _]) = (Instant::now(), thread_times());
        let kept = work(rank).with_context(|| format!("{name}, rank {rank}"))?;
        let ([after, _], wall) = (thread_times(), start.elapsed().as_secs_f64() * 1e3);
        let ms = (after - before) * 1e3;
        if ms > slowest.0 {
            slowest = (ms, wall, rank, boxes(&kept));
        }
    }
    let (ms, wall, rank, boxes) = slowest;
    println!("{name}: {ms:.2} ms, {wall:.2} by the clock (rank {rank}, {boxes} boxes)");
    Ok(ms)
}

fn main() -> Result<()> {
    let model = model();
    let elements: usize = model.iter().map(|t| t.dims.iter().product::<usize>()).sum();
    println!("{} tensors, {:.1} billion elements", model.len(), elements as f64 / 1e9);
    let pairs = [
        ("dp=2048 tp=8", "dp=1536 tp=8"),
        ("dp=1024 tp=16", "dp=1536 tp=8"),
        ("pp=16 dp=128 tp=8", "pp=8 dp=192 tp=8"),
        ("tp=8 pp=16 dp=128", "dp=384 pp=8 tp=4"),
    ];
    let mut worst = 0.0f64;
    for (from, to) in pairs {
        let count = |kept: &Kept| kept.iter().map(|(_, gets, gives)| gets.parts.len() + gives.len()).sum();
        worst = worst.max(report(&format!("{from} -> {to}"), |rank| plan(&model, from, to, rank), count)?);
    }
    let (from, to) = ("dp=2048 tp=8", "dp=1536 tp=8");
    let count = |kept: &Vec<TensorPlan>| kept.iter().map(|k| k.1.len() + k.2.len()).sum();
    worst =
        worst.max(report(&format!("flat, {from} -> {to}"), |rank| plan_flat(&model, from, to, rank), count)?);
    worst = worst.max(checkpoints(&model)?);
    let peak = status("VmHWM:").unwrap_or(0) as f64 / 1e6;
    println!(
        "slowest {worst:.2} ms of processor time (bar 100), peak memory of the process {peak:.1} MB (bar 100)"
    );
    ensure!(worst < 100.0 && peak < 100.0, "a bar is missed");
    Ok(())
}
