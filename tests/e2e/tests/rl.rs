//! Learning from rewards and from preferences keeps the promises of every run, and learns.

use anyhow::{Context, Result, ensure};
use planaria_e2e::{Recorder, Run, Sandbox};
use planaria_train::Trainer;
use planaria_train::event::Event;
use std::fmt::Write;

/// A sandbox with a model that writes digits, from which others start.
fn sandbox() -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    let digits: String = (0..4000usize).map(|i| char::from(b'0' + (i * i / 7 + i * 3) as u8 % 10)).collect();
    std::fs::write(sandbox.path().join("digits.txt"), digits)?;
    let source = format!("data.source.path={}", sandbox.path().join("digits.txt").display());
    let begin = ["train.steps=30", "optim.lr=2e-2", &source];
    sandbox.train("start", "", &begin)?;
    let mut rows = String::new();
    for i in 0..64usize {
        writeln!(rows, r#"{{"prompt": "{}", "answer": "7"}}"#, 10 + i * 37 % 90)?;
    }
    std::fs::write(sandbox.path().join("prompts.jsonl"), rows)?;
    let mut rows = String::new();
    for i in 0..32usize {
        let number = 10 + i * 37 % 90;
        writeln!(
            rows,
            r#"{{"prompt": "{number}", "chosen": "77{}", "rejected": "{}1"}}"#,
            i % 10,
            (i * 3) % 10
        )?;
    }
    std::fs::write(sandbox.path().join("pairs.jsonl"), rows)?;
    Ok(sandbox)
}

fn settings(sandbox: &Sandbox, objective: &str, file: &str) -> Vec<String> {
    vec![
        format!("train.objective={objective}"),
        format!("data.source.path={}", sandbox.path().join(file).display()),
        format!("model.init={}", sandbox.run_dir("start").display()),
        "data.sequence=32".into(),
        "optim.lr=5e-3".into(),
        "optim.weight_decay=0".into(),
        "rl.samples_per_prompt=4".into(),
        "rl.max_new_tokens=5".into(),
        "rl.reward=[{kind = \"contains\"}]".into(),
    ]
}

/// The run, and its figures of one name.
fn train(
    sandbox: &Sandbox,
    until: u64,
    name: &str,
    mesh: &str,
    set: &[String],
    figure: &str,
) -> Result<(Run, Vec<f64>)> {
    let set: Vec<&str> = set.iter().map(String::as_str).collect();
    let recorder = Recorder::shared();
    let config = sandbox.config(name, mesh, &set)?;
    let outcome = Trainer::new(config).observer(recorder.clone()).until(until).run(None)?;
    let values = recorder.events().into_iter().filter_map(|event| match event {
        Event::Figures { values, .. } => {
            values.into_iter().find(|(name, _)| name == figure).map(|(_, value)| value)
        }
        _ => None,
    });
    let values = values.collect();
    Ok((sandbox.finished(name, outcome)?, values))
}

#[test]
fn rewards_rise_and_rollouts_are_the_same_on_every_split_and_after_a_cut() -> Result<()> {
    let sandbox = sandbox()?;
    let mut set = settings(&sandbox, "grpo", "prompts.jsonl");
    let short = [&set[..], &["train.steps=4".to_string()]].concat();
    let (alone, rewards) = train(&sandbox, 4, "alone", "", &short, "reward")?;
    ensure!(rewards.len() == 4, "{rewards:?}");
    for (number, mesh) in ["dp=2", "dp=4"].into_iter().enumerate() {
        let (split, told) = train(&sandbox, 4, &format!("split{number}"), mesh, &short, "reward")?;
        split.same_bits(&alone).with_context(|| mesh.to_string())?;
        ensure!(told == rewards, "{mesh}: {told:?} and {rewards:?}");
    }
    let (begun, _) = train(&sandbox, 2, "cut", "dp=2", &short, "reward")?;
    let (ended, _) = train(&sandbox, 4, "cut", "", &short, "reward")?;
    ensure!([begun.outcome.losses, ended.outcome.losses.clone()].concat() == alone.outcome.losses);
    ended.same_tensors(&alone)?;
    set.extend(["train.steps=25".into(), "rl.kl_coef=0.001".into()]);
    let (_, rewards) = train(&sandbox, 25, "long", "", &set, "reward")?;
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let (first, last) = (mean(&rewards[..4]), mean(&rewards[rewards.len() - 4..]));
    ensure!(last > first + 0.25, "rewards went from {first} to {last}: {rewards:?}");
    Ok(())
}

#[test]
fn preferences_widen_their_margin_on_every_mesh_alike() -> Result<()> {
    let sandbox = sandbox()?;
    let mut set = settings(&sandbox, "dpo", "pairs.jsonl");
    set.push("train.steps=8".into());
    let (alone, margins) = train(&sandbox, 8, "alone", "", &set, "reward_margin")?;
    ensure!(margins[0].abs() < 1e-6 && margins[7] > 0.05, "{margins:?}");
    for (number, mesh) in ["dp=2", "pp=2", "pp=2 dp=2"].into_iter().enumerate() {
        let (split, _) = train(&sandbox, 8, &format!("split{number}"), mesh, &set, "reward_margin")?;
        split.same_bits(&alone).with_context(|| mesh.to_string())?;
    }
    let (halves, _) = train(&sandbox, 8, "halves", "tp=2", &set, "reward_margin")?;
    halves.close_losses(&alone, 1e-3)
}

#[test]
fn what_cannot_be_learnt_so_is_refused() -> Result<()> {
    let sandbox = sandbox()?;
    for (objective, more, mesh, told) in [
        ("grpo", "rl.samples_per_prompt=1", "", "at least 2"),
        ("grpo", "rl.reward=[]", "", "at least one `[[rl.reward]]`"),
        ("grpo", "rl.temperature=0", "", "above 0"),
        ("grpo", "rl.eps=0", "pp=2", "`pp=1` with `grpo`"),
        ("grpo", "data.sequence=1", "", "leaves no room"),
        ("dpo", "dpo.beta=0", "", "`dpo.beta` is 0"),
        ("dpo", "data.sequence=4", "", "`data.sequence` is 4"),
    ] {
        let file = if objective == "dpo" { "pairs.jsonl" } else { "prompts.jsonl" };
        let set = [settings(&sandbox, objective, file), vec![more.to_string()]].concat();
        let error = train(&sandbox, 1, "refused", mesh, &set, "").map(|_| ());
        let error = format!("{:#}", error.unwrap_err());
        ensure!(error.contains(told), "{objective} {more}: {error}");
    }
    Ok(())
}
