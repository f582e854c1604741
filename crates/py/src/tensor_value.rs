//! A tensor as a number or an array of others: its one element, or its value.

use planaria::array::Scalar;
use pyo3::prelude::*;

use crate::array::{PyArray, scalar};
use crate::error::exception;
use crate::tensor::{PyTensor, run};

impl PyTensor {
    /// The only element.
    fn single(&self, py: Python<'_>, what: &str) -> PyResult<Scalar> {
        let (shape, numel) = (self.0.shape(), self.0.numel());
        if numel != 1 {
            return Err(exception(
                py,
                "ArgumentError",
                format!("{what} needs one element; shape {shape} has {numel}"),
            ));
        }
        let tensor = self.0.clone();
        run(py, tensor.layout().is_some(), move || Ok(tensor.whole()?.item()?))
    }
}

#[pymethods]
impl PyTensor {
    /// The value of a tensor with one element. Collective.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        scalar(py, self.single(py, "item()")?)
    }

    /// Collective, as `item` is.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.single(py, "bool()")?.as_bool())
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.single(py, "float()")?.as_f64())
    }

    fn __int__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let value = self.single(py, "int()")?;
        py.get_type::<pyo3::types::PyInt>().call1((scalar(py, value)?,))
    }

    /// NumPy leaves operators with a tensor on their right to the tensor.
    #[classattr]
    fn __array_ufunc__() -> Option<PyTensor> {
        None
    }

    /// The value for NumPy; of a tensor on a mesh only `full()` gives it, since other ranks take part.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(layout) = self.0.layout() {
            let what =
                format!("the tensor lies on {layout}; give NumPy full(), which all ranks call, or local()");
            return Err(exception(py, "LayoutError", what));
        }
        PyArray::__array__(&Bound::new(py, PyArray(self.0.local().clone()))?, dtype, copy)
    }
}
