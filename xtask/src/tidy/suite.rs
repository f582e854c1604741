//! Tests that cargo would leave out without a word: files that no test program includes, where `autotests = false`, and
//! those of targets that say `test = false`.

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
    let mut findings =
        findings(path, text, &fs::read_to_string(tests.join("suite.rs")).unwrap_or_default(), &names);
    let package = root.join(path.trim_end_matches("Cargo.toml"));
    let silent = untested(text).into_iter().filter(|source| holds_tests(&package.join(source)));
    findings.extend(silent.map(|source| {
        let what = format!("tests in {source} never run: their target says `test = false`");
        Finding::new(path, 1, what, "take that line out")
    }));
    findings
}

/// The files and folders of targets that say `test = false`.
fn untested(manifest: &str) -> Vec<String> {
    let mut sources = Vec::new();
    for section in manifest.split("\n[") {
        let value = |key: &str| {
            let mut lines = section.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            lines.next().map(|value| value.trim_matches('"'))
        };
        if value("test") != Some("false") {
            continue;
        }
        let program = value("name").filter(|_| section.starts_with("[bin]]"));
        match (value("path"), program) {
            (Some(path), _) => sources.push(path.to_owned()),
            (None, Some(name)) => sources.extend([format!("src/bin/{name}.rs"), format!("src/bin/{name}")]),
            (None, None) => sources.push("src".into()),
        }
    }
    sources
}

/// Whether a file, or one below a folder, has tests.
fn holds_tests(path: &Path) -> bool {
    let attribute = concat!("#[", "test]");
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().any(|entry| holds_tests(&entry.path())),
        Err(_) => fs::read_to_string(path).is_ok_and(|text| text.contains(attribute)),
    }
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

    #[test]
    fn tests_of_targets_without_tests_are_found() {
        let manifest = "[lib]\ntest = false\n\n[[bin]]\nname = \"a\"\npath = \"src/main.rs\"\ntest = false\n\n\
            [[bin]]\nname = \"b\"\ntest = false\n\n[[bin]]\nname = \"c\"\n";
        assert_eq!(untested(manifest), ["src", "src/main.rs", "src/bin/b.rs", "src/bin/b"]);
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(holds_tests(&here.join("src/tidy")) && !holds_tests(&here.join("src/main.rs")));
    }
}
