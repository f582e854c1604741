//! The head of a record: what was measured, with which command, on which machine.

use std::fmt::Write as _;
use std::path::Path;

use crate::machine::Machine;

/// Title and table of a record in Markdown; `more` are rows that only this benchmark has.
pub fn head(title: &str, command: &str, machine: &Machine, more: &[(&str, String)]) -> String {
    let Machine { cpu, features, cores, memory_gib, kernel, rustc, torch, date, load, nice } = machine;
    let mut text = format!("# {title}, {date}\n\n| | |\n|---|---|\n");
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "| {name} | {value} |");
    };
    row("command", &format!("`{command}`"));
    row("CPU", &format!("{cpu}, {cores} logical"));
    row("instruction sets", &features.join(", "));
    row("memory", &format!("{memory_gib} GiB"));
    row("kernel", kernel);
    row("compiler", rustc);
    if let Some(torch) = torch {
        row("torch", torch);
    }
    more.iter().for_each(|(name, value)| row(name, value));
    row("load average before", load);
    if *nice != 0 {
        row("priority", &format!("nice {nice}, peers alike"));
    }
    text
}

/// How this process was started, for a reader: cargo's words, and a word of ours for the value of each option in
/// `words`, whose value means nothing elsewhere.
pub fn command(program: &str, words: &[(&str, &str)]) -> String {
    shown(program, std::env::args().skip(1), words)
}

fn shown(program: &str, args: impl Iterator<Item = String>, words: &[(&str, &str)]) -> String {
    let mut text = format!("cargo run --release -p planaria-bench --bin {program} --");
    let mut replaced = None;
    for arg in args {
        let (option, value) = arg.split_once('=').map_or((arg.as_str(), None), |(o, v)| (o, Some(v)));
        let word = words.iter().find(|(name, _)| *name == option).map(|(_, word)| *word);
        let _ = match (replaced.take(), word, value) {
            (Some(word), ..) => write!(text, " {word}"),
            (None, Some(word), Some(_)) => write!(text, " {option} {word}"),
            _ if arg.contains(' ') => write!(text, " '{arg}'"),
            _ => write!(text, " {arg}"),
        };
        if value.is_none() && option.starts_with("--") {
            replaced = word;
        }
    }
    text
}

/// The file system and the device that a folder lies on, as the kernel names them.
pub fn disk(folder: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Some((device, system)) = mount_of(&mounts, folder) else { return "unknown".into() };
    let name = std::fs::canonicalize(format!("/sys/dev/block/{device}")).ok();
    match name.as_deref().and_then(Path::file_name) {
        Some(name) => format!("{system} on {}", name.to_string_lossy()),
        None => system.to_owned(),
    }
}

/// Numbers of the device and type of the file system of the innermost mount.
fn mount_of<'a>(mounts: &'a str, folder: &Path) -> Option<(&'a str, &'a str)> {
    let found = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(2);
        let (device, point) = (fields.next()?, fields.nth(1)?);
        folder.starts_with(point).then_some((point.len(), device, after.split(' ').next()?))
    });
    // Of mounts at the same point the last one is seen.
    found.max_by_key(|(len, ..)| *len).map(|(_, device, system)| (device, system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_shows_words_for_paths() {
        let args = ["--folder", "/disk/x", "--rounds", "2", "--python=/opt/p", "--only", "DCP load"];
        let words = [("--folder", "DISK"), ("--python", "PYTHON")];
        let text = shown("b", args.iter().map(|arg| (*arg).to_owned()), &words);
        let wanted = "cargo run --release -p planaria-bench --bin b -- --folder DISK --rounds 2 --python PYTHON \
                      --only 'DCP load'";
        assert_eq!(text, wanted);
    }

    #[test]
    fn the_innermost_mount_is_the_disk() {
        let mounts = "20 1 254:0 / / rw - ext4 /dev/a rw\n21 20 0:5 / /data rw shared:1 - tmpfs none rw\n\
                      22 20 8:1 / /database rw - xfs /dev/b rw\n";
        assert_eq!(mount_of(mounts, Path::new("/data/x")), Some(("0:5", "tmpfs")));
        assert_eq!(mount_of(mounts, Path::new("/home")), Some(("254:0", "ext4")));
        assert_eq!(mount_of("", Path::new("/home")), None);
    }

    #[test]
    fn a_head_is_one_table_with_the_rows_of_the_benchmark() {
        let mut machine = Machine::here(None);
        (machine.nice, machine.date) = (-5, "2026-11-15".into());
        let text = head("Speed", "cargo run", &machine, &[("disk", "ext4".into())]);
        assert!(
            text.starts_with("# Speed, 2026-11-15\n\n| | |\n|---|---|\n| command | `cargo run` |\n"),
            "{text}"
        );
        assert!(
            text.contains("\n| disk | ext4 |\n") && text.ends_with("| priority | nice -5, peers alike |\n")
        );
        assert!(!text.contains("| torch |"), "torch did not run");
    }
}
