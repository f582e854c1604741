//! Scans and sorts against plain loops, and the answers PyTorch gives for ties and NaN.

use planaria_array::ops::{self, Keep, Order, Side, Which};
use planaria_array::{Array, DType, Error, Threads};
use proptest::prelude::*;
use std::cmp::Ordering;

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn row(values: &[f64]) -> Array {
    Array::from_slice(values, &[values.len()]).unwrap()
}

fn wide(a: &Array) -> Vec<f64> {
    a.cast(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

/// Text, so that NaN equals itself and -0 differs from 0.
fn text(a: &Array) -> String {
    format!("{:?}", wide(a))
}

/// NaN last, -0 equal to 0.
fn order(a: &f64, b: &f64) -> Ordering {
    a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// The lines of `x` along a dim, in the order of the other dims.
fn lines(x: &Array, dim: i64) -> Vec<Vec<f64>> {
    let last = x.transpose(dim, -1).unwrap();
    let n = last.shape().last().copied().unwrap_or(1);
    let values = wide(&last);
    if n == 0 { Vec::new() } else { values.chunks(n).map(<[f64]>::to_vec).collect() }
}

fn arrays() -> impl Strategy<Value = (Array, i64)> {
    let dtypes = prop::sample::select(DType::ALL.to_vec());
    let shape = prop::collection::vec(prop_oneof![1usize..6, 17usize..40], 1..4);
    (shape, dtypes, any::<u64>(), any::<bool>(), 0i64..3).prop_map(|(shape, dtype, seed, flip, dim)| {
        let n: usize = shape.iter().product();
        let mut state = seed | 1;
        let values: Vec<f64> = (0..n)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                match (state >> 40) % 12 {
                    0 if dtype.is_float() => NAN,
                    1 if dtype.is_float() => -0.0,
                    v => v as f64 - 5.0,
                }
            })
            .collect();
        let x = Array::from_slice(&values, &shape).unwrap().cast(dtype).unwrap();
        let x = if flip { x.transpose(0, -1).unwrap() } else { x };
        let dim = dim.min(x.ndim() as i64 - 1);
        (x, dim)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn sorting_is_stable((x, dim) in arrays()) {
        for direction in [Order::Ascending, Order::Descending] {
            let (values, indices) = x.sort(dim, direction).unwrap();
            prop_assert_eq!(text(&x.argsort(dim, direction).unwrap()), text(&indices));
            let (values, indices) = (lines(&values, dim), lines(&indices, dim));
            for ((line, values), indices) in lines(&x, dim).iter().zip(values).zip(indices) {
                let mut want: Vec<usize> = (0..line.len()).collect();
                want.sort_by(|&a, &b| match direction {
                    Order::Ascending => order(&line[a], &line[b]),
                    Order::Descending => order(&line[b], &line[a]),
                });
                let picked: Vec<f64> = want.iter().map(|&i| line[i]).collect();
                prop_assert_eq!(indices, want.iter().map(|&i| i as f64).collect::<Vec<_>>());
                prop_assert_eq!(format!("{values:?}"), format!("{picked:?}"));
            }
        }
        let n = x.shape()[dim as usize];
        let sorted = x.sort(dim, Order::Descending).unwrap();
        for k in [0, 1, n / 2, n] {
            let (values, indices) = x.topk(k, dim, Which::Largest).unwrap();
            prop_assert_eq!(text(&values), text(&sorted.0.narrow(dim, 0, k).unwrap()));
            prop_assert_eq!(text(&indices), text(&sorted.1.narrow(dim, 0, k).unwrap()));
        }
        let up = x.sort(dim, Order::Ascending).unwrap();
        let k = n.div_ceil(2);
        let kth = x.kthvalue(k, dim, Keep::Yes).unwrap();
        prop_assert_eq!(text(&kth.1), text(&up.1.narrow(dim, k - 1, 1).unwrap()));
        prop_assert_eq!(text(&kth.0), text(&up.0.narrow(dim, k - 1, 1).unwrap()));
    }

    #[test]
    fn scans_do_what_loops_do((x, dim) in arrays()) {
        if matches!(x.dtype(), DType::F8E4M3 | DType::F8E5M2) {
            prop_assert!(x.cumsum(dim).is_err() && x.cummax(dim).is_err());
            return Ok(());
        }
        let (values, indices) = x.cummax(dim).unwrap();
        for ((line, values), indices) in lines(&x, dim).iter().zip(lines(&values, dim)).zip(lines(&indices, dim)) {
            let mut best = 0;
            for i in 0..line.len() {
                let better = line[i].is_nan() || (!line[best].is_nan() && line[i] >= line[best]);
                best = if better { i } else { best };
                prop_assert_eq!(indices[i], best as f64);
                prop_assert_eq!(values[i].to_bits(), line[best].to_bits());
            }
        }
        let x = if x.dtype().is_float() { x.cast(DType::F64).unwrap() } else { x };
        for (line, sums) in lines(&x, dim).iter().zip(lines(&x.cumsum(dim).unwrap(), dim)) {
            let mut sum = 0.0;
            for (x, got) in line.iter().zip(sums) {
                sum += x;
                prop_assert!(got == sum || (got.is_nan() && sum.is_nan()));
            }
        }
    }
}

#[test]
fn ties_and_nan_go_where_torch_sends_them() {
    let x = row(&[NAN, 1.0, -0.0, 0.0, INF, -NAN, -INF, 1.0]);
    let (values, indices) = x.sort(0, Order::Ascending).unwrap();
    assert_eq!(text(&values), "[-inf, -0.0, 0.0, 1.0, 1.0, inf, NaN, NaN]");
    assert_eq!(wide(&indices), [6.0, 2.0, 3.0, 1.0, 7.0, 4.0, 0.0, 5.0]);
    let indices = x.argsort(-1, Order::Descending).unwrap();
    assert_eq!(wide(&indices), [0.0, 5.0, 4.0, 1.0, 7.0, 2.0, 3.0, 6.0]);
    let (values, indices) = row(&[1.0, 3.0, 3.0, 2.0, NAN, 5.0, NAN]).cummax(0).unwrap();
    assert_eq!(text(&values), "[1.0, 3.0, 3.0, 3.0, NaN, NaN, NaN]");
    assert_eq!(wide(&indices), [0.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]);
    let (_, indices) = row(&[1.0, 3.0, 1.0, 2.0, NAN, 5.0, NAN]).cummin(0).unwrap();
    assert_eq!(wide(&indices), [0.0, 0.0, 2.0, 2.0, 4.0, 4.0, 6.0]);
    let (_, indices) = row(&[NAN, 1.0, INF, NAN, 2.0]).topk(3, 0, Which::Largest).unwrap();
    assert_eq!(wide(&indices), [0.0, 3.0, 2.0]);
    let lse = |x: &[f64]| text(&row(x).logcumsumexp(0).unwrap());
    assert_eq!(lse(&[-INF, -INF, 1.0, INF, 2.0]), "[-inf, -inf, 1.0, inf, inf]");
    assert_eq!(lse(&[1.0, NAN, 2.0]), "[1.0, NaN, NaN]");
    assert_eq!(lse(&[INF, INF, -INF]), "[inf, inf, inf]");
    let median = |x: &[f64]| {
        let (value, at) = row(x).median(0, Keep::No).unwrap();
        (text(&value), wide(&at)[0])
    };
    assert_eq!(median(&[3.0, NAN, 1.0, 2.0]), ("[NaN]".into(), 1.0));
    assert_eq!(median(&[3.0, 4.0, 1.0, 2.0]), ("[2.0]".into(), 3.0));
    let flags = Array::from_slice(&[true, false].map(planaria_array::Bool::new), &[2]).unwrap();
    assert_eq!(wide(&flags.cummax(0).unwrap().1), [0.0, 0.0]);
    assert_eq!(wide(&flags.sort(0, Order::Ascending).unwrap().1), [1.0, 0.0]);
    assert_eq!(
        (wide(&flags.cumsum(0).unwrap()), flags.cumsum(0).unwrap().dtype()),
        (vec![1.0; 2], DType::I64)
    );
}

#[test]
fn medians_run_along_any_dim() {
    let x = Array::from_slice(&[5.0f32, 1.0, 9.0, 4.0, f32::NAN, 8.0, 7.0, 2.0, 3.0], &[3, 3]).unwrap();
    let (values, indices) = x.median(0, Keep::No).unwrap();
    assert_eq!((text(&values), text(&indices)), ("[5.0, NaN, 8.0]".into(), "[0.0, 1.0, 1.0]".into()));
    let (values, indices) = x.median(1, Keep::Yes).unwrap();
    assert_eq!((text(&values), text(&indices)), ("[5.0, NaN, 3.0]".into(), "[0.0, 1.0, 2.0]".into()));
    assert_eq!(values.shape()[..], [3, 1]);
    // An odd number of elements: the median is the one in the middle.
    let numbers: Vec<f32> = (0..105).map(|i| (i * 37 % 105) as f32).collect();
    let x = Array::from_slice(&numbers, &[3, 5, 7]).unwrap();
    for (dim, n) in [(0, 3), (1, 5), (2, 7)] {
        let (values, indices) = x.median(dim, Keep::No).unwrap();
        let (expected, places) = x.kthvalue(n / 2 + 1, dim, Keep::No).unwrap();
        assert_eq!((text(&values), text(&indices)), (text(&expected), text(&places)), "dim {dim}");
    }
}

#[test]
fn unique_values_and_places() {
    let x = row(&[3.0, NAN, 1.0, 3.0, NAN, -0.0, 0.0]);
    let unique = x.unique().unwrap();
    assert_eq!(text(&unique.values), "[-0.0, 1.0, 3.0, NaN, NaN]");
    assert_eq!(wide(&unique.inverse), [2.0, 3.0, 1.0, 2.0, 4.0, 0.0, 0.0]);
    assert_eq!(wide(&unique.counts), [2.0, 1.0, 2.0, 1.0, 1.0]);
    let none = Array::zeros(&[0, 2], DType::I32).unwrap().unique().unwrap();
    assert_eq!((none.values.numel(), none.inverse.shape().to_vec()), (0, vec![0, 2]));
    let sorted = row(&[1.0, 2.0, 2.0, 3.0]);
    let values = Array::from_slice(&[2.0, 0.0, 4.0, 2.5], &[2, 2]).unwrap();
    assert_eq!(wide(&sorted.searchsorted(&values, Side::Left).unwrap()), [1.0, 0.0, 4.0, 3.0]);
    assert_eq!(wide(&ops::bucketize(&values, &sorted, Side::Right).unwrap()), [3.0, 0.0, 4.0, 3.0]);
    let rows = Array::from_slice(&[1.0, 3.0, 5.0, 2.0, 4.0, 6.0], &[2, 3]).unwrap();
    assert_eq!(wide(&rows.searchsorted(&values, Side::Left).unwrap()), [1.0, 0.0, 1.0, 1.0]);
    assert!(rows.searchsorted(&row(&[1.0]), Side::Left).is_err());
}

#[test]
fn long_rows_sort_and_scan_alike_on_any_number_of_threads() {
    let n = 200_000;
    let ints: Vec<i64> = (0..n as i64).map(|i| i * 7_919 % 65_537 - 30_000).collect();
    let x = Array::from_slice(&ints, &[n]).unwrap();
    let mut want: Vec<usize> = (0..n).collect();
    want.sort_by_key(|&i| ints[i]);
    let want: Vec<i64> = want.into_iter().map(|i| i as i64).collect();
    for dtype in [DType::I64, DType::I32, DType::F32, DType::F64] {
        let at = x.cast(dtype).unwrap().argsort(0, Order::Ascending).unwrap();
        assert!(at.to_vec::<i64>().unwrap() == want, "{dtype}");
    }
    let floats = x.cast(DType::F32).unwrap().reshape(&[n]).unwrap();
    let run = |threads: usize| {
        Threads::new(threads).unwrap().run(|| {
            let scans =
                [floats.cumsum(0), ops::cumsum_grad(&floats, 0), floats.logcumsumexp(0), x.cumprod(0)];
            let mut all: Vec<String> = scans.into_iter().map(|a| text(&a.unwrap())).collect();
            all.push(text(&floats.cummin(0).unwrap().1));
            all
        })
    };
    let one = run(1);
    assert!(one == run(2) && one == run(3));
    let sums = floats.cumsum(0).unwrap().to_vec::<f32>().unwrap();
    let mut sum = 0i64;
    for (got, x) in sums.iter().zip(&ints) {
        sum += x;
        assert_eq!(*got, sum as f32);
    }
    let back = ops::cumsum_grad(&floats, 0).unwrap().to_vec::<f32>().unwrap();
    assert_eq!((back[0], back[n - 1]), (sum as f32, ints[n - 1] as f32));
}

#[test]
fn nothing_and_nonsense() {
    let scalar = Array::scalar(3.0, DType::F32).unwrap();
    assert_eq!(wide(&scalar.cumsum(0).unwrap()), [3.0]);
    assert_eq!(wide(&scalar.sort(-1, Order::Ascending).unwrap().1), [0.0]);
    assert_eq!(scalar.topk(1, 0, Which::Largest).unwrap().0.ndim(), 0);
    let none = Array::zeros(&[3, 0], DType::F32).unwrap();
    assert_eq!(none.sort(1, Order::Ascending).unwrap().0.shape()[..], [3, 0]);
    assert_eq!(none.cummax(0).unwrap().1.shape()[..], [3, 0]);
    assert_eq!(none.median(0, Keep::No).unwrap().0.shape()[..], [0]);
    assert_eq!(none.topk(2, 0, Which::Smallest).unwrap().0.shape()[..], [2, 0]);
    assert!(matches!(none.median(1, Keep::No), Err(Error::EmptyReduction { dim: 1, .. })));
    assert!(none.kthvalue(1, 1, Keep::No).is_err());
    let x = row(&[1.0, 2.0]);
    assert!(x.topk(3, 0, Which::Largest).is_err() && x.kthvalue(0, 0, Keep::No).is_err());
    assert!(x.kthvalue(3, 0, Keep::No).is_err() && x.sort(1, Order::Ascending).is_err());
    assert!(x.cumsum(-2).is_err() && x.logcumsumexp(7).is_err());
    assert!(Array::zeros(&[2], DType::I32).unwrap().logcumsumexp(0).is_err());
    let meta = Array::meta(&[4, 3], DType::U8).unwrap();
    assert_eq!(meta.cumsum(0).unwrap().dtype(), DType::I64);
    assert_eq!(meta.topk(2, 0, Which::Largest).unwrap().0.shape()[..], [2, 3]);
    assert_eq!(meta.median(0, Keep::No).unwrap().1.shape()[..], [3]);
}
