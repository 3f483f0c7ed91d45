//! Device plugins that are there: they register at a socket, list their units to the loop, and are asked what containers get.
//!
//! None of it is there where `picolet.devicePlugins` is off. Which resources plugins offered is kept in the root directory:
//! the next agent tells of them, and pods that ask for them wait, before the plugins are back (DEV-12).

use alloc::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};
use core::cell::{Cell, RefCell};
use std::{
    io,
    path::{Path, PathBuf},
};

use smol::LocalExecutor;

use super::{
    machine::{
        DeviceSocketListener, ListenerTrouble,
        plugin::{self, PluginConnection, RegisterRequest, RegistrationResult},
        pod_resources::{self, HoldingsAnswer},
    },
    news::{DeviceLoop, DeviceNews},
    plugin_registry,
};
use crate::{
    agent::{
        clock::{Clock, GrpcClock},
        complaints::Complaints,
        offered,
        vitals::WorkCounters,
    },
    api::device::PluginAllocation,
    grpc::{
        ConnectionClock,
        status::{GrpcCode, GrpcStatus},
    },
    logic::{
        devices::{self, DeclaredDevices, PluginMessageError, PreferenceQuestion, PreferredUnits},
        pull_rate::PullRate,
    },
    sys::lane::Lane,
};

/// Name of the directory, beside that of plugins, of the socket for those who ask what pods have.
const RESOURCES_DIR: &str = "pod-resources";
/// Registrations under way at a time.
const MAX_REGISTERING: usize = 8;
/// Rates of reads on connections of plugins that register.
const READS_PER_SECOND: u32 = 100;
const READS_AT_ONCE: u32 = 10;

/// Reason why a plugin is not there, or does not give what it should.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevicePluginError {
    /// The plugin is not there, or not any more.
    #[error("the device plugin of {0} is not there")]
    Absent(Box<str>),
    /// The plugin's answer is an error: its text, as it may be shown.
    #[error("{0}")]
    Call(String),
    /// The plugin's answer breaks a rule.
    #[error("{0}")]
    Wrong(PluginMessageError),
    /// The plugin has ended its list.
    #[error("it ended its list of devices")]
    Ended,
    /// The record of the plugin cannot be written.
    #[error("cannot write {0}: {1}")]
    Record(String, io::Error),
    /// An error with the resource that it concerns.
    #[error("the device plugin of {0}: {1}")]
    Of(Box<str>, Box<Self>),
    /// None is asked here.
    #[error("picolet.devicePlugins is off: no plugin can be asked")]
    Off,
}

/// See the module.
pub(crate) struct DevicePlugins {
    /// Directory of the sockets.
    dir: PathBuf,
    /// Record of the resources that plugins have offered.
    file: PathBuf,
    declared: Arc<DeclaredDevices>,
    clock: Rc<dyn Clock>,
    disk: Lane,
    complaints: Rc<Complaints>,
    counters: WorkCounters,
    state: RefCell<DevicePluginsState>,
    /// Two plugins do not register at the same time.
    registering: smol::lock::Mutex<()>,
    /// Each registration under way has one more of it.
    under_way: Rc<()>,
}

#[derive(Default)]
struct DevicePluginsState {
    live: BTreeMap<Box<str>, LivePlugin>,
    /// Resources that were offered by now.
    known: BTreeSet<Box<str>>,
    /// Number of the last connection.
    number: u64,
    /// Problem of the socket at which plugins register.
    socket: ListenerTrouble,
}

/// A plugin that is there.
struct LivePlugin {
    plugin: PluginConnection,
    number: u64,
    /// Units that it lists.
    units: usize,
    /// Tasks that end with the plugin: one carries the connection, one reads the lists.
    tasks: [smol::Task<()>; 2],
}

impl DevicePlugins {
    /// None yet. Reads what was offered to an agent before this one. Blocking.
    pub(crate) fn new(
        dir: PathBuf,
        root: &Path,
        declared: Arc<DeclaredDevices>,
        clock: Rc<dyn Clock>,
        disk: Lane,
        complaints: Rc<Complaints>,
        counters: WorkCounters,
    ) -> Self {
        let file = offered::plugin_record_path(root);
        let known = offered::recall_resource_names(&file).unwrap_or_default();
        let state = DevicePluginsState {
            known: known.into_iter().take(devices::MAX_PLUGINS).collect(),
            ..DevicePluginsState::default()
        };
        Self {
            dir,
            file,
            declared,
            clock,
            disk,
            complaints,
            counters,
            state: RefCell::new(state),
            registering: smol::lock::Mutex::new(()),
            under_way: Rc::default(),
        }
    }

    /// Directory of the sockets of plugins that wait to be found.
    pub(crate) fn registry_dir(&self) -> PathBuf {
        self.dir.with_file_name(plugin_registry::DIR)
    }

    /// Resources that were offered by now.
    pub(crate) fn known_resources(&self) -> Vec<Box<str>> {
        self.state.borrow().known.iter().cloned().collect()
    }

    /// Opens the sockets: for plugins, and for those who ask what pods have.
    pub(crate) fn open_listeners(&self) -> io::Result<[DeviceSocketListener; 2]> {
        let beside = self.dir.with_file_name(RESOURCES_DIR);
        let of = |what: &str, e: io::Error| io::Error::new(e.kind(), format!("{what}: {e}"));
        let of_plugins =
            DeviceSocketListener::bind_for_plugins(&self.dir).map_err(|e| of("for plugins", e))?;
        self.state.borrow_mut().socket = of_plugins.shared_trouble();
        let of_readers = DeviceSocketListener::bind_for_readers(&beside);
        let of_readers = of_readers.map_err(|e| of("for readers of pod resources", e))?;
        Ok([of_plugins, of_readers])
    }

    /// Reason why no plugin can register at the moment (DEV-18).
    pub(crate) fn registration_trouble(&self) -> Option<String> {
        self.state.borrow().socket.borrow().clone()
    }

    /// Tells who has which devices, as long as the agent runs (DEV-17).
    pub(crate) async fn serve_holdings(
        self: Rc<Self>,
        listener: DeviceSocketListener,
        executor: Rc<LocalExecutor<'static>>,
        agent: DeviceLoop,
    ) {
        let (clock, time) = (Rc::clone(&self.clock), self.grpc_time());
        let rate = PullRate::new(READS_PER_SECOND, READS_AT_ONCE, clock.now());
        let rate = Cell::new(rate);
        let ask = move || -> HoldingsAnswer {
            let mut now = rate.get();
            let allowed = now.try_take_pull(clock.now());
            rate.set(now);
            let agent = agent.clone();
            Box::pin(async move {
                match allowed {
                    true => Some(agent.ask_holdings().await),
                    false => None,
                }
            })
        };
        pod_resources::serve_pod_resources(listener, Rc::new(ask), executor, time).await;
    }

    /// Takes registrations as long as the agent runs.
    pub(crate) async fn serve_registrations(
        self: Rc<Self>,
        listener: DeviceSocketListener,
        executor: Rc<LocalExecutor<'static>>,
        agent: DeviceLoop,
    ) {
        let time = self.grpc_time();
        let spawner = Rc::clone(&executor);
        let register = move |request| -> RegistrationResult {
            let (plugins, executor) = (Rc::clone(&self), Rc::clone(&executor));
            let agent = agent.clone();
            Box::pin(async move { plugins.register_plugin(request, executor, agent).await })
        };
        plugin::serve_registrations(listener, Rc::new(register), spawner, time).await;
    }

    fn grpc_time(&self) -> Rc<dyn ConnectionClock> {
        Rc::new(GrpcClock(Rc::clone(&self.clock)))
    }

    /// A plugin offers a resource. It is dialled before it is answered (DEV-02).
    async fn register_plugin(
        self: Rc<Self>,
        request: RegisterRequest,
        executor: Rc<LocalExecutor<'static>>,
        agent: DeviceLoop,
    ) -> Result<(), GrpcStatus> {
        let RegisterRequest {
            version,
            endpoint,
            resource_name,
        } = request;
        let _one_more = Rc::clone(&self.under_way);
        if Rc::strong_count(&self.under_way) - 1 > MAX_REGISTERING {
            let text = format!("{MAX_REGISTERING} device plugins are registering already");
            self.complaints.complain(&text);
            return Err(GrpcStatus::new(GrpcCode::RESOURCE_EXHAUSTED, text));
        }
        let declared = self.declared.find_entry(&resource_name).is_some();
        let wanted = devices::check_registration(&version, &endpoint, &resource_name, declared);
        if let Err(why) = wanted {
            let what = "a device plugin is refused";
            self.complaints.complain_of(what, &format!("{what}: {why}"));
            return Err(GrpcStatus::new(GrpcCode::UNKNOWN, why.to_string()));
        }
        let path = self.dir.join(&endpoint);
        let connected = self
            .connect_plugin(&resource_name, &path, executor, agent)
            .await;
        connected.map(drop)
    }

    /// Dials who offers a resource, which may be offered, and follows its lists from then on. Returns the number of the
    /// connection.
    pub(crate) async fn connect_plugin(
        self: Rc<Self>,
        resource: &str,
        path: &Path,
        executor: Rc<LocalExecutor<'static>>,
        agent: DeviceLoop,
    ) -> Result<u64, GrpcStatus> {
        let refused = |why: GrpcStatus| {
            let what = format!("the device plugin of {resource}");
            let text = format!("{what}: {}", devices::escape_message(&why.message));
            self.complaints.complain_of(&what, &text);
            why
        };
        let dialled = PluginConnection::dial(path, &executor, self.grpc_time()).await;
        let (plugin, driver) = dialled.map_err(refused)?;
        let _turn = self.registering.lock().await;
        let resource: Box<str> = resource.into();
        let kept = self.remember_resource(&resource, &agent).await;
        kept.map_err(|e| refused(GrpcStatus::new(GrpcCode::UNAVAILABLE, e.to_string())))?;
        log::info!("device plugin {} offers {resource}", path.display());
        self.counters
            .count_work(|c| c.plugin_counts().count_registration(&resource));
        // From here on nothing waits: this call may be given up wherever it does.
        let mut state = self.state.borrow_mut();
        state.number += 1;
        let number = state.number;
        let watch = Rc::clone(&self).watch_plugin(resource.clone(), plugin.clone(), number, agent);
        let live = LivePlugin {
            plugin,
            number,
            units: 0,
            tasks: [driver, executor.spawn(watch)],
        };
        let before = state.live.insert(resource, live);
        drop(state);
        // One that was there under this name is not any more: its end is not told.
        drop(before);
        Ok(number)
    }

    /// Takes leave of the plugin that was connected by this number, unless it has gone, or another one is there for it.
    pub(crate) async fn drop_plugin(&self, resource: &str, number: u64, agent: &DeviceLoop) {
        if let Some(live) = self.take_live_plugin(resource, number) {
            drop(live);
            log::info!("the device plugin of {resource} has gone, and so has its socket");
            let resource = resource.into();
            agent.tell_loop(DeviceNews::Gone { resource }).await;
        }
    }

    fn take_live_plugin(&self, resource: &str, number: u64) -> Option<LivePlugin> {
        let mut state = self.state.borrow_mut();
        let is_own = |live: &LivePlugin| live.number == number;
        let is_own = state.live.get(resource).is_some_and(is_own);
        is_own.then(|| state.live.remove(resource)).flatten()
    }

    /// Keeps the name of a resource. If there are too many, one makes room that nobody needs.
    ///
    /// - Errors: it cannot be kept, or there are too many.
    pub(crate) async fn remember_resource(
        &self,
        resource: &str,
        agent: &DeviceLoop,
    ) -> Result<(), DevicePluginError> {
        let mut resources = self.state.borrow().known.clone();
        if resources.contains(resource) {
            return Ok(());
        }
        let mut spared = None;
        if resources.len() >= devices::MAX_PLUGINS {
            let spare = agent.ask_spare_resource(resources.clone()).await;
            let spare = spare.ok_or(DevicePluginError::Wrong(PluginMessageError::Plugins))?;
            resources.remove(&spare);
            spared = Some(spare);
        }
        resources.insert(resource.into());
        let failed = |e: io::Error| DevicePluginError::Record(self.file.display().to_string(), e);
        let (path, names) = (self.file.clone(), resources.clone());
        let kept = self
            .disk
            .run_job(move || offered::keep_plugin_resources(&path, names));
        kept.await.map_err(failed)?;
        self.state.borrow_mut().known = resources;
        if let Some(resource) = spared {
            agent.tell_loop(DeviceNews::Spared { resource }).await;
        }
        Ok(())
    }

    /// Tells the loop of the plugin, of all its lists, and of its end.
    async fn watch_plugin(
        self: Rc<Self>,
        resource: Box<str>,
        plugin: PluginConnection,
        number: u64,
        agent: DeviceLoop,
    ) {
        let news = DeviceNews::Registered {
            resource: resource.clone(),
            prefers: plugin.prefers,
        };
        agent.tell_loop(news).await;
        let end = self
            .read_device_lists(&resource, &plugin, number, &agent)
            .await;
        let why = end.err().unwrap_or(DevicePluginError::Ended);
        let what = format!("the device plugin of {resource} has gone");
        let text = format!("{what}: {why}");
        self.complaints.complain_of(&what, &text);
        let news = DeviceNews::Gone {
            resource: resource.clone(),
        };
        agent.tell_loop(news).await;
        if let Some(live) = self.take_live_plugin(&resource, number) {
            let [driver, own] = live.tasks;
            drop(driver);
            // This is it.
            own.detach();
        }
    }

    async fn read_device_lists(
        &self,
        resource: &str,
        plugin: &PluginConnection,
        number: u64,
        agent: &DeviceLoop,
    ) -> Result<(), DevicePluginError> {
        let time = self.grpc_time();
        let mut lists = plugin
            .subscribe_device_lists()
            .await
            .map_err(|e| plugin_status_error(&e))?;
        // Bounded: by the pauses between lists.
        while let Some(units) = lists
            .next_device_list(&*time)
            .await
            .map_err(|e| plugin_status_error(&e))?
        {
            let others = self.units_of_others(number);
            let units =
                devices::check_unit_list(units, others).map_err(DevicePluginError::Wrong)?;
            if let Some(live) = self.state.borrow_mut().live.get_mut(resource) {
                live.units = units.len();
            }
            let resource = resource.into();
            agent
                .tell_loop(DeviceNews::Listed { resource, units })
                .await;
        }
        Ok(())
    }

    fn units_of_others(&self, number: u64) -> usize {
        let state = self.state.borrow();
        let others = state.live.values().filter(|live| live.number != number);
        others.map(|live| live.units).sum()
    }

    fn find_plugin(&self, resource: &str) -> Result<PluginConnection, DevicePluginError> {
        let state = self.state.borrow();
        let live = state.live.get(resource);
        let live = live.ok_or_else(|| DevicePluginError::Absent(resource.into()))?;
        Ok(live.plugin.clone())
    }

    /// Asks the plugin what a container gets for these units. Also returns whether it wants to be told before each
    /// start.
    pub(crate) async fn allocate(
        &self,
        resource: &str,
        ids: &[Box<str>],
    ) -> Result<(PluginAllocation, bool), DevicePluginError> {
        let plugin = self.find_plugin(resource)?;
        let began = self.clock.now();
        let answer = plugin
            .allocate(ids)
            .await
            .map_err(|e| plugin_status_error(&e));
        let took = self.clock.now() - began;
        self.counters
            .count_work(|c| c.plugin_counts().count_allocation(resource, took));
        let answer = answer
            .and_then(|a| devices::check_allocate_answer(a).map_err(DevicePluginError::Wrong));
        let answer = answer.map_err(|e| DevicePluginError::Of(resource.into(), Box::new(e)))?;
        Ok((answer, plugin.pre_start))
    }

    /// Returns true if the plugin wants to be told before each start of a container; `None` if it is not there.
    pub(crate) fn wants_starts(&self, resource: &str) -> Option<bool> {
        let state = self.state.borrow();
        state.live.get(resource).map(|live| live.plugin.pre_start)
    }

    /// A container that holds these units is about to start.
    pub(crate) async fn pre_start(
        &self,
        resource: &str,
        ids: &[Box<str>],
    ) -> Result<(), DevicePluginError> {
        let told = self.find_plugin(resource)?.pre_start(ids).await;
        told.map_err(|e| DevicePluginError::Of(resource.into(), Box::new(plugin_status_error(&e))))
    }

    /// Asks the plugin for the units that it would choose; none if it does not say.
    pub(crate) async fn ask_preferred_units(&self, question: PreferenceQuestion) -> PreferredUnits {
        let asked = async {
            let PreferenceQuestion {
                resource,
                available,
                must_include,
                size,
                ..
            } = &question;
            let plugin = self.find_plugin(resource)?;
            let preferred = plugin
                .ask_preferred_allocation(available, must_include, *size)
                .await;
            preferred.map_err(|e| plugin_status_error(&e))
        };
        let ids = asked.await.unwrap_or_else(|why: DevicePluginError| {
            let what = format!("the device plugin of {}, asked", question.resource);
            let text = format!("the device plugin of {}: {why}", question.resource);
            self.complaints.complain_of(&what, &text);
            Vec::new()
        });
        devices::check_preference(question, ids)
    }
}

/// Makes the error of a plugin that answered with a status.
fn plugin_status_error(status: &GrpcStatus) -> DevicePluginError {
    DevicePluginError::Call(devices::escape_message(&status.message))
}
