//! Attention against a direct f64 computation, finite differences, and itself on other numbers of threads.

use super::*;
use crate::element::Scalar;
use half::bf16;

fn noise(n: usize, seed: u64) -> Vec<f64> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

#[derive(Clone)]
struct Case {
    sizes: Sizes,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    dout: Vec<f64>,
}

impl Case {
    fn new(sizes: Sizes) -> Case {
        let Sizes { batch, q_heads, kv_heads, q_len, k_len, dim, v_dim } = sizes;
        Case {
            sizes,
            q: noise(batch * q_heads * q_len * dim, 1),
            k: noise(batch * kv_heads * k_len * dim, 2),
            v: noise(batch * kv_heads * k_len * v_dim, 3),
            dout: noise(batch * q_heads * q_len * v_dim, 4),
        }
    }

    fn forward<T: Float>(&self, rule: &Rule<T::Real>) -> (Vec<T>, Vec<T::Real>)
    where
        T::Real: MatmulElement,
    {
        let (q, k, v) = (of::<T>(&self.q), of::<T>(&self.k), of::<T>(&self.v));
        let mut out = vec![T::from_scalar(Scalar::Float(7.0)); self.dout.len()];
        let mut lse = vec![T::Real::ONE; self.sizes.batch * self.sizes.q_heads * self.sizes.q_len];
        forward((&q, &k, &v), &mut out, &mut lse, self.sizes, rule);
        (out, lse)
    }

    fn backward<T: Float>(&self, rule: &Rule<T::Real>) -> [Vec<T>; 3]
    where
        T::Real: MatmulElement,
    {
        let (q, k, v, dout) = (of::<T>(&self.q), of::<T>(&self.k), of::<T>(&self.v), of::<T>(&self.dout));
        let (out, lse) = self.forward::<T>(rule);
        let [mut dq, mut dk, mut dv] =
            [&q, &k, &v].map(|x| vec![T::from_scalar(Scalar::Float(7.0)); x.len()]);
        let saved = Saved { q: &q, k: &k, v: &v, out: &out, lse: &lse, dout: &dout };
        backward(saved, Grads { q: &mut dq, k: &mut dk, v: &mut dv }, self.sizes, rule);
        [dq, dk, dv]
    }

    /// The textbook formula on whole rows.
    fn reference(&self, rule: &Rule<f64>) -> Vec<f64> {
        let s = self.sizes;
        let mut out = vec![0.0; self.dout.len()];
        for head in 0..s.batch * s.q_heads {
            for i in 0..s.q_len {
                let kv = head / s.group();
                let score = |j: usize| {
                    let q = &self.q[(head * s.q_len + i) * s.dim..][..s.dim];
                    let k = &self.k[(kv * s.k_len + j) * s.dim..][..s.dim];
                    let dot: f64 = q.iter().zip(k).map(|(a, b)| a * b).sum();
                    let hidden = rule.span == Span::Causal && j > i;
                    let mask = rule.mask.map_or(0.0, |m| {
                        let at = [head / s.q_heads, head % s.q_heads, i, j];
                        let at: isize = at.iter().zip(m.strides).map(|(x, s)| *x as isize * s).sum();
                        let at = (m.offset as isize + at) as usize;
                        match m.values {
                            MaskValues::Add(values) => values[at],
                            MaskValues::Keep(values) if values[at].get() => 0.0,
                            MaskValues::Keep(_) => f64::NEG_INFINITY,
                        }
                    });
                    if hidden { f64::NEG_INFINITY } else { dot * rule.scale + mask }
                };
                let scores: Vec<f64> = (0..s.k_len).map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                if max == f64::NEG_INFINITY {
                    continue;
                }
                let total: f64 = scores.iter().map(|x| (x - max).exp()).sum();
                for (j, score) in scores.iter().enumerate() {
                    for c in 0..s.v_dim {
                        let weight = (score - max).exp() / total;
                        out[(head * s.q_len + i) * s.v_dim + c] +=
                            weight * self.v[(kv * s.k_len + j) * s.v_dim + c];
                    }
                }
            }
        }
        out
    }

    /// The scalar whose gradients `backward` gives.
    fn loss(&self, rule: &Rule<f64>) -> f64 {
        self.forward::<f64>(rule).0.iter().zip(&self.dout).map(|(a, b)| a * b).sum()
    }
}

fn of<T: Float>(x: &[f64]) -> Vec<T> {
    x.iter().map(|x| T::from_scalar(Scalar::Float(*x))).collect()
}

fn sizes(heads: [usize; 3], lens: [usize; 2], dims: [usize; 2]) -> Sizes {
    let ([batch, q_heads, kv_heads], [q_len, k_len], [dim, v_dim]) = (heads, lens, dims);
    Sizes { batch, q_heads, kv_heads, q_len, k_len, dim, v_dim }
}

fn plain<R: Real>(span: Span) -> Rule<'static, R> {
    Rule { scale: R::of(0.3), span, mask: None }
}

/// Sizes around the blocks, groups, and unequal lengths.
fn cases() -> Vec<Case> {
    [
        sizes([1, 1, 1], [1, 1], [1, 1]),
        sizes([2, 4, 2], [5, 7], [3, 4]),
        sizes([1, 2, 1], [70, 300], [8, 5]),
        sizes([1, 3, 3], [130, 65], [16, 16]),
        sizes([1, 2, 2], [3, 0], [4, 2]),
        sizes([1, 2, 2], [0, 3], [4, 2]),
    ]
    .map(Case::new)
    .into()
}

fn close(x: &[f64], y: &[f64], bound: f64, what: &str) {
    assert_eq!(x.len(), y.len());
    for (i, (a, b)) in x.iter().zip(y).enumerate() {
        assert!((a - b).abs() <= bound, "{what}: element {i} is {a}, expected {b}");
    }
}

fn f64s<T: Float>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| x.to_scalar().as_f64()).collect()
}

#[test]
fn forward_is_the_textbook_formula() {
    for case in cases() {
        for span in [Span::All, Span::Causal] {
            let expected = case.reference(&plain(span));
            close(&case.forward::<f64>(&plain(span)).0, &expected, 1e-12, "f64");
            close(&f64s(&case.forward::<f32>(&plain(span)).0), &expected, 2e-6, "f32");
            close(&f64s(&case.forward::<bf16>(&plain(span)).0), &expected, 3e-2, "bf16");
        }
    }
}

/// A mask that hides every key of some queries, and broadcasts over heads.
fn keep(case: &Case) -> Vec<Bool> {
    let (rows, cols) = (case.sizes.q_len, case.sizes.k_len);
    (0..rows * cols).map(|x| Bool::new(x / cols % 3 != 1 && (x * 7 + x / cols) % 4 != 0)).collect()
}

#[test]
fn masks_add_or_hide_and_never_make_a_nan() {
    for case in cases() {
        let kept = keep(&case);
        let strides = [0, 0, case.sizes.k_len as isize, 1];
        let hidden: Vec<f64> = kept.iter().map(|k| if k.get() { 0.25 } else { f64::NEG_INFINITY }).collect();
        for values in [MaskValues::Keep(&kept), MaskValues::Add(&hidden)] {
            for span in [Span::All, Span::Causal] {
                let rule = Rule { mask: Some(Mask { values, offset: 0, strides }), ..plain(span) };
                let (out, lse) = case.forward::<f64>(&rule);
                close(&out, &case.reference(&rule), 1e-12, "masked");
                assert!(lse.iter().all(|x| !x.is_nan()));
                assert!(case.backward::<f64>(&rule).iter().flatten().all(|x| x.is_finite()));
            }
        }
    }
}

#[test]
fn gradients_are_those_of_the_finite_difference() {
    let mut case = Case::new(sizes([1, 4, 2], [70, 5], [3, 2]));
    let kept = keep(&case);
    let strides = [0, 0, case.sizes.k_len as isize, 1];
    let mask = Mask { values: MaskValues::Keep(&kept), offset: 0, strides };
    for rule in [plain(Span::All), plain(Span::Causal), Rule { mask: Some(mask), ..plain(Span::All) }] {
        let grads = case.backward::<f64>(&rule);
        let h = 1e-5;
        for which in 0..3 {
            for i in (0..grads[which].len()).step_by(3) {
                let mut loss_at = |step: f64| {
                    let x = &mut [&mut case.q, &mut case.k, &mut case.v][which][i];
                    let kept = std::mem::replace(x, *x + step);
                    let loss = case.loss(&rule);
                    [&mut case.q, &mut case.k, &mut case.v][which][i] = kept;
                    loss
                };
                let expected = (loss_at(h) - loss_at(-h)) / (2.0 * h);
                let found = grads[which][i];
                assert!(
                    (found - expected).abs() < 1e-7,
                    "operand {which}, element {i}: {found}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn narrow_gradients_are_those_of_f64_rounded() {
    for case in cases() {
        let (wide, single) =
            (case.backward::<f64>(&plain(Span::Causal)), case.backward::<f32>(&plain(Span::Causal)));
        let narrow = case.backward::<bf16>(&plain(Span::Causal));
        for i in 0..3 {
            let size = wide[i].iter().fold(1.0f64, |m, x| m.max(x.abs()));
            close(&f64s(&single[i]), &wide[i], 1e-5 * size, "f32");
            close(&f64s(&narrow[i]), &wide[i], 5e-2 * size, "bf16");
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads() {
    let case = Case::new(sizes([1, 4, 2], [200, 600], [32, 16]));
    for span in [Span::All, Span::Causal] {
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| (case.forward::<f32>(&plain(span)), case.backward::<f32>(&plain(span))))
        };
        let one = run(1);
        // Two threads go by head, three and five by block.
        for threads in [2, 3, 5] {
            assert!(run(threads) == one, "{threads} threads");
        }
    }
}
