//! Mapping cases: what PaddlePaddle's AOA engine answers, compared element by element.
//!
//! The reference guesses layouts, checks little and leaks its temporaries. A case whose answer shows such a
//! fault is not compared; the verdict says which fault, and our own answer is checked without the reference.

mod case;
mod faults;
mod limits;
mod terms;
mod trip;

use crate::cases::{Outcome, Verdict, each_case};
use anyhow::{Context, Result, bail, ensure};
use case::{Case, Numbers, Query, catalog, is_scalar_slot, our_numbers, source_names, their_numbers};
use planaria_aoa::{Degrees, Error, Fault, Mapping, Options, Program, Strictness, split_slot};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use terms::Terms;

/// Runs the cases at `path`.
pub(crate) fn run(path: &Path) -> Result<Outcome> {
    each_case(path, |case| match check(case) {
        Ok(verdict) => verdict,
        Err(error) => {
            let id = case.get("id").and_then(Value::as_str).unwrap_or("?");
            Verdict::Failed(format!("{id}: {error:#}"))
        }
    })
}

/// Options for files written for the reference, with layouts known or guessed.
fn options(degrees: Degrees) -> Options {
    Options { strictness: Strictness::Lenient, degrees, ..Options::default() }
}

fn compile(case: &Case, degrees: Degrees) -> Result<std::result::Result<Mapping, Error>> {
    let program = match Program::from_statements(&case.statements) {
        Ok(program) => program,
        Err(error) => return Ok(Err(error)),
    };
    let given = catalog(&case.source)?;
    let far = case.destination.as_deref().map(catalog).transpose()?;
    let options = options(degrees);
    Ok(match case.reverse {
        false => program.compile(&given, far.as_ref(), &options),
        true => program.compile_reverse(&given, far.as_ref(), &options),
    })
}

fn check(value: &Value) -> Result<Verdict> {
    let case = Case::deserialize(value).context("reading the case")?;
    let ours = compile(&case, Degrees::Known)?;
    if let Some(refusal) = &case.error {
        return match ours {
            Err(_) => Ok(Verdict::Passed),
            Ok(mapping) => {
                let Some(reason) = limits::lifted(&case, refusal)? else {
                    bail!("we accept what the reference refuses: {}", refusal.message);
                };
                trip::check_alone(&case, &mapping)?;
                Ok(Verdict::PassedAlone(reason))
            }
        };
    }
    let mapping = match ours {
        Ok(mapping) => mapping,
        Err(error) => return refused(&case, &error),
    };
    match compare(&case, &mapping, &Terms::default()) {
        Ok(()) => {
            trip::check_compared(&case, &mapping)?;
            Ok(Verdict::Passed)
        }
        Err(difference) => differs(&case, &mapping, &difference),
    }
}

/// We refuse what the reference answers: it has to show why.
fn refused(case: &Case, error: &Error) -> Result<Verdict> {
    if case.queries.iter().any(|query| query.error.is_some()) {
        // It refuses as well, when it is asked.
        return Ok(Verdict::Passed);
    }
    if agrees_guessing(case, &Terms::of(case)?)? {
        return Ok(Verdict::PassedAlone(GUESSED));
    }
    match faults::in_answer(case, error)? {
        Some(reason) => Ok(Verdict::PassedAlone(reason)),
        None => bail!("we refuse: {error}"),
    }
}

const GUESSED: &str = "its layout guess is wrong (compatibility mode agrees with it)";

/// Whether we answer like the reference when we guess like it.
fn agrees_guessing(case: &Case, terms: &Terms) -> Result<bool> {
    Ok(compile(case, Degrees::Guessed)?.is_ok_and(|guessed| compare(case, &guessed, terms).is_ok()))
}

/// Our answer is another one: either the reference guessed, or it shows a fault.
fn differs(case: &Case, mapping: &Mapping, difference: &anyhow::Error) -> Result<Verdict> {
    trip::check_alone(case, mapping)?;
    let terms = Terms::of(case)?;
    if let Some(reason) = terms.reason
        && compare(case, mapping, &terms).is_ok()
    {
        return Ok(Verdict::PassedAlone(reason));
    }
    if agrees_guessing(case, &terms)? {
        return Ok(Verdict::PassedAlone(GUESSED));
    }
    match faults::in_comparison(case)? {
        Some(reason) => Ok(Verdict::PassedAlone(reason)),
        None => bail!("{difference:#}"),
    }
}

/// Outputs and every query, element by element.
fn compare(case: &Case, mapping: &Mapping, terms: &Terms) -> Result<()> {
    let mut theirs: Vec<&str> = case.outputs.keys().filter_map(|name| terms.ours(name)).collect();
    theirs.sort_unstable();
    let mut ours: Vec<&str> = mapping.targets().iter().map(|target| target.name()).collect();
    ours.sort_unstable();
    ensure!(ours == theirs, "outputs {ours:?} instead of {theirs:?}");
    for (name, output) in &case.outputs {
        let Some(name) = terms.ours(name) else { continue };
        let target = mapping.target(name).context("output vanished")?;
        ensure!(target.is_loaded() == output.is_some(), "'{name}' loaded: {}", target.is_loaded());
        if let Some(output) = output {
            let shape = target.tensor().shape();
            ensure!(shape.dims() == output.shape, "'{name}' {shape} instead of {:?}", output.shape);
        }
    }
    let numbers = Numbers::of_shards(&case.source);
    for query in &case.queries {
        let Some(name) = terms.ours(split_slot(&query.target.key).0) else { continue };
        compare_query(mapping, name, &numbers, query)
            .with_context(|| format!("query of '{}'", query.target.key))?;
    }
    Ok(())
}

/// One query of the tensor that we call `name`.
fn compare_query(mapping: &Mapping, name: &str, numbers: &Numbers, query: &Query) -> Result<()> {
    let slot = split_slot(&query.target.key).1;
    if is_scalar_slot(slot) {
        let entries = query.result.as_deref().unwrap_or_default();
        let ours = source_names(mapping, name)?;
        let known = |key: &str| ours.contains(split_slot(key).0);
        ensure!(entries.iter().all(|e| known(&e.source.key)), "sources {ours:?}");
        return Ok(());
    }
    let region = query.target.region()?;
    if let Some(refusal) = &query.error {
        ensure!(mapping.pieces(name, &region).is_err(), "we answer what is refused: {}", refusal.message);
        return Ok(());
    }
    let key = format!("{name}{}", slot.unwrap_or_default());
    let (ours, theirs) = (our_numbers(numbers, mapping, &key, &region)?, their_numbers(numbers, query)?);
    if let Some(at) = (0..ours.len()).find(|&i| ours[i] != theirs[i]) {
        bail!("element {at} is {} instead of {}", ours[at], theirs[at]);
    }
    if slot.is_none() {
        let wanted = query.target.dtype()?;
        for piece in mapping.pieces(name, &region)? {
            let found = piece.target_dtype();
            ensure!(found.is_none_or(|found| found == wanted), "{found:?} instead of {wanted}");
        }
    }
    Ok(())
}

/// Kinds of faults in a refusal of ours.
fn fault_kinds(error: &Error) -> Vec<&Fault> {
    match error {
        Error::Refused(report) => report.problems().iter().map(|problem| &problem.fault).collect(),
        _ => Vec::new(),
    }
}
