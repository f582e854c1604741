//! Steps of generation: one new token of each of several rows against a cache of keys and values. Where rows stand is read on
//! the device, so that no step needs the host. What is fused on a device is defined by the operations it is made of.

use super::fused::{Fresh, check_eps, check_shape, home, real_dtype};
use super::matmul::linear;
use super::norm::rms_norm;
use super::rotary::{RotaryLayout, RotaryOptions, RotaryPairing, RotaryPositions, RotaryTable, rotary};
use super::swiglu::{Gate, glu};
use crate::array::Array;
use crate::cpu::attention::{Cached, over_cache};
use crate::cpu::real::{Float, Real, with_float};
use crate::cuda;
use crate::device::Device;
use crate::element::with_size;
use crate::error::{Error, Result};
use planaria_layout::{DType, Shape};
use std::ops::Range;

/// `x · weightᵀ + bias`, with a weight `[out, in]`.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// `[out, in]`.
    pub weight: &'a Array,
    /// `[out]`.
    pub bias: Option<&'a Array>,
}

/// An rms norm of rows.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// One factor an element.
    pub weight: &'a Array,
    /// Added under the root.
    pub eps: f64,
}

impl Norm<'_> {
    fn of(&self, x: &Array) -> Result<Array> {
        Ok(rms_norm(x, &x.shape()[1..], Some(self.weight), self.eps)?.y)
    }
}

fn check_products(op: &'static str, x: &Array, norm: Option<Norm<'_>>, layers: &[Layer<'_>]) -> Result<()> {
    real_dtype(op, x.dtype())?;
    if x.ndim() != 2 {
        return Err(Error::argument(op, format!("x must be [rows, width], got shape {}", x.shape())));
    }
    if let Some(norm) = norm {
        check_eps(op, norm.eps)?;
        check_shape(op, norm.weight, &Shape::new(&x.shape()[1..])?, "a norm has one factor an element")?;
    }
    for Layer { weight, bias } in layers {
        weight.check_dtype(op, x.dtype())?;
        if weight.ndim() != 2 || weight.shape()[1] != x.shape()[1] {
            let (lhs, rhs) = (x.shape().clone(), weight.shape().clone());
            let reason = "a weight must be [out, in], `in` the width of the rows";
            return Err(Error::ShapeMismatch { op, lhs, rhs, reason });
        }
        if let Some(bias) = bias {
            bias.check_dtype(op, x.dtype())?;
            check_shape(op, bias, &Shape::new(&weight.shape()[..1])?, "a bias has one value an output")?;
        }
    }
    let mut all = vec![x];
    all.extend(norm.map(|norm| norm.weight));
    all.extend(layers.iter().flat_map(|layer| [Some(layer.weight), layer.bias]).flatten());
    home(op, &all).map(|_| ())
}

/// True when one launch does it.
fn in_one_launch(x: &Array, norm: Option<Norm<'_>>, layers: &[Layer<'_>]) -> bool {
    matches!(x.device(), Device::Cuda(_)) && cuda::takes(x, norm, layers)
}

/// One layer, with something added, by whatever the device has for so many rows.
fn linear_on(op: &'static str, x: &Array, layer: Layer<'_>, added: Option<&Array>) -> Result<Array> {
    if let Device::Cuda(_) = x.device()
        && let Some(made) = cuda::linear_some(op, x, layer, added)?
    {
        return Ok(made);
    }
    let made = linear(x, layer.weight, layer.bias)?;
    added.map_or(Ok(made.clone()), |added| added.add(&made))
}

/// Rows `[rows, in]`, after a norm where there is one, through several layers that share them.
pub fn linears(x: &Array, norm: Option<Norm<'_>>, layers: &[Layer<'_>]) -> Result<Vec<Array>> {
    check_products("linears", x, norm, layers)?;
    if in_one_launch(x, norm, layers) {
        return cuda::linears("linears", x, norm, layers, (false, None));
    }
    let x = &norm.map_or_else(|| Ok(x.clone()), |norm| norm.of(x))?;
    layers.iter().map(|&layer| linear_on("linears", x, layer, None)).collect()
}

/// `added` plus a layer of `x`.
pub fn linear_added(x: &Array, layer: Layer<'_>, added: &Array) -> Result<Array> {
    let op = "linear_added";
    check_products(op, x, None, &[layer])?;
    added.check_dtype(op, x.dtype())?;
    let shape = Shape::new(&[x.shape()[0], layer.weight.shape()[0]])?;
    check_shape(op, added, &shape, "what is added has the shape of the result")?;
    home(op, &[x, added])?;
    if in_one_launch(x, None, &[layer]) && added.device() == x.device() && added.is_contiguous() {
        let made = cuda::linears(op, x, None, &[layer], (false, Some(added)))?;
        return made.into_iter().next().ok_or_else(|| Error::argument(op, "there is no layer"));
    }
    linear_on(op, x, layer, Some(added))
}

/// `act(gate) * up` of two layers of `x`, after a norm where there is one.
pub fn gated_linears(
    x: &Array,
    norm: Option<Norm<'_>>,
    [gate, up]: [Layer<'_>; 2],
    act: Gate,
) -> Result<Array> {
    let (op, layers) = ("gated_linears", [gate, up]);
    check_products(op, x, norm, &layers)?;
    check_shape(op, up.weight, gate.weight.shape(), "gate and up have one shape")?;
    if act == Gate::Silu && in_one_launch(x, norm, &layers) {
        let made = cuda::linears(op, x, norm, &layers, (true, None))?;
        return made.into_iter().next().ok_or_else(|| Error::argument(op, "there is no layer"));
    }
    let made = linears(x, norm, &layers)?;
    glu(&made[0], &made[1], act)
}

/// Rows of a table `[size, width]` by ids `[rows]` that an operation on the same device has made: where one is outside the table
/// a device gives zeros, and the host an error.
pub fn look_up(table: &Array, ids: &Array) -> Result<Array> {
    let op = "look_up";
    if table.ndim() != 2 || ids.ndim() != 1 {
        let (lhs, rhs) = (table.shape().clone(), ids.shape().clone());
        let reason = "a table [size, width] and ids [rows] are needed";
        return Err(Error::ShapeMismatch { op, lhs, rhs, reason });
    }
    ids.check_dtype(op, DType::I64)?;
    real_dtype(op, table.dtype())?;
    match home(op, &[table, ids])? {
        Device::Cuda(_) => cuda::look_up(op, &table.contiguous()?, &ids.contiguous()?),
        _ => super::embedding::embedding(table, ids),
    }
}

/// The cache of one layer, and where the new token of each row stands in it.
#[derive(Clone, Copy, Debug)]
pub struct KeyValues<'a> {
    /// `[rows, kv heads, capacity, dim]`, contiguous.
    pub keys: &'a Array,
    /// Like the keys.
    pub values: &'a Array,
    /// `[rows]`, I64, each below the capacity.
    pub positions: &'a Array,
}

impl KeyValues<'_> {
    /// Rows, heads of keys and dim; `heads` wide arrays must be multiples of the dim.
    fn check(&self, op: &'static str, like: &[&Array]) -> Result<[usize; 3]> {
        let [rows, heads, _, dim] = self.keys.shape()[..] else {
            let what = format!("keys must be [rows, heads, capacity, dim], got shape {}", self.keys.shape());
            return Err(Error::argument(op, what));
        };
        super::fused::check_like(op, self.values, self.keys)?;
        self.positions.check_dtype(op, DType::I64)?;
        check_shape(op, self.positions, &Shape::new(&[rows])?, "there is one position a row")?;
        let flat = [self.keys, self.values, self.positions].iter().all(|x| x.is_contiguous());
        if !flat || dim == 0 || dim > MOST_DIM {
            let what = format!("caches are contiguous, with heads of 1 to {MOST_DIM} elements, got {dim}");
            return Err(Error::argument(op, what));
        }
        for x in like {
            x.check_dtype(op, self.keys.dtype())?;
            if x.ndim() != 2 || x.shape()[0] != rows || !x.shape()[1].is_multiple_of(dim) {
                let (lhs, rhs) = (x.shape().clone(), self.keys.shape().clone());
                let reason = "queries, keys and values of the new tokens are [rows, heads * dim]";
                return Err(Error::ShapeMismatch { op, lhs, rhs, reason });
            }
        }
        let mut all = vec![self.keys, self.values, self.positions];
        all.extend(like);
        home(op, &all)?;
        Ok([rows, heads, dim])
    }

    /// The positions, on the host.
    fn positions(&self, op: &'static str) -> Result<Vec<usize>> {
        let size = self.keys.shape()[2];
        let check = |(position, id): (usize, i64)| match usize::try_from(id) {
            Ok(at) if at < size => Ok(at),
            _ => Err(Error::IdOutOfRange { op, id, position, size }),
        };
        self.positions.to_vec::<i64>()?.into_iter().enumerate().map(check).collect()
    }
}

/// The greatest dim of heads.
const MOST_DIM: usize = 256;

/// Rotates the queries and keys of new tokens, `[rows, heads * dim]`, by their positions and puts keys and values into the
/// cache there; gives the rotated queries, which take the place of `q`.
pub fn rotate_into([q, k, v]: [&Array; 3], table: &RotaryTable, at: &KeyValues<'_>) -> Result<Array> {
    let op = "rotate_into";
    let [rows, kv_heads, dim] = at.check(op, &[q, k, v])?;
    let real = real_dtype(op, q.dtype())?;
    let wide = Shape::new(&[rows, kv_heads * dim])?;
    check_shape(op, k, &wide, "keys have the heads of the cache")?;
    check_shape(op, v, &wide, "values have the heads of the cache")?;
    if table.cos.ndim() != 2 || table.cos.shape()[1] * 2 != dim || table.sin.shape() != table.cos.shape() {
        let what = format!("tables must be [positions, {}], got shape {}", dim / 2, table.cos.shape());
        return Err(Error::argument(op, what));
    }
    if let Device::Cuda(_) = home(op, &[q, at.keys, &table.cos, &table.sin])? {
        let table = RotaryTable {
            cos: table.cos.cast(real)?.contiguous()?,
            sin: table.sin.cast(real)?.contiguous()?,
        };
        let q = q.contiguous()?;
        cuda::rotate_into(op, [&q, &k.contiguous()?, &v.contiguous()?], &table, at)?;
        return Ok(q);
    }
    let ids = at.positions.reshape(&[rows, 1])?;
    let (pairing, layout) = (RotaryPairing::Halves, RotaryLayout::SeqHeads);
    let options = RotaryOptions { pairing, layout, positions: RotaryPositions::Ids(&ids) };
    let turn = |x: &Array| rotary(&x.reshape(&[rows, 1, x.shape()[1] / dim, dim])?, table, &options);
    let (turned, keys) = (turn(q)?.reshape(q.shape())?, turn(k)?);
    let positions = at.positions(op)?;
    put_rows(op, at.keys, &keys, &positions)?;
    put_rows(op, at.values, v, &positions)?;
    Ok(turned)
}

/// Puts the keys or values of new tokens, `[rows, heads * dim]` in whatever shape, into a cache of the host.
fn put_rows(op: &'static str, cache: &Array, x: &Array, positions: &[usize]) -> Result<()> {
    let [_, heads, capacity, dim] = cache.shape()[..] else {
        return Err(Error::argument(op, format!("a cache of shape {}", cache.shape())));
    };
    let (x, start) = (x.contiguous()?, cache.offset());
    let host = x.host(op)?;
    with_size!(cache.dtype(), T => {
        let from = &host.slice::<T>()[x.offset()..];
        cache.write::<T, _>(op, |to| {
            for (at, from) in from.chunks_exact(dim).take(positions.len() * heads).enumerate() {
                let place = start + (at * capacity + positions[at / heads]) * dim;
                to[place..place + dim].copy_from_slice(from);
            }
        })
    })
}

/// Attention of one query a row and head, `[rows, heads * dim]`, over the keys of its row up to its position, or over the
/// last `window` of them.
pub fn attend_rows(q: &Array, at: &KeyValues<'_>, window: Option<usize>) -> Result<Array> {
    let op = "attend_rows";
    let [rows, kv_heads, dim] = at.check(op, &[q])?;
    let heads = q.shape()[1] / dim;
    if heads == 0 || !heads.is_multiple_of(kv_heads.max(1)) {
        let what = format!("{heads} heads of queries cannot share {kv_heads} heads of keys");
        return Err(Error::argument(op, what));
    }
    if let Device::Cuda(_) = q.device() {
        let scale = 1.0 / (dim as f64).sqrt();
        return cuda::attend_rows(op, &q.contiguous()?, at, (window.unwrap_or(0), scale));
    }
    let seen = |position: usize| {
        window.map_or(0, |window| (position + 1).saturating_sub(window.max(1)))..position + 1
    };
    let seen: Vec<Range<usize>> = at.positions(op)?.into_iter().map(seen).collect();
    let (capacity, shape) = (at.keys.shape()[2], Shape::new(&[rows, heads * dim])?);
    with_float!(op, q.dtype(), T => {
        let (q, keys, values) = (q.values::<T>(op)?, at.keys.values::<T>(op)?, at.values.values::<T>(op)?);
        let cached = Cached { keys: &keys, values: &values, kv_heads, capacity, dim };
        let scale = <<T as Float>::Real as Real>::of(1.0 / (dim as f64).sqrt());
        let mut out = Fresh::<T>::new(&shape)?;
        over_cache::<T>(&q, cached, &seen, scale, out.slice());
        Ok(out.finish())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::attention::{AttentionOptions, attention};
    use crate::random::Key;

    fn numbers(x: &Array) -> Vec<f64> {
        x.cast(DType::F64).unwrap().to_vec().unwrap()
    }

    /// Rows at places of their own, with windows and without, have the bits of plain attention over the keys they see.
    #[test]
    fn rows_of_a_cache_have_the_bits_of_plain_attention() {
        let (capacity, places) = (700, [0i64, 17, 699, 256]);
        for (dim, heads, kv_heads) in [(64, 5, 5), (32, 6, 2), (7, 3, 1)] {
            for (dtype, window) in [DType::F32, DType::BF16, DType::F16, DType::F64]
                .into_iter()
                .flat_map(|dtype| [(dtype, None), (dtype, Some(9))])
            {
                let some = |shape: &[usize], seed| Array::normal(shape, dtype, Key::new(seed, 0)).unwrap();
                let cache = [places.len() + 1, kv_heads, capacity, dim];
                // A view that does not begin with its memory.
                let [keys, values] =
                    [1, 2].map(|seed| some(&cache, seed).narrow(0, 1, places.len()).unwrap());
                let [q, k, v] = [(heads, 3), (kv_heads, 4), (kv_heads, 5)]
                    .map(|(heads, seed)| some(&[places.len(), heads * dim], seed));
                let positions = Array::from_slice(&places, &[places.len()]).unwrap();
                let at = KeyValues { keys: &keys, values: &values, positions: &positions };
                for (cache, x) in [(at.keys, &k), (at.values, &v)] {
                    let places = places.map(|place| place as usize);
                    put_rows("test", cache, x, &places).unwrap();
                    for (row, place) in places.into_iter().enumerate() {
                        let put = cache.narrow(0, row, 1).unwrap().narrow(2, place, 1).unwrap();
                        let given = x.narrow(0, row, 1).unwrap().reshape(put.shape()).unwrap();
                        assert_eq!(numbers(&put), numbers(&given));
                    }
                }
                let made = attend_rows(&q, &at, window).unwrap();
                for (row, place) in places.into_iter().enumerate() {
                    let place = place as usize;
                    let first = window.map_or(0, |window| (place + 1).saturating_sub(window));
                    let seen =
                        |x: &Array| x.narrow(0, row, 1).unwrap().narrow(2, first, place + 1 - first).unwrap();
                    let q = q.narrow(0, row, 1).unwrap().reshape(&[1, heads, 1, dim]).unwrap();
                    let plain = attention(&q, &seen(&keys), &seen(&values), &AttentionOptions::default());
                    let plain = plain.unwrap().out.reshape(&[1, heads * dim]).unwrap();
                    let own = made.narrow(0, row, 1).unwrap();
                    assert_eq!(
                        numbers(&own),
                        numbers(&plain),
                        "{dtype} {dim} {heads}/{kv_heads} {window:?} row {row}"
                    );
                }
            }
        }
    }
}
