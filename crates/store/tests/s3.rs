//! S3: the conformance checks against a server this test starts.
//!
//! Needs the feature `s3` and moto's server (`pip install 'moto[server]'`), found through `PLANARIA_MOTO` or
//! the search path; without them the test says so and passes.
#![cfg(feature = "s3")]

use object_store::RetryConfig;
use object_store::aws::AmazonS3Builder;
use planaria_store::{Error, Object, PutMode, Store, StoreExt, conformance};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The server, ended with the test.
struct Server(Child, u16);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the server and waits until it answers; `None` where it is not installed.
fn start() -> Option<Server> {
    let program = std::env::var("PLANARIA_MOTO").unwrap_or_else(|_| "moto_server".to_string());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let child = Command::new(program)
        .args(["-H", "127.0.0.1", "-p", &port.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let server = Server(child, port);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        if request(port, "PUT", "/bucket").is_some_and(|answer| answer.contains(" 200 ")) {
            return Some(server);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("the server did not start within a minute");
}

fn request(port: u16, method: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn s3_conforms() {
    let Some(server) = start() else {
        eprintln!("skipped: no moto_server; install it or set PLANARIA_MOTO");
        return;
    };
    let bucket = AmazonS3Builder::new()
        .with_endpoint(format!("http://127.0.0.1:{}", server.1))
        .with_bucket_name("bucket")
        .with_region("us-east-1")
        .with_access_key_id("test")
        .with_secret_access_key("test")
        .with_allow_http(true)
        .with_retry(RetryConfig { retry_timeout: Duration::from_secs(2), ..Default::default() })
        .build()
        .unwrap();
    let store = Object::new(Arc::new(bucket), "s3://bucket/run", "run");
    conformance::all(&store, "a").unwrap();
    conformance::all(&store, "").unwrap();
    store.put("COMMIT", b"", PutMode::Create).unwrap();
    assert!(matches!(store.put("COMMIT", b"", PutMode::Create), Err(Error::AlreadyExists { .. })));
    drop(server);
    // A server that is gone is an error that may pass, within a bounded time.
    assert!(store.read("COMMIT", 10).unwrap_err().is_transient());
}

/// No request is made until something is read.
#[cfg(all(feature = "gcs", feature = "azure"))]
#[test]
fn urls_of_other_clouds_name_their_buckets() {
    let urls = ["gs://bucket/run/step-1", "abfss://container@account.dfs.core.windows.net/run/step-1"];
    for url in urls {
        let store = planaria_store::open(url).unwrap();
        assert_eq!(store.address(), url);
    }
}
