//! Conversations keep the promises of every run: the same bits on every mesh that promises them, and after a cut.

use anyhow::{Result, ensure};
use planaria_e2e::{Run, Sandbox};
use std::fmt::Write;

const TEMPLATE: &str = "{% for m in messages %}<|bos|>{{ m.role }}\n{{ m.content }}<|eos|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|bos|>assistant\n{% endif %}";

/// A sandbox with rows of very different lengths.
fn sandbox() -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    let mut rows = String::new();
    for i in 0..40usize {
        let (question, answer) = ("q".repeat(1 + i * 7 % 11), "a".repeat(1 + i * 5 % 23));
        writeln!(
            rows,
            r#"{{"messages": [{{"role": "user", "content": "{question}"}}, {{"role": "assistant", "content": "{answer}"}}]}}"#
        )?;
    }
    std::fs::write(sandbox.path().join("rows.jsonl"), rows)?;
    std::fs::write(sandbox.path().join("chat.jinja"), TEMPLATE)?;
    Ok(sandbox)
}

fn train(sandbox: &Sandbox, until: u64, mesh: &str, more: &[&str]) -> Result<Run> {
    let (rows, template) = (sandbox.path().join("rows.jsonl"), sandbox.path().join("chat.jinja"));
    let set = [
        "train.objective=sft".to_string(),
        format!("data.source.path={}", rows.display()),
        format!("data.chat.template={}", template.display()),
        "data.chat.packing=best_fit".to_string(),
        "data.sequence=64".to_string(),
    ];
    let set: Vec<&str> = set.iter().map(String::as_str).chain(more.iter().copied()).collect();
    sandbox.train_until(until, "run", mesh, &set)
}

#[test]
fn conversations_give_the_same_bits_on_every_mesh_and_after_a_cut() -> Result<()> {
    let alone = train(&sandbox()?, 4, "", &[])?;
    for (mesh, more) in [("dp=2", &["train.zero=3"][..]), ("pp=2", &[]), ("pp=2 dp=2", &[])] {
        train(&sandbox()?, 4, mesh, more)?.same_bits(&alone)?;
    }
    let halves = train(&sandbox()?, 4, "tp=2", &[])?;
    halves.close_losses(&alone, 1e-5)?;
    let sandbox = sandbox()?;
    let begun = train(&sandbox, 2, "pp=2", &[])?;
    let ended = train(&sandbox, 4, "dp=2", &[])?;
    ensure!([begun.outcome.losses, ended.outcome.losses.clone()].concat() == alone.outcome.losses);
    ended.same_tensors(&alone)?;
    let folder = sandbox.run_dir("run").join(ended.outcome.checkpoint.clone().unwrap_or_default());
    ensure!(
        std::fs::read_to_string(folder.join("chat_template.jinja"))? == TEMPLATE,
        "the template is saved"
    );
    Ok(())
}

#[test]
fn rows_that_changed_are_refused_on_resume() -> Result<()> {
    let sandbox = sandbox()?;
    train(&sandbox, 2, "", &[])?;
    let error = train(&sandbox, 4, "", &["data.chat.learn=all"]).unwrap_err();
    ensure!(format!("{error:#}").contains("data"), "{error:#}");
    Ok(())
}

/// The loss is linear in the share of a label that is spread over the vocabulary.
#[test]
fn labels_are_smoothed_by_the_share_that_is_asked_for() -> Result<()> {
    let first = |mesh: &str, share: &str| -> Result<f64> {
        let run = train(&sandbox()?, 1, mesh, &[&format!("sft.label_smoothing={share}")])?;
        Ok(run.outcome.losses[0])
    };
    let [none, some, more] = [first("", "0.0")?, first("", "0.25")?, first("", "0.5")?];
    ensure!((some - none).abs() > 1e-4, "{some} with and {none} without");
    ensure!((more - some - (some - none)).abs() < 1e-5, "{none} {some} {more}");
    ensure!((first("tp=2", "0.25")? - some).abs() < 1e-5, "the vocabulary may be cut");
    let error = first("", "1.5").unwrap_err();
    ensure!(format!("{error:#}").contains("sft.label_smoothing"), "{error:#}");
    Ok(())
}

/// How often the most likely token is the right one, as the metrics of a run tell it.
fn accuracy(sandbox: &Sandbox) -> Result<Vec<f64>> {
    let metrics = std::fs::read_to_string(sandbox.run_dir("run").join("metrics.jsonl"))?;
    let values = metrics.lines().filter_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        line["token_accuracy"].as_f64()
    });
    Ok(values.collect())
}

#[test]
fn tokens_that_are_right_are_counted_over_all_ranks_and_rounds() -> Result<()> {
    let told = |mesh: &str, more: &[&str]| -> Result<Vec<f64>> {
        let sandbox = sandbox()?;
        train(&sandbox, 30, mesh, &[&["train.steps=30", "optim.lr=0.01"], more].concat())?;
        accuracy(&sandbox)
    };
    let alone = told("", &[])?;
    ensure!(alone.len() == 30 && alone.iter().all(|part| (0.0..=1.0).contains(part)), "{alone:?}");
    ensure!(alone[29] > alone[0] + 0.3, "{alone:?}");
    for (mesh, more) in [("dp=2", "train.zero=1"), ("pp=2", "train.zero=0")] {
        ensure!(told(mesh, &[more])? == alone, "{mesh}");
    }
    // Rounding may turn a close call; the vocabulary is cut, and all scores are there at once.
    for (mesh, more) in [("tp=2", "train.zero=0"), ("tp=2", "sft.label_smoothing=0.000001")] {
        let found = told(mesh, &[more])?;
        ensure!(
            found.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 0.1),
            "{mesh} {more}: {found:?} {alone:?}"
        );
    }
    Ok(())
}
