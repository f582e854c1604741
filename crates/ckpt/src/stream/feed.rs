//! The tensors of a source, box by box.

use super::nest::Nest;
use super::verified::Verified;
use crate::error::{Error, Result};
use crate::formats::{Entry, FileSums, Key, Piece, Source};
use planaria_layout::{Dims, Region, flat_boxes};
use planaria_store::Reader;
use std::collections::BTreeMap;
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
        Feed { source: Held::Lent(source), open: Mutex::new(Vec::new()) }
    }

    /// Keeps the source alive; nothing is opened yet.
    pub fn shared(source: Arc<Source>) -> Feed<'static> {
        Feed { source: Held::Shared(source), open: Mutex::new(Vec::new()) }
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
            let file = self.file(piece.tile.holder.file)?;
            let read = self.nest(entry, &piece, want, to).read(&*file, out, scratch);
            read.map_err(|error| named(error, key, &self.source().sums))?;
        }
        Ok(())
    }

    fn nest(&self, entry: &Entry, piece: &Piece<'_>, want: &Region, to: (usize, &[usize])) -> Nest {
        let size = entry.dtype.size();
        let home = &piece.tile.region;
        let strides = match piece.strides {
            Some(strides) => strides.iter().map(|stride| stride * size).collect(),
            None => row_strides(&home.extents(), size),
        };
        let (region, ndim) = (&piece.region, want.ndim());
        let from: u64 = (0..ndim).map(|d| ((region.lo()[d] - home.lo()[d]) * strides[d]) as u64).sum();
        let start: usize = (0..ndim).map(|d| (region.lo()[d] - want.lo()[d]) * to.1[d]).sum();
        let dims = (0..ndim).map(|d| (region.len(d), strides[d] as u64, to.1[d]));
        Nest::new(size, piece.tile.holder.offset + from, to.0 + start, dims)
    }

    fn file(&self, number: usize) -> Result<Arc<dyn Reader>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|(other, _)| *other == number) {
            let found = open.remove(at);
            let file = found.1.clone();
            open.push(found);
            return Ok(file);
        }
        let name = &self.source().files[number];
        let file = self.source().reader(number)?;
        let file: Arc<dyn Reader> = match self.source().sums.get(name) {
            Some(sums) => Arc::new(Verified::new(file, sums.clone())),
            None => Arc::from(file),
        };
        if open.len() == OPEN {
            open.remove(0);
        }
        open.push((number, file.clone()));
        Ok(file)
    }
}

/// Damage with the name of the tensor that was being read.
pub(crate) fn named(error: Error, key: &Key, sums: &BTreeMap<String, Arc<FileSums>>) -> Error {
    match error {
        Error::Store(planaria_store::Error::Checksum { name, start, end, found, expected }) => {
            let block = start / sums.get(&name).map_or(1, |sums| sums.block);
            Error::Damaged { tensor: key.to_string(), file: name, block, start, end, found, expected }
        }
        other => other,
    }
}
