//! `picolet describe node`.

use core::fmt::Write as _;

use serde_json::Value;

use super::{
    format_time, list_at, plain_text, pressure, quantity_text, text_at, text_or, write_annotations,
    write_below, write_events, write_known, write_labels,
};
use crate::{
    api::{Event, Pod, Quantity, WallTime, order::OrderExt as _},
    cli::table,
    logic::{
        node_resources::is_extended_resource,
        pod_resources::{AmountKind, amount_in_base_unit, pod_sum},
    },
};

/// Amounts that each pod has a column for.
const COLUMNS: [(AmountKind, &str); 4] = [
    (AmountKind::Requests, "cpu"),
    (AmountKind::Limits, "cpu"),
    (AmountKind::Requests, "memory"),
    (AmountKind::Limits, "memory"),
];

/// Makes the text of the node, with tabs between its columns.
pub(super) fn node_text(
    node: &Value,
    pods: &[Pod],
    events: &[Event],
    pressure: &Value,
    now: WallTime,
) -> String {
    let mut out = String::new();
    let t = |path: &str| text_at(node, path);
    let _ = writeln!(out, "Name:\t{}", t("/metadata/name"));
    let roles = table::node_roles(node);
    let _ = writeln!(out, "Roles:\t{}", text_or(&roles, "<none>"));
    write_labels(&mut out, "Labels", node.pointer("/metadata/labels"));
    write_annotations(&mut out, node.pointer("/metadata/annotations"));
    let created = format_time(t("/metadata/creationTimestamp"));
    let _ = writeln!(out, "CreationTimestamp:\t{created}");
    let mut taints: Vec<&Value> = list_at(node, "/spec/taints").iter().collect();
    taints.stable_sort_by(|a, b| {
        let order = text_at(a, "/effect").cmp(text_at(b, "/effect"));
        order.then_with(|| text_at(a, "/key").cmp(text_at(b, "/key")))
    });
    let taints = taints.into_iter().map(|taint| {
        let equals = match text_at(taint, "/value") {
            "" => String::new(),
            value => format!("={value}"),
        };
        let (key, effect) = (text_at(taint, "/key"), text_at(taint, "/effect"));
        format!("{key}{equals}:{effect}")
    });
    write_below(&mut out, "Taints", taints);
    let is_closed = node["spec"]["unschedulable"] == true;
    let _ = writeln!(out, "Unschedulable:\t{is_closed}");
    out.push_str("Conditions:\n  Type\tStatus\tLastHeartbeatTime\tLastTransitionTime\tReason\tMessage\n  ----\t------\t-----------------\t------------------\t------\t-------\n");
    for condition in list_at(node, "/status/conditions") {
        let c = |path: &str| text_at(condition, path);
        let _ = writeln!(
            out,
            "  {} \t{} \t{} \t{} \t{} \t{}",
            c("/type"),
            c("/status"),
            format_time(c("/lastHeartbeatTime")),
            format_time(c("/lastTransitionTime")),
            c("/reason"),
            c("/message")
        );
    }
    pressure::write_pressure(&mut out, pressure, now);
    out.push_str("Addresses:\n");
    for address in list_at(node, "/status/addresses") {
        let (kind, address) = (text_at(address, "/type"), text_at(address, "/address"));
        let _ = writeln!(out, "  {kind}:\t{address}");
    }
    for (title, key) in [("Capacity", "capacity"), ("Allocatable", "allocatable")] {
        let amounts = node["status"][key].as_object().into_iter().flatten();
        let _ = writeln!(out, "{title}:");
        for (name, amount) in amounts {
            let _ = writeln!(out, "  {name}:\t{}", quantity_text(amount));
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
        let value = plain_text(&node["status"]["nodeInfo"][key]);
        let _ = writeln!(out, "  {title}:\t{value}");
    }
    write_known(&mut out, "", node, &[("PodCIDR", "/spec/podCIDR")]);
    let ranges: Vec<String> = list_at(node, "/spec/podCIDRs")
        .iter()
        .map(plain_text)
        .collect();
    if !ranges.is_empty() {
        let _ = writeln!(out, "PodCIDRs:\t{}", ranges.join(","));
    }
    write_known(&mut out, "", node, &[("ProviderID", "/spec/providerID")]);
    let running: Vec<&Pod> = pods
        .iter()
        .filter(|pod| !pod.status.phase.is_terminal())
        .collect();
    write_amounts(&mut out, &node["status"]["allocatable"], &running, now);
    let own = events.iter().filter(|e| {
        e.involved_object.kind == "Node" && e.involved_object.name == t("/metadata/name")
    });
    write_events(&mut out, &own.collect::<Vec<_>>(), now);
    out
}

/// Writes what the pods ask for and may use, each for itself, then all together.
fn write_amounts(out: &mut String, allocatable: &Value, running: &[&Pod], now: WallTime) {
    let share = |name: &str, amount: i64| {
        let whole = allocatable[name]
            .as_str()
            .and_then(|text| Quantity::parse(text).ok());
        let whole = whole.map_or(0, |whole| amount_in_base_unit(name, &whole));
        format!(
            "{} ({}%)",
            amount_text(name, amount),
            percent(amount, whole)
        )
    };
    let _ = writeln!(out, "Non-terminated Pods:\t({} in total)", running.len());
    out.push_str("  Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge\n  ---------\t----\t\t------------\t----------\t---------------\t-------------\t---\n");
    for pod in running {
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        let _ = write!(out, "  {namespace}\t{name}\t");
        for (kind, resource) in COLUMNS {
            let amount = pod_sum(pod, kind, resource).unwrap_or(0);
            let _ = write!(out, "\t{}", share(resource, amount));
        }
        let age = table::human_age(pod.metadata.creation_timestamp, now);
        let _ = writeln!(out, "\t{age}");
    }
    out.push_str(
        "Allocated resources:\n  (Total limits may be over 100 percent, i.e., overcommitted.)\n  Resource\tRequests\tLimits\n  --------\t--------\t------\n",
    );
    let names = allocatable.as_object().into_iter().flatten();
    let names: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
    let pages = names.iter().filter(|name| name.starts_with("hugepages-"));
    let others = names.iter().filter(|name| is_extended_resource(name));
    let first = ["cpu", "memory", "ephemeral-storage"];
    for name in first.iter().chain(pages).chain(others) {
        let sum = |kind| {
            let amounts = running.iter().filter_map(|pod| pod_sum(pod, kind, name));
            amounts.fold(0, i64::saturating_add)
        };
        let _ = write!(out, "  {name}");
        for kind in [AmountKind::Requests, AmountKind::Limits] {
            let shown = match is_extended_resource(name) {
                true => amount_text(name, sum(kind)),
                false => share(name, sum(kind)),
            };
            let _ = write!(out, "\t{shown}");
        }
        out.push('\n');
    }
}

/// Returns a share of `whole` in percent, rounded as kubectl rounds it: toward zero, of a number that has binary digits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "as in kubectl: rounded toward zero"
)]
fn percent(amount: i64, whole: i64) -> i64 {
    match whole {
        0 => 0,
        whole => (amount as f64 / whole as f64 * 100.0) as i64,
    }
}

/// Formats an amount: thousandths of processors, bytes, or a number.
fn amount_text(name: &str, amount: i64) -> String {
    let shown = match name {
        "cpu" if amount % 1000 == 0 => return (amount / 1000).to_string(),
        "cpu" => return format!("{amount}m"),
        name if is_extended_resource(name) || amount % 1024 != 0 => {
            Quantity::from_decimal_units(amount)
        }
        _ => {
            let decimal = Quantity::from_decimal_units(amount);
            let binary = Quantity::from_binary_units(amount);
            // 128M is a multiple of 1024 too: the shorter text is the one that was written.
            if decimal.as_str().len() < binary.as_str().len() {
                decimal
            } else {
                binary
            }
        }
    };
    shown.to_string()
}
