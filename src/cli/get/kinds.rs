//! Kinds of objects that `get` knows: names, routes, fields and tables.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::super::{CliError, table};
use crate::{
    api::{Event, Pod, WallTime, strict},
    logic::spelling::suggest_name,
};

/// A kind of objects: its route and its table.
pub(in crate::cli) struct ObjectKind {
    /// Names that are understood: first the plural, then the singular.
    pub(in crate::cli) names: &'static [&'static str],
    pub(in crate::cli) route: &'static str,
    pub(in crate::cli) is_namespaced: bool,
    /// Fields for `--field-selector`, beside name and namespace.
    pub(super) fields: &'static [&'static str],
    /// Number of cells that name a line. 0: namespace and name of the object name it.
    pub(super) name_cells: usize,
    pub(super) header: fn(all_namespaces: bool, wide: bool) -> Vec<&'static str>,
    pub(super) rows: ObjectRowsFn,
}

/// Makes the rows of an object: (object, now, of all namespaces, wide). Errors: the object is malformed.
type ObjectRowsFn = fn(&Value, WallTime, bool, bool) -> Result<Vec<Vec<String>>, CliError>;

/// Kinds that can be shown, as the help lists them.
pub(in crate::cli) static KINDS: [&ObjectKind; 7] = [
    &PODS,
    &IMAGES,
    &NODE,
    &DEVICES,
    &EVENTS,
    &CONFIG_MAPS,
    &SECRETS,
];
pub(in crate::cli) static PODS: ObjectKind = ObjectKind {
    names: &["pods", "pod", "po", "all"],
    route: "pods",
    is_namespaced: true,
    fields: &[
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ],
    name_cells: 0,
    header: table::pod_header,
    rows: |item, now, all_namespaces, wide| {
        let pod: Pod = read_item(item)?;
        let nominated = item["status"]["nominatedNodeName"].as_str();
        let row = table::pod_row(&pod, nominated, now, all_namespaces, wide);
        Ok(vec![row])
    },
};
pub(in crate::cli) static CONFIG_MAPS: ObjectKind = ObjectKind {
    names: &["configmaps", "configmap", "cm"],
    route: "configmaps",
    is_namespaced: true,
    fields: &[],
    name_cells: 0,
    header: |all_namespaces, _| table::object_header(all_namespaces, false),
    rows: |item, now, all_namespaces, _| {
        Ok(vec![table::object_row(item, now, all_namespaces, false)])
    },
};
pub(in crate::cli) static SECRETS: ObjectKind = ObjectKind {
    names: &["secrets", "secret"],
    route: "secrets",
    is_namespaced: true,
    fields: &["type"],
    name_cells: 0,
    header: |all_namespaces, _| table::object_header(all_namespaces, true),
    rows: |item, now, all_namespaces, _| {
        Ok(vec![table::object_row(item, now, all_namespaces, true)])
    },
};
pub(in crate::cli) static EVENTS: ObjectKind = EVENT_KIND;
const EVENT_KIND: ObjectKind = ObjectKind {
    names: &["events", "event", "ev"],
    route: "events",
    is_namespaced: true,
    fields: &[
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.fieldPath",
        "reason",
        "source.component",
        "type",
    ],
    name_cells: 0,
    header: table::event_header,
    rows: |item, now, all_namespaces, wide| {
        let event: Event = read_item(item)?;
        Ok(vec![table::event_row(&event, now, all_namespaces, wide)])
    },
};
/// Events as the command `events` shows them: all times of each, and its object by the name of the kind.
pub(in crate::cli) static EVENT_HISTORY: ObjectKind = ObjectKind {
    rows: |item, now, all_namespaces, _| {
        let event: Event = read_item(item)?;
        Ok(vec![table::event_history_row(&event, now, all_namespaces)])
    },
    ..EVENT_KIND
};
pub(in crate::cli) static NODE: ObjectKind = ObjectKind {
    names: &["nodes", "node", "no"],
    route: "node",
    is_namespaced: false,
    fields: &["spec.unschedulable"],
    name_cells: 0,
    header: |_, wide| node_header(wide),
    rows: |item, now, _, wide| Ok(vec![node_row(item, now, wide)]),
};
pub(in crate::cli) static IMAGES: ObjectKind = ObjectKind {
    names: &["images", "image"],
    route: "images",
    is_namespaced: false,
    fields: &[],
    // A name may move to another image, and an image may have none.
    name_cells: 3,
    header: |_, _| table::IMAGE_HEADER.to_vec(),
    rows: |item, _, _, wide| Ok(table::image_rows(&read_item(item)?, wide)),
};
static DEVICES: ObjectKind = ObjectKind {
    names: &["devices", "device"],
    route: "devices",
    is_namespaced: false,
    fields: &[],
    // A unit may be of two resources.
    name_cells: 2,
    header: |_, _| table::DEVICE_HEADER.to_vec(),
    rows: |item, _, _, _| Ok(vec![table::device_row(&read_item(item)?)]),
};

/// Finds a kind by one of its names.
pub(in crate::cli) fn find_kind(
    word: &str,
    kinds: &[&'static ObjectKind],
) -> Result<&'static ObjectKind, CliError> {
    if let Some(kind) = kinds.iter().find(|kind| kind.names.contains(&word)) {
        return Ok(kind);
    }
    let known: Vec<&str> = kinds.iter().map(|kind| kind.names[0]).collect();
    let known = known.join(", ");
    if word.is_empty() {
        return Err(CliError::new(format!("you must say what to show: {known}")));
    }
    let mut names = kinds.iter().flat_map(|kind| kind.names).copied();
    let meant = suggest_name(word, "", &mut names);
    Err(CliError::new(format!(
        "the server doesn't have a resource type \"{word}\"{meant}\nThese can be shown: {known}"
    )))
}

fn read_item<T: DeserializeOwned>(item: &Value) -> Result<T, CliError> {
    let malformed = |e| CliError::new(format!("the agent's answer is not understood: {e}"));
    strict::typed_from_value(item).map_err(malformed)
}

fn node_header(wide: bool) -> Vec<&'static str> {
    let mut header = vec!["NAME", "STATUS", "ROLES", "AGE", "VERSION"];
    if wide {
        header.extend([
            "INTERNAL-IP",
            "EXTERNAL-IP",
            "OS-IMAGE",
            "KERNEL-VERSION",
            "CONTAINER-RUNTIME",
        ]);
    }
    header
}

fn node_row(node: &Value, now: WallTime, wide: bool) -> Vec<String> {
    let text = |path: &str| node.pointer(path).and_then(Value::as_str).unwrap_or("");
    let or = |text: &str, word: &str| if text.is_empty() { word } else { text }.to_owned();
    let conditions = node["status"]["conditions"].as_array();
    let ready = conditions.and_then(|all| all.iter().find(|c| c["type"] == "Ready"));
    let mut status = match ready {
        Some(ready) if ready["status"] == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if node["spec"]["unschedulable"] == true {
        status += ",SchedulingDisabled";
    }
    let created = WallTime::parse(text("/metadata/creationTimestamp"));
    let mut row = vec![
        text("/metadata/name").to_owned(),
        status,
        or(&table::node_roles(node), "<none>"),
        table::human_age(created, now),
        text("/status/nodeInfo/kubeletVersion").to_owned(),
    ];
    if wide {
        let address = |kind: &str| {
            let all = node["status"]["addresses"].as_array();
            let found = all.and_then(|all| all.iter().find(|a| a["type"] == kind));
            let found = found.and_then(|a| a["address"].as_str());
            found.unwrap_or("<none>").to_owned()
        };
        let mut kernel = or(text("/status/nodeInfo/kernelVersion"), "<unknown>");
        let arch = text("/status/nodeInfo/architecture");
        if !arch.is_empty() {
            kernel += &format!(" ({arch})");
        }
        row.extend([
            address("InternalIP"),
            address("ExternalIP"),
            or(text("/status/nodeInfo/osImage"), "<unknown>"),
            kernel,
            or(
                text("/status/nodeInfo/containerRuntimeVersion"),
                "<unknown>",
            ),
        ]);
    }
    row
}
