//! Python objects as arrays: nested lists and numbers, DLPack, buffers, and what has `__array__`.

use planaria::array::{Array, DType, Scalar};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBool, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::array::PyArray;
use crate::error::{Raise, exception};
use crate::number::shown;
use crate::{buffer, dlpack, dtype};

/// Lists may not nest deeper than this.
const DEPTH: usize = 64;

/// Whether memory is shared or copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Shared where it can be.
    IfPossible,
    /// Shared, or refused.
    Always,
    /// Copied.
    Never,
}

impl Share {
    pub(crate) fn from_copy(copy: Option<bool>) -> Share {
        match copy {
            None => Share::IfPossible,
            Some(false) => Share::Always,
            Some(true) => Share::Never,
        }
    }
}

/// An array of any object that is one, holds one, or lists numbers.
pub(crate) fn array_of(object: &Bound<'_, PyAny>, dtype: Option<DType>, share: Share) -> PyResult<Array> {
    let py = object.py();
    let found = match shared(object, share)? {
        Some(array) => array,
        None if share == Share::Always => {
            return Err(PyValueError::new_err("numbers in Python objects cannot be shared; use copy=None"));
        }
        None => return listed(object, dtype),
    };
    let wanted = dtype.unwrap_or(found.dtype());
    if wanted == found.dtype() && share != Share::Never {
        return Ok(found);
    }
    if share == Share::Always {
        let what =
            format!("dtype {} cannot be seen as {wanted} without a copy; use copy=None", found.dtype());
        return Err(PyValueError::new_err(what));
    }
    crate::gil::compute(py, || if wanted == found.dtype() { found.copy() } else { found.cast(wanted) })
}

/// An array over the object's own memory; `None` for lists and numbers.
fn shared(object: &Bound<'_, PyAny>, share: Share) -> PyResult<Option<Array>> {
    if let Ok(array) = object.cast::<PyArray>() {
        return Ok(Some(array.get().0.clone()));
    }
    if is_plain(object) {
        return Ok(None);
    }
    let py = object.py();
    if let Some(array) = ml_dtype(object, share)? {
        return Ok(Some(array));
    }
    if object.hasattr("__dlpack__")? {
        return match dlpack::import(object, share) {
            // What DLPack cannot say (strings, objects, other byte orders) has its dtype named instead.
            Err(error)
                if error.is_instance_of::<PyBufferError>(py) && !object.hasattr("requires_grad")? =>
            {
                match object.getattr("dtype") {
                    Ok(found) => Err(dtype::dtype_of(&found).err().unwrap_or(error)),
                    Err(_) => Err(error),
                }
            }
            answer => answer.map(Some),
        };
    }
    // The buffers of NumPy's scalars have no shape that could be read.
    let is_scalar =
        object.getattr("ndim").and_then(|ndim| ndim.extract::<usize>()).is_ok_and(|ndim| ndim == 0);
    let is_scalar = is_scalar && object.hasattr("__array__")?;
    if !is_scalar && let Some(array) = buffer::import(object, share)? {
        return Ok(Some(array));
    }
    if object.hasattr("__array__")? {
        let array = as_array(object, share)?;
        if array.is(object) || !array.hasattr("__dlpack__")? {
            return Err(PyTypeError::new_err("__array__ did not give an array"));
        }
        return shared(&array, share);
    }
    Ok(None)
}

/// What `__array__` gives; where memory must be shared, it is asked not to copy.
fn as_array<'py>(object: &Bound<'py, PyAny>, share: Share) -> PyResult<Bound<'py, PyAny>> {
    if share != Share::Always {
        return object.call_method0("__array__");
    }
    let py = object.py();
    let options = [("copy", false)].into_py_dict(py)?;
    object.call_method("__array__", (), Some(&options)).map_err(|error| {
        if !error.is_instance_of::<PyTypeError>(py) {
            return error;
        }
        let what = "its __array__ cannot be asked not to copy; use copy=None";
        let refused = PyValueError::new_err(what);
        refused.set_cause(py, Some(error));
        refused
    })
}

/// Arrays of ml_dtypes, which neither DLPack nor buffers know: their words are taken and given their meaning back.
fn ml_dtype(object: &Bound<'_, PyAny>, share: Share) -> PyResult<Option<Array>> {
    let Ok(found) = object.getattr("dtype") else { return Ok(None) };
    let Ok(kind) = found.getattr("kind") else { return Ok(None) };
    if kind.extract::<String>().ok().as_deref() != Some("V") && !found.hasattr("fields").unwrap_or(false) {
        return Ok(None);
    }
    let name: String = found.getattr("name").and_then(|name| name.extract()).unwrap_or_default();
    let Some(known @ (DType::BF16 | DType::F8E4M3 | DType::F8E5M2)) = dtype::named(&name) else {
        return Ok(None);
    };
    let words = if known.size() == 2 { "uint16" } else { "uint8" };
    let seen = dlpack::import(&object.call_method1("view", (words,))?, share)?;
    seen.reinterpret(known).map(Some).map_err(|error| error.raise(object.py()))
}

fn is_plain(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>()
        || object.is_instance_of::<PyTuple>()
        || object.is_instance_of::<PyBool>()
        || object.is_exact_instance_of::<PyInt>()
        || object.is_exact_instance_of::<PyFloat>()
}

/// One number of Python's; `None` for anything else.
pub(crate) fn number(object: &Bound<'_, PyAny>) -> PyResult<Option<Scalar>> {
    if let Ok(value) = object.cast::<PyBool>() {
        return Ok(Some(Scalar::Bool(value.is_true())));
    }
    if object.is_instance_of::<PyInt>() {
        return match object.extract::<i128>() {
            Ok(value) => Ok(Some(Scalar::Int(value))),
            Err(_) => {
                let what = format!("{} does not fit into 64 bits", shown(object));
                Err(exception(object.py(), "RangeError", what))
            }
        };
    }
    match object.cast::<PyFloat>() {
        Ok(value) => Ok(Some(Scalar::Float(value.value()))),
        Err(_) => Ok(None),
    }
}

/// Refuses an integer that a dtype does not hold.
pub(crate) fn check_range(py: Python<'_>, value: Scalar, dtype: DType) -> PyResult<()> {
    let value = match value {
        Scalar::Int(value) => value,
        Scalar::Float(value) if dtype.is_int() && !value.is_finite() => {
            return Err(exception(
                py,
                "RangeError",
                format!("{value} is no integer, and {dtype} holds nothing else"),
            ));
        }
        _ => return Ok(()),
    };
    let bits = dtype.size() as u32 * 8;
    let (low, high) = match dtype {
        _ if !dtype.is_int() => return Ok(()),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => (0, (1i128 << bits) - 1),
        _ => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
    };
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let what = format!("{value} does not fit into {dtype}, which holds {low} to {high}");
    Err(exception(py, "RangeError", what))
}

/// Numbers as they are found in lists, in row-major order.
struct Listed {
    values: Vec<Scalar>,
    shape: Vec<usize>,
    /// The dtype of arrays among the leaves.
    leaf: Option<DType>,
}

/// An array of nested lists of numbers: bool, i64 or f32 unless a dtype is given.
fn listed(object: &Bound<'_, PyAny>, dtype: Option<DType>) -> PyResult<Array> {
    let py = object.py();
    let mut found = Listed { values: Vec::new(), shape: Vec::new(), leaf: None };
    measure(object, &mut found.shape)?;
    found.fill(object, 0)?;
    let dtype = dtype.unwrap_or_else(|| found.dtype());
    for value in &found.values {
        check_range(py, *value, dtype)?;
    }
    let Listed { values, shape, .. } = found;
    crate::gil::compute(py, move || of_scalars(&values, &shape, dtype))
}

fn of_scalars(values: &[Scalar], shape: &[usize], dtype: DType) -> Result<Array, planaria::array::Error> {
    let ints = values.iter().all(|v| !matches!(v, Scalar::Float(_)));
    if dtype == DType::U64 && ints {
        let words: Vec<u64> = values.iter().map(|v| v.as_int() as u64).collect();
        return Array::from_slice(&words, shape);
    }
    if ints {
        let words: Vec<i64> = values.iter().map(|v| v.as_int() as i64).collect();
        return Array::from_slice(&words, shape)?.cast(dtype);
    }
    let words: Vec<f64> = values.iter().map(|v| v.as_f64()).collect();
    Array::from_slice(&words, shape)?.cast(dtype)
}

/// The extents of nested lists, along their first items.
fn measure(object: &Bound<'_, PyAny>, shape: &mut Vec<usize>) -> PyResult<()> {
    let mut at = object.clone();
    while let Some(items) = items(&at) {
        if shape.len() == DEPTH {
            return Err(exception(at.py(), "ShapeError", format!("lists nest deeper than {DEPTH}")));
        }
        let len = items.len()?;
        shape.push(len);
        if len == 0 {
            return Ok(());
        }
        at = items.get_item(0)?;
    }
    if let Some(array) = leaf(&at)? {
        shape.extend_from_slice(array.shape());
    }
    Ok(())
}

/// Lists and tuples; anything else is a leaf.
fn items<'a, 'py>(object: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, PyAny>> {
    (object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()).then_some(object)
}

/// An array among the items of a list.
fn leaf(object: &Bound<'_, PyAny>) -> PyResult<Option<Array>> {
    if is_plain(object) || object.is_instance_of::<PyString>() || number(object)?.is_some() {
        return Ok(None);
    }
    shared(object, Share::IfPossible)
}

impl Listed {
    fn fill(&mut self, object: &Bound<'_, PyAny>, depth: usize) -> PyResult<()> {
        let py = object.py();
        let ragged = |found: String| {
            let what = format!("lists are ragged: {found} at depth {depth}, where the first ones have shape");
            exception(py, "ShapeError", format!("{what} {:?}", self.shape))
        };
        if let Some(items) = items(object) {
            let len = items.len()?;
            if self.shape.get(depth) != Some(&len) {
                return Err(ragged(format!("a list of {len}")));
            }
            for at in 0..len {
                self.fill(&items.get_item(at)?, depth + 1)?;
            }
            return Ok(());
        }
        if let Some(value) = number(object)? {
            if depth != self.shape.len() {
                return Err(ragged("a number".into()));
            }
            self.values.push(value);
            return Ok(());
        }
        let Some(array) = leaf(object)? else {
            let what = format!("an array cannot hold {}; give numbers or bools", object.get_type().name()?);
            return Err(exception(py, "DTypeError", what));
        };
        if array.shape()[..] != self.shape[depth..] {
            return Err(ragged(format!("an array of shape {}", array.shape())));
        }
        let joined =
            self.leaf.map_or(Ok(array.dtype()), |d| planaria::array::promote("array", d, array.dtype()));
        self.leaf = Some(joined.map_err(|error| error.raise(py))?);
        self.values.extend(crate::gil::compute(py, || scalars(&array))?);
        Ok(())
    }

    fn dtype(&self) -> DType {
        let family = |v: &Scalar| match v {
            Scalar::Bool(_) => 0,
            Scalar::Int(_) => 1,
            Scalar::Float(_) => 2,
        };
        match (self.leaf, self.values.iter().map(family).max()) {
            (Some(dtype), _) => dtype,
            (None, Some(0)) => DType::Bool,
            (None, Some(1)) => DType::I64,
            (None, _) => DType::F32,
        }
    }
}

/// Every element in row-major order, wide enough for any dtype.
pub(crate) fn scalars(array: &Array) -> Result<Vec<Scalar>, planaria::array::Error> {
    Ok(match array.dtype() {
        DType::Bool => {
            array.cast(DType::U8)?.to_vec::<u8>()?.into_iter().map(|v| Scalar::Bool(v != 0)).collect()
        }
        DType::U64 => array.to_vec::<u64>()?.into_iter().map(|v| Scalar::Int(v.into())).collect(),
        dtype if dtype.is_int() => {
            array.cast(DType::I64)?.to_vec::<i64>()?.into_iter().map(|v| Scalar::Int(v.into())).collect()
        }
        _ => array.cast(DType::F64)?.to_vec::<f64>()?.into_iter().map(Scalar::Float).collect(),
    })
}
