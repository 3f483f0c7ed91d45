//! Mirror pods: kept as `logic::mirror` wants them, one request at a time. There are about ten static pods.

use smol::future::FutureExt as _;

use super::{
    answers::{Seen, copy_of, mirror_of},
    of, until,
};
use crate::{
    agent::{
        ctx::{Ctx, Shared},
        pods::StaticId,
        sync::chain,
    },
    api::{Mono, ObjectMeta, PodUid, pod::CONFIG_HASH},
    kube::{Api, KubeError},
    logic::{
        mirror::{self, Action, FullName, InTheWay, OwnNode},
        static_pod,
    },
};

/// Keeps mirrors until the executor is gone.
///
/// Nothing is done before a first complete list: until then nobody knows which mirrors there are.
pub(super) async fn run(ctx: Shared) {
    let pods = &of(&ctx).pods;
    loop {
        let mut next = Mono(u64::MAX);
        if pods.poll.borrow().has_completed() && of(&ctx).node.is_read() {
            while let Some(work) = next_work(&ctx, &mut next) {
                carry_out(&ctx, work).await;
                next = Mono(u64::MAX);
            }
        }
        pods.mirrors_due.heard().or(until(&ctx, next)).await;
    }
}

/// One thing to do.
enum Work {
    Create(PodUid, FullName),
    Delete(FullName, PodUid),
}

impl StaticId {
    /// The metadata of the static pod, as far as mirrors go.
    fn metadata(&self) -> ObjectMeta {
        let hash = (!self.hash.is_empty()).then(|| (CONFIG_HASH.into(), self.hash.clone()));
        ObjectMeta {
            name: self.name.name.clone(),
            namespace: self.name.namespace.clone(),
            annotations: hash.into_iter().collect(),
            ..ObjectMeta::default()
        }
    }
}

/// The first mirror that is not as it should be and may be tried now; `next`: when another may.
fn next_work(ctx: &Ctx, next: &mut Mono) -> Option<Work> {
    let now = ctx.clock.now();
    let mirrors = of(ctx).pods.mirrors.borrow();
    let mut may_try = |name: &FullName| {
        let at = mirrors.tries_at(name);
        if at > now {
            *next = at.min(*next);
        }
        at <= now
    };
    let statics: Vec<(PodUid, StaticId)> = ctx.pods.with_configs(|pods| {
        let named =
            pods.filter_map(|(uid, pod)| Some((uid.clone(), (**pod.static_id.as_ref()?).clone())));
        named.collect()
    });
    for (uid, id) in &statics {
        // Which node it is matters only when it is created.
        let found = mirrors.get(&id.name);
        let work = match mirror::reconcile(&id.metadata(), found, OwnNode::Unknown) {
            Action::Nothing => continue,
            // Also that of a pod which has ended: it shows what another was.
            Action::Delete(mirror) => Work::Delete(id.name.clone(), mirror),
            Action::Create(_) | Action::NoNode if ctx.pods.is_to_end(uid) => {
                continue;
            }
            Action::Create(_) | Action::NoNode => Work::Create(uid.clone(), id.name.clone()),
        };
        if may_try(&id.name) {
            return Some(work);
        }
    }
    if !ctx.sources_ready() {
        // Their static pods may be in a manifest that was not read yet.
        return None;
    }
    let orphans = mirrors.orphans(
        |name| statics.iter().any(|(_, id)| id.name == *name),
        |name| {
            let (name, namespace) = (&name.name, &name.namespace);
            ctx.pods
                .workers(|table| table.is_pod_for_mirror_pod_terminating(name, namespace))
        },
    );
    let mut orphans = orphans.into_iter();
    orphans
        .find(|(name, _)| may_try(name))
        .map(|(name, uid)| Work::Delete(name, uid))
}

async fn carry_out(ctx: &Ctx, work: Work) {
    let (name, done) = match work {
        Work::Create(uid, name) => {
            let done = create(ctx, &uid, &name).await;
            (name, done)
        }
        Work::Delete(name, uid) => {
            let done = delete(ctx, &name, &uid).await;
            (name, done)
        }
    };
    let mut mirrors = of(ctx).pods.mirrors.borrow_mut();
    match done {
        Ok(()) => mirrors.succeeded(&name),
        Err(why) => {
            ctx.complain(&format!("mirror of static pod {name}: {why}"));
            mirrors.failed(&name, ctx.clock.now());
        }
    }
}

async fn delete(ctx: &Ctx, name: &FullName, uid: &PodUid) -> Result<(), String> {
    let (of_name, of_uid) = (name.clone(), uid.clone());
    let job = move |api: &dyn Api| api.delete_pod(&of_name.namespace, &of_name.name, &of_uid);
    let pods = &of(ctx).pods;
    match of(ctx).lanes.work(job).await {
        Ok(None) => pods.poll.borrow_mut().on_deleted(uid),
        Ok(Some(_)) => return Err("finalizers keep it".into()),
        // Gone already, or another's by now.
        Err(e) if e.is_not_found() || e.is_conflict() => pods.poll.borrow_mut().reread(uid),
        Err(e) => return Err(chain(&e)),
    }
    pods.mirrors.borrow_mut().remove(name, uid);
    pods.writer.borrow_mut().on_gone(uid);
    pods.asks_due.ring();
    Ok(())
}

async fn create(ctx: &Ctx, uid: &PodUid, name: &FullName) -> Result<(), String> {
    let (store, of_uid) = (ctx.store.clone(), uid.clone());
    let read = ctx.disk.run(move || {
        let (_, raw) = store.read::<serde_json::Value>(&of_uid)?;
        let pod = store.decoded(&of_uid, static_pod::decode(&raw))?;
        Ok((raw, pod))
    });
    let (raw, pod) = read
        .await
        .map_err(|e: crate::agent::pod_store::StoreError| chain(&e))?;
    let (node, meta) = (ctx.node.name.clone(), pod.metadata.clone());
    let of_name = name.clone();
    let job = move |api: &dyn Api| -> Result<Option<Seen>, String> {
        let FullName { namespace, name } = &of_name;
        let own = api.node(&node).map_err(|e| chain(&e))?;
        let metadata = &own["metadata"];
        if !metadata["deletionTimestamp"].is_null() {
            return Err("the Node object is being deleted".into());
        }
        let node_uid = metadata["uid"].as_str().unwrap_or("");
        let body = mirror::mirror_pod(&raw, &pod, &node, node_uid).map_err(|e| e.to_string())?;
        let made = match api.create_pod(namespace, body.to_string().as_bytes()) {
            Err(e) if is_there(&e) => match api.pod(&node, namespace, name) {
                Err(e) if e.status() == Some(403) => {
                    return Err("a pod of this name is there, of another node".into());
                }
                found => found,
            },
            made => made,
        };
        Ok(Seen::of(made.map_err(|e| chain(&e))?, &node))
    };
    let seen = of(ctx).lanes.work(job).await?;
    let unusable = || "the answer is no pod of this node".to_owned();
    let Seen { item, sight, pod } = seen.ok_or_else(unusable)?;
    let found = pod.map_err(|e| format!("{}: {e}", unusable()))?;
    let pods = &of(ctx).pods;
    match mirror::in_the_way(&found.pod.metadata, &meta) {
        InTheWay::Stranger => Err("a pod of this name is there that is no mirror".into()),
        // Seen at the next look: one that is older is deleted then.
        InTheWay::Same(_) | InTheWay::Older(_) => {
            let (copy, now) = (copy_of(&found.pod), ctx.clock.now());
            pods.poll.borrow_mut().on_made(&item, sight, now);
            pods.writer.borrow_mut().on_api_copy(&item.uid, copy);
            if let Some((name, mirror)) = mirror_of(&found.pod) {
                pods.mirrors.borrow_mut().put(name, mirror);
            }
            pods.statuses_due.ring();
            Ok(())
        }
    }
}

fn is_there(e: &KubeError) -> bool {
    matches!(e, KubeError::Api(e) if e.status == 409 && e.reason == "AlreadyExists")
}
