//! Kernel launches: what is passed, and the ring of the last ones, for messages.

use crate::program::Kernel;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

/// One argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A 32-bit integer.
    U32(u32),
    /// A 64-bit integer or an address.
    U64(u64),
    /// A single.
    F32(f32),
    /// A double.
    F64(f64),
    /// A struct by value, all of whose fields are 8 bytes wide or packed into such words.
    Words(&'a [u64]),
}

impl Arg<'_> {
    /// Where the driver finds the value; it lives as long as `self`.
    pub(crate) fn pointer(&self) -> *const c_void {
        match self {
            Arg::U32(x) => std::ptr::from_ref(x).cast(),
            Arg::U64(x) => std::ptr::from_ref(x).cast(),
            Arg::F32(x) => std::ptr::from_ref(x).cast(),
            Arg::F64(x) => std::ptr::from_ref(x).cast(),
            Arg::Words(words) => words.as_ptr().cast(),
        }
    }
}

impl From<u32> for Arg<'_> {
    fn from(x: u32) -> Self {
        Arg::U32(x)
    }
}

impl From<u64> for Arg<'_> {
    fn from(x: u64) -> Self {
        Arg::U64(x)
    }
}

impl From<f32> for Arg<'_> {
    fn from(x: f32) -> Self {
        Arg::F32(x)
    }
}

impl From<f64> for Arg<'_> {
    fn from(x: f64) -> Self {
        Arg::F64(x)
    }
}

/// How a kernel finds boxes of an array of four dims.
#[derive(Clone, Debug)]
pub struct TensorMap(pub(crate) [u64; 16]);

impl TensorMap {
    /// As an argument of a kernel.
    pub fn words(&self) -> &[u64] {
        &self.0
    }
}

/// How a kernel is to run.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The operation, for messages.
    pub op: &'static str,
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// Launches remembered for messages.
const REMEMBERED: usize = 256;
/// Launches printed in a message.
const PRINTED: usize = 12;

/// The last launches of a device, and which are known to have finished.
#[derive(Default)]
pub(crate) struct Ring(Mutex<Launches>);

#[derive(Default)]
struct Launches {
    last: VecDeque<(u64, u64, &'static str)>,
    next: u64,
    /// By stream: all launches below this number have finished.
    finished: Vec<(u64, u64)>,
}

impl Ring {
    /// Notes a launch on a stream.
    pub(crate) fn note(&self, stream: u64, op: &'static str) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.last.len() == REMEMBERED {
            ring.last.pop_front();
        }
        let number = ring.next;
        ring.next += 1;
        ring.last.push_back((number, stream, op));
    }

    /// Notes that all launches so far on a stream have finished.
    pub(crate) fn finished(&self, stream: u64) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = ring.next;
        match ring.finished.iter_mut().find(|(id, _)| *id == stream) {
            Some((_, number)) => *number = next,
            None => ring.finished.push((stream, next)),
        }
    }

    /// What may have been running, as the end of a message.
    pub(crate) fn trail(&self) -> String {
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let done = |stream: u64| ring.finished.iter().find(|(id, _)| *id == stream).map_or(0, |&(_, n)| n);
        let last_done = ring.last.iter().rev().find(|&&(number, stream, _)| number < done(stream));
        let open: Vec<_> = ring.last.iter().filter(|&&(number, stream, _)| number >= done(stream)).collect();
        let mut text = String::new();
        if let Some((number, _, op)) = last_done {
            let _ = write!(text, "; last known to have finished: #{number} {op}");
        }
        if !open.is_empty() {
            let _ = write!(text, "; queued since:");
            for (number, _, op) in open.iter().take(PRINTED) {
                let _ = write!(text, " #{number} {op}");
            }
            if open.len() > PRINTED {
                let _ = write!(text, " and {} more", open.len() - PRINTED);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trail_names_the_last_finished_launch_and_the_queue_behind_it() {
        let ring = Ring::default();
        ring.note(1, "cast");
        ring.note(1, "add");
        ring.finished(1);
        ring.note(1, "exp");
        ring.note(2, "sum");
        assert_eq!(ring.trail(), "; last known to have finished: #1 add; queued since: #2 exp #3 sum");
        for _ in 0..300 {
            ring.note(1, "neg");
        }
        assert!(ring.trail().ends_with("and 244 more"), "{}", ring.trail());
    }
}
