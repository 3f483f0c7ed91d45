//! Mirror pods: kept as `logic::mirror` wants them, one request at a time. There are about ten static pods.

use alloc::rc::Rc;

use smol::future::FutureExt as _;

use super::{
    answers::{ApiPodSnapshot, api_copy_of, parse_mirror},
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
    error::error_chain,
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
    #[error("the answer is not a pod of this node")]
    Answer(#[source] Option<WrongValue>),
}

impl MirrorKeeper {
    /// Until the executor is gone.
    ///
    /// Nothing is done before a first complete list: until then nobody knows which mirrors there are.
    pub(super) async fn keep_mirrors(self) {
        loop {
            let mut next = MonoTime(u64::MAX);
            while self.api_pods.has_complete_list() {
                let now = self.clock.now();
                let writer = Rc::clone(&self.writer);
                let next_mirror = self
                    .asker
                    .ask_agent(move |agent| writer.next_mirror(agent, now));
                match next_mirror.await {
                    Ok(work) => self.carry_out(work).await,
                    Err(at) => {
                        next = at;
                        break;
                    }
                }
            }
            self.writer
                .wait_for_mirror_work()
                .or(self.clock.sleep_until(next))
                .await;
        }
    }

    async fn carry_out(&self, work: MirrorWork) {
        let (name, done) = match work {
            MirrorWork::Create(uid, name) => {
                let done = self.create_mirror(&uid, &name).await;
                (name, done)
            }
            MirrorWork::Delete(name, uid) => {
                let done = self.delete_mirror(&name, &uid).await;
                (name, done)
            }
        };
        if let Err(e) = &done {
            let why = error_chain(e);
            self.complaints
                .complain(&format!("mirror of static pod {name}: {why}"));
        }
        self.writer
            .note_mirror_result(&name, done.is_ok(), self.clock.now());
    }

    async fn delete_mirror(
        &self,
        name: &PodFullName,
        uid: &PodUid,
    ) -> Result<(), MirrorUpkeepError> {
        let (of_name, of_uid) = (name.clone(), uid.clone());
        let job =
            move |api: &dyn KubeApi| api.delete_pod(&of_name.namespace, &of_name.name, &of_uid);
        match self.lanes.run_request(job).await {
            Ok(None) => self.api_pods.note_deleted_pod(uid),
            Ok(Some(_)) => return Err(MirrorUpkeepError::InTheWay("finalizers keep it")),
            // Gone already, or another's by now.
            Err(e) if e.is_not_found() || e.is_conflict() => self.api_pods.request_reread(uid),
            Err(e) => return Err(e.into()),
        }
        self.writer.take_lost_pod(uid);
        self.api_pods.wake_poller();
        Ok(())
    }

    /// The static pod as it is recorded, and the same decoded.
    async fn read_static_pod(
        &self,
        uid: &PodUid,
    ) -> Result<(serde_json::Value, Pod), PodStoreError> {
        let (store, of_uid) = (self.store.clone(), uid.clone());
        let read = self.disk.run_job(move || {
            let (_, raw) = store.read_record::<serde_json::Value>(&of_uid)?;
            let pod = store.check_decoded(&of_uid, static_pod::decode_recorded_pod(&raw))?;
            Ok((raw, pod))
        });
        read.await
    }

    async fn create_mirror(
        &self,
        uid: &PodUid,
        name: &PodFullName,
    ) -> Result<(), MirrorUpkeepError> {
        let (raw, pod) = self.read_static_pod(uid).await?;
        let (node, meta) = (self.node.clone(), pod.metadata.clone());
        let of_name = name.clone();
        let job = move |api: &dyn KubeApi| -> Result<Option<ApiPodSnapshot>, MirrorUpkeepError> {
            let PodFullName { namespace, name } = &of_name;
            let own = api.read_node(&node)?;
            let metadata = &own["metadata"];
            if !metadata["deletionTimestamp"].is_null() {
                return Err(MirrorUpkeepError::InTheWay(
                    "the Node object is being deleted",
                ));
            }
            let node_uid = metadata["uid"].as_str().unwrap_or("");
            let body = mirror::mirror_pod(&raw, &pod, &node, node_uid)?;
            let made = match api.create_pod(namespace, body.to_string().as_bytes()) {
                Err(e) if already_exists(&e) => match api.read_pod(&node, namespace, name) {
                    Err(e) if e.http_status() == Some(403) => {
                        let why = "another node has a pod of this name";
                        return Err(MirrorUpkeepError::InTheWay(why));
                    }
                    found => found,
                },
                made => made,
            };
            Ok(ApiPodSnapshot::from_object(made?, &node))
        };
        let seen = self.lanes.run_request(job).await?;
        crash::point("mirror.made");
        let ApiPodSnapshot { item, sight, pod } = seen.ok_or(MirrorUpkeepError::Answer(None))?;
        let found = pod.map_err(|e| MirrorUpkeepError::Answer(Some(e)))?;
        match mirror::judge_existing_pod(&found.pod.metadata, &meta) {
            MirrorConflict::Stranger => Err(MirrorUpkeepError::InTheWay(
                "a pod of this name exists and is not a mirror",
            )),
            // Seen at the next look: one that is older is deleted then.
            MirrorConflict::Same(_) | MirrorConflict::Older(_) => {
                self.api_pods
                    .note_created_pod(&item, sight, self.clock.now());
                let (copy, mirror) = (api_copy_of(&found), parse_mirror(&found.pod));
                self.writer.take_shown_pod(&item.uid, copy, mirror);
                Ok(())
            }
        }
    }
}

fn already_exists(e: &KubeError) -> bool {
    matches!(e, KubeError::Api(e) if e.status == 409 && e.reason == "AlreadyExists")
}
