//! Matrix products at the array level: shapes, broadcasting and refusals. Kernels are tested beside their code.

use planaria_array::ops::{linear, matmul};
use planaria_array::{Array, DType, Error};

fn iota(shape: &[usize]) -> Array {
    let n: usize = shape.iter().product();
    Array::from_slice(&(0..n).map(|i| (i % 13) as f64 - 6.0).collect::<Vec<_>>(), shape).unwrap()
}

/// Element by element, on broadcast operands of at least two dims.
fn reference(a: &Array, b: &Array, batch: &[usize]) -> Vec<f64> {
    let (m, k, n) = (a.shape()[a.ndim() - 2], a.shape()[a.ndim() - 1], b.shape()[b.ndim() - 1]);
    let wide = |x: &Array, tail: [usize; 2]| {
        x.broadcast_to(&[batch, &tail[..]].concat()).unwrap().to_vec::<f64>().unwrap()
    };
    let (a, b) = (wide(a, [m, k]), wide(b, [k, n]));
    let mut out = Vec::new();
    for t in 0..batch.iter().product() {
        for i in 0..m {
            for j in 0..n {
                out.push((0..k).map(|p| a[(t * m + i) * k + p] * b[(t * k + p) * n + j]).sum());
            }
        }
    }
    out
}

#[test]
fn batches_broadcast_and_strides_do_not_matter() {
    let cases: [(&[usize], &[usize], &[usize]); 6] = [
        (&[3, 4], &[4, 5], &[]),
        (&[2, 3, 4], &[4, 5], &[2]),
        (&[2, 1, 3, 4], &[6, 4, 5], &[2, 6]),
        (&[3, 4], &[7, 4, 2], &[7]),
        (&[0, 3, 4], &[4, 5], &[0]),
        (&[2, 3, 0], &[2, 0, 5], &[2]),
    ];
    for (sa, sb, batch) in cases {
        let (a, b) = (iota(sa), iota(sb));
        let want = reference(&a, &b, batch);
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
            let (x, y) = (a.cast(dtype).unwrap(), b.cast(dtype).unwrap());
            // Transposed in memory, the same in value.
            let y = y.transpose(-1, -2).unwrap().copy().unwrap().transpose(-1, -2).unwrap();
            let got = matmul(&x, &y).unwrap();
            assert_eq!(got.shape().dims(), [batch, &[sa[sa.len() - 2], sb[sb.len() - 1]]].concat());
            assert_eq!(got.cast(DType::F64).unwrap().to_vec::<f64>().unwrap(), want, "{sa:?} {sb:?} {dtype}");
        }
    }
}

#[test]
fn a_batch_of_single_rows_steps_by_the_batch() {
    // The stride of a dim of size 1 means nothing and must not be taken for the step between rows.
    let a = iota(&[3]).as_strided(&[3, 1, 1], &[1, 3, 3], 0).unwrap();
    let b = iota(&[1, 1, 1]);
    let want: Vec<f64> = [-6.0, -5.0, -4.0].map(|v| v * -6.0).to_vec();
    assert_eq!(matmul(&a, &b).unwrap().to_vec::<f64>().unwrap(), want);
}

#[test]
fn vectors_lose_their_dim() {
    let (v, m) = (iota(&[4]), iota(&[4, 3]));
    assert_eq!(matmul(&v, &v).unwrap().ndim(), 0);
    assert_eq!(matmul(&v, &m).unwrap().shape().dims(), [3]);
    assert_eq!(matmul(&m.transpose(0, 1).unwrap(), &v).unwrap().shape().dims(), [3]);
    assert_eq!(matmul(&iota(&[2, 5, 4]), &v).unwrap().shape().dims(), [2, 5]);
    assert_eq!(matmul(&v.to_meta(), &m.to_meta()).unwrap().shape().dims(), [3]);
}

#[test]
fn linear_adds_the_bias_once() {
    let (x, w, b) = (iota(&[2, 3, 4]), iota(&[5, 4]), iota(&[5]));
    let want = matmul(&x, &w.transpose(0, 1).unwrap()).unwrap().add(&b).unwrap();
    assert_eq!(linear(&x, &w, Some(&b)).unwrap().to_vec::<f64>().unwrap(), want.to_vec::<f64>().unwrap());
    assert!(linear(&x, &w, Some(&iota(&[4]))).is_err());
}

#[test]
fn shapes_that_do_not_fit_are_refused_with_their_values() {
    let e = matmul(&iota(&[2, 3]), &iota(&[4, 5])).unwrap_err();
    assert!(e.to_string().contains("[2,3]") && e.to_string().contains("[4,5]"), "{e}");
    assert!(matmul(&iota(&[2, 3, 4]), &iota(&[3, 4, 5])).is_err());
    assert!(matmul(&Array::scalar(1.0, DType::F64).unwrap(), &iota(&[1])).is_err());
    assert!(matches!(
        matmul(&iota(&[2, 2]), &Array::zeros(&[2, 2], DType::F32).unwrap()),
        Err(Error::DTypeMismatch { .. })
    ));
    let ints = Array::zeros(&[2, 2], DType::I32).unwrap();
    assert!(matches!(matmul(&ints, &ints), Err(Error::DType { .. })));
}
