//! Files in the memory or a folder of another process, reached over the network: an [`Agent`] holds them, a [`Peer`] is the store.
//!
//! A file is there when it is finished; it goes with its writer if that goes before. Every frame has checksums that the
//! receiver compares, every wait ends, and every length is bounded before memory is taken for it. The token travels as
//! it is: between machines that others listen to, put the connection into a tunnel.

mod agent;
mod file;
mod files;
mod folder;
mod frame;
mod holding;
mod link;
mod listing;
mod serve;
#[cfg(test)]
mod tests;
mod token;
mod wire;
mod writer;

pub use agent::{Agent, PeerRoom};
pub use link::PeerOptions;
pub use token::{PEER_TOKEN, peer_token};

use crate::error::{Error, Result};
use crate::name::{check_folder, check_name, join};
use crate::store::{Entry, Medium, PutMode, Reader, Sharing, Store, Writer};
use frame::{Ask, CHUNK, Head};
use link::{About, Link};
use std::sync::Arc;

/// Most entries of a folder that a client takes.
const MOST_ENTRIES: usize = 1 << 20;

/// The files of an [`Agent`], or those below a prefix. Clones share connections.
#[derive(Clone, Debug)]
pub struct Peer {
    link: Arc<Link>,
    /// Put before every name; empty or without a slash at the end.
    prefix: String,
}

impl Peer {
    /// `peer://host:port/prefix`, with the token of the environment. Nothing is sent yet.
    pub fn open(url: &str) -> Result<Peer> {
        Peer::with(url, PeerOptions { token: peer_token()?, ..PeerOptions::default() })
    }

    /// The same with other options.
    pub fn with(url: &str, options: PeerOptions) -> Result<Peer> {
        let bad = |reason: &str| Error::BadUrl { url: url.to_string(), reason: reason.to_string() };
        let expected = || bad("expected peer://host:port/prefix");
        let rest = url.strip_prefix("peer://").ok_or_else(expected)?;
        let (place, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = place.rsplit_once(':').ok_or_else(expected)?;
        let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
        if host.is_empty() || host.contains(['@', '?', '#']) || !is_port {
            return Err(expected());
        }
        let prefix = prefix.trim_end_matches('/').to_string();
        check_folder(&prefix).map_err(|error| bad(&error.to_string()))?;
        Ok(Peer { link: Arc::new(Link::new(place, options)?), prefix })
    }

    /// How much the agent holds.
    pub fn room(&self) -> Result<PeerRoom> {
        let about = About { name: &self.address(), op: "ask the agent of" };
        let answer = self.link.ask(&about, Head::ask(Ask::Room, [0; 3]), "", &[])?;
        Ok(PeerRoom { limit: answer.head.a, used: answer.head.b, files: answer.head.c })
    }

    /// The agent's name for a file of this store.
    fn full(&self, name: &str) -> Result<String> {
        check_name(name)?;
        let full = join(&self.prefix, name);
        // With the prefix it may be too long.
        check_name(&full)?;
        Ok(full)
    }

    fn begin(&self, name: &str, len: u64, sharing: Sharing) -> Result<writer::PeerWriter> {
        writer::PeerWriter::begin(&self.link, name, &self.full(name)?, len, sharing)
    }
}

impl Store for Peer {
    fn address(&self) -> String {
        match self.prefix.is_empty() {
            true => format!("peer://{}", self.link.place()),
            false => format!("peer://{}/{}", self.link.place(), self.prefix),
        }
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        check_folder(folder)?;
        let full = if folder.is_empty() { self.prefix.clone() } else { self.full(folder)? };
        let about = About { name: folder, op: "list" };
        let (mut entries, mut from) = (Vec::new(), String::new());
        loop {
            let head = Head::ask(Ask::List, [0; 3]);
            let answer = self.link.ask(&about, head, &full, from.as_bytes())?;
            let page = listing::entries(&answer.payload, folder);
            entries.extend(page.ok_or_else(|| self.link.nonsense(&about, "a listing"))?);
            if answer.text.is_empty() {
                entries.sort();
                return Ok(entries);
            }
            if answer.text <= from || entries.len() > MOST_ENTRIES {
                return Err(self.link.nonsense(&about, "a listing without an end"));
            }
            from = answer.text;
        }
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>> {
        let full = self.full(name)?;
        let about = About { name, op: "open" };
        let head = self.link.ask(&about, Head::ask(Ask::Open, [0; 3]), &full, &[])?.head;
        let (name, link) = (name.to_string(), self.link.clone());
        Ok(Box::new(PeerReader { name, full, size: head.a, version: head.b, link }))
    }

    fn writer(&self, name: &str, len: u64, sharing: Sharing) -> Result<Box<dyn Writer>> {
        Ok(Box::new(self.begin(name, len, sharing)?))
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<()> {
        if bytes.len() > CHUNK {
            let full = self.full(name)?;
            let file = writer::PeerWriter::whole(&self.link, name, &full, bytes.len() as u64)?;
            file.write_at(0, bytes)?;
            return file.finish_as(mode);
        }
        let (full, about) = (self.full(name)?, About { name, op: "put" });
        let flag = u8::from(mode == PutMode::Create);
        let head = Head { flag, ..Head::ask(Ask::Put, [0; 3]) };
        self.link.ask(&about, head, &full, bytes).map(|_| ())
    }

    fn delete(&self, name: &str) -> Result<()> {
        let (full, about) = (self.full(name)?, About { name, op: "delete" });
        self.link.ask(&about, Head::ask(Ask::Delete, [0; 3]), &full, &[]).map(|_| ())
    }
}

#[derive(Debug)]
struct PeerReader {
    name: String,
    full: String,
    size: u64,
    /// Reading goes on only while the file is the one that was opened.
    version: u64,
    link: Arc<Link>,
}

impl Reader for PeerReader {
    fn medium(&self) -> Medium {
        Medium::Network
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let end = offset.saturating_add(into.len() as u64).min(self.size);
        let about = About { name: &self.name, op: "read" };
        let mut at = offset;
        while at < end {
            // The agent answers with what lies in one chunk.
            let now = (end - at).min(CHUNK as u64 - at % CHUNK as u64) as usize;
            let start = (at - offset) as usize;
            let head = Head::ask(Ask::Read, [at, self.version, now as u64]);
            self.link.fetch(&about, head, &self.full, &mut into[start..start + now])?;
            at += now as u64;
        }
        Ok(end.saturating_sub(offset) as usize)
    }
}
