//! `planaria program run`: inputs from a file, outputs to the screen or to a file, compared on request.

use super::files::{Loaded, given_for, load_for};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::table::Table;
use crate::target::{self, Existing};
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use planaria::array::{Array, DType};
use planaria::program::{self, Datum, Program, paddle, read_tensors, write_tensors};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Inputs have the names of the program's inputs, or `in.0`, `in.1` and so on in their order. Outputs are named `out.0`,\n\
    `out.1` and so on."
)]
pub(super) struct Args {
    /// The program
    program: PathBuf,
    /// The inputs
    #[arg(long, value_name = "FILE.safetensors")]
    inputs: PathBuf,
    /// Write the outputs to this file
    #[arg(short, long, value_name = "FILE.safetensors")]
    output: Option<PathBuf>,
    /// Compare the outputs with `out.0`, `out.1` and so on of this file; exits 1 beyond the tolerance
    #[arg(long, value_name = "FILE.safetensors")]
    expect: Option<PathBuf>,
    /// Accept |a - b| up to this times the largest |b| of an output
    #[arg(long, value_name = "NUMBER", default_value_t = 1e-5, requires = "expect")]
    tolerance: f64,
}

fn tensors(path: &Path) -> Result<BTreeMap<String, Array>> {
    let (store, name) = planaria::store::locate(&path.display().to_string())?;
    read_tensors(&*store, &name).with_context(|| format!("cannot read '{}'", path.display()))
}

fn inputs(program: &Program, given: &BTreeMap<String, Array>) -> Result<Vec<Datum>> {
    let find =
        |(at, input): (usize, &program::Input)| Ok(Datum::Array(given_for(given, at, &input.name)?.clone()));
    program.inputs().iter().enumerate().map(find).collect()
}

pub(super) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let given = tensors(&args.inputs)?;
    let Loaded { mut program, mut state } = load_for(&args.program, &given)?;
    program::check(&program)?;
    paddle::upgrade(&mut program)?;
    if let Some(path) = &args.output {
        target::check(path, Existing::Keep)?;
    }
    let inputs = inputs(&program, &given)?;
    let answers = program::run(&program, &mut state, &inputs)?;
    let mut outputs = Vec::new();
    for (at, (name, answer)) in answers.iter().enumerate() {
        let array = answer.array().with_context(|| format!("output {name} is not a numeric tensor"))?;
        outputs.push((format!("out.{at}"), array.contiguous()?));
    }
    if let Some(path) = &args.output {
        // A file that is not there yet cannot be located; its folder can.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let store = planaria::store::open(&folder.display().to_string())?;
        write_tensors(&*store, &name, outputs.iter().map(|(name, array)| (name.as_str(), array)))?;
    }
    match &args.expect {
        Some(path) => compare(args, &outputs, &tensors(path)?, terminal),
        None => {
            print(&outputs, terminal)?;
            Ok(Exit::Success)
        }
    }
}

fn print(outputs: &[(String, Array)], terminal: &mut Terminal) -> Result<()> {
    if terminal.json {
        let shown = |array: &Array| json!({ "dtype": array.dtype().name(), "shape": array.shape().to_vec() });
        let shown: BTreeMap<&String, _> = outputs.iter().map(|(name, array)| (name, shown(array))).collect();
        return terminal.object("planaria/program-run/1", &json!({ "outputs": shown }));
    }
    for (name, array) in outputs {
        terminal.line(format_args!("{name}: {}{}", array.dtype(), array.shape()))?;
        terminal.line(array)?;
    }
    Ok(())
}

fn compare(
    args: &Args,
    outputs: &[(String, Array)],
    expected: &BTreeMap<String, Array>,
    terminal: &mut Terminal,
) -> Result<Exit> {
    let mut table = Table::new(&[]);
    let mut rows = Vec::new();
    let mut good = true;
    for (name, found) in outputs {
        let Some(wanted) = expected.get(name) else {
            return Err(Failure::usage(format!("'{name}' is not in the file to compare with")).into());
        };
        let alike = found.dtype() == wanted.dtype() && found.shape() == wanted.shape();
        let (largest, bound) =
            if alike { distance(found, wanted, args.tolerance)? } else { (f64::INFINITY, 0.0) };
        let near = alike && largest <= bound;
        good &= near;
        let word = if near { "near" } else { "differs" };
        let shape = format!("{}{}", found.dtype(), found.shape());
        table.row([name.clone(), shape, format!("{largest:.1e}"), word.to_string()]);
        rows.push(json!({ "name": name, "largest": largest, "near": near }));
    }
    if terminal.json {
        terminal.object("planaria/program-run/1", &json!({ "near": good, "outputs": rows }))?;
    } else {
        table.lines().try_for_each(|line| terminal.line(line))?;
    }
    Ok(if good { Exit::Success } else { Exit::Negative })
}

/// The largest difference, and how large it may be.
fn distance(found: &Array, wanted: &Array, tolerance: f64) -> Result<(f64, f64)> {
    let (found, wanted) =
        (found.cast(DType::F64)?.to_vec::<f64>()?, wanted.cast(DType::F64)?.to_vec::<f64>()?);
    let mut largest = 0f64;
    for (f, w) in found.iter().zip(&wanted) {
        let same = f == w || (f.is_nan() && w.is_nan());
        let apart = if same { 0.0 } else { (f - w).abs() };
        largest = if apart.is_nan() { f64::INFINITY } else { largest.max(apart) };
    }
    let scale = wanted.iter().filter(|x| x.is_finite()).fold(0f64, |m, x| m.max(x.abs()));
    Ok((largest, tolerance * scale))
}
