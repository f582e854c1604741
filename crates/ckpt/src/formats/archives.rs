//! The checksums that archives carry: every member of a zip archive has a CRC-32, and is compared with it before any of its
//! bytes counts.

use super::source::Source;
use super::zip::{Archive, Member};
use crate::error::{Error, Result};
use flate2::Crc;
use planaria_store::{Reader, Transfer, TransferOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes read at once.
pub(super) const CHUNK: u64 = 1 << 20;

/// Where tensors lie in one file: first byte, one past the last, and the name.
type Places = Vec<(u64, u64, String)>;

/// Members with a checksum, by file.
type Members = BTreeMap<String, Vec<Member>>;

/// Files whose archives have been compared already, whoever asked.
pub(super) type Checked = Arc<Mutex<BTreeSet<String>>>;

/// What the members of archives turned out to be.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    /// Bytes that were compared with a checksum.
    pub(crate) bytes: u64,
    /// What is damaged.
    pub(crate) problems: Vec<Error>,
}

impl Compared {
    /// The first damage, as an error.
    fn sound(self) -> Result<()> {
        self.problems.into_iter().next().map_or(Ok(()), Err)
    }
}

impl Source {
    /// Compares every member of every archive with its checksum; none where there are no checksums. `moved` hears of
    /// every byte.
    pub(crate) fn check_archives(&self, moved: &(dyn Fn(u64) + Sync)) -> Result<Option<Compared>> {
        let members = self.members(|_| true)?;
        if members.is_empty() {
            return Ok(None);
        }
        let compared = self.compare(&members, moved)?;
        let damaged = |name: &String| {
            let of_file = |problem: &Error| matches!(problem, Error::Member { file, .. } if file == name);
            compared.problems.iter().any(of_file)
        };
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.extend(members.into_keys().filter(|name| !damaged(name)));
        Ok(Some(compared))
    }

    /// Compares the archives in a file with their checksums, unless that was done before.
    pub(super) fn check_archives_in(&self, name: &str) -> Result<()> {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if !checked.contains(name) {
            self.compare(&self.members(|file| file == name)?, &|_| ())?.sound()?;
            checked.insert(name.to_string());
        }
        Ok(())
    }

    /// Compares the members that fall to one of several ranks, so that all of them are read once.
    pub(crate) fn check_share(&self, rank: usize, ranks: usize) -> Result<()> {
        let mut number = 0;
        let mut members = self.members(|_| true)?;
        for list in members.values_mut() {
            list.retain(|_| {
                number += 1;
                number % ranks == rank
            });
        }
        self.compare(&members, &|_| ())?.sound()
    }

    /// Members with a checksum of the archives in a file that were not compared before.
    pub(super) fn uncompared(&self, name: &str) -> Result<Vec<Member>> {
        if self.checked.lock().unwrap_or_else(PoisonError::into_inner).contains(name) {
            return Ok(Vec::new());
        }
        Ok(self.members(|file| file == name)?.remove(name).unwrap_or_default())
    }

    /// A member that is not what was written, with the tensors that lie in it.
    pub(super) fn damage(&self, file: &str, member: &Member, found: u32) -> Error {
        damage(file, member, found, self.places().get(file).map(Vec::as_slice).unwrap_or_default())
    }

    fn members(&self, wanted: impl Fn(&str) -> bool) -> Result<Members> {
        let mut members = Members::new();
        let mut open: Option<(&str, Box<dyn Reader>)> = None;
        for (file, start, end) in self.archives.iter().filter(|(file, ..)| wanted(file)) {
            if open.as_ref().is_none_or(|(name, _)| name != file) {
                open = Some((file, self.store.reader(file)?));
            }
            let Some((_, reader)) = &open else { continue };
            let summed =
                Archive::open(&**reader, *start..*end)?.members()?.into_iter().filter(Member::is_summed);
            members.entry(file.clone()).or_default().extend(summed);
        }
        members.retain(|_, list| !list.is_empty());
        Ok(members)
    }

    fn compare(&self, members: &Members, moved: &(dyn Fn(u64) + Sync)) -> Result<Compared> {
        let mut compared = Compared::default();
        let mut places = None;
        for (file, members) in members {
            let reader = self.store.reader(file)?;
            let ranges = members.iter().map(|member| member.range.clone()).collect::<Vec<_>>();
            for (member, found) in members.iter().zip(crcs(&*reader, &ranges, moved)?) {
                compared.bytes += member.range.end - member.range.start;
                if found != member.crc {
                    let places = places.get_or_insert_with(|| self.places());
                    let of_file = places.get(file).map(Vec::as_slice).unwrap_or_default();
                    compared.problems.push(damage(file, member, found, of_file));
                }
            }
        }
        Ok(compared)
    }

    /// The tensors of every file.
    fn places(&self) -> BTreeMap<String, Places> {
        let mut places: BTreeMap<String, Places> = BTreeMap::new();
        for (key, entry) in &self.tensors {
            for extent in entry.tiles.boxes().flat_map(|(_, extents)| extents) {
                let place = (extent.offset, extent.offset + extent.len, key.to_string());
                places.entry(self.files[extent.file].clone()).or_default().push(place);
            }
        }
        places
    }
}

/// Refuses a member that is not what was written.
pub(super) fn check_member(file: &dyn Reader, member: &Member) -> Result<()> {
    if !member.is_summed() {
        return Ok(());
    }
    // Descriptions are short and many: threads would cost more than they read.
    let mut sum = Crc::new();
    for start in member.range.clone().step_by(CHUNK as usize) {
        sum.update(&file.read(start, CHUNK.min(member.range.end - start) as usize)?);
    }
    let found = sum.sum();
    if found == member.crc { Ok(()) } else { Err(damage(file.name(), member, found, &[])) }
}

/// The CRC-32 of ranges of a file, read by several threads in parts.
fn crcs(file: &dyn Reader, ranges: &[Range<u64>], moved: &(dyn Fn(u64) + Sync)) -> Result<Vec<u32>> {
    let mut jobs: Vec<(&dyn Reader, Range<u64>)> = Vec::new();
    let mut owners = Vec::new();
    for (number, range) in ranges.iter().enumerate() {
        for start in range.clone().step_by(CHUNK as usize) {
            jobs.push((file, start..range.end.min(start + CHUNK)));
            owners.push(number);
        }
    }
    let longest = jobs.iter().map(|(_, range)| range.end - range.start).max().unwrap_or(1);
    let transfer = Transfer::new(TransferOptions { chunk: longest as usize, ..TransferOptions::default() });
    let parts: Vec<Mutex<Crc>> = jobs.iter().map(|_| Mutex::new(Crc::new())).collect();
    transfer.read_each::<Error>(&jobs, |job, bytes| {
        parts[job].lock().unwrap_or_else(PoisonError::into_inner).update(bytes);
        moved(bytes.len() as u64);
        Ok(())
    })?;
    let mut sums: Vec<Crc> = ranges.iter().map(|_| Crc::new()).collect();
    for (owner, part) in owners.into_iter().zip(parts) {
        sums[owner].combine(&part.into_inner().unwrap_or_else(PoisonError::into_inner));
    }
    Ok(sums.iter().map(Crc::sum).collect())
}

fn damage(file: &str, member: &Member, found: u32, places: &[(u64, u64, String)]) -> Error {
    let (start, end) = (member.range.start, member.range.end);
    let touched = places.iter().filter(|(from, to, _)| *from < end && *to > start);
    let names: Vec<&str> = touched.map(|(.., name)| name.as_str()).collect();
    let (file, member_name) = (file.to_string(), member.name.clone());
    Error::Member {
        tensor: names.join("', '"),
        file,
        member: member_name,
        start,
        end,
        found,
        expected: member.crc,
    }
}
