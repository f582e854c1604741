//! Chat templates: kept, chosen by vote, or named.

use crate::error::{Error, Result, nearest};
use crate::model::Model;
use crate::recipe::Recipe;
use serde_json::Value;

/// Templates that a recipe may name.
const NAMED: [(&str, &str); 5] = [
    ("alpaca", include_str!("templates/alpaca.jinja")),
    ("chatml", include_str!("templates/chatml.jinja")),
    ("exaone", include_str!("templates/exaone.jinja")),
    ("llama3", include_str!("templates/llama3.jinja")),
    ("mistral", include_str!("templates/mistral.jinja")),
];

/// The template that a recipe asks for, given its models; none where it asks for none.
pub(crate) fn chat_template(recipe: &Recipe, models: &[&Model]) -> Result<Option<String>> {
    let Some(asked) = &recipe.chat_template else { return Ok(None) };
    if asked == "auto" {
        let mut votes: Vec<(usize, String)> = Vec::new();
        for model in models {
            let Some(template) = template_of(model)? else { continue };
            match votes.iter_mut().find(|(_, other)| *other == template) {
                Some((count, _)) => *count += 1,
                None => votes.push((1, template)),
            }
        }
        let most = votes.iter().map(|(count, _)| *count).max();
        return Ok(votes.into_iter().find(|(count, _)| Some(*count) == most).map(|(_, template)| template));
    }
    if let Some((_, template)) = NAMED.iter().find(|(name, _)| name == asked) {
        return Ok(Some((*template).to_string()));
    }
    if asked.len() >= 20 && asked.contains('{') {
        return Ok(Some(asked.clone()));
    }
    let near = nearest(asked, NAMED.iter().map(|(name, _)| *name));
    let known: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
    let what = format!(
        "'{asked}' is not a chat_template{near} (known: auto, {}, or the text of one)",
        known.join(", ")
    );
    Err(Error::recipe(recipe.line, what))
}

/// The template of a model: a file of its own, or a field of the tokenizer's configuration.
pub(crate) fn template_of(model: &Model) -> Result<Option<String>> {
    if let Some(text) = model.file("chat_template.jinja")? {
        return Ok(Some(String::from_utf8_lossy(&text).into_owned()));
    }
    let Some(config) = model.json("tokenizer_config.json")? else { return Ok(None) };
    let of_list = |list: &Vec<Value>| {
        let default = list.iter().find(|entry| entry["name"] == "default").or(list.first());
        default.and_then(|entry| entry["template"].as_str()).map(str::to_string)
    };
    Ok(match &config["chat_template"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => of_list(list),
        _ => None,
    })
}
