//! Test files that no test program includes: with `autotests = false` cargo would leave them out without a word.

use std::fs;
use std::path::Path;

use super::Finding;

/// Checks the package of the manifest at `path`.
pub(super) fn check(root: &Path, path: &str, text: &str) -> Vec<Finding> {
    let tests = root.join(path.trim_end_matches("Cargo.toml")).join("tests");
    let names = fs::read_dir(&tests).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        names.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".rs")?.to_owned())).collect();
    names.sort();
    findings(path, text, &fs::read_to_string(tests.join("suite.rs")).unwrap_or_default(), &names)
}

fn findings(path: &str, manifest: &str, suite: &str, names: &[String]) -> Vec<Finding> {
    if !manifest.lines().any(|line| line == "autotests = false") {
        return Vec::new();
    }
    let included = |name: &str| {
        let module = format!("mod {name};");
        manifest.contains(&format!("[[test]]\nname = \"{name}\"")) || suite.lines().any(|line| line == module)
    };
    let left_out = names.iter().filter(|name| !included(name));
    left_out
        .map(|name| {
            let fix = format!("write `mod {name};` in tests/suite.rs");
            Finding::new(path, 1, format!("tests/{name}.rs is never compiled"), fix)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_file_is_listed_or_found() {
        let names = ["a", "b", "suite", "shuttle"].map(str::to_owned);
        let manifest = "autotests = false\n[[test]]\nname = \"suite\"\n\n[[test]]\nname = \"shuttle\"\n";
        let found = |manifest: &str, suite: &str| -> Vec<String> {
            findings("x/Cargo.toml", manifest, suite, &names).into_iter().map(|f| f.what).collect()
        };
        assert_eq!(found(manifest, "mod a;\n"), ["tests/b.rs is never compiled"]);
        assert_eq!(found(manifest, "mod a;\nmod b;\n"), Vec::<String>::new());
        assert_eq!(found("", ""), Vec::<String>::new());
    }
}
