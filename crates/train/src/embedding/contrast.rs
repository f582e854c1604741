//! The contrastive loss of an update: every query among the texts of all queries, and the gradients of all vectors.
//!
//! Scores are never all there at once: some queries at a time meet everything. How many follows from the number of texts
//! alone, so the bits are the same however the texts were spread over ranks and micro-batches.

use super::similarity::{Similarity, normalized};
use crate::error::{Error, Result};
use planaria_array::ops::Keep;
use planaria_array::{Array, Bool, DType, Device};
use planaria_tensor::{Tensor, no_grad, ops, with_grad};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Scores that are there at once.
const SCORES: usize = 1 << 22;

/// How often they are there, in f32.
const COPIES: u64 = 6;

/// Who is compared with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// A query with the texts of all queries.
    QueryToDoc,
    /// What answers a query with all queries.
    DocToQuery,
    /// A query with all others.
    QueryToQuery,
    /// What answers a query with the texts of all others.
    DocToDoc,
}

/// How directions come together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Partition {
    /// All scores of a query in one sum.
    #[default]
    Joint,
    /// A sum for each direction; the loss is their mean.
    PerDirection,
}

/// Which scores weigh more the higher they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Hardness {
    /// None.
    #[default]
    None,
    /// Those of a query's own negatives.
    HardNegatives,
    /// Those of the texts of other queries.
    InBatchNegatives,
    /// Both.
    AllNegatives,
}

/// What is compared, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Contrast {
    /// [`Similarity::Cos`] or [`Similarity::Dot`].
    pub similarity: Similarity,
    /// Factor on scores: one over the temperature.
    pub scale: f64,
    /// At least one.
    pub directions: Vec<Direction>,
    /// How they come together.
    pub partition: Partition,
    /// Which scores weigh more.
    pub hardness: Hardness,
    /// How much more.
    pub hardness_strength: f64,
    /// Texts that are more alike than what answers the query by more than this are left out: they answer it too.
    pub false_negative_margin: Option<f64>,
}

impl Default for Contrast {
    fn default() -> Contrast {
        Contrast {
            similarity: Similarity::Cos,
            scale: 20.0,
            directions: vec![Direction::QueryToDoc],
            partition: Partition::Joint,
            hardness: Hardness::None,
            hardness_strength: 0.0,
            false_negative_margin: None,
        }
    }
}

impl Contrast {
    /// Refuses what has no meaning; `key` stands before the names of settings.
    pub fn check(&self, key: &str) -> Result<()> {
        let refuse = |name: &str, found: String, expected: &str| {
            Err(Error::Value { key: format!("{key}{name}"), found, expected: expected.into() })
        };
        if !matches!(self.similarity, Similarity::Cos | Similarity::Dot) {
            return refuse("similarity", named(&self.similarity), "cos or dot");
        }
        if !(self.scale > 0.0 && self.scale.is_finite()) {
            return refuse("scale", self.scale.to_string(), "a finite number above 0");
        }
        let twice = |(at, of): (usize, &Direction)| self.directions[..at].contains(of);
        if self.directions.is_empty() || self.directions.iter().enumerate().any(twice) {
            return refuse("directions", named(&self.directions), "at least one, none twice");
        }
        let other = |of: &&Direction| matches!(of, Direction::QueryToQuery | Direction::DocToDoc);
        if self.partition == Partition::PerDirection
            && let Some(found) = self.directions.iter().find(other)
        {
            let expected = "`joint` with directions that do not have what answers the query";
            return refuse("partition", format!("per_direction with {}", named(found)), expected);
        }
        Ok(())
    }
}

/// A setting as a configuration writes it.
pub(crate) fn named(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The losses of an update and their gradients.
#[derive(Clone, Debug)]
pub struct Contrasted {
    /// Of each query, `[queries]`.
    pub losses: Array,
    /// Gradients of the sum of all losses, one `[queries, width]` for each column.
    pub grads: Vec<Array>,
}

/// A loss of all rows together as that of each of them. Columns are vectors `[rows, width]`.
pub fn joined(columns: &[Array], of: &dyn Fn(&[Tensor]) -> Result<Tensor>) -> Result<Contrasted> {
    let Some(first) = columns.first() else { return Err(too_few(0)) };
    let (device, rows) = (first.device(), first.shape()[0]);
    with_grad(|| {
        let leaf = |column: &Array| Ok(Tensor::new(column.to(Device::Cpu)?).requires_grad());
        let leaves = columns.iter().map(leaf).collect::<Result<Vec<Tensor>>>()?;
        let loss = of(&leaves)?;
        loss.backward()?;
        let grad = |leaf: &Tensor| -> Result<Array> {
            let grad = match leaf.grad() {
                Some(grad) => grad.local().clone(),
                None => leaf.local().zeros_like()?,
            };
            Ok(Tensor::new(grad).mul_scalar(rows as f64)?.local().to(device)?)
        };
        let losses = Array::full(&[rows], loss.item()?.as_f64(), first.dtype())?;
        Ok(Contrasted { losses: losses.to(device)?, grads: leaves.iter().map(grad).collect::<Result<_>>()? })
    })
}

/// The loss of each query, and the gradients of their sum. Columns are vectors `[queries, width]`: queries, what answers them,
/// and any number of columns of what does not. Candidates with the id of the query's own answer are left out where there are
/// `ids`, one for each row of each column but the first.
pub fn contrast(columns: &[Array], options: &Contrast, ids: Option<&[Vec<u64>]>) -> Result<Contrasted> {
    let [queries, documents @ ..] = columns else { return Err(too_few(0)) };
    if documents.is_empty() {
        return Err(too_few(1));
    }
    let count = queries.shape()[0];
    let prepared = |column: &Array| -> Result<Tensor> {
        let column = Tensor::new(column.clone());
        let column =
            if options.similarity == Similarity::Cos { no_grad(|| normalized(&column))? } else { column };
        Ok(column.detach().requires_grad())
    };
    let prepared: Vec<Tensor> = columns.iter().map(prepared).collect::<Result<_>>()?;
    let ids = ids.map(Ids::new);
    let step = at_once(count, columns.len());
    let mut losses = Vec::new();
    for first in (0..count).step_by(step) {
        let block =
            Block { columns: &prepared, rows: first..(first + step).min(count), options, ids: ids.as_ref() };
        let found = block.losses()?;
        found.sum(&[], Keep::No)?.backward()?;
        losses.push(found.local().clone());
    }
    let grads = columns.iter().zip(&prepared).map(|(column, prepared)| through(column, prepared, options));
    let losses = planaria_array::ops::concat(&losses.iter().collect::<Vec<_>>(), 0)?;
    Ok(Contrasted { losses, grads: grads.collect::<Result<_>>()? })
}

/// How many queries meet everything at a time.
fn at_once(queries: usize, columns: usize) -> usize {
    (SCORES / (queries * columns).max(1)).clamp(1, queries.max(1))
}

/// Bytes of the scores that are there at once: themselves, what is left out of them, and what backward needs.
pub(crate) fn scores_held(queries: usize, columns: usize) -> u64 {
    let scores = at_once(queries, columns) * queries * columns.saturating_sub(1);
    COPIES * 4 * scores as u64
}

fn too_few(found: usize) -> Error {
    Error::Run { what: format!("{found} columns of vectors; a query and what answers it are two") }
}

/// The gradient of a column from that of what was made of it.
fn through(column: &Array, prepared: &Tensor, options: &Contrast) -> Result<Array> {
    let Some(grad) = prepared.grad() else { return Ok(column.zeros_like()?) };
    if options.similarity != Similarity::Cos {
        return Ok(grad.local().clone());
    }
    let column = Tensor::new(column.clone()).requires_grad();
    normalized(&column)?.mul(&grad.detach())?.sum(&[], Keep::No)?.backward()?;
    match column.grad() {
        Some(grad) => Ok(grad.local().clone()),
        None => Err(Error::Bug { what: "a vector has no gradient".into() }),
    }
}

/// Which documents, `[queries, documents]`, are not candidates of each query: all columns but the first one after the other.
pub fn excluded(columns: &[Array], options: &Contrast, ids: Option<&[Vec<u64>]>) -> Result<Array> {
    let plain = |column: &Array| -> Result<Tensor> {
        let column = Tensor::new(column.clone());
        if options.similarity == Similarity::Cos { normalized(&column) } else { Ok(column) }
    };
    let prepared: Vec<Tensor> = columns.iter().map(plain).collect::<Result<_>>()?;
    let ids = ids.map(Ids::new);
    let rows = 0..columns.first().map_or(0, |queries| queries.shape()[0]);
    let block = Block { columns: &prepared, rows, options, ids: ids.as_ref() };
    let (similar, own) = (block.with_documents(0)?, block.own()?);
    let none = || Array::full(similar.shape(), false, DType::Bool);
    Ok(match block.left_out(&similar, &own)? {
        Some(mask) => mask.local().clone(),
        None => none()?,
    })
}

/// The ids of documents, all columns one after the other, and those of what answers each query.
struct Ids {
    documents: Vec<u64>,
    own: Vec<u64>,
}

impl Ids {
    fn new(columns: &[Vec<u64>]) -> Ids {
        Ids { documents: columns.concat(), own: columns.first().cloned().unwrap_or_default() }
    }
}

/// Some queries among everything.
struct Block<'a> {
    columns: &'a [Tensor],
    rows: Range<usize>,
    options: &'a Contrast,
    ids: Option<&'a Ids>,
}

impl Block<'_> {
    fn count(&self) -> usize {
        self.columns[0].shape()[0]
    }

    /// Rows of a column.
    fn part(&self, column: usize) -> Result<Tensor> {
        Ok(self.columns[column].narrow(0, self.rows.start, self.rows.len())?)
    }

    /// The rows of a column with all documents.
    fn with_documents(&self, column: usize) -> Result<Tensor> {
        let documents: Vec<&Tensor> = self.columns[1..].iter().collect();
        let documents = if let [one] = documents[..] { one.clone() } else { ops::concat(&documents, 0)? };
        Ok(self.part(column)?.matmul(&documents.transpose(0, 1)?)?)
    }

    /// The rows of a column with all queries.
    fn with_queries(&self, column: usize) -> Result<Tensor> {
        Ok(self.part(column)?.matmul(&self.columns[0].transpose(0, 1)?)?)
    }

    /// Each query with what answers it, `[rows, 1]`.
    fn own(&self) -> Result<Tensor> {
        Ok(self.part(0)?.mul(&self.part(1)?)?.sum(&[-1], Keep::Yes)?)
    }

    /// True where this holds of a row, counted in all, and a column of scores.
    fn mask(&self, width: usize, holds: impl Fn(usize, usize) -> bool) -> Result<Tensor> {
        let mask: Vec<Bool> = self
            .rows
            .clone()
            .flat_map(|row| (0..width).map(move |at| (row, at)))
            .map(|(row, at)| Bool::new(holds(row, at)))
            .collect();
        let mask = Array::from_slice(&mask, &[self.rows.len(), width])?;
        Ok(Tensor::new(mask.to(self.columns[0].local().device())?))
    }

    fn losses(&self) -> Result<Tensor> {
        let own = self.own()?;
        let mut scores = Vec::new();
        for direction in &self.options.directions {
            scores.push(self.scores(*direction, &own)?);
        }
        let answer = own.mul_scalar(self.options.scale)?.squeeze(&[-1])?;
        let sum = |scores: &Tensor| scores.logsumexp(&[-1], Keep::No);
        Ok(match self.options.partition {
            Partition::Joint => sum(&ops::concat(&scores.iter().collect::<Vec<_>>(), 1)?)?.sub(&answer)?,
            Partition::PerDirection => {
                let sums = scores.iter().map(sum).collect::<planaria_tensor::Result<Vec<_>>>()?;
                let mean =
                    ops::add_n(&sums.iter().collect::<Vec<_>>())?.mul_scalar(1.0 / sums.len() as f64)?;
                mean.sub(&answer)?
            }
        })
    }

    /// Scaled scores of one direction; minus infinity for what is not a candidate.
    fn scores(&self, direction: Direction, own: &Tensor) -> Result<Tensor> {
        let (count, scale) = (self.count(), self.options.scale);
        let scaled = |similar: Tensor| similar.mul_scalar(scale);
        let hide = |scores: Tensor, mask: &Tensor| scores.masked_fill(mask, f64::NEG_INFINITY);
        match direction {
            Direction::QueryToDoc => {
                let similar = self.with_documents(0)?;
                let out = no_grad(|| self.left_out(&similar.detach(), &own.detach()))?;
                let harder = self.harder(&similar.detach())?;
                let mut scores = scaled(similar)?;
                if let Some(harder) = harder {
                    scores = scores.add(&harder)?;
                }
                Ok(out.map_or(Ok(scores.clone()), |out| hide(scores, &out))?)
            }
            Direction::DocToQuery => {
                let scores = scaled(self.with_queries(1)?)?;
                // Queries that the same text answers are not strangers to it.
                let Some(Ids { own, .. }) = self.ids else { return Ok(scores) };
                Ok(hide(scores, &self.mask(count, |row, at| row != at && own[row] == own[at])?)?)
            }
            Direction::QueryToQuery => {
                Ok(hide(scaled(self.with_queries(0)?)?, &self.mask(count, |row, at| row == at)?)?)
            }
            Direction::DocToDoc => {
                let width = count * (self.columns.len() - 1);
                Ok(hide(scaled(self.with_documents(1)?)?, &self.mask(width, |row, at| at % count == row)?)?)
            }
        }
    }

    /// What is added to scores that weigh more the higher they are.
    fn harder(&self, similar: &Tensor) -> Result<Option<Tensor>> {
        let (count, width) = (self.count(), similar.shape()[1]);
        let hard = |row: usize, at: usize| at >= count && at % count == row;
        let other = |row: usize, at: usize| at % count != row;
        let mask = match self.options.hardness {
            Hardness::None => return Ok(None),
            Hardness::HardNegatives => self.mask(width, hard)?,
            Hardness::InBatchNegatives => self.mask(width, other)?,
            Hardness::AllNegatives => self.mask(width, |row, at| hard(row, at) || other(row, at))?,
        };
        let weights = mask.cast(similar.dtype())?.mul_scalar(self.options.hardness_strength)?;
        Ok(Some(similar.mul(&weights)?))
    }

    /// Documents that answer the query too, as their ids or their similarity say.
    fn left_out(&self, similar: &Tensor, own: &Tensor) -> Result<Option<Tensor>> {
        let (count, width) = (self.count(), similar.shape()[1]);
        let by_id =
            self.ids.map(|ids| self.mask(width, |row, at| row != at && ids.documents[at] == ids.own[row]));
        let by_id = by_id.transpose()?;
        let by_margin = match self.options.false_negative_margin {
            None => None,
            Some(margin) => {
                let close = similar.gt(&own.add_scalar(margin)?)?;
                // What answers a query is a candidate whatever the margin.
                let other = self.mask(width, |row, at| at != row || at >= count)?;
                Some(close.logical_and(&other)?)
            }
        };
        Ok(match (by_id, by_margin) {
            (Some(a), Some(b)) => Some(a.logical_or(&b)?),
            (a, b) => a.or(b),
        })
    }
}

/// The same on the first elements of all vectors, for each of `dims`, added up with these weights, 1 where there are none.
/// Gives the sum, and the mean loss of each of `dims`.
pub fn matryoshka(
    columns: &[Array],
    dims: &[usize],
    weights: &[f64],
    options: &Contrast,
    ids: Option<&[Vec<u64>]>,
) -> Result<(Contrasted, Vec<f64>)> {
    nested(columns, dims, weights, &|columns| contrast(columns, options, ids))
}

/// The same of any loss.
pub fn nested(
    columns: &[Array],
    dims: &[usize],
    weights: &[f64],
    of: &dyn Fn(&[Array]) -> Result<Contrasted>,
) -> Result<(Contrasted, Vec<f64>)> {
    let mut means = Vec::new();
    let mut total: Option<Contrasted> = None;
    for (place, &dim) in dims.iter().enumerate() {
        let weight = weights.get(place).copied().unwrap_or(1.0);
        let first = |column: &Array| column.narrow(1, 0, dim)?.contiguous();
        let narrow = columns.iter().map(first).collect::<planaria_array::Result<Vec<_>>>()?;
        let found = of(&narrow)?;
        let mean = Tensor::new(found.losses.clone()).mean(&[], Keep::No)?.item()?.as_f64();
        means.push(mean);
        let sum = match total.take() {
            Some(sum) => sum,
            None => Contrasted {
                losses: found.losses.zeros_like()?,
                grads: columns.iter().map(Array::zeros_like).collect::<planaria_array::Result<_>>()?,
            },
        };
        let add = |to: &Array, more: &Array| -> Result<()> {
            let more = Tensor::new(more.clone()).mul_scalar(weight)?;
            Ok(to.copy_from(&to.add(more.local())?)?)
        };
        add(&sum.losses, &found.losses)?;
        for (to, more) in sum.grads.iter().zip(&found.grads) {
            add(&to.narrow(1, 0, dim)?, more)?;
        }
        total = Some(sum);
    }
    let total = total.ok_or_else(|| Error::Run { what: "no sizes of embeddings were given".into() })?;
    Ok((total, means))
}
