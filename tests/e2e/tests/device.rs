//! Runs on a device: the losses of the host within rounding, the same bits again, and the bits of one rank on every mesh that the
//! exactness promise covers. `PLANARIA_DEVICE=cuda:0` names the device; the test command sets it to the emulated one. Without it
//! the host must agree with itself.

use anyhow::{Context, Result, ensure};
use planaria_array::{Device, cuda_devices, device_memory_stats};
use planaria_e2e::{MOE, Sandbox};
use planaria_train::{Generator, Sampling};

/// The device under test, as a setting.
fn device() -> String {
    format!("device={}", std::env::var("PLANARIA_DEVICE").unwrap_or_else(|_| "cpu".into()))
}

const SHORT: [&str; 4] =
    ["model.num_hidden_layers=2", "train.steps=3", "train.global_batch=4", "model.tie_word_embeddings=true"];

#[test]
fn a_run_learns_what_it_learns_on_the_host_and_goes_on_there() -> Result<()> {
    let device = device();
    for (precision, bound) in [("train.precision=f32", 1e-5), ("train.precision=bf16", 2e-3)] {
        let here = [&SHORT[..], &[precision, "train.micro_batch=2"]].concat();
        let there = [&here[..], &[&device]].concat();
        let sandbox = Sandbox::new()?;
        let host = sandbox.train("host", "", &here)?;
        let run = sandbox.train("device", "", &there)?;
        run.close_losses(&host, bound).context(precision)?;
        sandbox.train("again", "", &there)?.same_bits(&run).context(precision)?;
        // Each continues with what the other left.
        for (first, second) in [(&there, &here), (&here, &there)] {
            let name = if first.len() > second.len() { "to-host" } else { "to-device" };
            let begun = sandbox.train_until(2, name, "", first)?;
            let mut rest = sandbox.train(name, "", second)?;
            rest.outcome.losses = [begun.outcome.losses, rest.outcome.losses].concat();
            rest.close_losses(&host, bound).with_context(|| format!("{precision} {name}"))?;
        }
        // What stops and continues there has the bits of what did not.
        let begun = sandbox.train_until(1, "cut", "", &there)?;
        let mut rest = sandbox.train("cut", "", &there)?;
        rest.outcome.losses = [begun.outcome.losses, rest.outcome.losses].concat();
        rest.same_bits(&run).context(precision)?;
    }
    Ok(())
}

#[test]
fn thread_ranks_share_a_device_and_have_the_bits_of_one() -> Result<()> {
    let device = device();
    let more = [&SHORT[..], &[&device]].concat();
    let sandbox = Sandbox::new()?;
    let alone = sandbox.train("alone", "", &more)?;
    let meshes: [(&str, &str); 4] = [
        ("dp=2", "train.zero=1"),
        ("dp=2", "train.zero=3"),
        ("pp=2", "train.zero=1"),
        ("pp=2 dp=2", "train.zero=2"),
    ];
    for (number, (mesh, zero)) in meshes.into_iter().enumerate() {
        let run = sandbox.train(&format!("mesh{number}"), mesh, &[&more[..], &[zero]].concat())?;
        run.same_bits(&alone).with_context(|| format!("{mesh} {zero}"))?;
    }
    let cut = sandbox.train("tensor", "tp=2", &more)?;
    cut.close_losses(&alone, 1e-5)
}

#[test]
fn thread_ranks_take_a_gpu_each_where_there_are_several() -> Result<()> {
    let any = if device().contains("cuda") { "device=cuda" } else { "device=cpu" };
    let sandbox = Sandbox::new()?;
    let alone = sandbox.train("alone", "", &[&SHORT[..], &[&device()]].concat())?;
    for (number, mesh) in ["dp=2", "pp=2", "pp=2 dp=2"].into_iter().enumerate() {
        let run = sandbox.train(&format!("mesh{number}"), mesh, &[&SHORT[..], &[any]].concat())?;
        run.same_bits(&alone).context(mesh)?;
    }
    if cuda_devices().unwrap_or(0) > 1 {
        let second = device_memory_stats(Device::Cuda(1))?.peak;
        ensure!(second > 0, "nothing was ever on the second device");
    }
    Ok(())
}

#[test]
fn experts_learn_on_a_device_too() -> Result<()> {
    let device = device();
    let here = [&MOE[..], &SHORT[..3]].concat();
    let there = [&here[..], &[&device]].concat();
    let sandbox = Sandbox::new()?;
    let host = sandbox.train("host", "", &here)?;
    sandbox.train("device", "", &there)?.close_losses(&host, 1e-5)?;
    sandbox
        .train("shared", "ep=2", &[&there[..], &["train.micro_batch=2"]].concat())?
        .close_losses(&host, 1e-5)
}

#[test]
fn frozen_weights_of_few_bits_are_widened_on_a_device_too() -> Result<()> {
    let device = device();
    for base in ["lora.base=int8", "lora.base=nf4"] {
        let here = [&SHORT[..], &["lora.r=3", "lora.target_modules=all-linear", base]].concat();
        let there = [&here[..], &[&device]].concat();
        let sandbox = Sandbox::new()?;
        let host = sandbox.train("host", "", &here)?;
        let run = sandbox.train("device", "", &there)?;
        run.close_losses(&host, 1e-5).context(base)?;
        let divided = sandbox.train("divided", "dp=2", &[&there[..], &["train.zero=3"]].concat())?;
        divided.same_bits(&run).context(base)?;
    }
    Ok(())
}

#[test]
fn greedy_text_is_the_same_on_the_host_and_on_a_device() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.train("run", "", &SHORT)?;
    let device = std::env::var("PLANARIA_DEVICE").unwrap_or_else(|_| "cpu".into()).parse()?;
    let open = || Generator::open(&sandbox.run_dir("run"));
    let sampling = Sampling { tokens: 8, temperature: 0.0, ..open()?.sampling() };
    let made = |generator: Generator| generator.generate_all(&["cut the", "w"], &sampling, 1, &|_, _| ());
    let (here, there) = (made(open()?)?, made(open()?.device(device))?);
    ensure!(here.texts == there.texts, "{:?} and {:?}", here.texts, there.texts);
    Ok(())
}
