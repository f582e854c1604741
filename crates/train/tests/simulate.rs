//! A small job that runs, and the same job simulated at costs that were measured on it: everything but the times must be equal.

use planaria_nn::models::Models;
use planaria_telemetry::RankNow;
use planaria_train::config::{Config, Sources};
use planaria_train::drill::{At, Fault, What};
use planaria_train::event::{Event, Observer};
use planaria_train::plan::{Plan, PlanOptions, model_of};
use planaria_train::simulate::{Failure, Failures, MeasureOptions, SimulateOptions, Simulated, measure};
use planaria_train::{Healing, Trainer};
use std::path::Path;
use std::sync::{Arc, Mutex};

fn config(folder: &Path) -> Config {
    let text = folder.join("text.txt");
    std::fs::write(&text, "all work and no play makes a dull run ".repeat(400)).unwrap();
    let base = format!(
        "name = \"job\"\nmesh = \"dp=2\"\n[model]\nhidden_size = 64\nintermediate_size = 128\nnum_hidden_layers = 2\n\
         num_attention_heads = 4\n[data]\nsequence = 64\n[[data.source]]\npath = {text:?}\n[train]\nsteps = 12\n\
         global_batch = 8\nmicro_batch = 2\nmax_skipped = 1\n[checkpoint]\nevery = 4\nmemory = 0\n[heal]\nodd_loss = true\n\
         [log]\ndir = {:?}\n",
        folder.join("runs")
    );
    Sources::text("config", &base).resolve().unwrap().config
}

/// Steps that were done, and steps that were saved.
#[derive(Debug, Default)]
struct Seen(Mutex<(u64, Vec<u64>)>);

impl Observer for Seen {
    fn event(&self, event: &Event) {
        let mut seen = self.0.lock().unwrap();
        match event {
            Event::Step(_) => seen.0 += 1,
            Event::Saved { step, .. } => seen.1.push(*step),
            _ => {}
        }
    }
}

#[test]
fn a_simulated_job_does_what_the_real_one_does() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let scratch = folder.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let costs =
        measure(&config, &MeasureOptions { steps: 3, ..MeasureOptions::default() }, &scratch).unwrap();
    costs.check().unwrap();
    let (read, json) = (folder.path().join("costs.json"), serde_json::to_string(&costs).unwrap());
    std::fs::write(&read, json).unwrap();
    assert_eq!(planaria_train::simulate::Costs::read(&read).unwrap(), costs);
    assert!(!folder.path().join("runs").exists(), "the run itself is not touched");

    // The real job: a weight of rank 1 is no number after step 6, which stops it; then it goes on from step 4.
    let seen = Arc::new(Seen::default());
    let fault = Fault { what: What::Nan, rank: 1, at: At::Step(6) };
    let trainer = Trainer::new(config.clone()).observer(seen.clone());
    let healing = Healing { faults: vec![fault], ..Healing::default() };
    trainer.clone().healing(healing).run(None).unwrap_err();
    let outcome = trainer.run(None).unwrap();
    let (executed, saves) = std::mem::take(&mut *seen.0.lock().unwrap());

    let model = model_of(&config, &Models::default()).unwrap();
    let mut options = SimulateOptions { ranks: 2, ..SimulateOptions::default() };
    let calm = Simulated::new(&config, &*model, &costs, &options).unwrap();
    assert_eq!((calm.steps, calm.executed, calm.places[0].saves, calm.failures), (12, 12, 3, 0));
    // In the middle of step 7, whatever a save before it took.
    let mut costs = costs;
    let place = costs.places.get_mut("folder").unwrap();
    (place.save, place.commit, place.drag) = (1e15, 0.0, 0.0);
    options.failures = Failures::At(vec![Failure { time: 6.5 * calm.step.seconds, machine: false }]);
    let told = Simulated::new(&config, &*model, &costs, &options).unwrap();
    assert_eq!(told.failures, 1);
    assert_eq!((told.steps, told.executed), (outcome.step, executed));
    assert_eq!((told.places[0].saves, saves), (3, vec![4, 8, 12]));

    // Bytes and memory are the plan's, and what the ranks recorded of themselves.
    let plan = Plan::new(&config, &*model, 2, &PlanOptions::default()).unwrap();
    let sent: u64 = plan.stages[0].traffic.iter().map(|traffic| traffic.bytes).sum();
    assert_eq!((told.stages[0].sent, told.stages[0].memory), (sent, plan.stages[0].memory.total));
    let ranks = RankNow::read_all(&config.run_dir());
    assert_eq!(ranks.iter().map(|now| (now.rank, now.step)).collect::<Vec<_>>(), [(0, 12), (1, 12)]);
    for now in ranks {
        let real = now.sent_a_step();
        assert!(sent.abs_diff(real) < sent / 50 + 24_000, "rank {}: plan {sent}, sent {real}", now.rank);
        assert!(now.peak_bytes >= now.bytes && now.bytes > 0);
    }
}
