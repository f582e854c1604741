//! How ranks find each other: files of a folder say where each of them listens. Whoever started the ranks brings those of other
//! machines there, or the first rank does (`gathering`).

use super::gathering::{self, Told};
use super::stream::Stream;
use super::{Place, failed};
use crate::error::{Error, Result};
#[cfg(target_os = "linux")]
use crate::shared::{Shelf, Window};
use planaria_layout::Rank;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks for a peer that is not there yet.
const PULSE: Duration = Duration::from_millis(5);

/// How long a call over the network may take to be answered, and a caller to say who it is.
const CALL: Duration = Duration::from_secs(3);

/// Bytes of the secret of a job.
pub const SECRET: usize = 32;

/// The socket of a rank of this machine.
fn socket(folder: &Path, rank: Rank) -> PathBuf {
    folder.join(format!("rank-{rank:05}.sock"))
}

/// The file that says where a rank listens to other machines.
pub fn address_file(folder: &Path, rank: Rank) -> PathBuf {
    folder.join(format!("rank-{rank:05}.tcp"))
}

/// Writes where a rank listens, so that whoever reads the file reads all of it. A second line may name a socket of the rank's own machine.
pub fn write_address(folder: &Path, rank: Rank, address: &str) -> std::io::Result<()> {
    let file = address_file(folder, rank);
    let new = file.with_extension("tcp-new");
    std::fs::write(&new, address)?;
    std::fs::rename(&new, &file)
}

/// Where this rank can be called.
struct Listeners {
    unix: UnixListener,
    tcp: Option<TcpListener>,
}

/// A port for others that the system chooses.
fn listen() -> std::io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind(("::", 0)).or_else(|_| TcpListener::bind(("0.0.0.0", 0)))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// `host:port`, with brackets around an address that has colons itself.
pub(super) fn endpoint(host: &str, port: u16) -> String {
    let brackets = host.contains(':') && !host.starts_with('[');
    if brackets { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl Listeners {
    /// Listens, and says where; with the secret of the job.
    fn open(place: &mut Place, patience: Duration) -> Result<Listeners> {
        let own = socket(&place.folder, place.rank);
        let cannot = |error: std::io::Error| failed(format!("'{}': {error}", own.display()));
        let unix = UnixListener::bind(&own).map_err(cannot)?;
        unix.set_nonblocking(true).map_err(cannot)?;
        let Some(network) = &mut place.network else { return Ok(Listeners { unix, tcp: None }) };
        let (tcp, port) = listen().map_err(cannot)?;
        match &network.first {
            None => {
                write_address(&place.folder, place.rank, &endpoint(&network.address, port)).map_err(cannot)?
            }
            Some(first) => {
                let told = Told { port, socket: own.display().to_string() };
                let met = gathering::meet(first, (place.rank, place.size), &network.secret, &told, patience)?;
                network.secret = met.secret;
                for (rank, address) in met.addresses.iter().enumerate() {
                    write_address(&place.folder, rank, address).map_err(cannot)?;
                }
            }
        }
        Ok(Listeners { unix, tcp: Some(tcp) })
    }

    /// The next caller, if there is one.
    fn accept(&self) -> std::io::Result<Option<Stream>> {
        if let Some((stream, _)) = came(self.unix.accept())? {
            return Ok(Some(Stream::Unix(stream)));
        }
        let caller = self.tcp.as_ref().map(|tcp| came(tcp.accept())).transpose()?.flatten();
        // One that is gone again was nobody.
        Ok(caller.and_then(|(stream, _)| Stream::tcp(stream).ok()))
    }
}

/// Who has come, or nobody yet.
fn came<T>(caller: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match caller {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        other => other.map(Some),
    }
}

/// The ranks that have met.
pub(super) struct Company {
    /// A connection to every other rank, by rank.
    pub(super) peers: Vec<Option<Stream>>,
    /// The host of each: its first rank.
    pub(super) hosts: Vec<usize>,
    /// Memory that this rank writes to for others of its host, and theirs.
    #[cfg(target_os = "linux")]
    pub(super) shelf: Option<Arc<Shelf>>,
    #[cfg(target_os = "linux")]
    pub(super) windows: Vec<Option<Arc<Window>>>,
}

/// Meets every other rank. Ranks call those below them and are called by those above.
pub(super) fn connect(place: &Place, patience: Duration) -> Result<Company> {
    let Place { rank, size, .. } = *place;
    let begin = Instant::now();
    let place = &mut place.clone();
    let own = socket(&place.folder, rank);
    let cannot = |error: std::io::Error| failed(format!("'{}': {error}", own.display()));
    let listeners = Listeners::open(place, patience)?;
    let place = &*place;
    let mut peers: Vec<Option<Stream>> = (0..size).map(|_| None).collect();
    loop {
        for peer in (0..rank).filter(|&peer| peers[peer].is_none()).collect::<Vec<_>>() {
            peers[peer] = call(place, peer);
        }
        if let Some(mut stream) = listeners.accept().map_err(cannot)? {
            let from = match (greet(&mut stream, place), &stream) {
                (Ok(from), _) => from,
                // Anybody can call over a network; only ranks of this job are let in.
                (Err(_), Stream::Tcp(_)) => continue,
                (Err(error), Stream::Unix(_)) => return Err(cannot(error)),
            };
            let free = peers.get_mut(from).filter(|free| from > rank && free.is_none());
            *free.ok_or_else(|| failed(format!("rank {from} called rank {rank}")))? = Some(stream);
            continue;
        }
        let missing: Vec<Rank> = (0..size).filter(|&peer| peer != rank && peers[peer].is_none()).collect();
        if missing.is_empty() {
            return introduce(rank, peers, begin + patience);
        }
        let waited = begin.elapsed();
        if waited >= patience {
            return Err(Error::Timeout { call: "connect", sequence: 0, missing, waited });
        }
        std::thread::sleep(PULSE);
    }
}

/// Every rank tells every other on which host it is: that of the first rank that it reaches through its folder. Ranks of one host
/// hand each other the memory that they share.
fn introduce(rank: Rank, mut peers: Vec<Option<Stream>>, until: Instant) -> Result<Company> {
    let begin = Instant::now();
    let near = |peer: &Option<Stream>| matches!(peer, Some(Stream::Unix(_)));
    let own = peers.iter().position(near).map_or(rank, |first| first.min(rank));
    let gone = |peer: Rank| failed(format!("rank {peer} is gone"));
    // Where the system has no such memory, sockets carry everything.
    #[cfg(target_os = "linux")]
    let shelf = if peers.iter().any(near) { Shelf::new(peers.len()).ok() } else { None };
    for (peer, stream) in peers.iter_mut().enumerate() {
        let Some(stream) = stream else { continue };
        let words = (own as u64).to_le_bytes();
        #[cfg(target_os = "linux")]
        let told = stream.hand(&words, shelf.as_ref().map(|shelf| shelf.fd()));
        #[cfg(not(target_os = "linux"))]
        let told = stream.write_all(&words);
        told.map_err(|_| gone(peer))?;
    }
    let mut hosts = vec![own; peers.len()];
    #[cfg(target_os = "linux")]
    let size = peers.len();
    #[cfg(target_os = "linux")]
    let mut windows = vec![None; size];
    for (peer, stream) in peers.iter_mut().enumerate() {
        let Some(stream) = stream else { continue };
        let patience = until.saturating_duration_since(Instant::now()).max(PULSE);
        let mut told = [0; 8];
        let cannot = |error: std::io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                Error::Timeout { call: "connect", sequence: 0, missing: vec![peer], waited: begin.elapsed() }
            }
            _ => gone(peer),
        };
        stream.wait(Some(patience)).map_err(cannot)?;
        #[cfg(target_os = "linux")]
        if let Some(memory) = stream.take(&mut told).map_err(cannot)? {
            let refused = |error: std::io::Error| failed(format!("the memory of rank {peer}: {error}"));
            windows[peer] = Some(Window::open(memory, size).map_err(refused)?);
        }
        #[cfg(not(target_os = "linux"))]
        stream.read_exact(&mut told).map_err(cannot)?;
        stream.wait(None).map_err(cannot)?;
        hosts[peer] = usize::try_from(u64::from_le_bytes(told)).unwrap_or(usize::MAX);
        let fits = hosts[peer] <= peer && (hosts[peer] == own) == matches!(stream, Stream::Unix(_));
        if !fits {
            return Err(failed(format!("rank {peer} says that it is on the host of rank {}", hosts[peer])));
        }
    }
    Ok(Company {
        peers,
        hosts,
        #[cfg(target_os = "linux")]
        shelf,
        #[cfg(target_os = "linux")]
        windows,
    })
}

/// A connection to a rank, unless it is not there yet or has no room in its queue.
fn call(place: &Place, peer: Rank) -> Option<Stream> {
    let mut stream = match UnixStream::connect(socket(&place.folder, peer)) {
        Ok(stream) => Stream::Unix(stream),
        Err(_) => {
            place.network.as_ref()?;
            let text = std::fs::read_to_string(address_file(&place.folder, peer)).ok()?;
            let (address, near) = text.split_once('\n').unwrap_or((&text, ""));
            match UnixStream::connect(near) {
                Ok(stream) => Stream::Unix(stream),
                Err(_) => {
                    let mut addresses = address.to_socket_addrs().ok()?;
                    Stream::tcp(addresses.find_map(|to| TcpStream::connect_timeout(&to, CALL).ok())?).ok()?
                }
            }
        }
    };
    let mut words = (place.rank as u64).to_le_bytes().to_vec();
    words.extend(secret(place));
    stream.write_all(&words).ok()?;
    Some(stream)
}

fn secret(place: &Place) -> [u8; SECRET] {
    place.network.as_ref().map_or([0; SECRET], |network| network.secret)
}

/// Who has called.
fn greet(stream: &mut Stream, place: &Place) -> std::io::Result<Rank> {
    stream.wait(Some(CALL))?;
    let mut words = [0; 8 + SECRET];
    stream.read_exact(&mut words)?;
    stream.wait(None)?;
    let (rank, told) = words.split_at(8);
    // Every byte is looked at, however many are wrong.
    let wrong = told.iter().zip(secret(place)).fold(0, |wrong, (a, b)| wrong | (a ^ b));
    if wrong != 0 {
        return Err(std::io::Error::other("a caller that does not belong to this job"));
    }
    Ok(rank.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b)) as Rank)
}
