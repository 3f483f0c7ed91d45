//! Extended resources: what the loop does for whoever offers them (DEV). Decisions are those of [`NodeResources`].

use alloc::collections::VecDeque;
use core::any::Any;

use super::{
    Agent, AgentEffect, AgentTools, LoadPurpose, PodRegistry, StateOwners,
    runtime_view::RuntimeView, sources::PodSources,
};
use crate::{
    agent::{
        cpu_manager::NodeCpus,
        node_resources::{
            LateResourceGrant, NodeResources, ResourceAdmission, ResourceNews, ResourceQuestion,
        },
        recorder::{EventSeverity, EventSubject},
    },
    api::{ContainerId, MonoTime, Pod, PodStatus, PodUid},
    logic::{
        cpu_manager::{CpuRefusal, count_exclusive_containers},
        extended_resources::ResourceUnits,
        mirror::PodFullName,
        runtime_cache::PodStatusResult,
        status::DEVICE_NOT_READY,
    },
    server::backend::DeviceReport,
};

/// The loop's knowledge of pods, for whoever offers resources.
#[derive(Clone, Copy)]
pub(crate) struct PodsView<'a> {
    pods: &'a PodRegistry,
    view: &'a RuntimeView,
    sources: &'a PodSources,
    owners: &'a StateOwners,
}

impl<'a> PodsView<'a> {
    /// Returns true if no container of the pod runs, as the runtime said last.
    pub(crate) fn is_pod_idle(&self, pod: &PodUid) -> bool {
        self.view.is_pod_idle(pod)
    }

    /// Last runtime status of the pod; an error if it could not be read.
    pub(crate) fn runtime_status(&self, pod: &PodUid) -> PodStatusResult {
        self.view.pod_status(pod)
    }

    /// Status of the pod, as it was last told.
    pub(crate) fn pod_status(&self, pod: &PodUid) -> Option<&'a PodStatus> {
        self.pods.stored_status(pod)
    }

    /// Returns true if it was told of the pod that it waits for a device.
    pub(crate) fn is_told_to_wait(&self, pod: &PodUid) -> bool {
        let told = self.pods.stored_status(pod);
        told.is_some_and(|status| status.reason == DEVICE_NOT_READY)
    }

    /// Returns true if a source has the pod.
    pub(crate) fn is_configured(&self, pod: &PodUid) -> bool {
        self.pods.is_configured(pod)
    }

    /// Namespace and name of a pod that a source has.
    pub(crate) fn pod_name(&self, pod: &PodUid) -> Option<&'a PodFullName> {
        self.pods.config(pod).map(|config| &config.id.name)
    }

    /// Pods that count for admission, with their names.
    pub(crate) fn active_pods(&self) -> impl Iterator<Item = (&'a PodUid, &'a PodFullName)> {
        let active = self.pods.active_pods();
        active.map(|(uid, config)| (uid, &config.id.name))
    }

    /// Returns true if all sources have told their pods.
    pub(crate) fn has_all_sources(&self) -> bool {
        self.sources.are_ready()
    }

    /// Returns true if a source wants the pod, or may want it.
    fn is_wanted(&self, pod: &PodUid) -> bool {
        let cluster = self.owners.cluster.as_ref();
        self.pods.active_config(pod).is_some()
            || self.pods.is_arriving(pod)
            || cluster.is_some_and(|cluster| cluster.is_unread(pod))
    }

    /// Returns true if the pod may use what it holds: it is wanted, or it may run.
    pub(crate) fn may_use_held(&self, pod: &PodUid) -> bool {
        self.is_wanted(pod)
            || self.pods.worker_table().could_have_running_containers(pod)
            // It may run without a worker, or before it has one: deliberately, if it could not be read.
            || !self.view.is_pod_idle(pod)
    }

    /// Returns true if the Node has an amount of the resource that is not offered here.
    pub(crate) fn node_has_resource(&self, resource: &str) -> bool {
        let node = &self.owners.node;
        node.with_admission(|node| node.allocatable.contains_key(resource))
    }
}

/// The loop, as far as whoever offers resources changes it.
pub(crate) struct PodLoop<'a> {
    pods: &'a mut PodRegistry,
    view: &'a RuntimeView,
    sources: &'a PodSources,
    owners: &'a StateOwners,
    tools: &'a AgentTools,
    effects: &'a mut VecDeque<AgentEffect>,
}

impl PodLoop<'_> {
    /// The pods as they are now.
    pub(crate) const fn pods_view(&self) -> PodsView<'_> {
        PodsView {
            pods: self.pods,
            view: self.view,
            sources: self.sources,
            owners: self.owners,
        }
    }

    /// Syncs the pod soon.
    pub(crate) fn resync_pod(&mut self, pod: &PodUid, now: MonoTime) {
        self.pods.resync_worker(pod, now);
    }

    /// Admits the pod again.
    pub(crate) fn admit_again(&mut self, pod: PodUid) {
        self.effects
            .push_back(AgentEffect::Load(pod, LoadPurpose::Create));
    }

    /// Asks the outside; the answer comes back as news.
    pub(crate) fn ask_outside(&mut self, question: ResourceQuestion) {
        self.effects.push_back(AgentEffect::AskResources(question));
    }

    /// Tells the Node what is offered now.
    pub(crate) fn offer_amounts(&self, amounts: Vec<ResourceUnits>) {
        self.owners.node.set_devices(amounts);
    }

    /// Records an event about a container of a pod that a source has.
    pub(crate) fn record_container_event(
        &self,
        pod: &PodUid,
        container: &str,
        (severity, reason): (EventSeverity, &str),
        message: &str,
    ) {
        if let Some(name) = self.pods_view().pod_name(pod) {
            let about = EventSubject {
                uid: pod,
                namespace: &name.namespace,
                name: &name.name,
                field_path: &format!("spec.containers{{{container}}}"),
                annotations: "",
            };
            self.tools
                .recorder
                .record_event(about, severity, reason, message);
        }
    }
}

impl Agent {
    /// The pods, for whoever offers resources.
    pub(super) fn pods_view(&self) -> PodsView<'_> {
        PodsView {
            pods: &self.pods,
            view: &self.view,
            sources: &self.sources,
            owners: &self.owners,
        }
    }

    fn with_resources<T>(
        &mut self,
        act: impl FnOnce(&mut dyn NodeResources, &mut PodLoop<'_>) -> T,
    ) -> T {
        let mut pods = PodLoop {
            pods: &mut self.pods,
            view: &self.view,
            sources: &self.sources,
            owners: &self.owners,
            tools: &self.tools,
            effects: &mut self.effects,
        };
        act(&mut *self.resources, &mut pods)
    }

    /// Gives an admitted pod the resources that it asks for. Returns whether it may run now; otherwise it waits, or is
    /// refused.
    pub(super) fn give_resources(&mut self, pod: &Pod, now: MonoTime) -> bool {
        if let Err(refusal) = self.give_cpus(pod, now) {
            self.refuse_pod(pod, &refusal.into());
            return false;
        }
        let uid = &pod.metadata.uid;
        let was_told = self.pods_view().is_told_to_wait(uid);
        match self.with_resources(|own, pods| own.admit_pod(pod, pods, now)) {
            ResourceAdmission::Given => return true,
            ResourceAdmission::Held => {}
            ResourceAdmission::Waits(message) => self.report_resource_wait(pod, &message, was_told),
            ResourceAdmission::Refused(rejection) => self.refuse_pod(pod, &rejection),
        }
        false
    }

    fn report_resource_wait(&mut self, pod: &Pod, message: &str, was_told: bool) {
        // It is idle, so its status could be read.
        let runtime = self.view.pod_status(&pod.metadata.uid).unwrap_or_default();
        let mut statuses = self.status_generator();
        if !statuses.set_pod_waiting(pod, &runtime, DEVICE_NOT_READY, message) {
            // It has ended, so it needs none. What is left of it goes with what nobody has.
            self.resources.forget_waiting(&pod.metadata.uid);
        } else if !was_told {
            let recorder = &self.tools.recorder;
            recorder.record_pod_event(pod, EventSeverity::Warning, DEVICE_NOT_READY, message);
        }
    }

    /// Replaces what a pod holds and cannot begin with (DEV-08).
    pub(super) fn replace_resources(&mut self, pod: &Pod, now: MonoTime) {
        let refused = self.with_resources(|own, pods| own.replace_held(pod, pods, now));
        if let Some(rejection) = refused {
            self.refuse_pod(pod, &rejection);
        }
    }

    /// Gives resources to a running pod that holds none but is about to start a container (DEV-10). Its running containers
    /// go on in any case.
    pub(super) fn give_resources_late(&mut self, pod: &Pod, now: MonoTime) -> LateResourceGrant {
        let (given, refused) = self.with_resources(|own, pods| own.give_late(pod, pods, now));
        if let Some(rejection) = refused {
            self.refuse_pod(pod, &rejection);
        }
        given
    }

    /// Returns true if the pod waits for a resource and its time is not over.
    pub(super) fn waits_for_resource(&self, uid: &PodUid, now: MonoTime) -> bool {
        self.resources.may_wait(uid, &self.pods_view(), now)
    }

    /// Gives the containers of an admitted pod the processors that they ask for (CPUM-20).
    ///
    /// - Errors: the pod must not run.
    fn give_cpus(&mut self, pod: &Pod, now: MonoTime) -> Result<(), CpuRefusal> {
        let Some(cpus) = self.owners.cpus.clone() else {
            return Ok(());
        };
        // One that took the place of another, by an edit of its manifest for example, gets what that one had.
        let released = self.release_cpus(&cpus);
        let shared = cpus.shared_cpus();
        let given = cpus.give(pod);
        let counters = &self.tools.counters;
        let asked = count_exclusive_containers(pod);
        counters.count_work(|c| c.count_pinning(asked, given.is_err()));
        self.resync_sharing(released || shared != cpus.shared_cpus(), now);
        given
    }

    /// Syncs all pods if the processors that they share have changed.
    fn resync_sharing(&mut self, is_change: bool, now: MonoTime) {
        if is_change {
            let active = self.pods.active_pods();
            let uids: Vec<PodUid> = active.map(|(uid, _)| uid.clone()).collect();
            for uid in uids {
                self.pods.resync_worker(&uid, now);
            }
        }
    }

    /// Takes back what pods had that are no longer active (DEV-14, CPUM-22).
    pub(super) fn release_resources(&mut self, now: MonoTime) {
        self.with_resources(|own, pods| own.release_inactive(pods));
        if let Some(cpus) = self.owners.cpus.clone() {
            let is_change = self.release_cpus(&cpus);
            self.resync_sharing(is_change, now);
        }
    }

    /// Takes back the processors of pods that no source wants any more, also while they still end, as a kubelet does. Returns
    /// true if there were some.
    fn release_cpus(&self, cpus: &NodeCpus) -> bool {
        let pods = self.pods_view();
        pods.has_all_sources() && cpus.release(|uid| pods.is_wanted(uid))
    }

    /// Takes in news of resources.
    pub(super) fn on_resources(&mut self, news: ResourceNews, now: MonoTime) {
        self.with_resources(|own, pods| own.take_resource_news(news, pods, now));
    }

    /// Time has passed.
    pub(super) fn advance_resources(&mut self, now: MonoTime) {
        if self.resources.next_timeout().is_some_and(|due| due <= now) {
            self.with_resources(|own, pods| own.handle_timeout(pods, now));
        }
    }

    /// Instances of a pod that are to be restarted for what they hold.
    pub(super) fn instances_to_restart(&mut self, uid: &PodUid) -> Vec<ContainerId> {
        self.with_resources(|own, pods| own.instances_to_restart(uid, &pods.pods_view()))
    }

    /// Every unit of resources, for people.
    pub(in crate::agent) fn shown_resources(&self) -> Vec<DeviceReport> {
        self.resources.shown_devices(&self.pods_view())
    }

    /// Asks whoever offers resources, if it is a `T`.
    pub(in crate::agent) fn ask_resources<T: NodeResources, R>(
        &self,
        look: impl FnOnce(&T, &PodsView<'_>) -> R,
    ) -> Option<R> {
        let own: &dyn Any = &*self.resources;
        let own = own.downcast_ref::<T>()?;
        Some(look(own, &self.pods_view()))
    }
}
