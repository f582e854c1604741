//! The methods: what each one takes, and the rule it makes for a tensor.

mod combine;
pub(crate) mod deltas;
mod fusion;
mod lines;
mod range;
mod ranks;
mod shared;
pub(crate) mod sparsify;
#[cfg(test)]
mod tests;

pub(crate) use combine::{Ends, Linear, Slerp, Weighted, total};
pub(crate) use range::Range;

use crate::error::{Error, Result};
use crate::passes::{Blocks, Inputs};
use combine::{Karcher, ModelStock, MultiSlerp};
use deltas::{Deltas, Divide, Elect, Rescale};
use fusion::{ArceeFusion, NearSwap};
use lines::{Along, Interpolate, Lines, Stock};
use shared::{Ram, Sce};
use sparsify::{Sparsify, Stream};
use std::fmt::Debug;

/// How a tensor is made of its inputs.
pub(crate) trait Rule: Debug + Send + Sync {
    /// Where elements may be cut apart.
    fn blocks(&self) -> Blocks {
        Blocks::Any
    }
    /// Whether the result of one input is that input.
    fn is_copy(&self) -> bool {
        false
    }
    /// Looks at all elements, if it must, and says how to make any of them.
    fn prepare(&self, inputs: &Inputs) -> Result<Box<dyn Combine>>;
}

/// Makes elements of the result from those of the inputs.
pub(crate) trait Combine: Debug + Send + Sync {
    /// The elements from `first` on.
    fn combine(&self, first: usize, inputs: &[Vec<f64>], out: &mut [f64]) -> Result<()>;
}

/// A parameter of a method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) kind: SettingKind,
    pub(crate) default: Default,
}

/// What a parameter may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingKind {
    Number(Range),
    Truth,
}

/// What holds where nobody sets a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Default {
    /// It must be set.
    Required,
    /// This; truth values are 0 and 1.
    Value(f64),
    /// Nothing.
    None,
}

/// What becomes of `base_model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BaseUse {
    /// It must be given.
    Required,
    /// It may be given.
    Optional,
    /// It is an input like the others.
    Plain,
}

/// How many inputs a method takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// At least so many, the base among them.
    AtLeast(usize),
    /// So many, the base among them.
    Exactly(usize),
    /// At least so many beside the base.
    AtLeastBeside(usize),
    /// So many beside the base.
    ExactlyBeside(usize),
}

/// A method of merging.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) base: BaseUse,
    pub(crate) count: Count,
    pub(crate) per_input: &'static [Parameter],
    pub(crate) shared: &'static [Parameter],
    make: fn(&Given) -> Result<Box<dyn Rule>>,
}

/// The values of the parameters for one tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Given {
    /// Which input is the base.
    pub(crate) base: Option<usize>,
    pub(crate) shared: Vec<(&'static str, Option<f64>)>,
    /// For every input; those of the base are empty where it is not an input like the others.
    pub(crate) per_input: Vec<Vec<(&'static str, Option<f64>)>>,
    /// Sequences of random numbers, one for every input.
    pub(crate) streams: Vec<Stream>,
}

impl Given {
    fn number(&self, name: &str) -> f64 {
        lookup(&self.shared, name).unwrap_or(0.0)
    }

    fn truth(&self, name: &str) -> bool {
        self.number(name) != 0.0
    }

    fn each(&self, name: &str) -> Vec<f64> {
        self.per_input.iter().map(|given| lookup(given, name).unwrap_or(0.0)).collect()
    }

    fn others(&self) -> Vec<usize> {
        (0..self.per_input.len()).filter(|number| Some(*number) != self.base).collect()
    }
}

fn lookup(given: &[(&'static str, Option<f64>)], name: &str) -> Option<f64> {
    given.iter().find(|(other, _)| *other == name)?.1
}

impl Method {
    /// All parameters, those of inputs first.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &'static Parameter> {
        self.per_input.iter().chain(self.shared)
    }

    /// The rule for a tensor with these values; values that cannot be are refused.
    pub(crate) fn rule(&self, given: &Given) -> Result<Box<dyn Rule>> {
        (self.make)(given)
    }
}

/// A method by name.
pub(crate) fn named(name: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.name == name)
}

/// Names of all methods.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    METHODS.iter().map(|method| method.name)
}

const fn number(name: &'static str, default: f64, range: Range) -> Parameter {
    Parameter { name, kind: SettingKind::Number(range), default: Default::Value(default) }
}

const fn given(name: &'static str, default: Default) -> Parameter {
    Parameter { name, kind: SettingKind::Number(Range::Finite), default }
}

const fn truth(name: &'static str, default: bool) -> Parameter {
    Parameter { name, kind: SettingKind::Truth, default: Default::Value(if default { 1.0 } else { 0.0 }) }
}

const WEIGHT: Parameter = given("weight", Default::Required);
const T: Parameter = given("t", Default::Required);
const SCALE: Parameter = given("scale", Default::None);
const DENSITY: Parameter = number("density", 1.0, Range::Share);
const LAMBDA: Parameter = number("lambda", 1.0, Range::Finite);
const INT8: Parameter = truth("int8_mask", false);

const fn method(
    name: &'static str,
    (base, count): (BaseUse, Count),
    per_input: &'static [Parameter],
    shared: &'static [Parameter],
    make: fn(&Given) -> Result<Box<dyn Rule>>,
) -> Method {
    Method { name, base, count, per_input, shared, make }
}

const TASK: (BaseUse, Count) = (BaseUse::Required, Count::AtLeast(1));
const PAIR: (BaseUse, Count) = (BaseUse::Required, Count::Exactly(2));
const DROPPED: &[Parameter] = &[WEIGHT, DENSITY];
const NORMALIZED: &[Parameter] = &[truth("normalize", true), truth("rescale", false), LAMBDA, INT8];
const SUMMED: &[Parameter] = &[truth("normalize", false), truth("rescale", false), LAMBDA, INT8];
const RESCALED: &[Parameter] = &[truth("normalize", false), truth("rescale", true), LAMBDA, INT8];
const DELLA: &[Parameter] = &[WEIGHT, DENSITY, number("epsilon", 0.15, Range::Finite)];
const BREADCRUMBS: &[Parameter] = &[WEIGHT, DENSITY, number("gamma", 0.01, Range::Share)];

const METHODS: &[Method] = &[
    method("linear", (BaseUse::Plain, Count::AtLeast(1)), &[WEIGHT], &[truth("normalize", true)], |g| {
        Linear::rule(&g.each("weight"), g.truth("normalize"))
    }),
    method("slerp", PAIR, &[], &[T], |g| {
        Ok(Box::new(Slerp { t: g.number("t"), eps: 1e-8, parallel: 0.9995, ends: Ends::FromBase }))
    }),
    method(
        "nuslerp",
        (BaseUse::Optional, Count::ExactlyBeside(2)),
        &[WEIGHT],
        &[truth("nuslerp_flatten", true), truth("nuslerp_row_wise", false)],
        nuslerp,
    ),
    method(
        "multislerp",
        (BaseUse::Optional, Count::AtLeastBeside(1)),
        &[WEIGHT],
        &[truth("normalize_weights", true), number("eps", 1e-8, Range::Bound)],
        |g| MultiSlerp::rule(g.each("weight"), g.truth("normalize_weights"), g.number("eps")),
    ),
    method(
        "karcher",
        (BaseUse::Plain, Count::AtLeast(1)),
        &[],
        &[number("max_iter", 10.0, Range::Steps), number("tol", 1e-5, Range::Bound)],
        |g| Ok(Box::new(Karcher { steps: g.number("max_iter") as usize, tolerance: g.number("tol") })),
    ),
    method("task_arithmetic", TASK, DROPPED, SUMMED, |g| {
        deltas(g, Elect::Nobody, |_, _| Ok(Sparsify::Nothing))
    }),
    method("ties", TASK, DROPPED, NORMALIZED, |g| deltas(g, Elect::Sum, |g, i| Ok(magnitude(g, i)))),
    method("breadcrumbs", TASK, BREADCRUMBS, SUMMED, |g| deltas(g, Elect::Nobody, |g, i| Ok(outliers(g, i)))),
    method("breadcrumbs_ties", TASK, BREADCRUMBS, SUMMED, |g| {
        deltas(g, Elect::Sum, |g, i| Ok(outliers(g, i)))
    }),
    method("dare_linear", TASK, DROPPED, RESCALED, |g| deltas(g, Elect::Nobody, |g, i| Ok(random(g, i)))),
    method("dare_ties", TASK, DROPPED, RESCALED, |g| deltas(g, Elect::Sum, |g, i| Ok(random(g, i)))),
    method("della_linear", TASK, DELLA, RESCALED, |g| deltas(g, Elect::Nobody, ranked)),
    method("della", TASK, DELLA, &[truth("normalize", true), truth("rescale", true), LAMBDA, INT8], |g| {
        deltas(g, Elect::Sum, ranked)
    }),
    method("model_stock", (BaseUse::Required, Count::AtLeast(3)), &[], &[truth("filter_wise", false)], |g| {
        Ok(if g.truth("filter_wise") {
            Lines::rule(Along::Last, Box::new(Stock))
        } else {
            Box::new(ModelStock)
        })
    }),
    method("sce", TASK, &[], &[number("select_topk", 1.0, Range::Share), INT8], |g| {
        Ok(Box::new(Sce { part: g.number("select_topk") }))
    }),
    method("arcee_fusion", PAIR, &[], &[], |_| Ok(Box::new(ArceeFusion))),
    method("nearswap", PAIR, &[], &[T], |g| Ok(Box::new(NearSwap { t: g.number("t") }))),
    method("ram", TASK, &[], &[number("epsilon", 1e-5, Range::Finite)], |g| {
        Ok(Box::new(Ram { epsilon: g.number("epsilon"), boost: None }))
    }),
    method(
        "ramplus_tl",
        TASK,
        &[],
        &[
            number("epsilon", 1e-5, Range::Finite),
            number("r", 0.1, Range::Finite),
            number("alpha", 0.2, Range::Finite),
        ],
        |g| {
            Ok(Box::new(Ram {
                epsilon: g.number("epsilon"),
                boost: Some((g.number("r"), g.number("alpha"))),
            }))
        },
    ),
    method("passthrough", (BaseUse::Plain, Count::Exactly(1)), &[SCALE], &[], |g| {
        let scale = g.per_input.first().and_then(|given| lookup(given, "scale"));
        Ok(Box::new(Weighted { weights: vec![scale.unwrap_or(1.0)] }))
    }),
];

fn nuslerp(g: &Given) -> Result<Box<dyn Rule>> {
    let (weights, others) = (g.each("weight"), g.others());
    let [first, second] = others[..] else {
        return Err(Error::request("nuslerp takes two models beside the base"));
    };
    let (first, second) = (weights[first], weights[second]);
    let sum = total(&[first, second], "nuslerp")?;
    let t = if sum.abs() < 1e-6 { 0.5 } else { second / sum };
    if !t.is_finite() {
        let what = format!("the weights {first:?} and {second:?} almost cancel: a share of their sum is {t}");
        return Err(Error::request(format!("{what}; change a weight")));
    }
    let along = match (g.truth("nuslerp_flatten"), g.truth("nuslerp_row_wise")) {
        (true, _) => Along::All,
        (false, false) => Along::Last,
        (false, true) => Along::First,
    };
    Ok(Lines::rule(along, Box::new(Interpolate { t })))
}

fn deltas(g: &Given, elect: Elect, sparsify: fn(&Given, usize) -> Result<Sparsify>) -> Result<Box<dyn Rule>> {
    let (others, weights) = (g.others(), g.each("weight"));
    if g.truth("normalize") {
        // Where signs are elected, those that agree may be any of them.
        let sized = |&number: &usize| match elect {
            Elect::Nobody => weights[number],
            _ => weights[number].abs(),
        };
        total(&others.iter().map(sized).collect::<Vec<_>>(), "`normalize`")?;
    }
    Ok(Box::new(Deltas {
        weights,
        sparsify: others.iter().map(|&number| sparsify(g, number)).collect::<Result<_>>()?,
        rescale: if g.truth("rescale") { Rescale::Magnitudes } else { Rescale::Never },
        elect,
        divide: if g.truth("normalize") { Divide::Weights } else { Divide::Never },
        factor: g.number("lambda"),
    }))
}

fn density(g: &Given, input: usize) -> f64 {
    lookup(&g.per_input[input], "density").unwrap_or(1.0)
}

fn magnitude(g: &Given, input: usize) -> Sparsify {
    Sparsify::Magnitude { density: density(g, input) }
}

fn outliers(g: &Given, input: usize) -> Sparsify {
    Sparsify::Outliers {
        density: density(g, input),
        top: lookup(&g.per_input[input], "gamma").unwrap_or(0.0),
    }
}

fn random(g: &Given, input: usize) -> Sparsify {
    Sparsify::Random { density: density(g, input), stream: g.streams[input] }
}

fn ranked(g: &Given, input: usize) -> Result<Sparsify> {
    let (density, epsilon) = (density(g, input), lookup(&g.per_input[input], "epsilon").unwrap_or(0.0));
    let outside = density - epsilon <= 0.0 || density + epsilon >= 1.0;
    // A negative one favours the small, and its ends may be certain.
    let turned = density + epsilon < 0.0 || density - epsilon > 1.0;
    if density > 0.0 && density < 1.0 && (outside || turned) {
        return Err(Error::request(format!(
            "density {density} with epsilon {epsilon}: density - epsilon and density + epsilon must lie between 0 and 1; choose a smaller epsilon"
        )));
    }
    Ok(Sparsify::Ranked { density, epsilon, stream: g.streams[input] })
}
