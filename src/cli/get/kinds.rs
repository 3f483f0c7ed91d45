//! Kinds of objects that `get` knows: names, routes, fields and tables.

use serde_json::Value;

use super::super::{CliError, table};
use crate::{
    api::{Event, Pod, WallTime, cri::StoredImage, strict},
    server::backend::DeviceReport,
};

/// A kind of objects: its route and its table.
pub(super) struct ObjectKind {
    /// Names that are understood. The first one is the plural.
    pub(super) names: &'static [&'static str],
    pub(super) route: &'static str,
    pub(super) singular: &'static str,
    pub(super) is_namespaced: bool,
    /// Fields for `--field-selector`, beside name and namespace.
    pub(super) fields: &'static [&'static str],
    /// Number of cells that name a line. 0: namespace and name of the object name it.
    pub(super) name_cells: usize,
    pub(super) header: fn(all_namespaces: bool, wide: bool) -> Vec<&'static str>,
    pub(super) rows: ObjectRowsFn,
}

/// Makes the rows of an object: (object, now, of all namespaces, wide). Errors: the object is malformed.
type ObjectRowsFn = fn(&Value, WallTime, bool, bool) -> Result<Vec<Vec<String>>, CliError>;

pub(super) static OBJECT_KINDS: [&ObjectKind; 7] = [
    &PODS,
    &IMAGES,
    &NODE,
    &DEVICES,
    &EVENTS,
    &CONFIG_MAPS,
    &SECRETS,
];
pub(super) static PODS: ObjectKind = ObjectKind {
    names: &["pods", "pod", "po", "all"],
    route: "pods",
    singular: "pod",
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
        let pod = strict::typed_from_value::<Pod>(item).map_err(malformed_object)?;
        Ok(vec![table::pod_row(&pod, now, all_namespaces, wide)])
    },
};
pub(super) static CONFIG_MAPS: ObjectKind = ObjectKind {
    names: &["configmaps", "configmap", "cm"],
    route: "configmaps",
    singular: "configmap",
    is_namespaced: true,
    fields: &[],
    name_cells: 0,
    header: |all_namespaces, _| table::object_header(all_namespaces, false),
    rows: |item, now, all_namespaces, _| {
        Ok(vec![table::object_row(item, now, all_namespaces, false)])
    },
};
pub(super) static SECRETS: ObjectKind = ObjectKind {
    names: &["secrets", "secret"],
    route: "secrets",
    singular: "secret",
    is_namespaced: true,
    fields: &["type"],
    name_cells: 0,
    header: |all_namespaces, _| table::object_header(all_namespaces, true),
    rows: |item, now, all_namespaces, _| {
        Ok(vec![table::object_row(item, now, all_namespaces, true)])
    },
};
pub(super) static EVENTS: ObjectKind = ObjectKind {
    names: &["events", "event", "ev"],
    route: "events",
    singular: "event",
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
    header: |all_namespaces, _| {
        let mut header = vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
        if all_namespaces {
            header.insert(0, "NAMESPACE");
        }
        header
    },
    rows: |item, now, all_namespaces, _| {
        let event = strict::typed_from_value::<Event>(item).map_err(malformed_object)?;
        Ok(vec![table::event_row(&event, now, all_namespaces)])
    },
};
pub(super) static NODE: ObjectKind = ObjectKind {
    names: &["nodes", "node", "no"],
    route: "node",
    singular: "node",
    is_namespaced: false,
    fields: &["spec.unschedulable"],
    name_cells: 0,
    header: |_, wide| node_header(wide),
    rows: |item, now, _, wide| Ok(vec![node_row(item, now, wide)]),
};
pub(super) static IMAGES: ObjectKind = ObjectKind {
    names: &["images", "image"],
    route: "images",
    singular: "image",
    is_namespaced: false,
    fields: &[],
    // A name may move to another image, and an image may have none.
    name_cells: 3,
    header: |_, _| table::IMAGE_HEADER.to_vec(),
    rows: |item, _, _, wide| {
        let image = strict::typed_from_value::<StoredImage>(item).map_err(malformed_object)?;
        Ok(table::image_rows(&image, wide))
    },
};
static DEVICES: ObjectKind = ObjectKind {
    names: &["devices", "device"],
    route: "devices",
    singular: "device",
    is_namespaced: false,
    fields: &[],
    // A unit may be of two resources.
    name_cells: 2,
    header: |_, _| table::DEVICE_HEADER.to_vec(),
    rows: |item, _, _, _| {
        let device = strict::typed_from_value::<DeviceReport>(item).map_err(malformed_object)?;
        Ok(vec![table::device_row(&device)])
    },
};

fn malformed_object(e: strict::WrongValue) -> CliError {
    CliError::new(format!("malformed object: {e}"))
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
    let text = |path: &str| {
        node.pointer(path)
            .and_then(|v| v.as_str())
            .unwrap_or("<unknown>")
            .to_owned()
    };
    let ready = node["status"]["conditions"].as_array().is_some_and(|all| {
        all.iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    });
    let created = WallTime::parse(&text("/metadata/creationTimestamp"));
    let status = if ready { "Ready" } else { "NotReady" };
    let mut row = vec![
        text("/metadata/name"),
        status.into(),
        "<none>".into(),
        table::human_age(created, now),
        text("/status/nodeInfo/kubeletVersion"),
    ];
    if wide {
        let addresses = node["status"]["addresses"].as_array();
        let internal = addresses.and_then(|all| all.iter().find(|a| a["type"] == "InternalIP"));
        let internal = internal
            .and_then(|a| a["address"].as_str())
            .unwrap_or("<none>");
        row.extend([
            internal.to_owned(),
            "<none>".into(),
            text("/status/nodeInfo/osImage"),
            text("/status/nodeInfo/kernelVersion"),
            text("/status/nodeInfo/containerRuntimeVersion"),
        ]);
    }
    row
}
