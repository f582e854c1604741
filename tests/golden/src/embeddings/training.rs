//! Whole updates of contrastive training: the trainer with every size of a chunk, on every number of ranks.

use crate::learned::{PLAIN, fitting, no_tokenizer, optimizer, same_gradients, same_weights, train};
use crate::values::{Tolerance, elements, field, list, number, numbers, sizes, text};
use anyhow::{Context, Result, ensure};
use planaria_comm::alone;
use planaria_nn::Init;
use planaria_nn::models::{Models, Run};
use planaria_tensor::{Tensor, no_grad};
use planaria_train::Opened;
use planaria_train::embedding::{Pooling, TextSpan, contrast, matryoshka, pool};
use serde_json::{Value, json};
use std::path::Path;

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
    let steps = list(&case, "columns_per_step")?;
    let sizes_of = |step: &Value| step[0].as_array().map_or(0, Vec::len);
    let rows = sizes_of(&steps[0]);
    ensure!(steps.iter().all(|step| sizes_of(step) == rows), "steps of several sizes");
    let ranks = sizes(field(&case, "data_ranks")?)?;
    let mut splits = Vec::new();
    for micro in sizes(field(&case, "chunk_sizes")?)? {
        for &ranks in ranks.iter().filter(|ranks| rows.is_multiple_of(**ranks)) {
            splits.push(Split { micro, mesh: format!("dp={ranks}") });
        }
    }
    let model = folder.join(text(&case, "model")?);
    for mesh in fitting(&model, &["pp=2", "tp=2", "pp=2 dp=2"])? {
        for micro in [1, 3] {
            if !mesh.contains("dp=2") || rows.is_multiple_of(2) {
                splits.push(Split { micro, mesh: mesh.to_string() });
            }
        }
    }
    for split in &splits {
        updates(folder, &case, &expected, rows, split)
            .with_context(|| format!("chunks of {} on {}", split.micro, split.mesh))?;
    }
    first_embeddings(&model, &case, &expected)?;
    let wanted = folder.join("expected/first_grad.safetensors");
    if wanted.exists() {
        let work = tempfile::tempdir()?;
        let split = Split { micro: 3, mesh: String::new() };
        let config = config(folder, &case, work.path(), rows, &split, PLAIN)?;
        let (_, saved) = train(&config, work.path(), Some(1))?;
        let tolerance = Tolerance::of(field(&expected, "tol")?, "gradients")?;
        same_gradients("", (&model, &saved), &wanted, &tolerance)?;
    }
    Ok(())
}

/// The embeddings that the first step begins with, and the gradients of its loss with respect to them.
fn first_embeddings(model: &Path, case: &Value, expected: &Value) -> Result<()> {
    let Some(wanted) = expected.get("first_step_embeddings") else { return Ok(()) };
    let tolerance = Tolerance::of(field(expected, "tol")?, "gradients")?;
    let network = Opened::open(model, &[], &Models::default())?.load(&alone(), &Init::default())?;
    let way: Pooling = serde_json::from_value(field(case, "pooling")?.clone())?;
    let mut columns = Vec::new();
    let given = case["columns_per_step"][0].as_array().context("no columns")?;
    let wanted = wanted.as_array().context("no embeddings")?;
    for (column, want) in given.iter().zip(wanted) {
        let want = numbers(want)?;
        let mut found = Vec::new();
        for ids in column.as_array().context("no rows")? {
            let ids = numbers(ids)?.integers();
            let tokens = Tensor::from_slice(&ids, &[1, ids.len()])?;
            let spans = vec![vec![TextSpan { tokens: 0..ids.len(), counted: 0 }]];
            found.extend(no_grad(|| -> Result<Vec<f64>> {
                let last = network.forward((&tokens).into(), &Run::default())?;
                elements(pool(&network.states(&last.hidden)?, &spans, &[way])?.local())
            })?);
        }
        tolerance.same_all("the first embeddings", &found, &want.data)?;
        columns.push(want.array()?);
    }
    let Some(wanted) = expected.get("first_step_embedding_grads").and_then(Value::as_array) else {
        return Ok(());
    };
    let loss = field(case, "loss")?;
    let options = super::functions::options(loss)?;
    let rows = columns[0].shape()[0] as f64;
    let grads = match loss.get("matryoshka_dims").filter(|dims| !dims.is_null()) {
        None => contrast(&columns, &options, None)?.grads,
        Some(dims) => {
            let dims = sizes(dims)?;
            let weights = loss.get("matryoshka_weights").filter(|weights| !weights.is_null());
            let weights = weights.map(|list| Ok::<_, anyhow::Error>(numbers(list)?.data)).transpose()?;
            matryoshka(&columns, &dims, &weights.unwrap_or_default(), &options, None)?.0.grads
        }
    };
    for (found, want) in grads.iter().zip(wanted) {
        let found: Vec<f64> = elements(found)?.into_iter().map(|value| value / rows).collect();
        tolerance.same_all("the first gradients of embeddings", &found, &numbers(want)?.data)?;
    }
    Ok(())
}

fn updates(folder: &Path, case: &Value, expected: &Value, rows: usize, split: &Split) -> Result<()> {
    let work = tempfile::tempdir()?;
    let config = config(folder, case, work.path(), rows, split, &optimizer(field(case, "optimizer")?)?)?;
    let (found, saved) = train(&config, work.path(), None)?;
    let tolerances = field(expected, "tol")?;
    let scalars = Tolerance::of(tolerances, "scalars")?;
    let wanted = list(expected, "steps")?;
    ensure!(found.len() == wanted.len(), "{} steps, expected {}", found.len(), wanted.len());
    for (step, (told, found)) in wanted.iter().zip(&found).enumerate() {
        for name in ["loss", "grad_norm"] {
            scalars.same(
                &format!("{name} of step {}", step + 1),
                found[name],
                number(field(told, name)?)?,
            )?;
        }
    }
    let bound = number(field(tolerances, "weights_abs")?)?;
    same_weights("", &saved, &folder.join("expected/model_after.safetensors"), bound)
}

/// The rows of all steps; columns and the most tokens of one.
fn write_rows(case: &Value, rows: usize, path: &Path) -> Result<(usize, usize)> {
    let steps = list(case, "columns_per_step")?;
    let (mut lines, mut longest) = (String::new(), 1);
    for step in steps {
        let columns: Vec<&Vec<Value>> =
            step.as_array().context("no columns")?.iter().filter_map(Value::as_array).collect();
        for row in 0..rows {
            let text = |column: usize| columns[column][row].clone();
            let long = |column: usize| columns[column][row].as_array().map_or(0, Vec::len);
            longest = (0..columns.len()).map(long).max().unwrap_or(1).max(longest);
            let others: Vec<Value> = (2..columns.len()).map(text).collect();
            lines += &format!("{}\n", json!({ "query": text(0), "positive": text(1), "negative": others }));
        }
    }
    std::fs::write(path, lines)?;
    Ok((steps[0].as_array().map_or(0, Vec::len), longest))
}

fn config(
    folder: &Path,
    case: &Value,
    work: &Path,
    rows: usize,
    split: &Split,
    optim: &str,
) -> Result<String> {
    let (tokenizer, lines) = (work.join("tokenizer.json"), work.join("rows.jsonl"));
    let (columns, longest) = write_rows(case, rows, &lines)?;
    let model = folder.join(text(case, "model")?);
    std::fs::write(&tokenizer, no_tokenizer(&model)?)?;
    let mut toml = format!(
        "name = 'run'\nmesh = '{}'\nlog = {{ dir = '{}', tensorboard = false }}\nmodel.init = '{}'\n\
         [data]\ntokenizer = '{}'\nsequence = {}\norder = 'sequential'\nsource = [{{ path = '{}' }}]\n\
         [optim]\n{optim}[train]\nobjective = 'contrastive'\nsteps = {}\nglobal_batch = {rows}\nmicro_batch = {}\n\
         [embedding]\nexclude_duplicates = false\npooling = ['{}']\n",
        split.mesh,
        work.display(),
        model.display(),
        tokenizer.display(),
        columns * longest,
        lines.display(),
        list(case, "columns_per_step")?.len(),
        split.micro,
        text(case, "pooling")?,
    );
    for (key, value) in field(case, "loss")?.as_object().context("`loss` is not an object")? {
        let key = if key == "hardness_mode" { "hardness" } else { key };
        if !value.is_null() && key != "neg" {
            toml += &format!("{key} = {value}\n");
        }
    }
    Ok(toml)
}
