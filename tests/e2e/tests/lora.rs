//! Adapters: the same promises as for whole models, checkpoints that hold the adapter alone, and a base that stays as it is.

use anyhow::{Context, Result, ensure};
use planaria_e2e::{MOE, Run, Sandbox};
use planaria_train::Trainer;
use std::path::Path;

/// Everything linear, so that every kind of cut is met.
const ALL: [&str; 3] = ["lora.r=3", "lora.alpha=6", "lora.target_modules=all-linear"];
/// Where sums are split between ranks of one replica.
const TENSOR_BOUND: f64 = 2e-5;

fn train(mesh: &str, more: &[&str]) -> Result<Run> {
    let more: Vec<&str> = ALL.iter().chain(more).copied().collect();
    Sandbox::new()?.train("run", mesh, &more).with_context(|| format!("{mesh} with {more:?}"))
}

fn same(reference: &Run, mesh: &str, more: &[&str]) -> Result<()> {
    train(mesh, more)?.same_bits(reference).with_context(|| format!("{mesh} with {more:?}"))
}

#[test]
fn data_ranks_zero_stages_and_recomputing_change_no_bit() -> Result<()> {
    let alone = train("", &[])?;
    ensure!(alone.outcome.losses[3] < alone.outcome.losses[0], "{:?}", alone.outcome.losses);
    same(&alone, "dp=2", &["train.zero=0"])?;
    same(&alone, "dp=4", &["train.zero=1", "train.recompute=full"])?;
    same(&alone, "dp=2", &["train.zero=3", "train.recompute=full"])?;
    same(&alone, "pp=2", &["train.schedule=zb_h1"])?;
    same(&alone, "pp=2 dp=2", &["train.zero=3"])?;
    let dropped = ["lora.dropout=0.3"];
    let alone = train("", &dropped)?;
    same(&alone, "dp=2", &[dropped[0], "train.recompute=full", "train.zero=2"])?;
    same(&alone, "pp=2", &[dropped[0], "train.recompute=full"])
}

#[test]
fn tensor_sequence_and_expert_ranks_stay_within_bounds() -> Result<()> {
    let alone = train("", &[])?;
    for (mesh, more) in [
        ("tp=2", &[][..]),
        ("tp=4", &[]),
        ("dp=2 tp=2", &["train.sequence_parallel=true", "train.zero=3"]),
        ("pp=2 tp=2", &["train.sequence_parallel=true"]),
    ] {
        train(mesh, more)?
            .close_losses(&alone, TENSOR_BOUND)
            .with_context(|| format!("{mesh} with {more:?}"))?;
    }
    same(&train("tp=2", &[])?, "dp=2 tp=2", &["train.zero=2"])?;
    let moe = [&MOE[..], &["train.micro_batch=2"]].concat();
    let alone = train("", &moe)?;
    let expert = "adapter_model:base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_A.weight";
    ensure!(alone.tensors.contains_key(expert), "{:?}", alone.tensors.keys().collect::<Vec<_>>());
    same(&alone, "dp=2", &[&moe[..], &["train.zero=3"]].concat())?;
    for mesh in ["ep=2", "tp=2", "ep=2 tp=2"] {
        train(mesh, &moe)?.close_losses(&alone, TENSOR_BOUND).with_context(|| mesh.to_string())?;
    }
    Ok(())
}

#[test]
fn every_variant_is_the_same_on_every_mesh() -> Result<()> {
    let variants: [&[&str]; 6] = [
        &["lora.dora=true"],
        &[
            "lora.rslora=true",
            "lora.rank_pattern={ q_proj = 2 }",
            "lora.target_modules=[\"q_proj\", \"embed_tokens\", \"lm_head\"]",
        ],
        &["model.kind=qwen2", "lora.bias=all", "lora.lora_bias=true", "lora.modules_to_save=[\"norm\"]"],
        &[
            "model.tie_word_embeddings=true",
            "lora.target_modules=[\"v_proj\"]",
            "lora.trainable_token_indices=[10, 101]",
        ],
        &["lora.init=pissa", "lora.exclude_modules=.*mlp.*"],
        &[
            "model.tie_word_embeddings=true",
            "lora.target_modules=[\"lm_head\", \"o_proj\"]",
            "lora.init=olora",
        ],
    ];
    for variant in variants {
        let alone = train("", variant)?;
        for (mesh, more) in [("dp=2", "train.zero=3"), ("pp=2", "train.recompute=full")] {
            let more = [variant, &[more]].concat();
            same(&alone, mesh, &more)?;
        }
        train("tp=2", variant)?.close_losses(&alone, TENSOR_BOUND).with_context(|| format!("{variant:?}"))?;
    }
    Ok(())
}

#[test]
fn a_run_that_is_cut_goes_on_with_the_same_bits_on_another_mesh() -> Result<()> {
    let base = Sandbox::new()?;
    base.train("base", "", &["train.steps=1"])?;
    let init = format!("model.init={}", base.run_dir("base").display());
    for variant in [&["lora.dora=true"][..], &["lora.init=pissa", "train.precision=bf16"]] {
        let mut more = [&ALL[..], variant].concat();
        more.push(&init);
        let whole = Sandbox::new()?.train("run", "", &more)?;
        let sandbox = Sandbox::new()?;
        sandbox.train_until(1, "run", "dp=2", &[&more[..], &["train.zero=3"]].concat())?;
        sandbox.train_until(3, "run", "pp=2", &more)?;
        sandbox.train("run", "dp=4", &more)?.same_tensors(&whole).with_context(|| format!("{variant:?}"))?;
    }
    Ok(())
}

#[test]
fn frozen_weights_of_few_bits_are_close_and_the_same_on_every_split_of_a_batch() -> Result<()> {
    let full = train("", &[])?;
    for (base, bound) in [("lora.base=int8", 2e-3), ("lora.base=nf4", 2e-2)] {
        let alone = train("", &[base])?;
        ensure!(alone.same_tensors(&full).is_err(), "{base}: something is rounded");
        alone.close_losses(&full, bound).with_context(|| base.to_string())?;
        same(&alone, "dp=2", &[base, "train.zero=2"])?;
        same(&alone, "pp=2", &[base, "train.recompute=full"])?;
        // The few bits are what is divided and brought together.
        same(&alone, "dp=2", &[base, "train.zero=3", "train.recompute=full"])?;
        same(&alone, "pp=2 dp=2", &[base, "train.zero=3", "train.shard=parameter"])?;
        same(&train("tp=2", &[base])?, "dp=2 tp=2", &[base, "train.zero=3"])?;
        // Cuts inside blocks of 64 give each part a scale of its own.
        train("tp=2", &[base])?.close_losses(&alone, bound)?;
    }
    let moe = [&MOE[..], &["lora.base=nf4", "train.micro_batch=2"]].concat();
    let alone = train("", &moe)?;
    same(&alone, "dp=2", &moe)?;
    same(&alone, "dp=2", &[&moe[..], &["train.zero=3"]].concat())
}

#[test]
fn few_bits_are_little_memory_and_little_traffic() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let plan = |mesh: &str, more: &[&str]| -> Result<planaria_train::plan::Plan> {
        let config = sandbox.config("run", mesh, &[&ALL[..], more].concat())?;
        let model = planaria_train::plan::model_of(&config, &planaria_nn::models::Models::default())?;
        Ok(planaria_train::plan::Plan::new(&config, &*model, config.mesh.ranks(), &Default::default())?)
    };
    let weights = |more: &[&str]| -> Result<u64> {
        let plan = plan("", more)?;
        ensure!(plan.trained < plan.parameters / 3, "{} of {}", plan.trained, plan.parameters);
        let memory = plan.largest().context("a rank")?.memory;
        ensure!(memory.moments == 8 * plan.trained, "{} bytes for {}", memory.moments, plan.trained);
        Ok(memory.weights)
    };
    ensure!(weights(&["lora.base=nf4"])? < weights(&["lora.base=int8"])?);
    ensure!(weights(&["lora.base=int8"])? < weights(&[])?);
    let gathered = |base: &str| -> Result<[u64; 2]> {
        let wide = ["model.hidden_size=256", "model.intermediate_size=512"];
        let plan = plan("dp=2", &[&wide[..], &[base, "train.zero=3"]].concat())?;
        let rank = plan.largest().context("a rank")?;
        let moved = rank.traffic.iter().filter(|line| line.what == "weights").map(|line| line.bytes).sum();
        Ok([moved, rank.memory.weights])
    };
    let (full, nf4) = (gathered("lora.base=full")?, gathered("lora.base=nf4")?);
    ensure!(nf4[0] * 2 < full[0] && nf4[1] * 2 < full[1], "{nf4:?} and {full:?}");
    Ok(())
}

#[test]
fn a_checkpoint_is_an_adapter_alone() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.train("base", "", &["train.steps=1"])?;
    let init = format!("model.init={}", sandbox.run_dir("base").display());
    let more = [&ALL[..], &[&init]].concat();
    let run = sandbox.train("tuned", "dp=2", &more)?;
    ensure!(run.tensors.keys().all(|name| name.contains("lora_")), "{:?}", run.tensors.keys());
    let folder = sandbox.run_dir("tuned").join(run.outcome.checkpoint.as_ref().context("a checkpoint")?);
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("adapter_config.json"))?)?;
    ensure!(config["r"] == 3 && config["target_modules"] == "all-linear", "{config}");
    ensure!(
        folder.join("adapter_model.safetensors").is_file()
            && !folder.join("model.safetensors.index.json").exists()
    );
    // It is opened by its own folder, and on top of the model; both are the same.
    let say = |path: &Path, adapters: &[std::path::PathBuf]| -> Result<String> {
        let models = planaria_nn::models::Models::default();
        let generator = planaria_train::Generator::open_adapted(path, adapters, &models)?;
        let sampling = planaria_train::Sampling { tokens: 12, ..generator.sampling() };
        Ok(generator.generate("12: cut", &sampling, 1, &|_| {})?)
    };
    let own = say(&sandbox.run_dir("tuned"), &[])?;
    ensure!(own == say(&sandbox.run_dir("base"), std::slice::from_ref(&folder))?, "{own}");
    // Another run resumes from it as peft would: the same weights, a new optimizer.
    let adapter = format!("lora.adapter={}", folder.display());
    let next = Trainer::new(sandbox.config("next", "", &[&init, &adapter, "train.steps=1"])?).run(None)?;
    let last = run.outcome.losses[run.outcome.losses.len() - 1];
    ensure!((next.losses[0] - last).abs() < 0.5, "{} after {last}", next.losses[0]);
    Ok(())
}

#[test]
fn what_cannot_be_is_refused_by_name() -> Result<()> {
    let refused = |more: &[&str]| -> Result<String> {
        let sandbox = Sandbox::new()?;
        match sandbox.config("run", "", more) {
            Err(error) => Ok(format!("{error:#}")),
            Ok(config) => Ok(Trainer::new(config).run(None).err().context("it was accepted")?.to_string()),
        }
    };
    let text = refused(&["lora.target_modules=[\"q_prj\"]"])?;
    ensure!(text.contains("q_prj") && text.contains("`q_proj`"), "{text}");
    let text = refused(&["lora.r=0"])?;
    ensure!(text.contains("lora.r"), "{text}");
    let text = refused(&["lora.bias=some"])?;
    ensure!(text.contains("lora_only"), "{text}");
    let text = refused(&["lora.rank=4"])?;
    ensure!(text.contains("lora.rank"), "{text}");
    // A checkpoint of an adapter is not resumed from with another one.
    let sandbox = Sandbox::new()?;
    sandbox.train_until(1, "run", "", &ALL)?;
    let other = sandbox.config("run", "", &["lora.r=4", ALL[1], ALL[2]])?;
    let text = Trainer::new(other).run(None).err().context("it was accepted")?.to_string();
    ensure!(text.contains("lora.r 3 -> 4"), "{text}");
    Ok(())
}
