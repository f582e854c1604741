//! `docs/reference/cli.md`: made from the command line itself, and compared with it by a test.

use crate::args::Cli;
use clap::{Command, CommandFactory};
use std::path::Path;

/// Set to write the file instead of comparing it.
const BLESS: &str = "PLANARIA_BLESS";

/// The page.
fn page() -> String {
    let mut command = Cli::command().term_width(100);
    command.build();
    let mut text = String::from(
        "# The command line\n\nMade from the command itself: `PLANARIA_BLESS=1 cargo test -p planaria-cli reference`.\n",
    );
    section(&mut command, "planaria", &mut text);
    text
}

fn section(command: &mut Command, name: &str, text: &mut String) {
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", help.join("\n").trim_end()));
    for below in command.get_subcommands_mut() {
        let name = format!("{name} {}", below.get_name());
        section(below, &name, text);
    }
}

#[test]
fn the_reference_page_says_what_the_command_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let page = page();
    if std::env::var_os(BLESS).is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(written == page, "docs/reference/cli.md is out of date; run with {BLESS}=1 to write it again");
}
