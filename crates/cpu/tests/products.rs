//! Products against f64 references: every path, every type, any strides, any number of threads.

use half::{bf16, f16};
use planaria_cpu::matmul::*;
use planaria_cpu::{Level, Threads};
use proptest::prelude::*;
use std::fmt::Debug;

/// A type whose values the tests can make and read.
trait Value: MatmulElement + PartialEq + Debug {
    /// Rounding error of one operation in the output type.
    const EPS: f64;
    fn of(x: f64) -> Self;
    fn get(self) -> f64;
}

macro_rules! values {
    ($($t:ty, $eps:expr, |$x:ident| $of:expr);*) => {$(
        impl Value for $t {
            const EPS: f64 = $eps;
            fn of($x: f64) -> Self { $of }
            fn get(self) -> f64 { self.into() }
        }
    )*};
}
values!(
    f32, f32::EPSILON as f64, |x| x as f32;
    f64, f64::EPSILON, |x| x;
    f16, 1.0 / 1024.0, |x| f16::from_f64(x);
    bf16, 1.0 / 128.0, |x| bf16::from_f64(x)
);

/// Small integers: every product and partial sum is exact in every accumulator.
fn small_integers<T: Value>(n: usize, seed: usize) -> Vec<T> {
    (0..n).map(|i| T::of(((i * 7 + seed * 13 + i / 5) % 5) as f64 - 2.0)).collect()
}

/// Uniform in -0.5..0.5, rounded to the type.
fn noise<T: Value>(n: usize, seed: u64) -> Vec<T> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        T::of((x >> 11) as f64 / (1u64 << 53) as f64 - 0.5)
    };
    (0..n).map(|_| next()).collect()
}

#[inline] // most of what the tests take
fn at<T: Value>(m: &MatRef<T>, i: usize, j: usize) -> f64 {
    let index = m.offset as isize + i as isize * m.row_stride + j as isize * m.col_stride;
    m.data[index as usize].get()
}

/// The exact product and the sum of the absolute terms, in f64.
fn reference<T: Value>(a: &MatRef<T>, b: &MatRef<T>) -> Vec<(f64, f64)> {
    let element = |i, j| {
        (0..a.cols).map(|p| at(a, i, p) * at(b, p, j)).fold((0.0, 0.0), |(s, t), x| (s + x, t + x.abs()))
    };
    (0..a.rows * b.cols).map(|x| element(x / b.cols, x % b.cols)).collect()
}

/// Ways to lay a matrix in a slice.
const LAYOUTS: usize = 7;

/// A matrix of `rows` by `cols` in layout `kind`, over data made by `make`.
fn lay<T: Value>(
    kind: usize,
    rows: usize,
    cols: usize,
    make: impl Fn(usize) -> Vec<T>,
) -> (Vec<T>, MatLayout) {
    let (r, c) = (rows as isize, cols as isize);
    let (len, offset, row_stride, col_stride) = match kind {
        0 => (rows * cols, 0, c, 1),
        1 => (rows * cols, 0, 1, r),
        2 => (rows * (cols + 3) + 5, 5, c + 3, 1),
        3 => (2 * rows * cols, 0, 2 * c, 2),
        4 => (rows * cols, (rows * cols).saturating_sub(1), -c, -1),
        5 => (cols.max(1), 0, 0, 1),
        // Rows and columns both one apart: overlapping windows.
        _ => (rows + cols, 0, 1, 1),
    };
    (make(len), MatLayout { offset, rows, cols, row_stride, col_stride })
}

struct MatLayout {
    offset: usize,
    rows: usize,
    cols: usize,
    row_stride: isize,
    col_stride: isize,
}

impl MatLayout {
    fn on<'a, T>(&self, data: &'a [T]) -> MatRef<'a, T> {
        let Self { offset, rows, cols, row_stride, col_stride } = *self;
        MatRef { data, offset, rows, cols, row_stride, col_stride }
    }
}

fn exact_on_integers<T: Value>(m: usize, k: usize, n: usize) {
    for path in available_paths() {
        for (ka, kb) in (0..LAYOUTS).flat_map(|x| [(x, 0), (0, x), (1, x), (x, 1)]) {
            let (da, la) = lay::<T>(ka, m, k, |len| small_integers(len, 1));
            let (db, lb) = lay::<T>(kb, k, n, |len| small_integers(len, 2));
            let (a, b) = (la.on(&da), lb.on(&db));
            let expected = reference(&a, &b);
            let mut out = vec![T::of(3.0); m * n];
            matmul_at(path, &mut out, a, b, Accumulate::Overwrite).unwrap();
            for (x, (y, _)) in out.iter().zip(&expected) {
                assert_eq!(*x, T::of(*y), "{path:?} {m}x{k}x{n} layouts {ka} {kb}");
            }
            let mut added = vec![T::of(3.0); m * n];
            matmul_at(path, &mut added, a, b, Accumulate::Add).unwrap();
            for (x, (y, _)) in added.iter().zip(&expected) {
                assert_eq!(*x, T::of(*y + 3.0), "+= {path:?} {m}x{k}x{n} layouts {ka} {kb}");
            }
        }
    }
}

#[test]
fn integers_are_exact_in_every_type_layout_and_path() {
    let shapes = [
        (1, 1, 1),
        (1, 9, 70),
        (70, 9, 1),
        (5, 3, 2),
        (14, 16, 32),
        (15, 17, 33),
        (29, 64, 47),
        (33, 31, 65),
        (64, 40, 96),
    ];
    for (m, k, n) in shapes {
        exact_on_integers::<f32>(m, k, n);
        exact_on_integers::<f64>(m, k, n);
        exact_on_integers::<f16>(m, k, n);
        exact_on_integers::<bf16>(m, k, n);
    }
}

fn within_bounds<T: Value>(m: usize, k: usize, n: usize, seed: u64) {
    let acc_eps = if size_of::<T>() == 8 { f64::EPSILON } else { f32::EPSILON as f64 };
    let (da, db) = (noise::<T>(m * k, seed), noise::<T>(k * n, seed + 1));
    for (a, b) in [
        (MatRef::row_major(&da, m, k), MatRef::row_major(&db, k, n)),
        (MatRef::row_major(&da, k, m).t(), MatRef::row_major(&db, n, k).t()),
    ] {
        let expected = reference(&a, &b);
        for path in available_paths() {
            let mut out = vec![T::of(0.0); m * n];
            matmul_at(path, &mut out, a, b, Accumulate::Overwrite).unwrap();
            for (x, (y, terms)) in out.iter().zip(&expected) {
                let bound = terms * acc_eps * k as f64 + y.abs() * T::EPS + 1e-30;
                assert!((x.get() - y).abs() <= bound, "{path:?} {m}x{k}x{n}: {x:?} for {y}, bound {bound}");
            }
        }
    }
}

#[test]
fn long_sums_stay_within_the_error_of_the_accumulator() {
    for (m, k, n) in [(37, 1500, 45), (16, 2048, 32), (1, 3000, 50), (50, 3000, 1), (3, 1030, 7)] {
        within_bounds::<f32>(m, k, n, 3);
        within_bounds::<f64>(m, k, n, 5);
        within_bounds::<f16>(m, k, n, 7);
        within_bounds::<bf16>(m, k, n, 9);
    }
}

/// Rounding to bf16 happens once: the result is the f32 sum to half a unit, not to several.
#[test]
fn narrow_types_round_once() {
    let (m, k, n) = (34, 1111, 35);
    let (a, b) = (noise::<bf16>(m * k, 1), noise::<bf16>(k * n, 2));
    let (a, b) = (MatRef::row_major(&a, m, k), MatRef::row_major(&b, k, n));
    for path in available_paths() {
        let mut out = vec![bf16::ZERO; m * n];
        matmul_at(path, &mut out, a, b, Accumulate::Overwrite).unwrap();
        for (x, (y, terms)) in out.iter().zip(reference(&a, &b)) {
            let bound = y.abs() / 256.0 + terms * f32::EPSILON as f64 * 64.0;
            assert!((x.get() - y).abs() <= bound, "{path:?}: {x} for {y}");
        }
    }
}

fn in_pool<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    Threads::new(threads).unwrap().run(f)
}

fn same_bits<T: Value>(m: usize, k: usize, n: usize, batch: usize, kinds: (usize, usize)) {
    let (da, la) = lay::<T>(kinds.0, m, k, |len| noise(len + batch * 3, 1));
    let (db, lb) = lay::<T>(kinds.1, k, n, |len| noise(len + batch * 5, 2));
    for path in available_paths() {
        let run = |threads| {
            in_pool(threads, || {
                let mut out = vec![T::of(0.25); batch * m * n];
                let batch = Batch { shape: &[batch], a_strides: &[3], b_strides: &[5] };
                matmul_batched_at(path, &mut out, la.on(&da), lb.on(&db), batch, Accumulate::Add).unwrap();
                out
            })
        };
        let one = run(1);
        for threads in [2, 3, 5] {
            assert!(run(threads) == one, "{path:?} {threads} threads {m}x{k}x{n} batch {batch}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads() {
    for (m, k, n, batch) in
        [(250, 600, 300, 1), (70, 520, 90, 7), (1, 1100, 2100, 1), (2100, 1100, 1, 1), (33, 9000, 34, 1)]
    {
        same_bits::<f32>(m, k, n, batch, (0, 1));
        same_bits::<bf16>(m, k, n, batch, (0, 0));
    }
    same_bits::<f64>(250, 600, 300, 1, (1, 0));
    same_bits::<f16>(250, 600, 300, 1, (2, 1));
}

/// Parts of a product have the bits of the whole: every row, column and batch item alone, and ranges of them.
fn parts_equal_the_whole<T: Value>(m: usize, k: usize, n: usize, kinds: (usize, usize), mode: Accumulate) {
    let (da, la) = lay::<T>(kinds.0, m, k, |len| noise(len, 1));
    let (db, lb) = lay::<T>(kinds.1, k, n, |len| noise(len, 2));
    let (a, b) = (la.on(&da), lb.on(&db));
    let start: Vec<T> = noise(m * n, 3);
    let shift = |x: &MatRef<'_, T>, i: usize, j: usize| {
        (x.offset as isize + i as isize * x.row_stride + j as isize * x.col_stride) as usize
    };
    for path in available_paths() {
        let mut whole = start.clone();
        matmul_at(path, &mut whole, a, b, mode).unwrap();
        let ranges = |size: usize| [0..1, size / 2..size / 2 + 1, 0..size.div_ceil(2), size / 3..size];
        for (rows, cols) in ranges(m).into_iter().flat_map(|r| ranges(n).map(|c| (r.clone(), c))) {
            let part_a = MatRef { offset: shift(&a, rows.start, 0), rows: rows.len(), ..a };
            let part_b = MatRef { offset: shift(&b, 0, cols.start), cols: cols.len(), ..b };
            let of_whole = |x: &[T]| -> Vec<T> {
                rows.clone().flat_map(|i| x[i * n..][cols.clone()].to_vec()).collect()
            };
            let mut part = of_whole(&start);
            matmul_at(path, &mut part, part_a, part_b, mode).unwrap();
            let what = (path, (m, k, n), kinds, mode, rows.clone(), cols.clone());
            assert!(part == of_whole(&whole), "{} {what:?}", std::any::type_name::<T>());
        }
    }
}

#[test]
fn parts_of_a_product_have_the_bits_of_the_whole() {
    let shapes = [(2, 3, 2), (7, 64, 5), (33, 200, 40), (20, 520, 35), (3, 1300, 70), (40, 1030, 2)];
    for (m, k, n) in shapes {
        for kinds in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 3), (3, 2), (4, 4)] {
            for mode in [Accumulate::Overwrite, Accumulate::Add] {
                parts_equal_the_whole::<f32>(m, k, n, kinds, mode);
                parts_equal_the_whole::<f64>(m, k, n, kinds, mode);
                parts_equal_the_whole::<f16>(m, k, n, kinds, mode);
                parts_equal_the_whole::<bf16>(m, k, n, kinds, mode);
            }
        }
    }
    // Few rows of many, which read a weight where it is.
    for (m, k, n) in [(100, 300, 200), (90, 37, 131), (130, 1030, 258)] {
        parts_equal_the_whole::<f32>(m, k, n, (0, 1), Accumulate::Overwrite);
        parts_equal_the_whole::<f64>(m, k, n, (0, 1), Accumulate::Overwrite);
        parts_equal_the_whole::<bf16>(m, k, n, (0, 1), Accumulate::Overwrite);
        parts_equal_the_whole::<bf16>(m, k, n, (1, 6), Accumulate::Overwrite);
    }
    // One output of many passes, and a right side too wide for a strip.
    parts_equal_the_whole::<f32>(2, 20_000, 2, (0, 1), Accumulate::Overwrite);
    parts_equal_the_whole::<bf16>(2, 20_000, 2, (0, 1), Accumulate::Add);
    parts_equal_the_whole::<f64>(2, 600, 2100, (0, 0), Accumulate::Add);
    parts_equal_the_whole::<bf16>(2, 70, 2100, (0, 0), Accumulate::Add);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn vector_widths_with_fused_multiply_add_agree_bit_for_bit() {
    let paths = available_paths();
    if !paths.contains(&Path::Simd(Level::V4)) {
        return;
    }
    for (m, k, n) in [(45, 1300, 77), (1, 900, 133), (133, 900, 1), (1, 12_000, 1)] {
        let (a, b) = (noise::<f32>(m * k, 1), noise::<f32>(k * n, 2));
        let run = |level, bt: bool| {
            let b = if bt { MatRef::row_major(&b, n, k).t() } else { MatRef::row_major(&b, k, n) };
            let mut out = vec![0f32; m * n];
            matmul_at(Path::Simd(level), &mut out, MatRef::row_major(&a, m, k), b, Accumulate::Overwrite)
                .unwrap();
            out
        };
        for bt in [false, true] {
            assert!(run(Level::V3, bt) == run(Level::V4, bt), "{m}x{k}x{n} {bt}");
        }
    }
}

#[test]
fn empty_sizes() {
    let none: [f32; 0] = [];
    let mut out = [7f32; 6];
    matmul(&mut out, MatRef::row_major(&none, 2, 0), MatRef::row_major(&none, 0, 3), Accumulate::Add)
        .unwrap();
    assert_eq!(out, [7.0; 6]);
    matmul(&mut out, MatRef::row_major(&none, 2, 0), MatRef::row_major(&none, 0, 3), Accumulate::Overwrite)
        .unwrap();
    assert_eq!(out, [0.0; 6]);
    let a = [1f32; 6];
    matmul(&mut [], MatRef::row_major(&a, 2, 3), MatRef::row_major(&none, 3, 0), Accumulate::Overwrite)
        .unwrap();
    matmul(&mut [], MatRef::row_major(&none, 0, 3), MatRef::row_major(&a, 3, 2), Accumulate::Overwrite)
        .unwrap();
    let huge = Batch { shape: &[usize::MAX, usize::MAX, 0], a_strides: &[0; 3], b_strides: &[0; 3] };
    let (a, b) = (MatRef::row_major(&a, 2, 3), MatRef::row_major(&a, 3, 2));
    matmul_batched(&mut [], a, b, huge, Accumulate::Overwrite).unwrap();
}

#[test]
fn batches_broadcast_and_fold() {
    let (m, k, n) = (5, 7, 6);
    let (a, b) = (small_integers::<f32>(6 * m * k, 1), small_integers::<f32>(6 * k * n, 2));
    let (size_a, size_b) = ((m * k) as isize, (k * n) as isize);
    for (sa, sb) in [
        ([3 * size_a, size_a], [0, 0]),
        ([3 * size_a, size_a], [0, size_b]),
        ([0, size_a], [3 * size_b, size_b]),
        ([size_a, 2 * size_a], [0, 0]),
        ([0, 0], [0, 0]),
    ] {
        let batch = Batch { shape: &[2, 3], a_strides: &sa, b_strides: &sb };
        let mut out = vec![0f32; 6 * m * n];
        let (first_a, first_b) = (MatRef::row_major(&a, m, k), MatRef::row_major(&b, k, n));
        matmul_batched(&mut out, first_a, first_b, batch, Accumulate::Overwrite).unwrap();
        for item in 0..6 {
            let (i, j) = ((item / 3) as isize, (item % 3) as isize);
            let a = MatRef { offset: (i * sa[0] + j * sa[1]) as usize, ..first_a };
            let b = MatRef { offset: (i * sb[0] + j * sb[1]) as usize, ..first_b };
            let expected: Vec<f32> = reference(&a, &b).iter().map(|x| x.0 as f32).collect();
            assert_eq!(out[item * m * n..][..m * n], expected, "{sa:?} {sb:?} item {item}");
        }
    }
}

#[test]
fn wrong_sizes_are_refused_before_anything_is_read() {
    let x = [0f32; 12];
    let mut out = [1f32; 9];
    let a = MatRef::row_major(&x, 3, 4);
    let refused = |r: Result<(), MatmulError>| r.unwrap_err();
    let inner = refused(matmul(&mut out, a, a, Accumulate::Overwrite));
    assert_eq!(inner, MatmulError::Inner { a_cols: 4, b_rows: 3 });
    let short = refused(matmul(&mut out[..8], a, a.t(), Accumulate::Overwrite));
    assert_eq!(short, MatmulError::Output { len: 8, batch: 1, rows: 3, cols: 3 });
    for bad in [
        MatRef { offset: 1, ..a },
        MatRef { row_stride: 5, ..a },
        MatRef { row_stride: -4, ..a },
        MatRef { col_stride: isize::MAX, ..a },
        MatRef { row_stride: isize::MIN, col_stride: isize::MIN, ..a },
        MatRef { offset: usize::MAX, ..a },
    ] {
        let outside = refused(matmul(&mut out, bad, a.t(), Accumulate::Overwrite));
        assert_eq!(outside, MatmulError::OutOfSlice { operand: Operand::A, len: 12 });
        let outside = refused(matmul(&mut out, a, bad.t(), Accumulate::Overwrite));
        assert_eq!(outside, MatmulError::OutOfSlice { operand: Operand::B, len: 12 });
    }
    let batch = Batch { shape: &[usize::MAX, usize::MAX], a_strides: &[0; 2], b_strides: &[0; 2] };
    let err = refused(matmul_batched(&mut out, a, a.t(), batch, Accumulate::Overwrite));
    assert_eq!(err, MatmulError::Output { len: 9, batch: usize::MAX, rows: 3, cols: 3 });
    let batch = Batch { shape: &[1], a_strides: &[], b_strides: &[0] };
    let err = refused(matmul_batched(&mut out, a, a.t(), batch, Accumulate::Overwrite));
    assert_eq!(err, MatmulError::BatchStrides { ndim: 1, a: 0, b: 1 });
    let batch = Batch { shape: &[2], a_strides: &[1], b_strides: &[0] };
    let mut two = [0f32; 18];
    let err = refused(matmul_batched(&mut two, a, a.t(), batch, Accumulate::Overwrite));
    assert_eq!(err, MatmulError::OutOfSlice { operand: Operand::A, len: 12 });
    assert_eq!(out, [1.0; 9]);
}

#[test]
fn not_a_number_and_infinity_pass_through() {
    for path in available_paths() {
        let mut a = vec![bf16::ONE; 40 * 40];
        a[41] = bf16::NAN;
        a[82] = bf16::INFINITY;
        let b = vec![bf16::ONE; 40 * 40];
        let mut out = vec![bf16::ZERO; 40 * 40];
        let (a, b) = (MatRef::row_major(&a, 40, 40), MatRef::row_major(&b, 40, 40));
        matmul_at(path, &mut out, a, b, Accumulate::Overwrite).unwrap();
        assert_eq!(out[0], bf16::from_f32(40.0));
        assert!(out[40..80].iter().all(|x| x.is_nan()), "{path:?}");
        assert!(out[80..120].iter().all(|x| *x == bf16::INFINITY), "{path:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_shape_and_layout_is_exact_on_integers(
        m in 1usize..70, k in 0usize..100, n in 1usize..70,
        ka in 0..LAYOUTS, kb in 0..LAYOUTS, seed in 0usize..99,
    ) {
        let (da, la) = lay::<bf16>(ka, m, k, |len| small_integers(len, seed));
        let (db, lb) = lay::<bf16>(kb, k, n, |len| small_integers(len, seed + 1));
        let (wide_a, wide_b): (Vec<f32>, Vec<f32>) =
            (da.iter().map(|x| x.to_f32()).collect(), db.iter().map(|x| x.to_f32()).collect());
        let expected = reference(&la.on(&da), &lb.on(&db));
        for path in available_paths() {
            let mut out = vec![bf16::ONE; m * n];
            matmul_at(path, &mut out, la.on(&da), lb.on(&db), Accumulate::Overwrite).unwrap();
            let mut wide = vec![1f32; m * n];
            matmul_at(path, &mut wide, la.on(&wide_a), lb.on(&wide_b), Accumulate::Overwrite).unwrap();
            for ((x, w), (y, _)) in out.iter().zip(&wide).zip(&expected) {
                prop_assert_eq!(*x, bf16::from_f64(*y));
                prop_assert_eq!(*w as f64, *y);
            }
        }
    }
}
