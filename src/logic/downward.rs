//! Downward API, the facts that a pod may learn about itself: fieldRef and resourceFieldRef (ENV-11, ENV-14, VOL-11,
//! VOL-12).

use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};
use core::net::IpAddr;

use crate::api::pod::{Container, FieldRef, ResourceFieldRef, Resources};
use crate::api::{Pod, PodError, Quantity};

/// Allocatable resources of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocatable {
    /// Thousandths of a CPU.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory_bytes: i64,
    /// Bytes.
    pub ephemeral_storage_bytes: i64,
}

/// Node and addresses of a pod whose container starts: facts that its object lacks.
#[derive(Clone, Copy, Debug)]
pub struct PodPlacement<'a> {
    /// The node's name, for a pod that carries none.
    pub node_name: &'a str,
    /// Addresses of the node, primary first.
    pub host_ips: &'a [IpAddr],
    /// Addresses of the sandbox, primary first; with host network those of the node.
    pub pod_ips: &'a [IpAddr],
}

/// Value of a field in env.
///
/// Errors: a field that env does not offer.
pub fn env_field(pod: &Pod, field: &FieldRef, place: PodPlacement<'_>) -> Result<String, PodError> {
    let first = |ips: &[IpAddr]| ips.first().map(IpAddr::to_string).unwrap_or_default();
    let list = |ips: &[IpAddr]| {
        let texts: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
        texts.join(",")
    };
    Ok(match field.field_path.as_str() {
        "spec.nodeName" if pod.spec.node_name.is_empty() => place.node_name.into(),
        "spec.nodeName" => pod.spec.node_name.clone(),
        "spec.serviceAccountName" => pod.spec.service_account_name.clone(),
        "status.hostIP" => first(place.host_ips),
        "status.hostIPs" => list(place.host_ips),
        "status.podIP" => first(place.pod_ips),
        "status.podIPs" => list(&one_per_family(place.pod_ips)),
        path => metadata_field(pod, path)?,
    })
}

/// Value of a field in a volume.
///
/// Errors: a field that volumes do not offer.
pub fn metadata_field(pod: &Pod, path: &str) -> Result<String, PodError> {
    let metadata = &pod.metadata;
    let unsupported = || PodError::Spec(format!("unsupported fieldPath: {path}"));
    if let Some((map, key)) = subscript(path) {
        let map = match map {
            "metadata.labels" => &metadata.labels,
            "metadata.annotations" => &metadata.annotations,
            _ => return Err(unsupported()),
        };
        return Ok(map.get(key).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.to_string(),
        "metadata.labels" => format_map(&metadata.labels),
        "metadata.annotations" => format_map(&metadata.annotations),
        _ => return Err(unsupported()),
    })
}

/// `metadata.labels['key']` as (`metadata.labels`, `key`).
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

/// At most one address of each family, order kept.
fn one_per_family(ips: &[IpAddr]) -> Vec<IpAddr> {
    let mut out: Vec<IpAddr> = Vec::new();
    for ip in ips {
        if !out.iter().any(|have| have.is_ipv4() == ip.is_ipv4()) {
            out.push(*ip);
        }
    }
    out
}

/// Formats labels or annotations as `key="escaped value"`, one a line, sorted by key, without a final newline.
fn format_map(map: &BTreeMap<String, String>) -> String {
    let lines: Vec<String> = map
        .iter()
        .map(|(key, value)| format!("{key}={}", quote_like_go(value)))
        .collect();
    lines.join("\n")
}

/// Quotes a string as Go's `%q` does: scripts that read these files know its escapes.
fn quote_like_go(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                out.push_str(&match code {
                    0..0x80 => format!("\\x{code:02x}"),
                    0x80..0x1_0000 => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                });
            }
        }
    }
    out.push('"');
    out
}

/// Returns true if `c` is printable by the tables of both languages. Rust escapes other characters; a combining mark
/// only at the start of a text, so `c` is put behind another one.
fn is_printable(c: char) -> bool {
    let mut pair = String::from("x");
    pair.push(c);
    !pair.escape_debug().skip(1).take(2).eq("\\u".chars())
}

/// Value in place of a limit that is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsetLimit {
    /// Env: the pod's own limit (cpu, memory), else the node's allocatable amount.
    PodThenNode,
    /// Volumes: the node's allocatable amount.
    Node,
}

/// Value of a container's resource, divided by the divisor and rounded up.
///
/// - `own`: the container that asks, for a reference without `containerName`.
/// - Errors: an unknown container or resource.
pub fn resource_field(
    pod: &Pod,
    own: Option<&Container>,
    field: &ResourceFieldRef,
    node: Allocatable,
    unset: UnsetLimit,
) -> Result<String, PodError> {
    let container = if field.container_name.is_empty() {
        own
    } else {
        let mut all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        all.find(|container| container.name == field.container_name)
    };
    let container = container
        .ok_or_else(|| PodError::Spec(format!("container {:?} not found", field.container_name)))?;
    let unsupported = || {
        let resource = &field.resource;
        PodError::Spec(format!("unsupported container resource: {resource}"))
    };
    let (kind, name) = field.resource.split_once('.').ok_or_else(unsupported)?;
    let is_cpu = name == "cpu";
    let fallback = match name {
        "cpu" => node.cpu_milli,
        "memory" => node.memory_bytes,
        "ephemeral-storage" => node.ephemeral_storage_bytes,
        name if name.starts_with("hugepages-") => 0,
        _ => return Err(unsupported()),
    };
    let read = |map: &BTreeMap<String, Quantity>| {
        let amount = map
            .get(name)
            .map_or(0, |q| if is_cpu { q.milli_value() } else { q.value() });
        (amount != 0).then_some(amount)
    };
    let pod_limit = |resources: &Resources| match unset {
        UnsetLimit::PodThenNode if name == "cpu" || name == "memory" => read(&resources.limits),
        UnsetLimit::PodThenNode | UnsetLimit::Node => None,
    };
    let amount = match kind {
        "limits" => read(&container.resources.limits)
            .or_else(|| pod.spec.resources.as_ref().and_then(pod_limit))
            .unwrap_or(fallback),
        "requests" => read(&container.resources.requests).unwrap_or(0),
        _ => return Err(unsupported()),
    };
    let divisor = field.divisor.as_ref().map_or(0, |divisor| {
        if is_cpu {
            divisor.milli_value()
        } else {
            divisor.value()
        }
    });
    let one = if is_cpu { 1000 } else { 1 };
    let divisor = i128::from(if divisor > 0 { divisor } else { one });
    let up = (i128::from(amount) + divisor - 1).div_euclid(divisor);
    Ok(up.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        serde_json::from_str(
            r#"{"metadata":{"name":"web","namespace":"prod","uid":"u-1",
                "labels":{"b":"two","a":"one"},"annotations":{"note":"say \"hi\"\n\té\u0001\u200b","x/y":""}},
                "spec":{"nodeName":"pi","serviceAccountName":"sa","resources":{"limits":{"memory":"64Mi"}},
                "initContainers":[{"name":"prep","resources":{"requests":{"cpu":"100m"}}}],
                "containers":[{"name":"app","resources":{
                    "limits":{"cpu":"1500m","hugepages-2Mi":"4Mi","memory":"0"},
                    "requests":{"memory":"10Mi","cpu":"250m"}}},{"name":"bare"}]}}"#,
        )
        .expect("pod")
    }

    #[test]
    fn fields() {
        // ENV-11 VOL-11
        let (v4, v6, other): (IpAddr, IpAddr, IpAddr) = (
            "10.1.0.5".parse().expect("ip"),
            "fd00::5".parse().expect("ip"),
            "10.1.0.6".parse().expect("ip"),
        );
        let place = PodPlacement {
            node_name: "pi",
            host_ips: &["192.0.2.1".parse().expect("ip")],
            pod_ips: &[v4, other, v6],
        };
        for (path, want) in [
            ("metadata.name", "web"),
            ("metadata.namespace", "prod"),
            ("metadata.uid", "u-1"),
            ("metadata.labels['a']", "one"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['x/y']", ""),
            ("metadata.labels", "a=\"one\"\nb=\"two\""),
            (
                "metadata.annotations",
                "note=\"say \\\"hi\\\"\\n\\té\\x01\\u200b\"\nx/y=\"\"",
            ),
            ("spec.nodeName", "pi"),
            ("spec.serviceAccountName", "sa"),
            ("status.hostIP", "192.0.2.1"),
            ("status.hostIPs", "192.0.2.1"),
            ("status.podIP", "10.1.0.5"),
            ("status.podIPs", "10.1.0.5,fd00::5"),
        ] {
            let field = FieldRef {
                field_path: path.into(),
                ..FieldRef::default()
            };
            assert_eq!(
                env_field(&pod(), &field, place).as_deref(),
                Ok(want),
                "{path}"
            );
        }
        for path in ["spec.hostname", "metadata.name['a']", "status.phase", ""] {
            let field = FieldRef {
                field_path: path.into(),
                ..FieldRef::default()
            };
            assert!(env_field(&pod(), &field, place).is_err(), "{path}");
        }
        assert!(
            metadata_field(&pod(), "status.podIP").is_err(),
            "not in volumes"
        );
    }

    #[test]
    fn resources() {
        // ENV-14 VOL-12
        let node = Allocatable {
            cpu_milli: 3900,
            memory_bytes: 1000,
            ephemeral_storage_bytes: 7,
        };
        use UnsetLimit::{Node, PodThenNode};
        for (container, resource, divisor, unset, want) in [
            ("app", "limits.cpu", "", PodThenNode, Ok("2")),
            ("app", "limits.cpu", "1m", PodThenNode, Ok("1500")),
            ("app", "requests.cpu", "0", PodThenNode, Ok("1")),
            ("app", "requests.memory", "1Mi", PodThenNode, Ok("10")),
            ("app", "requests.memory", "3Mi", PodThenNode, Ok("4")),
            ("app", "limits.hugepages-2Mi", "1Mi", PodThenNode, Ok("4")),
            ("bare", "limits.hugepages-2Mi", "1", PodThenNode, Ok("0")),
            ("app", "limits.memory", "1Mi", PodThenNode, Ok("64")),
            ("app", "limits.memory", "", Node, Ok("1000")),
            ("bare", "limits.cpu", "", PodThenNode, Ok("4")),
            ("bare", "limits.ephemeral-storage", "", Node, Ok("7")),
            ("bare", "requests.cpu", "", PodThenNode, Ok("0")),
            ("prep", "requests.cpu", "1m", Node, Ok("100")),
            (
                "ghost",
                "requests.cpu",
                "",
                Node,
                Err("container \"ghost\" not found"),
            ),
            (
                "app",
                "limits.gpu",
                "",
                Node,
                Err("unsupported container resource: limits.gpu"),
            ),
            (
                "app",
                "cpu",
                "",
                Node,
                Err("unsupported container resource: cpu"),
            ),
        ] {
            let field = ResourceFieldRef {
                container_name: container.into(),
                resource: resource.into(),
                divisor: (!divisor.is_empty()).then(|| Quantity::parse(divisor).expect(divisor)),
            };
            let got = resource_field(&pod(), None, &field, node, unset);
            let want = want.map(String::from);
            let want = want.map_err(|why: &str| PodError::Spec(why.into()));
            assert_eq!(got, want, "{container} {resource} / {divisor:?} {unset:?}");
        }
    }
}
