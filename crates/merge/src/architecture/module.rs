//! The modules of an architecture: what reads text, what sees, and what stands between them, told apart by names of tensors.

use crate::model::Model;
use std::collections::BTreeSet;

/// The only module of most architectures.
pub(super) const DEFAULT: &str = "default";
/// What reads and writes text, where there is something beside it.
pub(super) const TEXT: &str = "text_decoder";
/// What writes, where something else reads.
pub(super) const DECODER: &str = "decoder";
const ENCODER: &str = "encoder";
/// What reader and writer have together.
const SHARED: &str = "shared";
const VISION: &str = "vision_tower";
const VISION_MODEL: &str = "vision_model";
const PROJECTOR: &str = "multi_modal_projector";

/// A module before its weights are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: &'static str,
    /// Whether numbers in its names may mean layers.
    pub(super) layered: bool,
}

/// The names of each module, the main one first.
pub(super) fn divided<'n>(names: &BTreeSet<&'n str>) -> Vec<(Part, BTreeSet<&'n str>)> {
    let mut seen: Vec<(&'static str, BTreeSet<&'n str>)> = Vec::new();
    let mut put = |module: &'static str, name: &'n str| match seen.iter_mut().find(|(one, _)| *one == module)
    {
        Some((_, names)) => drop(names.insert(name)),
        None => seen.push((module, BTreeSet::from([name]))),
    };
    let two = [ENCODER, DECODER].iter().all(|part| names.iter().any(|name| at_start(name, part)));
    let sees = names.iter().any(|name| beside(name).is_some());
    for &name in names {
        put(
            match beside(name) {
                Some(module) => module,
                None if sees => TEXT,
                None if two && at_start(name, ENCODER) => ENCODER,
                None if two && at_start(name, DECODER) => DECODER,
                None if two => SHARED,
                None => DEFAULT,
            },
            name,
        );
    }
    let main = |module: &str| ![DEFAULT, TEXT, DECODER].contains(&module);
    seen.sort_by_key(|(module, _)| (main(module), *module));
    let part = |name| Part { name, layered: ![PROJECTOR, SHARED].contains(&name) };
    seen.into_iter().map(|(module, names)| (part(module), names)).collect()
}

/// Whether a path begins with a part, in the model itself or in what it wraps.
fn at_start(name: &str, part: &str) -> bool {
    name.strip_prefix("model.").unwrap_or(name).split('.').next() == Some(part)
}

/// The module of a tensor that does not belong to text.
fn beside(name: &str) -> Option<&'static str> {
    let parts: Vec<&str> = name.split('.').collect();
    let has = |wanted: &[&str]| parts.iter().any(|part| wanted.contains(part));
    match () {
        () if has(&[PROJECTOR, "mm_projector"]) => Some(PROJECTOR),
        () if !has(&["visual", VISION, VISION_MODEL]) => None,
        () if has(&["merger", "deepstack_merger_list"]) => Some(PROJECTOR),
        () if has(&[VISION_MODEL]) && !has(&["visual", VISION]) => Some(VISION_MODEL),
        () => Some(VISION),
    }
}

/// Keys by which a configuration may tell the number of layers of a module.
pub(super) fn depth_keys(module: &str) -> &'static [&'static str] {
    match module {
        DEFAULT | TEXT => &[
            "num_hidden_layers",
            "n_layer",
            "num_layers",
            "n_layers",
            "text_config.num_hidden_layers",
            "text_config.n_layer",
            "text_config.num_layers",
            "text_config.n_layers",
        ],
        VISION | VISION_MODEL => &["vision_config.depth", "vision_config.num_hidden_layers"],
        ENCODER => &["encoder_layers", "num_layers"],
        DECODER => &["decoder_layers", "num_decoder_layers"],
        _ => &[],
    }
}

/// The first of some numbers that a configuration tells.
pub(super) fn told(model: &Model, keys: &[&str]) -> Option<usize> {
    let number = |key: &&str| key.split('.').fold(&model.config, |at, part| &at[part]).as_u64();
    keys.iter().find_map(number).map(|number| number as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(names: &[&str]) -> Vec<(&'static str, usize)> {
        divided(&names.iter().copied().collect())
            .into_iter()
            .map(|(part, all)| (part.name, all.len()))
            .collect()
    }

    #[test]
    fn names_tell_modules_apart() {
        assert_eq!(modules(&["model.layers.0.mlp.w", "lm_head.weight"]), [("default", 2)]);
        assert_eq!(
            modules(&[
                "visual.blocks.0.norm1.weight",
                "visual.merger.mlp.0.weight",
                "model.layers.0.mlp.up_proj.weight",
                "lm_head.weight"
            ]),
            [("text_decoder", 2), ("multi_modal_projector", 1), ("vision_tower", 1)]
        );
        assert_eq!(
            modules(&["vision_model.model.layers.0.fc1.weight", "language_model.model.norm.weight"]),
            [("text_decoder", 1), ("vision_model", 1)]
        );
        assert_eq!(
            modules(&["encoder.block.0.x", "decoder.block.0.x", "shared.weight"]),
            [("decoder", 1), ("encoder", 1), ("shared", 1)]
        );
        // An encoder alone is the whole model.
        assert_eq!(modules(&["encoder.layer.0.x", "embeddings.y"]), [("default", 2)]);
    }
}
