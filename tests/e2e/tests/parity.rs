//! The exactness promise: loss curve, weights and optimizer state are the same bits however a batch is split over data
//! ranks, whatever is divided among them, and whatever is computed again. Splits of the model stay within bounds.

use anyhow::{Context, Result, ensure};
use planaria_e2e::{MOE, Run, Sandbox};

/// Bound on the relative difference of losses where sums are split between ranks of one replica.
const TENSOR_BOUND: f64 = 2e-5;
/// Of the loss of one step, for tensor and expert ranks that begin with the same weights.
const STEP_BOUND: f64 = 1e-6;
/// Bound on the difference of weights there, relative to the largest of a tensor.
const WEIGHT_BOUND: f32 = 1e-4;

fn train(mesh: &str, more: &[&str]) -> Result<Run> {
    Sandbox::new()?.train("run", mesh, more)
}

fn same(reference: &Run, mesh: &str, more: &[&str]) -> Result<()> {
    let what = || format!("{mesh} with {more:?}");
    train(mesh, more).with_context(what)?.same_bits(reference).with_context(what)
}

#[test]
fn data_ranks_and_accumulation_change_no_bit() -> Result<()> {
    let alone = train("", &[])?;
    assert!(alone.outcome.losses[3] < alone.outcome.losses[0] - 0.2, "{:?}", alone.outcome.losses);
    for mesh in ["dp=2", "dp=4", "dp=8"] {
        same(&alone, mesh, &[])?;
    }
    same(&alone, "dp=2", &["train.bucket_bytes=64"])?;
    same(&alone, "dp=4", &["train.bucket_bytes=100000000"])
}

#[test]
fn zero_changes_no_bit() -> Result<()> {
    let alone = train("", &[])?;
    for stage in ["train.zero=1", "train.zero=2", "train.zero=3"] {
        same(&alone, "dp=2", &[stage])?;
        same(&alone, "dp=4", &[stage, "train.recompute=full"])?;
    }
    Ok(())
}

#[test]
fn what_is_computed_again_changes_no_bit() -> Result<()> {
    let kept = train("", &[])?;
    same(&kept, "", &["train.recompute=full"])?;
    same(&kept, "dp=2", &["train.recompute=blocks", "train.recompute_blocks=[1, 3]"])
}

#[test]
fn narrow_weights_with_masters_change_no_bit() -> Result<()> {
    let bf16 = ["train.precision=bf16", "optim.ema=0.9"];
    let alone = train("", &bf16)?;
    assert!(alone.tensors.keys().any(|name| name.starts_with("master_weights:")));
    assert!(alone.tensors.keys().any(|name| name.starts_with("ema:")));
    same(&alone, "dp=4", &bf16)?;
    same(&alone, "dp=2", &[bf16[0], bf16[1], "train.zero=3"])?;
    let f16 = ["train.precision=f16", "optim.loss_scale=1024"];
    same(&train("", &f16)?, "dp=2", &[f16[0], f16[1], "train.zero=1"])
}

#[test]
fn other_optimizers_and_tied_weights_change_no_bit() -> Result<()> {
    let sgd = ["optim.kind=sgd", "optim.lr=0.3", "model.tie_word_embeddings=true"];
    let alone = train("", &sgd)?;
    assert!(!alone.tensors.contains_key("model:lm_head.weight"), "a tied head is not stored");
    for stage in ["train.zero=0", "train.zero=2", "train.zero=3"] {
        same(&alone, "dp=2", &[sgd[0], sgd[1], sgd[2], stage])?;
    }
    Ok(())
}

#[test]
fn dropout_follows_the_micro_batch_not_the_rank() -> Result<()> {
    for dropped in ["model.hidden_dropout=0.2", "model.attention_dropout=0.2"] {
        let alone = train("", &[dropped])?;
        assert!(alone.same_tensors(&train("", &[])?).is_err(), "something is dropped");
        same(&alone, "dp=4", &[dropped])?;
        same(&alone, "dp=2", &[dropped, "train.recompute=full", "train.zero=3"])?;
        same(&alone, "pp=2", &[dropped])?;
        train("dp=2 tp=2", &[dropped])?.close_losses(&alone, TENSOR_BOUND)?;
    }
    Ok(())
}

#[test]
fn tensor_and_sequence_ranks_stay_within_bounds() -> Result<()> {
    let alone = train("", &[])?;
    for (mesh, more) in [
        ("tp=2", &[][..]),
        ("tp=4", &[]),
        ("dp=2 tp=2", &["train.sequence_parallel=true"]),
        ("dp=2 tp=2", &["train.zero=3", "train.recompute=full"]),
    ] {
        let split = train(mesh, more)?;
        split.close_losses(&alone, TENSOR_BOUND).with_context(|| format!("{mesh} with {more:?}"))?;
    }
    // With the inner mesh fixed, data ranks change no bit either.
    let tensor = train("tp=2", &[])?;
    same(&tensor, "dp=2 tp=2", &[])?;
    same(&tensor, "dp=2 tp=2", &["train.zero=2"])
}

#[test]
fn experts_on_several_ranks_stay_within_bounds() -> Result<()> {
    let moe = [&MOE[..], &["train.micro_batch=2"]].concat();
    let alone = train("", &moe)?;
    assert!(alone.tensors.contains_key("model:model.layers.0.mlp.experts.3.up_proj.weight"));
    same(&alone, "dp=2", &moe)?;
    let zero: Vec<&str> = moe.iter().copied().chain(["train.zero=3"]).collect();
    same(&alone, "dp=4", &zero)?;
    let split = train("ep=2", &moe)?;
    split.close_losses(&alone, TENSOR_BOUND)?;
    let both: Vec<&str> = moe.iter().copied().chain(["train.zero=1"]).collect();
    same(&split, "dp=2 ep=2", &both)
}

#[test]
fn sums_once_a_step_are_close() -> Result<()> {
    let alone = train("", &[])?;
    train("dp=2", &["train.reduce=step"])?.close_losses(&alone, 1e-5)
}

#[test]
fn pipeline_stages_change_no_bit_under_any_schedule() -> Result<()> {
    let alone = train("", &[])?;
    for schedule in ["f_then_b", "1f1b", "zb_h1", "zbv"] {
        same(&alone, "pp=2", &[&format!("train.schedule={schedule}")])?;
    }
    same(&alone, "pp=2", &["train.schedule=interleaved", "train.chunks=2"])?;
    same(&alone, "pp=4", &["train.recompute=full", "train.schedule=zb_h1"])?;
    same(&alone, "pp=2 dp=2", &["train.zero=3", "train.recompute=full"])?;
    same(&alone, "pp=2 dp=4", &["train.zero=1"])
}

#[test]
fn no_cut_into_stages_changes_a_bit() -> Result<()> {
    let tied = "model.tie_word_embeddings=true";
    let alone = train("", &[tied])?;
    for stages in ["[1, 3]", "[3, 1]", "[4, 0]", "[0, 4]"] {
        same(&alone, "pp=2", &[tied, &format!("train.stages={stages}")])?;
    }
    let parts = ["train.schedule=interleaved", "train.chunks=2", "train.stages=[1, 0, 2, 1]"];
    same(&alone, "pp=2", &[tied, parts[0], parts[1], parts[2]])?;
    same(&alone, "pp=2 dp=2", &[tied, "train.stages=[0, 4]", "train.zero=3"])
}

#[test]
fn a_tied_head_on_another_stage_changes_no_bit() -> Result<()> {
    let tied = "model.tie_word_embeddings=true";
    let alone = train("", &[tied])?;
    same(&alone, "pp=2", &[tied])?;
    same(&alone, "pp=2 dp=2", &[tied, "train.zero=1"])?;
    same(&alone, "pp=2 dp=2", &[tied, "train.zero=3"])?;
    // First and last part on one rank, and on neighbours.
    same(&alone, "pp=2", &[tied, "train.schedule=zbv"])
}

#[test]
fn three_axes_on_eight_ranks_stay_within_bounds() -> Result<()> {
    let alone = train("", &[])?;
    let split = train("pp=2 dp=2 tp=2", &["train.zero=2"])?;
    split.close_losses(&alone, TENSOR_BOUND)?;
    // The inner mesh is what sums are split by; the rest changes no bit.
    same(&split, "tp=2", &[])?;
    same(&split, "pp=4 tp=2", &[])
}

/// Where sums are split, every weight stays close too; plain descent does not blow up what rounding leaves.
#[test]
fn weights_stay_within_bounds_on_three_axes() -> Result<()> {
    let plain = ["optim.kind=sgd", "optim.lr=0.1"];
    let moe = [&MOE[..], &["train.micro_batch=2", plain[0], plain[1]]].concat();
    let dense = train("", &plain)?;
    let close = |mesh: &str, more: &[&str], alone: &Run| -> Result<Run> {
        let split = train(mesh, more).with_context(|| mesh.to_string())?;
        split.close_losses(alone, TENSOR_BOUND).with_context(|| mesh.to_string())?;
        split.close_weights(alone, WEIGHT_BOUND).with_context(|| mesh.to_string())?;
        Ok(split)
    };
    close("tp=4", &plain, &dense)?;
    close("dp=2 tp=2", &[plain[0], plain[1], "train.sequence_parallel=true"], &dense)?;
    let alone = train("", &moe)?;
    same(&alone, "pp=2", &moe)?;
    same(&alone, "pp=2 dp=2", &[&moe[..], &["train.zero=3"]].concat())?;
    let inner = close("ep=2 tp=2", &moe, &alone)?;
    same(&inner, "dp=2 ep=2 tp=2", &[&moe[..], &["train.zero=2"]].concat())?;
    same(&inner, "pp=2 ep=2 tp=2", &moe)
}

#[test]
fn more_stages_than_layers_or_micro_batches_work() -> Result<()> {
    let few = ["model.num_hidden_layers=1", "train.global_batch=2"];
    let alone = train("", &few)?;
    same(&alone, "pp=4", &few)
}

#[test]
fn evaluation_is_the_same_on_every_mesh() -> Result<()> {
    // 5 batches of 12 samples divide over no number of ranks; both texts have a part in them.
    let eval = ["data.held_out=0.2", "train.eval_every=2", "train.eval_batches=5", "train.global_batch=12"];
    let run = |mesh: &str, more: &[&str]| -> Result<Vec<f64>> {
        let sandbox = Sandbox::new()?;
        let (one, two) = (sandbox.path().join("text.txt"), sandbox.path().join("other.txt"));
        std::fs::write(&two, (0..4000).map(|i| format!("{} ", i * i % 9973)).collect::<String>())?;
        let sources = format!("data.source=[{{path={one:?}}}, {{path={two:?}}}]");
        let recorder = planaria_e2e::Recorder::shared();
        let config = sandbox.config("run", mesh, &[&eval[..], &[&sources], more].concat())?;
        planaria_train::Trainer::new(config).observer(recorder.clone()).run(None)?;
        let losses = recorder.events().into_iter().filter_map(|event| match event {
            planaria_train::event::Event::Evaluated { loss, .. } => Some(loss),
            _ => None,
        });
        Ok(losses.collect())
    };
    let alone = run("", &[])?;
    assert_eq!(alone.len(), 2);
    for mesh in ["dp=2", "dp=3", "dp=4"] {
        assert_eq!(run(mesh, &[])?, alone, "{mesh}");
    }
    assert_eq!(run("pp=2 dp=2", &["train.zero=3"])?, alone);
    // Other micro-batches train otherwise, so only what is measured before is the same: the samples.
    let still = ["optim.lr=0", "optim.weight_decay=0"];
    let first = run("", &still)?;
    for (mesh, micro) in [("", "train.micro_batch=4"), ("dp=3", "train.micro_batch=2")] {
        let other = run(mesh, &[still[0], still[1], micro])?;
        assert!((other[0] - first[0]).abs() < 1e-6 * first[0], "{other:?} and {first:?}");
    }
    Ok(())
}

/// Documents that do not see each other: their borders reach every stage and every rank.
#[test]
fn separate_documents_change_no_bit() -> Result<()> {
    let lines = |i: usize| format!("{{\"text\": \"{} w\"}}\n", "grow".repeat(i * i % 3));
    let text: String = (0..200).map(lines).collect();
    let train = |mesh: &str, more: &[&str]| -> Result<Run> {
        let sandbox = Sandbox::new()?;
        let file = sandbox.path().join("lines.jsonl");
        std::fs::write(&file, &text)?;
        let source = format!("data.source=[{{path = \"{}\"}}]", file.display());
        let eval = ["data.held_out=0.2", "train.eval_every=2", "train.eval_batches=3"];
        let more: Vec<&str> = [source.as_str()].into_iter().chain(eval).chain(more.iter().copied()).collect();
        sandbox.train("run", mesh, &more)
    };
    for packing in ["data.packing=stream", "data.packing=documents"] {
        let separate = ["data.documents=separate", packing];
        let alone = train("", &separate)?;
        assert!(alone.same_tensors(&train("", &[packing])?).is_err(), "documents saw each other");
        for (mesh, more) in [("dp=2", ""), ("pp=2", ""), ("pp=4", ""), ("dp=2", "train.recompute=full")] {
            let more: Vec<&str> = separate.into_iter().chain((!more.is_empty()).then_some(more)).collect();
            train(mesh, &more)?.same_bits(&alone).with_context(|| format!("{mesh} with {more:?}"))?;
        }
        for (mesh, sequence) in [("tp=2", "false"), ("dp=2 tp=2", "true"), ("pp=2 tp=2", "true")] {
            let sequence = format!("train.sequence_parallel={sequence}");
            train(mesh, &[separate[0], separate[1], &sequence])?.close_losses(&alone, TENSOR_BOUND)?;
        }
    }
    Ok(())
}

/// What the guide says of `tp`, sequence and `ep`: from the same weights a step differs by rounding, at any learning rate.
#[test]
fn a_step_from_the_same_weights_differs_by_rounding_alone() -> Result<()> {
    for (rate, meshes, model) in [
        (
            "optim.lr=0.1",
            [("tp=2", "train.sequence_parallel=true"), ("tp=4", "train.sequence_parallel=false")],
            &[][..],
        ),
        ("optim.lr=0.01", [("tp=2", "train.sequence_parallel=true"), ("ep=2", "train.micro_batch=2")], &MOE),
    ] {
        let sandbox = Sandbox::new()?;
        let keep = [
            "checkpoint.every=1",
            "checkpoint.behind=wait",
            "checkpoint.keep=9",
            "train.micro_batch=2",
            rate,
        ];
        let alone = sandbox.train("alone", "", &[&keep[..], model].concat())?;
        for (number, (mesh, more)) in meshes.into_iter().enumerate() {
            for step in 1..4u64 {
                let from = sandbox.run_dir("alone").join(format!("ckpt/step-{step:08}"));
                let from = format!("checkpoint.from={}", from.display());
                let name = format!("from-{number}-{step}");
                let run = sandbox.train_until(
                    step + 1,
                    &name,
                    mesh,
                    &[&keep[..], &[more, &from], model].concat(),
                )?;
                let (ours, theirs) = (run.outcome.losses[0], alone.outcome.losses[step as usize]);
                ensure!(
                    (ours - theirs).abs() <= STEP_BOUND * theirs,
                    "{mesh} {more} {rate}: {ours} and {theirs}"
                );
            }
        }
    }
    let long = ["train.steps=30", "optim.lr=0.001"];
    train("tp=2", &[&long[..], &["train.sequence_parallel=true"]].concat())?
        .close_losses(&train("", &long)?, TENSOR_BOUND)
}
