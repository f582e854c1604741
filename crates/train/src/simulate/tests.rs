//! Courses with known ends, properties of all of them, and steps against plans.

use super::course::{Course, Priced, Setup, Told};
use super::*;
use crate::config::{Behind, CheckpointSection, TierKind, TierSection};
use proptest::prelude::*;

/// Steps of one second, saved to a folder, and to memory where that is asked for.
fn setup(every: u64, memory: Option<u64>, save: f64) -> Setup {
    let tier = |every| TierSection { kind: TierKind::Memory, every, ..TierSection::default() };
    let section = CheckpointSection {
        every,
        tiers: memory.map(tier).into_iter().collect(),
        ..CheckpointSection::default()
    };
    let cost = [(save, save / 2.0), (save / 10.0, save / 20.0)];
    let priced = |(place, (save, load)): (Place, (f64, f64))| Priced { place, save, load, drag: 0.0 };
    Setup {
        step: 1.0,
        pace: Pace::of(&section, 1),
        places: Place::all(&section).into_iter().zip(cost).map(priced).collect(),
        recovery: RecoveryCost { detect: 1.0, restart: 10.0, machines: 0.5 },
        last: u64::MAX,
        final_save: false,
        end: 10_000.0,
    }
}

fn at(times: &[(f64, bool)]) -> Failures {
    Failures::At(times.iter().map(|&(time, machine)| Failure { time, machine }).collect())
}

fn run(setup: &Setup, failures: &Failures) -> Told {
    Course::new(setup, failures, 1).traced().run()
}

#[test]
fn a_failure_goes_back_to_the_newest_state_that_is_left() {
    // Saved at 100, 200, ...; a save takes 20 s, so that the one of 200 is committed at 220.
    let told = run(&Setup { end: 1000.0, ..setup(100, None, 20.0) }, &at(&[(210.0, false)]));
    // 110 steps are done again after 11 s and a load of 10 s.
    assert_eq!((told.again, told.recovery, told.failures, told.machines), (110.0, 21.0, 1, 0));
    assert_eq!((told.steps, told.executed, told.work), (869, 979, 869.0));
    assert_eq!(told.saved, [8], "100 before, 200 to 800 after; that of 900 is not reached");
    // Memory has every step, unless its machine is gone.
    let both = Setup { end: 1000.0, ..setup(100, Some(1), 20.0) };
    assert_eq!(both.pace, Pace::Drop);
    let [process, machine] = [false, true].map(|machine| run(&both, &at(&[(250.5, machine)])));
    // Memory takes two steps to write, so that every other snapshot is dropped, and what is due for the folder goes with the one after.
    assert!(process.again < 5.0 && process.dropped > 0, "{} {}", process.again, process.dropped);
    assert!((45.0..=50.5).contains(&machine.again) && machine.machines == 1, "{}", machine.again);
    // Nothing was saved: everything is lost.
    assert_eq!(run(&Setup { end: 300.0, ..setup(0, None, 1.0) }, &at(&[(200.0, false)])).again, 200.0);
}

#[test]
fn saves_hold_training_up_as_the_trainer_does() {
    // A save takes longer than the steps between two of them: training waits for the one before.
    let slow = setup(10, None, 15.0);
    let told = run(&Setup { end: 1000.0, ..slow.clone() }, &Failures::Never);
    assert_eq!(slow.pace, Pace::Wait);
    assert!((told.goodput() - 10.0 / 15.0).abs() < 0.01, "{}", told.goodput());
    // Where there is no memory for a snapshot it stands still for every save.
    let stand = Setup { pace: Pace::Stand, end: 1000.0, ..slow.clone() };
    assert_eq!(run(&stand, &Failures::Never).goodput(), 0.4);
    // A run of some steps has its last one saved, and the writer is waited for.
    let short = Setup { last: 25, final_save: true, end: f64::INFINITY, ..slow };
    let told = run(&short, &Failures::Never);
    assert_eq!((told.steps, told.saved, told.seconds), (25, vec![3], 55.0));
}

#[test]
fn the_best_interval_is_near_that_of_young_and_daly() {
    for (save, mtbf) in [(2.0, 4000.0), (10.0, 2000.0), (30.0, 20_000.0)] {
        let stand = Setup { pace: Pace::Stand, ..setup(50, None, save) };
        let failures = Failures::Random { mtbf, machines: 0.0 };
        let (every, goodput) = interval::best(&stand, 0, mtbf, &failures);
        let daly = interval::daly(&stand, 0, mtbf);
        assert!((0.5..2.0).contains(&(every as f64 / daly)), "{every} {daly}");
        // The waste at the best interval is that of theory: the cost of saves and half an interval for each failure.
        let waste = save / daly + (daly / 2.0 + 11.0 + save / 2.0) / mtbf;
        assert!((1.0 - goodput - waste).abs() < 0.3 * waste, "{goodput} {waste}");
    }
}

#[test]
fn the_same_seed_has_the_same_failures() {
    let failures = Failures::Random { mtbf: 300.0, machines: 0.3 };
    let setup = setup(20, Some(5), 4.0);
    let told = |seed| Course::new(&setup, &failures, seed).run();
    assert_eq!(told(7), told(7));
    assert_ne!(told(7), told(8));
    let many = Course::new(&Setup { end: 1e6, ..setup.clone() }, &failures, 3).run();
    let (expected, found) = (1e6 / 300.0, many.failures as f64);
    assert!((found / expected - 1.0).abs() < 0.1, "{found} of {expected}");
    assert!((many.machines as f64 / found - 0.3).abs() < 0.05);
}

proptest! {
    #[test]
    fn all_time_is_accounted_for(
        every in 0u64..200,
        memory in proptest::option::of(1u64..50),
        save in 0.0f64..100.0,
        drag in 0.0f64..2.0,
        mtbf in 20.0f64..5000.0,
        stands in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut setup = setup(every, memory, save);
        setup.places.iter_mut().for_each(|place| place.drag = drag);
        if stands {
            setup.pace = Pace::Stand;
        }
        let failures = Failures::Random { mtbf, machines: 0.5 };
        let told = Course::new(&setup, &failures, seed).traced().run();
        let sum = told.work + told.saves + told.again + told.recovery;
        prop_assert!((sum - told.seconds).abs() < 1e-6 * told.seconds, "{sum} {told:?}");
        prop_assert!((0.0..=1.0).contains(&told.goodput()));
        prop_assert!(told.steps <= told.executed && told.steps as f64 <= told.work + 1e-6);
        let mut last = 0.0;
        for stretch in told.stretches.iter().filter(|s| !matches!(s.doing, course::Doing::Saving(_))) {
            prop_assert!((stretch.start - last).abs() < 1e-9, "{stretch:?} after {last}");
            last = stretch.end;
        }
        // Without failures nothing is lost but to saves, and without drag and waiting not even that.
        setup.places.iter_mut().for_each(|place| place.drag = 0.0);
        let free = Course::new(&setup, &Failures::Never, seed).run();
        prop_assert_eq!((free.again, free.recovery), (0.0, 0.0));
        if setup.pace == Pace::Drop || every == 0 && memory.is_none() {
            prop_assert_eq!(free.goodput(), 1.0);
        }
    }
}

/// A model that a step takes some time for, and costs that are round.
fn config(changes: &[&str]) -> Config {
    let text = "name = \"small\"\n[model]\nhidden_size = 64\nintermediate_size = 128\nnum_hidden_layers = 4\n\
        num_attention_heads = 4\n[data]\nsequence = 32\ntokenizer = \"bytes\"\n[[data.source]]\npath = \"x\"\n\
        [train]\nglobal_batch = 16\nmicro_batch = 2\n";
    crate::config::Sources::text("config", text)
        .set(changes.iter().map(ToString::to_string))
        .resolve()
        .unwrap()
        .config
}

fn simulated(changes: &[&str], ranks: usize, change: &dyn Fn(&mut Costs)) -> Simulated {
    let config = config(changes);
    let model = crate::plan::model_of(&config, &Default::default()).unwrap();
    let mut costs = Costs::new(1e9);
    costs.links.insert(ANY.into(), LinkCost { bandwidth: 1e9, latency: 0.0 });
    costs.places.insert(
        FOLDER.into(),
        PlaceCost { save: 1e8, load: 1e8, rates: Rates::Together, commit: 0.0, drag: 0.0 },
    );
    change(&mut costs);
    let options = SimulateOptions { ranks, seconds: Some(3600.0), ..SimulateOptions::default() };
    Simulated::new(&config, &*model, &costs, &options).unwrap()
}

#[test]
fn a_step_takes_its_operations_and_what_is_not_hidden() {
    let free = |costs: &mut Costs| {
        costs.links.insert(ANY.into(), LinkCost { bandwidth: 1e18, latency: 0.0 });
    };
    let one = simulated(&[], 1, &|_| ());
    assert!((one.step.utilization - 1.0).abs() < 1e-9 && one.step.exchange == 0.0, "{:?}", one.step);
    for changes in ["mesh=dp=4", "mesh=tp=4"] {
        let four = simulated(&[changes], 4, &free);
        assert!(
            (one.step.seconds / four.step.seconds / 4.0 - 1.0).abs() < 0.01,
            "{changes}: {:?}",
            four.step
        );
        let slow = simulated(&[changes], 4, &|costs| {
            costs.links.insert(ANY.into(), LinkCost { bandwidth: 1e6, latency: 1e-4 });
        });
        assert!(slow.step.seconds > 1.5 * four.step.seconds, "{changes}: {:?}", slow.step);
    }
    // What a pipeline loses is the plan's bubble.
    let config = config(&["mesh=pp=4"]);
    let model = crate::plan::model_of(&config, &Default::default()).unwrap();
    let plan = Plan::new(&config, &*model, 4, &PlanOptions::default()).unwrap();
    assert!((simulated(&["mesh=pp=4"], 4, &free).step.bubble - plan.bubble).abs() < 1e-6);
    let updated = simulated(&[], 1, &|costs| costs.update = Some(1e6));
    assert!(updated.step.update > 0.0 && updated.step.pipeline == one.step.pipeline);
    assert!(one.to_svg().unwrap().contains("goodput 100.0 %"));
}

#[test]
fn what_steps_took_gives_the_costs_back() {
    let (data, tensor, stages) = ("mesh=dp=2", "mesh=tp=2", "mesh=pp=2");
    for (first, other, stages) in [(data, tensor, Some(stages)), (tensor, data, None)] {
        let mut runs = vec![config(&[first]), config(&[first, "train.global_batch=32"]), config(&[other])];
        runs.extend(stages.map(|stages| config(&[stages])));
        let model = crate::plan::model_of(&runs[0], &Default::default()).unwrap();
        let mut costs = Costs::new(2e9);
        costs.links.insert(ANY.into(), LinkCost { bandwidth: 1e9, latency: 1e-6 });
        let mut fit = measure::Fit::new(&*model, 2);
        let handling = stages.map(|_| 2e7);
        let told = Costs { stream: Some(3e7), update: Some(1e8), handling, ..costs.clone() };
        for (number, run) in runs.iter().enumerate() {
            fit.push(run, 0.0).unwrap();
            fit.seen[number].1 = fit.simulated(number, &told).unwrap();
        }
        (fit.other, fit.stages) = (Some(2), stages.map(|_| 3));
        fit.fit(&mut costs).unwrap();
        let near = |found: Option<f64>, told: Option<f64>| match (found, told) {
            (Some(found), Some(told)) => (found / told - 1.0).abs() < 1e-2,
            (found, told) => found == told,
        };
        assert!((costs.flops / told.flops - 1.0).abs() < 1e-2, "{costs:?}");
        for (found, told) in
            [(costs.stream, told.stream), (costs.update, told.update), (costs.handling, told.handling)]
        {
            assert!(near(found, told), "{costs:?}");
        }
    }
}

#[test]
fn costs_that_are_missing_or_impossible_are_named() {
    let told = |change: &dyn Fn(&mut Costs)| {
        let config = config(&["mesh=dp=2", "checkpoint.every=5"]);
        let model = crate::plan::model_of(&config, &Default::default()).unwrap();
        let mut costs = Costs::new(1e9);
        change(&mut costs);
        let options = SimulateOptions { ranks: 2, seconds: Some(60.0), ..SimulateOptions::default() };
        Simulated::new(&config, &*model, &costs, &options).unwrap_err().to_string()
    };
    let link = |costs: &mut Costs| {
        costs.links.insert(ANY.into(), LinkCost { bandwidth: 1e9, latency: 0.0 });
    };
    assert!(told(&|_| ()).contains("`links.dp` is missing"), "{}", told(&|_| ()));
    assert!(told(&link).contains("`places.folder` is missing"), "{}", told(&link));
    assert!(told(&|costs| costs.flops = 0.0).contains("`flops` is 0"));
    assert!(told(&|costs| costs.recovery.machines = 1.5).contains("from 0 to 1"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("costs.toml");
    std::fs::write(&path, "flops = 1e12\nlinks.any = { bandwith = 1e9 }\n").unwrap();
    let error = Costs::read(&path).unwrap_err().to_string();
    assert!(error.contains("costs.toml") && error.contains("bandwith"), "{error}");
    let behind = Some(Behind::Wait);
    assert_eq!(
        Pace::of(&CheckpointSection { every: 1, behind, ..CheckpointSection::default() }, 1),
        Pace::Wait
    );
}
