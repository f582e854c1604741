//! Sums and maxima over slices with a fixed order: lanes are spelled out, so every instruction set and every
//! way of splitting rows over threads gives the same bits.

use crate::cpu::real::Real;

const LANES: usize = 16;
/// Independent accumulators, to hide the latency of additions.
const WAYS: usize = 4;
const STEP: usize = LANES * WAYS;

/// Folds `rows` lane by lane with `step`, then the lanes and the tail with `join`.
#[inline(always)]
pub(crate) fn fold<R: Real>(x: &[R], start: R, step: impl Fn(R, R) -> R, join: impl Fn(R, R) -> R) -> R {
    let mut acc = [[start; LANES]; WAYS];
    let (chunks, rest) = x.as_chunks::<STEP>();
    for c in chunks {
        for j in 0..WAYS {
            for l in 0..LANES {
                acc[j][l] = step(acc[j][l], c[j * LANES + l]);
            }
        }
    }
    let (chunks, rest) = rest.as_chunks::<LANES>();
    for c in chunks {
        for l in 0..LANES {
            acc[0][l] = step(acc[0][l], c[l]);
        }
    }
    let mut tail = start;
    for &v in rest {
        tail = step(tail, v);
    }
    join(join_lanes(acc, &join), tail)
}

/// Like [`fold`] over two slices of equal length.
#[inline(always)]
pub(crate) fn fold2<R: Real>(x: &[R], y: &[R], step: impl Fn(R, R, R) -> R) -> R {
    let mut acc = [[R::ZERO; LANES]; WAYS];
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<STEP>(), y.as_chunks::<STEP>());
    for (a, b) in xs.iter().zip(ys) {
        for j in 0..WAYS {
            for l in 0..LANES {
                acc[j][l] = step(acc[j][l], a[j * LANES + l], b[j * LANES + l]);
            }
        }
    }
    let ((xs, x_rest), (ys, y_rest)) = (x_rest.as_chunks::<LANES>(), y_rest.as_chunks::<LANES>());
    for (a, b) in xs.iter().zip(ys) {
        for l in 0..LANES {
            acc[0][l] = step(acc[0][l], a[l], b[l]);
        }
    }
    let mut tail = R::ZERO;
    for (&a, &b) in x_rest.iter().zip(y_rest) {
        tail = step(tail, a, b);
    }
    join_lanes(acc, &|a, b| a + b) + tail
}

/// Two sums at once over three slices of equal length.
#[inline(always)]
pub(crate) fn pair3<R: Real>(x: &[R], y: &[R], z: &[R], step: impl Fn((R, R), R, R, R) -> (R, R)) -> (R, R) {
    let (mut p, mut q) = ([[R::ZERO; LANES]; WAYS], [[R::ZERO; LANES]; WAYS]);
    let (xs, x_rest) = x.as_chunks::<STEP>();
    let ((ys, y_rest), (zs, z_rest)) = (y.as_chunks::<STEP>(), z.as_chunks::<STEP>());
    for ((a, b), c) in xs.iter().zip(ys).zip(zs) {
        for j in 0..WAYS {
            for l in 0..LANES {
                let i = j * LANES + l;
                (p[j][l], q[j][l]) = step((p[j][l], q[j][l]), a[i], b[i], c[i]);
            }
        }
    }
    let mut tail = (R::ZERO, R::ZERO);
    for ((&a, &b), &c) in x_rest.iter().zip(y_rest).zip(z_rest) {
        tail = step(tail, a, b, c);
    }
    let add = |a, b| a + b;
    (join_lanes(p, &add) + tail.0, join_lanes(q, &add) + tail.1)
}

/// Two sums at once over two slices of equal length.
#[inline(always)]
pub(crate) fn pair2<R: Real>(x: &[R], y: &[R], step: impl Fn((R, R), R, R) -> (R, R)) -> (R, R) {
    pair3(x, y, y, |acc, a, b, _| step(acc, a, b))
}

#[inline(always)]
fn join_lanes<R: Real>(acc: [[R; LANES]; WAYS], join: &impl Fn(R, R) -> R) -> R {
    let mut lanes = [R::ZERO; LANES];
    for l in 0..LANES {
        lanes[l] = join(join(acc[0][l], acc[1][l]), join(acc[2][l], acc[3][l]));
    }
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            lanes[l] = join(lanes[l], lanes[l + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Sum of all values.
#[inline(always)]
pub(crate) fn sum<R: Real>(x: &[R]) -> R {
    fold(x, R::ZERO, |a, v| a + v, |a, b| a + b)
}

/// Sum of squared distances from `center`.
#[inline(always)]
pub(crate) fn squares<R: Real>(x: &[R], center: R) -> R {
    fold(
        x,
        R::ZERO,
        |a, v| {
            let d = v - center;
            d.mul_add(d, a)
        },
        |a, b| a + b,
    )
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

/// [`sum`] in blocks, added up in f64.
#[inline(always)]
pub(crate) fn long_sum<R: Real>(x: &[R]) -> R {
    if x.len() <= LONG {
        return sum(x);
    }
    R::of(x.chunks(LONG).map(|c| sum(c).f64()).sum())
}

/// [`squares`] in blocks, added up in f64.
#[inline(always)]
pub(crate) fn long_squares<R: Real>(x: &[R], center: R) -> R {
    if x.len() <= LONG {
        return squares(x, center);
    }
    R::of(x.chunks(LONG).map(|c| squares(c, center).f64()).sum())
}

/// `sum(dy)` and `sum(dy * (x - center))`, in blocks.
#[inline(always)]
pub(crate) fn long_grads<R: Real>(dy: &[R], x: &[R], center: R) -> (R, R) {
    let grads = |dy: &[R], x: &[R]| pair2(dy, x, |(p, q), g, v| (p + g, g.mul_add(v - center, q)));
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
