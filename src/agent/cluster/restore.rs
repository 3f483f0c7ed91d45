//! What an agent before this one has recorded of the API's pods: they start, or go on, with no apiserver in reach.

use smol::channel::{SendError, Sender};

use super::{
    answers::{Seen, copy_of},
    of,
};
use crate::{
    agent::{
        core::{ConfigOp, Event},
        ctx::Ctx,
        outcome,
        pod_store::{PodStore, StoreError},
        records,
        sync::chain,
    },
    api::{Pod, PodStatus, PodUid, order::Order as _},
    logic::mux::{Op, Source},
};

/// Tells the loop of all pods of the API that are on disk. A record that cannot be used is told, and its pod left alone: it
/// runs on, and comes again with the first list.
pub(super) async fn pods(ctx: &Ctx, events: &Sender<Event>) -> Result<(), SendError<Event>> {
    let (volumes, store) = (ctx.volumes.clone(), ctx.store.clone());
    let listed = ctx.disk.run(move || {
        let mut uids = volumes.list_pod_dirs()?;
        uids.extend(store.waiting_pods());
        uids.order();
        uids.dedup();
        Ok::<_, std::io::Error>(uids)
    });
    let uids = listed.await.unwrap_or_else(|e| {
        ctx.complain(&format!("pod directories: {e}"));
        Vec::new()
    });
    let mut pods: Vec<Pod> = Vec::new();
    for uid in uids {
        let (store, node) = (ctx.store.clone(), ctx.node.name.clone());
        let of = uid.clone();
        let read = ctx.disk.run(move || read(&store, &of, &node)).await;
        match read {
            Ok(Some((seen, outcome))) => pods.extend(restore(ctx, seen, outcome)),
            Ok(None) => {}
            Err(e) => ctx.complain(&format!("uid={uid} {}", chain(&e))),
        }
    }
    if !pods.is_empty() {
        log::info!("{} pods of the apiserver are known from disk", pods.len());
        events
            .send(Event::Config(Source::Api, vec![ConfigOp::Add(pods)]))
            .await?;
    }
    crate::sys::memory::trim();
    Ok(())
}

/// Reads one record; `None`: it is of another source, or there is none.
fn read(
    store: &PodStore,
    uid: &PodUid,
    node: &str,
) -> Result<Option<(Seen, Option<PodStatus>)>, StoreError> {
    let (header, raw) = match store.read::<serde_json::Value>(uid) {
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Ok(None);
        }
        read => read?,
    };
    if header.source != Source::Api.as_str() {
        return Ok(None);
    }
    let seen = Seen::of(raw, node).ok_or_else(|| "its object has no identity".to_owned());
    let seen = store.decoded(uid, seen)?;
    if seen.item.uid != *uid {
        let why = format!("its object is of {}", seen.item.uid);
        return store.decoded(uid, Err(why));
    }
    Ok(Some((seen, outcome::recall(store, uid, &header))))
}

/// Returns the pod if it is to be told.
fn restore(ctx: &Ctx, seen: Seen, outcome: Option<PodStatus>) -> Option<Pod> {
    let Seen { item, sight, pod } = seen;
    let received = match pod {
        Ok(received) => received,
        Err(why) => {
            ctx.complain(&format!("uid={} its record: {why}", item.uid));
            return None;
        }
    };
    let pods = &of(ctx).pods;
    pods.poll
        .borrow_mut()
        .restore(&item, sight, ctx.clock.now());
    if !pods.poll.borrow().holds(&item.uid) {
        ctx.complain(&format!("uid={} no room for a pod from disk", item.uid));
        return None;
    }
    let copy = copy_of(&received.pod);
    let merged = ctx
        .mux
        .borrow_mut()
        .restore(Source::Api, vec![received], ctx.clock.wall());
    let mut added = merged.ops.into_iter().filter_map(|op| match op {
        Op::Add(mut pods) => pods.pop(),
        Op::Remove(_) | Op::Update(_) | Op::Delete(_) | Op::Reconcile(_) => None,
    });
    let Some(added) = added.next() else {
        // One that had its name before is on its way out still. What runs of this one is no orphan.
        pods.poll.borrow_mut().undeliver(&item.uid);
        return None;
    };
    let mut pod = added.pod;
    pods.writer.borrow_mut().on_api_copy(&item.uid, copy);
    if let Some(outcome) = outcome {
        records::recall(ctx, Source::Api, &mut pod, outcome);
    }
    ctx.pods.arrives(&item.uid);
    Some(pod)
}
