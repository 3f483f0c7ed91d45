//! A network of its own for a test whose agent writes rules or devices that carry no mark of the test: tables of Services,
//! the device of the network between nodes.

use std::fs::File;
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};

/// Address of the machine in such a network.
pub(crate) const MACHINE: &str = "192.0.2.2";

/// The thread of the test, and all that it starts, in a network namespace of their own. It goes with the last of them.
pub(crate) struct OwnNetwork {
    before: File,
}

impl OwnNetwork {
    /// Enters a new one: with an address and a way to the world, where nobody answers.
    pub(crate) fn enter() -> Self {
        let before = File::open("/proc/thread-self/ns/net").expect("a namespace");
        unshare(CloneFlags::CLONE_NEWNET).expect("another");
        sh(&format!(
            "ip link set lo up
             ip link add eth0 type veth peer name world
             ip link set eth0 up
             ip link set world up
             ip addr add {MACHINE}/24 dev eth0
             ip route add default via 192.0.2.1"
        ));
        Self { before }
    }
}

impl Drop for OwnNetwork {
    fn drop(&mut self) {
        // The thread may run another test.
        setns(&self.before, CloneFlags::CLONE_NEWNET).expect("back");
    }
}

/// Runs a shell script, which must succeed. Returns its output.
pub(crate) fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output();
    let output = output.expect("sh");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let error = text(&output.stderr);
    assert!(output.status.success(), "{script}: {error}");
    text(&output.stdout)
}
