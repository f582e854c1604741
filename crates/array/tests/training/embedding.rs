//! Embedding lookup and its gradient.

use super::support::{Rng, check_grads, same_on_all_threads, values};
use planaria_array::{Array, DType, ops};

#[test]
fn rows_are_looked_up_for_ids_of_any_shape_and_dtype() {
    let table = Array::from_slice(&[0f32, 1.0, 10.0, 11.0, 20.0, 21.0], &[3, 2]).unwrap();
    let ids = Array::from_slice(&[2i32, 0, 1, 2], &[2, 2]).unwrap();
    let y = ops::embedding(&table, &ids).unwrap();
    assert_eq!(y.shape()[..], [2, 2, 2]);
    assert_eq!(y.to_vec::<f32>().unwrap(), [20.0, 21.0, 0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
    let turned = table.transpose(0, 1).unwrap().copy().unwrap().transpose(0, 1).unwrap();
    assert_eq!(values(&ops::embedding(&turned, &ids).unwrap()), values(&y));
    let lower =
        ops::embedding(&table.narrow(0, 1, 2).unwrap(), &Array::scalar(1, DType::U8).unwrap()).unwrap();
    assert_eq!(values(&lower), [20.0, 21.0]);
    let none = ops::embedding(&table, &Array::zeros(&[0, 5], DType::I64).unwrap()).unwrap();
    assert_eq!(none.shape()[..], [0, 5, 2]);
}

#[test]
fn gradient_matches_finite_differences_and_skips_padding() {
    let mut rng = Rng::new(40);
    let ids = Array::from_slice(&[2i64, 0, 2, 4, 2], &[5]).unwrap();
    check_grads(
        &[rng.array(&[5, 3])],
        |x| ops::embedding(&x[0], &ids).unwrap(),
        |_, dy| vec![ops::embedding_grad(dy, &ids, 5, None).unwrap()],
    );
    let dy = rng.array(&[5, 3]);
    let all = values(&ops::embedding_grad(&dy, &ids, 5, None).unwrap());
    let padded = values(&ops::embedding_grad(&dy, &ids, 5, Some(2)).unwrap());
    assert_eq!(padded[6..9], [0.0; 3]);
    assert_eq!((&padded[..6], &padded[9..]), (&all[..6], &all[9..]));
}

#[test]
fn narrow_gradients_are_summed_wide_in_order_on_any_number_of_threads() {
    let mut rng = Rng::new(41);
    let ids = rng.ids(&[4000], 50);
    let dy = rng.array(&[4000, 64]).cast(DType::BF16).unwrap();
    let narrow = ops::embedding_grad(&dy, &ids, 50, None).unwrap();
    let wide = ops::embedding_grad(&dy.cast(DType::F32).unwrap(), &ids, 50, None).unwrap();
    assert_eq!(values(&narrow), values(&wide.cast(DType::BF16).unwrap()));
    let mut want = vec![0f32; 50 * 64];
    let flat = dy.cast(DType::F32).unwrap().to_vec::<f32>().unwrap();
    for (i, id) in ids.to_vec::<i64>().unwrap().into_iter().enumerate() {
        for c in 0..64 {
            want[id as usize * 64 + c] += flat[i * 64 + c];
        }
    }
    assert_eq!(wide.to_vec::<f32>().unwrap(), want);
    let big = rng.ids(&[4000], 3000);
    same_on_all_threads(|| vec![ops::embedding_grad(&dy, &big, 3000, Some(1)).unwrap()]);
}
