//! `planaria embed`: one vector for each text, or how well a model finds what answers a query.

use crate::exit::Exit;
use crate::failure::Failure;
use crate::quantity::count;
use crate::target::{self, Existing};
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use planaria::array::Device;
use planaria::tensor::Tensor;
use planaria::train::data::texts::{Text, TextRow};
use planaria::train::embedding::{
    EncodeOptions, Encoder, Retrieval, TextPrompt, correlation, ranking, retrieval, similarities,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Cut-offs of an evaluation.
const CUTS: [usize; 4] = [1, 3, 5, 10];

/// Make embeddings of texts
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The folder is one of sentence-transformers, a run that learnt embeddings, or any model, whose hidden states are then\n\
    averaged. FILE has one text a line, or JSON lines with a field. With `--evaluate` it has rows: `query` and `positive`\n\
    (the documents are all positives and negatives of the file), or `sentence1`, `sentence2` and `score`."
)]
pub(crate) struct Args {
    /// A run's folder, whose newest checkpoint is taken, or any folder of weights
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Texts, one a line, or JSON lines
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The file to write: .npy for an array of f32, .jsonl for one list a line; without it lists go to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "output")]
    yes: bool,
    /// Measure instead: FILE has queries with what answers them, or pairs with a score
    #[arg(long, conflicts_with = "output")]
    evaluate: bool,
    /// The field of a JSON line that holds the text
    #[arg(long, value_name = "NAME", default_value = "text")]
    field: String,
    /// Texts computed at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Put the folder's prompt of this name before every text
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// Put this before every text
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt")]
    prompt_text: Option<String>,
    /// Only the first elements of every vector
    #[arg(long, value_name = "NUMBER")]
    dims: Option<usize>,
    /// Where to compute: cpu, or an NVIDIA device such as cuda:0
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Device,
    /// What to compute in
    #[arg(long, value_enum, value_name = "PRECISION", default_value = "f32")]
    precision: super::PrecisionName,
}

impl Args {
    fn options(&self, otherwise: TextPrompt) -> EncodeOptions {
        let prompt = match (&self.prompt, &self.prompt_text) {
            (Some(name), _) => TextPrompt::Named(name.clone()),
            (None, Some(text)) => TextPrompt::Literal(text.clone()),
            (None, None) => otherwise,
        };
        EncodeOptions { batch: self.batch as usize, prompt, dims: self.dims }
    }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let existing = Existing::from_yes(args.yes);
    if let Some(path) = &args.output {
        if !path.extension().is_some_and(|end| end == "npy" || end == "jsonl") {
            let message = format!("'{}' ends neither in .npy nor in .jsonl", path.display());
            return Err(Failure::usage(message).into());
        }
        target::apart(path, [args.file.as_path()])?;
        target::check(path, existing)?;
    }
    let encoder = Encoder::open(&args.model)?.device(args.device).precision(args.precision.into());
    let content = std::fs::read_to_string(&args.file)
        .with_context(|| format!("cannot read '{}'", args.file.display()))?;
    let lines: Vec<&str> = content.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return Err(Failure::usage(format!("'{}' has no text", args.file.display())).into());
    }
    if args.evaluate {
        return evaluate(args, &encoder, &lines, terminal);
    }
    let texts = texts(args, &lines)?;
    let bar = terminal.counter("embedding", "texts");
    let found = encoder
        .encode(&texts, &args.options(TextPrompt::Default), &|done, all| bar.show(done as u64, all as u64));
    bar.finish();
    let vectors = found?;
    let width = vectors.first().map_or(0, Vec::len);
    let Some(path) = &args.output else {
        for vector in &vectors {
            terminal.line(json!(vector))?;
        }
        return Ok(Exit::Success);
    };
    let bytes = match path.extension().is_some_and(|end| end == "npy") {
        true => npy(&vectors, width),
        false => json_lines(&vectors)?.into_bytes(),
    };
    target::write(path, existing, &bytes)?;
    terminal.line(format!("wrote {} of {width} to {}", count(vectors.len(), "vector"), path.display()))?;
    Ok(Exit::Success)
}

/// The texts of a file.
fn texts(args: &Args, lines: &[&str]) -> Result<Vec<String>> {
    if args.file.extension().is_none_or(|end| end != "jsonl") {
        return Ok(lines.iter().map(ToString::to_string).collect());
    }
    let text = |(number, line): (usize, &&str)| -> Result<String> {
        let value: Value = serde_json::from_str(line).with_context(|| at(&args.file, number))?;
        let found = value.get(&args.field).and_then(Value::as_str).map(str::to_string);
        found.ok_or_else(|| {
            Failure::usage(format!(
                "{}: there is no text in the field '{}'",
                at(&args.file, number),
                args.field
            ))
            .into()
        })
    };
    lines.iter().enumerate().map(text).collect()
}

fn at(file: &Path, number: usize) -> String {
    format!("{}:{}", file.display(), number + 1)
}

fn json_lines(vectors: &[Vec<f32>]) -> Result<String> {
    let mut out = String::new();
    for vector in vectors {
        writeln!(out, "{}", json!(vector))?;
    }
    Ok(out)
}

/// An array of f32 as numpy writes it.
fn npy(vectors: &[Vec<f32>], width: usize) -> Vec<u8> {
    let about =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {width}), }}", vectors.len());
    // Mark, version and length take 10 bytes; data begins at a multiple of 64.
    let filled = (about.len() + 11).next_multiple_of(64) - 10;
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((filled as u16).to_le_bytes());
    out.extend(format!("{about:<0$}\n", filled - 1).bytes());
    out.extend(vectors.iter().flatten().flat_map(|value| value.to_le_bytes()));
    out
}

/// Measures a model on queries with what answers them, or on pairs with a score.
fn evaluate(args: &Args, encoder: &Encoder, lines: &[&str], terminal: &mut Terminal) -> Result<Exit> {
    let first: Value = serde_json::from_str(lines[0]).with_context(|| at(&args.file, 0))?;
    let told = match first.get("sentence1").is_some() {
        true => pairs(args, encoder, lines)?,
        false => searches(args, encoder, lines)?,
    };
    if terminal.json {
        terminal.object("planaria/embed/1", &told)?;
        return Ok(Exit::Success);
    }
    for row in told["at"].as_array().into_iter().flatten() {
        let figure = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
        let [accuracy, recall, ndcg, mrr] = ["accuracy", "recall", "ndcg", "mrr"].map(figure);
        let k = &row["k"];
        terminal.line(format!(
            "@{k}: accuracy {accuracy:.4}, recall {recall:.4}, nDCG {ndcg:.4}, MRR {mrr:.4}"
        ))?;
    }
    if let Some(spearman) = told["spearman"].as_f64() {
        let pearson = told["pearson"].as_f64().unwrap_or(f64::NAN);
        terminal.line(format!("Spearman {spearman:.4}, Pearson {pearson:.4}"))?;
    }
    Ok(Exit::Success)
}

fn searches(args: &Args, encoder: &Encoder, lines: &[&str]) -> Result<Value> {
    let (mut queries, mut answers) = (Vec::new(), Vec::new());
    let (mut documents, mut places) = (Vec::new(), BTreeMap::new());
    for (number, line) in lines.iter().enumerate() {
        let wrong = |problem: String| Failure::usage(format!("{}: {problem}", at(&args.file, number)));
        let row = TextRow::parse(line).map_err(wrong)?;
        let mut place = |text: &Text| -> Result<usize> {
            let text = plain(text).ok_or_else(|| wrong("token ids cannot be searched for".into()))?;
            let next = documents.len();
            let at = *places.entry(text.to_string()).or_insert(next);
            if at == next {
                documents.push(text.to_string());
            }
            Ok(at)
        };
        answers.push(row.positives.iter().map(&mut place).collect::<Result<Vec<_>>>()?);
        row.negatives.iter().map(&mut place).collect::<Result<Vec<_>>>()?;
        queries.push(plain(&row.query).ok_or_else(|| wrong("token ids are not a query".into()))?.to_string());
    }
    let named = |name: &str| match encoder.prompt(&TextPrompt::Named(name.into())) {
        Ok(_) => TextPrompt::Named(name.into()),
        Err(_) => TextPrompt::Default,
    };
    let queries = matrix(&encoder.encode(&queries, &args.options(named("query")), &|_, _| {})?)?;
    let documents = matrix(&encoder.encode(&documents, &args.options(named("document")), &|_, _| {})?)?;
    let scores = similarities(&queries, &documents, encoder.similarity())?;
    let width = scores.shape()[1];
    let scores: Vec<f64> = scores.to_vec::<f32>()?.into_iter().map(f64::from).collect();
    let rankings: Vec<Vec<usize>> = scores.chunks(width.max(1)).map(ranking).collect();
    let found: Vec<Retrieval> = CUTS.iter().map(|&k| retrieval(&rankings, &answers, k)).collect();
    Ok(json!({ "queries": rankings.len(), "documents": width, "at": found }))
}

fn plain(text: &Text) -> Option<&str> {
    match text {
        Text::Plain(text) => Some(text),
        Text::Ids(_) => None,
    }
}

fn pairs(args: &Args, encoder: &Encoder, lines: &[&str]) -> Result<Value> {
    let (mut one, mut other, mut scores) = (Vec::new(), Vec::new(), Vec::new());
    for (number, line) in lines.iter().enumerate() {
        let wrong = |problem: String| Failure::usage(format!("{}: {problem}", at(&args.file, number)));
        let row = TextRow::parse(line).map_err(wrong)?;
        let text = |text: &Text| plain(text).map(str::to_string);
        let (Some(a), Some(b), Some(score)) = (text(&row.query), text(&row.positives[0]), row.score) else {
            return Err(wrong("a pair has `sentence1`, `sentence2` and `score`".into()).into());
        };
        one.push(a);
        other.push(b);
        scores.push(score);
    }
    let options = args.options(TextPrompt::Default);
    let (one, other) =
        (encoder.encode(&one, &options, &|_, _| {})?, encoder.encode(&other, &options, &|_, _| {})?);
    let mut alike = Vec::new();
    for (a, b) in one.iter().zip(&other) {
        let both = similarities(
            &matrix(std::slice::from_ref(a))?,
            &matrix(std::slice::from_ref(b))?,
            encoder.similarity(),
        )?;
        alike.push(f64::from(both.to_vec::<f32>()?[0]));
    }
    let (pearson, spearman) = correlation(&alike, &scores);
    Ok(json!({ "pairs": scores.len(), "pearson": pearson, "spearman": spearman }))
}

fn matrix(vectors: &[Vec<f32>]) -> Result<Tensor> {
    let width = vectors.first().map_or(0, Vec::len);
    Ok(Tensor::from_slice(&vectors.concat(), &[vectors.len(), width])?)
}
