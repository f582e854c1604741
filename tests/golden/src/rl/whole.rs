//! Whole updates from pairs of responses by the trainer, in several layouts of the batch.

use crate::cases::Verdict;
use crate::embeddings::verdict;
use crate::learned::{PLAIN, fitting, no_tokenizer, optimizer, same_gradients, same_weights, train};
use crate::values::{Tolerance, field, list, number, numbers, sizes, text};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::Path;

pub(super) fn check(folder: &Path) -> Verdict {
    let read = |name: &str| -> Result<Value> {
        let content =
            std::fs::read_to_string(folder.join(name)).with_context(|| format!("reading {name}"))?;
        Ok(serde_json::from_str(&content)?)
    };
    let both = || -> Result<(Value, Value)> { Ok((read("case.json")?, read("expected/expected.json")?)) };
    match both() {
        Err(error) => verdict(Err(error)),
        Ok((case, expected)) if case["algorithm"] == "dpo" => verdict(preferences(folder, &case, &expected)),
        Ok((case, expected)) => verdict(super::rewarded::updates(folder, &case, &expected)),
    }
}

/// A layout of the batch; all pairs of an update in one micro-batch where nothing is said.
struct Split<'a> {
    micro: Option<usize>,
    mesh: &'a str,
}

fn preferences(folder: &Path, case: &Value, expected: &Value) -> Result<()> {
    let policy = folder.join(text(field(case, "folders")?, "policy")?);
    let schedule = list(case, "schedule")?.iter().map(sizes).collect::<Result<Vec<_>>>()?;
    let even = schedule.iter().all(|update| update.len().is_multiple_of(2));
    for mesh in fitting(&policy, &["", "dp=2", "pp=2", "tp=2"])? {
        for micro in if mesh.is_empty() { vec![Some(1), None] } else { vec![Some(1)] } {
            if mesh != "dp=2" || even {
                let split = Split { micro, mesh };
                updates(folder, case, expected, &schedule, &split)
                    .with_context(|| format!("micro-batches of {micro:?} on '{mesh}'"))?;
            }
        }
    }
    let wanted = folder.join("expected/policy_grad.safetensors");
    if !wanted.exists() {
        return Ok(());
    }
    let work = tempfile::tempdir()?;
    let split = Split { micro: Some(1), mesh: "" };
    let config = config(folder, case, work.path(), (&schedule, 0), &split, PLAIN)?;
    let (_, saved) = train(&config, work.path(), Some(1))?;
    let tolerance = Tolerance::of(field(expected, "tol")?, "gradients")?;
    same_gradients("", (&policy, &saved), &wanted, &tolerance)
}

/// All updates. Those of another size than the one before are a run that goes on with that size.
fn updates(
    folder: &Path,
    case: &Value,
    expected: &Value,
    schedule: &[Vec<usize>],
    split: &Split<'_>,
) -> Result<()> {
    let work = tempfile::tempdir()?;
    let optim = optimizer(field(field(case, "hyper")?, "optimizer")?)?;
    let (mut found, mut saved, mut done) = (Vec::new(), None, 0);
    while done < schedule.len() {
        let alike = schedule[done..].iter().take_while(|next| next.len() == schedule[done].len()).count();
        let config = config(folder, case, work.path(), (schedule, done), split, &optim)?;
        done += alike;
        let (told, newest) = train(&config, work.path(), Some(done as u64))?;
        found.extend(told);
        saved = Some(newest);
    }
    let tolerances = field(expected, "tol")?;
    let scalars = Tolerance::of(tolerances, "scalars")?;
    let wanted = list(expected, "updates")?;
    ensure!(found.len() == wanted.len(), "{} updates, expected {}", found.len(), wanted.len());
    for (step, (told, found)) in wanted.iter().zip(&found).enumerate() {
        let same = |what: &str, ours: &str, want: f64| {
            let got = found.get(ours).with_context(|| format!("`{ours}` was not told"))?;
            scalars.same(&format!("{what} of update {}", step + 1), *got, want)
        };
        for name in ["loss", "grad_norm"] {
            same(name, name, number(field(told, name)?)?)?;
        }
        for (name, ours) in [("chosen_rewards", "reward_chosen"), ("rejected_rewards", "reward_rejected")] {
            if let Some(want) = told.get(name) {
                let want = numbers(want)?.data;
                same(name, ours, want.iter().sum::<f64>() / want.len().max(1) as f64)?;
            }
        }
    }
    let bound = number(field(tolerances, "weights_abs")?)?;
    let saved = saved.context("there is no update")?;
    same_weights("", &saved, &folder.join("expected/policy_after.safetensors"), bound)
}

fn config(
    folder: &Path,
    case: &Value,
    work: &Path,
    (schedule, at): (&[Vec<usize>], usize),
    split: &Split<'_>,
    optim: &str,
) -> Result<String> {
    let (folders, hyper, pairs) = (field(case, "folders")?, field(case, "hyper")?, list(case, "pairs")?);
    let rows = schedule.iter().flatten().map(|&at| {
        let pair = &pairs[at];
        let row = json!({ "prompt": pair["prompt"], "chosen": pair["chosen"], "rejected": pair["rejected"] });
        format!("{row}\n")
    });
    std::fs::write(work.join("rows.jsonl"), rows.collect::<String>())?;
    let length = |pair: &Value| {
        let of = |name: &str| pair[name].as_array().map_or(0, Vec::len);
        2 * of("prompt") + of("chosen") + of("rejected")
    };
    let sequence = pairs.iter().map(length).max().unwrap_or(2).next_multiple_of(2);
    let (tokenizer, policy) = (work.join("tokenizer.json"), folder.join(text(folders, "policy")?));
    std::fs::write(&tokenizer, no_tokenizer(&policy)?)?;
    let update = schedule[at].len();
    let mut toml = format!(
        "name = 'run'\nmesh = '{}'\nlog = {{ dir = '{}', tensorboard = false }}\nmodel.init = '{}'\n\
         [data]\ntokenizer = '{}'\nsequence = {sequence}\norder = 'sequential'\nsource = [{{ path = '{}' }}]\n\
         [optim]\n{optim}[train]\nobjective = 'dpo'\nsteps = {}\nglobal_batch = {update}\nmicro_batch = {}\n[dpo]\n",
        split.mesh,
        work.display(),
        policy.display(),
        tokenizer.display(),
        work.join("rows.jsonl").display(),
        schedule.len(),
        split.micro.unwrap_or(update),
    );
    if let Some(reference) = folders.get("reference").and_then(Value::as_str) {
        toml += &format!("reference = '{}'\n", folder.join(reference).display());
    }
    for (key, value) in field(hyper, "preference")?.as_object().context("`preference` is no object")? {
        if !value.is_null() {
            toml += &format!("{key} = {value}\n");
        }
    }
    Ok(toml)
}
