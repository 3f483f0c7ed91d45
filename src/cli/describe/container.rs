//! Containers in `picolet describe pod`.

use core::fmt::Write as _;

use serde_json::Value;

use super::{
    format_time, list_at, one_line, parse_amount, plain_text, quantity_text, text_at, text_or,
    write_known,
};
use crate::api::order::OrderExt as _;

/// Writes a container of a pod. `status`: what is known of it, if anything is.
pub(super) fn write_container(
    out: &mut String,
    pod: &Value,
    container: &Value,
    status: Option<&Value>,
) {
    let t = |path: &str| text_at(container, path);
    let _ = writeln!(out, "  {}:", t("/name"));
    for (title, of, path) in [
        ("Container ID", status, "/containerID"),
        ("Image", Some(container), "/image"),
        ("Image ID", status, "/imageID"),
    ] {
        if let Some(of) = of {
            let _ = writeln!(out, "    {title}:\t{}", text_at(of, path));
        }
    }
    let ports = list_at(container, "/ports");
    let plural = if ports.len() > 1 { "s" } else { "" };
    for (title, key) in [("Port", "containerPort"), ("Host Port", "hostPort")] {
        let shown: Vec<String> = ports.iter().map(|port| port_text(port, key)).collect();
        let _ = writeln!(
            out,
            "    {title}{plural}:\t{}",
            text_or(&shown.join(", "), "<none>")
        );
    }
    write_known(
        out,
        "    ",
        container,
        &[
            ("SeccompProfile", "/securityContext/seccompProfile/type"),
            (
                "  LocalhostProfile",
                "/securityContext/seccompProfile/localhostProfile",
            ),
        ],
    );
    for (title, path) in [("Command", "/command"), ("Args", "/args")] {
        let words = list_at(container, path);
        if !words.is_empty() {
            let _ = writeln!(out, "    {title}:");
        }
        for line in words.iter().filter_map(Value::as_str) {
            for line in line.split('\n') {
                let _ = writeln!(out, "      {line}");
            }
        }
    }
    if let Some(status) = status {
        write_container_state(out, "State", &status["state"]);
        let last = &status["lastState"];
        if last["terminated"].is_object() {
            write_container_state(out, "Last State", last);
        }
        let ready = if status["ready"] == true {
            "True"
        } else {
            "False"
        };
        let restarts = status["restartCount"].as_u64().unwrap_or(0);
        let _ = writeln!(out, "    Ready:\t{ready}\n    Restart Count:\t{restarts}");
    }
    write_resources(out, "    ", &container["resources"]);
    for (title, key) in [
        ("Liveness", "livenessProbe"),
        ("Readiness", "readinessProbe"),
        ("Startup", "startupProbe"),
    ] {
        if container[key].is_object() {
            let _ = writeln!(out, "    {title}:\t{}", probe_text(&container[key]));
        }
    }
    write_environment(out, pod, container);
    write_mounts(out, container);
}

fn port_text(port: &Value, key: &str) -> String {
    let number = port[key].as_u64().unwrap_or(0);
    let protocol = text_or(text_at(port, "/protocol"), "TCP");
    match text_at(port, "/name") {
        "" => format!("{number}/{protocol}"),
        name => format!("{number}/{protocol} ({name})"),
    }
}

/// Writes limits and requests.
pub(super) fn write_resources(out: &mut String, indent: &str, resources: &Value) {
    for (title, key) in [("Limits", "limits"), ("Requests", "requests")] {
        let amounts = resources[key].as_object().into_iter().flatten();
        for (n, (name, amount)) in amounts.enumerate() {
            if n == 0 {
                let _ = writeln!(out, "{indent}{title}:");
            }
            let _ = writeln!(out, "{indent}  {name}:\t{}", quantity_text(amount));
        }
    }
}

/// Formats a probe: its action, then its numbers.
fn probe_text(probe: &Value) -> String {
    let t = |path: &str| text_at(probe, path);
    let port = |of: &str| plain_text(&probe[of]["port"]);
    let mut out = if probe["exec"].is_object() {
        let words = list_at(probe, "/exec/command");
        let words: Vec<String> = words.iter().map(plain_text).collect();
        format!("exec [{}]", words.join(" "))
    } else if probe["httpGet"].is_object() {
        let scheme = text_or(t("/httpGet/scheme"), "HTTP").to_ascii_lowercase();
        let host = match t("/httpGet/host") {
            six if six.contains(':') => format!("[{six}]"),
            other => other.to_owned(),
        };
        let path = t("/httpGet/path");
        let slash = if path.is_empty() || path.starts_with('/') {
            ""
        } else {
            "/"
        };
        format!(
            "http-get {scheme}://{host}:{}{slash}{}",
            port("httpGet"),
            path_of_url(path)
        )
    } else if probe["tcpSocket"].is_object() {
        format!("tcp-socket {}:{}", t("/tcpSocket/host"), port("tcpSocket"))
    } else if probe["grpc"].is_object() {
        format!("grpc <pod>:{} {}", port("grpc"), t("/grpc/service"))
    } else {
        "unknown".to_owned()
    };
    for (title, key, unit) in [
        ("delay=", "initialDelaySeconds", "s"),
        ("timeout=", "timeoutSeconds", "s"),
        ("period=", "periodSeconds", "s"),
        ("#success=", "successThreshold", ""),
        ("#failure=", "failureThreshold", ""),
    ] {
        let number = probe[key].as_i64().unwrap_or(0);
        let _ = write!(out, " {title}{number}{unit}");
    }
    out
}

/// Encodes a path for a URL as Go's `net/url` does.
fn path_of_url(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
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
    // kubectl does not show the message of one that waits. It may name the progress of a pull.
    write_known(
        out,
        "      ",
        details,
        &[("Reason", "/reason"), ("Message", "/message")],
    );
    if kind == "terminated" {
        let code = details["exitCode"].as_i64().unwrap_or(0);
        let _ = writeln!(out, "      Exit Code:\t{code}");
        if let Some(signal) = details["signal"].as_i64().filter(|signal| *signal > 0) {
            let _ = writeln!(out, "      Signal:\t{signal}");
        }
    }
    for (title, path) in [("Started", "/startedAt"), ("Finished", "/finishedAt")] {
        if kind != "waiting" && !text_at(details, path).is_empty() {
            let _ = writeln!(
                out,
                "      {title}:\t{}",
                format_time(text_at(details, path))
            );
        }
    }
}

fn write_environment(out: &mut String, pod: &Value, container: &Value) {
    let optional = |of: &Value| of["optional"] == true;
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
    let none = if variables.is_empty() { "\t<none>" } else { "" };
    let _ = writeln!(out, "    Environment:{none}");
    for variable in variables {
        let name = text_at(variable, "/name");
        let from = &variable["valueFrom"];
        let value = if from["fieldRef"].is_object() {
            let version = text_or(text_at(from, "/fieldRef/apiVersion"), "v1");
            let path = text_at(from, "/fieldRef/fieldPath");
            // kubectl knows the values of these two.
            let value = match path {
                "metadata.name" => text_at(pod, "/metadata/name"),
                "metadata.namespace" => text_at(pod, "/metadata/namespace"),
                _ => "",
            };
            format!("{value} ({version}:{path})")
        } else if from["resourceFieldRef"].is_object() {
            let field = &from["resourceFieldRef"];
            let value = resource_value(field, container);
            format!("{value} ({})", text_at(field, "/resource"))
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

/// Computes what a variable with an amount of its own container holds, as far as the pod says it.
fn resource_value(field: &Value, container: &Value) -> String {
    let resource = text_at(field, "/resource");
    let (kind, name) = resource.split_once('.').unwrap_or((resource, ""));
    let amount = parse_amount(container["resources"][kind].get(name), name);
    let divisor = match parse_amount(field.get("divisor"), name) {
        0 if name == "cpu" => 1000,
        0 => 1,
        other => other,
    };
    let value = (i128::from(amount) + i128::from(divisor) - 1).div_euclid(i128::from(divisor));
    match value {
        0 if ["limits.cpu", "limits.memory"].contains(&resource) => "node allocatable".to_owned(),
        other => other.to_string(),
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

fn write_mounts(out: &mut String, container: &Value) {
    let mut mounts: Vec<&Value> = list_at(container, "/volumeMounts").iter().collect();
    mounts.stable_sort_by(|a, b| text_at(a, "/mountPath").cmp(text_at(b, "/mountPath")));
    let none = if mounts.is_empty() { "\t<none>" } else { "" };
    let _ = writeln!(out, "    Mounts:{none}");
    for mount in mounts {
        let rights = if mount["readOnly"] == true {
            "ro"
        } else {
            "rw"
        };
        let path = match text_at(mount, "/subPath") {
            "" => String::new(),
            path => format!(",path={path:?}"),
        };
        let (at, from) = (text_at(mount, "/mountPath"), text_at(mount, "/name"));
        let _ = writeln!(out, "      {at} from {} ({rights}{path})", one_line(from));
    }
}
