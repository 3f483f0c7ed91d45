//! Pulls: from a reference to an image in the store.
//!
//! ```text
//! ask ─▶ same pull under way? join ─▶ queue (FIFO, at most `parallel` run) ─▶ Job on a thread of its own
//!                                                                              ├─ up to 4 threads for layers, 3 of them
//!                                                                              │  from a pool of all pulls
//!                                                                              └─ import, one at a time
//! ```
//!
//! Nothing runs and nothing is held while no image is pulled: threads, connections and CA certificates last as long as
//! a pull. There is no time limit for a pull as a whole, only for silence on the link.

mod absent;
mod artifact;
mod blobs;
#[cfg(test)]
mod full_disk;
mod job;
mod node;
mod policy;
#[cfg(test)]
pub(in crate::image) mod tests;
mod ways;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::io;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use smol::channel::{Receiver, Sender};

use self::absent::AbsentServers;
use self::blobs::BlobDirectory;
use self::job::PullJob;
use self::node::NodeCredentials;
use super::progress::{ImageProgress, Tracker};
use super::reference::ImageReference;
use super::registry::pace::Throttle;
use super::registry::{RegistriesConfig, RegistryCredential, RegistryError, RegistryTimeLimits};
use super::store::ImageStore;
use crate::net::ProxyVariables;
use crate::net::pace::StopFlag;
use crate::sys::clock;

pub use self::artifact::{ArtifactError, ArtifactFiles, ArtifactReader};
pub use self::blobs::RESUME_TIME;
pub use self::job::MAX_LAYERS_AT_ONCE;
#[cfg(any(test, fuzzing))]
pub(in crate::image) use self::node::fuzz;
pub use self::node::{
    AccountPlugin, CredentialProgramError, CredentialProvider, CredentialProviders, PluginAccount,
    RegistryAuths, TokenAttributes,
};
pub use self::policy::{ImagePolicyError, NodeImagePolicy};

/// Pulls that run at once if the configuration names no limit. Each pull has threads of its own.
pub const MAX_PARALLEL: usize = 16;

/// Most pulls that wait for their turn. A further pull fails, and its pod asks again after its back-off. The limit is
/// twice the number of pulls that the pods of a node can ask for at once.
pub const MAX_WAITING: usize = 1024;
/// Time between two checks of a waiting pull whether it is still wanted.
const LOOK: Duration = Duration::from_millis(500);

/// Settings of pulls.
#[derive(Default)]
pub struct PullSettings {
    /// Mirrors, TLS, credentials by host.
    pub registries: RegistriesConfig,
    /// Proxies.
    pub proxies: ProxyVariables,
    /// Docker configurations of the node; the first that exists counts.
    pub docker_configs: Vec<PathBuf>,
    /// Credential plugins.
    pub providers: CredentialProviders,
    /// Images that may be pulled.
    pub policy: NodeImagePolicy,
    /// Bytes per second over all pulls; `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    /// Pulls that run at once, at least 1; `None`: [`MAX_PARALLEL`].
    pub parallel: Option<u32>,
    /// Time limits of single exchanges.
    pub limits: RegistryTimeLimits,
    /// Gate that says whether bytes may be fetched; `None`: they always may.
    pub gate: Option<Arc<dyn FetchGate>>,
}

/// Refusal because the link has no bytes left for an image. The text says to people how many bytes the image needs, and
/// when fetching goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LinkBudgetRefusal(pub String);

/// Gate that says whether bytes may be fetched. Threads of pulls ask it.
pub trait FetchGate: Send + Sync {
    /// Asks to fetch the missing `bytes` of an image. If the fetch is admitted, the caller calls
    /// [`FetchGate::record_fetch_end`] at its end.
    ///
    /// # Errors
    /// The bytes have to wait.
    fn admit_fetch(&self, reference: &ImageReference, bytes: u64) -> Result<(), LinkBudgetRefusal>;
    /// Asks whether an admitted fetch may go on.
    ///
    /// # Errors
    /// The rest has to wait.
    fn may_continue_fetch(&self, reference: &ImageReference) -> Result<(), LinkBudgetRefusal>;
    /// Notes that an admitted fetch is over, however it ended.
    fn record_fetch_end(&self, bytes: u64);
}

/// Reason why a pull failed. The text goes into the events and the status of the pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// The text is no reference (waiting reason `InvalidImageName`).
    #[error("{0}")]
    Invalid(String),
    /// No registry could be asked (waiting reason `RegistryUnavailable`).
    #[error("RegistryUnavailable: {0}")]
    Unavailable(String),
    /// No registry could be asked, and one of them had too many requests. Some registries count requests by account, so
    /// another credential may help (waiting reason `RegistryUnavailable`).
    #[error("RegistryUnavailable: {0}")]
    Limited(String),
    /// A registry refuses or hides the image. Another credential may help (waiting reason `ErrImagePull`).
    #[error("{0}")]
    Denied(String),
    /// The disk has no room for the image (waiting reason `ErrImagePull`).
    #[error("{0}")]
    Full(String),
    /// The link has no bytes left for the image today (waiting reason `PullDeferred`).
    #[error(transparent)]
    Deferred(LinkBudgetRefusal),
    /// Anything else (waiting reason `ErrImagePull`).
    #[error("{0}")]
    Failed(String),
}

/// `sha256:` and the digest of the image's configuration.
type PullOutcome = Result<String, PullError>;

/// Pulls images into a store. Clones share one state.
#[derive(Clone)]
pub struct Puller {
    inner: Arc<PullerShared>,
}

struct PullerShared {
    store: ImageStore,
    settings: Arc<PullSettings>,
    /// Directory whose `blobs/sha256` holds the arrived layers.
    layout: PathBuf,
    blobs: BlobDirectory,
    node: Arc<NodeCredentials>,
    throttle: Throttle,
    absent: AbsentServers,
    slots: FetchSlots,
    queue: Mutex<PullQueue>,
}

#[derive(Default)]
struct PullQueue {
    running: usize,
    waiting: VecDeque<Arc<SharedPull>>,
    /// Pulls that run or wait, by reference and credential.
    flights: BTreeMap<(String, Option<String>), Arc<SharedPull>>,
    /// Pulls that still run after they were told to end, and whose image was asked for again meanwhile. At most as many
    /// as run.
    ending: Vec<Arc<SharedPull>>,
}

/// A pull with its waiters: a flight.
struct SharedPull {
    reference: ImageReference,
    credential: Option<RegistryCredential>,
    tracker: Tracker,
    outcome: OnceLock<PullOutcome>,
    /// Number of waiters; changed only while the queue is locked.
    waiters: AtomicUsize,
    /// Tells the pull to end.
    stop: Arc<StopFlag>,
    /// Closed when the pull ends, which wakes all waiters.
    done: Receiver<()>,
    done_sender: Sender<()>,
}

impl Puller {
    /// Makes a puller for `store`; removes layers of pulls that were not asked for again. Touches the disk.
    #[must_use]
    pub fn new(store: ImageStore, settings: PullSettings) -> Self {
        let layout = store.root().join("pulls");
        let blobs = BlobDirectory::open(&layout, clock::wall_now());
        let node = Arc::new(NodeCredentials::new(&settings));
        Self {
            inner: Arc::new(PullerShared {
                throttle: Throttle::new(settings.bytes_per_second),
                slots: FetchSlots::new(MAX_LAYERS_AT_ONCE - 1),
                queue: Mutex::new(PullQueue::default()),
                absent: AbsentServers::default(),
                store,
                settings: Arc::new(settings),
                layout,
                blobs,
                node,
            }),
        }
    }

    /// The lookup of the node's own credentials, which pulls share.
    #[must_use]
    pub fn credential_lookup(&self) -> NodeCredentialLookup {
        NodeCredentialLookup {
            settings: Arc::clone(&self.inner.settings),
            node: Arc::clone(&self.inner.node),
        }
    }

    /// Pulls an image, or waits for a pull of it with the same credential. Without a credential it is pulled
    /// anonymously; mirrors get what the node has for them. When the last future that waits for a pull is dropped, the
    /// pull ends soon. The bytes that arrived stay for the next pull.
    ///
    /// # Errors
    /// See [`PullError`].
    pub async fn pull_image(
        &self,
        reference: &str,
        credential: Option<RegistryCredential>,
    ) -> PullOutcome {
        let reference =
            ImageReference::parse(reference).map_err(|e| PullError::Invalid(e.to_string()))?;
        let waiter = PullWaiter {
            inner: &self.inner,
            flight: self.join_pull(reference, credential),
        };
        // The channel carries no message. It is closed when the pull ends.
        let _ = waiter.flight.done.recv().await;
        waiter
            .flight
            .outcome
            .get()
            .expect("a flight is closed after its outcome is known")
            .clone()
    }

    /// Progress of the pull of `reference`, if one is under way.
    #[must_use]
    pub fn pull_progress(&self, reference: &str) -> Option<ImageProgress> {
        let wanted = ImageReference::parse(reference).ok()?;
        let queue = self.inner.lock();
        queue
            .flights
            .values()
            .find(|flight| flight.reference == wanted)
            .map(|flight| flight.tracker.current_progress())
    }

    /// Returns true if a pull of `reference` may still bring its image, also one without waiters.
    #[must_use]
    pub fn is_pull_running(&self, reference: &str) -> bool {
        let Ok(wanted) = ImageReference::parse(reference) else {
            return false;
        };
        let queue = self.inner.lock();
        let mut all = queue.flights.values().chain(&queue.ending);
        all.any(|flight| flight.reference == wanted)
    }

    /// Removes layers that no pull uses and that did not grow in the last `unused`. Returns the bytes freed. Blocks on
    /// the disk.
    ///
    /// # Errors
    /// The directory cannot be read or changed.
    pub fn remove_unused_layers(&self, unused: Duration) -> io::Result<u64> {
        self.inner.blobs.remove_unused(unused, clock::mono_now())
    }

    fn join_pull(
        &self,
        reference: ImageReference,
        credential: Option<RegistryCredential>,
    ) -> Arc<SharedPull> {
        let credential_digest = credential
            .as_ref()
            .map(RegistryCredential::credential_digest);
        let key = (reference.to_string(), credential_digest);
        let mut queue = self.inner.lock();
        // A pull without waiters is about to end, and is not joined: the new pull takes its place.
        if let Some(flight) = queue.flights.get(&key).filter(|f| !f.stop.is_stopped()) {
            flight.waiters.fetch_add(1, Ordering::Relaxed);
            return Arc::clone(flight);
        }
        let is_full = queue.waiting.len() >= MAX_WAITING;
        let (done_sender, done) = smol::channel::bounded(1);
        let flight = Arc::new(SharedPull {
            reference,
            credential,
            tracker: Tracker::default(),
            outcome: OnceLock::new(),
            waiters: AtomicUsize::new(1),
            stop: Arc::default(),
            done,
            done_sender,
        });
        if is_full {
            let why = format!("{MAX_WAITING} pulls are waiting already");
            queue.finish_pull(&flight, Err(PullError::Failed(why)));
            return flight;
        }
        let replaced = queue.flights.insert(key, Arc::clone(&flight));
        queue.ending.extend(replaced);
        queue.waiting.push_back(Arc::clone(&flight));
        if queue.running < self.inner.parallel_pulls() {
            queue.running += 1;
            let inner = Arc::clone(&self.inner);
            let started = thread::Builder::new()
                .name("pull".into())
                .stack_size(job::STACK_BYTES)
                .spawn(move || inner.run_queued_pulls());
            if let Err(e) = started {
                queue.running -= 1;
                if queue.running == 0 {
                    // No thread would ever take the waiting pulls.
                    let error = PullError::Failed(format!("cannot start a thread: {e}"));
                    while let Some(flight) = queue.waiting.pop_front() {
                        queue.finish_pull(&flight, Err(error.clone()));
                    }
                }
            }
        }
        flight
    }
}

/// Credentials for pulls that the node itself has or can ask for.
#[derive(Clone)]
pub struct NodeCredentialLookup {
    settings: Arc<PullSettings>,
    node: Arc<NodeCredentials>,
}

impl NodeCredentialLookup {
    /// Makes a lookup with these settings, for images that another program pulls.
    #[must_use]
    pub fn new(settings: PullSettings) -> Self {
        let node = Arc::new(NodeCredentials::new(&settings));
        let settings = Arc::new(settings);
        Self { settings, node }
    }

    /// The node's own credentials for an image, in the order in which they are tried: docker's configuration, plugins,
    /// the configuration of the registry. `has_account`: the image is for a pod with a service account, for which
    /// [`NodeCredentialLookup::account_plugins`] are asked. Blocks on programs.
    #[must_use]
    pub fn lookup_credentials(
        &self,
        reference: &str,
        has_account: bool,
    ) -> Vec<RegistryCredential> {
        let found = node_credentials_for(&self.settings, &self.node, reference, has_account);
        self.node.hand_out(&found);
        found
    }

    /// Plugins that want to know the service account of a pod with an image of `repository`.
    #[must_use]
    pub fn account_plugins(&self, repository: &str) -> Vec<AccountPlugin> {
        self.node.account_plugins(repository)
    }

    /// The plugin's answer that is kept for pods of `account`, if there is one.
    #[must_use]
    pub fn kept_answer(
        &self,
        plugin: &AccountPlugin,
        repository: &str,
        account: &PluginAccount,
    ) -> Option<RegistryAuths> {
        self.node.kept_answer(plugin, repository, account)
    }

    /// Asks a plugin for credentials for a token of `account`. Blocks on the program.
    ///
    /// # Errors
    /// The plugin did not run, or its answer is not valid.
    pub fn ask_account_plugin(
        &self,
        plugin: &AccountPlugin,
        repository: &str,
        account: &PluginAccount,
        token: &str,
    ) -> Result<RegistryAuths, CredentialProgramError> {
        self.node
            .ask_account_plugin(plugin, repository, account, token)
    }
}

fn node_credentials_for(
    settings: &PullSettings,
    node: &NodeCredentials,
    reference: &str,
    has_account: bool,
) -> Vec<RegistryCredential> {
    let Ok(reference) = ImageReference::parse(reference) else {
        return Vec::new();
    };
    let endpoints = settings.registries.image_endpoints(&reference);
    let registry = endpoints.iter().find(|e| e.mirrored.is_none());
    let authority = registry.map_or("", |e| e.base.authority.as_str());
    collect_credentials_at(
        settings,
        node,
        reference.repository(),
        authority,
        has_account,
    )
}

fn collect_credentials_at(
    settings: &PullSettings,
    node: &NodeCredentials,
    image: &str,
    authority: &str,
    has_account: bool,
) -> Vec<RegistryCredential> {
    let mut all = node.find_credentials(image, has_account);
    let host = settings.registries.host_config(authority);
    let configured = host.and_then(|host| host.auth.clone());
    all.extend(configured.filter(|c| !c.is_empty() && !all.contains(c)));
    all
}

impl PullerShared {
    /// The node's own credentials for `image` (domain and path) at `authority`, for whatever pod.
    fn node_credentials_at(&self, image: &str, authority: &str) -> Vec<RegistryCredential> {
        collect_credentials_at(&self.settings, &self.node, image, authority, true)
    }

    fn parallel_pulls(&self) -> usize {
        self.settings
            .parallel
            .and_then(|n| usize::try_from(n).ok())
            .map_or(MAX_PARALLEL, |n| n.clamp(1, MAX_PARALLEL))
    }

    /// Runs the pulls of the queue one after the other, until the queue is empty.
    fn run_queued_pulls(&self) {
        loop {
            let flight = {
                let mut queue = self.lock();
                let Some(flight) = queue.waiting.pop_front() else {
                    queue.running -= 1;
                    return;
                };
                flight
            };
            let job = PullJob {
                inner: self,
                reference: &flight.reference,
                credential: flight.credential.as_ref(),
                tracker: &flight.tracker,
                stop: &flight.stop,
            };
            let outcome = job.run_pull().map(|image| image.id.clone());
            self.lock().finish_pull(&flight, outcome);
        }
    }

    fn lock(&self) -> MutexGuard<'_, PullQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PullQueue {
    /// Ends a flight (a pull with its waiters). A later request for the same image starts another one.
    fn finish_pull(&mut self, flight: &Arc<SharedPull>, outcome: PullOutcome) {
        self.flights.retain(|_, other| !Arc::ptr_eq(other, flight));
        self.ending.retain(|other| !Arc::ptr_eq(other, flight));
        // Only its own thread ends a flight.
        let _ = flight.outcome.set(outcome);
        flight.done_sender.close();
    }
}

/// A waiter of a flight. When the last waiter is dropped, the pull is told to end.
struct PullWaiter<'a> {
    inner: &'a PullerShared,
    flight: Arc<SharedPull>,
}

impl Drop for PullWaiter<'_> {
    fn drop(&mut self) {
        let mut queue = self.inner.lock();
        if self.flight.waiters.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.flight.stop.stop();
            // A pull that is still in the queue need not begin.
            let is_this = |other: &Arc<SharedPull>| Arc::ptr_eq(other, &self.flight);
            if queue.waiting.iter().any(is_this) {
                queue.waiting.retain(|other| !is_this(other));
                let cancelled = RegistryError::Cancelled.to_string();
                queue.finish_pull(&self.flight, Err(PullError::Failed(cancelled)));
            }
        }
    }
}

/// Slots for fetching layers. Each pull has one slot of its own, so that a slow registry does not delay pulls from
/// other registries. The shared slots go to the first pull that asks.
#[derive(Debug)]
struct FetchSlots {
    shared: Mutex<usize>,
    slot_freed: Condvar,
}

/// The slot that a pull has for itself. Set while it is taken.
#[derive(Debug, Default)]
struct OwnFetchSlot(AtomicBool);

/// A taken slot. It is given back when dropped.
struct FetchSlot<'a> {
    slots: &'a FetchSlots,
    own: Option<&'a OwnFetchSlot>,
}

impl FetchSlots {
    const fn new(shared: usize) -> Self {
        Self {
            shared: Mutex::new(shared),
            slot_freed: Condvar::new(),
        }
    }

    /// Waits for a slot. `None`: the pull was told to stop first.
    fn take_slot<'a>(&'a self, own: &'a OwnFetchSlot, stop: &StopFlag) -> Option<FetchSlot<'a>> {
        let mut shared = self.lock();
        loop {
            if stop.is_stopped() {
                return None;
            }
            if !own.0.swap(true, Ordering::Relaxed) {
                return Some(FetchSlot {
                    slots: self,
                    own: Some(own),
                });
            }
            if *shared > 0 {
                *shared -= 1;
                return Some(FetchSlot {
                    slots: self,
                    own: None,
                });
            }
            (shared, _) = self
                .slot_freed
                .wait_timeout(shared, LOOK)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FetchSlot<'_> {
    fn drop(&mut self) {
        let mut shared = self.slots.lock();
        match self.own {
            Some(own) => own.0.store(false, Ordering::Relaxed),
            None => *shared += 1,
        }
        drop(shared);
        // All waiters are woken, because it is not known here which pull owns this slot.
        self.slots.slot_freed.notify_all();
    }
}
