//! Runs a model and its programs on the same inputs: ours in our interpreter as its files say, and in Python where one is given.

use super::{Args, Form, Made};
use crate::commands::program::beside;
use crate::failure::Failure;
use anyhow::{Context, Result};
use planaria::array::{Array, DType};
use planaria::nn::models::Network;
use planaria::program::{self, Datum, Program, ProgramState, onnx, paddle, read_tensors, write_tensors};
use planaria::tensor::Tensor;
use planaria::train::programs::{self, Part, Sizes};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What runs programs in Python.
const SCRIPT: &str = include_str!("validate.py");

/// One output of one run, compared.
pub(super) struct Row {
    pub(super) program: String,
    pub(super) by: String,
    pub(super) inputs: String,
    pub(super) output: String,
    pub(super) absolute: f64,
    pub(super) relative: f64,
}

/// One set of inputs for one program, and what the model makes of them.
struct Case<'a> {
    made: &'a Made,
    label: String,
    given: Vec<(String, Array)>,
    expected: Vec<(String, Tensor)>,
}

/// Compares what programs give with what the model gives, on each set of inputs.
pub(super) fn compare(args: &Args, network: &dyn Network, made: &[Made]) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    for made in made {
        for (label, sizes) in cases(made) {
            let given = inputs(network, made.part, &sizes, label)?;
            let tensors: Vec<Tensor> = given.iter().map(|(_, array)| Tensor::new(array.clone())).collect();
            let expected = programs::eager(network, made.part, &tensors)?;
            let label = match made.part {
                Part::Vision => format!("{label}, {} patches", given[0].1.shape()[0]),
                _ => format!("{label}, {} of {}", sizes.batch, sizes.length + sizes.past),
            };
            all.push(Case { made, label, given, expected });
        }
    }
    let mut rows = Vec::new();
    for case in &all {
        rows.extend(compared("planaria", case, &ours(args, case.made, &case.given)?)?);
    }
    if let Some(python) = &args.programs.python {
        let by = if args.to == Form::Onnx { "onnxruntime" } else { "paddle" };
        for (case, found) in all.iter().zip(theirs(args, &all, python)?) {
            rows.extend(compared(by, case, &found)?);
        }
    }
    Ok(rows)
}

fn compared(by: &str, case: &Case<'_>, found: &BTreeMap<String, Array>) -> Result<Vec<Row>> {
    let row = |(name, expected): &(String, Tensor)| {
        let found = found.get(name).with_context(|| format!("{by} gave no output {name}"))?;
        let (absolute, relative) = difference(expected.local(), found)?;
        let (program, inputs) = (case.made.name.to_string(), case.label.clone());
        Ok(Row { program, by: by.to_string(), inputs, output: name.clone(), absolute, relative })
    };
    case.expected.iter().map(row).collect()
}

/// Sets of inputs by name, and their sizes: other ones than the program was captured with, where it takes any.
fn cases(made: &Made) -> Vec<(&'static str, Sizes)> {
    let sizes = |batch, length| match made.part {
        Part::Decode => Sizes { batch, length: 1, past: length },
        _ => Sizes { batch, length, past: 0 },
    };
    match made.sizes {
        Some(fixed) => vec![("random", fixed), ("lowest", fixed), ("highest", fixed)],
        None => vec![
            ("random", sizes(2, 9)),
            ("random", sizes(1, 17)),
            ("lowest", sizes(1, 1)),
            ("highest", sizes(3, 4)),
        ],
    }
}

/// Inputs of a kind: random, or ids at the ends of the vocabulary beside large and zero keys.
fn inputs(network: &dyn Network, part: Part, sizes: &Sizes, label: &str) -> Result<Vec<(String, Array)>> {
    let vocabulary = programs::vocabulary(network)?;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut all = Vec::new();
    for (name, tensor) in programs::inputs(network, part, sizes)? {
        let (shape, count) = (tensor.shape().to_vec(), tensor.numel());
        let array = match (name.as_str(), tensor.dtype(), label) {
            ("position_ids" | "image_grid_thw", ..) => tensor.local().clone(),
            (_, DType::I64, "random") => {
                let ids: Vec<i64> = (0..count).map(|_| (next() * vocabulary as f64) as i64).collect();
                Array::from_slice(&ids, &shape)?
            }
            (_, DType::I64, "lowest") => Array::zeros(&shape, DType::I64)?,
            (_, DType::I64, _) => Array::full(&shape, vocabulary as i64 - 1, DType::I64)?,
            (_, _, "lowest") => Array::zeros(&shape, DType::F32)?,
            (_, _, label) => {
                let scale = if label == "random" { 2.0 } else { 200.0 };
                let values: Vec<f32> = (0..count).map(|_| ((next() - 0.5) * scale) as f32).collect();
                Array::from_slice(&values, &shape)?
            }
        };
        let array = match name.as_str() {
            "input_ids" => programs::with_marks(network, tensor.local(), &array)?,
            _ => array,
        };
        all.push((name, array));
    }
    Ok(all)
}

fn file(args: &Args, made: &Made, ending: &str) -> PathBuf {
    Path::new(&args.target).join(format!("{}.{ending}", made.name))
}

/// The program as its files say, in our interpreter.
fn ours(args: &Args, made: &Made, given: &[(String, Array)]) -> Result<BTreeMap<String, Array>> {
    let (program, mut state) =
        if args.to == Form::Onnx { read_onnx(args, made)? } else { read_paddle(args, made)? };
    let named: BTreeMap<&str, &Array> = given.iter().map(|(name, array)| (name.as_str(), array)).collect();
    let mut data = Vec::new();
    for input in program.inputs() {
        let array = named
            .get(&*input.name)
            .with_context(|| format!("the program takes another input, {}", input.name))?;
        data.push(Datum::Array((*array).clone()));
    }
    let found = program::run(&program, &mut state, &data)?;
    Ok(found
        .into_iter()
        .filter_map(|(name, datum)| Some((name.to_string(), datum.array()?.clone())))
        .collect())
}

fn read_paddle(args: &Args, made: &Made) -> Result<(Program, ProgramState)> {
    let program = paddle::read(&std::fs::read(file(args, made, "json"))?)?;
    program::check(&program)?;
    let parameters = File::open(file(args, made, "pdiparams"))?;
    let size = parameters.metadata()?.len();
    let state = ProgramState::read(&program, BufReader::new(parameters), size)?;
    Ok((program, state))
}

fn read_onnx(args: &Args, made: &Made) -> Result<(Program, ProgramState)> {
    let folder = PathBuf::from(&args.target);
    let beside = |name: &str, offset, length| beside(&folder.join(name), offset, length);
    let (program, state) = onnx::import_open(&std::fs::read(file(args, made, "onnx"))?, &beside)?;
    program::check(&program)?;
    Ok((program, state))
}

/// All cases in one Python.
fn theirs(args: &Args, cases: &[Case<'_>], python: &Path) -> Result<Vec<BTreeMap<String, Array>>> {
    let work = tempfile::tempdir()?;
    let (store, _) = planaria::store::locate(&work.path().display().to_string())?;
    let form = if args.to == Form::Onnx { "onnx" } else { "paddle" };
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT, form]);
    for (at, case) in cases.iter().enumerate() {
        let given = case.given.iter().map(|(name, array)| (name.as_str(), array));
        write_tensors(&*store, &format!("{at}.in"), given)?;
        let model = match args.to {
            Form::Onnx => file(args, case.made, "onnx"),
            _ => Path::new(&args.target).join(case.made.name),
        };
        command.arg(model).args(["in", "out"].map(|end| work.path().join(format!("{at}.{end}"))));
    }
    let ran = command.output().with_context(|| format!("cannot run '{}'", python.display()))?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        let message = format!("'{}' could not run the programs: {last}", python.display());
        let hint = "it needs numpy, safetensors, and onnx with onnxruntime, or paddle";
        return Err(Failure::negative(message).hint(hint).into());
    }
    (0..cases.len()).map(|at| Ok(read_tensors(&*store, &format!("{at}.out"))?)).collect()
}

/// The largest difference, and the same relative to the largest value.
fn difference(expected: &Array, found: &Array) -> Result<(f64, f64)> {
    if expected.shape() != found.shape() {
        return Ok((f64::NAN, f64::NAN));
    }
    let values = |array: &Array| -> Result<Vec<f64>> { Ok(array.cast(DType::F64)?.to_vec::<f64>()?) };
    let (a, b) = (values(expected)?, values(found)?);
    let largest = a.iter().fold(1e-12, |most: f64, x| most.max(x.abs()));
    let worst = a
        .iter()
        .zip(&b)
        .map(|(x, y)| (x - y).abs())
        .fold(0.0, |most: f64, x| if x.is_nan() { x } else { most.max(x) });
    Ok((worst, worst / largest))
}
