//! One connection of an agent: its hello, then requests and answers until it ends.

use super::files::Refusal;
use super::frame::{Ask, CHUNK, Head, MAGIC, NAME_BYTES, Say, TOKEN_BYTES, VERSION, WHOLE, malformed};
use super::holding::{Holding, Untaken};
use super::token::Token;
use super::wire::{Sums, Wire};
use crate::store::{PutMode, Sharing};
use std::io;
use std::time::{Duration, Instant};

/// Time for the hello of a new connection.
const HELLO: Duration = Duration::from_secs(5);
/// Time for one frame that has begun.
const FRAME: Duration = Duration::from_secs(30);
/// A connection without a request for this long is ended: the machine at its other end may be gone.
const IDLE: Duration = Duration::from_secs(600);

/// What an answer says besides being done.
#[derive(Debug, Default)]
struct Reply {
    numbers: [u64; 3],
    name: String,
    payload: Vec<u8>,
}

impl Reply {
    fn numbers(numbers: [u64; 3]) -> Reply {
        Reply { numbers, ..Reply::default() }
    }
}

type Answer = Result<Reply, Refusal>;

/// A connection and the writers that go with it.
pub(super) struct Connection<'a> {
    wire: Wire,
    files: &'a dyn Holding,
    writers: Vec<u64>,
}

/// Serves a connection until it ends, however it does.
pub(super) fn serve(wire: Wire, files: &dyn Holding, token: &Token) {
    let mut connection = Connection { wire, files, writers: Vec::new() };
    let ended = connection.hello(token).and_then(|is_known| match is_known {
        true => connection.requests(),
        false => Ok(()),
    });
    if let Err(error) = ended
        && error.kind() == io::ErrorKind::InvalidData
    {
        let text = error.to_string();
        // Whoever sends such frames may be told, and need not listen.
        let _ = connection.refuse(&Refusal { say: Say::Malformed, numbers: [0; 3], text });
    }
    files.gone(&connection.writers);
    connection.wire.close();
}

impl Connection<'_> {
    /// Whether the other side speaks this protocol and knows the token.
    fn hello(&self, token: &Token) -> io::Result<bool> {
        let deadline = Instant::now() + HELLO;
        let head = self.wire.head(deadline, HELLO)?;
        if head.kind != Ask::Hello as u8 || head.a != MAGIC || head.name != 0 {
            return Err(malformed("a connection begins with a hello"));
        }
        let given = self.wire.small_payload(&head, 0, TOKEN_BYTES, deadline)?;
        let refusal = if !token.is(&given) {
            Some(Say::Token)
        } else if head.b != VERSION {
            Some(Say::Version)
        } else {
            None
        };
        let said = Head::say(refusal.unwrap_or(Say::Done), [0, VERSION, 0]);
        self.wire.send(said, &[], &[], deadline)?;
        Ok(refusal.is_none())
    }

    fn requests(&mut self) -> io::Result<()> {
        let mut last = Instant::now();
        loop {
            let head = match self.wire.head(last + IDLE, FRAME) {
                // Its writers may be in use through other connections.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    match self.files.last_used(&self.writers).filter(|used| used.elapsed() < IDLE) {
                        Some(used) if used > last => last = used,
                        _ => return Ok(()),
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                head => head?,
            };
            self.request(&head)?;
            last = Instant::now();
        }
    }

    fn request(&mut self, head: &Head) -> io::Result<()> {
        let deadline = Instant::now() + FRAME;
        let ask = Ask::of(head.kind).ok_or_else(|| malformed(format!("an unknown request {}", head.kind)))?;
        let (name, sum) = self.wire.name(head, deadline)?;
        let answer = match ask {
            Ask::Hello => return Err(malformed("a second hello")),
            Ask::Write => self.write(head, sum, deadline)?,
            Ask::Put => self.put(head, &name, sum, deadline)?,
            Ask::Read => {
                self.wire.small_payload(head, sum, 0, deadline)?;
                match self.read(&name, head) {
                    Ok(sent) => return sent,
                    Err(refusal) => Err(refusal),
                }
            }
            _ => {
                let payload = self.wire.small_payload(head, sum, NAME_BYTES, deadline)?;
                self.small(ask, head, &name, &payload)
            }
        };
        match answer {
            Ok(reply) => {
                let head = Head::say(Say::Done, reply.numbers);
                self.wire.send(head, reply.name.as_bytes(), &reply.payload, Instant::now() + FRAME)
            }
            Err(refusal) => self.refuse(&refusal),
        }
    }

    /// Requests without much payload.
    fn small(&mut self, ask: Ask, head: &Head, name: &str, payload: &[u8]) -> Answer {
        match ask {
            Ask::List => {
                let from = std::str::from_utf8(payload).unwrap_or_default();
                let (payload, name) = self.files.list(name, from)?;
                Ok(Reply { numbers: [0; 3], name, payload })
            }
            Ask::Open => {
                let (len, version) = self.files.open(name)?;
                Ok(Reply::numbers([len, version, 0]))
            }
            Ask::Begin => {
                let number = match head.flag {
                    WHOLE => self.files.begin_whole(name, head.a),
                    1 => self.files.begin(name, head.a, Sharing::Processes),
                    _ => self.files.begin(name, head.a, Sharing::Threads),
                }?;
                self.writers.push(number);
                Ok(Reply::numbers([number, 0, 0]))
            }
            Ask::Finish => {
                self.writers.retain(|number| *number != head.a);
                self.files.finish(head.a, mode(head)).map(|()| Reply::default())
            }
            Ask::Abandon => {
                self.files.gone(&[head.a]);
                self.writers.retain(|number| *number != head.a);
                Ok(Reply::default())
            }
            Ask::Delete => self.files.delete(name).map(|()| Reply::default()),
            _ => {
                let (limit, used, files) = self.files.room();
                Ok(Reply::numbers([limit, used, files]))
            }
        }
    }

    fn write(&self, head: &Head, sum: u32, deadline: Instant) -> io::Result<Answer> {
        let mut receive = |into: &mut [u8]| self.wire.payload(into, sum, deadline);
        let taken = self.files.write(head.a, head.b, head.payload as usize, &mut receive);
        self.taken(taken, head, deadline)
    }

    fn put(&self, head: &Head, name: &str, sum: u32, deadline: Instant) -> io::Result<Answer> {
        let mut receive = |into: &mut [u8]| self.wire.payload(into, sum, deadline);
        let taken = self.files.put(name, head.payload as usize, mode(head), &mut receive);
        self.taken(taken, head, deadline)
    }

    /// What is answered to a payload.
    fn taken(&self, taken: Result<Sums, Untaken>, head: &Head, deadline: Instant) -> io::Result<Answer> {
        match taken {
            Ok(sums) if sums.agree() => Ok(Ok(Reply::default())),
            Ok(Sums { found, expected }) => {
                Ok(Err(Refusal::new(Say::Damaged, [found.into(), expected.into(), 0])))
            }
            Err(Untaken::Lost(error)) => Err(error),
            Err(Untaken::After(refusal)) => Ok(Err(refusal)),
            Err(Untaken::Before(refusal)) => {
                self.wire.drain(head, deadline)?;
                Ok(Err(refusal))
            }
        }
    }

    fn read(&self, name: &str, head: &Head) -> Result<io::Result<()>, Refusal> {
        let len = usize::try_from(head.c).unwrap_or(CHUNK).min(CHUNK);
        let mut send =
            |bytes: &[u8]| self.wire.send(Head::say(Say::Done, [0; 3]), &[], bytes, Instant::now() + FRAME);
        self.files.read(name, head.b, (head.a, len), &mut send)
    }

    fn refuse(&self, refusal: &Refusal) -> io::Result<()> {
        let end = refusal.text.floor_char_boundary(NAME_BYTES);
        self.wire.send(refusal.head(), &refusal.text.as_bytes()[..end], &[], Instant::now() + FRAME)
    }
}

fn mode(head: &Head) -> PutMode {
    if head.flag == 1 { PutMode::Create } else { PutMode::Replace }
}
