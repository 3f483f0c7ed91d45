//! Output of `get`: kubectl's columns and words.
//!
//! Source: kubernetes `pkg/printers/internalversion/printers.go` (`printPod`), apimachinery `util/duration`.

use crate::{
    api::{
        Event, Pod, WallTime,
        cri::{OOM_KILLED, StoredImage},
        event::EventSource,
        order::OrderExt as _,
        pod::ReadinessGate,
        pod_status::{ContainerState, ContainerStatus},
        quantity::human_bytes,
    },
    server::backend::DeviceReport,
};

/// Width of a column and its gap at least, as kubectl has it.
const MIN_WIDTH: usize = 6;

/// Writes rows as kubectl does: columns padded to the widest cell plus three spaces, no padding at the end.
pub(crate) fn render_table(header: &[&str], rows: &[Vec<String>], no_headers: bool) -> String {
    let header: Vec<String> = header.iter().map(|h| (*h).to_owned()).collect();
    let all = || {
        core::iter::once(&header)
            .chain(rows)
            .skip(usize::from(no_headers))
    };
    let mut widths = Vec::new();
    for row in all() {
        widen_columns(&mut widths, row);
    }
    let mut out = String::new();
    for row in all() {
        write_row(&mut out, &widths, row);
        out.push('\n');
    }
    out
}

/// Makes room for a row.
pub(crate) fn widen_columns(widths: &mut Vec<usize>, row: &[String]) {
    widths.resize(widths.len().max(row.len()), 0);
    for (width, cell) in widths.iter_mut().zip(row) {
        *width = (*width).max(cell.chars().count());
    }
}

/// Writes one row, without the end of its line.
pub(crate) fn write_row(out: &mut String, widths: &[usize], row: &[String]) {
    for (i, cell) in row.iter().enumerate() {
        // Messages come from outside: a character that would move the cursor, or begin a line, becomes a space.
        let shown = |c: char| if c.is_control() { ' ' } else { c };
        out.extend(cell.chars().map(shown));
        if i + 1 < row.len() {
            let gap = MIN_WIDTH.max(widths[i] + 3) - cell.chars().count();
            out.extend(core::iter::repeat_n(' ', gap));
        }
    }
}

/// Formats a duration in seconds in kubectl's short form: `45s`, `3m10s`, `5h`, `2d3h`.
pub(crate) fn human_duration(seconds: i64) -> String {
    let (m, h, d) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        i64::MIN..=-2 => "<invalid>".into(),
        -1 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 if seconds % 60 == 0 => format!("{m}m"),
        120..600 => format!("{m}m{}s", seconds % 60),
        600..10_800 => format!("{m}m"),
        10_800..28_800 if m % 60 == 0 => format!("{h}h"),
        10_800..28_800 => format!("{h}h{}m", m % 60),
        28_800..172_800 => format!("{h}h"),
        172_800..691_200 if h % 24 == 0 => format!("{d}d"),
        172_800..691_200 => format!("{d}d{}h", h % 24),
        691_200..63_072_000 => format!("{d}d"),
        63_072_000..252_288_000 if d % 365 == 0 => format!("{}y", d / 365),
        63_072_000..252_288_000 => format!("{}y{}d", d / 365, d % 365),
        _ => format!("{}y", d / 365),
    }
}

/// Formats the time since `since` in short form.
pub(crate) fn human_age(since: Option<WallTime>, now: WallTime) -> String {
    since.map_or_else(
        || "<unknown>".into(),
        |at| human_duration(now.unix_seconds() - at.unix_seconds()),
    )
}

/// Header of `get pods`.
pub(crate) fn pod_header(all_namespaces: bool, wide: bool) -> Vec<&'static str> {
    let mut header = vec!["NAME", "READY", "STATUS", "RESTARTS", "AGE"];
    if all_namespaces {
        header.insert(0, "NAMESPACE");
    }
    if wide {
        header.extend(["IP", "NODE", "NOMINATED NODE", "READINESS GATES"]);
    }
    header
}

/// Makes a row of `get pods`. `nominated`: node that a scheduler has chosen for the pod, if it is not its node yet.
pub(crate) fn pod_row(
    pod: &Pod,
    nominated: Option<&str>,
    now: WallTime,
    all_namespaces: bool,
    wide: bool,
) -> Vec<String> {
    let summary = summarise_pod(pod);
    let restarts = match summary.last_restart {
        Some(at) if summary.restarts > 0 => {
            format!(
                "{} ({} ago)",
                summary.restarts,
                human_duration(now.unix_seconds() - at.unix_seconds())
            )
        }
        _ => summary.restarts.to_string(),
    };
    let mut row = vec![
        pod.metadata.name.clone(),
        format!("{}/{}", summary.ready, summary.total),
        summary.reason,
        restarts,
        human_age(pod.metadata.creation_timestamp, now),
    ];
    if all_namespaces {
        row.insert(0, pod.metadata.namespace.clone());
    }
    if wide {
        let or_none = |text: &str| {
            if text.is_empty() {
                "<none>".to_owned()
            } else {
                text.to_owned()
            }
        };
        let gates = &pod.spec.readiness_gates;
        let is_true = |gate: &&ReadinessGate| {
            let conditions = &pod.status.conditions;
            let found = conditions.iter().find(|c| c.kind == gate.condition_type);
            found.is_some_and(|c| c.status == "True")
        };
        row.extend([
            or_none(&pod.status.pod_ip),
            or_none(&pod.spec.node_name),
            or_none(nominated.unwrap_or("")),
            match gates.len() {
                0 => or_none(""),
                all => format!("{}/{all}", gates.iter().filter(is_true).count()),
            },
        ]);
    }
    row
}

/// Header of `get configmaps`, and with `typed` of `get secrets`.
pub(crate) fn object_header(all_namespaces: bool, typed: bool) -> Vec<&'static str> {
    let mut header = vec!["NAME", "DATA", "AGE"];
    if typed {
        header.insert(1, "TYPE");
    }
    if all_namespaces {
        header.insert(0, "NAMESPACE");
    }
    header
}

/// Makes a row below [`object_header`]: it counts the keys of the object, of whatever sort.
pub(crate) fn object_row(
    object: &serde_json::Value,
    now: WallTime,
    all_namespaces: bool,
    typed: bool,
) -> Vec<String> {
    let text = |path: &str| {
        let found = object.pointer(path).and_then(|v| v.as_str());
        found.unwrap_or("").to_owned()
    };
    let keys = ["data", "binaryData", "dataBytes"].iter().map(|field| {
        let keys = object.get(field).and_then(|v| v.as_object());
        keys.map_or(0, serde_json::Map::len)
    });
    let created = WallTime::parse(&text("/metadata/creationTimestamp"));
    let mut row = vec![
        text("/metadata/name"),
        keys.sum::<usize>().to_string(),
        human_age(created, now),
    ];
    if typed {
        row.insert(1, text("/type"));
    }
    if all_namespaces {
        row.insert(0, text("/metadata/namespace"));
    }
    row
}

/// Formats when an event happened, and how often, as `kubectl events` does.
pub(crate) fn event_age(event: &Event, now: WallTime) -> String {
    let first = human_age(event.first_timestamp, now);
    match event.count {
        0 | 1 => first,
        count => {
            let last = human_age(event.last_timestamp, now);
            format!("{last} (x{count} over {first})")
        }
    }
}

/// Makes a row of `events`, with the columns of `get events`.
pub(crate) fn event_history_row(event: &Event, now: WallTime, all_namespaces: bool) -> Vec<String> {
    let mut row = event_row(event, now, all_namespaces, false);
    let at = usize::from(all_namespaces);
    let about = &event.involved_object;
    row[at] = event_age(event, now);
    row[at + 3] = format!("{}/{}", about.kind, about.name);
    row[at + 4] = event.message.trim().replace('\n', " ");
    row
}

/// Lists the roles that the labels of a node give it, joined by commas.
pub(crate) fn node_roles(node: &serde_json::Value) -> String {
    let labels = node["metadata"]["labels"].as_object();
    let roles = labels.into_iter().flatten().filter_map(|(label, value)| {
        let role = label.strip_prefix("node-role.kubernetes.io/");
        let named = value.as_str().filter(|_| label == "kubernetes.io/role");
        role.or(named).filter(|role| !role.is_empty())
    });
    let mut roles: Vec<&str> = roles.collect();
    roles.stable_sort();
    roles.dedup();
    roles.join(",")
}

/// Header of `get events`, and of `events`, which has no wide one.
pub(crate) fn event_header(all_namespaces: bool, wide: bool) -> Vec<&'static str> {
    let mut header = vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
    if wide {
        header.splice(4..4, ["SUBOBJECT", "SOURCE"]);
        header.extend(["FIRST SEEN", "COUNT", "NAME"]);
    }
    if all_namespaces {
        header.insert(0, "NAMESPACE");
    }
    header
}

/// Cuts a text at the end of its first line, and says so.
fn first_line(text: &str) -> String {
    match text.split_once(['\n', '\r', '\x0c']) {
        Some((line, _)) => format!("{line}..."),
        None => text.to_owned(),
    }
}

/// Makes a row of `get events`.
pub(crate) fn event_row(
    event: &Event,
    now: WallTime,
    all_namespaces: bool,
    wide: bool,
) -> Vec<String> {
    let about = &event.involved_object;
    let mut object = about.kind.to_ascii_lowercase();
    if !about.name.is_empty() {
        object += "/";
        object += &about.name;
    }
    let mut row = vec![
        human_age(event.last_timestamp.or(event.first_timestamp), now),
        event.severity.clone(),
        event.reason.clone(),
        object,
        first_line(event.message.trim()),
    ];
    if wide {
        let EventSource { component, host } = &event.source;
        let source = match host.is_empty() {
            true => component.clone(),
            false => format!("{component}, {host}"),
        };
        row.splice(4..4, [about.field_path.clone(), source]);
        row.extend([
            human_age(event.first_timestamp, now),
            event.count.max(1).to_string(),
            event.metadata.name.clone(),
        ]);
    }
    if all_namespaces {
        row.insert(0, event.metadata.namespace.clone());
    }
    row
}

/// Reason of a pod that no scheduler may place yet.
const SCHEDULING_GATED: &str = "SchedulingGated";

/// A pod in a few words.
pub(crate) struct PodSummary {
    pub(crate) ready: usize,
    pub(crate) total: usize,
    pub(crate) restarts: u32,
    pub(crate) last_restart: Option<WallTime>,
    pub(crate) reason: String,
}

fn end_time(state: &ContainerState) -> Option<WallTime> {
    state.terminated.as_ref().and_then(|t| t.finished_at)
}

fn exit_word(prefix: &str, state: &ContainerState) -> Option<String> {
    let end = state.terminated.as_ref()?;
    Some(match (end.reason.as_str(), end.signal) {
        ("", 0) => format!("{prefix}ExitCode:{}", end.exit_code),
        ("", signal) => format!("{prefix}Signal:{signal}"),
        (reason, _) => format!("{prefix}{reason}"),
    })
}

/// Makes the words of the STATUS column and the counts beside it.
pub(crate) fn summarise_pod(pod: &Pod) -> PodSummary {
    let status = &pod.status;
    let spec = &pod.spec;
    let is_sidecar = |name: &str| {
        spec.init_containers
            .iter()
            .any(|c| c.name == name && c.is_sidecar())
    };
    let sidecars = spec
        .init_containers
        .iter()
        .filter(|c| c.is_sidecar())
        .count();
    let is_gated = status
        .conditions
        .iter()
        .any(|c| c.kind == "PodScheduled" && c.reason == SCHEDULING_GATED);
    let mut s = PodSummary {
        ready: 0,
        total: spec.containers.len() + sidecars,
        restarts: 0,
        last_restart: None,
        reason: if is_gated {
            SCHEDULING_GATED.to_owned()
        } else if status.reason.is_empty() {
            status.phase.as_str().to_owned()
        } else {
            status.reason.clone()
        },
    };
    let has_condition = |kind: &str| {
        let conditions = &status.conditions;
        conditions
            .iter()
            .any(|c| c.kind == kind && c.status == "True")
    };
    let (mut init_restarts, mut init_last) = (0, None);
    let (mut sidecar_restarts, mut sidecar_last) = (0, None);
    let mut initializing = false;
    for (i, c) in status.init_container_statuses.iter().enumerate() {
        let sidecar = is_sidecar(&c.name);
        init_restarts += c.restart_count;
        init_last = init_last.max(end_time(&c.last_state));
        if sidecar {
            sidecar_restarts += c.restart_count;
            sidecar_last = sidecar_last.max(end_time(&c.last_state));
        }
        let end = c.state.terminated.as_ref();
        if end.is_some_and(|t| t.exit_code == 0 && (c.ready || t.reason != OOM_KILLED)) {
            continue;
        }
        if sidecar && c.started == Some(true) {
            s.ready += usize::from(c.ready);
            continue;
        }
        s.reason = exit_word("Init:", &c.state).unwrap_or_else(|| match &c.state.waiting {
            Some(w) if !w.reason.is_empty() && w.reason != "PodInitializing" => {
                format!("Init:{}", w.reason)
            }
            _ => format!("Init:{i}/{}", spec.init_containers.len()),
        });
        initializing = true;
        // Those after it do not count, not even their restarts.
        break;
    }
    if initializing && !has_condition("Initialized") {
        s.restarts = init_restarts;
        s.last_restart = init_last;
    } else {
        s.restarts = sidecar_restarts;
        s.last_restart = sidecar_last;
        let (mut running, mut failure) = (false, None);
        for c in status.container_statuses.iter().rev() {
            s.restarts += c.restart_count;
            s.last_restart = s.last_restart.max(end_time(&c.last_state));
            let waiting = c.state.waiting.as_ref().filter(|w| !w.reason.is_empty());
            if let Some(w) = waiting {
                s.reason.clone_from(&w.reason);
            } else if let Some(word) = exit_word("", &c.state) {
                let has_failed = c
                    .state
                    .terminated
                    .as_ref()
                    .is_some_and(|t| t.exit_code != 0);
                if has_failed {
                    failure = Some(word.clone());
                }
                s.reason = word;
            } else if is_ready_and_running(c) {
                running = true;
                s.ready += 1;
            }
        }
        if s.reason == "Completed" {
            if running && has_condition("Ready") {
                s.reason = "Running".into();
            } else if let Some(failure) = failure {
                s.reason = failure;
            } else if running {
                s.reason = "NotReady".into();
            }
        }
    }
    if pod.metadata.deletion_timestamp.is_some() {
        if status.reason == "NodeLost" {
            s.reason = "Unknown".into();
        } else if !status.phase.is_terminal() {
            s.reason = "Terminating".into();
        }
    }
    s
}

fn is_ready_and_running(c: &ContainerStatus) -> bool {
    c.ready && c.state.running.is_some()
}

/// Header of `get images`, after crictl.
pub(crate) const IMAGE_HEADER: [&str; 4] = ["IMAGE", "TAG", "IMAGE ID", "SIZE"];

/// Header of `get devices`.
pub(crate) const DEVICE_HEADER: [&str; 6] = ["RESOURCE", "ID", "NODES", "STATE", "USED", "HOLDERS"];

/// Makes a row of `get devices`: a unit, and the pod that holds it.
pub(crate) fn device_row(device: &DeviceReport) -> Vec<String> {
    let plain = |text: &str| match text {
        "" => "<none>".to_owned(),
        text => text.to_owned(),
    };
    vec![
        device.resource.clone(),
        plain(&device.id),
        plain(&device.nodes),
        match (device.healthy, device.plugin) {
            _ if device.id.is_empty() => "<none>",
            (true, _) => "Healthy",
            (false, true) => "Unhealthy",
            (false, false) => "Lost",
        }
        .to_owned(),
        format!("{}/{}", device.used, device.shares),
        plain(&device.holders.join(",")),
    ]
}

/// Makes the rows of `get images`: one for each tag, or one for an image without any.
pub(crate) fn image_rows(image: &StoredImage, wide: bool) -> Vec<Vec<String>> {
    let id = image.id.strip_prefix("sha256:").unwrap_or(&image.id);
    let id = if wide { id } else { id.get(..13).unwrap_or(id) };
    let size = human_bytes(image.size_bytes);
    let row =
        |name: &str, tag: &str| vec![name.to_owned(), tag.to_owned(), id.to_owned(), size.clone()];
    let tagged: Vec<_> = image
        .repo_tags
        .iter()
        .map(|reference| {
            let slash = reference.rfind('/').map_or(0, |at| at + 1);
            let colon = reference[slash..].rfind(':').map(|at| slash + at);
            colon.map_or_else(
                || row(reference, "<none>"),
                |at| row(&reference[..at], &reference[at + 1..]),
            )
        })
        .collect();
    if !tagged.is_empty() {
        return tagged;
    }
    let name = image
        .repo_digests
        .first()
        .and_then(|d| d.split('@').next())
        .unwrap_or("<none>");
    vec![row(name, "<none>")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (190, "3m10s"),
            (3600, "60m"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (315_360_000, "10y"),
        ] {
            assert_eq!(human_duration(seconds), text);
        }
    }

    #[test]
    fn a_line_stays_one() {
        let row = ["a\nb\u{1b}[2J", "c"].map(str::to_owned);
        let mut widths = Vec::new();
        widen_columns(&mut widths, &row);
        let mut out = String::new();
        write_row(&mut out, &widths, &row);
        assert_eq!(out, "a b [2J   c");
    }

    #[test]
    fn devices() {
        // DEV-37
        let unit = DeviceReport {
            resource: "picolet/serial".into(),
            id: "1f".into(),
            nodes: "/dev/ttyUSB0".into(),
            healthy: true,
            shares: 1,
            used: 1,
            holders: vec!["ns/p/init".into(), "ns/p/c".into()],
            ..DeviceReport::default()
        };
        assert_eq!(
            device_row(&unit).join(" "),
            "picolet/serial 1f /dev/ttyUSB0 Healthy 1/1 ns/p/init,ns/p/c"
        );
        let none = DeviceReport {
            resource: "a.io/x".into(),
            plugin: true,
            ..DeviceReport::default()
        };
        assert_eq!(
            device_row(&none).join(" "),
            "a.io/x <none> <none> <none> 0/0 <none>"
        );
    }

    fn pod(text: &str) -> Pod {
        serde_json::from_str(text).expect("pod")
    }

    #[test]
    fn status_words() {
        let two = r#""spec":{"containers":[{"name":"a"},{"name":"b"}]}"#;
        let init = r#""spec":{"initContainers":[{"name":"i"},{"name":"s","restartPolicy":"Always"}],"containers":[{"name":"a"}]}"#;
        let run = r#""ready":true,"state":{"running":{}}"#;
        for (name, spec, status, ready, word, restarts) in [
            (
                "new",
                two,
                String::from(r#""phase":"Pending""#),
                "0/2",
                "Pending",
                "0",
            ),
            (
                "running",
                two,
                format!(
                    r#""phase":"Running","containerStatuses":[{{"name":"a",{run}}},{{"name":"b",{run},"restartCount":2}}]"#
                ),
                "2/2",
                "Running",
                "2",
            ),
            (
                "crash loop with the time of the last end",
                two,
                format!(
                    r#""phase":"Running","containerStatuses":[{{"name":"a","restartCount":3,"state":{{"waiting":{{"reason":"CrashLoopBackOff"}}}},"lastState":{{"terminated":{{"exitCode":1,"finishedAt":"2024-01-01T00:00:00Z"}}}}}},{{"name":"b",{run}}}]"#
                ),
                "1/2",
                "CrashLoopBackOff",
                "3 (60s ago)",
            ),
            (
                "one completed, one running",
                two,
                format!(
                    r#""phase":"Running","containerStatuses":[{{"name":"a","state":{{"terminated":{{"exitCode":0,"reason":"Completed"}}}}}},{{"name":"b",{run}}}]"#
                ),
                "1/2",
                "NotReady",
                "0",
            ),
            (
                "init waits",
                init,
                String::from(
                    r#""phase":"Pending","initContainerStatuses":[{"name":"i","state":{"running":{}}},{"name":"s"}]"#,
                ),
                "0/2",
                "Init:0/2",
                "0",
            ),
            (
                "init failed without reason",
                init,
                String::from(
                    r#""phase":"Pending","initContainerStatuses":[{"name":"i","restartCount":1,"state":{"terminated":{"exitCode":3}}},{"name":"s"}]"#,
                ),
                "0/2",
                "Init:ExitCode:3",
                "1",
            ),
            (
                "init ended with 0 for want of memory",
                init,
                String::from(
                    r#""phase":"Failed","initContainerStatuses":[{"name":"i","state":{"terminated":{"exitCode":0,"reason":"OOMKilled"}}},{"name":"s"}]"#,
                ),
                "0/2",
                "Init:OOMKilled",
                "0",
            ),
            (
                "sidecar counts",
                init,
                format!(
                    r#""phase":"Running","conditions":[{{"type":"Initialized","status":"True"}}],"initContainerStatuses":[{{"name":"i","state":{{"terminated":{{"exitCode":0,"reason":"Completed"}}}}}},{{"name":"s","started":true,{run}}}],"containerStatuses":[{{"name":"a",{run}}}]"#
                ),
                "2/2",
                "Running",
                "0",
            ),
        ] {
            let pod = pod(&format!(
                r#"{{"metadata":{{"name":"p"}},{spec},"status":{{{status}}}}}"#
            ));
            let now = WallTime::parse("2024-01-01T00:01:00Z").expect("time");
            let row = pod_row(&pod, None, now, false, false);
            assert_eq!(
                row[1..4],
                [ready.to_owned(), word.to_owned(), restarts.to_owned()],
                "{name}"
            );
        }
    }

    #[test]
    fn images_by_tag() {
        let image = StoredImage {
            id: "sha256:0123456789abcdef0123".into(),
            repo_tags: vec![
                "localhost:5000/a/b:1".into(),
                "docker.io/library/c:2".into(),
            ],
            size_bytes: 1_234_567,
            ..StoredImage::default()
        };
        let rows = image_rows(&image, false);
        assert_eq!(
            rows[0],
            ["localhost:5000/a/b", "1", "0123456789abc", "1.2MB"]
        );
        assert_eq!(rows[1][0], "docker.io/library/c");
    }

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["a".to_owned(), "1/1".to_owned()],
            vec!["longer-name".to_owned(), "0/1".to_owned()],
        ];
        assert_eq!(
            render_table(&["NAME", "READY"], &rows, false),
            "NAME          READY\na             1/1\nlonger-name   0/1\n"
        );
    }
}
