//! Letters between processes: sent without waiting, and sorted by sender and line as they come in. Long contents are
//! asked for only when someone expects them, and then go straight to where they are wanted.

use super::carrier::{Carrier, ENVELOPE, Landing, Shortcut, Transfer, engine_error};
use super::memory::{Sent, Target};
use super::wire::{Envelope, INLINE, Line, MessageKind};
use crate::error::{Error, Result};
use planaria_layout::Rank;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Tags of contents that did not fit into their envelope are 1 to this; every carrier has as many. Contents under way between
/// one pair have different tags, so they may be received in any order.
const TAGS: u32 = 32_000;

/// A letter that has come, perhaps not all of it yet.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) text: String,
    pub(super) length: usize,
    body: Body,
}

/// Where a letter's contents are.
#[derive(Debug)]
enum Body {
    Here(Sent),
    /// With the sender, under this tag.
    Away(u32),
    /// On the way to where they are wanted, or to memory of their own.
    Coming(Box<dyn Transfer>),
    /// Where they were wanted.
    Landed,
}

impl Letter {
    /// The contents, unless they went where they were wanted.
    pub(super) fn contents(&self) -> Option<&[u8]> {
        match &self.body {
            Body::Here(sent) => Some(sent.bytes()),
            _ => None,
        }
    }

    /// The same, to keep.
    pub(super) fn into_contents(self) -> Option<Sent> {
        match self.body {
            Body::Here(sent) => Some(sent),
            _ => None,
        }
    }

    fn is_here(&self) -> bool {
        matches!(self.body, Body::Here(_) | Body::Landed)
    }
}

/// The letters of one sender on one line, numbered in the order they were sent.
#[derive(Debug, Default)]
struct Pile {
    come: u64,
    awaited: u64,
    letters: HashMap<u64, Letter>,
    /// Where the contents of expected letters go; without a place, to memory of their own.
    expected: HashMap<u64, Option<Target>>,
}

/// All letters of a process.
#[derive(Debug)]
pub(crate) struct Post {
    carrier: Box<dyn Carrier>,
    rank: Rank,
    size: usize,
    largest: usize,
    /// Largest message of contents in bytes; envelopes are never cut.
    piece: usize,
    piles: HashMap<(Rank, Line), Pile>,
    /// Letters whose contents are still coming.
    loading: Vec<(Rank, Line, u64)>,
    outgoing: Vec<Box<dyn Transfer>>,
    /// Contents sent to each rank so far.
    sent: Vec<u32>,
    /// How often a letter has come, all of it.
    news: u64,
    /// Why this process, or a peer, gave up.
    failure: Option<Error>,
}

impl Post {
    pub(super) fn new(carrier: Box<dyn Carrier>, piece: usize) -> Post {
        let ((rank, size), largest) = (carrier.place(), carrier.largest());
        let (piece, sent) = (piece.clamp(1, largest), vec![0; size]);
        let (piles, loading, outgoing) = (HashMap::new(), Vec::new(), Vec::new());
        Post { carrier, rank, size, largest, piece, piles, loading, outgoing, sent, news: 0, failure: None }
    }

    pub(crate) fn place(&self) -> (Rank, usize) {
        (self.rank, self.size)
    }

    /// The host of each rank.
    pub(super) fn hosts(&self) -> Vec<usize> {
        self.carrier.hosts()
    }

    pub(super) fn shortcut(&self) -> Option<Arc<dyn Shortcut>> {
        self.carrier.shortcut()
    }

    /// A number that changes when a letter has come.
    pub(super) fn news(&self) -> u64 {
        self.news
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
        if to == self.rank {
            self.sort(to, line, Letter { text: text.into(), length, body: Body::Here(contents) });
            return Ok(());
        }
        let tag = 1 + self.sent[to] % TAGS;
        let envelope = Envelope { kind: MessageKind::Data, line, text: text.into(), length, tag };
        let envelope = Sent::text(&envelope.write(contents.bytes()));
        self.outgoing.push(self.carrier.send(envelope, to, ENVELOPE, self.largest)?);
        if length > INLINE {
            self.sent[to] = self.sent[to].wrapping_add(1);
            self.outgoing.push(self.carrier.send(contents, to, tag as i32, self.piece)?);
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
        let envelope = Envelope { kind: MessageKind::Abort, line, text, length: 0, tag: 0 }.write(&[]);
        for to in (0..self.size).filter(|&to| to != self.rank) {
            // Who cannot be told will find out by waiting.
            let sent = self.carrier.send(Sent::text(&envelope), to, ENVELOPE, self.largest);
            self.outgoing.extend(sent);
        }
    }

    /// Takes in what has come and lets go of what has gone; true when something has moved.
    pub(super) fn progress(&mut self) -> Result<bool> {
        let mut moved = false;
        while let Some((from, length)) = self.carrier.probe()? {
            let mut transfer =
                self.carrier.receive(Landing::Anywhere(length), from, ENVELOPE, self.largest)?;
            // It was there already.
            while !transfer.is_done()? {}
            let envelope = transfer.contents()?.ok_or_else(|| engine_error("an envelope was lost"))?;
            self.open(from, envelope.bytes())?;
            moved = true;
        }
        for (from, line, number) in std::mem::take(&mut self.loading) {
            let pile = self.piles.get_mut(&(from, line));
            let Some(letter) = pile.and_then(|pile| pile.letters.get_mut(&number)) else { continue };
            let Body::Coming(transfer) = &mut letter.body else { continue };
            if !transfer.is_done()? {
                self.loading.push((from, line, number));
                continue;
            }
            moved = true;
            self.news += 1;
            // With the transfer goes its hold on the room.
            letter.body = transfer.contents()?.map_or(Body::Landed, Body::Here);
        }
        let before = self.outgoing.len();
        let mut open = Vec::new();
        for mut transfer in std::mem::take(&mut self.outgoing) {
            if !transfer.is_done()? {
                open.push(transfer);
            }
        }
        self.outgoing = open;
        Ok(moved || self.outgoing.len() < before)
    }

    fn open(&mut self, from: Rank, bytes: &[u8]) -> Result<()> {
        let (envelope, contents) = Envelope::read(bytes)?;
        if envelope.kind == MessageKind::Abort {
            self.failure.get_or_insert(Error::Aborted { rank: from, reason: envelope.text });
            return Ok(());
        }
        let Envelope { line, text, length, tag, .. } = envelope;
        let body = contents.map_or(Body::Away(tag), |contents| Body::Here(Sent::text(contents)));
        let number = self.sort(from, line, Letter { text, length, body });
        self.call_for(from, line, number)
    }

    fn sort(&mut self, from: Rank, line: Line, letter: Letter) -> u64 {
        let pile = self.piles.entry((from, line)).or_default();
        self.news += u64::from(letter.is_here());
        pile.letters.insert(pile.come, letter);
        pile.come += 1;
        pile.come - 1
    }

    /// The number of the next letter to wait for; its contents, if they are long, go to `target`.
    pub(super) fn expect(&mut self, from: Rank, line: Line, target: Option<Target>) -> Result<u64> {
        let pile = self.piles.entry((from, line)).or_default();
        let number = pile.awaited;
        pile.awaited += 1;
        pile.expected.insert(number, target);
        self.call_for(from, line, number)?;
        Ok(number)
    }

    /// Begins to receive the contents of a letter that has come and is expected.
    fn call_for(&mut self, from: Rank, line: Line, number: u64) -> Result<()> {
        let Some(pile) = self.piles.get_mut(&(from, line)) else { return Ok(()) };
        let Some(letter) = pile.letters.get_mut(&number) else { return Ok(()) };
        let (Body::Away(tag), Some(target)) = (&letter.body, pile.expected.remove(&number)) else {
            return Ok(());
        };
        // What does not fit is a mistake that its receiver will name; it is taken in all the same.
        let fitting = target.filter(|target| target.at.len() == letter.length);
        let landing = fitting.map_or(Landing::Anywhere(letter.length), Landing::At);
        let transfer = self.carrier.receive(landing, from, *tag as i32, self.piece)?;
        letter.body = Body::Coming(transfer);
        self.loading.push((from, line, number));
        Ok(())
    }

    /// True when a letter is here, all of it.
    pub(super) fn has(&self, from: Rank, line: Line, number: u64) -> bool {
        let letter = self.piles.get(&(from, line)).and_then(|pile| pile.letters.get(&number));
        letter.is_some_and(Letter::is_here)
    }

    /// True when the beginning of a letter is here, so that its sender cannot be missing.
    pub(super) fn has_begun(&self, from: Rank, line: Line, number: u64) -> bool {
        self.piles.get(&(from, line)).is_some_and(|pile| pile.letters.contains_key(&number))
    }

    /// Takes a letter that [`Post::has`].
    pub(super) fn take(&mut self, from: Rank, line: Line, number: u64) -> Option<Letter> {
        let pile = self.piles.get_mut(&(from, line))?;
        let letter = pile.letters.remove(&number);
        pile.expected.remove(&number);
        // Lines of collectives are used once; those of messages may idle.
        if pile.letters.is_empty() && pile.come == pile.awaited {
            self.piles.remove(&(from, line));
        }
        letter
    }

    /// Waits until own letters are gone, or `until`. What others sent and nobody expects is taken in, so that theirs
    /// go too.
    pub(super) fn flush(&mut self, until: Instant) -> Result<()> {
        loop {
            let away = |(&(from, line), pile): (&(Rank, Line), &Pile)| {
                let away = pile.letters.iter().filter(|(_, letter)| matches!(letter.body, Body::Away(_)));
                away.map(move |(&number, _)| (from, line, number)).collect::<Vec<_>>()
            };
            for (from, line, number) in self.piles.iter().flat_map(away).collect::<Vec<_>>() {
                if let Some(pile) = self.piles.get_mut(&(from, line)) {
                    pile.expected.insert(number, None);
                }
                self.call_for(from, line, number)?;
            }
            if !self.is_sending() && self.loading.is_empty() || Instant::now() >= until {
                return Ok(());
            }
            self.progress()?;
            std::thread::yield_now();
        }
    }

    /// Ends the carrier.
    pub(crate) fn finish(&self) -> Result<()> {
        self.carrier.finish()
    }
}
