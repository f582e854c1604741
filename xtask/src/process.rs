//! Runs commands, shows their output as it comes and keeps a copy of it.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

thread_local! {
    /// The ends of what commands of this thread printed that did not end well, since [`take_unsuccessful`] was last asked.
    static UNSUCCESSFUL: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Lines that are kept of each.
const KEPT: usize = 60;

/// How long one command may take. A command that hangs is ended and told, so that the steps behind it still run.
const LONGEST: Duration = Duration::from_secs(40 * 60);

/// What a command left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Whether it started and ended with exit code 0.
    pub success: bool,
    /// Its standard output and standard error, line by line as they came in.
    pub output: String,
}

/// `cargo` with `args`, to be run in `root`.
///
/// The steps of the test command select targets (`--bin`, `--example`, `--test`), not packages: then every one of them
/// resolves the features of the whole workspace, and they share one build.
pub(crate) fn cargo<S: AsRef<OsStr>>(root: &Path, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Cargo describes the xtask package to it through variables; the commands it starts must not see them.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name.as_ref());
        }
    }
    command.current_dir(root).args(args);
    command
}

/// Runs `command` to its end, passing its output on.
pub(crate) fn run(command: &mut Command) -> Ran {
    run_for(command, LONGEST)
}

/// Runs `command` for no longer than `longest`, passing its output on.
fn run_for(command: &mut Command, longest: Duration) -> Ran {
    eprintln!("$ {}", text(command));
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            let output = format!("cannot start {}: {error}\n", text(command));
            eprint!("{output}");
            return Ran { success: false, output };
        }
    };
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let reader = thread::spawn(move || err.map(|pipe| tee(pipe, io::stderr())).unwrap_or_default());
    let (ended, waits) = mpsc::channel::<()>();
    let first = child.id();
    let watch = thread::spawn(move || {
        let late = waits.recv_timeout(longest) == Err(RecvTimeoutError::Timeout);
        if late {
            end_with_children(first);
        }
        late
    });
    let mut output = out.map(|pipe| tee(pipe, io::stdout())).unwrap_or_default();
    output.push_str(&reader.join().unwrap_or_default());
    let success = child.wait().is_ok_and(|status| status.success());
    drop(ended);
    if watch.join().unwrap_or(false) {
        let told = format!("ended after {} s, which no command should take\n", longest.as_secs());
        eprint!("{told}");
        output.push_str(&told);
    }
    if !success {
        let lines: Vec<&str> = output.lines().collect();
        let end = lines[lines.len().saturating_sub(KEPT)..].join("\n");
        UNSUCCESSFUL.with_borrow_mut(|kept| kept.push_str(&format!("$ {}\n{end}\n", text(command))));
    }
    Ran { success, output }
}

/// The ends of what commands printed that did not end well, so that a failed step can be told again where the reader
/// of a long log looks first: at its end.
pub(crate) fn take_unsuccessful() -> String {
    UNSUCCESSFUL.take()
}

/// Lets everything else that wants the processors go before this thread and the commands that it starts.
pub(crate) fn stand_back() {
    // Where that cannot be, they share them.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(19);
}

/// Kills a process and what it started, youngest last: a parent that is gone starts nothing more.
fn end_with_children(first: u32) {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // Behind the name, which may hold anything: the state, then the parent.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((process, parent))
        })
        .collect();
    let mut family = vec![first];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
        next += 1;
    }
    let numbers = family.iter().map(u32::to_string);
    let _ = Command::new("kill").arg("-KILL").args(numbers).stderr(Stdio::null()).status();
}

/// Runs `command` silently; answers its standard output if it ended well.
pub(crate) fn ask(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn tee(pipe: impl Read, mut to: impl Write) -> String {
    let mut kept = String::new();
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // A closed terminal must not stop the command.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        kept.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    kept
}

fn text(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| {
        value.map(|value| format!("{}={:?}", name.to_string_lossy(), value.to_string_lossy()))
    });
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    set.chain([program.to_string_lossy().into_owned()]).chain(args).collect::<Vec<_>>().join(" ")
}

/// Where cargo puts what it builds.
pub(crate) fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_exit_code_come_back() {
        let ran = run(Command::new("sh").args(["-c", "echo a; echo b >&2; exit 3"]));
        assert!(!ran.success);
        assert_eq!(ran.output, "a\nb\n");
        assert!(run(Command::new("sh").args(["-c", "true"])).success);
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_all_it_started() {
        let hangs = "echo begun; sleep 600 & sleep 600; echo never";
        let ran = run_for(Command::new("sh").args(["-c", hangs]), Duration::from_millis(300));
        assert!(!ran.success);
        assert!(ran.output.starts_with("begun\nended after 0 s"), "{}", ran.output);
    }

    #[test]
    fn a_missing_program_is_a_failure_with_a_reason() {
        let ran = run(&mut Command::new("no-such-program-here"));
        assert!(!ran.success && ran.output.starts_with("cannot start no-such-program-here"));
        assert_eq!(ask(&mut Command::new("no-such-program-here")), None);
    }

    #[test]
    fn variables_show_in_the_text() {
        assert_eq!(text(Command::new("ls").env("A", "b").arg("-l")), "A=\"b\" ls -l");
    }
}
