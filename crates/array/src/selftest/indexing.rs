//! Masks, indexing, gather and scatter, and their gradients.

use super::case::{Case, Input, View};
use super::compare::{Tolerance, summed};
use super::moves::some;
use super::others::{Work, add};
use crate::array::Array;
use crate::device::Device;
use crate::element::Scalar;
use crate::error::Result;
use crate::index::Index;
use crate::ops::{self, OwnValue, Put, ScatterReduce};
use planaria_layout::DType;

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in DType::ALL {
        indexing(dtype, &mut all);
        views(dtype, &mut all);
    }
    // Sorts and sums are slow on the emulated device.
    for dtype in [DType::F32, DType::BF16, DType::F64, DType::F8E4M3, DType::I32, DType::U8, DType::Bool] {
        repeated(dtype, &mut all);
        reduced(dtype, &mut all);
    }
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        gradients(dtype, &mut all);
    }
    all
}

pub(super) fn positions(shape: &[usize], size: i64, seed: u64) -> Array {
    let of = ops::Distribution::Integers { low: -size, high: size };
    let drawn = Array::random(shape, of, DType::I64, crate::random::Key::new(9, seed));
    drawn.unwrap_or_else(|_| Array::meta_of(Default::default(), DType::I64))
}

type Row = (&'static str, Work, Tolerance);

/// What is read through masks and positions.
fn reads() -> [Row; 7] {
    [
        ("x[mask]", |x| Ok(vec![x[0].masked_select(&x[1])?]), Tolerance::Bits),
        ("masked_fill", |x| Ok(vec![x[0].masked_fill(&x[1], Scalar::Int(1))?]), Tolerance::Bits),
        ("masked_scatter", |x| Ok(vec![x[0].masked_scatter(&x[1], &x[0])?]), Tolerance::Bits),
        ("nonzero", |x| Ok(vec![x[1].nonzero()?]), Tolerance::Bits),
        ("x[i]", |x| Ok(vec![x[0].get(&[Index::Take(x[2].clone())])?]), Tolerance::Bits),
        ("x[:, i]", |x| Ok(vec![x[0].get(&[Index::Ellipsis, Index::Take(x[3].clone())])?]), Tolerance::Bits),
        (
            "x[i, j]",
            |x| {
                let j = x[3].narrow(0, 0, x[2].numel())?;
                Ok(vec![x[0].get(&[Index::Take(x[2].clone()), Index::Take(j)])?])
            },
            Tolerance::Bits,
        ),
    ]
}

/// What is written or added through positions; `sums` is how close sums must be.
fn writes(sums: Tolerance) -> [Row; 6] {
    [
        (
            "index_put",
            |x| {
                let rows = Array::arange(0, 9, 1, DType::I64)?.to(x[0].device())?;
                Ok(vec![x[0].index_put(&[Some(rows)], &x[0].narrow(0, 1, 9)?, Put::Replace)?])
            },
            Tolerance::Bits,
        ),
        (
            "index_put accumulate",
            |x| {
                let value = x[0].narrow(0, 0, x[2].numel())?;
                Ok(vec![x[0].index_put(&[Some(x[2].clone())], &value, Put::Accumulate)?])
            },
            sums,
        ),
        (
            "gather",
            |x| {
                let at = x[3]
                    .abs()?
                    .reshape(&[1, 40])?
                    .broadcast_to(&[20, 40])?
                    .minimum(&Array::scalar(30, DType::I64)?)?;
                Ok(vec![x[0].gather(1, &at)?])
            },
            Tolerance::Bits,
        ),
        (
            "scatter_add",
            |x| {
                let at = x[3]
                    .abs()?
                    .reshape(&[1, 40])?
                    .broadcast_to(&[20, 40])?
                    .minimum(&Array::scalar(30, DType::I64)?)?;
                Ok(vec![x[0].scatter_add(1, &at, &x[0].gather(1, &at)?)?])
            },
            sums,
        ),
        (
            "index_select",
            |x| Ok(vec![x[0].index_select(1, &x[3].abs()?.minimum(&Array::scalar(30, DType::I64)?)?)?]),
            Tolerance::Bits,
        ),
        (
            "index_add",
            |x| {
                let at = x[2].abs()?.minimum(&Array::scalar(19, DType::I64)?)?;
                Ok(vec![x[0].index_add(0, &at, &x[0].narrow(0, 0, 12)?)?])
            },
            sums,
        ),
    ]
}

fn indexing(dtype: DType, all: &mut Vec<Case>) {
    let sums = if dtype.is_float() { summed(dtype) } else { Tolerance::Bits };
    for (name, work, close) in reads().into_iter().chain(writes(sums)) {
        let inputs = vec![
            Input::plain(some(&[20, 31], dtype, 31)),
            Input::plain(some(&[20, 31], DType::Bool, 32)),
            Input::plain(positions(&[12], 20, 33)),
            Input::plain(positions(&[40], 31, 34)),
        ];
        add(all, "index", format!("{name} {dtype}"), inputs, close, work);
    }
    let inputs = vec![Input::plain(some(&[20, 31], dtype, 31)), Input::plain(positions(&[12], 90, 33))];
    add(all, "late", format!("x[i] out of range {dtype}"), inputs, Tolerance::Bits, |x| {
        Ok(vec![x[0].get(&[Index::Take(x[1].clone())])?])
    });
}

fn inputs(dtype: DType) -> Vec<Input> {
    vec![
        Input::plain(some(&[20, 31], dtype, 31)),
        Input::plain(some(&[20, 31], DType::Bool, 32)),
        Input::plain(positions(&[12], 20, 33)),
        Input::plain(positions(&[40], 31, 34)),
    ]
}

/// Views that are not rows, several index arrays, masks over some dims, writes of one value.
fn views(dtype: DType, all: &mut Vec<Case>) {
    let table: [(&str, Work); 7] = [
        ("x[:, i] = one", |x| {
            let out = x[0].copy()?;
            out.set_scalar(&[Index::all(), Index::Take(x[3].clone())], 1)?;
            Ok(vec![out])
        }),
        ("x[mask] = one", |x| {
            let out = x[0].copy()?;
            out.set_scalar(&[Index::Mask(x[1].clone())], 1)?;
            Ok(vec![out])
        }),
        ("x[mask] = values", |x| {
            let (out, kept) = (x[0].copy()?, x[0].masked_select(&x[1])?);
            out.set(&[Index::Mask(x[1].clone())], &kept.flip(&[0])?)?;
            Ok(vec![out])
        }),
        ("x[:, mask]", |x| {
            Ok(vec![x[0].get(&[Index::all(), Index::Mask(x[1].narrow(0, 0, 1)?.flatten(0, -1)?)])?])
        }),
        ("x[mask, i]", |x| {
            let rows = x[1].narrow(1, 0, 1)?.flatten(0, -1)?;
            Ok(vec![x[0].get(&[Index::Mask(rows), Index::Take(x[3].narrow(0, 2, 1)?)])?])
        }),
        ("turned and stepped", |x| {
            let turned = x[0].transpose(0, 1)?.slice(1, Some(1), None, 2)?;
            let at = x[2].floor_div(&Array::scalar(3, DType::I64)?)?;
            Ok(vec![
                turned.get(&[Index::Take(at.clone())])?,
                turned.get(&[Index::all(), Index::Take(at.clone())])?,
                turned.get(&[Index::Take(at.clone()), Index::Take(at)])?,
            ])
        }),
        ("writes through a view", |x| {
            let out = x[0].copy()?;
            let view = out.transpose(0, 1)?.slice(1, Some(1), None, 2)?;
            let at = x[2].floor_div(&Array::scalar(3, DType::I64)?)?;
            view.set(&[Index::all(), Index::Take(at)], &view.narrow(1, 0, 1)?.copy()?)?;
            Ok(vec![out])
        }),
    ];
    for (name, work) in table.into_iter().chain(more_views()) {
        add(all, "index", format!("{name} {dtype}"), inputs(dtype), Tolerance::Bits, work);
    }
    let inputs = vec![
        Input::seen(some(&[20, 31], dtype, 31), View::Stepped),
        Input::plain(positions(&[2, 7], 20, 37)),
    ];
    add(all, "index", format!("x[i] stepped {dtype}"), inputs, Tolerance::Bits, |x| {
        Ok(vec![x[0].get(&[Index::Take(x[1].clone())])?, x[0].masked_select(&x[0].cast(DType::Bool)?)?])
    });
}

fn more_views() -> [(&'static str, Work); 3] {
    [
        ("x[i, None, :, j]", |x| {
            let cube = x[0].narrow(1, 0, 30)?.contiguous()?.reshape(&[20, 5, 6])?;
            let j = x[2].rem(&Array::scalar(6, DType::I64)?)?;
            Ok(vec![cube.get(&[Index::Take(x[2].clone()), Index::NewAxis, Index::all(), Index::Take(j)])?])
        }),
        ("take_along_dim", |x| Ok(vec![x[0].take_along_dim(&x[3].reshape(&[1, 40])?, 1)?])),
        ("index_copy and index_fill", |x| {
            let at = Array::from_slice(&[3i64, 0, 17], &[3])?.to(x[0].device())?;
            Ok(vec![
                x[0].index_copy(1, &at, &x[0].narrow(1, 5, 3)?)?,
                x[0].index_fill(0, &at, 1)?,
                x[0].scatter_scalar(1, &at.reshape(&[1, 3])?, 1)?,
            ])
        }),
    ]
}

/// Runs a case; on the host floats are summed in f64 and rounded once, which is what a device comes close to.
fn summing(x: &[Array], device: Device, work: impl Fn(&[Array]) -> Result<Vec<Array>>) -> Result<Vec<Array>> {
    let dtype = x[0].dtype();
    if device != Device::Cpu || !dtype.is_float() {
        return work(x);
    }
    let wide = |x: &Array| if x.dtype().is_float() { x.cast(DType::F64) } else { Ok(x.clone()) };
    let wide = x.iter().map(wide).collect::<Result<Vec<_>>>()?;
    work(&wide)?.iter().map(|y| y.cast(dtype)).collect()
}

/// How close such sums must be.
fn once(dtype: DType) -> Tolerance {
    match dtype {
        DType::F8E4M3 | DType::F8E5M2 => Tolerance::Norm(2e-2),
        _ if dtype.is_float() => summed(dtype),
        _ => Tolerance::Bits,
    }
}

/// Places named many times: the last write counts, and sums run over thousands of values.
fn repeated(dtype: DType, all: &mut Vec<Case>) {
    let sums = once(dtype);
    let table: [(&str, Work, Tolerance); 5] = [
        (
            "index_put, the last of many",
            |x| Ok(vec![x[0].index_put(&[Some(x[2].clone())], &x[1], Put::Replace)?]),
            Tolerance::Bits,
        ),
        (
            "scatter, the last of many",
            |x| {
                let flat = x[0].flatten(0, -1)?;
                Ok(vec![flat.scatter(0, &x[3], &x[1].flatten(0, -1)?.narrow(0, 0, x[3].numel())?)?])
            },
            Tolerance::Bits,
        ),
        (
            "index_put sums of many",
            |x| Ok(vec![x[0].index_put(&[Some(x[2].clone())], &x[1], Put::Accumulate)?]),
            sums,
        ),
        (
            "scatter_add of many",
            |x| {
                let flat = x[0].flatten(0, -1)?;
                Ok(vec![flat.scatter_add(0, &x[3], &x[1].flatten(0, -1)?.narrow(0, 0, x[3].numel())?)?])
            },
            sums,
        ),
        (
            "index_put one into many",
            |x| {
                Ok(vec![x[0].index_put(
                    &[Some(x[2].clone())],
                    &x[1].narrow(0, 0, 1)?.narrow(1, 0, 1)?,
                    Put::Accumulate,
                )?])
            },
            sums,
        ),
    ];
    let flat = positions(&[9001], 60, 39).abs().and_then(|at| at.rem(&Array::scalar(60, DType::I64)?));
    for (name, work, close) in table {
        let inputs = vec![
            Input::plain(some(&[6, 16], dtype, 31)),
            Input::plain(some(&[1500, 16], dtype, 38)),
            Input::plain(positions(&[1500], 6, 40)),
            Input::plain(flat.clone().unwrap_or_else(|_| positions(&[9001], 60, 39))),
        ];
        all.push(Case::new("index", format!("{name} {dtype}"), inputs, close, move |x, device| {
            summing(x, device, work)
        }));
    }
}

fn reduced(dtype: DType, all: &mut Vec<Case>) {
    let close = once(dtype);
    for reduction in
        [ScatterReduce::Sum, ScatterReduce::Prod, ScatterReduce::Mean, ScatterReduce::Max, ScatterReduce::Min]
    {
        for own in [OwnValue::Include, OwnValue::Exclude] {
            let at =
                positions(&[20, 40], 31, 34).abs().and_then(|at| at.rem(&Array::scalar(29, DType::I64)?));
            let inputs = vec![
                Input::plain(some(&[20, 31], dtype, 31)),
                Input::plain(some(&[20, 40], dtype, 35)),
                Input::plain(at.unwrap_or_else(|_| positions(&[20, 40], 31, 34))),
            ];
            let name = format!("scatter_reduce {reduction:?} {own:?} {dtype}");
            all.push(Case::new("index", name, inputs, close, move |x, device| {
                summing(x, device, |x| Ok(vec![x[0].scatter_reduce(1, &x[2], &x[1], reduction, own)?]))
            }));
        }
    }
}

fn gradients(dtype: DType, all: &mut Vec<Case>) {
    let table: [(&str, Work); 6] = [
        ("gradient of x[i]", |x| {
            let dy = x[0].narrow(0, 0, 12)?;
            Ok(vec![ops::get_grad(&dy, &[Index::Take(x[2].clone())], &[20, 31])?])
        }),
        ("gradient of x[mask]", |x| {
            let dy = x[0].masked_select(&x[1])?;
            Ok(vec![ops::masked_select_grad(&dy, &x[1], &[20, 31])?])
        }),
        ("gradients of masked_fill", |x| {
            Ok(vec![
                ops::masked_fill_grad(&x[0], &x[1], &[1, 31])?,
                ops::masked_fill_value_grad(&x[0], &x[1])?,
            ])
        }),
        ("gradients of gather", |x| {
            let at = x[3].abs()?.minimum(&Array::scalar(30, DType::I64)?)?.reshape(&[1, 40])?;
            let at = at.broadcast_to(&[20, 40])?;
            let dy = x[0].gather(1, &at)?;
            Ok(vec![
                ops::gather_grad(&dy, 1, &at, &[20, 31])?,
                ops::scatter_grad(&x[0], 1, &at)?,
                ops::take_along_dim_grad(&dy, &at, 1, &[20, 31])?,
            ])
        }),
        ("gradients of index_put", |x| {
            let at = [Some(x[2].clone())];
            Ok(vec![
                ops::index_put_grad(&x[0], &at, Put::Replace)?,
                ops::index_put_value_grad(&x[0], &at, &[31])?,
            ])
        }),
        ("gradients of sort and max", |x| {
            let ((_, i), (_, j)) = (x[0].topk(3, 1, ops::Which::Largest)?, x[0].max(0, ops::Keep::No)?);
            Ok(vec![
                ops::topk_grad(&x[0].narrow(1, 0, 3)?, &i, &[20, 31], 1)?,
                ops::max_grad(&x[0].narrow(0, 0, 1)?.flatten(0, -1)?, &j, &[20, 31], 0)?,
                ops::mean_grad(&x[0].narrow(0, 0, 1)?, &[20, 31], &[0])?,
            ])
        }),
    ];
    for (name, work) in table {
        add(all, "index", format!("{name} {dtype}"), inputs(dtype), summed(dtype), work);
    }
}
