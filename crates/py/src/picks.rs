//! Reading what an index asks for: the smallest box around it, or, where it picks few rows, those rows alone.

use std::sync::Arc;

use planaria::array::{Array, DType, Index};
use planaria::ckpt::formats::{Key, Part, Source};
use planaria::ckpt::stream::Feed;
use planaria::ckpt::{Casts, Error, LoadOptions, Unmatched, load_source};
use planaria::comm::alone;
use planaria::layout::{Dims, Region};

use crate::load::fill;
use crate::mapped::array_over;
use crate::state::Part as Room;

/// A large tensor is read by several threads.
const LARGE: usize = 8 << 20;

/// The whole tensor, where that takes no time: it is mapped, and nothing has to be compared first.
pub(crate) fn at_once(source: &Source, key: &Key) -> Result<Option<Array>, Error> {
    source.map_compared(key)?.map(array_over).transpose()
}

/// The whole tensor.
pub(crate) fn whole(source: &Arc<Source>, key: &Key) -> Result<Array, Error> {
    if let Some(mapped) = source.map(key)? {
        return array_over(mapped);
    }
    let entry = source.get(key)?;
    let array = Array::empty(&entry.shape, entry.dtype)?;
    if key.part == Part::Model && entry.shape.numel() * entry.dtype.size() >= LARGE {
        let room = vec![Room::whole(key.name.as_str(), array.clone())];
        let (missing, unexpected) = (Unmatched::Refuse, Unmatched::Allow);
        let options = LoadOptions { missing, unexpected, casts: Casts::Refuse, ..LoadOptions::default() };
        fill(source, room, |state| load_source(&*alone(), source, state, &options))?;
        return Ok(array);
    }
    read_box(&Feed::new(source), key, &Region::whole(&entry.shape), &array)?;
    Ok(array)
}

fn read_box(feed: &Feed<'_>, key: &Key, region: &Region, into: &Array) -> Result<(), Error> {
    if into.numel() == 0 {
        return Ok(());
    }
    let bytes = into.numel() * into.dtype().size();
    into.write_bytes(0..bytes, |out| feed.region(key, region, out, &mut Vec::new()))?
}

/// What an index wants along one dim of the tensor.
enum Want {
    One(usize),
    /// First position, count and step.
    Run(usize, usize, i64),
    /// Positions, and the shape they came in.
    List(Vec<usize>, Array),
}

impl Want {
    fn bounds(&self) -> (usize, usize) {
        match self {
            Want::One(at) => (*at, at + 1),
            Want::Run(_, 0, _) => (0, 0),
            Want::Run(first, count, step) => {
                let last = first.wrapping_add_signed((*count as i64 - 1).wrapping_mul(*step) as isize);
                (*first.min(&last), first.max(&last) + 1)
            }
            Want::List(at, _) => match (at.iter().min(), at.iter().max()) {
                (Some(&low), Some(&high)) => (low, high + 1),
                _ => (0, 0),
            },
        }
    }

    /// Every position, ascending and once.
    fn rows(&self) -> Vec<usize> {
        let mut rows: Vec<usize> = match self {
            Want::One(at) => vec![*at],
            Want::Run(first, count, step) => {
                (0..*count as i64).map(|i| first.wrapping_add_signed((i * step) as isize)).collect()
            }
            Want::List(at, _) => at.clone(),
        };
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// The same wish over the positions `rows` alone.
    fn over(&self, rows: &[usize]) -> Result<Index, Error> {
        let place = |at: &usize| rows.binary_search(at).unwrap_or(0) as i64;
        Ok(match self {
            Want::One(at) => Index::Int(place(at)),
            Want::Run(_, _, step) => Index::slice(None, None, Some(step.signum())),
            Want::List(at, shape) => {
                let places: Vec<i64> = at.iter().map(place).collect();
                Index::Take(Array::from_slice(&places, shape.shape())?)
            }
        })
    }

    /// The same wish relative to the box that begins at `low`.
    fn from(&self, low: usize) -> Result<Index, Error> {
        Ok(match self {
            Want::One(at) => Index::Int((at - low) as i64),
            Want::Run(_, _, step) => Index::slice(None, None, Some(*step)),
            Want::List(at, shape) => {
                let places: Vec<i64> = at.iter().map(|at| (at - low) as i64).collect();
                Index::Take(Array::from_slice(&places, shape.shape())?)
            }
        })
    }
}

/// `stored[index]`.
pub(crate) fn read(feed: &Feed<'_>, key: &Key, index: &[Index]) -> Result<Array, Error> {
    let entry = feed.source().get(key)?;
    // The rules of the language, checked without elements.
    Array::meta(&entry.shape, entry.dtype)?.get(index)?;
    let (wants, form) = wants(&entry.shape, index)?;
    let bounds: Vec<(usize, usize)> = wants.iter().map(Want::bounds).collect();
    let (mut low, mut high): (Dims, Dims) = bounds.iter().copied().unzip();
    let rows = wants.first().map(Want::rows).unwrap_or_default();
    let sparse = !rows.is_empty() && rows.len() * 2 <= high[0] - low[0];
    let mut relative = Vec::with_capacity(wants.len());
    for (dim, want) in wants.iter().enumerate() {
        relative.push(if dim == 0 && sparse { want.over(&rows)? } else { want.from(low[dim])? });
    }
    let got = if sparse {
        let mut extents: Dims = low.iter().zip(&high).map(|(l, h)| h - l).collect();
        extents[0] = rows.len();
        let array = Array::empty(&extents, entry.dtype)?;
        let mut at = 0;
        for run in rows.chunk_by(|a, b| a + 1 == *b) {
            (low[0], high[0]) = (run[0], run[0] + run.len());
            read_box(feed, key, &Region::new(&low, &high)?, &array.narrow(0, at, run.len())?)?;
            at += run.len();
        }
        array
    } else {
        let extents: Dims = low.iter().zip(&high).map(|(l, h)| h - l).collect();
        let array = Array::empty(&extents, entry.dtype)?;
        read_box(feed, key, &Region::new(&low, &high)?, &array)?;
        array
    };
    Ok(got.get(&form.into_iter().map(|part| part.entry(&mut relative)).collect::<Vec<_>>())?)
}

/// Entries of the expression that are not wishes, and places of those that are.
enum Form {
    NewAxis,
    Dim(usize),
}

impl Form {
    fn entry(self, relative: &mut [Index]) -> Index {
        match self {
            Form::NewAxis => Index::NewAxis,
            Form::Dim(dim) => std::mem::replace(&mut relative[dim], Index::NewAxis),
        }
    }
}

/// One wish for each dim, and the expression as it stands.
fn wants(shape: &[usize], index: &[Index]) -> Result<(Vec<Want>, Vec<Form>), Error> {
    let used =
        index.iter().filter(|i| matches!(i, Index::Int(_) | Index::Slice { .. } | Index::Take(_))).count();
    let mut spare = Some(shape.len().saturating_sub(used));
    let (mut wants, mut form) = (Vec::with_capacity(shape.len()), Vec::new());
    let all = |wants: &mut Vec<Want>, form: &mut Vec<Form>, count: usize| {
        for _ in 0..count {
            form.push(Form::Dim(wants.len()));
            wants.push(Want::Run(0, shape[wants.len()], 1));
        }
    };
    for entry in index {
        match entry {
            Index::NewAxis => form.push(Form::NewAxis),
            Index::Ellipsis => all(&mut wants, &mut form, spare.take().unwrap_or(0)),
            other => {
                let dim = wants.len();
                form.push(Form::Dim(dim));
                wants.push(want(shape[dim], dim, other)?);
            }
        }
    }
    let rest = shape.len() - wants.len();
    all(&mut wants, &mut form, rest);
    Ok((wants, form))
}

fn want(size: usize, dim: usize, entry: &Index) -> Result<Want, Error> {
    let wrap = |index: i64| {
        let at = if index < 0 { index + size as i64 } else { index };
        usize::try_from(at).ok().filter(|at| *at < size).ok_or(planaria::array::Error::IndexOutOfRange {
            index,
            position: dim,
            dim,
            size,
        })
    };
    Ok(match entry {
        Index::Int(at) => Want::One(wrap(*at)?),
        Index::Take(positions) => {
            let flat = positions.cast(DType::I64)?.to_vec::<i64>()?;
            Want::List(flat.into_iter().map(wrap).collect::<Result<_, _>>()?, positions.clone())
        }
        Index::Slice { start, stop, step } => {
            // The core's own rule, on positions instead of elements.
            let line = Array::arange(0i64, size as i64, 1i64, DType::I64)?;
            let picked = line.get(&[Index::slice(*start, *stop, *step)])?;
            let first = match picked.numel() {
                0 => 0,
                _ => picked.select(0, 0)?.item()?.as_int() as usize,
            };
            Want::Run(first, picked.numel(), step.unwrap_or(1))
        }
        _ => Want::Run(0, size, 1),
    })
}
