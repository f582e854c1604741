//! Attributes against an op's definition: each there, of its kind, and no other.

use crate::node::{Data, Node};
use crate::ops::{ANYWHERE, AttrKind, Signature};
use crate::program::Op;
use crate::types::Element;

/// What is wrong with the attributes of an op.
pub(super) fn issues(op: &Op, signature: &Signature) -> Vec<String> {
    let mut issues = Vec::new();
    for (name, kind) in &signature.attrs {
        match op.attr(name) {
            None => issues.push(format!("attribute {name} is missing")),
            Some(node) if !fits(node, *kind) => {
                let found = crate::text::attribute_text(node);
                issues.push(format!("attribute {name} is {found}, expected kind {}", shown(*kind)));
            }
            Some(_) => {}
        }
    }
    for (at, attr) in op.attrs.iter().enumerate() {
        let name = &*attr.name;
        if op.attrs[..at].iter().any(|other| &*other.name == name) {
            issues.push(format!("attribute {name} appears twice"));
        }
        let known = signature.attrs.iter().any(|(known, _)| *known == name) || ANYWHERE.contains(&name);
        if !known {
            issues.push(format!("attribute {name} is not known"));
        }
    }
    issues
}

fn shown(kind: AttrKind) -> String {
    if kind.array { format!("array of {}", kind.name) } else { kind.name.to_string() }
}

fn fits(node: &Node, kind: AttrKind) -> bool {
    if kind.array {
        let plain = AttrKind { array: false, ..kind };
        let items = node.own_kind() == "a_array" && node.special.is_none();
        return items && node.items().is_some_and(|items| items.iter().all(|item| fits(item, plain)));
    }
    if node.own_kind().strip_prefix("a_") != Some(kind.name) {
        return false;
    }
    match kind.name {
        "bool" => node.as_bool().is_some(),
        "i32" => node.as_int().is_some_and(|value| i32::try_from(value).is_ok()),
        "i64" => node.as_int().is_some(),
        "f32" | "f64" => node.as_real().is_some(),
        "str" => node.as_text().is_some(),
        "dtype" => {
            node.as_text().is_some_and(|t| Element::of_name(t).is_some() || t == "Undefined(ALL_DTYPE)")
        }
        "intarray" => node.data.as_ref().and_then(Data::ints).is_some(),
        "place" => matches!(
            node.data.as_ref().and_then(Data::list),
            Some([Data::Int(kind), Data::Int(_), Data::Text(_)]) if (0..=9).contains(kind)
        ),
        _ => true,
    }
}
