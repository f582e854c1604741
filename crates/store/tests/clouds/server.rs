//! A server process, started once for the tests that use it at the same time and ended with the last of them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A process, ended when it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server that other tests use, or a new one; `None` where the program is not installed.
pub(crate) fn shared(
    kept: &Mutex<Weak<Server>>,
    start: impl FnOnce() -> Option<Server>,
) -> Option<Arc<Server>> {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = kept.upgrade() {
        return Some(server);
    }
    let server = Arc::new(start()?);
    *kept = Arc::downgrade(&server);
    Some(server)
}

/// Starts a program, given its port, and waits until `ready`; `None` where it cannot be started.
pub(crate) fn start(command: &mut Command, port: u16, ready: impl Fn(u16) -> bool) -> Option<Server> {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let server = Server { child, port };
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        if ready(port) {
            return Some(server);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("the server did not start within a minute");
}

/// A port that nobody listens at.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The answer to a request without a body.
pub(crate) fn request(port: u16, method: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
