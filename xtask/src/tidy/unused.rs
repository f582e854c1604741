//! Dependencies that no code names: they cost build time and mislead the reader.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use super::source::{code_only, words};
use super::{Finding, manifest};

/// Checks the manifest at `path` against the code of its package.
pub(super) fn check(root: &Path, path: &str, text: &str) -> Vec<Finding> {
    let folder = root.join(path.trim_end_matches("Cargo.toml"));
    let (mut library, mut tests) = (HashSet::new(), HashSet::new());
    gather(&folder.join("src"), &mut library, code_only);
    gather(&folder.join("build.rs"), &mut library, code_only);
    // Doctests use dependencies too, and examples elsewhere with the modules beside them.
    let beside = |path: &str| path.rsplit_once('/').map_or(path, |(folder, _)| folder).to_owned();
    let elsewhere = manifest::example_paths(text).into_iter().map(beside);
    for place in ["src", "tests", "examples", "benches"].map(str::to_owned).into_iter().chain(elsewhere) {
        gather(&folder.join(place), &mut tests, str::to_owned);
    }
    findings(path, text, &library, &tests)
}

fn findings(path: &str, text: &str, library: &HashSet<String>, tests: &HashSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, section, name) in manifest::dependencies(text) {
        let word = name.replace('-', "_");
        let (used, fix) = match section.ends_with("dev-dependencies") {
            true => (tests.contains(&word), "delete the line"),
            false => (library.contains(&word), "delete the line, or move it to the dev-dependencies"),
        };
        if !used {
            findings.push(Finding::new(path, line, format!("nothing uses `{name}`"), fix));
        }
    }
    findings
}

/// Adds every word of the Rust files at `place`, a file or a folder.
fn gather(place: &Path, found: &mut HashSet<String>, reading: fn(&str) -> String) {
    if place.extension().is_some_and(|ending| ending == "rs") {
        let text = fs::read_to_string(place).unwrap_or_default();
        found.extend(words(&reading(&text)).map(|(_, word)| word));
    }
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        gather(&entry.path(), found, reading);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_tests_use_is_no_dependency_of_the_library() {
        let text = "[dependencies]\nserde-json.workspace = true\nhalf.workspace = true\n\
            [dev-dependencies]\nproptest.workspace = true\nlibm.workspace = true\n";
        let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<HashSet<_>>();
        let found = findings("x/Cargo.toml", text, &set(&["serde_json"]), &set(&["half", "libm"]));
        let lines: Vec<_> = found.iter().map(|f| (f.line, f.what.as_str())).collect();
        assert_eq!(lines, [(3, "nothing uses `half`"), (5, "nothing uses `proptest`")]);
    }
}
