//! `x[...]`: reading, writing, and `index_put`.

use crate::array::{Array, Host};
use crate::cpu::gather_rule::{Replace, Rule, Sum};
use crate::cpu::index::{self, Source};
use crate::cpu::strided::may_overlap;
use crate::cuda;
use crate::device::Device;
use crate::dispatch::{with_dtype, with_size, with_sum};
use crate::element::{Element, Scalar};
use crate::error::{Error, Result};
use crate::index::{Entry, Index, Lookup, Resolved, place_optional, resolve};
use crate::ops::fused::home;
use crate::ops::where_;
use bytemuck::Pod;
use planaria_cuda::LateNote;
use planaria_layout::{DType, Shape};

/// What a write does to the value already there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Put {
    /// The written value replaces it; of several writes to one element the last wins.
    #[default]
    Replace,
    /// The written values are added in index order.
    Accumulate,
}

/// Values to be written.
#[derive(Clone, Copy)]
pub(crate) enum Written<'a> {
    Scalar(Scalar),
    Array(&'a Array),
}

impl Array {
    /// `x[index]`. Ints, slices, new axes and ellipses give a view; masks and index arrays give a copy.
    pub fn get(&self, index: &[Index]) -> Result<Array> {
        let resolved = resolve(self, index)?;
        if resolved.placed.is_empty() { Ok(resolved.view) } else { read(&resolved) }
    }

    /// `x[index] = value`, with `value` broadcast and its leading dims of size 1 ignored. Views see the change.
    pub fn set(&self, index: &[Index], value: &Array) -> Result<()> {
        value.check_dtype("set", self.dtype())?;
        let ones = value.shape().iter().take_while(|&&d| d == 1).count();
        let value = value.reshape(&value.shape()[ones..])?;
        let resolved = resolve(self, index)?;
        if resolved.placed.is_empty() {
            return resolved.view.copy_from(&value);
        }
        write(&resolved, Written::Array(&value), Put::Replace)
    }

    /// `x[index] = value` for one number.
    pub fn set_scalar(&self, index: &[Index], value: impl Into<Scalar>) -> Result<()> {
        let resolved = resolve(self, index)?;
        if resolved.placed.is_empty() {
            return resolved.view.fill(value);
        }
        if let [one] = &resolved.placed[..]
            && let Entry::Take(positions) = &one.entry
            && resolved.view.shape()[one.dim] == 0
            && positions.numel() > 0
            && positions.dtype() == DType::I64
            && !has_room_for_one(&resolved.view, one.dim)
        {
            return empty_dim("set_scalar", &resolved.view, one.dim);
        }
        write(&resolved, Written::Scalar(value.into()), Put::Replace)
    }

    /// Adds `value`, broadcast, to the elements at `index`. An element that is named several times gets every addend, in
    /// the order of the index. Views see the change.
    pub fn add_at(&self, index: &[Index], value: &Array) -> Result<()> {
        value.check_dtype("add_at", self.dtype())?;
        let resolved = resolve(self, index)?;
        if resolved.placed.is_empty() {
            return resolved.view.binary_in_place(super::Binary::Add, value);
        }
        write(&resolved, Written::Array(value), Put::Accumulate)
    }

    /// A copy of this array with `value` written at the given positions: one index array or mask per dim, `None`
    /// for a whole dim. The value must broadcast to the shape of `x[indices]`.
    pub fn index_put(&self, indices: &[Option<Array>], value: &Array, put: Put) -> Result<Array> {
        let out = self.copy()?;
        out.index_put_assign(indices, value, put)?;
        Ok(out)
    }

    /// [`Array::index_put`] in place.
    pub fn index_put_assign(&self, indices: &[Option<Array>], value: &Array, put: Put) -> Result<()> {
        value.check_dtype("index_put", self.dtype())?;
        if put == Put::Replace && value.numel() == 1 && is_lone_mask(indices) {
            // One value for a mask: how many dims of size 1 it has does not matter.
            let resolved = place_optional(self, indices)?;
            return write(&resolved, Written::Array(&value.reshape(&[])?), put);
        }
        if indices.len() > self.ndim() {
            return Err(Error::TooManyIndices { given: indices.len(), shape: self.shape().clone() });
        }
        write(&place_optional(self, indices)?, Written::Array(value), put)
    }
}

fn is_lone_mask(indices: &[Option<Array>]) -> bool {
    let mut arrays = indices.iter().flatten();
    let first = arrays.next().is_some_and(|a| a.dtype() == DType::Bool);
    first && arrays.next().is_none()
}

/// Whether the memory under a view would hold it with one position along a dim. Where it does, torch looks at the positions
/// and finds them out of range; where not, at the memory.
fn has_room_for_one(view: &Array, dim: usize) -> bool {
    let dims = view.shape().iter().zip(view.strides()).enumerate().filter(|(d, _)| *d != dim);
    let last: isize = dims.map(|(_, (&len, &stride))| (len as isize - 1) * stride).sum();
    usize::try_from(view.offset() as isize + last).is_ok_and(|last| last < view.storage_len())
}

/// Filling along a dim without positions is refused unless other empty dims leave nothing to fill.
pub(crate) fn empty_dim(op: &'static str, view: &Array, dim: usize) -> Result<()> {
    let rest: usize = view.shape().iter().enumerate().filter(|&(d, _)| d != dim).map(|(_, &n)| n).product();
    if rest == 0 { Ok(()) } else { Err(Error::EmptyDim { op, dim, shape: view.shape().clone() }) }
}

pub(crate) fn read(resolved: &Resolved) -> Result<Array> {
    if let Some(mask) = whole_mask(resolved)
        && !resolved.view.is_meta()
    {
        return super::mask::select(&resolved.view, mask);
    }
    let lookup = Lookup::new(resolved)?;
    let (view, shape) = (lookup.view(), lookup.shape().clone());
    if view.is_meta() {
        return Ok(Array::meta_of(shape, view.dtype()));
    }
    if lookup.is_empty() {
        return Array::zeros_on(&shape, view.dtype(), view.device());
    }
    if let Device::Cuda(_) = view.device() {
        return read_on_cuda(&lookup);
    }
    let (offsets, host) = (lookup.offsets("get")?, view.host("get")?);
    let offsets = offsets.values::<i64>("get")?;
    let plan = lookup.plan(&offsets);
    with_size!(view.dtype(), T => Array::build_bytes::<T>(shape, view.dtype(), |out| {
        index::take(host.slice::<T>(), &plan, out);
    }))
}

/// Rows of the view, or elements along its one indexed dim where the others make no rows.
fn read_on_cuda(lookup: &Lookup) -> Result<Array> {
    let front = lookup.front()?;
    if !front.is_contiguous()
        && let Some(one) = lookup.alone()?
    {
        let note =
            LateNote { op: "get", kind: cuda::late::INDEX, size: one.extent, dim: one.dim, entry: one.entry };
        let (extent, step, index_strides) = (one.extent, one.step, &one.index_strides[..]);
        let along =
            cuda::Along { op: "get", extent, step, index: &one.values, index_strides, note, wrap: true };
        return cuda::take_along(lookup.view(), &one.strides, lookup.shape(), &along);
    }
    let (columns, count, inner) = lookup.columns()?;
    let shape = lookup.front_shape()?;
    let rows = cuda::take_rows("get", &front.contiguous()?, inner, &columns, count, &shape)?;
    lookup.undo_front(&rows)
}

/// Writes to rows of the view, or of a copy that then takes its place where its dims make no rows.
fn write_on_cuda(lookup: &Lookup, value: &Array, put: Put) -> Result<()> {
    let op = "index_put";
    home(op, &[lookup.view(), value])?;
    let front = lookup.front()?;
    let rows = if front.is_contiguous() { front.clone() } else { front.copy()? };
    let (columns, count, inner) = lookup.columns()?;
    let value = match value.numel() {
        1 => value.to(front.device())?,
        _ => lookup.to_front(&value.broadcast_to(lookup.shape())?)?.contiguous()?,
    };
    let value = if value.shares_storage(&front) { value.copy()? } else { value };
    let rule = match put {
        Put::Replace => cuda::Rule::Replace,
        Put::Accumulate => cuda::Rule::ADD,
    };
    cuda::put_rows(op, &rows, inner, (&columns, count), &value, rule)?;
    if rows.shares_storage(&front) { Ok(()) } else { front.copy_from(&rows) }
}

/// The mask, if it alone covers every dim of the view.
fn whole_mask(resolved: &Resolved) -> Option<&Array> {
    match &resolved.placed[..] {
        [one] => match &one.entry {
            Entry::Mask(mask) if mask.ndim() > 0 && mask.ndim() == resolved.view.ndim() => Some(mask),
            _ => None,
        },
        _ => None,
    }
}

pub(crate) fn write(resolved: &Resolved, value: Written<'_>, put: Put) -> Result<()> {
    let view = &resolved.view;
    let one = match value {
        Written::Scalar(value) => Some(value),
        Written::Array(value) if value.ndim() == 0 && value.device() == Device::Cpu => Some(value.item()?),
        Written::Array(_) => None,
    };
    if !view.is_meta()
        && put == Put::Replace
        && let Some(mask) = whole_mask(resolved)
    {
        match (one, value) {
            (Some(value), _) => return super::mask::fill_view(view, mask, value),
            (None, Written::Array(value)) if value.ndim() == 0 && !value.is_meta() => {
                return view.copy_from(&where_(mask, value, view)?);
            }
            (None, Written::Array(value)) if view.is_contiguous() => {
                if let Some(done) = super::mask::write_values(view, mask, value) {
                    return done;
                }
            }
            _ => {}
        }
    }
    write_lookup(&Lookup::new(resolved)?, value, one, put)
}

fn write_lookup(lookup: &Lookup, value: Written<'_>, one: Option<Scalar>, put: Put) -> Result<()> {
    let view = lookup.view();
    if let Written::Array(value) = value {
        value.broadcast_to(lookup.shape()).map_err(|_| Error::Broadcast {
            op: "index_put",
            from: value.shape().clone(),
            to: lookup.shape().clone(),
        })?;
    }
    if lookup.is_empty() || view.is_meta() {
        return Ok(());
    }
    if may_overlap(view.shape(), view.strides()) {
        return Err(Error::OverlappingWrite { op: "index_put", shape: view.shape().clone() });
    }
    if let Device::Cuda(_) = view.device() {
        return match (value, one) {
            (Written::Array(value), _) => write_on_cuda(lookup, value, put),
            (Written::Scalar(value), _) => write_on_cuda(lookup, &Array::scalar(value, view.dtype())?, put),
        };
    }
    let offsets = lookup.offsets("index_put")?;
    let offsets = offsets.values::<i64>("index_put")?;
    let plan = lookup.plan(&offsets);
    match (value, one) {
        (Written::Array(value), None) => {
            let value = dense(value, lookup.shape())?;
            match put {
                Put::Replace => with_size!(view.dtype(), T => put_each::<T, Replace>(view, &plan, &value)),
                Put::Accumulate => with_sum!(view.dtype(), T => put_each::<T, Sum>(view, &plan, &value)),
            }
        }
        (Written::Scalar(value), _) | (_, Some(value)) => match put {
            Put::Replace => with_size!(view.dtype(), T => view.write::<T, _>("index_put", |data| {
                index::put::<T, Replace>(data, &plan, Source::One(bits(value, view.dtype())));
            })),
            Put::Accumulate => with_sum!(view.dtype(), T => view.write::<T, _>("index_put", |data| {
                index::put::<T, Sum>(data, &plan, Source::One(bits(value, view.dtype())));
            })),
        },
    }
}

fn put_each<T: Pod + Send + Sync, R: Rule<T>>(
    view: &Array,
    plan: &index::Plan<'_>,
    value: &Array,
) -> Result<()> {
    let value = if value.shares_storage(view) { value.copy()? } else { value.clone() };
    let host: Host = value.host("index_put")?;
    let cells = cells::<T>(&value, &host);
    view.write::<T, _>("index_put", |data| index::put::<T, R>(data, plan, Source::Each(cells)))
}

/// The elements of a contiguous array; an empty one may start past the end of its storage.
pub(crate) fn cells<'a, T: Pod>(array: &Array, host: &'a Host) -> &'a [T] {
    match array.numel() {
        0 => &[],
        len => &host.slice::<T>()[array.offset()..array.offset() + len],
    }
}

/// A number as an element of the dtype, seen as plain bytes of the same size.
pub(crate) fn bits<T: Pod>(value: Scalar, dtype: DType) -> T {
    with_dtype!(dtype, E => bytemuck::cast(E::from_scalar(value)))
}

/// The value broadcast to a shape with its elements in row-major order.
pub(crate) fn dense(value: &Array, shape: &Shape) -> Result<Array> {
    value.broadcast_to(shape)?.contiguous()
}
