//! Tensor, sequence and expert parallel models equal the model on one rank.

mod common;

use common::{Golden, Step, difference, step};
use planaria_array::DType;
use planaria_comm::threads;
use planaria_layout::Mesh;
use planaria_nn::Parallel;
use planaria_nn::models::{Recompute, Run};
use planaria_tensor::World;
use planaria_tensor::trace::{Moved, implicit_reshards};

/// Largest difference of f64 results: only the order of sums differs.
const F64: f64 = 1e-12;
/// The same in f32, relative to the largest value of each tensor.
const F32: f64 = 2e-5;

#[derive(Clone, Copy, PartialEq)]
enum Sequence {
    Whole,
    Cut,
}

fn on_mesh(golden: &Golden, mesh: &str, sequence: Sequence, dtype: DType, recompute: Recompute) -> Vec<Step> {
    let mesh: Mesh = mesh.parse().unwrap();
    threads::run(mesh.size(), |comm| {
        let sequence = sequence == Sequence::Cut;
        let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence };
        let run = Run { recompute: recompute.clone(), ..Run::default() };
        step(&golden.model(Some(&parallel), dtype), golden, &run)
    })
}

fn check(name: &str, mesh: &str, sequence: Sequence, dtype: DType) {
    let golden = Golden::read(name);
    let bound = if dtype == DType::F64 { F64 } else { F32 };
    let alone = step(&golden.model(None, dtype), &golden, &Run::default());
    for recompute in [Recompute::None, Recompute::Full] {
        for found in on_mesh(&golden, mesh, sequence, dtype, recompute) {
            let logits = difference(&found.logits, &alone.logits);
            assert!(logits < bound, "{name} on {mesh}: logits differ by {logits}");
            assert!((found.loss - alone.loss).abs() < bound * alone.loss, "{name} on {mesh}: loss");
            for (param, grad) in &alone.grads {
                let worst = difference(&found.grads[param], grad);
                assert!(worst < bound, "{name} on {mesh}: gradient of {param} differs by {worst}");
            }
        }
    }
}

/// Models and the sizes of `tp` their heads can be shared out on. Vocabulary and inner widths do not divide evenly.
const DENSE: [(&str, &[usize]); 5] = [
    ("llama", &[2, 4]),
    ("llama-bias", &[2, 4]),
    ("qwen2", &[2, 4]),
    ("qwen2-tied", &[2, 4]),
    ("qwen2-window", &[2]),
];

#[test]
fn tensor_parallel_equals_one_rank() {
    for (name, sizes) in DENSE {
        for tp in sizes {
            check(name, &format!("tp={tp}"), Sequence::Whole, DType::F64);
        }
    }
    check("qwen2", "tp=2", Sequence::Whole, DType::F32);
}

#[test]
fn sequence_parallel_equals_one_rank() {
    for (name, sizes) in DENSE {
        for tp in sizes {
            check(name, &format!("tp={tp}"), Sequence::Cut, DType::F64);
        }
    }
    check("qwen2", "tp=2", Sequence::Cut, DType::F32);
}

#[test]
fn expert_parallel_equals_one_rank() {
    for name in ["qwen2-moe", "qwen2-moe-mixed"] {
        for mesh in ["ep=2", "tp=2", "ep=2 tp=2"] {
            check(name, mesh, Sequence::Whole, DType::F64);
        }
        check(name, "ep=2 tp=2", Sequence::Cut, DType::F64);
    }
    check("qwen2-moe", "ep=2", Sequence::Whole, DType::F32);
}

#[test]
fn a_dense_model_may_be_cut_by_batch() {
    check("qwen2", "ep=2 tp=2", Sequence::Cut, DType::F64);
}

/// Forward and backward ask for no move that the lanes do not make.
#[test]
fn nothing_moves_unasked() {
    for (name, sequence) in
        [("llama", Sequence::Whole), ("llama", Sequence::Cut), ("qwen2-tied", Sequence::Cut)]
    {
        let golden = Golden::read(name);
        let mesh: Mesh = "tp=2".parse().unwrap();
        threads::run(2, |comm| {
            let sequence = sequence == Sequence::Cut;
            let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence };
            let model = golden.model(Some(&parallel), DType::F32);
            let (_, moved) = implicit_reshards(|| {
                let last = model.forward(golden.tensor("input_ids"), &Run::default()).unwrap();
                let loss = model.loss(&last, &golden.tensor("labels")).unwrap();
                loss.total().unwrap().backward().unwrap();
            });
            // The loss exchanges a number per row: largest score, sum of exponentials, the label's score.
            let rows =
                |m: &&Moved| m.op.starts_with("cross_entropy_with_softmax") && m.to.shape()[..] == [3, 11, 1];
            let others: Vec<&Moved> = moved.iter().filter(|m| m.bytes > 0 && !rows(m)).collect();
            assert!(others.is_empty(), "{name}: {others:?}");
        });
    }
}
