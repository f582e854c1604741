//! The table of token vectors.

use super::Parts;
use crate::error::Result as BuildResult;
use crate::lora::{Adapter, TokenRows};
use crate::param::{Adaptable, Init, Module, Param};
use crate::table::Table;
use planaria_array::{Array, DType, Device};
use planaria_layout::{Layout, Placement, Reduce, Shape};
use planaria_tensor::ops::embedding;
use planaria_tensor::{Keep, Result, Tensor};

/// Rows by token id.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[vocabulary, width]`.
    pub weight: Param,
    /// What is added to the vectors.
    pub adapters: Vec<Adapter>,
    /// New vectors of some tokens.
    pub tokens: Option<TokenRows>,
}

impl Embedding {
    /// A layer of this table, without adapters.
    pub fn of(weight: Param) -> Embedding {
        Embedding { weight, adapters: Vec::new(), tokens: None }
    }

    /// True where vectors are the rows of the table and nothing else.
    pub(crate) fn is_plain(&self) -> bool {
        self.adapters.is_empty() && self.tokens.is_none()
    }

    /// A table of its own, not part of a model's, with values of deviation 1 that follow from the seed and the name.
    pub fn new(name: &str, rows: usize, width: usize, init: &Init) -> BuildResult<Embedding> {
        let mut table = Table::new(1.0);
        table.embedding(name, [rows, width])?;
        Parts::new(table.into_specs(), init, None)?.embedding(name)
    }

    /// `[..]` ids to `[.., width]`. A table cut by rows gives pending sums. Ids of the host are brought to the table's device.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let table = self.weight.value()?;
        let ids = match table.local().device() {
            device @ Device::Cuda(_) => &ids.to(device)?,
            _ => ids,
        };
        let vectors = look_up(&table, ids)?;
        let mut sum = vectors.clone();
        for adapter in self.adapters.iter().filter(|adapter| adapter.switch.is_on()) {
            let found = look_up(&adapter.down.value()?.transpose(0, 1)?, ids)?;
            let added = adapter.added_to_rows(&found, &vectors, &self.weight)?;
            sum = sum.cast(added.dtype())?.add(&added)?;
        }
        if let Some(tokens) = self.tokens.as_ref().filter(|tokens| tokens.switch.is_on()) {
            sum = replaced(sum, ids, tokens)?;
        }
        sum.cast(vectors.dtype())
    }
}

/// Rows of a table that may be cut.
fn look_up(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    match (table.layout(), ids.layout()) {
        (Some(rows), Some(_)) if rows.mesh().span(rows.axes_on(0).collect()) > 1 => by_rows(table, ids),
        _ => embedding(table, ids, None),
    }
}

/// Vectors with the new ones of tokens that have them.
fn replaced(vectors: Tensor, ids: &Tensor, tokens: &TokenRows) -> Result<Tensor> {
    // A row for every token without a new one, and those of the others after it.
    let scalar = |value: usize| Tensor::scalar(value as i64, DType::I64);
    let mut place = ids.cast(DType::I64)?.mul_scalar(0)?;
    for (row, &id) in tokens.ids.iter().enumerate() {
        let here = ids.cast(DType::I64)?.eq(&scalar(id)?)?.cast(DType::I64)?;
        place = place.add(&here.mul_scalar(row as i64 + 1)?)?;
    }
    let has = place.gt(&scalar(0)?)?.unsqueeze(-1)?;
    let place = place.sub(&scalar(1)?)?.maximum(&scalar(0)?)?;
    let new = embedding(&tokens.rows.value()?, &place, None)?.cast(vectors.dtype())?;
    let kept = vectors.masked_fill(&has, 0.0)?;
    kept.add(&new.masked_fill(&has.logical_not()?, 0.0)?)
}

/// Of a table cut by rows each rank looks up its own, and makes a gradient of its own rows only: the op on the mesh
/// would make one of the whole table on every rank.
fn by_rows(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (Some(rows), Some(at), Some(world)) = (table.layout(), ids.layout(), table.world()) else {
        return embedding(table, ids, None);
    };
    let sum = Placement::Partial(Reduce::Sum);
    let cut = |p: &Placement| matches!(p, Placement::Shard(_));
    let both = || rows.placements().iter().zip(at.placements());
    // Ranks with other ids add to the gradient of the same rows, and those with other rows to the same vectors.
    let grads: Vec<Placement> = both().map(|(r, i)| if cut(r) || !cut(i) { *r } else { sum }).collect();
    let found: Vec<Placement> = both().map(|(r, i)| if cut(r) { sum } else { *i }).collect();
    let piece = rows.piece(world.rank())?;
    let start = piece.boxes().first().map_or(0, |region| region.lo()[0]);
    let vectors = window(&table.to_piece(&grads)?, ids.local(), start, table.shape()[0])?;
    let shape = [&ids.shape()[..], &table.shape()[1..]].concat();
    vectors.as_piece(&Layout::new(rows.mesh(), &Shape::new(&shape)?, &found)?, world)
}

/// Rows of a window of the table that begins at `start`; zeros for ids elsewhere.
fn window(table: &Tensor, ids: &Array, start: usize, vocabulary: usize) -> Result<Tensor> {
    let (rows, width) = (table.shape()[0], table.shape()[1]);
    if rows == 0 {
        // Zeros that the table takes part in, so that its gradient is there.
        let shape = [&ids.shape()[..], &[width]].concat();
        return table.sum(&[0], Keep::No)?.broadcast_to(&shape);
    }
    if ids.is_meta() {
        return embedding(table, &Tensor::new(ids.clone()), None);
    }
    let scalar = |value: usize| Array::scalar(value, DType::I64);
    let ids = ids.cast(DType::I64)?;
    let known = ids.ge(&scalar(0)?)?.logical_and(&ids.lt(&scalar(vocabulary)?)?)?;
    if known.numel() > 0 && !known.all(&[], Keep::No)?.item()?.as_bool() {
        let message = format!("an id is outside a vocabulary of {vocabulary}");
        return Err(planaria_tensor::Error::Argument { op: "embedding", message });
    }
    let place = ids.sub(&scalar(start)?)?;
    let here = place.ge(&scalar(0)?)?.logical_and(&place.lt(&scalar(rows)?)?)?;
    let place = planaria_array::ops::where_(&here, &place, &scalar(0)?)?;
    let vectors = embedding(table, &Tensor::new(place), None)?;
    vectors.masked_fill(&Tensor::new(here.logical_not()?.unsqueeze(-1)?), 0.0)
}

impl Module for Embedding {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        f(&self.weight);
        self.adapters.visit(f);
        self.tokens.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.weight);
        self.adapters.visit_mut(f);
        self.tokens.visit_mut(f);
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        f(Adaptable::Embedding(self));
    }
}
