//! A client's connections to one agent: made when needed, kept for the next call, made anew when they are lost.

use super::frame::{Ask, Head, MAGIC, PAYLOAD_BYTES, Say, VERSION};
use super::token::{PEER_TOKEN, Token};
use super::wire::Wire;
use crate::error::{Error, Result};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Connections kept for later calls.
const KEPT: usize = 16;
/// A connection that was not used for this long is not used again; the agent ends it later than that.
const STALE: Duration = Duration::from_secs(120);

/// How a [`Peer`](super::Peer) talks with its agent.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerOptions {
    /// The secret it shares with the agent.
    pub token: String,
    /// Longest wait for a connection.
    pub connect: Duration,
    /// Longest wait for a request of at most 4 MiB to be sent and answered.
    pub answer: Duration,
}

impl Default for PeerOptions {
    fn default() -> PeerOptions {
        let (connect, answer) = (Duration::from_secs(5), Duration::from_secs(30));
        PeerOptions { token: String::new(), connect, answer }
    }
}

impl std::fmt::Debug for PeerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerOptions {{ connect: {:?}, answer: {:?} }}", self.connect, self.answer)
    }
}

/// What a call is about, for messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct About<'a> {
    pub(super) name: &'a str,
    pub(super) op: &'static str,
}

/// An agent's answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) head: Head,
    pub(super) text: String,
    pub(super) payload: Vec<u8>,
}

/// An agent's place, and connections to it.
#[derive(Debug)]
pub(super) struct Link {
    place: String,
    token: Token,
    connect: Duration,
    answer: Duration,
    kept: Mutex<Vec<(Wire, Instant)>>,
    keeper: Mutex<Option<Arc<Keeper>>>,
}

/// The connection that the writers of a process belong to: with it the agent loses them.
#[derive(Debug)]
pub(super) struct Keeper {
    wire: Mutex<Wire>,
    lost: AtomicBool,
}

impl Keeper {
    /// False when the connection is known to be lost.
    pub(super) fn holds(&self) -> bool {
        // One that somebody uses just now is found out by that one.
        if let Ok(wire) = self.wire.try_lock()
            && !wire.is_quiet()
        {
            self.lost.store(true, Ordering::Release);
        }
        !self.lost.load(Ordering::Acquire)
    }
}

impl Link {
    pub(super) fn new(place: &str, options: PeerOptions) -> Result<Link> {
        let token = Token::new(&options.token)?;
        let PeerOptions { connect, answer, .. } = options;
        Ok(Link {
            place: place.to_string(),
            token,
            connect,
            answer,
            kept: Mutex::default(),
            keeper: Mutex::default(),
        })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(Wire, Instant)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that works: one that was kept, or a new one.
    fn wire(&self, about: &About<'_>) -> Result<Wire> {
        loop {
            let kept = self.kept().pop();
            match kept {
                Some((wire, since)) if since.elapsed() < STALE && wire.is_quiet() => return Ok(wire),
                Some(_) => {}
                None => return self.fresh(about),
            }
        }
    }

    /// Keeps a connection whose last answer is read.
    fn keep(&self, wire: Wire) {
        let mut kept = self.kept();
        if kept.len() < KEPT {
            kept.push((wire, Instant::now()));
        }
    }

    /// The connection for writers.
    pub(super) fn keeper(&self, about: &About<'_>) -> Result<Arc<Keeper>> {
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keeper) = keeper.as_ref().filter(|keeper| keeper.holds()) {
            return Ok(keeper.clone());
        }
        let (wire, lost) = (Mutex::new(self.wire(about)?), AtomicBool::new(false));
        Ok(keeper.insert(Arc::new(Keeper { wire, lost })).clone())
    }

    /// One request and its answer on the connection for writers.
    pub(super) fn ask_keeper(
        &self,
        keeper: &Keeper,
        about: &About<'_>,
        head: Head,
        name: &str,
    ) -> Result<Answer> {
        let wire = keeper.wire.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = self.ask_on(&wire, about, head, name, &[]);
        if answer.is_err() {
            keeper.lost.store(true, Ordering::Release);
            wire.close();
        }
        answer?
    }

    fn fresh(&self, about: &About<'_>) -> Result<Wire> {
        let unreachable = |error: io::Error| {
            let why = if error.kind() == io::ErrorKind::TimedOut {
                format!("no connection within {:?}", self.connect)
            } else {
                error.to_string()
            };
            let message = format!(
                "the agent at {} cannot be reached ({why}); start it there with `planaria agent`",
                self.place
            );
            remote(about, message, true)
        };
        let deadline = Instant::now() + self.connect;
        let wire = self.dial(deadline).map_err(unreachable)?;
        let head = Head::ask(Ask::Hello, [MAGIC, VERSION, 0]);
        let deadline = Instant::now() + self.answer;
        let said = wire.send(head, &[], self.token.bytes(), deadline);
        // One that has no room for us answers without listening.
        let answer = said.and_then(|()| wire.head(deadline, self.answer));
        let answer = answer.and_then(|head| {
            wire.name(&head, deadline).and_then(|(_, sum)| wire.small_payload(&head, sum, 0, deadline))?;
            Ok(head)
        });
        let head = answer.map_err(|error| self.lost(about, &error))?;
        match Say::of(head.kind) {
            Some(Say::Done) => Ok(wire),
            _ => Err(self.refused(about, &head, "")),
        }
    }

    fn dial(&self, deadline: Instant) -> io::Result<Wire> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
        for address in self.place.to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => return Wire::new(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// One request and its answer, on any connection.
    pub(super) fn ask(&self, about: &About<'_>, head: Head, name: &str, payload: &[u8]) -> Result<Answer> {
        let wire = self.wire(about)?;
        let answer = self.ask_on(&wire, about, head, name, payload)?;
        self.keep(wire);
        answer
    }

    /// One request and its answer on this connection. The inner error is a refusal: the connection is good.
    fn ask_on(
        &self,
        wire: &Wire,
        about: &About<'_>,
        head: Head,
        name: &str,
        payload: &[u8],
    ) -> Result<Result<Answer>> {
        let deadline = Instant::now() + self.answer;
        let talk = || {
            wire.send(head, name.as_bytes(), payload, deadline)?;
            let head = wire.head(deadline, self.answer)?;
            let (text, sum) = wire.name(&head, deadline)?;
            let payload = wire.small_payload(&head, sum, PAYLOAD_BYTES, deadline)?;
            Ok(Answer { head, text, payload })
        };
        let answer = talk().map_err(|error| self.lost(about, &error))?;
        Ok(match Say::of(answer.head.kind) {
            Some(Say::Done) => Ok(answer),
            _ => Err(self.refused(about, &answer.head, &answer.text)),
        })
    }

    /// One request whose answer is exactly as long as `into`, which it fills.
    pub(super) fn fetch(&self, about: &About<'_>, ask: Head, name: &str, into: &mut [u8]) -> Result<()> {
        let wire = self.wire(about)?;
        let deadline = Instant::now() + self.answer;
        let talk = || {
            wire.send(ask, name.as_bytes(), &[], deadline)?;
            let head = wire.head(deadline, self.answer)?;
            let (text, sum) = wire.name(&head, deadline)?;
            Ok((head, text, sum))
        };
        let (head, text, sum) = talk().map_err(|error| self.lost(about, &error))?;
        if Say::of(head.kind) != Some(Say::Done) {
            if wire.small_payload(&head, sum, 0, deadline).is_ok() {
                self.keep(wire);
            }
            return Err(self.refused(about, &head, &text));
        }
        if head.payload as usize != into.len() {
            return Err(self.nonsense(about, "a piece of another length"));
        }
        let sums = wire.payload(into, sum, deadline).map_err(|error| self.lost(about, &error))?;
        self.keep(wire);
        if !sums.agree() {
            let (start, end) = (ask.a, ask.a + into.len() as u64);
            let (found, expected) = (sums.found, sums.expected);
            return Err(Error::Checksum { name: about.name.to_string(), start, end, found, expected });
        }
        Ok(())
    }

    /// The error of a connection that failed under way.
    fn lost(&self, about: &About<'_>, error: &io::Error) -> Error {
        // The others lead to the same agent, which may be gone.
        self.kept().clear();
        let place = &self.place;
        match error.kind() {
            io::ErrorKind::TimedOut => {
                let message = format!("the agent at {place} did not answer within {:?}", self.answer);
                remote(about, message, true)
            }
            io::ErrorKind::InvalidData => self.nonsense(about, &error.to_string()),
            _ => remote(about, format!("the connection to the agent at {place} was lost: {error}"), true),
        }
    }

    /// The error of an answer that breaks the protocol.
    pub(super) fn nonsense(&self, about: &About<'_>, what: &str) -> Error {
        let message = format!("what answers at {} is no agent that we understand: {what}", self.place);
        remote(about, message, false)
    }

    /// The error that an agent's refusal stands for.
    fn refused(&self, about: &About<'_>, head: &Head, text: &str) -> Error {
        let (name, place) = (about.name.to_string(), &self.place);
        match Say::of(head.kind) {
            Some(Say::NotFound) => Error::NotFound { name },
            Some(Say::AlreadyExists) => Error::AlreadyExists { name },
            Some(Say::BadName) => Error::BadName { name, reason: "the agent does not accept it" },
            Some(Say::Full) => full(about, place, head, text),
            Some(Say::OutOfFile) => Error::OutOfFile { name, offset: 0, len: 0, size: head.a },
            Some(Say::Damaged) => {
                let (found, expected) = (head.a as u32, head.b as u32);
                Error::Checksum { name, start: 0, end: 0, found, expected }
            }
            Some(Say::Incomplete) => Error::Incomplete { name, written: head.a, len: head.b },
            Some(Say::Gone) => {
                let message = format!(
                    "the agent at {place} has dropped the unfinished file: a connection that wrote it was \
                     lost, or it was begun again; write it anew"
                );
                remote(about, message, false)
            }
            Some(Say::Token) => {
                let message = format!(
                    "the agent at {place} refused the token; set {PEER_TOKEN} to what it was started with"
                );
                remote(about, message, false)
            }
            Some(Say::Version) => {
                let theirs = head.b;
                let message = format!(
                    "the agent at {place} speaks version {theirs} of the protocol, this program {VERSION}; \
                     run the same release on both sides"
                );
                remote(about, message, false)
            }
            Some(Say::Busy) => {
                let message = format!("the agent at {place} serves {} connections, its limit", head.a);
                remote(about, message, true)
            }
            Some(Say::Failed) if head.a == 1 => {
                let message = format!("{text} (at {place})");
                Error::Io { name, op: about.op, kind: io::ErrorKind::StorageFull, message }
            }
            Some(Say::Failed) => remote(about, format!("{text} (at {place})"), false),
            _ => self.nonsense(about, text),
        }
    }
}

/// As a full disk is.
fn full(about: &About<'_>, place: &str, head: &Head, text: &str) -> Error {
    let Head { a: needed, b: free, c: limit, .. } = head;
    let more = if text.is_empty() { String::new() } else { format!(" ({text})") };
    let message = format!(
        "{needed} bytes are needed and {free} of {limit} are free at the agent at {place}{more}; keep fewer \
         checkpoints there or start it with more `--memory`"
    );
    let (name, op) = (about.name.to_string(), about.op);
    Error::Io { name, op, kind: io::ErrorKind::StorageFull, message }
}

pub(super) fn remote(about: &About<'_>, message: String, transient: bool) -> Error {
    Error::Remote { name: about.name.to_string(), op: about.op, message, transient }
}
