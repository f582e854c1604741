//! `planaria inspect`: the tensors of a checkpoint, from headers only.

mod cut;
mod tree;

use crate::exit::Exit;
use crate::filter::Filter;
use crate::quantity::{Bytes, count};
use crate::table::Table;
use crate::terminal::{Style, Terminal};
use anyhow::Result;
use cut::Cut;
use planaria_ckpt::formats::{Entry, Key, OpenOptions, Part, Source, open_url};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tree::{Leaf, Tree};

/// Show what a checkpoint holds: tensors, shapes, sizes, and how they are cut
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Reads headers only. Formats: Hugging Face, Paddle unified and flex checkpoints, .pdparams,\n\
    PyTorch DCP, torch.save, and our own folders."
)]
pub(crate) struct Args {
    /// Folder, file or URL of a checkpoint
    path: String,
    /// Only tensors whose name contains this, or is this pattern of `*` and `?`
    #[arg(long, value_name = "NAME")]
    filter: Vec<Filter>,
    /// List equal blocks one by one instead of `layers.0..23`
    #[arg(long)]
    all: bool,
    /// Which save of a Paddle flex folder that holds several
    #[arg(long, value_name = "NUMBER")]
    uid: Option<u64>,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let source = open_url(&args.path, &OpenOptions { uid: args.uid })?;
    for skipped in &source.skipped {
        terminal.warn(format_args!("left out {}: {}", skipped.what, skipped.why));
    }
    let chosen: Vec<(&Key, &Entry)> = source.tensors.iter().filter(|(key, _)| args.accepts(key)).collect();
    if terminal.json {
        let object = to_json(&args.path, &source, &chosen);
        terminal.object("planaria/inspect/1", &object)?;
        return Ok(Exit::Success);
    }
    print(args, terminal, &source, &chosen)?;
    Ok(Exit::Success)
}

impl Args {
    fn accepts(&self, key: &Key) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|filter| filter.accepts(&key.name))
    }
}

fn bytes_of(entry: &Entry) -> u64 {
    (entry.shape.numel() * entry.dtype.size()) as u64
}

fn print(args: &Args, terminal: &mut Terminal, source: &Source, chosen: &[(&Key, &Entry)]) -> Result<()> {
    let total: u64 = chosen.iter().map(|(_, entry)| bytes_of(entry)).sum();
    let files: BTreeSet<usize> = chosen.iter().flat_map(|(_, entry)| files_of(entry)).collect();
    let heading = terminal.paint(Style::Name, source.format.name());
    let (tensors, files) = (count(chosen.len(), "tensor"), count(files.len(), "file"));
    terminal.line(format!("{heading}: {tensors}, {} in {files}", Bytes(total)))?;
    let mut parts: BTreeMap<Part, Tree> = BTreeMap::new();
    for (key, entry) in chosen {
        let leaf = Leaf {
            spec: format!("{}{}", entry.dtype, entry.shape),
            bytes: bytes_of(entry),
            cut: Cut::of(entry).to_string(),
        };
        parts.entry(key.part).or_default().insert(&key.name, leaf);
    }
    let named = parts.len() > 1 || parts.keys().any(|part| *part != Part::Model);
    let mut table = Table::new(&[2]);
    for (part, tree) in &parts {
        table.row([String::new()]);
        if named {
            table.row([format!("{part}:"), String::new(), Bytes(tree.bytes()).to_string()]);
        }
        for line in tree.lines(!args.all) {
            let size = line.bytes.map_or(String::new(), |bytes| Bytes(bytes).to_string());
            let size = if line.count > 1 { format!("{} x {size}", line.count) } else { size };
            table.row([line.name, line.spec, size, line.cut]);
        }
    }
    let lines: Vec<String> = table.lines().collect();
    lines.iter().try_for_each(|line| terminal.line(line))
}

/// The files of the first copy of every box and of all others.
fn files_of(entry: &Entry) -> impl Iterator<Item = usize> + '_ {
    entry.tiles.boxes().flat_map(|(_, extents)| extents.iter().map(|extent| extent.file))
}

fn to_json(path: &str, source: &Source, chosen: &[(&Key, &Entry)]) -> Value {
    let tensors: Vec<Value> = chosen.iter().map(|(key, entry)| tensor_json(source, key, entry)).collect();
    let total: u64 = chosen.iter().map(|(_, entry)| bytes_of(entry)).sum();
    let elements: u64 = chosen.iter().map(|(_, entry)| entry.shape.numel() as u64).sum();
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
        "total": { "tensors": chosen.len(), "elements": elements, "bytes": total },
        "skipped": skipped,
        "extra": source.extra.keys().collect::<Vec<_>>(),
    })
}

fn tensor_json(source: &Source, key: &Key, entry: &Entry) -> Value {
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
        "dtype": entry.dtype.name(),
        "shape": entry.shape.dims(),
        "bytes": bytes_of(entry),
        "tiles": tiles,
    })
}
