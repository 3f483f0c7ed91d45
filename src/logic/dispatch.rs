//! What the sync loop does with each of its inputs. The effects, and the order of inputs, are the loop's.
//!
//! Names and rules follow kubelet `kubelet.go`, `syncLoopIteration` and `HandlePod*`.

use alloc::{boxed::Box, vec::Vec};

use crate::api::order::Order;
use crate::api::{PodUid, received::ReceivedPod};

use super::mux::Op;
use super::pleg::EventKind;
use super::probe::ProbeKind;

/// One pod of an operation, in the order in which the loop handles them.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Put it into the pod manager, then do what [`on_addition`] says.
    Add(Box<ReceivedPod>),
    /// Refresh the pod manager, then do what [`on_update`] says. Graceful deletion comes this way.
    Update(Box<ReceivedPod>),
    /// Drop it from the pod manager, then do what [`on_removal`] says.
    Remove(PodUid),
    /// Refresh the pod manager, then do what [`on_reconcile`] says.
    Reconcile(Box<ReceivedPod>),
}

/// Takes an operation apart. Additions come in the order of their creation, those without a time first.
#[must_use]
pub fn steps(op: Op) -> Vec<Step> {
    match op {
        Op::Add(mut pods) => {
            pods.order_by_key(|received| received.pod.metadata.creation_timestamp);
            pods.into_iter().map(Step::Add).collect()
        }
        Op::Update(pods) | Op::Delete(pods) => pods.into_iter().map(Step::Update).collect(),
        Op::Remove(uids) => uids.into_iter().map(Step::Remove).collect(),
        Op::Reconcile(pods) => pods.into_iter().map(Step::Reconcile).collect(),
    }
}

/// What a pod object is, as far as the loop treats it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A pod to run.
    Pod,
    /// The mirror of a static pod.
    Mirror {
        /// That static pod is in the pod manager.
        static_known: bool,
    },
}

/// What to do with a new pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addition {
    /// Ask admission; if it agrees, `create` to the worker, else the pod is rejected and not asked again.
    Admit,
    /// `create` to the worker without admission.
    Create,
    /// `update` to the worker of the static pod, with this mirror.
    UpdateStatic,
    /// Nothing.
    Ignore,
}

/// A pod appeared. `termination_requested` is the worker's word; a `deletionTimestamp` alone does not skip admission.
#[must_use]
pub const fn on_addition(
    role: Role,
    termination_requested: bool,
    api_phase_terminal: bool,
) -> Addition {
    match role {
        Role::Mirror { static_known: true } => Addition::UpdateStatic,
        Role::Mirror {
            static_known: false,
        } => Addition::Ignore,
        Role::Pod if termination_requested || api_phase_terminal => Addition::Create,
        Role::Pod => Addition::Admit,
    }
}

/// What to do with a pod whose object changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `update` to its worker. No admission.
    Update,
    /// `update` to the worker of the static pod, with this mirror.
    UpdateStatic,
    /// Nothing.
    Ignore,
}

/// A pod's object changed, or it was told to end gracefully.
#[must_use]
pub const fn on_update(role: Role) -> Change {
    match role {
        Role::Pod => Change::Update,
        Role::Mirror { static_known: true } => Change::UpdateStatic,
        Role::Mirror {
            static_known: false,
        } => Change::Ignore,
    }
}

/// What to do with a pod that its source no longer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// `kill` to its worker, without options.
    Kill,
    /// Nothing yet: housekeeping ends it as an orphan once all sources are ready.
    LeaveToHousekeeping,
    /// `update` to the worker of the static pod, now without a mirror, so that it makes a new one.
    UpdateStatic,
    /// Nothing.
    Ignore,
}

/// A pod vanished from a source. Unlike a kubelet, which waits for all sources, the word of the source that had
/// delivered the pod is enough once that source is ready: with an apiserver out of reach a deleted manifest must
/// still stop its pod.
#[must_use]
pub const fn on_removal(role: Role, source_ready: bool) -> Removal {
    match (role, source_ready) {
        (Role::Pod, true) => Removal::Kill,
        (Role::Pod, false) => Removal::LeaveToHousekeeping,
        (Role::Mirror { static_known: true }, _) => Removal::UpdateStatic,
        (
            Role::Mirror {
                static_known: false,
            },
            _,
        ) => Removal::Ignore,
    }
}

/// The `Ready` condition of a pod's API status against a recomputation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyCondition {
    /// Not in the API status.
    Absent,
    /// Same status and message.
    Same,
    /// Another status or message.
    Differs,
}

/// What to do with a pod whose `status` alone changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconciliation {
    /// `sync` to its worker.
    pub sync: bool,
    /// Delete all its exited containers.
    pub delete_exited: bool,
}

/// A pod's `status` alone changed. `evicted`: phase `Failed` with reason `Evicted`.
#[must_use]
pub const fn on_reconcile(
    has_readiness_gates: bool,
    ready: ReadyCondition,
    evicted: bool,
) -> Reconciliation {
    Reconciliation {
        sync: has_readiness_gates && matches!(ready, ReadyCondition::Differs),
        delete_exited: evicted,
    }
}

/// What to do with an event of the PLEG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaction {
    /// `sync` to the pod's worker.
    pub sync: bool,
    /// Remove dead containers, see `housekeeping::dead_containers`.
    pub clean_dead: bool,
}

/// Something happened at the runtime. `is_config`: the pod manager has the pod.
#[must_use]
pub fn on_pleg_event(kind: EventKind, id: &str, is_config: bool) -> Reaction {
    Reaction {
        sync: is_config && kind != EventKind::ContainerRemoved,
        clean_dead: kind == EventKind::ContainerDied && !id.is_empty(),
    }
}

/// What to write into the container's local status before the sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeWrite {
    /// `ready`.
    Ready(bool),
    /// `started`.
    Started(bool),
}

/// A probe changed its mind. Returns what to write, and whether to send `sync`.
#[must_use]
pub const fn on_probe(
    kind: ProbeKind,
    success: bool,
    is_config: bool,
) -> (Option<ProbeWrite>, bool) {
    match kind {
        _ if !is_config => (None, false),
        ProbeKind::Liveness => (None, !success),
        ProbeKind::Readiness => (Some(ProbeWrite::Ready(success)), true),
        ProbeKind::Startup => (Some(ProbeWrite::Started(success)), true),
    }
}

/// What decides whether a pod of the configuration counts as active.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of another machine; all combinations occur"
)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// `PodTable::is_pod_known_terminated`.
    pub known_terminated: bool,
    /// `PodTable::is_restart_requested`: it comes back under its UID as soon as it has ended.
    pub restart_requested: bool,
    /// `PodTable::is_pod_termination_requested`.
    pub termination_requested: bool,
    /// `PodTable::should_pod_be_finished`: everything of it was stopped.
    pub termination_complete: bool,
    /// Phase of the API object is terminal; never of a static pod.
    pub api_phase_terminal: bool,
    /// Phase in the local status cache is terminal.
    pub local_phase_terminal: bool,
}

/// Whether the pod takes part in admission, restarts, eviction and node shutdown (LOOP-11). One that comes back as soon
/// as it has ended keeps its ports and its share meanwhile.
#[must_use]
pub const fn is_active(pod: Activity) -> bool {
    if pod.known_terminated {
        return pod.restart_requested;
    }
    let ended = pod.api_phase_terminal || pod.local_phase_terminal;
    !ended || (pod.termination_requested && !pod.termination_complete)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    const MIRROR: Role = Role::Mirror { static_known: true };
    const LOST_MIRROR: Role = Role::Mirror {
        static_known: false,
    };

    fn received(uid: &str, created: Option<i64>) -> Box<ReceivedPod> {
        let mut pod = crate::api::Pod::default();
        pod.metadata.uid = uid.into();
        pod.metadata.creation_timestamp = created.map(crate::api::Wall::from_secs);
        Box::new(ReceivedPod {
            pod,
            raw: serde_json::Value::Null,
            origin: "".into(),
        })
    }

    #[test]
    fn operations_become_steps() {
        let one = || received("a", None);
        // LOOP-06
        for (op, step) in [
            (Op::Add(vec![one()]), Step::Add(one())),
            (Op::Update(vec![one()]), Step::Update(one())),
            (Op::Delete(vec![one()]), Step::Update(one())),
            (Op::Remove(vec!["a".into()]), Step::Remove("a".into())),
            (Op::Reconcile(vec![one()]), Step::Reconcile(one())),
        ] {
            assert_eq!(steps(op), [step]);
        }
        // LOOP-07
        let op = Op::Add(vec![
            received("c", Some(9)),
            received("b", Some(5)),
            received("a", None),
            received("d", Some(5)),
        ]);
        let uids: Vec<_> = steps(op)
            .into_iter()
            .map(|step| match step {
                Step::Add(received) => received.pod.metadata.uid.to_string(),
                Step::Update(_) | Step::Remove(_) | Step::Reconcile(_) => unreachable!(),
            })
            .collect();
        assert_eq!(uids, ["a", "b", "d", "c"]);
    }

    #[test]
    fn additions() {
        // LOOP-08 LOOP-09 LOOP-12
        for (name, role, requested, terminal, what) in [
            ("new pod", Role::Pod, false, false, Addition::Admit),
            ("worker ends it", Role::Pod, true, false, Addition::Create),
            (
                "phase is terminal",
                Role::Pod,
                false,
                true,
                Addition::Create,
            ),
            ("mirror", MIRROR, false, false, Addition::UpdateStatic),
            (
                "mirror is never admitted",
                MIRROR,
                true,
                true,
                Addition::UpdateStatic,
            ),
            ("lost mirror", LOST_MIRROR, false, false, Addition::Ignore),
        ] {
            assert_eq!(on_addition(role, requested, terminal), what, "{name}");
        }
    }

    #[test]
    fn updates_and_removals() {
        // LOOP-08 LOOP-13 LOOP-14 SRC-14
        for (role, update, ready, unready) in [
            (
                Role::Pod,
                Change::Update,
                Removal::Kill,
                Removal::LeaveToHousekeeping,
            ),
            (
                MIRROR,
                Change::UpdateStatic,
                Removal::UpdateStatic,
                Removal::UpdateStatic,
            ),
            (
                LOST_MIRROR,
                Change::Ignore,
                Removal::Ignore,
                Removal::Ignore,
            ),
        ] {
            assert_eq!(on_update(role), update, "{role:?}");
            assert_eq!(on_removal(role, true), ready, "{role:?}");
            assert_eq!(on_removal(role, false), unready, "{role:?}");
        }
    }

    #[test]
    fn reconciliation() {
        use ReadyCondition::{Absent, Differs, Same};
        // LOOP-15
        for (gates, ready, evicted, sync) in [
            (true, Differs, false, true),
            (true, Same, false, false),
            (true, Absent, false, false),
            (false, Differs, false, false),
            (true, Differs, true, true),
            (false, Same, true, false),
        ] {
            let expected = Reconciliation {
                sync,
                delete_exited: evicted,
            };
            assert_eq!(on_reconcile(gates, ready, evicted), expected);
        }
    }

    #[test]
    fn events_of_the_runtime() {
        use EventKind::{ContainerDied, ContainerRemoved, ContainerStarted, PodSync};
        // LOOP-16
        for (kind, id, is_config, sync, clean_dead) in [
            (ContainerStarted, "c", true, true, false),
            (ContainerDied, "c", true, true, true),
            (ContainerDied, "c", false, false, true),
            (ContainerDied, "", true, true, false),
            (ContainerRemoved, "c", true, false, false),
            (PodSync, "", true, true, false),
            (ContainerStarted, "c", false, false, false),
        ] {
            assert_eq!(
                on_pleg_event(kind, id, is_config),
                Reaction { sync, clean_dead },
                "{kind:?} {id} {is_config}"
            );
        }
    }

    #[test]
    fn probes() {
        use ProbeKind::{Liveness, Readiness, Startup};
        // LOOP-18
        for (kind, success, write, sync) in [
            (Liveness, true, None, false),
            (Liveness, false, None, true),
            (Readiness, true, Some(ProbeWrite::Ready(true)), true),
            (Readiness, false, Some(ProbeWrite::Ready(false)), true),
            (Startup, true, Some(ProbeWrite::Started(true)), true),
            (Startup, false, Some(ProbeWrite::Started(false)), true),
        ] {
            assert_eq!(on_probe(kind, success, true), (write, sync), "{kind:?}");
            assert_eq!(on_probe(kind, success, false), (None, false), "{kind:?}");
        }
    }

    #[test]
    fn active_pods() {
        // LOOP-11
        for bits in 0..64_u8 {
            let bit = |n: u8| bits & (1 << n) != 0;
            let pod = Activity {
                known_terminated: bit(0),
                termination_requested: bit(1),
                api_phase_terminal: bit(2),
                local_phase_terminal: bit(3),
                restart_requested: bit(4),
                termination_complete: bit(5),
            };
            let expected = match (bit(0), bit(2) || bit(3)) {
                (true, _) => bit(4),
                (false, false) => true,
                (false, true) => bit(1) && !bit(5),
            };
            assert_eq!(is_active(pod), expected, "{pod:?}");
        }
    }
}
