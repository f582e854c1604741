//! A file being written to an agent. The connection for writers holds it: when that goes, the agent forgets the file.

use super::frame::{Ask, CHUNK, Head, WHOLE};
use super::link::{About, Keeper, Link};
use crate::error::{Error, Result};
use crate::store::{PutMode, Sharing, Writer, check_inside};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct PeerWriter {
    link: Arc<Link>,
    keeper: Arc<Keeper>,
    name: String,
    len: u64,
    /// Its number at the agent; none when it is finished.
    number: Option<u64>,
}

impl PeerWriter {
    pub(super) fn begin(
        link: &Arc<Link>,
        name: &str,
        full: &str,
        len: u64,
        sharing: Sharing,
    ) -> Result<PeerWriter> {
        PeerWriter::asked(link, name, full, len, u8::from(sharing == Sharing::Processes))
    }

    /// One whose file appears whole when it is finished.
    pub(super) fn whole(link: &Arc<Link>, name: &str, full: &str, len: u64) -> Result<PeerWriter> {
        PeerWriter::asked(link, name, full, len, WHOLE)
    }

    fn asked(link: &Arc<Link>, name: &str, full: &str, len: u64, flag: u8) -> Result<PeerWriter> {
        let about = About { name, op: "create" };
        let keeper = link.keeper(&about)?;
        let head = Head { flag, ..Head::ask(Ask::Begin, [len, 0, 0]) };
        let number = Some(link.ask_keeper(&keeper, &about, head, full)?.head.a);
        Ok(PeerWriter { link: link.clone(), keeper, name: name.to_string(), len, number })
    }

    /// Sends a piece that lies in one chunk.
    fn send(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let about = About { name: &self.name, op: "write" };
        let head = Head::ask(Ask::Write, [self.number.unwrap_or_default(), offset, 0]);
        let sent = self.link.ask(&about, head, "", bytes);
        sent.map(|_| ()).map_err(|error| match error {
            // With the connection for writers the file is lost, whatever is tried again.
            error if error.is_transient() && !self.keeper.holds() => last(error),
            error => placed(error, offset, bytes.len()),
        })
    }

    /// Ends the file; with `Create` only if there is none of its name.
    pub(super) fn finish_as(mut self, mode: PutMode) -> Result<()> {
        let number = self.number.take().unwrap_or_default();
        let about = About { name: &self.name, op: "finish" };
        let flag = u8::from(mode == PutMode::Create);
        let head = Head { flag, ..Head::ask(Ask::Finish, [number, 0, 0]) };
        self.link.ask_keeper(&self.keeper, &about, head, "").map(|_| ()).map_err(last)
    }
}

impl Drop for PeerWriter {
    fn drop(&mut self) {
        if let Some(number) = self.number.take()
            && self.keeper.holds()
        {
            let about = About { name: &self.name, op: "abandon" };
            // Nobody is left to tell about a failure, which ends the connection and with it the file.
            let _ = self.link.ask_keeper(&self.keeper, &about, Head::ask(Ask::Abandon, [number, 0, 0]), "");
        }
    }
}

/// What was lost with its connection does not come back by trying again.
fn last(error: Error) -> Error {
    match error {
        Error::Remote { name, op, message, .. } => Error::Remote { name, op, message, transient: false },
        other => other,
    }
}

/// The error with the bytes it is about.
fn placed(error: Error, offset: u64, len: usize) -> Error {
    match error {
        Error::Checksum { name, found, expected, .. } => {
            Error::Checksum { name, start: offset, end: offset + len as u64, found, expected }
        }
        Error::OutOfFile { name, size, .. } => Error::OutOfFile { name, offset, len: len as u64, size },
        other => other,
    }
}

impl Writer for PeerWriter {
    fn name(&self) -> &str {
        &self.name
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        check_inside(&self.name, self.len, offset, bytes.len() as u64)?;
        let (mut offset, mut bytes) = (offset, bytes);
        while !bytes.is_empty() {
            let inside = CHUNK - (offset % CHUNK as u64) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(inside));
            self.send(offset, now)?;
            offset += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.finish_as(PutMode::Replace)
    }
}
