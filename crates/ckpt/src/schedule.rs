//! Who moves which part of which file, and who sends what to whom: a layer over the tilings of the tensors.
//!
//! A file is divided into cells of [`UNIT`] bytes. What happens in a cell follows from the tensors in it and from who
//! holds or wants their boxes, which `layout` looks up, and from nothing else: no count of work so far, no other cell.
//! So every rank decides alone about the cells it has bytes in, all that take part in one decide alike, and the cost is
//! that of one rank's answer.

use crate::files::{FileMap, Placed};
use planaria_layout::{Fixed, Rank, RankTiling, Region, Replicas};
use std::ops::Range;

/// Bytes of a file that one rank moves at once.
pub(crate) const UNIT: u64 = 4 << 20;
/// Bytes that a rank sends, or receives, in one round at most, unless a single unit has more.
const ROUND: u64 = 8 << 20;
/// No unit is made shorter than this to keep ranks apart.
const SPLIT: u64 = 256 << 10;
/// Wanted bytes at most this far apart are read together.
const GAP: u64 = 16 << 10;
/// Storage is read and written directly in whole blocks of this size.
const BLOCK: u64 = planaria_store::BLOCK as u64;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) file: usize,
    pub(crate) range: Range<u64>,
    pub(crate) owner: usize,
    /// Whether other ranks take part.
    pub(crate) shared: bool,
    /// What is read or written of it.
    pub(crate) runs: Vec<Range<u64>>,
    /// Which of several copies is sent.
    turn: usize,
    /// Bytes that this rank sends and receives for it.
    traffic: [u64; 2],
    /// This rank's boxes in the only run of a unit of another; `None` where they have to be looked for.
    own: Option<Vec<Held>>,
}

/// A box of a tensor in a file, with the number of its tile.
type Held = (usize, Region);

/// Whose boxes are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    All,
    Own,
}

/// A block with a checksum that several ranks read parts of, and who reads which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) file: usize,
    pub(crate) block: Range<u64>,
    pub(crate) parts: Vec<(Range<u64>, usize)>,
}

/// A box on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leg {
    pub(crate) tile: usize,
    pub(crate) region: Region,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) len: usize,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Here {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

/// One rank's part of the common plan.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) files: FileMap,
    /// By tensor: who holds it, or who wants it.
    holders: Vec<Vec<RankTiling>>,
    pub(crate) way: Way,
    division: Division,
    pub(crate) here: Here,
    /// Bytes that are read together: a block with a checksum.
    grain: Option<u64>,
    /// The units that this rank takes part in, in an order that all ranks share.
    pub(crate) units: Vec<Unit>,
    /// Blocks of which this rank reads a part.
    pub(crate) splits: Vec<Split>,
    /// Shared units in rounds: how many go at once is each rank's own affair.
    pub(crate) rounds: Vec<Vec<usize>>,
}

impl Schedule {
    pub(crate) fn save(
        files: FileMap,
        holders: Vec<Vec<RankTiling>>,
        division: Division,
        here: Here,
    ) -> Schedule {
        Schedule::new(files, holders, (Way::Save, division, None), here)
    }

    /// `grain` is the size of the blocks that have checksums.
    pub(crate) fn load(
        files: FileMap,
        holders: Vec<Vec<RankTiling>>,
        grain: Option<u64>,
        here: Here,
    ) -> Schedule {
        Schedule::new(files, holders, (Way::Load, Division::Units, grain), here)
    }

    fn new(
        files: FileMap,
        holders: Vec<Vec<RankTiling>>,
        (way, division, grain): (Way, Division, Option<u64>),
        here: Here,
    ) -> Schedule {
        let (units, splits, rounds) = (Vec::new(), Vec::new(), Vec::new());
        let mut schedule = Schedule { files, holders, way, division, here, grain, units, splits, rounds };
        let given = match &schedule.division {
            Division::Units => None,
            Division::Given(owners) => Some(owners.clone()),
            Division::Files => {
                Some((0..schedule.files.sizes.len()).map(|f| schedule.file_owner(f)).collect())
            }
        };
        let mut surveys = [Survey::default(), Survey::default()];
        for (file, number) in schedule.cells(given.as_deref()) {
            schedule.add_cell(file, number, given.as_ref().map(|owners| owners[file]), &mut surveys);
        }
        schedule.make_rounds();
        schedule
    }

    /// The cells that this rank may have a part in, ascending.
    fn cells(&self, owners: Option<&[usize]>) -> Vec<(usize, u64)> {
        let mut cells: Vec<(usize, u64)> = Vec::new();
        let Here { rank, ranks } = self.here;
        for (file, &size) in self.files.sizes.iter().enumerate() {
            let count = size.div_ceil(UNIT);
            let own = owners.is_some_and(|owners| owners[file] == rank);
            if self.way == Way::Save && (ranks == 1 || own) {
                cells.extend((0..count).map(|number| (file, number)));
            } else if self.way == Way::Save {
                // Nobody holds what stands before and behind the tensors.
                let held = self.files.held_bytes(file);
                let (before, behind) = (held.start / UNIT, held.end.div_ceil(UNIT));
                let mine = |number: &u64| turn(file, *number) % ranks == rank;
                let free = (0..before.min(count)).chain(behind..count);
                cells.extend(free.filter(mine).map(|number| (file, number)));
            }
        }
        for tiles in self.files.tiles.chunk_by(|a, b| a.tensor == b.tensor) {
            for tiling in self.of_tensor(tiles[0].tensor) {
                if tiling.copies().is_some_and(|(mesh, _)| mesh.coords(rank).is_none()) {
                    continue;
                }
                // A rank that is not there has nothing.
                let owned = tiling.owned(&rank, &Fixed::default()).unwrap_or_default();
                // Making an index of the tiles would go over all of them too, to be asked for these few boxes once.
                let pairs = tiles.iter().flat_map(|placed| owned.iter().map(move |owned| (placed, owned)));
                for (placed, owned) in pairs {
                    let Some(part) = owned.region.intersect(&placed.tile.region) else { continue };
                    let span = placed.span(&part);
                    let numbers = span.start / UNIT..span.end.div_ceil(UNIT);
                    cells.extend(numbers.map(|number| (placed.tile.holder.file, number)));
                }
            }
        }
        cells.sort_unstable();
        cells.dedup();
        cells
    }

    /// Who holds a tensor, or wants it. One holder is enough to save from.
    fn of_tensor(&self, tensor: usize) -> &[RankTiling] {
        let all = &self.holders[tensor][..];
        if self.way == Way::Save { &all[..all.len().min(1)] } else { all }
    }

    /// Calls `found` for every part of a box that somebody holds or wants whose elements begin in a range of a file, in
    /// an order that all ranks share. Boxes that this rank has no copy of may be left out where they are not asked for.
    fn visit(
        &self,
        file: usize,
        range: &Range<u64>,
        whose: Whose,
        found: &mut dyn FnMut(usize, Region, &dyn Replicas<Rank>),
    ) {
        for tile in self.files.tiles_in(file, range) {
            for part in self.files.tiles[tile].boxes(range) {
                for tiling in self.of_tensor(self.files.tiles[tile].tensor) {
                    let fixed = match whose {
                        Whose::All => Some(Fixed::default()),
                        Whose::Own => Fixed::at(&**tiling, self.here.rank),
                    };
                    // A rank that is not on the mesh of a tiling has nothing of it.
                    let Some(fixed) = fixed else { continue };
                    tiling.lookup(&part, &fixed, &mut |region, copies| found(tile, region, copies));
                }
            }
        }
    }

    /// Decides about one cell. The surveys are room for that of the cell and that of a part of it.
    fn add_cell(
        &mut self,
        file: usize,
        number: u64,
        given: Option<usize>,
        [cell, smaller]: &mut [Survey; 2],
    ) {
        let range = number * UNIT..self.files.sizes[file].min((number + 1) * UNIT);
        self.survey(file, &range, cell);
        let runs = match self.way {
            Way::Save => vec![range.clone()],
            Way::Load => cell.runs(self.grain, self.files.sizes[file]),
        };
        if runs.is_empty() {
            return;
        }
        // What is read without checksums is left as it is: there an element may lie across a cut.
        let apart = self.division == Division::Units
            && self.here.ranks > 1
            && (self.way == Way::Save || self.grain.is_some());
        let turn = turn(file, number);
        if !apart {
            let owner = given.unwrap_or_else(|| self.choose(cell, turn));
            return self.add_unit((file, range, owner), runs, cell, turn);
        }
        let parts = cell.cut(&runs);
        let whole = parts.len() == 1 && parts[0] == range;
        let mut owned = Vec::with_capacity(parts.len());
        for part in parts {
            let survey = if whole { &mut *cell } else { &mut *smaller };
            if !whole {
                self.survey(file, &part, survey);
            }
            let owner = self.choose(survey, turn);
            owned.push((part.clone(), owner));
            self.add_unit((file, part.clone(), owner), vec![part], survey, turn);
        }
        if let Some(grain) = self.grain.filter(|_| self.way == Way::Load) {
            self.add_splits(file, grain, &owned);
        }
    }

    /// Keeps a unit if this rank takes part in it. The survey is that of its range.
    fn add_unit(
        &mut self,
        (file, range, owner): (usize, Range<u64>, usize),
        runs: Vec<Range<u64>>,
        survey: &mut Survey,
        turn: usize,
    ) {
        let mine = owner == self.here.rank;
        if !mine && survey.own.is_empty() {
            return;
        }
        // Which copy of other boxes goes to the rank of `choose`: on a mesh, that of its own coordinates.
        let turn = turn / survey.heavy.len().max(1);
        let mut unit = Unit { file, range, owner, shared: false, runs, turn, traffic: [0; 2], own: None };
        let all: u64 = survey.sets.iter().map(|set| set.bytes).sum();
        unit.traffic = match (self.way, mine) {
            (Way::Save, true) => [0, all - survey.own_bytes],
            (Way::Load, true) => {
                let alone = survey.sets.iter().filter(|set| (set.first, set.count) == (owner, 1));
                [all - alone.map(|set| set.bytes).sum::<u64>(), 0]
            }
            (way, false) => {
                if let [run] = &unit.runs[..]
                    && (run.start, run.end.min(unit.range.end)) == (unit.range.start, unit.range.end)
                {
                    unit.own = Some(std::mem::take(&mut survey.own));
                }
                let mut bytes = 0;
                match (way, &unit.own) {
                    (Way::Load, Some(_)) => bytes = survey.own_bytes,
                    _ => unit.runs.iter().for_each(|run| {
                        self.legs_in(&unit, run, &mut |leg| bytes += leg.len as u64);
                    }),
                }
                if way == Way::Save { [bytes, 0] } else { [0, bytes] }
            }
        };
        unit.shared = unit.traffic != [0; 2];
        if mine || unit.shared {
            self.units.push(unit);
        }
    }

    /// Blocks that are cut between units, if this rank reads one of their parts.
    fn add_splits(&mut self, file: usize, grain: u64, units: &[(Range<u64>, usize)]) {
        let size = self.files.sizes[file];
        let mut splits: Vec<Split> = Vec::new();
        for (range, owner) in units {
            for part in blocks(range, grain) {
                let start = part.start / grain * grain;
                let block = start..size.min(start + grain);
                match splits.last_mut() {
                    Some(split) if split.block == block => split.parts.push((part, *owner)),
                    _ => splits.push(Split { file, block, parts: vec![(part, *owner)] }),
                }
            }
        }
        let mine = |split: &Split| split.parts.iter().any(|(_, owner)| *owner == self.here.rank);
        splits.retain(|split| split.parts.len() > 1 && mine(split));
        self.splits.extend(splits);
    }

    /// What there is in a range of a file, and whose; what the survey said before is forgotten.
    fn survey(&self, file: usize, range: &Range<u64>, survey: &mut Survey) {
        survey.clear();
        let keep_spans = self.here.ranks > 1 || self.way == Way::Load;
        self.visit(file, range, Whose::All, &mut |tile, region, copies| {
            let placed = &self.files.tiles[tile];
            let bytes = (region.numel() * placed.size) as u64;
            let set = survey.set_of(copies, (tile, &region));
            survey.sets[set].bytes += bytes;
            if copies.find_rank(self.here.rank).is_some() {
                survey.own_bytes += bytes;
                survey.own.push((tile, region.clone()));
            }
            if keep_spans {
                let span = placed.span(&region);
                let solid = placed.order.is_none() && span.end - span.start == bytes;
                survey.spans.push((span, set, solid));
                if self.way == Way::Load && !solid {
                    let gap = self.grain.unwrap_or(GAP);
                    placed.add_ranges(&region, gap, &mut survey.wanted);
                }
            }
        });
        survey.weigh();
    }

    /// A rank that has about as many of the bytes as any other: from cell to cell another one.
    fn choose(&self, survey: &Survey, turn: usize) -> usize {
        let heavy = &survey.heavy;
        if heavy.is_empty() {
            return turn % self.here.ranks;
        }
        let set = &survey.sets[heavy[turn % heavy.len()]];
        if set.count == 1 {
            return set.first;
        }
        let (tile, region) = &set.example;
        let copy = turn / heavy.len() % set.count;
        let mut chosen = set.first;
        for tiling in self.of_tensor(self.files.tiles[*tile].tensor) {
            tiling.lookup(region, &Fixed::default(), &mut |_, copies| {
                if (copies.get(0), copies.count()) == (set.first, set.count) {
                    chosen = copies.get(copy);
                }
            });
        }
        chosen
    }

    /// A rank that holds a part of the largest tensor of a file: from file to file another one.
    fn file_owner(&self, file: usize) -> usize {
        let mut holders = Vec::new();
        if let Some(tile) = self.files.largest(file).map(|tile| &self.files.tiles[tile]) {
            for tiling in self.of_tensor(tile.tensor) {
                tiling.lookup(&tile.tile.region, &Fixed::default(), &mut |_, copies| {
                    holders.push(copies.get(file % copies.count()));
                });
            }
        }
        holders.sort_unstable();
        holders.dedup();
        holders.get(file % holders.len().max(1)).copied().unwrap_or(file % self.here.ranks)
    }

    /// Packs shared units into rounds in which this rank does not send or receive too much.
    fn make_rounds(&mut self) {
        let mut moved = [0u64; 2];
        let mut round: Vec<usize> = Vec::new();
        for (number, unit) in self.units.iter().enumerate().filter(|(_, unit)| unit.shared) {
            let over = |way: usize| moved[way] > 0 && moved[way] + unit.traffic[way] > ROUND;
            if over(0) || over(1) {
                self.rounds.push(std::mem::take(&mut round));
                moved = [0; 2];
            }
            moved[0] += unit.traffic[0];
            moved[1] += unit.traffic[1];
            round.push(number);
        }
        if !round.is_empty() {
            self.rounds.push(round);
        }
    }

    /// The boxes whose elements begin in a part of a unit and that this rank sends, receives, writes or reads, in an
    /// order that all ranks share.
    pub(crate) fn legs_in(&self, unit: &Unit, part: &Range<u64>, found: &mut dyn FnMut(Leg)) {
        // A run may end with the last bytes of an element that begins in this unit and ends in the next.
        let range = &(part.start..part.end.min(unit.range.end));
        let Some(own) = unit.own.as_ref().filter(|_| *part == unit.runs[0]) else {
            let whose = if unit.owner == self.here.rank { Whose::All } else { Whose::Own };
            return self.visit(unit.file, range, whose, &mut |tile, region, copies| {
                self.add_legs(unit, (tile, region), copies, found);
            });
        };
        for (tile, region) in own {
            let Placed { tensor, size, .. } = self.files.tiles[*tile];
            match (self.way, self.of_tensor(tensor)) {
                (Way::Save, [tiling, ..]) => tiling.lookup(region, &Fixed::default(), &mut |part, copies| {
                    self.add_legs(unit, (*tile, part), copies, found);
                }),
                _ => {
                    let (from, to, len) = (unit.owner, self.here.rank, region.numel() * size);
                    found(Leg { tile: *tile, region: region.clone(), from, to, len });
                }
            }
        }
    }

    /// What this rank does with one box of a unit.
    fn add_legs(
        &self,
        unit: &Unit,
        (tile, region): Held,
        copies: &dyn Replicas<Rank>,
        found: &mut dyn FnMut(Leg),
    ) {
        let (owner, me) = (unit.owner, self.here.rank);
        let len = region.numel() * self.files.tiles[tile].size;
        match self.way {
            Way::Save => {
                let from = source(copies, owner, unit.turn);
                if from == me || owner == me {
                    found(Leg { tile, region, from, to: owner, len });
                }
            }
            Way::Load if owner == me => {
                for copy in 0..copies.count() {
                    found(Leg { tile, region: region.clone(), from: me, to: copies.get(copy), len });
                }
            }
            Way::Load if copies.find_rank(me).is_some() => {
                found(Leg { tile, region, from: owner, to: me, len });
            }
            Way::Load => {}
        }
    }

    /// The units of this rank that concern no other, in file order.
    pub(crate) fn alone(&self) -> Vec<usize> {
        let mine = |&number: &usize| self.is_mine(number) && !self.units[number].shared;
        (0..self.units.len()).filter(mine).collect()
    }

    /// Whether this rank reads or writes a unit.
    pub(crate) fn is_mine(&self, unit: usize) -> bool {
        self.units[unit].owner == self.here.rank
    }
}

/// What there is in a range of a file, and whose.
#[derive(Debug, Default)]
struct Survey {
    sets: Vec<Set>,
    /// Where each part lies, whose it is, and whether it fills its range.
    spans: Vec<(Range<u64>, usize, bool)>,
    /// What is to be read of parts with gaps.
    wanted: Vec<Range<u64>>,
    /// The sets with at least half as many bytes as any other.
    heavy: Vec<usize>,
    /// The boxes that this rank has, and their bytes.
    own: Vec<Held>,
    own_bytes: u64,
}

/// Ranks that have the same copies, as far as the first of them and their number say.
#[derive(Debug)]
struct Set {
    first: Rank,
    count: usize,
    bytes: u64,
    /// One of their boxes.
    example: (usize, Region),
}

impl Survey {
    fn clear(&mut self) {
        self.sets.clear();
        self.spans.clear();
        self.wanted.clear();
        self.heavy.clear();
        self.own.clear();
        self.own_bytes = 0;
    }

    fn set_of(&mut self, copies: &dyn Replicas<Rank>, (tile, region): (usize, &Region)) -> usize {
        let (first, count) = (copies.get(0), copies.count());
        let known = self.sets.iter().position(|set| (set.first, set.count) == (first, count));
        known.unwrap_or_else(|| {
            self.sets.push(Set { first, count, bytes: 0, example: (tile, region.clone()) });
            self.sets.len() - 1
        })
    }

    /// Finds the heavy sets, once all are known.
    fn weigh(&mut self) {
        let sets = &self.sets;
        let most = sets.iter().map(|set| set.bytes).max().unwrap_or(0);
        let heavy = |set: &usize| sets[*set].bytes >= most.div_ceil(2);
        self.heavy.extend((0..sets.len()).filter(heavy));
        // Not in the order in which a tiling happens to name its boxes.
        self.heavy.sort_by_key(|&set| (sets[set].first, sets[set].count));
    }

    /// What to read: ascending, apart, and together all that is wanted.
    fn runs(&self, grain: Option<u64>, size: u64) -> Vec<Range<u64>> {
        let solid = self.spans.iter().filter(|(.., solid)| *solid).map(|(span, ..)| span.clone());
        let wanted = solid.chain(self.wanted.iter().cloned());
        match grain {
            None => planaria_store::coalesce(wanted, GAP),
            Some(grain) => {
                let whole = wanted.map(|r| r.start / grain * grain..r.end.next_multiple_of(grain).min(size));
                planaria_store::coalesce(whole, 0)
            }
        }
    }

    /// Runs cut where the bytes of one rank end and those of another begin, at whole blocks of the storage, so that
    /// little has to travel. Boxes that are spread over the file, as columns are, have no such places.
    fn cut(&self, runs: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut solid: Vec<&(Range<u64>, usize, bool)> = self.spans.iter().filter(|(.., s)| *s).collect();
        solid.sort_by_key(|(span, ..)| span.start);
        let changes = solid.windows(2).filter(|pair| pair[0].1 != pair[1].1);
        let mut seams: Vec<u64> = changes.map(|pair| pair[1].0.start / BLOCK * BLOCK).collect();
        seams.dedup();
        let mut parts = Vec::new();
        for run in runs {
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
        parts
    }
}

/// Spreads cells over copies.
fn turn(file: usize, number: u64) -> usize {
    file.wrapping_add(number as usize)
}

/// A range cut where blocks of `block` bytes end.
pub(crate) fn blocks(range: &Range<u64>, block: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let Range { start, end } = *range;
    let numbers = start / block..end.div_ceil(block);
    numbers.map(move |number| start.max(number * block)..end.min((number + 1) * block))
}

/// The owner's own copy, or that of a holder whose turn it is.
fn source(copies: &dyn Replicas<Rank>, owner: usize, turn: usize) -> usize {
    if copies.find_rank(owner).is_some() { owner } else { copies.get(turn % copies.count()) }
}

#[cfg(test)]
mod tests;
