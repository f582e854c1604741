//! Refusals of the reference that are limits of its own, recognised by what it says.

use super::case::{Case, Refusal};
use anyhow::Result;
use planaria_aoa::Program;

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
    ("AssertionError", "The array macro format is incorrect", "it wants lists in quotes"),
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
    (
        "AssertionError",
        "Reference chain resolution failed",
        "it cannot tell the ranks of a joined tensor that is fused",
    ),
    (
        "AssertionError",
        "must contain all of the following keys",
        "it wants every name to have the placeholder, '_' as well",
    ),
    (
        "AssertionError",
        "All IDENTIFIER tokens must contain $LAYER_ID_OFFSET",
        "it wants every name to have the placeholder, '_' as well",
    ),
    ("UnboundLocalError", "'name_with_id'", "it fails backwards on a placeholder that no model name has"),
    (
        "AssertionError",
        "When `aoa_config_reverse=True`, the dtype must be specified",
        "it undoes no cast, even when the element type to go back to is given",
    ),
];

/// Refusals that are limits only where a case shows why.
type Limit = (&'static str, &'static str, fn(&Case) -> Result<bool>, &'static str);

const LIFTED_IF: &[Limit] = &[
    (
        "AssertionError",
        "All tensors must have the same dtype",
        casts,
        "it forgets a cast when it compares the element types of a concatenation",
    ),
    ("ValueError", "Cannot assign to transpose", runs_on, "it takes one statement a text"),
    ("AssertionError", "attributes must split by a comma", runs_on, "it takes one statement a text"),
];

/// Why a refusal of the reference does not stand, if it does not.
pub(super) fn lifted(case: &Case, refusal: &Refusal) -> Result<Option<&'static str>> {
    let says = |kind: &str, text: &str| refusal.kind == kind && refusal.message.contains(text);
    for (kind, text, applies, reason) in LIFTED_IF {
        if says(kind, text) && applies(case)? {
            return Ok(Some(reason));
        }
    }
    let found = LIFTED.iter().find(|(kind, text, _)| says(kind, text));
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

/// Some statement casts.
fn casts(case: &Case) -> Result<bool> {
    let program = Program::from_statements(&case.statements)?;
    let mut attrs = program.statements().iter().flat_map(|statement| &statement.attrs);
    Ok(attrs.any(|attr| matches!(attr.key.as_str(), "dtype" | "dst_dtype")))
}

/// Some text holds more than one statement.
fn runs_on(case: &Case) -> Result<bool> {
    Ok(Program::from_statements(&case.statements)?.statements().len() > case.statements.len())
}
