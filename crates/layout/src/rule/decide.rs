//! From a rule and the layouts that inputs have to the layouts that they should have.

use super::choice::{Choice, Place, Role};
use super::price::{Price, Pricing};
use super::{FactorId, Prefer, Rule, search};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::mesh::Mesh;
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
    /// What that costs.
    pub price: Price,
}

/// What becomes of inputs that agree, when moving them would cost less than what their outputs then cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The fewest bytes win.
    #[default]
    Cheapest,
    /// They stay: the program has placed its tensors on purpose, and brings outputs where it wants them itself.
    Stay,
}

/// What a decision minds besides the rule and the inputs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms<'a> {
    /// What becomes of inputs that agree.
    pub policy: Policy,
    /// Where the outputs are wanted, by place, as far as that is known.
    pub wishes: &'a [Option<&'a Layout>],
}

impl Terms<'_> {
    pub(super) fn wish(&self, output: usize) -> Option<&Layout> {
        self.wishes.get(output).copied().flatten()
    }

    /// True when outputs in these layouts are where they are wanted.
    fn are_met(&self, outputs: &[Layout]) -> bool {
        outputs.iter().enumerate().all(|(i, layout)| self.wish(i).is_none_or(|wish| wish == layout))
    }
}

/// The layouts with which the whole op costs least, of those under which the local kernel gives the right answer.
///
/// All inputs lie on one mesh. `outputs` are the global shapes and the bytes of one element. The price of an op is what
/// leaves a rank to bring the inputs there, what the kernel sends itself ([`Rule::exchanges`]), and what it takes to
/// bring the outputs to where they are wanted or, where nobody says, to end their pending reductions in the cheapest
/// way. An axis does what it does in some input, lets a reduction through, does nothing or, where it cuts some input,
/// cuts another factor; an axis that cuts no input and no wanted output is not put to use.
///
/// Equal prices are decided by the cuts that the outputs are expected to have ([`Prefer`]), then by the bytes sent
/// before the outputs are there, then by their memory, then by the order of asking. Where inputs agree and nothing is
/// cheaper, nothing moves.
///
/// ```
/// use planaria_layout::rule::{Operand, Rule, Terms, decide};
/// use planaria_layout::{Layout, Reduce, Shape};
///
/// let mut rule = Rule::default(); // mk,kn->mn
/// let (m, k, n) = (rule.free(8), rule.reduced(64, Reduce::Sum), rule.free(4));
/// rule.input(&[Some(m), Some(k)]);
/// rule.input(&[Some(k), Some(n)]);
/// rule.output(&[Some(m), Some(n)]);
///
/// let x: Layout = "[8,64] @ dp:S0 tp:S1 on dp=2 tp=2".parse()?;
/// let w: Layout = "[64,4] @ dp:R tp:S0 on dp=2 tp=2".parse()?;
/// let inputs = [Operand { layout: &x, size: 4 }, Operand { layout: &w, size: 4 }];
/// let decision = decide(&rule, &inputs, &[(&Shape::new(&[8, 4])?, 4)], &Terms::default())?;
/// assert_eq!(decision.inputs, [x, w]);
/// assert_eq!(decision.outputs[0].to_string(), "[8,4] @ dp:S0 tp:P(sum) on dp=2 tp=2");
/// assert_eq!((decision.price.moved, decision.price.settled), (0, 32)); // half of a piece of 4 x 4 floats
/// # Ok::<(), planaria_layout::Error>(())
/// ```
pub fn decide(
    rule: &Rule,
    inputs: &[Operand<'_>],
    outputs: &[(&Shape, usize)],
    terms: &Terms<'_>,
) -> Result<Decision> {
    check(rule, inputs, outputs, terms)?;
    let mesh = inputs[0].layout.mesh();
    let mut pricing = Pricing::new(rule, inputs, outputs, terms);
    let agreed = agree(rule, mesh, inputs);
    let wishes = terms.wishes.iter().any(Option::is_some);
    let agreed = agreed.map(|choice| pricing.decision(&choice)).transpose()?;
    if let Some(decision) = &agreed {
        let free = decision.price.total() == 0 && terms.are_met(&decision.outputs);
        if free || terms.policy == Policy::Stay && !wishes {
            return Ok(decision.clone());
        }
    }
    // Of equals the one that moves nothing; but wanted outputs may be had for the same price with less memory.
    let (mut best, last) = if wishes { (None, agreed) } else { (agreed, None) };
    let mut better = |decision: Decision| {
        if best.as_ref().is_none_or(|best| decision.price.total() < best.price.total()) {
            best = Some(decision);
        }
    };
    for (estimate, least, choice) in search::finalists(&mut pricing) {
        // The search goes by estimates; those that come close are held against each other by their routes.
        let hopeless = estimate / 2 > least;
        if !hopeless {
            better(pricing.decision(&choice)?);
        }
    }
    last.into_iter().for_each(better);
    best.ok_or(Error::Bug("no choice suits an op"))
}

/// What was weighed for a decision: the one taken first, then the others that came into question, cheapest first. Among
/// them are the one that moves nothing, where inputs agree, and everything whole.
pub fn weigh(
    rule: &Rule,
    inputs: &[Operand<'_>],
    outputs: &[(&Shape, usize)],
    terms: &Terms<'_>,
) -> Result<Vec<Decision>> {
    let taken = decide(rule, inputs, outputs, terms)?;
    let mut pricing = Pricing::new(rule, inputs, outputs, terms);
    let agreed = agree(rule, inputs[0].layout.mesh(), inputs);
    let found = search::finalists(&mut pricing).into_iter().map(|(_, _, choice)| choice);
    let choices: Vec<Choice> = agreed.into_iter().chain(found).collect();
    let mut others = Vec::new();
    for choice in &choices {
        let other = pricing.decision(choice)?;
        if other != taken && !others.contains(&other) {
            others.push(other);
        }
    }
    others.sort_by_key(|other| other.price.total());
    others.insert(0, taken);
    Ok(others)
}

/// The rule is about tensors of these shapes, and all lie on one mesh.
fn check(rule: &Rule, inputs: &[Operand<'_>], outputs: &[(&Shape, usize)], terms: &Terms<'_>) -> Result<()> {
    let bad = |reason| Err(Error::BadRule { reason });
    if inputs.is_empty() {
        return bad("an op without inputs has no mesh");
    }
    if rule.inputs.len() != inputs.len() || rule.outputs.len() != outputs.len() {
        return bad("it is about another number of tensors");
    }
    let mesh = inputs[0].layout.mesh();
    if let Some(other) = inputs.iter().find(|input| input.layout.mesh() != mesh) {
        return Err(Error::MixedMeshes { first: mesh.to_string(), second: other.layout.mesh().to_string() });
    }
    let shapes =
        inputs.iter().map(|input| input.layout.shape()).chain(outputs.iter().map(|&(shape, _)| shape));
    for (i, &(shape, _)) in outputs.iter().enumerate() {
        if terms.wish(i).is_some_and(|wish| wish.mesh() != mesh || wish.shape() != shape) {
            return bad("an output is wanted with another shape or on another mesh");
        }
    }
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
pub(super) fn votes(rule: &Rule, place: Place, layout: &Layout, dim: usize) -> SmallVec<[Vote; 2]> {
    let factors = &rule.dims(place)[dim];
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

/// The choice under which nothing moves, if the inputs agree on one; some may be sliced.
fn agree(rule: &Rule, mesh: &Mesh, inputs: &[Operand<'_>]) -> Option<Choice> {
    let mut choice = Choice::whole(mesh.naxes());
    for (i, input) in inputs.iter().enumerate() {
        if !input.layout.partial_axes().is_empty() {
            return None;
        }
        for dim in 0..input.layout.shape().ndim() {
            for vote in votes(rule, Place::Input(i), input.layout, dim) {
                let role = Role::Cut { factor: vote.factor, sections: vote.sections };
                if choice.roles[vote.axis] == Role::Whole {
                    choice.roles[vote.axis] = role;
                    choice.order.push(vote.axis);
                } else if choice.roles[vote.axis] != role && mesh.axis_size(vote.axis) > 1 {
                    return None;
                }
            }
        }
    }
    let mut sliced = false;
    for (i, input) in inputs.iter().enumerate() {
        let counted = |axis| choice.pending(rule, axis, Place::Input(i)).is_some();
        sliced |= !rule.once.is_empty() && (0..mesh.naxes()).any(counted);
        for (factors, have) in rule.inputs[i].iter().zip(input.layout.cuts()) {
            let want = choice.splits(rule, mesh, factors);
            // Axes that come after those already there only slice.
            if !want.starts_with(have) {
                return None;
            }
            sliced |= want.len() != have.len();
        }
    }
    // Putting tensors side by side looks for the cheapest cut unless all of them have the same.
    let settled = !sliced || rule.prefer != Prefer::Cheapest;
    (settled && choice.is_sound(rule, mesh)).then_some(choice)
}
