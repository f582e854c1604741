//! Tokens with the bytes of the text they stand for, and what a tokenizer says about chat templates.

use super::{SpecialText, Tokenizer, TokenizerKind, files, guarded};
use crate::chat::{FILES, Found, Json, token_variables};
use crate::error::{Error, Result};
use serde_json::Value;
use std::ops::Range;

/// Encodes texts, and says where in the text each token stands.
#[derive(Clone)]
pub(crate) struct Locator {
    kind: TokenizerKind,
}

impl std::fmt::Debug for Locator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locator").finish_non_exhaustive()
    }
}

impl Locator {
    /// Tokens and their bytes. Special tokens written out become those tokens; nothing is put around the text. A token owns
    /// every character it encodes, white space included.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, String> {
        located(&self.kind, text, SpecialText::Parse)
    }

    /// The same, but special tokens that are written out inside these bytes are text like any other. Stretches between the
    /// special tokens that stay are the ones that a tokenizer would cut the text into.
    pub(crate) fn encode_around(
        &self,
        text: &str,
        plain: &[Range<usize>],
    ) -> Result<Vec<(u32, Range<usize>)>, String> {
        let found = self.encode(text)?;
        let inside = |range: &Range<usize>| plain.iter().any(|p| p.start < range.end && range.start < p.end);
        let special = |(token, _): &(u32, Range<usize>)| self.is_special(*token);
        if !found.iter().any(|one| special(one) && inside(&one.1)) {
            return Ok(found);
        }
        let mut kind = self.kind.clone();
        if let TokenizerKind::Trained(inner) = &mut kind {
            inner.set_encode_special_tokens(true);
        }
        let (mut out, mut from) = (Vec::new(), 0);
        for stretch in found.split_inclusive(|one| special(one) && !inside(&one.1)) {
            let (between, last) = match stretch.split_last() {
                Some((last, between)) if special(last) && !inside(&last.1) => (between, Some(last)),
                _ => (stretch, None),
            };
            let to = last.map_or(text.len(), |(_, range)| range.start);
            if between.iter().any(special) {
                let anew = located(&kind, &text[from..to], SpecialText::Plain)?;
                out.extend(
                    anew.into_iter().map(|(token, range)| (token, range.start + from..range.end + from)),
                );
            } else {
                out.extend_from_slice(between);
            }
            from = last.map_or(to, |(_, range)| range.end);
            out.extend(last.cloned());
        }
        Ok(out)
    }

    /// The special tokens as they are written out.
    pub(crate) fn specials(&self) -> Vec<String> {
        match &self.kind {
            TokenizerKind::Bytes(bytes) => bytes.specials(),
            TokenizerKind::Trained(inner) => {
                let tokens = inner.get_added_vocabulary().get_added_tokens_decoder().values();
                tokens.filter(|token| token.special).map(|token| token.content.clone()).collect()
            }
        }
    }

    /// Whether decoding leaves this token out.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.kind.is_special(id)
    }
}

fn located(
    kind: &TokenizerKind,
    text: &str,
    special: SpecialText,
) -> Result<Vec<(u32, Range<usize>)>, String> {
    match kind {
        TokenizerKind::Bytes(bytes) => {
            let mut tokens = Vec::new();
            bytes.encode(text, special == SpecialText::Parse, &mut tokens);
            let mut at = 0;
            let place = |token: u32| {
                let start = at;
                at += bytes.length(token);
                (token, start..at)
            };
            Ok(tokens.into_iter().map(place).collect())
        }
        TokenizerKind::Trained(inner) => {
            let found = guarded(|| inner.encode(text, false))?;
            let ranges = found.get_offsets().iter().map(|&(start, end)| start..end);
            Ok(found.get_ids().iter().copied().zip(ranges).collect())
        }
    }
}

impl Tokenizer {
    /// What it is called in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether texts begin with `bos`.
    pub(crate) fn begins(&self) -> bool {
        self.begins
    }

    /// One that says where tokens stand. Post-processors shorten what a token stands for, so it has none.
    pub(crate) fn locator(&self) -> Locator {
        let mut kind = self.kind.clone();
        if let TokenizerKind::Trained(inner) = &mut kind {
            inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
            inner.set_encode_special_tokens(false);
        }
        Locator { kind }
    }

    /// The chat templates among its files.
    pub(crate) fn chat_templates(&self) -> Result<Found> {
        let config = files::config(&self.name, &self.files)?;
        Found::among(&self.files, &config).map_err(|problem| Error::tokenizer(&self.name, problem))
    }

    /// Whether its files hold a chat template.
    pub fn has_chat_template(&self) -> Result<bool> {
        Ok(!self.chat_templates()?.is_empty())
    }

    /// Keeps another chat template with the model, where both older and newer programs look for it.
    pub fn set_chat_template(&mut self, template: &str) -> Result<()> {
        let mut all = self.files()?;
        let mut config = files::config(&self.name, &all)?;
        config.insert("chat_template".into(), template.into());
        all.insert(files::CONFIG.into(), format!("{:#}\n", Value::Object(config)).into_bytes());
        all.remove(FILES[1]);
        all.insert(FILES[0].into(), template.as_bytes().to_vec());
        self.files = all;
        Ok(())
    }

    /// The special tokens as variables of a template.
    pub(crate) fn template_variables(&self) -> Result<Vec<(String, Json)>> {
        let mut out = token_variables(&files::config(&self.name, &self.files)?);
        let frame =
            [("bos_token", self.frame.bos), ("eos_token", self.frame.eos), ("pad_token", self.frame.pad)];
        for (name, id) in frame {
            let known = out.iter().any(|(found, _)| found == name);
            let token = id.filter(|_| !known).and_then(|id| self.token(id));
            out.extend(token.map(|token| (name.to_string(), Json::Text(token))));
        }
        Ok(out)
    }
}
