//! Reductions, scans, sorting, joins.

use super::case::{Case, Input, View};
use super::compare::{Tolerance, summed};
use super::moves::some;
use crate::array::Array;
use crate::error::Result;
use crate::ops::{self, Keep, Order, Side, Which};
use planaria_layout::DType;

pub(super) type Work = fn(&[Array]) -> Result<Vec<Array>>;

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in DType::ALL {
        reductions(dtype, &mut all);
        ordering(dtype, &mut all);
    }
    all
}

pub(super) fn add(
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
    let sums: [(&str, Work, Tolerance); 13] = [
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
        (
            "max and min",
            |x| {
                let ((a, i), (b, j)) = (x[0].max(-1, Keep::No)?, x[0].min(0, Keep::Yes)?);
                Ok(vec![a, i, b, j])
            },
            Tolerance::Values,
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
    let scans: [(&str, Work); 4] = [
        ("logcumsumexp", |x| Ok(vec![x[0].logcumsumexp(0)?, ops::cumsum_grad(&x[0], 1)?])),
        ("cumsum", |x| Ok(vec![x[0].cumsum(-1)?, x[0].cumsum(0)?])),
        ("cumprod", |x| Ok(vec![x[0].cumprod(-1)?])),
        ("cummax", |x| x[0].cummax(-1).map(|(values, at)| vec![values, at])),
    ];
    for (name, work) in scans {
        let inputs = vec![Input::plain(some(&[7, 60], dtype, 22))];
        add(all, "scan", format!("{name} {dtype}"), inputs, close, work);
    }
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
    let long: [(&str, Work); 3] = [
        ("sort of many", |x| x[0].sort(0, Order::Ascending).map(|(values, at)| vec![values, at])),
        ("kthvalue", |x| x[0].kthvalue(77, 0, Keep::Yes).map(|(values, at)| vec![values, at])),
        ("unique of many", |x| x[0].unique().map(|found| vec![found.values, found.inverse, found.counts])),
    ];
    let short = matches!(dtype, DType::F32 | DType::BF16 | DType::I64 | DType::U8);
    for (name, work) in long.into_iter().filter(|_| short) {
        // Many equal values, so that the order of equals shows.
        let values = some(&[9000], dtype, 36).cast(DType::I8).and_then(|few| few.cast(dtype));
        let inputs = vec![Input::plain(values.unwrap_or_else(|_| some(&[9000], dtype, 36)))];
        add(all, "order", format!("{name} {dtype}"), inputs, Tolerance::Values, work);
    }
}
