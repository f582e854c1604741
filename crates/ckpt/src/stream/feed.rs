//! The tensors of a source, box by box.

use super::nest::Nest;
use crate::error::{Error, Result};
use crate::formats::{Key, Passing, Piece, Source, named};
use planaria_layout::{Dims, Region, flat_boxes};
use planaria_store::Reader;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Files kept open: enough for neighbours in any order, few enough for any process.
const OPEN: usize = 64;

/// Reads boxes of a source's tensors. It is shared by threads and keeps files open between reads.
#[derive(Debug)]
pub struct Feed<'s> {
    source: Held<'s>,
    /// Last used at the end.
    open: Mutex<Vec<(usize, Arc<dyn Reader>)>>,
    /// Archives that are compared while they are read; none: each file is compared before.
    passing: Option<Passing>,
}

/// A source that somebody else owns, or that is owned together.
#[derive(Debug)]
enum Held<'s> {
    Lent(&'s Source),
    Shared(Arc<Source>),
}

/// Byte strides of a row-major box with these extents.
pub fn row_strides(extents: &[usize], size: usize) -> Dims {
    let mut strides = Dims::from_elem(size, extents.len());
    for dim in (1..extents.len()).rev() {
        strides[dim - 1] = strides[dim] * extents[dim];
    }
    strides
}

impl<'s> Feed<'s> {
    /// Nothing is opened yet.
    pub fn new(source: &'s Source) -> Feed<'s> {
        Feed { source: Held::Lent(source), open: Mutex::default(), passing: None }
    }

    /// The same for who reads nearly everything: archives are compared while they are read, and what was read counts
    /// once [`Feed::finish`] says so.
    pub(crate) fn passing(source: &'s Source) -> Feed<'s> {
        Feed { passing: Some(Passing::default()), ..Feed::new(source) }
    }

    /// Whether what was read is what was written, as far as no read has said so.
    pub(crate) fn finish(&self) -> Result<()> {
        self.passing.as_ref().map_or(Ok(()), |passing| passing.finish(self.source()))
    }

    /// Keeps the source alive; nothing is opened yet.
    pub fn shared(source: Arc<Source>) -> Feed<'static> {
        Feed { source: Held::Shared(source), open: Mutex::default(), passing: None }
    }

    /// What it reads from.
    pub fn source(&self) -> &Source {
        match &self.source {
            Held::Lent(source) => source,
            Held::Shared(source) => source,
        }
    }

    /// The elements `range` of a tensor in row-major order.
    pub fn elements(
        &self,
        key: &Key,
        range: Range<usize>,
        out: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let entry = self.source().get(key)?;
        let size = entry.dtype.size();
        let mut at = 0;
        for part in flat_boxes(&entry.shape, range) {
            let len = part.numel() * size;
            self.region(key, &part, &mut out[at..at + len], scratch)?;
            at += len;
        }
        Ok(())
    }

    /// One box in row-major order.
    pub fn region(&self, key: &Key, want: &Region, out: &mut [u8], scratch: &mut Vec<u8>) -> Result<()> {
        let entry = self.source().get(key)?;
        let strides = row_strides(&want.extents(), entry.dtype.size());
        self.place(key, want, out, (0, &strides), scratch)
    }

    /// One box, its first element to byte `to.0` of `out`, neighbours along each dim `to.1` bytes apart.
    pub fn place(
        &self,
        key: &Key,
        want: &Region,
        out: &mut [u8],
        to: (usize, &[usize]),
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let entry = self.source().get(key)?;
        let wrong = |problem| Error::Tiles { tensor: key.to_string(), problem };
        for piece in entry.pieces(want, 0).map_err(wrong)? {
            self.piece(key, &piece, want, out, to, scratch)?;
        }
        Ok(())
    }

    /// Pieces of one box, in row-major order, as memory of their own.
    pub(crate) fn packed(&self, key: &Key, pieces: &[Piece<'_>], want: &Region) -> Result<Vec<u8>> {
        let size = self.source().get(key)?.dtype.size();
        let strides = row_strides(&want.extents(), size);
        let (mut out, mut scratch) = (vec![0; want.numel() * size], Vec::new());
        for piece in pieces {
            self.piece(key, piece, want, &mut out, (0, &strides), &mut scratch)?;
        }
        Ok(out)
    }

    /// One piece of a box; `to` is the place of the box.
    fn piece(
        &self,
        key: &Key,
        piece: &Piece<'_>,
        want: &Region,
        out: &mut [u8],
        to: (usize, &[usize]),
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let size = self.source().get(key)?.dtype.size();
        let home = &piece.tile.region;
        let strides = match piece.strides {
            Some(strides) => strides.iter().map(|stride| stride * size).collect(),
            None => row_strides(&home.extents(), size),
        };
        let (region, ndim) = (&piece.region, want.ndim());
        let from: u64 = (0..ndim).map(|d| ((region.lo()[d] - home.lo()[d]) * strides[d]) as u64).sum();
        let start: usize = (0..ndim).map(|d| (region.lo()[d] - want.lo()[d]) * to.1[d]).sum();
        let dims = (0..ndim).map(|d| (region.len(d), strides[d] as u64, to.1[d]));
        let nest = Nest::new(size, piece.tile.holder.offset + from, to.0 + start, dims);
        let number = piece.tile.holder.file;
        let read = nest.read(&*self.file(number)?, out, scratch);
        read.map_err(|error| named(error, key, &self.source().sums))?;
        self.passing.as_ref().map_or(Ok(()), |passing| passing.sound(self.source(), number))
    }

    /// Opens a file to read tensors from, or finds it open.
    pub(crate) fn file(&self, number: usize) -> Result<Arc<dyn Reader>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|(other, _)| *other == number) {
            let found = open.remove(at);
            let file = found.1.clone();
            open.push(found);
            return Ok(file);
        }
        let file: Arc<dyn Reader> = Arc::from(match &self.passing {
            Some(passing) => passing.reader(self.source(), number)?,
            None => self.source().reader(number)?,
        });
        if open.len() == OPEN {
            open.remove(0);
        }
        open.push((number, file.clone()));
        Ok(file)
    }
}
