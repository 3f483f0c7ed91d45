//! The parts of an agent, in groups by their users. Only assembly sees a whole [`AgentParts`]; every other module is given
//! the few of these handles that it works with.

use alloc::{rc::Rc, sync::Arc};

use super::{
    claims::PodWorkClaims,
    clock::Clock,
    cluster::{self, Cluster, JoinedCluster},
    complaints::Complaints,
    cpu_manager::NodeCpus,
    eviction::gauge::EvictionGauge,
    executor::PodCgroups,
    external_pods::ExternalPods,
    images::{self, AgentImages, NodeImageHelpers, UnusedImageRequests},
    kept_node,
    link_limits::LinkLimits,
    link_policy::{FreeLink, LinkPolicy},
    node::LocalNode,
    node_resources::{ResourceGiver, ResourceTools},
    node_runtime::NodeRuntime,
    pod_store::PodStore,
    pods,
    probes::{NodeProbes, ProbeNetwork},
    recorder::EventRecorder,
    times::DateCorrector,
    vitals::{HeapUse, LoopWatch, WorkCounters},
};
use crate::{
    api::{MonoTime, WallTime},
    cgroup::Cgroups,
    config::AgentConfig,
    logic::cpu_manager::MachineCpus,
    parts::ConfiguredPart,
    runtime::{ImageService, RuntimeService},
    sys::lane::Lane,
    volume::Volumes,
};

/// Parts that differ between the program and its tests; the rest of [`AgentParts`] begins empty.
pub(super) struct AssemblyInputs {
    pub(super) cfg: AgentConfig,
    pub(super) node: Rc<LocalNode>,
    pub(super) clock: Box<dyn Clock>,
    pub(super) runtime: Rc<dyn RuntimeService>,
    /// Pods that `runtime` does not run, if there may be any.
    pub(super) external: Option<Rc<dyn ExternalPods>>,
    pub(super) images: NodeImageHelpers,
    pub(super) volumes: Volumes,
    pub(super) cgroups: Cgroups,
    pub(super) disk: Lane,
    pub(super) joined: Option<JoinedCluster>,
    pub(super) wire: Rc<dyn ProbeNetwork>,
    pub(super) gauge: Rc<dyn EvictionGauge>,
    /// Id of this boot.
    pub(super) boot_id: String,
    /// Processors of the machine; with the policy `static` always there.
    pub(super) cpus: Option<MachineCpus>,
    /// Limits of the link, if there are any.
    pub(super) link: Option<Rc<LinkLimits>>,
}

/// Tools for time, events, warnings and figures.
#[derive(Clone)]
pub(super) struct AgentTools {
    /// Time.
    pub(super) clock: Rc<dyn Clock>,
    /// History of the wall clock.
    pub(super) times: Rc<DateCorrector>,
    /// Kubernetes events.
    pub(super) recorder: Rc<EventRecorder>,
    /// Warnings that may come again and again, each told once a minute.
    pub(super) complaints: Rc<Complaints>,
    /// Counters of the agent's own work.
    pub(super) counters: WorkCounters,
    /// Notes that the heap was used.
    pub(super) heap: HeapUse,
    /// Time at which the loop last moved.
    pub(super) loop_watch: LoopWatch,
}

/// Tools that effects are carried out with. Files are read and written on the disk lane.
#[derive(Clone)]
pub(super) struct MachineTools {
    /// Containers, and what stands for them in external pods.
    pub(super) runtime: Rc<dyn RuntimeService>,
    /// Pods that no container runtime runs.
    pub(super) external: Option<Rc<dyn ExternalPods>>,
    /// Pod records.
    pub(super) store: PodStore,
    /// Thread for blocking file work.
    pub(super) disk: Lane,
    /// Volumes; every call blocks.
    pub(super) volumes: Volumes,
    /// Cgroups; every call blocks briefly.
    pub(super) cgroups: Arc<Cgroups>,
    /// Cgroups of pods and tiers.
    pub(super) pod_cgroups: PodCgroups,
    /// The network, for probes and hooks.
    pub(super) wire: Rc<dyn ProbeNetwork>,
    /// Gauge of memory, disk space and process ids.
    pub(super) gauge: Rc<dyn EvictionGauge>,
    /// To the remover of images that no pod uses.
    pub(super) unused_images: Option<UnusedImageRequests>,
    /// Gives extended resources to containers, if the node offers any.
    pub(super) resources: Option<Rc<dyn ResourceGiver>>,
}

/// Owners beside the loop, each with a state of its own that its own tasks work on.
#[derive(Clone)]
pub(super) struct StateOwners {
    /// The machine as a node.
    pub(super) node: Rc<LocalNode>,
    /// Images.
    pub(super) images: Rc<AgentImages>,
    /// Probes.
    pub(super) probes: Rc<NodeProbes>,
    /// Connection to the apiserver; `None`: the node stands alone.
    pub(super) cluster: Option<Rc<Cluster>>,
    /// Claims on pods: one operation at a time for each.
    pub(super) claims: Rc<PodWorkClaims>,
    /// Parts of the node that are configured.
    pub(super) parts: Vec<Rc<dyn ConfiguredPart>>,
    /// Policy of the link.
    pub(super) link_policy: Rc<dyn LinkPolicy>,
    /// Processors of containers, with the policy `static`.
    pub(super) cpus: Option<Rc<NodeCpus>>,
    /// Limits of the link, if there are any.
    pub(super) link_limits: Option<Rc<LinkLimits>>,
}

/// All parts of an agent; see the module.
pub(super) struct AgentParts {
    pub(super) cfg: AgentConfig,
    pub(super) tools: AgentTools,
    pub(super) machine: MachineTools,
    pub(super) owners: StateOwners,
    /// Time of the agent's start, by the wall clock.
    pub(super) started_at: WallTime,
    /// Time of the agent's start, by the monotonic clock.
    pub(super) started: MonoTime,
}

impl AgentParts {
    /// Makes the parts of an agent that knows of no pod yet.
    pub(super) fn new(given: AssemblyInputs) -> Self {
        let cfg = given.cfg;
        let slots = pods::table_capacity(&cfg).slots();
        let entries = slots * pods::BACKOFF_ENTRIES_PER_POD;
        let clock: Rc<dyn Clock> = Rc::from(given.clock);
        let link_policy: Rc<dyn LinkPolicy> = match &given.link {
            Some(limits) => Rc::clone(limits) as Rc<dyn LinkPolicy>,
            None => Rc::new(FreeLink),
        };
        let run = &cfg.dirs.run;
        let certainty = link_policy.clock_certainty();
        let times = DateCorrector::restore(Rc::clone(&clock), run, &given.boot_id, certainty);
        let volumes = given.volumes.with_boot_id(&given.boot_id);
        let counters = WorkCounters::default();
        let complaints = Rc::new(Complaints::new(Rc::clone(&clock)));
        let runtime: Rc<dyn RuntimeService> = Rc::new(NodeRuntime {
            inner: given.runtime,
            external: given.external.clone(),
            clock: Rc::clone(&clock),
            counters: counters.clone(),
        });
        let tools = images::ImageTools {
            service: Rc::clone(&runtime) as Rc<dyn ImageService>,
            keyring: given.images.keyring,
            clock: Rc::clone(&clock),
            disk: given.disk.clone(),
            complaints: Rc::clone(&complaints),
            unused_images: given.images.unused.clone(),
            budget: link_policy.pull_budget(),
        };
        let images = AgentImages::new(&cfg.images, entries, &cfg.dirs.root, tools);
        let joined = given.joined.as_ref();
        let authority = joined.map_or_else(String::new, |joined| joined.authority.clone());
        let cluster = given.joined.map(|joined| {
            let kept = kept_node::recall_kept_node(&cfg.dirs.root, &cfg.node_name, &authority);
            given.node.restore_admission(kept);
            let labels = given.node.with_admission(|node| node.labels.clone());
            let tools = cluster::ClusterTools {
                clock: Rc::clone(&clock),
                complaints: Rc::clone(&complaints),
                disk: given.disk.clone(),
                volumes: volumes.clone(),
                link_policy: Rc::clone(&link_policy),
            };
            Rc::new(Cluster::new(joined, &cfg, slots, labels, tools))
        });
        let cgroups = Arc::new(given.cgroups);
        let pod_cgroups = PodCgroups::new(
            &cfg,
            given.node.facts(),
            given.node.context().cgroups.clone(),
            Arc::clone(&cgroups),
            given.disk.clone(),
        );
        let store = PodStore::new(&cfg.dirs.root, &cfg.dirs.run, &given.boot_id);
        let store = store.with_cluster(&authority);
        let tools = ResourceTools {
            dirs: &cfg.dirs,
            clock: &clock,
            complaints: &complaints,
            counters: &counters,
            store: &store,
            cgroups: &cgroups,
            disk: &given.disk,
            doorbells: cfg.doorbells,
        };
        let resources = cfg
            .parts
            .iter()
            .find_map(|part| part.resource_giver(&tools));
        let policy = cfg.cgroup.cpu_policy.as_ref().zip(given.cpus);
        let cpus = policy
            .map(|(policy, cpus)| NodeCpus::recall(policy, cpus, &cfg, Rc::clone(&complaints)));
        Self {
            started_at: clock.wall_time(),
            started: clock.now(),
            owners: StateOwners {
                node: given.node,
                images: Rc::new(images),
                probes: Rc::new(NodeProbes::new(clock.now(), clock.wall_time())),
                cluster,
                claims: Rc::default(),
                parts: cfg.parts.clone(),
                link_policy,
                cpus: cpus.map(Rc::new),
                link_limits: given.link,
            },
            machine: MachineTools {
                runtime,
                external: given.external,
                store,
                disk: given.disk,
                volumes,
                cgroups,
                pod_cgroups,
                wire: given.wire,
                gauge: given.gauge,
                unused_images: given.images.unused,
                resources,
            },
            tools: AgentTools {
                recorder: Rc::new(EventRecorder::new(Rc::clone(&clock), cfg.node_name.clone())),
                heap: HeapUse::new(),
                loop_watch: LoopWatch::new(cfg.times.sync),
                clock,
                times: Rc::new(times),
                complaints,
                counters,
            },
            cfg,
        }
    }

    /// Tools for the modules that speak with the apiserver.
    pub(super) fn cluster_tools(&self) -> cluster::ClusterTools {
        cluster::ClusterTools {
            clock: Rc::clone(&self.tools.clock),
            complaints: Rc::clone(&self.tools.complaints),
            disk: self.machine.disk.clone(),
            volumes: self.machine.volumes.clone(),
            link_policy: Rc::clone(&self.owners.link_policy),
        }
    }
}
