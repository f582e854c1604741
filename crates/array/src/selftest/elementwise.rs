//! Elementwise operations: every operation, every dtype, every kind of view.

use super::case::{Case, Input, View};
use super::compare::{Tolerance, summed};
use super::moves::{some, specials};
use crate::array::Array;
use crate::element::Scalar;
use crate::ops::{self, Activation, Binary, Compare, Unary};
use planaria_layout::DType;

/// Operations whose value comes from the vendor's library, in f64, and is rounded once.
fn from_library(op: Unary) -> bool {
    use Unary::*;
    matches!(
        op,
        Exp2 | Log2
            | Log10
            | Sin
            | Cos
            | Tan
            | Asin
            | Acos
            | Atan
            | Sinh
            | Cosh
            | Asinh
            | Acosh
            | Atanh
            | Erfc
    )
}

/// How close results of f64 functions must be; those of narrower floats are the host's formulas.
fn close(dtype: DType, library: bool) -> Tolerance {
    match dtype {
        DType::F64 => Tolerance::Steps(8),
        // Rounding of a nearly equal f64 can differ by one.
        _ if library => Tolerance::Steps(1),
        _ => Tolerance::Values,
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in DType::ALL {
        unary(dtype, &mut all);
        binary(dtype, &mut all);
        select(dtype, &mut all);
    }
    all
}

fn unary(dtype: DType, all: &mut Vec<Case>) {
    for op in Unary::ALL {
        let name = format!("{op:?} {dtype}");
        let inverse = matches!(op, Unary::Asinh | Unary::Acosh | Unary::Atanh);
        // The host's formulas for these lose some digits in f64; its gelu is a shorter one than the device's.
        let tolerance = match close(dtype, from_library(op)) {
            Tolerance::Values if op == Unary::Gelu && dtype.is_float() => summed(dtype),
            Tolerance::Steps(_) if inverse && dtype == DType::F64 => Tolerance::Steps(256),
            other => other,
        };
        let inputs = vec![Input::plain(specials(dtype))];
        all.push(Case::new("unary", name.clone(), inputs, tolerance, move |x, _| {
            Ok(vec![ops::unary(op, &x[0])?])
        }));
        let view = View::ALL[op as usize % View::ALL.len()];
        let inputs = vec![Input::seen(some(&[7, 33, 18], dtype, op as u64), view)];
        all.push(Case::new("unary", format!("{name} {view:?}"), inputs, tolerance, move |x, _| {
            Ok(vec![ops::unary(op, &x[0])?])
        }));
        let inputs = vec![Input::plain(some(&[5, 40], dtype, op as u64))];
        all.push(Case::new("unary", format!("{name} in place"), inputs, tolerance, move |x, _| {
            let view = x[0].slice(1, Some(1), None, 3)?;
            view.unary_in_place(op)?;
            Ok(vec![x[0].clone()])
        }));
    }
    let inputs = vec![Input::plain(specials(dtype))];
    all.push(Case::new("unary", format!("BitNot {dtype}"), inputs, Tolerance::Bits, |x, _| {
        Ok(vec![ops::bit_not(&x[0])?])
    }));
}

fn binary(dtype: DType, all: &mut Vec<Case>) {
    let column = |x: &Array| x.reshape(&[x.numel(), 1]);
    for op in Binary::ALL {
        let tolerance = match op {
            Binary::Pow | Binary::Atan2 => close(dtype, true),
            _ => Tolerance::Values,
        };
        let divides = matches!(op, Binary::FloorDiv | Binary::Rem | Binary::Fmod);
        let other = if divides && dtype.is_int() { some(&[61], dtype, 3) } else { specials(dtype) };
        // No zero among divisors; those have a case of their own.
        let other = if divides && dtype.is_int() { nonzero(&other) } else { other };
        let inputs = vec![Input::plain(specials(dtype)), Input::plain(other)];
        all.push(Case::new("binary", format!("{op:?} {dtype}"), inputs, tolerance, move |x, _| {
            Ok(vec![ops::binary(op, &column(&x[0])?, &x[1])?])
        }));
        let view = View::ALL[op as usize % View::ALL.len()];
        let y = if divides && dtype.is_int() {
            nonzero(&some(&[9, 21], dtype, 8))
        } else {
            some(&[9, 21], dtype, 8)
        };
        let inputs = vec![Input::seen(some(&[9, 21], dtype, 7), view), Input::seen(y.clone(), view)];
        all.push(Case::new("binary", format!("{op:?} {dtype} {view:?}"), inputs, tolerance, move |x, _| {
            Ok(vec![ops::binary(op, &x[0], &x[1])?])
        }));
        let inputs = vec![Input::plain(some(&[9, 21], dtype, 9)), Input::plain(y)];
        all.push(Case::new("binary", format!("{op:?} {dtype} in place"), inputs, tolerance, move |x, _| {
            x[0].binary_in_place(op, &x[1])?;
            Ok(vec![x[0].clone()])
        }));
    }
    scalars(dtype, all);
    for op in Compare::ALL {
        let inputs = vec![Input::plain(specials(dtype)), Input::plain(specials(dtype))];
        all.push(Case::new("compare", format!("{op:?} {dtype}"), inputs, Tolerance::Bits, move |x, _| {
            Ok(vec![ops::compare(op, &column(&x[0])?, &x[1])?])
        }));
    }
    let activations = [
        Activation::Relu,
        Activation::Sigmoid,
        Activation::Tanh,
        Activation::Silu,
        Activation::Softplus,
        Activation::Gelu,
        Activation::GeluTanh,
    ];
    for op in activations {
        let inputs = vec![Input::plain(some(&[19, 31], dtype, 1)), Input::plain(some(&[19, 31], dtype, 2))];
        let name = format!("{op:?} gradient {dtype}");
        all.push(Case::new("binary", name, inputs, gradient_tolerance(op, dtype), move |x, _| {
            Ok(vec![ops::activation_grad(op, &x[0], &x[1])?])
        }));
    }
}

fn gradient_tolerance(op: Activation, dtype: DType) -> Tolerance {
    match op {
        // Sums in which terms cancel: the two libraries' last digits show.
        _ if dtype == DType::F64 => Tolerance::Steps(256),
        Activation::Gelu if dtype.is_float() => summed(dtype),
        _ => Tolerance::Values,
    }
}

/// Ones instead of zeros.
fn nonzero(x: &Array) -> Array {
    let fixed = || {
        let zero = Array::scalar(0, x.dtype())?;
        ops::where_(&x.eq(&zero)?, &Array::scalar(1, x.dtype())?, x)
    };
    fixed().unwrap_or_else(|_| x.clone())
}

/// Values of the host beside arrays of the device, and integers divided by zero.
fn scalars(dtype: DType, all: &mut Vec<Case>) {
    let Ok(three) = Array::scalar(3, dtype) else { return };
    let op = if dtype == DType::Bool { Binary::BitAnd } else { Binary::Mul };
    let inputs = vec![Input::plain(some(&[50], dtype, 5)), Input::host(three.clone())];
    all.push(Case::new(
        "binary",
        format!("{op:?} {dtype} by a host value"),
        inputs,
        Tolerance::Values,
        move |x, _| Ok(vec![ops::binary(op, &x[0], &x[1])?, ops::binary(op, &x[1], &x[0])?]),
    ));
    if dtype.is_int() {
        let inputs = vec![Input::plain(some(&[50], dtype, 5)), Input::plain(specials(dtype))];
        all.push(Case::new("late", format!("Rem {dtype} by zero"), inputs, Tolerance::Bits, |x, _| {
            let y = x[1].slice(0, None, Some(1), 1)?;
            Ok(vec![ops::binary(Binary::Rem, &x[0], &y)?])
        }));
    }
}

fn select(dtype: DType, all: &mut Vec<Case>) {
    for view in View::ALL {
        let inputs = vec![
            Input::seen(some(&[6, 14, 10], DType::Bool, 1), view),
            Input::seen(some(&[6, 14, 10], dtype, 2), view),
            Input::plain(some(&[], dtype, 3)),
        ];
        all.push(Case::new("select", format!("where {dtype} {view:?}"), inputs, Tolerance::Bits, |x, _| {
            Ok(vec![ops::where_(&x[0], &x[1], &x[2])?, ops::where_(&x[0], &x[2], &x[1])?])
        }));
    }
    let inputs = vec![Input::plain(specials(dtype))];
    all.push(Case::new("select", format!("clip {dtype}"), inputs, Tolerance::Values, |x, _| {
        let (low, high) = (Some(Scalar::Int(1)), Some(Scalar::Int(5)));
        Ok(vec![ops::clip(&x[0], low, high)?, ops::clip(&x[0], None, high)?])
    }));
}
