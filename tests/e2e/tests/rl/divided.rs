//! Responses of a model that training divides: stages and ZeRO parts generate as one rank does.

use super::*;

#[test]
fn stages_divided_weights_and_rows_under_way_change_no_bit() -> Result<()> {
    let sandbox = sandbox()?;
    let mut set = settings(&sandbox, "grpo", "prompts.jsonl");
    set.extend(["train.steps=3", "rl.kl_coef=0.01", "rl.max_new_tokens=7"].map(String::from));
    let (alone, rewards) = train(&sandbox, 3, "alone", "", &set, "reward")?;
    for (number, (mesh, more)) in [
        ("", "rl.rows=1"),
        ("dp=2", "rl.rows=3"),
        ("pp=2", "train.zero=0"),
        ("pp=2 dp=2", "train.schedule=interleaved\ntrain.chunks=2"),
        ("dp=2", "train.zero=3"),
        ("pp=2 dp=2", "train.zero=3"),
    ]
    .into_iter()
    .enumerate()
    {
        let set = [set.clone(), more.lines().map(String::from).collect()].concat();
        let (split, told) = train(&sandbox, 3, &format!("split{number}"), mesh, &set, "reward")
            .with_context(|| format!("{mesh} {more}"))?;
        split.same_bits(&alone).with_context(|| format!("{mesh} {more}"))?;
        ensure!(told == rewards, "{mesh} {more}: {told:?} and {rewards:?}");
    }
    // Halves of a matrix add up in another order.
    let (halves, _) = train(&sandbox, 3, "halves", "pp=2 tp=2", &set, "reward")?;
    halves.close_losses(&alone, 2e-2)
}

#[test]
fn a_critic_learns_at_the_end_of_a_pipeline_and_with_divided_weights() -> Result<()> {
    let sandbox = sums()?;
    let set = [ppo(&sandbox), vec!["train.steps=5".into()]].concat();
    let (alone, _) = train(&sandbox, 5, "alone", "", &set, "reward")?;
    let stages = [set.clone(), vec!["train.zero=0".into()]].concat();
    let (staged, _) = train(&sandbox, 5, "staged", "pp=2", &stages, "reward")?;
    staged.same_bits(&alone).context("pp=2")?;
    // Begun with stages, cut inside a rollout, ended with divided weights.
    let (begun, _) = train(&sandbox, 2, "moved", "pp=2 dp=2", &stages, "reward")?;
    let divided = [set, vec!["train.zero=3".into()]].concat();
    let (ended, _) = train(&sandbox, 5, "moved", "dp=2", &divided, "reward")?;
    ensure!([begun.outcome.losses, ended.outcome.losses.clone()].concat() == alone.outcome.losses);
    ended.same_tensors(&alone)
}
