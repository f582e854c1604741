//! Weights with adapters on top, made row by row when they are read.

use crate::error::{Error, Result};
use crate::values::{Values, round, whole};
use planaria_layout::{DType, Shape};
use std::sync::{Arc, OnceLock};

/// A base weight plus the product of two factors, perhaps with its rows or columns brought to other lengths.
#[derive(Debug)]
pub(super) struct Adapted {
    base: Arc<dyn Values>,
    down: Arc<dyn Values>,
    up: Arc<dyn Values>,
    rows: usize,
    columns: usize,
    rank: usize,
    turned: bool,
    factor: f64,
    direction: Direction,
    /// Left factor row by row and right factor row by row.
    factors: OnceLock<(Vec<f64>, Vec<f64>)>,
}

/// Which lengths an adapter sets (DoRA).
#[derive(Debug)]
pub(super) enum Direction {
    None,
    Rows(Arc<dyn Values>, OnceLock<Vec<f64>>),
    Columns(Arc<dyn Values>, OnceLock<Vec<f64>>),
}

impl Direction {
    pub(super) fn rows(lengths: Arc<dyn Values>) -> Direction {
        Direction::Rows(lengths, OnceLock::new())
    }

    pub(super) fn columns(lengths: Arc<dyn Values>) -> Direction {
        Direction::Columns(lengths, OnceLock::new())
    }
}

/// Rows that are computed together.
const ELEMENTS: usize = 64 << 10;

impl Adapted {
    pub(super) fn new(
        base: Arc<dyn Values>,
        (down, up): (Arc<dyn Values>, Arc<dyn Values>),
        (rows, columns, rank): (usize, usize, usize),
        turned: bool,
        factor: f64,
        direction: Direction,
    ) -> Adapted {
        Adapted { base, down, up, rows, columns, rank, turned, factor, direction, factors: OnceLock::new() }
    }

    /// The factors as they are multiplied: `[rows, rank]` and `[rank, columns]`.
    fn factors(&self) -> Result<&(Vec<f64>, Vec<f64>)> {
        if let Some(ready) = self.factors.get() {
            return Ok(ready);
        }
        let (down, up) = (whole(&*self.down)?, whole(&*self.up)?);
        let ready = match self.turned {
            false => (up, down),
            true => (turn(&down, self.rank, self.rows), turn(&up, self.columns, self.rank)),
        };
        Ok(self.factors.get_or_init(|| ready))
    }

    /// Whole rows of the sum, before lengths are set.
    fn sum(&self, row: usize, out: &mut [f64]) -> Result<()> {
        let (left, right) = self.factors()?;
        self.base.read(row * self.columns, out)?;
        for (at, out) in out.chunks_mut(self.columns).enumerate() {
            for k in 0..self.rank {
                let weight = self.factor * left[(row + at) * self.rank + k];
                let line = &right[k * self.columns..(k + 1) * self.columns];
                out.iter_mut().zip(line).for_each(|(out, x)| *out += weight * x);
            }
        }
        Ok(())
    }

    /// Lengths of the columns of the sum.
    fn column_norms(&self) -> Result<Vec<f64>> {
        let mut squares = vec![0.0; self.columns];
        let step = (ELEMENTS / self.columns.max(1)).max(1);
        let mut values = Vec::new();
        for row in (0..self.rows).step_by(step) {
            values.resize(step.min(self.rows - row) * self.columns, 0.0);
            self.sum(row, &mut values)?;
            for line in values.chunks(self.columns) {
                squares.iter_mut().zip(line).for_each(|(sum, x)| *sum += x * x);
            }
        }
        Ok(squares.into_iter().map(f64::sqrt).collect())
    }

    /// Whole rows of the result.
    fn rows(&self, row: usize, out: &mut [f64]) -> Result<()> {
        self.sum(row, out)?;
        match &self.direction {
            Direction::None => {}
            Direction::Rows(lengths, ready) => {
                let lengths = once(ready, || whole(&**lengths))?;
                for (at, line) in out.chunks_mut(self.columns).enumerate() {
                    let norm = line.iter().map(|x| x * x).sum::<f64>().sqrt();
                    line.iter_mut().for_each(|x| *x *= lengths[row + at] / norm);
                }
            }
            Direction::Columns(lengths, ready) => {
                let factors = once(ready, || {
                    let (lengths, norms) = (whole(&**lengths)?, self.column_norms()?);
                    Ok(lengths.iter().zip(&norms).map(|(length, norm)| length / norm).collect())
                })?;
                for line in out.chunks_mut(self.columns) {
                    line.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
                }
            }
        }
        Ok(())
    }
}

fn once(cell: &OnceLock<Vec<f64>>, make: impl FnOnce() -> Result<Vec<f64>>) -> Result<&Vec<f64>> {
    if let Some(ready) = cell.get() {
        return Ok(ready);
    }
    let made = make()?;
    Ok(cell.get_or_init(|| made))
}

/// Rows become columns.
pub(super) fn turn(values: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}

impl Values for Adapted {
    fn dtype(&self) -> DType {
        self.base.dtype()
    }

    fn shape(&self) -> &Shape {
        self.base.shape()
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        let step = (ELEMENTS / self.columns.max(1)).max(1) * self.columns;
        let mut rows = Vec::new();
        let mut done = 0;
        while done < out.len() {
            let from = (first + done) / self.columns;
            let skip = first + done - from * self.columns;
            let take = (out.len() - done).min(step);
            let to = (first + done + take).div_ceil(self.columns);
            rows.resize((to - from) * self.columns, 0.0);
            self.rows(from, &mut rows)?;
            out[done..done + take].copy_from_slice(&rows[skip..skip + take]);
            done += take;
        }
        round(out, self.dtype());
        Ok(())
    }
}

/// A bias that an adapter shifts.
#[derive(Debug)]
pub(super) struct Shifted {
    pub(super) base: Arc<dyn Values>,
    pub(super) shift: Arc<dyn Values>,
    pub(super) factor: f64,
}

impl Values for Shifted {
    fn dtype(&self) -> DType {
        self.base.dtype()
    }

    fn shape(&self) -> &Shape {
        self.base.shape()
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        let mut shift = vec![0.0; out.len()];
        self.base.read(first, out)?;
        self.shift.read(first, &mut shift)?;
        out.iter_mut().zip(shift).for_each(|(out, shift)| *out += self.factor * shift);
        round(out, self.dtype());
        Ok(())
    }
}

/// A matrix with some rows replaced.
#[derive(Debug)]
pub(super) struct Rows {
    base: Arc<dyn Values>,
    new: Arc<dyn Values>,
    width: usize,
    /// Row of the matrix and row that takes its place, ascending.
    places: Vec<(usize, usize)>,
}

impl Rows {
    pub(super) fn new(base: Arc<dyn Values>, new: Arc<dyn Values>, indices: Vec<usize>) -> Result<Rows> {
        let width: usize = base.shape()[1..].iter().product();
        let rows = base.shape().first().copied().unwrap_or(0);
        if new.shape()[..] != [indices.len(), width] || indices.iter().any(|&index| index >= rows) {
            let (new, base) = (new.shape(), base.shape());
            return Err(Error::request(format!("rows of the shape {new} do not fit the tokens of {base}")));
        }
        let mut places: Vec<(usize, usize)> =
            indices.into_iter().enumerate().map(|(new, old)| (old, new)).collect();
        places.sort_unstable();
        Ok(Rows { base, new, width, places })
    }
}

impl Values for Rows {
    fn dtype(&self) -> DType {
        self.base.dtype()
    }

    fn shape(&self) -> &Shape {
        self.base.shape()
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        self.base.read(first, out)?;
        let end = first + out.len();
        for &(old, new) in &self.places {
            let (from, to) = ((old * self.width).max(first), ((old + 1) * self.width).min(end));
            if from < to {
                self.new
                    .read(new * self.width + from - old * self.width, &mut out[from - first..to - first])?;
            }
        }
        round(out, self.dtype());
        Ok(())
    }
}
