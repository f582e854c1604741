//! Known answers, independence of the split, and whether the numbers look as random as they should.

use super::math::normal_below;
use super::*;
use crate::element::Bool;
use planaria_cpu::Threads;
use planaria_layout::{Region, Shape};
use proptest::prelude::*;

const KEY: Key = Key::new(0x1234_5678_9abc_def0, 42);

#[test]
fn philox_gives_the_published_answers() {
    // Random123's known-answer file, philox4x32 with 10 rounds.
    let answers = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, want) in answers {
        assert_eq!(rounds(counter, u64::from(key[1]) << 32 | u64::from(key[0])), want);
    }
    // The same through keys: the stream is the upper half of the counter.
    let key = Key::new(0x299f_31d0_a409_3822, 0x0370_7344_1319_8a2e);
    let start = 0x85a3_08d3_243f_6a88u64;
    let words = philox::<4>(key, start.wrapping_sub(1));
    assert_eq!([words[0][1], words[1][1], words[2][1], words[3][1]], answers[2].2);
}

#[test]
fn an_element_is_one_word_of_one_block() {
    let start = (1u64 << 34) - 37;
    let mut out = vec![0; 301];
    bits(&mut out, KEY, &Window::flat(start, 301)).unwrap();
    for (i, &word) in out.iter().enumerate() {
        let at = start + i as u64;
        assert_eq!(word, philox::<1>(KEY, at / 4)[(at % 4) as usize][0], "element {at}");
    }
}

/// Draws of every distribution over a window, as bits.
fn draw_all(window: &Window) -> Vec<Vec<u64>> {
    let n = window.len();
    let (mut a, mut b, mut c) = (vec![0u32; n], vec![0f32; n], vec![0f64; n]);
    let mut all = Vec::new();
    let f32_bits = |x: &[f32]| x.iter().map(|x| u64::from(x.to_bits())).collect::<Vec<_>>();
    let f64_bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    bits(&mut a, KEY, window).unwrap();
    all.push(a.iter().map(|&w| u64::from(w)).collect());
    uniform(&mut b, KEY, window).unwrap();
    all.push(f32_bits(&b));
    uniform_f64(&mut c, KEY, window).unwrap();
    all.push(f64_bits(&c));
    normal(&mut b, KEY, window, Normal { mean: 1.0, std: 3.0 }).unwrap();
    all.push(f32_bits(&b));
    normal_f64(&mut c, KEY, window, Normal::STANDARD).unwrap();
    all.push(f64_bits(&c));
    let cut = TruncatedNormal { normal: Normal { mean: 0.5, std: 0.02 }, low: 0.46, high: 0.55 };
    truncated_normal(&mut b, KEY, window, cut).unwrap();
    all.push(f32_bits(&b));
    truncated_normal_f64(&mut c, KEY, window, cut).unwrap();
    all.push(f64_bits(&c));
    let mut mask = vec![Bool::default(); n];
    bernoulli(&mut mask, KEY, window, 0.3).unwrap();
    all.push(mask.iter().map(|m| u64::from(m.get())).collect());
    let mut ints = vec![0i64; n];
    for (low, high) in [(-3, 1000), (i64::MIN, i64::MAX)] {
        randint(&mut ints, KEY, window, low, high).unwrap();
        all.push(ints.iter().map(|&i| i as u64).collect());
    }
    all
}

fn numel(shape: &[usize]) -> usize {
    shape.iter().product()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_box_draws_what_the_whole_tensor_has_there(
        dims in prop::collection::vec((1usize..40, 0.0..1.0f64, 0.0..1.0f64), 0..4)
    ) {
        let shape: Vec<usize> = dims.iter().map(|d| d.0).collect();
        let lo: Vec<usize> = dims.iter().map(|d| (d.1 * (d.0 + 1) as f64) as usize).collect();
        let hi: Vec<usize> = dims.iter().zip(&lo).map(|(d, &l)| l + (d.2 * (d.0 + 1 - l) as f64) as usize).collect();
        let window = Window::of_box(&shape, &lo, &hi).unwrap();
        let local: Vec<usize> = lo.iter().zip(&hi).map(|(l, h)| h - l).collect();
        prop_assert_eq!(window.len(), numel(&local));
        let whole = draw_all(&Window::flat(0, numel(&shape)));
        for (part, whole) in draw_all(&window).iter().zip(&whole) {
            for (i, got) in part.iter().enumerate() {
                let (mut rest, mut at, mut step) = (i, 0, 1);
                for d in (0..shape.len()).rev() {
                    at += (lo[d] + rest % local[d]) * step;
                    rest /= local[d];
                    step *= shape[d];
                }
                prop_assert_eq!(*got, whole[at], "local {} global {}", i, at);
            }
        }
    }
}

#[test]
fn threads_do_not_change_the_bits() {
    let window = Window::of_box(&[7, 300, 500], &[1, 0, 13], &[6, 300, 487]).unwrap();
    let one = Threads::new(1).unwrap().run(|| draw_all(&window));
    let three = Threads::new(3).unwrap().run(|| draw_all(&window));
    assert!(one == three);
}

#[test]
fn bits_never_change() {
    // Sums of all draws as made on x86-64; any machine, vector width or later version must repeat them.
    let sums: Vec<u64> = draw_all(&Window::flat(1 << 40, 4099))
        .iter()
        .map(|draws| {
            draws.iter().fold(0u64, |h, &x| (h ^ x).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5))
        })
        .collect();
    let want = [
        7725285802411410172,
        8197123716147382828,
        11306255050225395915,
        37684296732549624,
        2958275413917975703,
        14676524947847369250,
        5325404493876907015,
        12974851198650240732,
        259768210251337507,
        6570098644365297246,
    ];
    assert_eq!(sums, want);
}

/// Largest distance between the empirical distribution and `cdf`, times sqrt n: above 1.95 one time in a thousand.
fn kolmogorov(mut sample: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
    sample.sort_by(f64::total_cmp);
    let n = sample.len() as f64;
    let gap = |(i, &x): (usize, &f64)| {
        let p = cdf(x);
        (p - i as f64 / n).abs().max(((i + 1) as f64 / n - p).abs())
    };
    sample.iter().enumerate().map(gap).fold(0.0, f64::max) * n.sqrt()
}

/// Mean, variance and fourth moment about the mean.
fn moments(sample: &[f64]) -> (f64, f64, f64) {
    let n = sample.len() as f64;
    let mean = sample.iter().sum::<f64>() / n;
    let power = |k: i32| sample.iter().map(|x| (x - mean).powi(k)).sum::<f64>() / n;
    (mean, power(2), power(4))
}

const N: usize = 40_000;

fn f32_sample(fill: impl Fn(&mut [f32])) -> Vec<f64> {
    let mut out = vec![0f32; N];
    fill(&mut out);
    out.into_iter().map(f64::from).collect()
}

fn f64_sample(fill: impl Fn(&mut [f64])) -> Vec<f64> {
    let mut out = vec![0f64; N];
    fill(&mut out);
    out
}

#[test]
fn uniform_draws_are_uniform() {
    let window = Window::flat(0, N);
    let narrow = f32_sample(|out| uniform(out, KEY, &window).unwrap());
    let wide = f64_sample(|out| uniform_f64(out, KEY, &window).unwrap());
    for sample in [narrow, wide] {
        assert!(sample.iter().all(|&u| (0.0..1.0).contains(&u)));
        let (mean, var, _) = moments(&sample);
        assert!((mean - 0.5).abs() < 5.0 * (1.0 / 12.0 / N as f64).sqrt(), "{mean}");
        assert!((var - 1.0 / 12.0).abs() < 0.002, "{var}");
        let serial: f64 = sample.windows(2).map(|w| (w[0] - 0.5) * (w[1] - 0.5)).sum::<f64>() * 12.0;
        assert!(serial.abs() < 5.0 * (N as f64).sqrt(), "neighbours correlate: {serial}");
        assert!(kolmogorov(sample, |x| x) < 1.95);
    }
}

#[test]
fn normal_draws_are_normal() {
    let window = Window::flat(0, N);
    let shape = Normal { mean: -2.0, std: 0.5 };
    let narrow = f32_sample(|out| normal(out, KEY, &window, shape).unwrap());
    let wide = f64_sample(|out| normal_f64(out, KEY, &window, shape).unwrap());
    for sample in [narrow, wide] {
        let sample: Vec<f64> = sample.iter().map(|x| (x + 2.0) / 0.5).collect();
        let (mean, var, fourth) = moments(&sample);
        assert!(
            mean.abs() < 0.025 && (var - 1.0).abs() < 0.035 && (fourth - 3.0).abs() < 0.25,
            "{mean} {var} {fourth}"
        );
        // The two coordinates of one Box-Muller point must not correlate.
        let pairs: f64 = sample.chunks_exact(2).map(|p| p[0] * p[1]).sum();
        assert!(pairs.abs() < 5.0 * (N as f64 / 2.0).sqrt(), "{pairs}");
        assert!(kolmogorov(sample, normal_below) < 1.95);
    }
}

#[test]
fn quick_and_accurate_box_muller_agree() {
    let mut out = vec![0f32; 4 * 1000];
    normal(&mut out, KEY, &Window::flat(0, 4000), Normal::STANDARD).unwrap();
    for (i, pair) in out.chunks_exact(2).enumerate() {
        let words = philox::<1>(KEY, i as u64 / 2);
        let at = 2 * (i % 2);
        let radius = (-2.0 * (f64::from(words[at][0] | 1) / 2f64.powi(32)).ln()).sqrt();
        let angle = f64::from(words[at + 1][0]) / 2f64.powi(32) * std::f64::consts::TAU;
        assert!((f64::from(pair[0]) - radius * angle.cos()).abs() < 2e-6, "{i}");
        assert!((f64::from(pair[1]) - radius * angle.sin()).abs() < 2e-6, "{i}");
    }
}

#[test]
fn truncated_draws_keep_to_their_bounds() {
    let window = Window::flat(0, N);
    for (low, high) in [(-2.0, 2.0), (-0.1, 3.0), (1.0, 1.5), (4.0, 9.0), (-30.0, -8.0), (20.0, 21.0)] {
        let of = TruncatedNormal { normal: Normal::STANDARD, low, high };
        let narrow = f32_sample(|out| truncated_normal(out, KEY, &window, of).unwrap());
        let wide = f64_sample(|out| truncated_normal_f64(out, KEY, &window, of).unwrap());
        // Measure from the nearer tail, where probabilities keep their digits.
        let flip = if low > 0.0 { -1.0 } else { 1.0 };
        let (a, b) = (
            normal_below(if low > 0.0 { -high } else { low }),
            normal_below(if low > 0.0 { -low } else { high }),
        );
        for sample in [narrow, wide] {
            assert!(sample.iter().all(|&x| (low..=high).contains(&x)), "{low}..{high}");
            let distance =
                kolmogorov(sample.iter().map(|x| x * flip).collect(), |x| (normal_below(x) - a) / (b - a));
            assert!(distance < 1.95, "{low}..{high}: {distance}");
        }
    }
}

#[test]
fn masks_and_integers_have_the_right_frequencies() {
    let window = Window::flat(0, N);
    let mut mask = vec![Bool::default(); N];
    for (p, exact) in [(0.0, true), (1.0, true), (0.1, false), (0.75, false)] {
        bernoulli(&mut mask, KEY, &window, p).unwrap();
        let share = mask.iter().filter(|m| m.get()).count() as f64 / N as f64;
        assert!(
            (share - p).abs() <= if exact { 0.0 } else { 5.0 * (p * (1.0 - p) / N as f64).sqrt() },
            "{p}: {share}"
        );
    }
    let mut ints = vec![0i64; N];
    randint(&mut ints, KEY, &window, -5, 5).unwrap();
    let mut counts = [0f64; 10];
    ints.iter().for_each(|&i| counts[(i + 5) as usize] += 1.0);
    let expected = N as f64 / 10.0;
    let chi2: f64 = counts.iter().map(|c| (c - expected).powi(2) / expected).sum();
    assert!(chi2 < 27.9, "chi squared with 9 degrees of freedom: {chi2}");
}

#[test]
fn narrow_and_wide_integer_ranges_use_one_formula() {
    let mut x = vec![0i64; 1000];
    for span in [1, 2, 3, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, i64::MAX] {
        randint(&mut x, KEY, &Window::flat(0, 1000), 0, span).unwrap();
        for (i, &got) in x.iter().enumerate() {
            let words = philox::<1>(KEY, i as u64 / 2);
            let at = 2 * (i % 2);
            let bits = u128::from(words[at + 1][0]) << 32 | u128::from(words[at][0]);
            assert_eq!(got as u128, (bits * span as u128) >> 64);
        }
    }
}

#[test]
fn folded_keys_are_distinct() {
    let mut seen = std::collections::HashSet::new();
    for stream in 0..20 {
        for data in 0..50 {
            assert!(seen.insert(Key::new(7, stream).fold(data)));
        }
    }
    assert_eq!(KEY.fold(3), KEY.fold(3));
}

#[test]
fn bad_input_is_refused_with_the_values() {
    let message = |r: Result<()>| r.unwrap_err().to_string();
    let window = Window::flat(0, 3);
    assert!(message(uniform(&mut [0.0; 2], KEY, &window)).contains("2 values do not fill a window of 3"));
    assert!(message(bernoulli(&mut [Bool::default(); 3], KEY, &window, 1.5)).contains("1.5"));
    assert!(bernoulli(&mut [Bool::default(); 3], KEY, &window, f64::NAN).is_err());
    assert!(message(randint(&mut [0; 3], KEY, &window, 4, 4)).contains("low 4"));
    let normal_of = |mean, std| Normal { mean, std };
    assert!(normal(&mut [0.0; 3], KEY, &window, normal_of(0.0, -1.0)).is_err());
    assert!(normal_f64(&mut [0.0; 3], KEY, &window, normal_of(f64::NAN, 1.0)).is_err());
    for (low, high) in [(1.0, 1.0), (2.0, 1.0), (f64::NAN, 1.0), (0.0, f64::INFINITY), (40.0, 41.0)] {
        let of = TruncatedNormal { normal: Normal::STANDARD, low, high };
        assert!(truncated_normal(&mut [0.0; 3], KEY, &window, of).is_err(), "{low}..{high}");
    }
    let (shape, region) = (Shape::new(&[3, 4]).unwrap(), Region::new(&[1, 2], &[3, 4]).unwrap());
    assert_eq!(Window::of_region(&shape, &region), Window::of_box(&[3, 4], &[1, 2], &[3, 4]));
    assert!(Window::of_box(&[3, 4], &[0], &[3]).is_err());
    assert!(Window::of_box(&[3, 4], &[0, 3], &[3, 2]).is_err());
    assert!(Window::of_box(&[3, 4], &[0, 0], &[3, 5]).unwrap_err().to_string().contains("[3,4]"));
    assert!(Window::of_box(&[usize::MAX, 4], &[0, 0], &[3, 4]).is_err());
    assert!(Window::of_box(&[0, 4], &[0, 0], &[0, 4]).unwrap().is_empty());
    assert_eq!(Window::of_box(&[], &[], &[]).unwrap().len(), 1);
}
