//! Tensors on MPI ranks: the reshard cases carried out, and a mixed program whose bits must be those of thread ranks.
//! `cargo xtask test` runs it: `mpirun -n 4 target/debug/examples/mpi_tensors testdata/reshard.jsonl.gz`.

use anyhow::{Context, Result, ensure};
use planaria_comm::{Comm, CommExt, mpi, threads};
use planaria_golden::{mixed_program, run_reshards};
use std::path::PathBuf;
use std::sync::Arc;

fn main() -> Result<()> {
    let path: PathBuf = std::env::args_os().nth(1).context("give the file of reshard cases")?.into();
    mpi::run(&mpi::Options::default(), |comm| check(&path, &comm).map_err(|e| format!("{e:#}")))?;
    Ok(())
}

fn check(path: &std::path::Path, comm: &Arc<dyn Comm>) -> Result<()> {
    let count = run_reshards(path, comm)?;
    let (ours, ops) = mixed_program(comm)?;
    let threads = threads::run(comm.size(), |comm| mixed_program(&comm));
    let theirs = threads.into_iter().collect::<Result<Vec<_>>>()?[comm.rank()].0;
    ensure!(ours == theirs, "rank {}: threads and MPI give different bits", comm.rank());
    if comm.rank() == 0 {
        println!(
            "{count} reshards and {ops} ops with gradients, the same bits on {} MPI ranks and threads",
            comm.size()
        );
    }
    Ok(())
}
