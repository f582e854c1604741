//! Files that are numbered parts of one whole: `model-00001-of-00002.safetensors` and its like in other formats.

use super::index::IndexFile;
use super::source::{Key, Source};
use crate::error::{Error, Result};
use planaria_store::{Store, join};
use std::collections::BTreeSet;

/// `model` of `model-00001-of-00002.safetensors`, with its number and how many there are.
pub(super) fn numbered<'n>(name: &'n str, ending: &str) -> Option<(&'n str, usize, usize)> {
    let (rest, total) = name.strip_suffix(ending)?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    Some((stem, number.parse().ok()?, total.parse().ok()?))
}

/// Without an index the names say how many files there should be.
pub(super) fn check_numbers(folder: &str, files: &[&str], ending: &str) -> Result<()> {
    let numbers = || files.iter().filter_map(|name| numbered(name, ending));
    let totals: BTreeSet<usize> = numbers().map(|n| n.2).collect();
    if totals.len() > 1 {
        return Err(Error::Ambiguous { at: folder.to_string(), found: files.join(", ") });
    }
    for total in totals {
        let present: BTreeSet<usize> = numbers().map(|n| n.1).collect();
        // Some writers count from 0.
        let first = usize::from(!present.contains(&0));
        if let Some(missing) = (first..total.saturating_add(first)).find(|number| !present.contains(number)) {
            let what =
                format!("there is no index, and file {missing} of {total} is missing beside '{}'", files[0]);
            return Err(Error::Torn { what });
        }
    }
    Ok(())
}

/// Opens files of one ending that together hold a model: all that their index names, or all of their numbers. One
/// whole file comes before parts and before copies in another precision.
pub(super) fn open(
    (store, folder): (&dyn Store, &str),
    names: &[String],
    (stem, ending): (&str, &str),
    open: impl FnOnce(&[String]) -> Result<Source>,
) -> Result<Source> {
    let index = format!("{stem}{ending}.index.json");
    if names.contains(&index) {
        let index = IndexFile::read(store, &join(folder, &index))?;
        let files: Vec<String> = index.files().into_iter().map(str::to_string).collect();
        if let Some(file) = files.iter().find(|file| !names.contains(file)) {
            return Err(Error::Torn { what: format!("'{file}' is missing; '{}' names it", index.file) });
        }
        let source = open(&files)?;
        let named = index.weights.iter().flatten().map(|(tensor, _)| tensor);
        if let Some(tensor) =
            named.into_iter().find(|name| !source.tensors.contains_key(&Key::model(name.as_str())))
        {
            let what = format!("tensor '{tensor}' is in no file; '{}' names it", index.file);
            return Err(Error::Torn { what });
        }
        return Ok(source);
    }
    let whole = format!("{stem}{ending}");
    let parts = || names.iter().filter(|name| numbered(name, ending).is_some_and(|(own, ..)| own == stem));
    let files: Vec<String> = match names.contains(&whole) {
        true => vec![whole],
        false if parts().next().is_some() => parts().cloned().collect(),
        false => names.iter().filter(|name| name.ends_with(ending)).cloned().collect(),
    };
    check_numbers(folder, &files.iter().map(String::as_str).collect::<Vec<_>>(), ending)?;
    open(&files)
}
