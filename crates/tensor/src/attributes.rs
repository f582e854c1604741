//! The attributes of an op: what it is besides its inputs, as values that can be compared, hashed and written down.

use planaria_array::DType;
use planaria_layout::Dims;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::hash::{Hash, Hasher};

/// The value of one attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// A choice of two.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A real number.
    Float(f64),
    /// A name.
    Text(Cow<'static, str>),
    /// Whole numbers: dims, shapes, shifts.
    Ints(SmallVec<[i64; 6]>),
    /// An element type.
    DType(DType),
    /// Several values.
    List(Vec<Attr>),
}

impl Eq for Attr {}

impl Hash for Attr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Attr::Bool(v) => v.hash(state),
            Attr::Int(v) => v.hash(state),
            Attr::Float(v) => v.to_bits().hash(state),
            Attr::Text(v) => v.hash(state),
            Attr::Ints(v) => v.hash(state),
            Attr::DType(v) => v.hash(state),
            Attr::List(v) => v.hash(state),
        }
    }
}

impl From<bool> for Attr {
    fn from(value: bool) -> Attr {
        Attr::Bool(value)
    }
}
impl From<i64> for Attr {
    fn from(value: i64) -> Attr {
        Attr::Int(value)
    }
}
impl From<usize> for Attr {
    fn from(value: usize) -> Attr {
        Attr::Int(value as i64)
    }
}
impl From<f64> for Attr {
    fn from(value: f64) -> Attr {
        Attr::Float(value)
    }
}
impl From<&'static str> for Attr {
    fn from(value: &'static str) -> Attr {
        Attr::Text(Cow::Borrowed(value))
    }
}
impl From<DType> for Attr {
    fn from(value: DType) -> Attr {
        Attr::DType(value)
    }
}
impl From<&[usize]> for Attr {
    fn from(values: &[usize]) -> Attr {
        Attr::Ints(values.iter().map(|&v| v as i64).collect())
    }
}
impl From<&[i64]> for Attr {
    fn from(values: &[i64]) -> Attr {
        Attr::Ints(values.into())
    }
}

/// The attributes of an op by name, in a fixed order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes(SmallVec<[(Cow<'static, str>, Attr); 2]>);

impl Attributes {
    /// None.
    pub fn new() -> Attributes {
        Attributes::default()
    }

    /// With one more.
    pub fn with(self, name: &'static str, value: impl Into<Attr>) -> Attributes {
        self.with_read(Cow::Borrowed(name), value.into())
    }

    /// With one more, whose name was read from somewhere.
    pub fn with_read(mut self, name: Cow<'static, str>, value: Attr) -> Attributes {
        self.0.push((name, value));
        self
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Attr)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// The value of one.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

/// One attribute as what it must be; absent where it is missing or something else.
impl Attributes {
    pub(crate) fn truth(&self, name: &str) -> Option<bool> {
        if let Attr::Bool(value) = self.get(name)? { Some(*value) } else { None }
    }

    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        self.get(name)?.int()
    }

    pub(crate) fn size(&self, name: &str) -> Option<usize> {
        usize::try_from(self.int(name)?).ok()
    }

    pub(crate) fn real(&self, name: &str) -> Option<f64> {
        self.get(name)?.real()
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        if let Attr::Text(value) = self.get(name)? { Some(value) } else { None }
    }

    pub(crate) fn dtype(&self, name: &str) -> Option<DType> {
        if let Attr::DType(value) = self.get(name)? { Some(*value) } else { None }
    }

    pub(crate) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.get(name)?.ints()
    }

    pub(crate) fn sizes(&self, name: &str) -> Option<Dims> {
        self.ints(name)?.into_iter().map(|n| usize::try_from(n).ok()).collect()
    }

    pub(crate) fn list(&self, name: &str) -> Option<Vec<Attr>> {
        self.get(name)?.list()
    }

    /// A value that may be none, which is an empty list.
    pub(crate) fn maybe<T>(&self, name: &str, read: impl Fn(&Attr) -> Option<T>) -> Option<Option<T>> {
        let value = self.get(name)?;
        match value.list() {
            Some(list) if list.is_empty() => Some(None),
            _ => read(value).map(Some),
        }
    }
}

impl Attr {
    pub(crate) fn int(&self) -> Option<i64> {
        if let Attr::Int(value) = self { Some(*value) } else { None }
    }

    pub(crate) fn real(&self) -> Option<f64> {
        if let Attr::Float(value) = self { Some(*value) } else { None }
    }

    /// Whole numbers; a list of them is the same.
    pub(crate) fn ints(&self) -> Option<Vec<i64>> {
        match self {
            Attr::Ints(values) => Some(values.to_vec()),
            Attr::List(values) => values.iter().map(Attr::int).collect(),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> Option<Vec<Attr>> {
        match self {
            Attr::Ints(values) => Some(values.iter().copied().map(Attr::Int).collect()),
            Attr::List(values) => Some(values.clone()),
            _ => None,
        }
    }
}
