//! Fused ops of training, and their gradients.

use super::bench::Bench;
use super::call::Call;
use super::pointwise;
use super::table::Outputs;
use anyhow::{Context, Result};
use planaria_layout::rule::{
    self, Attention, Channels, ConvPart, Cuts, DimFactors, Kind, LINEAR, Rows, Rule,
};
use planaria_layout::{Layout, Reduce, Shape};

pub(super) fn run(bench: &mut Bench, call: &Call<'_>) -> Result<Option<Outputs>> {
    Ok(Some(match call.name {
        "cross_entropy_with_softmax"
        | "cross_entropy_with_softmax_static"
        | "c_softmax_with_cross_entropy" => cross_entropy(bench, call)?,
        "cross_entropy_with_softmax_grad" | "c_softmax_with_cross_entropy_grad" => {
            cross_entropy_grad(bench, call)?
        }
        "flash_attention" | "flash_attention_static" | "flashmask_attention" => attention(bench, call)?,
        "flash_attn_grad" | "flashmask_attention_grad" => attention_grad(bench, call)?,
        "fused_rotary_position_embedding" | "fused_rotary_position_embedding_grad" => rotary(bench, call)?,
        "swiglu" => vec![Some(swiglu(bench, call)?)],
        "swiglu_grad" => swiglu_grad(bench, call)?,
        "conv2d" | "conv3d" | "depthwise_conv2d" => vec![Some(conv(bench, call, ConvPart::Output)?)],
        "conv2d_grad" | "conv3d_grad" | "depthwise_conv2d_grad" => {
            vec![Some(conv(bench, call, ConvPart::Input)?), Some(conv(bench, call, ConvPart::Weight)?)]
        }
        "adam_" | "adamw_" | "sgd_" => optimizer(bench, call)?,
        "label_smooth" | "label_smooth_grad" => {
            let x = call.last()?;
            vec![Some(
                bench
                    .pointwise(&[call.one(0)?], x.shape(), &[])
                    .or_else(|_| bench.pointwise(&[x], x.shape(), &[]))?,
            )]
        }
        _ => return Ok(None),
    }))
}

/// Rows are free; classes may be cut in windows, whose statistics the kernel exchanges.
fn cross_entropy(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let (logits, label) = (call.one(0)?, call.one(1)?);
    let ndim = logits.shape().ndim();
    let dim = if call.attrs["axis"].is_null() { ndim - 1 } else { call.dim("axis", ndim)? };
    let mut rule = classes(logits.shape(), dim);
    let loss = without(&rule, dim);
    let soft = label.shape() == logits.shape() && call.flag("soft_label");
    rule.inputs.push(if soft { rule.inputs[0].clone() } else { fitted(&loss, label.shape(), dim) });
    let mut dims = logits.shape().to_vec();
    dims[dim] = 1;
    let loss_shape = Shape::new(&dims)?;
    rule.outputs = vec![rule.inputs[0].clone(), loss];
    let outputs = [logits.shape().clone(), loss_shape];
    Ok(bench.run(&rule, &[logits, label], &outputs)?.into_iter().map(Some).collect())
}

/// A rule with one input of logits.
fn classes(shape: &Shape, dim: usize) -> Rule {
    let mut rule = Rule::default();
    let mut dims = Vec::new();
    for (d, &n) in shape.iter().enumerate() {
        let factor = if d == dim { rule.factor(n, Kind::Free, Cuts::Windows) } else { rule.free(n) };
        dims.push(DimFactors::from_slice(&[factor]));
    }
    rule.inputs.push(dims);
    rule
}

/// The dims of the logits with the classes reduced to 1.
fn without(rule: &Rule, dim: usize) -> Vec<DimFactors> {
    let mut dims = rule.inputs[0].clone();
    dims[dim].clear();
    dims
}

/// The same for a shape that may lack the dim.
fn fitted(dims: &[DimFactors], shape: &Shape, dim: usize) -> Vec<DimFactors> {
    let mut dims = dims.to_vec();
    if shape.ndim() < dims.len() {
        dims.remove(dim);
    }
    dims
}

fn cross_entropy_grad(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let tensors: Vec<&Layout> = call.tensors().collect();
    let softmax = tensors.iter().max_by_key(|t| t.shape().numel()).context("no softmax")?;
    let others: Vec<&Layout> = tensors.iter().filter(|t| !std::ptr::eq(**t, *softmax)).copied().collect();
    let ndim = softmax.shape().ndim();
    let dim = if call.attrs["axis"].is_null() { ndim - 1 } else { call.dim("axis", ndim)? };
    let mut rule = classes(softmax.shape(), dim);
    let loss = without(&rule, dim);
    for other in &others {
        let like = other.shape() == softmax.shape();
        rule.inputs.push(if like { rule.inputs[0].clone() } else { fitted(&loss, other.shape(), dim) });
    }
    rule.outputs = vec![rule.inputs[0].clone()];
    let inputs: Vec<&Layout> = std::iter::once(*softmax).chain(others).collect();
    Ok(vec![Some(bench.one(&rule, &inputs, softmax.shape())?)])
}

/// Length before heads to heads before length, and back.
const TURN: [usize; 4] = [0, 2, 1, 3];

fn attention(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let mut turned = Vec::new();
    for place in 0..3 {
        turned.push(bench.permute(call.one(place)?, &TURN)?);
    }
    let (q, k, v) = (&turned[0], &turned[1], &turned[2]);
    let mut rule = Rule::default();
    let factors =
        Attention::new(&mut rule, q.shape(), k.shape(), Rows::Whole).context("heads do not group")?;
    rule.inputs = vec![factors.query(), factors.key(), factors.key()];
    rule.outputs = vec![factors.query(), factors.row()];
    let rows = Shape::new(&q.shape()[..3])?;
    let mut inputs = vec![q, k, v];
    // A mask is whole but for the batch.
    if let Some(mask) = call.maybe(3).filter(|m| m.shape().ndim() == 4) {
        let mut dims = vec![DimFactors::new(); 4];
        if mask.shape()[0] == q.shape()[0] {
            dims[0] = factors.query()[0].clone();
        }
        if mask.shape()[1] == q.shape()[1] {
            dims[1] = factors.query()[1].clone();
        }
        rule.inputs.push(dims);
        inputs.push(mask);
    }
    let made = bench.run(&rule, &inputs, &[q.shape().clone(), rows])?;
    let out = bench.permute(&made[0], &TURN)?;
    Ok(vec![Some(out), None, Some(made[1].clone()), None])
}

fn attention_grad(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let mut turned = Vec::new();
    for x in [call.last()?, call.one(0)?, call.one(1)?, call.one(2)?] {
        turned.push(bench.permute(x, &TURN)?);
    }
    let (dy, q, k, v) = (&turned[0], &turned[1], &turned[2], &turned[3]);
    let rows = Shape::new(&q.shape()[..3])?;
    let mut rule = Rule::default();
    let factors =
        Attention::new(&mut rule, q.shape(), k.shape(), Rows::Whole).context("heads do not group")?;
    rule.inputs = vec![factors.query(), factors.query(), factors.key(), factors.key()];
    rule.outputs = vec![factors.query(), factors.key(), factors.key()];
    let mut inputs = vec![dy, q, k, v];
    for saved in call.tensors().filter(|t| *t.shape() == rows) {
        rule.inputs.push(factors.row());
        inputs.push(saved);
    }
    let made = bench.run(&rule, &inputs, &[q.shape().clone(), k.shape().clone(), v.shape().clone()])?;
    made.iter().map(|grad| Ok(Some(bench.permute(grad, &TURN)?))).collect()
}

/// Every tensor given is turned on its own; the last dim is whole, and the length where the angles are not given.
fn rotary(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let backward = call.name.ends_with("_grad");
    let mut outputs = Vec::new();
    for place in 0..3 {
        // Gradients stand behind the angles.
        let x = call.maybe(if backward { place + 3 } else { place });
        let Some(x) = x.filter(|x| x.shape().ndim() == 4) else {
            outputs.push(None);
            continue;
        };
        let rule = rule::along(&[x.shape()], &[x.shape()], &[3]);
        outputs.push(Some(bench.one(&rule, &[x], x.shape())?));
    }
    Ok(outputs)
}

fn swiglu(bench: &mut Bench, call: &Call<'_>) -> Result<Layout> {
    let x = call.one(0)?;
    if let Some(y) = call.maybe(1) {
        return bench.pointwise(&[x, y], x.shape(), &[(&[1], LINEAR)]);
    }
    let halves = halves(bench, x)?;
    let shape = halves[0].shape().clone();
    bench.pointwise(&[&halves[0], &halves[1]], &shape, &[(&[1], LINEAR)])
}

fn halves(bench: &mut Bench, x: &Layout) -> Result<Vec<Layout>> {
    let dim = x.shape().ndim() - 1;
    let mut dims = x.shape().to_vec();
    dims[dim] /= 2;
    let half = Shape::new(&dims)?;
    let mut rule = rule::split(x.shape(), &[&half, &half], dim);
    rule.pass(&[0], &Reduce::EVERY);
    bench.run(&rule, &[x], &[half.clone(), half])
}

fn swiglu_grad(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let (x, dy) = (call.one(0)?, call.last()?);
    let both = call.tensors().count() == 3;
    let (a, b) = match call.maybe(1).filter(|_| both) {
        Some(y) => (x.clone(), y.clone()),
        None => {
            let mut halves = halves(bench, x)?;
            let b = halves.swap_remove(1);
            (halves.swap_remove(0), b)
        }
    };
    let made = pointwise::grads(bench, dy, &[&a, &b], &[a.shape(), b.shape()])?;
    if both {
        return Ok(made);
    }
    let [da, db] = [made[0].clone().context("a gradient")?, made[1].clone().context("a gradient")?];
    let mut rule = rule::concat(&[da.shape(), db.shape()], x.shape(), x.shape().ndim() - 1);
    rule.pass(&[0, 1], &Reduce::EVERY);
    Ok(vec![Some(bench.one(&rule, &[&da, &db], x.shape())?)])
}

fn conv(bench: &mut Bench, call: &Call<'_>, part: ConvPart) -> Result<Layout> {
    let (x, weight) = (call.one(0)?, call.one(1)?);
    let channels = if call.text("data_format").ends_with('C') { Channels::Last } else { Channels::First };
    let groups = call.attrs["groups"].as_u64().unwrap_or(1) as usize;
    let mut rule = rule::conv(x.shape(), weight.shape(), groups, channels, part);
    rule.pass(&[0], LINEAR);
    rule.pass(&[1], LINEAR);
    match part {
        ConvPart::Output => bench.one(&rule, &[x, weight], &conv_shape(call, channels)?),
        ConvPart::Input => bench.one(&rule, &[call.last()?, weight], x.shape()),
        ConvPart::Weight => bench.one(&rule, &[x, call.last()?], weight.shape()),
    }
}

fn conv_shape(call: &Call<'_>, channels: Channels) -> Result<Shape> {
    let (x, weight) = (call.one(0)?.shape(), call.one(1)?.shape());
    let (strides, paddings, dilations) =
        (call.ints("strides"), call.ints("paddings"), call.ints("dilations"));
    let first = if channels == Channels::First { 2 } else { 1 };
    let mut dims = x.to_vec();
    dims[if channels == Channels::First { 1 } else { x.ndim() - 1 }] = weight[0];
    for space in 0..x.ndim() - 2 {
        let at = |list: &[i64], default: i64| list.get(space).copied().unwrap_or(default);
        let reach = at(&dilations, 1) * (weight[space + 2] as i64 - 1) + 1;
        let long = x[first + space] as i64 + 2 * at(&paddings, 0) - reach;
        dims[first + space] = usize::try_from(long / at(&strides, 1) + 1)?;
    }
    Ok(Shape::new(&dims)?)
}

/// All tensors of a parameter lie alike; numbers are whole.
fn optimizer(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let shape = call.one(0)?.shape().clone();
    let inputs: Vec<&Layout> = call.tensors().filter(|t| *t.shape() == shape).collect();
    // Numbers of one element may look like the parameter.
    let made = bench.pointwise(&inputs, &shape, &[])?;
    let count = if call.name == "sgd_" { 1 } else { 3 };
    Ok(vec![Some(made); count])
}
