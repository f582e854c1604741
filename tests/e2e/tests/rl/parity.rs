//! Every objective of this folder on one rank and on every kind of mesh.

use super::*;

/// Splits that change no bit.
const ALIKE: [(&str, &str); 6] = [
    ("dp=2", "train.zero=0"),
    ("dp=2", "train.zero=1"),
    ("dp=2", "train.zero=2"),
    ("dp=2", "train.zero=3"),
    ("pp=2", "train.zero=0"),
    ("pp=2 dp=2", "train.zero=1"),
];

/// Splits that add up in another order.
const CLOSE: [(&str, &str); 5] = [
    ("tp=2", "train.sequence_parallel=false"),
    ("tp=2", "train.sequence_parallel=true"),
    ("dp=2 tp=2", "train.zero=3"),
    ("pp=2 tp=2", "train.zero=0"),
    ("", "train.micro_batch=4"),
];

#[test]
fn every_objective_is_the_same_on_every_mesh() -> Result<()> {
    let (digits, sums) = (sandbox()?, sums()?);
    let dpo = settings(&digits, "dpo", "pairs.jsonl");
    let grpo = [settings(&digits, "grpo", "prompts.jsonl"), vec!["rl.kl_coef=0.01".into()]].concat();
    // Over the whole vocabulary, which tensor ranks share out, in loss and rewards.
    let full = ["rl.kl=full", "ppo.kl=full", "rl.kl_coef=0.01"].map(String::from);
    for (sandbox, objective, set) in [
        (&digits, "dpo", dpo),
        (&digits, "grpo", grpo),
        (&sums, "ppo", ppo(&sums)),
        (&sums, "ppo-full", [&ppo(&sums)[..], &full].concat()),
    ] {
        let set = [set, ["train.steps=3", "train.micro_batch=2", "optim.lr=1e-3"].map(String::from).into()]
            .concat();
        let (alone, _) = train(sandbox, 3, &format!("{objective}-alone"), "", &set, "")?;
        for (number, (mesh, more)) in ALIKE.into_iter().chain(CLOSE).enumerate() {
            let set = [&set[..], &[more.to_string()]].concat();
            let name = format!("{objective}-{number}");
            let told = || format!("{objective} on '{mesh}' with {more}");
            let (split, _) = train(sandbox, 3, &name, mesh, &set, "").with_context(told)?;
            match number < ALIKE.len() {
                true => split.same_bits(&alone).with_context(told)?,
                // Losses are near 0, where a share of them says little.
                false => split.close_weights(&alone, 5e-2).with_context(told)?,
            }
        }
    }
    Ok(())
}

/// Experts that ranks share out answer prompts side by side, a row for each rank and one over.
#[test]
fn experts_of_several_ranks_answer_together() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let moe = [
        "model.kind=qwen3_moe",
        "model.num_experts=4",
        "model.num_experts_per_tok=2",
        "model.moe_intermediate_size=12",
        "model.head_dim=8",
    ];
    let mut rows = String::new();
    for i in 0..16usize {
        writeln!(rows, r#"{{"prompt": "{}"}}"#, 100 + i * 37 % 90)?;
    }
    std::fs::write(sandbox.path().join("prompts.jsonl"), rows)?;
    let more = [
        "train.objective=grpo",
        "train.micro_batch=2",
        "train.steps=2",
        "data.sequence=24",
        "rl.samples_per_prompt=2",
        "rl.max_new_tokens=6",
        "rl.rows=3",
        "rl.reward=[{kind = \"regex\", pattern = \"^[0-9a-z]\"}]",
        "rl.advantage=reinforce",
        "optim.lr=1e-3",
    ];
    let source = format!("data.source.path={}", sandbox.path().join("prompts.jsonl").display());
    let set: Vec<String> = moe.iter().chain(&more).map(ToString::to_string).chain([source]).collect();
    let (alone, rewards) = train(&sandbox, 2, "alone", "", &set, "reward")?;
    let (_, tokens) = train(&sandbox, 2, "tokens", "", &set, "response_tokens")?;
    for (number, mesh) in ["ep=2", "ep=2 tp=2", "dp=2 ep=2"].into_iter().enumerate() {
        let (split, told) = train(&sandbox, 2, &format!("split{number}"), mesh, &set, "reward")?;
        ensure!(told == rewards, "{mesh}: {told:?} and {rewards:?}; {tokens:?} tokens");
        split.close_weights(&alone, 5e-2).with_context(|| mesh.to_string())?;
    }
    Ok(())
}
