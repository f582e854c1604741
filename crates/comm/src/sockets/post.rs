//! The threads that carry: one for what comes from each rank, one for what goes to this host, one for what goes over the network.

use super::failed;
use super::meeting::Company;
use super::stream::Stream;
use crate::error::Result;
#[cfg(target_os = "linux")]
use crate::letters::Sent;
use crate::letters::{Depot, Parcel, contents};
#[cfg(target_os = "linux")]
use crate::shared::{Shelf, Window};
use planaria_array::{Array, DType};
use planaria_layout::Rank;
use std::fmt::Display;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The tag of a rank's last words.
const GOODBYE: u32 = u32::MAX;

/// Bytes before the contents of a parcel: its tag and its length.
const HEAD: usize = 12;

/// In the tag of a parcel that lies in shared memory: where follows instead of its contents.
const SHARED: u32 = 1 << 30;

/// Bytes that say where: the number of the lot, and where it begins.
const LOT: usize = 12;

/// Bytes that have gone to each rank.
#[derive(Debug)]
pub struct Meter {
    hosts: Vec<usize>,
    sent: Vec<(AtomicU64, AtomicU64)>,
}

impl Meter {
    pub(super) fn new(hosts: Vec<usize>) -> Meter {
        let sent = hosts.iter().map(|_| Default::default()).collect();
        Meter { hosts, sent }
    }

    /// The host of each rank: its first rank.
    pub fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// Bytes of contents that went to a rank, and bytes that its connection took: with envelopes, without what lies in shared memory.
    pub fn sent(&self, rank: Rank) -> (u64, u64) {
        let read = |(contents, all): &(AtomicU64, AtomicU64)| {
            (contents.load(Ordering::SeqCst), all.load(Ordering::SeqCst))
        };
        self.sent.get(rank).map_or((0, 0), read)
    }

    /// Counts what goes to a rank, and the bytes that its connection takes for it.
    pub(super) fn add(&self, to: Rank, tag: u32, bytes: &[u8], connection: usize) {
        let Some((inner, all)) = self.sent.get(to) else { return };
        inner.fetch_add(contents(tag, bytes) as u64, Ordering::SeqCst);
        all.fetch_add(connection as u64, Ordering::SeqCst);
    }
}

/// Starts the threads that carry; what is answered comes when the last letter has left.
pub(super) fn carry(depot: &Arc<Depot>, mut company: Company, meter: &Arc<Meter>) -> Result<Receiver<()>> {
    let cannot = |error: std::io::Error| failed(format!("cannot start a thread: {error}"));
    for (from, stream) in company.peers.iter().enumerate() {
        let Some(stream) = stream else { continue };
        let depot = depot.clone();
        let name = format!("planaria-from-{from}");
        let mut source = Source {
            from,
            stream: stream.try_clone().map_err(cannot)?,
            #[cfg(target_os = "linux")]
            window: company.windows[from].clone(),
        };
        let read = move || {
            if let Err(reason) = source.receive(&depot) {
                depot.fail(&reason);
            }
        };
        std::thread::Builder::new().name(name).spawn(read).map_err(cannot)?;
    }
    let far = company.peers.iter_mut().map(|peer| peer.take_if(|stream| matches!(stream, Stream::Tcp(_))));
    let far: Vec<_> = far.collect();
    let is_far: Vec<bool> = far.iter().map(Option::is_some).collect();
    let (send_far, parcels) = channel::<Parcel>();
    let road = |peers| Road {
        depot: depot.clone(),
        peers,
        meter: meter.clone(),
        #[cfg(target_os = "linux")]
        shelf: company.shelf.clone(),
    };
    let (mut near, mut far) = (road(std::mem::take(&mut company.peers)), road(far));
    let (leaving, gone) = channel();
    let depot = depot.clone();
    let write_far = move || {
        parcels.into_iter().for_each(|parcel| far.send(&parcel));
        far.end();
    };
    let far = std::thread::Builder::new().name("planaria-to-far".into()).spawn(write_far).map_err(cannot)?;
    let write = move || {
        while !depot.is_closed() {
            let Some(parcel) = depot.take(Duration::from_millis(20)) else { continue };
            match is_far.get(parcel.to) {
                // A slow link must not keep what stays on this host.
                Some(true) => drop(send_far.send(parcel)),
                _ => near.send(&parcel),
            }
        }
        drop(send_far);
        near.end();
        let _ = far.join();
        let _ = leaving.send(());
    };
    std::thread::Builder::new().name("planaria-to".into()).spawn(write).map_err(cannot)?;
    Ok(gone)
}

/// Connections that one thread writes to.
struct Road {
    depot: Arc<Depot>,
    peers: Vec<Option<Stream>>,
    meter: Arc<Meter>,
    #[cfg(target_os = "linux")]
    shelf: Option<Arc<Shelf>>,
}

impl Road {
    /// Where on the shelf the receiver finds a parcel that is too long for its socket.
    #[cfg(target_os = "linux")]
    fn lend(&self, parcel: &Parcel) -> Option<(u32, u64)> {
        let near = matches!(self.peers.get(parcel.to), Some(Some(Stream::Unix(_))));
        self.shelf.as_ref().filter(|_| near).and_then(|shelf| parcel.sent().lend(shelf))
    }

    #[cfg(not(target_os = "linux"))]
    fn lend(&self, _parcel: &Parcel) -> Option<(u32, u64)> {
        None
    }

    fn send(&mut self, parcel: &Parcel) {
        let lent = self.lend(parcel);
        let Some(stream) = self.peers.get_mut(parcel.to).and_then(Option::as_mut) else { return };
        // Whoever has received it finds it counted.
        let connection = HEAD + lent.map_or(parcel.bytes().len(), |_| LOT);
        self.meter.add(parcel.to, parcel.tag, parcel.bytes(), connection);
        let sent = match lent {
            Some(lot) => tell(stream, parcel.tag, parcel.bytes().len(), lot),
            None => send(stream, parcel.tag, parcel.bytes()),
        };
        if sent.is_err() {
            self.depot.fail(&format!("rank {} is gone", parcel.to));
            self.peers[parcel.to] = None;
        }
    }

    fn end(&mut self) {
        for stream in self.peers.iter_mut().flatten() {
            let _ = send(stream, GOODBYE, &[]).and_then(|()| stream.finish());
        }
    }
}

fn head(tag: u32, length: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&tag.to_le_bytes());
    head[4..].copy_from_slice(&(length as u64).to_le_bytes());
    head
}

fn send(stream: &mut Stream, tag: u32, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(&head(tag, bytes.len()))?;
    stream.write_all(bytes)
}

/// Says where a parcel lies.
fn tell(stream: &mut Stream, tag: u32, length: usize, (lot, start): (u32, u64)) -> std::io::Result<()> {
    let mut words = [0; HEAD + LOT];
    words[..HEAD].copy_from_slice(&head(tag | SHARED, length));
    words[HEAD..HEAD + 4].copy_from_slice(&lot.to_le_bytes());
    words[HEAD + 4..].copy_from_slice(&start.to_le_bytes());
    stream.write_all(&words)
}

/// The two numbers at the beginning of a parcel, or of where it lies.
fn numbers(words: &[u8; HEAD]) -> (u32, u64) {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
    (number(&words[..4]) as u32, number(&words[4..]))
}

/// Where parcels of one rank come from.
struct Source {
    from: Rank,
    stream: Stream,
    #[cfg(target_os = "linux")]
    window: Option<Arc<Window>>,
}

impl Source {
    /// Takes in what the rank sends until it says goodbye; otherwise, why there is no more.
    fn receive(&mut self, depot: &Depot) -> std::result::Result<(), String> {
        let from = self.from;
        let gone = |_: std::io::Error| format!("rank {from} is gone");
        let told = |error: &dyn Display| format!("a parcel of rank {from}: {error}");
        loop {
            let mut head = [0; HEAD];
            self.stream.read_exact(&mut head).map_err(gone)?;
            let (tag, length) = numbers(&head);
            if tag == GOODBYE {
                return Ok(());
            }
            let length = usize::try_from(length).map_err(|error| told(&error))?;
            if tag & SHARED != 0 {
                self.stream.read_exact(&mut head).map_err(gone)?;
                self.borrow(depot, tag & !SHARED, length, numbers(&head)).map_err(|error| told(&error))?;
                continue;
            }
            let room = Array::empty(&[length], DType::U8).map_err(|error| told(&error))?;
            let read = room.write_bytes(0..length, |out| self.stream.read_exact(out));
            read.map_err(|error| told(&error))?.map_err(gone)?;
            depot.deliver(from, tag, &room).map_err(|error| told(&error))?;
        }
    }

    #[cfg(target_os = "linux")]
    fn borrow(&self, depot: &Depot, tag: u32, length: usize, (lot, start): (u32, u64)) -> Result<()> {
        let loan = self.window.as_ref().and_then(|window| window.borrow(lot, start, length));
        let nowhere = || failed(format!("{length} bytes at {start} of lot {lot} are not in its memory"));
        depot.leave(self.from, tag, Sent::loan(loan.ok_or_else(nowhere)?))
    }

    #[cfg(not(target_os = "linux"))]
    fn borrow(&self, _depot: &Depot, _tag: u32, _length: usize, _lot: (u32, u64)) -> Result<()> {
        Err(failed("this system shares no memory"))
    }
}
