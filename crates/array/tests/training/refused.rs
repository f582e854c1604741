//! Input that must be refused with an error that names the values, and nothing changed.

use super::support::{Rng, values};
use planaria_array::ops::{
    self, AdamW, AdamWArrays, BatchStats, CrossEntropyOptions, Momentum, Sgd, SgdArrays,
};
use planaria_array::ops::{RotaryLayout, RotaryOptions, RotaryPairing, RotaryPositions, RotaryTable};
use planaria_array::{Array, DType, Error, ErrorClass};

fn array(shape: &[usize]) -> Array {
    Array::zeros(shape, DType::F32).unwrap()
}

#[test]
fn labels_and_ids_out_of_range_name_id_position_and_size() {
    let table = array(&[10, 4]);
    for (id, position) in [(10, 3), (-1, 0), (i64::MIN, 2), (i64::MAX, 5)] {
        let mut ids = vec![1i64; 6];
        ids[position] = id;
        let ids = Array::from_slice(&ids, &[2, 3]).unwrap();
        let want = |op| Error::IdOutOfRange { op, id, position, size: 10 };
        assert_eq!(ops::embedding(&table, &ids).unwrap_err(), want("embedding"));
        let dy = array(&[2, 3, 4]);
        assert_eq!(ops::embedding_grad(&dy, &ids, 10, None).unwrap_err(), want("embedding_grad"));
        let error =
            ops::cross_entropy(&array(&[2, 3, 10]), &ids, &CrossEntropyOptions::default()).unwrap_err();
        assert_eq!(error, want("cross_entropy"));
        assert_eq!(error.class(), ErrorClass::Index);
        assert!(error.to_string().contains(&format!("id {id} at position {position}")));
    }
}

#[test]
fn shapes_dims_and_dtypes_that_do_not_fit_are_refused() {
    let (x, ints) = (array(&[2, 6]), Array::zeros(&[2, 6], DType::I32).unwrap());
    assert!(matches!(x.softmax(2), Err(Error::DimOutOfRange { dim: 2, ndim: 2, .. })));
    assert!(matches!(ints.softmax(0), Err(Error::DType { found: DType::I32, .. })));
    assert!(matches!(ops::softmax_grad(&x, &array(&[2, 5]), 1), Err(Error::ShapeMismatch { .. })));
    let half = x.cast(DType::F16).unwrap();
    assert!(matches!(ops::softmax_grad(&half, &x, 1), Err(Error::DTypeMismatch { .. })));
    for normalized in [&[][..], &[5], &[2], &[1, 2, 6]] {
        assert!(matches!(
            ops::layer_norm(&x, normalized, None, None, 1e-5),
            Err(Error::ShapeMismatch { .. })
        ));
    }
    assert!(matches!(ops::rms_norm(&x, &[6], Some(&array(&[5])), 1e-5), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(
        ops::rms_norm(&half, &[6], Some(&x.cast(DType::F64).unwrap()), 1e-5),
        Err(Error::DTypeMismatch { .. })
    ));
    for eps in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(ops::rms_norm(&x, &[6], None, eps), Err(Error::Argument { .. })));
    }
    for groups in [0, 4, usize::MAX] {
        assert!(matches!(ops::group_norm(&x, groups, None, None, 1e-5), Err(Error::Argument { .. })));
    }
    assert!(matches!(ops::instance_norm(&array(&[3]), None, None, 1e-5), Err(Error::Argument { .. })));
    let stats = BatchStats::Batch { running: None, momentum: 0.1 };
    assert!(matches!(ops::batch_norm(&array(&[1, 6]), None, None, stats, 1e-5), Err(Error::Argument { .. })));
    assert!(matches!(ops::swiglu_packed(&array(&[2, 5])), Err(Error::Argument { .. })));
    assert!(matches!(ops::swiglu(&x, &array(&[6])), Err(Error::ShapeMismatch { .. })));
    let meta = Array::meta(&[2, 6], DType::F32).unwrap();
    assert!(matches!(ops::swiglu(&x, &meta), Err(Error::MixedDevices { .. })));
    assert!(matches!(ops::softmax_grad(&meta, &x, 0), Err(Error::MixedDevices { .. })));
}

#[test]
fn cross_entropy_and_embedding_arguments_are_checked() {
    let (x, labels) = (array(&[2, 6]), Array::zeros(&[2], DType::I64).unwrap());
    let good = CrossEntropyOptions::default();
    for label_smoothing in [-0.1, 1.1, f64::NAN] {
        let options = CrossEntropyOptions { label_smoothing, ..good };
        assert!(matches!(ops::cross_entropy(&x, &labels, &options), Err(Error::Argument { .. })));
    }
    let short = Array::zeros(&[3], DType::I64).unwrap();
    assert!(matches!(ops::cross_entropy(&x, &short, &good), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(ops::cross_entropy(&x, &array(&[2]), &good), Err(Error::DType { .. })));
    assert!(matches!(ops::cross_entropy(&array(&[2, 0]), &labels, &good), Err(Error::Argument { .. })));
    let scalar = Array::scalar(0, DType::I64).unwrap();
    assert!(matches!(ops::cross_entropy(&array(&[]), &scalar, &good), Err(Error::DimOutOfRange { .. })));
    assert!(matches!(ops::embedding(&array(&[4]), &labels), Err(Error::Argument { .. })));
    assert!(matches!(ops::embedding_grad(&x, &labels, usize::MAX, None), Err(Error::Layout(_))));
    assert!(matches!(ops::embedding_grad(&x, &labels, 4, Some(4)), Err(Error::Argument { .. })));
}

#[test]
fn rotary_arguments_are_checked() {
    assert!(matches!(RotaryTable::new(4, 3, 1e4), Err(Error::Argument { .. })));
    assert!(matches!(RotaryTable::new(4, 4, 0.0), Err(Error::Argument { .. })));
    assert!(matches!(RotaryTable::new(usize::MAX, 4, 1e4), Err(Error::Layout(_))));
    let table = RotaryTable::new(8, 4, 1e4).unwrap();
    let at = |positions| RotaryOptions {
        pairing: RotaryPairing::Halves,
        layout: RotaryLayout::SeqHeads,
        positions,
    };
    for first in [6, usize::MAX] {
        let refused = ops::rotary(&array(&[3, 1, 4]), &table, &at(RotaryPositions::From(first)));
        assert!(matches!(refused, Err(Error::Argument { .. })));
    }
    let first = at(RotaryPositions::From(0));
    assert!(matches!(ops::rotary(&array(&[3, 4]), &table, &first), Err(Error::Argument { .. })));
    assert!(matches!(ops::rotary(&array(&[3, 1, 3]), &table, &first), Err(Error::Argument { .. })));
    let ids = Array::from_slice(&[0i64, 1, 8], &[3]).unwrap();
    let refused = ops::rotary(&array(&[3, 1, 4]), &table, &at(RotaryPositions::Ids(&ids)));
    assert!(matches!(refused, Err(Error::IdOutOfRange { id: 8, position: 2, size: 8, .. })));
    let refused = ops::rotary(&array(&[2, 1, 4]), &table, &at(RotaryPositions::Ids(&ids)));
    assert!(matches!(refused, Err(Error::ShapeMismatch { .. })));
}

#[test]
fn a_refused_step_changes_nothing() {
    let mut rng = Rng::new(60);
    let p = rng.array(&[4]);
    let before = values(&p);
    let [m, v] = [(); 2].map(|_| Array::zeros(&[4], DType::F64).unwrap());
    let good = AdamWArrays {
        param: &p,
        grad: &p.copy().unwrap(),
        exp_avg: &m,
        exp_avg_sq: &v,
        max_exp_avg_sq: None,
        master: None,
    };
    let short = array(&[3]);
    let narrow = array(&[4]);
    let lists = [
        [good, AdamWArrays { grad: &short, ..good }],
        [good, AdamWArrays { exp_avg: &narrow, ..good }],
        [good, AdamWArrays { master: Some(&narrow), ..good }],
    ];
    for list in &lists {
        assert!(AdamW::default().step(1, list).is_err());
    }
    assert!(AdamW::default().step(0, &[good]).is_err());
    assert!(AdamW { beta1: 1.0, ..AdamW::default() }.step(1, &[good]).is_err());
    assert!(AdamW { lr: f64::NAN, ..AdamW::default() }.step(1, &[good]).is_err());
    let sgd = SgdArrays { param: &p, grad: &m, velocity: None, master: None };
    assert!(Sgd { momentum: 0.9, ..Sgd::default() }.step(1, &[sgd]).is_err());
    assert!(Sgd { momentum_kind: Momentum::Nesterov, ..Sgd::default() }.step(1, &[sgd]).is_err());
    assert!(ops::check_finite_and_unscale(std::slice::from_ref(&p), f64::NAN).is_err());
    assert_eq!(values(&p), before);
}
