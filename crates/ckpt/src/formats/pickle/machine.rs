//! The opcode machine.

use super::input::Input;
use super::tree::{Bytes, Id, Making, Node, Object, Span, Tree};
use crate::error::Result;
use planaria_store::Reader;
use std::collections::HashMap;
use std::sync::OnceLock;

/// What a pickle may ask of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Values, stack entries and container slots together.
    pub values: usize,
    /// Bytes of text and kept byte strings.
    pub text: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { values: 32 << 20, text: 256 << 20 }
    }
}

/// Byte strings up to this length are kept in the tree.
const KEPT: u64 = 4096;

/// Reads the pickle that fills `file`.
pub fn read(file: &dyn Reader, limits: &Limits) -> Result<Tree> {
    read_at(file, 0, file.size(), limits)
}

/// Reads the pickle that starts at `start` and ends before `end`.
pub fn read_at(file: &dyn Reader, start: u64, end: u64, limits: &Limits) -> Result<Tree> {
    let mut machine = Machine {
        input: Input::new(file, start, end),
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        slots: 0,
        text: 0,
        limits: *limits,
    };
    loop {
        let opcode = machine.input.byte()?;
        if opcode == b'.' {
            let root = machine.pop()?;
            let (nodes, end) = (machine.nodes, machine.input.at());
            return Ok(Tree { nodes, root, end, extents: OnceLock::new() });
        }
        machine.step(opcode)?;
        if machine.nodes.len() + machine.stack.len() + machine.slots > machine.limits.values {
            return Err(machine.input.error(format!("more than {} values", machine.limits.values)));
        }
    }
}

struct Machine<'a> {
    input: Input<'a>,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
    /// Places in containers.
    slots: usize,
    text: u64,
    limits: Limits,
}

impl Machine<'_> {
    /// One opcode, by family.
    fn step(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            // PROTO, FRAME: the version and the length of a frame change nothing here.
            0x80 => self.input.skip(1),
            0x95 => self.input.skip(8),
            b'N' | 0x88 | 0x89 | b'I' | b'J' | b'K' | b'M' | b'L' | 0x8a | 0x8b | b'F' | b'G' => {
                self.number(opcode)
            }
            b'S' | b'T' | b'U' | b'V' | b'X' | 0x8c | 0x8d => self.string(opcode),
            b'B' | b'C' | 0x8e | 0x96 => self.bytes(opcode),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b')' | b']' | b'}' | 0x8f | b't' | b'l' | b'd' | 0x91 | 0x85 | 0x86 | 0x87 => {
                self.container(opcode)
            }
            b'a' | b'e' | b's' | b'u' | 0x90 => self.fill(opcode),
            b'c' | b'i' | 0x93 => self.global(opcode),
            b'R' | 0x81 | 0x92 | b'b' | b'o' | b'P' | b'Q' => self.call(opcode),
            b'p' | b'q' | b'r' | 0x94 | b'g' | b'h' | b'j' => self.memo(opcode),
            b'0' | b'1' | b'2' => self.shuffle(opcode),
            // READONLY_BUFFER marks the last buffer; there is nothing to protect.
            0x98 => Ok(()),
            0x97 => Err(self.input.error("its buffers were stored apart from the pickle")),
            0x82..=0x84 => Err(self.input.error("it uses the extension registry of another program")),
            other => Err(self.input.error(format!("unknown opcode {other:#04x}; this is not a pickle"))),
        }
    }

    fn push(&mut self, node: Node) -> Result<()> {
        let Ok(number) = u32::try_from(self.nodes.len()) else {
            return Err(self.input.error("too many values"));
        };
        self.nodes.push(node);
        self.stack.push(Id(number));
        Ok(())
    }

    /// Values above the last mark cannot be taken by opcodes that stand for the ones below it.
    fn pop(&mut self) -> Result<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.pop() {
            Some(id) if self.stack.len() >= floor => Ok(id),
            _ => Err(self.input.error("a value is missing")),
        }
    }

    fn top(&self) -> Result<Id> {
        self.stack.last().copied().ok_or_else(|| self.input.error("a value is missing"))
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>> {
        match self.marks.pop() {
            Some(height) if height <= self.stack.len() => {
                self.slots += self.stack.len() - height;
                Ok(self.stack.split_off(height))
            }
            _ => Err(self.input.error("a mark is missing")),
        }
    }

    fn number(&mut self, opcode: u8) -> Result<()> {
        let node = match opcode {
            b'N' => Node::None,
            0x88 => Node::Bool(true),
            0x89 => Node::Bool(false),
            b'J' => Node::Int(i64::from(self.input.number::<4>()? as u32 as i32)),
            b'K' => Node::Int(self.input.number::<1>()? as i64),
            b'M' => Node::Int(self.input.number::<2>()? as i64),
            0x8a | 0x8b => {
                let len =
                    if opcode == 0x8a { self.input.number::<1>()? } else { self.input.number::<4>()? };
                self.charge(len)?;
                long(self.input.take(len as usize)?)
            }
            b'G' => {
                let mut big_endian = [0; 8];
                big_endian.copy_from_slice(self.input.take(8)?);
                Node::Float(f64::from_be_bytes(big_endian))
            }
            _ => {
                let line = self.input.line()?;
                let text = std::str::from_utf8(&line).unwrap_or("");
                let parsed = match opcode {
                    b'F' => text.parse().ok().map(Node::Float),
                    b'I' if text == "01" => Some(Node::Bool(true)),
                    b'I' if text == "00" => Some(Node::Bool(false)),
                    _ => text.trim_end_matches('L').parse().ok().map(Node::Int),
                };
                parsed.ok_or_else(|| self.input.error(format!("'{text}' is not a number")))?
            }
        };
        self.push(node)
    }

    /// Counts bytes that are kept in memory.
    fn charge(&mut self, len: u64) -> Result<()> {
        self.text = self.text.saturating_add(len);
        if self.text > self.limits.text {
            return Err(self.input.error(format!("more than {} bytes of text", self.limits.text)));
        }
        Ok(())
    }

    fn string(&mut self, opcode: u8) -> Result<()> {
        let bytes = match opcode {
            b'S' | b'V' => {
                let line = self.input.line()?;
                self.charge(line.len() as u64)?;
                let quoted = opcode == b'S' && line.len() >= 2 && line.first() == line.last();
                if quoted { line[1..line.len() - 1].to_vec() } else { line }
            }
            _ => {
                let len = match opcode {
                    b'U' | 0x8c => self.input.number::<1>()?,
                    b'T' | b'X' => self.input.number::<4>()?,
                    _ => self.input.number::<8>()?,
                };
                self.charge(len)?;
                self.input.take(usize::try_from(len).unwrap_or(usize::MAX))?.to_vec()
            }
        };
        match String::from_utf8(bytes) {
            Ok(text) => self.push(Node::Text(text.into())),
            Err(_) => Err(self.input.error("text that is not UTF-8")),
        }
    }

    fn bytes(&mut self, opcode: u8) -> Result<()> {
        let len = match opcode {
            b'C' => self.input.number::<1>()?,
            b'B' => self.input.number::<4>()?,
            _ => self.input.number::<8>()?,
        };
        let span = Span { offset: self.input.at(), len };
        let kept = if len <= KEPT {
            self.charge(len)?;
            Some(self.input.take(len as usize)?.into())
        } else {
            self.input.skip(len)?;
            None
        };
        self.push(Node::Bytes(Box::new(Bytes { span, kept, mutable: opcode == 0x96 })))
    }

    fn container(&mut self, opcode: u8) -> Result<()> {
        let node = match opcode {
            b')' => Node::Tuple(Vec::new()),
            b']' => Node::List(Vec::new()),
            b'}' => Node::Dict(Vec::new()),
            0x8f => Node::Set(Vec::new()),
            b't' => Node::Tuple(self.pop_mark()?),
            b'l' => Node::List(self.pop_mark()?),
            0x91 => Node::FrozenSet(self.pop_mark()?),
            b'd' => {
                let items = self.pop_mark()?;
                Node::Dict(self.paired(&items)?)
            }
            _ => {
                let count = usize::from(opcode - 0x84);
                let mut items = Vec::with_capacity(count);
                for _ in 0..count {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.slots += count;
                Node::Tuple(items)
            }
        };
        self.push(node)
    }

    fn paired(&self, items: &[Id]) -> Result<Vec<(Id, Id)>> {
        if !items.len().is_multiple_of(2) {
            return Err(self.input.error("a key without a value"));
        }
        Ok(items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    /// Puts values into a container that already exists.
    fn fill(&mut self, opcode: u8) -> Result<()> {
        let items = match opcode {
            b'e' | b'u' | 0x90 => self.pop_mark()?,
            b'a' => {
                self.slots += 1;
                vec![self.pop()?]
            }
            _ => {
                self.slots += 2;
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
        };
        let pairs = if matches!(opcode, b's' | b'u') { self.paired(&items)? } else { Vec::new() };
        let target = self.top()?;
        match (&mut self.nodes[target.0 as usize], opcode) {
            (Node::List(list), b'a' | b'e') | (Node::Set(list), 0x90) => list.extend(items),
            (Node::Dict(dict), b's' | b'u') => dict.extend(pairs),
            (Node::Object(object), b's' | b'u') => object.pairs.extend(pairs),
            (Node::Object(object), _) => object.items.extend(items),
            _ => return Err(self.input.error("values are added to something that is not a container")),
        }
        Ok(())
    }

    /// Everything Python would call: only recorded.
    fn call(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            b'o' => {
                let mut items = self.pop_mark()?;
                if items.is_empty() {
                    return Err(self.input.error("a value is missing"));
                }
                let callable = items.remove(0);
                self.record(Making::Call, callable, items)
            }
            b'R' | 0x81 => {
                let (args, callable) = (self.pop()?, self.pop()?);
                let making = if opcode == b'R' { Making::Call } else { Making::New };
                self.push(Node::Object(Box::new(new_object(making, callable, args))))
            }
            0x92 => {
                let (named, args, callable) = (self.pop()?, self.pop()?, self.pop()?);
                self.record(Making::NewNamed, callable, vec![args, named])
            }
            b'b' => {
                let state = self.pop()?;
                let target = self.top()?;
                match &mut self.nodes[target.0 as usize] {
                    Node::Object(object) => object.state = Some(state),
                    _ => return Err(self.input.error("state is given to something that is not an object")),
                }
                Ok(())
            }
            _ => {
                if opcode == b'P' {
                    let line = self.input.line()?;
                    self.charge(line.len() as u64)?;
                    self.push(Node::Text(String::from_utf8_lossy(&line).into()))?;
                }
                let id = self.pop()?;
                self.push(Node::Persistent(id))
            }
        }
    }

    /// A class or function by name, and for INST a call of it.
    fn global(&mut self, opcode: u8) -> Result<()> {
        let (module, name) = if opcode == 0x93 {
            let (name, module) = (self.pop()?, self.pop()?);
            let text = |id: Id| match &self.nodes[id.0 as usize] {
                Node::Text(text) => Some(text.to_string()),
                _ => None,
            };
            (text(module), text(name))
        } else {
            let (module, name) = (self.input.line()?, self.input.line()?);
            (String::from_utf8(module).ok(), String::from_utf8(name).ok())
        };
        let (Some(module), Some(name)) = (module, name) else {
            return Err(self.input.error("a global whose name is not text"));
        };
        self.charge((module.len() + name.len()) as u64)?;
        let global = Node::Global(Box::new((module, name)));
        if opcode != b'i' {
            return self.push(global);
        }
        let args = self.pop_mark()?;
        self.push(global)?;
        let callable = self.pop()?;
        self.record(Making::Call, callable, args)
    }

    fn record(&mut self, making: Making, callable: Id, args: Vec<Id>) -> Result<()> {
        self.push(Node::Tuple(args))?;
        let args = self.pop()?;
        self.push(Node::Object(Box::new(new_object(making, callable, args))))
    }

    fn memo(&mut self, opcode: u8) -> Result<()> {
        let key = match opcode {
            b'p' | b'g' => {
                let line = self.input.line()?;
                let parsed = std::str::from_utf8(&line).ok().and_then(|text| text.parse().ok());
                parsed.ok_or_else(|| self.input.error("a memo key that is not a number"))?
            }
            b'q' | b'h' => self.input.number::<1>()?,
            b'r' | b'j' => self.input.number::<4>()?,
            _ => self.memo.len() as u64,
        };
        if matches!(opcode, b'g' | b'h' | b'j') {
            let Some(&id) = self.memo.get(&key) else {
                return Err(self.input.error(format!("memo entry {key} does not exist")));
            };
            self.stack.push(id);
        } else {
            let top = self.top()?;
            if self.memo.insert(key, top).is_none() {
                self.slots += 1;
            }
        }
        Ok(())
    }

    fn shuffle(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            // POP also takes a mark when there is nothing above it.
            b'0' if self.marks.last() == Some(&self.stack.len()) => {
                self.marks.pop();
            }
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.pop_mark()?;
            }
            _ => {
                let top = self.top()?;
                self.stack.push(top);
            }
        }
        Ok(())
    }
}

fn new_object(making: Making, callable: Id, args: Id) -> Object {
    Object { making, callable, args, state: None, items: Vec::new(), pairs: Vec::new() }
}

/// Two's complement, little-endian, any length.
fn long(bytes: &[u8]) -> Node {
    if bytes.len() > 8 {
        return Node::Big(bytes.into());
    }
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    Node::Int(i64::from_le_bytes(wide))
}
