//! A Chromium without a window, told what to do by the DevTools protocol over a pipe: a command is a line of JSON, so are its answer and the
//! events before it. The few methods of this test do not need a crate with all of the protocol's types, which compiles for a minute.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Longer than any answer takes, on a machine that does other things, too.
const LONG: Duration = Duration::from_secs(60);

/// A browser with one tab.
pub(crate) struct Chromium {
    process: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    commanded: u64,
    session: Option<String>,
    events: Vec<Event>,
}

/// What the tab told by itself.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// E.g. `Network.requestWillBeSent`.
    pub method: String,
    pub params: Value,
}

fn program() -> PathBuf {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let folders: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let candidates = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    candidates.into_iter().find(|path| path.is_file()).expect(
        "the report is tested in a browser: install Debian's package `chromium`, or run `scripts/test`, which does",
    )
}

impl Chromium {
    /// Starts one that keeps its files in a folder.
    pub(crate) fn start(folder: &Path) -> Self {
        // Chromium reads commands from descriptor 3 and answers on 4.
        let mut process = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null"#])
            .arg(program())
            .args(["--headless", "--remote-debugging-pipe", "--no-sandbox", "--window-size=1200,900"])
            .args(["--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .arg(format!("--user-data-dir={}", folder.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        let commands = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in answers.split(0) {
                let message = message.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
                let Some(message) = message else { break };
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let mut browser =
            Self { process, commands, messages, commanded: 0, session: None, events: Vec::new() };
        let tab = browser.command("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": tab["targetId"], "flatten": true});
        let session = browser.command("Target.attachToTarget", attach);
        browser.session = Some(session["sessionId"].as_str().expect("a session").to_owned());
        browser
    }

    fn next(&mut self) -> Value {
        let message = self.messages.recv_timeout(LONG).expect("chromium answers");
        if let (Some(method), Some(params)) = (message["method"].as_str(), message.get("params")) {
            self.events.push(Event { method: method.to_owned(), params: params.clone() });
        }
        message
    }

    /// Gives a command and returns its result.
    pub(crate) fn command(&mut self, method: &str, params: Value) -> Value {
        self.commanded += 1;
        let mut command = json!({"id": self.commanded, "method": method, "params": params});
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).expect("chromium listens");
        loop {
            let message = self.next();
            if message["id"] == self.commanded {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
        }
    }

    /// Waits for an event that is yet to come or has come since the start.
    pub(crate) fn wait_for(&mut self, method: &str) {
        while !self.events.iter().any(|event| event.method == method) {
            self.next();
        }
    }

    /// The value of a script.
    pub(crate) fn evaluate(&mut self, script: &str) -> Value {
        let result = self.command("Runtime.evaluate", json!({"expression": script, "returnByValue": true}));
        assert!(result["exceptionDetails"].is_null(), "{script}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// All events until now.
    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
