//! The `cargo install` lines of the docs: the test command checks what they name, `cargo xtask install` runs them.
//!
//! A line builds everything once more with the features of one package, which takes as long as all other builds of the
//! test command together. So that command asks cargo only whether the package, its features and the lock file are as the
//! line says; whether such builds compile is seen by the steps `tests` and `features`.

use std::path::{Path, PathBuf};

use crate::process::{cargo, run};
use crate::summary::{Counts, Outcome};

/// One line, and where it stands.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    page: String,
    number: usize,
    /// What follows `cargo install`.
    args: Vec<String>,
}

/// Checks every line of the docs.
pub(crate) fn step(root: &Path) -> (Outcome, Counts) {
    each(root, |line| {
        let Some((folder, features)) = named(&line.args) else {
            eprintln!("error: the arguments are not `--path FOLDER`, `--features LIST` and `--locked`");
            return false;
        };
        let manifest = folder.join("Cargo.toml");
        let text = std::fs::read_to_string(root.join(&manifest)).unwrap_or_default();
        if !text.contains("[[bin]]") {
            eprintln!("error: {} describes no program", manifest.display());
            return false;
        }
        let manifest = manifest.display().to_string();
        let tree = ["tree", "--quiet", "--locked", "--depth", "0", "--manifest-path", &manifest];
        run(cargo(root, tree).args(["--features", &features])).success
    })
}

/// Runs every line as it stands, except that programs go to `target/installed`.
pub(crate) fn run_alone(root: &Path) -> bool {
    let folder = root.join("target/installed");
    let (outcome, _) = each(root, |line| {
        let to = ["--force", "--root", &folder.display().to_string()].map(str::to_owned);
        let program = folder.join("bin/planaria");
        run(cargo(root, ["install"]).args(&line.args).args(to)).success
            && run(std::process::Command::new(program).arg("--version")).success
    });
    outcome == Outcome::Passed
}

/// Does something with every line; fails where there is none to do it with.
fn each(root: &Path, does: impl Fn(&Line) -> bool) -> (Outcome, Counts) {
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    add_pages(&root.join("docs"), &mut pages);
    let mut counts = Counts::default();
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap_or_default();
        for line in lines(&page.strip_prefix(root).unwrap_or(&page).display().to_string(), &text) {
            match does(&line) {
                true => counts.passed += 1,
                false => {
                    eprintln!("{}:{}: `cargo install {}`", line.page, line.number, line.args.join(" "));
                    counts.failed += 1;
                }
            }
        }
    }
    let passed = counts.failed == 0 && counts.passed > 0;
    (if passed { Outcome::Passed } else { Outcome::Failed }, counts)
}

fn add_pages(folder: &Path, pages: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        match path.is_dir() {
            true => add_pages(&path, pages),
            false if path.extension().is_some_and(|extension| extension == "md") => pages.push(path),
            false => {}
        }
    }
}

/// The lines of a page. The name of the command alone is none, nor are programs of others.
fn lines(page: &str, text: &str) -> Vec<Line> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for rest in line.split("cargo install ").skip(1) {
            let own = rest.split(['#', '`']).next().unwrap_or_default();
            let args: Vec<String> = own.split_whitespace().map(str::to_owned).collect();
            if args.iter().any(|arg| arg == "--path") {
                found.push(Line { page: page.to_owned(), number: number + 1, args });
            }
        }
    }
    found
}

/// The folder and the features that a line names.
fn named(args: &[String]) -> Option<(PathBuf, String)> {
    let (mut folder, mut features) = (None, String::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--locked" => {}
            "--path" => folder = Some(PathBuf::from(args.next()?)),
            "--features" => features = args.next()?.clone(),
            _ => return None,
        }
    }
    Some((folder?, features))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_in_blocks_and_in_sentences() {
        let page = "`cargo install`\n$ cargo install --locked --path crates/cli   # why\nas in `cargo install --path a \
                    --features b,c`, or `cargo install --locked cargo-deny`";
        let found = lines("p.md", page);
        let named: Vec<_> = found.iter().map(|line| (line.number, named(&line.args).unwrap())).collect();
        assert_eq!(named, [(2, ("crates/cli".into(), String::new())), (3, ("a".into(), "b,c".to_owned())),]);
    }

    #[test]
    fn other_arguments_are_not_passed_over() {
        let args = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(named(&args("--path a --fast")), None);
        assert_eq!(named(&args("--locked")), None);
    }
}
