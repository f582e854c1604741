//! `planaria convert --to onnx` and `--to paddle-program`: a model as programs that others run, and whether they compute
//! the same.

mod validate;

use super::{Args, Form};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::table::Table;
use crate::terminal::{Style, Terminal};
use anyhow::Result;
use planaria::ckpt::{Existing, OutputFolder};
use planaria::nn::models::{Models, Network};
use planaria::program::{Program, ProgramState, paddle, write_stream};
use planaria::store::{Store, StoreExt, join};
use planaria::train::programs::{self, Extent, Part, Sizes};
use serde_json::json;
use std::path::{Path, PathBuf};

/// What is asked of programs.
#[derive(Debug, clap::Args)]
pub(crate) struct ProgramArgs {
    /// Run the programs and the model on random and edge inputs, and compare (onnx, paddle-program); exits 1 where they differ
    #[arg(long)]
    validate: bool,
    /// Python with onnx and onnxruntime, or with paddle, that runs the programs too
    #[arg(long, value_name = "PYTHON", requires = "validate")]
    python: Option<PathBuf>,
    /// Largest difference that counts as none, relative to the largest value of an output
    #[arg(long, value_name = "NUMBER", default_value_t = 1e-4)]
    tolerance: f64,
    /// Fixed sizes of the programs, as 2x16 for two rows of 16 tokens; otherwise any
    #[arg(long, value_name = "BATCHxLENGTH", value_parser = sizes)]
    sizes: Option<(usize, usize)>,
    /// The longest sequence that programs without fixed sizes take: they hold the rotations of as many positions
    #[arg(long, value_name = "TOKENS", default_value_t = 4096, conflicts_with = "sizes")]
    longest: usize,
}

fn sizes(text: &str) -> Result<(usize, usize), String> {
    let number = |text: &str| text.parse().ok().filter(|n| *n > 0);
    let pair = text.split_once('x').and_then(|(batch, length)| Some((number(batch)?, number(length)?)));
    pair.ok_or_else(|| "expected rows and tokens, as in 2x16".to_string())
}

/// The parts that are written, and the names of their files.
const PARTS: [(Part, &str); 2] = [(Part::Forward, "forward"), (Part::Decode, "decode")];

/// Those of models that see, for any pictures whatever the sizes of text are.
const SEEING: [(Part, &str); 2] = [(Part::Vision, "vision"), (Part::Prompt, "prompt")];

/// One part of a model as a program.
struct Made {
    part: Part,
    name: &'static str,
    program: Program,
    state: ProgramState,
    sizes: Option<Sizes>,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let network = programs::open(Path::new(&args.source), &Models::default())?;
    let mut made = Vec::new();
    let seeing = if network.seeing().is_some() { &SEEING[..] } else { &[] };
    for &(part, name) in PARTS.iter().chain(seeing) {
        let sizes = args.programs.sizes.filter(|_| !matches!(part, Part::Vision | Part::Prompt));
        let sizes = sizes.map(|(batch, length)| match part {
            Part::Decode => Sizes { batch, length: 1, past: length },
            _ => Sizes { batch, length, past: 0 },
        });
        let extent = sizes.map_or(Extent::Open { longest: args.programs.longest.max(1) }, Extent::Fixed);
        let lowered = programs::lowered(&*network, part, extent);
        let (program, state) = lowered.map_err(|error| advice(error, args))?;
        made.push(Made { part, name, program, state, sizes });
    }
    let existing = if args.output.yes { Existing::Replace } else { Existing::Refuse };
    let endings = if args.to == Form::Onnx { ["onnx", "onnx.data"] } else { ["json", "pdiparams"] };
    let names: Vec<String> =
        made.iter().flat_map(|made| endings.map(|ending| format!("{}.{ending}", made.name))).collect();
    let folder = OutputFolder::check(
        [args.source.as_str()],
        &args.target,
        existing,
        names.iter().map(String::as_str),
    )?;
    if args.output.dry_run {
        names.iter().try_for_each(|name| terminal.line(name))?;
        return Ok(Exit::Success);
    }
    folder.fill(|store, at| made.iter().try_for_each(|made| write(args.to, made, store, at)))?;
    if !args.programs.validate {
        names.iter().try_for_each(|name| terminal.line(format_args!("{}/{name}", args.target)))?;
        return Ok(Exit::Success);
    }
    report(args, &*network, &made, terminal)
}

/// Says which sizes may help where sizes cannot be left open.
fn advice(error: planaria::train::Error, args: &Args) -> anyhow::Error {
    match error.to_string().contains("fixed sizes") && args.programs.sizes.is_none() {
        true => Failure::usage(error.to_string()).hint("give the sizes, as in `--sizes 1x128`").into(),
        false => error.into(),
    }
}

fn write(form: Form, made: &Made, store: &dyn Store, at: &str) -> Result<()> {
    let file = |ending: &str| join(at, &format!("{}.{ending}", made.name));
    let Made { program, state, name, .. } = made;
    if form == Form::Onnx {
        let (beside, mut model) = (format!("{name}.onnx.data"), Vec::new());
        write_stream(store, &file("onnx.data"), &mut |out| {
            let made = programs::to_onnx(program, state, (&beside, out));
            model = made.map_err(|error| planaria::program::Error::State { what: error.to_string() })?;
            Ok(())
        })?;
        store.write(&file("onnx"), &model)?;
        return Ok(());
    }
    write_stream(store, &file("pdiparams"), &mut |out| state.write(program, out))?;
    store.write(&file("json"), paddle::write(program).as_bytes())?;
    Ok(())
}

fn report(args: &Args, network: &dyn Network, made: &[Made], terminal: &mut Terminal) -> Result<Exit> {
    let rows = validate::compare(args, network, made)?;
    let bad =
        rows.iter().filter(|row| row.relative.is_nan() || row.relative > args.programs.tolerance).count();
    if terminal.json {
        let row = |row: &validate::Row| {
            json!({ "program": row.program, "by": row.by, "inputs": row.inputs, "output": row.output,
                    "largest_difference": row.absolute, "relative": row.relative })
        };
        let all: Vec<_> = rows.iter().map(row).collect();
        terminal.object("planaria/convert-validate/1", &json!({ "equal": bad == 0, "outputs": all }))?;
    } else {
        let mut table = Table::new(&[4, 5]);
        table.row(
            ["program", "run by", "inputs", "output", "largest difference", "relative"].map(String::from),
        );
        for row in &rows {
            let numbers = [format!("{:.3e}", row.absolute), format!("{:.3e}", row.relative)];
            let [absolute, relative] = numbers;
            table.row([
                row.program.clone(),
                row.by.clone(),
                row.inputs.clone(),
                row.output.clone(),
                absolute,
                relative,
            ]);
        }
        table.lines().try_for_each(|line| terminal.line(line))?;
        let (style, word) = if bad == 0 { (Style::Good, "equal:") } else { (Style::Bad, "different:") };
        let word = terminal.paint(style, word);
        let most = args.programs.tolerance;
        terminal.line(format!("{word} {bad} of {} outputs differ by more than {most:e}", rows.len()))?;
    }
    Ok(if bad == 0 { Exit::Success } else { Exit::Negative })
}
