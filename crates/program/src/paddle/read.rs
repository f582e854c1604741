//! A program from its JSON: every key is known and stands once, every value has its form.

use super::Nodes;
use crate::error::{Error, Result};
use crate::json::Scanner;
use crate::node::{Data, Name};
use crate::program::{Attr, Block, NEWEST, OLDEST, Op, Parameter, Program, Region, Value, ValueId};
use std::sync::Arc;

/// Regions inside each other.
const DEEPEST: usize = 64;

/// The program that the bytes of a file hold, in the version it is written in.
///
/// # Errors
/// Bytes that are not a program, and versions that are not known.
pub fn read(bytes: &[u8]) -> Result<Program> {
    let text = std::str::from_utf8(bytes).map_err(|error| Error::Syntax {
        offset: error.valid_up_to(),
        what: "the text is not UTF-8".to_string(),
    })?;
    let mut reader = Reader { scan: Scanner::new(text), nodes: Nodes::default(), depth: 0 };
    let mut program = reader.file()?;
    program.readable = text.starts_with("{\n");
    Ok(program)
}

struct Reader<'a> {
    scan: Scanner<'a>,
    nodes: Nodes<'a>,
    depth: usize,
}

/// The head of a file.
struct Head {
    version: u64,
    trainable: bool,
}

impl<'a> Reader<'a> {
    fn unknown(&self, key: &str, of: &str) -> Error {
        self.scan.fail(format!("key \"{key}\" is not known in {of}"))
    }

    /// Sets a field that must stand once.
    fn once<T>(&self, field: &mut Option<T>, key: &str, value: T) -> Result<()> {
        match field.replace(value) {
            None => Ok(()),
            Some(_) => Err(self.scan.fail(format!("key \"{key}\" appears twice in one object"))),
        }
    }

    fn needed<T>(&self, field: Option<T>, key: &str, of: &str) -> Result<T> {
        field.ok_or_else(|| self.scan.fail(format!("{of} has no \"{key}\"")))
    }

    fn file(&mut self) -> Result<Program> {
        self.scan.take(b'{')?;
        let (mut head, mut body, mut first) = (None, None, true);
        while let Some(key) = self.scan.key(&mut first)? {
            match &*key {
                "base_code" => {
                    let value = self.head()?;
                    self.once(&mut head, &key, value)?;
                }
                "program" => {
                    let value = self.program()?;
                    self.once(&mut body, &key, value)?;
                }
                _ => return Err(self.unknown(&key, "a program file")),
            }
        }
        self.scan.finish()?;
        let head = self.needed(head, "base_code", "the program file")?;
        let body = self.needed(body, "program", "the program file")?;
        Ok(Program {
            version: head.version,
            trainable: head.trainable,
            readable: false,
            body: Arc::new(body),
        })
    }

    fn head(&mut self) -> Result<Head> {
        self.scan.take(b'{')?;
        let (mut magic, mut version, mut trainable, mut first) = (None, None, None, true);
        while let Some(key) = self.scan.key(&mut first)? {
            match &*key {
                "magic" => {
                    let found = self.scan.string()?;
                    if found != "pir" {
                        return Err(self
                            .scan
                            .fail(format!("the magic word is \"{found}\" instead of \"pir\"")));
                    }
                    self.once(&mut magic, &key, ())?;
                }
                "version" => {
                    let found = self.scan.integer()?;
                    let found =
                        u64::try_from(found).map_err(|_| self.scan.fail("the version is negative"))?;
                    if !(OLDEST..=NEWEST).contains(&found) {
                        return Err(Error::Version { found, oldest: OLDEST, newest: NEWEST });
                    }
                    self.once(&mut version, &key, found)?;
                }
                "trainable" => {
                    let found = self.scan.boolean()?;
                    self.once(&mut trainable, &key, found)?;
                }
                _ => return Err(self.unknown(&key, "base_code")),
            }
        }
        self.needed(magic, "magic", "base_code")?;
        Ok(Head {
            version: self.needed(version, "version", "base_code")?,
            trainable: self.needed(trainable, "trainable", "base_code")?,
        })
    }

    fn program(&mut self) -> Result<Region> {
        self.scan.take(b'{')?;
        let (mut regions, mut first) = (None, true);
        while let Some(key) = self.scan.key(&mut first)? {
            match &*key {
                "regions" => {
                    let value = self.regions()?;
                    self.once(&mut regions, &key, value)?;
                }
                _ => return Err(self.unknown(&key, "program")),
            }
        }
        let regions = self.needed(regions, "regions", "the program")?;
        match <[Region; 1]>::try_from(regions) {
            Ok([region]) if region.blocks.len() == 1 => Ok(region),
            Ok([region]) => {
                Err(self.scan.fail(format!("the program has {} blocks instead of one", region.blocks.len())))
            }
            Err(regions) => {
                Err(self.scan.fail(format!("the program has {} regions instead of one", regions.len())))
            }
        }
    }

    fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.scan.take(b'[')?;
        let (mut items, mut first) = (Vec::new(), true);
        while self.scan.item(&mut first)? {
            items.push(read(self)?);
        }
        items.shrink_to_fit();
        Ok(items)
    }

    fn regions(&mut self) -> Result<Vec<Region>> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.scan.fail(format!("more than {DEEPEST} regions inside each other")));
        }
        let regions = self.list(Reader::region)?;
        self.depth -= 1;
        Ok(regions)
    }

    fn label(&mut self) -> Result<Name> {
        let text = self.scan.string()?;
        Ok(self.nodes.name(text))
    }

    fn region(&mut self) -> Result<Region> {
        self.scan.take(b'{')?;
        let (mut label, mut blocks, mut first) = (None, None, true);
        while let Some(key) = self.scan.key(&mut first)? {
            match &*key {
                "#" => {
                    let value = self.label()?;
                    self.once(&mut label, &key, value)?;
                }
                "blocks" => {
                    let value = self.list(Reader::block)?;
                    self.once(&mut blocks, &key, value)?;
                }
                _ => return Err(self.unknown(&key, "a region")),
            }
        }
        Ok(Region {
            label: self.needed(label, "#", "the region")?,
            blocks: self.needed(blocks, "blocks", "the region")?,
        })
    }

    fn block(&mut self) -> Result<Block> {
        self.scan.take(b'{')?;
        let (mut label, mut args, mut kwargs, mut ops, mut first) = (None, None, None, None, true);
        while let Some(key) = self.scan.key(&mut first)? {
            match &*key {
                "#" => {
                    let value = self.label()?;
                    self.once(&mut label, &key, value)?;
                }
                "args" => {
                    let value = self.list(|reader| Ok(reader.value("#")?.1))?;
                    self.once(&mut args, &key, value)?;
                }
                "kwargs" => {
                    let value = self.list(Reader::keyword)?;
                    self.once(&mut kwargs, &key, value)?;
                }
                "ops" => {
                    let value = self.list(Reader::op)?;
                    self.once(&mut ops, &key, value)?;
                }
                _ => return Err(self.unknown(&key, "a block")),
            }
        }
        Ok(Block {
            label: self.needed(label, "#", "the block")?,
            args: self.needed(args, "args", "the block")?,
            kwargs,
            ops: self.needed(ops, "ops", "the block")?,
        })
    }

    fn keyword(&mut self) -> Result<(Name, Value)> {
        match self.value("#")? {
            (Some(name), value) => Ok((name, value)),
            (None, _) => Err(self.scan.fail("the keyword argument has no \"key\"")),
        }
    }

    /// A value where it is defined: its id under this key, and its type.
    fn value(&mut self, id_key: &str) -> Result<(Option<Name>, Value)> {
        self.scan.take(b'{')?;
        let (mut id, mut ty, mut name, mut first) = (None, None, None, true);
        while let Some(key) = self.scan.key(&mut first)? {
            match &*key {
                key if key == id_key => {
                    let value = ValueId(self.scan.integer()?);
                    self.once(&mut id, key, value)?;
                }
                "TT" => {
                    let value = self.nodes.node(&mut self.scan)?;
                    self.once(&mut ty, &key, value)?;
                }
                "key" if id_key == "#" => {
                    let value = self.label()?;
                    self.once(&mut name, &key, value)?;
                }
                _ => return Err(self.unknown(&key, "a value")),
            }
        }
        let value =
            Value { id: self.needed(id, id_key, "the value")?, ty: self.needed(ty, "TT", "the value")? };
        Ok((name, value))
    }

    fn operand(&mut self) -> Result<ValueId> {
        self.scan.take(b'{')?;
        let (mut id, mut first) = (None, true);
        while let Some(key) = self.scan.key(&mut first)? {
            match &*key {
                "%" => {
                    let value = ValueId(self.scan.integer()?);
                    self.once(&mut id, &key, value)?;
                }
                _ => return Err(self.unknown(&key, "an operand")),
            }
        }
        self.needed(id, "%", "the operand")
    }

    fn attr(&mut self) -> Result<Attr> {
        self.scan.take(b'{')?;
        let (mut name, mut value, mut first) = (None, None, true);
        while let Some(key) = self.scan.key(&mut first)? {
            match &*key {
                "N" => {
                    let found = self.label()?;
                    self.once(&mut name, &key, found)?;
                }
                "AT" => {
                    let found = self.nodes.node(&mut self.scan)?;
                    self.once(&mut value, &key, found)?;
                }
                _ => return Err(self.unknown(&key, "an attribute")),
            }
        }
        Ok(Attr {
            name: self.needed(name, "N", "the attribute")?,
            value: self.needed(value, "AT", "the attribute")?,
        })
    }

    fn op(&mut self) -> Result<Op> {
        // The kind decides how the other keys are read, and may stand after them.
        let start = {
            self.scan.take(b'{')?;
            self.scan.offset()
        };
        let mut first = true;
        let mut kind = None;
        while let Some(key) = self.scan.key(&mut first)? {
            if key == "#" {
                kind = Some(self.scan.string()?);
                break;
            }
            self.scan.extent()?;
        }
        let kind = self.needed(kind, "#", "the op")?;
        self.scan.seek(start);
        if kind == "p" { self.parameter() } else { self.plain(kind) }
    }

    fn plain(&mut self, kind: std::borrow::Cow<'a, str>) -> Result<Op> {
        let (mut named, mut operands, mut results) = (None, None, None);
        let (mut attrs, mut result_attrs, mut regions) = (None, None, None);
        let mut first = true;
        while let Some(key) = self.scan.key(&mut first)? {
            match &*key {
                "#" => {
                    self.scan.string()?;
                    self.once(&mut named, &key, ())?;
                }
                "I" => {
                    let value = self.list(Reader::operand)?;
                    self.once(&mut operands, &key, value)?;
                }
                "O" => {
                    let value = self.list(|reader| Ok(reader.value("%")?.1))?;
                    self.once(&mut results, &key, value)?;
                }
                "A" => {
                    let value = self.list(Reader::attr)?;
                    self.once(&mut attrs, &key, value)?;
                }
                "OA" => {
                    let value = self.list(Reader::attr)?;
                    self.once(&mut result_attrs, &key, value)?;
                }
                "regions" => {
                    let value = self.regions()?;
                    self.once(&mut regions, &key, value)?;
                }
                _ => return Err(self.unknown(&key, &format!("op {kind}"))),
            }
        }
        let of = "the op";
        Ok(Op {
            operands: self.needed(operands, "I", of)?,
            results: self.needed(results, "O", of)?,
            attrs: self.needed(attrs, "A", of)?,
            result_attrs,
            regions: regions.unwrap_or_default(),
            parameter: None,
            name: self.nodes.name(kind),
        })
    }

    fn parameter(&mut self) -> Result<Op> {
        let (mut named, mut head, mut state) = (None, None, None);
        let (mut dist, mut origin, mut result, mut first) = (None, None, None, true);
        while let Some(key) = self.scan.key(&mut first)? {
            match &*key {
                "#" => {
                    self.scan.string()?;
                    self.once(&mut named, &key, ())?;
                }
                "A" => {
                    let value = self.list(Reader::scalar)?;
                    self.once(&mut head, &key, value)?;
                }
                "OA" => {
                    let value = self.list(Reader::scalar)?;
                    let value = self.flags(&value)?;
                    self.once(&mut state, &key, value)?;
                }
                "DA" => {
                    let value = self.list(Reader::attr)?;
                    self.once(&mut dist, &key, value)?;
                }
                "QA" => {
                    let value = self.list(Reader::attr)?;
                    self.once(&mut origin, &key, value)?;
                }
                "O" => {
                    let value = self.value("%")?.1;
                    self.once(&mut result, &key, value)?;
                }
                _ => return Err(self.unknown(&key, "a parameter")),
            }
        }
        let mut head = self.needed(head, "A", "the parameter")?;
        let Some(Data::Text(name)) = head.pop() else {
            return Err(self.scan.fail("the parameter has no name at the end of \"A\""));
        };
        let flags = self.flags(&head)?;
        let result = self.needed(result, "O", "the parameter")?;
        Ok(Op {
            name: "p".into(),
            operands: Vec::new(),
            results: vec![result],
            attrs: Vec::new(),
            result_attrs: None,
            regions: Vec::new(),
            parameter: Some(Box::new(Parameter { name, flags, state, dist, origin })),
        })
    }

    /// A string or an integer.
    fn scalar(&mut self) -> Result<Data> {
        match self.scan.peek() {
            Some(b'"') => Ok(Data::Text(self.label()?)),
            _ => Ok(Data::Int(self.scan.integer()?)),
        }
    }

    fn flags(&self, items: &[Data]) -> Result<[bool; 3]> {
        let flags: Option<Vec<bool>> = items
            .iter()
            .map(|item| match item {
                Data::Int(0) => Some(false),
                Data::Int(1) => Some(true),
                _ => None,
            })
            .collect();
        let flags = flags.and_then(|flags| <[bool; 3]>::try_from(flags).ok());
        flags.ok_or_else(|| self.scan.fail("expected three flags, each 0 or 1, in the parameter"))
    }
}
