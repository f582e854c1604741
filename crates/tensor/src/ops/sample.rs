//! Random calls of an op, for tests that go over the whole table.

use crate::dispatch::{Outputs, apply_shared};
use crate::error::Result;
use crate::op::Op;
use crate::tensor::Tensor;
use planaria_array::random::{self, Key, Window};
use planaria_array::{Array, DType};
use std::fmt;
use std::sync::Arc;

type Call = dyn Fn(&[&Tensor]) -> Result<Outputs> + Send + Sync;

/// One call: an op and whole inputs for it.
#[derive(Clone)]
pub struct Sample {
    /// What is called, in words.
    pub name: String,
    /// The inputs.
    pub inputs: Vec<Array>,
    /// True when shapes, or who sends what, follow from values: that cannot be planned.
    pub follows_values: bool,
    /// True when gradients have no gradients of their own.
    pub differentiable_once: bool,
    call: Arc<Call>,
}

impl Sample {
    /// A call of `op` on `inputs`.
    pub fn new(op: impl Op, inputs: impl IntoIterator<Item = Array>) -> Sample {
        let op: Arc<dyn Op> = Arc::new(op);
        let (name, follows_values) = (format!("{} {op:?}", op.name()), op.shapes_follow_values());
        let call = move |inputs: &[&Tensor]| apply_shared(op.clone(), inputs);
        Sample { follows_values, ..Sample::of_call(name, call, inputs) }
    }

    /// A call of a function that picks its ops by what it is given.
    pub fn of_call(
        name: String,
        call: impl Fn(&[&Tensor]) -> Result<Outputs> + Send + Sync + 'static,
        inputs: impl IntoIterator<Item = Array>,
    ) -> Sample {
        let (inputs, call) = (inputs.into_iter().collect(), Arc::new(call));
        Sample { name, inputs, follows_values: false, differentiable_once: false, call }
    }

    /// Runs it on these inputs.
    pub fn run(&self, inputs: &[&Tensor]) -> Result<Outputs> {
        (self.call)(inputs)
    }
}

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sample({})", self.name)
    }
}

/// A source of random choices that gives the same for the same seed.
#[derive(Clone, Debug)]
pub struct Draw {
    key: Key,
    count: u64,
}

impl Draw {
    /// The choices of one seed.
    pub fn new(seed: u64) -> Draw {
        Draw { key: Key::new(seed, 0), count: 0 }
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        self.key.fold(self.count).stream
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// One of the values.
    pub fn pick<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }

    /// True half of the time.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A size of a dim: small, now and then uneven for every mesh, rarely 1.
    pub fn size(&mut self) -> usize {
        self.pick(&[1, 2, 3, 4, 4, 5, 6, 8, 8])
    }

    /// A shape of `ndim` dims.
    pub fn shape(&mut self, ndim: usize) -> Vec<usize> {
        (0..ndim).map(|_| self.size()).collect()
    }

    /// A shape of up to `most` dims and at least `least`.
    pub fn shape_of(&mut self, least: usize, most: usize) -> Vec<usize> {
        let ndim = least + self.below(most - least + 1);
        self.shape(ndim)
    }

    /// A shape that broadcasts to `shape`.
    pub fn broadcastable(&mut self, shape: &[usize]) -> Vec<usize> {
        let skip = if self.coin() { self.below(shape.len() + 1) } else { 0 };
        shape[skip..].iter().map(|&n| if self.below(4) == 0 { 1 } else { n }).collect()
    }

    /// Normal values.
    pub fn normal(&mut self, shape: &[usize]) -> Result<Array> {
        Ok(Array::normal(shape, DType::F64, self.key.fold(self.next()))?)
    }

    /// Values between two bounds.
    pub fn between(&mut self, low: f64, high: f64, shape: &[usize]) -> Result<Array> {
        let mut values = vec![0.0; shape.iter().product()];
        let window = Window::flat(0, values.len());
        random::uniform_f64(&mut values, self.key.fold(self.next()), &window)?;
        values.iter_mut().for_each(|v| *v = low + (high - low) * *v);
        Ok(Array::from_slice(&values, shape)?)
    }

    /// Distinct values, so that maxima and orders are unambiguous.
    pub fn distinct(&mut self, shape: &[usize]) -> Result<Array> {
        let count: usize = shape.iter().product();
        let mut values: Vec<f64> = (0..count).map(|i| i as f64 - count as f64 / 2.0 + 0.25).collect();
        for i in (1..count).rev() {
            values.swap(i, self.below(i + 1));
        }
        Ok(Array::from_slice(&values, shape)?)
    }

    /// Whole numbers below a bound.
    pub fn integers(&mut self, bound: usize, shape: &[usize]) -> Result<Array> {
        let values: Vec<i64> =
            (0..shape.iter().product::<usize>()).map(|_| self.below(bound) as i64).collect();
        Ok(Array::from_slice(&values, shape)?)
    }

    /// Positions below a bound, each at most once.
    pub fn positions(&mut self, bound: usize, count: usize) -> Result<Array> {
        let mut values: Vec<i64> = (0..bound as i64).collect();
        (1..bound).rev().for_each(|i| values.swap(i, self.below(i + 1)));
        values.truncate(count);
        Ok(Array::from_slice(&values, &[values.len()])?)
    }

    /// Truth values.
    pub fn mask(&mut self, shape: &[usize]) -> Result<Array> {
        Ok(self.integers(2, shape)?.cast(DType::Bool)?)
    }
}
