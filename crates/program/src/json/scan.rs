//! Reads JSON from borrowed text, one token at a time; nothing is built that the caller does not ask for.

use crate::error::{Error, Result};
use std::borrow::Cow;

/// Objects and lists inside each other; deeper ones are refused before the stack is.
const DEEPEST: usize = 128;

/// A position in JSON text.
pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Scanner<'a> {
        Scanner { text, at: 0 }
    }

    /// What is wrong here.
    pub(crate) fn fail(&self, what: impl Into<String>) -> Error {
        Error::Syntax { offset: self.at, what: what.into() }
    }

    /// Bytes read so far.
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// Goes on at this byte, which stands between two tokens.
    pub(crate) fn seek(&mut self, offset: usize) {
        self.at = offset;
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The next byte that is not white space.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        while matches!(self.byte(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
        self.byte()
    }

    /// Takes this byte, or fails.
    pub(crate) fn take(&mut self, wanted: u8) -> Result<()> {
        match self.peek() {
            Some(found) if found == wanted => {
                self.at += 1;
                Ok(())
            }
            found => Err(self.unexpected(found, &format!("'{}'", char::from(wanted)))),
        }
    }

    fn unexpected(&self, found: Option<u8>, wanted: &str) -> Error {
        match found {
            None => self.fail(format!("the text ends where {wanted} should stand")),
            Some(byte) => {
                self.fail(format!("expected {wanted}, found '{}'", char::from(byte).escape_default()))
            }
        }
    }

    /// Whether another item of a list follows; `first` is true before the first one.
    pub(crate) fn item(&mut self, first: &mut bool) -> Result<bool> {
        self.follows(first, b']')
    }

    /// The next key of an object, or none at its end.
    pub(crate) fn key(&mut self, first: &mut bool) -> Result<Option<Cow<'a, str>>> {
        if !self.follows(first, b'}')? {
            return Ok(None);
        }
        let key = self.string()?;
        self.take(b':')?;
        Ok(Some(key))
    }

    fn follows(&mut self, first: &mut bool, end: u8) -> Result<bool> {
        let found = self.peek();
        if found == Some(end) {
            self.at += 1;
            return Ok(false);
        }
        if !std::mem::take(first) {
            if found != Some(b',') {
                return Err(self.unexpected(found, &format!("',' or '{}'", char::from(end))));
            }
            self.at += 1;
        }
        Ok(true)
    }

    /// Nothing but white space may follow.
    pub(crate) fn finish(&mut self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            found => Err(self.unexpected(found, "the end of the text")),
        }
    }

    /// A string with its escapes resolved.
    pub(crate) fn string(&mut self) -> Result<Cow<'a, str>> {
        self.take(b'"')?;
        let start = self.at;
        loop {
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Cow::Borrowed(&self.text[start..self.at - 1]));
                }
                Some(b'\\') => return self.escaped(start),
                Some(byte) if byte >= 0x20 => self.at += 1,
                Some(_) => return Err(self.fail("a control character inside a string")),
                None => return Err(self.fail("the text ends inside a string")),
            }
        }
    }

    fn escaped(&mut self, start: usize) -> Result<Cow<'a, str>> {
        let mut made = self.text[start..self.at].to_string();
        loop {
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Cow::Owned(made));
                }
                Some(b'\\') => {
                    self.at += 1;
                    made.push(self.escape()?);
                }
                Some(byte) if byte >= 0x20 => {
                    let from = self.at;
                    while matches!(self.byte(), Some(byte) if byte >= 0x20 && byte != b'"' && byte != b'\\') {
                        self.at += 1;
                    }
                    made.push_str(&self.text[from..self.at]);
                }
                Some(_) => return Err(self.fail("a control character inside a string")),
                None => return Err(self.fail("the text ends inside a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<char> {
        let byte = self.byte().ok_or_else(|| self.fail("the text ends inside a string"))?;
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.code_point(),
            _ => return Err(self.fail("an escape that JSON does not have")),
        })
    }

    fn code_point(&mut self) -> Result<char> {
        let high = self.four_digits()?;
        let code = match high {
            0xd800..0xdc00 => {
                if self.text.as_bytes().get(self.at..self.at + 2) != Some(b"\\u") {
                    return Err(self.fail("half of a surrogate pair"));
                }
                self.at += 2;
                let low = self.four_digits()?;
                if !(0xdc00..0xe000).contains(&low) {
                    return Err(self.fail("half of a surrogate pair"));
                }
                0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
            }
            code => code,
        };
        char::from_u32(code).ok_or_else(|| self.fail("half of a surrogate pair"))
    }

    fn four_digits(&mut self) -> Result<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let value = digits
            .filter(|d| d.iter().all(u8::is_ascii_hexdigit))
            .and_then(|d| std::str::from_utf8(d).ok().and_then(|text| u32::from_str_radix(text, 16).ok()));
        let value = value.ok_or_else(|| self.fail("expected four hexadecimal digits"))?;
        self.at += 4;
        Ok(value)
    }

    /// The text of a number, its grammar checked.
    pub(crate) fn number(&mut self) -> Result<&'a str> {
        self.peek();
        let start = self.at;
        if self.byte() == Some(b'-') {
            self.at += 1;
        }
        match self.byte() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            found => return Err(self.unexpected(found, "a value")),
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.byte(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Ok(&self.text[start..self.at])
    }

    fn digits(&mut self) {
        while matches!(self.byte(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Result<()> {
        match self.byte() {
            Some(b'0'..=b'9') => {
                self.digits();
                Ok(())
            }
            found => Err(self.unexpected(found, "a digit")),
        }
    }

    /// An integer of 64 bits.
    pub(crate) fn integer(&mut self) -> Result<i64> {
        let text = self.number()?;
        text.parse().map_err(|_| self.fail(format!("expected an integer of 64 bits, found {text}")))
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&mut self) -> Result<bool> {
        if self.word("true") {
            return Ok(true);
        }
        if self.word("false") {
            return Ok(false);
        }
        let found = self.peek();
        Err(self.unexpected(found, "true or false"))
    }

    /// Takes this word when it stands here.
    pub(crate) fn word(&mut self, word: &str) -> bool {
        self.peek();
        let here = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        if here {
            self.at += word.len();
        }
        here
    }

    /// The letters, digits, underscores and dots that stand here.
    pub(crate) fn identifier(&mut self) -> &'a str {
        self.peek();
        let start = self.at;
        while matches!(self.byte(), Some(byte) if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.')
        {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    /// The text of the value that stands here, passed over by its brackets alone: the caller parses what it has not
    /// seen before.
    pub(crate) fn extent(&mut self) -> Result<&'a str> {
        let first = self.peek();
        let start = self.at;
        let bytes = self.text.as_bytes();
        let mut depth = 0usize;
        loop {
            match bytes.get(self.at) {
                None => return Err(self.unexpected(None, "the rest of a value")),
                Some(b'"') => {
                    self.pass_string()?;
                }
                Some(b'{' | b'[') => {
                    depth += 1;
                    self.at += 1;
                    if depth > DEEPEST {
                        return Err(
                            self.fail(format!("more than {DEEPEST} objects and lists inside each other"))
                        );
                    }
                }
                Some(b'}' | b']') if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                Some(b',' | b'}' | b']') if depth == 0 => break,
                Some(_) => {
                    self.at += 1;
                    continue;
                }
            }
            if depth == 0 {
                break;
            }
        }
        if self.at == start {
            return Err(self.unexpected(first, "a value"));
        }
        Ok(&self.text[start..self.at])
    }

    fn pass_string(&mut self) -> Result<()> {
        let bytes = self.text.as_bytes();
        self.at += 1;
        loop {
            match bytes.get(self.at) {
                None => return Err(self.fail("the text ends inside a string")),
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
            }
        }
        self.at += 1;
        Ok(())
    }
}
