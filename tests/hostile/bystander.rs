//! The pod next to the hostile one, and the agent between them.

use std::fs;

use serde_json::json;

use crate::host::{Host, IDLE, sh, status_of};

/// One line is what can be read at a glance, and is no copy of what was sent.
const MAX_LINE_BYTES: usize = 3000;

/// A good pod, and what must stay as it is.
pub(crate) struct Bystander {
    pid: i32,
    agent: i32,
    most_kib: u64,
}

impl Bystander {
    /// Starts it. `most_kib` is the most memory that the agent may have used during one case.
    pub(crate) fn start(host: &Host, most_kib: u64) -> Self {
        host.pod("good", json!({"containers": [sh("main", IDLE)]}));
        host.wait_ready("good");
        Self {
            pid: host.pid("good", "main"),
            agent: host.agent_pid(),
            most_kib,
        }
    }

    /// From here on peak memory counts anew. Source: proc(5), clear_refs.
    pub(crate) fn forget_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.agent), "5").expect("clear_refs");
    }

    /// Peak memory of the agent, KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.agent)).expect("status");
        let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|l| l.split_whitespace().next()?.parse().ok());
        peak.expect("peak memory")
    }

    /// It runs in the same process, never restarted, and the agent's memory was bounded.
    pub(crate) fn is_untouched(&self, host: &Host, case: &str) {
        let peak = self.peak_kib();
        println!("{case}: peak memory of the agent {peak} KiB");
        assert!(peak <= self.most_kib, "{case}: the agent used {peak} KiB");
        let pod = host.get("good");
        let main = status_of(&pod, "main");
        assert_eq!(main["restartCount"], 0, "{case}: {main}");
        assert_eq!(main["ready"], true, "{case}: {main}");
        assert_eq!(host.pid("good", "main"), self.pid, "{case}");
        assert_eq!(host.exec("good", "main", "echo here"), "here\n", "{case}");
    }
}

/// Lines of the agent's log that name `what`, warnings and errors only.
pub(crate) fn complaints(host: &Host, what: &str) -> Vec<String> {
    let complains = |line: &&str| line.contains("WARN") || line.contains("ERROR");
    host.agent_log()
        .lines()
        .filter(|l| l.contains(what))
        .filter(complains)
        .map(str::to_owned)
        .collect()
}

/// Waits until the agent speaks of `what`. It must be one complaint, short, and say all of `says`; else what is wrong.
pub(crate) fn one_complaint(host: &Host, what: &str, says: &[&str]) -> Result<(), String> {
    host.until(what, |host| {
        let log = host.agent_log();
        (log.contains(what), log)
    });
    let found = complaints(host, what);
    let [line] = &found[..] else {
        return Err(format!("{} lines: {found:#?}", found.len()));
    };
    if line.len() > MAX_LINE_BYTES {
        return Err(format!("{} bytes: {line:.400}", line.len()));
    }
    match says.iter().find(|word| !line.contains(**word)) {
        Some(word) => Err(format!("no {word:?} in {line}")),
        None => Ok(()),
    }
}
