//! `planaria program`: look at, check, run, compare, patch and move programs of Paddle.

mod files;
mod run;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::quantity::count;
use crate::table::Table;
use crate::target::{self, Existing};
use crate::terminal::{Style, Terminal};
use anyhow::{Context, Result};
pub(super) use files::beside;
use files::{Loaded, load, read_program};
use planaria::program::{self, Program, paddle};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Programs of Paddle and ONNX models: show, verify, run, diff, patch, import, export
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A program is Paddle's NAME.json (Paddle 3.0 to 3.3) with NAME.pdiparams beside it, NAME.onnx, or a folder that `import` made.\n\
    `planaria convert MODEL OUT --to onnx` or `--to paddle-program` makes programs of a model."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Print a program as text: inputs, parameters, ops, outputs
    Show(Show),
    /// Check a program and its parameters; exits 3 when something is wrong
    Verify(One),
    /// Run a program on the tensors of a safetensors file
    Run(run::Args),
    /// Compare two programs op by op; exits 1 when they differ
    Diff(Diff),
    /// Write a program in another version of Paddle's ops, or changed by a patch file
    Patch(Patch),
    /// Write a program and its parameters as a folder of ours
    Import(Move),
    /// Write a program and its parameters as files of Paddle, NAME.json and NAME.pdiparams, or as NAME.onnx
    Export(Move),
}

#[derive(Debug, clap::Args)]
struct One {
    /// The program
    program: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Show {
    /// The program
    program: PathBuf,
    /// Print what it takes and gives and how often each op occurs, no ops
    #[arg(long)]
    summary: bool,
    /// Draw it into a file instead
    #[arg(long, value_name = "OUT.svg", conflicts_with = "summary")]
    svg: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "svg")]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct Diff {
    /// One program
    first: PathBuf,
    /// The other
    second: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Patch {
    /// The program
    program: PathBuf,
    /// The file to write
    #[arg(value_name = "OUT.json")]
    out: PathBuf,
    /// The version to write: 1 (Paddle 3.0), 2 (3.1), 3 (3.2) or 4 (3.3)
    #[arg(long, value_name = "VERSION", required_unless_present = "with")]
    to: Option<u64>,
    /// A patch file to apply first
    #[arg(long, value_name = "PATCH.json")]
    with: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct Move {
    /// The program
    program: PathBuf,
    /// What to write
    out: PathBuf,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    match &args.verb {
        Verb::Show(args) => show(args, terminal),
        Verb::Verify(args) => verify(args, terminal),
        Verb::Run(args) => run::run(args, terminal),
        Verb::Diff(args) => diff(args, terminal),
        Verb::Patch(args) => patch(args, terminal),
        Verb::Import(args) => import(args, terminal),
        Verb::Export(args) => export(args, terminal),
    }
}

fn show(args: &Show, terminal: &mut Terminal) -> Result<Exit> {
    let program = read_program(&args.program)?;
    if let Some(path) = &args.svg {
        target::apart(path, [args.program.as_ref()])?;
        target::write(path, Existing::from_yes(args.yes), program::svg(&program).as_bytes())?;
        terminal.line(path.display())?;
    } else if terminal.json {
        terminal.object("planaria/program-show/1", &summary(&program))?;
    } else if args.summary {
        print_summary(&program, terminal)?;
    } else {
        terminal.line(program.to_string().trim_end())?;
    }
    Ok(Exit::Success)
}

fn histogram(program: &Program) -> BTreeMap<String, usize> {
    let mut ops = BTreeMap::new();
    program.visit(&mut |op| *ops.entry(op.full_name()).or_insert(0) += 1);
    ops
}

fn summary(program: &Program) -> serde_json::Value {
    let typed = |name: &str, ty: &program::Node| json!({ "name": name, "type": program::type_text(ty) });
    let inputs: Vec<_> = program.inputs().iter().map(|input| typed(&input.name, &input.value.ty)).collect();
    let held: Vec<_> = program.held().iter().map(|held| typed(&held.name, &held.value.ty)).collect();
    let outputs: Vec<String> = program.outputs().iter().map(|(name, _)| name.to_string()).collect();
    json!({
        "version": program.version,
        "trainable": program.trainable,
        "inputs": inputs,
        "parameters": held,
        "outputs": outputs,
        "ops": histogram(program),
    })
}

fn print_summary(program: &Program, terminal: &mut Terminal) -> Result<()> {
    terminal.line(format_args!("version {}, {}", program.version, count(program.op_count(), "op")))?;
    let mut table = Table::new(&[]);
    for input in program.inputs() {
        table.row(["input".to_string(), input.name.to_string(), program::type_text(&input.value.ty)]);
    }
    for held in program.held() {
        let kind = if held.parameter { "parameter" } else { "state" };
        table.row([kind.to_string(), held.name.to_string(), program::type_text(&held.value.ty)]);
    }
    if let Some(plan) = program::plan_memory(program) {
        table.row(["memory".to_string(), "values of a run".to_string(), format!("{} bytes", plan.peak)]);
        table.row([
            "memory".to_string(),
            "inputs and parameters".to_string(),
            format!("{} bytes", plan.held),
        ]);
    }
    for (name, value) in program.outputs() {
        table.row(["output".to_string(), name.to_string(), value.to_string()]);
    }
    for (name, count) in histogram(program) {
        table.row(["op".to_string(), name, count.to_string()]);
    }
    table.lines().try_for_each(|line| terminal.line(line))
}

fn verify(args: &One, terminal: &mut Terminal) -> Result<Exit> {
    let program = match read_program(&args.program) {
        Ok(program) => program,
        Err(error) => return damaged(terminal, vec![format!("{error:#}")]),
    };
    let issues: Vec<String> = program::verify(&program).iter().map(ToString::to_string).collect();
    if !issues.is_empty() {
        return damaged(terminal, issues);
    }
    let Loaded { program, state } = match load(&args.program) {
        Ok(loaded) => loaded,
        Err(error) => return damaged(terminal, vec![format!("{error:#}")]),
    };
    let (ops, held) = (program.op_count(), state.iter().count());
    if terminal.json {
        terminal
            .object("planaria/program-verify/1", &json!({ "sound": true, "ops": ops, "parameters": held }))?;
    } else {
        let word = terminal.paint(Style::Good, "sound:");
        let (ops, held) = (count(ops, "op"), count(held, "parameter"));
        terminal.line(format!("{word} version {}, {ops}, {held}", program.version))?;
    }
    Ok(Exit::Success)
}

fn damaged(terminal: &mut Terminal, issues: Vec<String>) -> Result<Exit> {
    if terminal.json {
        terminal.object("planaria/program-verify/1", &json!({ "sound": false, "issues": issues }))?;
        return Ok(Exit::Damaged);
    }
    for issue in issues {
        let word = terminal.paint(Style::Bad, "damaged:");
        terminal.line(format!("{word} {issue}"))?;
    }
    Ok(Exit::Damaged)
}

fn diff(args: &Diff, terminal: &mut Terminal) -> Result<Exit> {
    let differences = program::diff(&read_program(&args.first)?, &read_program(&args.second)?);
    if terminal.json {
        let texts: Vec<String> = differences.iter().map(ToString::to_string).collect();
        terminal
            .object("planaria/program-diff/1", &json!({ "equal": texts.is_empty(), "differences": texts }))?;
    } else if differences.is_empty() {
        terminal.line("the programs are equal")?;
    } else {
        for difference in &differences {
            terminal.line(difference)?;
        }
    }
    Ok(if differences.is_empty() { Exit::Success } else { Exit::Negative })
}

fn patch(args: &Patch, terminal: &mut Terminal) -> Result<Exit> {
    let mut program = read_program(&args.program)?;
    let existing = Existing::from_yes(args.yes);
    target::check(&args.out, existing)?;
    let mut changes = Vec::new();
    if let Some(path) = &args.with {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read '{}'", path.display()))?;
        changes.extend(paddle::PatchFile::parse(&text)?.apply(&mut program)?);
    }
    let before = program.version;
    match args.to {
        Some(program::NEWEST) => changes.extend(paddle::upgrade(&mut program)?),
        Some(version) if version < before || program.version != version => {
            changes.extend(paddle::downgrade(&mut program, version)?);
        }
        _ => {}
    }
    target::write(&args.out, existing, paddle::write(&program).as_bytes())?;
    for change in &changes {
        terminal.line(change)?;
    }
    let changed = count(changes.len(), "change");
    terminal.line(format_args!(
        "version {before} -> {}: {changed}, {}",
        program.version,
        args.out.display()
    ))?;
    Ok(Exit::Success)
}

fn import(args: &Move, terminal: &mut Terminal) -> Result<Exit> {
    let Loaded { program, state } = load(&args.program)?;
    program::check(&program)?;
    let (store, folder) = planaria::store::locate(&args.out.display().to_string())?;
    program::save_folder(&*store, &folder, &program, &state)?;
    terminal.line(args.out.display())?;
    Ok(Exit::Success)
}

fn export(args: &Move, terminal: &mut Terminal) -> Result<Exit> {
    let Loaded { program, state } = load(&args.program)?;
    program::check(&program)?;
    if args.out.extension().is_some_and(|ending| ending == "onnx") {
        return export_onnx(args, &program, &state, terminal);
    }
    let (program, state) = files::of_paddle(program, state)?;
    let Some(stem) = args.out.to_str().and_then(|path| path.strip_suffix(".json")) else {
        let message = format!("'{}' must end in .json or .onnx", args.out.display());
        return Err(Failure::usage(message)
            .hint("the parameters are written beside it, as .pdiparams")
            .into());
    };
    let parameters = PathBuf::from(format!("{stem}.pdiparams"));
    target::check(&args.out, Existing::Keep)?;
    let mut written = vec![&args.out];
    if state.iter().next().is_some() {
        target::check(&parameters, Existing::Keep)?;
        target::stream(&parameters, Existing::Keep, &mut |out| Ok(state.write(&program, out)?))?;
        written.push(&parameters);
    }
    // The program comes last: without it the parameters stand for nothing.
    target::write(&args.out, Existing::Keep, paddle::write(&program).as_bytes())?;
    for path in written {
        terminal.line(path.display())?;
    }
    Ok(Exit::Success)
}

/// As an ONNX model with its parameters in it.
fn export_onnx(
    args: &Move,
    program: &Program,
    state: &program::ProgramState,
    terminal: &mut Terminal,
) -> Result<Exit> {
    target::check(&args.out, Existing::Keep)?;
    let (program, state) = files::of_paddle(program.clone(), state.clone())?;
    let model = program::onnx::export(&program, &state, None, &|_, _| None)?;
    target::write(&args.out, Existing::Keep, &model)?;
    terminal.line(args.out.display())?;
    Ok(Exit::Success)
}
