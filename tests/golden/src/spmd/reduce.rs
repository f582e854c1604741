//! Ops that reduce dims, search along dims, and their gradients.

use super::bench::Bench;
use super::call::Call;
use super::table::Outputs;
use anyhow::{Result, bail};
use planaria_layout::rule::{self, Cuts, LINEAR, Rule};
use planaria_layout::{Layout, Reduce, Shape};

pub(super) fn run(bench: &mut Bench, call: &Call<'_>) -> Result<Option<Outputs>> {
    Ok(Some(match call.name {
        "sum" | "nansum" | "mean" | "mean_all" | "max" | "min" | "amax" | "amin" | "prod" | "all" | "any"
        | "reduce_base" => plain(bench, call)?,
        "squared_l2_norm" => {
            let x = call.one(0)?;
            let squared = bench.pointwise(&[x], x.shape(), &[])?;
            let all: Vec<usize> = (0..x.shape().ndim()).collect();
            let total = bench.sum(&squared, &all, &Shape::new(&[])?)?;
            vec![Some(bench.reshape(&total, &Shape::new(&[1])?)?)]
        }
        "p_norm" | "frobenius_norm" => {
            let (x, dims) = (call.one(0)?, reduced(call)?);
            let powers = bench.pointwise(&[x], x.shape(), &[])?;
            let output = left(x.shape(), &dims, call.flag("keepdim"))?;
            let total = bench.sum(&powers, &dims, &output)?;
            vec![Some(bench.pointwise(&[&total], &output, &[])?)]
        }
        "logsumexp" => vec![Some(logsumexp(bench, call)?)],
        "numel" => vec![Some(Layout::replicated(&bench.mesh, &Shape::new(&[])?))],
        "sum_grad" | "nansum_grad" | "mean_grad" | "mean_all_grad" => {
            let x = call.one(0)?;
            let dy = kept(bench, call, call.last()?)?;
            vec![Some(bench.expand(&dy, x.shape())?)]
        }
        "max_grad" | "min_grad" | "logsumexp_grad" | "p_norm_grad" => {
            let x = call.one(0)?;
            let (y, dy) = (kept(bench, call, call.one(1)?)?, kept(bench, call, call.last()?)?);
            let shapes = [dy.shape(), x.shape(), y.shape()];
            let mut rule = rule::elementwise(&shapes, x.shape());
            rule.pass(&[0], LINEAR);
            rule.asked = 1;
            vec![Some(bench.one(&rule, &[&dy, x, &y], x.shape())?)]
        }
        _ => return search(bench, call),
    }))
}

/// The dims that a call reduces.
fn reduced(call: &Call<'_>) -> Result<Vec<usize>> {
    let ndim = call.one(0)?.shape().ndim();
    if call.flag("asvector") { Ok((0..ndim).collect()) } else { call.dims("axis", ndim) }
}

/// What is left of a shape.
fn left(shape: &Shape, dims: &[usize], keep: bool) -> Result<Shape> {
    let one = |(dim, &len): (usize, &usize)| match (dims.contains(&dim), keep) {
        (true, true) => Some(1),
        (true, false) => None,
        (false, _) => Some(len),
    };
    Ok(Shape::new(&shape.iter().enumerate().filter_map(one).collect::<Vec<_>>())?)
}

fn plain(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let x = call.one(0)?;
    let dims = reduced(call)?;
    let output = left(x.shape(), &dims, call.flag("keepdim"))?;
    let code = call.attrs["reduce_type"].as_i64();
    let (reduce, passes): (Reduce, &'static [Reduce]) = match (call.name, code) {
        ("max" | "amax", _) | (_, Some(1)) => (Reduce::Max, &[Reduce::Max]),
        ("min" | "amin", _) | (_, Some(2)) => (Reduce::Min, &[Reduce::Min]),
        ("prod", _) | (_, Some(3)) => (Reduce::Prod, &[Reduce::Prod]),
        ("any", _) | (_, Some(5)) => (Reduce::Any, &[Reduce::Any]),
        ("all", _) | (_, Some(6)) => (Reduce::All, &[Reduce::All]),
        // A mean is a sum with a factor.
        _ => (Reduce::Sum, LINEAR),
    };
    let mut rule = rule::reduction(x.shape(), &dims, &output, reduce);
    rule.pass(&[0], passes);
    Ok(vec![Some(bench.one(&rule, &[x], &output)?)])
}

fn logsumexp(bench: &mut Bench, call: &Call<'_>) -> Result<Layout> {
    let (x, dims) = (call.one(0)?, reduced(call)?);
    let kept = left(x.shape(), &dims, true)?;
    let rule = rule::reduction(x.shape(), &dims, &kept, Reduce::Max);
    let most = bench.one(&rule, &[x], &kept)?;
    let shifted = bench.pointwise(&[x, &most], x.shape(), &[])?;
    let total = bench.sum(&shifted, &dims, &kept)?;
    let result = bench.pointwise(&[&total, &most], &kept, &[])?;
    let output = left(x.shape(), &dims, call.flag("keepdim"))?;
    bench.reshape(&result, &output)
}

/// An output, or its gradient, with dims of 1 where dims were reduced.
fn kept(bench: &mut Bench, call: &Call<'_>, y: &Layout) -> Result<Layout> {
    let kept = left(call.one(0)?.shape(), &reduced(call)?, true)?;
    bench.reshape(y, &kept)
}

/// Ops that look along a dim.
fn search(bench: &mut Bench, call: &Call<'_>) -> Result<Option<Outputs>> {
    Ok(Some(match call.name {
        "argmax" | "argmin" => {
            let x = call.one(0)?;
            let dims = if call.flag("flatten") {
                (0..x.shape().ndim()).collect()
            } else {
                vec![call.dim("axis", x.shape().ndim())?]
            };
            let output = left(x.shape(), &dims, call.flag("keepdims"))?;
            let mut rule = rule::reduction(x.shape(), &dims, &output, Reduce::Sum);
            dims.iter().for_each(|&dim| rule.factors[dim].cuts = Cuts::Whole);
            vec![Some(bench.one(&rule, &[x], &output)?)]
        }
        "argsort" | "cummax" | "cummin" | "cumsum" | "topk" => {
            let x = call.one(0)?;
            let dim = call.dim("axis", x.shape().ndim())?;
            let mut dims = x.shape().to_vec();
            if call.name == "topk" {
                dims[dim] = usize::try_from(call.int("k")?)?;
            }
            let count = if call.name == "cumsum" { 1 } else { 2 };
            let outputs = vec![Shape::new(&dims)?; count];
            let mut rule = rule::along(&[x.shape()], &outputs.iter().collect::<Vec<_>>(), &[dim]);
            if call.name == "cumsum" {
                rule.pass(&[0], LINEAR);
            }
            bench.run(&rule, &[x], &outputs)?.into_iter().map(Some).collect()
        }
        "argsort_grad" | "cummax_grad" | "cummin_grad" | "cumsum_grad" | "topk_grad" => {
            vec![Some(search_grad(bench, call)?)]
        }
        "nonzero" | "unique" => {
            let x = call.one(0)?;
            bench.run(&Rule::whole(&[x.shape().ndim()], &[]), &[x], &[])?;
            Vec::new()
        }
        _ => return Ok(None),
    }))
}

/// `dy` put back where the values were found.
fn search_grad(bench: &mut Bench, call: &Call<'_>) -> Result<Layout> {
    let tensors: Vec<&Layout> = call.tensors().collect();
    let dy = call.last()?;
    let Some(x) = tensors.iter().find(|t| t.shape().ndim() == dy.shape().ndim()) else { bail!("no input") };
    let found = tensors.iter().rev().skip(1).find(|t| t.shape() == dy.shape());
    let shape = if call.name == "topk_grad" { tensors[0].shape().clone() } else { x.shape().clone() };
    let Ok(dim) = call.dim("axis", shape.ndim()) else {
        // Along all elements at once.
        let rule = Rule::whole(&[dy.shape().ndim()], &[shape.ndim()]);
        return bench.one(&rule, &[dy], &shape);
    };
    // Running sums need no value of the input.
    let inputs: Vec<&Layout> = match found {
        Some(found) if call.name != "cumsum_grad" => vec![dy, found],
        _ => vec![dy],
    };
    let shapes: Vec<&Shape> = inputs.iter().map(|t| t.shape()).collect();
    let mut rule = rule::along(&shapes, &[&shape], &[dim]);
    rule.pass(&[0], LINEAR);
    bench.one(&rule, &inputs, &shape)
}
