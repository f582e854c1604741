//! Backward in two parts gives the bits of one backward, and a history outlives its tensors' values.

use planaria_array::{DType, thread_memory_stats};
use planaria_tensor::ops::{layer_norm, linear};
use planaria_tensor::{
    Error, GradOptions, History, Keep, Result, Tensor, backward_from, backward_inputs, random, recompute,
};

fn value(seed: u64, shape: &[usize]) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_slice(&values, shape).unwrap()
}

fn bits(tensor: Option<Tensor>) -> Option<Vec<u32>> {
    tensor.map(|t| t.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect())
}

/// A stage: inputs and parameters to outputs.
type Stage = fn(&[Tensor], &[Tensor]) -> Result<Vec<Tensor>>;

fn residual(x: &[Tensor], w: &[Tensor]) -> Result<Vec<Tensor>> {
    let hidden = linear(&x[0], &w[0], Some(&w[1]))?.gelu()?;
    Ok(vec![x[0].add(&linear(&hidden, &w[0], None)?)?])
}

/// One weight three times, once through a view and a product that only it has: the order of its sums matters.
fn shared_weight(x: &[Tensor], w: &[Tensor]) -> Result<Vec<Tensor>> {
    let scaled = w[0].mul(&w[0])?.transpose(0, 1)?;
    let a = x[0].matmul(&w[0])?.relu()?.matmul(&scaled)?;
    Ok(vec![layer_norm(&a, &[4], Some(&w[1]), Some(&w[1]), 1e-5)?.matmul(&w[0])?.add(&x[0])?])
}

fn recomputed(x: &[Tensor], w: &[Tensor]) -> Result<Vec<Tensor>> {
    let (weight, bias) = (w[0].clone(), w[1].clone());
    let double = w[0].mul_scalar(2.0)?;
    let before = linear(&x[0], &double, Some(&w[1]))?;
    let block = move |x: &[Tensor]| {
        let inner = linear(&x[0], &weight, Some(&bias))?;
        let dropped = planaria_tensor::ops::dropout(&inner, 0.5)?;
        let nested = weight.clone();
        let again = recompute(&[&dropped], move |x| Ok(vec![x[0].matmul(&nested)?.tanh()?]))?;
        Ok(vec![again[0].matmul(&double)?])
    };
    let after = recompute(&[&before], block)?;
    Ok(vec![after[0].matmul(&w[0])?.add(&x[0])?])
}

/// An identity, a value that only parameters make, and one that mixes two inputs.
fn tuple(x: &[Tensor], w: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(vec![x[0].clone(), w[0].square()?, x[1].matmul(&w[0])?.add(&x[0])?])
}

const STAGES: &[(&str, Stage, usize)] = &[
    ("residual", residual, 1),
    ("shared", shared_weight, 1),
    ("recomputed", recomputed, 1),
    ("tuple", tuple, 2),
];

fn parameters() -> Vec<Tensor> {
    vec![value(7, &[4, 4]).requires_grad(), value(8, &[4]).requires_grad()]
}

fn roots(outputs: &[Tensor]) -> Vec<(History, Option<Tensor>)> {
    let grad = |(i, t): (usize, &Tensor)| (t.history().unwrap(), Some(value(40 + i as u64, t.shape())));
    outputs.iter().enumerate().map(grad).collect()
}

#[test]
fn two_parts_give_the_bits_of_one() {
    for &(name, stage, count) in STAGES {
        let run = || {
            random::seed(3);
            let x: Vec<Tensor> = (0..count).map(|i| value(20 + i as u64, &[3, 4]).requires_grad()).collect();
            let w = parameters();
            let outputs = stage(&x, &w).unwrap();
            (x, w, roots(&outputs))
        };
        let (x, w, from) = run();
        backward_from(&from, GradOptions::default()).unwrap();
        let inputs: Vec<_> = x.iter().map(|x| bits(x.grad())).collect();
        let weights: Vec<_> = w.iter().map(|w| bits(w.grad())).collect();

        let (x, w, from) = run();
        let slots: Vec<History> = x.iter().map(|x| x.history().unwrap()).collect();
        drop(x);
        let (found, later) = backward_inputs(&from, &slots).unwrap();
        assert_eq!(found.into_iter().map(bits).collect::<Vec<_>>(), inputs, "{name}: inputs");
        assert!(w.iter().all(|w| w.grad().is_none()), "{name}: the first part leaves parameters alone");
        later.run().unwrap();
        assert_eq!(w.iter().map(|w| bits(w.grad())).collect::<Vec<_>>(), weights, "{name}: parameters");
    }
}

#[test]
fn without_inputs_everything_waits() {
    let w = parameters();
    let loss = || residual(&[value(1, &[3, 4])], &w).unwrap()[0].sum(&[], Keep::No).unwrap();
    loss().backward().unwrap();
    let expected = bits(w[0].take_grad());
    let (found, later) = backward_inputs(&[(loss().history().unwrap(), None)], &[]).unwrap();
    assert!(found.is_empty() && w[0].grad().is_none() && !later.is_empty());
    later.run().unwrap();
    assert_eq!(bits(w[0].grad()), expected);
}

#[test]
fn frozen_parameters_leave_nothing_for_the_second_part() {
    let w: Vec<Tensor> = parameters().iter().map(Tensor::detach).collect();
    let x = value(1, &[3, 4]).requires_grad();
    let y = residual(std::slice::from_ref(&x), &w).unwrap();
    let (found, later) = backward_inputs(&roots(&y), &[x.history().unwrap()]).unwrap();
    assert!(found[0].is_some() && later.is_empty());
    later.run().unwrap();
}

#[test]
fn an_input_that_takes_no_part_has_no_gradient() {
    let (x, other) = (value(1, &[3, 4]).requires_grad(), value(2, &[2]).requires_grad());
    let y = residual(std::slice::from_ref(&x), &parameters()).unwrap();
    let slots = [other.history().unwrap(), x.history().unwrap()];
    let (found, later) = backward_inputs(&roots(&y), &slots).unwrap();
    assert!(found[0].is_none() && found[1].is_some());
    drop(later);
}

#[test]
fn a_history_keeps_only_what_was_saved() {
    std::thread::spawn(|| {
        let start = thread_memory_stats().live;
        let x = value(1, &[64, 16]).requires_grad();
        let slot = x.history().unwrap();
        let y = x.neg().unwrap().sub(&x).unwrap().sub(&x).unwrap();
        let seed = y.history().unwrap();
        drop((x, y));
        assert_eq!(thread_memory_stats().live, start);
        assert_eq!((seed.spec().dtype, seed.is_leaf(), slot.is_leaf()), (DType::F32, false, true));
        backward_from(&[(seed.clone(), Some(seed.ones().unwrap()))], GradOptions::default()).unwrap();
        assert_eq!(slot.take_grad().unwrap().to_vec::<f32>().unwrap(), vec![-3.0; 64 * 16]);
    })
    .join()
    .unwrap();
}

#[test]
fn a_root_needs_a_gradient_of_its_kind() {
    let x = value(1, &[2, 2]).requires_grad();
    let at = x.square().unwrap().history().unwrap();
    let wrong = backward_from(&[(at.clone(), Some(value(1, &[2])))], GradOptions::default());
    assert!(matches!(wrong, Err(Error::GradientKind { .. })), "{wrong:?}");
    assert!(matches!(backward_inputs(&[(at, None)], &[]), Err(Error::NotScalar { .. })));
}
