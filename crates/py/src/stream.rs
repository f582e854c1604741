//! A program's own samples: an iterable of Python's, pulled by the threads that read data.

use std::sync::{Arc, Mutex, PoisonError};

use planaria::train::data::{Error, Ids, Result, Stream};
use pyo3::prelude::*;
use serde_json::Value;

use crate::array::PyArray;

/// The exception that ended a run's data, kept for whoever waits for the run.
pub(crate) type Raised = Arc<Mutex<Option<PyErr>>>;

/// An object of `planaria._train` that gives samples one by one, and its state as JSON.
#[derive(Debug)]
pub(crate) struct PyStream {
    samples: Py<PyAny>,
    raised: Raised,
}

/// Token ids and labels, as arrays of i64.
type Sample = Option<(Py<PyArray>, Option<Py<PyArray>>)>;

impl PyStream {
    pub(crate) fn new(samples: Py<PyAny>, raised: Raised) -> PyStream {
        PyStream { samples, raised }
    }

    /// Calls a method; what it raises is kept, and ends the run.
    fn call<T>(&self, work: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        let failed = |what: String| Error::StreamFailed { what };
        let made = Python::try_attach(|py| {
            work(self.samples.bind(py)).map_err(|error| {
                let what = error.to_string();
                self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                failed(what)
            })
        });
        made.unwrap_or_else(|| Err(failed("the interpreter is ending".into())))
    }
}

fn numbers(array: &Py<PyArray>) -> Result<Vec<i64>> {
    array.get().0.to_vec::<i64>().map_err(|error| Error::StreamFailed { what: error.to_string() })
}

impl Stream for PyStream {
    fn next(&self) -> Result<Option<Ids>> {
        let sample: Sample = self.call(|samples| samples.call_method0("next")?.extract())?;
        let Some((tokens, labels)) = sample else { return Ok(None) };
        Ok(Some(Ids { tokens: numbers(&tokens)?, labels: labels.as_ref().map(numbers).transpose()? }))
    }

    fn state(&self) -> Result<Option<Value>> {
        let text: Option<String> = self.call(|samples| samples.call_method0("state")?.extract())?;
        let read = |text: String| serde_json::from_str(&text);
        text.map(read).transpose().map_err(|error| Error::StreamFailed { what: error.to_string() })
    }

    fn restore(&self, state: &Value) -> Result<()> {
        self.call(|samples| samples.call_method1("restore", (state.to_string(),)).map(drop))
    }
}
