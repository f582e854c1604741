//! The page over HTTP: read-only, on the loopback address unless a token is asked for.

use crate::answer::{Question, answer};
use crate::error::{Error, Result};
use crate::page;
use crate::runs::Board;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use tiny_http::{Method, Request, StatusCode};

/// Threads that answer: one slow reader holds up nobody.
const THREADS: usize = 4;

/// Who may look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Browsers of this machine, under a name of the loopback address.
    Loopback,
    /// Whoever knows this token.
    Token(String),
}

/// A page that is being served, until it is dropped.
#[derive(Debug)]
pub struct Server {
    listening: Arc<Listening>,
    workers: Vec<JoinHandle<()>>,
}

struct Listening {
    http: tiny_http::Server,
    board: Board,
    access: Access,
}

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listening").field("address", &self.http.server_addr()).finish_non_exhaustive()
    }
}

impl Server {
    /// Serves on an address such as `127.0.0.1:0`.
    pub fn start(board: Board, address: &str, access: Access) -> Result<Server> {
        let failed = |message: String| Error::Listen { address: address.to_string(), message };
        let http = tiny_http::Server::http(address).map_err(|error| failed(error.to_string()))?;
        let listening = Arc::new(Listening { http, board, access });
        let work = |number: usize| {
            let listening = listening.clone();
            let name = format!("board-{number}");
            let serve = move || {
                while let Ok(request) = listening.http.recv() {
                    listening.reply(request);
                }
            };
            std::thread::Builder::new().name(name).spawn(serve).map_err(|error| failed(error.to_string()))
        };
        let workers = (0..THREADS).map(work).collect::<Result<Vec<_>>>()?;
        Ok(Server { listening, workers })
    }

    /// The address with its port.
    pub fn address(&self) -> String {
        self.listening.http.server_addr().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.workers.iter().for_each(|_| self.listening.http.unblock());
        // A worker that a reader holds up ends with the process.
        self.workers.drain(..).filter(JoinHandle::is_finished).for_each(|worker| drop(worker.join()));
    }
}

impl Listening {
    fn reply(&self, request: Request) {
        let asked = Question::parse(request.url());
        let (code, kind, body) = match self.allowed(&request, &asked) {
            Err(why) => (403, "text/plain; charset=utf-8", why.to_string()),
            Ok(()) if !matches!(request.method(), Method::Get | Method::Head) => {
                (405, "text/plain; charset=utf-8", "this page is read-only\n".to_string())
            }
            Ok(()) => self.found(&asked),
        };
        let mut headers = vec![
            // A thread of the server is held for as long as a connection is open, and those that wait for one are not always
            // given a new one: a browser that keeps its connections would keep other requests, its own too, from being read.
            ("Connection", "close".to_string()),
            ("Content-Length", body.len().to_string()),
            ("Content-Type", kind.to_string()),
            ("Cache-Control", "no-store".to_string()),
            ("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'".to_string()),
            ("X-Content-Type-Options", "nosniff".to_string()),
            ("Referrer-Policy", "no-referrer".to_string()),
        ];
        if let (Access::Token(token), 200) = (&self.access, code) {
            // The page asks for its data without repeating the token in every address.
            headers.push(("Set-Cookie", format!("planaria={token}; HttpOnly; SameSite=Strict; Path=/")));
        }
        let mut text = format!("HTTP/1.1 {code} {}\r\n", StatusCode(code).default_reason_phrase());
        headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        text.push_str("\r\n");
        if *request.method() != Method::Head {
            text.push_str(&body);
        }
        let mut writer = request.into_writer();
        // A browser that has gone away wants no answer.
        let _ = writer.write_all(text.as_bytes()).and_then(|()| writer.flush());
    }

    fn found(&self, asked: &Question) -> (u16, &'static str, String) {
        if let Some((kind, text)) = page::file(&asked.path) {
            return (200, kind, text.to_string());
        }
        match answer(&self.board, asked) {
            Some(found) => (200, "application/json", found.to_string()),
            None => (404, "text/plain; charset=utf-8", "nothing of that name\n".to_string()),
        }
    }

    /// Whether the asker may look, or why not.
    fn allowed(&self, request: &Request, asked: &Question) -> Result<(), &'static str> {
        let header = |name: &'static str| {
            let found = request.headers().iter().find(|header| header.field.equiv(name));
            found.map_or("", |header| header.value.as_str())
        };
        match &self.access {
            // A page of somebody else's may let its own name point here; it cannot choose this one.
            Access::Loopback if is_loopback(header("Host")) => Ok(()),
            Access::Loopback => Err("ask for 127.0.0.1 or localhost\n"),
            Access::Token(token) => {
                let cookies =
                    header("Cookie").split(';').filter_map(|cookie| cookie.trim().strip_prefix("planaria="));
                match cookies.chain([asked.text("token")]).any(|given| same(given, token)) {
                    true => Ok(()),
                    false => Err("open the address with its token, as it was printed\n"),
                }
            }
        }
    }
}

/// Whether `Host` names this machine for itself.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Equality that takes as long for a near miss as for a far one.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_telemetry::{METRICS, MetricsWriter, Record, Session};
    use std::io::Read;
    use std::net::TcpStream;
    use std::path::Path;

    fn board(folder: &Path) -> Board {
        let run = folder.join("runs/first");
        std::fs::create_dir_all(run.join("log")).unwrap();
        let mut writer = MetricsWriter::open(&run.join(METRICS), &Session::default()).unwrap();
        (1..=5000).for_each(|i| writer.write(&Record::new(i).with("loss", 9.0 / i as f64)).unwrap());
        std::fs::write(run.join("config.toml"), "[train]\nsteps = 5000\n").unwrap();
        std::fs::write(run.join("log/rank-00000.jsonl"), "{\"message\":\"started\"}\n").unwrap();
        std::fs::write(folder.join("secret.txt"), "secret").unwrap();
        Board::new(&[folder.join("runs")])
    }

    fn ask(server: &Server, head: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let host = if head.contains("Host:") { "" } else { "Host: localhost\r\n" };
        write!(stream, "{head}\r\n{host}Connection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn json(text: &str) -> serde_json::Value {
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    #[test]
    fn the_page_and_its_data_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(board(folder.path()), "127.0.0.1:0", Access::Loopback).unwrap();
        let files = ["", "board.css"].into_iter().chain(page::SCRIPTS.map(|(name, _)| name));
        for name in files {
            let text = ask(&server, &format!("GET /{name} HTTP/1.1"));
            let kind = if name.ends_with("js") { "text/javascript" } else { "text/" };
            assert!(text.starts_with("HTTP/1.1 200") && text.contains(kind), "{name}: {text}");
            assert!(text.contains("\r\nConnection: close\r\n"), "{name} keeps a connection");
        }
        let runs = json(&ask(&server, "GET /api/runs HTTP/1.1"));
        assert_eq!((&runs["runs"][0]["id"], &runs["runs"][0]["steps"]), (&"first".into(), &5000.into()));
        let glances = json(&ask(&server, "GET /api/cluster HTTP/1.1"));
        assert_eq!((&glances["runs"][0]["step"], &glances["count"]), (&5000.into(), &1.into()));
        let some = json(&ask(&server, "GET /api/runs?run=none&run=first HTTP/1.1"));
        assert_eq!(some["runs"].as_array().unwrap().len(), 1);
        let pipeline = json(&ask(&server, "GET /api/pipeline?run=first HTTP/1.1"));
        assert_eq!(pipeline["pipelines"], serde_json::json!([]));
        let samples = json(&ask(&server, "GET /api/samples?run=first HTTP/1.1"));
        assert_eq!(samples["steps"], serde_json::json!([]));
        let series =
            json(&ask(&server, "GET /api/series?run=first&metric=loss&points=100&smooth=0.9 HTTP/1.1"));
        let points = series["points"].as_array().unwrap();
        assert!((50..=200).contains(&points.len()), "{}", points.len());
        assert_eq!((&points[0][1], &points[points.len() - 1][0]), (&9.0.into(), &5000.into()));
        assert!(series["smooth"][0][1] == 9.0 && !series["smooth"].as_array().unwrap().is_empty());
        let run = json(&ask(&server, "GET /api/run?run=first HTTP/1.1"));
        assert!(run["config"].as_str().unwrap().contains("steps = 5000"));
        let log = json(&ask(&server, "GET /api/log?run=first&rank=0&text=STARTED HTTP/1.1"));
        assert_eq!(log["lines"][0]["message"], "started");
    }

    #[test]
    fn nothing_else_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(board(folder.path()), "127.0.0.1:0", Access::Loopback).unwrap();
        let codes = [
            ("GET /api/run?run=../secret.txt HTTP/1.1", 404),
            ("GET /api/log?run=first/../..&rank=0 HTTP/1.1", 404),
            ("GET /api/samples?run=../runs/first HTTP/1.1", 404),
            ("GET /api/pipeline?run=first/../../runs/first HTTP/1.1", 404),
            ("GET /../secret.txt HTTP/1.1", 404),
            ("GET /%2e%2e/secret.txt HTTP/1.1", 404),
            ("GET /api/series?run=first&metric=none HTTP/1.1", 404),
            ("POST / HTTP/1.1", 405),
            ("DELETE /api/run?run=first HTTP/1.1", 405),
            ("GET / HTTP/1.1\r\nHost: attacker.example", 403),
            ("GET / HTTP/1.1\r\nHost: [::1]:80", 200),
        ];
        for (head, code) in codes {
            let text = ask(&server, head);
            assert!(
                text.starts_with(&format!("HTTP/1.1 {code}")) && !text.contains("secret"),
                "{head}: {text}"
            );
        }
    }

    #[test]
    fn a_token_opens_the_page_from_anywhere_and_a_wrong_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let access = Access::Token("abc".to_string());
        let server = Server::start(board(folder.path()), "127.0.0.1:0", access).unwrap();
        let code = |head: &str| ask(&server, head)[9..12].to_string();
        assert_eq!(code("GET / HTTP/1.1\r\nHost: node7"), "403");
        assert_eq!(code("GET /?token=abd HTTP/1.1\r\nHost: node7"), "403");
        let opened = ask(&server, "GET /?token=abc HTTP/1.1\r\nHost: node7");
        assert!(opened.starts_with("HTTP/1.1 200") && opened.contains("planaria=abc; HttpOnly"), "{opened}");
        assert_eq!(code("GET /api/runs HTTP/1.1\r\nHost: node7\r\nCookie: a=b; planaria=abc"), "200");
        assert!(matches!(
            Server::start(board(folder.path()), &server.address(), Access::Loopback),
            Err(Error::Listen { .. })
        ));
    }
}
