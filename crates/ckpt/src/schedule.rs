//! Who moves which part of which file, and who sends what to whom: decided alike by all ranks, alone.

use crate::geometry::{Claim, Geometry};
use planaria_layout::Region;
use std::ops::Range;

/// Bytes of a file that one rank moves at once.
pub(crate) const UNIT: u64 = 4 << 20;
/// Bytes that a rank sends, or receives, in one round at most, unless a single unit has more.
const ROUND: u64 = 8 << 20;

/// No unit is made shorter than this to keep ranks apart.
const SPLIT: u64 = 256 << 10;

/// A range of a file and what is to be moved of it.
type Part = (Range<u64>, Vec<Range<u64>>);

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From one holder of each box to the file.
    Save,
    /// From the file to every rank that wants it.
    Load,
}

/// How file parts are given to ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    /// Unit by unit.
    Units,
    /// Whole files, where the store lets only one process write a file.
    Files,
    /// The rank of each file is decided already.
    Given(Vec<usize>),
}

/// A part of a file and the rank that reads or writes it.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) file: usize,
    pub(crate) range: Range<u64>,
    pub(crate) owner: usize,
    /// Whether other ranks take part.
    pub(crate) shared: bool,
    /// What is read or written of it.
    pub(crate) runs: Vec<Range<u64>>,
}

/// A box on its way.
#[derive(Clone, Debug)]
pub(crate) struct Leg {
    pub(crate) tile: usize,
    pub(crate) region: Region,
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Number of the box among those of the rank that is not the unit's owner (or of the owner itself).
    pub(crate) slot: usize,
    pub(crate) len: usize,
}

/// The common plan.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) geometry: Geometry,
    pub(crate) way: Way,
    pub(crate) units: Vec<Unit>,
    /// Shared units in rounds; every rank takes part in every round.
    pub(crate) rounds: Vec<Vec<usize>>,
}

impl Schedule {
    pub(crate) fn new(geometry: Geometry, way: Way, division: &Division, ranks: usize) -> Schedule {
        let mut schedule = Schedule { geometry, way, units: Vec::new(), rounds: Vec::new() };
        schedule.assign(division, ranks);
        schedule.split_wide();
        schedule.make_rounds(ranks);
        schedule
    }

    /// Gives every unit to the rank with most of its bytes; of several, to the one with least work so far.
    fn assign(&mut self, division: &Division, ranks: usize) {
        let mut load = vec![0u64; ranks];
        for file in 0..self.geometry.files.len() {
            let parts: Vec<Part> = match division {
                Division::Units if ranks > 1 => self.cut(file),
                _ => self.grid(file),
            };
            let tallies: Vec<Tally> = parts.iter().map(|(range, _)| self.tally(file, range, ranks)).collect();
            let given = match division {
                Division::Units => None,
                Division::Given(owners) => Some(owners[file]),
                Division::Files => {
                    let mut all = vec![0; ranks];
                    for tally in &tallies {
                        all.iter_mut().zip(&tally.ranks).for_each(|(sum, bytes)| *sum += bytes);
                    }
                    Some(choose(&all, &load))
                }
            };
            for ((range, runs), tally) in parts.into_iter().zip(tallies) {
                let owner = given.unwrap_or_else(|| choose(&tally.ranks, &load));
                load[owner] += runs.iter().map(|run| run.end - run.start).sum::<u64>();
                let shared = tally.is_shared(self.way, owner);
                self.units.push(Unit { file, range, owner, shared, runs });
            }
        }
    }

    /// A file in units of equal size, with what is to be moved of each.
    fn grid(&self, file: usize) -> Vec<Part> {
        let size = self.geometry.files[file];
        let ranges = (0..size.div_ceil(UNIT)).map(|number| number * UNIT..size.min((number + 1) * UNIT));
        let parts = ranges.map(|range| match self.way {
            Way::Save => (range.clone(), vec![range]),
            Way::Load => (range.clone(), self.geometry.runs(file, &range)),
        });
        parts.filter(|(_, runs)| !runs.is_empty()).collect()
    }

    /// The same, cut where the bytes of one rank end and those of another begin, so that little has to travel.
    /// What is read without checksums is left as it is: there an element may lie across a cut.
    fn cut(&self, file: usize) -> Vec<Part> {
        let grid = self.grid(file);
        if self.way == Way::Load && self.geometry.grain.is_none() {
            return grid;
        }
        let seams = self.geometry.seams(file);
        let mut parts = Vec::new();
        for run in grid.into_iter().flat_map(|(_, runs)| runs) {
            let first = seams.partition_point(|seam| *seam < run.start + SPLIT);
            let mut start = run.start;
            for &seam in seams[first..].iter().take_while(|seam| **seam + SPLIT <= run.end) {
                if seam >= start + SPLIT {
                    parts.push(start..seam);
                    start = seam;
                }
            }
            parts.push(start..run.end);
        }
        parts.into_iter().map(|range| (range.clone(), vec![range])).collect()
    }

    /// Bytes of a range that ranks hold or want.
    fn tally(&self, file: usize, range: &Range<u64>, ranks: usize) -> Tally {
        let mut tally = Tally { ranks: vec![0; ranks], all: 0 };
        self.geometry.visit(file, range, &mut |tile, region, claim| {
            let bytes = (region.numel() * self.geometry.tiles[tile].size) as u64;
            tally.all += bytes;
            // Boxes of one rank stand beside each other; each rank counts once.
            for pair in claim.holders.chunk_by(|a, b| a.0 == b.0) {
                tally.ranks[pair[0].0] += bytes;
            }
        });
        tally
    }

    /// Cuts units that go to many ranks, so that what their owner sends at once stays small. Without checksums
    /// an element may lie across a cut, so those units stay whole.
    fn split_wide(&mut self) {
        let Some(grain) = self.geometry.grain.filter(|_| self.way == Way::Load) else { return };
        for unit in std::mem::take(&mut self.units) {
            let mut sent = 0;
            unit.runs.iter().filter(|_| unit.shared).for_each(|run| {
                self.legs_in(&unit, run, &mut |leg| {
                    sent += if leg.to == unit.owner { 0 } else { leg.len as u64 }
                });
            });
            if sent <= ROUND {
                self.units.push(unit);
                continue;
            }
            let bytes: u64 = unit.runs.iter().map(|run| run.end - run.start).sum();
            let step = (bytes / sent.div_ceil(ROUND) / grain).max(1) * grain;
            for run in &unit.runs {
                let mut start = run.start;
                while start < run.end {
                    let end = (start / grain * grain + step).min(run.end);
                    let part = start..end;
                    self.units.push(Unit { range: part.clone(), runs: vec![part], ..unit.clone() });
                    start = end;
                }
            }
        }
    }

    /// Packs shared units into rounds in which no rank sends or receives too much. Units of different owners
    /// alternate, so that all ranks have something to do in each round.
    fn make_rounds(&mut self, ranks: usize) {
        let mut turn = vec![0usize; ranks];
        let mut order: Vec<(usize, usize)> = Vec::new();
        for (number, unit) in self.units.iter().enumerate().filter(|(_, unit)| unit.shared) {
            order.push((turn[unit.owner], number));
            turn[unit.owner] += 1;
        }
        order.sort_by_key(|&(turn, number)| (turn, self.units[number].owner));
        let (mut sent, mut received) = (vec![0u64; ranks], vec![0u64; ranks]);
        let mut round: Vec<usize> = Vec::new();
        for (_, number) in order {
            let (mut more_sent, mut more_received) = (vec![0u64; ranks], vec![0u64; ranks]);
            self.legs(number, &mut |leg| {
                if leg.from != leg.to {
                    more_sent[leg.from] += leg.len as u64;
                    more_received[leg.to] += leg.len as u64;
                }
            });
            // A rank that does nothing yet in this round may take one unit, however wide.
            let over = |so_far: &[u64], more: &[u64]| {
                so_far.iter().zip(more).any(|(a, b)| *a > 0 && *b > 0 && a + b > ROUND)
            };
            if over(&sent, &more_sent) || over(&received, &more_received) {
                self.rounds.push(std::mem::take(&mut round));
                sent.fill(0);
                received.fill(0);
            }
            sent.iter_mut().zip(&more_sent).for_each(|(a, b)| *a += b);
            received.iter_mut().zip(&more_received).for_each(|(a, b)| *a += b);
            round.push(number);
        }
        if !round.is_empty() {
            self.rounds.push(round);
        }
    }

    /// Every box that moves for a unit, in an order that all ranks share.
    pub(crate) fn legs(&self, unit: usize, found: &mut dyn FnMut(Leg)) {
        let unit = &self.units[unit];
        unit.runs.iter().for_each(|run| self.legs_in(unit, run, found));
    }

    /// The boxes whose elements begin in a part of a unit.
    pub(crate) fn legs_in(&self, unit: &Unit, part: &Range<u64>, found: &mut dyn FnMut(Leg)) {
        // A run may end with the last bytes of an element that begins in this unit and ends in the next.
        let range = &(part.start..part.end.min(unit.range.end));
        let owner = unit.owner;
        let turn = (unit.range.start / UNIT) as usize;
        self.geometry.visit(unit.file, range, &mut |tile, region, claim| {
            let len = region.numel() * self.geometry.tiles[tile].size;
            match self.way {
                Way::Save => {
                    let (from, slot) = source(claim, owner, turn);
                    found(Leg { tile, region, from, to: owner, slot, len });
                }
                Way::Load => {
                    for &(to, slot) in &claim.holders {
                        found(Leg { tile, region: region.clone(), from: owner, to, slot, len });
                    }
                }
            }
        });
    }

    /// The units of one rank that concern no other, in file order.
    pub(crate) fn alone(&self, rank: usize) -> Vec<usize> {
        let mine = |&number: &usize| self.units[number].owner == rank && !self.units[number].shared;
        (0..self.units.len()).filter(mine).collect()
    }
}

/// Bytes of a range by rank, copies counted for each, and all of them counted once.
struct Tally {
    ranks: Vec<u64>,
    all: u64,
}

impl Tally {
    /// Whether other ranks take part when this one moves the range.
    fn is_shared(&self, way: Way, owner: usize) -> bool {
        match way {
            Way::Save => self.ranks[owner] < self.all,
            Way::Load => self.ranks.iter().enumerate().any(|(rank, bytes)| rank != owner && *bytes > 0),
        }
    }
}

/// A range cut where blocks of `block` bytes end.
pub(crate) fn blocks(range: &Range<u64>, block: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let Range { start, end } = *range;
    let numbers = start / block..end.div_ceil(block);
    numbers.map(move |number| start.max(number * block)..end.min((number + 1) * block))
}

/// The owner's own copy, or that of a holder whose turn it is.
fn source(claim: &Claim, owner: usize, turn: usize) -> (usize, usize) {
    let own = claim.holders.iter().find(|(rank, _)| *rank == owner);
    *own.unwrap_or(&claim.holders[turn % claim.holders.len()])
}

fn choose(tally: &[u64], load: &[u64]) -> usize {
    let most = tally.iter().max().copied().unwrap_or(0);
    let best = (0..tally.len()).filter(|&rank| tally[rank] == most).min_by_key(|&rank| (load[rank], rank));
    best.unwrap_or(0)
}

/// A run of a unit, and the legs that begin or end in it with their place in the buffer unless they stay here.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) unit: usize,
    pub(crate) run: Range<u64>,
    pub(crate) legs: Vec<(Leg, Option<usize>)>,
}

/// The legs of a round that concern one rank, and the lengths of what it sends and receives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) send_counts: Vec<usize>,
    pub(crate) recv_counts: Vec<usize>,
    /// What this rank reads or writes.
    pub(crate) own: Vec<Job>,
    /// Legs between this rank and the units of others, with their place in the buffer.
    pub(crate) others: Vec<(Leg, usize)>,
}

impl Traffic {
    pub(crate) fn of(schedule: &Schedule, round: &[usize], me: usize, ranks: usize) -> Traffic {
        let mut traffic =
            Traffic { send_counts: vec![0; ranks], recv_counts: vec![0; ranks], ..Traffic::default() };
        for &number in round {
            let unit = &schedule.units[number];
            for run in &unit.runs {
                let mut legs = Vec::new();
                schedule.legs_in(unit, run, &mut |leg| {
                    let place = match (leg.from == me, leg.to == me) {
                        (true, false) => Some(advance(&mut traffic.send_counts[leg.to], leg.len)),
                        (false, true) => Some(advance(&mut traffic.recv_counts[leg.from], leg.len)),
                        (true, true) => None,
                        (false, false) => return,
                    };
                    match place {
                        Some(place) if unit.owner != me => traffic.others.push((leg, place)),
                        place => legs.push((leg, place)),
                    }
                });
                if unit.owner == me {
                    traffic.own.push(Job { unit: number, run: run.clone(), legs });
                }
            }
        }
        traffic.place(me);
        traffic
    }

    /// From places inside each rank's part to places in the whole buffer.
    fn place(&mut self, me: usize) {
        let (sends, receives) = (starts(&self.send_counts), starts(&self.recv_counts));
        let base = |leg: &Leg| if leg.from == me { sends[leg.to] } else { receives[leg.from] };
        self.others.iter_mut().for_each(|(leg, place)| *place += base(leg));
        for (leg, place) in self.own.iter_mut().flat_map(|job| &mut job.legs) {
            let base = base(leg);
            place.iter_mut().for_each(|place| *place += base);
        }
    }
}

fn advance(count: &mut usize, by: usize) -> usize {
    *count += by;
    *count - by
}

fn starts(counts: &[usize]) -> Vec<usize> {
    let mut sum = 0;
    counts.iter().map(|count| advance(&mut sum, *count)).collect()
}
