//! The actions of patches, on ops, attributes and types.

use super::patch::{Action, Change, PairPatch, PatchFile};
use crate::error::{Error, Result};
use crate::node::{Data, Name, Node, Real, spelled};
use crate::program::{Attr, Op, Program, Value, ValueId};
use serde_json::Value as Json;
use std::sync::Arc;

/// Names of kinds in patches, and in files.
const KINDS: &[(&str, &str)] = &[
    ("pir::BoolAttribute", "0.a_bool"),
    ("pir::FloatAttribute", "0.a_f32"),
    ("pir::DoubleAttribute", "0.a_f64"),
    ("pir::Int32Attribute", "0.a_i32"),
    ("pir::Int64Attribute", "0.a_i64"),
    ("pir::IndexAttribute", "0.a_index"),
    ("pir::StrAttribute", "0.a_str"),
    ("pir::ArrayAttribute", "0.a_array"),
    ("pir::TypeAttribute", "0.a_type"),
    ("pir::TensorNameAttribute", "0.a_tensorname"),
    ("pir::Complex64Attribute", "0.a_c64"),
    ("pir::Complex128Attribute", "0.a_c128"),
    ("paddle::dialect::IntArrayAttribute", "1.a_intarray"),
    ("paddle::dialect::ScalarAttribute", "1.a_scalar"),
    ("paddle::dialect::DataTypeAttribute", "1.a_dtype"),
    ("paddle::dialect::PlaceAttribute", "1.a_place"),
    ("paddle::dialect::DataLayoutAttribute", "1.a_layout"),
    ("pir::BoolType", "0.t_bool"),
    ("pir::BFloat16Type", "0.t_bf16"),
    ("pir::Float16Type", "0.t_f16"),
    ("pir::Float32Type", "0.t_f32"),
    ("pir::Float64Type", "0.t_f64"),
    ("pir::Int8Type", "0.t_i8"),
    ("pir::UInt8Type", "0.t_ui8"),
    ("pir::Int16Type", "0.t_i16"),
    ("pir::Int32Type", "0.t_i32"),
    ("pir::Int64Type", "0.t_i64"),
    ("pir::IndexType", "0.t_index"),
    ("pir::Complex64Type", "0.t_c64"),
    ("pir::Complex128Type", "0.t_c128"),
    ("pir::Float8E4M3FNType", "0.t_f8e4m3fn"),
    ("pir::Float8E5M2Type", "0.t_f8e5m2"),
    ("pir::VectorType", "0.t_vec"),
    ("pir::DenseTensorType", "0.t_dtensor"),
    ("paddle::dialect::DenseTensorType", "0.t_dtensor"),
    ("paddle::dialect::SelectedRowsType", "1.t_selected_rows"),
    ("paddle::dialect::DenseTensorArrayType", "1.t_dense_tensor_array"),
];

fn refuse(place: &str, what: impl Into<String>) -> Error {
    Error::Patch { place: place.to_string(), what: what.into() }
}

/// The kind of files for a name of patches.
pub(super) fn kind(place: &str, name: &str) -> Result<&'static str> {
    let found = KINDS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
    found.ok_or_else(|| refuse(place, format!("the patch names {name}, which is not known")))
}

/// Applies a whole patch.
pub(super) fn apply(patch: &PatchFile, program: &mut Program) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    let mut failed = None;
    let mut fresh = fresh_id(program);
    for OpTarget { name, actions } in targets(patch) {
        program.visit_mut(&mut |op| {
            if failed.is_some() || op.full_name() != name {
                return;
            }
            for action in actions {
                match act(op, action, &mut fresh) {
                    Ok(None) => {}
                    Ok(Some(what)) => changes.push(Change { version: patch.version, op: op.place(), what }),
                    Err(error) => failed = Some(error),
                }
            }
        });
        if let Some(error) = failed.take() {
            return Err(error);
        }
    }
    for pair in &patch.op_pair_patches {
        changes.extend(pass(pair, patch.version, program, &mut fresh)?);
    }
    for patch in &patch.attr_patches {
        for action in &patch.actions {
            rename_attrs(program, kind("attr_patches", &patch.attr_name)?, action)?;
        }
    }
    for patch in &patch.type_patches {
        for action in &patch.actions {
            rename_types(program, kind("type_patches", &patch.type_name)?, action)?;
        }
    }
    Ok(changes)
}

struct OpTarget<'a> {
    name: &'a str,
    actions: &'a [Action],
}

fn targets(patch: &PatchFile) -> impl Iterator<Item = OpTarget<'_>> {
    patch.op_patches.iter().map(|patch| OpTarget { name: &patch.op_name, actions: &patch.actions })
}

/// The next id that no value has.
pub(crate) fn fresh_id(program: &Program) -> i64 {
    let mut last = 0;
    program.visit(&mut |op| last = op.results.iter().map(|value| value.id.0).fold(last, i64::max));
    last + 1
}

fn text<'a>(place: &str, value: &'a Json) -> Result<&'a str> {
    value.as_str().ok_or_else(|| refuse(place, format!("the patch gives {value} where a name should stand")))
}

fn index(place: &str, value: &Json, count: usize) -> Result<usize> {
    let found = value.as_u64().and_then(|v| usize::try_from(v).ok()).filter(|at| *at <= count);
    found.ok_or_else(|| refuse(place, format!("the patch gives index {value} of {count}")))
}

/// One action on one op; what it changed, if anything.
fn act(op: &mut Op, action: &Action, fresh: &mut i64) -> Result<Option<String>> {
    let place = op.place();
    let name = action.action.as_str();
    if op.parameter.is_some() {
        return Err(refuse(
            &place,
            format!("{name} cannot be applied to a parameter, whose flags have places and no names"),
        ));
    }
    let of_results = name.contains("_output_attr");
    match name {
        "add_attr"
        | "modify_attr"
        | "delete_attr"
        | "modify_attr_name"
        | "add_output_attr"
        | "modify_output_attr"
        | "delete_output_attr"
        | "modify_output_attr_name" => {
            let attrs = if of_results { op.result_attrs.get_or_insert_default() } else { &mut op.attrs };
            change_attrs(&place, attrs, action)
        }
        "delete_input" => {
            let at = index(&place, &action.object, op.operands.len())?;
            Ok((at < op.operands.len()).then(|| format!("operand {at} {} removed", op.operands.remove(at))))
        }
        "add_output" => {
            let at = index(&place, &action.object, op.results.len())?;
            if at < op.results.len() {
                return Ok(None);
            }
            let ty = Arc::new(typed(&place, action)?);
            op.results.push(Value { id: ValueId(*fresh), ty });
            *fresh += 1;
            Ok(Some(format!("result {at} added")))
        }
        "modify_output_type" => {
            let at = index(&place, &action.object, op.results.len())?;
            let ty = Arc::new(typed(&place, action)?);
            let result =
                op.results.get_mut(at).ok_or_else(|| refuse(&place, format!("there is no result {at}")))?;
            let changed = result.ty != ty;
            result.ty = ty;
            Ok(changed.then(|| format!("type of result {at} changed")))
        }
        "modify_name" => {
            op.name = spelled(text(&place, &action.data)?).into();
            Ok(Some(format!("renamed to {}", op.full_name())))
        }
        _ => Err(refuse(&place, format!("action {name} of the patch is not known"))),
    }
}

fn change_attrs(place: &str, attrs: &mut Vec<Attr>, action: &Action) -> Result<Option<String>> {
    let name: Name = text(place, &action.object)?.into();
    let at = attrs.iter().position(|attr| attr.name == name);
    let what = action.action.replace("_output", "");
    Ok(match (what.as_str(), at) {
        // An attribute that is there wins, so that the second time changes nothing.
        ("add_attr", Some(_)) | ("modify_attr" | "delete_attr" | "modify_attr_name", None) => None,
        ("add_attr", None) => {
            attrs.push(Attr { name: name.clone(), value: Arc::new(typed(place, action)?) });
            Some(format!("attribute {name} added"))
        }
        ("delete_attr", Some(at)) => {
            attrs.remove(at);
            Some(format!("attribute {name} removed"))
        }
        ("modify_attr_name", Some(at)) => {
            attrs[at].name = text(place, &action.data)?.into();
            Some(format!("attribute {name} renamed to {}", attrs[at].name))
        }
        (_, Some(at)) => {
            let value = modified(place, &attrs[at].value, action)?;
            let changed = value != *attrs[at].value;
            attrs[at].value = Arc::new(value);
            changed.then(|| {
                format!("attribute {name} is now of kind {}", action.kind.as_deref().unwrap_or_default())
            })
        }
        (_, None) => None,
    })
}

/// The value with its kind changed, and its data where the patch has some.
fn modified(place: &str, value: &Node, action: &Action) -> Result<Node> {
    let name = action.kind.as_deref().ok_or_else(|| refuse(place, "the patch gives no kind"))?;
    let new = kind(place, name)?;
    if action.data.is_null() {
        return Ok(Node { kind: new.into(), ..value.clone() });
    }
    let inner =
        action.data.as_array().and_then(|items| items.first()).filter(|item| item.get("data").is_none());
    match inner.and_then(|item| item.get("type")) {
        Some(inner) => {
            let inner = kind(place, text(place, inner)?)?;
            let mut value = Node { kind: new.into(), ..value.clone() };
            retype_items(&mut value, inner);
            Ok(value)
        }
        None => typed(place, action),
    }
}

/// Gives every element of an array this kind; the values stay.
pub(super) fn retype_items(value: &mut Node, kind: &str) {
    let Some(Data::List(items)) = &mut value.data else { return };
    for item in items {
        if let Data::Node(node) = item {
            *item = Data::Node(Arc::new(Node { kind: kind.into(), ..(**node).clone() }));
        }
    }
}

/// The value or type that an action gives whole.
pub(super) fn typed(place: &str, action: &Action) -> Result<Node> {
    let name = action.kind.as_deref().ok_or_else(|| refuse(place, "the patch gives no kind"))?;
    Ok(Node::with(kind(place, name)?, json_data(place, &action.data)?)).map(|node| match &node.data {
        Some(Data::Null) => Node { data: None, ..node },
        _ => node,
    })
}

/// JSON of a patch as data: names of kinds become types, `{type, data}` becomes a value.
fn json_data(place: &str, json: &Json) -> Result<Data> {
    Ok(match json {
        Json::Null => Data::Null,
        Json::Bool(value) => Data::Bool(*value),
        Json::Number(number) => match number.as_i64() {
            Some(value) => Data::Int(value),
            None => Data::Real(Real::new(number.as_f64().unwrap_or_default())),
        },
        Json::String(text) => match KINDS.iter().find(|(name, _)| name == text) {
            Some((_, kind)) => Data::Node(Arc::new(Node::plain(kind))),
            None => Data::Text(text.as_str().into()),
        },
        Json::Array(items) => {
            Data::List(items.iter().map(|item| json_data(place, item)).collect::<Result<_>>()?)
        }
        Json::Object(fields) => {
            let name =
                fields.get("type").ok_or_else(|| refuse(place, "an element of the patch has no type"))?;
            let node = match fields.get("data") {
                Some(data) => Node::with(kind(place, text(place, name)?)?, json_data(place, data)?),
                None => Node::plain(kind(place, text(place, name)?)?),
            };
            Data::Node(Arc::new(node))
        }
    })
}

/// Adds or removes a value that every producer passes to the consumers after it.
fn pass(pair: &PairPatch, version: u64, program: &mut Program, fresh: &mut i64) -> Result<Vec<Change>> {
    let [producer, consumer] = &pair.op_pair;
    let mut changes = Vec::new();
    for action in &pair.actions {
        let ends = action.object.as_array().filter(|ends| ends.len() == 2);
        let ends =
            ends.ok_or_else(|| refuse(producer, "a pair of ops is patched by a result and an operand"))?;
        let (out, into) = (index(producer, &ends[0], usize::MAX)?, index(consumer, &ends[1], usize::MAX)?);
        let add = match action.action.as_str() {
            "add_value" => Some(Arc::new(typed(producer, action)?)),
            "delete_value" => None,
            other => return Err(refuse(producer, format!("action {other} of the patch is not known"))),
        };
        let mut made = None;
        program.visit_mut(&mut |op| {
            let name = op.full_name();
            if name == *producer {
                match &add {
                    Some(ty) if op.results.len() == out => {
                        made = Some(ValueId(*fresh));
                        op.results.push(Value { id: ValueId(*fresh), ty: ty.clone() });
                        *fresh += 1;
                    }
                    None if out < op.results.len() => drop(op.results.remove(out)),
                    _ => return,
                }
                changes.push(Change { version, op: op.place(), what: format!("{} {out}", action.action) });
            } else if name == *consumer {
                match (&add, made) {
                    (Some(_), Some(value)) if op.operands.len() == into => op.operands.push(value),
                    (None, _) if into < op.operands.len() => drop(op.operands.remove(into)),
                    _ => {}
                }
            }
        });
    }
    Ok(changes)
}

fn rename_attrs(program: &mut Program, from: &str, action: &Action) -> Result<()> {
    let to = match (action.action.as_str(), &action.kind) {
        ("modify_name", Some(name)) => kind("attr_patches", name)?,
        (other, _) => {
            return Err(refuse("attr_patches", format!("action {other} of the patch is not known")));
        }
    };
    program.visit_mut(&mut |op| {
        for attr in op.attrs.iter_mut().chain(op.result_attrs.iter_mut().flatten()) {
            if &*attr.value.kind == from {
                attr.value = Arc::new(Node { kind: to.into(), ..(*attr.value).clone() });
            }
        }
    });
    Ok(())
}

fn rename_types(program: &mut Program, from: &str, action: &Action) -> Result<()> {
    let to = match (action.action.as_str(), &action.kind) {
        ("modify_name", Some(name)) => kind("type_patches", name)?,
        ("delete_type", _) => "NULL",
        (other, _) => {
            return Err(refuse("type_patches", format!("action {other} of the patch is not known")));
        }
    };
    program.visit_mut(&mut |op| {
        for value in &mut op.results {
            if &*value.ty.kind == from {
                let data = if to == "NULL" { None } else { value.ty.data.clone() };
                value.ty = Arc::new(Node { kind: to.into(), data, special: None });
            }
        }
    });
    Ok(())
}
