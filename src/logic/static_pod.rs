//! Static pods: pods that come from a manifest instead of the apiserver. Names follow kubelet `config/common.go` and
//! `types/pod_update.go`.

use alloc::boxed::Box;

use serde_json::{Value, json};

use super::digest::FnvHasher;
use super::mux::set_annotation;
use super::{defaults, validation};
use crate::api::pod::{CONFIG_HASH, PodOs, Toleration};
use crate::api::pod_status::PodPhase;
use crate::api::received::{InvalidObject, ReceivedPod};
use crate::api::strict::WrongValue;
use crate::api::{Pod, PodUid, strict};

/// Longest uid a manifest may bring: it becomes part of file names.
pub const MAX_UID_BYTES: usize = 128;
/// Operating system of this node, as `spec.os` names it.
const OS: &str = "linux";
/// Bytes of a pod's name: those of a DNS subdomain.
const MAX_NAME_BYTES: usize = 253;

/// Turns a manifest into a pod of this node: identity, defaults, full validation (SRC-20, SRC-25 to SRC-28).
///
/// - `raw`: the whole object, without `null` fields. `node`: the node's name, lower case. `file`: the manifest's path.
/// - Errors: every wrong field with its path; nothing of the pod may run then.
/// - Source: kubelet `config/file.go` (`extractFromFile`), `config/common.go` (`applyDefaults`).
pub fn prepare_static_pod(
    raw: Value,
    node: &str,
    file: &str,
) -> Result<Box<ReceivedPod>, InvalidObject> {
    prepare_from(raw, node, ManifestOrigin::File(file))
}

/// Turns a manifest from a URL into a pod of this node, as [`prepare_static_pod`] does for a file.
///
/// - Source: kubelet `config/http.go` (`extractFromURL`).
pub fn prepare_from_url(
    raw: Value,
    node: &str,
    url: &str,
) -> Result<Box<ReceivedPod>, InvalidObject> {
    prepare_from(raw, node, ManifestOrigin::Url(url))
}

/// Place that a manifest was read from.
#[derive(Clone, Copy, Debug)]
enum ManifestOrigin<'a> {
    File(&'a str),
    Url(&'a str),
}

fn prepare_from(
    mut raw: Value,
    node: &str,
    place: ManifestOrigin<'_>,
) -> Result<Box<ReceivedPod>, InvalidObject> {
    defaults::convert_octal_modes(&mut raw);
    let pod = decode_recorded_pod(&raw)?;
    if pod.metadata.name.is_empty() {
        let why = "Required value: name or generateName is required";
        return Err(WrongValue::new("metadata.name", why).into());
    }
    let uid = if pod.metadata.uid.is_empty() {
        derive_static_pod_uid(&raw, node, place)
    } else {
        check_uid(&pod.metadata.uid)?;
        pod.metadata.uid.clone()
    };
    let mut received = Box::new(ReceivedPod {
        pod,
        raw,
        origin: match place {
            ManifestOrigin::File(file) => file.into(),
            // A query may contain a secret.
            ManifestOrigin::Url(url) => url.split('?').next().unwrap_or("").into(),
        },
    });
    set_pod_identity(&mut received, uid, node, place);
    let mut errors = validation::find_unmodelled_fields(&received.raw);
    errors.extend(validation::validate_pod(&received.pod));
    errors.extend(validation::find_static_references(&received.pod));
    if errors.is_empty() {
        return Ok(received);
    }
    let name = &received.pod.metadata.name;
    // A longer name is one of the errors.
    let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES)];
    Err(InvalidObject::Values("Pod", name.into(), errors))
}

/// Decodes and defaults a pod from its raw form, as it is kept in a pod record.
///
/// Errors: the path of the first value of a wrong kind.
pub fn decode_recorded_pod(raw: &Value) -> Result<Pod, WrongValue> {
    let mut pod: Pod = strict::typed_from_value(raw)?;
    defaults::default_volume_sources(&mut pod, raw);
    defaults::set_pod_defaults(&mut pod);
    Ok(pod)
}

/// 32 hexadecimal digits that change with the content and the place, of a file also with the node (SRC-25).
fn derive_static_pod_uid(raw: &Value, node: &str, place: ManifestOrigin<'_>) -> PodUid {
    let mut fnv = FnvHasher::default();
    fnv.write_value(raw);
    match place {
        ManifestOrigin::File(file) => {
            fnv.write_text("host:");
            fnv.write_text(node);
            fnv.write_text("file:");
            fnv.write_text(file);
        }
        ManifestOrigin::Url(url) => {
            fnv.write_text("url:");
            fnv.write_text(url);
        }
    }
    PodUid::new(format!("{:032x}", fnv.finish()))
}

/// Checks that a uid is one plain path component, for it names directories.
fn check_uid(uid: &str) -> Result<(), WrongValue> {
    if is_plain_uid(uid) {
        return Ok(());
    }
    let why = format!(
        "Invalid value: {uid:?}: must be at most {MAX_UID_BYTES} letters, digits, '-', '_' or '.', and not start with '.'"
    );
    Err(WrongValue::new("metadata.uid", why))
}

pub(super) fn is_plain_uid(uid: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=MAX_UID_BYTES).contains(&uid.len()) && uid.chars().all(plain) && !uid.starts_with('.')
}

/// Gives the pod its identity on this node, in both forms (SRC-26, SRC-27).
fn set_pod_identity(
    received: &mut ReceivedPod,
    uid: PodUid,
    node: &str,
    place: ManifestOrigin<'_>,
) {
    let tolerate_all = Toleration {
        operator: "Exists".into(),
        effect: "NoExecute".into(),
        ..Toleration::default()
    };
    let ReceivedPod { pod, raw, .. } = received;
    let metadata = &mut pod.metadata;
    metadata.name = format!("{}-{node}", metadata.name);
    if metadata.namespace.is_empty() {
        metadata.namespace = "default".into();
    }
    raw["metadata"]["name"] = json!(metadata.name);
    raw["metadata"]["namespace"] = json!(metadata.namespace);
    raw["metadata"]["uid"] = json!(uid);
    metadata.uid = uid.clone();
    pod.spec.node_name = node.into();
    for part in ["spec", "status"] {
        if !raw[part].is_object() {
            raw[part] = json!({});
        }
    }
    raw["spec"]["nodeName"] = json!(node);
    if pod.spec.os.is_none() && has_stop_signal(pod) {
        // A stop signal needs an operating system in the API (STS-01). All static pods run on this one.
        raw["spec"]["os"] = json!({"name": OS});
        pod.spec.os = Some(PodOs { name: OS.into() });
    }
    pod.status.phase = PodPhase::Pending;
    raw["status"]["phase"] = json!("Pending");
    if matches!(place, ManifestOrigin::File(_)) {
        if !raw["spec"]["tolerations"].is_array() {
            raw["spec"]["tolerations"] = json!([]);
        }
        if let Some(tolerations) = raw["spec"]["tolerations"].as_array_mut() {
            tolerations.push(json!(tolerate_all));
        }
        pod.spec.tolerations.push(tolerate_all);
    }
    set_annotation(received, CONFIG_HASH, &uid);
}

fn has_stop_signal(pod: &Pod) -> bool {
    let mut lifecycles = pod
        .spec
        .all_containers()
        .filter_map(|c| c.lifecycle.as_ref());
    lifecycles.any(|lifecycle| lifecycle.stop_signal.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod::{CONFIG_MIRROR, CONFIG_SOURCE};
    use crate::pod_kind;

    fn manifest() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        })
    }

    fn prepared(raw: Value, node: &str, file: &str) -> ReceivedPod {
        *prepare_static_pod(raw, node, file).expect("valid")
    }

    #[test]
    fn identity() {
        // SRC-26 SRC-27
        let ReceivedPod { pod, raw, origin } = prepared(manifest(), "board", "/m/web.yaml");
        let metadata = &pod.metadata;
        assert_eq!(
            (&*metadata.name, &*metadata.namespace),
            ("web-board", "default")
        );
        assert_eq!(pod.spec.node_name, "board");
        assert_eq!(pod.status.phase, PodPhase::Pending);
        assert_eq!(metadata.annotations[CONFIG_HASH], *metadata.uid);
        let [toleration] = &*pod.spec.tolerations else {
            panic!("{:?}", pod.spec.tolerations)
        };
        assert_eq!(
            (&*toleration.operator, &*toleration.effect),
            ("Exists", "NoExecute")
        );
        assert_eq!(&*origin, "/m/web.yaml");
        assert_eq!(
            decode_recorded_pod(&raw).expect("raw carries the identity"),
            pod
        );
        let mut own = manifest();
        own["metadata"]["namespace"] = json!("other");
        own["metadata"]["annotations"] = json!({(CONFIG_HASH): "theirs", "note": "x"});
        own["status"] = json!({"phase": "Running"});
        own["spec"]["nodeName"] = json!("elsewhere");
        let other = prepared(own, "board", "f").pod;
        assert_eq!(other.metadata.namespace, "other");
        assert_eq!(other.metadata.name, "web-board");
        assert_eq!(other.spec.node_name, "board");
        // The name of a node is lower case by now (CONF-16).
        assert_eq!(other.status.phase, PodPhase::Pending);
        let notes = &other.metadata.annotations;
        assert_eq!(
            (&*notes[CONFIG_HASH], &*notes["note"]),
            (&*other.metadata.uid, "x")
        );
        // The hash is that of the manifest as written, not of the prepared pod.
        let mut named = manifest();
        named["metadata"]["name"] = json!("web-board");
        assert_ne!(
            prepared(named, "board", "/m/web.yaml").pod.metadata.uid,
            metadata.uid
        );
        assert_eq!(
            prepared(manifest(), "board", "/m/web.yaml")
                .pod
                .metadata
                .uid,
            metadata.uid
        );
    }

    #[test]
    fn a_stop_signal_without_an_operating_system() {
        // STS-01
        let with = |signal: &str, os: &Value| {
            let mut raw = manifest();
            raw["spec"]["containers"][0]["lifecycle"] = json!({"stopSignal": signal});
            if !os.is_null() {
                raw["spec"]["os"] = os.clone();
            }
            raw
        };
        let linux = json!({"name": "linux"});
        for os in [&Value::Null, &linux] {
            let ReceivedPod { pod, raw, .. } = prepared(with("SIGQUIT", os), "n", "f");
            // The mirror pod is made of the raw form: the apiserver asks for it too.
            assert_eq!(raw["spec"]["os"], linux);
            assert_eq!(decode_recorded_pod(&raw).expect("pod"), pod);
        }
        let uid = |raw| prepared(raw, "n", "f").pod.metadata.uid;
        assert_ne!(
            uid(with("SIGQUIT", &Value::Null)),
            uid(with("SIGQUIT", &linux))
        );
        assert!(prepared(manifest(), "n", "f").pod.spec.os.is_none());
        let wrong = prepare_static_pod(with("QUIT", &Value::Null), "n", "f").expect_err("wrong");
        assert!(
            format!("{wrong}")
                .contains("spec.containers[0].lifecycle.stopSignal: Unsupported value"),
            "{wrong}"
        );
    }

    #[test]
    fn uids() {
        // SRC-25
        let uid = |raw: Value, node: &str, file: &str| prepared(raw, node, file).pod.metadata.uid;
        let base = uid(manifest(), "n", "/m/a");
        assert_eq!(base, uid(manifest(), "n", "/m/a"), "stable");
        assert!(
            base.len() == 32
                && base
                    .bytes()
                    .all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
        );
        let mut edited = manifest();
        edited["spec"]["containers"][0]["image"] = json!("j");
        let mut unmodelled = manifest();
        unmodelled["spec"]["someday"] = json!(1);
        for (name, other) in [
            ("content", uid(edited, "n", "/m/a")),
            (
                "content without a field of ours",
                uid(unmodelled, "n", "/m/a"),
            ),
            ("node", uid(manifest(), "m", "/m/a")),
            ("path", uid(manifest(), "n", "/m/b")),
        ] {
            assert_ne!(base, other, "{name}");
        }
    }

    #[test]
    fn from_a_url() {
        // SRC-25 SRC-26 SRC-27
        let from =
            |raw: Value, node: &str, url: &str| *prepare_from_url(raw, node, url).expect("valid");
        let url = "http://h/m?key=secret";
        let ReceivedPod { pod, raw, origin } = from(manifest(), "n", url);
        assert_eq!((&*pod.metadata.name, &*origin), ("web-n", "http://h/m"));
        assert_eq!(pod.metadata.annotations[CONFIG_HASH], *pod.metadata.uid);
        assert!(pod.spec.tolerations.is_empty() && raw["spec"]["tolerations"].is_null());
        let uid = |node: &str, url: &str| from(manifest(), node, url).pod.metadata.uid;
        assert_eq!(uid("n", url), uid("m", url), "one uid on all nodes");
        assert_ne!(uid("n", url), uid("n", "http://h/m?key=other"));
        assert_ne!(
            uid("n", url),
            prepared(manifest(), "n", url).pod.metadata.uid
        );
    }

    #[test]
    fn explicit_uid() {
        // SRC-28
        let mut raw = manifest();
        raw["metadata"]["uid"] = json!("My-uid.1");
        let pod = prepared(raw.clone(), "n", "f").pod;
        assert_eq!(&*pod.metadata.uid, "My-uid.1");
        assert_eq!(pod.metadata.annotations[CONFIG_HASH], "My-uid.1");
        for bad in ["../../etc", "a/b", ".", "..", "a b", &"x".repeat(129)] {
            raw["metadata"]["uid"] = json!(bad);
            let error = prepare_static_pod(raw.clone(), "n", "f").expect_err(bad);
            assert!(
                format!("{error}").starts_with("metadata.uid: Invalid value"),
                "{error}"
            );
        }
    }

    #[test]
    fn refused() {
        // SRC-20
        for (pointer, value, says) in [
            (
                "/metadata/name",
                json!(""),
                "metadata.name: Required value: name or generateName is required",
            ),
            (
                "/metadata/name",
                json!(5),
                "metadata.name: invalid type: integer `5`, expected a string in quotes",
            ),
            (
                "/metadata/labels/a",
                json!(true),
                "metadata.labels.a: invalid type: boolean `true`, expected a string in quotes",
            ),
            (
                "/spec/containers/0/image",
                json!(""),
                "Pod \"web-n\" is invalid: spec.containers[0].image: Required value",
            ),
            (
                "/spec/containers/0/ports",
                json!([{"containerPort": 70000}]),
                "spec.containers[0].ports[0].containerPort: invalid value: integer `70000`, expected a whole number from 0 to 65535",
            ),
            (
                "/spec/containers/0/resources",
                json!({"limits": {"cpu": "lots"}}),
                "spec.containers[0].resources.limits.cpu: \"lots\" is not a quantity",
            ),
            (
                "/spec/restartPolicy",
                json!("Sometimes"),
                "spec.restartPolicy: unknown variant `Sometimes`, expected one of `Always`, `OnFailure`, `Never`",
            ),
            (
                "/spec",
                json!([]),
                "spec: invalid type: sequence, expected a map",
            ),
            (
                "/spec/volumes",
                json!({"a": 1}),
                "spec.volumes: invalid type: map, expected a sequence",
            ),
        ] {
            let mut raw = manifest();
            let (parent, field) = pointer.rsplit_once('/').expect("pointer");
            raw.pointer_mut(parent).expect("parent")[field] = value;
            let error = prepare_static_pod(raw, "n", "f").expect_err(pointer);
            assert!(format!("{error}").starts_with(says), "{pointer}: {error}");
        }
        // Never a panic, whatever the object is.
        for odd in [
            json!(null),
            json!([]),
            json!("x"),
            json!({"metadata": []}),
            json!({"metadata": {"name": "a"}, "spec": {"volumes": [1]}}),
        ] {
            prepare_static_pod(odd.clone(), "n", "f").expect_err(&format!("{odd}"));
        }
    }

    #[test]
    fn kinds_of_pods() {
        // SRC-12
        for (source, mirror, is_static, is_mirror) in [
            (None, None, false, false),
            (Some("file"), None, true, false),
            (Some("http"), None, true, false),
            (Some("api"), None, false, false),
            (Some("api"), Some(""), false, true),
        ] {
            let mut pod = Pod::default();
            let annotations = &mut pod.metadata.annotations;
            annotations.extend(source.map(|s| (CONFIG_SOURCE.into(), s.into())));
            annotations.extend(mirror.map(|m: &str| (CONFIG_MIRROR.into(), m.into())));
            assert_eq!(
                (pod_kind::is_static(&pod), pod_kind::is_mirror(&pod)),
                (is_static, is_mirror)
            );
        }
    }
}
