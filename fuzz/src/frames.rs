//! Requests to an agent that holds files for others, over a real connection: fields and contents as the bytes say, sums as they must be,
//! so that an input is seldom refused at the door.

use planaria_store::{Agent, checksum};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The requests that numbers of earlier answers go into or come from, the first one, and the answer after which an agent hangs up.
const HELLO: u8 = 0x48;
const OPEN: u8 = 2;
const READ: u8 = 3;
const BEGIN: u8 = 4;
const WRITE: u8 = 5;
const FINISH: u8 = 6;
const ABANDON: u8 = 9;
const MALFORMED: u8 = 0x89;

/// Bytes of a request before its name: kind, flag, length of the name, length of the payload, three numbers.
const FIXED: usize = 5 + 24;

/// One request after the other, as long as the agent answers. It has to answer each, whatever it says.
pub(crate) fn peer(bytes: &[u8]) {
    let agent = Agent::listen("127.0.0.1:0", 1 << 20, "").expect("a port of the loopback address");
    let mut stream = TcpStream::connect(agent.address()).expect("an agent that listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
    let magic = u64::from_be_bytes(*b"PLANARIA");
    let mut answer = ask(&mut stream, &frame(HELLO, 0, [magic, 1, 0], &[], &[]));
    // Numbers that the agent gave, to which those of requests are added: so some fit.
    let (mut writer, mut version, mut rest) = (0u64, 0u64, bytes);
    while let (Some((fixed, behind)), true) = (rest.split_at_checked(FIXED), answer.0 != MALFORMED) {
        let number = |at: usize| fixed[at..at + 8].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let (kind, [a, b, c]) = (fixed[0], [number(5), number(13), number(21)]);
        let (name, behind) = behind.split_at(behind.len().min(fixed[2].into()));
        let length = usize::from(fixed[3]) | usize::from(fixed[4]) << 8;
        let (payload, behind) = behind.split_at(behind.len().min(length));
        let numbers = match kind {
            WRITE | FINISH | ABANDON => [a.wrapping_add(writer), b, c],
            READ => [a, b.wrapping_add(version), c],
            _ => [a, b, c],
        };
        answer = ask(&mut stream, &frame(kind, fixed[1], numbers, name, payload));
        match kind {
            BEGIN => writer = answer.1[0],
            OPEN => version = answer.1[1],
            _ => {}
        }
        rest = behind;
    }
}

/// Sends a frame; gives the kind of the answer and its numbers.
fn ask(stream: &mut TcpStream, frame: &[u8]) -> (u8, [u64; 3]) {
    // The agent may hang up on a request that breaks a rule before it has read all of it.
    let sent = stream.write_all(frame);
    let mut head = [0; 40];
    if let Err(error) = stream.read_exact(&mut head) {
        // What was not read when a side closes takes the answer along.
        let cut = sent.is_err() || error.kind() == ErrorKind::ConnectionReset;
        assert!(cut, "no answer: {error}");
        return (MALFORMED, [0; 3]);
    }
    let number = |from: usize, to: usize| head[from..to].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    let mut behind = vec![0; (number(2, 4) + number(4, 8)) as usize + 4];
    stream.read_exact(&mut behind).expect("an answer comes whole");
    let sum = checksum::crc32c(&behind[..behind.len() - 4]).to_le_bytes();
    assert_eq!(sum, behind[behind.len() - 4..], "the sum of an answer");
    (head[0], [number(8, 16), number(16, 24), number(24, 32)])
}

fn frame(kind: u8, flag: u8, numbers: [u64; 3], name: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind, flag];
    out.extend((name.len() as u16).to_le_bytes());
    out.extend((payload.len() as u32).to_le_bytes());
    numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
    out.resize(36, 0);
    out.extend(checksum::crc32c(&out).to_le_bytes());
    out.extend(name);
    out.extend(payload);
    let contents = checksum::crc32c(&out[40..]);
    out.extend(contents.to_le_bytes());
    out
}
