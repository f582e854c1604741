//! One vocabulary for the result, and the rows of every input laid out for it.

mod rows;
mod template;
mod vocabulary;

pub(crate) use rows::Relaying;
pub(crate) use template::chat_template;
pub(crate) use vocabulary::Merging;
