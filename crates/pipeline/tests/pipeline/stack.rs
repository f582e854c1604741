//! A small model in stages, run whole on one rank or in pieces by the engine.

use planaria_array::Array;
use planaria_comm::{Comm, threads};
use planaria_pipeline::engine::{self, At, Options, Ran, StageWork};
use planaria_pipeline::{Error, Failure, Schedule};
use planaria_tensor::ops::{layer_norm, linear};
use planaria_tensor::{DType, History, Keep, Result, Tensor, recompute};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Width of the hidden state.
pub(crate) const WIDTH: usize = 8;

/// The bits of an f32 tensor.
pub(crate) type Bits = Vec<u32>;

pub(crate) fn bits(tensor: &Tensor) -> Bits {
    tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// Numbers that depend on the seed alone, with signs and sizes that make the order of sums matter.
pub(crate) fn value(seed: usize, shape: &[usize]) -> Tensor {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_slice(&values, shape).unwrap()
}

/// What a stage does with the hidden state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    /// A residual block with one weight used twice.
    Residual,
    /// Gives back the very tensor it got, and has no parameters.
    Identity,
    /// An output that is a view with strides.
    View,
    /// An output that is a view of the input itself.
    Window,
    /// Norm and product, computed again in backward.
    Recomputed,
    /// The whole stage computed again in backward: keeps its input only.
    FullRecompute,
    /// The input beside a product of it, and no bias.
    Plain,
    /// Ends with an op that saves its output.
    Tanh,
}

pub(crate) const MIXED: [Layer; 7] = [
    Layer::Residual,
    Layer::Identity,
    Layer::View,
    Layer::Recomputed,
    Layer::Window,
    Layer::Plain,
    Layer::Tanh,
];

/// A model: stage 0 takes data, the last stage gives the loss, and both have a leaf over one tied value.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) layers: Vec<Layer>,
    /// Stages without gradients of their own.
    pub(crate) frozen: Vec<usize>,
    /// Rows of each micro-batch.
    pub(crate) rows: Vec<usize>,
    /// Tensors besides the hidden state go from stage to stage: one with gradient and one without.
    pub(crate) tuple: bool,
}

impl Plan {
    pub(crate) fn new(stages: usize, micros: usize) -> Plan {
        let layers = (0..stages).map(|stage| MIXED[stage % MIXED.len()]).collect();
        Plan { layers, frozen: Vec::new(), rows: vec![3; micros], tuple: true }
    }

    fn is_last(&self, stage: usize) -> bool {
        stage + 1 == self.layers.len()
    }

    /// The parameters of a stage: weight, bias, and at both ends the tied one.
    pub(crate) fn parameters(&self, stage: usize) -> Vec<Tensor> {
        let mut all = vec![value(100 + stage, &[WIDTH, WIDTH]), value(200 + stage, &[WIDTH])];
        if stage == 0 || self.is_last(stage) {
            all.push(value(99, &[WIDTH, WIDTH]));
        }
        match self.frozen.contains(&stage) {
            true => all,
            false => all.iter().map(Tensor::requires_grad).collect(),
        }
    }

    pub(crate) fn data(&self, micro: usize) -> Tensor {
        value(1000 + micro, &[self.rows[micro], WIDTH])
    }

    /// One stage. The first gets the data; the last gives the loss.
    pub(crate) fn apply(&self, stage: usize, w: &[Tensor], inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut hidden = inputs[0].clone();
        if stage == 0 {
            hidden = hidden.matmul(&w[2])?;
        }
        hidden = layer(self.layers[stage], w, &hidden)?;
        let extra = match inputs.get(1) {
            Some(extra) if self.layers[stage] == Layer::Plain => {
                Some(extra.add(&hidden.sum(&[], Keep::No)?)?)
            }
            Some(extra) => Some(extra.clone()),
            None if self.tuple => Some(hidden.sum(&[], Keep::No)?),
            None => None,
        };
        if self.is_last(stage) {
            let loss = hidden.matmul(&w[w.len() - 1].transpose(0, 1)?)?.square()?.sum(&[], Keep::No)?;
            return Ok(vec![extra.map_or(Ok(loss.clone()), |extra| loss.add(&extra))?]);
        }
        let Some(extra) = extra else { return Ok(vec![hidden]) };
        let marks = match inputs.get(2) {
            Some(marks) => marks.clone(),
            None => {
                Tensor::new(Array::full(&[self.rows.first().copied().unwrap_or(0).min(1)], 7, DType::I64)?)
            }
        };
        Ok(vec![hidden, extra, marks])
    }
}

fn layer(layer: Layer, w: &[Tensor], x: &Tensor) -> Result<Tensor> {
    let block = |x: &Tensor, w: &[Tensor]| {
        let normed = layer_norm(x, &[WIDTH], Some(&w[1]), None, 1e-5)?;
        linear(&normed, &w[0], Some(&w[1]))?.tanh()
    };
    Ok(match layer {
        Layer::Identity => x.clone(),
        Layer::Residual => x.add(&linear(&linear(x, &w[0], Some(&w[1]))?.gelu()?, &w[0], None)?)?,
        Layer::Window => x.unsqueeze(0)?.select(0, 0)?,
        Layer::View => w[0].matmul(&x.transpose(0, 1)?)?.transpose(0, 1)?,
        Layer::Plain => x.matmul(&w[0])?.add(x)?,
        Layer::Tanh => x.matmul(&w[0])?.tanh()?,
        Layer::Recomputed => {
            let captured = w.to_vec();
            let again = recompute(&[x], move |x| Ok(vec![block(&x[0], &captured)?]))?;
            x.sub(&again[0])?
        }
        Layer::FullRecompute => {
            let captured = w.to_vec();
            recompute(&[x], move |x| Ok(vec![block(&x[0], &captured)?]))?.remove(0)
        }
    })
}

/// What a run leaves.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Left {
    pub(crate) losses: BTreeMap<usize, Bits>,
    /// Gradients of the data, by micro-batch.
    pub(crate) data: BTreeMap<usize, Bits>,
    /// Sums over micro-batches, by stage and parameter.
    pub(crate) parameters: BTreeMap<(usize, usize), Bits>,
}

/// The stages of one rank, as work for the engine.
pub(crate) struct Stack {
    pub(crate) plan: Plan,
    pub(crate) parameters: BTreeMap<usize, Vec<Tensor>>,
    sums: BTreeMap<(usize, usize), Tensor>,
    data: BTreeMap<usize, History>,
    pub(crate) left: Left,
}

impl Stack {
    pub(crate) fn new(plan: &Plan, stages: impl Iterator<Item = usize>) -> Stack {
        let parameters = stages.map(|stage| (stage, plan.parameters(stage))).collect();
        let (sums, data, left) = (BTreeMap::new(), BTreeMap::new(), Left::default());
        Stack { plan: plan.clone(), parameters, sums, data, left }
    }

    /// Adds the gradients of a micro-batch to the sums, in the order they come.
    fn fold(&mut self, stage: usize) -> Result<()> {
        for (i, parameter) in self.parameters[&stage].iter().enumerate() {
            if let Some(grad) = parameter.take_grad() {
                let sum = match self.sums.remove(&(stage, i)) {
                    Some(sum) => sum.add(&grad)?,
                    None => grad,
                };
                self.sums.insert((stage, i), sum);
            }
        }
        Ok(())
    }

    pub(crate) fn finished(mut self) -> Left {
        self.left.parameters = self.sums.iter().map(|(key, sum)| (*key, bits(sum))).collect();
        self.left
    }
}

impl StageWork for Stack {
    fn forward(&mut self, at: At, inputs: Vec<Tensor>) -> std::result::Result<Vec<Tensor>, Failure> {
        let inputs = match at.stage {
            0 => {
                let data = self.plan.data(at.micro).requires_grad();
                self.data.extend(data.history().map(|place| (at.micro, place)));
                vec![data]
            }
            _ => inputs,
        };
        let outputs = self.plan.apply(at.stage, &self.parameters[&at.stage], &inputs)?;
        if self.plan.is_last(at.stage) {
            self.left.losses.insert(at.micro, bits(&outputs[0]));
        }
        Ok(outputs)
    }

    fn finish(&mut self, at: At) -> std::result::Result<(), Failure> {
        self.fold(at.stage)?;
        if at.stage == 0 {
            let grad = self.data.remove(&at.micro).and_then(|place| place.take_grad());
            self.left.data.extend(grad.map(|grad| (at.micro, bits(&grad))));
        }
        Ok(())
    }
}

/// All stages on one rank as one graph, micro-batches in order.
pub(crate) fn alone(plan: &Plan) -> Left {
    let mut stack = Stack::new(plan, 0..plan.layers.len());
    for micro in 0..plan.rows.len() {
        let data = plan.data(micro).requires_grad();
        let mut state = vec![data.clone()];
        for stage in 0..plan.layers.len() {
            state = plan.apply(stage, &stack.parameters[&stage], &state).unwrap();
        }
        stack.left.losses.insert(micro, bits(&state[0]));
        if state[0].has_history() {
            state[0].backward().unwrap();
        }
        (0..plan.layers.len()).for_each(|stage| stack.fold(stage).unwrap());
        stack.left.data.extend(data.take_grad().map(|grad| (micro, bits(&grad))));
    }
    stack.finished()
}

/// Thread ranks that give up after a while instead of hanging the test.
pub(crate) fn ranks<R: Send>(count: usize, work: impl Fn(Arc<dyn Comm>) -> R + Sync) -> Vec<R> {
    let comms = threads::create(&threads::Options::new(count).timeout(Duration::from_secs(60)));
    std::thread::scope(|scope| {
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The model in pieces under a schedule; what all ranks leave together.
pub(crate) fn piped(
    plan: &Plan,
    schedule: &Schedule,
    options: &Options,
) -> std::result::Result<Left, Vec<Error>> {
    let run = |comm: Arc<dyn Comm>| -> std::result::Result<(Left, Ran), Error> {
        let mut stack = Stack::new(plan, schedule.stages().of(comm.rank()));
        let ran = engine::run(schedule, &comm, options, &mut stack)?;
        Ok((stack.finished(), ran))
    };
    let (mut left, mut errors) = (Left::default(), Vec::new());
    for end in ranks(schedule.ranks(), run) {
        match end {
            Ok((part, _)) => {
                left.losses.extend(part.losses);
                left.data.extend(part.data);
                left.parameters.extend(part.parameters);
            }
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(left) } else { Err(errors) }
}
