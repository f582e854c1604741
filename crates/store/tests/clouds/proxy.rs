//! A proxy that breaks one request in twenty, in ways that networks and crowded servers do.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// What is done to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// 503, as S3 says it.
    SlowDown,
    /// 429.
    TooMany,
    /// The connection ends before anything is forwarded.
    Reset,
    /// The server gets half of the request.
    Torn,
    /// The server does it, its answer is dropped.
    Lost,
    /// The answer breaks off in its body.
    Truncated,
}

const FAULTS: [Fault; 6] =
    [Fault::SlowDown, Fault::TooMany, Fault::Reset, Fault::Torn, Fault::Lost, Fault::Truncated];

/// Requests that are all told to slow down, one after the other, as a store does when it is throttled.
const THROTTLED: std::ops::Range<u64> = 60..72;

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    faults: [AtomicU64; FAULTS.len()],
    /// Whether an upload was completed, and an object created, whose answer got lost.
    lost: [AtomicBool; 2],
    stop: AtomicBool,
}

/// The proxy, ended when it is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    counts: Arc<Counts>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.counts.stop.store(true, SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Proxy {
    /// Stands before the server at `port`.
    pub(crate) fn before(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy { port: listener.local_addr().unwrap().port(), counts: Arc::default() };
        let counts = proxy.counts.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if counts.stop.load(SeqCst) {
                    return;
                }
                let counts = counts.clone();
                // A connection that breaks is what this is about.
                std::thread::spawn(move || serve(client, port, &counts).unwrap_or_default());
            }
        });
        proxy
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.counts.requests.load(SeqCst)
    }

    /// Whether the answers to a completed upload and to a creation were lost.
    pub(crate) fn lost(&self) -> [bool; 2] {
        self.counts.lost.each_ref().map(|lost| lost.load(SeqCst))
    }

    /// How often each fault was done.
    pub(crate) fn faults(&self) -> Vec<(Fault, u64)> {
        FAULTS.iter().zip(&self.counts.faults).map(|(fault, count)| (*fault, count.load(SeqCst))).collect()
    }
}

/// The fault of a request by its number: one in twenty, the same in every run.
fn fault(number: u64) -> Option<Fault> {
    if THROTTLED.contains(&number) {
        return Some(Fault::SlowDown);
    }
    let mut z = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let drawn = z ^ (z >> 31);
    drawn.is_multiple_of(20).then(|| FAULTS[(drawn / 20 % FAULTS.len() as u64) as usize])
}

/// Whether a request completes an upload (0) or creates what must not exist (1).
fn once(head: &str) -> Option<usize> {
    let (line, rest) = head.split_once("\r\n")?;
    let completes =
        line.starts_with("POST ") && line.contains("uploadId=") || line.contains("comp=blocklist");
    let creates = rest.to_ascii_lowercase().contains("\r\nif-none-match: *\r\n");
    [completes, creates].into_iter().position(|is| is)
}

/// One request and its answer.
fn serve(mut client: TcpStream, port: u16, counts: &Counts) -> Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(60)))?;
    let (head, mut body) = head(&mut client)?;
    let drawn = fault(counts.requests.fetch_add(1, SeqCst));
    // Of the requests that must happen once, the first of each kind happens and does not get its answer.
    let once = once(&head).filter(|kind| !counts.lost[*kind].swap(true, SeqCst));
    let fault = once.map(|_| Fault::Lost).or(drawn);
    if let Some(place) = fault.and_then(|fault| FAULTS.iter().position(|known| *known == fault)) {
        counts.faults[place].fetch_add(1, SeqCst);
    }
    if fault == Some(Fault::Reset) {
        return Ok(());
    }
    let len = length(&head);
    let mut rest = vec![0; len.saturating_sub(body.len())];
    client.read_exact(&mut rest)?;
    body.extend(rest);
    match fault {
        Some(Fault::SlowDown) => return refuse(&mut client, "503 Slow Down", "SlowDown"),
        Some(Fault::TooMany) => return refuse(&mut client, "429 Too Many Requests", "TooManyRequests"),
        _ => {}
    }
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.write_all(closing(&head).as_bytes())?;
    if fault == Some(Fault::Torn) {
        server.write_all(&body[..body.len() / 2])?;
        return server.shutdown(Shutdown::Both);
    }
    server.write_all(&body)?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
    let kept = match fault {
        Some(Fault::Lost) => 0,
        Some(Fault::Truncated) => end + (answer.len() - end) / 2,
        _ => answer.len(),
    };
    client.write_all(&answer[..kept])
}

fn refuse(client: &mut TcpStream, status: &str, code: &str) -> Result<()> {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>Later.</Message></Error>");
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    client.write_all((head + &body).as_bytes())
}

/// The lines before the body, and what was read of it along with them.
fn head(client: &mut TcpStream) -> Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 1 << 16];
    loop {
        let count = client.read(&mut buffer)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.extend(&buffer[..count]);
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = bytes.split_off(at + 4);
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), body));
        }
    }
}

fn length(head: &str) -> usize {
    let value = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    };
    head.lines().find_map(value).unwrap_or(0)
}

/// The same request, after whose answer the server closes.
fn closing(head: &str) -> String {
    let kept = head.trim_end().lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    kept.chain(["Connection: close", "", ""]).collect::<Vec<_>>().join("\r\n")
}
