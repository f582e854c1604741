//! Gated activations: `act(gate) * up` and its gradient, from two arrays or from one split in two.

use super::real::{Float, Real};
use super::simd::simd;
use super::softmax::rows_per_block;
use planaria_cpu::pool;

/// The activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Phi(x)` with the normal distribution's Phi.
    Gelu,
    /// Gelu's usual approximation by tanh.
    GeluTanh,
}

/// The activation and its derivative.
#[inline(always)]
fn silu<R: Real>(x: R) -> (R, R) {
    let s = x.sigmoid();
    (x * s, s * (R::ONE - s).mul_add(x, R::ONE))
}

#[inline(always)]
fn gelu<R: Real>(x: R) -> (R, R) {
    let half = R::of(0.5);
    let phi = half * (R::ONE + (x * R::of(std::f64::consts::FRAC_1_SQRT_2)).erf());
    let density = R::of(0.398_942_280_401_432_7) * (-(half * x * x)).exp();
    (x * phi, x.mul_add(density, phi))
}

#[inline(always)]
fn gelu_tanh<R: Real>(x: R) -> (R, R) {
    let (half, scale, cubic) = (R::of(0.5), R::of(0.797_884_560_802_865_4), R::of(0.044_715));
    let t = (scale * x * (cubic * x).mul_add(x, R::ONE)).tanh();
    let inner = scale * (R::of(3.0) * cubic * x).mul_add(x, R::ONE);
    let phi = half * (R::ONE + t);
    (x * phi, (half * x * (R::ONE - t * t)).mul_add(inner, phi))
}

#[inline(always)]
fn forward_row<R: Real>(gate: &[R], up: &[R], y: &mut [R], act: impl Fn(R) -> (R, R)) {
    for ((o, &g), &u) in y.iter_mut().zip(gate).zip(up) {
        *o = act(g).0 * u;
    }
}

#[inline(always)]
fn backward_row<R: Real>(
    dy: &[R],
    gate: &[R],
    up: &[R],
    (dgate, dup): (&mut [R], &mut [R]),
    act: impl Fn(R) -> (R, R),
) {
    let n = dgate.len();
    let (dy, gate, up, dup) = (&dy[..n], &gate[..n], &up[..n], &mut dup[..n]);
    for i in 0..n {
        let (value, slope) = act(gate[i]);
        dgate[i] = dy[i] * up[i] * slope;
        dup[i] = dy[i] * value;
    }
}

simd! {
    fn forward_block<R: Real>(gate: &[R], up: &[R], y: &mut [R], kind: Gate) {
        match kind {
            Gate::Silu => forward_row(gate, up, y, silu),
            Gate::Gelu => forward_row(gate, up, y, gelu),
            Gate::GeluTanh => forward_row(gate, up, y, gelu_tanh),
        }
    }

    fn backward_block<R: Real>(
        dy: &[R], gate: &[R], up: &[R], dgate: &mut [R], dup: &mut [R], kind: Gate,
    ) {
        match kind {
            Gate::Silu => backward_row(dy, gate, up, (dgate, dup), silu),
            Gate::Gelu => backward_row(dy, gate, up, (dgate, dup), gelu),
            Gate::GeluTanh => backward_row(dy, gate, up, (dgate, dup), gelu_tanh),
        }
    }
}

/// Elements between two conversions of narrow types.
const BLOCK: usize = 4096;

/// `y = act(gate) * up`.
pub(crate) fn forward<T: Float>(gate: &[T], up: &[T], y: &mut [T], kind: Gate) {
    pool::for_chunks_mut(y, BLOCK, 3 * size_of::<T>(), |at, piece| {
        let (mut wide_gate, mut wide_up, mut out) = (Vec::new(), Vec::new(), Vec::new());
        for (i, y) in piece.chunks_mut(BLOCK).enumerate() {
            let range = at + i * BLOCK..at + i * BLOCK + y.len();
            let gate = T::widen(&gate[range.clone()], &mut wide_gate);
            let up = T::widen(&up[range], &mut wide_up);
            T::narrow(y, &mut out, |y| forward_block(gate, up, y, kind));
        }
    });
}

/// Gradients of gate and up.
pub(crate) fn backward<T: Float>(
    dy: &[T],
    gate: &[T],
    up: &[T],
    (dgate, dup): (&mut [T], &mut [T]),
    kind: Gate,
) {
    let len = pool::piece_len(dy.len(), BLOCK, 5 * size_of::<T>());
    let parts = dgate.chunks_mut(len).zip(dup.chunks_mut(len)).enumerate();
    pool::for_parts(parts.collect(), 5 * size_of_val(dy), |(i, (dgate, dup))| {
        let [mut a, mut b, mut c, mut d, mut e] = [const { Vec::new() }; 5];
        for (j, (dgate, dup)) in dgate.chunks_mut(BLOCK).zip(dup.chunks_mut(BLOCK)).enumerate() {
            let start = i * len + j * BLOCK;
            let range = start..start + dgate.len();
            let dy = T::widen(&dy[range.clone()], &mut a);
            let gate = T::widen(&gate[range.clone()], &mut b);
            let up = T::widen(&up[range], &mut c);
            T::narrow(dgate, &mut d, |dgate| {
                T::narrow(dup, &mut e, |dup| backward_block(dy, gate, up, dgate, dup, kind));
            });
        }
    });
}

/// `y = act(x[.., ..half]) * x[.., half..]`.
pub(crate) fn packed_forward<T: Float>(x: &[T], y: &mut [T], half: usize, kind: Gate) {
    if y.is_empty() {
        return;
    }
    let unit = rows_per_block(2 * half);
    pool::for_chunks_mut(y, unit * half, 3 * size_of::<T>(), |at, piece| {
        let (mut wide, mut out) = (Vec::new(), Vec::new());
        for (i, y) in piece.chunks_mut(unit * half).enumerate() {
            let start = 2 * (at + i * unit * half);
            let x = T::widen(&x[start..start + 2 * y.len()], &mut wide);
            T::narrow(y, &mut out, |y| {
                for (x, y) in x.chunks_exact(2 * half).zip(y.chunks_exact_mut(half)) {
                    forward_block(&x[..half], &x[half..], y, kind);
                }
            });
        }
    });
}

/// Gradient of the packed input.
pub(crate) fn packed_backward<T: Float>(dy: &[T], x: &[T], dx: &mut [T], half: usize, kind: Gate) {
    if dx.is_empty() {
        return;
    }
    let unit = rows_per_block(2 * half);
    pool::for_chunks_mut(dx, 2 * unit * half, 3 * size_of::<T>(), |at, piece| {
        let (mut wide_dy, mut wide_x, mut out) = (Vec::new(), Vec::new(), Vec::new());
        for (i, dx) in piece.chunks_mut(2 * unit * half).enumerate() {
            let start = at + 2 * i * unit * half;
            let dy = T::widen(&dy[start / 2..(start + dx.len()) / 2], &mut wide_dy);
            let x = T::widen(&x[start..start + dx.len()], &mut wide_x);
            T::narrow(dx, &mut out, |dx| {
                let rows = x.chunks_exact(2 * half).zip(dx.chunks_exact_mut(2 * half));
                for ((x, dx), dy) in rows.zip(dy.chunks_exact(half)) {
                    let (dgate, dup) = dx.split_at_mut(half);
                    backward_block(dy, &x[..half], &x[half..], dgate, dup, kind);
                }
            });
        }
    });
}
