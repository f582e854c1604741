//! Computes what does not depend on inputs or parameters.

use super::{is_repeatable, overwritten};
use crate::error::Result;
use crate::node::{Data, Node};
use crate::program::{Attr, Op, Program, ValueId};
use crate::run::{Datum, evaluate};
use crate::types::Element;
use planaria_array::{Array, DType};
use std::collections::HashMap;
use std::sync::Arc;

/// Elements of a constant that is written into a program; larger ones cost more there than to compute.
const MOST: usize = 64;

/// Ops that are constants already.
const CONSTANTS: [&str; 3] = ["full", "full_int_array", "assign_value"];

/// Replaces ops of the main block that depend on constants alone by their small results, and says how many.
///
/// # Errors
/// An op of constants that cannot be run.
pub fn fold_constants(program: &mut Program) -> Result<usize> {
    let written = overwritten(program);
    let mut known: HashMap<ValueId, Datum> = HashMap::new();
    let mut folded = 0;
    let Some(block) = program.block_mut() else { return Ok(0) };
    for op in &mut block.ops {
        let own: Vec<ValueId> = op.results.iter().map(|value| value.id).collect();
        if !is_repeatable(op) || own.iter().chain(&op.operands).any(|id| written.contains(id)) {
            continue;
        }
        let args: Option<Vec<Datum>> = op.operands.iter().map(|id| known.get(id).cloned()).collect();
        let Some(args) = args else { continue };
        if large(op) {
            continue;
        }
        let results = evaluate(op, args)?;
        known.extend(own.into_iter().zip(results.iter().cloned()));
        let constant = op.parts().0 == "pd_op" && CONSTANTS.contains(&op.parts().1);
        if let ([Datum::Array(array)], false) = (results.as_slice(), constant)
            && let Some(attrs) = written_down(array)
        {
            op.name = "1.assign_value".into();
            op.operands.clear();
            op.attrs.retain(|attr| crate::ops::ANYWHERE.contains(&&*attr.name));
            op.attrs.splice(0..0, attrs);
            folded += 1;
        }
    }
    Ok(folded)
}

/// Whether a result is declared larger than what is written down.
fn large(op: &Op) -> bool {
    let types = op.results.iter().filter_map(|value| crate::types::tensor_type(&value.ty));
    types.into_iter().any(|ty| ty.numel().is_none_or(|count| count > MOST as u64))
}

/// The attributes of `assign_value` that give exactly this array, if any do.
fn written_down(array: &Array) -> Option<Vec<Attr>> {
    if array.numel() > MOST {
        return None;
    }
    let wide = array.cast(DType::F64).ok()?;
    let exact = wide.cast(array.dtype()).ok()?;
    let bytes = |array: &Array| Some(array.contiguous().ok()?.bytes().ok()?.to_vec());
    if bytes(&exact)? != bytes(array)? {
        return None;
    }
    let shape =
        array.shape().iter().map(|d| i32::try_from(*d).ok().map(Node::i32)).collect::<Option<Vec<_>>>()?;
    let values: Vec<Node> = wide.to_vec::<f64>().ok()?.into_iter().map(Node::f64).collect();
    let dtype = Node::with("1.a_dtype", Data::Text(Element::Plain(array.dtype()).name().into()));
    let place = Data::List(vec![Data::Int(1), Data::Int(0), Data::Text("".into())]);
    let attrs = [
        ("shape", Node::array(shape)),
        ("dtype", dtype),
        ("values", Node::array(values)),
        ("place", Node::with("1.a_place", place)),
    ];
    Some(attrs.into_iter().map(|(name, node)| Attr { name: name.into(), value: Arc::new(node) }).collect())
}
