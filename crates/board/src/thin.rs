//! Fewer points of a curve that look the same: per stretch of steps the lowest and the highest value, and both ends.

/// At most about `most` of the points whose steps lie from `from` to `to`, in order. Peaks of one step stay, and so do
/// values that are no numbers.
pub fn thin(points: &[(u64, f64)], from: u64, to: u64, most: usize) -> Vec<(u64, f64)> {
    let begin = points.partition_point(|&(step, _)| step < from);
    let end = points.partition_point(|&(step, _)| step <= to);
    let shown = points.get(begin..end).unwrap_or_default();
    if shown.len() <= most.max(4) {
        return shown.to_vec();
    }
    // Two or three points of every stretch.
    let stretch = shown.len().div_ceil(most.max(4) / 2);
    let mut thinned = Vec::with_capacity(most + 2);
    for part in shown.chunks(stretch) {
        let mut kept = extremes(part);
        kept.sort_unstable();
        kept.dedup();
        thinned.extend(kept.into_iter().map(|at| part[at]));
    }
    let last = shown[shown.len() - 1];
    if thinned.last().map(|p| p.0) != Some(last.0) {
        thinned.push(last);
    }
    if thinned.first().map(|p| p.0) != Some(shown[0].0) {
        thinned.insert(0, shown[0]);
    }
    thinned
}

/// Where the lowest, the highest and the first value that is no number stand.
fn extremes(part: &[(u64, f64)]) -> Vec<usize> {
    let (mut low, mut high, mut odd) = (None::<usize>, None::<usize>, None);
    for (at, &(_, value)) in part.iter().enumerate() {
        if !value.is_finite() {
            odd = odd.or(Some(at));
            continue;
        }
        if low.is_none_or(|low| value < part[low].1) {
            low = Some(at);
        }
        if high.is_none_or(|high| value > part[high].1) {
            high = Some(at);
        }
    }
    [low, high, odd].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_and_ends_stay_and_the_rest_is_few() {
        let mut points: Vec<(u64, f64)> = (0..1_000_000).map(|i| (i, (i as f64 / 1e5).sin())).collect();
        points[123_456].1 = 50.0;
        points[654_321].1 = -50.0;
        points[777_777].1 = f64::NAN;
        let thinned = thin(&points, 0, u64::MAX, 800);
        assert!(thinned.len() <= 1300, "{}", thinned.len());
        assert!(thinned.contains(&(123_456, 50.0)) && thinned.contains(&(654_321, -50.0)));
        assert!(thinned.iter().any(|p| p.0 == 777_777));
        assert_eq!((thinned[0].0, thinned[thinned.len() - 1].0), (0, 999_999));
        assert!(thinned.is_sorted_by_key(|p| p.0));
        assert_eq!(thin(&points, 10, 12, 800), &points[10..13]);
        assert_eq!(thin(&points, 12, 10, 800), []);
        assert_eq!(thin(&[], 0, 9, 800), []);
    }
}
