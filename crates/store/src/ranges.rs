//! Byte ranges: merging those that lie close together, so that one read serves several.

use std::ops::Range;

/// Sorts the ranges and merges those that touch, overlap, or lie at most `gap` bytes apart. Empty ones go.
pub fn coalesce(ranges: impl IntoIterator<Item = Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    let mut sorted: Vec<Range<u64>> = ranges.into_iter().filter(|r| r.start < r.end).collect();
    sorted.sort_by_key(|r| r.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(gap) => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn merged_ranges_cover_the_given_ones_and_are_far_apart(
            given in prop::collection::vec((0u64..200, 0u64..20), 0..12), gap in 0u64..8,
        ) {
            let given: Vec<Range<u64>> = given.into_iter().map(|(a, len)| a..a + len).collect();
            let merged = coalesce(given.clone(), gap);
            for pair in merged.windows(2) {
                prop_assert!(pair[0].end + gap < pair[1].start);
            }
            let covered = |x: u64| merged.iter().any(|r| r.contains(&x));
            for x in 0..240 {
                let wanted = given.iter().any(|r| r.contains(&x));
                prop_assert!(!wanted || covered(x), "{x} is lost");
                // What is covered without being wanted is a gap between two wanted bytes.
                if covered(x) && !wanted {
                    let near = |y: u64| given.iter().any(|r| r.contains(&y));
                    prop_assert!((1..=gap).any(|d| near(x + d)) && (1..=gap).any(|d| x >= d && near(x - d)));
                }
            }
        }
    }
}
