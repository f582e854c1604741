//! The byte tokenizer: token i is byte i, then the special tokens. It needs no file, and writes one that others can read.

use serde_json::{Map, Value, json};

/// Number of bytes, which is the id of the first special token.
const BYTES: u32 = 256;

/// Special tokens every byte tokenizer has, in order of their ids from 256.
pub(super) const SPECIAL: [&str; 3] = ["<|bos|>", "<|eos|>", "<|pad|>"];

/// A token that is not a byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) content: String,
    pub(super) special: bool,
}

/// Bytes and added tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    added: Vec<Added>,
}

impl Bytes {
    pub(super) fn new() -> Bytes {
        let added = SPECIAL.map(|content| Added { content: content.to_string(), special: true });
        Bytes { added: added.into() }
    }

    pub(super) fn vocab(&self) -> usize {
        BYTES as usize + self.added.len()
    }

    /// Adds a token unless it is there, where it may become special; gives its id.
    pub(super) fn add(&mut self, content: &str, special: bool) -> u32 {
        if let Some(place) = self.added.iter().position(|a| a.content == content) {
            self.added[place].special |= special;
            return BYTES + place as u32;
        }
        self.added.push(Added { content: content.to_string(), special });
        BYTES + self.added.len() as u32 - 1
    }

    /// The id of an added token.
    pub(super) fn id(&self, content: &str) -> Option<u32> {
        self.added.iter().position(|a| a.content == content).map(|i| BYTES + i as u32)
    }

    fn added(&self, id: u32) -> Option<&Added> {
        self.added.get(id.checked_sub(BYTES)? as usize)
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.added(id).is_some_and(|a| a.special)
    }

    /// The special tokens as they are written out.
    pub(super) fn specials(&self) -> Vec<String> {
        self.added.iter().filter(|added| added.special).map(|added| added.content.clone()).collect()
    }

    /// Bytes that a token stands for.
    pub(super) fn length(&self, id: u32) -> usize {
        if id < BYTES { 1 } else { self.added(id).map_or(0, |added| added.content.len()) }
    }

    /// Appends the tokens of `text`; `parse` finds special tokens in it, others are always found.
    pub(super) fn encode(&self, text: &str, parse: bool, out: &mut Vec<u32>) {
        let found = |at: usize| self.longest_at(&text.as_bytes()[at..], parse);
        let mut first = [false; 256];
        for added in self.added.iter().filter(|a| parse || !a.special) {
            if let Some(&byte) = added.content.as_bytes().first() {
                first[usize::from(byte)] = true;
            }
        }
        out.reserve(text.len());
        let mut at = 0;
        while let Some(&byte) = text.as_bytes().get(at) {
            match first[usize::from(byte)].then(|| found(at)).flatten() {
                Some((id, len)) => {
                    out.push(id);
                    at += len;
                }
                None => {
                    out.push(u32::from(byte));
                    at += 1;
                }
            }
        }
    }

    /// The longest added token that begins here, with its length.
    fn longest_at(&self, text: &[u8], parse: bool) -> Option<(u32, usize)> {
        let candidates = self.added.iter().enumerate().filter(|(_, a)| parse || !a.special);
        let here = candidates.filter(|(_, a)| text.starts_with(a.content.as_bytes()));
        here.max_by_key(|(_, a)| a.content.len()).map(|(i, a)| (BYTES + i as u32, a.content.len()))
    }

    /// The bytes of some tokens. Unknown ids give nothing, as in `tokenizers`.
    pub(super) fn decode(&self, tokens: &[u32], keep_special: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(tokens.len());
        for &token in tokens {
            match u8::try_from(token) {
                Ok(byte) => out.push(byte),
                Err(_) => match self.added(token) {
                    Some(added) if keep_special || !added.special => out.extend(added.content.as_bytes()),
                    _ => {}
                },
            }
        }
        out
    }

    /// The same tokenizer as a Hugging Face `tokenizer.json`.
    pub(super) fn to_json(&self) -> Value {
        let mut vocab = Map::new();
        for byte in 0..=u8::MAX {
            vocab.insert(byte_char(byte).to_string(), json!(byte));
        }
        let added = self.added.iter().enumerate().map(|(i, a)| {
            json!({
                "id": BYTES as usize + i, "content": a.content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": a.special,
            })
        });
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added.collect::<Vec<_>>(),
            "normalizer": null,
            "pre_tokenizer": byte_level(),
            "post_processor": null,
            "decoder": byte_level(),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": [],
            },
        })
    }

    /// Recognises what [`Bytes::to_json`] wrote.
    pub(super) fn from_json(json: &Value) -> Option<Bytes> {
        let list = json.get("added_tokens")?.as_array()?;
        let added = list.iter().map(|a| {
            let content = a.get("content")?.as_str()?.to_string();
            Some(Added { content, special: a.get("special")?.as_bool()? })
        });
        let bytes = Bytes { added: added.collect::<Option<Vec<_>>>()? };
        (bytes.to_json() == *json).then_some(bytes)
    }
}

/// Whole text in one piece, each byte as one printable character.
fn byte_level() -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false })
}

/// The character that stands for a byte in byte-level vocabularies: itself if it can be seen, else the next free one
/// from 256.
fn byte_char(byte: u8) -> char {
    let visible = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if visible(byte) {
        return char::from(byte);
    }
    let hidden = (0..byte).filter(|&b| !visible(b)).count() as u32;
    char::from_u32(BYTES + hidden).unwrap_or(char::REPLACEMENT_CHARACTER)
}
