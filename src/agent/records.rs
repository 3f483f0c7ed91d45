//! Records of pods, written on the disk lane.

use alloc::collections::BTreeMap;

use serde_json::Value;

use super::{
    core::ConfigOp,
    ctx::Ctx,
    outcome,
    pod_store::{Header, PodStore, RECORD_VERSION, StoreError},
    sources::Rest,
};
use crate::{
    api::{Pod, PodStatus, PodUid, received::ReceivedPod, strict},
    error::chain,
    logic::{
        digest,
        mux::{Op, Source},
    },
};

/// Pods of a source that are to be recorded.
pub(super) struct Recording {
    pub(super) source: Source,
    pub(super) ops: Vec<Op>,
    /// What the loop does afterwards.
    pub(super) rest: Rest,
}

/// What came of it.
pub(super) struct Recorded {
    pub(super) source: Source,
    /// Pods whose records are on disk.
    pub(super) told: Vec<ConfigOp>,
    /// Statuses with which some of these came to their end a boot ago.
    pub(super) outcomes: BTreeMap<PodUid, PodStatus>,
    /// Pods that could not be recorded, and why.
    pub(super) failed: Vec<(Pod, String)>,
    /// Some records wait for the disk.
    pub(super) waiting: bool,
    pub(super) rest: Rest,
}

/// Records what changed.
pub(super) async fn record(ctx: &Ctx, recording: Recording) -> Recorded {
    let Recording { source, ops, rest } = recording;
    let mut recorded = Recorded {
        source,
        told: Vec::with_capacity(ops.len()),
        outcomes: BTreeMap::new(),
        failed: Vec::new(),
        waiting: false,
        rest,
    };
    for op in ops {
        let (pods, into): (_, fn(Vec<Pod>) -> ConfigOp) = match op {
            Op::Remove(uids) => {
                let (store, removed) = (ctx.store.clone(), uids.clone());
                let forget = move || removed.iter().for_each(|uid| outcome::forget(&store, uid));
                ctx.disk.run(forget).await;
                recorded.told.push(ConfigOp::Remove(uids));
                continue;
            }
            Op::Add(pods) => (pods, ConfigOp::Add),
            Op::Update(pods) | Op::Delete(pods) => (pods, ConfigOp::Update),
            Op::Reconcile(pods) => (pods, ConfigOp::Reconcile),
        };
        let pods = write_all(ctx, pods, &mut recorded).await;
        recorded.told.push(into(pods));
    }
    let store = ctx.store.clone();
    let some_wait = move || !store.waiting_pods().is_empty();
    recorded.waiting = ctx.disk.run(some_wait).await;
    recorded
}

/// A record to write.
struct Job {
    uid: PodUid,
    header: Header,
    raw: Value,
    /// It is on its way out and comes back under its own uid: the stop still needs the old object.
    returns: bool,
}

#[expect(
    clippy::vec_box,
    reason = "the mux hands them over so: a received pod is large"
)]
/// Writes the pods' records on the disk lane. Returns the pods that have one now.
async fn write_all(ctx: &Ctx, pods: Vec<Box<ReceivedPod>>, recorded: &mut Recorded) -> Vec<Pod> {
    let source = recorded.source;
    let mut jobs = Vec::with_capacity(pods.len());
    let mut kept = Vec::with_capacity(pods.len());
    for received in pods {
        let ReceivedPod { pod, raw, .. } = *received;
        let header = Header {
            v: RECORD_VERSION,
            source: source.as_str().into(),
            resource_version: pod.metadata.resource_version.clone(),
            digest: digest::semantic(&raw),
        };
        jobs.push(Job {
            uid: pod.metadata.uid.clone(),
            header,
            raw,
            returns: false,
        });
        kept.push(pod);
    }
    let mut turns = Vec::with_capacity(jobs.len());
    for job in &mut jobs {
        // What is left of an earlier incarnation may be on its way out at this moment, its record included.
        turns.push(ctx.pods.record(&job.uid).await);
        // A uid of the apiserver never comes back: what changes while the pod ends is news of that very pod.
        job.returns = source != Source::Api && ctx.pods.is_to_end(&job.uid);
    }
    let store = ctx.store.clone();
    let results = ctx
        .disk
        .run(move || {
            jobs.iter_mut()
                .map(|job| write(&store, job))
                .collect::<Vec<_>>()
        })
        .await;
    drop(turns);
    let mut written = Vec::with_capacity(kept.len());
    for (pod, result) in kept.into_iter().zip(results) {
        match result {
            Ok(outcome) => {
                let uid = || pod.metadata.uid.clone();
                recorded.outcomes.extend(outcome.map(|o| (uid(), o)));
                written.push(pod);
            }
            Err(e) => {
                let message = format!("cannot record the pod: {}", chain(&e));
                recorded.failed.push((pod, message));
            }
        }
    }
    written
}

/// Moves records that wait to the disk, as far as it can be written. Returns whether some still wait.
pub(super) async fn settle(ctx: &Ctx) -> bool {
    let store = ctx.store.clone();
    let waiting = ctx.disk.run(move || store.waiting_pods()).await;
    let mut left = false;
    for uid in waiting {
        let turn = ctx.pods.record(&uid).await;
        let (store, moved) = (ctx.store.clone(), uid.clone());
        if let Err(e) = ctx.disk.run(move || store.settle(&moved)).await {
            ctx.complain(&format!(
                "uid={uid} its record waits for the disk: {}",
                chain(&e)
            ));
            left = true;
        }
        drop(turn);
    }
    left
}

/// Keeps what the API shows of a pod in its record, for the next agent.
pub(super) async fn keep_shown(ctx: &Ctx, uid: &PodUid, shown: Value) {
    let turn = ctx.pods.record(uid).await;
    if !ctx.pods.is_configured(uid) {
        return;
    }
    let (store, of) = (ctx.store.clone(), uid.clone());
    let kept = ctx.disk.run(move || refresh(&store, &of, &shown));
    if let Err(e) = kept.await {
        ctx.complain(&format!("uid={uid} {}", chain(&e)));
    }
    drop(turn);
}

/// Writes a record. Returns the pod's outcome if it has one: that is the status it has from now on.
fn write(store: &PodStore, job: &mut Job) -> Result<Option<PodStatus>, StoreError> {
    let Job {
        uid, header, raw, ..
    } = job;
    let outcome = outcome::recall(store, uid, header);
    if header.source != Source::Api.as_str()
        && let Some(status) = outcome.as_ref().and_then(|s| strict::to_value(s).ok())
    {
        raw["status"] = status;
    }
    if job.returns {
        store.write_next(uid, header, raw)?;
    } else {
        store.write(uid, header, raw)?;
    }
    Ok(outcome)
}

/// Brings the status in the record of a pod of the apiserver up to date with what that shows after a write of ours: the
/// next agent begins with it. Blocking; no record is success.
fn refresh(store: &PodStore, uid: &PodUid, shown: &Value) -> Result<(), StoreError> {
    let Ok((mut header, mut raw)) = store.read::<Value>(uid) else {
        return Ok(());
    };
    let version = &shown["metadata"]["resourceVersion"];
    if header.source != Source::Api.as_str() || raw["status"] == shown["status"] {
        return Ok(());
    }
    header.resource_version = version.as_str().unwrap_or("").into();
    raw["metadata"]["resourceVersion"] = version.clone();
    raw["status"] = shown["status"].clone();
    store.write(uid, &header, &raw)
}
