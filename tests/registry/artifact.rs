//! A channel of releases that a registry keeps as an artefact, pushed as `oras push` does it.

use core::time::Duration;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use picolet::image::ImageReference;
use picolet::image::pull::{ArtifactReader, PullSettings};
use picolet::image::registry::{RegistriesConfig, RegistryTimeLimits};
use picolet::parts::channel::{ARTIFACT, ChannelError, ReleaseChannel};
use serde_json::{Value, json};

use crate::proxy::{Fault, Proxy};
use crate::registry::{Registry, Scratch, able, hex, noise};

/// Name in the registry.
const NAME: &str = "picolet/stable";
const TARBALL: &str = "picolet-1.0.0-vax.tar.gz";
const SIZE: usize = 700_000;

/// Sends a request, as an operator would who has no oras. Returns the head of the answer.
fn curl(words: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["-fsS", "-i"])
        .args(words)
        .output();
    let output = output.expect("curl");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl {words:?}: {errors}{said}");
    said
}

/// Puts an artefact there; `files` by their titles.
fn push(registry: &Registry, tag: &str, kind: &str, files: &[(&str, &[u8])], user: &[&str]) {
    let base = format!("http://{}/v2/{NAME}", registry.address);
    let scratch = Scratch::new();
    let file = scratch.0.join("blob");
    let put = |bytes: &[u8]| {
        fs::write(&file, bytes).expect("blob");
        let uploads = format!("{base}/blobs/uploads/");
        let begun = curl(&[user, &["-X", "POST", &uploads]].concat());
        let place = begun.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("location")
                .then(|| value.trim().to_owned())
        });
        let digest = format!("sha256:{}", hex(bytes));
        let place = format!("{}&digest={digest}", place.expect("a place"));
        let from = file.display().to_string();
        let kind = "content-type: application/octet-stream";
        curl(&[user, &["-X", "PUT", "-H", kind, "-T", &from, &place]].concat());
        json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": bytes.len()})
    };
    let mut config = put(b"{}");
    config["mediaType"] = "application/vnd.oci.empty.v1+json".into();
    let layers = files.iter().map(|(title, bytes)| {
        let mut layer = put(bytes);
        layer["annotations"] = json!({"org.opencontainers.image.title": title});
        layer
    });
    let of_manifest = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": of_manifest, "artifactType": kind,
        "config": config, "layers": layers.collect::<Vec<Value>>(),
    });
    let from = scratch.0.join("manifest");
    fs::write(&from, manifest.to_string()).expect("manifest");
    let (from, to) = (
        from.display().to_string(),
        format!("{base}/manifests/{tag}"),
    );
    let kind = format!("content-type: {of_manifest}");
    curl(&[user, &["-X", "PUT", "-H", &kind, "-T", &from, &to]].concat());
}

/// The channel at a name, looked at with these registries.
fn channel(name: &str, registries: &Value) -> ReleaseChannel {
    let settings = PullSettings {
        registries: RegistriesConfig::parse(registries).expect("registries"),
        limits: RegistryTimeLimits {
            retry: Duration::from_millis(1),
            ..RegistryTimeLimits::default()
        },
        ..PullSettings::default()
    };
    let reference = ImageReference::parse(name).expect("a reference");
    ReleaseChannel::in_registry(ArtifactReader::new(settings, reference, ARTIFACT), "vax")
}

fn fetch(channel: &mut ReleaseChannel, bytes: &[u8], part: &Path) -> Result<bool, ChannelError> {
    let size = bytes.len() as u64;
    channel.fetch_tarball(TARBALL, (size, &hex(bytes)), part)
}

// UPD-02
#[test]
fn a_channel_in_a_registry() {
    if !able() {
        return;
    }
    let registry = Registry::start();
    let tarball = noise("tarball", SIZE);
    let files: [(&str, &[u8]); 4] = [
        ("channel.json", b"of all"),
        ("channel-vax.json", b"of this board"),
        ("channel-vax.json.sig", b"signature"),
        (TARBALL, &tarball),
    ];
    push(&registry, "latest", ARTIFACT, &files, &[]);
    // The link breaks once, in the tarball.
    let is_cut = AtomicBool::new(false);
    let digest = format!("sha256:{}", hex(&tarball));
    let proxy = Proxy::start(registry.address, move |asked| {
        let is_tarball = asked.path.ends_with(&digest);
        match is_tarball && !is_cut.swap(is_tarball, Ordering::SeqCst) {
            true => Fault::Cut(300_000),
            false => Fault::None,
        }
    });
    let scratch = Scratch::new();
    let part = scratch.0.join("part");
    let mut there = channel(&format!("{}/{NAME}", proxy.address), &json!({}));
    let read = there.read_channel_file().expect("read");
    assert_eq!(read, (b"of this board".to_vec(), b"signature".to_vec()));
    assert!(!fetch(&mut there, &tarball, &part).expect("fetched"));
    assert!(fs::read(&part).expect("tarball") == tarball, "other bytes");
    let passed = proxy.bytes.load(Ordering::SeqCst);
    assert!(passed < SIZE as u64 + 50_000, "{passed} bytes came");
    assert_eq!(proxy.faults.load(Ordering::SeqCst), 1);
    // What is there is not fetched again; what is there of something else does no harm.
    assert!(!fetch(&mut there, &tarball, &part).expect("there"));
    assert_eq!(proxy.bytes.load(Ordering::SeqCst), passed);
    fs::write(&part, &tarball[1..]).expect("written");
    assert!(!fetch(&mut there, &tarball, &part).expect("fetched"));
    assert!(fs::read(&part).expect("tarball") == tarball, "other bytes");
    // By a mirror; and not where nobody is.
    let mirror = json!({"mirrors": {"registry.test": {"endpoint": [format!("http://{}", registry.address)]}}});
    let read = channel(&format!("registry.test/{NAME}:latest"), &mirror).read_channel_file();
    assert_eq!(read.expect("read").1, b"signature");
    registry_is_told(&registry, &tarball, &part);
}

/// Whatever is wrong says so, and whether it may pass.
fn registry_is_told(registry: &Registry, tarball: &[u8], part: &Path) {
    let of = |tag: &str| channel(&format!("{}/{NAME}:{tag}", registry.address), &json!({}));
    let name = |tag: &str| format!("{}/{NAME}:{tag}", registry.address);
    let wrong = |found: ChannelError, may_pass: bool, says: &str| {
        let said = found.to_string();
        assert!(said.contains(says), "{said}");
        assert_eq!(found.may_succeed_later(), may_pass, "{said}");
    };
    let none = of("none").read_channel_file().expect_err("no tag");
    let says = format!(
        "{}: http://{}/v2/{NAME}/manifests/none answers 404",
        name("none"),
        registry.address
    );
    wrong(none, true, &says);
    push(
        registry,
        "other",
        "application/vnd.example",
        &[("channel.json", b"x")],
        &[],
    );
    let other = format!(
        "{} is of type \"application/vnd.example\", not \"{ARTIFACT}\"",
        name("other")
    );
    wrong(
        of("other").read_channel_file().expect_err("another type"),
        false,
        &other,
    );
    let large = vec![b'x'; 16 * 1024 + 1];
    push(
        registry,
        "large",
        ARTIFACT,
        &[("channel.json", &large), ("channel.json.sig", b"s")],
        &[],
    );
    wrong(
        of("large").read_channel_file().expect_err("too large"),
        false,
        "channel.json has more than 16384 bytes",
    );
    push(registry, "bare", ARTIFACT, &[("channel.json", b"x")], &[]);
    let lacks = format!("{} has no file \"channel.json.sig\"", name("bare"));
    wrong(
        of("bare").read_channel_file().expect_err("no signature"),
        false,
        &lacks,
    );
    // What was signed is not what lies there: nothing is fetched.
    let mut there = of("latest");
    there.read_channel_file().expect("read");
    fs::remove_file(part).expect("removed");
    let mut signed = tarball.to_vec();
    signed[0] ^= 1;
    let found = fetch(&mut there, &signed, part).expect_err("another sum");
    wrong(found, false, "in the registry is not the released file");
    let found = fetch(&mut there, &tarball[1..], part).expect_err("another size");
    wrong(
        found,
        false,
        &format!("it has digest sha256:{} and {SIZE} bytes", hex(tarball)),
    );
    let found = there
        .fetch_tarball("../x", (1, ""), part)
        .expect_err("no such file");
    wrong(found, false, "has no file \"../x\"");
    assert!(!part.exists());
    // A registry that gives other bytes than it promises, again and again.
    let proxy = Proxy::start(registry.address, |asked| {
        match asked.path.contains("/blobs/") {
            true => Fault::Spoil(5),
            false => Fault::None,
        }
    });
    let mut there = channel(&format!("{}/{NAME}", proxy.address), &json!({}));
    wrong(
        there.read_channel_file().expect_err("spoiled"),
        false,
        "digest is ",
    );
}

// UPD-02
#[test]
fn with_the_credentials_of_images() {
    if !able() {
        return;
    }
    let registry = Registry::start_guarded();
    let files: [(&str, &[u8]); 2] = [("channel.json", b"offer"), ("channel.json.sig", b"s")];
    push(
        &registry,
        "latest",
        ARTIFACT,
        &files,
        &["-u", "user:secret"],
    );
    let name = format!("{}/{NAME}", registry.address);
    let refused = channel(&name, &json!({}))
        .read_channel_file()
        .expect_err("nobody");
    assert!(refused.may_succeed_later(), "{refused}");
    assert!(
        refused
            .to_string()
            .contains("refuses access to picolet/stable"),
        "{refused}"
    );
    let host = registry.address.to_string();
    let auth = json!({"configs": {host: {"auth": {"username": "user", "password": "secret"}}}});
    let read = channel(&name, &auth).read_channel_file().expect("read");
    assert_eq!(read.0, b"offer");
}
