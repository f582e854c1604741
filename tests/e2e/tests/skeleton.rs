//! The walking skeleton: train on two data ranks, save, stop, and continue with the same losses on two tensor ranks; and what a run
//! tells those who watch it.

use anyhow::{Context, Result, ensure};
use planaria::pipeline::ScheduleKind;
use planaria::telemetry::{RankSteps, read_samples};
use planaria_e2e::{Sandbox, job};
use planaria_train::drill::{At, Fault, What};
use planaria_train::{Healing, Trainer};
use std::path::Path;

#[test]
fn a_run_saved_on_dp_2_goes_on_as_tp_2() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let whole = sandbox.train("whole", "dp=2", &[])?;
    let first = whole.outcome.losses[0];
    assert!(whole.outcome.losses[3] < first - 0.2, "it learns: {:?}", whole.outcome.losses);

    let begun = sandbox.train_until(2, "cut", "dp=2", &[])?;
    assert!(begun.outcome.stopped);
    let resumed = sandbox.train("cut", "tp=2", &[])?;
    assert_eq!(resumed.outcome.step, 4);
    assert_eq!(begun.outcome.losses, whole.outcome.losses[..2]);
    for (found, expected) in resumed.outcome.losses.iter().zip(&whole.outcome.losses[2..]) {
        assert!((found - expected).abs() < 1e-5 * expected, "{found} instead of {expected}");
    }
    Ok(())
}

/// The ends that rank 0 has told of.
fn ends(run: &Path) -> Vec<serde_json::Value> {
    let lines = job::lines(&run.join("log/rank-00000.jsonl")).into_iter();
    lines.filter(|line| line["message"] == "ended" || line["message"] == "failed").collect()
}

#[test]
fn those_who_watch_are_told_steps_samples_and_ends() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let prompts = "log.samples={prompts = [\"7: cut\"], every = 2, max_new_tokens = 4}";
    let plain = sandbox.train("plain", "", &[])?;
    let piped = sandbox.train_until(3, "watched", "pp=2 dp=2", &[prompts])?;
    ensure!(piped.outcome.losses == plain.outcome.losses[..3], "watching changes nothing");
    let (run, schedule) = (sandbox.run_dir("watched"), ScheduleKind::OneForwardOneBackward.build(2, 4, 1)?);
    let told = RankSteps::read_all(&run);
    ensure!(told.iter().map(|one| one.rank).eq(0..4), "{told:?}");
    for one in &told {
        let place = one.pipeline.iter().position(|&rank| rank == one.rank).context("not in its pipeline")?;
        let newest = one.steps.last().context("no step")?;
        ensure!((newest.step, one.steps.len()) == (3, 2), "{newest:?}");
        let names: Vec<&str> = newest.actions.iter().map(|(name, ..)| name.as_str()).collect();
        let expected: Vec<String> = schedule.list(place).iter().map(ToString::to_string).collect();
        ensure!(names == expected, "rank {}: {names:?}", one.rank);
        let times: Vec<f64> = newest.actions.iter().flat_map(|&(_, start, end)| [start, end]).collect();
        ensure!(times.is_sorted(), "{times:?}");
    }
    let (steps, early) = read_samples(&run, 2);
    ensure!(steps == [2], "{steps:?}");
    // The same text from one rank, which has no pipeline to tell of.
    let alone = sandbox.train("watched", "", &[prompts])?;
    alone.same_tensors(&plain)?;
    ensure!(RankSteps::read_all(&run).is_empty());
    let (steps, newest) = read_samples(&run, u64::MAX);
    ensure!(steps == [2, 4] && early == read_samples(&run, 2).1);
    let samples = newest.context("no samples")?.samples;
    ensure!(samples.len() == 1 && samples[0].prompt == "7: cut" && !samples[0].response.is_empty());
    let stopped: Vec<bool> = ends(&run).iter().map(|end| end["stopped"] == true).collect();
    ensure!(stopped == [true, false], "{stopped:?}");
    Ok(())
}

#[test]
fn a_run_that_fails_says_why_in_its_log() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let config = sandbox.config("odd", "dp=2", &["heal.odd_loss=true", "train.max_skipped=1"])?;
    let faults = vec![Fault { what: What::Nan, rank: 1, at: At::Step(2) }];
    let failed = Trainer::new(config).healing(Healing { faults, ..Healing::default() }).run(None);
    ensure!(failed.is_err());
    let ends = ends(&sandbox.run_dir("odd"));
    ensure!(ends.len() == 1 && ends[0]["message"] == "failed", "{ends:?}");
    ensure!(ends[0]["error"].as_str().is_some_and(|why| !why.is_empty()), "{ends:?}");
    Ok(())
}
