//! Decisions of the sync loop about each of its inputs. The effects, and the order of inputs, are the loop's.
//!
//! Names and rules follow kubelet `kubelet.go`, `syncLoopIteration` and `HandlePod*`.

use crate::api::WallTime;

use super::pleg::PlegEventKind;
use super::probe::ProbeKind;

/// Sort key for new pods of one delivery: by creation, those without a time first (LOOP-07). Running pods come before
/// all others: they were admitted, and over a restart no pod that was refused may take their place (LOOP-12).
#[must_use]
pub const fn addition_order(idle: bool, created: Option<WallTime>) -> (bool, Option<WallTime>) {
    (idle, created)
}

/// Order for a new pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdditionOrder {
    /// Ask admission; if it agrees, `create` to the worker, else the pod is rejected and not asked again.
    Admit,
    /// `create` to the worker without admission.
    Create,
}

/// Decides about a new pod; it is in the pod manager already. `termination_requested`: its worker ends an earlier
/// incarnation.
#[must_use]
pub const fn on_addition(termination_requested: bool, api_phase_terminal: bool) -> AdditionOrder {
    if termination_requested || api_phase_terminal {
        AdditionOrder::Create
    } else {
        AdditionOrder::Admit
    }
}

/// Order for a pod that its source no longer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalOrder {
    /// `kill` to its worker, without options.
    Kill,
    /// Wait: housekeeping ends the pod as an orphan once all sources are ready.
    LeaveToHousekeeping,
}

/// Decides about a pod that vanished from its source. A kubelet waits for all sources. Here the source that had
/// delivered the pod is enough, once it is ready: with an apiserver out of reach a deleted manifest must still stop its
/// pod.
#[must_use]
pub const fn on_removal(source_ready: bool) -> RemovalOrder {
    if source_ready {
        RemovalOrder::Kill
    } else {
        RemovalOrder::LeaveToHousekeeping
    }
}

/// Order for a pod whose `status` alone changed in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileOrder {
    /// The pod was ended by another client: proceed as if its object had changed.
    Update,
    /// `sync` to its worker.
    Sync,
    /// Do nothing.
    Nothing,
}

/// Decides about a pod whose `status` alone changed (LOOP-15, OFF-04). `ended`: its phase in the API is terminal;
/// `told`: the agent's own status of it is, too. `gates_changed`: see `conditions::gates_changed`.
#[must_use]
pub const fn on_reconcile(ended: bool, told: bool, gates_changed: bool) -> ReconcileOrder {
    match (ended && !told, gates_changed) {
        (true, _) => ReconcileOrder::Update,
        (false, true) => ReconcileOrder::Sync,
        (false, false) => ReconcileOrder::Nothing,
    }
}

/// Order after an event of the PLEG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlegReaction {
    /// `sync` to the pod's worker.
    pub sync: bool,
    /// Remove dead containers, see `gc::removable_after_death`.
    pub clean_dead: bool,
}

/// Decides about an event of the PLEG. `id`: of the container or sandbox, may be empty. `is_config`: the pod manager
/// has the pod.
#[must_use]
pub fn on_pleg_event(kind: PlegEventKind, id: &str, is_config: bool) -> PlegReaction {
    PlegReaction {
        sync: is_config && kind != PlegEventKind::ContainerRemoved,
        clean_dead: kind == PlegEventKind::ContainerDied && !id.is_empty(),
    }
}

/// Value to write into the container's local status before the sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeWrite {
    /// `ready`.
    Ready(bool),
    /// `started`.
    Started(bool),
}

/// Decides about a changed probe result. Returns the value to write, and whether to send `sync`.
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

/// Facts that decide whether a pod of the configuration is active.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of another machine; all combinations occur"
)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodActivity {
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

/// Returns true if the pod takes part in admission, restarts, eviction and node shutdown (LOOP-11). A pod that is to
/// restart under its UID as soon as it has ended keeps its ports and its share meanwhile.
#[must_use]
pub const fn is_active(pod: PodActivity) -> bool {
    if pod.known_terminated {
        return pod.restart_requested;
    }
    let ended = pod.api_phase_terminal || pod.local_phase_terminal;
    !ended || (pod.termination_requested && !pod.termination_complete)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::order::OrderExt;

    #[test]
    fn additions() {
        // LOOP-07 LOOP-12
        let at = |s| Some(WallTime::from_unix_seconds(s));
        let mut pods = [
            ("refused before", true, at(1)),
            ("c", false, at(9)),
            ("b", false, at(5)),
            ("a", false, None),
            ("d", false, at(5)),
        ];
        pods.stable_sort_by_key(|(_, idle, created)| addition_order(*idle, *created));
        let names = pods.map(|(name, ..)| name);
        assert_eq!(names, ["a", "b", "d", "c", "refused before"]);
        // LOOP-08 LOOP-09
        for (requested, terminal, what) in [
            (false, false, AdditionOrder::Admit),
            (true, false, AdditionOrder::Create),
            (false, true, AdditionOrder::Create),
            (true, true, AdditionOrder::Create),
        ] {
            assert_eq!(on_addition(requested, terminal), what);
        }
    }

    #[test]
    fn removals() {
        // LOOP-14 SRC-14
        assert_eq!(on_removal(true), RemovalOrder::Kill);
        assert_eq!(on_removal(false), RemovalOrder::LeaveToHousekeeping);
    }

    #[test]
    fn reconciliation() {
        use ReconcileOrder::{Nothing, Sync, Update};
        // LOOP-15 OFF-04
        for (ended, told, gates_changed, what) in [
            (false, false, false, Nothing),
            (false, false, true, Sync),
            (true, false, false, Update),
            (true, false, true, Update),
            (true, true, false, Nothing),
            (true, true, true, Sync),
        ] {
            assert_eq!(on_reconcile(ended, told, gates_changed), what);
        }
    }

    #[test]
    fn events_of_the_runtime() {
        use PlegEventKind::{ContainerDied, ContainerRemoved, ContainerStarted, PodSync};
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
                PlegReaction { sync, clean_dead },
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
            let pod = PodActivity {
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
