//! The apiserver, as the agent meets it: what `logic` decides is asked here, on the lanes of [`KubeLanes`], and what comes
//! back goes to the loop. Nothing of this is made on a node that stands alone.
//!
//! | file | what it is |
//! |---|---|
//! | `join` | from the kubeconfig to lanes |
//! | `link` | owner: whether the apiserver answers, and what its clock says |
//! | `membership` | owner: this node's place in the cluster |
//! | `node`, `lease` | the Node object, its status, the lease |
//! | `pod_cidr` | addresses for pods, as the control plane gives them |
//! | `certificates`, `signing` | the node's own certificate: asked for, rotated |
//! | `serving` | the certificate of the node's server, where the cluster issues it |
//! | `api_pods` | owner: which pods the API has |
//! | `pods`, `restore`, `answers` | pods of this node: polled, recorded, handed to the mux; what was last known, offline |
//! | `writer` | owner: what the API is to be told of pods |
//! | `statuses`, `mirrors` | statuses and deletions, sent; mirror pods of static ones |
//! | `objects` | owner: ConfigMaps, Secrets, services, claims, tokens that pods refer to |
//! | `nfs` | shares of the network |
//! | `events` | Kubernetes events, sent |
//!
//! Each long-lived task is a value made by [`Cluster::cluster_tasks`] with what it needs. Nothing here knows the rest
//! of the agent: it sees pods, node and sources through [`views`](super::views).

mod answers;
mod api_pods;
mod certificates;
mod events;
mod join;
mod k3s_cluster;
mod lease;
mod link;
mod membership;
mod mirrors;
mod nfs;
mod node;
mod objects;
mod own_node;
pub(crate) mod pod_cidr;
mod pods;
mod restore;
mod serving;
mod signing;
mod statuses;
#[cfg(test)]
mod tests;
mod writer;

use alloc::{collections::BTreeMap, rc::Rc, sync::Arc};
use core::cell::{Cell, RefCell};
use std::path::Path;

use super::{
    asker::AgentHandle,
    clock::Clock,
    cluster_network::ClusterNetworkBoard,
    cluster_views::OwnNode,
    complaints::Complaints,
    kept_node::NodeLabelsStore,
    link_policy::LinkPolicy,
    node::LocalNode,
    offered::OfferedResources,
    outcome::EarlierOutcome,
    pod_store::{PodRecordHeader, PodStore},
    recorder::EventRecorder,
    tasks::{AgentTask, TaskSpawner, box_task},
};
use crate::{
    api::{MonoTime, Pod, PodUid, WallTime, health::ApiserverHealth, node::NodeCondition},
    config::AgentConfig,
    kube::{ClusterReader, KubeLanes, store::CertificateStore},
    logic::{
        api_poll::{ApiPoll, PollIntervals},
        events::{EventCorrelator, EventPoster},
        pod_kind,
    },
    net::serving::ServingCertificateSlot,
    runtime::RuntimeService,
    sys::lane::Lane,
    volume::Volumes,
};
pub(super) use join::{JoinedCluster, NodeJoinError, join_cluster};
pub(super) use nfs::{NfsShare, mount_share as mount_nfs, unmount_shares as unmount_nfs};
pub(super) use objects::{LoadedObjects, ObjectStore};
pub(crate) use own_node::OwnNodeObject;
pub(super) use writer::{ApiWriter, PodNews};

use api_pods::ApiPods;
use certificates::{ClientCertificateKeeper, ClientCertificateState, RenewedCertificate};
use events::EventSender;
use k3s_cluster::{K3sFactsKeeper, ReaderCertificateKeeper};
use lease::LeaseTask;
use link::{ApiserverLink, HeartbeatLane};
use membership::Membership;
use mirrors::MirrorKeeper;
use node::NodeKeeper;
use objects::ObjectKeeper;
use pod_cidr::PodCidrFollower;
use pods::{PodPoller, PodRequests, PollerState};
use restore::PodRecordRestorer;
use serving::ServingCertificateKeeper;
use signing::{CertificateSigner, K3sSigner};
use statuses::StatusSender;

/// An apiserver that this node belongs to: who knows what of it.
pub(super) struct Cluster {
    /// Threads that ask the apiserver.
    pub(super) lanes: KubeLanes,
    /// State of the connection to the apiserver.
    pub(super) link: Rc<ApiserverLink>,
    /// Membership of this node.
    pub(super) member: Rc<Membership>,
    /// Writer of statuses, deletions and mirrors.
    pub(super) writer: Rc<ApiWriter>,
    /// Objects that pods of the API refer to.
    pub(super) objects: Rc<ObjectStore>,
    api_pods: Rc<ApiPods>,
    /// State of this node's own certificate, if the agent renews it.
    certificates: Option<Rc<ClientCertificateState>>,
    /// Files of that certificate, until the task that renews it takes them.
    certificate: Cell<Option<RenewedCertificate>>,
    /// Supervisor of k3s, which signs certificates in place of the apiserver.
    k3s: Option<Arc<K3sSigner>>,
    /// Reader of what no node may read, if a part wants it.
    pub(super) reader: Option<Rc<ClusterReader>>,
    /// Network of the cluster, if its servers tell it.
    pub(super) network: Rc<ClusterNetworkBoard>,
    /// Answers about pods that may wait.
    answers: usize,
    /// Identity of the cluster.
    authority: String,
}

/// Returns the objects that `pod` may refer to, if it is a pod of the API.
pub(super) fn objects_for_pod<'a>(
    objects: Option<&'a Rc<ObjectStore>>,
    pod: &Pod,
) -> Option<&'a ObjectStore> {
    objects.filter(|_| !pod_kind::is_static(pod)).map(|o| &**o)
}

/// Tools of the agent that those use who speak with the apiserver.
pub(super) struct ClusterTools {
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) disk: Lane,
    pub(super) volumes: Volumes,
    pub(super) link_policy: Rc<dyn LinkPolicy>,
}

/// Parts of the agent that the tasks of the cluster need.
pub(super) struct ClusterDeps {
    pub(super) spawner: TaskSpawner,
    pub(super) tools: ClusterTools,
    pub(super) recorder: Rc<EventRecorder>,
    pub(super) runtime: Rc<dyn RuntimeService>,
    pub(super) store: PodStore,
    /// Reads from beside a pod's record how the pod ended in an earlier boot. Blocking.
    pub(super) outcome: fn(&PodStore, &PodUid, &PodRecordHeader) -> Option<EarlierOutcome>,
    /// Tells one boot from another.
    pub(super) boot_id: String,
    pub(super) node: OwnNode,
    /// Asks the loop, and tells it.
    pub(super) asker: AgentHandle,
}

impl Cluster {
    /// An apiserver of which nothing is known yet. `slots`: places for pods. `labels`: those of the Node, until it is read.
    pub(super) fn new(
        joined: JoinedCluster,
        cfg: &AgentConfig,
        slots: usize,
        labels: BTreeMap<String, String>,
        tools: ClusterTools,
    ) -> Self {
        let JoinedCluster {
            lanes,
            skew,
            certificate,
            k3s,
            reader,
            facts,
            authority,
            doorbells,
            seed,
            peer: _,
            answers,
        } = joined;
        let network = Rc::<ClusterNetworkBoard>::default();
        if let Some(facts) = facts {
            network.set_facts(facts);
        }
        let paces = PollIntervals {
            doorbell: doorbells,
            ..PollIntervals::NORMAL
        };
        let ClusterTools {
            clock,
            complaints,
            disk,
            volumes,
            link_policy,
        } = tools;
        let tools = objects::ObjectTools {
            lanes: lanes.clone(),
            clock,
            complaints,
            disk,
            volumes,
            skew: Arc::clone(&skew),
            link_policy,
        };
        Self {
            lanes,
            link: Rc::new(ApiserverLink::new(skew)),
            member: Rc::new(Membership::new(pod_cidr::restore_pod_cidrs(cfg))),
            writer: Rc::new(ApiWriter::new(seed.rotate_left(1))),
            objects: Rc::new(ObjectStore::new(cfg, labels, tools)),
            api_pods: Rc::new(ApiPods::new(ApiPoll::new(paces, slots, seed))),
            certificates: certificate.as_ref().map(|_| Rc::default()),
            certificate: Cell::new(certificate),
            k3s,
            reader,
            network,
            answers,
            authority,
        }
    }

    /// The Node named `name`, this one, for parts.
    pub(super) fn own_node_object(&self, name: &str) -> OwnNodeObject {
        OwnNodeObject {
            name: name.to_owned(),
            lanes: self.lanes.clone(),
            member: Rc::clone(&self.member),
        }
    }

    /// Health of the apiserver's side, for `check`.
    pub(super) fn apiserver_health(&self, clock: &dyn Clock) -> ApiserverHealth {
        let now = clock.now();
        ApiserverHealth {
            answered_age_ms: self.link.last_answer().map(|at| now.since_ms(at)),
            trouble: self.link.outage_reason(),
            clock: self.link.describe_skew(clock),
            certificate: self.certificate_trouble(),
        }
    }

    /// Problem of this node's certificate, if it has one.
    fn certificate_trouble(&self) -> Option<String> {
        self.certificates
            .as_ref()
            .and_then(|c| c.certificate_trouble())
    }

    /// Condition of `get node` for the apiserver.
    pub(super) fn link_condition(&self, clock: &dyn Clock) -> NodeCondition {
        self.link.link_condition(self.certificate_trouble(), clock)
    }

    /// Instant of the apiserver's last answer.
    pub(super) fn last_answer(&self) -> Option<MonoTime> {
        self.link.last_answer()
    }

    /// End of this node's certificate. `None` if the agent does not renew it; `Some(None)` if there is none yet.
    pub(super) fn certificate_end(&self) -> Option<Option<WallTime>> {
        self.certificates.as_ref().map(|c| c.end.get())
    }

    /// Reason why the agent ends, if the apiserver is the cause.
    pub(super) fn agent_end_reason(&self) -> Option<String> {
        self.certificates.as_ref()?.agent_end_reason()
    }

    /// The API has the pod, and nobody could read it yet: what runs of it is no orphan.
    pub(super) fn is_unread(&self, uid: &PodUid) -> bool {
        self.api_pods.is_unread(uid)
    }

    /// UIDs of mirror pods, sorted.
    pub(super) fn mirror_uids(&self) -> Vec<PodUid> {
        self.writer.mirror_uids()
    }

    /// Makes the tasks of a node of k3s that ask its servers.
    fn k3s_tasks(
        &self,
        cfg: &AgentConfig,
        node: &Rc<LocalNode>,
        tools: &ClusterTools,
    ) -> Vec<AgentTask> {
        let Some(k3s) = &self.k3s else {
            return Vec::new();
        };
        let facts = K3sFactsKeeper {
            k3s: Arc::clone(k3s),
            signer: self.make_signer(tools),
            root: cfg.dirs.root.clone(),
            board: Rc::clone(&self.network),
            node: Rc::clone(node),
            member: Rc::clone(&self.member),
        };
        let mut tasks = vec![box_task(facts.keep_facts())];
        let reader = self.reader.clone();
        if let Some(reader) = reader.filter(|_| cfg.cluster.network_kubeconfig.is_none()) {
            let certificate = ReaderCertificateKeeper {
                node: cfg.node_name.clone(),
                k3s: Arc::clone(k3s),
                store: CertificateStore::kube_proxy(&cfg.cluster.cert_dir),
                signer: self.make_signer(tools),
                reader,
                link: Rc::clone(&self.link),
            };
            tasks.push(box_task(certificate.keep_certificate()));
        }
        tasks
    }

    fn make_signer(&self, tools: &ClusterTools) -> CertificateSigner {
        CertificateSigner {
            lanes: self.lanes.clone(),
            clock: Rc::clone(&tools.clock),
            complaints: Rc::clone(&tools.complaints),
            disk: tools.disk.clone(),
            k3s: self.k3s.clone(),
            skew: Arc::clone(&self.link.skew),
        }
    }

    /// Keeps the certificate of the node's server, for the agent's life.
    pub(super) fn keep_serving_certificate(
        &self,
        node_name: String,
        cert_dir: &Path,
        tools: ClusterTools,
        node: Rc<LocalNode>,
        shown: Arc<ServingCertificateSlot>,
    ) -> AgentTask {
        let task = ServingCertificateKeeper {
            node: node_name,
            store: CertificateStore::server(cert_dir),
            signer: self.make_signer(&tools),
            own: node,
            shown,
        };
        box_task(task.keep_certificate())
    }

    /// All that speaks with the apiserver for as long as the agent runs.
    pub(super) fn cluster_tasks(&self, cfg: &AgentConfig, around: ClusterDeps) -> Vec<AgentTask> {
        let ClusterDeps {
            spawner,
            tools,
            recorder,
            runtime,
            store,
            outcome,
            boot_id,
            node: own,
            asker,
        } = around;
        // What an agent before this one has heard counts for the registration.
        if let Some(facts) = self.network.facts() {
            own.node.take_k3s_facts(facts);
        }
        let k3s = self.k3s_tasks(cfg, &own.node, &tools);
        let name = || cfg.node_name.clone();
        let lanes = || self.lanes.clone();
        let clock = || Rc::clone(&tools.clock);
        let complaints = || Rc::clone(&tools.complaints);
        let disk = || tools.disk.clone();
        let link_policy = || Rc::clone(&tools.link_policy);
        let (member, writer) = (|| Rc::clone(&self.member), || Rc::clone(&self.writer));
        let api_pods = || Rc::clone(&self.api_pods);
        let asker = || asker.clone();
        let heartbeat = HeartbeatLane {
            lanes: lanes(),
            link: Rc::clone(&self.link),
            clock: clock(),
            complaints: complaints(),
            asker: asker(),
        };
        let (written, answers) = smol::channel::bounded(self.answers);
        let follows_cidrs = pod_cidr::follows_control_plane(cfg);
        let keeper = Rc::new(NodeKeeper {
            name: name(),
            boot_id,
            settings: cfg.node.clone(),
            heartbeat: heartbeat.clone(),
            member: member(),
            own,
            recorder: Rc::clone(&recorder),
            objects: Rc::clone(&self.objects),
            cidrs: PodCidrFollower {
                is_followed: follows_cidrs,
                root: cfg.dirs.root.clone(),
                runtime,
                disk: disk(),
                complaints: complaints(),
            },
            offered: OfferedResources::new(&cfg.dirs.root, disk()),
            record: NodeLabelsStore::new(&cfg.dirs.root, name(), self.authority.clone(), disk()),
        });
        let lease = LeaseTask {
            node: name(),
            duration_s: cfg.node.lease_duration_s,
            link_policy: link_policy(),
            heartbeat,
            member: member(),
        };
        let restore = PodRecordRestorer {
            node: name(),
            clock: clock(),
            complaints: complaints(),
            store: store.clone(),
            volumes: tools.volumes.clone(),
            disk: disk(),
            outcome,
            writer: writer(),
            api_pods: api_pods(),
            asker: asker(),
        };
        let poller = PodPoller {
            requests: PodRequests {
                node: name(),
                spawner: spawner.clone(),
                lanes: lanes(),
                complaints: complaints(),
                answers: written.clone(),
                link_policy: link_policy(),
            },
            answers,
            clock: clock(),
            recorder: Rc::clone(&recorder),
            writer: writer(),
            api_pods: api_pods(),
            member: member(),
            asker: asker(),
            course: PollerState::default(),
        };
        let statuses = Rc::new(StatusSender {
            node: name(),
            spawner,
            lanes: lanes(),
            clock: clock(),
            complaints: complaints(),
            writer: writer(),
            api_pods: api_pods(),
            member: member(),
            asker: asker(),
            store: store.clone(),
            disk: disk(),
            forbidden: RefCell::default(),
            written,
        });
        let mirrors = MirrorKeeper {
            node: name(),
            lanes: lanes(),
            clock: clock(),
            complaints: complaints(),
            store,
            disk: disk(),
            writer: writer(),
            api_pods: api_pods(),
            asker: asker(),
        };
        let now = tools.clock.now();
        let (per_second, burst) = cfg.cluster.event_qps;
        let correlator = EventCorrelator::new(&cfg.node_name);
        let events = EventSender {
            lanes: lanes(),
            clock: clock(),
            complaints: complaints(),
            recorder,
            writer: writer(),
            link_policy: link_policy(),
            sender: EventPoster::new(correlator, per_second, burst, now, now.0),
        };
        let objects = ObjectKeeper {
            objects: Rc::clone(&self.objects),
            asker: asker(),
        };
        let mut tasks = vec![
            box_task(Rc::clone(&keeper).keep_node()),
            box_task(Rc::clone(&keeper).read_when_asked()),
            box_task(lease.keep_lease()),
        ];
        if follows_cidrs {
            tasks.push(box_task(keeper.wait_for_first_cidr()));
        }
        tasks.extend([
            box_task(poller.poll_pods(restore)),
            box_task(statuses.send_statuses()),
            box_task(mirrors.keep_mirrors()),
            box_task(events.send_events()),
            box_task(objects.keep_objects()),
        ]);
        if let (Some(kept), Some(state)) = (self.certificate.take(), &self.certificates) {
            let certificate = ClientCertificateKeeper {
                node: name(),
                kept,
                state: Rc::clone(state),
                link: Rc::clone(&self.link),
                member: member(),
                asker: asker(),
                signer: self.make_signer(&tools),
            };
            tasks.push(box_task(certificate.keep_certificate()));
        }
        tasks.extend(k3s);
        tasks
    }
}

#[cfg(test)]
mod testing {
    //! What tests ask.
    use crate::api::{MonoTime, WallTime};

    impl super::Cluster {
        /// An answer with this date came at `now`.
        pub(in crate::agent) fn take_server_date(&self, theirs: WallTime, now: MonoTime) {
            self.link.skew.take_server_date(theirs, now);
        }

        /// A whole list was told since the agent began.
        pub(in crate::agent) fn has_complete_list(&self) -> bool {
            self.api_pods.has_complete_list()
        }

        /// Describes the memory of the API's pods, for the report of a failure.
        pub(in crate::agent) fn describe_memory(&self) -> String {
            format!(
                "{}\n{}",
                self.api_pods.describe_memory(),
                self.writer.describe_memory()
            )
        }
    }
}
