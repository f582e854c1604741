//! A small model carried through every kind of parallelism and back: the same files at the end.

use crate::common::states::{Dice, Global, Holding, compare, contents, state};
use planaria_array::DType;
use planaria_ckpt::{LoadOptions, SaveOptions, TensorKind, load, save, step_folder};
use planaria_comm::threads;
use planaria_layout::{FlatShards, Layout};
use planaria_store::{Local, Object, Store};

/// Embedding, two layers of attention and two experts, with optimizer state.
fn model() -> Vec<Global> {
    let mut dice = Dice::new(42);
    let mut globals = Vec::new();
    let mut add = |name: &str, shape: &[usize]| {
        globals.push(Global::new(&mut dice, TensorKind::Parameter, name, shape, DType::BF16));
        for (kind, dtype) in [
            (TensorKind::Master, DType::F32),
            (TensorKind::Slot("moment1_0".into()), DType::F32),
            (TensorKind::Slot("moment2_0".into()), DType::F32),
        ] {
            globals.push(Global::new(&mut dice, kind, name, shape, dtype));
        }
    };
    add("embed.weight", &[33, 8]);
    for layer in 0..2 {
        add(&format!("layers.{layer}.qkv.weight"), &[24, 8]);
        add(&format!("layers.{layer}.out.weight"), &[8, 8]);
        add(&format!("layers.{layer}.norm.weight"), &[8]);
        for expert in 0..2 {
            add(&format!("layers.{layer}.experts.{expert}.weight"), &[16, 8]);
        }
    }
    globals
}

/// How every tensor is held in one stage of the ring.
fn stage(name: &str, global: &Global) -> Holding {
    let placed =
        |on: &str, cut: &str| -> Layout { format!("{} @ {cut} on {on}", global.shape).parse().unwrap() };
    let layer = if global.name.contains("layers.1") { 1 } else { 0 };
    let expert = global.name.split("experts.").nth(1).map(|rest| usize::from(rest.starts_with('1')));
    let rows = if global.name.contains("out") { "S1" } else { "S0" };
    match name {
        "tp" => Holding::Placed(placed(
            "tp=2",
            &format!("tp:{}", if global.shape.len() == 1 { "R" } else { rows }),
        )),
        "pp" => Holding::Some(vec![layer]),
        "zero" if global.kind == TensorKind::Parameter => Holding::Placed(placed("dp=4", "dp:R")),
        "zero" => Holding::Flat(FlatShards::even(&placed("dp=4", "dp:R"), "dp").unwrap()),
        "ep" => Holding::Some(expert.map_or(vec![0, 1], |expert| vec![expert])),
        "tp x dp x pp" => {
            let base = placed(
                "pp=2 dp=2 tp=2",
                &format!("pp:R dp:R tp:{}", if global.shape.len() == 1 { "R" } else { rows }),
            );
            match global.kind {
                TensorKind::Parameter => Holding::Placed(base),
                _ => Holding::Flat(FlatShards::even(&base, "dp").unwrap()),
            }
        }
        _ => Holding::Some(vec![0]),
    }
}

fn carry(store: &dyn Store) {
    let globals = model();
    let options = SaveOptions { max_file_size: 1500, ..SaveOptions::default() };
    let ring = [("tp", 2), ("pp", 2), ("zero", 4), ("ep", 2), ("tp x dp x pp", 8), ("one", 1), ("tp", 2)];
    for (step, (name, ranks)) in ring.into_iter().enumerate() {
        let held: Vec<Holding> = globals.iter().map(|global| stage(name, global)).collect();
        threads::run(ranks, |world| {
            let mut state = state(&globals, &held, world.rank(), step == 0);
            if step > 0 {
                let before = step_folder(step as u64 - 1);
                load(&*world, store, &before, &mut state, &LoadOptions::default()).unwrap();
                compare(&state, &globals);
            } else {
                state.step = 12;
                state.files.insert("config.json".into(), b"{}"[..].into());
            }
            save(&*world, store, &step_folder(step as u64), &state, &options).unwrap();
        });
    }
    let (first, last) = (contents(store, &step_folder(0)), contents(store, &step_folder(6)));
    assert!(first.len() > 20);
    for (name, bytes) in &first {
        assert!(last.get(name) == Some(bytes), "{name} differs");
    }
    assert_eq!(first.len(), last.len());
}

#[test]
fn through_tensor_pipeline_zero_and_expert_parallel_and_back_in_memory() {
    carry(&Object::memory());
}

#[test]
fn through_tensor_pipeline_zero_and_expert_parallel_and_back_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    carry(&Local::new(folder.path()));
}
