//! Ranges, identities, triangles, one-hot rows, random arrays and dropout.

use planaria_array::ops::{Distribution, dropout, dropout_add, dropout_grad};
use planaria_array::random::{self, Key, Normal, TruncatedNormal, Window};
use planaria_array::{Array, Bool, DType, Scalar, Shape};

fn ints(x: &Array) -> Vec<i64> {
    x.cast(DType::I64).unwrap().to_vec().unwrap()
}

fn floats(x: &Array) -> Vec<f64> {
    x.cast(DType::F64).unwrap().to_vec().unwrap()
}

#[test]
fn empty_arrays_have_room_and_truth_values_stay_valid() {
    for dtype in DType::ALL {
        // Reused memory must not show through as a truth value that is neither 0 nor 1.
        drop(Array::full(&[300], -1, DType::I8).unwrap());
        let x = Array::empty(&[3, 100], dtype).unwrap();
        assert_eq!((x.dtype(), x.numel(), x.is_whole()), (dtype, 300, true));
        assert!(dtype != DType::Bool || x.bytes().unwrap().iter().all(|&b| b == 0));
        x.fill(1).unwrap();
        assert_eq!(floats(&x), [1.0; 300]);
        assert_eq!(Array::empty(&[2, 0], dtype).unwrap().bytes().unwrap().len(), 0);
    }
    if cfg!(debug_assertions) {
        assert!(floats(&Array::empty(&[9], DType::BF16).unwrap()).iter().all(|v| v.is_nan()));
    }
    assert!(Array::empty(&[usize::MAX, 2], DType::F32).is_err());
    let far = Array::empty(&[1 << 58], DType::F32).unwrap_err();
    assert!(matches!(far, planaria_array::Error::OutOfMemory { .. }), "{far}");
}

#[test]
fn ranges_count_as_told() {
    assert_eq!(ints(&Array::arange(2, 11, 3, DType::I32).unwrap()), [2, 5, 8]);
    assert_eq!(ints(&Array::arange(5, -1, -2, DType::I8).unwrap()), [5, 3, 1]);
    assert_eq!(Array::arange(3, 3, 1, DType::I64).unwrap().numel(), 0);
    let big = i64::MAX;
    assert_eq!(ints(&Array::arange(big - 2, big, 1, DType::I64).unwrap()), [big - 2, big - 1]);
    assert_eq!(floats(&Array::arange(0.0, 1.0, 0.25, DType::BF16).unwrap()), [0.0, 0.25, 0.5, 0.75]);
    // The quotient decides the count, as in torch: (1 - 0) / 0.3 rounds up to 4.
    assert_eq!(Array::arange(0.0, 1.0, 0.3, DType::F32).unwrap().numel(), 4);
    let long = Array::arange(0, 100_000, 1, DType::F64).unwrap().to_vec::<f64>().unwrap();
    assert!(long.iter().enumerate().all(|(i, &x)| x == i as f64));
    for bad in [
        Array::arange(0, 5, 0, DType::I32),
        Array::arange(0, 5, -1, DType::I32),
        Array::arange(5.0, 0.0, 1.0, DType::F32),
    ] {
        assert!(bad.unwrap_err().to_string().contains("the step must"));
    }
    assert!(Array::arange(0.0, f64::INFINITY, 1.0, DType::F32).is_err());
    assert!(Array::arange(f64::NAN, 1.0, 1.0, DType::F32).is_err());
    assert!(Array::arange(0, i64::MAX, 1, DType::U8).unwrap_err().to_string().contains("too many elements"));
    assert!(Array::arange(0.0, 1e300, 1.0, DType::U8).is_err());
    assert!(Array::arange(0, 2, 1, DType::Bool).is_err());
}

#[test]
fn spaces_hit_both_ends() {
    let x = floats(&Array::linspace(-1.0, 1.0, 5, DType::F64).unwrap());
    assert_eq!(x, [-1.0, -0.5, 0.0, 0.5, 1.0]);
    let x = floats(&Array::linspace(0.1, 0.7, 1001, DType::F64).unwrap());
    assert_eq!((x[0], x[1000]), (0.1, 0.7));
    assert!(x.windows(2).all(|w| (w[1] - w[0] - 0.0006).abs() < 1e-15));
    assert_eq!(floats(&Array::linspace(3.0, 9.0, 1, DType::F32).unwrap()), [3.0]);
    assert_eq!(Array::linspace(3.0, 9.0, 0, DType::F32).unwrap().numel(), 0);
    assert_eq!(ints(&Array::linspace(0.0, 10.0, 4, DType::I32).unwrap()), [0, 3, 6, 10]);
    let wide = floats(&Array::linspace(-f64::MAX, f64::MAX, 3, DType::F64).unwrap());
    assert_eq!(wide, [-f64::MAX, 0.0, f64::MAX]);
    assert!(Array::linspace(0.0, f64::NAN, 3, DType::F64).is_err());
}

#[test]
fn identities_and_likes() {
    for dtype in DType::ALL {
        assert_eq!(ints(&Array::eye(2, 3, dtype).unwrap()), [1, 0, 0, 0, 1, 0], "{dtype}");
        assert_eq!(ints(&Array::eye(3, 2, dtype).unwrap()), [1, 0, 0, 1, 0, 0], "{dtype}");
        let x = Array::ones(&[2, 2], dtype).unwrap();
        assert_eq!(ints(&x.zeros_like().unwrap()), [0; 4]);
        assert_eq!(ints(&x.full_like(1).unwrap()), ints(&x.ones_like().unwrap()));
        let meta = x.to_meta().full_like(3).unwrap();
        assert!(meta.is_meta() && meta.dtype() == dtype && meta.shape() == x.shape());
    }
    assert_eq!(Array::eye(0, 4, DType::F32).unwrap().shape().dims(), [0, 4]);
    assert!(Array::eye(usize::MAX, usize::MAX, DType::F32).is_err());
}

#[test]
fn triangles_keep_their_side() {
    let x = Array::arange(1, 121, 1, DType::I16).unwrap().reshape(&[2, 5, 12]).unwrap();
    for view in [x.clone(), x.transpose(1, 2).unwrap(), x.slice(2, None, None, 5).unwrap()] {
        let (rows, columns) = (view.shape()[1] as i64, view.shape()[2] as i64);
        for k in [-20, -4, -1, 0, 1, 3, 11, 12, 40, i64::MIN, i64::MAX] {
            let side = |keep: &dyn Fn(i64, i64) -> bool| -> Vec<i64> {
                let place = |i: usize| (i as i64 / columns % rows, i as i64 % columns);
                ints(&view)
                    .iter()
                    .enumerate()
                    .map(|(i, &v)| if keep(place(i).0, place(i).1) { v } else { 0 })
                    .collect()
            };
            assert_eq!(ints(&view.triu(k).unwrap()), side(&|r, c| c - r >= k), "triu {k}");
            assert_eq!(ints(&view.tril(k).unwrap()), side(&|r, c| c - r <= k), "tril {k}");
        }
    }
    assert!(x.to_meta().triu(0).unwrap().is_meta());
    assert_eq!(Array::zeros(&[3, 0], DType::F32).unwrap().tril(0).unwrap().shape().dims(), [3, 0]);
    assert!(
        Array::zeros(&[3], DType::F32).unwrap().triu(0).unwrap_err().to_string().contains("fewer than 2")
    );
}

#[test]
fn one_hot_marks_the_named_position() {
    let x = Array::from_slice(&[2u8, 0, 1, 2], &[2, 2]).unwrap().transpose(0, 1).unwrap();
    let hot = x.one_hot(3, DType::F32).unwrap();
    assert_eq!(hot.shape().dims(), [2, 2, 3]);
    assert_eq!(ints(&hot), [0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 1]);
    assert_eq!(x.to_meta().one_hot(3, DType::Bool).unwrap().shape(), hot.shape());
    let message = x.one_hot(2, DType::F32).unwrap_err().to_string();
    assert!(message.contains("index 2") && message.contains("size 2"), "{message}");
    assert!(Array::from_slice(&[-1i64], &[1]).unwrap().one_hot(3, DType::F32).is_err());
    assert!(Array::from_slice(&[u64::MAX], &[1]).unwrap().one_hot(3, DType::F32).is_err());
    assert!(Array::ones(&[2], DType::F32).unwrap().one_hot(3, DType::F32).is_err());
    assert_eq!(
        Array::zeros(&[0], DType::I64).unwrap().one_hot(0, DType::F32).unwrap().shape().dims(),
        [0, 0]
    );
}

const KEY: Key = Key::new(11, 5);

/// Rows 3..9 and columns 2..31 of a 12 by 40 tensor.
fn window() -> Window {
    Window::of_box(&[12, 40], &[3, 2], &[9, 31]).unwrap()
}

fn part(x: &Array) -> Array {
    x.slice(0, Some(3), Some(9), 1).unwrap().slice(1, Some(2), Some(31), 1).unwrap()
}

#[test]
fn a_box_of_a_random_array_has_the_bits_of_the_whole() {
    let normal = Normal { mean: 1.0, std: 2.0 };
    let any_float = [DType::F32, DType::F64, DType::BF16, DType::F16, DType::F8E4M3, DType::F8E5M2];
    let any_int =
        [DType::U8, DType::I8, DType::I16, DType::U16, DType::I32, DType::U32, DType::I64, DType::U64];
    let cases: [(Distribution, &[DType]); 5] = [
        (Distribution::Uniform { low: -1.0, high: 3.0 }, &any_float),
        (Distribution::Normal(normal), &any_float),
        (Distribution::TruncatedNormal(TruncatedNormal { normal, low: 0.0, high: 2.0 }), &any_float),
        (Distribution::Bernoulli { p: 0.4 }, &DType::ALL),
        (Distribution::Integers { low: 0, high: 100 }, &any_int),
    ];
    for (distribution, dtypes) in cases {
        for &dtype in dtypes {
            let whole = Array::random(&[12, 40], distribution, dtype, KEY).unwrap();
            let local = Array::random_in(&window(), distribution, dtype, KEY).unwrap();
            assert_eq!((local.shape().dims(), local.dtype()), (&[6, 29][..], dtype));
            assert_eq!(floats(&local), floats(&part(&whole)), "{distribution:?} {dtype}");
            let distinct: std::collections::BTreeSet<_> =
                floats(&whole).iter().map(|x| x.to_bits()).collect();
            assert!(distinct.len() > 1, "{distribution:?} {dtype}");
        }
    }
}

#[test]
fn rounding_never_reaches_the_open_end() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16, DType::F8E4M3, DType::F8E5M2] {
        for (low, high) in [(0.0, 1.0), (-1.0, 0.0), (-3.0, -2.0), (0.1, 0.3), (-100.0, 100.0)] {
            let x =
                floats(&Array::random(&[20_000], Distribution::Uniform { low, high }, dtype, KEY).unwrap());
            let lowest = floats(&Array::scalar(low, dtype).unwrap())[0];
            assert!(x.iter().all(|&v| v >= lowest.min(low) && v < high), "{dtype} {low}..{high}");
            // The values next to the open end are there.
            let near = x.iter().fold(f64::MIN, |a, &b| a.max(b));
            assert!(high - near < (high - low + high.abs()) * 0.26, "{dtype} {low}..{high}: {near}");
        }
    }
}

#[test]
fn random_arrays_refuse_what_they_cannot_hold() {
    let random = |d, dtype| Array::random(&[4], d, dtype, KEY);
    assert!(random(Distribution::Uniform { low: 0.0, high: 1.0 }, DType::I32).is_err());
    assert!(random(Distribution::Uniform { low: 1.0, high: 1.0 }, DType::F32).is_err());
    assert!(random(Distribution::Uniform { low: 0.0, high: 1e39 }, DType::F32).is_err());
    assert!(random(Distribution::Uniform { low: -3e38, high: 3e38 }, DType::F32).is_err());
    assert!(random(Distribution::Integers { low: 0, high: 257 }, DType::U8).is_err());
    assert!(random(Distribution::Integers { low: 0, high: 256 }, DType::U8).is_ok());
    assert!(random(Distribution::Integers { low: -1, high: 1 }, DType::U64).is_err());
    assert!(random(Distribution::Integers { low: 0, high: 1 }, DType::F32).is_err());
    assert!(random(Distribution::Bernoulli { p: -0.1 }, DType::F32).is_err());
    assert!(Array::uniform(&[usize::MAX, 2], DType::F32, KEY).is_err());
    assert_eq!(Array::normal(&[], DType::F64, KEY).unwrap().ndim(), 0);
    assert_eq!(Array::uniform(&[3, 0], DType::F16, KEY).unwrap().numel(), 0);
}

#[test]
fn dropout_keeps_by_global_position() {
    let p = 0.3;
    let whole = Window::whole(&Shape::new(&[12, 40]).unwrap());
    let mut dropped = vec![Bool::default(); 480];
    random::bernoulli(&mut dropped, KEY, &whole, p).unwrap();
    let x = Array::normal(&[12, 40], DType::F64, KEY.fold(1)).unwrap();
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        let x = x.cast(dtype).unwrap();
        let y = dropout(&x, p, KEY, &whole).unwrap();
        let scaled = if dtype == DType::F64 { floats(&x) } else { floats(&x.cast(DType::F32).unwrap()) };
        let want: Vec<f64> = scaled
            .iter()
            .zip(&dropped)
            .map(|(v, d)| match (d.get(), dtype) {
                (true, _) => 0.0,
                (false, DType::F64) => v * (1.0 / 0.7),
                // Computed in f32, rounded once.
                _ => f64::from(*v as f32 * (1.0f64 / 0.7) as f32),
            })
            .collect();
        let want = Array::from_slice(&want, &[12, 40]).unwrap().cast(dtype).unwrap();
        assert_eq!(floats(&y), floats(&want), "{dtype}");
        assert_eq!(floats(&dropout(&part(&x), p, KEY, &window()).unwrap()), floats(&part(&y)), "{dtype}");
        let transposed = x.transpose(0, 1).unwrap().copy().unwrap().transpose(0, 1).unwrap();
        assert_eq!(floats(&dropout(&transposed, p, KEY, &whole).unwrap()), floats(&y));
        let gone = floats(&dropout_grad(&x.ones_like().unwrap(), p, KEY, &whole).unwrap());
        assert!(gone.iter().zip(&dropped).all(|(g, d)| (*g == 0.0) == d.get()));
    }
}

#[test]
fn dropout_add_is_the_two_steps_bit_for_bit() {
    let whole = Window::whole(&Shape::new(&[70, 90]).unwrap());
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        let x = Array::normal(&[70, 90], dtype, KEY.fold(1)).unwrap();
        let r = Array::normal(&[90, 70], dtype, KEY.fold(2)).unwrap().transpose(0, 1).unwrap();
        for p in [0.0, 0.1, 1.0] {
            let fused = dropout_add(&x, &r, p, KEY, &whole).unwrap();
            let steps = dropout(&x, p, KEY, &whole).unwrap().add(&r).unwrap();
            assert_eq!(floats(&fused), floats(&steps), "{dtype} {p}");
        }
    }
}

#[test]
fn dropout_checks_its_input() {
    let x = Array::ones(&[2, 3], DType::F32).unwrap();
    let whole = Window::whole(x.shape());
    assert_eq!(floats(&dropout(&x, 0.0, KEY, &whole).unwrap()), [1.0; 6]);
    assert_eq!(floats(&dropout(&x.full_like(f32::NAN).unwrap(), 1.0, KEY, &whole).unwrap()), [0.0; 6]);
    let says = |r: planaria_array::Result<Array>, text: &str| {
        let message = r.map(|a| a.shape().clone()).unwrap_err().to_string();
        assert!(message.contains(text), "{message}");
    };
    says(dropout(&x, 1.5, KEY, &whole), "1.5");
    says(dropout(&x, 0.5, KEY, &Window::flat(0, 6)), "[6]");
    says(dropout(&x.cast(DType::I32).unwrap(), 0.5, KEY, &whole), "i32");
    says(dropout_add(&x, &x.cast(DType::F64).unwrap(), 0.5, KEY, &whole), "differ");
    says(dropout_add(&x, &x.reshape(&[3, 2]).unwrap(), 0.5, KEY, &whole), "one shape");
    says(dropout_add(&x, &x.to_meta(), 0.5, KEY, &whole), "live on cpu and meta");
    let meta = dropout_add(&x.to_meta(), &x.to_meta(), 0.5, KEY, &whole).unwrap();
    assert!(meta.is_meta() && meta.shape() == x.shape());
    let empty = Array::zeros(&[0, 3], DType::F32).unwrap();
    assert_eq!(dropout(&empty, 0.5, KEY, &Window::whole(empty.shape())).unwrap().shape(), empty.shape());
    assert_eq!(
        Scalar::Int(1),
        Array::one_hot(&Array::scalar(0, DType::I32).unwrap(), 1, DType::I32).unwrap().item().unwrap()
    );
}

#[test]
fn a_huge_integer_rounds_once_on_its_way_to_a_narrower_float() {
    // Just above the middle of two f32 neighbours; f64 would round it to the middle, and that to the even one below.
    let value = (1i64 << 54) + (1 << 30) + 1;
    let above = ((1i64 << 54) + (1 << 31)) as f64;
    for dtype in [DType::F32, DType::F64] {
        let filled = Array::full(&[1], value, dtype).unwrap();
        let cast = Array::from_slice(&[value], &[1]).unwrap().cast(dtype).unwrap();
        assert_eq!(filled.item().unwrap(), cast.item().unwrap(), "{dtype}");
    }
    assert_eq!(Array::full(&[], value, DType::F32).unwrap().item().unwrap().as_f64(), above);
}
