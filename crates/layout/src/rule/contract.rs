//! Rules of ops that reduce dims away: reductions, products, einsum.

use super::{Cuts, DimFactors, FactorId, FactorKind, Prefer, Rule};
use crate::error::{Error, Result};
use crate::placement::Reduce;
use crate::shape::Shape;

/// `dims` of the input are reduced; the output has the others, with or without dims of 1 in place of the reduced.
pub fn reduction(input: &Shape, dims: &[usize], output: &Shape, reduce: Reduce) -> Rule {
    let mut rule = Rule::default();
    let is_reduced = |dim: usize| dims.contains(&dim);
    let kind = |dim| if is_reduced(dim) { FactorKind::Reduce(reduce) } else { FactorKind::Free };
    let factors: Vec<_> =
        input.iter().enumerate().map(|(dim, &n)| Some(rule.factor(n, kind(dim), Cuts::Any))).collect();
    rule.input(&factors);
    let kept = |dim: &usize| output.ndim() == input.ndim() || !is_reduced(*dim);
    let left: Vec<_> =
        (0..input.ndim()).filter(kept).map(|dim| factors[dim].filter(|_| !is_reduced(dim))).collect();
    rule.output(&left);
    rule
}

/// `x @ y` as in numpy: the last two dims are multiplied, those before broadcast; a 1-d `x` is a row and a 1-d `y`
/// a column, and the output lacks that dim.
pub fn matmul(x: &Shape, y: &Shape, output: &Shape) -> Rule {
    let (Some(&k), false) = (x.last(), y.is_empty()) else {
        return Rule::whole(&[x.ndim(), y.ndim()], &[output.ndim()]);
    };
    let mut rule = Rule { prefer: Prefer::Shared, ..Rule::default() };
    let inner = Some(rule.reduced(k, Reduce::Sum));
    let row = (x.ndim() > 1).then(|| rule.free(x[x.ndim() - 2]));
    let column = (y.ndim() > 1).then(|| rule.free(y[y.ndim() - 1]));
    let matrix = usize::from(row.is_some()) + usize::from(column.is_some());
    let batch = &output[..output.ndim().saturating_sub(matrix)];
    let factors: Vec<FactorId> = batch.iter().map(|&n| rule.free(n)).collect();
    let lead = |shape: &Shape| -> Vec<Option<FactorId>> {
        let own = &shape[..shape.ndim().saturating_sub(2)];
        let skip = batch.len().saturating_sub(own.len());
        own.iter()
            .zip(batch[skip..].iter().zip(&factors[skip..]))
            .map(|(n, (m, &f))| (n == m).then_some(f))
            .collect()
    };
    let side = |shape: &Shape, last: [Option<FactorId>; 2]| {
        let mut dims = lead(shape);
        dims.extend(last.into_iter().filter(Option::is_some));
        dims
    };
    rule.input(&side(x, [row, inner]));
    rule.input(&side(y, [inner, column]));
    let both = factors.iter().map(|&f| Some(f)).chain([row, column].into_iter().filter(Option::is_some));
    let both: Vec<_> = both.collect();
    rule.output(&both);
    rule
}

/// Einstein notation, as in `bmk,bkn->bmn`: one letter per dim, `-` for a dim that is never cut, `...` for dims
/// that broadcast. Letters that an output lacks are summed. Several outputs stand behind the arrow with commas;
/// without an arrow the output has the letters that stand once, in alphabetical order. A dim of 1 broadcasts.
///
/// ```
/// use planaria_layout::{Shape, rule::einsum};
/// // The gradients of a norm over the last dim: rows are summed in that of the weight.
/// let (x, weight) = (Shape::new(&[8, 16, 32])?, Shape::new(&[32])?);
/// let rule = einsum("bs-,bs-,-->bs-,-", &[&x, &x, &weight])?;
/// assert_eq!((rule.inputs.len(), rule.outputs.len(), rule.factors.len()), (3, 2, 2));
/// # Ok::<(), planaria_layout::Error>(())
/// ```
pub fn einsum(text: &str, inputs: &[&Shape]) -> Result<Rule> {
    let bad =
        |reason: &str| Error::Parse { what: "einsum", text: text.to_string(), reason: reason.to_string() };
    let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    // The last arrow: a `-` may stand before it.
    let (left, right) = match compact.rfind("->") {
        Some(at) => (&compact[..at], Some(&compact[at + 2..])),
        None => (compact.as_str(), None),
    };
    let terms: Vec<Term> =
        left.split(',').map(Term::parse).collect::<Option<_>>().ok_or_else(|| bad("expected letters"))?;
    if terms.len() != inputs.len() {
        return Err(bad(&format!("{} inputs are given", inputs.len())));
    }
    let outputs: Vec<Term> = match right {
        Some(right) => {
            right.split(',').map(Term::parse).collect::<Option<_>>().ok_or_else(|| bad("expected letters"))?
        }
        None => vec![Term::implied(&terms)],
    };
    let mut table = Table::default();
    for (term, shape) in terms.iter().zip(inputs) {
        table.read(term, shape).map_err(bad)?;
    }
    let known = |label: &Label| {
        *label == Label::Fixed || matches!(label, Label::Dots(_)) || table.size(*label).is_some()
    };
    if !outputs.iter().all(|term| term.labels(table.dots).iter().all(known)) {
        return Err(bad("an output has a letter that no input has"));
    }
    Ok(table.rule(&terms, inputs, &outputs))
}

/// What names a dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Letter(char),
    /// So many dims from the end of the dots.
    Dots(usize),
    Fixed,
}

/// One operand: what stands before and behind the dots.
#[derive(Debug)]
struct Term {
    before: Vec<Label>,
    behind: Vec<Label>,
    dots: bool,
}

impl Term {
    fn parse(text: &str) -> Option<Term> {
        let labels = |text: &str| -> Option<Vec<Label>> {
            let label = |c: char| match c {
                '-' => Some(Label::Fixed),
                c if c.is_ascii_alphabetic() => Some(Label::Letter(c)),
                _ => None,
            };
            text.chars().map(label).collect()
        };
        match text.split_once("...") {
            Some((before, behind)) => {
                Some(Term { before: labels(before)?, behind: labels(behind)?, dots: true })
            }
            None => Some(Term { before: labels(text)?, behind: Vec::new(), dots: false }),
        }
    }

    /// The letters that stand once in all inputs.
    fn implied(inputs: &[Term]) -> Term {
        let all = || inputs.iter().flat_map(|term| term.before.iter().chain(&term.behind));
        let once = |label: &&Label| all().filter(|other| other == label).count() == 1;
        let mut letters: Vec<char> = all()
            .filter(once)
            .filter_map(|l| if let Label::Letter(c) = l { Some(*c) } else { None })
            .collect();
        letters.sort_unstable();
        let behind = letters.into_iter().map(Label::Letter).collect();
        Term { before: Vec::new(), behind, dots: inputs.iter().any(|term| term.dots) }
    }

    fn labels(&self, dots: usize) -> Vec<Label> {
        let dots = if self.dots { dots } else { 0 };
        let middle = (0..dots).rev().map(Label::Dots);
        self.before.iter().copied().chain(middle).chain(self.behind.iter().copied()).collect()
    }
}

/// The extents of the labels.
#[derive(Debug, Default)]
struct Table {
    sizes: Vec<(Label, usize)>,
    /// Most dims that dots stand for.
    dots: usize,
}

impl Table {
    fn size(&self, label: Label) -> Option<usize> {
        self.sizes.iter().find(|(known, _)| *known == label).map(|(_, size)| *size)
    }

    fn own_dots(term: &Term, shape: &Shape) -> Option<usize> {
        let dots = shape.ndim().checked_sub(term.before.len() + term.behind.len())?;
        (term.dots || dots == 0).then_some(dots)
    }

    fn read(&mut self, term: &Term, shape: &Shape) -> std::result::Result<(), &'static str> {
        let dots = Table::own_dots(term, shape).ok_or("the letters are not as many as the dims")?;
        self.dots = self.dots.max(dots);
        for (label, &len) in term.labels(dots).into_iter().zip(shape.iter()) {
            match self.sizes.iter_mut().find(|(known, _)| *known == label) {
                _ if label == Label::Fixed => {}
                None => self.sizes.push((label, len)),
                Some((_, size)) if *size == 1 => *size = len,
                Some((_, size)) if *size == len || len == 1 => {}
                Some(_) => return Err("dims with one letter have different extents"),
            }
        }
        Ok(())
    }

    fn rule(&self, inputs: &[Term], shapes: &[&Shape], outputs: &[Term]) -> Rule {
        let mut rule = Rule::default();
        let results: Vec<Vec<Label>> = outputs.iter().map(|term| term.labels(self.dots)).collect();
        for &(label, size) in &self.sizes {
            let everywhere = results.iter().all(|labels| labels.contains(&label));
            let kind = if everywhere { FactorKind::Free } else { FactorKind::Reduce(Reduce::Sum) };
            rule.factor(size, kind, Cuts::Any);
        }
        let factor = |label: Label| self.sizes.iter().position(|(known, _)| *known == label);
        for (term, shape) in inputs.iter().zip(shapes) {
            let labels = term.labels(Table::own_dots(term, shape).unwrap_or(0));
            let dims = labels.into_iter().zip(shape.iter());
            let one = |(label, &len): (Label, &usize)| factor(label).filter(|&f| rule.factors[f].size == len);
            let dims: Vec<DimFactors> = dims.map(|dim| one(dim).into_iter().collect()).collect();
            rule.inputs.push(dims);
        }
        for labels in results {
            rule.outputs.push(labels.into_iter().map(|label| factor(label).into_iter().collect()).collect());
        }
        rule
    }
}
