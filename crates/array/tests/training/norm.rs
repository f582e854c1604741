//! Layer, rms, group, instance and batch normalisation.

use super::support::{Rng, check_grads, close, rounds_once, same_on_all_threads, swapped, values, wave};
use planaria_array::ops::{self, BatchMode, BatchStats, RunningStats};
use planaria_array::{Array, DType};

// From torch.nn.functional in f64, for the waves below.
const LAYER: [f64; 12] = [
    0.3646309888166864,
    0.8362430404564707,
    0.21422288163650294,
    0.6791711642792834,
    3.7617218108879475,
    -1.8867057649909527,
    -0.3349835917207212,
    0.891938831668885,
    -2.3632845163298812,
    -0.7583353080608437,
    0.31763563319204646,
    0.9251106743992931,
];
const RMS: [f64; 12] = [
    1.7765282413856491,
    1.8943773724595812,
    0.35167533370268744,
    0.06898061832699182,
    -0.38113354361491203,
    -1.8142433791302428,
    -0.4404581380151437,
    -0.0855793273294174,
    0.5486721689442634,
    1.4395206809757766,
    0.40487441515077094,
    0.1348218379481562,
];
const GROUP: [f64; 24] = [
    1.9663526738094694,
    2.9658069952098045,
    2.607770105108805,
    -0.7192019846735405,
    -2.269463827701499,
    -3.446772820613221,
    -0.4554251711340061,
    -0.3090400216347017,
    -0.0389000578678605,
    0.9334058436071867,
    0.9849335796198208,
    0.9641518567584709,
    3.9392058944761885,
    1.0670210504281152,
    -1.0830685405002134,
    -2.695411622124481,
    -1.5279988059080436,
    0.5794459734459168,
    0.20641006284551205,
    0.3537881117039322,
    0.2872872971655666,
    0.8625755726224974,
    0.7451662069166184,
    0.658547985299054,
];
const INSTANCE: [f64; 24] = [
    -1.7341988455389268,
    3.0120420313133685,
    1.3117849141721805,
    1.063095362794379,
    -1.040245556405129,
    -2.637577123630015,
    -0.32275799159322366,
    -0.057840372521942754,
    0.4310400655682182,
    0.7036082055792886,
    0.9873029127602357,
    0.872885605925317,
    3.3746716841425703,
    0.633489387894938,
    -1.4185329720908877,
    -2.527485560489552,
    -1.2219840061702463,
    1.1347422494190345,
    -0.3773739231830887,
    0.3861742172176248,
    0.041641407418516276,
    1.003951095043855,
    0.84029213761552,
    0.7195534916054662,
];
const BATCH: [f64; 24] = [
    1.9783019710050669,
    2.9711378653502547,
    2.6154719100578268,
    1.51659395341588,
    -0.6861519072818317,
    -2.3589741615103503,
    -0.45553096645611174,
    -0.3092458067336599,
    -0.03929036465353627,
    0.9234292140636632,
    0.98021204203478,
    0.9573108807283698,
    1.0323470334431841,
    -0.9623834043253304,
    -2.4556191756377586,
    -2.7045992086676827,
    -1.544911373706995,
    0.5485880632694503,
    0.23261256529055482,
    0.36633953338763986,
    0.30599844207121685,
    0.8627566483919582,
    0.7452772687094691,
    0.658607394601442,
];
const BATCH_MEAN: [f64; 4] =
    [0.8549088624393164, 0.5865870772032848, 0.540067776065891, -0.006440945639970108];
const BATCH_VAR: [f64; 4] = [2.328424427430622, 2.222702528549121, 2.8615126188548805, 2.7650489106796137];
const BATCH_EVAL: [f64; 24] = [
    2.064473265194367,
    2.9426695000059495,
    2.628071181625773,
    -0.2785506562261791,
    -1.6727473088756546,
    -2.7315363543737226,
    -0.35326123658284303,
    -0.2236183958491124,
    0.01562521880871713,
    0.9821878206020456,
    1.028611437815798,
    1.0098882642045794,
    1.2277447895219884,
    -0.5366603552655335,
    -1.857476856281979,
    -2.950294810542579,
    -2.216286895027358,
    -0.8912362119532707,
    0.25659476287359134,
    0.3751081107737354,
    0.3216318011735218,
    0.9325840924194301,
    0.8365371368915526,
    0.7656789355071167,
];

const EPS: f64 = 1e-5;

fn params() -> (Array, Array) {
    (wave(&[4], 1.3, 1.0, 1.0), wave(&[4], 2.1, 1.0, 0.0))
}

#[test]
fn rows_follow_torch() {
    let (x, (w, b)) = (wave(&[3, 4], 0.7, 2.0, 0.5), params());
    let norm = ops::layer_norm(&x, &[4], Some(&w), Some(&b), EPS).unwrap();
    close(&values(&norm.y), &LAYER, 1e-12);
    assert_eq!((norm.mean.shape()[..].to_vec(), norm.rstd.shape()[..].to_vec()), (vec![3], vec![3]));
    close(&values(&ops::rms_norm(&x, &[4], Some(&w), EPS).unwrap().y), &RMS, 1e-12);
    let strided = ops::layer_norm(&swapped(&x), &[4], Some(&w), Some(&b), EPS).unwrap();
    assert_eq!(values(&strided.y), values(&norm.y));
}

#[test]
fn channels_follow_torch() {
    let (x, (w, b)) = (wave(&[2, 4, 3], 0.7, 2.0, 0.5), params());
    close(&values(&ops::group_norm(&x, 2, Some(&w), Some(&b), EPS).unwrap().y), &GROUP, 1e-12);
    close(&values(&ops::instance_norm(&x, Some(&w), Some(&b), EPS).unwrap().y), &INSTANCE, 1e-12);
    let (mean, var) = (wave(&[4], 0.9, 1.0, 0.0), wave(&[4], 0.4, 1.0, 2.0));
    let running = RunningStats { mean: &mean, var: &var };
    let training = BatchStats::Batch { running: Some(running), momentum: 0.3 };
    close(&values(&ops::batch_norm(&x, Some(&w), Some(&b), training, EPS).unwrap().y), &BATCH, 1e-12);
    close(&values(&mean), &BATCH_MEAN, 1e-12);
    close(&values(&var), &BATCH_VAR, 1e-12);
    let eval = BatchStats::Running(running);
    close(&values(&ops::batch_norm(&x, Some(&w), Some(&b), eval, EPS).unwrap().y), &BATCH_EVAL, 1e-12);
}

/// Mean and variance in f64.
fn moments(v: &[f64]) -> (f64, f64) {
    let n = v.len() as f64;
    let mean = v.iter().sum::<f64>() / n;
    (mean, v.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n)
}

#[test]
fn long_rows_far_from_zero_keep_their_accuracy() {
    let mut rng = Rng::new(10);
    for cols in [1, 15, 16, 63, 65, 1000, 20_000] {
        let x: Vec<f64> = (0..3 * cols).map(|_| f64::from((rng.value() + 100.0) as f32)).collect();
        let array = Array::from_slice(&x, &[3, cols]).unwrap().cast(DType::F32).unwrap();
        let y = values(&ops::layer_norm(&array, &[cols], None, None, EPS).unwrap().y);
        let g =
            values(&ops::group_norm(&array.reshape(&[3, 1, cols]).unwrap(), 1, None, None, EPS).unwrap().y);
        for r in 0..3 {
            let row = &x[r * cols..(r + 1) * cols];
            let (mean, var) = moments(row);
            let want: Vec<f64> = row.iter().map(|v| (v - mean) / (var + EPS).sqrt()).collect();
            close(&y[r * cols..(r + 1) * cols], &want, 3e-5);
            close(&g[r * cols..(r + 1) * cols], &want, 3e-5);
        }
    }
}

#[test]
fn batch_statistics_equal_their_definition_for_short_and_long_channels() {
    let mut rng = Rng::new(11);
    for (batch, channels, inner) in
        [(700, 3, 1), (33, 2, 5), (4, 3, 16), (3, 5, 77), (2, 1, 9000), (9, 4, 15)]
    {
        let x = rng.array(&[batch, channels, inner]);
        let stats = BatchStats::Batch { running: None, momentum: 0.1 };
        let norm = ops::batch_norm(&x.cast(DType::F32).unwrap(), None, None, stats, EPS).unwrap();
        let v = values(&x);
        for c in 0..channels {
            let of: Vec<f64> =
                (0..v.len()).filter(|i| i / inner % channels == c).map(|i| f64::from(v[i] as f32)).collect();
            let (mean, var) = moments(&of);
            close(&[values(&norm.mean)[c]], &[mean], 1e-6);
            close(&[values(&norm.rstd)[c]], &[1.0 / (var + EPS).sqrt()], 1e-6);
        }
    }
}

#[test]
fn row_gradients_match_finite_differences() {
    let mut rng = Rng::new(12);
    for shape in [&[3, 5][..], &[2, 2, 70], &[1, 1]] {
        let cols = [shape[shape.len() - 1]];
        let input = [rng.array(shape), rng.array(&cols), rng.array(&cols)];
        check_grads(
            &input,
            |x| ops::layer_norm(&x[0], &cols, Some(&x[1]), Some(&x[2]), 0.1).unwrap().y,
            |x, dy| {
                let n = ops::layer_norm(&x[0], &cols, Some(&x[1]), Some(&x[2]), 0.1).unwrap();
                let g = ops::layer_norm_grad(dy, &x[0], &cols, &n.mean, &n.rstd, Some(&x[1]), None).unwrap();
                vec![g.x, g.weight, g.bias]
            },
        );
        check_grads(
            &input[..2],
            |x| ops::rms_norm(&x[0], &cols, Some(&x[1]), 0.1).unwrap().y,
            |x, dy| {
                let n = ops::rms_norm(&x[0], &cols, Some(&x[1]), 0.1).unwrap();
                let g = ops::rms_norm_grad(dy, &x[0], &cols, &n.rstd, Some(&x[1]), None).unwrap();
                vec![g.x, g.weight]
            },
        );
        check_grads(
            &input[..1],
            |x| ops::layer_norm(&x[0], shape, None, None, 0.1).unwrap().y,
            |x, dy| {
                let n = ops::layer_norm(&x[0], shape, None, None, 0.1).unwrap();
                vec![ops::layer_norm_grad(dy, &x[0], shape, &n.mean, &n.rstd, None, None).unwrap().x]
            },
        );
    }
}

#[test]
fn channel_gradients_match_finite_differences() {
    let mut rng = Rng::new(13);
    for shape in [&[3, 4][..], &[2, 4, 3], &[2, 2, 2, 9]] {
        let channels = [shape[1]];
        let input = [rng.array(shape), rng.array(&channels), rng.array(&channels)];
        for groups in [1, 2] {
            check_grads(
                &input,
                |x| ops::group_norm(&x[0], groups, Some(&x[1]), Some(&x[2]), 0.1).unwrap().y,
                |x, dy| {
                    let n = ops::group_norm(&x[0], groups, Some(&x[1]), Some(&x[2]), 0.1).unwrap();
                    let g = ops::group_norm_grad(dy, &x[0], groups, &n.mean, &n.rstd, Some(&x[1])).unwrap();
                    vec![g.x, g.weight, g.bias]
                },
            );
        }
        check_grads(
            &input,
            |x| ops::instance_norm(&x[0], Some(&x[1]), Some(&x[2]), 0.1).unwrap().y,
            |x, dy| {
                let n = ops::instance_norm(&x[0], Some(&x[1]), Some(&x[2]), 0.1).unwrap();
                let g = ops::instance_norm_grad(dy, &x[0], &n.mean, &n.rstd, Some(&x[1])).unwrap();
                vec![g.x, g.weight, g.bias]
            },
        );
        let (mean, var) = (rng.array(&channels), wave(&channels, 0.4, 1.0, 2.0));
        let running = RunningStats { mean: &mean, var: &var };
        let training = BatchStats::Batch { running: None, momentum: 0.1 };
        for (stats, mode) in
            [(training, BatchMode::Training), (BatchStats::Running(running), BatchMode::Evaluation)]
        {
            check_grads(
                &input,
                |x| ops::batch_norm(&x[0], Some(&x[1]), Some(&x[2]), stats, 0.1).unwrap().y,
                |x, dy| {
                    let n = ops::batch_norm(&x[0], Some(&x[1]), Some(&x[2]), stats, 0.1).unwrap();
                    let g = ops::batch_norm_grad(dy, &x[0], &n.mean, &n.rstd, Some(&x[1]), mode).unwrap();
                    vec![g.x, g.weight, g.bias]
                },
            );
        }
    }
}

/// Everything the norms return for x, dy `[64, 16, ..]` and parameters of 16 channels and of the last dim.
fn everything(x: &[Array]) -> Vec<Array> {
    let [x, dy, w, b, lw, lb] = x else { panic!("six inputs") };
    let last = [x.shape()[x.ndim() - 1]];
    let l = ops::layer_norm(x, &last, Some(lw), Some(lb), EPS).unwrap();
    let lg = ops::layer_norm_grad(dy, x, &last, &l.mean, &l.rstd, Some(lw), None).unwrap();
    let r = ops::rms_norm(x, &last, Some(lw), EPS).unwrap();
    let rg = ops::rms_norm_grad(dy, x, &last, &r.rstd, Some(lw), None).unwrap();
    let g = ops::group_norm(x, 4, Some(w), Some(b), EPS).unwrap();
    let gg = ops::group_norm_grad(dy, x, 4, &g.mean, &g.rstd, Some(w)).unwrap();
    let stats = BatchStats::Batch { running: None, momentum: 0.1 };
    let n = ops::batch_norm(x, Some(w), Some(b), stats, EPS).unwrap();
    let ng = ops::batch_norm_grad(dy, x, &n.mean, &n.rstd, Some(w), BatchMode::Training).unwrap();
    vec![
        l.y, l.mean, l.rstd, lg.x, lg.weight, lg.bias, r.y, r.rstd, rg.x, rg.weight, g.y, g.mean, g.rstd,
        gg.x, gg.weight, gg.bias, n.y, n.mean, n.rstd, ng.x, ng.weight, ng.bias,
    ]
}

#[test]
fn narrow_types_round_once_and_threads_change_nothing() {
    let mut rng = Rng::new(14);
    for shape in [&[64, 16, 70][..], &[600, 16, 7], &[3000, 16]] {
        let last = [shape[shape.len() - 1]];
        let x = [
            rng.array(shape),
            rng.array(shape),
            rng.array(&[16]),
            rng.array(&[16]),
            rng.array(&last),
            rng.array(&last),
        ];
        rounds_once(&x, everything);
        let wide = x.map(|x| x.cast(DType::F32).unwrap());
        same_on_all_threads(|| everything(&wide));
    }
}

#[test]
fn f32_parameters_go_with_narrow_inputs() {
    let mut rng = Rng::new(15);
    let x = rng.array(&[8, 32]).cast(DType::BF16).unwrap();
    let w = rng.array(&[32]).cast(DType::F32).unwrap();
    let n = ops::rms_norm(&x, &[32], Some(&w), EPS).unwrap();
    assert_eq!((n.y.dtype(), n.rstd.dtype()), (DType::BF16, DType::F32));
    let wide = ops::rms_norm(&x.cast(DType::F32).unwrap(), &[32], Some(&w), EPS).unwrap();
    assert_eq!(values(&n.y), values(&wide.y.cast(DType::BF16).unwrap()));
    let g = ops::rms_norm_grad(&n.y, &x, &[32], &n.rstd, Some(&w), None).unwrap();
    assert_eq!((g.x.dtype(), g.weight.dtype()), (DType::BF16, DType::F32));
}

#[test]
fn a_norm_of_a_sum_has_the_bits_of_both_and_takes_a_gradient_along() {
    let mut rng = Rng::new(16);
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        let [x, more, dy, carried] = [(); 4].map(|()| rng.array(&[5, 24]).cast(dtype).unwrap());
        let w = rng.array(&[24]).cast(dtype).unwrap();
        let both = ops::add_rms_norm(&x, &more, &[24], Some(&w), EPS).unwrap();
        let sum = x.add(&more).unwrap();
        let normed = ops::rms_norm(&sum, &[24], Some(&w), EPS).unwrap();
        for (found, expected) in [(&both.sum, &sum), (&both.y, &normed.y), (&both.rstd, &normed.rstd)] {
            assert_eq!(values(found), values(expected));
        }
        let grad = |carried| ops::rms_norm_grad(&dy, &sum, &[24], &normed.rstd, Some(&w), carried).unwrap();
        assert_eq!(values(&grad(Some(&carried)).x), values(&grad(None).x.add(&carried).unwrap()));
    }
    let (x, short) = (rng.array(&[2, 4]), rng.array(&[1, 4]));
    let refused = ops::add_rms_norm(&x, &short, &[4], None, EPS).unwrap_err();
    assert!(refused.to_string().contains("add_rms_norm"), "{refused}");
}

#[test]
fn empty_and_meta_arrays_work() {
    let x = Array::zeros(&[0, 4], DType::F32).unwrap();
    let n = ops::layer_norm(&x, &[4], None, None, EPS).unwrap();
    let g = ops::layer_norm_grad(&x, &x, &[4], &n.mean, &n.rstd, None, None).unwrap();
    assert_eq!((g.x.numel(), values(&g.weight)), (0, vec![0.0; 4]));
    let n = ops::layer_norm(&Array::zeros(&[2, 0], DType::F32).unwrap(), &[0], None, None, EPS).unwrap();
    assert!(values(&n.mean).iter().all(|v| v.is_nan()));
    for shape in [[0, 4, 3], [2, 4, 0], [2, 0, 3]] {
        let x = Array::zeros(&shape, DType::BF16).unwrap();
        let n = ops::instance_norm(&x, None, None, EPS).unwrap();
        let g = ops::instance_norm_grad(&x, &x, &n.mean, &n.rstd, None).unwrap();
        assert_eq!((g.x.numel(), g.weight.numel()), (0, shape[1]));
        let stats = BatchStats::Batch { running: None, momentum: 0.1 };
        let n = ops::batch_norm(&x, None, None, stats, EPS).unwrap();
        let g = ops::batch_norm_grad(&x, &x, &n.mean, &n.rstd, None, BatchMode::Training).unwrap();
        assert_eq!((g.x.numel(), values(&g.bias)), (0, vec![0.0; shape[1]]));
    }
    let meta = Array::meta(&[2, 4, 3], DType::BF16).unwrap();
    let n = ops::group_norm(&meta, 2, None, None, EPS).unwrap();
    assert!(n.y.is_meta() && n.mean.is_meta());
    assert_eq!((n.mean.dtype(), n.mean.shape()[..].to_vec()), (DType::F32, vec![2, 2]));
    assert!(ops::group_norm_grad(&meta, &meta, 2, &n.mean, &n.rstd, None).unwrap().weight.is_meta());
}
