//! YAML as PyYAML reads it, with the line of every node: recipes are written for its scalars (`yes` is true, `1e-3` a text).

use crate::error::{Error, Result};
use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use std::collections::BTreeMap;

/// A node of a document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    /// Line in the text, counted from 1.
    pub(crate) line: usize,
    pub(crate) value: Yaml,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Yaml {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// Entries in the order of the text.
    Map(Vec<(Node, Node)>),
}

/// Most nodes that a text may unfold to: aliases can repeat each other.
const NODES: usize = 1_000_000;
/// Deepest nesting.
const DEPTH: usize = 64;

/// All documents of a text.
pub(crate) fn documents(text: &str) -> Result<Vec<Node>> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: BTreeMap::new(), nodes: 0 };
    let mut documents = Vec::new();
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamEnd => return Ok(documents),
            Event::DocumentStart(_) => {
                let next = reader.next()?;
                if !matches!(next.0, Event::DocumentEnd) {
                    documents.push(reader.node(next, 0)?);
                }
            }
            Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
            _ => return Err(Error::recipe(span.start.line(), "something stands outside of a document")),
        }
    }
}

struct Reader<'t> {
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    anchors: BTreeMap<usize, (Node, usize)>,
    nodes: usize,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span)> {
        match self.parser.next() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => {
                Err(Error::recipe(error.marker().line(), format!("no YAML: {}", error.info())))
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn count(&mut self, nodes: usize, line: usize) -> Result<()> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > NODES {
            return Err(Error::recipe(line, format!("the recipe unfolds to more than {NODES} nodes")));
        }
        Ok(())
    }

    /// The node that an event begins.
    fn node(&mut self, (event, span): (Event<'t>, Span), depth: usize) -> Result<Node> {
        let line = span.start.line();
        if depth > DEPTH {
            return Err(Error::recipe(line, format!("nested deeper than {DEPTH} levels")));
        }
        self.count(1, line)?;
        let before = self.nodes;
        let (anchor, value) = match event {
            Event::Alias(anchor) => {
                let Some((node, nodes)) = self.anchors.get(&anchor).cloned() else {
                    return Err(Error::recipe(line, "an alias stands inside of what it names"));
                };
                self.count(nodes, line)?;
                return Ok(Node { line, value: node.value });
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                let tagged = tag.as_ref().map(|tag| tag.suffix.as_str());
                let value = match tagged {
                    None if plain => resolve(&text),
                    None | Some("str") => Yaml::Text(text.into_owned()),
                    Some("int" | "float" | "bool" | "null") => resolve(&text),
                    Some(other) => {
                        return Err(Error::recipe(line, format!("the tag '{other}' is not known")));
                    }
                };
                (anchor, value)
            }
            Event::SequenceStart(anchor, _) => (anchor, Yaml::List(self.list(depth)?)),
            Event::MappingStart(anchor, _) => (anchor, Yaml::Map(self.map(depth)?)),
            _ => return Err(Error::recipe(line, "a value is missing")),
        };
        let node = Node { line, value };
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), self.nodes - before + 1));
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>> {
        let mut items = Vec::new();
        loop {
            let next = self.next()?;
            if matches!(next.0, Event::SequenceEnd) {
                return Ok(items);
            }
            items.push(self.node(next, depth + 1)?);
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(Node, Node)>> {
        let mut entries: Vec<(Node, Node)> = Vec::new();
        let mut merged = Vec::new();
        loop {
            let next = self.next()?;
            if matches!(next.0, Event::MappingEnd) {
                break;
            }
            let key = self.node(next, depth + 1)?;
            let next = self.next()?;
            let value = self.node(next, depth + 1)?;
            if key.value == Yaml::Text("<<".to_string()) {
                merged.push(value);
                continue;
            }
            if entries.iter().any(|(other, _)| other.value == key.value) {
                return Err(Error::recipe(key.line, format!("{} stands here twice", key.shown())));
            }
            entries.push((key, value));
        }
        // What is merged in gives way to what stands there.
        for node in merged {
            let maps = if let Yaml::List(maps) = node.value { maps } else { vec![node] };
            for map in maps {
                let Yaml::Map(more) = map.value else {
                    return Err(Error::recipe(map.line, "`<<` takes a map or a list of maps"));
                };
                for (key, value) in more {
                    if !entries.iter().any(|(other, _)| other.value == key.value) {
                        entries.push((key, value));
                    }
                }
            }
        }
        Ok(entries)
    }
}

/// A plain scalar by the rules of YAML 1.1, as PyYAML follows them.
fn resolve(text: &str) -> Yaml {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Yaml::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Yaml::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => return Yaml::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" => return Yaml::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Yaml::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Yaml::Float(f64::NAN),
        _ => {}
    }
    let digits = text.replace('_', "");
    let starts = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.');
    if !digits.starts_with(starts) || !text.starts_with(starts) {
        return Yaml::Text(text.to_string());
    }
    let unsigned = digits.trim_start_matches(['-', '+']);
    let is_int = !unsigned.is_empty() && unsigned.bytes().all(|byte| byte.is_ascii_digit());
    if let (true, Ok(number)) = (is_int, digits.parse()) {
        return Yaml::Int(number);
    }
    // A number with an exponent needs a point and a sign to be one: `1e-3` is a text, and converted where a number belongs.
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (digits.as_str(), None),
    };
    let signed = exponent.is_none_or(|exponent| exponent.starts_with(['-', '+']));
    match digits.parse() {
        Ok(number) if mantissa.contains('.') && signed => Yaml::Float(number),
        _ => Yaml::Text(text.to_string()),
    }
}

impl Node {
    /// How it reads in a message.
    pub(crate) fn shown(&self) -> String {
        match &self.value {
            Yaml::Null => "nothing".to_string(),
            Yaml::Bool(value) => format!("'{value}'"),
            Yaml::Int(value) => format!("'{value}'"),
            Yaml::Float(value) => format!("'{value}'"),
            Yaml::Text(value) => format!("'{value}'"),
            Yaml::List(_) => "a list".to_string(),
            Yaml::Map(_) => "a map".to_string(),
        }
    }

    /// An error about this node.
    pub(crate) fn wrong(&self, expected: &str) -> Error {
        Error::recipe(self.line, format!("{} stands where {expected} belongs", self.shown()))
    }

    /// A text; numbers and booleans count as what they are written as.
    pub(crate) fn text(&self, expected: &str) -> Result<String> {
        match &self.value {
            Yaml::Text(text) => Ok(text.clone()),
            Yaml::Int(number) => Ok(number.to_string()),
            Yaml::Float(number) => Ok(number.to_string()),
            _ => Err(self.wrong(expected)),
        }
    }

    /// The entries of a map, with texts as keys.
    pub(crate) fn entries(&self, expected: &str) -> Result<Vec<(String, usize, &Node)>> {
        let Yaml::Map(entries) = &self.value else { return Err(self.wrong(expected)) };
        entries.iter().map(|(key, value)| Ok((key.text("a name")?, key.line, value))).collect()
    }

    /// The items of a list.
    pub(crate) fn items(&self, expected: &str) -> Result<&[Node]> {
        match &self.value {
            Yaml::List(items) => Ok(items),
            _ => Err(self.wrong(expected)),
        }
    }

    /// A whole number that is not negative.
    pub(crate) fn count(&self, expected: &str) -> Result<usize> {
        match self.value {
            Yaml::Int(number) if number >= 0 => Ok(number as usize),
            _ => Err(self.wrong(expected)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_what_pyyaml_makes_of_them() {
        let cases = [
            ("yes", Yaml::Bool(true)),
            ("Off", Yaml::Bool(false)),
            ("~", Yaml::Null),
            ("12", Yaml::Int(12)),
            ("-1_000", Yaml::Int(-1000)),
            ("0.5", Yaml::Float(0.5)),
            ("1.0e-3", Yaml::Float(0.001)),
            ("1e-3", Yaml::Text("1e-3".into())),
            ("1.5e3", Yaml::Text("1.5e3".into())),
            ("models/a", Yaml::Text("models/a".into())),
            ("7b-chat", Yaml::Text("7b-chat".into())),
        ];
        for (text, value) in cases {
            assert_eq!(resolve(text), value, "{text}");
        }
    }

    #[test]
    fn aliases_merge_keys_and_documents_are_read_with_lines() {
        let text = "a: &p {x: 1, y: 2}\nb:\n  <<: *p\n  y: 3\n---\n- \"5\"\n";
        let all = documents(text).unwrap();
        assert_eq!(all.len(), 2);
        let b = all[0].entries("a map").unwrap()[1].2.entries("a map").unwrap();
        let found: Vec<(&str, &Yaml)> = b.iter().map(|(key, _, node)| (key.as_str(), &node.value)).collect();
        assert_eq!(found, [("y", &Yaml::Int(3)), ("x", &Yaml::Int(1))]);
        assert_eq!(all[1].items("a list").unwrap()[0], Node { line: 6, value: Yaml::Text("5".into()) });
    }

    #[test]
    fn what_is_no_yaml_is_refused_with_its_line() {
        let error = |text: &str| documents(text).unwrap_err().to_string();
        assert!(error("a: 1\nb: [1, 2\nc: 3\n").starts_with("line "), "{}", error("a: 1\nb: [1, 2\nc: 3\n"));
        assert!(error("a: 1\na: 2\n").contains("line 2 of the recipe: 'a' stands here twice"));
        let mut bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_string();
        for n in 1..9 {
            let items = vec![format!("*a{}", n - 1); 10].join(", ");
            bomb.push_str(&format!("a{n}: &a{n} [{items}]\n"));
        }
        assert!(error(&bomb).contains("more than"));
    }
}
