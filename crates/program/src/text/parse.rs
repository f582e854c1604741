//! Parses what [`print`](super::print) prints.

use crate::error::{Error, Result};
use crate::json::Scanner;
use crate::node::{Data, Name, Node, Type, spelled};
use crate::paddle::Nodes;
use crate::program::{Attr, Block, Op, Parameter, Program, Region, Value, ValueId};
use crate::types::{Element, TensorType};
use planaria_array::DType;
use std::sync::Arc;

/// Brackets inside each other.
const DEEPEST: usize = 64;

/// The program that a text shows.
///
/// # Errors
/// Text of another form, with its line.
pub fn parse(text: &str) -> Result<Program> {
    let mut parser = Parser { scan: Scanner::new(text), nodes: Nodes::default(), depth: 0 };
    parser.program().map_err(|error| match error {
        Error::Syntax { offset, what } => {
            let before = &text.as_bytes()[..offset.min(text.len())];
            Error::Text { line: 1 + before.iter().filter(|byte| **byte == b'\n').count(), what }
        }
        other => other,
    })
}

struct Parser<'a> {
    scan: Scanner<'a>,
    nodes: Nodes<'a>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn expect(&mut self, word: &str) -> Result<()> {
        if self.scan.word(word) { Ok(()) } else { Err(self.scan.fail(format!("expected `{word}`"))) }
    }

    fn deeper(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.scan.fail(format!("more than {DEEPEST} brackets inside each other")));
        }
        Ok(())
    }

    fn program(&mut self) -> Result<Program> {
        self.expect("program")?;
        self.expect("version=")?;
        let version = self.scan.integer()?;
        let version = u64::try_from(version).map_err(|_| self.scan.fail("the version is negative"))?;
        self.expect("trainable=")?;
        let trainable = self.scan.boolean()?;
        self.expect("readable=")?;
        let readable = self.scan.boolean()?;
        let body = Arc::new(self.region()?);
        self.scan.finish()?;
        Ok(Program { version, trainable, readable, body })
    }

    fn name(&mut self) -> Result<Name> {
        let text = self.scan.string()?;
        Ok(self.nodes.name(text))
    }

    fn region(&mut self) -> Result<Region> {
        self.deeper()?;
        self.expect("region")?;
        let label = self.name()?;
        self.expect("{")?;
        let mut blocks = Vec::new();
        while !self.scan.word("}") {
            blocks.push(self.block()?);
        }
        self.depth -= 1;
        Ok(Region { label, blocks })
    }

    /// Items with commas between, up to `end`.
    fn separated<T>(&mut self, end: &str, mut each: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        if self.scan.word(end) {
            return Ok(items);
        }
        loop {
            items.push(each(self)?);
            if self.scan.word(end) {
                return Ok(items);
            }
            self.expect(",")?;
        }
    }

    fn block(&mut self) -> Result<Block> {
        self.expect("block")?;
        let label = self.name()?;
        self.expect("(")?;
        let args = self.separated(")", Parser::value)?;
        let kwargs = match self.scan.word("by name (") {
            false => None,
            true => Some(self.separated(")", |parser| {
                let name = parser.name()?;
                parser.expect("=")?;
                Ok((name, parser.value()?))
            })?),
        };
        self.expect("{")?;
        let mut ops = Vec::new();
        while !self.scan.word("}") {
            ops.push(self.op()?);
        }
        Ok(Block { label, args, kwargs, ops })
    }

    fn id(&mut self) -> Result<ValueId> {
        self.expect("%")?;
        Ok(ValueId(self.scan.integer()?))
    }

    fn value(&mut self) -> Result<Value> {
        let id = self.id()?;
        self.expect(":")?;
        Ok(Value { id, ty: self.ty()? })
    }

    fn op(&mut self) -> Result<Op> {
        let mut ids = Vec::new();
        if self.scan.peek() == Some(b'%') {
            ids = self.separated("=", Parser::id)?;
        }
        let (name, operands, attrs, parameter) = if self.scan.word("parameter ") {
            ("p".into(), Vec::new(), Vec::new(), Some(Box::new(self.parameter()?)))
        } else {
            let name = self.op_name()?;
            self.expect("(")?;
            let operands = self.separated(")", |parser| match parser.scan.word("_") {
                true => Ok(ValueId::ABSENT),
                false => parser.id(),
            })?;
            let attrs = if self.scan.peek() == Some(b'{') { self.attrs()? } else { Vec::new() };
            (name, operands, attrs, None)
        };
        let result_attrs = if self.scan.word("|") { Some(self.attrs()?) } else { None };
        let mut results = Vec::with_capacity(ids.len());
        for (at, id) in ids.into_iter().enumerate() {
            self.expect(if at == 0 { ":" } else { "," })?;
            results.push(Value { id, ty: self.ty()? });
        }
        let mut regions = Vec::new();
        if self.scan.word("{") {
            while !self.scan.word("}") {
                regions.push(self.region()?);
            }
        }
        Ok(Op { name, operands, results, attrs, result_attrs, regions, parameter })
    }

    fn op_name(&mut self) -> Result<Name> {
        if self.scan.peek() == Some(b'"') {
            return self.name();
        }
        let full = self.scan.identifier();
        if !full.contains('.') {
            return Err(self.scan.fail(format!("expected an op as `dialect.name`, found `{full}`")));
        }
        Ok(spelled(full).into())
    }

    fn flags(&mut self) -> Result<[bool; 3]> {
        let word = self.scan.identifier();
        let flags: Vec<bool> = word.chars().filter(|c| matches!(c, '0' | '1')).map(|c| c == '1').collect();
        let flags = <[bool; 3]>::try_from(flags).ok().filter(|_| word.len() == 3);
        flags.ok_or_else(|| self.scan.fail(format!("expected three flags as `011`, found `{word}`")))
    }

    fn parameter(&mut self) -> Result<Parameter> {
        let name = self.name()?;
        let flags = self.flags()?;
        let state = if self.scan.word("state") { Some(self.flags()?) } else { None };
        let dist = if self.scan.word("dist") { Some(self.attrs()?) } else { None };
        let origin = if self.scan.word("origin") { Some(self.attrs()?) } else { None };
        Ok(Parameter { name, flags, state, dist, origin })
    }

    fn attrs(&mut self) -> Result<Vec<Attr>> {
        self.expect("{")?;
        self.separated("}", |parser| {
            let name = match parser.scan.peek() {
                Some(b'"') => parser.name()?,
                _ => parser.scan.identifier().into(),
            };
            parser.expect("=")?;
            Ok(Attr { name, value: parser.attribute()? })
        })
    }

    fn json(&mut self) -> Result<Arc<Node>> {
        self.expect("@")?;
        self.nodes.node(&mut self.scan)
    }

    fn attribute(&mut self) -> Result<Arc<Node>> {
        let node = match self.scan.peek() {
            Some(b'@') => return self.json(),
            Some(b'"') => Node::with("0.a_str", Data::Text(self.name()?)),
            Some(b'[') => {
                self.deeper()?;
                self.expect("[")?;
                let items = self.separated("]", |parser| Ok(Data::Node(parser.attribute()?)))?;
                self.depth -= 1;
                Node::with("0.a_array", Data::List(items))
            }
            Some(b'<') => {
                self.expect("<")?;
                let values = self.separated(">", |parser| parser.scan.integer())?;
                Node::int_array(&values)
            }
            Some(b'd') => {
                self.expect("dtype")?;
                Node::with("1.a_dtype", Data::Text(self.name()?))
            }
            Some(b't' | b'f') => Node::bool(self.scan.boolean()?),
            _ => self.number()?,
        };
        Ok(Arc::new(node))
    }

    fn number(&mut self) -> Result<Node> {
        let text = self.scan.number()?;
        let data =
            Data::number(text).ok_or_else(|| self.scan.fail(format!("{text} is too large for a number")))?;
        let kind = match (self.scan.word(":i32"), self.scan.word(":f32"), &data) {
            (true, _, Data::Int(_)) => "0.a_i32",
            (_, true, Data::Real(_)) => "0.a_f32",
            (false, false, Data::Int(_)) => "0.a_i64",
            (false, false, Data::Real(_)) => "0.a_f64",
            _ => return Err(self.scan.fail(format!("{text} is not a number of this kind"))),
        };
        Ok(Node::with(kind, data))
    }

    fn ty(&mut self) -> Result<Type> {
        if self.scan.peek() == Some(b'@') {
            return self.json();
        }
        if self.scan.word("none") {
            return Ok(Arc::new(Node::plain("NULL")));
        }
        if self.scan.word("vec<") {
            self.deeper()?;
            let types = self.separated(">", |parser| Ok(Data::Node(parser.ty()?)))?;
            self.depth -= 1;
            return Ok(Arc::new(Node::with("0.t_vec", Data::List(types))));
        }
        let word = self.scan.identifier();
        let element = match word {
            "c64" => Some(Element::C64),
            "c128" => Some(Element::C128),
            _ => word.parse::<DType>().ok().map(Element::Plain),
        };
        self.expect("[")?;
        let dims =
            self.separated("]", |parser| if parser.scan.word("?") { Ok(-1) } else { parser.scan.integer() })?;
        let node = element.and_then(|element| TensorType { element, dims }.node());
        node.map(Arc::new)
            .ok_or_else(|| self.scan.fail(format!("`{word}` is not an element that types have")))
    }
}
