//! `picolet describe pod|node|configmap|secret [NAME]`: kubectl's layout, as far as this node knows.
//!
//! Source: kubernetes `kubectl/pkg/describe/describe.go`.

mod objects;
mod pressure;

use core::fmt::Write as _;

use serde_json::Value;

use super::{
    AgentClient, CliError,
    args::{CliWord, CliWords, unexpected_word},
    elastic, escape_controls,
    get::{self, DEFAULT_NAMESPACE, ObjectKind},
    pods, print_text, table,
};
use crate::{
    api::{Event, Quantity, WallTime},
    server::{backend::ObjectList, http::percent_encode},
    sys::clock,
};

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
    let pods = client.fetch_items("/pods")?;
    let pressure = client.request_json("GET", &format!("/pressure?order={order}"))?;
    let text = node_text(&node, &pods, &pressure, clock::wall_now());
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

/// Writes `MetricLabels:` and the like: the first pair beside the title, the others below it.
fn write_pairs(out: &mut String, title: &str, object: Option<&Value>, between: &str) {
    let pairs: Vec<String> = object
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}{between}{}", plain_text(v)))
        .collect();
    if pairs.is_empty() {
        let _ = writeln!(out, "{title}:\t<none>");
    }
    for (n, pair) in pairs.iter().enumerate() {
        let title = if n == 0 {
            format!("{title}:")
        } else {
            String::new()
        };
        let _ = writeln!(out, "{title}\t{}", pair.replace('\n', " "));
    }
}

fn pod_text(pod: &Value, events: &[Event], now: WallTime) -> String {
    let mut out = String::new();
    let t = |path: &str| text_at(pod, path);
    let _ = writeln!(out, "Name:\t{}", t("/metadata/name"));
    let _ = writeln!(out, "Namespace:\t{}", t("/metadata/namespace"));
    let priority = pod.pointer("/spec/priority").and_then(Value::as_i64);
    let _ = writeln!(out, "Priority:\t{}", priority.unwrap_or(0));
    for (title, path) in [
        ("Priority Class Name", "/spec/priorityClassName"),
        ("Runtime Class Name", "/spec/runtimeClassName"),
    ] {
        if !t(path).is_empty() {
            let _ = writeln!(out, "{title}:\t{}", t(path));
        }
    }
    let _ = writeln!(
        out,
        "Service Account:\t{}",
        text_or(t("/spec/serviceAccountName"), "default")
    );
    let node = text_or(t("/spec/nodeName"), "<none>");
    let _ = match t("/status/hostIP") {
        "" => writeln!(out, "Node:\t{node}"),
        ip => writeln!(out, "Node:\t{node}/{ip}"),
    };
    if !t("/status/startTime").is_empty() {
        let _ = writeln!(out, "Start Time:\t{}", format_time(t("/status/startTime")));
    }
    write_pairs(&mut out, "Labels", pod.pointer("/metadata/labels"), "=");
    write_pairs(
        &mut out,
        "Annotations",
        pod.pointer("/metadata/annotations"),
        ": ",
    );
    match t("/metadata/deletionTimestamp") {
        "" => {
            let _ = writeln!(out, "Status:\t{}", t("/status/phase"));
        }
        at => {
            let since = table::human_age(WallTime::parse(at), now);
            let _ = writeln!(out, "Status:\tTerminating (lasts {since})");
            if let Some(grace) = pod.pointer("/metadata/deletionGracePeriodSeconds") {
                let _ = writeln!(out, "Termination Grace Period:\t{grace}s");
            }
        }
    }
    for (title, path) in [("Reason", "/status/reason"), ("Message", "/status/message")] {
        if !t(path).is_empty() {
            let _ = writeln!(out, "{title}:\t{}", t(path).replace('\n', " "));
        }
    }
    let seccomp = t("/spec/securityContext/seccompProfile/type");
    if !seccomp.is_empty() {
        let _ = writeln!(out, "SeccompProfile:\t{seccomp}");
    }
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
    if let Some(owner) = list_at(pod, "/metadata/ownerReferences").first() {
        let _ = writeln!(
            out,
            "Controlled By:\t{}/{}",
            text_at(owner, "/kind"),
            text_at(owner, "/name")
        );
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
            write_container(&mut out, container, status.unwrap_or(&Value::Null));
        }
    }
    let conditions = list_at(pod, "/status/conditions");
    if !conditions.is_empty() {
        out.push_str("Conditions:\n  Type\tStatus\n");
        for condition in conditions {
            let _ = writeln!(
                out,
                "  {}\t{} ",
                text_at(condition, "/type"),
                text_at(condition, "/status")
            );
        }
    }
    write_volumes(&mut out, list_at(pod, "/spec/volumes"));
    let _ = writeln!(out, "QoS Class:\t{}", t("/status/qosClass"));
    write_pairs(
        &mut out,
        "Node-Selectors",
        pod.pointer("/spec/nodeSelector"),
        "=",
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

fn write_container(out: &mut String, container: &Value, status: &Value) {
    let t = |path: &str| text_at(container, path);
    let s = |path: &str| text_at(status, path);
    let _ = writeln!(out, "  {}:", t("/name"));
    let _ = writeln!(out, "    Container ID:\t{}", s("/containerID"));
    let _ = writeln!(out, "    Image:\t{}", t("/image"));
    let _ = writeln!(out, "    Image ID:\t{}", s("/imageID"));
    let ports = list_at(container, "/ports");
    let all = |key: &str| -> String {
        let shown: Vec<String> = ports
            .iter()
            .map(|p| {
                let number = p[key].as_u64().unwrap_or(0);
                let protocol = text_or(text_at(p, "/protocol"), "TCP");
                match text_at(p, "/name") {
                    "" => format!("{number}/{protocol}"),
                    name => format!("{number}/{protocol} ({name})"),
                }
            })
            .collect();
        text_or(&shown.join(", "), "<none>").to_owned()
    };
    let plural = if ports.len() > 1 { "s" } else { "" };
    let _ = writeln!(out, "    Port{plural}:\t{}", all("containerPort"));
    let _ = writeln!(out, "    Host Port{plural}:\t{}", all("hostPort"));
    for (title, path) in [("Command", "/command"), ("Args", "/args")] {
        let words = list_at(container, path);
        if !words.is_empty() {
            let _ = writeln!(out, "    {title}:");
        }
        for word in words {
            for line in plain_text(word).lines() {
                let _ = writeln!(out, "      {}", line.replace('\t', "    "));
            }
        }
    }
    if status.is_null() {
        out.push_str("    State:\tWaiting\n");
    } else {
        write_container_state(out, "State", &status["state"]);
        let last = &status["lastState"];
        if last["terminated"].is_object() {
            write_container_state(out, "Last State", last);
        }
        let ready = status["ready"].as_bool() == Some(true);
        let _ = writeln!(out, "    Ready:\t{}", if ready { "True" } else { "False" });
        let restarts = status["restartCount"].as_u64().unwrap_or(0);
        let _ = writeln!(out, "    Restart Count:\t{restarts}");
    }
    for (title, path) in [
        ("Limits", "/resources/limits"),
        ("Requests", "/resources/requests"),
    ] {
        let amounts = container.pointer(path).and_then(Value::as_object);
        if amounts.is_some_and(|a| !a.is_empty()) {
            let _ = writeln!(out, "    {title}:");
        }
        for (name, amount) in amounts.into_iter().flatten() {
            let _ = writeln!(out, "      {name}:\t{}", plain_text(amount));
        }
    }
    for (title, key) in [
        ("Liveness", "livenessProbe"),
        ("Readiness", "readinessProbe"),
        ("Startup", "startupProbe"),
    ] {
        if container[key].is_object() {
            let _ = writeln!(out, "    {title}:\tnot run by this version");
        }
    }
    write_environment(out, container);
    let mounts = list_at(container, "/volumeMounts");
    if mounts.is_empty() {
        out.push_str("    Mounts:\t<none>\n");
    } else {
        out.push_str("    Mounts:\n");
    }
    for mount in mounts {
        let read_only = mount["readOnly"].as_bool() == Some(true);
        let mut flags = vec![if read_only { "ro" } else { "rw" }.to_owned()];
        let path = text_or(text_at(mount, "/subPath"), text_at(mount, "/subPathExpr"));
        if !path.is_empty() {
            flags.push(format!("path=\"{path}\""));
        }
        let (at, from) = (text_at(mount, "/mountPath"), text_at(mount, "/name"));
        let _ = writeln!(out, "      {at} from {from} ({})", flags.join(","));
    }
}

fn write_container_state(out: &mut String, title: &str, state: &Value) {
    let (kind, word) = [
        ("running", "Running"),
        ("waiting", "Waiting"),
        ("terminated", "Terminated"),
    ]
    .into_iter()
    .find(|(kind, _)| state[*kind].is_object())
    .unwrap_or(("waiting", "Waiting"));
    let details = &state[kind];
    let _ = writeln!(out, "    {title}:\t{word}");
    let mut line = |title: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(out, "      {title}:\t{}", value.replace('\n', " "));
        }
    };
    match kind {
        "running" => line("Started", &format_time(text_at(details, "/startedAt"))),
        "waiting" => {
            line("Reason", text_at(details, "/reason"));
            line("Message", text_at(details, "/message"));
        }
        _ => {
            line("Reason", text_at(details, "/reason"));
            line("Message", text_at(details, "/message"));
            line(
                "Exit Code",
                &details["exitCode"].as_i64().unwrap_or(0).to_string(),
            );
            let signal = details["signal"].as_i64().unwrap_or(0);
            if signal > 0 {
                line("Signal", &signal.to_string());
            }
            line("Started", &format_time(text_at(details, "/startedAt")));
            line("Finished", &format_time(text_at(details, "/finishedAt")));
        }
    }
}

fn write_environment(out: &mut String, container: &Value) {
    let optional = |of: &Value| of["optional"].as_bool() == Some(true);
    let sources = list_at(container, "/envFrom");
    if !sources.is_empty() {
        out.push_str("    Environment Variables from:\n");
    }
    for source in sources {
        let (kind, of) = if source["secretRef"].is_object() {
            ("Secret", &source["secretRef"])
        } else {
            ("ConfigMap", &source["configMapRef"])
        };
        let prefix = match text_at(source, "/prefix") {
            "" => String::new(),
            prefix => format!(" with prefix '{prefix}'"),
        };
        let _ = writeln!(
            out,
            "      {}\t{kind}{prefix}\tOptional: {}",
            text_at(of, "/name"),
            optional(of)
        );
    }
    let variables = list_at(container, "/env");
    if variables.is_empty() {
        out.push_str("    Environment:\t<none>\n");
    } else {
        out.push_str("    Environment:\n");
    }
    for variable in variables {
        let name = text_at(variable, "/name");
        let from = &variable["valueFrom"];
        let value = if from["fieldRef"].is_object() {
            let version = text_or(text_at(from, "/fieldRef/apiVersion"), "v1");
            format!(" ({version}:{})", text_at(from, "/fieldRef/fieldPath"))
        } else if from["resourceFieldRef"].is_object() {
            format!(" ({})", text_at(from, "/resourceFieldRef/resource"))
        } else if let (of @ Value::Object(_), what) = (&from["secretKeyRef"], "secret") {
            key_reference_text(of, what, optional(of))
        } else if let (of @ Value::Object(_), what) = (&from["configMapKeyRef"], "config map") {
            key_reference_text(of, what, optional(of))
        } else {
            // Further lines of a value stand below the first one.
            text_at(variable, "/value").replace('\n', "\n      \t")
        };
        let _ = writeln!(out, "      {name}:\t{value}");
    }
}

fn key_reference_text(of: &Value, what: &str, optional: bool) -> String {
    format!(
        "<set to the key '{}' {} {what} '{}'>\tOptional: {optional}",
        text_at(of, "/key"),
        if what == "secret" { "in" } else { "of" },
        text_at(of, "/name")
    )
}

fn write_volumes(out: &mut String, volumes: &[Value]) {
    if volumes.is_empty() {
        out.push_str("Volumes:\t<none>\n");
        return;
    }
    out.push_str("Volumes:\n");
    for volume in volumes {
        let _ = writeln!(out, "  {}:", text_at(volume, "/name"));
        let mut line = |title: &str, value: &str| {
            let _ = writeln!(out, "    {title}:\t{value}");
        };
        let optional = |of: &Value| (of["optional"].as_bool() == Some(true)).to_string();
        if let of @ Value::Object(_) = &volume["emptyDir"] {
            line(
                "Type",
                "EmptyDir (a temporary directory that shares a pod's lifetime)",
            );
            line("Medium", text_at(of, "/medium"));
            line(
                "SizeLimit",
                text_or(&plain_text(&of["sizeLimit"]), "<unset>"),
            );
        } else if let of @ Value::Object(_) = &volume["hostPath"] {
            line("Type", "HostPath (bare host directory volume)");
            line("Path", text_at(of, "/path"));
            line("HostPathType", text_at(of, "/type"));
        } else if let of @ Value::Object(_) = &volume["configMap"] {
            line("Type", "ConfigMap (a volume populated by a ConfigMap)");
            line("Name", text_at(of, "/name"));
            line("Optional", &optional(of));
        } else if let of @ Value::Object(_) = &volume["secret"] {
            line("Type", "Secret (a volume populated by a Secret)");
            line("SecretName", text_at(of, "/secretName"));
            line("Optional", &optional(of));
        } else if let of @ Value::Object(_) = &volume["image"] {
            line("Type", "Image (a container image or OCI artifact)");
            line("Reference", text_at(of, "/reference"));
            line("PullPolicy", text_at(of, "/pullPolicy"));
        } else if volume["downwardAPI"].is_object() {
            line(
                "Type",
                "DownwardAPI (a volume populated by information about the pod)",
            );
            out.push_str("    Items:\n");
            write_downward_items(out, list_at(volume, "/downwardAPI/items"));
        } else if volume["projected"].is_object() {
            line(
                "Type",
                "Projected (a volume that contains injected data from multiple sources)",
            );
            for source in list_at(volume, "/projected/sources") {
                if let of @ Value::Object(_) = &source["secret"] {
                    let _ = writeln!(out, "    SecretName:\t{}", text_at(of, "/name"));
                    let _ = writeln!(out, "    Optional:\t{}", optional(of));
                } else if let of @ Value::Object(_) = &source["configMap"] {
                    let _ = writeln!(out, "    ConfigMapName:\t{}", text_at(of, "/name"));
                    let _ = writeln!(out, "    Optional:\t{}", optional(of));
                } else if source["downwardAPI"].is_object() {
                    out.push_str("    DownwardAPI:\ttrue\n");
                } else if source["serviceAccountToken"].is_object() {
                    let seconds = &source["serviceAccountToken"]["expirationSeconds"];
                    let _ = writeln!(out, "    TokenExpirationSeconds:\t{seconds}");
                }
            }
        } else {
            line("Type", "<unknown>");
        }
    }
}

fn write_downward_items(out: &mut String, items: &[Value]) {
    for item in items {
        let field = text_at(item, "/fieldRef/fieldPath");
        let of = text_or(field, text_at(item, "/resourceFieldRef/resource"));
        let _ = writeln!(out, "      {of} -> {}", text_at(item, "/path"));
    }
}

fn write_tolerations(out: &mut String, all: &[Value]) {
    if all.is_empty() {
        out.push_str("Tolerations:\t<none>\n");
    }
    for (n, one) in all.iter().enumerate() {
        let mut word = text_at(one, "/key").to_owned();
        if !text_at(one, "/value").is_empty() {
            let _ = write!(word, "={}", text_at(one, "/value"));
        }
        if !text_at(one, "/effect").is_empty() {
            let _ = write!(word, ":{}", text_at(one, "/effect"));
        }
        if text_at(one, "/operator") == "Exists" {
            word.push_str(" op=Exists");
        }
        if let Some(seconds) = one["tolerationSeconds"].as_i64() {
            let _ = write!(word, " for {seconds}s");
        }
        let title = if n == 0 { "Tolerations:" } else { "" };
        let _ = writeln!(out, "{title}\t{}", word.trim_start());
    }
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
        let last = table::human_age(event.last_timestamp, now);
        let count = event.count;
        let age = if count > 1 {
            let first = table::human_age(event.first_timestamp, now);
            format!("{last} (x{count} over {first})")
        } else {
            last
        };
        let _ = writeln!(
            out,
            "  {}\t{}\t{age}\t{}\t{}",
            event.severity,
            event.reason,
            event.source.component,
            event.message.trim().replace('\n', " ")
        );
    }
}

fn node_text(node: &Value, pods: &[Value], pressure: &Value, now: WallTime) -> String {
    let mut out = String::new();
    let t = |path: &str| text_at(node, path);
    let _ = writeln!(out, "Name:\t{}", t("/metadata/name"));
    out.push_str("Roles:\t<none>\n");
    write_pairs(&mut out, "Labels", node.pointer("/metadata/labels"), "=");
    write_pairs(
        &mut out,
        "Annotations",
        node.pointer("/metadata/annotations"),
        ": ",
    );
    let _ = writeln!(
        out,
        "CreationTimestamp:\t{}",
        format_time(t("/metadata/creationTimestamp"))
    );
    out.push_str("Taints:\t<none>\nUnschedulable:\tfalse\n");
    out.push_str("Conditions:\n  Type\tStatus\tLastHeartbeatTime\tReason\tMessage\n  ----\t------\t-----------------\t------\t-------\n");
    for condition in list_at(node, "/status/conditions") {
        let c = |path: &str| text_at(condition, path);
        let _ = writeln!(
            out,
            "  {}\t{}\t{}\t{}\t{}",
            c("/type"),
            c("/status"),
            format_time(c("/lastHeartbeatTime")),
            c("/reason"),
            c("/message")
        );
    }
    pressure::write_pressure(&mut out, pressure, now);
    out.push_str("Addresses:\n");
    for address in list_at(node, "/status/addresses") {
        let _ = writeln!(
            out,
            "  {}:\t{}",
            text_at(address, "/type"),
            text_at(address, "/address")
        );
    }
    for (title, path) in [
        ("Capacity", "/status/capacity"),
        ("Allocatable", "/status/allocatable"),
    ] {
        let _ = writeln!(out, "{title}:");
        for (name, amount) in node
            .pointer(path)
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let _ = writeln!(out, "  {name}:\t{}", plain_text(amount));
        }
    }
    out.push_str("System Info:\n");
    for (title, key) in [
        ("Machine ID", "machineID"),
        ("System UUID", "systemUUID"),
        ("Boot ID", "bootID"),
        ("Kernel Version", "kernelVersion"),
        ("OS Image", "osImage"),
        ("Operating System", "operatingSystem"),
        ("Architecture", "architecture"),
        ("Container Runtime Version", "containerRuntimeVersion"),
        ("Kubelet Version", "kubeletVersion"),
    ] {
        let _ = writeln!(
            out,
            "  {title}:\t{}",
            text_at(&node["status"]["nodeInfo"], &format!("/{key}"))
        );
    }
    let running: Vec<&Value> = pods
        .iter()
        .filter(|p| !matches!(text_at(p, "/status/phase"), "Succeeded" | "Failed"))
        .collect();
    let _ = writeln!(out, "Non-terminated Pods:\t({} in total)", running.len());
    out.push_str("  Namespace\tName\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge\n  ---------\t----\t------------\t----------\t---------------\t-------------\t---\n");
    let mut sums = [0i64; 4];
    let columns = [
        ("requests", "cpu"),
        ("limits", "cpu"),
        ("requests", "memory"),
        ("limits", "memory"),
    ];
    let part = |(_, resource): (&str, &str), amount: i64| {
        let whole = parse_amount(
            node.pointer(&format!("/status/allocatable/{resource}")),
            resource,
        );
        let percent = i128::from(amount) * 100 / i128::from(whole.max(1));
        format!("{} ({percent}%)", format_amount(amount, resource))
    };
    for pod in &running {
        let amounts = columns.map(|(kind, resource)| {
            list_at(pod, "/spec/containers")
                .iter()
                .map(|c| {
                    parse_amount(
                        c.pointer(&format!("/resources/{kind}/{resource}")),
                        resource,
                    )
                })
                .sum::<i64>()
        });
        let _ = write!(
            out,
            "  {}\t{}",
            text_at(pod, "/metadata/namespace"),
            text_at(pod, "/metadata/name")
        );
        for ((sum, amount), column) in sums.iter_mut().zip(amounts).zip(columns) {
            *sum += amount;
            let _ = write!(out, "\t{}", part(column, amount));
        }
        let age = table::human_age(
            WallTime::parse(text_at(pod, "/metadata/creationTimestamp")),
            now,
        );
        let _ = writeln!(out, "\t{age}");
    }
    out.push_str(
        "Allocated resources:\n  Resource\tRequests\tLimits\n  --------\t--------\t------\n",
    );
    for (resource, at) in [("cpu", 0), ("memory", 2)] {
        let _ = writeln!(
            out,
            "  {resource}\t{}\t{}",
            part(columns[at], sums[at]),
            part(columns[at + 1], sums[at + 1])
        );
    }
    out
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

fn format_amount(amount: i64, resource: &str) -> String {
    match (resource, amount) {
        (_, 0) => "0".into(),
        ("cpu", milli) if milli % 1000 == 0 => (milli / 1000).to_string(),
        ("cpu", milli) => format!("{milli}m"),
        (_, bytes) if bytes % (1 << 20) == 0 => format!("{}Mi", bytes >> 20),
        (_, bytes) if bytes % (1 << 10) == 0 => format!("{}Ki", bytes >> 10),
        (_, bytes) => bytes.to_string(),
    }
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
                "nodeName": "node",
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
      ME:    (v1:metadata.name)
      KEY:  <set to the key 'k' in secret 's'>      Optional: false
      CFG:  <set to the key 'k' of config map 'm'>  Optional: true
    Mounts:
      /www from www (ro,path=\"a\")
Conditions:
  Type   Status
  Ready  True 
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
            shown.contains("    State:         Waiting\n    Environment:   <none>\n"),
            "{shown}"
        );
        assert!(shown.ends_with("Events:            <none>\n"), "{shown}");
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
                    "lastHeartbeatTime": "2024-01-01T00:00:00Z"}],
                "addresses": [{"type": "Hostname", "address": "node"}],
                "nodeInfo": {"architecture": "arm64"},
            },
        });
        let mut done = pod();
        done["status"]["phase"] = "Succeeded".into();
        let now = WallTime::parse("2024-01-01T00:01:00Z").expect("time");
        let none = json!({"short": [], "by": "", "order": []});
        let shown = elastic::align_columns(&node_text(&node, &[pod(), done], &none, now));
        for line in [
            "Name:               node",
            "  Ready  True    Mon, 01 Jan 2024 00:00:00 +0000  KubeletReady  fine",
            "Non-terminated Pods:          (1 in total)",
            "  default                     web-node  100m (2%)     0 (0%)      16Mi (1%)        32Mi (3%)      <unknown>",
            "  memory    16Mi (1%)  32Mi (3%)",
        ] {
            assert!(shown.lines().any(|l| l == line), "{line}\n{shown}");
        }
    }
}
