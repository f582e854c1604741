//! A small scanner shared by all text forms; every failure is a typed error.

use crate::error::{Error, Result};

/// Reads one text from left to right.
pub(crate) struct Scan<'a> {
    what: &'static str,
    text: &'a str,
    rest: &'a str,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(what: &'static str, text: &'a str) -> Scan<'a> {
        Scan { what, text, rest: text }
    }

    /// An error at the current place.
    pub(crate) fn error(&self, reason: impl Into<String>) -> Error {
        let reason = reason.into();
        let at = self.text.len() - self.rest.len();
        Error::Parse {
            what: self.what,
            text: self.text.to_string(),
            reason: format!("{reason} at byte {at}"),
        }
    }

    pub(crate) fn spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn looking_at(&self, token: &str) -> bool {
        self.rest.starts_with(token)
    }

    /// Spaces, or the end of the text.
    pub(crate) fn gap(&mut self) -> Result<()> {
        if !self.is_done() && !self.rest.starts_with(char::is_whitespace) {
            return Err(self.error("expected a space"));
        }
        self.spaces();
        Ok(())
    }

    /// Takes `token` if it comes next.
    pub(crate) fn eat(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(token) else { return false };
        self.rest = rest;
        true
    }

    pub(crate) fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.error(format!("expected '{token}'"))) }
    }

    pub(crate) fn number(&mut self) -> Result<usize> {
        let digits = self.take(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return Err(self.error("expected a number"));
        }
        digits.parse().map_err(|_| self.error(format!("number {digits} is too large")))
    }

    /// Letters, digits and underscores; may be empty.
    pub(crate) fn word(&mut self) -> &'a str {
        self.take(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    /// `[item, item, ...]` with any spacing around commas.
    pub(crate) fn list(&mut self, mut item: impl FnMut(&mut Scan<'a>) -> Result<()>) -> Result<()> {
        self.expect("[")?;
        self.spaces();
        if self.eat("]") {
            return Ok(());
        }
        loop {
            item(self)?;
            self.spaces();
            if self.eat("]") {
                return Ok(());
            }
            self.expect(",")?;
            self.spaces();
        }
    }

    pub(crate) fn rest(&self) -> &'a str {
        self.rest
    }

    /// Nothing but spaces may be left.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.spaces();
        if self.is_done() { Ok(()) } else { Err(self.error(format!("unexpected '{}'", self.rest))) }
    }

    fn take(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !keep(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }
}
