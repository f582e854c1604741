//! The attributes of an op: what it is besides its inputs, as values that can be compared, hashed and written down.

use planaria_array::DType;
use smallvec::SmallVec;
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
    Text(&'static str),
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
        Attr::Text(value)
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
pub struct Attributes(SmallVec<[(&'static str, Attr); 2]>);

impl Attributes {
    /// None.
    pub fn new() -> Attributes {
        Attributes::default()
    }

    /// With one more.
    pub fn with(mut self, name: &'static str, value: impl Into<Attr>) -> Attributes {
        self.0.push((name, value.into()));
        self
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Attr)> {
        self.0.iter().map(|(name, value)| (*name, value))
    }

    /// The value of one.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}
