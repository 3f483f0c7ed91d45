//! The provider of docs/provider.md, as it stands there.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

/// Where the example begins and ends.
const FENCES: (&str, &str) = ("```python\n", "```\n");

/// Signals that evict nobody: the disk of a machine that runs tests may be full.
pub(crate) const NO_THRESHOLDS: [&str; 5] = [
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
];

/// The provider, and where it keeps what.
pub(crate) struct Lamps {
    dir: PathBuf,
    child: Option<Child>,
}

impl Lamps {
    /// Starts it; its files lie in `dir`.
    pub(crate) fn start(dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("directory");
        let page = include_str!("../../docs/provider.md");
        let (_, page) = page.split_once(FENCES.0).expect("an example");
        let (example, _) = page.split_once(FENCES.1).expect("its end");
        assert!(example.lines().count() < 200, "it is to be copied");
        fs::write(dir.join("lamps.py"), example).expect("example");
        let mut lamps = Self {
            dir: dir.to_owned(),
            child: None,
        };
        lamps.begin();
        lamps
    }

    /// Starts it again.
    pub(crate) fn begin(&mut self) {
        let child = Command::new("python3")
            .arg(self.dir.join("lamps.py"))
            .arg(self.socket())
            .arg(self.file())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.expect("python3"));
    }

    /// Kills it. What it was told lies in its file.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill");
            child.wait().expect("wait");
            // Where it is, the next one listens.
            let _ = fs::remove_file(self.socket());
        }
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("lamps.sock")
    }

    /// Where it writes what it remembers.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// What it has been told and remembers.
    pub(crate) fn state(&self) -> Value {
        let text = fs::read(self.file()).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or(Value::Null)
    }

    /// Writes what it remembers, while it does not run.
    pub(crate) fn remember(&self, state: &Value) {
        assert!(self.child.is_none(), "it runs");
        fs::write(self.file(), state.to_string()).expect("state");
    }

    /// UIDs and names of its pods.
    pub(crate) fn pods(&self) -> Vec<(String, String)> {
        let state = self.state();
        let pods = state["pods"].as_object().cloned().unwrap_or_default();
        let name = |pod: &Value| pod["told"]["name"].as_str().unwrap_or("").to_owned();
        let pods = pods.iter().map(|(uid, pod)| (uid.clone(), name(pod)));
        pods.collect()
    }
}

impl Drop for Lamps {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A container that is a lamp.
pub(crate) fn lamp(name: &str, code: Option<u8>) -> Value {
    let mut command = vec!["blink".to_owned()];
    command.extend(
        code.iter()
            .flat_map(|code| ["0.2".into(), code.to_string()]),
    );
    json!({"name": name, "image": "none", "command": command})
}
