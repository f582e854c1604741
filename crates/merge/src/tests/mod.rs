//! Recipes over folders of a few numbers: what is planned, what is refused and where, and what adapters make of weights.

mod adapters;
mod lines;
mod planned;
mod refused;

use crate::{Merge, Options, Result, Root};
use half::bf16;
use planaria_ckpt::convert::{ConvertOptions, To};
use planaria_store::Local;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A tensor of a file: name, shape, values.
type Tensor<'t> = (&'t str, &'t [usize], &'t [f32]);

/// The embedding, final norm and head of a model without layers: vectors of two numbers for two tokens.
const EMBEDDING: &str = "model.embed_tokens.weight";
const NORM: Tensor<'static> = ("model.norm.weight", &[2], &[1.0, 1.0]);
const HEAD: &str = "lm_head.weight";

/// How numbers are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    F32,
    Bf16,
}

/// Models and adapters in a folder of their own.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn options(&self) -> Options {
        Options { root: Root::new(self.0.path()), ..Options::default() }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn tensors(&self, name: &str, stored: Stored, tensors: &[Tensor<'_>]) {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, shape, values) in tensors {
            let start = data.len();
            for value in *values {
                match stored {
                    Stored::F32 => data.extend(value.to_le_bytes()),
                    Stored::Bf16 => data.extend(bf16::from_f32(*value).to_le_bytes()),
                }
            }
            let dtype = if stored == Stored::F32 { "F32" } else { "BF16" };
            let about = json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] });
            header.insert((*name).to_string(), about);
        }
        let header = Value::Object(header).to_string().into_bytes();
        let all = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, all).unwrap();
    }

    /// A model of a kind with these tensors; layers are counted from their names.
    fn model(&self, name: &str, kind: &str, more: &Value, tensors: &[Tensor<'_>]) {
        let mut config = json!({ "model_type": kind, "architectures": [format!("{kind}ForCausalLM")] });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.write(&format!("{name}/config.json"), &config.to_string());
        self.tensors(&format!("{name}/model.safetensors"), Stored::F32, tensors);
    }

    /// A llama without layers.
    fn llama(&self, name: &str, embedding: &[f32; 4], head: &[f32; 4]) {
        let more = json!({ "num_hidden_layers": 0, "vocab_size": 2, "tie_word_embeddings": false });
        let tensors: [Tensor<'_>; 3] = [(EMBEDDING, &[2, 2], embedding), NORM, (HEAD, &[2, 2], head)];
        self.model(name, "llama", &more, &tensors);
    }

    fn adapter(&self, name: &str, config: &str, tensors: &[Tensor<'_>]) {
        self.write(&format!("{name}/adapter_config.json"), config);
        self.tensors(&format!("{name}/adapter_model.safetensors"), Stored::F32, tensors);
    }

    fn plan(&self, recipe: &str) -> Result<Merge> {
        crate::plan(recipe, &self.options())
    }
}

/// The values of a tensor of a result.
fn values(merge: &Merge, name: &str) -> Option<Vec<f64>> {
    let found = merge.computed().find(|(other, _)| other == name)?;
    Some(crate::values::whole(&*found.1).unwrap())
}

/// The configuration of a result as it is written.
fn config(merge: &Merge, file: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let conversion = merge.conversion(To::HuggingFace, &ConvertOptions::default()).unwrap();
    conversion.run(&Local::new(folder.path()), "", &()).unwrap();
    read(&folder.path().join(file))
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}
