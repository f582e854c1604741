//! ONNX models: written, read again, and refused when damaged.

use crate::captured::{captured, result};
use planaria_array::Array;
use planaria_program::onnx::{export, import};
use planaria_program::{Captured, Extents, Program, ProgramState, lower, verify};

fn nothing(_: &str, _: u64, _: u64) -> std::io::Result<Vec<u8>> {
    Err(std::io::ErrorKind::NotFound.into())
}

/// A random program in Paddle's ops.
fn apart(seed: u64) -> (Program, ProgramState, planaria_tensor::Tensor) {
    let (Captured { program, state, .. }, x, _) = captured(seed);
    let (program, state) = lower(&program, &state, Extents::Fixed).unwrap();
    (program, state, x)
}

fn values(array: &Array) -> Vec<f32> {
    array.to_vec().unwrap()
}

#[test]
fn a_model_that_is_written_and_read_computes_the_same() {
    for seed in 0..40 {
        let (program, state, x) = apart(seed);
        let expected = values(&result(&program, &state, &x));
        let inside = export(&program, &state, None, &|_, _| None).unwrap();
        let beside = export(&program, &state, Some("m.data"), &|_, _| None).unwrap();
        assert!(inside.data.is_empty());
        let part = |name: &str, offset: u64, length: u64| {
            assert_eq!(name, "m.data");
            Ok(beside.data[offset as usize..(offset + length) as usize].to_vec())
        };
        for (again, state) in [
            import(&inside.model, &|_| None, &nothing).unwrap(),
            import(&beside.model, &|_| None, &part).unwrap(),
        ] {
            assert_eq!(verify(&again), [], "{seed}");
            let found = values(&result(&again, &state, &x));
            let scale = expected.iter().fold(1f32, |most, v| most.max(v.abs()));
            for (a, b) in expected.iter().zip(&found) {
                assert!((a - b).abs() <= 1e-5 * scale, "{seed}: {a} {b}");
            }
        }
    }
}

#[test]
fn models_that_end_too_early_are_errors_and_never_panics() {
    let (program, state, _) = apart(3);
    let model = export(&program, &state, None, &|_, _| None).unwrap().model;
    for length in (1..model.len()).step_by(7) {
        let _ = import(&model[..length], &|_| None, &nothing);
    }
    let error = import(b"not a model at all", &|_| None, &nothing).unwrap_err().to_string();
    assert!(error.starts_with("model: "), "{error}");
}

#[test]
fn elements_outside_the_folder_of_a_model_are_refused() {
    let (program, state, _) = apart(3);
    let model = export(&program, &state, Some("../secret"), &|_, _| None).unwrap().model;
    let error = import(&model, &|_| None, &|name, _, _| panic!("{name} was asked for")).unwrap_err();
    assert!(error.to_string().contains("'../secret', which is not beside the model"), "{error}");
}

#[test]
fn models_with_any_bit_changed_are_refused_or_read() {
    let (program, state, _) = apart(3);
    let model = export(&program, &state, None, &|_, _| None).unwrap().model;
    let mut refused = 0;
    for at in 0..model.len() {
        for bit in 0..8 {
            let mut damaged = model.clone();
            damaged[at] ^= 1 << bit;
            match import(&damaged, &|_| None, &nothing) {
                Ok((program, _)) => drop(verify(&program)),
                Err(_) => refused += 1,
            }
        }
    }
    // Most of a model are the elements of its parameters, where any bits are numbers.
    assert!(refused > 100, "only {refused} of {} are refused", 8 * model.len());
}
