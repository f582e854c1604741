//! Attention at the array level: strided operands, masks, defaults, meta arrays and refusals. Kernels are
//! tested beside their code.

use planaria_array::ops::{AttentionOptions, Span, attention, attention_grad, matmul};
use planaria_array::{Array, Bool, DType, Error};

fn noise(shape: &[usize], seed: usize) -> Array {
    let n: usize = shape.iter().product();
    let value = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f64 / 504.5 - 1.0;
    Array::from_slice(&(0..n).map(value).collect::<Vec<_>>(), shape).unwrap()
}

fn close(x: &Array, y: &Array) {
    assert_eq!(x.shape(), y.shape());
    for (a, b) in x.to_vec::<f64>().unwrap().iter().zip(y.to_vec::<f64>().unwrap()) {
        assert!((a - b).abs() < 1e-12, "{a} {b}");
    }
}

#[test]
fn default_scale_and_strided_operands() {
    // [batch, length, heads, dim] seen as [batch, heads, length, dim], as models hold them.
    let heads_first = |seed| noise(&[2, 9, 3, 4], seed).transpose(1, 2).unwrap();
    let (q, k, v) = (heads_first(1), heads_first(2), heads_first(3));
    let scores = matmul(&q, &k.transpose(2, 3).unwrap()).unwrap();
    let half = Array::from_slice(&[0.5f64], &[1]).unwrap();
    let scores = planaria_array::ops::binary(planaria_array::ops::Binary::Mul, &scores, &half).unwrap();
    let expected = matmul(&scores.softmax(-1).unwrap(), &v).unwrap();
    close(&attention(&q, &k, &v, &AttentionOptions::default()).unwrap().out, &expected);
}

#[test]
fn a_causal_span_is_a_lower_triangular_mask() {
    let (q, k, v) = (noise(&[1, 4, 5, 3], 1), noise(&[1, 2, 7, 3], 2), noise(&[1, 2, 7, 6], 3));
    let keep: Vec<Bool> = (0..35).map(|x| Bool::new(x % 7 <= x / 7)).collect();
    let added: Vec<f64> = keep.iter().map(|k| if k.get() { 0.0 } else { f64::NEG_INFINITY }).collect();
    let masks =
        [Array::from_slice(&keep, &[5, 7]).unwrap(), Array::from_slice(&added, &[1, 1, 5, 7]).unwrap()];
    let causal = AttentionOptions { span: Span::Causal, ..Default::default() };
    let expected = attention(&q, &k, &v, &causal).unwrap();
    let dout = noise(&[1, 4, 5, 6], 4);
    let grads = attention_grad(&dout, &q, &k, &v, &expected, &causal).unwrap();
    for mask in &masks {
        let masked = AttentionOptions { mask: Some(mask), ..Default::default() };
        let found = attention(&q, &k, &v, &masked).unwrap();
        close(&found.out, &expected.out);
        close(&found.lse, &expected.lse);
        let found = attention_grad(&dout, &q, &k, &v, &found, &masked).unwrap();
        close(&found.q, &grads.q);
        close(&found.k, &grads.k);
        close(&found.v, &grads.v);
    }
}

#[test]
fn empty_sizes_and_meta_arrays() {
    let (q, k) = (noise(&[2, 2, 3, 4], 1), noise(&[2, 2, 0, 4], 2));
    let result = attention(&q, &k, &k, &AttentionOptions::default()).unwrap();
    assert_eq!(result.out.to_vec::<f64>().unwrap(), [0.0; 48]);
    assert_eq!(result.lse.to_vec::<f64>().unwrap(), [f64::NEG_INFINITY; 12]);
    let grads = attention_grad(&q, &q, &k, &k, &result, &AttentionOptions::default()).unwrap();
    assert_eq!(grads.q.to_vec::<f64>().unwrap(), [0.0; 48]);
    for shape in [[0, 2, 3, 4], [2, 0, 3, 4], [2, 2, 0, 4], [2, 2, 3, 0]] {
        let x = noise(&shape, 1);
        let result = attention(&x, &x, &x, &AttentionOptions::default()).unwrap();
        assert_eq!(result.out.shape()[..], shape);
        attention_grad(&result.out, &x, &x, &x, &result, &AttentionOptions::default()).unwrap();
    }
    let q = q.cast(DType::BF16).unwrap().to_meta();
    let result = attention(&q, &q, &q, &AttentionOptions::default()).unwrap();
    assert!(result.out.is_meta() && result.lse.dtype() == DType::F32);
}

#[test]
fn refusals_name_the_shapes() {
    let (q, k) = (noise(&[2, 4, 3, 4], 1), noise(&[2, 2, 5, 4], 2));
    let none = AttentionOptions::default();
    let shapes = |r: Result<_, Error>| matches!(r, Err(Error::ShapeMismatch { .. }));
    for bad in [&[2usize, 3, 5, 4][..], &[1, 2, 5, 4], &[2, 2, 5, 3], &[2, 0, 5, 4], &[2, 5, 4]] {
        let bad = noise(bad, 3);
        assert!(shapes(attention(&q, &bad, &k, &none).map(drop)), "{:?}", bad.shape());
    }
    assert!(shapes(attention(&q, &k, &noise(&[2, 2, 6, 4], 3), &none).map(drop)));
    let single = k.cast(DType::F32).unwrap();
    assert!(matches!(attention(&q, &single, &k, &none), Err(Error::DTypeMismatch { .. })));
    let mask = noise(&[3, 6], 1);
    let options = AttentionOptions { mask: Some(&mask), ..none };
    assert!(matches!(attention(&q, &k, &k, &options), Err(Error::Broadcast { .. })));
    let mask = Array::from_slice(&[1i64], &[1]).unwrap();
    let options = AttentionOptions { mask: Some(&mask), ..none };
    assert!(matches!(attention(&q, &k, &k, &options), Err(Error::DType { .. })));
    let result = attention(&q, &k, &k, &none).unwrap();
    assert!(shapes(attention_grad(&k, &q, &k, &k, &result, &none).map(drop)));
}
