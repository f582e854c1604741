//! Models on a device: losses and gradients of the goldens beside the host's. `PLANARIA_DEVICE=cuda:0` names the device; the
//! test command sets it to the emulated one. Without it the host must agree with itself.

mod common;

use common::{Golden, difference, step};
use planaria_array::{DType, Device};
use planaria_nn::batch::{Batch, Prompt, Room};
use planaria_nn::models::Run;

#[test]
fn a_device_gives_the_losses_and_gradients_of_the_host() {
    let device: Device = std::env::var("PLANARIA_DEVICE").unwrap_or_else(|_| "cpu".into()).parse().unwrap();
    let names = ["qwen2", "llama-bias", "qwen2-tied", "qwen2-window", "mistral", "qwen3", "gemma2", "gemma3"];
    for name in names {
        let mut golden = Golden::read(name);
        let here = step(&golden.model(None, DType::F32), &golden, &Run::default());
        for tensor in golden.tensors.values_mut() {
            *tensor = tensor.to(device).unwrap();
        }
        let there = step(&golden.model(None, DType::F32), &golden, &Run::default());
        assert!(
            (here.loss - there.loss).abs() < 1e-5 * here.loss.abs(),
            "{name}: {} {}",
            here.loss,
            there.loss
        );
        let worst = difference(&there.logits, &here.logits);
        assert!(worst < 1e-4, "{name}: logits are off by {worst}");
        for (param, grad) in &there.grads {
            assert_eq!(grad.device(), device, "{name}: {param}");
            let worst = difference(grad, &here.grads[param]);
            assert!(worst < 1e-4, "{name}: the gradient of {param} is off by {worst}");
        }
    }
}

#[test]
fn a_device_makes_the_tokens_of_the_host() {
    let device: Device = std::env::var("PLANARIA_DEVICE").unwrap_or_else(|_| "cpu".into()).parse().unwrap();
    for name in ["qwen2", "llama-bias", "qwen2-tied", "qwen2-window"] {
        let mut golden = Golden::read(name);
        let prompts = [&[1i64, 5, 9, 2][..], &[7], &[3, 3, 8, 1, 0, 2, 6, 30, 4]];
        let prompts = prompts.map(|tokens| Prompt { tokens, limit: 8 });
        let mut texts = Vec::new();
        for device in [Device::Cpu, device] {
            for tensor in golden.tensors.values_mut() {
                *tensor = tensor.to(device).unwrap();
            }
            let model = golden.model(None, DType::F32);
            let mut batch = Batch::new(&model, Room::of(&prompts), &[]).unwrap().unwrap();
            batch.begin(&prompts).unwrap();
            batch.take_best(8).unwrap();
            texts.push(batch.texts().unwrap());
        }
        assert_eq!(texts[0], texts[1], "{name}");
    }
}
