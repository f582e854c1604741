//! Programs as text: one op a line, what is printed can be parsed.

mod parse;
mod print;
mod svg;

pub use parse::parse;
pub use print::{attribute_text, type_text};
pub use svg::svg;
