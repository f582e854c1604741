//! Attention with grouped heads and rotary positions, and the cache of keys and values.

use super::capped::{Capped, capped_attention};
use super::rope::for_program;
use super::{Dropout, Linear, Parts, Positions, RmsNorm, Rope};
use crate::error::Result as BuildResult;
use crate::parallel::Lanes;
use crate::param::{Adaptable, Module, Param};
use planaria_array::ops::{
    KeyValues, Norm, RotaryTable, Span, attend_rows, linear_added, linears, rotate_into,
};
use planaria_array::random::Key;
use planaria_array::{Array, DType, Device};
use planaria_layout::{Layout, Shape};
use planaria_tensor::ops::Documents;
use planaria_tensor::{Error, Result, Tensor, ops};
use std::sync::{Arc, Mutex, PoisonError};

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
    /// A query sees all keys, those after it too; not with a window.
    pub bidirectional: bool,
}

/// What attention must know besides its input.
#[derive(Clone, Debug, Default)]
pub struct AttentionStep {
    /// Where the tokens stand.
    pub positions: Positions,
    /// A query sees keys of its own document only; not with a cache.
    pub documents: Option<Documents>,
    /// Where rows of one new token each stand, where they do not stand alike; with a cache.
    pub rows: Option<Arc<RowPlaces>>,
    /// The key of dropout, in training.
    pub dropout: Option<Key>,
}

/// Rows of one new token each, at places of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowPlaces {
    /// The place of each row.
    pub all: Arc<[usize]>,
    /// The places of the rows that this rank has.
    pub here: Vec<usize>,
}

impl RowPlaces {
    /// One more than the last place.
    pub fn end(&self) -> usize {
        self.all.iter().max().map_or(0, |last| last + 1)
    }

    /// True where the token of a row sees a key of it, `[rows, 1, 1, keys]`.
    pub fn seen(&self, keys: usize, window: Option<usize>, device: Device, lanes: &Lanes) -> Result<Tensor> {
        let first = |place: usize| window.map_or(0, |window| (place + 1).saturating_sub(window));
        let row = |&place: &usize| (0..keys).map(move |key| u8::from(key <= place && key >= first(place)));
        let seen: Vec<u8> = self.all.iter().flat_map(row).collect();
        let seen = Array::from_slice(&seen, &[self.all.len(), 1, 1, keys])?.cast(DType::Bool)?;
        let device = if device == Device::Meta { Device::Cpu } else { device };
        lanes.batch(&Tensor::new(seen.to(device)?))
    }
}

/// Self-attention, causal unless its sizes say otherwise.
#[derive(Clone, Debug)]
pub struct Attention {
    into: Products,
    /// Cut by rows, between heads.
    pub o: Linear,
    sizes: AttentionSizes,
    rope: Rope,
    lanes: Lanes,
    scores: Scores,
    /// Rows of one document each, as many and as long as the last: what a device keeps of them is made once.
    known: Arc<Mutex<Documents>>,
    /// Of queries and of keys, head by head, before they are rotated.
    norms: Option<[RmsNorm; 2]>,
}

/// The products that queries, keys and values come from.
#[derive(Clone, Debug)]
enum Products {
    /// One each, cut by columns, between heads; keys and values whole where there are fewer heads than ranks.
    Apart(Box<[Linear; 3]>),
    /// All from one, whole on every rank.
    Fused(Linear),
}

/// How queries and keys become scores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// Factor on them; one over the root of a head's size where there is none.
    pub scale: Option<f64>,
    /// They stay within plus and minus this, by a hyperbolic tangent.
    pub cap: Option<f64>,
}

impl Attention {
    /// `q_proj`, `k_proj`, `v_proj`, or `qkv_proj` in their place, and `o_proj`.
    pub fn new(parts: &Parts, sizes: AttentionSizes, rope: Rope, lanes: Lanes) -> BuildResult<Attention> {
        let into = match parts.has("qkv_proj.weight") {
            true => Products::Fused(parts.linear("qkv_proj")?),
            false => {
                let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|name| parts.linear(name));
                Products::Apart(Box::new([q?, k?, v?]))
            }
        };
        let scores = Scores::default();
        let known = Arc::new(Mutex::new(Documents::whole(0, 0)));
        Ok(Attention { into, o: parts.linear("o_proj")?, sizes, rope, lanes, scores, known, norms: None })
    }

    /// With other scores.
    #[must_use]
    pub fn with_scores(self, scores: Scores) -> Attention {
        Attention { scores, ..self }
    }

    /// With norms of queries and of keys, one weight for all heads.
    #[must_use]
    pub fn with_norms(self, queries: RmsNorm, keys: RmsNorm) -> Attention {
        Attention { norms: Some([queries, keys]), ..self }
    }

    /// From and to a hidden state between blocks. With a cache the keys and values so far are before these.
    pub fn forward(&self, x: &Tensor, step: &AttentionStep, cache: Option<&LayerCache>) -> Result<Tensor> {
        let AttentionSizes { heads, kv_heads, dim, .. } = self.sizes;
        let x = self.lanes.into_columns(x)?;
        let [batch, length, _] = x.shape()[..] else { return Err(not_hidden(&x)) };
        let split = |y: Tensor, heads: usize| y.reshape(&[batch, length, heads, dim]);
        let [query_norm, key_norm] = self.norms.as_ref().map_or([None, None], |[q, k]| [Some(q), Some(k)]);
        let rotate = |y: Tensor, heads, norm: Option<&RmsNorm>| {
            let y = split(y, heads)?;
            let y = norm.map_or(Ok(y.clone()), |norm| norm.forward(&y))?;
            self.rope.rotate(&y, &step.positions)?.transpose(1, 2)
        };

        let [q, k, v] = self.projected(&x)?;
        let (q, k) = (rotate(q, heads, query_norm)?, rotate(k, kv_heads, key_norm)?);
        let v = split(v, kv_heads)?.transpose(1, 2)?;

        let (k, v) = match cache {
            Some(cache) => cache.extended(&k, &v, step)?,
            None => (k, v),
        };
        let (k, v) = (self.shared_out(&k)?, self.shared_out(&v)?);
        let y = self.mixed([&q, &k, &v], step)?;
        let y = y.transpose(1, 2)?.reshape(&[batch, length, heads * dim])?;
        self.lanes.out_of_rows(&self.o.forward(&y)?)
    }

    /// Values mixed as queries and keys `[batch, heads, sequence, dim]` say.
    fn mixed(&self, [q, k, v]: [&Tensor; 3], step: &AttentionStep) -> Result<Tensor> {
        let (length, keys, device) = (q.shape()[2], k.shape()[2], q.local().device());
        if let Some(cap) = self.scores.cap {
            let scale = self.scores.scale.unwrap_or((self.sizes.dim as f64).powf(-0.5));
            let seen = match &step.rows {
                Some(rows) => rows.seen(keys, self.sizes.window, device, &self.lanes)?,
                None if for_program(q) => self.seen_by_places(length, keys)?,
                None => Tensor::new(self.seen(length, keys, device)?),
            };
            let dropout = (self.sizes.dropout, step.dropout);
            let documents = step.documents.as_ref();
            let how = Capped { scale, cap, seen, documents, dropout, lanes: &self.lanes };
            return capped_attention([q, k, v], &how);
        }
        // Queries stand at the end of the keys; the kernel's causal span counts both from their first.
        let causal = keys == length && !self.sizes.bidirectional && step.rows.is_none();
        let span = if causal { Span::Causal } else { Span::All };
        let window = self.sizes.window.filter(|&window| window < keys);
        let bounded = window.filter(|_| causal && matches!(device, Device::Cuda(_)));
        let (mask, documents) = match (&step.rows, bounded) {
            (Some(rows), _) => (Some(rows.seen(keys, self.sizes.window, device, &self.lanes)?), None),
            // A device skips the keys that no query of a tile sees, which it cannot tell from a mask.
            (None, Some(window)) => (None, Some(self.rows(step, q.shape()[0], length).within(window)?)),
            (None, None) if for_program(q) => (self.mask_by_places(length, keys)?, step.documents.clone()),
            (None, None) => (self.mask(length, keys, device)?, step.documents.clone()),
        };
        let options = ops::AttentionOptions {
            scale: self.scores.scale,
            span,
            mask: mask.as_ref(),
            documents: documents.as_ref(),
            dropout: self.sizes.dropout.drawn(step.dropout),
        };
        ops::attention(q, k, v, &options)
    }

    /// The documents of each row; one, where nothing else is said.
    fn rows(&self, step: &AttentionStep, rows: usize, length: usize) -> Documents {
        if let Some(documents) = &step.documents {
            return documents.clone();
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if (known.rows(), known.length()) != (rows, length) {
            *known = Documents::whole(rows, length);
        }
        known.clone()
    }

    /// Queries, keys and values of all heads, or of this rank's.
    fn projected(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        let AttentionSizes { heads, kv_heads, dim, .. } = self.sizes;
        let all = match &self.into {
            Products::Fused(all) => Some(all.forward(x)?),
            Products::Apart(apart) => Linear::joined(&[&apart[0], &apart[1], &apart[2]], x)?,
        };
        if let Some(all) = all
            && let [q, k, v] = &all.split_sizes(&[heads * dim, kv_heads * dim, kv_heads * dim], -1)?[..]
        {
            // Rotations make new queries and keys; values of their own let go of the whole.
            return Ok([q.clone(), k.clone(), v.copy()?]);
        }
        match &self.into {
            Products::Apart(apart) => {
                let [q, k, v] = &**apart;
                Ok([q.forward(x)?, self.keys(k, x)?, self.keys(v, x)?])
            }
            Products::Fused(_) => Err(Error::Bug("a fused product splits into three")),
        }
    }

    /// Adds attention of `norm(x)` to rows `[rows, width]`, one new token of each: they stand at `positions` behind what the
    /// cache holds. On one rank and without history.
    pub(crate) fn decode(
        &self,
        x: &Array,
        norm: Norm<'_>,
        positions: &Array,
        cache: &LayerCache,
    ) -> Result<Array> {
        let Products::Apart(apart) = &self.into else {
            return Err(Error::Bug("fused products do not decode"));
        };
        let [q, k, v] = &**apart;
        let [q, k, v, o] = [q, k, v, &self.o].map(Linear::weights);
        let (q, k, v, o) = (q?, k?, v?, o?);
        let made = linears(x, Some(norm), &[q.layer(), k.layer(), v.layer()])?;
        let [q, k, v] = &made[..] else { return Err(Error::Bug("three layers give three results")) };
        let (keys, values, table) = cache.buffers(&self.rope)?;
        let at = KeyValues { keys: &keys, values: &values, positions };
        let q = rotate_into([q, k, v], &table, &at)?;
        Ok(linear_added(&attend_rows(&q, &at, self.sizes.window)?, o.layer(), x)?)
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
    fn mask(&self, queries: usize, keys: usize, device: Device) -> Result<Option<Tensor>> {
        let window = self.sizes.window.filter(|&window| window < keys);
        if window.is_none() && (keys == queries || queries == 1 || self.sizes.bidirectional) {
            return Ok(None);
        }
        self.seen(queries, keys, device).map(Tensor::new).map(Some)
    }

    /// The same as a program of any length must have it: the window may be longer than this sequence.
    fn mask_by_places(&self, queries: usize, keys: usize) -> Result<Option<Tensor>> {
        let window = self.window_of_any(keys)?;
        if window.is_none() && (keys == queries || queries == 1 || self.sizes.bidirectional) {
            return Ok(None);
        }
        self.seen_by_places(queries, keys).map(Some)
    }

    /// The window, unless no sequence that a program takes is as long.
    fn window_of_any(&self, keys: usize) -> Result<Option<usize>> {
        let longest = self.rope.places(keys)?.numel();
        Ok(self.sizes.window.filter(|&window| window < longest && !self.sizes.bidirectional))
    }

    /// True where a query sees a key, made by ops from positions, so that a program of them fits sequences of any length.
    fn seen_by_places(&self, queries: usize, keys: usize) -> Result<Tensor> {
        let places = Tensor::new(self.rope.places(keys)?);
        let rows = places.narrow(0, keys - queries, queries)?.unsqueeze(1)?;
        let columns = places.narrow(0, 0, keys)?.unsqueeze(0)?;
        if self.sizes.bidirectional {
            return columns.ge(&rows.mul_scalar(0)?);
        }
        let seen = columns.le(&rows)?;
        match self.window_of_any(keys)? {
            None => Ok(seen),
            Some(window) => {
                let before = rows.sub(&Tensor::scalar(window as i64, DType::I64)?)?;
                seen.logical_and(&columns.gt(&before)?)
            }
        }
    }

    /// True where a query sees a key.
    fn seen(&self, queries: usize, keys: usize, device: Device) -> Result<Array> {
        let window = self.sizes.window.filter(|&window| window < keys);
        let device = if device == Device::Meta { Device::Cpu } else { device };
        let seen = Array::full_on(&[queries, keys], true, DType::Bool, device)?;
        if self.sizes.bidirectional {
            return Ok(seen);
        }
        // Query `i` stands at key `i + past`.
        let past = (keys - queries) as i64;
        let mut kept = seen.tril(past)?;
        if let Some(window) = window {
            kept = kept.triu(past + 1 - window as i64)?;
        }
        Ok(kept)
    }
}

fn not_hidden(x: &Tensor) -> Error {
    let message = format!("expected [batch, sequence, width], got shape {}", x.shape());
    Error::Argument { op: "attention", message }
}

impl Module for Attention {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        match &self.into {
            Products::Apart(apart) => apart.iter().for_each(|module| module.visit(f)),
            Products::Fused(all) => all.visit(f),
        }
        self.o.visit(f);
        self.norms.iter().flatten().for_each(|norm| norm.visit(f));
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        match &mut self.into {
            Products::Apart(apart) => apart.iter_mut().for_each(|module| module.visit_mut(f)),
            Products::Fused(all) => all.visit_mut(f),
        }
        self.o.visit_mut(f);
        self.norms.iter_mut().flatten().for_each(|norm| norm.visit_mut(f));
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        match &mut self.into {
            Products::Apart(apart) => apart.iter_mut().for_each(|module| module.visit_layers(f)),
            Products::Fused(all) => all.visit_layers(f),
        }
        self.o.visit_layers(f);
    }
}

/// Keys and values of one layer, in buffers of a fixed length.
#[derive(Debug)]
pub struct LayerCache {
    capacity: usize,
    /// Whether what comes is put behind in new tensors, instead of being written into the room that is left.
    grows: bool,
    held: Mutex<Option<Held>>,
}

/// The first positions of a row that go into a row of another cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) len: usize,
}

#[derive(Debug)]
struct Held {
    keys: Tensor,
    values: Tensor,
    len: usize,
    rotations: Option<RotaryTable>,
}

impl LayerCache {
    /// Room for `capacity` positions.
    pub fn new(capacity: usize) -> LayerCache {
        LayerCache { capacity, grows: false, held: Mutex::new(None) }
    }

    /// Keys and values `[batch, heads, positions, dim]` of what came before, without room for more: what comes is put
    /// behind them in new tensors. For programs, whose values do not change.
    pub fn growing(keys: Tensor, values: Tensor) -> LayerCache {
        let len = keys.shape().get(2).copied().unwrap_or(0);
        let held = Held { keys, values, len, rotations: None };
        LayerCache { capacity: usize::MAX, grows: true, held: Mutex::new(Some(held)) }
    }

    /// The same with nothing before.
    pub fn collecting() -> LayerCache {
        LayerCache { capacity: usize::MAX, grows: true, held: Mutex::new(None) }
    }

    /// The keys and values held, one position after the other.
    pub fn tensors(&self) -> Result<Option<(Tensor, Tensor)>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_ref() {
            None => Ok(None),
            Some(held) if self.grows => Ok(Some((held.keys.clone(), held.values.clone()))),
            Some(held) => Ok(Some((held.keys.narrow(2, 0, held.len)?, held.values.narrow(2, 0, held.len)?))),
        }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, |held| held.len)
    }

    /// True when nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffers, `[batch, heads, capacity, dim]`, and the rotations of all their positions, which stay as long.
    fn buffers(&self, rope: &Rope) -> Result<(Array, Array, RotaryTable)> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(held) = held.as_mut() else {
            let message = "nothing is held yet; run the prompts first".to_string();
            return Err(Error::Argument { op: "cache", message });
        };
        let (keys, values) = (held.keys.local().clone(), held.values.local().clone());
        let table = match &held.rotations {
            Some(table) => table.clone(),
            None => held.rotations.insert(rope.table(self.capacity, keys.device())?).clone(),
        };
        Ok((keys, values, table))
    }

    /// Takes the first positions of rows of another cache into rows of this one, of which there are so many.
    pub(crate) fn take_rows(&self, from: &LayerCache, rows: usize, moves: &[Moved]) -> Result<()> {
        let Some((keys, values)) = from.tensors()? else { return Err(Error::Bug("nothing was read")) };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let held = match &mut *held {
            Some(held) => held,
            none => {
                let room = |x: &Tensor| buffer(x, rows, self.capacity);
                none.insert(Held { keys: room(&keys)?, values: room(&values)?, len: 0, rotations: None })
            }
        };
        for &Moved { from, to, len } in moves {
            for (buffer, new) in [(&held.keys, &keys), (&held.values, &values)] {
                let room = buffer.local().narrow(0, to, 1)?.narrow(2, 0, len)?;
                room.copy_from(&new.local().narrow(0, from, 1)?.narrow(2, 0, len)?)?;
            }
        }
        Ok(())
    }

    /// All keys and values with new ones, which go where the step says.
    pub(crate) fn extended(&self, k: &Tensor, v: &Tensor, step: &AttentionStep) -> Result<(Tensor, Tensor)> {
        match &step.rows {
            Some(rows) => self.put(k, v, rows),
            None => self.append(k, v),
        }
    }

    /// Puts one key and value of each row, `[rows, heads, 1, dim]`, at its place; gives all up to the last place.
    fn put(&self, k: &Tensor, v: &Tensor, rows: &RowPlaces) -> Result<(Tensor, Tensor)> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = !self.grows && rows.end() <= self.capacity && k.shape()[2] == 1;
        let Some(held) = held.as_ref().filter(|_| fits) else {
            let message = format!("there is no room for tokens at places up to {}", rows.end());
            return Err(Error::Argument { op: "cache", message });
        };
        for (buffer, new) in [(&held.keys, k), (&held.values, v)] {
            for (row, &place) in rows.here.iter().enumerate() {
                let room = buffer.local().narrow(0, row, 1)?.narrow(2, place, 1)?;
                room.copy_from(&new.local().narrow(0, row, 1)?)?;
            }
        }
        let filled = |buffer: &Tensor| buffer.narrow(2, 0, rows.end());
        Ok((filled(&held.keys)?, filled(&held.values)?))
    }

    /// Adds keys and values `[batch, heads, new, dim]` and gives all so far.
    fn append(&self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            let (keys, values, len) = match self.grows {
                true => (k.clone(), v.clone(), k.shape()[2]),
                false => {
                    let room = |x: &Tensor| buffer(x, x.shape()[0], self.capacity);
                    (room(k)?, room(v)?, 0)
                }
            };
            *held = Some(Held { keys, values, len, rotations: None });
            if self.grows {
                return Ok((k.clone(), v.clone()));
            }
        }
        let Some(held) = held.as_mut() else { return Err(Error::Bug("the buffers were just made")) };
        let (start, new) = (held.len, k.shape()[2]);
        if self.grows {
            held.keys = ops::concat(&[&held.keys, k], 2)?;
            held.values = ops::concat(&[&held.values, v], 2)?;
            held.len += new;
            return Ok((held.keys.clone(), held.values.clone()));
        }
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

/// Zeros like `x`, with room for `capacity` positions of so many rows.
fn buffer(x: &Tensor, rows: usize, capacity: usize) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    (shape[0], shape[2]) = (rows, capacity);
    match (x.layout(), x.world()) {
        (Some(layout), Some(world)) => {
            let layout = Layout::new(layout.mesh(), &Shape::new(&shape)?, layout.placements())?;
            Tensor::full(&layout, 0.0, x.dtype(), world)?.to(x.local().device())
        }
        _ => Ok(Tensor::new(Array::zeros_on(&shape, x.dtype(), x.local().device())?)),
    }
}
