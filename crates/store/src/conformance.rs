//! What every store must do, as functions that a test of any store can call.
//!
//! Each function panics with a sentence when the store breaks the rule it checks. They expect an empty
//! store, or an empty folder of one, and leave nothing behind.

use crate::error::{Error, Result};
use crate::staging::Staging;
use crate::store::{EntryKind, PutMode, Sharing, Store, StoreExt};
use crate::transfer::{IntoJob, ReadJob, Transfer, TransferOptions, WriteJob};
use std::ops::Range;

/// Runs every check below `folder`.
pub fn all(store: &dyn Store, folder: &str) -> Result<()> {
    let at = |name: &str| crate::join(folder, name);
    puts_are_whole_and_create_once(store, &at("put"))?;
    files_are_written_at_offsets(store, &at("offsets"))?;
    unfinished_and_overfull_files_are_refused(store, &at("refused"))?;
    listings_show_what_is_there(store, &at("list"))?;
    names_stay_inside(store)?;
    transfers_move_every_byte_once(store, &at("transfer"))?;
    store.put(&at("top"), b"", PutMode::Create)?;
    assert_eq!(
        store.file_names(folder)?,
        ["top"],
        "the folder itself is listed, also where it is the whole store"
    );
    store.delete_all(folder)?;
    assert_eq!(store.walk(folder)?, [], "deleting everything leaves nothing");
    Ok(())
}

/// A put is seen whole; a second creation is refused and changes nothing; a replacement replaces.
pub fn puts_are_whole_and_create_once(store: &dyn Store, folder: &str) -> Result<()> {
    let name = crate::join(folder, "mark");
    assert!(!store.exists(&name)?, "the check starts without '{name}'");
    store.put(&name, b"first", PutMode::Create)?;
    let again = store.put(&name, b"second", PutMode::Create);
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "a second creation gave {again:?}");
    assert_eq!(store.read(&name, 100)?, b"first", "a refused creation changes nothing");
    store.put(&name, b"third", PutMode::Replace)?;
    assert_eq!(store.read(&name, 100)?, b"third");
    store.put(&name, b"", PutMode::Replace)?;
    assert_eq!(store.read(&name, 100)?, b"", "empty files exist");
    store.delete(&name)?;
    assert!(matches!(store.delete(&name), Err(Error::NotFound { .. })), "deleting twice is noticed");
    assert!(matches!(store.reader(&name), Err(Error::NotFound { .. })));
    let winners = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..4u8)
            .map(|i| (i, name.clone()))
            .map(|(i, name)| scope.spawn(move || store.put(&name, &[i], PutMode::Create).is_ok()))
            .collect();
        tries.into_iter().filter(|_| true).map(|t| t.join().unwrap_or(false)).filter(|won| *won).count()
    });
    assert_eq!(winners, 1, "of several creators exactly one succeeds");
    store.delete(&name)
}

/// Bytes written in any order, by several threads, are read back at any offset.
pub fn files_are_written_at_offsets(store: &dyn Store, folder: &str) -> Result<()> {
    let name = crate::join(folder, "data");
    // Long enough for several parts of an object, and not a whole number of blocks.
    let bytes = pattern((20 << 20) + 4321);
    let cuts = [0, 1, 4095, 4096, 4097, 100_000, 8 << 20, (8 << 20) + 4096, (17 << 20) + 5, bytes.len()];
    let parts: Vec<Range<usize>> = cuts.windows(2).map(|w| w[0]..w[1]).collect();
    let file = store.writer(&name, bytes.len() as u64, Sharing::Threads)?;
    std::thread::scope(|scope| -> Result<()> {
        let (file, bytes, parts) = (&*file, &bytes, &parts);
        let odd = scope.spawn(move || {
            parts
                .iter()
                .rev()
                .skip(1)
                .step_by(2)
                .try_for_each(|p| file.write_at(p.start as u64, &bytes[p.clone()]))
        });
        parts.iter().rev().step_by(2).try_for_each(|p| file.write_at(p.start as u64, &bytes[p.clone()]))?;
        odd.join().unwrap_or(Ok(()))
    })?;
    file.finish()?;
    let file = store.reader(&name)?;
    assert_eq!(file.size(), bytes.len() as u64);
    for range in [0..10, 4090..4100, (8 << 20) - 3..(8 << 20) + 3, bytes.len() - 5..bytes.len(), 7..7] {
        assert_eq!(file.read(range.start as u64, range.len())?, bytes[range]);
    }
    assert!(file.read(0, bytes.len())? == bytes, "the whole file reads back");
    let mut past = [9; 8];
    assert_eq!(file.read_at(bytes.len() as u64 - 3, &mut past)?, 3, "reading stops at the end");
    assert_eq!(file.read_at(u64::MAX - 1, &mut past)?, 0);
    assert!(matches!(file.read(bytes.len() as u64 - 3, 8), Err(Error::OutOfFile { .. })));
    store.write(&name, b"short")?;
    assert_eq!(store.read(&name, 100)?, b"short", "a new file replaces a longer one");
    assert!(matches!(store.read(&name, 4), Err(Error::TooLarge { .. })));
    store.delete(&name)
}

/// Bytes past the announced end, and files finished too early, are errors.
pub fn unfinished_and_overfull_files_are_refused(store: &dyn Store, folder: &str) -> Result<()> {
    let name = crate::join(folder, "data");
    let file = store.writer(&name, 10, Sharing::Threads)?;
    assert!(matches!(file.write_at(8, b"abc"), Err(Error::OutOfFile { .. })));
    assert!(matches!(file.write_at(u64::MAX, b"abc"), Err(Error::OutOfFile { .. })));
    file.write_at(0, b"abc")?;
    let early = file.finish();
    assert!(
        matches!(early, Err(Error::Incomplete { written: 3, len: 10, .. })),
        "finishing early gave {early:?}"
    );
    store.write(&name, b"")?;
    assert_eq!(store.reader(&name)?.size(), 0, "files without bytes can be written");
    store.delete(&name)
}

/// Listings are sorted, complete, one level deep; a missing folder is empty.
pub fn listings_show_what_is_there(store: &dyn Store, folder: &str) -> Result<()> {
    let at = |name: &str| crate::join(folder, name);
    assert_eq!(store.list(&at("nothing"))?, []);
    for name in ["b", "a/y", "a/x/deep", "a-file"] {
        store.put(&at(name), name.as_bytes(), PutMode::Create)?;
    }
    let shown: Vec<(String, EntryKind)> = store.list(folder)?.into_iter().map(|e| (e.name, e.kind)).collect();
    let expected =
        [(at("a"), EntryKind::Folder), (at("a-file"), EntryKind::File(6)), (at("b"), EntryKind::File(1))];
    assert_eq!(shown, expected);
    let files: Vec<String> = store.walk(folder)?.into_iter().map(|e| e.name).collect();
    assert_eq!(files, [at("a-file"), at("a/x/deep"), at("a/y"), at("b")]);
    assert_eq!(store.file_names(folder)?, ["a-file", "b"]);
    assert!(matches!(store.reader(&at("a")), Err(Error::NotFound { .. })), "a folder is not a file");
    store.delete_all(folder)?;
    assert_eq!(store.walk(folder)?, []);
    Ok(())
}

/// No name leads out of the store.
pub fn names_stay_inside(store: &dyn Store) -> Result<()> {
    for name in ["../x", "/x", "a/../../x", "", "a//b"] {
        assert!(matches!(store.reader(name), Err(Error::BadName { .. })), "reading '{name}'");
        assert!(
            matches!(store.put(name, b"", PutMode::Replace), Err(Error::BadName { .. })),
            "putting '{name}'"
        );
        let written = store.writer(name, 1, Sharing::Threads).map(|_| ());
        assert!(matches!(written, Err(Error::BadName { .. })), "writing '{name}'");
        assert!(matches!(store.delete(name), Err(Error::BadName { .. })), "deleting '{name}'");
    }
    Ok(())
}

/// [`Transfer`] writes and reads any ranges of several files, whatever their alignment.
pub fn transfers_move_every_byte_once(store: &dyn Store, folder: &str) -> Result<()> {
    let transfer = Transfer::new(TransferOptions { threads: 3, chunk: 64 << 10, gap: 512 });
    let bytes = pattern(300_001);
    let names = [crate::join(folder, "one"), crate::join(folder, "two")];
    let len = bytes.len() as u64;
    let files =
        [store.writer(&names[0], len, Sharing::Threads)?, store.writer(&names[1], len, Sharing::Threads)?];
    let cut = 123_457;
    let ranges = [(0, 0..cut), (1, 0..len), (0, cut..len)];
    let jobs: Vec<WriteJob<'_>> =
        ranges.iter().map(|(file, range)| WriteJob { file: &*files[*file], range: range.clone() }).collect();
    transfer.write(&jobs, |_, offset, into| {
        into.copy_from_slice(&bytes[offset as usize..offset as usize + into.len()]);
        Ok::<(), Error>(())
    })?;
    files.into_iter().try_for_each(|file| file.finish())?;

    let readers = [store.reader(&names[0])?, store.reader(&names[1])?];
    let wanted: [Vec<Range<u64>>; 2] =
        [vec![0..len, 5..5], vec![4096..8192, 10..20, 15..70_000, 200_000..200_001, len - 1..len]];
    let jobs: Vec<ReadJob<'_>> = (0..2).map(|i| ReadJob { file: &*readers[i], ranges: &wanted[i] }).collect();
    let seen = std::sync::Mutex::new(Vec::new());
    transfer.read(&jobs, |job, range, offset, part| {
        assert!(part == &bytes[offset as usize..offset as usize + part.len()], "job {job} range {range}");
        if let Ok(mut seen) = seen.lock() {
            seen.push((job, range, offset, part.len() as u64));
        }
        Ok::<(), Error>(())
    })?;
    read_into_any_memory(&transfer, &*readers[0], &bytes)?;
    let seen = seen.into_inner().unwrap_or_default();
    for (job, ranges) in wanted.iter().enumerate() {
        for (number, range) in ranges.iter().enumerate() {
            let parts = seen.iter().filter(|s| s.0 == job && s.1 == number);
            let total: u64 = parts.map(|s| s.3).sum();
            assert_eq!(total, range.end - range.start, "job {job} range {number} is delivered once");
        }
    }
    store.delete_all(folder)
}

/// Memory that agrees with the file about blocks, and memory that does not.
fn read_into_any_memory(transfer: &Transfer, file: &dyn crate::Reader, bytes: &[u8]) -> Result<()> {
    for (start, skip) in [(0, 0), (4096, 0), (5000, 5000 % 4096), (5000, 0), (7, 8), (12_288, 1)] {
        let mut memory = Staging::new(bytes.len() + 8192);
        let len = bytes.len() - start;
        let (whole, few) = memory.bytes_mut()[skip..].split_at_mut(len);
        let ranges = vec![(start as u64, whole), (9, &mut few[..100]), (3, &mut [])];
        transfer.read_into(vec![IntoJob { file, ranges }], |_, range, offset, part| {
            let expected = &bytes[offset as usize..offset as usize + part.len()];
            assert!(part == expected, "range {range} from {start} into memory at {skip}");
            Ok::<(), Error>(())
        })?;
        let memory = &memory.bytes()[skip..];
        assert!(memory[..len] == bytes[start..] && memory[len..len + 100] == bytes[9..109], "{start} {skip}");
    }
    let mut two = [0; 2];
    let past = vec![(bytes.len() as u64 - 1, &mut two[..])];
    let refused = transfer.read_into(vec![IntoJob { file, ranges: past }], |_, _, _, _| Ok::<(), Error>(()));
    assert!(matches!(refused, Err(Error::OutOfFile { .. })), "reading past the end gave {refused:?}");
    Ok(())
}

/// Bytes without a short period.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as u8).collect()
}
