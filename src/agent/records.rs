//! Pods of a source on their way to the loop: what the mux has found out is recorded on disk, then told.

use serde_json::Value;
use smol::channel::{SendError, Sender};

use super::{
    core::{ConfigOp, Event},
    ctx::Ctx,
    outcome,
    pod_store::{Header, PodStore, RECORD_VERSION, StoreError},
    recorder::Severity,
};
use crate::{
    api::{Pod, PodStatus, PodUid, received::ReceivedPod, strict},
    error::chain,
    logic::{
        digest,
        mux::{Op, Source},
    },
};

/// Records what changed and tells the loop.
///
/// - Returns the pods that could not be recorded. They were left out, and forgotten by the mux, so that they come again.
/// - Errors: the loop is gone.
pub(super) async fn take_in(
    ctx: &Ctx,
    source: Source,
    ops: Vec<Op>,
    events: &Sender<Event>,
) -> Result<Vec<PodUid>, SendError<Event>> {
    let mut told = Vec::with_capacity(ops.len());
    let mut unrecorded = Vec::new();
    for op in ops {
        let (pods, into): (_, fn(Vec<Pod>) -> ConfigOp) = match op {
            Op::Remove(uids) => {
                let (store, removed) = (ctx.store.clone(), uids.clone());
                let forget = move || removed.iter().for_each(|uid| outcome::forget(&store, uid));
                ctx.disk.run(forget).await;
                told.push(ConfigOp::Remove(uids));
                continue;
            }
            Op::Add(pods) => (pods, ConfigOp::Add),
            Op::Update(pods) | Op::Delete(pods) => (pods, ConfigOp::Update),
            Op::Reconcile(pods) => (pods, ConfigOp::Reconcile),
        };
        told.push(into(record(ctx, source, pods, &mut unrecorded).await));
    }
    if !told.is_empty() {
        events.send(Event::Config(source, told)).await?;
    }
    Ok(unrecorded)
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
/// Writes the pods' records on the disk lane. A pod whose record cannot be written is told, and left out. The others count
/// as arriving until the loop has heard of them.
async fn record(
    ctx: &Ctx,
    source: Source,
    pods: Vec<Box<ReceivedPod>>,
    unrecorded: &mut Vec<PodUid>,
) -> Vec<Pod> {
    let mut jobs = Vec::with_capacity(pods.len());
    let mut kept = Vec::with_capacity(pods.len());
    for received in pods {
        let ReceivedPod { pod, raw, .. } = *received;
        let uid = pod.metadata.uid.clone();
        ctx.pods.arrives(&uid);
        let header = Header {
            v: RECORD_VERSION,
            source: source.as_str().into(),
            resource_version: pod.metadata.resource_version.clone(),
            digest: digest::semantic(&raw),
        };
        jobs.push(Job {
            uid,
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
    let store = ctx.store.clone();
    let waiting = ctx.disk.run(move || !store.waiting_pods().is_empty()).await;
    ctx.pods.set_records_wait(waiting);
    let mut recorded = Vec::with_capacity(kept.len());
    for (mut pod, result) in kept.into_iter().zip(results) {
        match result {
            Ok(status) => {
                if let Some(status) = status {
                    recall(ctx, source, &mut pod, status);
                }
                recorded.push(pod);
            }
            Err(e) => {
                let uid = &pod.metadata.uid;
                ctx.pods.arrived(uid);
                ctx.mux.borrow_mut().forget(source, uid);
                let message = format!("cannot record the pod: {}", chain(&e));
                ctx.pod_event(&pod, Severity::Warning, "FailedCreatePodRecord", &message);
                unrecorded.push(uid.clone());
            }
        }
    }
    recorded
}

/// The pod came to its end a boot ago: that is the status it has. The record of a pod of the apiserver keeps what that
/// shows, so its end is known to the status cache alone, from which it is told.
pub(super) fn recall(ctx: &Ctx, source: Source, pod: &mut Pod, outcome: PodStatus) {
    let known = ctx.pods.with_status(&pod.metadata.uid, |_| ()).is_some();
    if source == Source::Api && !known {
        let _ = ctx.pods.set_status(pod, outcome.clone(), ctx.clock.wall());
    }
    pod.status = outcome;
}

/// Moves records that wait to the disk, as far as it can be written, and notes whether some still wait.
pub(super) async fn settle(ctx: &Ctx) {
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
    ctx.pods.set_records_wait(left);
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
