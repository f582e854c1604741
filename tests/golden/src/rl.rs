//! Kind `rl`: log-probabilities, distances, rewards, advantages, losses, batch geometry and sampling of reinforcement learning.

mod numbers;
mod rewarded;
mod sampling;
mod shares;
mod updates;
mod whole;

use crate::cases::{Outcome, each_line};
use crate::embeddings::{folders, verdict};
use crate::values::Case;
use anyhow::{Context, Result, bail};
use std::path::Path;

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    let has = |name: &str| path.join(name).is_file();
    let lines =
        path.is_file() || ["functions.jsonl.gz", "sampling.jsonl.gz", "functions.jsonl"].into_iter().any(has);
    let mut outcome = match lines {
        true => each_line(path, |line| verdict(check(line)))?,
        false => Outcome::default(),
    };
    if has("e2e/rollouts.json") {
        outcome.add("e2e/rollouts", verdict(sampling::rollouts(&path.join("e2e"))));
    }
    for case in folders(&path.join("e2e"))? {
        let name = format!("e2e/{}", case.file_name().unwrap_or_default().to_string_lossy());
        outcome.add(&name, whole::check(&case));
    }
    if outcome.passed + outcome.failed == 0 {
        bail!("no case in {}", path.display());
    }
    Ok(outcome)
}

fn check(line: &str) -> Result<()> {
    let case: Case = serde_json::from_str(line).context("reading the case")?;
    let found = match case.function.as_str() {
        "token_logprobs" => updates::token_logprobs(&case),
        "kl" => updates::kl(&case),
        "kl_full" => updates::kl_full(&case),
        "policy_update" => updates::policy(&case),
        "value_update" => updates::value(&case),
        "preference_loss" => updates::preference(&case),
        "sequence_logps" => updates::sequences(&case),
        "reward_pair_loss" => updates::reward_pairs(&case),
        "shape_rewards" => numbers::shape(&case),
        "whiten" => numbers::whiten(&case),
        "gae" => numbers::gae(&case),
        "reinforce_pp" => numbers::reinforce(&case),
        "group_advantages" => numbers::groups(&case),
        "rloo_advantages" => numbers::leave_one_out(&case),
        "combine_rewards" => numbers::combine(&case),
        "dynamic_sampling" => numbers::dynamic(&case),
        "overlong_penalty" => numbers::overlong(&case),
        "adaptive_kl" => numbers::adaptive(&case),
        "running_reward_norm" => numbers::running(&case),
        "rollout_layout" => numbers::layout(&case),
        "geometry" => numbers::geometry(&case),
        "sample" => sampling::sample(&case),
        other => bail!("unknown function '{other}'"),
    };
    found.with_context(|| case.id.clone())
}
