//! What runs beside a loaded row: processes that compute and do nothing else.
//!
//! They are processes, not threads, so that our rows and the peers' meet the same load, and so that their CPU seconds
//! are not counted as ours.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::parent_id;
use std::process::{Child, Command, Stdio};

/// What keeps the processors busy while a row is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    Nothing,
    Busy(usize),
}

/// Busy processes; they end with this value.
pub(crate) struct Busy(Vec<Child>);

impl Beside {
    /// Starts what shall run beside; all of it runs when this returns.
    pub(crate) fn start(self) -> Result<Busy> {
        let Beside::Busy(count) = self else { return Ok(Busy(Vec::new())) };
        let mut busy = Busy(Vec::new());
        let program = std::env::current_exe()?;
        for _ in 0..count {
            let mut command = Command::new(&program);
            command.arg("--spin").stdin(Stdio::null()).stdout(Stdio::piped());
            busy.0.push(command.spawn().context("starting a busy process")?);
        }
        for child in &mut busy.0 {
            let mut line = String::new();
            BufReader::new(child.stdout.take().context("stdout")?).read_line(&mut line)?;
            ensure!(line == "busy\n", "a busy process said {line:?}");
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The whole life of a busy process: it ends when whoever started it is gone.
pub(crate) fn spin() -> Result<()> {
    let parent = parent_id();
    let mut out = std::io::stdout();
    writeln!(out, "busy").and_then(|()| out.flush())?;
    let mut number = 1;
    while parent_id() == parent {
        // Arithmetic, not a pause: a virtual machine may lose its turn when it is seen to wait.
        number = (0..1 << 20).fold(number, |x, _| std::hint::black_box(crate::state::mix(x)));
    }
    Ok(())
}
