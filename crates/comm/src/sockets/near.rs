//! The short way between ranks of one host: through the rings of the memory they share, without a thread or a socket between them.

use super::failed;
use super::meeting::Company;
use super::post::Meter;
use crate::error::Result;
use crate::letters::{ENVELOPE, Sent, Shortcut};
use crate::shared::{Bell, Shelf, Window};
use planaria_layout::Rank;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longer contents are copied to shared memory by a thread of their own, while their rank goes on.
const COPIED: usize = 1 << 20;

/// Bytes that say where contents lie: their length, the number of the lot, and where it begins.
const LOT: usize = 20;

/// One rank's rings to and from the other ranks of its host.
#[derive(Debug)]
pub(super) struct Near {
    rank: Rank,
    shelf: Arc<Shelf>,
    windows: Vec<Option<Arc<Window>>>,
    meter: Arc<Meter>,
    /// Envelopes that went to each rank through its socket. One thread writes to rings at a time.
    carried: Mutex<Vec<u64>>,
}

impl Near {
    /// None for a rank that shares memory with nobody.
    pub(super) fn of(rank: Rank, company: &Company, meter: &Arc<Meter>) -> Option<Arc<dyn Shortcut>> {
        let (shelf, windows) = (company.shelf.clone()?, company.windows.clone());
        let carried = Mutex::new(vec![0; windows.len()]);
        Some(Arc::new(Near { rank, shelf, windows, meter: meter.clone(), carried }))
    }

    /// Contents of another rank that lie in its memory.
    fn borrow(window: &Arc<Window>, words: &[u8]) -> Option<Sent> {
        let number = |at: std::ops::Range<usize>| words.get(at)?.try_into().ok().map(u64::from_ne_bytes);
        let lot = u32::from_ne_bytes(words.get(8..12)?.try_into().ok()?);
        let length = usize::try_from(number(0..8)?).ok()?;
        window.borrow(lot, number(12..LOT)?, length).map(Sent::loan)
    }
}

impl Shortcut for Near {
    fn put(&self, to: Rank, tag: u32, sent: &Sent) -> bool {
        let Some(Some(window)) = self.windows.get(to) else { return false };
        let bytes = sent.bytes();
        let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        let put = if tag == ENVELOPE as u32 {
            let first = carried[to] == self.shelf.taken(to);
            let put = first && self.shelf.has_room(to, bytes.len());
            if !put {
                carried[to] += 1;
                return false;
            }
            // Whoever has received it finds it counted.
            self.meter.add(to, tag, bytes, 0);
            self.shelf.push(to, tag, bytes)
        } else {
            if bytes.len() > COPIED || !self.shelf.has_room(to, LOT) {
                return false;
            }
            let Some((lot, start)) = sent.lend(&self.shelf) else { return false };
            let mut words = [0; LOT];
            words[..8].copy_from_slice(&(bytes.len() as u64).to_ne_bytes());
            words[8..12].copy_from_slice(&lot.to_ne_bytes());
            words[12..].copy_from_slice(&start.to_ne_bytes());
            self.meter.add(to, tag, bytes, 0);
            self.shelf.push(to, tag, &words)
        };
        drop(carried);
        window.ring();
        put
    }

    fn take(&self, from: Option<Rank>, found: &mut dyn FnMut(Rank, u32, Sent)) -> Result<()> {
        let ranks = from.map_or(0..self.windows.len(), |from| from..from + 1);
        for from in ranks {
            let Some(Some(window)) = self.windows.get(from) else { continue };
            let told = |error: &dyn std::fmt::Display| failed(format!("what rank {from} sent: {error}"));
            while let Some((tag, words, length)) = window.pull(self.rank).map_err(|error| told(&error))? {
                let sent = match tag == ENVELOPE as u32 {
                    true => Some(Sent::words(words, length)),
                    false => Near::borrow(window, &bytemuck::cast_slice(&words)[..length]),
                };
                found(from, tag, sent.ok_or_else(|| told(&"it is not in its memory"))?);
            }
        }
        Ok(())
    }

    fn came(&self, from: Rank) {
        if let Some(Some(window)) = self.windows.get(from) {
            window.took(self.rank);
        }
    }

    fn heard(&self) -> u32 {
        self.shelf.heard()
    }

    fn ring(&self) {
        self.shelf.ring();
    }

    fn sleep(&self, heard: u32, limit: Duration) {
        self.shelf.sleep(heard, limit);
    }
}
