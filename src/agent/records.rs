//! Records of pods, written on the disk lane.

use alloc::{collections::BTreeMap, rc::Rc};

use serde_json::Value;

use super::{
    allocation,
    asker::AgentHandle,
    claims::PodWorkClaims,
    complaints::Complaints,
    core::{Agent, ConfigOp, PodRecording, RecordingResult},
    outcome::{self, EarlierOutcome},
    pod_store::{PodRecordHeader, PodStore, PodStoreError, RECORD_VERSION},
};
use crate::{
    api::{Pod, PodUid, WallTime, pod::CONFIG_SEEN, received::ReceivedPod, strict},
    error::error_chain,
    logic::{
        digest,
        mux::{PodSource, SourceOperation},
        resize::{PodAllocation, PodResources},
    },
    sys::lane::Lane,
};

/// Writes the records of pods.
pub(super) struct PodRecordWriter {
    pub(super) store: PodStore,
    pub(super) disk: Lane,
    pub(super) claims: Rc<PodWorkClaims>,
    pub(super) asker: AgentHandle,
    pub(super) complaints: Rc<Complaints>,
}

impl PodRecordWriter {
    /// Records what changed.
    pub(super) async fn record_pods(&self, recording: PodRecording) -> RecordingResult {
        let PodRecording { source, ops, rest } = recording;
        let mut recorded = RecordingResult {
            source,
            told: Vec::with_capacity(ops.len()),
            outcomes: BTreeMap::new(),
            allocations: BTreeMap::new(),
            failed: Vec::new(),
            waiting: false,
            rest,
        };
        for op in ops {
            // The loop knows more of others by now than the disk.
            let has_new_spec = matches!(op, SourceOperation::Add(_) | SourceOperation::Update(_));
            let (pods, into): (_, fn(Vec<Pod>) -> ConfigOp) = match op {
                SourceOperation::Remove(uids) => {
                    let (store, removed) = (self.store.clone(), uids.clone());
                    let forget = move || {
                        removed
                            .iter()
                            .for_each(|uid| outcome::forget_outcome(&store, uid))
                    };
                    self.disk.run_job(forget).await;
                    recorded.told.push(ConfigOp::Remove(uids));
                    continue;
                }
                SourceOperation::Add(pods) => (pods, ConfigOp::Add),
                SourceOperation::Update(pods) | SourceOperation::Delete(pods) => {
                    (pods, ConfigOp::Update)
                }
                SourceOperation::Reconcile(pods) => (pods, ConfigOp::Reconcile),
            };
            let pods = self.write_records(pods, has_new_spec, &mut recorded).await;
            recorded.told.push(into(pods));
        }
        let store = self.store.clone();
        let some_wait = move || !store.waiting_pods().is_empty();
        recorded.waiting = self.disk.run_job(some_wait).await;
        recorded
    }

    /// Writes the pods' records on the disk lane. Returns the pods that have one now.
    #[expect(
        clippy::vec_box,
        reason = "the mux hands them over so: a received pod is large"
    )]
    async fn write_records(
        &self,
        pods: Vec<Box<ReceivedPod>>,
        has_new_spec: bool,
        recorded: &mut RecordingResult,
    ) -> Vec<Pod> {
        let source = recorded.source;
        let mut jobs = Vec::with_capacity(pods.len());
        let mut kept = Vec::with_capacity(pods.len());
        for received in pods {
            let ReceivedPod { pod, raw, .. } = *received;
            let header = PodRecordHeader {
                v: RECORD_VERSION,
                source: source.as_str().into(),
                resource_version: pod.metadata.resource_version.clone(),
                digest: digest::semantic_digest(&raw),
                cluster: if source == PodSource::Api {
                    self.store.cluster_identity().into()
                } else {
                    String::new()
                },
            };
            jobs.push(PodRecordJob {
                uid: pod.metadata.uid.clone(),
                header,
                raw,
                returns: false,
                resources: (has_new_spec && source == PodSource::Api)
                    .then(|| [PodResources::of_pod(&pod), PodResources::of_status(&pod)]),
            });
            kept.push(pod);
        }
        let mut turns = Vec::with_capacity(jobs.len());
        for job in &jobs {
            // What is left of an earlier incarnation may be on its way out at this moment, its record included.
            turns.push(self.claims.claim_record(&job.uid).await);
        }
        let uids: Vec<PodUid> = jobs.iter().map(|job| job.uid.clone()).collect();
        let look = move |agent: &Agent| -> Vec<bool> {
            let all = uids.iter();
            all.map(|uid| agent.pods().is_termination_requested(uid))
                .collect()
        };
        let ending = self.asker.ask_agent(look).await;
        for (job, ends) in jobs.iter_mut().zip(ending) {
            // A uid of the apiserver never comes back: what changes while the pod ends is news of that very pod.
            job.returns = source != PodSource::Api && ends;
        }
        let store = self.store.clone();
        let results = self
            .disk
            .run_job(move || {
                jobs.iter_mut()
                    .map(|job| write_pod_record(&store, job))
                    .collect::<Vec<_>>()
            })
            .await;
        drop(turns);
        let mut written = Vec::with_capacity(kept.len());
        for (mut pod, result) in kept.into_iter().zip(results) {
            match result {
                Ok(WrittenRecord {
                    outcome,
                    start,
                    allocation,
                }) => {
                    pod.status.start_time = pod.status.start_time.or(start);
                    let uid = || pod.metadata.uid.clone();
                    recorded
                        .allocations
                        .extend(allocation.map(|had| (uid(), had)));
                    recorded.outcomes.extend(outcome.map(|o| (uid(), o)));
                    written.push(pod);
                }
                Err(e) => {
                    let message = format!("cannot record the pod: {}", error_chain(&e));
                    recorded.failed.push((pod, message));
                }
            }
        }
        written
    }

    /// Moves records that wait to the disk, as far as it can be written. Returns whether some still wait.
    pub(super) async fn settle_waiting_records(&self) -> bool {
        let store = self.store.clone();
        let waiting = self.disk.run_job(move || store.waiting_pods()).await;
        let mut left = false;
        for uid in waiting {
            let turn = self.claims.claim_record(&uid).await;
            let (store, moved) = (self.store.clone(), uid.clone());
            if let Err(e) = self
                .disk
                .run_job(move || store.settle_waiting_records(&moved))
                .await
            {
                self.complaints.complain(&format!(
                    "uid={uid} its record is not on disk yet: {}",
                    error_chain(&e)
                ));
                left = true;
            }
            drop(turn);
        }
        left
    }

    /// Keeps what the API shows of a pod in its record, for the next agent.
    pub(super) async fn keep_shown(&self, uid: &PodUid, shown: Value) {
        let turn = self.claims.claim_record(uid).await;
        let of = uid.clone();
        if !self
            .asker
            .ask_agent(move |agent| agent.pods().is_configured(&of))
            .await
        {
            return;
        }
        let (store, of) = (self.store.clone(), uid.clone());
        let kept = self
            .disk
            .run_job(move || refresh_recorded_status(&store, &of, &shown));
        if let Err(e) = kept.await {
            self.complaints
                .complain(&format!("uid={uid} {}", error_chain(&e)));
        }
        drop(turn);
    }
}

/// A record to write.
struct PodRecordJob {
    uid: PodUid,
    header: PodRecordHeader,
    raw: Value,
    /// Set if the pod is on its way out and comes back under its own UID: the stop still needs the old object.
    returns: bool,
    /// Resources of the spec of a pod of the apiserver, and those that its status shows.
    resources: Option<[PodResources; 2]>,
}

/// Facts about a pod whose record was written.
struct WrittenRecord {
    /// Outcome of the pod: if it has ended, that is the status it has from now on.
    outcome: Option<EarlierOutcome>,
    /// Start of a static pod.
    start: Option<WallTime>,
    /// Resources that the pod was allocated, if its spec says others.
    allocation: Option<PodAllocation>,
}

/// Writes a record.
fn write_pod_record(
    store: &PodStore,
    job: &mut PodRecordJob,
) -> Result<WrittenRecord, PodStoreError> {
    let PodRecordJob {
        uid, header, raw, ..
    } = job;
    // A pod that this agent has not seen may have a record: one that could not be written anew, or not be restored.
    let allocation = match &job.resources {
        Some([wanted, shown]) => allocation::keep_former_resources(store, uid, wanted, shown)?,
        None => None,
    };
    let outcome = outcome::recall_outcome(store, uid, header);
    let start = match header.source == PodSource::Api.as_str() {
        true => None,
        false => keep_pod_age(
            raw,
            earlier_start_time(store, uid, header).filter(|_| !job.returns),
        ),
    };
    if header.source != PodSource::Api.as_str()
        && let Some(EarlierOutcome::Ended(status)) = &outcome
        && let Ok(status) = strict::to_value(status)
    {
        raw["status"] = status;
    }
    if job.returns {
        store.write_next(uid, header, raw)?;
    } else {
        store.write_record(uid, header, raw)?;
    }
    let settled = allocation.as_ref().zip(job.resources.as_ref());
    if settled.is_some_and(|(had, [wanted, _])| had.is_settled_at(wanted))
        && let Err(e) = store.forget_resources(uid)
    {
        // It says the same as the record.
        log::debug!("uid={uid} {}", error_chain(&e));
    }
    Ok(WrittenRecord {
        outcome,
        start,
        allocation,
    })
}

/// Time at which an agent before this one first saw the static pod, by its record.
fn earlier_start_time(store: &PodStore, uid: &PodUid, header: &PodRecordHeader) -> Option<String> {
    let (old, raw) = store.read_record::<Value>(uid).ok()?;
    let seen = raw["metadata"]["annotations"][CONFIG_SEEN].as_str()?;
    (old.source == header.source).then(|| seen.to_owned())
}

/// A static pod is as old as the first agent that saw it says (STAT-33): nobody else remembers. Returns its start.
fn keep_pod_age(raw: &mut Value, before: Option<String>) -> Option<WallTime> {
    let seen = &mut raw["metadata"]["annotations"][CONFIG_SEEN];
    let now = WallTime::parse(seen.as_str()?)?;
    // A clock that was ahead is no age.
    let is_age = |before: &String| WallTime::parse(before).is_some_and(|before| before <= now);
    if let Some(before) = before.filter(is_age) {
        *seen = before.into();
    }
    let start = WallTime::parse(seen.as_str()?)?.truncated_to_second();
    if !raw["status"].is_object() {
        raw["status"] = Value::Object(serde_json::Map::new());
    }
    raw["status"]["startTime"] = start.to_string().into();
    Some(start)
}

/// Brings the status in the record of a pod of the apiserver up to date with what that shows after a write of ours: the
/// next agent begins with it. Blocking; no record is success.
fn refresh_recorded_status(
    store: &PodStore,
    uid: &PodUid,
    shown: &Value,
) -> Result<(), PodStoreError> {
    let Ok((mut header, mut raw)) = store.read_record::<Value>(uid) else {
        return Ok(());
    };
    let version = &shown["metadata"]["resourceVersion"];
    if header.source != PodSource::Api.as_str() || raw["status"] == shown["status"] {
        return Ok(());
    }
    header.resource_version = version.as_str().unwrap_or("").into();
    raw["metadata"]["resourceVersion"] = version.clone();
    raw["status"] = shown["status"].clone();
    store.write_record(uid, &header, &raw)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_static_pod_keeps_its_age() {
        // STAT-33
        let pod = |seen: &str| json!({"metadata": {"annotations": {CONFIG_SEEN: seen}}});
        let (first, later) = ("2023-11-14T22:13:20.123456789Z", "2024-01-01T00:00:00Z");
        for (before, seen, start) in [
            (None, later, later),
            (Some(first), first, "2023-11-14T22:13:20Z"),
            (Some("rubbish"), later, later),
        ] {
            let mut raw = pod(later);
            let kept = keep_pod_age(&mut raw, before.map(str::to_owned));
            assert_eq!(raw["metadata"]["annotations"][CONFIG_SEEN], seen);
            assert_eq!(raw["status"]["startTime"], start);
            assert_eq!(kept, WallTime::parse(start));
        }
    }
}
