//! The kubectls that tests find, and what they are asked.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use crate::host::text;

/// The first minor version of 1 that is asked for WebSocket by the variables below.
const FIRST_WITH_CHOICE: u32 = 30;
/// The first minor version that makes its streams before it reads from a WebSocket.
///
/// An older one drops what a server says at once, and says so. Source: client-go `tools/remotecommand/websocket.go`, before 1.34.
const FIRST_THAT_DROPS_NOTHING: u32 = 34;
/// What an older one says then.
const DROPPED: &str = "discarding message";
/// How often a command is given to a kubectl that drops what it is told.
const TRIES: usize = 5;

/// One kubectl that speaks with one server.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    program: PathBuf,
    /// Its minor version.
    minor: u32,
    config: PathBuf,
    /// `true`: WebSocket first.
    websockets: &'static str,
}

/// Every kubectl of `$K8S_BIN` and on the path, speaking SPDY; says aloud if there is none.
pub(crate) fn kubectls(config: &Path, purpose: &str) -> Vec<Kubectl> {
    let lists = [env::var_os("K8S_BIN"), env::var_os("PATH")];
    let dirs = lists.iter().flatten().flat_map(env::split_paths);
    let mut all: Vec<Kubectl> = Vec::new();
    for program in dirs.filter_map(|dir| fs::canonicalize(dir.join("kubectl")).ok()) {
        if !all.iter().any(|k| k.program == program)
            && let Some(minor) = minor(&program)
        {
            all.push(Kubectl {
                program,
                minor,
                config: config.to_owned(),
                websockets: "false",
            });
        }
    }
    if all.is_empty() {
        skipped!("{purpose}: no kubectl in K8S_BIN or on PATH");
    }
    all
}

fn minor(program: &Path) -> Option<u32> {
    let words = ["version", "--client", "--output=json"];
    let output = Command::new(program).args(words).output().ok()?;
    let version: Value = serde_json::from_slice(&output.stdout).ok()?;
    let minor = version.pointer("/clientVersion/minor")?.as_str()?;
    // "20+" is one of a vendor.
    minor.trim_end_matches('+').parse().ok()
}

impl Kubectl {
    /// Itself, and itself speaking WebSocket where it can be told to.
    pub(crate) fn protocols(&self) -> Vec<Self> {
        let websockets = Self {
            websockets: "true",
            ..self.clone()
        };
        let mut both = vec![self.clone(), websockets];
        both.truncate(if self.minor < FIRST_WITH_CHOICE { 1 } else { 2 });
        both
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("KUBECONFIG", &self.config)
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", self.websockets)
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", self.websockets)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        for _ in 1..TRIES {
            let output = self.once(words);
            if self.minor >= FIRST_THAT_DROPS_NOTHING || !text(&output.stderr).contains(DROPPED) {
                return output;
            }
            eprintln!(
                "kubectl 1.{} dropped words of the server: {words:?} is said again",
                self.minor
            );
        }
        self.once(words)
    }

    fn once(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("kubectl")
    }

    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(
            output.status.success(),
            "{self:?} {words:?}: {}",
            text(&output.stderr)
        );
        text(&output.stdout)
    }
}
