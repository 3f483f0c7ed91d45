//! The agent as the local server and the node's server see it.

use alloc::rc::Rc;
use core::time::Duration;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{
    asker::AgentHandle,
    checkpoints::CheckpointArchives,
    clock::Clock,
    complaints::Complaints,
    core::{Agent, AgentCommand},
    eviction::Evictor,
    external_pods::ExternalPods,
    images::ImageCommands,
    link_limits::LinkLimits,
    link_policy::LinkPolicy,
    metrics::Metrics,
    node::{self, LocalNode},
    node_resources::ResourceGiver,
    pod_store::PodStore,
    recorder::EventRecorder,
    removed::RemovedPods,
    times::DateCorrector,
    vitals::{HeapUse, LoopWatch},
};
use crate::api::order::OrderExt;
use crate::api::strict;
use crate::{
    api::{
        self, Container, ContainerId, Event, MonoTime, Pod, PodUid, WallTime,
        cri::{ContainerState, PodRuntimeStatus, StoredImage},
        health::AgentHealth,
        pod::CONFIG_SEEN,
        pod_status::ContainerStatus,
    },
    image::{ImageProgress, StoreVerification},
    logic::{
        eviction::{self, EvictionSignal, MeasureScope, MetThreshold},
        pod_kind, static_pod,
    },
    net::meter,
    parts::ConfiguredPart,
    runtime::{RuntimeCall, RuntimeService},
    server::{
        backend::{
            AgentCheck, BackendReply, DeviceReport, EvictionCandidateReport, IncomingText,
            LinkReport, LogTarget, MetricsEndpoint, PodName, PressureReport, PressureSignalReport,
            RunningPod, ServerBackend, TextPieces, Uptime,
        },
        http::Refusal,
        log_reader::LogOptions,
    },
    shim::held_log_path,
    sys::{file, lane::Lane},
};

/// Annotation of `kubectl` that names a pod's default container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Settings and handles that do not change while the agent runs.
pub(super) struct LocalBackendSettings {
    /// The configuration in force, as JSON.
    pub(super) document: String,
    /// Run directory, gone at reboot.
    pub(super) run_dir: PathBuf,
    /// Longest time without traffic on a stream.
    pub(super) streaming_idle: Duration,
    /// Time of the agent's start, by the wall clock.
    pub(super) started_at: WallTime,
    /// Creation time of a Node that no apiserver has.
    pub(super) node_made_at: WallTime,
    /// Time of the agent's start, by the monotonic clock.
    pub(super) started: MonoTime,
    /// Kubelet version that the Node shows.
    pub(super) kubelet_version: String,
    /// Pods whose logs are not here.
    pub(super) external: Option<Rc<dyn ExternalPods>>,
    /// Archives of checkpoints.
    pub(super) checkpoints: CheckpointArchives,
    /// Policy of the link.
    pub(super) link_policy: Rc<dyn LinkPolicy>,
    /// Limits of the link, if there are any.
    pub(super) link_limits: Option<Rc<LinkLimits>>,
    /// Parts that are configured.
    pub(super) parts: Vec<Rc<dyn ConfiguredPart>>,
    /// History of the wall clock.
    pub(super) times: Rc<DateCorrector>,
    /// Watch on the loop: tells if it moves.
    pub(super) loop_watch: LoopWatch,
    /// Giver of extended resources, if there is one.
    pub(super) resources: Option<Rc<dyn ResourceGiver>>,
}

/// Earliest creation time of a Node that is believed: 2024-01-01. Boards without a battery make directories in 1970.
const EARLIEST_NODE: WallTime = WallTime::from_unix_seconds(1_704_067_200);

/// Finds the creation time of a Node that no apiserver has: that of the root directory, which the first agent made. The start
/// of this agent is the time if the file system does not say, or if the clock was wrong then.
pub(super) fn find_node_age(root: &Path, started_at: WallTime) -> WallTime {
    let made = file::birth_time_ns(root).map(WallTime);
    let is_believed = |made: &WallTime| (EARLIEST_NODE..started_at).contains(made);
    made.filter(is_believed).unwrap_or(started_at)
}

/// Serves the local commands and the node's server.
pub(super) struct LocalBackend {
    /// The agent.
    pub(super) agent: AgentHandle,
    /// Kubernetes events.
    pub(super) recorder: Rc<EventRecorder>,
    /// The Node object.
    pub(super) node: Rc<LocalNode>,
    /// Figures.
    pub(super) metrics: Metrics,
    /// Records of pods.
    pub(super) store: PodStore,
    /// Time.
    pub(super) clock: Rc<dyn Clock>,
    /// Runtime, for streams and pulls under way.
    pub(super) runtime: Rc<dyn RuntimeService>,
    /// Lane on which files are read.
    pub(super) disk: Lane,
    /// Commands on images.
    pub(super) images: ImageCommands,
    /// Measures pods.
    pub(super) evictor: Evictor,
    /// Told of answers that may be large.
    pub(super) heap: HeapUse,
    /// Times at which pods were first shown without a manifest.
    pub(super) removed: RemovedPods,
    /// Warnings about things that cannot be shown.
    pub(super) complaints: Rc<Complaints>,
    /// To the loop, for requests that only the loop can fulfil.
    pub(super) commands: smol::channel::Sender<AgentCommand>,
    /// Settings and handles that do not change.
    pub(super) settings: LocalBackendSettings,
}

/// Returns the time so long ago, in whole seconds.
fn wall_time_before(wall: WallTime, ago: Duration) -> WallTime {
    let ago = i64::try_from(ago.as_nanos()).unwrap_or(i64::MAX);
    WallTime(wall.0.saturating_sub(ago)).truncated_to_second()
}

impl LocalBackend {
    /// Reads the pod as it was received; `None`: its record cannot be read.
    async fn read_pod_record(&self, uid: &PodUid) -> Option<Value> {
        let (store, uid) = (self.store.clone(), uid.clone());
        let read = self
            .disk
            .run_job(move || store.read_record::<Value>(&uid))
            .await;
        read.ok().map(|(_, raw)| raw)
    }

    /// Reads the namespace and name of a pod that has no worker.
    async fn recorded_name(&self, uid: &PodUid) -> Option<(Box<str>, Box<str>)> {
        let raw = self.read_pod_record(uid).await?;
        let text = |key: &str| raw["metadata"][key].as_str().unwrap_or("").into();
        Some((text("namespace"), text("name")))
    }

    /// Makes the pod as a Kubernetes object: the object that was received, defaults filled in, and the local status.
    async fn make_pod_object(&self, uid: &PodUid) -> Option<Value> {
        let raw = self.read_pod_record(uid).await?;
        let mut pod = static_pod::decode_recorded_pod(&raw).ok()?;
        let of = uid.clone();
        let shown = self.agent.ask_agent(move |agent| agent.shown_status(&of));
        let (status, is_configured) = shown.await;
        if let Some(status) = status {
            pod.status = status;
        }
        let mut object = strict::to_value(&pod).ok()?;
        overlay_json(&mut object, raw);
        object["apiVersion"] = "v1".into();
        object["kind"] = "Pod".into();
        object["status"] = strict::to_value(&pod.status).ok()?;
        self.add_pull_progress(&pod, &mut object["status"]);
        let seen = pod
            .metadata
            .annotations
            .get(CONFIG_SEEN)
            .and_then(|t| WallTime::parse(t));
        let meta = &mut object["metadata"];
        if pod.metadata.creation_timestamp.is_none()
            && let Some(seen) = seen
        {
            meta["creationTimestamp"] = seen.to_string().into();
        }
        if is_configured {
            self.removed.note_returned(uid);
        } else if pod.metadata.deletion_timestamp.is_none() {
            // The pod's manifest is gone and the pod still ends: kubectl shows `Terminating` if this field is set.
            let now = self.clock.now();
            let at = wall_time_before(
                self.clock.wall_time(),
                now - self.removed.shown_since(uid, now),
            );
            meta["deletionTimestamp"] = at.to_string().into();
        }
        Some(object)
    }

    /// Adds the progress of a pull to containers that wait for an image, their own or a volume's. It is only shown
    /// here: no status is written for it.
    fn add_pull_progress(&self, pod: &Pod, status: &mut Value) {
        for list in ["initContainerStatuses", "containerStatuses"] {
            let Some(containers) = status.get_mut(list).and_then(Value::as_array_mut) else {
                continue;
            };
            for container in containers {
                let named = |c: &&Container| container["name"] == *c.name;
                let mut all = pod.spec.all_containers();
                let waits = all.find(named);
                let under_way = waits.and_then(|c| self.images.images.pull_progress(pod, c));
                let Some((image, progress)) = under_way else {
                    continue;
                };
                append_progress(container, image, &progress);
            }
        }
    }

    /// Finds the pod of that name, with its local status.
    pub(super) async fn find_pod(&self, namespace: &str, name: &str) -> Result<Pod, Refusal> {
        let mut found: Option<Pod> = None;
        let (space, named) = (namespace.to_owned(), name.to_owned());
        let candidates = self.agent.ask_agent(move |agent| {
            let mut uids = agent.shown_pods();
            // A worker knows its pod's name; only for pods without a worker the record must be read.
            uids.retain(|uid| agent.is_pod_named(uid, &space, &named) != Some(false));
            uids
        });
        for uid in candidates.await {
            let Some(raw) = self.read_pod_record(&uid).await else {
                continue;
            };
            let Ok(mut pod) = static_pod::decode_recorded_pod(&raw) else {
                continue;
            };
            if pod.metadata.namespace != namespace || pod.metadata.name != name {
                continue;
            }
            let shown = self.agent.ask_agent(move |agent| agent.shown_status(&uid));
            let (status, is_configured) = shown.await;
            pod.status = status.unwrap_or_default();
            // A successor of the same name counts before the pod that still ends.
            if is_configured {
                return Ok(pod);
            }
            found.get_or_insert(pod);
        }
        found.ok_or_else(|| Refusal::not_found(format!("pods \"{name}\" not found")))
    }

    /// Reads the last runtime status of a pod: an empty status if the runtime does not know the pod.
    pub(super) async fn runtime_status(&self, pod: &Pod) -> Result<Rc<PodRuntimeStatus>, Refusal> {
        let uid = pod.metadata.uid.clone();
        self.agent
            .ask_agent(move |agent| agent.pod_runtime_status(&uid))
            .await
            .map_err(|e| Refusal::new(500, format!("error determining status: {e}")))
    }

    /// Returns the container asked for, or the default one.
    pub(super) fn resolve_container_name(pod: &Pod, asked: &str) -> Result<String, Refusal> {
        if !asked.is_empty() {
            if pod.spec.all_containers().any(|c| c.name == asked) {
                return Ok(asked.to_owned());
            }
            return Err(Refusal::bad_request(format!(
                "container {asked} is not valid for pod {}",
                pod.metadata.name
            )));
        }
        let annotated = pod.metadata.annotations.get(DEFAULT_CONTAINER);
        let named = annotated.filter(|name| pod.spec.all_containers().any(|c| c.name == **name));
        let first = pod.spec.containers.first().map(|c| &c.name);
        named
            .or(first)
            .cloned()
            .ok_or_else(|| Refusal::bad_request("the pod has no containers"))
    }
}

/// Lays `over` onto `base`: objects key by key, lists of one length item by item, everything else is replaced.
fn overlay_json(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                overlay_json(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(base), Value::Array(over)) if base.len() == over.len() => {
            for (base, over) in base.iter_mut().zip(over) {
                overlay_json(base, over);
            }
        }
        (base, over) => *base = over,
    }
}

fn find_container_status<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = &pod.status;
    status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .chain(&status.ephemeral_container_statuses)
        .find(|c| c.name == container)
}

/// Chooses the container instance whose log is meant (LOG-05).
fn choose_log_instance(
    status: &ContainerStatus,
    pod: &str,
    previous: bool,
) -> Result<ContainerId, Refusal> {
    let bare = |id: &str| ContainerId::from(id.split_once("://").map_or(id, |(_, id)| id));
    let name = &status.name;
    let last = status
        .last_state
        .terminated
        .as_ref()
        .filter(|t| !t.container_id.is_empty());
    if previous {
        return last.map(|t| bare(&t.container_id)).ok_or_else(|| {
            Refusal::bad_request(format!(
                "previous terminated container \"{name}\" in pod \"{pod}\" not found"
            ))
        });
    }
    if status.state.running.is_some() {
        return Ok(bare(&status.container_id));
    }
    if let Some(ended) = &status.state.terminated {
        let own = Some(&ended.container_id).filter(|id| !id.is_empty());
        let id = own.or_else(|| last.map(|t| &t.container_id));
        return id.map(|id| bare(id)).ok_or_else(|| {
            Refusal::bad_request(format!(
                "container \"{name}\" in pod \"{pod}\" is terminated"
            ))
        });
    }
    if let Some(last) = last {
        return Ok(bare(&last.container_id));
    }
    let waiting = status.state.waiting.as_ref();
    let reason = waiting.map_or("ContainerCreating", |w| w.reason.as_str());
    Err(Refusal::bad_request(match reason {
        "ErrImagePull" => {
            format!(
                "container \"{name}\" in pod \"{pod}\" is waiting to start: image can't be pulled"
            )
        }
        "ImagePullBackOff" => {
            format!(
                "container \"{name}\" in pod \"{pod}\" is waiting to start: trying and failing to pull image"
            )
        }
        _ => format!("container \"{name}\" in pod \"{pod}\" is waiting to start: {reason}"),
    }))
}

impl ServerBackend for LocalBackend {
    fn disk_lane(&self) -> &Lane {
        &self.disk
    }

    fn pod_uids<'a>(&'a self, namespace: Option<&'a str>) -> BackendReply<'a, Vec<PodUid>> {
        Box::pin(async move {
            self.heap.note_heap_use();
            let named = self.agent.ask_agent(|agent| {
                let named = |uid: PodUid| (agent.pod_name(&uid), uid);
                agent
                    .shown_pods()
                    .into_iter()
                    .map(named)
                    .collect::<Vec<_>>()
            });
            let named = named.await;
            self.removed
                .retain_shown(|uid| named.iter().any(|(_, shown)| shown == uid));
            let mut pods = Vec::new();
            for (name, uid) in named {
                // The name of a pod without a worker is in its record.
                let name = match name {
                    Some(name) => Some(name),
                    None => self.recorded_name(&uid).await,
                };
                let Some((space, name)) = name else { continue };
                if namespace.is_none_or(|n| *space == *n) {
                    pods.push((space, name, uid));
                }
            }
            pods.stable_sort();
            Ok(pods.into_iter().map(|(_, _, uid)| uid).collect())
        })
    }

    fn pod_object<'a>(&'a self, uid: &'a PodUid) -> BackendReply<'a, Option<Value>> {
        Box::pin(async { Ok(self.make_pod_object(uid).await) })
    }

    fn uptime(&self) -> Uptime {
        Uptime {
            since: self.settings.started_at,
            up: self.clock.now() - self.settings.started,
            kubelet_version: self.settings.kubelet_version.clone(),
        }
    }

    fn running_pods(&self) -> BackendReply<'_, Vec<RunningPod>> {
        Box::pin(async {
            let pods = self.agent.ask_agent(Agent::runtime_statuses).await;
            let running = pods.iter().map(|pod| {
                let containers = pod.containers.iter();
                let running = containers.filter(|c| c.state == ContainerState::Running);
                RunningPod {
                    name: pod.name.clone(),
                    namespace: pod.namespace.clone(),
                    uid: pod.uid.clone(),
                    containers: running.map(|c| (c.name.clone(), c.image.clone())).collect(),
                }
            });
            Ok(running.filter(|pod| !pod.containers.is_empty()).collect())
        })
    }

    fn container_names<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
    ) -> BackendReply<'a, Vec<String>> {
        Box::pin(async move {
            let pod = self.find_pod(namespace, pod).await?;
            Ok(pod.spec.all_containers().map(|c| c.name.clone()).collect())
        })
    }

    fn checkpoint_container<'a>(
        &'a self,
        pod: PodName<'a>,
        container: &'a str,
        timeout: Duration,
    ) -> RuntimeCall<'a, String> {
        Box::pin(self.make_checkpoint(pod, container, timeout, self.clock.wall_time()))
    }

    fn configuration(&self) -> &str {
        &self.settings.document
    }

    fn run_health_checks(&self) -> Vec<AgentCheck> {
        let moves = self.settings.loop_watch.is_healthy(self.clock.now());
        let well = |name| AgentCheck {
            name,
            trouble: None,
        };
        let mut checks = vec![
            well("ping"),
            well("log"),
            AgentCheck {
                name: "syncloop",
                trouble: (!moves).then(|| "sync Loop took longer than expected".to_owned()),
            },
        ];
        let resources = self.settings.resources.iter();
        checks.extend(resources.flat_map(|giver| giver.health_checks()));
        checks
    }

    fn events(&self, namespace: Option<&str>, limit: usize) -> Vec<Event> {
        let newest = self.recorder.newest_events(namespace, limit).into_iter();
        newest.map(|e| e.into_api_event(&self.node.name)).collect()
    }

    fn config_maps(&self, namespace: Option<&str>) -> BackendReply<'_, Vec<Value>> {
        // The data of ConfigMaps may be megabytes.
        self.heap.note_heap_use();
        let namespace = namespace.map(str::to_owned);
        let shown = self
            .agent
            .ask_agent(move |agent| agent.config_maps(namespace.as_deref()));
        Box::pin(async { Ok(shown.await) })
    }

    fn secrets(&self, namespace: Option<&str>) -> BackendReply<'_, Vec<Value>> {
        let namespace = namespace.map(str::to_owned);
        let shown = self
            .agent
            .ask_agent(move |agent| agent.secrets(namespace.as_deref()));
        Box::pin(async { Ok(shown.await) })
    }

    fn dump_recorded_events(&self) -> BackendReply<'_, String> {
        self.heap.note_heap_use();
        Box::pin(async { Ok(self.agent.ask_agent(Agent::dump_history).await) })
    }

    fn agent_health(&self) -> BackendReply<'_, AgentHealth> {
        Box::pin(async { Ok(self.agent.ask_agent(Agent::compute_health).await) })
    }

    fn metrics_page(&self, which: MetricsEndpoint) -> BackendReply<'_, TextPieces> {
        Box::pin(self.metrics.metrics_page(which))
    }

    fn link_report(&self) -> LinkReport {
        let link = &self.settings.link_policy;
        let state = link.link_state();
        LinkReport {
            bytes: meter::counted_bytes(),
            budget: state.budget,
            is_metered: link.is_metered(),
            cost: state.cost,
        }
    }

    fn node_object(&self) -> BackendReply<'_, api::Node> {
        Box::pin(async {
            let (runtime, clock) = (&*self.runtime, &*self.clock);
            let made = self.settings.node_made_at;
            let standing = self.agent.ask_agent(Agent::node_standing).await;
            let shown = self.node.show_node(
                runtime,
                standing,
                (clock, &self.settings.times),
                &self.complaints,
                made,
            );
            let mut shown = shown.await;
            let conditions = &mut shown.status.conditions;
            let limits = self.settings.link_limits.iter();
            conditions.extend(limits.flat_map(|limits| limits.link_conditions(clock.wall_time())));
            let parts = self.settings.parts.iter();
            conditions.extend(parts.flat_map(|part| part.conditions(clock.wall_time())));
            node::correct_condition_times(conditions, &self.settings.times);
            Ok(shown)
        })
    }

    fn pressure_report(&self, order: bool) -> BackendReply<'_, PressureReport> {
        Box::pin(async move {
            let view = self.agent.ask_agent(Agent::pressure_view).await;
            let (now, wall) = (self.clock.now(), self.clock.wall_time());
            let shown = |short: &MetThreshold| PressureSignalReport {
                signal: short.signal.name().into(),
                available: short.available.to_string(),
                limit: short.limit.to_string(),
                since: wall_time_before(wall, now - short.since),
                soft: short.soft,
            };
            let mut answer = PressureReport {
                short: view.short.iter().map(shown).collect(),
                ..PressureReport::default()
            };
            if !order {
                return Ok(answer);
            }
            let first = view.short.first().map(|short| short.signal);
            let (signal, layout) = (
                first.unwrap_or(EvictionSignal::MemoryAvailable),
                view.layout,
            );
            let what = MeasureScope::for_starved(signal.starved_resource());
            let mut pods = self.evictor.measure_candidates(what, view.candidates).await;
            eviction::rank_candidates(&mut pods, signal, layout);
            answer.by = signal.name().into();
            answer.order = pods
                .iter()
                .filter_map(|pod| {
                    let name = view.names.get(&pod.uid)?;
                    let (used, request) = pod.used_and_requested(signal, layout);
                    Some(EvictionCandidateReport {
                        namespace: name.namespace.clone(),
                        name: name.name.clone(),
                        priority: pod.priority,
                        used: used.map(|used| used.to_string()),
                        request: request.to_string(),
                    })
                })
                .collect();
            Ok(answer)
        })
    }

    fn find_log_target<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
        previous: bool,
    ) -> BackendReply<'a, LogTarget> {
        Box::pin(async move {
            let found = self.find_pod(namespace, pod).await?;
            let name = Self::resolve_container_name(&found, container)?;
            let status = find_container_status(&found, &name).ok_or_else(|| {
                Refusal::bad_request(format!(
                    "container \"{name}\" in pod \"{pod}\" is not available"
                ))
            })?;
            let id = choose_log_instance(status, pod, previous)?;
            let runtime = self.runtime_status(&found).await?;
            let instance = runtime.containers.iter().find(|c| c.id == id);
            let path = instance
                .map(|c| PathBuf::from(&c.log_path))
                .ok_or_else(|| {
                    Refusal::not_found(format!(
                        "unable to retrieve container logs for {}",
                        status.container_id
                    ))
                })?;
            let memory = held_log_path(&self.settings.run_dir, &id);
            Ok(LogTarget { path, memory, id })
        })
    }

    fn open_provided_log<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a LogOptions,
    ) -> BackendReply<'a, Box<dyn IncomingText>> {
        match &self.settings.external {
            Some(external) => external.read_container_log(id, options),
            None => Box::pin(async { Err(Refusal::not_found("the log has no file")) }),
        }
    }

    fn is_instance_running<'a>(&'a self, id: &'a ContainerId) -> BackendReply<'a, bool> {
        let id = id.clone();
        Box::pin(async {
            Ok(self
                .agent
                .ask_agent(move |agent| agent.may_container_run(&id))
                .await)
        })
    }

    fn device_reports(&self) -> BackendReply<'_, Vec<DeviceReport>> {
        Box::pin(async { Ok(self.agent.ask_agent(Agent::shown_resources).await) })
    }

    fn list_images(&self) -> BackendReply<'_, Vec<StoredImage>> {
        Box::pin(self.images.list_images())
    }

    fn import_image(
        &self,
        path: PathBuf,
        name: String,
        steps: Option<smol::channel::Sender<ImageProgress>>,
    ) -> BackendReply<'_, Vec<String>> {
        Box::pin(async move {
            let names = self.images.import_archive(path, name, steps).await?;
            // The loop's end is no reason to call the import failed.
            let _ = self.commands.send(AgentCommand::ImagesArrived).await;
            Ok(names)
        })
    }

    fn pull_image<'a>(&'a self, reference: &'a str, now: bool) -> BackendReply<'a, String> {
        Box::pin(async move {
            let id = self.images.pull_image(reference, now).await?;
            // The loop's end is no reason to call the pull failed.
            let _ = self.commands.send(AgentCommand::ImagesArrived).await;
            Ok(id)
        })
    }

    fn pull_progress(&self, reference: &str) -> Option<ImageProgress> {
        self.images.pull_progress(reference)
    }

    fn inspect_image<'a>(&'a self, reference: &'a str, layers: bool) -> BackendReply<'a, Value> {
        Box::pin(self.images.inspect_image(reference, layers))
    }

    fn tag_image<'a>(&'a self, reference: &'a str, name: &'a str) -> BackendReply<'a, String> {
        Box::pin(async move {
            let name = self.images.tag_image(reference, name).await?;
            // The loop's end is no reason to call the image untagged.
            let _ = self.commands.send(AgentCommand::ImagesArrived).await;
            Ok(name)
        })
    }

    fn remove_image<'a>(&'a self, reference: &'a str) -> BackendReply<'a, Vec<String>> {
        Box::pin(self.images.remove_image(reference))
    }

    fn prune_images(&self) -> BackendReply<'_, (Vec<String>, u64)> {
        Box::pin(self.images.prune_images())
    }

    fn verify_images(
        &self,
        repair: bool,
        steps: smol::channel::Sender<ImageProgress>,
    ) -> BackendReply<'_, StoreVerification> {
        Box::pin(self.images.verify_images(repair, steps))
    }

    fn restart_pod<'a>(&'a self, namespace: &'a str, pod: &'a str) -> BackendReply<'a, ()> {
        Box::pin(async move {
            let found = self.find_pod(namespace, pod).await?;
            pod_kind::may_start_anew(&found)
                .map_err(|why| Refusal::new(409, format!("pod \"{pod}\" {why}")))?;
            let uid = found.metadata.uid;
            let gone = || Refusal::new(503, "the agent is ending");
            let told = self.commands.send(AgentCommand::Restart(uid)).await;
            told.map_err(|_| gone())
        })
    }

    fn stop_agent(&self, all: bool) -> BackendReply<'_, ()> {
        self.send_end_command(move |done| AgentCommand::Stop { all, done })
    }

    fn shut_down_machine(&self) -> BackendReply<'_, ()> {
        self.send_end_command(|done| AgentCommand::Shutdown { done })
    }
}

impl LocalBackend {
    /// Sends a command that ends something, and waits until that has ended.
    fn send_end_command(
        &self,
        what: impl FnOnce(smol::channel::Sender<String>) -> AgentCommand + 'static,
    ) -> BackendReply<'_, ()> {
        Box::pin(async move {
            let (done, finished) = smol::channel::bounded(1);
            let gone = || Refusal::new(503, "the agent is ending");
            self.commands.send(what(done)).await.map_err(|_| gone())?;
            // The loop's end closes the channel, which is an answer too.
            match finished.recv().await {
                Ok(why) => Err(Refusal::new(503, why)),
                Err(_) => Ok(()),
            }
        })
    }
}

/// Adds the progress of a pull to the message of a container, if it waits.
fn append_progress(container: &mut Value, image: &str, progress: &ImageProgress) {
    let waiting = container.pointer_mut("/state/waiting");
    if let Some(waiting) = waiting.filter(|waiting| waiting.is_object()) {
        let before = waiting["message"].as_str().unwrap_or("");
        let gap = if before.is_empty() { "" } else { "; " };
        let message = format!("{before}{gap}Pulling image \"{image}\": {progress}");
        waiting["message"] = message.into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::image::progress::ImageStage;

    #[test]
    fn a_container_that_waits_names_the_server_that_is_asked() {
        // IMG-28
        let progress = ImageProgress {
            stage: ImageStage::Resolving,
            host: "mirror.example:5000".into(),
            ..ImageProgress::default()
        };
        let says = "Pulling image \"a:1\": resolving at mirror.example:5000";
        for (state, then) in [
            (
                json!({"waiting": {"reason": "ContainerCreating"}}),
                json!({"waiting": {"reason": "ContainerCreating", "message": says}}),
            ),
            (
                json!({"waiting": {"message": "back-off"}}),
                json!({"waiting": {"message": format!("back-off; {says}")}}),
            ),
            (json!({"running": {}}), json!({"running": {}})),
        ] {
            let mut container = json!({ "state": state });
            append_progress(&mut container, "a:1", &progress);
            assert_eq!(container["state"], then);
        }
    }

    #[test]
    fn a_node_of_no_cluster_is_as_old_as_its_root_directory() {
        // CLI-04
        let dir = crate::testing::TestDir::new("node-age");
        let made = file::birth_time_ns(&dir.0).map(WallTime);
        let later = WallTime(made.unwrap_or_default().0 + 1);
        let is_told = made.is_some_and(|made| made > EARLIEST_NODE);
        let wanted = made.filter(|_| is_told).unwrap_or(later);
        assert_eq!(find_node_age(&dir.0, later), wanted);
        // A directory that is younger than the agent, or not there, tells nothing.
        assert_eq!(find_node_age(&dir.0, EARLIEST_NODE), EARLIEST_NODE);
        assert_eq!(find_node_age(&dir.join("none"), later), later);
    }

    #[test]
    fn overlay_keeps_what_is_not_modelled() {
        let mut base = json!({"spec": {"restartPolicy": "Always", "containers": [{"name": "a", "imagePullPolicy": "Always"}]}});
        overlay_json(
            &mut base,
            json!({"spec": {"futureField": 1, "containers": [{"name": "a", "x": 2}]}}),
        );
        assert_eq!(
            base,
            json!({"spec": {"restartPolicy": "Always", "futureField": 1,
                "containers": [{"name": "a", "imagePullPolicy": "Always", "x": 2}]}})
        );
    }

    #[test]
    fn which_instance_is_read() {
        // LOG-05
        let status = |text: &str| serde_json::from_str::<ContainerStatus>(text).expect("status");
        let last = r#""lastState":{"terminated":{"exitCode":1,"containerID":"picolet://old"}}"#;
        for (name, text, previous, expected) in [
            (
                "running",
                r#"{"containerID":"picolet://new","state":{"running":{}}}"#.to_owned(),
                false,
                Some("new"),
            ),
            (
                "previous",
                format!(r#"{{"containerID":"picolet://new","state":{{"running":{{}}}},{last}}}"#),
                true,
                Some("old"),
            ),
            (
                "no previous",
                r#"{"containerID":"picolet://new","state":{"running":{}}}"#.to_owned(),
                true,
                None,
            ),
            (
                "terminated",
                r#"{"state":{"terminated":{"exitCode":0,"containerID":"picolet://end"}}}"#
                    .to_owned(),
                false,
                Some("end"),
            ),
            (
                "crash loop",
                format!(r#"{{"state":{{"waiting":{{"reason":"CrashLoopBackOff"}}}},{last}}}"#),
                false,
                Some("old"),
            ),
            (
                "waiting",
                r#"{"state":{"waiting":{"reason":"ContainerCreating"}}}"#.to_owned(),
                false,
                None,
            ),
        ] {
            let found = choose_log_instance(&status(&text), "p", previous);
            assert_eq!(
                found.ok().as_ref().map(ContainerId::as_str),
                expected,
                "{name}"
            );
        }
        for (reason, told) in [
            ("ContainerCreating", "ContainerCreating"),
            ("ErrImagePull", "image can't be pulled"),
            ("ImagePullBackOff", "trying and failing to pull image"),
        ] {
            let text = format!(r#"{{"name":"c","state":{{"waiting":{{"reason":"{reason}"}}}}}}"#);
            let refused = choose_log_instance(&status(&text), "p", false).expect_err(reason);
            assert_eq!(
                refused.message,
                format!("container \"c\" in pod \"p\" is waiting to start: {told}")
            );
        }
    }
}
