//! ONNX nodes under their attributes, and the small constants that other nodes need to know.

use super::proto::{self, Attribute};
use crate::error::{Error, Result};

/// One node with its attributes by name.
pub(super) struct Read<'a> {
    pub(super) node: &'a proto::Node,
    pub(super) op: &'a str,
}

impl<'a> Read<'a> {
    pub(super) fn new(node: &'a proto::Node) -> Read<'a> {
        Read { node, op: node.op_type.as_deref().unwrap_or_default() }
    }

    /// Operator, name and first output, for messages.
    pub(super) fn place(&self) -> String {
        let name = self.node.name.as_deref().filter(|name| !name.is_empty());
        let name = name.or(self.node.output.first().map(String::as_str)).unwrap_or("without a name");
        format!("{} ({name})", self.op)
    }

    pub(super) fn refuse<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Error::Onnx { place: self.place(), what: what.into() })
    }

    fn attribute(&self, name: &str) -> Option<&'a Attribute> {
        self.node.attribute.iter().find(|attr| attr.name.as_deref() == Some(name))
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name)?.i
    }

    pub(super) fn float(&self, name: &str) -> Option<f32> {
        self.attribute(name)?.f
    }

    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.attribute(name).map(|attr| attr.ints.clone())
    }

    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        std::str::from_utf8(self.attribute(name)?.s.as_deref()?).ok()
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&'a proto::Tensor> {
        self.attribute(name)?.t.as_ref()
    }

    /// The name of an input, unless it is left out.
    pub(super) fn input(&self, at: usize) -> Option<&'a str> {
        self.node.input.get(at).map(String::as_str).filter(|name| !name.is_empty())
    }
}
