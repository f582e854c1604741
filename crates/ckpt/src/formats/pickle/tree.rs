//! The values of a pickle: nodes that refer to each other by number, as the memo of a pickle may share them.

use super::survey::{Extent, survey};
use std::collections::HashMap;
use std::sync::OnceLock;

/// A node of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub(super) u32);

/// Where bytes lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte, from the start of the file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A byte string: short ones are kept, of long ones only the place.
#[derive(Clone, Debug, PartialEq)]
pub struct Bytes {
    /// Where it lies.
    pub span: Span,
    /// The bytes, when they are few.
    pub kept: Option<Box<[u8]>>,
    /// Whether it is a `bytearray`.
    pub mutable: bool,
}

/// How an object would have come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Making {
    /// By a call with the arguments.
    Call,
    /// By `__new__` of the class, without its constructor.
    New,
    /// The same; the arguments are a pair of those by position and those by name.
    NewNamed,
}

/// Something Python would have called. It is only a record here.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// How it would have come to be.
    pub making: Making,
    /// What would have been called, usually a [`Node::Global`].
    pub callable: Id,
    /// Its arguments, usually a tuple.
    pub args: Id,
    /// State given afterwards.
    pub state: Option<Id>,
    /// Items appended afterwards (lists, deques, sets of a class of their own).
    pub items: Vec<Id>,
    /// Pairs set afterwards (dicts of a class of their own).
    pub pairs: Vec<(Id, Id)>,
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// A longer integer: two's complement, little-endian.
    Big(Box<[u8]>),
    /// A float.
    Float(f64),
    /// Text.
    Text(Box<str>),
    /// A byte string.
    Bytes(Box<Bytes>),
    /// A list.
    List(Vec<Id>),
    /// A tuple.
    Tuple(Vec<Id>),
    /// A set.
    Set(Vec<Id>),
    /// A frozen set.
    FrozenSet(Vec<Id>),
    /// A dict in order; of equal keys the last counts.
    Dict(Vec<(Id, Id)>),
    /// A class or function, by name.
    Global(Box<(String, String)>),
    /// What a call would have made.
    Object(Box<Object>),
    /// A reference to something stored elsewhere.
    Persistent(Id),
}

/// The values of one pickle.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(super) nodes: Vec<Node>,
    pub(super) root: Id,
    /// One past the last byte of the pickle.
    pub(super) end: u64,
    /// What stands below each node, once somebody asks.
    pub(super) extents: OnceLock<Vec<Extent>>,
}

impl Tree {
    /// The value of the whole pickle.
    pub fn root(&self) -> Id {
        self.root
    }

    /// One past the last byte of the pickle.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// A node.
    pub fn node(&self, id: Id) -> &Node {
        // Ids are only made by the machine, for nodes of this tree.
        &self.nodes[id.0 as usize]
    }

    /// What stands below a node.
    pub(super) fn extent(&self, id: Id) -> Extent {
        self.extents.get_or_init(|| survey(self))[id.0 as usize]
    }

    /// Values below a node and itself, shared ones as often as they stand somewhere; the most there is for a part of itself.
    pub(crate) fn values(&self, id: Id) -> u64 {
        self.extent(id).values
    }

    /// Whether something that is stored outside the pickle, such as a tensor, is below.
    pub(crate) fn holds_stored(&self, id: Id) -> bool {
        self.extent(id).stored
    }

    /// Text, if it is one.
    pub fn text(&self, id: Id) -> Option<&str> {
        match self.node(id) {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// An integer of at most 64 bits, if it is one. `True` is 1 in Python, but not a size here.
    pub fn int(&self, id: Id) -> Option<i64> {
        match self.node(id) {
            Node::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// A size: an integer that is not negative.
    pub fn size(&self, id: Id) -> Option<usize> {
        usize::try_from(self.int(id)?).ok()
    }

    /// A truth value, if it is one.
    pub fn bool(&self, id: Id) -> Option<bool> {
        match self.node(id) {
            Node::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// Whether it is `None`.
    pub fn is_none(&self, id: Id) -> bool {
        matches!(self.node(id), Node::None)
    }

    /// The items of a list or tuple, also of one wrapped in a class of the same meaning (`torch.Size`).
    pub fn items(&self, id: Id) -> Option<&[Id]> {
        match self.node(id) {
            Node::List(items) | Node::Tuple(items) => Some(items),
            Node::Object(object) => {
                let list = ["tuple", "list", "Size"].contains(&self.global(object.callable)?.1);
                let known = ["builtins", "__builtin__", "torch"].contains(&self.global(object.callable)?.0);
                match (self.plain(object.args)?, list && known) {
                    ([inner], true) => self.plain(*inner),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The items of a bare list or tuple. Looking through one wrapper only keeps hostile nesting harmless.
    fn plain(&self, id: Id) -> Option<&[Id]> {
        match self.node(id) {
            Node::List(items) | Node::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// A list of sizes, such as a shape.
    pub fn sizes(&self, id: Id) -> Option<Vec<usize>> {
        self.items(id)?.iter().map(|&item| self.size(item)).collect()
    }

    /// Module and name of a global.
    pub fn global(&self, id: Id) -> Option<(&str, &str)> {
        match self.node(id) {
            Node::Global(global) => Some((&global.0, &global.1)),
            _ => None,
        }
    }

    /// An object and the module and name of its callable.
    pub fn object(&self, id: Id) -> Option<(&Object, (&str, &str))> {
        match self.node(id) {
            Node::Object(object) => Some((object, self.global(object.callable)?)),
            _ => None,
        }
    }

    /// The pairs of a dict, also of an `OrderedDict` or the like.
    pub fn pairs(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.node(id) {
            Node::Dict(pairs) => Some(pairs),
            Node::Object(object) => match self.global(object.callable)? {
                ("collections", "OrderedDict" | "defaultdict") => Some(&object.pairs),
                _ => None,
            },
            _ => None,
        }
    }

    /// A dict with text keys; of equal keys the last value counts. Other keys are left out.
    pub fn dict(&self, id: Id) -> Option<HashMap<&str, Id>> {
        let pairs = self.pairs(id)?.iter();
        Some(pairs.filter_map(|(key, value)| Some((self.text(*key)?, *value))).collect())
    }

    /// The attributes of an object, whose state is a dict or a pair of dicts.
    pub fn attributes(&self, object: &Object) -> Option<HashMap<&str, Id>> {
        let state = object.state?;
        match self.node(state) {
            Node::Tuple(parts) => {
                let mut all = HashMap::new();
                for &part in parts.iter().filter(|part| !self.is_none(**part)) {
                    all.extend(self.dict(part)?);
                }
                Some(all)
            }
            _ => self.dict(state),
        }
    }
}
