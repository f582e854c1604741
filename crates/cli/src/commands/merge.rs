//! `planaria merge`: models merged by a recipe, streaming, never half done.

use super::convert::{Form, Watcher};
use super::ranks::on_ranks;
use super::train::Started;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::quantity::{Bytes, count};
use crate::signals::Signals;
use crate::table::Table;
use crate::terminal::{Style, Terminal};
use anyhow::{Context, Result};
use clap::ValueEnum;
use planaria::ckpt::convert::{Conversion, ConvertOptions};
use planaria::ckpt::{Existing, OutputFolder};
use planaria::merge::{Group, InputSummary, Inputs, Merge, Missing, Options, TensorPlan, plan_any};
use serde::Serialize;
use serde_json::json;

/// Merge models by a recipe: mergekit's YAML, stages, mixtures of experts, Paddle's JSON
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Paths in a recipe are relative to the current folder. The result appears whole or not at all; a merge that was \
    killed is\ncontinued by the same command. Under `planaria launch -n N --engine processes --` ranks divide its files.\n\
    docs/guide/merge.md lists methods and forms of recipes."
)]
pub(crate) struct Args {
    /// The recipe: a YAML file, or a `merge_config.json` of Paddle
    recipe: String,
    /// Folder to write
    #[arg(required_unless_present = "plan")]
    out: Option<String>,
    /// Say of every tensor of the result what it is made of, with its parameters, and do nothing
    #[arg(long)]
    plan: bool,
    /// What the inputs are
    #[arg(long, value_enum, default_value_t, value_name = "KIND")]
    inputs: MergeKind,
    /// With `--inputs tensors`: what to do about tensors that not all files have
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    missing: Rest,
    /// Seed of the methods that draw random numbers
    #[arg(long, visible_alias = "random-seed", default_value_t = 0)]
    seed: u64,
    /// Leave out tensors whose names match this pattern (`*`, `?`); may be given again
    #[arg(long, value_name = "PATTERN")]
    drop: Vec<String>,
    /// Write only tensors whose names match this pattern; may be given again
    #[arg(long, value_name = "PATTERN")]
    keep: Vec<String>,
    /// Copy tensors of the base that its architecture does not name
    #[arg(long)]
    keep_extra: bool,
    /// Merge models of different architectures, by the names of the first
    #[arg(long)]
    allow_crimes: bool,
    /// Where vocabularies differ in size, keep the rows that all have
    #[arg(long)]
    unsafe_truncate_embeddings: bool,
    /// Refuse a recipe that says anything without effect
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    pub(super) output: Output,
}

/// What everything that computes a model accepts.
#[derive(Debug, clap::Args)]
pub(crate) struct Output {
    /// Format to write
    #[arg(long, value_enum, default_value = "hf")]
    to: Form,
    /// Most bytes in one file, unless a single tensor is larger
    #[arg(long, visible_alias = "out-shard-size", value_name = "SIZE", default_value = "5GB")]
    max_shard_size: Bytes,
    /// Memory to stay below
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub(super) memory: Bytes,
    /// Say what would be read, computed and written, with sizes, and write nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Replace the checkpoint at the target
    #[arg(long)]
    yes: bool,
}

/// What is merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum MergeKind {
    /// Models with a configuration
    #[default]
    Models,
    /// Files of tensors without a model, name by name
    Tensors,
}

/// Tensors that not all files have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Rest {
    /// Refuse them
    #[default]
    Refuse,
    /// Leave them out
    Skip,
    /// Merge those that are there
    Take,
}

impl From<Rest> for Missing {
    fn from(rest: Rest) -> Missing {
        match rest {
            Rest::Refuse => Missing::Refuse,
            Rest::Skip => Missing::Skip,
            Rest::Take => Missing::Take,
        }
    }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let text = std::fs::read_to_string(&args.recipe)
        .with_context(|| format!("cannot read the recipe '{}'", args.recipe))?;
    let options = Options {
        seed: args.seed,
        allow_crimes: args.allow_crimes,
        truncate_embeddings: args.unsafe_truncate_embeddings,
        keep_extra: args.keep_extra,
        strict: args.strict,
        drop: args.drop.clone(),
        keep: args.keep.clone(),
        ..Options::default()
    };
    let inputs = match args.inputs {
        MergeKind::Models => Inputs::Models,
        MergeKind::Tensors => Inputs::Tensors(args.missing.into()),
    };
    let merge = plan_any(&text, inputs, &options);
    let merge = said_once(merge.with_context(|| format!("'{}' cannot be carried out", args.recipe)))?;
    let task = Task { doing: "merging", asked: format!("{args:?}\n{text}") };
    match &args.out {
        Some(out) if !args.plan => carry_out(&merge, &task, out, &args.output, terminal),
        _ => tell_plan(&merge, terminal),
    }
}

/// Every tensor of the result, from headers alone.
fn tell_plan(merge: &Merge, terminal: &mut Terminal) -> Result<Exit> {
    if !Started::find()?.is_first() {
        return Ok(Exit::Success);
    }
    merge.warnings().iter().for_each(|warning| terminal.warn(warning));
    let plans = merge.tensor_plans();
    if terminal.json {
        let tensor = |plan: &TensorPlan| {
            let (dtype, shape) = (plan.dtype.to_string(), plan.shape.to_vec());
            json!({ "stage": plan.stage, "name": plan.name, "dtype": dtype, "shape": shape, "what": plan.what })
        };
        let tensors: Vec<_> = plans.iter().map(tensor).collect();
        terminal.object("planaria/merge-plan/1", &json!({ "tensors": tensors }))?;
    } else {
        for TensorPlan { stage, name, dtype, shape, what } in &plans {
            let stage = stage.as_ref().map_or_else(String::new, |stage| format!("{stage}: "));
            terminal.line(format!("{stage}{name} {dtype} {shape}: {what}"))?;
        }
    }
    terminal.flush()?;
    Ok(Exit::Success)
}

/// What every rank of a job finds, the first one says.
pub(super) fn said_once<T>(found: Result<T>) -> Result<T> {
    let first = Started::find()?.is_first();
    found.map_err(|error| if first { error } else { Failure::reported(Exit::Usage).into() })
}

/// What is done, for messages, and all that was asked for, by which a task that was killed is known again.
pub(super) struct Task {
    pub(super) doing: &'static str,
    pub(super) asked: String,
}

/// Reports, writes, and says what was written.
pub(super) fn carry_out(
    merge: &Merge,
    task: &Task,
    target: &str,
    output: &Output,
    terminal: &mut Terminal,
) -> Result<Exit> {
    let place = Started::find()?;
    if place.is_first() {
        merge.warnings().iter().for_each(|warning| terminal.warn(warning));
        merge.remarks().iter().for_each(|remark| terminal.note(remark));
        report(merge, terminal);
    }
    let (conversion, folder) = said_once(ready(merge, target, output))?;
    if !output.dry_run {
        let signals = Signals::watch()?;
        // Every rank has its share, and they go on together.
        let share = conversion.bytes() / place.processes().unwrap_or(1) as u64;
        let observer = Watcher { progress: terminal.progress(task.doing, share), signals };
        let identity = merge.identity(&task.asked);
        let written = on_ranks(&place, |ranks| {
            Ok(conversion.write_to(&folder, identity.as_deref(), &observer, ranks)?)
        });
        observer.progress.finish();
        if let Some(signal) = observer.signals.came() {
            return Err(Failure::signal(signal).into());
        }
        let before = written?;
        if before > 0 && place.is_first() {
            let all = Bytes(conversion.bytes());
            terminal.note(format_args!("continued: {} of {all} were there already", Bytes(before)));
        }
    }
    if !place.is_first() {
        return Ok(Exit::Success);
    }
    print(merge, &conversion, target, output, terminal)?;
    terminal.flush()?;
    Ok(Exit::Success)
}

/// What a merge needs for its blocks.
const LEAST_MEMORY: u64 = 32_000_000;

/// How a result is written and where, checked before anything is.
pub(super) fn ready<'m>(
    merge: &'m Merge,
    target: &str,
    output: &Output,
) -> Result<(Conversion<'m>, OutputFolder)> {
    if output.memory.0 < LEAST_MEMORY {
        let message = format!("{} of memory are too few to merge in", Bytes(output.memory.0));
        return Err(Failure::usage(message).hint(format!("give at least {}", Bytes(LEAST_MEMORY))).into());
    }
    // Half of the memory holds blocks of inputs, half what is made of them.
    let options = ConvertOptions {
        max_shard_size: output.max_shard_size.0,
        max_memory: output.memory.0 / 2,
        ..ConvertOptions::default()
    };
    let Some(to) = output.to.of_checkpoint() else {
        let message = "a merge is written as a checkpoint, not as a program";
        return Err(Failure::usage(message).hint("merge first, then `planaria convert` the result").into());
    };
    let conversion = merge.conversion(to, &options)?;
    let existing = if output.yes { Existing::Replace } else { Existing::Refuse };
    let folder = {
        let files = conversion.files().map(|(name, _)| name);
        OutputFolder::check(merge.places(), target, existing, files)?
    };
    Ok((conversion, folder))
}

/// Lines of names before the rest is only counted.
const LINES: usize = 20;

/// Tensors that come and go, each with its bytes.
fn report(merge: &Merge, terminal: &Terminal) {
    let dropped = merge.dropped().iter().map(|(model, name, bytes)| (format!("'{name}' of {model}"), *bytes));
    let removed = merge.removed().iter().map(|(name, bytes)| (format!("'{name}'"), *bytes));
    let added = merge.added().iter().map(|(name, bytes)| (format!("'{name}'"), *bytes));
    let kinds: [(&str, Vec<(String, u64)>); 3] = [
        ("dropped, since the architecture does not name it:", dropped.collect()),
        ("left out as asked:", removed.collect()),
        ("added:", added.collect()),
    ];
    for (what, names) in kinds {
        for (number, (name, bytes)) in names.iter().enumerate() {
            let line = format!("{what} {name}, {}", Bytes(*bytes));
            if number < LINES { terminal.note(line) } else { terminal.detail(line) }
        }
        if names.len() > LINES {
            let bytes: u64 = names[LINES..].iter().map(|(_, bytes)| bytes).sum();
            terminal.note(format_args!(
                "{what} {} more, {} (-v lists them)",
                names.len() - LINES,
                Bytes(bytes)
            ));
        }
    }
    merge.notes().iter().for_each(|note| terminal.detail(note));
}

fn json_files<N: Serialize>(files: &[(N, u64)]) -> Vec<serde_json::Value> {
    files.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect()
}

fn json_input(input: &InputSummary) -> serde_json::Value {
    json!({
        "name": input.name,
        "format": input.format,
        "tensors": input.tensors,
        "bytes": input.bytes,
        "files": json_files(&input.files),
    })
}

fn json_group(group: &Group) -> serde_json::Value {
    json!({ "stage": group.stage, "what": group.what, "tensors": group.tensors, "bytes": group.bytes })
}

/// What would be read, computed and written, each with its size.
fn preview(merge: &Merge, files: &[(&str, u64)], terminal: &mut Terminal) -> Result<()> {
    let mut lines = vec!["read:".to_string()];
    for input in merge.inputs()? {
        let (tensors, bytes) = (count(input.tensors, "tensor"), Bytes(input.bytes));
        lines.push(format!("  {} ({}): {tensors}, {bytes}", input.name, input.format));
        lines.extend(sizes(&input.files, "    "));
    }
    lines.push("compute:".to_string());
    for group in merge.groups() {
        let stage = group.stage.map_or_else(String::new, |stage| format!("{stage}: "));
        let (tensors, bytes) = (count(group.tensors, "tensor"), Bytes(group.bytes));
        lines.push(format!("  {stage}{}: {tensors}, {bytes}", group.what));
    }
    lines.push("write:".to_string());
    lines.extend(sizes(files, "  "));
    lines.iter().try_for_each(|line| terminal.line(line))
}

/// Lines of files with their sizes; of very many the first.
fn sizes<N: ToString>(files: &[(N, u64)], indent: &str) -> Vec<String> {
    let mut table = Table::new(&[1]);
    let shown = &files[..files.len().min(LINES)];
    shown.iter().for_each(|(name, bytes)| table.row([name.to_string(), Bytes(*bytes).to_string()]));
    let mut lines: Vec<String> = table.lines().map(|line| format!("{indent}{line}")).collect();
    if files.len() > LINES {
        let bytes: u64 = files[LINES..].iter().map(|(_, bytes)| bytes).sum();
        lines.push(format!("{indent}{} more, {}", files.len() - LINES, Bytes(bytes)));
    }
    lines
}

fn print(
    merge: &Merge,
    conversion: &Conversion<'_>,
    target: &str,
    output: &Output,
    terminal: &mut Terminal,
) -> Result<()> {
    let files: Vec<(&str, u64)> = conversion.files().collect();
    let tensors = conversion.tensors().len();
    if terminal.json {
        let listed = json_files(&files);
        let inputs: Vec<_> = merge.inputs()?.iter().map(json_input).collect();
        let computed: Vec<_> = merge.groups().iter().map(json_group).collect();
        let dropped = merge.dropped().iter();
        let dropped: Vec<_> = dropped
            .map(|(model, name, bytes)| json!({ "model": model, "name": name, "bytes": bytes }))
            .collect();
        let object = json!({
            "target": target,
            "written": !output.dry_run,
            "tensors": tensors,
            "bytes_read": merge.read_bytes(),
            "bytes": conversion.bytes(),
            "files": listed,
            "inputs": inputs,
            "computed": computed,
            "dropped": dropped,
            "warnings": merge.warnings(),
        });
        return terminal.object("planaria/merge/1", &object);
    }
    if output.dry_run {
        preview(merge, &files, terminal)?;
    }
    let verb = if output.dry_run { "would read" } else { "read" };
    let wrote = if output.dry_run { "write" } else { "wrote" };
    let text = format!(
        "{verb} {}, {wrote} {} in {}, {}",
        Bytes(merge.read_bytes()),
        count(tensors, "tensor"),
        count(files.len(), "file"),
        Bytes(conversion.bytes())
    );
    let text = terminal.paint(Style::Good, &text);
    terminal.line(format!("{text} to {target}"))
}
