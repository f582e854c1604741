//! Makes programs op by op.

use crate::native::dtype_node;
use crate::node::{Data, Name, Node, Type};
use crate::program::{Attr, Block, NEWEST, Op, Parameter, Program, Region, Value, ValueId};
use crate::types::TensorType;
use std::sync::Arc;

/// A program under construction.
#[derive(Debug, Default)]
pub struct Builder {
    parameters: Vec<Op>,
    ops: Vec<Op>,
    last: i64,
    outputs: i32,
}

/// A named attribute.
pub fn attribute(name: &str, value: Node) -> Attr {
    Attr { name: name.into(), value: Arc::new(value) }
}

/// An attribute that names an element type.
pub fn dtype_attribute(name: &str, dtype: planaria_array::DType) -> Attr {
    attribute(name, dtype_node(dtype))
}

fn place(kind: i64) -> Node {
    Node::with("1.a_place", Data::List(vec![Data::Int(kind), Data::Int(0), Data::Text("".into())]))
}

fn flags(name: &str, flag: bool, count: usize) -> Attr {
    attribute(name, Node::array((0..count).map(|_| Node::bool(flag))))
}

impl Builder {
    /// An empty program.
    pub fn new() -> Builder {
        Builder::default()
    }

    fn value(&mut self, ty: Type) -> Value {
        self.last += 1;
        Value { id: ValueId(self.last), ty }
    }

    /// A tensor that the program holds, by name.
    pub fn parameter(&mut self, name: &str, ty: Type, trainable: bool) -> ValueId {
        let value = self.value(ty);
        let id = value.id;
        let parameter = Parameter {
            name: name.into(),
            flags: [false, true, true],
            state: Some([true, !trainable, trainable]),
            dist: Some(Vec::new()),
            origin: Some(Vec::new()),
        };
        let parameter = Some(Box::new(parameter));
        self.parameters.push(Op { results: vec![value], parameter, ..Builder::bare("p", &[], Vec::new()) });
        id
    }

    /// An input, by name.
    pub fn input(&mut self, name: &str, ty: &TensorType) -> Option<ValueId> {
        let dtype = Node::with("1.a_dtype", Data::Text(ty.element.name().into()));
        let attrs = vec![
            attribute("name", Node::text(name)),
            attribute("shape", Node::int_array(&ty.dims)),
            attribute("dtype", dtype),
            attribute("place", place(0)),
        ];
        self.op("1.data", &[], attrs, vec![Arc::new(ty.node()?)]).first().copied()
    }

    /// An op that stands nowhere yet.
    pub(crate) fn bare(name: &str, operands: &[ValueId], attrs: Vec<Attr>) -> Op {
        Op {
            name: name.into(),
            operands: operands.to_vec(),
            results: Vec::new(),
            attrs,
            result_attrs: None,
            regions: Vec::new(),
            parameter: None,
        }
    }

    /// An op of another program, on other operands; its results have new ids.
    pub(crate) fn copy(&mut self, op: &Op, operands: &[ValueId]) -> Vec<ValueId> {
        let results: Vec<Value> = op.results.iter().map(|value| self.value(value.ty.clone())).collect();
        let ids = results.iter().map(|value| value.id).collect();
        self.ops.push(Op { operands: operands.to_vec(), results, ..op.clone() });
        ids
    }

    /// The same, also of an op that is a parameter.
    pub(crate) fn copy_any(&mut self, op: &Op, operands: &[ValueId]) -> Vec<ValueId> {
        let ids = self.copy(op, operands);
        if op.parameter.is_some() {
            self.parameters.extend(self.ops.pop());
        }
        ids
    }

    /// Gives a result of an op that is there another type.
    pub(crate) fn retype(&mut self, id: ValueId, ty: &Type) {
        let results = self.ops.iter_mut().rev().flat_map(|op| &mut op.results);
        results.filter(|value| value.id == id).for_each(|value| value.ty = ty.clone());
    }

    /// An op; its results.
    pub fn op(
        &mut self,
        name: &str,
        operands: &[ValueId],
        attrs: Vec<Attr>,
        types: Vec<Type>,
    ) -> Vec<ValueId> {
        let count = types.len();
        let results: Vec<Value> = types.into_iter().map(|ty| self.value(ty)).collect();
        let ids = results.iter().map(|value| value.id).collect();
        let result_attrs = Some(vec![flags("stop_gradient", false, count)]);
        self.ops.push(Op { results, result_attrs, ..Builder::bare(name, operands, attrs) });
        ids
    }

    /// All results of the op that gives this one.
    pub(crate) fn given_with(&self, id: ValueId) -> Vec<ValueId> {
        let ids = |op: &Op| op.results.iter().map(|value| value.id).collect::<Vec<_>>();
        self.ops.iter().rev().map(ids).find(|ids| ids.contains(&id)).unwrap_or_default()
    }

    /// Adds an attribute to the op that gives a value.
    pub(crate) fn annotate(&mut self, id: ValueId, attr: Attr) {
        let gives = |op: &&mut Op| op.results.iter().any(|value| value.id == id);
        if let Some(op) = self.ops.iter_mut().rev().find(gives) {
            op.attrs.push(attr);
        }
    }

    /// Says how the parameter or the op that was added last lies on a mesh.
    pub(crate) fn lay(&mut self, parameter: bool, attr: Attr) {
        match parameter {
            true => {
                let own = self.parameters.last_mut().and_then(|op| op.parameter.as_mut());
                own.into_iter().for_each(|own| own.origin.get_or_insert_default().push(attr.clone()));
            }
            false => self.ops.last_mut().into_iter().for_each(|op| op.attrs.push(attr.clone())),
        }
    }

    /// The op that was added last.
    pub(crate) fn last(&self) -> Option<&Op> {
        self.ops.last()
    }

    /// The attributes of `full`.
    pub(crate) fn full_attrs(ty: &TensorType, value: f64) -> Vec<Attr> {
        vec![
            attribute("shape", Node::int_array(&ty.dims)),
            attribute("value", Node::f64(value)),
            attribute("dtype", Node::with("1.a_dtype", Data::Text(ty.element.name().into()))),
            attribute("place", place(1)),
        ]
    }

    /// The attributes of `arange`.
    pub(crate) fn range_attrs(dtype: planaria_array::DType) -> Vec<Attr> {
        vec![dtype_attribute("dtype", dtype), attribute("place", place(1))]
    }

    /// The attributes of `full_int_array`.
    pub(crate) fn ints_attrs(values: &[i64]) -> Vec<Attr> {
        vec![
            attribute("value", Node::array(values.iter().map(|value| Node::i64(*value)))),
            dtype_attribute("dtype", planaria_array::DType::I64),
            attribute("place", place(1)),
        ]
    }

    /// A tensor of one value.
    pub fn full(&mut self, ty: &TensorType, value: f64) -> Option<ValueId> {
        let node = Arc::new(ty.node()?);
        self.op("1.full", &[], Builder::full_attrs(ty, value), vec![node]).first().copied()
    }

    /// Answers a value under a name.
    pub fn output(&mut self, name: &str, value: ValueId, ty: Type) {
        let attrs = vec![attribute("name", Node::text(name)), attribute("col", Node::i32(self.outputs))];
        self.outputs += 1;
        self.op("1.fetch", &[value], attrs, vec![ty]);
        if let Some(op) = self.ops.last_mut() {
            op.result_attrs = Some(vec![flags("persistable", true, 1), flags("stop_gradient", false, 1)]);
        }
    }

    /// The program: parameters first, then the rest as it came.
    pub fn finish(self) -> Program {
        let ops = self.parameters.into_iter().chain(self.ops).collect();
        let block = Block { label: "block_0".into(), args: Vec::new(), kwargs: None, ops };
        let body = Arc::new(Region { label: Name::from("region_0"), blocks: vec![block] });
        Program { version: NEWEST, trainable: true, readable: false, body }
    }
}
