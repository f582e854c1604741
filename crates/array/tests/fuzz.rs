//! Random operations on random views for a few seconds: nothing panics, nothing hangs, and views give what
//! contiguous copies give. `PLANARIA_FUZZ_SEED` and `PLANARIA_FUZZ_ROUNDS` repeat or extend a run.

use planaria_array::selftest::fuzz::{Args, Operation, Rng, difference, operations};
use planaria_array::{Array, DType, Device, Error};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs one case; the text of a failure begins with the seed that repeats it.
fn check(seed: u64, Operation { name, run, same_on_copies }: Operation) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let args = Args::random(&mut rng, Device::Cpu).expect("small arrays");
    let told = |what: String| Err(format!("seed {seed}, {name}: {what}\n{}", args.describe()));
    let guarded = |args: &Args| catch_unwind(AssertUnwindSafe(|| run(&mut rng.clone(), args)));
    let Ok(view) = guarded(&args) else { return told("panicked".into()) };
    // Only a view can have cells that share memory.
    if !same_on_copies || matches!(view, Err(Error::OverlappingWrite { .. })) {
        return Ok(());
    }
    let Ok(copy) = guarded(&args.contiguous().expect("small copies")) else {
        return told("panicked on a copy".into());
    };
    match difference(&view, &copy) {
        Some(what) => told(what),
        None => Ok(()),
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Runs every operation so many times; says before each one what it is about to do.
fn fuzz(seed: u64, rounds: u64, say: impl Fn(String)) -> (u64, Vec<String>) {
    let all: Vec<Operation> = operations().collect();
    let (mut count, mut failures) = (0u64, Vec::new());
    while count < rounds && failures.len() < 5 {
        for (i, &operation) in all.iter().enumerate() {
            let seed = seed.wrapping_add(count).wrapping_mul(1 << 8).wrapping_add(i as u64);
            say(format!("seed {seed}, {}", operation.name));
            failures.extend(check(seed, operation).err());
        }
        count += 1;
    }
    (count * all.len() as u64, failures)
}

#[test]
fn random_operations_neither_panic_nor_hang_nor_depend_on_strides() {
    let seed = setting("PLANARIA_FUZZ_SEED", 20_260_727);
    let rounds = setting("PLANARIA_FUZZ_ROUNDS", 400);
    let (progress, watch) = channel();
    let worker = std::thread::spawn(move || fuzz(seed, rounds, |case| drop(progress.send(case))));
    let mut last = String::from("the start");
    loop {
        match watch.recv_timeout(Duration::from_secs(30)) {
            Ok(case) => last = case,
            Err(RecvTimeoutError::Timeout) => panic!("no end after 30 seconds: {last}"),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let (count, failures) = worker.join().expect("the worker catches panics");
    println!("{count} cases from seed {seed}");
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn absurd_sizes_are_refused_before_any_allocation() {
    for shape in [&[usize::MAX][..], &[1 << 40, 1 << 40], &[0, usize::MAX, 2], &[isize::MAX as usize, 9]] {
        assert!(matches!(Array::zeros(shape, DType::U8), Err(Error::Layout(_))), "{shape:?}");
        assert!(Array::meta(shape, DType::U8).is_err() && Array::full(shape, 1, DType::I64).is_err());
        assert!(Array::from_slice(&[1u8], shape).is_err());
        let one = Array::zeros(&[1], DType::F32).expect("one element");
        assert!(
            one.broadcast_to(shape).is_err() && one.reshape(shape).is_err() && one.repeat(shape).is_err()
        );
        assert!(one.as_strided(shape, &vec![isize::MAX; shape.len()], usize::MAX).is_err());
    }
}
