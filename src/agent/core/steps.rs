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
        cri::{ContainerStatus, IMAGE_VOLUME_FAILED, PodRuntimeStatus},
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
    pub(in crate::agent) fn make_call_plan(
        &self,
        call: PodHandle,
        uid: PodUid,
        cancel: Rc<CallCancel>,
        tell: StepSender,
    ) -> Option<CallPlan> {
        let Ok(runtime) = self.view.pod_status(&uid) else {
            self.record_status_failure(call);
            return None;
        };
        // Behind it what the runtime has forgotten since a boot ago.
        let runtime = add_succeeded_containers(runtime, self.pods.succeeded_containers(&uid));
        let runs = runtime.has_running_container();
        Some(CallPlan {
            runtime,
            objects: Rc::clone(&self.objects),
            host_ips: self.owners.node.host_ips(),
            asked: (!runs).then(|| self.pods.active_requests()),
            limits: self.pods.cgroup_limits(&uid),
            content_goes: self.pods.worker_table().should_pod_content_be_removed(&uid)
                || !self.pods.is_configured(&uid),
            held: self.resources.held_devices(&uid),
            grace_s: self.pods.worker_table().grace_s(call),
            cancel,
            line: CallChannel { call, tell },
            uid,
        })
    }

    /// Takes in a step of a call.
    pub(super) fn on_step(&mut self, call: PodHandle, step: CallStep, now: MonoTime) {
        self.note_step(call, &step, now);
        self.calls.note_step(call, &step);
        match step {
            CallStep::Begun {
                pod,
                runtime,
                failure,
                answer,
            } => answer.send_answer(self.make_sync_orders(
                call,
                &pod,
                &runtime,
                failure.as_ref(),
                now,
            )),
            CallStep::OutcomeKept(waits, answer) => {
                if waits {
                    self.note_waiting_records(true, now);
                }
                let uid = self.pods.uid_of_handle(call);
                answer.send_answer(uid.is_some_and(|uid| self.pods.is_configured(&uid)));
            }
            CallStep::Limited(limits) => self.set_limits(call, limits),
            CallStep::Unsettled(pod) => self.replace_resources(&pod, now),
            CallStep::HoldsNothing(pod, answer) => {
                answer.send_answer(self.give_resources_late(&pod, now))
            }
            CallStep::Mounted(pod) => {
                if self.owners.probes.add_workers(&pod, now) {
                    let step = RecordedStep::for_call(&pod.metadata.uid, "probed");
                    self.record_step_result(now, step);
                }
            }
            CallStep::SandboxUp(pod) => self.status_generator().show_sandbox_ready(&pod),
            CallStep::Restarts {
                pod,
                container,
                all,
                runtime,
                answer,
            } => answer.send_answer(self.grant_start(&pod, &container, all, &runtime, now)),
            CallStep::Acted {
                pod,
                starts,
                failed,
                again,
            } => {
                for start in &starts {
                    self.note_container_start(&pod, start);
                }
                self.view.request_relist();
                if let Some(runtime) = failed {
                    let mut statuses = self.status_generator();
                    let status = statuses.generate_status(&pod, &runtime);
                    statuses.store_status(&pod, status);
                }
                if again {
                    self.pods.resync_worker(&pod.metadata.uid, now);
                }
            }
            CallStep::Stopping {
                pod,
                runtime,
                answer,
            } => {
                let mut statuses = self.status_generator();
                let status = statuses.generate_stopping_status(&pod, &runtime, call);
                let phase = status.phase;
                statuses.store_status(&pod, status);
                self.record_step_result(now, RecordedStep::with_phase(&pod, "stopping", phase));
                let uid = &pod.metadata.uid;
                self.owners.probes.note_pod_stopping(uid);
                let of_node = self.owners.node.host_ips();
                let status = self.pods.stored_status(uid);
                let ips = status.map(|status| pod_ips(&pod, status, of_node));
                answer.send_answer(ips.unwrap_or_default());
            }
            CallStep::Killed => {
                if let Some(uid) = self.pods.uid_of_handle(call) {
                    self.owners.probes.remove_workers(&uid);
                }
            }
            CallStep::Stopped { pod, runtime } => {
                let succeeded = self.pods.succeeded_containers(&pod.metadata.uid);
                let runtime = add_succeeded_containers(runtime, succeeded);
                let mut statuses = self.status_generator();
                let status = statuses.generate_final_status(&pod, &runtime, call);
                let phase = status.phase;
                statuses.store_status(&pod, status);
                self.record_step_result(now, RecordedStep::with_phase(&pod, "stopped", phase));
            }
            CallStep::Resized(report) => self.note_resized(*report, now),
            CallStep::Changed => self.view.request_relist(),
            CallStep::CleanedUp(pod) => {
                self.set_limits(call, None);
                if let Some(pod) = pod {
                    self.status_generator().finish_pod_status(&pod);
                }
            }
        }
    }

    fn make_sync_orders(
        &mut self,
        call: PodHandle,
        pod: &Pod,
        runtime: &PodRuntimeStatus,
        failure: Option<&PodFailure>,
        now: MonoTime,
    ) -> SyncOrders {
        let uid = &pod.metadata.uid;
        if let Some(since) = self.pods.take_first_sync(uid) {
            let containers = pod.spec.containers.len();
            let counters = &self.tools.counters;
            counters.count_work(|c| c.count_worker_start(now - since, containers));
        }
        let is_configured = self.pods.is_configured(uid);
        let of_node = self.owners.node.host_ips();
        let mut statuses = self.status_generator();
        let status = match failure {
            Some(failure) => statuses.generate_failed_status(pod, runtime, failure),
            None => statuses.generate_status(pod, runtime),
        };
        let phase = status.phase;
        let terminal = phase.is_terminal();
        let ips = pod_ips(pod, &status, of_node);
        let is_outcome = is_configured && outcome::is_worth_keeping(pod, &status);
        let kept = is_outcome.then(|| status.clone());
        // Stored before any side effect: waiting reasons are seen even if a later step blocks.
        statuses.store_status(pod, status);
        if !terminal {
            statuses.watch_deadline(call, pod);
        }
        let holders = self.instances_to_restart(uid);
        let resize = self.order_resize(pod, now);
        let network = || {
            let problem = self.view.network_problem();
            problem.filter(|_| !pod.spec.host_network)
        };
        let runs_nothing = self.view.start_problem().map(StartProblem::Runtime);
        let mut actions = self.owners.probes.with_pod_results(uid, |probes| {
            actions::compute_pod_actions(pod, runtime, probes)
        });
        if let Some(shown) = self.pods.stored_status(uid) {
            actions::drop_begun_ephemeral(&mut actions, pod, shown);
        }
        actions::restart_device_holders(&mut actions, pod, runtime, &holders);
        if let Some(resize) = &resize {
            actions::restart_resized(&mut actions, pod, runtime, &resize.restart);
        }
        if actions.restart_all {
            // What has succeeded starts over as well.
            self.pods.set_succeeded_containers(uid, Vec::new());
        }
        let goes_on = !terminal && pod.spec.restart_policy != RestartPolicy::Never;
        let succeeded = match goes_on && !actions.restart_all {
            true => outcome::succeeded_containers(pod, runtime),
            false => Vec::new(),
        };
        let tells = !succeeded.is_empty() || (goes_on && actions.restart_all);
        let shown = || {
            self.pods
                .stored_status(uid)
                .filter(|_| is_configured && tells)
        };
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
        let begun = RecordedStep::with_phase(pod, "begun", phase);
        self.record_step_result(now, begun.with_reason(why_not));
        SyncOrders {
            terminal,
            outcome,
            ips,
            problem,
            actions,
            resize,
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

    fn grant_start(
        &mut self,
        pod: &Pod,
        container: &str,
        all: bool,
        runtime: &PodRuntimeStatus,
        now: MonoTime,
    ) -> CrashLoopGrant {
        if let Some(container) = pod.spec.all_containers().find(|c| c.name == container) {
            let ended = self.view.last_container_end(runtime, &container.name);
            let granted = self.pods.grant_start(pod, container, all, ended, now);
            let waits = granted.as_ref().err().map(|wait| wait.until);
            let step = RecordedStep::for_call(&pod.metadata.uid, "restarts");
            self.record_step_result(
                now,
                step.with_container(&container.name).with_start_time(waits),
            );
            granted?;
        }
        Ok(self.pods.crash_loop_delays())
    }

    fn note_container_start(&mut self, pod: &Pod, start: &ContainerStartResult) {
        let (uid, name) = (&pod.metadata.uid, &start.container);
        let reason = start.result.as_ref().map(drop).map_err(|e| e.reason);
        // What waits for its back-off was not tried.
        if reason != Err("CrashLoopBackOff") {
            let kind = container_type(&pod.spec, name);
            let counters = &self.tools.counters;
            let volumes = count_image_volumes(&pod.spec, name);
            let mounted = match &start.result {
                Ok(()) => Some(true),
                Err(e) if e.message.contains(IMAGE_VOLUME_FAILED) => Some(false),
                Err(_) => None,
            };
            counters.count_work(|c| {
                c.count_container_start(kind, reason);
                if volumes > 0 {
                    c.count_image_volumes(volumes, mounted);
                }
            });
        }
        match &start.result {
            Ok(()) => self.pods.clear_start_failure(uid, name),
            Err(ContainerWaitReason { reason, message }) => {
                self.pods.record_start_failure(uid, name, reason, message);
            }
        }
    }

    fn set_limits(&mut self, call: PodHandle, limits: Option<u32>) {
        if let Some(uid) = self.pods.uid_of_handle(call) {
            self.pods.set_cgroup_limits(&uid, limits);
        }
    }
}

fn add_succeeded_containers(
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
fn pod_ips(pod: &Pod, status: &PodStatus, of_node: Vec<IpAddr>) -> Vec<IpAddr> {
    if pod.spec.host_network && !of_node.is_empty() {
        return of_node;
    }
    let shown = status.pod_ips.iter();
    shown.filter_map(|entry| entry.ip.parse().ok()).collect()
}

/// Images that the container mounts as volumes, each once.
fn count_image_volumes(spec: &PodSpec, container: &str) -> u64 {
    let mut all = spec.all_containers();
    let Some(container) = all.find(|c| c.name == container) else {
        return 0;
    };
    let images = spec.volumes.iter().filter(|v| v.image.is_some());
    let mounted = images.filter(|v| container.mounts_volume(&v.name));
    u64::try_from(mounted.count()).unwrap_or(u64::MAX)
}

fn container_type(spec: &PodSpec, name: &str) -> ContainerType {
    let is_in = |list: &[Container]| list.iter().any(|c| c.name == name);
    if is_in(&spec.init_containers) {
        ContainerType::Init
    } else if is_in(&spec.ephemeral_containers) {
        ContainerType::Ephemeral
    } else {
        ContainerType::Regular
    }
}
