//! What the apiserver is told of pods: their statuses, and that they have ended. Which and when is decided by
//! [`StatusWriter`](crate::logic::status_writer::StatusWriter).

use alloc::rc::Rc;

use serde_json::{Value, json};
use smol::{LocalExecutor, future::FutureExt as _};

use super::{
    answers::{self, Seen},
    boxed, of, until,
};
use crate::{
    agent::{
        ctx::{Ctx, Shared},
        pods, records,
        sync::chain,
    },
    api::{Mono, PodUid},
    kube::{Api, KubeError, Patch},
    logic::{
        api_poll::{Item, Verdict},
        mirror::Mirrors,
        status_writer::{ApiCopy, Failure, Next, Truth, Truths, Write},
    },
};

/// How the agent's own state answers for the pods of the API.
struct Known<'a> {
    pods: &'a pods::Known<'a>,
    mirrors: &'a Mirrors,
}

impl Known<'_> {
    /// The uid under which the agent knows a pod of the API: that of the static pod, for a mirror (MIR-01). One that mirrors
    /// what the manifest said before is nobody's: it is about to be replaced, and what another pod does may be against its
    /// own spec.
    fn own_uid<'b>(&'b self, uid: &'b PodUid) -> Option<&'b PodUid> {
        let Some(name) = self.mirrors.name_of(uid) else {
            return Some(uid);
        };
        let hash = &self.mirrors.get(name)?.hash;
        self.pods.find(|pod| {
            let id = pod.static_id.as_deref();
            id.is_some_and(|id| id.name == *name && id.hash == *hash)
        })
    }
}

impl Truths for Known<'_> {
    fn truth(&self, uid: &PodUid) -> Option<Truth<'_>> {
        self.pods.truth(self.own_uid(uid)?)
    }
}

/// Writes until the executor is gone.
pub(super) async fn run(ctx: Shared, executor: Rc<LocalExecutor<'static>>) {
    let pods = &of(&ctx).pods;
    loop {
        let may_write = pods.restored.get() && of(&ctx).node.is_read() && !pods.is_silent.get();
        if may_write {
            while let Some(write) = {
                let (now, wall) = (ctx.clock.now(), ctx.clock.wall());
                let mirrors = &pods.mirrors.borrow();
                ctx.pods.with_known(|pods| {
                    let known = Known { pods, mirrors };
                    of(&ctx).pods.writer.borrow_mut().poll(&known, now, wall)
                })
            } {
                send(&ctx, &executor, write);
            }
            if pods.writer.borrow_mut().take_meddled() {
                of(&ctx).node.doubt();
            }
        }
        let due = async {
            let next = pods.writer.borrow().next_timeout(ctx.clock.now());
            until(&ctx, if may_write { next } else { Mono(u64::MAX) }).await;
        };
        pods.statuses_due.heard().or(due).await;
    }
}

/// Namespace and name of a pod of the API.
fn path(ctx: &Ctx, uid: &PodUid) -> Option<(String, String)> {
    let pods = &of(ctx).pods;
    if let Some(name) = pods.mirrors.borrow().name_of(uid) {
        return Some((name.namespace.clone(), name.name.clone()));
    }
    let poll = pods.poll.borrow();
    let (namespace, name) = poll.path(uid)?;
    Some((namespace.into(), name.into()))
}

fn send(ctx: &Shared, executor: &Rc<LocalExecutor<'static>>, write: Write) {
    let ctx = Rc::clone(ctx);
    let (Write::Patch { uid, .. } | Write::Delete { uid }) = &write;
    of(&ctx).pods.poll.borrow_mut().on_write_started(uid);
    let task = async move {
        match write {
            Write::Patch { uid, body } => patch(&ctx, &uid, body).await,
            Write::Delete { uid } => delete(&ctx, &uid).await,
        }
    };
    executor.spawn(boxed(task)).detach();
}

/// A request that is not sent, for its pod went meanwhile.
fn nobody() -> KubeError {
    KubeError::Cancelled
}

async fn patch(ctx: &Ctx, uid: &PodUid, body: Value) {
    // Phase or start time: what the next agent must not do without.
    let is_news = !body["status"]["phase"].is_null() || !body["status"]["startTime"].is_null();
    let tells_end = matches!(
        body["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    );
    let answer = match path(ctx, uid) {
        None => Err(nobody()),
        Some((namespace, name)) => {
            let (own, node) = (uid.clone(), ctx.node.name.clone());
            let job = move |api: &dyn Api| {
                let body = body.to_string();
                let kind = Patch::Strategic;
                let raw = api.patch_pod_status(&namespace, &name, kind, body.as_bytes())?;
                let shown = is_news.then(|| raw.clone());
                let seen = Seen::of(raw, &node).filter(|seen| seen.item.uid == own);
                Ok((seen.map(Box::new), shown))
            };
            of(ctx).lanes.work(job).await
        }
    };
    let pods = &of(ctx).pods;
    let now = ctx.clock.now();
    let (mut more, mut news) = (None, None);
    let told = match answer {
        Ok((Some(seen), shown)) if seen.pod.is_ok() => {
            let verdict = pods
                .poll
                .borrow_mut()
                .on_write_ended(uid, Some(seen.sight), now);
            let copy = copy(&seen);
            if verdict == Verdict::Deliver || !tells_end && is_ended_by_others(ctx, uid, &seen) {
                more = Some(seen);
            } else {
                news = shown;
            }
            copy.ok_or(Failure::Failed)
        }
        Ok(_) => {
            ctx.complain(&format!("uid={uid} the answer to its status is of no use"));
            let _ = pods.poll.borrow_mut().on_write_ended(uid, None, now);
            Err(Failure::Failed)
        }
        Err(e) => {
            let _ = pods.poll.borrow_mut().on_write_ended(uid, None, now);
            Err(failed(ctx, uid, "status", &e))
        }
    };
    let next = pods.writer.borrow_mut().on_patched(uid, told, now);
    follow(ctx, uid, next);
    if let Some(seen) = more {
        pods.written(seen).await;
    }
    if let Some(shown) = news {
        keep(ctx, uid, shown).await;
    }
}

/// Whether the API shows an end that the pod's worker does not know of (OFF-04). The phase is the agent's own field, so
/// that the poller takes it for an echo.
fn is_ended_by_others(ctx: &Ctx, uid: &PodUid, seen: &Seen) -> bool {
    let lives = ctx.pods.with_config(uid, |c| !c.api_phase_terminal);
    lives == Some(true)
        && seen
            .pod
            .as_ref()
            .is_ok_and(|pod| pod.pod.status.phase.is_terminal())
}

async fn delete(ctx: &Ctx, uid: &PodUid) {
    let answer = match path(ctx, uid) {
        None => Err(nobody()),
        Some((namespace, name)) => {
            let (own, node) = (uid.clone(), ctx.node.name.clone());
            let job = move |api: &dyn Api| {
                let left = api.delete_pod(&namespace, &name, &own)?;
                Ok(left.map(|raw| Seen::of(raw, &node).map(Box::new)))
            };
            of(ctx).lanes.work(job).await
        }
    };
    let pods = &of(ctx).pods;
    let now = ctx.clock.now();
    let mut more = None;
    let told = match answer {
        Ok(None) => {
            let mut poll = pods.poll.borrow_mut();
            let _ = poll.on_write_ended(uid, None, now);
            poll.on_deleted(uid);
            Ok(None)
        }
        Ok(Some(Some(seen))) if seen.pod.is_ok() => {
            let mut poll = pods.poll.borrow_mut();
            let verdict = poll.on_write_ended(uid, Some(seen.sight), now);
            let copy = copy(&seen);
            more = (verdict == Verdict::Deliver).then_some(seen);
            copy.map(Some).ok_or(Failure::Failed)
        }
        Ok(Some(_)) => {
            let _ = pods.poll.borrow_mut().on_write_ended(uid, None, now);
            Err(Failure::Unsure)
        }
        Err(e) => {
            let _ = pods.poll.borrow_mut().on_write_ended(uid, None, now);
            Err(failed(ctx, uid, "deletion", &e))
        }
    };
    let next = pods.writer.borrow_mut().on_deleted(uid, told, now);
    follow(ctx, uid, next);
    if let Some(seen) = more {
        pods.written(seen).await;
    }
}

fn copy(seen: &Seen) -> Option<ApiCopy> {
    let pod = seen.pod.as_ref().ok()?;
    Some(answers::copy_of(&pod.pod))
}

fn failed(ctx: &Ctx, uid: &PodUid, what: &str, e: &KubeError) -> Failure {
    let failure = answers::write_failure(e);
    match failure {
        // Gone, or another's by now: nothing to tell anybody.
        Failure::Unsure => log::debug!("uid={uid} {what}: {}", chain(e)),
        Failure::Refused | Failure::Busy { .. } | Failure::Failed => {
            ctx.complain(&format!("uid={uid} {what}: {}", chain(e)));
        }
    }
    failure
}

/// What follows from an answer, for the poller and for the next writes.
fn follow(ctx: &Ctx, uid: &PodUid, next: Next) {
    let pods = &of(ctx).pods;
    if next == Next::Reread {
        pods.poll.borrow_mut().reread(uid);
        // A mirror that has ended is in no list that the poller would miss it in.
        let name = pods.mirrors.borrow().name_of(uid).cloned();
        if let Some(name) = name {
            pods.mirrors.borrow_mut().remove(&name, uid);
            pods.writer.borrow_mut().on_gone(uid);
            pods.mirrors_due.ring();
        }
    }
    pods.asks_due.ring();
    pods.statuses_due.ring();
}

/// Keeps what the API shows in the pod's record, for the next agent.
async fn keep(ctx: &Ctx, uid: &PodUid, shown: Value) {
    let turn = ctx.pods.record(uid).await;
    if !ctx.pods.is_configured(uid) {
        return;
    }
    let (store, of) = (ctx.store.clone(), uid.clone());
    let kept = ctx.disk.run(move || records::refresh(&store, &of, &shown));
    if let Err(e) = kept.await {
        ctx.complain(&format!("uid={uid} {}", chain(&e)));
    }
    drop(turn);
}

/// Tells the API that the node does not take a pod that is in no table of the agent's. One that is to be deleted is.
pub(super) async fn refuse(ctx: Shared, item: Item, reason: &'static str, message: String) {
    log::info!(
        "pod={}/{} uid={} is refused: {reason}: {message}",
        item.namespace,
        item.name,
        item.uid
    );
    let body = json!({
        "metadata": {"uid": item.uid},
        "status": {
            "phase": "Failed",
            "reason": reason,
            "message": format!("Pod was rejected: {message}"),
        },
    });
    let uid = item.uid.clone();
    let job = move |api: &dyn Api| {
        let body = body.to_string();
        let Item {
            namespace, name, ..
        } = &item;
        api.patch_pod_status(namespace, name, Patch::Strategic, body.as_bytes())?;
        if item.deleting {
            api.delete_pod(namespace, name, &item.uid)?;
        }
        Ok::<_, KubeError>(())
    };
    if let Err(e) = of(&ctx).lanes.work(job).await {
        // The next list brings it again.
        let _ = failed(&ctx, &uid, "refusal", &e);
    }
}
