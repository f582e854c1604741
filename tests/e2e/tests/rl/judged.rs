//! A reward model, and the entropy of what is learned.

use super::*;
use planaria_array::DType;
use planaria_comm::alone;
use planaria_nn::Init;
use planaria_nn::models::{Models, Run as Forward};
use planaria_train::Opened;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The model of a checkpoint with a head of one number.
fn score_folder(sandbox: &Sandbox, checkpoint: &Path) -> Result<PathBuf> {
    let folder = sandbox.path().join("score");
    std::fs::create_dir_all(&folder)?;
    let mut config: Value = serde_json::from_slice(&std::fs::read(checkpoint.join("config.json"))?)?;
    config["architectures"] = json!(["Qwen2ForSequenceClassification"]);
    config["id2label"] = json!({ "0": "LABEL_0" });
    config["tie_word_embeddings"] = json!(false);
    std::fs::write(folder.join("config.json"), config.to_string())?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(checkpoint)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_string();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            files.push(std::fs::read(path)?);
        }
    }
    let head: Vec<u8> = (0..16).flat_map(|i| (0.3 * (i as f32 - 7.0)).to_le_bytes()).collect();
    let mut all = vec![("score.weight".to_string(), TensorView::new(Dtype::F32, vec![1, 16], &head)?)];
    for file in &files {
        let tensors = safetensors::SafeTensors::deserialize(file)?.tensors();
        all.extend(tensors.into_iter().filter(|(name, _)| name.starts_with("model.")));
    }
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(all, None)?)?;
    Ok(folder)
}

#[test]
fn a_model_judges_by_the_last_token_of_a_response() -> Result<()> {
    let sandbox = sandbox()?;
    let start = sandbox.run_dir("start");
    let newest = std::fs::read_dir(start.join("ckpt"))?.filter_map(|entry| Some(entry.ok()?.path())).max();
    let folder = score_folder(&sandbox, &newest.context("no checkpoint")?)?;
    let (prompt, responses) = ([49i64, 50], [vec![55i64, 55, 51], vec![48], vec![], vec![57, 49]]);
    let row = json!({ "prompt": prompt, "responses": responses });
    std::fs::write(sandbox.path().join("rows.jsonl"), format!("{row}\n").repeat(8))?;
    let mut set = settings(&sandbox, "grpo", "rows.jsonl");
    set.push(format!("rl.reward=[{{kind = \"model\", path = \"{}\", weight = 2}}]", folder.display()));
    let mut given = set.clone();
    given.extend(["train.steps=1", "rl.responses=rows"].map(String::from));
    let (_, told) = train(&sandbox, 1, "given", "", &given, "reward")?;
    let network = Opened::open(&folder, &[], &Models::default())?.load(&alone(), &Init::default())?;
    let mut sum = 0.0;
    for response in responses.iter().filter(|response| !response.is_empty()) {
        let tokens = [&prompt[..], response].concat();
        let tokens = planaria::tensor::Tensor::from_slice(&tokens, &[1, tokens.len()])?;
        let last = network.forward((&tokens).into(), &Forward::default())?;
        let values = network.logits(&last.hidden)?.local().cast(DType::F64)?.to_vec::<f64>()?;
        sum += 2.0 * values.last().context("no values")?;
    }
    // The empty response has no last token, and no reward.
    ensure!((told[0] - sum / 3.0).abs() < 1e-5, "{told:?} and {}", sum / 3.0);
    let (_, unscored) = train(&sandbox, 1, "given-again", "", &given, "unscored")?;
    ensure!(unscored == [0.25], "{unscored:?}");
    // Responses of its own, on every split.
    let (rows, prompts) = ("rows.jsonl", "prompts.jsonl");
    let set: Vec<String> = set.iter().map(|line| line.replace(rows, prompts)).collect();
    let set = [set, vec!["train.steps=2".into()]].concat();
    let (alone, _) = train(&sandbox, 2, "alone", "", &set, "reward")?;
    for (number, mesh) in ["dp=2", "dp=2 pp=2"].into_iter().enumerate() {
        let (split, _) = train(&sandbox, 2, &format!("split{number}"), mesh, &set, "reward")?;
        split.same_bits(&alone).with_context(|| mesh.to_string())?;
    }
    Ok(())
}

/// A reward model with other tokens reads the texts anew.
#[test]
fn a_model_of_another_tokenizer_reads_the_texts_anew() -> Result<()> {
    let sandbox = sandbox()?;
    let start = sandbox.run_dir("start");
    let newest = std::fs::read_dir(start.join("ckpt"))?.filter_map(|entry| Some(entry.ok()?.path())).max();
    let folder = score_folder(&sandbox, &newest.context("no checkpoint")?)?;
    // Digits from the last to the first, one token each.
    let id = |digit: char| i64::from(b'9') - i64::from(digit as u8) + 3;
    let words: serde_json::Map<String, Value> = ('0'..='9')
        .map(|digit| (digit.to_string(), json!(id(digit))))
        .chain([("?".into(), json!(0))])
        .collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "Split", "pattern": { "Regex": "." }, "behavior": "Isolated", "invert": false },
        "post_processor": null, "decoder": null, "model": { "type": "WordLevel", "vocab": words, "unk_token": "?" },
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string())?;
    let texts = ("12", ["773", "0"]);
    let ids = |text: &str| text.bytes().map(i64::from).collect::<Vec<i64>>();
    let row = json!({ "prompt": texts.0, "responses": texts.1.map(ids) });
    std::fs::write(sandbox.path().join("rows.jsonl"), format!("{row}\n").repeat(8))?;
    let mut set = settings(&sandbox, "grpo", "rows.jsonl");
    set.extend(["train.steps=1", "rl.responses=rows", "rl.samples_per_prompt=2"].map(String::from));
    set.push(format!("rl.reward=[{{kind = \"model\", path = \"{}\"}}]", folder.display()));
    let (_, told) = train(&sandbox, 1, "told", "", &set, "reward")?;
    let network = Opened::open(&folder, &[], &Models::default())?.load(&alone(), &Init::default())?;
    let mut sum = 0.0;
    for response in texts.1 {
        let tokens: Vec<i64> = texts.0.chars().chain(response.chars()).map(id).collect();
        let tokens = planaria::tensor::Tensor::from_slice(&tokens, &[1, tokens.len()])?;
        let last = network.forward((&tokens).into(), &Forward::default())?;
        let values = network.logits(&last.hidden)?.local().cast(DType::F64)?.to_vec::<f64>()?;
        sum += values.last().context("no values")?;
    }
    ensure!((told[0] - sum / 2.0).abs() < 1e-5, "{told:?} and {}", sum / 2.0);
    Ok(())
}

#[test]
fn entropy_earns_what_its_gradient_says() -> Result<()> {
    let sandbox = sandbox()?;
    let row = json!({ "prompt": "12", "responses": [[55, 49, 51], [48, 57]], "scores": [1, 1] });
    std::fs::write(sandbox.path().join("rows.jsonl"), format!("{row}\n").repeat(8))?;
    let mut set = settings(&sandbox, "grpo", "rows.jsonl");
    let lr = 1e-4;
    set.extend(
        [
            "train.steps=2",
            "rl.responses=rows",
            "rl.reward=[{kind = \"given\", field = \"scores\"}]",
            "rl.samples_per_prompt=2",
            "rl.temperature=0.7",
            "optim.kind=sgd",
            "optim.momentum=0",
            "optim.warmup=0",
            "optim.clip=0",
            "optim.schedule=constant",
        ]
        .map(String::from),
    );
    set.push(format!("optim.lr={lr}"));
    let steps = |name: &str, coef: f64| -> Result<Vec<(f64, f64)>> {
        let set = [&set[..], &[format!("rl.entropy_coef={coef}")]].concat();
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        let recorder = Recorder::shared();
        Trainer::new(sandbox.config(name, "", &set)?).observer(recorder.clone()).run(None)?;
        let step = |event: Event| match event {
            Event::Step(step) => Some((step.loss, step.grad_norm)),
            _ => None,
        };
        Ok(recorder.events().into_iter().filter_map(step).collect())
    };
    // Equal rewards have no advantage: all that is learned is the entropy.
    let [(first, norm), (second, _)] = steps("entropy", 0.5)?[..] else { anyhow::bail!("two steps") };
    ensure!(first < 0.0, "{first}");
    // Along the gradient the loss falls by its square times the rate.
    let (fell, said) = (first - second, lr * norm * norm);
    ensure!((fell / said - 1.0).abs() < 0.02, "the loss fell by {fell}, its gradient says {said}");
    let twice = steps("twice", 1.0)?[0];
    ensure!((twice.0 / first - 2.0).abs() < 1e-6 && (twice.1 / norm - 2.0).abs() < 1e-4, "{twice:?}");
    Ok(())
}

/// A step with a failed source is the step without what that source was asked about.
#[test]
fn what_has_no_reward_counts_nothing() -> Result<()> {
    let sandbox = sandbox()?;
    let script = "n=0; while read l; do case \"$l\" in *99*) exit 3;; esac; n=$((n + 1)); echo '{\"score\": '$((n % 3))'}'; done";
    std::fs::write(sandbox.path().join("judge.sh"), script)?;
    let row = |prompt: &str| json!({ "prompt": prompt, "responses": [[55, 49, 51], [48, 57]] });
    let good = format!("{}\n{}\n", row("12"), row("34"));
    std::fs::write(sandbox.path().join("good.jsonl"), &good)?;
    std::fs::write(sandbox.path().join("half.jsonl"), format!("{good}{}\n{}\n", row("99"), row("992")))?;
    let step = |file: &str, batch: usize, mesh: &str| -> Result<((f64, f64), Vec<Event>)> {
        let mut set = settings(&sandbox, "grpo", file);
        let judge = sandbox.path().join("judge.sh");
        set.extend([
            format!("train.global_batch={batch}"),
            format!(
                "rl.reward=[{{kind = \"command\", command = [\"sh\", \"{}\"], retries = 0}}]",
                judge.display()
            ),
        ]);
        let more = ["train.steps=1", "train.micro_batch=2", "data.order=sequential", "rl.responses=rows"];
        let more = [&more[..], &["rl.samples_per_prompt=2", "rl.entropy_coef=0.3"]].concat();
        let set: Vec<&str> = set.iter().map(String::as_str).chain(more).collect();
        let recorder = Recorder::shared();
        let name = format!("{batch}{}", mesh.replace('=', ""));
        Trainer::new(sandbox.config(&name, mesh, &set)?).observer(recorder.clone()).run(None)?;
        let events = recorder.events();
        let step = events.iter().find_map(|event| match event {
            Event::Step(step) => Some((step.loss, step.grad_norm)),
            _ => None,
        });
        Ok((step.context("no step")?, events))
    };
    let (whole, _) = step("good.jsonl", 2, "")?;
    for mesh in ["", "dp=2"] {
        let (half, events) = step("half.jsonl", 4, mesh)?;
        ensure!(
            (half.0 - whole.0).abs() < 1e-6 && (half.1 / whole.1 - 1.0).abs() < 1e-5,
            "{mesh}: {half:?} and {whole:?}"
        );
        let told = events.iter().any(|event| {
            matches!(event, Event::RewardFailed { step: 1, unscored: 4, responses: 8, error } if error.contains("status: 3"))
        });
        ensure!(told, "{mesh}: {events:?}");
    }
    Ok(())
}

#[test]
fn responses_end_at_every_token_that_the_start_names() -> Result<()> {
    let sandbox = sandbox()?;
    let all = std::fs::read_dir(sandbox.run_dir("start").join("ckpt"))?;
    let newest = all.filter_map(|entry| Some(entry.ok()?.path())).max().context("no checkpoint")?;
    let folder = sandbox.path().join("named");
    std::fs::create_dir_all(&folder)?;
    std::fs::copy(newest.join("config.json"), folder.join("config.json"))?;
    // Any byte is an end: all responses have one token. The checkpoint of a run keeps what its start says.
    let ends: Vec<u32> = (0..300).collect();
    std::fs::write(folder.join("generation_config.json"), json!({ "eos_token_id": ends }).to_string())?;
    let config = format!("model.config={}", folder.join("config.json").display());
    sandbox.train("named", "", &["train.steps=1", &config])?;
    let mut set = settings(&sandbox, "grpo", "prompts.jsonl");
    set.extend(["train.steps=1".into(), format!("model.init={}", sandbox.run_dir("named").display())]);
    for (figure, mesh) in [("response_tokens", ""), ("finished", "dp=2")] {
        let (_, told) = train(&sandbox, 1, figure, mesh, &set, figure)?;
        ensure!(told == [1.0], "{figure}: {told:?}");
    }
    Ok(())
}
