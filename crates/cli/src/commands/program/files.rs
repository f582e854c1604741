//! Where programs come from: Paddle's files, or a folder of ours.

use crate::failure::Failure;
use anyhow::{Context, Result};
use planaria::program::onnx::import_open;
use planaria::program::{DIALECT, Extents, Program, ProgramState, lower, open_folder, paddle};
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
