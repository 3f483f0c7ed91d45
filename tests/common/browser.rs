//! Debian's Chromium without a screen, driven over two pipes (`--remote-debugging-pipe`): JSON, each message ended by a zero
//! byte. The tasks of the project (`xtask`) drive it by this file too, so it needs nothing of the program.
//!
//! Source: <https://chromedevtools.github.io/devtools-protocol/>.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// Debian's program.
pub(crate) const CHROMIUM: &str = "/usr/bin/chromium";
/// How long it may take to answer: longer than anything that a page waits for.
const PATIENCE: Duration = Duration::from_secs(180);
/// What a page waits for comes within this time, ms.
const PAGE_PATIENCE_MS: u32 = 90_000;
/// It begins to read at 3 and writes to 4; on its own standard output it says nothing of use.
const WITH_PIPES: &str = r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#;

/// A browser with one page; ends with it.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    dir: PathBuf,
    session: String,
    last: u32,
}

impl Browser {
    /// Starts it with an empty page.
    pub(crate) fn start() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = format!("/tmp/picolet-browser-{}-{number}", std::process::id());
        let dir = PathBuf::from(dir);
        fs::create_dir_all(&dir).expect("directory");
        let mut child = Command::new("sh")
            .args(["-c", WITH_PIPES, "sh", CHROMIUM])
            .args([
                "--headless",
                "--remote-debugging-pipe",
                // Root has no sandbox of its kind. It sees pages of this test only.
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--no-first-run",
                "--hide-scrollbars",
                // Pictures are the same on every screen.
                "--disable-lcd-text",
                "--font-render-hinting=none",
                "--force-color-profile=srgb",
                "--lang=en-US",
            ])
            .arg(format!("--user-data-dir={}", dir.display()))
            .env("HOME", &dir)
            .env("LANGUAGE", "en_US")
            // All of its processes can be told to end.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromium");
        let to = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, from) = mpsc::channel();
        thread::spawn(move || {
            for message in answers.split(0) {
                let Ok(message) = message else { break };
                let value = serde_json::from_slice(&message).unwrap_or_default();
                if send.send(value).is_err() {
                    break;
                }
            }
        });
        let mut browser = Self {
            child,
            to,
            from,
            dir,
            session: String::new(),
            last: 0,
        };
        let made = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let target = json!({"targetId": made["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", target);
        attached["sessionId"]
            .as_str()
            .expect("a session")
            .clone_into(&mut browser.session);
        browser.call("Page.enable", json!({}));
        // A slow start opens a page of its own above this one, and a page that is hidden asks nothing.
        browser.call(
            "Emulation.setFocusEmulationEnabled",
            json!({"enabled": true}),
        );
        browser
    }

    /// Calls a method; what it answers.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        let sent = write!(self.to, "{message}\0").and_then(|()| self.to.flush());
        sent.expect("chromium listens");
        loop {
            let answer = self.from.recv_timeout(PATIENCE);
            let mut answer = answer.unwrap_or_else(|e| panic!("chromium, {method}: {e}"));
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    /// Opens a page.
    pub(crate) fn open(&mut self, url: &str) {
        let done = self.call("Page.navigate", json!({"url": url}));
        assert!(done["errorText"].is_null(), "{url}: {done}");
    }

    /// The value of an expression, once it has one if it is a promise.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut done = self.call("Runtime.evaluate", params);
        assert!(
            done["exceptionDetails"].is_null(),
            "{expression}: {}",
            done["exceptionDetails"]
        );
        done["result"]["value"].take()
    }

    /// Waits until an expression is true; for how many milliseconds.
    pub(crate) fn wait(&mut self, expression: &str) -> u64 {
        let look = format!(
            "new Promise((done) => {{ const t = performance.now(); const look = () => {{ let is = false; \
             try {{ is = ({expression}); }} catch {{}} const ms = performance.now() - t; \
             if (is) done(Math.ceil(ms)); else if (ms > {PAGE_PATIENCE_MS}) done(null); else setTimeout(look, 20); }}; look(); }})"
        );
        let took = self.eval(&look);
        took.as_u64().unwrap_or_else(|| {
            let shown = self.eval("document.body.innerText");
            panic!("not so on the page: {expression}\n{shown}")
        })
    }

    /// Has the page so many pixels, and light or dark.
    pub(crate) fn size(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// A picture of what is seen, in base64: PNG.
    pub(crate) fn picture(&mut self) -> String {
        let taken = self.call("Page.captureScreenshot", json!({"format": "png"}));
        taken["data"].as_str().expect("a picture").to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.child.wait();
        remove(&self.dir);
    }
}

/// What its last processes still write comes in between.
fn remove(dir: &Path) {
    let _ = (0..10).any(|_| fs::remove_dir_all(dir).is_ok());
}
