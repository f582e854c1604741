//! The table of token vectors.

use crate::param::{Module, Param};
use planaria_array::{Array, DType, Device};
use planaria_layout::{Layout, Placement, Reduce, Shape};
use planaria_tensor::ops::embedding;
use planaria_tensor::{Keep, Result, Tensor};

/// Rows by token id.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[vocabulary, width]`.
    pub weight: Param,
}

impl Embedding {
    /// `[..]` ids to `[.., width]`. A table cut by rows gives pending sums. Ids of the host are brought to the table's device.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let table = self.weight.value()?;
        let ids = match table.local().device() {
            device @ Device::Cuda(_) => &ids.to(device)?,
            _ => ids,
        };
        match (table.layout(), ids.layout()) {
            (Some(rows), Some(_)) if rows.mesh().span(rows.axes_on(0).collect()) > 1 => by_rows(&table, ids),
            _ => embedding(&table, ids, None),
        }
    }
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
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.weight);
    }
}
