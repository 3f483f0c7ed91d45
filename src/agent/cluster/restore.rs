//! Records of the API's pods by an agent before this one: the pods start, or go on, without the apiserver.

use alloc::rc::Rc;

use super::{
    answers::{ApiPodSnapshot, api_copy_of},
    api_pods::ApiPods,
    writer::ApiWriter,
};
use crate::{
    agent::{
        allocation::read_allocation,
        asker::AgentHandle,
        clock::Clock,
        complaints::Complaints,
        core::SourceNews,
        outcome::EarlierOutcome,
        pod_store::{PodRecordHeader, PodStore, PodStoreError},
        views::{ApiPodChange, LoopEnded},
    },
    api::{PodUid, order::OrderExt as _},
    error::error_chain,
    logic::{authority, mux::PodSource, resize::PodAllocation},
    sys::lane::Lane,
    volume::Volumes,
};

/// Reads the records.
pub(super) struct PodRecordRestorer {
    pub(super) node: String,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) store: PodStore,
    pub(super) volumes: Volumes,
    pub(super) disk: Lane,
    /// Reads how a pod ended in an earlier boot. Blocking.
    pub(super) outcome: fn(&PodStore, &PodUid, &PodRecordHeader) -> Option<EarlierOutcome>,
    pub(super) writer: Rc<ApiWriter>,
    pub(super) api_pods: Rc<ApiPods>,
    pub(super) asker: AgentHandle,
}

/// A pod as its record has it.
struct RestoredPod {
    seen: ApiPodSnapshot,
    outcome: Option<EarlierOutcome>,
    allocation: Option<Box<PodAllocation>>,
}

impl PodRecordRestorer {
    /// Tells the loop of all pods of the API that are on disk. A record that cannot be used is told, and its pod left alone:
    /// it runs on, and comes again with the first list.
    pub(super) async fn restore_all(self) -> Result<(), LoopEnded> {
        let (volumes, store) = (self.volumes.clone(), self.store.clone());
        let listed = self.disk.run_job(move || {
            let mut uids = volumes.list_pod_dirs()?;
            uids.extend(store.waiting_pods());
            uids.stable_sort();
            uids.dedup();
            Ok::<_, std::io::Error>(uids)
        });
        let uids = listed.await.unwrap_or_else(|e| {
            self.complaints.complain(&format!("pod directories: {e}"));
            Vec::new()
        });
        let mut known = 0;
        for uid in uids {
            match self.read_record(uid.clone()).await {
                Ok(Some(restored)) => known += u32::from(self.restore_pod(restored).await?),
                Ok(None) => {}
                Err(e) => self
                    .complaints
                    .complain(&format!("uid={uid} {}", error_chain(&e))),
            }
        }
        if known > 0 {
            log::info!("{known} pods of the apiserver are known from disk");
            self.asker
                .deliver_source_news(SourceNews::Api(ApiPodChange::AllOnDisk))
                .await?;
        }
        crate::sys::memory::trim_memory();
        self.writer.note_restored();
        Ok(())
    }

    /// Reads one record; `None`: it is of another source, or there is none.
    async fn read_record(&self, uid: PodUid) -> Result<Option<RestoredPod>, PodStoreError> {
        let (store, node, outcome) = (self.store.clone(), self.node.clone(), self.outcome);
        let read = move || {
            let (header, raw) = match store.read_record::<serde_json::Value>(&uid) {
                Err(PodStoreError::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound =>
                {
                    return Ok(None);
                }
                read => read?,
            };
            if header.source != PodSource::Api.as_str() {
                return Ok(None);
            }
            if !authority::is_same_authority(&header.cluster, store.cluster_identity()) {
                log::warn!(
                    "uid={uid} is a pod of another cluster: it is not started, and is ended after the first list of pods"
                );
                return Ok(None);
            }
            let seen = ApiPodSnapshot::from_object(raw, &node)
                .ok_or_else(|| "its object has no identity".to_owned());
            let seen = store.check_decoded(&uid, seen)?;
            if seen.item.uid != uid {
                let why = format!("its object belongs to {}", seen.item.uid);
                return store.check_decoded(&uid, Err(why));
            }
            renew_authority(&store, &uid, &header);
            Ok(Some(RestoredPod {
                seen,
                outcome: outcome(&store, &uid, &header),
                allocation: read_allocation(&store, &uid).map(Box::new),
            }))
        };
        self.disk.run_job(read).await
    }

    /// Hands a pod to the loop. Returns whether that took it.
    async fn restore_pod(&self, restored: RestoredPod) -> Result<bool, LoopEnded> {
        let RestoredPod {
            seen,
            outcome,
            allocation,
        } = restored;
        let ApiPodSnapshot { item, sight, pod } = seen;
        let uid = &item.uid;
        let received = match pod {
            Ok(received) => received,
            Err(why) => {
                self.complaints
                    .complain(&format!("uid={uid} its record: {why}"));
                return Ok(false);
            }
        };
        let now = self.clock.now();
        self.api_pods
            .with_poll(|poll| poll.restore(&item, sight, now));
        if !self.api_pods.is_known(uid) {
            self.complaints
                .complain(&format!("uid={uid} no room for this pod from disk"));
            return Ok(false);
        }
        let copy = api_copy_of(&received);
        let change = ApiPodChange::OnDisk(received, outcome.map(Box::new), allocation);
        if !self
            .asker
            .deliver_source_news(SourceNews::Api(change))
            .await?
            .unrecorded
            .is_empty()
        {
            // One that had its name before is on its way out still. What runs of this one is no orphan.
            self.api_pods.with_poll(|poll| poll.undeliver(uid));
            return Ok(false);
        }
        self.writer.take_shown_pod(uid, copy, None);
        Ok(true)
    }
}

/// Has the record say what the cluster is known by now: the next authority may have nothing in common with the one before this.
/// Blocking.
fn renew_authority(store: &PodStore, uid: &PodUid, header: &PodRecordHeader) {
    if header.cluster == store.cluster_identity() || store.cluster_identity().is_empty() {
        return;
    }
    let renewed = store
        .read_record::<serde_json::Value>(uid)
        .and_then(|(header, raw)| {
            let cluster = store.cluster_identity().into();
            store.rewrite_record(uid, &PodRecordHeader { cluster, ..header }, &raw)
        });
    if let Err(e) = renewed {
        log::debug!("uid={uid} {}", error_chain(&e));
    }
}
