//! History: accumulation, hooks, recomputed blocks, empty tensors, and values freed in time.

use planaria_array::DType;
use planaria_tensor::{Error, GradOptions, Keep, Result, Tensor, grad, ops, random, recompute, selective};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn leaf(values: &[f64]) -> Tensor {
    Tensor::from_slice(values, &[values.len()]).unwrap().requires_grad()
}

fn total(x: &Tensor) -> Result<Tensor> {
    x.sum(&[], Keep::No)
}

fn grad_of(x: &Tensor) -> Vec<f64> {
    x.grad().unwrap().to_vec::<f64>().unwrap()
}

#[test]
fn gradients_of_two_backwards_add_up_and_can_be_taken() {
    let x = leaf(&[1.0, 2.0]);
    total(&x.square().unwrap()).unwrap().backward().unwrap();
    let first = x.grad().unwrap();
    total(&x.mul_scalar(10.0).unwrap()).unwrap().backward().unwrap();
    assert_eq!(grad_of(&x), [12.0, 14.0]);
    assert_eq!(first.to_vec::<f64>().unwrap(), [2.0, 4.0], "a gradient that somebody holds does not change");
    assert_eq!(x.take_grad().unwrap().to_vec::<f64>().unwrap(), [12.0, 14.0]);
    assert!(x.grad().is_none());
}

#[test]
fn history_is_used_once_unless_it_is_kept() {
    let x = leaf(&[3.0]);
    let y = x.square().unwrap();
    let keep = GradOptions { keep_history: true, differentiable: false };
    planaria_tensor::backward(&y, None, keep).unwrap();
    y.backward().unwrap();
    assert_eq!(grad_of(&x), [12.0]);
    assert!(matches!(y.backward(), Err(Error::Freed { op: "square" })));
}

#[test]
fn hooks_see_the_whole_gradient_once_and_may_replace_it() {
    let x = leaf(&[1.0, 2.0]);
    let y = x.mul_scalar(2.0).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    y.on_grad(move |g| {
        seen.fetch_add(1, Ordering::Relaxed);
        assert_eq!(g.to_vec::<f64>()?, [2.0, 2.0]);
        Ok(Some(g.mul_scalar(100.0)?))
    })
    .unwrap();
    total(&y).unwrap().add(&total(&y).unwrap()).unwrap().backward().unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(grad_of(&x), [400.0, 400.0]);
    assert!(matches!(x.detach().on_grad(|_| Ok(None)), Err(Error::NoHistory { .. })));
}

#[test]
fn empty_tensors_stay_connected() {
    let x = leaf(&[1.0, 2.0]);
    let nothing = x.get(&[(0..0).into()]).unwrap();
    assert!(nothing.has_history());
    let index = Tensor::zeros(&[0], DType::I64).unwrap();
    let taken = x.index_select(0, &index).unwrap();
    let joined = planaria_tensor::ops::concat(&[&nothing, &taken], 0).unwrap();
    total(&joined.square().unwrap()).unwrap().backward().unwrap();
    assert_eq!(grad_of(&x), [0.0, 0.0]);
    let written = x.copy().unwrap();
    written.set(&[(0..0).into()], &x.get(&[(1..1).into()]).unwrap()).unwrap();
    total(&written).unwrap().backward().unwrap();
    assert_eq!(grad_of(&x), [1.0, 1.0]);
}

#[test]
fn only_what_leads_to_the_inputs_is_visited() {
    let (x, y) = (leaf(&[1.0]), leaf(&[2.0]));
    let both = x.mul(&y).unwrap();
    let other = leaf(&[5.0]);
    let found = grad(&[&both], &[None], &[&x, &other], GradOptions::default()).unwrap();
    assert_eq!(found[0].as_ref().unwrap().to_vec::<f64>().unwrap(), [2.0]);
    assert!(found[1].is_none() && x.grad().is_none());
    assert!(matches!(
        grad(&[&both], &[None], &[&x.detach()], GradOptions::default()),
        Err(Error::NoHistory { .. })
    ));
}

/// A block with random numbers in it.
fn noisy(x: &Tensor, w: &Tensor) -> Result<Vec<Tensor>> {
    let noise = Tensor::new(planaria_array::Array::normal(x.shape(), DType::F64, random::next_key())?);
    Ok(vec![x.mul(w)?.add(&noise)?.tanh()?, x.square()?])
}

#[test]
fn a_recomputed_block_gives_the_same_bits_and_leaves_the_random_sequence_alone() {
    let run = |again: bool| {
        random::seed(7);
        let (x, w) = (leaf(&[0.1, -0.4, 0.7]), leaf(&[1.0, 2.0, 3.0]));
        let inner = w.clone();
        let out = if again {
            recompute(&[&x], move |t| noisy(&t[0], &inner)).unwrap()
        } else {
            noisy(&x, &w).unwrap()
        };
        let loss = total(&out[0].mul(&out[1]).unwrap()).unwrap();
        loss.backward().unwrap();
        let next = random::state();
        (loss.to_vec::<f64>().unwrap(), grad_of(&x), grad_of(&w), next)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn captured_parameters_get_gradients_even_when_no_input_wants_one() {
    let (x, w) = (Tensor::from_slice(&[2.0f64, 3.0], &[2]).unwrap(), leaf(&[1.0, 1.0]));
    let inner = w.clone();
    let out = recompute(&[&x], move |t| Ok(vec![t[0].mul(&inner)?])).unwrap();
    assert!(out[0].has_history());
    total(&out[0]).unwrap().backward().unwrap();
    assert_eq!(grad_of(&w), [2.0, 3.0]);
}

#[test]
fn frozen_parameters_get_no_gradient_and_cost_nothing() {
    let (x, frozen, w) =
        (leaf(&[2.0, 3.0]), Tensor::from_slice(&[4.0f64, 5.0], &[2]).unwrap(), leaf(&[1.0, 1.0]));
    let (still, inner) = (frozen.clone(), w.clone());
    let out = recompute(&[&x], move |t| Ok(vec![t[0].mul(&still)?.mul(&inner)?])).unwrap();
    total(&out[0]).unwrap().backward().unwrap();
    assert!(frozen.grad().is_none());
    assert_eq!((grad_of(&x), grad_of(&w)), (vec![4.0, 5.0], vec![8.0, 15.0]));
    // Where nothing is trained there is no history, and nothing is run again.
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let plain = x.detach();
    let out = recompute(&[&plain], move |t| {
        seen.fetch_add(1, Ordering::Relaxed);
        Ok(vec![t[0].mul(&frozen)?])
    })
    .unwrap();
    assert!(!out[0].has_history());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn a_recomputed_block_of_any_order() {
    let x = leaf(&[0.3, 0.9]);
    let out = recompute(&[&x], |t| Ok(vec![t[0].square()?.mul(&t[0])?])).unwrap();
    let options = GradOptions { keep_history: true, differentiable: true };
    let first = grad(&[&total(&out[0]).unwrap()], &[None], &[&x], options).unwrap()[0].clone().unwrap();
    let second = grad(&[&total(&first).unwrap()], &[None], &[&x], GradOptions::default()).unwrap();
    let second = second[0].as_ref().unwrap().to_vec::<f64>().unwrap();
    assert!((second[0] - 1.8).abs() < 1e-12 && (second[1] - 5.4).abs() < 1e-12, "{second:?}");
}

#[test]
fn cheap_results_are_computed_again_to_the_same_bits_and_not_kept() {
    const ROWS: usize = 64;
    let run = |again: bool| {
        let numbers: Vec<f32> = (0..ROWS * 256).map(|i| (i as f32 * 0.37).sin()).collect();
        let of =
            |len: usize, shape: &[usize]| Tensor::from_slice(&numbers[..len], shape).unwrap().requires_grad();
        let (x, scale) = (of(ROWS * 256, &[ROWS, 256]), of(128, &[128]));
        let (inner, outer) = (of(128 * 64, &[64, 128]), of(64 * 32, &[64, 32]));
        let before = planaria_array::thread_memory_stats().live;
        let forward = || -> Result<Tensor> {
            let normed = ops::rms_norm(&ops::swiglu_packed(&x)?, &[128], Some(&scale), 1e-6)?;
            ops::linear(&ops::linear(&normed, &inner, None)?, &outer.transpose(0, 1)?, None)
        };
        let y = if again { selective(forward) } else { forward() }.unwrap();
        let kept = planaria_array::thread_memory_stats().live - before;
        total(&y.square().unwrap()).unwrap().backward().unwrap();
        let bits = |t: &Tensor| t.grad().unwrap().to_vec::<f32>().unwrap();
        (kept, [&x, &scale, &inner, &outer].map(bits))
    };
    let ((kept, plain), (less, again)) = (run(false), run(true));
    assert_eq!(plain, again);
    // The norm's result and its input, which is a cheap result too: 64 x 128 numbers each.
    assert_eq!(kept - less, 2 * ROWS * 128 * 4, "{kept} {less}");
}

#[test]
fn what_was_written_to_is_not_computed_again() {
    let run = |scope: fn(&dyn Fn() -> Result<Tensor>) -> Result<Tensor>| {
        let (x, w) = (leaf(&[0.5, -1.0, 2.0, 0.25]), leaf(&[3.0, 4.0]));
        let work = || {
            let y = ops::swiglu_packed(&x)?;
            planaria_tensor::no_grad(|| y.local().fill(2.0))?;
            y.mul(&w)
        };
        let z = scope(&work).unwrap();
        total(&z).unwrap().backward().unwrap();
        grad_of(&w)
    };
    assert_eq!(run(|work| work()), [2.0, 2.0]);
    assert_eq!(run(|work| selective(work)), [2.0, 2.0]);
}

#[test]
fn elements_that_can_be_fetched_are_not_kept() {
    let whole = Tensor::from_slice(&[1.0f64, 2.0, 3.0, 4.0], &[2, 2]).unwrap().local().clone();
    let count = Arc::new(AtomicUsize::new(0));
    let (fetched, source) = (count.clone(), whole.snapshot().unwrap());
    let used = whole.copy().unwrap();
    let weight = Tensor::new(used.clone()).requires_grad().fetched_by(Arc::new(move || {
        fetched.fetch_add(1, Ordering::Relaxed);
        Ok(source.clone())
    }));
    let x = leaf(&[10.0, 100.0]);
    let grads = |weight: &Tensor| {
        // Once as it is, and once as rows of it.
        let rows = weight.unbind(0).unwrap();
        let sum = total(&planaria_tensor::ops::linear(&x, weight, None).unwrap()).unwrap();
        sum.add(&total(&x.mul(&rows[1]).unwrap()).unwrap()).unwrap()
    };
    let sum = grads(&weight);
    assert!(weight.is_leaf() && count.load(Ordering::Relaxed) == 0);
    // The elements of forward are gone; writing to them is not noticed.
    used.fill(0.0).unwrap();
    sum.backward().unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 2, "once for each op that needs them");
    let (by_x, by_weight) = (grad_of(&x), grad_of(&weight));
    x.take_grad();
    let kept = Tensor::new(whole).requires_grad();
    grads(&kept).backward().unwrap();
    assert_eq!((by_x, by_weight), (grad_of(&x), grad_of(&kept)));
}
