//! The shim beside real containers. Needs root, runc and busybox; says so and passes without them.

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;

#[path = "common/bundle.rs"]
mod bundle;

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_io::Timer;
use bundle::{Bundle, joined, missing};
use picolet::runtime::log_rotation::{LogDirectoryStates, compress_rotated};
use picolet::server::log_reader::{LogChunk, LogOptions, LogReader};
use picolet::shim::control::{AttachEvent, AttachStreams};
use picolet::shim::{
    self, ContainerExitRecord, LiveShim, LogShimLaunch, ShimLaunch, ShimLaunchError, file,
};
use picolet::sys::child::{Command, OutputSink};
use picolet::sys::{mount, pidfd};
use smol::future;

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(180);

fn exe() -> Arc<OwnedFd> {
    Arc::new(
        fs::File::open(env!("CARGO_BIN_EXE_picolet"))
            .expect("program")
            .into(),
    )
}

fn launch_of(bundle: &Bundle) -> ShimLaunch {
    ShimLaunch {
        exe: exe(),
        dir: bundle.dir.clone(),
        id: bundle.id.clone(),
        runtime: bundle::RUNC.into(),
        runtime_root: bundle.root.clone(),
        log: bundle.log.clone(),
        log_limit: None,
        log_memory: None,
        tty: false,
        stdin: false,
        stdin_once: false,
        stream_owner: None,
        memory_cgroup: Some(bundle.memory_cgroup.clone()),
        shim_cgroups: Vec::new(),
        oom_score_adj: Some(-999),
        create_limit: shim::CREATE_TIMEOUT,
    }
}

fn wait<T>(what: &str, work: impl Future<Output = T>) -> T {
    smol::block_on(future::or(work, async {
        Timer::after(PATIENCE).await;
        panic!("waited too long for {what}");
    }))
}

fn create(launch: &ShimLaunch) -> LiveShim {
    wait("create", shim::launch_shim(launch)).expect("launch")
}

fn ended(shim: &LiveShim, bundle: &Bundle) -> ContainerExitRecord {
    wait(
        "the shim's end",
        pidfd::wait_until_ended(shim.pidfd.as_fd()),
    )
    .expect("poll");
    assert!(!shim::is_shim_alive(&bundle.dir).expect("lock"));
    shim::read_exit(&bundle.dir)
        .expect("readable")
        .expect("exit record")
}

/// Runs a script to its end with the default configuration.
fn run(script: &str) -> (Bundle, ContainerExitRecord) {
    let bundle = Bundle::new(script, |_| ());
    let shim = create(&launch_of(&bundle));
    bundle.start();
    let exit = ended(&shim, &bundle);
    (bundle, exit)
}

/// Waits until `done` says so, polling: files have no doorbell.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    wait(what, async {
        while !done() {
            Timer::after(Duration::from_millis(5)).await;
        }
    });
}

macro_rules! real {
    () => {
        if let Some(why) = missing() {
            skipped!("shims: {why}");
            return;
        }
    };
}

#[test]
fn the_end_of_a_log_is_held_in_memory() {
    real!();
    // WEAR-05
    let bundle = Bundle::new(
        "echo one; read line < /tmp/a; echo two; read line < /tmp/b; echo three; exec cat /tmp/c",
        |_| (),
    );
    let top = bundle.dir.parent().expect("top").to_owned();
    // One for each step: a writer that is late to close one would let the next step go on, too.
    let fifo = |name: &str| top.join("rootfs/tmp").join(name);
    for name in ["a", "b", "c"] {
        nix::unistd::mkfifo(&fifo(name), nix::sys::stat::Mode::S_IRWXU).expect("fifo");
    }
    let held = shim::held_log_path(&top, "held");
    fs::create_dir_all(shim::held_logs_dir(&top)).expect("directory");
    let launch = ShimLaunch {
        log_memory: Some(held.clone()),
        ..launch_of(&bundle)
    };
    let first = create(&launch);
    let follow = LogOptions {
        follow: true,
        ..LogOptions::default()
    };
    let mut reader = LogReader::open(&bundle.log, Some(held.clone()), follow).expect("open");
    let mut seen = Vec::new();
    bundle.start();
    let mut see = |text: &str| {
        until(text, || {
            while let LogChunk::Text(text) = reader.next_chunk().expect("read") {
                seen.extend(text);
            }
            seen == text.as_bytes()
        });
    };
    see("one\n");
    assert_eq!(bundle.log(), "", "the disk has nothing");
    assert!(held.exists());
    // The machine goes down: a shim saves what it holds, and lives on.
    pidfd::send_signal(first.pidfd.as_fd(), libc::SIGTERM).expect("signal");
    until("the disk has it", || bundle.output("stdout") == "one\n");
    until("nothing is held", || !held.exists());
    fs::write(fifo("a"), "x\n").expect("go");
    see("one\ntwo\n");
    assert!(held.exists());
    assert_eq!(bundle.output("stdout"), "one\n");
    // The agent has renamed the file.
    let old = bundle.log.with_extension("log.1");
    fs::rename(&bundle.log, &old).expect("renamed");
    wait("reopen", shim::reopen_log(&bundle.dir)).expect("reopened");
    assert!(fs::read_to_string(&old).expect("old").ends_with("F two\n"));
    assert!(!held.exists());
    fs::write(fifo("b"), "x\n").expect("go");
    see("one\ntwo\nthree\n");
    // It is killed: the next one saves what it held.
    assert!(held.exists());
    pidfd::send_signal(first.pidfd.as_fd(), libc::SIGKILL).expect("kill the shim");
    until("the lock", || {
        !shim::is_shim_alive(&bundle.dir).expect("lock")
    });
    let log_only = LogShimLaunch {
        exe: exe(),
        dir: bundle.dir.clone(),
        log: bundle.log.clone(),
        log_limit: None,
        log_memory: Some(held.clone()),
        memory_cgroup: Some(bundle.memory_cgroup.clone()),
        shim_cgroups: Vec::new(),
        oom_score_adj: None,
    };
    let second = wait("takeover", shim::launch_log_only(&log_only));
    let second = second.expect("launch").expect("init lives");
    bundle.kill("KILL");
    let exit = ended(&second, &bundle);
    assert_eq!(exit.log_lost, 0);
    assert!(!held.exists());
    assert_eq!(bundle.output("stdout"), "three\n");
}

#[test]
fn exit_codes_and_signals() {
    real!();
    // RTM-05
    for (script, code, signal) in [
        ("exit 0", 0, 0),
        ("exit 42", 42, 0),
        ("kill -9 $$; echo a pid 1 cannot kill itself", 0, 0),
    ] {
        let (bundle, exit) = run(script);
        assert_eq!(
            (exit.code, exit.signal, exit.known, exit.created),
            (code, signal, true, true),
            "{script}"
        );
        assert!(!exit.was_oom_killed(0) && exit.log_lost == 0, "{script}");
        let state = shim::read_state(&bundle.dir)
            .expect("readable")
            .expect("state");
        assert_eq!(state.boot_id, exit.boot_id);
    }
    // Real-time signals too, which have no name.
    for (signal, number) in [("KILL", 9), ("TERM", 15), ("40", 40)] {
        let bundle = Bundle::new("exec sleep 1000", |c| {
            // In the host's pid namespace init has no special protection.
            let kinds = c["linux"]["namespaces"].as_array_mut().expect("namespaces");
            kinds.retain(|n| n["type"] != "pid");
        });
        let shim = create(&launch_of(&bundle));
        bundle.start();
        until("exec", || {
            fs::read_to_string(format!("/proc/{}/comm", shim.pid))
                .is_ok_and(|c| c.trim() == "sleep")
        });
        bundle.kill(signal);
        let exit = ended(&shim, &bundle);
        assert_eq!((exit.code, exit.signal), (128 + number, number), "{signal}");
    }
}

#[test]
fn out_of_memory() {
    real!();
    // RTM-05 OOMW-01 OOMW-02
    let limit = |c: &mut serde_json::Value| {
        c["linux"]["resources"] = serde_json::json!({"memory": {"limit": 16 * 1024 * 1024}});
    };
    // Only the eater's own memory counts: a variable that doubles.
    let bundle = Bundle::new("x=0123456789abcdef; while :; do x=$x$x; done", limit);
    let shim = create(&launch_of(&bundle));
    bundle.start();
    let exit = ended(&shim, &bundle);
    assert_eq!((exit.code, exit.signal), (137, 9));
    assert!(exit.was_oom_killed(0), "{exit:?}");
    // A child of init, which goes on without it.
    let bundle = Bundle::new(
        "(x=0123456789abcdef; while :; do x=$x$x; done); exit 0",
        limit,
    );
    let shim = create(&launch_of(&bundle));
    bundle.start();
    let exit = ended(&shim, &bundle);
    assert_eq!((exit.code, exit.was_oom_killed(0)), (0, true), "{exit:?}");
    // Killed for another reason, with the same limit.
    let bundle = Bundle::new("sleep 1000", limit);
    let shim = create(&launch_of(&bundle));
    bundle.start();
    bundle.kill("KILL");
    let exit = ended(&shim, &bundle);
    assert_eq!(
        (exit.code, exit.was_oom_killed(0)),
        (137, false),
        "{exit:?}"
    );
}

#[test]
fn log_is_complete() {
    real!();
    // LOG-01 RTM-07
    let (bundle, exit) = run(
        "seq 1 200000; echo to stderr >&2; head -c 100000 /dev/zero | tr '\\0' x; echo; printf 'no newline'",
    );
    assert_eq!((exit.code, exit.log_lost), (0, 0));
    let mut expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    expected += &"x".repeat(100_000);
    expected += "\nno newline";
    assert!(bundle.output("stdout") == expected, "stdout differs");
    assert_eq!(bundle.output("stderr"), "to stderr\n");
    let longest = bundle.log().lines().map(str::len).max();
    assert!(longest.expect("lines") <= 16 * 1024 + 41);
    assert!(bundle.log().ends_with(" stdout P no newline\n"));
}

#[test]
fn log_rotation_loses_nothing() {
    real!();
    // RTM-07
    // It stays until its file was moved away twice, however late that is.
    let bundle = Bundle::new(
        "seq 1 300000; while [ ! -e /tmp/go ]; do usleep 10000; done",
        |_| (),
    );
    let go = bundle.dir.parent().expect("top").join("rootfs/tmp/go");
    let shim = create(&launch_of(&bundle));
    bundle.start();
    let mut files = 0;
    while shim::read_exit(&bundle.dir).expect("readable").is_none() {
        if files == 2 {
            fs::write(&go, "").expect("go");
        }
        fs::rename(
            &bundle.log,
            bundle.log.with_extension(format!("{files:06}")),
        )
        .expect("rotate");
        match wait("reopen", shim::reopen_log(&bundle.dir)) {
            Ok(()) => files += 1,
            // It has just ended.
            Err(_) => {
                fs::rename(
                    bundle.log.with_extension(format!("{files:06}")),
                    &bundle.log,
                )
                .expect("back");
                break;
            }
        }
    }
    ended(&shim, &bundle);
    let mut text = String::new();
    for n in 0..files {
        text += &fs::read_to_string(bundle.log.with_extension(format!("{n:06}"))).expect("rotated");
    }
    text += &bundle.log();
    let expected: String = (1..=300_000).map(|n| format!("{n}\n")).collect();
    assert!(
        files > 1 && joined(&text, "stdout") == expected,
        "{files} rotations"
    );
}

#[test]
fn full_disk_neither_blocks_nor_kills() {
    real!();
    let bundle = Bundle::new("seq 1 100000; exit 3", |_| ());
    let logs = bundle.log.parent().expect("directory");
    mount::mount_tmpfs(logs, Some(64 * 1024), 0o755, nix::mount::MsFlags::empty()).expect("tmpfs");
    let shim = create(&launch_of(&bundle));
    bundle.start();
    let exit = ended(&shim, &bundle);
    let whole = bundle.output("stdout").lines().count();
    assert_eq!(exit.code, 3);
    assert_eq!(
        exit.log_lost,
        100_000 - u64::try_from(whole).expect("count")
    );
    mount::unmount(logs).expect("unmount");
}

#[test]
fn container_inherits_nothing() {
    real!();
    let (bundle, exit) =
        run("ls -l /proc/self/fd; env; cat /proc/self/status; cat /proc/self/oom_score_adj");
    assert_eq!(exit.code, 0);
    let text = bundle.output("stdout");
    let fds: Vec<_> = text.lines().filter(|l| l.contains(" -> ")).collect();
    // 0 to 2, and the directory that ls reads, which may be closed before it is shown.
    assert!(
        fds[0].ends_with("0 -> /dev/null") && fds.len() >= 3,
        "{text}"
    );
    assert!(fds[1..3].iter().all(|l| l.contains("/std")), "{text}");
    assert!(fds[3..].iter().all(|l| l.contains("3 -> /proc/")), "{text}");
    let variables: Vec<_> = text.lines().filter(|l| l.contains('=')).collect();
    let known = ["PATH=/bin", "PWD=/", "SHLVL=", "OLDPWD=", "HOME=", "_="];
    assert!(
        variables
            .iter()
            .all(|v| known.iter().any(|k| v.starts_with(k))),
        "{variables:?}"
    );
    for mask in ["SigBlk", "SigIgn"] {
        let line = text.lines().find(|l| l.starts_with(mask)).expect("mask");
        let value = u64::from_str_radix(line.rsplit('\t').next().expect("value"), 16).expect("hex");
        // 32 and 33 are the C library's own.
        assert_eq!(value & !(3 << 31), 0, "{line}");
    }
}

#[test]
fn another_user_can_open_its_stdout() {
    real!();
    // Images whose log files are links to /dev/stdout rely on it.
    let bundle = Bundle::new(
        "echo one > /dev/stdout; echo two > /dev/stderr; echo three >> /proc/self/fd/1",
        |c| {
            c["process"]["user"] = serde_json::json!({"uid": 1000, "gid": 1000});
        },
    );
    let shim = create(&launch_of(&bundle));
    bundle.start();
    let exit = ended(&shim, &bundle);
    assert_eq!(
        (exit.code, bundle.output("stderr").as_str()),
        (0, "two\n"),
        "{}",
        bundle.log()
    );
    assert_eq!(bundle.output("stdout"), "one\nthree\n");
}

/// Starts a shim whose runtime is a script. Its launcher allows minutes for a create; this one `create_ms`.
fn shim_with_runtime(bundle: &Bundle, script: &str, create_ms: &str) -> std::io::PipeReader {
    let runtime = bundle.dir.join("runtime");
    fs::write(&runtime, script).expect("runtime");
    fs::set_permissions(
        &runtime,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .expect("mode");
    for name in [file::STDIN, file::STDOUT, file::STDERR] {
        nix::unistd::mkfifo(&bundle.dir.join(name), nix::sys::stat::Mode::S_IRWXU).expect("fifo");
    }
    let command = Command::from_opened(exe(), "picolet")
        .args([
            "shim",
            "--id",
            "x",
            "--root",
            "/x",
            "--create-ms",
            create_ms,
            "--dir",
        ])
        .arg(&bundle.dir)
        .arg("--runtime")
        .arg(&runtime)
        .arg("--log")
        .arg(&bundle.log);
    let (reader, writer) = std::io::pipe().expect("pipe");
    let mut child = command
        .stdout(OutputSink::Fd(writer.into()))
        .spawn()
        .expect("shim");
    wait("the fork", child.wait()).expect("wait");
    reader
}

#[test]
fn runtime_that_hangs() {
    real!();
    let bundle = Bundle::new("true", |_| ());
    let script = "#!/bin/sh\necho stuck >&2\nexec sleep 1000\n";
    let mut reader = shim_with_runtime(&bundle, script, "200");
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut reader, &mut answer).expect("answer");
    assert_eq!(answer, "error 137\nstuck\n");
    let exit = shim::read_exit(&bundle.dir)
        .expect("readable")
        .expect("exit record");
    assert!(!exit.created);
}

#[test]
fn runtime_ends_with_its_shim() {
    real!();
    let bundle = Bundle::new("true", |_| ());
    let script = "#!/bin/sh\necho $$ $PPID > pids.new; mv pids.new pids\nexec sleep 1000\n";
    let mut reader = shim_with_runtime(&bundle, script, "100000");
    until("the runtime", || bundle.dir.join("pids").exists());
    let text = fs::read_to_string(bundle.dir.join("pids")).expect("pids");
    let pids: Vec<_> = text
        .split_whitespace()
        .map(|p| p.parse().expect("pid"))
        .collect();
    let runtime = pidfd::open_pidfd(pids[0]).expect("runtime");
    let shim = pidfd::open_pidfd(pids[1]).expect("shim");
    pidfd::send_signal(shim.as_fd(), libc::SIGKILL).expect("kill");
    wait(
        "the runtime's end",
        pidfd::wait_until_ended(runtime.as_fd()),
    )
    .expect("poll");
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut reader, &mut answer).expect("answer");
    assert_eq!(answer, "");
}

#[test]
fn failing_create() {
    real!();
    // RTM-03
    let bundle = Bundle::new("true", |c| {
        c["process"]["args"] = serde_json::json!(["/no/such/program"])
    });
    let error = wait("create", shim::launch_shim(&launch_of(&bundle))).expect_err("no program");
    match &error {
        ShimLaunchError::Runtime { code, message } => {
            assert_eq!(*code, 1);
            assert!(message.contains("/no/such/program"), "{message}");
        }
        other => panic!("{other}"),
    }
    until("the shim's end", || {
        !shim::is_shim_alive(&bundle.dir).expect("lock")
    });
    let exit = shim::read_exit(&bundle.dir)
        .expect("readable")
        .expect("exit record");
    assert_eq!((exit.code, exit.created), (128, false));
    // The runtime itself is missing.
    let mut launch = launch_of(&bundle);
    launch.runtime = "/no/runtime".into();
    match wait("create", shim::launch_shim(&launch)).expect_err("no runtime") {
        ShimLaunchError::Runtime { code: 127, message } => {
            assert_eq!(message, "cannot execute the runtime: errno 002");
        }
        other => panic!("{other}"),
    }
    // The shim cannot write its log.
    launch.log = "/no/such/dir/0.log".into();
    until("the shim's end", || {
        !shim::is_shim_alive(&bundle.dir).expect("lock")
    });
    let error = wait("create", shim::launch_shim(&launch)).expect_err("no log");
    assert!(
        matches!(&error, ShimLaunchError::Shim(e) if e.to_string().contains("No such file")),
        "{error}"
    );
    // Somebody holds the directory.
    let held = picolet::sys::lock::try_lock(&bundle.dir.join(file::LOCK))
        .expect("lock")
        .expect("free");
    assert!(matches!(
        wait("create", shim::launch_shim(&launch)),
        Err(ShimLaunchError::Busy(_))
    ));
    drop(held);
}

#[test]
fn input_and_attach() {
    real!();
    let bundle = Bundle::new("cat; echo over >&2; exit 5", |_| ());
    let launch = ShimLaunch {
        stdin: true,
        stdin_once: true,
        ..launch_of(&bundle)
    };
    let shim = create(&launch);
    bundle.start();
    let watcher = AttachStreams {
        stdout: true,
        stderr: true,
        ..AttachStreams::default()
    };
    let (watcher, talker) = wait("attach", async {
        let watcher = shim::attach_streams(&bundle.dir, watcher)
            .await
            .expect("attach");
        let talker = AttachStreams {
            stdin: true,
            ..AttachStreams::default()
        };
        (
            watcher,
            shim::attach_streams(&bundle.dir, talker)
                .await
                .expect("attach"),
        )
    });
    // More than pipes and sockets hold: the talker waits for the container, the log for nobody.
    let sent: String = (0..60_000).map(|n| format!("line {n}\n")).collect();
    let seen = wait("echo", async {
        let send = async {
            talker.send_input(sent.as_bytes()).await.expect("input");
            drop(talker);
        };
        let receive = async {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            loop {
                match watcher.next_event().await.expect("event") {
                    AttachEvent::Stdout(bytes) => out.extend(bytes),
                    AttachEvent::Stderr(bytes) => err.extend(bytes),
                    AttachEvent::End => return (out, err),
                }
            }
        };
        future::zip(send, receive).await.1
    });
    assert!(
        seen.0 == sent.as_bytes(),
        "{} of {} bytes",
        seen.0.len(),
        sent.len()
    );
    assert_eq!(seen.1, b"over\n");
    let exit = ended(&shim, &bundle);
    assert_eq!(exit.code, 5);
    assert!(bundle.output("stdout") == sent);
}

#[test]
fn slow_client_is_dropped() {
    real!();
    let bundle = Bundle::new("seq 1 1000000", |_| ());
    let shim = create(&launch_of(&bundle));
    let streams = AttachStreams {
        stdout: true,
        ..AttachStreams::default()
    };
    let client = wait("attach", shim::attach_streams(&bundle.dir, streams)).expect("attach");
    bundle.start();
    // Nobody reads from `client`.
    let exit = ended(&shim, &bundle);
    assert_eq!((exit.code, exit.log_lost), (0, 0));
    let end = wait("the end of the stream", async {
        loop {
            match client.next_event().await {
                Ok(AttachEvent::Stdout(_)) => {}
                other => return other,
            }
        }
    });
    assert_eq!(
        end.expect_err("dropped").kind(),
        std::io::ErrorKind::UnexpectedEof
    );
    assert!(bundle.output("stdout").ends_with("\n1000000\n"));
}

#[test]
fn clients_are_few_and_commands_checked() {
    real!();
    let bundle = Bundle::new("sleep 1000", |_| ());
    let shim = create(&launch_of(&bundle));
    bundle.start();
    wait("clients", async {
        let streams = AttachStreams {
            stdout: true,
            ..AttachStreams::default()
        };
        let mut clients = Vec::new();
        for _ in 0..shim::control::MAX_CLIENTS {
            clients.push(
                shim::attach_streams(&bundle.dir, streams)
                    .await
                    .expect("attach"),
            );
        }
        let error = shim::attach_streams(&bundle.dir, streams)
            .await
            .expect_err("one too many");
        assert!(error.to_string().contains("too many"), "{error}");
        let error = shim::resize_terminal(&bundle.dir, 80, 25)
            .await
            .expect_err("no terminal");
        assert!(error.to_string().contains("no terminal"), "{error}");
        shim::close_stdin(&bundle.dir)
            .await
            .expect("nothing to close");
        let log = bundle.log.clone();
        fs::rename(&log, log.with_extension("old")).expect("rotate");
        fs::create_dir(&log).expect("in the way");
        assert!(shim::reopen_log(&bundle.dir).await.is_err());
        fs::remove_dir(&log).expect("away");
        // Commands find a place however many are attached.
        for _ in 0..20 {
            shim::reopen_log(&bundle.dir).await.expect("reopen");
        }
        drop(clients);
        // The shim notices that they left when its loop comes round.
        let mut tries = 0;
        while let Err(e) = shim::attach_streams(&bundle.dir, streams).await {
            tries += 1;
            assert!(tries < 2000, "no room again: {e}");
            Timer::after(Duration::from_millis(5)).await;
        }
    });
    let mode = fs::metadata(bundle.dir.join(file::CTL)).expect("socket");
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777,
        0o600
    );
    bundle.kill("KILL");
    ended(&shim, &bundle);
}

#[test]
fn terminal() {
    real!();
    // RTM-07
    let bundle = Bundle::new(
        "stty size; read line; stty size; echo got $line >&2; exit 4",
        |c| {
            c["process"]["terminal"] = true.into();
        },
    );
    let launch = ShimLaunch {
        tty: true,
        stdin: true,
        ..launch_of(&bundle)
    };
    let shim = create(&launch);
    assert!(!bundle.dir.join(file::CONSOLE).exists());
    wait("terminal", async {
        shim::resize_terminal(&bundle.dir, 100, 30)
            .await
            .expect("resize");
        let streams = AttachStreams {
            stdin: true,
            stdout: true,
            stderr: true,
        };
        let client = shim::attach_streams(&bundle.dir, streams)
            .await
            .expect("attach");
        bundle.start();
        let mut text = String::new();
        let mut asked = false;
        loop {
            match client.next_event().await.expect("event") {
                AttachEvent::Stdout(bytes) => text += &String::from_utf8_lossy(&bytes),
                AttachEvent::Stderr(_) => panic!("a terminal has no standard error"),
                AttachEvent::End => break,
            }
            if !asked && text.contains("30 100") {
                asked = true;
                shim::resize_terminal(&bundle.dir, 120, 40)
                    .await
                    .expect("resize");
                client.send_input(b"hello\n").await.expect("input");
            }
        }
        assert!(
            text.contains("40 120") && text.contains("got hello"),
            "{text:?}"
        );
    });
    let exit = ended(&shim, &bundle);
    assert_eq!(exit.code, 4);
    assert!(
        bundle.output("stdout").contains("got hello\r\n"),
        "{}",
        bundle.log()
    );
    assert_eq!(bundle.output("stderr"), "");
}

#[test]
fn a_closed_terminal_can_be_opened_again() {
    real!();
    // RTM-07
    let script = "exec </dev/null >/dev/null 2>&1; echo > /tmp/closed; read x < /tmp/go
        echo again > /dev/pts/0; read line < /dev/pts/0; echo got $line > /dev/pts/0";
    let bundle = Bundle::new(script, |c| {
        c["process"]["terminal"] = true.into();
    });
    let tmp = bundle.dir.parent().expect("top").join("rootfs/tmp");
    nix::unistd::mkfifo(&tmp.join("go"), nix::sys::stat::Mode::S_IRWXU).expect("fifo");
    let launch = ShimLaunch {
        tty: true,
        stdin: true,
        ..launch_of(&bundle)
    };
    let shim = create(&launch);
    let streams = AttachStreams {
        stdin: true,
        stdout: true,
        stderr: false,
    };
    let client = wait("attach", shim::attach_streams(&bundle.dir, streams)).expect("attach");
    bundle.start();
    until("it is closed", || tmp.join("closed").exists());
    // The shim has looked at the terminal when it has answered.
    wait("an answer", shim::reopen_log(&bundle.dir)).expect("reopen");
    fs::write(tmp.join("go"), "x\n").expect("go");
    until("output", || bundle.log().contains("again"));
    wait("input", client.send_input(b"hello\n")).expect("input");
    assert_eq!(ended(&shim, &bundle).code, 0);
    assert!(bundle.output("stdout").ends_with("got hello\r\n"));
}

#[test]
fn clients_are_let_in_after_a_want_of_descriptors() {
    real!();
    // Never quiet for a second.
    let bundle = Bundle::new("while :; do echo word; sleep 0.02; done", |_| ());
    let shim = create(&launch_of(&bundle));
    bundle.start();
    let limit = |descriptors: usize| {
        let mut command = std::process::Command::new("prlimit");
        command.arg(format!("--pid={}", shim.shim_pid));
        command.arg(format!("--nofile={descriptors}:"));
        assert!(command.status().expect("prlimit").success());
    };
    let grows = || {
        let size = || fs::metadata(&bundle.log).map_or(0, |log| log.len());
        let before = size();
        async move {
            // More than one line: the shim has come round since.
            while size() < before + 200 {
                Timer::after(Duration::from_millis(5)).await;
            }
        }
    };
    wait("clients", async {
        // They fill the numbers below what poll(2) needs as a limit.
        let mut clients = Vec::new();
        for _ in 0..shim::control::MAX_CLIENTS {
            let streams = AttachStreams {
                stderr: true,
                ..AttachStreams::default()
            };
            let client = shim::attach_streams(&bundle.dir, streams).await;
            clients.push(client.expect("attach"));
        }
        let open = format!("/proc/{}/fd", shim.shim_pid);
        let numbers = (0..).take_while(|n| Path::new(&open).join(n.to_string()).exists());
        limit(numbers.count());
        let more = async {
            grows().await;
            limit(1024);
        };
        let (answer, ()) = future::zip(shim::reopen_log(&bundle.dir), more).await;
        answer.expect("let in");
    });
    bundle.kill("KILL");
    ended(&shim, &bundle);
}

/// Started again by [`agent_death`] as the agent that dies. The variable names a bundle.
/// What the log has on disk, in bytes, and its files.
fn log_use(bundle: &Bundle) -> (u64, usize) {
    let dir = bundle.log.parent().expect("directory");
    let all = fs::read_dir(dir).expect("directory").flatten();
    let sizes: Vec<u64> = all.filter_map(|f| Some(f.metadata().ok()?.len())).collect();
    (sizes.iter().sum(), sizes.len())
}

/// Lines of a log, without what the shim puts before them.
fn texts(log: &str) -> Vec<&str> {
    let line = |l: &'_ str| -> usize { l.match_indices(' ').nth(2).map_or(0, |(at, _)| at + 1) };
    log.lines().map(|l| &l[line(l)..]).collect()
}

/// Whatever a container writes, its log has no more than it may, at every moment that somebody looks; and a container beside
/// it, whose log is rotated as well, loses no line, neither in its files nor for who follows it.
#[test]
fn a_log_has_its_limit_at_every_instant() {
    real!();
    // LOG-03 LOG-06 LOG-07 RTM-07
    const MIB: u64 = 1024 * 1024;
    const LINES: usize = 3_000_000;
    // A record of 16 KiB, and what is before it.
    const BUFFER: u64 = 17 * 1024;
    let limit = shim::LogLimit {
        max_bytes: MIB,
        max_files: 4,
    };
    let calm_limit = shim::LogLimit {
        max_bytes: 20_000,
        max_files: 100,
    };
    let wild = Bundle::new(&format!("seq 1 {LINES}"), |_| ());
    let calm = Bundle::new(
        "n=0; while [ $n -lt 2000 ]; do n=$((n+1)); echo line-$n; [ $((n % 100)) -eq 0 ] && sleep 0.05; done",
        |_| (),
    );
    let with = |bundle: &Bundle, limit| ShimLaunch {
        log_limit: Some(limit),
        ..launch_of(bundle)
    };
    let (wild_shim, calm_shim) = (
        create(&with(&wild, limit)),
        create(&with(&calm, calm_limit)),
    );
    let follow = LogOptions {
        follow: true,
        ..LogOptions::default()
    };
    let mut reader = LogReader::open(&calm.log, None, follow).expect("open");
    let mut seen = Vec::new();
    calm.start();
    wild.start();
    let (mut most, mut most_files, mut looks) = (0, 0, 0_u32);
    let mut looked = LogDirectoryStates::new();
    let mut read_on = || {
        while let LogChunk::Text(text) = reader.next_chunk().expect("read") {
            seen.extend(text);
        }
    };
    while shim::is_shim_alive(&wild.dir).expect("lock") {
        let (bytes, files) = log_use(&wild);
        most = most.max(bytes);
        most_files = most_files.max(files);
        looks += 1;
        // The agent compresses what it can.
        let lives = vec![wild.log.clone()];
        let (state, failed) = compress_rotated(lives, looked, limit.max_bytes, 4);
        assert!(failed.is_empty(), "{failed:?}");
        looked = state;
        read_on();
    }
    let exit = ended(&wild_shim, &wild);
    assert_eq!((exit.code, exit.log_lost), (0, 0));
    let calm_exit = ended(&calm_shim, &calm);
    assert_eq!((calm_exit.code, calm_exit.log_lost), (0, 0));
    println!("{looks} looks, at most {most} bytes in {most_files} files");
    assert!(looks > 20, "{looks} looks");
    assert!(most <= 4 * MIB + BUFFER && most > 2 * MIB, "{most}");
    // Somebody who lists the files while one is renamed may see it twice, and a copy that is being compressed is one more.
    assert!(most_files <= 6, "{most_files}");
    // What is left of the fast one is the end, whole.
    let live = fs::read_to_string(&wild.log).expect("log");
    let numbers: Vec<usize> = texts(&live)
        .iter()
        .map(|t| t.parse().expect("a number"))
        .collect();
    assert!(numbers.windows(2).all(|w| w[1] == w[0] + 1));
    assert_eq!(numbers.last(), Some(&LINES));
    // Of the calm one every line is there.
    let wanted: Vec<String> = (1..=2000).map(|n| format!("line-{n}")).collect();
    let dir = calm.log.parent().expect("directory");
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("directory")
        .flatten()
        .map(|f| f.path())
        .collect();
    names.sort();
    names.rotate_left(1);
    assert!(names.len() > 3, "{names:?}");
    let all: String = names
        .iter()
        .map(|p| fs::read_to_string(p).expect("log"))
        .collect();
    assert_eq!(texts(&all), wanted);
    read_on();
    assert_eq!(
        String::from_utf8_lossy(&seen).lines().collect::<Vec<_>>(),
        wanted
    );
}

#[test]
fn agent_that_dies() {
    let Some(dir) = std::env::var_os("PICOLET_TEST_AGENT") else {
        return;
    };
    let text = fs::read_to_string(Path::new(&dir).join("launch")).expect("launch");
    let mut lines = text.lines();
    let mut next = || lines.next().expect("line").to_string();
    let launch = ShimLaunch {
        exe: exe(),
        dir: next().into(),
        id: next(),
        runtime: bundle::RUNC.into(),
        runtime_root: next().into(),
        log: next().into(),
        log_limit: None,
        log_memory: None,
        tty: false,
        stdin: false,
        stdin_once: false,
        stream_owner: None,
        memory_cgroup: None,
        shim_cgroups: Vec::new(),
        oom_score_adj: None,
        create_limit: shim::CREATE_TIMEOUT,
    };
    create(&launch);
    nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).expect("die");
}

#[test]
fn agent_death() {
    real!();
    // RTM-03 RTM-07
    let bundle = Bundle::new("echo before; read x < /tmp/go; echo after; exit 7", |_| ());
    let go = bundle.dir.parent().expect("top").join("rootfs/tmp/go");
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).expect("fifo");
    let paths = [
        &bundle.dir,
        Path::new(&bundle.id),
        &bundle.root,
        &bundle.log,
    ];
    let text: String = paths.iter().map(|p| format!("{}\n", p.display())).collect();
    fs::write(bundle.dir.join("launch"), text).expect("launch");
    let status = std::process::Command::new(std::env::current_exe().expect("test"))
        .args(["--exact", "agent_that_dies"])
        .env("PICOLET_TEST_AGENT", &bundle.dir)
        .stdout(std::process::Stdio::null())
        .status()
        .expect("agent");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9)
    );
    let shim = shim::find_live_shim(&bundle.dir)
        .expect("open")
        .expect("it lives on");
    bundle.start();
    until("output", || bundle.log().contains("before"));
    // What would end other processes does not end a shim.
    for signal in [
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGPIPE,
        libc::SIGUSR1,
    ] {
        pidfd::send_signal(shim.pidfd.as_fd(), signal).expect("signal");
    }
    fs::write(&go, "x\n").expect("go");
    let exit = ended(&shim, &bundle);
    assert_eq!(exit.code, 7);
    assert_eq!(bundle.output("stdout"), "before\nafter\n");
    assert!(shim::find_live_shim(&bundle.dir).expect("open").is_none());
}

#[test]
fn orphans_are_reaped() {
    real!();
    // In the host's pid namespace orphans become the shim's children.
    let bundle = Bundle::new(
        "(true & sleep 0 &) ; (true & true &); read x < /tmp/go",
        |c| {
            let kinds = c["linux"]["namespaces"].as_array_mut().expect("namespaces");
            kinds.retain(|n| n["type"] != "pid");
        },
    );
    let go = bundle.dir.parent().expect("top").join("rootfs/tmp/go");
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).expect("fifo");
    let shim = create(&launch_of(&bundle));
    bundle.start();
    let children = format!("/proc/{0}/task/{0}/children", shim.shim_pid);
    until("only init is left", || {
        let blocked = fs::read_to_string(format!("/proc/{}/wchan", shim.pid));
        let list = fs::read_to_string(&children).expect("children");
        list.trim() == shim.pid.to_string() && blocked.is_ok()
    });
    fs::write(&go, "x\n").expect("go");
    assert_eq!(ended(&shim, &bundle).code, 0);
}

#[test]
fn dead_shim_is_replaced_for_the_log() {
    real!();
    let bundle = Bundle::new(
        "echo one; read x < /tmp/go; echo two; echo three >&2; sleep 1000",
        |_| (),
    );
    let go = bundle.dir.parent().expect("top").join("rootfs/tmp/go");
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).expect("fifo");
    let dead = create(&launch_of(&bundle));
    bundle.start();
    until("output", || bundle.log().contains("one"));
    pidfd::send_signal(dead.pidfd.as_fd(), libc::SIGKILL).expect("kill the shim");
    until("the lock", || {
        !shim::is_shim_alive(&bundle.dir).expect("lock")
    });
    assert!(shim::read_exit(&bundle.dir).expect("readable").is_none());
    // Written while nobody reads: the container lives on and its FIFO keeps this.
    fs::write(&go, "x\n").expect("go");
    let log_only = LogShimLaunch {
        exe: exe(),
        dir: bundle.dir.clone(),
        log: bundle.log.clone(),
        log_limit: None,
        log_memory: None,
        memory_cgroup: Some(bundle.memory_cgroup.clone()),
        shim_cgroups: Vec::new(),
        oom_score_adj: None,
    };
    let shim = wait("takeover", shim::launch_log_only(&log_only))
        .expect("launch")
        .expect("init lives");
    assert_eq!(shim.pid, dead.pid);
    until("late output", || bundle.log().contains("three"));
    assert_eq!(
        shim::find_live_shim(&bundle.dir)
            .expect("open")
            .expect("lives")
            .shim_pid,
        shim.shim_pid
    );
    bundle.kill("KILL");
    let exit = ended(&shim, &bundle);
    assert_eq!((exit.code, exit.known), (137, false));
    assert_eq!(bundle.output("stdout"), "one\ntwo\n");
    assert_eq!(bundle.output("stderr"), "three\n");
    // Once more, when init is gone: the answer comes at once.
    fs::remove_file(bundle.dir.join(file::EXIT)).expect("forget");
    let none = wait("takeover", shim::launch_log_only(&log_only)).expect("launch");
    assert!(none.is_none());
    assert!(shim::read_exit(&bundle.dir).expect("readable").is_some());
}

#[test]
fn full_run_directory_still_gets_an_exit_record() {
    real!();
    let bundle = Bundle::new("read x < /tmp/go; exit 9", |_| ());
    let go = bundle.dir.parent().expect("top").join("rootfs/tmp/go");
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).expect("fifo");
    let config = fs::read(bundle.dir.join("config.json")).expect("configuration");
    mount::mount_tmpfs(
        &bundle.dir,
        Some(64 * 1024),
        0o700,
        nix::mount::MsFlags::empty(),
    )
    .expect("tmpfs");
    fs::write(bundle.dir.join("config.json"), config).expect("configuration");
    let shim = create(&launch_of(&bundle));
    bundle.start();
    let mut filler = fs::File::create(bundle.dir.join("filler")).expect("filler");
    while std::io::Write::write_all(&mut filler, &[0; 4096]).is_ok() {}
    fs::write(&go, "x\n").expect("go");
    assert_eq!(ended(&shim, &bundle).code, 9);
    mount::unmount(&bundle.dir).expect("unmount");
}
