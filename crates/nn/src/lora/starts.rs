//! First values that follow from the weights of the model: factors taken out of them, lengths of rows, vectors of tokens.

use super::adapter::{Adapter, TokenRows};
use super::config::Factors;
use crate::error::{Error, Result};
use crate::models::Network;
use crate::param::{Adaptable, Param};
use crate::svd::{Matrix, largest, rows_of};
use planaria_array::{Array, DType};
use planaria_tensor::{Tensor, no_grad};

/// New values of parameters by name: this rank's pieces.
pub type Values = Vec<(String, Array)>;

/// The values that the parameters of a stage take once the weights of the model are there. Collective over the inner mesh.
pub fn values(network: &mut dyn Network, start: Factors) -> Result<Values> {
    let (mut made, mut failed) = (Vec::new(), None);
    let mut visit = |layer: Adaptable<'_>| -> Result<()> {
        match layer {
            Adaptable::Linear(linear) => {
                let lies = if linear.turned { Lies::Turned } else { Lies::Product };
                begin(&linear.weight, &linear.adapters, lies, start, &mut made)?;
                token_rows(&linear.weight, linear.tokens.as_ref(), &mut made)?;
            }
            Adaptable::Experts(experts) => {
                begin(&experts.weight, &experts.adapters, Lies::Product, start, &mut made)?
            }
            Adaptable::Embedding(table) => {
                begin(&table.weight, &table.adapters, Lies::Table, start, &mut made)?;
                token_rows(&table.weight, table.tokens.as_ref(), &mut made)?;
            }
        }
        Ok(())
    };
    network.visit_layers(&mut |layer| failed = failed.take().or_else(|| visit(layer).err()));
    failed.map_or(Ok(made), Err)
}

/// Vectors of tokens begin as those of the table, or of the head that shares them and may be on another stage.
fn token_rows(weight: &Param, tokens: Option<&TokenRows>, made: &mut Values) -> Result<()> {
    let Some(TokenRows { rows, ids, .. }) = tokens else { return Ok(()) };
    let whole = no_grad(|| weight.value()?.whole())?;
    let ids: Vec<i64> = ids.iter().map(|&id| id as i64).collect();
    let chosen = whole.index_select(0, &Array::from_slice(&ids, &[ids.len()])?.to(whole.device())?)?;
    made.push((rows.name().to_string(), piece(rows, &chosen)?));
    Ok(())
}

/// How a weight lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    /// `[out, in]`.
    Product,
    /// `[in, out]`.
    Turned,
    /// `[vocabulary, width]`.
    Table,
}

fn begin(weight: &Param, adapters: &[Adapter], lies: Lies, start: Factors, made: &mut Values) -> Result<()> {
    for adapter in adapters {
        let taken = start.changes_base() && lies != Lies::Table;
        if !taken && adapter.magnitude.is_none() {
            continue;
        }
        let stored = no_grad(|| weight.value()?.whole())?;
        let stacked = weight.spec().is_stacked();
        let count = if stacked { stored.shape()[0] } else { 1 };
        let mut all = Taken::default();
        for expert in 0..count {
            let one = if stacked { stored.select(0, expert as i64)? } else { stored.clone() };
            let one = if lies == Lies::Product { one } else { one.transpose(0, 1)? };
            all.add(taken_out(&one, adapter, start, taken, (stacked, expert))?);
        }
        let shaped = |values: &[f64], param: &Param| -> Result<()> {
            let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
            let whole = Array::from_slice(&values, &param.spec().shape)?.cast(param.leaf().dtype())?;
            made.push((param.name().to_string(), piece(param, &whole)?));
            Ok(())
        };
        let mut shaped = shaped;
        if taken {
            shaped(&all.down, &adapter.down)?;
            shaped(&all.up, &adapter.up)?;
            let rest: Vec<f32> = all.rest.iter().map(|&value| value as f32).collect();
            let shape = if lies == Lies::Product {
                stored.shape().to_vec()
            } else {
                stored.transpose(0, 1)?.shape().to_vec()
            };
            let rest = Array::from_slice(&rest, &shape)?.cast(stored.dtype())?;
            let rest = if lies == Lies::Product { rest } else { rest.transpose(0, 1)?.contiguous()? };
            made.push((weight.name().to_string(), piece(weight, &rest)?));
        }
        if let Some(magnitude) = &adapter.magnitude {
            let values: Vec<f32> = all.lengths.iter().map(|&value| value as f32).collect();
            let whole =
                Array::from_slice(&values, &magnitude.spec().shape)?.cast(magnitude.leaf().dtype())?;
            made.push((magnitude.name().to_string(), piece(magnitude, &whole)?));
        }
    }
    Ok(())
}

/// What one weight gives, several experts one after the other.
#[derive(Debug, Default)]
struct Taken {
    down: Vec<f64>,
    up: Vec<f64>,
    /// What is left of the weight.
    rest: Vec<f64>,
    /// Of the rows of the weight with the product of the factors.
    lengths: Vec<f64>,
}

impl Taken {
    fn add(&mut self, other: Taken) {
        self.down.extend(other.down);
        self.up.extend(other.up);
        self.rest.extend(other.rest);
        self.lengths.extend(other.lengths);
    }
}

/// The factors of one weight `[out, in]`, where they are taken out of it, and the lengths of its rows.
fn taken_out(
    weight: &Array,
    adapter: &Adapter,
    start: Factors,
    taken: bool,
    (stacked, expert): (bool, usize),
) -> Result<Taken> {
    let [out, inner] = weight.shape()[..] else {
        return Err(Error::Sizes { what: format!("a weight of shape {} has no factors", weight.shape()) });
    };
    let values = weight.contiguous()?.cast(DType::F64)?.to_vec::<f64>()?;
    let rank = adapter.down.spec().shape[usize::from(stacked)];
    let scale = adapter.scale;
    let (down, up) = match taken {
        true => first_factors(&values, [out, inner], rank, scale, start)?,
        false => {
            let of = |param: &Param| -> Result<Vec<f64>> {
                let whole = no_grad(|| param.value()?.whole())?;
                let one = if stacked { whole.select(0, expert as i64)? } else { whole };
                Ok(one.contiguous()?.cast(DType::F64)?.to_vec::<f64>()?)
            };
            (narrow(&of(&adapter.down)?), narrow(&of(&adapter.up)?))
        }
    };
    let mut product = vec![0.0; out * inner];
    for row in 0..out {
        let line = &mut product[row * inner..(row + 1) * inner];
        for (k, low) in down.chunks(inner).enumerate() {
            let factor = scale * up[row * rank + k];
            line.iter_mut().zip(low).for_each(|(sum, low)| *sum += factor * low);
        }
    }
    let rest: Vec<f64> = match taken {
        true => values.iter().zip(&product).map(|(value, product)| value - product).collect(),
        false => values,
    };
    let length = |(row, product): (&[f64], &[f64])| {
        row.iter().zip(product).map(|(a, b)| (a + b) * (a + b)).sum::<f64>().sqrt()
    };
    let lengths = rest.chunks(inner).zip(product.chunks(inner)).map(length).collect();
    Ok(Taken { down, up, rest, lengths })
}

/// The factors `[rank, in]` and `[out, rank]` that a start takes out of a weight `[out, in]`, in the precision that factors are
/// kept in, so that weight and factors add up to what was there.
pub fn first_factors(
    values: &[f64],
    [out, inner]: [usize; 2],
    rank: usize,
    scale: f64,
    start: Factors,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (down, up) = match start {
        Factors::Olora => olora(values, [out, inner], rank),
        _ => pissa(values, [out, inner], rank, scale)?,
    };
    Ok((narrow(&down), narrow(&up)))
}

fn narrow(values: &[f64]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value as f32)).collect()
}

/// The largest singular values, shared out over both factors.
fn pissa(values: &[f64], [out, inner]: [usize; 2], rank: usize, scale: f64) -> Result<(Vec<f64>, Vec<f64>)> {
    let read = |first: usize, rows: &mut [f64]| -> Result<()> {
        rows_of(values, inner, first, rows);
        Ok(())
    };
    let svd = largest(&Matrix { rows: out, columns: inner, read: &read }, rank)?;
    let found = svd.values.len();
    let (mut down, mut up) = (vec![0.0; rank * inner], vec![0.0; out * rank]);
    for (k, value) in svd.values.iter().enumerate() {
        let root = (value / scale).sqrt();
        (0..inner).for_each(|j| down[k * inner + j] = root * svd.right[k * inner + j]);
        (0..out).for_each(|i| up[i * rank + k] = root * svd.left[i * found + k]);
    }
    Ok((down, up))
}

/// The first columns of Q and the first rows of R.
fn olora(values: &[f64], [out, inner]: [usize; 2], rank: usize) -> (Vec<f64>, Vec<f64>) {
    let mut q: Vec<Vec<f64>> = Vec::new();
    for column in 0..rank.min(inner).min(out) {
        let mut line: Vec<f64> = (0..out).map(|row| values[row * inner + column]).collect();
        // Twice is enough for orthogonal columns.
        for _ in 0..2 {
            for before in &q {
                let product: f64 = before.iter().zip(&line).map(|(a, b)| a * b).sum();
                line.iter_mut().zip(before).for_each(|(x, b)| *x -= product * b);
            }
        }
        let length = line.iter().map(|x| x * x).sum::<f64>().sqrt();
        let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
        line.iter_mut().for_each(|x| *x *= factor);
        q.push(line);
    }
    let (mut down, mut up) = (vec![0.0; rank * inner], vec![0.0; out * rank]);
    for (k, line) in q.iter().enumerate() {
        for (row, &x) in line.iter().enumerate() {
            up[row * rank + k] = x;
            let weights = &values[row * inner..(row + 1) * inner];
            down[k * inner..(k + 1) * inner].iter_mut().zip(weights).for_each(|(sum, w)| *sum += x * w);
        }
    }
    (down, up)
}

/// This rank's piece of a parameter's new value.
fn piece(param: &Param, whole: &Array) -> Result<Array> {
    let whole = whole.cast(param.leaf().dtype())?;
    Ok(match (param.leaf().layout(), param.leaf().world()) {
        (Some(layout), Some(world)) => {
            let placed = Tensor::place(&whole, layout.mesh(), layout.placements(), world)?;
            placed.local().contiguous()?
        }
        _ => whole,
    })
}
