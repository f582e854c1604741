//! Licences, bans and sources of every dependency, by `deny.toml`: read from `cargo tree`, so that no tool need be
//! installed; `cargo deny` adds the advisories where it is.

use std::path::Path;

use crate::process::{ask, cargo, run};
use crate::summary::{Counts, Outcome};

/// Checks every package that any feature pulls in.
pub(crate) fn step(root: &Path) -> (Outcome, Counts) {
    let Ok(policy) = std::fs::read_to_string(root.join("deny.toml")) else {
        eprintln!("error: there is no deny.toml");
        return (Outcome::Failed, Counts::default());
    };
    let tree = [
        "tree",
        "--workspace",
        "--all-features",
        "--edges",
        "normal,build,dev",
        "--prefix",
        "none",
        "--no-dedupe",
    ];
    let Some(packages) = ask(cargo(root, tree).args(["--format", "{p}|{l}"])) else {
        eprintln!("error: `cargo tree` failed; run it to see why");
        return (Outcome::Failed, Counts::default());
    };
    let findings = check(&policy, &packages, &root.display().to_string());
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    (if findings.is_empty() { Outcome::Passed } else { Outcome::Failed }, Counts::default())
}

/// Known vulnerabilities, where `cargo deny` and its database can be had.
pub(crate) fn advisories(root: &Path) -> (Outcome, Counts) {
    let missing = |reason: &str| (Outcome::Skipped(reason.into()), Counts::default());
    if ask(&mut cargo(root, ["deny", "--version"])).is_none() {
        return missing("cargo-deny is not installed; `cargo install --locked cargo-deny` builds it");
    }
    if ask(&mut cargo(root, ["deny", "fetch", "db"])).is_none() {
        return missing("cargo-deny cannot fetch its database");
    }
    let ran = run(&mut cargo(root, ["deny", "--all-features", "check", "--hide-inclusion-graph"]));
    (if ran.success { Outcome::Passed } else { Outcome::Failed }, Counts::default())
}

/// What is wrong with `packages`, lines of `NAME vVERSION (SOURCE)|LICENCE`.
fn check(policy: &str, packages: &str, root: &str) -> Vec<String> {
    let (allowed, banned) = (strings(policy, "licenses", "allow"), strings(policy, "bans", "deny"));
    let mut lines: Vec<_> = packages.lines().filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    lines.dedup();
    let mut findings = Vec::new();
    for line in lines {
        // A package that depends on itself, as tests may for features, is marked where it comes again.
        let (package, licence) = line.trim_end_matches(" (*)").split_once('|').unwrap_or((line, ""));
        let name = package.split(' ').next().unwrap_or_default();
        if !permits(licence, &|term| allowed.iter().any(|known| known == term)) {
            findings
                .push(format!("{package}: licence `{licence}` is not among those deny.toml allows; drop it"));
        }
        if banned.iter().any(|known| known == name) {
            findings.push(format!("{package}: deny.toml bans it; find what needs it with `cargo tree -i`"));
        }
        let notes = package.split('(').skip(1).map(|note| note.split(')').next().unwrap_or_default());
        for note in notes.filter(|note| *note != "proc-macro" && *note != "*" && !note.starts_with(root)) {
            findings.push(format!("{package}: comes from {note}; take it from crates.io"));
        }
    }
    findings
}

/// The strings of a list in `deny.toml`.
fn strings(policy: &str, section: &str, key: &str) -> Vec<String> {
    let rest = policy.split_once(&format!("[{section}]")).map_or("", |(_, rest)| rest);
    let own = rest.split("\n[").next().unwrap_or_default();
    let start = format!("\n{key} = [");
    let list = own.split_once(&start).and_then(|(_, list)| list.split_once(']')).map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether a licence expression can be met: `OR` is weaker than `AND`, `/` is an old `OR`, parentheses group.
fn permits(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (met, rest) = either(&words, allowed);
    met && rest.is_empty()
}

fn either<'a>(words: &'a [&'a str], allowed: &dyn Fn(&str) -> bool) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = both(words, allowed);
    while let Some((&"OR", behind)) = rest.split_first() {
        let (other, next) = both(behind, allowed);
        (met, rest) = (met | other, next);
    }
    (met, rest)
}

fn both<'a>(words: &'a [&'a str], allowed: &dyn Fn(&str) -> bool) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = term(words, allowed);
    while let Some((&"AND", behind)) = rest.split_first() {
        let (other, next) = term(behind, allowed);
        (met, rest) = (met & other, next);
    }
    (met, rest)
}

fn term<'a>(words: &'a [&'a str], allowed: &dyn Fn(&str) -> bool) -> (bool, &'a [&'a str]) {
    match words {
        ["(", inner @ ..] => {
            let (met, rest) = either(inner, allowed);
            match rest.split_first() {
                Some((&")", behind)) => (met, behind),
                _ => (false, rest),
            }
        }
        [licence, "WITH", exception, rest @ ..] => (allowed(&format!("{licence} WITH {exception}")), rest),
        [licence, rest @ ..] => (allowed(licence), rest),
        [] => (false, words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str =
        "[licenses]\nallow = [\n    \"MIT\",\n    \"A WITH B\",\n]\n\n[bans]\ndeny = [\"bad\"]\n";

    #[test]
    fn expressions_are_read_as_they_are_meant() {
        let allowed = |term: &str| ["MIT", "ISC", "A WITH B"].contains(&term);
        for met in [
            "MIT",
            "GPL OR MIT",
            "MIT/GPL",
            "MIT AND ISC",
            "GPL OR MIT AND ISC",
            "(GPL OR MIT) AND ISC",
            "A WITH B",
        ] {
            assert!(permits(met, &allowed), "{met}");
        }
        for unmet in ["", "GPL", "MIT AND GPL", "(MIT OR ISC) AND GPL", "A", "(MIT", "MIT ISC", "GPL OR"] {
            assert!(!permits(unmet, &allowed), "{unmet}");
        }
    }

    #[test]
    fn licences_bans_and_sources_are_checked() {
        let good = "a v1.0.0|MIT\nb v2.0.0 (proc-macro)|A WITH B\nc v0.1.0 (/here/c)|MIT\nc v0.1.0 (/here/c)|MIT (*)\n";
        assert_eq!(check(POLICY, good, "/here"), Vec::<String>::new());
        let wrong = |line: &str| check(POLICY, line, "/here").len();
        assert_eq!(wrong("a v1.0.0|GPL-3.0"), 1);
        assert_eq!(wrong("a v1.0.0|"), 1);
        assert_eq!(wrong("bad v1.0.0|MIT"), 1);
        assert_eq!(wrong("a v1.0.0 (https://example.org/a#1)|MIT"), 1);
    }
}
