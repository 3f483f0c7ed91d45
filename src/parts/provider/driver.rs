//! The driver of a node that has providers: their pods go to them, all others to the runtime.
//!
//! A pod's RuntimeClass names its owner. Once the provider was first told of a pod, a small file beside the pod's
//! record names it too, for an agent that starts later: a pod must be ended where it runs, even if its class is gone or
//! its provider is silent.

use alloc::rc::Rc;
use core::{net::IpAddr, time::Duration};
use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::PathBuf,
};

use smol::future::FutureExt as _;

use super::{
    DeleteOutcome, PodProvider, PodProviders,
    poll::tell_bad,
    wire::{MAX_POD_BYTES, ProviderError},
};
use crate::{
    agent::{
        driver::{DriverFuture, PodDriver, PodStopMode},
        executor::{
            CallPlan, CallStep, ContainerStartResult, ContainerWaitReason, MountedVolumes,
            PodPreparer, SyncError,
        },
        pod_store::PROVIDER,
        recorder::EventSeverity,
    },
    api::{
        Container, Pod, PodUid,
        cri::{PodItem, PodRuntimeStatus},
    },
    error::error_chain,
    logic::{
        kill::specified_grace_s,
        pod_worker::CallOutcome,
        provider::{self, NOT_FOUND, VolumePath},
        status::PodFailure,
        work_queue::RetryCause,
    },
    runtime::RuntimeCall,
    sys::{crash, file},
};

/// Bytes that are read of the file that names a pod's owner.
const MAX_RECORD_BYTES: u64 = 64;
/// Time after which a provider that stops a pod is told to stop it again: it may have forgotten.
const TELL_AGAIN: Duration = Duration::from_secs(10);
/// Reason of a pod that waits because its provider has not taken it, and of the event that says so.
const FAILED: &str = "ProviderFailed";

/// See the module's words.
pub(super) struct PodDriverRouter {
    /// Driver of all other pods.
    pub(super) containers: Rc<dyn PodDriver>,
    pub(super) preparer: Rc<PodPreparer>,
    pub(super) providers: Rc<PodProviders>,
}

/// Owner of a pod.
enum PodOwner<'a> {
    Containers,
    Provider(&'a Rc<PodProvider>),
    /// The owner is unknown, or its provider is not configured any more; the reason in words.
    Nobody(String),
}

impl PodDriver for PodDriverRouter {
    fn sync_pod<'a>(&'a self, plan: &'a CallPlan) -> DriverFuture<'a, CallOutcome> {
        Box::pin(async move {
            let Some(pod) = self.preparer.load_pod(&plan.uid).await else {
                return CallOutcome::Failed(RetryCause::Error);
            };
            if pod.spec.runtime_class_name.is_none() {
                self.drop_record(&plan.uid).await;
                return self.containers.sync_pod(plan).await;
            }
            let handler = match self
                .preparer
                .generator
                .find_runtime_handler(&pod, plan)
                .await
            {
                Ok(handler) => handler,
                Err(e) => match self.find_owner(&plan.uid).await {
                    // A class that is gone does not take a pod from its provider.
                    PodOwner::Provider(provider) => provider.handler.clone(),
                    PodOwner::Containers => return self.containers.sync_pod(plan).await,
                    PodOwner::Nobody(_) => {
                        return self.outcome_of_call(plan, Err(SyncError::new(e.to_string())));
                    }
                },
            };
            match self.providers.by_handler(&handler) {
                None => {
                    self.drop_record(&plan.uid).await;
                    self.containers.sync_pod(plan).await
                }
                Some(provider) => {
                    let synced = self.sync_at(provider, plan, &pod).await;
                    self.outcome_of_call(plan, synced)
                }
            }
        })
    }

    fn terminate_pod<'a>(
        &'a self,
        plan: &'a CallPlan,
        stop: PodStopMode,
    ) -> DriverFuture<'a, CallOutcome> {
        Box::pin(async move {
            match self.find_owner(&plan.uid).await {
                PodOwner::Containers => self.containers.terminate_pod(plan, stop).await,
                PodOwner::Provider(provider) => {
                    let ended = self.terminate_at(provider, plan, stop).await;
                    self.outcome_of_call(plan, ended)
                }
                PodOwner::Nobody(why) => self.outcome_of_call(plan, Err(SyncError::new(why))),
            }
        })
    }

    fn clean_up_pod<'a>(&'a self, plan: &'a CallPlan) -> DriverFuture<'a, CallOutcome> {
        Box::pin(async move {
            if let PodOwner::Provider(provider) = self.find_owner(&plan.uid).await {
                let table = &provider.table;
                let is_kept = !plan.content_goes && table.borrow_mut().decide_to_keep(&plan.uid);
                let goes = if is_kept {
                    table.borrow().surplus_kept_pod()
                } else {
                    Some(plan.uid.clone())
                };
                if let Some(uid) = goes
                    && self.forget_at(provider, &uid).await == DeleteOutcome::Stopping
                    && !is_kept
                {
                    let why = format!("provider {} still stops it", provider.handler);
                    return self.outcome_of_call(plan, Err(SyncError::new(why)));
                }
            }
            self.containers.clean_up_pod(plan).await
        })
    }

    fn remove_pod_remains<'a>(&'a self, uid: &'a PodUid) -> DriverFuture<'a, ()> {
        Box::pin(async move {
            match self.find_owner(uid).await {
                PodOwner::Provider(provider) => {
                    self.forget_at(provider, uid).await;
                }
                PodOwner::Containers | PodOwner::Nobody(_) => {
                    self.containers.remove_pod_remains(uid).await
                }
            }
        })
    }

    fn list_pods(&self) -> RuntimeCall<'_, Vec<PodItem>> {
        self.containers.list_pods()
    }

    fn count_pod_changes(&self) -> DriverFuture<'_, Option<u64>> {
        self.containers.count_pod_changes()
    }

    fn read_pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeCall<'a, PodRuntimeStatus> {
        self.containers.read_pod_status(uid)
    }

    fn wait_for_change(&self) -> DriverFuture<'_, ()> {
        self.containers.wait_for_change()
    }
}

impl PodDriverRouter {
    fn outcome_of_call(
        &self,
        plan: &CallPlan,
        result: Result<CallOutcome, SyncError>,
    ) -> CallOutcome {
        match result {
            Ok(outcome) => outcome,
            Err(_) if plan.cancel.is_cancelled() => CallOutcome::Canceled,
            Err(e) => {
                let complaint = format!("uid={} {}", plan.uid, e.message);
                self.preparer.complaints.complain(&complaint);
                CallOutcome::Failed(e.retry)
            }
        }
    }

    fn record_path(&self, uid: &PodUid) -> PathBuf {
        self.preparer.store.pod_dir(uid).join(PROVIDER)
    }

    async fn find_owner(&self, uid: &PodUid) -> PodOwner<'_> {
        if let Some(provider) = self.providers.owner_of(uid) {
            return PodOwner::Provider(provider);
        }
        let path = self.record_path(uid);
        let read = move || {
            let mut name = String::new();
            let file = File::open(path)?;
            file.take(MAX_RECORD_BYTES).read_to_string(&mut name)?;
            io::Result::Ok(name)
        };
        let name = match self.preparer.disk.run_job(read).await {
            Ok(name) => name,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return PodOwner::Containers,
            // The read is tried again. Taken for a pod of containers, a provider's pod would be left running.
            Err(e) => return PodOwner::Nobody(format!("cannot read which provider runs it: {e}")),
        };
        match self.providers.by_handler(&name) {
            Some(provider) => PodOwner::Provider(provider),
            None => PodOwner::Nobody(format!(
                "it runs at provider {name:?}, which is no longer configured: the pod cannot be ended there"
            )),
        }
    }

    async fn sync_at(
        &self,
        provider: &PodProvider,
        plan: &CallPlan,
        pod: &Rc<Pod>,
    ) -> Result<CallOutcome, SyncError> {
        provider.table.borrow_mut().expect_pod(pod);
        if !provider.is_heard() {
            // The pod's state is not known yet (PROV-03): its status stays, and it is looked at again with the first
            // list.
            let message = format!("waits for provider {}", provider.handler);
            self.warn(pod, "ProviderNotReady", &message);
            return Err(SyncError::new(message));
        }
        let (known, failure) = known_pod_status(provider, &plan.uid);
        let begun = self.preparer.begin_sync(plan, pod, known, failure).await;
        if begun.terminal {
            return Ok(CallOutcome::Terminal);
        }
        let pod = &self
            .preparer
            .take_allocated(pod, begun.resize.as_ref())
            .await?;
        self.preparer.check_start(pod, begun.problem.as_ref())?;
        let is_start = begun.actions.starts_anything();
        let Some(mounted) = self.preparer.set_up_pod(plan, pod, is_start).await? else {
            return Ok(CallOutcome::Canceled);
        };
        let generation = provider::pod_generation(pod);
        let is_due = provider
            .table
            .borrow()
            .must_tell_provider(&plan.uid, &generation);
        if !is_due || plan.cancel.is_to_end() {
            return Ok(CallOutcome::Done);
        }
        let told = self.tell_provider(provider, plan, pod, &generation, &begun.ips, &mounted);
        let told = told.await;
        if let Err(e) = &told {
            self.warn(pod, FAILED, &e.message);
        }
        let start = |container: &Container| ContainerStartResult {
            container: container.name.clone(),
            result: told.as_ref().map(|_| ()).map_err(|e| ContainerWaitReason {
                reason: FAILED,
                message: e.message.clone(),
            }),
        };
        let acted = CallStep::Acted {
            pod: Rc::clone(pod),
            starts: containers(pod).map(start).collect(),
            failed: told.is_err().then(|| Rc::clone(&plan.runtime)),
            again: told.is_ok() && begun.actions.restart_all,
        };
        plan.line.tell_loop(acted).await;
        told.map(|()| CallOutcome::Done)
    }

    fn warn(&self, pod: &Pod, reason: &str, message: &str) {
        let recorder = &self.preparer.recorder;
        recorder.record_pod_event(pod, EventSeverity::Warning, reason, message);
    }

    /// Tells the provider of a pod, with everything that it refers to.
    async fn tell_provider(
        &self,
        provider: &PodProvider,
        plan: &CallPlan,
        pod: &Rc<Pod>,
        generation: &str,
        ips: &[IpAddr],
        mounted: &MountedVolumes,
    ) -> Result<(), SyncError> {
        let mut environments = Vec::new();
        for container in containers(pod) {
            let generator = &self.preparer.generator;
            let made = generator.make_environment(plan, pod, container, ips, mounted);
            let made = made.await.map_err(|e| SyncError::new(e.to_string()))?;
            environments.push(made.into_vec());
        }
        let mut volumes = Vec::new();
        for (name, volume) in mounted {
            volumes.push(VolumePath {
                name: name.clone(),
                path: volume.host_path.display().to_string(),
                read_only: volume.read_only,
            });
        }
        let told = provider::pod_message(pod, &provider.node, generation, environments, &volumes);
        if told.len() > MAX_POD_BYTES {
            return Err(SyncError::new(format!(
                "the pod has {} bytes with all that it refers to, a provider takes {MAX_POD_BYTES}",
                told.len()
            )));
        }
        self.keep_record(provider, &plan.uid)
            .await
            .map_err(|e| SyncError::new(format!("cannot note the pod's provider: {e}")))?;
        crash::point("provider.recorded");
        if plan.cancel.is_to_end() {
            return Ok(());
        }
        let put = provider.put_pod(&plan.uid, generation, told).await;
        crash::point("provider.told");
        let bad = put.map_err(|e| SyncError::new(error_chain(&e)))?;
        tell_bad(&self.preparer.recorder, &bad);
        Ok(())
    }

    /// Writes the file that names the provider, before the provider hears of the pod.
    async fn keep_record(&self, provider: &PodProvider, uid: &PodUid) -> io::Result<()> {
        let (path, handler) = (self.record_path(uid), provider.handler.clone());
        let keep = move || {
            if fs::read(&path).is_ok_and(|known| known == handler.as_bytes()) {
                return Ok(());
            }
            file::write_atomic(&path, handler.as_bytes(), 0o600, true)
        };
        self.preparer.disk.run_job(keep).await
    }

    /// Forgets the provider of a static pod that became a pod of containers and kept its given uid.
    async fn drop_record(&self, uid: &PodUid) {
        if let Some(provider) = self.providers.owner_of(uid) {
            provider.forget_pod(uid);
            let path = self.record_path(uid);
            let dropped = self.preparer.disk.run_job(move || fs::remove_file(path));
            if let Err(e) = dropped.await
                && e.kind() != io::ErrorKind::NotFound
            {
                self.preparer
                    .complaints
                    .complain(&format!("uid={uid} note of its provider: {e}"));
            }
        }
    }

    /// Has the pod stopped, and waits until no part of it runs. No timer ends that (PRVD-06).
    async fn terminate_at(
        &self,
        provider: &PodProvider,
        plan: &CallPlan,
        stop: PodStopMode,
    ) -> Result<CallOutcome, SyncError> {
        let (uid, preparer) = (&plan.uid, &self.preparer);
        let pod = match stop {
            PodStopMode::AsSpecified(_) => preparer.store.load_pod(&preparer.disk, uid).await.ok(),
            PodStopMode::Unknown => None,
        };
        let known = || provider.table.borrow().pod_status(uid);
        if let Some(pod) = &pod {
            provider.table.borrow_mut().expect_pod(pod);
            let stopping = plan.line.ask_loop(|answer| CallStep::Stopping {
                pod: Rc::clone(pod),
                runtime: known().map_or_else(|| Rc::clone(&plan.runtime), Rc::new),
                answer,
            });
            stopping.await;
        }
        let grace_s = match stop {
            PodStopMode::AsSpecified(Some(grace_s)) => grace_s,
            PodStopMode::AsSpecified(None) | PodStopMode::Unknown => {
                specified_grace_s(pod.as_deref())
            }
        };
        self.stop_at(provider, plan, grace_s).await?;
        plan.line.tell_loop(CallStep::Killed).await;
        if let Some(pod) = pod {
            let runtime = known().map_or_else(|| Rc::clone(&plan.runtime), Rc::new);
            plan.line
                .tell_loop(CallStep::Stopped { pod, runtime })
                .await;
        } else {
            self.forget_at(provider, uid).await;
        }
        plan.line.tell_loop(CallStep::Changed).await;
        Ok(CallOutcome::Done)
    }

    async fn stop_at(
        &self,
        provider: &PodProvider,
        plan: &CallPlan,
        grace_s: u32,
    ) -> Result<(), SyncError> {
        let uid = &plan.uid;
        let failed =
            |e: ProviderError| SyncError::new(format!("error killing pod: {}", error_chain(&e)));
        // An ended pod keeps its last words until they are written down: it is removed when it is cleaned up. Between
        // two runs it has not ended.
        let mut told = false;
        let ended = |told: bool| {
            let table = provider.table.borrow();
            let ended = if told {
                table.has_ended(uid)
            } else {
                table.is_pod_over(uid)
            };
            ended && table.has_whole_list()
        };
        // Bounded: each turn waits for a change, or for `TELL_AGAIN`.
        while !ended(told) {
            told = true;
            if provider.delete_pod(uid, grace_s).await.map_err(failed)? == DeleteOutcome::Gone {
                return Ok(());
            }
            let instance = provider.table.borrow().instance_name().to_owned();
            let answered = provider.table.borrow().is_answering();
            let over = provider.changed.wait_until(|| {
                let table = provider.table.borrow();
                let is_other =
                    table.instance_name() != instance || answered && !table.is_answering();
                (table.has_ended(uid) || is_other).then_some(())
            });
            let again = provider.clock.now() + TELL_AGAIN;
            let late = provider.clock.sleep_until(again);
            over.or(late).or(plan.cancel.wait_for_cancel()).await;
            if plan.cancel.is_cancelled() {
                return Err(SyncError::new("it is to end sooner"));
            }
        }
        Ok(())
    }

    /// Tells the provider that it may forget a pod that is not wanted any more. If that fails, it is told when the pod
    /// is found. A pod that the provider still stops is not forgotten here.
    async fn forget_at(&self, provider: &PodProvider, uid: &PodUid) -> DeleteOutcome {
        if !provider.table.borrow().is_gone(uid) {
            match provider.delete_pod(uid, 0).await {
                Ok(DeleteOutcome::Stopping) => return DeleteOutcome::Stopping,
                Ok(DeleteOutcome::Gone) => {}
                Err(e) => {
                    let complaint = format!(
                        "uid={uid} provider {}: {}",
                        provider.handler,
                        error_chain(&e)
                    );
                    self.preparer.complaints.complain(&complaint);
                }
            }
        }
        provider.forget_pod(uid);
        DeleteOutcome::Gone
    }
}

/// All containers of a pod that a provider is told of.
fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.init_containers.iter().chain(&pod.spec.containers)
}

/// State of the pod at its provider, and its failure, if it has failed.
fn known_pod_status(
    provider: &PodProvider,
    uid: &PodUid,
) -> (Rc<PodRuntimeStatus>, Option<PodFailure>) {
    let table = provider.table.borrow();
    let failure = table.is_lost(uid).then(|| PodFailure {
        reason: NOT_FOUND.into(),
        message: format!("provider {} has forgotten the pod", provider.handler),
        disruption: None,
    });
    (Rc::new(table.pod_status(uid).unwrap_or_default()), failure)
}
