//! Kinds `paddle-checkpoints` and `torch-dcp`: folders that other systems wrote, read bit for bit.
//!
//! A case is a folder beside `NAME.expected.safetensors`, which holds every tensor whole. Folders without such
//! a file are read as well. What must be refused is decided here without the code under test: a folder named
//! `torn...`, and one whose index names tensors or files that are not there.

use crate::cases::{Outcome, Verdict};
use crate::mapped;
use anyhow::{Context, Result, bail, ensure};
use planaria_ckpt::formats::{Key, OpenOptions, Source, open_url};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// A tensor of an expected file: dtype and shape as written there, and its bytes.
pub(crate) type Expected = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let cases = cases(path)?;
    ensure!(!cases.is_empty(), "no checkpoint folder in {}", path.display());
    for case in cases {
        let name = case.folder.strip_prefix(path).unwrap_or(&case.folder).display().to_string();
        outcome.add(&name, guarded(|| check(&case)));
    }
    for file in unpaired(path)? {
        let verdict = match mapped::Case::of(&file) {
            None => Verdict::Skipped("expected values without their folder"),
            Some(case) => guarded(|| case.check().map(|()| Verdict::Passed)),
        };
        outcome.add(&file_name(&file), verdict);
    }
    Ok(outcome)
}

/// The verdict of a check that may fail or panic.
fn guarded(check: impl FnOnce() -> Result<Verdict>) -> Verdict {
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(error)) => Verdict::Failed(format!("{error:#}")),
        Err(_) => Verdict::Failed("panicked".to_string()),
    }
}

struct Case {
    folder: PathBuf,
    /// A file with whole tensors, and whether the folder must hold all of them.
    expected: Option<(PathBuf, bool)>,
}

fn beside(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.expected.safetensors"))
}

/// The folders at `path`, or `path` itself when it is one.
fn cases(path: &Path) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for folder in folders(path)? {
        let name = file_name(&folder);
        if name == "merged" {
            cases.extend(folders(&folder)?.into_iter().map(|merged| {
                // `NAME_by2ranks` merges the folder NAME, perhaps only some of its tensors.
                let base = file_name(&merged).split_once("_by").map(|(base, _)| beside(path, base));
                let expected = base.filter(|file| file.is_file()).map(|file| (file, false));
                Case { folder: merged, expected }
            }));
            continue;
        }
        let expected = Some((beside(path, &name), true)).filter(|(file, _)| file.is_file());
        cases.push(Case { folder, expected });
    }
    if cases.is_empty() || path.join(".metadata").is_file() {
        let parent = path.parent().unwrap_or(Path::new("."));
        let expected = Some((beside(parent, &file_name(path)), true)).filter(|(file, _)| file.is_file());
        return Ok(vec![Case { folder: path.to_path_buf(), expected }]);
    }
    Ok(cases)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path).with_context(|| format!("reading {}", path.display()))?;
    let mut folders: Vec<PathBuf> = entries.map(|e| e.map(|e| e.path())).collect::<std::io::Result<_>>()?;
    folders.retain(|path| path.is_dir());
    folders.sort();
    Ok(folders)
}

/// Expected files that belong to no folder by their name.
fn unpaired(path: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let name = file_name(&file);
        if name.strip_suffix(".expected.safetensors").is_some_and(|stem| !path.join(stem).is_dir()) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn check(case: &Case) -> Result<Verdict> {
    let opened = read_all(&case.folder);
    if file_name(&case.folder).starts_with("torn") || !index_is_honest(&case.folder)? {
        return match opened {
            Ok(_) => bail!("a torn checkpoint was accepted"),
            Err(_) => Ok(Verdict::Passed),
        };
    }
    let (source, tensors) = opened?;
    let Some((file, all)) = &case.expected else {
        ensure!(!source.tensors.is_empty(), "no tensor was found");
        return Ok(Verdict::PassedAlone("read whole, without expected values"));
    };
    let expected = read_expected(file)?;
    for (name, bytes) in &tensors {
        let Some((dtype, shape, wanted)) = expected.get(&name.name) else {
            bail!("unexpected tensor {name}")
        };
        let entry = source.get(name)?;
        let found = planaria_store::container::dtype_name(entry.dtype);
        ensure!(found == dtype, "{name}: dtype {found}, expected {dtype}");
        ensure!(entry.shape[..] == shape[..], "{name}: shape {}, expected {shape:?}", entry.shape);
        ensure!(bytes == wanted, "{name}: the bytes differ");
    }
    if *all && tensors.len() != expected.len() {
        let missing = expected.keys().find(|name| !tensors.contains_key(&Key::model(name.as_str())));
        bail!("{} of {} tensors, for example {missing:?} is missing", tensors.len(), expected.len());
    }
    Ok(Verdict::Passed)
}

/// Opens a folder, compares copies, and reads every tensor.
pub(crate) fn read_all(folder: &Path) -> Result<(Source, BTreeMap<Key, Vec<u8>>)> {
    let path = folder.to_str().context("the path is not text")?;
    let source = open_url(path, &OpenOptions::default())?;
    source.check_copies()?;
    let mut tensors = BTreeMap::new();
    for key in source.tensors.keys() {
        tensors.insert(key.clone(), source.read(key)?);
    }
    Ok((source, tensors))
}

/// Whether every tensor an index names is in the file it names.
fn index_is_honest(folder: &Path) -> Result<bool> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !file_name(&path).ends_with(".safetensors.index.json") {
            continue;
        }
        let index: Value = serde_json::from_slice(&fs::read(&path)?)?;
        for (tensor, file) in index["weight_map"].as_object().unwrap_or(&Map::new()) {
            let file = folder.join(file.as_str().unwrap_or_default());
            if !file.is_file() || !raw_header(&fs::read(&file)?)?.1.contains_key(tensor) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// First data byte and header of a safetensors file, without the code under test.
fn raw_header(bytes: &[u8]) -> Result<(usize, Map<String, Value>)> {
    let len = bytes.first_chunk::<8>().context("too short for a header")?;
    let end = 8 + usize::try_from(u64::from_le_bytes(*len))?;
    Ok((end, serde_json::from_slice(bytes.get(8..end).context("too short for its header")?)?))
}

pub(crate) fn read_expected(file: &Path) -> Result<Expected> {
    parse_expected(&fs::read(file).with_context(|| format!("reading {}", file.display()))?)
}

/// All tensors of a safetensors file.
pub(crate) fn parse_expected(bytes: &[u8]) -> Result<Expected> {
    let (start, header) = raw_header(bytes)?;
    let mut expected = Expected::new();
    for (name, about) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
        let number = |value: &Value| value.as_u64().map(|v| v as usize).context("not a number");
        let list = |value: &Value| -> Result<Vec<usize>> {
            value.as_array().context("not a list")?.iter().map(number).collect()
        };
        let (offsets, shape) = (list(&about["data_offsets"])?, list(&about["shape"])?);
        let data = bytes.get(start + offsets[0]..start + offsets[1]).context("data past the end")?;
        let dtype = about["dtype"].as_str().context("no dtype")?.to_string();
        expected.insert(name, (dtype, shape, data.to_vec()));
    }
    Ok(expected)
}
