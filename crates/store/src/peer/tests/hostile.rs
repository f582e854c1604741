//! Bytes that no client sends, thrown at an agent: it answers or hangs up, and serves others as before.

use super::*;
use crate::peer::files::Files;
use crate::peer::frame::{HEAD_BYTES, MAGIC, Say, VERSION};
use crate::peer::wire::Wire;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::io::{Read, Write};
use std::net::TcpStream;

fn raw(agent: &Agent) -> TcpStream {
    let stream = TcpStream::connect(agent.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

/// A connection that has said hello.
fn greeted(agent: &Agent) -> Wire {
    let wire = Wire::new(raw(agent)).unwrap();
    wire.send(Head::ask(Ask::Hello, [MAGIC, VERSION, 0]), &[], &[], deadline()).unwrap();
    assert_eq!(said(&wire).0, Some(Say::Done));
    wire
}

fn said(wire: &Wire) -> (Option<Say>, String) {
    let head = wire.head(deadline(), Duration::from_secs(5)).unwrap();
    let (text, sum) = wire.name(&head, deadline()).unwrap();
    wire.small_payload(&head, sum, 16 << 20, deadline()).unwrap();
    (Say::of(head.kind), text)
}

/// Sends bytes and reads until the agent hangs up.
fn throw(agent: &Agent, bytes: &[u8]) {
    let mut stream = raw(agent);
    // The agent may hang up before everything is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut back = Vec::new();
    match stream.read_to_end(&mut back) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
}

fn hello() -> Vec<u8> {
    let mut bytes = Head::ask(Ask::Hello, [MAGIC, VERSION, 0]).encode().to_vec();
    bytes.extend_from_slice(&[0; 4]);
    bytes
}

#[test]
fn random_bytes_and_random_frames_harm_nobody() {
    let agent = agent(MIB);
    let store = peer(&agent);
    store.write("kept", b"whole").unwrap();
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    for round in 0..300 {
        let mut noise = vec![0; random.next_u32() as usize % 3000];
        random.fill_bytes(&mut noise);
        let mut bytes = if round % 2 == 0 { Vec::new() } else { hello() };
        if round % 3 == 0 {
            // Heads with right sums and random fields, some of them with fields that fit.
            for piece in noise.chunks_exact(HEAD_BYTES) {
                let kind = if piece[0] % 8 == 0 { piece[0] } else { piece[0] % 12 };
                let [a, b, c] = [1, 9, 17].map(|at| crate::peer::frame::number(&piece[at..at + 8]));
                let small = |value: u64| if piece[25] % 2 == 0 { value % 64 } else { value };
                let (name, payload) =
                    (u16::from(piece[26] % 16), u32::from(piece[27]) * u32::from(piece[28]) / 16);
                let head = Head { name, payload, flag: piece[29], ..Head::new(kind, [a, b, c].map(small)) };
                bytes.extend_from_slice(&head.encode());
                bytes.extend_from_slice(&piece[..usize::from(name)]);
            }
        } else {
            bytes.extend_from_slice(&noise);
        }
        throw(&agent, &bytes);
    }
    assert_eq!(store.read("kept", 9).unwrap(), b"whole");
    soon("nothing is left of them", || agent.room().used == 5);
    conformance::names_stay_inside(&store).unwrap();
}

#[test]
fn frames_that_break_a_rule_are_answered_by_name_and_end_the_connection() {
    let agent = agent(MIB);
    let long = Head { name: 5000, ..Head::ask(Ask::Open, [0; 3]) };
    let big = Head { payload: (16 << 20) + 1, ..Head::ask(Ask::Put, [0; 3]) };
    let unknown = Head::new(99, [0; 3]);
    for (head, words) in [(long, "5000 bytes"), (big, "16777217 bytes"), (unknown, "request 99")] {
        let mut bytes = hello();
        bytes.extend_from_slice(&head.encode());
        let mut stream = raw(&agent);
        stream.write_all(&bytes).unwrap();
        let wire = Wire::new(stream.try_clone().unwrap()).unwrap();
        assert_eq!(said(&wire).0, Some(Say::Done));
        let (say, text) = said(&wire);
        assert!(say == Some(Say::Malformed) && text.contains(words), "{say:?} {text}");
        assert!(wire.head(deadline(), Duration::from_secs(5)).is_err(), "it hung up");
    }
}

#[test]
fn requests_that_make_no_sense_are_refused_and_the_connection_goes_on() {
    let agent = agent(10 * MIB);
    let wire = greeted(&agent);
    let ask = |head: Head, name: &[u8], payload: &[u8]| {
        wire.send(head, name, payload, deadline()).unwrap();
        said(&wire).0
    };
    assert_eq!(ask(Head::ask(Ask::Write, [1, 0, 0]), b"", &[0; 100]), Some(Say::Gone));
    assert_eq!(ask(Head::ask(Ask::Finish, [1, 0, 0]), b"", b""), Some(Say::Gone));
    assert_eq!(ask(Head::ask(Ask::Put, [0; 3]), b"../x", &[0; 9 << 20]), Some(Say::BadName));
    assert_eq!(ask(Head::ask(Ask::Put, [0; 3]), b"x", &[0; 9 << 20]), Some(Say::Malformed));
    assert_eq!(ask(Head::ask(Ask::Begin, [u64::MAX, 0, 0]), b"x", b""), Some(Say::Full));
    assert_eq!(ask(Head::ask(Ask::Read, [0, 1, u64::MAX]), b"x", b""), Some(Say::NotFound));
    wire.send(Head::ask(Ask::Begin, [6 << 20, 0, 0]), b"x", &[], deadline()).unwrap();
    let number = wire.head(deadline(), Duration::from_secs(5)).unwrap().a;
    wire.drain(&Head::default(), deadline()).unwrap();
    for offset in [u64::MAX, 6 << 20, (4 << 20) - 1] {
        let head = Head::ask(Ask::Write, [number, offset, 0]);
        assert_eq!(ask(head, b"", &[0; 100]), Some(Say::OutOfFile), "{offset}");
    }
    assert_eq!(ask(Head::ask(Ask::Write, [number, 0, 0]), b"", &[0; 100]), Some(Say::Done));
    assert_eq!(ask(Head::ask(Ask::Finish, [number, 0, 0]), b"", b""), Some(Say::Incomplete));
    assert_eq!(agent.room().used, 0);
    assert_eq!(ask(Head::ask(Ask::Room, [0; 3]), b"", b""), Some(Say::Done));
}

#[test]
fn another_version_is_told_so() {
    let agent = agent(1);
    let wire = Wire::new(raw(&agent)).unwrap();
    wire.send(Head::ask(Ask::Hello, [MAGIC, 7, 0]), &[], &[], deadline()).unwrap();
    assert_eq!(said(&wire).0, Some(Say::Version));
}

#[test]
fn connections_are_bounded_and_further_ones_may_come_back() {
    let agent = Agent::bounded("127.0.0.1:0", Box::new(Files::new(100)), "", 8).unwrap();
    let mut silent: Vec<TcpStream> = (0..8).map(|_| raw(&agent)).collect();
    let store = peer(&agent);
    soon("there is no room for one more", || store.list("").is_err());
    assert!(is_passing(&store.list("").unwrap_err()));
    silent.truncate(6);
    soon("there is room again", || store.list("").is_ok());
}

#[test]
fn a_server_of_something_else_is_no_agent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    let error = Peer::open(&format!("peer://{address}")).unwrap().list("").unwrap_err();
    assert!(is_lasting(&error) && error.to_string().contains("no agent"), "{error}");
    other.join().unwrap();
}
