//! What a node asked of its apiserver, and whether a kubelet would have.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use serde_json::Value;

use crate::Failure;

/// One answered request of the node.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) user: String,
    pub(super) verb: String,
    /// With its subresource: `pods/status`.
    pub(super) resource: String,
    pub(super) code: u64,
    pub(super) uri: String,
    /// What the server itself says is wrong with it; an apiserver says nothing.
    pub(super) fault: String,
}

impl Asked {
    /// Whether an upstream kubelet would not have caused this answer: refused, malformed or to no such path. What is gone,
    /// there already, or another's by now is answered so to a kubelet too, and so is a read of a pod that races its deletion.
    pub(super) fn is_wrong(&self) -> bool {
        let pod_read = self.verb == "get" && self.resource == "pods";
        let races = match self.code {
            403 => pod_read,
            404 => ["pods", "pods/status", "nodes", "leases"].contains(&self.resource.as_str()),
            409 => ["pods", "pods/status", "nodes", "leases"].contains(&self.resource.as_str()),
            // A watch from a version that the store has forgotten.
            410 => self.verb == "watch" || self.verb == "list",
            429 => true,
            code => !(400..500).contains(&code),
        };
        !races || !self.fault.is_empty()
    }
}

/// The requests in an audit log of kube-apiserver, a JSON object a line. A last line that is not whole yet is left out.
pub(super) fn of_log(path: &Path) -> Result<Vec<Asked>, Failure> {
    let log = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    // A watch that is still open has said how it began, and says it again at its end.
    Ok(lines
        .filter(|event| event["stage"] == "ResponseComplete")
        .map(|event| of_event(&event))
        .collect())
}

fn of_event(event: &Value) -> Asked {
    let text = |pointer| of(event, pointer);
    let mut resource = text("/objectRef/resource");
    let sub = text("/objectRef/subresource");
    if !sub.is_empty() {
        let _ = write!(resource, "/{sub}");
    }
    Asked {
        user: text("/user/username"),
        verb: text("/verb"),
        resource,
        code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
        uri: text("/requestURI"),
        fault: String::new(),
    }
}

/// The requests that a test API server remembers.
pub(super) fn of_test_server(entries: &Value) -> Vec<Asked> {
    let all = entries.as_array().into_iter().flatten();
    all.map(|entry| {
        let uri = of(entry, "/uri");
        let is_wrong = entry["wrong"] == true;
        let said = format!("{} {}", of(entry, "/message"), entry["unknownFields"]);
        Asked {
            user: of(entry, "/user"),
            verb: of(entry, "/verb"),
            resource: resource(&uri),
            code: entry["code"].as_u64().unwrap_or_default(),
            fault: if is_wrong { said } else { String::new() },
            uri,
        }
    })
    // A request without an answer was cut off, and a watch may still be open.
    .filter(|asked| asked.code != 0)
    .collect()
}

fn of(value: &Value, pointer: &str) -> String {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

/// Resource and subresource of a path of the API; empty for other paths.
fn resource(uri: &str) -> String {
    let path = uri.split('?').next().unwrap_or_default();
    let mut parts = path.trim_matches('/').split('/');
    match parts.next() {
        Some("api") => _ = parts.next(),
        Some("apis") => _ = parts.nth(1),
        _ => return String::new(),
    }
    let mut parts: Vec<&str> = parts.collect();
    if parts.len() > 2 && parts[0] == "namespaces" {
        parts.drain(..2);
    }
    match parts[..] {
        [plural, _, sub, ..] => format!("{plural}/{sub}"),
        [plural, ..] => plural.to_owned(),
        [] => String::new(),
    }
}

/// How many of each kind: verb and resource with the codes behind them.
pub(super) fn summary(asked: &[Asked]) -> String {
    let mut counts: BTreeMap<(&str, &str), BTreeMap<u64, usize>> = BTreeMap::new();
    for one in asked {
        let codes = counts.entry((&one.resource, &one.verb)).or_default();
        *codes.entry(one.code).or_default() += 1;
    }
    let mut text = String::new();
    for ((resource, verb), codes) in counts {
        let codes: Vec<String> = codes
            .iter()
            .map(|(code, n)| format!("{code}×{n}"))
            .collect();
        let separator = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{separator}{verb} {resource} {}", codes.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_kubelet_would_not_cause() {
        for (verb, resource, code, wrong) in [
            ("get", "pods", 200, false),
            ("get", "pods", 403, true),
            ("get", "pods", 404, false),
            ("patch", "pods/status", 403, true),
            ("patch", "pods/status", 409, false),
            ("patch", "pods/status", 422, true),
            ("create", "nodes", 409, false),
            ("get", "secrets", 403, true),
            ("get", "secrets", 404, true),
            ("create", "events", 409, true),
            ("watch", "pods", 410, false),
            ("get", "leases", 401, true),
            ("get", "leases", 503, false),
        ] {
            let asked = Asked {
                verb: verb.into(),
                resource: resource.into(),
                code,
                ..Asked::default()
            };
            let racing = verb == "get" && resource == "pods" && code == 403;
            assert_eq!(
                asked.is_wrong(),
                wrong && !racing,
                "{verb} {resource} {code}"
            );
        }
        let asked = Asked {
            code: 200,
            fault: "unknown field".into(),
            ..Asked::default()
        };
        assert!(asked.is_wrong());
    }

    #[test]
    fn names_and_counts() {
        for (uri, want) in [
            ("/api/v1/nodes/a/status?x=1", "nodes/status"),
            ("/api/v1/namespaces/n/pods/p", "pods"),
            ("/api/v1/namespaces/n/pods/p/status", "pods/status"),
            ("/api/v1/namespaces/n", "namespaces"),
            ("/api/v1/pods?watch=1", "pods"),
            ("/apis/coordination.k8s.io/v1/namespaces/n/leases", "leases"),
            ("/version", ""),
        ] {
            assert_eq!(resource(uri), want, "{uri}");
        }
        let event = json!({
            "stage": "ResponseComplete", "verb": "patch", "requestURI": "/x", "user": {"username": "u"},
            "objectRef": {"resource": "pods", "subresource": "status"}, "responseStatus": {"code": 200},
        });
        let two = [of_event(&event), of_event(&event)];
        assert_eq!(summary(&two), "patch pods/status 200×2");
    }
}
