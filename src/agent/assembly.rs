//! Everything put together, once: whoever works for the agent is given here what it works with.

use alloc::{rc::Rc, sync::Arc};
use core::{cell::RefCell, time::Duration};
use std::sync::Mutex;

use smol::{LocalExecutor, channel::Sender, lock::Semaphore};

use super::{
    asker::AgentHandle,
    core::{Agent, AgentEvent, TELLING},
    driver::{ContainerDriver, PodDriver},
    event_loop::{EffectRunner, STARTS_AT_ONCE, WorkerCallRunner},
    eviction::{self, Evictor, LimitCheckSchedule, PodFileCounter},
    executor::{
        ConfigGenerator, ContainerStarter, HookRunner, PodKiller, PodPreparer, PodResizer,
        PodSyncer, PodTerminator, VolumeMounter,
    },
    external_pods::PodResync,
    gc::{self, GarbageCollector},
    housekeeping::Housekeeper,
    inhibitor,
    log_rotation::LogRotation,
    manifests::{ManifestPoller, ManifestUrlPoller, RULES},
    metrics::{self, Metrics},
    node::{self, follow::follow_addresses},
    node_resources::{NoResources, NodeResources},
    parts::AgentParts,
    pods, probes,
    records::PodRecordWriter,
    serving::{self, ApiserverReviews},
    start_error::AgentStartError,
    tasks::{AgentTask, box_task},
    write_watch::WriteWatch,
};
use crate::{
    api::MonoTime,
    bus::logind::LogindPaths,
    cgroup::{CgroupVersion, MemoryDoorbell},
    logic::{eviction::StarvedResource, object_fields, shutdown, static_pod},
    net::ProxyVariables,
    parts::{PartTools, ServeConnection},
    runtime::log_rotation::LogDirectoryStates,
    server::{backend::ServerBackend, network::NetworkServer},
    source::{DocumentLocation, ManifestDir, ManifestDirPoller, ManifestUrl, WHOLE_TIMEOUT},
    sys::lane::Lane,
};

/// The last good answer of the URL of manifests, in the root directory.
const URL_COPY: &str = "manifest-url";

/// Makes the runner of effects; `driver` runs pods. `events`: to the loop. `relist`: to the relister.
pub(super) fn make_effect_runner(
    parts: &AgentParts,
    driver: &Rc<dyn PodDriver>,
    executor: &Rc<LocalExecutor<'static>>,
    events: &Sender<AgentEvent>,
    relist: Sender<MonoTime>,
) -> EffectRunner {
    let AgentParts {
        tools,
        machine,
        owners,
        ..
    } = parts;
    let asker = AgentHandle::new(events.clone());
    let steps = events.clone();
    let caller = WorkerCallRunner {
        driver: Rc::clone(driver),
        claims: Rc::clone(&owners.claims),
        asker: asker.clone(),
        tell: Rc::new(move |call, step| {
            let steps = steps.clone();
            // It is gone only when the agent ends.
            Box::pin(async move { _ = steps.send(AgentEvent::Step(call, step)).await })
        }),
        clock: Rc::clone(&tools.clock),
        counters: tools.counters.clone(),
        starts: Semaphore::new(STARTS_AT_ONCE),
    };
    let records = PodRecordWriter {
        store: machine.store.clone(),
        disk: machine.disk.clone(),
        claims: Rc::clone(&owners.claims),
        asker: asker.clone(),
        complaints: Rc::clone(&tools.complaints),
    };
    let garbage = Rc::new(make_garbage_collector(parts, asker.clone()));
    let evictor = make_evictor(parts, Rc::clone(&garbage));
    let housekeeper = Housekeeper {
        volumes: machine.volumes.clone(),
        store: machine.store.clone(),
        disk: machine.disk.clone(),
        cgroups: Arc::clone(&machine.cgroups),
        pod_cgroups: machine.pod_cgroups.clone(),
        claims: Rc::clone(&owners.claims),
        asker,
        complaints: Rc::clone(&tools.complaints),
        driver: Rc::clone(driver),
    };
    EffectRunner {
        executor: Rc::clone(executor),
        clock: Rc::clone(&tools.clock),
        store: machine.store.clone(),
        disk: machine.disk.clone(),
        run_dir: parts.cfg.dirs.run.clone(),
        caller: Rc::new(caller),
        records: Rc::new(records),
        garbage,
        housekeeper: Rc::new(housekeeper),
        evictor: Rc::new(evictor),
        relist,
        events: events.clone(),
    }
}

/// Makes the remover of what is left of pods.
pub(super) fn make_garbage_collector(parts: &AgentParts, asker: AgentHandle) -> GarbageCollector {
    let AgentParts {
        cfg,
        tools,
        machine,
        owners,
        ..
    } = parts;
    GarbageCollector {
        runtime: Rc::clone(&machine.runtime),
        disk: machine.disk.clone(),
        claims: Rc::clone(&owners.claims),
        asker,
        clock: Rc::clone(&tools.clock),
        times: Rc::clone(&tools.times),
        recorder: Rc::clone(&tools.recorder),
        complaints: Rc::clone(&tools.complaints),
        images: Rc::clone(&owners.images),
        policy: gc::container_gc_policy(&cfg.garbage),
        pod_logs: cfg.dirs.pod_logs.clone(),
        log_links: cfg.dirs.container_logs.clone(),
    }
}

/// Makes the worker of evictions.
pub(super) fn make_evictor(parts: &AgentParts, garbage: Rc<GarbageCollector>) -> Evictor {
    let AgentParts { tools, machine, .. } = parts;
    Evictor {
        gauge: Rc::clone(&machine.gauge),
        runtime: Rc::clone(&machine.runtime),
        clock: Rc::clone(&tools.clock),
        complaints: Rc::clone(&tools.complaints),
        store: machine.store.clone(),
        files: make_pod_file_counter(parts),
        garbage,
        unused_images: machine.unused_images.clone(),
        limits: LimitCheckSchedule::default(),
        walks: RefCell::default(),
    }
}

/// Makes the task that hears the machine go down, if pods are to end in groups then.
pub(super) fn shutdown_watch_task(
    parts: &AgentParts,
    events: &Sender<AgentEvent>,
) -> Option<AgentTask> {
    let groups = &parts.cfg.shutdown;
    if groups.is_empty() {
        return None;
    }
    let cluster = parts.owners.cluster.as_ref();
    let telling = cluster.map_or(Duration::ZERO, |_| TELLING);
    let watch = inhibitor::ShutdownWatch {
        places: LogindPaths::default(),
        needed: shutdown::total_shutdown_time(groups) + telling,
        clock: Rc::clone(&parts.tools.clock),
        events: events.clone(),
    };
    Some(box_task(watch.watch_shutdown()))
}

/// Makes the task that waits for the kernel's notice of short memory, if a threshold of memory is set and doorbells are
/// wanted.
pub(super) fn memory_notice_task(
    parts: &AgentParts,
    events: &Sender<AgentEvent>,
) -> Option<AgentTask> {
    let cfg = &parts.cfg;
    let thresholds = &cfg.eviction.settings.thresholds;
    let is_wanted = cfg.doorbells
        && thresholds
            .iter()
            .any(|t| t.signal.starved_resource() == StarvedResource::Memory);
    let bell = is_wanted.then(|| {
        MemoryDoorbell::install_triggers(&parts.machine.cgroups, &cfg.cgroup.tree.kubepods_path())
    });
    match bell? {
        Ok(bell) => Some(box_task(eviction::forward_rings(
            bell,
            Rc::clone(&parts.tools.clock),
            events.clone(),
        ))),
        Err(e) => {
            log::info!(
                "the kernel does not report memory pressure, so memory is checked every ten seconds: {e}"
            );
            None
        }
    }
}

/// Makes the counter of pods' files.
fn make_pod_file_counter(parts: &AgentParts) -> PodFileCounter {
    let machine = &parts.machine;
    PodFileCounter {
        runtime: Rc::clone(&machine.runtime),
        disk: machine.disk.clone(),
        volumes: machine.volumes.clone(),
        store: machine.store.clone(),
    }
}

/// Makes the driver of pods.
pub(super) fn make_pod_driver(parts: &AgentParts) -> Rc<dyn PodDriver> {
    let AgentParts {
        cfg,
        tools,
        machine,
        owners,
        ..
    } = parts;
    let runtime = || Rc::clone(&machine.runtime);
    let recorder = || Rc::clone(&tools.recorder);
    let of_api = || owners.cluster.as_ref().map(|c| Rc::clone(&c.objects));
    let hooks = HookRunner {
        runtime: runtime(),
        clock: Rc::clone(&tools.clock),
        recorder: recorder(),
        wire: Rc::clone(&machine.wire),
    };
    let killer = PodKiller {
        runtime: runtime(),
        clock: Rc::clone(&tools.clock),
        recorder: recorder(),
        hooks: hooks.clone(),
    };
    let generator = Rc::new(ConfigGenerator {
        runtime: runtime(),
        context: Rc::clone(owners.node.context()),
        store: machine.store.clone(),
        disk: machine.disk.clone(),
        volumes: machine.volumes.clone(),
        recorder: recorder(),
        of_api: of_api(),
        resources: machine.resources.clone(),
        resolv_conf: cfg.network.resolv_conf.clone(),
        pod_logs: cfg.dirs.pod_logs.clone(),
        ids_per_pod: cfg.ids_per_pod,
        max_pods: cfg.max_pods,
    });
    let mounter = VolumeMounter {
        volumes: machine.volumes.clone(),
        disk: machine.disk.clone(),
        recorder: recorder(),
        of_api: of_api(),
        context: Rc::clone(owners.node.context()),
    };
    let starter = ContainerStarter {
        runtime: runtime(),
        images: Rc::clone(&owners.images),
        generator: Rc::clone(&generator),
        hooks,
        killer: killer.clone(),
        recorder: recorder(),
        disk: machine.disk.clone(),
        cpus: owners.cpus.clone(),
        of_api: of_api(),
        process_variables: cfg.runtime.process.as_ref().map(|p| p.variables.clone()),
        run_dir: cfg.dirs.run.clone(),
        container_logs: cfg.dirs.container_logs.clone(),
    };
    let preparer = Rc::new(PodPreparer {
        store: machine.store.clone(),
        disk: machine.disk.clone(),
        recorder: recorder(),
        complaints: Rc::clone(&tools.complaints),
        mounter,
        generator,
    });
    let syncer = PodSyncer {
        preparer: Rc::clone(&preparer),
        runtime: runtime(),
        recorder: recorder(),
        cgroups: machine.pod_cgroups.clone(),
        killer: killer.clone(),
        starter,
        resizer: PodResizer {
            store: machine.store.clone(),
            disk: machine.disk.clone(),
            runtime: runtime(),
            cgroups: machine.pod_cgroups.clone(),
            complaints: Rc::clone(&tools.complaints),
        },
        cpus: owners.cpus.clone(),
        page_bytes: owners.node.facts().page_bytes,
    };
    let terminator = PodTerminator {
        store: machine.store.clone(),
        disk: machine.disk.clone(),
        runtime: runtime(),
        clock: Rc::clone(&tools.clock),
        recorder: recorder(),
        complaints: Rc::clone(&tools.complaints),
        cgroups: machine.pod_cgroups.clone(),
        volumes: machine.volumes.clone(),
        killer,
        of_api: of_api(),
    };
    let containers = ContainerDriver {
        syncer,
        terminator,
        runtime: runtime(),
        complaints: Rc::clone(&tools.complaints),
    };
    let containers: Rc<dyn PodDriver> = Rc::new(containers);
    match &machine.external {
        None => containers,
        Some(external) => Rc::clone(external).make_pod_driver(containers, preparer),
    }
}

/// Makes the reader of figures.
pub(super) fn make_metrics_reader(parts: &AgentParts, agent: AgentHandle) -> Metrics {
    Metrics::new(metrics::MetricsTools {
        clock: Rc::clone(&parts.tools.clock),
        runtime: Rc::clone(&parts.machine.runtime),
        disk: parts.machine.disk.clone(),
        volumes: parts.machine.volumes.clone(),
        files: make_pod_file_counter(parts),
        cgroups: Arc::clone(&parts.machine.cgroups),
        facts: Rc::clone(parts.owners.node.facts()),
        counters: parts.tools.counters.clone(),
        loop_watch: parts.tools.loop_watch.clone(),
        heap: parts.tools.heap.clone(),
        complaints: Rc::clone(&parts.tools.complaints),
        agent,
        objects: parts.owners.cluster.as_ref().map(|c| Rc::clone(&c.objects)),
        peers: metrics::MetricsPeers {
            parts: parts.cfg.parts.clone(),
            resources: parts.machine.resources.clone(),
        },
        settings: metrics::MetricsSettings {
            root_dir: parts.cfg.dirs.root.clone(),
            tree: parts.cfg.cgroup.tree.clone(),
            volume_stats: parts.cfg.times.volume_stats,
            slots: pods::table_capacity(&parts.cfg).slots(),
            started_at: parts.started_at,
        },
    })
}

/// Gathers the parts of the node's server.
pub(super) fn gather_served_parts(
    parts: &AgentParts,
    backend: Rc<dyn ServerBackend>,
) -> serving::ServingInputs<'_> {
    let cluster = parts.owners.cluster.clone();
    let own = Rc::clone(&parts.owners.node);
    let (name, cert_dir) = (
        parts.cfg.node_name.clone(),
        parts.cfg.cluster.cert_dir.clone(),
    );
    let tools = parts.cluster_tools();
    serving::ServingInputs {
        cfg: &parts.cfg.server,
        cert_dir: parts.cfg.cluster.cert_dir.clone(),
        node: Rc::clone(parts.owners.node.facts()),
        clock: Rc::clone(&parts.tools.clock),
        disk: parts.machine.disk.clone(),
        complaints: Rc::clone(&parts.tools.complaints),
        reviews: parts
            .owners
            .cluster
            .as_ref()
            .map(|cluster| ApiserverReviews {
                lanes: cluster.lanes.clone(),
                is_away: Box::new({
                    let link = Rc::clone(&cluster.link);
                    move || link.outage_reason().is_some()
                }),
                node: parts.owners.node.name.clone(),
            }),
        // Only a member of a cluster has somebody to ask.
        issued: Box::new(move |shown| match &cluster {
            Some(cluster) => cluster.keep_serving_certificate(name, &cert_dir, tools, own, shown),
            None => box_task(core::future::ready(())),
        }),
        backend,
    }
}

/// Makes the task that keeps the budget of the link, if there is one.
pub(super) fn link_budget_task(parts: &AgentParts) -> Option<AgentTask> {
    let limits = parts.owners.link_limits.as_ref()?;
    let complaints = Rc::clone(&parts.tools.complaints);
    limits.budget_task(parts.machine.disk.clone(), complaints)
}

/// Makes the task that reads the manifest directory, if there is one.
pub(super) fn manifest_dir_task(
    parts: &AgentParts,
    events: &Sender<AgentEvent>,
) -> Option<AgentTask> {
    let path = parts.cfg.dirs.manifests.clone()?;
    let dir = ManifestDir::new(path, parts.owners.node.name.clone(), RULES);
    let manifests = ManifestPoller {
        poller: ManifestDirPoller::new(dir, parts.cfg.times.file_check, parts.cfg.doorbells),
        clock: Rc::clone(&parts.tools.clock),
        disk: parts.machine.disk.clone(),
        events: events.clone(),
    };
    Some(box_task(manifests.poll_manifest_dir()))
}

/// Makes the task that reads manifests at a URL, if there is one. `lane`: its own, started only then.
pub(super) fn manifest_url_task(
    parts: &AgentParts,
    proxies: ProxyVariables,
    events: &Sender<AgentEvent>,
    lane: impl FnOnce() -> Result<Lane, AgentStartError>,
) -> Result<Option<AgentTask>, AgentStartError> {
    let Some(cfg) = &parts.cfg.manifest_url else {
        return Ok(None);
    };
    let place = DocumentLocation {
        url: cfg.url.clone(),
        headers: cfg.headers.clone(),
        ca: cfg.ca.clone(),
        proxies,
        time: WHOLE_TIMEOUT,
    };
    let source = ManifestUrl::new(
        place,
        parts.owners.node.name.clone(),
        (static_pod::prepare_from_url, object_fields::misspelt_keys),
        parts.cfg.dirs.root.join(URL_COPY),
    );
    let manifests = ManifestUrlPoller {
        source: Arc::new(Mutex::new(source)),
        checks: cfg.checks,
        link_policy: Rc::clone(&parts.owners.link_policy),
        clock: Rc::clone(&parts.tools.clock),
        lane: lane()?,
        events: events.clone(),
    };
    Ok(Some(box_task(manifests.poll_manifest_url())))
}

/// Starts the parts that are configured. Returns their tasks.
pub(super) fn start_parts(
    parts: &AgentParts,
    proxies: &ProxyVariables,
    network: Option<Rc<NetworkServer>>,
    executor: &Rc<LocalExecutor<'static>>,
    asker: AgentHandle,
) -> Vec<AgentTask> {
    let own = Rc::clone(&parts.owners.node);
    let on = Rc::clone(executor);
    let cluster = parts.owners.cluster.as_ref();
    let network_board = cluster.map_or_else(Rc::default, |cluster| Rc::clone(&cluster.network));
    let tools = PartTools {
        config: &parts.cfg,
        proxies,
        clock: &parts.tools.clock,
        recorder: &parts.tools.recorder,
        link_policy: &parts.owners.link_policy,
        complaints: &parts.tools.complaints,
        disk: &parts.machine.disk,
        node: &parts.owners.node,
        own_node: cluster.map(|cluster| Rc::new(cluster.own_node_object(&parts.cfg.node_name))),
        cluster_network: &network_board,
        cluster_reader: cluster.and_then(|cluster| cluster.reader.clone()),
        is_pod_address: Rc::new(move |to| {
            let (asker, host_ips) = (asker.clone(), own.host_ips());
            let look = move |agent: &Agent| agent.has_pod_at(to, &host_ips);
            Box::pin(async move { asker.ask_agent(look).await })
        }),
        serve: network.map(|network| -> ServeConnection {
            Rc::new(move |stream, source| network.accept_pipe(stream, source, &on))
        }),
        executor,
    };
    let configured = parts.cfg.parts.iter();
    configured.flat_map(|part| part.start(&tools)).collect()
}

/// Makes the rotation of container logs, if the agent does that.
pub(super) fn make_log_rotation(parts: &AgentParts, asker: AgentHandle) -> Option<LogRotation> {
    let logs = &parts.cfg.logs;
    Some(LogRotation {
        asker,
        runtime: Rc::clone(&parts.machine.runtime),
        clock: Rc::clone(&parts.tools.clock),
        complaints: Rc::clone(&parts.tools.complaints),
        disk: parts.machine.disk.clone(),
        interval: logs.monitor_interval,
        max_size_bytes: logs.max_size_bytes?,
        max_files: usize::try_from(logs.max_files).unwrap_or(usize::MAX),
        looked: LogDirectoryStates::new(),
        max_all_bytes: logs.max_all_bytes,
    })
}

/// Makes the task that reports pods which write much to the disk of the root directory, if the kernel counts that.
pub(super) fn write_watch_task(parts: &AgentParts, asker: AgentHandle) -> Option<AgentTask> {
    let machine = &parts.machine;
    let counts = machine.cgroups.cgroup_version() == CgroupVersion::V2
        && machine.cgroups.has_controller("io");
    let disk = counts.then(|| node::machine::disk_with_number(&parts.cfg.dirs.root));
    let (disk, number) = disk.flatten()?;
    let watch = WriteWatch {
        cgroups: Arc::clone(&machine.cgroups),
        pod_cgroups: machine.pod_cgroups.clone(),
        disk: machine.disk.clone(),
        clock: Rc::clone(&parts.tools.clock),
        recorder: Rc::clone(&parts.tools.recorder),
        asker,
        run_dir: parts.cfg.dirs.run.clone(),
        boot_id: parts.owners.node.identity.boot_id.clone(),
        on: (disk.name, number),
    };
    Some(box_task(watch.watch_writes()))
}

/// Makes the tasks that follow external pods.
pub(super) fn external_pod_tasks(
    parts: &AgentParts,
    events: &Sender<AgentEvent>,
) -> Vec<AgentTask> {
    let Some(external) = &parts.machine.external else {
        return Vec::new();
    };
    let events = events.clone();
    let resync: PodResync = Rc::new(move |uids| {
        let events = events.clone();
        Box::pin(async move {
            match uids.is_empty() {
                true => !events.is_closed(),
                false => events.send(AgentEvent::Resync(uids)).await.is_ok(),
            }
        })
    });
    let tools = &parts.tools;
    external.external_pod_tasks(&resync, &tools.recorder, &tools.complaints)
}

/// Finds the extended resources of the node before the first pod is admitted. Records of an agent before this one are on
/// the disk by then. Blocking.
pub(super) fn find_node_resources(parts: &AgentParts) -> Box<dyn NodeResources> {
    parts.machine.store.sync_dir_entries();
    match parts.machine.resources.clone() {
        Some(giver) => giver.make_node_resources(parts.tools.clock.now()),
        None => Box::new(NoResources),
    }
}

/// Makes the tasks of whoever gives extended resources.
pub(super) fn resource_tasks(parts: &AgentParts, events: &Sender<AgentEvent>) -> Vec<AgentTask> {
    let giver = parts.machine.resources.clone();
    giver.map_or_else(Vec::new, |giver| {
        giver.resource_giver_tasks(AgentHandle::new(events.clone()))
    })
}

/// Opens what others connect to for extended resources, and makes the tasks that serve them.
pub(super) fn resource_servers(
    parts: &AgentParts,
    executor: &Rc<LocalExecutor<'static>>,
    events: &Sender<AgentEvent>,
) -> std::io::Result<Vec<AgentTask>> {
    match parts.machine.resources.clone() {
        Some(giver) => giver.open_resource_servers(AgentHandle::new(events.clone()), executor),
        None => Ok(Vec::new()),
    }
}

/// Makes the task that follows the addresses of the node, unless a cluster's Node object does.
pub(super) fn node_address_task(parts: &AgentParts) -> Option<AgentTask> {
    let alone = parts.owners.cluster.is_none();
    let follow = || {
        let (own, clock) = (&parts.owners.node, &parts.tools.clock);
        let asked = parts.cfg.node_ips.clone();
        let disk = parts.machine.disk.clone();
        follow_addresses(Rc::clone(own), asked, disk, Rc::clone(clock))
    };
    alone.then(|| box_task(follow()))
}

/// Makes the driver of probes.
pub(super) fn make_probe_driver(
    parts: &AgentParts,
    agent: AgentHandle,
    events: Sender<AgentEvent>,
) -> probes::ProbeDriver {
    probes::ProbeDriver {
        probes: Rc::clone(&parts.owners.probes),
        clock: Rc::clone(&parts.tools.clock),
        times: Rc::clone(&parts.tools.times),
        runtime: Rc::clone(&parts.machine.runtime),
        wire: Rc::clone(&parts.machine.wire),
        agent,
        store: parts.machine.store.clone(),
        disk: parts.machine.disk.clone(),
        recorder: Rc::clone(&parts.tools.recorder),
        tell: Box::new(move |probed| {
            let events = events.clone();
            Box::pin(async move { events.send(AgentEvent::Probed(probed)).await.is_ok() })
        }),
        complaints: Rc::clone(&parts.tools.complaints),
        run_dir: parts.cfg.dirs.run.clone(),
    }
}
