//! The class `Array`: its attributes, and what other libraries see of it.

use planaria::array::{Array, DType, Scalar};
use pyo3::exceptions::{PyBufferError, PyImportError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyCapsule, PyFloat, PyInt, PyList, PyTuple};

use crate::dlpack::Memory;
use crate::dtype::{PyDType, dtype_of, numpy_name, optional};
use crate::error::Raise;
use crate::gil::compute;
use crate::number::{Int, Size, sizes};
use crate::object::{Share, array_of, scalars};
use crate::{display, dlpack};

/// An n-dimensional array in one memory. Basic indexing gives views, which see each other's writes.
///
/// >>> import planaria
/// >>> x = planaria.array([[1.0, 2.0], [3.0, 4.0]])
/// >>> x[:, 1] *= 10
/// >>> (x @ x.T)[0, 0].item(), x.T.strides
/// (401.0, (1, 2))
#[pyclass(frozen, name = "Array", module = "planaria", from_py_object)]
#[derive(Clone, Debug)]
pub(crate) struct PyArray(pub(crate) Array);

/// One element as Python's own number.
pub(crate) fn scalar(py: Python<'_>, value: Scalar) -> PyResult<Bound<'_, PyAny>> {
    Ok(match value {
        Scalar::Bool(value) => PyBool::new(py, value).to_owned().into_any(),
        Scalar::Int(value) => value.into_pyobject(py)?.into_any(),
        Scalar::Float(value) => PyFloat::new(py, value).into_any(),
    })
}

#[pymethods]
impl PyArray {
    /// Extents.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape().iter())
    }

    /// Element type.
    #[getter]
    fn dtype(&self) -> PyDType {
        PyDType(self.0.dtype())
    }

    /// Number of dims.
    #[getter]
    fn ndim(&self) -> usize {
        self.0.ndim()
    }

    /// Number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.0.numel()
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.numel() * self.0.dtype().size()
    }

    /// Elements between neighbours along each dim.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.strides().iter())
    }

    /// Where the bytes live.
    #[getter]
    fn device(&self) -> String {
        self.0.device().to_string()
    }

    /// The array on a device; there is only the one that it is on.
    #[pyo3(signature = (device, /, *, stream=None))]
    fn to_device(&self, device: &str, stream: Option<&Bound<'_, PyAny>>) -> PyResult<PyArray> {
        if stream.is_some_and(|stream| !stream.is_none()) {
            return Err(PyValueError::new_err("stream is for devices that have streams; use None"));
        }
        if device != self.0.device().to_string() {
            let what = format!("device '{device}' is not one of arrays in Python; use '{}'", self.0.device());
            return Err(PyValueError::new_err(what));
        }
        Ok(self.clone())
    }

    /// Whether writes are refused.
    #[getter]
    fn readonly(&self) -> bool {
        self.0.is_readonly()
    }

    /// All dims in reverse order, as a view.
    #[getter(T)]
    fn reversed(&self, py: Python<'_>) -> PyResult<PyArray> {
        let order: Vec<i64> = (0..self.0.ndim() as i64).rev().collect();
        self.0.permute(&order).map(PyArray).map_err(|error| error.raise(py))
    }

    /// The last two dims swapped, as a view.
    #[getter(mT)]
    fn matrix_transposed(&self, py: Python<'_>) -> PyResult<PyArray> {
        if self.0.ndim() < 2 {
            let what = format!("mT needs two dims or more; the shape is {}", self.0.shape());
            return Err(crate::error::exception(py, "ShapeError", what));
        }
        self.0.transpose(-2, -1).map(PyArray).map_err(|error| error.raise(py))
    }

    /// A copy in memory of its own.
    fn copy(&self, py: Python<'_>) -> PyResult<PyArray> {
        compute(py, || self.0.copy()).map(PyArray)
    }

    /// An independent value that costs no copy until one of the two is written.
    ///
    /// >>> import planaria
    /// >>> x = planaria.array([1, 2])
    /// >>> before = x.snapshot()
    /// >>> x[0] = 9
    /// >>> before.tolist(), x.tolist()
    /// ([1, 2], [9, 2])
    fn snapshot(&self, py: Python<'_>) -> PyResult<PyArray> {
        compute(py, || self.0.snapshot()).map(PyArray)
    }

    /// The elements as another dtype; a copy unless `copy=False` and the dtype is the same.
    ///
    /// >>> import planaria
    /// >>> planaria.array([1.5, 2.5]).astype("i8").tolist()
    /// [1, 2]
    #[pyo3(signature = (dtype, *, copy=true))]
    fn astype(&self, py: Python<'_>, dtype: &Bound<'_, PyAny>, copy: bool) -> PyResult<PyArray> {
        let dtype = dtype_of(dtype)?;
        if dtype == self.0.dtype() && !copy {
            return Ok(self.clone());
        }
        let same = dtype == self.0.dtype();
        compute(py, || if same { self.0.copy() } else { self.0.cast(dtype) }).map(PyArray)
    }

    /// The value of an array with one element.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let value = compute(py, || self.0.item())?;
        scalar(py, value)
    }

    /// The elements as nested lists; of a 0-d array the number.
    ///
    /// >>> import planaria
    /// >>> planaria.array([[1, 2], [3, 4]])[:, 0].tolist()
    /// [1, 3]
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let values = compute(py, || scalars(&self.0))?;
        nested(py, &values, self.0.shape())
    }

    /// A NumPy array over the same memory.
    pub(crate) fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, array) = (slf.py(), &slf.get().0);
        let numpy = py.import("numpy")?;
        let words = match array.dtype() {
            DType::BF16 => DType::U16,
            DType::F8E4M3 | DType::F8E5M2 => DType::U8,
            _ => return numpy.call_method1("from_dlpack", (slf,)),
        };
        let types = py.import("ml_dtypes").map_err(|error| {
            let what = format!("NumPy has no {}; install ml_dtypes, which has it", array.dtype());
            let missing = PyImportError::new_err(what);
            missing.set_cause(py, Some(error));
            missing
        })?;
        let words = PyArray(array.reinterpret(words).map_err(|error| error.raise(py))?);
        let seen = numpy.call_method1("from_dlpack", (words,))?;
        seen.call_method1("view", (types.getattr(numpy_name(array.dtype()))?,))
    }

    /// A torch tensor over the same memory; torch has no negative strides, so such a view is copied.
    pub(crate) fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, array) = (slf.py(), &slf.get().0);
        let torch = py.import("torch")?;
        if array.strides().iter().any(|&s| s < 0) {
            let copy = PyArray(compute(py, || array.copy())?);
            return torch.call_method1("from_dlpack", (copy,));
        }
        // A capsule spares torch its questions; that an array is read-only is said only in an answer.
        match array.is_readonly() {
            true => torch.call_method1("from_dlpack", (slf,)),
            false => torch.call_method1("from_dlpack", (dlpack::export(py, array, Memory::Shared, false)?,)),
        }
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    pub(crate) fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let seen = PyArray::numpy(slf)?;
        let same = match dtype {
            Some(dtype) if !dtype.is_none() => seen.getattr("dtype")?.eq(dtype)?,
            _ => true,
        };
        match (same, copy) {
            (true, Some(true)) => seen.call_method0("copy"),
            (true, _) => Ok(seen),
            (false, Some(false)) => Err(PyValueError::new_err("another dtype needs a copy; use copy=None")),
            (false, _) => seen.call_method1("astype", (dtype,)),
        }
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if stream.is_some_and(|stream| !stream.is_none()) {
            return Err(PyBufferError::new_err("memory of the cpu has no streams; pass stream=None"));
        }
        if dl_device.is_some_and(|device| device != dlpack::CPU) {
            return Err(PyBufferError::new_err("the array is on the cpu (1, 0); move it after the exchange"));
        }
        let versioned = max_version.is_some_and(|version| version >= (1, 0));
        match copy {
            Some(true) => dlpack::export(py, &compute(py, || self.0.copy())?, Memory::Copied, versioned),
            _ => dlpack::export(py, &self.0, Memory::Shared, versioned),
        }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    #[pyo3(signature = (*, api_version=None))]
    fn __array_namespace__<'py>(
        &self,
        py: Python<'py>,
        api_version: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let namespace = py.import("planaria.array_api")?;
        let known: Vec<String> = namespace.getattr("_VERSIONS")?.extract()?;
        match api_version {
            Some(version) if !known.iter().any(|k| k == version) => Err(PyValueError::new_err(format!(
                "array API {version} is not supported; {} is",
                known.join(", ")
            ))),
            _ => Ok(namespace.into_any()),
        }
    }

    fn __len__(&self) -> PyResult<usize> {
        match self.0.shape().first() {
            Some(&len) => Ok(len),
            None => Err(PyTypeError::new_err("a 0-d array has no length")),
        }
    }

    /// The parts along the first dim, each a view.
    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let builtins = slf.py().import("builtins")?;
        let positions = builtins.call_method1("range", (slf.get().__len__()?,))?;
        builtins.call_method1("map", (slf.getattr("__getitem__")?, positions))
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.single(py, "bool()")?.as_bool())
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.single(py, "float()")?.as_f64())
    }

    fn __complex__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<pyo3::types::PyComplex>().call1((self.single(py, "complex()")?.as_f64(),))
    }

    fn __int__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let value = self.single(py, "int()")?;
        py.get_type::<PyInt>().call1((scalar(py, value)?,))
    }

    fn __index__(&self, py: Python<'_>) -> PyResult<i128> {
        // A `TypeError`, so that `bytes(x)` goes on to the buffer.
        match self.0.ndim() {
            0 => match compute(py, || self.0.item())? {
                Scalar::Int(value) => Ok(value),
                _ => Err(PyTypeError::new_err("only a 0-d array of integers can be an index")),
            },
            _ => Err(PyTypeError::new_err("only a 0-d array of integers can be an index")),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        compute(py, || display::text(&self.0))
    }

    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        compute(py, || display::html(&self.0))
    }

    fn __copy__(&self) -> PyArray {
        self.clone()
    }

    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<PyArray> {
        self.copy(py)
    }

    /// By value; protocol 5 leaves the bytes out of band.
    fn __reduce_ex__<'py>(slf: &Bound<'py, Self>, protocol: Int) -> PyResult<Bound<'py, PyTuple>> {
        let (py, array) = (slf.py(), &slf.get().0);
        let bytes = compute(py, || array.contiguous().and_then(|flat| flat.reshape(&[flat.numel()])))?;
        let bytes = compute(py, || {
            planaria::array::Array::from_bytes(
                &bytes.bytes()?,
                &[bytes.numel() * bytes.dtype().size()],
                DType::U8,
            )
        })?;
        let bytes = Py::new(py, PyArray(bytes))?;
        let payload = match protocol.0 {
            5.. => py.import("pickle")?.call_method1("PickleBuffer", (bytes,))?,
            _ => py.get_type::<pyo3::types::PyBytes>().call1((bytes,))?,
        };
        let rebuild = py.import("planaria._planaria")?.getattr("rebuild")?;
        let shape = PyTuple::new(py, array.shape().iter())?;
        (rebuild, (payload, array.dtype().name(), shape)).into_pyobject(py)
    }
}

impl PyArray {
    fn single(&self, py: Python<'_>, what: &str) -> PyResult<Scalar> {
        if self.0.numel() != 1 {
            let what = format!("{what} needs one element; shape {} has {}", self.0.shape(), self.0.numel());
            return Err(crate::error::exception(py, "ArgumentError", what));
        }
        compute(py, || self.0.item())
    }
}

fn nested<'py>(py: Python<'py>, values: &[Scalar], shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    let [len, inner @ ..] = shape else {
        return match values.first() {
            Some(&value) => scalar(py, value),
            None => Ok(py.None().into_bound(py)),
        };
    };
    let step = inner.iter().product::<usize>();
    let list = PyList::empty(py);
    for at in 0..*len {
        list.append(nested(py, &values[at * step..(at + 1) * step], inner)?)?;
    }
    Ok(list.into_any())
}

/// What `pickle` calls to make an array of its bytes again.
#[pyfunction]
pub(crate) fn rebuild(
    py: Python<'_>,
    payload: &Bound<'_, PyAny>,
    dtype: &str,
    shape: Vec<usize>,
) -> PyResult<PyArray> {
    let dtype: DType = dtype.parse().map_err(|error: planaria::layout::Error| error.raise(py))?;
    let bytes = array_of(payload, Some(DType::U8), Share::IfPossible)?;
    compute(py, || Array::from_bytes(&bytes.contiguous()?.bytes()?, &shape, dtype)).map(PyArray)
}

/// An array of nested lists, numbers, or anything with `__dlpack__`, a buffer or `__array__`.
///
/// `copy=None` shares memory where it can, `True` never does, `False` raises `ValueError` where it cannot.
///
/// >>> import planaria
/// >>> planaria.array([[1, 2], [3, 4]], dtype="bf16")
/// Array bf16[2, 2]
/// [[1.0, 2.0],
///  [3.0, 4.0]]
#[pyfunction]
#[pyo3(signature = (obj, dtype=None, *, copy=None))]
pub(crate) fn array(
    obj: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
    copy: Option<bool>,
) -> PyResult<PyArray> {
    array_of(obj, optional(dtype)?, Share::from_copy(copy)).map(PyArray)
}

/// An array over the memory of anything with `__dlpack__`.
///
/// >>> import planaria
/// >>> x = planaria.array([1, 2, 3])
/// >>> planaria.from_dlpack(x)[0] = 9
/// >>> x.tolist()
/// [9, 2, 3]
#[pyfunction]
#[pyo3(signature = (x, *, copy=None))]
pub(crate) fn from_dlpack(py: Python<'_>, x: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<PyArray> {
    if !x.hasattr("__dlpack__")? {
        let what = format!("{} has no __dlpack__; use planaria.array", x.get_type().name()?);
        return Err(PyTypeError::new_err(what));
    }
    let seen = dlpack::import(x, Share::from_copy(copy))?;
    match copy {
        Some(true) => compute(py, || seen.copy()).map(PyArray),
        _ => Ok(PyArray(seen)),
    }
}

/// An array of unspecified values, to be filled.
#[pyfunction]
pub(crate) fn empty(py: Python<'_>, shape: Vec<Size>, dtype: &Bound<'_, PyAny>) -> PyResult<PyArray> {
    let dtype = dtype_of(dtype)?;
    compute(py, || Array::empty(&sizes(&shape), dtype)).map(PyArray)
}

/// What tells arrays over the same elements from others while they live: the address of the first. Nothing for arrays without
/// elements, or with gaps between them.
#[pyfunction]
pub(crate) fn address(py: Python<'_>, x: &PyArray) -> PyResult<Option<usize>> {
    if !x.0.is_contiguous() || x.0.numel() == 0 {
        return Ok(None);
    }
    compute(py, || x.0.bytes().map(|bytes| Some(bytes.as_ptr().addr())))
}

/// Whether a write to one of two arrays may be seen in the other; a snapshot has the address of its origin, and is apart.
#[pyfunction]
pub(crate) fn shares(a: &PyArray, b: &PyArray) -> bool {
    a.0.shares_storage(&b.0)
}
