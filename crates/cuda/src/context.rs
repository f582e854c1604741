//! A device in use: its context, what it is, what it holds, and what was launched on it.

use crate::blas::BlasOf;
use crate::driver::{self, Failure, RawContext};
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::launch::Ring;
use crate::program::Modules;
use crate::staging::Staging;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver's name for it.
    pub name: String,
    /// All its memory.
    pub bytes: usize,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Compute capability: major and minor.
    pub capability: (u32, u32),
    /// What no other device of any machine has.
    pub uuid: [u8; 16],
}

impl DeviceInfo {
    /// The architecture kernels are compiled for.
    pub fn arch(&self) -> String {
        let (major, minor) = self.capability;
        // Hopper's own instructions need its own name.
        let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
        format!("sm_{major}{minor}{suffix}")
    }
}

/// Bytes in use on a device, the highest they have been, and bytes kept for reuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes of blocks alive now, rounded up as the allocator does.
    pub live: usize,
    /// The most that `live` has been since the last reset.
    pub peak: usize,
    /// Free bytes of segments.
    pub cached: usize,
}

#[derive(Default)]
pub(crate) struct Account {
    live: AtomicUsize,
    peak: AtomicUsize,
    reserved: AtomicUsize,
}

impl Account {
    pub(crate) fn take(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(live, Relaxed);
    }

    pub(crate) fn give(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn reserve(&self, bytes: usize) {
        self.reserved.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn unreserve(&self, bytes: usize) {
        self.reserved.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        let (live, reserved) = (self.live.load(Relaxed), self.reserved.load(Relaxed));
        MemoryStats { live, peak: self.peak.load(Relaxed), cached: reserved.saturating_sub(live) }
    }

    pub(crate) fn reset_peak(&self) {
        self.peak.store(self.live.load(Relaxed), Relaxed);
    }
}

/// A device in use. There is one per device and process; it is never given up.
pub struct Context {
    ordinal: u32,
    raw: RawContext,
    info: DeviceInfo,
    ring: Ring,
    pub(crate) account: Account,
    pub(crate) modules: Modules,
    pub(crate) blas: BlasOf,
    pub(crate) staging: Staging,
    lanes: Mutex<Vec<Weak<Lane>>>,
    /// An asynchronous error is fatal to the context: the first one is the answer to all later calls.
    dead: OnceLock<Error>,
    /// What checked mode found where no error could be returned.
    damage: OnceLock<Error>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(cuda:{} {})", self.ordinal, self.info.name)
    }
}

/// How many devices the driver shows; an error without a driver.
pub fn device_count() -> Result<u32> {
    driver::open()?;
    driver::device_count().map_err(|failure| failure.error("devices", String::new()))
}

/// The newest CUDA version the driver supports, such as 13.0.
pub fn driver_version() -> Result<String> {
    driver::open()?;
    let version = driver::version().map_err(|failure| failure.error("devices", String::new()))?;
    Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
}

thread_local! {
    /// The device whose context is the calling thread's.
    static BOUND: Cell<Option<u32>> = const { Cell::new(None) };
}

impl Context {
    /// The context of a device.
    pub fn of(ordinal: u32) -> Result<Arc<Context>> {
        static CONTEXTS: Mutex<BTreeMap<u32, Arc<Context>>> = Mutex::new(BTreeMap::new());
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&ordinal) {
            return Ok(context.clone());
        }
        let count = device_count()?;
        if ordinal >= count {
            return Err(Error::NoDevice { ordinal, count });
        }
        let context =
            Arc::new(Context::open(ordinal).map_err(|failure| failure.error("open", String::new()))?);
        contexts.insert(ordinal, context.clone());
        Ok(context)
    }

    fn open(ordinal: u32) -> driver::Raw<Context> {
        let (name, bytes) = driver::describe(ordinal)?;
        let number = |which| driver::attribute(ordinal, which).map(|n| n.max(0) as u32);
        let info = DeviceInfo {
            name,
            bytes,
            multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            capability: (
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            uuid: driver::uuid(ordinal)?,
        };
        Ok(Context {
            ordinal,
            raw: driver::retain(ordinal)?,
            info,
            ring: Ring::default(),
            account: Account::default(),
            modules: Modules::default(),
            blas: BlasOf::default(),
            staging: Staging::default(),
            lanes: Mutex::default(),
            dead: OnceLock::new(),
            damage: OnceLock::new(),
        })
    }

    /// The device's number.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Bytes in use on the device by this process.
    pub fn memory_stats(&self) -> MemoryStats {
        self.account.stats()
    }

    /// Makes the peak start again from what is live now.
    pub fn reset_peak(&self) {
        self.account.reset_peak();
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Makes this context the calling thread's; an error once the device has failed.
    pub(crate) fn bind(&self, op: &'static str) -> Result<()> {
        if let Some(error) = self.dead.get() {
            return Err(error.clone());
        }
        // A thread that is ending has no cell any more.
        if BOUND.try_with(Cell::get) != Ok(Some(self.ordinal)) {
            driver::bind(self.raw).map_err(|failure| self.failed(op, &failure))?;
            let _ = BOUND.try_with(|bound| bound.set(Some(self.ordinal)));
        }
        Ok(())
    }

    /// A failure as an error of `op`. What cannot be recovered from is remembered.
    pub(crate) fn failed(&self, op: &'static str, failure: &Failure) -> Error {
        let error = failure.error(op, self.ring.trail());
        if failure.is_fatal() {
            return self.dead.get_or_init(|| error).clone();
        }
        error
    }

    /// Remembers what checked mode found.
    pub(crate) fn damage(&self, error: Error) {
        let _ = self.damage.set(error);
    }

    /// What checked mode found so far.
    pub(crate) fn check_damage(&self) -> Result<()> {
        self.damage.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    pub(crate) fn add_lane(&self, lane: &Arc<Lane>) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(lane));
    }

    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.iter().filter_map(Weak::upgrade).collect()
    }

    /// Hands segments of which nothing is in use back to the driver.
    pub fn release_cached(&self) -> Result<()> {
        self.bind("release")?;
        self.lanes().iter().try_for_each(|lane| lane.release_cached())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_or_device_the_answer_is_an_error_that_says_so() {
        match device_count() {
            Ok(count) => {
                assert_eq!(Context::of(count).unwrap_err(), Error::NoDevice { ordinal: count, count });
            }
            Err(error) => {
                assert!(matches!(error, Error::NoDriver { .. }), "{error:?}");
                assert_eq!(Lane::current(0).unwrap_err(), error);
                assert!(error.to_string().starts_with("no usable NVIDIA driver: "));
            }
        }
    }
}
