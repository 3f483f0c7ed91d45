//! The configuration in force as a document, for `/configz` (SRV-13): the configured fields over a kubelet's defaults
//! and ours.

use serde_json::{Map, Value};

use super::{
    file::{API_VERSION, KIND},
    flags::overlay_entry,
    keys,
};
use crate::api::cri::CgroupDriver;

/// Makes the document as JSON text.
pub(super) fn render_configz(document: &Value, member: bool) -> String {
    let mut all = default_document(member);
    if let Some(said) = document.as_object() {
        overlay_fields(&mut all, said);
    }
    for field in keys::secret_keys() {
        if all.contains_key(field) {
            all.insert(field.into(), "<masked>".into());
        }
    }
    Value::Object(all).to_string()
}

/// Changes the cgroup driver of the document.
pub(super) fn with_cgroup_driver(document: &str, driver: CgroupDriver) -> String {
    let mut all: Value = serde_json::from_str(document).unwrap_or_default();
    all["cgroupDriver"] = driver.config_word().into();
    all.to_string()
}

fn overlay_fields(base: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (name, value) in over {
        match (base.get_mut(name), value) {
            (Some(Value::Object(base)), Value::Object(over)) if !MAPS.contains(&&**name) => {
                overlay_fields(base, over);
            }
            _ => {
                base.insert(name.clone(), value.clone());
            }
        }
    }
}

/// Maps with keys of their own: a map that is given replaces the default whole.
const MAPS: [&str; 3] = ["evictionHard", "systemReserved", "kubeReserved"];

/// Makes the document of the defaults: those of the table, and what depends on whether there is an apiserver.
fn default_document(member: bool) -> Map<String, Value> {
    let mut all = Map::new();
    for (name, value) in [
        ("apiVersion", API_VERSION.into()),
        ("kind", KIND.into()),
        ("authentication.x509", Value::Object(Map::new())),
        ("memorySwap", Value::Object(Map::new())),
    ] {
        *overlay_entry(&mut all, name) = value;
    }
    for key in keys::all_keys() {
        if let Some(value) = key.default_value() {
            *overlay_entry(&mut all, key.name) = value;
        }
    }
    for name in ["enableServer", "authentication.webhook.enabled"] {
        *overlay_entry(&mut all, name) = member.into();
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_said_counts() {
        // SRV-13
        let said = json!({
            "maxPods": 7,
            "authentication": { "anonymous": { "enabled": true } },
            "evictionHard": { "memory.available": "1Mi" },
            "staticPodURLHeader": { "Authorization": ["secret"] },
            "picolet": { "metered": true },
        });
        let text = render_configz(&said, true);
        assert!(!text.contains("secret"));
        let all: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(all["maxPods"], 7);
        assert_eq!(all["kind"], KIND);
        assert_eq!(all["authentication"]["anonymous"]["enabled"], true);
        assert_eq!(all["authentication"]["webhook"]["enabled"], true);
        assert_eq!(all["evictionHard"], json!({ "memory.available": "1Mi" }));
        assert_eq!(all["picolet"]["metered"], true);
        assert_eq!(all["healthzPort"], 10248);
        let known = all.as_object().expect("object").keys();
        for field in known.filter(|field| *field != "picolet") {
            assert!(super::super::file::tests::is_known(field), "{field}");
        }
    }
}
