//! Where programs come from: Paddle's files, or a folder of ours.

use crate::failure::Failure;
use anyhow::{Context, Result};
use planaria::array::Array;
use planaria::program::onnx::{import, import_open};
use planaria::program::{DIALECT, Extents, Program, ProgramState, lower, open_folder, paddle};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// A program with its parameters.
pub(super) struct Loaded {
    pub(super) program: Program,
    pub(super) state: ProgramState,
}

fn folder(path: &Path) -> Result<(Program, ProgramState)> {
    let (store, at) = planaria::store::locate(&path.display().to_string())?;
    Ok(open_folder(&*store, &at)?)
}

/// The program alone.
pub(super) fn read_program(path: &Path) -> Result<Program> {
    if path.is_dir() {
        return Ok(folder(path)?.0);
    }
    if is_onnx(path) {
        return Ok(onnx(path)?.program);
    }
    let bytes = std::fs::read(path).with_context(|| format!("cannot read '{}'", path.display()))?;
    Ok(paddle::read(&bytes)?)
}

fn is_onnx(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "onnx")
}

/// An ONNX model, with the elements that lie in files beside it; what it leaves open stays open.
fn onnx(path: &Path) -> Result<Loaded> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read '{}'", path.display()))?;
    let (program, state) =
        import_open(&bytes, &|name, offset, length| beside(&path.with_file_name(name), offset, length))?;
    Ok(Loaded { program, state })
}

/// The same for these inputs: what it leaves open is as large as they are.
fn onnx_for(path: &Path, given: &BTreeMap<String, Array>) -> Result<Loaded> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read '{}'", path.display()))?;
    let missing = RefCell::new(None);
    let extents = |at: usize, name: &str| match given_for(given, at, name) {
        Ok(array) => Some(array.shape().to_vec()),
        Err(failure) => {
            missing.replace(Some(failure));
            None
        }
    };
    let read =
        import(&bytes, &extents, &|name, offset, length| beside(&path.with_file_name(name), offset, length));
    match missing.into_inner() {
        Some(failure) => Err(failure.into()),
        None => {
            let (program, state) = read?;
            Ok(Loaded { program, state })
        }
    }
}

/// The tensor of an input, by its name or its number.
pub(super) fn given_for<'a>(
    given: &'a BTreeMap<String, Array>,
    at: usize,
    name: &str,
) -> Result<&'a Array, Failure> {
    given.get(name).or_else(|| given.get(&format!("in.{at}"))).ok_or_else(|| {
        let names: Vec<&str> = given.keys().map(String::as_str).collect();
        let message = format!("input {name} is not given; the file has {}", names.join(", "));
        Failure::usage(message).hint(format!("name a tensor `{name}` or `in.{at}`"))
    })
}

/// Part of a file.
pub(in crate::commands) fn beside(path: &Path, offset: u64, length: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The same in the ops of Paddle, where it has ops of ours.
pub(super) fn of_paddle(program: Program, state: ProgramState) -> Result<(Program, ProgramState)> {
    let mut ours = false;
    program.visit(&mut |op| ours |= op.parts().0 == DIALECT);
    if ours { Ok(lower(&program, &state, Extents::Fixed)?) } else { Ok((program, state)) }
}

/// The program and the parameters beside it, to be run on these inputs.
pub(super) fn load_for(path: &Path, given: &BTreeMap<String, Array>) -> Result<Loaded> {
    if is_onnx(path) { onnx_for(path, given) } else { load(path) }
}

/// The program and the parameters beside it.
pub(super) fn load(path: &Path) -> Result<Loaded> {
    if path.is_dir() {
        let (program, state) = folder(path)?;
        return Ok(Loaded { program, state });
    }
    if is_onnx(path) {
        return onnx(path);
    }
    let program = read_program(path)?;
    let parameters = path.with_extension("pdiparams");
    if program.held().is_empty() && !parameters.exists() {
        return Ok(Loaded { program, state: ProgramState::default() });
    }
    let file = File::open(&parameters).map_err(|error| {
        let message =
            format!("cannot read the parameters of the program, '{}': {error}", parameters.display());
        Failure::usage(message).hint("put NAME.pdiparams beside NAME.json")
    })?;
    let size = file.metadata()?.len();
    let state = ProgramState::read(&program, BufReader::new(file), size)?;
    Ok(Loaded { program, state })
}
