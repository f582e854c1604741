//! What Python hands over to be saved or filled: named arrays, and what a mapping makes of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use planaria::aoa::{Catalog, Mapping, Options, Program, Tensor};
use planaria::array::{Array, DType};
use planaria::ckpt::{Item, Kind};
use planaria::layout::Shape;
use pyo3::prelude::*;

use crate::error::exception;
use crate::object::{Share, array_of};

/// Named arrays over the memory of whatever Python gave.
pub(crate) fn arrays(given: &[(String, Bound<'_, PyAny>)]) -> PyResult<Vec<(String, Array)>> {
    given
        .iter()
        .map(|(name, object)| Ok((name.clone(), array_of(object, None, Share::IfPossible)?)))
        .collect()
}

/// Arrays that this process holds whole.
pub(crate) fn items(arrays: &[(String, Array)]) -> Vec<Item> {
    arrays.iter().map(|(name, array)| Item::whole(Kind::Parameter, name.as_str(), array)).collect()
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
