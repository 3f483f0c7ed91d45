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

use self::absent::Absent;
use self::blobs::Blobs;
use self::job::Job;
use self::node::NodeCredentials;
use super::progress::{Progress, Tracker};
use super::reference::Reference;
use super::registry::pace::Throttle;
use super::registry::{Credential, Limits, Registries, RegistryError};
use super::store::Store;
use crate::net::ProxyVariables;
use crate::net::pace::Stop;
use crate::sys::clock;

pub use self::artifact::{Artifact, ArtifactError, Files};
pub use self::blobs::RESUME_TIME;
pub use self::job::MAX_LAYERS_AT_ONCE;
#[cfg(any(test, fuzzing))]
pub(in crate::image) use self::node::fuzz;
pub use self::node::{Provider, Providers};
pub use self::policy::{Forbidden, Policy};

/// Pulls at once if the configuration names no limit: each has threads of its own.
pub const MAX_PARALLEL: usize = 16;

/// Pulls that wait for their turn; with as many a further one fails, and the back-off of its pod asks again. Twice what the
/// pods of a node can ask for at once.
pub const MAX_WAITING: usize = 1024;
/// How often whoever waits for another pull looks whether it is still wanted itself.
const LOOK: Duration = Duration::from_millis(500);

/// How images are pulled.
#[derive(Default)]
pub struct Settings {
    /// Mirrors, TLS, credentials by host.
    pub registries: Registries,
    /// Proxies.
    pub proxies: ProxyVariables,
    /// Docker configurations of the node; the first that exists counts.
    pub docker_configs: Vec<PathBuf>,
    /// Credential plugins.
    pub providers: Providers,
    /// What may be pulled.
    pub policy: Policy,
    /// Bytes per second over all pulls; `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    /// Pulls at once, at least 1; `None`: [`MAX_PARALLEL`].
    pub parallel: Option<u32>,
    /// Time limits of single exchanges.
    pub limits: Limits,
    /// Who says whether bytes may be fetched, if anybody does.
    pub gate: Option<Arc<dyn Gate>>,
}

/// The link has no bytes left for an image: how many it needs, and when it goes on, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoBytes(pub String);

/// Says whether bytes may be fetched. Asked by threads of pulls.
pub trait Gate: Send + Sync {
    /// Whether so many bytes that are missing of an image may be fetched; then [`Gate::ended`] is told.
    ///
    /// # Errors
    /// They have to wait.
    fn admit(&self, reference: &Reference, bytes: u64) -> Result<(), NoBytes>;
    /// Whether a fetch that was admitted goes on.
    ///
    /// # Errors
    /// The rest has to wait.
    fn go_on(&self, reference: &Reference) -> Result<(), NoBytes>;
    /// A fetch that was admitted is over, however it ended.
    fn ended(&self, bytes: u64);
}

/// Why a pull failed. The text goes into the events and the status of the pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// Not a reference (waiting reason `InvalidImageName`).
    #[error("{0}")]
    Invalid(String),
    /// No registry could be asked (waiting reason `RegistryUnavailable`).
    #[error("RegistryUnavailable: {0}")]
    Unavailable(String),
    /// The same of a registry that has had too many requests: with another credential it may be had, for some count by account.
    #[error("RegistryUnavailable: {0}")]
    Limited(String),
    /// A registry refused it, or hides it: with another credential it may be had (waiting reason `ErrImagePull`).
    #[error("{0}")]
    Denied(String),
    /// The disk has no room for it (waiting reason `ErrImagePull`).
    #[error("{0}")]
    Full(String),
    /// The link has no bytes left for it today (waiting reason `PullDeferred`).
    #[error(transparent)]
    Deferred(NoBytes),
    /// Anything else (waiting reason `ErrImagePull`).
    #[error("{0}")]
    Failed(String),
}

/// `sha256:` and the digest of the image's configuration.
type Outcome = Result<String, PullError>;

/// Pulls images into a store. Clones share it.
#[derive(Clone)]
pub struct Puller {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    settings: Settings,
    /// Directory whose `blobs/sha256` holds what arrived.
    layout: PathBuf,
    blobs: Blobs,
    node: NodeCredentials,
    throttle: Throttle,
    absent: Absent,
    slots: Slots,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    running: usize,
    waiting: VecDeque<Arc<Flight>>,
    /// Running or waiting, by what is asked for.
    flights: BTreeMap<(String, Option<String>), Arc<Flight>>,
    /// Running, told to end, and asked for again meanwhile: at most as many as run.
    ending: Vec<Arc<Flight>>,
}

/// One pull and everybody who waits for it.
struct Flight {
    reference: Reference,
    credential: Option<Credential>,
    tracker: Tracker,
    outcome: OnceLock<Outcome>,
    /// How many wait for it; changed with the queue locked.
    waiting: AtomicUsize,
    /// Tells it to end.
    stop: Arc<Stop>,
    /// Closed at the end, which wakes all.
    done: Receiver<()>,
    doing: Sender<()>,
}

impl Puller {
    /// Makes a puller for `store`; removes layers of pulls that nobody came back to. Touches the disk.
    #[must_use]
    pub fn new(store: Store, settings: Settings) -> Self {
        let layout = store.root().join("pulls");
        let blobs = Blobs::open(&layout, clock::wall());
        let node = NodeCredentials::new(&settings);
        Self {
            inner: Arc::new(Inner {
                throttle: Throttle::new(settings.bytes_per_second),
                slots: Slots::new(MAX_LAYERS_AT_ONCE - 1),
                queue: Mutex::new(Queue::default()),
                absent: Absent::default(),
                store,
                settings,
                layout,
                blobs,
                node,
            }),
        }
    }

    /// What the node itself has for an image, in the order in which it is tried: docker's configuration, plugins, what is
    /// configured for the registry. Blocks on programs.
    #[must_use]
    pub fn node_credentials(&self, reference: &str) -> Vec<Credential> {
        let found = credentials_for(&self.inner.settings, &self.inner.node, reference);
        self.inner.node.hand_out(&found);
        found
    }

    /// Pulls an image, or waits for whoever pulls it with the same credential. Without one it is pulled anonymously; mirrors
    /// get what the node has for them. When the last future that waits for a pull
    /// is dropped the pull ends soon; what arrived stays for the next one.
    ///
    /// # Errors
    /// See [`PullError`].
    pub async fn pull(&self, reference: &str, credential: Option<Credential>) -> Outcome {
        let reference =
            Reference::parse(reference).map_err(|e| PullError::Invalid(e.to_string()))?;
        let seat = Seat {
            inner: &self.inner,
            flight: self.board(reference, credential),
        };
        // Never sent to: it ends by being closed.
        let _ = seat.flight.done.recv().await;
        seat.flight
            .outcome
            .get()
            .expect("a flight is closed after its outcome is known")
            .clone()
    }

    /// How far the pull of `reference` is, if one is under way.
    #[must_use]
    pub fn progress(&self, reference: &str) -> Option<Progress> {
        let wanted = Reference::parse(reference).ok()?;
        let queue = self.inner.lock();
        queue
            .flights
            .values()
            .find(|flight| flight.reference == wanted)
            .map(|flight| flight.tracker.now())
    }

    /// Whether a pull of `reference` may still bring its image, also one that nobody waits for any more.
    #[must_use]
    pub fn is_pulling(&self, reference: &str) -> bool {
        let Ok(wanted) = Reference::parse(reference) else {
            return false;
        };
        let queue = self.inner.lock();
        let mut all = queue.flights.values().chain(&queue.ending);
        all.any(|flight| flight.reference == wanted)
    }

    /// Removes what arrived for pulls that are not under way, nor were in the last `unused`. Returns the bytes freed.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// The directory cannot be read or changed.
    pub fn clear(&self, unused: Duration) -> io::Result<u64> {
        self.inner.blobs.clear(unused, clock::mono())
    }

    fn board(&self, reference: Reference, credential: Option<Credential>) -> Arc<Flight> {
        let digest = credential.as_ref().map(Credential::digest);
        let key = (reference.to_string(), digest);
        let mut queue = self.inner.lock();
        // One that nobody waited for any longer is about to end: this pull comes behind it.
        if let Some(flight) = queue.flights.get(&key).filter(|f| !f.stop.is_stopped()) {
            flight.waiting.fetch_add(1, Ordering::Relaxed);
            return Arc::clone(flight);
        }
        let full = queue.waiting.len() >= MAX_WAITING;
        let (doing, done) = smol::channel::bounded(1);
        let flight = Arc::new(Flight {
            reference,
            credential,
            tracker: Tracker::default(),
            outcome: OnceLock::new(),
            waiting: AtomicUsize::new(1),
            stop: Arc::default(),
            done,
            doing,
        });
        if full {
            let why = format!("{MAX_WAITING} pulls are waiting already");
            queue.land(&flight, Err(PullError::Failed(why)));
            return flight;
        }
        let before = queue.flights.insert(key, Arc::clone(&flight));
        queue.ending.extend(before);
        queue.waiting.push_back(Arc::clone(&flight));
        if queue.running < self.inner.parallel() {
            queue.running += 1;
            let inner = Arc::clone(&self.inner);
            let started = thread::Builder::new()
                .name("pull".into())
                .stack_size(job::STACK_BYTES)
                .spawn(move || inner.work());
            if let Err(e) = started {
                queue.running -= 1;
                if queue.running == 0 {
                    // Nobody would ever come for those who wait.
                    let error = PullError::Failed(format!("cannot start a thread: {e}"));
                    while let Some(flight) = queue.waiting.pop_front() {
                        queue.land(&flight, Err(error.clone()));
                    }
                }
            }
        }
        flight
    }
}

/// What a node has for images that somebody else pulls.
pub struct NodeKeys {
    settings: Settings,
    node: NodeCredentials,
}

impl NodeKeys {
    /// As `settings` say.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let node = NodeCredentials::new(&settings);
        Self { settings, node }
    }

    /// All of it for an image, in the order in which it is tried. Blocks on programs.
    #[must_use]
    pub fn lookup(&self, reference: &str) -> Vec<Credential> {
        credentials_for(&self.settings, &self.node, reference)
    }
}

fn credentials_for(
    settings: &Settings,
    node: &NodeCredentials,
    reference: &str,
) -> Vec<Credential> {
    let Ok(reference) = Reference::parse(reference) else {
        return Vec::new();
    };
    let endpoints = settings.registries.endpoints(&reference);
    let own = endpoints.iter().find(|e| e.mirrored.is_none());
    let authority = own.map_or("", |e| e.base.authority.as_str());
    credentials_at(settings, node, reference.repository(), authority)
}

fn credentials_at(
    settings: &Settings,
    node: &NodeCredentials,
    image: &str,
    authority: &str,
) -> Vec<Credential> {
    let mut all = node.credentials(image);
    let host = settings.registries.host(authority);
    let configured = host.and_then(|host| host.auth.clone());
    all.extend(configured.filter(|c| !c.is_empty() && !all.contains(c)));
    all
}

impl Inner {
    /// What the node has for `image` (domain and path) at `authority`.
    fn credentials_at(&self, image: &str, authority: &str) -> Vec<Credential> {
        credentials_at(&self.settings, &self.node, image, authority)
    }

    fn parallel(&self) -> usize {
        self.settings
            .parallel
            .and_then(|n| usize::try_from(n).ok())
            .map_or(MAX_PARALLEL, |n| n.clamp(1, MAX_PARALLEL))
    }

    /// Takes one pull after the other off the queue, until there is none.
    fn work(&self) {
        loop {
            let flight = {
                let mut queue = self.lock();
                let Some(flight) = queue.waiting.pop_front() else {
                    queue.running -= 1;
                    return;
                };
                flight
            };
            let job = Job {
                inner: self,
                reference: &flight.reference,
                credential: flight.credential.as_ref(),
                tracker: &flight.tracker,
                stop: &flight.stop,
            };
            let outcome = job.run().map(|image| image.id.clone());
            self.lock().land(&flight, outcome);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Ends a flight: whoever asks from now on starts another one.
    fn land(&mut self, flight: &Arc<Flight>, outcome: Outcome) {
        self.flights.retain(|_, other| !Arc::ptr_eq(other, flight));
        self.ending.retain(|other| !Arc::ptr_eq(other, flight));
        // Only its own thread ends a flight.
        let _ = flight.outcome.set(outcome);
        flight.doing.close();
    }
}

/// A place in a flight; whoever leaves last ends it.
struct Seat<'a> {
    inner: &'a Inner,
    flight: Arc<Flight>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut queue = self.inner.lock();
        if self.flight.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.flight.stop.stop();
            // Not begun, it need not begin.
            let is_this = |other: &Arc<Flight>| Arc::ptr_eq(other, &self.flight);
            if queue.waiting.iter().any(is_this) {
                queue.waiting.retain(|other| !is_this(other));
                let cancelled = RegistryError::Cancelled.to_string();
                queue.land(&self.flight, Err(PullError::Failed(cancelled)));
            }
        }
    }
}

/// Places to fetch a layer. Each pull has one of its own, so that no registry, however slow, keeps the pulls of others
/// waiting; the rest is for whoever comes first.
#[derive(Debug)]
struct Slots {
    shared: Mutex<usize>,
    bell: Condvar,
}

/// The place that a pull has for itself.
#[derive(Debug, Default)]
struct OwnSlot(AtomicBool);

/// A place, given back when dropped.
struct Slot<'a> {
    slots: &'a Slots,
    own: Option<&'a OwnSlot>,
}

impl Slots {
    const fn new(shared: usize) -> Self {
        Self {
            shared: Mutex::new(shared),
            bell: Condvar::new(),
        }
    }

    /// Waits for a place. `None`: it is told to stop first.
    fn take<'a>(&'a self, own: &'a OwnSlot, stop: &Stop) -> Option<Slot<'a>> {
        let mut shared = self.lock();
        loop {
            if stop.is_stopped() {
                return None;
            }
            if !own.0.swap(true, Ordering::Relaxed) {
                return Some(Slot {
                    slots: self,
                    own: Some(own),
                });
            }
            if *shared > 0 {
                *shared -= 1;
                return Some(Slot {
                    slots: self,
                    own: None,
                });
            }
            (shared, _) = self
                .bell
                .wait_timeout(shared, LOOK)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut shared = self.slots.lock();
        match self.own {
            Some(own) => own.0.store(false, Ordering::Relaxed),
            None => *shared += 1,
        }
        drop(shared);
        // Whose own place it is nobody knows here.
        self.slots.bell.notify_all();
    }
}
