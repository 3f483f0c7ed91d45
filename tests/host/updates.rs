//! Nodes that update themselves by a signed channel, under pods: what they take, what they refuse, what they go back from.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use picolet::api::WallTime;
use picolet::sys::clock;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::host::{self, Host, pause, sh, text};
use crate::upgrade::Board;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// As releases call this machine.
const BOARD: &str = std::env::consts::ARCH;
/// What a public key for Ed25519 begins with in DER. Source: RFC 8410, section 4.
const DER_HEAD: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
/// An agent starts, looks after a while, and replaces itself: on a busy machine with pauses between.
const LONG: core::time::Duration = core::time::Duration::from_secs(420);

fn key() -> Ed25519KeyPair {
    let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("key");
    Ed25519KeyPair::from_pkcs8(der.as_ref()).expect("key")
}

/// A directory with a channel, and the key that it is signed by.
struct Channel {
    dir: PathBuf,
    key: Ed25519KeyPair,
}

impl Channel {
    fn new(host: &Host) -> Self {
        let dir = host.path("channel");
        fs::create_dir_all(&dir).expect("directory");
        Self { dir, key: key() }
    }

    /// The line of its public key.
    fn public(&self) -> String {
        STANDARD.encode([DER_HEAD, self.key.public_key().as_ref()].concat())
    }

    /// Offers a program; `change` is made before it is signed.
    fn offer(&self, serial: u64, version: &str, program: &Path, change: impl FnOnce(&mut Value)) {
        let base = format!("picolet-{version}-{BOARD}");
        let tree = self.dir.join("tree");
        fs::create_dir_all(tree.join(&base)).expect("directory");
        fs::copy(program, tree.join(&base).join("picolet")).expect("copied");
        let tarball = self.dir.join(format!("{base}.tar.gz"));
        let packed = Command::new("tar")
            .arg("-czf")
            .arg(&tarball)
            .arg("-C")
            .arg(&tree)
            .arg(&base)
            .status();
        assert!(packed.is_ok_and(|s| s.success()), "tar");
        fs::remove_dir_all(tree).expect("removed");
        let sum = Command::new("sha256sum")
            .arg(&tarball)
            .output()
            .expect("sha256sum");
        let mut offer = json!({
            "name": "picolet", "version": version, "arch": BOARD, "serial": serial,
            "size": fs::metadata(&tarball).expect("tarball").len(),
            "sha256": text(&sum.stdout).split(' ').next(),
        });
        change(&mut offer);
        self.sign(&offer, &self.key);
    }

    fn sign(&self, offer: &Value, key: &Ed25519KeyPair) {
        let bytes = offer.to_string();
        fs::write(self.dir.join("channel.json"), &bytes).expect("written");
        let signature = key.sign(bytes.as_bytes());
        fs::write(self.dir.join("channel.json.sig"), signature).expect("written");
    }

    /// Lays it out as an artefact of a registry that a [`Site`] can serve, without what is called `without`; the blob of `spoiled`
    /// has other bytes.
    fn push(&self, without: &str, spoiled: &str) {
        let root = self.dir.join("v2/picolet/stable");
        let _ = fs::remove_dir_all(&root);
        let (blobs, manifests) = (root.join("blobs"), root.join("manifests"));
        fs::create_dir_all(&blobs).expect("directory");
        fs::create_dir_all(&manifests).expect("directory");
        let mut layers = Vec::new();
        for entry in fs::read_dir(&self.dir).expect("directory").flatten() {
            let title = text(entry.file_name().as_encoded_bytes());
            if entry.path().is_dir() || title == without {
                continue;
            }
            let mut bytes = fs::read(entry.path()).expect("file");
            let hex = Sha256::digest(&bytes);
            let hex: String = hex.iter().map(|byte| format!("{byte:02x}")).collect();
            let digest = format!("sha256:{hex}");
            if title == spoiled {
                bytes[0] ^= 1;
            }
            fs::write(blobs.join(&digest), &bytes).expect("blob");
            layers.push(json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest,
                "size": bytes.len(), "annotations": {"org.opencontainers.image.title": title},
            }));
        }
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": "application/vnd.picolet.release.v1", "layers": layers,
            "config": {"mediaType": "application/vnd.oci.empty.v1+json"},
        });
        fs::write(manifests.join("latest"), manifest.to_string()).expect("manifest");
    }

    fn offered(&self) -> Value {
        let bytes = fs::read(self.dir.join("channel.json")).expect("offer");
        serde_json::from_slice(&bytes).expect("offer")
    }
}

/// A server of the directory. The first answer with a tarball ends in its midst.
struct Site {
    address: SocketAddr,
    inner: Arc<Inner>,
    thread: Option<thread::JoinHandle<()>>,
}

struct Inner {
    dir: PathBuf,
    /// Paths that were asked for, and from which byte on.
    asked: Mutex<Vec<(String, usize)>>,
    /// Whoever holds it has tarballs wait.
    gate: Mutex<()>,
    ends: AtomicBool,
}

impl Site {
    fn of(dir: &Path) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listener");
        let address = listener.local_addr().expect("address");
        let inner = Arc::new(Inner {
            dir: dir.into(),
            asked: Mutex::default(),
            gate: Mutex::default(),
            ends: AtomicBool::new(false),
        });
        let shared = Arc::clone(&inner);
        let thread = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.ends.load(Ordering::SeqCst) {
                    return;
                }
                let _ = shared.answer(&stream);
            }
        });
        Self {
            address,
            inner,
            thread: Some(thread),
        }
    }

    fn asked(&self) -> Vec<(String, usize)> {
        let asked = self.inner.asked.lock();
        asked.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Inner {
    fn answer(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let path = first
            .split(' ')
            .nth(1)
            .unwrap_or("")
            .trim_start_matches('/');
        let mut from = 0;
        while let Some(line) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
            if let Some(range) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
                from = range.trim_end_matches('-').parse().expect("a range");
            }
        }
        let Ok(bytes) = fs::read(self.dir.join(path)) else {
            return stream
                .write_all(b"HTTP/1.1 404 x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        };
        let is_first = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let is_first = !asked.iter().any(|(other, _)| other == path);
            asked.push((path.to_owned(), from));
            is_first
        };
        let is_tarball = path.ends_with(".gz") || bytes.starts_with(&[0x1f, 0x8b]);
        if is_tarball {
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let all = bytes.len();
        let (status, range) = match from {
            0 => (200, String::new()),
            from => (
                206,
                format!("content-range: bytes {from}-{}/{all}\r\n", all - 1),
            ),
        };
        let length = all - from;
        write!(
            stream,
            "HTTP/1.1 {status} x\r\nconnection: close\r\n{range}content-length: {length}\r\n\r\n"
        )?;
        let ends_early = is_first && is_tarball;
        let end = if ends_early { from + length / 3 } else { all };
        stream.write_all(&bytes[from..end])
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.inner.ends.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A board with a configuration file that says nothing yet.
fn board() -> Board {
    let mut host = Host::new(&[]);
    host.flags.push("--config".into());
    host.flags
        .push(host.path("config.yaml").display().to_string());
    configure(&host, &json!({}));
    Board::start_on(host, 3)
}

fn configure(host: &Host, own: &Value) {
    let document = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "picolet": own,
        // However full the disk of this machine is.
        "evictionHard": {"memory.available": "1Mi"},
    });
    fs::write(host.path("config.yaml"), document.to_string()).expect("written");
}

/// Looks at once, in any window.
fn update(board: &Board, source: &str, key: &str) -> Value {
    let restart = format!("kill $(cat {})", board.host.path("agent.pid").display());
    json!({"update": {
        "source": source, "keys": [key], "trustClock": true, "spread": "0s", "restart": restart,
    }})
}

/// A window that is closed: of neither today nor yesterday, by UTC.
fn closed() -> Value {
    let today = Command::new("date").args(["-u", "+%u"]).output();
    let today = text(&today.expect("date").stdout);
    let today: usize = today.trim().parse().expect("a day");
    let days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    json!({"days": [days[(today + 2) % 7]]})
}

/// `picolet update`, by the installed program.
fn command(board: &Board, words: &[&str]) -> Command {
    let mut command = Command::new(board.file(""));
    command
        .arg("update")
        .args(words)
        .env("PICOLET_SOCKET", board.host.path("run/picolet.sock"))
        .stdin(Stdio::null());
    command
}

/// What it says, and how it ends.
fn says(board: &Board, words: &[&str], code: i32, says: &str) {
    let output = command(board, words).output().expect("picolet");
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    assert!(said.contains(says), "{words:?}: {said}");
}

fn in_time(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = clock::mono_now() + LONG;
    while !holds() {
        assert!(clock::mono_now() < deadline, "{what}");
        pause(core::time::Duration::from_millis(200));
    }
}

fn restart_agent(board: &Board) {
    let before = board.agent().expect("an agent");
    kill(Pid::from_raw(before), Signal::SIGTERM).expect("kill");
    in_time("another agent", || {
        board.agent().is_some_and(|pid| pid != before)
    });
    board.answers();
}

fn has_event(board: &Board, reason: &str, part: &str) -> bool {
    let events = board.host.cli(&["get", "events", "-A", "-o", "json"]);
    let events: Value = serde_json::from_slice(&events.stdout).unwrap_or_default();
    let mut events = events["items"].as_array().into_iter().flatten();
    events.any(|e| e["reason"] == reason && e["message"].as_str().is_some_and(|m| m.contains(part)))
}

// UPD-01 UPD-02 UPD-05 UPD-07 UPD-08 PKG-26 METER-02
#[test]
fn a_node_updates_itself_in_its_window() {
    if !host::able() {
        return;
    }
    let board = board();
    let channel = Channel::new(&board.host);
    says(&board, &["--status"], 1, "set picolet.update.source");
    let good = board.good("two");
    channel.offer(5, VERSION, &good, |offer| offer["share"] = 0.into());
    let site = Site::of(&channel.dir);
    let source = format!("http://{}/channel.json", site.address);
    let mut own = update(&board, &source, &channel.public());

    own["update"]["window"] = closed();
    configure(&board.host, &own);
    says(
        &board,
        &["--look"],
        75,
        "no update now: the window is closed",
    );
    assert!(site.asked().is_empty(), "nobody was asked");
    // Where bytes cost money.
    own["update"]["window"] = json!({});
    own["metered"] = true.into();
    configure(&board.host, &own);
    says(&board, &["--look"], 75, "no update now: bytes cost money");
    assert!(site.asked().is_empty(), "nobody was asked");
    own["metered"] = false.into();
    // Others first.
    configure(&board.host, &own);
    says(
        &board,
        &["--look"],
        0,
        "serial 5 is not offered to this node yet: its share is 0 %",
    );
    assert!(board.runs(&board.first()));
    // While images wait for the budget of the link. What a directory has does not come over it.
    let asked = site.asked().len();
    let link = json!({"dailyBytes": "50M"});
    configure(&board.host, &json!({"link": link}));
    let none = [[0; 2]; 7];
    let used = json!({"v": 1, "used": 45_000_000, "bytes": none});
    let record = board.host.path("root/link-budget.json");
    fs::write(record, used.to_string()).expect("written");
    restart_agent(&board);
    let mut limited = own.clone();
    limited["link"] = link;
    configure(&board.host, &limited);
    let waits = "no update now: images wait for bytes of the link";
    says(&board, &["--look"], 75, waits);
    assert_eq!(site.asked().len(), asked, "nobody was asked");
    limited["update"]["source"] = channel.dir.display().to_string().into();
    configure(&board.host, &limited);
    let others = "serial 5 is not offered to this node yet: its share is 0 %";
    says(&board, &["--look"], 0, others);
    configure(&board.host, &own);

    // The agent by itself, over a link that breaks once. What it had of it before is of something else.
    channel.offer(5, VERSION, &good, |_| ());
    let offer = channel.offered();
    let sum = offer["sha256"].as_str().expect("a sum");
    let part = board.host.path(&format!("root/update/{sum}.part"));
    fs::write(part, "something").expect("written");
    restart_agent(&board);
    in_time("it updates itself", || {
        board.runs(&good) && !board.file(".trial").exists()
    });
    board.nobody_noticed();
    let asked = site.asked();
    assert!(
        asked
            .iter()
            .any(|(path, from)| path.ends_with(".gz") && *from > 9),
        "{asked:?}"
    );
    let of_tarball = asked.iter().filter(|(path, _)| path.ends_with(".gz"));
    let begun: Vec<usize> = of_tarball.map(|(_, from)| *from).collect();
    assert_eq!((begun[0], begun[begun.len() - 1]), (9, 0), "{begun:?}");
    says(&board, &["--status"], 0, "serial     5\n");
    // The new agent has looked, and is done for this window.
    let looked = || board.host.agent_log().contains("serial 5 is installed");
    in_time("the new agent looks", looked);
    let endless = "serial 5 is installed, and the channel file does not say when it expires";
    says(&board, &["--look"], 0, endless);

    // Refused, each by reason, and nothing but the staging is written.
    let other = board.good("three");
    channel.offer(6, VERSION, &other, |_| ());
    let offer = channel.offered();
    channel.sign(&offer, &key());
    let foreign = "update refused: the channel file is not signed by a key of picolet.update.keys";
    says(&board, &["--look"], 1, foreign);
    says(&board, &["--now", "--force"], 1, foreign);
    // One whose time has passed is not even read further.
    let mut expired = offer.clone();
    expired["expires"] = "2001-01-01T00:00:00Z".into();
    expired["serial"] = 4.into();
    channel.sign(&expired, &channel.key);
    let old = "update refused: the channel file expired at 2001-01-01T00:00:00Z";
    says(&board, &["--look"], 76, old);
    says(&board, &["--now"], 76, old);
    let changes: [(&str, Value, &str); 4] = [
        (
            "serial",
            4.into(),
            "update refused: serial 4 is lower than 5",
        ),
        (
            "arch",
            "vax".into(),
            "update refused: serial 6 is for vax, this node is",
        ),
        (
            "sha256",
            "0".repeat(64).into(),
            "does not match its checksum",
        ),
        ("version", "9.9.9".into(), "no update now: "),
    ];
    for (field, value, why) in changes {
        let mut changed = offer.clone();
        changed[field] = value;
        channel.sign(&changed, &channel.key);
        let code = if why.starts_with("no update now") {
            75
        } else {
            1
        };
        says(&board, &["--look"], code, why);
        assert!(board.runs(&good) && !board.file(".new").exists(), "{field}");
    }
    // A tarball that is what is said, of another version.
    let mut changed = offer.clone();
    changed["version"] = "9.9.9".into();
    changed["url"] = format!("picolet-{VERSION}-{BOARD}.tar.gz").into();
    channel.sign(&changed, &channel.key);
    says(&board, &["--look"], 1, "cannot unpack picolet-9.9.9-");
    // And one whose tarball is called as is said: once it was looked at, it is not fetched again.
    channel.offer(6, "9.9.9", &other, |_| ());
    let another = format!("serial 6 says it is {VERSION}, its channel says 9.9.9");
    says(&board, &["--look"], 1, &another);
    let tarballs = || {
        site.asked()
            .iter()
            .filter(|(path, _)| path.ends_with(".gz"))
            .count()
    };
    let fetched = tarballs();
    let another = "serial 6 is of another version than its channel says";
    says(&board, &["--look"], 1, another);
    assert_eq!(tarballs(), fetched);
    board.nobody_noticed();

    // A pod came meanwhile: what was fetched stays for the next look.
    channel.sign(&offer, &channel.key);
    let gate = site.inner.gate.lock().expect("gate");
    let look = command(&board, &["--look"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let look = look.expect("picolet");
    in_time("the tarball is asked for", || tarballs() > fetched);
    let absent = json!({"name": "main", "image": "absent:1", "imagePullPolicy": "Never"});
    board.host.pod("late", json!({"containers": [absent]}));
    let is_moving = |pod: &Value| pod["status"]["startTime"].is_string();
    board.host.wait_pod("late", "it is taken on", is_moving);
    drop(gate);
    let said = look.wait_with_output().expect("picolet");
    let text_said = text(&said.stderr);
    assert!(
        said.status.code() == Some(75) && text_said.contains("pods start or end: 1"),
        "{text_said}"
    );
    let fetched = tarballs();
    board.host.remove("late.yaml");
    board.host.wait_gone("late");
    let again = board.host.path("root/update");
    let parts = fs::read_dir(again).expect("directory").flatten();
    let parts = parts.filter(|e| e.path().extension().is_some_and(|end| end == "part"));
    assert_eq!(parts.count(), 1);
    says(&board, &["--look"], 0, "serial 6 stays");
    assert!(board.runs(&other));
    assert_eq!(tarballs(), fetched, "it was here");
    board.nobody_noticed();

    // The agent tells it, once.
    channel.sign(&offer, &key());
    restart_agent(&board);
    in_time("it is told", || {
        has_event(&board, "UpdateRefused", "is not signed by a key")
    });
    assert!(board.runs(&other));
    board.nobody_noticed();
    board.finish();
}

// UPD-01 UPD-02 UPD-07
#[test]
fn a_registry_has_the_channel() {
    if !host::able() {
        return;
    }
    let board = board();
    let channel = Channel::new(&board.host);
    let good = board.good("two");
    channel.offer(5, VERSION, &good, |_| ());
    let offer = channel.offered();
    let site = Site::of(&channel.dir);
    let source = format!("oci://{}/picolet/stable", site.address);
    let mut own = update(&board, &source, &channel.public());
    own["update"]["window"] = closed();
    own["metered"] = true.into();
    configure(&board.host, &own);
    let shown = format!("source     {source}:latest\n");
    says(&board, &["--status"], 0, &shown);
    says(
        &board,
        &["--look"],
        75,
        "no update now: the window is closed",
    );
    own["update"]["window"] = json!({});
    configure(&board.host, &own);
    says(&board, &["--look"], 75, "no update now: bytes cost money");
    assert!(site.asked().is_empty(), "nobody was asked");
    own["update"]["window"] = closed();
    own["metered"] = false.into();
    configure(&board.host, &own);

    // Each refused by itself, and nothing of a tarball is on the disk.
    let tarball = format!("picolet-{VERSION}-{BOARD}.tar.gz");
    let none = "/v2/picolet/stable/manifests/latest answers 404";
    says(&board, &["--now"], 75, none);
    let refuses = |why: &str| says(&board, &["--now"], 1, &format!("update refused: {why}"));
    let name = format!("{}/picolet/stable:latest", site.address);
    for missing in ["channel.json", "channel.json.sig", &tarball] {
        channel.push(missing, "");
        refuses(&format!("{name} has no file {missing:?}"));
    }
    channel.push("", "channel.json");
    refuses(&format!("{name}: "));
    channel.sign(&offer, &key());
    channel.push("", "");
    refuses("the channel file is not signed by a key of picolet.update.keys");
    let mut other = offer.clone();
    other["sha256"] = "0".repeat(64).into();
    channel.sign(&other, &channel.key);
    channel.push("", "");
    refuses(&format!(
        "{tarball:?} in the registry is not the released file: it has digest sha256:"
    ));
    let parts = fs::read_dir(board.host.path("root/update")).expect("directory");
    let names: Vec<_> = parts.flatten().map(|entry| entry.file_name()).collect();
    assert!(
        !names
            .iter()
            .any(|name| text(name.as_encoded_bytes()).ends_with(".part")),
        "{names:?}"
    );
    let blob = format!("blobs/sha256:{}", offer["sha256"].as_str().expect("a sum"));
    let tarballs = || {
        let asked = site.asked();
        let of_blob = asked.iter().filter(|(path, _)| path.ends_with(&blob));
        of_blob.map(|(_, from)| *from).collect::<Vec<_>>()
    };
    assert!(tarballs().is_empty());
    assert!(board.runs(&board.first()));

    // The link breaks once; then it is taken.
    channel.sign(&offer, &channel.key);
    channel.push("", "");
    says(&board, &["--now"], 0, "serial 5 stays");
    assert!(board.runs(&good));
    let begun = tarballs();
    assert!(begun.len() == 2 && begun[1] > 0, "{begun:?}");
    says(&board, &["--now"], 0, "serial 5 is installed");
    // A lower one is not; nor are other bytes than the registry promised.
    let mut lower = offer.clone();
    lower["serial"] = 4.into();
    channel.sign(&lower, &channel.key);
    channel.push("", "");
    refuses("serial 4 is lower than 5");
    channel.offer(6, VERSION, &board.good("three"), |_| ());
    channel.push("", &tarball);
    refuses(&format!("{name}: "));
    assert!(board.runs(&good));
    board.nobody_noticed();
    board.finish();
}

// UPD-02 UPD-05 UPD-06 UPD-08 PKG-26
#[test]
fn what_is_not_healthy_is_barred() {
    if !host::able() {
        return;
    }
    let board = board();
    let channel = Channel::new(&board.host);
    let source = channel.dir.display().to_string();
    // The agent does not look by itself meanwhile.
    let mut own = update(&board, &source, &channel.public());
    own["update"]["window"] = closed();
    configure(&board.host, &own);
    says(&board, &["--now"], 75, "no update now: cannot open");
    let other = fs::File::open(board.host.path("root/update")).expect("directory");
    other.lock().expect("locked");
    let busy = "no update now: another look for updates is running";
    says(&board, &["--now"], 75, busy);
    drop(other);
    channel.offer(6, "99.0.0", &board.double(0), |_| ());
    // Somebody upgrades by hand: that passes.
    let program = fs::File::open(board.file("")).expect("program");
    program.lock().expect("locked");
    let busy = "no update now: another upgrade is running";
    says(&board, &["--now"], 75, busy);
    drop(program);
    says(
        &board,
        &["--now"],
        1,
        "the old program is back: 99.0.0 it did not become healthy",
    );
    assert!(board.runs(&board.first()));
    board.nobody_noticed();
    says(&board, &["--status"], 0, "put back   serial 6\n");
    let barred = "update refused: serial 6 was put back before";
    says(&board, &["--now"], 1, barred);
    board.host.until("it is told", |host| {
        let events = host.ok(&["get", "events", "-A"]);
        (events.contains("UpgradeUndone"), events)
    });
    // The next one is taken, and is what is offered from then on.
    let good = board.good("two");
    channel.offer(7, VERSION, &good, |_| ());
    says(&board, &["--now"], 0, "serial 7 stays");
    assert!(board.runs(&good));
    board.nobody_noticed();
    // A look that was killed has left a program.
    fs::write(board.file(".new"), "half").expect("written");
    says(&board, &["--now"], 0, "serial 7 is installed");
    assert!(!board.file(".new").exists());
    says(
        &board,
        &["--status"],
        0,
        "serial     7\nput back   serial 6\n",
    );
    // A lower one by force alone.
    let other = board.good("three");
    channel.offer(3, VERSION, &other, |_| ());
    says(
        &board,
        &["--now"],
        1,
        "update refused: serial 3 is lower than 7",
    );
    says(&board, &["--now", "--force"], 0, "serial 3 stays");
    assert!(board.runs(&other));
    // Somebody has put another program in its place: what has the serial of before is taken.
    let first = board.host.path("by-hand");
    fs::copy(board.first(), &first).expect("copied");
    fs::rename(first, board.file("")).expect("replaced");
    restart_agent(&board);
    says(&board, &["--now"], 0, "serial 3 stays");
    assert!(board.runs(&other));
    board.nobody_noticed();
    board.finish();
}

// UPD-07
#[test]
fn a_pod_that_is_slow_to_end_says_since_when_it_ends() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    let stubborn = sh("main", "trap '' TERM; while :; do sleep 1; done");
    let spec = json!({"terminationGracePeriodSeconds": 20, "containers": [stubborn]});
    host.pod("stubborn", spec);
    host.wait_phase("stubborn", "Running");
    host.remove("stubborn.yaml");
    let ends = |pod: &Value| WallTime::parse(pod["metadata"]["deletionTimestamp"].as_str()?);
    let pod = host.wait_pod("stubborn", "it ends", |pod| ends(pod).is_some());
    let first = ends(&pod).expect("a time");
    let mut last = first;
    host.until("some seconds pass", |host| {
        // On a slow machine it may have ended by now.
        last = ends(&host.get("stubborn")).unwrap_or(last);
        let passed = clock::wall_now().unix_seconds() - first.unix_seconds();
        (passed > 4, passed.to_string())
    });
    // By two clocks, which are cut to seconds.
    assert!(
        last.unix_seconds().abs_diff(first.unix_seconds()) <= 1,
        "{first} {last}"
    );
    host.wait_gone("stubborn");
    host.finish();
}
