//! What PiSSA and OLoRA take out of a weight before training: found again from the weight.

use crate::error::{Error, Result};
use crate::values::{Values, whole};
use planaria_layout::{DType, Shape};
use planaria_nn::lora::{Factors, starts};
use std::sync::{Arc, OnceLock};

/// A start whose factors are found when one of them is read.
#[derive(Debug)]
struct Start {
    weight: Arc<dyn Values>,
    /// The weight lies `[in, out]`.
    turned: bool,
    rank: usize,
    scale: f64,
    kind: Factors,
    ready: OnceLock<Result<(Vec<f64>, Vec<f64>)>>,
}

impl Start {
    /// Rows and columns of the product.
    fn sizes(&self) -> [usize; 2] {
        let shape = self.weight.shape();
        if self.turned { [shape[1], shape[0]] } else { [shape[0], shape[1]] }
    }

    fn find(&self) -> Result<(Vec<f64>, Vec<f64>)> {
        let mut values = whole(&*self.weight)?;
        let [out, inner] = self.sizes();
        if self.turned {
            values = super::adapted::turn(&values, inner, out);
        }
        starts::first_factors(&values, [out, inner], self.rank, self.scale, self.kind)
            .map_err(|error| Error::request(error.to_string()))
    }

    fn ready(&self) -> Result<&(Vec<f64>, Vec<f64>)> {
        self.ready.get_or_init(|| self.find()).as_ref().map_err(Error::clone)
    }
}

/// One of its factors.
#[derive(Debug)]
struct Factor {
    start: Arc<Start>,
    second: bool,
    shape: Shape,
}

impl Values for Factor {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        let (down, up) = self.start.ready()?;
        let all = if self.second { up } else { down };
        out.copy_from_slice(&all[first..first + out.len()]);
        Ok(())
    }
}

/// The factors `[rank, in]` and `[out, rank]` that a start took out of a matrix. Nothing is read yet.
pub(super) fn first_factors(
    weight: Arc<dyn Values>,
    turned: bool,
    (rank, scale): (usize, f64),
    kind: Factors,
) -> Result<(Arc<dyn Values>, Arc<dyn Values>)> {
    let start = Arc::new(Start { weight, turned, rank, scale, kind, ready: OnceLock::new() });
    let [out, inner] = start.sizes();
    let down = Factor { start: start.clone(), second: false, shape: Shape::new(&[rank, inner])? };
    let up = Factor { start, second: true, shape: Shape::new(&[out, rank])? };
    Ok((Arc::new(down), Arc::new(up)))
}
