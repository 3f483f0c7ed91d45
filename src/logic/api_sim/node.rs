//! A node with pods that begin, restart, end and are stopped; its statuses are kept by the real cache.

use alloc::{boxed::Box, collections::BTreeMap};

use serde_json::Value;

use crate::api::pod::RestartPolicy;
use crate::api::pod_status::{
    ContainerState, ContainerStatus, PodCondition, PodPhase, PodStatus, Running, Terminated,
};
use crate::api::{Pod, PodUid, WallTime};
use crate::status_cache::StatusCache;
use crate::status_writer::{LocalPodState, LocalPodStates};
use crate::testing::Random;

/// Stage of a pod's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    New,
    Running,
    /// Told to end; containers may still run.
    Stopping,
    /// No container runs.
    Stopped,
    /// Volumes and cgroup are cleaned up.
    Finished,
}

#[derive(Debug)]
pub(super) struct Local {
    pub(super) pod: Pod,
    pub(super) stage: Stage,
    restarts: u32,
    exit_code: i32,
}

/// Pods, which outlive the agent, and their statuses, which do not.
#[derive(Default)]
pub(super) struct Node {
    pub(super) pods: BTreeMap<PodUid, Local>,
    pub(super) statuses: BTreeMap<PodUid, StatusCache>,
}

impl LocalPodStates for Node {
    fn local_state(&self, uid: &PodUid) -> Option<LocalPodState<'_>> {
        let (local, own) = (self.pods.get(uid)?, self.statuses.get(uid)?);
        Some(LocalPodState {
            status: own.stored_status()?,
            version: own.version()?,
            finished: own.is_finished(),
            could_run: local.stage < Stage::Stopped,
        })
    }
}

impl Node {
    /// Configures a pod, or changes it.
    pub(super) fn configure(&mut self, pod: Pod, now: WallTime) {
        let uid = pod.metadata.uid.clone();
        match self.pods.get_mut(&uid) {
            Some(local) => local.pod = pod,
            None => {
                let shown = pod.status.container_statuses.first();
                let ended = shown.and_then(|c| c.state.terminated.as_ref());
                let over = pod.status.phase.is_terminal()
                    || (ended.is_some() && pod.spec.restart_policy == RestartPolicy::Never);
                let local = Local {
                    stage: if over { Stage::Stopped } else { Stage::New },
                    restarts: shown.map_or(0, |c| c.restart_count + 1),
                    exit_code: ended.map_or(0, |t| t.exit_code),
                    pod,
                };
                self.pods.insert(uid.clone(), local);
            }
        }
        self.report(&uid, now);
    }

    /// Starts over with a new agent, which reads the pods from the runtime; statuses begin afresh.
    pub(super) fn restart(&mut self) {
        self.statuses.clear();
        for local in self.pods.values_mut() {
            local.stage = local.stage.min(Stage::Stopped);
        }
    }

    /// Moves a pod on by one step. Without `spontaneous` the pod does only what it must.
    pub(super) fn step(
        &mut self,
        uid: &PodUid,
        spontaneous: bool,
        random: &mut Random,
        now: WallTime,
    ) {
        let Some(local) = self.pods.get_mut(uid) else {
            return;
        };
        let told =
            local.pod.metadata.deletion_timestamp.is_some() || local.pod.status.phase.is_terminal();
        match local.stage {
            Stage::New | Stage::Running if told => local.stage = Stage::Stopping,
            Stage::New => local.stage = Stage::Running,
            Stage::Running if spontaneous => {
                let never = local.pod.spec.restart_policy == RestartPolicy::Never;
                if never && random.one_in(3) {
                    local.exit_code = i32::from(random.one_in(2));
                    local.stage = Stage::Stopping;
                } else if !never {
                    local.restarts += 1;
                }
            }
            Stage::Running | Stage::Finished => {}
            Stage::Stopping => local.stage = Stage::Stopped,
            Stage::Stopped => {
                local.stage = Stage::Finished;
                self.report(uid, now);
                let local = &self.pods[uid];
                self.statuses
                    .entry(local.pod.metadata.uid.clone())
                    .or_default()
                    .store_finished_status(&local.pod, now);
                return;
            }
        }
        self.report(uid, now);
    }

    pub(super) fn is_restless(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|local| {
            let told = local.pod.metadata.deletion_timestamp.is_some()
                || local.pod.status.phase.is_terminal();
            match local.stage {
                Stage::Running => told,
                Stage::New | Stage::Stopping | Stage::Stopped => true,
                Stage::Finished => false,
            }
        })
    }

    fn report(&mut self, uid: &PodUid, now: WallTime) {
        let local = &self.pods[uid];
        if self.statuses.get(uid).is_some_and(StatusCache::is_finished) {
            return;
        }
        let over = local.stage >= Stage::Stopping;
        let state = match local.stage {
            Stage::New => ContainerState::default(),
            Stage::Running => ContainerState {
                running: Some(Running::default()),
                ..ContainerState::default()
            },
            Stage::Stopping | Stage::Stopped | Stage::Finished => ContainerState {
                terminated: Some(Box::new(Terminated {
                    exit_code: local.exit_code,
                    ..Terminated::default()
                })),
                ..ContainerState::default()
            },
        };
        let phase = if local.pod.status.phase.is_terminal() {
            local.pod.status.phase
        } else if over && local.exit_code == 0 {
            PodPhase::Succeeded
        } else if over {
            PodPhase::Failed
        } else if local.stage == Stage::New {
            PodPhase::Pending
        } else {
            PodPhase::Running
        };
        let ready = PodCondition {
            kind: "Ready".into(),
            status: if phase == PodPhase::Running {
                "True"
            } else {
                "False"
            }
            .into(),
            ..PodCondition::default()
        };
        let scheduled = PodCondition {
            kind: "PodScheduled".into(),
            status: "True".into(),
            ..PodCondition::default()
        };
        let status = PodStatus {
            phase,
            conditions: vec![scheduled, ready],
            container_statuses: vec![ContainerStatus {
                name: "c".into(),
                state,
                restart_count: local.restarts,
                ..ContainerStatus::default()
            }],
            ..PodStatus::default()
        };
        // A terminal phase that is stored is not swapped: the generator of statuses sees to that.
        let stored = self
            .statuses
            .get(uid)
            .and_then(|s| s.stored_status())
            .map(|s| s.phase);
        let phase = stored.filter(|p| p.is_terminal()).unwrap_or(status.phase);
        let status = PodStatus { phase, ..status };
        let pod = local.pod.clone();
        self.statuses
            .entry(uid.clone())
            .or_default()
            .store_status(&pod, status, now);
    }
}

/// Returns true if the API shows the status that the node stores, in the agent's own fields.
pub(super) fn shows(object: &Value, status: &PodStatus) -> bool {
    use crate::status_patch::{ApiStatusDigest, compute_status_patch};
    let shown: PodStatus =
        crate::api::strict::typed_from_value(&object["status"]).expect("a status");
    compute_status_patch(
        &"u".into(),
        &ApiStatusDigest::from_status(&shown),
        None,
        status,
        false,
        WallTime(0),
    )
    .is_none()
}
