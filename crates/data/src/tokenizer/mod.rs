//! Text to token ids and back: bytes, any Hugging Face `tokenizer.json`, or the files that one can be made from.

mod byte;
mod files;
mod locate;
mod made;
mod pairs;
mod sentencepiece;
#[cfg(test)]
mod tests;

use super::error::{Error, Result};
use byte::Bytes;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tokenizers::AddedToken;

pub(crate) use locate::Locator;

/// Name under which the byte tokenizer is opened.
pub const BYTE_TOKENIZER: &str = "bytes";

/// What becomes of a special token that is written out inside a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialText {
    /// It becomes that token, as in `transformers`.
    #[default]
    Parse,
    /// It is text like any other: no document can end itself.
    Plain,
}

/// What an added token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A mark that decoding leaves out.
    Special,
    /// A piece of text.
    Text,
}

/// The tokens that frame a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Begins a document.
    pub bos: Option<u32>,
    /// Ends a document.
    pub eos: Option<u32>,
    /// Fills a sequence; never a label.
    pub pad: Option<u32>,
}

#[derive(Clone)]
enum TokenizerKind {
    Bytes(Bytes),
    Trained(Box<tokenizers::Tokenizer>),
}

impl TokenizerKind {
    fn is_special(&self, id: u32) -> bool {
        match self {
            TokenizerKind::Bytes(bytes) => bytes.is_special(id),
            TokenizerKind::Trained(inner) => {
                inner.get_added_vocabulary().get_added_tokens_decoder().get(&id).is_some_and(|t| t.special)
            }
        }
    }
}

/// A tokenizer and the files it is saved as.
#[derive(Clone)]
pub struct Tokenizer {
    name: String,
    kind: TokenizerKind,
    frame: Frame,
    /// Whether documents begin with `bos`.
    begins: bool,
    vocab: usize,
    special_text: SpecialText,
    /// The files it was read from; `tokenizer.json` is written anew once tokens were added.
    files: BTreeMap<String, Vec<u8>>,
    added: bool,
    /// Fingerprints from before tokens were added for a run.
    before: Vec<u32>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Tokenizer");
        out.field("name", &self.name).field("vocab", &self.vocab).field("frame", &self.frame).finish()
    }
}

/// What the library says, or that it gave up: it checks the form of a file, not every number in it, and finds out at some text.
fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => {
            Err("its files are damaged: a number in them leads nowhere; take them from their source again"
                .into())
        }
    }
}

impl Tokenizer {
    /// Ids 0 to 255 are bytes, 256 begins a document, 257 ends one, 258 fills.
    pub fn bytes() -> Tokenizer {
        Tokenizer::of_bytes(Bytes::new(), BTreeMap::new())
    }

    fn of_bytes(bytes: Bytes, files: BTreeMap<String, Vec<u8>>) -> Tokenizer {
        let [bos, eos, pad] = byte::SPECIAL.map(|token| bytes.id(token));
        Tokenizer {
            name: BYTE_TOKENIZER.to_string(),
            vocab: bytes.vocab(),
            kind: TokenizerKind::Bytes(bytes),
            frame: Frame { bos, eos, pad },
            begins: false,
            special_text: SpecialText::default(),
            files,
            added: false,
            before: Vec::new(),
        }
    }

    /// `bytes`, a folder with a tokenizer, or a `tokenizer.json` or `tokenizer.model`.
    pub fn open(name: &str) -> Result<Tokenizer> {
        if Tokenizer::is_bytes(name) {
            return Ok(Tokenizer::bytes());
        }
        let read = files::read(Path::new(name))?;
        Tokenizer::build(name, read)
    }

    /// True for the name of the byte tokenizer, which no file holds.
    pub fn is_bytes(name: &str) -> bool {
        name == BYTE_TOKENIZER || name == "byte"
    }

    /// Names of the files that it can be read from.
    pub fn file_names() -> &'static [&'static str] {
        &files::READ
    }

    /// Whether these files hold a tokenizer: a `tokenizer.json`, a `tokenizer.model`, or a `vocab.json` with a `merges.txt`.
    pub fn is_in(all: &BTreeMap<String, Vec<u8>>) -> bool {
        files::are_enough(all)
    }

    /// From the files of a checkpoint; other files are ignored.
    pub fn from_files(all: &BTreeMap<String, Vec<u8>>) -> Result<Tokenizer> {
        let known = files::READ.iter().filter_map(|&n| Some((n.to_string(), all.get(n)?.clone())));
        Tokenizer::build("of the checkpoint", known.collect())
    }

    fn build(name: &str, read: BTreeMap<String, Vec<u8>>) -> Result<Tokenizer> {
        let read = files::complete(name, read)?;
        let text = &read[files::TOKENIZER];
        let bad = |e: &dyn std::fmt::Display| Error::tokenizer(name, format!("tokenizer.json: {e}"));
        let json: Value = serde_json::from_slice(text).map_err(|e| bad(&e))?;
        if let Some(bytes) = Bytes::from_json(&json) {
            return Ok(Tokenizer::of_bytes(bytes, read));
        }
        let mut inner = guarded(|| tokenizers::Tokenizer::from_bytes(text)).map_err(|e| bad(&e))?;
        // Limits meant for classification would cut documents.
        inner.with_padding(None).with_truncation(None).map_err(|e| bad(&e))?;
        // Vocabularies may have gaps: the largest id decides, not the number of tokens.
        let vocab = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        let mut out = Tokenizer {
            name: name.to_string(),
            kind: TokenizerKind::Trained(Box::new(inner)),
            frame: Frame::default(),
            begins: false,
            vocab,
            special_text: SpecialText::default(),
            files: read,
            added: false,
            before: Vec::new(),
        };
        out.apply_config()?;
        // Documents begin with `bos` where prompts do.
        let empty = out.encode_prompt("")?;
        out.begins = empty.first().is_some_and(|&first| Some(first) == out.frame.bos);
        Ok(out)
    }

    /// Tokens and roles that `tokenizer_config.json` adds.
    fn apply_config(&mut self) -> Result<()> {
        let config = files::config(&self.name, &self.files)?;
        for (id, content, kind) in files::added_tokens(&config) {
            let got = self.add_token(&content, kind)?;
            if got != id {
                let problem = format!("'{content}' has the id {got}, its tokenizer_config.json says {id}");
                return Err(Error::tokenizer(&self.name, problem));
            }
        }
        for (role, content) in files::roles(&config) {
            let id = self.add_token(&content, TokenKind::Special)?;
            match role {
                "bos_token" => self.frame.bos = Some(id),
                "eos_token" => self.frame.eos = Some(id),
                _ => self.frame.pad = Some(id),
            }
        }
        Ok(())
    }

    /// One that ends every prompt with `eos`, by a template of its own where this one does not.
    pub fn ending_with_eos(&self) -> Result<Tokenizer> {
        let (id, token) = match self.frame.eos.and_then(|id| Some((id, self.token(id)?))) {
            Some(found) => found,
            None => return Err(Error::tokenizer(&self.name, "it has no `eos_token` to end texts with")),
        };
        if self.encode_prompt("a")?.last() == Some(&id) {
            return Ok(self.clone());
        }
        let mut all = self.files()?;
        let text = files::with_ending(&self.tokenizer_json()?, &token, id);
        let text = text.map_err(|e| Error::tokenizer(&self.name, format!("tokenizer.json: {e}")))?;
        all.insert(files::TOKENIZER.to_string(), text);
        let mut out = Tokenizer::build(&self.name, all)?;
        out.set_special_text(self.special_text);
        Ok(out)
    }

    /// The files to keep with a model, so that its folder serves for inference.
    pub fn files(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let mut out = self.files.clone();
        if self.added || !out.contains_key(files::TOKENIZER) {
            out.insert(files::TOKENIZER.to_string(), self.tokenizer_json()?);
        }
        if !out.contains_key(files::CONFIG) {
            let token = |id: Option<u32>| id.and_then(|id| self.token(id));
            let roles = [token(self.frame.bos), token(self.frame.eos), token(self.frame.pad)];
            out.insert(files::CONFIG.to_string(), files::new_config(roles));
        }
        Ok(out)
    }

    fn tokenizer_json(&self) -> Result<Vec<u8>> {
        let text = match &self.kind {
            TokenizerKind::Bytes(bytes) => {
                serde_json::to_string_pretty(&bytes.to_json()).map_err(|e| e.to_string())
            }
            TokenizerKind::Trained(inner) => inner.to_string(true).map_err(|e| e.to_string()),
        };
        text.map(String::into_bytes).map_err(|problem| Error::tokenizer(&self.name, problem))
    }

    /// Largest id plus one: what the model's embedding needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab
    }

    /// The tokens that frame a document.
    pub fn frame(&self) -> Frame {
        self.frame
    }

    /// Chooses what special tokens inside a text become.
    pub fn set_special_text(&mut self, special_text: SpecialText) {
        self.special_text = special_text;
        if let TokenizerKind::Trained(inner) = &mut self.kind {
            inner.set_encode_special_tokens(special_text == SpecialText::Plain);
        }
    }

    /// Adds a token unless it exists; gives its id. New ids follow the present ones. A token of the vocabulary that
    /// is to be special becomes so, with the id it has.
    pub fn add_token(&mut self, content: &str, kind: TokenKind) -> Result<u32> {
        if let Some(id) = self.id(content).filter(|&id| kind == TokenKind::Text || self.is_special(id)) {
            return Ok(id);
        }
        if content.is_empty() {
            return Err(Error::tokenizer(&self.name, "an added token cannot be empty"));
        }
        let special = kind == TokenKind::Special;
        match &mut self.kind {
            TokenizerKind::Bytes(bytes) => {
                bytes.add(content, special);
            }
            TokenizerKind::Trained(inner) => {
                let token = [AddedToken::from(content, special)];
                let added = if special { inner.add_special_tokens(token) } else { inner.add_tokens(token) };
                added.map_err(|e| Error::tokenizer(&self.name, e.to_string()))?;
            }
        }
        self.added = true;
        let missing = || Error::tokenizer(&self.name, format!("'{content}' could not be added"));
        let id = self.id(content).ok_or_else(missing)?;
        self.vocab = self.vocab.max(id as usize + 1);
        Ok(id)
    }

    /// The id of a token of the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        match &self.kind {
            TokenizerKind::Bytes(bytes) => bytes.id(token),
            TokenizerKind::Trained(inner) => inner.token_to_id(token),
        }
    }

    /// The text of one token.
    pub fn token(&self, id: u32) -> Option<String> {
        match &self.kind {
            TokenizerKind::Bytes(bytes) if (id as usize) < bytes.vocab() => {
                Some(String::from_utf8_lossy(&bytes.decode(&[id], true)).into_owned())
            }
            TokenizerKind::Bytes(_) => None,
            TokenizerKind::Trained(inner) => inner.id_to_token(id),
        }
    }

    /// The tokens of a text, without a frame.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut out = Vec::new();
        match &self.kind {
            TokenizerKind::Bytes(bytes) => {
                bytes.encode(text, self.special_text == SpecialText::Parse, &mut out)
            }
            TokenizerKind::Trained(_) => out = self.encode_trained(text, false)?,
        }
        Ok(out)
    }

    /// The tokens a model is prompted with: with what the tokenizer's own template puts around a text.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        match &self.kind {
            TokenizerKind::Bytes(_) => self.encode(text),
            TokenizerKind::Trained(_) => self.encode_trained(text, true),
        }
    }

    fn encode_trained(&self, text: &str, template: bool) -> Result<Vec<u32>> {
        let TokenizerKind::Trained(inner) = &self.kind else { return Ok(Vec::new()) };
        let encoding = guarded(|| inner.encode_fast(text, template));
        encoding.map(|e| e.get_ids().to_vec()).map_err(|e| Error::tokenizer(&self.name, e))
    }

    /// Documents as they are trained on: ended by `eos`, begun by `bos` where prompts begin with it. Trained tokenizers use all
    /// cores; the order stays.
    pub fn encode_documents(&self, texts: &[String]) -> Result<Vec<Vec<u32>>> {
        let framed = |tokens: &[u32]| {
            let mut out = Vec::with_capacity(tokens.len() + 2);
            out.extend(self.frame.bos.filter(|_| self.begins));
            out.extend_from_slice(tokens);
            out.extend(self.frame.eos);
            out
        };
        match &self.kind {
            TokenizerKind::Bytes(_) => texts.iter().map(|text| Ok(framed(&self.encode(text)?))).collect(),
            TokenizerKind::Trained(inner) => {
                let inputs: Vec<&str> = texts.iter().map(String::as_str).collect();
                let encodings = guarded(|| inner.encode_batch_fast(inputs, false));
                let encodings = encodings.map_err(|e| Error::tokenizer(&self.name, e))?;
                Ok(encodings.iter().map(|encoding| framed(encoding.get_ids())).collect())
            }
        }
    }

    /// The text of some tokens, special ones left out. Bytes that are not text become U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.decode_as(tokens, false)
    }

    /// The text of some tokens with the special ones written out.
    pub fn decode_with_special(&self, tokens: &[u32]) -> Result<String> {
        self.decode_as(tokens, true)
    }

    fn decode_as(&self, tokens: &[u32], keep: bool) -> Result<String> {
        match &self.kind {
            TokenizerKind::Bytes(bytes) => {
                Ok(String::from_utf8_lossy(&bytes.decode(tokens, keep)).into_owned())
            }
            TokenizerKind::Trained(inner) => {
                guarded(|| inner.decode(tokens, !keep)).map_err(|e| Error::tokenizer(&self.name, e))
            }
        }
    }

    /// Whether decoding leaves this token out.
    pub fn is_special(&self, id: u32) -> bool {
        self.kind.is_special(id)
    }

    /// A number that differs between tokenizers that give different ids.
    pub fn fingerprint(&self) -> Result<u32> {
        Ok(self.fingerprint_with(&self.tokenizer_json()?, self.special_text))
    }

    fn fingerprint_with(&self, json: &[u8], special_text: SpecialText) -> u32 {
        let sum = planaria_store::checksum::crc32c(json);
        planaria_store::checksum::append(sum, format!("{:?}{special_text:?}", self.frame).as_bytes())
    }

    /// Remembers the tokenizer of now: what it has made still fits when tokens are added.
    pub(super) fn keep_fingerprints(&mut self) -> Result<()> {
        self.before = self.fingerprints()?;
        Ok(())
    }

    /// Fingerprints of tokenizers whose ids mean what those of this one mean: its own, whatever special tokens inside a
    /// text became, and those from before tokens were added.
    pub(super) fn fingerprints(&self) -> Result<Vec<u32>> {
        let json = self.tokenizer_json()?;
        let own = [SpecialText::Parse, SpecialText::Plain].map(|text| self.fingerprint_with(&json, text));
        Ok(own.into_iter().chain(self.before.iter().copied()).collect())
    }
}
