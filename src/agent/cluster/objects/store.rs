//! Objects in use: read when they are needed and old, kept on disk.

use alloc::{collections::BTreeMap, collections::BTreeSet, rc::Rc, sync::Arc};
use core::{
    cell::RefCell,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};
use std::path::PathBuf;

use smol::future::FutureExt as _;

use super::{
    certificate_api::CertificateApi,
    content::{ObjectContent, ObjectReadError, ObjectRequest},
    files::{ObjectCopy, ObjectFiles},
    pod_certificates::PodCertificates,
    token_times::TokenTimes,
};
use crate::{
    agent::{
        clock::Clock, cluster::link::ServerClockSkew, complaints::Complaints, executor::CallCancel,
        link_policy::LinkPolicy, waker_set::WakerSet,
    },
    api::{MonoTime, Node, Pod, PodError, PodUid},
    config::{AgentConfig, OfflineSecrets},
    kube::{KubeApi, KubeLanes},
    logic::{
        object_table::{ApiserverReach, ObjectReadResult, ObjectStep, ObjectTable, TTL_ANNOTATION},
        pod_refs::{PodObjectKey, PodObjectKind},
    },
    sys::lane::Lane,
    volume::Volumes,
};

/// Longest wait for a read if there is a copy to use instead; the read goes on.
const REFRESH_WAIT: Duration = Duration::from_secs(5);
/// Pauses after which a new pod's object is asked for again that may not be read: the authorizer learns late of a binding.
pub(super) const FORBIDDEN_PAUSES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(2),
];
/// Time for which a pod counts as new to the authorizer.
const NEW_POD: Duration = Duration::from_secs(30);
/// Files that wait for [`ObjectStore::sync_written_files`]; of more, the kernel writes the rest in its own time.
const MAX_UNSYNCED: usize = 1024;
/// Error text while no request is sent.
pub(super) const SILENT: &str = "the apiserver does not answer";

/// Tools to read objects and to keep them.
pub(in crate::agent) struct ObjectTools {
    pub(in crate::agent) lanes: KubeLanes,
    pub(in crate::agent) clock: Rc<dyn Clock>,
    pub(in crate::agent) complaints: Rc<Complaints>,
    pub(in crate::agent) disk: Lane,
    /// Volumes of pods, which hold their tokens.
    pub(in crate::agent) volumes: Volumes,
    /// By how much the clock is wrong that tokens count by.
    pub(in crate::agent) skew: Arc<ServerClockSkew>,
    /// Cost of the link: while bytes cost money, objects count for longer.
    pub(in crate::agent) link_policy: Rc<dyn LinkPolicy>,
}

/// The pod for which something is done, and who knows whether it is to end.
#[derive(Clone, Copy)]
pub(super) struct RequestingPod<'a> {
    pub(super) uid: &'a PodUid,
    pub(super) cancel: &'a CallCancel,
}

/// Objects that this agent's pods of the API refer to: ConfigMaps, Secrets, services, claims with their volumes,
/// tokens, trust bundles. Steps of a pod's sync ask for them, the end of a pod forgets them, the Node tells how long they count.
/// Bounded by [`ObjectTable`]; their content is on disk.
pub(in crate::agent) struct ObjectStore {
    pub(super) tools: ObjectTools,
    pub(super) node: String,
    /// Labels of the Node, which choose volumes.
    pub(super) labels: RefCell<Arc<BTreeMap<String, String>>>,
    pub(super) table: RefCell<ObjectTable>,
    pub(super) reach: RefCell<ApiserverReach>,
    /// Requests that met silence: those that stood in the queue behind one are not sent.
    silences: Arc<AtomicU32>,
    pub(super) files: ObjectFiles,
    pub(super) tokens: TokenTimes,
    pub(super) pod_certificates: PodCertificates,
    /// UID of the Node; empty until it is read.
    pub(super) node_uid: RefCell<String>,
    /// Versions of the API of certificates.
    pub(super) certificates: CertificateApi,
    /// Rings when a read has ended.
    ended: WakerSet,
    /// Written, and not yet on disk for good.
    unsynced: RefCell<Vec<PathBuf>>,
    /// Rings when one is.
    pub(super) written: WakerSet,
}

impl ObjectStore {
    /// Begins empty: objects are read when a pod needs them. `labels`: those of the Node, until it is read.
    pub(in crate::agent::cluster) fn new(
        cfg: &AgentConfig,
        labels: BTreeMap<String, String>,
        tools: ObjectTools,
    ) -> Self {
        let dirs = &cfg.dirs;
        let secrets = match cfg.cluster.offline_secrets {
            OfflineSecrets::Disk => &dirs.root,
            OfflineSecrets::Memory => &dirs.run,
        };
        Self {
            tools,
            node: cfg.node_name.clone(),
            labels: RefCell::new(Arc::new(labels)),
            table: RefCell::new(ObjectTable::new(cfg.times.sync)),
            reach: RefCell::default(),
            silences: Arc::default(),
            files: ObjectFiles::new(&dirs.root, secrets),
            tokens: TokenTimes::default(),
            pod_certificates: PodCertificates::default(),
            node_uid: RefCell::default(),
            certificates: CertificateApi::default(),
            ended: WakerSet::default(),
            unsynced: RefCell::default(),
            written: WakerSet::default(),
        }
    }

    /// Takes from the Node how long objects may be kept (OBJ-03), and its labels.
    pub(in crate::agent::cluster) fn learn_from_node(&self, node: &Node) {
        let ttl = node.metadata.annotations.get(TTL_ANNOTATION);
        self.table.borrow_mut().set_ttl(ttl.map(String::as_str));
        if *self.node_uid.borrow() != *node.metadata.uid {
            self.node_uid.replace(node.metadata.uid.to_string());
        }
        let labels = &node.metadata.labels;
        if **self.labels.borrow() != *labels {
            self.labels.replace(Arc::new(labels.clone()));
        }
    }

    /// A pod is gone, or its volumes are: so is the interest in what it referred to (OBJ-02, TOK-02).
    pub(in crate::agent) async fn forget_pod(&self, uid: &PodUid) {
        self.tokens.forget_pod(uid);
        self.pod_certificates.forget_pod(uid);
        let gone = self.table.borrow_mut().forget_pod(uid);
        let (files, uid) = (self.files.clone(), uid.clone());
        self.tools
            .disk
            .run_job(move || {
                gone.iter().for_each(|key| files.remove_copy(key));
                files.remove_tokens(&uid);
            })
            .await;
    }

    pub(super) fn now(&self) -> MonoTime {
        self.tools.clock.now()
    }

    pub(super) fn complain(&self, text: &str) {
        self.tools.complaints.complain(text);
    }

    /// Notes what a pod refers to; returns it.
    pub(super) fn register_references(
        &self,
        pod: &Pod,
        keys: BTreeSet<PodObjectKey>,
    ) -> Result<BTreeSet<PodObjectKey>, PodError> {
        let mut table = self.table.borrow_mut();
        table
            .register_pod(&pod.metadata.uid, &keys, self.now())
            .map_err(|e| PodError::Node(e.to_string()))?;
        Ok(keys)
    }

    /// An object as it is now, or as it was lately; `Ok(None)`: there is none.
    pub(super) async fn obtain_object(
        &self,
        user: RequestingPod<'_>,
        key: &PodObjectKey,
        ask: ObjectRequest,
    ) -> Result<Option<ObjectContent>, PodError> {
        loop {
            let step = {
                let mut table = self.table.borrow_mut();
                table.set_metered(self.tools.link_policy.is_metered());
                table.next_step(user.uid, key, self.now())
            };
            match step {
                ObjectStep::Missing => return Ok(None),
                ObjectStep::UseHeld => {
                    if let Some(content) = self.read_copy(key).await {
                        return Ok(content);
                    }
                    self.table.borrow_mut().mark_copy_damaged(key);
                }
                ObjectStep::Wait => {
                    let is_free = || (!self.table.borrow().is_being_read(key)).then_some(());
                    self.ended.wait_until(is_free).await;
                }
                ObjectStep::Read => {
                    let turn = ObjectReadTurn { mine: self, key };
                    let read = self.read_object(user, key, ask).await;
                    drop(turn);
                    return read;
                }
            }
        }
    }

    async fn read_object(
        &self,
        user: RequestingPod<'_>,
        key: &PodObjectKey,
        ask: ObjectRequest,
    ) -> Result<Option<ObjectContent>, PodError> {
        let begun = self.now();
        let refusal = match self.ask_with_retries(user, key, ask).await {
            Ok(content) => {
                self.keep_copy(key, Some(&content), begun).await;
                return Ok(Some(content));
            }
            Err(ObjectReadError::NotFound(_)) if key.kind != PodObjectKind::Claim => {
                self.keep_copy(key, None, begun).await;
                return Ok(None);
            }
            Err(refusal) => refusal,
        };
        // A volume is mounted by what is true now; only a pod that had it may go by what was (OFF-02).
        let may_be_old =
            key.kind != PodObjectKind::Claim || matches!(refusal, ObjectReadError::Silent(_));
        let why = PodError::from(refusal);
        let copy = if may_be_old {
            self.read_copy(key).await
        } else {
            None
        };
        match copy {
            Some(content) => {
                log::debug!("the last known copy of {key} is used: {why}");
                Ok(content)
            }
            None => Err(why),
        }
    }

    async fn ask_with_retries(
        &self,
        user: RequestingPod<'_>,
        key: &PodObjectKey,
        ask: ObjectRequest,
    ) -> Result<ObjectContent, ObjectReadError> {
        if !self.reach.borrow_mut().may_ask_now(self.now()) {
            return Err(ObjectReadError::Silent(SILENT.into()));
        }
        let (files, name) = (self.files.clone(), key.clone());
        let has_copy = self.tools.disk.run_job(move || files.has_file(&name)).await;
        let limit = has_copy.then_some(REFRESH_WAIT);
        let mut pauses = FORBIDDEN_PAUSES.iter();
        loop {
            let ask = Arc::clone(&ask);
            let answer = self.ask_apiserver(user, limit, move |api| ask(api)).await;
            if !self.pause_before_retry(user, &answer, &mut pauses).await {
                return answer;
            }
        }
    }

    /// Waits if the answer is one that a new pod gets before the authorizer knows of it (AUTHZ-08). Returns whether to ask
    /// again.
    pub(super) async fn pause_before_retry<T>(
        &self,
        user: RequestingPod<'_>,
        answer: &Result<T, ObjectReadError>,
        pauses: &mut core::slice::Iter<'_, Duration>,
    ) -> bool {
        let now = self.now();
        if !matches!(answer, Err(ObjectReadError::Forbidden(_)))
            || !self
                .table
                .borrow()
                .is_recently_registered(user.uid, NEW_POD, now)
        {
            return false;
        }
        let Some(pause) = pauses.next() else {
            return false;
        };
        self.tools.clock.sleep_until(now + *pause).await;
        true
    }

    /// Asks the apiserver, unless it was found silent since; ends early with the pod, and after `limit`.
    pub(super) async fn ask_apiserver<T: Send + 'static>(
        &self,
        user: RequestingPod<'_>,
        limit: Option<Duration>,
        ask: impl FnOnce(&dyn KubeApi) -> Result<T, ObjectReadError> + Send + 'static,
    ) -> Result<T, ObjectReadError> {
        let silences = Arc::clone(&self.silences);
        let before = silences.load(Ordering::SeqCst);
        let asked = self.tools.lanes.run_request(move |api| {
            if silences.load(Ordering::SeqCst) != before {
                return Err(ObjectReadError::Silent(SILENT.into()));
            }
            let answer = ask(api);
            if matches!(answer, Err(ObjectReadError::Silent(_))) {
                silences.fetch_add(1, Ordering::SeqCst);
            }
            answer
        });
        let ended = async {
            user.cancel.wait_for_cancel().await;
            Err(ObjectReadError::Ended)
        };
        let late = async {
            match limit {
                Some(limit) => self.tools.clock.sleep_until(self.now() + limit).await,
                None => core::future::pending().await,
            }
            Err(ObjectReadError::Silent(SILENT.into()))
        };
        let answer = asked.or(ended).or(late).await;
        let mut reach = self.reach.borrow_mut();
        match &answer {
            Err(ObjectReadError::Silent(_)) => reach.record_silence(self.now()),
            Err(ObjectReadError::Ended) => {}
            _ => reach.record_answer(),
        }
        answer
    }

    /// Writes a copy, and notes what is known.
    async fn keep_copy(
        &self,
        key: &PodObjectKey,
        content: Option<&ObjectContent>,
        begun: MonoTime,
    ) {
        let text = content.map(ObjectContent::encode).transpose();
        let (files, name) = (self.files.clone(), key.clone());
        let kept = match text {
            Ok(text) => {
                self.tools
                    .disk
                    .run_job(move || files.write_copy(&name, text.as_deref()))
                    .await
            }
            Err(e) => Err(e.into()),
        };
        let found = match (kept, content) {
            (Ok(written), content) => {
                self.note_written(written);
                match content {
                    Some(content) => ObjectReadResult::Held {
                        immutable: content.is_immutable(),
                    },
                    None => ObjectReadResult::Missing,
                }
            }
            (Err(e), content) => {
                self.complain(&format!("cannot keep a copy of {key} on disk: {e}"));
                match content {
                    Some(_) => ObjectReadResult::Unkept,
                    None => ObjectReadResult::Missing,
                }
            }
        };
        self.table.borrow_mut().record_read(key, found, begun);
    }

    /// A file that is to be on disk for good soon.
    pub(super) fn note_written(&self, written: Option<PathBuf>) {
        let Some(path) = written else {
            return;
        };
        let mut unsynced = self.unsynced.borrow_mut();
        if unsynced.len() < MAX_UNSYNCED && !unsynced.contains(&path) {
            unsynced.push(path);
            drop(unsynced);
            self.written.wake_all();
        }
    }

    /// Returns true if files wait for [`Self::sync_written_files`].
    pub(super) fn has_unsynced_files(&self) -> bool {
        !self.unsynced.borrow().is_empty()
    }

    /// Brings what was written to disk for good.
    pub(super) async fn sync_written_files(&self) {
        let files = self.unsynced.take();
        if files.is_empty() {
            return;
        }
        let done = self
            .tools
            .disk
            .run_job(move || ObjectFiles::sync_files(&files))
            .await;
        if let Err(e) = done {
            self.complain(&format!(
                "copies of objects may not survive a power cut: {e}"
            ));
        }
    }

    /// Kept content of an object, however old. Sends no request.
    pub(super) async fn known_content(&self, key: &PodObjectKey) -> Option<ObjectContent> {
        self.read_copy(key).await.flatten()
    }

    /// Reads the copy on disk; `None` if there is none that can be used.
    async fn read_copy(&self, key: &PodObjectKey) -> Option<Option<ObjectContent>> {
        let (files, name) = (self.files.clone(), key.clone());
        let read = self
            .tools
            .disk
            .run_job(move || match files.read_copy(&name) {
                ObjectCopy::Held(bytes) => ObjectContent::decode(name.kind, &bytes)
                    .map(Some)
                    .map_err(Some),
                ObjectCopy::Missing => Ok(None),
                ObjectCopy::None => Err(None),
            });
        match read.await {
            Ok(content) => Some(content),
            Err(why) => {
                if let Some(why) = why {
                    self.complain(&format!(
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
struct ObjectReadTurn<'a> {
    mine: &'a ObjectStore,
    key: &'a PodObjectKey,
}

impl Drop for ObjectReadTurn<'_> {
    fn drop(&mut self) {
        self.mine.table.borrow_mut().record_read_failure(self.key);
        self.mine.ended.wake_all();
    }
}
