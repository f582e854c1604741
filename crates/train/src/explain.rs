//! What every op of a model does on a mesh: its layouts, what moves for it, and what else was weighed. Nothing is started.
//!
//! One micro-batch goes forward and back on arrays without elements, on a world that only plans. What data ranks and
//! pipeline stages send each other is no op of the model: [`crate::plan`] tells it. What a rank's experts compute is on no mesh,
//! and nothing is decided about it.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::freeze::Frozen;
use crate::objective::{Objective, Objectives};
use crate::{fit, partition, plan};
use planaria_layout::rule::Decision;
use planaria_layout::{DType, Mesh};
use planaria_nn::models::{Activations, Architecture, Run, Stage};
use planaria_nn::{Init, Parallel};
use planaria_tensor::trace::{Ran, decisions};
use planaria_tensor::{Array, GradOptions, Tensor, World, grad};
use serde::Serialize;

/// One op as it runs, or a reshard that the model asks for, with how often it runs just so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OpLine {
    /// `forward` or `backward`.
    pub phase: &'static str,
    /// The op; `reshard` where the model itself asks for another layout, `moe_dispatch` and `moe_combine` where rows go to their experts
    /// and back, which have no layouts.
    pub op: String,
    /// Times in one micro-batch.
    pub times: usize,
    /// How the inputs lie.
    pub given: Vec<String>,
    /// How the op takes them.
    pub taken: Vec<String>,
    /// How the outputs lie.
    pub outputs: Vec<String>,
    /// Bytes that a rank sends for the inputs, each time.
    pub moved: u64,
    /// Bytes that the kernel sends itself, each time.
    pub exchanged: u64,
    /// Bytes that settling the outputs would take at least, each time; whoever needs them settled pays.
    pub settled: u64,
    /// The other ways that were weighed, cheapest first.
    pub others: Vec<OtherWay>,
    /// Why it is done so, in words.
    pub why: String,
}

impl OpLine {
    /// Bytes that a rank sends each time.
    pub fn sent(&self) -> u64 {
        self.moved + self.exchanged
    }
}

/// A way that was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OtherWay {
    /// How the op would take its inputs.
    pub taken: Vec<String>,
    /// How its outputs would lie.
    pub outputs: Vec<String>,
    /// Bytes of all: inputs, kernel, outputs settled.
    pub bytes: u64,
}

/// One part of the model, as a pipeline stage holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StageExplained {
    /// Place among the parts.
    pub stage: usize,
    /// Its blocks.
    pub layers: usize,
    /// Its ops, in the order of their first run.
    pub ops: Vec<OpLine>,
    /// Bytes that a rank sends for them in one step.
    pub bytes_per_step: u64,
}

/// What every op of a model does on a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The axes over which a model's tensors are cut.
    pub mesh: String,
    /// Dtype of the weights.
    pub dtype: String,
    /// Micro-batches per step of a data rank.
    pub accumulation: u64,
    /// The parts of the model.
    pub stages: Vec<StageExplained>,
}

impl Explanation {
    /// Of the run that a configuration describes, on so many ranks.
    pub fn new(
        config: &Config,
        model: &dyn Architecture,
        ranks: usize,
        objectives: &Objectives,
    ) -> Result<Explanation> {
        let mesh = fit::check(config, model).and_then(|()| config.mesh.on(ranks))?;
        let [stages, data, ep, tp] = [0, 1, 2, 3].map(|axis| mesh.axis_size(axis));
        let objective = plan::objective_of(config, objectives)?;
        let geometry = plan::batch(config, &*objective, (data, ep))?;
        let (schedule, ..) = plan::schedule_of(config, stages, geometry.accumulation)?;
        let dtype = config.train.precision.dtype();
        let inner = Mesh::new(&[("ep", ep), ("tp", tp)])?;
        let sizes = partition::sizes(config, (ep, tp), geometry.micro_batch, dtype.size() as u64);
        let rows = geometry.micro_batch as usize;
        let tokens = Array::meta(&[rows, config.data.sequence], DType::I64).map_err(tensor_error)?;
        let mut micro = Micro {
            config,
            model,
            objective: &*objective,
            frozen: Frozen::new(&config.train.freeze, model)?,
            inner: &inner,
            dtype,
            handed: Tensor::new(tokens.clone()).into(),
        };
        let mut explained = Vec::new();
        let parts = partition::stages(model, config, &sizes, schedule.stages().len())?;
        for (stage, part) in parts.into_iter().enumerate() {
            let layers = part.layers.len();
            // On one rank nothing is decided.
            let ops = if inner.size() == 1 { Vec::new() } else { micro.through(&part, &tokens)? };
            let sent: u64 = ops.iter().map(|line| line.sent() * line.times as u64).sum();
            let bytes_per_step = sent * geometry.accumulation;
            explained.push(StageExplained { stage, layers, ops, bytes_per_step });
        }
        let (mesh, dtype) = (inner.to_string(), dtype.name().to_string());
        Ok(Explanation { mesh, dtype, accumulation: geometry.accumulation, stages: explained })
    }
}

/// One micro-batch on its way through the parts of a model.
struct Micro<'a> {
    config: &'a Config,
    model: &'a dyn Architecture,
    objective: &'a dyn Objective,
    frozen: Frozen,
    inner: &'a Mesh,
    dtype: DType,
    /// What the part before has made.
    handed: Activations,
}

impl Micro<'_> {
    /// The ops of one part, forward and back.
    fn through(&mut self, part: &Stage, tokens: &Array) -> Result<Vec<OpLine>> {
        let train = &self.config.train;
        let sequence = train.sequence_parallel;
        let parallel =
            Parallel { world: World::supposed(0), mesh: self.inner.clone(), sequence }.on_purpose();
        let init = Init { dtype: self.dtype, ..Init::default() };
        let built = self.model.build(part, Some(&parallel), &init)?;
        let run = Run { recompute: train.recomputed(), ..Run::default() };
        let leaf = |t: &Tensor| if part.embed { t.clone() } else { t.detach().requires_grad() };
        let input =
            Activations { hidden: leaf(&self.handed.hidden), routed: self.handed.routed.as_ref().map(leaf) };
        let labels = Tensor::new(tokens.clone());
        let (end, forward) = decisions(|| -> Result<Tensor> {
            let last = built.forward(input.clone(), &run)?;
            self.handed = last.clone();
            if part.head { self.objective.explained(&*built, &last, &labels) } else { Ok(last.hidden) }
        });
        let end = end?;
        let trained = built.params().into_iter().filter(|param| !self.frozen.contains(param.name()));
        let mut starts: Vec<Tensor> = trained.map(|param| param.leaf().clone()).collect();
        starts.push(input.hidden);
        let starts: Vec<&Tensor> = starts.iter().filter(|start| start.has_history()).collect();
        let seed = end.ones_like()?;
        let (grads, backward) = decisions(|| grad(&[&end], &[Some(&seed)], &starts, GradOptions::default()));
        grads?;
        let mut lines = Vec::new();
        forward.iter().for_each(|ran| add(&mut lines, "forward", ran));
        backward.iter().for_each(|ran| add(&mut lines, "backward", ran));
        Ok(lines)
    }
}

fn tensor_error(error: planaria_array::Error) -> Error {
    planaria_tensor::Error::from(error).into()
}

/// Adds an op, or one more time of the same.
fn add(lines: &mut Vec<OpLine>, phase: &'static str, ran: &Ran) {
    let line = line(phase, ran);
    let same = |known: &&mut OpLine| OpLine { times: 1, ..(**known).clone() } == line;
    match lines.iter_mut().find(same) {
        Some(known) => known.times += 1,
        None => lines.push(line),
    }
}

fn line(phase: &'static str, ran: &Ran) -> OpLine {
    let texts = |list: &[planaria_layout::Layout], dtypes: &[DType]| {
        let dtype = |i: usize| dtypes.get(i).copied();
        let text = |(i, layout): (usize, &planaria_layout::Layout)| match dtype(i) {
            Some(dtype) => layout.to_spec(dtype).to_string(),
            None => layout.to_string(),
        };
        list.iter().enumerate().map(text).collect::<Vec<String>>()
    };
    let (taken, others) = match ran.weighed.split_first() {
        Some((taken, others)) => (taken.clone(), others),
        None => (Decision { inputs: Vec::new(), outputs: Vec::new(), price: Default::default() }, &[][..]),
    };
    let other = |way: &Decision| OtherWay {
        taken: texts(&way.inputs, &ran.dtypes),
        outputs: texts(&way.outputs, &[]),
        bytes: way.price.total(),
    };
    OpLine {
        phase,
        op: ran.op.to_string(),
        times: 1,
        given: texts(&ran.given, &ran.dtypes),
        taken: texts(&taken.inputs, &ran.dtypes),
        outputs: texts(&taken.outputs, &[]),
        moved: taken.price.moved,
        exchanged: taken.price.exchanged,
        settled: taken.price.settled,
        others: others.iter().map(other).collect(),
        why: why(ran, &taken, others),
    }
}

/// What decided.
fn why(ran: &Ran, taken: &Decision, others: &[Decision]) -> String {
    let total = taken.price.total();
    if ran.op == "reshard" {
        return "the model asks for it".to_string();
    }
    if taken.outputs.is_empty() {
        return "rows go where their experts are, as many to each".to_string();
    }
    if total == 0 {
        return "nothing is sent".to_string();
    }
    let least = others.iter().map(|other| other.price.total()).min();
    let stays = ran.given == taken.inputs;
    match least {
        Some(least) if least < total => {
            format!("its inputs agree and stay: {total} bytes with outputs settled, another way {least}")
        }
        Some(least) if stays => {
            format!("its inputs stay: {total} bytes with outputs settled, the next way {least}")
        }
        Some(least) => format!("cheapest: {total} bytes with outputs settled, the next way {least}"),
        None => format!("the only way: {total} bytes with outputs settled"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;
    use crate::plan::model_of;
    use planaria_nn::models::Models;

    const SMALL: &str = "
    [model]
    kind = \"qwen2\"
    hidden_size = 32
    intermediate_size = 64
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 2
    max_position_embeddings = 64
    vocab_size = 300
    [data]
    sequence = 16
    [[data.source]]
    path = \"none.txt\"
    [train]
    global_batch = 4
    micro_batch = 2
";

    fn opened(changes: &[&str]) -> (Config, std::sync::Arc<dyn Architecture>) {
        let set = changes.iter().map(ToString::to_string);
        let config = Sources::text("config", SMALL).set(set).resolve().unwrap().config;
        let model = model_of(&config, &Models::default()).unwrap();
        (config, model)
    }

    fn tried(changes: &[&str], ranks: usize) -> Result<Explanation> {
        let (config, model) = opened(changes);
        Explanation::new(&config, &*model, ranks, &Objectives::default())
    }

    fn explained(changes: &[&str], ranks: usize) -> Explanation {
        tried(changes, ranks).unwrap()
    }

    #[test]
    fn tensor_parallel_sends_what_its_lanes_ask_for_and_the_loss() {
        let told = explained(&["mesh=tp=2"], 2);
        let ops = &told.stages[0].ops;
        let sending: Vec<&OpLine> = ops.iter().filter(|line| line.sent() > 0).collect();
        let known = |line: &&OpLine| line.op == "reshard" || line.op == "linear_cross_entropy";
        assert!(sending.iter().all(known), "{sending:#?}");
        // The sum behind the embedding and two for each of two blocks, of [2,16,32] floats each.
        let hidden = 2 * 16 * 32 * 4;
        let sums = sending.iter().filter(|line| (line.phase, line.moved) == ("forward", hidden));
        assert_eq!(sums.map(|line| line.times).sum::<usize>(), 5, "{sending:#?}");
        let sent: u64 = ops.iter().map(|line| line.sent() * line.times as u64).sum();
        assert_eq!(told.stages[0].bytes_per_step, 2 * sent, "two micro-batches");
    }

    #[test]
    fn a_pipeline_is_told_by_its_parts_and_one_rank_has_nothing_to_tell() {
        let told = explained(&["mesh=pp=2 tp=2"], 4);
        let layers: Vec<usize> = told.stages.iter().map(|stage| stage.layers).collect();
        assert_eq!(layers.iter().sum::<usize>(), 2);
        let has = |stage: usize, op: &str| told.stages[stage].ops.iter().any(|line| line.op == op);
        // Token vectors are looked up in pieces of the table, which is no op of the mesh.
        assert!(has(0, "rms_norm") && has(0, "reshard"));
        assert!(has(1, "linear_cross_entropy") && !has(0, "linear_cross_entropy"));
        assert!(explained(&[], 1).stages[0].ops.is_empty());
    }

    #[test]
    fn rows_on_their_way_to_experts_are_told_as_the_plan_has_them() {
        let moe = [
            "model.kind=qwen2_moe",
            "model.num_experts=4",
            "model.num_experts_per_tok=2",
            "model.moe_intermediate_size=16",
            "model.shared_expert_intermediate_size=16",
            "model.decoder_sparse_step=1",
            "mesh=ep=2",
        ];
        let told = explained(&moe, 2);
        let travels = told.stages[0].ops.iter().filter(|line| line.op.starts_with("moe_"));
        let sent: u64 = travels.map(|line| line.sent() * line.times as u64).sum();
        let (config, model) = opened(&moe);
        let plan = plan::Plan::new(&config, &*model, 2, &Default::default()).unwrap();
        let tokens = plan.stages[0].traffic.iter().find(|traffic| traffic.what == "tokens").unwrap();
        assert_eq!(sent * told.accumulation, tokens.bytes);
        assert!(sent > 0);
    }

    #[test]
    fn the_run_is_explained_as_it_is_configured() {
        let chunks = [
            "mesh=pp=2 tp=2",
            "model.num_hidden_layers=4",
            "train.schedule=interleaved",
            "train.chunks=2",
            "train.stages=[1,1,1,1]",
        ];
        let layers = explained(&chunks, 4).stages.into_iter().map(|stage| stage.layers);
        assert_eq!(layers.collect::<Vec<_>>(), [1, 1, 1, 1]);
        // What the plan refuses is refused.
        for bad in [["data.sequence=128", "mesh=tp=2"], ["train.freeze=[\"*\"]", "mesh=tp=2"]] {
            assert!(tried(&bad, 2).is_err(), "{bad:?}");
        }
        // Weights that stay send no gradients.
        let bytes = |more: &[&str]| explained(&[&["mesh=tp=2"], more].concat(), 2).stages[0].bytes_per_step;
        assert!(bytes(&["train.freeze=[\"model.*\"]"]) < bytes(&[]));
    }

    #[test]
    fn an_embedding_model_is_followed_to_its_pooled_texts() {
        let texts = ["mesh=tp=2", "train.objective=contrastive"];
        let told = explained(&texts, 2);
        let has = |op: &str| told.stages[0].ops.iter().any(|line| line.op == op);
        assert!(has("rms_norm") && !has("linear_cross_entropy"));
    }
}
