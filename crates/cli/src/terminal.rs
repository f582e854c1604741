//! Where output goes: data to standard output, everything else to standard error, colour only where wanted.

use crate::args::{Global, When};
use crate::printable::printable;
use crate::progress::{Counter, Progress, Shown};
use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::sync::OnceLock;

/// What a stretch of text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Something is wrong.
    Bad,
    /// Something deserves a look.
    Warn,
    /// All is well.
    Good,
    /// A name or a heading.
    Name,
}

/// Standard output and standard error with the wishes of the command line.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// Data as JSON.
    pub(crate) json: bool,
    quiet: bool,
    verbose: u8,
    color_out: bool,
    color_err: bool,
    shown: Shown,
    out: BufWriter<Stdout>,
}

impl Terminal {
    /// As the flags and the environment ask.
    pub(crate) fn new(global: &Global) -> Terminal {
        let color = |is_terminal: bool| match global.color {
            When::Always => true,
            When::Never => false,
            When::Auto => is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        let err_is_terminal = io::stderr().is_terminal();
        let shown = match (global.quiet || global.no_progress, err_is_terminal) {
            (true, _) => Shown::Never,
            (false, true) => Shown::Bar,
            (false, false) => Shown::Lines,
        };
        Terminal {
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose,
            color_out: color(io::stdout().is_terminal()),
            color_err: color(err_is_terminal),
            shown,
            out: BufWriter::new(io::stdout()),
        }
    }

    /// One line of data.
    pub(crate) fn line(&mut self, text: impl Display) -> Result<()> {
        Ok(writeln!(self.out, "{}", shown(&text.to_string()))?)
    }

    /// A drawing of our own, colours included, as it is.
    pub(crate) fn drawing(&mut self, text: &str) -> Result<()> {
        Ok(writeln!(self.out, "{text}")?)
    }

    /// Lines in place of what the screen shows.
    pub(crate) fn frame(&mut self, lines: &[String]) -> Result<()> {
        write!(self.out, "\x1b[H")?;
        let lines: Vec<String> = lines.iter().map(|line| shown(line) + "\x1b[K").collect();
        write!(self.out, "{}\x1b[J", lines.join("\r\n"))?;
        self.flush()
    }

    /// One JSON object, led by the name and version of its form, as in `planaria/inspect/1`.
    pub(crate) fn object(&mut self, schema: &str, value: &impl Serialize) -> Result<()> {
        let mut object = Map::new();
        object.insert("schema".to_string(), schema.into());
        match serde_json::to_value(value)? {
            Value::Object(fields) => object.extend(fields),
            other => drop(object.insert("value".to_string(), other)),
        }
        serde_json::to_writer(&mut self.out, &object)?;
        Ok(writeln!(self.out)?)
    }

    /// Sends out what is buffered.
    pub(crate) fn flush(&mut self) -> Result<()> {
        Ok(self.out.flush()?)
    }

    /// A remark for the person at the terminal.
    pub(crate) fn note(&self, text: impl Display) {
        if !self.quiet {
            self.say(&text.to_string());
        }
    }

    /// A remark that only `-v` shows.
    pub(crate) fn detail(&self, text: impl Display) {
        if self.verbose > 0 {
            self.say(&text.to_string());
        }
    }

    /// A warning.
    pub(crate) fn warn(&self, text: impl Display) {
        self.note(format!("{} {text}", self.paint_err(Style::Warn, "warning:")));
    }

    /// Text on standard error, whatever the flags. A closed standard error is nobody's error.
    pub(crate) fn say(&self, text: &str) {
        let _ = writeln!(io::stderr().lock(), "{}", shown(text));
    }

    /// Says nothing but errors from now on: another process says the rest.
    pub(crate) fn hush(&mut self) {
        (self.quiet, self.verbose, self.shown) = (true, 0, Shown::Never);
    }

    /// True when only results and errors are wanted.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// True where a bar can be drawn again and again.
    pub(crate) fn shows_bars(&self) -> bool {
        self.shown == Shown::Bar
    }

    /// Shows how far something of `total` bytes has come.
    pub(crate) fn progress(&self, what: &str, total: u64) -> Progress {
        Progress::new(self.shown, what, total)
    }

    /// Shows how many of some things are done.
    pub(crate) fn counter(&self, what: &'static str, unit: &'static str) -> Counter {
        Counter::new(self.shown, what, unit)
    }

    /// Whether standard output understands colours.
    pub(crate) fn colours(&self) -> bool {
        self.color_out
    }

    /// Text for standard output in its colour.
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        paint(self.color_out, style, text)
    }

    /// Text for standard error in its colour.
    pub(crate) fn paint_err(&self, style: Style, text: &str) -> String {
        paint(self.color_err, style, text)
    }
}

fn paint(color: bool, style: Style, text: &str) -> String {
    let code = match style {
        Style::Bad => "1;31",
        Style::Warn => "1;33",
        Style::Good => "32",
        Style::Name => "1;36",
    };
    if color { format!("{0}{code}m{text}{0}0m", mark()) } else { text.to_string() }
}

/// Stands for the beginning of a colour until the text is written. Every process draws its own, so that no name from a
/// file can hold it: what is painted is told from what only looks like it.
fn mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| {
        let drawn = RandomState::new().hash_one(0);
        // Code points that are not characters and mean nothing to anybody.
        let digit = |place: u32| char::from_u32(0xfdd0 + (drawn >> (5 * place)) as u32 % 32);
        (0..8).filter_map(digit).collect()
    })
}

/// The text as a terminal may have it: painted where we painted it, and nothing else that it would act on.
fn shown(text: &str) -> String {
    printable(text, &['\n', '\t']).replace(mark(), "\x1b[")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_colours_reach_the_terminal() {
        let text = format!("{} tensor '\x1b[31mred\x1b[0m\x07'", paint(true, Style::Good, "sound:"));
        assert_eq!(shown(&text), "\x1b[32msound:\x1b[0m tensor '\\u{1b}[31mred\\u{1b}[0m\\u{7}'");
        assert_eq!(shown(&paint(false, Style::Bad, "a\nb\r")), "a\nb\\r");
    }
}
