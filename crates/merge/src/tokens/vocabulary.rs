//! Vocabularies: read from tokenizer files, joined, and written back.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::plan::Models;
use crate::recipe::{Recipe, Reference, RowSource, Vocabulary};
use planaria_data::Tokenizer;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const TOKENIZER: &str = "tokenizer.json";

/// The tokens of a model.
#[derive(Clone, Debug)]
pub(crate) struct Vocab {
    /// The tokenizer as it is stored.
    json: Value,
    /// Ids by token; only those that have a row in the model.
    pub(crate) ids: BTreeMap<String, usize>,
    /// Ordinary tokens by id.
    ordinary: BTreeMap<usize, String>,
    /// Added tokens with their settings by id.
    added: BTreeMap<usize, Value>,
}

impl Vocab {
    /// The tokenizer of a model, without tokens that have no row in it.
    pub(crate) fn of(model: &Model) -> Result<Vocab> {
        Vocab::below(model, model.vocab_size().unwrap_or(usize::MAX))
    }

    /// The tokens of a model with ids below a limit.
    fn below(model: &Model, limit: usize) -> Result<Vocab> {
        let json = match model.json(TOKENIZER)? {
            Some(json) => json,
            None => converted(model)?,
        };
        let mut vocab =
            Vocab { json, ids: BTreeMap::new(), ordinary: BTreeMap::new(), added: BTreeMap::new() };
        let mut ordinary: Vec<(String, usize)> = Vec::new();
        match &vocab.json["model"]["vocab"] {
            Value::Object(map) => {
                ordinary.extend(
                    map.iter().filter_map(|(token, id)| Some((token.clone(), id.as_u64()? as usize))),
                );
            }
            Value::Array(list) => ordinary.extend(
                list.iter().enumerate().filter_map(|(id, entry)| Some((entry[0].as_str()?.to_string(), id))),
            ),
            _ => return Err(Error::model(&model.name, format!("{TOKENIZER} has no vocabulary"))),
        }
        for (token, id) in ordinary.into_iter().filter(|(_, id)| *id < limit) {
            vocab.ordinary.insert(id, token.clone());
            vocab.ids.insert(token, id);
        }
        for entry in vocab.json["added_tokens"].as_array().into_iter().flatten() {
            let (Some(content), Some(id)) = (entry["content"].as_str(), entry["id"].as_u64()) else {
                continue;
            };
            if (id as usize) < limit {
                vocab.added.insert(id as usize, entry.clone());
                vocab.ids.insert(content.to_string(), id as usize);
            }
        }
        Ok(vocab)
    }

    fn next_id(&self) -> usize {
        self.ids.values().max().map_or(0, |id| id + 1)
    }

    /// Adds a token that is not there yet; settings without an id.
    fn add(&mut self, token: &str, settings: &Value) {
        if self.ids.contains_key(token) {
            return;
        }
        let id = self.next_id();
        let mut entry = settings.clone();
        (entry["id"], entry["content"]) = (json!(id), json!(token));
        self.ids.insert(token.to_string(), id);
        self.added.insert(id, entry);
    }

    /// The tokenizer as a file.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = self.json.clone();
        json["added_tokens"] = Value::Array(self.added.values().cloned().collect());
        let ids = &self.ids;
        match &mut json["model"]["vocab"] {
            Value::Object(map) => map.retain(|token, _| ids.contains_key(token)),
            Value::Array(list) => list.truncate(self.ordinary.keys().max().map_or(0, |id| id + 1)),
            _ => {}
        }
        let mut text = serde_json::to_vec_pretty(&json).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

/// A tokenizer of another form as the one file that can be added to.
fn converted(model: &Model) -> Result<Value> {
    let mut files = BTreeMap::new();
    for name in Tokenizer::file_names() {
        if let Some(bytes) = model.file(name)? {
            files.insert((*name).to_string(), bytes);
        }
    }
    let missing = || Error::model(&model.name, "it has no tokenizer, and the recipe asks for one");
    if files.is_empty() {
        return Err(missing());
    }
    let made = Tokenizer::from_files(&files).and_then(|tokenizer| tokenizer.files());
    let made = made.map_err(|error| Error::model(&model.name, error.to_string()))?;
    let text = made.get(TOKENIZER).ok_or_else(missing)?;
    serde_json::from_slice(text)
        .map_err(|error| Error::model(&model.name, format!("{TOKENIZER} is not JSON: {error}")))
}

/// Settings of a token that says nothing about itself.
fn plain_settings() -> Value {
    json!({ "id": 0, "content": "", "single_word": false, "lstrip": false, "rstrip": false, "normalized": true, "special": false })
}

/// The vocabularies of a merge and the one they become.
#[derive(Clone, Debug)]
pub(crate) struct Merging {
    /// Of every model that takes part, in the order of the recipe.
    pub(crate) models: Vec<(Reference, Arc<Vocab>)>,
    /// That of the result.
    pub(crate) result: Vocab,
    /// The model that it begins with.
    pub(crate) donor: Reference,
}

impl Merging {
    /// Reads the tokenizers and makes one of them.
    pub(crate) fn new(recipe: &Recipe, models: &Models) -> Result<Option<Merging>> {
        let (Some(section), Some(first)) = (&recipe.tokenizer, recipe.donor()) else { return Ok(None) };
        let mut vocabs: Vec<(Reference, Arc<Vocab>)> = Vec::new();
        for reference in recipe.all_models() {
            let model = models.get(reference).ok_or_else(|| Error::model(reference, "it was not opened"))?;
            let vocab = Vocab::of(model).map_err(|error| error.at_line(recipe.line_of(reference)))?;
            vocabs.push((reference.clone(), Arc::new(vocab)));
        }
        let donor = match &section.source {
            Vocabulary::Model(model) => model.clone(),
            _ => first.clone(),
        };
        let find = |reference: &Reference| {
            vocabs.iter().find(|(other, _)| other == reference).map(|(_, vocab)| vocab)
        };
        let start =
            find(&donor).ok_or_else(|| Error::recipe(section.line, format!("{donor} has no tokenizer")))?;
        let mut result = match (&section.source, models.get(&donor)) {
            // A tokenizer that is named is taken as it is, with tokens that its own model has no rows for.
            (Vocabulary::Model(_), Some(model)) => Vocab::below(model, usize::MAX)?,
            _ => Vocab::clone(start),
        };
        if section.source == Vocabulary::Union {
            let inputs = recipe.models();
            let others: Vec<&Arc<Vocab>> = inputs.into_iter().filter_map(find).collect();
            for vocab in &others {
                let added = |token: &str| vocab.added.values().any(|entry| entry["content"] == token);
                for token in vocab.ordinary.values().filter(|token| !added(token)) {
                    result.add(token, &plain_settings());
                }
            }
            for vocab in &others {
                for entry in vocab.added.values() {
                    result.add(entry["content"].as_str().unwrap_or_default(), entry);
                }
            }
        }
        for token in &section.tokens {
            result.add(&token.text, &plain_settings());
        }
        let merging = Merging { result, donor, models: vocabs.clone() };
        merging.check_rows(recipe)?;
        Ok(Some(merging))
    }

    pub(crate) fn vocab(&self, reference: &Reference) -> Option<&Vocab> {
        self.models.iter().find(|(other, _)| other == reference).map(|(_, vocab)| &**vocab)
    }

    /// Rows that the recipe names must be there.
    fn check_rows(&self, recipe: &Recipe) -> Result<()> {
        for token in recipe.tokenizer.iter().flat_map(|section| &section.tokens) {
            let (model, wanted) = match &token.source {
                Some(RowSource::Model(model)) => (model, &token.text),
                Some(RowSource::Token(model, wanted)) => (model, wanted),
                _ => continue,
            };
            let vocab = self.vocab(model);
            if vocab.is_none_or(|vocab| !vocab.ids.contains_key(wanted)) {
                let known = vocab.map(|vocab| vocab.ids.keys().map(String::as_str).collect::<Vec<_>>());
                let near = crate::error::nearest(wanted, known.unwrap_or_default());
                return Err(Error::recipe(token.line, format!("{model} has no token '{wanted}'{near}")));
            }
        }
        Ok(())
    }
}
