//! The client against a double of the bus, which has an encoder of its own, and against the real daemon where there is one.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
};

use super::*;
use crate::{api::cri::LinuxResources, bus::logind::Places};
use crate::{bus::logind::Inhibitor, cgroup::Slices, sys::lane::Lane};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the double does when a method is called.
#[derive(Clone)]
enum Reply {
    /// Returns with a body of this signature.
    Return(&'static str, Vec<u8>),
    /// Returns with a descriptor beside it: the end of a pipe.
    Lock,
    /// Fails with this name and text.
    Fail(&'static str, &'static str),
    /// A job: signals of others, then its own with this result.
    Job(&'static str),
    /// Bytes as they are.
    Raw(Vec<u8>),
    /// Nothing, and the end of the connection.
    Close,
    /// Nothing at all.
    Hang,
}

#[derive(Clone, Debug)]
struct Call {
    member: String,
    /// The whole message.
    bytes: Vec<u8>,
}

impl Call {
    fn has(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        self.bytes.windows(bytes.len()).any(|part| part == bytes)
    }
}

type Script = Arc<Mutex<Box<dyn FnMut(&Call) -> Reply + Send>>>;

struct Double {
    path: PathBuf,
    calls: Arc<Mutex<Vec<Call>>>,
    /// The last connection.
    peer: Arc<Mutex<Option<UnixStream>>>,
    /// Whoever holds a lock that was given out: the other end of its pipe.
    locks: mpsc::Receiver<io::PipeReader>,
}

/// A text as it is marshalled, at a place that is aligned to 4.
fn text(text: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len())
        .expect("short")
        .to_le_bytes()
        .to_vec();
    bytes.extend(text.as_bytes());
    bytes.push(0);
    bytes
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    while !bytes.len().is_multiple_of(to) {
        bytes.push(0);
    }
}

/// A message: its kind, the header fields as (code, signature, value), signature and body.
fn message(kind: u8, fields: &[(u8, &str, Vec<u8>)], signature: &str, body: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut own = vec![u8::try_from(signature.len()).expect("short")];
    own.extend(signature.as_bytes());
    own.push(0);
    let own = [(8, "g", own)];
    for (code, kind, value) in fields.iter().chain(&own) {
        pad(&mut all, 8);
        all.extend([*code, 1, kind.as_bytes()[0], 0]);
        all.extend(value);
    }
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_le_bytes();
    let mut message = vec![b'l', kind, 1, 1];
    message.extend(length(body));
    message.extend(7_u32.to_le_bytes());
    message.extend(length(&all));
    message.extend(all);
    pad(&mut message, 8);
    message.extend(body);
    message
}

fn signal(member: &str, signature: &str, body: &[u8]) -> Vec<u8> {
    let fields = [
        (1, "o", text("/org/freedesktop/systemd1")),
        (2, "s", text("org.freedesktop.systemd1.Manager")),
        (3, "s", text(member)),
    ];
    message(wire::SIGNAL, &fields, signature, body)
}

/// `JobRemoved`
fn job_removed(job: &str, result: &str) -> Vec<u8> {
    let mut body = 9_u32.to_le_bytes().to_vec();
    for part in [job, "kubepods.slice", result] {
        pad(&mut body, 4);
        body.extend(text(part));
    }
    signal("JobRemoved", "uoss", &body)
}

fn shutdown(begins: bool) -> Vec<u8> {
    signal("PrepareForShutdown", "b", &u32::from(begins).to_le_bytes())
}

/// Reads a call, and how the client may be answered.
fn read_call(stream: &mut UnixStream) -> Option<(Call, u32)> {
    let mut bytes = vec![0; wire::FIXED];
    stream.read_exact(&mut bytes).ok()?;
    let fixed = core::array::from_fn(|n| bytes[n]);
    let (header, whole) = wire::lengths(&fixed).expect("a header");
    bytes.resize(whole, 0);
    stream.read_exact(&mut bytes[wire::FIXED..]).ok()?;
    let serial = u32::from_le_bytes(core::array::from_fn(|n| bytes[8 + n]));
    let member = Message::read(&bytes, header).expect("a message").member;
    Some((Call { member, bytes }, serial))
}

/// Plays the other side of one connection.
fn serve(
    mut stream: UnixStream,
    calls: &Mutex<Vec<Call>>,
    script: &Script,
    locks: &mpsc::Sender<io::PipeReader>,
) {
    let mut greeting = Vec::new();
    while !greeting.ends_with(b"BEGIN\r\n") {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        greeting.push(byte[0]);
    }
    assert!(greeting.starts_with(b"\0AUTH EXTERNAL "));
    let _ = stream.write_all(b"OK 0123456789abcdef\r\nAGREE_UNIX_FD\r\n");
    while let Some((call, serial)) = read_call(&mut stream) {
        calls.lock().expect("calls").push(call.clone());
        let to = (5, "u", serial.to_le_bytes().to_vec());
        let reply = (script.lock().expect("script"))(&call);
        let sent = match reply {
            Reply::Return(signature, body) => {
                stream.write_all(&message(wire::RETURN, &[to], signature, &body))
            }
            Reply::Fail(name, said) => {
                let fields = [to, (4, "s", text(name))];
                stream.write_all(&message(wire::ERROR, &fields, "s", &text(said)))
            }
            Reply::Job(result) => {
                let mut all = job_removed("/job/8", "failed");
                all.extend(message(wire::RETURN, &[to], "o", &text("/job/9")));
                all.extend(signal(
                    "UnitNew",
                    "so",
                    &[text("a.scope"), vec![0; 2], text("/u")].concat(),
                ));
                all.extend(job_removed("/job/9", result));
                stream.write_all(&all)
            }
            Reply::Lock => {
                let (reader, writer) = io::pipe().expect("pipe");
                let answer = message(
                    wire::RETURN,
                    &[to, (9, "u", vec![1, 0, 0, 0])],
                    "h",
                    &[0; 4],
                );
                let fds = [std::os::fd::AsRawFd::as_raw_fd(&writer)];
                let rights = [nix::sys::socket::ControlMessage::ScmRights(&fds)];
                let parts = [io::IoSlice::new(&answer)];
                let fd = std::os::fd::AsRawFd::as_raw_fd(&stream);
                let flags = nix::sys::socket::MsgFlags::empty();
                nix::sys::socket::sendmsg::<()>(fd, &parts, &rights, flags, None).expect("send");
                let _ = locks.send(reader);
                Ok(())
            }
            Reply::Raw(bytes) => stream.write_all(&bytes),
            // A clone of it is kept.
            Reply::Close => stream.shutdown(std::net::Shutdown::Both),
            Reply::Hang => Ok(()),
        };
        if sent.is_err() {
            return;
        }
    }
}

impl Double {
    fn new(script: impl FnMut(&Call) -> Reply + Send + 'static) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("picolet-bus-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).expect("bind");
        let (send_lock, locks) = mpsc::channel();
        let double = Self {
            path,
            calls: Arc::default(),
            peer: Arc::default(),
            locks,
        };
        let (calls, peer) = (Arc::clone(&double.calls), Arc::clone(&double.peer));
        let script: Script = Arc::new(Mutex::new(Box::new(script)));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                *peer.lock().expect("peer") = stream.try_clone().ok();
                serve(stream, &calls, &script, &send_lock);
            }
        });
        double
    }

    fn slices(&self) -> Slices {
        Slices::at(&self.path, Lane::inline())
    }

    fn members(&self) -> Vec<String> {
        let calls = self.calls.lock().expect("calls");
        calls.iter().map(|call| call.member.clone()).collect()
    }

    fn call(&self, member: &str) -> Call {
        let calls = self.calls.lock().expect("calls");
        let mut all = calls.iter().rev();
        all.find(|call| call.member == member)
            .cloned()
            .expect(member)
    }

    /// Tells whoever is connected.
    fn tell(&self, bytes: &[u8]) {
        let peer = self.peer.lock().expect("peer");
        peer.as_ref()
            .expect("a peer")
            .write_all(bytes)
            .expect("tell");
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn limits() -> LinuxResources {
    LinuxResources {
        cpu_shares: Some(2),
        memory_limit_bytes: Some(1 << 20),
        ..LinuxResources::default()
    }
}

#[test]
fn a_slice_is_made_and_stopped() {
    // CRI-12 SVC-31
    let double = Double::new(|_| Reply::Job("done"));
    let slices = double.slices();
    assert!(slices.are_there());
    slices
        .make("kubepods-burstable.slice", &limits())
        .expect("made");
    let call = double.call("StartTransientUnit");
    for text in [
        "kubepods-burstable.slice",
        "replace",
        "kubepods.slice",
        "CPUWeight",
        "MemoryMax",
        "DefaultDependencies",
        "ssa(sv)a(sa(sv))",
    ] {
        assert!(call.has(text), "{text}");
    }
    assert!(!call.has("TasksMax") && !call.has("PIDs"));
    slices.stop("kubepods-burstable.slice").expect("stopped");
    assert_eq!(double.members(), ["StartTransientUnit", "StopUnit"]);
}

#[test]
fn what_is_there_gets_limits_and_what_is_gone_is_stopped() {
    // CRI-12
    let double = Double::new(|call| match &*call.member {
        "StartTransientUnit" => Reply::Fail("org.freedesktop.systemd1.UnitExists", "Unit exists."),
        "SetUnitProperties" => Reply::Return("", Vec::new()),
        _ => Reply::Fail("org.freedesktop.systemd1.NoSuchUnit", "Unit not loaded."),
    });
    double
        .slices()
        .make("kubepods.slice", &limits())
        .expect("made");
    let call = double.call("SetUnitProperties");
    assert!(call.has("MemoryMax") && call.has("sba(sv)") && !call.has("Wants"));
    double.slices().stop("kubepods.slice").expect("stopped");
}

#[test]
fn what_systemd_does_not_do_is_told() {
    for (reply, said) in [
        (
            Reply::Job("failed"),
            "systemd says \"failed\" of kubepods.slice",
        ),
        (
            Reply::Fail("org.freedesktop.DBus.Error.AccessDenied", "Not for you"),
            "StartTransientUnit: Not for you",
        ),
        (
            Reply::Raw(vec![b'B', 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            "another byte order",
        ),
        (
            Reply::Raw(vec![b'l', 2, 0, 1, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]),
            "more than 1 MiB",
        ),
        (
            Reply::Raw(message(
                wire::RETURN,
                &[(5, "u", vec![1, 0, 0, 0])],
                "s",
                &text("x"),
            )),
            "another type",
        ),
        (
            Reply::Raw(message(
                wire::RETURN,
                &[(5, "u", vec![1, 0, 0, 0])],
                "o",
                &[9, 0, 0, 0, b'x'],
            )),
            "ends too soon",
        ),
        (
            Reply::Raw(message(
                wire::RETURN,
                &[(5, "a", vec![1, 0, 0, 0])],
                "o",
                &text("/"),
            )),
            "header field",
        ),
    ] {
        let double = Double::new(move |_| reply.clone());
        let e = double
            .slices()
            .make("kubepods.slice", &limits())
            .expect_err(said);
        assert!(e.to_string().contains(said), "{e}");
        assert_eq!(double.members(), ["StartTransientUnit"], "{said}");
    }
}

/// It closes all connections when it executes itself anew.
#[test]
fn a_connection_that_breaks_off_is_made_again() {
    // SVC-32
    let mut left = 2;
    let double = Double::new(move |_| match left {
        0 => Reply::Job("done"),
        _ => {
            left -= 1;
            Reply::Close
        }
    });
    double
        .slices()
        .make("kubepods.slice", &limits())
        .expect("made");
    assert_eq!(double.members().len(), 3);
    let double = Double::new(|_| Reply::Close);
    let e = double.slices().make("kubepods.slice", &limits());
    assert!(matches!(e, Err(BusError::Io { .. })), "{e:?}");
    assert_eq!(double.members().len(), 3);
    let nobody = Slices::at("/nowhere/bus", Lane::inline());
    assert!(!nobody.are_there());
    assert!(nobody.stop("kubepods.slice").is_err());
}

#[test]
fn one_that_says_nothing_is_not_waited_for() {
    let double = Double::new(|_| Reply::Hang);
    let mut bus = Bus::open(&double.path, "x", PATIENCE).expect("a bus");
    bus.within(Some(Duration::from_millis(50)));
    let to = Target {
        destination: "",
        path: "/",
        interface: "a.b",
    };
    let e = bus.call(to, "M", Body::default());
    assert!(matches!(e, Err(BusError::Late { what: "M", .. })), "{e:?}");
}

fn logind(delay_us: u64) -> impl FnMut(&Call) -> Reply + Send + 'static {
    let mut delay = delay_us;
    move |call| match &*call.member {
        "Hello" => Reply::Return("s", text(":1.7")),
        "AddMatch" => Reply::Return("", Vec::new()),
        "Get" => {
            let mut body = vec![1, b't', 0];
            pad(&mut body, 8);
            body.extend(delay.to_le_bytes());
            Reply::Return("v", body)
        }
        // It reads its configuration anew.
        "KillUnit" => {
            delay = 60_000_000;
            Reply::Return("", Vec::new())
        }
        "Inhibit" => Reply::Lock,
        _ => Reply::Fail("org.freedesktop.DBus.Error.UnknownMethod", "unknown"),
    }
}

fn places(double: &Double) -> Places {
    Places {
        bus: double.path.clone(),
        drop_ins: double.path.with_extension("d"),
    }
}

#[test]
fn the_end_of_the_machine_is_delayed() {
    // SHUT-02 SHUT-06
    let double = Double::new(logind(5_000_000));
    let places = places(&double);
    let mut inhibitor = Inhibitor::take(&places, Duration::from_millis(29_500)).expect("a lock");
    assert_eq!(inhibitor.delay(), Duration::from_secs(60));
    let written =
        std::fs::read_to_string(places.drop_ins.join("99-kubelet.conf")).expect("drop-in");
    assert!(
        written.contains("[Login]\nInhibitDelayMaxSec=30\n"),
        "{written}"
    );
    std::fs::remove_dir_all(&places.drop_ins).expect("clean up");
    assert_eq!(
        double.members(),
        ["Hello", "AddMatch", "Get", "KillUnit", "Get", "Inhibit"]
    );
    let asked = double.call("Inhibit");
    for word in ["shutdown", "kubelet", "delay"] {
        assert!(asked.has(word), "{word}");
    }
    let mut held = double.locks.recv().expect("a lock");

    assert_eq!(inhibitor.hear().expect("nothing"), None);
    double.tell(&signal("NameAcquired", "s", &text(":1.7")));
    double.tell(&shutdown(true));
    assert_eq!(inhibitor.hear().expect("a word"), Some(true));
    inhibitor.let_go();
    // Nobody else holds it.
    assert_eq!(held.read(&mut [0]).expect("the end"), 0);

    double.tell(&shutdown(false));
    assert_eq!(inhibitor.hear().expect("a word"), Some(false));
    inhibitor.take_lock().expect("a lock");
    double.locks.recv().expect("another lock");

    double
        .peer
        .lock()
        .expect("peer")
        .take()
        .expect("a peer")
        .shutdown(std::net::Shutdown::Both)
        .expect("cut");
    assert!(inhibitor.hear().is_err());
}

#[test]
fn a_delay_that_is_long_enough_stays() {
    // SHUT-02
    let double = Double::new(logind(30_000_000));
    let places = places(&double);
    let inhibitor = Inhibitor::take(&places, Duration::from_secs(30)).expect("a lock");
    assert_eq!(inhibitor.delay(), Duration::from_secs(30));
    assert!(!places.drop_ins.exists());
    assert_eq!(double.members(), ["Hello", "AddMatch", "Get", "Inhibit"]);
}

/// A bus of its own; `None`, and said so: there is no daemon here.
struct Daemon {
    child: Child,
    dir: PathBuf,
}

impl Daemon {
    fn start() -> Option<Self> {
        let dir = std::env::temp_dir().join(format!("picolet-dbus-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        let config = format!(
            "<busconfig><listen>unix:path={0}/bus</listen><auth>EXTERNAL</auth>\
             <policy context=\"default\"><allow send_destination=\"*\" eavesdrop=\"true\"/><allow eavesdrop=\"true\"/><allow own=\"*\"/></policy></busconfig>",
            dir.display()
        );
        std::fs::write(dir.join("conf"), config).expect("file");
        let child = Command::new("dbus-daemon")
            .arg(format!("--config-file={}/conf", dir.display()))
            .args(["--nofork", "--print-address"])
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut daemon = Self { child, dir };
        // It says where it listens once it does.
        let mut byte = [0];
        let told = daemon
            .child
            .stdout
            .as_mut()
            .expect("output")
            .read(&mut byte);
        assert_eq!(told.expect("an address"), 1);
        Some(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn the_real_daemon_understands_us() {
    // SHUT-02
    let Some(daemon) = Daemon::start() else {
        skipped!("the_real_daemon_understands_us: dbus-daemon is not installed");
        return;
    };
    let path = daemon.dir.join("bus");
    let mut bus = Bus::open(&path, "NameAcquired", PATIENCE).expect("a bus");
    let to = Target {
        destination: "org.freedesktop.DBus",
        path: "/org/freedesktop/DBus",
        interface: "org.freedesktop.DBus",
    };
    let hello = bus.call(to, "Hello", Body::default()).expect("a name");
    let own = hello
        .arguments("s")
        .expect("a text")
        .text()
        .expect("a name")
        .to_owned();
    let told = bus.signal("its name").expect("a signal");
    let told = told
        .arguments("s")
        .expect("a text")
        .text()
        .expect("a name")
        .to_owned();
    assert_eq!(told, own);
    let owner = Body::default().text("no.such.name");
    let e = bus.call(to, "GetNameOwner", owner).expect_err("nobody");
    assert!(e.is("org.freedesktop.DBus.Error.NameHasNoOwner"), "{e}");
    let rule = Body::default().text("type='signal',member='X'");
    bus.call(to, "AddMatch", rule).expect("a rule");
    // It checks a message in full before it hands it on; nobody here has the method.
    let to = Target {
        destination: "org.freedesktop.systemd1",
        ..to
    };
    let properties = [
        ("A", wire::Value::Bool(true)),
        ("B", wire::Value::Number(u64::MAX)),
        ("C", wire::Value::Text("c".into())),
        ("D", wire::Value::Texts(vec!["d".into(), "e".into()])),
    ];
    let body = Body::default().text("x").flag(true).signed(-1);
    let body = body.properties(&properties).no_auxiliaries();
    let e = bus
        .call(to, "StartTransientUnit", body)
        .expect_err("nobody");
    assert!(e.is("org.freedesktop.DBus.Error.ServiceUnknown"), "{e}");
}
