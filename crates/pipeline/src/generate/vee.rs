//! ZB-V: each rank holds one stage of the way down and one of the way up. There is no closed form for few micro-batches
//! or little memory, so some ways to fill the time are tried and the best is taken.

use crate::action::{Action, Step};
use crate::error::{Error, Result};
use crate::memory;
use crate::stages::Stages;

/// What a rank prefers, first to last, among what it could do: the step, and whether on the way up.
type Preference = [(Step, Way); 6];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Down,
    Up,
}

/// When a rank begins another micro-batch on the way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    /// While there is room.
    Freely,
    /// While room is left for one on the way up.
    LeavingOne,
    /// The same, or when all that went down came up again.
    LeavingOneUnlessEven,
}

const BEGINS: [Begin; 3] = [Begin::Freely, Begin::LeavingOne, Begin::LeavingOneUnlessEven];

/// Gradients of inputs of the way down first: they end a micro-batch. With the usual memory one of these three orders
/// is as good as any, for up to 8 ranks and 24 micro-batches.
const USUAL: [Preference; 3] = {
    use Step::{Forward, Input, Weight};
    use Way::{Down, Up};
    [
        [(Input, Down), (Input, Up), (Forward, Up), (Forward, Down), (Weight, Down), (Weight, Up)],
        [(Input, Down), (Forward, Up), (Forward, Down), (Input, Up), (Weight, Down), (Weight, Up)],
        [(Input, Down), (Forward, Up), (Forward, Down), (Weight, Down), (Input, Up), (Weight, Up)],
    ]
};

/// Largest number of ranks times micro-batches for which all orders are tried.
const SMALL: usize = 1 << 10;

/// All orders in which both ways prefer the gradient of the input to those of parameters.
fn all_orders() -> Vec<Preference> {
    fn extend(order: &mut Vec<(Step, Way)>, all: &mut Vec<Preference>) {
        if let Ok(order) = Preference::try_from(order.as_slice()) {
            all.push(order);
        }
        for next in USUAL[0] {
            let waits = next.0 == Step::Weight && !order.contains(&(Step::Input, next.1));
            if !waits && !order.contains(&next) {
                order.push(next);
                extend(order, all);
                order.pop();
            }
        }
    }
    let mut all = Vec::new();
    extend(&mut Vec::new(), &mut all);
    all
}

/// A schedule that was found.
struct Found {
    time: u64,
    kept: usize,
    work: Vec<Vec<Action>>,
}

/// The shortest schedule found that keeps at most `caps` activations on each rank; of equally short ones the one that
/// keeps least.
pub(super) fn zero_bubble(stages: &Stages, micros: usize, caps: &[usize]) -> Result<Vec<Vec<Action>>> {
    let ranks = stages.ranks();
    let steady = steady(ranks, micros);
    let mut best: Option<Found> = None;
    let mut add = |work: Option<Vec<Vec<Action>>>| {
        let Some(work) = work else { return u64::MAX };
        let peaks: Vec<usize> = work.iter().map(|list| memory::live(list)).collect();
        let fits = peaks.iter().zip(caps).all(|(peak, cap)| peak <= cap);
        if let Some(time) = length(stages, micros, &work).filter(|_| fits) {
            let kept = peaks.iter().sum();
            if best.as_ref().is_none_or(|best| (time, kept) < (best.time, best.kept)) {
                best = Some(Found { time, kept, work });
            }
        }
        best.as_ref().map_or(u64::MAX, |best| best.time)
    };
    let mut time = add(Some(steady.clone()));
    let mut fill = |orders: &[Preference]| {
        for (order, begin) in orders.iter().flat_map(|order| BEGINS.map(|begin| (order, begin))) {
            time = add(greedy(stages, micros, caps, order, begin));
        }
        time
    };
    // Nothing is faster: some rank begins one unit late for each rank before it, and none has less work.
    let least = if micros == 0 { 0 } else { (6 * micros + ranks - 1) as u64 };
    if fill(&USUAL) > least && ranks * micros <= SMALL {
        fill(&all_orders());
    }
    best.map(|best| best.work).ok_or_else(|| {
        let least = steady.iter().map(|list| memory::live(list)).collect();
        Error::Limit { kind: "zbv", ranks, micros, limit: caps.to_vec(), least }
    })
}

/// The state of a schedule that is made one unit of time after another.
struct Filling<'a> {
    stages: &'a Stages,
    micros: usize,
    now: u64,
    /// By stage: when each micro-batch was through.
    forward: Vec<Vec<u64>>,
    input: Vec<Vec<u64>>,
    weight: Vec<usize>,
    live: Vec<usize>,
}

impl Filling<'_> {
    /// True when the stage's next micro-batch could take this step now.
    fn ready(&self, step: Step, stage: usize) -> bool {
        let over = |times: &Vec<u64>, micro: usize| times.get(micro).is_some_and(|&end| end <= self.now);
        match step {
            Step::Forward => {
                let micro = self.forward[stage].len();
                micro < self.micros && (stage == 0 || over(&self.forward[stage - 1], micro))
            }
            Step::Input => {
                let micro = self.input[stage].len();
                let from = stage + 1 == self.stages.len() || over(&self.input[stage + 1], micro);
                micro < self.micros && over(&self.forward[stage], micro) && from
            }
            _ => over(&self.input[stage], self.weight[stage]),
        }
    }

    fn choose(
        &self,
        own: [usize; 2],
        rank: usize,
        cap: usize,
        order: &Preference,
        begin: Begin,
    ) -> Option<Action> {
        let [down, up] = own;
        let room = |way| match (way, begin) {
            (Way::Up, _) | (_, Begin::Freely) => self.live[rank] < cap,
            (Way::Down, Begin::LeavingOne) => self.live[rank] + 1 < cap,
            (Way::Down, Begin::LeavingOneUnlessEven) => {
                let even = self.forward[down].len() <= self.forward[up].len();
                self.live[rank] + 1 < cap || (even && self.live[rank] < cap)
            }
        };
        let possible = |&&(step, way): &&(Step, Way)| {
            let stage = if way == Way::Down { down } else { up };
            self.ready(step, stage) && (step != Step::Forward || room(way))
        };
        let &(step, way) = order.iter().find(possible)?;
        let stage = if way == Way::Down { down } else { up };
        let micro = match step {
            Step::Forward => self.forward[stage].len(),
            Step::Input => self.input[stage].len(),
            _ => self.weight[stage],
        };
        Some(Action::new(step, stage, micro))
    }

    fn take(&mut self, rank: usize, action: Action) {
        let end = self.now + 1;
        match action.step {
            Step::Forward => {
                self.forward[action.stage].push(end);
                self.live[rank] += 1;
            }
            Step::Input => self.input[action.stage].push(end),
            _ => {
                self.weight[action.stage] += 1;
                self.live[rank] -= 1;
            }
        }
    }
}

/// Every rank takes what it prefers of what is possible; `None` when they come to a standstill.
fn greedy(
    stages: &Stages,
    micros: usize,
    caps: &[usize],
    order: &Preference,
    begin: Begin,
) -> Option<Vec<Vec<Action>>> {
    let ranks = stages.ranks();
    let mut lists = vec![Vec::with_capacity(6 * micros); ranks];
    let mut filling = Filling {
        stages,
        micros,
        now: 0,
        forward: vec![Vec::new(); 2 * ranks],
        input: vec![Vec::new(); 2 * ranks],
        weight: vec![0; 2 * ranks],
        live: vec![0; ranks],
    };
    let mut left = 6 * ranks * micros;
    while left > 0 {
        let own = |rank: usize| [rank, 2 * ranks - 1 - rank];
        let choose = |rank: usize| filling.choose(own(rank), rank, caps[rank], order, begin);
        let chosen: Vec<Option<Action>> = (0..ranks).map(choose).collect();
        // Everything takes one unit, so nothing is under way: what is impossible now stays so.
        chosen.iter().any(Option::is_some).then_some(())?;
        for (rank, action) in chosen.into_iter().enumerate() {
            if let Some(action) = action {
                filling.take(rank, action);
                lists[rank].push(action);
                left -= 1;
            }
        }
        filling.now += 1;
    }
    Some(lists)
}

/// The published pattern, which is the best there is for `2 * ranks - 1` micro-batches and more; with fewer, the
/// same without those that are not there, which keeps less than others.
fn steady(ranks: usize, micros: usize) -> Vec<Vec<Action>> {
    let list = |rank: usize| {
        let pattern = pattern(rank, ranks, micros.max(2 * ranks - 1));
        pattern.into_iter().filter(|action| action.micro < micros).collect()
    };
    (0..ranks).map(list).collect()
}

fn pattern(rank: usize, ranks: usize, micros: usize) -> Vec<Action> {
    use Step::{Forward, Input, Weight};
    let (down, up) = (rank, 2 * ranks - 1 - rank);
    let mut list = Vec::with_capacity(6 * micros);
    let mut next = std::collections::HashMap::new();
    let mut push = |step: Step, stage: usize| {
        let micro: &mut usize = next.entry((step, stage)).or_default();
        list.push(Action::new(step, stage, *micro));
        *micro += 1;
    };
    let mut go = |times: usize, steps: &[(Step, usize)]| {
        (0..times).for_each(|_| steps.iter().for_each(|&(step, stage)| push(step, stage)));
    };
    let last = [(Input, down), (Weight, down), (Forward, up), (Input, up), (Weight, up)];
    go(2 * (ranks - rank) - 1, &[(Forward, down)]);
    go(rank, &[(Forward, up), (Forward, down)]);
    go(ranks - rank, &[(Forward, up), (Input, up), (Weight, up)]);
    let begun = 2 * ranks - 1 - rank;
    let turns = micros - begun;
    (0..turns).for_each(|_| {
        go(1, &[(Forward, down)]);
        go(1, &last);
    });
    // All have gone down; those still to come up.
    let come = ranks + turns;
    go(micros - come, &last);
    go(rank, &[(Input, down), (Input, up)]);
    go(ranks - rank, &[(Input, down), (Weight, down)]);
    go(rank, &[(Weight, up)]);
    go(rank, &[(Weight, down)]);
    list
}

/// Time of the work when everything takes one unit; `None` when it comes to a standstill.
fn length(stages: &Stages, micros: usize, work: &[Vec<Action>]) -> Option<u64> {
    let mut ends = [vec![vec![None; micros]; stages.len()], vec![vec![None; micros]; stages.len()]];
    let (mut at, mut now) = (vec![0usize; work.len()], vec![0u64; work.len()]);
    let mut left: usize = work.iter().map(Vec::len).sum();
    while left > 0 {
        let before = left;
        for (rank, list) in work.iter().enumerate() {
            while let Some(&Action { step, stage, micro }) = list.get(at[rank]) {
                let needed = match step {
                    Step::Forward if stage > 0 => ends[0][stage - 1][micro],
                    Step::Input if stage + 1 < stages.len() => ends[1][stage + 1][micro],
                    _ => Some(0),
                };
                let Some(needed) = needed else { break };
                now[rank] = now[rank].max(needed) + 1;
                match step {
                    Step::Forward => ends[0][stage][micro] = Some(now[rank]),
                    Step::Input => ends[1][stage][micro] = Some(now[rank]),
                    _ => {}
                }
                at[rank] += 1;
                left -= 1;
            }
        }
        if left == before {
            return None;
        }
    }
    now.into_iter().max()
}

/// Forwards as they come: the way up first, it is nearer to its end.
pub(super) fn forward_only(stages: &Stages, micros: usize) -> Vec<Vec<Action>> {
    let ranks = stages.ranks();
    let list = |rank: usize| {
        // A micro-batch comes up again this many forwards after it went down, if nobody idles.
        let lag = 2 * (ranks - 1 - rank);
        let mut list = Vec::with_capacity(2 * micros);
        for turn in 0..micros + lag {
            let turned = turn.checked_sub(lag).filter(|&micro| micro < micros);
            if turn < micros {
                list.push(Action::new(Step::Forward, rank, turn));
            }
            list.extend(turned.map(|micro| Action::new(Step::Forward, 2 * ranks - 1 - rank, micro)));
        }
        list
    };
    (0..ranks).map(list).collect()
}
