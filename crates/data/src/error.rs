//! What can be wrong with training data, always with the file and the place in it.

use crate::chat::Refusal;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Data that is refused or could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {op} '{}': {error}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
    /// A path, folder or pattern without any file.
    #[error("no file matches '{pattern}'")]
    NoFiles {
        /// The path as given.
        pattern: String,
    },
    /// A file to write that is among those to read.
    #[error("'{}' is to be written, and '{pattern}' reads it", path.display())]
    WouldReplace {
        /// The file.
        path: PathBuf,
        /// The path or pattern that names it.
        pattern: String,
    },
    /// Bytes that are not UTF-8.
    #[error("'{}' is not UTF-8 text at byte {at}{}", path.display(), of_line(*line))]
    Utf8 {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1, where lines are read one by one.
        line: Option<u64>,
        /// Offset of the first bad byte in the file, or in the line.
        at: u64,
    },
    /// A line that is not a JSON object with the text field.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A row of a table that cannot be used.
    #[error("{}:{line}: {problem}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The line it begins in, counted from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A Parquet file that cannot be used.
    #[error("'{}': {problem}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A Parquet file, where the program cannot read any.
    #[error("'{}' is a Parquet file, which this program was built without", path.display())]
    NoParquet {
        /// The file.
        path: PathBuf,
    },
    /// A compressed file that is damaged or incomplete.
    #[error("'{}' cannot be decompressed ({form}): {problem}", path.display())]
    Compressed {
        /// The file.
        path: PathBuf,
        /// The compression.
        form: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// Not a token file, or a damaged one.
    #[error("'{}' is not a valid token file: {problem}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A program's own sample that cannot be trained on.
    #[error("sample {index} of the program's own data is refused: {problem}")]
    StreamSample {
        /// Its position, counted from 0.
        index: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A program's own data that failed.
    #[error("the program's own data failed: {what}")]
    StreamFailed {
        /// What it said.
        what: String,
    },
    /// A program's own data that has no further sample.
    #[error("the program's own data ended after {samples} samples; give more, or train fewer steps")]
    StreamEnded {
        /// Samples that came.
        samples: u64,
    },
    /// A token id that the vocabulary does not have.
    #[error("token {index} of '{origin}' is {token}, outside the vocabulary of {vocab}")]
    OutOfVocabulary {
        /// Where the tokens come from.
        origin: String,
        /// Position of the token.
        index: u64,
        /// The id found.
        token: u32,
        /// Size of the vocabulary.
        vocab: u64,
    },
    /// A token file made with a larger vocabulary than the run's.
    #[error(
        "'{}' was made with a vocabulary of {file} tokens, the tokenizer of this run has {vocab}",
        path.display()
    )]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// Vocabulary in the file's header.
        file: u64,
        /// Vocabulary of the run.
        vocab: u64,
    },
    /// A token file made with another tokenizer.
    #[error(
        "'{}' was made with another tokenizer: its fingerprint is {file:08x}, that of the run is {run:08x}",
        path.display()
    )]
    OtherTokenizer {
        /// The file.
        path: PathBuf,
        /// Fingerprint in the file's header.
        file: u32,
        /// Fingerprint of the run's tokenizer.
        run: u32,
    },
    /// Fewer tokens than one sample needs.
    #[error("'{origin}' has {tokens} tokens, one sample needs {needed}")]
    TooShort {
        /// Where the tokens come from.
        origin: String,
        /// Tokens found.
        tokens: u64,
        /// Tokens of one sample: the sequence and the last label.
        needed: u64,
    },
    /// A range or sample that does not exist.
    #[error("{what} {index} is out of range for {len}")]
    OutOfRange {
        /// What was asked for.
        what: &'static str,
        /// The number asked for.
        index: u64,
        /// How many there are.
        len: u64,
    },
    /// A tokenizer that cannot be used.
    #[error("tokenizer '{name}': {problem}")]
    Tokenizer {
        /// The tokenizer or its file.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A row of conversations that cannot be used.
    #[error("{}:{line}: {refusal}", path.display())]
    Conversation {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        refusal: Refusal,
    },
    /// A chat template that cannot be used.
    #[error("'{origin}': {refusal}")]
    Chat {
        /// The tokenizer it belongs to.
        origin: String,
        /// What is wrong with it.
        refusal: Refusal,
    },
    /// A source without a single row to train on.
    #[error("'{origin}' has nothing to train on ({told})")]
    NoRows {
        /// Where the rows come from.
        origin: String,
        /// What became of them.
        told: String,
    },
    /// A setting that makes no sense.
    #[error("data.{key} = {value}: {problem}")]
    Setting {
        /// The key in `[data]`.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is expected.
        problem: String,
    },
    /// The data changed between two runs, so the position would mean other samples.
    #[error("the data differs from what the run was started with: {what} was {saved}, now {found}")]
    Changed {
        /// Which property differs.
        what: &'static str,
        /// The value that was saved.
        saved: String,
        /// The value now.
        found: String,
    },
    /// A sample asked of a rank that has none.
    #[error("sample {index} was requested from a rank that does not read data")]
    Elsewhere {
        /// The sample.
        index: u64,
    },
    /// An array that could not be made.
    #[error(transparent)]
    Array(#[from] planaria_array::Error),
    /// The loader's thread ended without saying why.
    #[error("the data loader stopped: {what}")]
    Stopped {
        /// The panic's words, as far as they are known.
        what: String,
    },
}

fn of_line(line: Option<u64>) -> String {
    line.map(|line| format!(" of line {line}")).unwrap_or_default()
}

impl Error {
    /// An operating system failure with its file.
    pub(super) fn io(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |error| Error::Io { op, path: path.to_path_buf(), error }
    }

    /// A damaged token file.
    pub(super) fn token_file(path: &Path, problem: impl Into<String>) -> Error {
        Error::TokenFile { path: path.to_path_buf(), problem: problem.into() }
    }

    /// A Parquet file that cannot be used.
    #[cfg(feature = "parquet")]
    pub(super) fn parquet(path: &Path, problem: String) -> Error {
        Error::Parquet { path: path.to_path_buf(), problem }
    }

    /// A tokenizer that cannot be used.
    pub(super) fn tokenizer(name: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Tokenizer { name: name.into(), problem: problem.into() }
    }

    /// True for what was asked for and cannot be, rather than for damaged files and failures while reading.
    pub fn is_usage(&self) -> bool {
        let failed = matches!(
            self,
            Error::StreamSample { .. }
                | Error::StreamFailed { .. }
                | Error::StreamEnded { .. }
                | Error::Stopped { .. }
                | Error::Array(_)
        );
        !failed && !self.is_damage()
    }

    /// True for files whose content is not what it should be.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Error::Utf8 { .. }
                | Error::Line { .. }
                | Error::Row { .. }
                | Error::Parquet { .. }
                | Error::Compressed { .. }
                | Error::TokenFile { .. }
                | Error::OutOfVocabulary { .. }
        )
    }

    /// One next action, where there is a clear one.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::NoFiles { .. } => "a path in a configuration is relative to that file, any other to the current folder; '**' matches folders".into(),
            Error::WouldReplace { .. } => "choose another name for what is written".into(),
            Error::Utf8 { .. } => {
                "convert the file, or choose the files with a pattern such as 'text/**/*.md'".into()
            }
            Error::Line { .. } => {
                "each line holds one JSON object; `data.source.field` names its text".into()
            }
            Error::Row { .. } | Error::Parquet { .. } => {
                "`data.source.field` (`tokenize --field`) names the column that holds the text".into()
            }
            Error::NoParquet { .. } => {
                "build it with `--features parquet`, or convert the file to JSON lines".into()
            }
            Error::Compressed { .. } => "fetch the file again: it is cut off or damaged".into(),
            Error::TokenFile { .. } => "write it again with `planaria tokenize`".into(),
            Error::OutOfVocabulary { .. } | Error::Vocabulary { .. } => {
                "use the tokenizer that the tokens were made with".into()
            }
            Error::OtherTokenizer { .. } => {
                "name that tokenizer in `data.tokenizer`, or write the file again with `planaria tokenize`"
                    .into()
            }
            Error::Conversation { refusal, .. } | Error::Chat { refusal, .. } => refusal.hint()?.into(),
            Error::TooShort { .. } => "give more text, or make `data.sequence` shorter".into(),
            Error::Changed { .. } => {
                "restore the data and its settings, or continue with the new data by `data.continue = \"new\"`"
                    .into()
            }
            _ => return None,
        })
    }
}
