//! Properties of plans between layouts: exact, agreed on by both sides, and value preserving.

use crate::common;
use common::{config, contributions, iota, pair};
use planaria_layout::{simulate, *};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Every element of every destination piece is written by exactly one part.
fn check_cover(from: &Layout, to: &Layout) {
    for rank in to.mesh().ranks() {
        let plan = Plan::receive(from, to, rank).unwrap();
        assert!(plan.combine.is_none_or(|c| c.reduce != Reduce::Avg), "averages are sums with a divisor");
        let piece = to.piece(rank).unwrap();
        let total: usize = plan.parts.iter().map(|part| part.region.numel()).sum();
        assert_eq!(total, piece.numel(), "rank {rank} of {from} -> {to}");
        for (i, part) in plan.parts.iter().enumerate() {
            assert!(piece.locate(&part.region).is_some());
            for source in &part.from {
                assert!(from.piece(*source).unwrap().locate(&part.region).is_some());
            }
            assert!(plan.parts[..i].iter().all(|other| other.region.intersect(&part.region).is_none()));
        }
    }
}

/// What each rank plans to receive is what the others plan to send.
fn check_agreement(from: &Layout, to: &Layout) {
    let mut messages: BTreeMap<(Rank, Rank), (Vec<Region>, Vec<Region>)> = BTreeMap::new();
    for rank in to.mesh().ranks() {
        for part in Plan::receive(from, to, rank).unwrap().parts {
            for source in part.from {
                messages.entry((source, rank)).or_default().0.push(part.region.clone());
            }
        }
    }
    for rank in from.mesh().ranks() {
        for tile in Plan::send(from, to, rank).unwrap() {
            messages.entry((rank, tile.holder)).or_default().1.push(tile.region);
        }
    }
    for ((source, rank), (received, sent)) in messages {
        assert_eq!(received, sent, "from {source} to {rank} for {from} -> {to}");
    }
}

proptest! {
    #![proptest_config(config(3000))]

    #[test]
    fn plain_reshard_equals_direct_scatter((from, to) in pair(false)) {
        check_cover(&from, &to);
        let value = iota(from.shape());
        let locals = simulate::scatter(&from, &value, |_| 1.0).unwrap();
        let moved = simulate::reshard(&from, &to, &locals).unwrap();
        prop_assert_eq!(moved, simulate::scatter(&to, &value, |_| 1.0).unwrap());
    }

    #[test]
    fn ranks_planning_alone_agree((from, to) in pair(true)) {
        check_agreement(&from, &to);
    }

    #[test]
    fn own_copies_are_never_moved((from, to) in pair(false)) {
        for rank in to.mesh().ranks() {
            let Ok(piece) = from.piece(rank) else { continue };
            for part in Plan::receive(&from, &to, rank).unwrap().parts {
                if piece.locate(&part.region).is_some() {
                    prop_assert_eq!(part.from[0], rank);
                }
            }
        }
    }

    #[test]
    fn pending_reductions_keep_the_value((from, to) in pair(true)) {
        check_cover(&from, &to);
        let locals = contributions(&from, &to);
        let before = simulate::gather(&from, &locals).unwrap();
        let after = simulate::gather(&to, &simulate::reshard(&from, &to, &locals).unwrap()).unwrap();
        prop_assert!(before.is_some());
        // A truth value is all that is left of a number under any and all.
        let truth = to.partial_axes().iter().any(|a| matches!(to.reduce(a), Some(Reduce::Any | Reduce::All)));
        let seen = |x: f64| if truth { f64::from(u8::from(x != 0.0)) } else { x };
        for (x, y) in before.into_iter().flatten().zip(after.expect("copies agree")) {
            prop_assert!((seen(x) - y).abs() < 1e-9, "{} -> {}: {} {}", from, to, x, y);
        }
    }
}
