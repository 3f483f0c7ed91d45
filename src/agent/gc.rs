//! Garbage of containers, sandboxes and log directories: chosen by `logic::gc`, removed here.

use alloc::collections::BTreeMap;
use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use super::{asker::Asker, ctx::Ctx, recorder::Severity};
use crate::{
    api::{ContainerId, PodUid, SandboxId, cri::PodItem},
    error::chain,
    logic::gc::{self, ContainerGcPolicy, Fate},
    runtime::{RuntimeError, log_rotation},
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
    if ctx
        .pods
        .workers(|table| table.should_pod_content_be_removed(uid))
        && !ctx.is_unread(uid)
    {
        Fate::ContentRemovable
    } else {
        Fate::Kept
    }
}

/// One pass over everything (GC-01 to GC-06). What fails is tried again in the next; an event of the node tells it (GC-13).
pub(super) async fn pass(ctx: &Ctx, asker: &Asker) {
    let mut failed = Vec::new();
    if let Err(e) = try_pass(ctx, asker, &mut failed).await {
        failed.push(e.to_string());
    }
    if !failed.is_empty() {
        let message = failed.join("; ");
        ctx.node_event(Severity::Warning, "ContainerGCFailed", &message);
    }
    ctx.pods.sweep_delays(ctx.clock.now());
    ctx.images.sweep();
    crate::sys::memory::trim();
}

async fn try_pass(ctx: &Ctx, asker: &Asker, failed: &mut Vec<String>) -> Result<(), RuntimeError> {
    let listed = ctx.runtime.list_pods().await?;
    let ready = asker.ask(|agent| agent.sources.are_ready()).await;
    let fate = |uid: &PodUid| fate(ctx, uid);
    let surplus = gc::removable_containers(&listed, &fate, ready, &policy(ctx), ctx.clock.wall());
    let any = !surplus.is_empty();
    for removal in surplus {
        let owner = listed
            .iter()
            .find(|pod| pod.containers.iter().any(|c| c.id == removal.id))
            .map(|pod| &pod.uid);
        // A pod that is being worked on is left to the next pass.
        let Some(_turn) = owner.and_then(|uid| ctx.pods.try_operate(uid)) else {
            continue;
        };
        let stopped = if removal.stop_first {
            let at_once = core::time::Duration::ZERO;
            ctx.runtime.stop_container(&removal.id, at_once).await
        } else {
            Ok(())
        };
        let removed = match stopped {
            Ok(()) => ctx.runtime.remove_container(&removal.id).await,
            Err(e) => Err(e),
        };
        failed.extend(
            removed
                .err()
                .map(|e| format!("container {}: {e}", removal.id)),
        );
    }
    let listed = if any {
        ctx.runtime.list_pods().await?
    } else {
        listed
    };
    let sandboxes = gc::removable_sandboxes(&listed, &fate, ready);
    let any = any || !sandboxes.is_empty();
    remove_sandboxes(ctx, &listed, sandboxes, failed).await;
    if any {
        // What is known of the runtime is not to show them any longer.
        ctx.view.request_relist();
    }
    remove_forgotten_logs(ctx, failed).await;
    remove_log_dirs(ctx, &fate, ready, failed).await;
    remove_dangling_links(ctx, failed).await
}

async fn remove(ctx: &Ctx, id: &ContainerId) {
    if let Err(e) = ctx.runtime.remove_container(id).await {
        ctx.complain(&format!("container={id} cannot remove: {e}"));
    }
}

async fn remove_sandboxes(
    ctx: &Ctx,
    listed: &[PodItem],
    ids: Vec<SandboxId>,
    failed: &mut Vec<String>,
) {
    for id in ids {
        let owner = listed
            .iter()
            .find(|pod| pod.sandboxes.iter().any(|s| s.id == id))
            .map(|pod| &pod.uid);
        let Some(_turn) = owner.and_then(|uid| ctx.pods.try_operate(uid)) else {
            continue;
        };
        // Stopping first releases what a half-made or lost sandbox still holds.
        let stopped = ctx.runtime.stop_pod_sandbox(&id).await;
        let removed = match stopped {
            Ok(()) => ctx.runtime.remove_pod_sandbox(&id).await,
            Err(e) => Err(e),
        };
        failed.extend(removed.err().map(|e| format!("sandbox {id}: {e}")));
    }
}

async fn remove_log_dirs(
    ctx: &Ctx,
    fate: &dyn Fn(&PodUid) -> Fate,
    ready: bool,
    failed: &mut Vec<String>,
) {
    let root = ctx.cfg.dirs.pod_logs.clone();
    let listing = root.clone();
    let names = ctx.disk.run(move || names(&listing)).await;
    // A pod that comes back under its uid waits for its record, and with it for its logs, until the old ones are gone.
    let (mut gone, mut turns) = (Vec::new(), Vec::new());
    for name in gc::removable_log_dirs(names.iter().map(String::as_str), fate, ready) {
        if let Some(uid) = gc::log_dir_uid(name)
            && let Some(turn) = ctx.pods.try_record(&uid)
            && !ctx.pods.is_arriving(&uid)
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
    let removed = removed.await.into_iter();
    failed.extend(removed.map(|(path, e)| format!("{}: {e}", path.display())));
    drop(turns);
}

/// Removes logs of instances of earlier boots, of which the runtime knows nothing, as those of dead instances.
async fn remove_forgotten_logs(ctx: &Ctx, failed: &mut Vec<String>) {
    let mut containers: BTreeMap<PathBuf, Vec<OsString>> = BTreeMap::new();
    let known = ctx.view.statuses();
    let all = known.iter().flat_map(|pod| &pod.containers);
    for path in all.map(|c| Path::new(&c.log_path)) {
        if let (Some(dir), Some(name)) = (path.parent(), path.file_name()) {
            containers
                .entry(dir.to_owned())
                .or_default()
                .push(name.to_owned());
        }
    }
    let keep = policy(ctx).max_per_container;
    let removed = ctx.disk.run(move || {
        let each = containers.into_iter().map(|(dir, known)| {
            // Any name stands for the directory.
            let live = dir.join("0.log");
            let removed = log_rotation::remove_forgotten(&live, &known, keep);
            (dir, removed)
        });
        each.filter_map(|(dir, removed)| Some((dir, removed.err()?)))
            .filter(|(_, e)| e.kind() != io::ErrorKind::NotFound)
            .collect::<Vec<_>>()
    });
    let removed = removed.await.into_iter();
    failed.extend(removed.map(|(dir, e)| format!("{}: {e}", dir.display())));
}

/// Names in a directory; none if it cannot be read.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|e| e.file_name().into_string().ok())
        .collect()
}

/// Removes links to logs that are gone. Links of others, which lead elsewhere, stay.
async fn remove_dangling_links(ctx: &Ctx, failed: &mut Vec<String>) -> Result<(), RuntimeError> {
    let (links, logs) = (
        ctx.cfg.dirs.container_logs.clone(),
        ctx.cfg.dirs.pod_logs.clone(),
    );
    let dir = links.clone();
    let dangling = ctx.disk.run(move || -> Vec<String> {
        let is_dangling = |name: &String| {
            let target = fs::read_link(dir.join(name));
            target.is_ok_and(|to| {
                to.starts_with(&logs)
                    && fs::symlink_metadata(&to).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
            })
        };
        names(&dir).into_iter().filter(is_dangling).collect()
    });
    let dangling = dangling.await;
    if dangling.is_empty() {
        return Ok(());
    }
    // Only now: a container that was made meanwhile is among them, and its log may not be there yet.
    let listed = ctx.runtime.list_pods().await?;
    for name in gc::removable_links(dangling.iter().map(String::as_str), &listed) {
        let path = links.join(name);
        match ctx.disk.run(move || fs::remove_file(&path)).await {
            Err(e) if e.kind() != io::ErrorKind::NotFound => failed.push(format!("{name}: {e}")),
            _ => {}
        }
    }
    Ok(())
}

/// Removes surplus dead instances of a container that died, or all of a pod whose content may go (CLEAN-14).
pub(super) async fn after_death(ctx: &Ctx, uid: &PodUid, died: &ContainerId) {
    // Before the status is looked at: a call that runs now may change it.
    let _turn = ctx.pods.operate(uid).await;
    let status = ctx.view.status(uid);
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
    ctx.view.request_relist();
}
