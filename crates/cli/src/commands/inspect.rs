//! `planaria inspect`: the tensors of a checkpoint, from headers only.

mod cut;
mod json;
mod tree;

use crate::checkpoint;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::filter::Filter;
use crate::quantity::{Bytes, count, parameters};
use crate::table::Table;
use crate::terminal::{Style, Terminal};
use anyhow::Result;
use cut::Cut;
use planaria::ckpt::examine::{Stats, stats};
use planaria::ckpt::formats::{Entry, Key, OpenOptions, Part, Source};
use planaria::ckpt::stream::Feed;
use std::collections::{BTreeMap, BTreeSet};
use tree::{Leaf, Tree};

/// Show what a checkpoint holds: tensors, shapes, sizes, and how they are sharded
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Reads headers only. Formats: Hugging Face, Paddle unified and flex checkpoints, .pdparams,\n\
    PyTorch DCP, torch.save, and our own folders."
)]
pub(crate) struct Args {
    /// Folder, file or URL of a checkpoint; the folder of a run stands for its newest one
    path: String,
    /// Only tensors whose name contains this, or is this pattern of `*` and `?`
    #[arg(long, value_name = "NAME")]
    filter: Vec<Filter>,
    /// List equal blocks one by one instead of `layers.0..23`
    #[arg(long)]
    all: bool,
    /// Read all values: minimum, maximum, mean, standard deviation, and NaNs
    #[arg(long)]
    stats: bool,
    /// Which save of a Paddle flex folder that holds several
    #[arg(long, value_name = "NUMBER")]
    uid: Option<u64>,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let source = checkpoint::open(&args.path, &OpenOptions { uid: args.uid }, terminal)?;
    for skipped in &source.skipped {
        terminal.warn(format_args!("left out {}: {}", skipped.what, skipped.why));
    }
    let chosen: Vec<(&Key, &Entry)> = source.tensors.iter().filter(|(key, _)| args.accepts(key)).collect();
    if chosen.is_empty() && !args.filter.is_empty() {
        let hint = "leave `--filter` out to see all names";
        return Err(Failure::usage("no tensor has such a name").hint(hint).into());
    }
    let found = if args.stats { Some(survey(terminal, &source, &chosen)?) } else { None };
    if terminal.json {
        let object = json::checkpoint(&args.path, &source, &chosen, found.as_deref());
        terminal.object("planaria/inspect/1", &object)?;
        return Ok(Exit::Success);
    }
    print(args, terminal, &source, &chosen, found.as_deref())?;
    Ok(Exit::Success)
}

/// The statistics of every chosen tensor.
fn survey(terminal: &Terminal, source: &Source, chosen: &[(&Key, &Entry)]) -> Result<Vec<Stats>> {
    let total: u64 = chosen.iter().map(|(_, entry)| bytes_of(entry)).sum();
    let progress = terminal.progress("reading", total);
    let feed = Feed::new(source);
    let found: Result<Vec<Stats>> =
        chosen.iter().map(|(key, _)| Ok(stats(&feed, key, &|bytes| progress.add(bytes))?)).collect();
    progress.finish();
    found
}

/// Statistics in a few words, as one column of the table.
fn in_words(stats: &Stats) -> String {
    if stats.count == 0 {
        return String::new();
    }
    let mut text = match stats.finite() {
        0 => "nothing finite".to_string(),
        _ => format!(
            "{} .. {}, mean {}, std {}",
            Short(stats.min),
            Short(stats.max),
            Short(stats.mean),
            Short(stats.std())
        ),
    };
    for (number, what) in [(stats.nan, "NaN"), (stats.inf, "Inf")] {
        if number > 0 {
            text.push_str(&format!(", {number} {what}"));
        }
    }
    text
}

/// A number with four digits that matter.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = self.0.abs();
        if size == 0.0 || (1e-3..1e5).contains(&size) {
            let digits = if size >= 1.0 { 3usize.saturating_sub(size.log10() as usize) } else { 4 };
            let text = format!("{:.digits$}", self.0);
            return f.write_str(if text.contains('.') {
                text.trim_end_matches('0').trim_end_matches('.')
            } else {
                &text
            });
        }
        write!(f, "{:.3e}", self.0)
    }
}

impl Args {
    fn accepts(&self, key: &Key) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|filter| filter.accepts(&key.name))
    }
}

fn bytes_of(entry: &Entry) -> u64 {
    (entry.shape.numel() * entry.dtype.size()) as u64
}

fn print(
    args: &Args,
    terminal: &mut Terminal,
    source: &Source,
    chosen: &[(&Key, &Entry)],
    found: Option<&[Stats]>,
) -> Result<()> {
    let total: u64 = chosen.iter().map(|(_, entry)| bytes_of(entry)).sum();
    let files: BTreeSet<usize> = chosen.iter().flat_map(|(_, entry)| files_of(entry)).collect();
    let heading = terminal.paint(Style::Name, source.format.name());
    let (tensors, files) = (count(chosen.len(), "tensor"), count(files.len(), "file"));
    let parameters = match source.parameters(chosen.iter().map(|(key, _)| *key)) {
        0 => String::new(),
        number => format!("{}, ", parameters(number)),
    };
    terminal.line(format!("{heading}: {tensors}, {parameters}{} in {files}", Bytes(total)))?;
    let mut parts: BTreeMap<Part, Tree> = BTreeMap::new();
    for (number, (key, entry)) in chosen.iter().enumerate() {
        let (spec, bytes) = (source.spec(key), bytes_of(entry));
        let note = found.map_or_else(|| Cut::of(entry).to_string(), |found| in_words(&found[number]));
        parts.entry(key.part).or_default().insert(&key.name, Leaf { spec, bytes, note });
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
            table.row([line.name, line.spec, size, line.note]);
        }
    }
    let lines: Vec<String> = table.lines().collect();
    lines.iter().try_for_each(|line| terminal.line(line))
}

/// The files of the first copy of every box and of all others.
fn files_of(entry: &Entry) -> impl Iterator<Item = usize> + '_ {
    entry.tiles.boxes().flat_map(|(_, extents)| extents.iter().map(|extent| extent.file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_that_matter() {
        let shown = |value: f64| Short(value).to_string();
        let cases = [
            (0.0, "0"),
            (1.5, "1.5"),
            (-12.3456, "-12.35"),
            (0.02, "0.02"),
            (1e-9, "1.000e-9"),
            (123456.0, "1.235e5"),
            (99999.0, "99999"),
        ];
        for (value, text) in cases {
            assert_eq!(shown(value), text);
        }
    }
}
