//! The other families: reductions, scans, sorting, masks, indexing, joins, and the fused operations of training.

use super::case::{Case, Input, View};
use super::compare::{Tolerance, summed};
use super::moves::some;
use crate::array::Array;
use crate::element::Scalar;
use crate::error::Result;
use crate::index::Index;
use crate::ops::{self, Keep, Order, Put, Side, Which};
use planaria_layout::DType;

type Work = fn(&[Array]) -> Result<Vec<Array>>;

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in DType::ALL {
        reductions(dtype, &mut all);
        indexing(dtype, &mut all);
        ordering(dtype, &mut all);
    }
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        training(dtype, &mut all);
    }
    all
}

fn add(
    all: &mut Vec<Case>,
    family: &'static str,
    name: String,
    inputs: Vec<Input>,
    close: Tolerance,
    work: Work,
) {
    all.push(Case::new(family, name, inputs, close, move |x, _| work(x)));
}

fn reductions(dtype: DType, all: &mut Vec<Case>) {
    let close = if dtype.is_float() { summed(dtype) } else { Tolerance::Bits };
    let sums: [(&str, Work, Tolerance); 12] = [
        ("sum of all", |x| Ok(vec![x[0].sum(&[], Keep::No)?]), close),
        ("sum of rows", |x| Ok(vec![x[0].sum(&[-1], Keep::Yes)?]), close),
        ("sum of columns", |x| Ok(vec![x[0].sum(&[0], Keep::No)?]), close),
        ("mean", |x| Ok(vec![x[0].mean(&[0, -1], Keep::No)?]), close),
        ("prod", |x| Ok(vec![x[0].slice(-1, None, Some(4), 1)?.prod(&[-1], Keep::No)?]), close),
        ("sum_squares", |x| Ok(vec![x[0].sum_squares(&[-1], Keep::No)?]), close),
        ("amax", |x| Ok(vec![x[0].amax(&[-1], Keep::No)?, x[0].amin(&[0], Keep::Yes)?]), Tolerance::Values),
        (
            "argmax",
            |x| Ok(vec![x[0].argmax(Some(-1), Keep::No)?, x[0].argmin(None, Keep::No)?]),
            Tolerance::Bits,
        ),
        ("any", |x| Ok(vec![x[0].any(&[-1], Keep::No)?, x[0].all(&[0], Keep::No)?]), Tolerance::Bits),
        ("count_nonzero", |x| Ok(vec![x[0].count_nonzero(&[], Keep::No)?]), Tolerance::Bits),
        ("logsumexp", |x| Ok(vec![x[0].logsumexp(&[-1], Keep::No)?]), close),
        ("var", |x| Ok(vec![x[0].var(&[-1], 1.0, Keep::No)?, x[0].norm(2.0, &[0], Keep::No)?]), close),
    ];
    let shapes: [&[usize]; 4] = [&[5, 700], &[1, 4099], &[300, 2, 33], &[0, 3]];
    for (name, work, close) in sums {
        for (s, shape) in shapes.into_iter().enumerate() {
            let view = View::ALL[s % View::ALL.len()];
            let inputs = vec![Input::seen(some(shape, dtype, 21), view)];
            add(all, "reduce", format!("{name} {dtype} {shape:?} {view:?}"), inputs, close, work);
        }
    }
    let scans: [(&str, Work); 3] = [
        ("cumsum", |x| Ok(vec![x[0].cumsum(-1)?, x[0].cumsum(0)?])),
        ("cumprod", |x| Ok(vec![x[0].cumprod(-1)?])),
        ("cummax", |x| x[0].cummax(-1).map(|(values, at)| vec![values, at])),
    ];
    for (name, work) in scans {
        let inputs = vec![Input::plain(some(&[7, 60], dtype, 22))];
        add(all, "scan", format!("{name} {dtype}"), inputs, close, work);
    }
}

fn positions(shape: &[usize], size: i64, seed: u64) -> Array {
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

fn ordering(dtype: DType, all: &mut Vec<Case>) {
    let table: [(&str, Work); 8] = [
        ("sort", |x| x[0].sort(-1, Order::Ascending).map(|(values, at)| vec![values, at])),
        ("sort columns down", |x| x[0].sort(0, Order::Descending).map(|(values, at)| vec![values, at])),
        ("topk", |x| x[0].topk(5, -1, Which::Largest).map(|(values, at)| vec![values, at])),
        ("unique", |x| x[0].unique().map(|found| vec![found.values, found.counts])),
        ("searchsorted", |x| {
            let sorted = x[0].flatten(0, -1)?.sort(0, Order::Ascending)?.0;
            Ok(vec![sorted.searchsorted(&x[0], Side::Left)?])
        }),
        ("concat", |x| Ok(vec![ops::concat(&[&x[0], &x[0]], 1)?, ops::stack(&[&x[0], &x[0]], 0)?])),
        ("flip and roll", |x| Ok(vec![x[0].flip(&[1])?, x[0].roll(&[3], &[0])?, x[0].repeat(&[2, 1])?])),
        ("triangle", |x| Ok(vec![x[0].triu(1)?, x[0].tril(-2)?])),
    ];
    for (name, work) in table {
        let inputs = vec![Input::plain(some(&[20, 31], dtype, 31))];
        add(all, "order", format!("{name} {dtype}"), inputs, Tolerance::Values, work);
    }
}

fn training(dtype: DType, all: &mut Vec<Case>) {
    let close = summed(dtype);
    let table: [(&str, Work); 12] = [
        ("matmul", |x| Ok(vec![ops::matmul(&x[0], &x[1].transpose(0, 1)?)?])),
        ("batched matmul", |x| {
            let batch = x[0].reshape(&[4, 16, 32])?;
            Ok(vec![ops::matmul(&batch, &batch.transpose(1, 2)?)?])
        }),
        ("linear", |x| Ok(vec![ops::linear(&x[0], &x[1], Some(&x[2]))?])),
        ("softmax", |x| Ok(vec![x[0].softmax(-1)?, x[0].log_softmax(-1)?])),
        ("softmax gradient", |x| Ok(vec![ops::softmax_grad(&x[1], &x[0].softmax(-1)?, -1)?])),
        ("rms_norm", |x| ops::rms_norm(&x[0], &[32], Some(&x[3]), 1e-6).map(|n| vec![n.y])),
        ("layer_norm", |x| ops::layer_norm(&x[0], &[32], Some(&x[3]), None, 1e-6).map(|n| vec![n.y])),
        ("swiglu", |x| Ok(vec![ops::swiglu(&x[0], &x[1])?])),
        ("swiglu gradient", |x| ops::swiglu_grad(&x[0], &x[1], &x[0]).map(|g| vec![g.gate, g.up])),
        ("embedding", |x| Ok(vec![ops::embedding(&x[0], &x[4])?])),
        ("embedding gradient", |x| {
            let rows = ops::embedding(&x[0], &x[4])?;
            Ok(vec![ops::embedding_grad(&rows, &x[4], 64, None)?])
        }),
        ("dropout", |x| {
            let window = crate::random::Window::whole(x[0].shape());
            Ok(vec![ops::dropout(&x[0], 0.3, crate::random::Key::new(4, 5), &window)?])
        }),
    ];
    let ids = positions(&[40], 64, 35).abs().unwrap_or_else(|_| positions(&[40], 64, 35));
    let ids = ids.minimum(&Array::scalar(63, DType::I64).unwrap_or_else(|_| ids.clone())).unwrap_or(ids);
    for (name, work) in table {
        let inputs = vec![
            Input::plain(some(&[64, 32], dtype, 41)),
            Input::plain(some(&[64, 32], dtype, 42)),
            Input::plain(some(&[64], dtype, 43)),
            Input::plain(some(&[32], dtype, 44)),
            Input::plain(ids.clone()),
        ];
        add(all, "training", format!("{name} {dtype}"), inputs, close, work);
    }
}
