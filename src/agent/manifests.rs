//! The manifest directory on its way to the loop: read on the disk lane, merged by the mux, recorded on disk, told.

use core::time::Duration;

use serde_json::Value;
use smol::{
    channel::{SendError, Sender},
    future::FutureExt as _,
};

use super::{
    core::{ConfigOp, Event},
    ctx::{Ctx, Shared},
    outcome,
    pod_store::{Header, PodStore, RECORD_VERSION, StoreError},
    recorder::Severity,
    sync::chain,
};
use crate::{
    api::{Mono, Pod, PodStatus, PodUid, received::ReceivedPod, strict},
    logic::{
        digest,
        mux::{Op, Source},
        static_pod, validation,
    },
    source::{ManifestDir, Poller, Problem, Reading, Rules, Snapshot},
};

/// What a manifest may say.
const RULES: Rules = Rules {
    pod: static_pod::prepare,
    config_map: validation::config_map,
    secret: validation::secret,
};

/// A pod whose record could not be written is read again after this time: the disk may have room by then.
const RECORD_RETRY: Duration = Duration::from_secs(10);

/// Polls the manifest directory until the loop is gone.
pub(super) async fn poll(ctx: Shared, events: Sender<Event>) {
    let Some(path) = ctx.cfg.dirs.manifests.clone() else {
        return;
    };
    let dir = ManifestDir::new(path, ctx.node.name.clone(), RULES);
    let mut poller = Poller::new(dir, ctx.cfg.times.file_check, ctx.cfg.doorbells);
    // An agent before this one may have left records that wait for the disk.
    let mut retry = ctx.clock.now();
    let mut unrecorded = false;
    loop {
        let read = async { Some(poller.next(&ctx.disk).await) };
        let again = async {
            ctx.clock.until(retry).await;
            None
        };
        let reading = read.or(again).await;
        if matches!(reading, Some(Reading::Unchanged | Reading::Snapshot(_))) {
            ctx.manifests_read.set(Some(ctx.clock.now()));
        }
        match reading {
            Some(Reading::Unchanged) => {}
            Some(Reading::Snapshot(snapshot)) => match deliver(&ctx, snapshot, &events).await {
                Ok(delivery) => {
                    if delivery.unknown {
                        poller.forget();
                    }
                    unrecorded |= delivery.unrecorded;
                    if unrecorded || ctx.records_wait.get() {
                        retry = ctx.clock.now() + RECORD_RETRY;
                    }
                }
                Err(SendError(_)) => return,
            },
            // No snapshot is no news: what runs goes on.
            Some(Reading::Failed(problem)) => tell(&problem),
            None => {
                if core::mem::take(&mut unrecorded) {
                    poller.forget();
                }
                settle(&ctx).await;
                retry = if ctx.records_wait.get() {
                    ctx.clock.now() + RECORD_RETRY
                } else {
                    Mono(u64::MAX)
                };
            }
        }
    }
}

/// What became of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    /// The source names pods that nobody knows: it must be read anew as a whole.
    pub(super) unknown: bool,
    /// Some pods could not be recorded and were left out.
    pub(super) unrecorded: bool,
}

fn tell(problem: &Problem) {
    if problem.new && problem.fatal {
        log::error!("{}: {}", problem.path.display(), problem.message);
    } else if problem.new {
        log::warn!("{}: {}", problem.path.display(), problem.message);
    }
}

/// Takes a snapshot in: merges it, records what changed, tells the loop.
pub(super) async fn deliver(
    ctx: &Ctx,
    snapshot: Snapshot,
    events: &Sender<Event>,
) -> Result<Delivery, SendError<Event>> {
    snapshot.problems.iter().for_each(tell);
    let changed = snapshot.objects_changed;
    // Before the pods: those that come along find their objects.
    ctx.objects
        .borrow_mut()
        .replace(snapshot.config_maps, snapshot.secrets);
    let merged = ctx
        .mux
        .borrow_mut()
        .merge(Source::File, snapshot.pods, ctx.clock.wall());
    for dropped in &merged.dropped {
        let message = format!(
            "{}: another pod has this name or uid already; this one is ignored",
            dropped.origin
        );
        ctx.pod_event(
            &dropped.pod,
            Severity::Warning,
            "FailedValidation",
            &message,
        );
    }
    let mut delivery = Delivery {
        unknown: !merged.unknown.is_empty(),
        unrecorded: false,
    };
    let mut ops = Vec::with_capacity(merged.ops.len());
    for op in merged.ops {
        let (pods, into): (_, fn(Vec<Pod>) -> ConfigOp) = match op {
            Op::Remove(uids) => {
                let (store, removed) = (ctx.store.clone(), uids.clone());
                let forget = move || removed.iter().for_each(|uid| outcome::forget(&store, uid));
                ctx.disk.run(forget).await;
                ops.push(ConfigOp::Remove(uids));
                continue;
            }
            Op::Add(pods) => (pods, ConfigOp::Add),
            Op::Update(pods) | Op::Delete(pods) => (pods, ConfigOp::Update),
            Op::Reconcile(pods) => (pods, ConfigOp::Reconcile),
        };
        let asked = pods.len();
        let recorded = record(ctx, pods).await;
        delivery.unrecorded |= recorded.len() < asked;
        ops.push(into(recorded));
    }
    if !ops.is_empty() {
        events.send(Event::Config(Source::File, ops)).await?;
        // Pods of a burst stood in memory whole; they live on disk from here on.
        crate::sys::memory::trim();
    }
    if changed {
        events.send(Event::ObjectsChanged).await?;
    }
    Ok(delivery)
}

#[expect(
    clippy::vec_box,
    reason = "the mux hands them over so: a received pod is large"
)]
/// Writes the pods' records on the disk lane. A pod whose record cannot be written is left out, told, and forgotten by the
/// mux, so that it comes again. The others count as arriving until the loop has heard of them.
async fn record(ctx: &Ctx, pods: Vec<Box<ReceivedPod>>) -> Vec<Pod> {
    let mut jobs = Vec::with_capacity(pods.len());
    let mut kept = Vec::with_capacity(pods.len());
    for received in pods {
        let ReceivedPod { pod, raw, .. } = *received;
        ctx.arrives(&pod.metadata.uid);
        jobs.push((pod.metadata.uid.clone(), raw, false));
        kept.push(pod);
    }
    let mut turns = Vec::with_capacity(jobs.len());
    for (uid, _, returns) in &mut jobs {
        // What is left of an earlier incarnation may be on its way out at this moment, its record included.
        turns.push(ctx.records.claim(uid).await);
        // One that is on its way out and comes back under its own uid: the stop still needs the old object.
        *returns = ctx.table.borrow().is_pod_termination_requested(uid);
    }
    let store = ctx.store.clone();
    let results = ctx
        .disk
        .run(move || {
            let mut jobs = jobs;
            jobs.iter_mut()
                .map(|job| write(&store, job))
                .collect::<Vec<_>>()
        })
        .await;
    drop(turns);
    let store = ctx.store.clone();
    let waiting = ctx.disk.run(move || !store.waiting_pods().is_empty()).await;
    ctx.records_wait.set(waiting);
    let mut recorded = Vec::with_capacity(kept.len());
    for (mut pod, result) in kept.into_iter().zip(results) {
        match result {
            Ok(status) => {
                if let Some(status) = status {
                    pod.status = status;
                }
                recorded.push(pod);
            }
            Err(e) => {
                let uid = &pod.metadata.uid;
                ctx.arrived(uid);
                ctx.mux.borrow_mut().forget(Source::File, uid);
                let message = format!("cannot record the pod: {}", chain(&e));
                ctx.pod_event(&pod, Severity::Warning, "FailedCreatePodRecord", &message);
            }
        }
    }
    recorded
}

/// Moves records that wait to the disk, as far as it can be written, and notes whether some still wait.
async fn settle(ctx: &Ctx) {
    let store = ctx.store.clone();
    let waiting = ctx.disk.run(move || store.waiting_pods()).await;
    let mut left = false;
    for uid in waiting {
        let turn = ctx.records.claim(&uid).await;
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
    ctx.records_wait.set(left);
}

/// Writes a record. Returns the pod's outcome if it has one: that is the status it has from now on.
fn write(
    store: &PodStore,
    (uid, raw, returns): &mut (PodUid, Value, bool),
) -> Result<Option<PodStatus>, StoreError> {
    let header = Header {
        v: RECORD_VERSION,
        source: Source::File.as_str().into(),
        resource_version: String::new(),
        digest: digest::semantic(raw),
    };
    let outcome = outcome::recall(store, uid, header.digest);
    if let Some(status) = outcome.as_ref().and_then(|s| strict::to_value(s).ok()) {
        raw["status"] = status;
    }
    if *returns {
        store.write_next(uid, &header, raw)?;
    } else {
        store.write(uid, &header, raw)?;
    }
    Ok(outcome)
}
