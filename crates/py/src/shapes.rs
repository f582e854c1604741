//! The operations of the array API standard that move elements without changing them.

use planaria::array::{Array, DType, Error, ops, promote};
use pyo3::prelude::*;

use crate::array::PyArray;
use crate::dtype::PyDType;
use crate::error::Raise;
use crate::gil::compute;
use crate::number::{Int, Size, ints, sizes};
use crate::operators::CastIf;

/// The dtype two others meet in.
#[pyfunction]
pub(crate) fn promoted(py: Python<'_>, a: PyDType, b: PyDType) -> PyResult<PyDType> {
    promote("result_type", a.0, b.0).map(PyDType).map_err(|error| error.raise(py))
}

/// The same elements under another shape; one extent may be -1. A view where strides allow it.
#[pyfunction]
pub(crate) fn reshape(py: Python<'_>, x: &PyArray, shape: Vec<Int>) -> PyResult<PyArray> {
    let shape = resolved(py, &ints(&shape), x.0.numel())?;
    compute(py, || x.0.reshape(&shape)).map(PyArray)
}

/// Extents for as many elements, with what is left to one that is -1.
pub(crate) fn resolved(py: Python<'_>, shape: &[i64], numel: usize) -> PyResult<Vec<usize>> {
    let refused = || {
        let what = format!("{shape:?} does not fit {numel} elements; give extents whose product they are");
        crate::error::exception(py, "ShapeError", what)
    };
    let given = shape.iter().filter(|n| **n != -1).map(|n| usize::try_from(*n).ok());
    let known = given.collect::<Option<Vec<usize>>>().ok_or_else(refused)?;
    let known = known.iter().try_fold(1usize, |all, n| all.checked_mul(*n)).ok_or_else(refused)?;
    let left = match shape.len() - shape.iter().filter(|n| **n != -1).count() {
        0 => 1,
        1 if known > 0 && numel.is_multiple_of(known) => numel / known,
        _ => return Err(refused()),
    };
    Ok(shape.iter().map(|n| usize::try_from(*n).unwrap_or(left)).collect())
}

/// Dims in another order, as a view.
#[pyfunction]
pub(crate) fn permute(py: Python<'_>, x: &PyArray, axes: Vec<Int>) -> PyResult<PyArray> {
    compute(py, || x.0.permute(&ints(&axes))).map(PyArray)
}

/// Repeated along dims of extent 1, as a view.
#[pyfunction]
pub(crate) fn broadcast_to(py: Python<'_>, x: &PyArray, shape: Vec<Size>) -> PyResult<PyArray> {
    compute(py, || x.0.broadcast_to(&sizes(&shape))).map(PyArray)
}

/// The shape that shapes broadcast to.
#[pyfunction]
pub(crate) fn broadcast_shapes(py: Python<'_>, shapes: Vec<Vec<Size>>) -> PyResult<Vec<usize>> {
    let join = || {
        let mut joined = planaria::layout::Shape::default();
        for shape in &shapes {
            joined = planaria::array::broadcast_shapes(
                "broadcast",
                &joined,
                &planaria::layout::Shape::new(&sizes(shape))?,
            )?;
        }
        Ok::<_, Error>(joined.to_vec())
    };
    join().map_err(|error| error.raise(py))
}

/// Joined along a dim that they have, or along a new one.
#[pyfunction]
pub(crate) fn join(py: Python<'_>, arrays: Vec<PyArray>, axis: Option<Int>, new: bool) -> PyResult<PyArray> {
    let axis = axis.map(|axis| axis.0);
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
pub(crate) fn unsqueeze(py: Python<'_>, x: &PyArray, axis: Int) -> PyResult<PyArray> {
    compute(py, || x.0.unsqueeze(axis.0)).map(PyArray)
}

/// Dims of extent 1 removed.
#[pyfunction]
pub(crate) fn squeeze(py: Python<'_>, x: &PyArray, axes: Vec<Int>) -> PyResult<PyArray> {
    let axes = ints(&axes);
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
pub(crate) fn flip(py: Python<'_>, x: &PyArray, axes: Vec<Int>) -> PyResult<PyArray> {
    compute(py, || x.0.flip(&ints(&axes))).map(PyArray)
}

/// Elements shifted along dims, around the end.
#[pyfunction]
pub(crate) fn roll(py: Python<'_>, x: &PyArray, shifts: Vec<Int>, axes: Vec<Int>) -> PyResult<PyArray> {
    compute(py, || x.0.roll(&ints(&shifts), &ints(&axes))).map(PyArray)
}

/// Copies side by side.
#[pyfunction]
pub(crate) fn tile(py: Python<'_>, x: &PyArray, times: Vec<Size>) -> PyResult<PyArray> {
    compute(py, || x.0.repeat(&sizes(&times))).map(PyArray)
}

/// Every element along a dim as often as is said for it.
#[pyfunction]
pub(crate) fn repeat(py: Python<'_>, x: &PyArray, repeats: Vec<Size>, axis: Int) -> PyResult<PyArray> {
    compute(py, || x.0.repeat_interleave(&sizes(&repeats), axis.0)).map(PyArray)
}

/// The part above or below a diagonal.
#[pyfunction]
pub(crate) fn triangle(py: Python<'_>, x: &PyArray, k: Int, upper: bool) -> PyResult<PyArray> {
    compute(py, || if upper { x.0.triu(k.0) } else { x.0.tril(k.0) }).map(PyArray)
}

/// Elements at positions along a dim.
#[pyfunction]
pub(crate) fn take(py: Python<'_>, x: &PyArray, indices: &PyArray, axis: Int) -> PyResult<PyArray> {
    compute(py, || x.0.index_select(axis.0, &indices.0.cast_if(DType::I64)?)).map(PyArray)
}

/// For every line along a dim, elements at positions of its own.
#[pyfunction]
pub(crate) fn take_along(py: Python<'_>, x: &PyArray, indices: &PyArray, axis: Int) -> PyResult<PyArray> {
    compute(py, || x.0.take_along_dim(&indices.0.cast_if(DType::I64)?, axis.0)).map(PyArray)
}

/// Positions of the elements that are not zero, one row for each.
#[pyfunction]
pub(crate) fn nonzero(py: Python<'_>, x: &PyArray) -> PyResult<PyArray> {
    compute(py, || x.0.nonzero()).map(PyArray)
}
