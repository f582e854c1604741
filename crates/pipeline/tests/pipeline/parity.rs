//! Every schedule gives the bits of all stages on one rank.

use crate::stack::{Layer, Left, Plan, alone, piped};
use planaria_pipeline::engine::Options;
use planaria_pipeline::{Release, ScheduleKind};

fn chunk_choices(kind: ScheduleKind) -> &'static [usize] {
    match kind {
        ScheduleKind::ForwardThenBackward | ScheduleKind::OneForwardOneBackward => &[1],
        ScheduleKind::Interleaved => &[2, 3],
        ScheduleKind::ZeroBubble => &[1, 2],
        ScheduleKind::ZeroBubbleV => &[2],
    }
}

/// All kinds on up to `ranks` ranks, each with its model.
fn each_schedule(ranks: usize, micros: &[usize], check: impl Fn(ScheduleKind, usize, usize, usize)) {
    for kind in ScheduleKind::ALL {
        for &chunks in chunk_choices(kind) {
            for ranks in 1..=ranks {
                micros.iter().for_each(|&micros| check(kind, ranks, micros, chunks));
            }
        }
    }
}

fn assert_same(plan: &Plan, kind: ScheduleKind, ranks: usize, chunks: usize, options: &Options) -> Left {
    let schedule = kind.build(ranks, plan.rows.len(), chunks).unwrap();
    let (expected, found) = (alone(plan), piped(plan, &schedule, options).unwrap());
    let name = format!("{kind} p={ranks} m={} v={chunks}", plan.rows.len());
    assert_eq!(found.losses, expected.losses, "{name}: losses");
    assert_eq!(found.data, expected.data, "{name}: gradients of the data");
    assert_eq!(found.parameters, expected.parameters, "{name}: gradients of parameters");
    found
}

#[test]
fn every_schedule_gives_the_bits_of_one_rank() {
    each_schedule(4, &[0, 1, 2, 3, 5, 6], |kind, ranks, micros, chunks| {
        let plan = Plan::new(ranks * chunks, micros);
        let found = assert_same(&plan, kind, ranks, chunks, &Options::default());
        assert_eq!((found.losses.len(), found.data.len()), (micros, micros));
    });
}

#[test]
fn holding_inputs_and_outputs_changes_no_bit() {
    let options = Options { release: Release::AfterBackward, ..Options::default() };
    each_schedule(3, &[4], |kind, ranks, micros, chunks| {
        assert_same(&Plan::new(ranks * chunks, micros), kind, ranks, chunks, &options);
    });
}

#[test]
fn frozen_stages_and_stages_without_parameters_work() {
    each_schedule(3, &[3], |kind, ranks, micros, chunks| {
        let stages = ranks * chunks;
        let all: Vec<usize> = (0..stages).collect();
        let (first, last) = (vec![0], vec![stages - 1]);
        let but_last: Vec<usize> = (0..stages - 1).collect();
        for frozen in [first, last, but_last, all] {
            let plan = Plan { frozen, ..Plan::new(stages, micros) };
            assert_same(&plan, kind, ranks, chunks, &Options::default());
        }
        let identities = Plan { layers: vec![Layer::Identity; stages], ..Plan::new(stages, micros) };
        assert_same(&identities, kind, ranks, chunks, &Options::default());
    });
}

#[test]
fn stages_computed_again_and_views_of_inputs_give_the_same_bits() {
    each_schedule(3, &[4], |kind, ranks, micros, chunks| {
        let stages = ranks * chunks;
        // Also the first stage, whose input nobody sent, and the last, which gives the loss; with what closures hold.
        for layer in [Layer::FullRecompute, Layer::Recomputed, Layer::Window] {
            for tuple in [false, true] {
                let plan = Plan { layers: vec![layer; stages], tuple, ..Plan::new(stages, micros) };
                assert_same(&plan, kind, ranks, chunks, &Options::default());
            }
        }
    });
}

#[test]
fn evaluation_gives_the_losses_and_no_gradient() {
    each_schedule(3, &[0, 2, 5], |kind, ranks, micros, chunks| {
        let plan = Plan::new(ranks * chunks, micros);
        let schedule = kind.build_forward(ranks, micros, chunks).unwrap();
        let found = piped(&plan, &schedule, &Options::default()).unwrap();
        assert_eq!(found.losses, alone(&plan).losses, "{kind} p={ranks} m={micros}");
        assert!(found.parameters.is_empty() && found.data.is_empty());
    });
}
