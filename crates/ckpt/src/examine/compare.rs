//! Two checkpoints tensor by tensor, whatever their formats and cuts.

use super::{CHUNK, values};
use crate::convert::{counts_for, steps_taken};
use crate::error::Result;
use crate::formats::Key;
use crate::stream::Feed;
use planaria_layout::{DType, Shape};
use std::collections::BTreeSet;

/// How far two values may lie apart: `|a - b| <= absolute + relative * |b|`. Zero of both means bit for bit
/// (two NaNs of the same bits are equal, 0 and -0 are not).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bound {
    /// Absolute part.
    pub absolute: f64,
    /// Relative part.
    pub relative: f64,
}

impl Bound {
    fn is_exact(&self) -> bool {
        self.absolute == 0.0 && self.relative == 0.0
    }

    fn accepts(&self, a: f64, b: f64) -> bool {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= self.absolute + self.relative * b.abs()
    }
}

/// Values that differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Number of elements that differ by more than the bound.
    pub count: u64,
    /// Largest absolute difference; NaN when one side is not a number.
    pub max_abs: f64,
    /// Largest difference relative to the second value.
    pub max_rel: f64,
    /// Index of the first element that differs.
    pub first: Vec<usize>,
    /// Its two values.
    pub values: (f64, f64),
}

/// What was found about one tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The same, or within the bound.
    Same,
    /// Only the first checkpoint has it.
    OnlyFirst,
    /// Only the second has it.
    OnlySecond,
    /// Element types that nothing here computes with differ, so their values cannot be compared.
    Spec(String, String),
    /// The shapes differ.
    Shape(Shape, Shape),
    /// The values agree (within the bound) but the element types differ.
    DType(DType, DType),
    /// The values differ.
    Values(Difference),
}

/// Compares the tensors of two checkpoints that `chosen` accepts, in order of their names. `found` hears of each
/// tensor, `moved` of every pair of bytes read.
pub fn compare(
    (first, second): (&Feed<'_>, &Feed<'_>),
    bound: &Bound,
    chosen: &dyn Fn(&Key) -> bool,
    moved: &dyn Fn(u64),
    found: &mut dyn FnMut(&Key, Verdict) -> Result<()>,
) -> Result<()> {
    let keys: BTreeSet<&Key> = first.source().tensors.keys().chain(second.source().tensors.keys()).collect();
    for key in keys.into_iter().filter(|key| chosen(key)) {
        let (a, b) = (first.source().tensors.get(key), second.source().tensors.get(key));
        let verdict = match (a, b) {
            (Some(_), Some(_)) if first.source().foreign.get(key) != second.source().foreign.get(key) => {
                Verdict::Spec(first.source().spec(key), second.source().spec(key))
            }
            (Some(a), Some(b)) if a.shape != b.shape => Verdict::Shape(a.shape.clone(), b.shape.clone()),
            (Some(a), Some(b)) => match difference((first, second), key, bound, moved)? {
                Some(difference) => Verdict::Values(difference),
                None if a.dtype != b.dtype => Verdict::DType(a.dtype, b.dtype),
                None => Verdict::Same,
            },
            _ if agree_on_steps((first, second), key) => Verdict::Same,
            (Some(_), None) => Verdict::OnlyFirst,
            _ => Verdict::OnlySecond,
        };
        found(key, verdict)?;
    }
    Ok(())
}

/// Frameworks tell in ways of their own how many steps a weight has taken: a tensor that only one side has says nothing new
/// where both tell the same number.
fn agree_on_steps((first, second): (&Feed<'_>, &Feed<'_>), key: &Key) -> bool {
    let Some(weight) = counts_for(key) else { return false };
    let taken = steps_taken(first, weight);
    taken.is_some() && taken == steps_taken(second, weight)
}

/// One side of a comparison.
struct Side<'f, 's> {
    feed: &'f Feed<'s>,
    dtype: DType,
    bytes: Vec<u8>,
    scratch: Vec<u8>,
}

impl<'f, 's> Side<'f, 's> {
    fn new(feed: &'f Feed<'s>, key: &Key) -> Result<Side<'f, 's>> {
        let entry = feed.source().get(key)?;
        let bytes = vec![0; CHUNK.min(entry.shape.numel()) * entry.dtype.size()];
        Ok(Side { feed, dtype: entry.dtype, bytes, scratch: Vec::new() })
    }

    fn read(&mut self, key: &Key, start: usize, end: usize) -> Result<&[u8]> {
        let part = &mut self.bytes[..(end - start) * self.dtype.size()];
        self.feed.elements(key, start..end, part, &mut self.scratch)?;
        Ok(part)
    }
}

fn difference(
    (first, second): (&Feed<'_>, &Feed<'_>),
    key: &Key,
    bound: &Bound,
    moved: &dyn Fn(u64),
) -> Result<Option<Difference>> {
    let shape = &first.source().get(key)?.shape;
    let (mut a, mut b) = (Side::new(first, key)?, Side::new(second, key)?);
    let numel = shape.numel();
    let mut found: Option<Difference> = None;
    for start in (0..numel).step_by(CHUNK) {
        let end = numel.min(start + CHUNK);
        let (dtypes, size) = ((a.dtype, b.dtype), a.dtype.size());
        let (x, y) = (a.read(key, start, end)?, b.read(key, start, end)?);
        if dtypes.0 != dtypes.1 || x != y {
            // Bits decide only where nothing else is asked for and the element types agree.
            let bits = (bound.is_exact() && dtypes.0 == dtypes.1).then_some((x, y, size));
            let pairs = (values(x, dtypes.0)?, values(y, dtypes.1)?);
            look(&pairs, bits, bound, (start, shape), &mut found);
        }
        moved((x.len() + y.len()) as u64);
    }
    Ok(found)
}

/// Adds what differs in one chunk that starts at element `start`.
fn look(
    (a, b): &(Vec<f64>, Vec<f64>),
    bits: Option<(&[u8], &[u8], usize)>,
    bound: &Bound,
    (start, shape): (usize, &Shape),
    found: &mut Option<Difference>,
) {
    for (i, (&x, &y)) in a.iter().zip(b).enumerate() {
        let same = match bits {
            Some((p, q, size)) => p[i * size..][..size] == q[i * size..][..size],
            None => bound.accepts(x, y),
        };
        if same {
            continue;
        }
        let difference = found.get_or_insert_with(|| Difference {
            count: 0,
            max_abs: 0.0,
            max_rel: 0.0,
            first: index_of(start + i, shape),
            values: (x, y),
        });
        difference.count += 1;
        let abs = if x == y { 0.0 } else { (x - y).abs() };
        // NaN wins: it is the worst difference there is.
        if abs.is_nan() || abs > difference.max_abs {
            difference.max_abs = abs;
        }
        let rel = if abs == 0.0 { 0.0 } else { abs / y.abs() };
        if rel.is_nan() || rel > difference.max_rel {
            difference.max_rel = rel;
        }
    }
}

fn index_of(mut flat: usize, shape: &Shape) -> Vec<usize> {
    let mut index = vec![0; shape.ndim()];
    for (at, &extent) in index.iter_mut().zip(shape.iter()).rev() {
        *at = flat % extent;
        flat /= extent;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_decide_without_a_bound() {
        let shape = Shape::new(&[2, 2]).unwrap();
        let (a, b) = (vec![1.0, 0.0, 2.0, f64::NAN], vec![1.0, -0.0, 2.5, f64::NAN]);
        let bytes = |v: &[f64]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let (p, q) = (bytes(&a), bytes(&b));
        let mut found = None;
        look(&(a.clone(), b.clone()), Some((&p, &q, 8)), &Bound::default(), (0, &shape), &mut found);
        let found = found.unwrap();
        assert_eq!((found.count, found.first, found.max_abs, found.max_rel), (2, vec![0, 1], 0.5, 0.2));
        let mut none = None;
        look(&(a, b), None, &Bound { absolute: 0.5, relative: 0.0 }, (0, &shape), &mut none);
        assert_eq!(none, None, "0 is -0 and NaN is NaN within a bound");
    }
}
