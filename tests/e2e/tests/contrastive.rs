//! Sentence embeddings keep the promises of every run: one loss over all texts of a step, the same bits on every mesh that
//! promises them, at every size of a micro-batch close to the whole, and after a cut; and what comes out embeds.

use anyhow::{Result, ensure};
use planaria_e2e::{Run, Sandbox};
use planaria_train::embedding::{EncodeOptions, Encoder};
use std::fmt::Write;

/// A sandbox with queries that share letters with what answers them.
fn sandbox() -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    let mut rows = String::new();
    for i in 0..32usize {
        let letter = |at: usize| char::from(b'a' + (i * 5 + at * 7) as u8 % 26);
        let query: String = (0..3 + i % 5).map(letter).collect();
        let answer: String = (0..4 + i % 3).map(letter).rev().collect();
        writeln!(
            rows,
            r#"{{"query": "{query}", "positive": "{answer}", "negative": ["{}", "no {i}"]}}"#,
            "z".repeat(1 + i % 4)
        )?;
    }
    std::fs::write(sandbox.path().join("rows.jsonl"), rows)?;
    Ok(sandbox)
}

fn train(sandbox: &Sandbox, until: u64, mesh: &str, more: &[&str]) -> Result<Run> {
    let set = [
        "train.objective=contrastive".to_string(),
        format!("data.source.path={}", sandbox.path().join("rows.jsonl").display()),
        "data.texts.append_eos=true".to_string(),
        "data.texts.query_prompt=q: ".to_string(),
        "data.sequence=64".to_string(),
        "model.attention_dropout=0.1".to_string(),
        "embedding.matryoshka_dims=[16, 8]".to_string(),
        "embedding.directions=[\"query_to_doc\", \"doc_to_query\"]".to_string(),
        "embedding.partition=per_direction".to_string(),
    ];
    let set: Vec<&str> = set.iter().map(String::as_str).chain(more.iter().copied()).collect();
    sandbox.train_until(until, "run", mesh, &set)
}

#[test]
fn embeddings_give_the_same_bits_on_every_mesh_and_after_a_cut() -> Result<()> {
    let alone = train(&sandbox()?, 4, "", &[])?;
    for (mesh, more) in [
        ("dp=2", &["train.zero=3"][..]),
        ("dp=4", &[]),
        ("pp=2", &[]),
        ("pp=2 dp=2", &["train.recompute=full"]),
    ] {
        train(&sandbox()?, 4, mesh, more)?.same_bits(&alone)?;
    }
    train(&sandbox()?, 4, "tp=2", &[])?.close_losses(&alone, 1e-4)?;
    let sandbox = sandbox()?;
    let begun = train(&sandbox, 2, "pp=2", &[])?;
    let ended = train(&sandbox, 4, "dp=2", &[])?;
    ensure!([begun.outcome.losses, ended.outcome.losses.clone()].concat() == alone.outcome.losses);
    ended.same_tensors(&alone)
}

#[test]
fn a_larger_micro_batch_changes_rounding_alone() -> Result<()> {
    let still = ["model.attention_dropout=0", "optim.lr=1e-3"];
    let alone = train(&sandbox()?, 3, "", &still)?;
    for micro in ["train.micro_batch=2", "train.micro_batch=8"] {
        let other = train(&sandbox()?, 3, "", &[still[0], still[1], micro])?;
        other.close_losses(&alone, 1e-4)?;
        other.close_weights(&alone, 1e-2)?;
    }
    // Of a rank's own texts alone it is another loss.
    let own = train(&sandbox()?, 3, "dp=2", &[still[0], still[1], "embedding.negatives_from=rank"])?;
    ensure!(own.close_losses(&alone, 1e-4).is_err(), "negatives of one rank are fewer");
    Ok(())
}

#[test]
fn what_was_learnt_embeds_alike_alone_and_among_others() -> Result<()> {
    for attention in ["causal", "bidirectional"] {
        let sandbox = sandbox()?;
        train(&sandbox, 4, "", &[&format!("embedding.attention={attention}")])?;
        let encoder = Encoder::open(&sandbox.run_dir("run"))?;
        let texts = ["abc", "hello there", "a"];
        let together = encoder.encode(&texts, &EncodeOptions::default(), &|_, _| {})?;
        for (text, vector) in texts.iter().zip(&together) {
            let alone = encoder.encode(
                &[text],
                &EncodeOptions { batch: 1, ..EncodeOptions::default() },
                &|_, _| {},
            )?;
            let apart = alone[0].iter().zip(vector).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
            ensure!(apart < 1e-6, "'{text}' is {apart} apart");
            let length: f32 = vector.iter().map(|x| x * x).sum();
            ensure!((length - 1.0).abs() < 1e-5, "a vector of length {length}");
        }
    }
    Ok(())
}

#[test]
fn what_cannot_be_learnt_so_is_refused() -> Result<()> {
    for (set, told) in [
        ("embedding.matryoshka_dims=[17]", "from 1 to 16"),
        ("embedding.matryoshka_weights=[1.0]", "none, or 2"),
        ("embedding.similarity=manhattan", "cos or dot"),
        ("embedding.directions=[\"query_to_query\"]", "per_direction with \"query_to_query\""),
        ("data.texts.max_length=40", "`data.sequence` to 160"),
    ] {
        let error = format!("{:#}", train(&sandbox()?, 1, "", &[set]).unwrap_err());
        ensure!(error.contains(told), "{set}: {error}");
    }
    Ok(())
}
