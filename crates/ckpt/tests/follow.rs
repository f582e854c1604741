//! Optimizer state, master weights and moving averages: they follow their parameters through mappings and between formats.

use crate::common::{opened, stored};
use planaria_aoa::Program;
use planaria_array::Array;
use planaria_ckpt::convert::{ConvertOptions, To, plan};
use planaria_ckpt::formats::{Key, Part, Source};
use planaria_ckpt::{Error, Item, SaveOptions, TensorKind, TrainState, save};
use planaria_comm::alone;
use planaria_layout::DType;
use planaria_store::{Object, Store};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

const FOLDER: &str = "ours";

fn array(from: usize, dims: &[usize], dtype: DType) -> Array {
    let numel: usize = dims.iter().product();
    let values: Vec<f32> = (0..numel).map(|i| (from + i) as f32).collect();
    Array::from_slice(&values, dims).unwrap().cast(dtype).unwrap()
}

fn slot(name: &str) -> TensorKind {
    TensorKind::Slot(name.to_string())
}

/// Two matrices and a vector, each with everything that goes with it; `powers` of the two matrices.
fn state(powers: [f32; 2]) -> TrainState {
    let mut items = Vec::new();
    for (number, (name, dims)) in [("gate", [4, 6]), ("up", [4, 6])].into_iter().enumerate() {
        let from = number * 100;
        items.push(Item::whole(TensorKind::Parameter, name, &array(from, &dims, DType::BF16)));
        items.push(Item::whole(TensorKind::Master, name, &array(from + 1000, &dims, DType::F32)));
        items.push(Item::whole(TensorKind::Ema, name, &array(from + 2000, &dims, DType::F32)));
        items.push(Item::whole(slot("moment1_0"), name, &array(from + 3000, &dims, DType::F32)));
        let power = Array::from_slice(&[powers[number]], &[1]).unwrap();
        items.push(Item::whole(slot("beta1_pow_acc_0"), name, &power));
    }
    items.push(Item::whole(TensorKind::Parameter, "norm", &array(9, &[6], DType::F32)));
    items.push(Item::whole(slot("moment1_0"), "norm", &array(90, &[6], DType::F32)));
    items.push(Item::whole(slot("rows"), "gate", &array(7, &[4], DType::F32)));
    items.push(Item::whole(slot("rows"), "norm", &array(8, &[3], DType::F32)));
    items.push(Item::whole(TensorKind::Buffer, "seen", &array(5, &[2], DType::I64)));
    let mut state = TrainState::new(items);
    state.step = 3;
    state.tied = BTreeMap::from([("head".to_string(), "gate".to_string())]);
    state
}

fn saved(state: &TrainState) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    save(&*alone(), &*store, FOLDER, state, &SaveOptions::default()).unwrap();
    store
}

fn with(text: &str) -> ConvertOptions {
    ConvertOptions { mapping: Some(Program::parse(text).unwrap().into()), ..ConvertOptions::default() }
}

fn read(source: &Source, part: Part, name: &str) -> (DType, Vec<usize>, Vec<f64>) {
    let key = Key { part, name: name.to_string() };
    let entry = source.get(&key).unwrap();
    let array = Array::from_bytes(&source.read(&key).unwrap(), &entry.shape, entry.dtype).unwrap();
    (entry.dtype, entry.shape.to_vec(), array.cast(DType::F64).unwrap().to_vec::<f64>().unwrap())
}

/// `a` over `b`, both transposed.
fn stacked(a: usize, b: usize) -> Vec<f64> {
    let turned = |from: usize| (0..24).map(move |i| (from + i % 4 * 6 + i / 4) as f64);
    turned(a).chain(turned(b)).collect()
}

#[test]
fn everything_follows_its_parameter_without_its_casts() {
    let store = saved(&state([0.9, 0.9]));
    let source = opened(&store, FOLDER).unwrap();
    let text = "gate^T, up^T -> both, axis=0\nboth -> fused, dtype=\"float16\"\nnorm -> ln.weight\n";
    let conversion = plan(&source, To::Planaria, &with(text)).unwrap();
    let left: Vec<String> = conversion.left_out().iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(left, ["optimizer:gate/rows"], "its shape is not that of the parameter");
    assert!(conversion.warnings().iter().any(|text| text.contains("'head' is not tied")));
    conversion.run(&*store, "mapped", &()).unwrap();
    let mapped = opened(&store, "mapped").unwrap();
    let expect = |part, name: &str, dtype, values: Vec<f64>| {
        assert_eq!(read(&mapped, part, name), (dtype, vec![12, 4], values), "{part} {name}");
    };
    expect(Part::Model, "fused", DType::F16, stacked(0, 100));
    expect(Part::MasterWeights, "fused", DType::F32, stacked(1000, 1100));
    expect(Part::Ema, "fused", DType::F32, stacked(2000, 2100));
    expect(Part::Optimizer, "fused/moment1_0", DType::F32, stacked(3000, 3100));
    let power = read(&mapped, Part::Optimizer, "fused/beta1_pow_acc_0");
    assert_eq!((power.1, power.2), (vec![1], vec![f64::from(0.9f32)]));
    // Renamed as it is, state of any shape goes along.
    assert_eq!(read(&mapped, Part::Optimizer, "ln.weight/rows").2, [8.0, 9.0, 10.0]);
    assert_eq!(mapped.tensors.len(), 9, "{:?}", mapped.tensors.keys());
    let again = planaria_ckpt::open(&*store, "mapped").unwrap();
    assert_eq!(again.state.step, 3);
    assert!(again.tensors.keys().any(|key| key.kind == TensorKind::Buffer && key.name == "seen"));
    assert!(again.state.tied.is_empty());
}

#[test]
fn tensors_that_become_one_must_agree_about_their_steps() {
    let store = saved(&state([0.9, 0.81]));
    let source = opened(&store, FOLDER).unwrap();
    let conversion = plan(&source, To::Planaria, &with("gate, up -> both, axis=0")).unwrap();
    let refused = conversion.run(&*store, "mapped", &()).unwrap_err();
    let names = ("optimizer:gate/beta1_pow_acc_0", "optimizer:up/beta1_pow_acc_0");
    assert!(
        matches!(&refused, Error::Disagree { first, second, .. } if (first.as_str(), second.as_str()) == names),
        "{refused}"
    );
    assert!(opened(&store, "mapped").is_err(), "nothing half done counts");
}

#[test]
fn state_that_only_some_of_the_joined_have_is_refused_by_name() {
    let mut state = state([0.9, 0.9]);
    state.items.retain(|item| !(item.name == "up" && item.kind == slot("moment1_0")));
    let store = saved(&state);
    let source = opened(&store, FOLDER).unwrap();
    let refused = plan(&source, To::Planaria, &with("gate, up -> both, axis=0")).unwrap_err().to_string();
    assert!(refused.contains("'optimizer:gate/moment1_0' and no 'optimizer:up/moment1_0'"), "{refused}");
    // A split gives both what the whole had.
    let split = plan(&source, To::Planaria, &with("gate -> g1, g2, axis=0")).unwrap();
    let names: Vec<String> = split.tensors().map(|(key, ..)| key.to_string()).collect();
    for name in ["optimizer:g1/moment1_0", "optimizer:g2/beta1_pow_acc_0", "master_weights:g2"] {
        assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
    }
}

#[test]
fn what_a_mapping_drops_or_declares_is_told() {
    let store = saved(&state([0.9, 0.9]));
    let source = opened(&store, FOLDER).unwrap();
    let conversion = plan(&source, To::Planaria, &with("gate -> _\n_ -> fresh\n")).unwrap();
    assert!(conversion.tensors().all(|(key, ..)| !key.name.starts_with("gate")));
    let left: Vec<String> = conversion.left_out().iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(left, ["fresh"]);
}

#[test]
fn a_cast_of_everything_leaves_state_in_its_precision() {
    let store = saved(&state([0.9, 0.9]));
    let source = opened(&store, FOLDER).unwrap();
    let options = ConvertOptions { dtype: Some(DType::F16), ..ConvertOptions::default() };
    let conversion = plan(&source, To::Planaria, &options).unwrap();
    for (key, dtype, _) in conversion.tensors().filter(|(_, dtype, _)| dtype.is_float()) {
        let expected = if key.part == Part::Model { DType::F16 } else { DType::F32 };
        assert_eq!(dtype, expected, "{key}");
    }
}

/// Bytes of all tensors and the values beside them.
fn everything(source: &Source) -> (BTreeMap<String, Vec<u8>>, BTreeMap<String, serde_json::Value>) {
    let tensors = source.tensors.keys().map(|key| (key.to_string(), source.read(key).unwrap())).collect();
    (tensors, source.extra.clone())
}

#[test]
fn a_torch_optimizer_goes_through_our_folder_and_back_unchanged() {
    let torch = stored("torch-dcp");
    let first = opened(&torch, "fsdp2_2").unwrap();
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    let options = ConvertOptions::default();
    plan(&first, To::Planaria, &options).unwrap().run(&*store, FOLDER, &()).unwrap();
    let ours = planaria_ckpt::open(&*store, FOLDER).unwrap();
    assert_eq!(ours.state.step, 1, "the step that all weights have taken");
    let kinds: Vec<&TensorKind> =
        ours.tensors.keys().filter(|key| key.name == "model.0.weight").map(|key| &key.kind).collect();
    assert_eq!(kinds, [&TensorKind::Parameter, &slot("moment1_0"), &slot("moment2_0"), &slot("step")]);
    let source = opened(&store, FOLDER).unwrap();
    plan(&source, To::TorchDcp, &options).unwrap().run(&*store, "dcp", &()).unwrap();
    assert_eq!(everything(&opened(&store, "dcp").unwrap()), everything(&first));
}

#[test]
fn paddle_gets_the_powers_of_the_betas_and_torch_its_steps_back() {
    let torch = stored("torch-dcp");
    let first = opened(&torch, "fsdp2_2").unwrap();
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    let options = ConvertOptions::default();
    let conversion = plan(&first, To::PaddleUnified, &options).unwrap();
    assert_eq!(conversion.warnings(), [""; 0], "the groups tell the betas");
    conversion.run(&*store, "unified", &()).unwrap();
    let unified = opened(&store, "unified").unwrap();
    let power = |slot: &str| read(&unified, Part::Optimizer, &format!("model.0.weight/{slot}"));
    assert_eq!(power("beta1_pow_acc_0"), (DType::F32, vec![1], vec![f64::from(0.9f32 * 0.9f32)]));
    assert_eq!(power("beta2_pow_acc_0").2, [f64::from(0.999f32 * 0.999f32)]);
    let back = plan(&unified, To::TorchDcp, &options).unwrap();
    assert!(back.warnings()[0].contains("betas"), "{:?}", back.warnings());
    back.run(&*store, "dcp", &()).unwrap();
    let dcp = opened(&store, "dcp").unwrap();
    let name = "optim.state.model.0.weight.step";
    assert_eq!(read(&dcp, Part::Model, name), (DType::F32, vec![], vec![1.0]));
    // Powers of other betas do not agree about the steps.
    let options = ConvertOptions { betas: Some((0.8, 0.9)), ..ConvertOptions::default() };
    let refused = plan(&unified, To::TorchDcp, &options).unwrap().run(&*store, "wrong", &()).unwrap_err();
    assert!(refused.to_string().contains("give the betas"), "{refused}");
}

#[test]
fn a_run_of_ours_tells_torch_its_steps_and_its_groups() {
    let mut state = state([0.9, 0.9]);
    state.items.retain(|item| item.kind != slot("beta1_pow_acc_0") && item.kind != slot("rows"));
    state.config = json!({ "optim": { "kind": "adamw", "beta1": 0.9, "beta2": 0.95, "lr": 0.5, "eps": 1e-8,
        "weight_decay": 0.1 } });
    let store = saved(&state);
    let source = opened(&store, FOLDER).unwrap();
    plan(&source, To::TorchDcp, &ConvertOptions::default()).unwrap().run(&*store, "dcp", &()).unwrap();
    let dcp = opened(&store, "dcp").unwrap();
    assert_eq!(read(&dcp, Part::Model, "optim.state.up.step").2, [3.0]);
    assert_eq!(dcp.extra["optim.param_groups.0.lr"], json!(0.5));
    assert_eq!(dcp.extra["optim.param_groups.0.params"], json!(["gate", "norm", "up"]));
    plan(&source, To::PaddleUnified, &ConvertOptions::default()).unwrap().run(&*store, "uni", &()).unwrap();
    let unified = opened(&store, "uni").unwrap();
    let fourth = 0.95f32 * 0.95 * 0.95 * 0.95;
    assert_eq!(read(&unified, Part::Optimizer, "up/beta2_pow_acc_0").2, [f64::from(fourth)]);
}

#[test]
fn a_mapping_renames_inside_a_torch_checkpoint() {
    let torch = stored("torch-dcp");
    let first = opened(&torch, "fsdp2_2").unwrap();
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    let text = "model.0.weight^T -> model.in.weight\nmodel.0.bias -> model.in.bias";
    plan(&first, To::TorchDcp, &with(text)).unwrap().run(&*store, "dcp", &()).unwrap();
    let dcp = opened(&store, "dcp").unwrap();
    assert_eq!(read(&dcp, Part::Model, "optim.state.in.weight.exp_avg").1, [6, 10]);
    assert_eq!(read(&dcp, Part::Model, "optim.state.in.weight.step").2, [1.0]);
    let names = json!(["in.weight", "in.bias", "1.weight", "1.bias", "2.weight"]);
    assert_eq!(dcp.extra["optim.param_groups.0.params"], names);
    assert!(dcp.tensors.keys().all(|key| !key.name.contains("state.0.")));
}

#[test]
fn the_state_of_a_flex_checkpoint_has_torchs_names_in_torch() {
    let flex = stored("paddle-checkpoints");
    let source = opened(&flex, "zero2_flat").unwrap();
    let conversion = plan(&source, To::TorchDcp, &ConvertOptions::default()).unwrap();
    let names: Vec<String> = conversion.tensors().map(|(key, ..)| key.to_string()).collect();
    for name in ["optim.state.lin.bias.exp_avg_sq", "optim.state.lin.bias.step", "master_weights:lin.bias"] {
        assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
    }
    assert_eq!(names.len(), 3 * 4, "two powers are one number of steps");
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    conversion.run(&*store, "dcp", &()).unwrap();
    let step = read(&opened(&store, "dcp").unwrap(), Part::Model, "optim.state.lin.bias.step");
    assert_eq!(step.2, [0.0], "0.9 and 0.95: the second beta was found");
}

#[test]
fn our_own_state_goes_through_torch_and_back() {
    let mut state = state([0.81, 0.81]);
    state.items.retain(|item| item.kind != slot("rows"));
    let store = saved(&state);
    let first = opened(&store, FOLDER).unwrap();
    let options = ConvertOptions::default();
    plan(&first, To::TorchDcp, &options).unwrap().run(&*store, "dcp", &()).unwrap();
    let dcp = opened(&store, "dcp").unwrap();
    plan(&dcp, To::Planaria, &options).unwrap().run(&*store, "back", &()).unwrap();
    let keys = |source: &Source| -> Vec<String> {
        let all = source.tensors.keys().map(Key::to_string);
        all.filter(|name| !name.ends_with("/step") && !name.ends_with("_pow_acc_0")).collect()
    };
    let back = opened(&store, "back").unwrap();
    assert_eq!(keys(&back), keys(&first));
    for (key, _) in first.tensors.iter().filter(|(key, _)| back.tensors.contains_key(key)) {
        assert!(first.read(key).unwrap() == back.read(key).unwrap(), "{key}");
    }
}
