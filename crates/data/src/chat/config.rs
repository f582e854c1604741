//! `[data.chat]`: how conversations become samples.

use super::clock::Clock;
use super::fit::Overlong;
use super::labels::{Chat, Learn};
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::PathBuf;

/// How rows share samples. They never see each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PackRows {
    /// One row a sample; the rest is padding.
    #[default]
    None,
    /// As few samples as best fit, longest first, finds.
    BestFit,
    /// One after the other, cut wherever a sample is full.
    Wrapped,
}

/// What becomes of a row no token of which is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Untrained {
    /// It is an error.
    #[default]
    Refuse,
    /// It is left out and counted.
    Drop,
}

/// What is believed of pictures when a run begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pictures {
    /// Nothing: each is decoded once, so that a broken one is refused before the first step.
    #[default]
    Check,
    /// The sizes that their first bytes tell. A broken one ends the run when it is its turn.
    Trust,
}

/// `[data.chat]` of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct Config {
    /// A file with a chat template, instead of the one that comes with the tokenizer.
    pub template: Option<PathBuf>,
    /// What is learnt of a conversation.
    pub learn: Learn,
    /// What becomes of rows longer than `data.sequence`.
    pub overlong: Overlong,
    /// How rows share samples.
    pub packing: PackRows,
    /// What becomes of rows no token of which is trained.
    pub untrained: Untrained,
    /// Every answer becomes a row of its own, with the messages before it: for templates that write earlier answers differently.
    pub split_turns: bool,
    /// Rows without a template, `prompt` with `completion` and `text`, end with the tokenizer's `eos`.
    pub append_eos: bool,
    /// Special tokens that contents spell out are text like any other, instead of those tokens: no message can end itself.
    pub escape_specials: bool,
    /// What is believed of pictures when a run begins.
    pub pictures: Pictures,
    /// The day it is for templates that ask, `2026-11-16`. Without it they are refused: the data would change from day to day.
    pub date: Option<String>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            template: None,
            learn: Learn::default(),
            overlong: Overlong::default(),
            packing: PackRows::default(),
            untrained: Untrained::default(),
            split_turns: false,
            append_eos: true,
            escape_specials: false,
            pictures: Pictures::default(),
            date: None,
        }
    }
}

impl Config {
    /// What needs no file.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse =
            |key, value: String, problem: &str| Err(Error::Setting { key, value, problem: problem.into() });
        if let Some(date) = self.date.as_ref().filter(|date| Clock::at_date(date).is_none()) {
            return refuse("chat.date", format!("\"{date}\""), "a day such as 2026-11-16 is expected");
        }
        if self.packing == PackRows::Wrapped && self.overlong != Overlong::KeepStart {
            let problem = "wrapped rows are cut wherever a sample is full; leave it out";
            return refuse(
                "chat.overlong",
                serde_json::to_string(&self.overlong).unwrap_or_default(),
                problem,
            );
        }
        Ok(())
    }

    /// The template that is named, as text.
    pub fn read_template(&self) -> Result<Option<String>> {
        let read = |path: &PathBuf| fs::read_to_string(path).map_err(Error::io("read", path));
        self.template.as_ref().map(read).transpose()
    }

    /// The tokenizer with its template, or with the one that is named here.
    pub fn open(&self, tokenizer: &Tokenizer) -> Result<Chat> {
        let clock = self.date.as_deref().and_then(Clock::at_date).unwrap_or(Clock::Refused);
        let chat = Chat::new(tokenizer, self.read_template()?.as_deref(), clock)?;
        Ok(chat.with_eos(self.append_eos).escaping_specials(self.escape_specials))
    }
}
