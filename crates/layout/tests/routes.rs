//! What reshards are recognised as, and properties of the routes chosen for them.

use crate::common;
use common::{config, contributions, iota, pair};
use planaria_layout::{simulate, *};
use proptest::prelude::*;

fn layout(text: &str) -> Layout {
    text.parse().unwrap()
}

/// The names of the steps of the route between two placements on `dp=2 tp=4`.
fn route(shape: &str, from: &str, to: &str) -> String {
    on(shape, "dp=2 tp=4", from, "dp=2 tp=4", to)
}

fn on(shape: &str, mesh: &str, from: &str, other: &str, to: &str) -> String {
    let from = layout(&format!("{shape} @ {from} on {mesh}"));
    let to = layout(&format!("{shape} @ {to} on {other}"));
    let route = Route::find(&from, &to, 4).unwrap();
    let name = |step: &Step| {
        let axes: Vec<&str> = step.axes.iter().map(|a| step.from.mesh().axes()[a].name.as_str()).collect();
        if axes.is_empty() {
            step.collective.to_string()
        } else {
            format!("{} {}", step.collective, axes.join("+"))
        }
    };
    route.steps.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[test]
fn single_collectives_are_recognised() {
    let cases = [
        ("dp:R tp:S0", "dp:R tp:S0", ""),
        ("dp:R tp:R", "dp:S0 tp:S1", "slice dp+tp"),
        ("dp:R tp:R", "dp:P(sum) tp:S1", "slice dp+tp"),
        ("dp:R tp:S0", "dp:R tp:R", "all-gather tp"),
        ("dp:S0 tp:S1", "dp:R tp:R", "all-gather dp+tp"),
        ("dp:S0 tp:S0", "dp:R tp:R", "all-gather dp+tp"),
        ("dp:S0 tp:S0", "dp:S0 tp:R", "all-gather tp"),
        ("dp:P(sum) tp:P(sum)", "dp:R tp:R", "all-reduce dp+tp"),
        ("dp:P(avg) tp:S1", "dp:S0 tp:S1", "reduce-scatter dp"),
        ("dp:P(sum) tp:P(sum)", "dp:S0 tp:S0", "reduce-scatter dp+tp"),
        ("dp:R tp:S0", "dp:R tp:S1", "all-to-all tp"),
        ("dp:S0 tp:S0", "dp:S1 tp:S1", "all-to-all dp+tp"),
        ("dp:S0 tp:S1", "dp:S1 tp:S0", "moves dp+tp"),
        ("dp:S0 tp:S0", "dp:S0.1 tp:S0", "moves dp+tp"),
    ];
    for (from, to, want) in cases {
        assert_eq!(route("[64,64]", from, to), want, "{from} -> {to}");
    }
}

#[test]
fn routes_avoid_the_replicated_tensor() {
    // Slicing first shrinks the reduction; scattering a reduction beats reducing everywhere.
    assert_eq!(route("[64,64]", "dp:P(sum) tp:R", "dp:R tp:S0"), "slice tp, all-reduce dp");
    assert_eq!(route("[64,64]", "dp:P(sum) tp:R", "dp:S0 tp:S1"), "slice tp, reduce-scatter dp");
    assert_eq!(route("[64,64]", "dp:P(sum) tp:S0", "dp:S0 tp:R"), "reduce-scatter dp, moves dp+tp");
    assert_eq!(route("[64,64]", "dp:S0 tp:R", "dp:R tp:S0"), "moves dp+tp");
    assert_eq!(route("[64,64]", "dp:S0 tp:R", "dp:R tp:S1"), "slice tp, all-gather dp");
    assert_eq!(route("[64,64]", "dp:P(sum) tp:R", "dp:P(max) tp:R"), "all-reduce dp, slice dp");
}

#[test]
fn meshes_may_differ() {
    // The same ranks under other names, sizes or order.
    assert_eq!(on("[8,8]", "dp=2 tp=2", "dp:S0 tp:S0", "x=4", "x:S0"), "");
    assert_eq!(on("[8,8]", "dp=2 tp=4", "dp:S0 tp:R", "dp=4 tp=2", "dp:S0 tp:R"), "slice f1");
    assert_eq!(on("[8,8]", "dp=4 tp=2", "dp:S0 tp:R", "dp=2 tp=4", "dp:S0 tp:R"), "all-gather f1");
    assert_eq!(on("[7,8]", "dp=2 tp=2", "dp:S0 tp:S0", "x=4", "x:S0"), "moves");
    // From one rank to all, and from one pipeline stage to the next.
    assert_eq!(on("[8,8]", "a=1", "a:R", "x=4", "x:R"), "broadcast");
    assert_eq!(on("[8,8]", "a=1", "a:R", "x=4", "x:S0"), "moves");
    assert_eq!(on("[8,8]", "tp=4", "tp:S0", "tp=4 ranks=4..8", "tp:S0"), "moves");
    assert_eq!(on("[8,8]", "tp=4", "tp:S0", "dp=2 tp=4", "dp:R tp:S0"), "broadcast");
    // Four copies are wanted of what two ranks have: it crosses once and is gathered there.
    assert_eq!(on("[8,8]", "a=2", "a:S0", "x=4 ranks=4..8", "x:R"), "moves, all-gather x");
    assert_eq!(on("[8,8]", "a=2", "a:P(sum)", "x=4 ranks=4..8", "x:S0"), "reduce-scatter a, moves");
}

/// Reduce everything, gather everything, cut.
fn gather_everything(from: &Layout, to: &Layout) -> Cost {
    let mut at = from.clone();
    let mut cost = Cost::default();
    for axes in [from.partial_axes(), from.sharded_axes()] {
        let next = axes.iter().fold(at.clone(), |l, a| l.with(a, Placement::Replicate).unwrap());
        cost = cost + Step::recognise(&at, &next, 4).unwrap().cost;
        at = next;
    }
    cost + Step::recognise(&at, to, 4).unwrap().cost
}

/// What a step says about itself is true of the plan behind it.
fn check_claim(step: &Step) {
    for rank in step.to.mesh().ranks() {
        let plan = Plan::receive(&step.from, &step.to, rank).unwrap();
        let mut sources: Vec<Rank> = plan.parts.iter().flat_map(|p| p.from.iter().copied()).collect();
        sources.sort_unstable();
        sources.dedup();
        match step.collective {
            Collective::Nothing | Collective::Slice => assert!(sources.iter().all(|s| *s == rank)),
            Collective::Broadcast => assert!(sources.len() <= 1),
            _ if step.from.mesh() == step.to.mesh() => {
                let mut group = step.from.mesh().group(rank, step.axes).unwrap();
                assert!(sources.iter().all(|s| group.contains(s)), "{step} leaves its group");
                let reduces = matches!(step.collective, Collective::AllReduce | Collective::ReduceScatter);
                group.sort_unstable();
                assert!(!reduces || plan.parts.is_empty() || sources == group);
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn routes_end_where_direct_moves_end((from, to) in pair(false)) {
        let value = iota(from.shape());
        let route = Route::find(&from, &to, 4).unwrap();
        route.steps.iter().for_each(check_claim);
        let moved = simulate::run(&route, &simulate::scatter(&from, &value, |_| 1.0).unwrap()).unwrap();
        prop_assert_eq!(moved, simulate::scatter(&to, &value, |_| 1.0).unwrap(), "{} -> {}: {}", from, to, route);
    }

    #[test]
    fn routes_with_reductions_equal_direct_plans((from, to) in pair(true)) {
        let locals = contributions(&from, &to);
        let route = Route::find(&from, &to, 4).unwrap();
        route.steps.iter().for_each(check_claim);
        let routed = simulate::run(&route, &locals).unwrap();
        let direct = simulate::reshard(&from, &to, &locals).unwrap();
        // Contributions may be spread in several ways; what they reduce to is one value.
        let whole = Layout::replicated(to.mesh(), to.shape());
        let settled = |locals: &[Vec<f64>]| simulate::reshard(&to, &whole, locals).unwrap();
        for (x, y) in settled(&routed).iter().flatten().zip(settled(&direct).iter().flatten()) {
            prop_assert!((x - y).abs() < 1e-9, "{} -> {}: {}", from, to, route);
        }
    }

    #[test]
    fn no_route_costs_more_than_gathering_everything((from, to) in pair(true)) {
        if from.mesh() == to.mesh() {
            let route = Route::find(&from, &to, 4).unwrap();
            prop_assert!(route.cost() <= gather_everything(&from, &to), "{} -> {}: {}", from, to, route);
        }
    }

    #[test]
    fn a_free_axis_that_starts_cutting_costs_nothing((from, _) in pair(false)) {
        for axis in from.replicated_axes().iter() {
            for dim in 0..from.shape().ndim() {
                let order = 100;
                let to = from.with(axis, Placement::Shard(Shard { dim, sections: 1, order })).unwrap();
                if to.axes_on(dim).last() == Some(axis) && from.axes_on(dim).eq(to.axes_on(dim).filter(|a| *a != axis)) {
                    prop_assert_eq!(Route::find(&from, &to, 4).unwrap().cost(), Cost::default());
                }
            }
        }
    }
}

#[test]
fn contributions_stay_where_an_axis_of_one_rank_joins_the_mesh() {
    let from = layout("[] @ dp:P(min) pp:P(min) on dp=3 pp=2");
    let to = layout("[] @ dp:P(min) pp:P(min) tp:P(min) on dp=3 pp=2 tp=1");
    assert!(Route::find(&from, &to, 4).unwrap().steps.is_empty());
}
