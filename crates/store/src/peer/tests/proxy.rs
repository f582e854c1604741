//! Stands between a client and an agent, and is late or flips bits when asked to.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

pub(super) struct Proxy {
    address: SocketAddr,
    how: Arc<How>,
}

#[derive(Default)]
struct How {
    /// Milliseconds that every piece of an answer waits.
    delay: AtomicU64,
    /// Answers wait for as long as this is set.
    held: AtomicBool,
    /// Bytes to let pass in either direction before a bit flips; negative: none flips.
    flip: AtomicI64,
}

impl Proxy {
    pub(super) fn start(to: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let how = Arc::new(How { flip: AtomicI64::new(-1), ..How::default() });
        let proxy = Proxy { address: listener.local_addr().unwrap(), how: how.clone() };
        // Lives until the test program ends.
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(agent) = TcpStream::connect(to) else { continue };
                let ways = [(client.try_clone(), agent.try_clone(), false), (Ok(agent), Ok(client), true)];
                for (from, to, is_answer) in ways {
                    let (from, to, how) = (from.unwrap(), to.unwrap(), how.clone());
                    std::thread::spawn(move || pass(from, to, is_answer, &how));
                }
            }
        });
        proxy
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn delay(&self, delay: Duration) {
        self.how.delay.store(delay.as_millis() as u64, SeqCst);
    }

    /// Whether answers wait until they are let go: late by any clock.
    pub(super) fn hold(&self, held: bool) {
        self.how.held.store(held, SeqCst);
    }

    pub(super) fn flip(&self, after: i64) {
        self.how.flip.store(after, SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_answer: bool, how: &How) {
    let mut bytes = [0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if is_answer {
            std::thread::sleep(Duration::from_millis(how.delay.load(SeqCst)));
            while how.held.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let at = how.flip.load(SeqCst);
        if at >= 0 {
            let next = at - count as i64;
            if next < 0 {
                bytes[at as usize] ^= 0x10;
            }
            how.flip.store(next.max(-1), SeqCst);
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
