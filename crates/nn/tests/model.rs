//! Models in stages, with first values, dropout, frozen parameters, other sources, narrow dtypes.

use crate::common::{Golden, difference, step};
use planaria_array::random::Key;
use planaria_array::{Array, DType};
use planaria_comm::threads;
use planaria_layout::Mesh;
use planaria_nn::models::{Activations, Decoder, DecoderConfig, Network, Recompute, Run, Stage};
use planaria_nn::{Init, Module, Parallel};
use planaria_tensor::{GradOptions, Tensor, World, backward};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn bits(array: &Array) -> Vec<u32> {
    array.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// A stage whose input is a leaf, so that its gradient can be handed on.
fn leaves(activations: Activations) -> Activations {
    let list = activations.into_list().iter().map(|t| t.detach().requires_grad()).collect();
    Activations::from_list(list).unwrap()
}

#[test]
fn two_stages_give_the_bits_of_one() {
    for name in ["qwen2-tied", "qwen2-moe-mixed"] {
        let golden = Golden::read(name);
        let whole = step(&golden.model(None, DType::F32), &golden, &Run::default());
        let layers = golden.config.layers;
        let first = golden.stage(Stage { layers: 0..1, embed: true, head: false }, None, DType::F32);
        let last = golden.stage(Stage { layers: 1..layers, embed: false, head: true }, None, DType::F32);
        let sent = first.forward(golden.tensor("input_ids"), &Run::default()).unwrap();
        let received = leaves(sent.clone());
        let done = last.forward(received.clone(), &Run::default()).unwrap();
        let loss = last.loss(&done, &golden.tensor("labels")).unwrap();
        loss.total().unwrap().mul_scalar(1.0 / loss.count as f64).unwrap().backward().unwrap();
        for (sent, received) in sent.into_list().iter().zip(received.into_list()) {
            let options = GradOptions { keep_history: true, ..GradOptions::default() };
            backward(sent, received.grad().as_ref(), options).unwrap();
        }
        let params = [first.params(), last.params()].concat();
        assert_eq!(params.len(), whole.grads.len());
        for param in params {
            let grad = param.take_grad().unwrap().unwrap();
            // Where two gradients meet at the boundary the order of sums may differ with a second tensor.
            let worst = difference(grad.local(), &whole.grads[param.name()]);
            assert!(worst < 1e-6, "{name}: {} {worst}", param.name());
            if name == "qwen2-tied" {
                assert_eq!(bits(grad.local()), bits(&whole.grads[param.name()]), "{}", param.name());
            }
        }
    }
}

#[test]
fn first_values_do_not_depend_on_mesh_or_stage() {
    let config = Golden::read("qwen2-moe").config;
    let init = Init { seed: 9, ..Init::default() };
    let alone = Decoder::new(&config, Stage::whole(&config), None, &init).unwrap().params();
    let std = |a: &Array| {
        let values = a.to_vec::<f32>().unwrap();
        (values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32).sqrt()
    };
    assert!((std(alone[0].leaf().local()) / 0.02 - 1.0).abs() < 0.2);
    assert_ne!(bits(alone[2].leaf().local())[..4], bits(alone[4].leaf().local())[..4]);
    let mesh: Mesh = "ep=2 tp=2".parse().unwrap();
    threads::run(4, |comm| {
        let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence: true };
        let stage = Stage { layers: 1..2, embed: false, head: true };
        for param in Decoder::new(&config, stage, Some(&parallel), &init).unwrap().params() {
            let twin = alone.iter().find(|other| other.name() == param.name()).unwrap();
            assert_eq!(bits(&param.leaf().whole().unwrap()), bits(twin.leaf().local()), "{}", param.name());
        }
    });
}

#[test]
fn tied_parameters_share_their_elements_and_not_their_gradients() {
    let golden = Golden::read("qwen2-tied");
    let model = Decoder::new(&golden.config, Stage::whole(&golden.config), None, &Init::default()).unwrap();
    let params = model.params();
    let (embed, head) = (&params[0], params.last().unwrap());
    embed.leaf().local().fill(0.25).unwrap();
    assert_eq!(head.leaf().local().to_vec::<f32>().unwrap()[0], 0.25);
    // A head alone on the last stage starts with the same values.
    let stage = Stage { layers: 2..2, embed: false, head: true };
    let last = Decoder::new(&golden.config, stage, None, &Init::default()).unwrap();
    let fresh = Decoder::new(&golden.config, Stage::whole(&golden.config), None, &Init::default()).unwrap();
    assert_eq!(bits(last.params()[1].leaf().local()), bits(fresh.params()[0].leaf().local()));
    let found = step(&fresh, &golden, &Run::default());
    assert_ne!(bits(&found.grads[embed.name()]), bits(&found.grads[head.name()]));
}

#[test]
fn dropout_is_the_same_on_every_mesh_and_when_computed_again() {
    let set = |config: &mut DecoderConfig, kind| match kind {
        "hidden" => config.hidden_dropout = 0.3,
        _ => config.attention_dropout = 0.3,
    };
    // Fewer heads of keys than ranks, a window, experts that cut the batch.
    let models = [
        ("qwen2", &["tp=2", "tp=4"][..]),
        ("qwen2-window", &["tp=2"]),
        ("qwen2-moe", &["ep=2", "ep=2 tp=2"]),
    ];
    for (kind, (name, meshes)) in
        ["hidden", "attention"].into_iter().flat_map(|kind| models.map(|model| (kind, model)))
    {
        let mut golden = Golden::read(name);
        set(&mut golden.config, kind);
        let run = |train, recompute| Run { train, recompute, ..Run::default() };
        let key = Some(Key::new(4, 17));
        let alone = step(&golden.model(None, DType::F64), &golden, &run(key, Recompute::None));
        let plain = step(&golden.model(None, DType::F64), &golden, &run(None, Recompute::None));
        assert!((alone.loss - plain.loss).abs() > 1e-4, "{kind} {name}");
        let again = step(&golden.model(None, DType::F64), &golden, &run(key, Recompute::Full));
        assert_eq!(alone.loss, again.loss);
        for (name, grad) in &alone.grads {
            let bits = |a: &Array| a.to_vec::<f64>().unwrap();
            assert_eq!(bits(&again.grads[name]), bits(grad), "{kind} {name}");
        }
        for (mesh, sequence) in meshes.iter().flat_map(|mesh| [(mesh, false), (mesh, true)]) {
            let (golden, mesh): (_, Mesh) = (&golden, mesh.parse().unwrap());
            threads::run(mesh.size(), |comm| {
                let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence };
                let model = golden.model(Some(&parallel), DType::F64);
                let found = step(&model, golden, &run(key, Recompute::Full));
                assert!((found.loss - alone.loss).abs() < 1e-12, "{kind} {name} {mesh}");
                for (param, grad) in &alone.grads {
                    assert!(difference(&found.grads[param], grad) < 1e-12, "{kind} {name} {mesh} {param}");
                }
            });
        }
    }
}

#[test]
fn frozen_parameters_get_no_gradient_and_change_no_other() {
    let golden = Golden::read("llama");
    let all = step(&golden.model(None, DType::F32), &golden, &Run::default());
    let mut model = golden.model(None, DType::F32);
    let frozen = |name: &str| name.contains("layers.0") || name.contains("embed") || name.contains("lm_head");
    model.visit_mut(&mut |param| {
        let trainable = !frozen(param.name());
        param.set_trainable(trainable);
    });
    let last = model.forward(golden.tensor("input_ids"), &Run::default()).unwrap();
    let loss = model.loss(&last, &golden.tensor("labels")).unwrap();
    loss.total().unwrap().mul_scalar(1.0 / loss.count as f64).unwrap().backward().unwrap();
    for param in model.params() {
        match param.take_grad().unwrap() {
            None => assert!(frozen(param.name())),
            Some(grad) => assert_eq!(bits(grad.local()), bits(&all.grads[param.name()]), "{}", param.name()),
        }
    }
}

/// A source is asked in forward, and again where a block is computed again: pieces need not stay together between.
#[test]
fn values_come_from_their_source_at_each_use() {
    let golden = Golden::read("qwen2");
    let plain = step(&golden.model(None, DType::F32), &golden, &Run::default());
    let mut model = golden.model(None, DType::F32);
    let asked = Arc::new(AtomicUsize::new(0));
    model.visit_mut(&mut |param| {
        let (leaf, asked) = (param.leaf().clone(), asked.clone());
        param.set_source(Some(Arc::new(move || {
            asked.fetch_add(1, Ordering::Relaxed);
            leaf.mul_scalar(1.0)
        })));
    });
    let run = Run { recompute: Recompute::Full, ..Run::default() };
    let found = step(&model, &golden, &run);
    for (name, grad) in &plain.grads {
        assert_eq!(bits(grad), bits(&found.grads[name]), "{name}");
    }
    // 12 parameters in each of two blocks, twice; the last norm and the head also for logits.
    assert_eq!(asked.load(Ordering::Relaxed), 1 + 2 * 2 * 12 + 2 * 2);
}

#[test]
fn bf16_models_are_close_to_f32() {
    for name in ["qwen2", "qwen2-moe"] {
        let golden = Golden::read(name);
        let wide = step(&golden.model(None, DType::F32), &golden, &Run::default());
        let narrow = step(&golden.model(None, DType::BF16), &golden, &Run::default());
        assert!((narrow.loss - wide.loss).abs() < 0.05 * wide.loss, "{name}: {} {}", narrow.loss, wide.loss);
        assert!(narrow.grads.values().all(|grad| grad.dtype() == DType::BF16));
    }
}

#[test]
fn a_model_can_be_planned_without_values() {
    let golden = Golden::read("qwen2-moe");
    let mesh: Mesh = "ep=2 tp=2".parse().unwrap();
    let parallel = Parallel { world: World::supposed(3), mesh, sequence: true };
    let init = Init { dtype: DType::BF16, ..Init::default() };
    let model = Decoder::new(&golden.config, Stage::whole(&golden.config), Some(&parallel), &init).unwrap();
    let meta = |shape: &[usize]| Tensor::new(Array::meta(shape, DType::I64).unwrap());
    let last = model.forward(meta(&[4, 8]), &Run::default()).unwrap();
    assert_eq!(last.hidden.shape()[..], [4, 8, 16]);
    let loss = model.loss(&last, &meta(&[4, 8])).unwrap();
    assert_eq!(loss.count, 32);
    loss.total().unwrap().backward().unwrap();
    assert!(model.params().iter().all(|param| param.take_grad().unwrap().is_some()));
}

#[test]
fn wrong_elements_and_meshes_are_refused() {
    let golden = Golden::read("llama");
    let mut model = golden.model(None, DType::F32);
    model.visit_mut(&mut |param| {
        let message = param.set_array(Array::zeros(&[1], DType::F32).unwrap()).unwrap_err().to_string();
        assert!(message.contains(&format!("`{}`", param.name())) && message.contains("f32[1]"), "{message}");
    });
    let parallel =
        |mesh: &str| Parallel { world: World::supposed(0), mesh: mesh.parse().unwrap(), sequence: false };
    let build = |mesh: &str| {
        Decoder::new(&golden.config, Stage::whole(&golden.config), Some(&parallel(mesh)), &Init::default())
    };
    let message = build("tp=3").unwrap_err().to_string();
    assert!(
        message.contains("4 heads cannot be divided over tp=3; sizes that fit are [1, 2, 4]"),
        "{message}"
    );
    assert!(build("dp=2").unwrap_err().to_string().contains("not `dp`"));
}
