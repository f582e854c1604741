//! Elementwise kernels against f64 and i128 references, on every dtype they accept, strided and broadcast.

use planaria_array::ops::{self, Activation, Binary, Compare, Unary};
use planaria_array::{Array, Bool, DType, Error, Scalar, Threads};
use proptest::prelude::*;

/// The definition of each function, in f64.
fn truth(op: Unary, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => {
            if x == 0.0 || x.is_nan() {
                x
            } else {
                x.signum()
            }
        }
        Unary::Square => x * x,
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Exp => x.exp(),
        Unary::Exp2 => x.exp2(),
        Unary::ExpM1 => x.exp_m1(),
        Unary::Ln => x.ln(),
        Unary::Ln1p => x.ln_1p(),
        Unary::Log2 => x.log2(),
        Unary::Log10 => x.log10(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Asinh => x.asinh(),
        Unary::Acosh => x.acosh(),
        Unary::Atanh => x.atanh(),
        Unary::Erf => libm::erf(x),
        Unary::Erfc => libm::erfc(x),
        Unary::Sigmoid => sigmoid(x),
        Unary::LogSigmoid => -softplus(-x),
        Unary::Relu => {
            if x.is_nan() {
                x
            } else {
                x.max(0.0)
            }
        }
        Unary::Gelu => 0.5 * x * libm::erfc(-x / 2f64.sqrt()),
        Unary::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Unary::Silu => x * sigmoid(x),
        Unary::Softplus => softplus(x),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Trunc => x.trunc(),
        Unary::Round => x.round_ties_even(),
    }
}

fn floats(a: &Array) -> Vec<f64> {
    a.cast(DType::F64).unwrap().to_vec().unwrap()
}

fn close(got: f64, want: f64, relative: f64, absolute: f64) -> bool {
    got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= relative * want.abs() + absolute
}

const SAMPLES: [f64; 24] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    1e-3,
    -1e-3,
    0.75,
    3.5,
    -3.5,
    2.5,
    7.25,
    -7.25,
    20.0,
    -20.0,
    60.0,
    -60.0,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    0.3,
];

#[test]
fn unary_functions_match_their_definitions() {
    for (dtype, relative) in
        [(DType::F64, 1e-12), (DType::F32, 6e-7), (DType::BF16, 8e-3), (DType::F16, 1e-3)]
    {
        let x = Array::from_slice(&SAMPLES, &[SAMPLES.len()]).unwrap().cast(dtype).unwrap();
        for op in Unary::ALL {
            let got = ops::unary(op, &x).unwrap();
            assert_eq!(got.dtype(), dtype);
            // The definition at what the dtype can hold, rounded to it.
            let want: Vec<f64> = floats(&x).iter().map(|&v| truth(op, v)).collect();
            let want = floats(&Array::from_slice(&want, &[want.len()]).unwrap().cast(dtype).unwrap());
            for ((x, got), want) in floats(&x).iter().zip(floats(&got)).zip(want) {
                // Tails of the normal distribution are exact to f32's resolution around 1, not below it.
                let tail = matches!(op, Unary::Gelu) && dtype != DType::F64;
                let tiny = if dtype == DType::F16 || tail { 6e-8 } else { 1e-12 };
                assert!(close(got, want, relative, tiny), "{op:?}({x}) = {got}, not {want} in {dtype}");
            }
        }
    }
}

#[test]
fn eight_bit_floats_round_once() {
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        let x = Array::from_slice(&[0.5f32, 1.25, -3.0, 448.0], &[4]).unwrap().cast(dtype).unwrap();
        let wide = x.cast(DType::F32).unwrap();
        assert_eq!(floats(&x.mul(&x).unwrap()), floats(&wide.mul(&wide).unwrap().cast(dtype).unwrap()));
        assert_eq!(floats(&x.exp().unwrap()), floats(&wide.exp().unwrap().cast(dtype).unwrap()));
    }
}

/// The definition of each function of two floats; `None` where there is nothing to compare with.
fn binary_truth(op: Binary, x: f64, y: f64) -> Option<f64> {
    let python_rem = |x: f64, y: f64| {
        let r = x % y;
        if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
    };
    let nan = x.is_nan() || y.is_nan();
    Some(match op {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::Rem => python_rem(x, y),
        Binary::Fmod => x % y,
        Binary::Pow => x.powf(y),
        Binary::Atan2 => x.atan2(y),
        Binary::Maximum if nan => f64::NAN,
        Binary::Minimum if nan => f64::NAN,
        Binary::Maximum | Binary::Fmax => x.max(y),
        Binary::Minimum | Binary::Fmin => x.min(y),
        // Infinite operands follow C; the finite ones are what floor division is for.
        Binary::FloorDiv if x.is_finite() && y.is_finite() && y != 0.0 => {
            ((x - python_rem(x, y)) / y).round()
        }
        _ => return None,
    })
}

#[test]
fn binary_functions_match_their_definitions() {
    let (mut xs, mut ys) = (Vec::new(), Vec::new());
    for x in SAMPLES {
        for y in SAMPLES {
            xs.push(x);
            ys.push(y);
        }
    }
    for dtype in [DType::F64, DType::F32] {
        let x = Array::from_slice(&xs, &[xs.len()]).unwrap().cast(dtype).unwrap();
        let y = Array::from_slice(&ys, &[ys.len()]).unwrap().cast(dtype).unwrap();
        let (xs, ys) = (floats(&x), floats(&y));
        for op in Binary::ALL {
            let Ok(got) = ops::binary(op, &x, &y) else {
                assert!(matches!(
                    op,
                    Binary::BitAnd | Binary::BitOr | Binary::BitXor | Binary::Shl | Binary::Shr
                ));
                continue;
            };
            for ((&x, &y), got) in xs.iter().zip(&ys).zip(floats(&got)) {
                let Some(want) = binary_truth(op, x, y) else { continue };
                let want = if dtype == DType::F32 { f64::from(want as f32) } else { want };
                assert!(close(got, want, 3e-7, 1e-12), "{op:?}({x}, {y}) = {got}, not {want} in {dtype}");
            }
        }
    }
}

#[test]
fn floor_division_and_remainder_agree_with_python() {
    let x = Array::from_slice(&[7i64, -7, 7, -7, i64::MIN], &[5]).unwrap();
    let y = Array::from_slice(&[2i64, 2, -2, -2, -1], &[5]).unwrap();
    assert_eq!(x.floor_div(&y).unwrap().to_vec::<i64>().unwrap(), [3, -4, -4, 3, i64::MIN]);
    assert_eq!(x.rem(&y).unwrap().to_vec::<i64>().unwrap(), [1, 1, -1, -1, 0]);
    assert_eq!(x.fmod(&y).unwrap().to_vec::<i64>().unwrap(), [1, -1, 1, -1, 0]);
    let zero = Array::scalar(0, DType::I64).unwrap();
    assert!(x.rem(&zero).unwrap_err().to_string().contains("by zero"));
    let f = Array::from_slice(&[5.5f32, -5.5, 1.0], &[3]).unwrap();
    let g = Array::from_slice(&[2.0f32, 2.0, 0.1], &[3]).unwrap();
    assert_eq!(f.floor_div(&g).unwrap().to_vec::<f32>().unwrap(), [2.0, -3.0, 9.0]);
}

#[test]
fn zeros_and_infinities_of_floor_division_have_the_signs_of_the_standard() {
    let inf = f64::INFINITY;
    let rows = [
        // x, y, x // y, x % y
        (0.0, 3.0, 0.0, 0.0),
        (-0.0, 3.0, -0.0, 0.0),
        (0.0, -3.0, -0.0, -0.0),
        (-0.0, -3.0, 0.0, -0.0),
        (4.0, -2.0, -2.0, -0.0),
        (1.0, 3.0, 0.0, 1.0),
        (-1.0, -3.0, 0.0, -1.0),
        (5.0, inf, 0.0, 5.0),
        (5.0, -inf, -1.0, -inf),
        (-5.0, inf, -1.0, inf),
        (-5.0, -inf, 0.0, -5.0),
        (inf, 3.0, inf, f64::NAN),
        (-inf, 3.0, -inf, f64::NAN),
        (inf, -3.0, -inf, f64::NAN),
        (inf, inf, f64::NAN, f64::NAN),
        (2.0, -0.0, -inf, f64::NAN),
        (0.0, 0.0, f64::NAN, f64::NAN),
    ];
    let column = |pick: fn(&(f64, f64, f64, f64)) -> f64| rows.iter().map(pick).collect::<Vec<f64>>();
    // All zeros and infinities are told apart by their bits; NaN is NaN.
    let bits = |v: f64| if v.is_nan() { u64::MAX } else { v.to_bits() };
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let made = |pick| Array::from_slice(&column(pick), &[rows.len()]).unwrap().cast(dtype).unwrap();
        let (x, y) = (made(|row| row.0), made(|row| row.1));
        let (quotient, rest) = (floats(&x.floor_div(&y).unwrap()), floats(&x.rem(&y).unwrap()));
        for (i, &(a, b, q, r)) in rows.iter().enumerate() {
            assert_eq!(bits(quotient[i]), bits(q), "{a} // {b} = {} in {dtype}", quotient[i]);
            assert_eq!(bits(rest[i]), bits(r), "{a} % {b} = {} in {dtype}", rest[i]);
        }
    }
}

#[test]
fn integers_wrap_shift_and_take_powers() {
    let x = Array::from_slice(&[127i8, -128, 3, -1], &[4]).unwrap();
    let y = Array::from_slice(&[1i8, 1, 5, -3], &[4]).unwrap();
    assert_eq!(x.add(&y).unwrap().to_vec::<i8>().unwrap(), [-128, -127, 8, -4]);
    assert_eq!(x.pow(&y).unwrap().to_vec::<i8>().unwrap(), [127, -128, 243u8 as i8, -1]);
    assert_eq!(x.abs().unwrap().to_vec::<i8>().unwrap(), [127, -128, 3, 1]);
    assert_eq!(x.shr(&Array::scalar(9, DType::I8).unwrap()).unwrap().to_vec::<i8>().unwrap(), [0, -1, 0, -1]);
    assert_eq!(x.shl(&Array::scalar(9, DType::I8).unwrap()).unwrap().to_vec::<i8>().unwrap(), [0; 4]);
    let u = Array::from_slice(&[0u16, 1, 65535], &[3]).unwrap();
    assert_eq!(u.neg().unwrap().to_vec::<u16>().unwrap(), [0, 65535, 1]);
    assert_eq!(u.bit_not().unwrap().to_vec::<u16>().unwrap(), [65535, 65534, 0]);
    assert!(u.exp().is_err() && u.div(&u).is_err());
    let b = Array::from_slice(&[Bool::new(true), Bool::new(false)], &[2]).unwrap();
    assert_eq!(
        b.bit_xor(&Array::scalar(true, DType::Bool).unwrap()).unwrap().to_string(),
        "bool[2] [false, true]"
    );
    assert_eq!(b.bit_not().unwrap().to_string(), "bool[2] [false, true]");
}

#[test]
fn comparisons_and_classes_of_floats() {
    let x = Array::from_slice(&[1.0f32, f32::NAN, f32::INFINITY, -0.0], &[4]).unwrap();
    let y = Array::from_slice(&[2.0f32, f32::NAN, f32::INFINITY, 0.0], &[4]).unwrap();
    let text = |a: Array| {
        a.to_vec::<Bool>().unwrap().iter().map(|b| if b.get() { '1' } else { '0' }).collect::<String>()
    };
    let results: Vec<String> =
        Compare::ALL.iter().map(|&op| text(ops::compare(op, &x, &y).unwrap())).collect();
    assert_eq!(results, ["0011", "1100", "1000", "1011", "0000", "0011"]);
    assert_eq!(text(x.is_nan().unwrap()), "0100");
    assert_eq!(text(x.is_inf().unwrap()), "0010");
    assert_eq!(text(x.is_finite().unwrap()), "1001");
    assert_eq!(text(x.cast(DType::BF16).unwrap().lt(&y.cast(DType::BF16).unwrap()).unwrap()), "1000");
    assert_eq!(text(x.logical_and(&Array::scalar(1, DType::I8).unwrap()).unwrap()), "1110");
}

#[test]
fn where_and_clip_choose() {
    let c = Array::from_slice(&[Bool::new(true), Bool::new(false)], &[2, 1]).unwrap();
    let x = Array::from_slice(&[1i16, 2, 3], &[3]).unwrap();
    let r = ops::where_(&c, &x, &Array::scalar(9, DType::I16).unwrap()).unwrap();
    assert_eq!(r.to_vec::<i16>().unwrap(), [1, 2, 3, 9, 9, 9]);
    let f = Array::from_slice(&[-2.0f32, 0.5, 3.0, f32::NAN], &[4]).unwrap();
    let got =
        ops::clip(&f, Some(Scalar::Float(-1.0)), Some(Scalar::Float(1.0))).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(got[..3], [-1.0, 0.5, 1.0]);
    assert!(got[3].is_nan());
    assert!(ops::clip(&f, None, None).is_err());
    assert_eq!(ops::clip(&x, Some(2.into()), None).unwrap().to_vec::<i16>().unwrap(), [2, 2, 3]);
}

#[test]
fn activation_gradients_match_finite_differences() {
    let xs: Vec<f64> = (-40..=40).map(|i| f64::from(i) * 0.17 + 0.013).collect();
    let h = 1e-6;
    for (act, op) in [
        (Activation::Relu, Unary::Relu),
        (Activation::Sigmoid, Unary::Sigmoid),
        (Activation::Tanh, Unary::Tanh),
        (Activation::Silu, Unary::Silu),
        (Activation::Softplus, Unary::Softplus),
        (Activation::Gelu, Unary::Gelu),
        (Activation::GeluTanh, Unary::GeluTanh),
    ] {
        let x = Array::from_slice(&xs, &[xs.len()]).unwrap();
        let g = Array::full(&[xs.len()], 2.0, DType::F64).unwrap();
        let from_output = matches!(act, Activation::Sigmoid | Activation::Tanh);
        let saved = if from_output { ops::unary(op, &x).unwrap() } else { x.clone() };
        let got = floats(&ops::activation_grad(act, &saved, &g).unwrap());
        let f32s = [saved.cast(DType::F32).unwrap(), g.cast(DType::F32).unwrap()];
        let got32 = floats(&ops::activation_grad(act, &f32s[0], &f32s[1]).unwrap());
        for ((&x, got), got32) in xs.iter().zip(got).zip(got32) {
            let want = (truth(op, x + h) - truth(op, x - h)) / h;
            assert!(close(got, want, 1e-7, 1e-8), "{act:?} at {x}: {got} not {want}");
            assert!(close(got32, got, 1e-5, 2e-6), "{act:?} at {x} in f32: {got32} not {got}");
        }
    }
}

#[test]
fn in_place_equals_out_of_place_through_views() {
    let base = Array::from_slice(&(0..60).map(|i| i as f32 * 0.1).collect::<Vec<_>>(), &[3, 4, 5]).unwrap();
    let x = base.permute(&[2, 0, 1]).unwrap().slice(1, Some(1), None, 1).unwrap();
    let y = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4]).unwrap();
    let want = x.mul(&y).unwrap().exp().unwrap().to_vec::<f32>().unwrap();
    x.binary_in_place(Binary::Mul, &y).unwrap();
    x.unary_in_place(Unary::Exp).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), want);
    assert_eq!(base.to_vec::<f32>().unwrap()[..20], (0..20).map(|i| i as f32 * 0.1).collect::<Vec<_>>()[..]);
    let out = Array::zeros(x.shape(), DType::F32).unwrap();
    ops::binary_into(Binary::Sub, &x, &y, &out).unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), x.sub(&y).unwrap().to_vec::<f32>().unwrap());
    ops::binary_into(Binary::Sub, &x, &y, &x).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), out.to_vec::<f32>().unwrap());
    assert!(ops::binary_into(Binary::Sub, &x, &y, &y).is_err());
    // An operand that is part of the destination is read before it is overwritten.
    let v = Array::from_slice(&[1i32, 2, 3, 4], &[4]).unwrap();
    v.binary_in_place(Binary::Add, &v.slice(0, Some(0), Some(1), 1).unwrap()).unwrap();
    assert_eq!(v.to_vec::<i32>().unwrap(), [2, 3, 4, 5]);
}

#[test]
fn results_too_large_for_the_caches_are_the_same() {
    // Past the size from which results are streamed, with blocks that do not divide it.
    let x = Array::from_slice(&(0..3001 * 3000).map(|i| (i % 251) as f32).collect::<Vec<_>>(), &[3001, 3000])
        .unwrap();
    let row = x.select(0, 7).unwrap();
    let got = x.sub(&row).unwrap();
    for i in [0usize, 1, 1500, 3000] {
        let want = x.select(0, i as i64).unwrap().sub(&row).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(got.select(0, i as i64).unwrap().to_vec::<f32>().unwrap(), want);
    }
    let t = x.transpose(0, 1).unwrap();
    assert_eq!(t.add(&t).unwrap().select(1, 2999).unwrap().to_vec::<f32>().unwrap(), {
        let r = x.select(0, 2999).unwrap();
        r.add(&r).unwrap().to_vec::<f32>().unwrap()
    });
}

#[test]
fn operands_that_do_not_go_together_are_refused() {
    let f = Array::zeros(&[2, 3], DType::F32).unwrap();
    let i = Array::zeros(&[2, 3], DType::I32).unwrap();
    assert!(matches!(f.add(&i), Err(Error::DTypeMismatch { .. })));
    assert!(matches!(f.add(&Array::zeros(&[2], DType::F32).unwrap()), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(f.add(&f.to_meta()), Err(Error::MixedDevices { .. })));
    assert!(f.binary_in_place(Binary::Add, &Array::zeros(&[4, 2, 3], DType::F32).unwrap()).is_err());
    assert_eq!(f.to_meta().add(&f.to_meta().select(0, 0).unwrap()).unwrap().shape().dims(), [2, 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn broadcasting_and_threads_do_not_change_values(
        dims in proptest::collection::vec((1usize..40, 0u8..3), 0..4), threads in 1usize..4,
    ) {
        // Each dim is whole in both operands, or 1 in one of them.
        let shape = |side: u8| dims.iter().map(|&(n, k)| if k == side { 1 } else { n }).collect::<Vec<_>>();
        let (sx, sy) = (shape(1), shape(2));
        let array = |s: &[usize]| {
            let n = s.iter().product::<usize>();
            Array::from_slice(&(0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>(), s).unwrap()
        };
        let (x, y) = (array(&sx), array(&sy));
        let got = Threads::new(threads).unwrap().run(|| x.mul(&y).unwrap());
        let full: Vec<usize> = dims.iter().map(|d| d.0).collect();
        prop_assert_eq!(got.shape().dims(), &full[..]);
        let (xb, yb) = (x.broadcast_to(&full).unwrap(), y.broadcast_to(&full).unwrap());
        let want: Vec<f32> = xb.to_vec::<f32>().unwrap().iter().zip(yb.to_vec::<f32>().unwrap()).map(|(a, b)| a * b).collect();
        prop_assert_eq!(got.to_vec::<f32>().unwrap(), want);
    }
}
