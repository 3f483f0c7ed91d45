//! What must hold at every instant, and what must hold in the end.

use alloc::collections::{BTreeMap, BTreeSet};

use super::{
    super::{core::Agent, parts::AgentParts},
    counts::{Counts, What},
    pods::{Manifest, has_port, stays_ended},
};
use crate::{
    api::{
        Container, Pod, PodUid,
        cri::{ContainerState, ContainerStatus, PodRuntimeStatus, SandboxState, SandboxStatus},
        pod::RestartPolicy,
        pod_status::PodPhase,
    },
    logic::{
        pod_table::{PodHandle, PodTable},
        pod_worker::WorkerStage,
        spec_hash::spec_hash,
    },
    runtime::fake::{Fake, Op, Operation},
};

/// What one pod was like an instant ago.
#[derive(Clone, Copy, Debug)]
struct Before {
    cancelled: bool,
    restart: bool,
    stage: WorkerStage,
    grace_s: Option<u32>,
    content_goes: bool,
}

/// What is remembered from one instant to the next.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pods: BTreeMap<PodHandle, Before>,
    /// Pods that had a slot.
    seen: BTreeSet<PodUid>,
    /// Phases and reasons as they were, for the counts.
    told: BTreeMap<PodUid, (PodPhase, String)>,
    orphans: u64,
    /// Phases in which pods ended, with the slot they had.
    ended: BTreeMap<PodUid, (Option<PodHandle>, PodPhase)>,
    /// Pods of which somebody else has told another end in the API.
    pub(super) usurped: BTreeSet<PodUid>,
    /// Ends that an agent had told the API before a power cut took its memory: the next one may find the pod ended otherwise, and
    /// then learns of them.
    pub(super) told_before: BTreeMap<PodUid, PodPhase>,
}

/// Whether this agent has refused the pod.
pub(super) fn is_refused(agent: &Agent, uid: &PodUid) -> bool {
    let status = agent.pods().stored_status(uid);
    status.is_some_and(|status| status.message.starts_with("Pod was rejected: "))
}

/// What must hold when an operation on a pod begins.
pub(super) fn at_the_runtime(
    agent: &Agent,
    fake: &Fake,
    operation: &Operation<'_>,
) -> Option<String> {
    let Operation {
        op, uid, container, ..
    } = *operation;
    match op {
        Op::RunPodSandbox | Op::CreateContainer | Op::StartContainer => {
            let table = agent.pods().worker_table();
            if table.is_pod_termination_requested(uid) {
                return Some(format!("{op:?} of pod {uid}, which is to end"));
            }
            if is_refused(agent, uid) {
                return Some(format!("{op:?} of pod {uid}, which was refused"));
            }
            // Of two pods with one port the second waits until the first has ended, as long as a source has the first.
            // One that runs may be refused by an agent that has just started, if it comes second (LOOP-12): it ends then.
            let statuses = agent.pods().statuses();
            let refused =
                |other: &PodUid| statuses.get(other).is_some_and(|s| s.reason == "NodePorts");
            let holder = |other: &&PodUid| {
                has_port(other)
                    && *other != uid
                    && table.find_handle(other).is_some()
                    && !refused(other)
            };
            let config = agent.pods().configured_uids();
            let holder = config.iter().filter(holder).find(|other| fake.runs(other));
            let holder = holder.filter(|_| has_port(uid));
            holder.map(|other| format!("{op:?} of pod {uid}, whose port pod {other} has"))
        }
        Op::RemoveContainer => {
            let runs = container.is_some_and(|c| c.state == ContainerState::Running);
            runs.then(|| format!("{op:?} of pod {uid} while the container runs"))
        }
        _ => None,
    }
}

impl Rules {
    /// An agent without memory has taken over.
    pub(super) fn another_agent(&mut self) {
        *self = Self {
            usurped: core::mem::take(&mut self.usurped),
            told_before: core::mem::take(&mut self.told_before),
            ..Self::default()
        };
    }

    /// Compares this instant with the one before.
    pub(super) fn check(
        &mut self,
        agent: &Agent,
        fake: &Fake,
        counts: &mut Counts,
    ) -> Result<(), String> {
        // PW-36
        let table = agent.pods().worker_table();
        let mut now = BTreeMap::new();
        for handle in table.handles() {
            let (Some(identity), Some(stage)) =
                (table.pod_identity(handle), table.pod_stage(handle))
            else {
                return Err("a slot in use has nobody".into());
            };
            let uid = identity.uid;
            if stage.is_terminated() && fake.runs(uid) {
                return Err(format!("pod {uid} is {stage:?} and a container runs"));
            }
            let grace_s = table.grace_s(handle);
            let content_goes = table.should_pod_content_be_removed(uid);
            if let Some(before) = self.pods.get(&handle) {
                if stage < before.stage {
                    return Err(format!("pod {uid} goes back to {stage:?}"));
                }
                if before
                    .grace_s
                    .is_some_and(|b| grace_s.is_none_or(|g| g > b))
                {
                    return Err(format!(
                        "pod {uid}: grace grows from {:?} to {grace_s:?}",
                        before.grace_s
                    ));
                }
                if before
                    .grace_s
                    .is_some_and(|b| grace_s.is_some_and(|g| 0 < g && g < b))
                {
                    counts.saw(What::GraceShortened);
                }
                if before.content_goes && !content_goes {
                    return Err(format!("pod {uid}: its content may not go any more"));
                }
            }
            let expected = answers_in(stage);
            let given = answers(table, uid);
            if given != expected {
                return Err(format!(
                    "pod {uid} in {stage:?}: answers {given:?}, not {expected:?}"
                ));
            }
            // Of a pod that is evicted what is dead may go while the rest ends; of no other.
            let evicted = table.stop_status(handle).is_some();
            if content_goes && !stage.is_terminated() && !evicted {
                return Err(format!("pod {uid} in {stage:?}: its content may go"));
            }
            let cancelled = table.is_cancelled(handle);
            let restart = table.is_restart_requested(uid);
            let old = self.pods.get(&handle);
            for (is, was, what) in [
                (cancelled, old.is_some_and(|o| o.cancelled), What::Cancelled),
                (restart, old.is_some_and(|o| o.restart), What::SameUidAsked),
                (
                    stage == WorkerStage::FinishedUnstarted,
                    old.is_some_and(|o| o.stage == stage),
                    What::EndedUnstarted,
                ),
            ] {
                if is && !was {
                    counts.saw(what);
                }
            }
            if old.is_none() && !self.seen.insert(uid.clone()) {
                counts.saw(What::SameUidCreated);
            }
            let before = Before {
                cancelled,
                restart,
                stage,
                grace_s,
                content_goes,
            };
            now.insert(handle, before);
        }
        if now.len() > table.len() {
            return Err(format!(
                "{} slots in use, {} counted",
                now.len(),
                table.len()
            ));
        }
        self.pods = now;
        let orphans = agent.pods().totals().orphaned_runtime;
        if orphans > self.orphans {
            counts.saw(What::RuntimeOrphan);
        }
        self.orphans = orphans;
        self.count_statuses(agent, counts);
        self.phases(agent, table)
    }

    fn count_statuses(&mut self, agent: &Agent, counts: &mut Counts) {
        for (uid, status) in agent.pods().statuses() {
            let all = status
                .init_container_statuses
                .iter()
                .chain(&status.container_statuses);
            let runs = |c: &crate::api::pod_status::ContainerStatus| c.state.running.is_some();
            if all.clone().any(|c| runs(c) && !c.ready) {
                counts.saw(What::NotReady);
            }
            let waits = all.filter_map(|c| c.state.waiting.as_ref()).next();
            let reason = waits.map_or(&status.reason, |w| &w.reason);
            let told = self.told.get(uid);
            if told.is_some_and(|t| t.0 == status.phase && t.1 == *reason) {
                continue;
            }
            self.told
                .insert(uid.clone(), (status.phase, reason.clone()));
            match &**reason {
                "CrashLoopBackOff" => counts.saw(What::CrashLoopBackOff),
                "ImagePullBackOff" => counts.saw(What::ImagePullBackOff),
                "DeadlineExceeded" => counts.saw(What::DeadlineExceeded),
                "NodePorts" => counts.saw(What::PortRefused),
                _ => {}
            }
            match status.phase {
                PodPhase::Succeeded => counts.saw(What::Succeeded),
                PodPhase::Failed => counts.saw(What::Failed),
                _ => {}
            }
        }
    }

    /// A pod that has ended stays so, until another one of its UID takes its place.
    fn phases(&mut self, agent: &Agent, table: &PodTable) -> Result<(), String> {
        let statuses = agent.pods().statuses();
        let mut ended = BTreeMap::new();
        for (uid, status) in statuses {
            let handle = table.find_handle(uid);
            let before = self
                .ended
                .get(uid)
                .filter(|(h, _)| h.is_none() || *h == handle);
            if let Some((_, phase)) = before
                && *phase != status.phase
                && handle.is_some()
                && !(status.phase.is_terminal() && self.usurped.contains(uid))
                && self.told_before.get(uid) != Some(&status.phase)
            {
                return Err(format!("pod {uid}: {phase:?} becomes {:?}", status.phase));
            }
            if status.phase.is_terminal() {
                ended.insert(uid.clone(), (handle, status.phase));
            }
        }
        self.ended = ended;
        Ok(())
    }
}

/// The table's answers about one pod, in the order of the truth table without its last column.
fn answers(table: &PodTable, uid: &PodUid) -> [bool; 4] {
    [
        table.is_pod_known_terminated(uid),
        table.could_have_running_containers(uid),
        table.should_pod_be_finished(uid),
        table.is_pod_termination_requested(uid),
    ]
}

const fn answers_in(stage: WorkerStage) -> [bool; 4] {
    match stage {
        WorkerStage::Sync => [false, true, false, false],
        WorkerStage::Requested | WorkerStage::Terminating => [false, true, false, true],
        WorkerStage::Terminated => [true, false, false, true],
        WorkerStage::Finished | WorkerStage::FinishedUnstarted => [true, false, true, true],
    }
}

/// What is there now.
pub(super) struct Present<'a> {
    pub(super) core: &'a Agent,
    pub(super) parts: &'a AgentParts,
    pub(super) pods: Vec<PodRuntimeStatus>,
    /// Every pod there ever was.
    pub(super) uids: &'a BTreeSet<PodUid>,
    /// Those that have ended in the API and are not to be forgotten.
    pub(super) ended: &'a BTreeSet<PodUid>,
}

impl Present<'_> {
    /// Whether everything is as wanted: each pod by its UID, and whether it may have ended for good.
    pub(super) fn is_as_wanted(
        &self,
        wanted: &BTreeMap<PodUid, (&Manifest, &Pod, bool)>,
    ) -> Result<(), String> {
        for (uid, (manifest, pod, may_end)) in wanted {
            self.pod_is_well(manifest, pod, *may_end)
                .map_err(|e| format!("pod {uid} ({:?}): {e}", manifest.kind))?;
        }
        let over = |uid: &&PodUid| !wanted.contains_key(*uid) && !self.ended.contains(*uid);
        for uid in self.uids.iter().filter(over) {
            self.is_gone(uid)
                .map_err(|e| format!("pod {uid}, which nobody wants: {e}"))?;
        }
        if let Some(stray) = self.pods.iter().find(|p| !self.uids.contains(&p.uid)) {
            return Err(format!("a stray pod {} at the runtime", stray.uid));
        }
        if !self.parts.owners.claims.is_idle() {
            return Err("a call has no answer".into());
        }
        if self.core.pods().has_arriving_pods() {
            return Err("a pod arrives for ever".into());
        }
        self.counters_agree(wanted.len() + self.ended.len())
    }

    fn counters_agree(&self, wanted: usize) -> Result<(), String> {
        let table = self.core.pods().worker_table();
        if table.len() != table.handles().count() || table.len() > wanted {
            return Err(format!("{} pods in the table", table.len()));
        }
        let counted = self.core.running_counts();
        let instances = |state| {
            let all = self.pods.iter().flat_map(|p| &p.containers);
            all.filter(|c| c.state == state).count()
        };
        let present = [ContainerState::Running, ContainerState::Exited].map(instances);
        if present != [counted.running, counted.exited] {
            return Err(format!(
                "{present:?} containers run and have ended, {counted:?} are counted"
            ));
        }
        Ok(())
    }

    fn listed(&self, uid: &PodUid) -> Option<&PodRuntimeStatus> {
        self.pods.iter().find(|p| p.uid == *uid)
    }

    fn is_gone(&self, uid: &PodUid) -> Result<(), String> {
        let left = [
            (!self.core.is_orphaned(uid), "somebody holds it"),
            (self.listed(uid).is_some(), "the runtime has it"),
            (self.core.pods().holds(uid), "something is known of it"),
            (
                self.parts.machine.volumes.pod_dir(uid).exists(),
                "it has files",
            ),
            (
                self.core.uids_at_runtime().contains(uid),
                "it is in the cache",
            ),
        ];
        match left.iter().find(|(is, _)| *is) {
            Some((_, what)) => Err((*what).into()),
            None => Ok(()),
        }
    }

    fn pod_is_well(&self, manifest: &Manifest, pod: &Pod, may_end: bool) -> Result<(), String> {
        let uid = &pod.metadata.uid;
        let runs = self.listed(uid).is_some_and(PodRuntimeStatus::is_running);
        let table = self.core.pods().worker_table();
        let stage = table.find_handle(uid).and_then(|h| table.pod_stage(h));
        if manifest.deleted_s.is_some() {
            let over = stage.is_none_or(WorkerStage::is_finished) && !runs;
            return over
                .then_some(())
                .ok_or_else(|| format!("{stage:?}, runs: {runs}"));
        }
        if may_end
            && stage.is_some_and(WorkerStage::is_finished)
            && !runs
            && !table.is_restart_requested(uid)
        {
            // It has ended for good, whatever its manifest says now.
            return Ok(());
        }
        let statuses = self.core.pods().statuses();
        let status = statuses.get(uid).ok_or("it has no status")?;
        if status.reason == "NodePorts" && has_port(uid) {
            // Refused, as upstream, for good.
            return match runs {
                true => Err("it is refused and runs".into()),
                false => Ok(()),
            };
        }
        if status.phase.is_terminal() {
            if table.is_restart_requested(uid) {
                return Err("it shall start over".into());
            }
            if !may_end {
                return Err(format!("{:?}: {}", status.phase, status.reason));
            }
            let over = stage.is_none_or(WorkerStage::is_finished) && !runs;
            return over
                .then_some(())
                .ok_or_else(|| format!("{:?}, {stage:?}, runs: {runs}", status.phase));
        }
        if stage != Some(WorkerStage::Sync) {
            return Err(format!("{:?}, {stage:?}", status.phase));
        }
        let listed = self.listed(uid).ok_or("the runtime does not have it")?;
        let ready = |s: &SandboxStatus| s.state == SandboxState::Ready;
        if !listed.sandboxes.iter().any(ready) {
            return Err("its sandbox is lost".into());
        }
        let mut all_run = true;
        for container in &pod.spec.containers {
            all_run &= self.container_is_well(manifest, pod, container, listed)?;
        }
        for container in pod.spec.init_containers.iter().filter(|c| c.is_sidecar()) {
            let state = listed.newest_instance(&container.name).map(|c| c.state);
            if state != Some(ContainerState::Running) {
                return Err(format!("sidecar {}: {state:?}", container.name));
            }
        }
        let of_spec = |c: &&ContainerStatus| pod.spec.all_containers().all(|s| s.name != c.name);
        let mut strangers = listed.containers.iter().filter(of_spec);
        if let Some(stranger) = strangers.find(|c| c.state == ContainerState::Running) {
            return Err(format!("container {} still runs", stranger.name));
        }
        let ready = status.container_statuses.iter().all(|c| c.ready);
        if manifest.kind == super::pods::Kind::Probed && all_run && !ready {
            return Err("its container runs and is not ready".into());
        }
        if all_run && status.phase != PodPhase::Running {
            return Err(format!("all containers run, and it is {:?}", status.phase));
        }
        Ok(())
    }

    fn shows_success(&self, uid: &PodUid, name: &str) -> bool {
        let status = self.core.pods().stored_status(uid);
        let mut shown = status.into_iter().flat_map(|s| &s.container_statuses);
        let end = shown.find(|c| c.name == name);
        let end = end.and_then(|c| c.state.terminated.as_ref());
        end.is_some_and(|end| end.exit_code == 0)
    }

    /// Whether the container runs; an error if it should and does not.
    fn container_is_well(
        &self,
        manifest: &Manifest,
        pod: &Pod,
        container: &Container,
        listed: &PodRuntimeStatus,
    ) -> Result<bool, String> {
        let name = &container.name;
        let newest = listed.newest_instance(name);
        match newest.map(|c| c.state) {
            Some(ContainerState::Running) => match newest.map(|c| c.hash) {
                Some(hash) if hash == spec_hash(container) => Ok(true),
                _ => Err(format!("container {name} runs as it was before an edit")),
            },
            Some(ContainerState::Exited) if manifest.kind.loops() => Ok(false),
            Some(ContainerState::Exited)
                if newest.is_some_and(|c| stays_ended(pod.spec.restart_policy, c.exit_code)) =>
            {
                // Others of the pod may still run; that all have ended is told by the phase.
                let alone = pod.spec.containers.len() == 1;
                if alone {
                    return Err(format!("container {name} has ended, and the pod has not"));
                }
                Ok(false)
            }
            // The runtime has forgotten it.
            None if pod.spec.restart_policy == RestartPolicy::OnFailure
                && self.shows_success(&pod.metadata.uid, name) =>
            {
                Ok(false)
            }
            // One that was created in an earlier sandbox waits for the init containers of this one.
            None | Some(ContainerState::Created)
                if manifest.kind == super::pods::Kind::InitLoops
                    && newest.is_none_or(|c| {
                        let ready = |s: &&SandboxStatus| s.state == SandboxState::Ready;
                        let mut ready = listed.sandboxes.iter().filter(ready);
                        ready.all(|s| s.id != c.sandbox)
                    }) =>
            {
                Ok(false)
            }
            state => Err(format!("container {name}: {state:?}")),
        }
    }
}
