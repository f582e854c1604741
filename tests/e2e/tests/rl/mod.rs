//! Learning from rewards and from preferences keeps the promises of every run, and learns.

mod adapted;
mod distance;
mod divided;
mod found;
mod judged;
mod parity;
mod variants;

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

/// A sandbox with a model that was fine-tuned on some sums for a while, and prompts of sums.
fn sums() -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    let all: Vec<(usize, usize)> = (0..16).map(|i| (i / 4, i % 4)).collect();
    let mut rows = String::new();
    for (a, b) in &all {
        writeln!(rows, r#"{{"prompt": "{a}+{b}=", "completion": "{}"}}"#, a + b)?;
    }
    std::fs::write(sandbox.path().join("sums.jsonl"), rows)?;
    let source = format!("data.source.path={}", sandbox.path().join("sums.jsonl").display());
    let tuned = ["train.objective=sft", "train.steps=160", "optim.lr=1e-2", "data.sequence=24", &source];
    sandbox.train("start", "", &tuned)?;
    let mut rows = String::new();
    for (a, b) in all {
        writeln!(rows, r#"{{"prompt": "{a}+{b}="}}"#)?;
    }
    std::fs::write(sandbox.path().join("prompts.jsonl"), rows)?;
    Ok(sandbox)
}

fn ppo(sandbox: &Sandbox) -> Vec<String> {
    let mut set = settings(sandbox, "ppo", "prompts.jsonl");
    set.retain(|key| !key.starts_with("rl.reward") && !key.starts_with("rl.samples"));
    set.extend(
        [
            "rl.reward=[{kind = \"arithmetic\"}]",
            "rl.samples_per_prompt=2",
            "rl.max_new_tokens=2",
            "rl.prompts_per_rollout=16",
            "rl.epochs=2",
            "ppo.critic_lr=5e-3",
            "ppo.kl_coef=0.01",
            "train.global_batch=8",
            "train.micro_batch=2",
        ]
        .map(String::from),
    );
    set
}

#[test]
fn a_critic_learns_beside_the_policy_and_a_rollout_goes_on_where_it_was_cut() -> Result<()> {
    let sandbox = sums()?;
    let short = [ppo(&sandbox), vec!["train.steps=7".into()]].concat();
    let (alone, rewards) = train(&sandbox, 7, "alone", "", &short, "reward")?;
    // Four steps learn from each rollout: two updates of eight prompts, twice.
    ensure!(rewards[0] == rewards[3] && rewards[4] == rewards[6], "{rewards:?}");
    let (_, far) = train(&sandbox, 7, "again", "", &short, "reference_kl")?;
    // A second rollout is of a policy that has moved.
    ensure!(far[..4] == [0.0; 4] && far[4] != 0.0 && far[4] == far[6], "{far:?}");
    for (number, mesh) in ["dp=2", "dp=4"].into_iter().enumerate() {
        let (split, told) = train(&sandbox, 7, &format!("split{number}"), mesh, &short, "reward")?;
        split.same_bits(&alone).with_context(|| mesh.to_string())?;
        ensure!(told == rewards, "{mesh}: {told:?} and {rewards:?}");
    }
    // Cut inside the first pass over a rollout, inside the second, and inside the next rollout; on other meshes each time.
    let mut losses = Vec::new();
    for (until, mesh) in [(1, "dp=2"), (3, ""), (6, "dp=4"), (7, "dp=2")] {
        let (part, _) = train(&sandbox, until, "cut", mesh, &short, "reward")?;
        losses.extend(part.outcome.losses.clone());
        if until == 7 {
            part.same_tensors(&alone)?;
        }
    }
    ensure!(losses == alone.outcome.losses, "{losses:?} and {:?}", alone.outcome.losses);
    let changed = [&short[..], &["rl.epochs=3".into(), "train.steps=9".into()]].concat();
    let error = train(&sandbox, 9, "alone", "", &changed, "").map(|_| ()).unwrap_err();
    let error = format!("{error:#}");
    ensure!(error.contains("keep `[rl]` as it was"), "{error}");
    Ok(())
}

#[test]
fn sums_become_right_by_their_rewards() -> Result<()> {
    let sandbox = sums()?;
    let long =
        ["optim.schedule=\"constant\"", "rl.samples_per_prompt=8", "ppo.critic_lr=1e-2", "train.steps=96"];
    let long = [ppo(&sandbox), long.map(String::from).into()].concat();
    // The same, but responses are compared with each other.
    let compared = ["train.objective=grpo", "rl.epochs=1", "optim.lr=1e-2", "train.steps=80"];
    let compared = [long.clone(), compared.map(String::from).into()].concat();
    for (name, set, steps) in [("ppo", long, 96), ("grpo", compared, 80)] {
        let (_, rewards) = train(&sandbox, steps, name, "", &set, "reward")?;
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        let (first, last) = (mean(&rewards[..8]), mean(&rewards[rewards.len() - 8..]));
        ensure!(last > first + 0.2, "rewards of {name} went from {first} to {last}: {rewards:?}");
    }
    Ok(())
}

#[test]
fn responses_of_rows_and_their_failed_rewards_are_handled() -> Result<()> {
    let sandbox = sums()?;
    let mut set = ppo(&sandbox);
    let broken = "rl.reward=[{kind = \"command\", command = [\"sh\", \"-c\", \"cat > /dev/null; exit 3\"], retries = 0}]";
    set.extend(["train.steps=1".to_string(), broken.to_string()]);
    let told = |set: &[String], name: &str| -> Result<String> {
        let error = train(&sandbox, 1, name, "", set, "").map(|_| ());
        Ok(format!("{:#}", error.err().context("it was not refused")?))
    };
    let error = told(&set, "broken")?;
    ensure!(
        error.contains("none of the 32 responses of step 1 got a reward") && error.contains("status: 3"),
        "{error}"
    );
    // One call of two fails: its groups count nothing, the others do, and it is told.
    let script = "while read l; do case \"$l\" in *0+0*) exit 3;; *) echo '{\"score\": 1}';; esac; done";
    std::fs::write(sandbox.path().join("judge.sh"), script)?;
    let judge = sandbox.path().join("judge.sh");
    let half = format!(
        "rl.reward=[{{kind = \"command\", command = [\"sh\", \"{}\"], retries = 0}}]",
        judge.display()
    );
    set.push(half.to_string());
    let (_, unscored) = train(&sandbox, 1, "half", "", &set, "unscored")?;
    ensure!(unscored == [4.0 / 32.0], "{unscored:?}");
    // Ranks that share a matrix have the same responses: one asks for all.
    let (_, unscored) = train(&sandbox, 1, "shared", "tp=2", &set, "unscored")?;
    ensure!(unscored == [4.0 / 32.0], "{unscored:?}");
    set.extend(["rl.responses=rows".into(), "rl.reward=[{kind = \"given\", field = \"scores\"}]".into()]);
    let error = told(&set, "rows")?;
    ensure!(error.contains("there is no list `responses`"), "{error}");
    let rows = |response: &str| {
        let row = format!(r#"{{"prompt": "1+1=", "responses": {response}, "scores": [1, 0]}}"#);
        std::fs::write(sandbox.path().join("prompts.jsonl"), format!("{row}\n").repeat(16))
    };
    rows("[[50, 0], []]")?;
    // An empty response counts nothing.
    let (_, tokens) = train(&sandbox, 1, "empty", "", &set, "response_tokens")?;
    ensure!(tokens == [1.0], "{tokens:?}");
    for (number, (wrong, expected)) in [
        ("[[50]]", "it has 1 responses"),
        ("[[50], [99999]]", "token ids below"),
        ("[[50], [50, \"x\"]]", "token ids below"),
        ("[[50], [-100]]", "token ids below"),
    ]
    .into_iter()
    .enumerate()
    {
        rows(wrong)?;
        let error = told(&set, &format!("wrong{number}"))?;
        ensure!(error.contains(expected), "{error}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_learnt_so_is_refused() -> Result<()> {
    let sandbox = sandbox()?;
    for (objective, more, mesh, told) in [
        ("grpo", "rl.samples_per_prompt=1", "", "at least 2"),
        ("grpo", "rl.reward=[]", "", "at least one `[[rl.reward]]`"),
        ("grpo", "rl.temperature=0", "", "above 0"),
        ("grpo", "rl.rows=0", "", "`rl.rows` is 0"),
        ("grpo", "rl.max_gen_batches=0", "", "`rl.max_gen_batches` is 0"),
        ("ppo", "rl.max_gen_batches=2\nrl.samples_per_prompt=1", "", "looks for responses that differ"),
        ("ppo", "ppo.kl_target=0.1\nppo.kl_coef=0", "", "with `ppo.kl_target`"),
        ("grpo", "rl.reward=[{kind = \"regex\", pattern = \"(\"}]", "", "`rl.reward.pattern`"),
        ("grpo", "rl.reward=[{kind = \"length\"}]", "", "`rl.reward.tokens`"),
        ("grpo", "rl.reward=[{kind = \"rude\"}]", "", "rude"),
        ("grpo", "rl.reward=[{kind = \"exact\", weight = \"x\"}]", "", "weight"),
        ("grpo", "rl.reward=[{kind = \"model\", path = \"START\"}]", "", "a model without a head of values"),
        ("ppo", "rl.prompts_per_rollout=3", "", "update: 8; or `train.global_batch` 3"),
        ("ppo", "rl.prompts_per_rollout=12", "", "update: 8 or 16; or `train.global_batch` 6 or 12"),
        ("grpo", "train.micro_batch=3", "", "nearest that fit: global_batch 6 or 9, micro_batch 2 or 4"),
        ("grpo", "rl.reward=[{kind = \"function\", name = \"right\"}]", "", "it gives no function"),
        ("grpo", "rl.reward=[{kind = \"function\"}]", "", "`rl.reward.name`"),
        ("ppo", "ppo.lambda=2", "", "`ppo.lambda` is 2"),
        ("grpo", "rl.reward=[{kind = \"http\", url = \"https://a\"}]", "", "does not begin with http://"),
        ("grpo", "data.sequence=1", "", "leaves no room"),
        ("dpo", "dpo.beta=0", "", "`dpo.beta` is 0"),
        ("dpo", "data.sequence=4", "", "`data.sequence` is 4"),
    ] {
        let file = if objective == "dpo" { "pairs.jsonl" } else { "prompts.jsonl" };
        let start = sandbox.run_dir("start").display().to_string();
        let more = more.replace("START", &start).lines().map(String::from).collect();
        let set = [settings(&sandbox, objective, file), more].concat();
        let error = train(&sandbox, 1, "refused", mesh, &set, "").map(|_| ());
        let error = format!("{:#}", error.unwrap_err());
        ensure!(error.contains(told), "{objective} {told}: {error}");
    }
    Ok(())
}
