//! Carrying out kills: hooks, order of sidecars, stop signals, sandboxes. What to kill and in which order is decided by
//! `logic::kill`; here it is done. Rows KILL-04 to KILL-08, HOOK-03, HOOK-04.

use alloc::rc::Rc;
use core::{cell::Cell, future::poll_fn, task::Poll, time::Duration};

use smol::future::FutureExt as _;

use super::{
    errors::KillError,
    hooks::{HookError, HookRunner, HookWaitEnd},
};
use crate::{
    agent::{
        clock::Clock,
        recorder::{EventRecorder, EventSeverity},
    },
    api::{Container, MonoTime, Pod, cri::PodRuntimeStatus},
    logic::{
        actions::ContainerToKill,
        kill::{self, PodKill, PodKillTarget},
    },
    runtime::RuntimeService,
};

/// Kills containers and pods. Nothing is kept between two kills.
#[derive(Clone)]
pub(in crate::agent) struct PodKiller {
    pub(in crate::agent) runtime: Rc<dyn RuntimeService>,
    pub(in crate::agent) clock: Rc<dyn Clock>,
    pub(in crate::agent) recorder: Rc<EventRecorder>,
    pub(in crate::agent) hooks: HookRunner,
}

impl PodKiller {
    /// Kills everything of a pod that runs and stops its sandboxes. Goes on after an error.
    ///
    /// `override_s` is the grace for every container (a pod's termination); without it each has its own.
    pub(in crate::agent) async fn kill_pod(
        &self,
        pod: &Pod,
        status: &PodRuntimeStatus,
        override_s: Option<i64>,
    ) -> Result<(), KillError> {
        let plan = kill::plan_pod_kill(pod, status, override_s);
        self.carry_out_kill(pod, status, &plan).await
    }

    /// Kills a pod whose spec nobody knows (SYNC-28), within `grace_s`.
    pub(in crate::agent) async fn kill_runtime_pod(
        &self,
        status: &PodRuntimeStatus,
        grace_s: i64,
    ) -> Result<(), KillError> {
        let plan = kill::plan_runtime_pod_kill(status, grace_s);
        self.carry_out_kill(&make_stand_in_pod(status), status, &plan)
            .await
    }

    async fn carry_out_kill(
        &self,
        pod: &Pod,
        status: &PodRuntimeStatus,
        plan: &PodKill,
    ) -> Result<(), KillError> {
        let started = self.clock.now();
        let ended: Vec<Cell<bool>> = plan.containers.iter().map(|_| Cell::new(false)).collect();
        let stops = plan.containers.iter().enumerate().map(|(index, target)| {
            let ended = &ended;
            async move {
                let result = self
                    .stop_container(pod, status, plan, index, target, started, ended)
                    .await;
                ended[index].set(true);
                result
            }
        });
        let mut errors: Vec<KillError> = join_all(stops)
            .await
            .into_iter()
            .filter_map(Result::err)
            .collect();
        for sandbox in &plan.sandboxes {
            if let Err(e) = self.runtime.stop_pod_sandbox(sandbox).await {
                errors.push(KillError::Sandbox(sandbox.clone(), e));
            }
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(KillError::Some(errors))
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one step of one kill; a structure would only rename them"
    )]
    async fn stop_container(
        &self,
        pod: &Pod,
        status: &PodRuntimeStatus,
        plan: &PodKill,
        index: usize,
        target: &PodKillTarget,
        started: MonoTime,
        ended: &[Cell<bool>],
    ) -> Result<(), KillError> {
        self.record_killing(pod, &target.name, &target.message);
        let deadline = started + grace_duration(target.grace_s);
        if target.pre_stop
            && let Some(container) = find_container_spec(pod, &target.name)
        {
            self.run_pre_stop(pod, status, container, deadline).await;
        }
        // The order of sidecars is kept for as long as there is grace; after that all are stopped at once.
        let may_signal = || {
            let left_s = kill::remaining_s(target.grace_s, self.clock.now() - started);
            plan.may_signal(
                index,
                &ended.iter().map(Cell::get).collect::<Vec<_>>(),
                left_s,
            )
        };
        // Asked whenever another container has ended: `join_all` polls all of them again then.
        let turn = poll_fn(|_| {
            if may_signal() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        turn.or(self.clock.sleep_until(deadline)).await;
        let spent = self.clock.now() - started;
        let grace = kill::stop_grace(kill::remaining_s(target.grace_s, spent));
        self.runtime
            .stop_container(&target.id, grace)
            .await
            .map_err(|e| KillError::Container(target.name.clone(), e))
    }

    fn record_killing(&self, pod: &Pod, container: &str, message: &str) {
        let normal = EventSeverity::Normal;
        self.recorder
            .record_container_event(pod, container, normal, "Killing", message);
    }

    /// Kills one container by itself: its sandbox and the others stay as they are (KILL-18).
    pub(in crate::agent) async fn kill_container(
        &self,
        pod: &Pod,
        status: &PodRuntimeStatus,
        target: &ContainerToKill,
    ) -> Result<(), KillError> {
        self.record_killing(pod, &target.name, &target.message);
        let started = self.clock.now();
        if let Some(container) = find_container_spec(pod, &target.name)
            && kill::runs_pre_stop(container, target.grace_s)
        {
            self.run_pre_stop(
                pod,
                status,
                container,
                started + grace_duration(target.grace_s),
            )
            .await;
        }
        let grace = kill::stop_grace(kill::remaining_s(
            target.grace_s,
            self.clock.now() - started,
        ));
        self.runtime
            .stop_container(&target.id, grace)
            .await
            .map_err(|e| KillError::Container(target.name.clone(), e))
    }

    /// Runs a preStop hook for at most the grace: one that outlasts it is no longer waited for, without an event.
    async fn run_pre_stop(
        &self,
        pod: &Pod,
        status: &PodRuntimeStatus,
        container: &Container,
        deadline: MonoTime,
    ) {
        let Some(handler) = container
            .lifecycle
            .as_ref()
            .and_then(|l| l.pre_stop.as_ref())
        else {
            return;
        };
        let ended = self
            .hooks
            .run_hook(pod, status, container, handler, HookWaitEnd::Time(deadline))
            .await;
        if let Err(HookError::Failed(error)) = ended {
            // The text may hold secrets: it goes to the log, never into an event.
            log::debug!(
                "pod={}/{} container={} preStop: {error}",
                pod.metadata.namespace,
                pod.metadata.name,
                container.name
            );
            self.recorder.record_container_event(
                pod,
                &container.name,
                EventSeverity::Warning,
                "FailedPreStopHook",
                "PreStopHook failed",
            );
        }
    }
}

/// A pod object as far as the runtime knows it, for events.
fn make_stand_in_pod(status: &PodRuntimeStatus) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = status.uid.clone();
    pod.metadata.name.clone_from(&status.name);
    pod.metadata.namespace.clone_from(&status.namespace);
    pod
}

fn find_container_spec<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    pod.spec.all_containers().find(|c| c.name == name)
}

fn grace_duration(s: i64) -> Duration {
    Duration::from_secs(u64::try_from(s).unwrap_or(0))
}

/// Polls all futures to their end, in one task: few, such as the containers of one pod. When one ends, the others are polled
/// again at once: what they wait for may be just that.
pub(crate) async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(move |cx| {
        loop {
            let (mut all, mut some_ended) = (true, false);
            for (future, result) in running.iter_mut().zip(results.iter_mut()) {
                if result.is_none() {
                    match future.as_mut().poll(cx) {
                        Poll::Ready(output) => {
                            *result = Some(output);
                            some_ended = true;
                        }
                        Poll::Pending => all = false,
                    }
                }
            }
            if all {
                return Poll::Ready(results.iter_mut().filter_map(Option::take).collect());
            }
            if !some_ended {
                return Poll::Pending;
            }
        }
    })
    .await
}
