//! Sorting rows by keys: every dtype becomes an unsigned integer with the same order, packed with its position.
//!
//! Packed values are all different, so any sorting algorithm gives the stable order, and results depend on
//! nothing but the input.

mod key;

pub(crate) use key::SortKey;

use planaria_cpu::pool;

/// The order of a sort. Equal elements keep their order either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Order {
    /// Smallest first, NaN last.
    #[default]
    Ascending,
    /// Largest first, NaN first.
    Descending,
}

/// A key with a position below it.
trait Packed: Copy + Ord + Send + Sync + Default {
    fn pack(key: u64, position: usize) -> Self;
    fn position(self) -> usize;
    /// Byte `i` of the key, from the lowest.
    fn digit(self, i: usize) -> usize;
}

/// Keys of up to 32 bits in rows of up to 2^32 elements.
impl Packed for u64 {
    #[inline(always)]
    fn pack(key: u64, position: usize) -> u64 {
        key << 32 | position as u64
    }
    #[inline(always)]
    fn position(self) -> usize {
        self as u32 as usize
    }
    #[inline(always)]
    fn digit(self, i: usize) -> usize {
        (self >> (32 + 8 * i)) as u8 as usize
    }
}

impl Packed for u128 {
    #[inline(always)]
    fn pack(key: u64, position: usize) -> u128 {
        u128::from(key) << 64 | position as u128
    }
    #[inline(always)]
    fn position(self) -> usize {
        self as u64 as usize
    }
    #[inline(always)]
    fn digit(self, i: usize) -> usize {
        (self >> (64 + 8 * i)) as u8 as usize
    }
}

/// How much of the order is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// The first `k` in order.
    First(usize),
    /// Only number `k`, from 0.
    Only(usize),
}

impl Wanted {
    /// Positions written per row.
    pub(crate) fn per_row(self) -> usize {
        match self {
            Wanted::First(k) => k,
            Wanted::Only(_) => 1,
        }
    }
}

/// Writes for each row of `n` elements the positions of the wanted ones.
pub(crate) fn positions<T: SortKey>(data: &[T], n: usize, order: Order, wanted: Wanted, out: &mut [i64]) {
    if T::BITS <= 32 && n as u64 <= 1 << 32 {
        rows::<T, u64>(data, n, order, wanted, out);
    } else {
        rows::<T, u128>(data, n, order, wanted, out);
    }
}

fn rows<T: SortKey, P: Packed>(data: &[T], n: usize, order: Order, wanted: Wanted, out: &mut [i64]) {
    let width = wanted.per_row();
    if width == 0 {
        return;
    }
    // Sorting costs far more than reading: count it as a few dozen bytes per element.
    pool::for_chunks_mut(out, width, 32 * n.div_ceil(width), |at, piece| {
        let (mut packed, mut spare) = (vec![P::default(); n], Vec::new());
        for (i, out) in piece.chunks_exact_mut(width).enumerate() {
            let row = &data[(at / width + i) * n..][..n];
            for (position, (p, &x)) in packed.iter_mut().zip(row).enumerate() {
                let key = if order == Order::Ascending { x.key() } else { !x.key() & T::MASK };
                *p = P::pack(key, position);
            }
            let found = select(&mut packed, &mut spare, wanted, T::BITS / 8);
            for (o, p) in out.iter_mut().zip(found) {
                *o = p.position() as i64;
            }
        }
    });
}

/// The wanted ones of `packed`, in order.
fn select<'a, P: Packed>(
    packed: &'a mut [P],
    spare: &mut Vec<P>,
    wanted: Wanted,
    key_bytes: usize,
) -> &'a [P] {
    let n = packed.len();
    match wanted {
        Wanted::First(k) if k < n => {
            if k < n / 4 {
                let (head, ..) = packed.select_nth_unstable(k);
                head.sort_unstable();
            } else {
                sort(packed, spare, key_bytes);
            }
            &packed[..k]
        }
        Wanted::First(_) => {
            sort(packed, spare, key_bytes);
            packed
        }
        Wanted::Only(k) => {
            packed.select_nth_unstable(k);
            &packed[k..=k]
        }
    }
}

/// From this length on, counting digits beats comparing.
const RADIX_FROM: usize = 512;

fn sort<P: Packed>(data: &mut [P], spare: &mut Vec<P>, key_bytes: usize) {
    if data.len() < RADIX_FROM {
        return data.sort_unstable();
    }
    let mut counts = [[0usize; 256]; 8];
    for p in data.iter() {
        for (i, count) in counts[..key_bytes].iter_mut().enumerate() {
            count[p.digit(i)] += 1;
        }
    }
    spare.resize(data.len(), P::default());
    let mut in_data = true;
    for (i, count) in counts[..key_bytes].iter_mut().enumerate() {
        // A digit that all keys share orders nothing.
        if count.contains(&data.len()) {
            continue;
        }
        let mut start = 0;
        for c in count.iter_mut() {
            start += std::mem::replace(c, start);
        }
        let (from, to): (&[P], &mut [P]) = if in_data { (data, spare) } else { (spare, data) };
        for &p in from {
            let slot = &mut count[p.digit(i)];
            to[*slot] = p;
            *slot += 1;
        }
        in_data = !in_data;
    }
    if !in_data {
        data.copy_from_slice(spare);
    }
}

/// The groups of equal elements of a sorted row: their first positions in the sorted order.
pub(crate) fn groups<T: SortKey>(data: &[T], sorted: &[i64]) -> Vec<usize> {
    let mut starts = Vec::new();
    for (i, &at) in sorted.iter().enumerate() {
        let fresh = i == 0 || {
            let (a, b) = (data[sorted[i - 1] as usize], data[at as usize]);
            // NaN differs from everything, itself included.
            a.key() != b.key() || a.is_nan_key()
        };
        if fresh {
            starts.push(i);
        }
    }
    starts
}

/// Which of several equal places a value is sorted into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Side {
    /// Before all equal elements.
    #[default]
    Left,
    /// After all equal elements.
    Right,
}

/// For each value, where it belongs in its sorted row: rows of `n` elements, `m` values for each.
pub(crate) fn search<T: SortKey>(
    sorted: &[T],
    values: &[T],
    n: usize,
    m: usize,
    side: Side,
    out: &mut [i64],
) {
    pool::for_chunks_mut(out, 1, 64, |at, piece| {
        for (i, o) in piece.iter_mut().enumerate() {
            let value = values[at + i].key();
            let row = match sorted.len() == n {
                true => sorted,
                false => &sorted[(at + i) / m * n..][..n],
            };
            *o = row.partition_point(|x| match side {
                Side::Left => x.key() < value,
                Side::Right => x.key() <= value,
            }) as i64;
        }
    });
}

/// The first NaN of each row takes the place of the found position: a row with NaN has no median.
pub(crate) fn prefer_nan<T: SortKey>(data: &[T], n: usize, out: &mut [i64]) {
    pool::for_chunks_mut(out, 1, n * size_of::<T>(), |at, piece| {
        for (i, o) in piece.iter_mut().enumerate() {
            let row = &data[(at + i) * n..][..n];
            *o = row.iter().position(|x| x.is_nan_key()).map_or(*o, |p| p as i64);
        }
    });
}
