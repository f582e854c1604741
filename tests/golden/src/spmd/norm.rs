//! Norms over rows, groups and batches, and their gradients.

use super::bench::Bench;
use super::call::Call;
use super::table::Outputs;
use anyhow::Result;
use planaria_layout::rule::{self, DimFactors, LINEAR, Prefer, Rule};
use planaria_layout::{Layout, Reduce, Shape};

pub(super) fn run(bench: &mut Bench, call: &Call<'_>) -> Result<Option<Outputs>> {
    Ok(Some(match call.name {
        "layer_norm" | "fast_ln" | "fused_rms_norm" => rows(bench, call)?,
        "layer_norm_grad" | "fast_ln_grad" | "fused_rms_norm_grad" => rows_grad(bench, call)?,
        "softmax" | "log_softmax" | "softmax_grad" | "log_softmax_grad" => {
            let tensors: Vec<&Layout> = call.tensors().collect();
            let shape = tensors[0].shape().clone();
            let dim = call.dim("axis", shape.ndim().max(1)).unwrap_or(0);
            // The gradient before the output that was kept.
            let inputs: Vec<&Layout> = tensors.into_iter().rev().collect();
            let shapes: Vec<&Shape> = inputs.iter().map(|x| x.shape()).collect();
            let mut rule = rule::along(&shapes, &[&shape], &[dim]);
            if call.name.ends_with("_grad") {
                rule.pass(&[0], LINEAR);
                rule.prefer = Prefer::Most;
            }
            vec![Some(bench.one(&rule, &inputs, &shape)?)]
        }
        "group_norm" | "instance_norm" | "group_norm_grad" | "instance_norm_grad" => groups(bench, call)?,
        "batch_norm" | "batch_norm_static" | "sync_batch_norm_" | "sync_batch_norm_via_batch_norm_rule" => {
            batch(bench, call)?
        }
        "batch_norm_grad" | "sync_batch_norm_grad" => batch_grad(bench, call)?,
        _ => return Ok(None),
    }))
}

/// How many dims stand before those that are normalised.
fn lead(call: &Call<'_>, x: &Layout) -> Result<usize> {
    let ndim = x.shape().ndim();
    if call.attrs["begin_norm_axis"].is_null() { Ok(ndim - 1) } else { call.dim("begin_norm_axis", ndim) }
}

fn rows(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let x = call.one(0)?;
    let lead = lead(call, x)?;
    let inputs: Vec<&Layout> = call.tensors().collect();
    let params: Vec<&Shape> = inputs[1..].iter().map(|p| p.shape()).collect();
    let stat = Shape::new(&x.shape()[..lead])?;
    let count = if call.name == "fused_rms_norm" { 1 } else { 2 };
    let outputs = [vec![x.shape().clone()], vec![stat; count]].concat();
    let stats: Vec<&Shape> = outputs[1..].iter().collect();
    let rule = rule::norm(x.shape(), lead, &params, &stats);
    Ok(bench.run(&rule, &inputs, &outputs)?.into_iter().map(Some).collect())
}

fn rows_grad(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let (x, dy) = (call.one(0)?, call.last()?);
    let lead = lead(call, x)?;
    // Statistics and the weight are needed, the bias only as a shape.
    let (params, stats): (&[usize], &[usize]) = match call.name {
        "layer_norm_grad" => (&[1, 2], &[3, 4]),
        "fast_ln_grad" => (&[1, 1], &[2, 3]),
        _ => (&[1], &[2]),
    };
    let params: Vec<&Layout> = params.iter().filter_map(|&i| call.maybe(i)).collect();
    let stats: Vec<&Layout> = stats.iter().filter_map(|&i| call.maybe(i)).collect();
    let needed: Vec<&Layout> = call.maybe(1).into_iter().collect();
    let shapes = |list: &[&Layout]| -> Vec<Shape> { list.iter().map(|l| l.shape().clone()).collect() };
    let (p, s, n) = (shapes(&params), shapes(&stats), shapes(&needed));
    let mut rule = rule::norm_grad(
        x.shape(),
        lead,
        &s.iter().collect::<Vec<_>>(),
        &n.iter().collect::<Vec<_>>(),
        &p.iter().collect::<Vec<_>>(),
    );
    rule.pass(&[1], LINEAR);
    if call.name == "fused_rms_norm_grad" {
        (rule.prefer, rule.asked) = (Prefer::Cheapest, 2);
    }
    let inputs: Vec<&Layout> = [x, dy].into_iter().chain(stats).chain(needed).collect();
    let outputs = [vec![x.shape().clone()], p].concat();
    let made = bench.run(&rule, &inputs, &outputs)?;
    let mut made: Vec<Option<Layout>> = made.into_iter().map(Some).collect();
    // Absent parameters keep their places.
    for place in 1..=2 {
        if call.name == "layer_norm_grad" && call.maybe(place).is_none() {
            made.insert(place, None);
        }
    }
    Ok(made)
}

/// Where the channels stand.
fn channel(call: &Call<'_>, x: &Layout) -> usize {
    if call.text("data_format").ends_with('C') { x.shape().ndim() - 1 } else { 1 }
}

/// Norms over space within groups of channels: batch and groups may be cut.
fn groups(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let x = call.one(0)?;
    let at = channel(call, x);
    let (n, c) = (x.shape()[0], x.shape()[at]);
    let groups = call.attrs["groups"].as_u64().map_or(c, |g| g as usize);
    let mut rule = Rule { asked: 1, ..Rule::default() };
    let batch = rule.reduced(n, Reduce::Sum);
    let group = rule.free(groups);
    let mut channels = DimFactors::from_slice(&[group]);
    if c > groups {
        channels.push(rule.fixed(c / groups));
    }
    let mut image = vec![DimFactors::new(); x.shape().ndim()];
    (image[0], image[at]) = (DimFactors::from_slice(&[batch]), channels.clone());
    let param = vec![channels];
    let stat = vec![DimFactors::from_slice(&[batch]), DimFactors::from_slice(&[group])];
    let stat_shape = Shape::new(&[n, groups])?;
    let wide = Shape::new(&[c])?;
    if !call.name.ends_with("_grad") {
        let inputs: Vec<&Layout> = call.tensors().collect();
        rule.inputs =
            inputs.iter().map(|l| if l.shape().ndim() > 1 { image.clone() } else { param.clone() }).collect();
        rule.outputs = vec![image, stat.clone(), stat];
        let outputs = [x.shape().clone(), stat_shape.clone(), stat_shape];
        // Statistics are kept for the gradient and go nowhere else.
        let y = bench.run(&rule, &inputs, &outputs)?.swap_remove(0);
        return Ok(vec![Some(y), None, None]);
    }
    let dy = call.last()?;
    let stats: Vec<&Layout> = call.tensors().filter(|l| *l.shape() == stat_shape).collect();
    let weight = call.one(1)?;
    let inputs: Vec<&Layout> = [dy, x, weight].into_iter().chain(stats.iter().copied()).collect();
    rule.inputs = vec![image.clone(), image.clone(), param.clone()];
    rule.inputs.extend(stats.iter().map(|_| stat.clone()));
    rule.outputs = vec![image, param.clone(), param];
    rule.pass(&[0], LINEAR);
    let outputs = [x.shape().clone(), wide.clone(), wide];
    Ok(bench.run(&rule, &inputs, &outputs)?.into_iter().map(Some).collect())
}

/// Batch norms: the kernel exchanges the sums that statistics are made of, so every dim may be cut.
fn over_batch(call: &Call<'_>, x: &Layout) -> (Rule, Vec<DimFactors>, Vec<DimFactors>) {
    let at = channel(call, x);
    let mut rule = Rule { asked: 1, ..Rule::default() };
    let image: Vec<DimFactors> = x.shape().iter().map(|&n| DimFactors::from_slice(&[rule.free(n)])).collect();
    let param = vec![image[at].clone()];
    (rule, image, param)
}

fn batch(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let x = call.one(0)?;
    let (mut rule, image, param) = over_batch(call, x);
    let inputs: Vec<&Layout> = call.tensors().collect();
    rule.inputs = inputs.iter().map(|_| param.clone()).collect();
    rule.inputs[0].clone_from(&image);
    rule.outputs = vec![image, param.clone(), param.clone(), param.clone(), param];
    let wide = Shape::new(&[x.shape()[channel(call, x)]])?;
    let outputs = [vec![x.shape().clone()], vec![wide; 4]].concat();
    let mut made: Outputs = bench.run(&rule, &inputs, &outputs)?.into_iter().map(Some).collect();
    // Statistics are kept for the gradient and go nowhere else.
    (made[3], made[4]) = (None, None);
    Ok(made)
}

fn batch_grad(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let (x, dy) = (call.one(0)?, call.last()?);
    let (mut rule, image, param) = over_batch(call, x);
    let wide = Shape::new(&[x.shape()[channel(call, x)]])?;
    let saved: Vec<&Layout> = call.tensors().filter(|l| *l.shape() == wide).collect();
    // The weight and what was saved of the statistics.
    let needed: Vec<&Layout> = saved.first().into_iter().chain(saved.iter().rev().take(2)).copied().collect();
    rule.inputs = vec![image.clone(), image.clone()];
    rule.inputs.extend(needed.iter().map(|_| param.clone()));
    rule.outputs = vec![image, param.clone(), param];
    let inputs: Vec<&Layout> = [dy, x].into_iter().chain(needed).collect();
    let outputs = [x.shape().clone(), wide.clone(), wide];
    Ok(bench.run(&rule, &inputs, &outputs)?.into_iter().map(Some).collect())
}
