//! Configurations that cannot work are refused before any rank starts, with the values and what would fit.

use anyhow::{Result, ensure};
use planaria_e2e::Sandbox;
use planaria_train::Trainer;

#[test]
fn what_does_not_fit_is_named_with_its_values() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cases: [(&str, &[&str], &[&str]); 19] = [
        ("dp=3", &[], &["global_batch 8", "dp 3"]),
        ("tp=3", &[], &["4 heads", "tp=3", "[1, 2, 4]"]),
        ("pp=2", &["train.schedule=1f2b"], &["1f2b", "1f1b"]),
        ("ep=2", &["train.micro_batch=1"], &["micro_batch 1", "ep 2"]),
        ("", &["model.num_attention_heads=5"], &["num_key_value_heads", "5"]),
        ("", &["model.vocab_size=10"], &["model.vocab_size", "10", "at least"]),
        ("", &["data.sequence=100000"], &["text.txt"]),
        ("", &["model.config=nowhere.json"], &["nowhere.json"]),
        ("", &["train.chunks=2"], &["train.chunks", "2", "pp"]),
        ("", &["train.recompute=blocks", "train.recompute_blocks=[1, 9]"], &["9", "from 0 to 3"]),
        ("", &["model.max_position_embeddings=8"], &["8", "at least the 16 of `data.sequence`"]),
        ("", &["train.freeze=[\"model.embed.*\"]"], &["model.embed.*", "model.embed_tokens.weight"]),
        ("", &["train.freeze=[\"*\"]"], &["leave a parameter"]),
        ("", &["train.recompute_blocks=[1]"], &["train.recompute_blocks", "[1]", "blocks"]),
        ("", &["train.recompute=blocks"], &["at least one block"]),
        ("", &["log.samples={prompts = []}"], &["log.samples.prompts", "at least one prompt"]),
        ("", &["log.samples={prompts = [\"a\"], every = 0}"], &["log.samples.every", "0", "at least 1"]),
        ("", &["train.eval_every=2"], &["train.eval_every", "data.held_out"]),
        ("", &["checkpoint.from=x", "checkpoint.resume=false"], &["checkpoint.from", "checkpoint.resume"]),
    ];
    for (mesh, more, words) in cases {
        let text = match sandbox.config("run", mesh, more) {
            Ok(config) => {
                let ranks = config.mesh.ranks();
                Trainer::new(config).check(ranks).unwrap_err().to_string()
            }
            Err(error) => format!("{error:#}"),
        };
        ensure!(words.iter().all(|word| text.contains(word)), "{mesh} {more:?}: {text}");
    }
    ensure!(!sandbox.run_dir("run").exists(), "nothing was begun");
    Ok(())
}

#[test]
fn a_number_of_ranks_that_makes_no_mesh_is_refused() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let config = sandbox.config("run", "tp=2", &[])?;
    let error = Trainer::new(config.clone()).run(Some(3)).unwrap_err();
    ensure!(error.is_usage() && error.to_string().contains("3 ranks"), "{error}");
    // Without `dp` the ranks that are left make replicas.
    ensure!(Trainer::new(config).run(Some(4))?.step == 4);
    Ok(())
}
