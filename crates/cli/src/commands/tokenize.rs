//! `planaria tokenize`: text into a token file that training maps into memory.

use crate::exit::Exit;
use crate::quantity::{Bytes, count};
use crate::target::{self, Existing};
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::train::data::{Source, SourceKind, SpecialText, TokenFile, Tokenizer, pretokenize};
use serde_json::json;
use std::path::PathBuf;

/// Turn text into a token file
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A text file is one document; so is every line of a .jsonl file and every row of a .csv, .tsv or .parquet file.\n\
    Files compressed with gzip or Zstandard are decompressed. Training reads the result with a data source whose path\n\
    ends in .tokens."
)]
pub(crate) struct Args {
    /// Files, folders, or patterns with `*`, `?` and `**`
    #[arg(required = true, value_name = "TEXT")]
    text: Vec<String>,
    /// The token file, by custom NAME.tokens
    #[arg(short, long, value_name = "FILE.tokens")]
    output: PathBuf,
    /// `bytes`, a folder with a tokenizer.json, or such a file
    #[arg(long, value_name = "TOKENIZER", default_value = "bytes")]
    tokenizer: String,
    /// What the files hold; inferred from their names if not given
    #[arg(long, value_enum, value_name = "KIND")]
    kind: Option<KindName>,
    /// The field of a JSON line, or the column of a table, that holds the text
    #[arg(long, value_name = "NAME", default_value = "text")]
    field: String,
    /// Special tokens written out in the text become those tokens
    #[arg(long)]
    parse_special: bool,
    /// Replace the file if it exists
    #[arg(long)]
    yes: bool,
}

/// What files hold.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum KindName {
    /// One document per file
    Text,
    /// One JSON object per line
    Jsonl,
    /// A table whose first row names the columns
    Csv,
    /// A Parquet file (feature `parquet`)
    Parquet,
}

impl From<KindName> for SourceKind {
    fn from(kind: KindName) -> SourceKind {
        match kind {
            KindName::Text => SourceKind::Text,
            KindName::Jsonl => SourceKind::Jsonl,
            KindName::Csv => SourceKind::Csv,
            KindName::Parquet => SourceKind::Parquet,
        }
    }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let existing = Existing::from_yes(args.yes);
    let source = |path: &String| {
        let mut source = Source::new(path);
        source.field.clone_from(&args.field);
        source.kind = args.kind.map(SourceKind::from);
        source
    };
    let sources: Vec<Source> = args.text.iter().map(source).collect();
    let mut read = vec![PathBuf::from(&args.tokenizer)];
    for source in &sources {
        read.extend(source.files()?);
    }
    target::apart(&args.output, read.iter().map(PathBuf::as_path))?;
    target::check(&args.output, existing)?;
    let mut tokenizer = Tokenizer::open(&args.tokenizer)?;
    let special = if args.parse_special { SpecialText::Parse } else { SpecialText::Plain };
    tokenizer.set_special_text(special);
    let name = args.output.file_name().unwrap_or_default().to_string_lossy();
    let beside = args.output.with_file_name(format!(".{name}.{}", std::process::id()));
    let header = pretokenize(&sources, &tokenizer, &beside)?;
    let sound = TokenFile::open(&beside).and_then(|file| file.verify());
    if let Err(error) = sound {
        // What cannot be removed is hidden and harmless.
        let _ = std::fs::remove_file(&beside);
        return Err(error.into());
    }
    target::publish(&beside, &args.output, existing)?;
    let bytes = std::fs::metadata(&args.output)?.len();
    if terminal.json {
        let value = json!({
            "path": args.output, "tokens": header.tokens, "documents": header.documents,
            "vocab": header.vocab, "token_bytes": header.width, "bytes": bytes,
        });
        terminal.object("planaria/tokenize/1", &value)?;
    } else {
        let number = |n: u64, noun: &str| count(usize::try_from(n).unwrap_or(usize::MAX), noun);
        let (tokens, documents) = (number(header.tokens, "token"), number(header.documents, "document"));
        terminal.line(format!("{tokens} in {documents}, {}, in {}", Bytes(bytes), args.output.display()))?;
    }
    Ok(Exit::Success)
}
