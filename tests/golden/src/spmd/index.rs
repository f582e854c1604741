//! Ops that pick elements by index, and their gradients.

use super::bench::Bench;
use super::call::Call;
use super::table::Outputs;
use anyhow::Result;
use planaria_layout::rule::{self, Cuts, LINEAR, Rows, Rule};
use planaria_layout::{Layout, Shape};

pub(super) fn run(bench: &mut Bench, call: &Call<'_>) -> Result<Option<Outputs>> {
    Ok(Some(match call.name {
        "embedding" => vec![Some(take(bench, call.one(1)?, call.one(0)?, 0, Rows::Whole)?)],
        "embedding_static" => vec![Some(take(bench, call.one(1)?, call.one(0)?, 0, Rows::Windows)?)],
        "c_embedding" => vec![Some(take(bench, call.one(0)?, call.one(1)?, 0, Rows::Windows)?)],
        "embedding_grad" => vec![Some(take_grad(bench, call.one(1)?, call.one(0)?, call.last()?, 0)?)],
        "c_embedding_grad" => vec![Some(take_grad(bench, call.one(0)?, call.one(1)?, call.last()?, 0)?)],
        "gather" | "index_select" => {
            let x = call.one(0)?;
            let dim = call.dim("axis", x.shape().ndim())?;
            vec![Some(take(bench, x, call.one(1)?, dim, Rows::Whole)?)]
        }
        "gather_grad" => {
            let x = call.one(0)?;
            let dim = call.dim("axis", x.shape().ndim())?;
            vec![Some(put(bench, x, call.one(1)?, call.last()?, dim)?)]
        }
        "index_select_grad" => {
            let x = call.one(0)?;
            let dim = call.dim("axis", x.shape().ndim())?;
            let (index, dy) = (call.one(1)?, call.last()?);
            // The result is to lie like the input, of which only the layout matters.
            let mut rule = rule::take_grad(x.shape(), index.shape(), dim);
            rule.inputs.insert(0, rule.outputs[0].clone());
            rule.pass(&[2], LINEAR);
            let like = bench.only_shape(x)?;
            vec![Some(bench.one(&rule, &[&like, index, dy], x.shape())?)]
        }
        "gather_nd" => {
            let (x, index) = (call.one(0)?, call.one(1)?);
            let output = gather_nd_shape(x.shape(), index.shape())?;
            let mut rule = rule::gather_nd(x.shape(), index.shape());
            rule.pass(&[0], LINEAR);
            vec![Some(bench.one(&rule, &[x, index], &output)?)]
        }
        "gather_nd_grad" => {
            let (x, index) = (call.one(0)?, call.one(1)?);
            let mut rule = rule::gather_nd_grad(x.shape(), index.shape());
            rule.pass(&[0], LINEAR);
            vec![Some(bench.one(&rule, &[call.last()?, index], x.shape())?)]
        }
        "scatter" | "scatter_nd_add" => vec![Some(scatter(bench, call)?)],
        "scatter_grad" => scatter_grad(bench, call)?,
        "index_put" => vec![Some(index_put(bench, call)?)],
        "take_along_axis" | "take_along_axis_grad" | "put_along_axis" | "put_along_axis_grad" => {
            along(bench, call)?
        }
        _ => return Ok(None),
    }))
}

fn taken(x: &Shape, index: &Shape, dim: usize) -> Result<Shape> {
    Ok(Shape::new(&[&x[..dim], &index[..], &x[dim + 1..]].concat())?)
}

fn gather_nd_shape(x: &Shape, index: &Shape) -> Result<Shape> {
    let (lead, depth) = (&index[..index.ndim() - 1], index[index.ndim() - 1]);
    Ok(Shape::new(&[lead, &x[depth..]].concat())?)
}

fn take(bench: &mut Bench, x: &Layout, index: &Layout, dim: usize, rows: Rows) -> Result<Layout> {
    let output = taken(x.shape(), index.shape(), dim)?;
    let mut rule = rule::take(x.shape(), index.shape(), dim, rows);
    rule.pass(&[0], LINEAR);
    bench.one(&rule, &[x, index], &output)
}

fn take_grad(bench: &mut Bench, x: &Layout, index: &Layout, dy: &Layout, dim: usize) -> Result<Layout> {
    let mut rule = rule::take_grad(x.shape(), index.shape(), dim);
    rule.pass(&[1], LINEAR);
    bench.one(&rule, &[index, dy], x.shape())
}

/// Rows put where they were taken, in the order of the index, which is whole.
fn put(bench: &mut Bench, x: &Layout, index: &Layout, dy: &Layout, dim: usize) -> Result<Layout> {
    let mut rule = rule::take_grad(x.shape(), index.shape(), dim);
    for factors in &rule.inputs[0] {
        factors.iter().for_each(|&f| rule.factors[f].cuts = Cuts::Whole);
    }
    rule.pass(&[1], LINEAR);
    bench.one(&rule, &[index, dy], x.shape())
}

/// Rows written, or added, at an index.
fn scatter(bench: &mut Bench, call: &Call<'_>) -> Result<Layout> {
    let (x, index, updates) = (call.one(0)?, call.one(1)?, call.one(2)?);
    let adds = call.name == "scatter_nd_add" || !call.flag("overwrite");
    let depth = if call.name == "scatter_nd_add" { index.shape().last().copied().unwrap_or(0) } else { 1 };
    let write = if adds { rule::Write::Add } else { rule::Write::Replace };
    let mut rule = rule::scatter(x.shape(), index.shape(), updates.shape(), depth, write);
    rule.pass(&[0, 2], LINEAR);
    bench.one(&rule, &[x, index, updates], x.shape())
}

/// The gradient with the written rows cleared, and those rows.
fn scatter_grad(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let (index, updates, dy) = (call.one(0)?, call.one(1)?, call.last()?);
    // Both gradients need the whole index.
    let rule = Rule::whole(&[index.shape().ndim()], &[index.shape().ndim()]);
    let index = &bench.one(&rule, &[index], index.shape())?;
    let ndim = dy.shape().ndim();
    let rule = rule::along(&[dy.shape()], &[dy.shape()], &[0]);
    let dy = &bench.one(&rule, &[dy], dy.shape())?;
    let dx = if call.flag("overwrite") {
        // Rows of zeros are written.
        let tail: Vec<Option<usize>> = (0..ndim).map(|d| (d > 0).then_some(d)).collect();
        let mut rule = rule::select_dims(dy.shape(), &tail);
        rule.input(&vec![None; index.shape().ndim()]);
        rule.pass(&[0], LINEAR);
        bench.one(&rule, &[dy, index], dy.shape())?
    } else {
        dy.clone()
    };
    let flat = Shape::new(&[index.shape().numel()])?;
    let index = bench.reshape(index, &flat)?;
    let du = take(bench, dy, &index, 0, Rows::Whole)?;
    let du = bench.reshape(&du, updates.shape())?;
    Ok(vec![Some(dx), Some(du)])
}

/// Elements written at indices of the leading dims.
fn index_put(bench: &mut Bench, call: &Call<'_>) -> Result<Layout> {
    let (x, indices, value) = (call.one(0)?, call.many(1), call.one(2)?);
    let shapes: Vec<&Shape> = indices.iter().map(|i| i.shape()).collect();
    let mut rule = rule::index_put(x.shape(), &shapes, value.shape(), rule::Write::Replace);
    let last = indices.len() + 1;
    rule.pass(&[0, last], LINEAR);
    let inputs: Vec<&Layout> = std::iter::once(x).chain(indices).chain([value]).collect();
    bench.one(&rule, &inputs, x.shape())
}

/// Indices along one dim of tensors that are otherwise alike.
fn along(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let (x, index) = (call.one(0)?, call.one(1)?);
    let dim = call.dim("axis", x.shape().ndim())?;
    Ok(match call.name {
        "take_along_axis" => {
            let mut rule = rule::take_along(x.shape(), index.shape(), dim);
            rule.pass(&[0], LINEAR);
            vec![Some(bench.one(&rule, &[x, index], index.shape())?)]
        }
        "take_along_axis_grad" => {
            let mut rule = rule::take_along_grad(x.shape(), index.shape(), dim);
            rule.pass(&[0], LINEAR);
            vec![Some(bench.one(&rule, &[call.last()?, index], x.shape())?)]
        }
        "put_along_axis" => {
            let value = call.one(2)?;
            let mut rule = rule::along(&[x.shape(), index.shape(), value.shape()], &[x.shape()], &[dim]);
            rule.pass(&[0, 2], LINEAR);
            vec![Some(bench.one(&rule, &[x, index, value], x.shape())?)]
        }
        _ => {
            let dy = call.last()?;
            let mut rule = rule::along(&[dy.shape(), index.shape()], &[x.shape()], &[dim]);
            rule.pass(&[0], LINEAR);
            let dx = bench.one(&rule, &[dy, index], x.shape())?;
            let mut rule = rule::take_along(dy.shape(), index.shape(), dim);
            rule.pass(&[0], LINEAR);
            vec![Some(dx), Some(bench.one(&rule, &[dy, index], index.shape())?)]
        }
    })
}
