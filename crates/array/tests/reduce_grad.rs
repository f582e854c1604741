//! Gradients of reductions, scans and sorts against central differences, and at the places where those fail.

use planaria_array::ops::{self, Keep, Order, Which};
use planaria_array::{Array, DType, Error, Result};

const INF: f64 = f64::INFINITY;

fn array(values: &[f64], shape: &[usize]) -> Array {
    Array::from_slice(values, shape).unwrap()
}

fn wide(a: &Array) -> Vec<f64> {
    a.cast(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

/// Distinct values without zeros, in a mixed order.
fn sample(shape: &[usize]) -> Array {
    let n: usize = shape.iter().product();
    array(&(0..n).map(|i| ((i * 37 + 11) % 101) as f64 * 0.07 - 3.3).collect::<Vec<_>>(), shape)
}

/// Checks `gradient(dy, x)` against differences of Σ w y, with weights w = dy.
fn check(
    name: &str,
    x: &Array,
    forward: impl Fn(&Array) -> Result<Array>,
    gradient: impl Fn(&Array, &Array) -> Result<Array>,
) {
    let y = forward(x).unwrap();
    let weights: Vec<f64> = (0..y.numel()).map(|i| 0.5 + (i % 5) as f64 * 0.3).collect();
    let dy = array(&weights, y.shape());
    let got = gradient(&dy, x).unwrap();
    assert_eq!(got.shape(), x.shape(), "{name}");
    let base = wide(x);
    for (i, got) in wide(&got).into_iter().enumerate() {
        let at = |step: f64| {
            let mut moved = base.clone();
            moved[i] += step;
            let y = forward(&array(&moved, x.shape())).unwrap();
            wide(&y).iter().zip(&weights).map(|(y, w)| y * w).sum::<f64>()
        };
        let want = (at(1e-5) - at(-1e-5)) / 2e-5;
        assert!((got - want).abs() < 1e-5 * want.abs().max(1.0), "{name}, element {i}: {got} is not {want}");
    }
    // A narrow dtype takes the same path through wider arithmetic.
    let narrow = |a: &Array| a.cast(DType::BF16).unwrap();
    if let Ok(rough) = gradient(&narrow(&dy), &narrow(x)) {
        assert_eq!((rough.dtype(), rough.shape()), (DType::BF16, x.shape()), "{name}");
    }
}

#[test]
fn reductions() {
    let shape = [3, 4, 5];
    let x = sample(&shape);
    let view = sample(&[5, 4, 3]).transpose(0, 2).unwrap();
    for dims in [&[][..], &[0], &[1], &[-1], &[0, 2], &[1, 2]] {
        for keep in [Keep::No, Keep::Yes] {
            let all = |name: &str,
                       f: &dyn Fn(&Array) -> Result<Array>,
                       g: &dyn Fn(&Array, &Array) -> Result<Array>| {
                check(name, &x, f, g);
                check(name, &view, f, g);
            };
            all("sum", &|x| x.sum(dims, keep), &|dy, x| ops::sum_grad(dy, x.shape(), dims));
            all("mean", &|x| x.mean(dims, keep), &|dy, x| ops::mean_grad(dy, x.shape(), dims));
            all("amax", &|x| x.amax(dims, keep), &|dy, x| ops::amax_grad(dy, x, &x.amax(dims, keep)?, dims));
            all("amin", &|x| x.amin(dims, keep), &|dy, x| ops::amin_grad(dy, x, &x.amin(dims, keep)?, dims));
            all("lse", &|x| x.logsumexp(dims, keep), &|dy, x| {
                ops::logsumexp_grad(dy, x, &x.logsumexp(dims, keep)?, dims)
            });
            all("var", &|x| x.var(dims, 1.0, keep), &|dy, x| ops::var_grad(dy, x, dims, 1.0));
            all("std", &|x| x.std(dims, 0.0, keep), &|dy, x| {
                ops::std_grad(dy, x, &x.std(dims, 0.0, keep)?, dims, 0.0)
            });
            for p in [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -1.0, INF, -INF] {
                all("norm", &|x| x.norm(p, dims, keep), &|dy, x| {
                    ops::norm_grad(dy, x, &x.norm(p, dims, keep)?, p, dims)
                });
            }
        }
    }
    let few = sample(&[2, 3, 2]);
    for dims in [&[][..], &[0], &[1], &[0, 2]] {
        check("prod", &few, |x| x.prod(dims, Keep::No), |dy, x| ops::prod_grad(dy, x, dims));
    }
    for dim in [0, 1, -1] {
        check(
            "max",
            &x,
            |x| Ok(x.max(dim, Keep::No)?.0),
            |dy, x| ops::max_grad(dy, &x.max(dim, Keep::No)?.1, x.shape(), dim),
        );
        check(
            "min",
            &view,
            |x| Ok(x.min(dim, Keep::Yes)?.0),
            |dy, x| ops::min_grad(dy, &x.min(dim, Keep::Yes)?.1, x.shape(), dim),
        );
    }
}

#[test]
fn scans_and_sorts() {
    let x = sample(&[3, 4, 2]);
    for dim in [0, 1, -1] {
        check("cumsum", &x, |x| x.cumsum(dim), |dy, _| ops::cumsum_grad(dy, dim));
        check("cumprod", &x, |x| x.cumprod(dim), |dy, x| ops::cumprod_grad(dy, x, dim));
        check(
            "logcumsumexp",
            &x,
            |x| x.logcumsumexp(dim),
            |dy, x| ops::logcumsumexp_grad(dy, x, &x.logcumsumexp(dim)?, dim),
        );
        check("cummax", &x, |x| Ok(x.cummax(dim)?.0), |dy, x| ops::cummax_grad(dy, &x.cummax(dim)?.1, dim));
        check("cummin", &x, |x| Ok(x.cummin(dim)?.0), |dy, x| ops::cummax_grad(dy, &x.cummin(dim)?.1, dim));
        check(
            "sort",
            &x,
            |x| Ok(x.sort(dim, Order::Descending)?.0),
            |dy, x| ops::sort_grad(dy, &x.sort(dim, Order::Descending)?.1, dim),
        );
        check(
            "topk",
            &x,
            |x| Ok(x.topk(2, dim, Which::Largest)?.0),
            |dy, x| ops::topk_grad(dy, &x.topk(2, dim, Which::Largest)?.1, x.shape(), dim),
        );
        check(
            "kthvalue",
            &x,
            |x| Ok(x.kthvalue(2, dim, Keep::No)?.0),
            |dy, x| ops::min_grad(dy, &x.kthvalue(2, dim, Keep::No)?.1, x.shape(), dim),
        );
    }
}

#[test]
fn ties_share_and_zeros_are_safe() {
    let one = array(&[1.0], &[]);
    let x = array(&[1.0, 3.0, 3.0], &[3]);
    assert_eq!(wide(&ops::amax_grad(&one, &x, &array(&[3.0], &[]), &[]).unwrap()), [0.0, 0.5, 0.5]);
    let (_, at) = x.max(0, Keep::No).unwrap();
    assert_eq!(wide(&ops::max_grad(&one, &at, &[3], 0).unwrap()), [0.0, 1.0, 0.0]);
    let x = array(&[3.0, 0.0, -4.0, 4.0], &[4]);
    let norm_grad = |x: &Array, p: f64| {
        let y = x.norm(p, &[], Keep::No).unwrap();
        wide(&ops::norm_grad(&one, x, &y, p, &[]).unwrap())
    };
    assert_eq!(norm_grad(&x, INF), [0.0, 0.0, -0.5, 0.5]);
    assert_eq!(norm_grad(&x, 1.0), [1.0, 0.0, -1.0, 1.0]);
    assert_eq!(norm_grad(&x, -1.0), [0.0; 4]);
    for p in [0.0, 0.5, 1.0, 2.0, 3.0, INF, -INF] {
        assert_eq!(norm_grad(&array(&[0.0; 3], &[3]), p), [0.0; 3], "p = {p}");
    }
    for (x, want) in
        [([2.0, 3.0, 0.0], [0.0, 0.0, 6.0]), ([2.0, 0.0, 0.0], [0.0; 3]), ([0.0, 5.0, 7.0], [35.0, 0.0, 0.0])]
    {
        assert_eq!(wide(&ops::prod_grad(&one, &array(&x, &[3]), &[]).unwrap()), want);
    }
    let ones = array(&[1.0; 4], &[4]);
    let x = array(&[2.0, 0.0, 3.0, 5.0], &[4]);
    // y = [x0, x0 x1, x0 x1 x2, x0 x1 x2 x3]
    assert_eq!(wide(&ops::cumprod_grad(&ones, &x, 0).unwrap()), [1.0, 38.0, 0.0, 0.0]);
    let flat = array(&[1.0, 1.0], &[2]);
    let std = flat.std(&[], 1.0, Keep::No).unwrap();
    assert_eq!(wide(&ops::std_grad(&one, &flat, &std, &[], 1.0).unwrap()), [0.0, 0.0]);
    let low = array(&[-INF, 1.0], &[2]);
    let y = low.logcumsumexp(0).unwrap();
    assert_eq!(wide(&ops::logcumsumexp_grad(&array(&[1.0; 2], &[2]), &low, &y, 0).unwrap()), [0.0, 1.0]);
}

#[test]
fn gradients_of_another_shape_are_refused() {
    let x = sample(&[2, 3]);
    let dy = sample(&[4]);
    assert!(matches!(ops::expand_reduced(&dy, &[2, 3], &[0]), Err(Error::ShapeMismatch { .. })));
    assert!(ops::prod_grad(&dy, &x, &[1]).is_err());
    assert!(ops::amax_grad(&dy, &x, &dy, &[1]).is_err());
    assert!(ops::cumprod_grad(&dy, &x, 0).is_err());
    let at = Array::from_slice(&[0i64, 5], &[2]).unwrap();
    let refused = ops::max_grad(&sample(&[2]), &at, &[2, 3], 1);
    assert!(matches!(refused, Err(Error::IndexOutOfRange { index: 5, size: 3, .. })), "{refused:?}");
}
