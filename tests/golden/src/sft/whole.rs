//! Whole updates: the trainer on the conversations of a file, in every layout of the batch.

use super::{Assets, Tolerance, chat, field, integer, integers, number, same, text};
use crate::checkpoints::{read_all, read_expected};
use anyhow::{Context, Result, bail, ensure};
use planaria_ckpt::formats::Key;
use planaria_data::chat::{Json, Row};
use planaria_train::Trainer;
use planaria_train::config::{Config, Sources};
use planaria_train::event::{Event, Observer};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// How the rows of an update become micro-batches.
struct Layout {
    packing: &'static str,
    /// Tokens of a sample.
    sequence: usize,
    alone: bool,
    mesh: &'static str,
}

/// Loss, norm of the gradient, and trained tokens.
type Told = (f64, f64, u64);

/// Keeps the figures of the last step.
#[derive(Debug, Default)]
struct Last(Mutex<Told>);

impl Observer for Last {
    fn event(&self, event: &Event) {
        if let (Event::Step(step), Ok(mut told)) = (event, self.0.lock()) {
            (told.0, told.1) = (step.loss, step.grad_norm);
        }
        if let (Event::Rows(report), Ok(mut told)) = (event, self.0.lock()) {
            told.2 = report.trained;
        }
    }
}

pub(super) fn check(folder: &Path, assets: &Assets) -> Result<()> {
    let read = |name: &str| -> Result<Json> {
        let content =
            std::fs::read_to_string(folder.join(name)).with_context(|| format!("reading {name}"))?;
        Json::parse(&content).map_err(anyhow::Error::msg)
    };
    let (case, expected) = (read("case.json")?, read("expected/expected.json")?);
    let data = std::fs::read_to_string(folder.join(text(&case, "data")?))?;
    let lines: Vec<&str> = data.lines().filter(|line| !line.trim().is_empty()).collect();
    let longest = check_rows(&case, &expected, &lines, assets)?;
    for layout in field(&case, "layouts")?.as_list().context("`layouts` is not a list")? {
        let name = layout.as_text().context("a layout is a text")?;
        let total = longest.1;
        let layouts = match name {
            "padded" => vec![("none", longest.0, false, ""), ("none", longest.0, false, "tp=2")],
            "one sequence a micro-batch" => {
                vec![("none", longest.0, true, ""), ("none", longest.0, true, "pp=2")]
            }
            "padding-free" => vec![("best_fit", total, false, "")],
            packed => match packed.strip_prefix("packed with capacity ") {
                // A row of a case may be longer; nothing of it is lost.
                Some(capacity) => vec![("best_fit", longest.0.max(capacity.parse()?), true, "")],
                None => bail!("unknown layout '{packed}'"),
            },
        };
        for (packing, sequence, alone, mesh) in layouts {
            let layout = Layout { packing, sequence, alone, mesh };
            updates(folder, &case, &expected, &lines, &layout, assets)
                .with_context(|| format!("{name} {mesh}"))?;
        }
    }
    Ok(())
}

/// The rows as they are expected; gives the tokens of the longest and of all of them.
fn check_rows(case: &Json, expected: &Json, lines: &[&str], assets: &Assets) -> Result<(usize, usize)> {
    let opened = chat::open(text(case, "tokenizer")?, Some(text(case, "template")?), assets)?;
    let learn = chat::learn(text(case, "mode")?)?;
    let rows = field(expected, "rows")?.as_list().context("`rows` is not a list")?;
    ensure!(rows.len() == lines.len(), "{} rows are expected of {} lines", rows.len(), lines.len());
    let (mut longest, mut total) = (0, 0);
    for (line, expected) in lines.iter().zip(rows) {
        let found = opened.label(&Row::parse(line)?.0, learn)?;
        let tokens: Vec<i64> = found.tokens.iter().map(|&token| token.into()).collect();
        same("input_ids", &tokens, &integers(field(expected, "input_ids")?)?)?;
        same("labels", &found.labels(), &integers(field(expected, "labels")?)?)?;
        longest = longest.max(tokens.len());
        total += tokens.len();
    }
    // Sequence lengths that `tp=2` divides.
    Ok((longest.next_multiple_of(2), total))
}

/// All updates in one layout. Each has its own file and resumes from the checkpoint of the one before.
fn updates(
    folder: &Path,
    case: &Json,
    expected: &Json,
    lines: &[&str],
    layout: &Layout,
    assets: &Assets,
) -> Result<()> {
    let work = tempfile::tempdir()?;
    let schedule = field(case, "schedule")?.as_list().context("`schedule` is not a list")?;
    let told = field(expected, "updates")?.as_list().context("`updates` is not a list")?;
    ensure!(told.len() == schedule.len(), "{} updates are expected of {}", told.len(), schedule.len());
    let tolerance = field(field(expected, "tol")?, "scalars")?;
    let tolerance =
        Tolerance { abs: number(field(tolerance, "abs")?)?, rel: number(field(tolerance, "rel")?)? };
    let mut checkpoint = None;
    for (number_of, (samples, told)) in schedule.iter().zip(told).enumerate() {
        let rows = integers(samples)?.into_iter().map(|sample| lines.get(sample as usize).copied());
        let rows =
            rows.collect::<Option<Vec<&str>>>().context("the schedule names a row that is not there")?;
        std::fs::write(work.path().join("rows.jsonl"), rows.join("\n"))?;
        let config = config(folder, case, work.path(), layout, number_of + 1, assets)?;
        let last = Arc::new(Last::default());
        let outcome = Trainer::new(config).observer(last.clone()).run(None)?;
        checkpoint = outcome.checkpoint;
        let (loss, norm, tokens) = *last.0.lock().map_err(|_| anyhow::anyhow!("the listener failed"))?;
        let update = |what: &str| format!("{what} of update {}", number_of + 1);
        tolerance.check(&update("loss"), loss, number(field(told, "loss")?)?)?;
        tolerance.check(&update("grad_norm"), norm, number(field(told, "grad_norm")?)?)?;
        let trained = integer(field(told, "tokens")?)?;
        ensure!(
            tokens as i64 == trained,
            "{tokens} tokens are trained in update {}, expected {trained}",
            number_of + 1
        );
    }
    let bound = number(field(field(expected, "tol")?, "weights_abs")?)?;
    let saved = work.path().join("run").join(checkpoint.context("nothing was saved")?);
    same_weights(&saved, &folder.join("expected/model_after.safetensors"), bound)
}

fn config(
    folder: &Path,
    case: &Json,
    work: &Path,
    layout: &Layout,
    step: usize,
    assets: &Assets,
) -> Result<Config> {
    let optim = field(case, "optimizer")?;
    let betas = field(optim, "betas")?.as_list().context("`betas` is not a list")?;
    let value = |name: &str| number(field(optim, name)?);
    let clip = match field(optim, "max_grad_norm")? {
        Json::Null => 0.0,
        clip => number(clip)?,
    };
    let template = assets.find(&format!("templates/{}.jinja", text(case, "template")?))?;
    let tokenizer = assets.find(&format!("tokenizers/{}", text(case, "tokenizer")?))?;
    let learn = text(case, "mode")?.replace('-', "_");
    let Layout { packing, sequence, mesh, alone } = layout;
    let smoothing = case.get("label_smoothing").map_or(Ok(0.0), number)?;
    let toml = format!(
        "name = 'run'\nmesh = '{mesh}'\nlog = {{ dir = '{}', tensorboard = false }}\nmodel.init = '{}'\n\
         [data]\ntokenizer = '{}'\nsequence = {sequence}\norder = 'sequential'\ncontinue = 'new'\n\
         source = [{{ path = '{}' }}]\nchat = {{ template = '{}', learn = '{learn}', packing = '{packing}' }}\n\
         [optim]\nlr = {:e}\nbeta1 = {}\nbeta2 = {}\neps = {:e}\nweight_decay = {}\nclip = {clip}\nschedule = 'constant'\n\
         [train]\nobjective = 'sft'\nsteps = {step}\n[sft]\nlabel_smoothing = {smoothing:e}\n",
        work.display(),
        folder.join(text(case, "model")?).display(),
        tokenizer.display(),
        work.join("rows.jsonl").display(),
        template.display(),
        value("lr")?,
        number(&betas[0])?,
        number(&betas[1])?,
        value("eps")?,
        value("weight_decay")?,
    );
    let mut config = Sources::text("sft.toml", &toml).resolve()?.config;
    let samples = config.data.open_conversations(&config.data.open_tokenizer()?, None)?.train.len() as usize;
    config.train.global_batch = samples;
    config.train.micro_batch = if *alone { 1 } else { samples };
    Ok(config)
}

fn same_weights(saved: &Path, expected: &Path, bound: f64) -> Result<()> {
    let (source, tensors) = read_all(saved)?;
    for (name, (_, shape, bytes)) in read_expected(expected)? {
        let key = Key::model(name.as_str());
        let found = tensors.get(&key).with_context(|| format!("{name} was not saved"))?;
        ensure!(source.get(&key)?.shape[..] == shape[..], "{name} has another shape");
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes
                .chunks_exact(4)
                .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
                .collect()
        };
        for (found, expected) in floats(found).into_iter().zip(floats(&bytes)) {
            let apart = f64::from((found - expected).abs());
            ensure!(apart <= bound, "a weight of {name} is {found}, expected {expected}");
        }
    }
    Ok(())
}
