//! From a rule and the layouts that inputs have to the layouts that they should have.

use super::choice::{Choice, Place, Role};
use super::price::Priced;
use super::{FactorId, Prefer, Rule, search};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::mesh::Mesh;
use crate::route::{Cost, Route};
use crate::shape::Shape;
use smallvec::SmallVec;

/// An input as it stands.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// How it lies.
    pub layout: &'a Layout,
    /// Bytes of one element.
    pub size: usize,
}

/// The layouts of one op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What each input should have.
    pub inputs: Vec<Layout>,
    /// What each output gets.
    pub outputs: Vec<Layout>,
    /// Price of bringing the inputs there.
    pub cost: Cost,
}

/// The cheapest layouts under which the local kernel gives the right answer.
///
/// All inputs lie on one mesh. `outputs` are the global shapes and the bytes of one element. Where the inputs
/// agree nothing moves: cut factors stay cut, and reduced ones leave pending outputs. Otherwise the fewest bytes
/// win, counting also what it takes to bring the outputs to where they are expected: each axis on the cut that
/// comes first when the inputs are asked in turn ([`Prefer`]), with no new pending reductions. So a reduction goes
/// through an op when that makes it no dearer, and an axis moves to another factor only when that pays for itself.
/// Equal prices are decided by the bytes sent now, then by the memory of the outputs, then by the order of asking.
///
/// ```
/// use planaria_layout::rule::{Operand, Rule, decide};
/// use planaria_layout::{Layout, Reduce, Shape};
///
/// let mut rule = Rule::default(); // mk,kn->mn
/// let (m, k, n) = (rule.free(8), rule.reduced(6, Reduce::Sum), rule.free(4));
/// rule.input(&[Some(m), Some(k)]);
/// rule.input(&[Some(k), Some(n)]);
/// rule.output(&[Some(m), Some(n)]);
///
/// let x: Layout = "[8,6] @ dp:S0 tp:S1 on dp=2 tp=2".parse()?;
/// let w: Layout = "[6,4] @ dp:R tp:S0 on dp=2 tp=2".parse()?;
/// let inputs = [Operand { layout: &x, size: 4 }, Operand { layout: &w, size: 4 }];
/// let decision = decide(&rule, &inputs, &[(&Shape::new(&[8, 4])?, 4)])?;
/// assert_eq!(decision.inputs, [x, w]);
/// assert_eq!(decision.outputs[0].to_string(), "[8,4] @ dp:S0 tp:P(sum) on dp=2 tp=2");
/// # Ok::<(), planaria_layout::Error>(())
/// ```
pub fn decide(rule: &Rule, inputs: &[Operand<'_>], outputs: &[(&Shape, usize)]) -> Result<Decision> {
    let Some(first) = inputs.first() else {
        return Err(Error::BadRule { reason: "an op without inputs has no mesh" });
    };
    check(rule, inputs, outputs)?;
    let mesh = first.layout.mesh();
    if let Some((choice, changed)) = agree(rule, mesh, inputs) {
        let keep = |(i, input): (usize, &Operand<'_>)| match changed.contains(&i) {
            true => choice.layout(rule, mesh, input.layout.shape(), Place::Input(i)),
            false => input.layout.clone(),
        };
        return Ok(Decision {
            inputs: inputs.iter().enumerate().map(keep).collect(),
            outputs: (0..outputs.len())
                .map(|i| choice.layout(rule, mesh, outputs[i].0, Place::Output(i)))
                .collect(),
            cost: Cost::default(),
        });
    }
    let (best, wished) =
        search::cheapest(rule, inputs, outputs).ok_or(Error::Bug("no choice suits an op"))?;
    let best = dearest_out(best, wished, inputs, outputs)?;
    let mut cost = Cost::default();
    let mut wanted = Vec::with_capacity(inputs.len());
    for (input, changed) in inputs.iter().zip(best.inputs) {
        if let Some(to) = &changed {
            cost = cost + Route::find(input.layout, to, input.size)?.cost();
        }
        wanted.push(changed.unwrap_or_else(|| input.layout.clone()));
    }
    Ok(Decision { inputs: wanted, outputs: best.outputs, cost })
}

/// The search goes by estimates; what it found must also be no dearer than what was expected.
fn dearest_out(
    best: Priced,
    wished: Option<Priced>,
    inputs: &[Operand<'_>],
    outputs: &[(&Shape, usize)],
) -> Result<Priced> {
    let Some(wished) = wished.filter(|w| w.outputs != best.outputs || w.inputs != best.inputs) else {
        return Ok(best);
    };
    let mut prices = [Cost::default(); 2];
    for (price, found) in prices.iter_mut().zip([&best, &wished]) {
        for (input, to) in inputs.iter().zip(&found.inputs) {
            if let Some(to) = to {
                *price = *price + Route::find(input.layout, to, input.size)?.cost();
            }
        }
        for ((from, to), (_, size)) in found.outputs.iter().zip(&wished.outputs).zip(outputs) {
            *price = *price + Route::find(from, to, *size)?.cost();
        }
    }
    Ok(if prices[1].bytes < prices[0].bytes { wished } else { best })
}

/// The rule is about tensors of these shapes, and all lie on one mesh.
fn check(rule: &Rule, inputs: &[Operand<'_>], outputs: &[(&Shape, usize)]) -> Result<()> {
    let bad = |reason| Err(Error::BadRule { reason });
    if rule.inputs.len() != inputs.len() || rule.outputs.len() != outputs.len() {
        return bad("it is about another number of tensors");
    }
    let mesh = inputs[0].layout.mesh();
    if let Some(other) = inputs.iter().find(|input| input.layout.mesh() != mesh) {
        return Err(Error::MixedMeshes { first: mesh.to_string(), second: other.layout.mesh().to_string() });
    }
    let shapes =
        inputs.iter().map(|input| input.layout.shape()).chain(outputs.iter().map(|&(shape, _)| shape));
    for (shape, dims) in shapes.zip(rule.inputs.iter().chain(&rule.outputs)) {
        if shape.ndim() != dims.len() {
            return bad("it is about another number of dims");
        }
        for (&len, factors) in shape.iter().zip(dims) {
            let made = factors.iter().try_fold(1usize, |all, &f| all.checked_mul(rule.factors.get(f)?.size));
            if !factors.is_empty() && made != Some(len) {
                return bad("the factors of a dim do not make up its extent");
            }
        }
    }
    Ok(())
}

/// What an axis that cuts a dim does to its factors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vote {
    pub(super) axis: usize,
    pub(super) factor: FactorId,
    pub(super) sections: usize,
}

/// Reads the cuts of a dim as cuts of its factors; an axis that does not fit in one is left out, with those inside.
pub(super) fn votes(rule: &Rule, input: usize, layout: &Layout, dim: usize) -> SmallVec<[Vote; 2]> {
    let factors = &rule.inputs[input][dim];
    let mut left: SmallVec<[usize; 4]> = factors.iter().map(|&f| rule.factors[f].size).collect();
    let mut votes = SmallVec::new();
    for split in &layout.cuts()[dim] {
        if let [factor] = factors[..] {
            votes.push(Vote { axis: split.axis, factor, sections: split.sections });
            continue;
        }
        // A cut in as many sections as the factors before have left is a cut of the next one.
        let mut repeats = 1usize;
        let before = votes.len();
        for (place, &factor) in factors.iter().enumerate() {
            let sections = split.sections / repeats.max(1);
            let exact = repeats > 0 && split.sections.is_multiple_of(repeats);
            if exact && left[place].is_multiple_of(split.size.saturating_mul(sections)) {
                left[place] /= split.size;
                votes.push(Vote { axis: split.axis, factor, sections });
                break;
            }
            repeats = repeats.saturating_mul(left[place]);
        }
        if votes.len() == before {
            // What lies inside a cut that is not kept is not kept either.
            break;
        }
    }
    votes
}

/// The choice under which nothing moves, if the inputs agree on one, and the inputs that are to be sliced.
fn agree(rule: &Rule, mesh: &Mesh, inputs: &[Operand<'_>]) -> Option<(Choice, SmallVec<[usize; 4]>)> {
    let mut choice = Choice::whole(mesh.naxes());
    for (i, input) in inputs.iter().enumerate() {
        if !input.layout.partial_axes().is_empty() {
            return None;
        }
        for dim in 0..input.layout.shape().ndim() {
            for vote in votes(rule, i, input.layout, dim) {
                let role = Role::Cut { factor: vote.factor, sections: vote.sections };
                if choice.roles[vote.axis] == Role::Whole {
                    if rule.asked > 0 && i >= rule.asked {
                        return None;
                    }
                    choice.roles[vote.axis] = role;
                    choice.order.push(vote.axis);
                } else if choice.roles[vote.axis] != role && mesh.axis_size(vote.axis) > 1 {
                    return None;
                }
            }
        }
    }
    let mut changed: SmallVec<[usize; 4]> = SmallVec::new();
    for (i, input) in inputs.iter().enumerate() {
        let counted = |axis| choice.pending(rule, axis, Place::Input(i)).is_some();
        let mut stays = rule.once.is_empty() || !(0..mesh.naxes()).any(counted);
        for (factors, have) in rule.inputs[i].iter().zip(input.layout.cuts()) {
            let want = choice.splits(rule, mesh, factors);
            // Axes that come after those already there only slice.
            if !want.starts_with(have) {
                return None;
            }
            stays &= want.len() == have.len();
        }
        if !stays {
            changed.push(i);
        }
    }
    // Putting tensors side by side looks for the cheapest cut unless all of them have the same.
    let settled = changed.is_empty() || rule.prefer != Prefer::Cheapest;
    (settled && choice.is_sound(rule, mesh)).then_some((choice, changed))
}
