//! Loading into memory that Python holds, in place.

use std::sync::Arc;

use planaria::aoa::{Mapping, Program, Target};
use planaria::array::Array;
use planaria::ckpt::formats::Source;
use planaria::ckpt::{Casts, Error, LoadOptions, Meter, Report, TrainState, Unmatched, load_source};
use planaria::comm::alone;
use pyo3::prelude::*;

use crate::comm::PyComm;
use crate::dtype::PyDType;
use crate::error::exception;
use crate::gil::{Cancel, compute, watched};
use crate::halting::halting;
use crate::open::PySource;
use crate::state::{Named, Part, counted, items, mapping, parts, program, tell};

/// What a load answers: names loaded, missing and unexpected, casts, bytes read, seconds.
type Answer = (Vec<String>, Vec<String>, Vec<String>, Vec<(String, String, String)>, u64, f64);

fn casts(py: Python<'_>, name: &str) -> PyResult<Casts> {
    match name {
        "none" => Ok(Casts::Refuse),
        "floats" => Ok(Casts::Floats),
        "any" => Ok(Casts::Any),
        _ => Err(exception(py, "ArgumentError", format!("casts is {name:?}; use 'none', 'floats' or 'any'"))),
    }
}

/// Name, extents and dtype of a tensor.
type Spec = (String, Vec<usize>, PyDType);

/// The tensors that a mapping makes of a checkpoint's.
#[pyfunction]
pub(crate) fn mapped_tensors(
    py: Python<'_>,
    source: &Bound<'_, PySource>,
    mapping_text: String,
) -> PyResult<Vec<Spec>> {
    let (program, source) = (program(py, Some(mapping_text))?, source.get().source(py)?);
    let made = compute(py, move || match &program {
        Some(program) => compiled(program, &source).map(Some),
        None => Ok(None),
    })?;
    let targets = made.iter().flat_map(|mapping| mapping.targets()).filter(|target| target.is_loaded());
    let spec = |target: &Target| {
        let tensor = target.tensor();
        Some((target.name().to_string(), tensor.shape().to_vec(), PyDType(tensor.dtype()?)))
    };
    Ok(targets.filter_map(spec).collect())
}

fn compiled(program: &Program, source: &Source) -> Result<Arc<Mapping>, Error> {
    mapping(program, source.tensors.iter().map(|(key, e)| (key.name.clone(), e.shape.clone(), e.dtype)))
}

/// Fills arrays from an open checkpoint. What the two sides lack is reported, not refused: who calls has looked.
#[pyfunction]
pub(crate) fn load_tensors(
    py: Python<'_>,
    source: &Bound<'_, PySource>,
    tensors: Vec<Named<'_>>,
    casts_allowed: &str,
    ignore: Vec<String>,
    mapping_text: Option<String>,
    comm: Option<Py<PyComm>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Answer> {
    let meter: Arc<Meter> = Arc::default();
    let options = LoadOptions {
        missing: Unmatched::Allow,
        unexpected: Unmatched::Allow,
        ignore,
        casts: casts(py, casts_allowed)?,
        meter: Some(meter.clone()),
        ..LoadOptions::default()
    };
    let room = parts(&tensors)?;
    for part in &room {
        if part.array.is_readonly() {
            let what = format!("tensor '{}' is read-only and cannot be filled; give a copy of it", part.name);
            return Err(exception(py, "ArgumentError", what));
        }
        if part.array.may_overlap() {
            let what = format!(
                "the elements of tensor '{}', of strides {:?}, share memory and cannot be filled; give a copy of it",
                part.name,
                part.array.strides()
            );
            return Err(exception(py, "ArgumentError", what));
        }
    }
    let world = match comm {
        Some(comm) => comm.get().inner(py)?,
        None => alone(),
    };
    let (program, source) = (program(py, mapping_text)?, source.get().source(py)?);
    let cancel = Cancel::default();
    let stop = cancel.flag();
    let work = move || {
        let (mut options, source) = (options, Arc::new(halting(&source, stop)));
        if let Some(program) = &program {
            options.mapping = Some(compiled(program, &source)?);
        }
        fill(&source, room, |state| load_source(&*world, &source, state, &options))
    };
    let report = watched(py, &cancel, work, &mut tell(progress, counted(&meter)))?;
    let cast = report.cast.iter().map(|c| (c.tensor.clone(), c.from.to_string(), c.to.to_string())).collect();
    Ok((report.loaded, report.missing, report.unexpected, cast, report.bytes_read, report.seconds))
}

/// Loads into the arrays, by way of dense ones where theirs have gaps.
pub(crate) fn fill(
    source: &Arc<Source>,
    mut room: Vec<Part>,
    load: impl FnOnce(&mut TrainState) -> Result<Report, Error>,
) -> Result<Report, Error> {
    let mut theirs = Vec::with_capacity(room.len());
    for part in &mut room {
        theirs.push(part.array.clone());
        if !part.array.is_contiguous() {
            part.array = Array::empty(part.array.shape(), part.array.dtype())?;
        }
    }
    let mut state = TrainState::new(items(&room)?);
    if let Some(tied) = source.extra.get("planaria").and_then(|about| about["tied"].as_object()) {
        let pairs = tied.iter().filter_map(|(name, to)| Some((name.clone(), to.as_str()?.to_string())));
        state.tied = pairs.collect();
    }
    let report = load(&mut state)?;
    let loaded: std::collections::BTreeSet<&str> = report.loaded.iter().map(String::as_str).collect();
    for (part, array) in room.iter().zip(&theirs) {
        if !array.shares_storage(&part.array) && loaded.contains(part.name.as_str()) {
            array.copy_from(&part.array)?;
        }
    }
    Ok(report)
}
