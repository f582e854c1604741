//! Why a conversation is refused.

use thiserror::Error;

/// A row, or a template, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A field that is missing or has the wrong kind of value.
    #[error("`{field}`: {problem}")]
    Field {
        /// The field, as in `messages[2].role`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A line that has none of the known forms.
    #[error("{problem}")]
    Form {
        /// What was found and what is known.
        problem: String,
    },
    /// There is no template.
    #[error("there is no chat template")]
    NoTemplate,
    /// The template cannot be compiled, or fails, or refuses the conversation.
    #[error("chat template: {problem}")]
    Template {
        /// What is wrong.
        problem: String,
    },
    /// The template has no generation blocks, which were asked for.
    #[error("the chat template has no generation blocks, so nothing would be trained")]
    NoMarks,
    /// The template writes earlier messages differently once others follow.
    #[error("the chat template writes what comes before message {message} differently once it follows")]
    NotPrefix {
        /// The message, counted from 0.
        message: usize,
    },
    /// No message of the assistant to learn from.
    #[error("{problem}")]
    NoAnswer {
        /// What was expected.
        problem: String,
    },
    /// The tokenizer failed.
    #[error("tokenizer: {problem}")]
    Tokenizer {
        /// What it said.
        problem: String,
    },
    /// An image or video where the model reads text alone.
    #[error("`{field}`: it is of the type `{kind}`, and the model reads text alone")]
    Vision {
        /// The part, as in `messages[0].content[1]`.
        field: String,
        /// Its type.
        kind: String,
    },
    /// A file that is not the picture it should be.
    #[error("'{file}': {problem}")]
    Picture {
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// More or fewer places in the text than there are things to show.
    #[error("the text has {found} places for {what}, and {expected} are shown")]
    Marks {
        /// `pictures` or `videos`.
        what: &'static str,
        /// Places in the text.
        found: usize,
        /// Things that are shown.
        expected: usize,
    },
    /// A row that shows something in samples that are cut anywhere.
    #[error("it shows pictures, which samples of `data.chat.packing = \"wrapped\"` would cut apart")]
    Wrapped,
    /// Nothing is trained.
    #[error("no token of it is trained")]
    NoTrainedToken,
}

impl Refusal {
    /// The name of its kind, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Refusal::Field { .. } => "field",
            Refusal::Form { .. } => "form",
            Refusal::NoTemplate => "no-template",
            Refusal::Template { .. } => "template",
            Refusal::NoMarks => "no-generation-blocks",
            Refusal::NotPrefix { .. } => "not-prefix-preserving",
            Refusal::NoAnswer { .. } => "no-answer",
            Refusal::Tokenizer { .. } => "tokenizer",
            Refusal::Vision { .. } => "vision",
            Refusal::Picture { .. } => "picture",
            Refusal::Marks { .. } => "marks",
            Refusal::Wrapped => "wrapped",
            Refusal::NoTrainedToken => "no-trained-token",
        }
    }

    /// One next action, where there is a clear one.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Refusal::NoTemplate => "name a file with one by `data.chat.template`",
            Refusal::NoMarks => {
                "train with `data.chat.learn = \"assistant_prefix\"`, or give a template that has them"
            }
            Refusal::NotPrefix { .. } => "make a sample of every answer by `data.chat.split_turns = true`",
            Refusal::Vision { .. } => {
                "train a model that sees, such as qwen2_vl, or leave rows with images and videos out of the file"
            }
            Refusal::Picture { .. } => "replace the file",
            Refusal::Marks { .. } => {
                "take marks such as <|image_pad|> out of texts; in training `data.chat.escape_specials = true` reads them as text"
            }
            Refusal::Wrapped => "pack by `data.chat.packing = \"best_fit\"`",
            Refusal::NoTrainedToken => "leave such rows out, counted, by `data.chat.untrained = \"drop\"`",
            _ => return None,
        })
    }
}
