//! How fast a device is: bandwidths, products, attention, indexing. No comparison; an emulated device is left out.

use super::indexing::positions;
use super::moves::some;
use super::report::Report;
use crate::array::Array;
use crate::device::Device;
use crate::error::Result;
use crate::index::Index;
use crate::ops::{self, AttentionOptions, Put, Span};
use crate::random::{Key, Window};
use planaria_layout::{DType, Shape};
use std::time::Instant;

type Work<'a> = Box<dyn Fn() -> Result<Array> + 'a>;

pub(super) fn run(device: Device, report: &mut Report) -> Result<()> {
    bandwidths(device, report)?;
    products(device, report)?;
    indexing(device, report)
}

/// Seconds of one call, of `rounds`.
fn seconds(device: Device, rounds: u32, work: &Work<'_>) -> Result<f64> {
    drop(work()?);
    crate::synchronize(device)?;
    let begun = Instant::now();
    for _ in 0..rounds {
        drop(work()?);
    }
    crate::synchronize(device)?;
    Ok(begun.elapsed().as_secs_f64() / f64::from(rounds))
}

/// Matrix products and attention of Qwen2-0.5B with 8 x 2048 tokens, in TFLOP/s.
fn products(device: Device, report: &mut Report) -> Result<()> {
    // Constant values would draw less power than real ones.
    let of = ops::Distribution::Normal(crate::random::Normal::STANDARD);
    let drawn = |shape: &[usize], dtype| -> Result<Array> {
        let window = Window::whole(&Shape::new(shape)?);
        Array::random_on(&window, of, dtype, Key::new(6, 7), device)
    };
    let make = |shape: &[usize]| drawn(shape, DType::BF16);
    let (x, wide, square) = (make(&[16384, 896])?, make(&[9728, 896])?, make(&[8192, 8192])?);
    let single = drawn(&[2048, 2048], DType::F32)?;
    let (q, k) = (make(&[8, 2048, 14, 64])?, make(&[8, 2048, 2, 64])?);
    let (q, k) = (q.transpose(1, 2)?, k.transpose(1, 2)?);
    let options = AttentionOptions { span: Span::Causal, ..Default::default() };
    let found = ops::attention(&q, &k, &k, &options)?;
    let attended = 2.0 * 8.0 * 14.0 * 2048.0 * 2048.0 * 64.0;
    let work: Vec<(&str, f64, Work<'_>)> = vec![
        ("bf16 8192 cubed TFLOP/s", 2.0 * 8192f64.powi(3), Box::new(|| ops::matmul(&square, &square))),
        (
            "bf16 gate and up TFLOP/s",
            2.0 * 16384.0 * 896.0 * 9728.0,
            Box::new(|| ops::linear(&x, &wide, None)),
        ),
        ("f32 2048 cubed TFLOP/s", 2.0 * 2048f64.powi(3), Box::new(|| ops::matmul(&single, &single))),
        ("attention forward TFLOP/s", attended, Box::new(|| Ok(ops::attention(&q, &k, &k, &options)?.out))),
        (
            "attention gradient TFLOP/s",
            2.5 * attended,
            Box::new(|| Ok(ops::attention_grad(&found.out, &q, &k, &k, &found, &options)?.q)),
        ),
    ];
    for (name, flops, work) in work {
        report.figures.insert(name.to_string(), flops / seconds(device, 5, &work)? * 1e-12);
    }
    Ok(())
}

/// Indexing of 8192 x 8192 f32, in ms, and the fused operations of a layer.
fn indexing(device: Device, report: &mut Report) -> Result<()> {
    let x = Array::full_on(&[8192, 8192], 1.5, DType::F32, device)?;
    let mask = some(&[8192, 8192], DType::Bool, 1).to(device)?;
    let rows = positions(&[4 << 20], 8192, 2).to(device)?;
    let columns = positions(&[4 << 20], 8192, 3).to(device)?;
    let (values, ids) = (Array::full_on(&[4 << 20], 0.5, DType::F32, device)?, rows.narrow(0, 0, 8192)?);
    let h = Array::full_on(&[16384, 896], 0.5, DType::BF16, device)?;
    let weight = Array::full_on(&[896], 0.5, DType::F32, device)?;
    let scores = Array::full_on(&[2048, 151_936], 0.5, DType::BF16, device)?;
    let at = [Some(rows.clone()), Some(columns.clone())];
    let work: Vec<(&str, Work<'_>)> = vec![
        ("x[mask] ms", Box::new(|| x.masked_select(&mask))),
        ("masked_fill ms", Box::new(|| x.masked_fill(&mask, 0.0))),
        ("x[rows] ms", Box::new(|| x.get(&[Index::Take(ids.clone())]))),
        ("x[r, c] of 4M ms", Box::new(|| x.get(&[Index::Take(rows.clone()), Index::Take(columns.clone())]))),
        (
            "index_put of 4M ms",
            Box::new(|| x.index_put_assign(&at, &values, Put::Replace).map(|()| x.clone())),
        ),
        (
            "index_put of 4M accumulate ms",
            Box::new(|| x.index_put_assign(&at, &values, Put::Accumulate).map(|()| x.clone())),
        ),
        ("sum of all ms", Box::new(|| x.sum(&[], ops::Keep::No))),
        ("sum of rows ms", Box::new(|| x.sum(&[1], ops::Keep::No))),
        ("sum of columns ms", Box::new(|| x.sum(&[0], ops::Keep::No))),
        ("rms_norm 16384 x 896 bf16 ms", Box::new(|| Ok(ops::rms_norm(&h, &[896], Some(&weight), 1e-6)?.y))),
        (
            "add and rms_norm 16384 x 896 bf16 ms",
            Box::new(|| Ok(ops::add_rms_norm(&h, &h, &[896], Some(&weight), 1e-6)?.y)),
        ),
        ("softmax 2048 x 151936 bf16 ms", Box::new(|| scores.softmax(-1))),
        ("sort of 4M f32 ms", Box::new(|| Ok(values.sort(0, ops::Order::Ascending)?.0))),
    ];
    for (name, work) in work {
        report.figures.insert(name.to_string(), seconds(device, 5, &work)? * 1e3);
    }
    Ok(())
}

/// Bandwidths, in GB/s of bytes read and written.
fn bandwidths(device: Device, report: &mut Report) -> Result<()> {
    let n = 1usize << 28;
    let x = Array::full_on(&[n / 16384, 16384], 1.5, DType::F32, device)?;
    let half = Array::full_on(&[n / 16384, 16384], 1.5, DType::BF16, device)?;
    let row = Array::full_on(&[16384], 1.5, DType::F32, device)?;
    let work: Vec<(&str, usize, Work<'_>)> = vec![
        ("copy f32 GB/s", 8, Box::new(|| x.copy())),
        ("transpose f32 GB/s", 8, Box::new(|| x.transpose(0, 1)?.copy())),
        ("add f32 GB/s", 12, Box::new(|| x.add(&x))),
        ("add row f32 GB/s", 8, Box::new(|| x.add(&row))),
        ("exp f32 GB/s", 8, Box::new(|| x.exp())),
        ("silu bf16 GB/s", 4, Box::new(|| half.silu())),
        ("cast f32 to bf16 GB/s", 6, Box::new(|| x.cast(DType::BF16))),
        (
            "normal f32 GB/s",
            4,
            Box::new(|| {
                let of = crate::ops::Distribution::Normal(crate::random::Normal::STANDARD);
                Array::random_on(&Window::flat(0, n), of, DType::F32, Key::new(1, 2), device)
            }),
        ),
    ];
    for (name, bytes, work) in work {
        report.figures.insert(name.to_string(), (n * bytes) as f64 / seconds(device, 10, &work)? * 1e-9);
    }
    let piece = x.narrow(0, 0, n / 16384 / 4)?;
    let here = piece.to(Device::Cpu)?;
    let moves: [(&str, Work<'_>); 2] = [
        ("to the device GB/s", Box::new(|| here.to(device))),
        ("to the host GB/s", Box::new(|| piece.to(Device::Cpu))),
    ];
    for (name, work) in moves {
        report.figures.insert(name.into(), n as f64 / seconds(device, 5, &work)? * 1e-9);
    }
    let small = Array::full_on(&[16], 1.5, DType::F32, device)?;
    let begun = Instant::now();
    for _ in 0..2000 {
        drop(small.add(&small)?);
    }
    report.figures.insert("host us per launch".into(), begun.elapsed().as_secs_f64() / 2000.0 * 1e6);
    crate::synchronize(device)
}
