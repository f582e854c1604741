//! The parser: one pass over the text, one line lost per mistake, all mistakes reported.

use crate::ast::{Attr, Name, NamedLayout, Program, Statement, Value};
use crate::error::{Error, Fault, Problem, Report, Result, Span};
use std::ops::Range;
use std::sync::Arc;

/// Words that stand alone after the names.
pub(crate) const FLAGS: [&str; 3] = ["fused_qkv", "fused_qkv_old", "fused_ffn"];

impl Program {
    /// Parses a text with one statement a line.
    pub fn parse(text: impl Into<Arc<str>>) -> Result<Program> {
        let text = text.into();
        let mut program =
            Program { text: text.clone(), statements: Vec::new(), layouts: Vec::new(), warnings: Vec::new() };
        let mut errors = Vec::new();
        let mut cursor = Cursor { text: &text, at: 0 };
        loop {
            cursor.blank();
            if cursor.peek().is_none() {
                break;
            }
            if let Err(problem) = cursor.item(&mut program) {
                errors.push(problem);
                cursor.skip_line();
            }
        }
        if errors.is_empty() { Ok(program) } else { Err(Error::Refused(Report::new(&text, errors))) }
    }

    /// Parses a list of statements, as an AOA configuration holds them.
    pub fn from_statements<S: AsRef<str>>(statements: &[S]) -> Result<Program> {
        let lines: Vec<&str> = statements.iter().map(AsRef::as_ref).collect();
        Program::parse(lines.join("\n"))
    }
}

type Parsed<T> = std::result::Result<T, Problem>;

/// Reads the text from left to right.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn spaces(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    /// Spaces, line breaks and comments.
    fn blank(&mut self) {
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start().len();
            if self.peek() != Some('#') {
                return;
            }
            self.skip_line();
        }
    }

    fn skip_line(&mut self) {
        self.at += self.rest().find('\n').unwrap_or(self.rest().len());
    }

    fn at_line_end(&self) -> bool {
        matches!(self.peek(), None | Some('\n' | '\r' | '#'))
    }

    fn eat(&mut self, token: &str) -> bool {
        self.spaces();
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn expected(&self, expected: &'static str) -> Problem {
        let (found, len) = match self.peek() {
            None => ("the end of the text".to_string(), 0),
            Some('\n' | '\r') => ("the end of the line".to_string(), 0),
            Some('#') => ("a comment".to_string(), 1),
            Some(_) if self.rest().starts_with("->") => ("'->'".to_string(), 2),
            Some(c) => (format!("'{c}'"), c.len_utf8()),
        };
        Problem::at(Fault::Syntax { expected, found }, Span::new(self.at, self.at + len))
    }

    /// A statement or a declaration.
    fn item(&mut self, program: &mut Program) -> Parsed<()> {
        if let Some(layout) = self.declaration()? {
            program.layouts.push(layout);
        } else {
            program.statements.push(self.statement()?);
        }
        self.spaces();
        if !self.at_line_end() {
            program.warnings.push(Problem::at(Fault::NoSeparator, Span::new(self.at, self.at + 1)));
        }
        Ok(())
    }

    /// `layout NAME = PARTS`.
    fn declaration(&mut self) -> Parsed<Option<NamedLayout>> {
        let start = self.at;
        let named = self.word() == "layout" && {
            self.spaces();
            !self.at_line_end() && !self.rest().starts_with(['-', ',', '[', '?'])
        };
        if !named {
            self.at = start;
            return Ok(None);
        }
        let name = self.word().to_string();
        if name.is_empty() {
            return Err(self.expected("the name of a layout"));
        }
        if !self.eat("=") {
            return Err(self.expected("'=' and a number of parts"));
        }
        self.spaces();
        let at = self.at;
        match usize::try_from(self.int()?) {
            Ok(parts) if parts > 0 => Ok(Some(NamedLayout { name, parts, span: Span::new(start, self.at) })),
            _ => {
                self.at = at;
                Err(self.expected("a number of parts from 1 on"))
            }
        }
    }

    fn statement(&mut self) -> Parsed<Statement> {
        let start = self.at;
        let mut left = vec![self.name()?];
        while self.eat(",") {
            left.push(self.name()?);
        }
        if !self.eat("->") {
            return Err(self.expected("',' or '->'"));
        }
        let mut right = vec![self.name()?];
        let mut attrs = Vec::new();
        while self.eat(",") {
            match self.attr()? {
                Some(attr) => attrs.push(attr),
                None if attrs.is_empty() => right.push(self.name()?),
                None => return Err(self.expected("an attribute 'key=value'")),
            }
        }
        let end = start + self.text[start..self.at].trim_end().len();
        for name in &right {
            let mark = if name.transposed { "^T" } else { "?" };
            if name.transposed || name.optional {
                return Err(Problem::at(Fault::MarkOnRight { mark }, name.span));
            }
        }
        Ok(Statement { left, right, attrs, span: Span::new(start, end) })
    }

    /// A flag or `key=value`; nothing when a plain name comes next.
    fn attr(&mut self) -> Parsed<Option<Attr>> {
        self.spaces();
        let start = self.at;
        let key = self.word().to_string();
        let end = self.at;
        if self.eat("=") {
            let value = self.value()?;
            return Ok(Some(Attr { key, value, span: Span::new(start, self.at) }));
        }
        self.at = end;
        if FLAGS.contains(&key.as_str()) {
            return Ok(Some(Attr { key, value: Value::Flag, span: Span::new(start, end) }));
        }
        self.at = start;
        Ok(None)
    }

    fn value(&mut self) -> Parsed<Value> {
        self.spaces();
        match self.peek() {
            Some('[') => self.list().map(Value::List),
            Some('"' | '\'') => {
                let text = self.quoted()?;
                Ok(Value::Text(text.trim_matches('"').trim_matches('\'').to_string()))
            }
            // Digits end a number even when letters follow: statements need no separator.
            Some(c) if c.is_ascii_digit() || c == '-' => self.int().map(Value::Int),
            Some(c) if c.is_alphabetic() => Ok(Value::Text(self.word().to_string())),
            _ => Err(self.expected("a number, a list or a quoted text")),
        }
    }

    fn list(&mut self) -> Parsed<Vec<i64>> {
        self.eat("[");
        let mut items = Vec::new();
        while !self.eat("]") {
            self.spaces();
            items.push(self.int()?);
            if !self.eat(",") && !self.rest().starts_with(']') {
                return Err(self.expected("',' or ']'"));
            }
        }
        Ok(items)
    }

    fn int(&mut self) -> Parsed<i64> {
        let rest = self.rest();
        let sign = usize::from(rest.starts_with('-'));
        let digits = rest[sign..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - sign);
        match rest[..sign + digits].parse() {
            Ok(number) => {
                self.at += sign + digits;
                Ok(number)
            }
            Err(_) => Err(self.expected("a whole number that fits in 64 bits")),
        }
    }

    /// A text in quotes of either kind; the quotes are left out.
    fn quoted(&mut self) -> Parsed<&'a str> {
        let rest = self.rest();
        let quote = &rest[..1];
        let line = rest[1..].find('\n').map_or(rest, |end| &rest[..end + 1]);
        match line[1..].find(quote) {
            Some(len) => {
                self.at += len + 2;
                Ok(&rest[1..len + 1])
            }
            None => Err(self.expected("a closed text: its second quote is missing")),
        }
    }

    /// The longest run of characters a name may have; may be empty.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let inside = |(at, c): (usize, char)| {
            let arrow = c == '-' && rest[at + 1..].starts_with('>');
            (c.is_alphanumeric() || "_.$*^/-".contains(c)) && !arrow
        };
        let len = rest.char_indices().find(|&(at, c)| !inside((at, c))).map_or(rest.len(), |(at, _)| at);
        self.at += len;
        &rest[..len]
    }

    fn name(&mut self) -> Parsed<Name> {
        self.spaces();
        let start = self.at;
        let quoted = matches!(self.peek(), Some('"' | '\''));
        let word = if quoted { self.quoted()? } else { self.word() };
        if word.is_empty() {
            self.at = start;
            return Err(self.expected("a tensor name"));
        }
        let mut base = word;
        let mut transposes = 0;
        while let Some(inner) = base.strip_suffix("^T").filter(|inner| !quoted && !inner.is_empty()) {
            base = inner;
            transposes += 1;
        }
        let mut end = self.at;
        let array = if self.eat("[") { Some(self.range()?) } else { None };
        if array.is_some() {
            end = self.at;
        }
        self.at = end;
        while (array.is_some() || quoted) && self.rest().starts_with("^T") {
            self.at += 2;
            transposes += 1;
        }
        let optional = self.rest().starts_with('?');
        self.at += usize::from(optional);
        let span = Span::new(start, self.at);
        Ok(Name { base: base.to_string(), quoted, array, transposed: transposes % 2 == 1, optional, span })
    }

    /// `a:b]` of a name.
    fn range(&mut self) -> Parsed<Range<usize>> {
        let start = self.at;
        let mut bound = || {
            self.spaces();
            self.int().map(|bound| usize::try_from(bound).unwrap_or(usize::MAX))
        };
        let low = bound()?;
        if !self.eat(":") {
            return Err(self.expected("':' of a range 'name[from:to]'"));
        }
        self.spaces();
        let high = self.int().map(|bound| usize::try_from(bound).unwrap_or(0))?;
        if !self.eat("]") {
            return Err(self.expected("']' of a range 'name[from:to]'"));
        }
        if low >= high {
            self.at = start;
            return Err(self.expected("a range with something in it, 'name[from:to]'"));
        }
        Ok(low..high)
    }
}

#[cfg(test)]
mod tests;
