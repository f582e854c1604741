//! The steps of generation: products of few rows, caches at positions of their own, and the choice of tokens.

use super::case::{Case, Input};
use super::compare::Tolerance;
use super::moves::some;
use super::training::looser;
use crate::array::Array;
use crate::device::Device;
use crate::error::Result;
use crate::ops::{self, Gate, KeyValues, Layer, Norm, RotaryTable, Rows};
use planaria_layout::DType;

pub(super) fn cases(large: bool) -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        // Rows of every kernel, more than any takes, and widths of one and of several rounds. f64 has none of them.
        for (rows, width) in [(1, 40), (2, 1032), (3, 64), (9, 64), (7, 2056), (50, 264)] {
            if dtype != DType::F64 || width < 2000 && rows < 50 {
                products(dtype, rows, width, &mut all);
            }
        }
        let long = if large { 700 } else { 70 };
        for (dim, heads, kv_heads, window) in [(64, 6, 2, None), (64, 4, 4, Some(9)), (16, 3, 1, None)] {
            caches(dtype, [dim, heads, kv_heads, long], window, &mut all);
        }
        if dtype != DType::F64 && large {
            caches(dtype, [128, 14, 2, long], None, &mut all);
        }
        choices(dtype, &mut all);
    }
    all
}

fn products(dtype: DType, rows: usize, width: usize, all: &mut Vec<Case>) {
    let shapes = [
        vec![rows, width],
        vec![width],
        vec![37, width],
        vec![37],
        vec![24, width],
        vec![8, width],
        vec![37, width],
    ];
    // Small enough that products of two results are finite in f16.
    let small = |x: Array| Array::scalar(0.125, dtype).and_then(|factor| x.mul(&factor)).unwrap_or(x);
    let inputs =
        shapes.iter().zip(70..).map(|(shape, seed)| Input::plain(small(some(shape, dtype, seed)))).collect();
    let name = format!("products of {rows} rows of {width} {dtype}");
    all.push(Case::new("generation", name, inputs, looser(dtype), |x, _| {
        let layer = |weight| Layer { weight, bias: None };
        let biased = Layer { weight: &x[2], bias: Some(&x[3]) };
        let norm = Some(Norm { weight: &x[1], eps: 1e-6 });
        let mut made = ops::linears(&x[0], norm, &[biased, layer(&x[4]), layer(&x[5])])?;
        made.push(ops::linear_added(&x[0], biased, &made[0])?);
        made.push(ops::gated_linears(&x[0], norm, [biased, layer(&x[6])], Gate::Silu)?);
        made.push(ops::gated_linears(&x[0], None, [layer(&x[6]), biased], Gate::Gelu)?);
        Ok(made)
    }));
}

/// Three rows at different places of their caches.
fn caches(
    dtype: DType,
    [dim, heads, kv_heads, long]: [usize; 4],
    window: Option<usize>,
    all: &mut Vec<Case>,
) {
    let (rows, capacity) = (3, long + 1);
    let cache = [rows, kv_heads, capacity, dim];
    let shapes = [&[rows, heads * dim][..], &[rows, kv_heads * dim], &[rows, kv_heads * dim], &cache, &cache];
    let mut inputs: Vec<Input> =
        shapes.iter().zip(80..).map(|(shape, seed)| Input::plain(some(shape, dtype, seed))).collect();
    let places = Array::from_slice(&[long as i64, 0, 17], &[rows]);
    inputs.extend(places.map(Input::plain));
    let name = format!("cache of {long}, {heads}/{kv_heads} heads of {dim}, window {window:?} {dtype}");
    all.push(Case::new("generation", name, inputs, looser(dtype), move |x, device| {
        let table = RotaryTable::new(capacity, dim, 1e4)?;
        let table = RotaryTable { cos: table.cos.to(device)?, sin: table.sin.to(device)? };
        let at = KeyValues { keys: &x[3], values: &x[4], positions: &x[5] };
        let q = ops::rotate_into([&x[0], &x[1], &x[2]], &table, &at)?;
        let out = ops::attend_rows(&q, &at, window)?;
        Ok(vec![q, x[3].clone(), x[4].clone(), out])
    }));
}

/// Four rows: one ends at its limit, one by a token, one had ended before, one goes on.
fn choices(dtype: DType, all: &mut Vec<Case>) {
    for size in [64, 1003] {
        let scores = some(&[4, size], dtype, 90);
        let name = format!("best of {size} {dtype}");
        all.push(Case::new("generation", name, vec![Input::plain(scores)], Tolerance::Bits, |x, device| {
            let best = x[0].to(Device::Cpu)?.argmax(Some(1), ops::Keep::No)?.to_vec::<i64>()?;
            let rows = Rows::new(&[3, 1, 2, 5], &[1, 4, 0, 3], &[best[1]], device)?;
            ops::take_best(&x[0], &rows)?;
            ops::take_best(&x[0].neg()?, &rows)?;
            told(&rows)
        }));
    }
}

fn told(rows: &Rows) -> Result<Vec<Array>> {
    Ok([&rows.positions, &rows.next, &rows.made, &rows.ended].map(Array::clone).to_vec())
}
