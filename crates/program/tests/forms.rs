//! Folders of every form that was ever written still load and compute what they did.

use planaria_program::{Datum, ProgramState, open_folder, paddle, read_tensors, run, save_folder};
use std::path::{Path, PathBuf};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// The form that is written today.
fn newest() -> u64 {
    let program = paddle::read(&std::fs::read(testdata("paddle-programs/mlp.json")).unwrap()).unwrap();
    let bytes = std::fs::read(testdata("paddle-programs/mlp.pdiparams")).unwrap();
    let state = ProgramState::read(&program, bytes.as_slice(), bytes.len() as u64).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (store, at) = planaria_store::locate(&folder.path().join("p").display().to_string()).unwrap();
    save_folder(&*store, &at, &program, &state).unwrap();
    let manifest = std::fs::read(folder.path().join("p/manifest.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&manifest).unwrap()["form"].as_u64().unwrap()
}

#[test]
fn a_folder_of_every_form_loads_and_computes_the_same() {
    let (store, at) =
        planaria_store::locate(&testdata("paddle-programs/mlp.io.safetensors").display().to_string())
            .unwrap();
    let recorded = read_tensors(&*store, &at).unwrap();
    let inputs = [Datum::Array(recorded["in.0"].clone())];
    for form in 1..=newest() {
        let folder = testdata(&format!("program-folders/form-{form}"));
        let (store, at) = planaria_store::locate(&folder.display().to_string())
            .unwrap_or_else(|error| panic!("keep a folder of form {form} as it was written: {error}"));
        let (program, mut state) = open_folder(&*store, &at).unwrap();
        let found = run(&program, &mut state, &inputs).unwrap();
        let (found, wanted) = (found[0].1.array().unwrap(), &recorded["out.0"]);
        for (a, b) in found.to_vec::<f32>().unwrap().iter().zip(&wanted.to_vec::<f32>().unwrap()) {
            assert!((a - b).abs() <= 1e-6, "form {form}: {a} {b}");
        }
    }
}
