//! The page that watches runs: what the command prints and refuses. `cargo xtask test` looks at it in a browser too.

use crate::common;
use common::{command, planaria, text};
use planaria::telemetry::{MetricsWriter, Record, Session};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A run with this many steps.
fn write_run(folder: &Path, steps: u64) {
    fs::create_dir_all(folder).unwrap();
    let mut writer = MetricsWriter::open(&folder.join("metrics.jsonl"), &Session::default()).unwrap();
    (1..=steps).for_each(|step| writer.write(&Record::new(step).with("loss", 4.0)).unwrap());
}

/// A page that ends with the test.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(args: &[&str]) -> Served {
        let mut child = command(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        Served { child, address: told["address"].as_str().unwrap().to_string() }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_page_is_served_until_interrupted_and_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    write_run(&runs.join("one"), 50);
    let mut served = Served::start(&["--json", "board", text(&runs), "--port", "0"]);
    let place = served.address.strip_prefix("http://").unwrap().trim_end_matches('/').to_string();
    let mut stream = TcpStream::connect(&place).unwrap();
    write!(stream, "GET /api/runs HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"id\":\"one\"") && answer.contains("\"step\":50"), "{answer}");
    let number = served.child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &number]).status().unwrap().success());
    assert_eq!(served.child.wait().unwrap().code(), Some(0));

    let anywhere = Served::start(&["--json", "board", text(&runs), "--port", "0", "--host", "0.0.0.0"]);
    assert!(anywhere.address.contains("/?token="), "{}", anywhere.address);

    let page = folder.path().join("page.html");
    let args = ["board", text(&runs), "--export", text(&page)];
    assert_eq!(planaria(&args).code, Some(0));
    assert!(fs::read_to_string(&page).unwrap().contains("window.BOARD"));
    assert!(planaria(&args).err.contains("already exists"));
    let nowhere = planaria(&["board", "no-such-folder"]);
    assert_eq!(nowhere.code, Some(2));
    assert!(nowhere.err.contains("there is no folder 'no-such-folder'"), "{}", nowhere.err);
    let odd = planaria(&["board", text(&runs), "--token", "a b"]);
    assert!(odd.err.contains("letters, digits"), "{}", odd.err);
}
