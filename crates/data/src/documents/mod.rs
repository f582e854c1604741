//! The documents of one file, whatever it holds: text, JSON lines, CSV, Parquet, each also compressed where that is usual.

mod compressed;
mod csv;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(test)]
mod tests;
mod zstandard;

use crate::chat::Json;
use crate::error::{Error, Result};
use crate::source::SourceKind;
use compressed::Input;
use serde_json::Value;
use std::io::{BufRead, Read};
use std::path::Path;

/// Longest line of a JSONL file.
const LINE_LIMIT: u64 = 1 << 30;

/// Takes one document after the other.
pub(crate) type Take<'a> = &'a mut dyn FnMut(String) -> Result<()>;

/// What a file holds, as its name tells; the ending of a compressed file is passed over.
pub(crate) fn kind_by_name(path: &Path) -> SourceKind {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let bare = compressed::ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    match bare.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "jsonl" | "ndjson" => SourceKind::Jsonl,
        "csv" | "tsv" => SourceKind::Csv,
        "parquet" => SourceKind::Parquet,
        "tokens" => SourceKind::Tokens,
        _ => SourceKind::Text,
    }
}

/// Calls `take` with every document of a file; `field` names the text where there is more than one value.
pub(crate) fn each(path: &Path, kind: SourceKind, field: &str, take: Take<'_>) -> Result<()> {
    match kind {
        SourceKind::Jsonl => {
            let bad = |line| move |problem| Error::Line { path: path.to_path_buf(), line, problem };
            each_line(Input::open(path)?, &mut |line, text| take(text_field(text, field).map_err(bad(line))?))
        }
        SourceKind::Csv => csv::each_row(Input::open(path)?, field, take),
        SourceKind::Parquet => each_value(path, field, take),
        SourceKind::Text | SourceKind::Tokens => take(whole(Input::open(path)?)?),
    }
}

#[cfg(feature = "parquet")]
use parquet::each_value;

/// Parquet takes a minute to build, so not every program has it.
#[cfg(not(feature = "parquet"))]
fn each_value(path: &Path, _: &str, _: Take<'_>) -> Result<()> {
    Err(Error::NoParquet { path: path.to_path_buf() })
}

fn whole(input: Input) -> Result<String> {
    let Input { mut reader, origin } = input;
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(|e| origin.failed(e))?;
    String::from_utf8(bytes).map_err(|e| Error::Utf8 {
        path: origin.path,
        line: None,
        at: e.utf8_error().valid_up_to() as u64,
    })
}

/// Takes one row of JSON after the other, each with its line.
pub(crate) type TakeRow<'a> = &'a mut dyn FnMut(u64, &str) -> Result<()>;

/// Calls `take` with every row of a file of JSON: its lines, or the entries of its list in a `.json`, which are counted instead.
pub(crate) fn each_row(path: &Path, take: TakeRow<'_>) -> Result<()> {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let bare = compressed::ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    let input = Input::open(path)?;
    if !bare.ends_with(".json") {
        return each_line(input, take);
    }
    let bad = |line, problem| Error::Line { path: path.to_path_buf(), line, problem };
    let text = whole(input)?;
    let entries = Json::parse(&text).map_err(|problem| bad(1, format!("not valid JSON: {problem}")))?;
    let Json::List(entries) = entries else {
        return Err(bad(1, "a `.json` file of conversations holds one list of rows".into()));
    };
    entries.iter().zip(1..).try_for_each(|(entry, number)| take(number, &entry.to_string()))
}

fn each_line(input: Input, take: TakeRow<'_>) -> Result<()> {
    let Input { mut reader, origin } = input;
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let mut limited = reader.by_ref().take(LINE_LIMIT);
        let got = limited.read_until(b'\n', &mut line).map_err(|e| origin.failed(e))?;
        if got == 0 {
            break;
        }
        let bad = |problem: String| Error::Line { path: origin.path.clone(), line: number, problem };
        if got as u64 == LINE_LIMIT {
            return Err(bad(format!("the line has more than {LINE_LIMIT} bytes")));
        }
        let text = str::from_utf8(&line).map_err(|e| Error::Utf8 {
            path: origin.path.clone(),
            line: Some(number),
            at: e.valid_up_to() as u64,
        })?;
        if !text.trim().is_empty() {
            take(number, text)?;
        }
    }
    Ok(())
}

/// The text of one JSON line.
fn text_field(line: &str, field: &str) -> Result<String, String> {
    let value: Value = serde_json::from_str(line).map_err(|e| format!("not valid JSON: {e}"))?;
    let Value::Object(mut object) = value else {
        return Err("the line is not a JSON object".into());
    };
    match object.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("the field '{field}' is not a string")),
        None => Err(format!("there is no field '{field}'; the line has {}", quoted(object.keys()))),
    }
}

/// The first few names, sorted: `'body', 'id'`.
fn quoted<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let mut names: Vec<_> = names.take(8).map(|name| format!("'{name}'")).collect();
    names.sort();
    names.join(", ")
}
