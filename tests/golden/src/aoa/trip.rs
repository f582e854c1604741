//! Checks that need no reference: full coverage, and that going there and back changes nothing.

use super::case::{Case, Numbers, catalog, our_numbers};
use super::options;
use anyhow::{Context, Result, bail, ensure};
use planaria_aoa::{Catalog, Degrees, Error, Fault, Mapping, Obstacle, Program, Ties};
use planaria_layout::Region;
use std::collections::BTreeSet;

/// What an answer that agrees with the reference has to show beside that. Statements that do not read both ways, or a
/// destination that is only part of what the model gives back, are no fault of it.
pub(super) fn check_compared(case: &Case, mapping: &Mapping) -> Result<()> {
    covers(case, mapping)?;
    match case.reverse.then(|| forwards(case, mapping)).transpose()? {
        Some(Ok(forward)) => same_again(mapping, &forward),
        _ => Ok(()),
    }
}

/// What an answer has to show that is compared with nothing.
pub(super) fn check_alone(case: &Case, mapping: &Mapping) -> Result<()> {
    covers(case, mapping)?;
    if !case.reverse {
        return Ok(());
    }
    same_again(mapping, &forwards(case, mapping)?.context("forwards from what was made backwards")?)
}

/// Every element of every loaded target comes from somewhere, and what can be undone is.
fn covers(case: &Case, mapping: &Mapping) -> Result<()> {
    let numbers = numbers_of(mapping);
    for target in mapping.targets().iter().filter(|target| target.is_loaded()) {
        let whole = Region::whole(target.tensor().shape());
        let found = our_numbers(&numbers, mapping, target.name(), &whole);
        ensure!(!found?.contains(&-1), "'{}' is not covered", target.name());
    }
    inverse(case, mapping)
}

fn numbers_of(mapping: &Mapping) -> Numbers {
    Numbers::new(mapping.sources().map(|(name, tensor)| (name, tensor.shape().dims())))
}

/// The inverse, where there is one, gives back every source element.
fn inverse(case: &Case, mapping: &Mapping) -> Result<()> {
    let back = match mapping.inverse(Ties::First) {
        Ok(back) => back,
        Err(Error::NotInvertible(obstacles)) => {
            // Real models lose nothing on the way in, apart from sources nobody reads.
            let lost = obstacles.iter().find(|o| !matches!(o, Obstacle::Unread { .. }));
            return match lost.filter(|_| case.group == "model_load") {
                Some(lost) => bail!("a model that cannot be saved again: {lost}"),
                None => Ok(()),
            };
        }
        Err(error) => return Err(error.into()),
    };
    let there = numbers_of(mapping);
    let round = Round::new(mapping, &there, &back)?;
    for target in back.targets() {
        let whole = Region::whole(target.tensor().shape());
        let same = round.numbers(target.name(), &whole)? == there.block(target.name(), &whole)?;
        ensure!(same, "'{}' does not come back", target.name());
    }
    Ok(())
}

/// Two mappings one after the other, in terms of the sources of the first.
struct Round<'a> {
    second: &'a Mapping,
    numbers: Numbers,
    /// The elements between them, in the second one's numbering.
    middle: Vec<i64>,
}

impl<'a> Round<'a> {
    fn new(first: &Mapping, there: &Numbers, second: &'a Mapping) -> Result<Round<'a>> {
        let mut tensors: Vec<(&str, Region)> =
            second.sources().map(|(name, tensor)| (name, Region::whole(tensor.shape()))).collect();
        tensors.sort_by_key(|(name, _)| *name);
        let mut middle = Vec::new();
        for (name, region) in tensors {
            middle.extend(our_numbers(there, first, name, &region)?);
        }
        Ok(Round { second, numbers: numbers_of(second), middle })
    }

    fn numbers(&self, name: &str, region: &Region) -> Result<Vec<i64>> {
        let found = our_numbers(&self.numbers, self.second, name, region)?;
        Ok(found.into_iter().map(|i| usize::try_from(i).map_or(-1, |i| self.middle[i])).collect())
    }
}

/// The statements read forwards, from what they made backwards.
fn forwards(case: &Case, reversed: &Mapping) -> Result<std::result::Result<Mapping, Error>> {
    let program = Program::from_statements(&case.statements)?;
    let foreign: Catalog =
        reversed.targets().iter().map(|target| (target.name(), target.tensor().clone())).collect();
    let mut read = BTreeSet::new();
    for target in reversed.targets() {
        read.extend(reversed.sources_of(target.name())?);
    }
    // Where a destination asks for less than the model has, the rest does not come back. What the statements say of
    // element types may be at odds with the model: that is not what is looked at here.
    let model: Catalog = catalog(&case.source)?
        .iter()
        .filter(|(name, _)| case.destination.is_none() || read.contains(&***name))
        .map(|(name, tensor)| (name.to_string(), tensor.clone().without_dtype()))
        .collect();
    Ok(program.compile(&foreign, Some(&model), &options(Degrees::Known)))
}

/// A mapping read backwards, then forwards: the model is itself again.
fn same_again(reversed: &Mapping, forward: &Mapping) -> Result<()> {
    let there = numbers_of(reversed);
    let round = Round::new(reversed, &there, forward)?;
    let mut different = Vec::new();
    for target in forward.targets().iter().filter(|target| target.is_loaded()) {
        let whole = Region::whole(target.tensor().shape());
        if round.numbers(target.name(), &whole)? != there.block(target.name(), &whole)? {
            different.push(target.name());
        }
    }
    // Tied tensors come back from one of them.
    let warnings = reversed.warnings().problems().iter();
    let ties = warnings.filter(|problem| matches!(problem.fault, Fault::KeptTwice { .. })).count();
    ensure!(different.len() <= ties, "not the same again: {different:?}");
    Ok(())
}
