//! The model card: what was merged, how, and from which bytes.

use crate::result::Outcome;
use std::fmt::Write;

/// A card of a merge with its recipe.
pub(crate) fn card(title: &str, recipe: &str, models: &[String], outcome: &Outcome) -> String {
    let mut text = String::from("---\nlibrary_name: transformers\ntags:\n- merge\n---\n");
    let _ = write!(text, "# {title}\n\nThis model was merged from others with planaria.\n\n## Models\n\n");
    for model in models {
        let _ = writeln!(text, "- `{model}`");
    }
    let tensors = outcome.tensors.len();
    let bytes: u64 = outcome.tensors.iter().map(|(_, values)| crate::result::bytes_of(values)).sum();
    let _ = write!(
        text,
        "\nIt has {tensors} tensors of {bytes} bytes.\n\n## Recipe\n\n```yaml\n{}\n```\n",
        recipe.trim_end()
    );
    text
}
