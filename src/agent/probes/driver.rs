//! The task that drives all probes of the node: it waits until one is due, and starts it.

use alloc::rc::Rc;
use core::{net::IpAddr, time::Duration};
use std::path::PathBuf;

use smol::{LocalExecutor, future::FutureExt as _};

use super::{NodeProbes, ProbeFuture, ProbeNetwork, UnshownProbeResult, ask, passed};
use crate::{
    agent::{
        asker::AgentHandle, clock::Clock, complaints::Complaints, pod_store::PodStore,
        recorder::EventRecorder, times::DateCorrector,
    },
    api::{MonoTime, PodStatus, WallTime},
    logic::{
        probe::{
            ProbePassStep, ProbeWorkerKey, ProbedContainer, ProbedContainerState, ProbedPod,
            workers::strip_runtime_prefix,
        },
        restart,
    },
    runtime::RuntimeService,
    sys::lane::Lane,
};

/// Time by which a probe may run early. Probes that are due at nearly the same time then share a wake-up, and their
/// code is still in the processor's caches. A tenth of the shortest period.
const SLACK: Duration = Duration::from_millis(100);

/// State of a probed container, as the pod's status shows it.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct ProbedContainerStatus {
    /// Set if the pod's phase is terminal.
    pod_ended: bool,
    pod_ip: Option<IpAddr>,
    /// Present address of the node.
    node_ip: Option<IpAddr>,
    /// The present instance, if one was created.
    instance: Option<ProbedInstance>,
}

/// An instance of a container, as the pod's status shows it.
#[derive(Clone, Debug)]
struct ProbedInstance {
    /// Id as the API has it.
    id: Box<str>,
    state: ProbedInstanceState,
    started: bool,
    ready: bool,
}

#[derive(Clone, Copy, Debug)]
enum ProbedInstanceState {
    Waiting,
    /// Start of the instance, if it is known.
    Running(Option<WallTime>),
    /// Exit code.
    Ended(i32),
}

impl ProbedContainerStatus {
    /// Reads the container of this name from `status`. `host`: the present address of the node.
    pub(in crate::agent) fn from_status(status: &PodStatus, name: &str, host: IpAddr) -> Self {
        let all = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses);
        let mut created = all.filter(|c| !c.container_id.is_empty());
        let container = created.find(|c| c.name == name);
        Self {
            pod_ended: status.phase.is_terminal(),
            pod_ip: status.pod_ip.parse().ok(),
            node_ip: Some(host),
            instance: container.map(|c| ProbedInstance {
                id: c.container_id.as_str().into(),
                state: match (&c.state.running, &c.state.terminated) {
                    (Some(running), _) => ProbedInstanceState::Running(running.started_at),
                    (None, Some(terminated)) => ProbedInstanceState::Ended(terminated.exit_code),
                    (None, None) => ProbedInstanceState::Waiting,
                },
                started: c.started == Some(true),
                ready: c.ready,
            }),
        }
    }
}

/// Driver of the probes, with its helpers.
pub(in crate::agent) struct ProbeDriver {
    /// The probes.
    pub(in crate::agent) probes: Rc<NodeProbes>,
    pub(in crate::agent) clock: Rc<dyn Clock>,
    /// Converts dates in statuses to times since boot.
    pub(in crate::agent) times: Rc<DateCorrector>,
    /// Runtime in which commands run.
    pub(in crate::agent) runtime: Rc<dyn RuntimeService>,
    /// Network for all probes that are not commands.
    pub(in crate::agent) wire: Rc<dyn ProbeNetwork>,
    /// Asks the loop for the pods' statuses.
    pub(in crate::agent) agent: AgentHandle,
    /// Store of the pods' specs.
    pub(in crate::agent) store: PodStore,
    /// Lane on which specs are read.
    pub(in crate::agent) disk: Lane,
    /// Recorder of the probes' events.
    pub(in crate::agent) recorder: Rc<EventRecorder>,
    /// Hands a result to the loop; `false`: the loop has ended.
    pub(in crate::agent) tell: Box<dyn Fn(UnshownProbeResult) -> ProbeFuture<'static, bool>>,
    /// Log of results that cannot be stored.
    pub(in crate::agent) complaints: Rc<Complaints>,
    /// Directory in which started and ready containers are stored, for the next agent.
    pub(in crate::agent) run_dir: PathBuf,
}

impl ProbeDriver {
    /// Reads the containers that an earlier agent of this boot stored.
    pub(in crate::agent) fn restore_passed_probes(&self) {
        passed::load_passed_probes(&self.probes, &self.run_dir);
    }

    /// Drives the probes until the agent ends. Each probe that is due runs in a task of its own on `executor`.
    pub(in crate::agent) async fn drive_probes(self, executor: Rc<LocalExecutor<'static>>) {
        let this = Rc::new(self);
        let (probes, clock) = (&this.probes, &this.clock);
        loop {
            probes.limits.rest.mark_ended();
            let now = clock.now();
            probes.limits.end_passed_deadlines(now);
            for (key, shown) in this.take_due_workers(now + SLACK).await {
                let (step, unshown) = this.step_worker(key, &shown, now).await;
                if step == ProbePassStep::Ask {
                    match this.worker_target(key, &shown) {
                        Some(target) => {
                            let this = Rc::clone(&this);
                            let task = async move { ask::run_probe(&this, key, target).await };
                            executor.spawn(task).detach();
                        }
                        None => _ = probes.workers.borrow_mut().take_result(key, "", None, now),
                    }
                }
                if let Some(unshown) = unshown
                    && !(this.tell)(unshown).await
                {
                    return;
                }
            }
            let due = probes.workers.borrow().next_due();
            let due = due.into_iter().chain(probes.limits.next_deadline()).min();
            let due = due.unwrap_or(MonoTime(u64::MAX));
            probes
                .limits
                .rest
                .wait_until(due)
                .or(clock.sleep_until(due))
                .await;
        }
    }

    /// Takes the workers that are due, each with the state of its container. The loop is asked once for all of them.
    async fn take_due_workers(
        &self,
        now: MonoTime,
    ) -> Vec<(ProbeWorkerKey, ProbedContainerStatus)> {
        let mut wanted = Vec::new();
        {
            let mut workers = self.probes.workers.borrow_mut();
            while let Some(key) = workers.poll_due_worker(now) {
                if let Some((uid, entry)) = workers.worker_entry(key) {
                    wanted.push((key, uid.clone(), entry.container.clone()));
                }
            }
        }
        if wanted.is_empty() {
            return Vec::new();
        }
        let shown = self.agent.ask_agent(move |agent| {
            let wanted = wanted.iter();
            let shown = wanted.map(|(key, uid, name)| (*key, agent.shown_container(uid, name)));
            shown.collect()
        });
        shown.await
    }

    /// The worker's present target.
    fn worker_target(
        &self,
        key: ProbeWorkerKey,
        shown: &ProbedContainerStatus,
    ) -> Option<ask::ProbeTarget> {
        let workers = self.probes.workers.borrow();
        let (uid, entry) = workers.worker_entry(key)?;
        let id = &shown.instance.as_ref()?.id;
        // A pod in the host's network has the present address of the node, also if its status still shows an older one
        // (PROBE-24).
        let ip = match entry.action.in_host {
            true => shown.node_ip,
            false => shown.pod_ip,
        };
        Some(ask::ProbeTarget::from_worker(uid, entry, id, ip))
    }

    /// Runs one pass of a worker with the container's state from the status.
    async fn step_worker(
        &self,
        key: ProbeWorkerKey,
        shown: &ProbedContainerStatus,
        now: MonoTime,
    ) -> (ProbePassStep, Option<UnshownProbeResult>) {
        let state = shown.instance.as_ref().map(|instance| instance.state);
        let restarts = match state {
            Some(ProbedInstanceState::Ended(code)) => self.will_restart(key, code).await,
            _ => true,
        };
        let mut workers = self.probes.workers.borrow_mut();
        let Some((uid, entry)) = workers.worker_entry(key) else {
            return (ProbePassStep::End, None);
        };
        let (uid, kind) = (uid.clone(), entry.worker.settings().kind);
        let probed_pod = ProbedPod {
            ended: shown.pod_ended,
            container: shown.instance.as_ref().map(|c| ProbedContainer {
                id: strip_runtime_prefix(&c.id),
                state: match c.state {
                    ProbedInstanceState::Running(started_at) => {
                        let started = started_at.map_or(now, |at| self.times.time_since_boot(at));
                        let age_s = (now - started).as_secs();
                        ProbedContainerState::Running {
                            age_s: u32::try_from(age_s).unwrap_or(u32::MAX),
                            adopted: workers.is_adopted(started),
                        }
                    }
                    ProbedInstanceState::Ended(code) => ProbedContainerState::Ended(code),
                    ProbedInstanceState::Waiting => ProbedContainerState::Waiting,
                },
                started: c.started,
                ready: c.ready,
            }),
        };
        let (step, new_result) = workers.make_pass(key, &probed_pod, |_| restarts, now);
        let unshown =
            new_result
                .zip(shown.instance.as_ref())
                .map(|(result, c)| UnshownProbeResult {
                    uid,
                    container_id: c.id.clone(),
                    kind,
                    result,
                });
        (step, unshown)
    }

    /// Returns true if the pod's record says that another instance follows. The record is read once for each instance.
    /// If it cannot be read, the answer is true, so that the worker goes on.
    async fn will_restart(&self, key: ProbeWorkerKey, exit_code: i32) -> bool {
        let (uid, name) = match self.probes.workers.borrow().worker_entry(key) {
            Some((uid, entry)) if !entry.worker.knows_restarts() => {
                (uid.clone(), entry.container.clone())
            }
            _ => return true,
        };
        let store = self.store.clone();
        let read = self.disk.run_job(move || store.read_pod(&uid));
        let Ok(pod) = read.await else {
            return true;
        };
        let container = pod.spec.all_containers().find(|c| c.name == *name);
        restart::has_restart_all_rule(&pod)
            || container.is_none_or(|c| {
                c.is_sidecar() && pod.spec.init_containers.iter().any(|i| i.name == *name)
                    || restart::restarts_after_exit(&pod, c, exit_code)
            })
    }
}
