//! Devices: who gets which, who waits for one, and what comes of it when one goes or comes back. The rules are
//! `logic::devices`'s (DEV).

use alloc::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use super::{
    giver::{DeviceGiver, FollowedContainers},
    news::{DeviceNews, DevicesAtStart},
};
use crate::{
    agent::{
        node_resources::{
            LateResourceGrant, NodeResources, PodLoop, PodsView, ResourceAdmission, ResourceNews,
        },
        recorder::EventSeverity,
    },
    api::{
        ContainerId, MonoTime, Pod, PodStatus, PodUid,
        cri::ContainerState,
        device::{DeviceHoldings, MachineDevices, PodDeviceHoldings},
    },
    logic::{
        admission::Rejection,
        devices::{
            self, DeviceRefusal, DeviceTable, DeviceWaitFacts, DeviceWaitVerdict, ReplugPolicy,
            UnitChange, UnitChangeKind, UnitHolder,
        },
        extended_resources::{
            PodDevices, ResourceDemand, ResourceUnits, extended_resource_demands,
        },
        pod_kind,
    },
    server::backend::DeviceReport,
};

/// A pod that does not get what it asks for.
struct WaitingPod {
    demands: Vec<ResourceDemand>,
    is_static: bool,
    since: MonoTime,
    /// A plugin is asked which units it would choose.
    asks: bool,
}

/// Devices that are here, their holders, and who waits for one.
pub(crate) struct DeviceHolders {
    devices: Rc<DeviceGiver>,
    table: DeviceTable,
    waiting: BTreeMap<PodUid, WaitingPod>,
    /// Pods that cannot begin with what they hold, and since when.
    stuck: BTreeMap<PodUid, MonoTime>,
    /// Start of the agent.
    started: MonoTime,
    /// Containers to restart because of their devices.
    restarts: Vec<DeviceRestart>,
}

/// A container that is to be restarted, for its device is another one.
struct DeviceRestart {
    pod: PodUid,
    container: Box<str>,
    /// `None`: which one runs could not be read yet.
    instance: Option<ContainerId>,
}

impl DeviceHolders {
    /// Begins with the declared devices and what was present at the start.
    pub(crate) fn new(devices: Rc<DeviceGiver>, beginning: DevicesAtStart, now: MonoTime) -> Self {
        let mut own = Self {
            devices,
            table: DeviceTable::default(),
            waiting: BTreeMap::new(),
            stuck: BTreeMap::new(),
            started: now,
            restarts: Vec::new(),
        };
        for entry in &own.devices.declared.entries {
            own.table.declare_resource(&entry.resource, entry.shares);
        }
        own.report_devices(&beginning.seen, now);
        for resource in &beginning.offered {
            own.table.recall_resource(resource);
        }
        for (uid, held) in beginning.held {
            own.table.restore_holder(uid, held);
        }
        own
    }

    fn report_devices(&mut self, seen: &MachineDevices, now: MonoTime) -> Vec<UnitChange> {
        let declared = &self.devices.declared;
        let found = devices::find_units(declared, seen);
        let all = declared.entries.iter().zip(found);
        let changes =
            all.map(|(entry, found)| self.table.take_machine_units(&entry.resource, found, now));
        changes.flatten().collect()
    }

    fn judge_refusal(
        &self,
        why: &DeviceRefusal,
        waiting: &WaitingPod,
        now: MonoTime,
    ) -> DeviceWaitVerdict {
        let resource = why.missing_resource();
        let may_come =
            self.plugins_may_come() && self.devices.declared.find_entry(resource).is_none();
        let pod = DeviceWaitFacts {
            is_static: waiting.is_static,
            waited: now - waiting.since,
            at_most: self.devices.wait,
            of_plugin: self.table.is_plugin_resource(resource) || may_come,
            came_after: waiting.since - self.started,
        };
        devices::judge_refusal(why, pod)
    }

    fn plugins_may_come(&self) -> bool {
        self.devices.plugins.is_some()
    }

    /// A plugin is asked which units it would choose for the pod.
    fn asks_for_preference(&self, uid: &PodUid) -> bool {
        self.waiting.get(uid).is_some_and(|waiting| waiting.asks)
    }

    /// Names the instances that are to be restarted, and forgets what runs no more.
    fn look_up_restarts(&mut self, pods: &PodsView<'_>) {
        self.restarts.retain_mut(|restart| {
            let Ok(status) = pods.runtime_status(&restart.pod) else {
                return true;
            };
            let mut running = status
                .container_instances(&restart.container)
                .filter(|c| c.state == ContainerState::Running);
            let instance = match &restart.instance {
                None => running.next(),
                Some(id) => running.find(|c| c.id == *id),
            };
            restart.instance = instance.map(|c| c.id.clone());
            restart.instance.is_some()
        });
    }

    /// Judges a pod that cannot begin with what it holds. Returns why it is refused, if it is.
    fn judge_stuck(
        &mut self,
        pod: &Pod,
        demands: Vec<ResourceDemand>,
        why: &DeviceRefusal,
        now: MonoTime,
    ) -> Option<Rejection> {
        let uid = &pod.metadata.uid;
        let waiting = WaitingPod {
            demands,
            is_static: pod_kind::is_static(pod),
            since: *self.stuck.entry(uid.clone()).or_insert(now),
            asks: false,
        };
        match self.judge_refusal(why, &waiting, now) {
            // Its sync tries it again, and tells why.
            DeviceWaitVerdict::Wait => None,
            DeviceWaitVerdict::Refuse => {
                self.stuck.remove(uid);
                Some(why.rejection())
            }
        }
    }

    /// Returns true if the pod runs, or may run with what it holds: the runtime does not say otherwise.
    fn is_pod_running(&self, uid: &PodUid, pods: &PodsView<'_>) -> bool {
        match pods.runtime_status(uid) {
            Ok(status) => status.is_running(),
            Err(_) => self.table.held_units(uid).is_some(),
        }
    }

    /// Returns true if no container of the pod runs and its time to wait is not over.
    fn may_wait_longer(&self, uid: &PodUid, pods: &PodsView<'_>, now: MonoTime) -> bool {
        self.waiting.get(uid).is_some_and(|waiting| {
            let check = || self.table.check_allocation(uid, &waiting.demands).err();
            let refused = self.refuse_unknown_resource(waiting, pods).or_else(check);
            refused.is_some_and(|why| {
                self.judge_refusal(&why, waiting, now) == DeviceWaitVerdict::Wait
            })
        })
    }

    /// Refuses a static pod that asks for a resource which nobody here has ever offered (DEV-05).
    fn refuse_unknown_resource(
        &self,
        waiting: &WaitingPod,
        pods: &PodsView<'_>,
    ) -> Option<DeviceRefusal> {
        let unknown = self.table.unregistered_refusal(&waiting.demands);
        // A node without devices is not asked for any. A cluster may count what nobody here gives.
        let gives = self.plugins_may_come() || self.table.resource_names().next().is_some();
        let counts = || self.counts_others(&waiting.demands, pods);
        unknown.filter(|_| waiting.is_static && gives && !counts())
    }

    /// Returns true if the Node has amounts of all demanded resources that are not given here.
    fn counts_others(&self, demands: &[ResourceDemand], pods: &PodsView<'_>) -> bool {
        demands.iter().all(|demand| {
            let is_own = self
                .table
                .resource_names()
                .any(|name| name == demand.resource);
            is_own || pods.node_has_resource(&demand.resource)
        })
    }

    /// The machine was looked at.
    fn take_device_scan(
        &mut self,
        seen: &MachineDevices,
        followed: &FollowedContainers,
        pods: &mut PodLoop<'_>,
        now: MonoTime,
    ) {
        let changes = self.report_devices(seen, now);
        self.apply_device_changes(changes, &followed.live, pods, now);
        for holder in &followed.unfit {
            self.restart_for_device(holder, &pods.pods_view());
            pods.resync_pod(&holder.pod, now);
        }
    }

    /// The one that runs now: one that starts later has the device as it is then.
    fn restart_for_device(&mut self, holder: &UnitHolder, pods: &PodsView<'_>) {
        let is_it = |r: &DeviceRestart| r.pod == holder.pod && r.container == holder.container;
        if self.restarts.iter().any(is_it) {
            self.look_up_restarts(pods);
        }
        if self.restarts.iter().any(is_it) {
            return;
        }
        self.restarts.push(DeviceRestart {
            pod: holder.pod.clone(),
            container: holder.container.clone(),
            instance: None,
        });
        self.look_up_restarts(pods);
    }

    /// The first of these resources that can make room for another one: no pod holds any of it, or waits for it.
    pub(crate) fn find_spare_resource(&self, known: &BTreeSet<Box<str>>) -> Option<Box<str>> {
        let waits = |name: &str| {
            let mut all = self.waiting.values().flat_map(|w| &w.demands);
            all.any(|demand| demand.resource == name)
        };
        let mut known = known.iter();
        let spare = known.find(|name| self.table.can_drop(name) && !waits(name));
        spare.cloned()
    }

    /// `live`: who goes on with what it has, whatever that is now.
    fn apply_device_changes(
        &mut self,
        changes: Vec<UnitChange>,
        live: &[UnitHolder],
        pods: &mut PodLoop<'_>,
        now: MonoTime,
    ) {
        for change in changes {
            self.apply_device_change(&change, live, pods, now);
        }
        let Self { stuck, table, .. } = self;
        stuck.retain(|uid, _| table.held_units(uid).is_none() || !table.can_use(uid));
        pods.offer_amounts(self.table.resource_amounts());
        // Who waits is looked at by housekeeping.
    }

    fn apply_device_change(
        &mut self,
        change: &UnitChange,
        live: &[UnitHolder],
        pods: &mut PodLoop<'_>,
        now: MonoTime,
    ) {
        let UnitChange {
            resource,
            id,
            nodes,
            what,
            holders,
        } = change;
        let entry = self.devices.declared.find_entry(resource);
        let on_replug = entry.map(|e| e.on_replug).unwrap_or_default();
        // Nodes of a plugin's are not known here.
        let of_plugin = self.table.is_plugin_resource(resource);
        let shown = if nodes.is_empty() { id } else { nodes };
        // A short absence is no news (DEV-39).
        let is_told = match what {
            UnitChangeKind::Lost => true,
            UnitChangeKind::Back { moved, told } => *moved || *told,
        };
        for holder in holders {
            let uid = &holder.pod;
            let (severity, reason, text) = match (what, of_plugin) {
                (UnitChangeKind::Lost, false) => (EventSeverity::Warning, "DeviceLost", "is gone"),
                (UnitChangeKind::Lost, true) => {
                    (EventSeverity::Warning, "DeviceLost", "is unhealthy")
                }
                (UnitChangeKind::Back { .. }, false) => {
                    (EventSeverity::Normal, "DeviceBack", "is back")
                }
                (UnitChangeKind::Back { .. }, true) => {
                    (EventSeverity::Normal, "DeviceBack", "is healthy")
                }
            };
            if is_told {
                let message = format!("Device {resource} ({shown}) {text}");
                pods.record_container_event(uid, &holder.container, (severity, reason), &message);
                log::info!("uid={uid} device {id} of {resource} ({nodes}) {text}");
            }
            let restarts = match (what, on_replug) {
                (UnitChangeKind::Back { moved, .. }, ReplugPolicy::IfChanged) => {
                    *moved && !live.contains(holder)
                }
                (UnitChangeKind::Back { .. }, ReplugPolicy::Restart) => true,
                (UnitChangeKind::Back { .. }, ReplugPolicy::Leave) | (UnitChangeKind::Lost, _) => {
                    false
                }
            };
            if restarts {
                self.restart_for_device(holder, &pods.pods_view());
            }
            // One that waits for its device to come back is tried at once.
            pods.resync_pod(uid, now);
        }
    }

    /// Holders of all devices, for metrics and the pod-resources API (DEV-17).
    pub(crate) fn device_holdings(&self, pods: &PodsView<'_>) -> DeviceHoldings {
        let holds = pods.active_pods().map(|(uid, pod)| {
            let held = self.table.held_units(uid);
            let held = held.map_or(&[][..], |held| held);
            let held = || held.iter().filter(|held| !held.plain_init);
            let status = pods.pod_status(uid);
            let shown = status.map_or(&[][..], |status| &status.container_statuses);
            let shown = shown.iter().map(|container| &*container.name);
            let names: BTreeSet<&str> = held().map(|h| &*h.container).chain(shown).collect();
            let of = |name: &str| {
                let own = held().filter(|held| *held.container == *name);
                own.map(|held| {
                    let ids: BTreeSet<&str> = held.ids.iter().map(|id| &**id).collect();
                    let ids = ids.into_iter().map(String::from).collect();
                    (String::from(&*held.resource), ids)
                })
                .collect()
            };
            PodDeviceHoldings {
                name: pod.name.clone(),
                namespace: pod.namespace.clone(),
                containers: names
                    .into_iter()
                    .map(|name| (String::from(name), of(name)))
                    .collect(),
            }
        });
        let mut healthy: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for unit in self.table.unit_views() {
            if unit.healthy {
                let ids = healthy.entry(unit.resource.into()).or_default();
                ids.push(unit.id.into());
            }
        }
        DeviceHoldings {
            pods: holds.collect(),
            healthy: healthy.into_iter().collect(),
        }
    }
}

impl NodeResources for DeviceHolders {
    fn resource_amounts(&self) -> Vec<ResourceUnits> {
        self.table.resource_amounts()
    }

    fn held_devices(&self, uid: &PodUid) -> Option<PodDevices> {
        self.table.held_units(uid).cloned()
    }

    fn admit_pod(&mut self, pod: &Pod, pods: &mut PodLoop<'_>, now: MonoTime) -> ResourceAdmission {
        let uid = &pod.metadata.uid;
        let demands = extended_resource_demands(pod);
        let asks_nothing = demands.is_empty() && self.table.held_units(uid).is_none();
        // What runs was given its devices before (DEV-12).
        if asks_nothing || self.is_pod_running(uid, &pods.pods_view()) {
            return ResourceAdmission::Given;
        }
        if self.asks_for_preference(uid) {
            return ResourceAdmission::Held;
        }
        let waiting = WaitingPod {
            demands,
            is_static: pod_kind::is_static(pod),
            since: self.waiting.get(uid).map_or(now, |w| w.since),
            asks: false,
        };
        if !pods.pods_view().is_pod_idle(uid) {
            // It may run with what it has, and that could not be looked at yet.
            self.waiting.insert(uid.clone(), waiting);
            return ResourceAdmission::Held;
        }
        self.release_inactive(pods);
        let demands = &waiting.demands;
        let unknown = self.refuse_unknown_resource(&waiting, &pods.pods_view());
        let question = match &unknown {
            Some(_) => None,
            None => self.table.next_question(uid, demands),
        };
        if let Some(question) = question {
            let waiting = WaitingPod {
                asks: true,
                ..waiting
            };
            self.waiting.insert(uid.clone(), waiting);
            let (devices, uid) = (Rc::clone(&self.devices), uid.clone());
            pods.ask_outside(Box::pin(async move {
                let news = devices.ask_preferred_units(uid, question).await?;
                Some(Box::new(news) as ResourceNews)
            }));
            return ResourceAdmission::Held;
        }
        let given = match unknown {
            Some(refusal) => Err(refusal),
            None => self.table.allocate(uid, demands),
        };
        let Err(why) = given else {
            self.forget_waiting(uid);
            return ResourceAdmission::Given;
        };
        match self.judge_refusal(&why, &waiting, now) {
            DeviceWaitVerdict::Wait => {
                self.waiting.insert(uid.clone(), waiting);
                ResourceAdmission::Waits(format!("waits for a device: {why}"))
            }
            DeviceWaitVerdict::Refuse => {
                self.forget_waiting(uid);
                ResourceAdmission::Refused(why.rejection())
            }
        }
    }

    /// Replaces devices that the pod cannot use. If nothing can replace one, the pod waits as one that comes does (DEV-08).
    fn replace_held(
        &mut self,
        pod: &Pod,
        pods: &mut PodLoop<'_>,
        now: MonoTime,
    ) -> Option<Rejection> {
        let uid = &pod.metadata.uid;
        if !pods.pods_view().is_pod_idle(uid) {
            return None;
        }
        self.release_inactive(pods);
        let demands = extended_resource_demands(pod);
        let Err(why) = self.table.allocate_again(uid, &demands) else {
            self.stuck.remove(uid);
            return None;
        };
        self.judge_stuck(pod, demands, &why, now)
    }

    /// The pod was admitted without: what it held is not known, or nobody offered it then. It gets what it asks for, if
    /// that is known here (DEV-10).
    fn give_late(
        &mut self,
        pod: &Pod,
        pods: &mut PodLoop<'_>,
        now: MonoTime,
    ) -> (LateResourceGrant, Option<Rejection>) {
        let uid = &pod.metadata.uid;
        if self.table.held_units(uid).is_none() {
            self.release_inactive(pods);
            let demands = extended_resource_demands(pod);
            if let Err(why) = self.table.allocate(uid, &demands) {
                let message = format!("waits for a device: {why}");
                let refused = match pods.pods_view().is_pod_idle(uid) {
                    true => self.judge_stuck(pod, demands, &why, now),
                    false => None,
                };
                return (LateResourceGrant::Waits(message), refused);
            }
            self.stuck.remove(uid);
        }
        if self.table.held_units(uid).is_none() {
            return (LateResourceGrant::Nothing, None);
        }
        pods.resync_pod(uid, now);
        (LateResourceGrant::Given, None)
    }

    fn is_waiting(&self, uid: &PodUid) -> bool {
        self.waiting.contains_key(uid)
    }

    fn may_wait(&self, uid: &PodUid, pods: &PodsView<'_>, now: MonoTime) -> bool {
        match pods.is_pod_idle(uid) {
            true if self.asks_for_preference(uid) => true,
            true => pods.is_told_to_wait(uid) && self.may_wait_longer(uid, pods, now),
            false => self.is_waiting(uid) && !self.is_pod_running(uid, pods),
        }
    }

    fn forget_waiting(&mut self, uid: &PodUid) {
        self.waiting.remove(uid);
        self.stuck.remove(uid);
    }

    fn release_inactive(&mut self, around: &PodLoop<'_>) {
        let pods = around.pods_view();
        if !pods.has_all_sources() {
            return;
        }
        let released = self.table.release_units(|uid| pods.may_use_held(uid));
        self.waiting.retain(|uid, _| pods.is_configured(uid));
        if released {
            // A unit that is lost counted as long as somebody held it.
            around.offer_amounts(self.table.resource_amounts());
        }
    }

    fn take_resource_news(&mut self, news: ResourceNews, pods: &mut PodLoop<'_>, now: MonoTime) {
        let Ok(news) = news.downcast::<DeviceNews>() else {
            return;
        };
        let table = &mut self.table;
        let mut changes = Vec::new();
        // Nothing happened to what they hold, yet their statuses say something else now.
        let mut other_health = Vec::new();
        match *news {
            DeviceNews::Looked { seen, followed } => {
                return self.take_device_scan(&seen, &followed, pods, now);
            }
            DeviceNews::Registered { resource, prefers } => {
                table.register_plugin(&resource, prefers)
            }
            DeviceNews::Listed { resource, units } => {
                other_health = table.pods_in_doubt(&resource);
                changes = table.take_plugin_units(&resource, units);
            }
            DeviceNews::Gone { resource } => {
                table.disconnect_plugin(&resource, now);
                other_health = table.pods_in_doubt(&resource);
            }
            DeviceNews::Spared { resource } => table.drop_spare_resource(&resource),
            DeviceNews::Preferred { pod, answer } => {
                if let Some(waiting) = self.waiting.get_mut(&pod) {
                    waiting.asks = false;
                    table.take_preference(&pod, answer);
                    pods.admit_again(pod);
                }
                return;
            }
        }
        for uid in other_health {
            pods.resync_pod(&uid, now);
        }
        self.apply_device_changes(changes, &[], pods, now);
    }

    fn next_timeout(&self) -> Option<MonoTime> {
        self.table.next_timeout()
    }

    fn handle_timeout(&mut self, pods: &mut PodLoop<'_>, now: MonoTime) {
        let changes = self.table.handle_timeout(now);
        self.apply_device_changes(changes, &[], pods, now);
    }

    /// Forgotten as soon as they are not the newest any more.
    fn instances_to_restart(&mut self, uid: &PodUid, pods: &PodsView<'_>) -> Vec<ContainerId> {
        if self.restarts.is_empty() {
            return Vec::new();
        }
        self.look_up_restarts(pods);
        let own = self.restarts.iter().filter(|restart| restart.pod == *uid);
        own.filter_map(|restart| restart.instance.clone()).collect()
    }

    /// DEV-15.
    fn show_health(
        &self,
        uid: &PodUid,
        status: &mut PodStatus,
        previous: &PodStatus,
        now: MonoTime,
    ) {
        let starts = devices::plugins_may_come(now - self.started);
        let held = self.table.held_units(uid).map_or(&[][..], |held| held);
        let health = |resource: &str, id: &str| self.table.unit_health(resource, id, starts);
        devices::set_unit_health(status, previous, held, &health);
    }

    fn shown_devices(&self, pods: &PodsView<'_>) -> Vec<DeviceReport> {
        let holder = |holder: &UnitHolder| {
            let pod = match pods.pod_name(&holder.pod) {
                Some(name) => format!("{}/{}", name.namespace, name.name),
                None => holder.pod.to_string(),
            };
            format!("{pod}/{}", holder.container)
        };
        let all = self.table.unit_views().into_iter();
        all.map(|unit| DeviceReport {
            resource: unit.resource.into(),
            id: unit.id.into(),
            nodes: unit.nodes.into(),
            healthy: unit.healthy,
            plugin: unit.plugin,
            shares: unit.shares,
            used: unit.used,
            holders: unit.holders.iter().map(holder).collect(),
        })
        .collect()
    }
}
