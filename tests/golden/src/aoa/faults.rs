//! Known faults of the reference, recognised by what a case shows of them.

use super::case::{Case, Entry, Numbers, catalog, dtype, is_permutation, is_scalar_slot, their_numbers};
use super::fault_kinds;
use anyhow::Result;
use planaria_aoa::{Error, Fault, Name, Program, Value, split_slot};
use planaria_layout::DType;
use std::collections::{BTreeMap, BTreeSet};

/// The fault an answer shows when we refuse to give one.
pub(super) fn in_answer(case: &Case, error: &Error) -> Result<Option<&'static str>> {
    let faults = fault_kinds(error);
    let any = |test: fn(&Fault) -> bool| faults.iter().any(|fault| test(fault));
    if any(|f| matches!(f, Fault::BadPermutation { .. })) && case.numpy_reference_error.is_some() {
        return Ok(Some("it takes lists that permute nothing"));
    }
    if any(|f| matches!(f, Fault::BadAttr { key, .. } if key == "permute")) && misreads_order(case) {
        return Ok(Some("it takes a permutation without brackets for an element type"));
    }
    if any(|f| matches!(f, Fault::TargetShape { .. })) && differs_in_shape(case)? {
        return Ok(Some("it does not compare shapes"));
    }
    if any(|f| matches!(f, Fault::TargetDType { .. })) && differs_in_dtype(case)? {
        return Ok(Some("it does not compare element types"));
    }
    if any(|f| matches!(f, Fault::DTypesDiffer { .. })) && mixes_dtypes(case)? {
        return Ok(Some("it joins two element types in one tensor"));
    }
    if leaves_out(case)? {
        return Ok(Some("it leaves elements unwritten"));
    }
    if any(|f| matches!(f, Fault::LacksPlaceholder { .. })) {
        return Ok(Some("it looks for placeholders without their '$'"));
    }
    if any(|f| matches!(f, Fault::ShapesDiffer { .. })) && case.numpy_reference_error.is_some() {
        return Ok(Some("it does not compare shapes"));
    }
    if any(|f| matches!(f, Fault::UnknownTensor { .. } | Fault::TargetShape { .. })) && collides(case)? {
        return Ok(Some("its temporaries have names"));
    }
    let refuses_attr =
        |f: &Fault| matches!(f, Fault::BadAttr { .. } | Fault::TargetDType { .. } | Fault::CastOneWay { .. });
    if any(refuses_attr) && passes_over(case)? {
        return Ok(Some("it passes over attributes beside a fused form"));
    }
    if any(|f| matches!(f, Fault::AssignedTwice { .. } | Fault::NotKept { .. })) && assigns_twice(case)? {
        return Ok(Some("it lets one statement assign a name twice"));
    }
    if any(|f| matches!(f, Fault::NotDivisible { .. } | Fault::BadHeads { .. })) && fuses_unequal(case)? {
        return Ok(Some("it cuts parts of unequal width in the wrong place"));
    }
    Ok(None)
}

/// The fault an answer shows when ours differs.
pub(super) fn in_comparison(case: &Case) -> Result<Option<&'static str>> {
    if misreads_order(case) {
        return Ok(Some("it takes a permutation without brackets for an element type"));
    }
    if reads_nothing(case) {
        return Ok(Some("it reads elements that do not exist"));
    }
    if leaves_out(case)? {
        return Ok(Some("it leaves elements unwritten"));
    }
    if collides(case)? {
        return Ok(Some("its temporaries have names"));
    }
    if case.queries.iter().any(|query| query.error.is_some()) {
        return Ok(Some("it refuses a question that has an answer"));
    }
    if case.statement_count < case.statements.len() || vanishes(case)? {
        return Ok(Some("a statement of its vanished"));
    }
    if fuses_unequal(case)? {
        return Ok(Some("it cuts parts of unequal width in the wrong place"));
    }
    if case.destination.is_none() && names_a_source(case)? {
        return Ok(Some("an untouched source hides what is assigned to its name"));
    }
    Ok(None)
}

/// A step of an answer is neither a list of dims nor an element type, so its boxes were not turned.
fn misreads_order(case: &Case) -> bool {
    let entries = case.queries.iter().filter_map(|query| query.result.as_ref()).flatten();
    let mut steps = entries.flat_map(|entry| entry.postprocess.iter().flatten());
    steps.any(|step| !step.starts_with('[') && dtype(step).is_err())
}

/// Some block of an answer is of no source, or outside of one.
fn reads_nothing(case: &Case) -> bool {
    let numbers = Numbers::of_shards(&case.source);
    let loaded = case.queries.iter().filter(|query| !is_scalar_slot(split_slot(&query.target.key).1));
    loaded.flat_map(|query| query.result.iter().flatten()).any(|entry| !numbers.hold(&entry.source))
}

/// Some statement has placeholders, and none of those it became assigns what it does.
fn vanishes(case: &Case) -> Result<bool> {
    let (written, became) =
        (Program::from_statements(&case.statements)?, Program::from_statements(&case.expanded)?);
    let made: Vec<&str> =
        became.statements().iter().flat_map(|s| &s.right).map(|n| n.base.as_str()).collect();
    let lost = |name: &Name| {
        let Some((start, _)) = name.base.split_once('$') else { return false };
        let end = name.base.rsplit(|c: char| c == '$' || c == '_' || c.is_ascii_uppercase()).next();
        let fits = |made: &&str| made.starts_with(start) && made.ends_with(end.unwrap_or_default());
        name.array.is_none() && !made.iter().any(fits)
    };
    Ok(!case.expanded.is_empty() && written.statements().iter().flat_map(|s| &s.right).any(lost))
}

/// Some fused form has an attribute that is not its own.
fn passes_over(case: &Case) -> Result<bool> {
    let program = Program::from_statements(&case.statements)?;
    Ok(program.statements().iter().any(|statement| {
        let flag = statement.attrs.iter().find(|attr| attr.value == Value::Flag);
        let own = |key: &str| match flag.map(|flag| flag.key.as_str()) {
            Some("fused_ffn") => matches!(key, "fused_ffn" | "axis"),
            Some(flag) => key == flag || matches!(key, "axis" | "num_heads" | "num_key_value_groups"),
            None => true,
        };
        !statement.attrs.iter().all(|attr| own(&attr.key))
    }))
}

/// Some element of an answer comes from nowhere although its tensor is said to be loaded.
fn leaves_out(case: &Case) -> Result<bool> {
    let numbers = Numbers::of_shards(&case.source);
    for query in case.queries.iter().filter(|query| query.error.is_none()) {
        let (name, slot) = split_slot(&query.target.key);
        let scalar = is_scalar_slot(slot);
        let loaded = case.outputs.get(name).is_some_and(Option::is_some);
        let readable = query.result.iter().flatten().all(|entry| numbers.hold(&entry.source));
        if loaded && !scalar && readable && their_numbers(&numbers, query)?.contains(&-1) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Some output has another shape than the destination.
fn differs_in_shape(case: &Case) -> Result<bool> {
    let wanted = catalog(case.destination.as_deref().unwrap_or_default())?;
    Ok(case.outputs.iter().any(|(name, output)| match (wanted.get(name), output) {
        (Some(tensor), Some(output)) => tensor.shape().dims() != output.shape,
        _ => false,
    }))
}

/// Some answer ends in another element type than its target has.
fn differs_in_dtype(case: &Case) -> Result<bool> {
    for query in case.queries.iter().filter(|query| split_slot(&query.target.key).1.is_none()) {
        let wanted = query.target.dtype()?;
        for entry in query.result.iter().flatten() {
            if final_dtype(entry)? != wanted {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The element type a block ends in.
fn final_dtype(entry: &Entry) -> Result<DType> {
    let last = entry.postprocess.iter().flatten().rfind(|step| !is_permutation(step));
    last.map_or_else(|| entry.source.dtype(), |name| dtype(name))
}

/// The blocks of some tensor end in different element types.
fn mixes_dtypes(case: &Case) -> Result<bool> {
    let mut dtypes: BTreeMap<&str, DType> = BTreeMap::new();
    for query in case.queries.iter().filter(|query| split_slot(&query.target.key).1.is_none()) {
        for entry in query.result.iter().flatten() {
            let found = final_dtype(entry)?;
            if *dtypes.entry(&query.target.key).or_insert(found) != found {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// A name the reference made up is also a tensor, or is read by a statement.
fn collides(case: &Case) -> Result<bool> {
    let names = |statements: &[String]| -> Result<(BTreeSet<String>, BTreeSet<String>)> {
        let program = Program::from_statements(statements)?;
        let of = |side: fn(&planaria_aoa::Statement) -> &[planaria_aoa::Name]| {
            program.statements().iter().flat_map(side).map(|name| name.base.clone()).collect()
        };
        Ok((of(|s| &s.left), of(|s| &s.right)))
    };
    let (read, assigned) = names(&case.statements)?;
    let (_, made) = names(&case.expanded)?;
    let keys = case.source.iter().chain(case.destination.iter().flatten()).map(|shard| shard.key.clone());
    let real: BTreeSet<String> = keys.chain(read).collect();
    Ok(made.difference(&assigned).any(|name| real.contains(name)))
}

/// Some statement has a name twice on the right.
fn assigns_twice(case: &Case) -> Result<bool> {
    let program = Program::from_statements(&case.statements)?;
    Ok(program.statements().iter().any(|statement| {
        let mut seen = BTreeSet::new();
        !statement.right.iter().all(|name| seen.insert(name.base.as_str()))
    }))
}

/// Some statement assigns a name that a source has.
fn names_a_source(case: &Case) -> Result<bool> {
    let program = Program::from_statements(&case.statements)?;
    let keys: BTreeSet<&str> = case.source.iter().map(|shard| shard.key.as_str()).collect();
    let sides = program.statements().iter().flat_map(|s| if case.reverse { &s.left } else { &s.right });
    Ok(sides.into_iter().any(|name| keys.contains(name.base.as_str())))
}

/// A weight is fused by rank from sources whose units differ in width, or, backwards, is cut into parts whose
/// units do.
fn fuses_unequal(case: &Case) -> Result<bool> {
    let program = Program::from_statements(&case.statements)?;
    let sources = catalog(&case.source)?;
    let shape_of = |name: &str| -> Option<&[usize]> {
        match case.reverse {
            false => Some(sources.get(name)?.shape().dims()),
            true => Some(&case.outputs.get(name)?.as_ref()?.shape),
        }
    };
    Ok(program.statements().iter().any(|statement| {
        let value = |key: &str| statement.attrs.iter().find(|attr| attr.key == key).map(|attr| &attr.value);
        let count = |key: &str| match value(key) {
            Some(Value::Int(count)) => usize::try_from(*count).unwrap_or(1).max(1),
            _ => 1,
        };
        let units = match (value("fused_ffn"), value("fused_qkv_old")) {
            (Some(_), _) => vec![1, 1],
            (_, Some(_)) => {
                vec![count("num_heads"), count("num_key_value_groups"), count("num_key_value_groups")]
            }
            _ => return false,
        };
        let axis = match value("axis") {
            Some(Value::Int(axis)) => usize::try_from(*axis).unwrap_or(1),
            _ => 1,
        };
        let width = |(name, units): (&Name, &usize)| {
            let shape = shape_of(&name.base)?;
            let dim = if name.transposed { shape.len().checked_sub(1 + axis)? } else { axis };
            Some(shape.get(dim)? / units)
        };
        let widths: Vec<Option<usize>> = statement.left.iter().zip(&units).map(width).collect();
        statement.left.len() == units.len() && widths.iter().any(|w| w.is_some() && *w != widths[0])
    }))
}
