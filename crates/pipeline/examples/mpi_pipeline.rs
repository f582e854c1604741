//! Every kind of pipeline on MPI ranks: the gradients must be the bits of all stages on one rank.
//! `cargo xtask test` runs it: `mpirun -n 3 target/debug/examples/mpi_pipeline 5`.

use planaria_comm::{Comm, CommExt, mpi};
use planaria_pipeline::engine::{At, Engine, Options, StageWork};
use planaria_pipeline::{Failure, ScheduleKind};
use planaria_tensor::ops::linear;
use planaria_tensor::{Keep, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Large enough that messages do not fit into their envelopes.
const ROWS: usize = 48;
const WIDTH: usize = 64;

fn main() -> Result<(), Failure> {
    let micros: usize = std::env::args().nth(1).ok_or("give the number of micro-batches")?.parse()?;
    mpi::run(&mpi::Options::default(), |comm| check(&comm, micros).map_err(|e| e.to_string()))?;
    Ok(())
}

fn check(comm: &Arc<dyn Comm>, micros: usize) -> Result<(), Failure> {
    for kind in ScheduleKind::ALL {
        let chunks = if kind == ScheduleKind::Interleaved { 2 } else { kind.chunks().0 };
        let schedule = Arc::new(kind.build(comm.size(), micros, chunks)?);
        let count = schedule.stages().len();
        let mut work = Stack::new(count, schedule.stages().of(comm.rank()))?;
        let mut engine = Engine::new(schedule.clone(), comm.clone(), Options::default())?;
        for _ in 0..2 {
            engine.run(&mut work)?;
        }
        let mut alone = Stack::new(count, 0..count)?;
        (0..2).try_for_each(|_| alone.whole(micros))?;
        for (stage, sum) in &work.sums {
            let (ours, theirs) = (sum.to_vec::<f32>()?, alone.sums[stage].to_vec::<f32>()?);
            if ours.iter().zip(&theirs).any(|(a, b)| a.to_bits() != b.to_bits()) {
                return Err(format!("{kind}: stage {stage} has other gradients than on one rank").into());
            }
        }
    }
    if comm.rank() == 0 {
        println!(
            "{} kinds of pipelines, the same bits on {} MPI ranks and on one",
            ScheduleKind::ALL.len(),
            comm.size()
        );
    }
    Ok(())
}

/// Residual layers, one for each stage, and the sums of their gradients.
struct Stack {
    count: usize,
    weights: BTreeMap<usize, Tensor>,
    sums: BTreeMap<usize, Tensor>,
}

impl Stack {
    fn new(count: usize, stages: impl Iterator<Item = usize>) -> Result<Stack, Failure> {
        let weight = |stage| Ok::<_, Failure>((stage, value(stage, &[WIDTH, WIDTH])?.requires_grad()));
        Ok(Stack { count, weights: stages.map(weight).collect::<Result<_, _>>()?, sums: BTreeMap::new() })
    }

    fn apply(&self, stage: usize, x: &Tensor) -> Result<Tensor, Failure> {
        let y = x.add(&linear(x, &self.weights[&stage], None)?.gelu()?)?;
        Ok(if stage + 1 == self.count { y.square()?.sum(&[], Keep::No)? } else { y })
    }

    fn fold(&mut self, stage: usize) -> Result<(), Failure> {
        let grad = self.weights[&stage].take_grad().ok_or("a stage has no gradient")?;
        let sum = match self.sums.remove(&stage) {
            Some(sum) => sum.add(&grad)?,
            None => grad,
        };
        self.sums.insert(stage, sum);
        Ok(())
    }

    /// All stages as one graph.
    fn whole(&mut self, micros: usize) -> Result<(), Failure> {
        for micro in 0..micros {
            let data = value(100 + micro, &[ROWS, WIDTH])?;
            (0..self.count).try_fold(data, |x, stage| self.apply(stage, &x))?.backward()?;
            (0..self.count).try_for_each(|stage| self.fold(stage))?;
        }
        Ok(())
    }
}

impl StageWork for Stack {
    fn forward(&mut self, at: At, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Failure> {
        let x = match inputs.into_iter().next() {
            Some(x) => x,
            None => value(100 + at.micro, &[ROWS, WIDTH])?,
        };
        Ok(vec![self.apply(at.stage, &x)?])
    }

    fn finish(&mut self, at: At) -> Result<(), Failure> {
        self.fold(at.stage)
    }
}

/// Numbers that depend on the seed alone.
fn value(seed: usize, shape: &[usize]) -> Result<Tensor, Failure> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) / 8.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Ok(Tensor::from_slice(&values, shape)?)
}
