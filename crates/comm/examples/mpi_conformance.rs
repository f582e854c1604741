//! The conformance suite on MPI ranks, and the promises that need several processes. `cargo xtask test` runs it:
//! `mpirun -n 4 target/debug/examples/mpi_conformance`.

use planaria_array::{Array, DType};
use planaria_comm::mpi::{self, Options};
use planaria_comm::{AllReduce, Broadcast, Comm, CommExt, Error, Recv, conformance, threads};
use planaria_layout::Reduce;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

fn main() -> ExitCode {
    let what = std::env::args().nth(1).unwrap_or_else(|| "all".into());
    let mut options = Options::default();
    let outcome = match what.as_str() {
        "all" => mpi::run(&options, all),
        // Messages past MPI's count limit, with the limit made small.
        "pieces" => {
            options.piece = 1000;
            mpi::run(&options, all)
        }
        "timeout" => {
            options.timeout = Duration::from_millis(300);
            return failing(late, &options, |e| matches!(e, Error::Timeout { .. } | Error::Aborted { .. }));
        }
        "panic" => return failing(dying, &options, |e| matches!(e, Error::Aborted { rank: 1, .. })),
        "mismatch" => {
            let told = |e: &Error| e.to_string().contains("barrier") && e.to_string().contains("all_reduce");
            return failing(differing, &options, told);
        }
        "huge" => mpi::run(&options, huge),
        other => {
            eprintln!("unknown part {other}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The suite, then random programs that must give the bits of thread ranks.
fn all(comm: Arc<dyn Comm>) -> Result<(), String> {
    let rank = comm.rank();
    conformance::run(&comm).map_err(|(name, failure)| format!("rank {rank}: {name}: {failure}"))?;
    for seed in 0..3 {
        let ours = conformance::digest(&comm, seed, 40).map_err(|e| e.0)?;
        let threads = threads::run(comm.size(), |comm| conformance::digest(&comm, seed, 40));
        if Ok(ours) != threads[rank] {
            return Err(format!("rank {rank}: threads and MPI differ with seed {seed}"));
        }
    }
    Ok(())
}

fn sum(comm: &Arc<dyn Comm>) -> Result<(), Error> {
    let x = Array::full(&[4], 1, DType::F32)?;
    comm.all_reduce(AllReduce { send: x.clone(), recv: x, op: Reduce::Sum })
}

/// Rank 1 does not come in time.
fn late(comm: Arc<dyn Comm>) -> Result<(), Error> {
    comm.barrier()?;
    if comm.rank() == 1 {
        std::thread::sleep(Duration::from_millis(800));
    }
    let end = sum(&comm);
    match &end {
        Err(Error::Timeout { call: "all_reduce", sequence: 1, missing, .. }) if missing == &[1] => end,
        // Peers may hear of it before their own limit; the late rank always does.
        Err(Error::Aborted { reason, .. })
            if reason.contains("all_reduce number 1: rank 1 did not arrive") =>
        {
            end
        }
        other => Err(Error::Engine { engine: "test", what: format!("unexpected: {other:?}") }),
    }
}

/// Rank 1 panics while the others wait for it.
fn dying(comm: Arc<dyn Comm>) -> Result<(), Error> {
    comm.barrier()?;
    match comm.rank() {
        1 => std::panic::panic_any("lost power".to_string()),
        0 => sum(&comm),
        _ => comm.recv(Recv { data: Array::zeros(&[1], DType::F32)?, from: 1, tag: 0 }),
    }
}

/// Rank 0 makes another call than the rest.
fn differing(comm: Arc<dyn Comm>) -> Result<(), Error> {
    if comm.rank() == 0 { comm.barrier() } else { sum(&comm) }
}

/// More bytes than an `int` counts.
fn huge(comm: Arc<dyn Comm>) -> Result<(), Error> {
    let count = (1usize << 31) + 5;
    let data = Array::full(&[count], if comm.rank() == 0 { 7 } else { 0 }, DType::U8)?;
    comm.broadcast(Broadcast { data: data.clone(), root: 0 })?;
    let (first, last) = (data.narrow(0, 0, 1)?, data.narrow(0, count - 1, 1)?);
    match first.to_vec::<u8>()? == [7] && last.to_vec::<u8>()? == [7] {
        true => Ok(()),
        false => Err(Error::Engine { engine: "test", what: "bytes were lost".into() }),
    }
}

/// Every rank must fail, in the right way, and says so: `mpirun` itself ends badly then.
fn failing(
    work: fn(Arc<dyn Comm>) -> Result<(), Error>,
    options: &Options,
    right: fn(&Error) -> bool,
) -> ExitCode {
    let end = std::panic::catch_unwind(|| mpi::run(options, work));
    match end {
        Ok(Err(error)) if !right(&error) => eprintln!("wrong error: {error}"),
        Ok(Ok(())) => eprintln!("no error"),
        // The rank that panics, and those that hear of it.
        Err(_) | Ok(Err(_)) => println!("ended as expected"),
    }
    // The first to exit takes the others with it: let them speak.
    std::thread::sleep(Duration::from_millis(1500));
    ExitCode::FAILURE
}
