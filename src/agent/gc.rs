//! Garbage of containers, sandboxes and log directories: chosen by `logic::gc`, removed here.

use std::fs;

use super::{ctx::Ctx, sync::chain};
use crate::{
    api::{ContainerId, PodUid, cri::PodRuntimeStatus},
    logic::gc::{self, ContainerGcPolicy, Fate},
};

fn policy(ctx: &Ctx) -> ContainerGcPolicy {
    let garbage = &ctx.cfg.garbage;
    let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    ContainerGcPolicy {
        min_age: garbage.min_age,
        max_per_container: garbage.max_per_container.map_or(usize::MAX, count),
        max_total: garbage.max_total.map(count),
    }
}

/// Whether what is left of a pod may go.
fn fate(ctx: &Ctx, uid: &PodUid) -> Fate {
    if ctx.table.borrow().should_pod_content_be_removed(uid) {
        Fate::ContentRemovable
    } else {
        Fate::Kept
    }
}

/// One pass over everything (GC-01 to GC-06).
pub(super) async fn pass(ctx: &Ctx) {
    let listed = match ctx.runtime.list_pods().await {
        Ok(listed) => listed,
        Err(e) => {
            ctx.complain(&format!("container garbage: {e}"));
            return;
        }
    };
    let ready = ctx.sources_ready();
    let fate = |uid: &PodUid| fate(ctx, uid);
    let surplus = gc::removable_containers(&listed, &fate, ready, &policy(ctx), ctx.clock.wall());
    let any = !surplus.is_empty();
    for removal in surplus {
        let owner = listed
            .iter()
            .find(|pod| pod.containers.iter().any(|c| c.id == removal.id))
            .map(|pod| &pod.uid);
        // A pod that is being worked on is left to the next pass.
        let Some(_turn) = owner.and_then(|uid| ctx.operations.try_claim(uid)) else {
            continue;
        };
        if removal.stop_first
            && let Err(e) = ctx
                .runtime
                .stop_container(&removal.id, core::time::Duration::ZERO)
                .await
        {
            ctx.complain(&format!("container={} cannot stop: {e}", removal.id));
            continue;
        }
        remove(ctx, &removal.id).await;
    }
    let listed = if any {
        ctx.runtime.list_pods().await.unwrap_or_default()
    } else {
        listed
    };
    remove_sandboxes(ctx, &listed, &fate, ready).await;
    remove_log_dirs(ctx, &fate, ready).await;
    ctx.crash_loop.borrow_mut().sweep(ctx.clock.now());
    ctx.image_backoff.borrow_mut().sweep(ctx.clock.now());
    crate::sys::memory::trim();
}

async fn remove(ctx: &Ctx, id: &ContainerId) {
    if let Err(e) = ctx.runtime.remove_container(id).await {
        ctx.complain(&format!("container={id} cannot remove: {e}"));
    }
}

async fn remove_sandboxes(
    ctx: &Ctx,
    listed: &[PodRuntimeStatus],
    fate: &dyn Fn(&PodUid) -> Fate,
    ready: bool,
) {
    for id in gc::removable_sandboxes(listed, fate, ready) {
        let owner = listed
            .iter()
            .find(|pod| pod.sandboxes.iter().any(|s| s.id == id))
            .map(|pod| &pod.uid);
        let Some(_turn) = owner.and_then(|uid| ctx.operations.try_claim(uid)) else {
            continue;
        };
        // Stopping first releases what a half-made or lost sandbox still holds.
        let stopped = ctx.runtime.stop_pod_sandbox(&id).await;
        let removed = match stopped {
            Ok(()) => ctx.runtime.remove_pod_sandbox(&id).await,
            Err(e) => Err(e),
        };
        if let Err(e) = removed {
            ctx.complain(&format!("sandbox={id} cannot remove: {e}"));
        }
    }
}

async fn remove_log_dirs(ctx: &Ctx, fate: &dyn Fn(&PodUid) -> Fate, ready: bool) {
    let root = ctx.cfg.dirs.pod_logs.clone();
    let listing = root.clone();
    let names = ctx.disk.run(move || -> Vec<String> {
        let entries = fs::read_dir(listing).into_iter().flatten().flatten();
        entries
            .filter_map(|e| e.file_name().into_string().ok())
            .collect()
    });
    let names = names.await;
    // A pod that comes back under its uid waits for its record, and with it for its logs, until the old ones are gone.
    let (mut gone, mut turns) = (Vec::new(), Vec::new());
    for name in gc::removable_log_dirs(names.iter().map(String::as_str), fate, ready) {
        if let Some(uid) = gc::log_dir_uid(name)
            && let Some(turn) = ctx.records.try_claim(&uid)
            && !ctx.arriving.borrow().contains_key(&uid)
        {
            turns.push(turn);
            gone.push(root.join(name));
        }
    }
    if gone.is_empty() {
        return;
    }
    let removed = ctx.disk.run(move || {
        gone.into_iter()
            .filter_map(|path| fs::remove_dir_all(&path).err().map(|e| (path, e)))
            .collect::<Vec<_>>()
    });
    for (path, e) in removed.await {
        ctx.complain(&format!("cannot remove {}: {e}", path.display()));
    }
    drop(turns);
}

/// Removes surplus dead instances of a container that died, or all of a pod whose content may go (CLEAN-14).
pub(super) async fn after_death(ctx: &Ctx, uid: &PodUid, died: &ContainerId) {
    // Before the status is looked at: a call that runs now may change it.
    let _turn = ctx.operations.claim(uid).await;
    let status = ctx.runtime_status(uid);
    let keep = ctx.cfg.garbage.max_per_container.unwrap_or(u32::MAX);
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    for id in gc::removable_after_death(&status, died, keep, fate(ctx, uid)) {
        remove(ctx, &id).await;
    }
}

/// Removes everything of a pod that has ended and is nobody's any more: containers, sandboxes, logs. What fails is left
/// to the next pass. The caller has claimed the pod.
pub(super) async fn remove_pod_content(ctx: &Ctx, uid: &PodUid) {
    let status = match ctx.runtime.pod_status(uid).await {
        Ok(status) => status,
        Err(e) => {
            ctx.complain(&format!("uid={uid} {}", chain(&e)));
            return;
        }
    };
    for container in &status.containers {
        remove(ctx, &container.id).await;
    }
    for sandbox in &status.sandboxes {
        if let Err(e) = ctx.runtime.remove_pod_sandbox(&sandbox.id).await {
            ctx.complain(&format!("sandbox={} cannot remove: {e}", sandbox.id));
        }
    }
    ctx.request_relist();
}
