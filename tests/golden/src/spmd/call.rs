//! One call of a rule, as the case files write it.

use anyhow::{Context, Result, bail};
use planaria_layout::{Layout, Mesh, Placement, Shape, Shard};
use serde_json::Value;

/// An argument of an op.
#[derive(Clone, Debug)]
pub(super) enum Arg {
    Absent,
    One(Box<Layout>),
    Many(Vec<Layout>),
}

/// An op with the layouts of its inputs.
#[derive(Clone, Debug)]
pub(super) struct Call<'a> {
    pub(super) name: &'a str,
    pub(super) args: Vec<Arg>,
    pub(super) attrs: &'a Value,
}

impl<'a> Call<'a> {
    pub(super) fn new(mesh: &Mesh, name: &'a str, inputs: &Value, attrs: &'a Value) -> Result<Call<'a>> {
        let args = inputs
            .as_array()
            .context("inputs")?
            .iter()
            .map(|input| arg(mesh, input))
            .collect::<Result<_>>()?;
        Ok(Call { name, args, attrs })
    }

    /// All tensors, lists unrolled.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Layout> {
        self.args.iter().flat_map(|arg| match arg {
            Arg::Absent => &[][..],
            Arg::One(layout) => std::slice::from_ref(layout.as_ref()),
            Arg::Many(list) => list,
        })
    }

    /// The tensor at a place.
    pub(super) fn one(&self, place: usize) -> Result<&Layout> {
        self.maybe(place).with_context(|| format!("{}: no tensor at place {place}", self.name))
    }

    /// The tensor at a place, if it is given.
    pub(super) fn maybe(&self, place: usize) -> Option<&Layout> {
        match self.args.get(place) {
            Some(Arg::One(layout)) => Some(layout),
            _ => None,
        }
    }

    /// The tensors at a place.
    pub(super) fn many(&self, place: usize) -> &[Layout] {
        match self.args.get(place) {
            Some(Arg::Many(list)) => list,
            Some(Arg::One(layout)) => std::slice::from_ref(layout.as_ref()),
            _ => &[],
        }
    }

    /// The last tensor: in gradients, that of the output.
    pub(super) fn last(&self) -> Result<&Layout> {
        self.tensors().last().with_context(|| format!("{}: no tensor", self.name))
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.attrs[name].as_bool().unwrap_or(false)
    }

    pub(super) fn int(&self, name: &str) -> Result<i64> {
        self.attrs[name].as_i64().with_context(|| format!("{}: attribute {name}", self.name))
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

    /// A dim of `ndim`, counted from the end when negative.
    pub(super) fn dim(&self, name: &str, ndim: usize) -> Result<usize> {
        wrap(self.int(name)?, ndim)
    }

    /// Several dims, all of them when none is named.
    pub(super) fn dims(&self, name: &str, ndim: usize) -> Result<Vec<usize>> {
        let named = self.ints(name);
        if named.is_empty() || self.flag("reduce_all") {
            return Ok((0..ndim).collect());
        }
        named.into_iter().map(|dim| wrap(dim, ndim)).collect()
    }

    /// What the reference wants its tensors to have, in our order; nothing when it is about other tensors.
    pub(super) fn wanted(&self, mesh: &Mesh, theirs: &Value) -> Result<Option<Vec<Layout>>> {
        let theirs = theirs.as_array().context("inputs of the answer")?;
        let is_empty = |arg: &&Arg| matches!(arg, Arg::Many(list) if list.is_empty());
        let mut args: Vec<&Arg> = self.args.iter().collect();
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
                Arg::One(given) => pairs.push((given.as_ref(), theirs)),
                Arg::Many(list) => pairs.extend(list.iter().zip(theirs.as_array().into_iter().flatten())),
            }
        }
        pairs.into_iter().map(|(given, theirs)| layout_of(mesh, given.shape(), theirs)).collect()
    }
}

fn arg(mesh: &Mesh, value: &Value) -> Result<Arg> {
    Ok(match value {
        Value::Null => Arg::Absent,
        Value::Array(list) => Arg::Many(list.iter().map(|item| tensor(mesh, item)).collect::<Result<_>>()?),
        spec => Arg::One(Box::new(tensor(mesh, spec)?)),
    })
}

fn tensor(mesh: &Mesh, spec: &Value) -> Result<Layout> {
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
