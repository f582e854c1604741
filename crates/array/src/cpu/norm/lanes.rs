//! Sums and maxima over slices with a fixed order: lanes are spelled out, so every instruction set and every
//! way of splitting rows over threads gives the same bits.

use crate::cpu::real::Real;
use std::ops::Range;

/// Elements per vector of the widest instruction set in f32.
const LANES: usize = 16;
/// Running results per fold: four vectors in f32, to hide the latency of additions. A flat array and one inner loop
/// keep them in registers; nested arrays or hand-unrolled vectors do not.
pub(crate) const STEP: usize = 4 * LANES;

/// Folds `x` lane by lane with `step`, then the lanes and the tail with `join`.
#[inline(always)]
pub(crate) fn fold<R: Real>(x: &[R], start: R, step: impl Fn(R, R) -> R, join: impl Fn(R, R) -> R) -> R {
    fold_asking(x, start, |_| (), step, join)
}

/// Like [`fold`]; `ask(range)` is called before the elements `range` are folded, which need not be all, so that requests to
/// memory are spread over the work: given all at once, they would keep it waiting.
#[inline(always)]
fn fold_asking<R: Real>(
    x: &[R],
    start: R,
    ask: impl Fn(Range<usize>),
    step: impl Fn(R, R) -> R,
    join: impl Fn(R, R) -> R,
) -> R {
    let mut acc = [start; STEP];
    let (chunks, rest) = x.as_chunks::<STEP>();
    for (i, c) in chunks.iter().enumerate() {
        ask(i * STEP..(i + 1) * STEP);
        for l in 0..STEP {
            acc[l] = step(acc[l], c[l]);
        }
    }
    for (a, &v) in acc.iter_mut().zip(rest) {
        *a = step(*a, v);
    }
    join_lanes(acc, join)
}

/// Like [`fold`], as a sum over two slices of equal length.
#[inline(always)]
pub(crate) fn fold2<R: Real>(x: &[R], y: &[R], step: impl Fn(R, R, R) -> R) -> R {
    let mut acc = [R::ZERO; STEP];
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<STEP>(), y.as_chunks::<STEP>());
    for (x, y) in xs.iter().zip(ys) {
        for l in 0..STEP {
            acc[l] = step(acc[l], x[l], y[l]);
        }
    }
    for ((a, &x), &y) in acc.iter_mut().zip(x_rest).zip(y_rest) {
        *a = step(*a, x, y);
    }
    join_lanes(acc, |a, b| a + b)
}

/// Two sums at once over three slices of equal length: of `first(x, y)` and of `first(x, y) * second(z)`.
#[inline(always)]
pub(crate) fn pair3<R: Real>(
    x: &[R],
    y: &[R],
    z: &[R],
    first: impl Fn(R, R) -> R,
    second: impl Fn(R) -> R,
) -> (R, R) {
    let (mut p, mut q) = ([R::ZERO; STEP], [R::ZERO; STEP]);
    let (xs, x_rest) = x.as_chunks::<STEP>();
    let ((ys, y_rest), (zs, z_rest)) = (y.as_chunks::<STEP>(), z.as_chunks::<STEP>());
    for ((x, y), z) in xs.iter().zip(ys).zip(zs) {
        for l in 0..STEP {
            let v = first(x[l], y[l]);
            p[l] += v;
            q[l] = v.mul_add(second(z[l]), q[l]);
        }
    }
    for (l, ((&x, &y), &z)) in x_rest.iter().zip(y_rest).zip(z_rest).enumerate() {
        let v = first(x, y);
        p[l] += v;
        q[l] = v.mul_add(second(z), q[l]);
    }
    (join_lanes(p, |a, b| a + b), join_lanes(q, |a, b| a + b))
}

/// One row of a layer norm's gradient: adds `dy * (x - m) * s` to `dw` and `dy` to `db`, and returns the sums of
/// `dy * w` and of `dy * w * (x - m)`; `ask` as in [`long_sum`].
#[inline(always)]
pub(crate) fn row_grads<R: Real>(
    (dy, x, w): (&[R], &[R], &[R]),
    (dw, db): (&mut [R], &mut [R]),
    m: R,
    s: R,
    ask: impl Fn(Range<usize>),
) -> (R, R) {
    let (mut p, mut q) = ([R::ZERO; STEP], [R::ZERO; STEP]);
    let step = |(dy, x, w): (R, R, R), p: &mut R, q: &mut R, dw: &mut R, db: &mut R| {
        let (h, v) = (x - m, dy * w);
        *p += v;
        *q = v.mul_add(h, *q);
        *dw = dy.mul_add(h * s, *dw);
        *db += dy;
    };
    let (dys, dy_rest) = dy.as_chunks::<STEP>();
    let ((xs, x_rest), (ws, w_rest)) = (x.as_chunks::<STEP>(), w.as_chunks::<STEP>());
    let ((dws, dw_rest), (dbs, db_rest)) = (dw.as_chunks_mut::<STEP>(), db.as_chunks_mut::<STEP>());
    for (i, ((((dy, x), w), dw), db)) in dys.iter().zip(xs).zip(ws).zip(dws).zip(dbs).enumerate() {
        ask(i * STEP..(i + 1) * STEP);
        for l in 0..STEP {
            step((dy[l], x[l], w[l]), &mut p[l], &mut q[l], &mut dw[l], &mut db[l]);
        }
    }
    for l in 0..dy_rest.len() {
        let at = (dy_rest[l], x_rest[l], w_rest[l]);
        step(at, &mut p[l], &mut q[l], &mut dw_rest[l], &mut db_rest[l]);
    }
    (join_lanes(p, |a, b| a + b), join_lanes(q, |a, b| a + b))
}

#[inline(always)]
fn join_lanes<R: Real>(mut acc: [R; STEP], join: impl Fn(R, R) -> R) -> R {
    let mut width = STEP / 2;
    while width > 0 {
        for l in 0..width {
            acc[l] = join(acc[l], acc[l + width]);
        }
        width /= 2;
    }
    acc[0]
}

/// Sum of all values.
#[inline(always)]
pub(crate) fn sum<R: Real>(x: &[R]) -> R {
    fold(x, R::ZERO, |a, v| a + v, |a, b| a + b)
}

/// Largest value, NaN ignored; minus infinity when there is none.
#[inline(always)]
pub(crate) fn max<R: Real>(x: &[R]) -> R {
    let pick = |a: R, v: R| if v > a { v } else { a };
    fold(x, R::NEG_INFINITY, pick, pick)
}

/// `out[i] = f(x[i])`, with the tail padded to whole vectors because scalar exponentials are slow.
#[inline(always)]
pub(crate) fn map<R: Real>(x: &[R], out: &mut [R], f: impl Fn(R) -> R) {
    let body = x.len() - x.len() % LANES;
    for (o, &v) in out[..body].iter_mut().zip(&x[..body]) {
        *o = f(v);
    }
    let rest = &x[body..];
    if !rest.is_empty() {
        let mut pad = [R::ZERO; LANES];
        pad[..rest.len()].copy_from_slice(rest);
        for v in &mut pad {
            *v = f(*v);
        }
        out[body..].copy_from_slice(&pad[..rest.len()]);
    }
}

/// The longest run summed without an intermediate result, so that errors do not grow with the length.
const LONG: usize = 8192;

/// Folds `x` in blocks of at most [`LONG`], which are added up in f64.
#[inline(always)]
fn long<R: Real>(x: &[R], ask: impl Fn(Range<usize>), step: impl Fn(R, R) -> R) -> R {
    let block = |first: usize, x: &[R]| {
        fold_asking(x, R::ZERO, |at| ask(first + at.start..first + at.end), &step, |a, b| a + b)
    };
    if x.len() <= LONG {
        return block(0, x);
    }
    R::of(x.chunks(LONG).enumerate().map(|(i, x)| block(i * LONG, x).f64()).sum())
}

/// Sum of all values. `ask(range)` is called before the elements `range` are read, for most of them: there memory is asked for
/// what comes next.
#[inline(always)]
pub(crate) fn long_sum<R: Real>(x: &[R], ask: impl Fn(Range<usize>)) -> R {
    long(x, ask, |a, v| a + v)
}

/// Sum of squared distances from `center`; `ask` as in [`long_sum`].
#[inline(always)]
pub(crate) fn long_squares<R: Real>(x: &[R], center: R, ask: impl Fn(Range<usize>)) -> R {
    long(x, ask, |a, v| {
        let d = v - center;
        d.mul_add(d, a)
    })
}

/// `sum(dy)` and `sum(dy * (x - center))`, in blocks.
#[inline(always)]
pub(crate) fn long_grads<R: Real>(dy: &[R], x: &[R], center: R) -> (R, R) {
    let grads = |dy: &[R], x: &[R]| pair3(dy, dy, x, |g, _| g, |v| v - center);
    if x.len() <= LONG {
        return grads(dy, x);
    }
    let (mut p, mut q) = (0.0, 0.0);
    for (dy, x) in dy.chunks(LONG).zip(x.chunks(LONG)) {
        let (a, b) = grads(dy, x);
        p += a.f64();
        q += b.f64();
    }
    (R::of(p), R::of(q))
}
