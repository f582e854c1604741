//! Kind `sft`: chat templates, trained tokens, packing, batches and losses of supervised fine-tuning, and whole updates.

mod chat;
mod loss;
mod rows;
mod whole;

use crate::cases::{Outcome, Verdict, each_line};
use anyhow::{Context, Result, bail, ensure};
use planaria_data::Tokenizer;
use planaria_data::chat::Json;
use serde::Deserialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// One line. Objects keep the order of their keys, which templates print.
#[derive(Deserialize)]
struct Case {
    #[serde(rename = "fn")]
    function: String,
    #[serde(rename = "in")]
    given: Json,
    out: Json,
    #[serde(default)]
    tol: Tolerance,
}

/// `|got - want| <= abs + rel * |want|`.
#[derive(Clone, Copy, Default, Deserialize)]
struct Tolerance {
    abs: f64,
    rel: f64,
}

impl Tolerance {
    fn check(&self, what: &str, got: f64, want: f64) -> Result<()> {
        let near = (got - want).abs() <= self.abs + self.rel * want.abs();
        ensure!(near, "{what} is {got}, expected {want}");
        Ok(())
    }
}

/// Where tokenizers and templates are, and the tokenizers that were read, which many cases share.
struct Assets {
    folders: Vec<PathBuf>,
    tokenizers: RefCell<BTreeMap<String, Rc<Tokenizer>>>,
}

impl Assets {
    fn tokenizer(&self, name: &str) -> Result<Rc<Tokenizer>> {
        if let Some(read) = self.tokenizers.borrow().get(name) {
            return Ok(read.clone());
        }
        let folder = self.find(&format!("tokenizers/{name}"))?;
        let read = Rc::new(Tokenizer::open(folder.to_str().context("the path is not text")?)?);
        self.tokenizers.borrow_mut().insert(name.to_string(), read.clone());
        Ok(read)
    }

    fn find(&self, name: &str) -> Result<PathBuf> {
        let found = self.folders.iter().map(|folder| folder.join(name)).find(|path| path.exists());
        found.with_context(|| format!("there is no {name}"))
    }
}

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    run_in(path, None)
}

/// Runs cases whose tokenizers and templates may lie in another folder.
pub fn run_with_assets(path: &Path, assets: &Path) -> Result<Outcome> {
    run_in(path, Some(assets))
}

fn run_in(path: &Path, more: Option<&Path>) -> Result<Outcome> {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/sft");
    let places = [Some(folder), more, Some(&ours)].into_iter().flatten().map(Path::to_path_buf).collect();
    let assets = Assets { folders: places, tokenizers: RefCell::default() };
    let cases = if path.is_dir() { folders(&path.join("e2e"))? } else { Vec::new() };
    let lines = !path.is_dir() || cases.is_empty() || has_lines(path)?;
    let mut outcome = Outcome::default();
    if lines {
        outcome = each_line(path, |line| verdict(check(line, &assets)))?;
    }
    for case in cases {
        let name = format!("e2e/{}", case.file_name().unwrap_or_default().to_string_lossy());
        outcome.add(&name, verdict(whole::check(&case, &assets)));
    }
    Ok(outcome)
}

fn verdict(result: Result<()>) -> Verdict {
    match result {
        Ok(()) => Verdict::Passed,
        Err(error) => Verdict::Failed(format!("{error:#}")),
    }
}

fn has_lines(path: &Path) -> Result<bool> {
    let mut names =
        std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.try_fold(false, |found, name: Result<String>| Ok(found || name?.contains(".jsonl")))
}

fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(Vec::new());
    }
    let mut out: Vec<PathBuf> = std::fs::read_dir(path)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    out.retain(|path| path.join("case.json").is_file());
    out.sort();
    Ok(out)
}

fn check(line: &str, assets: &Assets) -> Result<()> {
    let case: Case = serde_json::from_str(line).context("reading the case")?;
    match case.function.as_str() {
        "render" => chat::render(&case, assets),
        "labels" => chat::labels(&case, assets),
        "pack" => rows::pack(&case),
        "collate" => rows::collate(&case),
        "truncate" => rows::truncate(&case),
        "sft_loss" => loss::check(&case),
        other => bail!("unknown function '{other}'"),
    }
}

impl Case {
    fn text(&self, name: &str) -> Result<&str> {
        text(&self.given, name)
    }
}

fn field<'a>(object: &'a Json, name: &str) -> Result<&'a Json> {
    object.get(name).with_context(|| format!("there is no `{name}`"))
}

fn text<'a>(object: &'a Json, name: &str) -> Result<&'a str> {
    field(object, name)?.as_text().with_context(|| format!("`{name}` is not text"))
}

fn number(value: &Json) -> Result<f64> {
    match value {
        Json::Integer(value) => Ok(*value as f64),
        Json::Float(value) => Ok(*value),
        Json::Text(text) => text.parse().with_context(|| format!("'{text}' is not a number")),
        other => bail!("{other} is not a number"),
    }
}

fn integer(value: &Json) -> Result<i64> {
    match value {
        Json::Integer(value) => Ok(i64::try_from(*value)?),
        other => bail!("{other} is not an integer"),
    }
}

fn integers(value: &Json) -> Result<Vec<i64>> {
    value.as_list().context("not a list")?.iter().map(integer).collect()
}

/// A tensor of a case: shape and elements.
fn tensor(value: &Json) -> Result<(Vec<usize>, Vec<f64>)> {
    let shape = integers(field(value, "shape")?)?.into_iter().map(|size| size as usize).collect();
    let data = field(value, "data")?
        .as_list()
        .context("`data` is not a list")?
        .iter()
        .map(number)
        .collect::<Result<_>>()?;
    Ok((shape, data))
}

/// Our answer must be an error of the kind that is expected, or none.
fn same_error<T>(expected: &Json, found: Result<T, planaria_data::chat::Refusal>) -> Result<Option<T>> {
    match (expected.get("error"), found) {
        (None, Ok(found)) => Ok(Some(found)),
        (None, Err(refusal)) => bail!("refused: {refusal}"),
        (Some(error), Ok(_)) => bail!("{error} is expected, and it was not refused"),
        (Some(error), Err(refusal)) => {
            let kind = text(error, "kind")?;
            ensure!(refusal.kind() == kind, "refused as {}, expected {kind}: {refusal}", refusal.kind());
            Ok(None)
        }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &[T], expected: &[T]) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let place =
        found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(found.len().min(expected.len()));
    let (a, b) = (found.get(place), expected.get(place));
    bail!("{what}: entry {place} is {a:?}, expected {b:?} ({} and {} entries)", found.len(), expected.len())
}

/// Counts of bytes as counts of characters, which is what Python has.
fn characters(text: &str, places: &[usize]) -> BTreeMap<usize, i64> {
    places.iter().map(|&at| (at, text[..at].chars().count() as i64)).collect()
}
