//! What the loop and the sync tasks share. One thread, so cells instead of locks; no borrow is held across an await.

use alloc::{rc::Rc, sync::Arc};
use core::cell::RefCell;

use super::{
    clock::Clock,
    cluster::{self, Cluster, Joined, News},
    complaints::Complaints,
    executor::PodCgroups,
    images::{self, Images, NodeKeyring},
    metered::Metered,
    node::Node,
    objects::Objects,
    pod_store::PodStore,
    pods::{self, Pods},
    probes::{Probes, Wire},
    recorder::{Recorder, Severity},
    ring::Ring,
    runtime_view::RuntimeView,
    vitals::{HeapUse, LoopWatch, WorkCounters},
};
use crate::{
    api::{Mono, Pod, PodUid, Wall},
    cgroup::Cgroups,
    config::Config,
    runtime::{ImageService, RuntimeService},
    sys::lane::Lane,
    volume::Volumes,
};

/// What an agent is made of; the rest of [`Ctx`] begins empty.
pub(super) struct Parts {
    pub(super) cfg: Config,
    pub(super) node: Rc<Node>,
    pub(super) clock: Box<dyn Clock>,
    pub(super) runtime: Rc<dyn RuntimeService>,
    pub(super) keyring: Rc<dyn NodeKeyring>,
    pub(super) volumes: Volumes,
    pub(super) cgroups: Cgroups,
    pub(super) disk: Lane,
    pub(super) relist: smol::channel::Sender<Mono>,
    pub(super) joined: Option<Joined>,
    pub(super) wire: Rc<dyn Wire>,
}

/// Everything a sync may touch.
pub(super) struct Ctx {
    /// Configuration.
    pub(super) cfg: Config,
    /// This machine as a node.
    pub(super) node: Rc<Node>,
    /// Time.
    pub(super) clock: Rc<dyn Clock>,
    /// Containers.
    pub(super) runtime: Rc<dyn RuntimeService>,
    /// What is known of them.
    pub(super) view: RuntimeView,
    /// What is known of pods.
    pub(super) pods: Pods,
    /// Volumes; every call blocks and runs on the disk lane.
    pub(super) volumes: Volumes,
    /// Cgroups; every call blocks briefly.
    pub(super) cgroups: Arc<Cgroups>,
    /// Those of pods and tiers.
    pub(super) pod_cgroups: PodCgroups,
    /// Specs.
    pub(super) store: PodStore,
    /// Thread for blocking file work.
    pub(super) disk: Lane,
    /// Images.
    pub(super) images: Rc<Images>,
    /// ConfigMaps and Secrets of the manifest directory, as last read.
    pub(super) objects: RefCell<Rc<Objects>>,
    /// Probes.
    pub(super) probes: Rc<Probes>,
    /// The network, for probes and hooks.
    pub(super) wire: Rc<dyn Wire>,
    /// Kubernetes events.
    pub(super) recorder: Rc<Recorder>,
    /// What the loop lately heard and did.
    pub(super) ring: RefCell<Ring>,
    /// What was complained about lately.
    pub(super) complaints: Rc<Complaints>,
    /// Whether the heap was used.
    pub(super) heap: HeapUse,
    /// When the loop last moved.
    pub(super) loop_watch: LoopWatch,
    /// When the agent started.
    pub(super) started_at: Wall,
    /// The same for reckoning.
    pub(super) started: Mono,
    /// The apiserver; `None`: the node stands alone.
    pub(super) cluster: Option<Cluster>,
    /// What the agent counts of its own work.
    pub(super) counters: WorkCounters,
}

impl Ctx {
    /// An agent that knows of no pod yet.
    pub(super) fn new(parts: Parts) -> Self {
        let cfg = parts.cfg;
        let slots = pods::slots(&cfg).slots();
        let entries = slots * pods::BACKOFF_ENTRIES_PER_POD;
        let clock: Rc<dyn Clock> = Rc::from(parts.clock);
        let counters = WorkCounters::default();
        let complaints = Rc::new(Complaints::new(Rc::clone(&clock)));
        let runtime: Rc<dyn RuntimeService> = Rc::new(Metered {
            inner: parts.runtime,
            clock: Rc::clone(&clock),
            counters: counters.clone(),
        });
        let tools = images::Tools {
            service: Rc::clone(&runtime) as Rc<dyn ImageService>,
            keyring: parts.keyring,
            clock: Rc::clone(&clock),
            disk: parts.disk.clone(),
            complaints: Rc::clone(&complaints),
        };
        let images = Images::new(&cfg.images, entries, &cfg.dirs.root, tools);
        // Delays need spreading, not secrecy.
        let seed = clock.now().0 ^ clock.wall().0.unsigned_abs();
        let cluster = parts.joined.map(|joined| {
            let labels = parts.node.with_admission(|node| node.labels.clone());
            let tools = cluster::Tools {
                clock: Rc::clone(&clock),
                complaints: Rc::clone(&complaints),
                disk: parts.disk.clone(),
                volumes: parts.volumes.clone(),
            };
            Cluster::new(joined, &cfg, slots, labels, tools)
        });
        let cgroups = Arc::new(parts.cgroups);
        let pod_cgroups = PodCgroups::new(
            &cfg,
            parts.node.facts(),
            parts.node.context().cgroups.clone(),
            Arc::clone(&cgroups),
            parts.disk.clone(),
        );
        Self {
            view: RuntimeView::new(parts.relist),
            store: PodStore::new(&cfg.dirs.root, &cfg.dirs.run),
            cluster,
            pods: Pods::new(&cfg, seed),
            images: Rc::new(images),
            objects: RefCell::default(),
            probes: Rc::new(Probes::new(clock.now(), clock.wall())),
            wire: parts.wire,
            recorder: Rc::new(Recorder::new(Rc::clone(&clock), cfg.node_name.clone())),
            ring: RefCell::new(Ring::default()),
            heap: HeapUse::new(),
            complaints,
            loop_watch: LoopWatch::new(cfg.times.sync),
            started_at: clock.wall(),
            started: clock.now(),
            node: parts.node,
            clock,
            runtime,
            counters,
            volumes: parts.volumes,
            cgroups,
            pod_cgroups,
            disk: parts.disk,
            cfg,
        }
    }

    /// Records an event of a pod.
    pub(super) fn pod_event(&self, pod: &Pod, severity: Severity, reason: &str, message: &str) {
        self.recorder.pod(pod, severity, reason, message);
    }

    /// Records an event of the node, which has no namespace; its name stands for its UID, as in the events of a kubelet.
    pub(super) fn node_event(&self, severity: Severity, reason: &str, message: &str) {
        self.recorder.node(severity, reason, message);
    }

    /// What may run of pods is another, or how far their ends are.
    pub(super) fn status_changed(&self) {
        self.tell_api(News::Pods);
    }

    /// The apiserver has the pod, and nobody could read it yet: what there is of it is not nobody's.
    pub(super) fn is_unread(&self, uid: &PodUid) -> bool {
        self.cluster.as_ref().is_some_and(|c| c.is_unread(uid))
    }

    /// See [`Complaints::complain`].
    pub(super) fn complain(&self, text: &str) {
        self.complaints.complain(text);
    }

    /// Whether nobody wants the pod any more, the apiserver included.
    pub(super) fn is_nobodys(&self, uid: &PodUid) -> bool {
        self.pods.is_unclaimed(uid) && !self.is_unread(uid)
    }
}

/// Shared context.
pub(super) type Shared = Rc<Ctx>;
