//! The graph: every assignment of a name is a version of its own, so later ones cannot disturb earlier ones.

use crate::expand::{Case, Expansion, NOTHING, Used};
use crate::pattern::{NameId, Names};
use smallvec::SmallVec;
use std::collections::HashSet;

/// Number of a version.
pub(crate) type VersionId = usize;

/// One value a name has had.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) name: NameId,
    /// The move that makes it; none for tensors from outside.
    pub(crate) maker: Option<usize>,
    /// The moves that read it.
    pub(crate) readers: SmallVec<[usize; 2]>,
}

/// A version and which name of the statement it came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// None for `_`.
    pub(crate) version: Option<VersionId>,
    pub(crate) from: usize,
}

/// A case between versions.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) statement: usize,
    pub(crate) reads: SmallVec<[Place; 3]>,
    pub(crate) writes: SmallVec<[Place; 3]>,
}

/// All moves in text order.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) names: Names,
    pub(crate) versions: Vec<Version>,
    pub(crate) moves: Vec<Move>,
    /// The last version of each name.
    pub(crate) last: Vec<Option<VersionId>>,
    /// Values that are dropped after they were made.
    pub(crate) dropped_versions: HashSet<VersionId>,
    /// Names with `-> _`.
    pub(crate) dropped: HashSet<NameId>,
    /// Names with `_ ->`.
    pub(crate) absent: HashSet<NameId>,
    pub(crate) blind: bool,
    pub(crate) spoiled: HashSet<NameId>,
}

impl Graph {
    /// Gives every read and write its version. Cases of one statement read before any of them writes.
    pub(crate) fn new(expansion: Expansion) -> Graph {
        let Expansion { names, cases, blind, spoiled } = expansion;
        let last = vec![None; names.len()];
        let mut graph = Graph {
            names,
            versions: Vec::with_capacity(cases.len() * 3),
            moves: Vec::with_capacity(cases.len()),
            last,
            dropped_versions: HashSet::new(),
            dropped: HashSet::new(),
            absent: HashSet::new(),
            blind,
            spoiled,
        };
        let mut start = 0;
        while start < cases.len() {
            let statement = cases[start].statement;
            let end = start + cases[start..].iter().take_while(|c| c.statement == statement).count();
            graph.add(&cases[start..end]);
            start = end;
        }
        graph
    }

    fn add(&mut self, cases: &[Case]) {
        let first = self.moves.len();
        let moves = |case: &&Case| !is_nothing(&case.left) && !is_nothing(&case.right);
        for case in cases {
            if is_nothing(&case.right) {
                for used in case.left.iter().filter(|used| used.name != NOTHING) {
                    self.dropped.insert(used.name);
                    self.dropped_versions.extend(self.last[used.name as usize]);
                }
            } else if is_nothing(&case.left) {
                self.absent.extend(case.right.iter().map(|used| used.name).filter(|n| *n != NOTHING));
            }
        }
        for case in cases.iter().filter(moves) {
            let number = self.moves.len();
            let mut reads: SmallVec<[Place; 3]> = SmallVec::new();
            for used in &case.left {
                let version = (used.name != NOTHING).then(|| self.current(used.name));
                version.iter().for_each(|&v| self.versions[v].readers.push(number));
                reads.push(Place { version, from: used.from });
            }
            self.moves.push(Move { statement: case.statement, reads, writes: SmallVec::new() });
        }
        for (number, case) in (first..).zip(cases.iter().filter(moves)) {
            for used in &case.right {
                let version = (used.name != NOTHING).then(|| self.fresh(used.name, Some(number)));
                self.moves[number].writes.push(Place { version, from: used.from });
            }
        }
    }

    /// The version a name has now; a tensor from outside gets its first one when it is read.
    fn current(&mut self, name: NameId) -> VersionId {
        match self.last[name as usize] {
            Some(version) => version,
            None => self.fresh(name, None),
        }
    }

    fn fresh(&mut self, name: NameId, maker: Option<usize>) -> VersionId {
        let version = self.versions.len();
        self.versions.push(Version { name, maker, readers: SmallVec::new() });
        self.last[name as usize] = Some(version);
        version
    }

    /// True when this is the value its name ends with.
    pub(crate) fn is_last(&self, version: VersionId) -> bool {
        self.last[self.versions[version].name as usize] == Some(version)
    }

    pub(crate) fn name(&self, version: VersionId) -> &str {
        self.names.text(self.versions[version].name)
    }
}

/// `_` alone on a side.
fn is_nothing(side: &[Used]) -> bool {
    matches!(side, [Used { name: NOTHING, .. }])
}
