//! Two levels: which ranks of a group share a host, the way of every part of a collective between hosts, and the bytes that cross.
//!
//! A sum is folded along the hosts, in rank order: the ranks of the first host fold theirs, the next host continues with that, and the last
//! one has the result. What all ranks get goes round the hosts the other way, into every host once, and is spread there. Both directions of
//! a link are at work at once, and no bit differs from a fold of all ranks at one place.

use super::step::{SMALL, shares};
use super::wire::INLINE;
use planaria_array::ops::fold_dtype;
use planaria_layout::{Combine, DType, Reduce};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Largest chunk in bytes: many are on their way at once, and a link waits for the first one only.
const CHUNK: usize = 1 << 19;

/// A small array is still cut so that every rank of a host has something to fold, but not below this.
const LEAST: usize = 1 << 14;

/// Most chunks of one collective; those of very large arrays are larger.
const MOST: usize = 1 << 12;

/// A collective, as far as its bytes go. Counts are in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Traffic {
    AllReduce {
        op: Reduce,
        dtype: DType,
        count: usize,
    },
    Reduce {
        op: Reduce,
        dtype: DType,
        count: usize,
        root: usize,
    },
    Broadcast {
        dtype: DType,
        count: usize,
        root: usize,
    },
    AllGather {
        dtype: DType,
        counts: Vec<usize>,
    },
    ReduceScatter {
        op: Reduce,
        dtype: DType,
        counts: Vec<usize>,
    },
    /// What each rank sends to each.
    AllToAll {
        dtype: DType,
        counts: Vec<Vec<usize>>,
    },
}

/// Bytes from one host to another.
pub type Crossing = BTreeMap<(usize, usize), u64>;

/// Bytes of contents that cross between hosts in a collective of a group whose ranks are on `hosts`, in rank order, between processes that
/// [`crate::sockets`] connects. Letters have an envelope of some hundred bytes besides.
pub fn crossing(hosts: &[usize], traffic: &Traffic) -> Crossing {
    let (dense, names) = dense(hosts.iter().copied());
    let levels = Levels::of(hosts.iter().copied());
    let way = match levels.filter(|levels| levels.saves(traffic)) {
        Some(levels) => levels.crossing(&parts(traffic), traffic),
        None => flat(&dense, traffic),
    };
    way.into_iter().map(|((from, to), bytes)| ((names[from], names[to]), bytes)).collect()
}

/// Hosts numbered in the order they come, and what they were called.
fn dense(hosts: impl Iterator<Item = usize>) -> (Vec<usize>, Vec<usize>) {
    let (mut known, mut names) = (HashMap::new(), Vec::new());
    let number = |host: usize| {
        *known.entry(host).or_insert_with(|| {
            names.push(host);
            names.len() - 1
        })
    };
    (hosts.map(number).collect(), names)
}

/// Bytes that go one way together.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// Where they are in what is sent.
    pub(super) sent: Range<usize>,
    /// Where they begin in what is received.
    pub(super) at: usize,
    /// The position that has them; `None` for a sum, to which all contribute.
    pub(super) from: Option<usize>,
    /// The position that gets them; `None` for all.
    pub(super) to: Option<usize>,
}

/// The hosts of a group.
#[derive(Debug)]
pub(crate) struct Levels {
    /// Positions of each host, in order.
    hosts: Vec<Range<usize>>,
    /// Host of each position.
    of: Vec<usize>,
}

impl Levels {
    /// `None` where there is one host, where no two ranks share one, and where a host's ranks are not neighbours: a sum in rank order would have
    /// to come to it twice.
    pub(crate) fn of(hosts: impl Iterator<Item = usize>) -> Option<Levels> {
        let (of, names) = dense(hosts);
        let neighbours = of.windows(2).all(|pair| pair[0] <= pair[1]);
        if names.len() < 2 || names.len() == of.len() || !neighbours {
            return None;
        }
        let range = |host: usize| of.partition_point(|&h| h < host)..of.partition_point(|&h| h <= host);
        Some(Levels { hosts: (0..names.len()).map(range).collect(), of })
    }

    pub(super) fn last(&self) -> usize {
        self.hosts.len() - 1
    }

    pub(super) fn host(&self, position: usize) -> usize {
        self.of[position]
    }

    pub(super) fn members(&self, host: usize) -> Range<usize> {
        self.hosts[host].clone()
    }

    /// The rank of a host that folds or spreads a chunk there: who has it or gets it, else each in its turn.
    pub(super) fn keeper(&self, host: usize, index: usize, chunk: &Chunk) -> usize {
        let here = |position: &usize| self.of[*position] == host;
        let end = chunk.to.filter(|_| host == self.last());
        let fixed = chunk.from.filter(here).or(end.filter(here));
        let members = &self.hosts[host];
        fixed.unwrap_or(members.start + index % members.len())
    }

    /// The host that a chunk for all goes to next; `None` when it has been everywhere.
    pub(super) fn next(&self, host: usize, origin: usize) -> Option<usize> {
        let next = if host == 0 { self.last() } else { host - 1 };
        (next != origin).then_some(next)
    }

    /// True when going over hosts takes less of the busiest link, or of all, than sending straight from rank to rank. Short ones go straight: they wait
    /// for the way, not for the link.
    pub(super) fn saves(&self, traffic: &Traffic) -> bool {
        let parts = parts(traffic);
        if parts.iter().map(|part| part.sent.len()).sum::<usize>() <= INLINE {
            return false;
        }
        cost(&self.crossing(&parts, traffic)) < cost(&flat(&self.of, traffic))
    }

    fn crossing(&self, parts: &[Chunk], traffic: &Traffic) -> Crossing {
        let mut way = Crossing::new();
        let mut add = |from: usize, to: usize, bytes: usize| {
            if from != to {
                *way.entry((from, to)).or_default() += bytes as u64;
            }
        };
        for part in parts {
            let bytes = part.sent.len();
            let origin = part.from.map_or(self.last(), |from| self.of[from]);
            if part.from.is_none() {
                (0..self.last()).for_each(|host| add(host, host + 1, between(traffic, bytes)));
            }
            match part.to {
                Some(to) => add(origin, self.of[to], bytes),
                None => {
                    let mut host = origin;
                    while let Some(next) = self.next(host, origin) {
                        add(host, next, bytes);
                        host = next;
                    }
                }
            }
        }
        way
    }

    /// The parts of a collective in chunks.
    pub(super) fn chunks(&self, traffic: &Traffic) -> Vec<Chunk> {
        let (parts, unit) = (parts(traffic), dtype(traffic).size());
        let total: usize = parts.iter().map(|part| part.sent.len()).sum();
        let widest = self.hosts.iter().map(ExactSizeIterator::len).max().unwrap_or(1);
        let size =
            (total / (2 * widest)).clamp(LEAST, CHUNK).max(total / MOST).next_multiple_of(unit.max(64));
        let cut = |part: Chunk| {
            let pieces = part.sent.clone().step_by(size);
            let piece = move |start: usize| Chunk {
                sent: start..part.sent.end.min(start + size),
                at: part.at + start - part.sent.start,
                ..part
            };
            pieces.map(piece)
        };
        parts.into_iter().flat_map(cut).collect()
    }
}

/// Bytes of a sum that is not done yet, for `bytes` of its elements.
pub(super) fn between(traffic: &Traffic, bytes: usize) -> usize {
    match *traffic {
        Traffic::AllReduce { op, dtype, .. }
        | Traffic::Reduce { op, dtype, .. }
        | Traffic::ReduceScatter { op, dtype, .. } => {
            bytes / dtype.size() * fold_dtype(Combine::of(op, 1), dtype).size()
        }
        _ => bytes,
    }
}

fn dtype(traffic: &Traffic) -> DType {
    match *traffic {
        Traffic::AllReduce { dtype, .. }
        | Traffic::Reduce { dtype, .. }
        | Traffic::Broadcast { dtype, .. }
        | Traffic::AllGather { dtype, .. }
        | Traffic::ReduceScatter { dtype, .. }
        | Traffic::AllToAll { dtype, .. } => dtype,
    }
}

/// What goes over hosts; nothing of an all-to-all, of which everything is for one rank alone.
fn parts(traffic: &Traffic) -> Vec<Chunk> {
    let unit = dtype(traffic).size();
    let whole = |count: usize, from, to| vec![Chunk { sent: 0..count * unit, at: 0, from, to }];
    let offsets = |counts: &[usize]| {
        let next = |at: &mut usize, n: &usize| Some(std::mem::replace(at, *at + n * unit));
        counts.iter().scan(0, next).collect::<Vec<_>>()
    };
    let mut parts = match traffic {
        Traffic::AllReduce { count, .. } => whole(*count, None, None),
        Traffic::Reduce { count, root, .. } => whole(*count, None, Some(*root)),
        Traffic::Broadcast { count, root, .. } => whole(*count, Some(*root), None),
        Traffic::AllGather { counts, .. } => {
            let each = counts.iter().zip(offsets(counts)).enumerate();
            each.map(|(i, (n, at))| Chunk { sent: 0..n * unit, at, from: Some(i), to: None }).collect()
        }
        Traffic::ReduceScatter { counts, .. } => {
            let each = counts.iter().zip(offsets(counts)).enumerate();
            each.map(|(i, (n, at))| Chunk { sent: at..at + n * unit, at: 0, from: None, to: Some(i) })
                .collect()
        }
        Traffic::AllToAll { .. } => Vec::new(),
    };
    parts.retain(|part| !part.sent.is_empty());
    parts
}

/// What crosses when every rank sends straight to every other.
fn flat(of: &[usize], traffic: &Traffic) -> Crossing {
    let unit = dtype(traffic).size();
    let mut way = Crossing::new();
    let mut sizes = vec![0; of.iter().max().map_or(0, |most| most + 1)];
    of.iter().for_each(|&host| sizes[host] += 1);
    let mut add = |from: usize, to: usize, bytes: usize| {
        if from != to && bytes > 0 {
            *way.entry((from, to)).or_default() += bytes as u64;
        }
    };
    // To one from all of each host, and from one to all of each host.
    let gather = |to: usize, bytes: usize, add: &mut dyn FnMut(usize, usize, usize)| {
        sizes.iter().enumerate().for_each(|(host, n)| add(host, of[to], n * bytes));
    };
    let spread = |from: usize, bytes: usize, add: &mut dyn FnMut(usize, usize, usize)| {
        sizes.iter().enumerate().for_each(|(host, n)| add(of[from], host, n * bytes));
    };
    match traffic {
        Traffic::AllReduce { count, .. } if count * unit <= SMALL => {
            (0..of.len()).for_each(|rank| spread(rank, count * unit, &mut add));
        }
        Traffic::AllReduce { count, .. } => {
            for (rank, share) in shares(*count, of.len(), unit).into_iter().enumerate() {
                gather(rank, share.len(), &mut add);
                spread(rank, share.len(), &mut add);
            }
        }
        Traffic::Reduce { count, root, .. } => gather(*root, count * unit, &mut add),
        Traffic::Broadcast { count, root, .. } => spread(*root, count * unit, &mut add),
        Traffic::AllGather { counts, .. } => {
            counts.iter().enumerate().for_each(|(rank, n)| spread(rank, n * unit, &mut add));
        }
        Traffic::ReduceScatter { counts, .. } => {
            counts.iter().enumerate().for_each(|(rank, n)| gather(rank, n * unit, &mut add));
        }
        Traffic::AllToAll { counts, .. } => {
            for (from, row) in counts.iter().enumerate() {
                row.iter().enumerate().for_each(|(to, n)| add(of[from], of[to], n * unit));
            }
        }
    }
    way
}

/// Bytes over the busiest link of a host, in the direction that has more of them, and over all.
fn cost(way: &Crossing) -> (u64, u64) {
    let mut ends = BTreeMap::new();
    for (&(from, to), bytes) in way {
        *ends.entry((from, false)).or_insert(0) += bytes;
        *ends.entry((to, true)).or_insert(0) += bytes;
    }
    (ends.into_values().max().unwrap_or(0), way.values().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn sum(dtype: DType, bytes: usize) -> Traffic {
        Traffic::AllReduce { op: Reduce::Sum, dtype, count: bytes / dtype.size() }
    }

    #[test]
    fn a_sum_crosses_once_each_way_where_ranks_share_hosts() {
        let once = 64 * MIB as u64;
        let way = crossing(&[7, 7, 9, 9], &sum(DType::F32, 64 * MIB));
        assert_eq!(way, [((7, 9), once), ((9, 7), once)].into());
        // Alone on their hosts, apart from each other, or with sums of twice the width, ranks send straight to each other.
        assert_eq!(crossing(&[0, 1], &sum(DType::F32, 64 * MIB)), [((0, 1), once), ((1, 0), once)].into());
        assert_eq!(crossing(&[0, 1, 0, 1], &sum(DType::F32, 64 * MIB))[&(0, 1)], 2 * once);
        assert_eq!(crossing(&[0, 0, 1, 1], &sum(DType::F8E4M3, 64 * MIB))[&(1, 0)], 2 * once);
        assert_eq!(crossing(&[0; 4], &sum(DType::F32, 64 * MIB)), Crossing::new());
    }

    #[test]
    fn short_calls_go_straight_and_long_ones_cover_every_byte() {
        let levels = Levels::of([0, 0, 1, 1, 1].into_iter()).unwrap();
        assert!(!levels.saves(&sum(DType::F32, INLINE)) && levels.saves(&sum(DType::F32, INLINE + 4)));
        assert!(!levels.saves(&sum(DType::F32, 0)));
        let gather = Traffic::AllGather { dtype: DType::U16, counts: vec![900_001, 0, 1, 77, 400_000] };
        let mut covered: Vec<_> =
            levels.chunks(&gather).into_iter().map(|chunk| chunk.at..chunk.at + chunk.sent.len()).collect();
        covered.sort_by_key(|range| range.start);
        assert_eq!(covered[0].start, 0);
        assert!(covered.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(covered.last().unwrap().end, 2 * (900_001 + 1 + 77 + 400_000));
    }
}
