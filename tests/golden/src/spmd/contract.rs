//! Products: matmul and its kin, einsum, and their gradients.

use super::bench::Bench;
use super::call::Call;
use super::table::Outputs;
use anyhow::{Context, Result};
use planaria_layout::rule::{self, Cuts, LINEAR};
use planaria_layout::{Layout, Shape};

pub(super) fn run(bench: &mut Bench, call: &Call<'_>) -> Result<Option<Outputs>> {
    Ok(Some(match call.name {
        "matmul" | "bmm" => {
            let x = turned(bench, call.one(0)?, call.flag("trans_x"))?;
            let y = turned(bench, call.one(1)?, call.flag("trans_y"))?;
            vec![Some(bench.matmul(&x, &y)?)]
        }
        "linear_v2" | "fused_gemm_epilogue" => {
            let x = turned(bench, call.one(0)?, call.flag("trans_x"))?;
            let y = turned(bench, call.one(1)?, call.flag("trans_y") || call.flag("transpose_weight"))?;
            vec![Some(linear(bench, call, &x, &y)?)]
        }
        "matmul_grad" | "bmm_grad" => matmul_grad(bench, call)?,
        "fused_linear_param_grad_add" => weight_grad(bench, call)?,
        "einsum" => {
            let inputs: Vec<&Layout> = call.tensors().collect();
            vec![Some(einsum(bench, call.text("equation"), &inputs)?)]
        }
        "einsum_grad" => einsum_grad(bench, call)?,
        _ => return Ok(None),
    }))
}

/// A product with a bias, in one op.
fn linear(bench: &mut Bench, call: &Call<'_>, x: &Layout, y: &Layout) -> Result<Layout> {
    let Some(bias) = call.maybe(2) else { return bench.matmul(x, y) };
    let rows = &"abcdefgh"[..x.shape().ndim() - 1];
    let mut rule = rule::einsum(&format!("{rows}k,kn,n->{rows}n"), &[x.shape(), y.shape(), bias.shape()])?;
    let inner = x.shape().ndim() - 1;
    if call.name == "linear_v2" {
        // Its kernel adds the bias to whole sums.
        rule.factors[inner].cuts = Cuts::Whole;
        rule.asked = 1;
    } else {
        rule.count_once(inner, 2);
        rule.asked = 2;
        rule.pass(&[0, 2], LINEAR);
        rule.pass(&[1, 2], LINEAR);
    }
    let mut dims = x.shape().to_vec();
    dims[inner] = bias.shape()[0];
    bench.one(&rule, &[x, y, bias], &Shape::new(&dims)?)
}

/// The last two dims changed over.
fn turned(bench: &mut Bench, x: &Layout, turn: bool) -> Result<Layout> {
    let ndim = x.shape().ndim();
    if !turn || ndim < 2 {
        return Ok(x.clone());
    }
    let mut order: Vec<usize> = (0..ndim).collect();
    order.swap(ndim - 1, ndim - 2);
    bench.permute(x, &order)
}

fn matmul_grad(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let (turn_x, turn_y) = (call.flag("trans_x"), call.flag("trans_y"));
    let x = turned(bench, call.one(0)?, turn_x)?;
    let y = turned(bench, call.one(1)?, turn_y)?;
    // Vectors are matrices of one row or column.
    let as_matrix = |bench: &mut Bench, t: &Layout, at: usize, is_vector: bool| -> Result<Layout> {
        let mut dims = t.shape().to_vec();
        if is_vector {
            dims.insert(at.min(dims.len()), 1);
        }
        bench.reshape(t, &Shape::new(&dims)?)
    };
    let (row, column) = (x.shape().ndim() == 1, y.shape().ndim() == 1);
    let x2 = as_matrix(bench, &x, 0, row)?;
    let y2 = as_matrix(bench, &y, 1, column)?;
    let dy = call.last()?;
    let dy = as_matrix(bench, dy, dy.shape().ndim() - usize::from(!column), row)?;
    let dy = as_matrix(bench, &dy, dy.shape().ndim(), column)?;
    let mut rule = rule::matmul_grad(x2.shape(), y2.shape(), dy.shape());
    rule.pass(&[2], LINEAR);
    let wanted = [x2.shape().clone(), y2.shape().clone()];
    let made = bench.run(&rule, &[&x2, &y2, &dy], &wanted)?;
    let (dx, dw) = (bench.reshape(&made[0], x.shape())?, bench.reshape(&made[1], y.shape())?);
    Ok(vec![Some(turned(bench, &dx, turn_x)?), Some(turned(bench, &dw, turn_y)?)])
}

/// The gradient of a weight over all rows, added to what there is.
fn weight_grad(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let (x, dy) = (call.one(0)?, call.one(1)?);
    let rows = &"abcdefgh"[..x.shape().ndim() - 1];
    let dw = einsum(bench, &format!("{rows}k,{rows}n->kn"), &[x, dy])?;
    let shape = dw.shape().clone();
    let dw = match call.maybe(2) {
        Some(sum) => bench.pointwise(&[sum, &dw], &shape, &[(&[0, 1], LINEAR)])?,
        None => dw,
    };
    if !call.flag("has_bias") {
        return Ok(vec![Some(dw)]);
    }
    let dims: Vec<usize> = (0..dy.shape().ndim() - 1).collect();
    let bias = Shape::new(&dy.shape()[dims.len()..])?;
    let db = bench.sum(dy, &dims, &bias)?;
    let db = match call.maybe(3) {
        Some(sum) => bench.pointwise(&[sum, &db], &bias, &[(&[0, 1], LINEAR)])?,
        None => db,
    };
    Ok(vec![Some(dw), Some(db)])
}

/// Any einsum of one output.
pub(super) fn einsum(bench: &mut Bench, text: &str, inputs: &[&Layout]) -> Result<Layout> {
    let shapes: Vec<&Shape> = inputs.iter().map(|layout| layout.shape()).collect();
    let mut rule = rule::einsum(text, &shapes)?;
    (0..inputs.len()).for_each(|i| rule.pass(&[i], LINEAR));
    let size = |factors: &rule::DimFactors| factors.iter().map(|&f| rule.factors[f].size).product::<usize>();
    let dims: Vec<usize> = rule.outputs[0].iter().map(size).collect();
    bench.one(&rule, inputs, &Shape::new(&dims)?)
}

/// For every operand: the gradient of the output with the other operands.
fn einsum_grad(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let (left, right) = call.text("equation").split_once("->").context("an equation with an arrow")?;
    let terms: Vec<&str> = left.split(',').collect();
    let (operands, dy) = (call.many(0), call.last()?);
    let mut outputs = Vec::new();
    for (place, term) in terms.iter().enumerate() {
        let others: Vec<usize> = (0..terms.len()).filter(|&other| other != place).collect();
        let mut text = right.to_string();
        others.iter().for_each(|&other| text += &format!(",{}", terms[other]));
        // Letters that only this operand has were summed away: their gradient is repeated.
        let known: String = term.chars().filter(|c| text.contains(*c)).collect();
        let inputs: Vec<&Layout> =
            std::iter::once(dy).chain(others.iter().map(|&other| &operands[other])).collect();
        let grad = einsum(bench, &format!("{text}->{known}"), &inputs)?;
        let shape = operands[place].shape();
        let ones: Vec<usize> =
            term.chars().zip(shape.iter()).map(|(c, &n)| if known.contains(c) { n } else { 1 }).collect();
        let grad = bench.reshape(&grad, &Shape::new(&ones)?)?;
        outputs.push(Some(bench.expand(&grad, shape)?));
    }
    Ok(outputs)
}
