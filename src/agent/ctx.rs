//! What the loop and the sync tasks share. One thread, so cells instead of locks; no borrow is held across an await.

use alloc::{rc::Rc, sync::Arc};
use core::cell::{Cell, RefCell};
use std::net::IpAddr;

use super::{
    clock::Clock,
    cluster::Cluster,
    complaints::Complaints,
    images::{self, Images},
    metered::Metered,
    metrics::Metrics,
    objects::Objects,
    pod_store::{PodStore, StoreError},
    pods::{self, Pods},
    probes::{NodeProbes, Wire},
    recorder::{About, Recorder, Severity},
    ring::Ring,
    runtime_view::RuntimeView,
};
use crate::{
    api::{Mono, Node, Pod, PodUid, Wall},
    cgroup::Cgroups,
    config::Config,
    logic::{
        admission,
        downward::Allocatable,
        generate::NodeContext,
        loop_health::LoopHealth,
        metrics::own::Counters,
        mux::{Mux, Source},
        node,
        node_resources::{self, Reservations},
        static_pod,
    },
    runtime::{ImageService, Runtime},
    sys::lane::Lane,
    volume::Volumes,
};

/// What the machine is, read once at start.
#[derive(Clone, Debug)]
pub(super) struct NodeFacts {
    /// Node name.
    pub(super) name: String,
    /// Host IPs at the start, primary first; [`Ctx::host_ips`] knows those of now.
    pub(super) host_ips: Vec<IpAddr>,
    /// Memory of the machine, bytes.
    pub(super) memory_bytes: u64,
    /// Processors, thousandths.
    pub(super) cpu_milli: u64,
    /// Bytes of the file system of the root dir.
    pub(super) storage_bytes: u64,
    /// Swap of the machine, bytes.
    pub(super) swap_bytes: u64,
    /// Page sizes the kernel offers as huge pages, and memory that is such pages already: bytes, sorted by size.
    pub(super) hugepages: Vec<(u64, u64)>,
    /// Most processes and threads at a time; 0: not known.
    pub(super) pids: u64,
    /// What is kept from pods.
    pub(super) kept: Reservations,
    /// What tells this machine from others.
    pub(super) identity: node::Identity,
    /// What the operator says of it.
    pub(super) settings: node::Settings,
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl NodeFacts {
    /// What the machine has.
    pub(super) fn capacity(&self) -> node_resources::Capacity {
        let huge = self.hugepages.iter().map(|(_, bytes)| *bytes);
        node_resources::Capacity {
            cpu_milli: signed(self.cpu_milli),
            memory_bytes: signed(self.memory_bytes),
            hugepages_bytes: signed(huge.fold(0, u64::saturating_add)),
            storage_bytes: signed(self.storage_bytes),
            pids: signed(self.pids),
        }
    }

    /// The same as the Node object says it.
    pub(super) fn resources(&self) -> node::Resources {
        let pages = self.hugepages.iter();
        node::Resources {
            capacity: self.capacity(),
            hugepages: pages
                .map(|(size, bytes)| (signed(*size), signed(*bytes)))
                .collect(),
            kept: self.kept,
            swap_bytes: signed(self.swap_bytes),
        }
    }

    /// What pods may ask for together.
    pub(super) fn allocatable(&self) -> Allocatable {
        node_resources::allocatable(self.capacity(), self.kept)
    }
}

/// What an agent is made of; the rest of [`Ctx`] begins empty.
pub(super) struct Parts {
    pub(super) cfg: Config,
    pub(super) node: NodeFacts,
    pub(super) clock: Box<dyn Clock>,
    pub(super) runtime: Rc<dyn Runtime>,
    pub(super) volumes: Volumes,
    pub(super) cgroups: Cgroups,
    pub(super) disk: Lane,
    pub(super) relist: smol::channel::Sender<()>,
    pub(super) admission_facts: admission::NodeFacts,
    pub(super) node_context: NodeContext,
    pub(super) cluster: Option<Cluster>,
    pub(super) wire: Box<dyn Wire>,
}

/// Everything a sync may touch.
pub(super) struct Ctx {
    /// Configuration.
    pub(super) cfg: Config,
    /// Machine.
    pub(super) node: NodeFacts,
    /// Time.
    pub(super) clock: Rc<dyn Clock>,
    /// Containers.
    pub(super) runtime: Rc<dyn Runtime>,
    /// What is known of them.
    pub(super) view: RuntimeView,
    /// What is known of pods.
    pub(super) pods: Pods,
    /// Volumes; every call blocks and runs on the disk lane.
    pub(super) volumes: Volumes,
    /// Cgroups; every call blocks briefly.
    pub(super) cgroups: Arc<Cgroups>,
    /// Specs.
    pub(super) store: PodStore,
    /// Thread for blocking file work.
    pub(super) disk: Lane,
    /// Images.
    pub(super) images: Rc<Images>,
    /// ConfigMaps and Secrets of the manifest directory.
    pub(super) objects: RefCell<Objects>,
    /// Probes.
    pub(super) probes: NodeProbes,
    /// Kubernetes events.
    pub(super) recorder: RefCell<Recorder>,
    /// What the loop lately heard and did.
    pub(super) ring: RefCell<Ring>,
    /// The Node object without its images. Of a cluster: as the apiserver last had it; `None` until it was read. Of a node
    /// that stands alone: as it was last shown, for conditions say since when they hold.
    pub(super) own_node: RefCell<Option<Node>>,
    /// Pods of all sources.
    pub(super) mux: RefCell<Mux>,
    /// Processor time that the Burstable tier was last given for its pods, thousandths.
    pub(super) burstable_milli: Cell<Option<i64>>,
    /// What was complained about lately.
    pub(super) complaints: Rc<Complaints>,
    /// When the manifests were last read.
    pub(super) manifests_read: Cell<Option<Mono>>,
    /// Something used the heap, and code, since they were last given back; the start did.
    pub(super) heap_used: Cell<bool>,
    /// When the loop last moved, for the watchdog.
    pub(super) loop_health: Cell<LoopHealth>,
    /// What admission knows of the node.
    pub(super) admission_facts: RefCell<admission::NodeFacts>,
    /// Host IPs, primary first, as the Node last had them.
    pub(super) host_ips: RefCell<Vec<IpAddr>>,
    /// What shapes sandboxes and containers.
    pub(super) node_context: NodeContext,
    /// When the agent started.
    pub(super) started_at: Wall,
    /// The same for reckoning.
    pub(super) started: Mono,
    /// The apiserver; `None`: the node stands alone.
    pub(super) cluster: Option<Cluster>,
    /// What the agent counts of its own work.
    pub(super) counters: Rc<RefCell<Counters>>,
    /// What figures were last read.
    pub(super) metrics: Metrics,
}

impl Ctx {
    /// An agent that knows of no pod yet.
    pub(super) fn new(parts: Parts) -> Self {
        let cfg = parts.cfg;
        let entries = pods::slots(&cfg).slots() * pods::BACKOFF_ENTRIES_PER_POD;
        let clock: Rc<dyn Clock> = Rc::from(parts.clock);
        let counters = Rc::new(RefCell::new(Counters::default()));
        let complaints = Rc::new(Complaints::new(Rc::clone(&clock)));
        let runtime: Rc<dyn Runtime> = Rc::new(Metered {
            inner: parts.runtime,
            clock: Rc::clone(&clock),
            counters: Rc::clone(&counters),
        });
        let tools = images::Tools {
            service: Rc::clone(&runtime) as Rc<dyn ImageService>,
            clock: Rc::clone(&clock),
            disk: parts.disk.clone(),
            complaints: Rc::clone(&complaints),
        };
        let images = Images::new(&cfg.images, entries, &cfg.dirs.root, tools);
        // Delays need spreading, not secrecy.
        let seed = clock.now().0 ^ clock.wall().0.unsigned_abs();
        let file = cfg.dirs.manifests.is_some().then_some(Source::File);
        let api = parts.cluster.is_some().then_some(Source::Api);
        let sources: Vec<Source> = file.into_iter().chain(api).collect();
        Self {
            view: RuntimeView::new(parts.relist),
            store: PodStore::new(&cfg.dirs.root, &cfg.dirs.run),
            admission_facts: RefCell::new(parts.admission_facts),
            host_ips: RefCell::new(parts.node.host_ips.clone()),
            node_context: parts.node_context,
            cluster: parts.cluster,
            pods: Pods::new(&cfg, seed),
            images: Rc::new(images),
            objects: RefCell::new(Objects::default()),
            probes: NodeProbes::new(parts.wire, clock.now(), clock.wall()),
            recorder: RefCell::new(Recorder::default()),
            ring: RefCell::new(Ring::default()),
            own_node: RefCell::new(None),
            mux: RefCell::new(Mux::new(&sources)),
            burstable_milli: Cell::new(None),
            manifests_read: Cell::new(None),
            heap_used: Cell::new(true),
            complaints,
            loop_health: Cell::default(),
            metrics: Metrics::default(),
            started_at: clock.wall(),
            started: clock.now(),
            node: parts.node,
            clock,
            runtime,
            counters,
            volumes: parts.volumes,
            cgroups: Arc::new(parts.cgroups),
            disk: parts.disk,
            cfg,
        }
    }

    /// Host IPs, primary first: one, or one of each family.
    pub(super) fn host_ips(&self) -> Vec<IpAddr> {
        self.host_ips.borrow().clone()
    }

    /// The Node has these addresses now. None is no news.
    pub(super) fn set_host_ips(&self, ips: Vec<IpAddr>) {
        let mut known = self.host_ips.borrow_mut();
        if !ips.is_empty() && *known != ips {
            log::info!("addresses of the node: {ips:?}");
            *known = ips;
        }
    }

    /// The pod as recorded, with defaults applied. Read anew each time: specs do not live in memory.
    pub(super) fn pod(&self, uid: &PodUid) -> Result<Pod, StoreError> {
        let (_, raw) = self.store.read(uid)?;
        self.store.decoded(uid, static_pod::decode(&raw))
    }

    /// Records an event of a pod.
    pub(super) fn pod_event(&self, pod: &Pod, severity: Severity, reason: &str, message: &str) {
        self.event(pod, "", severity, reason, message);
    }

    /// Records an event of a container.
    pub(super) fn container_event(
        &self,
        pod: &Pod,
        container: &str,
        severity: Severity,
        reason: &str,
        message: &str,
    ) {
        let kind = |list: &[crate::api::Container]| list.iter().any(|c| c.name == container);
        let field = if kind(&pod.spec.init_containers) {
            "initContainers"
        } else if kind(&pod.spec.ephemeral_containers) {
            "ephemeralContainers"
        } else {
            "containers"
        };
        self.event(
            pod,
            &format!("spec.{field}{{{container}}}"),
            severity,
            reason,
            message,
        );
    }

    /// Records an event of the node, which has no namespace; its name stands for its UID, as in the events of a kubelet.
    pub(super) fn node_event(&self, severity: Severity, reason: &str, message: &str) {
        let about = About {
            uid: &PodUid::new(self.node.name.clone()),
            namespace: "",
            name: &self.node.name,
            field_path: "",
        };
        self.event_about(about, severity, reason, message);
    }

    fn event(&self, pod: &Pod, field_path: &str, severity: Severity, reason: &str, message: &str) {
        let meta = &pod.metadata;
        let about = About {
            uid: &meta.uid,
            namespace: &meta.namespace,
            name: &meta.name,
            field_path,
        };
        self.event_about(about, severity, reason, message);
    }

    /// Records an event of something of which there may be no object at hand.
    pub(super) fn event_about(
        &self,
        about: About<'_>,
        severity: Severity,
        reason: &str,
        message: &str,
    ) {
        self.recorder
            .borrow_mut()
            .record(about, severity, reason, message, self.clock.wall());
        if let Some(cluster) = &self.cluster {
            cluster.on_event();
        }
    }

    /// A stored status changed, or what may run of a pod, or how far its end is.
    pub(super) fn status_changed(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.on_status();
        }
    }

    /// The apiserver has the pod, and nobody could read it yet: what there is of it is not nobody's.
    pub(super) fn is_unread(&self, uid: &PodUid) -> bool {
        self.cluster.as_ref().is_some_and(|c| c.is_unread(uid))
    }

    /// Whether the files of root have said which pods there are, and those were handled.
    pub(super) fn manifests_ready(&self) -> bool {
        self.cfg.dirs.manifests.is_none() || self.mux.borrow().source_ready(Source::File)
    }

    /// See [`Complaints::complain`].
    pub(super) fn complain(&self, text: &str) {
        self.complaints.complain(text);
    }

    /// Whether nobody wants the pod any more, the apiserver included.
    pub(super) fn is_nobodys(&self, uid: &PodUid) -> bool {
        self.pods.is_unclaimed(uid) && !self.is_unread(uid)
    }

    /// Whether every configured source has reported and was handled.
    pub(super) fn sources_ready(&self) -> bool {
        self.mux.borrow().all_sources_ready()
    }
}

/// Shared context.
pub(super) type Shared = Rc<Ctx>;
