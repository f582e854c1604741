//! A program: regions of blocks of ops over SSA values.

use crate::node::{Name, Node, Type, split};
use std::fmt;
use std::sync::Arc;

/// The version of program files that upgrades lead to.
pub const NEWEST: u64 = 4;

/// The oldest version of program files.
pub const OLDEST: u64 = 1;

/// A value: results of ops count up from 1, arguments of blocks down from -1. Rewriting never changes the id of a
/// value that stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub i64);

impl ValueId {
    /// An operand that is left out.
    pub const ABSENT: ValueId = ValueId(0);

    /// Whether it stands for an operand that is left out.
    pub fn is_absent(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// A whole program. A clone shares everything until one of the two is changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Version of the op definitions it is written in.
    pub version: u64,
    /// Whether it keeps what gradients need.
    pub trainable: bool,
    /// Whether its file is indented.
    pub readable: bool,
    /// The module.
    pub body: Arc<Region>,
}

/// Blocks, the first of which is entered.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// What the file calls it.
    pub label: Name,
    /// Its blocks.
    pub blocks: Vec<Block>,
}

/// Arguments and ops in the order they run.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// What the file calls it.
    pub label: Name,
    /// Values it is entered with.
    pub args: Vec<Value>,
    /// Values it is entered with by name, where the file has a list of them.
    pub kwargs: Option<Vec<(Name, Value)>>,
    /// Its ops.
    pub ops: Vec<Op>,
}

/// A value where it is defined.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Its id.
    pub id: ValueId,
    /// Its type.
    pub ty: Type,
}

/// A named attribute.
#[derive(Clone, Debug, PartialEq)]
pub struct Attr {
    /// Its name.
    pub name: Name,
    /// Its value.
    pub value: Arc<Node>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// Dialect and name as the file spells them.
    pub name: Name,
    /// What it reads; absent ones keep their place.
    pub operands: Vec<ValueId>,
    /// What it defines.
    pub results: Vec<Value>,
    /// Its attributes, in the file's order.
    pub attrs: Vec<Attr>,
    /// Attributes of its results, where the file has a list of them.
    pub result_attrs: Option<Vec<Attr>>,
    /// Regions it may run.
    pub regions: Vec<Region>,
    /// What only parameters have.
    pub parameter: Option<Box<Parameter>>,
}

/// What `builtin.parameter` has instead of attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: Name,
    /// `is_distributed`, `is_parameter`, `need_clip`.
    pub flags: [bool; 3],
    /// `persistable`, `stop_gradient`, `trainable`.
    pub state: Option<[bool; 3]>,
    /// How it is distributed, and its role.
    pub dist: Option<Vec<Attr>>,
    /// Where it came from.
    pub origin: Option<Vec<Attr>>,
}

impl Op {
    /// Dialect and name, the dialect by its full name.
    pub fn parts(&self) -> (&str, &str) {
        if self.parameter.is_some() { ("builtin", "parameter") } else { split(&self.name) }
    }

    /// The name with the dialect spelled out, as `pd_op.matmul`.
    pub fn full_name(&self) -> String {
        let (dialect, name) = self.parts();
        if dialect.is_empty() { name.to_string() } else { format!("{dialect}.{name}") }
    }

    /// Whether it is this op, as `("pd_op", "matmul")`.
    pub fn is(&self, dialect: &str, name: &str) -> bool {
        self.parts() == (dialect, name)
    }

    /// The attribute of this name.
    pub fn attr(&self, name: &str) -> Option<&Node> {
        self.attrs.iter().find(|attr| &*attr.name == name).map(|attr| &*attr.value)
    }

    /// Whether the attribute of all results says this of result `at`.
    pub fn result_flag(&self, name: &str, at: usize) -> Option<bool> {
        let attr = self.result_attrs.as_ref()?.iter().find(|attr| &*attr.name == name)?;
        attr.value.items()?.get(at)?.as_bool()
    }

    /// The op and its first result, for messages.
    pub fn place(&self) -> String {
        match self.results.first() {
            Some(value) => format!("{} {}", self.full_name(), value.id),
            None => self.full_name(),
        }
    }
}

/// A tensor that outlives a run: a parameter, or a persistable input such as the state of an optimizer.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// Its name.
    pub name: Name,
    /// The value it is read through.
    pub value: Value,
    /// Whether it is a parameter; state of an optimizer or a buffer otherwise.
    pub parameter: bool,
}

/// An input of a program, in the order of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Its name.
    pub name: Name,
    /// The value it becomes.
    pub value: Value,
}

impl Program {
    /// The block that runs.
    pub fn block(&self) -> Option<&Block> {
        self.body.blocks.first()
    }

    /// The block that runs, for changes; shares end here.
    pub fn block_mut(&mut self) -> Option<&mut Block> {
        Arc::make_mut(&mut self.body).blocks.first_mut()
    }

    /// Ops of the whole program, those in regions included.
    pub fn op_count(&self) -> usize {
        fn count(region: &Region) -> usize {
            let ops = region.blocks.iter().flat_map(|block| &block.ops);
            ops.map(|op| 1 + op.regions.iter().map(count).sum::<usize>()).sum()
        }
        count(&self.body)
    }

    /// Visits every op, those that hold a region before those inside.
    pub fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a Op)) {
        fn go<'a>(region: &'a Region, visit: &mut dyn FnMut(&'a Op)) {
            for op in region.blocks.iter().flat_map(|block| &block.ops) {
                visit(op);
                op.regions.iter().for_each(|region| go(region, visit));
            }
        }
        go(&self.body, visit);
    }

    /// Visits every op for changes.
    pub fn visit_mut(&mut self, visit: &mut dyn FnMut(&mut Op)) {
        fn go(region: &mut Region, visit: &mut dyn FnMut(&mut Op)) {
            for op in region.blocks.iter_mut().flat_map(|block| &mut block.ops) {
                visit(op);
                op.regions.iter_mut().for_each(|region| go(region, visit));
            }
        }
        go(Arc::make_mut(&mut self.body), visit);
    }

    /// The tensors that outlive a run, in the order of parameter files: by name.
    pub fn held(&self) -> Vec<Held> {
        let mut held: Vec<Held> =
            self.block().into_iter().flat_map(|block| &block.ops).filter_map(Op::held).collect();
        held.sort_by(|a, b| a.name.cmp(&b.name));
        held
    }

    /// What a run is given: `data` ops that are not persistable.
    pub fn inputs(&self) -> Vec<Input> {
        let ops = self.block().into_iter().flat_map(|block| &block.ops);
        let inputs = ops.filter(|op| op.is("pd_op", "data") && op.held().is_none());
        inputs
            .filter_map(|op| {
                let name = op.attr("name")?.as_text()?.into();
                Some(Input { name, value: op.results.first()?.clone() })
            })
            .collect()
    }

    /// What a run answers: the operands of `fetch` ops, in the order of their columns.
    pub fn outputs(&self) -> Vec<(Name, ValueId)> {
        let ops = self.block().into_iter().flat_map(|block| &block.ops);
        let fetches = ops.filter(|op| op.is("pd_op", "fetch"));
        let mut outputs: Vec<(i64, Name, ValueId)> = fetches
            .filter_map(|op| {
                let column = op.attr("col")?.as_int()?;
                Some((column, op.attr("name")?.as_text()?.into(), *op.operands.first()?))
            })
            .collect();
        outputs.sort_by_key(|(column, ..)| *column);
        outputs.into_iter().map(|(_, name, value)| (name, value)).collect()
    }
}

impl Op {
    /// The tensor that outlives a run, if this op names one.
    pub fn held(&self) -> Option<Held> {
        let value = self.results.first()?.clone();
        if let Some(parameter) = &self.parameter {
            let persistable = parameter.state.is_none_or(|[persistable, ..]| persistable);
            return persistable.then(|| Held { name: parameter.name.clone(), value, parameter: true });
        }
        let state = self.is("pd_op", "data") && self.result_flag("persistable", 0) == Some(true);
        let name = state.then(|| self.attr("name")?.as_text()).flatten()?;
        Some(Held { name: name.into(), value, parameter: false })
    }
}
