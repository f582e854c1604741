//! Tensors of the result: a rule over inputs, and whatever it must know of all their elements.

use crate::error::{Error, Result};
use crate::method::{Combine, Rule};
use crate::passes::{Blocks, Inputs};
use crate::values::{Values, in_steps, round};
use planaria_layout::{DType, Shape};
use std::sync::{Arc, OnceLock};

/// A tensor that a method makes of others.
#[derive(Debug)]
pub(crate) struct Merged {
    name: String,
    inputs: Inputs,
    rule: Box<dyn Rule>,
    shape: Shape,
    dtype: DType,
    ready: OnceLock<Result<Box<dyn Combine>>>,
}

/// Memory that is kept between blocks: the inputs, and whole rows of what is made of them.
#[derive(Debug, Default)]
struct Scratch {
    read: Vec<Vec<f64>>,
    made: Vec<f64>,
}

impl Merged {
    pub(crate) fn new(name: &str, inputs: Inputs, rule: Box<dyn Rule>, dtype: DType) -> Result<Merged> {
        let shape = Shape::new(&inputs.shape)?;
        Ok(Merged { name: name.to_string(), inputs, rule, shape, dtype, ready: OnceLock::new() })
    }

    /// An error with the name of this tensor.
    fn named(&self, error: Error) -> Error {
        match error {
            Error::Request { what } => Error::tensor(&self.name, what),
            other => other,
        }
    }

    /// One thread looks at all elements, the others wait for it.
    fn ready(&self) -> Result<&dyn Combine> {
        match self.ready.get_or_init(|| self.rule.prepare(&self.inputs)) {
            Ok(ready) => Ok(&**ready),
            Err(error) => Err(error.clone()),
        }
    }

    fn read_blocks(&self, first: usize, out: &mut [f64], scratch: &mut Scratch) -> Result<()> {
        let ready = self.ready()?;
        let blocks = self.rule.blocks();
        let (step, row) = (self.inputs.block(blocks), self.inputs.row());
        let Scratch { read, made } = scratch;
        let mut done = 0;
        while done < out.len() {
            let at = first + done;
            let take = (out.len() - done).min(step - at % step);
            match blocks {
                Blocks::Any => {
                    self.inputs.read(at, take, read)?;
                    ready.combine(at, read, &mut out[done..done + take])?;
                }
                Blocks::Rows => {
                    let (from, to) = (at / row * row, (at + take).div_ceil(row) * row);
                    self.inputs.read(from, to - from, read)?;
                    made.resize(to - from, 0.0);
                    ready.combine(from, read, made)?;
                    out[done..done + take].copy_from_slice(&made[at - from..at - from + take]);
                }
            }
            done += take;
        }
        Ok(())
    }
}

impl Values for Merged {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        self.read_blocks(first, out, &mut Scratch::default()).map_err(|error| self.named(error))?;
        round(out, self.dtype);
        Ok(())
    }

    fn copy(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let mut scratch = Scratch::default();
        let copied =
            in_steps(self.dtype, first, out, |at, values| self.read_blocks(at, values, &mut scratch));
        copied.map_err(|error| self.named(error))
    }
}

/// A tensor that is not a number to compute with: all inputs must hold the same.
#[derive(Debug)]
pub(crate) struct Same {
    pub(crate) name: String,
    pub(crate) values: Vec<Arc<dyn Values>>,
}

impl Values for Same {
    fn dtype(&self) -> DType {
        self.values[0].dtype()
    }

    fn shape(&self) -> &Shape {
        self.values[0].shape()
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        self.values[0].read(first, out)
    }

    fn copy(&self, first: usize, out: &mut [u8]) -> Result<()> {
        self.values[0].copy(first, out)?;
        let mut other = vec![0; out.len()];
        for values in &self.values[1..] {
            values.copy(first, &mut other)?;
            if other != out {
                let what = format!("{} is not a floating point type, and the inputs differ", self.dtype());
                return Err(Error::tensor(&self.name, what));
            }
        }
        Ok(())
    }
}

/// The first elements of a tensor as one of fewer rows.
#[derive(Debug)]
pub(crate) struct Prefix {
    pub(crate) inner: Arc<dyn Values>,
    pub(crate) shape: Shape,
}

impl Values for Prefix {
    fn dtype(&self) -> DType {
        self.inner.dtype()
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        self.inner.read(first, out)
    }
}
