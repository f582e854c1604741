//! Products: matmul and its kin, einsum, convolutions, attention, gated units.

use super::call::Call;
use super::program::{Outputs, one};
use anyhow::{Context, Result};
use planaria_array::ops::{RotaryLayout, RotaryPairing, RotaryTable, Span};
use planaria_tensor::ops::{self, AttentionOptions, RotaryOptions, RotaryPositions, Windows};
use planaria_tensor::{Keep, Tensor};

pub(super) fn run(call: &Call<'_, Tensor>) -> Result<Option<Outputs>> {
    match call.name {
        "matmul" | "bmm" => {
            let x = turned(call.one(0)?, call.flag("trans_x"))?;
            one(x.matmul(&turned(call.one(1)?, call.flag("trans_y"))?))
        }
        "linear_v2" | "fused_gemm_epilogue" => {
            let x = turned(call.one(0)?, call.flag("trans_x"))?;
            let is_turned = call.flag("trans_y") || call.flag("transpose_weight");
            // Our weight is `[out, in]`.
            let y = ops::linear(&x, &turned(call.one(1)?, !is_turned)?, call.maybe(2))?;
            Ok(Some(vec![Some(y), None]))
        }
        "fused_linear_param_grad_add" => weight_grad(call),
        "einsum" => one(ops::einsum(call.text("equation"), &call.many(0))),
        "swiglu" => match call.maybe(1) {
            Some(up) => one(ops::swiglu(call.one(0)?, up)),
            None => one(ops::swiglu_packed(call.one(0)?)),
        },
        "conv2d" | "conv3d" | "depthwise_conv2d" | "conv2d_transpose" => conv(call),
        "flash_attention" | "flash_attention_static" | "flashmask_attention" => attention(call),
        "fused_rotary_position_embedding" => rotary(call),
        _ => Ok(None),
    }
}

/// The last two dims exchanged, if asked for.
fn turned(x: &Tensor, turn: bool) -> Result<Tensor> {
    Ok(if turn && x.ndim() > 1 { x.transpose(-2, -1)? } else { x.clone() })
}

/// The gradient of a weight over all rows, added to what there is.
fn weight_grad(call: &Call<'_, Tensor>) -> Result<Option<Outputs>> {
    let (x, dy) = (call.one(0)?, call.one(1)?);
    let rows = |t: &Tensor| if t.ndim() == 2 { Ok(t.clone()) } else { t.flatten(0, -2) };
    let added = |grad: Tensor, sum: Option<&Tensor>| match sum {
        Some(sum) => sum.add(&grad),
        None => Ok(grad),
    };
    let dw = added(rows(x)?.transpose(0, 1)?.matmul(&rows(dy)?)?, call.maybe(2))?;
    if !call.flag("has_bias") {
        return Ok(Some(vec![Some(dw), None]));
    }
    let dims: Vec<i64> = (0..dy.ndim() as i64 - 1).collect();
    Ok(Some(vec![Some(dw), Some(added(dy.sum(&dims, Keep::No)?, call.maybe(3))?)]))
}

fn conv(call: &Call<'_, Tensor>) -> Result<Option<Outputs>> {
    let (x, weight) = (call.one(0)?, call.one(1)?);
    let spatial = x.ndim() - 2;
    if call.text("padding_algorithm") != "EXPLICIT" {
        return Ok(None);
    }
    let list = |name: &str, default: usize| -> Result<Vec<usize>> {
        let given = call.ints(name);
        (0..spatial).map(|d| Ok(given.get(d).map_or(Ok(default), |&n| usize::try_from(n))?)).collect()
    };
    let windows = Windows {
        stride: list("strides", 1)?.into_iter().collect(),
        padding: list("paddings", 0)?.into_iter().collect(),
        dilation: list("dilations", 1)?.into_iter().collect(),
    };
    let groups = usize::try_from(call.attrs["groups"].as_i64().unwrap_or(1))?;
    // Channels at the end are brought to the front and back, as ours stand there.
    let last = call.text("data_format").ends_with('C');
    let n = x.ndim() as i64;
    let front: Vec<i64> = [0, n - 1].into_iter().chain(1..n - 1).collect();
    let back: Vec<i64> = std::iter::once(0).chain(2..n).chain([1]).collect();
    let moved = if last { x.permute(&front)? } else { x.clone() };
    let y = match call.name {
        "conv2d_transpose" => {
            let extra = list("output_padding", 0)?;
            ops::conv_transpose(&moved, weight, None, &windows, &extra, groups)?
        }
        _ => ops::conv(&moved, weight, None, &windows, groups)?,
    };
    one(if last { y.permute(&back) } else { Ok(y) })
}

/// Length before heads to heads before length, and back.
const TURN: [i64; 4] = [0, 2, 1, 3];

fn attention(call: &Call<'_, Tensor>) -> Result<Option<Outputs>> {
    if call.name == "flashmask_attention" && call.maybe(3).is_some() {
        return Ok(None);
    }
    let turn = |place: usize| -> Result<Tensor> { Ok(call.one(place)?.permute(&TURN)?) };
    let (q, k, v) = (turn(0)?, turn(1)?, turn(2)?);
    let span = if call.flag("causal") { Span::Causal } else { Span::All };
    let mask = match call.name {
        "flash_attention_static" => call.maybe(4),
        _ => call.maybe(4).or(call.maybe(3)).filter(|mask| mask.ndim() == 4),
    };
    let options = AttentionOptions { span, mask, ..AttentionOptions::default() };
    let y = ops::attention(&q, &k, &v, &options)?.permute(&TURN)?;
    Ok(Some(vec![Some(y), None, None, None]))
}

/// Every tensor given is turned on its own.
fn rotary(call: &Call<'_, Tensor>) -> Result<Option<Outputs>> {
    // Angles that are given as tensors are not a table of ours.
    if call.flag("time_major") || (3..6).any(|place| call.maybe(place).is_some()) {
        return Ok(None);
    }
    let pairing = match call.flag("use_neox_rotary_style") {
        true => RotaryPairing::Interleaved,
        false => RotaryPairing::Halves,
    };
    let layout = RotaryLayout::SeqHeads;
    let mut outputs = Vec::new();
    for place in 0..3 {
        let Some(x) = call.maybe(place) else {
            outputs.push(None);
            continue;
        };
        let [_, length, _, width] = x.shape()[..] else { return Ok(None) };
        let table = RotaryTable::new(length, width, call.number("rotary_emb_base", 10_000.0))?;
        let options = RotaryOptions { pairing, layout, positions: RotaryPositions::From(0) };
        outputs.push(Some(ops::rotary(x, &table, &options).context("rotary")?));
    }
    Ok(Some(outputs))
}
