//! Whole updates from given rollouts by the trainer, in several layouts of the batch.

use super::shares::Shares;
use crate::learned::{PLAIN, fitting, no_tokenizer, optimizer, same_gradients, same_weights, train};
use crate::values::{Tolerance, field, list, maybe, number, numbers, text};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Names of the case, and those of the trainer.
const FIGURES: [(&str, &str); 10] = [
    ("loss", "loss"),
    ("grad_norm", "grad_norm"),
    ("clip_fraction_low", "clip_fraction_low"),
    ("clip_fraction_high", "clip_fraction_high"),
    ("approx_kl_k1", "approx_kl_k1"),
    ("approx_kl_k3", "approx_kl_k3"),
    ("kl", "kl"),
    ("value_loss", "value_loss"),
    ("value_clip_fraction", "value_clip_fraction"),
    ("value_grad_norm", "critic_grad_norm"),
];

/// Names of tensors on the way, and those of a rollout in a checkpoint.
const TENSORS: [(&str, &str); 5] = [
    ("old_logprobs", "old"),
    ("ref_logprobs", "reference"),
    ("values", "values"),
    ("advantages", "advantages"),
    ("returns", "returns"),
];

/// A layout of the batch.
struct Split<'a> {
    shares: Shares,
    /// Prompts of a micro-batch.
    micro: usize,
    mesh: &'a str,
}

/// How the weights move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moves {
    AsSaid,
    /// By the gradient.
    Plainly,
}

pub(super) fn updates(folder: &Path, case: &Value, expected: &Value) -> Result<()> {
    let policy = folder.join(text(field(case, "folders")?, "policy")?);
    let whole = Shares::of(case, 1, None)?.update;
    for mesh in fitting(&policy, &["", "dp=2", "pp=2", "tp=2"])? {
        for micro in if mesh.is_empty() { vec![1, whole] } else { vec![1] } {
            let ranks = if mesh == "dp=2" { 2 } else { 1 };
            let split = Split { shares: Shares::of(case, ranks, Some(micro))?, micro, mesh };
            moved(folder, case, expected, &split)
                .with_context(|| format!("micro-batches of {micro} on '{mesh}'"))?;
        }
    }
    gradients(folder, case, expected)
}

/// All updates; where one is inside a rollout the run is cut there, so that the rollout can be looked at.
fn moved(folder: &Path, case: &Value, expected: &Value, split: &Split<'_>) -> Result<()> {
    let work = tempfile::tempdir()?;
    let config = config(folder, case, work.path(), split, Moves::AsSaid)?;
    let mut found = Vec::new();
    if split.shares.steps > 1 {
        let (told, saved) = train(&config, work.path(), Some(1))?;
        found.extend(told);
        same_rollout(&saved, expected, &split.shares)?;
    }
    let (told, saved) = train(&config, work.path(), None)?;
    found.extend(told);
    let tolerances = field(expected, "tol")?;
    let scalars = Tolerance::of(tolerances, "scalars")?;
    let wanted = list(expected, "updates")?;
    ensure!(found.len() == wanted.len(), "{} updates, expected {}", found.len(), wanted.len());
    let exact_entropy = maybe(&case["hyper"]["policy"], "entropy_coef")?.unwrap_or(0.0) != 0.0;
    for (step, (told, found)) in wanted.iter().zip(&found).enumerate() {
        let entropy = exact_entropy.then_some(("entropy", "entropy"));
        for (name, ours) in FIGURES.into_iter().chain(entropy) {
            let Some(want) = told.get(name) else { continue };
            let found = found.get(ours).with_context(|| format!("`{ours}` was not told"))?;
            scalars.same(&format!("{name} of update {}", step + 1), *found, number(want)?)?;
        }
    }
    let bound = number(field(tolerances, "weights_abs")?)?;
    same_weights("", &saved, &folder.join("expected/policy_after.safetensors"), bound)?;
    let critic = folder.join("expected/critic_after.safetensors");
    if critic.exists() {
        same_weights("critic.", &saved, &critic, bound)?;
    }
    Ok(())
}

/// What the first update began with, as the checkpoint after it has it.
fn same_rollout(saved: &Path, expected: &Value, shares: &Shares) -> Result<()> {
    let content = std::fs::read_to_string(saved.join("rollout.json")).context("reading the rollout")?;
    let rollout: Value = serde_json::from_str(&content)?;
    let records = list(&rollout, "records")?;
    let tolerance = Tolerance::of(field(expected, "tol")?, "scalars")?;
    for (theirs, ours) in TENSORS {
        let Some(want) = expected.get(theirs).filter(|want| !want.is_null()) else { continue };
        let want = numbers(want)?;
        let width: usize = want.shape[1..].iter().product();
        for (record, place) in records.iter().zip(shares.places.iter().flatten()) {
            let Some(sample) = *place else { continue };
            let bits = |word: &Value| word.as_u64().map(|word| f64::from(f32::from_bits(word as u32)));
            let found: Option<Vec<f64>> = list(record, ours)?.iter().map(bits).collect();
            let found = found.with_context(|| format!("`{ours}` of a record has no numbers"))?;
            let row = &want.data[sample * width..][..width];
            // One number of a response is that of all its tokens.
            let row = if want.shape.len() == 1 { vec![row[0]; found.len()] } else { row.to_vec() };
            ensure!(found.len() <= row.len(), "{theirs} of sample {sample} has {} numbers", found.len());
            tolerance.same_all(&format!("{theirs} of sample {sample}"), &found, &row[..found.len()])?;
        }
    }
    Ok(())
}

/// The gradients of the first update.
fn gradients(folder: &Path, case: &Value, expected: &Value) -> Result<()> {
    let folders = field(case, "folders")?;
    let tolerance = Tolerance::of(field(expected, "tol")?, "gradients")?;
    let work = tempfile::tempdir()?;
    let split = Split { shares: Shares::of(case, 1, None)?, micro: 1, mesh: "" };
    let config = config(folder, case, work.path(), &split, Moves::Plainly)?;
    let (_, saved) = train(&config, work.path(), Some(1))?;
    for (model, prefix) in [("policy", ""), ("critic", "critic.")] {
        let wanted = folder.join(format!("expected/{model}_grad.safetensors"));
        if wanted.exists() {
            let before = folder.join(text(folders, model)?);
            same_gradients(prefix, (&before, &saved), &wanted, &tolerance)?;
        }
    }
    Ok(())
}

fn config(folder: &Path, case: &Value, work: &Path, split: &Split<'_>, moves: Moves) -> Result<String> {
    let (folders, hyper) = (field(case, "folders")?, field(case, "hyper")?);
    let (tokenizer, rows) = (work.join("tokenizer.json"), work.join("rows.jsonl"));
    let (lines, longest) = split.shares.rows(case)?;
    std::fs::write(&rows, lines)?;
    let policy = folder.join(text(folders, "policy")?);
    std::fs::write(&tokenizer, no_tokenizer(&policy)?)?;
    let optim = match moves {
        Moves::AsSaid => optimizer(field(hyper, "optimizer")?)?,
        Moves::Plainly => PLAIN.to_string(),
    };
    let mut toml = format!(
        "name = 'run'\nmesh = '{}'\nlog = {{ dir = '{}', tensorboard = false }}\nmodel.init = '{}'\n\
         [data]\ntokenizer = '{}'\nsequence = {}\norder = 'sequential'\nsource = [{{ path = '{}' }}]\n\
         [optim]\n{optim}[train]\nobjective = '{}'\nsteps = {}\nglobal_batch = {}\nmicro_batch = {}\n",
        split.mesh,
        work.display(),
        policy.display(),
        tokenizer.display(),
        longest + 1,
        rows.display(),
        text(case, "algorithm")?,
        split.shares.steps,
        split.shares.update,
        split.micro,
    );
    write_rewards(&mut toml, folder, case, &split.shares, moves)?;
    Ok(toml)
}

/// The sections `[rl]` and, with a critic, `[ppo]`.
fn write_rewards(
    toml: &mut String,
    folder: &Path,
    case: &Value,
    shares: &Shares,
    moves: Moves,
) -> Result<()> {
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
    let mut reward = hyper.get("reward").cloned().unwrap_or_default();
    // Bounds and penalties of scores are those of every objective, what tokens get is that of a critic's.
    for name in ["score_clip", "missing_eos_penalty"] {
        if let Some(value) =
            reward.as_object_mut().and_then(|keys| keys.remove(name)).filter(|v| !v.is_null())
        {
            writeln!(toml, "{name} = {value}")?;
        }
    }
    if text(case, "algorithm")? != "ppo" {
        return Ok(());
    }
    writeln!(toml, "[ppo]\ncritic = '{}'", folder.join(text(folders, "critic")?).display())?;
    let critic = hyper.get("critic_optimizer").unwrap_or(field(hyper, "optimizer")?);
    match moves {
        Moves::Plainly => writeln!(toml, "critic_lr = 1.0")?,
        Moves::AsSaid => {
            let keys = optimizer(critic)?;
            for line in keys.lines().filter(|line| !line.starts_with("schedule")) {
                writeln!(toml, "critic_{line}")?;
            }
        }
    }
    let given: BTreeMap<&str, &Value> = ["gamma", "lambda", "value_clip", "whiten_advantages"]
        .into_iter()
        .filter_map(|key| Some((key, hyper.get(key)?)))
        .collect();
    for (key, value) in given {
        writeln!(toml, "{key} = {}", if value.is_null() { "0".to_string() } else { value.to_string() })?;
    }
    write_keys(toml, Some(&reward), &[("kl_kind", "kl")])
}

/// The keys of a table that have values, some by other names.
fn write_keys(toml: &mut String, keys: Option<&Value>, renamed: &[(&str, &str)]) -> Result<()> {
    for (key, value) in keys.and_then(Value::as_object).into_iter().flatten().filter(|(_, v)| !v.is_null()) {
        let name = renamed.iter().find(|(theirs, _)| theirs == key).map_or(key.as_str(), |(_, ours)| ours);
        writeln!(toml, "{name} = {value}")?;
    }
    Ok(())
}
