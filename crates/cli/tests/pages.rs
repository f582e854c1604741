//! The commands on the pages of the guide, run one after the other; what they print must be what the page shows.

use crate::common;
use common::{command, root};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use tempfile::TempDir;

/// A command of a page and the lines below it.
#[derive(Debug, Default)]
struct Shown {
    line: usize,
    command: String,
    output: Vec<String>,
}

/// Every `$ ...` line inside a block marked `console`.
fn commands(page: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let mut inside = false;
    for (number, line) in page.lines().enumerate() {
        match (inside, line) {
            (false, "```console") => inside = true,
            (true, "```") => inside = false,
            (true, line) => match line.strip_prefix("$ ") {
                Some(command) => {
                    found.push(Shown { line: number + 1, command: command.to_string(), output: Vec::new() });
                }
                None => found.last_mut().unwrap().output.push(line.to_string()),
            },
            _ => {}
        }
    }
    found
}

/// Words of a command; quotes keep spaces.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, part) in command.split('\'').enumerate() {
        match number % 2 {
            1 => words.push(part.to_string()),
            _ => words.extend(part.split_whitespace().map(str::to_string)),
        }
    }
    words
}

/// Runs a page in a folder of its own, which it leaves behind.
fn run_page(page: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for given in ["testdata", "examples"] {
        symlink(root().join(given).canonicalize().unwrap(), folder.path().join(given)).unwrap();
    }
    let text = std::fs::read_to_string(page).unwrap();
    let all = commands(&text);
    assert!(!all.is_empty(), "{} shows no command", page.display());
    for shown in all {
        let words = words(&shown.command);
        assert_eq!(words[0], "planaria", "line {}", shown.line);
        let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        let output = command(&args).current_dir(folder.path()).output().unwrap();
        let mut found = String::from_utf8(output.stderr).unwrap();
        found.push_str(&String::from_utf8(output.stdout).unwrap());
        // `...` on a page stands for lines that are left out.
        let found: Vec<&str> = found.lines().collect();
        let expected: Vec<&str> = shown.output.iter().map(String::as_str).collect();
        let fits = match expected.iter().position(|line| *line == "...") {
            None => found == expected,
            Some(at) => {
                let (first, last) = (&expected[..at], &expected[at + 1..]);
                found.starts_with(first) && found.ends_with(last)
            }
        };
        let page = page.file_name().unwrap().to_string_lossy();
        assert!(fits, "{page}, line {}: `{}` prints\n{}", shown.line, shown.command, found.join("\n"));
    }
    folder
}

#[test]
fn the_guide_to_programs_shows_what_the_commands_print() {
    run_page(&root().join("docs/guide/programs.md"));
}

#[test]
fn the_guide_to_checkpoints_shows_what_the_commands_print() {
    run_page(&root().join("docs/guide/checkpoints.md"));
}

#[test]
fn the_guide_to_fine_tuning_ends_with_a_model_that_answers() {
    let folder = run_page(&root().join("docs/guide/finetune.md"));
    // The model that both adapters were merged into knows what each of them learned.
    let mut chat = command(&["chat", "whole", "-q"]);
    chat.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut chat = chat.spawn().unwrap();
    let lines = "Who shines at night?\n/reset\nSalt, salt, salt!\nWhere do they live?\n/undo\n/nothing\n/save said.jsonl\n/quit\nnever asked\n";
    chat.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = chat.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert!(text(&output.stdout).starts_with("Moon.\nWaves.\n"), "{output:?}");
    assert_eq!(text(&output.stdout).lines().count(), 3, "{output:?}");
    let said = std::fs::read_to_string(folder.path().join("said.jsonl")).unwrap();
    let expected = r#"{"messages":[{"role":"user","content":"Salt, salt, salt!"},{"role":"assistant","content":"Waves."}]}"#;
    assert_eq!(said.trim_end(), expected);
}

#[test]
fn the_guide_to_merging_shows_what_the_commands_print() {
    run_page(&root().join("docs/guide/merge.md"));
}

#[test]
fn the_guide_to_models_that_see_shows_what_the_commands_print() {
    run_page(&root().join("docs/guide/vision.md"));
}

#[test]
fn the_guide_to_rewards_shows_what_the_commands_print() {
    run_page(&root().join("docs/guide/rl.md"));
}

#[test]
fn the_guide_to_embeddings_shows_what_the_commands_print() {
    let folder = run_page(&root().join("docs/guide/embeddings.md"));
    let lines = std::fs::read_to_string(folder.path().join("vectors.jsonl")).unwrap();
    let vectors: Vec<Vec<f32>> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lengths = vectors.iter().map(|vector| vector.iter().map(|x| x * x).sum::<f32>());
    assert!(lengths.map(|length| (length - 1.0).abs()).all(|apart| apart < 1e-5), "{lines}");
    assert!(folder.path().join("out/1_Pooling/config.json").exists());
}

#[test]
fn the_guide_to_clusters_shows_what_the_commands_print() {
    let folder = run_page(&root().join("docs/guide/clusters.md"));
    let svg = std::fs::read_to_string(folder.path().join("day.svg")).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.contains("recovering") && svg.contains("stage 15"),
        "{}",
        svg.len()
    );
}
