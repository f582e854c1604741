//! Messages between two ranks. A sender leaves a handle on its bytes and goes on; the receiver copies them.

use super::group::Group;
use crate::alone::{deliver, describe};
use crate::call::{Recv, Send};
use crate::error::{Error, Result};
use crate::held::Held;
use crate::sync::{Condvar, Mutex, lock, wait};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// All messages of a group.
#[derive(Debug, Default)]
pub(super) struct Mail {
    lines: Mutex<HashMap<(usize, usize, u32), Line>>,
    changed: Condvar,
}

/// Messages of one sender, receiver and tag. The n-th receive gets the n-th message, whoever comes first.
#[derive(Debug, Default)]
struct Line {
    sent: u64,
    awaited: u64,
    letters: HashMap<u64, Letter>,
}

#[derive(Debug)]
struct Letter {
    data: Held,
    what: String,
}

impl Mail {
    pub(super) fn wake(&self) {
        drop(lock(&self.lines));
        self.changed.notify_all();
    }

    /// Leaves a message. The bytes are those of now, whatever the sender writes later.
    pub(super) fn send(&self, from: usize, call: &Send) -> Result<()> {
        let letter = Letter { data: Held::of(&call.data)?, what: describe(&call.data) };
        let mut lines = lock(&self.lines);
        let line = lines.entry((from, call.to, call.tag)).or_default();
        line.letters.insert(line.sent, letter);
        line.sent += 1;
        drop(lines);
        self.changed.notify_all();
        Ok(())
    }

    /// The number of the message that a receive started now will get.
    pub(super) fn expect(&self, me: usize, call: &Recv) -> u64 {
        let mut lines = lock(&self.lines);
        let line = lines.entry((call.from, me, call.tag)).or_default();
        line.awaited += 1;
        line.awaited - 1
    }

    pub(super) fn has_come(&self, me: usize, call: &Recv, number: u64) -> bool {
        let lines = lock(&self.lines);
        lines.get(&(call.from, me, call.tag)).is_some_and(|line| line.letters.contains_key(&number))
    }

    /// Waits for a message and copies it.
    pub(super) fn recv(&self, group: &Group, me: usize, call: &Recv, number: u64) -> Result<()> {
        let (begin, from) = (Instant::now(), group.ranks[call.from]);
        let key = (call.from, me, call.tag);
        let mut lines = lock(&self.lines);
        let letter = loop {
            if let Some(letter) = lines.get_mut(&key).and_then(|line| line.letters.remove(&number)) {
                break letter;
            }
            group.world.live()?;
            let waited = begin.elapsed();
            let error = if group.world.has_left(from) {
                Some(Error::Left { call: "recv", sequence: number, rank: from })
            } else if waited >= group.world.timeout {
                Some(Error::Timeout { call: "recv", sequence: number, missing: vec![from], waited })
            } else {
                None
            };
            if let Some(error) = error {
                drop(lines);
                group.world.fail(error.clone());
                return Err(error);
            }
            let left = group.world.timeout.saturating_sub(waited).max(Duration::from_millis(1));
            lines = wait(&self.changed, lines, left);
        };
        if lines.get(&key).is_some_and(|line| line.letters.is_empty() && line.sent == line.awaited) {
            lines.remove(&key);
        }
        drop(lines);
        deliver(&call.data, &letter.data, letter.what, from, call.tag)
    }
}
