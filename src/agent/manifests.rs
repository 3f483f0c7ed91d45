//! The manifest directory on its way to the loop: read on the disk lane, merged by the mux, recorded on disk, told.

use alloc::rc::Rc;

use smol::{
    channel::{SendError, Sender},
    future::FutureExt as _,
};

use super::{
    core::Event,
    ctx::{Ctx, Shared},
    objects::Objects,
    pod_store::RETRY,
    recorder::Severity,
    records,
};
use crate::{
    api::Mono,
    logic::{mux::Source, static_pod, validation},
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
                    if unrecorded || ctx.pods.records_wait() {
                        retry = ctx.clock.now() + RETRY;
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
                records::settle(&ctx).await;
                retry = if ctx.pods.records_wait() {
                    ctx.clock.now() + RETRY
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
    let objects = Objects::new(snapshot.config_maps, snapshot.secrets);
    ctx.objects.replace(Rc::new(objects));
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
    if !merged.ops.is_empty() {
        let unrecorded = records::take_in(ctx, Source::File, merged.ops, events).await?;
        delivery.unrecorded = !unrecorded.is_empty();
        // Pods of a burst stood in memory whole; they live on disk from here on.
        crate::sys::memory::trim();
    }
    if changed {
        events.send(Event::ObjectsChanged).await?;
    }
    Ok(delivery)
}
