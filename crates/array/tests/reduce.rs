//! Reductions against plain f64 loops, and the answers PyTorch gives for ties, NaN and nothing.

use planaria_array::ops::Keep;
use planaria_array::{Array, Bool, DType, Error, Threads};
use proptest::prelude::*;

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn array(values: &[f64], shape: &[usize]) -> Array {
    Array::from_slice(values, shape).unwrap()
}

fn wide(a: &Array) -> Vec<f64> {
    a.cast(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

fn value(a: Array) -> f64 {
    a.item().unwrap().as_f64()
}

/// Groups of the elements that fall together when dims are reduced, in the order of the result.
fn groups(x: &Array, dims: &[i64]) -> Vec<Vec<f64>> {
    let (shape, values) = (x.shape().to_vec(), wide(x));
    let gone =
        |d: usize| dims.is_empty() || dims.iter().any(|&r| r.rem_euclid(shape.len() as i64) as usize == d);
    let kept: usize = (0..shape.len()).filter(|&d| !gone(d)).map(|d| shape[d]).product();
    let mut out = vec![Vec::new(); kept];
    for (i, v) in values.into_iter().enumerate() {
        let (mut rest, mut at, mut scale) = (i, 0, 1);
        for d in (0..shape.len()).rev() {
            if !gone(d) {
                at += rest % shape[d] * scale;
                scale *= shape[d];
            }
            rest /= shape[d];
        }
        out[at].push(v);
    }
    out
}

/// A small array seen through a permuted, cut, stepped or repeated view.
fn views() -> impl Strategy<Value = (Array, Vec<i64>)> {
    let dtypes = prop::sample::select(vec![
        DType::F32,
        DType::F64,
        DType::BF16,
        DType::F16,
        DType::I64,
        DType::I32,
        DType::U8,
        DType::I16,
        DType::U32,
        DType::Bool,
    ]);
    let shape = prop::collection::vec(prop_oneof![1usize..5, 17usize..40], 1..4);
    (shape, dtypes, any::<u64>(), 0usize..5, any::<u8>()).prop_map(|(shape, dtype, seed, kind, mask)| {
        let n: usize = shape.iter().product();
        let mut state = seed | 1;
        let values: Vec<f64> = (0..n)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 40) % 9) as f64 - if matches!(dtype, DType::U8 | DType::U32) { 0.0 } else { 4.0 }
            })
            .collect();
        let x = array(&values, &shape).cast(dtype).unwrap();
        let last = shape.len() as i64 - 1;
        let x = match kind {
            0 => x,
            1 => x.transpose(0, last).unwrap(),
            2 => x.slice(last, Some(1), None, 2).unwrap(),
            3 => x.slice(0, Some(1), None, 1).unwrap(),
            _ => {
                let mut wider = shape.clone();
                wider.insert(0, 3);
                x.broadcast_to(&wider).unwrap()
            }
        };
        let dims = (0..x.ndim() as i64).filter(|d| mask >> d & 1 == 1).collect();
        (x, dims)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn any_view_and_dims_give_what_loops_give((x, dims) in views()) {
        let groups = groups(&x, &dims);
        let fold = |f: &dyn Fn(&[f64]) -> f64| groups.iter().map(|g| f(g)).collect::<Vec<_>>();
        // The values are small integers: all of these are exact in every dtype.
        prop_assert_eq!(wide(&x.sum(&dims, Keep::Yes).unwrap().cast(DType::F64).unwrap()).len(), groups.len());
        if x.dtype() == DType::F32 || x.dtype() == DType::F64 || !x.dtype().is_float() {
            prop_assert_eq!(wide(&x.sum(&dims, Keep::No).unwrap()), fold(&|g| g.iter().sum()));
        }
        let count = |g: &[f64]| g.iter().filter(|x| **x != 0.0).count() as f64;
        prop_assert_eq!(wide(&x.count_nonzero(&dims, Keep::No).unwrap()), fold(&count));
        prop_assert_eq!(wide(&x.any(&dims, Keep::No).unwrap()), fold(&|g| f64::from(u8::from(count(g) > 0.0))));
        let all = |g: &[f64]| f64::from(u8::from(count(g) == g.len() as f64));
        prop_assert_eq!(wide(&x.all(&dims, Keep::No).unwrap()), fold(&all));
        if x.numel() > 0 {
            let most = |g: &[f64]| g.iter().copied().fold(-INF, f64::max);
            let least = |g: &[f64]| g.iter().copied().fold(INF, f64::min);
            prop_assert_eq!(wide(&x.amax(&dims, Keep::No).unwrap()), fold(&most));
            prop_assert_eq!(wide(&x.amin(&dims, Keep::No).unwrap()), fold(&least));
            if dims.len() == 1 {
                let at = x.argmax(Some(dims[0]), Keep::No).unwrap();
                let first = |g: &[f64]| g.iter().position(|v| *v == most(g)).unwrap() as f64;
                prop_assert_eq!(wide(&at), fold(&first));
                let (values, again) = x.max(dims[0], Keep::Yes).unwrap();
                prop_assert_eq!((wide(&values), wide(&again)), (fold(&most), fold(&first)));
            }
            if dims.is_empty() {
                let all = &groups[0];
                let first = all.iter().position(|v| *v == least(all)).unwrap() as f64;
                prop_assert_eq!(value(x.argmin(None, Keep::No).unwrap()), first);
            }
        }
    }

    #[test]
    fn floats_stay_close_to_f64((x, dims) in views()) {
        let x = x.cast(DType::F32).unwrap();
        let groups = groups(&x, &dims);
        let close = |got: Array, f: &dyn Fn(&[f64]) -> f64| {
            for (got, g) in wide(&got).into_iter().zip(&groups) {
                let want = f(g);
                assert!(
                    (got - want).abs() <= 2e-6 * want.abs().max(1.0) || got == want || (got.is_nan() && want.is_nan()),
                    "{got} is not {want}"
                );
            }
        };
        let len = |g: &[f64]| g.len() as f64;
        let mean = |g: &[f64]| g.iter().sum::<f64>() / len(g);
        let squares = |g: &[f64]| g.iter().map(|x| (x - mean(g)).powi(2)).sum::<f64>();
        close(x.mean(&dims, Keep::No).unwrap(), &mean);
        close(x.var(&dims, 1.0, Keep::No).unwrap(), &|g| squares(g) / (len(g) - 1.0).max(0.0));
        close(x.std(&dims, 0.0, Keep::No).unwrap(), &|g| (squares(g) / len(g)).sqrt());
        close(x.logsumexp(&dims, Keep::No).unwrap(), &|g| g.iter().map(|x| x.exp()).sum::<f64>().ln());
        close(x.sum_squares(&dims, Keep::No).unwrap(), &|g| g.iter().map(|x| x * x).sum());
        for p in [0.5, 1.0, 2.0, 3.0] {
            close(x.norm(p, &dims, Keep::No).unwrap(), &|g| {
                g.iter().map(|x| x.abs().powf(p)).sum::<f64>().powf(1.0 / p)
            });
        }
        close(x.norm(0.0, &dims, Keep::No).unwrap(), &|g| g.iter().filter(|x| **x != 0.0).count() as f64);
        let root = x.slice(0, None, Some(3), 1).unwrap();
        let want: f64 = wide(&root).iter().take(30).product();
        let few = root.reshape(&[root.numel()]).unwrap().narrow(0, 0, root.numel().min(30)).unwrap();
        prop_assert!((value(few.prod(&[], Keep::No).unwrap()) - want).abs() <= 1e-5 * want.abs());
    }
}

#[test]
fn rounding_errors_do_not_grow_with_the_count() {
    let n = 1 << 24;
    let data: Vec<f32> = (0..n).map(|i| 1.0 + (i % 1000) as f32 * 1e-7).collect();
    let want: f64 = data.iter().map(|&x| f64::from(x)).sum();
    let x = Array::from_slice(&data, &[n]).unwrap();
    for shape in [[n, 1], [1, n], [n / 4, 4], [n / 4096, 4096]] {
        let x = x.reshape(&shape).unwrap();
        for got in [value(x.sum(&[], Keep::No).unwrap()), wide(&x.sum(&[0], Keep::No).unwrap()).iter().sum()]
        {
            assert!((got - want).abs() / want < 2e-7, "{shape:?}: {got} is not {want}");
        }
    }
    // A plain loop would stop at 2^24 here.
    let ones = Array::full(&[1 << 25], 1.0, DType::F32).unwrap();
    assert_eq!(value(ones.sum(&[], Keep::No).unwrap()), f64::from(1 << 25));
}

#[test]
fn variance_survives_a_large_mean() {
    let data: Vec<f32> = (0..10_000).map(|i| 1e4 + (i % 7) as f32 * 1e-2).collect();
    let mean = data.iter().map(|&x| f64::from(x)).sum::<f64>() / 1e4;
    let want = data.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / 9999.0;
    let x = Array::from_slice(&data, &[10_000]).unwrap();
    assert!((value(x.var(&[], 1.0, Keep::No).unwrap()) / want - 1.0).abs() < 1e-6);
    assert!(
        (value(x.reshape(&[100, 100]).unwrap().var(&[0, 1], 1.0, Keep::No).unwrap()) / want - 1.0).abs()
            < 1e-6
    );
}

#[test]
fn results_have_the_same_bits_for_any_number_of_threads() {
    let n = 1 << 19;
    let data: Vec<f32> = (0..n).map(|i| ((i * 7919 % 10_007) as f32).sin()).collect();
    let x = Array::from_slice(&data, &[n]).unwrap();
    let half = x.cast(DType::BF16).unwrap();
    let run = |threads: usize| {
        let all = |x: &Array| -> Vec<Array> {
            let mut out = Vec::new();
            for shape in [[1, n], [n, 1], [1024, n / 1024], [n / 8, 8], [3 << 9, 341]] {
                let x = x.reshape(&[n]).unwrap().narrow(0, 0, shape[0] * shape[1]).unwrap();
                let x = x.reshape(&shape).unwrap();
                for dims in [&[][..], &[0], &[1]] {
                    out.push(x.sum(dims, Keep::No).unwrap());
                    out.push(x.logsumexp(dims, Keep::No).unwrap());
                    out.push(x.var(dims, 1.0, Keep::No).unwrap());
                    out.push(x.norm(2.0, dims, Keep::No).unwrap());
                }
                out.push(x.argmax(Some(0), Keep::No).unwrap());
                out.push(x.argmax(None, Keep::No).unwrap());
                out.push(x.cumsum(0).unwrap());
                out.push(x.cumsum(1).unwrap());
            }
            out
        };
        let results = Threads::new(threads).unwrap().run(|| [all(&x), all(&half)].concat());
        results.iter().map(|a| wide(a).into_iter().map(f64::to_bits).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(3));
}

#[test]
fn nan_and_ties_go_where_torch_sends_them() {
    let x = array(&[1.0, NAN, 3.0, NAN, 2.0], &[5]);
    assert_eq!(value(x.argmax(None, Keep::No).unwrap()), 1.0);
    assert_eq!(value(x.argmin(Some(0), Keep::No).unwrap()), 1.0);
    assert!(value(x.amax(&[], Keep::No).unwrap()).is_nan());
    assert!(value(x.amin(&[0], Keep::No).unwrap()).is_nan());
    assert!(value(x.min(0, Keep::No).unwrap().0).is_nan());
    let column = x.reshape(&[5, 1]).unwrap().broadcast_to(&[5, 300]).unwrap().copy().unwrap();
    assert_eq!(wide(&column.argmax(Some(0), Keep::No).unwrap()), vec![1.0; 300]);
    assert!(wide(&column.amax(&[0], Keep::No).unwrap()).iter().all(|v| v.is_nan()));
    let ties = Array::from_slice(&[1i32, 3, 3, 1], &[4]).unwrap();
    assert_eq!(value(ties.argmax(None, Keep::No).unwrap()), 1.0);
    assert_eq!(value(ties.argmin(None, Keep::No).unwrap()), 0.0);
    assert!(x.any(&[], Keep::No).unwrap().item().unwrap().as_bool());
    assert_eq!(value(array(&[-0.0, NAN], &[2]).count_nonzero(&[], Keep::No).unwrap()), 1.0);
    for p in [1.0, 2.0, 3.0, INF, -INF] {
        assert!(value(array(&[1.0, NAN], &[2]).norm(p, &[], Keep::No).unwrap()).is_nan());
    }
    let x = array(&[3.0, 0.0, -4.0], &[3]);
    let norms = [0.0, 1.0, 2.0, INF, -INF, -1.0].map(|p| value(x.norm(p, &[], Keep::No).unwrap()));
    assert_eq!(norms, [2.0, 7.0, 5.0, 4.0, 0.0, 0.0]);
    let lse = |v: &[f64]| value(array(v, &[v.len()]).logsumexp(&[], Keep::No).unwrap());
    assert_eq!((lse(&[-INF, -INF]), lse(&[INF, 1.0]), lse(&[INF, -INF])), (-INF, INF, INF));
    assert!(lse(&[NAN, 1.0]).is_nan());
    let x = array(&[1.0, 2.0, 4.0], &[3]);
    assert_eq!(value(x.var(&[], 5.0, Keep::No).unwrap()), INF);
    assert!(value(array(&[1.0], &[1]).var(&[], 1.0, Keep::No).unwrap()).is_nan());
}

#[test]
fn nothing_has_a_sum_but_no_largest() {
    let x = array(&[], &[0, 3]);
    assert_eq!(wide(&x.sum(&[0], Keep::No).unwrap()), [0.0; 3]);
    assert_eq!(wide(&x.prod(&[0], Keep::Yes).unwrap()), [1.0; 3]);
    assert_eq!(wide(&x.logsumexp(&[0], Keep::No).unwrap()), [-INF; 3]);
    assert_eq!(wide(&x.norm(2.0, &[0], Keep::No).unwrap()), [0.0; 3]);
    assert!(wide(&x.mean(&[0], Keep::No).unwrap()).iter().all(|v| v.is_nan()));
    assert!(value(x.var(&[], 1.0, Keep::No).unwrap()).is_nan());
    assert_eq!(x.any(&[], Keep::No).unwrap().to_vec::<Bool>().unwrap(), [Bool::new(false)]);
    assert_eq!(x.all(&[0], Keep::No).unwrap().to_vec::<Bool>().unwrap(), [Bool::new(true); 3]);
    assert_eq!(x.sum(&[1], Keep::No).unwrap().shape()[..], [0]);
    assert_eq!(x.amax(&[1], Keep::No).unwrap().shape()[..], [0]);
    assert_eq!(x.max(1, Keep::Yes).unwrap().1.shape()[..], [0, 1]);
    let refused = [
        x.amax(&[0], Keep::No),
        x.amin(&[], Keep::No),
        x.argmax(Some(0), Keep::No),
        x.argmin(None, Keep::No),
        x.max(0, Keep::No).map(|m| m.0),
        x.norm(INF, &[0], Keep::No),
        x.norm(-1.0, &[], Keep::No),
    ];
    for result in refused {
        assert!(matches!(result, Err(Error::EmptyReduction { dim: 0, .. })), "{result:?}");
    }
}

#[test]
fn bad_dims_and_dtypes_are_refused() {
    let x = Array::zeros(&[2, 3], DType::F32).unwrap();
    assert!(matches!(x.sum(&[2], Keep::No), Err(Error::DimOutOfRange { dim: 2, ndim: 2, .. })));
    assert!(matches!(x.amax(&[i64::MIN], Keep::No), Err(Error::DimOutOfRange { .. })));
    assert!(matches!(x.mean(&[0, -2], Keep::No), Err(Error::Argument { .. })));
    assert!(x.norm(NAN, &[], Keep::No).is_err());
    let ints = Array::zeros(&[2, 3], DType::I32).unwrap();
    for result in [ints.mean(&[], Keep::No), ints.var(&[], 1.0, Keep::No), ints.logsumexp(&[], Keep::No)] {
        assert!(matches!(result, Err(Error::DType { found: DType::I32, .. })), "{result:?}");
    }
    let byte_floats = Array::zeros(&[2], DType::F8E4M3).unwrap();
    assert!(byte_floats.sum(&[], Keep::No).is_err() && byte_floats.amax(&[], Keep::No).is_err());
    assert!(!byte_floats.any(&[], Keep::No).unwrap().item().unwrap().as_bool());
    let scalar = Array::scalar(3.0, DType::F32).unwrap();
    assert_eq!(value(scalar.sum(&[-1], Keep::Yes).unwrap()), 3.0);
    assert!(scalar.sum(&[1], Keep::No).is_err());
}

#[test]
fn dtypes_and_shapes_are_those_of_torch() {
    let x = Array::full(&[2, 3], 200, DType::U8).unwrap();
    assert_eq!(
        (value(x.sum(&[], Keep::No).unwrap()), x.sum(&[], Keep::No).unwrap().dtype()),
        (1200.0, DType::I64)
    );
    assert_eq!(x.prod(&[0], Keep::No).unwrap().to_vec::<i64>().unwrap(), [40_000; 3]);
    let max = Array::full(&[2], u32::MAX as i64, DType::U32).unwrap();
    assert_eq!(value(max.sum(&[], Keep::No).unwrap()), 2.0 * f64::from(u32::MAX));
    assert_eq!(max.amax(&[], Keep::No).unwrap().dtype(), DType::U32);
    let flags = Array::full(&[4], true, DType::Bool).unwrap();
    assert!(flags.amin(&[], Keep::No).unwrap().item().unwrap().as_bool());
    assert_eq!(value(flags.sum(&[], Keep::No).unwrap()), 4.0);
    assert_eq!(x.sum(&[-1], Keep::Yes).unwrap().shape()[..], [2, 1]);
    assert_eq!(x.sum(&[1, 0], Keep::Yes).unwrap().shape()[..], [1, 1]);
    let meta = Array::meta(&[2, 3, 4], DType::BF16).unwrap();
    assert_eq!(meta.mean(&[1], Keep::No).unwrap().shape()[..], [2, 4]);
    assert_eq!(meta.mean(&[1], Keep::No).unwrap().dtype(), DType::BF16);
    assert_eq!(meta.argmax(Some(-1), Keep::No).unwrap().dtype(), DType::I64);
    assert_eq!(meta.max(-1, Keep::No).unwrap().0.shape()[..], [2, 3]);
    // Half precision overflows past 65504; its sums do not on the way.
    let half = Array::full(&[3000], 60.0, DType::F16).unwrap();
    assert_eq!(value(half.mean(&[], Keep::No).unwrap()), 60.0);
}
