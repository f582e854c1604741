//! Reading tensors of a source one at a time, and comparing copies.

use super::source::{Entry, Key, Piece, Source};
use super::verified::{Verified, named};
use crate::error::{Error, Result};
use crate::stream::Feed;
use planaria_layout::{Extent, Region, Tile};
use planaria_store::Reader;

/// Copies are compared in pieces of this size.
const PIECE: u64 = 1 << 20;

impl Source {
    /// Opens a file to read tensors from. Whatever comes out of it is what was written, where there are checksums: the archives
    /// in it are compared the first time, the blocks of our own files when a byte of them is wanted.
    pub(crate) fn reader(&self, number: usize) -> Result<Box<dyn Reader>> {
        let name = &self.files[number];
        self.check_archives_in(name)?;
        let file = self.store.reader(name)?;
        Ok(match self.sums.get(name) {
            Some(sums) => Box::new(Verified::new(file, sums.clone())),
            None => file,
        })
    }

    /// The bytes of a whole tensor in row-major order.
    pub fn read(&self, key: &Key) -> Result<Vec<u8>> {
        let entry = self.get(key)?;
        self.read_region(key, &Region::whole(&entry.shape))
    }

    /// The bytes of one box of a tensor in row-major order. Meant for looking at tensors; loading a model
    /// plans all its reads together.
    pub fn read_region(&self, key: &Key, want: &Region) -> Result<Vec<u8>> {
        let wrong = |problem| Error::Tiles { tensor: key.to_string(), problem };
        // A box that sticks out is refused before there is memory for it.
        let pieces = self.get(key)?.pieces(want, 0).map_err(wrong)?;
        Feed::new(self).packed(key, &pieces, want)
    }

    /// Compares all copies of every box. Copies differ when ranks held different values under one name.
    pub fn check_copies(&self) -> Result<()> {
        let feed = Feed::new(self);
        for (key, entry) in &self.tensors {
            for (region, extents) in entry.tiles.boxes() {
                for pair in extents.windows(2) {
                    let same = same(&feed, (key, entry), region, [&pair[0], &pair[1]]);
                    if !same.map_err(|error| named(error, key, &self.sums))? {
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
}

/// Whether two copies of a box have the same bytes.
fn same(
    feed: &Feed<'_>,
    (key, entry): (&Key, &Entry),
    region: &Region,
    [first, second]: [&Extent; 2],
) -> Result<bool> {
    if entry.strides.contains_key(first) || entry.strides.contains_key(second) {
        // Whole, in the order of elements: in parts, copies that lie differently would be read again and again.
        let read = |extent: &Extent| {
            let tile = Tile { region: region.clone(), holder: *extent };
            let piece = Piece { region: region.clone(), tile, strides: entry.strides.get(extent) };
            feed.packed(key, &[piece], region)
        };
        return Ok(read(first)? == read(second)?);
    }
    let files = (feed.file(first.file)?, feed.file(second.file)?);
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

#[cfg(test)]
mod tests {
    use super::super::source::{Builder, Format, Stored};
    use super::*;
    use planaria_layout::{DType, Dims, Shape};
    use planaria_store::{Faulty, Object, Store, StoreExt};
    use std::sync::Arc;

    const SHAPE: [usize; 2] = [300, 200];
    /// Elements from one column to the next.
    const COLUMN: usize = 310;

    fn stored(offset: u64, strides: Option<[usize; 2]>) -> Stored {
        let [down, across] = strides.unwrap_or([SHAPE[1], 1]);
        let len = ((SHAPE[0] - 1) * down + (SHAPE[1] - 1) * across + 1) as u64 * 4;
        let (shape, strides) =
            (Shape::new(&SHAPE).unwrap(), strides.map(|strides| Dims::from_slice(&strides)));
        Stored { dtype: DType::F32, shape, offset, len, strides, foreign: None }
    }

    /// A store that counts, with a file that has a tensor twice, by rows and by columns with gaps; and its bytes by rows.
    fn rows_and_columns(change: Option<usize>) -> (Faulty<Object>, Arc<dyn Store>, Vec<u8>) {
        let numbers: Vec<[u8; 4]> = (0..SHAPE[0] * SHAPE[1]).map(|i| (i as f32).to_le_bytes()).collect();
        let mut columns = vec![[0xee; 4]; COLUMN * SHAPE[1]];
        for (place, number) in numbers.iter().enumerate() {
            columns[place % SHAPE[1] * COLUMN + place / SHAPE[1]] = *number;
        }
        let mut file = [numbers.as_flattened(), columns.as_flattened()].concat();
        change.into_iter().for_each(|at| file[at] ^= 1);
        let memory = Object::memory();
        memory.write("f", &file).unwrap();
        let counting = Faulty::counting(memory);
        (counting.clone(), Arc::new(counting), numbers.concat())
    }

    #[test]
    fn a_strided_tensor_is_read_as_a_whole_and_not_by_elements() {
        let (counting, store, rows) = rows_and_columns(None);
        let mut builder = Builder::new(&store, "", Format::TorchSave);
        let behind = rows.len() as u64;
        builder.whole(Key::model("turned"), "f", &stored(behind, Some([1, COLUMN]))).unwrap();
        builder.whole(Key::model("repeated"), "f", &stored(behind, Some([0, COLUMN]))).unwrap();
        let source = builder.finish().unwrap();
        assert!(source.read(&Key::model("turned")).unwrap() == rows);
        let part = Region::new(&[7, 190], &[9, 200]).unwrap();
        let row = |row: usize, from: usize| &rows[(row * SHAPE[1] + from) * 4..(row + 1) * SHAPE[1] * 4];
        let read = source.read_region(&Key::model("turned"), &part).unwrap();
        assert_eq!(read, [row(7, 190), row(8, 190)].concat());
        let repeated = source.read(&Key::model("repeated")).unwrap();
        assert!(repeated == row(0, 0).repeat(SHAPE[0]), "a row that every row is");
        assert!(counting.operations() < 10, "{} operations", counting.operations());
        let outside = Region::new(&[0, 0], &[1 << 20, 1 << 20]).unwrap();
        assert!(matches!(source.read_region(&Key::model("turned"), &outside), Err(Error::Tiles { .. })));
    }

    #[test]
    fn copies_that_lie_differently_are_compared_in_few_reads() {
        let last = (SHAPE[0] * SHAPE[1] + (SHAPE[1] - 1) * COLUMN + SHAPE[0] - 1) * 4;
        for (change, expected) in [(None, true), (Some(last), false), (Some(last + 4), true)] {
            let (counting, store, rows) = rows_and_columns(change);
            let mut builder = Builder::new(&store, "", Format::TorchSave);
            let shape = Shape::new(&SHAPE).unwrap();
            for stored in [stored(0, None), stored(rows.len() as u64, Some([1, COLUMN]))] {
                builder.tile(Key::model("w"), "f", &shape, Region::whole(&shape), &stored).unwrap();
            }
            let compared = builder.finish().unwrap().check_copies();
            assert_eq!(compared.is_ok(), expected, "byte {change:?} changed: {compared:?}");
            assert!(expected || matches!(compared, Err(Error::Conflict { .. })), "{compared:?}");
            assert!(counting.operations() < 10, "{} operations", counting.operations());
        }
    }
}
