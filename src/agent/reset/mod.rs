//! `picolet reset`: removes everything that agents made with one configuration. Files of an operator stay: manifests,
//! the configuration, archives in the drop-in directory, seccomp profiles.
//!
//! The reset goes on after an error of a step, and each step may be repeated: the next reset finishes one that was
//! interrupted.
//!
//! Pods get the grace of their manifests. Only an agent runs their hooks: with `--stop` a running agent is told to end
//! the pods first.

mod files;
mod survey;

use alloc::{rc::Rc, sync::Arc};
use core::{cell::Cell, error::Error, future::poll_fn, task::Poll, time::Duration};
use std::{
    ffi::OsString,
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use smol::{LocalExecutor, Timer, future::FutureExt as _};

use super::{
    backends, executor::join_all, neighbours, pod_store::PodStore, run,
    start_error::AgentStartError,
};
use crate::{
    api::{
        Pod,
        cri::{CgroupDriver, PodRuntimeStatus},
    },
    cgroup::{CgroupError, Cgroups, SYSTEMD_SOCKET, Slices},
    config::{AgentConfig, RuntimeEndpoints},
    error::error_chain,
    image::pull::PullSettings,
    logic::{cgroup::CgroupTree, kill, static_pod},
    runtime::{
        LogRetention, RuntimeError, RuntimeService,
        runc::{self, Runc, apparmor, cni, store_images::StoreImages},
    },
    sys::{clock, lane::Lane, proc},
    volume::{VolumeError, Volumes},
};

/// Number of tries to take the locks of an agent that was told to end, and the pause between them: its process outlives
/// its answer by the time a process takes to exit.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// Options of a reset.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResetOptions {
    /// Set if images stay.
    pub keep_images: bool,
    /// Most seconds that a pod gets to end.
    pub grace_s: Option<i64>,
}

/// A reset that is looked at: nothing is locked, made or removed.
#[derive(Clone)]
pub struct ResetPlan {
    pub(crate) cfg: AgentConfig,
    choice: ResetOptions,
}

/// A reset that may begin: no agent uses these directories, and none can start until it is over.
pub struct LockedReset {
    reset: ResetPlan,
    _locks: [fs::File; 2],
    _neighbours: Vec<fs::File>,
}

/// Reason why a reset cannot begin: one line for the operator.
#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    /// The flags or the configuration are wrong, this is not root, or an agent or a kubelet uses what would be removed.
    #[error("{0}")]
    Refused(String),
    /// A directory cannot be used.
    #[error("{}", .0.display())]
    Dir(PathBuf, #[source] io::Error),
}

impl From<AgentStartError> for ResetError {
    fn from(error: AgentStartError) -> Self {
        Self::Refused(error_chain(&error))
    }
}

impl ResetPlan {
    /// Makes the reset of everything that the agent with the flags `words` made.
    ///
    /// # Errors
    /// The flags or the configuration are wrong, or this is not root.
    pub fn new(words: Vec<OsString>, choice: ResetOptions) -> Result<Self, ResetError> {
        let Some(loaded) = run::load_configuration(words, run::ProgramName::Picolet)? else {
            let why = "this command has no --help";
            return Err(ResetError::Refused(why.into()));
        };
        let mut cfg = loaded.config;
        run::start_logging(cfg.verbosity);
        log::set_max_level(log::LevelFilter::Warn);
        run::check_prerequisites()?;
        // The mount table has real paths only.
        for dir in [&mut cfg.dirs.root, &mut cfg.dirs.run] {
            if let Ok(real) = fs::canonicalize(&*dir) {
                *dir = real;
            }
        }
        Ok(Self { cfg, choice })
    }

    /// Lists the things to remove, one thing a line; empty if there are none.
    #[must_use]
    pub fn list_removals(&self) -> Vec<String> {
        survey::removal_lines(&self.cfg, self.choice.keep_images)
    }

    /// Socket on which an agent of this configuration listens.
    #[must_use]
    pub fn agent_socket(&self) -> &Path {
        &self.cfg.dirs.socket
    }

    /// Returns true if an agent of this configuration runs.
    #[must_use]
    pub fn is_agent_running(&self) -> bool {
        files::is_locked(&self.cfg.dirs.root) || files::is_locked(&self.cfg.dirs.run)
    }

    /// Takes the locks of the agent; with `wait` an agent that is ending is waited for.
    ///
    /// # Errors
    /// An agent or a kubelet uses what would be removed, or the directories cannot be used.
    pub fn lock_dirs(mut self, wait: bool) -> Result<LockedReset, ResetError> {
        for dir in [&mut self.cfg.dirs.root, &mut self.cfg.dirs.run] {
            let real = fs::create_dir_all(&*dir).and_then(|()| fs::canonicalize(&*dir));
            *dir = real.map_err(|e| ResetError::Dir(dir.clone(), e))?;
        }
        let mut tries = if wait { LOCK_TRIES } else { 1 };
        loop {
            tries -= 1;
            let claim = || {
                let claimed = neighbours::claim_exclusive_resources(&self.cfg);
                claimed.map_err(|e| ResetError::Refused(e.to_string()))
            };
            let locks = run::lock_dirs(&self.cfg).map_err(ResetError::from);
            match locks.and_then(|locks| Ok((locks, claim()?))) {
                Ok((locks, neighbours)) => {
                    return Ok(LockedReset {
                        reset: self,
                        _locks: locks,
                        _neighbours: neighbours,
                    });
                }
                Err(e) if tries == 0 => return Err(e),
                Err(_) => smol::block_on(async { Timer::after(LOCK_PAUSE).await }),
            };
        }
    }
}

impl LockedReset {
    /// Removes everything.
    ///
    /// Errors: the things that could not be removed, one line each; the rest was tried.
    pub fn carry_out(self) -> Result<(), Vec<String>> {
        smol::block_on(self.reset.remove_all())
    }
}

impl ResetPlan {
    async fn remove_all(&self) -> Result<(), Vec<String>> {
        let cfg = &self.cfg;
        let mut left = UnremovedItems::default();
        match self.open_cgroups() {
            Ok(cgroups) => {
                left.note_failure("containers", self.remove_runtime(cgroups.clone()).await);
                // Groups that the runtime does not know of; this also ends their processes.
                for path in cgroup_paths(cfg) {
                    left.note_failure(&path, cgroups.destroy_group(&path).await);
                }
                let parent = cfg.cgroup.tree.root.trim_end_matches('/');
                if !parent.is_empty() {
                    // Made by the agent, or by the operator for it alone.
                    cgroups.remove_empty_group(parent);
                }
            }
            Err(e) => left.note_failure("cgroups", Err(e)),
        }
        left.note_failure("volumes", remove_volumes(cfg));
        // The root directory says what parts have made.
        for part in &cfg.parts {
            left.0.extend(part.remove_remains().await);
        }
        left.0.extend(crate::parts::remove_remains().await);
        left.note_failure("the run directory", files::remove_run(&cfg.dirs.run));
        let images = !self.choice.keep_images;
        let root = files::remove_root(&cfg.dirs.root, images);
        left.note_failure("the root directory", root);
        let logs = files::remove_logs(&cfg.dirs.pod_logs, &cfg.dirs.container_logs);
        left.note_failure("logs", logs);
        left.note_failure("iptables", cni::forget_port_chains().await);
        left.note_failure("AppArmor", apparmor::unload_free_profiles());
        neighbours::remove_lock_files(cfg);
        if left.0.is_empty() {
            Ok(())
        } else {
            Err(left.0)
        }
    }

    /// Opens the cgroups of the machine. Slices are systemd's, where it is there.
    fn open_cgroups(&self) -> Result<Cgroups, CgroupError> {
        let cgroups = Cgroups::detect()?;
        if self.cfg.runtime.endpoints.is_none() {
            return Ok(cgroups);
        }
        let lane = Lane::start("systemd").map_err(|source| CgroupError::Io {
            path: SYSTEMD_SOCKET.into(),
            source,
        })?;
        let slices = Slices::at_socket(SYSTEMD_SOCKET, lane);
        Ok(match slices.has_systemd() {
            true => cgroups.with_systemd_slices(slices),
            false => cgroups,
        })
    }

    /// Ends and removes everything in the records of the run directory: containers, networks, namespaces, the bridge.
    async fn remove_runtime(&self, cgroups: Cgroups) -> Result<(), RuntimeError> {
        if let Some(endpoints) = &self.cfg.runtime.endpoints {
            return self.empty_runtime(endpoints, cgroups).await;
        }
        let runtime = self.open_runtime(cgroups).await?;
        self.end_pods(&runtime).await?;
        runtime.reset_backend().await
    }

    /// Opens the runtime of this machine's containers, to end and remove the remaining ones.
    pub(crate) async fn open_runtime(&self, cgroups: Cgroups) -> Result<Runc, RuntimeError> {
        let failed = |e: &dyn Error| RuntimeError::Failed(error_chain(e));
        let cfg = &self.cfg;
        let exe = fs::File::open("/proc/self/exe").map_err(|e| failed(&e))?;
        let host = runc::host::read_host_facts(&cgroups);
        let settings = backends::runc_settings(cfg, host, Arc::new(OwnedFd::from(exe)));
        let lane = Lane::start("disk").map_err(|e| failed(&e))?;
        // The backend needs images only to make containers.
        let store = cfg.dirs.run.join("no-images");
        let opened = StoreImages::open(store, PullSettings::default(), lane.clone(), lane.clone());
        let images = opened.await.map_err(|e| failed(&e))?;
        Runc::open(settings, Box::new(images), lane, cgroups).await
    }

    /// Ends and removes all pods of a runtime that another program runs; its images stay.
    async fn empty_runtime(
        &self,
        endpoints: &RuntimeEndpoints,
        cgroups: Cgroups,
    ) -> Result<(), RuntimeError> {
        let failed = |e: &dyn Error| RuntimeError::Failed(error_chain(e));
        let disk = Lane::start("disk").map_err(|e| failed(&e))?;
        let executor = Rc::new(LocalExecutor::new());
        let tools = backends::BackendTools {
            executor: &executor,
            disk,
            host: runc::host::read_host_facts(&cgroups),
            cgroups,
        };
        let emptied = async {
            let runtime = backends::open_endpoint(&self.cfg, endpoints, &tools).await?;
            for pod in self.end_pods(&*runtime).await? {
                for container in &pod.containers {
                    runtime
                        .remove_container(&container.id, LogRetention::Remove)
                        .await?;
                }
                for sandbox in &pod.sandboxes {
                    runtime.remove_pod_sandbox(&sandbox.id).await?;
                }
            }
            Ok(())
        };
        executor.run(emptied).await
    }

    /// Ends all pods as far as they can be ended; the following steps kill the rest.
    async fn end_pods(
        &self,
        runtime: &dyn RuntimeService,
    ) -> Result<Vec<PodRuntimeStatus>, RuntimeError> {
        let mut pods = Vec::new();
        for pod in runtime.list_pods().await? {
            pods.push(runtime.pod_status(&pod.uid).await?);
        }
        let store = PodStore::new(
            &self.cfg.dirs.root,
            &self.cfg.dirs.run,
            &proc::boot_id().unwrap_or_default(),
        );
        join_all(pods.iter().map(|pod| self.end_pod(runtime, &store, pod))).await;
        Ok(pods)
    }

    /// Ends a pod's containers as its manifest asks, but for its hooks.
    pub(crate) async fn end_pod(
        &self,
        runtime: &dyn RuntimeService,
        store: &PodStore,
        status: &PodRuntimeStatus,
    ) {
        let record = store.read_record::<serde_json::Value>(&status.uid).ok();
        // A pod without a record is ended as the agent ends one that only the runtime knows.
        let pod = record.and_then(|(_, raw)| static_pod::decode_recorded_pod(&raw).ok());
        let mut plan = pod.as_ref().map_or_else(
            || kill::plan_runtime_pod_kill(status, kill::RUNTIME_ONLY_GRACE_S),
            |pod: &Pod| kill::plan_pod_kill(pod, status, None),
        );
        let most = self.choice.grace_s.unwrap_or(i64::MAX);
        for target in &mut plan.containers {
            target.grace_s = target.grace_s.min(most);
        }
        let most = Duration::from_secs(u64::try_from(most).unwrap_or(0));
        let started = clock::mono_now();
        let ended: Rc<[Cell<bool>]> = plan.containers.iter().map(|_| Cell::new(false)).collect();
        let stops = plan.containers.iter().enumerate().map(|(index, target)| {
            let (ended, plan) = (Rc::clone(&ended), &plan);
            async move {
                let grace = Duration::from_secs(u64::try_from(target.grace_s).unwrap_or(0));
                let left_s = || kill::remaining_s(target.grace_s, clock::mono_now() - started);
                let turn = poll_fn(|_| {
                    let ended: Vec<bool> = ended.iter().map(Cell::get).collect();
                    if plan.may_signal(index, &ended, left_s()) {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                });
                let late = async {
                    Timer::after((started + grace) - clock::mono_now()).await;
                };
                turn.or(late).await;
                // A shorter grace that the caller named holds here, too: kubeadm asks anew after two seconds.
                let left = kill::stop_grace(left_s()).min(most);
                let stopped = runtime.stop_container(&target.id, left);
                if let Err(e) = stopped.await {
                    log::warn!("container={} {e}", target.id);
                }
                ended[index].set(true);
            }
        });
        join_all(stops).await;
    }
}

/// The groups of pods and of shims. The groups of a runtime may have been made by either cgroup driver.
fn cgroup_paths(cfg: &AgentConfig) -> Vec<String> {
    let root = &cfg.cgroup.tree.root;
    let tree = |driver| {
        let root = root.clone();
        CgroupTree { root, driver }.kubepods_path()
    };
    let shims = format!("{}/picolet-shims", root.trim_end_matches('/'));
    let mut groups = vec![tree(CgroupDriver::Cgroupfs), shims];
    if cfg.runtime.endpoints.is_some() {
        groups.push(tree(CgroupDriver::Systemd));
    }
    groups
}

/// Things that could not be removed, one line each.
#[derive(Default)]
struct UnremovedItems(Vec<String>);

impl UnremovedItems {
    fn note_failure<E: Error>(&mut self, what: &str, removed: Result<(), E>) {
        if let Err(e) = removed {
            self.0.push(format!("{what}: {}", error_chain(&e)));
        }
    }
}

/// Reason why volumes stay.
#[derive(Debug, thiserror::Error)]
enum VolumeRemovalError {
    /// The volumes that exist are not known.
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

fn remove_volumes(cfg: &AgentConfig) -> Result<(), VolumeRemovalError> {
    if !cfg.dirs.pods_dir().exists() {
        return Ok(());
    }
    let volumes = Volumes::new(&cfg.dirs.root)?;
    let mut result = Ok(());
    for uid in volumes.list_pod_dirs()? {
        let gone = volumes
            .tear_down_pod(&uid)
            .and_then(|()| volumes.remove_pod_dir(&uid));
        let gone = gone.map_err(VolumeRemovalError::from);
        result = result.and(gone);
    }
    result
}
