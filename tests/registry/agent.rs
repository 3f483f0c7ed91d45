//! The whole program, killed in the midst of a layer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::Ordering;

use picolet::sys::clock;

use crate::host::{Agent, PATIENCE, Place};
use crate::proxy::{Fault, Proxy};
use crate::registry::{Registry, able, noise};
use crate::{FILE_BYTES, NAME, files, layers};

#[test]
fn a_killed_agent_goes_on_in_the_midst_of_a_layer() {
    if !able() {
        return;
    }
    let registry = Registry::start();
    let filled = registry.fill(NAME, &layers(), &[]);
    let place = Place::new();
    let agent = Agent::start(&place);
    // Half of each layer comes, and then nothing: the agent waits when it is killed.
    let stuck = Proxy::start(registry.address, |asked| {
        if asked.path.contains("/blobs/") && asked.from == 0 {
            Fault::Stall(300_000)
        } else {
            Fault::None
        }
    });
    let document = format!(
        "mirrors:\n  registry.test:\n    endpoint: [\"http://{}\"]\n",
        stuck.address
    );
    fs::write(place.path("registries.yaml"), &document).expect("registries");
    drop(agent);
    let agent = Agent::start(&place);
    let image = format!("registry.test/{NAME}:1");
    let mut pull = agent
        .command(&["image", "pull", &image])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("picolet");
    let parts = place.path("root/images/pulls/blobs/sha256");
    let here = || -> u64 {
        let entries = fs::read_dir(&parts).into_iter().flatten().flatten();
        entries
            .filter_map(|e| e.metadata().ok())
            .map(|m| m.len())
            .sum()
    };
    let deadline = clock::mono_now() + PATIENCE;
    // All four layers, each up to where the proxy holds it.
    while here() < 4 * 250_000 {
        assert!(clock::mono_now() < deadline, "{} bytes", here());
        std::thread::yield_now();
    }
    let before = here();
    drop(agent);
    assert!(!pull.wait().expect("picolet").success());
    let proxy = Proxy::start(registry.address, |_| Fault::None);
    let document = document.replace(&stuck.address.to_string(), &proxy.address.to_string());
    fs::write(place.path("registries.yaml"), document).expect("registries");
    let agent = Agent::start(&place);
    let pulled = agent.cli(&["image", "pull", &image]);
    assert!(
        pulled.status.success(),
        "{}",
        String::from_utf8_lossy(&pulled.stderr)
    );
    for digest in &filled.layers {
        let asked = proxy.asked(digest);
        let log = fs::read_to_string(place.path("agent.log")).unwrap_or_default();
        assert!(asked[0].from > 0, "{asked:?}\n{log}");
    }
    let fetched = proxy.bytes.load(Ordering::SeqCst);
    let needed = filled.bytes();
    assert!(
        (before + fetched) * 100 <= needed * 105,
        "{before} and {fetched} bytes for {needed}"
    );
    // What is visible has the right bytes.
    let listed = agent.cli(&["image", "ls"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("registry.test/team/app"));
    for name in files() {
        let path = find(&place.path("root/images/layers"), name);
        assert!(
            fs::read(&path).expect("file") == noise(name, FILE_BYTES),
            "{name} has other bytes"
        );
    }
}

/// The file of this name in one of the layers.
fn find(layers: &Path, name: &str) -> PathBuf {
    fs::read_dir(layers)
        .expect("layers")
        .flatten()
        .map(|layer| layer.path().join(name))
        .find(|path| path.exists())
        .expect("the file is in a layer")
}
