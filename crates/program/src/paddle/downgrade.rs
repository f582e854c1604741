//! Patches taken back: kinds narrowed where every value fits, added attributes removed where they have their default.

use super::action::{kind, retype_items, typed};
use super::patch::{Action, Change, PatchFile};
use crate::error::{Error, Result};
use crate::node::{Data, Node};
use crate::program::{Op, Program};
use std::sync::Arc;

/// Takes a patch back.
pub(super) fn undo(patch: &PatchFile, program: &mut Program) -> Result<Vec<Change>> {
    let mut failed: Option<Error> = None;
    let mut changes = Vec::new();
    program.visit_mut(&mut |op| {
        if failed.is_some() {
            return;
        }
        match undo_op(patch, op) {
            Ok(done) => {
                let change = |what| Change { version: patch.version, op: op.place(), what };
                changes.extend(done.into_iter().map(change));
            }
            Err(error) => failed = Some(error),
        }
    });
    failed.map_or(Ok(changes), Err)
}

fn undo_op(patch: &PatchFile, op: &mut Op) -> Result<Vec<String>> {
    let name = op.full_name();
    let older = patch.version - 1;
    if patch.new_ops.contains(&name) {
        let what = format!("version {older} does not have this op; write version {} or newer", patch.version);
        return Err(Error::Patch { place: op.place(), what });
    }
    let mut done = Vec::new();
    let patches = patch.op_patches.iter().filter(|patch| patch.op_name == name);
    for action in patches.flat_map(|patch| patch.actions.iter().rev()) {
        let place = op.place();
        let Some(object) = action.object.as_str() else { continue };
        let Some(at) = op.attrs.iter().position(|attr| &*attr.name == object) else { continue };
        match (action.action.as_str(), &action.was) {
            ("add_attr", _) => {
                if *op.attrs[at].value != typed(&place, action)? {
                    let what = format!("attribute {object} has a value that version {older} cannot hold");
                    return Err(Error::Patch { place, what });
                }
                op.attrs.remove(at);
                done.push(format!("attribute {object} removed"));
            }
            ("modify_attr", Some(was)) => {
                let old = kind(&place, was)?;
                let value = narrowed(&place, object, &op.attrs[at].value, action, old)?;
                op.attrs[at].value = Arc::new(value);
                done.push(format!("attribute {object} is of kind {was} again"));
            }
            (other, _) => {
                let what = format!("{other} of version {} cannot be taken back", patch.version);
                return Err(Error::Patch { place, what });
            }
        }
    }
    Ok(done)
}

fn narrowed(place: &str, name: &str, value: &Node, action: &Action, old: &str) -> Result<Node> {
    let refuse = |value: String| Error::Patch {
        place: place.to_string(),
        what: format!("attribute {name} is {value}, which kind {old} of older versions cannot hold exactly"),
    };
    let check = |node: &Node| match old {
        "0.a_i32" => match node.as_int() {
            Some(value) if i32::try_from(value).is_ok() => Ok(()),
            _ => Err(refuse(super::node_json(node))),
        },
        "0.a_f32" => match node.as_real() {
            Some(value) if f64::from(value as f32).to_bits() == value.to_bits() || value.is_nan() => Ok(()),
            _ => Err(refuse(super::node_json(node))),
        },
        _ => Ok(()),
    };
    if action.data.is_null() {
        check(value)?;
        return Ok(Node { kind: old.into(), ..value.clone() });
    }
    for item in value.data.as_ref().and_then(Data::list).unwrap_or_default() {
        if let Some(node) = item.node() {
            check(node)?;
        }
    }
    let mut value = value.clone();
    retype_items(&mut value, old);
    Ok(value)
}
