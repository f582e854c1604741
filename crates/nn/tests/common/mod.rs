//! What the tests of models share: goldens, weights by name, comparisons.

#![allow(dead_code, unreachable_pub)]

use flate2::read::GzDecoder;
use planaria_array::{Array, DType};
use planaria_layout::Region;
use planaria_nn::models::{Decoder, DecoderConfig, Network, Stage};
use planaria_nn::{Init, Module, Parallel, Param};
use planaria_tensor::Tensor;
use std::collections::BTreeMap;
use std::io::Read;

/// Every golden model.
pub const MODELS: [&str; 14] = [
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
];

/// One file made by `testdata/models/make.py`.
pub struct Golden {
    pub config: DecoderConfig,
    pub tensors: BTreeMap<String, Array>,
}

impl Golden {
    pub fn read(name: &str) -> Golden {
        let path = format!("{}/../../testdata/models/{name}.safetensors.gz", env!("CARGO_MANIFEST_DIR"));
        let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut bytes = Vec::new();
        GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
        let (size, rest) = bytes.split_at(8);
        let (header, data) = rest.split_at(u64::from_le_bytes(size.try_into().unwrap()) as usize);
        let header: serde_json::Value = serde_json::from_slice(header).unwrap();
        let mut tensors = BTreeMap::new();
        for (name, entry) in header.as_object().unwrap() {
            if name == "__metadata__" {
                continue;
            }
            let numbers = |key: &str| -> Vec<usize> {
                entry[key].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
            };
            let (shape, at) = (numbers("shape"), numbers("data_offsets"));
            let bytes = &data[at[0]..at[1]];
            let array = match entry["dtype"].as_str().unwrap() {
                "F32" => {
                    let values: Vec<f32> =
                        bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
                    Array::from_slice(&values, &shape).unwrap()
                }
                "I64" => {
                    let values: Vec<i64> =
                        bytes.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
                    Array::from_slice(&values, &shape).unwrap()
                }
                other => panic!("dtype {other}"),
            };
            tensors.insert(name.clone(), array);
        }
        let config = header["__metadata__"]["config"].as_str().unwrap();
        Golden { config: DecoderConfig::from_json(config).unwrap(), tensors }
    }

    pub fn tensor(&self, name: &str) -> Tensor {
        Tensor::new(self.array(name).clone())
    }

    pub fn array(&self, name: &str) -> &Array {
        self.tensors.get(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// The whole model with the golden's weights, in this dtype.
    pub fn model(&self, parallel: Option<&Parallel>, dtype: DType) -> Decoder {
        self.stage(Stage::whole(&self.config), parallel, dtype)
    }

    pub fn stage(&self, stage: Stage, parallel: Option<&Parallel>, dtype: DType) -> Decoder {
        let init = Init { seed: 3, dtype, ..Init::default() };
        let mut model = Decoder::new(&self.config, stage, parallel, &init).unwrap();
        load(&mut model, |name| self.array(name).cast(dtype).unwrap());
        model
    }

    /// The golden gradient of a parameter, stacked where the parameter is.
    pub fn gradient(&self, param: &Param) -> Array {
        whole_of(param, |name| self.array(&format!("grad.{name}")).clone())
    }
}

/// The global value of a parameter, from its tensors on disk.
fn whole_of(param: &Param, tensor: impl Fn(&str) -> Array) -> Array {
    let name = |name: &String| param.tied().map_or(name.clone(), str::to_string);
    let parts: Vec<Array> = param.spec().files().iter().map(|file| tensor(&name(file))).collect();
    match param.spec().is_stacked() {
        true => planaria_array::ops::stack(&parts.iter().collect::<Vec<_>>(), 0).unwrap(),
        false => parts[0].clone(),
    }
}

/// Sets every parameter to its piece of the tensors on disk.
pub fn load(model: &mut impl Module, tensor: impl Fn(&str) -> Array) {
    model.visit_mut(&mut |param| {
        let whole = whole_of(param, &tensor);
        assert_eq!(whole.shape(), &param.spec().shape, "{}", param.name());
        let piece = match (param.leaf().layout(), param.leaf().world()) {
            (Some(layout), Some(world)) => {
                let boxes = layout.piece(world.rank()).unwrap().boxes();
                match &boxes[..] {
                    [region] => whole.region(region).unwrap().copy().unwrap(),
                    _ => Array::zeros(param.leaf().local().shape(), whole.dtype()).unwrap(),
                }
            }
            _ => whole.region(&Region::whole(&param.spec().shape)).unwrap().copy().unwrap(),
        };
        param.set_array(piece).unwrap();
    });
}

/// Largest difference, relative to the largest value expected.
pub fn difference(found: &Array, expected: &Array) -> f64 {
    assert_eq!(found.shape(), expected.shape());
    let values = |a: &Array| a.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
    let (found, expected) = (values(found), values(expected));
    let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let worst = found.iter().zip(&expected).fold(0.0f64, |m, (f, e)| {
        let d = (f - e).abs();
        if d.is_nan() { f64::INFINITY } else { m.max(d) }
    });
    if worst == 0.0 { 0.0 } else { worst / largest.max(f64::MIN_POSITIVE) }
}

/// Losses and gradients of one step, all whole.
pub struct Step {
    pub loss: f64,
    pub logits: Array,
    pub grads: BTreeMap<String, Array>,
}

/// Mean loss and its gradients, brought together on every rank.
pub fn step(model: &Decoder, golden: &Golden, run: &planaria_nn::models::Run<'_>) -> Step {
    let last = model.forward(golden.tensor("input_ids"), run).unwrap();
    let logits = planaria_tensor::no_grad(|| model.logits(&last.hidden)).unwrap().whole().unwrap();
    let loss = model.loss(&last, &golden.tensor("labels")).unwrap();
    let mean = loss.total().unwrap().mul_scalar(1.0 / loss.count as f64).unwrap();
    mean.backward().unwrap();
    let mut grads = BTreeMap::new();
    for param in model.params() {
        let grad = param.take_grad().unwrap().unwrap_or_else(|| panic!("{} has no gradient", param.name()));
        assert_eq!(grad.layout(), param.leaf().layout());
        grads.insert(param.name().to_string(), grad.whole().unwrap());
    }
    Step { loss: mean.whole().unwrap().item().unwrap().as_f64(), logits, grads }
}
