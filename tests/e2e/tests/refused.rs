//! Configurations that cannot work are refused before any rank starts, with the values and what would fit.

use anyhow::{Result, ensure};
use planaria_e2e::Sandbox;
use planaria_train::Trainer;

#[test]
fn what_does_not_fit_is_named_with_its_values() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cases: [(&str, &[&str], &[&str]); 8] = [
        ("dp=3", &[], &["global_batch 8", "3"]),
        ("tp=3", &[], &["4 heads", "tp=3", "[1, 2, 4]"]),
        ("pp=2", &["train.schedule=1f2b"], &["1f2b", "1f1b"]),
        ("ep=2", &["train.micro_batch=1"], &["micro_batch 1", "2"]),
        ("", &["model.num_attention_heads=5"], &["num_key_value_heads", "5"]),
        ("", &["model.vocab_size=10"], &["model.vocab_size", "10", "at least"]),
        ("", &["data.sequence=100000"], &["text.txt"]),
        ("", &["model.config=nowhere.json"], &["nowhere.json"]),
    ];
    for (mesh, more, words) in cases {
        let config = sandbox.config("run", mesh, more)?;
        let ranks = config.mesh.ranks();
        let error = Trainer::new(config).check(ranks).unwrap_err();
        let text = error.to_string();
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
