//! Ranks as processes of one machine without MPI: Unix sockets in a folder carry the letters of a [`Depot`].
//!
//! Every rank listens at a socket of its own in a folder that only its user can enter, and has one connection to each other
//! rank. A process that ends without saying goodbye, however it ends, is noticed at once by all others.

use crate::comm::Comm;
use crate::error::{Error, Result};
use crate::letters::{Depot, Options, words};
use planaria_array::{Array, DType};
use planaria_layout::Rank;
use std::fmt::Display;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The tag of a rank's last words.
const GOODBYE: u32 = u32::MAX;

/// Bytes before the contents of a parcel: its tag and its length.
const HEAD: usize = 12;

/// Time between two looks for a peer that is not there yet.
const PULSE: Duration = Duration::from_millis(5);

/// How long letters may take to leave a process that gives up.
const GRACE: Duration = Duration::from_secs(1);

/// Where a process stands among the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// This rank.
    pub rank: Rank,
    /// Ranks in all.
    pub size: usize,
    /// The folder of their sockets.
    pub folder: PathBuf,
}

/// Runs `work` as this process's rank; every process of the job calls this with its own place. An error or a panic
/// reaches the other ranks by name.
pub fn run<R, E: Display>(
    place: &Place,
    options: &Options,
    work: impl FnOnce(Arc<dyn Comm>) -> std::result::Result<R, E>,
) -> Result<R> {
    let depot = Depot::new(place.rank, place.size)?;
    let gone = carry(&depot, connect(place, options.timeout)?)?;
    let connection = depot.connect(options)?;
    let comm = connection.comm();
    let fail = |reason: String| comm.abort(&reason);
    let end = catch_unwind(AssertUnwindSafe(|| work(comm.clone())));
    let end = match end {
        Ok(Ok(result)) => Ok(comm.barrier().map(|()| result)),
        Ok(Err(error)) => {
            fail(error.to_string());
            // The first failure of all, which may be another's.
            let own = || Error::Aborted { rank: place.rank, reason: error.to_string() };
            Ok(Err(comm.barrier().err().unwrap_or_else(own)))
        }
        Err(panic) => {
            fail(format!("panic: {}", words(panic.as_ref())));
            Err(panic)
        }
    };
    drop(connection);
    // A peer that stands still must not keep this process.
    let _ = gone.recv_timeout(GRACE);
    end.unwrap_or_else(|panic| resume_unwind(panic))
}

fn failed(what: impl Into<String>) -> Error {
    Error::Engine { engine: "sockets", what: what.into() }
}

fn socket(folder: &Path, rank: Rank) -> PathBuf {
    folder.join(format!("rank-{rank:05}.sock"))
}

/// A connection to every other rank, by rank. Ranks call those below them and are called by those above.
fn connect(place: &Place, patience: Duration) -> Result<Vec<Option<UnixStream>>> {
    let Place { rank, size, folder } = place;
    let (rank, size, begin) = (*rank, *size, Instant::now());
    let own = socket(folder, rank);
    let cannot = |error: std::io::Error| failed(format!("'{}': {error}", own.display()));
    let listener = UnixListener::bind(&own).map_err(cannot)?;
    listener.set_nonblocking(true).map_err(cannot)?;
    let mut peers: Vec<Option<UnixStream>> = (0..size).map(|_| None).collect();
    loop {
        for peer in (0..rank).filter(|&peer| peers[peer].is_none()).collect::<Vec<_>>() {
            // Not there yet, or no room in its queue.
            if let Ok(mut stream) = UnixStream::connect(socket(folder, peer)) {
                stream.write_all(&(rank as u64).to_le_bytes()).map_err(cannot)?;
                peers[peer] = Some(stream);
            }
        }
        match listener.accept() {
            Ok((stream, _)) => {
                let (from, stream) = greet(stream, patience).map_err(cannot)?;
                let free = peers.get_mut(from).filter(|free| from > rank && free.is_none());
                *free.ok_or_else(|| failed(format!("rank {from} called rank {rank}")))? = Some(stream);
                continue;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(cannot(error)),
        }
        let missing: Vec<Rank> = (0..size).filter(|&peer| peer != rank && peers[peer].is_none()).collect();
        if missing.is_empty() {
            return Ok(peers);
        }
        let waited = begin.elapsed();
        if waited >= patience {
            return Err(Error::Timeout { call: "connect", sequence: 0, missing, waited });
        }
        std::thread::sleep(PULSE);
    }
}

/// Who has called.
fn greet(mut stream: UnixStream, patience: Duration) -> std::io::Result<(Rank, UnixStream)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(patience))?;
    let mut rank = [0; 8];
    stream.read_exact(&mut rank)?;
    stream.set_read_timeout(None)?;
    Ok((u64::from_le_bytes(rank) as Rank, stream))
}

/// Starts the threads that carry; what is answered comes when the last letter has left.
fn carry(depot: &Arc<Depot>, mut peers: Vec<Option<UnixStream>>) -> Result<Receiver<()>> {
    let cannot = |error: std::io::Error| failed(format!("cannot start a thread: {error}"));
    for (from, stream) in peers.iter().enumerate() {
        let Some(stream) = stream else { continue };
        let (mut stream, depot) = (stream.try_clone().map_err(cannot)?, depot.clone());
        let name = format!("planaria-from-{from}");
        let read = move || {
            if let Err(reason) = receive(&depot, from, &mut stream) {
                depot.fail(&reason);
            }
        };
        std::thread::Builder::new().name(name).spawn(read).map_err(cannot)?;
    }
    let (leaving, gone) = channel();
    let depot = depot.clone();
    let write = move || {
        while !depot.is_closed() {
            let Some(parcel) = depot.take(Duration::from_millis(20)) else { continue };
            let Some(stream) = &mut peers[parcel.to] else { continue };
            if send(stream, parcel.tag, parcel.bytes()).is_err() {
                depot.fail(&format!("rank {} is gone", parcel.to));
                peers[parcel.to] = None;
            }
        }
        for stream in peers.iter_mut().flatten() {
            let _ = send(stream, GOODBYE, &[]).and_then(|()| stream.shutdown(Shutdown::Write));
        }
        let _ = leaving.send(());
    };
    std::thread::Builder::new().name("planaria-to".into()).spawn(write).map_err(cannot)?;
    Ok(gone)
}

fn send(stream: &mut UnixStream, tag: u32, bytes: &[u8]) -> std::io::Result<()> {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&tag.to_le_bytes());
    head[4..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    stream.write_all(&head)?;
    stream.write_all(bytes)
}

/// Takes in what one rank sends until it says goodbye; otherwise, why there is no more.
fn receive(depot: &Depot, from: Rank, stream: &mut UnixStream) -> std::result::Result<(), String> {
    let gone = |_: std::io::Error| format!("rank {from} is gone");
    loop {
        let mut head = [0; HEAD];
        stream.read_exact(&mut head).map_err(gone)?;
        let (tag, length) = head.split_at(4);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        let (tag, length) = (number(tag) as u32, number(length));
        if tag == GOODBYE {
            return Ok(());
        }
        let told = |error: &dyn Display| format!("a parcel of rank {from}: {error}");
        let length = usize::try_from(length).map_err(|error| told(&error))?;
        let room = Array::empty(&[length], DType::U8).map_err(|error| told(&error))?;
        let read = room.write_bytes(0..length, |out| stream.read_exact(out)).map_err(|error| told(&error))?;
        read.map_err(gone)?;
        depot.deliver(from, tag, &room).map_err(|error| told(&error))?;
    }
}
