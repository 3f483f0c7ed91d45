//! ConfigMaps, Secrets and services that pods refer to: read when they are needed and old, kept on disk, in memory only
//! while somebody uses them.
//!
//! What is due is decided by [`ObjectTable`]; copies are [`ObjectFiles`]'. A read that fails leaves what was there: only
//! "not found" is an answer (OBJ-04). While the apiserver is silent, what is on disk is used, also by an agent that has
//! started without it (OFF-02).

use alloc::{collections::BTreeSet, sync::Arc};
use core::{
    cell::RefCell,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};
use std::path::PathBuf;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use smol::future::FutureExt as _;

pub(in crate::agent) use super::loaded::Loaded;
use super::{
    object_files::{Copy, ObjectFiles},
    tokens::Tokens,
};
use crate::{
    agent::{ctx::Ctx, pods::Bell},
    api::{ConfigMap, Container, Mono, ObjectMeta, Pod, PodUid, Secret, service, strict},
    config::{Config, OfflineSecrets},
    kube::{Api, KubeError},
    logic::{
        bound_volume::BoundVolume,
        object_table::{Found, ObjectTable, Reach, Step},
        pod_kind,
        pod_refs::{self, Key, Kind},
    },
};

/// How long a read may take if there is a copy to use instead; the read goes on.
const REFRESH_WAIT: Duration = Duration::from_secs(5);
/// Pauses after which a new pod's object is asked for again that may not be read: the authorizer learns late of a binding.
pub(super) const FORBIDDEN_PAUSES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(2),
];
/// How long a pod counts as new to the authorizer.
const NEW_POD: Duration = Duration::from_secs(30);
/// Files that wait for [`ObjectsOfPods::commit`]; of more, the kernel writes the rest in its own time.
const MAX_UNSYNCED: usize = 1024;
/// Services of one namespace that are kept.
const MAX_SERVICES: usize = 5000;
/// What is said while nobody is asked.
pub(super) const SILENT: &str = "the apiserver does not answer";

/// What this agent knows of the objects of its pods.
pub(in crate::agent) struct ObjectsOfPods {
    pub(super) table: RefCell<ObjectTable>,
    pub(super) reach: RefCell<Reach>,
    /// Requests that met silence: those that stood in the queue behind one are not sent.
    silences: Arc<AtomicU32>,
    pub(super) files: ObjectFiles,
    pub(super) tokens: Tokens,
    /// Rings when a read has ended.
    ended: Bell,
    /// Written, and not yet on disk for good.
    unsynced: RefCell<Vec<PathBuf>>,
    /// Rings when one is.
    pub(super) written: Bell,
}

/// Why there is no answer that can be used.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    NotFound(String),
    Forbidden(String),
    /// Nobody answered.
    Silent(String),
    Other(String),
    /// Nobody waits for an answer: the pod is to end.
    Ended,
}

impl From<KubeError> for Refusal {
    fn from(error: KubeError) -> Self {
        let text = error.to_string();
        match error.status() {
            Some(404) => Self::NotFound(text),
            Some(403) => Self::Forbidden(text),
            None if !error.is_answer() => Self::Silent(text),
            _ => Self::Other(text),
        }
    }
}

impl Refusal {
    pub(super) fn into_text(self) -> String {
        match self {
            Self::NotFound(text)
            | Self::Forbidden(text)
            | Self::Silent(text)
            | Self::Other(text) => text,
            Self::Ended => "the pod is to end".into(),
        }
    }
}

/// What a read gives.
#[derive(Debug)]
pub(super) enum Content {
    ConfigMap(Box<ConfigMap>),
    Secret(Box<Secret>),
    Services(Vec<service::Service>),
    Claim(Box<BoundVolume>),
}

impl Content {
    const fn is_immutable(&self) -> bool {
        match self {
            Self::ConfigMap(map) => matches!(map.immutable, Some(true)),
            Self::Secret(secret) => matches!(secret.immutable, Some(true)),
            Self::Services(_) | Self::Claim(_) => false,
        }
    }

    fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        fn text(value: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
            serde_json::to_vec(value)
        }
        match self {
            Self::ConfigMap(map) => text(map),
            Self::Secret(secret) => text(secret),
            Self::Services(services) => text(services),
            Self::Claim(bound) => text(bound),
        }
    }

    fn decode(kind: Kind, bytes: &[u8]) -> Result<Self, strict::TextError> {
        Ok(match kind {
            Kind::ConfigMap => Self::ConfigMap(Box::new(strict::from_json(bytes)?)),
            Kind::Secret => Self::Secret(Box::new(strict::from_json(bytes)?)),
            Kind::Services => Self::Services(strict::from_json(bytes)?),
            Kind::Claim => Self::Claim(Box::new(strict::from_json(bytes)?)),
        })
    }
}

/// Asks for one object, on a thread that may wait.
pub(super) type Ask = Arc<dyn Fn(&dyn Api) -> Result<Content, Refusal> + Send + Sync>;

/// The objects of the apiserver's pods, if `pod` is one.
pub(super) fn of_pod<'a>(ctx: &'a Ctx, pod: &Pod) -> Option<&'a ObjectsOfPods> {
    let cluster = ctx.cluster.as_ref()?;
    (!pod_kind::is_static(pod)).then_some(&cluster.objects)
}

/// What the pod's volumes hold, tokens included. `None`: the pod is not the apiserver's.
pub(in crate::agent) async fn for_volumes(ctx: &Ctx, pod: &Pod) -> Option<Loaded> {
    let mine = of_pod(ctx, pod)?;
    let mut loaded = load(ctx, mine, pod, pod_refs::of_volumes(pod)).await;
    loaded.tokens = super::tokens::load(ctx, mine, pod).await;
    Some(loaded)
}

/// What the environment of `container` is made of.
pub(in crate::agent) async fn for_environment(
    ctx: &Ctx,
    pod: &Pod,
    container: &Container,
) -> Option<Loaded> {
    let mine = of_pod(ctx, pod)?;
    Some(load(ctx, mine, pod, pod_refs::of_environment(pod, container)).await)
}

/// What the pod's images are pulled with.
pub(in crate::agent) async fn for_pulls(ctx: &Ctx, pod: &Pod) -> Option<Loaded> {
    let mine = of_pod(ctx, pod)?;
    Some(load(ctx, mine, pod, pod_refs::of_pulls(pod)).await)
}

async fn load(
    ctx: &Ctx,
    mine: &ObjectsOfPods,
    pod: &Pod,
    keys: Result<BTreeSet<Key>, String>,
) -> Loaded {
    let mut loaded = Loaded::default();
    // What was not taken in is missing with the error where it is looked for.
    let keys = match keys.and_then(|keys| mine.register(ctx, pod, keys)) {
        Ok(keys) => keys,
        Err(why) => {
            ctx.complain(&format!(
                "pod={}/{} {why}",
                pod.metadata.namespace, pod.metadata.name
            ));
            loaded.fail(why);
            return loaded;
        }
    };
    for key in keys {
        let content = mine.obtain(ctx, &pod.metadata.uid, &key, plain(&key)).await;
        loaded.take(&key, content);
    }
    loaded
}

/// A pod is gone, or its volumes are: so is the interest in what it referred to (OBJ-02, TOK-02).
pub(in crate::agent) async fn forget(ctx: &Ctx, uid: &PodUid) {
    let Some(cluster) = &ctx.cluster else {
        return;
    };
    let mine = &cluster.objects;
    mine.tokens.forget(uid);
    let gone = mine.table.borrow_mut().forget(uid);
    let (files, uid) = (mine.files.clone(), uid.clone());
    ctx.disk
        .run(move || {
            gone.iter().for_each(|key| files.remove(key));
            files.remove_tokens(&uid);
        })
        .await;
}

impl ObjectsOfPods {
    /// Nothing is read or made before a pod needs it.
    pub(super) fn new(cfg: &Config) -> Self {
        let (dirs, metered) = (&cfg.dirs, cfg.cluster.metered);
        let secrets = match cfg.cluster.offline_secrets {
            OfflineSecrets::Disk => &dirs.root,
            OfflineSecrets::Memory => &dirs.run,
        };
        Self {
            table: RefCell::new(ObjectTable::new(metered, cfg.times.sync)),
            reach: RefCell::default(),
            silences: Arc::default(),
            files: ObjectFiles::new(&dirs.root, secrets),
            tokens: Tokens::default(),
            ended: Bell::default(),
            unsynced: RefCell::default(),
            written: Bell::default(),
        }
    }

    /// Takes the annotation of the Node that says how long objects may be kept (OBJ-03); `None`: it has none.
    pub(super) fn set_ttl(&self, annotation: Option<&str>) {
        self.table.borrow_mut().set_ttl(annotation);
    }

    /// Notes what a pod refers to; returns it.
    pub(super) fn register(
        &self,
        ctx: &Ctx,
        pod: &Pod,
        keys: BTreeSet<Key>,
    ) -> Result<BTreeSet<Key>, String> {
        let mut table = self.table.borrow_mut();
        table
            .register(&pod.metadata.uid, &keys, ctx.clock.now())
            .map_err(|e| e.to_string())?;
        Ok(keys)
    }

    /// An object as it is now, or as it was lately; `Ok(None)`: there is none.
    pub(super) async fn obtain(
        &self,
        ctx: &Ctx,
        uid: &PodUid,
        key: &Key,
        ask: Ask,
    ) -> Result<Option<Content>, String> {
        loop {
            let step = self.table.borrow_mut().step(uid, key, ctx.clock.now());
            match step {
                Step::Missing => return Ok(None),
                Step::UseHeld => {
                    if let Some(content) = self.copy(ctx, key).await {
                        return Ok(content);
                    }
                    self.table.borrow_mut().damaged(key);
                }
                Step::Wait => {
                    let is_free = || (!self.table.borrow().is_busy(key)).then_some(());
                    self.ended.until(is_free).await;
                }
                Step::Read => {
                    let turn = Turn { mine: self, key };
                    let read = self.read(ctx, uid, key, ask).await;
                    drop(turn);
                    return read;
                }
            }
        }
    }

    async fn read(
        &self,
        ctx: &Ctx,
        uid: &PodUid,
        key: &Key,
        ask: Ask,
    ) -> Result<Option<Content>, String> {
        let begun = ctx.clock.now();
        let refusal = match self.ask_patiently(ctx, uid, key, ask).await {
            Ok(content) => {
                self.keep(ctx, key, Some(&content), begun).await;
                return Ok(Some(content));
            }
            Err(Refusal::NotFound(_)) if key.kind != Kind::Claim => {
                self.keep(ctx, key, None, begun).await;
                return Ok(None);
            }
            Err(refusal) => refusal,
        };
        // A volume is mounted by what is true now; only a pod that had it may go by what was (OFF-02).
        let may_be_old = key.kind != Kind::Claim || matches!(refusal, Refusal::Silent(_));
        let why = refusal.into_text();
        let copy = if may_be_old {
            self.copy(ctx, key).await
        } else {
            None
        };
        match copy {
            Some(content) => {
                log::debug!("{key} is used as it was last known: {why}");
                Ok(content)
            }
            None => Err(why),
        }
    }

    async fn ask_patiently(
        &self,
        ctx: &Ctx,
        uid: &PodUid,
        key: &Key,
        ask: Ask,
    ) -> Result<Content, Refusal> {
        if !self.reach.borrow_mut().may_ask(ctx.clock.now()) {
            return Err(Refusal::Silent(SILENT.into()));
        }
        let (files, name) = (self.files.clone(), key.clone());
        let has_copy = ctx.disk.run(move || files.has(&name)).await;
        let limit = has_copy.then_some(REFRESH_WAIT);
        let mut pauses = FORBIDDEN_PAUSES.iter();
        loop {
            let ask = Arc::clone(&ask);
            let answer = self.ask(ctx, uid, limit, move |api| ask(api)).await;
            if !self.pause(ctx, uid, &answer, &mut pauses).await {
                return answer;
            }
        }
    }

    /// Waits if the answer is one that a new pod gets before the authorizer knows of it (AUTHZ-08). Returns whether to ask
    /// again.
    pub(super) async fn pause<T>(
        &self,
        ctx: &Ctx,
        uid: &PodUid,
        answer: &Result<T, Refusal>,
        pauses: &mut core::slice::Iter<'_, Duration>,
    ) -> bool {
        let now = ctx.clock.now();
        if !matches!(answer, Err(Refusal::Forbidden(_)))
            || !self.table.borrow().is_new(uid, NEW_POD, now)
        {
            return false;
        }
        let Some(pause) = pauses.next() else {
            return false;
        };
        ctx.clock.until(now + *pause).await;
        true
    }

    /// Asks the apiserver, unless it was found silent since; ends early with the pod, and after `limit`.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        ctx: &Ctx,
        uid: &PodUid,
        limit: Option<Duration>,
        ask: impl FnOnce(&dyn Api) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let Some(cluster) = &ctx.cluster else {
            return Err(Refusal::Silent(SILENT.into()));
        };
        let silences = Arc::clone(&self.silences);
        let before = silences.load(Ordering::SeqCst);
        let asked = cluster.lanes.work(move |api| {
            if silences.load(Ordering::SeqCst) != before {
                return Err(Refusal::Silent(SILENT.into()));
            }
            let answer = ask(api);
            if matches!(answer, Err(Refusal::Silent(_))) {
                silences.fetch_add(1, Ordering::SeqCst);
            }
            answer
        });
        let ended = async {
            ctx.pods.pod_cancelled(uid).await;
            Err(Refusal::Ended)
        };
        let late = async {
            match limit {
                Some(limit) => ctx.clock.until(ctx.clock.now() + limit).await,
                None => core::future::pending().await,
            }
            Err(Refusal::Silent(SILENT.into()))
        };
        let answer = asked.or(ended).or(late).await;
        let mut reach = self.reach.borrow_mut();
        match &answer {
            Err(Refusal::Silent(_)) => reach.silent(ctx.clock.now()),
            Err(Refusal::Ended) => {}
            _ => reach.answered(),
        }
        answer
    }

    /// Writes a copy, and notes what is known.
    async fn keep(&self, ctx: &Ctx, key: &Key, content: Option<&Content>, begun: Mono) {
        let text = content.map(Content::encode).transpose();
        let (files, name) = (self.files.clone(), key.clone());
        let kept = match text {
            Ok(text) => {
                ctx.disk
                    .run(move || files.write(&name, text.as_deref()))
                    .await
            }
            Err(e) => Err(e.into()),
        };
        let found = match (kept, content) {
            (Ok(written), content) => {
                self.note_written(written);
                match content {
                    Some(content) => Found::Held {
                        immutable: content.is_immutable(),
                    },
                    None => Found::Missing,
                }
            }
            (Err(e), content) => {
                ctx.complain(&format!("no copy of {key} is kept on disk: {e}"));
                match content {
                    Some(_) => Found::Unkept,
                    None => Found::Missing,
                }
            }
        };
        self.table.borrow_mut().read(key, found, begun);
    }

    /// A file that is to be on disk for good soon.
    pub(super) fn note_written(&self, written: Option<PathBuf>) {
        let Some(path) = written else {
            return;
        };
        let mut unsynced = self.unsynced.borrow_mut();
        if unsynced.len() < MAX_UNSYNCED {
            unsynced.push(path);
            drop(unsynced);
            self.written.ring();
        }
    }

    /// Whether files wait for [`ObjectsOfPods::commit`].
    pub(super) fn is_unsynced(&self) -> bool {
        !self.unsynced.borrow().is_empty()
    }

    /// Brings what was written to disk for good.
    pub(super) async fn commit(&self, ctx: &Ctx) {
        let files = self.unsynced.take();
        if files.is_empty() {
            return;
        }
        let done = ctx.disk.run(move || ObjectFiles::commit(&files)).await;
        if let Err(e) = done {
            ctx.complain(&format!(
                "copies of objects may not survive a power cut: {e}"
            ));
        }
    }

    /// What was kept of an object, however old; nobody is asked.
    pub(super) async fn known(&self, ctx: &Ctx, key: &Key) -> Option<Content> {
        self.copy(ctx, key).await.flatten()
    }

    /// What is on disk; `None`: nothing that can be used.
    async fn copy(&self, ctx: &Ctx, key: &Key) -> Option<Option<Content>> {
        let (files, name) = (self.files.clone(), key.clone());
        let read = ctx.disk.run(move || match files.read(&name) {
            Copy::Held(bytes) => Content::decode(name.kind, &bytes).map(Some).map_err(Some),
            Copy::Missing => Ok(None),
            Copy::None => Err(None),
        });
        match read.await {
            Ok(content) => Some(content),
            Err(why) => {
                if let Some(why) = why {
                    ctx.complain(&format!(
                        "the copy of {key} is damaged: {}",
                        why.without_value()
                    ));
                }
                None
            }
        }
    }
}

/// A read under way; others wait until it is dropped.
struct Turn<'a> {
    mine: &'a ObjectsOfPods,
    key: &'a Key,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.mine.table.borrow_mut().failed(self.key);
        self.mine.ended.ring();
    }
}

/// How an object is asked for that needs no more than its name.
fn plain(key: &Key) -> Ask {
    let Key {
        kind,
        namespace,
        name,
    } = key.clone();
    Arc::new(move |api| match kind {
        Kind::ConfigMap => {
            let mut map: ConfigMap = decoded(&api.config_map(&namespace, &name)?)?;
            map.metadata = pruned(map.metadata);
            Ok(Content::ConfigMap(Box::new(map)))
        }
        Kind::Secret => {
            let mut secret: Secret = decoded(&api.secret(&namespace, &name)?)?;
            secret.metadata = pruned(secret.metadata);
            Ok(Content::Secret(Box::new(secret)))
        }
        Kind::Services if name.is_empty() => {
            let mut services = Vec::new();
            api.list_services(&namespace, &mut |item| {
                // One that cannot be read is no reason to know none.
                if let Ok(service) = strict::typed::<service::Service>(&item)
                    && !matches!(&*service.spec.cluster_ip, "" | "None")
                    && services.len() < MAX_SERVICES
                {
                    services.push(service);
                }
            })?;
            Ok(Content::Services(services))
        }
        Kind::Services => {
            let service = decoded(&api.service(&namespace, &name)?)?;
            Ok(Content::Services(vec![service]))
        }
        Kind::Claim => Err(Refusal::Other("a claim is asked for by its pod".into())),
    })
}

/// Reads an object of the apiserver, without telling what is in it.
fn decoded<T: DeserializeOwned>(object: &Value) -> Result<T, Refusal> {
    strict::typed(object).map_err(|e| Refusal::Other(e.without_value().to_string()))
}

/// What identifies an object; annotations may hold a copy of a Secret.
fn pruned(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        ..ObjectMeta::default()
    }
}
