//! A device against the host: every operation on the same inputs, bit for bit or within a stated tolerance.
//!
//! Each case runs once on the host and twice on the device; the two must agree bit for bit. An operation that a device
//! does not have yet is counted as missing, never as passed.

mod case;
mod compare;
mod composed;
mod elementwise;
mod figures;
pub mod fuzz;
mod generation;
mod indexing;
mod large;
mod moves;
mod others;
mod random;
mod report;
mod squares;
mod stress;
mod training;

pub use case::{Case, Input, View};
pub use compare::{Tolerance, compare, same_bits};
pub use report::{Failed, Family, Report};

use crate::device::Device;
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The device under test; the host tests the test itself.
    pub device: Device,
    /// Only families whose name starts with this.
    pub family: Option<String>,
    /// Begin no case after this long.
    pub limit: Option<Duration>,
}

impl Plan {
    /// True when a family is to be run.
    pub fn wants(&self, family: &str) -> bool {
        self.family.as_ref().is_none_or(|name| family.starts_with(name.as_str()))
    }
}

/// False for an emulated device, which is small, and too slow for more than a few rows.
pub fn is_large(device: Device) -> bool {
    let Device::Cuda(ordinal) = device else { return true };
    planaria_cuda::Context::of(ordinal).is_ok_and(|context| context.info().bytes > 16 << 30)
}

/// Every case, family by family.
fn cases(large: bool) -> Vec<Case> {
    let own = [moves::cases(), elementwise::cases(), random::cases(), others::cases()].concat();
    let trained = [training::cases(large), squares::cases(), composed::cases()].concat();
    [own, indexing::cases(), trained, generation::cases(large)].concat()
}

/// Runs the cases, then the stress of memory and streams, then arrays of many elements.
pub fn run(plan: &Plan) -> Report {
    let begun = Instant::now();
    let mut report = Report::new(plan.device);
    let wanted = |family: &str| plan.wants(family);
    let in_time = || plan.limit.is_none_or(|limit| begun.elapsed() < limit);
    for case in cases(is_large(plan.device)).iter().filter(|case| wanted(case.family)) {
        if in_time() {
            case.run(plan.device, &mut report);
        } else {
            report.skip(case.family);
        }
    }
    if wanted("fuzz") {
        fuzz::run(plan.device, if is_large(plan.device) { 40 } else { 1 }, &mut report, &in_time);
    }
    if wanted("stress") && in_time() {
        stress::run(plan.device, &mut report);
    }
    if wanted("large") && in_time() {
        let large = matches!(plan.device, Device::Cuda(_)) && is_large(plan.device);
        large::run(plan.device, large, &mut report);
    }
    report.seconds = begun.elapsed().as_secs_f64();
    report
}
