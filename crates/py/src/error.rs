//! Errors of the crates as Python exceptions: the class says the kind, the message is the crate's own.

use planaria::array::Error as ArrayError;
use planaria::layout::Error as LayoutError;
use pyo3::prelude::*;

/// An error that knows its exception.
pub(crate) trait Raise {
    fn raise(self, py: Python<'_>) -> PyErr;
}

/// An exception of a class in `planaria._errors`.
pub(crate) fn exception(py: Python<'_>, class: &str, message: impl Into<String>) -> PyErr {
    exception_with(py, class, message, |_| Ok(()))
}

/// The same with attributes, which `attach` sets.
pub(crate) fn exception_with(
    py: Python<'_>,
    class: &str,
    message: impl Into<String>,
    attach: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>,
) -> PyErr {
    let made = || {
        let value = py.import("planaria._errors")?.getattr(class)?.call1((message.into(),))?;
        attach(&value)?;
        Ok(PyErr::from_value(value))
    };
    made().unwrap_or_else(|error: PyErr| error)
}

impl Raise for LayoutError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let class = match self {
            LayoutError::ShapeTooLarge { .. } => "ShapeError",
            _ => "LayoutError",
        };
        exception(py, class, self.to_string())
    }
}

impl Raise for ArrayError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let class = match self {
            ArrayError::Layout(error) => return error.raise(py),
            ArrayError::DimOutOfRange { .. }
            | ArrayError::IndexOutOfRange { .. }
            | ArrayError::IdOutOfRange { .. }
            | ArrayError::TooManyIndices { .. }
            | ArrayError::MaskShape { .. }
            | ArrayError::IndexDType { .. }
            | ArrayError::IndexBroadcast { .. }
            | ArrayError::PositionOutOfRange { .. }
            | ArrayError::EmptyDim { .. } => "ArrayIndexError",
            ArrayError::ShapeMismatch { .. }
            | ArrayError::Broadcast { .. }
            | ArrayError::OutOfStorage { .. } => "ShapeError",
            ArrayError::DType { .. } | ArrayError::DTypeMismatch { .. } => "DTypeError",
            ArrayError::OutOfMemory { .. } => "OutOfMemoryError",
            ArrayError::Device { .. }
            | ArrayError::MixedDevices { .. }
            | ArrayError::NotOnDevice { .. }
            | ArrayError::Cuda(_) => "DeviceError",
            _ => "ArgumentError",
        };
        exception(py, class, self.to_string())
    }
}

/// A refusal that arose in this crate, below Python: class and message.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) &'static str, pub(crate) String);

impl Raise for Refusal {
    fn raise(self, py: Python<'_>) -> PyErr {
        exception(py, self.0, self.1)
    }
}

/// A dtype that arrays do not have.
pub(crate) fn no_dtype(py: Python<'_>, found: &str) -> PyErr {
    let names = planaria::array::DType::ALL.map(|d| d.name()).join(" ");
    exception(py, "DTypeError", format!("arrays do not have the dtype {found}; use one of {names}"))
}
