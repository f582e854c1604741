//! Properties of the methods: what random ones keep, what selections keep, and that results do not depend on how they are read.

use super::*;
use crate::merged::Merged;
use crate::values::{Held, Values, whole};
use planaria_array::random::{Key, Normal, Window, normal_f64};
use planaria_layout::{DType, Shape};
use std::sync::Arc;

/// Values with as many digits as bf16 has, so that magnitudes are often equal.
fn values(shape: &[usize], stream: u64) -> Arc<dyn Values> {
    let len = shape.iter().product();
    let mut values = vec![0.0; len];
    normal_f64(&mut values, Key::new(11, stream), &Window::flat(0, len), Normal::STANDARD).unwrap();
    crate::values::round(&mut values, DType::BF16);
    Arc::new(Held { values, shape: Shape::new(shape).unwrap(), dtype: DType::F32 })
}

fn inputs(shape: &[usize], count: usize, base: Option<usize>) -> Inputs {
    let values = (0..count).map(|number| self::values(shape, number as u64)).collect();
    Inputs { values, base, shape: shape.to_vec(), wide: false }
}

/// Parameters with their defaults, but for some.
fn given(
    method: &Method,
    count: usize,
    base: Option<usize>,
    set: &[(&'static str, f64)],
    seed: u64,
) -> Given {
    let value = |parameter: &Parameter| {
        let own = set.iter().find(|(name, _)| *name == parameter.name).map(|(_, value)| *value);
        let default = match parameter.default {
            Default::Value(value) => Some(value),
            Default::Required => Some(0.5),
            Default::None => None,
        };
        (parameter.name, own.or(default))
    };
    let per_input = (0..count).map(|_| method.per_input.iter().map(value).collect()).collect();
    let streams = (0..count).map(|number| Stream::new(seed, &format!("m{number}"), "t")).collect();
    Given { base, shared: method.shared.iter().map(value).collect(), per_input, streams }
}

fn merged(name: &str, shape: &[usize], count: usize, set: &[(&'static str, f64)], seed: u64) -> Merged {
    let method = named(name).unwrap();
    let base = (method.base != BaseUse::Plain).then_some(0);
    let rule = method.rule(&given(method, count, base, set, seed)).unwrap();
    Merged::new("t", inputs(shape, count, base), rule, DType::F32).unwrap()
}

/// How many inputs a method is tried with.
fn count_of(method: &Method) -> usize {
    match method.count {
        Count::Exactly(count) => count,
        Count::ExactlyBeside(count) => count + 1,
        _ => 4,
    }
}

#[test]
fn a_piece_has_the_bits_of_the_whole() {
    // Several blocks, and rows that do not divide them.
    let shape = [190, 701];
    for method in METHODS {
        let set: &[(&'static str, f64)] = match method.name {
            "nuslerp" => &[("nuslerp_flatten", 0.0), ("nuslerp_row_wise", 1.0)],
            "model_stock" => &[("filter_wise", 1.0)],
            _ => &[("density", 0.5), ("select_topk", 0.3), ("gamma", 0.1), ("t", 0.3)],
        };
        let all = whole(&merged(method.name, &shape, count_of(method), set, 3)).unwrap();
        let pieces = merged(method.name, &shape, count_of(method), set, 3);
        for (first, len) in [(0, 1), (700, 3), (131_071, 2), (100_000, 33_000), (190 * 701 - 5, 5)] {
            let mut piece = vec![0.0; len];
            pieces.read(first, &mut piece).unwrap();
            assert!(piece == all[first..first + len], "{}: {len} from {first}", method.name);
        }
    }
}

#[test]
fn selections_are_those_of_a_stable_sort() {
    let shape = [300, 500];
    let numel = 150_000;
    let (base, x) = (whole(&*values(&shape, 0)).unwrap(), whole(&*values(&shape, 1)).unwrap());
    let d: Vec<f64> = x.iter().zip(&base).map(|(x, base)| x - base).collect();
    let mut ascending: Vec<usize> = (0..numel).collect();
    ascending.sort_by(|&a, &b| d[a].abs().total_cmp(&d[b].abs()));
    let mut descending: Vec<usize> = (0..numel).collect();
    descending.sort_by(|&a, &b| d[b].abs().total_cmp(&d[a].abs()));
    for density in [0.1, 0.5, 0.9] {
        let keep = (density * numel as f64).floor() as usize;
        let top = (0.05 * numel as f64).floor() as usize;
        let from = numel.saturating_sub(keep + top);
        let cases =
            [("ties", descending[..keep].to_vec()), ("breadcrumbs", ascending[from..from + keep].to_vec())];
        for (name, kept) in cases {
            let mut expected = base.clone();
            kept.iter().for_each(|&at| expected[at] = base[at] + d[at]);
            let set = [("density", density), ("gamma", 0.05), ("weight", 1.0)];
            let found = whole(&merged(name, &shape, 2, &set, 0)).unwrap();
            let wrong = found.iter().zip(&expected).filter(|(a, b)| (*a - *b).abs() > 1e-6).count();
            assert_eq!(wrong, 0, "{name} of {density}");
        }
    }
}

/// The difference that a method adds to the base, for one input of weight 1.
fn added(name: &str, shape: &[usize], set: &[(&'static str, f64)], seed: u64) -> Vec<f64> {
    let set = [set, &[("weight", 1.0), ("normalize", 0.0)]].concat();
    let found = whole(&merged(name, shape, 2, &set, seed)).unwrap();
    found.iter().zip(whole(&*values(shape, 0)).unwrap()).map(|(x, base)| x - base).collect()
}

#[test]
fn dare_keeps_the_part_it_is_told_independently_and_restores_the_sum() {
    let (shape, numel, p) = ([200, 500], 100_000.0f64, 0.3);
    let set = [("density", p), ("rescale", 0.0)];
    let first: Vec<bool> = added("dare_linear", &shape, &set, 1).iter().map(|d| d.abs() > 1e-6).collect();
    let second: Vec<bool> = added("dare_linear", &shape, &set, 2).iter().map(|d| d.abs() > 1e-6).collect();
    let count = |kept: &[bool]| kept.iter().filter(|kept| **kept).count() as f64;
    let width = 5.0 * (numel * p * (1.0 - p)).sqrt();
    for kept in [&first, &second] {
        // A few differences of bf16 values are zero and cannot be seen to be kept.
        assert!((count(kept) - numel * p).abs() <= width + numel * 0.003, "{}", count(kept));
    }
    let both = first.iter().zip(&second).filter(|(a, b)| **a && **b).count() as f64 / numel;
    let correlation = (both - count(&first) * count(&second) / numel / numel) / (p * (1.0 - p));
    assert!(correlation.abs() < 5.0 / numel.sqrt(), "{correlation}");
    let sum = |values: &[f64]| values.iter().map(|value| value.abs()).sum::<f64>();
    let all = sum(&added("dare_linear", &shape, &[("density", 1.0)], 1));
    let restored = sum(&added("dare_linear", &shape, &[("density", p)], 1));
    assert!((restored / all - 1.0).abs() < 1e-6, "{restored} of {all}");
}

#[test]
fn the_mean_of_dare_over_seeds_is_the_whole_difference() {
    let (shape, seeds) = ([40, 50], 400);
    let all = added("dare_linear", &shape, &[("density", 1.0)], 0);
    let mut mean = vec![0.0; all.len()];
    for seed in 0..seeds {
        let one = added("dare_linear", &shape, &[("density", 0.5)], seed);
        mean.iter_mut().zip(one).for_each(|(mean, one)| *mean += one / seeds as f64);
    }
    let along =
        mean.iter().zip(&all).map(|(a, b)| a * b).sum::<f64>() / all.iter().map(|a| a * a).sum::<f64>();
    assert!((along - 1.0).abs() < 0.01, "{along}");
}

#[test]
fn della_keeps_the_large_more_often() {
    let (rows, row, density, epsilon) = (2000usize, 100usize, 0.5, 0.2);
    let set = [("density", density), ("epsilon", epsilon), ("rescale", 0.0)];
    let kept = added("della_linear", &[rows, row], &set, 5);
    let all = added("della_linear", &[rows, row], &[("density", 1.0)], 5);
    let mut counts = [0.0f64; 10];
    for (kept, all) in kept.chunks(row).zip(all.chunks(row)) {
        let mut order: Vec<usize> = (0..row).collect();
        order.sort_by(|&a, &b| all[a].abs().total_cmp(&all[b].abs()));
        order
            .iter()
            .enumerate()
            .for_each(|(rank, &at)| counts[rank / 10] += f64::from(u8::from(kept[at] != 0.0)));
    }
    for (decile, count) in counts.iter().enumerate().skip(1) {
        let mean = density - epsilon + 2.0 * epsilon * (decile as f64 * 10.0 + 4.5) / (row - 1) as f64;
        let drawn = (rows * 10) as f64;
        let width = 5.0 * (drawn * mean * (1.0 - mean)).sqrt();
        assert!((count - drawn * mean).abs() < width, "decile {decile}: {count} of {}", drawn * mean);
    }
}

#[test]
fn ends_of_slerp_and_single_inputs_are_copies() {
    let shape = [30, 40];
    let (base, other) = (whole(&*values(&shape, 0)).unwrap(), whole(&*values(&shape, 1)).unwrap());
    let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs().max(1.0));
    assert!(near(&whole(&merged("slerp", &shape, 2, &[("t", 0.0)], 0)).unwrap(), &base));
    assert!(near(&whole(&merged("slerp", &shape, 2, &[("t", 1.0)], 0)).unwrap(), &other));
    assert!(near(&whole(&merged("ties", &shape, 2, &[("weight", 1.0)], 0)).unwrap(), &other));
    let method = named("linear").unwrap();
    let mut given = given(method, 2, None, &[], 0);
    given.per_input = vec![vec![("weight", Some(1.0))], vec![("weight", Some(0.0))]];
    let rule = method.rule(&given).unwrap();
    let copy = Merged::new("t", inputs(&shape, 2, None), rule, DType::F32).unwrap();
    let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<u64>>();
    assert_eq!(bits(&whole(&copy).unwrap()), bits(&base));
}
