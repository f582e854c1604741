//! Whether the metadata service of a cloud's machine answers: asked before credentials are, so that a program on any
//! other machine is told at once.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Where machines of all clouds have it; a name would first have to be looked up.
pub(super) const USUAL: &str = "http://169.254.169.254";

/// A service on the same machine answers in a millisecond.
const WITHIN: Duration = Duration::from_secs(1);

/// Whether a connection to the host of an `http://host[:port]/...` address can be made.
pub(super) fn answers(address: &str) -> bool {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let host = rest.split(['/', '?']).next().unwrap_or(rest);
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let host = if has_port { host.to_string() } else { format!("{host}:80") };
    let found = host.to_socket_addrs().into_iter().flatten();
    found.take(2).any(|address| TcpStream::connect_timeout(&address, WITHIN).is_ok())
}
