//! Ranks that nobody brings together: all of them call the first one at an address they were given, and are told where the others are.

use super::failed;
use super::meeting::{SECRET, endpoint};
use crate::error::{Error, Result};
use planaria_layout::Rank;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// What a call begins with.
const GREETING: &[u8; 16] = b"planaria ranks 1";

/// Time between two tries.
const PULSE: Duration = Duration::from_millis(20);

/// How long a caller may take to say who it is.
const CALL: Duration = Duration::from_secs(3);

/// Longest message.
const MOST: u32 = 64 << 20;

/// Where a rank can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// From other machines.
    pub(super) port: u16,
    /// From its own.
    pub(super) socket: String,
}

/// What all ranks know in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Met {
    pub(super) secret: [u8; SECRET],
    /// By rank: the address, and on a second line the socket.
    pub(super) addresses: Vec<String>,
}

/// A rank that waits to be told.
struct Waiting {
    stream: TcpStream,
    told: Told,
    from: IpAddr,
}

/// Tells the first rank where this one is, and learns where all are. Collective.
pub(super) fn meet(
    first: &str,
    (rank, size): (Rank, usize),
    known: &[u8; SECRET],
    told: &Told,
    patience: Duration,
) -> Result<Met> {
    match rank {
        0 => gather(first, size, known, told, patience),
        _ => ask(first, (rank, size), known, told, patience),
    }
}

/// The first rank's side.
fn gather(first: &str, size: usize, known: &[u8; SECRET], own: &Told, patience: Duration) -> Result<Met> {
    let begin = Instant::now();
    let (host, port) = split(first)?;
    let cannot = |error: std::io::Error| {
        failed(format!("rank 0 cannot listen at port {port} for '{first}': {error}; give another port"))
    };
    let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
    let listener = listener.map_err(cannot)?;
    listener.set_nonblocking(true).map_err(cannot)?;
    let mut waiting: Vec<Option<Waiting>> = (0..size).map(|_| None).collect();
    while waiting.iter().skip(1).any(Option::is_none) {
        match listener.accept() {
            Ok((stream, from)) => {
                // Anybody can call; only who says the right words is one of us.
                let Some((stream, said)) = hear(stream, known) else { continue };
                if let Err(wrong) = take(&mut waiting, stream, from.ip().to_canonical(), &said) {
                    let refused = format!("no\n{wrong}");
                    waiting.iter_mut().flatten().for_each(|one| drop(say(&mut one.stream, &refused)));
                    return Err(failed(wrong));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if begin.elapsed() >= patience {
                    let missing = (1..size).filter(|&rank| waiting[rank].is_none()).collect();
                    return Err(Error::Timeout { call: "connect", sequence: 0, missing, waited: patience });
                }
                std::thread::sleep(PULSE);
            }
            Err(error) => return Err(cannot(error)),
        }
    }
    let mut secret = [0; SECRET];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut secret)).map_err(cannot)?;
    let line = |host: &str, told: &Told| format!("{}\n{}", endpoint(host, told.port), told.socket);
    let rest = waiting.iter().flatten().map(|one| line(&one.from.to_string(), &one.told));
    let addresses: Vec<String> = std::iter::once(line(&host, own)).chain(rest).collect();
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let answer = format!("yes\n{hex}\n{}", addresses.join("\n"));
    for (rank, one) in waiting.iter_mut().enumerate() {
        let Some(one) = one else { continue };
        say(&mut one.stream, &answer).map_err(|_| failed(format!("rank {rank} is gone")))?;
    }
    Ok(Met { secret, addresses })
}

/// Notes a caller, or says what is wrong about it.
fn take(
    waiting: &mut [Option<Waiting>],
    mut stream: TcpStream,
    from: IpAddr,
    said: &str,
) -> std::result::Result<(), String> {
    let mut refuse = |what: String| {
        // It hears it too, if it listens.
        let _ = say(&mut stream, &format!("no\n{what}"));
        Err(what)
    };
    let words: Vec<&str> = said.split('\n').collect();
    let [version, rank, size, port, socket] = words[..] else {
        return refuse(format!("{from} called with words that no rank of this version says"));
    };
    let (ours, ranks) = (env!("CARGO_PKG_VERSION"), waiting.len());
    if version != ours {
        return refuse(format!(
            "rank {rank} at {from} has planaria {version}, rank 0 {ours}; install the same program on all machines"
        ));
    }
    if size != ranks.to_string() {
        return refuse(format!("rank {rank} at {from} is one of {size} ranks, rank 0 one of {ranks}"));
    }
    let number = rank.parse::<usize>().ok().filter(|rank| (1..ranks).contains(rank));
    let (Some(number), Ok(port)) = (number, port.parse()) else {
        return refuse(format!("{from} called as rank {rank} of {ranks}"));
    };
    let told = Told { port, socket: socket.to_string() };
    if let Some(other) = waiting[number].as_ref().filter(|other| other.told != told) {
        return refuse(format!(
            "two processes say that they are rank {number}: at {} and at {from}",
            other.from
        ));
    }
    waiting[number] = Some(Waiting { stream, told, from });
    Ok(())
}

/// What a caller says, if it is one of us.
fn hear(mut stream: TcpStream, known: &[u8; SECRET]) -> Option<(TcpStream, String)> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(CALL)).ok()?;
    let mut words = [0; GREETING.len() + SECRET];
    stream.read_exact(&mut words).ok()?;
    let (greeting, secret) = words.split_at(GREETING.len());
    // Every byte is looked at, however many are wrong.
    let wrong = secret.iter().zip(known).fold(0, |wrong, (a, b)| wrong | (a ^ b));
    if greeting != GREETING || wrong != 0 {
        return None;
    }
    let said = listen(&mut stream, 4096).ok()?;
    Some((stream, said))
}

/// The side of every other rank.
fn ask(
    first: &str,
    (rank, size): (Rank, usize),
    known: &[u8; SECRET],
    told: &Told,
    patience: Duration,
) -> Result<Met> {
    let begin = Instant::now();
    let Told { port, socket } = told;
    let words = format!("{}\n{rank}\n{size}\n{port}\n{socket}", env!("CARGO_PKG_VERSION"));
    loop {
        let left = patience.saturating_sub(begin.elapsed());
        let answer = call(first, left).and_then(|mut stream| {
            stream.write_all(GREETING)?;
            stream.write_all(known)?;
            say(&mut stream, &words)?;
            stream.set_read_timeout(Some(left.max(PULSE)))?;
            listen(&mut stream, MOST)
        });
        match answer {
            Ok(answer) => return learn(&answer, size),
            Err(error) if begin.elapsed() >= patience => {
                let waited = patience.as_secs();
                let what =
                    format!("rank {rank} did not hear from rank 0 at '{first}' within {waited} s: {error}");
                return Err(failed(what));
            }
            Err(_) => std::thread::sleep(PULSE),
        }
    }
}

fn call(first: &str, patience: Duration) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
    for to in first.to_socket_addrs()? {
        match TcpStream::connect_timeout(&to, CALL.min(patience.max(PULSE))) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Reads the answer of the first rank.
fn learn(answer: &str, size: usize) -> Result<Met> {
    let strange = || failed("rank 0 answered something that is not understood");
    let (verdict, rest) = answer.split_once('\n').ok_or_else(strange)?;
    if verdict != "yes" {
        return Err(failed(rest));
    }
    let (hex, rest) = rest.split_once('\n').ok_or_else(strange)?;
    let mut secret = [0; SECRET];
    for (at, byte) in secret.iter_mut().enumerate() {
        let digits = hex.get(2 * at..2 * at + 2).ok_or_else(strange)?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| strange())?;
    }
    let lines: Vec<&str> = rest.split('\n').collect();
    if lines.len() != 2 * size {
        return Err(strange());
    }
    let addresses = lines.chunks_exact(2).map(|pair| pair.join("\n")).collect();
    Ok(Met { secret, addresses })
}

/// The host and the port of `HOST:PORT`.
fn split(first: &str) -> Result<(String, u16)> {
    let parts = first.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.ok_or_else(|| failed(format!("'{first}' is not HOST:PORT")))?;
    Ok((host.to_string(), port))
}

fn say(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    stream.write_all(&(text.len() as u32).to_le_bytes())?;
    stream.write_all(text.as_bytes())
}

fn listen(stream: &mut TcpStream, most: u32) -> std::io::Result<String> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > most {
        return Err(std::io::Error::new(ErrorKind::InvalidData, format!("{length} bytes; at most {most}")));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes)?;
    String::from_utf8(bytes).map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address that nobody listens at.
    fn free() -> String {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        format!("127.0.0.1:{port}")
    }

    /// What each of these learns within so many seconds: rank and size as it says them, and what it knows.
    fn together(ranks: &[(usize, usize, u8)], seconds: u64) -> Vec<Result<Met>> {
        let first = free();
        std::thread::scope(|scope| {
            let one = |(number, &(rank, size, known)): (usize, &(usize, usize, u8))| {
                let told = Told { port: 1000 + rank as u16, socket: format!("/x/{rank}-{number}") };
                let first = first.clone();
                let patience = Duration::from_secs(seconds);
                scope.spawn(move || meet(&first, (rank, size), &[known; SECRET], &told, patience))
            };
            let all: Vec<_> = ranks.iter().enumerate().map(one).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_learn_the_same_wherever_they_come_in_line() {
        let met = together(&[(2, 3, 0), (0, 3, 0), (1, 3, 0)], 60);
        let first = met[0].as_ref().unwrap();
        assert!(met.iter().all(|one| one.as_ref().unwrap() == first));
        let expected = ["127.0.0.1:1000\n/x/0-1", "127.0.0.1:1001\n/x/1-2", "127.0.0.1:1002\n/x/2-0"];
        assert_eq!(first.addresses, expected);
        assert_ne!(first.secret, [0; SECRET]);
    }

    #[test]
    fn ranks_that_contradict_each_other_are_named_on_both_sides() {
        for (ranks, words) in [
            (&[(0, 3, 0), (1, 3, 0), (1, 3, 0)][..], "two processes say that they are rank 1: at 127.0.0.1"),
            (&[(2, 4, 0), (0, 3, 0)], "rank 2 at 127.0.0.1 is one of 4 ranks, rank 0 one of 3"),
        ] {
            let told = together(ranks, 60);
            let says = |one: &Result<Met>| one.as_ref().is_err_and(|error| error.to_string().contains(words));
            assert!(told.iter().all(says), "{told:?}");
        }
    }

    #[test]
    fn who_does_not_know_the_secret_is_not_let_in_and_the_missing_are_named() {
        let told = together(&[(0, 3, 7), (1, 3, 8), (2, 3, 7)], 3);
        assert!(matches!(&told[0], Err(Error::Timeout { missing, .. }) if missing.contains(&1)), "{told:?}");
        let apart = told[1].as_ref().unwrap_err().to_string();
        assert!(apart.contains("did not hear from rank 0 at"), "{apart}");
    }
}
