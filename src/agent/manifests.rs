//! The manifest directory on its way to the loop: read on the disk lane, merged by the mux, recorded on disk, told.

use serde_json::Value;
use smol::channel::{SendError, Sender};

use super::{
    core::{ConfigOp, Event},
    ctx::{Ctx, Shared},
    pod_store::{Header, PodStore, RECORD_VERSION, StoreError},
    recorder::Severity,
    sync::chain,
};
use crate::{
    api::{Pod, PodUid, received::ReceivedPod},
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

/// Polls the manifest directory until the loop is gone.
pub(super) async fn poll(ctx: Shared, events: Sender<Event>) {
    let Some(path) = ctx.cfg.dirs.manifests.clone() else {
        return;
    };
    let dir = ManifestDir::new(path, ctx.node.name.clone(), RULES);
    let mut poller = Poller::new(dir, ctx.cfg.times.file_check, ctx.cfg.doorbells);
    loop {
        let told = match poller.next(&ctx.disk).await {
            Reading::Unchanged => Ok(()),
            Reading::Snapshot(snapshot) => deliver(&ctx, snapshot, &mut poller, &events).await,
            // No snapshot is no news: what runs goes on.
            Reading::Failed(problem) => {
                tell(&problem);
                Ok(())
            }
        };
        if told.is_err() {
            return;
        }
    }
}

fn tell(problem: &Problem) {
    if problem.new && problem.fatal {
        log::error!("{}: {}", problem.path.display(), problem.message);
    } else if problem.new {
        log::warn!("{}: {}", problem.path.display(), problem.message);
    }
}

async fn deliver(
    ctx: &Ctx,
    snapshot: Snapshot,
    poller: &mut Poller,
    events: &Sender<Event>,
) -> Result<(), SendError<Event>> {
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
    if !merged.unknown.is_empty() {
        poller.forget();
    }
    let mut ops = Vec::with_capacity(merged.ops.len());
    for op in merged.ops {
        ops.push(match op {
            Op::Remove(uids) => ConfigOp::Remove(uids),
            Op::Add(pods) => ConfigOp::Add(record(ctx, pods).await),
            Op::Update(pods) | Op::Delete(pods) => ConfigOp::Update(record(ctx, pods).await),
            Op::Reconcile(pods) => ConfigOp::Reconcile(record(ctx, pods).await),
        });
    }
    if !ops.is_empty() {
        events.send(Event::Config(Source::File, ops)).await?;
        // Pods of a burst stood in memory whole; they live on disk from here on.
        crate::sys::memory::trim();
    }
    if changed {
        events.send(Event::ObjectsChanged).await?;
    }
    Ok(())
}

#[expect(
    clippy::vec_box,
    reason = "the mux hands them over so: a received pod is large"
)]
/// Writes the pods' records on the disk lane. A pod whose record cannot be written is left out and told.
async fn record(ctx: &Ctx, pods: Vec<Box<ReceivedPod>>) -> Vec<Pod> {
    let mut jobs = Vec::with_capacity(pods.len());
    let mut kept = Vec::with_capacity(pods.len());
    for received in pods {
        let ReceivedPod { pod, raw, .. } = *received;
        // One that is on its way out and comes back under its own uid: the stop still needs the old object.
        let returns = ctx
            .table
            .borrow()
            .is_pod_termination_requested(&pod.metadata.uid);
        jobs.push((pod.metadata.uid.clone(), raw, returns));
        kept.push(pod);
    }
    let store = ctx.store.clone();
    let results = ctx
        .disk
        .run(move || {
            jobs.iter()
                .map(|job| write(&store, job))
                .collect::<Vec<_>>()
        })
        .await;
    let mut recorded = Vec::with_capacity(kept.len());
    for (pod, result) in kept.into_iter().zip(results) {
        match result {
            Ok(()) => recorded.push(pod),
            Err(e) => {
                let message = format!("cannot record the pod: {}", chain(&e));
                ctx.pod_event(&pod, Severity::Warning, "FailedCreatePodRecord", &message);
            }
        }
    }
    recorded
}

fn write(store: &PodStore, (uid, raw, returns): &(PodUid, Value, bool)) -> Result<(), StoreError> {
    let header = Header {
        v: RECORD_VERSION,
        source: Source::File.as_str().into(),
        resource_version: String::new(),
        digest: digest::semantic(raw),
    };
    if *returns {
        store.write_next(uid, &header, raw)
    } else {
        store.write(uid, &header, raw)
    }
}
