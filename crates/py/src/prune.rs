//! The checkpoints of steps in a folder: all but the newest are removed.

use planaria::ckpt::{Error, committed, remove, step_folder};
use planaria::store::open;
use pyo3::prelude::*;

use crate::gil::{Cancel, blocking};
use crate::number::Size;

/// Removes all but the newest `keep` committed checkpoints `step-N` inside a folder of any store; answers their steps.
#[pyfunction]
pub(crate) fn prune_steps(py: Python<'_>, url: String, keep: Size) -> PyResult<Vec<u64>> {
    let cancel = Cancel::default();
    let stop = cancel.flag();
    blocking(py, &cancel, move || {
        let store = open(&url)?;
        let mut steps = committed(&*store, "")?;
        steps.truncate(steps.len().saturating_sub(keep.0));
        for step in &steps {
            if stop.load(std::sync::atomic::Ordering::Acquire) {
                return Err(Error::Stopped);
            }
            remove(&*store, &step_folder(*step))?;
        }
        Ok(steps)
    })
}
