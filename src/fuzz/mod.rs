//! Entry points for fuzzing, one for each parser of data from outside. Not part of the program.
//!
//! Two drivers share them: `cargo xtask fuzz` (a plain mutator, any toolchain; a short run is among the tests), and
//! `fuzz/` (libFuzzer, `cargo fuzz run NAME`). A target takes any bytes. It panics if an invariant of the parser is
//! broken; the text that it returns tells kinds of outcome apart, which guides the plain mutator.

use core::cell::Cell;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::api::{ConfigMap, Quantity, Secret, WallTime, oci, strict};
use crate::config::{decode, duration};
#[cfg(feature = "update")]
use crate::logic::update::{MAX_RELEASE_BYTES, UpdateOffer};
use crate::logic::{
    dashboard, devices::cdi, dns, expansion, jsonpath::Template, static_pod, user, validation,
};
use crate::{agent, config, image, kube, parts, runtime, server, shim, stream};

mod grpc;
#[cfg(test)]
mod mutate;
#[cfg(test)]
mod run;
#[cfg(test)]
mod seeds;

/// A parser under test.
pub struct Target {
    /// Name, also of the libFuzzer target.
    pub name: &'static str,
    /// Feeds the parser. Returns the kind of outcome.
    pub run: fn(&[u8]) -> String,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("manifest", manifest),
    target("config", config_document),
    target("quantity", quantity),
    target("jsonpath", jsonpath_template),
    target("reference", image::fuzz::reference),
    target("image_documents", |data| {
        image::fuzz::documents(data, &scratch())
    }),
    target("image_json", image_json),
    target("tar", image::fuzz::tar),
    target("layer", |data| image::fuzz::layer(data, &scratch())),
    target("compressed", image::fuzz::compressed),
    target("registry_headers", image::registry::fuzz::headers),
    target("registry_bodies", image::registry::fuzz::bodies),
    target("registries", registries),
    target("credentials", credentials),
    target("cni", runtime::runc::cni::fuzz::run),
    target("runtime_message", runtime_message),
    target("records", records),
    target("pod_record", agent::fuzz::run),
    target("log_lines", log_lines),
    target("log_reader", |data| {
        server::log_reader::fuzz::run(data, &scratch())
    }),
    target("http", server::http::fuzz::run),
    target("expansion", expand),
    target("passwd", passwd),
    target("texts", texts),
    target("kubeconfig", kube::fuzz::kubeconfig),
    target("pod_list", kube::fuzz::pod_list),
    target("watch", kube::fuzz::watch),
    #[cfg(feature = "provider")]
    target("provider_words", parts::fuzz::provider::words),
    #[cfg(feature = "provider")]
    target("provider_streams", parts::fuzz::provider::run),
    target("spdy", stream::fuzz::spdy),
    target("websocket", stream::fuzz::websocket),
    target("http2", grpc::http2),
    target("hpack", grpc::hpack),
    target("protobuf", grpc::protobuf),
    #[cfg(feature = "tunnel")]
    target("tunnel", parts::tunnel::fuzz::packets),
    #[cfg(feature = "update")]
    target("channel", channel),
    target("cdi", cdi_file),
];

const fn target(name: &'static str, run: fn(&[u8]) -> String) -> Target {
    Target { name, run }
}

/// Runs the target called `name`.
///
/// # Panics
/// There is no such target, or an invariant of its parser is broken.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|t| t.name == name);
    (target.expect("a target of this name").run)(data);
}

/// Makes a directory of this thread's own for targets that need files, in memory if possible. The directory stays
/// behind.
fn scratch() -> PathBuf {
    thread_local! {
        static MADE: Cell<bool> = const { Cell::new(false) };
    }
    let base = ["/dev/shm", "/tmp"]
        .iter()
        .map(Path::new)
        .find(|p| p.is_dir());
    let thread = format!("{:?}", std::thread::current().id());
    let thread: String = thread.chars().filter(char::is_ascii_digit).collect();
    let name = format!("picolet-fuzz-{}-{thread}", std::process::id());
    let dir = base.expect("a directory for temporary files").join(name);
    if !MADE.replace(true) {
        std::fs::create_dir_all(&dir).expect("scratch");
    }
    dir
}

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

fn outcome<T, E: ToString>(result: Result<T, E>) -> String {
    result.map_or_else(|e| e.to_string(), |_| "ok".into())
}

fn manifest(data: &[u8]) -> String {
    let value = match decode::parse_document(data) {
        Ok(document) => document.value,
        Err(e) => return e.to_string(),
    };
    match value["kind"].as_str() {
        Some("ConfigMap") => match decode::deserialize_value::<ConfigMap>(&value) {
            Ok(object) => outcome(validation::validate_config_map(&object)),
            Err(e) => e.to_string(),
        },
        Some("Secret") => match decode::deserialize_value::<Secret>(&value) {
            Ok(object) => outcome(validation::validate_secret(&object)),
            Err(e) => e.to_string(),
        },
        _ => match static_pod::prepare_static_pod(value, "node", "/manifests/a.yaml") {
            Ok(received) => {
                let uid = received.pod.metadata.uid.as_str();
                assert!(!uid.is_empty() && !uid.contains('/') && !uid.starts_with('.'));
                let name = &received.pod.metadata.name;
                assert!(!name.contains('/') && name.len() <= 253, "{name}");
                // The manifest is recorded, and read after a restart.
                let again =
                    static_pod::decode_recorded_pod(&received.raw).expect("a record can be read");
                assert_eq!(again.spec, received.pod.spec);
                let text = serde_json::to_vec(&received.raw).expect("json");
                let read: serde_json::Value = strict::from_json(&text).expect("json");
                assert_eq!(read, received.raw);
                "ok".into()
            }
            Err(e) => {
                let text = e.to_string();
                assert!(text.len() < 1 << 20, "an error is no copy of the manifest");
                text
            }
        },
    }
}

fn config_document(data: &[u8]) -> String {
    outcome(config::file::read_config_document(
        data,
        Path::new("/etc/picolet"),
    ))
}

/// Reads the file of an update channel. The file is signed; even so, no name in it may lead to another directory.
#[cfg(feature = "update")]
fn channel(data: &[u8]) -> String {
    match UpdateOffer::parse(data) {
        Ok(offer) => {
            let base = offer.tarball_directory();
            assert!(!base.contains('/') && base.len() < 256, "{base:?}");
            assert!(offer.size <= MAX_RELEASE_BYTES && offer.share <= 100);
            "ok".into()
        }
        Err(e) => e.to_string(),
    }
}

fn jsonpath_template(data: &[u8]) -> String {
    let object = serde_json::json!({
        "items": [{"name": "a", "list": [1, 2.5, null, true]}, {"name": "b", "list": []}],
        "map": {"a.b": "c", "d": {"e": "f"}},
    });
    let read = Template::parse(&text(data));
    match read.and_then(|template| template.render(&object)) {
        Ok(_) => "ok".into(),
        Err(e) => e.into(),
    }
}

fn quantity(data: &[u8]) -> String {
    match Quantity::parse(&text(data)) {
        Ok(quantity) => {
            let again = Quantity::parse(quantity.as_str()).expect("as it was written");
            assert_eq!(
                (again.value(), again.milli_value()),
                (quantity.value(), quantity.milli_value())
            );
            "ok".into()
        }
        Err(e) => e.to_string(),
    }
}

fn image_json(data: &[u8]) -> String {
    fn read<T: DeserializeOwned>(data: &[u8]) -> String {
        outcome(strict::from_json::<T>(data))
    }
    [
        read::<oci::Manifest>(data),
        read::<oci::Index>(data),
        read::<oci::ImageConfig>(data),
        read::<image::ImageRecord>(data),
    ]
    .join(" ")
}

fn registries(data: &[u8]) -> String {
    match decode::parse_document(data) {
        Ok(document) => image::registry::fuzz::registries(&document.value),
        Err(e) => e.to_string(),
    }
}

/// Reads a CDI file of a vendor, and applies its devices to a container.
fn cdi_file(data: &[u8]) -> String {
    let value = match decode::parse_document(data) {
        Ok(document) => document.value,
        Err(e) => return e.to_string(),
    };
    let names = ["v.com/c=0", "v.com/c=one"].map(String::from);
    let file = match cdi::read_named_devices(value, &names) {
        Ok(file) => file,
        Err(e) => return e.message,
    };
    let there = file
        .devices
        .iter()
        .map(|(name, _)| name.clone())
        .collect::<Vec<_>>();
    let edits = match cdi::resolve_edits(vec![file], &there, &[], true) {
        Ok(edits) => edits,
        Err(e) => return e.to_string(),
    };
    let mut spec = oci::Spec::default();
    let done = cdi::apply_edits(&mut spec, edits);
    assert!(done.is_err() || serde_json::to_string(&spec).is_ok());
    outcome(done)
}

fn credentials(data: &[u8]) -> String {
    let document = decode::parse_document(data)
        .ok()
        .map(|document| document.value);
    image::registry::fuzz::credentials(data, document.as_ref())
}

fn runtime_message(data: &[u8]) -> String {
    let log = text(data);
    let message = shim::runtime_message(&log);
    assert!(message.len() <= log.len().max(64) * 2);
    format!("{}", runtime::runc::program::is_container_gone(&message))
}

fn records(data: &[u8]) -> String {
    use runtime::runc::record::{ContainerRecord, SandboxRecord};
    [
        outcome(strict::from_json::<shim::ContainerStateRecord>(data)),
        outcome(strict::from_json::<shim::ContainerExitRecord>(data)),
        outcome(strict::from_json::<SandboxRecord>(data)),
        outcome(strict::from_json::<ContainerRecord>(data)),
    ]
    .join(" ")
}

/// Splits container output into records: nothing is lost, nothing added, no record over its limit.
fn log_lines(data: &[u8]) -> String {
    shim::fuzz::run(data)
}

fn expand(data: &[u8]) -> String {
    let source = text(data);
    let value = source.clone();
    match expansion::expand_references(&source, |name| (name.len() % 2 == 1).then(|| value.clone()))
    {
        Ok(text) => {
            assert!(text.len() <= expansion::MAX_WORD_BYTES);
            "ok".into()
        }
        Err(e) => e.to_string(),
    }
}

fn passwd(data: &[u8]) -> String {
    let source = text(data);
    let mut parts = source.splitn(3, '\u{1}');
    let mut next = || parts.next().unwrap_or_default();
    let (who, passwd, group) = (next(), next(), next());
    let security = crate::api::cri::LinuxSecurity::default();
    match user::resolve_user(&security, who, passwd, group) {
        Ok(user) => {
            assert!(i32::try_from(user.uid).is_ok() && i32::try_from(user.gid).is_ok());
            assert!(user.additional_gids.contains(&user.gid));
            "ok".into()
        }
        Err(e) => e.to_string(),
    }
}

/// Reads small texts: durations, times, resolver files, seccomp profiles, requests to the dashboard.
fn texts(data: &[u8]) -> String {
    let source = text(data);
    if let Some(time) = WallTime::parse(&source) {
        assert!(WallTime::parse(&time.rfc3339_nanos()).is_some());
    }
    let duration = duration::parse_go_duration(&source).is_some();
    let resolver = outcome(dns::parse_resolv_conf(&source));
    let profile = outcome(strict::from_json::<oci::SeccompFilter>(data));
    let asked = dashboard::DashboardRequester {
        host: Some(&source),
        origin: None,
        authorization: None,
        local: core::net::IpAddr::from([127, 0, 0, 1]),
    };
    let host = dashboard::check_request(
        &asked,
        dashboard::DashboardRequestKind::Page,
        "token",
        false,
    );
    if let Err(denied) = &host {
        assert!(denied.to_string().len() < 1024);
    }
    // Without a token no data is shown, whatever else the request has.
    assert!(
        dashboard::check_request(&asked, dashboard::DashboardRequestKind::Data, "token", true)
            .is_err()
    );
    format!("{duration} {resolver} {profile} {}", host.is_ok())
}
