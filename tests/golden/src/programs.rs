//! Kind `paddle-programs`: programs of Paddle 3.0 to 3.3, their parameters and answers, and damaged ones.
//!
//! Every `NAME.json` must come back byte for byte, as text too, and fit its own definitions; `NAME.pdiparams` must come
//! back byte for byte; a run on `NAME.io.safetensors` must give the recorded outputs. `NAME_vN.json` must become
//! `NAME_vN.upgraded_by_*.json`. Whatever lies under `corrupt/` must be refused. A file may be packed as `.gz`.

mod numbers;
mod training;

use crate::cases::{Outcome, Verdict};
use anyhow::{Context, Result, anyhow, bail, ensure};
use flate2::read::MultiGzDecoder;
use numbers::Expected;
use planaria_program::{self as program, Datum, NEWEST, OLDEST, Program, ProgramState, paddle};
use std::fs;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut stems = Vec::new();
    if path.is_dir() {
        collect(path, &mut stems)?;
    } else {
        stems.push(without(path, &[".gz", ".json"]));
    }
    stems.sort();
    stems.dedup();
    ensure!(!stems.is_empty(), "no program file in {}", path.display());
    for stem in stems {
        let name = stem.strip_prefix(path).unwrap_or(&stem).display().to_string();
        let mut check = |what: &str, check: &dyn Fn() -> Result<Verdict>| {
            let verdict = match catch_unwind(AssertUnwindSafe(check)) {
                Ok(Ok(verdict)) => verdict,
                Ok(Err(error)) => Verdict::Failed(format!("{error:#}")),
                Err(_) => Verdict::Failed("panicked".to_string()),
            };
            outcome.add(&format!("{name} {what}"), verdict);
        };
        if stem.components().any(|part| part.as_os_str() == "corrupt") {
            check("is refused", &|| refused(&stem).map(|()| Verdict::Passed));
            continue;
        }
        check("comes back", &|| comes_back(&stem).map(|()| Verdict::Passed));
        if beside(&stem, ".pdiparams").is_some() {
            check("keeps its parameters", &|| parameters(&stem).map(|()| Verdict::Passed));
        }
        if beside(&stem, ".io.safetensors").is_some() {
            check("runs", &|| runs(&stem).map(|()| Verdict::Passed));
        }
        if beside(&stem, ".trace.safetensors").is_some() {
            check("trains", &|| training::trains(&stem).map(|()| Verdict::Passed));
        }
        if let Some(wanted) = upgraded(&stem) {
            check("is upgraded", &|| same_after_upgrade(&stem, &wanted).map(|()| Verdict::Passed));
        }
    }
    Ok(outcome)
}

/// Program files below a folder, without their endings; answers and descriptions are not programs.
fn collect(folder: &Path, stems: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "meta" {
                collect(&path, stems)?;
            }
        } else if name.ends_with(".json") || name.ends_with(".json.gz") {
            stems.push(without(&path, &[".gz", ".json"]));
        }
    }
    Ok(())
}

fn without(path: &Path, endings: &[&str]) -> PathBuf {
    let mut text = path.to_string_lossy().into_owned();
    for ending in endings {
        text = text.strip_suffix(ending).unwrap_or(&text).to_string();
    }
    text.into()
}

/// The file with this ending, or its packed form.
fn beside(stem: &Path, ending: &str) -> Option<PathBuf> {
    let plain = PathBuf::from(format!("{}{ending}", stem.display()));
    let packed = PathBuf::from(format!("{}{ending}.gz", stem.display()));
    [plain, packed].into_iter().find(|path| path.is_file())
}

fn bytes(stem: &Path, ending: &str) -> Result<Vec<u8>> {
    let path = beside(stem, ending).with_context(|| format!("{}{ending} is missing", stem.display()))?;
    let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    if path.extension().is_none_or(|ending| ending != "gz") {
        return Ok(bytes);
    }
    let mut unpacked = Vec::new();
    MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

fn read(stem: &Path) -> Result<Program> {
    Ok(paddle::read(&bytes(stem, ".json")?)?)
}

/// Whether every op is one that Paddle itself can read.
fn is_foreign(program: &Program) -> bool {
    let mut foreign = false;
    program.visit(&mut |op| foreign |= !matches!(op.parts().0, "builtin" | "pd_op" | "cf"));
    foreign
}

fn comes_back(stem: &Path) -> Result<()> {
    let before = bytes(stem, ".json")?;
    let program = paddle::read(&before)?;
    ensure!(paddle::write(&program).as_bytes() == before, "the file does not come back byte for byte");
    let again = program::parse(&program.to_string()).context("its text form")?;
    ensure!(again == program, "its text form does not come back");
    let issues = program::verify(&program);
    ensure!(issues.is_empty() || is_foreign(&program), "{}", issues[0]);
    for version in OLDEST..NEWEST {
        downgrades(&program, version)?;
    }
    Ok(())
}

/// Back to an older version and up again nothing has changed; or an op is named that the version lacks.
fn downgrades(program: &Program, version: u64) -> Result<()> {
    let mut newest = program.clone();
    paddle::upgrade(&mut newest)?;
    let mut older = newest.clone();
    match paddle::downgrade(&mut older, version) {
        Err(program::Error::Patch { place, .. }) => ensure!(place.contains("op."), "{place} names no op"),
        Err(error) => bail!(error),
        Ok(_) => {
            ensure!(older.version == version, "a downgrade to {version} gives {}", older.version);
            let mut again = paddle::read(paddle::write(&older).as_bytes())?;
            paddle::upgrade(&mut again)?;
            let differences = program::diff(&newest, &again);
            ensure!(differences.is_empty(), "version {version} and back: {}", differences[0]);
        }
    }
    Ok(())
}

fn parameters(stem: &Path) -> Result<()> {
    let (program, before) = (read(stem)?, bytes(stem, ".pdiparams")?);
    let state = ProgramState::read(&program, before.as_slice(), before.len() as u64)?;
    let mut after = Vec::new();
    state.write(&program, &mut after)?;
    ensure!(after == before, "the parameter file does not come back byte for byte");
    Ok(())
}

fn load(stem: &Path) -> Result<(Program, ProgramState)> {
    let mut program = read(stem)?;
    program::check(&program)?;
    paddle::upgrade(&mut program)?;
    let state = match beside(stem, ".pdiparams") {
        None => ProgramState::default(),
        Some(_) => {
            let bytes = bytes(stem, ".pdiparams")?;
            ProgramState::read(&program, bytes.as_slice(), bytes.len() as u64)?
        }
    };
    Ok((program, state))
}

fn runs(stem: &Path) -> Result<()> {
    let (program, state) = load(stem)?;
    let recorded = numbers::read(&bytes(stem, ".io.safetensors")?)?;
    let mut cases = 0;
    for prefix in ["".to_string()].into_iter().chain((1..).map(|case| format!("v{case}."))) {
        let inputs = numbered(&recorded, &format!("{prefix}in."));
        let outputs = numbered(&recorded, &format!("{prefix}out."));
        if outputs.is_empty() {
            break;
        }
        cases += 1;
        let inputs: Vec<Datum> =
            inputs.iter().map(|input| Ok(Datum::Array(input.array()?))).collect::<Result<_>>()?;
        let answers = program::run(&program, &mut state.clone(), &inputs)?;
        ensure!(answers.len() == outputs.len(), "{} outputs, expected {}", answers.len(), outputs.len());
        for ((name, answer), expected) in answers.iter().zip(outputs) {
            let answer = answer.array().with_context(|| format!("{prefix}{name} is not a tensor"))?;
            numbers::compare(answer, expected).map_err(|what| anyhow!("{prefix}{name}: {what}"))?;
        }
    }
    ensure!(cases > 0, "no case is recorded");
    Ok(())
}

/// Entries `PREFIX0`, `PREFIX1` and so on.
fn numbered<'a>(
    recorded: &'a std::collections::BTreeMap<String, Expected>,
    prefix: &str,
) -> Vec<&'a Expected> {
    (0..).map_while(|at| recorded.get(&format!("{prefix}{at}"))).collect()
}

/// The program that Paddle itself made of this one, if it is there.
fn upgraded(stem: &Path) -> Option<PathBuf> {
    let name = stem.file_name()?.to_string_lossy().into_owned();
    let wanted = stem.with_file_name(format!("{name}.upgraded_by_paddle331"));
    beside(&wanted, ".json").map(|_| wanted)
}

/// Attributes of results come in any order from Paddle, so they are sorted first.
fn same_after_upgrade(stem: &Path, wanted: &Path) -> Result<()> {
    let (mut found, mut wanted) = (read(stem)?, read(wanted)?);
    paddle::upgrade(&mut found)?;
    for program in [&mut found, &mut wanted] {
        program.visit_mut(&mut |op| {
            if let Some(attrs) = &mut op.result_attrs {
                attrs.sort_by(|a, b| a.name.cmp(&b.name));
            }
        });
    }
    ensure!(paddle::write(&found) == paddle::write(&wanted), "{}", program::diff(&found, &wanted)[0]);
    Ok(())
}

fn refused(stem: &Path) -> Result<()> {
    match load(stem) {
        Ok(_) => bail!("a damaged program was accepted"),
        Err(error) => {
            let typed = error.downcast_ref::<program::Error>();
            ensure!(typed.is_some_and(|error| !error.to_string().is_empty()), "no typed error: {error:#}");
            Ok(())
        }
    }
}
