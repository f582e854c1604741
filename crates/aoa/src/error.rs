//! What can be wrong with a mapping, where it stands in the text, and how it is shown.

use planaria_layout::{DType, Region};
use std::collections::HashMap;
use std::fmt;
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use thiserror::Error;

pub use crate::fault::Fault;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a mapping, a question to it or its inverse is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The text does not parse, or does not fit the tensors it is applied to.
    #[error("{0}")]
    Refused(Report),
    /// A question about a tensor the mapping does not make.
    #[error("the mapping makes no tensor '{name}'{}", nearest(.closest))]
    UnknownTarget {
        /// The name asked for.
        name: String,
        /// The most similar name it does make.
        closest: Option<String>,
    },
    /// A question about a region that is not inside its tensor.
    #[error("region {region} is not inside '{name}' of shape {shape}")]
    RegionOutside {
        /// The target tensor.
        name: String,
        /// The region asked for.
        region: Box<Region>,
        /// Shape of the tensor, in text form.
        shape: String,
    },
    /// A region that reshapes cut into more boxes than anyone wants to move one by one.
    #[error("region {region} of '{name}' falls into more than {limit} boxes of its sources")]
    TooManyPieces {
        /// The target tensor.
        name: String,
        /// The region asked for.
        region: Box<Region>,
        /// Most boxes an answer may have.
        limit: usize,
    },
    /// A mapping that loses or doubles something, so that nothing undoes it exactly.
    #[error("the mapping has no exact inverse: {}", list(.0))]
    NotInvertible(Vec<Obstacle>),
    /// The layout algebra refused a box.
    #[error(transparent)]
    Layout(#[from] planaria_layout::Error),
}

/// One reason why a mapping cannot be undone exactly.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// A source that goes nowhere.
    #[error("source '{source_name}' is not read; drop it with '{source_name} -> _' if that is meant")]
    Unread {
        /// The source tensor.
        source_name: String,
    },
    /// A source of which some elements go nowhere.
    #[error("{covered} of {total} elements of source '{source_name}' are read")]
    PartlyRead {
        /// The source tensor.
        source_name: String,
        /// Elements that are read.
        covered: usize,
        /// All its elements.
        total: usize,
    },
    /// Elements that go to two places, which may differ by the time they come back.
    #[error("{region} of source '{source_name}' is read more than once")]
    Tied {
        /// The source tensor.
        source_name: String,
        /// Elements read more than once.
        region: Box<Region>,
    },
    /// A cast that forgets digits.
    #[error("the cast of '{source_name}' from {from} to {to} in '{target}' loses digits")]
    Lossy {
        /// The source tensor.
        source_name: String,
        /// The target tensor.
        target: String,
        /// Element type before.
        from: DType,
        /// Element type after.
        to: DType,
    },
}

fn nearest(closest: &Option<String>) -> String {
    closest.as_ref().map_or_else(String::new, |name| format!("; the nearest name is '{name}'"))
}

/// The first obstacles, and how many more there are.
fn list(obstacles: &[Obstacle]) -> String {
    const SHOWN: usize = 5;
    let mut text: Vec<String> = obstacles.iter().take(SHOWN).map(Obstacle::to_string).collect();
    if obstacles.len() > SHOWN {
        text.push(format!("and {} more", obstacles.len() - SHOWN));
    }
    text.join("; ")
}

/// A range of bytes of the mapping text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Span {
        Span { start, end }
    }
}

/// A fault, where it stands, and how many instances of the same statement share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub fault: Fault,
    /// Where in the text; none for what no statement mentions.
    pub span: Option<Span>,
    /// Further instances of the same statement with a fault of the same kind.
    pub more: usize,
}

impl Problem {
    pub(crate) fn at(fault: Fault, span: Span) -> Problem {
        Problem { fault, span: Some(span), more: 0 }
    }
}

/// All problems of one text, in text order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    text: Arc<str>,
    problems: Vec<Problem>,
}

impl Report {
    pub(crate) fn new(text: &Arc<str>, mut problems: Vec<Problem>) -> Report {
        problems.sort_by_key(|p| p.span.map_or((1, 0), |span| (0, span.start)));
        Report { text: text.clone(), problems }
    }

    /// The problems, in text order; those without a place come last.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// True when nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Every problem with its line of the text, the place underlined, and a hint.
    pub fn render(&self) -> String {
        let texts: Vec<String> = self.problems.iter().map(|p| render(&self.text, p)).collect();
        texts.join("\n")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render())
    }
}

fn render(text: &str, problem: &Problem) -> String {
    let more = if problem.more > 0 { format!(" (and {} more like it)", problem.more) } else { String::new() };
    let mut shown = format!("{}{more}\n", problem.fault);
    let bar = if let Some(span) = problem.span {
        let start = floor(text, span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let line = text[line_start..line_end].trim_end();
        let end = floor(text, span.end.clamp(start, line_end));
        let number = text[..start].matches('\n').count() + 1;
        let before = text[line_start..start].chars().map(|c| if c == '\t' { '\t' } else { ' ' });
        let gutter = " ".repeat(number.to_string().len());
        let carets = "^".repeat(text[start..end].chars().count().max(1));
        let before: String = before.collect();
        shown.push_str(&format!("{gutter} |\n{number} | {line}\n{gutter} | {before}{carets}\n"));
        gutter
    } else {
        String::new()
    };
    if let Some(hint) = problem.fault.hint() {
        shown.push_str(&format!("{bar} = hint: {hint}\n"));
    }
    shown
}

/// The start of the character `at` lies in.
fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Problems found so far; instances of one statement are counted, not listed.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) errors: Vec<Problem>,
    pub(crate) warnings: Vec<Problem>,
    seen: HashMap<(Span, Discriminant<Fault>), usize>,
}

impl Log {
    pub(crate) fn error(&mut self, problem: Problem) {
        let Some(span) = problem.span else { return self.errors.push(problem) };
        let next = self.errors.len();
        match *self.seen.entry((span, discriminant(&problem.fault))).or_insert(next) {
            index if index == next => self.errors.push(problem),
            index => self.errors[index].more += 1,
        }
    }

    pub(crate) fn warn(&mut self, problem: Problem) {
        self.warnings.push(problem);
    }
}

/// The known name most like `name`, when one is close enough to be meant.
pub(crate) fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let limit = match name.len() {
        0..=2 => return None,
        3 => 1,
        len => (len / 4).clamp(2, 6),
    };
    let close = known.filter(|k| k.len().abs_diff(name.len()) <= limit);
    let scored = close.map(|k| (strsim::levenshtein(name, k), k)).filter(|(edits, _)| *edits <= limit);
    scored.min().map(|(_, k)| k.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_underlined_in_text_order_with_hints() {
        let text: Arc<str> = "a -> b\n\tx -> y, axis=é".into();
        let later = Problem::at(
            Fault::BadAttr { key: "axis".into(), reason: "it is not a number".into() },
            Span::new(16, 23),
        );
        let first = Problem::at(
            Fault::UnknownTensor { name: "a".into(), closest: Some("A".into()) },
            Span::new(0, 1),
        );
        let shown = Report::new(&text, vec![later, first]).render();
        assert!(shown.starts_with("tensor 'a' is neither"), "{shown}");
        assert!(shown.contains("1 | a -> b\n  | ^\n"), "{shown}");
        assert!(shown.contains("2 | \tx -> y, axis=é\n  | \t        ^^^^^^\n"), "{shown}");
        assert!(shown.contains("hint: did you mean 'A'?"), "{shown}");
    }

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let known = ["model.norm.weight", "lm_head.weight"];
        let near = |name: &str| closest(name, known.iter().copied());
        assert_eq!(near("model.norm.wieght").as_deref(), Some("model.norm.weight"));
        assert_eq!(near("q"), None);
    }
}
