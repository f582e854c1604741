//! Asking a server by HTTP: one request, one answer, all of it within a time.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Largest answer that is read.
const MOST: u64 = 1 << 28;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target<'a> {
    host: &'a str,
    port: u16,
    path: &'a str,
}

/// Takes an address apart. Only plain HTTP is spoken.
fn target(url: &str) -> Result<Target<'_>, String> {
    let rest = url.strip_prefix("http://").ok_or_else(|| format!("'{url}' does not begin with http://"))?;
    let (place, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().map_err(|_| format!("'{url}' has no port after ':'"))?),
        None => (place, 80),
    };
    if host.is_empty() || url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("'{url}' names no server"));
    }
    Ok(Target { host, port, path })
}

/// Refuses an address that cannot be asked.
pub(super) fn check(url: &str) -> Result<(), String> {
    target(url).map(|_| ())
}

/// Sends lines of JSON and gives the body of the answer.
pub(super) fn post(url: &str, body: &str, most: Duration) -> Result<String, String> {
    let Target { host, port, path } = target(url)?;
    let end = Instant::now() + most;
    let late = || format!("it took longer than {} s", most.as_secs_f64());
    let left = || end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()).ok_or_else(late);
    let told = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => late(),
        _ => e.to_string(),
    };
    let mut found = (host, port).to_socket_addrs().map_err(told)?;
    let address = found.next().ok_or_else(|| format!("'{host}' has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, left()?).map_err(told)?;
    stream.set_write_timeout(Some(left()?)).map_err(told)?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/jsonl\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).map_err(told)?;
    let mut answer = Vec::new();
    let mut piece = [0u8; 1 << 14];
    loop {
        stream.set_read_timeout(Some(left()?)).map_err(told)?;
        match stream.read(&mut piece).map_err(told)? {
            0 => break,
            read => answer.extend_from_slice(&piece[..read]),
        }
        if answer.len() as u64 > MOST {
            return Err(format!("its answer has more than {MOST} bytes"));
        }
        if is_whole(&answer) {
            break;
        }
    }
    body_of(&answer)
}

/// Where the head ends, and what stands in it.
fn head_of(answer: &[u8]) -> Option<(usize, String)> {
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some((at + 4, String::from_utf8_lossy(&answer[..at]).into_owned()))
}

/// A line of the head by its name.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(known, _)| known.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}

/// Whether as much has come as the head announces.
fn is_whole(answer: &[u8]) -> bool {
    let Some((at, head)) = head_of(answer) else { return false };
    let announced = header(&head, "content-length").and_then(|length| length.parse::<usize>().ok());
    announced.is_some_and(|length| answer.len() >= at.saturating_add(length))
}

fn body_of(answer: &[u8]) -> Result<String, String> {
    let (at, head) = head_of(answer).ok_or("its answer is not HTTP")?;
    let status = head.lines().next().unwrap_or_default().split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        return Err(format!("it answered with status {status}"));
    }
    let mut body = answer[at..].to_vec();
    if let Some(length) = header(&head, "content-length") {
        let length: usize = length.parse().map_err(|_| format!("its content-length is '{length}'"))?;
        if body.len() < length {
            return Err(format!("it sent {} of {length} bytes", body.len()));
        }
        body.truncate(length);
    } else if header(&head, "transfer-encoding").is_some_and(|how| how.eq_ignore_ascii_case("chunked")) {
        body = chunks(&body)?;
    }
    String::from_utf8(body).map_err(|_| "its answer is not UTF-8".to_string())
}

/// A body that came in pieces, each after its length.
fn chunks(mut body: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let cut = || "its answer ends inside a piece".to_string();
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n").ok_or_else(cut)?;
        let length = std::str::from_utf8(&body[..end]).ok().map(|line| line.split(';').next().unwrap_or(""));
        let length = length.and_then(|length| usize::from_str_radix(length.trim(), 16).ok());
        let length = length.ok_or("a piece of its answer has no length")?;
        body = &body[end + 2..];
        if length == 0 {
            return Ok(out);
        }
        let rest = length.checked_add(2).filter(|&rest| rest <= body.len()).ok_or_else(cut)?;
        out.extend_from_slice(&body[..length]);
        body = &body[rest..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_or_refused() {
        let found = target("http://judge:8000/score?a=1").unwrap();
        assert_eq!(found, Target { host: "judge", port: 8000, path: "/score?a=1" });
        assert_eq!(target("http://judge").unwrap(), Target { host: "judge", port: 80, path: "/" });
        for wrong in
            ["https://judge", "judge:80", "http://", "http://a:x/", "http://a b/", "http://a/\r\nX: y"]
        {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn answers_are_whole_or_refused() {
        let body = |text: &str| body_of(text.as_bytes());
        assert_eq!(body("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc").unwrap(), "ab");
        let pieces =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n";
        assert_eq!(body(pieces).unwrap(), "abc");
        assert_eq!(body("HTTP/1.0 200 OK\r\n\r\nall").unwrap(), "all");
        for (wrong, told) in [
            ("HTTP/1.1 503 Busy\r\n\r\n", "503"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "3 of 9"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nab", "inside a piece"),
            ("nothing", "not HTTP"),
        ] {
            let error = body(wrong).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
