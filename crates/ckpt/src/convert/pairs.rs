//! The free text pairs in the headers of safetensors files, which go along from one Hugging Face folder to the next.

use crate::formats::{Format, Source, pairs_in};
use std::collections::BTreeMap;

/// Which library the tensors are for; transformers refuses files that do not say it.
const FORMAT: &str = "format";
/// What transformers knows.
const FORMATS: [&str; 4] = ["pt", "tf", "flax", "mlx"];

/// Whether tensors go through a mapping, which makes them those of torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    Kept,
    Mapped,
}

/// Pairs for the files of a Hugging Face folder: those of all files of the source, of which the first decides where they
/// contradict each other, and what to say about that.
pub(super) fn pairs(source: &Source, names: Names) -> (BTreeMap<String, String>, Vec<String>) {
    let mut all: BTreeMap<String, (String, &str)> = BTreeMap::new();
    let mut warnings = Vec::new();
    let files = pairs_in(source).filter(|_| source.format == Format::HuggingFace);
    for (file, found) in files {
        for (name, value) in found {
            let (first, of) = all.entry(name.clone()).or_insert_with(|| (value.clone(), file));
            if *first != value {
                warnings.push(format!(
                    "'{name}' in the metadata of '{file}' is not what it is in '{of}', which is kept"
                ));
            }
        }
    }
    let mut all: BTreeMap<String, String> = all.into_iter().map(|(name, (value, _))| (name, value)).collect();
    let keeps = |format: &String| names == Names::Kept && FORMATS.contains(&format.as_str());
    if !all.get(FORMAT).is_some_and(keeps) {
        all.extend(plain());
    }
    (all, warnings)
}

/// What files say that have nothing else to say.
pub(crate) fn plain() -> BTreeMap<String, String> {
    BTreeMap::from([(FORMAT.to_string(), FORMATS[0].to_string())])
}
