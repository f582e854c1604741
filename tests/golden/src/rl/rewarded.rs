//! Whole updates from given rollouts by the trainer, in several layouts of the batch.

use crate::embeddings::training::{no_tokenizer, same_weights, same_weights_under};
use crate::values::{Tolerance, field, list, number, sizes, text};
use anyhow::{Context, Result, ensure};
use planaria_train::Trainer;
use planaria_train::config::Sources;
use planaria_train::event::{Event, Observer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The figures of every step by name.
#[derive(Default, Debug)]
struct Seen(Mutex<Vec<BTreeMap<String, f64>>>);

impl Observer for Seen {
    fn event(&self, event: &Event) {
        let Ok(mut steps) = self.0.lock() else { return };
        match event {
            Event::Step(step) => steps.push(
                [("loss".into(), step.loss), ("grad_norm".into(), step.grad_norm)].into_iter().collect(),
            ),
            Event::Figures { values, .. } => {
                if let Some(last) = steps.last_mut() {
                    last.extend(values.iter().cloned());
                }
            }
            _ => {}
        }
    }
}

/// Names of the case, and those of the trainer.
const FIGURES: [(&str, &str); 9] = [
    ("loss", "loss"),
    ("grad_norm", "grad_norm"),
    ("clip_fraction_low", "clip_fraction_low"),
    ("clip_fraction_high", "clip_fraction_high"),
    ("approx_kl_k1", "approx_kl_k1"),
    ("approx_kl_k3", "approx_kl_k3"),
    ("value_loss", "value_loss"),
    ("value_clip_fraction", "value_clip_fraction"),
    ("value_grad_norm", "critic_grad_norm"),
];

/// How the samples of a case are shared out over updates.
struct Shares {
    /// Responses to a prompt.
    group: usize,
    /// Prompts of an update.
    update: usize,
    prompts: usize,
    epochs: usize,
    steps: usize,
}

fn shares(case: &Value) -> Result<Shares> {
    let rollouts = list(case, "rollouts")?;
    let schedule = list(case, "schedule")?.iter().map(sizes).collect::<Result<Vec<_>>>()?;
    let of = |rollout: &Value| rollout.get("group").and_then(Value::as_i64);
    let group = match of(&rollouts[0]) {
        None => 1,
        first => rollouts.iter().take_while(|rollout| of(rollout) == first).count(),
    };
    let first = &schedule[0];
    let epochs = schedule.iter().filter(|update| *update == first).count();
    let update = first.len() / group;
    let expected: Vec<usize> = (0..epochs).flat_map(|_| 0..rollouts.len()).collect();
    ensure!(schedule.concat() == expected, "updates that do not go through the rollout in order");
    ensure!(schedule.iter().all(|one| one.len() == first.len()), "updates of several sizes");
    Ok(Shares { group, update, prompts: rollouts.len() / group, epochs, steps: schedule.len() })
}

pub(super) fn updates(folder: &Path, case: &Value, expected: &Value) -> Result<()> {
    let shares = shares(case)?;
    for (micro, mesh) in [(1, ""), (shares.update, ""), (1, "dp=2"), (1, "tp=2")] {
        let work = tempfile::tempdir()?;
        let config = config(folder, case, work.path(), &shares, (micro, mesh))?;
        let seen = Arc::new(Seen::default());
        let config = Sources::text("case.toml", &config).resolve()?.config;
        let outcome = Trainer::new(config).observer(seen.clone()).run(None)?;
        let found = seen.0.lock().map_err(|_| anyhow::anyhow!("the listener failed"))?.clone();
        let tolerances = field(expected, "tol")?;
        let scalars = Tolerance::of(tolerances, "scalars")?;
        let wanted = list(expected, "updates")?;
        ensure!(found.len() == wanted.len(), "{} updates, expected {}", found.len(), wanted.len());
        for (step, (told, found)) in wanted.iter().zip(&found).enumerate() {
            for (name, ours) in FIGURES {
                let Some(want) = told.get(name) else { continue };
                let found = found.get(ours).with_context(|| format!("`{ours}` was not told"))?;
                let what = format!("{name} of update {} with micro-batches of {micro} on {mesh}", step + 1);
                scalars.same(&what, *found, number(want)?)?;
            }
        }
        let bound = number(field(tolerances, "weights_abs")?)?;
        let saved = work.path().join("run").join(outcome.checkpoint.context("nothing was saved")?);
        same_weights(&saved, &folder.join("expected/policy_after.safetensors"), bound)?;
        let critic = folder.join("expected/critic_after.safetensors");
        if critic.exists() {
            same_weights_under("critic.", &saved, &critic, bound)?;
        }
    }
    Ok(())
}

/// One row for each prompt, with its responses and their scores. The most tokens of one.
fn write_rows(case: &Value, group: usize, path: &Path) -> Result<usize> {
    let mut rows = String::new();
    let mut most = 0;
    for samples in list(case, "rollouts")?.chunks(group) {
        let of = |name: &str| samples.iter().map(|sample| sample[name].clone()).collect::<Vec<_>>();
        let long = |value: &Value| value.as_array().map_or(0, Vec::len);
        let responses = of("response");
        most =
            responses.iter().map(|one| long(one) + long(&samples[0]["prompt"])).max().unwrap_or(0).max(most);
        let row = json!({ "prompt": samples[0]["prompt"], "responses": responses, "scores": of("score") });
        writeln!(rows, "{row}")?;
    }
    std::fs::write(path, rows)?;
    Ok(most)
}

fn config(
    folder: &Path,
    case: &Value,
    work: &Path,
    shares: &Shares,
    (micro, mesh): (usize, &str),
) -> Result<String> {
    let (folders, hyper) = (field(case, "folders")?, field(case, "hyper")?);
    let optim = field(hyper, "optimizer")?;
    let betas = list(optim, "betas")?;
    let clip =
        optim.get("max_grad_norm").filter(|clip| !clip.is_null()).map(number).transpose()?.unwrap_or(0.0);
    let (tokenizer, rows) = (work.join("tokenizer.json"), work.join("rows.jsonl"));
    let sequence = write_rows(case, shares.group, &rows)? + 1;
    let policy = folder.join(text(folders, "policy")?);
    std::fs::write(&tokenizer, no_tokenizer(&policy)?)?;
    let objective = text(case, "algorithm")?;
    let mut toml = format!(
        "name = 'run'\nmesh = '{mesh}'\nlog = {{ dir = '{}', tensorboard = false }}\nmodel.init = '{}'\n\
         [data]\ntokenizer = '{}'\nsequence = {sequence}\norder = 'sequential'\nsource = [{{ path = '{}' }}]\n\
         [optim]\nlr = {:e}\nbeta1 = {}\nbeta2 = {}\neps = {:e}\nweight_decay = {}\nclip = {clip}\nschedule = 'constant'\n\
         [train]\nobjective = '{objective}'\nsteps = {}\nglobal_batch = {}\nmicro_batch = {micro}\n",
        work.display(),
        policy.display(),
        tokenizer.display(),
        rows.display(),
        number(field(optim, "lr")?)?,
        number(&betas[0])?,
        number(&betas[1])?,
        number(field(optim, "eps")?)?,
        number(field(optim, "weight_decay")?)?,
        shares.steps,
        shares.update,
    );
    write_rewards(&mut toml, folder, case, shares)?;
    Ok(toml)
}

/// The sections `[rl]` and, with a critic, `[ppo]`.
fn write_rewards(toml: &mut String, folder: &Path, case: &Value, shares: &Shares) -> Result<()> {
    let (folders, hyper) = (field(case, "folders")?, field(case, "hyper")?);
    writeln!(
        toml,
        "[rl]\nresponses = 'rows'\nreward = [{{ kind = 'given', field = 'scores' }}]\nsamples_per_prompt = {}\n\
         prompts_per_rollout = {}\nepochs = {}",
        shares.group, shares.prompts, shares.epochs
    )?;
    if let Some(reference) = folders.get("reference").and_then(Value::as_str) {
        writeln!(toml, "reference = '{}'", folder.join(reference).display())?;
    }
    let renamed = [
        ("kl_kind", "kl"),
        ("ratio_level", "ratio"),
        ("objective", "surrogate"),
        ("horizon", "max_new_tokens"),
    ];
    write_keys(toml, hyper.get("policy"), &renamed)?;
    write_keys(toml, hyper.get("advantage"), &[])?;
    let score =
        hyper.get("reward").and_then(|reward| reward.get("score_clip")).filter(|clip| !clip.is_null());
    if let Some(clip) = score {
        writeln!(toml, "score_clip = {clip}")?;
    }
    if text(case, "algorithm")? != "ppo" {
        return Ok(());
    }
    writeln!(toml, "[ppo]\ncritic = '{}'", folder.join(text(folders, "critic")?).display())?;
    let critic = field(hyper, "critic_optimizer")?;
    writeln!(toml, "critic_lr = {:e}", number(field(critic, "lr")?)?)?;
    for key in ["gamma", "lambda", "value_clip", "whiten_advantages"] {
        let value = hyper.get(key).filter(|value| !value.is_null());
        writeln!(toml, "{key} = {}", value.map_or("0".to_string(), ToString::to_string))?;
    }
    let mut reward = field(hyper, "reward")?.clone();
    reward.as_object_mut().map(|keys| keys.remove("score_clip"));
    write_keys(toml, Some(&reward), &[("kl_kind", "kl")])?;
    Ok(())
}

/// The keys of a table that have values, some by other names.
fn write_keys(toml: &mut String, keys: Option<&Value>, renamed: &[(&str, &str)]) -> Result<()> {
    for (key, value) in keys.and_then(Value::as_object).into_iter().flatten().filter(|(_, v)| !v.is_null()) {
        let name = renamed.iter().find(|(theirs, _)| theirs == key).map_or(key.as_str(), |(_, ours)| ours);
        writeln!(toml, "{name} = {value}")?;
    }
    Ok(())
}
