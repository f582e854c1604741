//! Expansion: statements with placeholders, stars and ranges become cases with plain names.

use crate::ast::{Name, Program, Statement};
use crate::catalog::Catalog;
use crate::error::{Fault, Log, Problem, closest};
use crate::options::{Options, Strictness};
use crate::pattern::{Digits, NameId, Names, Pattern, Tuple};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};

/// `_` in a case.
pub(crate) const NOTHING: NameId = NameId::MAX;

/// Most names one statement may stand for.
const MAX_NAMES: usize = 1 << 22;

/// The placeholder whose right side is one less than its left.
const OFFSET: &str = "LAYER_ID_OFFSET";

/// Which side of the statements exists: foreign tensors on the left, or the model's on the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Left to right.
    Forward,
    /// Right to left.
    Reverse,
}

/// A plain name and which name of the statement it came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) name: NameId,
    pub(crate) from: usize,
}

/// One statement with plain names.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) statement: usize,
    pub(crate) left: SmallVec<[Used; 3]>,
    pub(crate) right: SmallVec<[Used; 3]>,
}

/// All cases in text order, and the names they use.
#[derive(Debug)]
pub(crate) struct Expansion {
    pub(crate) names: Names,
    pub(crate) cases: Vec<Case>,
    /// A statement failed before it was known what it makes.
    pub(crate) blind: bool,
    /// Names that would have been made by cases that failed.
    pub(crate) spoiled: HashSet<NameId>,
}

/// Expands every statement. `given` are the tensors that exist, `other` those on the far side.
pub(crate) fn expand(
    program: &Program,
    direction: Direction,
    given: &Catalog,
    other: Option<&Catalog>,
    options: &Options,
    log: &mut Log,
) -> Expansion {
    let mut names = Names::default();
    given.names().iter().for_each(|name| _ = names.intern_shared(name));
    let known = vec![true; names.len()];
    let mut far = Vec::new();
    for name in other.iter().flat_map(|catalog| catalog.names()) {
        let id = names.intern_shared(name) as usize;
        if far.len() <= id {
            far.resize(id + 1, false);
        }
        far[id] = true;
    }
    let mut expander =
        Expander { direction, options, names, known, far, log, blind: false, spoiled: HashSet::new() };
    let mut cases: Vec<Vec<Case>> = Vec::new();
    let count = program.statements.len();
    for step in 0..count {
        let index = if direction == Direction::Forward { step } else { count - 1 - step };
        let found = expander.statement(index, &program.statements[index]);
        cases.push(found);
    }
    if direction == Direction::Reverse {
        cases.reverse();
    }
    let cases = cases.into_iter().flatten().collect();
    Expansion { names: expander.names, cases, blind: expander.blind, spoiled: expander.spoiled }
}

struct Expander<'a> {
    direction: Direction,
    options: &'a Options,
    names: Names,
    /// Names that exist at this point: given, or made by a statement already seen.
    known: Vec<bool>,
    /// Names of the far side.
    far: Vec<bool>,
    log: &'a mut Log,
    blind: bool,
    spoiled: HashSet<NameId>,
}

/// Which names a pattern may match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Universe {
    Known,
    Far,
}

/// One name of a statement, ready to be filled in.
struct Side<'s> {
    name: &'s Name,
    pattern: Pattern,
    universe: Universe,
    /// For a star: the names it stands for, by placeholder values, in numeric order.
    stars: HashMap<Tuple, Vec<(Digits, NameId)>>,
}

type Sides<'s> = Vec<Side<'s>>;

impl Expander<'_> {
    /// The cases of one statement; what it makes is known afterwards.
    fn statement(&mut self, index: usize, statement: &Statement) -> Vec<Case> {
        let mut cases = Vec::new();
        if let Err(problem) = self.fill(index, statement, &mut cases) {
            self.log.error(problem);
            self.blind = true;
        }
        let mut made = HashSet::new();
        for case in &cases {
            for used in if self.direction == Direction::Forward { &case.right } else { &case.left } {
                if used.name == NOTHING {
                    continue;
                }
                if self.direction == Direction::Forward && !made.insert(used.name) {
                    let name = self.names.text(used.name).to_string();
                    let span = statement.right[used.from].span;
                    self.log.error(Problem::at(Fault::AssignedTwice { name }, span));
                }
                self.make_known(used.name);
            }
        }
        cases
    }

    fn make_known(&mut self, name: NameId) {
        let at = name as usize;
        if self.known.len() <= at {
            self.known.resize(at + 1, false);
        }
        self.known[at] = true;
    }

    fn fill(&mut self, index: usize, statement: &Statement, cases: &mut Vec<Case>) -> Result<(), Problem> {
        let mut vars = Vec::new();
        let forward = self.direction == Direction::Forward;
        let (near, far) = (Universe::Known, Universe::Far);
        let mut left = self.sides(&statement.left, if forward { near } else { far }, &mut vars)?;
        let mut right = self.sides(&statement.right, if forward { far } else { near }, &mut vars)?;
        for side in left.iter_mut().chain(&mut right) {
            self.find_stars(side, vars.len())?;
        }
        let tuples = self.bindings(statement, &left, &right, &vars)?;
        let offset = vars.iter().position(|var| var == OFFSET);
        let mut count = 0usize;
        for tuple in tuples {
            let mut moved = tuple.clone();
            if let Some(Some(digits)) = offset.map(|var| tuple[var].clone()) {
                let shifted = digits.shifted(!forward);
                let name = || statement.right[0].base.clone();
                let shifted = shifted
                    .ok_or_else(|| Problem::at(Fault::BelowZero { name: name() }, statement.right[0].span))?;
                moved[offset.unwrap_or(0)] = Some(shifted);
            }
            let (on_left, on_right) = if forward { (&tuple, &moved) } else { (&moved, &tuple) };
            let case = match self.case(index, (&left, on_left), (&right, on_right)) {
                Ok(case) => case,
                Err(problem) => {
                    // What it would have made counts as made, so that its readers are not blamed as well.
                    self.log.error(problem);
                    let (sides, values) = if forward { (&right, on_right) } else { (&left, on_left) };
                    for side in sides {
                        let ids = self.plain(side, values).unwrap_or_default();
                        for id in ids.into_iter().filter(|id| *id != NOTHING) {
                            self.make_known(id);
                            self.spoiled.insert(id);
                        }
                    }
                    continue;
                }
            };
            count += case.as_ref().map_or(0, |c| c.left.len() + c.right.len());
            if count > MAX_NAMES {
                return Err(Problem::at(Fault::TooManyNames { limit: MAX_NAMES }, statement.span));
            }
            cases.extend(case);
        }
        Ok(())
    }

    fn sides<'s>(
        &self,
        names: &'s [Name],
        universe: Universe,
        vars: &mut Vec<String>,
    ) -> Result<Sides<'s>, Problem> {
        let mut sides = Vec::with_capacity(names.len());
        for name in names {
            let pattern =
                if name.quoted { Pattern::literal(&name.base) } else { Pattern::new(&name.base, vars) };
            if pattern.stars() > 1 || (pattern.stars() == 1 && name.array.is_some()) {
                let found = format!("'{name}'");
                let fault = Fault::Syntax { expected: "one '*' or one range in a name", found };
                return Err(Problem::at(fault, name.span));
            }
            sides.push(Side { name, pattern, universe, stars: HashMap::new() });
        }
        Ok(sides)
    }

    fn exists(&self, id: NameId, universe: Universe) -> bool {
        let set = if universe == Universe::Known { &self.known } else { &self.far };
        set.get(id as usize).copied().unwrap_or(false)
    }

    /// Values under which names that exist match a pattern.
    fn matches(
        &self,
        pattern: &Pattern,
        universe: Universe,
        vars: usize,
    ) -> Vec<(Tuple, Option<Digits>, NameId)> {
        let candidates = self.names.candidates(pattern).iter().filter(|id| self.exists(**id, universe));
        let found = candidates.filter_map(|&id| {
            pattern.matches(self.names.text(id), vars).map(|(tuple, star)| (tuple, star, id))
        });
        found.collect()
    }

    fn find_stars(&mut self, side: &mut Side<'_>, vars: usize) -> Result<(), Problem> {
        if side.pattern.stars() == 0 {
            return Ok(());
        }
        for (tuple, star, id) in self.matches(&side.pattern, side.universe, vars) {
            side.stars.entry(tuple).or_default().extend(star.map(|star| (star, id)));
        }
        side.stars.values_mut().for_each(|found| found.sort());
        // With a placeholder, no match is the same to a star as to a plain name: the statement has no instance.
        let instances = (0..vars).any(|var| side.pattern.has_var(var));
        let lenient = self.options.strictness == Strictness::Lenient;
        if side.stars.is_empty() && !side.name.optional && !(instances && lenient) {
            // A star stands for tensors that must be listed, so nothing is not a way out.
            return Err(Problem::at(Fault::NoMatch { name: side.name.to_string() }, side.name.span));
        }
        Ok(())
    }

    /// The placeholder values a statement is repeated for.
    fn bindings(
        &mut self,
        statement: &Statement,
        left: &Sides<'_>,
        right: &Sides<'_>,
        vars: &[String],
    ) -> Result<Vec<Tuple>, Problem> {
        if vars.is_empty() {
            return Ok(vec![Tuple::new()]);
        }
        let (mut near, mut far) = (left, right);
        if self.direction == Direction::Reverse {
            (near, far) = (far, near);
        }
        if near.len() == 1 && near[0].name.is_nothing() {
            if self.far.is_empty() {
                // Nothing is said about tensors nobody knows.
                return Ok(Vec::new());
            }
            (near, far) = (far, near);
        }
        let complete = |side: &&Side<'_>| (0..vars.len()).all(|var| side.pattern.has_var(var));
        let mut readers: Vec<&Side<'_>> = near.iter().filter(complete).collect();
        if readers.is_empty() {
            let unbound = |var: &usize| !near.iter().any(|side| side.pattern.has_var(*var));
            let var = (0..vars.len()).find(unbound).unwrap_or(0);
            return Err(Problem::at(Fault::Unbound { placeholder: vars[var].clone() }, statement.span));
        }
        for side in far.iter().filter(|side| !side.name.is_nothing()) {
            if let Some(var) = (0..vars.len()).find(|&var| !side.pattern.has_var(var)) {
                let (name, placeholder) = (side.name.to_string(), vars[var].clone());
                return Err(Problem::at(Fault::LacksPlaceholder { name, placeholder }, side.name.span));
            }
        }
        if self.options.strictness == Strictness::Lenient {
            readers.truncate(1);
        }
        let mut tuples: Vec<Tuple> = Vec::new();
        for side in &readers {
            let pattern = match &side.name.array {
                Some(range) => &side.pattern.followed_by(&format!("_{}", range.start)),
                None => &side.pattern,
            };
            tuples.extend(self.matches(pattern, side.universe, vars.len()).into_iter().map(|m| m.0));
        }
        tuples.sort();
        tuples.dedup();
        if tuples.is_empty() && !statement.left.iter().any(|name| name.optional) {
            let side = readers[0];
            let problem = Problem::at(Fault::NoMatch { name: side.name.to_string() }, side.name.span);
            match self.options.strictness {
                Strictness::Strict => return Err(problem),
                Strictness::Lenient => self.log.warn(problem),
            }
        }
        Ok(tuples)
    }

    /// One case; none when an optional name does not exist.
    fn case(
        &mut self,
        statement: usize,
        (left, on_left): (&Sides<'_>, &Tuple),
        (right, on_right): (&Sides<'_>, &Tuple),
    ) -> Result<Option<Case>, Problem> {
        let mut case = Case { statement, left: SmallVec::new(), right: SmallVec::new() };
        let forward = self.direction == Direction::Forward;
        let optional = left.iter().any(|side| side.name.optional);
        let nothing = |sides: &Sides<'_>| sides.len() == 1 && sides[0].name.is_nothing();
        // What is left out anyway need not exist for a lenient reader.
        let ignored = (nothing(left) || nothing(right)) && self.options.strictness == Strictness::Lenient;
        for (from, side) in left.iter().enumerate() {
            let ids = self.plain(side, on_left)?;
            for id in ids {
                if forward && id != NOTHING && !self.exists(id, Universe::Known) {
                    if optional {
                        return Ok(None);
                    }
                    self.missed(id, side.name, ignored)?;
                }
                case.left.push(Used { name: id, from });
            }
        }
        for (from, side) in right.iter().enumerate() {
            for id in self.plain(side, on_right)? {
                if !forward && id != NOTHING && !self.exists(id, Universe::Known) {
                    if optional {
                        return Ok(None);
                    }
                    self.missed(id, side.name, ignored)?;
                }
                case.right.push(Used { name: id, from });
            }
        }
        Ok((!case.left.is_empty() && !case.right.is_empty()).then_some(case))
    }

    /// The plain names one name of a statement stands for.
    fn plain(&mut self, side: &Side<'_>, tuple: &Tuple) -> Result<SmallVec<[NameId; 1]>, Problem> {
        if side.name.is_nothing() {
            return Ok(SmallVec::from_elem(NOTHING, 1));
        }
        if side.pattern.stars() > 0 {
            let found = side.stars.get(&side.pattern.project(tuple));
            let ids: SmallVec<[NameId; 1]> = found.into_iter().flatten().map(|(_, id)| *id).collect();
            if ids.is_empty() && !side.name.optional {
                let name = side.pattern.render(tuple);
                return Err(Problem::at(Fault::NoMatch { name }, side.name.span));
            }
            return Ok(ids);
        }
        let name = side.pattern.render(tuple);
        let Some(range) = &side.name.array else {
            return Ok(SmallVec::from_elem(self.names.intern(&name), 1));
        };
        if range.len() > MAX_NAMES >> 6 {
            return Err(Problem::at(Fault::TooManyNames { limit: MAX_NAMES >> 6 }, side.name.span));
        }
        Ok(range.clone().map(|i| self.names.intern(&format!("{name}_{i}"))).collect())
    }

    /// A name that does not exist: a warning where it may be missing, otherwise a mistake.
    fn missed(&mut self, id: NameId, name: &Name, ignored: bool) -> Result<(), Problem> {
        let problem = self.unknown(id, name);
        if !ignored {
            return Err(problem);
        }
        self.log.warn(problem);
        Ok(())
    }

    fn unknown(&self, id: NameId, name: &Name) -> Problem {
        let text = self.names.text(id).to_string();
        let known = (0..self.known.len()).filter(|&i| self.known[i]);
        // Looking at every name for every mistake would make a wrong file slow to report.
        let near = if self.log.errors.len() < 16 {
            closest(&text, known.map(|i| &**self.names.text(i as NameId)))
        } else {
            None
        };
        Problem::at(Fault::UnknownTensor { name: text, closest: near }, name.span)
    }
}
