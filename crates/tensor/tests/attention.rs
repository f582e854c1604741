//! Attention inside documents, and with dropout on its weights.

use planaria_array::ops::{Keep, Span};
use planaria_array::random::Key;
use planaria_array::{Array, DType};
use planaria_tensor::ops::sample::Draw;
use planaria_tensor::ops::{AttentionOptions, Documents, attention, dropout_with};
use planaria_tensor::{Tensor, no_grad};

const CAUSAL: AttentionOptions<'static> =
    AttentionOptions { scale: None, span: Span::Causal, mask: None, documents: None, dropout: None };

/// Queries of four heads, keys and values of two.
fn operands(batch: usize, length: usize, dtype: DType) -> [Tensor; 3] {
    let mut draw = Draw::new(3);
    [4, 2, 2].map(|heads| Tensor::new(draw.normal(&[batch, heads, length, 8]).unwrap().cast(dtype).unwrap()))
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.local().cast(DType::F64).unwrap().to_vec().unwrap()
}

fn worst(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.shape(), expected.shape());
    values(found).iter().zip(values(expected)).fold(0.0, |worst, (a, b)| worst.max((a - b).abs()))
}

/// The result and the gradients of its squares.
fn run(of: &[Tensor; 3], options: &AttentionOptions<'_>) -> Vec<Tensor> {
    let [q, k, v] = of.each_ref().map(|t| t.detach().requires_grad());
    let y = attention(&q, &k, &v, options).unwrap();
    y.square().unwrap().sum(&[], Keep::No).unwrap().backward().unwrap();
    std::iter::once(y).chain([q, k, v].map(|leaf| leaf.take_grad().unwrap())).collect()
}

#[test]
fn packed_documents_give_the_bits_of_each_alone() {
    let starts = [vec![3, 4, 9], vec![], vec![7]];
    let documents = Documents::new(starts.to_vec(), 12).unwrap();
    for dtype in [DType::F32, DType::BF16] {
        let of = operands(3, 12, dtype);
        let packed = run(&of, &AttentionOptions { documents: Some(&documents), ..CAUSAL });
        for row in 0..3 {
            for range in documents.of_row(row) {
                let cut = |t: &Tensor| {
                    t.narrow(0, row, 1).unwrap().narrow(2, range.start, range.len()).unwrap().detach()
                };
                let alone = run(&of.each_ref().map(cut), &CAUSAL);
                for (packed, alone) in packed.iter().zip(&alone) {
                    assert_eq!(values(&cut(packed)), values(alone), "{dtype} row {row} {range:?}");
                }
            }
        }
    }
}

/// The same weights, dropped one by one.
fn composed(of: &[Tensor; 3], p: f64, key: Key) -> Tensor {
    let [q, k, v] = of;
    let [batch, heads, length, dim] = q.shape()[..] else { unreachable!() };
    let grouped = |t: &Tensor| {
        let wide = t.unsqueeze(2).unwrap().broadcast_to(&[batch, 2, heads / 2, length, dim]).unwrap();
        wide.reshape(&[batch, heads, length, dim]).unwrap()
    };
    let scores = q.matmul(&grouped(k).transpose(2, 3).unwrap()).unwrap();
    let seen = Array::full(&[length, length], true, DType::Bool).unwrap().tril(0).unwrap();
    let hidden = Tensor::new(seen.logical_not().unwrap());
    let scores = scores.mul_scalar(1.0 / (dim as f64).sqrt()).unwrap();
    let weights = scores
        .masked_fill(&hidden.broadcast_to(scores.shape()).unwrap(), -1e30)
        .unwrap()
        .softmax(-1)
        .unwrap();
    dropout_with(&weights, p, key).unwrap().matmul(&grouped(v)).unwrap()
}

/// Long enough that queries are taken in two goes.
#[test]
fn dropout_is_that_of_the_weights_one_by_one() {
    let key = Key::new(8, 1);
    for (length, dtype, bound) in [(9, DType::F64, 1e-13), (1100, DType::F32, 2e-6)] {
        let of = operands(1, length, dtype);
        let dropped = AttentionOptions { dropout: Some((0.25, key)), ..CAUSAL };
        let found = no_grad(|| attention(&of[0], &of[1], &of[2], &dropped)).unwrap();
        let expected = no_grad(|| composed(&of, 0.25, key));
        assert!(worst(&found, &expected) < bound, "{length}: {}", worst(&found, &expected));
    }
    let of = operands(2, 7, DType::F64);
    let found = run(&of, &AttentionOptions { dropout: Some((0.25, key)), ..CAUSAL });
    let leaves = of.each_ref().map(|t| t.detach().requires_grad());
    composed(&leaves, 0.25, key).square().unwrap().sum(&[], Keep::No).unwrap().backward().unwrap();
    for (found, leaf) in found[1..].iter().zip(&leaves) {
        assert!(worst(found, &leaf.take_grad().unwrap()) < 1e-12);
    }
}

/// With values of 1 a result is the sum of the weights that are left: 1 in the mean, with the spread of its draws.
#[test]
fn what_is_left_of_the_weights_is_one_in_the_mean() {
    let [q, k, v] = operands(2, 512, DType::F32);
    let ones = Tensor::new(Array::full(v.shape(), 1.0, DType::F32).unwrap());
    let p = 0.3;
    let options = AttentionOptions { dropout: Some((p, Key::new(1, 2))), ..CAUSAL };
    // Equal scores: query i has i + 1 weights of 1 / (i + 1).
    let y = attention(&q.mul_scalar(0.0).unwrap(), &k, &ones, &options).unwrap();
    let sums: Vec<f64> = values(&y).chunks(8).map(|row| row[0]).collect();
    let late = sums.iter().enumerate().filter(|(i, _)| i % 512 >= 256).map(|(_, sum)| *sum);
    let late: Vec<f64> = late.collect();
    let mean = late.iter().sum::<f64>() / late.len() as f64;
    assert!((mean - 1.0).abs() < 0.005, "{mean}");
    let spread = late.iter().map(|s| (s - 1.0).powi(2)).sum::<f64>() / late.len() as f64;
    // p / (1 - p) / n each, n from 257 to 512.
    let expected = (257..=512).map(|n| p / (1.0 - p) / f64::from(n)).sum::<f64>() / 256.0;
    assert!((spread / expected - 1.0).abs() < 0.1, "{spread} {expected}");
    // Another key, other draws; none, none.
    let other = AttentionOptions { dropout: Some((p, Key::new(1, 3))), ..CAUSAL };
    assert!(worst(&attention(&q, &k, &v, &other).unwrap(), &attention(&q, &k, &v, &options).unwrap()) > 0.01);
    let zero = AttentionOptions { dropout: Some((0.0, Key::new(1, 3))), ..CAUSAL };
    let plain = attention(&q, &k, &v, &CAUSAL).unwrap();
    assert!(worst(&attention(&q, &k, &v, &zero).unwrap(), &plain) < 2e-6);
}

#[test]
fn documents_that_do_not_fit_are_refused() {
    let [q, k, v] = operands(2, 6, DType::F32);
    for documents in [Documents::new(vec![vec![]; 3], 6), Documents::new(vec![vec![]; 2], 5)] {
        let documents = documents.unwrap();
        let options = AttentionOptions { documents: Some(&documents), ..CAUSAL };
        let message = attention(&q, &k, &v, &options).unwrap_err().to_string();
        assert!(message.contains("for 2 rows of 6 queries and 6 keys"), "{message}");
    }
    let options = AttentionOptions { dropout: Some((1.5, Key::new(0, 0))), ..CAUSAL };
    assert!(attention(&q, &k, &v, &options).unwrap_err().to_string().contains("got 1.5"));
}
