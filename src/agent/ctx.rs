//! What the loop and the sync tasks share. One thread, so cells instead of locks; no borrow is held across an await.

use alloc::{collections::BTreeMap, rc::Rc, sync::Arc};
use core::cell::{Cell, RefCell};
use std::net::IpAddr;

use super::{
    clock::Clock,
    config_pods::ConfigPod,
    objects::Objects,
    pod_store::{PodStore, StoreError},
    recorder::{About, Recorder, Severity},
};
use crate::{
    api::{
        Mono, Pod, PodUid, Wall,
        cri::{PodRuntimeStatus, RuntimeStatus},
    },
    cgroup::Cgroups,
    config::Config,
    logic::{
        admission,
        backoff::{Backoff, ImageBackoff},
        generate::NodeContext,
        housekeeping::Totals,
        loop_health::RuntimeGate,
        mux::Mux,
        pleg::Pleg,
        pod_table::PodTable,
        reason_cache::ReasonCache,
        runtime_cache::{RunningPods, RuntimeCache},
        static_pod,
        status_cache::StatusCache,
    },
    runtime::Runtime,
    sys::lane::Lane,
    volume::Volumes,
};

/// What the machine is, read once at start.
#[derive(Clone, Debug)]
pub(super) struct NodeFacts {
    /// Node name.
    pub(super) name: String,
    /// Host IPs, primary first.
    pub(super) host_ips: Vec<IpAddr>,
    /// Memory of the machine, bytes.
    pub(super) memory_bytes: u64,
    /// Processors, thousandths.
    pub(super) cpu_milli: u64,
    /// Bytes of the file system of the root dir.
    pub(super) storage_bytes: u64,
    /// Swap of the machine, bytes.
    pub(super) swap_bytes: u64,
    /// Page sizes the kernel offers as huge pages, bytes, sorted.
    pub(super) hugepage_sizes: Vec<u64>,
}

/// Everything a sync may touch.
pub(super) struct Ctx {
    /// Configuration.
    pub(super) cfg: Config,
    /// Machine.
    pub(super) node: NodeFacts,
    /// Time.
    pub(super) clock: Box<dyn Clock>,
    /// Containers.
    pub(super) runtime: Box<dyn Runtime>,
    /// Volumes; every call blocks and runs on the disk lane.
    pub(super) volumes: Volumes,
    /// Cgroups; every call blocks briefly.
    pub(super) cgroups: Arc<Cgroups>,
    /// Specs.
    pub(super) store: PodStore,
    /// Thread for blocking file work.
    pub(super) disk: Lane,
    /// Thread for unpacking images.
    pub(super) unpack: Lane,
    /// Pod workers.
    pub(super) table: RefCell<PodTable>,
    /// What the runtime last said.
    pub(super) cache: RefCell<RuntimeCache>,
    /// Local statuses, by UID: of config pods and of pods on their way out.
    pub(super) statuses: RefCell<StatusCache>,
    /// Why containers did not start.
    pub(super) reasons: RefCell<ReasonCache>,
    /// Crash-loop delays.
    pub(super) crash_loop: RefCell<Backoff>,
    /// Pull delays.
    pub(super) image_backoff: RefCell<ImageBackoff>,
    /// ConfigMaps and Secrets of the manifest directory.
    pub(super) objects: RefCell<Objects>,
    /// Kubernetes events.
    pub(super) recorder: RefCell<Recorder>,
    /// Whether the runtime can be used, by its own word.
    pub(super) gate: RefCell<RuntimeGate>,
    /// That word, for the Node object.
    pub(super) conditions: RefCell<Option<RuntimeStatus>>,
    /// Asks the runtime poller for a relist now; a full channel means one is asked for already.
    pub(super) relist: smol::channel::Sender<()>,
    /// Pods of all sources.
    pub(super) mux: RefCell<Mux>,
    /// Configured pods, by UID.
    pub(super) config: RefCell<BTreeMap<PodUid, ConfigPod>>,
    /// Compares relists.
    pub(super) pleg: RefCell<Pleg>,
    /// Pods that ran at the last relist.
    pub(super) running: RefCell<RunningPods>,
    /// Pod counters.
    pub(super) totals: RefCell<Totals>,
    /// A call waits for a runtime status newer than this.
    pub(super) waiting_for_status: Cell<Option<Mono>>,
    /// What admission knows of the node.
    pub(super) admission_facts: admission::NodeFacts,
    /// What shapes sandboxes and containers.
    pub(super) node_context: NodeContext,
    /// When the agent started.
    pub(super) started_at: Wall,
}

impl Ctx {
    /// The pod as recorded, with defaults applied. Read anew each time: specs do not live in memory.
    pub(super) fn pod(&self, uid: &PodUid) -> Result<Pod, StoreError> {
        let (_, raw) = self.store.read(uid)?;
        self.store.decoded(uid, static_pod::decode(&raw))
    }

    /// What the runtime last said of a pod; an empty status if it said nothing or could not answer.
    pub(super) fn runtime_status(&self, uid: &PodUid) -> PodRuntimeStatus {
        let known = self.cache.borrow().get(uid);
        known.map_or_else(
            |_| PodRuntimeStatus {
                uid: uid.clone(),
                ..PodRuntimeStatus::default()
            },
            |status| PodRuntimeStatus::clone(&status),
        )
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

    fn event(&self, pod: &Pod, field_path: &str, severity: Severity, reason: &str, message: &str) {
        let meta = &pod.metadata;
        let about = About {
            uid: &meta.uid,
            namespace: &meta.namespace,
            name: &meta.name,
            field_path,
        };
        self.recorder
            .borrow_mut()
            .record(about, severity, reason, message, self.clock.wall());
    }

    /// Asks for a relist soon: something was changed at the runtime.
    pub(super) fn request_relist(&self) {
        // Full: one is on its way already.
        let _ = self.relist.try_send(());
    }

    /// Whether every configured source has reported and was handled.
    pub(super) fn sources_ready(&self) -> bool {
        self.mux.borrow().all_sources_ready()
    }

    /// Whether anything may be done to pods: the runtime answers and relists succeed (LOOP-02, LOOP-03).
    pub(super) fn may_run_pods(&self, now: Mono) -> bool {
        self.gate
            .borrow()
            .check(self.pleg.borrow().healthy(now), now)
            .is_ok()
    }

    /// Whether pods may be given a network, and why not.
    pub(super) fn network_problem(&self) -> Option<String> {
        self.gate.borrow().network_error().map(str::to_owned)
    }
}

/// Shared context.
pub(super) type Shared = Rc<Ctx>;
