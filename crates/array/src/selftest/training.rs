//! The fused operations of training: products, norms, attention, losses, optimizers.

use super::case::{Case, Input, View};
use super::compare::{Tolerance, summed};
use super::indexing::positions;
use super::moves::some;
use super::others::{Work, add};
use crate::array::Array;
use crate::error::Result;
use crate::ops::{self, AttentionOptions, Bounds, CrossEntropyOptions, Gate, Keep, Reduction, Span};
use planaria_layout::DType;

pub(super) fn cases(large: bool) -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        basics(dtype, &mut all);
        products(dtype, &mut all);
        norms(dtype, &mut all);
        losses(dtype, &mut all);
        rotations(dtype, &mut all);
        attentions(dtype, large, &mut all);
        optimizers(dtype, &mut all);
    }
    all
}

/// How close gradients of products must be.
pub(super) fn looser(dtype: DType) -> Tolerance {
    match summed(dtype) {
        Tolerance::Norm(most) => Tolerance::Norm(4.0 * most),
        other => other,
    }
}

fn ids(shape: &[usize], size: i64, seed: u64) -> Array {
    let drawn = positions(shape, size, seed);
    let wrapped = drawn.rem(&Array::scalar(size, DType::I64).unwrap_or_else(|_| drawn.clone()));
    wrapped.unwrap_or(drawn)
}

fn basics(dtype: DType, all: &mut Vec<Case>) {
    let table: [(&str, Work); 9] = [
        ("softmax", |x| Ok(vec![x[0].softmax(-1)?, x[0].log_softmax(-1)?])),
        ("softmax of columns", |x| Ok(vec![x[0].softmax(0)?, x[0].narrow(1, 1, 29)?.log_softmax(1)?])),
        ("softmax gradients", |x| {
            Ok(vec![
                ops::softmax_grad(&x[1], &x[0].softmax(-1)?, -1)?,
                ops::log_softmax_grad(&x[1], &x[0].log_softmax(0)?, 0)?,
            ])
        }),
        ("swiglu", |x| Ok(vec![ops::swiglu(&x[0], &x[1])?, ops::swiglu_packed(&x[0])?])),
        ("swiglu gradient", |x| ops::swiglu_grad(&x[0], &x[1], &x[0]).map(|g| vec![g.gate, g.up])),
        ("gelu glu and packed gradient", |x| {
            let grad = ops::glu_grad(&x[0], &x[1], &x[0], Gate::Gelu)?;
            let half = x[0].narrow(1, 0, 16)?;
            Ok(vec![
                ops::glu(&x[0], &x[1], Gate::GeluTanh)?,
                grad.gate,
                grad.up,
                ops::glu_packed_grad(&half, &x[1], Gate::GeluTanh)?,
            ])
        }),
        ("embedding", |x| Ok(vec![ops::embedding(&x[0], &x[4])?, x[4].one_hot(64, x[0].dtype())?])),
        ("embedding gradient", |x| {
            let rows = ops::embedding(&x[0], &x[4])?;
            Ok(vec![
                ops::embedding_grad(&rows, &x[4], 64, None)?,
                ops::embedding_grad(&rows, &x[4], 70, Some(3))?,
            ])
        }),
        ("dropout", |x| {
            let window = crate::random::Window::whole(x[0].shape());
            Ok(vec![ops::dropout(&x[0], 0.3, crate::random::Key::new(4, 5), &window)?])
        }),
    ];
    for (name, work) in table {
        let inputs = vec![
            Input::plain(some(&[64, 32], dtype, 41)),
            Input::plain(some(&[64, 32], dtype, 42)),
            Input::plain(some(&[64], dtype, 43)),
            Input::plain(some(&[32], dtype, 44)),
            Input::plain(ids(&[40], 64, 35)),
        ];
        add(all, "training", format!("{name} {dtype}"), inputs, summed(dtype), work);
    }
    let inputs = vec![Input::plain(some(&[3, 5001], dtype, 45))];
    add(all, "training", format!("softmax of long rows {dtype}"), inputs, summed(dtype), |x| {
        let y = x[0].softmax(-1)?;
        Ok(vec![ops::softmax_grad(&x[0], &y, -1)?, y])
    });
    let inputs = vec![Input::plain(some(&[64, 8], dtype, 41)), Input::plain(positions(&[9], 90, 36))];
    add(all, "late", format!("embedding out of range {dtype}"), inputs, Tolerance::Bits, |x| {
        Ok(vec![ops::embedding(&x[0], &x[1])?])
    });
}

fn products(dtype: DType, all: &mut Vec<Case>) {
    let table: [(&str, Work); 5] = [
        ("matmul", |x| Ok(vec![ops::matmul(&x[0], &x[1].transpose(0, 1)?)?])),
        ("matmul of columns", |x| Ok(vec![ops::matmul(&x[0].transpose(0, 1)?, &x[1])?])),
        ("batched matmul", |x| {
            let batch = x[0].narrow(1, 0, 64)?.contiguous()?.reshape(&[4, 35, 32])?;
            let (one, turned) = (batch.narrow(0, 0, 1)?, batch.transpose(1, 2)?);
            Ok(vec![ops::matmul(&batch, &turned)?, ops::matmul(&one, &turned)?])
        }),
        ("linear", |x| Ok(vec![ops::linear(&x[0], &x[1], Some(&x[2]))?, ops::linear(&x[0], &x[1], None)?])),
        ("vectors", |x| {
            let row = x[0].narrow(0, 3, 1)?.flatten(0, -1)?;
            Ok(vec![
                ops::matmul(&x[1], &row)?,
                ops::matmul(&row, &row)?,
                ops::matmul(&row, &x[1].transpose(0, 1)?)?,
            ])
        }),
    ];
    for (name, work) in table {
        let inputs = vec![
            Input::plain(some(&[70, 75], dtype, 51)),
            Input::plain(some(&[70, 75], dtype, 52)),
            Input::plain(some(&[70], dtype, 53)),
        ];
        add(all, "matmul", format!("{name} {dtype}"), inputs, summed(dtype), work);
    }
    // Extents that libraries take in whole packets, and a sum of no terms.
    let inputs = vec![Input::plain(some(&[192, 256], dtype, 54)), Input::plain(some(&[320, 256], dtype, 55))];
    add(all, "matmul", format!("large {dtype}"), inputs, looser(dtype), |x| {
        let y = ops::linear(&x[0], &x[1], None)?;
        let none = ops::matmul(&x[0].narrow(1, 0, 0)?, &x[1].narrow(1, 0, 0)?.transpose(0, 1)?)?;
        Ok(vec![ops::matmul(&y.transpose(0, 1)?, &x[0])?, ops::matmul(&y, &x[1])?, y, none])
    });
    // Sums long enough to be cut into parts.
    let inputs = vec![Input::plain(some(&[4096, 48], dtype, 59)), Input::plain(some(&[4096, 32], dtype, 60))];
    add(all, "matmul", format!("long sums {dtype}"), inputs, looser(dtype), |x| {
        Ok(vec![ops::matmul(&x[0].transpose(0, 1)?, &x[1])?, x[0].narrow(1, 0, 40)?.sum(&[0], Keep::No)?])
    });
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let inputs = vec![
        Input::plain(some(&[64, 48], dtype, 56)),
        Input::plain(some(&[64, 32], dtype, 57)),
        Input::plain(some(&[48, 32], wide, 58)),
    ];
    add(all, "matmul", format!("added {dtype}"), inputs, looser(dtype), |x| {
        let turned = x[0].transpose(0, 1)?;
        ops::add_matmul(&x[2], &turned, &x[1])?;
        ops::add_matmul(&x[2], &turned, &x[1])?;
        Ok(vec![x[2].clone()])
    });
}

fn norms(dtype: DType, all: &mut Vec<Case>) {
    for cols in [32usize, 100, 896, 1500] {
        for weight in [dtype, DType::F32] {
            let inputs = vec![
                Input::plain(some(&[150, cols], dtype, 61)),
                Input::plain(some(&[150, cols], dtype, 62)),
                Input::plain(some(&[cols], weight, 63)),
                Input::plain(some(&[cols], weight, 64)),
            ];
            let name = format!("norms of {cols} {dtype} weight {weight}");
            all.push(Case::new("training", name, inputs, looser(dtype), move |x, _| {
                let rms = ops::rms_norm(&x[0], &[cols], Some(&x[2]), 1e-6)?;
                let layer = ops::layer_norm(&x[0], &[cols], Some(&x[2]), Some(&x[3]), 1e-5)?;
                let plain = ops::rms_norm(&x[0], &[cols], None, 1e-6)?;
                let (w, (mean, rstd)) = (Some(&x[2]), (&layer.mean, &layer.rstd));
                let a = ops::rms_norm_grad(&x[1], &x[0], &[cols], &rms.rstd, w, None)?;
                let b = ops::layer_norm_grad(&x[1], &x[0], &[cols], mean, rstd, w, None)?;
                Ok(vec![rms.y, rms.rstd, layer.y, layer.mean, plain.y, a.x, a.weight, b.x, b.weight, b.bias])
            }));
            let inputs = (0..3).map(|i| Input::plain(some(&[150, cols], dtype, 65 + i)));
            let inputs = inputs.chain([Input::plain(some(&[cols], weight, 68))]).collect();
            let name = format!("norms of sums of {cols} {dtype} weight {weight}");
            all.push(Case::new("training", name, inputs, looser(dtype), move |x, _| {
                let w = Some(&x[3]);
                let both = ops::add_rms_norm(&x[0], &x[1], &[cols], w, 1e-6)?;
                let layer = ops::layer_norm(&both.sum, &[cols], w, w, 1e-5)?;
                let (mean, rstd) = (&layer.mean, &layer.rstd);
                let a = ops::rms_norm_grad(&x[2], &both.sum, &[cols], &both.rstd, w, Some(&x[1]))?;
                let b = ops::layer_norm_grad(&x[2], &both.sum, &[cols], mean, rstd, w, Some(&x[1]))?;
                Ok(vec![both.sum, both.y, both.rstd, a.x, a.weight, b.x, b.weight, b.bias])
            }));
        }
    }
}

fn losses(dtype: DType, all: &mut Vec<Case>) {
    for (reduction, smoothing, cols) in
        [(Reduction::Mean, 0.0, 64usize), (Reduction::Sum, 0.1, 1003), (Reduction::None, 0.0, 1003)]
    {
        let labels = ids(&[37], cols as i64, 71);
        let inputs = vec![Input::plain(some(&[37, cols], dtype, 72)), Input::plain(labels)];
        let name = format!("cross_entropy {reduction:?} smoothing {smoothing} of {cols} {dtype}");
        all.push(Case::new("training", name, inputs, looser(dtype), move |x, device| {
            let ignore_index = Some(3);
            let options = CrossEntropyOptions {
                reduction,
                label_smoothing: smoothing,
                ignore_index,
                ..Default::default()
            };
            let found = ops::cross_entropy(&x[0], &x[1], &options)?;
            let dloss = Array::full_on(found.loss.shape(), 0.5, dtype, device)?;
            let grad = ops::cross_entropy_grad(&dloss, &x[0], &found.lse, &x[1], &options)?;
            Ok(vec![found.loss, found.lse, grad])
        }));
    }
    for cols in [64usize, 1003] {
        let labels = ids(&[37], cols as i64, 73);
        let inputs = vec![Input::plain(some(&[37, cols], dtype, 74)), Input::plain(labels)];
        let name = format!("cross_entropy into gradient of {cols} {dtype}");
        all.push(Case::new("training", name, inputs, looser(dtype), move |x, _| {
            let (loss, grad) = ops::cross_entropy_into_grad(x[0].copy()?, &x[1], 3)?;
            Ok(vec![loss, grad])
        }));
    }
}

fn rotations(dtype: DType, all: &mut Vec<Case>) {
    use ops::{RotaryLayout, RotaryOptions, RotaryPairing, RotaryPositions, RotaryTable};
    for layout in [RotaryLayout::SeqHeads, RotaryLayout::HeadsSeq] {
        for pairing in [RotaryPairing::Halves, RotaryPairing::Interleaved] {
            for dim in [64usize, 22] {
                let inputs = vec![
                    Input::plain(some(&[2, 10, 10, dim], dtype, 81)),
                    Input::plain(ids(&[2, 10], 40, 82)),
                ];
                let name = format!("rotary {layout:?} {pairing:?} {dim} {dtype}");
                all.push(Case::new("training", name, inputs, summed(dtype), move |x, device| {
                    let table = RotaryTable::new(40, dim / 4 * 2, 1e4)?;
                    let table = RotaryTable { cos: table.cos.to(device)?, sin: table.sin.to(device)? };
                    let from = RotaryOptions { pairing, layout, positions: RotaryPositions::From(7) };
                    let given = RotaryOptions { positions: RotaryPositions::Ids(&x[1]), ..from };
                    Ok(vec![
                        ops::rotary(&x[0], &table, &from)?,
                        ops::rotary(&x[0], &table, &given)?,
                        ops::rotary_grad(&x[0], &table, &given)?,
                    ])
                }));
            }
        }
    }
}

fn attentions(dtype: DType, large: bool, all: &mut Vec<Case>) {
    let close = match dtype {
        DType::F32 | DType::F64 => looser(dtype),
        _ => Tolerance::Norm(1e-2),
    };
    for dim in [64usize, 128, 40] {
        for span in [Span::All, Span::Causal] {
            for masked in [0, 1, 2] {
                // Several tiles of the tensor-core kernels, or few rows.
                let long = if large { 150 } else { 9 };
                let inputs = vec![
                    Input::seen(some(&[2, long, 4, dim], dtype, 91), View::Plain),
                    Input::plain(some(&[2, long, 2, dim], dtype, 92)),
                    Input::plain(some(&[2, long, 2, dim], dtype, 93)),
                    Input::plain(some(&[2, 4, long, dim], dtype, 94)),
                    Input::plain(some(&[1, 4, long, long], DType::Bool, 95)),
                    Input::plain(some(&[2, 1, long, long], dtype, 96)),
                ];
                let name = format!("{dim} {span:?} mask {masked} {dtype}");
                all.push(Case::new("attention", name, inputs.clone(), close, move |x, _| {
                    attend(x, span, masked, None)
                }));
                if span == Span::Causal {
                    // Documents in the first row, a window over the second.
                    let starts = [0, long / 9, long / 3, long - 2, long];
                    let within = |at: usize| {
                        starts.windows(2).find(|pair| at < pair[1]).map(|pair| (pair[0], pair[1]))
                    };
                    let wide = long / 4;
                    let document = (0..long).map(|at| within(at).unwrap_or((0, long)));
                    let window = (0..long).map(|at| (at.saturating_sub(wide - 1), (at + wide).min(long)));
                    let bounds: Vec<(usize, usize)> = document.chain(window).collect();
                    let name = format!("{dim} documents and window mask {masked} {dtype}");
                    all.push(Case::new("attention", name, inputs, close, move |x, _| {
                        attend(x, span, masked, Some(&bounds))
                    }));
                }
            }
        }
    }
}

fn attend(x: &[Array], span: Span, masked: u8, bounds: Option<&[(usize, usize)]>) -> Result<Vec<Array>> {
    let mask = [None, Some(&x[4]), Some(&x[5])][usize::from(masked)];
    let (rows, long) = (x[0].shape()[0], x[0].shape()[1]);
    let of = |bound: fn(&(usize, usize)) -> usize| {
        let all: Option<Vec<i32>> =
            bounds.map(|bounds| bounds.iter().map(|pair| bound(pair) as i32).collect());
        all.map(|all| Array::from_slice(&all, &[rows, long])?.to(x[0].device())).transpose()
    };
    let (first, end) = (of(|pair| pair.0)?, of(|pair| pair.1)?);
    let bounds = first.as_ref().zip(end.as_ref()).map(|(first, end)| Bounds { first, end });
    let options = AttentionOptions { span, mask, bounds, ..Default::default() };
    // As a projection leaves them: heads after rows.
    let (q, k, v) = (x[0].transpose(1, 2)?, x[1].transpose(1, 2)?, x[2].transpose(1, 2)?);
    let found = ops::attention(&q, &k, &v, &options)?;
    let grads = ops::attention_grad(&x[3], &q, &k, &v, &found, &options)?;
    Ok(vec![found.out, found.lse, grads.q, grads.k, grads.v])
}

fn optimizers(dtype: DType, all: &mut Vec<Case>) {
    use ops::{AdamW, AdamWArrays, Momentum, Sgd, SgdArrays};
    let narrow = matches!(dtype, DType::BF16 | DType::F16);
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    for (grad, master, max) in [(dtype, false, false), (dtype, narrow, true), (wide, narrow, false)] {
        let inputs = vec![
            Input::plain(some(&[3, 5000], dtype, 101)),
            Input::plain(some(&[3, 5000], grad, 102)),
            Input::plain(some(&[3, 5000], wide, 103)),
            Input::plain(some(&[3, 5000], wide, 104).abs().unwrap_or_else(|_| some(&[1], wide, 1))),
            Input::plain(some(&[3, 5000], DType::F32, 105)),
            Input::plain(some(&[3, 5000], wide, 106).abs().unwrap_or_else(|_| some(&[1], wide, 1))),
        ];
        let name = format!("adamw {dtype} gradient {grad} master {master} amsgrad {max}");
        all.push(Case::new("optimizer", name, inputs, Tolerance::Values, move |x, _| {
            let arrays = AdamWArrays {
                param: &x[0],
                grad: &x[1],
                exp_avg: &x[2],
                exp_avg_sq: &x[3],
                max_exp_avg_sq: max.then_some(&x[5]),
                master: master.then_some(&x[4]),
            };
            let adamw = AdamW { lr: 1e-2, grad_scale: 0.7, ..Default::default() };
            adamw.step(3, &[arrays])?;
            adamw.step(4, &[arrays])?;
            Ok(vec![x[0].clone(), x[2].clone(), x[3].clone(), x[4].clone(), x[5].clone()])
        }));
        let inputs = vec![
            Input::plain(some(&[3, 500], dtype, 101)),
            Input::plain(some(&[3, 500], grad, 102)),
            Input::plain(some(&[3, 500], wide, 103)),
            Input::plain(some(&[3, 500], DType::F32, 105)),
        ];
        let name = format!("sgd {dtype} gradient {grad} master {master}");
        all.push(Case::new("optimizer", name, inputs, Tolerance::Values, move |x, _| {
            let arrays = SgdArrays {
                param: &x[0],
                grad: &x[1],
                velocity: Some(&x[2]),
                master: master.then_some(&x[3]),
            };
            let momentum_kind = if master { Momentum::Nesterov } else { Momentum::Classic };
            let sgd = Sgd { lr: 0.1, momentum: 0.9, weight_decay: 0.01, momentum_kind, ..Default::default() };
            sgd.step(1, &[arrays])?;
            sgd.step(2, &[arrays])?;
            Ok(vec![x[0].clone(), x[2].clone(), x[3].clone()])
        }));
    }
}
