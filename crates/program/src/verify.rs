//! What is wrong with a program, found before it runs.

mod attrs;

use crate::error::{Error, Result};
use crate::node::Type;
use crate::ops::{self, Signature};
use crate::paddle;
use crate::program::{Block, NEWEST, Op, Program, Region, ValueId};
use crate::run::rehearse;
use crate::types::{malformed, vector_types};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// Issues after which the search ends.
const MOST: usize = 100;

/// Sizes that unknown extents are tried with, until a program fits itself with one of them.
const SIZES: [i64; 4] = [2, 3, 1, 4];

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// The op or block.
    pub place: String,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Fails with the first issue, if there is any.
///
/// # Errors
/// A program that is not well formed.
pub fn check(program: &Program) -> Result<()> {
    let issues = verify(program);
    match issues.first() {
        None => Ok(()),
        Some(Issue { place, what }) => {
            Err(Error::Invalid { place: place.clone(), what: what.clone(), more: issues.len() - 1 })
        }
    }
}

/// All that is wrong with a program: values used where they are not defined, ops of other forms than their
/// definitions, types that do not follow from the operands. A program of an older version is upgraded first.
pub fn verify(program: &Program) -> Vec<Issue> {
    let mut upgraded;
    let mut program = program;
    if program.version != NEWEST {
        upgraded = program.clone();
        if let Err(error) = paddle::upgrade(&mut upgraded) {
            return vec![Issue { place: "program".to_string(), what: error.to_string() }];
        }
        program = &upgraded;
    }
    let mut verifier = Verifier::default();
    verifier.region(&program.body, 0);
    verifier.names(program);
    if verifier.issues.is_empty()
        && let Some(issue) = rehearsed(program)
    {
        verifier.issues.push(issue);
    }
    verifier.issues
}

/// Runs the program without elements; the first mismatch that no size of its unknown extents removes.
fn rehearsed(program: &Program) -> Option<Issue> {
    let mut first = None;
    for size in SIZES {
        match rehearse(program, size) {
            Ok(()) => return None,
            Err(error) => {
                first.get_or_insert(match error {
                    Error::Run { place, what } => Issue { place, what },
                    Error::Array { place, source } => Issue { place, what: source.to_string() },
                    other => Issue { place: "program".to_string(), what: other.to_string() },
                });
            }
        }
    }
    first
}

#[derive(Default)]
struct Verifier {
    issues: Vec<Issue>,
    /// Every id that was ever defined.
    defined: HashSet<ValueId>,
    /// Types of the values that can be seen here.
    visible: HashMap<ValueId, Type>,
    count: usize,
}

impl Verifier {
    fn issue(&mut self, place: &str, what: impl Into<String>) {
        if self.issues.len() < MOST {
            self.issues.push(Issue { place: place.to_string(), what: what.into() });
        }
    }

    fn region(&mut self, region: &Region, depth: usize) {
        if region.blocks.len() != 1 {
            self.issue(&region.label, format!("{} blocks, expected one", region.blocks.len()));
        }
        for block in &region.blocks {
            self.block(block, depth);
        }
    }

    fn block(&mut self, block: &Block, depth: usize) {
        let mut own = Vec::new();
        let keywords = block.kwargs.iter().flatten().map(|(_, value)| value);
        for arg in block.args.iter().chain(keywords) {
            if arg.id.0 >= 0 {
                self.issue(
                    &block.label,
                    format!("argument {} has an id of results; arguments count down", arg.id),
                );
            }
            self.define(&block.label, arg.id, &arg.ty, &mut own);
        }
        for (at, op) in block.ops.iter().enumerate() {
            let place = format!("op {} ({})", self.count, op.place());
            self.count += 1;
            self.operands(&place, op);
            let last = at + 1 == block.ops.len();
            if op.is("cf", "yield") != (last && depth > 0) {
                let what = if last { "a region must end in cf.yield" } else { "cf.yield must end a region" };
                self.issue(&place, what);
            }
            self.form(&place, op);
            for result in &op.results {
                if result.id.0 <= 0 {
                    self.issue(
                        &place,
                        format!("result {} has no id of results; these count up from 1", result.id),
                    );
                }
                self.define(&place, result.id, &result.ty, &mut own);
            }
            for region in &op.regions {
                self.region(region, depth + 1);
            }
        }
        for id in own {
            self.visible.remove(&id);
        }
    }

    fn define(&mut self, place: &str, id: ValueId, ty: &Type, own: &mut Vec<ValueId>) {
        if !self.defined.insert(id) {
            self.issue(place, format!("value {id} is defined twice"));
        }
        if let Some(what) = malformed(ty) {
            self.issue(place, format!("value {id}: {what}"));
        }
        self.visible.insert(id, ty.clone());
        own.push(id);
    }

    fn operands(&mut self, place: &str, op: &Op) {
        for (at, id) in op.operands.iter().enumerate() {
            if !id.is_absent() && !self.visible.contains_key(id) {
                let what = match self.defined.contains(id) {
                    true => format!("operand {at} is {id}, which cannot be seen here"),
                    false => format!("operand {at} is {id}, which is not defined before"),
                };
                self.issue(place, what);
            }
        }
    }

    fn form(&mut self, place: &str, op: &Op) {
        self.result_attrs(place, op);
        match op.parts() {
            ("builtin", "parameter") => {}
            ("builtin", "combine") => self.combine(place, op),
            ("builtin", "split") => self.split(place, op),
            ("builtin", "slice" | "set_parameter" | "shadow_output" | "constant") => {}
            ("cf", "yield") => {}
            ("pd_op", "if") => self.branch(place, op),
            ("pd_op", "while") => self.repeat(place, op),
            ("pd_op", "pylayer") => self.layer(place, op),
            ("pd_op", name) => match ops::signature(name) {
                Some(signature) => self.signature(place, op, signature),
                None => self.issue(place, "this op is not known; it can be kept, not checked or run"),
            },
            ("builtin" | "cf", _) => self.issue(place, "this op is not known in Paddle's own dialect"),
            // Other dialects are carried as they are.
            _ => {}
        }
    }

    fn signature(&mut self, place: &str, op: &Op, signature: &Signature) {
        let (want, found) = (signature.operands.len(), op.operands.len());
        if want != found {
            self.issue(place, format!("{found} operands, expected {want}: {}", listed(&signature.operands)));
        }
        for ((name, optional), id) in signature.operands.iter().zip(&op.operands) {
            if id.is_absent() && !optional {
                self.issue(place, format!("operand {name} is left out"));
            }
        }
        let (want, found) = (signature.results.len(), op.results.len());
        if want != found {
            self.issue(place, format!("{found} results, expected {want}: {}", signature.results.join(", ")));
        }
        if !op.regions.is_empty() {
            self.issue(place, "this op has no regions");
        }
        for what in attrs::issues(op, signature) {
            self.issue(place, what);
        }
    }

    fn result_attrs(&mut self, place: &str, op: &Op) {
        for attr in op.result_attrs.iter().flatten() {
            let flags = attr.value.items().filter(|items| items.iter().all(|item| item.as_bool().is_some()));
            if flags.is_none_or(|flags| flags.len() != op.results.len()) {
                let what = format!("attribute {} of the results is not one truth value for each", attr.name);
                self.issue(place, what);
            }
        }
    }

    fn combine(&mut self, place: &str, op: &Op) {
        let types: Vec<Type> = op.operands.iter().filter_map(|id| self.visible.get(id).cloned()).collect();
        let declared = op.results.first().and_then(|value| vector_types(&value.ty));
        if op.results.len() != 1 || declared.is_none_or(|declared| declared != types) {
            self.issue(place, "the result is not the list of its operands' types");
        }
    }

    fn split(&mut self, place: &str, op: &Op) {
        let list = op.operands.first().and_then(|id| self.visible.get(id)).and_then(|ty| vector_types(ty));
        let results: Vec<Type> = op.results.iter().map(|value| value.ty.clone()).collect();
        if op.operands.len() != 1 || list.is_none_or(|list| list != results) {
            self.issue(place, "the results are not the types of its operand's list");
        }
    }

    fn branch(&mut self, place: &str, op: &Op) {
        if op.operands.len() != 1 || op.regions.len() != 2 {
            self.issue(place, "an `if` has one operand and two regions");
        }
        for region in &op.regions {
            self.yields(place, region, op.results.len(), 0);
        }
    }

    fn repeat(&mut self, place: &str, op: &Op) {
        if op.operands.is_empty() || op.regions.len() != 1 || op.results.len() + 1 != op.operands.len() {
            self.issue(place, "a `while` has a condition, as many values as results, and one region");
        }
        for region in &op.regions {
            self.yields(place, region, op.results.len() + 1, op.results.len());
        }
    }

    /// What a layer of the user's own computes; its block sees the operands themselves, or takes them.
    fn layer(&mut self, place: &str, op: &Op) {
        let [region] = op.regions.as_slice() else {
            return self.issue(place, "a `pylayer` has one region, which computes its results");
        };
        let takes = region.blocks.first().is_some_and(|block| !block.args.is_empty());
        self.yields(place, region, op.results.len(), if takes { op.operands.len() } else { 0 });
    }

    fn yields(&mut self, place: &str, region: &Region, count: usize, args: usize) {
        for block in &region.blocks {
            let passed = block.ops.last().filter(|op| op.is("cf", "yield")).map(|op| op.operands.len());
            if passed != Some(count) {
                self.issue(place, format!("block {} must pass on {count} values", block.label));
            }
            if block.args.len() != args {
                self.issue(
                    place,
                    format!("block {} takes {} values, expected {args}", block.label, block.args.len()),
                );
            }
        }
    }

    /// Names of parameters and inputs, and columns of outputs.
    fn names(&mut self, program: &Program) {
        let mut seen = HashSet::new();
        for op in program.block().into_iter().flat_map(|block| &block.ops) {
            let name = match &op.parameter {
                Some(parameter) => Some(parameter.name.to_string()),
                None if op.is("pd_op", "data") => {
                    op.attr("name").and_then(|name| name.as_text()).map(str::to_string)
                }
                None => None,
            };
            if let Some(name) = name
                && !seen.insert(name.clone())
            {
                self.issue(&op.place(), format!("name \"{name}\" is given twice"));
            }
        }
        let ops = program.block().into_iter().flat_map(|block| &block.ops);
        let fetches = ops.filter(|op| op.is("pd_op", "fetch"));
        let mut columns: Vec<i64> = fetches.filter_map(|op| op.attr("col")?.as_int()).collect();
        columns.sort_unstable();
        if !columns.iter().enumerate().all(|(at, column)| at as i64 == *column) {
            self.issue("pd_op.fetch", format!("outputs have columns {columns:?}, expected each once from 0"));
        }
    }
}

fn listed(operands: &[(&str, bool)]) -> String {
    operands.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
