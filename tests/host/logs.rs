//! All logs together have a limit.

use std::{fs, path::Path};

use serde_json::json;

use crate::host::{self, Host, IDLE, sh};

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
