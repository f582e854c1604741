//! A headless Chromium that a test drives by its debugging pipe.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// After this the page is not what it should be.
const PATIENCE: Duration = Duration::from_secs(60);

/// One page in one browser; both end with it.
pub(crate) struct Browser {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<Value>,
    last: u64,
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// Starts the program and opens an empty page of this size.
    pub(crate) fn start(program: &str, width: u32, height: u32) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        // The pipe is on descriptors 3 and 4.
        let script = "exec \"$0\" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
                      --user-data-dir=\"$1\" --window-size=\"$2\" --remote-debugging-pipe about:blank 3<&0 4>&1 >&2 </dev/null";
        let mut child = Command::new("sh")
            .args(["-c", script, program])
            .arg(profile.path())
            .arg(format!("{width},{height}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (orders, told) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for part in BufReader::new(told).split(0) {
                let value = part.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
                if value.is_none_or(|value| send.send(value).is_err()) {
                    return;
                }
            }
        });
        let mut browser =
            Browser { child, orders, answers, last: 0, session: String::new(), _profile: profile };
        let page = browser.order("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        browser.session =
            browser.order("Target.attachToTarget", attach)["sessionId"].as_str().unwrap().into();
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        browser.order("Emulation.setDeviceMetricsOverride", size);
        browser
    }

    /// Gives an order and waits for its answer.
    fn order(&mut self, method: &str, values: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": values });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        self.orders.write_all(format!("{message}\0").as_bytes()).unwrap();
        self.orders.flush().unwrap();
        let limit = Instant::now() + PATIENCE;
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            let answer = self.answers.recv_timeout(left).unwrap_or_else(|_| panic!("no answer to {method}"));
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        self.order("Runtime.evaluate", asked)["result"]["value"].clone()
    }

    /// Opens an address, anew also where only its end differs.
    pub(crate) fn open(&mut self, address: &str) {
        self.order("Page.navigate", json!({ "url": "about:blank" }));
        self.order("Page.navigate", json!({ "url": address }));
    }

    /// Waits until an expression in the page is true.
    pub(crate) fn wait(&mut self, expression: &str) {
        let limit = Instant::now() + PATIENCE;
        while self.value(expression) != true {
            assert!(
                Instant::now() < limit,
                "never so: {expression}\n{}",
                self.value("document.body.innerText")
            );
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Presses a key that types one character, or one that has a name.
    pub(crate) fn press(&mut self, key: &str) {
        let down = match key.chars().count() {
            1 => json!({ "type": "keyDown", "key": key, "text": key }),
            _ => json!({ "type": "rawKeyDown", "key": key }),
        };
        self.order("Input.dispatchKeyEvent", down);
        self.order("Input.dispatchKeyEvent", json!({ "type": "keyUp", "key": key }));
    }

    /// Light or dark, as the system would say.
    pub(crate) fn scheme(&mut self, name: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": name }]);
        self.order("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Writes a picture of what is seen, to be looked at.
    pub(crate) fn picture(&mut self, path: &Path) {
        let taken = self.order("Page.captureScreenshot", json!({ "format": "png" }));
        let mut decode = Command::new("base64");
        let file = std::fs::File::create(path).unwrap();
        let mut decode = decode.arg("--decode").stdin(Stdio::piped()).stdout(file).spawn().unwrap();
        decode.stdin.take().unwrap().write_all(taken["data"].as_str().unwrap().as_bytes()).unwrap();
        assert!(decode.wait().unwrap().success());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
