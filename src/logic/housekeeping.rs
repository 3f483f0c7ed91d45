//! What a housekeeping pass cleans up. The pass itself, which lists and removes, is the agent's.
//!
//! A [`Pass`] holds what was listed; each method answers one step of [`ORDER`] from it. Names and rules follow
//! kubelet `kubelet_pods.go`, `HandlePodCleanups`, and `pod_container_deletor.go`.

use alloc::{
    collections::{BTreeSet, VecDeque},
    vec::Vec,
};
use core::time::Duration;

use crate::api::order::Gather;
use crate::api::{
    ContainerId, PodUid,
    cri::{ContainerState, PodRuntimeStatus},
};

use super::pod_table::{Known, WorkState};
use super::runtime_cache::RunningPod;

/// Time between two passes.
pub const PERIOD: Duration = Duration::from_secs(2);
/// A pass that takes longer holds up the loop and is logged as an error.
pub const LONGEST_PASS: Duration = Duration::from_secs(1);
/// Exited instances of one container that are kept when the next one dies, at least.
pub const KEPT_DEAD_CONTAINERS: usize = 1;
/// Containers that may wait for their removal; more are left to the garbage collection.
pub const MAX_REMOVALS: usize = 50;

/// One step of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// List pod cgroups: before the configuration is read, so that a new pod is not taken for an orphan.
    ListCgroups,
    /// Snapshot of the pod manager.
    ReadConfig,
    /// `PodTable::sync_known_pods`.
    SyncKnownPods,
    /// List the pods that run, anew.
    ListRunning,
    /// Stop probes.
    Probes,
    /// Drop local statuses.
    Statuses,
    /// Drop records of resources and user namespaces.
    Records,
    /// Remove pod directories.
    Directories,
    /// Delete mirrors without a static pod.
    Mirrors,
    /// Create pods that are wanted and not there.
    Restarts,
    /// Kill terminal pods that were deleted before they had a worker.
    TerminalDeleted,
    /// Kill what runs and nobody knows.
    RuntimeOrphans,
    /// Set the gauges.
    Metrics,
    /// Destroy pod cgroups.
    Cgroups,
    /// Forget old back-offs.
    BackOff,
}

/// The steps of a pass, in order.
pub const ORDER: [Step; 15] = [
    Step::ListCgroups,
    Step::ReadConfig,
    Step::SyncKnownPods,
    Step::ListRunning,
    Step::Probes,
    Step::Statuses,
    Step::Records,
    Step::Directories,
    Step::Mirrors,
    Step::Restarts,
    Step::TerminalDeleted,
    Step::RuntimeOrphans,
    Step::Metrics,
    Step::Cgroups,
    Step::BackOff,
];

impl Step {
    /// Whether the rest of the pass is skipped when this step fails. Failures of other steps are logged.
    #[must_use]
    pub const fn aborts_pass(self) -> bool {
        matches!(self, Self::ListCgroups | Self::ListRunning)
    }
}

/// Whether a pass may run: only when every source has delivered is "not wanted" known.
#[must_use]
pub const fn may_run(all_sources_ready: bool) -> bool {
    all_sources_ready
}

/// A pod of the configuration (never a mirror).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigPod<'a> {
    /// UID.
    pub uid: &'a PodUid,
    /// Static.
    pub is_static: bool,
    /// `dispatch::is_active`.
    pub active: bool,
    /// `PodTable::is_restart_requested`, asked before `sync_known_pods`.
    pub restart_requested: bool,
    /// `metadata.deletionTimestamp` is set.
    pub deletion_requested: bool,
    /// Phase of the API object is terminal.
    pub api_phase_terminal: bool,
}

/// What a pass has listed. All sorted by UID.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// Pods of the configuration.
    pub config: &'a [ConfigPod<'a>],
    /// UIDs of mirror pods.
    pub mirrors: &'a [PodUid],
    /// Answer of `PodTable::sync_known_pods`.
    pub known: &'a [Known],
    /// Pods that run, listed after that.
    pub running: &'a [RunningPod],
}

/// A pod to create because it is wanted and not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart<'a> {
    /// UID.
    pub uid: &'a PodUid,
    /// Static.
    pub is_static: bool,
    /// Drop its local status first: it tells of the incarnation before, and would end this one at once.
    pub drop_status: bool,
}

/// What to do with a cgroup whose pod is neither syncing nor terminating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupAction {
    /// Volumes are still there: only cut its CPU to the minimum.
    Reduce,
    /// Kill what is in it and remove it, without waiting.
    Destroy,
}

impl<'a> Pass<'a> {
    fn config_pod(&self, uid: &PodUid) -> Option<&'a ConfigPod<'a>> {
        let at = self.config.binary_search_by(|pod| pod.uid.cmp(uid));
        at.ok().map(|at| &self.config[at])
    }

    fn known(&self, uid: &PodUid) -> Option<&'a Known> {
        let at = self.known.binary_search_by(|known| known.uid.cmp(uid));
        at.ok().map(|at| &self.known[at])
    }

    fn runs(&self, uid: &PodUid) -> bool {
        let at = self.running.binary_search_by(|pod| pod.uid.cmp(uid));
        at.is_ok()
    }

    fn may_have_containers(&self, uid: &PodUid) -> bool {
        let ends = |known: &Known| known.state == WorkState::Terminated;
        self.known(uid).is_some_and(|known| !ends(known))
    }

    /// Whether the pod's probes go on.
    #[must_use]
    pub fn keeps_probes(&self, uid: &PodUid) -> bool {
        self.may_have_containers(uid)
    }

    /// Whether the pod's local status is kept. That of a rejected pod is, as long as its UID is configured.
    #[must_use]
    pub fn keeps_status(&self, uid: &PodUid) -> bool {
        self.config_pod(uid).is_some() || self.mirrors.binary_search(uid).is_ok()
    }

    /// Whether the pod's directory is an orphan. It still stays while a volume of it is, or may be, mounted.
    #[must_use]
    pub fn is_orphan_directory(&self, uid: &PodUid) -> bool {
        self.config_pod(uid).is_none() && !self.runs(uid)
    }

    /// Pods to create. A kubelet does that without asking admission; here it is asked again, for another pod may have what
    /// they want by now.
    pub fn restarts(&self) -> impl Iterator<Item = Restart<'a>> + use<'a> {
        let pass = *self;
        pass.config
            .iter()
            .filter(move |pod| (pod.active || pod.restart_requested) && !pod.api_phase_terminal)
            .filter(move |pod| pass.known(pod.uid).is_none())
            .map(|pod| Restart {
                uid: pod.uid,
                is_static: pod.is_static,
                drop_status: pod.restart_requested,
            })
    }

    /// Pods to kill so that they reach their end and can be deleted: terminal in the API, deleted, and without a
    /// worker, as after a rejection.
    pub fn terminal_deleted(&self) -> impl Iterator<Item = &'a PodUid> + use<'a> {
        let pass = *self;
        pass.config
            .iter()
            .filter(|pod| pod.deletion_requested && pod.api_phase_terminal)
            .filter(move |pod| pass.known(pod.uid).is_none() && !pass.runs(pod.uid))
            .map(|pod| pod.uid)
    }

    /// Pods that run and have no worker: to be killed with `Update::runtime_only`. Those of [`Pass::restarts`] have
    /// one by now.
    pub fn runtime_orphans(&self) -> impl Iterator<Item = &'a RunningPod> + use<'a> {
        let restarted: BTreeSet<&PodUid> = self.restarts().map(|restart| restart.uid).gather();
        let pass = *self;
        pass.running
            .iter()
            .filter(move |pod| pass.known(&pod.uid).is_none() && !restarted.contains(&pod.uid))
    }

    /// What to do with a pod cgroup that was listed when the pass began; `None` to leave it.
    ///
    /// A kubelet takes away those of pods that were restarted or found running in this very pass; here a runtime
    /// orphan gets its grace, and a restarted pod keeps the cgroup it is about to use.
    #[must_use]
    pub fn cgroup(&self, uid: &PodUid, volumes_present: bool) -> Option<CgroupAction> {
        let wanted = self.restarts().any(|restart| restart.uid == uid);
        if self.may_have_containers(uid) || self.runs(uid) || wanted {
            return None;
        }
        Some(match volumes_present {
            true => CgroupAction::Reduce,
            false => CgroupAction::Destroy,
        })
    }

    /// The gauges of this pass.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        let mut gauges = Gauges {
            mirrors: self.mirrors.len(),
            ..Gauges::default()
        };
        for pod in self.config {
            let column = usize::from(pod.is_static);
            gauges.desired[column] += 1;
            gauges.active[column] += usize::from(pod.active);
        }
        for known in self.known {
            let config = match known {
                Known {
                    has_config: false, ..
                } => WorkConfig::RuntimeOnly,
                Known {
                    orphan, is_static, ..
                } => match (orphan, is_static) {
                    (false, false) => WorkConfig::Desired,
                    (false, true) => WorkConfig::DesiredStatic,
                    (true, false) => WorkConfig::Orphan,
                    (true, true) => WorkConfig::OrphanStatic,
                },
            };
            gauges.working[known.state as usize][config as usize] += 1;
        }
        gauges
    }
}

/// Second index of [`Gauges::working`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkConfig {
    /// `config="desired",static=""`.
    Desired,
    /// `config="desired",static="true"`.
    DesiredStatic,
    /// `config="orphan",static=""`.
    Orphan,
    /// `config="orphan",static="true"`.
    OrphanStatic,
    /// `config="runtime_only",static="unknown"`.
    RuntimeOnly,
}

impl WorkConfig {
    /// Every value, in index order, with its labels `config` and `static`.
    pub const LABELS: [(&'static str, &'static str); 5] = [
        ("desired", ""),
        ("desired", "true"),
        ("orphan", ""),
        ("orphan", "true"),
        ("runtime_only", "unknown"),
    ];
}

/// Pod counters that every pass sets anew. Pairs are (not static, static).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// `kubelet_desired_pods`.
    pub desired: [usize; 2],
    /// `kubelet_active_pods`.
    pub active: [usize; 2],
    /// `kubelet_mirror_pods`.
    pub mirrors: usize,
    /// `kubelet_working_pods`, by [`WorkState`] and [`WorkConfig`]: 15 series, zeros included.
    pub working: [[usize; WorkConfig::LABELS.len()]; 3],
}

/// Pod counters that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// `kubelet_restarted_pods_total`, (not static, static).
    pub restarted: [u64; 2],
    /// `kubelet_orphaned_runtime_pods_total`; expected to grow only right after a start.
    pub orphaned_runtime: u64,
}

impl Totals {
    /// Counts a pod created by [`Pass::restarts`].
    pub const fn count_restart(&mut self, is_static: bool) {
        self.restarted[is_static as usize] += 1;
    }

    /// Counts a pod killed by [`Pass::runtime_orphans`].
    pub const fn count_runtime_orphan(&mut self) {
        self.orphaned_runtime += 1;
    }
}

/// Exited containers to delete when container `died` has ended.
///
/// - `kept`: exited instances of a container that the operator wants to keep.
/// - `content_removed`: `PodTable::should_pod_content_be_removed`; then nothing is kept.
/// - Shape: oldest last; empty if the pod does not know `died`, unless nothing is kept.
pub fn dead_containers<'a>(
    pod: &'a PodRuntimeStatus,
    died: &str,
    kept: usize,
    content_removed: bool,
) -> Vec<&'a ContainerId> {
    let exited = pod
        .containers
        .iter()
        .filter(|container| container.state == ContainerState::Exited);
    if content_removed {
        return exited.map(|container| &container.id).collect();
    }
    let Some(died) = pod.containers.iter().find(|other| *other.id == *died) else {
        return Vec::new();
    };
    // Newest first, as the status lists them.
    exited
        .filter(|container| container.name == died.name)
        .skip(kept.max(KEPT_DEAD_CONTAINERS))
        .map(|container| &container.id)
        .collect()
}

/// Containers that wait for their removal, at most [`MAX_REMOVALS`].
#[derive(Clone, Debug, Default)]
pub struct Removals(VecDeque<(PodUid, ContainerId)>);

impl Removals {
    /// Queues a container once. False if the queue is full: the garbage collection finds it later.
    pub fn push(&mut self, uid: &PodUid, id: &ContainerId) -> bool {
        if self.0.iter().any(|(_, queued)| queued == id) {
            return true;
        }
        let room = self.0.len() < MAX_REMOVALS;
        if room {
            self.0.push_back((uid.clone(), id.clone()));
        }
        room
    }

    /// The next container to remove, with its pod.
    pub fn pop(&mut self) -> Option<(PodUid, ContainerId)> {
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;
    use crate::api::{
        SandboxId, Wall,
        cri::{ContainerStatus, Order},
    };

    fn uid(text: &str) -> PodUid {
        text.into()
    }

    fn known(text: &str, state: WorkState) -> Known {
        Known {
            uid: uid(text),
            state,
            orphan: false,
            has_config: true,
            is_static: false,
        }
    }

    fn running(text: &str) -> RunningPod {
        RunningPod {
            uid: uid(text),
            name: "".into(),
            namespace: "".into(),
        }
    }

    const fn wanted(uid: &PodUid) -> ConfigPod<'_> {
        ConfigPod {
            uid,
            is_static: false,
            active: true,
            restart_requested: false,
            deletion_requested: false,
            api_phase_terminal: false,
        }
    }

    #[test]
    fn order_and_aborts() {
        // CLEAN-01
        let position = |step| ORDER.iter().position(|other| *other == step);
        let pairs = [
            (Step::ListCgroups, Step::ReadConfig),
            (Step::ReadConfig, Step::SyncKnownPods),
            (Step::SyncKnownPods, Step::ListRunning),
            (Step::ListRunning, Step::Probes),
            (Step::Probes, Step::Statuses),
            (Step::Statuses, Step::Records),
            (Step::Records, Step::Directories),
            (Step::Directories, Step::Mirrors),
            (Step::Mirrors, Step::Restarts),
            (Step::Restarts, Step::TerminalDeleted),
            (Step::TerminalDeleted, Step::RuntimeOrphans),
            (Step::RuntimeOrphans, Step::Metrics),
            (Step::Metrics, Step::Cgroups),
            (Step::Cgroups, Step::BackOff),
        ];
        for (first, second) in pairs {
            assert!(position(first) < position(second), "{first:?} {second:?}");
        }
        // CLEAN-02
        for step in ORDER {
            let aborts = [Step::ListCgroups, Step::ListRunning].contains(&step);
            assert_eq!(step.aborts_pass(), aborts, "{step:?}");
        }
        // LOOP-20 SRC-14
        assert!(may_run(true) && !may_run(false));
    }

    #[test]
    fn what_is_kept() {
        let (config, mirror, ended, stopping) = (uid("a"), uid("m"), uid("e"), uid("s"));
        let pods = [wanted(&config)];
        let pass = Pass {
            config: &pods,
            mirrors: core::slice::from_ref(&mirror),
            known: &[
                known("a", WorkState::Sync),
                known("e", WorkState::Terminated),
                known("s", WorkState::Terminating),
            ],
            running: &[running("r")],
        };
        let (orphan, runs) = (uid("x"), uid("r"));
        for (pod, probes, status, directory_is_orphan) in [
            (&config, true, true, false),
            (&mirror, false, true, true),
            (&ended, false, false, true),
            (&stopping, true, false, true),
            (&runs, false, false, false),
            (&orphan, false, false, true),
        ] {
            // CLEAN-03
            assert_eq!(pass.keeps_probes(pod), probes, "{pod}");
            // CLEAN-04 LOOP-22
            assert_eq!(pass.keeps_status(pod), status, "{pod}");
            // CLEAN-05
            assert_eq!(pass.is_orphan_directory(pod), directory_is_orphan, "{pod}");
        }
    }

    #[test]
    fn restarts() {
        let a = uid("a");
        // CLEAN-09
        for (name, pod, is_known, restarts) in [
            ("active and missing", wanted(&a), false, true),
            ("active and there", wanted(&a), true, false),
            (
                "inactive",
                ConfigPod {
                    active: false,
                    ..wanted(&a)
                },
                false,
                false,
            ),
            (
                "its old status is terminal, but it came back",
                ConfigPod {
                    active: false,
                    restart_requested: true,
                    ..wanted(&a)
                },
                false,
                true,
            ),
            (
                "came back, and the old one still ends",
                ConfigPod {
                    restart_requested: true,
                    ..wanted(&a)
                },
                true,
                false,
            ),
        ] {
            let known = [known("a", WorkState::Terminated)];
            let pass = Pass {
                config: &[pod],
                mirrors: &[],
                known: if is_known { &known } else { &[] },
                running: &[],
            };
            let expected = restarts.then_some(Restart {
                uid: &a,
                is_static: false,
                drop_status: pod.restart_requested,
            });
            assert_eq!(pass.restarts().next(), expected, "{name}");
        }
    }

    #[test]
    fn terminal_and_deleted() {
        let a = uid("a");
        // CLEAN-10
        for (deleted, terminal, is_known, runs, kill) in [
            (true, true, false, false, true),
            (false, true, false, false, false),
            (true, false, false, false, false),
            (true, true, true, false, false),
            (true, true, false, true, false),
        ] {
            let pod = ConfigPod {
                active: false,
                deletion_requested: deleted,
                api_phase_terminal: terminal,
                ..wanted(&a)
            };
            let known = [known("a", WorkState::Terminated)];
            let running = [running("a")];
            let pass = Pass {
                config: &[pod],
                mirrors: &[],
                known: if is_known { &known } else { &[] },
                running: if runs { &running } else { &[] },
            };
            assert_eq!(pass.terminal_deleted().next().is_some(), kill);
        }
    }

    #[test]
    fn runtime_orphans_and_cgroups() {
        let a = uid("a");
        let pods = [wanted(&a)];
        let running = [running("a"), running("k"), running("r")];
        let pass = Pass {
            config: &pods,
            mirrors: &[],
            known: &[
                known("k", WorkState::Sync),
                known("t", WorkState::Terminated),
            ],
            running: &running,
        };
        // CLEAN-11
        let orphans: Vec<_> = pass.runtime_orphans().map(|pod| &*pod.uid).collect();
        assert_eq!(orphans, ["r"], "known and restarted pods are not");
        // CLEAN-12
        for (pod, volumes, action) in [
            ("k", false, None),
            ("t", false, Some(CgroupAction::Destroy)),
            ("t", true, Some(CgroupAction::Reduce)),
            ("x", false, Some(CgroupAction::Destroy)),
            ("r", false, None),
            ("a", false, None),
        ] {
            assert_eq!(pass.cgroup(&uid(pod), volumes), action, "{pod}");
        }
    }

    #[test]
    fn counters() {
        // CLEAN-13
        let (a, b) = (uid("a"), uid("b"));
        let pods = [
            ConfigPod {
                active: false,
                ..wanted(&a)
            },
            ConfigPod {
                is_static: true,
                ..wanted(&b)
            },
        ];
        let row = |orphan, has_config, is_static, state| Known {
            orphan,
            has_config,
            is_static,
            ..known("x", state)
        };
        let pass = Pass {
            config: &pods,
            mirrors: &[uid("m")],
            known: &[
                row(false, true, false, WorkState::Sync),
                row(false, true, true, WorkState::Sync),
                row(true, true, false, WorkState::Terminating),
                row(true, true, true, WorkState::Terminated),
                row(true, false, false, WorkState::Terminating),
                row(false, false, false, WorkState::Terminating),
            ],
            running: &[],
        };
        assert_eq!(
            pass.gauges(),
            Gauges {
                desired: [1, 1],
                active: [0, 1],
                mirrors: 1,
                working: [[1, 1, 0, 0, 0], [0, 0, 1, 0, 2], [0, 0, 0, 1, 0]],
            }
        );
        let mut totals = Totals::default();
        totals.count_restart(true);
        totals.count_runtime_orphan();
        assert_eq!((totals.restarted, totals.orphaned_runtime), ([0, 1], 1));
    }

    #[test]
    fn dead_containers_of_a_pod() {
        let container = |id: &str, name: &str, state| ContainerStatus {
            id: id.into(),
            sandbox: SandboxId::new("s"),
            name: name.into(),
            restart_count: 0,
            state,
            created: Order(1, 1),
            created_at: Wall(0),
            started_at: None,
            finished_at: None,
            finished_mono: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            volume_images: Vec::new(),
            hash: 0,
            user: None,
            pid: 0,
            log_path: String::new(),
        };
        use ContainerState::{Exited, Running};
        let pod = PodRuntimeStatus {
            containers: vec![
                container("4", "c", Running),
                container("3", "c", Exited),
                container("2", "c", Exited),
                container("o", "other", Exited),
                container("1", "c", Exited),
            ],
            ..PodRuntimeStatus::default()
        };
        // CLEAN-14
        for (name, died, kept, all, expected) in [
            ("one is kept", "3", 1, false, &["2", "1"][..]),
            ("at least one is kept", "3", 0, false, &["2", "1"]),
            ("two are kept", "3", 2, false, &["1"]),
            ("nothing is left over", "o", 1, false, &[]),
            ("unknown", "x", 1, false, &[]),
            ("content goes", "3", 1, true, &["3", "2", "o", "1"]),
            (
                "content goes, whoever died",
                "x",
                1,
                true,
                &["3", "2", "o", "1"],
            ),
        ] {
            let ids: Vec<_> = dead_containers(&pod, died, kept, all)
                .into_iter()
                .map(ContainerId::as_str)
                .collect();
            assert_eq!(ids, expected, "{name}");
        }
    }

    #[test]
    fn removals_are_bounded() {
        // CLEAN-15
        let mut removals = Removals::default();
        for n in 0..MAX_REMOVALS {
            assert!(removals.push(&uid("a"), &format!("{n}").into()));
        }
        assert!(removals.push(&uid("a"), &"0".into()), "already queued");
        assert!(!removals.push(&uid("a"), &"more".into()), "full");
        assert_eq!(removals.pop(), Some((uid("a"), "0".into())));
        assert!(removals.push(&uid("a"), &"more".into()));
    }
}
