//! The other programs: Python processes that wait for one line per sample.

use crate::meter::Sample;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A Python process (and the ranks it has started) holding the same tensors.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The samples it can take, and what it cannot with the reason.
    pub(crate) cases: Vec<String>,
    pub(crate) skipped: Vec<String>,
}

impl Peer {
    /// Starts `peers/checkpoint.py` with tensors of about `gib` GiB.
    pub(crate) fn start(python: &Path, folder: &Path, gib: f64) -> Result<Peer> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/checkpoint.py");
        let mut command = Command::new(python);
        command.arg(script).arg(folder).arg(gib.to_string()).env("OMP_NUM_THREADS", "1");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting the peers")?;
        let (input, output) = (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
        let mut peer =
            Peer { child, input, output: BufReader::new(output), cases: Vec::new(), skipped: Vec::new() };
        loop {
            match peer.line()?.split_once(' ') {
                Some(("case", name)) => peer.cases.push(name.to_string()),
                Some(("skip", why)) => peer.skipped.push(why.to_string()),
                _ => return Ok(peer),
            }
        }
    }

    /// One sample of a case.
    pub(crate) fn sample(&mut self, case: &str) -> Result<Sample> {
        writeln!(self.input, "{case}").and_then(|()| self.input.flush())?;
        let line = self.line()?;
        let mut words = line.split_whitespace().map(str::parse::<f64>);
        match (words.next(), words.next()) {
            (Some(Ok(seconds)), Some(Ok(cpu))) => Ok(Sample { seconds, cpu: Some(cpu), ..Sample::default() }),
            _ => bail!("the peers answered {line:?} to {case:?}"),
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the peers ended: {:?}", self.child.wait()?);
        }
        Ok(line.trim().to_string())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.input.write_all(b"end\n");
        let _ = self.child.wait();
    }
}
