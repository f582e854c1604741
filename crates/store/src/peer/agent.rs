//! The process that holds files for others, in its memory or in a store: a listener and a thread for every connection.

use super::files::Files;
use super::folder::Folder;
use super::frame::{Head, Say, VERSION};
use super::holding::Holding;
use super::serve::serve;
use super::token::{PEER_TOKEN, Token};
use super::wire::Wire;
use crate::error::{Error, Result};
use crate::store::Store;
use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections served at once; further ones are told to come back.
const CONNECTIONS: usize = 512;

/// Holds files in memory for [`Peer`](super::Peer)s, until it is dropped.
///
/// A file is there when it is finished, and takes its length of the room from when it is begun. Files of a writer that
/// goes before it has finished go too.
#[derive(Debug)]
pub struct Agent {
    address: SocketAddr,
    table: Arc<Table>,
    /// The listening socket once more: shutting it down ends the wait for connections.
    listener: TcpStream,
    accepting: Option<JoinHandle<()>>,
}

/// How much an agent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRoom {
    /// Bytes it may hold.
    pub limit: u64,
    /// Bytes it holds, those of unfinished files included.
    pub used: u64,
    /// Finished files.
    pub files: u64,
}

#[derive(Debug)]
struct Table {
    files: Box<dyn Holding>,
    token: Token,
    stop: AtomicBool,
    /// Connections served at once.
    most: usize,
    served: Mutex<Served>,
}

#[derive(Debug, Default)]
struct Served {
    next: u64,
    connections: HashMap<u64, (Arc<TcpStream>, JoinHandle<()>)>,
}

impl Agent {
    /// Listens on an address such as `127.0.0.1:0`. Clients must give the same token; only on the loopback address may
    /// it be empty.
    pub fn listen(address: &str, memory_limit: u64, token: &str) -> Result<Agent> {
        Agent::bounded(address, Box::new(Files::new(memory_limit)), token, CONNECTIONS)
    }

    /// The same with the files of a store in place of its own memory, such as a folder of this machine: what is written stays when the
    /// agent ends. Files are there as the store has them; one of several writers that is lost does not take the file along.
    pub fn serve(address: &str, store: Arc<dyn Store>, token: &str) -> Result<Agent> {
        Agent::bounded(address, Box::new(Folder::new(store)), token, CONNECTIONS)
    }

    /// The same with another number of connections.
    pub(super) fn bounded(address: &str, files: Box<dyn Holding>, token: &str, most: usize) -> Result<Agent> {
        let fail = |error: io::Error| Error::Io {
            name: address.to_string(),
            op: "listen on",
            kind: error.kind(),
            message: error.to_string(),
        };
        let token_bytes = Token::new(token)?;
        let listener = TcpListener::bind(address).map_err(fail)?;
        let bound = listener.local_addr().map_err(fail)?;
        if token.is_empty() && !bound.ip().is_loopback() {
            let message = format!("other machines reach it, and there is no token; set {PEER_TOKEN}");
            return Err(fail(io::Error::new(io::ErrorKind::PermissionDenied, message)));
        }
        let again = TcpStream::from(OwnedFd::from(listener.try_clone().map_err(fail)?));
        let table = Arc::new(Table {
            files,
            token: token_bytes,
            stop: AtomicBool::new(false),
            most,
            served: Mutex::default(),
        });
        let shared = table.clone();
        let accepting = std::thread::Builder::new()
            .name("planaria-agent".to_string())
            .spawn(move || accept(&listener, &shared))
            .map_err(fail)?;
        Ok(Agent { address: bound, table, listener: again, accepting: Some(accepting) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How much it holds.
    pub fn room(&self) -> PeerRoom {
        let (limit, used, files) = self.table.files.room();
        PeerRoom { limit, used, files }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.table.stop.store(true, Ordering::Release);
        // A socket that cannot be shut down is closed already.
        let _ = self.listener.shutdown(Shutdown::Both);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
        let all = std::mem::take(&mut self.table.served().connections);
        for (stream, _) in all.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for (_, thread) in all.into_values() {
            let _ = thread.join();
        }
    }
}

impl Table {
    fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a connection a thread, if there may be one more.
    fn take(self: &Arc<Table>, stream: TcpStream) -> io::Result<()> {
        let mut served = self.served();
        served.connections.retain(|_, (_, thread)| !thread.is_finished());
        if served.connections.len() >= self.most {
            drop(served);
            let busy = Head::say(Say::Busy, [self.most as u64, VERSION, 0]);
            return Wire::new(stream)?.send(busy, &[], &[], Instant::now() + Duration::from_millis(100));
        }
        let stream = Arc::new(stream);
        let (again, table) = (stream.clone(), self.clone());
        let thread = std::thread::Builder::new().name("planaria-peer".to_string()).spawn(move || {
            if let Ok(wire) = Wire::new(stream) {
                serve(wire, &*table.files, &table.token);
            }
        })?;
        served.next += 1;
        let number = served.next;
        served.connections.insert(number, (again, thread));
        Ok(())
    }
}

fn accept(listener: &TcpListener, table: &Arc<Table>) {
    while !table.stop.load(Ordering::Acquire) {
        let taken = listener.accept().and_then(|(stream, _)| table.take(stream));
        if taken.is_err() && !table.stop.load(Ordering::Acquire) {
            // Out of descriptors or threads, or a client that went at once: others are served meanwhile.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
