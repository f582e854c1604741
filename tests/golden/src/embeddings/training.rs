//! Whole updates of contrastive training: the trainer with every size of a chunk, on every number of ranks.

use crate::checkpoints::{read_all, read_expected};
use crate::values::{Tolerance, field, list, number, sizes, text};
use anyhow::{Context, Result, ensure};
use planaria_ckpt::formats::Key;
use planaria_train::Trainer;
use planaria_train::config::Sources;
use planaria_train::event::{Event, Observer};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Keeps losses and norms of gradients.
#[derive(Debug, Default)]
pub(crate) struct Steps(pub(crate) Mutex<Vec<(f64, f64)>>);

impl Observer for Steps {
    fn event(&self, event: &Event) {
        if let (Event::Step(step), Ok(mut steps)) = (event, self.0.lock()) {
            steps.push((step.loss, step.grad_norm));
        }
    }
}

/// How a step is divided.
struct Split {
    micro: usize,
    mesh: String,
}

pub(super) fn check(folder: &Path) -> Result<()> {
    let read = |name: &str| -> Result<Value> {
        Ok(serde_json::from_str(&std::fs::read_to_string(folder.join(name))?)?)
    };
    let (case, expected) = (read("case.json")?, read("expected/expected.json")?);
    let rows = list(&case["columns_per_step"][0], "0").map_or(0, <[Value]>::len);
    let rows = if rows == 0 { case["columns_per_step"][0][0].as_array().map_or(0, Vec::len) } else { rows };
    let ranks = sizes(field(&case, "data_ranks")?)?;
    let mut splits = Vec::new();
    for micro in sizes(field(&case, "chunk_sizes")?)? {
        for &ranks in &ranks {
            splits.push(Split { micro, mesh: format!("dp={ranks}") });
        }
    }
    splits.push(Split { micro: 1, mesh: "pp=2".into() });
    splits.push(Split { micro: 3, mesh: "pp=2".into() });
    splits.push(Split { micro: 2, mesh: "tp=2".into() });
    splits.push(Split { micro: 1, mesh: "pp=2 dp=2".into() });
    for split in &splits {
        updates(folder, &case, &expected, rows, split)
            .with_context(|| format!("chunks of {} on {}", split.micro, split.mesh))?;
    }
    Ok(())
}

fn updates(folder: &Path, case: &Value, expected: &Value, rows: usize, split: &Split) -> Result<()> {
    let work = tempfile::tempdir()?;
    let steps = list(case, "columns_per_step")?;
    let mut lines = String::new();
    let mut longest = 1;
    for step in steps {
        let columns: Vec<&Vec<Value>> =
            step.as_array().context("no columns")?.iter().filter_map(Value::as_array).collect();
        for row in 0..rows {
            let text = |column: usize| columns[column][row].clone();
            longest = (0..columns.len())
                .map(|c| text(c).as_array().map_or(0, Vec::len))
                .max()
                .unwrap_or(1)
                .max(longest);
            let others: Vec<Value> = (2..columns.len()).map(text).collect();
            lines += &format!("{}\n", json!({ "query": text(0), "positive": text(1), "negative": others }));
        }
    }
    let columns = steps[0].as_array().map_or(0, Vec::len);
    std::fs::write(work.path().join("rows.jsonl"), lines)?;
    let seen = Arc::new(Steps::default());
    let config = config(folder, case, work.path(), (rows, steps.len(), columns * longest), split)?;
    let outcome = Trainer::new(Sources::text("case.toml", &config).resolve()?.config)
        .observer(seen.clone())
        .run(None)?;
    let found = seen.0.lock().map_err(|_| anyhow::anyhow!("the listener failed"))?.clone();
    let tolerances = field(expected, "tol")?;
    let scalars = Tolerance::of(tolerances, "scalars")?;
    for (number_of, (step, (loss, norm))) in list(expected, "steps")?.iter().zip(found).enumerate() {
        scalars.same(&format!("loss of step {}", number_of + 1), loss, number(field(step, "loss")?)?)?;
        scalars.same(
            &format!("grad_norm of step {}", number_of + 1),
            norm,
            number(field(step, "grad_norm")?)?,
        )?;
    }
    let bound = number(field(tolerances, "weights_abs")?)?;
    let saved = work.path().join("run").join(outcome.checkpoint.context("nothing was saved")?);
    same_weights(&saved, &folder.join("expected/model_after.safetensors"), bound)
}

fn config(
    folder: &Path,
    case: &Value,
    work: &Path,
    (rows, steps, sequence): (usize, usize, usize),
    split: &Split,
) -> Result<String> {
    let (optim, loss) = (field(case, "optimizer")?, field(case, "loss")?);
    let betas = list(optim, "betas")?;
    let clip =
        optim.get("max_grad_norm").filter(|clip| !clip.is_null()).map(number).transpose()?.unwrap_or(0.0);
    let tokenizer = work.join("tokenizer.json");
    std::fs::write(&tokenizer, no_tokenizer(&folder.join(text(case, "model")?))?)?;
    let mut toml = format!(
        "name = 'run'\nmesh = '{}'\nlog = {{ dir = '{}', tensorboard = false }}\nmodel.init = '{}'\n\
         [data]\ntokenizer = '{}'\nsequence = {sequence}\norder = 'sequential'\nsource = [{{ path = '{}' }}]\n\
         [optim]\nlr = {:e}\nbeta1 = {}\nbeta2 = {}\neps = {:e}\nweight_decay = {}\nclip = {clip}\nschedule = 'constant'\n\
         [train]\nobjective = 'contrastive'\nsteps = {steps}\nglobal_batch = {rows}\nmicro_batch = {}\n\
         [embedding]\nexclude_duplicates = false\npooling = ['{}']\n",
        split.mesh,
        work.display(),
        folder.join(text(case, "model")?).display(),
        tokenizer.display(),
        work.join("rows.jsonl").display(),
        number(field(optim, "lr")?)?,
        number(&betas[0])?,
        number(&betas[1])?,
        number(field(optim, "eps")?)?,
        number(field(optim, "weight_decay")?)?,
        split.micro,
        text(case, "pooling")?,
    );
    for (key, value) in loss.as_object().context("`loss` is not an object")? {
        let key = if key == "hardness_mode" { "hardness" } else { key };
        if !value.is_null() && key != "neg" {
            toml += &format!("{key} = {value}\n");
        }
    }
    Ok(toml)
}

/// A tokenizer for a model's folder that nothing is tokenised with: rows are ids.
pub(crate) fn no_tokenizer(model: &Path) -> Result<String> {
    let config = std::fs::read_to_string(model.join("config.json"))?;
    let config: Value = serde_json::from_str(&config)?;
    let vocab = number(field(&config, "vocab_size")?)? as usize;
    let words: serde_json::Map<String, Value> = (0..vocab).map(|id| (format!("w{id}"), json!(id))).collect();
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": words, "unk_token": "w0" },
    })
    .to_string())
}

/// Every expected tensor of a file is in a checkpoint, within a bound.
pub(crate) fn same_weights(saved: &Path, expected: &Path, bound: f64) -> Result<()> {
    same_weights_under("", saved, expected, bound)
}

/// The same where names in the checkpoint begin with a prefix.
pub(crate) fn same_weights_under(prefix: &str, saved: &Path, expected: &Path, bound: f64) -> Result<()> {
    let (source, tensors) = read_all(saved)?;
    for (name, (_, shape, bytes)) in read_expected(expected)? {
        let key = Key::model(format!("{prefix}{name}").as_str());
        let found = tensors.get(&key).with_context(|| format!("{name} was not saved"))?;
        ensure!(source.get(&key)?.shape[..] == shape[..], "{name} has another shape");
        for (found, expected) in found.chunks_exact(4).zip(bytes.chunks_exact(4)) {
            let float = |four: &[u8]| f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            let (found, expected) = (float(found), float(expected));
            let apart = f64::from((found - expected).abs());
            ensure!(apart <= bound, "a weight of {name} is {found}, expected {expected}");
        }
    }
    Ok(())
}
