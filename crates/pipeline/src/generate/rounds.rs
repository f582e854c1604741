//! Schedules that go round the ranks: 1F1B, interleaved, ZB-H1. All ranks do forwards in one order and backwards in
//! one order; they differ in how many forwards come first, and in how long gradients of parameters wait.

use crate::action::{Action, Step};

/// Forwards and backwards in the order of all ranks, each as chunk and micro-batch.
struct Orders {
    forward: Vec<(usize, usize)>,
    backward: Vec<(usize, usize)>,
    /// Micro-batches of the first round.
    first: usize,
}

/// Sizes of rounds: a round does each of its micro-batches on all chunks before the next begins. None is smaller
/// than the number of ranks, or a chunk would wait for micro-batches that are still on their way; beyond that they
/// are as small and as even as can be, because their size is what the activations of `chunks - 1` chunks cost.
fn sizes(ranks: usize, micros: usize) -> impl Iterator<Item = usize> {
    let rounds = (micros / ranks).max(1);
    let (size, larger) = (micros / rounds, micros % rounds);
    (0..rounds).map(move |round| size + usize::from(round < larger))
}

fn orders(ranks: usize, micros: usize, chunks: usize) -> Orders {
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    let mut start = 0;
    for size in sizes(ranks, micros) {
        let round = |chunk| (start..start + size).map(move |micro| (chunk, micro));
        forward.extend((0..chunks).flat_map(round));
        backward.extend((0..chunks).rev().flat_map(round));
        start += size;
    }
    Orders { forward, backward, first: sizes(ranks, micros).next().unwrap_or(0) }
}

/// 1F1B; with several chunks, interleaved.
pub(super) fn one_by_one(ranks: usize, micros: usize, chunks: usize) -> Vec<Vec<Action>> {
    let orders = orders(ranks, micros, chunks);
    // With several chunks a rank is asked for the next chunk before its first gradient comes back.
    let ahead = if chunks == 1 { 1 } else { 2 };
    let list = |rank: usize| {
        let action = |step, (chunk, micro)| Action::new(step, chunk * ranks + rank, micro);
        let first = (chunks - 1) * orders.first + ahead * (ranks - 1 - rank);
        alternate(&orders, first, |list, backward| list.push(action(Step::Backward, backward)), rank, ranks)
    };
    (0..ranks).map(list).collect()
}

/// ZB-H1: one forward less ahead than interleaved, and on rank `r` the gradients of parameters wait for `r` others, so
/// that every rank keeps as much as the first of 1F1B.
pub(super) fn zero_bubble(ranks: usize, micros: usize, chunks: usize) -> Vec<Vec<Action>> {
    let orders = orders(ranks, micros, chunks);
    let list = |rank: usize| {
        let action = |step, (chunk, micro)| Action::new(step, chunk * ranks + rank, micro);
        let first = (chunks - 1) * orders.first + (ranks - 1 - rank);
        let mut waiting = std::collections::VecDeque::new();
        let mut work = alternate(
            &orders,
            first,
            |list, backward| {
                list.push(action(Step::Input, backward));
                waiting.push_back(backward);
                if waiting.len() > rank {
                    list.extend(waiting.pop_front().map(|oldest| action(Step::Weight, oldest)));
                }
            },
            rank,
            ranks,
        );
        work.extend(waiting.into_iter().map(|left| action(Step::Weight, left)));
        work
    };
    (0..ranks).map(list).collect()
}

/// Some forwards first, then one forward and one backward in turn, then the backwards that are left.
fn alternate(
    orders: &Orders,
    first: usize,
    mut backward: impl FnMut(&mut Vec<Action>, (usize, usize)),
    rank: usize,
    ranks: usize,
) -> Vec<Action> {
    let mut list = Vec::with_capacity(2 * orders.forward.len());
    let action = |&(chunk, micro): &(usize, usize)| Action::new(Step::Forward, chunk * ranks + rank, micro);
    let (early, rest) = orders.forward.split_at(first.min(orders.forward.len()));
    list.extend(early.iter().map(action));
    let mut rest = rest.iter();
    for &next in &orders.backward {
        list.extend(rest.next().map(action));
        backward(&mut list, next);
    }
    list
}

/// Forwards in the order of all ranks.
pub(super) fn forward_only(ranks: usize, micros: usize, chunks: usize) -> Vec<Vec<Action>> {
    let orders = orders(ranks, micros, chunks);
    let list = |rank: usize| {
        let action =
            |&(chunk, micro): &(usize, usize)| Action::new(Step::Forward, chunk * ranks + rank, micro);
        orders.forward.iter().map(action).collect()
    };
    (0..ranks).map(list).collect()
}
