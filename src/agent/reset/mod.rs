//! `picolet reset`: removes everything that agents made with one configuration. What an operator put down stays: manifests,
//! the configuration, archives in the drop-in directory, seccomp profiles.
//!
//! Each step goes on after an error and may be repeated: a reset that was interrupted is finished by the next.
//!
//! Pods get the grace of their manifests. Their hooks are the agent's to run: they run if a running agent is told to end
//! them first, which is what `--stop` does.

mod files;
mod survey;

use alloc::{rc::Rc, sync::Arc};
use core::{cell::Cell, future::poll_fn, task::Poll, time::Duration};
use std::{ffi::OsString, fs, os::fd::OwnedFd, path::Path};

use smol::future::FutureExt as _;

use super::{
    clock::{Clock as _, SystemClock},
    executor::join_all,
    neighbours,
    pod_store::PodStore,
    run,
};
use crate::{
    api::{Pod, cri::PodRuntimeStatus},
    cgroup::Cgroups,
    config::Config,
    error::chain,
    image::pull::Settings,
    logic::{kill, static_pod},
    runtime::{
        RuntimeService as _,
        runc::{self, Runc, apparmor, cni, store_images::StoreImages},
    },
    sys::lane::Lane,
    volume::Volumes,
};

/// How often the locks of an agent that was told to end are tried, and the pause between: its process outlives its answer
/// by the time a process takes to exit.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// What a reset shall do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice {
    /// Images stay.
    pub keep_images: bool,
    /// No pod gets more seconds than this to end.
    pub grace_s: Option<i64>,
}

/// A reset that is looked at: nothing is locked, made or removed.
pub struct Reset {
    cfg: Config,
    choice: Choice,
}

/// A reset that may begin: no agent uses these directories, and none can start until it is over.
pub struct Locked {
    reset: Reset,
    _locks: [fs::File; 2],
    _neighbours: Vec<fs::File>,
}

impl Reset {
    /// The reset of what the agent with the flags `words` made.
    ///
    /// Errors: one line: the flags or the configuration are wrong, or this is not root.
    pub fn new(words: Vec<OsString>, choice: Choice) -> Result<Self, String> {
        let text = |e: run::StartError| e.to_string();
        let Some(loaded) = run::configure(words).map_err(text)? else {
            return Err("--help is no flag of this command".into());
        };
        let mut cfg = loaded.config;
        run::start_logging(cfg.verbosity);
        log::set_max_level(log::LevelFilter::Warn);
        run::check_ground().map_err(text)?;
        // The mount table knows real paths only.
        for dir in [&mut cfg.dirs.root, &mut cfg.dirs.run] {
            if let Ok(real) = fs::canonicalize(&*dir) {
                *dir = real;
            }
        }
        Ok(Self { cfg, choice })
    }

    /// What there is to remove, one thing a line. Empty: nothing.
    #[must_use]
    pub fn survey(&self) -> Vec<String> {
        survey::lines(&self.cfg, self.choice.keep_images)
    }

    /// Where an agent of this configuration listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.cfg.dirs.socket
    }

    /// Whether an agent of this configuration runs.
    #[must_use]
    pub fn agent_runs(&self) -> bool {
        files::is_locked(&self.cfg.dirs.root) || files::is_locked(&self.cfg.dirs.run)
    }

    /// Takes the locks of the agent; with `wait` one that ends is waited for.
    ///
    /// Errors: one line: an agent or a kubelet uses what would be removed, or the directories cannot be used.
    pub fn lock(mut self, wait: bool) -> Result<Locked, String> {
        for dir in [&mut self.cfg.dirs.root, &mut self.cfg.dirs.run] {
            fs::create_dir_all(&*dir).map_err(|e| format!("{}: {e}", dir.display()))?;
            *dir = fs::canonicalize(&*dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        }
        let mut tries = if wait { LOCK_TRIES } else { 1 };
        loop {
            tries -= 1;
            let locks = run::lock_dirs(&self.cfg).map_err(|e| e.to_string());
            let all = locks.and_then(|locks| Ok((locks, neighbours::claim(&self.cfg)?)));
            match all {
                Ok((locks, neighbours)) => {
                    return Ok(Locked {
                        reset: self,
                        _locks: locks,
                        _neighbours: neighbours,
                    });
                }
                Err(e) if tries == 0 => return Err(e),
                Err(_) => smol::block_on(async { smol::Timer::after(LOCK_PAUSE).await }),
            };
        }
    }
}

impl Locked {
    /// Removes everything.
    ///
    /// Errors: what could not be removed, one line each; the rest was tried.
    pub fn carry_out(self) -> Result<(), Vec<String>> {
        smol::block_on(self.reset.remove_all())
    }
}

impl Reset {
    async fn remove_all(&self) -> Result<(), Vec<String>> {
        let cfg = &self.cfg;
        let mut left = Vec::new();
        let mut keep = |what: &str, result: Result<(), String>| {
            if let Err(why) = result {
                left.push(format!("{what}: {why}"));
            }
        };
        let cgroups = Cgroups::detect();
        match &cgroups {
            Ok(cgroups) => keep("containers", self.remove_runtime(cgroups.clone()).await),
            Err(e) => keep("cgroups", Err(chain(e))),
        }
        if let Ok(cgroups) = &cgroups {
            // What the runtime knew nothing of; this also ends its processes.
            for path in groups(cfg) {
                let gone = cgroups.destroy(&path).await;
                keep(&path, gone.map_err(|e| chain(&e)));
            }
            let parent = cfg.cgroup.root.trim_end_matches('/');
            if !parent.is_empty() {
                // Made by the agent, or by the operator for it alone.
                cgroups.remove_empty(parent);
            }
        }
        keep("volumes", remove_volumes(cfg));
        keep("the run directory", files::remove_run(&cfg.dirs.run));
        let images = !self.choice.keep_images;
        keep(
            "the root directory",
            files::remove_root(&cfg.dirs.root, images),
        );
        keep(
            "logs",
            files::remove_logs(&cfg.dirs.pod_logs, &cfg.dirs.container_logs),
        );
        let chains = cni::forget_port_chains().await;
        keep("iptables", chains.map_err(|e| chain(&e)));
        keep("AppArmor", apparmor::unload().map_err(|e| e.to_string()));
        neighbours::forget(cfg);
        if left.is_empty() { Ok(()) } else { Err(left) }
    }

    /// Ends and removes what the records of the run directory tell of: containers, networks, namespaces, the bridge.
    async fn remove_runtime(&self, cgroups: Cgroups) -> Result<(), String> {
        let cfg = &self.cfg;
        let exe = fs::File::open("/proc/self/exe").map_err(|e| e.to_string())?;
        let host = runc::host::facts(&cgroups);
        let settings = run::runc_settings(cfg, host, Arc::new(OwnedFd::from(exe)));
        let lane = Lane::start("disk").map_err(|e| e.to_string())?;
        // The backend asks for images only to make containers of.
        let store = cfg.dirs.run.join("no-images");
        let opened = StoreImages::open(store, Settings::default(), lane.clone(), lane.clone());
        let images = opened.await.map_err(|e| chain(&e))?;
        let runtime = Runc::open(settings, Box::new(images), lane, cgroups)
            .await
            .map_err(|e| e.to_string())?;
        let listed = runtime.list_pods().await.map_err(|e| e.to_string())?;
        let mut pods = Vec::new();
        for pod in &listed {
            let status = runtime.pod_status(&pod.uid).await;
            pods.push(status.map_err(|e| e.to_string())?);
        }
        let store = PodStore::new(&cfg.dirs.root, &cfg.dirs.run);
        // What does not end is killed by what follows.
        join_all(pods.iter().map(|pod| self.end_pod(&runtime, &store, pod))).await;
        runtime.reset().await.map_err(|e| e.to_string())
    }

    /// Ends a pod's containers as its manifest asks, but for its hooks.
    async fn end_pod(&self, runtime: &Runc, store: &PodStore, status: &PodRuntimeStatus) {
        let record = store.read::<serde_json::Value>(&status.uid).ok();
        // A pod without a record is ended as the agent ends one that only the runtime knows.
        let pod = record.and_then(|(_, raw)| static_pod::decode(&raw).ok());
        let mut plan = pod.as_ref().map_or_else(
            || kill::runtime_pod_kill(status),
            |pod: &Pod| kill::pod_kill(pod, status, None),
        );
        if let Some(most) = self.choice.grace_s {
            for target in &mut plan.containers {
                target.grace_s = target.grace_s.min(most);
            }
        }
        let clock = SystemClock;
        let started = clock.now();
        let ended: Rc<[Cell<bool>]> = plan.containers.iter().map(|_| Cell::new(false)).collect();
        let stops = plan.containers.iter().enumerate().map(|(index, target)| {
            let (ended, plan) = (Rc::clone(&ended), &plan);
            async move {
                let grace = Duration::from_secs(u64::try_from(target.grace_s).unwrap_or(0));
                let left_s = || kill::remaining_s(target.grace_s, clock.now() - started);
                let turn = poll_fn(|_| {
                    let ended: Vec<bool> = ended.iter().map(Cell::get).collect();
                    if plan.may_signal(index, &ended, left_s()) {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                });
                turn.or(clock.until(started + grace)).await;
                let stopped = runtime.stop_container(&target.id, kill::stop_grace(left_s()));
                if let Err(e) = stopped.await {
                    log::warn!("container={} {e}", target.id);
                }
                ended[index].set(true);
            }
        });
        join_all(stops).await;
    }
}

/// The groups of pods and of shims.
fn groups(cfg: &Config) -> [String; 2] {
    let parent = cfg.cgroup.root.trim_end_matches('/');
    ["kubepods", "picolet-shims"].map(|group| format!("{parent}/{group}"))
}

fn remove_volumes(cfg: &Config) -> Result<(), String> {
    if !cfg.dirs.pods().exists() {
        return Ok(());
    }
    let volumes = Volumes::new(&cfg.dirs.root).map_err(|e| e.to_string())?;
    let mut result = Ok(());
    for uid in volumes.list_pod_dirs().map_err(|e| e.to_string())? {
        let gone = volumes
            .tear_down(&uid)
            .and_then(|()| volumes.remove_pod_dir(&uid));
        let gone = gone.map_err(|e| chain(&e));
        result = result.and(gone);
    }
    result
}
