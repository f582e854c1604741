//! `x[...]` on tensors: reads, writes in place and functional writes, made of views and index tensors.

use crate::dispatch::apply1;
use crate::error::Result;
use crate::index::{Index, Resolved, check_index_dtype, check_mask, resolve};
use crate::ops::in_place::{Onto, write_into};
use crate::ops::index::{IndexPut, Take};
use crate::ops::slice::SetSlice;
use crate::tensor::Tensor;
use planaria_array::ops::Put;
use planaria_array::{Array, DType, Error, Scalar};
use planaria_layout::Dims;

/// Index tensors and the dims they stand at.
struct Positions {
    starts: Dims,
    index: Vec<Tensor>,
}

impl Positions {
    /// On a mesh masks become positions, so that only the mask has to be whole; so do masks beside an index without
    /// dims, with which their positions are broadcast.
    fn new(x: &Tensor, placed: &[(usize, Tensor)]) -> Result<Positions> {
        let on_mesh = x.layout().is_some() || placed.iter().any(|(_, t)| t.layout().is_some());
        let beside = placed.iter().any(|(_, t)| t.ndim() == 0);
        if on_mesh || beside { Positions::of_masks(placed) } else { Ok(Positions::as_given(placed)) }
    }

    fn as_given(placed: &[(usize, Tensor)]) -> Positions {
        let starts = placed.iter().map(|&(start, _)| start).collect();
        Positions { starts, index: placed.iter().map(|(_, tensor)| tensor.clone()).collect() }
    }

    fn of_masks(placed: &[(usize, Tensor)]) -> Result<Positions> {
        let mut all = Positions { starts: Dims::new(), index: Vec::new() };
        for (start, tensor) in placed {
            if tensor.dtype() != DType::Bool {
                all.starts.push(*start);
                all.index.push(tensor.clone());
                continue;
            }
            let rows = tensor.nonzero()?;
            for dim in 0..tensor.ndim() {
                all.starts.push(start + dim);
                all.index.push(rows.select(1, dim as i64)?);
            }
        }
        Ok(all)
    }

    fn put(&self, put: Put, onto: Onto, is_void: bool) -> IndexPut {
        IndexPut { starts: self.starts.clone(), put, onto, is_void }
    }

    fn inputs<'a>(&'a self, first: &[&'a Tensor]) -> Vec<&'a Tensor> {
        first.iter().copied().chain(&self.index).collect()
    }
}

/// The value of a write: its leading dims of one element do not count.
fn without_leading_ones(value: &Tensor) -> Result<Tensor> {
    let ones = value.shape().iter().take_while(|&&d| d == 1).count();
    value.reshape(&value.shape()[ones..])
}

fn check_dtype(op: &'static str, x: &Tensor, value: &Tensor) -> Result<()> {
    let (lhs, rhs) = (x.dtype(), value.dtype());
    if lhs == rhs { Ok(()) } else { Err(Error::DTypeMismatch { op, lhs, rhs }.into()) }
}

impl Tensor {
    /// `x[index]`. Ints, slices, new axes and ellipses give a view, which writes go through as long as its layout
    /// lets it share the tensor's bytes; masks and index tensors give a copy.
    pub fn get(&self, index: &[Index]) -> Result<Tensor> {
        let resolved = resolve(self, index)?;
        if resolved.placed.is_empty() {
            return self.shown(&resolved.entries);
        }
        let view = self.view_of(&resolved)?;
        let positions = Positions::new(&view, &resolved.placed)?;
        apply1(Take { starts: positions.starts.clone() }, &positions.inputs(&[&view]))
    }

    fn view_of(&self, resolved: &Resolved) -> Result<Tensor> {
        if resolved.is_plain(self.shape()) { Ok(self.clone()) } else { self.shown(&resolved.entries) }
    }

    /// `x[index] = value` in place, with `value` broadcast and its leading dims of size 1 ignored. Views see the
    /// change, and the history of all of them with it.
    pub fn set(&self, index: &[Index], value: &Tensor) -> Result<()> {
        check_dtype("set", self, value)?;
        self.check_writable("set")?;
        let (resolved, value) = (resolve(self, index)?, without_leading_ones(value)?);
        if resolved.placed.is_empty() {
            return self.set_shown(&resolved, &value);
        }
        let view = self.view_of(&resolved)?;
        if self.layout().is_none() || resolved.is_plain(self.shape()) {
            return view.put_here(&Positions::new(&view, &resolved.placed)?, &value, Put::Replace, false);
        }
        // On a mesh the view may be a copy, because its layout had to change.
        self.set_shown(&resolved, &view.put_copy(&resolved, &value)?)
    }

    fn set_shown(&self, resolved: &Resolved, value: &Tensor) -> Result<()> {
        let op = |onto| SetSlice { entries: resolved.entries.clone(), onto };
        write_into(self, op(Onto::Here), op(Onto::Copy), &[self, value])
    }

    fn put_here(&self, positions: &Positions, value: &Tensor, put: Put, is_void: bool) -> Result<()> {
        let (here, made) = (positions.put(put, Onto::Here, is_void), positions.put(put, Onto::Copy, is_void));
        write_into(self, here, made, &positions.inputs(&[self, value]))
    }

    fn put_copy(&self, resolved: &Resolved, value: &Tensor) -> Result<Tensor> {
        let positions = Positions::new(self, &resolved.placed)?;
        apply1(positions.put(Put::Replace, Onto::Copy, false), &positions.inputs(&[self, value]))
    }

    /// `x[index] = value` for one number.
    pub fn set_scalar(&self, index: &[Index], value: impl Into<Scalar>) -> Result<()> {
        let resolved = resolve(self, index)?;
        if let [(_, positions)] = &resolved.placed[..]
            && positions.dtype() != DType::Bool
            && positions.numel() > 0
        {
            let view = self.view_of(&resolved)?;
            let dim = resolved.placed[0].0;
            if view.shape()[dim] == 0 {
                return empty_dim(&view, dim);
            }
        }
        self.set(index, &Tensor::new(Array::scalar(value, self.dtype())?))
    }

    /// A copy in which `x[index]` is `value`.
    pub fn with_set(&self, index: &[Index], value: &Tensor) -> Result<Tensor> {
        check_dtype("set", self, value)?;
        let (resolved, value) = (resolve(self, index)?, without_leading_ones(value)?);
        let set = |part: &Tensor| {
            apply1(SetSlice { entries: resolved.entries.clone(), onto: Onto::Copy }, &[self, part])
        };
        if resolved.placed.is_empty() {
            return set(&value);
        }
        let part = self.view_of(&resolved)?.put_copy(&resolved, &value)?;
        if resolved.is_plain(self.shape()) { Ok(part) } else { set(&part) }
    }

    /// A copy with `value` written or added at the given positions: one index tensor or mask per dim, `None` for a
    /// whole dim. The value must broadcast to the shape of `x[indices]`.
    pub fn index_put(&self, indices: &[Option<Tensor>], value: &Tensor, put: Put) -> Result<Tensor> {
        let call = PutCall::new(self, indices, value, put)?;
        apply1(
            call.positions.put(put, Onto::Copy, call.is_void),
            &call.positions.inputs(&[self, &call.value]),
        )
    }

    /// [`Tensor::index_put`] in place.
    pub fn index_put_assign(&self, indices: &[Option<Tensor>], value: &Tensor, put: Put) -> Result<()> {
        let call = PutCall::new(self, indices, value, put)?;
        self.put_here(&call.positions, &call.value, put, call.is_void)
    }

    /// The slices that the last dim of `index` names: `out[i] = x[index[i]]`, with as many leading dims of x
    /// indexed as that dim is long. Positions may count from the end.
    pub fn gather_nd(&self, index: &Tensor) -> Result<Tensor> {
        let columns = self.nd_columns("gather_nd", index)?;
        if columns.is_empty() {
            let mut shape = index.shape()[..index.ndim() - 1].to_vec();
            shape.extend_from_slice(self.shape());
            return self.broadcast_to(&shape);
        }
        self.get(&columns.iter().map(Index::from).collect::<Vec<_>>())
    }

    /// A copy with `value` added to the slices that the last dim of `index` names.
    pub fn scatter_nd_add(&self, index: &Tensor, value: &Tensor) -> Result<Tensor> {
        let columns = self.nd_columns("scatter_nd_add", index)?;
        let columns: Vec<_> = columns.into_iter().map(Some).collect();
        self.index_put(&columns, value, Put::Accumulate)
    }

    fn nd_columns(&self, op: &'static str, index: &Tensor) -> Result<Vec<Tensor>> {
        let depth = index.shape().last().copied().unwrap_or(usize::MAX);
        if depth > self.ndim() {
            let (lhs, rhs) = (self.shape().clone(), index.shape().clone());
            let reason = "the index's last dim must be at most as long as the array has dims";
            return Err(Error::ShapeMismatch { op, lhs, rhs, reason }.into());
        }
        index.unbind(-1)
    }
}

/// Filling along a dim without positions is refused unless other empty dims leave nothing to fill.
fn empty_dim(view: &Tensor, dim: usize) -> Result<()> {
    let rest: usize = view.shape().iter().enumerate().filter(|&(d, _)| d != dim).map(|(_, &n)| n).product();
    let error = || Error::EmptyDim { op: "set_scalar", dim, shape: view.shape().clone() }.into();
    if rest == 0 { Ok(()) } else { Err(error()) }
}

/// The arguments of `index_put`, checked.
struct PutCall {
    positions: Positions,
    value: Tensor,
    is_void: bool,
}

impl PutCall {
    fn new(x: &Tensor, indices: &[Option<Tensor>], value: &Tensor, put: Put) -> Result<PutCall> {
        check_dtype("index_put", x, value)?;
        let mut tensors = indices.iter().flatten();
        let is_mask = tensors.next().is_some_and(|t| t.dtype() == DType::Bool) && tensors.next().is_none();
        let one = put == Put::Replace && value.numel() == 1 && is_mask;
        if !one && indices.len() > x.ndim() {
            return Err(Error::TooManyIndices { given: indices.len(), shape: x.shape().clone() }.into());
        }
        let (mut placed, mut dim, mut is_void) = (Vec::new(), 0, false);
        for (position, index) in indices.iter().enumerate() {
            match index {
                None => dim += 1,
                Some(mask) if mask.dtype() == DType::Bool => {
                    check_mask(mask, position, x.shape(), dim)?;
                    if mask.ndim() == 0 {
                        is_void |= !mask.whole()?.item()?.as_bool();
                    } else {
                        placed.push((dim, mask.clone()));
                        dim += mask.ndim();
                    }
                }
                Some(tensor) => {
                    check_index_dtype(tensor, position)?;
                    placed.push((dim, tensor.clone()));
                    dim += 1;
                }
            }
        }
        if dim > x.ndim() {
            return Err(Error::TooManyIndices { given: dim, shape: x.shape().clone() }.into());
        }
        let value = if one { value.reshape(&[])? } else { value.clone() };
        let positions = if is_void { Positions::of_masks(&placed)? } else { Positions::new(x, &placed)? };
        Ok(PutCall { positions, value, is_void })
    }
}
