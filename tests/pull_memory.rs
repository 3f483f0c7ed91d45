//! What a pull costs an agent: memory while a large image comes in four layers at once, and writes. A debug build only shows
//! the memory, of a smaller image. Needs root, docker-registry and skopeo; says so and passes without them.

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;
#[path = "registry/host.rs"]
mod host;
#[path = "common/program.rs"]
mod program;
#[path = "registry/registry.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests of pulls, which need more of it"
)]
mod registry;

use std::fs;
use std::process::Stdio;

use host::{Agent, Place};
use program::is_shipped;
use registry::{Registry, able, layer};

/// Image name in the registry.
const NAME: &str = "team/app";
/// Size of each of the four layers, bytes.
const LAYER_BYTES: usize = 75 << 20;
/// Where the figure does not count.
const FEW_BYTES: usize = 8 << 20;
/// The agent's share of what it maps (PSS) while it pulls, KiB.
const AGENT_KIB: u64 = 10 * 1024;

/// Bytes that a pull writes beside the image, as it came and unpacked: records, and what file systems and tarballs add.
const ASIDE_BYTES: u64 = 2 << 20;

// WEAR-04
#[test]
fn four_layers_at_once() {
    if !able() {
        return;
    }
    let registry = Registry::start();
    let bytes = if is_shipped() { LAYER_BYTES } else { FEW_BYTES };
    let layers = ["a", "b", "c", "d"].map(|name| layer(name, bytes));
    registry.fill(NAME, &layers, &[]);
    drop(layers);
    let place = Place::new();
    let agent = Agent::start(&place);
    let pss = || number(&agent, "smaps_rollup", "Pss:");
    let written = || number(&agent, "io", "write_bytes:");
    let (before, nothing) = (pss(), written());
    let mut most = 0;
    let mut pull = || {
        let mut pull = agent
            .command(&["image", "pull", &format!("{}/{NAME}:1", registry.address)])
            .stdout(Stdio::null())
            .spawn()
            .expect("picolet");
        let status = loop {
            most = most.max(pss());
            if let Some(status) = pull.try_wait().expect("picolet") {
                break status;
            }
        };
        assert!(status.success(), "{status}");
    };
    pull();
    // Its bytes are random: they come as they are.
    let image = 4 * u64::try_from(bytes).expect("size");
    let once = written() - nothing;
    assert!(once >= image, "{once} of {image}: it is not written here");
    assert!(once <= 2 * image + ASIDE_BYTES, "{once} for {image}");
    pull();
    let again = written() - nothing - once;
    assert!(again <= ASIDE_BYTES, "{again} for what is there");
    println!("written {once} bytes for {image}, {again} when it is there");
    let peak = number(&agent, "status", "VmHWM:");
    println!(
        "agent before {before} KiB, at most {most} KiB, after {} KiB; peak {peak} KiB",
        pss()
    );
    if is_shipped() {
        assert!(
            most > 0 && most <= AGENT_KIB,
            "{most} KiB, at most {AGENT_KIB}"
        );
    }
}

/// A number of `/proc/<pid>/<file>`, in KiB or bytes as it is there; 0 if there is none.
fn number(agent: &Agent, file: &str, key: &str) -> u64 {
    let file = format!("/proc/{}/{file}", agent.child.id());
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(key));
    let number = line.and_then(|l| l.split_whitespace().next());
    number.and_then(|n| n.parse().ok()).unwrap_or(0)
}
