//! The small files that go with a model: configuration, tokenizer, code, templates, texts.

use super::To;
use super::ours::listed_files;
use crate::error::Result;
use crate::formats::{Format, Source};
use planaria_layout::DType;
use planaria_store::{EntryKind, StoreExt, join};
use serde_json::Value;

/// Largest file that is read to be copied.
pub(super) const COMPANION_BYTES: u64 = 256 << 20;

/// Largest file that counts as small where only its name speaks for it.
const SMALL: u64 = 64 << 20;

/// What stands beside the tensors of a source, by its name in the folder.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// Files that go along.
    pub(super) carried: Vec<String>,
    /// Files and folders that do not: the target has no place for them, or they are none of a checkpoint's.
    pub(super) left_out: Vec<String>,
}

/// Megatron keeps in it what is not sharded, beside a distributed checkpoint of torch.
const COMMON: &str = "common.pt";
/// Names the folders of a sentence-transformers model, whose parts stand in them.
const MODULES: &str = "modules.json";

/// The folder that a source stands in.
fn folder_of(source: &Source) -> Option<&str> {
    let first = source.files.first().map(|first| first.rsplit_once('/').map_or("", |(folder, _)| folder));
    source.folder.as_deref().or(first)
}

impl Beside {
    /// What goes to a target and what does not. Hidden files count as none.
    pub(super) fn of(source: &Source, to: To) -> Result<Beside> {
        let mut beside = Beside::default();
        let Some(folder) = folder_of(source) else { return Ok(beside) };
        let fits = |name: &str| name != COMMON || matches!(to, To::TorchDcp | To::Planaria);
        if let Some(listed) = listed_files(source) {
            (beside.carried, beside.left_out) = listed.into_iter().partition(|name| fits(name));
            return Ok(beside);
        }
        let entries = source.store.list(folder)?;
        let parts = match entries.iter().any(|entry| entry.short() == MODULES) {
            true if to == To::HuggingFace => submodules(source, folder),
            _ => Vec::new(),
        };
        for entry in &entries {
            let name = entry.short();
            let used =
                belongs_to_tensors(source, name) || source.skipped.iter().any(|skipped| skipped.what == name);
            match entry.kind {
                _ if used || name.starts_with('.') => {}
                EntryKind::File(size) if goes_along(source, name, size) && fits(name) => {
                    beside.carried.push(name.to_string());
                }
                // What lies beside a single file may have nothing to do with it.
                _ if source.folder.is_none() => {}
                EntryKind::File(_) => beside.left_out.push(name.to_string()),
                _ if parts.iter().any(|part| part == name) => beside.add_part(source, folder, name)?,
                _ => beside.left_out.push(format!("{name}/")),
            }
        }
        Ok(beside)
    }

    /// A part of a model in a folder of its own, copied as it is.
    fn add_part(&mut self, source: &Source, folder: &str, part: &str) -> Result<()> {
        for entry in source.store.walk(&join(folder, part))? {
            let name =
                entry.name.strip_prefix(folder).unwrap_or(&entry.name).trim_start_matches('/').to_string();
            match entry.kind {
                EntryKind::File(size) if size <= COMPANION_BYTES => self.carried.push(name),
                _ => self.left_out.push(name),
            }
        }
        Ok(())
    }

    /// What the library that reads a Hugging Face folder expects the files of weights to begin with: adapters (PEFT) and parts
    /// of diffusion pipelines have names of their own.
    pub(super) fn stem(&self, source: &Source) -> &'static str {
        const OWN: [&str; 2] = ["adapter_model", "diffusion_pytorch_model"];
        let short = |file: &String| file.rsplit('/').next().unwrap_or(file).to_string();
        let held: Vec<String> = source.files.iter().map(short).collect();
        if let Some(stem) = OWN.into_iter().find(|stem| held.iter().all(|file| file.starts_with(stem))) {
            return stem;
        }
        let has = |name: &str| self.carried.iter().any(|file| file == name);
        if has("adapter_config.json") && !has("config.json") {
            return OWN[0];
        }
        let config = folder_of(source).map(|folder| source.store.read(&join(folder, "config.json"), SMALL));
        let config: Option<Value> = config.and_then(|text| serde_json::from_slice(&text.ok()?).ok());
        if config.is_some_and(|config| !config["_diffusers_version"].is_null()) { OWN[1] } else { "model" }
    }
}

/// A file that goes along.
pub(super) fn read(source: &Source, name: &str) -> Result<Vec<u8>> {
    Ok(source.store.read(&join(folder_of(source).unwrap_or(""), name), COMPANION_BYTES)?)
}

/// A small file beside the tensors of a source, where it has one.
pub fn companion(source: &Source, name: &str) -> Result<Option<Vec<u8>>> {
    let Some(folder) = folder_of(source) else { return Ok(None) };
    match source.store.read(&join(folder, name), COMPANION_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(planaria_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The folders that `modules.json` names.
fn submodules(source: &Source, folder: &str) -> Vec<String> {
    let text = source.store.read(&join(folder, MODULES), SMALL).ok();
    let list: Option<Value> = text.and_then(|text| serde_json::from_slice(&text).ok());
    let paths = list.as_ref().and_then(Value::as_array).into_iter().flatten();
    paths.filter_map(|module| module["path"].as_str()).map(str::to_string).collect()
}

fn goes_along(source: &Source, name: &str, size: u64) -> bool {
    let whole = source.folder.is_some();
    let torch = source.format == Format::TorchDcp && name == COMMON;
    (is_known(name) || torch && whole) && size <= COMPANION_BYTES
        || whole && is_companion(name) && size <= SMALL
}

/// Whether a file, named within the folder of a checkpoint, is a part of it: it holds tensors or their index, makes the folder
/// a checkpoint, or is the configuration or tokenizer of a model.
pub fn belongs(source: &Source, name: &str) -> bool {
    let listed = || listed_files(source).is_some_and(|listed| listed.iter().any(|file| file == name));
    belongs_to_tensors(source, name) || is_known(name) || name == COMMON || listed()
}

/// Whether a file or folder holds tensors or their index, or makes the folder a checkpoint.
fn belongs_to_tensors(source: &Source, name: &str) -> bool {
    let full = join(folder_of(source).unwrap_or(""), name);
    let inner = format!("{full}/");
    ["COMMIT", "manifest.json", ".metadata"].contains(&name)
        || name.ends_with(".index.json")
        || name.ends_with(".auto_generated.metadata")
        || name.strip_suffix(".metadata").is_some_and(|uid| uid.bytes().all(|byte| byte.is_ascii_digit()))
        || source.files.iter().any(|file| *file == full || file.starts_with(&inner))
}

/// Files of configurations and tokenizers by name.
fn is_known(name: &str) -> bool {
    const NAMES: [&str; 12] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "preprocessor_config.json",
        "processor_config.json",
    ];
    NAMES.contains(&name) || name.starts_with("chat_template.")
}

/// Neither weights nor their index, nor the state of a training, nor what a checkpoint says about itself.
fn is_companion(name: &str) -> bool {
    const ENDINGS: [&str; 24] = [
        ".bin",
        ".ckpt",
        ".distcp",
        ".gguf",
        ".ggml",
        ".h5",
        ".index.json",
        ".lock",
        ".metadata",
        ".msgpack",
        ".npy",
        ".npz",
        ".onnx",
        ".ot",
        ".part",
        ".pdema",
        ".pdopt",
        ".pdparams",
        ".pkl",
        ".pt",
        ".pth",
        ".safetensors",
        ".tflite",
        ".tmp",
    ];
    const STARTS: [&str; 10] = [
        ".",
        "optimizer",
        "master_weights",
        "rng_state",
        "saved_signal",
        "scaler",
        "scheduler",
        "trainer_state",
        "training_args",
        "events.out.",
    ];
    const NAMES: [&str; 6] =
        ["COMMIT", "SAVING", "latest", "manifest.json", "training_state.json", "zero_to_fp32.py"];
    !name.contains(".safetensors")
        && !name.contains(".pdopt")
        && !ENDINGS.iter().any(|ending| name.ends_with(ending))
        && !STARTS.iter().any(|start| name.starts_with(start))
        && !NAMES.contains(&name)
}

/// A configuration that tells the element type of the weights, with another one; `None` where it tells none, or the same.
pub(super) fn with_dtype(config: &[u8], dtype: DType) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(config).ok()?;
    if !set_dtype(&mut value, dtype) {
        return None;
    }
    let mut text = serde_json::to_vec_pretty(&value).ok()?;
    text.push(b'\n');
    Some(text)
}

/// Sets the type in a configuration and in those of its parts (`text_config`); whether anything changed.
fn set_dtype(config: &mut Value, dtype: DType) -> bool {
    let name = crate::formats::write::torch_name(dtype);
    let mut changed = false;
    for (key, value) in config.as_object_mut().into_iter().flatten() {
        match key.as_str() {
            "dtype" | "torch_dtype" if value.is_string() && value != name => {
                *value = name.into();
                changed = true;
            }
            // How weights are packed has types of its own.
            "quantization_config" => {}
            part if part.ends_with("_config") => changed |= set_dtype(value, dtype),
            _ => {}
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tokenizers_go_with_a_model_and_training_files_do_not() {
        for name in [
            "tokenizer.json",
            "chat_template.jinja",
            "spiece.model",
            "qwen.tiktoken",
            "modeling_x.py",
            "README.md",
        ] {
            assert!(is_known(name) || is_companion(name), "{name}");
        }
        let others = [
            "trainer_state.json",
            "model.safetensors.index.json",
            "rng_state_0.pth",
            "manifest.json",
            "training_args.bin",
            "optimizer.safetensors.index.json",
            "optimizer.tp00_pp01.safetensors_shard_0001",
            "0.metadata",
            ".metadata",
            "pytorch_model.bin.index.json",
            "COMMIT",
            "scheduler.pt",
            "saved_signal_0",
            ".gitattributes",
        ];
        for name in others {
            assert!(!is_known(name) && !is_companion(name), "{name}");
        }
    }

    #[test]
    fn a_configuration_tells_the_type_that_the_weights_get() {
        let config = json!({
            "torch_dtype": "float32",
            "text_config": {"dtype": "float32", "vocab_size": 7},
            "quantization_config": {"dtype": "float32"},
            "dtype": null,
        });
        let text = with_dtype(&serde_json::to_vec(&config).unwrap(), DType::BF16).unwrap();
        let after: Value = serde_json::from_slice(&text).unwrap();
        let want = json!({
            "torch_dtype": "bfloat16",
            "text_config": {"dtype": "bfloat16", "vocab_size": 7},
            "quantization_config": {"dtype": "float32"},
            "dtype": null,
        });
        assert_eq!(after, want);
        assert_eq!(with_dtype(&text, DType::BF16), None, "the same already");
        assert_eq!(with_dtype(b"{}", DType::BF16), None);
        assert_eq!(with_dtype(b"no JSON", DType::BF16), None);
    }
}
