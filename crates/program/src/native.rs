//! Ops of our own table in programs: `planaria.NAME`, their attributes as those of a file, and back.

use crate::node::{Data, Name, Node};
use crate::program::{Attr, Op};
use crate::types::Element;
use planaria_tensor::{Attributes, Op as TensorOp};
use std::borrow::Cow;
use std::sync::Arc;

/// The dialect of our own ops.
pub const DIALECT: &str = "planaria";

/// The name of the attribute that says which composite op, and which instance of it, an op comes from.
pub(crate) const ORIGIN: &str = "comp_op_name";

/// The name of the attribute that says all of a composite op, on the op that gives a result of it.
pub(crate) const COMPOSITE: &str = "composite";

/// The attributes of an op as those of a file.
pub(crate) fn attributes(op: &dyn TensorOp) -> Vec<Attr> {
    let attr = |(name, value): (&str, &planaria_tensor::Attr)| Attr {
        name: name.into(),
        value: Arc::new(node(value)),
    };
    op.attributes().iter().map(attr).collect()
}

fn node(value: &planaria_tensor::Attr) -> Node {
    use planaria_tensor::Attr as A;
    match value {
        A::Bool(value) => Node::bool(*value),
        A::Int(value) => Node::i64(*value),
        A::Float(value) => Node::f64(*value),
        A::Text(value) => Node::text(value),
        A::Ints(values) => Node::array(values.iter().map(|value| Node::i64(*value))),
        A::DType(dtype) => dtype_node(*dtype),
        A::List(values) => Node::array(values.iter().map(node)),
    }
}

pub(crate) fn dtype_node(dtype: planaria_array::DType) -> Node {
    Node::with("1.a_dtype", Data::Text(Element::Plain(dtype).name().into()))
}

/// An attribute of a file as one of an op; none for kinds that our ops do not have.
fn value(node: &Node) -> Option<planaria_tensor::Attr> {
    use planaria_tensor::Attr as A;
    Some(match node.own_kind() {
        "a_bool" => A::Bool(node.as_bool()?),
        "a_i64" => A::Int(node.as_int()?),
        "a_f64" => A::Float(node.as_real()?),
        "a_str" => A::Text(Cow::Owned(node.as_text()?.to_string())),
        "a_dtype" => match Element::of_name(node.as_text()?)? {
            Element::Plain(dtype) => A::DType(dtype),
            _ => return None,
        },
        "a_array" => A::List(node.items()?.into_iter().map(|item| value(item)).collect::<Option<_>>()?),
        _ => return None,
    })
}

/// The op of our table that an op of a program names; none if there is no such op with these attributes.
pub(crate) fn tensor_op(op: &Op) -> Option<Arc<dyn TensorOp>> {
    let (dialect, name) = op.parts();
    let own = |attr: &&Attr| !crate::ops::ANYWHERE.contains(&&*attr.name);
    let read = |all: Attributes, attr: &Attr| {
        Some(all.with_read(Cow::Owned(attr.name.to_string()), value(&attr.value)?))
    };
    let attributes = op.attrs.iter().filter(own).try_fold(Attributes::new(), read)?;
    if dialect == DIALECT { planaria_tensor::ops::named(name, &attributes) } else { None }
}

/// The name of one of our ops in a program.
pub(crate) fn op_name(name: &str) -> Name {
    format!("{DIALECT}.{name}").into()
}
