//! Processes that wait for rounds of collectives: a line with the collective, its elements and the number of calls is answered with the
//! seconds of one call on the slowest rank.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Ranks of some library, told through the first of them.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts what answers; it ends when this is dropped.
    pub fn start(mut command: Command) -> Result<Peer> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
        Ok(Peer { child, input, output: BufReader::new(output) })
    }

    /// Asks for a round.
    pub fn ask(&mut self, collective: &str, count: usize, calls: usize) -> Result<()> {
        Ok(writeln!(self.input, "{collective} {count} {calls}")?)
    }

    /// The seconds of one call of a round that was asked for.
    pub fn answer(&mut self) -> Result<f64> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("a peer answered {line:?}"))
    }

    /// A round.
    pub fn round(&mut self, collective: &str, count: usize, calls: usize) -> Result<f64> {
        self.ask(collective, count, calls)?;
        self.answer()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.input.write_all(b"end\n");
        let _ = self.child.wait();
    }
}

/// The folder of the peers' sources.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// Open MPI's own collectives, compiled; `None` where its compiler or launcher is missing.
pub fn open_mpi() -> Result<Option<PathBuf>> {
    let found = |tool: &str| {
        let silent = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        silent.is_ok_and(|status| status.success())
    };
    if !found("mpicc") || !found("mpirun") {
        return Ok(None);
    }
    let program = std::env::temp_dir().join(format!("planaria-comm-peer-{}", std::process::id()));
    let source = sources().join("open_mpi.c");
    let built = Command::new("mpicc").args(["-O2", "-o"]).arg(&program).arg(source).status()?;
    match built.success() {
        true => Ok(Some(program)),
        false => bail!("mpicc failed on the peer"),
    }
}

/// `mpirun`, told that root may run it: in a container everything runs as root.
pub fn mpirun(command: &mut Command) -> &mut Command {
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
}
