//! What an agent serves, whatever it lies in: its own memory, or a store.

use super::file::{File, Unwritten};
use super::files::{Files, Refusal};
use super::frame::Say;
use super::wire::Sums;
use crate::store::{PutMode, Sharing};
use std::fmt::Debug;
use std::io;
use std::time::Instant;

/// Takes a payload off the line, all of it.
pub(super) type Receive<'a> = dyn FnMut(&mut [u8]) -> io::Result<Sums> + 'a;

/// Answers with bytes.
pub(super) type Send<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

/// Why a payload was not taken.
#[derive(Debug)]
pub(super) enum Untaken {
    /// Nothing was received.
    Before(Refusal),
    /// It was received, and cannot be kept.
    After(Refusal),
    /// The connection failed.
    Lost(io::Error),
}

/// Files for others.
pub(super) trait Holding: Debug + std::marker::Send + Sync {
    /// Bytes that may be held, bytes held, files finished.
    fn room(&self) -> (u64, u64, u64);

    /// A page of the entries of a folder, and where the next begins; empty at the end.
    fn list(&self, folder: &str, from: &str) -> Result<(Vec<u8>, String), Refusal>;

    /// Size and version of a file.
    fn open(&self, name: &str) -> Result<(u64, u64), Refusal>;

    /// Sends at most so many bytes from an offset of a file that still has this version.
    fn read(
        &self,
        name: &str,
        version: u64,
        span: (u64, usize),
        send: &mut Send<'_>,
    ) -> Result<io::Result<()>, Refusal>;

    /// A writer's number.
    fn begin(&self, name: &str, len: u64, sharing: Sharing) -> Result<u64, Refusal>;

    /// The number of a writer whose file appears whole when it is finished, and only then.
    fn begin_whole(&self, name: &str, len: u64) -> Result<u64, Refusal>;

    /// Takes bytes into the file of a writer.
    fn write(&self, number: u64, offset: u64, len: usize, receive: &mut Receive<'_>)
    -> Result<Sums, Untaken>;

    /// Ends a writer.
    fn finish(&self, number: u64, mode: PutMode) -> Result<(), Refusal>;

    /// Takes a whole small file.
    fn put(&self, name: &str, len: usize, mode: PutMode, receive: &mut Receive<'_>) -> Result<Sums, Untaken>;

    /// Removes a file, or a folder in which nothing is listed.
    fn delete(&self, name: &str) -> Result<(), Refusal>;

    /// When one of these writers was used last.
    fn last_used(&self, writers: &[u64]) -> Option<Instant>;

    /// Forgets the writers of a connection that ended.
    fn gone(&self, writers: &[u64]);
}

impl Holding for Files {
    fn room(&self) -> (u64, u64, u64) {
        Files::room(self)
    }

    fn list(&self, folder: &str, from: &str) -> Result<(Vec<u8>, String), Refusal> {
        Files::list(self, folder, from)
    }

    fn open(&self, name: &str) -> Result<(u64, u64), Refusal> {
        self.find(name, None).map(|file| (file.len, file.version))
    }

    fn read(
        &self,
        name: &str,
        version: u64,
        (offset, len): (u64, usize),
        send: &mut Send<'_>,
    ) -> Result<io::Result<()>, Refusal> {
        Ok(self.find(name, Some(version))?.read(offset, len, send))
    }

    fn begin(&self, name: &str, len: u64, sharing: Sharing) -> Result<u64, Refusal> {
        Files::begin(self, name, len, sharing)
    }

    fn begin_whole(&self, name: &str, len: u64) -> Result<u64, Refusal> {
        Files::begin(self, name, len, Sharing::Threads)
    }

    fn write(
        &self,
        number: u64,
        offset: u64,
        len: usize,
        receive: &mut Receive<'_>,
    ) -> Result<Sums, Untaken> {
        let file = self.of_writer(number).map_err(Untaken::Before)?;
        self.fill(&file, offset, len, receive)
    }

    fn finish(&self, number: u64, mode: PutMode) -> Result<(), Refusal> {
        Files::finish(self, number, mode)
    }

    fn put(&self, name: &str, len: usize, mode: PutMode, receive: &mut Receive<'_>) -> Result<Sums, Untaken> {
        let mut taken = None;
        let put = Files::put(self, name, len, mode, |file| {
            match taken.insert(self.fill(file, 0, len, receive)) {
                Ok(sums) if sums.agree() => Ok(()),
                // What it is stands in `taken`.
                _ => Err(Refusal::new(Say::Malformed, [0; 3])),
            }
        });
        match (taken, put) {
            (None, Err(refusal)) => Err(Untaken::Before(refusal)),
            (Some(Ok(sums)), Err(refusal)) if sums.agree() => Err(Untaken::After(refusal)),
            (Some(taken), _) => taken,
            (None, Ok(())) => Err(Untaken::Before(Refusal::new(Say::Malformed, [0; 3]))),
        }
    }

    fn delete(&self, name: &str) -> Result<(), Refusal> {
        Files::delete(self, name)
    }

    fn last_used(&self, writers: &[u64]) -> Option<Instant> {
        Files::last_used(self, writers)
    }

    fn gone(&self, writers: &[u64]) {
        Files::gone(self, writers);
    }
}

impl Files {
    /// Takes a payload straight into the memory of a file.
    fn fill(&self, file: &File, offset: u64, len: usize, receive: &mut Receive<'_>) -> Result<Sums, Untaken> {
        let received = file.write(offset, len, |into| {
            let sums = receive(into)?;
            Ok((sums.agree(), sums))
        });
        received.map_err(|error| match error {
            Unwritten::Lost(error) => Untaken::Lost(error),
            Unwritten::Outside => Untaken::Before(Refusal::new(Say::OutOfFile, [file.len, 0, 0])),
            Unwritten::NoMemory => {
                let text = "the machine has no memory left for it".to_string();
                let numbers = [len as u64, 0, Files::room(self).0];
                Untaken::Before(Refusal { say: Say::Full, numbers, text })
            }
        })
    }
}
