//! Programs as text: one op a line, what is printed can be parsed.

mod parse;
mod print;

pub use parse::parse;
pub use print::{attribute_text, type_text};
