//! Whole tensors of local files as the files have them, without a copy. Blocks with a checksum are compared first.

use super::ours::FileSums;
use super::source::{Key, Source};
use super::verified::named;
use crate::error::Result;
use planaria_layout::{DType, Shape};
use planaria_store::{Identity, Mapped, Reader, checksum, on_threads};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;

/// Blocks that are worth a thread of their own.
const SHARE: usize = 4;

/// The files of a source that tensors were mapped from, by number.
pub(super) type MappedFiles = Arc<Mutex<BTreeMap<usize, Arc<MappedFile>>>>;

/// A file that stays open for the next tensor.
#[derive(Debug)]
pub(super) struct MappedFile {
    reader: Box<dyn Reader>,
    /// The sums of its blocks, and which of them were found to be so.
    blocks: Option<(Arc<FileSums>, Compared)>,
}

type Compared = Arc<[AtomicBool]>;

impl MappedFile {
    /// Whether nothing has to be compared before these bytes count.
    fn is_compared(&self, range: &Range<u64>) -> bool {
        self.blocks.as_ref().is_none_or(|(sums, compared)| {
            let (first, end) = (range.start / sums.block, range.end.div_ceil(sums.block));
            let blocks = compared.iter().take(end as usize).skip(first as usize);
            blocks.into_iter().all(|block| block.load(Relaxed))
        })
    }

    /// The blocks that a range has bytes of, for they are compared whole; the range itself where they were.
    fn around(&self, range: &Range<u64>) -> Range<u64> {
        let block = self.blocks.as_ref().map_or(1, |(sums, _)| sums.block);
        let end = range.end.next_multiple_of(block).min(self.reader.size().max(range.end));
        if self.is_compared(range) { range.clone() } else { range.start / block * block..end }
    }
}

/// What becomes of blocks that nobody has compared yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Uncompared {
    Compare,
    Leave,
}

/// By what a file is: the sums it must have, and which of its blocks were found to be so.
type Known = HashMap<Identity, (Arc<FileSums>, Compared)>;

/// What this process has compared: a file that is opened again as it was is not compared again.
static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// Files that are remembered.
const MOST: usize = 4096;

/// Which blocks of a file with these sums were compared before.
fn compared(reader: &dyn Reader, sums: &Arc<FileSums>) -> Compared {
    let none = || -> Compared { sums.sums.iter().map(|_| AtomicBool::new(false)).collect() };
    let Some(identity) = reader.identity() else { return none() };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, compared)) = known.get(&identity).filter(|(of, _)| of == sums) {
        return compared.clone();
    }
    if known.len() >= MOST {
        known.clear();
    }
    known.entry(identity).insert_entry((sums.clone(), none())).get().1.clone()
}

/// A whole tensor in memory that a file backs. Writes to it stay in this process.
#[derive(Debug)]
pub struct MappedTensor {
    /// Element type.
    pub dtype: DType,
    /// Extents; elements are in row-major order.
    pub shape: Shape,
    /// The bytes of the file around it.
    pub memory: Mapped,
    /// Which of them are the tensor's, the first aligned for its elements.
    pub range: Range<usize>,
}

impl Source {
    /// A tensor as its file has it; none where it must be read: it is empty, cut, strided, or not in the page cache of
    /// this machine.
    pub fn map(&self, key: &Key) -> Result<Option<MappedTensor>> {
        self.map_or_leave(key, Uncompared::Compare)
    }

    /// The same, and none also where blocks must be compared first: this takes no time that anyone would notice.
    pub fn map_compared(&self, key: &Key) -> Result<Option<MappedTensor>> {
        // Archives are compared as a whole when their first tensor is wanted.
        if !self.archives.is_empty() {
            return Ok(None);
        }
        self.map_or_leave(key, Uncompared::Leave)
    }

    fn map_or_leave(&self, key: &Key, uncompared: Uncompared) -> Result<Option<MappedTensor>> {
        let entry = self.get(key)?;
        let Some(extent) = entry.in_one_piece() else { return Ok(None) };
        if !extent.offset.is_multiple_of(entry.dtype.size() as u64) {
            return Ok(None);
        }
        let file = self.mapped_file(extent.file)?;
        let own = extent.offset..extent.offset.saturating_add(extent.len);
        if uncompared == Uncompared::Leave && !file.is_compared(&own) {
            return Ok(None);
        }
        let around = file.around(&own);
        let Some(memory) = file.reader.map(around.clone())? else { return Ok(None) };
        if !file.is_compared(&own) {
            let compared = self.compare_blocks(extent.file, &file, &around, memory.bytes());
            compared.map_err(|error| named(error.into(), key, &self.sums))?;
        }
        let first = (extent.offset - around.start) as usize;
        let (dtype, shape) = (entry.dtype, entry.shape.clone());
        Ok(Some(MappedTensor { dtype, shape, memory, range: first..first + extent.len as usize }))
    }

    /// Closes the files that were kept open for the next tensor; what was mapped stays with whoever has it.
    pub fn close_mapped(&self) {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn mapped_file(&self, number: usize) -> Result<Arc<MappedFile>> {
        let mut files = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(&number) {
            return Ok(file.clone());
        }
        let name = &self.files[number];
        self.check_archives_in(name)?;
        // Blocks are compared in memory, by `compare_blocks`.
        let reader = self.store.reader(name)?;
        let sums = self.sums.get(name).cloned();
        let blocks = sums.map(|sums| (sums.clone(), compared(&*reader, &sums)));
        let file = Arc::new(MappedFile { reader, blocks });
        files.insert(number, file.clone());
        Ok(file)
    }

    /// Compares the blocks of a range that nobody has compared yet, by several threads where there are many.
    fn compare_blocks(
        &self,
        number: usize,
        file: &MappedFile,
        range: &Range<u64>,
        bytes: &[u8],
    ) -> planaria_store::Result<()> {
        let name = &self.files[number];
        let Some((sums, sound)) = &file.blocks else { return Ok(()) };
        let first = (range.start / sums.block) as usize;
        // What has grown behind the last sum is nobody's.
        let known = sums.sums.iter().zip(sound.iter()).enumerate().skip(first);
        let blocks: Vec<_> = known
            .zip(bytes.chunks(sums.block as usize))
            .filter(|((_, (_, sound)), _)| !sound.load(Relaxed))
            .collect();
        if blocks.is_empty() {
            return Ok(());
        }
        let next = AtomicUsize::new(0);
        let work = || -> planaria_store::Result<()> {
            while let Some(((block, (expected, sound)), bytes)) = blocks.get(next.fetch_add(1, Relaxed)) {
                checksum::check(name, *block as u64 * sums.block, bytes, **expected)?;
                sound.store(true, Relaxed);
            }
            Ok(())
        };
        let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(blocks.len() / SHARE);
        on_threads(threads, work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::formats::{OpenOptions, open_url};
    use crate::{Item, SaveOptions, TensorKind, TrainState, save};
    use planaria_array::Array;
    use planaria_comm::alone;
    use planaria_store::Local;
    use std::os::unix::fs::FileExt;

    /// Tensors that share blocks with their neighbours.
    fn saved(place: &std::path::Path) -> Source {
        let array = |name: &str, n: usize, dtype| {
            let values = Array::arange(0i64, n as i64, 1i64, DType::I64).unwrap().cast(dtype).unwrap();
            Item::whole(TensorKind::Parameter, name, &values)
        };
        let items = vec![
            array("a", 700_001, DType::F32),
            array("b", 300_000, DType::I16),
            array("c", 100, DType::F64),
            array("d", 900_000, DType::F64),
        ];
        let options = SaveOptions::default();
        save(&*alone(), &Local::new(place), "c", &TrainState::new(items), &options).unwrap();
        // A save goes around the page cache; what is not there is not mapped.
        for file in std::fs::read_dir(place.join("c")).unwrap() {
            std::fs::read(file.unwrap().path()).unwrap();
        }
        open_url(place.join("c").to_str().unwrap(), &OpenOptions::default()).unwrap()
    }

    #[test]
    fn a_mapped_tensor_has_the_bytes_that_are_read_and_is_private() {
        let place = tempfile::tempdir().unwrap();
        let source = saved(place.path());
        for name in ["a", "b", "c", "d"] {
            let key = Key::model(name);
            // A kernel before 6.5 cannot say what is cached; then nothing is mapped.
            let Some(mut mapped) = source.map(&key).unwrap() else { return };
            let read = source.read(&key).unwrap();
            assert!(mapped.memory.bytes()[mapped.range.clone()] == read, "{name}");
            let first = mapped.memory.bytes()[mapped.range.clone()].as_ptr().addr();
            assert!(first.is_multiple_of(mapped.dtype.size()), "{name}");
            mapped.memory.bytes_mut().fill(7);
            assert!(source.read(&key).unwrap() == read, "{name}: the file is as it was");
        }
        assert!(source.map(&Key::model("e")).is_err());
    }

    #[test]
    fn what_is_written_to_a_tensor_is_seen_by_no_other_and_by_no_comparison() {
        let place = tempfile::tempdir().unwrap();
        let first = saved(place.path());
        let read = |name| first.read(&Key::model(name)).unwrap();
        let names = ["a", "b", "c", "d"];
        let again = open_url(place.path().join("c").to_str().unwrap(), &OpenOptions::default()).unwrap();
        for (source, expected) in [(&first, None), (&again, Some(true)), (&again, Some(false))] {
            let mut kept = Vec::new();
            for name in names {
                // A kernel before 6.5 cannot say what is cached; then nothing is mapped.
                let Some(mut mapped) = source.map(&Key::model(name)).unwrap() else { return };
                assert!(mapped.memory.bytes()[mapped.range.clone()] == read(name), "{name} {expected:?}");
                // Of what must be compared, neighbours share blocks.
                assert!(expected.is_none_or(|part| mapped.memory.is_part() == part), "{name} {expected:?}");
                mapped.memory.bytes_mut().fill(7);
                kept.push(mapped);
            }
            let untouched = |mapped: &MappedTensor| mapped.memory.bytes().iter().all(|byte| *byte == 7);
            assert!(kept.iter().all(untouched), "nobody else has these bytes");
        }
        again.close_mapped();
        assert!(again.map_compared(&Key::model("a")).unwrap().is_some_and(|mapped| mapped.memory.is_part()));
    }

    #[test]
    fn a_changed_bit_is_found_by_whoever_maps_its_block_and_a_cut_file_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let source = saved(place.path());
        let file = place.path().join("c").join(source.files[0].rsplit('/').next().unwrap());
        let entry = source.get(&Key::model("d")).unwrap();
        let (_, extents) = entry.tiles.boxes().next().unwrap();
        let out = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
        let at = extents[0].offset + extents[0].len / 2;
        let mut byte = [0];
        out.read_exact_at(&mut byte, at).unwrap();
        out.write_all_at(&[byte[0] ^ 32], at).unwrap();
        match source.map(&Key::model("d")) {
            // A kernel before 6.5 cannot say what is cached.
            Ok(None) => {}
            Err(Error::Damaged { tensor, start, end, .. }) => {
                assert!(tensor == "d" && (start..end).contains(&at), "{tensor} {start} {end}");
            }
            other => panic!("{other:?}"),
        }
        out.set_len(at).unwrap();
        let cut = source.map(&Key::model("d")).unwrap();
        assert!(cut.is_none() && source.read(&Key::model("d")).is_err(), "memory past the end of a file");
    }

    #[test]
    fn what_was_compared_is_not_compared_again_unless_the_file_has_changed() {
        let place = tempfile::tempdir().unwrap();
        let source = saved(place.path());
        let key = Key::model("d");
        assert!(source.map_compared(&key).unwrap().is_none(), "nobody has compared it");
        // A kernel before 6.5 cannot say what is cached; then nothing is mapped.
        if source.map(&key).unwrap().is_none() {
            return;
        }
        let open = || open_url(place.path().join("c").to_str().unwrap(), &OpenOptions::default()).unwrap();
        assert!(open().map_compared(&key).unwrap().is_some());
        let file = place.path().join("c").join(source.files[0].rsplit('/').next().unwrap());
        let out = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
        let at = source.get(&key).unwrap().tiles.boxes().next().unwrap().1[0].offset + 5;
        let mut byte = [0];
        out.read_exact_at(&mut byte, at).unwrap();
        let before = out.metadata().unwrap().modified().unwrap();
        out.write_all_at(&[byte[0] ^ 1], at).unwrap();
        // Clocks of file systems tick every few milliseconds only.
        out.set_modified(before + std::time::Duration::from_secs(1)).unwrap();
        let again = open();
        assert!(again.map_compared(&key).unwrap().is_none());
        assert!(matches!(again.map(&key), Err(Error::Damaged { .. })));
    }
}
