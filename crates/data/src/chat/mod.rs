//! Supervised fine-tuning: conversations become tokens, and it is known which of them the assistant said.
//!
//! A [`Row`] is read from a line in one of the usual forms. A [`Chat`] writes it with the model's own chat template, tokenises the
//! whole text once, and says which tokens are trained ([`Learn`]). Rows are then cut and packed ([`fit`]); what is left out is
//! counted in a [`Report`], never silently lost.
//!
//! ```
//! use planaria_data::chat::{Chat, Clock, Learn, Row};
//! use planaria_data::Tokenizer;
//!
//! let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
//! let chat = Chat::new(&Tokenizer::bytes(), Some(template), Clock::Refused)?;
//! let (row, form) = Row::parse(r#"{"instruction": "2 + 2?", "output": "4"}"#)?;
//! assert_eq!(form.name(), "Alpaca");
//! let labelled = chat.label(&row, Learn::Completion)?;
//! assert_eq!(labelled.text, "user: 2 + 2?\nassistant: 4\n");
//! assert_eq!(labelled.predicted(), "assistant: 4\n".len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod clock;
mod config;
mod error;
pub mod fit;
mod json;
mod labels;
mod marks;
mod python;
mod report;
mod row;
mod samples;
mod showing;
mod template;
#[cfg(test)]
mod tests;

pub use clock::Clock;
pub use config::{Config, PackRows, Pictures, Untrained};
pub use error::Refusal;
pub use json::Json;
pub(crate) use labels::token_variables;
pub use labels::{Chat, Labelled, Learn};
pub use report::Report;
pub use row::{Conversation, Form, Row};
pub(crate) use samples::Samples;
pub use template::{Ending, Rendered};
pub(crate) use template::{FILES, Found};
