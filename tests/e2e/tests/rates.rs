//! The learning rate of every step, and the steps that a loss scale skips.

use anyhow::{Result, ensure};
use planaria_e2e::{Recorder, Sandbox};
use planaria_train::Trainer;
use planaria_train::event::{Event, StepReport};

fn reports(more: &[&str]) -> Result<Vec<StepReport>> {
    let sandbox = Sandbox::new()?;
    let recorder = Recorder::shared();
    Trainer::new(sandbox.config("run", "", more)?).observer(recorder.clone()).run(None)?;
    let steps = recorder.events().into_iter().filter_map(|event| match event {
        Event::Step(report) => Some(report),
        _ => None,
    });
    Ok(steps.collect())
}

/// What `get_scheduler` of transformers 5.22 gives the optimizer at each of six steps, as shares of the full rate.
#[test]
fn every_step_has_the_rate_that_transformers_gives_it() -> Result<()> {
    let cases: [(&[&str], [f64; 6]); 5] = [
        (&["optim.schedule=constant", "optim.warmup=0"], [1.0; 6]),
        (&["optim.schedule=constant", "optim.warmup=4"], [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]),
        (&["optim.schedule=linear", "optim.warmup=2"], [0.0, 0.5, 1.0, 0.75, 0.5, 0.25]),
        (
            &["optim.schedule=cosine", "optim.warmup=0"],
            [1.0, 0.9330127018922194, 0.75, 0.5000000000000001, 0.25, 0.06698729810778076],
        ),
        (&["optim.schedule=wsd", "optim.warmup=1", "optim.decay=4"], [0.0, 1.0, 1.0, 0.75, 0.5, 0.25]),
    ];
    for (more, expected) in cases {
        let steps = reports(&[more, &["optim.lr=0.5", "optim.min_lr=0", "train.steps=6"]].concat())?;
        let found: Vec<f64> = steps.iter().map(|report| report.lr / 0.5).collect();
        let near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-15);
        ensure!(found.len() == 6 && near, "{more:?}: {found:?}, not {expected:?}");
    }
    Ok(())
}

/// At the usual scale no step is lost, and where one is, the schedule waits for it.
#[test]
fn a_loss_scale_is_one_of_the_mean_and_schedules_wait_for_skipped_steps() -> Result<()> {
    let f16 =
        ["train.precision=f16", "train.steps=4", "optim.schedule=linear", "optim.lr=0.01", "optim.warmup=0"];
    let steps = reports(&f16)?;
    ensure!(steps.iter().all(|report| !report.skipped && report.loss_scale == 65536.0), "{steps:?}");
    let steps = reports(&[&f16[..], &["optim.loss_scale=1e9"]].concat())?;
    let mut updates = 0;
    for report in &steps {
        ensure!(report.lr == 0.01 * (1.0 - updates as f64 / 4.0), "{report:?} after {updates} updates");
        updates += u64::from(!report.skipped);
    }
    ensure!(steps[0].skipped, "{steps:?}");
    Ok(())
}
