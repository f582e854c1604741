//! SPMD rules: how the dims of an op's inputs and outputs hang together, and the layouts that follow.
//!
//! A rule names the *factors* of an op, the letters of its einsum: `bmk, bkn -> bmn` has four. Every tensor dim
//! is made of factors, and what a mesh axis may do is said per factor. From one rule and the layouts that the
//! inputs have, [`decide`] finds the layouts that the inputs should have and those that the outputs get.

mod choice;
mod contract;
mod decide;
mod expect;
mod join;
mod pointwise;
mod price;
mod reshape;
mod search;

pub use contract::{einsum, matmul, reduction};
pub use decide::{Decision, Operand, Policy, Terms, decide, weigh};
pub use join::{concat, split};
pub use pointwise::{along, elementwise, expand, permute};
pub use price::{Price, exchanged_bytes, settlement};
pub use reshape::reshape;

use crate::placement::Reduce;
use smallvec::SmallVec;

/// A factor, by its place in [`Rule::factors`].
pub type FactorId = usize;

/// The factors of one dim, major first. None: the dim is never cut (a broadcast dim of one element, or one that
/// the kernel must see whole).
pub type DimFactors = SmallVec<[FactorId; 1]>;

/// What cutting a factor over a mesh axis means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FactorKind {
    /// Ranks work on slices. Outputs without the factor come out equal on all of them, either because they do
    /// not depend on it or because the kernel itself communicates.
    Free,
    /// Ranks work on slices, and what they give for outputs without the factor are contributions.
    Reduce(Reduce),
}

/// Which cuts of a factor the kernel can work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cuts {
    /// Any, also uneven ones and cuts by sections.
    Any,
    /// One window per rank, which may be short or empty; no sections.
    Windows,
    /// Windows of equal length.
    Even,
    /// None: every rank has all of it.
    Whole,
}

/// One index that runs through an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Factor {
    /// Its extent.
    pub size: usize,
    /// What cutting it means.
    pub kind: FactorKind,
    /// How it may be cut.
    pub cuts: Cuts,
}

/// Inputs through which pending reductions may pass to the outputs, all at once.
///
/// For `x + y` the sum of contributions may stay pending when both are pending (a whole input can be made pending
/// for nothing); for `x * y` through either one, not through both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Through {
    /// The inputs, by place.
    pub inputs: SmallVec<[usize; 2]>,
    /// The outputs that become pending; the others come out equal on all ranks.
    pub outputs: SmallVec<[usize; 2]>,
    /// The reductions that the op commutes with.
    pub reduces: &'static [Reduce],
}

/// The reductions that linear ops commute with.
pub const LINEAR: &[Reduce] = &[Reduce::Sum, Reduce::Avg];

/// The reductions that increasing functions commute with.
pub const INCREASING: &[Reduce] = &[Reduce::Max, Reduce::Min];

/// How the dims of an op's tensors hang together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The factors.
    pub factors: Vec<Factor>,
    /// Per input and dim, the factors it is made of.
    pub inputs: Vec<Vec<DimFactors>>,
    /// Per output and dim, the factors it is made of.
    pub outputs: Vec<Vec<DimFactors>>,
    /// Ways for pending reductions to pass.
    pub through: Vec<Through>,
    /// Inputs that count once, however many ranks contribute.
    pub once: Vec<Once>,
    /// What the kernel sends itself.
    pub exchanges: Vec<Exchange>,
    /// Which cuts outputs are expected to have where inputs disagree.
    pub prefer: Prefer,
}

/// Where the inputs of an op disagree, the cuts that its outputs are expected to have.
///
/// This is not a command: a choice that moves less wins, if that pays for bringing the outputs to where they are
/// expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Prefer {
    /// Those that come first when the inputs are asked in turn; a factor is cut as one input has it.
    #[default]
    First,
    /// Those of factors that all inputs have, then of larger ones; the cuts of several inputs add up: products.
    Shared,
    /// Those that are reached with the fewest bytes, each axis on a factor of its own: tensors put side by side.
    Cheapest,
}

/// An input that takes part in a reduction without having its factor: the bias of `x @ w + bias` when the
/// contracted factor is cut, or the tensor that `scatter_add` adds to. It becomes pending like the outputs, so
/// that it is counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    /// The reduced factor.
    pub factor: FactorId,
    /// The input, by place.
    pub input: usize,
}

/// A message of the kernel itself, where factors that it must know all of are cut: an array is reduced over the ranks
/// that cut them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The factors whose cuts make it necessary.
    pub over: DimFactors,
    /// The factors that the array runs over.
    pub dims: SmallVec<[FactorId; 4]>,
    /// Bytes of one element.
    pub size: usize,
}

impl Rule {
    /// Nothing is cut: every tensor is whole everywhere. `inputs` and `outputs` are numbers of dims.
    pub fn whole(inputs: &[usize], outputs: &[usize]) -> Rule {
        let uncut = |dims: &[usize]| dims.iter().map(|&ndim| vec![DimFactors::new(); ndim]).collect();
        Rule { inputs: uncut(inputs), outputs: uncut(outputs), ..Rule::default() }
    }

    /// A new factor.
    pub fn factor(&mut self, size: usize, kind: FactorKind, cuts: Cuts) -> FactorId {
        self.factors.push(Factor { size, kind, cuts });
        self.factors.len() - 1
    }

    /// A new factor whose slices are independent, cut in any way.
    pub fn free(&mut self, size: usize) -> FactorId {
        self.factor(size, FactorKind::Free, Cuts::Any)
    }

    /// A new factor that is summed (or otherwise reduced) away in outputs without it, cut in any way.
    pub fn reduced(&mut self, size: usize, reduce: Reduce) -> FactorId {
        self.factor(size, FactorKind::Reduce(reduce), Cuts::Any)
    }

    /// A new factor that is never cut.
    pub fn fixed(&mut self, size: usize) -> FactorId {
        self.factor(size, FactorKind::Free, Cuts::Whole)
    }

    /// Adds an input with one factor or none per dim.
    pub fn input(&mut self, dims: &[Option<FactorId>]) {
        self.inputs.push(one_each(dims));
    }

    /// Adds an output with one factor or none per dim.
    pub fn output(&mut self, dims: &[Option<FactorId>]) {
        self.outputs.push(one_each(dims));
    }

    /// Lets these reductions pass from these inputs, all at once, to every output.
    pub fn pass(&mut self, inputs: &[usize], reduces: &'static [Reduce]) {
        let outputs = (0..self.outputs.len()).collect();
        self.through.push(Through { inputs: inputs.into(), outputs, reduces });
    }

    /// Counts an input once in the reduction over a factor that it does not have.
    pub fn count_once(&mut self, factor: FactorId, input: usize) {
        self.once.push(Once { factor, input });
    }
}

impl Rule {
    /// Says that the kernel reduces an array with these factors over the ranks that cut `over`.
    pub fn exchange(&mut self, over: &[FactorId], dims: &[FactorId], size: usize) {
        self.exchanges.push(Exchange { over: over.into(), dims: dims.into(), size });
    }
}

fn one_each(dims: &[Option<FactorId>]) -> Vec<DimFactors> {
    dims.iter().map(|dim| dim.iter().copied().collect()).collect()
}

#[cfg(test)]
mod tests;
