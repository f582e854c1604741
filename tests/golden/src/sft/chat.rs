//! What templates render, and which tokens are trained.

use super::{Assets, Case, characters, field, integers, same, same_error, text};
use anyhow::{Context, Result, bail, ensure};
use planaria_data::chat::{Chat, Clock, Conversation, Ending, Json, Learn, Row};

/// The tokenizer of a case with its template.
pub(super) fn open(tokenizer: &str, template: Option<&str>, assets: &Assets) -> Result<Chat> {
    let read = |name: &str| -> Result<String> {
        Ok(std::fs::read_to_string(assets.find(&format!("templates/{name}.jinja"))?)?)
    };
    let template = template.map(read).transpose()?;
    Ok(Chat::new(&*assets.tokenizer(tokenizer)?, template.as_deref(), Clock::Fixed(0))?)
}

pub(super) fn learn(mode: &str) -> Result<Learn> {
    Ok(match mode {
        "assistant-marks" => Learn::AssistantMarks,
        "assistant-prefix" => Learn::AssistantPrefix,
        "last-turn" => Learn::LastTurn,
        "completion" | "completion-text" => Learn::Completion,
        "all" => Learn::All,
        other => bail!("unknown mode '{other}'"),
    })
}

fn conversation(case: &Case) -> Result<Conversation> {
    let messages = field(&case.given, "messages")?.as_list().context("`messages` is not a list")?.to_vec();
    let mut out = Conversation::new(messages)?;
    out.tools = case.given.get("tools").filter(|tools| **tools != Json::Null).cloned();
    if let Some(Json::Object(variables)) = case.given.get("kwargs") {
        out.variables = variables.clone();
    }
    Ok(out)
}

pub(super) fn render(case: &Case, assets: &Assets) -> Result<()> {
    let chat = open(case.text("tokenizer")?, Some(case.text("template")?), assets)?;
    let conversation = conversation(case)?;
    let ending = match case.given.get("add_generation_prompt") {
        Some(Json::Bool(true)) => Ending::Prompt,
        _ => Ending::Closed,
    };
    let Some(rendered) = same_error(&case.out, chat.render(&conversation, ending))? else { return Ok(()) };
    let expected = text(&case.out, "text")?;
    ensure!(rendered.text == expected, "rendered {:?}, expected {expected:?}", rendered.text);
    let ids: Vec<i64> = chat.encode(&conversation, ending)?.into_iter().map(i64::from).collect();
    same("input_ids", &ids, &integers(field(&case.out, "input_ids")?)?)
}

pub(super) fn labels(case: &Case, assets: &Assets) -> Result<()> {
    let ends = case.given.get("append_eos") != Some(&Json::Bool(false));
    let template = case.given.get("template").and_then(Json::as_text);
    let chat = open(case.text("tokenizer")?, template, assets)?.with_eos(ends);
    let row = match (case.given.get("messages"), case.given.get("text")) {
        (Some(_), _) => Row::Conversation(conversation(case)?),
        (None, Some(text)) => Row::Text(text.as_text().context("`text` is not text")?.into()),
        (None, None) => {
            let part = |name| case.text(name).map(str::to_string);
            Row::Texts { prompt: part("prompt")?, completion: part("completion")? }
        }
    };
    let Some(found) = same_error(&case.out, chat.label(&row, learn(case.text("mode")?)?))? else {
        return Ok(());
    };
    let ids: Vec<i64> = found.tokens.iter().map(|&token| token.into()).collect();
    same("input_ids", &ids, &integers(field(&case.out, "input_ids")?)?)?;
    same("labels", &found.labels(), &integers(field(&case.out, "labels")?)?)?;
    let Some(spans) = case.out.get("spans") else { return Ok(()) };
    let places: Vec<usize> = found.spans.iter().flat_map(|span| [span.start, span.end]).collect();
    let places = characters(&found.text, &places);
    let ours: Vec<Vec<i64>> =
        found.spans.iter().map(|span| vec![places[&span.start], places[&span.end]]).collect();
    let expected =
        spans.as_list().context("`spans` is not a list")?.iter().map(integers).collect::<Result<Vec<_>>>()?;
    same("spans", &ours, &expected)
}
