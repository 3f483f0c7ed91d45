//! Digests of objects: a source remembers a pod's digest instead of the pod.
//!
//! FNV-1a over the canonical form of a JSON value (fields sorted by name, texts with their length), so that neither
//! the order of fields nor the spelling of the document matters. Not made to withstand a forger: whoever writes a
//! manifest decides about that pod anyway.

use alloc::string::ToString;

use serde_json::Value;

use super::conditions;
use crate::api::pod::{CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE};

const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// FNV-1a, 128 bits.
#[derive(Clone, Copy, Debug)]
pub struct FnvHasher(u128);

impl Default for FnvHasher {
    fn default() -> Self {
        Self(OFFSET)
    }
}

impl FnvHasher {
    /// Adds `bytes`.
    pub fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(PRIME);
        }
    }

    /// Adds `text` with its length, so that neighbouring texts cannot be shifted into each other.
    pub fn write_text(&mut self, text: &str) {
        self.write(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
        self.write(text.as_bytes());
    }

    /// Adds `value` in canonical form.
    pub fn write_value(&mut self, value: &Value) {
        match value {
            Value::Null => self.write(b"n"),
            Value::Bool(false) => self.write(b"f"),
            Value::Bool(true) => self.write(b"t"),
            Value::Number(number) => {
                self.write(b"#");
                self.write_text(&number.to_string());
            }
            Value::String(text) => {
                self.write(b"s");
                self.write_text(text);
            }
            Value::Array(items) => {
                self.write(b"[");
                for item in items {
                    self.write_value(item);
                }
                self.write(b"]");
            }
            Value::Object(fields) => {
                self.write(b"{");
                // serde_json keeps fields sorted by name unless a feature of its is on: a test holds that.
                for (name, field) in fields {
                    self.write_text(name);
                    self.write_value(field);
                }
                self.write(b"}");
            }
        }
    }

    /// The whole digest.
    #[must_use]
    pub const fn finish(self) -> u128 {
        self.0
    }

    /// The digest folded to 64 bits.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    pub const fn finish64(self) -> u64 {
        (self.0 >> 64) as u64 ^ self.0 as u64
    }
}

/// Digest of what makes a semantic change of a pod (SRC-04): spec, its generation, labels, deletion fields, and
/// annotations other than those the agent itself keeps. A poller may miss an edit that was undone since, but the status
/// must still tell its generation.
#[must_use]
pub fn semantic_digest(raw: &Value) -> u64 {
    let mut fnv = FnvHasher::default();
    fnv.write_value(&raw["spec"]);
    let metadata = &raw["metadata"];
    for field in [
        "generation",
        "labels",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        fnv.write_value(&metadata[field]);
    }
    if let Some(annotations) = metadata["annotations"].as_object() {
        for (name, value) in annotations {
            if ![CONFIG_SOURCE, CONFIG_MIRROR, CONFIG_SEEN].contains(&name.as_str()) {
                fnv.write_text(name);
                fnv.write_value(value);
            }
        }
    }
    fnv.finish64()
}

/// Digest of a pod's `status`.
#[must_use]
pub fn status_digest(raw: &Value) -> u64 {
    let mut fnv = FnvHasher::default();
    fnv.write_value(&raw["status"]);
    fnv.finish64()
}

/// Fields of a pod's status that the agent writes, besides its conditions.
const OWN_STATUS: [&str; 13] = [
    "phase",
    "reason",
    "message",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "startTime",
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
    "qosClass",
    "observedGeneration",
];

/// Digest of what others write into a pod's `status`: conditions that are not the agent's own, claims, nominations.
#[must_use]
pub fn foreign_status_digest(raw: &Value) -> u64 {
    let mut fnv = FnvHasher::default();
    let Some(status) = raw["status"].as_object() else {
        return fnv.finish64();
    };
    for (name, field) in status {
        match (name.as_str(), field.as_array()) {
            ("conditions", Some(all)) => {
                let owned = |c: &Value| {
                    c["type"]
                        .as_str()
                        .is_some_and(conditions::is_owned_by_agent)
                };
                all.iter()
                    .filter(|c| !owned(c))
                    .for_each(|c| fnv.write_value(c));
            }
            (name, _) if OWN_STATUS.contains(&name) => {}
            (name, _) => {
                fnv.write_text(name);
                fnv.write_value(field);
            }
        }
    }
    fnv.finish64()
}

/// Digest of a pod's full name (name and namespace).
#[must_use]
pub fn full_name_digest(namespace: &str, name: &str) -> u64 {
    let mut fnv = FnvHasher::default();
    fnv.write_text(namespace);
    fnv.write_text(name);
    fnv.finish64()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fnv_vectors() {
        // Vectors of the FNV authors.
        for (text, digest) in [
            ("", 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128),
            ("a", 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964),
            ("foobar", 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18),
        ] {
            let mut fnv = FnvHasher::default();
            fnv.write(text.as_bytes());
            assert_eq!(fnv.finish(), digest, "{text}");
        }
    }

    #[test]
    fn canonical() {
        let digest = |text: &str| {
            let mut fnv = FnvHasher::default();
            fnv.write_value(&serde_json::from_str(text).expect("json"));
            fnv.finish()
        };
        assert_eq!(
            digest(r#"{"a":1,"b":[2]}"#),
            digest(r#"{"b": [2], "a": 1}"#)
        );
        for (a, b) in [
            (r#"["ab","c"]"#, r#"["a","bc"]"#),
            (r#"[1]"#, r#"["1"]"#),
            (r#"{"a":[]}"#, r#"{"a":{}}"#),
            (r#"[[1],2]"#, r#"[[1,2]]"#),
        ] {
            assert_ne!(digest(a), digest(b), "{a} {b}");
        }
    }

    #[test]
    fn what_others_write() {
        // LOOP-15 SM-07
        let base = json!({"status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "gate", "status": "True"}],
        }});
        for (name, pointer, value, changes) in [
            ("own field", "/status/phase", json!("Failed"), false),
            (
                "own field that is new",
                "/status/podIP",
                json!("::1"),
                false,
            ),
            (
                "own condition",
                "/status/conditions/0/status",
                json!("False"),
                false,
            ),
            (
                "a gate",
                "/status/conditions/1/status",
                json!("False"),
                true,
            ),
            ("claims", "/status/resourceClaimStatuses", json!([{}]), true),
        ] {
            let mut new = base.clone();
            let (parent, field) = pointer.rsplit_once('/').expect("pointer");
            new.pointer_mut(parent).expect("parent")[field] = value;
            let differs = foreign_status_digest(&base) != foreign_status_digest(&new);
            assert_eq!(differs, changes, "{name}");
        }
    }

    #[test]
    fn semantic_changes() {
        // SRC-04
        let base = json!({
            "metadata": {"name": "a", "labels": {"x": "y"}, "annotations": {"kubernetes.io/config.hash": "1"}},
            "spec": {"nodeName": "n"}, "status": {"phase": "Pending"},
        });
        for (name, pointer, value, changes) in [
            ("spec", "/spec/nodeName", json!("m"), true),
            ("unmodelled spec field", "/spec/someday", json!(1), true),
            ("generation", "/metadata/generation", json!(2), true),
            ("labels", "/metadata/labels/x", json!("z"), true),
            (
                "deletion",
                "/metadata/deletionTimestamp",
                json!("2026-01-01T00:00:00Z"),
                true,
            ),
            (
                "grace",
                "/metadata/deletionGracePeriodSeconds",
                json!(3),
                true,
            ),
            ("annotation", "/metadata/annotations/a", json!("b"), true),
            (
                "hash",
                "/metadata/annotations/kubernetes.io~1config.hash",
                json!("2"),
                true,
            ),
            (
                "source",
                "/metadata/annotations/kubernetes.io~1config.source",
                json!("api"),
                false,
            ),
            (
                "mirror",
                "/metadata/annotations/kubernetes.io~1config.mirror",
                json!("1"),
                false,
            ),
            (
                "seen",
                "/metadata/annotations/kubernetes.io~1config.seen",
                json!("now"),
                false,
            ),
            (
                "resource version",
                "/metadata/resourceVersion",
                json!("7"),
                false,
            ),
            ("owners", "/metadata/ownerReferences", json!([{}]), false),
            ("finalizers", "/metadata/finalizers", json!(["f"]), false),
            (
                "managed fields",
                "/metadata/managedFields",
                json!([{}]),
                false,
            ),
            ("status", "/status/phase", json!("Running"), false),
        ] {
            let mut new = base.clone();
            let (parent, field) = pointer.rsplit_once('/').expect("pointer");
            new.pointer_mut(parent).expect("parent")[field.replace("~1", "/")] = value;
            assert_eq!(
                semantic_digest(&base) != semantic_digest(&new),
                changes,
                "{name}"
            );
            assert_eq!(
                status_digest(&base) != status_digest(&new),
                name == "status",
                "{name}"
            );
        }
    }
}
