//! Sentence embeddings keep the promises of every run: one loss over all texts of a step, the same bits on every mesh that
//! promises them, at every size of a micro-batch close to the whole, and after a cut; and what comes out embeds.

use anyhow::{Result, ensure};
use planaria_e2e::{Recorder, Run, Sandbox};
use planaria_train::Trainer;
use planaria_train::embedding::{EncodeOptions, Encoder, TextPrompt};
use planaria_train::event::Event;
use std::fmt::Write;
use std::path::Path;

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

/// The same with scores: pairs that share more letters should be more alike.
fn scored() -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    let mut rows = String::new();
    for i in 0..32usize {
        let (first, second) = ("abcdefgh".repeat(1 + i % 2), "abcdefgh"[i % 8..].to_string());
        writeln!(
            rows,
            r#"{{"sentence1": "{first}", "sentence2": "{second}", "score": {}}}"#,
            (8 - i % 8) as f64 / 8.0
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
        ("dp=2", &["train.zero=1"]),
        ("dp=2", &["train.zero=2"]),
        ("dp=4", &[]),
        ("pp=2", &[]),
        ("pp=2 dp=2", &["train.recompute=full"]),
    ] {
        train(&sandbox()?, 4, mesh, more)?.same_bits(&alone)?;
    }
    for more in ["train.sequence_parallel=false", "train.sequence_parallel=true"] {
        train(&sandbox()?, 4, "tp=2", &[more])?.close_losses(&alone, 1e-4)?;
    }
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
fn scores_and_triplets_are_learnt_on_every_mesh() -> Result<()> {
    for (loss, start) in [
        ("cosent", scored as fn() -> Result<Sandbox>),
        ("angle", scored),
        ("cosine_mse", scored),
        ("triplet", sandbox),
    ] {
        let loss = format!("embedding.loss={loss}");
        let set = [loss.as_str(), "data.texts.negatives=1", "model.attention_dropout=0", "train.steps=12"];
        // Pairs have no negatives to draw.
        let set = if loss.ends_with("triplet") { &set[..] } else { &[set[0], set[2], set[3]] };
        let alone = train(&start()?, 12, "", set)?;
        let losses = &alone.outcome.losses;
        ensure!(losses[11] < losses[0], "{loss}: {losses:?}");
        for (mesh, more) in [("dp=2", "train.zero=3"), ("pp=2 dp=2", "train.zero=0")] {
            train(&start()?, 12, mesh, &[set, &[more]].concat())?.same_bits(&alone)?;
        }
        train(&start()?, 12, "tp=2", set)?.close_losses(&alone, 1e-2)?;
    }
    for (start, loss, told) in [
        (scored as fn() -> Result<Sandbox>, "info_nce", "rows.jsonl:1: a pair with a score"),
        (sandbox, "cosent", "`sentence1`, `sentence2` and `score` are expected"),
        (sandbox, "triplet", "data.texts.negatives"),
    ] {
        let error =
            format!("{:#}", train(&start()?, 1, "", &[&format!("embedding.loss={loss}")]).unwrap_err());
        ensure!(error.contains(told), "{loss}: {error}");
    }
    Ok(())
}

/// Two sources that each have steps of their own, with a prompt and a loss of their own, and no text twice in a step.
#[test]
fn sources_take_turns_on_every_mesh_and_after_a_cut() -> Result<()> {
    let start = || -> Result<Sandbox> {
        let sandbox = scored()?;
        std::fs::rename(sandbox.path().join("rows.jsonl"), sandbox.path().join("scored.jsonl"))?;
        let mut rows = String::new();
        for i in 0..40usize {
            writeln!(rows, r#"{{"query": "ask {}", "positive": "say {}"}}"#, i % 20, i % 17)?;
        }
        std::fs::write(sandbox.path().join("rows.jsonl"), rows)?;
        Ok(sandbox)
    };
    let run = |sandbox: &Sandbox, until: u64, mesh: &str, more: &[&str]| {
        let [rows, scored] = ["rows.jsonl", "scored.jsonl"].map(|name| sandbox.path().join(name));
        let sources = format!(
            "data.source=[{{path = {:?}, query_prompt = \"find: \"}}, {{path = {:?}}}]",
            rows.display().to_string(),
            scored.display().to_string()
        );
        let set = [&sources, "data.texts.batches=round_robin", "embedding.losses=[\"info_nce\", \"cosent\"]"];
        train(sandbox, until, mesh, &[&set[..], more].concat())
    };
    let alone = run(&start()?, 6, "", &[])?;
    for (mesh, more) in [("dp=2", "train.zero=3"), ("pp=2 dp=2", "train.zero=0")] {
        run(&start()?, 6, mesh, &[more])?.same_bits(&alone)?;
    }
    run(&start()?, 6, "tp=2", &[])?.close_losses(&alone, 1e-2)?;
    let sandbox = start()?;
    let begun = run(&sandbox, 3, "pp=2", &[])?;
    let ended = run(&sandbox, 6, "dp=2", &[])?;
    ensure!([begun.outcome.losses, ended.outcome.losses.clone()].concat() == alone.outcome.losses);
    ended.same_tensors(&alone)?;
    // Queries and answers that come again wait for another step; scored pairs here are all of the same texts.
    let apart = ["data.texts.no_duplicates=true", "data.texts.batches=mixed", "embedding.losses=[]"];
    let alone = train(&start()?, 8, "", &apart)?;
    ensure!(alone.same_tensors(&train(&start()?, 8, "", &apart[1..])?).is_err(), "texts do come again");
    for mesh in ["dp=2", "pp=2"] {
        train(&start()?, 8, mesh, &apart)?.same_bits(&alone)?;
    }
    let sandbox = start()?;
    train(&sandbox, 5, "dp=2", &apart)?;
    train(&sandbox, 8, "", &apart)?.same_tensors(&alone)?;
    for (more, told) in [
        (&["data.texts.no_duplicates=true"][..], "lower `train.global_batch`"),
        (&["data.texts.batches=mixed"], "a step has one loss"),
        (&["embedding.losses=[\"cosent\"]"], "one for each of the 2"),
        (&["data.held_out=0.5"], "an evaluation takes samples of all sources"),
    ] {
        let error = format!("{:#}", run(&start()?, 1, "", more).unwrap_err());
        ensure!(error.contains(told), "{more:?}: {error}");
    }
    Ok(())
}

#[test]
fn latent_attention_is_learnt_on_every_mesh_and_embeds() -> Result<()> {
    let set = [
        "embedding.latents=6",
        "embedding.latent_heads=2",
        "embedding.pooling=[\"mean\"]",
        "model.attention_dropout=0",
        "optim.kind=sgd",
        "optim.momentum=0",
        "optim.warmup=0",
        "optim.clip=0",
        "optim.schedule=constant",
        "optim.lr=1e-3",
        "data.order=sequential",
        "train.global_batch=32",
    ];
    let start = sandbox()?;
    let alone = train(&start, 3, "", &set)?;
    for (mesh, more) in [("dp=2", "train.zero=3"), ("pp=2 dp=2", "train.zero=0")] {
        train(&sandbox()?, 3, mesh, &[&set[..], &[more]].concat())?.same_bits(&alone)?;
    }
    train(&sandbox()?, 3, "tp=2", &set)?.close_losses(&alone, 1e-4)?;
    let cut = sandbox()?;
    train(&cut, 1, "pp=2", &set)?;
    train(&cut, 3, "dp=2", &set)?.same_tensors(&alone)?;
    // All rows in every step: along the gradient the loss falls by its square times the rate.
    let own = set.iter().copied().chain(["train.steps=2", "optim.lr=1e-6"]).collect::<Vec<_>>();
    let recorder = Recorder::shared();
    let rows = format!("data.source.path={}", start.path().join("rows.jsonl").display());
    let given = [&["train.objective=contrastive", &rows, "data.sequence=64"], &own[..]].concat();
    Trainer::new(start.config("steps", "", &given)?).observer(recorder.clone()).run(None)?;
    let step = |event: Event| match event {
        Event::Step(step) => Some((step.loss, step.grad_norm)),
        _ => None,
    };
    let steps: Vec<(f64, f64)> = recorder.events().into_iter().filter_map(step).collect();
    let [(first, norm), (second, _)] = steps[..] else { anyhow::bail!("two steps: {steps:?}") };
    let (fell, by) = (first - second, 1e-6 * norm * norm);
    ensure!((fell / by - 1.0).abs() < 0.05, "the loss fell by {fell}, its gradient says {by}");
    // What was saved asks the same vectors, and a text does not depend on others.
    embeds_alike(&start.run_dir("run"))?;
    // A run that starts from the folder of one without them has new ones; from its own folder it has those.
    let init = format!("model.init={}", start.run_dir("run").display());
    let again = start.train_until(
        1,
        "again",
        "",
        &[&given[..given.len() - 1], &[&init, "train.steps=1", "optim.lr=0"]].concat(),
    )?;
    again.same_tensors(&alone)?;
    for (more, told) in [("embedding.latent_heads=3", "divide the width 16"), ("lora.r=2", "0 with `[lora]`")]
    {
        let error = format!("{:#}", train(&sandbox()?, 1, "", &[&set[..], &[more]].concat()).unwrap_err());
        ensure!(error.contains(told), "{more}: {error}");
    }
    Ok(())
}

/// 4,096 queries are compared with each other while 64 are in memory.
#[test]
fn a_large_batch_in_small_pieces_is_the_whole_batch() -> Result<()> {
    let rows = |sandbox: &Sandbox| -> Result<()> {
        let word = |i: usize| format!("{:x}", i.wrapping_mul(2_654_435_761) % 0xfff_ffff);
        let line = |i: usize| format!(r#"{{"query": "{}", "positive": "{} {i}"}}"#, word(i), word(i));
        let rows: Vec<String> = (0..2048).map(line).collect();
        Ok(std::fs::write(sandbox.path().join("rows.jsonl"), rows.join("\n"))?)
    };
    let run = |micro: &str| -> Result<Run> {
        let sandbox = Sandbox::new()?;
        rows(&sandbox)?;
        let micro = format!("train.micro_batch={micro}");
        let set = [
            &micro,
            "train.global_batch=2048",
            "data.sequence=32",
            "model.attention_dropout=0",
            "train.steps=1",
        ];
        train(&sandbox, 1, "", &[&set[..], &["optim.lr=1e-3", "optim.warmup=0", "optim.kind=sgd"]].concat())
    };
    let (whole, pieces) = (run("2048")?, run("32")?);
    pieces.close_losses(&whole, 1e-6)?;
    pieces.close_weights(&whole, 1e-5)?;
    let (large, small) = (whole.outcome.peak_bytes, pieces.outcome.peak_bytes);
    ensure!(small * 4 < large, "{small} bytes in pieces of 32 and {large} for all at once");
    Ok(())
}

/// Texts that fill a row to its end are learned from as in a longer row.
#[test]
fn a_row_may_be_full() -> Result<()> {
    let run = |sequence: &str| -> Result<Run> {
        let sandbox = Sandbox::new()?;
        let row = |i: usize| format!("{{\"query\": \"{i:0>15}\", \"positive\": \"{:0>15}\"}}\n", i * i);
        std::fs::write(sandbox.path().join("rows.jsonl"), (0..16).map(row).collect::<String>())?;
        train(&sandbox, 2, "", &[sequence, "data.texts.query_prompt=", "model.attention_dropout=0"])
    };
    run("data.sequence=32")?.same_bits(&run("data.sequence=48")?)
}

/// A text has the same vector alone and among others, of length 1.
fn embeds_alike(run: &Path) -> Result<()> {
    let encoder = Encoder::open(run)?;
    let texts = ["abc", "hello there", "a"];
    let together = encoder.encode(&texts, &EncodeOptions::default(), &|_, _| {})?;
    for (text, vector) in texts.iter().zip(&together) {
        let one = EncodeOptions { batch: 1, ..EncodeOptions::default() };
        let alone = encoder.encode(&[text], &one, &|_, _| {})?;
        let apart = alone[0].iter().zip(vector).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
        ensure!(apart < 1e-6, "'{text}' is {apart} apart");
        let length: f32 = vector.iter().map(|x| x * x).sum();
        ensure!((length - 1.0).abs() < 1e-5, "a vector of length {length}");
    }
    Ok(())
}

#[test]
fn what_was_learnt_embeds_alike_alone_and_among_others() -> Result<()> {
    for attention in ["causal", "bidirectional"] {
        let sandbox = sandbox()?;
        train(&sandbox, 4, "", &[&format!("embedding.attention={attention}")])?;
        embeds_alike(&sandbox.run_dir("run"))?;
    }
    Ok(())
}

/// The loss of the step after an adapter was saved is that of the vectors which the adapter's folder makes.
#[test]
fn an_adapter_embeds_as_its_training_saw() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let texts: Vec<[String; 2]> = (0..8).map(|i| [format!("ask {i}"), format!("{i} is said {i}")]).collect();
    let row =
        |[query, answer]: &[String; 2]| format!("{{\"query\": \"{query}\", \"positive\": \"{answer}\"}}\n");
    std::fs::write(sandbox.path().join("rows.jsonl"), texts.iter().map(row).collect::<String>())?;
    sandbox.train_until(2, "base", "", &["train.steps=2"])?;
    let init = format!("model.init={}", sandbox.run_dir("base").display());
    let rows = format!("data.source.path={}", sandbox.path().join("rows.jsonl").display());
    let set = [
        &init,
        &rows,
        "train.objective=contrastive",
        "train.steps=5",
        "train.global_batch=8",
        "data.sequence=64",
        "data.order=sequential",
        "data.texts.append_eos=true",
        "data.texts.query_prompt=q: ",
        "embedding.pooling=[\"lasttoken\"]",
        "embedding.attention=bidirectional",
        "embedding.scale=5",
        "lora.r=4",
        "lora.target_modules=all-linear",
        "optim.lr=3e-2",
        "optim.warmup=0",
    ];
    sandbox.train_until(4, "adapter", "", &set)?;
    let encoder = Encoder::open(&sandbox.run_dir("adapter"))?;
    let vectors = |column: usize, prompt: &str| {
        let texts: Vec<&str> = texts.iter().map(|row| row[column].as_str()).collect();
        let prompt = TextPrompt::Named(prompt.into());
        encoder.encode(&texts, &EncodeOptions { prompt, ..EncodeOptions::default() }, &|_, _| {})
    };
    let (queries, answers) = (vectors(0, "query")?, vectors(1, "document")?);
    let mut loss = 0.0;
    for (number, query) in queries.iter().enumerate() {
        let score = |answer: &Vec<f32>| {
            5.0 * query.iter().zip(answer).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
        };
        let scores: Vec<f64> = answers.iter().map(score).collect();
        loss += (scores.iter().map(|x| x.exp()).sum::<f64>().ln() - scores[number]) / 8.0;
    }
    let seen = sandbox.train_until(5, "adapter", "", &set)?.outcome.losses;
    ensure!((seen[0] - loss).abs() < 1e-5, "training saw {seen:?}, the folder gives {loss}");
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
