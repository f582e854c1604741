//! Softmax and log-softmax.

use super::support::{Rng, check_grads, close, rounds_once, same_on_all_threads, swapped, values};
use planaria_array::{Array, DType, ops};

/// The definition, in f64.
fn reference(x: &Array, dim: usize) -> Vec<f64> {
    let (shape, v) = (x.shape(), values(x));
    let inner: usize = shape[dim + 1..].iter().product();
    let mut out = v.clone();
    for i in 0..v.len() {
        let base = i - (i / inner % shape[dim]) * inner;
        let row: Vec<f64> = (0..shape[dim]).map(|k| v[base + k * inner]).collect();
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        out[i] = (v[i] - top).exp() / row.iter().map(|r| (r - top).exp()).sum::<f64>();
    }
    out
}

#[test]
fn softmax_equals_its_definition_along_every_dim() {
    let mut rng = Rng::new(1);
    for shape in [&[5][..], &[3, 7], &[2, 300], &[4, 3, 5], &[2, 3, 2, 300], &[3, 1, 129], &[70, 65]] {
        let x = rng.array(shape);
        for dim in 0..shape.len() {
            let want = reference(&x, dim);
            let logs: Vec<f64> = want.iter().map(|p| p.ln()).collect();
            for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-6)] {
                let x = x.cast(dtype).unwrap();
                close(&values(&x.softmax(dim as i64).unwrap()), &want, tolerance);
                close(&values(&x.log_softmax(dim as i64 - shape.len() as i64).unwrap()), &logs, tolerance);
                close(&values(&swapped(&x).softmax(dim as i64).unwrap()), &want, tolerance);
            }
        }
    }
}

#[test]
fn large_values_do_not_overflow_and_empty_rows_are_nan() {
    let x = Array::from_slice(&[1000f32, 1000.0, -1000.0, 0.0], &[2, 2]).unwrap();
    assert_eq!(x.softmax(1).unwrap().to_vec::<f32>().unwrap(), [0.5, 0.5, 0.0, 1.0]);
    assert_eq!(x.log_softmax(1).unwrap().to_vec::<f32>().unwrap()[2], -1000.0);
    let inf = f32::INFINITY;
    let x = Array::from_slice(&[-inf, -inf, inf, 1.0, -inf, 3.0], &[3, 2]).unwrap();
    for y in [
        x.softmax(1).unwrap(),
        swapped(&x).transpose(0, 1).unwrap().softmax(0).unwrap().transpose(0, 1).unwrap(),
    ] {
        let y = y.to_vec::<f32>().unwrap();
        assert!(y[..4].iter().all(|v| v.is_nan()));
        assert_eq!(y[4..], [0.0, 1.0]);
    }
    assert!(x.log_softmax(1).unwrap().to_vec::<f32>().unwrap()[0].is_nan());
}

#[test]
fn gradients_match_finite_differences() {
    let mut rng = Rng::new(2);
    for (shape, dim) in [(&[2, 5][..], 1), (&[3, 4, 2], 1), (&[4], -1), (&[2, 3], 0)] {
        let x = [rng.array(shape)];
        check_grads(
            &x,
            |x| x[0].softmax(dim).unwrap(),
            |x, dy| vec![ops::softmax_grad(dy, &x[0].softmax(dim).unwrap(), dim).unwrap()],
        );
        check_grads(
            &x,
            |x| x[0].log_softmax(dim).unwrap(),
            |x, dy| vec![ops::log_softmax_grad(dy, &x[0].log_softmax(dim).unwrap(), dim).unwrap()],
        );
    }
}

#[test]
fn narrow_types_round_once_and_threads_change_nothing() {
    let mut rng = Rng::new(3);
    for (shape, dim) in [(&[400, 333][..], 1), (&[3, 50, 700], 1), (&[333, 400], 0)] {
        let (x, dy) = (rng.array(shape), rng.array(shape));
        let all = |x: &[Array]| {
            let (y, log) = (x[0].softmax(dim).unwrap(), x[0].log_softmax(dim).unwrap());
            let dx = ops::softmax_grad(&x[1], &x[0], dim).unwrap();
            let dlog = ops::log_softmax_grad(&x[1], &x[0], dim).unwrap();
            vec![y, log, dx, dlog]
        };
        rounds_once(&[x.clone(), dy.clone()], all);
        let narrow = [x.cast(DType::F32).unwrap(), dy.cast(DType::F32).unwrap()];
        same_on_all_threads(|| all(&narrow));
    }
}

#[test]
fn scalars_empty_and_meta_arrays_work() {
    let one = Array::scalar(3.0, DType::F32).unwrap().softmax(-1).unwrap();
    assert_eq!((one.ndim(), one.to_vec::<f32>().unwrap()), (0, vec![1.0]));
    for shape in [[0, 3], [3, 0]] {
        for dim in [0, 1] {
            let x = Array::zeros(&shape, DType::F32).unwrap();
            let y = x.softmax(dim).unwrap();
            assert_eq!(y.shape()[..], shape);
            assert_eq!(ops::softmax_grad(&y, &y, dim).unwrap().numel(), 0);
        }
    }
    let meta = Array::meta(&[2, 3], DType::BF16).unwrap();
    let y = meta.log_softmax(0).unwrap();
    assert!(y.is_meta() && y.shape() == meta.shape() && y.dtype() == DType::BF16);
    assert!(ops::softmax_grad(&y, &meta, 1).unwrap().is_meta());
}
