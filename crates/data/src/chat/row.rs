//! One line of a file as what is trained on: the forms of rows that people have, recognised by their fields.

use super::error::Refusal;
use super::json::Json;
use super::marks;
use crate::pictures::Item;
use std::path::Path;

/// Messages, tools, and what else the template is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Objects with at least a `role`.
    pub messages: Vec<Json>,
    /// Descriptions of the functions that may be called.
    pub tools: Option<Json>,
    /// Other variables of the template, by name.
    pub variables: Vec<(String, Json)>,
}

/// What one line holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// A conversation.
    Conversation(Conversation),
    /// A conversation of which the messages from `prompt` on are the completion.
    Completion {
        /// All messages.
        conversation: Conversation,
        /// How many of them are the prompt.
        prompt: usize,
    },
    /// Two texts, without a template.
    Texts {
        /// What comes first.
        prompt: String,
        /// What is trained.
        completion: String,
    },
    /// A text, without a template.
    Text(String),
}

/// The form a row was written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// `messages`.
    Messages,
    /// `prompt` and `completion`.
    Completion,
    /// `conversations` of `from` and `value`.
    ShareGpt,
    /// `instruction`, `input` and `output`.
    Alpaca,
    /// `text`.
    Text,
}

impl Form {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Form::Messages => "messages",
            Form::Completion => "prompt and completion",
            Form::ShareGpt => "ShareGPT",
            Form::Alpaca => "Alpaca",
            Form::Text => "text",
        }
    }
}

type Fields = Vec<(String, Json)>;

impl Row {
    /// Reads a line.
    pub fn parse(line: &str) -> Result<(Row, Form), Refusal> {
        let form = |problem: String| Refusal::Form { problem };
        let Json::Object(fields) = Json::parse(line).map_err(|e| form(format!("not valid JSON: {e}")))?
        else {
            return Err(form("the line is not a JSON object".into()));
        };
        let has = |name: &str| fields.iter().any(|(key, _)| key == name);
        if has("messages") {
            Ok((conversation(fields, "messages", messages)?, Form::Messages))
        } else if has("conversations") {
            Ok((conversation(fields, "conversations", share_gpt)?, Form::ShareGpt))
        } else if has("prompt") && has("completion") {
            Ok((completion(fields)?, Form::Completion))
        } else if has("instruction") && has("output") {
            Ok((alpaca(fields)?, Form::Alpaca))
        } else if has("text") {
            let mut fields = fields;
            Ok((Row::Text(text(&take(&mut fields, "text"), "text")?), Form::Text))
        } else {
            let keys: Vec<String> = fields.iter().take(8).map(|(key, _)| format!("`{key}`")).collect();
            Err(form(format!(
                "the row has {}, but none of `messages`, `prompt` with `completion`, `conversations`, \
                 `instruction` with `output`, `text`",
                if keys.is_empty() { "no field".into() } else { keys.join(", ") }
            )))
        }
    }
}

impl Row {
    fn conversation(&self) -> Option<&Conversation> {
        match self {
            Row::Conversation(conversation) | Row::Completion { conversation, .. } => Some(conversation),
            Row::Texts { .. } | Row::Text(_) => None,
        }
    }

    /// Refuses images and videos by name: a model that reads text alone has nothing to put in their place.
    pub(super) fn refuse_vision(&self) -> Result<(), Refusal> {
        for (i, message) in self.conversation().iter().flat_map(|c| &c.messages).enumerate() {
            let parts = message.get("content").and_then(Json::as_list).unwrap_or(&[]);
            for (j, part) in parts.iter().enumerate() {
                if let Some(kind) = part.get("type").and_then(Json::as_text).filter(|kind| *kind != "text") {
                    let field = format!("messages[{i}].content[{j}]");
                    return Err(Refusal::Vision { field, kind: kind.to_string() });
                }
            }
        }
        Ok(())
    }

    /// What the messages show, in files relative to a folder.
    pub(super) fn shown(&self, folder: &Path) -> Result<Vec<Item>, Refusal> {
        let Some(conversation) = self.conversation() else { return Ok(Vec::new()) };
        Item::all(&conversation.messages, &conversation.variables, folder)
    }
}

impl Conversation {
    /// Of checked messages.
    pub fn new(messages: Vec<Json>) -> Result<Conversation, Refusal> {
        let messages = self::messages(Json::List(messages), "messages")?;
        Ok(Conversation { messages, ..Conversation::default() })
    }

    /// The role of a message.
    pub fn role(&self, message: usize) -> &str {
        self.messages[message].get("role").and_then(Json::as_text).unwrap_or_default()
    }

    /// The numbers of the assistant's messages.
    pub fn answers(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.messages.len()).filter(|&message| self.role(message) == "assistant")
    }

    /// Refuses the characters that generation blocks are marked with.
    pub(super) fn refuse_marks(&self) -> Result<(), Refusal> {
        let mut found = false;
        let mut look = |text: &str| found |= marks::is_marked(text);
        self.messages.iter().chain(&self.tools).for_each(|value| value.each_text(&mut look));
        self.variables.iter().for_each(|(_, value)| value.each_text(&mut look));
        if !found {
            return Ok(());
        }
        let problem = "it has one of the characters U+FDD0 to U+FDD3, which are reserved".to_string();
        Err(Refusal::Field { field: "messages".into(), problem })
    }
}

fn wrong(field: &str, expected: &str, found: &Json) -> Refusal {
    Refusal::Field { field: field.into(), problem: format!("{expected} is expected, found {}", found.kind()) }
}

fn take(fields: &mut Fields, name: &str) -> Json {
    match fields.iter().position(|(key, _)| key == name) {
        Some(place) => fields.remove(place).1,
        None => Json::Null,
    }
}

fn text(value: &Json, field: &str) -> Result<String, Refusal> {
    value.as_text().map(str::to_string).ok_or_else(|| wrong(field, "a string", value))
}

/// A row with a list of messages under one name.
fn conversation(
    mut fields: Fields,
    name: &str,
    read: fn(Json, &str) -> Result<Vec<Json>, Refusal>,
) -> Result<Row, Refusal> {
    let mut messages = read(take(&mut fields, name), name)?;
    let is_share_gpt = name == "conversations";
    if let Some(system) =
        take(&mut fields, "system").as_text().filter(|text| is_share_gpt && !text.is_empty())
    {
        messages.insert(0, Json::message("system", system));
    }
    let tools = tools(&mut fields)?;
    Ok(Row::Conversation(Conversation { messages, tools, variables: fields }))
}

/// A list, or a JSON text of one; nothing where it is empty.
fn tools(fields: &mut Fields) -> Result<Option<Json>, Refusal> {
    let mut value = take(fields, "tools");
    if let Some(text) = value.as_text() {
        value = if text.trim().is_empty() {
            Json::Null
        } else {
            let bad = |problem| Refusal::Field {
                field: "tools".into(),
                problem: format!("not valid JSON: {problem}"),
            };
            Json::parse(text).map_err(bad)?
        };
    }
    match value {
        Json::Null => Ok(None),
        Json::List(list) => Ok((!list.is_empty()).then_some(Json::List(list))),
        other => Err(wrong("tools", "a list", &other)),
    }
}

/// Checks messages; arguments of calls that are JSON texts become what they hold.
fn messages(value: Json, name: &str) -> Result<Vec<Json>, Refusal> {
    let Json::List(mut list) = value else { return Err(wrong(name, "a list of messages", &value)) };
    if list.is_empty() {
        return Err(Refusal::Field { field: name.into(), problem: "there is no message".into() });
    }
    for (i, message) in list.iter_mut().enumerate() {
        let at = format!("{name}[{i}]");
        let Json::Object(fields) = message else { return Err(wrong(&at, "an object", message)) };
        let role = fields.iter().find(|(key, _)| key == "role").map_or(&Json::Null, |(_, role)| role);
        if role.as_text().is_none_or(str::is_empty) {
            return Err(wrong(&format!("{at}.role"), "a string", role));
        }
        for (key, value) in fields {
            match key.as_str() {
                "content" => content(value, &format!("{at}.content"))?,
                "tool_calls" => calls(value, &format!("{at}.tool_calls"))?,
                _ => {}
            }
        }
    }
    Ok(list)
}

/// A text, nothing, or parts of a known type.
fn content(value: &Json, at: &str) -> Result<(), Refusal> {
    match value {
        Json::Null | Json::Text(_) => Ok(()),
        Json::List(parts) => {
            for (i, part) in parts.iter().enumerate() {
                let at = format!("{at}[{i}]");
                match part.get("type").and_then(Json::as_text) {
                    Some("text") => {
                        text(part.get("text").unwrap_or(&Json::Null), &format!("{at}.text")).map(drop)?
                    }
                    Some("image" | "image_url" | "video") => {}
                    Some(other) => {
                        let problem = format!("'{other}' is not one of text, image, video");
                        return Err(Refusal::Field { field: format!("{at}.type"), problem });
                    }
                    None => {
                        return Err(wrong(
                            &format!("{at}.type"),
                            "a string",
                            part.get("type").unwrap_or(part),
                        ));
                    }
                }
            }
            Ok(())
        }
        other => Err(wrong(at, "a string, null or a list of parts", other)),
    }
}

fn calls(value: &mut Json, at: &str) -> Result<(), Refusal> {
    let list = match value {
        Json::Null => return Ok(()),
        Json::List(list) => list,
        other => return Err(wrong(at, "a list of calls", other)),
    };
    for (i, call) in list.iter_mut().enumerate() {
        let Json::Object(fields) = call else { return Err(wrong(&format!("{at}[{i}]"), "an object", call)) };
        for (key, value) in fields {
            match (key.as_str(), value) {
                ("arguments", arguments) => parse_text(arguments),
                ("function", Json::Object(inner)) => {
                    inner
                        .iter_mut()
                        .filter(|(key, _)| key == "arguments")
                        .for_each(|(_, value)| parse_text(value));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// A text that is JSON becomes what it says; another one stays.
fn parse_text(value: &mut Json) {
    if let Some(parsed) = value.as_text().and_then(|text| Json::parse(text).ok()) {
        *value = parsed;
    }
}

fn share_gpt(value: Json, name: &str) -> Result<Vec<Json>, Refusal> {
    let Json::List(list) = value else { return Err(wrong(name, "a list of messages", &value)) };
    let mut out = Vec::with_capacity(list.len());
    for (i, item) in list.into_iter().enumerate() {
        // Some files of this form have messages already.
        if item.get("role").is_some() {
            out.push(item);
            continue;
        }
        let at = |field: &str| format!("{name}[{i}].{field}");
        let from = text(item.get("from").unwrap_or(&Json::Null), &at("from"))?;
        let value = text(item.get("value").unwrap_or(&Json::Null), &at("value"))?;
        out.push(match from.as_str() {
            "human" | "user" => Json::message("user", value),
            "gpt" | "assistant" | "chatgpt" | "bing" | "bard" => Json::message("assistant", value),
            "system" => Json::message("system", value),
            "observation" | "tool" | "function_response" => Json::message("tool", value),
            "function_call" => call(&value, &at("value"))?,
            other => {
                let problem =
                    format!("'{other}' is not one of human, gpt, system, function_call, observation");
                return Err(Refusal::Field { field: at("from"), problem });
            }
        });
    }
    messages(Json::List(out), name)
}

/// A message of the assistant that calls one or several functions.
fn call(value: &str, at: &str) -> Result<Json, Refusal> {
    let bad = |problem| Refusal::Field {
        field: at.into(),
        problem: format!("a call is not valid JSON: {problem}"),
    };
    let calls = match Json::parse(value).map_err(bad)? {
        Json::List(list) => list,
        other => vec![other],
    };
    let entry = |key: &str, value: Json| (key.to_string(), value);
    let function = |call: Json| match call.get("function") {
        Some(_) => call,
        None => Json::Object(vec![entry("type", Json::Text("function".into())), entry("function", call)]),
    };
    let calls = Json::List(calls.into_iter().map(function).collect());
    let mut message =
        vec![entry("role", Json::Text("assistant".into())), entry("content", Json::Text(String::new()))];
    message.push(entry("tool_calls", calls));
    Ok(Json::Object(message))
}

/// `prompt` and `completion`: two texts, or messages, or one of each.
fn completion(mut fields: Fields) -> Result<Row, Refusal> {
    let (prompt, completion) = (take(&mut fields, "prompt"), take(&mut fields, "completion"));
    if let (Some(prompt), Some(completion)) = (prompt.as_text(), completion.as_text()) {
        return Ok(Row::Texts { prompt: prompt.into(), completion: completion.into() });
    }
    let part = |value: Json, name: &str, role: &str| match value.as_text() {
        Some(text) => Ok(vec![Json::message(role, text)]),
        None => messages(value, name),
    };
    let mut all = part(prompt, "prompt", "user")?;
    let count = all.len();
    all.extend(part(completion, "completion", "assistant")?);
    let tools = tools(&mut fields)?;
    Ok(Row::Completion {
        conversation: Conversation { messages: all, tools, variables: fields },
        prompt: count,
    })
}

/// `instruction`, perhaps with an `input` below it, and `output`; earlier turns in `history`.
fn alpaca(mut fields: Fields) -> Result<Row, Refusal> {
    let mut messages = Vec::new();
    if let Some(system) = take(&mut fields, "system").as_text().filter(|text| !text.is_empty()) {
        messages.push(Json::message("system", system));
    }
    if let Json::List(turns) = take(&mut fields, "history") {
        for (i, turn) in turns.iter().enumerate() {
            let at = format!("history[{i}]");
            let [user, assistant] = turn.as_list().unwrap_or(&[]) else {
                return Err(wrong(&at, "a list of two strings", turn));
            };
            messages.push(Json::message("user", text(user, &at)?));
            messages.push(Json::message("assistant", text(assistant, &at)?));
        }
    }
    let mut question = text(&take(&mut fields, "instruction"), "instruction")?;
    match take(&mut fields, "input") {
        Json::Null => {}
        Json::Text(input) if input.is_empty() => {}
        input => question = format!("{question}\n{}", text(&input, "input")?),
    }
    messages.push(Json::message("user", question));
    messages.push(Json::message("assistant", text(&take(&mut fields, "output"), "output")?));
    let tools = tools(&mut fields)?;
    Ok(Row::Conversation(Conversation { messages, tools, variables: fields }))
}
