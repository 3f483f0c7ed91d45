//! Preparation of a pod: what comes before the start of its containers, wherever these run. Rows SYNC-08 to SYNC-12,
//! DEV-05, DEV-10, DEV-12.

use alloc::rc::Rc;

use smol::future::FutureExt as _;

use super::{
    errors::SyncError,
    generation::ConfigGenerator,
    resize::keep_allocated,
    steps::{CallPlan, CallStep, ResizeOrder, StartProblem, SyncOrders},
    volumes::{MountedVolumes, VolumeMounter},
};
use crate::{
    agent::{
        complaints::Complaints,
        node_resources::LateResourceGrant,
        outcome,
        pod_store::PodStore,
        recorder::{EventRecorder, EventSeverity},
    },
    api::{Container, Pod, PodUid, cri::PodRuntimeStatus},
    error::error_chain,
    logic::{
        extended_resources::extended_resource_demands,
        pod_kind::{CLOCK_UNTRUSTED, WAITS_FOR_CLOCK},
        status::{DEVICE_NOT_READY, PodFailure},
    },
    sys::{crash, lane::Lane},
};

/// Prepares pods for every driver. Nothing is kept between two syncs.
pub(crate) struct PodPreparer {
    pub(crate) store: PodStore,
    pub(crate) disk: Lane,
    pub(crate) recorder: Rc<EventRecorder>,
    pub(crate) complaints: Rc<Complaints>,
    pub(in crate::agent) mounter: VolumeMounter,
    pub(crate) generator: Rc<ConfigGenerator>,
}

impl PodPreparer {
    /// Keeps what the pod was allocated if its resources were edited, and returns the pod with these; else the pod itself.
    pub(crate) async fn take_allocated(
        &self,
        pod: &Rc<Pod>,
        order: Option<&ResizeOrder>,
    ) -> Result<Rc<Pod>, SyncError> {
        match order {
            Some(order) => keep_allocated(&self.store, &self.disk, pod, order).await,
            None => Ok(Rc::clone(pod)),
        }
    }

    /// Reads the incarnation of the pod that is wanted now. `None`: its record cannot be read, and people are told.
    pub(crate) async fn load_pod(&self, uid: &PodUid) -> Option<Rc<Pod>> {
        match self.store.load_next(&self.disk, uid).await {
            Ok(pod) => Some(pod),
            Err(e) => {
                // An unreadable record harms nobody else, and what runs goes on running.
                self.complaints
                    .complain(&format!("uid={uid} {}", error_chain(&e)));
                None
            }
        }
    }

    /// Tells the loop that a sync of the pod begins, with the pod's state at its driver, and keeps the outcome that the
    /// loop answers with.
    pub(crate) async fn begin_sync(
        &self,
        plan: &CallPlan,
        pod: &Rc<Pod>,
        known: Rc<PodRuntimeStatus>,
        failure: Option<PodFailure>,
    ) -> SyncOrders {
        let begun = plan.line.ask_loop(|answer| CallStep::Begun {
            pod: Rc::clone(pod),
            runtime: known,
            failure,
            answer,
        });
        let mut begun = begun.await;
        if let Some(outcome) = begun.outcome.take() {
            self.keep_outcome(plan, outcome).await;
        }
        begun
    }

    /// Checks that the pod may start at any driver.
    ///
    /// - Errors: another pod has its name, or it waits for the clock.
    pub(crate) fn check_start(
        &self,
        pod: &Pod,
        problem: Option<&StartProblem>,
    ) -> Result<(), SyncError> {
        match problem {
            // Problems of the driver of containers.
            None | Some(StartProblem::Runtime(_) | StartProblem::Network(_)) => Ok(()),
            Some(StartProblem::Clock) => {
                self.record_warning(pod, CLOCK_UNTRUSTED, WAITS_FOR_CLOCK);
                Err(SyncError::new(WAITS_FOR_CLOCK))
            }
            Some(StartProblem::Name(other)) => {
                Err(SyncError::new(format!("pod {other} has its name and ends")))
            }
        }
    }

    /// Makes the pod's directories and volumes, has its probes begun, and records its devices. `starts`: a container is
    /// about to start. `None`: the pod is to end.
    pub(crate) async fn set_up_pod(
        &self,
        plan: &CallPlan,
        pod: &Rc<Pod>,
        starts: bool,
    ) -> Result<Option<MountedVolumes>, SyncError> {
        self.make_pod_dirs(pod).await?;
        crash::point("pod.directories");
        let mounted = self.mounter.set_up_volumes(pod, plan).await?;
        crash::point("pod.volumes");
        if plan.cancel.is_cancelled() {
            return Ok(None);
        }
        if has_probes(pod) {
            plan.line.tell_loop(CallStep::Mounted(Rc::clone(pod))).await;
        }
        // What runs has its volumes and probes, also while something else of the pod waits for a device.
        self.record_held_resources(plan, pod, starts).await?;
        Ok((!plan.cancel.is_cancelled()).then_some(mounted))
    }

    fn record_warning(&self, pod: &Pod, reason: &str, message: &str) {
        self.recorder
            .record_pod_event(pod, EventSeverity::Warning, reason, message);
    }

    /// Keeps how the pod ended, that it began, or what of it has ended.
    async fn keep_outcome(&self, plan: &CallPlan, kept: outcome::PodOutcome) {
        let (store, uid) = (self.store.clone(), plan.uid.clone());
        let keep = move || outcome::keep_outcome(&store, &uid, kept);
        let waits = self.disk.run_job(keep).await.unwrap_or_else(|e| {
            self.complaints
                .complain(&format!("uid={} cannot store the outcome: {e}", plan.uid));
            false
        });
        if !plan
            .line
            .ask_loop(|answer| CallStep::OutcomeKept(waits, answer))
            .await
        {
            // Its manifest went meanwhile.
            let (store, uid) = (self.store.clone(), plan.uid.clone());
            self.disk
                .run_job(move || outcome::forget_outcome(&store, &uid))
                .await;
        }
    }

    /// Makes the pod's directories (SYNC-08).
    async fn make_pod_dirs(&self, pod: &Pod) -> Result<(), SyncError> {
        let (store, uid) = (self.store.clone(), pod.metadata.uid.clone());
        let made = self.disk.run_job(move || store.make_dirs(&uid));
        made.await.map_err(|e| {
            let message = format!("error making pod data directories: {e}");
            self.record_warning(pod, "Failed", &message);
            SyncError::new(message)
        })
    }

    /// Records the resources that the pod holds, and what is given for them, before any of its containers starts
    /// (DEV-05, DEV-12).
    async fn record_held_resources(
        &self,
        plan: &CallPlan,
        pod: &Rc<Pod>,
        starts: bool,
    ) -> Result<(), SyncError> {
        let Some(resources) = self.generator.resources.as_ref() else {
            return Ok(());
        };
        let Some(held) = plan.held.as_deref() else {
            return match starts && !extended_resource_demands(pod).is_empty() {
                true => self.ask_for_resources(plan, pod).await,
                false => Ok(()),
            };
        };
        let settled = async { Some(resources.settle_held_devices(&plan.uid, held).await) };
        let cancelled = async {
            plan.cancel.wait_for_cancel().await;
            None
        };
        // Who gives them may take its time.
        let settled = settled.or(cancelled).await;
        let Err(e) = settled.unwrap_or(Ok(())) else {
            return Ok(());
        };
        let message = e.to_string();
        self.record_warning(pod, DEVICE_NOT_READY, &message);
        plan.line
            .tell_loop(CallStep::Unsettled(Rc::clone(pod)))
            .await;
        Err(SyncError::new(message))
    }

    /// Asks the loop for resources of a pod that ran when it was admitted: it was given none, and what it held is not
    /// known (DEV-10).
    async fn ask_for_resources(&self, plan: &CallPlan, pod: &Rc<Pod>) -> Result<(), SyncError> {
        let asked = plan
            .line
            .ask_loop(|answer| CallStep::HoldsNothing(Rc::clone(pod), answer));
        match asked.await {
            LateResourceGrant::Nothing => Ok(()),
            LateResourceGrant::Given => {
                Err(SyncError::new("its next sync begins with its devices"))
            }
            LateResourceGrant::Waits(message) => {
                self.record_warning(pod, DEVICE_NOT_READY, &message);
                Err(SyncError::new(message))
            }
        }
    }
}

/// Returns true if any of the pod's containers is probed.
fn has_probes(pod: &Pod) -> bool {
    let is_probed = |c: &Container| {
        c.liveness_probe.is_some() || c.readiness_probe.is_some() || c.startup_probe.is_some()
    };
    let spec = &pod.spec;
    spec.containers
        .iter()
        .chain(&spec.init_containers)
        .any(is_probed)
}
