//! What all tests here share: random arrays, finite differences, and runs under several thread counts.

use planaria_array::{Array, DType, Threads};

/// A small generator of reproducible values.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In [-2, 2).
    pub(crate) fn value(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 51) as f64 - 2.0
    }

    pub(crate) fn array(&mut self, shape: &[usize]) -> Array {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| self.value()).collect();
        Array::from_slice(&values, shape).unwrap()
    }

    pub(crate) fn ids(&mut self, shape: &[usize], below: usize) -> Array {
        let values: Vec<i64> = (0..shape.iter().product()).map(|_| self.below(below) as i64).collect();
        Array::from_slice(&values, shape).unwrap()
    }
}

/// `sin(frequency * i) * scale + shift` for i from 1: inputs that are easy to repeat elsewhere.
pub(crate) fn wave(shape: &[usize], frequency: f64, scale: f64, shift: f64) -> Array {
    let n = shape.iter().product::<usize>();
    let values: Vec<f64> = (1..=n).map(|i| (frequency * i as f64).sin() * scale + shift).collect();
    Array::from_slice(&values, shape).unwrap()
}

/// Values in row-major order as f64.
pub(crate) fn values(x: &Array) -> Vec<f64> {
    x.cast(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

#[track_caller]
pub(crate) fn close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "element {i}: got {g}, want {w}");
    }
}

/// Checks `grads(inputs, dy)` of `f(inputs)` against central differences of `sum(dy * f)`, all in f64.
#[track_caller]
pub(crate) fn check_grads(
    inputs: &[Array],
    f: impl Fn(&[Array]) -> Array,
    grads: impl Fn(&[Array], &Array) -> Vec<Array>,
) {
    let mut rng = Rng::new(99);
    let dy = rng.array(f(inputs).shape());
    let loss =
        |inputs: &[Array]| -> f64 { values(&f(inputs)).iter().zip(values(&dy)).map(|(y, g)| y * g).sum() };
    let got = grads(inputs, &dy);
    assert_eq!(got.len(), inputs.len());
    for (which, grad) in got.iter().enumerate() {
        assert_eq!(grad.shape(), inputs[which].shape());
        let base = values(&inputs[which]);
        let numeric: Vec<f64> = (0..base.len())
            .map(|i| {
                let at = |step: f64| {
                    let mut moved = base.clone();
                    moved[i] += step;
                    let mut all = inputs.to_vec();
                    all[which] = Array::from_slice(&moved, inputs[which].shape()).unwrap();
                    loss(&all)
                };
                (at(1e-5) - at(-1e-5)) / 2e-5
            })
            .collect();
        close(&values(grad), &numeric, 2e-7);
    }
}

/// Runs `f` on 1, 2 and 3 threads and demands the same bits.
#[track_caller]
pub(crate) fn same_on_all_threads(f: impl Fn() -> Vec<Array> + Sync) {
    let bits = |arrays: Vec<Array>| -> Vec<Vec<u64>> {
        arrays.iter().map(|a| values(a).iter().map(|v| v.to_bits()).collect()).collect()
    };
    let one = Threads::new(1).unwrap().run(|| bits(f()));
    for count in 2..=3 {
        let many = Threads::new(count).unwrap().run(|| bits(f()));
        assert!(one == many, "{count} threads change the result");
    }
}

/// Checks that `f` on narrow inputs equals `f` on the same values in f32, rounded once.
#[track_caller]
pub(crate) fn rounds_once(inputs: &[Array], f: impl Fn(&[Array]) -> Vec<Array>) {
    for dtype in [DType::BF16, DType::F16] {
        let narrow: Vec<Array> = inputs.iter().map(|x| x.cast(dtype).unwrap()).collect();
        let wide: Vec<Array> = narrow.iter().map(|x| x.cast(DType::F32).unwrap()).collect();
        for (n, w) in f(&narrow).iter().zip(f(&wide)) {
            assert_eq!(values(n), values(&w.cast(n.dtype()).unwrap()), "{dtype}");
        }
    }
}

/// The same values as `x`, laid out with the first and last dim swapped in memory.
pub(crate) fn swapped(x: &Array) -> Array {
    let last = x.ndim() as i64 - 1;
    x.transpose(0, last).unwrap().copy().unwrap().transpose(0, last).unwrap()
}
