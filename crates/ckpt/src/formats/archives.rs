//! The checksums that archives carry: every member of a zip archive has a CRC-32.

use super::source::Source;
use super::zip::{Archive, Member};
use crate::error::{Error, Result};
use flate2::Crc;
use planaria_store::Reader;
use std::collections::BTreeMap;

/// Bytes read at once.
const CHUNK: u64 = 1 << 20;

/// Where tensors lie in one file: first byte, one past the last, and the name.
type Places = Vec<(u64, u64, String)>;

/// What the members of archives turned out to be.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    /// Bytes that were compared with a checksum.
    pub(crate) bytes: u64,
    /// What is damaged.
    pub(crate) problems: Vec<Error>,
}

impl Source {
    /// Compares every member of every archive with its checksum; none where there are no archives. `moved` hears of
    /// every byte.
    pub(crate) fn check_archives(&self, moved: &(dyn Fn(u64) + Sync)) -> Result<Option<Compared>> {
        if self.archives.is_empty() {
            return Ok(None);
        }
        let places = self.places();
        let mut compared = Compared::default();
        let mut open: Option<(&str, Box<dyn Reader>)> = None;
        for (file, start, end) in &self.archives {
            if open.as_ref().is_none_or(|(name, _)| name != file) {
                open = Some((file, self.store.reader(file)?));
            }
            let Some((_, reader)) = &open else { continue };
            for member in Archive::open(&**reader, *start..*end)?.members()? {
                let found = crc(&**reader, &member, moved)?;
                compared.bytes += member.range.end - member.range.start;
                if found != member.crc {
                    let none = Places::new();
                    compared.problems.push(damage(file, &member, found, places.get(file).unwrap_or(&none)));
                }
            }
        }
        Ok(Some(compared))
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

fn crc(file: &dyn Reader, member: &Member, moved: &(dyn Fn(u64) + Sync)) -> Result<u32> {
    let mut crc = Crc::new();
    let mut at = member.range.start;
    while at < member.range.end {
        let len = CHUNK.min(member.range.end - at);
        crc.update(&file.read(at, len as usize)?);
        moved(len);
        at += len;
    }
    Ok(crc.sum())
}

fn damage(file: &str, member: &Member, found: u32, places: &[(u64, u64, String)]) -> Error {
    let (start, end) = (member.range.start, member.range.end);
    let touched = places.iter().filter(|(from, to, _)| *from < end && *to > start);
    let names: Vec<&str> = touched.map(|(.., name)| name.as_str()).collect();
    let tensor = if names.is_empty() { "(none)".to_string() } else { names.join("', '") };
    let (file, member_name) = (file.to_string(), member.name.clone());
    Error::Member { tensor, file, member: member_name, start, end, found, expected: member.crc }
}
