//! Known faults of the reference, recognised by what a case shows of them.

use super::case::{Case, Numbers, Refusal, catalog, dtype, their_numbers};
use super::fault_kinds;
use anyhow::Result;
use planaria_aoa::{Error, Fault, Mapping, Name, Program, Value, split_slot};
use std::collections::BTreeSet;

/// Refusals of the reference that are limits of its reader or its engine, not of the mapping.
const LIFTED: &[(&str, &str, &str)] = &[
    (
        "RuntimeError",
        "Unexpected character",
        "its reader refuses comments, signs, '-', '/' or letters in names",
    ),
    ("KeyError", "", "its placeholders match source names only, so the statement vanished"),
    ("ValueError", "should be assigned before", "its placeholders bind to tuples that do not exist"),
    ("error", "redefinition of group name", "it refuses a repeated placeholder"),
    ("AssertionError", "Unsupported cast dtype", "it casts to three element types only"),
    ("ValueError", "Unsupported attribute: dst_dtype", "it wants src_dtype and dst_dtype in one order"),
    ("ValueError", "Unsupported attribute", "it knows fewer attributes"),
    ("AssertionError", "Only support:\n - One operator", "it takes one operator a statement"),
    ("ValueError", "only support one attr named `axis`", "it takes no cast beside an axis"),
    ("SyntaxError", "Unexpected value", "it wants words in quotes"),
    ("SyntaxError", "Expected TokenType.IDENTIFIER, got TokenType.NUMBER", "it wants flags first"),
    ("SyntaxError", "got TokenType.STRING", "it wants names without quotes"),
    ("SyntaxError", "got TokenType.RARROW", "its '*' finds nothing backwards or before '^T'"),
    (
        "AssertionError",
        "Left or right variable must have the only one element",
        "it reserves attribute words",
    ),
    ("AssertionError", "is not divisible by the number of right_vars", "it cannot undo its own fused form"),
    ("AssertionError", "Inconsistent shard numbers", "it counts the shards of slots as well"),
    ("AttributeError", "", "it fails backwards"),
    ("AssertionError", "Infinite loop", "it fails backwards"),
    ("SyntaxError", "got TokenType.COMMA", "it writes empty names"),
];

/// Why a refusal of the reference does not stand, if it does not.
pub(super) fn lifted(case: &Case, refusal: &Refusal) -> Result<Option<&'static str>> {
    let found = LIFTED.iter().find(|(kind, text, _)| refusal.kind == *kind && refusal.message.contains(text));
    let reserved = || Ok::<_, anyhow::Error>(names_a_word(case)?.then_some("it reserves attribute words"));
    found.map_or_else(reserved, |(_, _, reason)| Ok(Some(*reason)))
}

/// Words the reference does not take as names.
const WORDS: [&str; 10] = [
    "axis",
    "fused_ffn",
    "fused_qkv_old",
    "num_heads",
    "num_key_value_groups",
    "permute",
    "dtype",
    "fused_qkv",
    "src_dtype",
    "dst_dtype",
];

fn names_a_word(case: &Case) -> Result<bool> {
    let program = Program::from_statements(&case.statements)?;
    let mut names = program.statements().iter().flat_map(|s| s.left.iter().chain(&s.right));
    Ok(names.any(|name| WORDS.contains(&name.base.as_str())))
}

/// The fault an answer shows when we refuse to give one.
pub(super) fn in_answer(case: &Case, error: &Error) -> Result<Option<&'static str>> {
    let faults = fault_kinds(error);
    let any = |test: fn(&Fault) -> bool| faults.iter().any(|fault| test(fault));
    if any(|f| matches!(f, Fault::BadPermutation { .. })) && case.numpy_reference_error.is_some() {
        return Ok(Some("it takes lists that permute nothing"));
    }
    if any(|f| matches!(f, Fault::TargetShape { .. })) && differs_in_shape(case)? {
        return Ok(Some("it does not compare shapes"));
    }
    if any(|f| matches!(f, Fault::TargetDType { .. })) && differs_in_dtype(case)? {
        return Ok(Some("it does not compare element types"));
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
    if any(|f| matches!(f, Fault::UnknownTensor { .. })) && collides(case)? {
        return Ok(Some("its temporaries have names"));
    }
    if any(|f| matches!(f, Fault::NotDivisible { .. })) && fuses_unequal(case)? {
        return Ok(Some("it cuts parts of unequal width in the wrong place"));
    }
    Ok(None)
}

/// The fault an answer shows when ours differs.
pub(super) fn in_comparison(case: &Case, mapping: &Mapping) -> Result<Option<&'static str>> {
    if leaves_out(case)? {
        return Ok(Some("it leaves elements unwritten"));
    }
    if collides(case)? {
        return Ok(Some("its temporaries have names"));
    }
    if case.queries.iter().any(|query| query.error.is_some()) {
        return Ok(Some("it refuses a question that has an answer"));
    }
    if case.statement_count < case.statements.len() {
        return Ok(Some("a statement of its vanished"));
    }
    if fuses_unequal(case)? {
        return Ok(Some("it cuts parts of unequal width in the wrong place"));
    }
    let idle = mapping.warnings().problems().iter().any(|p| matches!(p.fault, Fault::IdleAxis));
    if idle && case.destination.is_none() {
        return Ok(Some("an idle axis makes it lose the new name"));
    }
    if case.destination.is_none() && names_a_source(case)? {
        return Ok(Some("an untouched source hides what is assigned to its name"));
    }
    Ok(None)
}

/// Some element of an answer comes from nowhere although its tensor is said to be loaded.
fn leaves_out(case: &Case) -> Result<bool> {
    let numbers = Numbers::of_shards(&case.source);
    for query in case.queries.iter().filter(|query| query.error.is_none()) {
        let (name, slot) = split_slot(&query.target.key);
        let scalar = super::is_scalar_slot(slot);
        let loaded = case.outputs.get(name).is_some_and(Option::is_some);
        if loaded && !scalar && their_numbers(&numbers, query)?.contains(&-1) {
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
            let last = entry.postprocess.iter().flatten().rfind(|step| !step.contains('['));
            let found = last.map_or_else(|| entry.source.dtype(), |name| dtype(name))?;
            if found != wanted {
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

/// Some statement assigns a name that a source has.
fn names_a_source(case: &Case) -> Result<bool> {
    let program = Program::from_statements(&case.statements)?;
    let keys: BTreeSet<&str> = case.source.iter().map(|shard| shard.key.as_str()).collect();
    let sides = program.statements().iter().flat_map(|s| if case.reverse { &s.left } else { &s.right });
    Ok(sides.into_iter().any(|name| keys.contains(name.base.as_str())))
}

/// A weight is fused by rank from sources whose units differ in width.
fn fuses_unequal(case: &Case) -> Result<bool> {
    let program = Program::from_statements(&case.statements)?;
    let sources = catalog(&case.source)?;
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
            let shape = sources.get(&name.base)?.shape();
            let dim = if name.transposed { shape.ndim().checked_sub(1 + axis)? } else { axis };
            Some(shape.get(dim)? / units)
        };
        let widths: Vec<Option<usize>> = statement.left.iter().zip(&units).map(width).collect();
        statement.left.len() == units.len() && widths.iter().any(|w| w.is_some() && *w != widths[0])
    }))
}
