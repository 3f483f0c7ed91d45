//! Stands between the agent and a provider, and spoils what the provider says.

use std::{
    fs::{self, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// How it behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Honest,
    /// Every answer takes [`DELAY`].
    Slow,
    /// Takes requests, and answers when the mood is another.
    Silent,
    /// Answers 500.
    Broken,
    /// Passes everything on twice.
    Repeats,
    /// Says impossible things of all containers.
    Lies,
    /// Its lists are empty.
    Forgets,
}

/// Less than the agent waits for an answer.
const DELAY: Duration = Duration::from_secs(2);
/// Bytes of a message.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

type Shared = Arc<(Mutex<Mood>, Condvar)>;

/// See the module.
pub(crate) struct Mischief {
    socket: PathBuf,
    mood: Shared,
}

impl Mischief {
    /// Listens in `dir` for the provider at `real`; ends with the process.
    pub(crate) fn start(dir: &Path, real: PathBuf) -> Self {
        let socket = dir.join("between.sock");
        let listener = UnixListener::bind(&socket).expect("socket");
        fs::set_permissions(&socket, Permissions::from_mode(0o600)).expect("mode");
        let mood: Shared = Arc::new((Mutex::new(Mood::Honest), Condvar::new()));
        let shared = Arc::clone(&mood);
        thread::spawn(move || {
            for peer in listener.incoming().map_while(Result::ok) {
                let (shared, real) = (Arc::clone(&shared), real.clone());
                // Either side may go at any time.
                thread::spawn(move || answer(peer, &real, &shared));
            }
        });
        Self { socket, mood }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn set(&self, mood: Mood) {
        *self.mood.0.lock().expect("mood") = mood;
        self.mood.1.notify_all();
    }
}

fn answer(mut peer: UnixStream, real: &Path, shared: &Shared) -> io::Result<()> {
    let request = request(&mut peer)?;
    let (mood, changed) = &**shared;
    let mut now = mood.lock().expect("mood");
    let began = *now;
    match began {
        Mood::Silent => {
            now = changed
                .wait_while(now, |m| *m == Mood::Silent)
                .expect("mood")
        }
        Mood::Slow => {
            now = changed
                .wait_timeout_while(now, DELAY, |m| *m == Mood::Slow)
                .expect("mood")
                .0
        }
        _ => {}
    }
    drop(now);
    if began == Mood::Broken {
        let body = "it hurts";
        return write!(
            peer,
            "HTTP/1.1 500 Oh\r\npicolet-provider: 1\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
    }
    if began == Mood::Repeats {
        ask(real, &request)?;
    }
    let said = ask(real, &request)?;
    let spoil: fn(&mut Value) = match began {
        Mood::Forgets => |list| list["pods"] = json!([]),
        Mood::Lies => |list| {
            for pod in list["pods"].as_array_mut().into_iter().flatten() {
                pod["status"]["containers"][0]["state"] = "glowing".into();
            }
        },
        _ => return peer.write_all(&said),
    };
    let end = said.windows(4).position(|w| w == b"\r\n\r\n");
    let list = end.and_then(|at| serde_json::from_slice::<Value>(&said[at + 4..]).ok());
    match list {
        Some(mut list) if list["pods"].is_array() => {
            spoil(&mut list);
            let body = list.to_string();
            write!(
                peer,
                "HTTP/1.1 200 OK\r\npicolet-provider: 1\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
        }
        _ => peer.write_all(&said),
    }
}

/// A request, whole.
fn request(peer: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut got = Vec::new();
    let mut wanted = usize::MAX;
    while got.len() < wanted {
        let mut piece = [0; 4096];
        let n = peer.read(&mut piece)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        got.extend_from_slice(&piece[..n]);
        if let Some(end) = got.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&got[..end]).to_lowercase();
            let length = head.lines().find_map(|l| l.strip_prefix("content-length:"));
            wanted = end + 4 + length.map_or(0, |l| l.trim().parse().expect("a length"));
        }
    }
    Ok(got)
}

/// What the provider answers: it closes the connection then.
fn ask(real: &Path, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut real = UnixStream::connect(real)?;
    real.write_all(request)?;
    let mut said = Vec::new();
    real.take(MAX_BYTES).read_to_end(&mut said)?;
    Ok(said)
}
