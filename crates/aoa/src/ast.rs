//! The syntax tree: statements as they are written, every part with its place in the text.

use crate::error::{Problem, Span};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A parsed mapping text.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) text: Arc<str>,
    pub(crate) statements: Vec<Statement>,
    pub(crate) layouts: Vec<NamedLayout>,
    pub(crate) warnings: Vec<Problem>,
}

impl Program {
    /// The statements, in text order.
    pub fn statements(&self) -> &[Statement] {
        &self.statements
    }

    /// The layouts the text names.
    pub fn layouts(&self) -> &[NamedLayout] {
        &self.layouts
    }

    /// The text spans refer to.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// `layout NAME = PARTS`: a name for a number of tensor-parallel parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLayout {
    /// The name.
    pub name: String,
    /// Number of parts, at least 1.
    pub parts: usize,
    /// Place of the declaration.
    pub span: Span,
}

/// `left, ... -> right, ..., attribute, ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// What is read.
    pub left: Vec<Name>,
    /// What is assigned.
    pub right: Vec<Name>,
    /// How.
    pub attrs: Vec<Attr>,
    /// Place of the whole statement.
    pub span: Span,
}

/// A tensor name, or a pattern for several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name without marks; may hold placeholders (`$LAYER_ID`) and one `*`.
    pub base: String,
    /// Written in quotes: taken as it is.
    pub quoted: bool,
    /// `[a:b]`: stands for `base_a`, ..., `base_(b-1)`.
    pub array: Option<Range<usize>>,
    /// An odd number of `^T`: read with all dims reversed.
    pub transposed: bool,
    /// `?`: the statement is left out where this does not exist.
    pub optional: bool,
    /// Place of the name with its marks.
    pub span: Span,
}

impl Name {
    /// `_`: nothing.
    pub fn is_nothing(&self) -> bool {
        self.base == "_" && !self.quoted && self.array.is_none()
    }

    /// True when this may stand for several names.
    pub(crate) fn is_variadic(&self) -> bool {
        self.array.is_some() || (!self.quoted && self.base.contains('*'))
    }
}

/// `key=value`, or a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The word before `=`.
    pub key: String,
    /// What stands after it.
    pub value: Value,
    /// Place of both.
    pub span: Span,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// No value.
    Flag,
    /// A whole number.
    Int(i64),
    /// A quoted text, or a bare word.
    Text(String),
    /// `[1, 0]`.
    List(Vec<i64>),
}

impl Value {
    /// A list of whole numbers, written as such or in quotes.
    pub(crate) fn as_list(&self) -> Option<Vec<i64>> {
        match self {
            Value::List(list) => Some(list.clone()),
            Value::Text(text) => {
                let text = text.trim();
                let between = |open, close| text.strip_prefix(open)?.strip_suffix(close);
                let inner = between('[', ']').or_else(|| between('(', ')'))?.trim();
                if inner.is_empty() {
                    return Some(Vec::new());
                }
                let inner = inner.strip_suffix(',').unwrap_or(inner);
                inner.split(',').map(|item| item.trim().parse().ok()).collect()
            }
            _ => None,
        }
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |names: &[Name]| names.iter().map(Name::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "{} -> {}", names(&self.left), names(&self.right))?;
        self.attrs.iter().try_for_each(|attr| write!(f, ", {attr}"))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.quoted, self.base.contains('"')) {
            (false, _) => f.write_str(&self.base)?,
            (true, false) => write!(f, "\"{}\"", self.base)?,
            (true, true) => write!(f, "'{}'", self.base)?,
        }
        if let Some(range) = &self.array {
            write!(f, "[{}:{}]", range.start, range.end)?;
        }
        f.write_str(if self.transposed { "^T" } else { "" })?;
        f.write_str(if self.optional { "?" } else { "" })
    }
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Flag => f.write_str(&self.key),
            Value::Int(number) => write!(f, "{}={number}", self.key),
            Value::Text(text) => write!(f, "{}=\"{text}\"", self.key),
            Value::List(list) => write!(f, "{}={list:?}", self.key),
        }
    }
}
