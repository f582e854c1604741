//! What each target of HTTP does with its bytes, over a real connection: a request to the page of runs, an answer of a judge.

use planaria_board::{Access, Board, Server};
use planaria_train::rl::{Judged, Reward, RewardKind};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

/// Turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// A page with one run.
struct Page {
    server: Server,
    _folder: tempfile::TempDir,
}

impl Page {
    fn new() -> Page {
        const FILES: [(&str, &[u8]); 4] = [
            ("metrics.jsonl", include_bytes!("../corpus/run/metrics.jsonl")),
            ("samples.jsonl", include_bytes!("../corpus/run/samples.jsonl")),
            ("ranks/rank-00000.steps", include_bytes!("../corpus/run/steps.json")),
            ("log/rank-00000.jsonl", b"{\"message\":\"started\"}\n"),
        ];
        let folder = tempfile::tempdir().expect("a folder");
        for (name, bytes) in FILES {
            let path = folder.path().join("first").join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, bytes).expect("a file");
        }
        let board = Board::new(&[folder.path().to_path_buf()]);
        let server =
            Server::start(board, "127.0.0.1:0", Access::Loopback).expect("a port of the loopback address");
        Page { server, _folder: folder }
    }
}

/// A request as it comes: the page closes the connection after an answer, and that it broke is none.
pub(crate) fn request(bytes: &[u8]) {
    thread_local! {
        static PAGE: Page = Page::new();
    }
    PAGE.with(|page| {
        let mut stream = TcpStream::connect(page.server.address()).expect("a page that listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        // The page may hang up on what is no request before it has read all of it.
        let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert!(
                !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
                "no end of the answer"
            );
        }
        // A thread that panics with a request in its hands gives this answer.
        assert!(!answer.starts_with(b"HTTP/1.1 500"), "{}", String::from_utf8_lossy(&answer));
    });
}

/// What a judge answers: scores, one for each response, or an error.
pub(crate) fn answer(bytes: &[u8]) {
    thread_local! {
        // One for all inputs: ports that were used are not free again for a minute.
        static LISTENER: TcpListener = TcpListener::bind("127.0.0.1:0").expect("a port of the loopback address");
    }
    LISTENER.with(|listener| judged(listener, bytes));
}

fn judged(listener: &TcpListener, bytes: &[u8]) {
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let judge = Reward {
        kind: RewardKind::Http,
        url,
        timeout: PATIENCE.as_secs_f64(),
        retries: 0,
        ..Reward::default()
    };
    let row = serde_json::json!({});
    let one = |number| Judged {
        prompt: "1+1=".into(),
        response: "2".into(),
        ids: [&[1], &[2]],
        row: &row,
        number,
        most: 4,
        finished: true,
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a caller");
            let (mut asked, mut piece) = (Vec::new(), [0; 1024]);
            // The lines of a request end with an object each, and its head with none.
            while !asked.ends_with(b"}\n") {
                match stream.read(&mut piece).expect("a request") {
                    0 => return,
                    read => asked.extend_from_slice(&piece[..read]),
                }
            }
            // It may have heard enough before the end.
            let _ = stream.write_all(bytes);
        });
        if let Ok(scores) = judge.score(&[one(0), one(1)]) {
            assert_eq!(scores.len(), 2);
            assert!(scores.iter().flatten().all(|score| score.is_finite()));
        }
    });
}
