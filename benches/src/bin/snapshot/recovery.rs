//! How long the state of a run takes to come back from each tier, beside a copy of as many bytes.

use anyhow::Result;
use planaria_array::{Array, DType};
use planaria_bench::cache;
use planaria_bench::stats::median;
use planaria_ckpt::{Item, LoadOptions, SaveOptions, TensorKind, TrainState, load, save};
use planaria_comm::alone;
use planaria_store::{Agent, StoreExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Rounds of each place.
const ROUNDS: usize = 5;

/// Bytes of one tensor.
const TENSOR: usize = 16 << 20;

/// The rows of a table, and what missed its bar.
pub(super) fn measure(folder: &Path, gib: f64) -> Result<(Vec<String>, Vec<String>)> {
    let tensors = ((gib * f64::from(1 << 30)) as usize / TENSOR).max(1);
    let state = |value: i32| -> Result<TrainState> {
        let item = |number: usize| {
            let array = Array::full(&[TENSOR / 4], value, DType::F32)?;
            Ok(Item::whole(TensorKind::Parameter, format!("tensor.{number}"), &array))
        };
        Ok(TrainState::new((0..tensors).map(item).collect::<Result<_>>()?))
    };
    let (from, mut into) = (state(3)?, state(0)?);
    let copy = of_rounds(|| {
        let pairs = from.items.iter().zip(&into.items);
        let began = Instant::now();
        for (from, into) in pairs {
            into.pieces[0].array.copy_from(&from.pieces[0].array)?;
        }
        Ok(began.elapsed().as_secs_f64())
    })?;
    let (mut rows, mut missed) = (vec![row("copy in memory", copy, copy)], Vec::new());
    // Names of this process, so that one that was ended leaves nothing in the way of the next.
    let memory = PathBuf::from("/dev/shm").join(format!("planaria-bench-{}", std::process::id()));
    let agent = Agent::listen("127.0.0.1:0", u64::MAX, "")?;
    let (memory_at, disk) =
        (memory.display().to_string(), folder.join(format!("recovery-{}", std::process::id())));
    let peer = format!("peer://{}/recovery", agent.address());
    let places = [
        ("memory", memory_at, None, Some(1.5)),
        ("a peer on this machine", peer, None, None),
        ("folder, cached", disk.display().to_string(), None, None),
        ("folder, from the disk", disk.display().to_string(), Some(disk.join("c")), None),
    ];
    for (name, place, cold, bar) in places {
        let store = planaria_store::open(&place)?;
        save(&*alone(), &*store, "c", &from, &SaveOptions::default())?;
        let took = of_rounds(|| {
            if let Some(files) = &cold {
                cache::forget(files)?;
            }
            let began = Instant::now();
            load(&*alone(), &*store, "c", &mut into, &LoadOptions::default())?;
            Ok(began.elapsed().as_secs_f64())
        });
        store.delete_all("c")?;
        let took = took?;
        rows.push(row(name, took, copy));
        if bar.is_some_and(|bar| took > bar * copy) {
            missed.push(format!("recovery from {name} takes {:.2} copies", took / copy));
        }
    }
    for place in [memory, disk] {
        std::fs::remove_dir_all(place)?;
    }
    Ok((rows, missed))
}

fn of_rounds(mut round: impl FnMut() -> Result<f64>) -> Result<f64> {
    round()?;
    let all = (0..ROUNDS).map(|_| round()).collect::<Result<Vec<f64>>>()?;
    Ok(median(all).unwrap_or(f64::NAN))
}

fn row(name: &str, seconds: f64, copy: f64) -> String {
    format!("| {name} | {seconds:.3} | {:.2} |", seconds / copy)
}
