//! The class `Tensor`: one global value with a layout and a gradient history.

use std::cell::Cell;

use planaria::array::{Array, Scalar, promote};
use planaria::comm::{CommExt, alone};
use planaria::layout::Layout;
use planaria::tensor::{
    Binary, Error, GradOptions, Index, Keep, Tensor, World, backward, grad as gradients,
    no_grad as without_history,
};
use pyo3::basic::CompareOp;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::array::PyArray;
use crate::comm::PyComm;
use crate::dtype::{PyDType, dtype_of, optional};
use crate::error::{Raise, exception};
use crate::gil::{Cancel, blocking, compute};
use crate::index::expression;
use crate::layout::{PyLayout, parse_layout};
use crate::number::{Int, ints};
use crate::object::{Share, array_of, number};
use crate::shapes::resolved;
use crate::{display, operators};

impl Raise for Error {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Error::Array(error) => error.raise(py),
            Error::Layout(error) => error.raise(py),
            Error::Comm(error) => error.raise(py),
            Error::Piece { .. } => exception(py, "ShapeError", self.to_string()),
            Error::Meshes { .. } | Error::Pending { .. } => exception(py, "LayoutError", self.to_string()),
            other => exception(py, "ArgumentError", other.to_string()),
        }
    }
}

/// One global value. Its layout says which piece this rank holds; the same code runs on one rank and on many.
///
/// >>> import planaria
/// >>> x = planaria.tensor([1.0, 2.0, 3.0], requires_grad=True)
/// >>> (x * x).sum().backward()
/// >>> x.grad.full().tolist()
/// [2.0, 4.0, 6.0]
#[pyclass(frozen, name = "Tensor", module = "planaria", from_py_object)]
#[derive(Clone, Debug)]
pub(crate) struct PyTensor(pub(crate) Tensor);

thread_local! {
    /// How many `no_grad` blocks this thread is in.
    static QUIET: Cell<usize> = const { Cell::new(0) };
}

/// Runs an op where it belongs: here, or on a thread that may wait for peers.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    placed: bool,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    let quiet = QUIET.get() > 0;
    let work = move || if quiet { without_history(work) } else { work() };
    if placed { blocking(py, &Cancel::default(), work) } else { compute(py, work) }
}

impl PyTensor {
    fn apply(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Tensor) -> Result<Tensor, Error> + Send + 'static,
    ) -> PyResult<PyTensor> {
        let tensor = self.0.clone();
        run(py, tensor.layout().is_some(), move || work(&tensor)).map(PyTensor)
    }

    /// This tensor and what stands beside it, in one dtype.
    fn pair(&self, other: &Bound<'_, PyAny>) -> PyResult<Option<(Tensor, Tensor)>> {
        let py = other.py();
        let mine = self.0.clone();
        if let Ok(theirs) = other.cast::<PyTensor>() {
            let theirs = theirs.get().0.clone();
            let dtype = promote("operator", mine.dtype(), theirs.dtype()).map_err(|error| error.raise(py))?;
            let placed = mine.layout().is_some() || theirs.layout().is_some();
            let cast = move |t: Tensor| if t.dtype() == dtype { Ok(t) } else { t.cast(dtype) };
            return run(py, placed, move || Ok(Some((cast(mine)?, cast(theirs)?))));
        }
        if let Some(value) = number(other)? {
            let dtype = match value {
                Scalar::Float(_) if !mine.dtype().is_float() => planaria::array::DType::F32,
                _ => mine.dtype(),
            };
            let placed = mine.layout().is_some();
            return run(py, placed, move || {
                let mine = if mine.dtype() == dtype { mine } else { mine.cast(dtype)? };
                Ok(Some((mine, Tensor::new(Array::scalar(value, dtype)?))))
            });
        }
        match operators::operand(other)? {
            Some(operators::Operand::Array(array)) => {
                let theirs = Bound::new(py, PyTensor(Tensor::new(array)))?;
                self.pair(theirs.as_any())
            }
            _ => Ok(None),
        }
    }

    fn binary<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        op: Binary,
        swap: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let Some((x, y)) = slf.get().pair(other)? else { return Ok(py.NotImplemented().into_bound(py)) };
        let placed = x.layout().is_some() || y.layout().is_some();
        let made = run(py, placed, move || if swap { y.binary(op, &x) } else { x.binary(op, &y) })?;
        Ok(Bound::new(py, PyTensor(made))?.into_any())
    }

    /// Dtype, shape and layout.
    fn head(&self) -> String {
        let head = display::header(self.0.dtype(), self.0.shape());
        match self.0.layout() {
            Some(layout) => format!("Tensor {head} @ {layout}"),
            None => format!("Tensor {head}"),
        }
    }

    fn reduce(
        &self,
        py: Python<'_>,
        dim: Option<Dims>,
        keepdims: bool,
        work: fn(&Tensor, &[i64], Keep) -> Result<Tensor, Error>,
    ) -> PyResult<PyTensor> {
        let (dims, keep) = (dims(dim), if keepdims { Keep::Yes } else { Keep::No });
        self.apply(py, move |tensor| work(tensor, &dims, keep))
    }
}

/// One dim or several.
#[derive(FromPyObject)]
pub(crate) enum Dims {
    One(i64),
    Several(Vec<i64>),
}

pub(crate) fn dims(dim: Option<Dims>) -> Vec<i64> {
    match dim {
        None => Vec::new(),
        Some(Dims::One(dim)) => vec![dim],
        Some(Dims::Several(dims)) => dims,
    }
}

/// A tensor of any object that is an array; with a layout, of the whole value or of this rank's piece.
///
/// >>> import planaria
/// >>> rows = planaria.mesh(tp=2).layout((4, 2), "tp:S0")
/// >>> ones = planaria.array([[1.0, 1.0]] * 4)
/// >>> planaria.threads(2, lambda comm: planaria.tensor(ones, rows, comm=comm).local().shape)
/// [(2, 2), (2, 2)]
#[pyfunction]
#[pyo3(signature = (obj, layout=None, *, requires_grad=false, comm=None, dtype=None))]
pub(crate) fn tensor(
    py: Python<'_>,
    obj: &Bound<'_, PyAny>,
    layout: Option<PyLayout>,
    requires_grad: bool,
    comm: Option<Py<PyComm>>,
    dtype: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyTensor> {
    let array = match obj.cast::<PyTensor>() {
        Ok(tensor) => tensor.get().0.local().clone(),
        Err(_) => array_of(obj, optional(dtype)?, Share::IfPossible)?,
    };
    let made = match layout {
        None => Tensor::new(array),
        Some(PyLayout(layout)) => {
            let comm = match comm {
                Some(comm) => comm.get().inner(py)?,
                None => alone(),
            };
            if comm.size() < layout.mesh().size() {
                let what = format!(
                    "the mesh '{}' has {} ranks, the communicator {}",
                    layout.mesh(),
                    layout.mesh().size(),
                    comm.size()
                );
                return Err(exception(py, "LayoutError", format!("{what}; pass comm= of that many")));
            }
            let world = World::new(comm);
            run(py, true, move || place(array, &layout, &world))?
        }
    };
    if requires_grad && !made.dtype().is_float() {
        let what = format!("a tensor of {} has no gradient; use a float dtype", made.dtype());
        return Err(exception(py, "DTypeError", what));
    }
    Ok(PyTensor(if requires_grad { made.requires_grad() } else { made }))
}

fn place(array: Array, layout: &Layout, world: &World) -> Result<Tensor, Error> {
    if array.shape() == layout.shape() {
        let whole = Layout::replicated(layout.mesh(), layout.shape());
        return Tensor::from_piece(array, &whole, world)?.reshard(layout).map(|tensor| tensor.detach());
    }
    Tensor::from_piece(array, layout, world)
}

/// Gradients of `y` with respect to each of `xs`, which may be a single tensor; `None` where one does not take part.
///
/// >>> import planaria
/// >>> x = planaria.tensor([3.0], requires_grad=True)
/// >>> first = planaria.grad((x * x * x).sum(), [x], create_graph=True)[0]
/// >>> planaria.grad(first.sum(), [x])[0].full().tolist()
/// [18.0]
#[pyfunction]
#[pyo3(signature = (y, xs, create_graph=false))]
pub(crate) fn grad(
    py: Python<'_>,
    y: PyTensor,
    xs: &Bound<'_, PyAny>,
    create_graph: bool,
) -> PyResult<Vec<Option<PyTensor>>> {
    // A tensor is a sequence too, of its rows, which are other tensors than those that `y` was made of.
    let xs: Vec<PyTensor> = match xs.cast::<PyTensor>() {
        Ok(one) => vec![one.get().clone()],
        Err(_) => xs.extract()?,
    };
    let options = GradOptions { keep_history: true, differentiable: create_graph };
    let made = run(py, y.0.layout().is_some(), move || {
        let inputs: Vec<&Tensor> = xs.iter().map(|x| &x.0).collect();
        gradients(&[&y.0], &[None], &inputs, options)
    })?;
    Ok(made.into_iter().map(|grad| grad.map(PyTensor)).collect())
}

/// Within this block ops record no history.
///
/// >>> import planaria
/// >>> x = planaria.tensor([1.0], requires_grad=True)
/// >>> with planaria.no_grad():
/// ...     (x * 2.0).requires_grad
/// False
#[pyclass(frozen, name = "no_grad", module = "planaria")]
#[derive(Debug)]
pub(crate) struct PyNoGrad;

#[pymethods]
impl PyNoGrad {
    #[new]
    fn new() -> PyNoGrad {
        PyNoGrad
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(pyo3::exceptions::PyTypeError::new_err("no_grad cannot be pickled; make one in each process"))
    }

    fn __enter__(&self) {
        QUIET.set(QUIET.get() + 1);
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, _args: &Bound<'_, PyTuple>) {
        QUIET.set(QUIET.get().saturating_sub(1));
    }
}

#[pymethods]
impl PyTensor {
    /// Extents of the global value.
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

    /// The layout; `None` for a value that lies on no mesh.
    #[getter]
    fn layout(&self) -> Option<PyLayout> {
        self.0.layout().cloned().map(PyLayout)
    }

    /// The communicator that its pieces are exchanged over; `None` for a value that lies on no mesh.
    #[getter]
    fn comm(&self) -> Option<PyComm> {
        self.0.world().and_then(World::comm).cloned().map(PyComm::new)
    }

    /// Whether gradients reach it.
    #[getter]
    fn requires_grad(&self) -> bool {
        self.0.has_history()
    }

    /// The gradient that `backward` left here.
    #[getter]
    fn grad(&self) -> Option<PyTensor> {
        self.0.grad().map(PyTensor)
    }

    /// This rank's piece, over the tensor's own memory.
    fn local(&self) -> PyArray {
        PyArray(self.0.local().clone())
    }

    /// The whole value on every rank. Collective.
    fn full(&self, py: Python<'_>) -> PyResult<PyArray> {
        let tensor = self.0.clone();
        run(py, tensor.layout().is_some(), move || tensor.whole()).map(PyArray)
    }

    /// The same value under another layout: a `Layout`, or placements as in `tp:S0`. Collective.
    ///
    /// >>> import planaria
    /// >>> def work(comm):
    /// ...     rows = planaria.mesh(tp=2).layout((4, 2), "tp:S0")
    /// ...     return planaria.tensor([[1.0, 1.0]] * 4, rows, comm=comm).reshard("tp:S1").local().shape
    /// >>> planaria.threads(2, work)
    /// [(4, 1), (4, 1)]
    fn reshard(&self, py: Python<'_>, layout: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let wanted = match layout.cast::<PyLayout>() {
            Ok(layout) => layout.get().0.clone(),
            Err(_) => {
                let text: String = layout.extract()?;
                let Some(mine) = self.0.layout() else {
                    return Err(exception(
                        py,
                        "LayoutError",
                        "the tensor lies on no mesh; make it with a layout",
                    ));
                };
                parse_layout(mine.mesh(), mine.shape(), &text).map_err(|error| error.raise(py))?
            }
        };
        self.apply(py, move |tensor| tensor.reshard(&wanted))
    }

    /// The value without its history.
    fn detach(&self) -> PyTensor {
        PyTensor(self.0.detach())
    }

    /// Gradients on all leaves this came from; of more than one element `grad` says with what weight.
    ///
    /// >>> import planaria
    /// >>> x = planaria.tensor([1.0, 2.0], requires_grad=True)
    /// >>> (x * x).backward(grad=planaria.array([1.0, 10.0]))
    /// >>> x.grad.full().tolist()
    /// [2.0, 40.0]
    #[pyo3(signature = (grad=None, *, keep_graph=false))]
    fn backward(&self, py: Python<'_>, grad: Option<&Bound<'_, PyAny>>, keep_graph: bool) -> PyResult<()> {
        let grad = match grad.filter(|grad| !grad.is_none()) {
            None => None,
            Some(grad) => match grad.cast::<PyTensor>() {
                Ok(tensor) => Some(tensor.get().0.clone()),
                Err(_) => Some(Tensor::new(array_of(grad, Some(self.0.dtype()), Share::IfPossible)?)),
            },
        };
        let tensor = self.0.clone();
        let options = GradOptions { keep_history: keep_graph, differentiable: false };
        run(py, tensor.layout().is_some(), move || backward(&tensor, grad.as_ref(), options))
    }

    fn __getitem__(&self, py: Python<'_>, index: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let index: Vec<Index> = expression(index)?.into_iter().map(|entry| entry.map(Tensor::new)).collect();
        self.apply(py, move |tensor| tensor.get(&index))
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.0.shape().first().copied();
        first.ok_or_else(|| pyo3::exceptions::PyTypeError::new_err("a 0-d tensor has no length"))
    }

    /// The header and the values; of a tensor on a mesh those that are here, since the others would have to be sent.
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let values = compute(py, || display::text(self.0.local()))?;
        match self.0.layout() {
            Some(_) => Ok(format!("{}, of which here {values}", self.head())),
            None => Ok(format!("Tensor{}", values.strip_prefix("Array").unwrap_or(&values))),
        }
    }

    /// The header, and this rank's piece.
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        let (head, local) = (display::escape(&self.head()), self.0.local().clone());
        let piece = compute(py, move || display::html(&local))?;
        Ok(format!("<div><b>{head}</b><div>this rank's piece</div>{piece}</div>"))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(pyo3::exceptions::PyTypeError::new_err("a Tensor cannot be pickled; pickle local() or full()"))
    }

    fn __add__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::Add, false)
    }
    fn __radd__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::Add, true)
    }
    fn __sub__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::Sub, false)
    }
    fn __rsub__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::Sub, true)
    }
    fn __mul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::Mul, false)
    }
    fn __rmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::Mul, true)
    }
    fn __truediv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::Div, false)
    }
    fn __rtruediv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::Div, true)
    }
    fn __pow__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        _modulo: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::Pow, false)
    }
    fn __rpow__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        _modulo: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::Pow, true)
    }
    fn __floordiv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::FloorDiv, false)
    }
    fn __rfloordiv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::FloorDiv, true)
    }
    fn __mod__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::Rem, false)
    }
    fn __rmod__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::binary(slf, other, Binary::Rem, true)
    }
    fn __abs__(&self, py: Python<'_>) -> PyResult<PyTensor> {
        self.apply(py, |tensor| tensor.abs())
    }
    fn __matmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let Some((x, y)) = slf.get().pair(other)? else { return Ok(py.NotImplemented().into_bound(py)) };
        let made = run(py, x.layout().is_some() || y.layout().is_some(), move || x.matmul(&y))?;
        Ok(Bound::new(py, PyTensor(made))?.into_any())
    }
    fn __rmatmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let Some((x, y)) = slf.get().pair(other)? else { return Ok(py.NotImplemented().into_bound(py)) };
        let made = run(py, x.layout().is_some() || y.layout().is_some(), move || y.matmul(&x))?;
        Ok(Bound::new(py, PyTensor(made))?.into_any())
    }
    fn __neg__(&self, py: Python<'_>) -> PyResult<PyTensor> {
        self.apply(py, |tensor| tensor.neg())
    }
    fn __richcmp__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        op: CompareOp,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let Some((x, y)) = slf.get().pair(other)? else { return Ok(py.NotImplemented().into_bound(py)) };
        let made = run(py, x.layout().is_some() || y.layout().is_some(), move || match op {
            CompareOp::Eq => x.eq(&y),
            CompareOp::Ne => x.ne(&y),
            CompareOp::Lt => x.lt(&y),
            CompareOp::Le => x.le(&y),
            CompareOp::Gt => x.gt(&y),
            CompareOp::Ge => x.ge(&y),
        })?;
        Ok(Bound::new(py, PyTensor(made))?.into_any())
    }

    /// Sum over dims, all by default.
    #[pyo3(signature = (dim=None, keepdims=false))]
    fn sum(&self, py: Python<'_>, dim: Option<Dims>, keepdims: bool) -> PyResult<PyTensor> {
        self.reduce(py, dim, keepdims, Tensor::sum)
    }
    /// Mean over dims, all by default.
    #[pyo3(signature = (dim=None, keepdims=false))]
    fn mean(&self, py: Python<'_>, dim: Option<Dims>, keepdims: bool) -> PyResult<PyTensor> {
        self.reduce(py, dim, keepdims, Tensor::mean)
    }
    /// Largest element over dims, all by default.
    #[pyo3(signature = (dim=None, keepdims=false))]
    fn max(&self, py: Python<'_>, dim: Option<Dims>, keepdims: bool) -> PyResult<PyTensor> {
        self.reduce(py, dim, keepdims, Tensor::amax)
    }
    /// Smallest element over dims, all by default.
    #[pyo3(signature = (dim=None, keepdims=false))]
    fn min(&self, py: Python<'_>, dim: Option<Dims>, keepdims: bool) -> PyResult<PyTensor> {
        self.reduce(py, dim, keepdims, Tensor::amin)
    }
    /// The same elements in row-major order under another shape; one extent may be -1.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, py: Python<'_>, shape: Vec<Int>) -> PyResult<PyTensor> {
        let shape = resolved(py, &ints(&shape), self.0.shape().numel())?;
        self.apply(py, move |tensor| tensor.reshape(&shape))
    }
    /// Two dims swapped.
    fn transpose(&self, py: Python<'_>, a: Int, b: Int) -> PyResult<PyTensor> {
        self.apply(py, move |tensor| tensor.transpose(a.0, b.0))
    }
    /// The elements as another dtype.
    fn astype(&self, py: Python<'_>, dtype: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let dtype = dtype_of(dtype)?;
        self.apply(py, move |tensor| tensor.cast(dtype))
    }
    /// Softmax along a dim.
    ///
    /// >>> import planaria
    /// >>> planaria.tensor([[1.0, 1.0]]).softmax(1).full().tolist()
    /// [[0.5, 0.5]]
    fn softmax(&self, py: Python<'_>, dim: Int) -> PyResult<PyTensor> {
        self.apply(py, move |tensor| tensor.softmax(dim.0))
    }
    /// e^x.
    fn exp(&self, py: Python<'_>) -> PyResult<PyTensor> {
        self.apply(py, Tensor::exp)
    }
    /// Natural logarithm.
    fn log(&self, py: Python<'_>) -> PyResult<PyTensor> {
        self.apply(py, Tensor::ln)
    }
    /// Square root.
    fn sqrt(&self, py: Python<'_>) -> PyResult<PyTensor> {
        self.apply(py, Tensor::sqrt)
    }
    /// Hyperbolic tangent.
    fn tanh(&self, py: Python<'_>) -> PyResult<PyTensor> {
        self.apply(py, Tensor::tanh)
    }
    /// 1 / (1 + e^-x).
    fn sigmoid(&self, py: Python<'_>) -> PyResult<PyTensor> {
        self.apply(py, Tensor::sigmoid)
    }
    /// The element or 0, whichever is larger.
    fn relu(&self, py: Python<'_>) -> PyResult<PyTensor> {
        self.apply(py, Tensor::relu)
    }
}
