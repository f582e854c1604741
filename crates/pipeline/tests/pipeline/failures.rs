//! A stage that fails makes every rank fail, by name, at once.

use crate::stack::{Plan, Stack, ranks};
use planaria_comm::{Comm, CommExt, Fault, Trip, faulty};
use planaria_pipeline::engine::{self, At, Options, StageWork};
use planaria_pipeline::{Error, Failure, Schedule, ScheduleKind};
use planaria_tensor::{History, Tensor};
use std::sync::Arc;
use std::time::Duration;

/// Where the work fails.
#[derive(Clone, Copy, PartialEq)]
enum When {
    Forward,
    Seeds,
    Finish,
    Panic,
}

struct Failing {
    stack: Stack,
    when: When,
    at: At,
}

impl Failing {
    fn trip(&self, when: When, at: At) -> Result<(), Failure> {
        match when == self.when && at == self.at {
            true => Err("no room left for the thing".into()),
            false => Ok(()),
        }
    }
}

impl StageWork for Failing {
    fn forward(&mut self, at: At, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Failure> {
        if self.when == When::Panic && at == self.at {
            std::panic::panic_any("no room left for the thing".to_owned());
        }
        self.trip(When::Forward, at)?;
        self.stack.forward(at, inputs)
    }

    fn seeds(&mut self, at: At, outputs: &[History]) -> Result<Vec<Option<Tensor>>, Failure> {
        self.trip(When::Seeds, at)?;
        self.stack.seeds(at, outputs)
    }

    fn finish(&mut self, at: At) -> Result<(), Failure> {
        self.trip(When::Finish, at)?;
        self.stack.finish(at)
    }
}

fn errors(schedule: &Schedule, when: When, at: At) -> Vec<Option<Error>> {
    let plan = Plan::new(schedule.stages().len(), schedule.micros());
    ranks(schedule.ranks(), |comm| {
        let stack = Stack::new(&plan, schedule.stages().of(comm.rank()));
        engine::run(schedule, &comm, &Options::default(), &mut Failing { stack, when, at }).err()
    })
}

#[test]
fn a_failing_stage_fails_every_rank_with_its_name() {
    for kind in ScheduleKind::ALL {
        let schedule = kind.build(3, 5, kind.chunks().0).unwrap();
        let last = schedule.stages().len() - 1;
        let cases = [
            (When::Forward, At { stage: 1, micro: 2 }, "stage 1, micro-batch 2, forward: no room left"),
            (When::Seeds, At { stage: last, micro: 1 }, "micro-batch 1"),
            (When::Finish, At { stage: 0, micro: 0 }, "stage 0, micro-batch 0"),
        ];
        for (when, at, expected) in cases {
            let found = errors(&schedule, when, at);
            let named = found.iter().flatten().filter(|e| e.to_string().contains(expected)).count();
            let own = found.iter().flatten().filter(|e| matches!(e, Error::Work { .. })).count();
            // A rank that had nothing more to wait for has ended well.
            let well = found.iter().filter(|e| e.is_none()).count();
            assert_eq!((named + well, own), (3, 1), "{kind}: {found:?}");
            assert!(when != When::Forward || well == 0, "{kind}: {found:?}");
        }
    }
}

#[test]
fn a_panic_reaches_everyone() {
    let schedule = ScheduleKind::OneForwardOneBackward.build(3, 4, 1).unwrap();
    let plan = Plan::new(3, 4);
    let options = planaria_comm::threads::Options::new(3).timeout(Duration::from_secs(60));
    let end = planaria_comm::threads::try_run(&options, |comm| {
        let stack = Stack::new(&plan, [comm.rank()].into_iter());
        let at = At { stage: 1, micro: 1 };
        engine::run(&schedule, &comm, &Options::default(), &mut Failing { stack, when: When::Panic, at })
    });
    assert!(end.unwrap_err().to_string().contains("no room left for the thing"));
}

#[test]
fn a_failing_message_fails_every_rank() {
    let schedule = ScheduleKind::ZeroBubbleV.build(2, 3, 2).unwrap();
    let plan = Plan::new(4, 3);
    for call in [0, 3, 7, 11] {
        let trip = Trip { rank: 1, call, fault: Fault::Fail("the cable is out".into()) };
        let ends = ranks(2, |comm: Arc<dyn Comm>| {
            let mut stack = Stack::new(&plan, schedule.stages().of(comm.rank()));
            let comm = faulty(comm, std::slice::from_ref(&trip));
            engine::run(&schedule, &comm, &Options::default(), &mut stack).map(drop)
        });
        let text: Vec<String> =
            ends.iter().map(|end| format!("{:?}", end.as_ref().map_err(Error::to_string))).collect();
        assert!(text.iter().all(|text| text.contains("the cable is out")), "call {call}: {text:?}");
    }
}

#[test]
fn a_schedule_for_other_ranks_or_a_bad_one_is_refused() {
    let two = ScheduleKind::OneForwardOneBackward.build(2, 2, 1).unwrap();
    let ends = ranks(3, |comm| {
        assert_eq!(comm.size(), 3);
        engine::Engine::new(Arc::new(two.clone()), comm, Options::default()).map(drop)
    });
    assert!(ends.iter().all(|end| matches!(end, Err(Error::Ranks { expected: 2, found: 3 }))));
    let mut lists = two.lists().to_vec();
    lists[1].pop();
    let short = Schedule::new(two.stages().clone(), 2, lists);
    let ends =
        ranks(2, |comm| engine::Engine::new(Arc::new(short.clone()), comm, Options::default()).map(drop));
    assert!(ends.iter().all(|end| matches!(end, Err(Error::Missing { rank: 1, .. }))));
}
