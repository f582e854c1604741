//! Names under which the reference lists what it makes, where it is asked for everything and they are not ours.

use super::case::Case;
use anyhow::Result;
use planaria_aoa::{Program, Statement};
use std::collections::{BTreeMap, BTreeSet};

/// How the names of an answer are read.
#[derive(Debug, Default)]
pub(super) struct Terms {
    /// Our names of tensors that it lists under the name they had before.
    renamed: BTreeMap<String, String>,
    /// Tensors that it lists and we do not.
    extra: BTreeSet<String>,
    /// Why the names differ, if they do.
    pub(super) reason: Option<&'static str>,
}

impl Terms {
    /// What the statements of a case do to the names of its answer.
    pub(super) fn of(case: &Case) -> Result<Terms> {
        let mut terms = Terms::default();
        if case.destination.is_some() {
            return Ok(terms);
        }
        let shown = if case.expanded.is_empty() { &case.statements } else { &case.expanded };
        let program = Program::from_statements(shown)?;
        let mut steps: Vec<&Statement> = program.statements().iter().collect();
        if case.reverse {
            steps.reverse();
        }
        let mut made = BTreeSet::new();
        for step in steps {
            let (read, assigned) =
                if case.reverse { (&step.right, &step.left) } else { (&step.left, &step.right) };
            let (read, assigned): (Vec<&str>, Vec<&str>) = (
                read.iter().map(|n| n.base.as_str()).collect(),
                assigned.iter().map(|n| n.base.as_str()).collect(),
            );
            terms.step((&read, &assigned), step, &made);
            made.extend(assigned.iter().map(|name| name.to_string()));
        }
        let given = |name: &str| case.source.iter().any(|shard| shard.key == name);
        terms.extra.retain(|name| !given(name) && case.outputs.contains_key(name));
        terms.renamed.retain(|name, _| case.outputs.contains_key(name));
        if terms.extra.is_empty() && terms.renamed.is_empty() {
            terms.reason = None;
        }
        Ok(terms)
    }

    fn step(&mut self, (read, assigned): (&[&str], &[&str]), step: &Statement, made: &BTreeSet<String>) {
        if let ([name], ["_"]) = (read, assigned) {
            if made.contains(*name) {
                self.extra.insert(name.to_string());
                self.reason = Some("it lists what was made and dropped");
            }
            return;
        }
        for name in assigned {
            self.renamed.remove(*name);
            self.extra.remove(*name);
            // Assigning our name anew does not take away the one it kept.
            let kept: Vec<String> = self
                .renamed
                .iter()
                .filter(|(_, ours)| ours == name)
                .map(|(theirs, _)| theirs.clone())
                .collect();
            kept.iter().for_each(|theirs| _ = self.renamed.remove(theirs));
            self.extra.extend(kept);
        }
        if assigned.len() > 1 && assigned.contains(&"_") {
            self.extra.insert("_".to_string());
            self.reason = Some("'_' among others is a name to it");
        }
        let idle = step.attrs.iter().all(|attr| attr.key == "axis") && !step.attrs.is_empty();
        if let ([from], [to]) = (read, assigned)
            && idle
            && *from != "_"
        {
            // A tensor that was renamed so before is still listed under its first name.
            let first = self.renamed.iter().find(|(_, ours)| ours == from).map(|(theirs, _)| theirs.clone());
            self.renamed.insert(first.unwrap_or_else(|| from.to_string()), to.to_string());
            self.reason = Some("an idle axis makes it lose the new name");
        }
    }

    /// Our name for a tensor of the answer; none for one that we do not make.
    pub(super) fn ours<'a>(&'a self, theirs: &'a str) -> Option<&'a str> {
        match self.extra.contains(theirs) {
            true => None,
            false => Some(self.renamed.get(theirs).map_or(theirs, String::as_str)),
        }
    }
}
