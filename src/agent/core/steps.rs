//! Plans for calls of workers, and the handling of their steps. Statuses, reasons, back-off and probes of pods
//! change here and nowhere else.

use alloc::rc::Rc;
use core::net::IpAddr;

use super::Agent;
use crate::{
    agent::{
        executor::{
            CallCancel, CallChannel, CallPlan, CallStep, ContainerStartResult, ContainerWaitReason,
            CrashLoopGrant, StartProblem, StepSender, SyncOrders,
        },
        outcome::PodOutcome,
        ring::RecordedStep,
    },
    api::{
        Container, MonoTime, Pod, PodSpec, PodStatus, PodUid,
        cri::{ContainerStatus, PodRuntimeStatus},
        pod::RestartPolicy,
    },
    logic::{
        actions, metrics::own::ContainerType, outcome, pod_kind, pod_table::PodHandle,
        status::PodFailure,
    },
};

impl Agent {
    /// Makes the plan of a call that begins now. `None` if the runtime can no longer tell the state of the pod: then no
    /// decision may rest on it. It could when the call became due.
    pub(in crate::agent) fn plan(
        &self,
        call: PodHandle,
        uid: PodUid,
        cancel: Rc<CallCancel>,
        tell: StepSender,
    ) -> Option<CallPlan> {
        let Ok(runtime) = self.view.status(&uid) else {
            self.tell_status_failed(call);
            return None;
        };
        // Behind it what the runtime has forgotten since a boot ago.
        let runtime = with_succeeded(runtime, self.pods.succeeded(&uid));
        Some(CallPlan {
            runtime,
            objects: Rc::clone(&self.objects),
            host_ips: self.owners.node.host_ips(),
            asked: self.pods.asked(),
            limited: self.pods.is_limited(&uid),
            content_goes: self.pods.table().should_pod_content_be_removed(&uid)
                || !self.pods.is_configured(&uid),
            held: self.resources.held_by(&uid),
            grace_s: self.pods.table().grace_s(call),
            cancel,
            line: CallChannel { call, tell },
            uid,
        })
    }

    /// Takes in a step of a call.
    pub(super) fn on_step(&mut self, call: PodHandle, step: CallStep, now: MonoTime) {
        self.note_step(call, &step, now);
        match step {
            CallStep::Begun {
                pod,
                runtime,
                failure,
                answer,
            } => answer.give(self.begun(call, &pod, &runtime, failure.as_ref(), now)),
            CallStep::OutcomeKept(waits, answer) => {
                if waits {
                    self.note_waiting(true, now);
                }
                let uid = self.pods.uid(call);
                answer.give(uid.is_some_and(|uid| self.pods.is_configured(&uid)));
            }
            CallStep::Limited(limited) => self.set_limited(call, limited),
            CallStep::Unsettled(pod) => self.replace_resources(&pod, now),
            CallStep::HoldsNothing(pod, answer) => answer.give(self.give_resources_late(&pod, now)),
            CallStep::Mounted(pod) => {
                if self.owners.probes.add(&pod, now) {
                    let step = RecordedStep::of(&pod.metadata.uid, "probed");
                    self.stepped(now, step);
                }
            }
            CallStep::SandboxUp(pod) => self.statuses().sandbox_is_ready(&pod),
            CallStep::Restarts {
                pod,
                container,
                all,
                runtime,
                answer,
            } => answer.give(self.grant(&pod, &container, all, &runtime, now)),
            CallStep::Acted {
                pod,
                starts,
                failed,
                again,
            } => {
                for start in &starts {
                    self.note_start(&pod, start);
                }
                self.view.request_relist();
                if let Some(runtime) = failed {
                    let mut statuses = self.statuses();
                    let status = statuses.generate(&pod, &runtime);
                    statuses.store(&pod, status);
                }
                if again {
                    self.pods.resync(&pod.metadata.uid, now);
                }
            }
            CallStep::Stopping {
                pod,
                runtime,
                answer,
            } => {
                let mut statuses = self.statuses();
                let status = statuses.generate_stopping(&pod, &runtime, call);
                let phase = status.phase;
                statuses.store(&pod, status);
                self.stepped(now, RecordedStep::to(&pod, "stopping", phase));
                let uid = &pod.metadata.uid;
                self.owners.probes.stopping(uid);
                let of_node = self.owners.node.host_ips();
                let status = self.pods.status(uid);
                let ips = status.map(|status| ips(&pod, status, of_node));
                answer.give(ips.unwrap_or_default());
            }
            CallStep::Killed => {
                if let Some(uid) = self.pods.uid(call) {
                    self.owners.probes.remove(&uid);
                }
            }
            CallStep::Stopped { pod, runtime } => {
                let succeeded = self.pods.succeeded(&pod.metadata.uid);
                let runtime = with_succeeded(runtime, succeeded);
                let mut statuses = self.statuses();
                let status = statuses.generate_final(&pod, &runtime, call);
                let phase = status.phase;
                statuses.store(&pod, status);
                self.stepped(now, RecordedStep::to(&pod, "stopped", phase));
            }
            CallStep::Changed => self.view.request_relist(),
            CallStep::CleanedUp(pod) => {
                self.set_limited(call, false);
                if let Some(pod) = pod {
                    self.statuses().finish(&pod);
                }
            }
        }
    }

    fn begun(
        &mut self,
        call: PodHandle,
        pod: &Pod,
        runtime: &PodRuntimeStatus,
        failure: Option<&PodFailure>,
        now: MonoTime,
    ) -> SyncOrders {
        let uid = &pod.metadata.uid;
        if let Some(since) = self.pods.take_unsynced(uid) {
            let containers = pod.spec.containers.len();
            let counters = &self.tools.counters;
            counters.count(|c| c.worker_started(now - since, containers));
        }
        let is_configured = self.pods.is_configured(uid);
        let of_node = self.owners.node.host_ips();
        let mut statuses = self.statuses();
        let status = match failure {
            Some(failure) => statuses.generate_failed(pod, runtime, failure),
            None => statuses.generate(pod, runtime),
        };
        let phase = status.phase;
        let terminal = phase.is_terminal();
        let ips = ips(pod, &status, of_node);
        let is_outcome = is_configured && outcome::is_worth_keeping(pod, &status);
        let kept = is_outcome.then(|| status.clone());
        // Stored before any side effect: waiting reasons are seen even if a later step blocks.
        statuses.store(pod, status);
        if !terminal {
            statuses.watch_deadline(call, pod);
        }
        let holders = self.instances_to_restart(uid);
        let network = || {
            let problem = self.view.network_problem();
            problem.filter(|_| !pod.spec.host_network)
        };
        let runs_nothing = self.view.start_problem().map(StartProblem::Runtime);
        let mut actions = self.owners.probes.with(uid, |probes| {
            actions::compute_pod_actions(pod, runtime, probes)
        });
        if let Some(shown) = self.pods.status(uid) {
            actions::begin_once(&mut actions, pod, shown);
        }
        actions::restart_holders(&mut actions, pod, runtime, &holders);
        if actions.restart_all {
            // What has succeeded starts over as well.
            self.pods.set_succeeded(uid, Vec::new());
        }
        let goes_on = !terminal && pod.spec.restart_policy != RestartPolicy::Never;
        let succeeded = match goes_on && !actions.restart_all {
            true => outcome::succeeded(pod, runtime),
            false => Vec::new(),
        };
        let tells = !succeeded.is_empty() || (goes_on && actions.restart_all);
        let shown = || self.pods.status(uid).filter(|_| is_configured && tells);
        let outcome = kept.or_else(|| shown().cloned()).map(|status| PodOutcome {
            status,
            goes_on,
            succeeded,
        });
        let problem = runs_nothing
            .or_else(|| self.namesake(pod).map(StartProblem::Name))
            .or_else(|| network().map(StartProblem::Network))
            .or_else(|| {
                let waits = actions.starts_anything() && pod_kind::waits_for_clock(pod);
                (waits && !self.tools.times.is_certain()).then_some(StartProblem::Clock)
            });
        let why_not = problem.as_ref().map(|problem| match problem {
            StartProblem::Runtime(_) => "runtime",
            StartProblem::Name(_) => "name",
            StartProblem::Network(_) => "network",
            StartProblem::Clock => "clock",
        });
        let begun = RecordedStep::to(pod, "begun", phase);
        self.stepped(now, begun.because(why_not));
        SyncOrders {
            terminal,
            outcome,
            ips,
            problem,
            actions,
        }
    }

    /// The pod that had the name of this static one for an agent before this one, and is to end: it runs still (PW-20). Before
    /// all sources are heard of nobody knows that it is to end.
    fn namesake(&self, pod: &Pod) -> Option<PodUid> {
        let waits = pod_kind::is_static(pod) && self.sources.are_ready();
        let others = waits.then(|| self.view.namesakes(&pod.metadata));
        let mut others = others.into_iter().flatten();
        others
            .find(|other| !self.pods.is_configured(other))
            .cloned()
    }

    fn grant(
        &mut self,
        pod: &Pod,
        container: &str,
        all: bool,
        runtime: &PodRuntimeStatus,
        now: MonoTime,
    ) -> CrashLoopGrant {
        if let Some(container) = pod.spec.all_containers().find(|c| c.name == container) {
            let ended = self.view.last_end(runtime, &container.name);
            let granted = self.pods.grant_start(pod, container, all, ended, now);
            let waits = granted.as_ref().err().map(|wait| wait.until);
            let step = RecordedStep::of(&pod.metadata.uid, "restarts");
            self.stepped(now, step.about(&container.name).until(waits));
            granted?;
        }
        Ok(self.pods.delays())
    }

    fn note_start(&mut self, pod: &Pod, start: &ContainerStartResult) {
        let (uid, name) = (&pod.metadata.uid, &start.container);
        let reason = start.result.as_ref().map(drop).map_err(|e| e.reason);
        // What waits for its back-off was not tried.
        if reason != Err("CrashLoopBackOff") {
            let kind = kind_of(&pod.spec, name);
            let counters = &self.tools.counters;
            counters.count(|c| c.container_started(kind, reason));
        }
        match &start.result {
            Ok(()) => self.pods.started(uid, name),
            Err(ContainerWaitReason { reason, message }) => {
                self.pods.start_failed(uid, name, reason, message);
            }
        }
    }

    fn set_limited(&mut self, call: PodHandle, limited: bool) {
        if let Some(uid) = self.pods.uid(call) {
            self.pods.set_limited(&uid, limited);
        }
    }
}

fn with_succeeded(
    runtime: Rc<PodRuntimeStatus>,
    succeeded: &[ContainerStatus],
) -> Rc<PodRuntimeStatus> {
    match succeeded {
        [] => runtime,
        some => Rc::new(outcome::with_succeeded(
            PodRuntimeStatus::clone(&runtime),
            some,
        )),
    }
}

/// Addresses of a pod: those of the node with the host's network, else those of its status.
fn ips(pod: &Pod, status: &PodStatus, of_node: Vec<IpAddr>) -> Vec<IpAddr> {
    if pod.spec.host_network && !of_node.is_empty() {
        return of_node;
    }
    let shown = status.pod_ips.iter();
    shown.filter_map(|entry| entry.ip.parse().ok()).collect()
}

fn kind_of(spec: &PodSpec, name: &str) -> ContainerType {
    let is_in = |list: &[Container]| list.iter().any(|c| c.name == name);
    if is_in(&spec.init_containers) {
        ContainerType::Init
    } else if is_in(&spec.ephemeral_containers) {
        ContainerType::Ephemeral
    } else {
        ContainerType::Regular
    }
}
