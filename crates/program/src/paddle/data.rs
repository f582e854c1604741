//! Types and attribute values read from JSON; the same text becomes the same shared node.

use crate::error::Result;
use crate::json::Scanner;
use crate::node::{Data, Name, Node};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// Nodes and names of one file, each made once.
#[derive(Default)]
pub(crate) struct Nodes<'a> {
    names: HashMap<&'a str, Name>,
    nodes: HashMap<&'a str, Arc<Node>>,
}

impl<'a> Nodes<'a> {
    /// A string that others may share.
    pub(crate) fn name(&mut self, text: Cow<'a, str>) -> Name {
        match text {
            Cow::Borrowed(text) => self.names.entry(text).or_insert_with(|| text.into()).clone(),
            Cow::Owned(text) => text.into(),
        }
    }

    /// The node that stands here. A file repeats few of them very often: text seen before is not parsed again.
    pub(crate) fn node(&mut self, scan: &mut Scanner<'a>) -> Result<Arc<Node>> {
        let start = {
            scan.peek();
            scan.offset()
        };
        let text = scan.extent()?;
        if let Some(node) = self.nodes.get(text) {
            return Ok(node.clone());
        }
        let end = scan.offset();
        scan.seek(start);
        let node = match self.data(scan)? {
            Data::Node(node) if scan.offset() == end => node,
            _ => {
                scan.seek(start);
                return Err(
                    scan.fail("expected an object with a kind under \"#\" and data under \"D\" or \"VD\"")
                );
            }
        };
        self.nodes.insert(text, node.clone());
        Ok(node)
    }

    /// Any value; `extent` has bounded its depth.
    pub(crate) fn data(&mut self, scan: &mut Scanner<'a>) -> Result<Data> {
        Ok(match scan.peek() {
            Some(b'"') => {
                let text = scan.string()?;
                Data::Text(self.name(text))
            }
            Some(b'{') => self.object(scan)?,
            Some(b'[') => {
                scan.take(b'[')?;
                let (mut items, mut first) = (Vec::new(), true);
                while scan.item(&mut first)? {
                    items.push(self.data(scan)?);
                }
                Data::List(items)
            }
            Some(b't' | b'f') => Data::Bool(scan.boolean()?),
            Some(b'n') if scan.word("null") => Data::Null,
            _ => {
                let text = scan.number()?;
                Data::number(text).ok_or_else(|| scan.fail(format!("{text} is too large for a number")))?
            }
        })
    }

    fn object(&mut self, scan: &mut Scanner<'a>) -> Result<Data> {
        scan.take(b'{')?;
        let (mut fields, mut first) = (Vec::<(Name, Data)>::new(), true);
        while let Some(key) = scan.key(&mut first)? {
            let key = self.name(key);
            let place = match fields.binary_search_by(|(name, _)| name.cmp(&key)) {
                Ok(_) => return Err(scan.fail(format!("key \"{key}\" appears twice in one object"))),
                Err(place) => place,
            };
            let value = self.data(scan)?;
            fields.insert(place, (key, value));
        }
        Ok(node_of(fields))
    }
}

/// The fields as a node, if they are one.
fn node_of(fields: Vec<(Name, Data)>) -> Data {
    let known = fields.iter().all(|(name, value)| match &**name {
        "#" | "VD" => matches!(value, Data::Text(_)),
        name => name == "D",
    });
    if !known || fields.first().is_none_or(|(name, _)| &**name != "#") {
        return Data::Map(fields);
    }
    let mut node = Node::plain("");
    for (name, value) in fields {
        match (&*name, value) {
            ("#", Data::Text(kind)) => node.kind = kind,
            ("VD", Data::Text(text)) => node.special = Some(text),
            (_, value) => node.data = Some(value),
        }
    }
    Data::Node(Arc::new(node))
}
