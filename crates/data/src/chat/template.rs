//! Chat templates: where they are found, and how a conversation becomes text.

use super::clock::{Clock, strftime};
use super::error::Refusal;
use super::json::Json;
use super::marks::{self, TakenOut};
use super::python;
use super::row::Conversation;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};
use serde_json::Value as Plain;
use std::collections::BTreeMap;
use std::ops::Range;

/// Steps that one rendering may take: a long conversation needs thousands.
const FUEL: u64 = 10_000_000;
/// The template of conversations, and the one of those with tools where there are two.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// The files that may hold a template, besides `tokenizer_config.json`.
pub(crate) const FILES: [&str; 2] = ["chat_template.jinja", "chat_template.json"];

/// Templates as they were found, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found(BTreeMap<String, String>);

impl Found {
    /// One template, whatever the conversation.
    pub(crate) fn one(template: &str) -> Found {
        Found([(DEFAULT.to_string(), template.to_string())].into())
    }

    /// The templates among the files of a folder. `config` is its `tokenizer_config.json`.
    pub(crate) fn among(
        files: &BTreeMap<String, Vec<u8>>,
        config: &serde_json::Map<String, Plain>,
    ) -> Result<Found, String> {
        let [jinja, json] = FILES;
        if let Some(bytes) = files.get(jinja) {
            let text = str::from_utf8(bytes).map_err(|error| format!("{jinja}: {error}"))?;
            return Ok(Found::one(text));
        }
        if let Some(bytes) = files.get(json) {
            let read: Plain = serde_json::from_slice(bytes).map_err(|error| format!("{json}: {error}"))?;
            return Found::of(read.get("chat_template").unwrap_or(&Plain::Null), json);
        }
        Found::of(config.get("chat_template").unwrap_or(&Plain::Null), "tokenizer_config.json")
    }

    /// A text, a list of named ones, or nothing.
    fn of(value: &Plain, file: &str) -> Result<Found, String> {
        let wrong = || format!("{file}: `chat_template` is neither a text nor a list of named texts");
        match value {
            Plain::Null => Ok(Found::default()),
            Plain::String(text) => Ok(Found::one(text)),
            Plain::Array(list) => {
                let entry = |item: &Plain| {
                    let part = |key: &str| item.get(key)?.as_str().map(str::to_string);
                    Some((part("name")?, part("template")?))
                };
                list.iter().map(|item| entry(item).ok_or_else(wrong)).collect::<Result<_, _>>().map(Found)
            }
            _ => Err(wrong()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What follows the last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing.
    Closed,
    /// The beginning of the assistant's next message: what a model is prompted with.
    Prompt,
}

/// A conversation as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Bytes that the template printed inside its generation blocks.
    pub generated: Vec<Range<usize>>,
    /// Bytes of special tokens that contents spell out, where these are to be text like any other.
    pub plain: Vec<Range<usize>>,
}

/// The templates of a model, ready to render.
pub(super) struct Template {
    environment: Environment<'static>,
    marked: BTreeMap<String, bool>,
    /// What every rendering gets: the special tokens.
    variables: Vec<(String, Value)>,
    /// Special tokens that contents may not spell out.
    escaped: Vec<String>,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").field("marked", &self.marked).finish_non_exhaustive()
    }
}

impl Template {
    /// Compiles templates; `variables` are those of the tokenizer.
    pub(super) fn compile(
        found: &Found,
        variables: impl IntoIterator<Item = (String, Json)>,
        clock: Clock,
    ) -> Result<Template, Refusal> {
        let mut environment = environment(clock)?;
        let mut marked = BTreeMap::new();
        for (name, source) in &found.0 {
            let (source, has) = marks::rewrite(source);
            environment.add_template_owned(name.clone(), source).map_err(|error| refuse(&error))?;
            marked.insert(name.clone(), has);
        }
        if !marked.contains_key(DEFAULT) {
            let names: Vec<&str> = marked.keys().map(String::as_str).collect();
            let problem = format!("none of its templates ({}) is called '{DEFAULT}'", names.join(", "));
            return Err(Refusal::Template { problem });
        }
        let variables = variables.into_iter().map(|(name, value)| (name, value.to_value())).collect();
        Ok(Template { environment, marked, variables, escaped: Vec::new() })
    }

    /// The same, with these tokens as plain text where contents spell them out.
    pub(super) fn escaping(self, specials: Vec<String>) -> Template {
        Template { escaped: specials.into_iter().filter(|token| !token.is_empty()).collect(), ..self }
    }

    /// Which template a conversation takes.
    fn name(&self, conversation: &Conversation) -> &'static str {
        let tools = conversation.tools.is_some() && self.marked.contains_key(TOOL_USE);
        if tools { TOOL_USE } else { DEFAULT }
    }

    /// Whether the template of this conversation says by itself what the assistant wrote.
    pub(super) fn is_marked(&self, conversation: &Conversation) -> bool {
        self.marked[self.name(conversation)]
    }

    /// The first `count` messages of a conversation as text.
    pub(super) fn render(
        &self,
        conversation: &Conversation,
        count: usize,
        ending: Ending,
    ) -> Result<Rendered, Refusal> {
        let name = self.name(conversation);
        let mut variables = self.variables.clone();
        variables.push(("add_generation_prompt".into(), (ending == Ending::Prompt).into()));
        variables.push(("documents".into(), ().into()));
        let tools = conversation.tools.as_ref().map_or(Value::from(()), Json::to_value);
        variables.push(("tools".into(), tools));
        variables.extend(conversation.variables.iter().map(|(name, value)| (name.clone(), value.to_value())));
        let escape = |message: &Json| escaped(message, &self.escaped).to_value();
        let messages: Value = conversation.messages[..count].iter().map(escape).collect();
        variables.push(("messages".into(), messages));
        let marked = self.marked[name] || !self.escaped.is_empty();
        if marked {
            conversation.refuse_marks()?;
        }
        let template = self.environment.get_template(name).map_err(|error| refuse(&error))?;
        let text = template.render(Value::from_pairs(variables)).map_err(|error| refuse(&error))?;
        let TakenOut { text, generated, plain } =
            if marked { marks::take_out(&text) } else { TakenOut { text, ..TakenOut::default() } };
        Ok(Rendered { text, generated, plain })
    }
}

/// A message with marks around the special tokens that it spells out; what templates compare with words of their own stays.
fn escaped(message: &Json, specials: &[String]) -> Json {
    if specials.is_empty() {
        return message.clone();
    }
    match message {
        Json::Text(text) => Json::Text(marks::escape(text, specials)),
        Json::List(list) => Json::List(list.iter().map(|value| escaped(value, specials)).collect()),
        Json::Object(entries) => {
            let entry = |(key, value): &(String, Json)| match key.as_str() {
                "role" | "type" => (key.clone(), value.clone()),
                _ => (key.clone(), escaped(value, specials)),
            };
            Json::Object(entries.iter().map(entry).collect())
        }
        other => other.clone(),
    }
}

/// The engine with what Hugging Face's templates use. Templates are untrusted: what they may do is bounded.
fn environment(clock: Clock) -> Result<Environment<'static>, Refusal> {
    let mut out = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    out.set_syntax(syntax.map_err(|error| refuse(&error))?);
    out.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    out.set_undefined_behavior(UndefinedBehavior::Lenient);
    out.set_fuel(Some(FUEL));
    python::install(&mut out);
    out.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    out.add_function("strftime_now", move |format: String| -> Result<String, Error> {
        let wrong = |problem: String| Error::new(ErrorKind::InvalidOperation, problem);
        let seconds = clock.seconds().ok_or_else(|| {
            wrong(
                "it asks for the date, which changes the data from day to day; give one by `data.chat.date`"
                    .into(),
            )
        })?;
        strftime(seconds, &format).map_err(|problem| wrong(format!("strftime_now(\"{format}\"): {problem}")))
    });
    Ok(out)
}

/// The engine's error in one line; what a template raised by itself comes alone.
fn refuse(error: &Error) -> Refusal {
    let mut problem = match error.detail() {
        Some(detail) if error.kind() == ErrorKind::InvalidOperation => detail.to_string(),
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    if let Some(line) = error.line() {
        problem.push_str(&format!(" (line {line} of the template)"));
    }
    Refusal::Template { problem }
}
