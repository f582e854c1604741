//! Names as a tree: parts between points, numbers in their order, equal blocks on one line.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// A tensor at the end of a branch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leaf {
    /// As in `f32[4,6]`.
    pub(super) spec: String,
    /// Its size.
    pub(super) bytes: u64,
    /// A remark: how it is cut, or its values.
    pub(super) note: String,
}

/// A line of the printed tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Branches and name.
    pub(super) name: String,
    /// Empty where no tensor ends.
    pub(super) spec: String,
    /// Bytes of the tensor, or of everything below one of several equal blocks.
    pub(super) bytes: Option<u64>,
    pub(super) note: String,
    /// How many equal blocks the line stands for.
    pub(super) count: usize,
}

/// A part of a name; whole numbers come first and in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step(String);

impl Step {
    fn number(&self) -> Option<u64> {
        let plain = self.0 == "0" || !self.0.starts_with('0');
        self.0.parse().ok().filter(|_| plain && !self.0.starts_with('+'))
    }
}

impl Ord for Step {
    fn cmp(&self, other: &Step) -> Ordering {
        let key = |step: &Step| (step.number().is_none(), step.number());
        key(self).cmp(&key(other)).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Step {
    fn partial_cmp(&self, other: &Step) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Tensors by the parts of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tree {
    leaf: Option<Leaf>,
    below: BTreeMap<Step, Tree>,
}

/// Equal neighbours: the first and last step, what follows in each name, and how many there are.
struct Run<'t> {
    first: &'t Step,
    last: &'t Step,
    rest: String,
    tree: &'t Tree,
    count: usize,
}

impl Tree {
    pub(super) fn insert(&mut self, name: &str, leaf: Leaf) {
        let mut at = self;
        for step in name.split('.') {
            at = at.below.entry(Step(step.to_string())).or_default();
        }
        at.leaf = Some(leaf);
    }

    /// Bytes of all tensors below.
    pub(super) fn bytes(&self) -> u64 {
        let below: u64 = self.below.values().map(Tree::bytes).sum();
        below + self.leaf.as_ref().map_or(0, |leaf| leaf.bytes)
    }

    /// The printed tree; with `folded` equal numbered blocks share their lines.
    pub(super) fn lines(&self, folded: bool) -> Vec<Line> {
        let mut lines = Vec::new();
        self.print(folded, "", &mut lines);
        lines
    }

    fn print(&self, folded: bool, indent: &str, lines: &mut Vec<Line>) {
        let runs = self.runs(folded);
        let last = runs.len().saturating_sub(1);
        for (number, mut run) in runs.into_iter().enumerate() {
            // The roots stand at the margin.
            let (branch, deeper) = match (indent.is_empty(), number == last) {
                (true, _) => ("", "  "),
                (false, false) => ("├ ", "│ "),
                (false, true) => ("└ ", "  "),
            };
            // `layers` above nothing but `0..23` is one line.
            let mut name = run.name();
            while run.count == 1
                && run.tree.leaf.is_none()
                && let [_] = run.tree.runs(folded)[..]
                && let Some(only) = run.tree.runs(folded).pop()
            {
                name = format!("{name}.{}", only.name());
                run = only;
            }
            let leaf = run.tree.leaf.as_ref();
            let bytes = if run.count > 1 { Some(run.tree.bytes()) } else { leaf.map(|leaf| leaf.bytes) };
            lines.push(Line {
                name: format!("{indent}{branch}{name}"),
                spec: leaf.map_or(String::new(), |leaf| leaf.spec.clone()),
                bytes,
                note: leaf.map_or(String::new(), |leaf| leaf.note.clone()),
                count: run.count,
            });
            run.tree.print(folded, &format!("{indent}{deeper}"), lines);
        }
    }

    /// The branches below, chains without a fork in one, equal numbered neighbours in one.
    fn runs(&self, folded: bool) -> Vec<Run<'_>> {
        let mut runs: Vec<Run<'_>> = Vec::new();
        for (step, tree) in &self.below {
            let (mut rest, mut tree) = (String::new(), tree);
            while let (None, 1, Some((step, only))) = (&tree.leaf, tree.below.len(), tree.below.iter().next())
            {
                rest = format!("{rest}.{}", step.0);
                tree = only;
            }
            let follows = |run: &Run<'_>| {
                let next = run.last.number().and_then(|number| number.checked_add(1));
                folded && next.is_some() && next == step.number() && run.rest == rest && run.tree == tree
            };
            match runs.last_mut().filter(|run| follows(run)) {
                Some(run) => {
                    run.last = step;
                    run.count += 1;
                }
                None => runs.push(Run { first: step, last: step, rest, tree, count: 1 }),
            }
        }
        runs
    }
}

impl Run<'_> {
    fn name(&self) -> String {
        match self.count {
            1 => format!("{}{}", self.first.0, self.rest),
            _ => format!("{}..{}{}", self.first.0, self.last.0, self.rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(names: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (name, spec) in names {
            tree.insert(name, Leaf { spec: spec.to_string(), bytes: 4, note: String::new() });
        }
        tree
    }

    fn shown(tree: &Tree, folded: bool) -> Vec<String> {
        let line = |line: Line| format!("{} {} x{}", line.name, line.spec, line.count);
        tree.lines(folded).into_iter().map(line).collect()
    }

    #[test]
    fn equal_blocks_share_their_lines_and_others_do_not() {
        let mut names = vec![("norm", "f32[2]")];
        let layers: Vec<String> = (0..12).map(|i| format!("model.layers.{i}.w")).collect();
        let biases: Vec<String> = (0..12).map(|i| format!("model.layers.{i}.b")).collect();
        for (i, (layer, bias)) in layers.iter().zip(&biases).enumerate() {
            names.push((layer, if i == 11 { "f32[3]" } else { "f32[2,2]" }));
            names.push((bias, "f32[2]"));
        }
        let tree = tree(&names);
        assert_eq!(
            shown(&tree, true),
            [
                "model.layers  x1",
                "  ├ 0..10  x11",
                "  │ ├ b f32[2] x1",
                "  │ └ w f32[2,2] x1",
                "  └ 11  x1",
                "    ├ b f32[2] x1",
                "    └ w f32[3] x1",
                "norm f32[2] x1",
            ]
        );
        assert_eq!(tree.lines(true)[1].bytes, Some(8), "of one block");
        assert_eq!(tree.lines(false).len(), 1 + 12 * 3 + 1);
        assert_eq!(tree.bytes(), 25 * 4);
    }

    #[test]
    fn a_chain_after_a_number_stays_on_one_line() {
        let tree = tree(&[("l.0.a.w", "f32[]"), ("l.1.a.w", "f32[]"), ("l.2.a.v", "f32[]")]);
        assert_eq!(shown(&tree, true), ["l  x1", "  ├ 0..1.a.w f32[] x2", "  └ 2.a.v f32[] x1"]);
    }

    #[test]
    fn a_lone_folded_block_stands_behind_its_name() {
        let tree =
            tree(&[("m.l.0.a", "f32[]"), ("m.l.0.b", "f32[]"), ("m.l.1.a", "f32[]"), ("m.l.1.b", "f32[]")]);
        assert_eq!(shown(&tree, true), ["m.l.0..1  x2", "  ├ a f32[] x1", "  └ b f32[] x1"]);
    }

    #[test]
    fn a_name_may_end_where_another_goes_on() {
        assert_eq!(shown(&tree(&[("a", "f32[]"), ("a.b", "i64[]")]), true), ["a f32[] x1", "  └ b i64[] x1"]);
    }
}
