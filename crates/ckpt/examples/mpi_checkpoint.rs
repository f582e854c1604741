//! Checkpoints of MPI ranks: saved under one random layout, loaded under another, and the same files as from threads.
//! `cargo xtask test` runs it: `mpirun -n 4 target/debug/examples/mpi_checkpoint 12`.

#[path = "../tests/common/states.rs"]
mod states;

use planaria_ckpt::{LoadOptions, SaveOptions, load, save};
use planaria_comm::{Comm, CommExt, Value, mpi, threads, value};
use planaria_store::{Local, StoreExt};
use states::{Dice, Holding, compare, contents, globals, holding, known, mesh, state};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let cases: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(12);
    mpi::run(&mpi::Options::default(), |comm| check(cases, &comm).map_err(|e| e.to_string()))?;
    Ok(())
}

fn check(cases: u64, comm: &Arc<dyn Comm>) -> Result<(), Box<dyn Error>> {
    let root = common_folder(&**comm)?;
    let store = Local::new(&root);
    for seed in 0..cases {
        let mut dice = Dice::new(seed + 77);
        let globals = globals(&mut dice, 6);
        let ranks = comm.size();
        let plan = |dice: &mut Dice| -> Vec<Holding> {
            let mesh = mesh(dice, ranks);
            globals.iter().map(|global| holding(dice, &mesh, &global.shape)).collect()
        };
        let (held, wanted) = (plan(&mut dice), plan(&mut dice));
        let options = SaveOptions { max_file_size: 500, ..SaveOptions::default() };
        let folder = format!("case-{seed}");
        // Every other case without a word between ranks about who holds what.
        let knows = |holdings: &[Holding]| (seed % 2 == 1).then(|| known(&globals, holdings));
        let mut saved = state(&globals, &held, comm.rank(), true);
        saved.known = knows(&held);
        save(&**comm, &store, &folder, &saved, &options)?;
        let mut loaded = state(&globals, &wanted, comm.rank(), false);
        loaded.known = knows(&wanted);
        load(&**comm, &store, &folder, &mut loaded, &LoadOptions::default())?;
        compare(&loaded, &globals);
        if comm.rank() == 0 {
            let again = format!("threads-{seed}");
            let ends = threads::run(ranks, |world| {
                save(&*world, &store, &again, &state(&globals, &wanted, world.rank(), true), &options)
            });
            ends.into_iter().collect::<Result<Vec<_>, _>>()?;
            let data = |folder: &str| {
                let mut files = contents(&store, folder);
                files.retain(|name, _| name.contains("safetensors"));
                files
            };
            assert!(data(&folder) == data(&again), "case {seed}: threads and MPI write different files");
        }
        comm.barrier()?;
    }
    if comm.rank() == 0 {
        store.delete_all("")?;
        std::fs::remove_dir(&root)?;
        println!("{cases} checkpoints saved, loaded elsewhere and compared on {} MPI ranks", comm.size());
    }
    Ok(())
}

/// A folder that rank 0 names.
fn common_folder(comm: &dyn Comm) -> Result<PathBuf, Box<dyn Error>> {
    let name = format!("planaria-mpi-checkpoint-{}", std::process::id());
    match value::broadcast(comm, &Value::Text(name), 0)? {
        Value::Text(name) => Ok(std::env::temp_dir().join(name)),
        other => Err(format!("{other:?} is not a folder").into()),
    }
}
