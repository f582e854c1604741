//! `planaria verify`: is every byte what was written, and is the checkpoint whole.

use crate::checkpoint;
use crate::exit::Exit;
use crate::failure;
use crate::quantity::{Bytes, count};
use crate::terminal::{Style, Terminal};
use anyhow::Result;
use planaria::ckpt::{Verified, verify_with};
use serde_json::{Value, json};

/// Check a checkpoint: every byte against its checksum, and its structure; exits 3 when it is damaged
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Our own folders have a checksum for every block, the archives of torch one for every tensor. Of all \
    formats\nthe structure is checked: headers, missing files, tiles that overlap or leave a hole, copies that differ.\n\
    Exits 1 when all that was found had to be left out. A wrong total in an index is a warning: no reader needs it."
)]
pub(crate) struct Args {
    /// Folder, file or URL of a checkpoint; the folder of a run stands for its newest one
    path: String,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let (store, folder) = checkpoint::locate(&args.path, terminal)?;
    let total = planaria::ckpt::open(&*store, &folder)
        .map_or(0, |ours| ours.files.iter().map(|file| file.size).sum());
    let progress = terminal.progress("verifying", total);
    let checked = verify_with(&store, &folder, &|bytes| progress.add(bytes));
    progress.finish();
    let found = checked.or_else(|error| match failure::exit_of(&error) {
        // A checkpoint that cannot even be opened is damaged; what is none at all is a mistake of the caller.
        Exit::Damaged => {
            let mut found = Verified::default();
            found.problems.push(error);
            Ok(found)
        }
        _ => Err(error),
    })?;
    for warning in &found.warnings {
        terminal.warn(warning);
    }
    if terminal.json {
        terminal.object("planaria/verify/1", &to_json(&args.path, &found))?;
    } else {
        print(terminal, &found)?;
    }
    Ok(match found.is_sound() {
        false => Exit::Damaged,
        // All there is was left out: nobody knows whether it is sound.
        true if found.tensors == 0 && !found.warnings.is_empty() => Exit::Negative,
        true => Exit::Success,
    })
}

fn print(terminal: &mut Terminal, found: &Verified) -> Result<()> {
    for problem in &found.problems {
        let word = terminal.paint(Style::Bad, "damaged:");
        terminal.line(format!("{word} {problem}"))?;
    }
    if found.tensors == 0 && found.files == 0 && !found.is_sound() {
        return Ok(());
    }
    if found.tensors == 0 && !found.summed {
        let text = terminal.paint(Style::Warn, "nothing to check:");
        return terminal.line(format!("{text} no tensor was found in {}", count(found.files, "file")));
    }
    let (tensors, files) = (count(found.tensors, "tensor"), count(found.files, "file"));
    let what = match found.summed {
        true => format!("{tensors} in {files}, {} compared with their checksums", Bytes(found.bytes)),
        false => format!("{tensors} in {files}, structure checked; this format has no checksums"),
    };
    let verdict = match found.problems.len() {
        0 => terminal.paint(Style::Good, "sound"),
        wrong => terminal.paint(Style::Bad, &count(wrong, "problem")),
    };
    terminal.line(format!("{verdict}: {what}"))
}

fn to_json(path: &str, found: &Verified) -> Value {
    json!({
        "path": path,
        "sound": found.is_sound(),
        "summed": found.summed,
        "tensors": found.tensors,
        "files": found.files,
        "bytes": found.bytes,
        "warnings": found.warnings,
        "problems": found.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
