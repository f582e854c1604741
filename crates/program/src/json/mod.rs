//! The JSON of program files: a pull scanner over borrowed text, and a writer that forms numbers as Paddle does.

mod scan;
mod write;

pub(crate) use scan::Scanner;
pub(crate) use write::Writer;
pub(crate) use write::number_text;
