//! The small files that go with a model: configuration, tokenizer, code, templates, texts.

use super::ours::listed_files;
use crate::error::Result;
use crate::formats::Source;
use planaria_layout::DType;
use planaria_store::{EntryKind, join};
use serde_json::Value;

/// Largest file that is read to be copied.
pub(super) const COMPANION_BYTES: u64 = 256 << 20;

/// Largest file that counts as small where only its name speaks for it.
const SMALL: u64 = 64 << 20;

/// Small files beside the tensors of a source, with their folder.
pub(super) fn companions(source: &Source) -> Result<Vec<String>> {
    let first = source.files.first().map(|first| first.rsplit_once('/').map_or("", |(folder, _)| folder));
    let Some(folder) = source.folder.as_deref().or(first) else { return Ok(Vec::new()) };
    if let Some(listed) = listed_files(source) {
        return Ok(listed.into_iter().map(|name| join(folder, &name)).collect());
    }
    // What lies beside a single file may have nothing to do with it.
    let goes_along = |name: &str, size: u64| match source.folder {
        Some(_) => is_known(name) && size <= COMPANION_BYTES || is_companion(name) && size <= SMALL,
        None => is_known(name) && size <= COMPANION_BYTES,
    };
    let mut found = Vec::new();
    for entry in source.store.list(folder)? {
        let name = join(folder, entry.short());
        if matches!(entry.kind, EntryKind::File(size) if goes_along(entry.short(), size))
            && !source.files.contains(&name)
        {
            found.push(name);
        }
    }
    Ok(found)
}

/// Whether a file, named within the folder of a checkpoint, is a part of it: it holds tensors or their index, makes the folder
/// a checkpoint, or is the configuration or tokenizer of a model.
pub fn belongs(source: &Source, name: &str) -> bool {
    let full = join(source.folder.as_deref().unwrap_or(""), name);
    let listed = || listed_files(source).is_some_and(|listed| listed.iter().any(|file| file == name));
    let marks = ["COMMIT", "manifest.json", ".metadata"].contains(&name)
        || name.ends_with(".index.json")
        || name.strip_suffix(".metadata").is_some_and(|uid| uid.bytes().all(|byte| byte.is_ascii_digit()));
    source.files.contains(&full) || marks || is_known(name) || listed()
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
