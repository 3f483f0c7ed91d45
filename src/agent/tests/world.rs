//! A machine for one test: directories, a fake runtime, a clock. Nothing runs by itself; [`World::advance`] lets time
//! pass and runs everything that is due.

use core::{
    cell::{Cell, RefCell},
    future::poll_fn,
    task::{Poll, Waker},
    time::Duration,
};
use std::{
    ffi::OsString,
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use serde_json::{Value, json};
use smol::{
    LocalExecutor, Task,
    channel::{Receiver, Sender},
};

use super::{
    super::{
        admission,
        asker::AgentHandle,
        assembly, backoff_store,
        clock::{Clock, TimerFuture},
        cluster::JoinedCluster,
        cluster_views,
        core::{Agent, AgentCommand, AgentEvent, SourceNews},
        driver::PodDriver,
        event_loop::{self, AgentCell},
        executor,
        external_pods::ExternalPods,
        images::{NodeImageHelpers, NodeKeyring, UnusedImageRequests},
        link_limits::LinkLimits,
        link_policy::LinkTools,
        manifests,
        metrics::Metrics,
        node::{self, LocalNode, MachineFacts},
        parts::{AgentParts, AssemblyInputs},
        pollers,
        views::DeliveryResult,
    },
    api::FakeApi,
    drawn,
    gauge::{Left, TestGauge},
    wire::FakeWire,
};
use crate::{
    api::{MonoTime, PodStatus, PodUid, WallTime, pod_status::PodPhase, received::SnapshotEntry},
    cgroup::{Cgroups, Hierarchy},
    config::{self, AgentConfig},
    kube::{KubeApi, KubeLanes, ThreadTransport},
    logic::{
        cpu_manager::MachineCpus,
        cpu_set::CpuSet,
        node::{HostInterface, LocalAddresses},
        static_pod,
    },
    runtime::{
        RuntimeError, RuntimeService as _,
        fake::{Fake, Fault, Op, Trouble},
    },
    source::SourceSnapshot,
    sys::lane::Lane,
    volume::Volumes,
};

/// No lane waits beside the executor, so all answers of a list need room at once.
pub(in crate::agent) const MANY_ANSWERS: usize = 4096;
/// Image that is there from the beginning.
pub(in crate::agent) const IMAGE: &str = "busybox:1";
/// Name of the node.
pub(crate) const NODE: &str = "node";
/// Seconds since 1970 when the monotonic clock says 0.
const EPOCH_S: i64 = 1_700_000_000;

/// Address of the machine.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// The only interface of the machine.
fn addresses(_: &str) -> LocalAddresses {
    LocalAddresses {
        interfaces: vec![HostInterface {
            name: "eth0".into(),
            addresses: vec![ADDRESS],
        }],
        default_v4: vec!["eth0".into()],
        ..LocalAddresses::default()
    }
}

/// Time of the machine, as tests set it.
#[derive(Debug, Default)]
pub(crate) struct Hands {
    now: Cell<MonoTime>,
    /// Seconds by which the wall clock is off.
    off_s: Cell<i64>,
    /// Set while the wall clock is not kept right.
    is_wrong: Cell<bool>,
    /// Number of boots of the machine after the first.
    boots: Cell<u32>,
    /// Interface by which the way to the apiserver leaves; `None`: there is no way.
    interface: Cell<Option<&'static str>>,
    alarms: RefCell<Vec<(MonoTime, Waker)>>,
}

impl Hands {
    pub(crate) const fn now(&self) -> MonoTime {
        self.now.get()
    }

    pub(in crate::agent) fn wall(&self) -> WallTime {
        let MonoTime(ms) = self.now.get();
        let second = EPOCH_S + self.off_s.get();
        WallTime(second * 1_000_000_000 + i64::try_from(ms).expect("small") * 1_000_000)
    }

    /// Time of a wall clock that is never wrong.
    fn true_wall(&self) -> WallTime {
        let seconds = i64::try_from(self.now.get().0 / 1000).expect("small");
        WallTime::from_unix_seconds(EPOCH_S + seconds)
    }

    /// Sets the wall clock alone.
    pub(in crate::agent) fn jump(&self, by_s: i64) {
        self.off_s.set(self.off_s.get() + by_s);
    }

    /// Sets that the wall clock is not kept right, or is.
    pub(crate) fn set_wrong(&self, is_wrong: bool) {
        self.is_wrong.set(is_wrong);
    }

    /// Counts a boot of the machine.
    pub(in crate::agent) fn boot(&self) {
        self.boots.set(self.boots.get() + 1);
    }

    /// Sets the interface by which the way to the apiserver leaves from now on.
    pub(in crate::agent) fn leave_by(&self, interface: Option<&'static str>) {
        self.interface.set(interface);
    }

    /// Drops all alarms.
    pub(in crate::agent) fn forget_alarms(&self) {
        self.alarms.take();
    }

    pub(crate) fn next_alarm(&self) -> Option<MonoTime> {
        self.alarms.borrow().iter().map(|(at, _)| *at).min()
    }

    pub(crate) fn set(&self, now: MonoTime) {
        self.now.set(now);
        let all = self.alarms.take();
        let (due, later) = all.into_iter().partition(|(at, _)| *at <= now);
        self.alarms.replace(later);
        let due: Vec<(MonoTime, Waker)> = due;
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

pub(crate) struct TestClock(pub(crate) Rc<Hands>);

impl Clock for TestClock {
    fn now(&self) -> MonoTime {
        self.0.now.get()
    }

    fn wall_time(&self) -> WallTime {
        self.0.wall()
    }

    fn is_synchronized(&self) -> bool {
        !self.0.is_wrong.get()
    }

    fn sleep_until(&self, deadline: MonoTime) -> TimerFuture {
        let hands = Rc::clone(&self.0);
        Box::pin(poll_fn(move |cx| {
            if hands.now.get() >= deadline {
                return Poll::Ready(());
            }
            let mut alarms = hands.alarms.borrow_mut();
            let known = |(at, w): &(MonoTime, Waker)| *at == deadline && w.will_wake(cx.waker());
            if !alarms.iter().any(known) {
                alarms.push((deadline, cx.waker().clone()));
            }
            Poll::Pending
        }))
    }
}

/// Makes the driver that runs the pods of an agent.
type Driver = fn(&AgentParts) -> Rc<dyn PodDriver>;

/// Makes what runs pods without containers.
pub(crate) type MakeExternal = Rc<dyn Fn(&Rc<dyn Clock>) -> Rc<dyn ExternalPods>>;

/// Flags of an agent, the apiserver that it belongs to, and the driver of its pods.
#[derive(Clone)]
struct Way {
    flags: &'static [&'static str],
    api: Option<Arc<dyn KubeApi>>,
    driver: Driver,
    /// Makes what runs pods without containers, if there is anything.
    external: Option<MakeExternal>,
    /// Identity of the cluster.
    authority: &'static str,
    /// Changes the configuration once it was read.
    adapt: Rc<dyn Fn(&mut AgentConfig)>,
    /// A line of `picolet` in the configuration.
    declared: String,
    /// Seconds by which the wall clock is off at the first boot, if it is not kept right.
    off_s: Option<i64>,
    /// To the remover of unused images.
    unused_images: Option<UnusedImageRequests>,
    /// Credentials of the node, if it has some.
    keyring: Option<Rc<dyn NodeKeyring>>,
}

impl Way {
    /// Makes the way of a machine that has nothing but containers.
    fn plain(driver: Driver) -> Self {
        Self {
            flags: &[],
            api: None,
            driver,
            external: None,
            authority: "",
            adapt: Rc::new(|_| ()),
            declared: String::new(),
            off_s: None,
            unused_images: None,
            keyring: None,
        }
    }
}

/// A machine, and the agent that runs on it.
pub(crate) struct World {
    pub(super) parts: AgentParts,
    /// The agent, which decides.
    pub(super) agent: Rc<RefCell<Agent>>,
    pub(crate) fake: Rc<Fake>,
    pub(super) events: Sender<AgentEvent>,
    pub(super) wire: Rc<FakeWire>,
    /// Amounts of memory, disk space and process ids that are left.
    pub(super) left: Rc<Left>,
    root: PathBuf,
    way: Way,
    hands: Rc<Hands>,
    pub(super) executor: Rc<LocalExecutor<'static>>,
    /// The agent's loop.
    task: Task<()>,
    pub(super) api: Option<Arc<FakeApi>>,
    pub(super) metrics: Metrics,
    pub(super) asker: AgentHandle,
    /// Begin of the violations of the fake that are allowed.
    pub(super) forgiven: Option<&'static str>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(&[], None)
    }

    /// Makes a node of a cluster whose apiserver has no doorbell.
    pub(super) fn with_api(api: &Arc<FakeApi>) -> Self {
        Self::with_flags_and_api(&[], api)
    }

    /// Makes a node of a cluster, its agent with more flags.
    pub(super) fn with_flags_and_api(flags: &'static [&'static str], api: &Arc<FakeApi>) -> Self {
        let mut world = Self::with(flags, Some(Arc::clone(api) as Arc<dyn KubeApi>));
        world.api = Some(Arc::clone(api));
        world.set(world.now());
        world
    }

    /// Makes a node of the cluster behind `api`, its agent with more flags; without `api` a node that stands alone.
    pub(super) fn with(flags: &'static [&'static str], api: Option<Arc<dyn KubeApi>>) -> Self {
        Self::make(Way {
            flags,
            api,
            ..Way::plain(assembly::make_pod_driver)
        })
    }

    /// Makes a node of a cluster with a line of `picolet` in its configuration; the way to the apiserver leaves by
    /// `interface`.
    pub(super) fn with_line(
        flags: &'static [&'static str],
        line: &str,
        api: Arc<dyn KubeApi>,
        interface: &'static str,
    ) -> Self {
        let world = Self::make(Way {
            flags,
            api: Some(api),
            declared: line.into(),
            ..Way::plain(assembly::make_pod_driver)
        });
        world.leave_by(Some(interface));
        world
    }

    /// Sets the interface by which the way to the apiserver leaves from now on; `None`: there is no way.
    pub(super) fn leave_by(&self, interface: Option<&'static str>) {
        self.hands.leave_by(interface);
    }

    /// Makes a node of a cluster whose wall clock is off by so many seconds when it boots, and is not kept right.
    pub(super) fn with_wrong_clock(off_s: i64, api: &Arc<FakeApi>) -> Self {
        let mut world = Self::make(Way {
            api: Some(Arc::clone(api) as Arc<dyn KubeApi>),
            off_s: Some(off_s),
            ..Way::plain(assembly::make_pod_driver)
        });
        world.api = Some(Arc::clone(api));
        world.set(world.now());
        world
    }

    /// Makes a node whose unused images are removed by the reader of `unused`.
    pub(super) fn with_unused_images(
        flags: &'static [&'static str],
        api: &Arc<FakeApi>,
        unused: UnusedImageRequests,
    ) -> Self {
        let mut world = Self::make(Way {
            flags,
            api: Some(Arc::clone(api) as Arc<dyn KubeApi>),
            unused_images: Some(unused),
            ..Way::plain(assembly::make_pod_driver)
        });
        world.api = Some(Arc::clone(api));
        world.set(world.now());
        world
    }

    /// Sets that the wall clock is kept right from now on, or is not.
    pub(super) fn set_wrong(&self, is_wrong: bool) {
        self.hands.set_wrong(is_wrong);
    }

    /// Time of a wall clock that is never wrong.
    pub(super) fn true_wall(&self) -> WallTime {
        self.hands.true_wall()
    }

    /// Makes a machine with something beside the runtime that runs pods without containers.
    pub(crate) fn beside(external: MakeExternal) -> Self {
        Self::make(Way {
            external: Some(external),
            ..Way::plain(assembly::make_pod_driver)
        })
    }

    /// Makes a node of a cluster, with something beside the runtime that runs pods without containers.
    pub(crate) fn beside_in_cluster(external: MakeExternal, api: &Arc<FakeApi>) -> Self {
        let mut world = Self::make(Way {
            api: Some(Arc::clone(api) as Arc<dyn KubeApi>),
            external: Some(external),
            ..Way::plain(assembly::make_pod_driver)
        });
        world.api = Some(Arc::clone(api));
        world.set(world.now());
        world
    }

    /// Counts the tasks that follow external pods; `None`: nothing runs any.
    pub(crate) fn external_tasks(&self) -> Option<usize> {
        self.parts.machine.external.as_ref()?;
        Some(assembly::external_pod_tasks(&self.parts, &self.events).len())
    }

    /// Makes a machine whose pods are run by another driver.
    pub(super) fn driven_by(driver: Driver) -> Self {
        Self::make(Way::plain(driver))
    }

    /// Makes a machine with this line of `picolet` in the configuration, which `adapt` changes once it was read. No signs
    /// of the real kernel below the test are waited for.
    pub(super) fn configured(
        declared: String,
        adapt: Rc<dyn Fn(&mut AgentConfig)>,
        api: Option<&Arc<FakeApi>>,
    ) -> Self {
        let mut world = Self::make(Way {
            flags: &["--doorbells=false"],
            api: api.map(|api| Arc::clone(api) as Arc<dyn KubeApi>),
            adapt,
            declared,
            ..Way::plain(assembly::make_pod_driver)
        });
        world.api = api.cloned();
        world.set(world.now());
        world
    }

    fn make(way: Way) -> Self {
        let root = crate::testing::unused_path("agent");
        fs::create_dir_all(root.join("cgroup")).expect("directory");
        let fake = Rc::new(Fake::new());
        fake.count_changes();
        fake.add_image(IMAGE);
        let hands = Rc::new(Hands::default());
        hands.set(MonoTime(1000));
        if let Some(off_s) = way.off_s {
            hands.set_wrong(true);
            hands.jump(off_s);
        }
        Self::start(root, fake, hands, way, Rc::default())
    }

    fn start(
        root: PathBuf,
        fake: Rc<Fake>,
        hands: Rc<Hands>,
        way: Way,
        wire: Rc<FakeWire>,
    ) -> Self {
        let executor = Rc::new(LocalExecutor::new());
        let (events, queue) = smol::channel::bounded(event_loop::EVENT_QUEUE);
        let mut flags = way.flags.to_vec();
        if way.api.is_some() {
            // There is no thread beside the test's.
            flags.push("--doorbells=false");
        }
        let mut template = Template::declaring(&root, &flags, &way.declared);
        template.wire = Rc::clone(&wire);
        (way.adapt)(&mut template.cfg);
        let left = Rc::clone(&template.left);
        let joined = way.api.clone().map(|api| {
            let lanes = [Lane::without_thread(), Lane::without_thread()];
            let lanes = KubeLanes::from_lanes(api, lanes, Rc::new(ThreadTransport));
            let mut joined = JoinedCluster::from_lanes(lanes, template.cfg.doorbells, 7);
            joined.answers = MANY_ANSWERS;
            joined.authority = way.authority.into();
            joined
        });
        let asker = AgentHandle::new(events.clone());
        let mut given = template.given(Rc::clone(&fake), Rc::clone(&hands), joined);
        let clock: Rc<dyn Clock> = Rc::new(TestClock(Rc::clone(&hands)));
        given.images.unused.clone_from(&way.unused_images);
        if let Some(keyring) = &way.keyring {
            given.images.keyring = Rc::clone(keyring);
        }
        given.external = way.external.as_ref().map(|make| make(&clock));
        let running = Running::start(given, way.driver, &executor, &events, queue);
        let parts = running.parts;
        let driver = assembly::make_probe_driver(&parts, asker.clone(), events.clone());
        driver.restore_passed_probes();
        executor
            .spawn(driver.drive_probes(Rc::clone(&executor)))
            .detach();
        if let Some(rotation) = assembly::make_log_rotation(&parts, asker.clone()) {
            executor.spawn(rotation.run_log_rotation()).detach();
        }
        for task in assembly::external_pod_tasks(&parts, &events) {
            executor.spawn(task).detach();
        }
        running.members.into_iter().for_each(Task::detach);
        let world = Self {
            wire,
            left,
            metrics: assembly::make_metrics_reader(&parts, asker.clone()),
            asker,
            parts,
            agent: running.agent,
            task: running.task,
            api: None,
            fake,
            way,
            events,
            root,
            hands,
            executor,
            forgiven: None,
        };
        world.set(world.now());
        world
    }

    /// Starts another agent on the machine, as after a SIGKILL.
    pub(crate) fn restart_agent(self) -> Self {
        self.restart_agent_with(|_| ())
    }

    /// Starts another agent with these flags, as [`World::restart_agent`].
    pub(super) fn restart_agent_by(mut self, flags: &'static [&'static str]) -> Self {
        self.way.flags = flags;
        self.restart_agent()
    }

    /// Starts another agent with this line of `picolet` in its configuration, as [`World::restart_agent`].
    pub(super) fn restart_agent_configured(mut self, declared: String) -> Self {
        self.way.declared = declared;
        self.restart_agent()
    }

    /// Starts another agent with these credentials of the node, as [`World::restart_agent`].
    pub(super) fn restart_agent_with_keyring(mut self, keyring: Rc<dyn NodeKeyring>) -> Self {
        self.way.keyring = Some(keyring);
        self.restart_agent()
    }

    /// Starts another agent as a member of the cluster with this identity, as [`World::restart_agent`].
    pub(super) fn restart_agent_of(mut self, authority: &'static str) -> Self {
        self.way.authority = authority;
        self.restart_agent()
    }

    /// Changes the runtime, and starts another agent, as [`World::restart_agent`].
    pub(super) fn restart_agent_with(mut self, happens: impl FnOnce(&Fake)) -> Self {
        self.verify();
        let (fake, hands) = (Rc::clone(&self.fake), Rc::clone(&self.hands));
        happens(&fake);
        hands.alarms.take();
        let (way, api) = (self.way.clone(), self.api.take());
        let (root, wire) = (core::mem::take(&mut self.root), Rc::clone(&self.wire));
        let mut world = Self::start(root, fake, hands, way, wire);
        world.api = api;
        world
    }

    /// Boots the machine: the run directory and all that the runtime knew are gone; then an agent starts.
    pub(super) fn reboot(self) -> Self {
        self.fake.reboot_and_forget();
        self.hands.boot();
        crate::sys::mount::unmount_below(&self.root.join("root/pods")).expect("unmounted");
        fs::remove_dir_all(self.root.join("run")).expect("removed");
        self.restart_agent()
    }

    /// The Node object that `get node` shows.
    pub(crate) fn node_object(&self) -> Value {
        let AgentParts {
            tools,
            machine,
            owners,
            started_at,
            ..
        } = &self.parts;
        let (runtime, clock) = (&*machine.runtime, &*tools.clock);
        let shown = async {
            let standing = self.asker.ask_agent(Agent::node_standing).await;
            let node = &owners.node;
            let clocks = (clock, &*tools.times);
            node.show_node(runtime, standing, clocks, &tools.complaints, *started_at)
                .await
        };
        self.wait(shown).to_object()
    }

    pub(super) fn now(&self) -> MonoTime {
        self.hands.now.get()
    }

    /// Runs a future to its end at this instant, and returns its output.
    pub(super) fn wait<T>(&self, what: impl Future<Output = T>) -> T {
        smol::future::block_on(self.executor.run(what))
    }

    /// Runs everything that can run at this instant.
    pub(super) fn settle(&self) {
        while self.executor.try_tick() {}
    }

    fn set(&self, now: MonoTime) {
        self.hands.set(now);
        self.fake.set_now(now, self.hands.wall());
        if let Some(api) = &self.api {
            api.set_now(self.hands.true_wall());
        }
        self.settle();
    }

    /// Lets time pass, stopping at every alarm on the way.
    pub(crate) fn advance(&self, by: Duration) {
        let end = self.now() + by;
        self.settle();
        while let Some(at) = self.next_alarm().filter(|at| *at <= end) {
            self.set(at.max(self.now()));
        }
        self.set(end);
    }

    /// The next instant at which somebody is due: a timer of the agent, or a call of a runtime that takes its time.
    fn next_alarm(&self) -> Option<MonoTime> {
        let all = [self.hands.next_alarm(), self.fake.next_deadline()];
        all.into_iter().flatten().min()
    }

    /// Sets the wall clock alone.
    pub(super) fn jump(&self, by_s: i64) {
        self.hands.jump(by_s);
        self.set(self.now());
    }

    /// Suspends the machine for so long.
    pub(super) fn sleep(&self, time: Duration) {
        self.settle();
        self.set(self.now() + time);
    }

    /// Sets the wall clock alone; nothing runs after it.
    pub(super) fn jump_clock(&self, by_s: i64) {
        self.hands.jump(by_s);
    }

    /// Lets time pass until `so` is true; at most an hour.
    pub(crate) fn until(&self, what: &str, so: impl Fn(&Self) -> bool) {
        for _ in 0..36_000 {
            self.settle();
            if so(self) {
                return;
            }
            self.advance(Duration::from_millis(100));
        }
        let seen = self.api.as_ref().map(|api| api.take_seen());
        let events: Vec<_> = self.parts.tools.recorder.newest_events(None, usize::MAX);
        panic!("never happened: {what}\n{events:#?}\n{seen:#?}");
    }

    /// Delivers the manifests that lie in the directory now.
    pub(crate) fn apply(&self, manifests: &[Value]) -> DeliveryResult {
        let pods = manifests
            .iter()
            .map(|raw| {
                let pod = static_pod::prepare_static_pod(raw.clone(), NODE, "/m/pod.yaml");
                SnapshotEntry::Read(pod.expect("valid"))
            })
            .collect();
        self.deliver(pods)
    }

    /// Delivers the manifests that are at the URL now.
    pub(super) fn apply_from_url(&self, manifests: &[Value]) {
        let pods = manifests.iter().map(|raw| {
            let pod = static_pod::prepare_from_url(raw.clone(), NODE, "http://h/m");
            SnapshotEntry::Read(pod.expect("valid"))
        });
        let news = SourceNews::Url(pods.collect());
        let asker = self.asker.clone();
        let task = self
            .executor
            .spawn(async move { asker.deliver_source_news(news).await });
        self.settle();
        assert!(task.is_finished(), "the delivery waits for something");
        let taken = smol::future::block_on(task).expect("the loop lives");
        assert!(taken.unknown.is_empty() && taken.unrecorded.is_empty());
    }

    pub(super) fn deliver(&self, pods: Vec<SnapshotEntry>) -> DeliveryResult {
        let snapshot = SourceSnapshot {
            pods,
            ..SourceSnapshot::default()
        };
        let task = self.executor.spawn({
            let events = self.events.clone();
            async move { manifests::deliver_snapshot(snapshot, &events).await }
        });
        self.settle();
        assert!(task.is_finished(), "the delivery waits for something");
        smol::future::block_on(task).expect("the loop lives")
    }

    pub(crate) fn status(&self, uid: &str) -> Option<PodStatus> {
        self.agent
            .borrow()
            .pods()
            .stored_status(&PodUid::from(uid))
            .cloned()
    }

    pub(crate) fn phase(&self, uid: &str) -> Option<PodPhase> {
        self.status(uid).map(|s| s.phase)
    }

    /// Waiting reason of the first container.
    pub(crate) fn waiting(&self, uid: &str) -> Option<String> {
        let status = self.status(uid)?;
        let first = status.container_statuses.first()?;
        first.state.waiting.as_ref().map(|w| w.reason.clone())
    }

    /// Returns true if nothing of the pod is left anywhere.
    pub(crate) fn is_gone(&self, uid: &str) -> bool {
        let uid = PodUid::from(uid);
        let Ok(listed) = smol::future::block_on(self.fake.pod_status(&uid)) else {
            return false;
        };
        let agent = self.agent.borrow();
        agent.is_orphaned(&uid)
            && !agent.pods().holds(&uid)
            && listed.containers.is_empty()
            && listed.sandboxes.is_empty()
            && !self.parts.machine.store.pod_dir(&uid).exists()
            && self.status(&uid).is_none()
    }

    /// Asks the agent to end, with its pods or without. The channel is closed when it has ended.
    pub(super) fn stop(&self, all: bool) -> Receiver<String> {
        let (done, answer) = smol::channel::bounded(1);
        let stop = AgentEvent::Command(AgentCommand::Stop { all, done });
        self.events.try_send(stop).expect("room");
        answer
    }

    /// Tells the agent that the machine goes down. The channel is closed when the machine may.
    pub(super) fn shut_down(&self) -> Receiver<String> {
        let (done, answer) = smol::channel::bounded(1);
        let shutdown = AgentEvent::Command(AgentCommand::Shutdown { done });
        self.events.try_send(shutdown).expect("room");
        answer
    }

    /// Tells the agent that the shutdown of the machine is cancelled.
    pub(super) fn call_off(&self) {
        let cancelled = AgentEvent::Command(AgentCommand::ShutdownCancelled);
        self.events.try_send(cancelled).expect("room");
    }

    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    pub(super) fn dir(&self) -> &Path {
        &self.root
    }

    /// Number of times that an event with this reason was recorded.
    pub(crate) fn events_of(&self, reason: &str) -> u32 {
        let recorder = &self.parts.tools.recorder;
        let named = recorder
            .newest_events(None, usize::MAX)
            .into_iter()
            .filter(|e| *e.reason == *reason);
        named.map(|e| e.count).sum()
    }

    fn verify(&self) {
        let mut violations = self.fake.violations();
        violations.retain(|v| self.forgiven.is_none_or(|f| !v.starts_with(f)));
        assert!(violations.is_empty(), "{violations:?}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.root.as_os_str().is_empty() {
            return;
        }
        if !std::thread::panicking() {
            self.verify();
        }
        // Pods that still run may have volumes in memory.
        let _ = crate::sys::mount::unmount_below(&self.root);
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Leaves the agent where tests may look at it between two turns of the loop.
impl AgentCell for Rc<RefCell<Agent>> {
    fn with_agent<T>(&mut self, turn: impl FnOnce(&mut Agent) -> T) -> T {
        turn(&mut self.borrow_mut())
    }
}

/// A running agent.
pub(in crate::agent) struct Running {
    pub(in crate::agent) parts: AgentParts,
    pub(in crate::agent) agent: Rc<RefCell<Agent>>,
    /// The agent's loop.
    pub(in crate::agent) task: Task<()>,
    /// Tasks that speak with the apiserver.
    pub(in crate::agent) members: Vec<Task<()>>,
}

impl Running {
    /// Starts an agent on `executor`. Its loop reads `queue`; all other tasks send to `events`.
    pub(in crate::agent) fn start(
        given: AssemblyInputs,
        driver: Driver,
        executor: &Rc<LocalExecutor<'static>>,
        events: &Sender<AgentEvent>,
        queue: Receiver<AgentEvent>,
    ) -> Self {
        let (relist, asked) = smol::channel::bounded(1);
        let parts = AgentParts::new(given);
        let delays = backoff_store::restore_backoffs(&parts.cfg.dirs.run);
        let resources = assembly::find_node_resources(&parts);
        let agent = Agent::new(&parts, relist.clone(), delays, resources);
        let agent = Rc::new(RefCell::new(agent));
        let driver = driver(&parts);
        let hands = assembly::make_effect_runner(&parts, &driver, executor, events, relist);
        let watch = parts.tools.loop_watch.clone();
        let run = event_loop::run_event_loop(Rc::clone(&agent), hands, watch, queue);
        let task = executor.spawn(drawn::started(run));
        for task in pollers::poller_tasks(&parts, driver, asked, events) {
            executor.spawn(drawn::started(task)).detach();
        }
        for task in assembly::resource_tasks(&parts, events) {
            executor.spawn(drawn::started(task)).detach();
        }
        let members = cluster_views::cluster_tasks(&parts, executor, events);
        let members = members
            .into_iter()
            .map(|task| executor.spawn(drawn::started(task)));
        Self {
            members: members.collect(),
            parts,
            agent,
            task,
        }
    }
}

/// Configuration and facts of an agent, read once for many agents.
pub(crate) struct Template {
    cfg: AgentConfig,
    node: MachineFacts,
    root: PathBuf,
    pub(in crate::agent) volumes: Volumes,
    wire: Rc<FakeWire>,
    /// Amounts of memory, disk space and process ids that are left.
    pub(in crate::agent) left: Rc<Left>,
}

impl Template {
    /// Makes the template of agents with their directories below `root`, and with `more` flags.
    pub(crate) fn new(root: &Path, more: &[&str]) -> Self {
        Self::declaring(root, more, "")
    }

    /// Makes the template of agents with the line `own` of `picolet` in their configuration.
    fn declaring(root: &Path, more: &[&str], own: &str) -> Self {
        let file = root.join("config.yaml");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let own = match own {
            "" => String::new(),
            line => format!("picolet:\n  {line}\n"),
        };
        fs::write(&file, format!("{head}{own}")).expect("write");
        let mut words: Vec<OsString> = vec![
            "--cgroups-per-qos=false".into(),
            "--enforce-node-allocatable=none".into(),
            "--resolv-conf=".into(),
            format!("--hostname-override={NODE}").into(),
            "--config".into(),
            file.into(),
        ];
        words.extend(more.iter().map(Into::into));
        for (flag, dir) in [
            ("--root-dir", "root"),
            ("--run-dir", "run"),
            ("--pod-manifest-path", "manifests"),
            ("--image-dir", "images"),
            ("--pod-logs-dir", "logs"),
            ("--container-log-dir", "links"),
        ] {
            fs::create_dir_all(root.join(dir)).expect("directory");
            words.extend([flag.into(), root.join(dir).into()]);
        }
        let flags = config::flags::parse_flags(words, root).expect("flags");
        let mut node = MachineFacts {
            name: NODE.into(),
            host_ips: vec![ADDRESS],
            memory_bytes: 1 << 30,
            cpu_milli: 4000,
            storage_bytes: 1 << 34,
            storage: None,
            swap_bytes: 0,
            // A Raspberry Pi 5 has pages of this size.
            page_bytes: 16_384,
            hugepages: Vec::new(),
            pids: 1000,
            kept: Default::default(),
            identity: Default::default(),
            settings: Default::default(),
        };
        let cfg = config::load_config(flags, &config::HostIdentity::default())
            .expect("configuration")
            .config;
        node.settings = node::facts::node_settings(&cfg, &node);
        Self {
            volumes: Volumes::new(&cfg.dirs.root).expect("volumes"),
            wire: Rc::default(),
            left: Rc::default(),
            cfg,
            node,
            root: root.into(),
        }
    }

    /// Root directory, which survives a boot.
    pub(in crate::agent) fn root_dir(&self) -> &Path {
        &self.cfg.dirs.root
    }

    /// Run directory, which does not survive a boot.
    pub(in crate::agent) fn run_dir(&self) -> &Path {
        &self.cfg.dirs.run
    }

    /// Root of all cgroups, if pods have cgroups.
    pub(in crate::agent) fn pod_groups(&self) -> Option<PathBuf> {
        (self.cfg.cgroup.per_qos).then(|| self.root.join("cgroup"))
    }

    /// Removes everything that earlier machines left on disk.
    pub(in crate::agent) fn wipe(&self) {
        fs::remove_dir_all(&self.cfg.dirs.run).expect("removed");
        fs::create_dir(&self.cfg.dirs.run).expect("made");
        let root = &self.cfg.dirs.root;
        let beside =
            ["cgroup", "images", "links", "logs", "manifests"].map(|dir| self.root.join(dir));
        let _ = fs::remove_file(root.join("node-labels.json"));
        let within = ["image_manager", "objects", "pods"].map(|dir| root.join(dir));
        for dir in beside.iter().chain(&within) {
            for left in fs::read_dir(dir).into_iter().flatten().flatten() {
                let path = left.path();
                match left.file_type().is_ok_and(|kind| kind.is_dir()) {
                    true => fs::remove_dir_all(path),
                    false => fs::remove_file(path),
                }
                .expect("removed");
            }
        }
    }

    /// Makes the node of an agent.
    pub(crate) fn node(&self) -> Rc<LocalNode> {
        self.given(Rc::new(Fake::new()), Rc::default(), None).node
    }

    /// Makes the parts that an agent is given.
    pub(in crate::agent) fn given(
        &self,
        fake: Rc<Fake>,
        hands: Rc<Hands>,
        joined: Option<JoinedCluster>,
    ) -> AssemblyInputs {
        let (cfg, node) = (self.cfg.clone(), self.node.clone());
        let mount = format!(
            "30 23 0:26 / {} rw - cgroup2 cgroup2 rw",
            self.root.join("cgroup").display()
        );
        let cgroups = Cgroups::with_hierarchy(Hierarchy::parse(&mount).expect("hierarchy"));
        let context = executor::gather_node_context(
            &cfg,
            &node,
            executor::cgroup_settings(&cfg, &node, &cgroups),
        );
        let admission =
            admission::gather_admission_facts(&cfg, &node, (6, 1), false, &fake.capabilities())
                .expect("facts");
        let node = Rc::new(LocalNode::new(node, addresses, context, admission));
        AssemblyInputs {
            joined,
            wire: Rc::new(Rc::clone(&self.wire)),
            node,
            gauge: Rc::new(TestGauge {
                left: Rc::clone(&self.left),
                hands: Rc::clone(&hands),
            }),
            boot_id: format!("boot {}", hands.boots.get()),
            cpus: Some(MachineCpus {
                all: CpuSet::parse("0-3").expect("a list"),
                cores: Vec::new(),
            }),
            link: {
                let clock = Rc::new(TestClock(Rc::clone(&hands)));
                let hands = Rc::clone(&hands);
                let way = Box::new(move || match hands.interface.get() {
                    Some(name) => Ok(name.into()),
                    None => Err(std::io::ErrorKind::NetworkUnreachable.into()),
                });
                let root = cfg.dirs.root.clone();
                LinkLimits::open(&cfg.link, LinkTools { clock, way, root })
            },
            clock: Box::new(TestClock(hands)),
            runtime: fake,
            external: None,
            images: NodeImageHelpers {
                keyring: Rc::new(()),
                unused: None,
            },
            volumes: self.volumes.clone(),
            cgroups,
            disk: Lane::without_thread(),
            cfg,
        }
    }
}

/// A manifest with one container `c`; `more` is laid over its spec.
pub(crate) fn manifest(uid: &str, more: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": uid, "uid": uid},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "c", "image": IMAGE, "command": ["sleep"]}],
        },
    });
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        pod["spec"][key] = value;
    }
    pod
}

/// Makes trouble with the next calls of `op`.
pub(super) fn fault(op: Op, times: u32, trouble: Trouble) -> Fault {
    Fault {
        op,
        target: None,
        times,
        trouble,
    }
}

/// Makes the next calls of `op` fail.
pub(super) fn fails(op: Op, times: u32) -> Fault {
    fault(op, times, Trouble::Fails(RuntimeError::Failed("no".into())))
}
