//! The driver of a node that has providers: their pods go to them, all others to the runtime.
//!
//! Whose a pod is says its RuntimeClass. From its first telling on a small file beside its record says so too, for an agent
//! that starts later: a pod that ends must be ended where it runs, though its class be gone or its provider silent.

use alloc::rc::Rc;
use core::time::Duration;
use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::PathBuf,
};

use smol::future::FutureExt as _;

use super::{Deleted, Provider, Providers, poll::tell_bad};
use crate::{
    agent::{
        driver::{Containers, PodDriver, Stop, Work},
        executor::{Mounted, NotStarted, Plan, Problem, Started, Step, SyncError, has_probes},
        pod_store::PROVIDER,
        recorder::Severity,
    },
    api::{
        Pod, PodUid,
        cri::{PodItem, PodRuntimeStatus},
    },
    error::chain,
    logic::{
        pod_worker::Outcome,
        provider::{self, NOT_FOUND, VolumePath},
        status::PodFailure,
    },
    provider::{MAX_POD_BYTES, ProviderError},
    runtime::Call,
    sys::{crash, file},
};

/// Bytes that are read of the file that says whose a pod is.
const MAX_RECORD_BYTES: u64 = 64;
/// A provider that stops a pod is told so again after this: it may have forgotten.
const TELL_AGAIN: Duration = Duration::from_secs(10);
/// Grace of a pod whose spec nobody knows, seconds: the API's default.
const UNKNOWN_GRACE_S: u32 = 30;

/// See the module's words.
pub(in crate::agent) struct Drivers {
    pub(in crate::agent) containers: Containers,
    pub(in crate::agent) providers: Rc<Providers>,
}

/// Whose a pod is.
enum Whose<'a> {
    Containers,
    Provider(&'a Rc<Provider>),
    /// Nobody can be asked, and why.
    Nobody(String),
}

impl PodDriver for Drivers {
    fn sync<'a>(&'a self, plan: &'a Plan) -> Work<'a, Outcome> {
        Box::pin(async move {
            let syncer = &self.containers.syncer;
            let Ok(pod) = syncer.store.load_next(&syncer.disk, &plan.uid).await else {
                // Told there.
                return self.containers.sync(plan).await;
            };
            if pod.spec.runtime_class_name.is_none() {
                self.drop_record(&plan.uid).await;
                return self.containers.sync(plan).await;
            }
            let handler = match syncer.starter.generator.handler(&pod, plan).await {
                Ok(handler) => handler,
                Err(e) => match self.whose(&plan.uid).await {
                    // A class that is gone does not take a pod from its provider.
                    Whose::Provider(provider) => provider.handler.clone(),
                    Whose::Containers => return self.containers.sync(plan).await,
                    Whose::Nobody(_) => {
                        return self.ended(plan, Err(SyncError::new(e.to_string())));
                    }
                },
            };
            match self.providers.by_handler(&handler) {
                None => {
                    self.drop_record(&plan.uid).await;
                    self.containers.sync(plan).await
                }
                Some(provider) => {
                    let synced = self.sync_at(provider, plan, &pod).await;
                    self.ended(plan, synced)
                }
            }
        })
    }

    fn terminate<'a>(&'a self, plan: &'a Plan, stop: Stop) -> Work<'a, Outcome> {
        Box::pin(async move {
            match self.whose(&plan.uid).await {
                Whose::Containers => self.containers.terminate(plan, stop).await,
                Whose::Provider(provider) => {
                    let ended = self.terminate_at(provider, plan, stop).await;
                    self.ended(plan, ended)
                }
                Whose::Nobody(why) => self.ended(plan, Err(SyncError::new(why))),
            }
        })
    }

    fn clean_up<'a>(&'a self, plan: &'a Plan) -> Work<'a, Outcome> {
        Box::pin(async move {
            if let Whose::Provider(provider) = self.whose(&plan.uid).await
                && self.forget_at(provider, &plan.uid).await == Deleted::Stopping
            {
                let why = format!("provider {} still stops it", provider.handler);
                return self.ended(plan, Err(SyncError::new(why)));
            }
            self.containers.clean_up(plan).await
        })
    }

    fn remove<'a>(&'a self, uid: &'a PodUid) -> Work<'a, ()> {
        Box::pin(async move {
            match self.whose(uid).await {
                Whose::Provider(provider) => {
                    self.forget_at(provider, uid).await;
                }
                Whose::Containers | Whose::Nobody(_) => self.containers.remove(uid).await,
            }
        })
    }

    fn list(&self) -> Call<'_, Vec<PodItem>> {
        self.containers.list()
    }

    fn status<'a>(&'a self, uid: &'a PodUid) -> Call<'a, PodRuntimeStatus> {
        self.containers.status(uid)
    }

    fn doorbell(&self) -> Work<'_, ()> {
        self.containers.doorbell()
    }
}

impl Drivers {
    fn ended(&self, plan: &Plan, result: Result<Outcome, SyncError>) -> Outcome {
        match result {
            Ok(outcome) => outcome,
            Err(_) if plan.cancel.is_cancelled() => Outcome::Canceled,
            Err(e) => {
                let complaint = format!("uid={} {}", plan.uid, e.message);
                self.containers.complaints.complain(&complaint);
                Outcome::Failed(e.retry)
            }
        }
    }

    fn record(&self, uid: &PodUid) -> PathBuf {
        self.containers.syncer.store.dir(uid).join(PROVIDER)
    }

    async fn whose(&self, uid: &PodUid) -> Whose<'_> {
        if let Some(provider) = self.providers.of(uid) {
            return Whose::Provider(provider);
        }
        let path = self.record(uid);
        let read = move || {
            let mut name = String::new();
            let file = File::open(path)?;
            file.take(MAX_RECORD_BYTES).read_to_string(&mut name)?;
            io::Result::Ok(name)
        };
        let name = match self.containers.syncer.disk.run(read).await {
            Ok(name) => name,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Whose::Containers,
            // It is tried again. Who takes it for a pod of containers leaves it running.
            Err(e) => return Whose::Nobody(format!("cannot read whose it is: {e}")),
        };
        match self.providers.by_handler(&name) {
            Some(provider) => Whose::Provider(provider),
            None => Whose::Nobody(format!(
                "it runs at provider {name:?}, which is not configured any more: nobody can end it there"
            )),
        }
    }

    async fn sync_at(
        &self,
        provider: &Provider,
        plan: &Plan,
        pod: &Rc<Pod>,
    ) -> Result<Outcome, SyncError> {
        let (uid, syncer) = (&plan.uid, &self.containers.syncer);
        provider.table.borrow_mut().expect(pod);
        if !provider.is_heard() {
            // Nobody knows what there is of it (PROV-03): its status stays, and it is looked at again with the first list.
            let message = format!("waits for provider {}", provider.handler);
            self.warn(pod, "ProviderNotReady", &message);
            return Err(SyncError::new(message));
        }
        let known = provider.table.borrow().status(uid).unwrap_or_default();
        let lost = provider.table.borrow().is_lost(uid);
        let begun = plan.line.ask(|answer| Step::Begun {
            pod: Rc::clone(pod),
            runtime: Rc::new(known),
            failure: lost.then(|| PodFailure {
                reason: NOT_FOUND.into(),
                message: format!("provider {} has forgotten the pod", provider.handler),
                disruption: None,
            }),
            answer,
        });
        let begun = begun.await;
        if let Some(outcome) = begun.outcome {
            syncer.keep_outcome(plan, outcome).await;
        }
        if begun.terminal {
            return Ok(Outcome::Terminal);
        }
        if let Some(Problem::Name(other)) = begun.problem {
            return Err(SyncError::new(format!("pod {other} has its name and ends")));
        }
        syncer.make_pod_dirs(pod).await?;
        let mounted = syncer.mounter.set_up(pod, plan).await?;
        if plan.cancel.is_to_end() {
            return Ok(Outcome::Canceled);
        }
        if has_probes(pod) {
            plan.line.tell(Step::Mounted(Rc::clone(pod))).await;
        }
        let generation = provider::generation(pod);
        let is_due = provider.table.borrow().is_to_be_told(uid, &generation);
        if !is_due {
            return Ok(Outcome::Done);
        }
        let told = self.tell(provider, plan, pod, &generation, &begun.ips, &mounted);
        let told = told.await;
        let why = told.as_ref().err().map(|e| e.message.clone());
        let starts = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        let starts = starts.map(|container| Started {
            container: container.name.clone(),
            result: why.clone().map_or(Ok(()), |message| {
                Err(NotStarted {
                    reason: "ProviderFailed",
                    message,
                })
            }),
        });
        let acted = Step::Acted {
            pod: Rc::clone(pod),
            starts: starts.collect(),
            failed: told.is_err().then(|| Rc::clone(&plan.runtime)),
        };
        plan.line.tell(acted).await;
        if let Some(message) = why {
            self.warn(pod, "ProviderFailed", &message);
        }
        told.map(|()| Outcome::Done)
    }

    fn warn(&self, pod: &Pod, reason: &str, message: &str) {
        let recorder = &self.containers.syncer.recorder;
        recorder.pod(pod, Severity::Warning, reason, message);
    }

    /// Tells the provider of a pod, with everything that it refers to.
    async fn tell(
        &self,
        provider: &Provider,
        plan: &Plan,
        pod: &Rc<Pod>,
        generation: &str,
        ips: &[core::net::IpAddr],
        mounted: &Mounted,
    ) -> Result<(), SyncError> {
        let syncer = &self.containers.syncer;
        let mut environments = Vec::new();
        for container in pod.spec.init_containers.iter().chain(&pod.spec.containers) {
            let generator = &syncer.starter.generator;
            let made = generator.environment(plan, pod, container, ips, mounted);
            let made = made.await.map_err(|e| SyncError::new(e.to_string()))?;
            environments.push(made.into_vec());
        }
        let volumes: Vec<VolumePath> = mounted
            .iter()
            .map(|(name, volume)| VolumePath {
                name: name.clone(),
                path: volume.host_path.display().to_string(),
                read_only: volume.read_only,
            })
            .collect();
        let told = provider::telling(pod, &provider.node, generation, environments, &volumes);
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
        let put = provider.put(&plan.uid, generation, told).await;
        crash::point("provider.told");
        let bad = put.map_err(|e| SyncError::new(chain(&e)))?;
        tell_bad(&syncer.recorder, &bad);
        Ok(())
    }

    /// Written before the provider hears of the pod.
    async fn keep_record(&self, provider: &Provider, uid: &PodUid) -> io::Result<()> {
        let (path, handler) = (self.record(uid), provider.handler.clone());
        let keep = move || {
            if fs::read(&path).is_ok_and(|known| known == handler.as_bytes()) {
                return Ok(());
            }
            file::write_atomic(&path, handler.as_bytes(), 0o600, true)
        };
        self.containers.syncer.disk.run(keep).await
    }

    /// A static pod of a provider that became one of containers, under the uid that it was given.
    async fn drop_record(&self, uid: &PodUid) {
        if let Some(provider) = self.providers.of(uid) {
            provider.forget(uid);
            let path = self.record(uid);
            let dropped = self
                .containers
                .syncer
                .disk
                .run(move || fs::remove_file(path));
            if let Err(e) = dropped.await
                && e.kind() != io::ErrorKind::NotFound
            {
                self.containers
                    .complaints
                    .complain(&format!("uid={uid} note of its provider: {e}"));
            }
        }
    }

    /// Has the pod stopped, and waits until nothing of it runs. No timer ends that (PRVD-06).
    async fn terminate_at(
        &self,
        provider: &Provider,
        plan: &Plan,
        stop: Stop,
    ) -> Result<Outcome, SyncError> {
        let (uid, syncer) = (&plan.uid, &self.containers.syncer);
        let pod = match stop {
            Stop::AsSpecified(_) => syncer.store.load(&syncer.disk, uid).await.ok(),
            Stop::Unknown => None,
        };
        let known = || provider.table.borrow().status(uid);
        if let Some(pod) = &pod {
            provider.table.borrow_mut().expect(pod);
            let stopping = plan.line.ask(|answer| Step::Stopping {
                pod: Rc::clone(pod),
                runtime: known().map_or_else(|| Rc::clone(&plan.runtime), Rc::new),
                answer,
            });
            stopping.await;
        }
        let spec = pod.as_ref().map(|pod| &pod.spec);
        let grace_s = match stop {
            Stop::AsSpecified(Some(grace_s)) => grace_s,
            Stop::AsSpecified(None) | Stop::Unknown => spec
                .and_then(|spec| spec.termination_grace_period_seconds)
                .and_then(|s| u32::try_from(s).ok())
                .unwrap_or(UNKNOWN_GRACE_S),
        };
        self.stop_at(provider, plan, grace_s).await?;
        plan.line.tell(Step::Killed).await;
        if let Some(pod) = pod {
            let runtime = known().map_or_else(|| Rc::clone(&plan.runtime), Rc::new);
            plan.line.tell(Step::Stopped { pod, runtime }).await;
        } else {
            self.forget_at(provider, uid).await;
        }
        plan.line.tell(Step::Changed).await;
        Ok(Outcome::Done)
    }

    async fn stop_at(
        &self,
        provider: &Provider,
        plan: &Plan,
        grace_s: u32,
    ) -> Result<(), SyncError> {
        let uid = &plan.uid;
        let failed = |e: ProviderError| SyncError::new(format!("error killing pod: {}", chain(&e)));
        // What has ended keeps its last words until they are written down: it is removed when it is cleaned up. Between two runs
        // it has not ended.
        let mut told = false;
        let ended = |told: bool| {
            let table = provider.table.borrow();
            let ended = if told {
                table.has_ended(uid)
            } else {
                table.is_over(uid)
            };
            ended && table.is_heard()
        };
        while !ended(told) {
            told = true;
            if provider.delete(uid, grace_s).await.map_err(failed)? == Deleted::Gone {
                return Ok(());
            }
            let instance = provider.table.borrow().instance().to_owned();
            let answered = provider.table.borrow().answers();
            let over = provider.changed.until(|| {
                let table = provider.table.borrow();
                let is_other = table.instance() != instance || answered && !table.answers();
                (table.has_ended(uid) || is_other).then_some(())
            });
            let again = provider.clock.now() + TELL_AGAIN;
            let late = provider.clock.until(again);
            over.or(late).or(plan.cancel.cancelled()).await;
            if plan.cancel.is_cancelled() {
                return Err(SyncError::new("it is to end sooner"));
            }
        }
        Ok(())
    }

    /// Nobody asks for the pod any more: the provider may forget it. What it cannot be told now it is told when it is found.
    /// One that it still stops is not forgotten here.
    async fn forget_at(&self, provider: &Provider, uid: &PodUid) -> Deleted {
        if !provider.table.borrow().is_gone(uid) {
            match provider.delete(uid, 0).await {
                Ok(Deleted::Stopping) => return Deleted::Stopping,
                Ok(Deleted::Gone) => {}
                Err(e) => {
                    let complaint =
                        format!("uid={uid} provider {}: {}", provider.handler, chain(&e));
                    self.containers.complaints.complain(&complaint);
                }
            }
        }
        provider.forget(uid);
        Deleted::Gone
    }
}
