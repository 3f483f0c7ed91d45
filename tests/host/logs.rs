//! All logs together have a limit.

use std::{fs, os::unix::fs::FileExt as _, path::Path};

use nix::sys::statfs::statfs;
use picolet::sys::clock;
use serde_json::json;

use crate::host::{self, Host, IDLE, mount_tmpfs, sh};

/// Bytes of all files below.
fn bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        // It was removed meanwhile.
        Err(_) => 0,
    });
    sizes.sum()
}

// LOG-06
#[test]
fn all_logs_have_a_limit() {
    if !host::able() {
        return;
    }
    const KIB: u64 = 1024;
    let host = Host::start(&["--max-log-bytes=300Ki", "--container-log-max-size=100Ki"]);
    let writes = |lines| sh("main", &format!("seq 1 {lines}; echo whole; {IDLE}"));
    host.pod("little", json!({"containers": [writes(100)]}));
    // Each of them has as much as one log may have, which is more than half of what all may.
    host.pod("much", json!({"containers": [writes(100_000)]}));
    host.pod("more", json!({"containers": [writes(100_000)]}));
    for name in ["little", "much", "more"] {
        host.wait_ready(name);
    }
    let logs = host.path("logs");
    host.until("the logs have no more than they may", |_| {
        let all = bytes(&logs);
        (all > 100 * KIB && all <= 300 * KIB, format!("{all} bytes"))
    });
    let little = host.ok(&["logs", &host::full("little")]);
    assert_eq!(little.lines().count(), 101, "{little}");
    host.finish();
}

// WEAR-05
#[test]
fn logs_are_held_in_memory() {
    if !host::able() {
        return;
    }
    let mut host = Host::start(&["--log-memory=1Mi"]);
    let script = format!("seq 1 200; echo whole; {IDLE}");
    host.pod("quiet", json!({"containers": [sh("main", &script)]}));
    host.wait_ready("quiet");
    let shown = |host: &Host, words: &[&str]| {
        let pod = host::full("quiet");
        host.ok(&[&["logs", &pod], words].concat())
    };
    host.until("all of it is shown", |host| {
        let text = shown(host, &[]);
        (text.lines().count() == 201, text)
    });
    let (logs, held) = (host.path("logs"), host.path("run/logs"));
    assert_eq!(bytes(&logs), 0, "the disk has nothing");
    assert_eq!(shown(&host, &["--tail=2"]), "200\nwhole\n");
    assert_eq!(shown(&host, &["--limit-bytes=3"]), "1\n2");
    // Another agent reads on, though it would hold nothing.
    host.end_agent(nix::sys::signal::Signal::SIGKILL);
    host.start_agent();
    host.wait_ready("quiet");
    assert_eq!(shown(&host, &["--tail=1"]), "whole\n");
    assert_eq!(bytes(&logs), 0);
    // One that writes much saves by itself, and is read whole.
    let script = format!("seq 1 300000; echo whole; {IDLE}");
    host.pod("much", json!({"containers": [sh("main", &script)]}));
    host.wait_ready("much");
    host.until("all of it is shown", |host| {
        let text = host.ok(&["logs", &host::full("much"), "--tail=1"]);
        (text == "whole\n", text)
    });
    let text = host.ok(&["logs", &host::full("much")]);
    let wanted: Vec<_> = (1..=300_000).map(|n| n.to_string()).collect();
    // Its log was rotated: what is left is the end.
    let lines: Vec<_> = text.lines().collect();
    let (last, numbers) = lines.split_last().expect("lines");
    assert_eq!(*last, "whole");
    assert_eq!(numbers, &wanted[wanted.len() - numbers.len()..]);
    assert!(bytes(&logs) > 10 << 20, "{}", bytes(&logs));
    assert!(bytes(&held) <= 1 << 20);
    // Its end saves it.
    host.ok(&["stop", "--all"]);
    host.reap_agent();
    assert_eq!(bytes(&held), 0);
    let saved = fs::read_dir(&logs).expect("logs").flatten();
    let quiet = saved
        .map(|e| e.path())
        .find(|p| p.display().to_string().contains("quiet"));
    let text = fs::read_to_string(quiet.expect("a pod").join("main/0.log")).expect("a log");
    assert!(text.ends_with(" whole\n"), "{text}");
    host.start_agent();
    host.finish();
}

const MIB: u64 = 1 << 20;
/// What the log of the container that floods it may have: two files.
const FLOOD: u64 = 2 * 5 * MIB;
/// A shim gathers less than this before it writes; with it, what files have on disk beyond their bytes.
const BUFFER: u64 = 64 * 1024;

/// Bytes that are used of a file system.
fn used(dir: &Path) -> u64 {
    let fs = statfs(dir).expect("statfs");
    let block = u64::try_from(fs.block_size()).expect("bytes");
    (fs.blocks() - fs.blocks_free()) * block
}

fn ends_with(file: &Path, words: &[u8]) -> std::io::Result<bool> {
    let file = fs::File::open(file)?;
    let mut end = vec![0; words.len()];
    let at = file.metadata()?.len().saturating_sub(7);
    file.read_exact_at(&mut end, at)?;
    Ok(end == words)
}

// LOG-06
#[test]
#[ignore = "takes a minute"]
fn a_flood_of_a_minute() {
    if !host::able() {
        return;
    }
    let flags = [
        "--container-log-max-size=5Mi",
        "--container-log-max-files=2",
    ];
    let mut host = Host::new(&flags);
    // A disk that everything but logs is not on. It is larger than what they may have: a fault is seen, not refused.
    let logs = host.path("logs");
    mount_tmpfs(&logs, "mode=755,size=1g");
    host.start_agent();
    host.import();
    // 600 times 100 lines in a tenth of a second: less than its log may have.
    let counts = "n=0; while [ $n -lt 60000 ]; do n=$((n+1)); echo line $n; [ $((n % 100)) = 0 ] && sleep 0.1; done";
    host.pod(
        "counts",
        json!({"containers": [sh("main", &format!("{counts}; echo whole; {IDLE}"))]}),
    );
    let line = "x".repeat(1000);
    host.pod(
        "flood",
        json!({"containers": [sh("main", &format!("exec yes {line}"))]}),
    );
    host.wait_ready("flood");
    host.wait_ready("counts");
    let shim = |name: &str| {
        let pod = host.get(name);
        let id = host::status_of(&pod, "main")["containerID"].as_str();
        host.pids_of(id.unwrap_or_default()).1
    };
    let written = |shim: i32| -> u64 {
        let text = fs::read_to_string(format!("/proc/{shim}/io")).expect("io");
        let line = text.lines().find_map(|l| l.strip_prefix("wchar: "));
        line.expect("wchar").parse().expect("bytes")
    };
    let flood = shim("flood");
    let (began, before) = (clock::mono_now(), written(flood));
    let (mut most, mut looks) = (0, 0u64);
    let uid = host.get("counts")["metadata"]["uid"].clone();
    let file = format!(
        "default_{}_{}/main/0.log",
        host::full("counts"),
        uid.as_str().unwrap_or_default()
    );
    let file = logs.join(file);
    loop {
        // As often as this thread can: nothing tells of every write.
        for _ in 0..1000 {
            most = most.max(used(&logs));
            looks += 1;
        }
        if ends_with(&file, b" whole\n").unwrap_or(false) {
            break;
        }
        assert!(clock::mono_now() - began < 4 * host::PATIENCE, "it hangs");
    }
    let (took, bytes) = (clock::mono_now() - began, written(flood) - before);
    let rate = u128::from(bytes) / took.as_millis().max(1) / 1000;
    println!("{rate} MB/s for {took:?}; at most {most} bytes in {looks} looks");
    let other = fs::metadata(&file).expect("a log").len();
    assert!(
        most <= FLOOD + other + BUFFER,
        "{most} bytes, and {FLOOD} of the flood and {other} may be"
    );
    assert!(most > FLOOD / 2, "{most} bytes: nothing was flooded");
    assert!(bytes > 20 * FLOOD, "{bytes} bytes were written");
    let said = host.ok(&["logs", &host::full("counts")]);
    let want = (1..=60_000).map(|n| format!("line {n}"));
    let want: Vec<String> = want.chain(["whole".to_owned()]).collect();
    assert!(
        said.lines().eq(want.iter()),
        "a line of another pod is lost"
    );
    host.finish();
}
