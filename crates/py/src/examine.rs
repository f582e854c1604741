//! Verifying a checkpoint, and comparing two.

use std::collections::BTreeMap;

use planaria::ckpt::examine::{Bound as Tolerance, Verdict, compare};
use planaria::ckpt::formats::{Key, Source};
use planaria::ckpt::stream::Feed;
use planaria::ckpt::{Error, verify};
use pyo3::prelude::*;

use crate::error::exception;
use crate::failure::first_of;
use crate::gil::{Cancel, blocking};
use crate::open::{located, opened};

/// Damage: tensor, file, first byte, one past the last, what was said.
type Damage = (String, String, u64, u64, String);

/// Bytes, files, tensors, whether there were checksums, damage, warnings.
type Checked = (u64, usize, usize, bool, Vec<Damage>, Vec<String>);

/// Checks every byte; answers bytes, files, tensors, whether there were checksums, damage and warnings.
#[pyfunction]
pub(crate) fn verify_checkpoint(py: Python<'_>, url: String) -> PyResult<Checked> {
    let found = blocking(py, &Cancel::default(), move || {
        let (store, name) = located(&url)?;
        verify(&store, &name)
    })?;
    let damaged = found.problems.iter().map(damage).collect();
    Ok((found.bytes, found.files, found.tensors, found.summed, damaged, found.warnings))
}

fn damage(error: &Error) -> Damage {
    let text = error.to_string();
    match error {
        Error::Damaged { tensor, file, start, end, .. } | Error::Member { tensor, file, start, end, .. } => {
            (first_of(tensor).to_string(), file.clone(), *start, *end, text)
        }
        Error::Malformed { file, .. } => (String::new(), file.clone(), 0, 0, text),
        _ => (String::new(), String::new(), 0, 0, text),
    }
}

/// Names in the first alone and in the second alone, and what differs in the others.
type Differences = (Vec<String>, Vec<String>, BTreeMap<String, String>);

/// Compares two checkpoints tensor by tensor.
#[pyfunction]
pub(crate) fn diff_checkpoints(
    py: Python<'_>,
    a: String,
    b: String,
    tolerance: f64,
) -> PyResult<Differences> {
    if tolerance.is_nan() || tolerance < 0.0 {
        return Err(exception(py, "ArgumentError", format!("tolerance is {tolerance}; use 0 or more")));
    }
    blocking(py, &Cancel::default(), move || {
        let (mut first, mut second) = (opened(&a)?, opened(&b)?);
        // Formats have names of their own for optimizer state.
        let states = (first.as_state(), second.as_state());
        if in_common(&states.0, &states.1) > in_common(&first, &second) {
            (first, second) = states;
        }
        differences(&first, &second, tolerance)
    })
}

fn in_common(first: &Source, second: &Source) -> usize {
    first.tensors.keys().filter(|key| second.tensors.contains_key(key)).count()
}

fn differences(first: &Source, second: &Source, tolerance: f64) -> Result<Differences, Error> {
    let bound = Tolerance { absolute: tolerance, relative: 0.0 };
    let (mut left, mut right, mut changed) = (Vec::new(), Vec::new(), BTreeMap::new());
    let feeds = (&Feed::new(first), &Feed::new(second));
    compare(feeds, &bound, &|_: &Key| true, &|_| (), &mut |key, verdict| {
        match verdict {
            Verdict::Same => {}
            Verdict::OnlyFirst => left.push(key.to_string()),
            Verdict::OnlySecond => right.push(key.to_string()),
            Verdict::Spec(a, b) => drop(changed.insert(key.to_string(), format!("{a} against {b}"))),
            Verdict::Shape(a, b) => drop(changed.insert(key.to_string(), format!("shape {a} against {b}"))),
            Verdict::DType(a, b) => {
                changed.insert(key.to_string(), format!("dtype {a} against {b}, the values agree"));
            }
            Verdict::Values(d) => {
                let what = format!(
                    "{} values differ by up to {:.3e}; first at {:?}: {} against {}",
                    d.count, d.max_abs, d.first, d.values.0, d.values.1
                );
                changed.insert(key.to_string(), what);
            }
        }
        Ok(())
    })?;
    Ok((left, right, changed))
}
