//! What differs between two programs, op by op.

use crate::program::{Block, Op, Program, Region};
use crate::text::{attribute_text, type_text};
use std::fmt;

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The op, or the program itself.
    pub place: String,
    /// What the first has and the second has not, or the other way round.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// All differences, in the order of the ops. Numbers of values do not count where they are used alike.
pub fn diff(a: &Program, b: &Program) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut note = |place: &str, what: String| found.push(Difference { place: place.to_string(), what });
    if a.version != b.version {
        note("program", format!("version {} and {}", a.version, b.version));
    }
    if a.trainable != b.trainable {
        note("program", format!("trainable {} and {}", a.trainable, b.trainable));
    }
    regions(&a.body, &b.body, &mut found);
    found
}

fn regions(a: &Region, b: &Region, found: &mut Vec<Difference>) {
    if a.blocks.len() != b.blocks.len() {
        let what = format!("{} and {} blocks", a.blocks.len(), b.blocks.len());
        found.push(Difference { place: a.label.to_string(), what });
    }
    for (a, b) in a.blocks.iter().zip(&b.blocks) {
        blocks(a, b, found);
    }
}

/// Ops that both have stand under each other; the others are named alone.
fn blocks(a: &Block, b: &Block, found: &mut Vec<Difference>) {
    let (mut left, mut right) = (0, 0);
    while left < a.ops.len() || right < b.ops.len() {
        match (a.ops.get(left), b.ops.get(right)) {
            (Some(x), Some(y)) if alike(x, y) => {
                ops(x, y, found);
                (left, right) = (left + 1, right + 1);
            }
            (Some(x), Some(y)) => {
                // The nearer place where both continue alike decides which side has more.
                let ahead = |list: &[Op], from: usize, to: &Op| {
                    list[from..].iter().take(64).position(|op| alike(op, to))
                };
                match (ahead(&a.ops, left, y), ahead(&b.ops, right, x)) {
                    (Some(skip), other) if other.is_none_or(|other| skip <= other) => {
                        only(&a.ops[left..left + skip], "only in the first", found);
                        left += skip;
                    }
                    (_, Some(skip)) => {
                        only(&b.ops[right..right + skip], "only in the second", found);
                        right += skip;
                    }
                    _ => {
                        found.push(Difference {
                            place: x.place(),
                            what: format!("{} in the second", y.place()),
                        });
                        (left, right) = (left + 1, right + 1);
                    }
                }
            }
            (Some(x), None) => {
                only(std::slice::from_ref(x), "only in the first", found);
                left += 1;
            }
            (None, Some(y)) => {
                only(std::slice::from_ref(y), "only in the second", found);
                right += 1;
            }
            (None, None) => break,
        }
    }
}

fn only(ops: &[Op], what: &str, found: &mut Vec<Difference>) {
    found.extend(ops.iter().map(|op| Difference { place: op.place(), what: what.to_string() }));
}

fn alike(a: &Op, b: &Op) -> bool {
    let name = |op: &Op| op.parameter.as_ref().map(|parameter| parameter.name.clone());
    a.name == b.name && name(a) == name(b)
}

fn ops(a: &Op, b: &Op, found: &mut Vec<Difference>) {
    let place = a.place();
    let mut note = |what: String| found.push(Difference { place: place.clone(), what });
    if a.operands != b.operands {
        let shown = |op: &Op| op.operands.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        note(format!("operands ({}) and ({})", shown(a), shown(b)));
    }
    let types = |op: &Op| op.results.iter().map(|value| type_text(&value.ty)).collect::<Vec<_>>().join(", ");
    if types(a) != types(b) {
        note(format!("results {} and {}", types(a), types(b)));
    }
    if a.parameter != b.parameter {
        note("other flags of the parameter".to_string());
    }
    let empty = Vec::new();
    let of_results = |op: &Op| op.result_attrs.clone().unwrap_or(empty.clone());
    for (mine, theirs) in [(a.attrs.clone(), b.attrs.clone()), (of_results(a), of_results(b))] {
        for attr in &mine {
            match theirs.iter().find(|other| other.name == attr.name) {
                Some(other) if other.value == attr.value => {}
                Some(other) => note(format!(
                    "{} = {} and {}",
                    attr.name,
                    attribute_text(&attr.value),
                    attribute_text(&other.value)
                )),
                None => note(format!("{} = {} only in the first", attr.name, attribute_text(&attr.value))),
            }
        }
        for attr in theirs.iter().filter(|attr| mine.iter().all(|own| own.name != attr.name)) {
            note(format!("{} = {} only in the second", attr.name, attribute_text(&attr.value)));
        }
    }
    if a.regions.len() != b.regions.len() {
        note(format!("{} and {} regions", a.regions.len(), b.regions.len()));
    }
    for (a, b) in a.regions.iter().zip(&b.regions) {
        regions(a, b, found);
    }
}
