//! What training needs beyond single ops: optimiser steps on any layout, running statistics, routing, expressions.

use planaria_array::ops::{AdamW, Keep, Momentum, Reduction, Sgd};
use planaria_array::random::Key;
use planaria_array::{Array, DType};
use planaria_comm::threads;
use planaria_layout::{Mesh, Placement, Reduce};
use planaria_tensor::ops::sample::Draw;
use planaria_tensor::ops::{
    self, AdamWTensors, BatchNorm, CrossEntropyOptions, PoolCount, RunningStats, SgdTensors, Windows,
};
use planaria_tensor::trace::{Moved, implicit_reshards};
use planaria_tensor::{GradOptions, Policy, Tensor, World, grad};
use smallvec::smallvec;

const S0: Placement = Placement::shard(0);
const R: Placement = Placement::Replicate;
const SUM: Placement = Placement::Partial(Reduce::Sum);

/// Runs on 3 ranks, where most dims are uneven.
fn on_ranks(work: impl Fn(&Mesh, &World) + Sync) {
    let mesh: Mesh = "x=3".parse().unwrap();
    threads::run(3, |comm| work(&mesh, &World::new(comm)));
}

fn values(array: &Array) -> Vec<f64> {
    array.cast(DType::F64).unwrap().to_vec().unwrap()
}

fn close(found: &Array, expected: &Array) {
    assert_eq!(found.shape(), expected.shape());
    for (a, b) in values(found).iter().zip(values(expected)) {
        assert!((a - b).abs() <= 1e-12 * (1.0 + b.abs()), "{a} instead of {b}");
    }
}

#[test]
fn adamw_is_the_same_for_any_layouts_of_parameter_gradient_and_state() {
    let mut draw = Draw::new(1);
    let (param, grad) = (draw.normal(&[5, 4]).unwrap(), draw.normal(&[5, 4]).unwrap());
    let options = AdamW { lr: 0.1, ..AdamW::default() };
    let fresh = |a: &Array| Tensor::new(a.copy().unwrap());
    let alone = (fresh(&param), fresh(&param.zeros_like().unwrap()), fresh(&param.zeros_like().unwrap()));
    let step = |p: &Tensor, g: &Tensor, m: &Tensor, v: &Tensor, number: u64| {
        let tensors =
            AdamWTensors { param: p, grad: g, exp_avg: m, exp_avg_sq: v, max_exp_avg_sq: None, master: None };
        ops::adamw_step(&options, number, &[tensors]).unwrap();
    };
    for number in 1..4 {
        step(&alone.0, &Tensor::new(grad.clone()), &alone.1, &alone.2, number);
    }
    on_ranks(|mesh, world| {
        for (of_param, of_grad, of_state) in
            [(R, SUM, S0), (R, R, R), (S0, SUM, R), (S0, S0, Placement::shard(1))]
        {
            let put = |a: &Array, p: Placement| Tensor::place(&a.copy().unwrap(), mesh, &[p], world).unwrap();
            let zeros = param.zeros_like().unwrap();
            let (p, m, v) =
                (put(&param, of_param).requires_grad(), put(&zeros, of_state), put(&zeros, of_state));
            for number in 1..4 {
                step(&p, &put(&grad, of_grad), &m, &v, number);
            }
            close(&p.whole().unwrap(), alone.0.local());
            close(&v.whole().unwrap(), alone.2.local());
        }
    });
}

#[test]
fn sgd_with_momentum_is_the_same_on_cut_state() {
    let mut draw = Draw::new(2);
    let (param, grad) = (draw.normal(&[4, 3]).unwrap(), draw.normal(&[4, 3]).unwrap());
    let options = Sgd { lr: 0.1, momentum: 0.9, momentum_kind: Momentum::Nesterov, ..Sgd::default() };
    let run = |p: &Tensor, g: &Tensor, v: &Tensor| {
        for number in 1..4 {
            let tensors = SgdTensors { param: p, grad: g, velocity: Some(v), master: None };
            ops::sgd_step(&options, number, &[tensors]).unwrap();
        }
    };
    let alone = Tensor::new(param.copy().unwrap());
    run(&alone, &Tensor::new(grad.clone()), &Tensor::new(param.zeros_like().unwrap()));
    on_ranks(|mesh, world| {
        let put = |a: &Array, p: Placement| Tensor::place(&a.copy().unwrap(), mesh, &[p], world).unwrap();
        let p = put(&param, R);
        run(&p, &put(&grad, SUM), &put(&param.zeros_like().unwrap(), S0));
        close(&p.whole().unwrap(), alone.local());
    });
}

#[test]
fn the_global_norm_counts_each_element_once() {
    let mut draw = Draw::new(3);
    let (a, b) = (draw.normal(&[5, 2]).unwrap(), draw.normal(&[4]).unwrap());
    let expected: f64 = values(&a).iter().chain(&values(&b)).map(|v| v * v).sum();
    on_ranks(|mesh, world| {
        for (p, q) in [(S0, R), (SUM, S0), (R, SUM)] {
            let put = |a: &Array, p: Placement| Tensor::place(&a.copy().unwrap(), mesh, &[p], world).unwrap();
            let (x, y) = (put(&a, p), put(&b, q));
            let found = ops::squared_norm(&[&x, &y]).unwrap();
            assert!((found - expected).abs() < 1e-12 * expected, "{found} instead of {expected}");
            let norm = ops::clip_by_global_norm(&[&x, &y], 0.5).unwrap();
            assert!((norm * norm - expected).abs() < 1e-12 * expected);
            assert!((ops::squared_norm(&[&x, &y]).unwrap().sqrt() - 0.5).abs() < 1e-5);
        }
    });
}

#[test]
fn one_infinity_on_one_rank_stops_the_step_on_all() {
    let broken = Array::from_slice(&[1.0, f64::INFINITY, 3.0], &[3]).unwrap();
    let sound = Array::from_slice(&[2.0, 4.0, 8.0], &[3]).unwrap();
    on_ranks(|mesh, world| {
        let put = |a: &Array| Tensor::place(&a.copy().unwrap(), mesh, &[S0], world).unwrap();
        assert!(!ops::check_finite_and_unscale(&[&put(&sound), &put(&broken)], 0.5).unwrap());
        let x = put(&sound);
        assert!(ops::check_finite_and_unscale(&[&x], 0.5).unwrap());
        assert_eq!(values(&x.whole().unwrap()), [1.0, 2.0, 4.0]);
    });
}

#[test]
fn running_statistics_of_a_cut_batch_are_those_of_the_whole() {
    let mut draw = Draw::new(4);
    let x = draw.normal(&[5, 3, 2]).unwrap();
    let run = |x: &Tensor, mean: &Tensor, var: &Tensor| {
        let running = Some(RunningStats { mean, var });
        ops::batch_norm(x, None, None, BatchNorm::Training { running, momentum: 0.3 }, 1e-5).unwrap()
    };
    let stats = || (Array::zeros(&[3], DType::F64).unwrap(), Array::ones(&[3], DType::F64).unwrap());
    let (mean, var) = stats();
    planaria_array::ops::batch_norm(
        &x,
        None,
        None,
        planaria_array::ops::BatchStats::Batch {
            running: Some(planaria_array::ops::RunningStats { mean: &mean, var: &var }),
            momentum: 0.3,
        },
        1e-5,
    )
    .unwrap();
    on_ranks(|mesh, world| {
        let (m, v) = stats();
        let put = |a: &Array, p: Placement| Tensor::place(a, mesh, &[p], world).unwrap();
        let (m, v) = (put(&m, R), put(&v, S0));
        let y = run(&put(&x, S0), &m, &v);
        assert_eq!(y.layout().unwrap().placements(), [S0], "the batch stays cut");
        close(&m.whole().unwrap(), &mean);
        close(&v.whole().unwrap(), &var);
    });
}

#[test]
fn dropout_add_is_dropout_then_add_bit_for_bit() {
    let mut draw = Draw::new(5);
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        let (x, r) = (
            draw.normal(&[7, 9]).unwrap().cast(dtype).unwrap(),
            draw.normal(&[7, 9]).unwrap().cast(dtype).unwrap(),
        );
        let (x, r, key) = (Tensor::new(x), Tensor::new(r), Key::new(3, 4));
        let fused = ops::dropout_add_with(&x, &r, 0.3, key).unwrap();
        let steps = ops::dropout_with(&x, 0.3, key).unwrap().add(&r).unwrap();
        assert_eq!(values(fused.local()), values(steps.local()));
        assert!(values(fused.local()) != values(r.local()), "something is kept");
    }
}

#[test]
fn tokens_come_back_from_their_experts_with_their_weights() {
    let gates = Array::from_slice(&[0.6, 0.4, 0.9, 0.1, 0.7, 0.3, 0.2, 0.8], &[4, 2]).unwrap();
    let x = Array::from_slice(&[1.0, 2.0, 3.0, 4.0], &[4, 1]).unwrap();
    let run = |gates: &Tensor, x: &Tensor| {
        let routing = ops::moe_route(gates, 1, 2).unwrap();
        let sent = ops::moe_dispatch(x, &routing).unwrap();
        (sent.clone(), ops::moe_combine(&sent, &routing).unwrap())
    };
    let (sent, back) = run(&Tensor::new(gates.clone()), &Tensor::new(x.clone()));
    // The first expert has room for tokens 0 and 1; token 2 is dropped.
    assert_eq!(values(sent.local()), [1.0, 2.0, 4.0, 0.0]);
    let expected = [0.6, 1.8, 0.0, 3.2];
    assert!(values(back.local()).iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12));
    on_ranks(|mesh, world| {
        let put = |a: &Array| Tensor::place(a, mesh, &[S0], world).unwrap();
        let routing = ops::moe_route(&put(&gates), 1, 2).unwrap();
        let sent = ops::moe_dispatch(&put(&x), &routing).unwrap().placed(&[S0]).unwrap();
        close(&ops::moe_combine(&sent, &routing).unwrap().whole().unwrap(), back.local());
    });
}

/// Values and gradients of a mixture of experts; `put` places tokens, gates and weights.
fn experts(
    [x, gates, weight]: [&Array; 3],
    capacity: usize,
    put: impl Fn(&Array) -> Tensor,
) -> (Vec<Array>, Vec<Moved>) {
    let leaf = |a: &Array| put(a).requires_grad();
    let (x, gates, weight) = (leaf(x), leaf(gates), leaf(weight));
    let (made, moved) = implicit_reshards(|| {
        let routing = ops::moe_route(&gates, 2, capacity).unwrap();
        let sent = ops::moe_dispatch(&x, &routing).unwrap();
        let back = ops::moe_combine(&sent.matmul(&weight).unwrap().tanh().unwrap(), &routing).unwrap();
        let seed = back.mul(&back).unwrap();
        let options = GradOptions { keep_history: true, differentiable: false };
        let grads = grad(&[&back], &[Some(&seed)], &[&x, &gates, &weight], options).unwrap();
        std::iter::once(back).chain(grads.into_iter().flatten()).collect::<Vec<_>>()
    });
    (made.iter().map(|t| t.whole().unwrap()).collect(), moved)
}

#[test]
fn rows_go_to_their_experts_and_back_without_a_sum_over_ranks() {
    // More ranks than tokens, more ranks than experts, an expert that nobody chooses, and one that is full.
    for (tokens, experts_, capacity) in [(9, 5, 3), (2, 3, 1), (8, 2, 8), (0, 3, 2)] {
        let mut draw = Draw::new(7);
        let x = draw.normal(&[tokens, 3]).unwrap();
        let gates = draw.normal(&[tokens, experts_]).unwrap();
        let weight = draw.normal(&[experts_, 3, 4]).unwrap();
        let inputs = [&x, &gates, &weight];
        let (expected, _) = experts(inputs, capacity, |a| Tensor::new(a.clone()));
        for ranks in [2, 3, 4] {
            threads::run(ranks, |comm| {
                let (mesh, world) = (Mesh::new(&[("x", ranks)]).unwrap(), World::new(comm));
                let (found, moved) =
                    experts(inputs, capacity, |a| Tensor::place(a, &mesh, &[S0], &world).unwrap());
                for (i, (e, f)) in expected.iter().zip(&found).enumerate() {
                    let what = format!("result {i}, {tokens} tokens, {experts_} experts on {ranks} ranks");
                    assert_eq!(values(e), values(f), "{what}");
                }
                assert_eq!(expected.len(), found.len());
                let sums = |m: &&Moved| m.op.starts_with("moe") && !m.from.partial_axes().is_empty();
                assert_eq!(moved.iter().find(sums), None);
                assert!(moved.iter().filter(|m| m.op.starts_with("moe")).count() >= 4);
            });
        }
    }
}

#[test]
fn second_choices_queue_behind_all_first_ones() {
    let gates = Array::from_slice(&[0.6, 0.4, 0.3, 0.7], &[2, 2]).unwrap();
    let routing = ops::moe_route(&Tensor::new(gates), 2, 2).unwrap();
    assert_eq!(routing.slots.to_vec::<i64>().unwrap(), [0, 3, 2, 1]);
}

#[test]
fn expressions_mean_what_they_say() {
    let mut draw = Draw::new(6);
    let mut tensor = |shape: &[usize]| Tensor::new(draw.normal(shape).unwrap());
    let (a, b, c) = (tensor(&[2, 3, 4]), tensor(&[4, 5]), tensor(&[3, 3]));
    let same = |x: Tensor, y: Tensor| close(x.local(), y.local());
    same(ops::einsum("bij,jk->bik", &[&a, &b]).unwrap(), a.matmul(&b).unwrap());
    same(ops::einsum("...j, jk", &[&a, &b]).unwrap(), a.matmul(&b).unwrap());
    same(ops::einsum("ba", &[&b]).unwrap(), b.transpose(0, 1).unwrap());
    same(ops::einsum("i...->...", &[&b]).unwrap(), b.sum(&[0], Keep::No).unwrap());
    let trace: f64 = (0..3).map(|i| values(c.local())[i * 4]).sum();
    assert!((values(ops::einsum("ii", &[&c]).unwrap().local())[0] - trace).abs() < 1e-12);
    let one = tensor(&[1, 3, 4]);
    same(
        ops::einsum("...ij,...ij->...", &[&one, &a]).unwrap(),
        one.mul(&a).unwrap().sum(&[1, 2], Keep::No).unwrap(),
    );
    for (text, why) in [
        ("ij->ij", "3 dims"),
        ("ijk->l", "no operand"),
        ("i?k->i", "not a letter"),
        ("ijk,ij->i", "operands"),
    ] {
        let message = ops::einsum(text, &[&a]).unwrap_err().to_string();
        assert!(message.contains(why), "{message}");
    }
    let message = ops::einsum("ij,jk->ik", &[&b, &b]).unwrap_err().to_string();
    assert!(message.contains("5 and 4"), "{message}");
}

#[test]
fn convolution_and_pooling_follow_their_definition() {
    let mut draw = Draw::new(7);
    let (x, w) = (draw.normal(&[2, 4, 6, 5]).unwrap(), draw.normal(&[6, 2, 3, 2]).unwrap());
    let windows = Windows { stride: smallvec![2, 1], padding: smallvec![1, 1], dilation: smallvec![1, 2] };
    let (tx, tw) = (Tensor::new(x.clone()), Tensor::new(w.clone()));
    let y = ops::conv(&tx, &tw, None, &windows, 2).unwrap();
    let [_, outs, rows, columns] = y.shape()[..] else { panic!("4 dims") };
    let (xs, ws, ys) = (values(&x), values(&w), values(y.local()));
    let at = |n: usize, c: usize, i: isize, j: isize| {
        let inside = (0..6).contains(&i) && (0..5).contains(&j);
        if inside { xs[((n * 4 + c) * 6 + i as usize) * 5 + j as usize] } else { 0.0 }
    };
    for (place, &found) in ys.iter().enumerate() {
        let (j, i) = (place % columns, place / columns % rows);
        let (o, n) = (place / columns / rows % outs, place / columns / rows / outs);
        let mut sum = 0.0;
        for (c, k, l) in (0..2).flat_map(|c| (0..3).flat_map(move |k| (0..2).map(move |l| (c, k, l)))) {
            let value = at(n, o / 3 * 2 + c, (2 * i + k) as isize - 1, (j + 2 * l) as isize - 1);
            sum += ws[((o * 2 + c) * 3 + k) * 2 + l] * value;
        }
        assert!((found - sum).abs() < 1e-12, "{found} instead of {sum}");
    }
    // <conv(x), y> = <x, conv_transpose(y)> with the same weight.
    let dy = draw.normal(y.shape()).unwrap();
    let back = ops::conv_transpose(&Tensor::new(dy.clone()), &tw, None, &windows, &[1, 0], 2).unwrap();
    let dot = |a: &Array, b: &Array| values(a).iter().zip(values(b)).map(|(x, y)| x * y).sum::<f64>();
    assert!((dot(y.local(), &dy) - dot(&x, back.local())).abs() < 1e-9);
}

#[test]
fn padding_never_wins_a_pool_and_counts_only_when_asked() {
    let x = Tensor::from_slice(&[-1.0, -2.0, -3.0, -4.0], &[1, 1, 4]).unwrap();
    let windows = Windows { stride: smallvec![2], padding: smallvec![1], dilation: smallvec![1] };
    assert_eq!(ops::max_pool(&x, &[3], &windows).unwrap().to_vec::<f64>().unwrap(), [-1.0, -2.0]);
    let all = ops::avg_pool(&x, &[3], &windows, PoolCount::Window).unwrap();
    assert_eq!(all.to_vec::<f64>().unwrap(), [-1.0, -3.0]);
    let there = ops::avg_pool(&x, &[3], &windows, PoolCount::Input).unwrap();
    assert_eq!(there.to_vec::<f64>().unwrap(), [-1.5, -3.0]);
}

#[test]
fn a_cut_vocabulary_gives_the_loss_and_gradient_of_the_whole() {
    let mut draw = Draw::new(8);
    let (x, labels) = (draw.normal(&[4, 7]).unwrap(), draw.integers(7, &[4]).unwrap());
    labels.narrow(0, 1, 1).unwrap().fill(-100i64).unwrap();
    for reduction in [Reduction::Mean, Reduction::Sum] {
        let options =
            CrossEntropyOptions { reduction, label_smoothing: 0.1, ..CrossEntropyOptions::default() };
        let alone = Tensor::new(x.clone()).requires_grad();
        let loss = ops::cross_entropy(&alone, &Tensor::new(labels.clone()), &options).unwrap();
        loss.backward().unwrap();
        let fused = planaria_array::ops::CrossEntropyOptions {
            reduction,
            label_smoothing: 0.1,
            ..Default::default()
        };
        close(loss.local(), &planaria_array::ops::cross_entropy(&x, &labels, &fused).unwrap().loss);
        on_ranks(|mesh, world| {
            let many = Tensor::place(&x, mesh, &[Placement::shard(1)], world).unwrap().requires_grad();
            let cut = ops::cross_entropy(&many, &Tensor::new(labels.clone()), &options).unwrap();
            close(&cut.whole().unwrap(), loss.local());
            cut.backward().unwrap();
            let grad = many.grad().unwrap();
            assert_eq!(grad.layout().unwrap().placements(), [Placement::shard(1)], "the logits stay cut");
            close(&grad.whole().unwrap(), alone.grad().unwrap().local());
        });
    }
}

#[test]
fn labels_outside_the_classes_are_refused() {
    let x = Tensor::from_slice(&[0.0, 1.0], &[1, 2]).unwrap();
    let labels = Tensor::from_slice(&[2i64], &[1]).unwrap();
    assert!(ops::cross_entropy(&x, &labels, &CrossEntropyOptions::default()).is_err());
    on_ranks(|mesh, world| {
        let world = world.with_policy(Policy::Stay);
        let x = Tensor::place(x.local(), mesh, &[Placement::shard(1)], &world).unwrap();
        let error = ops::cross_entropy(&x, &labels, &CrossEntropyOptions::default()).unwrap_err();
        assert!(error.to_string().contains("below 2"), "{error}");
    });
}

/// The gradients of x, of what is added and of the weight, of a residual stream with a norm beside it, and the value.
fn stream(
    [x, more, w]: [&Tensor; 3],
    added: impl Fn(&Tensor, &Tensor, &Tensor) -> planaria_tensor::Result<(Tensor, Tensor)>,
) -> [Array; 4] {
    let (sum, normed) = added(x, more, w).unwrap();
    let out = sum.add(&normed.square().unwrap()).unwrap();
    let whole = |t: &Tensor| t.whole().unwrap().copy().unwrap();
    let options = GradOptions::default();
    let ones = out.ones_like().unwrap();
    let found = grad(&[&out], &[Some(&ones)], &[x, more, w], options).unwrap();
    let [dx, dm, dw] = [0, 1, 2].map(|i| whole(found[i].as_ref().unwrap()));
    [whole(&out), dx, dm, dw]
}

#[test]
fn a_sum_with_its_norm_is_the_two_ops_to_the_bit_on_any_layout() {
    let mut draw = Draw::new(9);
    let [x, more] = [(); 2].map(|()| draw.normal(&[7, 6]).unwrap().cast(DType::F32).unwrap());
    let w = draw.normal(&[6]).unwrap().cast(DType::F32).unwrap();
    let fused = |x: &Tensor, m: &Tensor, w: &Tensor| ops::add_rms_norm(x, m, &[6], Some(w), 1e-5);
    let apart = |x: &Tensor, m: &Tensor, w: &Tensor| {
        let sum = x.add(m)?;
        let normed = ops::rms_norm(&sum, &[6], Some(w), 1e-5)?;
        Ok((sum, normed))
    };
    let same = |found: [Array; 4], expected: [Array; 4], what: &str| {
        for (a, b) in found.iter().zip(&expected) {
            assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap(), "{what}");
        }
    };
    let leaf = |a: &Array| Tensor::new(a.clone()).requires_grad();
    let alone = [leaf(&x), leaf(&more), leaf(&w)];
    same(stream(alone.each_ref(), fused), stream(alone.each_ref(), apart), "one rank");
    on_ranks(|mesh, world| {
        let put = |a: &Array, p: Placement| Tensor::place(a, mesh, &[p], world).unwrap().requires_grad();
        for (a, b) in [(S0, S0), (R, R), (S0, R), (Placement::shard(1), Placement::shard(1)), (R, SUM)] {
            let placed = [put(&x, a), put(&more, b), put(&w, R)];
            let what = format!("{a} and {b}");
            same(stream(placed.each_ref(), fused), stream(placed.each_ref(), apart), &what);
        }
    });
}

#[test]
fn a_sum_with_its_norm_can_be_differentiated_twice() {
    let mut draw = Draw::new(10);
    let [x, more] = [(); 2].map(|()| Tensor::new(draw.normal(&[3, 4]).unwrap()).requires_grad());
    let second = |fused: bool| {
        let (sum, normed) = match fused {
            true => ops::add_rms_norm(&x, &more, &[4], None, 1e-5).unwrap(),
            false => {
                let sum = x.add(&more).unwrap();
                (sum.clone(), ops::rms_norm(&sum, &[4], None, 1e-5).unwrap())
            }
        };
        let total = |t: &Tensor| t.sum(&[0, 1], Keep::No).unwrap();
        let out = total(&sum.mul(&normed.square().unwrap()).unwrap());
        let options = GradOptions { keep_history: true, differentiable: true };
        let first = grad(&[&out], &[None], &[&x], options).unwrap()[0].clone().unwrap();
        let again = grad(&[&total(&first.square().unwrap())], &[None], &[&more], GradOptions::default());
        again.unwrap()[0].as_ref().unwrap().local().copy().unwrap()
    };
    close(&second(true), &second(false));
}
