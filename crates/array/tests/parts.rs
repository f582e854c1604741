//! A kernel on part of its results gives the bits it gives on all of them: sums run in an order that follows from the
//! summed extents alone. Ranks that hold pieces of a value rely on it.

use planaria_array::ops::{
    AttentionOptions, BatchMode, BatchStats, Keep, Span, attention, attention_grad, batch_norm,
    batch_norm_grad, embedding_grad, layer_norm, layer_norm_grad, linear, matmul, softmax_grad,
};
use planaria_array::{Array, DType};
use std::ops::Range;

const TYPES: [DType; 4] = [DType::F64, DType::F32, DType::BF16, DType::F16];

fn noise(shape: &[usize], seed: usize, dtype: DType) -> Array {
    let n: usize = shape.iter().product();
    let value = |i: usize| ((i * 7919 + seed * 104_729 + i / 31) % 10_007) as f64 / 5003.5 - 1.0;
    let made = Array::from_slice(&(0..n).map(value).collect::<Vec<_>>(), shape).unwrap();
    made.cast(dtype).unwrap()
}

/// Single places, halves and odd ranges of a dim.
fn ranges(size: usize) -> Vec<Range<usize>> {
    let mut all = vec![0..1, size - 1..size, 0..size.div_ceil(2), size / 3..size];
    all.retain(|r| !r.is_empty());
    all
}

fn part(x: &Array, dim: i64, range: &Range<usize>) -> Array {
    x.narrow(dim, range.start, range.len()).unwrap().copy().unwrap()
}

fn bits(x: &Array) -> Vec<u64> {
    x.cast(DType::F64).unwrap().to_vec::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
}

/// `of_part` on a range must equal that range of `whole` along `dim`.
fn same(what: &str, whole: &Array, dim: i64, range: &Range<usize>, of_part: &Array) {
    let expected = part(whole, dim, range);
    assert_eq!(expected.shape(), of_part.shape(), "{what} {range:?}");
    assert!(bits(&expected) == bits(of_part), "{what}: {} along dim {dim}, {range:?}", whole.shape());
}

#[test]
fn reductions_of_kept_parts() {
    type Reduction = fn(&Array, &[i64]) -> Array;
    let reductions: [(&str, Reduction); 6] = [
        ("sum", |x, d| x.sum(d, Keep::Yes).unwrap()),
        ("mean", |x, d| x.mean(d, Keep::Yes).unwrap()),
        ("prod", |x, d| x.prod(d, Keep::Yes).unwrap()),
        ("norm", |x, d| x.norm(2.0, d, Keep::Yes).unwrap()),
        ("logsumexp", |x, d| x.logsumexp(d, Keep::Yes).unwrap()),
        ("var", |x, d| x.var(d, 1.0, Keep::Yes).unwrap()),
    ];
    // Reduced dims, and the kept ones that are cut.
    let cases: [(&[usize], &[i64], &[i64]); 8] = [
        (&[9000, 3], &[0], &[1]),
        (&[130, 70], &[0], &[1]),
        (&[70, 300], &[0], &[1]),
        (&[3, 9000], &[1], &[0]),
        (&[40, 15], &[1], &[0]),
        (&[12, 5, 30], &[0, 2], &[1]),
        (&[4, 17, 6, 9], &[1, 3], &[0, 2]),
        (&[4, 17, 6, 9], &[0, 2], &[1, 3]),
    ];
    for (name, reduce) in reductions {
        for (shape, dims, kept) in cases {
            let x = noise(shape, 1, DType::F32);
            let turned = x.transpose(0, -1).unwrap().copy().unwrap().transpose(0, -1).unwrap();
            let (whole, of_turned) = (reduce(&x, dims), reduce(&turned, dims));
            for &dim in kept {
                for range in ranges(shape[dim as usize]) {
                    same(name, &whole, dim, &range, &reduce(&part(&x, dim, &range), dims));
                    let piece = turned.narrow(dim, range.start, range.len()).unwrap();
                    same(name, &of_turned, dim, &range, &reduce(&piece, dims));
                }
            }
        }
    }
}

#[test]
fn products_by_rows_columns_and_items() {
    for dtype in TYPES {
        let (x, w, b) = (noise(&[5, 7, 300], 1, dtype), noise(&[9, 300], 2, dtype), noise(&[9], 3, dtype));
        let y = linear(&x, &w, Some(&b)).unwrap();
        for range in ranges(5) {
            same("linear", &y, 0, &range, &linear(&part(&x, 0, &range), &w, Some(&b)).unwrap());
        }
        for range in ranges(7) {
            same("linear", &y, 1, &range, &linear(&part(&x, 1, &range), &w, Some(&b)).unwrap());
        }
        for range in ranges(9) {
            let (w, b) = (part(&w, 0, &range), part(&b, 0, &range));
            same("linear", &y, 2, &range, &linear(&x, &w, Some(&b)).unwrap());
        }
        let (a, b) = (noise(&[4, 6, 70], 4, dtype), noise(&[4, 70, 5], 5, dtype));
        let y = matmul(&a, &b).unwrap();
        for range in ranges(4) {
            same("matmul", &y, 0, &range, &matmul(&part(&a, 0, &range), &part(&b, 0, &range)).unwrap());
        }
        for range in ranges(6) {
            same("matmul", &y, 1, &range, &matmul(&part(&a, 1, &range), &b).unwrap());
        }
        for range in ranges(5) {
            same("matmul", &y, 2, &range, &matmul(&a, &part(&b, 2, &range)).unwrap());
        }
    }
}

#[test]
fn attention_by_items_heads_and_queries() {
    for (dtype, span) in TYPES.into_iter().flat_map(|t| [(t, Span::All), (t, Span::Causal)]) {
        let options = AttentionOptions { span, ..Default::default() };
        let (q, k, v) = (
            noise(&[3, 6, 70, 8], 1, dtype),
            noise(&[3, 2, 300, 8], 2, dtype),
            noise(&[3, 2, 300, 5], 3, dtype),
        );
        let dout = noise(&[3, 6, 70, 5], 4, dtype);
        let run = |q: &Array, k: &Array, v: &Array, dout: &Array| {
            let result = attention(q, k, v, &options).unwrap();
            let grads = attention_grad(dout, q, k, v, &result, &options).unwrap();
            [result.out, result.lse, grads.q, grads.k, grads.v]
        };
        let whole = run(&q, &k, &v, &dout);
        let names = ["out", "lse", "dq", "dk", "dv"];
        let check = |dim: i64, ranges: [&Range<usize>; 5], found: &[Array]| {
            for i in 0..found.len() {
                same(names[i], &whole[i], dim, ranges[i], &found[i]);
            }
        };
        for r in ranges(3) {
            let cut = |x: &Array| part(x, 0, &r);
            check(0, [&r; 5], &run(&cut(&q), &cut(&k), &cut(&v), &cut(&dout)));
        }
        for r in ranges(2) {
            let group = 3 * r.start..3 * r.end;
            let (cut, of_group) = (|x: &Array| part(x, 1, &r), |x: &Array| part(x, 1, &group));
            let found = run(&of_group(&q), &cut(&k), &cut(&v), &of_group(&dout));
            check(1, [&group, &group, &group, &r, &r], &found);
        }
        if span == Span::All {
            for r in ranges(70) {
                let found = run(&part(&q, 2, &r), &k, &v, &part(&dout, 2, &r));
                check(2, [&r; 5], &found[..3]);
            }
        }
    }
}

#[test]
fn norms_by_channels_and_rows() {
    let stats = BatchStats::Batch { running: None, momentum: 0.1 };
    for (dtype, inner) in TYPES.into_iter().flat_map(|t| [(t, 1), (t, 6), (t, 40)]) {
        let (x, dy) = (noise(&[70, 5, inner], 1, dtype), noise(&[70, 5, inner], 2, dtype));
        let w = noise(&[5], 3, dtype);
        let run = |x: &Array, dy: &Array, w: &Array| {
            let n = batch_norm(x, Some(w), None, stats, 1e-3).unwrap();
            let g = batch_norm_grad(dy, x, &n.mean, &n.rstd, Some(w), BatchMode::Training).unwrap();
            ([n.y, g.x], [n.mean, n.rstd, g.weight, g.bias])
        };
        let whole = run(&x, &dy, &w);
        for r in ranges(5) {
            let found = run(&part(&x, 1, &r), &part(&dy, 1, &r), &part(&w, 0, &r));
            (0..2).for_each(|i| same("batch norm", &whole.0[i], 1, &r, &found.0[i]));
            (0..4).for_each(|i| same("batch norm", &whole.1[i], 0, &r, &found.1[i]));
        }
    }
    for (dtype, size) in TYPES.into_iter().flat_map(|t| [(t, 9), (t, 300)]) {
        let (x, dy, w) =
            (noise(&[40, size], 1, dtype), noise(&[40, size], 2, dtype), noise(&[size], 3, dtype));
        let run = |x: &Array, dy: &Array| {
            let n = layer_norm(x, &[size], Some(&w), None, 1e-5).unwrap();
            let g = layer_norm_grad(dy, x, &[size], &n.mean, &n.rstd, Some(&w), None).unwrap();
            let s = x.softmax(1).unwrap();
            let ds = softmax_grad(dy, &s, 1).unwrap();
            [n.y, g.x, n.mean, n.rstd, s, ds]
        };
        let whole = run(&x, &dy);
        for r in ranges(40) {
            let found = run(&part(&x, 0, &r), &part(&dy, 0, &r));
            (0..6).for_each(|i| same("rows", &whole[i], 0, &r, &found[i]));
        }
    }
}

#[test]
fn sums_by_index_and_softmax_across_columns() {
    let ids: Vec<i64> = (0..500).map(|i| i * i % 7).collect();
    let ids = Array::from_slice(&ids, &[500]).unwrap();
    for dtype in TYPES {
        let dy = noise(&[500, 37], 1, dtype);
        let whole = embedding_grad(&dy, &ids, 7, None).unwrap();
        let soft = dy.softmax(0).unwrap();
        for r in ranges(37) {
            let piece = part(&dy, 1, &r);
            same("embedding_grad", &whole, 1, &r, &embedding_grad(&piece, &ids, 7, None).unwrap());
            same("softmax", &soft, 1, &r, &piece.softmax(0).unwrap());
        }
    }
}
