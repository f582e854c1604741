//! Running the real command on the small checkpoints of `testdata/`.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// What a run of the command left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Exit code; none when a signal ended it.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The command, to be run in `testdata/`, with nothing of the environment that changes its output.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    command.args(args).current_dir(root().join("testdata")).stdin(Stdio::null());
    for name in ["NO_COLOR", "PLANARIA_NO_PROGRESS", "CLICOLOR_FORCE", "COLUMNS"] {
        command.env_remove(name);
    }
    command
}

/// Runs the command to its end.
pub(crate) fn planaria(args: &[&str]) -> Ran {
    let output = command(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs the command, which must succeed; what it printed.
pub(crate) fn succeed(args: &[&str]) -> String {
    let ran = planaria(args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.err);
    ran.out
}

/// Runs the command, which must succeed; the most kilobytes that were resident at once.
pub(crate) fn peak_of(args: &[&str]) -> u64 {
    let mut child = command(args).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let told = std::fs::read_to_string(&status).unwrap_or_default();
        let line = told.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok());
        peak = peak.max(kilobytes.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
    peak
}

/// A path as text.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The names of everything below a folder, sorted.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_string());
            }
        }
    }
    found.sort();
    found
}

/// A safetensors file of this many bytes, without data blocks on disk.
pub(crate) fn sparse(path: &Path, tensors: usize, rows: usize, columns: usize) {
    let each = rows * columns * 4;
    let entries: Vec<String> = (0..tensors)
        .map(|i| {
            let (start, end) = (i * each, (i + 1) * each);
            format!(r#""t{i}":{{"dtype":"F32","shape":[{rows},{columns}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    std::fs::write(path, &bytes).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len((bytes.len() + tensors * each) as u64).unwrap();
}

/// Names directly in a folder, sorted.
pub(crate) fn top(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
