//! The apiserver, as the agent meets it: what `logic` decides is asked here, on the lanes of [`KubeLanes`], and what comes
//! back goes to the loop. Nothing of this is made on a node that stands alone.
//!
//! | file | what it is |
//! |---|---|
//! | `join` | from the kubeconfig to lanes |
//! | `link` | whether the apiserver answers, and what its clock says |
//! | `node`, `lease` | the Node object, its status, the lease |
//! | `pod_cidr` | addresses for pods, as the control plane gives them |
//! | `certificates` | the node's own certificate: asked for, rotated |
//! | `serving` | the certificate of the node's server, where the cluster issues it |
//! | `pods`, `restore`, `answers` | pods of this node: polled, recorded, handed to the mux; what was last known, offline |
//! | `statuses` | what the apiserver is told of pods |
//! | `mirrors` | mirror pods of static ones |
//! | `objects`, `object_files`, `loaded` | ConfigMaps, Secrets, services that pods refer to; on disk, in use |
//! | `tokens` | tokens of service accounts |
//! | `claims`, `nfs` | volumes of claims; shares of the network |
//! | `upkeep` | what objects and tokens need beside the pods that use them |
//! | `events` | Kubernetes events, sent |
//! | `wake` | how these tasks are told that there is something to do |

mod answers;
mod certificates;
mod claims;
mod events;
mod join;
mod lease;
mod link;
mod loaded;
mod mirrors;
mod nfs;
pub(super) mod node;
mod object_files;
pub(super) mod objects;
pub(super) mod pod_cidr;
mod pods;
mod restore;
pub(super) mod serving;
mod statuses;
mod tokens;
mod upkeep;
mod wake;

use alloc::rc::Rc;
use core::pin::Pin;

use smol::{LocalExecutor, channel::Sender};

use super::{
    core::Event,
    ctx::{Ctx, Shared},
    pods::slots,
};
use crate::{
    api::{Mono, PodUid},
    config::Config,
    kube::KubeLanes,
    server::backend::ApiserverHealth,
};
pub(super) use claims::{KnownVolume, bound_volumes, known_volumes, volume_groups};
pub(super) use join::{JoinError, join};
pub(super) use link::{Link, condition};
pub(super) use nfs::{Share, mount as mount_nfs, unmount as unmount_nfs};

/// An apiserver that this node belongs to.
pub(super) struct Cluster {
    /// It, and the threads that wait for it.
    pub(super) lanes: KubeLanes,
    /// Whether it answers.
    pub(super) link: Link,
    /// The Node object there.
    pub(super) node: node::Membership,
    /// This node's own certificate, if it is the agent's to keep.
    pub(super) certificates: Option<certificates::Certificates>,
    /// Pods of the API, and what they are told.
    pods: pods::Pods,
    /// What they refer to.
    pub(super) objects: objects::ObjectsOfPods,
    /// Tells that the recorder has something.
    outbox: wake::Wake,
}

impl Cluster {
    /// An apiserver of which nothing is known yet. `seed` decides the spread of delays.
    pub(super) fn new(lanes: KubeLanes, cfg: &Config, seed: u64) -> Self {
        Self {
            lanes,
            link: Link::default(),
            node: node::Membership::new(pod_cidr::restored(cfg)),
            certificates: None,
            pods: pods::Pods::new(cfg, slots(cfg).slots(), seed),
            objects: objects::ObjectsOfPods::new(cfg),
            outbox: wake::Wake::default(),
        }
    }

    /// What `check` asks for.
    pub(super) fn health(&self, now: Mono) -> ApiserverHealth {
        ApiserverHealth {
            answered_age_ms: self.link.answered().map(|at| now.since_ms(at)),
            trouble: self.link.trouble(),
            clock: self.link.skew_text(),
            certificate: self.certificates.as_ref().and_then(|c| c.trouble()),
        }
    }

    /// When the apiserver last answered.
    pub(super) fn answered(&self) -> Option<Mono> {
        self.link.answered()
    }

    /// Why the agent ends, if it does because of the apiserver.
    pub(super) fn ended(&self) -> Option<String> {
        self.certificates.as_ref()?.ended()
    }

    /// A stored status changed, or what may run of a pod, or how far its end is.
    pub(super) fn on_status(&self) {
        self.pods.on_status();
    }

    /// Static pods, or those that end, are others now.
    pub(super) fn on_static_pods(&self) {
        self.pods.mirrors_due.ring();
    }

    /// All pods are ended now, and then the agent ends, as when the machine is switched off. A kubelet that goes down with its
    /// machine tells nothing either: pods are no less wanted for it, and start again with the next.
    pub(super) fn on_end_of_all(&self) {
        self.pods.is_silent.set(true);
    }

    /// An event was recorded.
    pub(super) fn on_event(&self) {
        self.outbox.ring();
    }

    /// The API has the pod, and nobody could read it yet: what runs of it is no orphan.
    pub(super) fn is_unread(&self, uid: &PodUid) -> bool {
        self.pods.is_unread(uid)
    }

    /// A whole list was told since the agent began.
    #[cfg(test)]
    pub(super) fn has_completed(&self) -> bool {
        self.pods.poll.borrow().has_completed()
    }

    /// What is remembered of the API's pods, for the report of a failure.
    #[cfg(test)]
    pub(super) fn memory(&self) -> String {
        let (poll, writer) = (self.pods.poll.borrow(), self.pods.writer.borrow());
        format!("{poll:?}\n{writer:?}")
    }

    /// UIDs of mirror pods, sorted.
    pub(super) fn mirror_uids(&self) -> Vec<PodUid> {
        self.pods.mirror_uids()
    }

    /// The Node was read for the first time: pods of the API are taken up from now on (OFF-07).
    fn on_node_read(&self) {
        self.pods.asks_due.ring();
        self.pods.statuses_due.ring();
        self.pods.mirrors_due.ring();
    }
}

/// Starts everything that speaks with the apiserver, if there is one. What is started ends with what is returned, unless
/// that is detached.
pub(super) fn start(
    ctx: &Shared,
    executor: &Rc<LocalExecutor<'static>>,
    events: &Sender<Event>,
) -> Vec<smol::Task<()>> {
    let Some(cluster) = &ctx.cluster else {
        return Vec::new();
    };
    let shared = || Rc::clone(ctx);
    let mut tasks = vec![
        boxed(node::run(shared())),
        boxed(lease::run(shared())),
        boxed(pod_cidr::wait_for_first(shared())),
        boxed(pods::run(shared(), Rc::clone(executor), events.clone())),
        boxed(statuses::run(shared(), Rc::clone(executor))),
        boxed(mirrors::run(shared())),
        boxed(events::run(shared())),
        boxed(upkeep::run(shared())),
    ];
    if cluster.certificates.is_some() {
        tasks.push(boxed(certificates::run(shared(), events.clone())));
    }
    tasks.into_iter().map(|task| executor.spawn(task)).collect()
}

/// Something that runs as long as the agent.
type Task = Pin<Box<dyn Future<Output = ()>>>;

fn boxed(task: impl Future<Output = ()> + 'static) -> Task {
    Box::pin(task)
}

/// The cluster of a context that has one: tasks of this module are started only then.
fn of(ctx: &Ctx) -> &Cluster {
    ctx.cluster
        .as_ref()
        .expect("started only with an apiserver")
}

/// Waits until `due`, or for ever.
async fn until(ctx: &Ctx, due: Mono) {
    ctx.clock.until(due).await;
}
