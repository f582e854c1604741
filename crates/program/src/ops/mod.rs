//! What is known of Paddle's ops: names of operands, results and attributes, and which results overwrite an operand.

use std::collections::HashMap;
use std::sync::OnceLock;

/// Attributes that any op may have.
pub(crate) const ANYWHERE: [&str; 10] = [
    "struct_name",
    "op_role",
    "op_dist_attr",
    "op_callstack",
    "comp_op_name",
    "chunk_id",
    "stop_gradient",
    "persistable",
    "layouts",
    "composite",
];

/// The signature of an op.
#[derive(Debug)]
pub struct Signature {
    /// Names of the operands, and whether each may be absent.
    pub operands: Vec<(&'static str, bool)>,
    /// Names of the results.
    pub results: Vec<&'static str>,
    /// Names and kinds of the attributes, in the order that Paddle writes them.
    pub attrs: Vec<(&'static str, AttrKind)>,
}

/// The kind of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrKind {
    /// The kind itself, or that of an array's elements.
    pub name: &'static str,
    /// Whether it is an array.
    pub array: bool,
}

const TABLE: &str = include_str!("table.txt");

fn table() -> &'static HashMap<&'static str, Signature> {
    static PARSED: OnceLock<HashMap<&'static str, Signature>> = OnceLock::new();
    PARSED.get_or_init(|| TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(row).collect())
}

fn row(line: &'static str) -> Option<(&'static str, Signature)> {
    let (left, right) = line.split_once("->")?;
    let (results, attrs) = right.split_once(':').unwrap_or((right, ""));
    let mut left = left.split_whitespace();
    let name = left.next()?;
    let operands = left.map(|word| (word.trim_end_matches('?'), word.ends_with('?'))).collect();
    let attrs = attrs.split_whitespace().filter_map(|word| {
        let (name, kind) = word.split_once('=')?;
        let inner = kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']'));
        Some((name, AttrKind { name: inner.unwrap_or(kind), array: inner.is_some() }))
    });
    let results = results.split_whitespace().collect();
    Some((name, Signature { operands, results, attrs: attrs.collect() }))
}

/// Names of all known ops of `pd_op`.
pub fn names() -> impl Iterator<Item = &'static str> {
    table().keys().copied()
}

/// The signature of an op of `pd_op`; one that works in place has that of the op without the underscore.
pub fn signature(name: &str) -> Option<&'static Signature> {
    table().get(name).or_else(|| table().get(name.strip_suffix('_')?))
}

/// Which results are written into the memory of which operand: those named `x_out` for an operand `x`, or else the first
/// into the first, of ops whose name ends in an underscore.
pub fn aliases(name: &str) -> Vec<(usize, usize)> {
    let Some(signature) = name.ends_with('_').then(|| signature(name)).flatten() else { return Vec::new() };
    let named: Vec<(usize, usize)> = signature
        .results
        .iter()
        .enumerate()
        .filter_map(|(at, result)| {
            let base = result.strip_suffix("_out")?;
            Some((at, signature.operands.iter().position(|(operand, _)| *operand == base)?))
        })
        .collect();
    match named.is_empty() && !signature.operands.is_empty() {
        true => vec![(0, 0)],
        false => named,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_an_op() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(table().len(), lines, "a line does not parse, or an op appears twice");
        let kinds = ["bool", "i32", "i64", "f32", "f64", "str", "dtype", "place", "intarray"];
        for (name, signature) in table() {
            let known = signature.attrs.iter().all(|(_, kind)| kinds.contains(&kind.name));
            assert!(known && !signature.results.is_empty(), "{name}: {signature:?}");
        }
    }

    #[test]
    fn results_overwrite_the_operand_they_are_named_after() {
        assert_eq!(aliases("batch_norm_"), [(1, 1), (2, 2)]);
        assert_eq!(aliases("sgd_"), [(0, 0), (1, 3)]);
        assert_eq!(aliases("relu_"), [(0, 0)]);
        assert_eq!(aliases("relu"), []);
    }
}
