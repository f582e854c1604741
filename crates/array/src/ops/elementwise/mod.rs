//! Elementwise operations: which dtypes each takes, broadcasting, and the choice of kernel.

mod inplace;
mod methods;
mod select;

use crate::array::Array;
use crate::cpu::elementwise::lane::Lane;
use crate::cpu::elementwise::{grad as slopes, unary as functions};
use crate::cpu::map::{Bound, Kernel1, Kernel2, map1, map2};
use crate::cuda;
use crate::device::Device;
use crate::element::{Bool, Element, with_dtype};
use crate::error::{Error, Result};
use crate::ops::fused::home;
use crate::view::broadcast_shapes;
use planaria_layout::{DType, Shape};

pub use inplace::binary_into;
pub use select::{clip, where_};

/// Operations of one input that keep the dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the documentation; see the methods of `Array`
pub enum Unary {
    Neg,
    Abs,
    Sign,
    Square,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Exp,
    Exp2,
    ExpM1,
    Ln,
    Ln1p,
    Log2,
    Log10,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    Erfc,
    Sigmoid,
    LogSigmoid,
    Relu,
    Gelu,
    GeluTanh,
    Silu,
    Softplus,
    Floor,
    Ceil,
    Trunc,
    Round,
}

impl Unary {
    /// Every operation.
    pub const ALL: [Unary; 39] = {
        use Unary::*;
        [
            Neg, Abs, Sign, Square, Sqrt, Rsqrt, Reciprocal, Exp, Exp2, ExpM1, Ln, Ln1p, Log2, Log10, Sin,
            Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Tanh, Asinh, Acosh, Atanh, Erf, Erfc, Sigmoid,
            LogSigmoid, Relu, Gelu, GeluTanh, Silu, Softplus, Floor, Ceil, Trunc, Round,
        ]
    };
}

/// Operations of two inputs of one dtype, which the result has too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Fmod,
    Pow,
    Atan2,
    Maximum,
    Minimum,
    Fmax,
    Fmin,
    BitAnd,
    BitOr,
    BitXor,
    Shl,
    Shr,
}

impl Binary {
    /// Every operation.
    pub const ALL: [Binary; 18] = {
        use Binary::*;
        [
            Add, Sub, Mul, Div, FloorDiv, Rem, Fmod, Pow, Atan2, Maximum, Minimum, Fmax, Fmin, BitAnd, BitOr,
            BitXor, Shl, Shr,
        ]
    };
}

/// Comparisons of two inputs of one dtype; the result is bool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Compare {
    /// Every comparison.
    pub const ALL: [Compare; 6] =
        [Compare::Eq, Compare::Ne, Compare::Lt, Compare::Le, Compare::Gt, Compare::Ge];
}

/// Activations that have a fused gradient kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Activation {
    Relu,
    Sigmoid,
    Tanh,
    Silu,
    Softplus,
    Gelu,
    GeluTanh,
}

/// Applies `op` to every element.
pub fn unary(op: Unary, x: &Array) -> Result<Array> {
    if let Device::Cuda(_) = x.device() {
        has_unary(op, x.dtype())?;
        return cuda::unary(op, x);
    }
    with_dtype!(x.dtype(), T => {
        T::unary(op, |kernel| run1::<T, T>(x, functions::bound(op), kernel)).unwrap_or_else(|| Err(undefined(op, x.dtype())))
    })
}

/// Flips every bit; for bool, every truth value.
pub fn bit_not(x: &Array) -> Result<Array> {
    if let Device::Cuda(_) = x.device() {
        let defined = with_dtype!(x.dtype(), T => T::complement(|_| ()));
        defined.ok_or_else(|| undefined("BitNot", x.dtype()))?;
        return cuda::bit_not(x);
    }
    with_dtype!(x.dtype(), T => {
        T::complement(|kernel| run1::<T, T>(x, Bound::Memory, kernel)).unwrap_or_else(|| Err(undefined("BitNot", x.dtype())))
    })
}

/// Applies `op` to each pair of elements after broadcasting.
pub fn binary(op: Binary, x: &Array, y: &Array) -> Result<Array> {
    check_divisor(op, y)?;
    if let Device::Cuda(_) = home("binary", &[x, y])? {
        has_binary(op, x.dtype())?;
        return cuda::binary(op, x, y, &pair_shape("binary", x, y)?);
    }
    with_dtype!(x.dtype(), T => {
        T::binary(op, |kernel| run2::<T, T>("binary", x, y, Bound::Memory, kernel)).unwrap_or_else(|| Err(undefined(op, x.dtype())))
    })
}

/// Compares each pair of elements after broadcasting.
pub fn compare(op: Compare, x: &Array, y: &Array) -> Result<Array> {
    if let Device::Cuda(_) = home("compare", &[x, y])? {
        return cuda::compare(op, x, y, &pair_shape("compare", x, y)?);
    }
    with_dtype!(x.dtype(), T => T::compare(op, |kernel| run2::<T, Bool>("compare", x, y, Bound::Memory, kernel)))
}

/// Gradient of an activation: `saved` is its input (its output for sigmoid and tanh), `grad` the incoming gradient.
pub fn activation_grad(op: Activation, saved: &Array, grad: &Array) -> Result<Array> {
    if let Device::Cuda(_) = home("activation_grad", &[saved, grad])? {
        let defined = with_dtype!(saved.dtype(), T => T::grad(op, |_| ()));
        defined.ok_or_else(|| undefined(op, saved.dtype()))?;
        return cuda::activation_grad(op, saved, grad, &pair_shape("activation_grad", saved, grad)?);
    }
    with_dtype!(saved.dtype(), T => {
        T::grad(op, |kernel| run2::<T, T>("activation_grad", saved, grad, slopes::bound(op), kernel))
            .unwrap_or_else(|| Err(undefined(op, saved.dtype())))
    })
}

/// Refuses an operation that a dtype does not have.
fn has_unary(op: Unary, dtype: DType) -> Result<()> {
    with_dtype!(dtype, T => T::unary(op, |_| ())).ok_or_else(|| undefined(op, dtype))
}

/// As [`has_unary`], for two inputs.
fn has_binary(op: Binary, dtype: DType) -> Result<()> {
    with_dtype!(dtype, T => T::binary(op, |_| ())).ok_or_else(|| undefined(op, dtype))
}

/// The shape of a result of two operands of one dtype.
fn pair_shape(op: &'static str, x: &Array, y: &Array) -> Result<Shape> {
    y.check_dtype(op, x.dtype())?;
    broadcast_shapes(op, x.shape(), y.shape())
}

/// `floor_div` for `FloorDiv`.
fn named(op: &impl std::fmt::Debug) -> String {
    let mut name = String::new();
    for c in format!("{op:?}").chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

fn undefined(op: impl std::fmt::Debug, dtype: DType) -> Error {
    Error::argument("elementwise", format!("{} is not defined for dtype {dtype}; cast first", named(&op)))
}

/// Integers have no value for a division by zero, so it is refused before anything is computed.
fn check_divisor(op: Binary, y: &Array) -> Result<()> {
    if !matches!(op, Binary::FloorDiv | Binary::Rem | Binary::Fmod) || !y.dtype().is_int() || y.is_meta() {
        return Ok(());
    }
    if let Device::Cuda(_) = y.device() {
        return cuda::check_divisor(op, y);
    }
    let zero = with_dtype!(y.dtype(), T => y.values::<T>("binary")?.iter().any(|v| v.is_zero_divisor()));
    if zero {
        Err(Error::argument("elementwise", format!("{} of integers by zero", named(&op))))
    } else {
        Ok(())
    }
}

fn run1<T: Element, O: Element>(x: &Array, bound: Bound, kernel: Kernel1<'_, T, O>) -> Result<Array> {
    if x.is_meta() {
        return Ok(Array::meta_of(x.shape().clone(), O::DTYPE));
    }
    let host = x.host("unary")?;
    Array::build(x.shape().clone(), |out| map1(bound, &x.operand::<T>(&host), out, kernel))
}

fn run2<T: Element, O: Element>(
    op: &'static str,
    x: &Array,
    y: &Array,
    bound: Bound,
    kernel: Kernel2<'_, T, T, O>,
) -> Result<Array> {
    let shape = pair_shape(op, x, y)?;
    if home(op, &[x, y])? == Device::Meta {
        return Ok(Array::meta_of(shape, O::DTYPE));
    }
    let (x, y) = (x.broadcast_to(&shape)?, y.broadcast_to(&shape)?);
    let (hx, hy) = (x.host(op)?, y.host(op)?);
    Array::build(shape, |out| map2(bound, &x.operand::<T>(&hx), &y.operand::<T>(&hy), out, kernel))
}
