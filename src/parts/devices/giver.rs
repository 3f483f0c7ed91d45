//! Devices of the machine, looked at on the disk lane; what plugins give of theirs; and the records of who holds which, beside
//! the pods' own: `<root>/pods/<uid>/devices.json`.
//!
//! None of it is there where no device is declared, and no plugin may come.

use alloc::{collections::BTreeSet, rc::Rc, sync::Arc};
use core::time::Duration;
use std::io;

use serde::{Deserialize, Serialize};
use smol::LocalExecutor;

use super::{
    config::DeviceConfig,
    holders::DeviceHolders,
    machine::{DeviceMachine, LiveNodes, plugin},
    news::{DeviceLoop, DeviceNews, DevicesAtStart},
    plugin_registry::PluginRegistry,
    plugins::{DevicePluginError, DevicePlugins},
    watch::DeviceWatch,
};
use crate::{
    agent::{
        asker::AgentHandle,
        clock::Clock,
        complaints::Complaints,
        node_resources::{
            AllocationError, ContainerAllocation, NodeResources, ResourceFuture, ResourceGiver,
            ResourceTools, ResourcesNotReady,
        },
        pod_store::PodStore,
        tasks::{AgentTask, box_task},
    },
    api::{
        MonoTime, PodError, PodUid,
        cri::LiveDevices,
        device::{LiveDeviceRecord, MachineDevices, PluginAllocation},
        strict::from_json,
    },
    cgroup::Cgroups,
    logic::{
        devices::{
            DeclaredDevices, GivenDevices, HeldUnitsAnswer, LiveUnits, PreferenceQuestion,
            UnitHolder, compute_given_devices, compute_live_nodes, merge_answers,
        },
        extended_resources::HeldUnits,
        fnv::fnv1a,
    },
    server::backend::AgentCheck,
    sys::lane::Lane,
};

/// Version of the records' form.
const VERSION: u32 = 1;
/// Bytes of a record: what a pod of a hundred containers can hold.
const MAX_BYTES: u64 = 256 << 10;

/// Looks at devices, and speaks with plugins.
pub(crate) struct DeviceGiver {
    /// Devices that the configuration declares.
    pub(crate) declared: Arc<DeclaredDevices>,
    /// Time for which a pod of the apiserver waits for a device.
    pub(crate) wait: Duration,
    /// The machine to search.
    pub(crate) machine: Arc<dyn DeviceMachine>,
    /// Plugins, if they may come.
    pub(crate) plugins: Option<Rc<DevicePlugins>>,
    /// Records.
    pub(crate) store: PodStore,
    /// Nodes that come and go in containers, and the control groups that are told.
    pub(crate) live: LiveNodes,
    pub(crate) cgroups: Arc<Cgroups>,
    /// For looks, and records: they block.
    pub(crate) disk: Lane,
    pub(crate) clock: Rc<dyn Clock>,
    pub(crate) complaints: Rc<Complaints>,
    /// Set if signs of the kernel are waited for.
    pub(crate) doorbells: bool,
}

impl From<PodError> for AllocationError {
    fn from(e: PodError) -> Self {
        Self::Create(e.to_string())
    }
}

impl From<DevicePluginError> for ResourcesNotReady {
    fn from(e: DevicePluginError) -> Self {
        Self(e.to_string())
    }
}

impl ResourceGiver for DeviceGiver {
    fn make_node_resources(self: Rc<Self>, now: MonoTime) -> Box<dyn NodeResources> {
        let beginning = self.find_devices_at_start();
        Box::new(DeviceHolders::new(self, beginning, now))
    }

    /// Watches devices come and go, if any is declared.
    fn resource_giver_tasks(self: Rc<Self>, agent: AgentHandle) -> Vec<AgentTask> {
        if self.declared.entries.is_empty() {
            return Vec::new();
        }
        let watch = DeviceWatch {
            clock: Rc::clone(&self.clock),
            doorbell: self.doorbells,
            devices: self,
            agent,
        };
        vec![box_task(watch.watch_devices())]
    }

    /// Serves registrations of device plugins and the pod-resources API, if plugins may come.
    fn open_resource_servers(
        self: Rc<Self>,
        agent: AgentHandle,
        executor: &Rc<LocalExecutor<'static>>,
    ) -> io::Result<Vec<AgentTask>> {
        let Some(plugins) = self.plugins.clone() else {
            return Ok(Vec::new());
        };
        let named = |e: io::Error| io::Error::new(e.kind(), format!("picolet.devicePlugins: {e}"));
        let [of_plugins, of_readers] = plugins.open_listeners().map_err(named)?;
        let agent = DeviceLoop(agent);
        let of_agent = agent.clone();
        let tell = Rc::clone(&plugins).serve_holdings(of_readers, Rc::clone(executor), of_agent);
        let registry = PluginRegistry {
            dir: plugins.registry_dir(),
            plugins: Rc::clone(&plugins),
            declared: Arc::clone(&self.declared),
            agent: agent.clone(),
            executor: Rc::clone(executor),
            clock: Rc::clone(&self.clock),
            disk: self.disk.clone(),
            complaints: Rc::clone(&self.complaints),
            doorbell: self.doorbells,
        };
        let serve = plugins.serve_registrations(of_plugins, Rc::clone(executor), agent);
        Ok(vec![
            box_task(serve),
            box_task(tell),
            box_task(registry.run_registry()),
        ])
    }

    fn settle_held_devices<'a>(
        &'a self,
        pod: &'a PodUid,
        held: &'a [HeldUnits],
    ) -> ResourceFuture<'a, Result<(), ResourcesNotReady>> {
        Box::pin(self.settle_devices(pod, held))
    }

    fn gather_allocation<'a>(
        &'a self,
        pod: &'a PodUid,
        held: &'a [HeldUnits],
        container: &'a str,
    ) -> ResourceFuture<'a, Result<ContainerAllocation, AllocationError>> {
        Box::pin(self.gather_container_devices(pod, held, container))
    }

    fn health_checks(&self) -> Vec<AgentCheck> {
        let plugins = self.plugins.iter().map(|plugins| AgentCheck {
            name: "device-plugin",
            trouble: plugins.registration_trouble(),
        });
        plugins.collect()
    }
}

impl DeviceGiver {
    /// Makes the giver of these devices. Reads what plugins offered to an agent before this one. Blocking.
    pub(super) fn new(
        cfg: &DeviceConfig,
        machine: Arc<dyn DeviceMachine>,
        tools: &ResourceTools<'_>,
    ) -> Self {
        let clock = || Rc::clone(tools.clock);
        let complaints = || Rc::clone(tools.complaints);
        let plugins = cfg.plugins.clone().map(|dir| {
            Rc::new(DevicePlugins::new(
                dir,
                &tools.dirs.root,
                Arc::clone(&cfg.declared),
                clock(),
                tools.disk.clone(),
                complaints(),
                tools.counters.clone(),
            ))
        });
        Self {
            declared: Arc::clone(&cfg.declared),
            wait: cfg.wait,
            machine,
            plugins,
            store: tools.store.clone(),
            live: LiveNodes::new(&tools.dirs.run),
            cgroups: Arc::clone(tools.cgroups),
            disk: tools.disk.clone(),
            clock: clock(),
            complaints: complaints(),
            doorbells: tools.doorbells,
        }
    }
}

impl DeviceGiver {
    /// Finds the devices that are present before the first pod is admitted (DEV-12, DEV-38). Blocking.
    fn find_devices_at_start(&self) -> DevicesAtStart {
        let held = self.store.recorded_pods().into_iter();
        let offered = self
            .plugins
            .as_ref()
            .map(|plugins| plugins.known_resources());
        DevicesAtStart {
            seen: match self.declared.entries.is_empty() {
                true => MachineDevices::default(),
                false => self.machine.find_devices(&*self.declared),
            },
            held: held
                .filter_map(|uid| Some((read_device_record(&self.store, &uid)?.devices, uid)))
                .map(|(held, uid)| (uid, held))
                .collect(),
            offered: offered.unwrap_or_default(),
        }
    }

    /// Searches the machine for devices.
    pub(crate) async fn find_devices(&self) -> MachineDevices {
        let (declared, machine) = (Arc::clone(&self.declared), Arc::clone(&self.machine));
        self.disk
            .run_job(move || machine.find_devices(&*declared))
            .await
    }

    /// Asks a plugin for the units that it would choose.
    pub(crate) async fn ask_preferred_units(
        &self,
        pod: PodUid,
        question: PreferenceQuestion,
    ) -> Option<DeviceNews> {
        let answer = self.plugins.as_ref()?.ask_preferred_units(question).await;
        Some(DeviceNews::Preferred { pod, answer })
    }

    /// Keeps what a pod holds before anything of it starts (DEV-12), with what plugins say that its containers get for it
    /// (DEV-05): each is asked once for a container, also if another one does not answer.
    ///
    /// - Errors: that cannot be kept, or a plugin does not answer. It is tried again.
    async fn settle_devices(
        &self,
        uid: &PodUid,
        held: &[HeldUnits],
    ) -> Result<(), ResourcesNotReady> {
        let (store, of) = (self.store.clone(), uid.clone());
        let kept = self
            .disk
            .run_job(move || read_device_record(&store, &of))
            .await;
        let mut kept = kept.unwrap_or_default();
        let ask = async |held: &HeldUnits| {
            self.enabled_plugins()?
                .allocate(&held.resource, &held.ids)
                .await
        };
        let (answers_differ, answered) = complete_answers(&mut kept.answers, held, ask).await;
        if answers_differ || kept.devices != held {
            kept.v = VERSION;
            kept.devices = held.to_vec();
            let (store, uid) = (self.store.clone(), uid.clone());
            let recorded = self
                .disk
                .run_job(move || keep_device_record(&store, &uid, &kept))
                .await;
            recorded.map_err(|e| {
                ResourcesNotReady(format!("cannot record the devices of the pod: {e}"))
            })?;
        }
        Ok(answered?)
    }

    fn enabled_plugins(&self) -> Result<&DevicePlugins, DevicePluginError> {
        self.plugins.as_deref().ok_or(DevicePluginError::Off)
    }

    /// Gathers what a container that is about to start gets for the devices of its pod: units as they are now (DEV-41),
    /// and answers of plugins (DEV-09). Tells plugins that want to know of the start (DEV-10).
    async fn gather_container_devices(
        &self,
        uid: &PodUid,
        held: &[HeldUnits],
        container: &str,
    ) -> Result<ContainerAllocation, AllocationError> {
        let own = || held.iter().filter(|held| *held.container == *container);
        let mut all = GivenDevices::default();
        if own().any(|held| !held.plugin) {
            all =
                compute_given_devices(&self.declared, &self.find_devices().await, held, container)?;
        }
        let mut answers = Vec::new();
        if own().any(|held| held.plugin) {
            let (store, uid) = (self.store.clone(), uid.clone());
            let kept = self
                .disk
                .run_job(move || read_device_record(&store, &uid))
                .await;
            let kept = kept.unwrap_or_default().answers;
            for held in own().filter(|held| held.plugin) {
                let answered = kept.iter().find(|answered| is_for(answered, held));
                let resource = &held.resource;
                let answered = answered.cloned().ok_or_else(|| {
                    let text = format!("what its plugin gives for {resource} is not known");
                    AllocationError::Create(text)
                })?;
                answers.push(answered);
            }
        }
        for answered in &mut answers {
            let told = self.tell_container_start(answered).await;
            told.map_err(|e| AllocationError::PreStart(e.to_string()))?;
            let named = core::mem::take(&mut answered.answer.nodes);
            let nodes = self
                .disk
                .run_job(move || plugin::find_plugin_nodes(named))
                .await;
            answered.answer.nodes = nodes.map_err(|e| AllocationError::Create(e.to_string()))?;
        }
        let live = self
            .put_live_nodes(uid, container, core::mem::take(&mut all.live))
            .await?;
        merge_answers(&mut all, answers);
        Ok(ContainerAllocation {
            nodes: all.nodes,
            env: all.env,
            mounts: all.mounts,
            annotations: all.annotations,
            cdi_devices: all.cdi_devices,
            live,
        })
    }

    /// Puts nodes that come and go where the container will have them (DEV-44).
    async fn put_live_nodes(
        &self,
        uid: &PodUid,
        container: &str,
        all: Vec<LiveUnits>,
    ) -> Result<Vec<LiveDevices>, AllocationError> {
        let mut put = Vec::new();
        for LiveUnits {
            resource,
            ids,
            container_path,
            permissions,
            gid,
            nodes,
        } in all
        {
            let majors: BTreeSet<_> = nodes.iter().map(|node| (node.block, node.major)).collect();
            let record = LiveDeviceRecord {
                majors: majors.into_iter().collect(),
                resource,
                ids,
                permissions: permissions.clone(),
            };
            let majors = record.majors.clone();
            let (live, uid, container) = (self.live.clone(), uid.clone(), container.to_owned());
            let begin = move || {
                let name = format!("{:016x}", fnv1a(record.resource.bytes()));
                live.make_container_nodes(&uid, &container, &name, &record, &nodes)
            };
            let at = self.disk.run_job(begin).await.map_err(|e| {
                let text = format!("cannot put device nodes for {container_path}: {e}");
                AllocationError::Create(text)
            })?;
            put.push(LiveDevices {
                host_path: at.display().to_string(),
                container_path,
                permissions,
                majors,
                gid,
            });
        }
        Ok(put)
    }

    /// Lets containers that run have the nodes that are here, of units that they hold (DEV-44).
    pub(crate) async fn update_live_containers(&self, seen: &MachineDevices) -> FollowedContainers {
        let (declared, seen) = (Arc::clone(&self.declared), seen.clone());
        let (store, live, cgroups) = (
            self.store.clone(),
            self.live.clone(),
            Arc::clone(&self.cgroups),
        );
        let follow = move || update_live_nodes(&declared, &store, (&live, &cgroups), &seen);
        self.disk.run_job(follow).await
    }

    /// A container that holds this is about to start. Whether its plugin wants to know it says when it registers; while it is
    /// away what it said when it was asked counts.
    async fn tell_container_start(
        &self,
        answered: &HeldUnitsAnswer,
    ) -> Result<(), DevicePluginError> {
        let plugins = match self.enabled_plugins() {
            Ok(plugins) => plugins,
            Err(e) if answered.pre_start => return Err(e),
            Err(_) => return Ok(()),
        };
        let wants = plugins.wants_starts(&answered.resource);
        if wants.unwrap_or(answered.pre_start) {
            let told = plugins.pre_start(&answered.resource, &answered.ids);
            told.await?;
        }
        Ok(())
    }
}

/// Containers that have nodes that come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FollowedContainers {
    /// All of them: they go on whatever their devices are now.
    pub(crate) live: Vec<UnitHolder>,
    /// Containers that cannot go on: they cannot use their device as it is now.
    pub(crate) unfit: Vec<UnitHolder>,
    /// Errors, for people.
    pub(crate) wrong: Vec<String>,
}

/// Blocking.
fn update_live_nodes(
    declared: &DeclaredDevices,
    store: &PodStore,
    (live, cgroups): (&LiveNodes, &Cgroups),
    seen: &MachineDevices,
) -> FollowedContainers {
    let mut followed = FollowedContainers::default();
    let pods: BTreeSet<PodUid> = match store.all_recorded_pods() {
        Ok(pods) => pods.into_iter().collect(),
        // Nobody's is removed then.
        Err(e) => {
            followed.wrong.push(format!("directories of pods: {e}"));
            return followed;
        }
    };
    for kept in live.read_kept_nodes(|uid| pods.contains(uid), &mut followed.wrong) {
        let now = kept
            .records
            .iter()
            .map(|record| compute_live_nodes(declared, seen, record));
        // What is no longer declared is left as it is.
        let Some(now) = now.collect::<Option<Vec<_>>>() else {
            continue;
        };
        let holder = UnitHolder {
            pod: kept.pod.clone(),
            container: kept.container.clone(),
        };
        if now.iter().any(|now| now.restart) {
            followed.unfit.push(holder.clone());
        }
        followed.live.push(holder);
        let nodes: Vec<_> = now.into_iter().map(|now| now.nodes).collect();
        if let Err(e) = live.update_container_nodes(&kept, &nodes, cgroups) {
            followed.wrong.push(e.to_string());
        }
    }
    followed
}

/// Drops answers for what is not `held` any more, and asks for those that are missing, until one does not come. Returns
/// whether they differ from before, and why one did not come.
async fn complete_answers(
    answers: &mut Vec<HeldUnitsAnswer>,
    held: &[HeldUnits],
    ask: impl AsyncFn(&HeldUnits) -> Result<(PluginAllocation, bool), DevicePluginError>,
) -> (bool, Result<(), DevicePluginError>) {
    let before = answers.len();
    let of_plugins = || held.iter().filter(|held| held.plugin);
    answers.retain(|answered| of_plugins().any(|held| is_for(answered, held)));
    let mut differ = answers.len() != before;
    for held in of_plugins() {
        if answers.iter().any(|answered| is_for(answered, held)) {
            continue;
        }
        let (answer, pre_start) = match ask(held).await {
            Ok(said) => said,
            Err(e) => return (differ, Err(e)),
        };
        answers.push(HeldUnitsAnswer {
            container: held.container.clone(),
            resource: held.resource.clone(),
            ids: held.ids.clone(),
            pre_start,
            answer,
        });
        differ = true;
    }
    (differ, Ok(()))
}

fn is_for(answered: &HeldUnitsAnswer, held: &HeldUnits) -> bool {
    answered.container == held.container
        && answered.resource == held.resource
        && answered.ids == held.ids
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct DeviceRecord {
    v: u32,
    devices: Vec<HeldUnits>,
    /// Answers of plugins for these units.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    answers: Vec<HeldUnitsAnswer>,
}

/// Keeps what a pod holds. Durable: no other pod may get it after a power cut. Blocking.
fn keep_device_record(store: &PodStore, uid: &PodUid, kept: &DeviceRecord) -> io::Result<()> {
    let text = serde_json::to_vec(kept)?;
    if u64::try_from(text.len()).is_ok_and(|len| len > MAX_BYTES) {
        let text = format!("more than {MAX_BYTES} bytes");
        return Err(io::Error::other(text));
    }
    store.keep_devices(uid, &text)
}

/// A damaged record counts as none: what runs goes on, and what starts asks anew.
fn read_device_record(store: &PodStore, uid: &PodUid) -> Option<DeviceRecord> {
    let text = store.read_devices(uid, MAX_BYTES)?;
    let kept: DeviceRecord = from_json(&text)
        .inspect_err(|e| log::warn!("uid={uid} its record of devices is unusable: {e}"))
        .ok()?;
    if kept.v != VERSION {
        let v = kept.v;
        log::warn!("uid={uid} its record of devices is of version {v}, this agent reads {VERSION}");
        return None;
    }
    Some(kept)
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;

    use super::*;

    #[test]
    fn each_is_asked_once() {
        // DEV-05
        let held = |resource: &str, plugin| HeldUnits {
            container: "c".into(),
            resource: resource.into(),
            ids: vec!["1".into()],
            plain_init: false,
            plugin,
        };
        let all = [held("a/x", true), held("b/x", true), held("own/x", false)];
        let asked = RefCell::new(Vec::new());
        let mut answers = Vec::new();
        // One does not answer, later it does.
        for (answers_b, differ, settled) in [
            (false, true, false),
            (false, false, false),
            (true, true, true),
        ] {
            let ask = async |held: &HeldUnits| {
                asked.borrow_mut().push(held.resource.to_string());
                match &*held.resource == "b/x" && !answers_b {
                    true => Err(DevicePluginError::Off),
                    false => Ok((PluginAllocation::default(), false)),
                }
            };
            let done = smol::future::block_on(complete_answers(&mut answers, &all, ask));
            assert_eq!((done.0, done.1.is_ok()), (differ, settled));
        }
        assert_eq!(asked.take(), ["a/x", "b/x", "b/x", "b/x"]);
        assert_eq!(answers.len(), 2);
        // What is not held any more is forgotten.
        let none = async |_: &HeldUnits| Err(DevicePluginError::Off);
        let done = smol::future::block_on(complete_answers(&mut answers, &all[1..], none));
        assert!(done.0 && done.1.is_ok());
        assert_eq!(answers.len(), 1);
    }

    #[test]
    fn records_come_back() {
        // DEV-11 DEV-12
        let root = crate::testing::unused_path("held");
        let store = PodStore::new(&root, &root.join("run"), "boot");
        let uid = PodUid::from("a");
        std::fs::create_dir_all(store.pod_dir(&uid)).expect("directory");
        assert_eq!(read_device_record(&store, &uid), None);
        let held = |id: &str| DeviceRecord {
            v: VERSION,
            devices: vec![HeldUnits {
                container: "c".into(),
                resource: "picolet/x".into(),
                ids: vec![id.into()],
                plain_init: false,
                plugin: true,
            }],
            answers: vec![HeldUnitsAnswer {
                container: "c".into(),
                resource: "picolet/x".into(),
                ids: vec![id.into()],
                pre_start: true,
                answer: PluginAllocation {
                    cdi_devices: vec!["a/b=c".into()],
                    ..PluginAllocation::default()
                },
            }],
        };
        for id in ["1", "2", "2"] {
            keep_device_record(&store, &uid, &held(id)).expect("kept");
            assert_eq!(read_device_record(&store, &uid), Some(held(id)));
        }
        assert_eq!(store.recorded_pods(), core::slice::from_ref(&uid));
        let path = store.pod_dir(&uid).join("devices.json");
        // As it was before there were plugins.
        let old =
            r#"{"v":1,"devices":[{"container":"c","resource":"r","ids":["1"],"plainInit":false}]}"#;
        std::fs::write(&path, old).expect("written");
        let kept = read_device_record(&store, &uid).expect("read");
        assert!(!kept.devices[0].plugin && kept.answers.is_empty());
        assert_eq!(serde_json::to_string(&kept).expect("text"), old);
        for text in ["", "{}", "{\"v\":2,\"devices\":[]}"] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(read_device_record(&store, &uid), None, "{text}");
        }
        let mut large = held("1");
        large.devices[0].ids = vec!["x".repeat(63).into(); 5000];
        let refused = keep_device_record(&store, &uid, &large).expect_err("too large");
        assert_eq!(refused.to_string(), "more than 262144 bytes");
        std::fs::remove_dir_all(root).expect("clean");
    }
}
