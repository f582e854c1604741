//! Reading tensors of a source one at a time, and comparing copies.

use super::source::{Entry, Key, Piece, Source};
use crate::error::{Error, Result};
use planaria_layout::{Extent, Region, Runs, Tile};
use planaria_store::Reader;

/// Copies are compared in pieces of this size.
const PIECE: u64 = 1 << 20;

impl Source {
    /// The bytes of a whole tensor in row-major order.
    pub fn read(&self, key: &Key) -> Result<Vec<u8>> {
        let entry = self.get(key)?;
        self.read_region(key, &Region::whole(&entry.shape))
    }

    /// The bytes of one box of a tensor in row-major order. Meant for looking at tensors; loading a model
    /// plans all its reads together.
    pub fn read_region(&self, key: &Key, want: &Region) -> Result<Vec<u8>> {
        let entry = self.get(key)?;
        let wrong = |problem| Error::Tiles { tensor: key.to_string(), problem };
        let pieces = entry.pieces(want, 0).map_err(wrong)?;
        let size = entry.dtype.size();
        let mut out = vec![0; want.numel() * size];
        for piece in pieces {
            let file = self.reader(piece.tile.holder.file)?;
            let mut to = Target::new(piece.region.runs(want), size, &mut out);
            for (offset, len) in piece.byte_runs(size) {
                to.put(&file.read(offset, len as usize)?);
            }
        }
        Ok(out)
    }

    /// Compares all copies of every box. Copies differ when ranks held different values under one name.
    pub fn check_copies(&self) -> Result<()> {
        for (key, entry) in &self.tensors {
            for (region, extents) in entry.tiles.boxes() {
                for pair in extents.windows(2) {
                    if !self.same(entry, region, &pair[0], &pair[1])? {
                        return Err(Error::Conflict {
                            tensor: key.to_string(),
                            region: Box::new(region.clone()),
                            first: self.files[pair[0].file].clone(),
                            second: self.files[pair[1].file].clone(),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    fn same(&self, entry: &Entry, region: &Region, first: &Extent, second: &Extent) -> Result<bool> {
        let files = (self.file(first)?, self.file(second)?);
        if entry.strides.contains_key(first) || entry.strides.contains_key(second) {
            let read = |file: &dyn Reader, extent: &Extent| -> Result<Vec<u8>> {
                let tile = Tile { region: region.clone(), holder: *extent };
                let piece = Piece { region: region.clone(), tile, strides: entry.strides.get(extent) };
                let mut bytes = Vec::new();
                for (offset, len) in piece.byte_runs(entry.dtype.size()) {
                    bytes.extend(file.read(offset, len as usize)?);
                }
                Ok(bytes)
            };
            return Ok(read(&*files.0, first)? == read(&*files.1, second)?);
        }
        let mut done = 0;
        while done < first.len {
            let len = PIECE.min(first.len - done) as usize;
            if files.0.read(first.offset + done, len)? != files.1.read(second.offset + done, len)? {
                return Ok(false);
            }
            done += len as u64;
        }
        Ok(true)
    }

    fn file(&self, extent: &Extent) -> Result<Box<dyn Reader>> {
        Ok(self.store.reader(&self.files[extent.file])?)
    }
}

/// Where the elements of a box stand in a larger one, filled from its first to its last element.
pub(crate) struct Target<'a> {
    runs: Runs,
    /// Next byte and bytes left of the current run.
    at: usize,
    left: usize,
    size: usize,
    out: &'a mut [u8],
}

impl<'a> Target<'a> {
    /// The places that `runs` lists, in elements of `size` bytes.
    pub(crate) fn new(runs: Runs, size: usize, out: &'a mut [u8]) -> Target<'a> {
        Target { runs, at: 0, left: 0, size, out }
    }

    /// The next elements.
    pub(crate) fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left == 0 {
                let Some((start, count)) = self.runs.next() else { return };
                (self.at, self.left) = (start * self.size, count * self.size);
            }
            let (now, later) = bytes.split_at(bytes.len().min(self.left));
            self.out[self.at..self.at + now.len()].copy_from_slice(now);
            self.at += now.len();
            self.left -= now.len();
            bytes = later;
        }
    }
}
