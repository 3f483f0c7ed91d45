//! The client against a double of the bus, and against the real daemon where there is one.

use std::{
    io::Read as _,
    process::{Child, Command, Stdio},
};

use super::{
    logind::ShutdownInhibitor,
    testing::{Double, Reply, logind, message, places, shutdown, signal, text},
    *,
};
use crate::{api::cri::LinuxResources, cgroup::Slices, sys::lane::Lane};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

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
    assert!(slices.has_systemd());
    slices
        .start_slice("kubepods-burstable.slice", &limits())
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
    slices
        .stop_slice("kubepods-burstable.slice")
        .expect("stopped");
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
        .start_slice("kubepods.slice", &limits())
        .expect("made");
    let call = double.call("SetUnitProperties");
    assert!(call.has("MemoryMax") && call.has("sba(sv)") && !call.has("Wants"));
    double
        .slices()
        .stop_slice("kubepods.slice")
        .expect("stopped");
}

#[test]
fn what_systemd_does_not_do_is_told() {
    for (reply, said) in [
        (
            Reply::Job("failed"),
            "systemd reports \"failed\" for kubepods.slice",
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
            .start_slice("kubepods.slice", &limits())
            .expect_err(said);
        assert!(e.to_string().contains(said), "{e}");
        assert_eq!(double.members(), ["StartTransientUnit"], "{said}");
    }
}

/// systemd closes all connections when it executes itself anew.
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
        .start_slice("kubepods.slice", &limits())
        .expect("made");
    assert_eq!(double.members().len(), 3);
    let double = Double::new(|_| Reply::Close);
    let e = double.slices().start_slice("kubepods.slice", &limits());
    assert!(matches!(e, Err(BusError::Io { .. })), "{e:?}");
    assert_eq!(double.members().len(), 3);
    let nobody = Slices::at_socket("/nowhere/bus", Lane::without_thread());
    assert!(!nobody.has_systemd());
    assert!(nobody.stop_slice("kubepods.slice").is_err());
}

#[test]
fn one_that_says_nothing_is_not_waited_for() {
    let double = Double::new(|_| Reply::Hang);
    let mut bus = BusConnection::open(&double.path, "x", PATIENCE).expect("a bus");
    bus.set_time_limit(Some(Duration::from_millis(50)));
    let to = MethodAddress {
        destination: "",
        path: "/",
        interface: "a.b",
    };
    let e = bus.call_method(to, "M", CallArguments::default());
    assert!(matches!(e, Err(BusError::Late { what: "M", .. })), "{e:?}");
}

#[test]
fn one_that_takes_nobody_in_is_not_waited_for() {
    let path = crate::testing::unused_path("full");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("bind");
    let one = nix_socket::Backlog::new(1).expect("a length");
    nix_socket::listen(&listener, one).expect("listen");
    let patience = Duration::from_millis(50);
    let mut waiting = Vec::new();
    let full = loop {
        match connect_with_timeout(&path, patience) {
            Ok(stream) if waiting.len() < 8 => waiting.push(stream),
            other => break other,
        }
    };
    let full = full.expect_err("it is full");
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    let e = BusConnection::open(&path, "x", patience);
    std::fs::remove_file(&path).expect("clean up");
    assert!(matches!(e, Err(BusError::Late { .. })), "{e:?}");
}

#[test]
fn the_end_of_the_machine_is_delayed() {
    // SHUT-02 SHUT-06
    let double = Double::new(logind(5_000_000));
    let places = places(&double);
    let mut inhibitor =
        ShutdownInhibitor::acquire(&places, Duration::from_millis(29_500)).expect("a lock");
    assert_eq!(inhibitor.max_delay(), Duration::from_secs(60));
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

    assert_eq!(inhibitor.read_shutdown_signal().expect("nothing"), None);
    double.tell(&signal(
        "org.freedesktop.DBus",
        "NameAcquired",
        "s",
        &text(":1.7"),
    ));
    // Signals of other senders.
    let yes = 1_u32.to_le_bytes();
    for (sender, signature, body) in [
        (":1.66", "b", &yes[..]),
        (":1.66", "s", &text("now")),
        ("", "b", &yes),
        (":1.66", "b", &[1; MAX_SIGNAL + 1]),
    ] {
        double.tell(&signal(sender, "PrepareForShutdown", signature, body));
    }
    assert_eq!(inhibitor.read_shutdown_signal().expect("nothing"), None);
    let asked = double.members();
    let asked = asked.iter().filter(|member| *member == "GetNameOwner");
    assert_eq!(asked.count(), 3, "what is too long is not looked at");
    double.tell(&shutdown(true));
    assert_eq!(
        inhibitor.read_shutdown_signal().expect("a word"),
        Some(true)
    );
    inhibitor.release_lock();
    // Nobody else holds the lock.
    assert_eq!(held.read(&mut [0]).expect("the end"), 0);

    double.tell(&shutdown(false));
    assert_eq!(
        inhibitor.read_shutdown_signal().expect("a word"),
        Some(false)
    );
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
    assert!(inhibitor.read_shutdown_signal().is_err());
}

#[test]
fn a_delay_that_is_long_enough_stays() {
    // SHUT-02
    let double = Double::new(logind(30_000_000));
    let places = places(&double);
    let inhibitor = ShutdownInhibitor::acquire(&places, Duration::from_secs(30)).expect("a lock");
    assert_eq!(inhibitor.max_delay(), Duration::from_secs(30));
    assert!(!places.drop_ins.exists());
    assert_eq!(double.members(), ["Hello", "AddMatch", "Get", "Inhibit"]);
}

#[test]
fn a_lock_is_taken_although_the_delay_cannot_be_set() {
    // SHUT-02
    let double = Double::new(logind(5_000_000));
    let places = places(&double);
    // No directory can be made there, whoever tries.
    std::fs::write(&places.drop_ins, "").expect("a file");
    let taken = ShutdownInhibitor::acquire(&places, Duration::from_secs(30));
    std::fs::remove_file(&places.drop_ins).expect("clean up");
    assert_eq!(taken.expect("a lock").max_delay(), Duration::from_secs(5));
    assert_eq!(double.members(), ["Hello", "AddMatch", "Get", "Inhibit"]);
}

/// A real bus for one test; `None`, with a message: there is no daemon here.
struct Daemon {
    child: Child,
    dir: PathBuf,
}

impl Daemon {
    fn start() -> Option<Self> {
        let dir = crate::testing::unused_path("dbus");
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
        // The daemon prints its address once it listens.
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
    let mut bus = BusConnection::open(&path, "NameAcquired", PATIENCE).expect("a bus");
    let to = MethodAddress {
        destination: "org.freedesktop.DBus",
        path: "/org/freedesktop/DBus",
        interface: "org.freedesktop.DBus",
    };
    let hello = bus
        .call_method(to, "Hello", CallArguments::default())
        .expect("a name");
    let own = hello
        .arguments("s")
        .expect("a text")
        .read_text()
        .expect("a name")
        .to_owned();
    let told = bus.next_signal("its name").expect("a signal");
    assert_eq!(told.sender, to.destination);
    let told = told
        .arguments("s")
        .expect("a text")
        .read_text()
        .expect("a name")
        .to_owned();
    assert_eq!(told, own);
    let owner = CallArguments::default().with_text("no.such.name");
    let e = bus
        .call_method(to, "GetNameOwner", owner)
        .expect_err("nobody");
    assert!(
        e.is_error_named("org.freedesktop.DBus.Error.NameHasNoOwner"),
        "{e}"
    );
    let rule = CallArguments::default().with_text("type='signal',member='X'");
    bus.call_method(to, "AddMatch", rule).expect("a rule");
    // The daemon checks a message in full before it passes it on; no client here has the method.
    let to = MethodAddress {
        destination: "org.freedesktop.systemd1",
        ..to
    };
    let properties = [
        ("A", wire::PropertyValue::Bool(true)),
        ("B", wire::PropertyValue::Number(u64::MAX)),
        ("C", wire::PropertyValue::Text("c".into())),
        (
            "D",
            wire::PropertyValue::Texts(vec!["d".into(), "e".into()]),
        ),
    ];
    let body = CallArguments::default()
        .with_text("x")
        .with_bool(true)
        .with_signed(-1);
    let body = body.with_properties(&properties).with_no_auxiliaries();
    let e = bus
        .call_method(to, "StartTransientUnit", body)
        .expect_err("nobody");
    assert!(
        e.is_error_named("org.freedesktop.DBus.Error.ServiceUnknown"),
        "{e}"
    );
}
