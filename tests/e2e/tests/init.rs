//! Runs that begin with weights which others wrote: plain Hugging Face folders, on every kind of mesh.

use anyhow::{Context, Result, ensure};
use planaria_comm::{Comm, threads};
use planaria_e2e::{Run, Sandbox};
use planaria_train::Trainer;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A tensor on its way into a file: dtype, shape, bytes.
type Whole = (Dtype, Vec<usize>, Vec<u8>);

/// A checkpoint as transformers would have written it: no manifest, no mark, files as told by `file_of`.
fn plain_folder(
    from: &Path,
    to: &Path,
    file_of: &dyn Fn(usize) -> String,
    change: &dyn Fn(String, Whole) -> Option<(String, Whole)>,
) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(name), to.join(name))?;
    }
    let mut files: BTreeMap<String, Vec<(String, Whole)>> = BTreeMap::new();
    let (mut map, mut number) = (BTreeMap::new(), 0);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(from)?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if !name.starts_with("model") || !name.ends_with(".safetensors") {
            continue;
        }
        let bytes = std::fs::read(&path)?;
        for (tensor, view) in safetensors::SafeTensors::deserialize(&bytes)?.tensors() {
            let whole = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
            let Some((tensor, whole)) = change(tensor, whole) else { continue };
            map.insert(tensor.clone(), file_of(number));
            files.entry(file_of(number)).or_default().push((tensor, whole));
            number += 1;
        }
    }
    for (file, tensors) in &files {
        let views = tensors.iter().map(|(name, (dtype, shape, data))| {
            Ok((name.clone(), TensorView::new(*dtype, shape.clone(), data)?))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let metadata = [("format".to_string(), "pt".to_string())].into();
        std::fs::write(to.join(file), safetensors::serialize(views, Some(metadata))?)?;
    }
    if files.len() > 1 {
        let index = json!({ "metadata": {}, "weight_map": map });
        std::fs::write(to.join("model.safetensors.index.json"), index.to_string())?;
    }
    Ok(())
}

/// The upper halves of f32 numbers, which are bf16 numbers.
fn halves((_, shape, data): Whole) -> Whole {
    (Dtype::BF16, shape, data.chunks_exact(4).flat_map(|b| [b[2], b[3]]).collect())
}

/// A run of four steps and its last checkpoint.
fn trained(sandbox: &Sandbox, more: &[&str]) -> Result<PathBuf> {
    let run = sandbox.train("first", "tp=2", more)?;
    Ok(sandbox.run_dir("first").join(run.outcome.checkpoint.context("it was saved")?))
}

fn tuned(sandbox: &Sandbox, name: &str, mesh: &str, init: &Path, more: &[&str]) -> Result<Run> {
    let init = format!("model.init={}", init.display());
    sandbox.train(name, mesh, &[&[init.as_str(), "train.steps=2"], more].concat())
}

#[test]
fn a_plain_folder_is_the_same_start_as_the_checkpoint_on_every_mesh() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ours = trained(&sandbox, &["model.tie_word_embeddings=true"])?;
    let (single, sharded) = (sandbox.path().join("single"), sandbox.path().join("sharded"));
    plain_folder(&ours, &single, &|_| "model.safetensors".into(), &|name, whole| Some((name, whole)))?;
    let parts = |n: usize| format!("model-{:05}-of-00003.safetensors", n % 3 + 1);
    plain_folder(&ours, &sharded, &parts, &|name, whole| Some((name, whole)))?;
    let tie = ["model.tie_word_embeddings=true"];
    for (number, (mesh, more)) in
        [("", &[][..]), ("tp=2", &[]), ("pp=2 dp=2", &["train.zero=1"]), ("dp=2", &["train.zero=3"])]
            .into_iter()
            .enumerate()
    {
        let more = [more, &tie].concat();
        let run = |kind: &str, init: &Path| tuned(&sandbox, &format!("{kind}-{number}"), mesh, init, &more);
        let whole = run("ours", &ours)?;
        ensure!(whole.outcome.losses[0] < 5.3, "{mesh}: it had learnt: {:?}", whole.outcome.losses);
        run("single", &single)?.same_bits(&whole).with_context(|| format!("single, {mesh}"))?;
        run("sharded", &sharded)?.same_bits(&whole).with_context(|| format!("sharded, {mesh}"))?;
    }
    // A run that has begun needs the folder no more.
    std::fs::remove_dir_all(&sharded)?;
    let init = format!("model.init={}", sharded.display());
    let more = ["train.zero=1", "train.steps=3", tie[0], init.as_str()];
    ensure!(sandbox.train("sharded-2", "dp=2", &more)?.outcome.step == 3);
    // The head is made its own from the matrix that it shared.
    let untied = tuned(&sandbox, "untied", "pp=2", &single, &["model.tie_word_embeddings=false"])?;
    let tied = tuned(&sandbox, "tied", "pp=2", &single, &tie)?;
    ensure!(untied.outcome.losses[0] == tied.outcome.losses[0], "{:?}", untied.outcome.losses);
    ensure!(
        untied.tensors.contains_key("model:lm_head.weight")
            && !tied.tensors.contains_key("model:lm_head.weight")
    );
    Ok(())
}

#[test]
fn half_weights_and_other_prefixes_are_taken() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ours = trained(&sandbox, &[])?;
    let one = |_: usize| "model.safetensors".to_string();
    let [half, long, short] = ["half", "long", "short"].map(|name| sandbox.path().join(name));
    plain_folder(&ours, &half, &one, &|name, whole| Some((name, halves(whole))))?;
    plain_folder(&ours, &long, &one, &|name, whole| Some((format!("module.{name}"), whole)))?;
    plain_folder(&ours, &short, &one, &|name, whole| {
        Some((name.strip_prefix("model.").unwrap_or(&name).to_string(), whole))
    })?;
    let whole = tuned(&sandbox, "whole", "", &ours, &[])?;
    for (name, folder) in [("long", &long), ("short", &short)] {
        tuned(&sandbox, name, "tp=2 pp=2", folder, &[])?
            .close_losses(&whole, 2e-5)
            .with_context(|| name.to_string())?;
    }
    let cast = tuned(&sandbox, "half", "dp=2", &half, &[])?;
    cast.close_losses(&whole, 2e-2)?;
    ensure!(cast.outcome.losses != whole.outcome.losses, "they were rounded");
    let f32 = cast.tensors["model:model.norm.weight"].starts_with(b"F32");
    ensure!(f32, "the run has its own precision");
    // A bf16 run from bf16 weights says so in its config.json.
    tuned(&sandbox, "bf16", "tp=2", &half, &["train.precision=bf16"])?;
    let config = sandbox.run_dir("bf16").join("ckpt/step-00000002/config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(config)?)?;
    ensure!(config["dtype"] == "bfloat16" && config["torch_dtype"] == "bfloat16", "{config}");
    Ok(())
}

#[test]
fn weights_that_do_not_fit_are_refused_by_name() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ours = trained(&sandbox, &[])?;
    let lacking = sandbox.path().join("lacking");
    plain_folder(&ours, &lacking, &|_| "model.safetensors".into(), &|name, whole| {
        (name != "model.layers.3.mlp.up_proj.weight").then_some((name, whole))
    })?;
    for mesh in ["", "tp=2", "pp=2 dp=2"] {
        for (init, more, words) in [
            (&lacking, &[][..], &["lacking", "model.layers.3.mlp.up_proj.weight"][..]),
            (&ours, &["model.intermediate_size=32"], &["first", "shape", "24"]),
            (&sandbox.path().join("none"), &[], &["none", "no such"]),
        ] {
            let error = tuned(&sandbox, "bad", mesh, init, more).unwrap_err();
            let text = format!("{error:#}");
            ensure!(words.iter().all(|word| text.contains(word)), "{mesh}: {text}");
            ensure!(!text.contains("rank"), "{mesh}: {text}");
        }
    }
    Ok(())
}

/// Ids of another tokenizer mean other things: none is guessed, by no command.
#[test]
fn weights_without_a_tokenizer_are_refused_and_those_of_sentencepiece_taken() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ours = trained(&sandbox, &[])?;
    let bare = sandbox.path().join("bare");
    plain_folder(&ours, &bare, &|_| "model.safetensors".into(), &|name, whole| Some((name, whole)))?;
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::remove_file(bare.join(name))?;
    }
    let init = format!("model.init={}", bare.display());
    let check = |more: &[&str]| -> Result<Option<String>> {
        Ok(Trainer::new(sandbox.config("tune", "", &[&[init.as_str()], more].concat())?).check(1)?)
    };
    let refused = check(&[]).unwrap_err().to_string();
    ensure!(
        refused.contains("there is no tokenizer beside the weights") && refused.contains("bare"),
        "{refused}"
    );
    let generator = planaria_train::Generator::open(&bare).map(drop).unwrap_err().to_string();
    ensure!(generator == refused, "{generator}");
    check(&["data.tokenizer=bytes"])?;
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tokenizers/bpe_user.model");
    std::fs::copy(model, bare.join("tokenizer.model"))?;
    check(&[])?;
    let run = tuned(&sandbox, "tune", "", &bare, &[])?;
    let saved = sandbox.run_dir("tune").join(run.outcome.checkpoint.context("it was saved")?);
    let open = |path: &Path| planaria_train::data::Tokenizer::open(&path.display().to_string());
    ensure!(
        open(&saved)?.fingerprint()? == open(&bare)?.fingerprint()?,
        "its checkpoint has the same tokenizer"
    );
    ensure!(saved.join("tokenizer.json").is_file());
    Ok(())
}

/// Ranks that share no memory: those in the middle of a pipeline could not read the data if they tried.
#[test]
fn only_ranks_that_need_data_open_it() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let more = ["train.eval_every=2", "data.held_out=0.2", "checkpoint.final_save=false"];
    let whole = Trainer::new(sandbox.config("threads", "pp=4", &more)?).run(None)?;
    let config = |rank: usize| {
        let mut config = sandbox.config("processes", "pp=4", &more)?;
        if rank == 1 || rank == 2 {
            config.data.source[0].path = sandbox.path().join("nowhere.txt").display().to_string();
        }
        anyhow::Ok(config)
    };
    let configs = (0..4).map(config).collect::<Result<Vec<_>>>()?;
    let work = |comm: Arc<dyn Comm>| {
        let trainer = Trainer::new(configs[comm.rank()].clone());
        trainer.run_on(comm).map_err(|error| error.to_string())
    };
    let outcomes = threads::try_run(&threads::Options::new(4), work)?;
    ensure!(outcomes.iter().all(|outcome| outcome.losses == whole.losses), "{outcomes:?}");
    let tokens = std::fs::read_dir(sandbox.run_dir("processes").join("tokens"))?.count();
    ensure!(tokens == 1, "the text was tokenised once, {tokens} files");
    Ok(())
}
