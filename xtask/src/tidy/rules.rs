//! Rules for Rust files: first line, sizes, unsafe code, macros, unfinished words, printing, names.

use super::Finding;
use super::source::{code_only, functions, is_word, line_of, words};
use super::table::{EMPTY_WORDS, FILE_LINES, FUNCTION_LINES, MACRO_PLACES, UNSAFE_FILES, covers};

/// Whether the package of a file may write to standard output and standard error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Printing {
    Allowed,
    Forbidden,
}

/// Checks one Rust file; `path` is relative to the root and uses `/`.
pub(super) fn check(path: &str, text: &str, printing: Printing) -> Vec<Finding> {
    let code = code_only(text);
    let mut findings = first_line_and_size(path, text);
    findings.extend(long_functions(path, &code));
    findings.extend(unsafe_code(path, text, &code));
    findings.extend(words_out_of_place(path, &code, printing));
    findings.extend(empty_names(path, &code));
    findings.sort_by_key(|finding| finding.line);
    findings
}

fn first_line_and_size(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !text.starts_with("//! ") {
        let fix = "open with a `//!` sentence that says what the file is for";
        findings.push(Finding::new(path, 1, "the file does not say what it is for", fix));
    }
    let lines = text.lines().count();
    if lines > FILE_LINES {
        let fix = format!("split it by subject, at most {FILE_LINES} lines");
        findings.push(Finding::new(path, lines, format!("the file has {lines} lines"), fix));
    }
    findings
}

fn long_functions(path: &str, code: &str) -> Vec<Finding> {
    let too_long = |lines: &usize| *lines > FUNCTION_LINES;
    functions(code)
        .into_iter()
        .filter_map(|f| Some(f.last - f.first + 1).filter(too_long).map(|lines| (f, lines)))
        .map(|(f, lines)| {
            let what = format!("`{}` has {lines} lines", f.name);
            Finding::new(
                path,
                f.first,
                what,
                format!("cut it into steps with names, at most {FUNCTION_LINES} lines"),
            )
        })
        .collect()
}

fn unsafe_code(path: &str, text: &str, code: &str) -> Vec<Finding> {
    let listed = UNSAFE_FILES.iter().any(|pattern| covers(pattern, path));
    let chars: Vec<char> = code.chars().collect();
    let lines: Vec<(&str, &str)> = text.lines().zip(code.lines()).collect();
    let mut findings = Vec::new();
    for (at, _) in words(code).filter(|(_, word)| word == "unsafe") {
        let line = line_of(&chars, at);
        let behind: String = chars[at + 6..].iter().skip_while(|c| c.is_whitespace()).take(4).collect();
        if !listed {
            let fix =
                "write it safely, or list the file in xtask/src/tidy/table.rs and say why in the commit";
            findings.push(Finding::new(path, line, "unsafe code outside the listed files", fix));
        } else if (behind.starts_with('{') || behind == "impl") && !says_why_safe(&lines, line) {
            let fix = "put `// SAFETY:` and the reason on the line above";
            findings.push(Finding::new(path, line, "unsafe code without a SAFETY comment", fix));
        }
    }
    findings
}

/// Whether the statement that reaches `line` is preceded by a SAFETY comment. `lines` pairs text and code.
fn says_why_safe(lines: &[(&str, &str)], line: usize) -> bool {
    for (distance, (text, code)) in lines[..line].iter().rev().enumerate() {
        let code = code.trim();
        if text.contains("SAFETY:") && !code.contains("SAFETY:") {
            return true;
        }
        let blank = text.trim().is_empty();
        // One comment above a `match` speaks for the unsafe blocks in its arms.
        let inside = code.starts_with("#[") || code.contains("=>") || code.starts_with("match ");
        let earlier_statement = code.ends_with([';', '}', '{', ',']) && !inside;
        if distance > 0 && (blank || earlier_statement) {
            return false;
        }
    }
    false
}

fn words_out_of_place(path: &str, code: &str, printing: Printing) -> Vec<Finding> {
    let chars: Vec<char> = code.chars().collect();
    let follows = |at: usize, tail: &str| chars[at..].iter().zip(tail.chars()).all(|(a, b)| *a == b);
    let mut findings = Vec::new();
    for (at, word) in words(code) {
        let is_macro = follows(at + word.chars().count(), "!");
        let is_attribute = at >= 2 && follows(at - 2, "#[");
        let (what, fix) = match word.as_str() {
            "todo" | "unimplemented" if is_macro => ("unfinished code", "finish it, or return a typed error"),
            "dbg" if is_macro => ("a debugging print", "delete it"),
            "ignore" if is_attribute => ("a test that never runs", "make it pass or delete it"),
            "should_panic" if is_attribute => {
                ("a test that expects a panic", "return an error and match on it")
            }
            "macro_rules" if is_macro && !MACRO_PLACES.iter().any(|place| path.starts_with(place)) => {
                ("a macro outside the listed places", "write a function or a trait")
            }
            "print" | "println" | "eprint" | "eprintln" if is_macro && printing == Printing::Forbidden => {
                ("a library prints", "return the text or the error to the caller")
            }
            _ => continue,
        };
        findings.push(Finding::new(path, line_of(&chars, at), format!("`{word}`: {what}"), fix));
    }
    findings
}

fn empty_names(path: &str, code: &str) -> Vec<Finding> {
    let chars: Vec<char> = code.chars().collect();
    let mut findings = Vec::new();
    for (at, keyword) in words(code) {
        if !matches!(keyword.as_str(), "struct" | "enum" | "trait" | "type" | "union") {
            continue;
        }
        let rest = chars[at + keyword.chars().count()..].iter();
        let name: String = rest.skip_while(|c| c.is_whitespace()).take_while(|c| is_word(**c)).collect();
        if let Some(word) = EMPTY_WORDS.iter().find(|word| name.ends_with(**word)) {
            let what = format!("`{name}` ends in `{word}`, which says nothing");
            findings.push(Finding::new(path, line_of(&chars, at), what, "name it after what it is"));
        }
    }
    findings
}

/// Checks any text file for paths that exist on one machine only.
pub(super) fn machine_paths(path: &str, text: &str) -> Vec<Finding> {
    let folders = ["home", "Users", "root", "tmp", "work", "mnt"].map(|folder| format!("/{folder}/"));
    let starts_path = |line: &str, at: usize| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| is_word(c) || "./-~<>{}*".contains(c))
    };
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut hits = folders
            .iter()
            .filter(|folder| line.match_indices(folder.as_str()).any(|(at, _)| starts_path(line, at)));
        if let Some(folder) = hits.next() {
            let fix = "take it from an argument, an environment variable or a temporary folder";
            findings.push(Finding::new(
                path,
                number + 1,
                format!("a path of one machine (`{folder}...`)"),
                fix,
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: &str = "crates/layout/src/x.rs";
    const LISTED: &str = "crates/array/src/buffer.rs";

    fn wrong(path: &str, text: &str) -> Vec<String> {
        let text = format!("//! What it is for.\n{text}");
        check(path, &text, Printing::Forbidden)
            .into_iter()
            .map(|f| format!("{}: {}", f.line, f.what))
            .collect()
    }

    #[test]
    fn the_first_line_says_what_the_file_is_for() {
        assert_eq!(check(ANY, "use x;\n", Printing::Allowed)[0].what, "the file does not say what it is for");
        assert_eq!(wrong(ANY, "use x;\n"), Vec::<String>::new());
    }

    #[test]
    fn sizes_are_bounded() {
        assert_eq!(wrong(ANY, &"\n".repeat(FILE_LINES - 1)), Vec::<String>::new());
        assert_eq!(wrong(ANY, &"\n".repeat(FILE_LINES)), ["601: the file has 601 lines"]);
        let body = |lines| format!("fn f() {{{}}}\n", "\n".repeat(lines));
        assert_eq!(wrong(ANY, &body(FUNCTION_LINES - 1)), Vec::<String>::new());
        assert_eq!(wrong(ANY, &body(FUNCTION_LINES)), ["2: `f` has 61 lines"]);
    }

    #[test]
    fn unsafe_code_stays_in_listed_files() {
        assert_eq!(wrong(ANY, "unsafe fn f() {}\n"), ["2: unsafe code outside the listed files"]);
        assert_eq!(wrong(ANY, "// unsafe\n#![deny(unsafe_code)]\nf(\"unsafe\");\n"), Vec::<String>::new());
        assert_eq!(wrong(LISTED, "unsafe fn f() {}\n"), Vec::<String>::new());
    }

    #[test]
    fn unsafe_blocks_say_why_they_are_sound() {
        let missing = [
            "let x = unsafe { f() };\n",
            "unsafe impl Send for X {}\n",
            "// SAFETY: old\nlet y = 1;\nunsafe { f() };\n",
        ];
        for text in missing {
            assert_eq!(wrong(LISTED, text).len(), 1, "{text}");
            assert!(wrong(LISTED, text)[0].ends_with("without a SAFETY comment"));
        }
        let given = [
            "// SAFETY: x\nlet x = unsafe { f() };\n",
            "// SAFETY: x\n// and y\n#[inline]\nunsafe impl Send for X {}\n",
            "// SAFETY: x\nlet x =\n    unsafe { f() };\n",
            "f(|| unsafe { g() }); // SAFETY: x\n",
            "// SAFETY: x\nmatch y {\n  A => unsafe { f() },\n  B => unsafe { g() },\n}\n",
        ];
        for text in given {
            assert_eq!(wrong(LISTED, text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn unfinished_words_macros_and_prints_are_found() {
        let text = "todo!();\nunimplemented!();\ndbg!(x);\n#[ignore]\n#[should_panic]\nmacro_rules! m {}\nprintln!();\n";
        let lines: Vec<_> =
            check(ANY, &format!("//! x\n{text}"), Printing::Forbidden).iter().map(|f| f.line).collect();
        assert_eq!(lines, [2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(wrong("crates/array/src/cpu/simd.rs", "macro_rules! m {}\n"), Vec::<String>::new());
        assert_eq!(wrong(ANY, "// todo!()\nlet ignore = todo; f(\"dbg!\");\n"), Vec::<String>::new());
        assert!(check(ANY, "//! x\nprintln!();\n", Printing::Allowed).is_empty());
    }

    #[test]
    fn empty_names_are_found() {
        assert_eq!(
            wrong(ANY, "struct BufferManager;\n"),
            ["2: `BufferManager` ends in `Manager`, which says nothing"]
        );
        assert_eq!(wrong(ANY, "struct Managers; trait Basement {}\n"), Vec::<String>::new());
    }

    #[test]
    fn machine_paths_are_found() {
        let bad = format!("open(\"/{}/x\")", "home");
        assert_eq!(machine_paths("a.md", &bad).len(), 1);
        let good = "https://example.org/home/x and ./tmp/x and target/tmp/x and `/proc/self`\n";
        assert_eq!(machine_paths("a.md", good).len(), 0);
    }
}
