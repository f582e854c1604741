//! What one rank sends and receives for some units: messages between two ranks, one for each unit and pair.
//!
//! Every rank goes through its units in the order of the files and waits for a round before it begins the next but one.
//! Whoever is waited for is at an earlier unit than the one that waits, so nobody waits in a circle, however each rank
//! makes its rounds.

use crate::buffers::Buffers;
use crate::error::Result;
use crate::schedule::{Leg, Schedule, Unit, Way};
use planaria_array::{Array, DType};
use planaria_comm::{Call, Comm, Pending, Recv, Send};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Tags of boxes on their way, and of the word that they have come.
const BOXES: u32 = 0x0b0c_5001 & planaria_comm::MAX_TAG;
const CAME: u32 = BOXES + 1;

/// A run of a unit, and the legs that begin or end in it with their place in the buffer unless they stay here.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) unit: usize,
    pub(crate) run: Range<u64>,
    pub(crate) legs: Vec<(Leg, Option<usize>)>,
}

/// A message: whom it is from or for, and its place in the buffer.
#[derive(Clone, Debug)]
struct Letter {
    peer: usize,
    place: Range<usize>,
}

/// The legs of a round that concern this rank, and their places in what it sends and receives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    sends: Vec<Letter>,
    receives: Vec<Letter>,
    /// Bytes sent and received.
    pub(crate) sent: usize,
    pub(crate) received: usize,
    /// What this rank reads or writes.
    pub(crate) own: Vec<Job>,
    /// Legs between this rank and the units of others, with their place in the buffer.
    pub(crate) others: Vec<(Leg, usize)>,
}

impl Traffic {
    pub(crate) fn of(schedule: &Schedule, round: &[usize]) -> Traffic {
        let mut traffic = Traffic::default();
        for &number in round {
            let unit = &schedule.units[number];
            match (schedule.is_mine(number), schedule.way) {
                (false, _) => traffic.add_others(schedule, unit),
                (true, Way::Save) => traffic.add_written(schedule, number),
                (true, Way::Load) => traffic.add_read(schedule, number),
            }
        }
        traffic
    }

    /// A unit of another rank: one message to it, or from it.
    fn add_others(&mut self, schedule: &Schedule, unit: &Unit) {
        let (letters, end) = match schedule.way {
            Way::Save => (&mut self.sends, &mut self.sent),
            Way::Load => (&mut self.receives, &mut self.received),
        };
        let start = *end;
        for run in &unit.runs {
            schedule.legs_in(unit, run, &mut |leg| {
                let place = advance(end, leg.len);
                self.others.push((leg, place));
            });
        }
        letters.push(Letter { peer: unit.owner, place: start..*end });
    }

    /// A unit that this rank writes: a message from every rank that gives something.
    fn add_written(&mut self, schedule: &Schedule, number: usize) {
        let (unit, me) = (&schedule.units[number], schedule.here.rank);
        let mut lens: BTreeMap<usize, usize> = BTreeMap::new();
        let mut jobs = jobs_of(schedule, number, &mut |leg| {
            (leg.from != me).then(|| advance(lens.entry(leg.from).or_default(), leg.len))
        });
        let mut starts = BTreeMap::new();
        for (&peer, &len) in &lens {
            let start = advance(&mut self.received, len);
            self.receives.push(Letter { peer, place: start..start + len });
            starts.insert(peer, start);
        }
        for (leg, place) in jobs.iter_mut().flat_map(|job| &mut job.legs) {
            place.iter_mut().for_each(|place| *place += starts[&leg.from]);
        }
        debug_assert_eq!(unit.owner, me);
        self.own.extend(jobs);
    }

    /// A unit that this rank reads: a message to every rank that wants something. Those that want the same share it.
    fn add_read(&mut self, schedule: &Schedule, number: usize) {
        let me = schedule.here.rank;
        let mut wishes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut jobs = jobs_of(schedule, number, &mut |_| None);
        let mut parts: Vec<(usize, Leg)> = Vec::new();
        for (run, job) in jobs.iter_mut().enumerate() {
            let legs = std::mem::take(&mut job.legs);
            for (leg, _) in legs {
                if leg.to == me {
                    job.legs.push((leg, None));
                    continue;
                }
                // Copies of a box follow each other.
                let to = leg.to;
                if parts.last().is_none_or(|(last, part)| {
                    (*last, &part.region, part.tile) != (run, &leg.region, leg.tile)
                }) {
                    parts.push((run, leg));
                }
                wishes.entry(to).or_default().push(parts.len() - 1);
            }
        }
        let mut packed: HashMap<Vec<usize>, Range<usize>> = HashMap::new();
        for (peer, wish) in wishes {
            let place = packed.entry(wish).or_insert_with_key(|wish| {
                let start = self.sent;
                for &part in wish {
                    let (run, leg) = &parts[part];
                    let place = advance(&mut self.sent, leg.len);
                    jobs[*run].legs.push((leg.clone(), Some(place)));
                }
                start..self.sent
            });
            self.sends.push(Letter { peer, place: place.clone() });
        }
        self.own.extend(jobs);
    }
}

/// The runs of a unit with their legs.
fn jobs_of(schedule: &Schedule, number: usize, place: &mut dyn FnMut(&Leg) -> Option<usize>) -> Vec<Job> {
    let unit = &schedule.units[number];
    let job = |run: &Range<u64>| {
        let mut legs = Vec::new();
        schedule.legs_in(unit, run, &mut |leg| {
            let place = place(&leg);
            legs.push((leg, place));
        });
        Job { unit: number, run: run.clone(), legs }
    };
    unit.runs.iter().map(job).collect()
}

fn advance(count: &mut usize, by: usize) -> usize {
    *count += by;
    *count - by
}

/// Memory for what is sent and received.
#[derive(Debug, Default)]
pub(crate) struct Post {
    pub(crate) sends: Buffers,
    pub(crate) receives: Buffers,
}

/// A round on its way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) traffic: Traffic,
    send: Array,
    recv: Array,
    sending: Vec<Pending>,
    receiving: Vec<Pending>,
    /// Who says that it has come.
    answers: Vec<Pending>,
}

impl Post {
    /// Begins to send a round, and to receive what belongs to it.
    pub(crate) fn start(&self, world: &dyn Comm, traffic: Traffic, send: Array) -> Result<Flight> {
        let recv = self.receives.take(traffic.received)?;
        let part =
            |buffer: &Array, place: &Range<usize>| buffer.as_strided(&[place.len()], &[1], place.start);
        let (mut receiving, mut sending, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        for Letter { peer, place } in &traffic.receives {
            let call = Recv { data: part(&recv, place)?, from: *peer, tag: BOXES };
            receiving.push(world.start(Call::Recv(call))?);
        }
        for Letter { peer, place } in &traffic.sends {
            let call = Send { data: part(&send, place)?, to: *peer, tag: BOXES };
            sending.push(world.start(Call::Send(call))?);
            let answer = Recv { data: Array::empty(&[1], DType::U8)?, from: *peer, tag: CAME };
            answers.push(world.start(Call::Recv(answer))?);
        }
        Ok(Flight { traffic, send, recv, sending, receiving, answers })
    }

    /// Waits until all of a round has come, here and where it was sent: no rank gets far ahead of another, so memory
    /// stays small. What was received, until it is given back.
    pub(crate) fn finish(&self, world: &dyn Comm, flight: Flight) -> Result<(Traffic, Array)> {
        let Flight { traffic, send, recv, sending, receiving, answers } = flight;
        let word = Array::zeros(&[1], DType::U8)?;
        let mut words = Vec::with_capacity(receiving.len());
        for (pending, letter) in receiving.into_iter().zip(&traffic.receives) {
            pending.wait()?;
            let call = Send { data: word.clone(), to: letter.peer, tag: CAME };
            words.push(world.start(Call::Send(call))?);
        }
        for pending in sending.into_iter().chain(answers).chain(words) {
            pending.wait()?;
        }
        self.sends.give_back(send);
        Ok((traffic, recv))
    }
}
