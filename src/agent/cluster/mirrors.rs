//! Mirror pods: kept as `logic::mirror` wants them, one request at a time. There are about ten static pods.

use alloc::rc::Rc;

use smol::future::FutureExt as _;

use super::{
    answers::{ApiPodSnapshot, copy_of, mirror_of},
    api_pods::ApiPods,
    writer::{ApiWriter, MirrorWork},
};
use crate::{
    agent::{
        asker::AgentHandle,
        clock::Clock,
        complaints::Complaints,
        pod_store::{PodStore, PodStoreError},
    },
    api::{MonoTime, Pod, PodUid, strict::WrongValue},
    error::chain,
    kube::{KubeApi, KubeError, KubeLanes},
    logic::{
        mirror::{self, MirrorConflict, MirrorError, PodFullName},
        static_pod,
    },
    sys::{crash, lane::Lane},
};

/// Keeps mirrors.
pub(super) struct MirrorKeeper {
    pub(super) node: String,
    pub(super) lanes: KubeLanes,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    /// Records of static pods.
    pub(super) store: PodStore,
    pub(super) disk: Lane,
    pub(super) writer: Rc<ApiWriter>,
    pub(super) api_pods: Rc<ApiPods>,
    pub(super) asker: AgentHandle,
}

/// Reason why a mirror could not be brought up to date.
#[derive(Debug, thiserror::Error)]
enum MirrorUpkeepError {
    /// The apiserver does not answer, or refuses.
    #[error(transparent)]
    Api(#[from] KubeError),
    /// The static pod's record.
    #[error(transparent)]
    Record(#[from] PodStoreError),
    /// The static pod has none.
    #[error(transparent)]
    NoMirror(#[from] MirrorError),
    /// An object of the cluster that has the mirror's name. A person can end it.
    #[error("{0}")]
    InTheWay(&'static str),
    /// The apiserver shows something else.
    #[error("the answer is no pod of this node")]
    Answer(#[source] Option<WrongValue>),
}

impl MirrorKeeper {
    /// Until the executor is gone.
    ///
    /// Nothing is done before a first complete list: until then nobody knows which mirrors there are.
    pub(super) async fn run(self) {
        loop {
            let mut next = MonoTime(u64::MAX);
            while self.api_pods.has_completed() {
                let now = self.clock.now();
                let writer = Rc::clone(&self.writer);
                let next_mirror = self.asker.ask(move |agent| writer.next_mirror(agent, now));
                match next_mirror.await {
                    Ok(work) => self.carry_out(work).await,
                    Err(at) => {
                        next = at;
                        break;
                    }
                }
            }
            self.writer.wait_mirrors().or(self.clock.until(next)).await;
        }
    }

    async fn carry_out(&self, work: MirrorWork) {
        let (name, done) = match work {
            MirrorWork::Create(uid, name) => {
                let done = self.create(&uid, &name).await;
                (name, done)
            }
            MirrorWork::Delete(name, uid) => {
                let done = self.delete(&name, &uid).await;
                (name, done)
            }
        };
        if let Err(e) = &done {
            let why = chain(e);
            self.complaints
                .complain(&format!("mirror of static pod {name}: {why}"));
        }
        self.writer
            .mirror_done(&name, done.is_ok(), self.clock.now());
    }

    async fn delete(&self, name: &PodFullName, uid: &PodUid) -> Result<(), MirrorUpkeepError> {
        let (of_name, of_uid) = (name.clone(), uid.clone());
        let job =
            move |api: &dyn KubeApi| api.delete_pod(&of_name.namespace, &of_name.name, &of_uid);
        match self.lanes.work(job).await {
            Ok(None) => self.api_pods.deleted(uid),
            Ok(Some(_)) => return Err(MirrorUpkeepError::InTheWay("finalizers keep it")),
            // Gone already, or another's by now.
            Err(e) if e.is_not_found() || e.is_conflict() => self.api_pods.reread(uid),
            Err(e) => return Err(e.into()),
        }
        self.writer.api_lost(uid);
        self.api_pods.look_again();
        Ok(())
    }

    /// The static pod as it is recorded, and the same decoded.
    async fn recorded(&self, uid: &PodUid) -> Result<(serde_json::Value, Pod), PodStoreError> {
        let (store, of_uid) = (self.store.clone(), uid.clone());
        let read = self.disk.run(move || {
            let (_, raw) = store.read::<serde_json::Value>(&of_uid)?;
            let pod = store.decoded(&of_uid, static_pod::decode(&raw))?;
            Ok((raw, pod))
        });
        read.await
    }

    async fn create(&self, uid: &PodUid, name: &PodFullName) -> Result<(), MirrorUpkeepError> {
        let (raw, pod) = self.recorded(uid).await?;
        let (node, meta) = (self.node.clone(), pod.metadata.clone());
        let of_name = name.clone();
        let job = move |api: &dyn KubeApi| -> Result<Option<ApiPodSnapshot>, MirrorUpkeepError> {
            let PodFullName { namespace, name } = &of_name;
            let own = api.node(&node)?;
            let metadata = &own["metadata"];
            if !metadata["deletionTimestamp"].is_null() {
                return Err(MirrorUpkeepError::InTheWay(
                    "the Node object is being deleted",
                ));
            }
            let node_uid = metadata["uid"].as_str().unwrap_or("");
            let body = mirror::mirror_pod(&raw, &pod, &node, node_uid)?;
            let made = match api.create_pod(namespace, body.to_string().as_bytes()) {
                Err(e) if is_there(&e) => match api.pod(&node, namespace, name) {
                    Err(e) if e.status() == Some(403) => {
                        let why = "a pod of this name is there, of another node";
                        return Err(MirrorUpkeepError::InTheWay(why));
                    }
                    found => found,
                },
                made => made,
            };
            Ok(ApiPodSnapshot::of(made?, &node))
        };
        let seen = self.lanes.work(job).await?;
        crash::point("mirror.made");
        let ApiPodSnapshot { item, sight, pod } = seen.ok_or(MirrorUpkeepError::Answer(None))?;
        let found = pod.map_err(|e| MirrorUpkeepError::Answer(Some(e)))?;
        match mirror::in_the_way(&found.pod.metadata, &meta) {
            MirrorConflict::Stranger => Err(MirrorUpkeepError::InTheWay(
                "a pod of this name is there that is no mirror",
            )),
            // Seen at the next look: one that is older is deleted then.
            MirrorConflict::Same(_) | MirrorConflict::Older(_) => {
                self.api_pods.made(&item, sight, self.clock.now());
                let (copy, mirror) = (copy_of(&found.pod), mirror_of(&found.pod));
                self.writer.api_shows(&item.uid, copy, mirror);
                Ok(())
            }
        }
    }
}

fn is_there(e: &KubeError) -> bool {
    matches!(e, KubeError::Api(e) if e.status == 409 && e.reason == "AlreadyExists")
}
