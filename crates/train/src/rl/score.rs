//! A model as a judge: the number that its head gives the last token of a response.

use super::Still;
use super::reference::label_values;
use crate::config::Config;
use crate::data::Tokenizer;
use crate::data::chat::{Chat, Clock, Conversation, Ending, Json};
use crate::error::{Error, Result};
use crate::objective::Input;
use crate::pretrained::Pretrained;
use planaria_array::DType;
use planaria_nn::models::Models;
use planaria_tensor::{Tensor, no_grad};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// Whether a `config.json` is of a model with a head of values.
pub(crate) fn is_valued(config: &Map<String, Value>) -> bool {
    let named = config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
    named.is_some_and(|name| name.ends_with("ForSequenceClassification"))
}

/// A response as a model is asked for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scored<'a> {
    pub(crate) prompt: &'a [i64],
    /// With the token that ended it.
    pub(crate) response: &'a [i64],
    /// The same as texts, without it.
    pub(crate) texts: [&'a str; 2],
    pub(crate) finished: bool,
}

/// A reward model.
#[derive(Clone, Debug)]
pub(crate) struct ScoreModel {
    still: Still,
    tokens: usize,
    reach: usize,
    /// Its tokenizer, where the folder has one, with the chat template that this may have.
    own: Option<Arc<(Tokenizer, Chat)>>,
}

impl ScoreModel {
    pub(crate) fn open(path: &Path, config: &Config) -> Result<ScoreModel> {
        let refuse = |found: String, expected: &str| {
            Err(Error::Value { key: "rl.reward.path".into(), found, expected: expected.into() })
        };
        let folder = Pretrained::find(path)?;
        let json = folder.model_config()?;
        if !is_valued(&json) {
            let found = format!("'{}', a model without a head of values", path.display());
            return refuse(found, "a `*ForSequenceClassification` folder of one label");
        }
        let model = Models::default().open(json.into())?;
        let own = folder.tokenizer()?.map(|tokenizer| -> Result<_> {
            let chat = Chat::new(&tokenizer, None, Clock::Now)?;
            Ok(Arc::new((tokenizer, chat)))
        });
        let still = Still::new(path, config);
        Ok(ScoreModel { still, tokens: model.vocab_size(), reach: model.reach(), own: own.transpose()? })
    }

    /// A number for each response; none for one without tokens. `policy` made the tokens.
    pub(crate) fn score(&self, all: &[Scored<'_>], policy: &Tokenizer) -> Result<Vec<Option<f64>>> {
        let foreign = match &self.own {
            Some(own) if own.0.fingerprint()? != policy.fingerprint()? => Some(&**own),
            _ => None,
        };
        let mut rows = Vec::new();
        for one in all.iter().filter(|one| !one.response.is_empty()) {
            let row = match foreign {
                None => [one.prompt, one.response].concat(),
                Some((tokenizer, chat)) => again(one, tokenizer, chat)?,
            };
            if row.len() > self.reach {
                let (found, most) = (row.len(), self.reach);
                return Err(Error::Run {
                    what: format!("{found} tokens are more than the reward model's {most} positions"),
                });
            }
            if let Some(id) = row.iter().find(|&&id| id as usize >= self.tokens) {
                let what = format!("token {id} is not one of the reward model's {}", self.tokens);
                return Err(Error::Run { what });
            }
            rows.push(row);
        }
        let mut scores = self.forward(&rows)?.into_iter();
        let number = |one: &Scored<'_>| if one.response.is_empty() { None } else { scores.next() };
        let scores: Vec<Option<f64>> = all.iter().map(number).collect();
        match scores.iter().flatten().find(|score| !score.is_finite()) {
            Some(score) => Err(Error::Run { what: format!("the reward model gave {score}") }),
            None => Ok(scores),
        }
    }

    /// What the head gives the last token of each row. Rows are filled up behind, where nothing of theirs sees it.
    fn forward(&self, rows: &[Vec<i64>]) -> Result<Vec<f64>> {
        let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
        if longest == 0 {
            return Ok(Vec::new());
        }
        let mut tokens = vec![0; rows.len() * longest];
        for (to, row) in tokens.chunks_mut(longest).zip(rows) {
            to[..row.len()].copy_from_slice(row);
        }
        let tokens = Tensor::from_slice(&tokens, &[rows.len(), longest])?;
        let network = self.still.network()?;
        let values = no_grad(|| label_values(&*network, Input { tokens, documents: None }))?;
        let values = values.local().cast(DType::F64)?.contiguous()?.to_vec::<f64>()?;
        let last = |(number, row): (usize, &Vec<i64>)| values[number * longest + row.len() - 1];
        Ok(rows.iter().enumerate().map(last).collect())
    }
}

/// A prompt with its response in the tokens of another model: as a conversation where it has a template, else as one text.
fn again(one: &Scored<'_>, tokenizer: &Tokenizer, chat: &Chat) -> Result<Vec<i64>> {
    let [prompt, response] = one.texts;
    let mut ids = if chat.has_template() {
        let messages = vec![Json::message("user", prompt), Json::message("assistant", response)];
        let conversation = Conversation { messages, ..Conversation::default() };
        let encoded = chat.encode(&conversation, Ending::Closed);
        encoded.map_err(|refusal| crate::data::Error::Chat { origin: "a response".into(), refusal })?
    } else {
        let mut ids = tokenizer.encode_prompt(&format!("{prompt}{response}"))?;
        ids.extend(tokenizer.frame().eos.filter(|_| one.finished));
        ids
    };
    if ids.is_empty() {
        ids.extend(tokenizer.frame().eos.or(tokenizer.frame().bos));
    }
    Ok(ids.into_iter().map(i64::from).collect())
}
