//! Whole updates from pairs of responses by the trainer, in several layouts of the batch.

use crate::cases::Verdict;
use crate::embeddings::training::{Steps, no_tokenizer, same_weights};
use crate::embeddings::verdict;
use crate::values::{Tolerance, field, list, number, text};
use anyhow::{Context, Result, ensure};
use planaria_train::Trainer;
use planaria_train::config::Sources;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

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

fn preferences(folder: &Path, case: &Value, expected: &Value) -> Result<()> {
    let pairs = list(case, "pairs")?;
    let schedule = list(case, "schedule")?;
    let order = schedule.iter().map(crate::values::sizes).collect::<Result<Vec<_>>>()?;
    let update = order[0].len();
    ensure!(order.iter().all(|one| one.len() == update), "updates of several sizes");
    for (micro, mesh) in [(1, ""), (update, ""), (1, "dp=2"), (1, "pp=2"), (1, "tp=2")] {
        let work = tempfile::tempdir()?;
        let rows = order.iter().flatten().map(|&at| {
            let pair = &pairs[at];
            format!(
                "{}\n",
                json!({ "prompt": pair["prompt"], "chosen": pair["chosen"], "rejected": pair["rejected"] })
            )
        });
        std::fs::write(work.path().join("rows.jsonl"), rows.collect::<String>())?;
        let length = |pair: &Value| {
            let of = |name: &str| pair[name].as_array().map_or(0, Vec::len);
            2 * of("prompt") + of("chosen") + of("rejected")
        };
        let sequence = pairs.iter().map(length).max().unwrap_or(2).next_multiple_of(2);
        let config = config(folder, case, work.path(), (update, micro, order.len(), sequence), mesh)?;
        let seen = Arc::new(Steps::default());
        let config = Sources::text("case.toml", &config).resolve()?.config;
        let outcome = Trainer::new(config).observer(seen.clone()).run(None)?;
        let found = seen.0.lock().map_err(|_| anyhow::anyhow!("the listener failed"))?.clone();
        let tolerances = field(expected, "tol")?;
        let scalars = Tolerance::of(tolerances, "scalars")?;
        for (step, (told, (loss, norm))) in list(expected, "updates")?.iter().zip(found).enumerate() {
            let of =
                |what: &str| format!("{what} of update {} with micro-batches of {micro} on {mesh}", step + 1);
            scalars.same(&of("loss"), loss, number(field(told, "loss")?)?)?;
            scalars.same(&of("grad_norm"), norm, number(field(told, "grad_norm")?)?)?;
        }
        let bound = number(field(tolerances, "weights_abs")?)?;
        let saved = work.path().join("run").join(outcome.checkpoint.context("nothing was saved")?);
        same_weights(&saved, &folder.join("expected/policy_after.safetensors"), bound)?;
    }
    Ok(())
}

fn config(
    folder: &Path,
    case: &Value,
    work: &Path,
    (update, micro, steps, sequence): (usize, usize, usize, usize),
    mesh: &str,
) -> Result<String> {
    let (folders, hyper) = (field(case, "folders")?, field(case, "hyper")?);
    let (optim, preference) = (field(hyper, "optimizer")?, field(hyper, "preference")?);
    let betas = list(optim, "betas")?;
    let clip =
        optim.get("max_grad_norm").filter(|clip| !clip.is_null()).map(number).transpose()?.unwrap_or(0.0);
    let tokenizer = work.join("tokenizer.json");
    let policy = folder.join(text(folders, "policy")?);
    std::fs::write(&tokenizer, no_tokenizer(&policy)?)?;
    let mut toml = format!(
        "name = 'run'\nmesh = '{mesh}'\nlog = {{ dir = '{}', tensorboard = false }}\nmodel.init = '{}'\n\
         [data]\ntokenizer = '{}'\nsequence = {sequence}\norder = 'sequential'\nsource = [{{ path = '{}' }}]\n\
         [optim]\nlr = {:e}\nbeta1 = {}\nbeta2 = {}\neps = {:e}\nweight_decay = {}\nclip = {clip}\nschedule = 'constant'\n\
         [train]\nobjective = 'dpo'\nsteps = {steps}\nglobal_batch = {update}\nmicro_batch = {micro}\n\
         [dpo]\nreference = '{}'\n",
        work.display(),
        policy.display(),
        tokenizer.display(),
        work.join("rows.jsonl").display(),
        number(field(optim, "lr")?)?,
        number(&betas[0])?,
        number(&betas[1])?,
        number(field(optim, "eps")?)?,
        number(field(optim, "weight_decay")?)?,
        folder.join(text(folders, "reference")?).display(),
    );
    for (key, value) in preference.as_object().context("`preference` is no object")? {
        if !value.is_null() {
            toml += &format!("{key} = {value}\n");
        }
    }
    Ok(toml)
}
