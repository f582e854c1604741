//! The model card: what was merged, how, and from which bytes.

use crate::result::{Outcome, bytes_of};
use std::fmt::Write;

/// What the hashes are.
const HASHES: &str = "hashes are FNV-1a over names, types, shapes and CRC-32C of all tensors";

/// A card of a merge with its recipe, which stands in a file of this name.
pub(crate) fn card(
    title: &str,
    (file, recipe): (&str, &str),
    inputs: &[String],
    outcome: &Outcome,
) -> String {
    let mut text = String::from("---\nlibrary_name: transformers\ntags:\n- merge\n---\n");
    let _ = write!(text, "# {title}\n\nThis model was merged from others with planaria.\n\n## Models\n\n");
    for input in inputs {
        let _ = writeln!(text, "- {input}");
    }
    let tensors = outcome.tensors.len();
    let bytes: u64 = outcome.tensors.iter().map(|(_, values)| bytes_of(values)).sum();
    let kind = if file.ends_with(".json") { "json" } else { "yaml" };
    let _ = write!(
        text,
        "\nIt has {tensors} tensors of {bytes} bytes; {HASHES}.\n\n## Recipe\n\n```{kind}\n{}\n```\n",
        recipe.trim_end()
    );
    text
}

/// Lines below a recipe that say what it was read with.
pub(crate) fn comment(inputs: &[String]) -> String {
    let lines = inputs.iter().map(|input| format!("#   {input}\n"));
    std::iter::once(format!("# read by planaria; {HASHES}:\n")).chain(lines).collect()
}
