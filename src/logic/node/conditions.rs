//! Conditions of the node (NODE-17 to NODE-20). They are first written in the order of [`PRESSURES`], then
//! `Ready`.

use alloc::{format, string::String, vec::Vec};

use super::events::NodeEvent;
use crate::api::{
    WallTime,
    cri::RuntimeCondition,
    node::{NodeCondition, ResourceList},
};
use crate::text::truncate_text;

/// Bytes of a message: errors of a runtime may be long, and the Node is sent every few minutes.
pub const MAX_MESSAGE_BYTES: usize = 2048;

const TRUE: &str = "True";
const FALSE: &str = "False";
const READY: &str = "Ready";

/// Pressures that hold now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePressures {
    /// Memory is short.
    pub memory: bool,
    /// A disk is short of bytes or inodes, or cannot be written.
    pub disk: bool,
    /// Details about the disk, for people; may be empty.
    pub disk_detail: String,
    /// Process numbers are short.
    pub pid: bool,
}

/// Name of a condition; reason, message and event while it holds; the three while it does not.
type ConditionTexts = (
    &'static str,
    (&'static str, &'static str, NodeEvent),
    (&'static str, &'static str, NodeEvent),
);

const PRESSURES: [ConditionTexts; 3] = [
    (
        "MemoryPressure",
        (
            "KubeletHasInsufficientMemory",
            "kubelet has insufficient memory available",
            NodeEvent::InsufficientMemory,
        ),
        (
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
            NodeEvent::SufficientMemory,
        ),
    ),
    (
        "DiskPressure",
        (
            "KubeletHasDiskPressure",
            "kubelet has disk pressure",
            NodeEvent::DiskPressure,
        ),
        (
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure",
            NodeEvent::NoDiskPressure,
        ),
    ),
    (
        "PIDPressure",
        (
            "KubeletHasInsufficientPID",
            "kubelet has insufficient PID available",
            NodeEvent::InsufficientPid,
        ),
        (
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
            NodeEvent::SufficientPid,
        ),
    ),
];

/// Joins several errors to one text: `[a, b]`, each once; a single one as it is. `None` if there are none.
#[must_use]
pub fn aggregate_errors(errors: &[String]) -> Option<String> {
    let mut once: Vec<&str> = Vec::new();
    for error in errors {
        if !once.contains(&error.as_str()) {
            once.push(error);
        }
    }
    let text = match once.as_slice() {
        [] => return None,
        [only] => (*only).into(),
        several => format!("[{}]", several.join(", ")),
    };
    Some(truncate_text(&text, MAX_MESSAGE_BYTES).into())
}

fn find_or_add_condition<'a>(
    conditions: &'a mut Vec<NodeCondition>,
    kind: &str,
) -> &'a mut NodeCondition {
    let at = conditions.iter().position(|c| c.kind == kind);
    let at = at.unwrap_or_else(|| {
        conditions.push(NodeCondition {
            kind: kind.into(),
            status: "Unknown".into(),
            ..NodeCondition::default()
        });
        conditions.len() - 1
    });
    &mut conditions[at]
}

fn condition_status(holds: bool) -> &'static str {
    if holds { TRUE } else { FALSE }
}

/// Sets the conditions of memory, disk and process numbers. Reason, message and transition time are written only when a
/// condition is made or flips (NODE-18).
pub(super) fn set_pressure_conditions(
    conditions: &mut Vec<NodeCondition>,
    pressure: &NodePressures,
    now: WallTime,
    events: &mut Vec<NodeEvent>,
) {
    let holds = [pressure.memory, pressure.disk, pressure.pid];
    for ((kind, yes, no), holds) in PRESSURES.into_iter().zip(holds) {
        let condition = find_or_add_condition(conditions, kind);
        condition.last_heartbeat_time = Some(now);
        if condition.status == condition_status(holds) {
            continue;
        }
        let (reason, message, event) = if holds { yes } else { no };
        condition.status = condition_status(holds).into();
        condition.reason = reason.into();
        condition.message = message.into();
        if holds && kind == "DiskPressure" && !pressure.disk_detail.is_empty() {
            let message = format!("{message}: {}", pressure.disk_detail);
            condition.message = truncate_text(&message, MAX_MESSAGE_BYTES).into();
        }
        condition.last_transition_time = Some(now);
        events.push(event);
    }
}

/// Sets a condition that a kubelet does not have: `ProviderReady` (PRVD-07), `StorageWorn` (WEAR-06). The condition has
/// no effect on `Ready`. `None` removes it. `is_trouble`: the condition is true while there is a problem.
pub(super) fn set_own_condition(
    conditions: &mut Vec<NodeCondition>,
    kind: &str,
    told: Option<&RuntimeCondition>,
    is_trouble: bool,
    now: WallTime,
) {
    let Some(told) = told else {
        conditions.retain(|c| c.kind != kind);
        return;
    };
    let condition = find_or_add_condition(conditions, kind);
    let holds = condition_status(told.ok != is_trouble);
    if condition.status != holds {
        condition.last_transition_time = Some(now);
    }
    condition.status = holds.into();
    condition.last_heartbeat_time = Some(now);
    condition.reason.clone_from(&told.reason);
    condition.message = truncate_text(&told.message, MAX_MESSAGE_BYTES).into();
}

/// Sets `Ready` (NODE-19, NODE-20). `errors`: reasons against it from the runtime, the network and others.
pub(super) fn set_ready_condition(
    conditions: &mut Vec<NodeCondition>,
    errors: &[String],
    capacity: &ResourceList,
    local_storage: bool,
    now: WallTime,
    events: &mut Vec<NodeEvent>,
) {
    let mut errors = errors.to_vec();
    let storage = local_storage.then_some("ephemeral-storage");
    let missing: Vec<&str> = ["cpu", "memory", "pods"]
        .into_iter()
        .chain(storage)
        .filter(|name| !capacity.contains_key(*name))
        .collect();
    if !missing.is_empty() {
        errors.push(format!(
            "missing node capacity for resources: {}",
            missing.join(", ")
        ));
    }
    let known = conditions.iter().any(|c| c.kind == READY);
    let condition = find_or_add_condition(conditions, READY);
    let error = aggregate_errors(&errors);
    let ready = condition_status(error.is_none());
    if condition.status == ready {
        condition.last_transition_time.get_or_insert(now);
    } else {
        condition.last_transition_time = Some(now);
        // A new node is ready from the start: that is no event.
        if known {
            events.push(if error.is_none() {
                NodeEvent::Ready
            } else {
                NodeEvent::NotReady
            });
        }
    }
    condition.status = ready.into();
    condition.last_heartbeat_time = Some(now);
    condition.reason = if error.is_none() {
        "KubeletReady".into()
    } else {
        "KubeletNotReady".into()
    };
    condition.message = error.unwrap_or_else(|| "kubelet is posting ready status".into());
}

/// Returns true if the conditions say that the node is ready; `None` without a `Ready` condition.
#[must_use]
pub fn is_ready(conditions: &[NodeCondition]) -> Option<bool> {
    let ready = conditions.iter().find(|c| c.kind == READY)?;
    Some(ready.status == TRUE)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::api::Quantity;

    fn at(s: i64) -> WallTime {
        WallTime::from_unix_seconds(s)
    }

    fn capacity(names: &[&str]) -> ResourceList {
        names
            .iter()
            .map(|name| ((*name).into(), Quantity::from_decimal_units(1)))
            .collect()
    }

    fn shown(conditions: &[NodeCondition]) -> Vec<String> {
        let secs = |at: Option<WallTime>| at.map_or(-1, WallTime::unix_seconds);
        conditions
            .iter()
            .map(|c| {
                format!(
                    "{}={} {} ({}) beat {} since {}",
                    c.kind,
                    c.status,
                    c.reason,
                    c.message,
                    secs(c.last_heartbeat_time),
                    secs(c.last_transition_time)
                )
            })
            .collect()
    }

    #[test]
    fn pressures() {
        // NODE-17 NODE-18
        let mut conditions = Vec::new();
        let mut round = |pressure: &NodePressures, s| {
            let mut events = Vec::new();
            set_pressure_conditions(&mut conditions, pressure, at(s), &mut events);
            (shown(&conditions), events)
        };
        let none = NodePressures::default();
        let all = NodePressures {
            memory: true,
            disk: true,
            pid: true,
            ..NodePressures::default()
        };
        let (first, events) = round(&none, 1);
        assert_eq!(
            first,
            [
                "MemoryPressure=False KubeletHasSufficientMemory (kubelet has sufficient memory available) beat 1 since 1",
                "DiskPressure=False KubeletHasNoDiskPressure (kubelet has no disk pressure) beat 1 since 1",
                "PIDPressure=False KubeletHasSufficientPID (kubelet has sufficient PID available) beat 1 since 1",
            ]
        );
        // NODE-21
        assert_eq!(
            events,
            [
                NodeEvent::SufficientMemory,
                NodeEvent::NoDiskPressure,
                NodeEvent::SufficientPid
            ]
        );
        let (same, events) = round(&none, 2);
        assert!(same[0].ends_with("beat 2 since 1"), "{same:?}");
        assert!(events.is_empty());
        let (full, events) = round(&all, 3);
        assert_eq!(
            full,
            [
                "MemoryPressure=True KubeletHasInsufficientMemory (kubelet has insufficient memory available) beat 3 since 3",
                "DiskPressure=True KubeletHasDiskPressure (kubelet has disk pressure) beat 3 since 3",
                "PIDPressure=True KubeletHasInsufficientPID (kubelet has insufficient PID available) beat 3 since 3",
            ]
        );
        assert_eq!(
            events,
            [
                NodeEvent::InsufficientMemory,
                NodeEvent::DiskPressure,
                NodeEvent::InsufficientPid
            ]
        );
        let detail = NodePressures {
            disk: true,
            disk_detail: "full".into(),
            ..none.clone()
        };
        assert!(
            round(&detail, 4).0[1].contains("(kubelet has disk pressure) beat 4 since 3"),
            "the message is that of the flip"
        );
        round(&none, 5);
        assert!(round(&detail, 6).0[1].contains("(kubelet has disk pressure: full)"));
    }

    #[test]
    fn storage_that_is_worn() {
        // WEAR-06
        let mut conditions = Vec::new();
        let mut round = |ok: Option<bool>, s| {
            let told = ok.map(|ok| RuntimeCondition {
                ok,
                reason: if ok { "Fine" } else { "Bad" }.into(),
                message: "90 %".into(),
            });
            set_own_condition(&mut conditions, "StorageWorn", told.as_ref(), true, at(s));
            shown(&conditions)
        };
        assert!(round(None, 1).is_empty());
        for (ok, s, want) in [
            (true, 2, "StorageWorn=False Fine (90 %) beat 2 since 2"),
            (false, 3, "StorageWorn=True Bad (90 %) beat 3 since 3"),
            (false, 4, "StorageWorn=True Bad (90 %) beat 4 since 3"),
        ] {
            assert_eq!(round(Some(ok), s), [want]);
        }
        assert!(round(None, 5).is_empty(), "another disk");
    }

    #[test]
    fn a_foreign_unknown_is_taken_back() {
        // NODE-18 LEASE-05
        let mut conditions = vec![NodeCondition {
            kind: "PIDPressure".into(),
            status: "Unknown".into(),
            reason: "NodeStatusUnknown".into(),
            message: "Kubelet stopped posting node status.".into(),
            last_transition_time: Some(at(1)),
            last_heartbeat_time: None,
        }];
        set_pressure_conditions(
            &mut conditions,
            &NodePressures::default(),
            at(9),
            &mut Vec::new(),
        );
        let kinds: Vec<&str> = conditions.iter().map(|c| c.kind.as_str()).collect();
        assert_eq!(kinds, ["PIDPressure", "MemoryPressure", "DiskPressure"]);
        assert!(shown(&conditions)[0].contains("False KubeletHasSufficientPID"));
        assert_eq!(conditions[0].last_transition_time, Some(at(9)));
    }

    #[test]
    fn ready() {
        let whole = capacity(&["cpu", "memory", "pods", "ephemeral-storage"]);
        let errors = |list: &[&str]| list.iter().map(|e| (*e).into()).collect::<Vec<String>>();
        // NODE-19 NODE-20
        for (name, said, capacity, storage, want) in [
            (
                "well",
                errors(&[]),
                whole.clone(),
                true,
                "True KubeletReady (kubelet is posting ready status)",
            ),
            (
                "one error",
                errors(&["container runtime is down"]),
                whole.clone(),
                true,
                "False KubeletNotReady (container runtime is down)",
            ),
            (
                "several, each once",
                errors(&["a", "b", "a"]),
                whole,
                true,
                "False KubeletNotReady ([a, b])",
            ),
            (
                "no capacity",
                errors(&[]),
                capacity(&["memory", "pods"]),
                true,
                "False KubeletNotReady (missing node capacity for resources: cpu, ephemeral-storage)",
            ),
            (
                "storage is not counted",
                errors(&[]),
                capacity(&["cpu", "memory", "pods"]),
                false,
                "True KubeletReady (kubelet is posting ready status)",
            ),
        ] {
            let mut conditions = Vec::new();
            let mut events = Vec::new();
            set_ready_condition(
                &mut conditions,
                &said,
                &capacity,
                storage,
                at(1),
                &mut events,
            );
            assert_eq!(
                shown(&conditions),
                [format!("Ready={want} beat 1 since 1")],
                "{name}"
            );
            assert!(events.is_empty(), "{name}");
        }
    }

    #[test]
    fn ready_in_time() {
        // NODE-17 NODE-19 NODE-21
        let capacity = capacity(&["cpu", "memory", "pods"]);
        let mut conditions = Vec::new();
        let mut round = |error: &str, s| {
            let errors: Vec<String> = (!error.is_empty())
                .then(|| error.into())
                .into_iter()
                .collect();
            let mut events = Vec::new();
            set_ready_condition(
                &mut conditions,
                &errors,
                &capacity,
                false,
                at(s),
                &mut events,
            );
            (shown(&conditions).remove(0), events)
        };
        for (error, s, ends, event) in [
            ("", 1, "beat 1 since 1", None),
            ("", 2, "beat 2 since 1", None),
            ("a", 3, "(a) beat 3 since 3", Some(NodeEvent::NotReady)),
            ("b", 4, "(b) beat 4 since 3", None),
            ("", 5, "beat 5 since 5", Some(NodeEvent::Ready)),
        ] {
            let (shown, events) = round(error, s);
            assert!(shown.ends_with(ends), "{shown}");
            assert_eq!(events, event.into_iter().collect::<Vec<_>>());
        }
        assert_eq!(is_ready(&conditions), Some(true));
        assert_eq!(is_ready(&[]), None);
        let long = aggregate_errors(&["x".repeat(9000)]).expect("error");
        assert_eq!(long.len(), MAX_MESSAGE_BYTES);
    }
}
