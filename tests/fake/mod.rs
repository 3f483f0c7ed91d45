//! An in-memory runtime: deterministic, with a clock and faults that a test controls.
//!
//! Nothing happens by itself. A container runs until the test ends it ([`Fake::exit`]), it is stopped, or its
//! command says `exit N`; a command below `/nonexistent` cannot be started. Time is what [`Fake::set_now`] says.
//! Calls are done at once unless [`Fake::set_latency`] says otherwise; then each takes a time of its own before and after
//! it does its work, and [`Fake::next_deadline`] tells when one goes on.
//!
//! The fake also watches its caller: calls of one pod that overlap, futures dropped before their end, a second live
//! sandbox of one pod and a second running instance of one container are [`Fake::violations`].

mod streams;

use alloc::rc::Rc;
use core::{
    cell::RefCell,
    cmp::Reverse,
    future::{poll_fn, ready},
    net::IpAddr,
    pin::Pin,
    task::Poll,
    time::Duration,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    os::fd::OwnedFd,
    task::Waker,
};

use sha2::{Digest as _, Sha256};

pub use streams::Forwarded;

use super::{
    AttachOptions, ExecOptions, ImageService, LogRetention, PortConnector, RuntimeCall,
    RuntimeError, RuntimeService, SessionStart, StreamRoute,
};
use crate::api::cri::{
    ANNOTATION_HASH, AuthConfig, ContainerConfig, ContainerState, ContainerStatus, ExecOutput,
    FsInfo, HandlerCapabilities, LinuxResources, NamespaceMode, PodItem, PodRuntimeStatus,
    RuntimeCapabilities, RuntimeCondition, RuntimeStatus, RuntimeVersion, SandboxConfig,
    SandboxState, SandboxStatus, StoredImage, UserNamespaceSupport,
};
use crate::api::stats::{
    CgroupUsage, ContainerUsage, CpuUsage, DiskUsage, InterfaceCounts, MemoryUsage, PodUsage,
    StatsDetail,
};
use crate::api::{ContainerId, MonoTime, PodUid, SandboxId, WallTime};
use crate::image::ImageProgress;
use crate::sys::counted_heap::take_uncounted;

/// Calls that are remembered for [`Fake::take_calls`]; older ones are forgotten.
const MAX_CALLS: usize = 10_000;
/// Exit code of a container that obeys SIGTERM.
const TERMINATED: i32 = 143;
/// Exit code of a container that was killed.
const KILLED: i32 = 137;
/// The handler that it has beside the default one.
pub const HANDLER: &str = "kata";
/// Size of every image in bytes.
const IMAGE_BYTES: u64 = 1 << 20;

/// A method of [`RuntimeService`] that can be made to fail or hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "named like the methods")]
pub enum Op {
    Status,
    ListPods,
    PodStatus,
    RunPodSandbox,
    StopPodSandbox,
    RemovePodSandbox,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    ReopenLog,
    UpdateContainer,
    Exec,
    Attach,
    PortForward,
    ImageStatus,
    ListImages,
    PullImage,
    RemoveImage,
    ImageFsInfo,
    ListPodUsage,
    WritableLayer,
}

impl Op {
    /// Changes what runs of a pod: two of these must not overlap.
    const fn is_pod_operation(self) -> bool {
        matches!(
            self,
            Self::RunPodSandbox
                | Self::StopPodSandbox
                | Self::RemovePodSandbox
                | Self::CreateContainer
                | Self::StartContainer
                | Self::StopContainer
                | Self::RemoveContainer
        )
    }
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The call fails and has done nothing.
    Fails(RuntimeError),
    /// The call fails although it has done its work, as when an answer is lost.
    FailsAfter(RuntimeError),
    /// The call does not go on until [`Fake::release`].
    Hangs,
    /// The call takes this long, does nothing and fails with [`RuntimeError::Timeout`].
    TimesOut(Duration),
}

/// One entry of the script of faults; the first that matches a call applies to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which call.
    pub op: Op,
    /// Pod UID, container name or image reference it must concern; `None` for any.
    pub target: Option<String>,
    /// How many calls it still hits.
    pub times: u32,
    /// What happens to them.
    pub trouble: Trouble,
}

/// An operation on a pod that begins.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// The method.
    pub op: Op,
    /// The pod.
    pub uid: &'a PodUid,
    /// The container, if one is concerned.
    pub container: Option<&'a ContainerStatus>,
    /// The grace of a stop.
    pub grace: Option<Duration>,
}

/// Is told of each operation that changes what runs of a pod, and of each command, before it does anything. What it answers
/// becomes a violation.
pub type Watch = Rc<dyn Fn(&Operation<'_>) -> Option<String>>;

/// What a container does about its stop signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// Ends at once with this code.
    Exits(i32),
    /// Nothing: it is killed when its grace is over.
    Ignores,
    /// Nothing, even if it is killed, as a process that hangs in the kernel. The call ends as if it had.
    Survives,
}

/// Boot, and number in that boot.
type Order = (u32, u32);

struct Sandbox {
    status: SandboxStatus,
    created: Order,
    logs: String,
}

struct Instance {
    status: ContainerStatus,
    created: Order,
    words: Vec<String>,
    config: ContainerConfig,
    /// Ends of what is attached to it.
    attached: Vec<OwnedFd>,
    ended: Option<MonoTime>,
    /// A status of its pod has said that it ended.
    is_told: bool,
}

#[derive(Default)]
struct State {
    now: MonoTime,
    wall: WallTime,
    boot: u32,
    sequence: u32,
    sandboxes: BTreeMap<SandboxId, Sandbox>,
    containers: BTreeMap<ContainerId, Instance>,
    images: BTreeMap<String, StoredImage>,
    offered: BTreeSet<String>,
    /// Who gets the offered ones that not everybody gets, by reference.
    private: BTreeMap<String, String>,
    /// See [`Fake::set_more_in_use`].
    more_in_use: u64,
    /// Number of different lists of pods, and the last one. See [`Fake::count_changes`].
    listed: Option<(u64, Vec<PodItem>)>,
    /// See [`Fake::set_still_pulling`].
    still_pulling: Option<bool>,
    /// See [`Fake::set_pull_progress`].
    progress: Option<ImageProgress>,
    on_stop: BTreeMap<String, OnStop>,
    faults: Vec<Fault>,
    /// Of so many updates of a container one fails, and updates so far.
    updates: Option<(u32, u32)>,
    /// Calls that hang, by number, until released.
    hanging: BTreeMap<u64, Op>,
    /// Calls that have begun and not ended, by number.
    under_way: BTreeMap<u64, Op>,
    /// Faults that hit, by what they did.
    hits: BTreeMap<(Op, &'static str), u64>,
    next_call: u64,
    calls: VecDeque<(Op, String)>,
    /// What happens to pods now, and how many calls of it there are.
    in_flight: BTreeMap<PodUid, (Op, u32)>,
    violations: Vec<String>,
    runtime: Option<(String, String)>,
    network: Option<(String, String)>,
    can_stop_containers: bool,
    rung: bool,
    deaf: bool,
    wakers: Vec<Waker>,
    forwarded: Vec<Forwarded>,
    /// Calls that wait for a time, by number.
    deadlines: BTreeMap<u64, MonoTime>,
    latency: Option<Latency>,
    watch: Option<Watch>,
    /// Commands that were run, each once.
    commands: BTreeSet<(ContainerId, Vec<String>)>,
    /// Programs that fail as commands inside of containers.
    failing: BTreeSet<String>,
    /// The caller was killed: its calls go nowhere.
    orphaned: bool,
    changes: u64,
    /// Size of the image file system and bytes that are free, if another than usual.
    fs: Option<(u64, u64)>,
}

/// How long calls take.
struct Latency {
    random: u64,
    max_ms: u64,
}

impl Latency {
    /// Half of all steps take no time, so that some still coincide.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        match self.random & 1 {
            0 => 0,
            _ => (self.random >> 1) % (self.max_ms + 1),
        }
    }
}

impl State {
    /// The list of pods. Counts it if it differs from the last one that anybody saw: what is seen and passes is two changes.
    fn list_counted(&mut self) -> Vec<PodItem> {
        let pods: Vec<PodItem> = self.pods().iter().map(PodItem::from).collect();
        if let Some((count, last)) = &mut self.listed
            && *last != pods
        {
            take_uncounted(|| last.clone_from(&pods));
            *count += 1;
        }
        pods
    }

    fn order(&mut self) -> Order {
        self.sequence += 1;
        (self.boot, self.sequence)
    }

    fn uid_of(&self, sandbox: &SandboxId) -> PodUid {
        self.sandboxes
            .get(sandbox)
            .map(|sandbox| sandbox.status.uid.clone())
            .unwrap_or_default()
    }

    fn end(&mut self, id: &ContainerId, exit_code: i32, reason: &str) -> bool {
        let Some(instance) = self.containers.get_mut(id) else {
            return false;
        };
        let status = &mut instance.status;
        if status.state != ContainerState::Running {
            return false;
        }
        status.state = ContainerState::Exited;
        instance.attached.clear();
        status.exit_code = exit_code;
        status.reason = match (reason, exit_code) {
            ("", 0) => "Completed".into(),
            ("", _) => "Error".into(),
            (reason, _) => reason.into(),
        };
        status.finished_at = Some(self.wall);
        status.pid = 0;
        instance.ended = Some(self.now);
        self.rung |= !self.deaf;
        true
    }

    /// What is wrong with starting this instance while another one of its container runs.
    fn second_instance(&self, id: &ContainerId) -> Option<String> {
        let own = &self.containers.get(id)?.status;
        let uid = self.uid_of(&own.sandbox);
        let running = self.containers.values().find(|other| {
            other.status.state == ContainerState::Running
                && other.status.name == own.name
                && self.uid_of(&other.status.sandbox) == uid
        })?;
        let first = &running.status.id;
        Some(format!(
            "a second instance of container {} of pod {uid} beside {first}",
            own.name
        ))
    }

    fn kill_all(&mut self, sandbox: &SandboxId) {
        let inside = |instance: &&Instance| instance.status.sandbox == *sandbox;
        let survives = |instance: &&Instance| {
            self.on_stop.get(&instance.status.name) == Some(&OnStop::Survives)
        };
        let ids: Vec<_> = self
            .containers
            .values()
            .filter(|instance| inside(instance) && !survives(instance))
            .map(|instance| instance.status.id.clone())
            .collect();
        for id in ids {
            self.end(&id, KILLED, "");
        }
    }

    fn close_sandbox(&mut self, id: &SandboxId) {
        if let Some(Sandbox { status, .. }) = self.sandboxes.get_mut(id) {
            status.state = SandboxState::NotReady;
            status.ips.clear();
        }
    }

    fn pods(&self) -> Vec<PodRuntimeStatus> {
        let mut pods: BTreeMap<&PodUid, PodRuntimeStatus> = BTreeMap::new();
        let mut sandboxes: Vec<&Sandbox> = self.sandboxes.values().collect();
        sandboxes.sort_by_key(|s| Reverse((s.status.attempt, s.created)));
        for Sandbox { status, .. } in sandboxes {
            let pod = pods.entry(&status.uid).or_default();
            pod.uid = status.uid.clone();
            pod.name.clone_from(&status.name);
            pod.namespace.clone_from(&status.namespace);
            pod.sandboxes.push(status.clone());
        }
        let mut containers: Vec<&Instance> = self.containers.values().collect();
        containers.sort_by_key(|instance| Reverse(instance.created));
        for instance in containers {
            let sandbox = self.sandboxes.get(&instance.status.sandbox);
            let pod = sandbox.and_then(|sandbox| pods.get_mut(&sandbox.status.uid));
            if let Some(pod) = pod {
                pod.containers.push(instance.status.clone());
            }
        }
        for pod in pods.values_mut() {
            let ready = |sandbox: &&SandboxStatus| sandbox.state == SandboxState::Ready;
            pod.ips = pod
                .sandboxes
                .iter()
                .find(ready)
                .map(|sandbox| sandbox.ips.clone())
                .unwrap_or_default();
        }
        pods.into_values().collect()
    }
}

/// See the module's words.
pub struct Fake {
    state: RefCell<State>,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

/// A call on its way. Dropped unfinished, it is a violation.
struct Running<'a> {
    fake: &'a Fake,
    op: Op,
    uid: Option<PodUid>,
    number: u64,
    after: Option<RuntimeError>,
    finished: bool,
}

impl Running<'_> {
    fn finish<T>(mut self, result: Result<T, RuntimeError>) -> Result<T, RuntimeError> {
        self.finished = true;
        match self.after.take() {
            Some(error) => Err(error),
            None => result,
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.fake.change(|state| {
            state.hanging.remove(&self.number);
            state.under_way.remove(&self.number);
            state.deadlines.remove(&self.number);
            if let Some(uid) = &self.uid
                && let Some((_, calls)) = state.in_flight.get_mut(uid)
            {
                *calls -= 1;
                if *calls == 0 {
                    state.in_flight.remove(uid);
                }
            }
            // A pull may be left, and what is only measured: see the trait.
            let may_be_left = matches!(self.op, Op::PullImage | Op::WritableLayer);
            if !self.finished && !state.orphaned && !may_be_left {
                let text = format!("{:?} was dropped before its end", self.op);
                state.violations.push(text);
            }
        });
    }
}

impl Fake {
    /// An empty, healthy runtime in its first boot.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: RefCell::new(State {
                boot: 1,
                now: MonoTime(1),
                ..State::default()
            }),
        }
    }

    /// Moves the clocks; graces that run out by that end their containers.
    pub fn set_now(&self, now: MonoTime, wall: WallTime) {
        self.change(|state| {
            state.now = state.now.max(now);
            state.wall = wall;
        });
    }

    /// Makes each call take up to `max_ms` before it does its work and again after it; 0 ends that.
    pub fn set_latency(&self, max_ms: u64, seed: u64) {
        let random = seed | 1;
        self.change(|state| {
            state.latency = (max_ms > 0).then_some(Latency { random, max_ms });
        });
    }

    /// Counts changes of the list of pods from now on, as a runtime does that knows all ends.
    pub fn count_changes(&self) {
        self.state.borrow_mut().listed = Some((0, Vec::new()));
    }

    /// When the first call that waits for a time goes on.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoTime> {
        self.state.borrow().deadlines.values().min().copied()
    }

    /// Has each operation on pods told to `watch`.
    pub fn set_watch(&self, watch: Option<Watch>) {
        self.change(|state| state.watch = watch);
    }

    /// As when the caller is killed: calls under way are done or not, but nobody hears of it and none begins, until the
    /// next caller says that it is there.
    pub fn set_orphaned(&self, orphaned: bool) {
        self.change(|state| state.orphaned = orphaned);
    }

    /// Grows with everything that happens here.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.state.borrow().changes
    }

    /// Lets all calls that hang go on and forgets the faults that have not hit yet.
    pub fn heal(&self) {
        self.change(|state| {
            state.faults.clear();
            state.updates = None;
            state.hanging.clear();
            state.latency = None;
        });
    }

    /// All that is there, sorted by UID.
    #[must_use]
    pub fn pods(&self) -> Vec<PodRuntimeStatus> {
        self.state.borrow().pods()
    }

    /// When the instance ended; `None` if it has not, or is not there.
    #[must_use]
    pub fn ended_at(&self, id: &ContainerId) -> Option<MonoTime> {
        self.state.borrow().containers.get(id)?.ended
    }

    /// Whether a status of its pod has said that it ended.
    pub fn has_told_end(&self, id: &ContainerId) -> bool {
        let state = self.state.borrow();
        state
            .containers
            .get(id)
            .is_some_and(|instance| instance.is_told)
    }

    /// Has this program fail as a command inside of containers, or end well.
    pub fn set_failing(&self, program: &str, fails: bool) {
        self.change(|state| match fails {
            true => _ = state.failing.insert(program.into()),
            false => _ = state.failing.remove(program),
        });
    }

    /// Whether this command was run inside of the instance to its end.
    #[must_use]
    pub fn has_run(&self, id: &ContainerId, command: &[&str]) -> bool {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let commands = &self.state.borrow().commands;
        commands.contains(&(id.clone(), command))
    }

    /// Whether a container of the pod runs.
    #[must_use]
    pub fn runs(&self, uid: &PodUid) -> bool {
        let state = self.state.borrow();
        let mut instances = state.containers.values();
        instances.any(|instance| {
            instance.status.state == ContainerState::Running
                && state.uid_of(&instance.status.sandbox) == *uid
        })
    }

    /// Whether a container inside of the sandbox runs.
    #[must_use]
    pub fn runs_inside(&self, sandbox: &SandboxId) -> bool {
        let state = self.state.borrow();
        let mut instances = state.containers.values();
        instances.any(|instance| {
            instance.status.state == ContainerState::Running && instance.status.sandbox == *sandbox
        })
    }

    /// Whether the pod has a sandbox that is ready.
    #[must_use]
    pub fn has_live_sandbox(&self, uid: &PodUid) -> bool {
        let state = self.state.borrow();
        let mut sandboxes = state.sandboxes.values();
        sandboxes.any(|s| s.status.uid == *uid && s.status.state == SandboxState::Ready)
    }

    /// Sets the size of the image file system, and how much of it is free.
    pub fn set_image_fs(&self, capacity_bytes: u64, available_bytes: u64) {
        self.change(|state| state.fs = Some((capacity_bytes, available_bytes)));
    }

    /// Puts an image into the store and returns its id.
    pub fn add_image(&self, reference: &str) -> String {
        let id = image_id(reference);
        let image = StoredImage {
            id: id.clone(),
            repo_tags: vec![reference.into()],
            repo_digests: vec![format!("{reference}@{id}")],
            size_bytes: IMAGE_BYTES,
            uid: Some(0),
            ..StoredImage::default()
        };
        self.change(|state| {
            state.images.insert(id.clone(), image);
        });
        id
    }

    /// Gives an image of the store another id.
    pub fn change_image_id(&self, reference: &str, id: &str) {
        self.change(|state| {
            let image = state.images.remove(&image_id(reference));
            let mut image = image.expect("in the store");
            image.id = id.into();
            state.images.insert(id.into(), image);
        });
    }

    /// Gives an image of the store a stop signal.
    pub fn set_stop_signal(&self, reference: &str, signal: &str) {
        self.change(|state| {
            let image = state.images.get_mut(&image_id(reference));
            image.expect("in the store").stop_signal = signal.into();
        });
    }

    /// Has each cgroup use so many bytes more than 3 MiB.
    pub fn set_more_in_use(&self, bytes: u64) {
        self.change(|state| state.more_in_use = bytes);
    }

    /// What it says of pulls that were dropped: whether they may still bring their image, if it tells.
    pub fn set_still_pulling(&self, still: Option<bool>) {
        self.change(|state| state.still_pulling = still);
    }

    /// What it says of a pull that is under way.
    pub fn set_pull_progress(&self, progress: ImageProgress) {
        self.change(|state| state.progress = Some(progress));
    }

    /// Lets a pull of `reference` succeed.
    pub fn offer_image(&self, reference: &str) {
        self.change(|state| {
            state.offered.insert(reference.into());
        });
    }

    /// The same; only whoever brings the credentials of `user` gets it.
    pub fn offer_private_image(&self, reference: &str, user: &str) {
        self.offer_image(reference);
        self.change(|state| {
            state.private.insert(reference.into(), user.into());
        });
    }

    /// Has one of so many updates of a container fail, in turns before and after it has done its work.
    pub fn fail_updates(&self, every: u32) {
        self.change(|state| state.updates = Some((every, 0)));
    }

    /// Appends to the script of faults.
    pub fn add_fault(&self, fault: Fault) {
        self.change(|state| state.faults.push(fault));
    }

    /// Calls that have begun and not ended.
    #[must_use]
    pub fn under_way(&self) -> Vec<Op> {
        self.state.borrow().under_way.values().copied().collect()
    }

    /// Calls that a fault has hit: "fails", "fails after", "hangs", "times out". Stops that ended in a kill: "uses the grace
    /// up".
    #[must_use]
    pub fn hits(&self) -> BTreeMap<(Op, &'static str), u64> {
        self.state.borrow().hits.clone()
    }

    /// Lets every hanging call of `op` go on.
    pub fn release(&self, op: Op) {
        self.change(|state| state.hanging.retain(|_, hanging| *hanging != op));
    }

    /// Lets every hanging call go on.
    pub fn release_all(&self) {
        self.change(|state| state.hanging.clear());
    }

    /// Calls of `op` that hang now.
    #[must_use]
    pub fn hanging(&self, op: Op) -> usize {
        let state = self.state.borrow();
        state.hanging.values().filter(|other| **other == op).count()
    }

    /// Decides what containers of this name do about their stop signal. Unless told, they exit with 143.
    pub fn on_stop(&self, container: &str, what: OnStop) {
        self.change(|state| {
            state.on_stop.insert(container.into(), what);
        });
    }

    /// Ends a running container. False if it does not run.
    pub fn exit(&self, id: &ContainerId, exit_code: i32) -> bool {
        self.change(|state| state.end(id, exit_code, ""))
    }

    /// Ends a running container as the kernel does when its memory is used up. False if it does not run.
    pub fn oom_kill(&self, id: &ContainerId) -> bool {
        self.change(|state| state.end(id, KILLED, "OOMKilled"))
    }

    /// Takes a sandbox's network away, as when its namespaces were removed behind the runtime's back.
    pub fn lose_sandbox(&self, id: &SandboxId) {
        self.change(|state| state.close_sandbox(id));
    }

    /// A power cut: nothing runs any more, records survive. Times of earlier ends mean nothing now.
    pub fn reboot(&self) {
        self.change(|state| {
            let running: Vec<_> = state.containers.keys().cloned().collect();
            for id in running {
                state.end(&id, KILLED, "ContainerStatusUnknown");
            }
            let sandboxes: Vec<_> = state.sandboxes.keys().cloned().collect();
            for id in sandboxes {
                state.close_sandbox(&id);
            }
            state.boot += 1;
            state.sequence = 0;
        });
    }

    /// The same, and what was is forgotten, as by a runtime that keeps its records in memory.
    pub fn reboot_and_forget(&self) {
        self.reboot();
        self.change(|state| {
            state.containers.clear();
            state.sandboxes.clear();
        });
    }

    /// Sets `RuntimeReady` and `NetworkReady`: `None` is true, otherwise reason and message.
    pub fn set_conditions(&self, runtime: Option<(&str, &str)>, network: Option<(&str, &str)>) {
        let own = |condition: Option<(&str, &str)>| {
            condition.map(|(reason, message)| (reason.into(), message.into()))
        };
        self.change(|state| {
            state.runtime = own(runtime);
            state.network = own(network);
        });
    }

    /// Sets whether pods can be ended while `RuntimeReady` is false.
    pub fn set_can_stop_containers(&self, can_stop_containers: bool) {
        self.change(|state| state.can_stop_containers = can_stop_containers);
    }

    /// Cuts or mends the doorbell.
    pub fn set_deaf(&self, deaf: bool) {
        self.change(|state| {
            state.deaf = deaf;
            state.rung &= !deaf;
        });
    }

    /// The calls made since the last time: method and pod UID, container name or image.
    pub fn take_calls(&self) -> Vec<(Op, String)> {
        // Nothing changes by it: whoever waits is not woken, lest a run that is looked at takes another course.
        core::mem::take(&mut self.state.borrow_mut().calls).into()
    }

    /// What the caller did against the contract.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.state.borrow().violations.clone()
    }

    /// The newest instance of a container of a pod.
    #[must_use]
    pub fn container(&self, uid: &PodUid, name: &str) -> Option<ContainerStatus> {
        let pods = self.state.borrow().pods();
        let pod = pods.into_iter().find(|pod| pod.uid == *uid)?;
        pod.newest_instance(name).cloned()
    }

    /// What the newest instance of a container was created with.
    pub fn config(&self, uid: &PodUid, name: &str) -> Option<ContainerConfig> {
        let id = self.container(uid, name)?.id;
        let state = self.state.borrow();
        state.containers.get(&id).map(|i| i.config.clone())
    }

    fn change<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        let (result, wakers) = {
            let mut state = self.state.borrow_mut();
            state.changes += 1;
            let result = take_uncounted(|| with(&mut state));
            (result, core::mem::take(&mut state.wakers))
        };
        for waker in wakers {
            waker.wake();
        }
        result
    }

    /// Waits until `ready` has an answer; asked again after every change.
    async fn wait<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            match ready(&mut state) {
                Some(answer) => Poll::Ready(answer),
                None => {
                    take_uncounted(|| state.wakers.push(cx.waker().clone()));
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Notes a call and applies the script of faults to it.
    async fn begin(
        &self,
        op: Op,
        target: &str,
        uid: Option<PodUid>,
        container: Option<&ContainerId>,
    ) -> Result<Running<'_>, RuntimeError> {
        self.begin_with(op, target, uid, container, None).await
    }

    async fn begin_with(
        &self,
        op: Op,
        target: &str,
        uid: Option<PodUid>,
        container: Option<&ContainerId>,
        grace: Option<Duration>,
    ) -> Result<Running<'_>, RuntimeError> {
        if self.state.borrow().orphaned {
            core::future::pending::<()>().await;
        }
        if let Some(uid) = uid
            .as_ref()
            .filter(|_| op.is_pod_operation() || op == Op::Exec)
        {
            self.tell_watch(op, uid, container, grace);
        }
        let mut watched = uid.clone().filter(|_| op.is_pod_operation());
        let (number, trouble) = self.change(|state| {
            state.next_call += 1;
            let number = state.next_call;
            state.under_way.insert(number, op);
            if state.calls.len() >= MAX_CALLS {
                state.calls.pop_front();
            }
            state.calls.push_back((op, target.into()));
            if let Some(uid) = &watched {
                let (first, calls) = state.in_flight.entry(uid.clone()).or_insert((op, 0));
                // Containers of one pod are stopped together.
                if *calls == 0 || (op == Op::StopContainer && *first == op) {
                    *calls += 1;
                } else {
                    let text = format!("{op:?} overlaps {first:?} of pod {uid}");
                    state.violations.push(text);
                    // The first one keeps the pod.
                    watched = None;
                }
            }
            let hit = state.faults.iter_mut().find(|fault| {
                let concerned = |wanted: &String| {
                    wanted == target || uid.as_ref().is_some_and(|uid| **uid == **wanted)
                };
                fault.op == op && fault.times > 0 && fault.target.as_ref().is_none_or(concerned)
            });
            let trouble = hit.map(|fault| {
                fault.times -= 1;
                fault.trouble.clone()
            });
            state.faults.retain(|fault| fault.times > 0);
            let trouble = trouble.or_else(|| {
                let (every, so_far) = state
                    .updates
                    .as_mut()
                    .filter(|_| op == Op::UpdateContainer)?;
                *so_far += 1;
                let error = RuntimeError::Failed("one of many".into());
                (*so_far % *every == 0).then(|| match *so_far / *every % 2 {
                    0 => Trouble::FailsAfter(error),
                    _ => Trouble::Fails(error),
                })
            });
            if let Some(trouble) = &trouble {
                let how = match trouble {
                    Trouble::Fails(_) => "fails",
                    Trouble::FailsAfter(_) => "fails after",
                    Trouble::Hangs => "hangs",
                    Trouble::TimesOut(_) => "times out",
                };
                *state.hits.entry((op, how)).or_default() += 1;
            }
            if trouble == Some(Trouble::Hangs) {
                state.hanging.insert(number, op);
            }
            (number, trouble)
        });
        let mut running = Running {
            fake: self,
            op,
            uid: watched,
            number,
            after: None,
            finished: false,
        };
        match trouble {
            None => {}
            Some(Trouble::Fails(error)) => return running.finish(Err(error)),
            Some(Trouble::FailsAfter(error)) => running.after = Some(error),
            Some(Trouble::Hangs) => {
                self.wait(|state| (!state.hanging.contains_key(&number)).then_some(()))
                    .await;
            }
            Some(Trouble::TimesOut(after)) => {
                self.pass(number, after).await;
                let what = format!("{op:?}");
                return running.finish(Err(RuntimeError::Timeout { what, after }));
            }
        }
        self.lag(number).await;
        Ok(running)
    }

    /// Lets `time` pass for a call.
    async fn pass(&self, number: u64, time: Duration) {
        let at = self.change(|state| {
            let at = state.now + time;
            state.deadlines.insert(number, at);
            at
        });
        let over = |state: &mut State| (state.now >= at).then_some(());
        self.wait(over).await;
        self.change(|state| state.deadlines.remove(&number));
    }

    /// Lets the time pass that a step of a call takes.
    async fn lag(&self, number: u64) {
        let drawn = {
            let mut state = self.state.borrow_mut();
            state.latency.as_mut().map_or(0, Latency::draw)
        };
        if drawn > 0 {
            self.pass(number, Duration::from_millis(drawn)).await;
        }
    }

    fn tell_watch(
        &self,
        op: Op,
        uid: &PodUid,
        container: Option<&ContainerId>,
        grace: Option<Duration>,
    ) {
        let (watch, status) = {
            let state = self.state.borrow();
            let instance = container.and_then(|id| state.containers.get(id));
            (state.watch.clone(), instance.map(|i| i.status.clone()))
        };
        let operation = Operation {
            op,
            uid,
            container: status.as_ref(),
            grace,
        };
        if let Some(text) = watch.and_then(|watch| watch(&operation)) {
            self.change(|state| state.violations.push(text));
        }
    }

    /// Makes a call that is done in one step.
    fn at_once<'a, T: 'a>(
        &'a self,
        op: Op,
        target: &str,
        uid: Option<PodUid>,
        container: Option<&'a ContainerId>,
        act: impl FnOnce(&mut State) -> Result<T, RuntimeError> + 'a,
    ) -> RuntimeCall<'a, T> {
        let target = target.to_owned();
        Box::pin(async move {
            let running = self.begin(op, &target, uid, container).await?;
            let result = self.change(act);
            self.lag(running.number).await;
            running.finish(result)
        })
    }

    fn names_of(&self, id: &ContainerId) -> (String, Option<PodUid>) {
        let state = self.state.borrow();
        let Some(instance) = state.containers.get(id) else {
            return (id.to_string(), None);
        };
        let uid = state.uid_of(&instance.status.sandbox);
        (instance.status.name.clone(), Some(uid))
    }

    fn uid_of(&self, sandbox: &SandboxId) -> (String, Option<PodUid>) {
        let state = self.state.borrow();
        let Some(Sandbox { status, .. }) = state.sandboxes.get(sandbox) else {
            return (sandbox.to_string(), None);
        };
        (status.uid.to_string(), Some(status.uid.clone()))
    }
}

fn image_id(reference: &str) -> String {
    format!("sha256:{}", hex(&Sha256::digest(reference)))
}

/// The id of a sandbox (empty name) or container. A runtime that has forgotten everything counts attempts anew, and gives no id
/// twice.
fn instance_id(boot: u32, uid: &PodUid, name: &str, attempt: u32) -> String {
    let digest = Sha256::digest(format!("{boot}/{uid}/{name}/{attempt}"));
    hex(&digest[..16])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The code with which a command ends at once, if it does.
fn exit_of(words: &[String]) -> Option<i32> {
    let last = words.last()?;
    last.strip_prefix("exit ")?.trim().parse().ok()
}

fn condition(trouble: Option<&(String, String)>) -> RuntimeCondition {
    let (reason, message) = trouble.cloned().unwrap_or_default();
    RuntimeCondition {
        ok: trouble.is_none(),
        reason,
        message,
    }
}

fn not_found(what: &str, id: &str) -> RuntimeError {
    RuntimeError::NotFound(format!("{what} {id}"))
}

impl ImageService for Fake {
    fn image_status<'a>(&'a self, reference: &'a str) -> RuntimeCall<'a, Option<StoredImage>> {
        self.at_once(Op::ImageStatus, reference, None, None, move |state| {
            let named = |image: &&StoredImage| {
                let mut names = image.repo_tags.iter().chain(&image.repo_digests);
                image.id == reference || names.any(|name| name == reference)
            };
            Ok(state.images.values().find(named).cloned())
        })
    }

    fn list_images(&self) -> RuntimeCall<'_, Vec<StoredImage>> {
        self.at_once(Op::ListImages, "", None, None, |state| {
            Ok(state.images.values().cloned().collect())
        })
    }

    fn pull_image<'a>(
        &'a self,
        reference: &'a str,
        credential: Option<&'a AuthConfig>,
        _: Option<&'a SandboxConfig>,
    ) -> RuntimeCall<'a, String> {
        Box::pin(async move {
            let running = self.begin(Op::PullImage, reference, None, None).await?;
            let offered = self.state.borrow().offered.contains(reference);
            let private = self.state.borrow().private.get(reference).cloned();
            let user = credential.map_or("", |credential| &credential.username);
            let result = match private {
                Some(owner) if owner != user => {
                    Err(RuntimeError::Denied(format!("{user:?} may not have it")))
                }
                _ if offered => Ok(self.add_image(reference)),
                _ => Err(not_found("image", reference)),
            };
            running.finish(result)
        })
    }

    fn pull_progress(&self, _: &str) -> Option<ImageProgress> {
        self.state.borrow().progress.clone()
    }

    fn is_pulling(&self, _: &str) -> Option<bool> {
        self.state.borrow().still_pulling
    }

    fn remove_image<'a>(&'a self, id: &'a str) -> RuntimeCall<'a, ()> {
        self.at_once(Op::RemoveImage, id, None, None, move |state| {
            let mut instances = state.containers.values();
            let uses = |status: &ContainerStatus| {
                status.image_id == id || status.volume_images.iter().any(|i| i == id)
            };
            if let Some(user) = instances.find(|instance| uses(&instance.status)) {
                let text = format!("image {id} is used by container {}", user.status.id);
                return Err(RuntimeError::Failed(text));
            }
            state.images.remove(id);
            Ok(())
        })
    }

    fn image_fs_info(&self) -> RuntimeCall<'_, FsInfo> {
        self.at_once(Op::ImageFsInfo, "", None, None, |state| {
            let (capacity_bytes, available_bytes) = state.fs.unwrap_or((1 << 34, 1 << 33));
            Ok(FsInfo {
                capacity_bytes,
                available_bytes,
                free_bytes: available_bytes,
                inodes: 1 << 20,
                inodes_free: 1 << 19,
                read_only: false,
            })
        })
    }
}

impl RuntimeService for Fake {
    fn version(&self) -> RuntimeVersion {
        RuntimeVersion {
            name: "fake".into(),
            version: "1".into(),
        }
    }

    fn capabilities(&self) -> RuntimeCapabilities {
        RuntimeCapabilities {
            handlers: vec![
                HandlerCapabilities::default(),
                HandlerCapabilities {
                    name: HANDLER.into(),
                    user_namespaces: UserNamespaceSupport::Works,
                    ..HandlerCapabilities::default()
                },
            ],
            supplemental_groups_policy: true,
            live_resource_updates: true,
            container_stats: true,
        }
    }

    fn runtime_status(&self) -> RuntimeCall<'_, RuntimeStatus> {
        self.at_once(Op::Status, "", None, None, |state| {
            Ok(RuntimeStatus {
                runtime_ready: condition(state.runtime.as_ref()),
                network_ready: condition(state.network.as_ref()),
                can_stop_containers: state.can_stop_containers,
            })
        })
    }

    fn count_pod_changes(&self) -> Pin<Box<dyn Future<Output = Option<u64>> + '_>> {
        let mut state = self.state.borrow_mut();
        let count = take_uncounted(|| {
            if state.faults.iter().any(|fault| fault.op == Op::ListPods) {
                // The list is to be asked for.
                return None;
            }
            state.list_counted();
            state.listed.as_ref().map(|(count, _)| *count)
        });
        Box::pin(ready(count))
    }

    fn list_pods(&self) -> RuntimeCall<'_, Vec<PodItem>> {
        self.at_once(Op::ListPods, "", None, None, |state| {
            Ok(state.list_counted())
        })
    }

    fn pod_status(&self, uid: &PodUid) -> RuntimeCall<'_, PodRuntimeStatus> {
        let uid = uid.clone();
        self.at_once(
            Op::PodStatus,
            &uid.clone(),
            Some(uid.clone()),
            None,
            move |state| {
                let known = state.pods().into_iter().find(|pod| pod.uid == uid);
                for container in known.iter().flat_map(|pod| &pod.containers) {
                    if container.state == ContainerState::Exited
                        && let Some(instance) = state.containers.get_mut(&container.id)
                    {
                        instance.is_told = true;
                    }
                }
                Ok(known.unwrap_or_else(|| PodRuntimeStatus {
                    uid,
                    ..PodRuntimeStatus::default()
                }))
            },
        )
    }

    fn wait_for_doorbell(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.wait(|state| core::mem::take(&mut state.rung).then_some(())))
    }

    fn run_pod_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> RuntimeCall<'a, SandboxStatus> {
        let uid = &config.uid;
        self.at_once(
            Op::RunPodSandbox,
            uid,
            Some(uid.clone()),
            None,
            move |state| {
                let handler = &config.runtime_handler;
                if !["", HANDLER].contains(&&**handler) {
                    let text = format!("no runtime for {handler:?} is configured");
                    return Err(RuntimeError::Failed(text));
                }
                let id = SandboxId::new(instance_id(state.boot, uid, "", config.attempt));
                if state.sandboxes.contains_key(&id) {
                    return Err(RuntimeError::Failed(format!("sandbox {id} exists")));
                }
                let ready = |other: &Sandbox| {
                    other.status.uid == *uid && other.status.state == SandboxState::Ready
                };
                if state.sandboxes.values().any(ready) {
                    let text = format!("a second live sandbox of pod {uid}");
                    state.violations.push(text);
                }
                let created = state.order();
                let on_host = config.namespaces.network == NamespaceMode::Node;
                let [.., high, low] = created.1.to_be_bytes();
                let ip = IpAddr::from([10, 88, high, low]);
                let status = SandboxStatus {
                    id: id.clone(),
                    uid: uid.clone(),
                    name: config.name.clone(),
                    namespace: config.namespace.clone(),
                    attempt: config.attempt,
                    state: SandboxState::Ready,
                    created_at: state.wall,
                    ips: if on_host { Vec::new() } else { vec![ip] },
                    namespaces: config.namespaces,
                    runtime_handler: config.runtime_handler.clone(),
                };
                let record = Sandbox {
                    status: status.clone(),
                    created,
                    logs: config.log_directory.clone(),
                };
                state.sandboxes.insert(id, record);
                Ok(status)
            },
        )
    }

    fn stop_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()> {
        let (target, uid) = self.uid_of(id);
        self.at_once(Op::StopPodSandbox, &target, uid, None, move |state| {
            state.kill_all(id);
            state.close_sandbox(id);
            Ok(())
        })
    }

    fn remove_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()> {
        let (target, uid) = self.uid_of(id);
        self.at_once(Op::RemovePodSandbox, &target, uid, None, move |state| {
            state.sandboxes.remove(id);
            state
                .containers
                .retain(|_, instance| instance.status.sandbox != *id);
            Ok(())
        })
    }

    fn create_container<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a ContainerConfig,
        _: Option<&'a SandboxConfig>,
    ) -> RuntimeCall<'a, ContainerId> {
        let (_, uid) = self.uid_of(sandbox);
        self.at_once(Op::CreateContainer, &config.name, uid, None, move |state| {
            let Some(Sandbox {
                status: inside,
                logs,
                ..
            }) = state.sandboxes.get(sandbox)
            else {
                return Err(not_found("sandbox", sandbox));
            };
            if inside.state != SandboxState::Ready {
                return Err(RuntimeError::Failed(format!(
                    "sandbox {sandbox} is not ready"
                )));
            }
            if !state.images.contains_key(&config.image) {
                return Err(not_found("image", &config.image));
            }
            let volume_images = config.volume_images();
            if let Some(absent) = volume_images
                .iter()
                .find(|id| !state.images.contains_key(*id))
            {
                return Err(not_found("image", absent));
            }
            let id = ContainerId::new(instance_id(
                state.boot,
                &inside.uid,
                &config.name,
                config.attempt,
            ));
            if state.containers.contains_key(&id) {
                return Err(RuntimeError::Failed(format!("container {id} exists")));
            }
            let log_path = format!("{logs}/{}", config.log_path);
            let hash = config.annotations.get(ANNOTATION_HASH);
            let created = state.order();
            let status = ContainerStatus {
                id: id.clone(),
                sandbox: sandbox.clone(),
                name: config.name.clone(),
                restart_count: config.attempt,
                state: ContainerState::Created,
                created_at: state.wall,
                started_at: None,
                finished_at: None,
                exit_code: 0,
                reason: String::new(),
                message: String::new(),
                image: config.user_image.clone(),
                image_id: config.image.clone(),
                volume_images,
                mounts: Vec::new(),
                stop_signal: config.stop_signal.clone(),
                hash: hash
                    .and_then(|hash| u64::from_str_radix(hash, 16).ok())
                    .unwrap_or(0),
                user: Some((0, 0, Vec::new())),
                pid: 0,
                log_path,
            };
            let words = config.command.iter().chain(&config.args).cloned().collect();
            let instance = Instance {
                status,
                created,
                words,
                config: config.clone(),
                attached: Vec::new(),
                ended: None,
                is_told: false,
            };
            state.containers.insert(id.clone(), instance);
            Ok(id)
        })
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeCall<'a, ()> {
        let (target, uid) = self.names_of(id);
        self.at_once(Op::StartContainer, &target, uid, Some(id), move |state| {
            let wall = state.wall;
            if let Some(text) = state.second_instance(id) {
                state.violations.push(text);
            }
            let Some(instance) = state.containers.get_mut(id) else {
                return Err(not_found("container", id));
            };
            let status = &mut instance.status;
            if status.state != ContainerState::Created {
                return Err(RuntimeError::Failed(format!(
                    "container {id} was started before"
                )));
            }
            if let Some(program) = instance
                .words
                .first()
                .filter(|w| w.starts_with("/nonexistent"))
            {
                let text = format!("exec {program}: no such file or directory");
                status.state = ContainerState::Exited;
                status.exit_code = 128;
                status.reason = "StartError".into();
                status.message.clone_from(&text);
                status.finished_at = Some(wall);
                return Err(RuntimeError::Failed(text));
            }
            status.state = ContainerState::Running;
            status.started_at = Some(wall);
            status.pid = i32::try_from(instance.created.1).unwrap_or(i32::MAX);
            if let Some(code) = exit_of(&instance.words) {
                state.end(id, code, "");
            }
            Ok(())
        })
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeCall<'a, ()> {
        let (target, uid) = self.names_of(id);
        Box::pin(async move {
            let running = self
                .begin_with(Op::StopContainer, &target, uid, Some(id), Some(grace))
                .await?;
            let what = self.state.borrow().on_stop.get(&target).copied();
            let survives = what == Some(OnStop::Survives);
            let deadline = self.change(|state| {
                match what.unwrap_or(OnStop::Exits(TERMINATED)) {
                    OnStop::Exits(_) if grace.is_zero() => state.end(id, KILLED, ""),
                    OnStop::Exits(code) => state.end(id, code, ""),
                    OnStop::Ignores | OnStop::Survives => false,
                };
                let deadline = state.now + grace;
                state.deadlines.insert(running.number, deadline);
                deadline
            });
            let over = |state: &mut State| {
                let runs = |instance: &Instance| instance.status.state == ContainerState::Running;
                if survives && state.now >= deadline {
                    return Some(());
                }
                if state.now >= deadline && state.end(id, KILLED, "") {
                    let hit = (Op::StopContainer, "uses the grace up");
                    *state.hits.entry(hit).or_default() += 1;
                }
                (!state.containers.get(id).is_some_and(runs)).then_some(())
            };
            self.wait(over).await;
            self.change(|state| state.deadlines.remove(&running.number));
            self.lag(running.number).await;
            running.finish(Ok(()))
        })
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, _: LogRetention) -> RuntimeCall<'a, ()> {
        let (target, uid) = self.names_of(id);
        self.at_once(Op::RemoveContainer, &target, uid, Some(id), move |state| {
            state.containers.remove(id);
            Ok(())
        })
    }

    fn reopen_container_log<'a>(&'a self, id: &'a ContainerId) -> RuntimeCall<'a, ()> {
        let (target, uid) = self.names_of(id);
        self.at_once(Op::ReopenLog, &target, uid, Some(id), move |state| {
            let known = state.containers.contains_key(id);
            known
                .then_some(())
                .ok_or_else(|| not_found("container", id))
        })
    }

    fn exec_sync<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        _timeout: Option<Duration>,
        limit: usize,
    ) -> RuntimeCall<'a, ExecOutput> {
        let (target, uid) = self.names_of(id);
        self.at_once(Op::Exec, &target, uid, Some(id), move |state| {
            let Some(instance) = state.containers.get(id) else {
                return Err(not_found("container", id));
            };
            if instance.status.state != ContainerState::Running {
                return Err(RuntimeError::Failed(format!("container {id} does not run")));
            }
            let mut stdout = match command.split_first() {
                Some((program, words)) if program == "echo" => words.join(" ").into_bytes(),
                _ => Vec::new(),
            };
            stdout.truncate(limit);
            state.commands.insert((id.clone(), command.to_vec()));
            let program = command.first();
            let fails = program.is_some_and(|program| state.failing.contains(program));
            Ok(ExecOutput {
                exit_code: exit_of(command).unwrap_or_else(|| i32::from(fails)),
                stdout,
                stderr: Vec::new(),
            })
        })
    }

    fn update_container_resources<'a>(
        &'a self,
        id: &'a ContainerId,
        resources: &'a LinuxResources,
    ) -> RuntimeCall<'a, ()> {
        let (target, uid) = self.names_of(id);
        self.at_once(Op::UpdateContainer, &target, uid, Some(id), move |state| {
            let instance = state.containers.get_mut(id);
            let running = instance.filter(|i| i.status.state == ContainerState::Running);
            let Some(instance) = running else {
                return Err(not_found("running container", id));
            };
            instance.config.resources = resources.clone();
            Ok(())
        })
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a ExecOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        let (target, uid) = self.names_of(id);
        let start = self.at_once(Op::Exec, &target, uid, Some(id), move |state| {
            streams::exec(state, id, options)
        });
        Box::pin(ready(Ok(StreamRoute::Local(start))))
    }

    fn attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: AttachOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        let (target, uid) = self.names_of(id);
        let start = self.at_once(Op::Attach, &target, uid, Some(id), move |state| {
            streams::attach(state, id, options)
        });
        Box::pin(ready(Ok(StreamRoute::Local(start))))
    }

    fn port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        _: &'a [u16],
    ) -> RuntimeCall<'a, StreamRoute<PortConnector<'a>>> {
        let connect: PortConnector<'a> = Box::new(move |port| {
            self.at_once(Op::PortForward, id, None, None, move |state| {
                streams::forward(state, id, port)
            })
        });
        Box::pin(ready(Ok(StreamRoute::Local(connect))))
    }

    fn list_pod_usage(&self, detail: StatsDetail) -> RuntimeCall<'_, Vec<PodUsage>> {
        self.at_once(Op::ListPodUsage, "", None, None, move |state| {
            let pods = state.pods();
            Ok(pods
                .into_iter()
                .filter_map(|pod| pod_usage(pod, state.wall, detail, state.more_in_use))
                .collect())
        })
    }

    fn writable_layer_usage<'a>(
        &'a self,
        id: &'a ContainerId,
    ) -> RuntimeCall<'a, Option<DiskUsage>> {
        let (target, uid) = self.names_of(id);
        self.at_once(Op::WritableLayer, &target, uid, None, |_| {
            Ok(Some(DiskUsage {
                used_bytes: 8192,
                inodes_used: 2,
            }))
        })
    }
}

/// Every container uses a hundredth of a processor from its start on, and always the same memory.
fn pod_usage(
    pod: PodRuntimeStatus,
    now: WallTime,
    detail: StatsDetail,
    more_in_use: u64,
) -> Option<PodUsage> {
    let sandbox = pod
        .sandboxes
        .first()
        .filter(|s| s.state == SandboxState::Ready)?;
    let usage = |since: WallTime| CgroupUsage {
        at: now,
        cpu: Some(CpuUsage {
            total_ns: u64::try_from(now.0.saturating_sub(since.0) / 100).unwrap_or(0),
            ..CpuUsage::default()
        }),
        memory: Some(MemoryUsage {
            usage_bytes: (3 << 20) + more_in_use,
            working_set_bytes: 2 << 20,
            rss_bytes: Some(1 << 20),
            ..MemoryUsage::default()
        }),
        ..CgroupUsage::default()
    };
    let cgroup = format!("/kubepods/pod{}", pod.uid);
    let running = pod
        .containers
        .iter()
        .filter(|c| c.state == ContainerState::Running);
    let containers = running.map(|c| {
        let since = c.started_at.unwrap_or(c.created_at);
        ContainerUsage {
            id: c.id.clone(),
            name: c.name.clone(),
            image: c.image.clone(),
            started_at: since,
            cgroup: format!("{cgroup}/{}", c.id),
            log_path: c.log_path.clone(),
            usage: usage(since),
        }
    });
    let own = sandbox.namespaces.network == NamespaceMode::Pod && detail == StatsDetail::Full;
    Some(PodUsage {
        started_at: sandbox.created_at,
        usage: usage(sandbox.created_at),
        network: own.then(|| {
            vec![InterfaceCounts {
                name: "eth0".into(),
                ..InterfaceCounts::default()
            }]
        }),
        containers: containers.collect(),
        cgroup,
        uid: pod.uid,
        name: pod.name,
        namespace: pod.namespace,
    })
}

#[cfg(test)]
mod tests {
    use smol::future::{block_on, poll_once};

    use super::*;
    use crate::runtime::contract::{ContractFixture, run_contract};

    const REFERENCE: &str = "docker.io/library/busybox:1.36";

    fn sandbox(uid: &str) -> SandboxConfig {
        SandboxConfig {
            name: format!("pod-{uid}"),
            namespace: "default".into(),
            uid: uid.into(),
            log_directory: "/logs".into(),
            ..SandboxConfig::default()
        }
    }

    fn container(fake: &Fake, name: &str) -> ContainerConfig {
        ContainerConfig {
            name: name.into(),
            image: fake.add_image(REFERENCE),
            user_image: REFERENCE.into(),
            command: vec!["sleep".into(), "1d".into()],
            log_path: format!("{name}/0.log"),
            ..ContainerConfig::default()
        }
    }

    /// A running container of pod `uid`.
    fn started(fake: &Fake, uid: &str) -> ContainerId {
        block_on(async {
            let sandbox = sandbox(uid);
            let made = fake.run_pod_sandbox(&sandbox).await.expect("sandbox");
            let config = container(fake, "c");
            let id = fake
                .create_container(&made.id, &config, Some(&sandbox))
                .await;
            let id = id.expect("container");
            fake.start_container(&id).await.expect("started");
            id
        })
    }

    #[test]
    fn keeps_the_contract() {
        // PROV-01 PROV-07 RTM-01 RTM-02 RTM-03 RTM-05 RTM-06 RTM-16 RTM-18
        let fake = Fake::new();
        fake.add_image(REFERENCE);
        let fixture = ContractFixture {
            sandbox: sandbox("contract"),
            image: REFERENCE.into(),
            runs: vec!["sleep".into(), "1d".into()],
            image_volumes: true,
            exits_3: vec!["sh".into(), "-c".into(), "exit 3".into()],
            cannot_start: vec!["/nonexistent/program".into()],
            echoes: vec!["echo".into(), "heard".into()],
        };
        let pause = || -> Pin<Box<dyn Future<Output = ()>>> { Box::pin(smol::future::yield_now()) };
        let result = block_on(run_contract(&fake, &fixture, &pause));
        assert_eq!(result, Ok(()));
        assert_eq!(fake.violations(), Vec::<String>::new());
    }

    #[test]
    fn faults_follow_their_script() {
        let fake = Fake::new();
        let lost = RuntimeError::Failed("lost".into());
        for (target, trouble) in [
            ("a", Trouble::Fails(lost.clone())),
            ("b", Trouble::FailsAfter(lost.clone())),
        ] {
            fake.add_fault(Fault {
                op: Op::RunPodSandbox,
                target: Some(target.into()),
                times: 1,
                trouble,
            });
        }
        let run = |uid| block_on(fake.run_pod_sandbox(&sandbox(uid)));
        let listed = || block_on(fake.list_pods()).expect("list").len();
        assert_eq!(run("a"), Err(lost.clone()));
        assert_eq!(listed(), 0, "nothing was done");
        assert_eq!(run("b"), Err(lost));
        assert_eq!(listed(), 1, "it was, but the answer was lost");
        run("a").expect("once only");
    }

    #[test]
    fn hanging_calls_and_overlaps() {
        let fake = Fake::new();
        let id = started(&fake, "a");
        fake.add_fault(Fault {
            op: Op::StopContainer,
            target: None,
            times: 1,
            trouble: Trouble::Hangs,
        });
        block_on(async {
            let mut stop = fake.stop_container(&id, Duration::from_secs(1));
            assert_eq!(poll_once(&mut stop).await, None);
            assert_eq!(fake.hanging(Op::StopContainer), 1);
            assert_eq!(fake.violations().len(), 0);
            fake.remove_container(&id, LogRetention::Remove)
                .await
                .expect("removed");
            assert_eq!(fake.violations().len(), 1, "two operations at a time");
            fake.release(Op::StopContainer);
            assert_eq!(poll_once(&mut stop).await, Some(Ok(())));
            drop(fake.stop_container(&id, Duration::ZERO));
        });
        assert_eq!(fake.violations().len(), 1, "never polled, never begun");
    }

    #[test]
    fn grace_runs_on_the_clock_of_the_test() {
        let fake = Fake::new();
        fake.on_stop("c", OnStop::Ignores);
        let id = started(&fake, "a");
        block_on(async {
            let mut stop = fake.stop_container(&id, Duration::from_secs(5));
            assert_eq!(poll_once(&mut stop).await, None);
            fake.set_now(MonoTime(5000), WallTime(0));
            assert_eq!(poll_once(&mut stop).await, None);
            fake.set_now(MonoTime(5001), WallTime(0));
            assert_eq!(poll_once(&mut stop).await, Some(Ok(())));
        });
        let status = fake.container(&"a".into(), "c").expect("listed");
        assert_eq!((status.exit_code, &*status.reason), (137, "Error"));
    }

    #[test]
    fn the_doorbell_rings_when_a_container_ends() {
        let fake = Fake::new();
        let id = started(&fake, "a");
        block_on(async {
            let mut bell = fake.wait_for_doorbell();
            assert_eq!(poll_once(&mut bell).await, None);
            assert!(fake.oom_kill(&id) && !fake.exit(&id, 0));
            assert_eq!(poll_once(&mut bell).await, Some(()));
            assert_eq!(poll_once(fake.wait_for_doorbell()).await, None, "once");
        });
        let status = fake.container(&"a".into(), "c").expect("listed");
        assert_eq!(status.reason, "OOMKilled");
        fake.set_deaf(true);
        let other = started(&fake, "b");
        fake.exit(&other, 0);
        assert_eq!(block_on(poll_once(fake.wait_for_doorbell())), None, "cut");
    }

    #[test]
    fn a_reboot_ends_everything() {
        // RTM-18
        let fake = Fake::new();
        started(&fake, "a");
        fake.reboot();
        let [pod] = &fake.pods()[..] else {
            panic!("records survive");
        };
        assert!(!pod.is_running() && pod.ips.is_empty());
        assert_eq!(pod.containers[0].reason, "ContainerStatusUnknown");
        let again = SandboxConfig {
            attempt: 1,
            ..sandbox("a")
        };
        let after = block_on(fake.run_pod_sandbox(&again)).expect("sandbox");
        assert_eq!(
            fake.pods()[0].sandboxes[0].id,
            after.id,
            "ordered across boots"
        );
    }
}
