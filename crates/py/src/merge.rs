//! Merging models by a recipe, in bounded memory.

use planaria::merge::{Error, Inputs, Missing, Options, plan_any};
use pyo3::prelude::*;

use crate::convert::{Answer, Asked};
use crate::error::{Raise, exception};

impl Raise for Error {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Error::Checkpoint(error) => error.raise(py),
            Error::Store(error) => error.raise(py),
            Error::Array(error) => error.raise(py),
            Error::Layout(error) => error.raise(py),
            other => exception(py, "ArgumentError", other.to_string()),
        }
    }
}

/// What is merged, and how.
#[derive(FromPyObject)]
pub(crate) struct Given {
    /// The text of the recipe.
    #[pyo3(item)]
    recipe: String,
    #[pyo3(item)]
    inputs: String,
    #[pyo3(item)]
    missing: String,
    #[pyo3(item)]
    seed: u64,
    #[pyo3(item)]
    keep: Vec<String>,
    #[pyo3(item)]
    drop: Vec<String>,
    #[pyo3(item)]
    keep_extra: bool,
    #[pyo3(item)]
    allow_crimes: bool,
    #[pyo3(item)]
    truncate_embeddings: bool,
    #[pyo3(item)]
    strict: bool,
}

fn inputs(py: Python<'_>, given: &Given) -> PyResult<Inputs> {
    let refused = |what: String| Err(exception(py, "ArgumentError", what));
    let missing = match given.missing.as_str() {
        "refuse" => Missing::Refuse,
        "skip" => Missing::Skip,
        "take" => Missing::Take,
        other => return refused(format!("missing is {other:?}; use 'refuse', 'skip' or 'take'")),
    };
    match given.inputs.as_str() {
        "models" => Ok(Inputs::Models),
        "tensors" => Ok(Inputs::Tensors(missing)),
        other => refused(format!("inputs is {other:?}; use 'models' or 'tensors'")),
    }
}

/// Merges models; the target appears whole or not at all.
#[pyfunction]
pub(crate) fn merge_models(py: Python<'_>, given: Given, asked: Asked<'_>) -> PyResult<Answer> {
    let inputs = inputs(py, &given)?;
    let options = Options {
        seed: given.seed,
        allow_crimes: given.allow_crimes,
        truncate_embeddings: given.truncate_embeddings,
        keep_extra: given.keep_extra,
        strict: given.strict,
        drop: given.drop,
        keep: given.keep,
        ..Options::default()
    };
    let text = given.recipe;
    let mut carrier = asked.carrier(py)?;
    // Half of the memory holds blocks of inputs, half what is made of them.
    carrier.options.max_memory /= 2;
    carrier.run(py, move |writer, to, convert| -> Result<Answer, Error> {
        let merge = plan_any(&text, inputs, &options)?;
        let conversion = merge.conversion(to, &convert)?;
        let (bytes, tensors, left_out, mut warnings) = writer.write(merge.places(), &conversion)?;
        warnings.extend_from_slice(merge.warnings());
        Ok((bytes, tensors, left_out, warnings))
    })
}
