//! Which tokens of a row are trained.

use super::error::Refusal;
use super::row::{Conversation, Row};
use super::template::{Ending, Found, Rendered, Template};
use super::{Clock, Json};
use crate::error::{Error, Result};
use crate::pack::IGNORED;
use crate::tokenizer::{Locator, Tokenizer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

/// Tokens that stand for images and videos: they are given, never said.
const VISION: [&str; 5] =
    ["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"];

/// What is learnt of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Learn {
    /// What the assistant says: by the template's generation blocks where it has them, else by its prefixes.
    #[default]
    Assistant,
    /// What the template prints inside its generation blocks.
    AssistantMarks,
    /// Every message of the assistant with its end-of-turn token: what a longer conversation prints more than a shorter one.
    AssistantPrefix,
    /// The last message of the assistant.
    LastTurn,
    /// Everything after the prompt: the `completion` of a row, or the last message of a conversation.
    Completion,
    /// Every token.
    All,
}

/// Tokens of a row and which of them are trained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labelled {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Whether each is trained.
    pub trained: Vec<bool>,
    /// The bytes of the text that are trained, where messages were compared with shorter conversations.
    pub spans: Vec<Range<usize>>,
    /// The text the tokens were made of.
    pub text: String,
}

impl Labelled {
    /// The tokens themselves where they are trained, else -100.
    pub fn labels(&self) -> Vec<i64> {
        let label = |(&token, &trained): (&u32, &bool)| if trained { i64::from(token) } else { IGNORED };
        self.tokens.iter().zip(&self.trained).map(label).collect()
    }

    /// Trained tokens that something comes before: the first one is predicted from nothing.
    pub fn predicted(&self) -> usize {
        self.trained.iter().skip(1).filter(|&&trained| trained).count()
    }
}

/// A tokenizer with its chat template.
#[derive(Debug)]
pub struct Chat {
    template: Option<Template>,
    locator: Locator,
    vision: BTreeSet<u32>,
    frame: crate::Frame,
    /// Whether plain texts begin with `bos`.
    begins: bool,
    /// Whether plain texts end with `eos`.
    ends: bool,
    /// Whether special tokens that contents spell out are text like any other.
    escapes: bool,
}

impl Chat {
    /// With the template of the tokenizer's folder, or another one.
    pub fn new(tokenizer: &Tokenizer, template: Option<&str>, clock: Clock) -> Result<Chat> {
        let found = match template {
            Some(text) => Found::one(text),
            None => tokenizer.chat_templates()?,
        };
        let variables = tokenizer.template_variables()?;
        let compiled = (!found.is_empty()).then(|| Template::compile(&found, variables, clock)).transpose();
        Ok(Chat {
            template: compiled.map_err(|refusal| Error::Chat { origin: tokenizer.name().into(), refusal })?,
            locator: tokenizer.locator(),
            vision: VISION.iter().filter_map(|token| tokenizer.id(token)).collect(),
            frame: tokenizer.frame(),
            begins: tokenizer.begins(),
            ends: true,
            escapes: false,
        })
    }

    /// The same, with or without the token that ends plain texts. What ends a conversation the template decides.
    #[must_use]
    pub fn with_eos(self, ends: bool) -> Chat {
        Chat { ends, ..self }
    }

    /// The same, with special tokens that contents spell out as text like any other, or as those tokens.
    #[must_use]
    pub fn escaping_specials(mut self, escapes: bool) -> Chat {
        let specials = if escapes { self.locator.specials() } else { Vec::new() };
        self.template = self.template.map(|template| template.escaping(specials));
        Chat { escapes, ..self }
    }

    /// Whether there is a template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    fn template(&self) -> Result<&Template, Refusal> {
        self.template.as_ref().ok_or(Refusal::NoTemplate)
    }

    /// A conversation as text.
    pub fn render(&self, conversation: &Conversation, ending: Ending) -> Result<Rendered, Refusal> {
        self.template()?.render(conversation, conversation.messages.len(), ending)
    }

    /// A conversation as tokens. The template prints what begins a text, so nothing is added.
    pub fn encode(&self, conversation: &Conversation, ending: Ending) -> Result<Vec<u32>, Refusal> {
        let Rendered { text, plain, .. } = self.render(conversation, ending)?;
        Ok(self.locate(&text, &plain)?.into_iter().map(|(token, _)| token).collect())
    }

    /// Tokens and their bytes; special tokens inside `plain` are text.
    fn locate(&self, text: &str, plain: &[Range<usize>]) -> Result<Vec<(u32, Range<usize>)>, Refusal> {
        self.locator.encode_around(text, plain).map_err(|problem| Refusal::Tokenizer { problem })
    }

    /// The tokens of a row and which of them are trained.
    pub fn label(&self, row: &Row, learn: Learn) -> Result<Labelled, Refusal> {
        match row {
            Row::Conversation(conversation) => self.conversation(conversation, None, learn),
            Row::Completion { conversation, prompt } => self.conversation(conversation, Some(*prompt), learn),
            Row::Texts { prompt, completion } => {
                let start = if learn == Learn::All { 0 } else { prompt.len() };
                self.plain(&format!("{prompt}{completion}"), start)
            }
            Row::Text(text) => self.plain(text, 0),
        }
    }

    /// One labelled row per message of the assistant, each with what came before it.
    pub fn label_turns(&self, conversation: &Conversation) -> Result<Vec<Labelled>, Refusal> {
        let turn = |last: usize| {
            let messages = conversation.messages[..=last].to_vec();
            let part = Conversation { messages, ..conversation.clone() };
            self.conversation(&part, Some(last), Learn::LastTurn)
        };
        conversation.answers().map(turn).collect()
    }

    /// A text without a template, framed as documents are; trained from byte `start` on.
    fn plain(&self, text: &str, start: usize) -> Result<Labelled, Refusal> {
        let mut out = Labelled { text: text.to_string(), ..Labelled::default() };
        if let Some(bos) = self.frame.bos.filter(|_| self.begins) {
            out.tokens.push(bos);
            out.trained.push(start == 0);
        }
        let all = if self.escapes { Vec::from_iter(std::iter::once(0..text.len())) } else { Vec::new() };
        for (token, range) in self.locate(text, &all)? {
            out.tokens.push(token);
            out.trained.push(range.end > start);
        }
        if let Some(eos) = self.frame.eos.filter(|_| self.ends) {
            out.tokens.push(eos);
            out.trained.push(true);
        }
        Ok(out)
    }

    fn conversation(
        &self,
        conversation: &Conversation,
        prompt: Option<usize>,
        learn: Learn,
    ) -> Result<Labelled, Refusal> {
        let template = self.template()?;
        if conversation.messages.is_empty() {
            return Err(Refusal::Field { field: "messages".into(), problem: "there is no message".into() });
        }
        let rendered = self.render(conversation, Ending::Closed)?;
        let located = self.locate(&rendered.text, &rendered.plain)?;
        let marked = template.is_marked(conversation);
        let learn = match (learn, prompt) {
            (Learn::Assistant, Some(_)) => Learn::Completion,
            (Learn::Assistant, None) if marked => Learn::AssistantMarks,
            (Learn::Assistant, None) => Learn::AssistantPrefix,
            (learn, _) => learn,
        };
        let from = |start: usize| Vec::from_iter(std::iter::once(start..rendered.text.len()));
        let (trained, spans) = match learn {
            Learn::AssistantMarks if !marked => return Err(Refusal::NoMarks),
            Learn::AssistantMarks => (rendered.generated.clone(), Vec::new()),
            Learn::All => (from(0), Vec::new()),
            Learn::Completion => {
                let count = match prompt {
                    Some(count) => count,
                    None => last_answer(conversation)?,
                };
                let before = self.prefix(conversation, count, Ending::Prompt, &rendered.text)?;
                (from(before), Vec::new())
            }
            Learn::Assistant | Learn::AssistantPrefix | Learn::LastTurn => {
                // What comes before a prompt's end may be written differently; it is not trained.
                let first = prompt.filter(|_| learn == Learn::LastTurn).unwrap_or(0);
                let mut spans = self.answers(conversation, first, &rendered.text, &located)?;
                if learn == Learn::LastTurn {
                    spans = spans.pop().into_iter().collect();
                }
                (spans.clone(), spans)
            }
        };
        let overlaps =
            |range: &Range<usize>| trained.iter().any(|s| range.start < s.end && s.start < range.end);
        let trained: Vec<bool> =
            located.iter().map(|(token, range)| overlaps(range) && !self.vision.contains(token)).collect();
        let tokens = located.into_iter().map(|(token, _)| token).collect();
        Ok(Labelled { tokens, trained, spans, text: rendered.text })
    }

    /// Bytes of the first messages as text, which must begin the whole.
    fn prefix(
        &self,
        conversation: &Conversation,
        count: usize,
        ending: Ending,
        whole: &str,
    ) -> Result<usize, Refusal> {
        let part = self.template()?.render(conversation, count, ending)?.text;
        if whole.starts_with(&part) { Ok(part.len()) } else { Err(Refusal::NotPrefix { message: count }) }
    }

    /// What each message of the assistant, from the message `first` on, adds to the conversation before it, up to its last special token: the token
    /// that ends the turn, not the line break after it.
    fn answers(
        &self,
        conversation: &Conversation,
        first: usize,
        whole: &str,
        located: &[(u32, Range<usize>)],
    ) -> Result<Vec<Range<usize>>, Refusal> {
        let mut spans = Vec::new();
        for message in conversation.answers().filter(|&message| message >= first) {
            let start = self.prefix(conversation, message, Ending::Prompt, whole)?;
            let end = self.prefix(conversation, message + 1, Ending::Closed, whole)?;
            if end < start {
                return Err(Refusal::NotPrefix { message });
            }
            let inside = |(token, range): &&(u32, Range<usize>)| {
                self.locator.is_special(*token) && range.start >= start && range.end <= end
            };
            let last = located.iter().rev().find(inside);
            spans.push(start..last.map_or(end, |(_, range)| range.end));
        }
        if spans.is_empty() {
            return Err(Refusal::NoAnswer { problem: "no message has the role `assistant`".into() });
        }
        Ok(spans)
    }
}

/// The number of the last message, which the assistant must say.
fn last_answer(conversation: &Conversation) -> Result<usize, Refusal> {
    let last = conversation.messages.len() - 1;
    if conversation.role(last) == "assistant" {
        return Ok(last);
    }
    let problem = format!("the last message is said by `{}`, not by `assistant`", conversation.role(last));
    Err(Refusal::NoAnswer { problem })
}

/// The variables that every template of a tokenizer gets.
pub(crate) fn token_variables(config: &serde_json::Map<String, serde_json::Value>) -> Vec<(String, Json)> {
    let content = |value: &serde_json::Value| {
        value.as_str().or_else(|| value.get("content")?.as_str()).map(|text| Json::Text(text.to_string()))
    };
    let mut out = Vec::new();
    for name in ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"] {
        out.extend(config.get(name).and_then(content).map(|token| (name.to_string(), token)));
    }
    if let Some(list) = config.get("additional_special_tokens").and_then(|value| value.as_array()) {
        out.push(("additional_special_tokens".into(), Json::List(list.iter().filter_map(content).collect())));
    }
    out
}
