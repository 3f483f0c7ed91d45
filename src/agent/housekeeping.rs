//! Housekeeping: what no event drives. Orphans are ended, what is wanted and missing is created, what nobody owns is
//! removed. The rules are `logic::housekeeping`'s (CLEAN-01 to CLEAN-13); it runs every two seconds once all sources are
//! ready.

use core::time::Duration;
use std::collections::BTreeSet;

use super::{cluster::Cluster, ctx::Ctx, gc};
use crate::api::order::{Gather, Order};
use crate::{
    api::{Mono, PodUid},
    error::chain,
    logic::{
        housekeeping::{CgroupAction, ConfigPod, Pass, may_run},
        pod_worker::Update,
        runtime_cache::RunningPod,
    },
    sys::crash,
};

/// What the deciding half of a pass found to be done by the other half.
#[derive(Debug, Default)]
pub(super) struct Chores {
    /// Pods to create (again), which the table does not hold, and whether their last status must go first.
    pub(super) create: Vec<(PodUid, bool)>,
    /// Pods that are nobody's any more: directory, volumes, containers and logs may go.
    forgotten: Vec<PodUid>,
    /// Cgroups of such pods: whose, path, and whether it may go or only loses its CPU.
    cgroups: Vec<(PodUid, String, CgroupAction)>,
    /// The tiers' shares have to be written.
    tiers: bool,
}

impl Chores {
    /// Whether there is nothing for the other half.
    pub(super) fn is_empty(&self) -> bool {
        self.forgotten.is_empty() && self.cgroups.is_empty() && !self.tiers
    }
}

/// Time after which directories and cgroups are looked through although nothing happened: orphans come from pods that ended
/// or from an earlier agent; only a foreign hand makes others.
pub(super) const SEARCH_INTERVAL: Duration = Duration::from_secs(60);

/// What lies around: pods that have a directory or a waiting record, sorted, and cgroups of pods with their paths.
#[derive(Debug, Default)]
pub(super) struct Found {
    dirs: Vec<PodUid>,
    groups: Vec<(PodUid, String)>,
}

/// Looks through directories and cgroups, which takes a system call for each of a few dozen.
pub(super) async fn search(ctx: &Ctx) -> Found {
    let (volumes, store) = (ctx.volumes.clone(), ctx.store.clone());
    let listed = ctx.disk.run(move || {
        let mut dirs = volumes.list_pod_dirs()?;
        dirs.extend(store.waiting_pods());
        dirs.order();
        dirs.dedup();
        Ok::<_, std::io::Error>(dirs)
    });
    let dirs = listed.await.unwrap_or_else(|e| {
        ctx.complain(&format!("housekeeping: pod directories: {e}"));
        Vec::new()
    });
    let groups = ctx.pod_cgroups.list().await;
    Found { dirs, groups }
}

/// The deciding half: looks at the table, the configuration and the runtime, changes only workers. With what was `found`, it
/// says what of that is to be removed, and nothing else.
pub(super) fn decide(ctx: &Ctx, sources_ready: bool, found: Option<&Found>, now: Mono) -> Chores {
    if !may_run(sources_ready) || !ctx.view.may_run_pods(now) {
        return Chores::default();
    }
    let configured = ctx.pods.configured();
    let pods: Vec<ConfigPod<'_>> = configured
        .iter()
        .filter_map(|uid| ctx.pods.for_housekeeping(uid))
        .collect();
    let known = ctx.pods.sync_known();
    // An old list is as good as none (CLEAN-02).
    let Some(running) = ctx.view.running(now) else {
        return Chores::default();
    };
    let mirrors = ctx.cluster.as_ref().map(Cluster::mirror_uids);
    let mirrors = mirrors.unwrap_or_default();
    let pass = Pass {
        config: &pods,
        mirrors: &mirrors,
        known: &known,
        running: &running,
    };
    ctx.pods.set_gauges(pass.gauges());
    let has_worker = |uid: &PodUid| known.iter().any(|k| k.uid == *uid);
    ctx.probes.retain(|uid| pass.keeps_probes(uid), now);
    ctx.pods.retain(|uid| pass.keeps_status(uid), has_worker);
    let mut chores = Chores {
        tiers: ctx.pod_cgroups.is_stale(ctx.pods.burstable_milli()),
        ..Chores::default()
    };
    let restarts = found.is_none().then(|| pass.restarts());
    for restart in restarts.into_iter().flatten() {
        ctx.pods
            .count(|totals| totals.count_restart(restart.is_static));
        chores
            .create
            .push((restart.uid.clone(), restart.drop_status));
    }
    for orphan in pass.runtime_orphans() {
        if ctx.is_unread(&orphan.uid) {
            continue;
        }
        end_runtime_orphan(ctx, orphan, now);
    }
    // A pod whose worker still ends it is not forgotten: its last step takes its volumes down.
    let workless = |uid: &PodUid| {
        known.binary_search_by(|k| k.uid.cmp(uid)).is_err()
            && !ctx.pods.is_arriving(uid)
            && !ctx.is_unread(uid)
    };
    let (dirs, groups) = found.map_or_else(Default::default, |f| (&*f.dirs, &*f.groups));
    let mut forgotten: BTreeSet<PodUid> = dirs
        .iter()
        .filter(|uid| pass.is_orphan_directory(uid) && workless(uid))
        .cloned()
        .gather();
    let listed = ctx.view.uids().into_iter();
    forgotten.extend(listed.filter(|uid| pass.is_orphan_directory(uid) && workless(uid)));
    for (uid, path) in groups {
        if ctx.is_unread(uid) {
            continue;
        }
        let volumes = dirs.contains(uid) && !forgotten.contains(uid);
        if let Some(action) = pass.cgroup(uid, volumes && !ctx.pods.is_configured(uid)) {
            chores.cgroups.push((uid.clone(), path.clone(), action));
        }
    }
    chores.forgotten = forgotten.into_iter().collect();
    chores
}

/// Kills what runs and nobody knows: expected only right after a start (CLEAN-11).
fn end_runtime_orphan(ctx: &Ctx, pod: &RunningPod, now: Mono) {
    log::info!(
        "pod={}/{} uid={} runs and no source knows it: it is ended",
        pod.namespace,
        pod.name,
        pod.uid
    );
    ctx.pods.count(|totals| totals.count_runtime_orphan());
    let update = Update::runtime_only(&pod.uid, &pod.name, &pod.namespace);
    if let Err(e) = ctx.pods.update(update, now) {
        ctx.complain(&format!(
            "pod={}/{} cannot be ended: {e}",
            pod.namespace, pod.name
        ));
    }
}

/// The other half: removes what was found. One pass at a time. Much may have happened since it was decided, so each pod is
/// claimed and looked at again; one that is busy or wanted by now is left to a later pass.
pub(super) async fn carry_out(ctx: &Ctx, chores: Chores) {
    let milli = ctx.pods.burstable_milli();
    if let Err(e) = ctx.pod_cgroups.refresh_tiers(milli).await {
        log::warn!("cgroups of pods: {}", chain(&e));
    }
    for (uid, path, action) in &chores.cgroups {
        let Some(_turn) = ctx.pods.try_operate(uid) else {
            continue;
        };
        if ctx
            .pods
            .workers(|table| table.could_have_running_containers(uid))
        {
            continue;
        }
        let done = match action {
            CgroupAction::Reduce => ctx.cgroups.reduce_cpu(path),
            CgroupAction::Destroy => ctx.cgroups.destroy(path).await,
        };
        if let Err(e) = done {
            ctx.complain(&format!("cgroup {path}: {}", chain(&e)));
        }
    }
    for uid in &chores.forgotten {
        // Whoever writes a new record of this pod waits until the old one is gone.
        let (Some(_turn), Some(_record)) = (ctx.pods.try_operate(uid), ctx.pods.try_record(uid))
        else {
            continue;
        };
        if ctx.is_nobodys(uid) {
            remove_all_of(ctx, uid).await;
        }
    }
}

async fn remove_all_of(ctx: &Ctx, uid: &PodUid) {
    gc::remove_pod_content(ctx, uid).await;
    crash::point("pod.content-removed");
    let (volumes, store, gone) = (ctx.volumes.clone(), ctx.store.clone(), uid.clone());
    let removed = ctx.disk.run(move || {
        // Also volumes whose pod was lost over a restart: nobody else takes them down.
        volumes.tear_down(&gone)?;
        crash::point("pod.forgotten");
        Ok((volumes.remove_pod_dir(&gone), store.forget(&gone)))
    });
    match removed.await {
        Ok((Err(e), _)) | Err(e) => ctx.complain(&format!("uid={uid} {}", chain(&e))),
        Ok((_, Err(e))) => ctx.complain(&format!("uid={uid} {}", chain(&e))),
        Ok((Ok(()), Ok(()))) => {}
    }
}
