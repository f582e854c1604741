//! Optimizer steps, norms and scaling of gradients.

use super::support::{Rng, close, same_on_all_threads, values, wave};
use planaria_array::ops::{self, AdamW, AdamWArrays, Momentum, Sgd, SgdArrays};
use planaria_array::{Array, DType};

// From torch.optim.AdamW(fused=True) and torch.optim.SGD in f64 after three steps.
const ADAMW: [f64; 5] =
    [0.5045615049675081, 0.9093983008033939, 0.9477661932073563, 0.39882152376238444, -0.21339730508849467];
const ADAMW_M: [f64; 5] = [
    0.38173715920326085,
    0.050254167320323666,
    -0.03244547427514347,
    -0.09982489011011109,
    -0.3271860778235224,
];
const ADAMW_V: [f64; 5] = [
    0.18619205408855027,
    0.16166115691095187,
    0.004538734981968561,
    0.20548224491065045,
    0.13441370801446892,
];
const ADAMW_AMS: [f64; 5] =
    [0.5054279664485348, 0.9095205582381836, 0.9462368931496383, 0.3986068717449748, -0.21426099225820122];
const SGD_NESTEROV: [f64; 5] =
    [0.18800748457563857, 0.8028610832775691, 0.8773540661576322, 0.5206121270998985, 0.028549418714527094];
const SGD_DAMPED: [f64; 5] =
    [0.3253489278726688, 0.8083638483054945, 0.8832598519915413, 0.5224554640786824, -0.0894474105389104];

const ADAM: AdamW =
    AdamW { lr: 0.05, beta1: 0.8, beta2: 0.95, eps: 1e-6, weight_decay: 0.1, grad_scale: 1.0 };
const SGD: Sgd = Sgd {
    lr: 0.05,
    momentum: 0.9,
    dampening: 0.0,
    weight_decay: 0.1,
    momentum_kind: Momentum::Nesterov,
    grad_scale: 1.0,
};

fn grad(step: u64) -> Array {
    let s = (step - 1) as f64;
    wave(&[5], 1.1 + s, 2.0 - 0.9 * s, 0.0)
}

fn zeros(dtype: DType) -> Array {
    Array::zeros(&[5], dtype).unwrap()
}

#[test]
fn adamw_follows_torch() {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-6)] {
        let [p, q] = [(); 2].map(|_| wave(&[5], 0.7, 1.0, 0.0).cast(dtype).unwrap());
        let [m, v, m2, v2, max] = [(); 5].map(|_| zeros(dtype));
        for step in 1..=3 {
            let g = grad(step).cast(dtype).unwrap();
            let plain = AdamWArrays {
                param: &p,
                grad: &g,
                exp_avg: &m,
                exp_avg_sq: &v,
                max_exp_avg_sq: None,
                master: None,
            };
            let ams =
                AdamWArrays { param: &q, exp_avg: &m2, exp_avg_sq: &v2, max_exp_avg_sq: Some(&max), ..plain };
            ADAM.step(step, &[plain, ams]).unwrap();
        }
        close(&values(&p), &ADAMW, tolerance);
        close(&values(&m), &ADAMW_M, tolerance);
        close(&values(&v), &ADAMW_V, tolerance);
        close(&values(&q), &ADAMW_AMS, tolerance);
    }
}

#[test]
fn sgd_follows_torch() {
    let damped = Sgd { dampening: 0.3, momentum_kind: Momentum::Classic, ..SGD };
    for (sgd, want) in [(SGD, SGD_NESTEROV), (damped, SGD_DAMPED)] {
        let (p, v) = (wave(&[5], 0.7, 1.0, 0.0), Array::full(&[5], 7.0, DType::F64).unwrap());
        for step in 1..=3 {
            let g = grad(step);
            sgd.step(step, &[SgdArrays { param: &p, grad: &g, velocity: Some(&v), master: None }]).unwrap();
        }
        close(&values(&p), &want, 1e-12);
    }
    let p = Array::from_slice(&[1f64, 2.0], &[2]).unwrap();
    let plain = Sgd { lr: 0.5, ..Sgd::default() };
    plain
        .step(1, &[SgdArrays { param: &p, grad: &p.copy().unwrap(), velocity: None, master: None }])
        .unwrap();
    assert_eq!(values(&p), [0.5, 1.0]);
}

/// One AdamW step on copies of the inputs under some change of form; returns the new parameter and moments.
fn step_on(p: &Array, g: &Array, m: &Array, v: &Array) -> Vec<Vec<f64>> {
    let arrays =
        AdamWArrays { param: p, grad: g, exp_avg: m, exp_avg_sq: v, max_exp_avg_sq: None, master: None };
    ADAM.step(3, &[arrays]).unwrap();
    [p, m, v].map(values).to_vec()
}

#[test]
fn views_and_snapshots_are_updated_in_place_and_snapshots_keep_their_values() {
    let mut rng = Rng::new(30);
    let n = 3000;
    let [p, g, m, v] = [(); 4].map(|_| rng.array(&[n]).cast(DType::F32).unwrap());
    let v = v.softmax(0).unwrap();
    let fresh = |x: &Array| x.copy().unwrap();
    let want = step_on(&fresh(&p), &g, &fresh(&m), &fresh(&v));

    let (p1, m1, v1) = (fresh(&p), fresh(&m), fresh(&v));
    let view = p1.reshape(&[30, 100]).unwrap();
    let kept = [p1.snapshot().unwrap(), m1.snapshot().unwrap(), v1.snapshot().unwrap()];
    let before = p1.version();
    assert_eq!(step_on(&p1, &g, &m1, &v1), want);
    assert_eq!(values(&view), want[0], "views follow");
    assert!(p1.version() > before && !p1.is_snapshotted());
    for (kept, old) in kept.iter().zip([&p, &m, &v]) {
        assert_eq!(values(kept), values(old), "snapshots stay");
    }

    // Parts of one flat buffer, moments behind the parameter, with a neighbour that must not change.
    let flat = Array::full(&[4 * n], 5.0, DType::F32).unwrap();
    let part = |i: usize, x: &Array| {
        let view = flat.narrow(0, i * n, n).unwrap();
        view.copy_from(x).unwrap();
        view
    };
    let (a, b, c) = (part(0, &p), part(1, &m), part(2, &v));
    let held = flat.snapshot().unwrap();
    assert_eq!(step_on(&a, &g, &b, &c), want);
    assert_eq!(values(&flat.narrow(0, 3 * n, n).unwrap()), vec![5.0; n]);
    assert_eq!(values(&held.narrow(0, 0, n).unwrap()), values(&p));

    // Every second element.
    let wide = Array::zeros(&[2 * n], DType::F32).unwrap();
    let odd = wide.slice(0, Some(1), None, 2).unwrap();
    odd.copy_from(&p).unwrap();
    assert_eq!(step_on(&odd, &g, &fresh(&m), &fresh(&v)), want);
    assert_eq!(values(&wide.slice(0, None, None, 2).unwrap()), vec![0.0; n]);

    // The gradient may be the parameter itself.
    let (p2, m2) = (fresh(&p), fresh(&m));
    assert_eq!(step_on(&p2, &p2, &m2, &fresh(&v)), step_on(&fresh(&p), &p, &fresh(&m), &fresh(&v)));
}

#[test]
fn master_weights_hold_what_narrow_parameters_lose() {
    let mut rng = Rng::new(31);
    let n = 2500;
    let start = rng.array(&[n]).cast(DType::BF16).unwrap();
    let g = rng.array(&[n]).cast(DType::BF16).unwrap();
    let wide = start.cast(DType::F32).unwrap().copy().unwrap();
    let (param, master) = (start.copy().unwrap(), wide.copy().unwrap());
    let [m, v, m2, v2] = [(); 4].map(|_| Array::zeros(&[n], DType::F32).unwrap());
    let g32 = g.cast(DType::F32).unwrap();
    let small = AdamW { lr: 1e-4, ..ADAM };
    for step in 1..=4 {
        let narrow = AdamWArrays {
            param: &param,
            grad: &g,
            exp_avg: &m,
            exp_avg_sq: &v,
            max_exp_avg_sq: None,
            master: Some(&master),
        };
        let full =
            AdamWArrays { param: &wide, grad: &g32, exp_avg: &m2, exp_avg_sq: &v2, master: None, ..narrow };
        small.step(step, &[narrow, full]).unwrap();
    }
    assert_eq!(values(&master), values(&wide));
    assert_eq!(values(&param), values(&wide.cast(DType::BF16).unwrap()));
    // Without master weights, moments in the parameter's dtype: one rounding per array and step.
    let (p, m, v) = (start.copy().unwrap(), zeros_bf16(n), zeros_bf16(n));
    let (p32, m32, v32) = (start.cast(DType::F32).unwrap(), zeros_bf16(n), zeros_bf16(n));
    let [m32, v32] = [m32, v32].map(|x| x.cast(DType::F32).unwrap());
    let got = step_on(&p, &g, &m, &v);
    let want = step_on(&p32, &g32, &m32, &v32);
    for (got, want) in got.iter().zip(&want) {
        let want = Array::from_slice(want, &[n]).unwrap().cast(DType::BF16).unwrap();
        assert_eq!(got, &values(&want));
    }
}

fn zeros_bf16(n: usize) -> Array {
    Array::zeros(&[n], DType::BF16).unwrap()
}

#[test]
fn threads_change_nothing() {
    let mut rng = Rng::new(32);
    let [p, g, m, v] = [(); 4].map(|_| rng.array(&[90_001]).cast(DType::F32).unwrap());
    same_on_all_threads(|| {
        let [p, m, v] = [&p, &m, &v].map(|x| x.copy().unwrap());
        step_on(&p, &g, &m, &v);
        let velocity = v.copy().unwrap();
        SGD.step(2, &[SgdArrays { param: &p, grad: &g, velocity: Some(&velocity), master: None }]).unwrap();
        let norm = ops::squared_norm(&[p.clone(), g.clone()]).unwrap();
        vec![p, m, v, velocity, Array::scalar(norm, DType::F64).unwrap()]
    });
}

#[test]
fn parameters_of_one_storage_are_stepped_like_parameters_of_their_own() {
    let n = 3000;
    // 0..4: parameter, gradient and moments of each of five parameters, in rows of one array or apart.
    let run = |shared: bool| {
        let all = wave(&[20, n], 0.3, 0.5, 1.0);
        let rows: Vec<Array> = (0..20).map(|r| all.slice(0, Some(r), Some(r + 1), 1).unwrap()).collect();
        let rows: Vec<Array> = if shared { rows } else { rows.iter().map(|r| r.copy().unwrap()).collect() };
        let list: Vec<AdamWArrays<'_>> = rows
            .chunks(4)
            .map(|row| AdamWArrays {
                param: &row[0],
                grad: &row[1],
                exp_avg: &row[2],
                exp_avg_sq: &row[3],
                max_exp_avg_sq: None,
                master: None,
            })
            .collect();
        ADAM.step(1, &list).unwrap();
        rows.iter().flat_map(values).collect::<Vec<f64>>()
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn norms_clipping_and_loss_scaling() {
    let mut rng = Rng::new(33);
    let list: Vec<Array> =
        [(7, DType::F32), (70_000, DType::F32), (3000, DType::BF16), (0, DType::F16), (5, DType::F64)]
            .map(|(n, dtype)| rng.array(&[n]).cast(dtype).unwrap())
            .to_vec();
    let want: f64 = list.iter().flat_map(values).map(|v| v * v).sum();
    close(&[ops::squared_norm(&list).unwrap()], &[want], 1e-12);
    let huge = Array::full(&[2], 1e30, DType::F32).unwrap();
    assert!(ops::squared_norm(&[huge]).unwrap().is_finite());
    assert_eq!(ops::clip_coefficient(0.5, 1.0), 1.0);
    close(&[ops::clip_coefficient(4.0, 1.0)], &[0.25], 1e-6);
    assert!(ops::clip_coefficient(f64::NAN, 1.0).is_nan());
    let before: Vec<Vec<f64>> = list.iter().map(values).collect();
    ops::scale_in_place(&list, 0.5).unwrap();
    for (x, old) in list.iter().zip(&before) {
        assert_eq!(values(x), old.iter().map(|v| v * 0.5).collect::<Vec<_>>());
    }
    assert!(ops::check_finite_and_unscale(&list, 2.0).unwrap());
    assert_eq!(values(&list[1]), before[1]);
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for n in [1, 17, 5000] {
            let x = rng.array(&[n]).cast(DType::F16).unwrap();
            x.narrow(0, n - 1, 1).unwrap().fill(bad).unwrap();
            assert!(!ops::check_finite_and_unscale(&[list[0].clone(), x], 0.25).unwrap());
        }
    }
}
