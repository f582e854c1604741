//! The distance from the reference over the whole vocabulary.

use super::*;
use planaria_array::DType;
use planaria_comm::alone;
use planaria_nn::Init;
use planaria_nn::models::{Models, Run as Forward};
use planaria_train::Opened;
use serde_json::json;
use std::path::Path;

const TEMPERATURE: f64 = 0.7;

/// Log-probabilities of all tokens after each of these, in f64.
fn logprobs(folder: &Path, tokens: &[i64]) -> Result<Vec<Vec<f64>>> {
    let network = Opened::open(folder, &[], &Models::default())?.load(&alone(), &Init::default())?;
    let tokens = planaria::tensor::Tensor::from_slice(tokens, &[1, tokens.len()])?;
    let last = network.forward((&tokens).into(), &Forward::default())?;
    let scores = network.logits(&last.hidden)?;
    let width = scores.shape()[2];
    let scores = scores.local().cast(DType::F64)?.to_vec::<f64>()?;
    let row = |row: &[f64]| {
        let row: Vec<f64> = row.iter().map(|x| x / TEMPERATURE).collect();
        let all = row.iter().map(|x| x.exp()).sum::<f64>().ln();
        row.iter().map(|x| x - all).collect()
    };
    Ok(scores.chunks(width).map(row).collect())
}

/// The mean over the tokens of responses of how far the one model is from the other, in f64.
fn said(sandbox: &Sandbox, prompt: &[i64], responses: &[Vec<i64>]) -> Result<f64> {
    let (mut sum, mut tokens) = (0.0, 0.0);
    for response in responses {
        let all = [prompt, response].concat();
        let [own, other] = ["start", "other"].map(|name| logprobs(&sandbox.run_dir(name), &all));
        let (own, other) = (own?, other?);
        for at in prompt.len() - 1..all.len() - 1 {
            sum += own[at].iter().zip(&other[at]).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            tokens += 1.0;
        }
    }
    Ok(sum / tokens)
}

#[test]
fn the_whole_distance_costs_what_both_models_say() -> Result<()> {
    let sandbox = sandbox()?;
    let source = format!("data.source.path={}", sandbox.path().join("digits.txt").display());
    sandbox.train("other", "", &["train.steps=4", "train.seed=9", "optim.lr=2e-2", &source])?;
    let (prompt, responses) = ([49i64, 50], [vec![55i64, 49, 51], vec![48, 57]]);
    let row = json!({ "prompt": prompt, "responses": responses, "scores": [1, 1] });
    std::fs::write(sandbox.path().join("rows.jsonl"), format!("{row}\n").repeat(8))?;
    let (coef, lr) = (0.5, 1e-3);
    let mut set = settings(&sandbox, "grpo", "rows.jsonl");
    // Equal rewards have no advantage: all that is learned is not to leave the reference.
    set.extend(
        [
            "train.steps=2",
            "rl.responses=rows",
            "rl.reward=[{kind = \"given\", field = \"scores\"}]",
            "rl.samples_per_prompt=2",
            "rl.kl=full",
            "optim.kind=sgd",
            "optim.momentum=0",
            "optim.warmup=0",
            "optim.clip=0",
            "optim.schedule=constant",
        ]
        .map(String::from),
    );
    set.extend([
        format!("rl.temperature={TEMPERATURE}"),
        format!("rl.kl_coef={coef}"),
        format!("rl.reference={}", sandbox.run_dir("other").display()),
        format!("optim.lr={lr}"),
    ]);
    let said = said(&sandbox, &prompt, &responses)?;
    ensure!(said > 0.1, "the models are as good as the same: {said}");
    for (number, mesh) in ["", "tp=2", "dp=2 pp=2"].into_iter().enumerate() {
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        let recorder = Recorder::shared();
        let config = sandbox.config(&format!("run{number}"), mesh, &set)?;
        Trainer::new(config).observer(recorder.clone()).run(None)?;
        let step = |event: Event| match event {
            Event::Step(step) => Some((step.loss, step.grad_norm)),
            _ => None,
        };
        let steps: Vec<(f64, f64)> = recorder.events().into_iter().filter_map(step).collect();
        let [(first, norm), (second, _)] = steps[..] else { anyhow::bail!("two steps: {steps:?}") };
        ensure!(
            (first / (coef * said) - 1.0).abs() < 1e-5,
            "'{mesh}': {first}, and the models say {}",
            coef * said
        );
        // Along the gradient the loss falls by its square times the rate.
        let (fell, by) = (first - second, lr * norm * norm);
        ensure!((fell / by - 1.0).abs() < 0.02, "'{mesh}': the loss fell by {fell}, its gradient says {by}");
    }
    Ok(())
}
