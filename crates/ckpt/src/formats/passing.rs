//! Archives compared with their checksums while their bytes pass by: what is read once and whole is not read twice.

use super::archives::CHUNK;
use super::source::Source;
use super::zip::Member;
use crate::error::Result;
use flate2::Crc;
use planaria_store::{Reader, Transfer, TransferOptions};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The archives of a source that were read from. What was handed out counts once [`Passing::finish`] has found no damage.
#[derive(Debug, Default)]
pub(crate) struct Passing {
    /// By number of the file.
    files: Mutex<BTreeMap<usize, Arc<Members>>>,
}

/// The members of the archives in a file.
#[derive(Debug)]
struct Members {
    /// In the order of their bytes.
    all: Vec<Passed>,
    /// The number of one that is not what was written, and its sum.
    damaged: OnceLock<(usize, u32)>,
}

/// A member and what is known of its bytes.
#[derive(Debug)]
struct Passed {
    member: Member,
    sums: Mutex<Sums>,
}

/// By first byte: one past the last byte of a stretch, and its sum. None touch or overlap.
type Sums = BTreeMap<u64, (u64, Crc)>;

/// A file of archives that are summed while it is read.
#[derive(Debug)]
struct Summed {
    file: Box<dyn Reader>,
    members: Arc<Members>,
}

impl Passing {
    /// Opens a file to read tensors from.
    pub(crate) fn reader(&self, source: &Source, number: usize) -> Result<Box<dyn Reader>> {
        let members = self.members(source, number)?;
        // Without archives, or with such as were compared before.
        if members.all.is_empty() {
            return source.reader(number);
        }
        Ok(Box::new(Summed { file: source.store.reader(&source.files[number])?, members }))
    }

    fn members(&self, source: &Source, number: usize) -> Result<Arc<Members>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(members) = files.get(&number) {
            return Ok(members.clone());
        }
        let mut members = source.uncompared(&source.files[number])?;
        members.sort_by_key(|member| member.range.start);
        let passed = |member| Passed { member, sums: Mutex::default() };
        let all = members.into_iter().map(passed).collect();
        let members = Arc::new(Members { all, damaged: OnceLock::new() });
        files.insert(number, members.clone());
        Ok(members)
    }

    /// Refuses a file of which a member has passed to its end and is not what was written.
    pub(crate) fn sound(&self, source: &Source, number: usize) -> Result<()> {
        let members = self.files.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        match members.as_ref().and_then(|members| Some((members, members.damaged.get()?))) {
            Some((members, &(at, found))) => {
                Err(source.damage(&source.files[number], &members.all[at].member, found))
            }
            None => Ok(()),
        }
    }

    /// Reads what is left of members that were read in part, and refuses what is not what was written.
    pub(crate) fn finish(&self, source: &Source) -> Result<()> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (number, members) in files {
            let gaps: Vec<Range<u64>> = members.all.iter().flat_map(Passed::gaps).collect();
            if !gaps.is_empty() {
                let file = Summed { file: source.store.reader(&source.files[number])?, members };
                let parts = gaps.iter().flat_map(|gap| {
                    gap.clone().step_by(CHUNK as usize).map(|at| at..gap.end.min(at + CHUNK))
                });
                let jobs: Vec<(&dyn Reader, Range<u64>)> = parts.map(|part| (&file as _, part)).collect();
                let options = TransferOptions { chunk: CHUNK as usize, ..TransferOptions::default() };
                // Reading is summing.
                Transfer::new(options).read_each::<planaria_store::Error>(&jobs, |_, _| Ok(()))?;
            }
            self.sound(source, number)?;
        }
        Ok(())
    }
}

impl Passed {
    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sum of all its bytes, once they have passed.
    fn whole(&self) -> Option<u32> {
        let sums = self.lock();
        let (start, (end, sum)) = sums.first_key_value()?;
        ((*start..*end) == self.member.range).then(|| sum.sum())
    }

    /// What has not passed; nothing where nothing has.
    fn gaps(&self) -> Vec<Range<u64>> {
        let sums = self.lock();
        if sums.is_empty() { Vec::new() } else { missing(&sums, &self.member.range) }
    }

    /// Sums bytes of the file from `offset` on that are this member's and have not passed before.
    fn add(&self, offset: u64, bytes: &[u8]) {
        let own = &self.member.range;
        let here = own.start.max(offset)..own.end.min(offset + bytes.len() as u64);
        let new = missing(&self.lock(), &here);
        for part in new {
            let mut sum = Crc::new();
            sum.update(&bytes[(part.start - offset) as usize..(part.end - offset) as usize]);
            join(&mut self.lock(), part, sum);
        }
    }
}

/// The parts of a range of which no bytes were summed.
fn missing(sums: &Sums, range: &Range<u64>) -> Vec<Range<u64>> {
    if range.is_empty() {
        return Vec::new();
    }
    let before = sums.range(..=range.start).next_back().map_or(range.start, |(_, (end, _))| *end);
    let (mut at, mut gaps) = (before.max(range.start), Vec::new());
    for (start, (end, _)) in sums.range(range.start..range.end) {
        if at < *start {
            gaps.push(at..*start);
        }
        at = at.max(*end);
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
    gaps
}

/// Puts the sum of a stretch beside those that it touches. One that another thread has summed in part meanwhile is left out: what is
/// missing then is read again in the end.
fn join(sums: &mut Sums, mut part: Range<u64>, mut sum: Crc) {
    if missing(sums, &part) != [part.clone()] {
        return;
    }
    if let Some((&start, &(end, _))) = sums.range(..part.start).next_back()
        && end == part.start
        && let Some((_, mut before)) = sums.remove(&start)
    {
        before.combine(&sum);
        (part.start, sum) = (start, before);
    }
    if let Some((end, after)) = sums.remove(&part.end) {
        sum.combine(&after);
        part.end = end;
    }
    sums.insert(part.start, (part.end, sum));
}

impl Reader for Summed {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> planaria_store::Result<usize> {
        let read = self.file.read_at(offset, into)?;
        let end = offset.saturating_add(read as u64);
        let all = &self.members.all;
        let first = all.partition_point(|passed| passed.member.range.end <= offset);
        for (number, passed) in all.iter().enumerate().skip(first) {
            if passed.member.range.start >= end {
                break;
            }
            passed.add(offset, &into[..read]);
            if let Some(found) = passed.whole().filter(|found| *found != passed.member.crc) {
                self.members.damaged.get_or_init(|| (number, found));
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reads_in_any_order_that_overlap_make_up_one_sum(
            len in 1u64..200, reads in prop::collection::vec((0u64..200, 1u64..60), 0..40),
        ) {
            let bytes: Vec<u8> = (0..220).map(|i| (i * 37 % 251) as u8).collect();
            let range = 10..10 + len;
            let of = |range: &Range<u64>| {
                let mut sum = Crc::new();
                sum.update(&bytes[range.start as usize..range.end as usize]);
                sum.sum()
            };
            let member = Member { name: "m".to_string(), range: range.clone(), crc: of(&range) };
            let passed = Passed { member, sums: Mutex::default() };
            let mut seen = [false; 220];
            for (at, count) in reads {
                let end = (at + count).min(220);
                passed.add(at, &bytes[at as usize..end as usize]);
                seen[at as usize..end as usize].fill(true);
            }
            let left: u64 = passed.gaps().iter().map(|gap| gap.end - gap.start).sum();
            let unseen = range.clone().filter(|&at| !seen[at as usize]).count() as u64;
            prop_assert_eq!(left, if unseen == len { 0 } else { unseen });
            prop_assert_eq!(passed.whole().is_some(), unseen == 0);
            passed.add(0, &bytes);
            prop_assert_eq!(passed.whole(), Some(of(&range)));
            prop_assert_eq!(passed.lock().len(), 1);
        }
    }
}
