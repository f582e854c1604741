//! Softmax cross-entropy.

use super::support::{Rng, check_grads, close, same_on_all_threads, values, wave};
use planaria_array::ops::{self, CrossEntropyOptions, Reduction};
use planaria_array::{Array, DType};

// From torch.nn.functional.cross_entropy in f64, for the inputs below.
const CE_GRAD: [f64; 20] = [
    0.04480718407550552,
    -0.16655713721936247,
    0.10778990734515816,
    0.018262937286503068,
    -0.004302891487804269,
    0.0,
    0.0,
    0.0,
    0.0,
    0.0,
    0.09556647987475342,
    0.05902872561255584,
    0.004526343667416067,
    -0.0040698120909944905,
    -0.15505173706373085,
    -0.34650917142152404,
    -0.013919684323896533,
    0.0046010362276658915,
    0.09600503773919132,
    0.2598227817785633,
];
const CE_NONE: [f64; 4] = [1.2665177296578696, 0.0, 3.6586458945940303, 8.075138875958341];
const SOFT_GRAD: [f64; 20] = [
    -0.011701523736225366,
    0.043218152080179706,
    0.023711351153373788,
    -0.016406778160074416,
    -0.03882120133725375,
    -0.09399450226480263,
    -0.08283164162342364,
    -0.04195805769936349,
    0.011992594318288087,
    0.2067916072693017,
    0.04202418297461522,
    0.019922480440601725,
    -0.02192049766900854,
    -0.017725793837176942,
    -0.02230037190903145,
    -0.053722189257465386,
    -0.05466252548607238,
    -0.033093913154921356,
    0.03074045943586487,
    0.11073816846259422,
];
const CE_MEAN: f64 = 3.7174717505172645;
const CE_SUM: f64 = 13.000302500210243;
const SOFT_MEAN: f64 = 2.909011211188397;

fn options(weight: Option<&Array>, label_smoothing: f64, reduction: Reduction) -> CrossEntropyOptions<'_> {
    CrossEntropyOptions { weight, label_smoothing, reduction, ..Default::default() }
}

#[test]
fn loss_and_gradient_follow_torch() {
    let logits = wave(&[4, 5], 0.7, 3.0, 0.0);
    let labels = Array::from_slice(&[1i64, -100, 4, 0], &[4]).unwrap();
    let weight = wave(&[5], 1.1, 0.5, 1.0);
    for (reduction, want) in
        [(Reduction::Mean, &[CE_MEAN][..]), (Reduction::Sum, &[CE_SUM]), (Reduction::None, &CE_NONE)]
    {
        let options = options(Some(&weight), 0.2, reduction);
        close(&values(&ops::cross_entropy(&logits, &labels, &options).unwrap().loss), want, 1e-12);
    }
    let options = options(Some(&weight), 0.2, Reduction::Mean);
    let out = ops::cross_entropy(&logits, &labels, &options).unwrap();
    let one = Array::scalar(1.0, DType::F64).unwrap();
    let grad = ops::cross_entropy_grad(&one, &logits, &out.lse, &labels, &options).unwrap();
    close(&values(&grad), &CE_GRAD, 1e-12);
    // The class dim in the middle, as in torch's [batch, classes, positions].
    let moved = CrossEntropyOptions { dim: 0, ..options };
    let turned = logits.transpose(0, 1).unwrap();
    let out = ops::cross_entropy(&turned, &labels, &moved).unwrap();
    close(&values(&out.loss), &[CE_MEAN], 1e-12);
    let grad = ops::cross_entropy_grad(&one, &turned, &out.lse, &labels, &moved).unwrap();
    close(&values(&grad.transpose(0, 1).unwrap()), &CE_GRAD, 1e-12);
}

#[test]
fn soft_targets_follow_torch() {
    let logits = wave(&[4, 5], 0.7, 3.0, 0.0);
    let targets = wave(&[4, 5], 0.3, 1.0, 0.0).softmax(-1).unwrap();
    let weight = wave(&[5], 1.1, 0.5, 1.0);
    let options = options(Some(&weight), 0.1, Reduction::Mean);
    let out = ops::soft_cross_entropy(&logits, &targets, &options).unwrap();
    close(&values(&out.loss), &[SOFT_MEAN], 1e-12);
    let one = Array::scalar(1.0, DType::F64).unwrap();
    let grad = ops::soft_cross_entropy_grad(&one, &logits, &out.lse, &targets, &options).unwrap();
    close(&values(&grad), &SOFT_GRAD, 1e-12);
}

#[test]
fn gradients_match_finite_differences() {
    let mut rng = Rng::new(20);
    let logits = [rng.array(&[2, 3, 6])];
    let labels = Array::from_slice(&[1i32, -7, 4, 0, 5, 5], &[2, 3]).unwrap();
    let targets = rng.array(&[2, 3, 6]).softmax(-1).unwrap();
    let weight = wave(&[6], 1.1, 0.5, 1.0);
    for reduction in [Reduction::None, Reduction::Mean, Reduction::Sum] {
        for weight in [None, Some(&weight)] {
            for smoothing in [0.0, 0.3] {
                let options =
                    CrossEntropyOptions { ignore_index: Some(-7), ..options(weight, smoothing, reduction) };
                check_grads(
                    &logits,
                    |x| ops::cross_entropy(&x[0], &labels, &options).unwrap().loss,
                    |x, dy| {
                        let lse = ops::cross_entropy(&x[0], &labels, &options).unwrap().lse;
                        vec![ops::cross_entropy_grad(dy, &x[0], &lse, &labels, &options).unwrap()]
                    },
                );
                check_grads(
                    &logits,
                    |x| ops::soft_cross_entropy(&x[0], &targets, &options).unwrap().loss,
                    |x, dy| {
                        let lse = ops::soft_cross_entropy(&x[0], &targets, &options).unwrap().lse;
                        vec![ops::soft_cross_entropy_grad(dy, &x[0], &lse, &targets, &options).unwrap()]
                    },
                );
                check_grads(
                    std::slice::from_ref(&targets),
                    |t| ops::soft_cross_entropy(&logits[0], &t[0], &options).unwrap().loss,
                    |t, dy| {
                        let lse = ops::soft_cross_entropy(&logits[0], &t[0], &options).unwrap().lse;
                        vec![ops::soft_cross_entropy_target_grad(dy, &logits[0], &lse, &options).unwrap()]
                    },
                );
            }
        }
    }
}

#[test]
fn long_rows_and_masked_logits_are_right_in_f32() {
    let mut rng = Rng::new(21);
    let (rows, classes) = (5, 9001);
    let mut x: Vec<f32> =
        (0..rows * classes).map(|i| (rng.value() * 20.0) as f32 + (i / classes) as f32).collect();
    // A first block of only -inf must not poison the row, nor a maximum in a later block.
    x[..3000].fill(f32::NEG_INFINITY);
    x[8999] = 300.0;
    let logits = Array::from_slice(&x, &[rows, classes]).unwrap();
    let labels = Array::from_slice(&[5000i64, 1, 2, 9000, 4], &[rows]).unwrap();
    let options = options(None, 0.0, Reduction::None);
    let out = ops::cross_entropy(&logits, &labels, &options).unwrap();
    let want: Vec<f64> = x
        .chunks(classes)
        .map(|row| {
            let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
            top + row.iter().map(|&v| (f64::from(v) - top).exp()).sum::<f64>().ln()
        })
        .collect();
    close(&values(&out.lse), &want, 1e-6);
    let ones = Array::full(&[rows], 1.0, DType::F32).unwrap();
    let grad = values(&ops::cross_entropy_grad(&ones, &logits, &out.lse, &labels, &options).unwrap());
    for row in grad.chunks(classes) {
        close(&[row.iter().sum::<f64>()], &[0.0], 1e-4);
    }
    assert_eq!(grad[0], 0.0);
}

#[test]
fn all_ignored_rows_mean_nan_and_no_gradient() {
    let logits = wave(&[2, 3], 0.7, 3.0, 0.0);
    let labels = Array::from_slice(&[-100i64, -100], &[2]).unwrap();
    let options = CrossEntropyOptions::default();
    let out = ops::cross_entropy(&logits, &labels, &options).unwrap();
    assert!(values(&out.loss)[0].is_nan());
    let one = Array::scalar(1.0, DType::F64).unwrap();
    let grad = ops::cross_entropy_grad(&one, &logits, &out.lse, &labels, &options).unwrap();
    assert_eq!(values(&grad), [0.0; 6]);
}

#[test]
fn narrow_logits_give_the_rounded_f32_result_and_threads_change_nothing() {
    let mut rng = Rng::new(22);
    let (x, labels) = (rng.array(&[300, 500]), rng.ids(&[300], 500));
    let options = options(None, 0.1, Reduction::Mean);
    let run = |x: &Array| {
        let out = ops::cross_entropy(x, &labels, &options).unwrap();
        let one = Array::scalar(1.0, x.dtype()).unwrap();
        let grad = ops::cross_entropy_grad(&one, x, &out.lse, &labels, &options).unwrap();
        vec![out.loss, out.lse, grad]
    };
    for dtype in [DType::BF16, DType::F16] {
        let narrow = x.cast(dtype).unwrap();
        for (n, w) in run(&narrow).iter().zip(run(&narrow.cast(DType::F32).unwrap())) {
            assert_eq!(values(n), values(&w.cast(n.dtype()).unwrap()));
        }
    }
    let wide = x.cast(DType::F32).unwrap();
    same_on_all_threads(|| run(&wide));
}

#[test]
fn empty_and_meta_inputs_work() {
    let logits = Array::zeros(&[0, 3], DType::F32).unwrap();
    let labels = Array::zeros(&[0], DType::I64).unwrap();
    let options = CrossEntropyOptions { reduction: Reduction::Sum, ..Default::default() };
    let out = ops::cross_entropy(&logits, &labels, &options).unwrap();
    assert_eq!(values(&out.loss), [0.0]);
    let grad = ops::cross_entropy_grad(&out.loss, &logits, &out.lse, &labels, &options).unwrap();
    assert_eq!(grad.shape()[..], [0, 3]);
    let logits = Array::meta(&[2, 5, 3], DType::BF16).unwrap();
    let labels = Array::meta(&[2, 3], DType::I32).unwrap();
    let options = CrossEntropyOptions { dim: 1, ..Default::default() };
    let out = ops::cross_entropy(&logits, &labels, &options).unwrap();
    assert!(out.loss.is_meta() && out.loss.ndim() == 0 && out.lse.shape()[..] == [2, 3]);
    assert!(ops::cross_entropy_grad(&out.loss, &logits, &out.lse, &labels, &options).unwrap().is_meta());
}
