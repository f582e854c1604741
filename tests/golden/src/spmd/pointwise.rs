//! Ops that work element by element, and their gradients.

use super::bench::{Bench, broadcast};
use super::call::Call;
use super::table::Outputs;
use anyhow::{Context, Result};
use planaria_layout::rule::{self, INCREASING, LINEAR};
use planaria_layout::{Layout, Reduce, Shape};

/// One input; increasing where the second entry says so.
const UNARY: &str = "abs acos acosh asin asinh atan atanh bernoulli bitwise_not ceil cos cosh digamma erf erfinv exp \
    expm1 floor hardshrink hardsigmoid hardswish hardtanh leaky_relu lgamma log log10 log1p log2 logical_not \
    logsigmoid poisson reciprocal relu relu6 rsqrt sigmoid sign silu sin sinh softsign sqrt square swish tan tanh \
    tanh_shrink trunc gelu round mish elu selu celu stanh softplus softshrink thresholded_relu logit clip pow \
    scale_with_bias dropout";

/// Those that grow with their input.
const GROWING: &str = "asinh atan ceil erf exp expm1 floor hardsigmoid hardtanh leaky_relu log log10 log1p log2 \
    logsigmoid relu relu6 sigmoid sign sinh softsign sqrt tanh trunc round elu selu celu stanh softplus clip \
    scale_with_bias";

/// Linear in their one input.
const LINEAR_UNARY: &str = "scale div_scale conj";

/// Results that are the input itself.
const SAME: &str = "assign share_data cast";

/// Results that depend on the shape only.
const SHAPE_ONLY: &str = "full_like empty_like fill";

const BINARY: &str = "add subtract multiply divide atan2 bitwise_and bitwise_or bitwise_xor elementwise_pow equal fmax \
    fmin greater_equal greater_than less_equal less_than logical_and logical_or logical_xor maximum minimum not_equal \
    trunc_divide floor_divide remainder heaviside";

fn names(list: &str, name: &str) -> bool {
    list.split_whitespace().any(|known| known == name)
}

pub(super) fn run(bench: &mut Bench, call: &Call<'_>) -> Result<Option<Outputs>> {
    let name = call.name;
    let grad = name.strip_suffix("_grad");
    let outputs = if names(SAME, name) {
        let x = call.one(0)?;
        vec![Some(bench.pointwise(&[x], x.shape(), &[(&[0], &Reduce::EVERY)])?)]
    } else if names(SHAPE_ONLY, name) {
        vec![Some(bench.only_shape(call.one(0)?)?)]
    } else if names(UNARY, name) || names(LINEAR_UNARY, name) {
        unary(bench, call)?
    } else if grad.is_some_and(|name| names(UNARY, name)) {
        let dy = call.last()?.clone();
        vec![Some(grad_of_one(bench, call, &dy)?)]
    } else if names(BINARY, name) {
        binary(bench, call)?
    } else if grad.is_some_and(|name| names(BINARY, name)) {
        binary_grad(bench, call, grad.unwrap_or(name))?
    } else {
        return several(bench, call);
    };
    Ok(Some(outputs))
}

fn unary(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let x = call.one(0)?;
    let passes: &'static [Reduce] = match call.name {
        name if names(LINEAR_UNARY, name) => LINEAR,
        name if names(GROWING, name) => INCREASING,
        _ => &[],
    };
    let y = bench.pointwise(&[x], x.shape(), &[(&[0], passes)])?;
    // The mask of a dropout lies like its output.
    let mask = (call.name == "dropout").then(|| y.clone());
    Ok([Some(y), mask].into_iter().take(if call.name == "dropout" { 2 } else { 1 }).collect())
}

/// `dy` times something made of the other inputs.
fn grad_of_one(bench: &mut Bench, call: &Call<'_>, dy: &Layout) -> Result<Layout> {
    let count = call.tensors().count();
    let others: Vec<&Layout> = call.tensors().take(count - 1).collect();
    let made = grads(bench, dy, &others, &[dy.shape()])?.swap_remove(0);
    made.context("a gradient")
}

fn binary(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let (x, y) = (call.one(0)?, call.one(1)?);
    let output = Shape::new(&broadcast(x.shape(), y.shape()))?;
    let pass: &[(&[usize], &'static [Reduce])] = match call.name {
        "add" | "subtract" => &[(&[0, 1], LINEAR)],
        "multiply" => &[(&[0], LINEAR), (&[1], LINEAR)],
        "divide" => &[(&[0], LINEAR)],
        "maximum" | "fmax" => &[(&[0, 1], &[Reduce::Max])],
        "minimum" | "fmin" => &[(&[0, 1], &[Reduce::Min])],
        "logical_and" => &[(&[0, 1], &[Reduce::All])],
        "logical_or" => &[(&[0, 1], &[Reduce::Any])],
        _ => &[],
    };
    Ok(vec![Some(bench.pointwise(&[x, y], &output, pass)?)])
}

/// The gradients for both sides, summed where they were repeated.
fn binary_grad(bench: &mut Bench, call: &Call<'_>, name: &str) -> Result<Outputs> {
    let (x, y, dy) = (call.one(0)?, call.one(1)?, call.last()?);
    let needed: Vec<&Layout> = match name {
        "add" | "subtract" => Vec::new(),
        "divide" => vec![call.one(2)?, y],
        _ => vec![x, y],
    };
    grads(bench, dy, &needed, &[x.shape(), y.shape()])
}

/// The gradients of an op, decided together.
pub(super) fn grads(
    bench: &mut Bench,
    dy: &Layout,
    needed: &[&Layout],
    wanted: &[&Shape],
) -> Result<Outputs> {
    let shapes: Vec<&Shape> = needed.iter().map(|x| x.shape()).collect();
    let mut rule = rule::elementwise_grad(dy.shape(), &shapes, wanted);
    rule.pass(&[0], LINEAR);
    let inputs: Vec<&Layout> = std::iter::once(dy).chain(needed.iter().copied()).collect();
    let outputs: Vec<Shape> = wanted.iter().map(|&shape| shape.clone()).collect();
    Ok(bench.run(&rule, &inputs, &outputs)?.into_iter().map(Some).collect())
}

/// Ops of three or more tensors.
fn several(bench: &mut Bench, call: &Call<'_>) -> Result<Option<Outputs>> {
    Ok(Some(match call.name {
        "where" => {
            let (c, x, y) = (call.one(0)?, call.one(1)?, call.one(2)?);
            let output = Shape::new(&broadcast(&broadcast(c.shape(), x.shape()), y.shape()))?;
            vec![Some(bench.pointwise(&[c, x, y], &output, &[(&[1, 2], LINEAR)])?)]
        }
        "where_grad" => {
            let (c, dy) = (call.one(0)?, call.last()?);
            let outputs = [call.one(1)?.shape().clone(), call.one(2)?.shape().clone()];
            let mut rule = rule::elementwise_grad(dy.shape(), &[c.shape()], &[&outputs[0], &outputs[1]]);
            // The condition is asked first.
            rule.inputs.swap(0, 1);
            rule.asked = 0;
            rule.pass(&[1], LINEAR);
            bench.run(&rule, &[c, dy], &outputs)?.into_iter().map(Some).collect()
        }
        "add_n" => {
            let inputs: Vec<&Layout> = call.tensors().collect();
            let all: Vec<usize> = (0..inputs.len()).collect();
            let output = call.many(0)[0].shape().clone();
            vec![Some(bench.pointwise(&inputs, &output, &[(&all, LINEAR)])?)]
        }
        "dropout_grad" => {
            let (mask, dy) = (call.one(0)?, call.last()?);
            vec![Some(bench.pointwise(&[dy, mask], dy.shape(), &[(&[0], LINEAR)])?)]
        }
        "fused_dropout_add" => {
            let (x, y) = (call.one(0)?, call.one(1)?);
            vec![Some(bench.pointwise(&[x, y], x.shape(), &[(&[0, 1], LINEAR)])?)]
        }
        "fused_dropout_add_grad" => {
            // The mask is made again from the seed.
            let dy = call.last()?;
            let dx = bench.pointwise(&[dy], dy.shape(), &[(&[0], LINEAR)])?;
            vec![Some(dx), Some(dy.clone())]
        }
        _ => return Ok(None),
    }))
}
