//! Training on MPI ranks: the same bits as on thread ranks, on several meshes of the ranks there are.
//! `cargo xtask test` runs it: `mpirun -n 4 target/debug/examples/mpi_train FOLDER`.

use anyhow::{Context, Result, ensure};
use planaria::layout::Reduce;
use planaria_array::Array;
use planaria_comm::{AllReduce, Comm, CommExt, mpi};
use planaria_e2e::{Sandbox, tensors};
use planaria_nn::models::Models;
use planaria_train::Trainer;
use planaria_train::plan::{Plan, PlanOptions, model_of};
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

/// A model large enough that what a rank keeps counts more than what libraries do.
const LARGER: [&str; 9] = [
    "model.hidden_size=128",
    "model.intermediate_size=384",
    "model.num_hidden_layers=6",
    "model.vocab_size=1024",
    "data.sequence=64",
    "train.global_batch=16",
    "train.micro_batch=4",
    "train.steps=2",
    "checkpoint.final_save=false",
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
    (0..4).try_for_each(|zero| memory(&sandbox, comm, zero))
}

/// Processes take the memory that the plan tells for the largest rank.
fn memory(sandbox: &Sandbox, comm: &Arc<dyn Comm>, zero: u8) -> Result<()> {
    let (name, zero) = (format!("memory-{zero}"), format!("train.zero={zero}"));
    let config = sandbox.config(&name, "dp=4", &[&LARGER[..], &[&zero]].concat())?;
    let model = model_of(&config, &Models::default())?;
    let plan = Plan::new(&config, &*model, comm.size(), &PlanOptions::default())?;
    let told = plan.largest().context("a plan without ranks")?.memory.total as f64;
    let own = Trainer::new(config).run_on(comm.clone())?.peak_bytes as f64;
    // The plan tells of the rank that takes most; others may take less.
    let most = Array::from_slice(&[own], &[1])?;
    comm.all_reduce(AllReduce { send: most.clone(), recv: most.clone(), op: Reduce::Max })?;
    let took = most.to_vec::<f64>()?[0];
    ensure!((told / took - 1.0).abs() <= 0.05, "{zero}: {told} bytes are planned, {took} were taken");
    if comm.rank() == 0 {
        println!("{zero} of dp=4: {told} bytes planned for a process, {took} taken by the largest");
    }
    Ok(())
}
