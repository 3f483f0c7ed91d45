//! `picolet describe pod|node|configmap|secret [NAME]`: kubectl's layout, as far as this node knows.
//!
//! Source: kubernetes `kubectl/pkg/describe/describe.go`.

mod container;
mod node;
mod objects;
mod pressure;
mod volumes;

use core::fmt::Write as _;
use std::io::Write as _;

use serde_json::Value;

use super::{
    AgentClient, CliError,
    args::{CliWord, CliWords, unexpected_word},
    elastic, escape_controls,
    get::{self, DEFAULT_NAMESPACE, ObjectKind},
    pods, print_text, table,
};
use crate::{
    api::{Event, Pod, Quantity, WallTime, order::OrderExt as _},
    server::{backend::ObjectList, http::percent_encode},
    sys::clock,
};

/// Most bytes of an annotation that stands in one line, and of each of its lines.
const MAX_ANNOTATION_BYTES: usize = 140;
/// Annotation with the whole object as somebody applied it, which is not shown.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Kinds that can be described.
pub(super) static KINDS: [&ObjectKind; 4] =
    [&get::PODS, &get::NODE, &get::CONFIG_MAPS, &get::SECRETS];

pub(super) fn run_describe(mut words: CliWords) -> Result<(), CliError> {
    let mut namespace = None;
    let mut values = Vec::new();
    let mut order = false;
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("namespace") => namespace = Some(words.flag_value()?),
            CliWord::Flag("eviction-order") => order = words.switch_value()?,
            CliWord::Value(value) => values.push(value),
            other @ CliWord::Flag(_) => return Err(unexpected_word(other)),
        }
    }
    let requests = get::parse_resources(&values, &KINDS, namespace.is_some())?;
    if order
        && requests
            .iter()
            .all(|(kind, _)| kind.route != get::NODE.route)
    {
        return Err(unexpected_word(CliWord::Flag("eviction-order")));
    }
    let namespace = namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let client = words.agent_client();
    for (n, (kind, names)) in requests.iter().enumerate() {
        if n > 0 {
            print_text("\n\n")?;
        }
        match kind.route {
            "pods" => describe_pods(&client, namespace, names),
            "node" => describe_node(&client, names, order),
            route => objects::describe_objects(&client, route, namespace, names),
        }?;
    }
    Ok(())
}

fn describe_pods(client: &AgentClient, namespace: &str, names: &[String]) -> Result<(), CliError> {
    let events = format!("/events?namespace={}", percent_encode(namespace));
    let mut pods = pods::fetch_pods(client, namespace)?;
    let events: ObjectList<Event> = client.fetch_typed(&events)?;
    let name_of = |pod: &Value| text_at(pod, "/metadata/name").to_owned();
    for name in names {
        if !pods.iter().any(|p| name_of(p) == *name) {
            return Err(CliError::from_server(
                404,
                &format!("pods \"{name}\" not found"),
            ));
        }
    }
    if names.is_empty() && pods.is_empty() {
        // If standard error is closed, nobody can be told.
        let _ = writeln!(
            std::io::stderr(),
            "No resources found in {namespace} namespace."
        );
    }
    pods.retain(|p| names.is_empty() || names.contains(&name_of(p)));
    let now = clock::wall_now();
    let texts: Vec<String> = pods
        .iter()
        .map(|pod| elastic::align_columns(&pod_text(pod, &events.items, now)))
        .collect();
    print_text(&escape_controls(&texts.join("\n\n")))
}

fn describe_node(client: &AgentClient, names: &[String], order: bool) -> Result<(), CliError> {
    let node = client.request_json("GET", "/node")?;
    if let Some(other) = names
        .iter()
        .find(|n| *n != text_at(&node, "/metadata/name"))
    {
        return Err(CliError::from_server(
            404,
            &format!("nodes \"{other}\" not found"),
        ));
    }
    let pods: ObjectList<Pod> = client.fetch_typed("/pods")?;
    let events: ObjectList<Event> = client.fetch_typed("/events")?;
    let pressure = client.request_json("GET", &format!("/pressure?order={order}"))?;
    let text = node::node_text(
        &node,
        &pods.items,
        &events.items,
        &pressure,
        clock::wall_now(),
    );
    print_text(&escape_controls(&elastic::align_columns(&text)))
}

/// Returns a text of the object; empty if there is none.
fn text_at<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or("")
}

fn list_at<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    object
        .pointer(path)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn text_or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

/// Formats a text, number or truth value for people.
fn plain_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Formats a time as `Mon, 02 Jan 2006 15:04:05 +0000`: Go's RFC 1123 with a numeric zone, in UTC.
fn format_time(rfc3339: &str) -> String {
    let Some(at) = WallTime::parse(rfc3339) else {
        return rfc3339.to_owned();
    };
    let at = at.date_time();
    let short = |name: String| name.get(..3).unwrap_or("").to_owned();
    format!(
        "{}, {:02} {} {} {:02}:{:02}:{:02} +0000",
        short(at.weekday().to_string()),
        at.day(),
        short(at.month().to_string()),
        at.year(),
        at.hour(),
        at.minute(),
        at.second()
    )
}

/// Writes `Labels:` and the like: the first pair beside the title, the others below it.
fn write_labels(out: &mut String, title: &str, labels: Option<&Value>) {
    let labels = labels.and_then(Value::as_object).into_iter().flatten();
    let pairs = labels.map(|(name, value)| format!("{name}={}", one_line(&plain_text(value))));
    write_below(out, title, pairs);
}

/// Writes entries, each in a line: the first one beside the title, the others below it.
fn write_below(out: &mut String, title: &str, entries: impl Iterator<Item = String>) {
    let _ = write!(out, "{title}:");
    let mut entries = entries.peekable();
    if entries.peek().is_none() {
        out.push_str("\t<none>\n");
    }
    for entry in entries {
        let _ = writeln!(out, "\t{entry}");
    }
}

/// Writes annotations. The lines of a value that has several, or is long, stand below its name.
fn write_annotations(out: &mut String, annotations: Option<&Value>) {
    let annotations = annotations.and_then(Value::as_object).into_iter().flatten();
    let shown = annotations.filter(|(name, _)| *name != LAST_APPLIED);
    let entries = shown.map(|(name, value)| {
        let value = plain_text(value);
        let value = value.strip_suffix('\n').unwrap_or(&value);
        if name.len() + value.len() + 2 <= MAX_ANNOTATION_BYTES && !value.contains('\n') {
            return format!("{name}: {value}");
        }
        let mut entry = format!("{name}:");
        for line in value.split('\n') {
            let cut = line.floor_char_boundary(MAX_ANNOTATION_BYTES - 2);
            let more = if cut < line.len() { "..." } else { "" };
            let _ = write!(entry, "\n\t  {}{more}", &line[..cut]);
        }
        entry
    });
    write_below(out, "Annotations", entries);
}

/// Writes a line for each of these texts that the object has.
fn write_known(out: &mut String, indent: &str, object: &Value, lines: &[(&str, &str)]) {
    for (title, path) in lines {
        let text = text_at(object, path);
        if !text.is_empty() {
            let _ = writeln!(out, "{indent}{title}:\t{}", one_line(text));
        }
    }
}

/// Puts a text into one line, so that it stays in its cell.
fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// Formats a quantity as the apiserver's library writes it: `1Gi` for `1024Mi`, `500m` for `0.5`.
fn quantity_text(amount: &Value) -> String {
    let text = plain_text(amount);
    let Ok(parsed) = Quantity::parse(&text) else {
        return text;
    };
    let (units, milli) = (parsed.value(), parsed.milli_value());
    let is_whole = units.checked_mul(1000) == Some(milli);
    let shown = match text.chars().last() {
        Some('i') if is_whole => Quantity::from_binary_units(units),
        Some('i') => return text,
        _ if is_whole && !text.contains(['e', 'E']) => Quantity::from_decimal_units(units),
        _ if text.ends_with(['n', 'u']) || text.contains(['e', 'E']) => return text,
        _ => Quantity::from_decimal_milli(milli),
    };
    shown.to_string()
}

fn pod_text(pod: &Value, events: &[Event], now: WallTime) -> String {
    let mut out = String::new();
    let t = |path: &str| text_at(pod, path);
    let _ = writeln!(out, "Name:\t{}", t("/metadata/name"));
    let _ = writeln!(out, "Namespace:\t{}", t("/metadata/namespace"));
    if let Some(priority) = pod.pointer("/spec/priority").and_then(Value::as_i64) {
        let _ = writeln!(out, "Priority:\t{priority}");
    }
    write_known(
        &mut out,
        "",
        pod,
        &[
            ("Priority Class Name", "/spec/priorityClassName"),
            ("Runtime Class Name", "/spec/runtimeClassName"),
            ("Service Account", "/spec/serviceAccountName"),
        ],
    );
    let _ = match t("/spec/nodeName") {
        "" => writeln!(out, "Node:\t<none>"),
        node => writeln!(out, "Node:\t{node}/{}", t("/status/hostIP")),
    };
    if !t("/status/startTime").is_empty() {
        let _ = writeln!(out, "Start Time:\t{}", format_time(t("/status/startTime")));
    }
    write_labels(&mut out, "Labels", pod.pointer("/metadata/labels"));
    write_annotations(&mut out, pod.pointer("/metadata/annotations"));
    match (t("/metadata/deletionTimestamp"), t("/status/phase")) {
        ("", phase) | (_, phase @ ("Failed" | "Succeeded")) => {
            let _ = writeln!(out, "Status:\t{phase}");
        }
        (at, _) => {
            let since = table::human_age(WallTime::parse(at), now);
            let _ = writeln!(out, "Status:\tTerminating (lasts {since})");
            if let Some(grace) = pod.pointer("/metadata/deletionGracePeriodSeconds") {
                let _ = writeln!(out, "Termination Grace Period:\t{grace}s");
            }
        }
    }
    write_known(
        &mut out,
        "",
        pod,
        &[
            ("Reason", "/status/reason"),
            ("Message", "/status/message"),
            (
                "SeccompProfile",
                "/spec/securityContext/seccompProfile/type",
            ),
            (
                "LocalhostProfile",
                "/spec/securityContext/seccompProfile/localhostProfile",
            ),
        ],
    );
    let _ = writeln!(out, "IP:\t{}", t("/status/podIP"));
    let ips = list_at(pod, "/status/podIPs");
    if ips.is_empty() {
        out.push_str("IPs:\t<none>\n");
    } else {
        out.push_str("IPs:\n");
        for ip in ips {
            let _ = writeln!(out, "  IP:\t{}", text_at(ip, "/ip"));
        }
    }
    let owners = list_at(pod, "/metadata/ownerReferences");
    if let Some(owner) = owners.iter().find(|owner| owner["controller"] == true) {
        let _ = writeln!(
            out,
            "Controlled By:\t{}/{}",
            text_at(owner, "/kind"),
            text_at(owner, "/name")
        );
    }
    write_known(
        &mut out,
        "",
        pod,
        &[("NominatedNodeName", "/status/nominatedNodeName")],
    );
    if pod["spec"]["resources"].is_object() {
        out.push_str("Resources:\n");
        container::write_resources(&mut out, "  ", &pod["spec"]["resources"]);
    }
    for (title, spec, status) in [
        (
            "Init Containers",
            "/spec/initContainers",
            "/status/initContainerStatuses",
        ),
        (
            "Containers",
            "/spec/containers",
            "/status/containerStatuses",
        ),
        (
            "Ephemeral Containers",
            "/spec/ephemeralContainers",
            "/status/ephemeralContainerStatuses",
        ),
    ] {
        let containers = list_at(pod, spec);
        if !containers.is_empty() {
            let _ = writeln!(out, "{title}:");
        }
        for container in containers {
            let name = text_at(container, "/name");
            let status = list_at(pod, status)
                .iter()
                .find(|s| text_at(s, "/name") == name);
            container::write_container(&mut out, pod, container, status);
        }
    }
    let conditions = list_at(pod, "/status/conditions");
    let write_condition = |out: &mut String, kind: &str, status: &str| {
        let _ = writeln!(out, "  {kind} \t{status} ");
    };
    let gates = list_at(pod, "/spec/readinessGates");
    if !gates.is_empty() {
        out.push_str("Readiness Gates:\n  Type\tStatus\n");
    }
    for gate in gates {
        let kind = text_at(gate, "/conditionType");
        let found = conditions.iter().find(|c| c["type"] == kind);
        let status = found.map_or("<none>", |c| text_at(c, "/status"));
        write_condition(&mut out, kind, status);
    }
    if !conditions.is_empty() {
        out.push_str("Conditions:\n  Type\tStatus\n");
    }
    for condition in conditions {
        let (kind, status) = (text_at(condition, "/type"), text_at(condition, "/status"));
        write_condition(&mut out, kind, status);
    }
    volumes::write_volumes(&mut out, list_at(pod, "/spec/volumes"));
    let _ = writeln!(out, "QoS Class:\t{}", t("/status/qosClass"));
    write_labels(
        &mut out,
        "Node-Selectors",
        pod.pointer("/spec/nodeSelector"),
    );
    write_tolerations(&mut out, list_at(pod, "/spec/tolerations"));
    let uid = t("/metadata/uid");
    let own: Vec<&Event> = events
        .iter()
        .filter(|e| *e.involved_object.uid == *uid)
        .collect();
    write_events(&mut out, &own, now);
    out
}

fn write_tolerations(out: &mut String, all: &[Value]) {
    let mut all: Vec<&Value> = all.iter().collect();
    all.stable_sort_by(|a, b| text_at(a, "/key").cmp(text_at(b, "/key")));
    let entries = all.into_iter().map(|one| {
        let mut word = text_at(one, "/key").to_owned();
        let value = text_at(one, "/value");
        for (sign, part) in [("=", value), (":", text_at(one, "/effect"))] {
            if !part.is_empty() {
                word += sign;
                word += part;
            }
        }
        if text_at(one, "/operator") == "Exists" && value.is_empty() {
            word += if word.is_empty() { "" } else { " " };
            word += "op=Exists";
        }
        if let Some(seconds) = one["tolerationSeconds"].as_i64() {
            let _ = write!(word, " for {seconds}s");
        }
        word
    });
    write_below(out, "Tolerations", entries);
}

fn write_events(out: &mut String, events: &[&Event], now: WallTime) {
    if events.is_empty() {
        out.push_str("Events:\t<none>\n");
        return;
    }
    out.push_str(
        "Events:\n  Type\tReason\tAge\tFrom\tMessage\n  ----\t------\t----\t----\t-------\n",
    );
    for event in events {
        let place = match &*event.involved_object.field_path {
            "" => String::new(),
            path => format!("{path}: "),
        };
        let _ = writeln!(
            out,
            "  {}\t{}\t{}\t{}\t{place}{}",
            event.severity,
            event.reason,
            table::event_age(event, now),
            event.source.component,
            one_line(event.message.trim())
        );
    }
}

/// Reads an amount: thousandths of processors, or bytes.
fn parse_amount(amount: Option<&Value>, resource: &str) -> i64 {
    let parsed = amount.and_then(|a| Quantity::parse(&plain_text(a)).ok());
    parsed.map_or(0, |q| {
        if resource == "cpu" {
            q.milli_value()
        } else {
            q.value()
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({
            "metadata": {
                "name": "web-node", "namespace": "default", "uid": "u1",
                "labels": {"app": "web", "tier": "front"},
            },
            "spec": {
                "nodeName": "node", "priority": 0, "serviceAccountName": "default",
                "containers": [{
                    "name": "server", "image": "web:1",
                    "command": ["sh", "-c", "a\nb"],
                    "ports": [{"containerPort": 80, "hostPort": 8080, "name": "http"}, {"containerPort": 53, "protocol": "UDP"}],
                    "resources": {"limits": {"memory": "32Mi"}, "requests": {"memory": "16Mi", "cpu": "100m"}},
                    "env": [
                        {"name": "A", "value": "x"},
                        {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                        {"name": "CFG", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k", "optional": true}}},
                    ],
                    "envFrom": [{"prefix": "C_", "configMapRef": {"name": "m"}}],
                    "volumeMounts": [{"name": "www", "mountPath": "/www", "readOnly": true, "subPath": "a"}],
                }],
                "volumes": [{"name": "www", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s"}},
                    {"name": "model", "image": {"reference": "model:1", "pullPolicy": "IfNotPresent"}}],
                "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
            },
            "status": {
                "phase": "Running", "podIP": "10.85.0.2", "podIPs": [{"ip": "10.85.0.2"}], "hostIP": "192.0.2.1",
                "startTime": "2024-01-01T00:00:00Z", "qosClass": "Burstable",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{
                    "name": "server", "containerID": "picolet://c1", "imageID": "sha256:1", "ready": true, "restartCount": 2,
                    "state": {"running": {"startedAt": "2024-01-01T00:00:05Z"}},
                    "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled",
                        "startedAt": "2024-01-01T00:00:01Z", "finishedAt": "2024-01-01T00:00:04Z"}},
                }],
            },
        })
    }

    const EXPECTED: &str = "\
Name:             web-node
Namespace:        default
Priority:         0
Service Account:  default
Node:             node/192.0.2.1
Start Time:       Mon, 01 Jan 2024 00:00:00 +0000
Labels:           app=web
                  tier=front
Annotations:      <none>
Status:           Running
IP:               10.85.0.2
IPs:
  IP:  10.85.0.2
Containers:
  server:
    Container ID:  picolet://c1
    Image:         web:1
    Image ID:      sha256:1
    Ports:         80/TCP (http), 53/UDP
    Host Ports:    8080/TCP (http), 0/UDP
    Command:
      sh
      -c
      a
      b
    State:          Running
      Started:      Mon, 01 Jan 2024 00:00:05 +0000
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Started:      Mon, 01 Jan 2024 00:00:01 +0000
      Finished:     Mon, 01 Jan 2024 00:00:04 +0000
    Ready:          True
    Restart Count:  2
    Limits:
      memory:  32Mi
    Requests:
      cpu:     100m
      memory:  16Mi
    Environment Variables from:
      m  ConfigMap with prefix 'C_'  Optional: false
    Environment:
      A:    x
      ME:   web-node (v1:metadata.name)
      KEY:  <set to the key 'k' in secret 's'>      Optional: false
      CFG:  <set to the key 'k' of config map 'm'>  Optional: true
    Mounts:
      /www from www (ro,path=\"a\")
Conditions:
  Type    Status
  Ready   True 
Volumes:
  www:
    Type:       EmptyDir (a temporary directory that shares a pod's lifetime)
    Medium:     
    SizeLimit:  <unset>
  s:
    Type:        Secret (a volume populated by a Secret)
    SecretName:  s
    Optional:    false
  model:
    Type:        Image (a container image or OCI artifact)
    Reference:   model:1
    PullPolicy:  IfNotPresent
QoS Class:       Burstable
Node-Selectors:  <none>
Tolerations:     :NoExecute op=Exists
Events:
  Type     Reason   Age                From     Message
  ----     ------   ----               ----     -------
  Normal   Started  50s                kubelet  Container started
  Warning  BackOff  10s (x3 over 40s)  kubelet  Back-off restarting
";

    #[test]
    fn a_pod_as_kubectl_shows_it() {
        let event = |uid: &str,
                     kind: &str,
                     reason: &str,
                     message: &str,
                     count: u32,
                     first: &str,
                     last: &str| {
            let event = json!({"involvedObject": {"uid": uid}, "type": kind, "reason": reason, "message": message, "count": count,
                "firstTimestamp": first, "lastTimestamp": last, "source": {"component": "kubelet"}});
            serde_json::from_value::<Event>(event).expect("event")
        };
        let events = [
            event(
                "u1",
                "Normal",
                "Started",
                "Container started",
                1,
                "2024-01-01T00:00:10Z",
                "2024-01-01T00:00:10Z",
            ),
            event(
                "other",
                "Normal",
                "Killing",
                "x",
                1,
                "2024-01-01T00:00:10Z",
                "2024-01-01T00:00:10Z",
            ),
            event(
                "u1",
                "Warning",
                "BackOff",
                "Back-off\nrestarting",
                3,
                "2024-01-01T00:00:20Z",
                "2024-01-01T00:00:50Z",
            ),
        ];
        let now = WallTime::parse("2024-01-01T00:01:00Z").expect("time");
        let shown = elastic::align_columns(&pod_text(&pod(), &events, now));
        let mut lines = shown.lines().zip(EXPECTED.lines());
        assert!(lines.all(|(a, b)| {
            assert_eq!(a, b);
            true
        }));
        assert_eq!(shown, EXPECTED);
    }

    #[test]
    fn a_pod_of_which_little_is_known() {
        let now = WallTime::from_unix_seconds(0);
        let new = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
        let shown = elastic::align_columns(&pod_text(&new, &[], now));
        assert!(
            shown.contains("    Host Port:    <none>\n    Environment:  <none>\n"),
            "{shown}"
        );
        assert!(shown.ends_with("Events:           <none>\n"), "{shown}");
        let mut ending = pod();
        ending["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:00Z".into();
        ending["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        let shown = elastic::align_columns(&pod_text(&ending, &[], WallTime::from_unix_seconds(5)));
        assert!(
            shown.contains("Terminating (lasts 5s)\nTermination Grace Period:  30s\n"),
            "{shown}"
        );
    }

    #[test]
    fn a_node_with_its_pods() {
        let node = json!({
            "metadata": {"name": "node", "creationTimestamp": "2024-01-01T00:00:00Z"},
            "status": {
                "capacity": {"cpu": "4", "memory": "1048576Ki"},
                "allocatable": {"cpu": "4", "memory": "1048576Ki"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fine",
                    "lastHeartbeatTime": "2024-01-01T00:00:00Z", "lastTransitionTime": "2024-01-01T00:00:00Z"}],
                "addresses": [{"type": "Hostname", "address": "node"}],
                "nodeInfo": {"architecture": "arm64"},
            },
        });
        let typed = |pod: Value| serde_json::from_value::<Pod>(pod).expect("pod");
        let mut done = pod();
        done["status"]["phase"] = "Succeeded".into();
        let pods = [typed(pod()), typed(done)];
        let now = WallTime::parse("2024-01-01T00:01:00Z").expect("time");
        let none = json!({"short": [], "by": "", "order": []});
        let shown = elastic::align_columns(&node::node_text(&node, &pods, &[], &none, now));
        for line in [
            "Name:               node",
            "  Ready   True    Mon, 01 Jan 2024 00:00:00 +0000   Mon, 01 Jan 2024 00:00:00 +0000   KubeletReady   fine",
            "Non-terminated Pods:          (1 in total)",
            "  default                     web-node    100m (2%)     0 (0%)      16Mi (1%)        32Mi (3%)      <unknown>",
            "  memory             16Mi (1%)  32Mi (3%)",
        ] {
            assert!(shown.lines().any(|l| l == line), "{line}\n{shown}");
        }
    }
}
