//! The operations of the array API standard that move elements without changing them.

use planaria::array::{Array, DType, Error, ops, promote};
use pyo3::prelude::*;

use crate::array::PyArray;
use crate::dtype::PyDType;
use crate::error::Raise;
use crate::gil::compute;
use crate::operators::CastIf;

/// The dtype two others meet in.
#[pyfunction]
pub(crate) fn promoted(py: Python<'_>, a: PyDType, b: PyDType) -> PyResult<PyDType> {
    promote("result_type", a.0, b.0).map(PyDType).map_err(|error| error.raise(py))
}

/// The same elements under another shape; one extent may be -1. A view where strides allow it.
#[pyfunction]
pub(crate) fn reshape(py: Python<'_>, x: &PyArray, shape: Vec<i64>) -> PyResult<PyArray> {
    let known: i64 = shape.iter().filter(|n| **n >= 0).product();
    let open = shape.iter().filter(|n| **n < 0).count();
    let numel = x.0.numel() as i64;
    let fits = open == 0 || (open == 1 && known > 0 && numel % known == 0);
    if !fits || shape.iter().any(|n| *n < -1) {
        let what = format!("{:?} does not fit {} elements", shape, x.0.numel());
        return Err(crate::error::exception(py, "ShapeError", what));
    }
    let shape: Vec<usize> = shape.iter().map(|n| if *n < 0 { numel / known } else { *n } as usize).collect();
    compute(py, || x.0.reshape(&shape)).map(PyArray)
}

/// Dims in another order, as a view.
#[pyfunction]
pub(crate) fn permute(py: Python<'_>, x: &PyArray, axes: Vec<i64>) -> PyResult<PyArray> {
    compute(py, || x.0.permute(&axes)).map(PyArray)
}

/// Repeated along dims of extent 1, as a view.
#[pyfunction]
pub(crate) fn broadcast_to(py: Python<'_>, x: &PyArray, shape: Vec<usize>) -> PyResult<PyArray> {
    compute(py, || x.0.broadcast_to(&shape)).map(PyArray)
}

/// The shape that shapes broadcast to.
#[pyfunction]
pub(crate) fn broadcast_shapes(py: Python<'_>, shapes: Vec<Vec<usize>>) -> PyResult<Vec<usize>> {
    let join = || {
        let mut joined = planaria::layout::Shape::default();
        for shape in &shapes {
            joined = planaria::array::broadcast_shapes(
                "broadcast",
                &joined,
                &planaria::layout::Shape::new(shape)?,
            )?;
        }
        Ok::<_, Error>(joined.to_vec())
    };
    join().map_err(|error| error.raise(py))
}

/// Joined along a dim that they have, or along a new one.
#[pyfunction]
pub(crate) fn join(py: Python<'_>, arrays: Vec<PyArray>, axis: Option<i64>, new: bool) -> PyResult<PyArray> {
    let made = compute(py, || {
        let mut dtype = arrays.first().map_or(DType::F32, |x| x.0.dtype());
        for x in &arrays {
            dtype = promote("concat", dtype, x.0.dtype())?;
        }
        let parts = arrays.iter().map(|x| {
            let x = x.0.cast_if(dtype)?;
            if axis.is_none() { x.reshape(&[x.numel()]) } else { Ok(x) }
        });
        let parts = parts.collect::<Result<Vec<Array>, Error>>()?;
        let parts: Vec<&Array> = parts.iter().collect();
        if new { ops::stack(&parts, axis.unwrap_or(0)) } else { ops::concat(&parts, axis.unwrap_or(0)) }
    });
    made.map(PyArray)
}

/// Dims of extent 1 added or removed.
#[pyfunction]
pub(crate) fn unsqueeze(py: Python<'_>, x: &PyArray, axis: i64) -> PyResult<PyArray> {
    compute(py, || x.0.unsqueeze(axis)).map(PyArray)
}

/// Dims of extent 1 removed.
#[pyfunction]
pub(crate) fn squeeze(py: Python<'_>, x: &PyArray, axes: Vec<i64>) -> PyResult<PyArray> {
    let made = compute(py, || {
        for &axis in &axes {
            let ndim = x.0.ndim() as i64;
            let dim = if axis < 0 { axis + ndim } else { axis };
            let size = usize::try_from(dim).ok().and_then(|dim| x.0.shape().get(dim).copied());
            match size {
                Some(1) => {}
                Some(size) => {
                    let what = format!("dim {axis} has size {size}, not 1");
                    return Err(Error::Argument { op: "squeeze", what });
                }
                None => return Err(Error::DimOutOfRange { op: "squeeze", dim: axis, ndim: x.0.ndim() }),
            }
        }
        if axes.is_empty() { Ok(x.0.clone()) } else { x.0.squeeze(&axes) }
    });
    made.map(PyArray)
}

/// Elements in reverse along dims.
#[pyfunction]
pub(crate) fn flip(py: Python<'_>, x: &PyArray, axes: Vec<i64>) -> PyResult<PyArray> {
    compute(py, || x.0.flip(&axes)).map(PyArray)
}

/// Elements shifted along dims, around the end.
#[pyfunction]
pub(crate) fn roll(py: Python<'_>, x: &PyArray, shifts: Vec<i64>, axes: Vec<i64>) -> PyResult<PyArray> {
    compute(py, || x.0.roll(&shifts, &axes)).map(PyArray)
}

/// Copies side by side.
#[pyfunction]
pub(crate) fn tile(py: Python<'_>, x: &PyArray, times: Vec<usize>) -> PyResult<PyArray> {
    compute(py, || x.0.repeat(&times)).map(PyArray)
}

/// Every element along a dim as often as is said for it.
#[pyfunction]
pub(crate) fn repeat(py: Python<'_>, x: &PyArray, repeats: Vec<usize>, axis: i64) -> PyResult<PyArray> {
    compute(py, || x.0.repeat_interleave(&repeats, axis)).map(PyArray)
}

/// The part above or below a diagonal.
#[pyfunction]
pub(crate) fn triangle(py: Python<'_>, x: &PyArray, k: i64, upper: bool) -> PyResult<PyArray> {
    compute(py, || if upper { x.0.triu(k) } else { x.0.tril(k) }).map(PyArray)
}

/// Elements at positions along a dim.
#[pyfunction]
pub(crate) fn take(py: Python<'_>, x: &PyArray, indices: &PyArray, axis: i64) -> PyResult<PyArray> {
    compute(py, || x.0.index_select(axis, &indices.0.cast_if(DType::I64)?)).map(PyArray)
}

/// For every line along a dim, elements at positions of its own.
#[pyfunction]
pub(crate) fn take_along(py: Python<'_>, x: &PyArray, indices: &PyArray, axis: i64) -> PyResult<PyArray> {
    compute(py, || x.0.take_along_dim(&indices.0.cast_if(DType::I64)?, axis)).map(PyArray)
}

/// Positions of the elements that are not zero, one row for each.
#[pyfunction]
pub(crate) fn nonzero(py: Python<'_>, x: &PyArray) -> PyResult<PyArray> {
    compute(py, || x.0.nonzero()).map(PyArray)
}
