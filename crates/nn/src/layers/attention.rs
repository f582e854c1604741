//! Attention with grouped heads and rotary positions, and the cache of keys and values.

use super::{Dropout, Linear, Parts, Positions, Rope};
use crate::error::Result as BuildResult;
use crate::parallel::Lanes;
use crate::param::{Module, Param};
use planaria_array::ops::Span;
use planaria_array::random::Key;
use planaria_array::{Array, DType};
use planaria_layout::{Layout, Shape};
use planaria_tensor::ops::Documents;
use planaria_tensor::{Error, Result, Tensor, ops};
use std::sync::{Mutex, PoisonError};

/// Heads and their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSizes {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; each serves `heads / kv_heads` heads of queries.
    pub kv_heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// A query sees this many keys, its own the last; absent: all before it.
    pub window: Option<usize>,
    /// Probability that a weight of a value is set to 0, in training.
    pub dropout: Dropout,
}

/// What attention must know besides its input.
#[derive(Clone, Debug, Default)]
pub struct AttentionStep {
    /// Where the tokens stand.
    pub positions: Positions,
    /// A query sees keys of its own document only; not with a cache.
    pub documents: Option<Documents>,
    /// The key of dropout, in training.
    pub dropout: Option<Key>,
}

/// Causal self-attention.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Cut by columns, between heads.
    pub q: Linear,
    /// Like `q`; whole where there are fewer heads than ranks.
    pub k: Linear,
    /// Like `k`.
    pub v: Linear,
    /// Cut by rows, between heads.
    pub o: Linear,
    sizes: AttentionSizes,
    rope: Rope,
    lanes: Lanes,
}

impl Attention {
    /// `q_proj`, `k_proj`, `v_proj` and `o_proj`.
    pub fn new(parts: &Parts, sizes: AttentionSizes, rope: Rope, lanes: Lanes) -> BuildResult<Attention> {
        let [q, k, v, o] = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|name| parts.linear(name));
        Ok(Attention { q: q?, k: k?, v: v?, o: o?, sizes, rope, lanes })
    }

    /// From and to a hidden state between blocks. With a cache the keys and values so far are before these.
    pub fn forward(&self, x: &Tensor, step: &AttentionStep, cache: Option<&LayerCache>) -> Result<Tensor> {
        let AttentionSizes { heads, kv_heads, dim, .. } = self.sizes;
        let x = self.lanes.into_columns(x)?;
        let [batch, length, _] = x.shape()[..] else { return Err(not_hidden(&x)) };
        let split = |y: Tensor, heads: usize| y.reshape(&[batch, length, heads, dim]);
        let rotate = |y: Tensor, heads| self.rope.rotate(&split(y, heads)?, &step.positions)?.transpose(1, 2);

        let q = rotate(self.q.forward(&x)?, heads)?;
        let k = rotate(self.keys(&self.k, &x)?, kv_heads)?;
        let v = split(self.keys(&self.v, &x)?, kv_heads)?.transpose(1, 2)?;

        let (k, v) = match cache {
            Some(cache) => cache.append(&k, &v)?,
            None => (k, v),
        };
        let (k, v) = (self.shared_out(&k)?, self.shared_out(&v)?);
        let keys = k.shape()[2];
        let mask = self.mask(length, keys)?;
        // Queries stand at the end of the keys; the kernel's causal span counts both from their first.
        let span = if keys == length { Span::Causal } else { Span::All };
        let options = ops::AttentionOptions {
            scale: None,
            span,
            mask: mask.as_ref(),
            documents: step.documents.as_ref(),
            dropout: self.sizes.dropout.drawn(step.dropout),
        };
        let y = ops::attention(&q, &k, &v, &options)?;
        let y = y.transpose(1, 2)?.reshape(&[batch, length, heads * dim])?;
        self.lanes.out_of_rows(&self.o.forward(&y)?)
    }

    /// Keys or values of all heads, or of this rank's.
    fn keys(&self, of: &Linear, x: &Tensor) -> Result<Tensor> {
        let y = of.forward(x)?;
        if !self.sizes.kv_heads.is_multiple_of(self.lanes.tp()) {
            self.lanes.alike(&y)?;
        }
        Ok(y)
    }

    /// Heads of keys repeated until the ranks can share them out evenly, where they are too few or do not divide.
    fn shared_out(&self, k: &Tensor) -> Result<Tensor> {
        let (tp, groups) = (self.lanes.tp(), self.sizes.heads / self.sizes.kv_heads);
        let [batch, heads, keys, dim] = k.shape()[..] else { return Err(not_hidden(k)) };
        let fits = |times: &usize| groups.is_multiple_of(*times) && (heads * times).is_multiple_of(tp);
        let Some(times) = (1..=groups).find(fits).filter(|&times| times > 1) else { return Ok(k.clone()) };
        let repeated = k.unsqueeze(2)?.broadcast_to(&[batch, heads, times, keys, dim])?;
        let repeated = repeated.reshape(&[batch, heads * times, keys, dim])?;
        if heads > 1 {
            // Ranks have parts of heads' copies, which do not add up head by head.
            self.lanes.alike(&repeated)?;
        }
        Ok(repeated)
    }

    /// Which keys a query sees, where "those before it" does not say it all.
    fn mask(&self, queries: usize, keys: usize) -> Result<Option<Tensor>> {
        let window = self.sizes.window.filter(|&window| window < keys);
        if window.is_none() && (keys == queries || queries == 1) {
            return Ok(None);
        }
        let seen = Array::full(&[queries, keys], true, DType::Bool)?;
        // Query `i` stands at key `i + past`.
        let past = (keys - queries) as i64;
        let mut kept = seen.tril(past)?;
        if let Some(window) = window {
            kept = kept.triu(past + 1 - window as i64)?;
        }
        Ok(Some(Tensor::new(kept)))
    }
}

fn not_hidden(x: &Tensor) -> Error {
    let message = format!("expected [batch, sequence, width], got shape {}", x.shape());
    Error::Argument { op: "attention", message }
}

impl Module for Attention {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        [&self.q, &self.k, &self.v, &self.o].into_iter().for_each(|module| module.visit(f));
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        let all = [&mut self.q, &mut self.k, &mut self.v, &mut self.o];
        all.into_iter().for_each(|module| module.visit_mut(f));
    }
}

/// Keys and values of one layer, in buffers of a fixed length.
#[derive(Debug)]
pub struct LayerCache {
    capacity: usize,
    held: Mutex<Option<Held>>,
}

#[derive(Debug)]
struct Held {
    keys: Tensor,
    values: Tensor,
    len: usize,
}

impl LayerCache {
    /// Room for `capacity` positions.
    pub fn new(capacity: usize) -> LayerCache {
        LayerCache { capacity, held: Mutex::new(None) }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, |held| held.len)
    }

    /// True when nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds keys and values `[batch, heads, new, dim]` and gives all so far.
    fn append(&self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            let (keys, values) = (buffer(k, self.capacity)?, buffer(v, self.capacity)?);
            *held = Some(Held { keys, values, len: 0 });
        }
        let Some(held) = held.as_mut() else { return Err(Error::Bug("the buffers were just made")) };
        let (start, new) = (held.len, k.shape()[2]);
        if start + new > self.capacity {
            let message = format!(
                "{start} positions are held and {new} come, but there is room for {}; make a larger cache",
                self.capacity
            );
            return Err(Error::Argument { op: "cache", message });
        }
        // Positions are never cut, so each rank writes its own heads.
        held.keys.local().narrow(2, start, new)?.copy_from(k.local())?;
        held.values.local().narrow(2, start, new)?.copy_from(v.local())?;
        held.len += new;
        let filled = |buffer: &Tensor| buffer.narrow(2, 0, held.len);
        Ok((filled(&held.keys)?, filled(&held.values)?))
    }
}

/// Zeros like `x`, with room for `capacity` positions.
fn buffer(x: &Tensor, capacity: usize) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    shape[2] = capacity;
    match (x.layout(), x.world()) {
        (Some(layout), Some(world)) => {
            let layout = Layout::new(layout.mesh(), &Shape::new(&shape)?, layout.placements())?;
            Tensor::full(&layout, 0.0, x.dtype(), world)
        }
        _ => Tensor::zeros(&shape, x.dtype()),
    }
}
