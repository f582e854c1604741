//! Sums of products by Einstein's notation: `bij,bjk->bik`.

use crate::attributes::{Attr, Attributes};
use crate::dispatch::apply1;
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops::{self, Keep};
use planaria_layout::Reduce;
use planaria_layout::rule::{Cuts, FactorKind, LINEAR, Rule};
use smallvec::{SmallVec, smallvec};

/// The letters of one tensor's dims.
type Letters = SmallVec<[char; 6]>;

/// Products of the inputs, summed over the letters that the output lacks. No letter appears twice in one tensor, and
/// the output's letters are among the inputs'.
#[derive(Debug, Clone)]
struct Einsum {
    inputs: SmallVec<[Letters; 2]>,
    output: Letters,
}

impl Einsum {
    /// All letters, in order of appearance.
    fn letters(&self) -> Letters {
        let mut all = Letters::new();
        for &letter in self.inputs.iter().flatten() {
            if !all.contains(&letter) {
                all.push(letter);
            }
        }
        all
    }
}

impl Op for Einsum {
    fn name(&self) -> &'static str {
        "einsum"
    }

    fn attributes(&self) -> Attributes {
        let text = |letters: &Letters| Attr::Ints(letters.iter().map(|&c| i64::from(u32::from(c))).collect());
        let inputs = self.inputs.iter().map(text).collect();
        Attributes::new().with("inputs", Attr::List(inputs)).with("output", text(&self.output))
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let letters = self.letters();
        for letter in &letters {
            let kind =
                if self.output.contains(letter) { FactorKind::Free } else { FactorKind::Reduce(Reduce::Sum) };
            let sizes = self.inputs.iter().zip(inputs);
            let mut sizes =
                sizes.filter_map(|(l, spec)| Some(spec.shape[l.iter().position(|c| c == letter)?]));
            rule.factor(sizes.next().unwrap_or(1), kind, Cuts::Any);
        }
        let dims = |of: &Letters| of.iter().map(|c| letters.iter().position(|l| l == c)).collect::<Vec<_>>();
        self.inputs.iter().for_each(|of| rule.input(&dims(of)));
        rule.output(&dims(&self.output));
        (0..self.inputs.len()).for_each(|i| rule.pass(&[i], LINEAR));
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let (mut array, mut letters) = (inputs[0].clone(), self.inputs[0].clone());
        for (i, (next, own)) in inputs.iter().zip(&self.inputs).enumerate().skip(1) {
            let later =
                |c: &char| self.output.contains(c) || self.inputs[i + 1..].iter().any(|l| l.contains(c));
            (array, letters) = product((&array, &letters), (next, own), later)?;
        }
        let output = |c: &char| self.output.contains(c);
        (array, letters) = summed(&array, &letters, output)?;
        let order: Vec<i64> = self.output.iter().filter_map(|c| place(&letters, *c)).collect();
        Ok(smallvec![array.permute(&order)?])
    }

    fn saves(&self, needs: &Places) -> Saves {
        let count = self.inputs.len();
        let used = |i: usize| (0..count).any(|j| j != i && needs.has(j));
        Saves { inputs: (0..count).map(used).collect(), ..Saves::default() }
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok((0..at.inputs()).map(|_| None).collect()) };
        (0..at.inputs()).map(|i| at.needs(i).then(|| self.gradient(at, dy, i)).transpose()).collect()
    }
}

impl Einsum {
    /// The output's gradient times the other inputs; what only this input has is repeated.
    fn gradient(&self, at: &Backward<'_>, dy: &Tensor, input: usize) -> Result<Tensor> {
        let mut tensors = vec![dy.clone()];
        let mut letters: SmallVec<[Letters; 2]> = smallvec![self.output.clone()];
        for (i, own) in self.inputs.iter().enumerate().filter(|&(i, _)| i != input) {
            tensors.push(at.input(i)?);
            letters.push(own.clone());
        }
        let own = &self.inputs[input];
        let known: Letters = own.iter().copied().filter(|c| letters.iter().any(|l| l.contains(c))).collect();
        let op = Einsum { inputs: letters, output: known.clone() };
        let mut grad = apply1(op, &tensors.iter().collect::<Vec<_>>())?;
        for (dim, _) in own.iter().enumerate().filter(|(_, c)| !known.contains(c)) {
            grad = grad.unsqueeze(dim as i64)?;
        }
        grad.broadcast_to(&at.input_spec(input).shape)
    }
}

fn place(letters: &[char], letter: char) -> Option<i64> {
    letters.iter().position(|&c| c == letter).map(|at| at as i64)
}

/// Letters that nothing needs any more are summed.
fn summed(x: &Array, letters: &Letters, needed: impl Fn(&char) -> bool) -> Result<(Array, Letters)> {
    let gone: Vec<i64> = (0..letters.len()).filter(|&d| !needed(&letters[d])).map(|d| d as i64).collect();
    if gone.is_empty() {
        return Ok((x.clone(), letters.clone()));
    }
    Ok((x.sum(&gone, Keep::No)?, letters.iter().copied().filter(|c| needed(c)).collect()))
}

/// One product of two operands as a batch of matrix products.
fn product(
    (a, of_a): (&Array, &Letters),
    (b, of_b): (&Array, &Letters),
    later: impl Fn(&char) -> bool,
) -> Result<(Array, Letters)> {
    let (a, of_a) = summed(a, of_a, |c| later(c) || of_b.contains(c))?;
    let (b, of_b) = summed(b, of_b, |c| later(c) || of_a.contains(c))?;
    let shared = |keep: bool| {
        of_a.iter().copied().filter(|c| of_b.contains(c) && later(c) == keep).collect::<Letters>()
    };
    let (batch, inner) = (shared(true), shared(false));
    let rows: Letters = of_a.iter().copied().filter(|c| !of_b.contains(c)).collect();
    let columns: Letters = of_b.iter().copied().filter(|c| !of_a.contains(c)).collect();
    let left = matrices(&a, &of_a, [&batch, &rows, &inner])?;
    let right = matrices(&b, &of_b, [&batch, &inner, &columns])?;
    let letters: Letters = batch.iter().chain(&rows).chain(&columns).copied().collect();
    let size = |c: &char| match (place(&of_a, *c), place(&of_b, *c)) {
        (Some(d), _) => a.shape()[d as usize],
        (None, Some(d)) => b.shape()[d as usize],
        (None, None) => 1,
    };
    let shape: Vec<usize> = letters.iter().map(size).collect();
    Ok((ops::matmul(&left, &right)?.reshape(&shape)?, letters))
}

/// An operand as `[batch, rows, columns]`.
fn matrices(x: &Array, letters: &Letters, groups: [&Letters; 3]) -> Result<Array> {
    let order: Vec<i64> = groups.iter().flat_map(|g| g.iter()).filter_map(|&c| place(letters, c)).collect();
    let moved = x.permute(&order)?;
    let mut sizes = moved.shape().iter();
    let shape = groups.map(|g| g.iter().filter_map(|_| sizes.next()).product::<usize>());
    Ok(moved.reshape(&shape)?)
}

/// An expression taken apart.
struct Parsed {
    inputs: Vec<Vec<char>>,
    output: Vec<char>,
}

fn refuse<T>(message: String) -> Result<T> {
    Err(Error::Argument { op: "einsum", message })
}

/// Reads `text`; `...` stands for the dims that are not named, written as private letters counted from the back.
fn parse(text: &str, ndims: &[usize]) -> Result<Parsed> {
    let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match plain.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (plain.as_str(), None),
    };
    let parts: Vec<&str> = left.split(',').collect();
    if parts.len() != ndims.len() {
        return refuse(format!("`{text}` is about {} operands, but {} are given", parts.len(), ndims.len()));
    }
    let mut most = 0;
    let mut inputs = Vec::new();
    for (part, &ndim) in parts.iter().zip(ndims) {
        let named = part.replace("...", "").chars().count();
        let hidden = ndim.checked_sub(named).filter(|&h| part.contains("...") || h == 0);
        let Some(hidden) = hidden else {
            return refuse(format!("`{part}` of `{text}` does not fit {ndim} dims"));
        };
        most = most.max(hidden);
        inputs.push(letters_of(text, part, hidden)?);
    }
    let output = match right {
        Some(right) => letters_of(text, right, most)?,
        None => {
            let all: Vec<char> = inputs.iter().flatten().copied().collect();
            let mut once: Vec<char> =
                all.iter().copied().filter(|c| all.iter().filter(|o| o == &c).count() == 1).collect();
            once.sort_unstable();
            let mut output: Vec<char> = (0..most).rev().map(hidden_letter).collect();
            once.retain(|c| c.is_alphabetic());
            output.extend(once);
            output
        }
    };
    for (i, c) in output.iter().enumerate() {
        if output[..i].contains(c) || !inputs.iter().any(|l| l.contains(c)) {
            return refuse(format!("`{c}` appears twice in the output of `{text}`, or in no operand"));
        }
    }
    Ok(Parsed { inputs, output })
}

/// The letter of the unnamed dim that is `from_back` places before the last of them.
fn hidden_letter(from_back: usize) -> char {
    char::from_u32(0xE000 + from_back as u32).unwrap_or('\u{F8FF}')
}

fn letters_of(text: &str, part: &str, hidden: usize) -> Result<Vec<char>> {
    let dots: String = (0..hidden).rev().map(hidden_letter).collect();
    let letters: Vec<char> = part.replacen("...", &dots, 1).chars().collect();
    match letters.iter().find(|c| !c.is_ascii_alphabetic() && !('\u{E000}'..='\u{F8FF}').contains(c)) {
        Some(c) => refuse(format!("`{c}` in `{text}` is not a letter")),
        None => Ok(letters),
    }
}

/// A letter that appears twice in one operand is the diagonal: a product with an identity matrix.
fn without_repeats(parsed: &mut Parsed, tensors: &mut Vec<Tensor>) -> Result<()> {
    let mut fresh = 0;
    for i in 0..parsed.inputs.len() {
        for d in 1..parsed.inputs[i].len() {
            let letter = parsed.inputs[i][d];
            if parsed.inputs[i][..d].contains(&letter) {
                let other = char::from_u32(0xF000 + fresh).unwrap_or('\u{F8FF}');
                fresh += 1;
                parsed.inputs[i][d] = other;
                let size = tensors[i].shape()[d];
                parsed.inputs.push(vec![letter, other]);
                let eye = Array::eye(size, size, tensors[i].dtype())?;
                tensors.push(Tensor::new(eye.to(tensors[i].local().device())?));
            }
        }
    }
    Ok(())
}

/// Equal letters have equal sizes; unnamed dims of 1 are taken away, so that they broadcast.
fn check_sizes(text: &str, parsed: &mut Parsed, tensors: &mut [Tensor]) -> Result<()> {
    let mut sizes: Vec<(char, usize)> = Vec::new();
    for (letters, tensor) in parsed.inputs.iter().zip(tensors.iter()) {
        for (&c, &n) in letters.iter().zip(tensor.shape().iter()) {
            match sizes.iter_mut().find(|(known, _)| *known == c) {
                None => sizes.push((c, n)),
                Some((_, size)) if *size == n => {}
                Some((_, size)) if !c.is_alphabetic() && (*size == 1 || n == 1) => *size = (*size).max(n),
                Some((_, size)) => return refuse(format!("`{c}` of `{text}` is {size} and {n}")),
            }
        }
    }
    for (letters, tensor) in parsed.inputs.iter_mut().zip(tensors) {
        let wide = |c: char| sizes.iter().any(|&(known, size)| known == c && size != 1);
        let narrow: Vec<usize> = (0..letters.len())
            .filter(|&d| tensor.shape()[d] == 1 && !letters[d].is_alphabetic() && wide(letters[d]))
            .collect();
        if !narrow.is_empty() {
            *tensor = tensor.squeeze(&narrow.iter().map(|&d| d as i64).collect::<Vec<_>>())?;
            let mut d = 0;
            letters.retain(|_| {
                d += 1;
                !narrow.contains(&(d - 1))
            });
        }
    }
    Ok(())
}

/// Sums of products of `tensors` as `text` says: `ij,jk->ik` is a matrix product. Without `->` the output has the
/// letters that stand once, in alphabetical order; `...` stands for dims without a name, which broadcast; a letter
/// twice in one operand is its diagonal.
pub fn einsum(text: &str, tensors: &[&Tensor]) -> Result<Tensor> {
    let ndims: Vec<usize> = tensors.iter().map(|t| t.ndim()).collect();
    let mut parsed = parse(text, &ndims)?;
    let mut tensors: Vec<Tensor> = tensors.iter().map(|&t| t.clone()).collect();
    without_repeats(&mut parsed, &mut tensors)?;
    check_sizes(text, &mut parsed, &mut tensors)?;
    let inputs = parsed.inputs.iter().map(|l| l.iter().copied().collect()).collect();
    let op = Einsum { inputs, output: parsed.output.into_iter().collect() };
    apply1(op, &tensors.iter().collect::<Vec<_>>())
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    if name != "einsum" {
        return None;
    }
    let letter = |code: i64| char::from_u32(u32::try_from(code).ok()?);
    let letters = |attr: &Attr| attr.ints()?.into_iter().map(letter).collect::<Option<Letters>>();
    let inputs = at.list("inputs")?.iter().map(letters).collect::<Option<_>>()?;
    found(Einsum { inputs, output: letters(at.get("output")?)? })
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let text = draw.pick(&[
        "ij,jk->ik",
        "bij,bkj->bik",
        "ab,ab->",
        "ab,b->a",
        "a,b->ab",
        "abc,cd,bd->ad",
        "ab->b",
        "abc->ca",
    ]);
    let extents = draw.shape(26);
    let (left, right) = text.split_once("->").unwrap_or((text, ""));
    let letters = |part: &str| part.chars().collect::<Letters>();
    let op = Einsum { inputs: left.split(',').map(letters).collect(), output: letters(right) };
    let shape = |l: &Letters| l.iter().map(|&c| extents[c as usize - 'a' as usize]).collect::<Vec<_>>();
    let inputs = op.inputs.iter().map(|l| draw.normal(&shape(l))).collect::<Result<Vec<_>>>()?;
    Ok(Sample::new(op, inputs))
}
