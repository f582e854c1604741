//! Checking a whole folder: every byte against its checksum, and all that is known about the files' structure.

use crate::error::{Error, Result};
use crate::folder;
use crate::formats::{self, OpenOptions};
use crate::manifest::{Checkpoint, SmallFile};
use planaria_layout::Extent;
use planaria_store::container::{Header, Limits};
use planaria_store::{Reader, Store, StoreExt, Transfer, TransferOptions, checksum, join};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// What a check of a folder found.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Verified {
    /// Files looked at.
    pub files: usize,
    /// Bytes read.
    pub bytes: u64,
    /// Tensors in them.
    pub tensors: usize,
    /// Whether bytes were compared with checksums; formats without them have only their structure checked.
    pub summed: bool,
    /// Everything that is wrong.
    pub problems: Vec<Error>,
    /// What was left out and not checked, and what is wrong without harm to the tensors.
    pub warnings: Vec<String>,
}

impl Verified {
    /// True when nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Checks the checkpoint in `folder`. One of ours is compared with its checksums, block by block; of those of
/// others the structure is checked, copies of a box are compared, and the members of zip archives (torch) are compared with
/// the checksums that the archives carry. What is damaged stands in the answer; an
/// error means that nothing could be checked.
pub fn verify(store: &Arc<dyn Store>, folder: &str) -> Result<Verified> {
    verify_with(store, folder, &|_| ())
}

/// Like [`verify`]; `moved` hears of every byte that was compared with its checksum.
pub fn verify_with(store: &Arc<dyn Store>, folder: &str, moved: &(dyn Fn(u64) + Sync)) -> Result<Verified> {
    if folder::is_committed(&**store, folder)? {
        let checkpoint = match folder::open(&**store, folder) {
            Ok(checkpoint) => checkpoint,
            // A folder whose manifest is damaged is a damaged folder.
            Err(error @ (Error::Malformed { .. } | Error::Tiles { .. })) => {
                return Ok(Verified { problems: vec![error], summed: true, ..Verified::default() });
            }
            Err(error) => return Err(error),
        };
        return Ok(Check::new(&**store, &checkpoint, moved).run());
    }
    let source = match formats::open(store, folder, &OpenOptions::default()) {
        // What describes the tensors is damaged itself.
        Err(error @ Error::Member { .. }) => {
            return Ok(Verified { problems: vec![error], summed: true, ..Verified::default() });
        }
        opened => opened?,
    };
    let (files, tensors) = (source.files.len(), source.tensors.len());
    let left_out = source.skipped.iter().map(|skipped| format!("left out {}: {}", skipped.what, skipped.why));
    let warnings = left_out.chain(source.doubts.iter().cloned()).collect();
    let mut found = Verified { files, tensors, warnings, ..Verified::default() };
    if let Some(compared) = source.check_archives(moved)? {
        (found.summed, found.bytes, found.problems) = (true, compared.bytes, compared.problems);
    }
    // A copy in a damaged archive has been named already.
    let copies = source.check_copies().err().filter(|error| !found.problems.contains(error));
    found.problems.extend(copies);
    Ok(found)
}

/// The files in one place, compared with what a manifest says of them.
pub(crate) struct Check<'a> {
    store: &'a dyn Store,
    checkpoint: &'a Checkpoint,
    moved: &'a (dyn Fn(u64) + Sync),
    found: Verified,
}

impl<'a> Check<'a> {
    pub(crate) fn new(
        store: &'a dyn Store,
        checkpoint: &'a Checkpoint,
        moved: &'a (dyn Fn(u64) + Sync),
    ) -> Check<'a> {
        Check { store, checkpoint, moved, found: Verified::default() }
    }

    /// Whether a file is here and as it was written.
    pub(crate) fn is_sound(&mut self, name: &str) -> bool {
        let before = self.found.problems.len();
        let listed = self.checkpoint.files.iter().position(|file| file.name == name);
        let small = self.checkpoint.others.iter().find(|file| file.name == name);
        let read = match (listed, small) {
            (Some(number), _) => self.file(&self.transfer(), number),
            (None, Some(file)) => self.small(file),
            (None, None) => return false,
        };
        read.is_ok() && self.found.problems.len() == before
    }

    fn transfer(&self) -> Transfer {
        let longest = self.checkpoint.files.iter().map(|file| file.size).max().unwrap_or(0);
        let chunk = longest.min(crate::schedule::UNIT) as usize;
        Transfer::new(TransferOptions { chunk, ..Default::default() })
    }

    fn run(mut self) -> Verified {
        self.found.summed = true;
        self.found.tensors = self.checkpoint.tensors.len();
        let transfer = self.transfer();
        for number in 0..self.checkpoint.files.len() {
            self.found.files += 1;
            if let Err(error) = self.file(&transfer, number) {
                self.found.problems.push(error);
            }
        }
        for file in &self.checkpoint.others {
            self.found.files += 1;
            self.found.bytes += file.size;
            if let Err(error) = self.small(file) {
                self.found.problems.push(error);
            }
        }
        self.found
    }

    fn small(&self, file: &SmallFile) -> Result<()> {
        let name = join(&self.checkpoint.folder, &file.name);
        let text = self.store.read(&name, file.size)?;
        Ok(checksum::check(&name, 0, &text, file.sum)?)
    }

    /// All blocks of a file, then whether its own header says what the manifest says.
    fn file(&mut self, transfer: &Transfer, number: usize) -> Result<()> {
        let file = &self.checkpoint.files[number];
        let name = join(&self.checkpoint.folder, &file.name);
        let reader = self.store.reader(&name)?;
        if reader.size() != file.size {
            let what = format!("'{name}' has {} bytes, {} were written", reader.size(), file.size);
            return Err(Error::Torn { what });
        }
        let unit = crate::schedule::UNIT;
        let ranges = (0..file.size.div_ceil(unit)).map(|n| n * unit..file.size.min((n + 1) * unit));
        let jobs: Vec<(&dyn Reader, Range<u64>)> = ranges.map(|range| (&*reader, range)).collect();
        let damaged: Mutex<BTreeMap<u64, u32>> = Mutex::default();
        let read = transfer.read_each::<Error>(&jobs, |job, bytes| {
            (self.moved)(bytes.len() as u64);
            let first = jobs[job].1.start / self.checkpoint.block;
            for (block, bytes) in (first..).zip(bytes.chunks(self.checkpoint.block as usize)) {
                let sum = checksum::crc32c(bytes);
                if sum != file.sums[block as usize] {
                    damaged.lock().unwrap_or_else(PoisonError::into_inner).insert(block, sum);
                }
            }
            Ok(())
        })?;
        self.found.bytes += read.bytes;
        let damaged = damaged.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (block, sum) in &damaged {
            let problem = self.damage(number, *block, *sum);
            self.found.problems.push(problem);
        }
        if damaged.is_empty() { self.header(&*reader, number) } else { Ok(()) }
    }

    fn damage(&self, number: usize, block: u64, found: u32) -> Error {
        let file = &self.checkpoint.files[number];
        let start = block * self.checkpoint.block;
        let end = file.size.min(start + self.checkpoint.block);
        let touches = |extent: &Extent| {
            extent.file == number && extent.offset < end && extent.offset + extent.len > start
        };
        let names: Vec<String> = self
            .checkpoint
            .tensors
            .iter()
            .filter(|(_, stored)| stored.tiles.iter().any(|tile| touches(&tile.holder)))
            .map(|(key, _)| key.to_string())
            .collect();
        let expected = file.sums[block as usize];
        let tensor = if names.is_empty() { "(header)".to_string() } else { names.join("', '") };
        let file = join(&self.checkpoint.folder, &file.name);
        Error::Damaged { tensor, file, block, start, end, found, expected }
    }

    /// The file must say about its tensors what the manifest says.
    fn header(&self, reader: &dyn Reader, number: usize) -> Result<()> {
        let header = Header::read(reader, &Limits::default())?;
        let mut places: Vec<(u64, u64)> = header.tensors.iter().map(|t| (t.offset, t.len)).collect();
        let tiles = self.checkpoint.tensors.values().flat_map(|stored| &stored.tiles);
        let mut tiles: Vec<(u64, u64)> = tiles
            .filter(|tile| tile.holder.file == number)
            .map(|tile| (tile.holder.offset, tile.holder.len))
            .collect();
        places.sort_unstable();
        tiles.sort_unstable();
        if places == tiles {
            return Ok(());
        }
        let file = reader.name().to_string();
        Err(Error::Malformed {
            file,
            what: "its header and the manifest place tensors differently".to_string(),
        })
    }
}
