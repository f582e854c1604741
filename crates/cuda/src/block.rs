//! Device memory with an owner, and which streams have used it.
//!
//! A block belongs to the lane it was taken from. When it is dropped that lane's stream may have it again at once,
//! because what it queues next comes later. Uses by other streams are noted, and must have passed first.

use crate::error::Result;
use crate::lane::Lane;
use crate::stream::{Event, Stream};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What a stream does with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Comes after writes.
    Read,
    /// Comes after reads and writes.
    Write,
}

/// The last uses of a block by one stream, as counts of that stream's work.
struct Use {
    stream: Arc<Stream>,
    read: u64,
    write: u64,
}

/// Device memory.
pub struct Block {
    lane: Arc<Lane>,
    address: u64,
    bytes: usize,
    op: &'static str,
    uses: Mutex<Vec<Use>>,
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes at {:#x})", self.bytes, self.address)
    }
}

impl Block {
    pub(crate) fn new(lane: Arc<Lane>, address: u64, bytes: usize, op: &'static str) -> Block {
        Block { lane, address, bytes, op, uses: Mutex::default() }
    }

    /// Where it starts.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The lane it belongs to.
    pub fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Notes that `stream` uses this block in what it queues next, and orders that after other streams' work on it.
    pub fn used_by(&self, op: &'static str, stream: &Arc<Stream>, access: Access) -> Result<()> {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        for other in uses.iter().filter(|other| other.stream.id() != stream.id()) {
            let tick = if access == Access::Write { other.read.max(other.write) } else { other.write };
            if tick > 0 {
                stream.follow(op, &other.stream, tick)?;
            }
        }
        // Memory handed out again may still be written by work of its lane that came before.
        let home = self.lane.compute();
        let fresh = uses.is_empty() && home.id() != stream.id();
        if fresh {
            stream.follow(op, home, home.next_tick() - 1)?;
        }
        let tick = stream.next_tick();
        let at = match uses.iter().position(|own| own.stream.id() == stream.id()) {
            Some(at) => at,
            None => {
                uses.push(Use { stream: stream.clone(), read: 0, write: 0 });
                uses.len() - 1
            }
        };
        match access {
            Access::Read => uses[at].read = tick,
            Access::Write => uses[at].write = tick,
        }
        Ok(())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let uses = std::mem::take(self.uses.get_mut().unwrap_or_else(PoisonError::into_inner));
        let home = self.lane.compute();
        let open = uses.iter().filter(|other| {
            other.stream.id() != home.id() && !home.has_seen(&other.stream, other.read.max(other.write))
        });
        // A device that fails here hands nothing out any more.
        let events = open.filter_map(|other| Event::record("drop", &other.stream).ok()).collect();
        self.lane.give(self.address, self.bytes, self.op, events);
    }
}
