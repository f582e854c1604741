//! Compiling: a parsed text and two catalogs become a checked mapping.

use crate::action::actions;
use crate::ast::Program;
use crate::catalog::{Catalog, Tensor};
use crate::error::{Error, Fault, Log, Problem, Report, Result, Span, closest};
use crate::eval::Evaluation;
use crate::expand::{Direction, expand};
use crate::graph::{Graph, VersionId};
use crate::mapping::{Mapping, Target};
use crate::node::NodeId;
use crate::options::Options;
use crate::pattern::NameId;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

impl Program {
    /// The mapping from `sources` to `targets`. Without targets, everything that is assigned and not read
    /// again is made, and sources that no statement mentions pass through.
    ///
    /// Every target must be assigned, declared as not loaded (`_ -> name`) or have a source of the same name,
    /// with exactly its shape and element type. All mistakes are reported at once.
    pub fn compile(
        &self,
        sources: &Catalog,
        targets: Option<&Catalog>,
        options: &Options,
    ) -> Result<Mapping> {
        self.build(Direction::Forward, sources, targets, options)
    }

    /// The mapping back: from the tensors on the right (`model`) to those on the left. `foreign` are the
    /// tensors to make, when they are known; without them, concatenations are cut into equal parts unless
    /// `sizes` says otherwise, and casts need `src_dtype`.
    pub fn compile_reverse(
        &self,
        model: &Catalog,
        foreign: Option<&Catalog>,
        options: &Options,
    ) -> Result<Mapping> {
        self.build(Direction::Reverse, model, foreign, options)
    }

    fn build(
        &self,
        direction: Direction,
        given: &Catalog,
        far: Option<&Catalog>,
        options: &Options,
    ) -> Result<Mapping> {
        let mut log = Log::default();
        self.warnings.iter().for_each(|warning| log.warn(warning.clone()));
        let actions = actions(self, options, &mut log);
        let graph = Graph::new(expand(self, direction, given, far, options, &mut log));
        let mut evaluation = Evaluation::new(self, (&actions, &graph), (given, far), options, &mut log);
        evaluation.run(direction);
        let mut outputs = Outputs { evaluation, direction, targets: Vec::new() };
        outputs.collect();
        let Outputs { evaluation, targets, .. } = outputs;
        let nodes = evaluation.nodes;
        let report = |problems: Vec<Problem>| Report::new(&self.text, problems);
        if !log.errors.is_empty() {
            return Err(Error::Refused(report(log.errors)));
        }
        let (left_out, declared) = match direction {
            Direction::Forward => (&graph.dropped, &graph.absent),
            Direction::Reverse => (&graph.absent, &graph.dropped),
        };
        let sorted = |names: &HashSet<NameId>| {
            let mut names: Vec<Arc<str>> = names.iter().map(|&name| graph.names.text(name).clone()).collect();
            names.sort();
            names
        };
        let (dropped, absent) = (sorted(left_out), sorted(declared));
        Ok(Mapping {
            sources: given.iter().map(|(name, tensor)| (name.clone(), tensor.clone())).collect(),
            by_name: targets.iter().enumerate().map(|(index, target)| (target.name.clone(), index)).collect(),
            targets,
            nodes,
            dropped,
            absent,
            warnings: report(log.warnings),
        })
    }
}

/// Chooses what a mapping makes and checks it against what is wanted.
struct Outputs<'a> {
    evaluation: Evaluation<'a>,
    direction: Direction,
    targets: Vec<Target>,
}

impl Outputs<'_> {
    fn collect(&mut self) {
        let made = self.made();
        match self.evaluation.far {
            Some(wanted) => {
                for (name, tensor) in wanted.iter() {
                    self.wanted(name, tensor, &made);
                }
            }
            None => self.open(made),
        }
        self.evaluation.unneeded();
    }

    /// The versions statements offer as results: the last of each assigned name, or, backwards, the first of
    /// each name that is read.
    fn made(&self) -> HashMap<NameId, VersionId> {
        let graph = self.evaluation.graph;
        let versions = graph.versions.iter().enumerate();
        let result = |(id, version): (VersionId, &crate::graph::Version)| {
            let is_result = match self.direction {
                Direction::Forward => version.maker.is_some() && graph.is_last(id),
                Direction::Reverse => version.maker.is_none(),
            };
            is_result.then_some((version.name, id))
        };
        versions.filter_map(result).collect()
    }

    /// A target that is asked for.
    fn wanted(&mut self, name: &Arc<str>, tensor: &Tensor, made: &HashMap<NameId, VersionId>) {
        let graph = self.evaluation.graph;
        let id = graph.names.find(name);
        let (declared, left_out) = match self.direction {
            Direction::Forward => (&graph.absent, &graph.dropped),
            Direction::Reverse => (&graph.dropped, &graph.absent),
        };
        let is_in = |set: &HashSet<NameId>| id.is_some_and(|id| set.contains(&id));
        let (declared, left_out) = (is_in(declared), is_in(left_out));
        let version = id.and_then(|id| made.get(&id).copied());
        if let Some(version) = version {
            let span = self.span(version);
            match self.evaluation.values[version] {
                Some(node) => {
                    self.check(name, tensor, node, span);
                    self.push(name, tensor.clone(), Some(node));
                }
                None => self.unmade(version),
            }
            return;
        }
        if declared {
            return self.push(name, tensor.clone(), None);
        }
        // Backwards, a model tensor that statements assign is not the foreign one of the same name.
        let taken =
            self.direction == Direction::Reverse && id.is_some_and(|id| graph.last[id as usize].is_some());
        match self.evaluation.source(name).filter(|_| !taken) {
            Some(_) if left_out => self.miss(Fault::Dropped { name: name.to_string() }, None),
            Some(node) => {
                self.check(name, tensor, node, None);
                self.push(name, tensor.clone(), Some(node));
            }
            None if graph.blind || is_in(&graph.spoiled) => {}
            None => {
                let few = self.evaluation.log.errors.len() < 16;
                let known = self.evaluation.given.names().iter().filter(|_| few).map(|name| &**name);
                let closest = closest(name, known);
                self.miss(Fault::Unassigned { name: name.to_string(), closest }, None);
            }
        }
    }

    /// All results when nothing in particular is asked for.
    fn open(&mut self, made: HashMap<NameId, VersionId>) {
        let graph = self.evaluation.graph;
        let forward = self.direction == Direction::Forward;
        let left_out = if forward { &graph.dropped } else { &graph.absent };
        for name in self.evaluation.given.names() {
            let id = graph.names.find(name);
            let version = id.and_then(|id| graph.last[id as usize]);
            // Touched tensors are what statements say they are.
            let touched = version.is_some() || id.is_some_and(|id| left_out.contains(&id));
            if let Some(node) = (!touched).then(|| self.evaluation.source(name)).flatten() {
                self.push_node(name, node);
            }
        }
        let mut made: Vec<VersionId> = made.into_values().collect();
        made.sort_unstable();
        for version in made {
            let used_up = !graph.versions[version].readers.is_empty();
            if forward && (used_up || graph.dropped_versions.contains(&version)) {
                continue;
            }
            match self.evaluation.values[version] {
                Some(node) => self.push_node(&graph.names.text(graph.versions[version].name).clone(), node),
                None => self.unmade(version),
            }
        }
    }

    /// A target that could not be made; the reason was found before, or is that nothing gives it back.
    fn unmade(&mut self, version: VersionId) {
        self.evaluation.needed();
        if self.evaluation.log.errors.is_empty() {
            let fault = Fault::NotKept { name: self.evaluation.graph.name(version).to_string() };
            self.miss(fault, self.span(version));
        }
    }

    fn push_node(&mut self, name: &Arc<str>, node: NodeId) {
        let node_data = self.evaluation.nodes.get(node);
        let tensor = Tensor::made(node_data.shape.clone(), node_data.dtype);
        self.push(name, tensor, Some(node));
    }

    fn push(&mut self, name: &Arc<str>, tensor: Tensor, node: Option<NodeId>) {
        self.targets.push(Target { name: name.clone(), tensor, node });
    }

    fn miss(&mut self, fault: Fault, span: Option<Span>) {
        self.evaluation.log.error(Problem { fault, span, more: 0 });
    }

    /// A target has the shape and element type of what it is assigned.
    fn check(&mut self, name: &Arc<str>, tensor: &Tensor, node: NodeId, span: Option<Span>) {
        let made = self.evaluation.nodes.get(node);
        if made.shape != *tensor.shape() {
            let (expected, found) = (tensor.shape().to_string(), made.shape.to_string());
            return self.miss(Fault::TargetShape { name: name.to_string(), expected, found }, span);
        }
        if let (Some(expected), Some(found)) = (tensor.dtype(), made.dtype)
            && expected != found
        {
            self.miss(Fault::TargetDType { name: name.to_string(), expected, found }, span);
        }
    }

    /// Where the statement that makes a version names it.
    fn span(&self, version: VersionId) -> Option<Span> {
        let graph = self.evaluation.graph;
        let forward = self.direction == Direction::Forward;
        let version_data = &graph.versions[version];
        let number = if forward { version_data.maker? } else { *version_data.readers.first()? };
        let step = &graph.moves[number];
        let statement = &self.evaluation.program.statements[step.statement];
        let (places, names) =
            if forward { (&step.writes, &statement.right) } else { (&step.reads, &statement.left) };
        places.iter().find(|p| p.version == Some(version)).map(|p| names[p.from].span)
    }
}
