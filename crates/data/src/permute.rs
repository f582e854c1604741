//! A keyed shuffle of `0..n` that is computed, not stored: any element in constant time and memory.

use planaria_array::random::Key;

/// Rounds of mixing. Four are enough for large domains; small ones want more.
const ROUNDS: u64 = 10;

/// A one-to-one map of `0..n` onto itself.
///
/// The number is split into two digits (`left`, `right`) with `a x b >= n`, and each digit is in turn moved by a keyed hash of
/// the other (an unbalanced Feistel network). A result outside `0..n` is mapped again until it falls inside, which keeps the map
/// one-to-one; since `a x b` is hardly larger than `n`, that is rare.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    key: Key,
    n: u64,
    a: u64,
    b: u64,
}

impl Permutation {
    /// The shuffle of `0..n` that belongs to this key.
    pub fn new(key: Key, n: u64) -> Permutation {
        let a = n.isqrt().max(1);
        // `a x b` can only pass 2^64 in its last multiple; all sums below are in 128 bits.
        Permutation { key, n, a, b: n.div_ceil(a).max(1) }
    }

    /// Where `index` goes. Indices past the end are their own image.
    pub fn of(&self, index: u64) -> u64 {
        if index >= self.n {
            return index;
        }
        let mut x = u128::from(index);
        loop {
            x = self.once(x);
            if x < u128::from(self.n) {
                return x as u64;
            }
        }
    }

    fn once(&self, x: u128) -> u128 {
        let (mut left, mut right) = ((x % u128::from(self.a)) as u64, (x / u128::from(self.a)) as u64);
        for round in 0..ROUNDS {
            let key = self.key.fold(round);
            if round.is_multiple_of(2) {
                left = shifted(left, key.fold(right).stream, self.a);
            } else {
                right = shifted(right, key.fold(left).stream, self.b);
            }
        }
        u128::from(right) * u128::from(self.a) + u128::from(left)
    }
}

/// `(digit + hash) mod base`.
fn shifted(digit: u64, hash: u64, base: u64) -> u64 {
    ((u128::from(digit) + u128::from(hash)) % u128::from(base)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_small_domain_is_permuted() {
        for n in 0..200 {
            let shuffle = Permutation::new(Key::new(3, n), n);
            let mut seen: Vec<u64> = (0..n).map(|i| shuffle.of(i)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..n), "{n}");
        }
    }

    #[test]
    fn neighbours_are_torn_apart_and_keys_differ() {
        let n = 10_000;
        let [one, two] = [1, 2].map(|stream| Permutation::new(Key::new(7, stream), n));
        let close = (0..n - 1).filter(|&i| one.of(i).abs_diff(one.of(i + 1)) < n / 10).count();
        // Two random numbers are that close in 19 of 100 cases.
        assert!((1700..2100).contains(&close), "{close}");
        let same = (0..n).filter(|&i| one.of(i) == two.of(i)).count();
        assert!(same < 10, "{same}");
    }

    #[test]
    fn each_place_is_equally_likely() {
        let mut counts = [[0u32; 5]; 5];
        for key in 0..5000 {
            let shuffle = Permutation::new(Key::new(11, key), 5);
            (0..5).for_each(|i| counts[i as usize][shuffle.of(i) as usize] += 1);
        }
        // 1000 expected, standard deviation 28.
        assert!(counts.iter().flatten().all(|c| (860..1140).contains(c)), "{counts:?}");
    }

    #[test]
    fn the_order_never_changes_between_versions() {
        let shuffle = Permutation::new(Key::new(42, 0), 1000);
        let first: Vec<u64> = (0..6).map(|i| shuffle.of(i)).collect();
        assert_eq!(first, [701, 298, 211, 213, 896, 197], "runs that resume would see other samples");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn huge_domains_stay_inside_and_apart(n in 1u64.., key in any::<u64>(), i in any::<u64>(), j in any::<u64>()) {
            let shuffle = Permutation::new(Key::new(key, 1), n);
            let (i, j) = (i % n, j % n);
            let (x, y) = (shuffle.of(i), shuffle.of(j));
            prop_assert!(x < n && y < n);
            prop_assert_eq!(x == y, i == j);
        }
    }
}
