//! One connection: frames sent and received, everything until a deadline.

use super::frame::{HEAD_BYTES, Head, NAME_BYTES, PAYLOAD_BYTES, malformed};
use crate::checksum::{append, crc32c};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes summed and sent at a time, so that they are in the cache for both.
const SLICE: usize = 256 << 10;
/// A payload up to this size goes out in one piece with its head.
const SMALL: usize = 16 << 10;

/// A connected socket.
#[derive(Debug)]
pub(super) struct Wire {
    /// Shared with whoever may end the connection.
    stream: Arc<TcpStream>,
}

/// The sum of what came and the sum that came with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) found: u32,
    pub(super) expected: u32,
}

impl Sums {
    pub(super) fn agree(self) -> bool {
        self.found == self.expected
    }
}

impl Wire {
    pub(super) fn new(stream: impl Into<Arc<TcpStream>>) -> io::Result<Wire> {
        let stream = stream.into();
        // Requests and answers alternate: holding small packets back would only wait.
        stream.set_nodelay(true)?;
        Ok(Wire { stream })
    }

    /// Ends the connection for both sides, whoever holds the socket too.
    pub(super) fn close(&self) {
        // One that is closed already is what is wanted.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// False when the other side closed, or sent what nobody asked for.
    pub(super) fn is_quiet(&self) -> bool {
        let peeked = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut [0]));
        let quiet = peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        quiet && self.stream.set_nonblocking(false).is_ok()
    }

    /// Sends a frame; its lengths are those of `name` and `payload`.
    pub(super) fn send(
        &self,
        mut head: Head,
        name: &[u8],
        payload: &[u8],
        deadline: Instant,
    ) -> io::Result<()> {
        if name.len() > NAME_BYTES || payload.len() > PAYLOAD_BYTES {
            let (name, payload) = (name.len(), payload.len());
            return Err(malformed(format!("a frame with {name} bytes of name and {payload} of payload")));
        }
        (head.name, head.payload) = (name.len() as u16, payload.len() as u32);
        let mut first = Vec::with_capacity(HEAD_BYTES + name.len() + 4);
        first.extend_from_slice(&head.encode());
        first.extend_from_slice(name);
        let mut sum = crc32c(name);
        if payload.len() <= SMALL {
            sum = append(sum, payload);
            first.extend_from_slice(payload);
            first.extend_from_slice(&sum.to_le_bytes());
            return self.write(&first, deadline);
        }
        self.write(&first, deadline)?;
        for slice in payload.chunks(SLICE) {
            sum = append(sum, slice);
            self.write(slice, deadline)?;
        }
        self.write(&sum.to_le_bytes(), deadline)
    }

    /// The next head: waits for its first byte until `first`, and for the rest no longer than `rest`.
    pub(super) fn head(&self, first: Instant, rest: Duration) -> io::Result<Head> {
        let mut bytes = [0; HEAD_BYTES];
        let count = self.read_some(&mut bytes, first)?;
        self.read(&mut bytes[count..], Instant::now() + rest)?;
        Head::decode(&bytes)
    }

    /// The name of a frame, and its sum.
    pub(super) fn name(&self, head: &Head, deadline: Instant) -> io::Result<(String, u32)> {
        let mut bytes = vec![0; usize::from(head.name).min(NAME_BYTES)];
        self.read(&mut bytes, deadline)?;
        let sum = crc32c(&bytes);
        Ok((String::from_utf8(bytes).map_err(|_| malformed("a name that is not text"))?, sum))
    }

    /// The payload, straight to where it belongs, and the sums behind it; `sum` is that of the name.
    pub(super) fn payload(&self, into: &mut [u8], sum: u32, deadline: Instant) -> io::Result<Sums> {
        let (mut at, mut found) = (0, sum);
        while at < into.len() {
            let end = into.len().min(at + SLICE);
            let count = self.read_some(&mut into[at..end], deadline)?;
            found = append(found, &into[at..at + count]);
            at += count;
        }
        let mut expected = [0; 4];
        self.read(&mut expected, deadline)?;
        Ok(Sums { found, expected: u32::from_le_bytes(expected) })
    }

    /// A payload of at most `limit` bytes as new memory.
    pub(super) fn small_payload(
        &self,
        head: &Head,
        sum: u32,
        limit: usize,
        deadline: Instant,
    ) -> io::Result<Vec<u8>> {
        let len = head.payload as usize;
        if len > limit {
            return Err(malformed(format!("a payload of {len} bytes; here at most {limit}")));
        }
        let mut bytes = vec![0; len];
        match self.payload(&mut bytes, sum, deadline)?.agree() {
            true => Ok(bytes),
            false => Err(malformed("a frame is damaged")),
        }
    }

    /// Takes a payload that nobody wants off the line.
    pub(super) fn drain(&self, head: &Head, deadline: Instant) -> io::Result<()> {
        let mut left = head.payload as usize + 4;
        let mut bytes = [0; 16 << 10];
        while left > 0 {
            let end = left.min(bytes.len());
            left -= self.read_some(&mut bytes[..end], deadline)?;
        }
        Ok(())
    }

    fn read(&self, into: &mut [u8], deadline: Instant) -> io::Result<()> {
        let mut at = 0;
        while at < into.len() {
            at += self.read_some(&mut into[at..], deadline)?;
        }
        Ok(())
    }

    /// At least one byte, unless none is wanted.
    fn read_some(&self, into: &mut [u8], deadline: Instant) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(Some(left(deadline)?))?;
            match (&*self.stream).read(into) {
                Ok(0) if !into.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if is_pause(&error) => {}
                done => return done,
            }
        }
    }

    fn write(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(left(deadline)?))?;
            match (&*self.stream).write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Interrupted, or the socket's own timeout: the deadline decides.
fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Time until the deadline; an error when it has passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
