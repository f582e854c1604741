//! A program's own rewards: functions of Python's, asked by the ranks that made responses.

use std::sync::PoisonError;

use planaria::train::rl::{Judged, RewardFunction};
use pyo3::prelude::*;

use crate::stream::Raised;

/// An object of `planaria._rewards` that gives lists of responses their scores.
#[derive(Debug)]
pub(crate) struct PyJudge {
    function: Py<PyAny>,
    /// What it raised last.
    raised: Raised,
}

impl PyJudge {
    pub(crate) fn new(function: Py<PyAny>, raised: Raised) -> PyJudge {
        PyJudge { function, raised }
    }

    fn ask(&self, py: Python<'_>, all: &[Judged<'_>], rows: &str) -> PyResult<Vec<Option<f64>>> {
        let prompts: Vec<&str> = all.iter().map(|one| one.prompt.as_str()).collect();
        let responses: Vec<&str> = all.iter().map(|one| one.response.as_str()).collect();
        let ids = |place: usize| all.iter().map(|one| one.ids[place].to_vec()).collect::<Vec<Vec<i64>>>();
        let finished: Vec<bool> = all.iter().map(|one| one.finished).collect();
        let given = (prompts, responses, ids(0), ids(1), finished, rows);
        self.function.bind(py).call_method1("score", given)?.extract()
    }
}

impl RewardFunction for PyJudge {
    fn score(&self, all: &[Judged<'_>]) -> Result<Vec<Option<f64>>, String> {
        let rows: Vec<_> = all.iter().map(|one| one.row).collect();
        let rows = serde_json::to_string(&rows).map_err(|error| error.to_string())?;
        let made = Python::try_attach(|py| {
            self.ask(py, all, &rows).map_err(|error| {
                let what = error.to_string();
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                what
            })
        });
        made.unwrap_or_else(|| Err("the interpreter is ending".into()))
    }
}
