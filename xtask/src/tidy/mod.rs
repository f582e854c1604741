//! A test of the source tree: prints `path:line: what is wrong; what to do` for every broken rule.

mod kernels;
mod manifest;
mod rules;
mod source;
mod suite;
mod table;
mod unused;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};

pub(crate) use table::UNSAFE_FILES;

/// One broken rule at one place.
#[derive(Debug)]
struct Finding {
    path: String,
    line: usize,
    what: String,
    fix: String,
}

impl Finding {
    fn new(path: &str, line: usize, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { path: path.into(), line, what: what.into(), fix: fix.into() }
    }
}

/// Everything `tidy` found in one tree.
#[derive(Debug)]
pub(crate) struct Report {
    files: usize,
    findings: Vec<Finding>,
}

impl Report {
    /// Whether no rule is broken.
    pub(crate) fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { path, line, what, fix } in &self.findings {
            writeln!(out, "{path}:{line}: {what}; {fix}")?;
        }
        writeln!(out, "tidy: {} files, {} findings", self.files, self.findings.len())
    }
}

/// Checks every text file under `root`.
pub(crate) fn run(root: &Path) -> Result<Report> {
    let mut paths = Vec::new();
    collect(root, &mut paths)?;
    // What `quickstart` and its like leave here is no part of the tree.
    paths.retain(|path| !path.starts_with(root.join("runs")));
    paths.sort();
    // On all processors: every command of ours is built without optimisation.
    let share = paths.len().div_ceil(thread::available_parallelism().map_or(1, usize::from)).max(1);
    let parts = thread::scope(|scope| {
        let parts: Vec<_> =
            paths.chunks(share).map(|part| scope.spawn(move || check_all(root, part))).collect();
        parts.into_iter().map(thread::ScopedJoinHandle::join).collect::<thread::Result<Vec<_>>>()
    });
    let mut report = Report { files: 0, findings: Vec::new() };
    for part in parts.map_err(|_| anyhow::anyhow!("a rule panicked"))? {
        report.files += part.files;
        report.findings.extend(part.findings);
    }
    Ok(report)
}

fn check_all(root: &Path, paths: &[PathBuf]) -> Report {
    let mut report = Report { files: 0, findings: Vec::new() };
    for path in paths {
        let Ok(text) = fs::read_to_string(path) else { continue };
        let relative = path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/");
        report.files += 1;
        report.findings.extend(check(root, &relative, &text));
    }
    report
}

fn check(root: &Path, path: &str, text: &str) -> Vec<Finding> {
    let mut findings = rules::machine_paths(path, text);
    if path.ends_with(".rs") {
        findings.extend(rules::check(path, text, printing(root, path)));
    } else if path.ends_with(".cu") || path.ends_with(".cuh") {
        findings.extend(kernels::check(root, path, text));
    } else if path.ends_with("/Cargo.toml") {
        findings.extend(manifest::check(path, text));
        findings.extend(suite::check(root, path, text));
        findings.extend(unused::check(root, path, text));
    }
    findings
}

/// Libraries below the faces do not print; their tests and all other packages may.
fn printing(root: &Path, path: &str) -> rules::Printing {
    let library =
        path.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/")).map(|(folder, _)| folder);
    let Some(folder) = library else { return rules::Printing::Allowed };
    let text = fs::read_to_string(root.join("crates").join(folder).join("Cargo.toml")).unwrap_or_default();
    match manifest::floor(manifest::package_name(&text)) {
        Some(floor) if floor >= table::PRINTING_FLOOR => rules::Printing::Allowed,
        _ => rules::Printing::Forbidden,
    }
}

/// Adds the text files under `folder`, leaving out hidden folders and build outputs.
fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().with_context(|| format!("cannot look at {}", entry.path().display()))?;
        let output = name == "target" || name.starts_with("target-") || name == "__pycache__";
        let hidden = name.starts_with('.') && name != ".ci" && name != ".cargo";
        if kind.is_dir() && !output && !hidden {
            collect(&entry.path(), paths)?;
        } else if kind.is_file() && is_text(&name) {
            paths.push(entry.path());
        }
    }
    Ok(())
}

fn is_text(name: &str) -> bool {
    let endings = [".rs", ".toml", ".md", ".py", ".sh", ".txt", ".cu", ".cuh"];
    name == "run" || endings.iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_left_here_is_not_looked_at() {
        let root = std::env::temp_dir().join(format!("planaria-tidy-{}", std::process::id()));
        let here = concat!("out = \"/", "home/someone/runs\"\n");
        for folder in ["runs/quickstart", "benches/runs"] {
            fs::create_dir_all(root.join(folder)).unwrap();
            fs::write(root.join(folder).join("config.toml"), here).unwrap();
        }
        let report = run(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((report.files, report.findings.len()), (1, 1), "{report}");
    }

    #[test]
    fn findings_read_as_place_problem_and_cure() {
        let finding = Finding::new("a.rs", 3, "it is long", "cut it");
        let report = Report { files: 1, findings: vec![finding] };
        assert_eq!(report.to_string(), "a.rs:3: it is long; cut it\ntidy: 1 files, 1 findings\n");
    }
}
