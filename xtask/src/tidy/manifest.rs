//! Rules for `Cargo.toml` files: edges go down, versions stand in the root, lints are shared.

use super::Finding;
use super::table::FLOORS;

/// What the rules need from one member's `Cargo.toml`.
struct Manifest<'a> {
    name: &'a str,
    /// Section and text of each entry, with its line.
    entries: Vec<(usize, &'a str, &'a str)>,
}

/// Reads the part of TOML that Cargo manifests here use: `[section]` lines and one-line `key = value` entries.
fn read(text: &str) -> Manifest<'_> {
    let (mut section, mut name, mut entries) = ("", "", Vec::new());
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(inner) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = inner.trim_matches(['[', ']']);
            continue;
        }
        if section == "package" && key(line) == "name" {
            name = line.split('"').nth(1).unwrap_or_default();
        }
        entries.push((number + 1, section, line));
    }
    Manifest { name, entries }
}

/// The part of an entry before `=`, and before the first dot of a dotted key.
fn key(entry: &str) -> &str {
    entry.split(['=', '.']).next().unwrap_or_default().trim().trim_matches('"')
}

fn is_dependencies(section: &str) -> bool {
    section.rsplit('.').next().is_some_and(|last| last.ends_with("dependencies"))
}

/// Floor of a package, if the table knows it.
pub(super) fn floor(package: &str) -> Option<u8> {
    FLOORS.iter().find(|(name, _)| *name == package).map(|&(_, floor)| floor)
}

/// Name of the package a manifest describes.
pub(super) fn package_name(text: &str) -> &str {
    read(text).name
}

/// Line, section and name of every dependency.
pub(super) fn dependencies(text: &str) -> Vec<(usize, &str, &str)> {
    let entries = read(text).entries.into_iter();
    entries
        .filter(|(_, section, _)| is_dependencies(section))
        .map(|(line, section, entry)| (line, section, key(entry)))
        .collect()
}

/// The paths of examples that lie outside the package.
pub(super) fn example_paths(text: &str) -> Vec<&str> {
    let entries = read(text).entries.into_iter();
    entries
        .filter(|(_, section, entry)| *section == "example" && key(entry) == "path")
        .filter_map(|(_, _, entry)| entry.split('"').nth(1))
        .collect()
}

/// Checks the manifest of one member (not of the workspace root).
pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let manifest = read(text);
    let mut findings = Vec::new();
    let mut report = |line, what: String, fix: &str| findings.push(Finding::new(path, line, what, fix));
    let own = floor(manifest.name);
    if own.is_none() {
        report(
            1,
            format!("package `{}` stands on no floor", manifest.name),
            "add it to FLOORS in xtask/src/tidy/table.rs",
        );
    }
    for &(line, section, entry) in &manifest.entries {
        let dependency = key(entry);
        if is_dependencies(section) {
            let shared = entry.contains("workspace = true");
            if !shared {
                let fix = "write the version once in the root Cargo.toml and `.workspace = true` here";
                report(line, format!("`{dependency}` is not taken from the workspace"), fix);
            }
            // Tests may need features of their own package.
            let is_itself = dependency == manifest.name && section == "dev-dependencies";
            if let Some(problem) = edge(own, dependency).filter(|_| !is_itself) {
                report(line, problem, "depend on a lower floor, or move the shared part down");
            }
        } else if section.contains("dependencies.") {
            report(
                line,
                format!("`[{section}]` is a table"),
                "write the dependency as one line: `NAME.workspace = true`",
            );
        } else if section == "package" && dependency == "version" && entry != "version.workspace = true" {
            report(line, "the package has a version of its own".into(), "write `version.workspace = true`");
        }
    }
    let shares_lints =
        manifest.entries.iter().any(|&(_, section, entry)| section == "lints" && entry == "workspace = true");
    if !shares_lints {
        report(1, "the shared lints are not switched on".into(), "add `[lints]` with `workspace = true`");
    }
    findings
}

/// Says what is wrong with a dependency from floor `own`, if anything is.
fn edge(own: Option<u8>, dependency: &str) -> Option<String> {
    let inside = dependency == "planaria" || dependency == "xtask" || dependency.starts_with("planaria-");
    match (own, floor(dependency)) {
        (_, None) if inside => Some(format!("`{dependency}` stands on no floor")),
        (Some(from), Some(to)) if to >= from => {
            Some(format!("floor {from} depends on `{dependency}` of floor {to}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> Vec<String> {
        check("crates/x/Cargo.toml", text).into_iter().map(|f| format!("{}: {}", f.line, f.what)).collect()
    }

    const GOOD: &str = "[package]\nname = \"planaria-array\"\nversion.workspace = true\n\n\
        [dependencies]\nplanaria-layout.workspace = true\nhalf = { workspace = true, features = [\"std\"] }\n\n\
        [lints]\nworkspace = true\n";

    #[test]
    fn a_good_manifest_passes() {
        assert_eq!(wrong(GOOD), Vec::<String>::new());
    }

    #[test]
    fn edges_go_down_in_every_dependency_section() {
        for section in
            ["dependencies", "dev-dependencies", "build-dependencies", "target.'cfg(unix)'.dependencies"]
        {
            let text = GOOD.replace("[dependencies]", &format!("[{section}]"));
            let up = text.replace("planaria-layout", "planaria-tensor");
            assert_eq!(wrong(&up), ["6: floor 1 depends on `planaria-tensor` of floor 3"], "{section}");
        }
        let itself = GOOD.replace("planaria-layout", "planaria-array");
        assert_eq!(wrong(&itself), ["6: floor 1 depends on `planaria-array` of floor 1"]);
        assert_eq!(wrong(&itself.replace("[dependencies]", "[dev-dependencies]")), Vec::<String>::new());
        let level = GOOD.replace("planaria-layout", "planaria-aoa");
        assert_eq!(wrong(&level), ["6: floor 1 depends on `planaria-aoa` of floor 1"]);
        let unknown = GOOD.replace("planaria-layout", "planaria-attic");
        assert_eq!(wrong(&unknown), ["6: `planaria-attic` stands on no floor"]);
        let newcomer = GOOD.replace("planaria-array", "planaria-attic");
        assert_eq!(wrong(&newcomer), ["1: package `planaria-attic` stands on no floor"]);
    }

    #[test]
    fn versions_and_lints_come_from_the_root() {
        let pinned = GOOD.replace("half = { workspace = true, features = [\"std\"] }", "half = \"2.7\"");
        assert_eq!(wrong(&pinned), ["7: `half` is not taken from the workspace"]);
        let table =
            GOOD.replace("half = { workspace = true", "[dependencies.half]\nfeatures = { workspace = true");
        assert_eq!(wrong(&table), ["8: `[dependencies.half]` is a table"]);
        let own_version = GOOD.replace("version.workspace = true", "version = \"0.2.0\"");
        assert_eq!(wrong(&own_version), ["3: the package has a version of its own"]);
        let no_lints = GOOD.replace("[lints]\nworkspace = true\n", "");
        assert_eq!(wrong(&no_lints), ["1: the shared lints are not switched on"]);
    }
}
