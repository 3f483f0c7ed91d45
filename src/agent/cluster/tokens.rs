//! Tokens of service accounts (TOK-01 to TOK-04).
//!
//! A token lies where the pod reads it, in a volume in memory that no container may write: from there it is read back, so
//! that the agent holds none, and one that starts anew asks for none. A pod's first token is kept on disk as well, for a
//! start without the apiserver; later ones are not.

use alloc::collections::{BTreeMap, btree_map::Entry};
use core::cell::RefCell;

use super::objects::{FORBIDDEN_PAUSES, ObjectsOfPods, Refusal, SILENT};
use crate::{
    agent::ctx::Ctx,
    api::{Mono, Pod, PodUid, Wall},
    logic::{
        fnv::fnv1a,
        pod_refs::{self, TokenPlace, TokenRef},
        token::{self, Issued},
    },
};

/// When the tokens in force are to be replaced. As many as volumes of the node's pods ask for.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    due: RefCell<BTreeMap<(PodUid, u64), Due>>,
}

/// When a token is to be replaced.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: Mono,
    /// An agent before this one asked for it: its age is known by the time of day alone, which may turn out to be another.
    is_found: bool,
}

fn slot(uid: &PodUid, token: &TokenRef) -> (PodUid, u64) {
    let seconds = token.expiration_s.unwrap_or(0).to_le_bytes();
    (
        uid.clone(),
        fnv1a(seconds.into_iter().chain(token.audience.bytes())),
    )
}

impl Tokens {
    /// Forgets a pod's.
    pub(super) fn forget(&self, uid: &PodUid) {
        self.due.borrow_mut().retain(|(of, _), _| of != uid);
    }

    /// Pods with a token that is to be replaced by now.
    pub(super) fn due(&self, now: Mono) -> Vec<PodUid> {
        let due = self.due.borrow();
        let mut pods: Vec<PodUid> = due
            .iter()
            .filter(|(_, due)| due.at <= now)
            .map(|((uid, _), _)| uid.clone())
            .collect();
        pods.dedup();
        pods
    }
}

/// All tokens of the pod's volumes: those in force, new ones where they are due.
pub(super) async fn load(
    ctx: &Ctx,
    mine: &ObjectsOfPods,
    pod: &Pod,
) -> BTreeMap<TokenRef, Result<Vec<u8>, String>> {
    let mut tokens = BTreeMap::new();
    for place in pod_refs::tokens(pod) {
        if let Entry::Vacant(token) = tokens.entry(place.token.clone()) {
            token.insert(current(ctx, mine, pod, &place).await);
        }
    }
    tokens
}

async fn current(
    ctx: &Ctx,
    mine: &ObjectsOfPods,
    pod: &Pod,
    place: &TokenPlace<'_>,
) -> Result<Vec<u8>, String> {
    let uid = &pod.metadata.uid;
    let mounted = mounted(ctx, uid, place).await;
    let times = mounted.as_deref().and_then(token::times);
    let slot = slot(uid, &place.token);
    let now = ctx.clock.now();
    let known = mine.tokens.due.borrow().get(&slot).copied();
    let due = match (known, times) {
        (Some(due), _) if !due.is_found => due,
        (_, Some(times)) => Due {
            at: now + token::lease_left(times, uid, server_time(ctx)),
            is_found: true,
        },
        (Some(due), None) => due,
        (None, None) => Due {
            at: now,
            is_found: true,
        },
    };
    if let Some(token) = &mounted
        && now < due.at
    {
        mine.tokens.due.borrow_mut().insert(slot, due);
        return Ok(token.clone());
    }
    let why = match ask(ctx, mine, pod, &place.token).await {
        Ok(issued) => {
            let due = Due {
                at: ctx.clock.now() + token::lease(issued.times, uid),
                is_found: false,
            };
            mine.tokens.due.borrow_mut().insert(slot, due);
            keep_first(ctx, mine, uid, &place.token, &issued).await;
            return Ok(issued.token.into_bytes());
        }
        Err(why) => why,
    };
    // One that does not say how long it is good may be.
    let is_taken = |token: &Vec<u8>| {
        token::times(token).is_none_or(|times| token::is_taken(times, server_time(ctx)))
    };
    let old = match mounted.filter(is_taken) {
        Some(token) => Some(token),
        None => kept(ctx, mine, uid, &place.token).await.filter(is_taken),
    };
    let Some(token) = old else {
        return Err(format!(
            "failed to fetch token for service account {:?}: {why}",
            token::account(pod)
        ));
    };
    let meta = &pod.metadata;
    ctx.complain(&format!(
        "pod={}/{} a token is not replaced, the old one goes on: {why}",
        meta.namespace, meta.name
    ));
    Ok(token)
}

/// The time of day by the clock that tokens are issued by.
fn server_time(ctx: &Ctx) -> Wall {
    let ours = ctx.clock.wall();
    match &ctx.cluster {
        Some(cluster) => Wall::from_secs(ours.secs().saturating_sub(cluster.link.ahead_s())),
        None => ours,
    }
}

/// The token that the pod has now.
async fn mounted(ctx: &Ctx, uid: &PodUid, place: &TokenPlace<'_>) -> Option<Vec<u8>> {
    let (volumes, uid) = (ctx.volumes.clone(), uid.clone());
    let (volume, path) = (place.volume.to_owned(), place.path.to_owned());
    let read = ctx.disk.run(move || {
        let limit = u64::try_from(token::MAX_TOKEN_BYTES).unwrap_or(u64::MAX);
        volumes.projected_file(&uid, &volume, &path, limit)
    });
    read.await.ok().filter(|token| !token.is_empty())
}

async fn ask(
    ctx: &Ctx,
    mine: &ObjectsOfPods,
    pod: &Pod,
    token: &TokenRef,
) -> Result<Issued, String> {
    if !mine.reach.borrow_mut().may_ask(ctx.clock.now()) {
        return Err(SILENT.into());
    }
    let uid = &pod.metadata.uid;
    let mut pauses = FORBIDDEN_PAUSES.iter();
    loop {
        let request = token::request(pod, token).to_string();
        let (namespace, account) = (
            pod.metadata.namespace.clone(),
            token::account(pod).to_owned(),
        );
        let asked = mine.ask(ctx, uid, None, move |api| {
            let answer = api.create_token(&namespace, &account, request.as_bytes())?;
            token::issued(&answer).map_err(Refusal::Other)
        });
        let answer = asked.await;
        if !mine.pause(ctx, uid, &answer, &mut pauses).await {
            return answer.map_err(Refusal::into_text);
        }
    }
}

async fn keep_first(
    ctx: &Ctx,
    mine: &ObjectsOfPods,
    uid: &PodUid,
    token: &TokenRef,
    issued: &Issued,
) {
    let (files, text) = (mine.files.clone(), issued.token.clone());
    let (uid, token) = (uid.clone(), token.clone());
    let kept = ctx
        .disk
        .run(move || files.write_token(&uid, &token, &text))
        .await;
    match kept {
        Ok(written) => mine.note_written(written),
        Err(e) => ctx.complain(&format!("no copy of a token is kept on disk: {e}")),
    }
}

async fn kept(ctx: &Ctx, mine: &ObjectsOfPods, uid: &PodUid, token: &TokenRef) -> Option<Vec<u8>> {
    let (files, uid, token) = (mine.files.clone(), uid.clone(), token.clone());
    ctx.disk.run(move || files.read_token(&uid, &token)).await
}
