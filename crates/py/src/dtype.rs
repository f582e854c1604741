//! Dtypes: ours, and how those of Python, NumPy and torch are named.

use planaria::array::DType;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::error::no_dtype;

/// The type of one element: `str(dtype)` is its name, as in `f32`.
///
/// >>> import planaria
/// >>> planaria.DType("float32") == "f32", planaria.DType("bf16").itemsize
/// (True, 2)
#[pyclass(frozen, name = "DType", module = "planaria", from_py_object)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PyDType(pub(crate) DType);

#[pymethods]
impl PyDType {
    #[new]
    fn new(name: &Bound<'_, PyAny>) -> PyResult<PyDType> {
        Ok(PyDType(dtype_of(name)?))
    }

    /// Bytes of one element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.0.size()
    }

    /// Our name.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn __str__(&self) -> &'static str {
        self.0.name()
    }

    fn __repr__(&self) -> String {
        format!("DType('{}')", self.0)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        dtype_of(other).is_ok_and(|other| other == self.0)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        PyString::new(py, self.0.name()).hash()
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> (Py<PyAny>, (&'static str,)) {
        (slf.get_type().into_any().unbind(), (slf.get().0.name(),))
    }
}

/// Names that NumPy, torch and ml_dtypes use.
const OTHERS: &[(&str, DType)] = &[
    ("int8", DType::I8),
    ("int16", DType::I16),
    ("int32", DType::I32),
    ("int64", DType::I64),
    ("uint8", DType::U8),
    ("uint16", DType::U16),
    ("uint32", DType::U32),
    ("uint64", DType::U64),
    ("float16", DType::F16),
    ("float32", DType::F32),
    ("float64", DType::F64),
    ("bfloat16", DType::BF16),
    ("float8_e4m3fn", DType::F8E4M3),
    ("float8_e5m2", DType::F8E5M2),
    // C's names for 64 bits, which NumPy has beside its own.
    ("longlong", DType::I64),
    ("ulonglong", DType::U64),
    // Types of Python itself, with the defaults of `planaria.array`.
    ("int", DType::I64),
    ("float", DType::F32),
];

/// The name that NumPy, or ml_dtypes where NumPy has none, gives a dtype.
pub(crate) fn numpy_name(dtype: DType) -> &'static str {
    if dtype == DType::Bool {
        return "bool";
    }
    OTHERS.iter().find(|(_, d)| *d == dtype).map_or("bool", |(name, _)| name)
}

/// One of ours by any of its names.
pub(crate) fn named(name: &str) -> Option<DType> {
    let known = OTHERS.iter().find(|(other, _)| *other == name).map(|(_, dtype)| *dtype);
    known.or_else(|| name.parse().ok())
}

/// The dtype an object means: ours, a name, or NumPy's or torch's.
pub(crate) fn dtype_of(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    if let Ok(dtype) = object.cast::<PyDType>() {
        return Ok(dtype.get().0);
    }
    let name = name_of(object)?;
    named(&name).ok_or_else(|| no_dtype(object.py(), &name))
}

/// The dtype an argument means, if it is given.
pub(crate) fn optional(object: Option<&Bound<'_, PyAny>>) -> PyResult<Option<DType>> {
    object.filter(|object| !object.is_none()).map(dtype_of).transpose()
}

fn name_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(text.to_cow()?.into_owned());
    }
    if object.is_instance_of::<PyType>() {
        return object.getattr("__name__")?.extract();
    }
    // NumPy's dtypes have a name; torch's print as `torch.float32`. A byte order that is not the machine's has the
    // name of its dtype and must not pass as it.
    let text = object.str()?.to_cow()?.into_owned();
    if text.starts_with(['>', '<']) {
        return Ok(text);
    }
    match object.getattr("name").and_then(|name| name.extract()) {
        Ok(name) => Ok(name),
        Err(_) => Ok(text.strip_prefix("torch.").unwrap_or(&text).to_owned()),
    }
}
