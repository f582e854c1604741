//! What Python hands over to be saved or filled: named arrays, parts of larger ones, and what a mapping makes of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use planaria::aoa::{Catalog, Mapping, Options, Program, Tensor};
use planaria::array::{Array, DType};
use planaria::ckpt::{Error, Item, Meter, Piece, TensorKind};
use planaria::layout::{Layout, Region, Shape};
use pyo3::prelude::*;

use crate::error::exception;
use crate::layout::PyLayout;
use crate::object::{Share, array_of};

/// A name, what has its elements, and where these lie in the tensor; without a place they are all of it.
#[derive(FromPyObject)]
pub(crate) struct Named<'py>(String, Bound<'py, PyAny>, Option<Place>);

/// Where elements lie in a larger tensor.
#[derive(FromPyObject)]
enum Place {
    /// The piece of a rank.
    Layout(Py<PyLayout>, usize),
    /// The extents of the tensor, and where the box begins.
    Box(Vec<usize>, Vec<usize>),
}

/// A part of a tensor, over the memory of whatever Python gave.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) array: Array,
    at: At,
}

#[derive(Debug)]
enum At {
    Whole,
    Layout(Box<Layout>, usize),
    Region(Shape, Region),
}

impl Part {
    /// A tensor that this process holds whole.
    pub(crate) fn whole(name: impl Into<String>, array: Array) -> Part {
        Part { name: name.into(), array, at: At::Whole }
    }

    /// Extents of the tensor.
    pub(crate) fn shape(&self) -> &Shape {
        match &self.at {
            At::Whole => self.array.shape(),
            At::Layout(layout, _) => layout.shape(),
            At::Region(shape, _) => shape,
        }
    }

    fn item(&self) -> Result<Item, Error> {
        let (kind, name, array) = (TensorKind::Parameter, self.name.as_str(), &self.array);
        match &self.at {
            At::Whole => Ok(Item::whole(kind, name, array)),
            At::Layout(layout, rank) => Item::placed(kind, name, layout, *rank, array),
            At::Region(shape, region) => {
                let pieces = vec![Piece { region: region.clone(), array: array.clone() }];
                Ok(Item { kind, name: name.into(), shape: shape.clone(), dtype: array.dtype(), pieces })
            }
        }
    }
}

/// Parts of tensors over the memory of whatever Python gave.
pub(crate) fn parts(given: &[Named<'_>]) -> PyResult<Vec<Part>> {
    given.iter().map(part).collect()
}

fn part(Named(name, object, place): &Named<'_>) -> PyResult<Part> {
    let (py, array) = (object.py(), array_of(object, None, Share::IfPossible)?);
    let at = match place {
        None => At::Whole,
        Some(Place::Layout(layout, rank)) => At::Layout(Box::new(layout.get().0.clone()), *rank),
        Some(Place::Box(extents, start)) => {
            let fits = extents.len() == array.ndim() && start.len() == array.ndim();
            let sides = start.iter().zip(array.shape().iter());
            let end: Vec<usize> = sides.map(|(a, n)| a.saturating_add(*n)).collect();
            let made = Shape::new(extents).and_then(|shape| Ok((shape, Region::new(start, &end)?)));
            match made {
                Ok((shape, region)) if fits => At::Region(shape, region),
                Ok(_) => {
                    let what = format!("tensor '{name}' and its place have different numbers of dims");
                    return Err(exception(py, "ShapeError", what));
                }
                Err(error) => return Err(exception(py, "ShapeError", format!("tensor '{name}': {error}"))),
            }
        }
    };
    Ok(Part { name: name.clone(), array, at })
}

/// The tensors that these are parts of, each with all of its parts.
pub(crate) fn items(parts: &[Part]) -> Result<Vec<Item>, Error> {
    let mut items: Vec<Item> = Vec::with_capacity(parts.len());
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for part in parts {
        let item = part.item()?;
        match known.get(part.name.as_str()) {
            Some(&at) if items[at].shape == item.shape && items[at].dtype == item.dtype => {
                items[at].pieces.extend(item.pieces);
            }
            Some(&at) => {
                let (found, expected) = (item.shape, items[at].shape.clone());
                return Err(Error::ShapeOf { tensor: part.name.clone(), found, expected });
            }
            None => {
                known.insert(&part.name, items.len());
                items.push(item);
            }
        }
    }
    Ok(items)
}

/// Tells a function of Python's, from time to time, how many bytes of how many have moved.
pub(crate) fn tell(
    progress: Option<Py<PyAny>>,
    moved: impl Fn() -> Option<(u64, u64)>,
) -> impl FnMut(Python<'_>) -> PyResult<()> {
    move |py| match (&progress, moved()) {
        (Some(progress), Some((done, total))) => progress.call1(py, (done, total)).map(drop),
        _ => Ok(()),
    }
}

/// What a meter has counted.
pub(crate) fn counted(meter: &Arc<Meter>) -> impl Fn() -> Option<(u64, u64)> + use<> {
    let meter = meter.clone();
    move || meter.bytes()
}

/// The statements of a mapping, one per line.
pub(crate) fn program(py: Python<'_>, text: Option<String>) -> PyResult<Option<Program>> {
    let parsed = text.map(Program::parse).transpose();
    parsed.map_err(|error| exception(py, "ArgumentError", error.to_string()))
}

/// The mapping that makes other tensors of these.
pub(crate) fn mapping(
    program: &Program,
    tensors: impl IntoIterator<Item = (String, Shape, DType)>,
) -> Result<Arc<Mapping>, planaria::ckpt::Error> {
    let mut catalog = Catalog::new();
    for (name, shape, dtype) in tensors {
        catalog.insert(name, Tensor::new(shape, dtype));
    }
    Ok(Arc::new(program.compile(&catalog, None, &Options::default())?))
}

/// A size such as `5GB` or `256MiB`, or a number of bytes.
pub(crate) fn bytes(object: &Bound<'_, PyAny>, what: &str) -> PyResult<u64> {
    if let Ok(count) = object.extract::<u64>() {
        return Ok(count);
    }
    let text = object.str()?.to_cow()?.trim().to_uppercase();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let units: BTreeMap<&str, f64> = [
        ("", 1.0),
        ("B", 1.0),
        ("K", 1e3),
        ("KB", 1e3),
        ("M", 1e6),
        ("MB", 1e6),
        ("G", 1e9),
        ("GB", 1e9),
        ("T", 1e12),
        ("TB", 1e12),
        ("KIB", 1024.0),
        ("MIB", 1048576.0),
        ("GIB", 1073741824.0),
        ("TIB", 1099511627776.0),
    ]
    .into();
    let unit = units.get(text[digits.len()..].trim());
    match (digits.parse::<f64>(), unit) {
        (Ok(count), Some(unit)) if count >= 0.0 && count * unit < 1e19 => Ok((count * unit) as u64),
        _ => {
            let what = format!("{what} is {text:?}; expected bytes, as in 5000000 or '5MB'");
            Err(exception(object.py(), "ArgumentError", what))
        }
    }
}

/// Text of Python's `json` as a value.
pub(crate) fn json(py: Python<'_>, text: &str) -> PyResult<serde_json::Value> {
    serde_json::from_str(text).map_err(|error| exception(py, "InternalError", error.to_string()))
}
