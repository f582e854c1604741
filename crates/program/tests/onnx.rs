//! ONNX models: written, read again, and refused when damaged.

use crate::captured::{captured, result};
use planaria_array::Array;
use planaria_array::ops::Binary;
use planaria_program::onnx::{export, import, import_open};
use planaria_program::{
    Captured, Datum, Extents, Function, Program, ProgramState, capture, lower, read_tensors, run, verify,
};
use planaria_tensor::Tensor;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

fn nothing(_: &str, _: u64, _: u64) -> std::io::Result<Vec<u8>> {
    Err(std::io::ErrorKind::NotFound.into())
}

/// A random program in Paddle's ops.
fn apart(seed: u64) -> (Program, ProgramState, Tensor) {
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
        let mut data = Vec::new();
        let beside = export(&program, &state, Some(("m.data", &mut data)), &|_, _| None).unwrap();
        let part = |name: &str, offset: u64, length: u64| {
            assert_eq!(name, "m.data");
            Ok(data[offset as usize..(offset + length) as usize].to_vec())
        };
        for (again, state) in
            [import(&inside, &|_, _| None, &nothing).unwrap(), import(&beside, &|_, _| None, &part).unwrap()]
        {
            assert_eq!(verify(&again), [], "{seed}");
            let found = values(&result(&again, &state, &x));
            let scale = expected.iter().fold(1f32, |most, v| most.max(v.abs()));
            for (a, b) in expected.iter().zip(&found) {
                assert!((a - b).abs() <= 1e-5 * scale, "{seed}: {a} {b}");
            }
        }
    }
}

/// Quotients rounded down, remainders with the sign of the divisor and running sums, of whole numbers with either sign.
#[test]
fn whole_numbers_are_divided_and_added_up_the_same_as_onnx() {
    let x = Tensor::from_slice(&[-7i64, -6, -1, 0, 1, 5, 6, 7, -8, 9, 2, -3], &[3, 4]).unwrap();
    let by = Tensor::from_slice(&[3i64, -3, 2, -5], &[4]).unwrap();
    let work = |given: &[Tensor]| {
        let quotient = given[0].binary(Binary::FloorDiv, &given[1])?;
        let rest = given[0].binary(Binary::Rem, &given[1])?;
        let sums = given[0].cumsum(0)?.add(&given[0].cumsum(1)?)?;
        Ok::<_, planaria_tensor::Error>(vec![
            ("quotient".to_string(), quotient),
            ("rest".to_string(), rest),
            ("sums".to_string(), sums),
        ])
    };
    let inputs = vec![("x".to_string(), x.clone()), ("by".to_string(), by.clone())];
    let function = Function { inputs, ..Function::default() };
    let Captured { program, state, .. } = capture(&function, work).unwrap();
    let expected = work(&[x.clone(), by.clone()]).unwrap();
    let (apart, held) = lower(&program, &state, Extents::Fixed).unwrap();
    let model = export(&apart, &held, None, &|_, _| None).unwrap();
    let read = import(&model, &|_, _| None, &nothing).unwrap();
    for (program, mut state) in [(apart, held), read] {
        let given = [&x, &by].map(|tensor| Datum::Array(tensor.local().clone()));
        let found = run(&program, &mut state, &given).unwrap();
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            let found = found.array().unwrap().to_vec::<i64>().unwrap();
            assert_eq!(found, expected.local().to_vec::<i64>().unwrap(), "{name}");
        }
    }
}

#[test]
fn models_that_end_too_early_are_errors_and_never_panics() {
    let (program, state, _) = apart(3);
    let model = export(&program, &state, None, &|_, _| None).unwrap();
    for length in (1..model.len()).step_by(7) {
        let _ = import(&model[..length], &|_, _| None, &nothing);
    }
    let error = import(b"not a model at all", &|_, _| None, &nothing).unwrap_err().to_string();
    assert!(error.starts_with("model: "), "{error}");
}

#[test]
fn elements_outside_the_folder_of_a_model_are_refused() {
    let (program, state, _) = apart(3);
    let model = export(&program, &state, Some(("../secret", &mut std::io::sink())), &|_, _| None).unwrap();
    let error = import(&model, &|_, _| None, &|name, _, _| panic!("{name} was asked for")).unwrap_err();
    assert!(error.to_string().contains("'../secret', which is not beside the model"), "{error}");
}

#[test]
fn models_with_any_bit_changed_are_refused_or_read() {
    let (program, state, _) = apart(3);
    let model = export(&program, &state, None, &|_, _| None).unwrap();
    let mut refused = 0;
    for at in 0..model.len() {
        for bit in 0..8 {
            let mut damaged = model.clone();
            damaged[at] ^= 1 << bit;
            match import(&damaged, &|_, _| None, &nothing) {
                Ok((program, _)) => drop(verify(&program)),
                Err(_) => refused += 1,
            }
        }
    }
    // Most of a model are the elements of its parameters, where any bits are numbers.
    assert!(refused > 100, "only {refused} of {} are refused", 8 * model.len());
}

/// Models that another writer made of Paddle's programs, with what Paddle computes.
#[test]
fn models_of_other_writers_are_read_and_run_to_the_recorded_outputs() {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/paddle-programs");
    for name in ["mlp", "encoder", "llama_block", "slicing"] {
        let model = unpacked(&testdata.join(format!("onnx/{name}.onnx")));
        let recorded = recorded(&testdata.join(format!("{name}.io.safetensors")));
        let shape = |at: usize, _: &str| Some(recorded[&format!("in.{at}")].shape().to_vec());
        // The writer of the encoder gave extents that must be equal names of their own: they are found out, or given.
        for read in [import_open(&model, &nothing), import(&model, &shape, &nothing)] {
            let (program, mut state) = read.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(verify(&program), [], "{name}");
            let inputs = program.inputs().len();
            let given: Vec<Datum> =
                (0..inputs).map(|at| Datum::Array(recorded[&format!("in.{at}")].clone())).collect();
            for (at, (_, found)) in run(&program, &mut state, &given).unwrap().iter().enumerate() {
                let (found, wanted) = (found.array().unwrap(), &recorded[&format!("out.{at}")]);
                assert_eq!(found.shape(), wanted.shape(), "{name} {at}");
                for (a, b) in values(found).iter().zip(&values(wanted)) {
                    assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{name} {at}: {a} {b}");
                }
            }
        }
    }
}

/// A file that may be packed.
fn unpacked(path: &Path) -> Vec<u8> {
    if let Ok(bytes) = std::fs::read(path) {
        return bytes;
    }
    let packed = std::fs::File::open(format!("{}.gz", path.display())).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    bytes
}

fn recorded(path: &Path) -> BTreeMap<String, Array> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("io"), unpacked(path)).unwrap();
    let (store, at) = planaria_store::locate(&folder.path().join("io").display().to_string()).unwrap();
    read_tensors(&*store, &at).unwrap()
}
