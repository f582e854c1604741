//! Models against transformers: logits, loss and every gradient on the same random weights.

use crate::common::{Golden, MODELS, difference, step};
use planaria_array::{Array, DType};
use planaria_nn::Module;
use planaria_nn::models::{Recompute, Run};

/// Relative to the largest value of each tensor.
const TIGHT: f64 = 1e-5;

fn check(name: &str, run: &Run<'_>) {
    let golden = Golden::read(name);
    let model = golden.model(None, DType::F32);
    let found = step(&model, &golden, run);
    let logits = difference(&found.logits, golden.array("logits"));
    assert!(logits < TIGHT, "{name}: logits differ by {logits}");
    let expected = golden.array("loss").item().unwrap().as_f64();
    assert!((found.loss - expected).abs() < TIGHT * expected.abs(), "{name}: {} {expected}", found.loss);
    let mut seen = 0;
    for param in model.params() {
        let mut grad = found.grads[param.name()].clone();
        let twin = model.params().into_iter().find(|other| other.tied() == Some(param.name()));
        if param.tied().is_some() {
            continue;
        }
        if let Some(twin) = twin {
            grad = grad.add(&found.grads[twin.name()]).unwrap();
        }
        let worst = difference(&grad, &golden.gradient(&param));
        assert!(worst < TIGHT, "{name}: gradient of {} differs by {worst}", param.name());
        seen += param.spec().files().len();
    }
    let all = golden.tensors.keys().filter(|key| key.starts_with("grad.")).count();
    assert_eq!(seen, all, "{name}: gradients compared");
}

#[test]
fn logits_loss_and_gradients_equal_those_of_transformers() {
    MODELS.iter().for_each(|name| check(name, &Run::default()));
}

#[test]
fn recomputed_blocks_give_the_same_bits() {
    for name in ["llama", "qwen2-moe-mixed"] {
        let golden = Golden::read(name);
        let run =
            |recompute| step(&golden.model(None, DType::F32), &golden, &Run { recompute, ..Run::default() });
        let kept = run(Recompute::None);
        for recompute in [Recompute::Full, Recompute::Blocks([1].into()), Recompute::Selective] {
            let again = run(recompute);
            assert_eq!(kept.loss.to_bits(), again.loss.to_bits());
            let bits = |a: &Array| a.to_vec::<f32>().unwrap();
            for (name, grad) in &kept.grads {
                assert_eq!(bits(grad), bits(&again.grads[name]), "{name}");
            }
        }
    }
}
