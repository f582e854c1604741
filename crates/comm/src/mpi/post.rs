//! Letters between processes: sent without waiting, and sorted by sender and line as they come in.

use super::raw::{LARGEST, Sent, Transfer, World};
use super::wire::{Envelope, INLINE, Kind, Line};
use crate::error::{Error, Result};
use planaria_layout::Rank;
use std::collections::HashMap;
use std::time::Instant;

/// MPI tags: envelopes, and contents that did not fit into theirs.
const ENVELOPE: i32 = 0;
const CONTENTS: i32 = 1;

/// A letter that has come, perhaps not all of it yet.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) text: String,
    words: Vec<u64>,
    length: usize,
    coming: Option<Transfer>,
}

impl Letter {
    pub(super) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice::<u64, u8>(&self.words)[..self.length]
    }
}

/// The letters of one sender on one line, numbered in the order they were sent.
#[derive(Debug, Default)]
struct Pile {
    come: u64,
    awaited: u64,
    letters: HashMap<u64, Letter>,
}

/// All letters of a process.
#[derive(Debug)]
pub(super) struct Post {
    world: World,
    /// Largest message of contents in bytes; envelopes are never cut.
    piece: usize,
    piles: HashMap<(Rank, Line), Pile>,
    /// Letters whose contents are still coming.
    loading: Vec<(Rank, Line, u64)>,
    outgoing: Vec<Transfer>,
    /// Why this process, or a peer, gave up.
    failure: Option<Error>,
}

impl Post {
    pub(super) fn new(world: World, piece: usize) -> Post {
        let piece = piece.clamp(1, LARGEST);
        Post { world, piece, piles: HashMap::new(), loading: Vec::new(), outgoing: Vec::new(), failure: None }
    }

    pub(super) fn place(&self) -> (Rank, usize) {
        (self.world.rank, self.world.size)
    }

    pub(super) fn live(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// True while own letters are not all gone.
    pub(super) fn is_sending(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends a letter; its bytes are held until they are gone.
    pub(super) fn send(&mut self, to: Rank, line: Line, text: &str, contents: Sent) -> Result<()> {
        let length = contents.bytes().len();
        if to == self.world.rank {
            let words = words(contents.bytes());
            self.sort(to, line, Letter { text: text.into(), words, length, coming: None });
            return Ok(());
        }
        let envelope = Envelope { kind: Kind::Data, line, text: text.into(), length };
        let envelope = Sent::text(&envelope.write(contents.bytes()));
        self.outgoing.push(self.world.send(envelope, to, ENVELOPE, LARGEST)?);
        if length > INLINE {
            self.outgoing.push(self.world.send(contents, to, CONTENTS, self.piece)?);
        }
        Ok(())
    }

    /// Gives up; tells everyone once.
    pub(super) fn fail(&mut self, error: Error) {
        if self.failure.is_some() {
            return;
        }
        let text = match &error {
            Error::Aborted { reason, .. } => reason.clone(),
            other => other.to_string(),
        };
        self.failure = Some(error);
        let line = Line { group: 0, channel: 0 };
        let envelope = Envelope { kind: Kind::Abort, line, text, length: 0 }.write(&[]);
        for to in (0..self.world.size).filter(|&to| to != self.world.rank) {
            // Who cannot be told will find out by waiting.
            let sent = self.world.send(Sent::text(&envelope), to, ENVELOPE, LARGEST);
            self.outgoing.extend(sent);
        }
    }

    /// Takes in what has come and lets go of what has gone.
    pub(super) fn progress(&mut self) -> Result<()> {
        while let Some((from, length)) = self.world.probe(ENVELOPE)? {
            let mut transfer = self.world.receive(length, from, ENVELOPE, LARGEST)?;
            // It was there already.
            while !transfer.is_done()? {}
            let (words, length) = transfer.into_room();
            self.open(from, &bytemuck::cast_slice::<u64, u8>(&words)[..length])?;
        }
        for (from, line, number) in std::mem::take(&mut self.loading) {
            let pile = self.piles.get_mut(&(from, line));
            let Some(letter) = pile.and_then(|pile| pile.letters.get_mut(&number)) else { continue };
            let Some(mut transfer) = letter.coming.take() else { continue };
            if transfer.is_done()? {
                letter.words = transfer.into_room().0;
            } else {
                letter.coming = Some(transfer);
                self.loading.push((from, line, number));
            }
        }
        let mut open = Vec::new();
        for mut transfer in std::mem::take(&mut self.outgoing) {
            if !transfer.is_done()? {
                open.push(transfer);
            }
        }
        self.outgoing = open;
        Ok(())
    }

    fn open(&mut self, from: Rank, bytes: &[u8]) -> Result<()> {
        let (envelope, contents) = Envelope::read(bytes)?;
        if envelope.kind == Kind::Abort {
            self.failure.get_or_insert(Error::Aborted { rank: from, reason: envelope.text });
            return Ok(());
        }
        let Envelope { line, text, length, .. } = envelope;
        let (words, coming) = match contents {
            Some(contents) => (words(contents), None),
            None => (Vec::new(), Some(self.world.receive(length, from, CONTENTS, self.piece)?)),
        };
        let is_coming = coming.is_some();
        let number = self.sort(from, line, Letter { text, words, length, coming });
        if is_coming {
            self.loading.push((from, line, number));
        }
        Ok(())
    }

    fn sort(&mut self, from: Rank, line: Line, letter: Letter) -> u64 {
        let pile = self.piles.entry((from, line)).or_default();
        pile.letters.insert(pile.come, letter);
        pile.come += 1;
        pile.come - 1
    }

    /// The number of the next letter to wait for.
    pub(super) fn expect(&mut self, from: Rank, line: Line) -> u64 {
        let pile = self.piles.entry((from, line)).or_default();
        pile.awaited += 1;
        pile.awaited - 1
    }

    /// True when a letter is here, all of it.
    pub(super) fn has(&self, from: Rank, line: Line, number: u64) -> bool {
        let letter = self.piles.get(&(from, line)).and_then(|pile| pile.letters.get(&number));
        letter.is_some_and(|letter| letter.coming.is_none())
    }

    /// True when the beginning of a letter is here, so that its sender cannot be missing.
    pub(super) fn has_begun(&self, from: Rank, line: Line, number: u64) -> bool {
        self.piles.get(&(from, line)).is_some_and(|pile| pile.letters.contains_key(&number))
    }

    /// Takes a letter that [`Post::has`].
    pub(super) fn take(&mut self, from: Rank, line: Line, number: u64) -> Option<Letter> {
        let pile = self.piles.get_mut(&(from, line))?;
        let letter = pile.letters.remove(&number);
        // Lines of collectives are used once; those of messages may idle.
        if pile.letters.is_empty() && pile.come == pile.awaited {
            self.piles.remove(&(from, line));
        }
        letter
    }

    /// Waits until own letters are gone, or `until`.
    pub(super) fn flush(&mut self, until: Instant) -> Result<()> {
        while self.is_sending() && Instant::now() < until {
            self.progress()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Ends MPI.
    pub(super) fn finish(&self) -> Result<()> {
        self.world.finish()
    }
}

/// A copy of bytes in aligned memory.
fn words(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
    words
}
