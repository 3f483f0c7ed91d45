//! Devices: who gets which, who waits for one, and what comes of it when one goes or comes back. The rules are
//! `logic::devices`'s (DEV).

use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use core::time::Duration;

use super::{Agent, Effect, Purpose, runtime_view::RuntimeView};
use crate::{
    agent::{
        device_news::{Beginning, News},
        devices::Followed,
        executor::GivenLate,
        recorder::{About, Severity},
    },
    api::{
        ContainerId, Mono, Pod, PodStatus, PodUid,
        cri::ContainerState,
        device::{Holdings, PodHolds, Seen},
    },
    config::DeviceConfig,
    logic::{
        devices::{
            self, Amount, Change, Declared, Demand, Holder, OnReplug, Patience, PodDevices,
            Refusal, Table, Verdict, What,
        },
        pod_kind,
        status::DEVICE_NOT_READY,
    },
    server::backend::DeviceShown,
};

/// A pod that does not get what it asks for.
struct Waiting {
    demands: Vec<Demand>,
    is_static: bool,
    since: Mono,
    /// A plugin is asked which units it would choose.
    asks: bool,
}

/// See the module's words.
#[derive(Default)]
pub(super) struct Devices {
    declared: Arc<Declared>,
    table: Table,
    waiting: BTreeMap<PodUid, Waiting>,
    /// Pods that cannot begin with what they hold, and since when.
    stuck: BTreeMap<PodUid, Mono>,
    /// Longest time that pods of the apiserver wait for a device.
    wait: Duration,
    /// Plugins may come.
    plugins: bool,
    /// Start of the agent.
    started: Mono,
    /// Containers to restart because of their devices.
    restarts: Vec<Restart>,
}

/// A container that is to be restarted, for its device is another one.
struct Restart {
    pod: PodUid,
    container: Box<str>,
    /// `None`: which one runs could not be read yet.
    instance: Option<ContainerId>,
}

impl Devices {
    /// Begins with the declared devices and what was present at the start; empty without a configuration.
    pub(super) fn new(cfg: Option<&DeviceConfig>, beginning: Option<Beginning>, now: Mono) -> Self {
        let (Some(cfg), Some(beginning)) = (cfg, beginning) else {
            return Self::default();
        };
        let mut devices = Self {
            declared: Arc::clone(&cfg.declared),
            wait: cfg.wait,
            plugins: cfg.plugins.is_some(),
            started: now,
            ..Self::default()
        };
        for entry in &devices.declared.entries {
            devices.table.declare(&entry.resource, entry.shares);
        }
        devices.report(&beginning.seen, now);
        for resource in &beginning.offered {
            devices.table.recall(resource);
        }
        for (uid, held) in beginning.held {
            devices.table.restore(uid, held);
        }
        devices
    }

    fn report(&mut self, seen: &Seen, now: Mono) -> Vec<Change> {
        let found = devices::units(&self.declared, seen);
        let all = self.declared.entries.iter().zip(found);
        let changes = all.map(|(entry, found)| self.table.report(&entry.resource, found, now));
        changes.flatten().collect()
    }

    /// Amount of each resource.
    pub(super) fn amounts(&self) -> Vec<Amount> {
        self.table.amounts()
    }

    /// Devices that the pod holds.
    pub(super) fn held_by(&self, uid: &PodUid) -> Option<PodDevices> {
        self.table.held_by(uid).cloned()
    }

    /// Puts it into a status how the devices of the pod are (DEV-15).
    pub(super) fn show_health(
        &self,
        uid: &PodUid,
        status: &mut PodStatus,
        previous: &PodStatus,
        now: Mono,
    ) {
        let starts = devices::plugins_may_come(now - self.started);
        let held = self.table.held_by(uid).map_or(&[][..], |held| held);
        let health = |resource: &str, id: &str| self.table.health(resource, id, starts);
        devices::show_health(status, previous, held, &health);
    }

    /// Returns true if the pod waits for a device.
    pub(super) fn is_waiting(&self, uid: &PodUid) -> bool {
        self.waiting.contains_key(uid)
    }

    fn judge(&self, why: &Refusal, waiting: &Waiting, now: Mono) -> Verdict {
        let resource = why.resource();
        let may_come = self.plugins && self.declared.entry(resource).is_none();
        let pod = Patience {
            is_static: waiting.is_static,
            waited: now - waiting.since,
            at_most: self.wait,
            of_plugin: self.table.is_plugins(resource) || may_come,
            came_after: waiting.since - self.started,
        };
        devices::judge(why, pod)
    }

    /// A plugin is asked which units it would choose for the pod.
    fn asks(&self, uid: &PodUid) -> bool {
        self.waiting.get(uid).is_some_and(|waiting| waiting.asks)
    }

    /// The pod does not wait any more: it goes, or runs.
    pub(super) fn forget_waiting(&mut self, uid: &PodUid) {
        self.waiting.remove(uid);
        self.stuck.remove(uid);
    }

    /// Instant of the next work.
    pub(super) fn next_timeout(&self) -> Option<Mono> {
        self.table.next_timeout()
    }

    /// Names the instances that are to be restarted, and forgets what runs no more.
    fn look_up_restarts(&mut self, view: &RuntimeView) {
        self.restarts.retain_mut(|restart| {
            let Ok(status) = view.status(&restart.pod) else {
                return true;
            };
            let mut running = status
                .instances(&restart.container)
                .filter(|c| c.state == ContainerState::Running);
            let instance = match &restart.instance {
                None => running.next(),
                Some(id) => running.find(|c| c.id == *id),
            };
            restart.instance = instance.map(|c| c.id.clone());
            restart.instance.is_some()
        });
    }
}

impl Agent {
    /// Gives an admitted pod the devices that it asks for. Returns whether it may run now; otherwise it waits, or is refused.
    pub(super) fn give_devices(&mut self, pod: &Pod, now: Mono) -> bool {
        let uid = &pod.metadata.uid;
        let demands = devices::demands(pod);
        let asks_nothing = demands.is_empty() && self.devices.held_by(uid).is_none();
        // What runs was given its devices before (DEV-12).
        if asks_nothing || self.runs(uid) {
            return true;
        }
        if self.devices.asks(uid) {
            return false;
        }
        let is_new = !self.is_told_to_wait(uid);
        let is_static = pod_kind::is_static(pod);
        let waiting = Waiting {
            demands,
            is_static,
            since: self.devices.waiting.get(uid).map_or(now, |w| w.since),
            asks: false,
        };
        if !self.view.is_idle(uid) {
            // It may run with what it has, and that could not be looked at yet.
            self.devices.waiting.insert(uid.clone(), waiting);
            return false;
        }
        self.release_devices();
        let demands = &waiting.demands;
        let unknown = self.unknown(&waiting);
        let question = match &unknown {
            Some(_) => None,
            None => self.devices.table.question(uid, demands),
        };
        if let Some(question) = question {
            let waiting = Waiting {
                asks: true,
                ..waiting
            };
            self.devices.waiting.insert(uid.clone(), waiting);
            let effect = Effect::Prefer(uid.clone(), question);
            self.effects.push_back(effect);
            return false;
        }
        let given = match unknown {
            Some(refusal) => Err(refusal),
            None => self.devices.table.allocate(uid, demands),
        };
        let Err(why) = given else {
            self.devices.forget_waiting(uid);
            return true;
        };
        match self.devices.judge(&why, &waiting, now) {
            Verdict::Wait => {
                let message = format!("waits for a device: {why}");
                // It is idle, so its status could be read.
                let runtime = self.view.status(uid).unwrap_or_default();
                let mut statuses = self.statuses();
                if !statuses.wait(pod, &runtime, DEVICE_NOT_READY, &message) {
                    // It has ended, so it needs none. What is left of it goes with what nobody has.
                    self.devices.forget_waiting(uid);
                    return false;
                }
                self.devices.waiting.insert(uid.clone(), waiting);
                if is_new {
                    let recorder = &self.tools.recorder;
                    recorder.pod(pod, Severity::Warning, DEVICE_NOT_READY, &message);
                }
            }
            Verdict::Refuse => {
                self.devices.forget_waiting(uid);
                self.refuse(pod, &why.rejection());
            }
        }
        false
    }

    /// A pod cannot begin with what it holds. What it cannot use of that is replaced; if nothing can replace it, the pod waits as
    /// one that comes does (DEV-08).
    pub(super) fn devices_not_settled(&mut self, pod: &Pod, now: Mono) {
        let uid = &pod.metadata.uid;
        if !self.view.is_idle(uid) {
            return;
        }
        self.release_devices();
        let demands = devices::demands(pod);
        match self.devices.table.allocate_again(uid, &demands) {
            Ok(()) => _ = self.devices.stuck.remove(uid),
            Err(why) => self.judge_stuck(pod, demands, &why, now),
        }
    }

    /// Gives devices to a running pod that holds none but is about to start a container. The pod was admitted without:
    /// what it
    /// held is not known, or nobody offered it then. It gets what it asks for, if that is known here (DEV-10). Its
    /// running
    /// containers go on in any case.
    pub(super) fn give_devices_late(&mut self, pod: &Pod, now: Mono) -> GivenLate {
        let uid = &pod.metadata.uid;
        if self.devices.held_by(uid).is_none() {
            self.release_devices();
            let demands = devices::demands(pod);
            if let Err(why) = self.devices.table.allocate(uid, &demands) {
                let message = format!("waits for a device: {why}");
                if self.view.is_idle(uid) {
                    self.judge_stuck(pod, demands, &why, now);
                }
                return GivenLate::Waits(message);
            }
            self.devices.stuck.remove(uid);
        }
        if self.devices.held_by(uid).is_none() {
            return GivenLate::Nothing;
        }
        self.pods.resync(uid, now);
        GivenLate::Given
    }

    fn judge_stuck(&mut self, pod: &Pod, demands: Vec<Demand>, why: &Refusal, now: Mono) {
        let uid = &pod.metadata.uid;
        let waiting = Waiting {
            demands,
            is_static: pod_kind::is_static(pod),
            since: *self.devices.stuck.entry(uid.clone()).or_insert(now),
            asks: false,
        };
        match self.devices.judge(why, &waiting, now) {
            // Its sync tries it again, and tells why.
            Verdict::Wait => {}
            Verdict::Refuse => {
                self.devices.stuck.remove(uid);
                self.refuse(pod, &why.rejection());
            }
        }
    }

    /// Returns true if the pod runs, or may run with what it holds: the runtime does not say otherwise.
    fn runs(&self, uid: &PodUid) -> bool {
        match self.view.status(uid) {
            Ok(status) => status.is_running(),
            Err(_) => self.devices.held_by(uid).is_some(),
        }
    }

    fn is_told_to_wait(&self, uid: &PodUid) -> bool {
        let told = self.pods.status(uid);
        told.is_some_and(|status| status.reason == DEVICE_NOT_READY)
    }

    /// Returns true if the pod waits for a device and its time is not over.
    pub(super) fn waits_for_device(&self, uid: &PodUid, now: Mono) -> bool {
        match self.view.is_idle(uid) {
            true if self.devices.asks(uid) => true,
            true => self.is_told_to_wait(uid) && self.holds_up(uid, now),
            false => self.devices.is_waiting(uid) && !self.runs(uid),
        }
    }

    /// Returns true if no container of the pod runs and its time to wait is not over.
    fn holds_up(&self, uid: &PodUid, now: Mono) -> bool {
        let devices = &self.devices;
        devices.waiting.get(uid).is_some_and(|waiting| {
            let check = || devices.table.check(uid, &waiting.demands).err();
            let refused = self.unknown(waiting).or_else(check);
            refused.is_some_and(|why| devices.judge(&why, waiting, now) == Verdict::Wait)
        })
    }

    /// Refuses a static pod that asks for a resource which nobody here has ever offered (DEV-05).
    fn unknown(&self, waiting: &Waiting) -> Option<Refusal> {
        let unknown = self.devices.table.unregistered(&waiting.demands);
        // A node without devices is not asked for any. A cluster may count what nobody here gives.
        let gives = self.devices.plugins || self.devices.table.resources().next().is_some();
        let counts = || self.counts_others(&waiting.demands);
        unknown.filter(|_| waiting.is_static && gives && !counts())
    }

    /// Returns true if the Node has amounts of all demanded resources that are not given here.
    fn counts_others(&self, demands: &[Demand]) -> bool {
        let own = &self.devices.table;
        self.owners.node.with_admission(|node| {
            let mut others = demands.iter();
            others.all(|demand| {
                let is_own = own.resources().any(|name| name == demand.resource);
                is_own || node.allocatable.contains_key(&demand.resource)
            })
        })
    }

    /// Takes back what pods had that are no longer active (DEV-14).
    pub(super) fn release_devices(&mut self) {
        if !self.sources.are_ready() {
            return;
        }
        let (pods, view, devices) = (&self.pods, &self.view, &mut self.devices);
        let cluster = self.owners.cluster.as_ref();
        let released = devices.table.release(|uid| {
            pods.active_config(uid).is_some()
                || pods.is_arriving(uid)
                || pods.table().could_have_running_containers(uid)
                // It may run without a worker, or before it has one: deliberately, if it could not be read.
                || !view.is_idle(uid)
                || cluster.is_some_and(|cluster| cluster.is_unread(uid))
        });
        devices.waiting.retain(|uid, _| pods.is_configured(uid));
        if released {
            // A unit that is lost counted as long as somebody held it.
            self.owners.node.set_devices(self.devices.amounts());
        }
    }

    /// The machine was looked at.
    pub(super) fn on_devices(&mut self, seen: &Seen, followed: &Followed, now: Mono) {
        let changes = self.devices.report(seen, now);
        self.after_devices(changes, &followed.live, now);
        for holder in &followed.unfit {
            self.restart_for_device(holder);
            self.pods.resync(&holder.pod, now);
        }
    }

    /// The one that runs now: one that starts later has the device as it is then.
    fn restart_for_device(&mut self, holder: &Holder) {
        let is_it = |r: &Restart| r.pod == holder.pod && r.container == holder.container;
        if self.devices.restarts.iter().any(is_it) {
            self.devices.look_up_restarts(&self.view);
        }
        if self.devices.restarts.iter().any(is_it) {
            return;
        }
        self.devices.restarts.push(Restart {
            pod: holder.pod.clone(),
            container: holder.container.clone(),
            instance: None,
        });
        self.devices.look_up_restarts(&self.view);
    }

    /// A plugin says something.
    pub(super) fn on_plugin(&mut self, news: News, now: Mono) {
        let table = &mut self.devices.table;
        let mut changes = Vec::new();
        // Nothing happened to what they hold, yet their statuses say something else now.
        let mut other_health = Vec::new();
        match news {
            News::Registered { resource, prefers } => table.register(&resource, prefers),
            News::Listed { resource, units } => {
                other_health = table.in_doubt(&resource);
                changes = table.list(&resource, units);
            }
            News::Gone { resource } => {
                table.disconnect(&resource, now);
                other_health = table.in_doubt(&resource);
            }
            News::Spared { resource } => table.spare(&resource),
            News::Preferred { pod, answer } => {
                if let Some(waiting) = self.devices.waiting.get_mut(&pod) {
                    waiting.asks = false;
                    table.prefer(&pod, answer);
                    self.effects.push_back(Effect::Load(pod, Purpose::Create));
                }
                return;
            }
        }
        for uid in other_health {
            self.pods.resync(&uid, now);
        }
        self.after_devices(changes, &[], now);
    }

    /// The first of these resources that can make room for another one: no pod holds any of it, or waits for it.
    pub(in crate::agent) fn spare_resource(&self, known: &BTreeSet<Box<str>>) -> Option<Box<str>> {
        let devices = &self.devices;
        let waits = |name: &str| {
            let mut all = devices.waiting.values().flat_map(|w| &w.demands);
            all.any(|demand| demand.resource == name)
        };
        let mut known = known.iter();
        let spare = known.find(|name| devices.table.can_spare(name) && !waits(name));
        spare.cloned()
    }

    /// Time has passed.
    pub(super) fn turn_devices(&mut self, now: Mono) {
        if self.devices.next_timeout().is_some_and(|due| due <= now) {
            let changes = self.devices.table.handle_timeout(now);
            self.after_devices(changes, &[], now);
        }
    }

    /// `live`: who goes on with what it has, whatever that is now.
    fn after_devices(&mut self, changes: Vec<Change>, live: &[Holder], now: Mono) {
        for change in changes {
            self.on_device(&change, live, now);
        }
        let Devices { stuck, table, .. } = &mut self.devices;
        stuck.retain(|uid, _| table.held_by(uid).is_none() || !table.can_use(uid));
        self.owners.node.set_devices(self.devices.amounts());
        // Who waits is looked at by housekeeping.
    }

    fn on_device(&mut self, change: &Change, live: &[Holder], now: Mono) {
        let Change {
            resource,
            id,
            nodes,
            what,
            holders,
        } = change;
        let entry = self.devices.declared.entry(resource);
        let on_replug = entry.map(|e| e.on_replug).unwrap_or_default();
        // Nodes of a plugin's are not known here.
        let of_plugin = self.devices.table.is_plugins(resource);
        let shown = if nodes.is_empty() { id } else { nodes };
        // A short absence is no news (DEV-39).
        let is_told = match what {
            What::Lost => true,
            What::Back { moved, told } => *moved || *told,
        };
        for holder in holders {
            let uid = &holder.pod;
            let (severity, reason, text) = match (what, of_plugin) {
                (What::Lost, false) => (Severity::Warning, "DeviceLost", "is gone"),
                (What::Lost, true) => (Severity::Warning, "DeviceLost", "is unhealthy"),
                (What::Back { .. }, false) => (Severity::Normal, "DeviceBack", "is back"),
                (What::Back { .. }, true) => (Severity::Normal, "DeviceBack", "is healthy"),
            };
            if let Some(config) = self.pods.config(uid).filter(|_| is_told) {
                let about = About {
                    uid,
                    namespace: &config.id.name.namespace,
                    name: &config.id.name.name,
                    field_path: &format!("spec.containers{{{}}}", holder.container),
                    annotations: "",
                };
                let message = format!("Device {resource} ({shown}) {text}");
                self.tools.recorder.about(about, severity, reason, &message);
            }
            if is_told {
                log::info!("uid={uid} device {id} of {resource} ({nodes}) {text}");
            }
            let restarts = match (what, on_replug) {
                (What::Back { moved, .. }, OnReplug::IfChanged) => *moved && !live.contains(holder),
                (What::Back { .. }, OnReplug::Restart) => true,
                (What::Back { .. }, OnReplug::Leave) | (What::Lost, _) => false,
            };
            if restarts {
                self.restart_for_device(holder);
            }
            // One that waits for its device to come back is tried at once.
            self.pods.resync(uid, now);
        }
    }

    /// Instances of a pod that are to be restarted; forgotten as soon as they are not the newest any more.
    pub(super) fn instances_to_restart(&mut self, uid: &PodUid) -> Vec<ContainerId> {
        if self.devices.restarts.is_empty() {
            return Vec::new();
        }
        self.devices.look_up_restarts(&self.view);
        let all = self.devices.restarts.iter();
        let own = all.filter(|restart| restart.pod == *uid);
        own.filter_map(|restart| restart.instance.clone()).collect()
    }

    /// Holders of all devices, for metrics and the pod-resources API (DEV-17).
    pub(in crate::agent) fn holdings(&self) -> Holdings {
        let pods = self.pods.active().map(|(uid, config)| {
            let held = self.devices.table.held_by(uid);
            let held = held.map_or(&[][..], |held| held);
            let held = || held.iter().filter(|held| !held.plain_init);
            let status = self.pods.status(uid);
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
            PodHolds {
                name: String::from(&*config.id.name.name),
                namespace: String::from(&*config.id.name.namespace),
                containers: names
                    .into_iter()
                    .map(|name| (String::from(name), of(name)))
                    .collect(),
            }
        });
        let mut healthy: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for unit in self.devices.table.shown() {
            if unit.healthy {
                let ids = healthy.entry(unit.resource.into()).or_default();
                ids.push(unit.id.into());
            }
        }
        Holdings {
            pods: pods.collect(),
            healthy: healthy.into_iter().collect(),
        }
    }

    /// Every unit, for people.
    pub(in crate::agent) fn devices(&self) -> Vec<DeviceShown> {
        let holder = |holder: &Holder| {
            let pod = match self.pods.config(&holder.pod) {
                Some(config) => {
                    let name = &config.id.name;
                    format!("{}/{}", name.namespace, name.name)
                }
                None => holder.pod.to_string(),
            };
            format!("{pod}/{}", holder.container)
        };
        let all = self.devices.table.shown().into_iter();
        all.map(|unit| DeviceShown {
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
