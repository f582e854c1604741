//! Integers of Python's as sizes and positions: one that is negative or too large is refused by its value.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::error::exception;

/// A number of things, or a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(pub(crate) usize);

/// A position, which may count from the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int(pub(crate) i64);

impl<'a, 'py> FromPyObject<'a, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Size> {
        let refused = || out_of_range(&object, "0 to 18446744073709551615");
        size(&object)?.map(Size).ok_or_else(refused)
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Int {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Int> {
        let refused = || out_of_range(&object, "-9223372036854775808 to 9223372036854775807");
        within(object.extract::<i64>(), object.py())?.map(Int).ok_or_else(refused)
    }
}

/// A size; `None` for an integer that is none, an error for what is no integer.
pub(crate) fn size(object: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    within(object.extract::<usize>(), object.py())
}

fn within<T>(read: PyResult<T>, py: Python<'_>) -> PyResult<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => Ok(None),
        Err(error) => Err(error),
    }
}

fn out_of_range(object: &Bound<'_, PyAny>, range: &str) -> PyErr {
    exception(object.py(), "RangeError", format!("{} is not an integer of {range}", shown(object)))
}

/// An integer as people write it; Python refuses to write the longest.
pub(crate) fn shown(object: &Bound<'_, PyAny>) -> String {
    object.str().map_or_else(|_| "an integer of thousands of digits".into(), |text| text.to_string())
}

/// The numbers of sizes.
pub(crate) fn sizes(given: &[Size]) -> Vec<usize> {
    given.iter().map(|size| size.0).collect()
}

/// The numbers of positions.
pub(crate) fn ints(given: &[Int]) -> Vec<i64> {
    given.iter().map(|int| int.0).collect()
}
