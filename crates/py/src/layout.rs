//! Meshes, layouts and plans: who holds which box, and what has to move.

use planaria::layout::{DType, Layout, Mesh, Placement, Plan, Region, Route, Shape};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice, PyTuple};

use crate::display::escape;
use crate::dtype::dtype_of;
use crate::error::{Raise, exception};
use crate::gil::compute;
use crate::number;

/// Ranks along named axes: `str(mesh) == "dp=2 tp=4"`.
///
/// >>> import planaria
/// >>> mesh = planaria.mesh(dp=2, tp=4)
/// >>> str(mesh), mesh.size, mesh.axes
/// ('dp=2 tp=4', 8, {'dp': 2, 'tp': 4})
#[pyclass(frozen, name = "Mesh", module = "planaria", from_py_object)]
#[derive(Clone, Debug)]
pub(crate) struct PyMesh(pub(crate) Mesh);

/// A number of a mesh or a layout: what is negative is refused as one.
fn natural(object: &Bound<'_, PyAny>, what: &str) -> PyResult<usize> {
    number::size(object)?.ok_or_else(|| {
        let text = format!("{what} is {}; use an integer of 0 or more", number::shown(object));
        exception(object.py(), "LayoutError", text)
    })
}

/// A mesh of text, or of axes by name.
///
/// >>> import planaria
/// >>> planaria.mesh(dp=2, tp=4) == planaria.mesh("dp=2 tp=4")
/// True
#[pyfunction]
#[pyo3(signature = (text=None, **axes))]
pub(crate) fn mesh(py: Python<'_>, text: Option<&str>, axes: Option<&Bound<'_, PyDict>>) -> PyResult<PyMesh> {
    let named: Vec<(String, usize)> = match axes {
        Some(axes) => {
            let axis = |(name, size): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
                let name: String = name.extract()?;
                let size = natural(&size, &format!("the size of axis '{name}'"))?;
                Ok((name, size))
            };
            axes.iter().map(axis).collect::<PyResult<_>>()?
        }
        None => Vec::new(),
    };
    let made = match (text, named.is_empty()) {
        (Some(text), true) => text.parse::<Mesh>(),
        (None, false) => {
            let axes: Vec<(&str, usize)> = named.iter().map(|(name, size)| (name.as_str(), *size)).collect();
            Mesh::new(&axes)
        }
        _ => return Err(PyTypeError::new_err("a mesh is text or axes, as in mesh('dp=2') or mesh(dp=2)")),
    };
    made.map(PyMesh).map_err(|error| error.raise(py))
}

#[pymethods]
impl PyMesh {
    /// Names and sizes of the axes.
    #[getter]
    fn axes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let axes = PyDict::new(py);
        for (at, axis) in self.0.axes().iter().enumerate() {
            axes.set_item(axis.name.to_string(), self.0.axis_size(at))?;
        }
        Ok(axes)
    }

    /// Number of ranks.
    #[getter]
    fn size(&self) -> usize {
        self.0.size()
    }

    /// The ranks, first axis outermost.
    fn ranks(&self) -> Vec<usize> {
        self.0.ranks().collect()
    }

    /// A tensor of this shape, cut as the text says; axes that it does not name are replicated.
    ///
    /// >>> import planaria
    /// >>> planaria.mesh(dp=2, tp=4).layout((4096, 1024), "tp:S1").placements
    /// 'dp:R tp:S1'
    fn layout(&self, py: Python<'_>, shape: &Bound<'_, PyAny>, placements: &str) -> PyResult<PyLayout> {
        let shape: Vec<usize> =
            shape.try_iter()?.map(|n| natural(&n?, "an extent of the shape")).collect::<PyResult<_>>()?;
        let made = parse_layout(&self.0, &shape, placements);
        made.map(PyLayout).map_err(|error| error.raise(py))
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Mesh '{}'", self.0)
    }

    fn _repr_html_(&self) -> String {
        format!(
            "<div><b>Mesh</b> <code>{}</code>, {} ranks</div>",
            escape(&self.0.to_string()),
            self.0.size()
        )
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PyMesh>().is_ok_and(|other| other.get().0 == self.0)
    }

    fn __hash__(&self) -> u64 {
        hash(&self.0.to_string())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let make = py.import("planaria._planaria")?.getattr("mesh")?;
        (make, (self.0.to_string(),)).into_pyobject(py)
    }
}

/// `dp:R tp:S1` on a mesh; axes that are not named are replicated.
pub(crate) fn parse_layout(
    mesh: &Mesh,
    shape: &[usize],
    text: &str,
) -> Result<Layout, planaria::layout::Error> {
    // All at once: the order of cuts along one dim counts only among its axes.
    let mut placements = vec![Placement::Replicate; mesh.naxes()];
    for word in text.split_whitespace() {
        let unread = || planaria::layout::Error::Parse {
            what: "placement",
            text: text.to_string(),
            reason: "expected axes and placements, as in 'dp:R tp:S1'".to_string(),
        };
        let (axis, placement) = word.split_once(':').ok_or_else(unread)?;
        placements[mesh.axis(axis)?] = placement.parse::<Placement>()?;
    }
    Layout::new(mesh, &Shape::new(shape)?, &placements)
}

fn hash(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Which box of a tensor each rank of a mesh holds.
///
/// >>> import planaria
/// >>> layout = planaria.mesh(dp=2, tp=4).layout((4096, 1024), "dp:R tp:S1")
/// >>> layout.boxes(rank=3), layout.local_shape(3)
/// ([(slice(0, 4096, None), slice(768, 1024, None))], (4096, 256))
#[pyclass(frozen, name = "Layout", module = "planaria", from_py_object)]
#[derive(Clone, Debug)]
pub(crate) struct PyLayout(pub(crate) Layout);

/// Boxes as tuples of slices.
fn slices<'py>(py: Python<'py>, region: &Region) -> PyResult<Bound<'py, PyTuple>> {
    let sides =
        (0..region.ndim()).map(|d| PySlice::new(py, region.lo()[d] as isize, region.hi()[d] as isize, 1));
    let sides: Vec<_> = sides.map(|side| plain(py, &side)).collect::<PyResult<_>>()?;
    PyTuple::new(py, sides)
}

/// `slice(a, b)` without a step, which is how people write it.
fn plain<'py>(py: Python<'py>, side: &Bound<'py, PySlice>) -> PyResult<Bound<'py, PyAny>> {
    py.get_type::<PySlice>().call1((side.getattr("start")?, side.getattr("stop")?))
}

#[pymethods]
impl PyLayout {
    /// Extents of the whole tensor.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape().iter())
    }

    /// The mesh.
    #[getter]
    fn mesh(&self) -> PyMesh {
        PyMesh(self.0.mesh().clone())
    }

    /// Axes and placements, as in `dp:R tp:S1`.
    #[getter]
    fn placements(&self) -> String {
        placements(&self.0)
    }

    /// The boxes that a rank holds, each a tuple of slices.
    ///
    /// >>> import planaria
    /// >>> planaria.mesh(tp=2).layout((4, 2), "tp:S0").boxes(1)
    /// [(slice(2, 4, None), slice(0, 2, None))]
    #[pyo3(signature = (rank))]
    fn boxes<'py>(&self, py: Python<'py>, rank: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let piece = self.0.piece(natural(rank, "the rank")?).map_err(|error| error.raise(py))?;
        piece.boxes().iter().map(|region| slices(py, region)).collect()
    }

    /// Extents of what a rank holds.
    #[pyo3(signature = (rank))]
    fn local_shape<'py>(&self, py: Python<'py>, rank: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
        let piece = self.0.piece(natural(rank, "the rank")?).map_err(|error| error.raise(py))?;
        PyTuple::new(py, piece.extents().iter())
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Layout '{}'", self.0)
    }

    /// Who holds which box.
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        let mut rows = String::new();
        for rank in self.0.mesh().ranks().take(256) {
            let piece = self.0.piece(rank).map_err(|error| error.raise(py))?;
            let boxes: Vec<String> = piece.boxes().iter().map(ToString::to_string).collect();
            rows.push_str(&format!("<tr><td>{rank}</td><td>{}</td></tr>", escape(&boxes.join(" "))));
        }
        let head = format!("<b>Layout</b> <code>{}</code>", escape(&self.0.to_string()));
        Ok(format!("<div>{head}<table><tr><th>rank</th><th>holds</th></tr>{rows}</table></div>"))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PyLayout>().is_ok_and(|other| other.get().0 == self.0)
    }

    fn __hash__(&self) -> u64 {
        hash(&self.0.to_string())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let make = py.import("planaria._planaria")?.getattr("layout_of")?;
        (make, (self.0.to_string(),)).into_pyobject(py)
    }
}

/// `dp:R tp:S1`.
pub(crate) fn placements(layout: &Layout) -> String {
    let axes = layout.mesh().axes().iter().zip(layout.placements());
    axes.map(|(axis, placement)| format!("{}:{placement}", axis.name)).collect::<Vec<_>>().join(" ")
}

/// A layout of its text, as `str` gives it.
#[pyfunction]
pub(crate) fn layout_of(py: Python<'_>, text: &str) -> PyResult<PyLayout> {
    text.parse::<Layout>().map(PyLayout).map_err(|error| error.raise(py))
}

/// A layout on a mesh of the ranks that are listed, as other programs number them.
#[pyfunction]
pub(crate) fn placed(
    py: Python<'_>,
    axes: Vec<(String, usize)>,
    ranks: Vec<usize>,
    shape: Vec<usize>,
    placements: &str,
) -> PyResult<PyLayout> {
    let axes: Vec<(&str, usize)> = axes.iter().map(|(name, size)| (name.as_str(), *size)).collect();
    let mesh = Mesh::with_ranks(&axes, &ranks).map_err(|error| error.raise(py))?;
    parse_layout(&mesh, &shape, placements).map(PyLayout).map_err(|error| error.raise(py))
}

/// How a tensor goes from one layout to another: `bytes` that move, and what each rank receives, from itself included.
///
/// >>> import planaria
/// >>> mesh = planaria.mesh(tp=2)
/// >>> plan = planaria.plan(mesh.layout((4, 4), "tp:S0"), mesh.layout((4, 4), "tp:S1"), dtype="f32")
/// >>> plan.moves(0)[1]
/// (1, (slice(2, 4, None), slice(0, 2, None)))
#[pyclass(frozen, name = "Plan", module = "planaria")]
#[derive(Debug)]
pub(crate) struct PyPlan {
    from: Layout,
    to: Layout,
    size: usize,
}

/// The plan from one layout to another.
///
/// >>> import planaria
/// >>> mesh = planaria.mesh(tp=2)
/// >>> planaria.plan(mesh.layout((4, 4), "tp:S0"), mesh.layout((4, 4), "tp:R"), dtype="f32").bytes
/// 64
#[pyfunction]
#[pyo3(signature = (source, target, *, dtype=None))]
pub(crate) fn plan(
    py: Python<'_>,
    source: &PyLayout,
    target: &PyLayout,
    dtype: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyPlan> {
    let dtype = dtype.filter(|dtype| !dtype.is_none()).map_or(Ok(DType::F32), dtype_of)?;
    if source.0.shape() != target.0.shape() {
        let what =
            format!("shapes {} and {} differ; a plan moves one tensor", source.0.shape(), target.0.shape());
        return Err(exception(py, "ShapeError", what));
    }
    Ok(PyPlan { from: source.0.clone(), to: target.0.clone(), size: dtype.size() })
}

#[pymethods]
impl PyPlan {
    /// Bytes that ranks send to others, all together.
    #[getter]
    fn bytes(&self, py: Python<'_>) -> PyResult<u64> {
        compute(py, || {
            let mut total = 0;
            for rank in self.to.mesh().ranks() {
                for part in Plan::receive(&self.from, &self.to, rank)?.parts {
                    let others = part.from.iter().filter(|from| **from != rank).count();
                    total += (part.region.numel() * self.size * others) as u64;
                }
            }
            Ok::<_, planaria::layout::Error>(total)
        })
    }

    /// What a rank receives, from itself included: `(source rank, box)`.
    #[pyo3(signature = (rank))]
    fn moves<'py>(
        &self,
        py: Python<'py>,
        rank: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<(usize, Bound<'py, PyTuple>)>> {
        let rank = natural(rank, "the rank")?;
        let plan = compute(py, || Plan::receive(&self.from, &self.to, rank))?;
        let mut moves = Vec::new();
        for part in &plan.parts {
            for from in &part.from {
                moves.push((*from, slices(py, &part.region)?));
            }
        }
        Ok(moves)
    }

    /// The collectives that carry it out.
    #[getter]
    fn route(&self, py: Python<'_>) -> PyResult<String> {
        compute(py, || Route::find(&self.from, &self.to, self.size).map(|route| route.to_string()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Plan '{}' to '{}': {}", placements(&self.from), placements(&self.to), self.route(py)?))
    }
}
