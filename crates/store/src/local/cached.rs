//! What the page cache has of a file, asked at a few places: to ask for every page takes longer than to map them.

use super::sys::cached_bytes;
use std::fs::File;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes asked about at each place.
const SAMPLE: u64 = 16 << 10;
/// Places of a range at which is asked.
const PLACES: u64 = 8;
/// The same for a whole file.
const FILE_PLACES: u64 = 64;
/// How long an answer about a whole file holds: long enough for a program that reads tensor after tensor.
const HOLDS: Duration = Duration::from_secs(1);

/// What was found out about a whole file, and when.
#[derive(Debug, Default)]
pub(super) struct Cached(Mutex<Option<(Instant, bool)>>);

impl Cached {
    /// Whether the page cache seems to have most of a range of a file of `size` bytes; not where the kernel cannot say.
    pub(super) fn has_most_of(&self, file: &File, size: u64, range: &Range<u64>) -> bool {
        self.has_file(file, size) || has_share(file, range, PLACES, 2)
    }

    /// Whether all places of the file are there, which spares the questions for its ranges.
    fn has_file(&self, file: &File, size: u64) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, answer)) = known.filter(|(asked, _)| asked.elapsed() < HOLDS) {
            return answer;
        }
        let answer = has_share(file, &(0..size), FILE_PLACES, 1);
        *known = Some((Instant::now(), answer));
        answer
    }
}

/// Whether one part in `share` of the places of a range is cached; the questions end with the answer.
fn has_share(file: &File, range: &Range<u64>, places: u64, share: u64) -> bool {
    let len = range.end - range.start;
    let cached = |start: u64, len: u64| cached_bytes(file, start, len).unwrap_or(0);
    if len <= places * SAMPLE {
        return cached(range.start, len) >= len.div_ceil(share);
    }
    let step = (len - SAMPLE) / (places - 1);
    let most_missing = places * SAMPLE - (places * SAMPLE).div_ceil(share);
    let mut missing = 0;
    (0..places).all(|place| {
        missing += SAMPLE - cached(range.start + place * step, SAMPLE);
        missing <= most_missing
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_written_is_cached_and_a_hole_is_not() {
        let place = tempfile::tempdir().unwrap();
        let mut file = File::create_new(place.path().join("f")).unwrap();
        let (written, size) = (6 << 20, 10 << 20);
        file.write_all(&vec![1; written as usize]).unwrap();
        if cached_bytes(&file, 0, 4096).is_none() {
            // A kernel before 6.5 cannot say what is cached.
            return;
        }
        let has = |size, range: Range<u64>| Cached::default().has_most_of(&file, size, &range);
        assert!(has(written, 0..written) && has(written, 5..9));
        file.set_len(size).unwrap();
        for (range, expected) in [
            (0..written, true),
            (100..written + 100, true),
            (100..5000, true),
            (written - 4096..written + 4096, true),
            (written - 4096..written + 8192, false),
            (written..size, false),
            (4 << 20..size, false),
            (0..size, true),
        ] {
            assert_eq!(has(size, range.clone()), expected, "{range:?}");
        }
        let whole = Cached::default();
        assert!(!whole.has_file(&file, size) && whole.has_most_of(&file, size, &(0..written)));
    }

    #[test]
    fn what_was_found_long_ago_is_asked_again() {
        let place = tempfile::tempdir().unwrap();
        let file = File::create_new(place.path().join("f")).unwrap();
        file.set_len(1 << 20).unwrap();
        let Some(long_ago) = Instant::now().checked_sub(2 * HOLDS) else { return };
        let cached = Cached(Mutex::new(Some((long_ago, true))));
        assert!(!cached.has_most_of(&file, 1 << 20, &(0..1 << 20)), "it is a hole");
    }
}
