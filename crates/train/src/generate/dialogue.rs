//! A conversation with a model: its chat template, its weights loaded once, and what has been said so far.

use super::{Continuation, Generator, Prepared, Sampling};
use crate::data::chat::{Chat, Clock, Conversation, Ending, Json, Refusal};
use crate::data::pictures::Item;
use crate::error::{Error, Result};
use planaria_comm::alone;
use planaria_nn::models::Network;
use std::path::Path;

/// How a text becomes what a user says.
#[derive(Debug)]
pub(super) struct Asked {
    chat: Chat,
    system: Option<String>,
}

impl Asked {
    /// The template.
    pub(super) fn chat(&self) -> &Chat {
        &self.chat
    }

    pub(super) fn open(generator: &Generator, system: Option<&str>) -> Result<Asked> {
        let chat = Chat::new(&generator.tokenizer, None, Clock::Now)?;
        if !chat.has_template() {
            let hint =
                "a folder with `chat_template.jinja`, or one in its `tokenizer_config.json`".to_string();
            return Err(Error::Value { key: "chat template".into(), found: "none".into(), expected: hint });
        }
        Ok(Asked { chat, system: system.map(str::to_string) })
    }

    /// The tokens that an answer to this text follows.
    pub(super) fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        let system = self.system.iter().map(|text| Json::message("system", text));
        let messages = system.chain([Json::message("user", text)]).collect();
        let conversation = Conversation { messages, ..Conversation::default() };
        self.chat.encode(&conversation, Ending::Prompt).map_err(refused)
    }
}

pub(super) fn refused(refusal: Refusal) -> Error {
    crate::data::Error::Chat { origin: "the conversation".into(), refusal }.into()
}

impl Generator {
    /// Takes every text as what a user says, and answers it: with the folder's chat template, after `system`.
    pub fn asked(self, system: Option<&str>) -> Result<Generator> {
        let asked = Some(Asked::open(&self, system)?.into());
        Ok(Generator { asked, ..self.with_turns_ended() })
    }

    /// A turn ends with the tokenizer's own `eos` too, whatever the configuration lists.
    fn with_turns_ended(mut self) -> Generator {
        let eos = self.tokenizer.frame().eos.filter(|eos| !self.ends.contains(eos));
        self.ends.extend(eos);
        self
    }
}

/// A conversation that continues.
#[derive(Debug)]
pub struct Dialogue {
    generator: Generator,
    model: Box<dyn Network>,
    asked: Asked,
    /// Questions and answers; the system prompt stands in `asked`.
    said: Vec<Json>,
    /// Pictures that the next question shows.
    shown: Vec<Json>,
}

impl Dialogue {
    /// Loads the weights.
    pub fn open(generator: Generator, system: Option<&str>) -> Result<Dialogue> {
        let asked = Asked::open(&generator, system)?;
        let generator = generator.with_turns_ended();
        let model = generator.network(&alone())?;
        Ok(Dialogue { generator, model, asked, said: Vec::new(), shown: Vec::new() })
    }

    /// How tokens are chosen where nothing else is asked for.
    pub fn sampling(&self) -> Sampling {
        self.generator.sampling()
    }

    /// All messages so far.
    pub fn messages(&self) -> Vec<Json> {
        let system = self.asked.system.iter().map(|text| Json::message("system", text));
        system.chain(self.said.iter().cloned()).collect()
    }

    /// Another system prompt, or none. What was said stays.
    pub fn set_system(&mut self, text: Option<&str>) {
        self.asked.system = text.map(str::to_string);
    }

    /// Forgets everything but the system prompt.
    pub fn reset(&mut self) {
        self.said.clear();
        self.shown.clear();
    }

    /// Shows a picture with the next question, in a model that sees. It is read at once, so that a broken one is told now.
    pub fn show(&mut self, file: &Path) -> Result<()> {
        let sight = self.generator.sight()?;
        // What is saved must be found from other folders too.
        let failed = |source| Error::Io { path: file.display().to_string(), source };
        let file = std::path::absolute(file).map_err(failed)?.display().to_string();
        let text = |text: &str| Json::Text(text.to_string());
        let part = Json::Object(vec![("type".into(), text("image")), ("image".into(), text(&file))]);
        let message = Json::Object(vec![("content".into(), Json::List(vec![part.clone()]))]);
        for item in Item::all(&[message], &[], Path::new("")).map_err(refused)? {
            item.measure(&sight.settings, false).map_err(refused)?;
        }
        self.shown.push(part);
        Ok(())
    }

    /// Takes back the last question with its answer; what was asked.
    pub fn undo(&mut self) -> Option<String> {
        self.said.pop()?;
        self.said.pop().map(|question| text_of(&question))
    }

    /// Says something and gives the answer; `each` is given its text as it comes. Where there is no answer, nothing was said.
    pub fn say(&mut self, text: &str, sampling: &Sampling, each: &dyn Fn(&str)) -> Result<Continuation> {
        let question = match self.shown.is_empty() {
            true => Json::message("user", text),
            false => {
                let words = [("type", "text"), ("text", text)];
                let words = words.map(|(key, value)| (key.to_string(), Json::Text(value.to_string())));
                let parts = self.shown.iter().cloned().chain([Json::Object(words.to_vec())]);
                let content = ("content".to_string(), Json::List(parts.collect()));
                Json::Object(vec![("role".into(), Json::Text("user".into())), content])
            }
        };
        let answer = self.ask(question, sampling, each)?;
        self.shown.clear();
        Ok(answer)
    }

    /// Answers the last question again, with what it showed; what was asked, and the new answer. Nothing where nothing was said.
    pub fn retry(
        &mut self,
        sampling: &Sampling,
        each: &dyn Fn(&str),
    ) -> Result<Option<(String, Continuation)>> {
        let Some(start) = self.said.len().checked_sub(2) else { return Ok(None) };
        let before = self.said.split_off(start);
        let text = text_of(&before[0]);
        match self.ask(before[0].clone(), sampling, each) {
            Ok(answer) => Ok(Some((text, answer))),
            Err(error) => {
                self.said.extend(before);
                Err(error)
            }
        }
    }

    fn ask(&mut self, question: Json, sampling: &Sampling, each: &dyn Fn(&str)) -> Result<Continuation> {
        let messages: Vec<Json> = self.messages().into_iter().chain([question.clone()]).collect();
        let shows = |message: &Json| matches!(message.get("content"), Some(Json::List(_)));
        let prepared = if messages.iter().any(shows) {
            let sight = self.generator.sight()?;
            self.generator.prepare_with(&self.asked.chat, &sight, messages, Path::new(""))?
        } else {
            let conversation = Conversation { messages, ..Conversation::default() };
            Prepared::text(self.asked.chat.encode(&conversation, Ending::Prompt).map_err(refused)?)
        };
        let tokens = self.generator.room(prepared.tokens.len(), sampling)?;
        let sampling = Sampling { tokens, ..*sampling };
        let answer = self.generator.continue_prepared(&*self.model, &prepared, &sampling, each)?;
        self.said.extend([question, Json::message("assistant", answer.text.clone())]);
        Ok(answer)
    }
}

/// The words of a message.
fn text_of(message: &Json) -> String {
    match message.get("content") {
        Some(Json::List(parts)) => parts.iter().filter_map(|part| part.get("text")?.as_text()).collect(),
        content => content.and_then(Json::as_text).unwrap_or_default().to_string(),
    }
}
