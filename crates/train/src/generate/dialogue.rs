//! A conversation with a model: its chat template, its weights loaded once, and what has been said so far.

use super::{Continuation, Generator, Sampling};
use crate::data::chat::{Chat, Clock, Conversation, Ending, Json, Refusal};
use crate::error::{Error, Result};
use planaria_comm::alone;
use planaria_nn::models::Network;

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
}

impl Dialogue {
    /// Loads the weights.
    pub fn open(generator: Generator, system: Option<&str>) -> Result<Dialogue> {
        let asked = Asked::open(&generator, system)?;
        let generator = generator.with_turns_ended();
        let model = generator.network(&alone())?;
        Ok(Dialogue { generator, model, asked, said: Vec::new() })
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
    }

    /// Takes back the last question with its answer; what was asked.
    pub fn undo(&mut self) -> Option<String> {
        self.said.pop()?;
        self.said.pop()?.get("content")?.as_text().map(str::to_string)
    }

    /// Says something and gives the answer; `each` is given its text as it comes. Where there is no answer, nothing was said.
    pub fn say(&mut self, text: &str, sampling: &Sampling, each: &dyn Fn(&str)) -> Result<Continuation> {
        let question = Json::message("user", text);
        let messages = self.messages().into_iter().chain([question.clone()]).collect();
        let conversation = Conversation { messages, ..Conversation::default() };
        let tokens = self.asked.chat.encode(&conversation, Ending::Prompt).map_err(refused)?;
        let sampling = Sampling { tokens: self.generator.room(tokens.len(), sampling)?, ..*sampling };
        let answer = self.generator.continue_tokens(&*self.model, tokens, &sampling, each)?;
        self.said.extend([question, Json::message("assistant", answer.text.clone())]);
        Ok(answer)
    }
}
