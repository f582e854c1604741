//! The other programs: Python processes that wait for one line per sample.

use crate::busy::Beside;
use crate::meter::Sample;
use crate::rows::Group;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A Python process (and the ranks it has started) holding the same tensors.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The samples it can take, and what it cannot with the reason.
    pub(crate) cases: Vec<Case>,
    pub(crate) skipped: Vec<String>,
    /// Names and versions of the programs.
    pub(crate) versions: Vec<String>,
}

/// A sample that the peers can take.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) group: Group,
    /// Whether it is taken beside busy processes too.
    pub(crate) loaded: bool,
}

/// What the peers say in one line.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Case(Case),
    Skip(String),
    Version(String),
    Ready,
    Prepared,
    Took(Sample),
    Failed(String),
}

impl Peer {
    /// Starts `peers/checkpoint.py` with tensors of about `gib` GiB; it has done everything once when it answers.
    pub(crate) fn start(python: &Path, folder: &Path, gib: f64) -> Result<Peer> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/checkpoint.py");
        let mut command = Command::new(python);
        command
            .arg(script)
            .arg(folder)
            .arg(gib.to_string())
            .envs([("PYTHONDONTWRITEBYTECODE", "1"), ("PYTHONWARNINGS", "ignore")]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting the peers")?;
        let (input, output) = (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
        let (cases, skipped, versions) = Default::default();
        let mut peer = Peer { child, input, output: BufReader::new(output), cases, skipped, versions };
        loop {
            match peer.line()? {
                Line::Case(case) => peer.cases.push(case),
                Line::Skip(why) => peer.skipped.push(why),
                Line::Version(version) => peer.versions.push(version),
                Line::Ready => return Ok(peer),
                line => bail!("the peers began with {line:?}"),
            }
        }
    }

    /// One sample of a case. A case that fails is noted as skipped and has none.
    pub(crate) fn sample(&mut self, case: &str, beside: Beside) -> Result<Option<Sample>> {
        writeln!(self.input, "{case}").and_then(|()| self.input.flush())?;
        let mut line = self.line()?;
        if let Line::Prepared = line {
            let _busy = beside.start()?;
            writeln!(self.input, "go").and_then(|()| self.input.flush())?;
            line = self.line()?;
        }
        match line {
            Line::Took(sample) => Ok(Some(sample)),
            Line::Failed(why) => {
                self.skipped.push(format!("{case}: {why}"));
                Ok(None)
            }
            line => bail!("the peers answered {line:?} to {case:?}"),
        }
    }

    fn line(&mut self) -> Result<Line> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the peers ended: {:?}", self.child.wait()?);
        }
        serde_json::from_str(&line).with_context(|| format!("the peers said {line:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.input.write_all(b"end\n");
        let _ = self.child.wait();
    }
}
