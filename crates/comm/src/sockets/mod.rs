//! Ranks as processes without MPI: sockets carry the letters of a [`Depot`], Unix sockets on one machine, TCP between machines.
//!
//! Every rank listens at a socket of its own in a folder that only its user can enter, and has one connection to each other
//! rank. A process that ends without saying goodbye, however it ends, is noticed at once by all others. Ranks of several machines
//! listen to the network too; whoever started them brings the file that says where to the folders of the others, or the first rank tells
//! all that call it at an address that all of them know.

mod gathering;
mod meeting;
mod stream;

pub use meeting::{SECRET, address_file, write_address};

use crate::comm::Comm;
use crate::error::{Error, Result};
use crate::letters::{Depot, Options, words};
use planaria_array::{Array, DType};
use planaria_layout::Rank;
use std::fmt::Display;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use stream::Stream;

/// The tag of a rank's last words.
const GOODBYE: u32 = u32::MAX;

/// Bytes before the contents of a parcel: its tag and its length.
const HEAD: usize = 12;

/// How long letters may take to leave a process that gives up.
const GRACE: Duration = Duration::from_secs(1);

/// Where a process stands among the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// This rank.
    pub rank: Rank,
    /// Ranks in all.
    pub size: usize,
    /// The folder of their sockets; empty for one that each rank makes for itself, where the first one brings them together.
    pub folder: PathBuf,
    /// How ranks of other machines reach this one, where there are any.
    pub network: Option<Network>,
}

/// What a rank needs to meet ranks of other machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The name or address that others know this machine by.
    pub address: String,
    /// What ranks of the same job know and nobody else does. It is sent as it is: a network that others listen to needs a tunnel.
    pub secret: [u8; SECRET],
    /// Where the first rank takes calls, as `HOST:PORT`, if nobody else brings ranks together. The first rank makes a secret of its own
    /// then, which those get that know this one.
    pub first: Option<String>,
}

/// Runs `work` as this process's rank; every process of the job calls this with its own place. An error or a panic
/// reaches the other ranks by name.
pub fn run<R, E: Display>(
    place: &Place,
    options: &Options,
    work: impl FnOnce(Arc<dyn Comm>) -> std::result::Result<R, E>,
) -> Result<R> {
    let depot = Depot::new(place.rank, place.size)?;
    let own = place.folder.as_os_str().is_empty().then(|| Own::make(place.rank)).transpose()?;
    let folder = own.as_ref().map_or(&place.folder, |own| &own.0);
    let place = &Place { folder: folder.clone(), ..place.clone() };
    let gone = carry(&depot, meeting::connect(place, options.timeout)?)?;
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

/// A folder of this rank alone, which only its user can enter. It goes when this is dropped.
#[derive(Debug)]
struct Own(PathBuf);

impl Own {
    fn make(rank: Rank) -> Result<Own> {
        use std::os::unix::fs::DirBuilderExt;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let name = format!("planaria-rank-{rank}-{}-{}", std::process::id(), now.as_nanos());
        let path = std::env::temp_dir().join(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| failed(format!("cannot create '{}': {error}", path.display())))?;
        Ok(Own(path))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn failed(what: impl Into<String>) -> Error {
    Error::Engine { engine: "sockets", what: what.into() }
}

/// Starts the threads that carry; what is answered comes when the last letter has left.
fn carry(depot: &Arc<Depot>, mut peers: Vec<Option<Stream>>) -> Result<Receiver<()>> {
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
            let _ = send(stream, GOODBYE, &[]).and_then(|()| stream.finish());
        }
        let _ = leaving.send(());
    };
    std::thread::Builder::new().name("planaria-to".into()).spawn(write).map_err(cannot)?;
    Ok(gone)
}

fn send(stream: &mut Stream, tag: u32, bytes: &[u8]) -> std::io::Result<()> {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&tag.to_le_bytes());
    head[4..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    stream.write_all(&head)?;
    stream.write_all(bytes)
}

/// Takes in what one rank sends until it says goodbye; otherwise, why there is no more.
fn receive(depot: &Depot, from: Rank, stream: &mut Stream) -> std::result::Result<(), String> {
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
