//! Sources of documents: text files, JSON lines, token files; and turning the first two into the third.

use super::error::{Error, Result};
use super::file::{Header, TokenWriter};
use super::glob;
use super::tokenizer::Tokenizer;
use super::tokens::Tokens;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Longest line of a JSONL file.
const LINE_LIMIT: u64 = 1 << 30;

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
    /// What the files hold; without it `.jsonl` and `.tokens` say it, everything else is text.
    pub kind: Option<SourceKind>,
    /// The field of a JSON object that holds the text.
    pub field: String,
    /// Share of this source among the samples; without weights every sample is seen once per epoch.
    pub weight: Option<f64>,
}

impl Default for Source {
    fn default() -> Source {
        Source { path: String::new(), kind: None, field: "text".into(), weight: None }
    }
}

impl Source {
    /// A source of that path, its kind told by the file names.
    pub fn new(path: impl Into<String>) -> Source {
        Source { path: path.into(), ..Source::default() }
    }

    fn kind_of(&self, path: &Path) -> SourceKind {
        self.kind.unwrap_or_else(|| match path.extension().and_then(|e| e.to_str()) {
            Some("jsonl" | "ndjson") => SourceKind::Jsonl,
            Some("tokens") => SourceKind::Tokens,
            _ => SourceKind::Text,
        })
    }

    /// The tokens of this source. With a `cache` folder, text is tokenised once and then mapped.
    pub fn open(&self, tokenizer: &Tokenizer, cache: Option<&Path>) -> Result<Vec<Tokens>> {
        let files = glob::list(&self.path)?;
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
            match self.kind_of(path) {
                SourceKind::Jsonl => self.each_line(path, &mut document)?,
                _ => document(read_text(path)?)?,
            }
        }
        waiting.flush(tokenizer, push)
    }

    fn each_line(&self, path: &Path, document: &mut dyn FnMut(String) -> Result<()>) -> Result<()> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let mut reader = BufReader::with_capacity(1 << 18, file);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let mut limited = reader.by_ref().take(LINE_LIMIT);
            let got = limited.read_until(b'\n', &mut line).map_err(Error::io("read", path))?;
            if got == 0 {
                break;
            }
            let bad = |problem: String| Error::Line { path: path.to_path_buf(), line: number, problem };
            if got as u64 == LINE_LIMIT {
                return Err(bad(format!("the line has more than {LINE_LIMIT} bytes")));
            }
            let text = str::from_utf8(&line).map_err(|e| Error::Utf8 {
                path: path.to_path_buf(),
                line: Some(number),
                at: e.valid_up_to() as u64,
            })?;
            if !text.trim().is_empty() {
                document(text_field(text, &self.field).map_err(bad)?)?;
            }
        }
        Ok(())
    }
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    String::from_utf8(bytes).map_err(|e| Error::Utf8 {
        path: path.to_path_buf(),
        line: None,
        at: e.utf8_error().valid_up_to() as u64,
    })
}

/// The text of one JSON line.
fn text_field(line: &str, field: &str) -> Result<String, String> {
    let value: Value = serde_json::from_str(line).map_err(|e| format!("not valid JSON: {e}"))?;
    let Value::Object(mut object) = value else {
        return Err("the line is no JSON object".into());
    };
    match object.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("the field '{field}' is not a text")),
        None => {
            let mut names: Vec<_> = object.keys().take(8).map(|k| format!("'{k}'")).collect();
            names.sort();
            Err(format!("there is no field '{field}'; the line has {}", names.join(", ")))
        }
    }
}

/// Tokenises sources into one token file, which appears under its name when it is complete.
pub fn pretokenize(sources: &[Source], tokenizer: &Tokenizer, out: &Path) -> Result<Header> {
    let mut writer = TokenWriter::create(out, tokenizer.vocab_size() as u64, tokenizer.fingerprint()?)?;
    for source in sources {
        let files = glob::list(&source.path)?;
        if let Some(file) = files.iter().find(|file| source.kind_of(file) == SourceKind::Tokens) {
            return Err(Error::token_file(file, "it holds tokens already"));
        }
        source.tokenize(&files, tokenizer, &mut |document| writer.push(document))?;
    }
    writer.finish()
}
