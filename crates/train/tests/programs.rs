//! Models as programs: every family captured, run, saved and loaded, with the bits of the model itself.

use crate::common::{bits, changed, data, drawn, largest_difference, network, open_and_compare};
use planaria_array::{Array, DType};
use planaria_nn::models::Network;
use planaria_program::{
    Captured, Datum, Origin, Program, ProgramState, open_folder, run, save_folder, verify,
};
use planaria_tensor::{Tensor, random};
use planaria_train::programs::{Extent, Part, Sizes, capture_model, eager, lowered, parameters};

/// Every family, and what some of them vary.
const MODELS: [&str; 16] = [
    "gpt2",
    "llama",
    "llama-bias",
    "mistral",
    "qwen2",
    "qwen2-tied",
    "qwen2-window",
    "qwen2-moe",
    "qwen2-moe-mixed",
    "qwen3",
    "qwen3-moe",
    "gemma2",
    "gemma3",
    "phi3",
    "phi3-long",
    "qwen2-5-vl",
];

/// Runs a captured part of a model on other inputs than it was captured with, and compares with the model.
fn compare(name: &str, part: Part, sizes: &Sizes, most: f64) -> (Box<dyn Network>, Captured) {
    let network = network(name);
    let captured =
        capture_model(&*network, part, sizes).unwrap_or_else(|error| panic!("{name} {part:?}: {error}"));
    assert_eq!(verify(&captured.program), [], "{name} {part:?}");
    let given = drawn(&*network, part, sizes);
    let tensors: Vec<Tensor> = given.iter().map(|(_, tensor)| tensor.clone()).collect();
    let expected = eager(&*network, part, &tensors).unwrap();
    let found = run(&captured.program, &mut captured.state.clone(), &data(&given)).unwrap();
    assert_eq!(found.len(), expected.len(), "{name} {part:?}");
    for ((found_name, found), (expected_name, expected)) in found.iter().zip(&expected) {
        assert_eq!(**found_name, **expected_name);
        let found = found.array().unwrap();
        if most == 0.0 {
            assert_eq!(bits(found), bits(expected.local()), "{name} {part:?} {found_name}");
        } else {
            let worst = largest_difference(expected.local(), found);
            assert!(worst <= most, "{name} {part:?} {found_name}: {worst}");
        }
    }
    (network, captured)
}

const FORWARD: Sizes = Sizes { batch: 2, length: 5, past: 0 };
const DECODE: Sizes = Sizes { batch: 2, length: 1, past: 4 };

#[test]
fn every_family_captured_has_the_bits_of_the_model() {
    for name in MODELS {
        compare(name, Part::Forward, &FORWARD, 0.0);
        compare(name, Part::Decode, &DECODE, 0.0);
    }
}

#[test]
fn forward_and_backward_are_one_program_with_the_bits_of_the_model() {
    for name in MODELS {
        // Experts are added up in another order where every one of them computes every row.
        let most = if name.contains("moe") { 1e-5 } else { 0.0 };
        let (network, captured) = compare(name, Part::Gradients, &FORWARD, most);
        // Nothing flows to what looks at pictures where none are shown.
        let wanted = parameters(&*network).iter().filter(|(name, _)| !name.contains("visual.")).count();
        assert_eq!(captured.program.outputs().len(), wanted + 1, "{name}: a gradient for each parameter");
        let mut backward = 0;
        captured.program.visit(&mut |op| {
            if let Some((composite, instance)) = Origin::of(op).0.first() {
                assert!(composite.ends_with("_grad") && *instance > 0, "{composite}#{instance}");
                backward += 1;
            }
        });
        assert!(backward > 10, "{name}: {backward} ops say whose gradient they compute");
    }
}

#[test]
fn programs_of_every_family_take_any_batch_and_length() {
    let sizes = |batch, length, past| Sizes { batch, length, past };
    for name in MODELS {
        let network = network(name);
        open_and_compare(name, &*network, Part::Forward, &[sizes(1, 1, 0), sizes(4, 9, 0), sizes(1, 40, 0)]);
        open_and_compare(name, &*network, Part::Decode, &[sizes(1, 1, 1), sizes(4, 1, 9), sizes(1, 1, 40)]);
    }
}

#[test]
fn windows_and_rotations_of_sequences_longer_than_the_examples_are_in_the_program() {
    let long = [Sizes { batch: 1, length: 50, past: 0 }, Sizes { batch: 2, length: 29, past: 0 }];
    for name in ["mistral", "gemma2", "gemma3"] {
        let network = changed(name, |config| config["sliding_window"] = 30.into());
        open_and_compare(name, &*network, Part::Forward, &long);
    }
    let network = changed("phi3-long", |config| {
        config["original_max_position_embeddings"] = 32.into();
        config["rope_parameters"]["original_max_position_embeddings"] = 32.into();
    });
    open_and_compare("phi3-long", &*network, Part::Forward, &long);
    let ends = [31, 32].map(|past| Sizes { batch: 2, length: 1, past });
    open_and_compare("phi3-long", &*network, Part::Decode, &ends);
}

#[test]
fn a_program_holds_what_it_reads_and_nothing_else() {
    let network = network("qwen2-5-vl");
    let (program, state) =
        lowered(&*network, Part::Forward, Extent::Fixed(FORWARD)).unwrap_or_else(|error| panic!("{error}"));
    let all = parameters(&*network);
    let seeing = all.iter().filter(|(name, _)| name.contains("visual.")).count();
    let held = |name: &str| program.held().iter().any(|held| &*held.name == name);
    assert!(seeing > 10);
    for (name, _) in all {
        assert_eq!(held(&name), !name.contains("visual."), "{name}");
        assert_eq!(state.get(&name).is_some(), held(&name), "{name}");
    }
}

#[test]
fn a_saved_program_has_structured_names_and_the_same_bits() {
    let (network, captured) = compare("qwen3", Part::Forward, &FORWARD, 0.0);
    let folder = tempfile::tempdir().unwrap();
    let (store, at) = planaria_store::locate(&folder.path().join("p").display().to_string()).unwrap();
    save_folder(&*store, &at, &captured.program, &captured.state).unwrap();
    let (program, mut state): (Program, ProgramState) = open_folder(&*store, &at).unwrap();
    for (name, tensor) in parameters(&*network) {
        let held = state.get(&name).and_then(Datum::array).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(bits(held), bits(tensor.local()), "{name}");
    }
    let given = drawn(&*network, Part::Forward, &FORWARD);
    let first = run(&program, &mut state, &data(&given)).unwrap();
    let again = run(&captured.program, &mut captured.state.clone(), &data(&given)).unwrap();
    assert_eq!(bits(first[0].1.array().unwrap()), bits(again[0].1.array().unwrap()));
    // Other values by structured name change what it computes.
    let name = "model.norm.weight";
    let twice =
        state.get(name).unwrap().array().unwrap().mul(&Array::scalar(2.0, DType::F32).unwrap()).unwrap();
    state.set(&program, name, twice).unwrap();
    let changed = run(&program, &mut state, &data(&given)).unwrap();
    assert_ne!(bits(changed[0].1.array().unwrap()), bits(again[0].1.array().unwrap()));
    let wrong = Array::zeros(&[3], DType::F32).unwrap();
    let error = state.set(&program, name, wrong.clone()).unwrap_err().to_string();
    assert!(error.contains("model.norm.weight") && error.contains("f32[3]"), "{error}");
    let error = state.set(&program, "model.norm.wieght", wrong).unwrap_err().to_string();
    assert!(error.contains("did you mean model.norm.weight"), "{error}");
    random::seed(0);
}
