//! One call of an op, as the case files write it, and the tensors that a program of ours runs it on.

use anyhow::{Context, Result, bail};
use planaria_array::{Array, DType};
use planaria_layout::{Layout, Mesh, Placement, Shape, Shard};
use planaria_tensor::{Tensor, World};
use serde_json::Value;

/// An argument of an op: none, one or a list.
#[derive(Clone, Debug)]
pub(super) enum Arg<T> {
    Absent,
    One(T),
    Many(Vec<T>),
}

impl<T> Arg<T> {
    fn items(&self) -> &[T] {
        match self {
            Arg::Absent => &[],
            Arg::One(item) => std::slice::from_ref(item),
            Arg::Many(list) => list,
        }
    }

    fn map<R>(&self, mut f: impl FnMut(&T) -> Result<R>) -> Result<Arg<R>> {
        Ok(match self {
            Arg::Absent => Arg::Absent,
            Arg::One(item) => Arg::One(f(item)?),
            Arg::Many(list) => Arg::Many(list.iter().map(f).collect::<Result<_>>()?),
        })
    }
}

/// An op with its arguments: layouts, arrays or tensors.
#[derive(Clone, Debug)]
pub(super) struct Call<'a, T> {
    pub(super) name: &'a str,
    pub(super) args: Vec<Arg<T>>,
    pub(super) attrs: &'a Value,
}

impl<'a, T> Call<'a, T> {
    /// The same call with other arguments.
    pub(super) fn map<R>(&self, mut f: impl FnMut(&T) -> Result<R>) -> Result<Call<'a, R>> {
        let args = self.args.iter().map(|arg| arg.map(&mut f)).collect::<Result<_>>()?;
        Ok(Call { name: self.name, args, attrs: self.attrs })
    }

    /// All arguments, lists unrolled.
    pub(super) fn items(&self) -> impl Iterator<Item = &T> {
        self.args.iter().flat_map(Arg::items)
    }

    /// The argument at a place.
    pub(super) fn one(&self, place: usize) -> Result<&T> {
        self.maybe(place).with_context(|| format!("{}: no tensor at place {place}", self.name))
    }

    /// The argument at a place, if it is given.
    pub(super) fn maybe(&self, place: usize) -> Option<&T> {
        self.args.get(place).and_then(|arg| arg.items().first())
    }

    /// The arguments at a place.
    pub(super) fn many(&self, place: usize) -> Vec<&T> {
        self.args.get(place).map(|arg| arg.items().iter().collect()).unwrap_or_default()
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.attrs[name].as_bool().unwrap_or(false)
    }

    pub(super) fn int(&self, name: &str) -> Result<i64> {
        self.attrs[name].as_i64().with_context(|| format!("{}: attribute {name}", self.name))
    }

    pub(super) fn number(&self, name: &str, default: f64) -> f64 {
        self.attrs[name].as_f64().unwrap_or(default)
    }

    /// Whole numbers, one or a list.
    pub(super) fn ints(&self, name: &str) -> Vec<i64> {
        match &self.attrs[name] {
            Value::Array(list) => list.iter().filter_map(Value::as_i64).collect(),
            other => other.as_i64().into_iter().collect(),
        }
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.attrs[name].as_str().unwrap_or("")
    }
}

impl<'a> Call<'a, Layout> {
    pub(super) fn new(mesh: &Mesh, name: &'a str, inputs: &Value, attrs: &'a Value) -> Result<Self> {
        let inputs = inputs.as_array().context("inputs")?;
        let args = inputs.iter().map(|input| arg(mesh, input)).collect::<Result<_>>()?;
        Ok(Call { name, args, attrs })
    }

    /// What the reference wants its tensors to have, in our order; nothing when it is about other tensors.
    pub(super) fn wanted(&self, mesh: &Mesh, theirs: &Value) -> Result<Option<Vec<Layout>>> {
        let Some(theirs) = theirs.as_array() else { return Ok(None) };
        let is_empty = |arg: &&Arg<Layout>| matches!(arg, Arg::Many(list) if list.is_empty());
        let mut args: Vec<&Arg<Layout>> = self.args.iter().collect();
        if args.len() != theirs.len() {
            args.retain(|arg| !is_empty(arg));
        }
        if args.len() != theirs.len() {
            return Ok(None);
        }
        let mut pairs: Vec<(&Layout, &Value)> = Vec::new();
        for (arg, theirs) in args.into_iter().zip(theirs) {
            match arg {
                Arg::Absent => {}
                Arg::One(given) => pairs.push((given, theirs)),
                Arg::Many(list) => pairs.extend(list.iter().zip(theirs.as_array().into_iter().flatten())),
            }
        }
        pairs.into_iter().map(|(given, theirs)| layout_of(mesh, given.shape(), theirs)).collect()
    }

    /// The same call with other layouts, in the order of the items.
    pub(super) fn with(&self, layouts: &[Layout]) -> Result<Self> {
        let mut layouts = layouts.iter();
        self.map(|_| layouts.next().cloned().context("a layout for every tensor"))
    }

    /// The same call on a world that only plans.
    pub(super) fn planned(&self, world: &World, dtypes: &[DType]) -> Result<Call<'a, Tensor>> {
        let mut dtypes = dtypes.iter();
        self.map(|layout| {
            let dtype = *dtypes.next().context("a dtype for every tensor")?;
            let piece = Array::meta(&layout.piece(world.rank())?.extents(), dtype)?;
            let tensor = Tensor::from_piece(piece, layout, world)?;
            Ok(if dtype.is_float() { tensor.requires_grad() } else { tensor })
        })
    }
}

fn arg(mesh: &Mesh, value: &Value) -> Result<Arg<Layout>> {
    Ok(match value {
        Value::Null => Arg::Absent,
        Value::Array(list) => Arg::Many(list.iter().map(|item| tensor(mesh, item)).collect::<Result<_>>()?),
        spec => Arg::One(tensor(mesh, spec)?),
    })
}

/// A tensor with its own shape.
pub(super) fn tensor(mesh: &Mesh, spec: &Value) -> Result<Layout> {
    let dims: Vec<usize> = serde_json::from_value(spec["shape"].clone()).context("shape")?;
    layout_of(mesh, &Shape::new(&dims)?, spec)?.context("dims_mapping and shape differ in length")
}

/// The layout that `dims_mapping` and `partial` say; nothing when they are about another number of dims.
pub(super) fn layout_of(mesh: &Mesh, shape: &Shape, spec: &Value) -> Result<Option<Layout>> {
    let Some(mapping) = spec["dims_mapping"].as_array() else { return Ok(None) };
    let mut placements = vec![Placement::Replicate; mesh.naxes()];
    for (dim, axes) in mapping.iter().enumerate() {
        let axes: Vec<i64> = match axes {
            Value::Array(list) => list.iter().filter_map(Value::as_i64).collect(),
            one => one.as_i64().filter(|axis| *axis >= 0).into_iter().collect(),
        };
        for (order, axis) in axes.into_iter().enumerate() {
            if mapping.len() != shape.ndim() {
                return Ok(None);
            }
            let place =
                placements.get_mut(usize::try_from(axis)?).context("an axis that the mesh has not")?;
            *place = Placement::Shard(Shard { dim, sections: 1, order });
        }
    }
    for (axis, reduce) in spec["partial"].as_object().into_iter().flatten() {
        let axis: usize = axis.parse().context("axis of a partial")?;
        let reduce = reduce.as_str().context("reduction")?.parse()?;
        *placements.get_mut(axis).context("an axis that the mesh has not")? = Placement::Partial(reduce);
    }
    Ok(Some(Layout::new(mesh, shape, &placements)?))
}

/// A dim counted from the end when negative.
pub(super) fn wrap(dim: i64, ndim: usize) -> Result<usize> {
    let place = if dim < 0 { dim + ndim as i64 } else { dim };
    match usize::try_from(place) {
        Ok(place) if place < ndim => Ok(place),
        _ => bail!("dim {dim} of {ndim}"),
    }
}
