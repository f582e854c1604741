//! Sources of documents: files of text in several forms, and token files; and turning the former into the latter.

use super::documents;
use super::error::{Error, Result};
use super::file::{Header, TokenWriter};
use super::glob;
use super::tokenizer::Tokenizer;
use super::tokens::Tokens;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Bytes of text that are tokenised together.
const BATCH: usize = 4 << 20;

/// Documents that wait to be tokenised.
#[derive(Default)]
struct Batch {
    texts: Vec<String>,
    bytes: usize,
}

impl Batch {
    fn flush(&mut self, tokenizer: &Tokenizer, push: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()> {
        let documents = tokenizer.encode_documents(&self.texts)?;
        (self.texts, self.bytes) = (Vec::new(), 0);
        documents.iter().try_for_each(|document| push(document))
    }
}

/// What the files of a source hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SourceKind {
    /// One document per file, UTF-8.
    Text,
    /// One JSON object per line, with the document in a field.
    Jsonl,
    /// A table of values between commas, or tabs in `.tsv`; the first row names the columns, every other is a document.
    Csv,
    /// A column of a Parquet file, every value a document. Needs a program built with the feature `parquet`.
    Parquet,
    /// Token ids written by `planaria tokenize`.
    Tokens,
}

/// Where documents come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct Source {
    /// A file, a folder (all files below it), or a pattern with `*`, `?` and `**`.
    pub path: String,
    /// What the files hold; without it their names say it: `.jsonl`, `.csv`, `.tsv`, `.parquet`, `.tokens`; everything else is
    /// text. Files compressed with gzip or Zstandard are read as what they hold: `.jsonl.zst`.
    pub kind: Option<SourceKind>,
    /// The field of a JSON object, or the column of a table, that holds the text.
    pub field: String,
    /// Share of this source among the samples; without weights every sample is seen once per epoch.
    pub weight: Option<f64>,
    /// Of texts for embeddings: put before every query of this source, instead of `data.texts.query_prompt`.
    pub query_prompt: Option<String>,
    /// Put before every other text of it.
    pub document_prompt: Option<String>,
}

impl Default for Source {
    fn default() -> Source {
        Source {
            path: String::new(),
            kind: None,
            field: "text".into(),
            weight: None,
            query_prompt: None,
            document_prompt: None,
        }
    }
}

impl Source {
    /// A source of that path, its kind told by the file names.
    pub fn new(path: impl Into<String>) -> Source {
        Source { path: path.into(), ..Source::default() }
    }

    /// The files it names now, sorted by path.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        glob::list(&self.path)
    }

    fn kind_of(&self, path: &Path) -> SourceKind {
        self.kind.unwrap_or_else(|| documents::kind_by_name(path))
    }

    /// The tokens of this source. With a `cache` folder, text is tokenised once and then mapped.
    pub fn open(&self, tokenizer: &Tokenizer, cache: Option<&Path>) -> Result<Vec<Tokens>> {
        let files = self.files()?;
        let vocab = tokenizer.vocab_size() as u64;
        let (ready, text): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| self.kind_of(file) == SourceKind::Tokens);
        let known = if ready.is_empty() { Vec::new() } else { tokenizer.fingerprints()? };
        let mut out = Vec::new();
        for file in &ready {
            let tokens = Tokens::open(file, vocab)?;
            tokens.check_tokenizer(&known, tokenizer)?;
            out.push(tokens);
        }
        if let Some(cache) = cache.filter(|_| !text.is_empty()) {
            let file = cache.join(format!("{:016x}.tokens", self.cache_key(&text, tokenizer)?));
            if Tokens::open(&file, vocab).is_err() {
                fs::create_dir_all(cache).map_err(Error::io("create", cache))?;
                self.write(&text, tokenizer, &file)?;
            }
            out.push(Tokens::open(&file, vocab)?);
        } else if !text.is_empty() {
            let (mut tokens, mut starts) = (Vec::new(), Vec::new());
            self.tokenize(&text, tokenizer, &mut |document| {
                starts.push(tokens.len() as u64);
                tokens.extend_from_slice(document);
                Ok(())
            })?;
            out.push(Tokens::in_memory(self.path.clone(), vocab, tokens, starts)?);
        }
        Ok(out)
    }

    /// Names what the tokens depend on: the files and their times, the field, the tokenizer.
    fn cache_key(&self, files: &[PathBuf], tokenizer: &Tokenizer) -> Result<u64> {
        let mut text = format!("{}\n{:?}\n", self.field, self.kind);
        for path in files {
            let meta = fs::metadata(path).map_err(Error::io("read", path))?;
            let changed = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
            let nanos = changed.map_or(0, |d| d.as_nanos());
            text.push_str(&format!("{}\n{} {nanos}\n", path.display(), meta.len()));
        }
        text.push_str(&tokenizer.fingerprint()?.to_string());
        // FNV-1a: a name for the file, no protection against anyone.
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Ok(text.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    fn write(&self, files: &[PathBuf], tokenizer: &Tokenizer, out: &Path) -> Result<Header> {
        let mut writer = TokenWriter::create(out, tokenizer.vocab_size() as u64, tokenizer.fingerprint()?)?;
        self.tokenize(files, tokenizer, &mut |document| writer.push(document))?;
        writer.finish()
    }

    /// Calls `push` with the tokens of each document that is not empty.
    fn tokenize(
        &self,
        files: &[PathBuf],
        tokenizer: &Tokenizer,
        push: &mut dyn FnMut(&[u32]) -> Result<()>,
    ) -> Result<()> {
        let mut waiting = Batch::default();
        let mut document = |text: String| {
            waiting.bytes += text.len();
            if !text.is_empty() {
                waiting.texts.push(text);
            }
            if waiting.bytes >= BATCH { waiting.flush(tokenizer, push) } else { Ok(()) }
        };
        for path in files {
            documents::each(path, self.kind_of(path), &self.field, &mut document)?;
        }
        waiting.flush(tokenizer, push)
    }
}

/// Tokenises sources into one token file, which appears under its name when it is complete. A file of the sources is not written
/// over.
pub fn pretokenize(sources: &[Source], tokenizer: &Tokenizer, out: &Path) -> Result<Header> {
    let there = fs::canonicalize(out).ok();
    let is_out = |file: &&PathBuf| there.is_some() && fs::canonicalize(file).ok() == there;
    let mut read = Vec::new();
    for source in sources {
        let files = source.files()?;
        if let Some(file) = files.iter().find(is_out) {
            return Err(Error::WouldReplace { path: file.clone(), pattern: source.path.clone() });
        }
        if let Some(file) = files.iter().find(|file| source.kind_of(file) == SourceKind::Tokens) {
            return Err(Error::token_file(file, "it holds tokens already"));
        }
        read.push((source, files));
    }
    let mut writer = TokenWriter::create(out, tokenizer.vocab_size() as u64, tokenizer.fingerprint()?)?;
    for (source, files) in read {
        source.tokenize(&files, tokenizer, &mut |document| writer.push(document))?;
    }
    writer.finish()
}
