//! Pictures by ops alone: where patches stand, what they see and which tokens they take the places of follow from tensors, so
//! that one program takes pictures of any number and size.

use super::places::{Grid, patch_frequencies};
use super::tower::THETA;
use super::{Marks, Qwen2Vl, VisionConfig};
use crate::error::{Error, Result};
use crate::layers::Positions;
use crate::models::network::{Activations, Cache, Run, See, Shown};
use planaria_array::ops::{Binary, Keep, RotaryTable};
use planaria_array::{Array, DType, Device};
use planaria_tensor::{Tensor, ops};

/// Patches on a side of the largest picture that a program takes: it holds the rotations of as many rows and columns.
const SIDE: usize = 2048;

/// More than a picture has frames, and more than a frame has windows on a side.
const MANY: i64 = 1 << 20;

/// Where patches stand, each `[patches]`, I64.
struct Places {
    row: Tensor,
    column: Tensor,
    /// Equal for patches of one frame.
    frame: Tensor,
}

fn whole(value: usize) -> planaria_tensor::Result<Tensor> {
    Tensor::scalar(value as i64, DType::I64)
}

fn over(x: &Tensor, by: &Tensor) -> planaria_tensor::Result<Tensor> {
    x.binary(Binary::FloorDiv, by)
}

fn left(x: &Tensor, by: &Tensor) -> planaria_tensor::Result<Tensor> {
    x.binary(Binary::Rem, by)
}

impl Places {
    /// Of patches in the order of the tower, from grids `[pictures, 3]`: see [`super::patch_places`].
    fn new(count: usize, grids: &Tensor, merge: usize) -> planaria_tensor::Result<Places> {
        let ones = Tensor::new(Array::full(&[count], 1i64, DType::I64)?);
        let number = ones.cumsum(0)?.sub(&ones)?;
        let sizes = grids.select(1, 0)?.mul(&grids.select(1, 1)?)?.mul(&grids.select(1, 2)?)?;
        let ends = sizes.cumsum(0)?;
        let past = ends.unsqueeze(0)?.le(&number.unsqueeze(1)?)?;
        let picture = past.cast(DType::I64)?.sum(&[1], Keep::No)?;
        let inside = number.sub(&ends.sub(&sizes)?.index_select(0, &picture)?)?;
        let own = grids.index_select(0, &picture)?;
        let (rows, columns) = (own.select(1, 1)?, own.select(1, 2)?);
        let area = rows.mul(&columns)?;
        let frame = picture.mul_scalar(MANY)?.add(&over(&inside, &area)?)?;

        let (inside, side, block) = (left(&inside, &area)?, whole(merge)?, whole(merge * merge)?);
        let (of_block, in_block) = (over(&inside, &block)?, left(&inside, &block)?);
        let across = over(&columns, &side)?;
        let row = over(&of_block, &across)?.mul(&side)?.add(&over(&in_block, &side)?)?;
        let column = left(&of_block, &across)?.mul(&side)?.add(&left(&in_block, &side)?)?;
        Ok(Places { row, column, frame })
    }

    /// True where a patch sees another: those of its frame, and of its window of so many patches a side.
    fn seen(&self, window: Option<usize>) -> planaria_tensor::Result<Tensor> {
        let equal = |x: &Tensor| x.unsqueeze(1)?.eq(&x.unsqueeze(0)?);
        let frame = equal(&self.frame)?;
        let Some(side) = window else { return Ok(frame) };
        let side = whole(side)?;
        let of = over(&self.row, &side)?.mul_scalar(MANY)?.add(&over(&self.column, &side)?)?;
        frame.logical_and(&equal(&of)?)
    }

    /// Cosines and sines of every patch: those of its row, then those of its column.
    fn rotations(&self, head: usize) -> planaria_tensor::Result<RotaryTable> {
        let table = RotaryTable::from_frequencies(SIDE, &patch_frequencies(head, THETA))?;
        let both = |table: Array| {
            let table = Tensor::new(table);
            let of = |places: &Tensor| ops::embedding(&table, places, None);
            Ok::<_, planaria_tensor::Error>(
                ops::concat(&[&of(&self.row)?, &of(&self.column)?], 1)?.local().clone(),
            )
        };
        Ok(RotaryTable { cos: both(table.cos)?, sin: both(table.sin)? })
    }
}

/// What the blocks of a tower are told of patches in grids `[pictures, 3]`: rotations, and who sees whom in blocks that see
/// whole frames and in those that see windows.
pub(super) fn view(
    config: &VisionConfig,
    count: usize,
    grids: &Tensor,
) -> Result<(RotaryTable, Tensor, Option<Tensor>)> {
    if grids.ndim() != 2 || grids.shape()[1] != 3 || grids.dtype() != DType::I64 {
        let message =
            format!("grids are int64 [pictures, 3], got {} of shape {}", grids.dtype(), grids.shape());
        return Err(Error::Argument { what: "vision tower", message });
    }
    let places = Places::new(count, grids, config.merge)?;
    let window = config.newer.as_ref().map(|newer| newer.window * config.merge);
    let windows = window.map(|window| places.seen(Some(window))).transpose()?;
    Ok((places.rotations(config.width / config.heads)?, places.seen(None)?, windows))
}

impl Qwen2Vl {
    /// Cosines and sines of tokens at positions `[3, batch, sequence]`, row after row.
    fn rotations_by_ops(&self, positions: &Tensor) -> Result<RotaryTable> {
        let [3, batch, length] = positions.shape()[..] else {
            let message =
                format!("positions on three axes are [3, batch, sequence], got {}", positions.shape());
            return Err(Error::Argument { what: "positions", message });
        };
        // How large the table is changes nothing, as long as it is large enough.
        let last = positions.local().to_vec::<i64>()?.into_iter().max().unwrap_or(0);
        let table = self.text.rope().table(last.max(0) as usize + 1, Device::Cpu)?;
        let all = |table: &Array| -> Result<Array> {
            let (mut parts, mut start) = (Vec::new(), 0);
            for (axis, size) in self.config.sections.into_iter().enumerate().filter(|(_, size)| *size > 0) {
                let ids = positions.select(0, axis as i64)?.reshape(&[batch * length])?;
                let part = Tensor::new(table.narrow(1, start, size)?);
                parts.push(ops::embedding(&part, &ids, None)?);
                start += size;
            }
            Ok(ops::concat(&parts.iter().collect::<Vec<_>>(), 1)?.local().clone())
        };
        Ok(RotaryTable { cos: all(&table.cos)?, sin: all(&table.sin)? })
    }

    /// Hidden states with vectors in the places of marked tokens, in their order.
    fn with_vectors(&self, tokens: &Tensor, hidden: &Tensor, vectors: &Tensor) -> Result<Tensor> {
        let [batch, length, width] = hidden.shape()[..] else {
            let message = format!("tokens are [batch, sequence], got {}", tokens.shape());
            return Err(Error::Argument { what: "tokens", message });
        };
        let Marks { image, video, .. } = self.config.marks;
        let is = |token: i64| tokens.eq(&Tensor::scalar(token, DType::I64)?);
        let marked = is(image)?.logical_or(&is(video)?)?;
        let counted = marked.cast(DType::I64)?.reshape(&[batch * length])?;
        // Tokens without a mark take the row before all vectors, which is there also where there are none.
        let rows = counted.cumsum(0)?.mul(&counted)?;
        let none = Tensor::zeros(&[1, width], hidden.dtype())?;
        let all = ops::concat(&[&none, &vectors.cast(hidden.dtype())?], 0)?;
        let picked = all.index_select(0, &rows)?.reshape(&[batch, length, width])?;
        Ok(marked.unsqueeze(-1)?.where_(&picked, hidden)?)
    }
}

impl See for Qwen2Vl {
    fn vision(&self) -> &VisionConfig {
        &self.config.vision
    }

    fn marks(&self) -> &Marks {
        &self.config.marks
    }

    fn features(&self, shown: &Shown) -> Result<Tensor> {
        let grids: Vec<Grid> = shown.scenes.images.iter().chain(&shown.scenes.videos).copied().collect();
        self.tower()?.forward(&Tensor::new(shown.patches.clone()), &grids)
    }

    fn features_by_ops(&self, patches: &Tensor, grids: &Tensor) -> Result<Tensor> {
        self.tower()?.forward_by_ops(patches, grids)
    }

    fn forward_by_ops(
        &self,
        tokens: &Tensor,
        positions: &Tensor,
        features: &Tensor,
        cache: &Cache,
    ) -> Result<Activations> {
        let positions = Positions::Flat(self.rotations_by_ops(positions)?);
        let run = Run { cache: Some(cache), positions, ..Run::default() };
        let hidden = self.text.embedded(tokens, &run)?;
        let hidden = self.with_vectors(tokens, &hidden, features)?;
        self.text.onward(hidden.into(), &run)
    }
}
