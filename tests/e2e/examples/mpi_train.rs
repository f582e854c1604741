//! Training on MPI ranks: the same bits as on thread ranks, on several meshes of the ranks there are.
//! `cargo xtask test` runs it: `mpirun -n 4 target/debug/examples/mpi_train FOLDER`.

use anyhow::{Context, Result, ensure};
use planaria_comm::{Comm, CommExt, mpi};
use planaria_e2e::{Sandbox, tensors};
use planaria_train::Trainer;
use std::path::PathBuf;
use std::sync::Arc;

/// Meshes of four ranks, with what is divided over data ranks.
const MESHES: [(&str, &[&str]); 5] = [
    ("dp=4", &["train.zero=1"]),
    ("dp=4", &["train.zero=3", "train.shard=parameter", "train.recompute=full"]),
    ("pp=2 dp=2", &["train.zero=3", "checkpoint.every=1"]),
    ("dp=2 tp=2", &["train.sequence_parallel=true"]),
    ("pp=2 tp=2", &["train.schedule=zb_h1"]),
];

fn main() -> Result<()> {
    let folder: PathBuf = std::env::args_os().nth(1).context("give a folder for the runs")?.into();
    mpi::run(&mpi::Options::default(), |comm| check(&folder, &comm).map_err(|e| format!("{e:#}")))?;
    Ok(())
}

fn check(folder: &std::path::Path, comm: &Arc<dyn Comm>) -> Result<()> {
    if comm.rank() == 0 && folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    comm.barrier()?;
    let sandbox = comm.agree(Sandbox::at(folder).map_err(|e| e.to_string()))?;
    for (number, (mesh, more)) in MESHES.iter().enumerate() {
        let name = format!("mpi-{number}");
        let outcome = Trainer::new(sandbox.config(&name, mesh, more)?).run_on(comm.clone())?;
        if comm.rank() == 0 {
            let threads = sandbox.train(&format!("threads-{number}"), mesh, more)?;
            ensure!(outcome.losses == threads.outcome.losses, "{mesh}: the losses differ");
            let saved = outcome.checkpoint.as_deref().context("nothing was saved")?;
            let found = tensors(&sandbox.run_dir(&name).join(saved))?;
            ensure!(found == threads.tensors, "{mesh}: the weights differ");
            println!("{mesh}: {} steps, the same bits on MPI ranks and threads", outcome.step);
        }
        comm.barrier()?;
    }
    Ok(())
}
