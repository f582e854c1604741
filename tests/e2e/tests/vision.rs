//! Conversations with pictures and videos: the same bits on every mesh that promises them and after a cut, adapters on the tower
//! and on the text model, and wrong pictures refused by file and row.

use anyhow::{Context, Result, ensure};
use planaria_e2e::{Run, Sandbox};
use planaria_nn::models::Models;
use planaria_train::data::chat::Json;
use planaria_train::{Config, Generator, Sampling, Trainer};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn config(sandbox: &Sandbox, mesh: &str, more: &[&str]) -> Result<Config> {
    let file = repository().join("examples/vision/sft.toml");
    let mut set = vec![format!("mesh={mesh}"), format!("log.dir={}", sandbox.path().join("runs").display())];
    set.extend(["name=run", "train.steps=4", "train.timeout=60"].map(String::from));
    set.extend(more.iter().map(ToString::to_string));
    Ok(planaria_train::config::Sources::file(&file).set(set).resolve()?.config)
}

fn train(sandbox: &Sandbox, until: u64, mesh: &str, more: &[&str]) -> Result<Run> {
    let outcome = Trainer::new(config(sandbox, mesh, more)?).until(until).run(None);
    sandbox.finished("run", outcome.with_context(|| format!("on `{mesh}`"))?)
}

/// What a model says of a picture.
fn seen(generator: &Generator) -> Result<Vec<u32>> {
    let question = r#"{"role": "user", "content": [{"type": "image", "image": "b.png"}, {"type": "text", "text": "Which one?"}]}"#;
    let question = Json::parse(question).map_err(anyhow::Error::msg)?;
    let images = repository().join("testdata/qwen2-vl/model/tiny_a/images");
    let prepared = generator.prepare(vec![question], &images)?;
    let sampling = Sampling { tokens: 6, temperature: 0.0, ..Sampling::default() };
    Ok(generator.answer(&prepared, &sampling, 1, &|_| {})?.ids)
}

#[test]
fn pictures_give_the_same_bits_on_every_mesh_and_after_a_cut() -> Result<()> {
    let alone = train(&Sandbox::new()?, 4, "", &[])?;
    let loss = &alone.outcome.losses;
    ensure!(loss[3] < loss[0], "{loss:?}");
    for (mesh, more) in [("dp=2", &["train.zero=3"][..]), ("pp=2", &[]), ("pp=2 dp=2", &["train.zero=1"])] {
        train(&Sandbox::new()?, 4, mesh, more)?.same_bits(&alone)?;
    }
    for (mesh, more) in [
        ("tp=2", "train.sequence_parallel=true"),
        ("dp=2 tp=2", "train.zero=3"),
        ("pp=2 tp=2", "train.sequence_parallel=false"),
    ] {
        let halves = train(&Sandbox::new()?, 4, mesh, &[more])?;
        halves.close_losses(&alone, 1e-4)?;
        halves.close_weights(&alone, 2e-2)?;
    }
    let again = train(&Sandbox::new()?, 4, "", &["train.recompute=full"])?;
    again.close_losses(&alone, 1e-6)?;
    let sandbox = Sandbox::new()?;
    let begun = train(&sandbox, 2, "pp=2", &[])?;
    let ended = train(&sandbox, 4, "dp=2", &[])?;
    ensure!([begun.outcome.losses, ended.outcome.losses.clone()].concat() == alone.outcome.losses);
    ended.same_tensors(&alone)?;
    // What was learned sees: the folder has all that its pictures need.
    seen(&Generator::open(&sandbox.run_dir("run"))?)?;
    Ok(())
}

#[test]
fn adapters_on_the_tower_and_on_the_text_learn_from_pictures() -> Result<()> {
    let base = repository().join("testdata/qwen2-vl/model/tiny_a");
    for (modules, trained) in [
        (r#"["attn.qkv", "attn.proj", "fc1", "fc2", "mlp.0", "mlp.2"]"#, "visual."),
        (r#"["q_proj", "v_proj", "down_proj"]"#, "model.layers."),
    ] {
        let modules = format!("lora.target_modules={modules}");
        let lora = ["lora.r=4", &modules];
        let sandbox = Sandbox::new()?;
        let lora = [&lora[..], &["train.steps=24", "optim.lr=3e-2"]].concat();
        let alone = train(&sandbox, 24, "", &lora)?;
        let named = |name: &String| !name.starts_with("model:") || name.contains(trained);
        ensure!(alone.tensors.keys().all(named), "{:?}", alone.tensors.keys());
        let losses = &alone.outcome.losses;
        ensure!(losses[23] < losses[0] - 0.2, "{modules}: {losses:?}");
        train(&Sandbox::new()?, 24, "pp=2 dp=2", &[&lora[..], &["train.zero=2"]].concat())?
            .same_bits(&alone)?;
        let halves = train(&Sandbox::new()?, 24, "dp=2 tp=2", &[&lora[..], &["train.zero=1"]].concat())?;
        halves.close_losses(&alone, 1e-2)?;
        let folder = sandbox.run_dir("run");
        let adapted =
            seen(&Generator::open_adapted(&base, std::slice::from_ref(&folder), &Models::default())?)?;
        ensure!(seen(&Generator::open(&folder)?)? == adapted, "{modules}");
    }
    Ok(())
}

/// A folder of a Qwen2.5-VL without weights, which sees pictures as the other one does.
fn newer(sandbox: &Sandbox) -> Result<PathBuf> {
    let from = repository().join("testdata/qwen2-vl/model/tiny_a");
    let folder = sandbox.path().join("newer");
    std::fs::create_dir_all(&folder)?;
    for name in
        ["tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "generation_config.json"]
    {
        std::fs::copy(from.join(name), folder.join(name)).with_context(|| name.to_string())?;
    }
    let mut config: Value = serde_json::from_slice(&std::fs::read(from.join("config.json"))?)?;
    config["model_type"] = json!("qwen2_5_vl");
    config["architectures"] = json!(["Qwen2_5_VLForConditionalGeneration"]);
    // Windows of two by two tokens in the first block, all of a frame in the second.
    config["vision_config"] = json!({
        "model_type": "qwen2_5_vl", "depth": 2, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48,
        "num_heads": 2, "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "window_size": 56, "fullatt_block_indexes": [1], "tokens_per_second": 2, "hidden_act": "silu",
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;
    Ok(folder)
}

#[test]
fn windows_and_newer_norms_learn_from_pictures_on_every_mesh() -> Result<()> {
    let example = std::fs::read_to_string(repository().join("examples/vision/sft.toml"))?;
    let rows = repository().join("examples/vision/rows.jsonl").display().to_string();
    let run = |sandbox: &Sandbox, start: &str, mesh: &str, more: &[&str]| -> Result<Run> {
        let text = example
            .replace("init = \"../../testdata/qwen2-vl/model/tiny_a\"", start)
            .replace("rows.jsonl", &rows);
        let mut set =
            vec![format!("mesh={mesh}"), format!("log.dir={}", sandbox.path().join("runs").display())];
        set.extend(
            ["name=run", "train.steps=4", "train.timeout=60"].iter().chain(more).map(ToString::to_string),
        );
        let config = planaria_train::config::Sources::text("newer.toml", &text).set(set).resolve()?.config;
        let outcome = Trainer::new(config).run(None);
        sandbox.finished("run", outcome.with_context(|| format!("on `{mesh}`"))?)
    };
    let first = Sandbox::new()?;
    let start = format!("config = \"{}\"", newer(&first)?.join("config.json").display());
    let alone = run(&first, &start, "", &[])?;
    let losses = &alone.outcome.losses;
    ensure!(losses[3] < losses[0], "{losses:?}");
    for (mesh, more) in [("dp=2", "train.zero=3"), ("pp=2", "train.zero=0"), ("pp=2 dp=2", "train.zero=1")] {
        run(&Sandbox::new()?, &start, mesh, &[more])?.same_bits(&alone)?;
    }
    for more in ["train.sequence_parallel=false", "train.sequence_parallel=true"] {
        run(&Sandbox::new()?, &start, "tp=2", &[more])?.close_losses(&alone, 1e-4)?;
    }
    // An adapter on the tower and on the text, from what was learned.
    let start = format!("init = \"{}\"", first.run_dir("run").display());
    let lora = ["lora.r=4", "lora.target_modules=[\"attn.qkv\", \"mlp.2\", \"q_proj\"]", "train.steps=6"];
    let second = Sandbox::new()?;
    let adapted = run(&second, &start, "", &lora)?;
    let losses = &adapted.outcome.losses;
    ensure!(losses[5] < losses[0], "{losses:?}");
    run(&Sandbox::new()?, &start, "pp=2 dp=2", &lora)?.same_bits(&adapted)?;
    seen(&Generator::open(&second.run_dir("run"))?)?;
    Ok(())
}

/// What a run with one row says.
fn refusal(row: &str, more: &[&str], file: (&str, &[u8])) -> Result<String> {
    let sandbox = Sandbox::new()?;
    std::fs::write(sandbox.path().join(file.0), file.1)?;
    let rows = sandbox.path().join("rows.jsonl");
    std::fs::write(
        &rows,
        format!(
            "{}\n{row}\n",
            r#"{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}"#
        ),
    )?;
    let source = format!("data.source.path={}", rows.display());
    match train(&sandbox, 4, "", &[&[source.as_str()], more].concat()) {
        Ok(run) => Ok(format!("{:?}", run.outcome.losses)),
        Err(error) => Ok(format!("{error:#}")),
    }
}

#[test]
fn wrong_pictures_are_refused_by_file_and_row() -> Result<()> {
    let picture = std::fs::read(repository().join("testdata/qwen2-vl/model/tiny_a/images/a.png"))?;
    let row = |parts: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": [{parts}]}}, {{"role": "assistant", "content": "!"}}]}}"#
        )
    };
    let shows = row(r#"{"type": "image", "image": "x.png"}"#);
    // The header says more rows than there are.
    let mut tall = picture.clone();
    tall[20..24].copy_from_slice(&400u32.to_be_bytes());
    let crc = crc32(&tall[12..29]);
    tall[29..33].copy_from_slice(&crc.to_be_bytes());
    // A few bytes that claim four thousand million pixels.
    let mut bomb = picture.clone();
    bomb[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
    let crc = crc32(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&crc.to_be_bytes());
    let marked = row(r#"{"type": "image", "image": "x.png"}, {"type": "text", "text": "<|image_pad|>"}"#);
    let wide = row(r#"{"type": "image", "image": "x.png"}, {"type": "text", "text": "x"}"#);
    let url = row(r#"{"type": "image", "image": "https://example.com/x.png"}"#);
    let video = row(r#"{"type": "video", "video": "x.mp4"}"#);
    for (row, bytes, more, words) in [
        (&row(r#"{"type": "image", "image": "y.png"}"#), &picture[..], &[][..], "y.png': No such file"),
        (&shows, b"not a picture", &[], "x.png': this is not a valid PNG"),
        (&shows, &picture[..picture.len() / 2], &[], "x.png': this is not a valid PNG"),
        (&shows, &tall, &[], "x.png': this is not a valid PNG"),
        (&shows, &bomb, &[], "x.png': this is not a valid PNG"),
        (&marked, &picture, &[], "the text has 2 places for pictures, and 1 are shown"),
        (
            &row(r#"{"type": "image"}"#),
            &picture,
            &[],
            "messages[0].content[0]`: the name of a file is expected",
        ),
        (&url, &picture, &[], "download it"),
        (&video, &picture, &[], "a list of frames is expected"),
        (&wide, &picture, &["data.chat.packing=wrapped"], "would cut apart"),
        // Trusted until it is read.
        (&shows, &tall, &["data.chat.pictures=trust"], "x.png': "),
    ] {
        let said = refusal(row, more, ("x.png", bytes))?;
        ensure!(said.contains("rows.jsonl:2: ") && said.contains(words), "{words}: {said}");
    }
    // Escaped, a mark in a text is text.
    let said = refusal(&marked, &["data.chat.escape_specials=true"], ("x.png", &picture))?;
    ensure!(said.starts_with('['), "{said}");
    Ok(())
}

/// The sum at the end of a piece of a PNG file.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        let mixed = sum ^ u32::from(*byte);
        (0..8).fold(mixed, |sum, _| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 })
    };
    !bytes.iter().fold(u32::MAX, step)
}
