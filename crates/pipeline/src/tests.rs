//! Tests of schedules: closed forms, text, what validation refuses, what simulation tells.

use super::*;
use proptest::prelude::*;

fn told(kind: ScheduleKind, ranks: usize, micros: usize, chunks: usize) -> Simulation {
    let schedule = kind.build(ranks, micros, chunks).unwrap();
    assert!(schedule.keeps_order(), "{kind} {ranks} {micros} {chunks}");
    schedule
        .simulate(&Costs::unit())
        .unwrap_or_else(|e| panic!("{kind} p={ranks} m={micros} v={chunks}: {e}"))
}

fn chunk_choices(kind: ScheduleKind) -> &'static [usize] {
    match kind {
        ScheduleKind::ForwardThenBackward | ScheduleKind::OneForwardOneBackward => &[1],
        ScheduleKind::Interleaved | ScheduleKind::ZeroBubble => &[1, 2, 3],
        ScheduleKind::ZeroBubbleV => &[2],
    }
}

#[test]
fn one_forward_one_backward_has_its_closed_forms() {
    for (p, m) in (1..=8usize).flat_map(|p| (1..=20usize).map(move |m| (p, m))) {
        for kind in [ScheduleKind::ForwardThenBackward, ScheduleKind::OneForwardOneBackward] {
            let told = told(kind, p, m, 1);
            assert_eq!(told.makespan, 3.0 * (m + p - 1) as f64, "{kind} p={p} m={m}");
            let bubble = (p - 1) as f64 / (m + p - 1) as f64;
            assert!(told.bubble.iter().all(|b| (b - bubble).abs() < 1e-12), "{kind} p={p} m={m}");
            let live: Vec<usize> = match kind {
                ScheduleKind::ForwardThenBackward => vec![m; p],
                _ => (0..p).map(|rank| m.min(p - rank)).collect(),
            };
            assert_eq!(told.live, live, "{kind} p={p} m={m}");
        }
    }
}

#[test]
fn interleaved_has_its_closed_forms() {
    for (p, v) in (2..=6usize).flat_map(|p| (2..=4usize).map(move |v| (p, v))) {
        for m in p..=4 * p {
            let told = told(ScheduleKind::Interleaved, p, m, v);
            let bubble = (p - 1) as f64 / (v * m + p - 1) as f64;
            assert!(
                told.bubble.iter().all(|b| (b - bubble).abs() < 1e-12),
                "p={p} m={m} v={v}: {:?}",
                told.bubble
            );
        }
    }
}

/// The memory forms of `docs/concepts/pipelines.md`, also where p does not divide m and where m is below p.
#[test]
fn kept_activations_have_their_closed_forms_for_every_number_of_micro_batches() {
    for (p, m, v) in
        (1..=6usize).flat_map(|p| (0..=20usize).flat_map(move |m| (1..=4usize).map(move |v| (p, m, v))))
    {
        // The first round is the largest.
        let s = m.div_ceil((m / p).max(1));
        let ahead = if v == 1 { 1 } else { 2 };
        let interleaved = |r: usize| ((v - 1) * s + ahead * (p - 1 - r) + 1).min(v * m);
        let zero_bubble = |_: usize| ((v - 1) * s + p).min(v * m);
        let forms = [
            (ScheduleKind::Interleaved, &interleaved as &dyn Fn(usize) -> usize),
            (ScheduleKind::ZeroBubble, &zero_bubble),
        ];
        for (kind, form) in forms {
            let live = told(kind, p, m, v).live;
            assert_eq!(live, (0..p).map(form).collect::<Vec<_>>(), "{kind} p={p} m={m} v={v}");
        }
    }
}

#[test]
fn zero_bubble_has_its_closed_forms() {
    for (p, m) in (1..=8usize).flat_map(|p| (1..=20usize).map(move |m| (p, m))) {
        let told = told(ScheduleKind::ZeroBubble, p, m, 1);
        // With few micro-batches the way of the first one down and up is what counts.
        let makespan = (3 * m + p - 1).max(2 * m + 2 * p - 1);
        assert_eq!(told.makespan, makespan as f64, "p={p} m={m}");
        assert_eq!(told.live, vec![m.min(p); p], "p={p} m={m}: as much as the first rank of 1F1B");
    }
    for (p, v) in (2..=5usize).flat_map(|p| (2..=3usize).map(move |v| (p, v))) {
        for m in p..=3 * p {
            let told = told(ScheduleKind::ZeroBubble, p, m, v);
            assert_eq!(told.makespan, (3 * v * m + p - 1) as f64, "p={p} m={m} v={v}");
        }
    }
}

#[test]
fn zero_bubble_v_loses_one_unit_per_rank() {
    for p in 1..=6usize {
        for m in p..=4 * p {
            let told = told(ScheduleKind::ZeroBubbleV, p, m, 2);
            assert_eq!(told.makespan, (6 * m + p - 1) as f64, "p={p} m={m}");
            assert!(told.live.iter().all(|&live| live <= 2 * p), "p={p} m={m}: {:?}", told.live);
        }
    }
}

#[test]
fn a_limit_trades_time_for_memory_or_is_refused() {
    let within = |most: usize| ScheduleKind::ZeroBubbleV.build_within(4, 8, 2, &Limit::Each(most));
    let mut last = f64::INFINITY;
    for most in [5, 6, 8] {
        let told = within(most).unwrap().simulate(&Costs::unit()).unwrap();
        assert!(told.live.iter().all(|&live| live <= most) && told.makespan <= last, "{most}");
        last = told.makespan;
    }
    assert!(matches!(within(1), Err(Error::Limit { .. })));
    let refused = ScheduleKind::OneForwardOneBackward.build_within(4, 8, 1, &Limit::Each(3)).unwrap_err();
    assert!(refused.to_string().contains("allow at least [4, 3, 2, 1]"), "{refused}");
    let wrong = ScheduleKind::ZeroBubbleV.build_within(4, 8, 2, &Limit::Ranks(vec![8; 3])).unwrap_err();
    assert!(wrong.to_string().contains("3 limits"), "{wrong}");
}

#[test]
fn few_or_no_micro_batches_are_fine() {
    for kind in ScheduleKind::ALL {
        for &v in chunk_choices(kind) {
            for (p, m) in (1..=5usize).flat_map(|p| (0..p).map(move |m| (p, m))) {
                let told = told(kind, p, m, v);
                assert_eq!(told.busy, vec![(3 * m * v) as f64; p]);
                let forward = kind.build_forward(p, m, v).unwrap();
                forward.validate().unwrap();
                assert!(forward.is_forward_only() || m == 0);
            }
        }
    }
}

#[test]
fn forward_only_loses_no_time_where_nothing_comes_round() {
    for kind in ScheduleKind::ALL {
        let v = chunk_choices(kind)[chunk_choices(kind).len() - 1];
        for (p, m) in [(2usize, 4usize), (4, 8), (3, 9)] {
            let told = kind.build_forward(p, m, v).unwrap().simulate(&Costs::unit()).unwrap();
            assert!(told.makespan <= (v * m + 2 * p - 1) as f64, "{kind} p={p} m={m}: {}", told.makespan);
        }
    }
}

#[test]
fn sizes_out_of_range_are_refused_before_anything_is_made() {
    for (ranks, micros, chunks) in
        [(0, 1, 1), (1, 1, 0), (usize::MAX, 1, 2), (2, usize::MAX, 1), (1 << 30, 4, 1)]
    {
        let refused = ScheduleKind::Interleaved.build(ranks, micros, chunks);
        assert!(matches!(refused, Err(Error::Size { .. })), "{ranks} {micros} {chunks}");
    }
    let wrong = ScheduleKind::ZeroBubbleV.build(2, 2, 3).unwrap_err().to_string();
    assert!(wrong.contains("2 per rank for `zbv`"), "{wrong}");
    let unknown = "ZBV".parse::<ScheduleKind>().unwrap_err().to_string();
    assert!(unknown.contains("did you mean `zbv`"), "{unknown}");
    assert!(ScheduleKind::ALL.iter().all(|kind| kind.name().parse::<ScheduleKind>().unwrap() == *kind));
    assert!(matches!(Stages::new(&[0, 2]), Err(Error::IdleRank { rank: 1 })));
    assert!(matches!(Stages::new(&[usize::MAX]), Err(Error::IdleRank { rank: 0 })));
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    (0..5usize, 1..5usize, 0..7usize, 0..3usize).prop_map(|(kind, ranks, micros, chunks)| {
        let kind = ScheduleKind::ALL[kind];
        let choices = chunk_choices(kind);
        kind.build(ranks, micros, choices[chunks % choices.len()]).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_printed_can_be_parsed(schedule in any_schedule()) {
        prop_assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
    }

    #[test]
    fn an_action_that_is_missing_twice_or_elsewhere_is_refused(schedule in any_schedule(), pick in any::<prop::sample::Index>()) {
        let places: Vec<(usize, usize)> = schedule.lists().iter().enumerate()
            .flat_map(|(rank, list)| (0..list.len()).map(move |at| (rank, at))).collect();
        prop_assume!(!places.is_empty());
        let (rank, at) = places[pick.index(places.len())];
        let changed = |change: &dyn Fn(&mut Vec<Vec<Action>>)| {
            let mut lists = schedule.lists().to_vec();
            change(&mut lists);
            let changed = Schedule::new(schedule.stages().clone(), schedule.micros(), lists);
            // Without its only backward a schedule is one for evaluation.
            if changed.is_forward_only() { Err(String::new()) } else { changed.validate().map_err(|e| e.to_string()) }
        };
        prop_assert!(changed(&|lists| { lists[rank].remove(at); }).is_err(), "removed");
        prop_assert!(changed(&|lists| { let twice = lists[rank][at]; lists[rank].push(twice); }).is_err(), "twice");
        prop_assert!(changed(&|lists| lists[rank][at].micro = schedule.micros()).is_err(), "no such micro-batch");
        prop_assert!(changed(&|lists| lists[rank][at].stage = schedule.stages().len()).is_err(), "no such stage");
        let other = (rank + 1) % schedule.ranks();
        if other != rank {
            prop_assert!(changed(&|lists| { let moved = lists[rank].remove(at); lists[other].push(moved); }).is_err(), "moved");
        }
    }

    #[test]
    fn swapping_is_refused_or_still_works(schedule in any_schedule(), a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>()) {
        let rank = a.index(schedule.ranks());
        let mut lists = schedule.lists().to_vec();
        prop_assume!(lists[rank].len() > 1);
        let (a, b) = (a.index(lists[rank].len()), b.index(lists[rank].len()));
        lists[rank].swap(a, b);
        let changed = Schedule::new(schedule.stages().clone(), schedule.micros(), lists);
        if changed.validate().is_ok() {
            // Nothing is lost: everything has its time.
            let told = changed.simulate(&Costs::unit()).unwrap();
            let timed: usize = told.spans.iter().map(Vec::len).sum();
            prop_assert_eq!(timed, changed.lists().iter().map(Vec::len).sum::<usize>());
        }
    }
}

fn parsed(text: &str) -> Schedule {
    text.parse().unwrap()
}

#[test]
fn what_is_wrong_is_named() {
    let good = "pipeline stages=0,1 micros=1\n0: 0F0 0F0> >0B0 0B0\n1: >1F0 1F0 1B0 1B0>\n";
    parsed(good).validate().unwrap();
    let refused = |from: &str, to: &str| {
        assert!(good.contains(from));
        parsed(&good.replacen(from, to, 1)).validate().unwrap_err().to_string()
    };
    assert_eq!(refused("0B0\n1", "0I0\n1"), "rank 0 has no `0W0` (gradients of the parameters)");
    assert_eq!(refused("1F0 1B0 ", "1B0 1F0 "), "rank 1 has `1F0` after `1B0`, which needs it");
    assert_eq!(refused("0F0 0F0>", "0F0> 0F0"), "rank 0 has `0F0` after `0F0>`, which needs it");
    assert!(refused(" 1B0>", "").contains("no `1B0>`"));
    assert!(refused("1B0>", "1B0> >1B0").contains("past the end of the pipeline"));
    assert!(refused("0B0\n1", "0B0 0W0\n1").contains("is done by `0B0` as well"));
    let crossed = "pipeline stages=0,1 micros=2\n0: 0F0 0F0> 0F1 0F1> >0B0 0B0 >0B1 0B1\n\
                   1: >1F1 1F1 >1F0 1F0 1B0 1B0> 1B1 1B1>\n";
    let crossed = parsed(crossed).validate().unwrap_err();
    assert!(crossed.to_string().contains("rank 0 sends `0F0>`, rank 1 awaits `>1F1`"), "{crossed}");
    let stuck = "pipeline stages=0,1 micros=2\n0: 0F0 0F0> >0B0 0B0 0F1 0F1> >0B1 0B1\n\
                 1: >1F0 1F0 >1F1 1F1 1B0 1B0> 1B1 1B1>\n";
    let stuck = parsed(stuck).validate().unwrap_err();
    assert_eq!(
        stuck.to_string(),
        "deadlock: rank 0 at `>0B0` waits for rank 1, rank 1 at `>1F1` waits for rank 0"
    );
    let local = "pipeline stages=0,0 micros=1\n0: 1F0 0F0 1B0 0B0\n";
    assert!(matches!(parsed(local).validate(), Err(Error::Order { .. })));
}

#[test]
fn a_text_that_is_no_schedule_is_refused() {
    let cases = [
        ("", "nothing there"),
        ("pipeline stages=0 micros=x", "is not `pipeline"),
        ("pipeline stages=0 micros=1", "0 lists for 1 ranks"),
        ("pipeline stages=0 micros=1\n1: 0F0", "not the next"),
        ("pipeline stages=0 micros=1\n0: 0X0", "`0X0` is not an action"),
        ("pipeline stages=0 micros=1\n0: 00F0", "is not an action"),
        ("pipeline stages=0 micros=1\n0: 0F99999999999999999999", "is not an action"),
        ("pipeline stages=0 micros=1\n0: >0W0", "is not an action"),
    ];
    for (text, expected) in cases {
        let found = text.parse::<Schedule>().unwrap_err().to_string();
        assert!(found.contains(expected), "{text:?}: {found}");
    }
}

#[test]
fn transfers_and_uneven_stages_take_their_time() {
    let schedule = ScheduleKind::OneForwardOneBackward.build(2, 1, 1).unwrap();
    let cost = |forward| StageCost { forward, input: 2.0, weight: 3.0, bytes: StageBytes::NONE };
    let costs = Costs { stages: vec![cost(1.0), cost(10.0)], transfer: 0.5, release: Release::Early };
    let told = schedule.simulate(&costs).unwrap();
    assert_eq!(told.makespan, 1.0 + 0.5 + 10.0 + 5.0 + 0.5 + 5.0);
    assert_eq!(told.busy, [6.0, 15.0]);
    let wrong = schedule.simulate(&Costs { stages: vec![cost(1.0); 3], ..costs });
    assert!(matches!(wrong, Err(Error::Costs { found: 3, expected: 2 })));
}

#[test]
fn a_replay_with_the_costs_of_a_simulation_has_its_times() {
    for kind in ScheduleKind::ALL {
        let schedule = kind.build(3, 5, chunk_choices(kind)[0]).unwrap();
        let cost = StageCost { forward: 1.0, input: 2.0, weight: 1.5, bytes: StageBytes::NONE };
        let told = schedule.simulate(&Costs::same(cost)).unwrap();
        assert_eq!(schedule.replay(|action| cost.time(action.step)).unwrap(), told.spans, "{kind}");
        // One slow action moves all that wait for it.
        let slow = |action: Action| cost.time(action.step) + if action.micro == 4 { 10.0 } else { 0.0 };
        let spans = schedule.replay(slow).unwrap();
        let end = |spans: &[Vec<Span>]| spans.iter().flatten().map(|span| span.end).fold(0.0, f64::max);
        assert!(end(&spans) >= told.makespan + 10.0, "{kind}");
    }
    let stuck = parsed("pipeline stages=0,1 micros=1\n0: 0F0 0F0>\n1: 1F0\n");
    assert!(stuck.replay(|_| 1.0).is_err());
}

#[test]
fn memory_follows_the_release() {
    // A stage that keeps its input only: full recompute.
    let bytes = StageBytes {
        input: 100,
        output: 100,
        input_grad: 100,
        output_grad: 100,
        saved: 100,
        saved_input: 100,
        ..StageBytes::NONE
    };
    let stage = StageCost { bytes, ..StageCost::UNIT };
    let peak = |kind: ScheduleKind, m: usize, release: Release| {
        let costs = Costs { release, ..Costs::same(stage) };
        kind.build(4, m, 1).unwrap().simulate(&costs).unwrap().bytes
    };
    let m = 8;
    // In the middle: the inputs of all micro-batches, and one more tensor on its way.
    assert_eq!(peak(ScheduleKind::ForwardThenBackward, m, Release::Early)[1], 100 * (m as u64 + 1));
    // Held: inputs and outputs of all, and a gradient.
    assert_eq!(
        peak(ScheduleKind::ForwardThenBackward, m, Release::AfterBackward)[1],
        100 * (2 * m as u64 + 1)
    );
    let early = peak(ScheduleKind::OneForwardOneBackward, m, Release::Early);
    let late = peak(ScheduleKind::OneForwardOneBackward, m, Release::AfterBackward);
    assert!(early.iter().zip(&late).all(|(early, late)| early <= late), "{early:?} {late:?}");
    assert_eq!(late[1] - early[1], 3 * 100, "one output for each of p - s activations");
}

#[test]
fn the_picture_shows_work_in_its_column() {
    let told = ScheduleKind::OneForwardOneBackward.build(2, 2, 1).unwrap().simulate(&Costs::unit()).unwrap();
    assert_eq!(picture(&told, 1.0), "0  F0 F1       B0 -     B1 -\n1     F0 B0 -  F1 B1 -\n");
}
