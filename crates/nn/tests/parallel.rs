//! Tensor, sequence and expert parallel models equal the model on one rank.

use crate::common::{Golden, Step, difference, step};
use planaria_array::DType;
use planaria_comm::threads;
use planaria_layout::Mesh;
use planaria_nn::models::{Network, Recompute, Run};
use planaria_nn::{Module, Parallel};
use planaria_tensor::World;

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
    for recompute in [Recompute::None, Recompute::Full, Recompute::Selective] {
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
const DENSE: [(&str, &[usize]); 10] = [
    ("llama", &[2, 4]),
    ("llama-bias", &[2, 4]),
    ("qwen2", &[2, 4]),
    ("qwen2-tied", &[2, 4]),
    ("qwen2-window", &[2]),
    ("mistral", &[2]),
    ("qwen3", &[2, 4]),
    ("gemma2", &[2, 4]),
    ("gemma3", &[4]),
    ("phi3", &[2]),
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
    for name in ["qwen2-moe", "qwen2-moe-mixed", "qwen3-moe"] {
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

/// One row on two ranks of `ep`: one of them has no token of its own and only serves its experts. On six ranks one has
/// no expert either.
#[test]
fn a_rank_without_tokens_or_experts_takes_part() {
    let golden = Golden::read("qwen2-moe");
    assert_eq!(golden.config.experts.as_ref().unwrap().count, 5);
    let ids = |name: &str| golden.tensor(name).narrow(0, 0, 1).unwrap();
    let run = |model: &planaria_nn::models::Decoder| {
        let last = model.forward(ids("input_ids"), &Run::default()).unwrap();
        let loss = model.loss(&last, &ids("labels")).unwrap();
        loss.total().unwrap().backward().unwrap();
        let grad = |param: planaria_nn::Param| {
            (param.name().to_string(), param.take_grad().unwrap().unwrap().whole().unwrap())
        };
        (loss.sum.whole().unwrap(), model.params().into_iter().map(grad).collect::<Vec<_>>())
    };
    let (sum, grads) = run(&golden.model(None, DType::F64));
    for mesh in ["ep=2", "ep=6"] {
        let mesh: Mesh = mesh.parse().unwrap();
        threads::run(mesh.size(), |comm| {
            let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence: false };
            let (found, parts) = run(&golden.model(Some(&parallel), DType::F64));
            assert!(difference(&found, &sum) < F64);
            for ((name, found), (_, expected)) in parts.iter().zip(&grads) {
                assert!(difference(found, expected) < F64, "{name} on {mesh}");
            }
        });
    }
}
