//! `planaria reshard`: a checkpoint cut as the ranks of a mesh hold it.

use super::convert::{Output, by_ranks, carry_out};
use crate::checkpoint;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use clap::ValueEnum;
use planaria::ckpt::convert::{ConvertOptions, Cut, Ranks, To, plan};
use planaria::ckpt::formats::{Key, OpenOptions, Source};
use planaria::layout::{Layout, Mesh, TensorSpec};
use std::collections::BTreeMap;
use std::str::FromStr;

/// Shard a checkpoint as the ranks of a mesh hold it, one file per rank
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: planaria reshard run/step-00001000 out --mesh 'dp=2 tp=4' \\\n    \
    --layout '*.q_proj.weight=tp:S0' --layout '*.o_proj.weight=tp:S1'\n\
    The first layout whose pattern fits counts; tensors without one are written whole by the first rank.")]
pub(crate) struct Args {
    /// Checkpoint to read: folder, file or URL
    source: String,
    /// Folder to write
    target: String,
    /// The mesh, as in `dp=2 tp=4`
    #[arg(long)]
    mesh: Mesh,
    /// How tensors are cut: a name or pattern and its placements, as in `*.weight=tp:S0`
    #[arg(long, value_name = "PATTERN=PLACEMENTS", required = true)]
    layout: Vec<Rule>,
    /// Format to write
    #[arg(long, value_enum, default_value_t)]
    to: Form,
    /// Which save of a Paddle flex folder that holds several
    #[arg(long, value_name = "NUMBER")]
    uid: Option<u64>,
    #[command(flatten)]
    output: Output,
}

/// More ranks than any machine has; each of them gets a piece of every tensor.
const MOST_RANKS: usize = 1 << 16;

/// A format that holds tensors in pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Our own folder
    #[default]
    Planaria,
    /// A PyTorch distributed checkpoint
    Dcp,
}

/// A pattern of names and the placements of the tensors it fits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    pattern: String,
    placements: String,
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Rule, String> {
        match text.rsplit_once('=') {
            Some((pattern, placements)) if !pattern.is_empty() && !placements.is_empty() => {
                Ok(Rule { pattern: pattern.to_string(), placements: placements.to_string() })
            }
            _ => Err("expected PATTERN=PLACEMENTS, as in *.weight=tp:S0".to_string()),
        }
    }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let ranks = args.mesh.size();
    if ranks > MOST_RANKS {
        let hint = format!("at most {MOST_RANKS} ranks can each get files of their own");
        return Err(Failure::usage(format!("the mesh has {ranks} ranks")).hint(hint).into());
    }
    by_ranks(terminal, |ranks, terminal| cut(args, ranks, terminal))
}

fn cut(args: &Args, ranks: Option<Ranks<'_>>, terminal: &mut Terminal) -> Result<Exit> {
    let (source, _served) =
        checkpoint::open_on(ranks, &args.source, &OpenOptions { uid: args.uid }, terminal)?;
    let layouts = layouts(&source, &args.mesh, &args.layout)?;
    terminal.note(format_args!("{} of {} tensors are cut", layouts.len(), source.tensors.len()));
    let options = ConvertOptions {
        max_shard_size: args.output.max_shard_size.0,
        cut: Cut::Layouts(layouts),
        max_memory: args.output.max_memory.0,
        ..ConvertOptions::default()
    };
    let to = if args.to == Form::Dcp { To::TorchDcp } else { To::Planaria };
    let conversion = plan(&source, to, &options)?;
    carry_out(&conversion, (&args.source, &args.target), &args.output, ranks, terminal)
}

/// The layout of every tensor that a rule fits.
fn layouts(source: &Source, mesh: &Mesh, rules: &[Rule]) -> Result<BTreeMap<Key, Layout>> {
    let mut layouts = BTreeMap::new();
    let mut used = vec![false; rules.len()];
    for (key, entry) in &source.tensors {
        let Some(number) =
            rules.iter().position(|rule| planaria::store::pattern::matches(&rule.pattern, &key.name))
        else {
            continue;
        };
        used[number] = true;
        let text = format!("{}{} @ {}", entry.dtype, entry.shape, rules[number].placements);
        let layout = text.parse::<TensorSpec>().and_then(|spec| spec.on(mesh));
        let layout = layout.with_context(|| format!("tensor '{key}' cannot be cut like this"))?;
        if !layout.partial_axes().is_empty() {
            return Err(Failure::usage(format!("tensor '{key}' cannot be saved as a partial sum")).into());
        }
        layouts.insert(key.clone(), layout);
    }
    if let Some(number) = used.iter().position(|used| !used) {
        let pattern = &rules[number].pattern;
        let hint = "`planaria inspect` lists the names; the first pattern that fits a name counts";
        return Err(Failure::usage(format!("no tensor is cut by '{pattern}'")).hint(hint).into());
    }
    Ok(layouts)
}
