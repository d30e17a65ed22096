//! A browser without a window, driven over pipes: the DevTools protocol, as much of it as the tests need.
//!
//! With `--remote-debugging-pipe` Chromium reads commands from descriptor 3 and writes answers and events to
//! 4, each a JSON text that ends with a zero byte. A shell puts the ends of two pipes there, so that neither
//! a port nor a library for sockets is needed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A browser with one page.
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: Option<String>,
    number: u64,
    /// What the page complained of: exceptions, errors and warnings in the console, whatever it was not
    /// allowed to load.
    pub complaints: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Browser {
    /// Starts one; says so and gives none if it is not there.
    pub fn start() -> Option<Browser> {
        let program = ["/usr/bin/chromium", "/usr/bin/chromium-browser"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        let Some(program) = program else {
            eprintln!("SKIPPED: chromium is not there (package chromium)");
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary directory");
        let script = "exec \"$0\" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe \
                      --no-first-run --user-data-dir=\"$1\" about:blank 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null";
        let mut child = Command::new("sh")
            .args(["-c", script, program])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let commands = child.stdin.take().expect("it is a pipe");
        let answers = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut browser = Browser {
            child,
            commands,
            answers,
            session: None,
            number: 0,
            complaints: Vec::new(),
            _folder: folder,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target["targetId"], "flatten": true}),
        );
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Sends a command and waits for its answer; events that come before are looked at.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut command = json!({"id": self.number, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.commands
            .write_all(format!("{command}\0").as_bytes())
            .and_then(|()| self.commands.flush())
            .expect("the browser runs");
        loop {
            let mut message = Vec::new();
            self.answers
                .read_until(0, &mut message)
                .expect("the browser answers");
            assert_eq!(message.pop(), Some(0), "the browser ended at {method}");
            let message: Value = serde_json::from_slice(&message).expect("JSON");
            if message["id"] == json!(self.number) {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.event(&message);
        }
    }

    fn event(&mut self, message: &Value) {
        let parameters = &message["params"];
        let complaint = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => parameters["exceptionDetails"].to_string(),
            Some("Log.entryAdded") => parameters["entry"].to_string(),
            Some("Runtime.consoleAPICalled") => parameters.to_string(),
            // Whatever is not the page itself comes from elsewhere.
            Some("Network.requestWillBeSent") => {
                let url = parameters["request"]["url"].as_str().unwrap_or_default();
                if url.starts_with("file:") || url.starts_with("data:") || url == "about:blank" {
                    return;
                }
                format!("asked for {url}")
            }
            _ => return,
        };
        self.complaints.push(complaint);
    }

    /// The value of an expression, which must not throw.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let done = self.call(
            "Runtime.evaluate",
            json!({"expression": expression, "awaitPromise": true, "returnByValue": true}),
        );
        assert!(
            done["exceptionDetails"].is_null(),
            "{expression}: {}",
            done["exceptionDetails"]
        );
        done["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, expression: &str) {
        let since = Instant::now();
        while self.evaluate(expression) != json!(true) {
            assert!(
                since.elapsed() < Duration::from_secs(60),
                "never true: {expression}; on the page: {}; complaints: {:?}",
                self.evaluate("document.body.innerText.slice(0, 400)"),
                self.complaints
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Opens a report and waits until it can be used.
    pub fn open(&mut self, page: &Path) {
        let url = format!("file://{}", page.display());
        self.call("Page.navigate", json!({"url": url}));
        self.until("document.documentElement?.dataset.ready === 'yes'");
    }

    /// Sets the size of the window.
    pub fn size(&mut self, width: u32, height: u32) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Presses a key.
    pub fn press(&mut self, key: &str) {
        let text = if key.chars().count() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "code": key});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Presses a key that does something by itself and types nothing: the browser goes by its number.
    pub fn command_key(&mut self, key: &str) {
        let (number, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            other => panic!("{other} is not known here"),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": number});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// The page on paper, as PDF.
    pub fn paper(&mut self) -> Vec<u8> {
        let done = self.call("Page.printToPDF", json!({}));
        decode(done["data"].as_str().expect("a document"))
    }

    /// A picture of the window, as PNG.
    pub fn picture(&mut self) -> Vec<u8> {
        let done = self.call("Page.captureScreenshot", json!({"format": "png"}));
        decode(done["data"].as_str().expect("a picture"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It is the test's own child; if it has ended there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Base64.
fn decode(text: &str) -> Vec<u8> {
    let (mut out, mut word, mut bits) = (Vec::new(), 0u32, 0);
    for c in text.bytes() {
        let digit = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        word = word << 6 | u32::from(digit);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((word >> bits) as u8);
        }
    }
    out
}
