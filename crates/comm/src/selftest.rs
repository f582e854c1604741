//! Communication with the memory of a device, for `planaria selftest`: every check of [`conformance`](crate::conformance) on thread
//! ranks that share it, and over NCCL with a world of one.

use crate::comm::Comm;
use crate::conformance::{CHECKS, Check, Outcome, Site, digest, digest_on};
use crate::nccl::{self, Alone};
use crate::threads::{self, Options};
use planaria_array::Device;
use planaria_array::selftest::{Plan, Report};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ranks that share a device.
const RANKS: [usize; 2] = [2, 4];
/// No check takes this long.
const PATIENCE: Duration = Duration::from_secs(120);
/// Seeds and steps of random programs.
const PROGRAMS: (u64, usize) = (4, 40);

/// Runs the families `comm` and `nccl`, as far as the plan wants them, and adds what they found.
pub fn run(plan: &Plan, report: &mut Report) {
    let begun = Instant::now();
    let in_time = || plan.limit.is_none_or(|limit| begun.elapsed() < limit);
    if plan.wants("comm") {
        for ranks in RANKS {
            let made = |work: &(dyn Fn(Arc<dyn Comm>) -> Outcome + Sync)| {
                let ends = threads::try_run(&Options::new(ranks).timeout(PATIENCE), work);
                ends.map(drop).map_err(|error| error.to_string())
            };
            family("comm", &format!("{ranks} ranks"), plan, report, &in_time, &made);
        }
    }
    if let (true, Device::Cuda(ordinal)) = (plan.wants("nccl"), plan.device) {
        if let Err(error) = planaria_cuda::nccl_version() {
            // Who asks for it by name wants to know why not.
            match plan.family {
                Some(_) => report.fail("nccl", "the library", error.to_string()),
                None => report.missing("nccl", "nccl", &error.to_string()),
            }
        } else {
            let made = |work: &(dyn Fn(Arc<dyn Comm>) -> Outcome + Sync)| {
                let options = nccl::Options { timeout: PATIENCE, alone: Alone::Library };
                let comm =
                    nccl::over(crate::alone(), ordinal, &options).map_err(|error| error.to_string())?;
                work(comm).map_err(|failure| failure.to_string())
            };
            family("nccl", "a world of one", plan, report, &in_time, &made);
        }
    }
    report.seconds += begun.elapsed().as_secs_f64();
}

/// Makes a communicator, runs work on every rank of it, and answers the first failure.
type Made<'a> = &'a dyn Fn(&(dyn Fn(Arc<dyn Comm>) -> Outcome + Sync)) -> Result<(), String>;

/// Every check, then random programs, whose bits must be those of thread ranks with arrays of the host.
fn family(
    family: &'static str,
    ranks: &str,
    plan: &Plan,
    report: &mut Report,
    in_time: &dyn Fn() -> bool,
    made: Made<'_>,
) {
    let device = plan.device;
    let mut note = |name: String, work: &dyn Fn() -> Result<(), String>| match in_time() {
        false => report.skip(family),
        true => match work() {
            Ok(()) => report.pass(family, 0.0),
            Err(why) => report.fail(family, &name, why),
        },
    };
    for &(name, check) in CHECKS {
        let check: Check = check;
        note(format!("{ranks}: {name}"), &|| made(&|comm| check(&Site::new(&comm, device))));
    }
    for seed in 0..PROGRAMS.0 {
        note(format!("{ranks}: random program {seed}"), &|| {
            made(&|comm| {
                let (rank, size) = (comm.rank(), comm.ranks().len());
                let found = digest_on(&comm, device, seed, PROGRAMS.1)?;
                let host = threads::run(size, |comm| digest(&comm, seed, PROGRAMS.1));
                match host.into_iter().nth(rank) {
                    Some(Ok(wanted)) if wanted == found => Ok(()),
                    other => {
                        Err(crate::conformance::Failure(format!("found {found:x}, the host {other:x?}")))
                    }
                }
            })
        });
    }
}
