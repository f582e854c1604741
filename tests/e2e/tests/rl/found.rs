//! What a rollout leaves to the next: groups, a coefficient and the moments of rewards, exact after a cut.

use super::*;

/// The losses of a run that is cut after these steps, on a mesh each, are those of one that was not.
fn cut(sandbox: &Sandbox, set: &[String], alone: &Run, cuts: &[(u64, &str)]) -> Result<()> {
    let mut losses = Vec::new();
    for (until, mesh) in cuts {
        let (part, _) = train(sandbox, *until, "cut", mesh, set, "")?;
        losses.extend(part.outcome.losses.clone());
        if *until as usize == alone.outcome.losses.len() {
            part.same_tensors(alone)?;
        }
    }
    ensure!(losses == alone.outcome.losses, "{losses:?} and {:?}", alone.outcome.losses);
    Ok(())
}

#[test]
fn prompts_without_a_signal_are_replaced_by_further_ones() -> Result<()> {
    let sandbox = sandbox()?;
    let mut set = settings(&sandbox, "grpo", "prompts.jsonl");
    set.extend(["train.steps=4", "rl.max_gen_batches=20", "rl.max_new_tokens=2"].map(String::from));
    let (alone, tries) = train(&sandbox, 4, "alone", "", &set, "gen_batches")?;
    ensure!(tries.iter().any(|&tries| tries > 1.0), "{tries:?}");
    let (split, told) = train(&sandbox, 4, "split", "dp=2", &set, "gen_batches")?;
    split.same_bits(&alone)?;
    ensure!(told == tries, "{told:?} and {tries:?}");
    cut(&sandbox, &set, &alone, &[(1, "dp=4"), (3, ""), (4, "pp=2")])?;
    // One token is never the two of the prompt.
    let never =
        ["rl.reward=[{kind = \"exact\", field = \"prompt\"}]", "rl.max_gen_batches=2", "rl.max_new_tokens=1"];
    set.extend(never.map(String::from));
    let error = format!("{:#}", train(&sandbox, 4, "never", "", &set, "").map(|_| ()).unwrap_err());
    ensure!(error.contains("found 0 of 8 prompts") && error.contains("among 16"), "{error}");
    Ok(())
}

#[test]
fn a_coefficient_and_the_moments_of_rewards_follow_the_run_over_a_cut() -> Result<()> {
    let sandbox = sums()?;
    let mut set = ppo(&sandbox);
    set.extend(
        ["train.steps=10", "ppo.kl_target=0.5", "ppo.kl_horizon=100", "rl.normalize_rewards=true"]
            .map(String::from),
    );
    let (alone, coefs) = train(&sandbox, 10, "alone", "", &set, "kl_coef")?;
    // The policy has not moved at first: 32 responses of a hundred, a fifth too near.
    ensure!(coefs[0] == 0.01 && (coefs[4] - 0.01 * (1.0 - 0.2 * 0.32)).abs() < 1e-12, "{coefs:?}");
    let plain = [&set[..], &["rl.normalize_rewards=false".into()]].concat();
    let (plain, _) = train(&sandbox, 10, "plain", "", &plain, "kl_coef")?;
    ensure!(plain.outcome.losses != alone.outcome.losses);
    // After a rollout that is used up, and inside the next.
    cut(&sandbox, &set, &alone, &[(4, "dp=2"), (6, ""), (10, "dp=4")])
}
