//! Our own form of a program on disk: a folder with the program, its parameters by name, and a mark that makes it whole.

use crate::error::{Error, Result};
use crate::paddle;
use crate::program::Program;
use crate::run::{Datum, ProgramState};
use crate::tensors::{read_tensors, write_tensors};
use crate::types::{Element, tensor_type};
use planaria_array::Array;
use planaria_store::{PutMode, Store, StoreExt, checksum, join};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The form of folders that are written.
const FORM: u64 = 1;

/// What changed in the ops of each form since the one before, oldest first, in the grammar of patch files.
const PATCHES: &[(u64, &str)] = &[];

const PROGRAM: &str = "program.json";
const PARAMETERS: &str = "parameters.safetensors";
const MANIFEST: &str = "manifest.json";
const COMMIT: &str = "COMMIT";

/// Largest program and manifest that are read.
const LARGEST: u64 = 1 << 32;
const LARGEST_MARK: u64 = 1 << 20;

/// Bytes of parameters that are in memory while their checksum is made.
const PIECE: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    schema: String,
    form: u64,
    files: BTreeMap<String, File>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct File {
    size: u64,
    crc32c: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    manifest_size: u64,
    manifest_sum: String,
}

impl File {
    fn of(bytes: &[u8]) -> File {
        File { size: bytes.len() as u64, crc32c: format!("{:08x}", checksum::crc32c(bytes)) }
    }

    /// Of a file that is read piece by piece.
    fn in_store(store: &dyn Store, name: &str) -> Result<File> {
        let file = store.reader(name)?;
        let (size, mut sum, mut piece) = (file.size(), checksum::crc32c(&[]), vec![0; PIECE]);
        let mut offset = 0;
        while offset < size {
            let len = file.read_at(offset, &mut piece[..PIECE.min((size - offset) as usize)])?;
            if len == 0 {
                break;
            }
            sum = checksum::append(sum, &piece[..len]);
            offset += len as u64;
        }
        Ok(File { size, crc32c: format!("{sum:08x}") })
    }
}

const SCHEMA: &str = "planaria/program";

/// Writes a program and its parameters; without the mark, which comes last, the folder is not read.
///
/// # Errors
/// Parameters that are missing, a folder that is whole already, and what the store says.
pub fn save_folder(store: &dyn Store, folder: &str, program: &Program, state: &ProgramState) -> Result<()> {
    let at = |name: &str| join(folder, name);
    // Also without the mark: files of these names may be anybody's.
    for name in [COMMIT, PROGRAM, PARAMETERS, MANIFEST] {
        if store.exists(&at(name))? {
            let what = format!("'{}' is there already; choose another folder", at(name));
            return Err(Error::State { what });
        }
    }
    let text = paddle::write(program);
    store.write(&at(PROGRAM), text.as_bytes())?;
    let mut arrays = Vec::new();
    for held in program.held() {
        let missing = || Error::State { what: format!("parameter {} is not given", held.name) };
        match state.get(&held.name).ok_or_else(missing)? {
            // Files have no complex numbers; the program says which pairs are some.
            Datum::Array(array) | Datum::Complex(array) => arrays.push((held.name.clone(), array.clone())),
            _ => return Err(Error::State { what: format!("parameter {} is not a tensor", held.name) }),
        }
    }
    write_tensors(store, &at(PARAMETERS), arrays.iter().map(|(name, array)| (&**name, array)))?;
    let parameters = File::in_store(store, &at(PARAMETERS))?;
    let files = [(PROGRAM.to_string(), File::of(text.as_bytes())), (PARAMETERS.to_string(), parameters)];
    let manifest = Manifest { schema: SCHEMA.to_string(), form: FORM, files: files.into() };
    let manifest =
        serde_json::to_vec_pretty(&manifest).map_err(|error| Error::State { what: error.to_string() })?;
    store.put(&at(MANIFEST), &manifest, PutMode::Replace)?;
    let File { size, crc32c } = File::of(&manifest);
    let mark = serde_json::json!({ "manifest_size": size, "manifest_sum": crc32c }).to_string();
    store.put(&at(COMMIT), mark.as_bytes(), PutMode::Create)?;
    Ok(())
}

/// Reads a program and its parameters, every byte against its checksum.
///
/// # Errors
/// A folder that is not whole, damaged, or of a newer form.
pub fn open_folder(store: &dyn Store, folder: &str) -> Result<(Program, ProgramState)> {
    let at = |name: &str| join(folder, name);
    let damaged = |what: String| Error::State { what: format!("'{folder}' is damaged: {what}") };
    let mark = store.read(&at(COMMIT), LARGEST_MARK).map_err(|error| match error {
        planaria_store::Error::NotFound { .. } => {
            Error::State { what: format!("'{folder}' is not a complete program: it has no {COMMIT} mark") }
        }
        other => other.into(),
    })?;
    let mark: Mark = serde_json::from_slice(&mark).map_err(|error| damaged(format!("{COMMIT}: {error}")))?;
    let manifest = store.read(&at(MANIFEST), LARGEST_MARK)?;
    let File { size, crc32c } = File::of(&manifest);
    if (size, &crc32c) != (mark.manifest_size, &mark.manifest_sum) {
        return Err(damaged(format!("{MANIFEST} is not the one that {COMMIT} names")));
    }
    let manifest: Manifest =
        serde_json::from_slice(&manifest).map_err(|error| damaged(format!("{MANIFEST}: {error}")))?;
    if manifest.schema != SCHEMA || manifest.form > FORM {
        let Manifest { schema, form, .. } = manifest;
        let what = format!(
            "'{folder}' has the format {schema}/{form}, and {SCHEMA}/{FORM} is supported; read it with a newer planaria"
        );
        return Err(Error::State { what });
    }
    let says = |name: &str, found: &File| match manifest.files.get(name) {
        Some(file) if file == found => Ok(()),
        _ => Err(damaged(format!("{name} is not what {MANIFEST} says"))),
    };
    let text = store.read(&at(PROGRAM), LARGEST)?;
    says(PROGRAM, &File::of(&text))?;
    says(PARAMETERS, &File::in_store(store, &at(PARAMETERS))?)?;
    let mut program = paddle::read(&text)?;
    let state = state_of(&program, read_tensors(store, &at(PARAMETERS))?)?;
    patched(&mut program, manifest.form, PATCHES)?;
    Ok((program, state))
}

/// Brings a program of an older form up to date, form by form.
fn patched(program: &mut Program, form: u64, patches: &[(u64, &str)]) -> Result<()> {
    for (_, text) in patches.iter().filter(|(to, _)| *to > form) {
        let version = program.version;
        paddle::PatchFile::parse(text)?.apply(program)?;
        // Forms of folders are no versions of Paddle's ops.
        program.version = version;
    }
    Ok(())
}

/// Parameters by name as the program declares them; none may be missing or too many.
fn state_of(program: &Program, mut arrays: BTreeMap<String, Array>) -> Result<ProgramState> {
    let mut state = ProgramState::default();
    for held in program.held() {
        let missing = || Error::State { what: format!("parameter {} is not in the file", held.name) };
        let array = arrays.remove(&*held.name).ok_or_else(missing)?;
        let complex = tensor_type(&held.value.ty).is_some_and(|ty| !matches!(ty.element, Element::Plain(_)));
        state.insert(held.name.clone(), if complex { Datum::Complex(array) } else { Datum::Array(array) });
    }
    match arrays.keys().next() {
        None => Ok(state),
        Some(name) => Err(Error::State { what: format!("parameter {name} is not in the program") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    #[test]
    fn a_folder_of_an_older_form_is_patched_form_by_form() {
        let text = "program version=4 trainable=true readable=false region \"r\" { block \"b\" () { %1 = planaria.old(_) {eps = 1} : f32[2] } }";
        let renamed = r#"{"version": 2, "op_patches": [{"op_name": "planaria.old", "actions": [{"action": "modify_name", "default": "planaria.new"}]}]}"#;
        let added = r#"{"version": 3, "op_patches": [{"op_name": "planaria.new", "actions": [{"action": "add_attr", "object": "keep", "type": "pir::BoolAttribute", "data": true}]}]}"#;
        let patches = [(2, renamed), (3, added)];
        let op = |form: u64| {
            let mut program = parse(text).unwrap();
            patched(&mut program, form, &patches).unwrap();
            assert_eq!(program.version, 4);
            program.block().unwrap().ops[0].to_string()
        };
        assert_eq!(op(1), "%1 = planaria.new(_) {eps = 1, keep = true} : f32[2]");
        assert_eq!(op(2), "%1 = planaria.old(_) {eps = 1} : f32[2]");
        assert_eq!(op(3), "%1 = planaria.old(_) {eps = 1} : f32[2]");
    }

    #[test]
    fn every_form_is_reached_by_a_patch_or_is_the_first() {
        let reached: Vec<u64> = PATCHES.iter().map(|(to, _)| *to).collect();
        assert!(reached.iter().zip(2..).all(|(reached, form)| *reached == form), "{reached:?}");
        assert_eq!(reached.len() as u64 + 1, FORM);
    }
}
