//! Running averages of the weights: against float64 over the weights of every step, cut and resumed on other meshes; as models; and of
//! widths that the run did not keep.

use anyhow::{Context, Result, ensure};
use planaria_e2e::{Sandbox, floats, tensors};
use planaria_nn::optim::Ema;
use planaria_train::average::{self, Existing, Output, Which};
use std::collections::BTreeMap;

/// Every step is saved and stays.
const MORE: [&str; 6] = [
    "checkpoint.every=1",
    "checkpoint.behind=wait",
    "checkpoint.keep_every=1",
    "optim.lr=0.01",
    "optim.ema=0.9",
    "optim.averages=[{ sigma = 0.05 }, { sigma = 0.1 }, { decay = 0.5, every = 3 }]",
];

type Weights = BTreeMap<String, Vec<f32>>;

/// The tensors of a checkpoint whose names begin and end so.
fn named(sandbox: &Sandbox, step: u64, begin: &str, end: &str) -> Result<Weights> {
    let folder = sandbox.run_dir("run").join(format!("ckpt/step-{step:08}"));
    let mut found = BTreeMap::new();
    for (name, content) in tensors(&folder)? {
        if let Some(name) = name.strip_prefix(begin).and_then(|name| name.strip_suffix(end)) {
            found.insert(name.to_string(), floats(&content)?);
        }
    }
    ensure!(!found.is_empty(), "no {begin}*{end} in {}", folder.display());
    Ok(found)
}

/// The mean by its definition, in float64: later values leave less of earlier ones.
fn reference(all: &[Weights], name: &str, profile: Ema, every: u64) -> Result<Vec<f64>> {
    let mut mean: Vec<f64> = Vec::new();
    let chosen = all.iter().zip(1..).filter(|(_, step)| u64::is_multiple_of(*step, every));
    for ((weights, _), number) in chosen.zip(1..) {
        let now = weights.get(name).with_context(|| format!("no `{name}`"))?;
        mean.resize(now.len(), 0.0);
        let gain = profile.gain(number);
        mean.iter_mut().zip(now).for_each(|(mean, now)| *mean += gain * (f64::from(*now) - *mean));
    }
    Ok(mean)
}

fn close(found: &[f32], expected: &[f64], bound: f64) -> bool {
    let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() <= bound * largest)
}

/// `PLANARIA_TRIALS=10` makes nine hundred steps.
#[test]
fn averages_are_those_of_float64_whatever_meshes_the_run_was_on() -> Result<()> {
    let times = std::env::var("PLANARIA_TRIALS").map_or(Ok(1), |times| times.parse::<u64>())?;
    let steps = 90 * times;
    let sandbox = Sandbox::new()?;
    let meshes = [(steps / 9, "dp=2"), (steps / 3, "pp=2 dp=2"), (steps * 3 / 4, ""), (steps, "dp=4")];
    let all_steps = format!("train.steps={steps}");
    for ((until, mesh), zero) in
        meshes.into_iter().zip(["train.zero=1", "train.zero=3", "train.zero=0", "train.zero=2"])
    {
        let more = [&MORE[..], &[all_steps.as_str(), zero]].concat();
        sandbox.train_until(until, "run", mesh, &more)?;
    }
    let all: Vec<Weights> =
        (1..=steps).map(|step| named(&sandbox, step, "model:", "")).collect::<Result<_>>()?;
    let kept = [
        (Ema::new(0.9)?, 1, named(&sandbox, steps, "ema:", "")?),
        (Ema::power(0.05)?, 1, named(&sandbox, steps, "optimizer:", "/ema_1")?),
        (Ema::power(0.1)?, 1, named(&sandbox, steps, "optimizer:", "/ema_2")?),
        (Ema::new(0.5)?, 3, named(&sandbox, steps, "optimizer:", "/ema_3")?),
    ];
    for (profile, every, found) in &kept {
        for (name, values) in found {
            let expected = reference(&all, name, *profile, *every)?;
            ensure!(close(values, &expected, 2e-6), "{profile:?} of `{name}`");
        }
    }

    // A kept one as a model, and one that was not kept made of two that were.
    let (run, out) = (sandbox.run_dir("run"), sandbox.path().join("kept"));
    let new = |folder| Output { folder, existing: Existing::Refuse };
    average::write(&run, &new(&out), Which::Kept(2), None)?;
    let again = average::write(&run, &new(&out), Which::Kept(1), None).err();
    ensure!(again.is_some_and(|error| error.to_string().contains("already exists")), "what is there stays");
    let model: Weights = tensors(&out)?
        .into_iter()
        .map(|(name, content)| Ok((name, floats(&content)?)))
        .collect::<Result<_>>()?;
    for (name, values) in &kept[2].2 {
        ensure!(model.get(&format!("model:{name}")) == Some(values), "`{name}` of the model");
    }
    let out = sandbox.path().join("made");
    let made = average::write(&run, &new(&out), Which::Sigma(0.07), None)?;
    ensure!(made.error < 0.05 && made.step == steps, "{made:?}");
    for (name, content) in tensors(&out)? {
        let name = name.trim_start_matches("model:");
        let expected = reference(&all, name, Ema::power(0.07)?, 1)?;
        ensure!(close(&floats(&content)?, &expected, 1e-2), "`{name}` of the one that was made");
    }
    let refused = average::write(&run, &new(&sandbox.path().join("none")), Which::Kept(4), None).err();
    ensure!(refused.is_some_and(|error| error.to_string().contains("below 4")), "a fifth average");
    Ok(())
}

/// A loss scale that overflows at first: steps without an update are in no average, cut and resumed or not.
#[test]
fn skipped_steps_are_in_no_average() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let steps = 24;
    let mut more = MORE.to_vec();
    more.extend(["train.steps=24", "train.precision=f16", "optim.loss_scale=1e9", "train.zero=1"]);
    for (until, mesh) in [(3, "dp=2"), (13, ""), (steps, "pp=2 dp=2")] {
        sandbox.train_until(until, "run", mesh, &more)?;
    }
    let metrics = std::fs::read_to_string(sandbox.run_dir("run").join("metrics.jsonl"))?;
    let is_skipped = |step: u64| {
        let of = |line: &&str| line.contains(&format!("\"step\":{step},"));
        metrics.lines().filter(of).any(|line| line.contains("\"skipped\":1"))
    };
    let updated: Vec<u64> = (1..=steps).filter(|&step| !is_skipped(step)).collect();
    ensure!(updated.len() > 8 && updated.len() + 2 < steps as usize, "steps with an update: {updated:?}");
    let all: Vec<Weights> =
        updated.iter().map(|&step| named(&sandbox, step, "master_weights:", "")).collect::<Result<_>>()?;
    let last = *updated.last().context("no step")?;
    for (profile, every, begin, end) in [
        (Ema::new(0.9)?, 1, "ema:", ""),
        (Ema::power(0.1)?, 1, "optimizer:", "/ema_2"),
        (Ema::new(0.5)?, 3, "optimizer:", "/ema_3"),
    ] {
        for (name, values) in named(&sandbox, last, begin, end)? {
            ensure!(
                close(&values, &reference(&all, &name, profile, every)?, 2e-6),
                "{profile:?} of `{name}`"
            );
        }
    }
    Ok(())
}
