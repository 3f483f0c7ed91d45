//! `picolet run`: from the command line to the loop, and back. Assembly only, in one place.

use alloc::{rc::Rc, sync::Arc};
use core::{error::Error, time::Duration};
use std::{
    ffi::OsString,
    fs,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};
use smol::LocalExecutor;

use super::{
    admission,
    asker::AgentHandle,
    assembly,
    backend::{self, LocalBackend},
    backends::{self, RuntimeBackend},
    backoff_store,
    checkpoints::CheckpointArchives,
    clock::{Clock, SystemClock},
    cluster::{self, NodeJoinError},
    cluster_views,
    core::{Agent, AgentCommand, AgentEvent},
    cpu_manager, event_loop,
    eviction::gauge::{GaugePaths, MachineGauge},
    executor,
    images::{
        self, ImageCommands, ImageDropInWatcher, ImageGarbageCollector, ImageStock,
        NodeImageHelpers, UnusedImageRequests,
    },
    kernel_log, kernel_settings,
    link_limits::LinkLimits,
    link_policy::{LinkPolicy as _, LinkTools},
    neighbours,
    node::{self, LocalNode},
    parts::{AgentParts, AssemblyInputs},
    pollers,
    recorder::EventSeverity,
    removed::RemovedPods,
    serving,
    start_error::{AgentExitCode, AgentStartError, fatal_error, start_lane, usage_error},
    tasks::box_task,
    vitals::LoopWatch,
};
use crate::{
    api::cri::CgroupDriver,
    cgroup::{CgroupVersion, Cgroups, SYSTEMD_SOCKET, Slices},
    config::{self, AgentConfig, flags::FlagError},
    error::error_chain,
    image::pull::FetchGate,
    kube::join::staged::{self, StageError},
    logic::{node_resources, pod_writes},
    net::ProxyVariables,
    probe::Prober,
    runtime::{CHECKPOINT_DIR, runc},
    server::{LocalListener, backend::ServerBackend},
    sys::{self, file, lock, memory, namespaces, notify::ServiceNotifier, proc},
    volume::Volumes,
};

/// Turns that tasks get after the loop's end.
const LAST_TURNS: usize = 8;

/// Answer to those who know another `run`, as in `podman run IMAGE`.
const RUN_HINT: &str = "'picolet run' runs the node agent. To run a pod, write its manifest into the directory of manifests \
    (staticPodPath, by default /etc/picolet/manifests)";

/// Makes the error of a mistake that the operator has to mend.
fn operator_error(error: &dyn Error) -> AgentStartError {
    usage_error(error_chain(error))
}

/// Environment that a service manager gives its service. Source: sd_notify(3), sd_watchdog_enabled(3).
#[derive(Clone, Debug, Default)]
pub struct ServiceManagerEnv {
    /// `NOTIFY_SOCKET`.
    pub socket: Option<OsString>,
    /// `WATCHDOG_USEC`.
    pub watchdog_usec: Option<OsString>,
    /// `WATCHDOG_PID`: whom the interval is meant for.
    pub watchdog_pid: Option<OsString>,
    /// `HTTP_PROXY` and its companions.
    pub proxies: ProxyVariables,
}

/// Shortest watchdog interval that can be served (SHUT-08).
const MIN_WATCHDOG: Duration = Duration::from_secs(1);

impl ServiceManagerEnv {
    /// Interval in which the manager wants to hear from the agent, if at all.
    fn watchdog_interval(&self) -> Result<Option<Duration>, AgentStartError> {
        let number = |word: &Option<OsString>| -> Option<u64> {
            word.as_ref().and_then(|w| w.to_str())?.parse().ok()
        };
        let own = u64::from(std::process::id());
        if self.watchdog_pid.is_some() && number(&self.watchdog_pid) != Some(own) {
            return Ok(None);
        }
        let Some(asked) = &self.watchdog_usec else {
            return Ok(None);
        };
        let interval = number(&self.watchdog_usec).map(Duration::from_micros);
        match interval.filter(|i| *i > MIN_WATCHDOG) {
            Some(interval) => Ok(Some(interval)),
            None => Err(usage_error(format!(
                "WATCHDOG_USEC={} is too short: set WatchdogSec= to more than a second",
                asked.display()
            ))),
        }
    }
}

/// By which name the agent was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramName {
    /// `picolet run`.
    Picolet,
    /// `kubelet`: by a unit, or somebody, who knows no other one (KADM-02).
    Kubelet,
}

/// `picolet run`, or the same as `kubelet`.
#[must_use]
#[inline(never)]
pub fn agent_main(words: Vec<OsString>, name: ProgramName, manager: ServiceManagerEnv) -> ExitCode {
    memory::start_over_without_thread_caches();
    memory::use_one_arena();
    match start_agent(words, name, manager) {
        Ok(exit) => exit.into(),
        Err(e) => {
            // Nobody may be there to read it.
            let _ = writeln!(io::stderr(), "picolet: {}", e.message);
            match name {
                ProgramName::Picolet => e.exit.into(),
                // A kubelet has no other code.
                ProgramName::Kubelet => AgentExitCode::Failed.into(),
            }
        }
    }
}

fn start_agent(
    words: Vec<OsString>,
    name: ProgramName,
    manager: ServiceManagerEnv,
) -> Result<AgentExitCode, AgentStartError> {
    let Some(loaded) = load_configuration(words, name)? else {
        return Ok(AgentExitCode::Done);
    };
    start_logging(loaded.config.verbosity);
    for warning in &loaded.warnings {
        log::warn!("configuration: {warning}");
    }
    let cfg = loaded.config;
    check_prerequisites()?;
    check_swap(&cfg)?;
    make_dirs(&cfg)?;
    let watchdog = manager.watchdog_interval()?;
    let _locks = lock_dirs(&cfg)?;
    // The power failed in the middle of a join.
    if let Some(file) = &loaded.file
        && let Err(e) = finish_join(file, &cfg, loaded.drop_ins.as_deref())
    {
        log::warn!("cannot finish an interrupted join: {}", error_chain(&e));
    }
    let _neighbours =
        neighbours::claim_exclusive_resources(&cfg).map_err(|e| fatal_error(e.to_string()))?;
    settle_oom_score(cfg.cgroup.oom_score_adj);
    // Before any thread is started: signals are taken by one descriptor.
    let signals = take_signals().map_err(|e| fatal_error(format!("cannot take signals: {e}")))?;
    let proxies = manager.proxies;
    let notify = manager.socket.and_then(|address| {
        ServiceNotifier::connect(&address)
            .map_err(|e| log::warn!("cannot reach the service manager: {e}"))
            .ok()
    });
    let manager = notify.map(|notify| (Rc::new(notify), watchdog));
    let executor = Rc::new(LocalExecutor::new());
    // Not the reactor's own `block_on`: with it two threads take turns at waiting for the kernel, and each tick of an agent
    // at rest wakes the other a dozen times (measured: 17 wake-ups a second instead of 5).
    smol::future::block_on(executor.run(run_until_stopped(
        cfg,
        Rc::clone(&executor),
        signals,
        proxies,
        manager,
    )))
}

fn finish_join(file: &Path, cfg: &AgentConfig, drop_ins: Option<&Path>) -> Result<(), StageError> {
    let alone = staged::lock_join(file);
    let drop_ins = drop_ins.filter(|_| alone.is_ok());
    staged::finish_interrupted_join(file, &staged::join_file_paths(cfg), drop_ins).map(drop)
}

pub(super) fn load_configuration(
    words: Vec<OsString>,
    name: ProgramName,
) -> Result<Option<config::LoadedConfig>, AgentStartError> {
    let cwd = std::env::current_dir()
        .map_err(|e| fatal_error(format!("cannot read the working directory: {e}")))?;
    let is_kubelet = name == ProgramName::Kubelet;
    let flags = config::flags::parse_flags(words, &cwd);
    let mut flags = flags.map_err(|e| match e {
        FlagError::Stray(_) if !is_kubelet => usage_error(format!("{e}: {RUN_HINT}")),
        e => operator_error(&e),
    })?;
    let shown = match (flags.help, flags.version, is_kubelet) {
        (false, false, _) => None,
        // The only line that kubeadm takes (KADM-01).
        (_, true, true) => Some(format!("Kubernetes {}\n", config::KUBELET_VERSION)),
        (_, true, false) => Some(format!("picolet {}\n", crate::VERSION)),
        (true, _, is_kubelet) => {
            let usage = if is_kubelet { "kubelet" } else { "picolet run" };
            let all = config::flags::help_text();
            Some(format!("Usage: {usage} [FLAGS]\n\n{all}"))
        }
    };
    if let Some(text) = shown {
        // A reader that left is no error.
        let _ = io::stdout().write_all(text.as_bytes());
        return Ok(None);
    }
    flags.as_kubelet = is_kubelet;
    let hostname = nix::unistd::gethostname()
        .map_err(|e| fatal_error(format!("cannot read the host name: {e}")))?;
    let host = config::HostIdentity {
        hostname: hostname.to_string_lossy().into_owned(),
    };
    config::load_config(flags, &host)
        .map(Some)
        .map_err(|e| operator_error(&e))
}

pub(super) fn start_logging(verbosity: u8) {
    let level = match verbosity {
        0..=1 => log::LevelFilter::Info,
        2..=4 => log::LevelFilter::Debug,
        _ => log::LevelFilter::Trace,
    };
    // Another logger is there already only in tests.
    let _ = simple_logger::SimpleLogger::new()
        .with_level(level)
        .with_module_level("polling", log::LevelFilter::Warn)
        .with_module_level("async_io", log::LevelFilter::Warn)
        .with_module_level("ureq", log::LevelFilter::Warn)
        .with_module_level("ureq_proto", log::LevelFilter::Warn)
        .with_module_level("rustls", log::LevelFilter::Warn)
        .init();
}

/// Checks what must hold before anything is made.
pub(super) fn check_prerequisites() -> Result<(), AgentStartError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(fatal_error(
            "must run as root: it makes namespaces, mounts and cgroups",
        ));
    }
    match namespaces::in_host_mount_namespace() {
        Ok(true) => Ok(()),
        Ok(false) => Err(fatal_error(
            "runs in a mount namespace of its own, where what it mounts is invisible to the host; \
             start it without PrivateMounts=, PrivateTmp=, ProtectSystem= and the like",
        )),
        // PID 1 may hold a capability that the agent lacks; then its namespace cannot be looked at.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            log::warn!(
                "cannot see the mount namespace of PID 1: mounts made here may be invisible to the host"
            );
            Ok(())
        }
        Err(e) => Err(fatal_error(format!("cannot compare mount namespaces: {e}"))),
    }
}

/// Checks `failSwapOn`.
fn check_swap(cfg: &AgentConfig) -> Result<(), AgentStartError> {
    // The head and one line are enough.
    let mut buffer = [0; 4096];
    let swaps = proc::read_small("/proc/swaps", &mut buffer).unwrap_or_default();
    refuse_swap(swaps, cfg.cgroup.fail_swap_on)
}

/// Refuses to start with swap, if that is asked for. `swaps`: a head, and a line for each, as proc_swaps(5) has them.
fn refuse_swap(swaps: &str, is_asked: bool) -> Result<(), AgentStartError> {
    match swaps.lines().nth(1).filter(|_| is_asked) {
        None => Ok(()),
        Some(first) => Err(fatal_error(format!(
            "swap is on ({}) and failSwapOn is true: run swapoff -a, or set failSwapOn to false",
            first.split_whitespace().next().unwrap_or("")
        ))),
    }
}

/// Finds a group of the operator's that is to be limited and is not there.
fn find_absent_group(cfg: &AgentConfig, cgroups: &Cgroups) -> Option<(&'static str, String)> {
    let mut groups = cfg.cgroup.reserved_groups.iter();
    let group = groups.find(|group| !cgroups.has_group(&group.path))?;
    let (field, path) = (group.field, &group.path);
    Some((field, format!("{field}: there is no control group {path}")))
}

/// Finds a setting that version 1 of control groups cannot fulfil: to end a container as a whole when the kernel kills a
/// process of it for want of memory (OOMW-04).
fn find_impossible_group_kill(
    cfg: &AgentConfig,
    version: CgroupVersion,
) -> Option<(&'static str, String)> {
    let field = "singleProcessOOMKill";
    let wanted = cfg.cgroup.single_process_oom_kill == Some(false);
    (wanted && version == CgroupVersion::V1)
        .then(|| (field, format!("{field}: is false, which needs cgroup v2")))
}

/// Limits groups of the operator's to what is reserved for them (CG-13): they have to be there.
fn limit_reserved(cfg: &AgentConfig, cgroups: &Cgroups) -> Result<(), AgentStartError> {
    if let Some((_, why)) = find_absent_group(cfg, cgroups) {
        return Err(fatal_error(why));
    }
    for group in &cfg.cgroup.reserved_groups {
        let reserved = if group.is_system {
            &cfg.reserved.system
        } else {
            &cfg.reserved.kube
        };
        let values = node_resources::reserved_group(reserved, group.compressible);
        cgroups
            .update_limits(&group.path, &values)
            .map_err(|e| fatal_error(format!("{}: {}", group.field, error_chain(&e))))?;
    }
    Ok(())
}

/// Finds the reasons for which an agent would not start although each value of its configuration is valid: files that
/// cannot be used, an absent control group or processor, reservations that are too large. Each with the place to be corrected.
pub(crate) fn find_start_faults(
    cfg: &AgentConfig,
    cgroups: Option<&Cgroups>,
) -> Vec<(String, String)> {
    let providers =
        images::read_credential_providers(cfg.images.credential_providers.as_ref()).err();
    let providers = providers.map(|e| ("picolet.imageCredentialProviderConfig", error_chain(&e)));
    let files = serving::find_unusable_files(&cfg.server).into_iter();
    let kept = node::read_machine_facts(cfg).err();
    let kept = kept.map(|e| ("systemReserved or kubeReserved", error_chain(&e)));
    let group = cgroups.and_then(|cgroups| find_absent_group(cfg, cgroups));
    let kill = cgroups.and_then(|c| find_impossible_group_kill(cfg, c.cgroup_version()));
    let cpus = cpu_manager::find_machine_cpus(cfg).err();
    let all = files.chain(providers).chain(kept).chain(group).chain(kill);
    let all = all.chain(cpus);
    all.map(|(place, why)| (place.to_owned(), why)).collect()
}

/// Checks `picolet.podWriteLimit`.
fn check_write_limit(cfg: &AgentConfig, cgroups: &Cgroups) -> Result<(), AgentStartError> {
    let can = || executor::find_limitable_disk(cgroups, &cfg.dirs.root).is_some();
    if cfg.cgroup.pod_write_limit.is_none() || can() {
        return Ok(());
    }
    Err(usage_error(format!(
        "picolet.podWriteLimit: {}",
        pod_writes::CANNOT_LIMIT
    )))
}

fn make_dirs(cfg: &AgentConfig) -> Result<(), AgentStartError> {
    let dirs = &cfg.dirs;
    let make = |path: &Path, mode: u32| {
        file::make_dirs(path, mode)
            .map_err(|e| fatal_error(format!("cannot make {}: {e}", path.display())))
    };
    make(&dirs.root, 0o750)?;
    make(&dirs.run, 0o755)?;
    make(&dirs.pod_logs, 0o750)?;
    make(&dirs.container_logs, 0o755)?;
    make(&dirs.image_drop_in, 0o755)
}

/// Locks the root and the run directory, one agent each; held for the agent's life.
pub(super) fn lock_dirs(cfg: &AgentConfig) -> Result<[fs::File; 2], AgentStartError> {
    let take = |dir: &Path| {
        let path = dir.join("picolet.lock");
        match lock::try_lock_patiently(&path) {
            Ok(Some(file)) => Ok(file),
            Ok(None) => Err(fatal_error(format!(
                "another picolet uses {}: end it, or give this one a directory of its own",
                dir.display()
            ))),
            Err(e) => Err(fatal_error(format!("cannot lock {}: {e}", path.display()))),
        }
    };
    Ok([take(&cfg.dirs.root)?, take(&cfg.dirs.run)?])
}

/// Sets the agent's own OOM score as far as this machine allows, and says so once if it does not.
fn settle_oom_score(wanted: i32) {
    match sys::limits::set_oom_score_adj(wanted) {
        Ok(set) if set == wanted => {}
        Ok(set) => log::warn!(
            "oom_score_adj {wanted} is not allowed here (CAP_SYS_RESOURCE is missing): {set} is used"
        ),
        Err(e) => log::warn!("cannot set oom_score_adj: {e}"),
    }
}

fn take_signals() -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        set.add(signal);
    }
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

async fn run_until_stopped(
    cfg: AgentConfig,
    executor: Rc<LocalExecutor<'static>>,
    signals: SignalFd,
    proxies: ProxyVariables,
    manager: Option<(Rc<ServiceNotifier>, Option<Duration>)>,
) -> Result<AgentExitCode, AgentStartError> {
    let (sender, events) = smol::channel::bounded(event_loop::EVENT_QUEUE);
    let (relist, relist_asked) = smol::channel::bounded(1);
    let asker = AgentHandle::new(sender.clone());
    let (unused_images, images_asked) = smol::channel::bounded(1);
    let (parts, stock) = Box::pin(assemble_agent(
        cfg,
        proxies.clone(),
        &executor,
        unused_images,
    ))
    .await?;
    // The local socket comes last but one: whoever reaches it reaches a whole agent.
    let listener = LocalListener::bind(&parts.cfg.dirs.socket).map_err(|e| {
        fatal_error(format!(
            "cannot listen at {}: {e}",
            parts.cfg.dirs.socket.display()
        ))
    })?;
    let (commands, asked) = smol::channel::bounded(4);
    let backend: Rc<dyn ServerBackend> = Rc::new(LocalBackend {
        agent: asker.clone(),
        recorder: Rc::clone(&parts.tools.recorder),
        node: Rc::clone(&parts.owners.node),
        metrics: assembly::make_metrics_reader(&parts, asker.clone()),
        store: parts.machine.store.clone(),
        clock: Rc::clone(&parts.tools.clock),
        runtime: Rc::clone(&parts.machine.runtime),
        disk: parts.machine.disk.clone(),
        images: ImageCommands {
            images: Rc::clone(&parts.owners.images),
            stock: stock.clone(),
            runtime: Rc::clone(&parts.machine.runtime),
        },
        evictor: assembly::make_evictor(
            &parts,
            Rc::new(assembly::make_garbage_collector(&parts, asker.clone())),
        ),
        heap: parts.tools.heap.clone(),
        removed: RemovedPods::default(),
        complaints: Rc::clone(&parts.tools.complaints),
        commands,
        settings: backend::LocalBackendSettings {
            document: parts.cfg.document.clone(),
            run_dir: parts.cfg.dirs.run.clone(),
            streaming_idle: parts.cfg.times.streaming_idle,
            started_at: parts.started_at,
            node_made_at: backend::find_node_age(&parts.cfg.dirs.root, parts.started_at),
            started: parts.started,
            kubelet_version: parts.cfg.node.kubelet_version.clone(),
            external: parts.machine.external.clone(),
            checkpoints: CheckpointArchives::new(parts.cfg.dirs.root.join(CHECKPOINT_DIR)),
            link_policy: Rc::clone(&parts.owners.link_policy),
            link_limits: parts.owners.link_limits.clone(),
            parts: parts.cfg.parts.clone(),
            times: Rc::clone(&parts.tools.times),
            loop_watch: parts.tools.loop_watch.clone(),
            resources: parts.machine.resources.clone(),
        },
    });
    let served = assembly::gather_served_parts(&parts, Rc::clone(&backend));
    let served = serving::prepare_serving(served, &executor).map_err(|e| operator_error(&e))?;
    let spawn = |task| executor.spawn(task).detach();
    // First, so that it is done when the first pod is read.
    let tiers = parts.machine.pod_cgroups.clone();
    spawn(box_task(tiers.enforce_allocatable(
        Rc::clone(&parts.tools.clock),
        Rc::clone(&parts.tools.recorder),
    )));
    let driver = assembly::make_pod_driver(&parts);
    assembly::external_pod_tasks(&parts, &sender)
        .into_iter()
        .for_each(spawn);
    let read = pollers::poller_tasks(&parts, Rc::clone(&driver), relist_asked, &sender);
    read.into_iter().for_each(spawn);
    assembly::manifest_dir_task(&parts, &sender)
        .into_iter()
        .for_each(spawn);
    assembly::manifest_url_task(&parts, proxies.clone(), &sender, || {
        start_lane("manifest-url")
    })?
    .into_iter()
    .for_each(spawn);
    // Behind all that can refuse the start: the note of an undone upgrade is told once.
    assembly::start_parts(&parts, &proxies, served.network, &executor, asker.clone())
        .into_iter()
        .for_each(spawn);
    if let ImageStock::Own(store) = &stock {
        let directory = ImageDropInWatcher {
            images: Rc::clone(&parts.owners.images),
            store: store.clone(),
            path: parts.cfg.dirs.image_drop_in.clone(),
            doorbells: parts.cfg.doorbells,
        };
        let arrived = sender.clone();
        spawn(box_task(directory.watch_directory(async move || {
            arrived.send(AgentEvent::ImagesArrived).await.is_ok()
        })));
    }
    let garbage = ImageGarbageCollector::new(
        &parts.cfg.images,
        Rc::clone(&parts.owners.images),
        stock,
        Rc::clone(&parts.machine.runtime),
        Box::new({
            let recorder = Rc::clone(&parts.tools.recorder);
            move |reason, message| {
                recorder.record_node_event(EventSeverity::Warning, reason, message)
            }
        }),
    );
    spawn(box_task(garbage.run_collector(images_asked)));
    assembly::memory_notice_task(&parts, &sender)
        .into_iter()
        .for_each(spawn);
    assembly::shutdown_watch_task(&parts, &sender)
        .into_iter()
        .for_each(spawn);
    if let Some(rotation) = assembly::make_log_rotation(&parts, asker.clone()) {
        spawn(box_task(rotation.run_log_rotation()));
    }
    assembly::write_watch_task(&parts, asker.clone())
        .into_iter()
        .for_each(spawn);
    let probes = assembly::make_probe_driver(&parts, asker, sender.clone());
    probes.restore_passed_probes();
    spawn(box_task(probes.drive_probes(Rc::clone(&executor))));
    spawn(box_task(
        listener.serve_local(backend, Rc::clone(&executor)),
    ));
    served.tasks.into_iter().for_each(spawn);
    spawn(box_task(forward_commands(asked, sender.clone())));
    spawn(box_task(wait_for_signal(signals, sender.clone())));
    let notify = manager.as_ref().map(|(notify, _)| &**notify);
    notify_manager(notify, ServiceNotifier::send_ready);
    if let Some((notify, Some(interval))) = &manager {
        spawn(box_task(feed_watchdog(
            Rc::clone(&parts.tools.clock),
            parts.tools.loop_watch.clone(),
            Rc::clone(notify),
            *interval,
        )));
    }
    log::info!(
        "picolet {} runs node {}",
        crate::VERSION,
        parts.owners.node.name
    );
    let network = &parts.cfg.network;
    let resolver = network.resolv_conf.as_deref();
    if let Some(why) =
        resolver.and_then(|it| executor::resolver_warning(it, &network.cluster_domain))
    {
        let recorder = &parts.tools.recorder;
        recorder.record_node_event(EventSeverity::Warning, "CheckLimitsForResolvConf", &why);
    }
    spawn(box_task(kernel_log::watch_kernel_log(Rc::clone(
        &parts.tools.recorder,
    ))));
    cluster_views::cluster_tasks(&parts, &executor, &sender)
        .into_iter()
        .for_each(spawn);
    assembly::link_budget_task(&parts)
        .into_iter()
        .for_each(spawn);
    assembly::node_address_task(&parts)
        .into_iter()
        .for_each(spawn);
    let delays = backoff_store::restore_backoffs(&parts.cfg.dirs.run);
    let resources = assembly::find_node_resources(&parts);
    let agent = Agent::new(&parts, relist.clone(), delays, resources);
    assembly::resource_tasks(&parts, &sender)
        .into_iter()
        .for_each(spawn);
    assembly::resource_servers(&parts, &executor, &sender)
        .map_err(|e| fatal_error(e.to_string()))?
        .into_iter()
        .for_each(spawn);
    let hands = assembly::make_effect_runner(&parts, &driver, &executor, &sender, relist);
    event_loop::run_event_loop(agent, hands, parts.tools.loop_watch.clone(), events).await;
    notify_manager(notify, ServiceNotifier::send_stopping);
    for part in &parts.owners.parts {
        part.stop().await;
    }
    // Who asked for the end gets an answer: it is ready, and its task has to be polled once more.
    for _ in 0..LAST_TURNS {
        smol::future::yield_now().await;
    }
    let _ = fs::remove_file(&parts.cfg.dirs.socket);
    if let Some(limits) = &parts.owners.link_limits {
        let saved = limits.save_budget();
        saved.unwrap_or_else(|e| log::warn!("cannot store the link's budget: {e}"));
    }
    if let Some(why) = parts
        .owners
        .cluster
        .as_ref()
        .and_then(|c| c.agent_end_reason())
    {
        return Err(fatal_error(why));
    }
    log::info!("picolet ends; pods go on");
    Ok(AgentExitCode::Done)
}

fn notify_manager(notify: Option<&ServiceNotifier>, what: fn(&ServiceNotifier) -> io::Result<()>) {
    if let Some(Err(e)) = notify.map(what) {
        log::warn!("cannot notify the service manager: {e}");
    }
}

/// Pause before a message to the service manager that could not be sent is sent once more.
const NOTIFY_RETRY: Duration = Duration::from_secs(1);

/// Tells the service manager that the agent is alive, twice an interval, as long as the loop moves (SHUT-08). This task
/// runs on the loop's thread: when that is stuck, nothing is told either.
async fn feed_watchdog(
    clock: Rc<dyn Clock>,
    loop_watch: LoopWatch,
    notify: Rc<ServiceNotifier>,
    interval: Duration,
) {
    loop {
        let next = clock.now() + interval / 2;
        if loop_watch.is_healthy(clock.now()) {
            if notify.send_watchdog().is_err() {
                clock.sleep_until(clock.now() + NOTIFY_RETRY).await;
                notify_manager(Some(&notify), ServiceNotifier::send_watchdog);
            }
        } else {
            log::error!("the event loop is stuck: the service manager gets no watchdog message");
        }
        clock.sleep_until(next).await;
    }
}

/// Makes what the agent is put together from.
async fn assemble_agent(
    mut cfg: AgentConfig,
    proxies: ProxyVariables,
    executor: &Rc<LocalExecutor<'static>>,
    unused_images: UnusedImageRequests,
) -> Result<(AgentParts, ImageStock), AgentStartError> {
    let mut cgroups = Cgroups::detect().map_err(|e| fatal_error(error_chain(&e)))?;
    if cfg.cgroup.fail_cgroup_v1 && cgroups.cgroup_version() != CgroupVersion::V2 {
        return Err(fatal_error(
            "this machine uses cgroup v1 and failCgroupV1 is true: boot with cgroup v2, or set failCgroupV1 to false",
        ));
    }
    if let Some((_, why)) = find_impossible_group_kill(&cfg, cgroups.cgroup_version()) {
        return Err(fatal_error(why));
    }
    let cpus = cpu_manager::find_machine_cpus(&cfg).map_err(|(_, why)| fatal_error(why))?;
    kernel_settings::apply_kernel_settings(
        Path::new(kernel_settings::DIR),
        cfg.cgroup.protect_kernel_defaults,
    )
    .map_err(|e| fatal_error(e.to_string()))?;
    limit_reserved(&cfg, &cgroups)?;
    check_write_limit(&cfg, &cgroups)?;
    let missing = cgroups.missing_controllers();
    if !missing.is_empty() {
        log::warn!(
            "cgroup controllers are missing: {}; pods with limits of these do not start",
            missing.join(", ")
        );
    }
    neighbours::check_backend(&cfg, &cgroups).map_err(|e| fatal_error(e.to_string()))?;
    let joined = cluster::join_cluster(&cfg, proxies.clone()).map_err(|e| match e {
        NodeJoinError::Usage(why) => usage_error(why),
        NodeJoinError::Failed(why) => fatal_error(why),
    })?;
    let clock = SystemClock::new().map_err(|e| fatal_error(format!("timer: {e}")))?;
    executor.spawn(box_task(clock.clone().drive())).detach();
    let disk = start_lane("disk")?;
    let host = runc::host::read_host_facts(&cgroups);
    let (kernel, apparmor) = (host.kernel, host.apparmor);
    let pulls = images::read_pull_settings(&cfg.images, &cfg.dirs, proxies);
    let mut pulls = pulls.map_err(|e| operator_error(&e))?;
    let shared: Rc<dyn Clock> = Rc::new(clock.clone());
    let peer = joined.as_ref().map(|joined| Arc::clone(&joined.peer));
    let peer = peer.unwrap_or_default();
    let tools = LinkTools {
        clock: Rc::clone(&shared),
        way: Box::new(move || peer.outgoing_interface()),
        root: cfg.dirs.root.clone(),
    };
    let link = LinkLimits::open(&cfg.link, tools);
    let budget = link.as_ref().and_then(|link| link.pull_budget());
    pulls.gate = budget.map(|budget| budget as Arc<dyn FetchGate>);
    let tools = backends::BackendTools {
        executor,
        disk: disk.clone(),
        cgroups: cgroups.clone(),
        host,
    };
    let RuntimeBackend {
        runtime,
        keyring,
        stock,
        images,
        layers,
        driver,
    } = backends::open_backend(&cfg, pulls, tools).await?;
    cfg.use_cgroup_driver(driver);
    if driver == CgroupDriver::Systemd {
        cgroups = use_systemd_slices(cgroups)?;
    }
    if let Err(e) = neighbours::record_backend(&cfg) {
        log::warn!("cannot store which container runtime runs the pods: {e}");
    }
    let mut parts = cfg.parts.iter();
    let external = parts.find_map(|part| part.external_pods(&cfg.node_name, &shared));
    let facts = node::read_machine_facts(&cfg).map_err(|e| operator_error(&e))?;
    let volumes =
        Volumes::new(&cfg.dirs.root).map_err(|e| fatal_error(format!("pod directories: {e}")))?;
    let context = executor::gather_node_context(
        &cfg,
        &facts,
        executor::cgroup_settings(&cfg, &facts, &cgroups),
    );
    let admission =
        admission::gather_admission_facts(&cfg, &facts, kernel, apparmor, &runtime.capabilities());
    let admission = admission.map_err(|e| operator_error(&e))?;
    let kubepods = cfg.cgroup.tree.kubepods_path();
    let places = GaugePaths::new(
        &cfg.dirs.root,
        images,
        layers,
        kubepods,
        &facts,
        cfg.eviction.counts_kernel,
    );
    let gauge = MachineGauge {
        cgroups: cgroups.clone(),
        disk: disk.clone(),
        clock: shared,
        places: Arc::new(places),
    };
    let parts = AgentParts::new(AssemblyInputs {
        link,
        gauge: Rc::new(gauge),
        node: Rc::new(LocalNode::new(facts, node::addresses, context, admission)),
        clock: Box::new(clock),
        joined,
        wire: Rc::new(Prober::default()),
        runtime,
        external,
        images: NodeImageHelpers {
            keyring,
            unused: Some(unused_images),
        },
        boot_id: proc::boot_id().map_err(|e| fatal_error(format!("boot id: {e}")))?,
        cpus,
        volumes,
        cgroups,
        disk,
        cfg,
    });
    Ok((parts, stock))
}

/// Groups of pods are slices from now on.
fn use_systemd_slices(cgroups: Cgroups) -> Result<Cgroups, AgentStartError> {
    const HINT: &str = "set SystemdCgroup = false (containerd), or cgroup_manager = \"cgroupfs\" and \
                        conmon_cgroup = \"pod\" (CRI-O), and cgroupDriver: cgroupfs";
    let slices = Slices::at_socket(SYSTEMD_SOCKET, start_lane("systemd")?);
    if cgroups.cgroup_version() != CgroupVersion::V2 {
        return Err(fatal_error(format!(
            "cgroup driver systemd: this machine uses cgroup v1: boot with cgroup v2, or {HINT}"
        )));
    }
    if !slices.has_systemd() {
        return Err(fatal_error(format!(
            "cgroup driver systemd: no systemd listens at {SYSTEMD_SOCKET}: {HINT}"
        )));
    }
    Ok(cgroups.with_systemd_slices(slices))
}

async fn forward_commands(
    asked: smol::channel::Receiver<AgentCommand>,
    events: smol::channel::Sender<AgentEvent>,
) {
    while let Ok(command) = asked.recv().await {
        if events.send(AgentEvent::Command(command)).await.is_err() {
            return;
        }
    }
}

async fn wait_for_signal(signals: SignalFd, events: smol::channel::Sender<AgentEvent>) {
    let Ok(signals) = async_io::Async::new_nonblocking(signals) else {
        return;
    };
    loop {
        if signals.readable().await.is_err() {
            return;
        }
        if let Ok(Some(signal)) = signals.get_ref().read_signal() {
            log::info!("signal {} received", signal.ssi_signo);
            let _ = events.send(AgentEvent::Terminate).await;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::{
        agent::tests::world::{Hands, TestClock},
        testing::TestDir,
    };

    #[test]
    fn the_service_manager_hears_nothing_of_a_loop_that_does_not_move() {
        // SVC-05 SHUT-08
        const MINUTE: Duration = Duration::from_secs(60);
        let dir = TestDir::new("watchdog");
        let path = dir.join("manager");
        let manager = UnixDatagram::bind(&path).expect("bind");
        manager.set_nonblocking(true).expect("mode");
        let notify = ServiceNotifier::connect(path.as_os_str()).expect("connect");
        let hands = Rc::new(Hands::default());
        let watch = LoopWatch::new(MINUTE);
        let executor = LocalExecutor::new();
        let task = executor.spawn(feed_watchdog(
            Rc::new(TestClock(Rc::clone(&hands))),
            watch.clone(),
            Rc::new(notify),
            MINUTE,
        ));
        let heard_after = |time: Duration| {
            hands.set(hands.now() + time);
            while executor.try_tick() {}
            let mut buffer = [0; 64];
            let mut heard = Vec::new();
            while let Ok(count) = manager.recv(&mut buffer) {
                heard.push(String::from_utf8_lossy(&buffer[..count]).into_owned());
            }
            heard
        };
        watch.note_loop_turn(hands.now());
        assert_eq!(heard_after(Duration::ZERO), ["WATCHDOG=1"]);
        // The loop counts as stuck after five minutes.
        for _ in 0..10 {
            assert_eq!(heard_after(MINUTE / 2), ["WATCHDOG=1"]);
        }
        for _ in 0..10 {
            assert_eq!(heard_after(MINUTE / 2), [""; 0]);
        }
        watch.note_loop_turn(hands.now());
        assert_eq!(heard_after(MINUTE / 2), ["WATCHDOG=1"]);
        drop(task);
    }

    #[test]
    fn those_who_know_another_run_are_told_what_this_one_is() {
        // CLI-02
        let told = |name| {
            let refused = load_configuration(vec!["nginx".into()], name);
            refused.expect_err("refused").message
        };
        let own = told(ProgramName::Picolet);
        assert!(
            own.starts_with("unexpected argument \"nginx\": 'picolet run' runs the node agent")
        );
        assert!(own.contains("/etc/picolet/manifests"), "{own}");
        assert_eq!(told(ProgramName::Kubelet), "unexpected argument \"nginx\"");
    }

    #[test]
    fn reasons_not_to_start_are_found_beforehand() {
        // OOMW-04 CONF-13
        let dir = TestDir::new("start-faults");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let loaded = |text: &str| {
            let file = dir.join("c.yaml");
            fs::write(&file, format!("{head}{text}")).expect("written");
            let flags = config::flags::CommandLineFlags {
                config: Some(file),
                ..config::flags::CommandLineFlags::default()
            };
            let host = config::HostIdentity {
                hostname: "board".into(),
            };
            config::load_config(flags, &host).expect("valid").config
        };
        let faults = |text: &str| find_start_faults(&loaded(text), None);
        for (text, version, is_fault) in [
            ("", CgroupVersion::V1, false),
            ("singleProcessOOMKill: true\n", CgroupVersion::V1, false),
            ("singleProcessOOMKill: false\n", CgroupVersion::V1, true),
            ("singleProcessOOMKill: false\n", CgroupVersion::V2, false),
        ] {
            let found = find_impossible_group_kill(&loaded(text), version);
            assert_eq!(found.is_some(), is_fault, "{text:?} {version:?}");
        }
        assert_eq!(faults(""), []);
        // The kernel's highest number.
        let found = faults("reservedSystemCPUs: '8191'\n");
        let absent = |(place, why): &(String, String)| {
            place == "reservedSystemCPUs" && why.contains("not on-line: 8191; on-line are 0")
        };
        assert!(found.iter().any(absent), "{found:?}");
        let found = faults(
            "systemReserved: {memory: 999Ti}\ntlsCertFile: no.crt\ntlsPrivateKeyFile: no.key\n\
             authentication: {x509: {clientCAFile: no.ca}}\nauthorization: {mode: AlwaysAllow}\n\
             picolet: {imageCredentialProviderConfig: no.yaml, imageCredentialProviderBinDir: bin}\n",
        );
        let places = [
            ("authentication.x509.clientCAFile", "no.ca"),
            ("tlsCertFile or tlsPrivateKeyFile", "no.crt"),
            ("picolet.imageCredentialProviderConfig", "no.yaml"),
            ("systemReserved or kubeReserved", "of memory"),
        ];
        assert_eq!(found.len(), places.len(), "{found:?}");
        for ((place, why), (want, part)) in found.iter().zip(places) {
            assert!(place == want && why.contains(part), "{place}: {why}");
        }
    }

    #[test]
    fn swap_is_refused_if_that_is_asked_for() {
        // SWP-03
        let head = "Filename Type Size Used Priority\n";
        let one = format!("{head}/dev/zram0 partition 524284 0 100\n");
        assert!(refuse_swap(head, true).is_ok());
        assert!(refuse_swap(&one, false).is_ok());
        let refused = refuse_swap(&one, true).expect_err("swap").to_string();
        assert!(
            refused.contains("swap is on (/dev/zram0) and failSwapOn is true"),
            "{refused}"
        );
    }
}
