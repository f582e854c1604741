//! Ops by what they are written down with: a name and attributes, from which the same op is made again.

use super::{TABLE, compose};
use crate::attributes::Attributes;
use crate::op::Op;
use planaria_array::ops::Keep;
use std::sync::Arc;

/// An op, if the family has one of that name that these attributes describe.
pub(crate) type Found = Option<Arc<dyn Op>>;

pub(crate) fn found(op: impl Op) -> Found {
    Some(Arc::new(op))
}

/// Of families whose ops are more than a name and attributes.
pub(crate) fn none(_: &str, _: &Attributes) -> Found {
    None
}

/// Whether reduced dims stay as 1.
pub(crate) fn keep(at: &Attributes) -> Option<Keep> {
    Some(if at.truth("keepdim")? { Keep::Yes } else { Keep::No })
}

/// The op that calls itself `name` and has these attributes. None where nothing is called that, where the attributes are
/// not those of the op, and for ops that hold more than attributes: rows on their way between experts, and writes
/// through views.
pub fn named(name: &str, attributes: &Attributes) -> Option<Arc<dyn Op>> {
    TABLE
        .iter()
        .find_map(|family| (family.build)(name, attributes))
        .or_else(|| compose::build(name, attributes))
}
