//! What stands between the brackets of `x[...]`, read from Python.

use planaria::array::{Array, DType, Index, Scalar};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PyInt, PyList, PySlice, PyString, PyTuple};

use crate::array::PyArray;
use crate::error::exception;
use crate::gil::compute;
use crate::object::{Share, array_of, check_range, number};

/// An index expression: a tuple of entries, or one.
pub(crate) fn expression(object: &Bound<'_, PyAny>) -> PyResult<Vec<Index>> {
    match object.cast::<PyTuple>() {
        Ok(entries) => entries.iter().map(|entry| one(&entry)).collect(),
        Err(_) => Ok(vec![one(object)?]),
    }
}

fn one(object: &Bound<'_, PyAny>) -> PyResult<Index> {
    if object.is_none() {
        return Ok(Index::NewAxis);
    }
    if object.is_instance_of::<PyEllipsis>() {
        return Ok(Index::Ellipsis);
    }
    if let Ok(keep) = object.cast::<PyBool>() {
        return Ok(Index::Bool(keep.is_true()));
    }
    if object.is_instance_of::<PyInt>() {
        return Ok(Index::Int(position(object)));
    }
    if let Ok(slice) = object.cast::<PySlice>() {
        return Ok(Index::slice(bound(slice, "start")?, bound(slice, "stop")?, bound(slice, "step")?));
    }
    if let Ok(array) = object.cast::<PyArray>() {
        return entry(object.py(), array.get().0.clone());
    }
    if object.is_instance_of::<PyString>() || number(object)?.is_some() {
        return Err(unfit(object));
    }
    if is_hollow(object)? {
        return array_of(object, Some(DType::I64), Share::IfPossible).map(Index::Take);
    }
    // A scalar of NumPy is an index, not an array of one.
    if object.hasattr("__index__")? && !object.hasattr("__dlpack__")? {
        return Ok(Index::Int(position(&object.call_method0("__index__")?)));
    }
    match array_of(object, None, Share::IfPossible) {
        Ok(array) => entry(object.py(), array),
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(object.py()) => {
            Err(unfit(object))
        }
        Err(error) => Err(error),
    }
}

/// Whether an object is a list in which there are only lists, and no number that would tell a dtype.
fn is_hollow(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Ok(list) = object.cast::<PyList>() else { return Ok(false) };
    let mut depth = 0;
    let mut inner: Vec<Bound<'_, PyAny>> = list.iter().collect();
    // Deeper than any array is, so that a list in itself comes to an end.
    while let (Some(first), true) = (inner.first().cloned(), depth < 64) {
        let Ok(list) = first.cast::<PyList>() else { return Ok(false) };
        inner = list.iter().collect();
        depth += 1;
    }
    Ok(inner.is_empty())
}

/// Masks that are a single truth value act as one.
fn entry(py: Python<'_>, array: Array) -> PyResult<Index> {
    Ok(match (array.dtype(), array.ndim()) {
        (DType::Bool, 0) => Index::Bool(compute(py, || array.item().map(Scalar::as_bool))?),
        (DType::Bool, _) => Index::Mask(array),
        _ => Index::Take(array),
    })
}

fn unfit(object: &Bound<'_, PyAny>) -> PyErr {
    let name = object.get_type().name().map_or_else(|_| "this".into(), |name| name.to_string());
    let what =
        format!("{name} cannot index; use integers, slices, None, ..., bools, masks or integer arrays");
    exception(object.py(), "ArrayIndexError", what)
}

/// An integer of any size; past 64 bits it is out of range anyway.
fn position(object: &Bound<'_, PyAny>) -> i64 {
    object.extract::<i64>().unwrap_or_else(|_| match object.lt(0) {
        Ok(true) => i64::MIN,
        _ => i64::MAX,
    })
}

fn bound(slice: &Bound<'_, PySlice>, name: &str) -> PyResult<Option<i64>> {
    let value = slice.getattr(name)?;
    if value.is_none() {
        return Ok(None);
    }
    if !value.hasattr("__index__")? {
        let what = format!("a slice's {name} must be an integer or None, not {}", value.get_type().name()?);
        return Err(exception(slice.py(), "ArrayIndexError", what));
    }
    Ok(Some(position(&value.call_method0("__index__")?)))
}

/// A value to be written into an array of `dtype`.
pub(crate) fn written(object: &Bound<'_, PyAny>, dtype: DType) -> PyResult<Array> {
    let py = object.py();
    if let Some(value) = number(object)? {
        check_range(py, value, dtype)?;
        return compute(py, || Array::scalar(value, dtype));
    }
    array_of(object, Some(dtype), Share::IfPossible)
}

#[pymethods]
impl PyArray {
    fn __getitem__(&self, py: Python<'_>, index: &Bound<'_, PyAny>) -> PyResult<PyArray> {
        let index = expression(index)?;
        compute(py, || self.0.get(&index)).map(PyArray)
    }

    fn __setitem__(
        &self,
        py: Python<'_>,
        index: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let index = expression(index)?;
        let value = written(value, self.0.dtype())?;
        compute(py, || self.0.set(&index, &value))
    }

    /// `x.at[index].add(value)` adds in place; an element named twice gets both.
    ///
    /// >>> import planaria
    /// >>> x = planaria.array([0.0, 0.0])
    /// >>> x.at[[0, 0, 1]].add(1.0).tolist()
    /// [2.0, 1.0]
    #[getter]
    fn at(slf: &Bound<'_, Self>) -> PyAt {
        PyAt(slf.clone().unbind())
    }
}

/// `x.at`: waits for its index.
#[pyclass(frozen, name = "At", module = "planaria")]
#[derive(Debug)]
pub(crate) struct PyAt(Py<PyArray>);

#[pymethods]
impl PyAt {
    fn __getitem__(&self, py: Python<'_>, index: &Bound<'_, PyAny>) -> PyResult<PyPlace> {
        Ok(PyPlace { array: self.0.clone_ref(py), index: expression(index)? })
    }
}

/// `x.at[index]`: elements to be changed.
#[pyclass(frozen, name = "Place", module = "planaria")]
#[derive(Debug)]
pub(crate) struct PyPlace {
    array: Py<PyArray>,
    index: Vec<Index>,
}

#[pymethods]
impl PyPlace {
    /// Adds `value` to every element named, as often as it is named; answers the array.
    fn add(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyArray>> {
        let array = &self.array.get().0;
        let value = written(value, array.dtype())?;
        compute(py, || array.add_at(&self.index, &value))?;
        Ok(self.array.clone_ref(py))
    }
}
