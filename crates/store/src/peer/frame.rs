//! The frames of the protocol: a head of fixed size, a name, a payload, and the sum of name and payload.
//!
//! A connection begins with a hello of the client, whose form never changes: a head with [`MAGIC`], the version and the
//! token as payload. Then every request has one answer. Numbers are little-endian; sums are CRC-32C.

use crate::checksum::crc32c;
use std::io;

/// The version both sides must speak.
pub(super) const VERSION: u64 = 1;
/// Says that this is the protocol at all.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"PLANARIA");
/// Longest name or message of a frame.
pub(super) const NAME_BYTES: usize = 4 << 10;
/// Longest payload of a frame.
pub(super) const PAYLOAD_BYTES: usize = 16 << 20;
/// Longest token.
pub(super) const TOKEN_BYTES: usize = 256;
/// Files are kept in chunks of this many bytes; no write or read crosses the end of one.
pub(super) const CHUNK: usize = 4 << 20;
/// Flag of a begun file that appears whole; 1 is that of one which several processes write.
pub(super) const WHOLE: u8 = 2;
/// Bytes of a head: its fields and their sum.
pub(super) const HEAD_BYTES: usize = 40;
const _: () = assert!(CHUNK <= PAYLOAD_BYTES);

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// `a`: magic, `b`: version, payload: token.
    Hello = 0x48,
    /// Name: folder, payload: where the listing goes on. Answer: entries, and in its name where it goes on.
    List = 1,
    /// Answer `a`: size, `b`: version of the file.
    Open,
    /// `a`: offset, `b`: version of the file, `c`: bytes wanted. Answer: at most as many bytes.
    Read,
    /// `a`: length, `flag` 1: with other processes, 2: it appears whole. Answer `a`: the writer's number.
    Begin,
    /// `a`: writer, `b`: offset, payload: bytes.
    Write,
    /// `a`: writer, `flag` 1: only if there is no such file.
    Finish,
    /// `flag` 1: only if there is no such file; payload: all bytes.
    Put,
    /// Name: what goes.
    Delete,
    /// `a`: writer that is not wanted any more.
    Abandon,
    /// Answer `a`: limit, `b`: bytes in use, `c`: files.
    Room,
}

impl Ask {
    pub(super) fn of(kind: u8) -> Option<Ask> {
        use Ask::{Abandon, Begin, Delete, Finish, Hello, List, Open, Put, Read, Room, Write};
        let all = [Hello, List, Open, Read, Begin, Write, Finish, Put, Delete, Abandon, Room];
        all.into_iter().find(|ask| *ask as u8 == kind)
    }
}

/// What an agent answers. The name of a refusal is its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    Done = 0x80,
    NotFound,
    AlreadyExists,
    BadName,
    /// `a`: bytes needed, `b`: bytes free, `c`: limit.
    Full,
    /// `a`: bytes written, `b`: length.
    Incomplete,
    /// `a`: length of the file.
    OutOfFile,
    /// `a`: sum found, `b`: sum expected.
    Damaged,
    /// The writer is not there any more.
    Gone,
    /// A frame that makes no sense; the connection ends.
    Malformed,
    /// The token is not the agent's.
    Token,
    /// `b`: the agent's version.
    Version,
    /// As many connections as the agent takes.
    Busy,
    /// The store that the agent serves failed; `a` 1: it is full.
    Failed,
}

impl Say {
    pub(super) fn of(kind: u8) -> Option<Say> {
        use Say::{
            AlreadyExists, BadName, Busy, Damaged, Done, Failed, Full, Gone, Incomplete, Malformed, NotFound,
            OutOfFile, Token, Version,
        };
        let all = [
            Done,
            NotFound,
            AlreadyExists,
            BadName,
            Full,
            Incomplete,
            OutOfFile,
            Damaged,
            Gone,
            Malformed,
            Token,
            Version,
            Busy,
            Failed,
        ];
        all.into_iter().find(|say| *say as u8 == kind)
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: u8,
    pub(super) flag: u8,
    /// Bytes of the name.
    pub(super) name: u16,
    /// Bytes of the payload.
    pub(super) payload: u32,
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
}

impl Head {
    /// A head whose lengths are filled in when it is sent.
    pub(super) fn new(kind: u8, [a, b, c]: [u64; 3]) -> Head {
        Head { kind, a, b, c, ..Head::default() }
    }

    pub(super) fn ask(ask: Ask, numbers: [u64; 3]) -> Head {
        Head::new(ask as u8, numbers)
    }

    pub(super) fn say(say: Say, numbers: [u64; 3]) -> Head {
        Head::new(say as u8, numbers)
    }

    pub(super) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        (bytes[0], bytes[1]) = (self.kind, self.flag);
        bytes[2..4].copy_from_slice(&self.name.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.payload.to_le_bytes());
        for (place, number) in bytes[8..32].chunks_exact_mut(8).zip([self.a, self.b, self.c]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let sum = crc32c(&bytes[..HEAD_BYTES - 4]);
        bytes[HEAD_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Refuses a damaged head and lengths over the limits, before anything is allocated for them.
    pub(super) fn decode(bytes: &[u8; HEAD_BYTES]) -> io::Result<Head> {
        let (fields, sum) = bytes.split_at(HEAD_BYTES - 4);
        if u64::from(crc32c(fields)) != number(sum) {
            return Err(malformed("the head of a frame is damaged"));
        }
        let head = Head {
            kind: bytes[0],
            flag: bytes[1],
            name: number(&bytes[2..4]) as u16,
            payload: number(&bytes[4..8]) as u32,
            a: number(&bytes[8..16]),
            b: number(&bytes[16..24]),
            c: number(&bytes[24..32]),
        };
        if usize::from(head.name) > NAME_BYTES {
            return Err(malformed(format!("a name of {} bytes; at most {NAME_BYTES}", head.name)));
        }
        if head.payload as usize > PAYLOAD_BYTES {
            return Err(malformed(format!("a payload of {} bytes; at most {PAYLOAD_BYTES}", head.payload)));
        }
        Ok(head)
    }
}

/// At most eight little-endian bytes.
pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().take(8).fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// A frame that breaks the protocol: the connection cannot go on.
pub(super) fn malformed(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_and_damaged_or_long_ones_are_refused() {
        let head = Head { kind: 5, flag: 1, name: 4096, payload: 16 << 20, a: 1, b: u64::MAX, c: 1 << 40 };
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes).unwrap(), head);
        for at in 0..HEAD_BYTES {
            let mut bytes = bytes;
            bytes[at] ^= 4;
            assert!(Head::decode(&bytes).is_err(), "byte {at}");
        }
        for long in [Head { name: 4097, ..head }, Head { payload: (16 << 20) + 1, ..head }] {
            assert!(Head::decode(&long.encode()).is_err(), "{long:?}");
        }
        for kind in 0..=255u8 {
            assert!(Ask::of(kind).is_none_or(|ask| ask as u8 == kind));
            assert!(Say::of(kind).is_none_or(|say| say as u8 == kind && Ask::of(kind).is_none()));
        }
    }
}
