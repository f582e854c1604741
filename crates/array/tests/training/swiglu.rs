//! Gated linear units.

use super::support::{Rng, check_grads, close, rounds_once, same_on_all_threads, values, wave};
use planaria_array::ops::{self, Gate};
use planaria_array::{Array, DType};

// From torch: F.silu(g) * u and F.gelu(g) * u for the waves below.
const SWIGLU: [f64; 6] = [
    0.40702390213054396,
    0.3699201177924777,
    -0.4175577517336644,
    -0.17252889138654298,
    -0.03117970618601456,
    -0.25667637727783127,
];
const GEGLU: [f64; 6] = [
    0.45952408895769675,
    0.4256021601508998,
    -0.478504430873508,
    -0.18679661114138907,
    -0.027382760058799454,
    -0.16685503808897642,
];
const GEGLU_TANH: [f64; 6] = [
    0.45948362126933406,
    0.42552605872366583,
    -0.4784324157901131,
    -0.18679322679671692,
    -0.0273837433246984,
    -0.1669624433048963,
];

#[test]
fn gates_follow_torch() {
    let (g, u) = (wave(&[2, 3], 0.7, 1.0, 0.0), wave(&[2, 3], 1.3, 1.0, 0.0));
    for (act, want) in [(Gate::Silu, SWIGLU), (Gate::Gelu, GEGLU), (Gate::GeluTanh, GEGLU_TANH)] {
        close(&values(&ops::glu(&g, &u, act).unwrap()), &want, 1e-12);
        let (g, u) = (g.cast(DType::F32).unwrap(), u.cast(DType::F32).unwrap());
        close(&values(&ops::glu(&g, &u, act).unwrap()), &want, 1e-6);
    }
}

/// One row per sample: gate, then up.
fn pack(gate: &Array, up: &Array, width: usize) -> Array {
    let (g, u) = (values(gate), values(up));
    let rows = g.chunks(width).zip(u.chunks(width));
    let packed: Vec<f64> = rows.flat_map(|(g, u)| [g, u].concat()).collect();
    Array::from_slice(&packed, &[g.len() / width, 2 * width]).unwrap()
}

#[test]
fn packed_is_the_same_as_two_arrays() {
    let mut rng = Rng::new(4);
    for (rows, width) in [(3, 5), (700, 64), (2, 5000)] {
        let [g, u, dy] = [(); 3].map(|_| rng.array(&[rows, width]));
        let x = pack(&g, &u, width);
        assert_eq!(values(&ops::swiglu_packed(&x).unwrap()), values(&ops::swiglu(&g, &u).unwrap()));
        let grad = ops::swiglu_grad(&dy, &g, &u).unwrap();
        let packed = ops::swiglu_packed_grad(&dy, &x).unwrap();
        assert_eq!(values(&packed), values(&pack(&grad.gate, &grad.up, width)));
    }
}

#[test]
fn gradients_match_finite_differences() {
    let mut rng = Rng::new(5);
    for act in [Gate::Silu, Gate::Gelu, Gate::GeluTanh] {
        check_grads(
            &[rng.array(&[3, 2]), rng.array(&[3, 2])],
            |x| ops::glu(&x[0], &x[1], act).unwrap(),
            |x, dy| {
                let grad = ops::glu_grad(dy, &x[0], &x[1], act).unwrap();
                vec![grad.gate, grad.up]
            },
        );
    }
}

#[test]
fn narrow_types_round_once_and_threads_change_nothing() {
    let mut rng = Rng::new(6);
    let x = [(); 3].map(|_| rng.array(&[300, 350]));
    let all = |x: &[Array]| {
        let grad = ops::swiglu_grad(&x[0], &x[1], &x[2]).unwrap();
        vec![ops::swiglu(&x[1], &x[2]).unwrap(), grad.gate, grad.up, ops::swiglu_packed(&x[1]).unwrap()]
    };
    rounds_once(&x, all);
    let wide = x.map(|x| x.cast(DType::F32).unwrap());
    same_on_all_threads(|| all(&wide));
}
