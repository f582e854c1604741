//! Names on the way between formats, and the small files that go with a model.

use super::To;
use super::made::Made;
use crate::error::Result;
use crate::formats::{Format, Part, Source};
use planaria_aoa::split_slot;
use planaria_store::{EntryKind, join};
use std::collections::BTreeSet;

/// Largest small file that is copied.
pub(super) const COMPANION_BYTES: u64 = 256 << 20;

/// Our folders know optimizer state by weight and slot. Flex checkpoints keep optimizer state as `weight.moment1_0` and masters as `weight.w_0`; unified ones have a
/// part for each, and `weight/moment1_0`.
pub(super) fn translate(from: Format, to: To, made: &mut [Made]) {
    if to == To::Planaria {
        made.iter_mut().for_each(|made| made.key.name = super::ours::in_file(&made.key));
    }
    if from != Format::PaddleFlex || !matches!(to, To::PaddleUnified | To::Planaria) {
        return;
    }
    for made in made {
        let (name, slot) = split_slot(&made.key.name);
        let (part, name) = match slot {
            None => continue,
            Some(".w_0") => (Part::MasterWeights, name.to_string()),
            Some(slot) => (Part::Optimizer, format!("{name}/{}", slot.trim_start_matches('.'))),
        };
        made.key.part = part;
        made.key.name = name;
    }
}

/// Where a model was not saved because its master weights are, they are the model.
pub(super) fn masters_for_missing(made: &mut [Made]) {
    let model = made.iter().filter(|made| made.key.part == Part::Model).map(|made| made.key.name.clone());
    let model: BTreeSet<String> = model.collect();
    for made in made.iter_mut().filter(|made| made.key.part == Part::MasterWeights) {
        if !model.contains(&made.key.name) {
            made.key.part = Part::Model;
        }
    }
}

/// Configuration and tokenizer files beside the tensors of a source, with their folder.
pub(super) fn companions(source: &Source) -> Result<Vec<String>> {
    let Some(first) = source.files.first() else { return Ok(Vec::new()) };
    let folder = first.rsplit_once('/').map_or("", |(folder, _)| folder);
    if let Some(listed) = super::ours::listed_files(source) {
        return Ok(listed.into_iter().map(|name| join(folder, &name)).collect());
    }
    let mut found = Vec::new();
    for entry in source.store.list(folder)? {
        if matches!(entry.kind, EntryKind::File(size) if size <= COMPANION_BYTES)
            && is_companion(entry.short())
        {
            found.push(join(folder, entry.short()));
        }
    }
    Ok(found)
}

fn is_companion(name: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenizers_go_with_a_model_and_training_files_do_not() {
        assert!(is_companion("tokenizer.json") && is_companion("chat_template.jinja"));
        for name in ["trainer_state.json", "model.safetensors.index.json", "rng_state_0.pth", "manifest.json"]
        {
            assert!(!is_companion(name), "{name}");
        }
    }
}
