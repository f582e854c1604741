//! What a run would do on a cluster that is not there: its step from the plan and the schedule, its days from the trainer's rules for saves and
//! restarts, at costs that were measured on a small job.
//!
//! ```
//! use planaria_train::simulate::{Costs, Failures, LinkCost, PlaceCost, Rates, SimulateOptions, Simulated};
//! use planaria_train::{Config, plan::model_of};
//!
//! let config = Config::parse(
//!     "name = \"big\"\n mesh = \"dp=64\"\n [model]\n hidden_size = 64\n intermediate_size = 128\n num_hidden_layers = 2\n\
//!      num_attention_heads = 4\n [data]\n tokenizer = \"bytes\"\n [[data.source]]\n path = \"text\"\n\
//!      [train]\n global_batch = 64\n micro_batch = 1\n [checkpoint]\n every = 100",
//! )?;
//! let model = model_of(&config, &Default::default())?;
//! let mut costs = Costs::new(1e9);
//! costs.links.insert("any".into(), LinkCost { bandwidth: 1e8, latency: 1e-5 });
//! let place = PlaceCost { save: 1e6, load: 1e6, rates: Rates::Together, commit: 0.1, drag: 0.0 };
//! costs.places.insert("folder".into(), place);
//! let failures = Failures::Random { mtbf: 3600.0, machines: 0.5 };
//! let options = SimulateOptions { ranks: 64, seconds: Some(86400.0), failures, ..SimulateOptions::default() };
//! let told = Simulated::new(&config, &*model, &costs, &options)?;
//! assert!(told.goodput > 0.5 && told.goodput < 1.0);
//! # Ok::<_, planaria_train::Error>(())
//! ```

mod costs;
mod course;
mod failures;
mod interval;
mod measure;
mod picture;
mod step;
#[cfg(test)]
mod tests;

pub use costs::{ANY, Costs, FOLDER, LinkCost, PlaceCost, Rates, RecoveryCost};
pub use failures::{Failure, Failures};
pub use measure::{MeasureOptions, measure};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::{Plan, PlanOptions};
use crate::trainer::place::{Pace, Place};
use crate::trainer::state_bytes;
use course::{Course, Priced, Setup};
use planaria_nn::models::Architecture;
use serde::Serialize;
use step::{Planned, Step};

/// What is simulated.
#[derive(Clone, Debug, Default)]
pub struct SimulateOptions {
    /// Ranks.
    pub ranks: usize,
    /// Seconds to look at; absent for the whole run.
    pub seconds: Option<f64>,
    /// When failures come.
    pub failures: Failures,
    /// Decides which, where they come at random.
    pub seed: u64,
}

/// Seconds of a step, by what they go to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepTime {
    /// All of them.
    pub seconds: f64,
    /// Forward and backward, with what is waited for in between.
    pub pipeline: f64,
    /// Gradients and weights on their way while nothing is computed.
    pub exchange: f64,
    /// The update.
    pub update: f64,
    /// Part of the pipeline's time in which the rank that waits most waits for other stages.
    pub bubble: f64,
    /// Tokens of all ranks in a second.
    pub tokens_per_second: f64,
    /// FLOPs of all ranks in a second over what they would do if they always computed.
    pub utilization: f64,
}

/// The ranks of one pipeline stage, as `plan` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StageNeeds {
    /// Position along `pp`.
    pub stage: usize,
    /// Bytes of memory at most.
    pub memory: u64,
    /// Bytes that a rank sends in a step.
    pub sent: u64,
}

/// Seconds that were no work which counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lost {
    /// Training waited for saves, or was slowed by them.
    pub saves: f64,
    /// Steps since the newest state that was left, which had to be done again.
    pub again: f64,
    /// From failures to the first step after.
    pub recovery: f64,
}

/// What became of a place of checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlaceTold {
    /// Its name; `folder` for the run's own.
    pub name: String,
    /// Steps between saves; 0 for none.
    pub every: u64,
    /// Seconds of a save.
    pub save_seconds: f64,
    /// Seconds of a load.
    pub load_seconds: f64,
    /// Checkpoints that were committed.
    pub saves: u64,
    /// The interval with the highest goodput that was found, in steps; absent where nothing fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_every: Option<u64>,
    /// Goodput with that interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_goodput: Option<f64>,
    /// The interval of Young and Daly in steps, for this place alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daly_every: Option<u64>,
}

/// What a run would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Simulated {
    /// Ranks.
    pub ranks: usize,
    /// The mesh, all axes.
    pub mesh: String,
    /// Elements of the model.
    pub parameters: u64,
    /// Tokens of a step.
    pub tokens: u64,
    /// The pipeline's schedule.
    pub schedule: String,
    /// One step.
    pub step: StepTime,
    /// By pipeline stage.
    pub stages: Vec<StageNeeds>,
    /// Bytes of a checkpoint.
    pub state_bytes: u64,
    /// Seconds that were simulated.
    pub seconds: f64,
    /// Steps whose results are there at the end.
    pub steps: u64,
    /// Steps done, those done again included.
    pub executed: u64,
    /// Failures.
    pub failures: u64,
    /// Those that took a machine.
    pub machines: u64,
    /// Snapshots that a newer one took the place of.
    pub dropped: u64,
    /// Part of the time that was work which counts.
    pub goodput: f64,
    /// The rest, in seconds.
    pub lost: Lost,
    /// The run's folder, then the tiers.
    pub places: Vec<PlaceTold>,
    /// What happened when.
    #[serde(skip)]
    traced: picture::Traced,
}

impl Simulated {
    /// Simulates a run of this configuration and model.
    pub fn new(
        config: &Config,
        model: &dyn Architecture,
        costs: &Costs,
        options: &SimulateOptions,
    ) -> Result<Simulated> {
        costs.check()?;
        check(options)?;
        let (plan, work) = Plan::with_work(config, model, options.ranks, &PlanOptions::default())?;
        let mesh = config.mesh.on(options.ranks)?;
        let planned = Planned { config, mesh, plan, work };
        let step = planned.step(costs)?;
        let state = state_bytes(config, model)?;
        let setup = setup(config, costs, options, (step.seconds(), state))?;
        let told = Course::new(&setup, &options.failures, options.seed).traced().run();
        if told.is_cut_off {
            let key = "the time to simulate".into();
            let found =
                format!("{} s, of which {:.0} s have {} steps", setup.end, told.seconds, told.executed);
            let expected = "fewer saves and failures: fewer days, or longer between them".into();
            return Err(Error::Value { key, found, expected });
        }
        let places = (0..setup.places.len()).map(|place| place_told(&setup, place, &told, &options.failures));
        let Plan { ranks, ref mesh, parameters, tokens, ref schedule, .. } = planned.plan;
        let needs = planned.plan.stages.iter().map(|rank| StageNeeds {
            stage: rank.stage,
            memory: rank.memory.total,
            sent: rank.traffic.iter().map(|traffic| traffic.bytes).sum(),
        });
        Ok(Simulated {
            ranks,
            mesh: mesh.clone(),
            parameters,
            tokens,
            schedule: schedule.clone(),
            step: step_time(&planned.plan, &step, costs),
            stages: needs.collect(),
            state_bytes: state,
            seconds: told.seconds,
            steps: told.steps,
            executed: told.executed,
            failures: told.failures,
            machines: told.machines,
            dropped: told.dropped,
            goodput: told.goodput(),
            lost: Lost { saves: told.saves, again: told.again, recovery: told.recovery },
            places: places.collect(),
            traced: picture::Traced { pipeline: step.pipeline, stretches: told.stretches },
        })
    }

    /// The pipeline of a step and the course of the run, as an SVG document.
    pub fn to_svg(&self) -> Result<String> {
        if self.traced.stretches.len() >= course::MOST_STRETCHES {
            let (key, found) = ("the time to draw".into(), format!("{} s", self.seconds));
            let expected = "less of it, or fewer saves and failures".into();
            return Err(Error::Value { key, found, expected });
        }
        picture::draw(self)
    }
}

fn check(options: &SimulateOptions) -> Result<()> {
    let positive = |key: &str, found: f64| match found > 0.0 && found.is_finite() {
        true => Ok(()),
        false => Err(Error::Value {
            key: key.into(),
            found: found.to_string(),
            expected: "a finite time above 0".into(),
        }),
    };
    options.seconds.map_or(Ok(()), |seconds| positive("the time to simulate", seconds))?;
    match options.failures {
        Failures::Random { mtbf, .. } => positive("the mean time between failures", mtbf),
        _ => Ok(()),
    }
}

fn step_time(plan: &Plan, step: &Step, costs: &Costs) -> StepTime {
    let seconds = step.seconds();
    let able = costs.flops * plan.ranks as f64 * seconds;
    StepTime {
        seconds,
        pipeline: step.pipeline.makespan,
        exchange: step.exchange,
        update: step.update,
        bubble: step.pipeline.worst_bubble(),
        tokens_per_second: plan.tokens as f64 / seconds.max(1e-12),
        utilization: plan.operations / able.max(1e-12),
    }
}

fn setup(
    config: &Config,
    costs: &Costs,
    options: &SimulateOptions,
    (step, state): (f64, u64),
) -> Result<Setup> {
    let section = &config.checkpoint;
    let mut places = Vec::new();
    for place in Place::all(section) {
        let used =
            place.every > 0 || (place.kind.is_none() && section.final_save && options.seconds.is_none());
        let (save, load, drag) = match used {
            false => (0.0, 0.0, 0.0),
            true => {
                let cost = costs.place(&place)?;
                let writers = if cost.rates == Rates::Each { options.ranks as f64 } else { 1.0 };
                let time = |rate: f64| state as f64 / (rate * writers);
                (time(cost.save) + cost.commit, time(cost.load), cost.drag)
            }
        };
        places.push(Priced { place, save, load, drag });
    }
    Ok(Setup {
        step: step.max(1e-12),
        places,
        pace: Pace::of(section, state / options.ranks.max(1) as u64),
        recovery: costs.recovery,
        // A time to look at is looked at to its end.
        last: if options.seconds.is_some() { u64::MAX } else { config.train.steps },
        final_save: section.final_save && options.seconds.is_none(),
        end: options.seconds.unwrap_or(f64::INFINITY),
    })
}

fn place_told(setup: &Setup, place: usize, told: &course::Told, failures: &Failures) -> PlaceTold {
    let Priced { place: known, save, load, .. } = &setup.places[place];
    let mut out = PlaceTold {
        name: known.name.clone().unwrap_or_else(|| FOLDER.to_string()),
        every: known.every,
        save_seconds: *save,
        load_seconds: *load,
        saves: told.saved[place],
        best_every: None,
        best_goodput: None,
        daly_every: None,
    };
    if let Failures::Random { mtbf, .. } = failures
        && known.every > 0
    {
        let (every, goodput) = interval::best(setup, place, *mtbf, failures);
        let daly = (interval::daly(setup, place, *mtbf) / setup.step).round().max(1.0);
        (out.best_every, out.best_goodput, out.daly_every) = (Some(every), Some(goodput), Some(daly as u64));
    }
    out
}
