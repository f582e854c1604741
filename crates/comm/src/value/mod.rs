//! Nested structures between ranks: one header that describes the structure, then the tensors' bytes packed by
//! dtype. Nothing in a header is ever executed.

mod header;
#[cfg(test)]
mod tests;

use crate::call::{AllGather, AllToAll, Broadcast};
use crate::comm::{Comm, CommExt};
use crate::error::{Error, Result};
use header::Leaf;
use planaria_array::{Array, DType, ops};
use planaria_layout::Rank;

/// A nested structure of plain data and tensors.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Tensor(Array),
    List(Vec<Value>),
    Tuple(Vec<Value>),
    /// Entries in the order they were added.
    Map(Vec<(Value, Value)>),
}

impl Value {
    /// A map with text keys.
    pub fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, Value)>) -> Value {
        Value::Map(entries.into_iter().map(|(k, v)| (Value::Text(k.into()), v)).collect())
    }

    /// The entry of a map under a text key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Value::Map(entries) = self else { return None };
        entries.iter().find_map(|(k, v)| matches!(k, Value::Text(k) if k == key).then_some(v))
    }

    /// Calls `visit` on every tensor, in the order of the header.
    fn tensors<'a>(&'a self, visit: &mut impl FnMut(&'a Array)) {
        match self {
            Value::Tensor(array) => visit(array),
            Value::List(items) | Value::Tuple(items) => items.iter().for_each(|item| item.tensors(visit)),
            Value::Map(entries) => entries.iter().for_each(|(k, v)| {
                k.tensors(visit);
                v.tensors(visit);
            }),
            _ => {}
        }
    }
}

/// Equal structures: floats by their bits, tensors by dtype, shape and bytes.
impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::None, Value::None) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Float(a), Value::Float(b)) => a.to_bits() == b.to_bits(),
            (Value::Text(a), Value::Text(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => a == b,
            (Value::Map(a), Value::Map(b)) => a == b,
            (Value::Tensor(a), Value::Tensor(b)) => {
                let bytes = |x: &Array| x.contiguous().and_then(|x| x.bytes()).ok();
                let described = |x: &Array| (x.dtype(), x.shape().clone());
                described(a) == described(b) && bytes(a).as_deref() == bytes(b).as_deref()
            }
            _ => false,
        }
    }
}

/// A structure ready to travel: its header, and one flat array for each dtype that has elements.
#[derive(Debug)]
struct Packed {
    header: Array,
    payloads: Vec<Array>,
}

impl Packed {
    fn new(value: &Value) -> Result<Packed> {
        let header = header::encode(value)?;
        let header = Array::from_slice(&header, &[header.len()])?;
        let mut payloads = Vec::new();
        for dtype in DType::ALL {
            let mut parts = Vec::new();
            value.tensors(&mut |array| {
                if array.dtype() == dtype && array.numel() > 0 {
                    parts.push(array.reshape(&[array.numel()]));
                }
            });
            let parts = parts.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
            match parts.as_slice() {
                [] => {}
                [one] => payloads.push(one.contiguous()?),
                many => payloads.push(ops::concat(&many.iter().collect::<Vec<_>>(), 0)?),
            }
        }
        Ok(Packed { header, payloads })
    }
}

/// Elements of each dtype that a header announces, in the order of `DType::ALL`.
fn totals(leaves: &[Leaf], from: Rank) -> Result<Vec<(DType, usize)>> {
    let mut totals = Vec::new();
    for dtype in DType::ALL {
        let mine = leaves.iter().filter(|leaf| leaf.dtype == dtype);
        let total = mine.map(|leaf| leaf.shape.numel()).try_fold(0usize, usize::checked_add);
        let total = total.filter(|n| n.checked_mul(dtype.size()).is_some_and(|b| isize::try_from(b).is_ok()));
        match total {
            Some(0) => {}
            Some(total) => totals.push((dtype, total)),
            None => return Err(Error::Header { from, what: format!("too many elements of {dtype}") }),
        }
    }
    Ok(totals)
}

/// Fills the tensors of a decoded structure from its payloads.
fn unpack(decoded: header::Decoded, payloads: &[(DType, Array)]) -> Result<Value> {
    let mut tensors = Vec::with_capacity(decoded.leaves.len());
    let mut taken = [0usize; DType::ALL.len()];
    for leaf in &decoded.leaves {
        let numel = leaf.shape.numel();
        let payload = payloads.iter().find(|(dtype, _)| *dtype == leaf.dtype).filter(|_| numel > 0);
        let Some((_, payload)) = payload else {
            tensors.push(Array::zeros(&leaf.shape, leaf.dtype)?);
            continue;
        };
        let at = &mut taken[leaf.dtype as usize];
        let part = payload.narrow(0, *at, numel)?;
        *at += numel;
        // Leaves are values of their own: none keeps the others' bytes alive.
        let part = if part.is_whole() { part } else { part.copy()? };
        tensors.push(part.reshape(&leaf.shape)?);
    }
    Ok(decoded.value.with_tensors(&mut tensors.into_iter()))
}

/// Gives every rank the root's structure. Collective; other ranks' `value` is not looked at.
pub fn broadcast(comm: &dyn Comm, value: &Value, root: usize) -> Result<Value> {
    if root >= comm.size() {
        let what = format!("root {root} is out of range for {} ranks", comm.size());
        return Err(Error::argument("broadcast_value", what));
    }
    let is_root = comm.rank() == root;
    let packed = if is_root { Packed::new(value).map(Some) } else { Ok(None) };
    let announced = announced(&packed, |packed| packed.as_ref().map_or(0, |p| p.header.numel()));
    let length = shared(comm, Array::from_slice(&[announced], &[1])?, root)?.to_vec::<i64>()?[0];
    let packed = all_packed(comm, packed, &[(root, length)])?;
    let header = match &packed {
        Some(packed) => packed.header.clone(),
        None => room(comm, header::checked_length(length, comm.ranks()[root])?, DType::U8)?,
    };
    let header = shared(comm, header, root)?;
    // The root decodes too, so that all ranks agree on what comes next.
    let decoded = header::decode(&header.bytes()?, comm.ranks()[root])?;
    let totals = totals(&decoded.leaves, comm.ranks()[root])?;
    let mut payloads = Vec::with_capacity(totals.len());
    let mut own = packed.into_iter().flat_map(|p| p.payloads);
    for &(dtype, total) in &totals {
        let data = own.next().map_or_else(|| room(comm, total, dtype), Ok)?;
        payloads.push((dtype, shared(comm, data, root)?));
    }
    if is_root { Ok(value.clone()) } else { unpack(decoded, &payloads) }
}

/// What a rank says of its structure: a length, or, below zero, that it could not pack it and the length of its reason.
fn announced<T>(packed: &Result<T>, length: impl Fn(&T) -> usize) -> i64 {
    match packed {
        Ok(packed) => length(packed) as i64,
        Err(error) => -1 - error.to_string().len() as i64,
    }
}

/// What this rank packed, if all that announced something could; else the error of the first that could not.
fn all_packed<T>(comm: &dyn Comm, packed: Result<T>, announced: &[(usize, i64)]) -> Result<T> {
    let Some(&(rank, length)) = announced.iter().find(|(_, length)| *length < 0) else { return packed };
    let reason = packed.err().map(|error| error.to_string()).unwrap_or_default();
    Err(comm.told(rank, &reason, header::checked_length(-1 - length, comm.ranks()[rank])?)?)
}

/// Room for what comes. A rank that has none cannot take part any more, so it tells the others.
fn room(comm: &dyn Comm, count: usize, dtype: DType) -> Result<Array> {
    Ok(Array::empty(&[count], dtype).inspect_err(|error| comm.abort(&error.to_string()))?)
}

fn shared(comm: &dyn Comm, data: Array, root: usize) -> Result<Array> {
    comm.broadcast(Broadcast { data: data.clone(), root })?;
    Ok(data)
}

/// Who receives what is gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    All,
    One(usize),
}

/// Every rank's structure, in rank order, on the root; `None` elsewhere. Collective.
pub fn gather(comm: &dyn Comm, value: &Value, root: usize) -> Result<Option<Vec<Value>>> {
    if root >= comm.size() {
        let what = format!("root {root} is out of range for {} ranks", comm.size());
        return Err(Error::argument("gather_value", what));
    }
    let values = gather_to(comm, value, To::One(root))?;
    Ok((comm.rank() == root).then_some(values))
}

/// Every rank's structure, in rank order, on all ranks. Collective.
pub fn all_gather(comm: &dyn Comm, value: &Value) -> Result<Vec<Value>> {
    gather_to(comm, value, To::All)
}

fn gather_to(comm: &dyn Comm, value: &Value, to: To) -> Result<Vec<Value>> {
    let size = comm.size();
    let packed = Packed::new(value);
    // Everyone learns all lengths: of the header, and of the payload of each dtype.
    let mut lengths = vec![announced(&packed, |packed| packed.header.numel())];
    for dtype in DType::ALL {
        let payloads = packed.as_ref().map_or(&[][..], |packed| &packed.payloads);
        let own = payloads.iter().find(|p| p.dtype() == dtype);
        lengths.push(own.map_or(0, |p| p.numel() as i64));
    }
    let table = Array::empty(&[size * lengths.len()], DType::I64)?;
    let send = Array::from_slice(&lengths, &[lengths.len()])?;
    comm.all_gather(AllGather { send, recv: table.clone(), recv_counts: vec![lengths.len(); size] })?;
    let table = table.to_vec::<i64>()?;
    let headers: Vec<(usize, i64)> = table.iter().step_by(lengths.len()).copied().enumerate().collect();
    let packed = all_packed(comm, packed, &headers)?;
    let column = |which: usize| -> Result<Vec<usize>> {
        let entry =
            |rank: usize| header::checked_length(table[rank * lengths.len() + which], comm.ranks()[rank]);
        (0..size).map(entry).collect()
    };
    let headers = collect(comm, &packed.header, &column(0)?, to)?;
    let mut payloads: Vec<Vec<(DType, Array)>> = vec![Vec::new(); size];
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let counts = column(i + 1)?;
        if counts.iter().all(|&n| n == 0) {
            continue;
        }
        let own = packed.payloads.iter().find(|p| p.dtype() == dtype).cloned();
        let own = own.map_or_else(|| Array::zeros(&[0], dtype), Ok)?;
        for (rank, part) in collect(comm, &own, &counts, to)?.into_iter().enumerate() {
            payloads[rank].push((dtype, part));
        }
    }
    let rebuild = |(rank, header): (usize, &Array)| {
        let decoded = header::decode(&header.bytes()?, comm.ranks()[rank])?;
        for (dtype, total) in totals(&decoded.leaves, comm.ranks()[rank])? {
            if payloads[rank].iter().all(|(d, p)| *d != dtype || p.numel() != total) {
                let what = format!("{total} elements of {dtype} are described but not sent");
                return Err(Error::Header { from: comm.ranks()[rank], what });
            }
        }
        unpack(decoded, &payloads[rank])
    };
    headers.iter().enumerate().map(rebuild).collect()
}

/// Uneven parts of all ranks, on those who receive them; nothing elsewhere.
fn collect(comm: &dyn Comm, own: &Array, counts: &[usize], to: To) -> Result<Vec<Array>> {
    let (rank, size) = (comm.rank(), comm.size());
    let receives = |r: usize| to == To::All || to == To::One(r);
    let total = counts.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
    let total = total.filter(|n| n.checked_mul(own.dtype().size()).is_some());
    let total = total.ok_or_else(|| Error::argument("gather_value", "too many elements"))?;
    let recv = room(comm, if receives(rank) { total } else { 0 }, own.dtype())?;
    match to {
        To::All => {
            comm.all_gather(AllGather {
                send: own.clone(),
                recv: recv.clone(),
                recv_counts: counts.to_vec(),
            })?;
        }
        To::One(root) => {
            let mut send_counts = vec![0; size];
            send_counts[root] = own.numel();
            let recv_counts = if rank == root { counts.to_vec() } else { vec![0; size] };
            comm.all_to_all(AllToAll { send: own.clone(), send_counts, recv: recv.clone(), recv_counts })?;
        }
    }
    if !receives(rank) {
        return Ok(Vec::new());
    }
    let mut at = 0;
    let mut part = |&count: &usize| {
        at += count;
        Ok(recv.narrow(0, at - count, count)?)
    };
    counts.iter().map(&mut part).collect()
}
