//! `planaria convert`: from any format to one we write, streaming, never half done.

mod names;
mod program;

use super::ranks::on_ranks;
use super::train::Started;
use crate::checkpoint;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::mapping::{self, Parts};
use crate::progress::Progress;
use crate::quantity::{Bytes, count};
use crate::signals::Signals;
use crate::table::Table;
use crate::terminal::{Style, Terminal};
use anyhow::Result;
use clap::ValueEnum;
use planaria::ckpt::convert::{Conversion, ConvertOptions, Cut, Observer, Ranks, To, plan};
use planaria::ckpt::formats::{Key, OpenOptions, Part, Source};
use planaria::ckpt::{Existing, OutputFolder};
use planaria::comm::CommExt;
use planaria::layout::DType;
use serde_json::json;
use std::collections::BTreeSet;

/// Convert a checkpoint: format, element type, file size, cut, names
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The target appears whole or not at all: it is written beside its place and moved there at the end.\n\
    A mapping (AOA) says how tensors become others: docs/concepts/mapping.md. Under `planaria launch -n N --engine processes --`,\n\
    on one host or several, ranks divide its files."
)]
pub(crate) struct Args {
    /// Checkpoint to read: folder, file or URL; the folder of a run stands for its newest one
    source: String,
    /// Folder to write
    target: String,
    /// Format to write
    #[arg(long, value_enum)]
    to: Form,
    /// Element type of the floating point tensors of the model, such as bf16
    #[arg(long, value_parser = float)]
    dtype: Option<DType>,
    /// How tensors are cut: `whole`, or `as-held` by the source (dcp, planaria)
    #[arg(long, value_enum, default_value_t, value_name = "CUT")]
    layout: Held,
    /// Names of tensors where a model has two kinds (qwen2_vl, qwen2_5_vl), and the config.json that goes with them; only to hf
    #[arg(long, value_enum, value_name = "NAMES", conflicts_with = "mapping")]
    names: Option<names::Names>,
    /// File with a mapping: its statements, or the JSON of an AOA configuration
    #[arg(long, visible_alias = "map", value_name = "FILE")]
    mapping: Option<String>,
    /// Tensor-parallel parts of the fused weights of the mapping, such as 2, or left:right, such as 2:4
    #[arg(long, value_name = "PARTS", requires = "mapping")]
    parts: Option<Parts>,
    /// Betas of the optimizer, where the checkpoint does not have them, such as 0.9,0.95
    #[arg(long, value_name = "BETAS", value_parser = betas)]
    betas: Option<(f64, f64)>,
    /// Write the running average of the weights as the model, without what only training needs
    #[arg(long)]
    ema: bool,
    /// Which save of a Paddle flex folder that holds several
    #[arg(long, value_name = "NUMBER")]
    uid: Option<u64>,
    #[command(flatten)]
    pub(super) output: Output,
    #[command(flatten)]
    programs: program::ProgramArgs,
}

/// A floating point type: weights are not rounded to whole numbers.
fn float(text: &str) -> Result<DType, String> {
    match text.parse::<DType>() {
        Ok(dtype) if dtype.is_float() => Ok(dtype),
        Ok(_) => Err("expected a floating point type, such as bf16".to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// What everything that writes a checkpoint accepts.
#[derive(Debug, clap::Args)]
pub(crate) struct Output {
    /// Most bytes in one file, unless a single tensor is larger
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    pub(super) max_shard_size: Bytes,
    /// Memory to stay below
    #[arg(long, value_name = "SIZE", default_value = "256MB")]
    pub(super) max_memory: Bytes,
    /// Say what would be written, and write nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Replace the checkpoint at the target
    #[arg(long)]
    pub(super) yes: bool,
}

/// A format that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// A Hugging Face folder of the model
    Hf,
    /// A PyTorch distributed checkpoint
    Dcp,
    /// A Paddle unified checkpoint
    PaddleUnified,
    /// Our own folder: safetensors files with a manifest
    Planaria,
    /// ONNX models that compute what the model computes: forward, and one step of decoding
    Onnx,
    /// Programs of Paddle 3.3 that compute what the model computes: forward, and one step of decoding
    PaddleProgram,
}

impl Form {
    /// The form of a checkpoint; programs are none.
    pub(super) fn of_checkpoint(self) -> Option<To> {
        match self {
            Form::Hf => Some(To::HuggingFace),
            Form::Dcp => Some(To::TorchDcp),
            Form::PaddleUnified => Some(To::PaddleUnified),
            Form::Planaria => Some(To::Planaria),
            Form::Onnx | Form::PaddleProgram => None,
        }
    }
}

/// How tensors are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Held {
    /// Every tensor in one piece
    #[default]
    Whole,
    /// As the source has them
    AsHeld,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let Some(to) = args.to.of_checkpoint() else { return program::run(args, terminal) };
    by_ranks(terminal, |ranks, terminal| convert(args, to, ranks, terminal))
}

/// Does the work alone, or as one of the ranks of a job, of which the first speaks for all.
pub(super) fn by_ranks(
    terminal: &mut Terminal,
    work: impl FnOnce(Option<Ranks<'_>>, &mut Terminal) -> Result<Exit>,
) -> Result<Exit> {
    let place = Started::find()?;
    if !place.is_first() {
        terminal.hush();
    }
    on_ranks(&place, |ranks| work(ranks, terminal))
}

fn convert(args: &Args, to: To, ranks: Option<Ranks<'_>>, terminal: &mut Terminal) -> Result<Exit> {
    let mapping = args.mapping.as_deref().map(|path| mapping::read(path, args.parts)).transpose()?;
    let (mut source, _served) =
        checkpoint::open_on(ranks, &args.source, &OpenOptions { uid: args.uid }, terminal)?;
    let averaged = if args.ema { take_averages(&mut source, &args.source)? } else { None };
    let config = args.names.map(|names| names.give(&mut source, &args.source, to)).transpose()?;
    for skipped in &source.skipped {
        terminal.warn(format_args!("left out {}: {}", skipped.what, skipped.why));
    }
    let options = ConvertOptions {
        dtype: args.dtype.or(averaged),
        max_shard_size: args.output.max_shard_size.0,
        cut: if args.layout == Held::AsHeld { Cut::AsHeld } else { Cut::Whole },
        mapping,
        betas: args.betas,
        max_memory: args.output.max_memory.0,
    };
    let mut conversion =
        plan(&source, to, &options).map_err(|error| mapping::blame(error, args.mapping.as_deref()))?;
    if let Some(config) = config {
        conversion.give(names::CONFIG, config);
    }
    carry_out(&conversion, (&args.source, &args.target), &args.output, ranks, terminal)
}

fn betas(text: &str) -> Result<(f64, f64), String> {
    let number = |text: &str| text.trim().parse().ok().filter(|beta| (0.0..1.0).contains(beta));
    let pair = text.split_once(',').and_then(|(first, second)| Some((number(first)?, number(second)?)));
    pair.ok_or_else(|| "expected two numbers below 1, as in 0.9,0.999".to_string())
}

/// Puts the running averages in the place of the parameters and leaves out what only training needs; the element type of
/// the parameters, where they have one.
fn take_averages(source: &mut Source, path: &str) -> Result<Option<DType>> {
    let all = std::mem::take(&mut source.tensors);
    if !all.keys().any(|key| key.part == Part::Ema) {
        let message = format!("'{path}' has no running average of the weights");
        return Err(Failure::usage(message).hint("runs with `optim.ema` keep one").into());
    }
    let (averages, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(key, _)| key.part == Part::Ema);
    let model = others.into_iter().filter(|(key, _)| key.part == Part::Model);
    source.tensors = model.collect();
    let mut types = BTreeSet::new();
    for (key, entry) in averages {
        let before = source.tensors.insert(Key::model(key.name), entry);
        types.extend(before.map(|before| before.dtype));
    }
    Ok(types.first().copied().filter(|_| types.len() == 1))
}

/// Reports, writes, and says what was written.
pub(super) fn carry_out(
    conversion: &Conversion<'_>,
    (source, target): (&str, &str),
    output: &Output,
    ranks: Option<Ranks<'_>>,
    terminal: &mut Terminal,
) -> Result<Exit> {
    for warning in conversion.warnings() {
        terminal.warn(warning);
    }
    let existing = if output.yes { Existing::Replace } else { Existing::Refuse };
    let carried = conversion.carried().iter().map(String::as_str);
    let names = conversion.files().map(|(name, _)| name).chain(carried);
    let folder = OutputFolder::check([source], target, existing, names)?;
    if !output.dry_run {
        let signals = Signals::watch()?;
        // Every rank has its share, and they go on together.
        let share = conversion.bytes() / ranks.map_or(1, |ranks| ranks.world.size() as u64);
        let observer = Watcher { progress: terminal.progress("converting", share), signals };
        let written = conversion.write_then(&folder, None, &observer, ranks, |store, name| -> Result<()> {
            planaria::train::embedding::unpack_folder(store, name)?;
            Ok(())
        });
        observer.progress.finish();
        if let Some(signal) = observer.signals.came() {
            return Err(Failure::signal(signal).into());
        }
        written?;
    }
    if ranks.is_some_and(|ranks| ranks.world.rank() > 0) {
        return Ok(Exit::Success);
    }
    print(conversion, target, output, terminal)?;
    terminal.flush()?;
    if let Some(warning) = conversion.out_of_range_warning() {
        terminal.warn(warning);
    }
    report_left_out(conversion, terminal);
    Ok(Exit::Success)
}

/// Shows progress, and stops the work when a signal comes.
pub(super) struct Watcher {
    pub(super) progress: Progress,
    pub(super) signals: Signals,
}

impl Observer for Watcher {
    fn moved(&self, bytes: u64) -> bool {
        self.progress.add(bytes);
        self.signals.came().is_none()
    }
}

/// The last line: everything of the source that the target does not have.
fn report_left_out(conversion: &Conversion<'_>, terminal: &Terminal) {
    let (tensors, values, files) =
        (conversion.left_out(), conversion.values_left_out(), conversion.files_left_out());
    let mut kinds = Vec::new();
    if let Some((first, why)) = tensors.first() {
        kinds.push(format!(
            "{} ({}: {why})",
            count(tensors.len(), "tensor"),
            few(&first.to_string(), tensors.len())
        ));
    }
    for (names, noun) in [(values, "value"), (files, "file")] {
        if let Some(first) = names.first() {
            kinds.push(format!("{} ({})", count(names.len(), noun), few(first, names.len())));
        }
    }
    if !kinds.is_empty() {
        terminal.warn(format_args!("left out {}", kinds.join(", ")));
    }
    for (key, why) in tensors {
        terminal.detail(format_args!("left out '{key}': {why}"));
    }
    for name in values.iter().chain(files) {
        terminal.detail(format_args!("left out '{name}'"));
    }
}

/// One of several names.
fn few(first: &str, number: usize) -> String {
    if number > 1 { format!("'{first}' is one") } else { format!("'{first}'") }
}

fn print(conversion: &Conversion<'_>, target: &str, output: &Output, terminal: &mut Terminal) -> Result<()> {
    let files: Vec<(&str, u64)> = conversion.files().collect();
    let tensors = conversion.tensors().len();
    if terminal.json {
        let listed: Vec<_> =
            files.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect();
        let lost = conversion.out_of_range();
        let lost: Vec<_> =
            lost.iter().map(|(key, count)| json!({ "tensor": key.to_string(), "values": count })).collect();
        let object = json!({
            "target": target,
            "written": !output.dry_run,
            "tensors": tensors,
            "bytes": conversion.bytes(),
            "files": listed,
            "out_of_range": lost,
            "left_out": conversion.left_out().len(),
            "left_out_values": conversion.values_left_out(),
            "left_out_files": conversion.files_left_out(),
        });
        return terminal.object("planaria/convert/1", &object);
    }
    if output.dry_run {
        let mut table = Table::new(&[1]);
        files.iter().for_each(|(name, bytes)| table.row([name.to_string(), Bytes(*bytes).to_string()]));
        let lines: Vec<String> = table.lines().collect();
        lines.iter().try_for_each(|line| terminal.line(line))?;
    }
    let verb = if output.dry_run { "would write" } else { "wrote" };
    let text = format!(
        "{verb} {} in {}, {}",
        count(tensors, "tensor"),
        count(files.len(), "file"),
        Bytes(conversion.bytes())
    );
    let text = terminal.paint(Style::Good, &text);
    terminal.line(format!("{text} to {target}"))
}
