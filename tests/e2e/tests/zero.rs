//! ZeRO: the same bits in every stage, however parameters are shared out and on any number of data ranks; weights that
//! are divided are here for two blocks at a time.

use anyhow::{Context, Result, ensure};
use planaria_array::{memory_stats, reset_peak};
use planaria_e2e::Sandbox;
use planaria_train::Trainer;
use planaria_train::event::{Event, Observer};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A batch that 1, 2, 3 and 4 ranks can share, and odd sizes, so that ranges end anywhere.
const ODD: [&str; 5] = [
    "train.global_batch=12",
    "train.steps=2",
    "model.intermediate_size=37",
    "model.vocab_size=263",
    "optim.ema=0.9",
];

#[test]
fn every_stage_and_sharding_on_any_number_of_ranks_changes_no_bit() -> Result<()> {
    let alone = Sandbox::new()?.train("run", "", &ODD)?;
    for ranks in [1, 2, 3, 4] {
        for stage in 0..4 {
            for shard in ["flat", "parameter"] {
                let mut more = ODD.to_vec();
                let keys = [
                    format!("train.zero={stage}"),
                    format!("train.shard={shard}"),
                    // Also buckets that hold few parameters.
                    format!("train.bucket_bytes={}", if ranks == 3 { 9000 } else { 4 << 20 }),
                ];
                more.extend(keys.iter().map(String::as_str));
                let what = || format!("dp={ranks} with {keys:?}");
                let run = Sandbox::new()?.train("run", &format!("dp={ranks}"), &more).with_context(what)?;
                run.same_bits(&alone).with_context(what)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_checkpoint_of_one_sharding_goes_on_under_another() -> Result<()> {
    let steps = ["train.steps=5", "checkpoint.keep=1"];
    let odd = [&ODD[..1], &ODD[2..], &steps].concat();
    let whole = Sandbox::new()?.train("run", "", &odd)?;
    let sandbox = Sandbox::new()?;
    let ways: [(&str, &[&str]); 5] = [
        ("dp=3", &["train.zero=3", "train.shard=flat"]),
        ("dp=2", &["train.zero=3", "train.shard=parameter", "train.recompute=full"]),
        ("dp=4", &["train.zero=0", "train.shard=flat"]),
        ("pp=2 dp=3", &["train.zero=3", "train.shard=flat", "train.schedule=zbv"]),
        ("dp=2", &["train.zero=2", "train.shard=parameter"]),
    ];
    let mut last = None;
    for (step, (mesh, more)) in (1..).zip(ways) {
        let more = [more, &odd].concat();
        last =
            Some(sandbox.train_until(step, "run", mesh, &more).with_context(|| format!("{mesh} {more:?}"))?);
    }
    last.context("there were ways")?.same_tensors(&whole)
}

#[test]
fn sums_of_a_step_are_whole_in_stage_1_and_divided_from_stage_2_on() -> Result<()> {
    let exact = Sandbox::new()?.train("run", "dp=2", &[])?;
    let step = |zero: &str| Sandbox::new()?.train("run", "dp=2", &["train.reduce=step", zero]);
    step("train.zero=2")?.same_bits(&exact)?;
    step("train.zero=3")?.same_bits(&exact)?;
    let summed = step("train.zero=1")?;
    summed.close_losses(&exact, 1e-4)?;
    ensure!(summed.same_tensors(&exact).is_err(), "sums in another order have other bits");
    Ok(())
}

/// The most bytes in use after the first step.
#[derive(Debug, Default)]
struct Peak {
    most: AtomicUsize,
    steps: Mutex<usize>,
}

impl Observer for Peak {
    fn event(&self, event: &Event) {
        if !matches!(event, Event::Step(_)) {
            return;
        }
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        *steps += 1;
        match *steps {
            // The first step's memory includes what was needed to make the model.
            1 => reset_peak(),
            _ => drop(self.most.fetch_max(memory_stats().peak, Ordering::Relaxed)),
        }
    }
}

#[test]
fn divided_weights_are_here_for_two_blocks_at_a_time() -> Result<()> {
    let sizes = ["model.hidden_size=128", "model.intermediate_size=512", "model.num_hidden_layers=16"];
    let batch = ["train.global_batch=2", "train.steps=3", "data.sequence=8", "checkpoint.final_save=false"];
    // Per rank: a block, and all of them.
    let block = 4 * (4 * 128 * 128 + 3 * 128 * 512);
    let all = 16 * block;
    let peak = |more: &[&str]| -> Result<usize> {
        let sandbox = Sandbox::new()?;
        let more = [&sizes[..], &batch, more].concat();
        let observer = Arc::new(Peak::default());
        Trainer::new(sandbox.config("run", "dp=2", &more)?).observer(observer.clone()).run(None)?;
        Ok(observer.most.load(Ordering::Relaxed))
    };
    let whole = peak(&["train.zero=2"])?;
    for more in [&["train.zero=3"][..], &["train.zero=3", "train.recompute=full"]] {
        let divided = peak(more)?;
        // Two ranks each keep half, and two blocks; bytes come in size classes.
        let spared = 2 * (all - all / 2 - 2 * block);
        ensure!(whole - divided > spared * 3 / 4, "{divided} of {whole} bytes; {spared} should be spared");
    }
    Ok(())
}
