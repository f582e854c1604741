//! Adapters: what they are compared with, and a critic beside them.

use super::*;

#[test]
fn an_adapter_is_compared_with_the_model_under_it() -> Result<()> {
    let sandbox = sandbox()?;
    let named = |key: &str| format!("{key}.reference={}", sandbox.run_dir("start").display());
    for (objective, file, key, kl) in [
        ("grpo", "prompts.jsonl", "rl", "k3"),
        ("dpo", "pairs.jsonl", "dpo", "k3"),
        ("grpo", "prompts.jsonl", "rl", "full"),
    ] {
        let mut set = settings(&sandbox, objective, file);
        set.push(format!("rl.kl={kl}"));
        let objective = format!("{objective}-{kl}");
        set.extend(["train.steps=3", "lora.r=2", "rl.kl_coef=0.1", "optim.lr=5e-2"].map(String::from));
        let (under, _) = train(&sandbox, 3, &format!("{objective}-under"), "", &set, "")?;
        // The same weights, loaded once more.
        let loaded = [&set[..], &[named(key)]].concat();
        let (loaded, _) = train(&sandbox, 3, &format!("{objective}-loaded"), "", &loaded, "")?;
        under.same_bits(&loaded).with_context(|| objective.clone())?;
        let free = [&set[..], &["rl.kl_coef=0".into(), "dpo.reference_free=true".into()]].concat();
        let (free, _) = train(&sandbox, 3, &format!("{objective}-free"), "", &free, "")?;
        ensure!(free.outcome.losses != under.outcome.losses, "{objective}: the reference counts nothing");
        for (number, mesh) in ["dp=2", "pp=2"].into_iter().enumerate() {
            let (split, _) = train(&sandbox, 3, &format!("{objective}{number}"), mesh, &set, "")?;
            split.same_bits(&under).with_context(|| format!("{objective} on {mesh}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_critic_is_trained_whole_beside_an_adapter() -> Result<()> {
    let sandbox = sums()?;
    let set = [ppo(&sandbox), vec!["train.steps=6".into(), "lora.r=2".into()]].concat();
    let (alone, far) = train(&sandbox, 6, "alone", "", &set, "reference_kl")?;
    ensure!(far[0] == 0.0 && far[4] != 0.0, "{far:?}");
    let names: Vec<&String> = alone.tensors.keys().collect();
    let has = |part: &str| names.iter().any(|name| name.contains(part));
    ensure!(has("lora_A") && has("critic.score.weight") && !has("model:model.embed"), "{names:?}");
    // This start takes its values out of the model under the adapter, which is then no reference.
    let taken = [&set[..], &["lora.init=pissa".into()]].concat();
    let (_, far) = train(&sandbox, 1, "taken", "", &taken, "reference_kl")?;
    ensure!(far[0].abs() < 1e-4, "{far:?}");
    let (split, _) = train(&sandbox, 6, "split", "dp=2", &set, "reference_kl")?;
    split.same_bits(&alone)?;
    let (begun, _) = train(&sandbox, 3, "cut", "pp=2", &set, "")?;
    let (ended, _) = train(&sandbox, 6, "cut", "", &set, "")?;
    ensure!([begun.outcome.losses, ended.outcome.losses.clone()].concat() == alone.outcome.losses);
    ended.same_tensors(&alone)
}
