//! What every engine must do. All ranks of a communicator call these functions together, whatever the engine is;
//! an engine that passes them can stand under everything above.

mod bad;
mod groups;
mod landing;
mod moves;
mod random;
mod reduce;
mod structures;

use crate::comm::Comm;
use crate::error::Error;
use planaria_array::{Array, DType, Device, Scalar};
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

pub use random::{digest, digest_on};

/// What an engine did wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure(pub String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure(format!("unexpected error: {error}"))
    }
}

impl From<planaria_array::Error> for Failure {
    fn from(error: planaria_array::Error) -> Failure {
        Failure(format!("unexpected error: {error}"))
    }
}

/// Outcome of one check.
pub type Outcome = Result<(), Failure>;

/// One check, made by all ranks together.
pub type Check = fn(&Site) -> Outcome;

/// Where a check is made: a communicator, and the device whose arrays it moves. What is expected is computed on the host.
#[derive(Clone, Debug)]
pub struct Site {
    comm: Arc<dyn Comm>,
    device: Device,
}

impl Deref for Site {
    type Target = Arc<dyn Comm>;
    fn deref(&self) -> &Arc<dyn Comm> {
        &self.comm
    }
}

impl Site {
    /// A communicator with arrays of a device.
    pub fn new(comm: &Arc<dyn Comm>, device: Device) -> Site {
        Site { comm: comm.clone(), device }
    }

    /// Another communicator with arrays of the same device.
    fn with(&self, comm: Arc<dyn Comm>) -> Site {
        Site { comm, device: self.device }
    }

    fn zeros(&self, shape: &[usize], dtype: DType) -> Result<Array, Failure> {
        Ok(Array::zeros_on(shape, dtype, self.device)?)
    }

    fn full(&self, shape: &[usize], value: impl Into<Scalar>, dtype: DType) -> Result<Array, Failure> {
        Ok(Array::full_on(shape, value, dtype, self.device)?)
    }

    /// An array of the host on the device.
    fn there(&self, array: &Array) -> Result<Array, Failure> {
        Ok(array.to(self.device)?)
    }
}

/// Every check, with its name.
pub const CHECKS: &[(&str, Check)] = &[
    ("ranks know their places", groups::places),
    ("reductions combine in rank order, in every dtype", reduce::every_dtype_and_op),
    ("reductions work in place and inside larger arrays", reduce::in_place_and_inside),
    ("large reductions equal small ones", reduce::large),
    ("a reduction reaches only its root", reduce::to_each_root),
    ("parts of a reduction may be uneven or empty", reduce::scattered),
    ("a broadcast starts anywhere", moves::broadcasts),
    ("gathered parts may be uneven or empty", moves::gathers),
    ("exchanged parts may be uneven or empty", moves::exchanges),
    ("messages keep their order by sender and tag", moves::messages),
    ("what is long lands in whole arrays and in parts of them, expected or not", landing::everywhere),
    ("started calls may be waited for in any order", moves::started),
    ("groups split, and split again", groups::splits),
    ("groups are made by their members alone", groups::members_only),
    ("groups do not hear each other", groups::independence),
    ("a barrier holds everyone", groups::barriers),
    ("all agree or all fail", groups::agreement),
    ("structures travel whole", structures::travel),
    ("a structure that cannot travel is refused on every rank", structures::refused),
    ("bad calls are refused and do no harm", bad::refused),
];

/// Runs every check; gives the name and the failure of the first that this rank sees fail.
pub fn run(comm: &Arc<dyn Comm>) -> Result<(), (&'static str, Failure)> {
    run_on(comm, Device::Cpu)
}

/// The same with arrays of a device; the bits must be the host's.
pub fn run_on(comm: &Arc<dyn Comm>, device: Device) -> Result<(), (&'static str, Failure)> {
    let site = Site::new(comm, device);
    CHECKS.iter().try_for_each(|(name, check)| check(&site).map_err(|failure| (*name, failure)))
}

/// Equal, or a failure that shows both.
fn same<T: PartialEq + Debug>(what: &str, found: T, expected: T) -> Outcome {
    if found == expected {
        return Ok(());
    }
    Err(Failure(format!("{what}: found {found:?}, expected {expected:?}")))
}

/// Equal bytes, or a failure that shows where they differ first.
fn same_bits(what: &str, found: &Array, expected: &Array) -> Outcome {
    let bytes = |array: &Array| array.to(Device::Cpu)?.contiguous()?.bytes();
    let (found, expected) = (bytes(found)?, bytes(expected)?);
    same(&format!("{what}: bytes"), found.len(), expected.len())?;
    match found.iter().zip(expected.iter()).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(Failure(format!("{what}: byte {at} of {} differs", found.len()))),
    }
}

/// Pseudo-random values of any dtype that every rank can compute for every other rank.
fn input(seed: u64, rank: usize, count: usize, dtype: DType) -> Result<Array, Failure> {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ (rank as u64 + 1).wrapping_mul(0xD1B5_4A32_D192_ED03);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Some zeros, so that truth values vary; magnitudes over several powers of two, so that rounding shows.
        match state >> 61 {
            0 => 0.0,
            k => ((state >> 20) as i32 as f64) / (1u64 << (26 + k)) as f64,
        }
    };
    let values: Vec<f64> = (0..count).map(|_| next()).collect();
    Ok(Array::from_slice(&values, &[count])?.cast(dtype)?)
}
