//! Index expressions against a slow reference that goes coordinate by coordinate, and a fuzz over shapes,
//! expressions, operations and dtypes that must never panic.

mod index_reference;

use index_reference::{Case, Rng, reference_positions};
use planaria_array::ops::{self, OwnValue, Put, ScatterReduce};
use planaria_array::{Array, DType, Error, ErrorClass, Index, Threads};

fn iota(shape: &[usize]) -> Array {
    let numel: usize = shape.iter().product();
    Array::from_slice(&(0..numel as i64).collect::<Vec<_>>(), shape).unwrap()
}

#[test]
fn reads_agree_with_coordinates() {
    let mut rng = Rng::new(1);
    for _ in 0..4000 {
        let case = Case::random(&mut rng);
        let x = iota(&case.shape);
        let (shape, positions) = reference_positions(&case);
        let got = x.get(&case.expression()).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        assert_eq!(got.shape()[..], shape[..], "{case:?}");
        assert_eq!(got.to_vec::<i64>().unwrap(), positions, "{case:?}");
        assert_eq!(got.shares_storage(&x), case.is_basic(), "{case:?}");
    }
}

#[test]
fn writes_agree_with_coordinates() {
    let mut rng = Rng::new(2);
    for round in 0..4000 {
        let case = Case::random(&mut rng);
        let (shape, positions) = reference_positions(&case);
        // The value misses leading dims and has size 1 in some others.
        let skip = rng.below(shape.len() + 1);
        let small: Vec<usize> =
            shape[skip..].iter().map(|&n| if rng.below(3) == 0 { 1 } else { n }).collect();
        let value = iota(&small);
        let wide = value.broadcast_to(&shape).unwrap().to_vec::<i64>().unwrap();
        let base = iota(&case.shape).transpose(0, -1).unwrap();
        let x =
            if round % 2 == 0 { iota(&case.shape) } else { base.copy().unwrap().transpose(0, -1).unwrap() };
        let mut want: Vec<i64> = iota(&case.shape).to_vec().unwrap();
        for (&at, &v) in positions.iter().zip(&wide) {
            want[at as usize] = v;
        }
        x.set(&case.expression(), &value).unwrap_or_else(|e| panic!("{case:?} = {small:?}: {e}"));
        assert_eq!(x.to_vec::<i64>().unwrap(), want, "{case:?} = {small:?}");
    }
}

#[test]
fn gradients_are_the_transposes_of_reads_and_writes() {
    let mut rng = Rng::new(3);
    for _ in 0..1000 {
        let case = Case::random(&mut rng);
        let (shape, positions) = reference_positions(&case);
        let dy = iota(&shape).cast(DType::F64).unwrap();
        let mut want = vec![0.0; case.shape.iter().product()];
        for (j, &at) in positions.iter().enumerate() {
            want[at as usize] += j as f64;
        }
        let dx = ops::get_grad(&dy, &case.expression(), &case.shape).unwrap();
        assert_eq!(dx.to_vec::<f64>().unwrap(), want, "{case:?}");

        let dz = iota(&case.shape).cast(DType::F64).unwrap();
        let rest: Vec<f64> =
            (0..want.len()).map(|i| if positions.contains(&(i as i64)) { 0.0 } else { i as f64 }).collect();
        assert_eq!(
            ops::set_grad(&dz, &case.expression()).unwrap().to_vec::<f64>().unwrap(),
            rest,
            "{case:?}"
        );
        let dv = ops::set_value_grad(&dz, &case.expression(), &[]).unwrap();
        assert_eq!(dv.to_vec::<f64>().unwrap(), [positions.iter().sum::<i64>() as f64], "{case:?}");
    }
}

#[test]
fn sums_do_not_depend_on_the_number_of_threads() {
    let mut rng = Rng::new(4);
    let n = 300_000;
    let rows: Vec<i64> = (0..n).map(|_| rng.below(300) as i64).collect();
    let columns: Vec<i64> = (0..n).map(|_| rng.below(70) as i64).collect();
    let values: Vec<f32> = (0..n).map(|i| (i as f32).sin()).collect();
    let indices =
        [Some(Array::from_slice(&rows, &[n]).unwrap()), Some(Array::from_slice(&columns, &[n]).unwrap())];
    let value = Array::from_slice(&values, &[n]).unwrap();
    let mut want = vec![0f32; 300 * 70];
    let mut last = want.clone();
    for i in 0..n {
        let at = rows[i] as usize * 70 + columns[i] as usize;
        want[at] += values[i];
        last[at] = values[i];
    }
    for threads in [1, 2, 3, 5] {
        Threads::new(threads).unwrap().run(|| {
            let x = Array::zeros(&[300, 70], DType::F32).unwrap();
            let sums = x.index_put(&indices, &value, Put::Accumulate).unwrap();
            assert_eq!(sums.to_vec::<f32>().unwrap(), want);
            let written = x.index_put(&indices, &value, Put::Replace).unwrap();
            assert_eq!(written.to_vec::<f32>().unwrap(), last);
            let flat = Array::from_slice(&rows, &[n]).unwrap();
            let by_row = Array::zeros(&[300], DType::F32).unwrap().scatter_add(0, &flat, &value).unwrap();
            let mut sums = vec![0f32; 300];
            (0..n).for_each(|i| sums[rows[i] as usize] += values[i]);
            assert_eq!(by_row.to_vec::<f32>().unwrap(), sums);
        });
    }
}

#[test]
fn scatter_reduce_follows_its_definition() {
    let x = Array::from_slice(&[10f64, 20.0, 30.0, 40.0], &[4]).unwrap();
    let index = Array::from_slice(&[0i64, 0, 2, 0], &[4]).unwrap();
    let src = Array::from_slice(&[1f64, 2.0, 5.0, 6.0], &[4]).unwrap();
    let with = |r, own| x.scatter_reduce(0, &index, &src, r, own).unwrap().to_vec::<f64>().unwrap();
    use {OwnValue::*, ScatterReduce::*};
    assert_eq!(with(Sum, Include), [19.0, 20.0, 35.0, 40.0]);
    assert_eq!(with(Sum, Exclude), [9.0, 20.0, 5.0, 40.0]);
    assert_eq!(with(Prod, Include), [120.0, 20.0, 150.0, 40.0]);
    assert_eq!(with(Prod, Exclude), [12.0, 20.0, 5.0, 40.0]);
    assert_eq!(with(Mean, Include), [4.75, 20.0, 17.5, 40.0]);
    assert_eq!(with(Mean, Exclude), [3.0, 20.0, 5.0, 40.0]);
    assert_eq!(with(Max, Include), [10.0, 20.0, 30.0, 40.0]);
    assert_eq!(with(Max, Exclude), [6.0, 20.0, 5.0, 40.0]);
    assert_eq!(with(Min, Include), [1.0, 20.0, 5.0, 40.0]);
    assert_eq!(with(Min, Exclude), [1.0, 20.0, 5.0, 40.0]);
}

#[test]
fn scatter_reduce_gradients_agree_with_finite_differences() {
    let index = Array::from_slice(&[0i64, 0, 2, 0, 1, 3], &[2, 3]).unwrap();
    let x = Array::from_slice(&[1.5f64, 0.0, -3.0, 4.0, 2.0, 0.5, 0.25, 7.0], &[2, 4]).unwrap();
    let src = Array::from_slice(&[1.0f64, 2.0, 5.0, 6.0, -1.0, 0.0, 9.0, 9.0], &[2, 4]).unwrap();
    let dy = Array::from_slice(&[1.0f64, -2.0, 3.0, 0.5, 1.25, 2.0, -1.0, 1.0], &[2, 4]).unwrap();
    let nudged = |a: &Array, i: usize, by: f64| {
        let mut values = a.to_vec::<f64>().unwrap();
        values[i] += by;
        Array::from_slice(&values, a.shape()).unwrap()
    };
    for reduction in
        [ScatterReduce::Sum, ScatterReduce::Prod, ScatterReduce::Mean, ScatterReduce::Max, ScatterReduce::Min]
    {
        for own in [OwnValue::Include, OwnValue::Exclude] {
            let loss = |x: &Array, src: &Array| -> f64 {
                let out = x.scatter_reduce(1, &index, src, reduction, own).unwrap().to_vec::<f64>().unwrap();
                out.iter().zip(dy.to_vec::<f64>().unwrap()).map(|(a, b)| a * b).sum()
            };
            let (dx, dsrc) = ops::scatter_reduce_grad(&dy, &x, 1, &index, &src, reduction, own).unwrap();
            let (dx, dsrc) = (dx.to_vec::<f64>().unwrap(), dsrc.to_vec::<f64>().unwrap());
            for i in 0..8 {
                let e = 1e-4;
                let by_x = (loss(&nudged(&x, i, e), &src) - loss(&nudged(&x, i, -e), &src)) / (2.0 * e);
                let by_src = (loss(&x, &nudged(&src, i, e)) - loss(&x, &nudged(&src, i, -e))) / (2.0 * e);
                assert!((dx[i] - by_x).abs() < 1e-6, "{reduction:?} {own:?} x[{i}]: {} {by_x}", dx[i]);
                assert!(
                    (dsrc[i] - by_src).abs() < 1e-6,
                    "{reduction:?} {own:?} src[{i}]: {} {by_src}",
                    dsrc[i]
                );
            }
        }
    }
}

#[test]
fn errors_say_which_index_which_dim_which_size() {
    let x = iota(&[4, 3]);
    let wrong = Array::from_slice(&[0i64, 7], &[2]).unwrap();
    let error = x.get(&[Index::all(), Index::Take(wrong)]).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Index);
    assert_eq!(
        error.to_string(),
        "index 7 is out of range for dim 1 with size 3 (index number 1 of the expression)"
    );
    let mask = Array::zeros(&[5], DType::Bool).unwrap();
    let told = x.get(&[Index::Mask(mask)]).unwrap_err().to_string();
    assert_eq!(told, "mask of shape [5] (index number 0) does not match dims 0.. of shape [4,3]");
    assert!(x.get(&[0.into(), 0.into(), 0.into()]).unwrap_err().to_string().contains("too many indices: 3"));
    let floats = Array::zeros(&[1], DType::F32).unwrap();
    assert_eq!(x.get(&[Index::Take(floats)]).unwrap_err().class(), ErrorClass::Index);
}

#[test]
fn a_refused_write_changes_nothing() {
    let x = iota(&[4, 3]);
    let rows = Array::from_slice(&[0i64, 1, 9], &[3]).unwrap();
    let before = x.to_vec::<i64>().unwrap();
    assert!(x.set_scalar(&[Index::Take(rows.clone())], -1).is_err());
    assert!(x.scatter_assign(0, &rows.reshape(&[3, 1]).unwrap(), &iota(&[3, 1])).is_err());
    assert!(x.index_add_assign(0, &rows, &iota(&[3, 3])).is_err());
    assert_eq!(x.to_vec::<i64>().unwrap(), before);
}

#[test]
fn a_value_may_be_a_view_of_what_is_written() {
    let x = iota(&[4]);
    x.set(&[(0..3).into()], &x.get(&[(1..4).into()]).unwrap()).unwrap();
    assert_eq!(x.to_vec::<i64>().unwrap(), [1, 2, 3, 3]);
    let rows = Array::from_slice(&[3i64, 2, 1, 0], &[4]).unwrap();
    x.set(&[rows.into()], &x.clone()).unwrap();
    assert_eq!(x.to_vec::<i64>().unwrap(), [3, 3, 2, 1]);
    let mask = Array::from_slice(&[1i64, 0, 1, 0], &[4]).unwrap().cast(DType::Bool).unwrap();
    mask.masked_fill_assign(&mask, false).unwrap();
    assert_eq!(mask.cast(DType::I64).unwrap().to_vec::<i64>().unwrap(), [0; 4]);
}

#[test]
fn random_calls_never_panic() {
    let mut rng = Rng::new(5);
    for _ in 0..100_000 {
        index_reference::fuzz_once(&mut rng);
    }
}

#[test]
fn backward_slices_are_views_that_can_be_written() {
    let x = iota(&[3, 4]);
    let back = x.get(&[Index::all(), Index::slice(None, None, Some(-2))]).unwrap();
    assert!(back.shares_storage(&x));
    assert_eq!(back.strides(), [4, -2]);
    assert_eq!(back.to_vec::<i64>().unwrap(), [3, 1, 7, 5, 11, 9]);
    back.get(&[0.into()]).unwrap().copy_from(&Array::from_slice(&[-1i64, -2], &[2]).unwrap()).unwrap();
    assert_eq!(x.select(0, 0).unwrap().to_vec::<i64>().unwrap(), [0, -2, 2, -1]);
    assert!(matches!(x.get(&[Index::slice(None, None, Some(0))]), Err(Error::Step { position: 0 })));
    let extreme = Index::slice(None, Some(i64::MIN), Some(i64::MIN));
    assert_eq!(x.get(&[extreme, 0.into()]).unwrap().to_vec::<i64>().unwrap(), [8]);
}

#[test]
fn values_for_positions_that_do_not_exist_are_refused() {
    let zeros = |shape: &[usize]| Array::zeros(shape, DType::F64).unwrap();
    let index = |values: &[i64]| Array::from_slice(values, &[values.len()]).unwrap();
    let lost = zeros(&[3, 0, 3]).index_add(1, &index(&[0]), &zeros(&[3, 1, 3]));
    assert!(matches!(lost, Err(Error::EmptyDim { .. })), "{lost:?}");
    let lost = zeros(&[3, 0, 3]).index_copy(1, &index(&[0]), &zeros(&[3, 1, 3]));
    assert!(lost.is_err(), "{lost:?}");
    let lost = zeros(&[3, 0, 3]).index_fill(1, &index(&[0]), 1);
    assert!(lost.is_err(), "{lost:?}");
    assert!(zeros(&[3, 0]).index_add(0, &index(&[1]), &zeros(&[1, 0])).is_ok());
}

/// Shapes of array, index and source, and the class that torch 2.15 raises: `index_add`, then `index_copy`.
#[test]
fn sources_that_do_not_fit_raise_what_torch_raises() {
    use ErrorClass::{Index as I, Runtime as R};
    type Fit<'a> = (&'a [usize], usize, &'a [usize], Option<ErrorClass>, Option<ErrorClass>);
    let cases: &[Fit<'_>] = &[
        (&[], 1, &[], None, None),
        (&[], 1, &[1], Some(R), None),
        (&[], 1, &[2], Some(R), Some(I)),
        (&[], 1, &[1, 1], Some(R), Some(R)),
        (&[], 0, &[], Some(I), Some(I)),
        (&[], 2, &[2], Some(R), None),
        (&[3], 1, &[], Some(R), None),
        (&[3], 1, &[2], Some(R), Some(I)),
        (&[3], 1, &[1, 1], Some(R), Some(I)),
        (&[3], 2, &[], Some(I), Some(I)),
        (&[3, 4], 1, &[], Some(R), Some(R)),
        (&[3, 4], 1, &[4], Some(R), Some(I)),
        (&[3, 4], 1, &[1, 1], Some(R), Some(R)),
        (&[3, 4], 2, &[1, 4], Some(R), Some(I)),
        (&[3, 4], 2, &[1, 1], Some(R), Some(R)),
    ];
    for (shape, positions, source, add, copy) in cases {
        let (x, src) = (Array::zeros(shape, DType::F64).unwrap(), Array::zeros(source, DType::F64).unwrap());
        let index = Array::zeros(&[*positions], DType::I64).unwrap();
        let classes =
            [x.index_add(0, &index, &src), x.index_copy(0, &index, &src)].map(|r| r.err().map(|e| e.class()));
        assert_eq!(classes, [*add, *copy], "{shape:?}, {positions} positions, source {source:?}");
    }
}

/// torch scatters along the first and the last dim for positions of 64 bits, which has another class of error.
#[test]
fn positions_out_of_range_raise_what_torch_raises() {
    use ErrorClass::{Index as I, Runtime as R};
    let wide = Array::from_slice(&[7i64], &[1]).unwrap();
    let narrow = wide.cast(DType::I32).unwrap();
    for (shape, dim, expected) in
        [(&[2, 3, 2][..], 0, R), (&[2, 3, 2], 1, I), (&[2, 3, 2], -1, R), (&[2], 0, I)]
    {
        let x = Array::zeros(shape, DType::F64).unwrap();
        let source = x.narrow(dim, 0, 1).unwrap();
        for (index, expected) in [(&wide, expected), (&narrow, I)] {
            let class = x.index_add(dim, index, &source).unwrap_err().class();
            assert_eq!(class, expected, "{shape:?} along {dim}, {} positions", index.dtype());
        }
    }
    // A number for a position along an empty dim: what torch finds first depends on the memory under it.
    let empty = Array::zeros(&[0, 2], DType::F64).unwrap();
    let cut = Array::zeros(&[3, 2], DType::F64).unwrap().narrow(0, 0, 0).unwrap();
    for (x, index, expected) in
        [(&empty, &wide, R), (&empty, &narrow, I), (&cut, &wide, I), (&cut, &narrow, I)]
    {
        let class = x.set_scalar(&[Index::Take(index.clone())], 2).unwrap_err().class();
        assert_eq!(class, expected, "{} positions", index.dtype());
    }
}

#[test]
fn positions_are_checked_where_a_mask_keeps_nothing() {
    let x = Array::zeros(&[4, 5, 3, 4], DType::F64).unwrap();
    let (one, positions) =
        (Array::zeros(&[], DType::F64).unwrap(), |at: i64| Array::from_slice(&[at], &[1]).unwrap());
    let mask = |len: usize, keeps: bool| Array::full(&[len], keeps, DType::Bool).unwrap();
    for at in [-6i64, -5, 4, 5, 8] {
        let fits = (-5..5).contains(&at);
        let read = x.get(&[Index::Mask(mask(4, false)), Index::Take(positions(at))]);
        let far = x.get(&[Index::all(), Index::Take(positions(at)), Index::Mask(mask(3, false))]);
        let put = x.index_put(&[Some(mask(4, false)), Some(positions(at))], &one, Put::Replace);
        for (way, result) in [("get", read), ("get behind", far), ("index_put", put)] {
            match result {
                Ok(_) => assert!(fits, "{way}, position {at}"),
                Err(error) => {
                    assert!(!fits && error.class() == ErrorClass::Index, "{way}, position {at}: {error}");
                    assert!(
                        error.to_string().contains("dim 1") && error.to_string().contains("size 5"),
                        "{error}"
                    );
                }
            }
        }
        // The answer does not depend on what the mask holds.
        let kept = x.get(&[Index::Mask(mask(4, true)), Index::Take(positions(at))]);
        assert_eq!(kept.is_ok(), fits, "position {at}");
    }
}
