//! `+ - * / // % ** @ & | ^ << >>`, comparisons, and the forms of them that write in place.

use planaria::array::ops::{self, Binary, Compare, Keep};
use planaria::array::{Array, DType, Error, Scalar, promote};
use pyo3::basic::CompareOp;
use pyo3::prelude::*;

use crate::array::PyArray;
use crate::error::{Raise, exception};
use crate::gil::compute;
use crate::object::{Share, array_of, check_range, number};
use crate::tensor::PyTensor;

/// What stands on the other side: an array, or a number that takes the array's dtype where it can.
pub(crate) enum Operand {
    Array(Array),
    Number(Scalar),
}

/// The operand that an object is; `None` for what arrays do not calculate with.
pub(crate) fn operand(object: &Bound<'_, PyAny>) -> PyResult<Option<Operand>> {
    if let Ok(array) = object.cast::<PyArray>() {
        return Ok(Some(Operand::Array(array.get().0.clone())));
    }
    if let Some(value) = number(object)? {
        return Ok(Some(Operand::Number(value)));
    }
    // A tensor calculates itself: its value alone would have no history.
    if object.is_instance_of::<PyTensor>() {
        return Ok(None);
    }
    match object.hasattr("__dlpack__")? || object.hasattr("__array__")? {
        true => array_of(object, None, Share::IfPossible).map(|array| Some(Operand::Array(array))),
        false => Ok(None),
    }
}

/// The dtype a number meets an array in.
fn meeting(dtype: DType, value: Scalar) -> DType {
    match value {
        Scalar::Int(_) if dtype == DType::Bool => DType::I64,
        Scalar::Float(_) if !dtype.is_float() => DType::F32,
        _ => dtype,
    }
}

impl Operand {
    /// This operand and `array` in the dtype they meet in.
    pub(crate) fn beside(self, py: Python<'_>, array: &Array) -> PyResult<(Array, Array)> {
        match self {
            Operand::Number(value) => {
                let dtype = meeting(array.dtype(), value);
                check_range(py, value, dtype)?;
                compute(py, || Ok::<_, Error>((array.cast_if(dtype)?, Array::scalar(value, dtype)?)))
            }
            Operand::Array(other) => {
                let dtype = promote("operator", array.dtype(), other.dtype()).map_err(|e| e.raise(py))?;
                compute(py, || Ok::<_, Error>((array.cast_if(dtype)?, other.cast_if(dtype)?)))
            }
        }
    }
}

/// A cast that keeps what is already right.
pub(crate) trait CastIf {
    fn cast_if(&self, dtype: DType) -> Result<Array, Error>;
}

impl CastIf for Array {
    fn cast_if(&self, dtype: DType) -> Result<Array, Error> {
        if self.dtype() == dtype { Ok(self.clone()) } else { self.cast(dtype) }
    }
}

/// Which side of the operator the array stands on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// Answers `NotImplemented` for what arrays do not calculate with.
fn apply<'py>(
    slf: &Bound<'py, PyArray>,
    other: &Bound<'py, PyAny>,
    side: Side,
    work: impl FnOnce(Array, Array) -> Result<Array, Error> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let py = slf.py();
    let Some(other) = operand(other)? else { return Ok(py.NotImplemented().into_bound(py)) };
    let (mine, theirs) = other.beside(py, &slf.get().0)?;
    let (x, y) = if side == Side::Left { (mine, theirs) } else { (theirs, mine) };
    Ok(Bound::new(py, PyArray(compute(py, || work(x, y))?))?.into_any())
}

fn binary<'py>(
    slf: &Bound<'py, PyArray>,
    other: &Bound<'py, PyAny>,
    op: Binary,
    side: Side,
) -> PyResult<Bound<'py, PyAny>> {
    apply(slf, other, side, move |x, y| ops::binary(op, &x, &y))
}

/// The matrix product. That of integers is made of sums, since kernels for floats would round it.
pub(crate) fn product(x: &Array, y: &Array) -> Result<Array, Error> {
    let (lhs, rhs) = (x.ndim(), y.ndim());
    if x.dtype().is_float() || x.dtype() == DType::Bool || lhs == 0 || rhs == 0 {
        return ops::matmul(x, y);
    }
    let left = if lhs == 1 { x.unsqueeze(0)? } else { x.clone() };
    let right = if rhs == 1 { y.unsqueeze(1)? } else { y.clone() };
    let (inner, outer) = (left.shape()[left.ndim() - 1], right.shape()[right.ndim() - 2]);
    if inner != outer {
        let what =
            format!("shapes {} and {} do not agree: {inner} columns and {outer} rows", x.shape(), y.shape());
        return Err(Error::Argument { op: "matmul", what });
    }
    let products = ops::binary(Binary::Mul, &left.unsqueeze(-1)?, &right.unsqueeze(-3)?)?;
    let mut made = products.sum(&[-2], Keep::No)?.cast_if(x.dtype())?;
    if lhs == 1 {
        made = made.squeeze(&[-2])?;
    }
    if rhs == 1 { made.squeeze(&[-1]) } else { Ok(made) }
}

/// Division of integers gives floats.
pub(crate) fn divide(x: &Array, y: &Array) -> Result<Array, Error> {
    let dtype = if x.dtype().is_float() { x.dtype() } else { DType::F32 };
    ops::binary(Binary::Div, &x.cast_if(dtype)?, &y.cast_if(dtype)?)
}

/// The quotient, rounded down. A finite number over an infinity of the other sign is -0, as the array API standard has it;
/// the kernel has Python's -1.
pub(crate) fn floor_divide(x: &Array, y: &Array) -> Result<Array, Error> {
    let made = ops::binary(Binary::FloorDiv, x, y)?;
    if !y.dtype().is_float() {
        return Ok(made);
    }
    let infinite = y.is_inf()?;
    if infinite.numel() == 0 || infinite.any(&[], Keep::No)?.item()?.as_int() == 0 {
        return Ok(made);
    }
    let below = ops::compare(Compare::Lt, &made, &Array::scalar(0, made.dtype())?)?;
    let cut = below.logical_and(&infinite)?.logical_and(&x.is_finite()?)?;
    ops::where_(&cut, &Array::scalar(-0.0, made.dtype())?, &made)
}

/// `x op= y`: the array keeps its dtype, so what would change it is refused.
fn assign(slf: &Bound<'_, PyArray>, other: &Bound<'_, PyAny>, op: Binary) -> PyResult<()> {
    let (py, array) = (slf.py(), &slf.get().0);
    let Some(other) = operand(other)? else {
        let what = format!("an array cannot take {} in place", other.get_type().name()?);
        return Err(exception(py, "DTypeError", what));
    };
    let (_, value) = other.beside(py, array)?;
    let kept = value.dtype() == array.dtype() && (op != Binary::Div || array.dtype().is_float());
    if !kept {
        let what =
            format!("the result would be {}, but the array keeps {} in place", value.dtype(), array.dtype());
        return Err(exception(py, "DTypeError", what));
    }
    compute(py, || match op {
        Binary::FloorDiv => array.copy_from(&floor_divide(array, &value)?),
        _ => array.binary_in_place(op, &value),
    })
}

#[pymethods]
impl PyArray {
    fn __add__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Add, Side::Left)
    }
    fn __radd__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Add, Side::Right)
    }
    fn __sub__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Sub, Side::Left)
    }
    fn __rsub__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Sub, Side::Right)
    }
    fn __mul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Mul, Side::Left)
    }
    fn __rmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Mul, Side::Right)
    }
    fn __truediv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        apply(slf, other, Side::Left, |x, y| divide(&x, &y))
    }
    fn __rtruediv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        apply(slf, other, Side::Right, |x, y| divide(&x, &y))
    }
    fn __floordiv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        apply(slf, other, Side::Left, |x, y| floor_divide(&x, &y))
    }
    fn __rfloordiv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        apply(slf, other, Side::Right, |x, y| floor_divide(&x, &y))
    }
    fn __mod__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Rem, Side::Left)
    }
    fn __rmod__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Rem, Side::Right)
    }
    fn __pow__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        _modulo: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Pow, Side::Left)
    }
    fn __rpow__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        _modulo: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Pow, Side::Right)
    }
    fn __matmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        apply(slf, other, Side::Left, |x, y| product(&x, &y))
    }
    fn __rmatmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        apply(slf, other, Side::Right, |x, y| product(&x, &y))
    }
    fn __and__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::BitAnd, Side::Left)
    }
    fn __rand__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::BitAnd, Side::Right)
    }
    fn __or__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::BitOr, Side::Left)
    }
    fn __ror__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::BitOr, Side::Right)
    }
    fn __xor__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::BitXor, Side::Left)
    }
    fn __rxor__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::BitXor, Side::Right)
    }
    fn __lshift__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Shl, Side::Left)
    }
    fn __rlshift__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Shl, Side::Right)
    }
    fn __rshift__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Shr, Side::Left)
    }
    fn __rrshift__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        binary(slf, other, Binary::Shr, Side::Right)
    }

    fn __iadd__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        assign(slf, other, Binary::Add)
    }
    fn __isub__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        assign(slf, other, Binary::Sub)
    }
    fn __imul__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        assign(slf, other, Binary::Mul)
    }
    fn __itruediv__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        assign(slf, other, Binary::Div)
    }
    fn __ifloordiv__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        assign(slf, other, Binary::FloorDiv)
    }
    fn __imod__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        assign(slf, other, Binary::Rem)
    }
    fn __ipow__(
        slf: &Bound<'_, Self>,
        other: &Bound<'_, PyAny>,
        _modulo: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        assign(slf, other, Binary::Pow)
    }
    fn __iand__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        assign(slf, other, Binary::BitAnd)
    }
    fn __ior__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        assign(slf, other, Binary::BitOr)
    }
    fn __ixor__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        assign(slf, other, Binary::BitXor)
    }
    fn __ilshift__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        assign(slf, other, Binary::Shl)
    }
    fn __irshift__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        assign(slf, other, Binary::Shr)
    }

    fn __neg__(&self, py: Python<'_>) -> PyResult<PyArray> {
        compute(py, || self.0.neg()).map(PyArray)
    }
    fn __pos__(&self) -> PyArray {
        self.clone()
    }
    fn __abs__(&self, py: Python<'_>) -> PyResult<PyArray> {
        compute(py, || self.0.abs()).map(PyArray)
    }
    fn __invert__(&self, py: Python<'_>) -> PyResult<PyArray> {
        compute(py, || self.0.bit_not()).map(PyArray)
    }

    fn __richcmp__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        op: CompareOp,
    ) -> PyResult<Bound<'py, PyAny>> {
        let op = match op {
            CompareOp::Eq => Compare::Eq,
            CompareOp::Ne => Compare::Ne,
            CompareOp::Lt => Compare::Lt,
            CompareOp::Le => Compare::Le,
            CompareOp::Gt => Compare::Gt,
            CompareOp::Ge => Compare::Ge,
        };
        apply(slf, other, Side::Left, move |x, y| ops::compare(op, &x, &y))
    }
}
