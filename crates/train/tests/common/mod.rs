//! Models of the golden files with weights of their own, and how far results lie apart.

use flate2::read::GzDecoder;
use planaria_array::{Array, DType};
use planaria_nn::models::{Architecture, Models, Network, Stage};
use planaria_nn::{Init, Parallel};
use planaria_program::{Datum, run, verify};
use planaria_tensor::Tensor;
use planaria_train::programs::{Extent, Part, Sizes, eager, inputs, lowered, with_marks};
use std::io::Read;
use std::sync::Arc;

/// The weights that tests begin with.
fn init() -> Init {
    Init { seed: 7, ..Init::default() }
}

/// The configuration of a golden file, changed before it is read.
pub(crate) fn configured(name: &str, change: impl FnOnce(&mut serde_json::Value)) -> Arc<dyn Architecture> {
    let path = format!("{}/../../testdata/models/{name}.safetensors.gz", env!("CARGO_MANIFEST_DIR"));
    let mut bytes = Vec::new();
    GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    let size = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + size]).unwrap();
    let config = header["__metadata__"]["config"].as_str().unwrap();
    let mut config: serde_json::Value = serde_json::from_str(config).unwrap();
    change(&mut config);
    Models::default().open_json(&config.to_string()).unwrap()
}

/// The model of a golden file, on one rank or on several.
pub(crate) fn built(model: &dyn Architecture, parallel: Option<&Parallel>) -> Box<dyn Network> {
    model.build(&Stage::whole(model), parallel, &init()).unwrap()
}

/// The same on one rank, of a configuration that is changed before.
pub(crate) fn changed(name: &str, change: impl FnOnce(&mut serde_json::Value)) -> Box<dyn Network> {
    built(&*configured(name, change), None)
}

/// The model of a golden file.
pub(crate) fn network(name: &str) -> Box<dyn Network> {
    changed(name, |_| ())
}

pub(crate) fn bits(array: &Array) -> Vec<u32> {
    array.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// Relative to the largest value.
pub(crate) fn largest_difference(a: &Array, b: &Array) -> f64 {
    let (a, b) = (a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    let scale = a.iter().fold(1e-30f64, |most, x| most.max(f64::from(x.abs())));
    a.iter().zip(&b).fold(0.0f64, |most, (x, y)| most.max(f64::from((x - y).abs()))) / scale
}

/// Inputs with elements of their own: ids below a bound with marks where they are wanted, anything elsewhere.
pub(crate) fn drawn(network: &dyn Network, part: Part, sizes: &Sizes) -> Vec<(String, Tensor)> {
    let mut state = 11u64;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / f64::from(1u32 << 31)
    };
    let draw = |(name, tensor): (String, Tensor)| {
        let shape = tensor.shape().to_vec();
        let array = match (name.as_str(), tensor.dtype()) {
            ("position_ids" | "image_grid_thw", _) => tensor.local().clone(),
            (_, DType::I64) => {
                let ids: Vec<i64> = (0..tensor.numel()).map(|_| (next() * 16.0) as i64).collect();
                with_marks(network, tensor.local(), &Array::from_slice(&ids, &shape).unwrap()).unwrap()
            }
            _ => {
                let values: Vec<f32> = (0..tensor.numel()).map(|_| next() as f32 - 0.5).collect();
                Array::from_slice(&values, &shape).unwrap()
            }
        };
        (name, Tensor::new(array))
    };
    inputs(network, part, sizes).unwrap().into_iter().map(draw).collect()
}

pub(crate) fn data(given: &[(String, Tensor)]) -> Vec<Datum> {
    given.iter().map(|(_, tensor)| Datum::Array(tensor.local().clone())).collect()
}

/// Part of a model for any sizes, run with some, against the model itself.
pub(crate) fn open_and_compare(name: &str, network: &dyn Network, part: Part, all: &[Sizes]) {
    let extent = Extent::Open { longest: 64 };
    let (program, state) =
        lowered(network, part, extent).unwrap_or_else(|error| panic!("{name} {part:?}: {error}"));
    assert_eq!(verify(&program), [], "{name} {part:?}");
    let again = planaria_program::paddle::write(&program);
    assert_eq!(planaria_program::paddle::read(again.as_bytes()).unwrap(), program, "{name} {part:?}");
    for sizes in all {
        let given = drawn(network, part, sizes);
        let tensors: Vec<Tensor> = given.iter().map(|(_, tensor)| tensor.clone()).collect();
        let expected = eager(network, part, &tensors).unwrap();
        let found = run(&program, &mut state.clone(), &data(&given))
            .unwrap_or_else(|error| panic!("{name} {part:?} {sizes:?}: {error}"));
        for ((output, found), (_, expected)) in found.iter().zip(&expected) {
            let found = found.array().unwrap();
            assert_eq!(found.shape(), expected.local().shape(), "{name} {part:?} {sizes:?} {output}");
            let worst = largest_difference(expected.local(), found);
            assert!(worst <= 1e-5, "{name} {part:?} {sizes:?} {output}: {worst}");
        }
    }
}
