//! Types and attribute values as a file has them: a kind and data, kept exactly whether known here or not.

use crate::json::number_text;
use std::sync::Arc;

/// A string that many values share.
pub type Name = Arc<str>;

/// A type of a value.
pub type Type = Arc<Node>;

/// A kind with its data: a type such as `0.t_f32`, or an attribute value such as `0.a_bool` with `true`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Dialect and kind as the file spells them.
    pub kind: Name,
    /// What stands under `D`.
    pub data: Option<Data>,
    /// What stands under `VD`: a float that JSON has no number for.
    pub special: Option<Name>,
}

/// Any JSON value, with kinds recognised inside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Data {
    /// Nothing.
    Null,
    /// A truth value.
    Bool(bool),
    /// An integer of 64 bits.
    Int(i64),
    /// Any other number.
    Real(Real),
    /// A string.
    Text(Name),
    /// A list.
    List(Vec<Data>),
    /// An object that is no [`Node`], its keys in order.
    Map(Vec<(Name, Data)>),
    /// A type or attribute value inside another.
    Node(Arc<Node>),
}

/// A number, and the way it was written where that is not ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Real {
    bits: u64,
    text: Option<Name>,
}

impl Real {
    /// A finite number, written our way.
    pub fn new(value: f64) -> Real {
        Real { bits: value.to_bits(), text: None }
    }

    /// A number as some file wrote it; none if it is too large.
    pub(crate) fn written(text: &str) -> Option<Real> {
        let value: f64 = text.parse().ok()?;
        let kept = (number_text(value) != text).then(|| Name::from(text));
        value.is_finite().then(|| Real { bits: value.to_bits(), text: kept })
    }

    /// The number.
    pub fn value(&self) -> f64 {
        f64::from_bits(self.bits)
    }

    /// How it is written.
    pub fn text(&self) -> String {
        self.text.as_deref().map_or_else(|| number_text(self.value()), str::to_string)
    }
}

impl Data {
    /// A number of the kind that the text calls for.
    pub(crate) fn number(text: &str) -> Option<Data> {
        match text.parse::<i64>() {
            Ok(value) if text != "-0" => Some(Data::Int(value)),
            _ => Real::written(text).map(Data::Real),
        }
    }

    /// As an integer.
    pub fn int(&self) -> Option<i64> {
        match self {
            Data::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// As a number.
    pub fn real(&self) -> Option<f64> {
        match self {
            Data::Int(value) => Some(*value as f64),
            Data::Real(real) => Some(real.value()),
            _ => None,
        }
    }

    /// As a string.
    pub fn text(&self) -> Option<&str> {
        match self {
            Data::Text(text) => Some(text),
            _ => None,
        }
    }

    /// As a list.
    pub fn list(&self) -> Option<&[Data]> {
        match self {
            Data::List(items) => Some(items),
            _ => None,
        }
    }

    /// As a list of integers.
    pub fn ints(&self) -> Option<Vec<i64>> {
        self.list()?.iter().map(Data::int).collect()
    }

    /// As a node.
    pub fn node(&self) -> Option<&Arc<Node>> {
        match self {
            Data::Node(node) => Some(node),
            _ => None,
        }
    }
}

impl Node {
    /// A kind without data.
    pub fn plain(kind: &str) -> Node {
        Node { kind: kind.into(), data: None, special: None }
    }

    /// A kind with data.
    pub fn with(kind: &str, data: Data) -> Node {
        Node { kind: kind.into(), data: Some(data), special: None }
    }

    /// A truth value.
    pub fn bool(value: bool) -> Node {
        Node::with("0.a_bool", Data::Bool(value))
    }

    /// An integer of 32 bits.
    pub fn i32(value: i32) -> Node {
        Node::with("0.a_i32", Data::Int(value.into()))
    }

    /// An integer of 64 bits.
    pub fn i64(value: i64) -> Node {
        Node::with("0.a_i64", Data::Int(value))
    }

    /// A float of 32 bits, widened as files hold it.
    pub fn f32(value: f32) -> Node {
        Node::float("0.a_f32", value.into())
    }

    /// A float of 64 bits.
    pub fn f64(value: f64) -> Node {
        Node::float("0.a_f64", value)
    }

    fn float(kind: &str, value: f64) -> Node {
        let special = match value {
            v if v.is_nan() => "NaN",
            f64::INFINITY => "INF",
            f64::NEG_INFINITY => "-INF",
            _ => return Node::with(kind, Data::Real(Real::new(value))),
        };
        Node { kind: kind.into(), data: None, special: Some(special.into()) }
    }

    /// A string.
    pub fn text(value: &str) -> Node {
        Node::with("0.a_str", Data::Text(value.into()))
    }

    /// A list of attribute values.
    pub fn array(items: impl IntoIterator<Item = Node>) -> Node {
        Node::with(
            "0.a_array",
            Data::List(items.into_iter().map(|node| Data::Node(Arc::new(node))).collect()),
        )
    }

    /// A list of plain integers.
    pub fn int_array(values: &[i64]) -> Node {
        Node::with("1.a_intarray", Data::List(values.iter().map(|v| Data::Int(*v)).collect()))
    }

    /// Dialect and kind, the dialect by its full name.
    pub fn parts(&self) -> (&str, &str) {
        split(&self.kind)
    }

    /// The kind alone where the dialect is one of Paddle's own, as `a_bool` or `t_f32`.
    pub fn own_kind(&self) -> &str {
        match self.parts() {
            ("builtin" | "pd_op" | "cf" | "pd_dist", kind) => kind,
            _ => &self.kind,
        }
    }

    /// As a truth value.
    pub fn as_bool(&self) -> Option<bool> {
        match self.data {
            Some(Data::Bool(value)) => Some(value),
            _ => None,
        }
    }

    /// As an integer.
    pub fn as_int(&self) -> Option<i64> {
        self.data.as_ref()?.int()
    }

    /// As a number, those included that JSON lacks.
    pub fn as_real(&self) -> Option<f64> {
        match self.special.as_deref() {
            Some("NaN" | "NAN" | "nan") => Some(f64::NAN),
            Some("INF") => Some(f64::INFINITY),
            Some("-INF") => Some(f64::NEG_INFINITY),
            Some(_) => None,
            None => self.data.as_ref()?.real(),
        }
    }

    /// As a string.
    pub fn as_text(&self) -> Option<&str> {
        self.data.as_ref()?.text()
    }

    /// The attribute values of an array.
    pub fn items(&self) -> Option<Vec<&Arc<Node>>> {
        self.data.as_ref()?.list()?.iter().map(Data::node).collect()
    }

    /// Integers, of an `a_intarray` or of an `a_array` of integers.
    pub fn as_ints(&self) -> Option<Vec<i64>> {
        self.data
            .as_ref()?
            .list()?
            .iter()
            .map(|item| item.node().map_or(item.int(), |n| n.as_int()))
            .collect()
    }

    /// Numbers of an `a_array`.
    pub fn as_reals(&self) -> Option<Vec<f64>> {
        self.data
            .as_ref()?
            .list()?
            .iter()
            .map(|item| item.node().map_or(item.real(), |n| n.as_real()))
            .collect()
    }
}

/// Dialect ids of Paddle's files.
const DIALECTS: [(&str, &str); 5] =
    [("0", "builtin"), ("1", "pd_op"), ("2", "cf"), ("3", "custom_op"), ("4", "pd_dist")];

/// Splits a name at its first dot; ids of dialects become their names.
pub(crate) fn split(name: &str) -> (&str, &str) {
    let (dialect, rest) = name.split_once('.').unwrap_or(("", name));
    let known = DIALECTS.iter().find(|(id, _)| *id == dialect);
    (known.map_or(dialect, |(_, full)| full), rest)
}

/// The spelling of files for a dialect's full name.
pub(crate) fn spelled(full: &str) -> String {
    match full.split_once('.') {
        Some((dialect, rest)) => {
            let id = DIALECTS.iter().find(|(_, known)| *known == dialect).map_or(dialect, |(id, _)| id);
            format!("{id}.{rest}")
        }
        None => full.to_string(),
    }
}
