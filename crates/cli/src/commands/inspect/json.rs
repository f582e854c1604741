//! `planaria inspect --json`.

use super::{bytes_of, files_of};
use planaria::ckpt::examine::Stats;
use planaria::ckpt::formats::{Entry, Key, Source};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The whole object but its schema.
pub(super) fn checkpoint(
    path: &str,
    source: &Source,
    chosen: &[(&Key, &Entry)],
    found: Option<&[Stats]>,
) -> Value {
    let tensor = |(number, (key, entry)): (usize, &(&Key, &Entry))| {
        let mut object = tensor(source, key, entry);
        if let Some(found) = found {
            object["stats"] = stats(&found[number]);
        }
        object
    };
    let tensors: Vec<Value> = chosen.iter().enumerate().map(tensor).collect();
    let total: u64 = chosen.iter().map(|(_, entry)| bytes_of(entry)).sum();
    let elements: u64 =
        chosen.iter().map(|(key, _)| source.extents(key).iter().product::<usize>() as u64).sum();
    let parameters = source.parameters(chosen.iter().map(|(key, _)| *key));
    let used: BTreeSet<usize> = chosen.iter().flat_map(|(_, entry)| files_of(entry)).collect();
    let file = |number: &usize| {
        let name = &source.files[*number];
        let bytes = source.store.reader(name).map(|file| file.size()).ok();
        json!({ "name": name, "bytes": bytes })
    };
    let skipped: Vec<Value> =
        source.skipped.iter().map(|skipped| json!({ "what": skipped.what, "why": skipped.why })).collect();
    json!({
        "path": path,
        "format": source.format.name(),
        "tensors": tensors,
        "files": used.iter().map(file).collect::<Vec<_>>(),
        "total": { "tensors": chosen.len(), "elements": elements, "parameters": parameters, "bytes": total },
        "skipped": skipped,
        "extra": source.extra.keys().collect::<Vec<_>>(),
    })
}

fn tensor(source: &Source, key: &Key, entry: &Entry) -> Value {
    let mut tiles = Vec::new();
    for (region, extents) in entry.tiles.boxes() {
        for extent in extents {
            tiles.push(json!({
                "region": region.to_string(),
                "file": source.files[extent.file],
                "offset": extent.offset,
                "bytes": extent.len,
            }));
        }
    }
    json!({
        "part": key.part.name(),
        "name": key.name,
        "dtype": source.foreign.get(key).map_or(entry.dtype.name(), |foreign| foreign.name),
        "shape": source.extents(key),
        "bytes": bytes_of(entry),
        "tiles": tiles,
    })
}

/// Null where nothing is finite: JSON has no infinities.
fn stats(stats: &Stats) -> Value {
    let some = |value: f64| if stats.finite() > 0 { json!(value) } else { Value::Null };
    json!({
        "min": some(stats.min),
        "max": some(stats.max),
        "mean": some(stats.mean),
        "std": some(stats.std()),
        "nan": stats.nan,
        "inf": stats.inf,
        "zero": stats.zero,
    })
}
